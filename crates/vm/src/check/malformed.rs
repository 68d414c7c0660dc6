//! Instructions that are none: by themselves, whatever stands around them.

use skep_isa::{HelperId, Insn, op};

/// Says why an instruction stream is no program.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// There are no instructions.
    #[error("the program is empty")]
    Empty,
    /// There are more than [`op::MAX_INSNS`] instructions.
    #[error("the program has `{count}` instructions, more than `{}`", op::MAX_INSNS)]
    TooLong {
        /// How many there are.
        count: usize,
    },
    /// No engine knows this instruction.
    #[error("instruction `{insn}`: unknown opcode `{code:#04x}` (off `{off}`, imm `{imm:#x}`)")]
    Opcode {
        /// Its number.
        insn: usize,
        /// The opcode.
        code: u8,
        /// The offset field, which some opcodes carry meaning in.
        off: i16,
        /// The immediate field, as well.
        imm: i32,
    },
    /// `ld_abs` or `ld_ind`: who loads programs makes calls of them, since what a packet is
    /// differs.
    #[error(
        "instruction `{insn}`: a packet load (ld_abs, ld_ind) that the loader did not turn into a call"
    )]
    PacketLoad {
        /// Its number.
        insn: usize,
    },
    /// A call through a register.
    #[error("instruction `{insn}`: calls through a register are not supported")]
    IndirectCall {
        /// Its number.
        insn: usize,
    },
    /// A register that does not exist.
    #[error("instruction `{insn}`: register `r{reg}` does not exist")]
    Register {
        /// Its number.
        insn: usize,
        /// The register.
        reg: u8,
    },
    /// The frame pointer is read only.
    #[error("instruction `{insn}`: writes the frame pointer `r10`")]
    FrameWrite {
        /// Its number.
        insn: usize,
    },
    /// A 64-bit immediate without a proper second slot.
    #[error(
        "instruction `{insn}`: the second slot of the 64-bit immediate is missing or not empty"
    )]
    HalfImmediate {
        /// Its number.
        insn: usize,
    },
    /// A jump or local call that lands on no instruction of the program, or in another function.
    #[error("instruction `{insn}`: target `{target}` is no instruction of this function")]
    Target {
        /// Its number.
        insn: usize,
        /// Where it would land.
        target: i64,
    },
    /// The last instruction of a function is neither `exit` nor a jump.
    #[error("instruction `{insn}`: the function runs past its last instruction")]
    FallsOff {
        /// Its number.
        insn: usize,
    },
    /// A map that the list does not have.
    #[error("instruction `{insn}`: the program's list has no map `{index}`")]
    Map {
        /// Its number.
        insn: usize,
        /// The index.
        index: u32,
    },
    /// A pseudo immediate that should have been resolved when the program was linked.
    #[error("instruction `{insn}`: unresolved pseudo immediate `{src}`")]
    Pseudo {
        /// Its number.
        insn: usize,
        /// The pseudo source.
        src: u8,
    },
    /// A function that is called by a helper would leave the program.
    #[error("instruction `{insn}`: a callback function cannot make tail calls")]
    TailCallInCallback {
        /// The first instruction of the callback.
        insn: usize,
    },
    /// A helper that the environment does not offer.
    #[error("instruction `{insn}`: helper `{id}` is not available")]
    Helper {
        /// Its number.
        insn: usize,
        /// Its id.
        id: HelperId,
    },
}

pub(super) fn known(at: usize, i: Insn) -> Result<(), Malformed> {
    let (d, s) = (i.dst(), i.src());
    let (x, o, size, mode) = (i.code & op::X != 0, i.code & 0xf0, i.code & op::DW, i.code & 0xe0);
    let alu_off = || match o {
        op::DIV | op::MOD => matches!(i.off, 0 | 1),
        op::MOV if x => matches!(i.off, 0 | 8 | 16) || (i.off == 32 && i.class() == op::ALU64),
        _ => i.off == 0,
    };
    // What the instruction is, which registers it reads, and which one it writes.
    let (ok, reads_src, writes) = match i.class() {
        op::ALU | op::ALU64 => match o {
            op::END => (
                matches!(i.imm, 16 | 32 | 64) && i.off == 0 && (i.class() == op::ALU || !x),
                false,
                Some(d),
            ),
            op::NEG => (!x && i.off == 0, false, Some(d)),
            op::ADD..=op::RSH | op::MOD | op::XOR | op::MOV | op::ARSH => (alu_off(), x, Some(d)),
            _ => (false, false, None),
        },
        op::LD => {
            if matches!(mode, op::ABS | op::IND) && size != op::DW {
                return Err(Malformed::PacketLoad { insn: at });
            }
            (i.is_ld_imm64() && i.off == 0, false, Some(d))
        }
        op::LDX => {
            let plain = matches!(mode, op::MEM | op::PROBE_MEM);
            (
                plain || (matches!(mode, op::MEMSX | op::PROBE_MEMSX) && size != op::DW),
                true,
                Some(d),
            )
        }
        op::ST => (mode == op::MEM, false, None),
        op::STX if mode == op::ATOMIC => {
            let rmw = matches!(size, op::W | op::DW);
            match i.imm {
                op::ATOMIC_LOAD_ACQ => (true, true, Some(d)),
                op::ATOMIC_STORE_REL => (true, true, None),
                op::ATOMIC_XCHG => (rmw, true, Some(s)),
                op::ATOMIC_CMPXCHG => (rmw, true, None),
                n => match n & !op::ATOMIC_FETCH {
                    op::ATOMIC_ADD | op::ATOMIC_OR | op::ATOMIC_AND | op::ATOMIC_XOR => {
                        (rmw, true, (n & op::ATOMIC_FETCH != 0).then_some(s))
                    }
                    _ => (false, false, None),
                },
            }
        }
        op::STX => (mode == op::MEM, true, None),
        class => match o {
            op::JA => (!x, false, None),
            0x80 if class == op::JMP && x => return Err(Malformed::IndirectCall { insn: at }),
            0x80 => (
                class == op::JMP && matches!(s, 0 | op::PSEUDO_CALL | op::PSEUDO_KFUNC_CALL),
                false,
                None,
            ),
            0x90 => (i.code == op::EXIT, false, None),
            op::JCOND => (class == op::JMP && !x && s == 0, false, None),
            op::JEQ..=op::JSGE | op::JLT..=op::JSLE => (true, x, None),
            _ => (false, false, None),
        },
    };
    if !ok {
        return Err(Malformed::Opcode { insn: at, code: i.code, off: i.off, imm: i.imm });
    }
    if usize::from(d) >= op::REGS {
        return Err(Malformed::Register { insn: at, reg: d });
    }
    if reads_src && usize::from(s) >= op::REGS {
        return Err(Malformed::Register { insn: at, reg: s });
    }
    if writes == Some(op::FP) { Err(Malformed::FrameWrite { insn: at }) } else { Ok(()) }
}
