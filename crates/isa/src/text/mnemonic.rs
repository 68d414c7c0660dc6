//! The words of the `.data` dialect: one row an operation, read by the assembler and by the printer
//! of that dialect.

use crate::op;

/// Two-operand arithmetic: word, operation, `off` (1: signed division).
pub(super) const ALU: &[(&str, u8, i16)] = &[
    ("add", op::ADD, 0),
    ("sub", op::SUB, 0),
    ("mul", op::MUL, 0),
    ("div", op::DIV, 0),
    ("or", op::OR, 0),
    ("and", op::AND, 0),
    ("lsh", op::LSH, 0),
    ("rsh", op::RSH, 0),
    ("mod", op::MOD, 0),
    ("xor", op::XOR, 0),
    ("mov", op::MOV, 0),
    ("arsh", op::ARSH, 0),
    ("sdiv", op::DIV, 1),
    ("smod", op::MOD, 1),
];

/// Sign-extending moves: word, class, width of what is extended.
pub(super) const MOVSX: &[(&str, u8, i16)] = &[
    ("movsx832", op::ALU, 8),
    ("movsx1632", op::ALU, 16),
    ("movsx864", op::ALU64, 8),
    ("movsx1664", op::ALU64, 16),
    ("movsx3264", op::ALU64, 32),
];

/// Byte order: word without the width, opcode.
pub(super) const END: &[(&str, u8)] = &[
    ("le", op::ALU | op::K | op::END),
    ("be", op::ALU | op::X | op::END),
    ("bswap", op::ALU64 | op::K | op::END),
    ("swap", op::ALU64 | op::K | op::END),
];

/// Loads and stores: word without the size, class and mode.
pub(super) const MEM: &[(&str, u8)] = &[
    ("ldx", op::LDX | op::MEM),
    ("ldxs", op::LDX | op::MEMSX),
    ("stx", op::STX | op::MEM),
    ("st", op::ST | op::MEM),
    ("ldabs", op::LD | op::ABS),
    ("ldind", op::LD | op::IND),
    ("ldacq", op::STX | op::ATOMIC),
    ("strel", op::STX | op::ATOMIC),
];

/// Sizes of memory accesses.
pub(super) const SIZE: &[(&str, u8)] = &[("b", op::B), ("h", op::H), ("w", op::W), ("dw", op::DW)];

/// Conditional jumps.
pub(super) const JUMP: &[(&str, u8)] = &[
    ("jeq", op::JEQ),
    ("jgt", op::JGT),
    ("jge", op::JGE),
    ("jset", op::JSET),
    ("jne", op::JNE),
    ("jsgt", op::JSGT),
    ("jsge", op::JSGE),
    ("jlt", op::JLT),
    ("jle", op::JLE),
    ("jslt", op::JSLT),
    ("jsle", op::JSLE),
];

/// Atomic operations after `lock`: word, `imm`.
pub(super) const LOCK: &[(&str, i32)] = &[
    ("add", op::ATOMIC_ADD),
    ("or", op::ATOMIC_OR),
    ("and", op::ATOMIC_AND),
    ("xor", op::ATOMIC_XOR),
    ("xchg", op::ATOMIC_XCHG),
    ("cmpxchg", op::ATOMIC_CMPXCHG),
];

/// Splits a width suffix off a word: `add32` is the 32-bit class, `add` and `add64` the 64-bit one.
pub(super) fn width(word: &str) -> (&str, bool) {
    match word.strip_suffix("32") {
        Some(w) => (w, false),
        None => (word.strip_suffix("64").unwrap_or(word), true),
    }
}
