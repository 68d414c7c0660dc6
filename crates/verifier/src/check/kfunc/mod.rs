//! Calls of kernel functions: every argument against the row in [`skep_isa::kfunc`], then the
//! result.

mod argument;
mod result;

use super::Walk;
use crate::reg::{Flags, Id, Reg};
use crate::reject::Reason;
use crate::stack::Byte;
use skep_isa::Insn;
use skep_isa::kfunc::{self, KFlags, Kfunc, Section};
use skep_object::btf::TypeId;

/// What the arguments of one call taught.
#[derive(Default)]
pub(super) struct Seen {
    /// The constant argument.
    pub constant: u64,
    /// Most bytes of the memory.
    pub size: u32,
    /// The reference that is given back.
    pub release: Option<Id>,
    /// The dynptr that was handed in.
    pub dynptr: Option<Reg>,
    /// Where the iterator stands: frame and offset.
    pub iter: Option<(u8, i32)>,
    /// The object that was handed in.
    pub object: Option<Reg>,
    /// What the list or tree holds: type and offset of the node.
    pub contains: Option<(TypeId, u32)>,
    /// The function of the program that was handed in.
    pub callback: Option<u32>,
}

impl Walk<'_> {
    pub(super) fn call_kfunc(&mut self, i: Insn, at: usize) -> Result<Option<usize>, Reason> {
        let id = i.imm as u32;
        let k = kfunc::by_id(id).ok_or(Reason::NoSuchHelper { id })?;
        let p = self.prog;
        if !k.allows_attached(p.prog_type, p.attach_type, p.target.as_deref()) {
            return Err(Reason::KfuncNotAllowed { name: k.name });
        }
        if self.opts.offered_only && !k.offered {
            return Err(Reason::NotOffered {
                name: k.name.to_owned(),
                id,
                why: "it is a function of the kernel",
            });
        }
        if !self.prog.gpl {
            return Err(Reason::NeedsGpl { name: k.name.to_owned() });
        }
        if self.state.lock.is_some() && !k.flags.has(KFlags::UNDER_LOCK) {
            return Err(Reason::CallUnderLock);
        }
        if k.flags.has(KFlags::SLEEPABLE) {
            if !self.prog.sleepable {
                return Err(Reason::KfuncSleeps { name: k.name });
            }
            if self.state.rcu > 0 || self.state.preempt > 0 {
                return Err(Reason::SleepsInside { name: k.name });
            }
        }
        if k.flags.has(KFlags::RCU_PROTECTED) && !self.in_rcu() {
            return Err(Reason::NeedsRcu { name: k.name });
        }
        if k.unsupported.is_some() {
            return Err(Reason::Unsupported { what: k.name });
        }
        self.change_section(k)?;
        self.info.helpers.insert(id);
        let mut seen = Seen::default();
        for (n, arg) in k.args.iter().enumerate() {
            self.kfunc_argument(k, n as u8 + 1, *arg, &mut seen)?;
        }
        if let Some(id) = seen.release {
            self.release(id);
        }
        if k.flags.has(KFlags::ITER_NEXT) {
            return self.iter_next(k, &seen, at);
        }
        if k.flags.has(KFlags::ITER_NEW) {
            self.iter_new(k, id, &seen)?;
        }
        if k.flags.has(KFlags::ITER_DESTROY) {
            self.iter_destroy(&seen);
        }
        let r0 = self.kfunc_result(k, &seen)?;
        for r in 0..=5 {
            self.state.set(r, Reg::UNINIT);
        }
        self.state.set(0, r0);
        if let (Some(to), Some((ty, node))) = (seen.callback, seen.contains) {
            return self.call_less(to as usize, ty, node, at);
        }
        Ok(Some(at + 1))
    }

    /// Begins or ends the section that a function does.
    fn change_section(&mut self, k: &Kfunc) -> Result<(), Reason> {
        match k.begins {
            Some(Section::Rcu) if self.state.rcu > 0 => return Err(Reason::NestedRcu),
            Some(Section::Rcu) => self.state.rcu = 1,
            Some(Section::Preemption) => self.state.preempt += 1,
            None => {}
        }
        match k.ends {
            Some(Section::Rcu) => self.rcu_unlock()?,
            Some(Section::Preemption) => {
                self.state.preempt =
                    self.state.preempt.checked_sub(1).ok_or(Reason::NotDisabled)?;
            }
            None => {}
        }
        Ok(())
    }

    /// Tells whether objects protected by read-side sections are alive here.
    pub(super) fn in_rcu(&self) -> bool {
        self.state.rcu > 0 || self.state.lock.is_some() || !self.prog.sleepable
    }

    fn rcu_unlock(&mut self) -> Result<(), Reason> {
        if self.state.rcu == 0 {
            return Err(Reason::NotInRcu);
        }
        self.state.rcu = 0;
        let end = |r: &mut Reg| {
            if r.flags.has(Flags::RCU) {
                r.flags = r.flags.without(Flags::RCU).with(Flags::UNTRUSTED);
                r.nullable = false;
            }
        };
        self.state.each(end);
        // Walks end with it, too.
        let slots = self.state.frames.iter_mut().flat_map(|f| f.stack.slots_mut());
        slots.filter(|s| s.bytes[0] == Byte::Special).for_each(|s| end(&mut s.reg));
        Ok(())
    }

    /// Gives a reference back: what rests on it is gone.
    pub(super) fn release(&mut self, id: Id) {
        self.state.refs.retain(|r| r.id != id);
        self.state.invalidate(self.opts.strict, |r| r.reference == id);
    }
}
