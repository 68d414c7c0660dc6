//! Opcode parts (RFC 9669; include/uapi/linux/bpf.h and bpf_common.h). Combine them with `|`.
#![allow(missing_docs, reason = "the names are the field's own, one constant a value")]

// Classes: low three bits.
pub const LD: u8 = 0x00;
pub const LDX: u8 = 0x01;
pub const ST: u8 = 0x02;
pub const STX: u8 = 0x03;
pub const ALU: u8 = 0x04;
pub const JMP: u8 = 0x05;
pub const JMP32: u8 = 0x06;
pub const ALU64: u8 = 0x07;

// Source bit of arithmetic and jumps: immediate or register.
pub const K: u8 = 0x00;
pub const X: u8 = 0x08;

// Access size.
pub const W: u8 = 0x00;
pub const H: u8 = 0x08;
pub const B: u8 = 0x10;
pub const DW: u8 = 0x18;

// Access mode.
pub const IMM: u8 = 0x00;
pub const ABS: u8 = 0x20;
pub const IND: u8 = 0x40;
pub const MEM: u8 = 0x60;
pub const MEMSX: u8 = 0x80;
/// `off` of a move between registers that casts between address spaces (include/uapi/linux/bpf.h
/// `BPF_ADDR_SPACE_CAST`); `imm` has both spaces.
pub const ADDR_SPACE_CAST: i16 = 1;
/// Loads that give 0 where there is no memory: no program has them, they are made of proved ones
/// (include/linux/filter.h `BPF_PROBE_MEM`, `BPF_PROBE_MEMSX`).
pub const PROBE_MEM: u8 = 0x20;
pub const PROBE_MEMSX: u8 = 0x40;
pub const ATOMIC: u8 = 0xc0;

// Arithmetic.
pub const ADD: u8 = 0x00;
pub const SUB: u8 = 0x10;
pub const MUL: u8 = 0x20;
/// Unsigned division; `off == 1` makes it signed (v4).
pub const DIV: u8 = 0x30;
pub const OR: u8 = 0x40;
pub const AND: u8 = 0x50;
pub const LSH: u8 = 0x60;
pub const RSH: u8 = 0x70;
pub const NEG: u8 = 0x80;
/// Unsigned remainder; `off == 1` makes it signed (v4).
pub const MOD: u8 = 0x90;
pub const XOR: u8 = 0xa0;
/// Move; `off` of 8, 16 or 32 sign-extends (v4).
pub const MOV: u8 = 0xb0;
pub const ARSH: u8 = 0xc0;
/// Byte swap: class ALU with [`K`] to little, [`X`] to big endian; class ALU64 swaps always (v4).
/// `imm` is the width.
pub const END: u8 = 0xd0;

// Jumps.
/// Jump always: by `off` in class JMP, by `imm` in class JMP32 (`gotol`, v4).
pub const JA: u8 = 0x00;
pub const JEQ: u8 = 0x10;
pub const JGT: u8 = 0x20;
pub const JGE: u8 = 0x30;
pub const JSET: u8 = 0x40;
pub const JNE: u8 = 0x50;
pub const JSGT: u8 = 0x60;
pub const JSGE: u8 = 0x70;
pub const JLT: u8 = 0xa0;
pub const JLE: u8 = 0xb0;
pub const JSLT: u8 = 0xc0;
pub const JSLE: u8 = 0xd0;
/// Conditional pseudo jump; `src == 0` is `may_goto`.
pub const JCOND: u8 = 0xe0;

// Whole opcodes.
pub const CALL: u8 = JMP | 0x80;
pub const EXIT: u8 = JMP | 0x90;
pub const LD_IMM64: u8 = LD | IMM | DW;

// `imm` of atomics.
pub const ATOMIC_ADD: i32 = 0x00;
pub const ATOMIC_OR: i32 = 0x40;
pub const ATOMIC_AND: i32 = 0x50;
pub const ATOMIC_XOR: i32 = 0xa0;
pub const ATOMIC_FETCH: i32 = 0x01;
pub const ATOMIC_XCHG: i32 = 0xe1;
pub const ATOMIC_CMPXCHG: i32 = 0xf1;
/// Load-acquire and store-release (v4, Linux 6.15).
pub const ATOMIC_LOAD_ACQ: i32 = 0x100;
pub const ATOMIC_STORE_REL: i32 = 0x110;

// Source field of `ld_imm64`.
pub const PSEUDO_MAP_FD: u8 = 1;
pub const PSEUDO_MAP_VALUE: u8 = 2;
pub const PSEUDO_BTF_ID: u8 = 3;
pub const PSEUDO_FUNC: u8 = 4;
/// `imm` is an index into the program's own list of maps: the only map reference a linked skep
/// program has.
pub const PSEUDO_MAP_IDX: u8 = 5;
/// As [`PSEUDO_MAP_IDX`], and the second slot's `imm` is an offset into the value of the map's only
/// entry.
pub const PSEUDO_MAP_IDX_VALUE: u8 = 6;

// Source field of `call`.
pub const PSEUDO_CALL: u8 = 1;
pub const PSEUDO_KFUNC_CALL: u8 = 2;

/// Number of registers, r0 to r10.
pub const REGS: usize = 11;
/// The frame pointer, r10.
pub const FP: u8 = 10;
/// Stack bytes of one frame (include/linux/filter.h `MAX_BPF_STACK`).
pub const STACK_SIZE: i32 = 512;
/// Deepest chain of local calls, the main program counted (include/linux/bpf_verifier.h
/// `MAX_CALL_FRAMES`).
pub const MAX_CALL_FRAMES: usize = 8;
/// Tail calls in one run (include/linux/bpf.h `MAX_TAIL_CALL_CNT`).
pub const MAX_TAIL_CALLS: u32 = 33;
/// Most instructions a program may have (include/linux/bpf.h `BPF_COMPLEXITY_LIMIT_INSNS`).
pub const MAX_INSNS: usize = 1_000_000;
