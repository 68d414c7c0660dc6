//! Instructions as the kernel's verifier log prints them (kernel/bpf/disasm.c).

use std::fmt;

use crate::insn::Insn;
use crate::{helper, op};

/// Prints one instruction of a program; an unknown one as its fields.
///
/// ```
/// use skep_isa::{Insn, text::Line};
/// assert_eq!(Line { insn: Insn::mov64_imm(0, -1), next: None }.to_string(), "r0 = -1");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Line {
    /// The instruction.
    pub insn: Insn,
    /// The slot after it, which holds the upper half of a 64-bit immediate.
    pub next: Option<Insn>,
}

/// Lists the instructions of a program with their numbers; the second slot of a 64-bit immediate
/// has no line.
pub fn lines(insns: &[Insn]) -> impl Iterator<Item = (usize, Line)> {
    let mut skip = false;
    insns.iter().enumerate().filter_map(move |(i, insn)| {
        if std::mem::take(&mut skip) {
            return None;
        }
        let next = insns.get(i + 1).copied();
        skip = insn.is_ld_imm64() && next.is_some();
        Some((i, Line { insn: *insn, next }))
    })
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let i = self.insn;
        let known = match i.class() {
            op::ALU | op::ALU64 => alu(f, i)?,
            op::JMP | op::JMP32 => jump(f, i)?,
            op::LD => load_imm(f, i, self.next)?,
            op::LDX => load(f, i)?,
            _ => store(f, i)?,
        };
        if known { Ok(()) } else { write!(f, "unknown {i:?}") }
    }
}

/// Every printer tells whether it knew the instruction, and then has written it whole.
type Known = Result<bool, fmt::Error>;

fn alu(f: &mut fmt::Formatter<'_>, i: Insn) -> Known {
    let (d, s) = (i.dst(), i.src());
    let r = if i.class() == op::ALU64 { 'r' } else { 'w' };
    let sign = if i.off == 1 { "s" } else { "" };
    let word = match i.code & 0xf0 {
        op::ADD => "+=",
        op::SUB => "-=",
        op::MUL => "*=",
        op::DIV => "/=",
        op::OR => "|=",
        op::AND => "&=",
        op::LSH => "<<=",
        op::RSH => ">>=",
        op::MOD => "%=",
        op::XOR => "^=",
        op::MOV => "=",
        op::ARSH => "s>>=",
        op::NEG => {
            write!(f, "{r}{d} = -{r}{d}")?;
            return Ok(true);
        }
        op::END => {
            let word = match (i.class(), i.code & op::X) {
                (op::ALU64, _) => "bswap",
                (_, op::K) => "le",
                _ => "be",
            };
            write!(f, "r{d} = {word}{} r{d}", i.imm)?;
            return Ok(true);
        }
        _ => return Ok(false),
    };
    if i.code & op::X == 0 {
        write!(f, "{r}{d} {sign}{word} {}", i.imm)?;
    } else if i.code & 0xf0 == op::MOV && i.off != 0 {
        write!(f, "{r}{d} = (s{}){r}{s}", i.off)?;
    } else {
        write!(f, "{r}{d} {sign}{word} {r}{s}")?;
    }
    Ok(true)
}

fn jump(f: &mut fmt::Formatter<'_>, i: Insn) -> Known {
    let (d, s) = (i.dst(), i.src());
    let wide = i.class() == op::JMP;
    let r = if wide { 'r' } else { 'w' };
    let word = match i.code & 0xf0 {
        op::JA if wide => {
            write!(f, "goto pc{:+}", i.off)?;
            return Ok(true);
        }
        op::JA => {
            write!(f, "gotol pc{:+}", i.imm)?;
            return Ok(true);
        }
        op::JCOND if wide && s == 0 => {
            write!(f, "may_goto pc{:+}", i.off)?;
            return Ok(true);
        }
        0x80 if wide => return call(f, i),
        0x90 if wide => {
            f.write_str("exit")?;
            return Ok(true);
        }
        op::JEQ => "==",
        op::JGT => ">",
        op::JGE => ">=",
        op::JSET => "&",
        op::JNE => "!=",
        op::JSGT => "s>",
        op::JSGE => "s>=",
        op::JLT => "<",
        op::JLE => "<=",
        op::JSLT => "s<",
        op::JSLE => "s<=",
        _ => return Ok(false),
    };
    if i.code & op::X == 0 {
        write!(f, "if {r}{d} {word} {:#x} goto pc{:+}", i.imm, i.off)?;
    } else {
        write!(f, "if {r}{d} {word} {r}{s} goto pc{:+}", i.off)?;
    }
    Ok(true)
}

fn call(f: &mut fmt::Formatter<'_>, i: Insn) -> Known {
    if i.code & op::X != 0 {
        write!(f, "callx r{}", i.dst())?;
        return Ok(true);
    }
    let id = i.imm as u32;
    match (i.src(), helper::by_id(id)) {
        (op::PSEUDO_CALL, _) => write!(f, "call pc{:+}", i.imm)?,
        (_, Some(h)) if id >= helper::KFUNC_BASE => write!(f, "call {}#{id}", h.name)?,
        (0, None) if crate::kfunc::by_id(id).is_some() => {
            write!(f, "call {}#{id}", crate::kfunc::by_id(id).map_or("", |k| k.name))?;
        }
        (op::PSEUDO_KFUNC_CALL, _) => write!(f, "call kernel-function#{id}")?,
        (0, Some(h)) => write!(f, "call bpf_{}#{id}", h.name)?,
        (0, None) if id == helper::LOAD_PACKET => write!(f, "call load_packet#{id}")?,
        (0, None) if id == helper::LOOK_AHEAD => write!(f, "call look_ahead#{id}")?,
        (0, None) => write!(f, "call unknown#{id}")?,
        _ => return Ok(false),
    }
    Ok(true)
}

fn load_imm(f: &mut fmt::Formatter<'_>, i: Insn, next: Option<Insn>) -> Known {
    let d = i.dst();
    match (i.code, next) {
        (op::LD_IMM64, Some(n)) => {
            let index = i.imm as u32;
            match i.src() {
                0 => write!(f, "r{d} = {:#x}", u64::from(index) | u64::from(n.imm as u32) << 32)?,
                op::PSEUDO_MAP_IDX => write!(f, "r{d} = map[{index}]")?,
                op::PSEUDO_MAP_IDX_VALUE => write!(f, "r{d} = map[{index}][0]+{}", n.imm as u32)?,
                op::PSEUDO_MAP_FD => write!(f, "r{d} = map_fd[{}]", i.imm)?,
                op::PSEUDO_MAP_VALUE => write!(f, "r{d} = map_fd[{}][0]+{}", i.imm, n.imm as u32)?,
                op::PSEUDO_FUNC => write!(f, "r{d} = func pc{:+}", i.imm)?,
                op::PSEUDO_BTF_ID => write!(f, "r{d} = btf_id[{}]", i.imm)?,
                _ => return Ok(false),
            }
        }
        _ => match (i.code & 0xe0, i.code & op::DW != op::DW) {
            (op::ABS, true) => write!(f, "r0 = *({} *)skb[{}]", size(i, 'u'), i.imm)?,
            (op::IND, true) => {
                write!(f, "r0 = *({} *)skb[r{} + {}]", size(i, 'u'), i.src(), i.imm)?
            }
            _ => return Ok(false),
        },
    }
    Ok(true)
}

fn load(f: &mut fmt::Formatter<'_>, i: Insn) -> Known {
    let sign = match i.code & 0xe0 {
        op::MEM => 'u',
        op::MEMSX if i.code & op::DW != op::DW => 's',
        _ => return Ok(false),
    };
    write!(f, "r{} = *({} *)(r{} {:+})", i.dst(), size(i, sign), i.src(), i.off)?;
    Ok(true)
}

fn store(f: &mut fmt::Formatter<'_>, i: Insn) -> Known {
    let (d, s, z) = (i.dst(), i.src(), size(i, 'u'));
    match (i.class(), i.code & 0xe0) {
        (op::ST, op::MEM) => write!(f, "*({z} *)(r{d} {:+}) = {}", i.off, i.imm)?,
        (op::STX, op::MEM) => write!(f, "*({z} *)(r{d} {:+}) = r{s}", i.off)?,
        (op::STX, op::ATOMIC) => return atomic(f, i),
        _ => return Ok(false),
    }
    Ok(true)
}

fn atomic(f: &mut fmt::Formatter<'_>, i: Insn) -> Known {
    let (d, s, off, z) = (i.dst(), i.src(), i.off, size(i, 'u'));
    match i.imm {
        op::ATOMIC_LOAD_ACQ => {
            write!(f, "r{d} = load_acquire(({z} *)(r{s} {off:+}))")?;
            return Ok(true);
        }
        op::ATOMIC_STORE_REL => {
            write!(f, "store_release(({z} *)(r{d} {off:+}), r{s})")?;
            return Ok(true);
        }
        _ => {}
    }
    let bits = match i.code & op::DW {
        op::DW => "64",
        op::W => "",
        _ => return Ok(false),
    };
    let (word, name) = match i.imm & !op::ATOMIC_FETCH {
        op::ATOMIC_ADD => ("+=", "add"),
        op::ATOMIC_OR => ("|=", "or"),
        op::ATOMIC_AND => ("&=", "and"),
        op::ATOMIC_XOR => ("^=", "xor"),
        _ => ("", ""),
    };
    match i.imm {
        op::ATOMIC_XCHG => write!(f, "r{s} = atomic{bits}_xchg(({z} *)(r{d} {off:+}), r{s})")?,
        op::ATOMIC_CMPXCHG => {
            write!(f, "r0 = atomic{bits}_cmpxchg(({z} *)(r{d} {off:+}), r0, r{s})")?
        }
        _ if name.is_empty() => return Ok(false),
        n if n & op::ATOMIC_FETCH != 0 => {
            write!(f, "r{s} = atomic{bits}_fetch_{name}(({z} *)(r{d} {off:+}), r{s})")?
        }
        _ => write!(f, "lock *({z} *)(r{d} {off:+}) {word} r{s}")?,
    }
    Ok(true)
}

fn size(i: Insn, sign: char) -> &'static str {
    match (i.code & op::DW, sign) {
        (op::B, 'u') => "u8",
        (op::H, 'u') => "u16",
        (op::W, 'u') => "u32",
        (op::DW, 'u') => "u64",
        (op::B, _) => "s8",
        (op::H, _) => "s16",
        (op::W, _) => "s32",
        _ => "s64",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::assemble;

    #[test]
    fn lines_read_as_in_the_kernel_log() {
        let cases = [
            ("ldxdw r0, [r1+8]", "r0 = *(u64 *)(r1 +8)"),
            ("ldxsb r0, [r1-1]", "r0 = *(s8 *)(r1 -1)"),
            ("stdw [r10-8], -5", "*(u64 *)(r10 -8) = -5"),
            ("stxb [r2], r3", "*(u8 *)(r2 +0) = r3"),
            ("add32 r0, r1", "w0 += w1"),
            ("arsh r4, 7", "r4 s>>= 7"),
            ("sdiv r4, 7", "r4 s/= 7"),
            ("smod32 r4, r2", "w4 s%= w2"),
            ("neg32 r3", "w3 = -w3"),
            ("movsx832 r1, r2", "w1 = (s8)w2"),
            ("be16 r1", "r1 = be16 r1"),
            ("bswap32 r1", "r1 = bswap32 r1"),
            ("jeq r1, 0, +3", "if r1 == 0x0 goto pc+3"),
            ("jslt32 r1, r2, -3", "if w1 s< w2 goto pc-3"),
            ("jne r1, -1, +3", "if r1 != 0xffffffff goto pc+3"),
            ("ja -2", "goto pc-2"),
            ("ja32 -2", "gotol pc-2"),
            ("call 1", "call bpf_map_lookup_elem#1"),
            ("call local +2", "call pc+2"),
            ("call kfunc 65536", "call bpf_session_is_return#65536"),
            ("lddw r1, 0x1122334455667788", "r1 = 0x1122334455667788"),
            ("lddw r1, map 3", "r1 = map[3]"),
            ("lock or [r10-8], r2", "lock *(u64 *)(r10 -8) |= r2"),
            ("lock fetch add32 [r10-8], r2", "r2 = atomic_fetch_add((u32 *)(r10 -8), r2)"),
            ("lock cmpxchg [r10-8], r2", "r0 = atomic64_cmpxchg((u64 *)(r10 -8), r0, r2)"),
            ("ldacqw r1, [r2+4]", "r1 = load_acquire((u32 *)(r2 +4))"),
            ("streldw [r2+8], r1", "store_release((u64 *)(r2 +8), r1)"),
            ("ldabsh 12", "r0 = *(u16 *)skb[12]"),
            ("may_goto +1", "may_goto pc+1"),
            ("exit", "exit"),
        ];
        for (text, want) in cases {
            let p = assemble(text).unwrap();
            assert_eq!(lines(&p).map(|(_, l)| l.to_string()).collect::<Vec<_>>(), [want], "{text}");
        }
    }

    #[test]
    fn every_bit_pattern_prints_something() {
        for code in 0..=255 {
            for (imm, off) in [(0, 0), (1, 1), (0xf1, -1), (-1, 32), (0x100, 8)] {
                let insn = Insn::new(code, 15, 15, off, imm);
                assert!(!Line { insn, next: None }.to_string().is_empty());
                assert!(!Line { insn, next: Some(insn) }.to_string().is_empty());
            }
        }
    }
}
