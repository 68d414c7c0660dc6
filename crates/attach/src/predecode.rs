//! Common instructions at first sight: how long they are and where the program continues behind
//! them, from a table of opcodes.
//!
//! Attaching looks at every instruction of a module, and of most it needs no more than that. A full
//! decoder ([`iced_x86`]) says all about each, and takes ten times as long. What is rare is left to
//! it: instructions of vector extensions, of the x87, with `lock`, with addresses of 32 bits, and
//! all that is no instruction.

use crate::flow::Flow;

/// What can be told of an instruction at first sight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Predecoded {
    /// Length in bytes.
    pub(crate) len: u8,
    /// Where the program continues.
    pub(crate) flow: Flow,
    /// Of direct branches and calls: from the instruction's end to the target.
    pub(crate) distance: Option<i32>,
    /// Its memory operand is an address from its own place.
    pub(crate) is_ip_relative: bool,
    /// It may change rsp or rbp, copy one, or use memory by one: a full decoder says how.
    pub(crate) uses_stack: bool,
}

/// The opcode is in the table.
const KNOWN: u8 = 1;
/// A byte that describes operands follows the opcode, and what that asks for.
const MODRM: u8 = 2;
/// One byte of constant follows.
const IMM8: u8 = 4;
/// As many bytes of constant as the operand has, at most four.
const IMM: u8 = 8;

// Of opcodes of one byte.
/// It changes the stack pointer by itself.
const STACK: u8 = 16;
/// Its operand is in the lower bits of the opcode.
const REGISTER: u8 = 32;
/// A direct branch, with the distance as its constant.
const BRANCH: u8 = 64;

// Of opcodes behind `0f`: with which prefixes, and only with these.
const PLAIN: u8 = 16;
const P66: u8 = 32;
const PF3: u8 = 64;
const PF2: u8 = 128;

/// Opcodes of one byte.
const ONE: [u8; 256] = {
    let mut table = [0; 256];
    // add, or, adc, sbb, and, sub, xor, cmp
    let mut op = 0;
    while op < 0x40 {
        table[op] = match op % 8 {
            0..=3 => KNOWN | MODRM,
            4 => KNOWN | IMM8,
            5 => KNOWN | IMM,
            _ => 0,
        };
        op += 1;
    }
    // push, pop
    set(&mut table, 0x50, 0x5f, KNOWN | STACK);
    // movsxd; push, imul
    set(&mut table, 0x63, 0x63, KNOWN | MODRM);
    set(&mut table, 0x68, 0x68, KNOWN | STACK | IMM);
    set(&mut table, 0x69, 0x69, KNOWN | MODRM | IMM);
    set(&mut table, 0x6a, 0x6a, KNOWN | STACK | IMM8);
    set(&mut table, 0x6b, 0x6b, KNOWN | MODRM | IMM8);
    // jcc
    set(&mut table, 0x70, 0x7f, KNOWN | BRANCH | IMM8);
    // add … cmp; test, xchg, mov, lea
    set(&mut table, 0x80, 0x80, KNOWN | MODRM | IMM8);
    set(&mut table, 0x81, 0x81, KNOWN | MODRM | IMM);
    set(&mut table, 0x83, 0x83, KNOWN | MODRM | IMM8);
    set(&mut table, 0x84, 0x8b, KNOWN | MODRM);
    set(&mut table, 0x8d, 0x8d, KNOWN | MODRM);
    // nop, xchg; cdqe, cqo; pushf, popf
    set(&mut table, 0x90, 0x97, KNOWN | REGISTER);
    set(&mut table, 0x98, 0x99, KNOWN);
    set(&mut table, 0x9c, 0x9d, KNOWN | STACK);
    // movs, cmps, stos, lods, scas; test
    set(&mut table, 0xa4, 0xa7, KNOWN);
    set(&mut table, 0xa8, 0xa8, KNOWN | IMM8);
    set(&mut table, 0xa9, 0xa9, KNOWN | IMM);
    set(&mut table, 0xaa, 0xaf, KNOWN);
    // mov; that of 64 bits is told by its prefix
    set(&mut table, 0xb0, 0xb7, KNOWN | IMM8);
    set(&mut table, 0xb8, 0xbf, KNOWN | REGISTER | IMM);
    // rol … sar; ret; mov; leave; int3
    set(&mut table, 0xc0, 0xc1, KNOWN | MODRM | IMM8);
    set(&mut table, 0xc3, 0xc3, KNOWN);
    set(&mut table, 0xc6, 0xc6, KNOWN | MODRM | IMM8);
    set(&mut table, 0xc7, 0xc7, KNOWN | MODRM | IMM);
    set(&mut table, 0xc9, 0xc9, KNOWN | STACK);
    set(&mut table, 0xcc, 0xcc, KNOWN);
    set(&mut table, 0xd0, 0xd3, KNOWN | MODRM);
    // call, jmp
    set(&mut table, 0xe8, 0xe9, KNOWN | BRANCH | IMM);
    set(&mut table, 0xeb, 0xeb, KNOWN | BRANCH | IMM8);
    // test, not … idiv; inc, dec; call, jmp, push
    set(&mut table, 0xf6, 0xf7, KNOWN | MODRM);
    set(&mut table, 0xfe, 0xff, KNOWN | MODRM);
    table
};

/// Opcodes behind `0f`.
const TWO: [u8; 256] = {
    let mut table = [0; 256];
    let word = KNOWN | MODRM | PLAIN | P66;
    // syscall; ud2
    set(&mut table, 0x05, 0x05, KNOWN | PLAIN);
    set(&mut table, 0x0b, 0x0b, KNOWN | PLAIN);
    // movups and its like; unpcklps
    set(&mut table, 0x10, 0x11, word | PF3 | PF2);
    set(&mut table, 0x14, 0x15, word);
    // nop
    set(&mut table, 0x1f, 0x1f, word);
    // movaps; cvtsi2sd, cvttsd2si, cvtsd2si; ucomisd, comisd
    set(&mut table, 0x28, 0x29, word);
    set(&mut table, 0x2a, 0x2a, KNOWN | MODRM | PF3 | PF2);
    set(&mut table, 0x2c, 0x2d, KNOWN | MODRM | PF3 | PF2);
    set(&mut table, 0x2e, 0x2f, word);
    // cmovcc
    set(&mut table, 0x40, 0x4f, word);
    // sqrtsd; andps … xorps; addsd … maxsd
    set(&mut table, 0x51, 0x51, word | PF3 | PF2);
    set(&mut table, 0x54, 0x57, word);
    set(&mut table, 0x58, 0x5a, word | PF3 | PF2);
    set(&mut table, 0x5b, 0x5b, word | PF3);
    set(&mut table, 0x5c, 0x5f, word | PF3 | PF2);
    // punpcklbw … movdqa; pshufd; pcmpeqb …; movd, movq, movdqa
    set(&mut table, 0x60, 0x6d, KNOWN | MODRM | P66);
    set(&mut table, 0x6e, 0x6e, word);
    set(&mut table, 0x6f, 0x6f, word | PF3);
    set(&mut table, 0x70, 0x70, word | PF3 | PF2 | IMM8);
    set(&mut table, 0x74, 0x76, word);
    set(&mut table, 0x7e, 0x7f, word | PF3);
    // jcc; setcc; cpuid
    set(&mut table, 0x80, 0x8f, KNOWN | PLAIN);
    set(&mut table, 0x90, 0x9f, KNOWN | MODRM | PLAIN);
    set(&mut table, 0xa2, 0xa2, KNOWN | PLAIN);
    // bt, shld; bts, shrd; imul
    set(&mut table, 0xa3, 0xa3, word);
    set(&mut table, 0xa4, 0xa4, word | IMM8);
    set(&mut table, 0xa5, 0xa5, word);
    set(&mut table, 0xab, 0xab, word);
    set(&mut table, 0xac, 0xac, word | IMM8);
    set(&mut table, 0xad, 0xad, word);
    set(&mut table, 0xaf, 0xaf, word);
    // cmpxchg; btr; movzx; popcnt; bt … btc, btc; bsf, tzcnt, bsr, lzcnt; movsx; xadd
    set(&mut table, 0xb0, 0xb1, word);
    set(&mut table, 0xb3, 0xb3, word);
    set(&mut table, 0xb6, 0xb7, word);
    set(&mut table, 0xb8, 0xb8, KNOWN | MODRM | PF3);
    set(&mut table, 0xba, 0xba, word | IMM8);
    set(&mut table, 0xbb, 0xbb, word);
    set(&mut table, 0xbc, 0xbd, word | PF3);
    set(&mut table, 0xbe, 0xbf, word);
    set(&mut table, 0xc0, 0xc1, word);
    // cmpsd, shufps; psrlw …
    set(&mut table, 0xc2, 0xc2, word | PF3 | PF2 | IMM8);
    set(&mut table, 0xc6, 0xc6, word | IMM8);
    set(&mut table, 0xd1, 0xd6, KNOWN | MODRM | P66);
    set(&mut table, 0xd8, 0xe5, KNOWN | MODRM | P66);
    set(&mut table, 0xe8, 0xef, KNOWN | MODRM | P66);
    set(&mut table, 0xf1, 0xf6, KNOWN | MODRM | P66);
    set(&mut table, 0xf8, 0xfe, KNOWN | MODRM | P66);
    table
};

const fn set(table: &mut [u8; 256], first: usize, last: usize, to: u8) {
    let mut op = first;
    while op <= last {
        table[op] = to;
        op += 1;
    }
}

// Bits of REX.
/// The operand has 64 bits.
const W: u8 = 8;
/// The upper bit of the register.
const R: u8 = 4;
/// The upper bit of the other register, or of the base of an address.
const B: u8 = 1;

/// Registers whose lower three bits these are may be rsp and rbp.
const fn is_pointer(bits: u8) -> bool {
    bits & 6 == 4
}

/// Looks at the first instruction of some code; `None` when a full decoder has to.
pub(crate) fn predecode(code: &[u8]) -> Option<Predecoded> {
    let mut bytes = Bytes { code, at: 0 };
    let (mut p66, mut repeat, mut rex) = (false, 0, 0);
    let op = loop {
        match bytes.next()? {
            0x66 => p66 = true,
            prefix @ (0xf2 | 0xf3) => repeat = prefix,
            // Segments, and hints for branches.
            0x26 | 0x2e | 0x36 | 0x3e | 0x64 | 0x65 => {}
            prefix @ 0x40..=0x4f => {
                rex = prefix;
                break bytes.next()?;
            }
            op => break op,
        }
    };
    if op == 0x0f {
        return two_bytes(bytes, p66, repeat, rex);
    }
    let row = ONE[usize::from(op)];
    if row & KNOWN == 0 {
        return None;
    }
    let is_wide = rex & W != 0;
    let word = if p66 && !is_wide { 2 } else { 4 };
    let flow = match op {
        0x70..=0x7f => Flow::ConditionalBranch,
        0xc3 => Flow::Return,
        0xcc => Flow::Interrupt,
        0xe8 => Flow::Call,
        0xe9 | 0xeb => Flow::UnconditionalBranch,
        _ => Flow::Next,
    };
    let named = row & REGISTER != 0 && is_wide && rex & B == 0 && is_pointer(op);
    let uses_stack = row & STACK != 0 || named;
    let mut out = Predecoded { len: 0, flow, distance: None, is_ip_relative: false, uses_stack };
    let mut constant = match row & (IMM8 | IMM) {
        0 => 0,
        IMM8 => 1,
        _ if op & 0xf8 == 0xb8 && is_wide => 8,
        _ => word,
    };
    if row & BRANCH != 0 {
        if p66 {
            // Another length on each maker's processors.
            return None;
        }
        return bytes.branch(constant, out);
    }
    if row & MODRM != 0 {
        let (mode, register, other) = bytes.operands(rex, &mut out)?;
        match (op, register) {
            // lea of a register; what ends transactions and begins them.
            (0x8d, _) if mode == 3 => return None,
            (0xc6 | 0xc7, 1..) | (0xfe, 2..) => return None,
            (0xf6, 0 | 1) => constant = 1,
            (0xf7, 0 | 1) => constant = word,
            (0xff, 2 | 4) if !p66 => {
                let is_call = register == 2;
                out.flow = if is_call { Flow::IndirectCall } else { Flow::IndirectBranch };
                out.uses_stack |= mode == 3 && rex & B == 0 && is_pointer(other);
            }
            (0xff, 6) => out.uses_stack = true,
            (0xff, 2..) => return None,
            _ => {}
        }
    }
    bytes.end(constant, out)
}

/// The same behind `0f`.
fn two_bytes(mut bytes: Bytes<'_>, p66: bool, repeat: u8, rex: u8) -> Option<Predecoded> {
    let op = bytes.next()?;
    let row = TWO[usize::from(op)];
    let with = match (repeat, p66) {
        (0, false) => PLAIN,
        (0, true) => P66,
        (0xf3, false) => PF3,
        (0xf2, false) => PF2,
        _ => 0,
    };
    let flow = match op {
        0x05 => Flow::Call,
        0x0b => Flow::Exception,
        0x80..=0x8f => Flow::ConditionalBranch,
        _ => Flow::Next,
    };
    let mut out =
        Predecoded { len: 0, flow, distance: None, is_ip_relative: false, uses_stack: false };
    if row & with == 0 {
        // endbr64, which most functions begin with.
        let is_landing_pad = with == PF3 && op == 0x1e && rex == 0 && bytes.next()? == 0xfa;
        return if is_landing_pad { bytes.end(0, out) } else { None };
    }
    if flow == Flow::ConditionalBranch {
        return bytes.branch(4, out);
    }
    if row & MODRM != 0 {
        let (_, register, _) = bytes.operands(rex, &mut out)?;
        // bt, bts, btr, btc; the others are none.
        if op == 0xba && register < 4 {
            return None;
        }
    }
    bytes.end(usize::from(row & IMM8 != 0), out)
}

/// Code, and how much of it was read.
#[derive(Clone, Copy)]
struct Bytes<'a> {
    code: &'a [u8],
    at: usize,
}

impl Bytes<'_> {
    fn next(&mut self) -> Option<u8> {
        let byte = self.code.get(self.at).copied()?;
        self.at += 1;
        Some(byte)
    }

    /// Reads what describes the operands: its mode, register and other register. An address may have
    /// a second byte and a displacement.
    fn operands(&mut self, rex: u8, out: &mut Predecoded) -> Option<(u8, u8, u8)> {
        let modrm = self.next()?;
        let (mode, register, other) = (modrm >> 6, modrm >> 3 & 7, modrm & 7);
        let is_wide = rex & W != 0;
        out.uses_stack |= is_wide && rex & R == 0 && is_pointer(register);
        if mode == 3 {
            out.uses_stack |= is_wide && rex & B == 0 && is_pointer(other);
            return Some((mode, register, other));
        }
        let base = if other == 4 { self.next()? & 7 } else { other };
        let has_none = mode == 0 && base == 5;
        out.is_ip_relative = has_none && other == 5;
        out.uses_stack |= is_pointer(base) && rex & B == 0 && !has_none;
        self.at += match mode {
            0 if has_none => 4,
            0 => 0,
            1 => 1,
            _ => 4,
        };
        Some((mode, register, other))
    }

    /// Reads the distance of a branch.
    fn branch(self, len: usize, out: Predecoded) -> Option<Predecoded> {
        let distance = match *self.code.get(self.at..self.at + len)? {
            [byte] => i32::from(byte as i8),
            ref field => i32::from_le_bytes(*field.first_chunk()?),
        };
        self.end(len, Predecoded { distance: Some(distance), ..out })
    }

    /// So many bytes are left of the instruction.
    fn end(self, rest: usize, out: Predecoded) -> Option<Predecoded> {
        /// No instruction is longer.
        const MOST: usize = 15;
        let len = self.at + rest;
        (len <= self.code.len().min(MOST)).then_some(Predecoded { len: len as u8, ..out })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::flow;
    use crate::stack_arguments::leaves_stack_alone;
    use iced_x86::{Decoder, DecoderOptions, Instruction, OpKind};
    use skep_proc::maps::{self, Perms};

    /// Compares with the full decoder what is said of an instruction; whether anything is said.
    fn compare(code: &[u8], at: u64) -> bool {
        let Some(seen) = predecode(code) else { return false };
        let i = Decoder::with_ip(64, code, at, DecoderOptions::NONE).decode();
        let text = || format!("{:02x?}: {i:?}, {seen:?}", &code[..code.len().min(15)]);
        assert!(!i.is_invalid(), "{}", text());
        assert_eq!(usize::from(seen.len), i.len(), "{}", text());
        assert_eq!(seen.flow, flow(&i), "{}", text());
        let is_near = matches!(i.op0_kind(), OpKind::NearBranch64);
        let target = is_near.then(|| i.near_branch_target());
        let distance = |distance: i32| i.next_ip().wrapping_add_signed(distance.into());
        assert_eq!(seen.distance.map(distance), target, "{}", text());
        assert_eq!(seen.is_ip_relative, i.is_ip_rel_memory_operand(), "{}", text());
        assert!(seen.uses_stack || leaves_stack_alone(&i), "{}", text());
        true
    }

    #[test]
    fn all_opcodes_are_what_a_full_decoder_says() {
        let prefixes: [&[u8]; 12] = [
            &[],
            &[0x66],
            &[0xf2],
            &[0xf3],
            &[0x48],
            &[0x41],
            &[0x45],
            &[0x4d],
            &[0x64],
            &[0x3e],
            &[0x66, 0x48],
            &[0xf3, 0x4c],
        ];
        let escapes: [&[u8]; 2] = [&[], &[0x0f]];
        let mut known = 0;
        for (prefix, escape) in prefixes.iter().flat_map(|p| escapes.map(|e| (p, e))) {
            for (opcode, operand) in (0..=255).flat_map(|o| (0..=255).map(move |m| (o, m))) {
                for sib in [0x24, 0x25, 0x65, 0x2c, 0xec] {
                    let rest = [sib, 0x11, 0x82, 3, 4, 5, 6, 7, 8, 9];
                    let bytes = [prefix, escape, &[opcode, operand][..], &rest].concat();
                    known += u32::from(compare(&bytes, 0x7f00_1234_5678));
                    // Cut anywhere, it is none.
                    if let Some(seen) = predecode(&bytes) {
                        assert_eq!(predecode(&bytes[..usize::from(seen.len) - 1]), None);
                    }
                }
            }
        }
        assert!(known > 500_000, "{known}");
    }

    #[test]
    fn most_instructions_of_programs_are_known() {
        let wanted = Perms::EXEC | Perms::READ;
        let code = maps::own().unwrap().into_iter().filter(|v| v.perms.contains(wanted));
        let (mut all, mut known) = (0, 0);
        for range in code.map(|v| v.range()) {
            // SAFETY: mapped code of this process, which stays: no library is unloaded here.
            let bytes = unsafe { crate::code::bytes(&range) };
            let mut decoder = Decoder::with_ip(64, bytes, range.start, DecoderOptions::NONE);
            let mut i = Instruction::default();
            while decoder.can_decode() {
                let (start, at) = (decoder.position(), decoder.ip());
                decoder.decode_out(&mut i);
                all += 1;
                known += u32::from(compare(&bytes[start..], at));
            }
        }
        assert!(all > 500_000 && known > all / 10 * 9, "{known} of {all}");
    }
}
