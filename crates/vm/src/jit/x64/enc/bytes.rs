//! The bytes of one instruction, put together in a register.

use super::operand::Size;

pub(super) const LOCK: u8 = 0xf0;

pub(super) const HALF: u8 = 0x66;

/// Up to eight bytes of an instruction, the first the lowest.
#[derive(Clone, Copy)]
pub(super) struct Bytes {
    pub(super) of: u64,
    pub(super) len: u32,
}

impl Bytes {
    pub(super) const NONE: Self = Self { of: 0, len: 0 };

    #[inline(always)]
    pub(super) fn one(of: u8) -> Self {
        Self { of: u64::from(of), len: 1 }
    }

    /// Opcodes have one to three bytes, the first the most significant.
    #[inline(always)]
    pub(super) fn opcode(o: u32) -> Self {
        let len = if o > 0xffff {
            3
        } else if o > 0xff {
            2
        } else {
            1
        };
        Self { of: u64::from(o.swap_bytes() >> (32 - 8 * len)), len }
    }

    #[inline(always)]
    pub(super) fn imm8(v: i32) -> Self {
        Self::one(v as u8)
    }

    #[inline(always)]
    pub(super) fn imm32(v: i32) -> Self {
        Self { of: u64::from(v as u32), len: 4 }
    }

    /// The size's low bytes of an immediate, four of a wide one.
    #[inline(always)]
    pub(super) fn imm_of(size: Size, v: i32) -> Self {
        match size {
            Size::B => Self::imm8(v),
            Size::H => Self { of: u64::from(v as u16), len: 2 },
            _ => Self::imm32(v),
        }
    }

    #[inline(always)]
    pub(super) fn then(self, more: Self) -> Self {
        Self { of: self.of | more.of << (8 * self.len), len: self.len + more.len }
    }

    #[inline(always)]
    pub(super) fn when(self, there: bool) -> Self {
        if there { self } else { Self::NONE }
    }
}

/// What stands before the opcode of an instruction on memory.
pub(super) struct Kind {
    pub(super) prefix: u8,
    pub(super) w: bool,
    /// The register is a byte register, so 4 to 7 need a REX to mean spl to dil.
    pub(super) byte: bool,
}

impl Kind {
    #[inline(always)]
    pub(super) fn plain(w: bool) -> Self {
        Self { prefix: 0, w, byte: false }
    }

    #[inline(always)]
    pub(super) fn locked(w: bool) -> Self {
        Self { prefix: LOCK, w, byte: false }
    }

    /// With a register of this size.
    #[inline(always)]
    pub(super) fn of(size: Size) -> Self {
        Self { byte: size == Size::B, ..Self::of_imm(size) }
    }

    /// With an immediate in place of the register.
    #[inline(always)]
    pub(super) fn of_imm(size: Size) -> Self {
        Self { prefix: if size == Size::H { HALF } else { 0 }, w: size.is_wide(), byte: false }
    }
}
