//! Packets: the loads that name no pointer, and which programs may look into packets and write
//! to them.

use super::pristine;
use crate::check::Walk;
use crate::reg::{Kind, Reg};
use crate::reject::Reason;
use skep_isa::{Insn, ProgramType as P, op};

impl Walk<'_> {
    /// `LD_ABS` and `LD_IND`: a number of the packet, in host order; a load outside ends the
    /// program.
    ///
    /// Outside of a function of the program, that is: there, it returns 0 from it.
    pub(in crate::check) fn load_packet(&mut self, i: Insn) -> Result<(), Reason> {
        if !matches!(self.prog.prog_type, P::SocketFilter | P::SchedCls | P::SchedAct) {
            return Err(Reason::NoPacketLoads);
        }
        let r6 = self.read(6)?;
        self.check_nothing_held("BPF_LD_[ABS|IND]")?;
        if r6.kind != Kind::Ctx {
            return Err(Reason::NoSkb);
        }
        pristine(6, &r6, "ctx")?;
        if i.code & 0xe0 == op::IND {
            self.read(i.src())?;
        }
        for r in 1..=5 {
            self.state.set(r, Reg::UNINIT);
        }
        if self.state.depth() > 0 {
            let func = self.cfg.funcs.get(self.state.top().func).copied();
            if !func
                .and_then(|f| self.prog.subprog(f))
                .is_none_or(|s| self.returns_number(s.type_id))
            {
                return Err(Reason::PacketLoadInVoid);
            }
            self.may_return(Reg::constant(0))?;
        }
        self.state.set(0, Reg::UNKNOWN);
        Ok(())
    }

    /// Tells whether programs of this type may write to packets (kernel/bpf/verifier.c
    /// `may_access_direct_pkt_data`).
    pub(in crate::check) fn may_write_packet(&self) -> bool {
        matches!(
            self.prog.prog_type,
            P::Xdp
                | P::SchedCls
                | P::SchedAct
                | P::LwtXmit
                | P::SkSkb
                | P::SkMsg
                | P::CgroupSockopt
        )
    }

    /// Tells whether programs of this type may look into packets and hand them to helpers.
    pub(in crate::check) fn may_read_packet(&self) -> bool {
        self.may_write_packet()
            || matches!(
                self.prog.prog_type,
                P::LwtIn
                    | P::LwtOut
                    | P::LwtSeg6local
                    | P::SkReuseport
                    | P::FlowDissector
                    | P::CgroupSkb
            )
    }
}
