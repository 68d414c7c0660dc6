//! Instructions as text that [`assemble`](super::assemble) reads back.

use super::mnemonic::{ALU, END, JUMP, LOCK, MEM, MOVSX, SIZE};
use crate::insn::Insn;
use crate::op;

/// Writes a program in the `.data` dialect, jumps as distances; `None` when an instruction has no
/// words there.
///
/// ```
/// use skep_isa::text;
/// let program = text::assemble("mov %r0, 7\nexit")?;
/// assert_eq!(text::source(&program).as_deref(), Some("mov %r0, 7\nexit\n"));
/// # Ok::<(), text::AsmError>(())
/// ```
#[must_use]
pub fn source(insns: &[Insn]) -> Option<String> {
    let mut out = String::new();
    let mut rest = insns;
    while let [i, tail @ ..] = rest {
        rest = tail;
        if i.dst().max(i.src()) > 10 {
            return None;
        }
        let line = match i.class() {
            op::LD if i.is_ld_imm64() => {
                let (next, tail) = rest.split_first()?;
                rest = tail;
                load_imm(*i, *next)?
            }
            op::ALU | op::ALU64 => alu(*i)?,
            op::JMP | op::JMP32 => jump(*i)?,
            _ => memory(*i)?,
        };
        out.push_str(&line);
        out.push('\n');
    }
    Some(out)
}

fn alu(i: Insn) -> Option<String> {
    let (d, s) = (i.dst(), i.src());
    let bits = if i.class() == op::ALU64 { "" } else { "32" };
    match i.code & 0xf0 {
        op::NEG => return Some(format!("neg{bits} %r{d}")),
        op::END => {
            let (word, _) =
                END.iter().find(|(_, c)| *c == i.code && matches!(i.imm, 16 | 32 | 64))?;
            return Some(format!("{word}{} %r{d}", i.imm));
        }
        op::MOV if i.off != 0 => {
            let (word, ..) = MOVSX.iter().find(|(_, c, bits)| *c == i.class() && *bits == i.off)?;
            return Some(format!("{word} %r{d}, %r{s}"));
        }
        _ => {}
    }
    let (word, ..) = ALU.iter().find(|(_, o, off)| *o == i.code & 0xf0 && *off == i.off)?;
    Some(if i.code & op::X == 0 {
        format!("{word}{bits} %r{d}, {}", i.imm)
    } else {
        format!("{word}{bits} %r{d}, %r{s}")
    })
}

fn jump(i: Insn) -> Option<String> {
    let (d, s) = (i.dst(), i.src());
    match (i.code, s) {
        (op::EXIT, _) => return Some("exit".to_owned()),
        (op::CALL, 0) => return Some(format!("call {}", i.imm)),
        (op::CALL, op::PSEUDO_CALL) => return Some(format!("call local {:+}", i.imm)),
        (op::CALL, op::PSEUDO_KFUNC_CALL) => return Some(format!("call kfunc {}", i.imm)),
        _ => {}
    }
    match (i.class(), i.code & 0xf0) {
        (op::JMP, op::JA) => return Some(format!("ja {:+}", i.off)),
        (op::JMP32, op::JA) => return Some(format!("ja32 {:+}", i.imm)),
        (op::JMP, op::JCOND) if s == 0 => return Some(format!("may_goto {:+}", i.off)),
        (op::JMP, 0x80) if i.code & op::X != 0 => return Some(format!("call %r{d}")),
        _ => {}
    }
    let (word, _) = JUMP.iter().find(|(_, o)| *o == i.code & 0xf0)?;
    let bits = if i.class() == op::JMP { "" } else { "32" };
    Some(if i.code & op::X == 0 {
        format!("{word}{bits} %r{d}, {}, {:+}", i.imm, i.off)
    } else {
        format!("{word}{bits} %r{d}, %r{s}, {:+}", i.off)
    })
}

fn load_imm(i: Insn, next: Insn) -> Option<String> {
    let d = i.dst();
    let index = i.imm as u32;
    Some(match i.src() {
        0 => format!("lddw %r{d}, {:#x}", u64::from(index) | u64::from(next.imm as u32) << 32),
        op::PSEUDO_MAP_IDX => format!("lddw %r{d}, map {index}"),
        op::PSEUDO_MAP_IDX_VALUE => format!("lddw %r{d}, value {index}+{}", next.imm as u32),
        op::PSEUDO_FUNC => format!("lddw %r{d}, func {:+}", i.imm),
        _ => return None,
    })
}

fn memory(i: Insn) -> Option<String> {
    let (d, s, off) = (i.dst(), i.src(), i.off);
    let (size, bits) = SIZE.iter().find(|(_, z)| *z == i.code & op::DW)?;
    let mode = i.code & 0xe0;
    if (i.class(), mode) == (op::STX, op::ATOMIC) {
        return match i.imm {
            op::ATOMIC_LOAD_ACQ => Some(format!("ldacq{size} %r{d}, [%r{s}{off:+}]")),
            op::ATOMIC_STORE_REL => Some(format!("strel{size} [%r{d}{off:+}], %r{s}")),
            _ => {
                let exact = LOCK.iter().find(|(_, n)| *n == i.imm).map(|(w, _)| ("", *w));
                let fetch = || {
                    LOCK.iter()
                        .find(|(_, n)| *n | op::ATOMIC_FETCH == i.imm)
                        .map(|(w, _)| ("fetch ", *w))
                };
                let (fetch, word) = exact.or_else(fetch)?;
                let width = match *bits {
                    op::DW => "",
                    op::W => "32",
                    _ => return None,
                };
                Some(format!("lock {fetch}{word}{width} [%r{d}{off:+}], %r{s}"))
            }
        };
    }
    let (word, _) = MEM.iter().find(|(_, c)| *c == i.class() | mode)?;
    Some(match *word {
        "ldx" | "ldxs" => format!("{word}{size} %r{d}, [%r{s}{off:+}]"),
        "stx" => format!("{word}{size} [%r{d}{off:+}], %r{s}"),
        "st" => format!("{word}{size} [%r{d}{off:+}], {}", i.imm),
        "ldabs" => format!("{word}{size} {}", i.imm),
        _ => format!("{word}{size} %r{s}, {}", i.imm),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::assemble;

    /// Every opcode with every field value that matters: what prints must assemble to the same
    /// bytes, once fields that the instruction ignores are zero.
    #[test]
    fn what_is_written_reads_back_the_same() {
        let mut seen = 0;
        for code in 0..=255u8 {
            let registers =
                [(0, 0), (3, 0), (0, 7), (10, 1), (9, 10), (2, 2), (1, 4), (1, 5), (1, 6)];
            // And registers that there are not.
            for (d, s) in registers.into_iter().chain([(11, 0), (0, 11), (15, 15)]) {
                for off in [0, 1, 8, 16, 32, -1, i16::MAX, i16::MIN] {
                    for imm in [
                        0,
                        1,
                        -1,
                        16,
                        32,
                        64,
                        0x40,
                        0x41,
                        0x50,
                        0x51,
                        0xa0,
                        0xa1,
                        0xe1,
                        0xf1,
                        0x100,
                        0x110,
                        i32::MIN,
                        i32::MAX,
                    ] {
                        let insn = Insn::new(code, d, s, off, imm);
                        let program = if insn.is_ld_imm64() {
                            vec![insn, Insn::new(0, 0, 0, 0, 77)]
                        } else {
                            vec![insn]
                        };
                        let Some(text) = source(&program) else { continue };
                        let back = assemble(&text).unwrap_or_else(|e| panic!("{text}: {e}"));
                        assert_eq!(source(&back).as_deref(), Some(text.as_str()), "{insn:?}");
                        assert_eq!(back[0].code & !op::X, code & !op::X, "{text}");
                        let same =
                            |a: Insn| (a.off == off || a.off == 0) && (a.imm == imm || a.imm == 0);
                        assert!(same(back[0]), "{text} {insn:?}");
                        seen += 1;
                    }
                }
            }
        }
        assert!(seen > 10_000, "{seen}");
    }
}
