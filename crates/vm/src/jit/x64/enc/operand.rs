//! What instructions name: registers, places in memory, sizes, and the numbers of operations.

/// The machine registers by number.
pub mod reg {
    pub const RAX: u8 = 0;
    pub const RCX: u8 = 1;
    pub const RDX: u8 = 2;
    pub const RBX: u8 = 3;
    pub const RSP: u8 = 4;
    pub const RBP: u8 = 5;
    pub const RSI: u8 = 6;
    pub const RDI: u8 = 7;
    pub const R8: u8 = 8;
    pub const R9: u8 = 9;
    pub const R10: u8 = 10;
    pub const R11: u8 = 11;
    pub const R12: u8 = 12;
    pub const R13: u8 = 13;
    pub const R14: u8 = 14;
    pub const R15: u8 = 15;
}

/// Condition codes as in `jcc`.
pub mod cc {
    pub const B: u8 = 2;
    pub const AE: u8 = 3;
    pub const E: u8 = 4;
    pub const NE: u8 = 5;
    pub const BE: u8 = 6;
    pub const A: u8 = 7;
    pub const L: u8 = 12;
    pub const GE: u8 = 13;
    pub const LE: u8 = 14;
    pub const G: u8 = 15;
}

/// The eight arithmetic operations that share their forms, by their `/n` and `opcode >> 3`.
pub mod group {
    pub const ADD: u8 = 0;
    pub const OR: u8 = 1;
    pub const ADC: u8 = 2;
    pub const SBB: u8 = 3;
    pub const AND: u8 = 4;
    pub const SUB: u8 = 5;
    pub const XOR: u8 = 6;
    pub const CMP: u8 = 7;
}

/// Shifts by their `/n`.
pub mod shift {
    pub const ROL: u8 = 0;
    pub const SHL: u8 = 4;
    pub const SHR: u8 = 5;
    pub const SAR: u8 = 7;
}

/// A place in memory: `[base + (index << scale) + disp]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mem {
    pub base: u8,
    pub index: Option<(u8, u8)>,
    pub disp: i32,
}

impl Mem {
    pub const fn at(base: u8, disp: i32) -> Self {
        Self { base, index: None, disp }
    }
}

/// Width of an operation on memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Size {
    B,
    H,
    W,
    D,
}

impl Size {
    pub const fn is_wide(self) -> bool {
        matches!(self, Self::D)
    }
}
