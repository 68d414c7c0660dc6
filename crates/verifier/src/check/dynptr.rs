//! Dynptrs: two stack slots that describe memory whose bounds are checked at run time; and
//! iterators: slots that walk something.

use super::Walk;
use crate::reg::{Flags, Id, Kind, Reg};
use crate::reject::Reason;
use crate::stack::{Byte, DynptrKind, Slot};
use crate::state::Reference;
use skep_isa::HelperId;
use skep_isa::kfunc::{self, KFlags, KRet, Kfunc};

/// Slots of a dynptr.
const DYNPTR_SLOTS: i32 = 2;

impl Walk<'_> {
    /// Where on the stack an object of `slots` slots stands.
    fn object_place(
        &self,
        reg: u8,
        r: &Reg,
        slots: i32,
        what: &'static str,
    ) -> Result<(u8, i32), Reason> {
        let Kind::Stack(frame) = r.kind else {
            return Err(Reason::NotOnStack { arg: reg - 1, what });
        };
        if r.val.as_const().is_none() {
            return Err(Reason::VariableObject { what });
        }
        let (off, _) = r.offsets();
        if off % 8 != 0 || off < -512 || off + i64::from(slots) * 8 > 0 {
            return Err(Reason::BadObjectOffset { what, off });
        }
        Ok((frame, off as i32))
    }

    /// The object that begins at a place, whole.
    fn object_at(&self, frame: u8, off: i32, slots: i32, is: impl Fn(Kind) -> bool) -> Option<Reg> {
        let first = self.state.slot(frame, off);
        let same = |n: i32| {
            let s = self.state.slot(frame, off + n * 8);
            s.bytes == [Byte::Special; 8] && is(s.reg.kind) && s.reg.id == first.reg.id
        };
        (0..slots).all(same).then_some(first.reg)
    }

    /// Puts an object on the stack.
    fn put_object(&mut self, frame: u8, off: i32, slots: i32, reg: Reg) {
        if let Some(f) = self.state.frames.get_mut(frame as usize) {
            for n in 0..slots {
                let mut part = reg;
                part.range = n as u32;
                *f.stack.slot_mut(off + n * 8) = Slot { bytes: [Byte::Special; 8], reg: part };
            }
            if let Some(d) = self.depths.get_mut(f.func) {
                *d = (*d).max((-off) as u32);
            }
        }
    }

    fn clear_object(&mut self, frame: u8, off: i32, slots: i32) {
        if let Some(f) = self.state.frames.get_mut(frame as usize) {
            for n in 0..slots {
                *f.stack.slot_mut(off + n * 8) = Slot::UNINIT;
            }
        }
    }

    /// Before bytes of the stack are written: objects there end, unless they must be given back.
    pub(super) fn overwrite_objects(
        &mut self,
        frame: u8,
        low: i32,
        high: i32,
        by_helper: bool,
    ) -> Result<(), Reason> {
        let mut off = low & !7;
        while off < high {
            let slot = *self.state.slot(frame, off);
            if slot.bytes[0] == Byte::Special {
                if let Kind::Dynptr(_) = slot.reg.kind {
                    if by_helper {
                        return Err(Reason::DynptrOverwrite { off });
                    }
                    if slot.reg.reference != 0 {
                        return Err(Reason::ReferencedDynptr);
                    }
                    let first = off - slot.reg.range as i32 * 8;
                    self.end_dynptr(frame, first, slot.reg.id);
                } else {
                    self.clear_object(frame, off, 1);
                }
            }
            off += 8;
        }
        Ok(())
    }

    fn end_dynptr(&mut self, frame: u8, off: i32, id: Id) {
        self.clear_object(frame, off, DYNPTR_SLOTS);
        self.state.invalidate(self.opts.strict, |r| r.parent == id && id != 0);
    }

    /// Checks a dynptr handed to a helper or a function.
    pub(super) fn dynptr_argument(&mut self, reg: u8, r: &Reg) -> Result<Reg, Reason> {
        if let Kind::Dynptr(_) = r.kind {
            if r.off != 0 || r.val.as_const() != Some(0) {
                return Err(Reason::BadObjectOffset { what: "dynptr", off: r.offsets().0 });
            }
            return Ok(*r);
        }
        let (frame, off) = self.object_place(reg, r, DYNPTR_SLOTS, "dynptr")?;
        self.object_at(frame, off, DYNPTR_SLOTS, |k| matches!(k, Kind::Dynptr(_)))
            .ok_or(Reason::NoDynptr { reg })
    }

    /// Makes a dynptr of two slots.
    pub(super) fn make_dynptr(
        &mut self,
        reg: u8,
        r: &Reg,
        kind: DynptrKind,
        reference: Id,
    ) -> Result<(), Reason> {
        let (frame, off) = match self.object_place(reg, r, DYNPTR_SLOTS, "dynptr") {
            Err(Reason::NotOnStack { .. }) => return Err(Reason::DynptrNotUninit),
            other => other?,
        };
        self.overwrite_objects(frame, off, off + 8 * DYNPTR_SLOTS, false)?;
        let mut slot = Reg::of(Kind::Dynptr(kind));
        slot.id = self.fresh_id();
        slot.reference = reference;
        if kind == DynptrKind::Ringbuf && reference == 0 {
            slot.reference = slot.id;
            self.state.refs.push(Reference { id: slot.id, insn: self.insn });
        }
        self.put_object(frame, off, DYNPTR_SLOTS, slot);
        Ok(())
    }

    /// Submits or discards the record behind a dynptr.
    pub(super) fn release_dynptr(&mut self, reg: u8, r: &Reg) -> Result<(), Reason> {
        if matches!(r.kind, Kind::Dynptr(_)) {
            return Err(Reason::ConstDynptr);
        }
        let d = self.dynptr_argument(reg, r)?;
        if d.kind != Kind::Dynptr(DynptrKind::Ringbuf) {
            return Err(Reason::OtherDynptr { reg, expected: "ringbuf" });
        }
        if d.reference == 0 {
            return Err(Reason::NotReferenced { reg });
        }
        self.state.refs.retain(|held| held.id != d.reference);
        self.state.invalidate(self.opts.strict, |x| x.reference == d.reference);
        // All dynptrs of the record end, not only this one; nothing else is left that came with it.
        for frame in 0..self.state.frames.len() as u8 {
            let slots = self.state.frames.get(frame as usize).map_or(0, |f| f.stack.slots().len());
            for n in 0..slots as i32 {
                let off = -8 * (n + 1);
                if self.state.slot(frame, off).reg.reference == d.reference {
                    self.clear_object(frame, off, 1);
                }
            }
        }
        Ok(())
    }

    /// What `bpf_dynptr_data` gives.
    pub(super) fn dynptr_slice(&mut self, d: &Reg, size: u32) -> Reg {
        let mut r = self.or_null(Kind::Mem(size));
        r.parent = d.id;
        r.reference = d.reference;
        r
    }

    /// The packet moved: slices of it are gone.
    pub(super) fn lose_packet(&mut self) {
        self.state.invalidate(self.opts.strict, |r| {
            r.kind.is_packet() || r.kind == Kind::PacketEnd || r.flags.has(Flags::PACKET)
        });
    }

    /// Where an iterator stands, or will.
    pub(super) fn iter_place(
        &mut self,
        k: &Kfunc,
        reg: u8,
        r: &Reg,
        new: bool,
    ) -> Result<(u8, i32), Reason> {
        let (name, slots) = k.iterator().unwrap_or(("", 1));
        let (frame, off) = self.object_place(reg, r, slots, "iterator")?;
        if new {
            let free =
                (0..slots).all(|n| self.state.slot(frame, off + n * 8).bytes != [Byte::Special; 8]);
            if !free {
                return Err(Reason::IterNotUninit { name, arg: reg - 1 });
            }
            return Ok((frame, off));
        }
        let found = self.object_at(
            frame,
            off,
            slots,
            |kind| matches!(kind, Kind::Iter { of, .. } if iter_name(of) == name),
        );
        match found {
            Some(it) if it.flags.has(Flags::UNTRUSTED) => {
                Err(Reason::IterNeedsRcu { name: k.name })
            }
            Some(_) => Ok((frame, off)),
            None => Err(Reason::NoIter { name, arg: reg - 1 }),
        }
    }

    pub(super) fn iter_new(
        &mut self,
        k: &Kfunc,
        id: HelperId,
        seen: &super::kfunc::Seen,
    ) -> Result<(), Reason> {
        let Some((frame, off)) = seen.iter else { return Ok(()) };
        let mut it = Reg::of(Kind::Iter { of: id, drained: false });
        it.id = self.fresh_id();
        it.reference = it.id;
        if k.flags.has(KFlags::RCU_PROTECTED) {
            it.flags = Flags::RCU;
        }
        self.state.refs.push(Reference { id: it.id, insn: self.insn });
        let id = self.fresh_loop();
        self.state.loops.begin_iterator(id, it.id);
        self.put_object(frame, off, slots_of(k), it);
        Ok(())
    }

    pub(super) fn iter_destroy(&mut self, seen: &super::kfunc::Seen) {
        let Some((frame, off)) = seen.iter else { return };
        let it = self.state.slot(frame, off).reg;
        let slots = if let Kind::Iter { of, .. } = it.kind {
            kfunc::by_id(of).map_or(1, slots_of)
        } else {
            1
        };
        self.clear_object(frame, off, slots);
        let rounds = self.state.loops.iterator(it.reference);
        self.state.loops.end(rounds);
        self.release(it.reference);
    }

    /// The next element, or none: first the path on which there is none.
    pub(super) fn iter_next(
        &mut self,
        k: &Kfunc,
        seen: &super::kfunc::Seen,
        at: usize,
    ) -> Result<Option<usize>, Reason> {
        let Some((frame, off)) = seen.iter else { return Ok(Some(at + 1)) };
        let it = self.state.slot(frame, off).reg;
        for r in 0..=5 {
            self.state.set(r, Reg::UNINIT);
        }
        let Kind::Iter { of, drained } = it.kind else { return Ok(Some(at + 1)) };
        if !drained {
            let mut more = self.state.clone();
            let rounds = more.loops.iterator(it.reference);
            more.loops.take_turn(rounds);
            let mut element = match k.ret {
                KRet::MemOrNull(n) => Reg::of(Kind::Mem(n)),
                KRet::ObjectOrNull(name) => match self.target_struct(name) {
                    Some(ty) => Reg::of(Kind::Btf(ty)),
                    None => return Err(Reason::Unsupported { what: "an object of unknown type" }),
                },
                _ => Reg::UNKNOWN,
            };
            match element.kind {
                Kind::Mem(_) => {
                    element.flags = Flags::RDONLY;
                    element.reference = it.reference;
                }
                Kind::Btf(_) => {
                    element.flags =
                        if it.flags.has(Flags::RCU) { Flags::RCU } else { Flags::TRUSTED }
                }
                _ => {}
            }
            more.set(0, element);
            self.fork(more, at + 1);
        }
        let slots = slots_of(k);
        let mut over = it;
        over.kind = Kind::Iter { of, drained: true };
        self.put_object(frame, off, slots, over);
        self.state.set(0, Reg::constant(0));
        Ok(Some(at + 1))
    }
}

fn iter_name(of: HelperId) -> &'static str {
    kfunc::by_id(of).and_then(Kfunc::iterator).map_or("", |(name, _)| name)
}

/// How many stack slots the iterator of a function takes.
fn slots_of(k: &Kfunc) -> i32 {
    k.iterator().map_or(1, |(_, slots)| slots)
}
