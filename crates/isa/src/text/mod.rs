//! Instructions as text, both ways.
//!
//! [`assemble`] reads the assembly that uBPF and the bpf_conformance suite write their `.data`
//! files in (`ldxdw %r0, [%r1+8]`, `jeq %r0, 5, done`), and [`source`] writes it again. [`Line`]
//! prints one instruction as the kernel's verifier log does (`r0 = *(u64 *)(r1 +8)`), which is what
//! people know from `bpftool` and error messages.
//!
//! Beyond the suite's dialect the assembler knows what linked programs need: `lddw %r1, map 0` (a
//! map of the program's list), `lddw %r1, value 0+16` (an address inside a map's first value),
//! `lddw %r2, func label` (a callback), `call map_lookup_elem` (helpers by name), `may_goto label`,
//! `ldacqdw` and `streldw`.

mod asm;
mod cursor;
mod disasm;
mod mnemonic;
mod source;

pub use asm::{AsmError, AsmErrorKind, assemble};
pub use disasm::{Line, lines};
pub use source::source;
