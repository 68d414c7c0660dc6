//! One frame's stack: eight-byte slots, each byte with its own history, and the register a slot was
//! spilled from.
//!
//! ```text
//! fp-8 … fp-1   slot 0      byte k of slot s is at fp - 8(s+1) + k
//! fp-16 … fp-9  slot 1      a spill fills bytes 0.. of one slot;
//!                           other stores only say what kind of bytes there are
//! ```

use crate::reg::Reg;

/// What a dynptr leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DynptrKind {
    /// Not known: the argument of a function that is verified on its own.
    Any,
    /// Memory of a map value.
    Local,
    /// A ring buffer record; must be submitted or discarded.
    Ringbuf,
    /// A socket buffer.
    Skb,
    /// An XDP packet.
    Xdp,
}

/// What is known of one byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Byte {
    /// Never written on this path.
    Uninit,
    /// Written, not known.
    Misc,
    /// Zero.
    Zero,
    /// Part of the spilled register.
    Spill,
    /// Part of a dynptr or iterator, which programs must not look into.
    Special,
}

/// Eight bytes of stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slot {
    /// Each byte, lowest address first.
    pub bytes: [Byte; 8],
    /// The spilled register, when any byte is [`Byte::Spill`].
    pub reg: Reg,
}

impl Slot {
    /// Never written.
    pub const UNINIT: Self = Self { bytes: [Byte::Uninit; 8], reg: Reg::UNINIT };

    /// Tells whether nothing was ever written.
    #[must_use]
    pub fn is_unwritten(&self) -> bool {
        self.kinds() == Self::UNINIT.kinds()
    }

    /// Tells whether the bytes of both are of the same kinds.
    #[must_use]
    pub fn has_same_bytes(&self, other: &Self) -> bool {
        self.kinds() == other.kinds()
    }

    /// The kinds of all bytes in one word, which is compared at once.
    fn kinds(&self) -> u64 {
        u64::from_ne_bytes(self.bytes.map(|byte| byte as u8))
    }

    /// Tells whether the slot holds a pointer.
    #[must_use]
    pub fn is_pointer(&self) -> bool {
        self.bytes[0] == Byte::Spill && self.reg.kind.is_pointer()
    }

    /// Tells whether the slot holds a spilled number.
    #[must_use]
    pub fn is_number(&self) -> bool {
        self.bytes[0] == Byte::Spill && self.reg.is_scalar()
    }

    /// Forgets the spilled register: its bytes stay written but are no longer known.
    pub fn forget(&mut self) {
        for b in &mut self.bytes {
            if *b == Byte::Spill {
                *b = Byte::Misc;
            }
        }
        self.reg = Reg::UNINIT;
    }
}

/// A frame's stack. Slots that were never written at the far end are not stored.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Stack {
    slots: Vec<Slot>,
}

/// Takes an offset from the frame pointer apart into slot and byte.
const fn place(off: i32) -> (usize, usize) {
    let below = (-1 - off) as usize;
    (below / 8, (off & 7) as usize)
}

impl Stack {
    /// The slot that covers `off` (below 0).
    #[must_use]
    pub fn slot(&self, off: i32) -> &Slot {
        self.slots.get(place(off).0).unwrap_or(&Slot::UNINIT)
    }

    /// The slot that covers `off`, made if need be.
    pub fn slot_mut(&mut self, off: i32) -> &mut Slot {
        let at = place(off).0.min(63);
        if at >= self.slots.len() {
            self.slots.resize(at + 1, Slot::UNINIT);
        }
        &mut self.slots[at]
    }

    /// All slots, nearest to the frame pointer first.
    #[must_use]
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// All slots.
    pub fn slots_mut(&mut self) -> &mut [Slot] {
        &mut self.slots
    }

    /// One byte.
    #[must_use]
    pub fn byte(&self, off: i32) -> Byte {
        let (s, b) = place(off);
        self.slots.get(s).map_or(Byte::Uninit, |s| s.bytes[b])
    }

    /// Writes bytes `off .. off + size`; a register spilled to any of them is forgotten.
    pub fn fill(&mut self, off: i32, size: i32, byte: Byte) {
        for o in off..off.saturating_add(size) {
            let slot = self.slot_mut(o);
            if slot.bytes[place(o).1] == Byte::Spill {
                slot.forget();
            }
            slot.bytes[place(o).1] = byte;
        }
    }

    /// Spills a register into the low `size` bytes of the slot that starts at `off`, a multiple of
    /// 8.
    pub fn spill(&mut self, off: i32, size: i32, reg: Reg) {
        let slot = self.slot_mut(off);
        slot.forget();
        for b in slot.bytes.iter_mut().take(size as usize) {
            *b = Byte::Spill;
        }
        slot.reg = reg;
    }

    /// Lets any of the bytes `off .. off + size` have been written with something unknown, perhaps
    /// none of them: a byte that was never written may still be so.
    pub fn smear(&mut self, off: i32, size: i32, zero: bool) {
        for o in off..off.saturating_add(size) {
            let slot = self.slot_mut(o);
            if slot.bytes[place(o).1] == Byte::Spill {
                slot.forget();
            }
            let b = &mut slot.bytes[place(o).1];
            if !(*b == Byte::Uninit || zero && *b == Byte::Zero) {
                *b = Byte::Misc;
            }
        }
    }

    /// Tells whether any of the bytes `off .. end` belongs to a spilled pointer.
    #[must_use]
    pub fn has_pointer(&self, off: i32, end: i32) -> bool {
        (off..end).any(|o| self.slot(o).is_pointer())
    }

    /// Forgets all registers that `which` picks; with `hide` as if they had never been written.
    pub fn forget_if(&mut self, hide: bool, which: impl Fn(&Reg) -> bool) {
        for s in &mut self.slots {
            if s.bytes[0] == Byte::Spill && which(&s.reg) {
                if hide {
                    *s = Slot::UNINIT;
                }
                s.forget();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_lie_where_the_machine_puts_them() {
        let mut s = Stack::default();
        s.fill(-4, 4, Byte::Zero);
        assert_eq!([-5, -4, -1].map(|o| s.byte(o)), [Byte::Uninit, Byte::Zero, Byte::Zero]);
        s.spill(-16, 4, Reg::constant(7));
        assert_eq!([-16, -13, -12].map(|o| s.byte(o)), [Byte::Spill, Byte::Spill, Byte::Uninit]);
        s.fill(-12, 4, Byte::Zero);
        assert_eq!([-16, -12].map(|o| s.byte(o)), [Byte::Spill, Byte::Zero]);
        s.fill(-16, 1, Byte::Misc);
        assert_eq!([-16, -13, -12].map(|o| s.byte(o)), [Byte::Misc, Byte::Misc, Byte::Zero]);
        assert_eq!(s.byte(-512), Byte::Uninit);
    }

    #[test]
    fn a_slot_holds_one_thing() {
        let (number, pointer) = (Reg::constant(7), Reg::of(crate::reg::Kind::Ctx));
        let slot = |byte, reg| Slot { bytes: [byte; 8], reg };
        let is = |s: Slot| (s.is_pointer(), s.is_number());
        assert_eq!(is(slot(Byte::Spill, number)), (false, true));
        assert_eq!(is(slot(Byte::Spill, pointer)), (true, false));
        assert_eq!(
            [is(slot(Byte::Special, number)), is(slot(Byte::Special, pointer)), is(Slot::UNINIT)],
            [(false, false); 3]
        );
    }

    /// A spilled register is whole or gone.
    #[test]
    fn a_register_that_was_written_over_is_forgotten() {
        let spilled = || {
            let mut s = Stack::default();
            s.spill(-8, 8, Reg::constant(7));
            s.fill(-16, 8, Byte::Zero);
            s
        };
        let misc = [Byte::Misc; 8];
        let after = |write: &dyn Fn(&mut Stack)| {
            let mut s = spilled();
            write(&mut s);
            assert_eq!(s.slots()[1], Slot { bytes: [Byte::Zero; 8], reg: Reg::UNINIT });
            s.slots()[0]
        };
        assert_eq!(after(&|s| s.fill(-5, 1, Byte::Misc)), Slot { bytes: misc, reg: Reg::UNINIT });
        assert_eq!(after(&|s| s.smear(-5, 1, false)), Slot { bytes: misc, reg: Reg::UNINIT });
        let half = after(&|s| s.spill(-8, 4, Reg::constant(9)));
        assert_eq!(
            (half.bytes, half.reg),
            (
                [[Byte::Spill; 4], [Byte::Misc; 4]].concat().try_into().expect("eight"),
                Reg::constant(9)
            )
        );
        let seven = |r: &Reg| r.as_const() == Some(7);
        assert_eq!(after(&|s| s.forget_if(false, seven)), Slot { bytes: misc, reg: Reg::UNINIT });
        assert_eq!(after(&|s| s.forget_if(true, seven)), Slot::UNINIT);
        assert_eq!(after(&|s| s.forget_if(true, |r| !seven(r))), spilled().slots()[0]);
        // What is no spilled register is not asked about.
        let mut s = Stack::default();
        *s.slot_mut(-8) = Slot { bytes: [Byte::Special; 8], reg: Reg::constant(7) };
        s.forget_if(true, seven);
        assert_eq!(s.byte(-8), Byte::Special);
    }

    #[test]
    fn a_store_to_one_of_several_places_initializes_none_of_them() {
        let mut s = Stack::default();
        s.fill(-2, 2, Byte::Zero);
        s.smear(-4, 4, false);
        assert_eq!(
            [-4, -3, -2, -1].map(|o| s.byte(o)),
            [Byte::Uninit, Byte::Uninit, Byte::Misc, Byte::Misc]
        );
    }
}
