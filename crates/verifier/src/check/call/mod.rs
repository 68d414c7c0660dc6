//! Helper calls: every argument against the helper's row in [`skep_isa::helper`], then the result.

mod argument;
mod format;
mod map;
mod memory;
mod result;

use super::Walk;
use crate::reg::{Id, Kind, Reg};
use crate::reject::Reason;
use crate::stack::DynptrKind;
use skep_isa::Insn;
use skep_isa::helper::{self, Helper, LockRule, PacketEffect};

/// Sizes beyond this are refused (include/linux/bpf_verifier.h `BPF_MAX_VAR_SIZ`).
const MAX_SIZE: u64 = 1 << 29;

/// What the arguments of one call taught.
#[derive(Default)]
struct Call {
    map: Option<u32>,
    alloc: u32,
    /// The key, when it is a known number: then the element of an array is there.
    key: Option<u64>,
    kptr: Option<crate::fields::Kptr>,
    dynptr: Option<Reg>,
    /// Most bytes of the memory written.
    size: Option<u32>,
    release: Option<u32>,
    /// The reference that an argument rests on: results made from it rest on it too.
    reference: Id,
    /// A format: where it stands, and in which map.
    format: Option<(Reg, u32)>,
}

impl Walk<'_> {
    pub(super) fn call_helper(&mut self, i: Insn) -> Result<(), Reason> {
        let id = i.imm as u32;
        let h = helper::by_id(id).ok_or(Reason::NoSuchHelper { id })?;
        self.check_allowed(h)?;
        if let (true, Some(why)) = (self.opts.offered_only, h.refused) {
            return Err(Reason::NotOffered { name: h.full_name(), id, why });
        }
        if self.state.lock.is_some() && h.lock == LockRule::Unlocked {
            return Err(Reason::CallUnderLock);
        }
        if h.holds_nothing {
            self.check_nothing_held(h.name)?;
        }
        let mut call = Call::default();
        for (n, arg) in h.args.iter().enumerate() {
            self.argument(h, n as u8 + 1, *arg, &mut call)?;
        }
        if let Some(id) = call.release {
            self.release(id);
        }
        let packet_dynptr = call
            .dynptr
            .is_some_and(|d| matches!(d.kind, Kind::Dynptr(DynptrKind::Skb | DynptrKind::Any)));
        match h.packet_effect {
            PacketEffect::Moves => self.lose_packet(),
            PacketEffect::MovesThroughDynptr if packet_dynptr => self.lose_packet(),
            PacketEffect::MovesThroughDynptr | PacketEffect::None => {}
        }
        self.info.helpers.insert(id);
        for r in 0..=5 {
            self.state.set(r, Reg::UNINIT);
        }
        self.result(h, &call);
        Ok(())
    }

    fn check_allowed(&self, h: &Helper) -> Result<(), Reason> {
        let p = self.prog;
        if !h.allows_attached(p.prog_type, p.attach_type, p.target.as_deref()) {
            return Err(Reason::HelperNotAllowed { name: h.full_name(), id: h.id });
        }
        if h.gpl_only && !p.gpl {
            return Err(Reason::NeedsGpl { name: h.full_name() });
        }
        if h.sleeps && !p.sleepable {
            return Err(Reason::MightSleep);
        }
        if h.sleeps && (self.state.rcu > 0 || self.state.preempt > 0) {
            return Err(Reason::HelperSleepsInside { name: h.full_name(), id: h.id });
        }
        Ok(())
    }
}

const MEMORY: &str = "fp, pkt, pkt_meta, map_key, map_value, mem, ringbuf_mem, buf, trusted_ptr_";

fn wrong(reg: u8, r: &Reg, expected: &'static str) -> Reason {
    Reason::WrongType { reg, found: r.type_name(), expected }
}
