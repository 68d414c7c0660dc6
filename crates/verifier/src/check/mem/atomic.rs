//! Atomic operations.

use super::{At, size_of};
use crate::check::Walk;
use crate::reg::{Kind, Reg};
use crate::reject::Reason;
use crate::scalar::Scalar;
use skep_isa::{Insn, op};

impl Walk<'_> {
    pub(in crate::check) fn atomic(&mut self, i: Insn) -> Result<(), Reason> {
        let size = size_of(i);
        let off = i.off.into();
        if i.imm == op::ATOMIC_LOAD_ACQ {
            let at = At { reg: i.src(), off, size, aligned: true };
            self.atomic_target(i.src(), "loads from")?;
            let value = self.load_from(&at, false)?;
            self.state.set(i.dst(), value);
            return Ok(());
        }
        let at = At { reg: i.dst(), off, size, aligned: true };
        let value = self.read(i.src())?;
        if self.opts.strict && !value.is_scalar() {
            return Err(Reason::LeaksInto { what: "mem".to_owned() });
        }
        if i.imm == op::ATOMIC_CMPXCHG && !self.read(0)?.is_scalar() && self.opts.strict {
            return Err(Reason::LeaksInto { what: "mem".to_owned() });
        }
        self.atomic_target(i.dst(), "stores into")?;
        if i.imm == op::ATOMIC_STORE_REL {
            return self.store_to(&at, &value);
        }
        let on_stack = matches!(self.read(i.dst())?.kind, Kind::Stack(_));
        let before = self.load_from(&at, false)?;
        if self.opts.strict && !before.is_scalar() {
            // What comes of it is not followed, and would tell the address.
            return Err(Reason::CorruptsPointer);
        }
        self.store_to(&at, &Reg::scalar(Scalar::UNKNOWN))?;
        // Nobody else writes to the stack.
        let old = if on_stack { before } else { Reg::scalar(Scalar::of_size(size)) };
        if i.imm == op::ATOMIC_CMPXCHG {
            self.state.set(0, old);
        } else if i.imm & op::ATOMIC_FETCH != 0 {
            self.state.set(i.src(), old);
        }
        Ok(())
    }

    pub(super) fn atomic_target(&self, reg: u8, what: &'static str) -> Result<(), Reason> {
        let r = self.read(reg)?;
        // Not what is compiled for the field that is meant.
        let fields = matches!(
            r.kind,
            Kind::Ctx
                | Kind::SockCommon
                | Kind::Socket
                | Kind::TcpSock
                | Kind::XdpSock
                | Kind::FlowKeys
        );
        if fields || r.kind.is_packet() {
            return Err(Reason::AtomicOn { reg, what, kind: r.type_name() });
        }
        Ok(())
    }
}
