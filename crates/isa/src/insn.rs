//! One eBPF instruction: eight bytes, little-endian, as in `struct bpf_insn`
//! (include/uapi/linux/bpf.h).

use crate::op;

/// Holds one eight-byte instruction slot. A 64-bit immediate load takes two slots.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(C)]
pub struct Insn {
    /// Opcode: class, and per class either size and mode, or operation and source bit. See [`op`].
    pub code: u8,
    /// Destination register in the low nibble, source register in the high one.
    pub regs: u8,
    /// Signed offset: of a memory access in bytes, of a jump in instructions.
    pub off: i16,
    /// Immediate value, helper number, or jump distance of `gotol` and local calls.
    pub imm: i32,
}

impl Insn {
    /// Size of one slot in bytes.
    pub const SIZE: usize = 8;

    /// Builds an instruction from its fields.
    #[must_use]
    pub const fn new(code: u8, dst: u8, src: u8, off: i16, imm: i32) -> Self {
        Self { code, regs: (dst & 0xf) | (src << 4), off, imm }
    }

    /// Reads one slot.
    #[must_use]
    pub const fn from_bytes(b: [u8; 8]) -> Self {
        Self {
            code: b[0],
            regs: b[1],
            off: i16::from_le_bytes([b[2], b[3]]),
            imm: i32::from_le_bytes([b[4], b[5], b[6], b[7]]),
        }
    }

    /// Writes one slot.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; 8] {
        let (o, i) = (self.off.to_le_bytes(), self.imm.to_le_bytes());
        [self.code, self.regs, o[0], o[1], i[0], i[1], i[2], i[3]]
    }

    /// Reads a whole program; `None` when the length is no multiple of eight.
    ///
    /// ```
    /// use skep_isa::Insn;
    /// let exit = Insn::decode(&[0x95, 0, 0, 0, 0, 0, 0, 0]).unwrap_or_default();
    /// assert_eq!(exit, vec![Insn::exit()]);
    /// ```
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Vec<Self>> {
        let (slots, rest) = bytes.as_chunks::<8>();
        rest.is_empty().then(|| slots.iter().map(|s| Self::from_bytes(*s)).collect())
    }

    /// Returns the destination register number (0–15; only 0–10 exist).
    #[must_use]
    pub const fn dst(self) -> u8 {
        self.regs & 0xf
    }

    /// Returns the source register number, or the pseudo source of calls and 64-bit immediates.
    #[must_use]
    pub const fn src(self) -> u8 {
        self.regs >> 4
    }

    /// Returns this instruction with another source field.
    #[must_use]
    pub const fn with_src(self, src: u8) -> Self {
        Self { regs: (self.regs & 0xf) | (src << 4), ..self }
    }

    /// Returns the instruction class, [`op::LD`] to [`op::ALU64`].
    #[must_use]
    pub const fn class(self) -> u8 {
        self.code & 0x07
    }

    /// Tells whether this is the first slot of a 64-bit immediate load (`lddw`).
    #[must_use]
    pub const fn is_ld_imm64(self) -> bool {
        self.code == op::LD_IMM64
    }

    /// Tells whether this is a call of a function of the same program.
    #[must_use]
    pub const fn is_local_call(self) -> bool {
        self.code == op::CALL && self.src() == op::PSEUDO_CALL
    }

    /// Tells whether this is a call of a helper by number.
    #[must_use]
    pub const fn is_helper_call(self) -> bool {
        self.code == op::CALL && self.src() == 0
    }

    /// Builds `exit`.
    #[must_use]
    pub const fn exit() -> Self {
        Self::new(op::EXIT, 0, 0, 0, 0)
    }

    /// Builds `dst = imm` on 64 bits, the immediate sign-extended.
    #[must_use]
    pub const fn mov64_imm(dst: u8, imm: i32) -> Self {
        Self::new(op::ALU64 | op::K | op::MOV, dst, 0, 0, imm)
    }

    /// Builds `dst = src` on 64 bits.
    #[must_use]
    pub const fn mov64_reg(dst: u8, src: u8) -> Self {
        Self::new(op::ALU64 | op::X | op::MOV, dst, src, 0, 0)
    }

    /// Builds the two slots of `dst = imm64`, with a pseudo source ([`op::PSEUDO_MAP_IDX`] and its
    /// like) or 0.
    #[must_use]
    pub const fn ld_imm64(dst: u8, pseudo: u8, imm: u64) -> [Self; 2] {
        [
            Self::new(op::LD_IMM64, dst, pseudo, 0, imm as u32 as i32),
            Self::new(0, 0, 0, 0, (imm >> 32) as u32 as i32),
        ]
    }

    /// Builds a helper call.
    #[must_use]
    pub const fn call(helper: u32) -> Self {
        Self::new(op::CALL, 0, 0, 0, helper as i32)
    }
}

impl std::fmt::Debug for Insn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (d, s) = (self.dst(), self.src());
        write!(f, "({:02x}) dst={d} src={s} off={} imm={:#x}", self.code, self.off, self.imm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_round_trip() {
        let i = Insn::new(op::CALL, 3, 1, -7, i32::MIN);
        assert_eq!(Insn::from_bytes(i.to_bytes()), i);
        assert_eq!((i.dst(), i.src()), (3, 1));
    }

    #[test]
    fn a_program_that_is_no_multiple_of_eight_is_not_decoded() {
        assert_eq!(Insn::decode(&[0; 9]), None);
    }
}
