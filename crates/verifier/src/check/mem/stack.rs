//! Accesses to the stack: by instructions, and by helpers.

use super::{Access, At, MAX_OFFSET};
use crate::check::{Walk, loaded};
use crate::flow::Node;
use crate::reg::{Kind, Reg};
use crate::reject::Reason;
use crate::stack::Byte;
use skep_isa::op;

impl Walk<'_> {
    /// Checks that an access lies on the stack; the lowest and highest first byte.
    pub(super) fn stack_span(
        &mut self,
        reg: u8,
        r: &Reg,
        frame: u8,
        off: i32,
        size: u32,
        access: Access,
    ) -> Result<(i32, i32), Reason> {
        let (min, max) = r.offsets();
        let (min, max) = (min.saturating_add(off.into()), max.saturating_add(off.into()));
        let what = access.word();
        if r.val.as_const().is_none()
            && (r.val.r64.smin <= -MAX_OFFSET || r.val.r64.smax >= MAX_OFFSET)
        {
            return Err(Reason::UnboundedStack { what, reg });
        }
        if self.opts.strict && r.val.as_const().is_none() {
            return Err(Reason::VariableStack {
                reg,
                bits: r.val.bits.to_string(),
                off: i64::from(r.off) + i64::from(off),
            });
        }
        let room = -i64::from(op::STACK_SIZE)..=-i64::from(size);
        if !room.contains(&min) || !room.contains(&max) {
            return Err(if r.val.as_const().is_some() {
                Reason::BadStackAccess { what, reg, off: min, size }
            } else {
                let off = i64::from(r.off) + i64::from(off);
                Reason::BadVariableStackAccess {
                    what,
                    reg,
                    bits: r.val.bits.to_string(),
                    off,
                    size,
                }
            });
        }
        let Some(func) = self.state.frames.get(frame as usize).map(|f| f.func) else {
            return Err(Reason::BadStackAccess { what, reg, off: min, size });
        };
        if let Some(d) = self.depths.get_mut(func) {
            *d = (*d).max((-min) as u32);
        }
        Ok((min as i32, max as i32))
    }

    pub(super) fn load_stack(
        &mut self,
        at: &At,
        r: &Reg,
        frame: u8,
        signed: bool,
    ) -> Result<Reg, Reason> {
        let (min, max) = self.stack_span(at.reg, r, frame, at.off, at.size, Access::Read)?;
        let stack = &self.state.frames[frame as usize].stack;
        if min == max {
            let slot = *stack.slot(min);
            if min & 7 == 0 && slot.bytes[0] == Byte::Spill {
                let spilled = slot.bytes.iter().filter(|b| **b == Byte::Spill).count() as u32;
                if slot.is_pointer() {
                    return if at.size == 8 {
                        Ok(slot.reg)
                    } else {
                        Err(Reason::SpillSize { what: "fill" })
                    };
                }
                if at.size <= spilled {
                    return Ok(self.fill(&slot.reg, frame, min, at.size, signed));
                }
            }
        }
        let allow = self.opts.allow_uninit_stack && !self.opts.strict;
        // The number as far as every byte is known, and what it was made of.
        let (mut known, mut node) = (Some(0u64), Node::NONE);
        for o in min..max + at.size as i32 {
            let byte = match stack.byte(o) {
                Byte::Special => {
                    return Err(Reason::UninitStackRead {
                        off: min.into(),
                        at: (o - min) as u32,
                        size: at.size,
                    });
                }
                Byte::Uninit if allow => None,
                Byte::Uninit => {
                    return Err(Reason::UninitStackRead {
                        off: min.into(),
                        at: (o - min) as u32,
                        size: at.size,
                    });
                }
                Byte::Zero => Some(0),
                Byte::Misc => None,
                Byte::Spill => {
                    let slot = stack.slot(o);
                    if slot.is_pointer() && min == max {
                        return Err(Reason::SpillSize { what: "fill" });
                    }
                    node = self.flow.derive(node, slot.reg.node);
                    slot.reg.as_const().map(|n| (n >> ((o & 7) * 8)) & 0xff)
                }
            };
            known = known
                .zip(byte)
                .map(|(n, b)| n | b.wrapping_shl(((o - min) as u32).wrapping_mul(8)));
        }
        // Only zeroes are put together from several stores, as in the kernel.
        let mut r = match known.filter(|n| min == max && *n == 0) {
            Some(n) => Reg::constant(n),
            None => Reg::scalar(loaded(at.size, signed)),
        };
        r.node = node;
        Ok(r)
    }

    /// A number read back from the slot it was spilled to.
    pub(super) fn fill(
        &mut self,
        spilled: &Reg,
        frame: u8,
        off: i32,
        size: u32,
        signed: bool,
    ) -> Reg {
        let val =
            if signed { spilled.val.sign_extend(size * 8) } else { spilled.val.truncate(size * 8) };
        if val != spilled.val || val.as_const().is_some() {
            let mut r = Reg::scalar(val);
            r.node = self.flow.derive(spilled.node, Node::NONE);
            return r;
        }
        // Unchanged: the register and the slot stay equal.
        let mut r = *spilled;
        if r.id == 0 {
            r.id = self.fresh_id();
            self.state.frames[frame as usize].stack.slot_mut(off).reg.id = r.id;
        }
        r
    }

    pub(super) fn store_stack(
        &mut self,
        at: &At,
        r: &Reg,
        frame: u8,
        value: &Reg,
    ) -> Result<(), Reason> {
        let (min, max) = self.stack_span(at.reg, r, frame, at.off, at.size, Access::Write)?;
        if matches!(value.kind, Kind::Stack(_)) && usize::from(frame) != self.state.depth() {
            return Err(Reason::SpillToCaller);
        }
        self.overwrite_objects(frame, min, max + at.size as i32, false)?;
        let size = at.size as i32;
        if self.opts.strict
            && size != 8
            && self.state.frames[frame as usize].stack.has_pointer(min, max + size)
        {
            return Err(Reason::CorruptsPointer);
        }
        let zero = value.is_scalar() && value.val.truncate(at.size * 8).as_const() == Some(0);
        if min != max {
            if zero {
                self.flow.mark(value.node);
            }
            self.state.frames[frame as usize].stack.smear(min, max - min + size, zero);
            return Ok(());
        }
        // One that was handed to a callback is gone when that returns, and the stack may be a caller's:
        // as in the kernel, what is read back is a number.
        let is_lent = matches!(value.kind, Kind::Dynptr(_));
        if is_lent && self.opts.strict {
            return Err(Reason::LeaksInto { what: "stack".to_owned() });
        }
        if value.kind.is_pointer() && !is_lent {
            if at.size != 8 {
                return Err(Reason::SpillSize { what: "spill" });
            }
            self.state.frames[frame as usize].stack.spill(min, 8, *value);
            return Ok(());
        }
        let narrowed = value.val.truncate(at.size * 8);
        if min & 7 == 0 && !is_lent {
            let mut v = *value;
            if narrowed != value.val {
                v = Reg::scalar(narrowed);
                v.node = self.flow.derive(value.node, Node::NONE);
            } else if v.val.as_const().is_none() && v.id == 0 {
                // Give slot and register one id, so that a later test of one narrows both.
                v.id = self.fresh_id();
                let src = self
                    .prog
                    .insns
                    .get(self.insn)
                    .filter(|i| i.code & 0xe7 == (op::STX | op::MEM))
                    .map(|i| i.src());
                if let Some(src) = src {
                    self.state.set(src, v);
                }
            }
            self.state.frames[frame as usize].stack.spill(min, size, v);
            return Ok(());
        }
        if zero {
            self.flow.mark(value.node);
        }
        self.state.frames[frame as usize].stack.fill(
            min,
            size,
            if zero { Byte::Zero } else { Byte::Misc },
        );
        Ok(())
    }

    /// Checks `size` bytes of stack that a helper reads or writes.
    pub(in crate::check) fn helper_stack(
        &mut self,
        reg: u8,
        r: &Reg,
        frame: u8,
        size: u32,
        access: Access,
    ) -> Result<(), Reason> {
        let (min, max) = self.stack_span(reg, r, frame, 0, size, access)?;
        let allow = self.opts.allow_uninit_stack && !self.opts.strict;
        let end = max + size as i32;
        if self.opts.strict && self.state.frames[frame as usize].stack.has_pointer(min, end) {
            return Err(if access.writes() {
                Reason::CorruptsPointer
            } else {
                Reason::LeaksInto { what: "helper function".to_owned() }
            });
        }
        if access.writes() {
            self.overwrite_objects(frame, min, end, true)?;
        }
        let stack = &mut self.state.frames[frame as usize].stack;
        if access == Access::Spare {
            stack.smear(min, end - min, false);
            return Ok(());
        }
        if access.reads() {
            for o in min..end {
                let byte = stack.byte(o);
                if byte == Byte::Special || (byte == Byte::Uninit && !allow) {
                    return Err(Reason::UninitIndirect {
                        what: "read from",
                        reg,
                        off: min.into(),
                        at: (o - min) as u32,
                        size,
                    });
                }
            }
        }
        if access.writes() {
            stack.smear(min, end - min, false);
            // Whichever the place, these are written; all that the helper has room for counts, as
            // it does for Linux.
            if max < min.saturating_add(size as i32) {
                stack.fill(max, min + size as i32 - max, Byte::Misc);
            }
        }
        Ok(())
    }
}
