//! The assembler: lines of the `.data` dialect to instructions.

use std::collections::HashMap;
use std::fmt;

use super::cursor::{Cursor, Operand};
use super::mnemonic::{self, ALU, END, JUMP, LOCK, MEM, MOVSX, SIZE};
use crate::insn::Insn;
use crate::{helper, op};

/// Says where and why a text is no program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AsmError {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// What is wrong there.
    pub kind: AsmErrorKind,
}

/// Says what is wrong with an assembly line.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum AsmErrorKind {
    /// No instruction has this name.
    UnknownMnemonic(String),
    /// Something else was needed here.
    Expected {
        /// What was needed.
        what: &'static str,
        /// What was found, empty at the end of the line.
        found: String,
    },
    /// A number does not fit its field.
    OutOfRange {
        /// The field.
        what: &'static str,
        /// The number.
        value: String,
    },
    /// A label that no line defines.
    UnknownLabel(String),
    /// A label that two lines define.
    DuplicateLabel(String),
    /// No helper has this name.
    UnknownHelper(String),
}

impl fmt::Display for AsmErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownMnemonic(w) => write!(f, "unknown instruction `{w}`"),
            Self::Expected { what, found } if found.is_empty() => {
                write!(f, "expected {what}, found the end of the line")
            }
            Self::Expected { what, found } => write!(f, "expected {what}, found `{found}`"),
            Self::OutOfRange { what, value } => write!(f, "`{value}` does not fit {what}"),
            Self::UnknownLabel(l) => write!(f, "no line is labeled `{l}`"),
            Self::DuplicateLabel(l) => write!(f, "label `{l}` is defined twice"),
            Self::UnknownHelper(h) => write!(f, "no helper is called `{h}`"),
        }
    }
}

impl fmt::Display for AsmError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}: {}", self.line, self.column, self.kind)
    }
}

impl std::error::Error for AsmError {}

/// Assembles a program.
///
/// A label stands before a colon; the label `exit`, when no line defines it, is the next `exit`
/// instruction. Comments start with `#`, `;` or `//`. Registers are `%r0` or `r0`.
///
/// ```
/// use skep_isa::{Insn, text};
/// let insns = text::assemble("mov %r0, -1 # all ones\nexit")?;
/// assert_eq!(insns, [Insn::mov64_imm(0, -1), Insn::exit()]);
/// # Ok::<(), text::AsmError>(())
/// ```
///
/// # Errors
/// The first line that is no instruction, or a jump to a label that does not exist or is too far
/// away.
pub fn assemble(text: &str) -> Result<Vec<Insn>, AsmError> {
    let mut asm = Assembler::default();
    for (n, line) in text.lines().enumerate() {
        asm.line(&mut Cursor { text: line, pos: 0, line: n + 1 })?;
    }
    asm.link()
}

#[derive(Default)]
struct Assembler {
    out: Vec<Insn>,
    labels: HashMap<String, usize>,
    jumps: Vec<Jump>,
}

/// A reference to a label, and which field of the instruction at `at` takes the distance.
struct Jump {
    at: usize,
    label: String,
    wide: bool,
    line: usize,
    column: usize,
}

impl Assembler {
    fn line(&mut self, c: &mut Cursor<'_>) -> Result<(), AsmError> {
        loop {
            c.blank();
            if c.at_end() {
                return Ok(());
            }
            let start = c.pos;
            let word = c.word();
            if word.is_empty() {
                return Err(c.expected("an instruction"));
            }
            if c.eat(':') {
                if self.labels.insert(word.to_owned(), self.out.len()).is_some() {
                    return Err(c.error_at(start, AsmErrorKind::DuplicateLabel(word.to_owned())));
                }
                continue;
            }
            self.insn(word, start, c)?;
            c.blank();
            return if c.at_end() { Ok(()) } else { Err(c.expected("the end of the line")) };
        }
    }

    fn insn(&mut self, word: &str, start: usize, c: &mut Cursor<'_>) -> Result<(), AsmError> {
        match word {
            "exit" => self.out.push(Insn::exit()),
            "call" => self.call(c)?,
            "lock" => self.lock(c)?,
            "lddw" => self.lddw(c)?,
            "ja" | "goto" => self.jump(Insn::new(op::JMP | op::JA, 0, 0, 0, 0), false, c)?,
            "ja32" | "gotol" => self.jump(Insn::new(op::JMP32 | op::JA, 0, 0, 0, 0), true, c)?,
            "may_goto" => self.jump(Insn::new(op::JMP | op::JCOND, 0, 0, 0, 0), false, c)?,
            _ => {
                if !(self.alu(word, c)?
                    || self.end(word, c)?
                    || self.memory(word, c)?
                    || self.branch(word, c)?)
                {
                    return Err(c.error_at(start, AsmErrorKind::UnknownMnemonic(word.to_owned())));
                }
            }
        }
        Ok(())
    }

    fn alu(&mut self, word: &str, c: &mut Cursor<'_>) -> Result<bool, AsmError> {
        if let Some(&(_, class, bits)) = MOVSX.iter().find(|(w, ..)| *w == word) {
            let dst = c.reg()?;
            c.comma()?;
            self.out.push(Insn::new(class | op::X | op::MOV, dst, c.reg()?, bits, 0));
            return Ok(true);
        }
        let (base, wide) = mnemonic::width(word);
        let class = if wide { op::ALU64 } else { op::ALU };
        if base == "neg" {
            self.out.push(Insn::new(class | op::NEG, c.reg()?, 0, 0, 0));
            return Ok(true);
        }
        let Some(&(_, code, off)) = ALU.iter().find(|(w, ..)| *w == base) else { return Ok(false) };
        let dst = c.reg()?;
        c.comma()?;
        self.out.push(match c.reg_or_imm()? {
            Operand::Reg(src) => Insn::new(class | op::X | code, dst, src, off, 0),
            Operand::Imm(imm) => Insn::new(class | op::K | code, dst, 0, off, imm),
        });
        Ok(true)
    }

    fn end(&mut self, word: &str, c: &mut Cursor<'_>) -> Result<bool, AsmError> {
        for (name, code) in END {
            if let Some(bits @ ("16" | "32" | "64")) = word.strip_prefix(name) {
                let bits = bits.parse().unwrap_or(0);
                self.out.push(Insn::new(*code, c.reg()?, 0, 0, bits));
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn memory(&mut self, word: &str, c: &mut Cursor<'_>) -> Result<bool, AsmError> {
        let row = MEM.iter().find_map(|(name, code)| {
            let size = word.strip_prefix(name)?;
            SIZE.iter().find(|(s, _)| *s == size).map(|(_, size)| (*name, code | size))
        });
        let Some((name, code)) = row else { return Ok(false) };
        self.out.push(match name {
            "ldx" | "ldxs" | "ldacq" => {
                let dst = c.reg()?;
                c.comma()?;
                let (src, off) = c.mem()?;
                Insn::new(
                    code,
                    dst,
                    src,
                    off,
                    if name == "ldacq" { op::ATOMIC_LOAD_ACQ } else { 0 },
                )
            }
            "stx" | "strel" => {
                let (dst, off) = c.mem()?;
                c.comma()?;
                Insn::new(
                    code,
                    dst,
                    c.reg()?,
                    off,
                    if name == "strel" { op::ATOMIC_STORE_REL } else { 0 },
                )
            }
            "st" => {
                let (dst, off) = c.mem()?;
                c.comma()?;
                Insn::new(code, dst, 0, off, c.imm32()?)
            }
            "ldind" => {
                let src = c.reg()?;
                c.comma()?;
                Insn::new(code, 0, src, 0, c.imm32()?)
            }
            _ => Insn::new(code, 0, 0, 0, c.imm32()?),
        });
        Ok(true)
    }

    fn branch(&mut self, word: &str, c: &mut Cursor<'_>) -> Result<bool, AsmError> {
        let (base, wide) = mnemonic::width(word);
        let Some((_, code)) = JUMP.iter().find(|(w, _)| *w == base) else { return Ok(false) };
        let class = if wide { op::JMP } else { op::JMP32 };
        let dst = c.reg()?;
        c.comma()?;
        let insn = match c.reg_or_imm()? {
            Operand::Reg(src) => Insn::new(class | op::X | code, dst, src, 0, 0),
            Operand::Imm(imm) => Insn::new(class | op::K | code, dst, 0, 0, imm),
        };
        c.comma()?;
        self.jump(insn, false, c)?;
        Ok(true)
    }

    /// Reads a jump target, a label or a signed distance, and pushes the jump.
    fn jump(&mut self, mut insn: Insn, wide: bool, c: &mut Cursor<'_>) -> Result<(), AsmError> {
        c.blank();
        let column = c.pos;
        if matches!(c.peek(), Some('+' | '-')) {
            let n = c.number("a jump distance")?;
            if wide {
                insn.imm = c.in_range(n, "a 32-bit jump", column)?;
            } else {
                insn.off = c.in_range(n, "a 16-bit jump", column)?;
            }
        } else {
            let label = c.label()?;
            self.jumps.push(Jump {
                at: self.out.len(),
                label,
                wide,
                line: c.line,
                column: column + 1,
            });
        }
        self.out.push(insn);
        Ok(())
    }

    fn call(&mut self, c: &mut Cursor<'_>) -> Result<(), AsmError> {
        c.blank();
        let start = c.pos;
        if c.peek().is_some_and(|c| c.is_ascii_digit() || c == '-') {
            let id = c.imm32()?;
            self.out.push(Insn::new(op::CALL, 0, 0, 0, id));
            return Ok(());
        }
        if let Some(reg) = c.try_reg()? {
            self.out.push(Insn::new(op::CALL | op::X, reg, 0, 0, 0));
            return Ok(());
        }
        match c.word() {
            "local" => return self.jump(Insn::new(op::CALL, 0, op::PSEUDO_CALL, 0, 0), true, c),
            "kfunc" => {
                let id = c.imm32()?;
                self.out.push(Insn::new(op::CALL, 0, op::PSEUDO_KFUNC_CALL, 0, id));
            }
            "" => return Err(c.expected("a helper, `local` and a label, or a register")),
            name => {
                let id = helper::by_name(name)
                    .map(|h| h.id)
                    .or_else(|| crate::kfunc::by_name(name).map(|(id, _)| id));
                let Some(id) = id else {
                    return Err(c.error_at(start, AsmErrorKind::UnknownHelper(name.to_owned())));
                };
                self.out.push(Insn::call(id));
            }
        }
        Ok(())
    }

    fn lock(&mut self, c: &mut Cursor<'_>) -> Result<(), AsmError> {
        c.blank();
        let mut start = c.pos;
        let mut word = c.word();
        let fetch = word == "fetch";
        if fetch {
            c.blank();
            start = c.pos;
            word = c.word();
        }
        let (base, wide) = mnemonic::width(word);
        let Some((_, imm)) = LOCK.iter().find(|(w, _)| *w == base) else {
            return Err(c.error_at(start, AsmErrorKind::UnknownMnemonic(format!("lock {word}"))));
        };
        let (dst, off) = c.mem()?;
        c.comma()?;
        let code = op::STX | op::ATOMIC | if wide { op::DW } else { op::W };
        self.out.push(Insn::new(
            code,
            dst,
            c.reg()?,
            off,
            imm | if fetch { op::ATOMIC_FETCH } else { 0 },
        ));
        Ok(())
    }

    fn lddw(&mut self, c: &mut Cursor<'_>) -> Result<(), AsmError> {
        let dst = c.reg()?;
        c.comma()?;
        c.blank();
        if !c.peek().is_some_and(char::is_alphabetic) {
            let start = c.pos;
            let n = c.number("a 64-bit immediate")?;
            if !(i128::from(i64::MIN)..=i128::from(u64::MAX)).contains(&n) {
                return Err(c.error_at(
                    start,
                    AsmErrorKind::OutOfRange { what: "64 bits", value: n.to_string() },
                ));
            }
            self.out.extend(Insn::ld_imm64(dst, 0, n as u64));
            return Ok(());
        }
        let start = c.pos;
        match c.word() {
            "map" => {
                let index = c.imm32()?;
                self.out.extend(Insn::ld_imm64(dst, op::PSEUDO_MAP_IDX, u64::from(index as u32)));
            }
            "value" => {
                let index = c.imm32()?;
                let off = if c.peek() == Some('+') { c.imm32()? } else { 0 };
                self.out.extend(Insn::ld_imm64(
                    dst,
                    op::PSEUDO_MAP_IDX_VALUE,
                    u64::from(index as u32) | u64::from(off as u32) << 32,
                ));
            }
            "func" => {
                self.jump(Insn::new(op::LD_IMM64, dst, op::PSEUDO_FUNC, 0, 0), true, c)?;
                self.out.push(Insn::default());
            }
            other => {
                let what = "a number, `map`, `value` or `func`";
                return Err(
                    c.error_at(start, AsmErrorKind::Expected { what, found: other.to_owned() })
                );
            }
        }
        Ok(())
    }

    fn link(mut self) -> Result<Vec<Insn>, AsmError> {
        for j in std::mem::take(&mut self.jumps) {
            let error = |kind| AsmError { line: j.line, column: j.column, kind };
            let found = self
                .labels
                .get(&j.label)
                .copied()
                .or_else(|| (j.label == "exit").then(|| self.next_exit(j.at)).flatten());
            let Some(target) = found else {
                return Err(error(AsmErrorKind::UnknownLabel(j.label.clone())));
            };
            let distance = target as i64 - j.at as i64 - 1;
            let far = || {
                error(AsmErrorKind::OutOfRange {
                    what: "the jump's distance",
                    value: distance.to_string(),
                })
            };
            let Some(insn) = self.out.get_mut(j.at) else { continue };
            if j.wide {
                insn.imm = i32::try_from(distance).map_err(|_| far())?;
            } else {
                insn.off = i16::try_from(distance).map_err(|_| far())?;
            }
        }
        Ok(self.out)
    }

    fn next_exit(&self, from: usize) -> Option<usize> {
        let exits =
            || self.out.iter().enumerate().filter(|(_, i)| i.code == op::EXIT).map(|(n, _)| n);
        exits().find(|n| *n > from).or_else(|| exits().next_back())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(text: &str) -> Insn {
        let v = assemble(text).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(v.len(), 1, "{text}");
        v[0]
    }

    fn fail(text: &str) -> (usize, usize, String) {
        let e = assemble(text).expect_err(text);
        (e.line, e.column, e.kind.to_string())
    }

    #[test]
    fn instructions_have_the_bytes_clang_gives_them() {
        let b = |t: &str| one(t).to_bytes();
        assert_eq!(b("add32 %r1, 0xffffffff"), [0x04, 0x01, 0, 0, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(b("sdiv r3, r4"), [0x3f, 0x43, 1, 0, 0, 0, 0, 0]);
        assert_eq!(b("movsx1632 %r0, %r1"), [0xbc, 0x10, 16, 0, 0, 0, 0, 0]);
        assert_eq!(b("be16 %r7"), [0xdc, 0x07, 0, 0, 16, 0, 0, 0]);
        assert_eq!(b("bswap64 %r7"), [0xd7, 0x07, 0, 0, 64, 0, 0, 0]);
        assert_eq!(b("ldxsw %r0, [%r1-4]"), [0x81, 0x10, 0xfc, 0xff, 0, 0, 0, 0]);
        assert_eq!(b("stw [r10 + 0x10], -1"), [0x62, 0x0a, 0x10, 0, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(b("lock fetch add32 [%r10-8], %r1"), [0xc3, 0x1a, 0xf8, 0xff, 1, 0, 0, 0]);
        assert_eq!(b("lock cmpxchg [%r2], %r1"), [0xdb, 0x12, 0, 0, 0xf1, 0, 0, 0]);
        assert_eq!(b("jslt32 %r1, %r2, +5"), [0xce, 0x21, 5, 0, 0, 0, 0, 0]);
        assert_eq!(b("ja32 -3"), [0x06, 0, 0, 0, 0xfd, 0xff, 0xff, 0xff]);
        assert_eq!(b("call map_lookup_elem"), [0x85, 0, 0, 0, 1, 0, 0, 0]);
        assert_eq!(b("call %r2"), [0x8d, 2, 0, 0, 0, 0, 0, 0]);
        assert_eq!(b("may_goto +2"), [0xe5, 0, 2, 0, 0, 0, 0, 0]);
        assert_eq!(b("ldacqb %r0, [%r1+1]"), [0xd3, 0x10, 1, 0, 0, 1, 0, 0]);
    }

    #[test]
    fn labels_reach_forwards_backwards_and_the_next_exit() {
        let p = assemble("a: jeq %r0, 1, exit\nja a\ncall local f\nexit\nf: exit").unwrap();
        assert_eq!(
            p.iter().map(|i| (i.off, i.imm)).collect::<Vec<_>>(),
            [(2, 1), (-2, 0), (0, 1), (0, 0), (0, 0)]
        );
    }

    #[test]
    fn pseudo_immediates_take_two_slots() {
        assert_eq!(
            assemble("lddw r1, value 2+16").unwrap(),
            Insn::ld_imm64(1, op::PSEUDO_MAP_IDX_VALUE, 16 << 32 | 2)
        );
        let p = assemble("lddw r2, func f\nexit\nf: exit").unwrap();
        assert_eq!((p[0].src(), p[0].imm, p[1]), (op::PSEUDO_FUNC, 2, Insn::default()));
    }

    #[test]
    fn errors_name_the_place() {
        assert_eq!(fail("exit\n  frob %r1"), (2, 3, "unknown instruction `frob`".into()));
        assert_eq!(fail("mov %r11, 1"), (1, 5, "`r11` does not fit r0 to r10".into()));
        assert_eq!(fail("mov %r1 2"), (1, 9, "expected `,`, found `2`".into()));
        assert_eq!(fail("mov %r1,"), (1, 9, "expected a number, found the end of the line".into()));
        assert_eq!(
            fail("mov %r1, 0x100000000"),
            (1, 10, "`4294967296` does not fit a 32-bit immediate".into())
        );
        assert_eq!(
            fail("ldxw %r1, [%r2+40000]"),
            (1, 15, "`40000` does not fit a 16-bit offset".into())
        );
        assert_eq!(fail("ja nowhere"), (1, 4, "no line is labeled `nowhere`".into()));
        assert_eq!(fail("a:\na: exit"), (2, 1, "label `a` is defined twice".into()));
        assert_eq!(fail("call nothing_such"), (1, 6, "no helper is called `nothing_such`".into()));
        assert_eq!(fail("exit exit"), (1, 6, "expected the end of the line, found `exit`".into()));
        assert_eq!(fail("lock frob [%r1], %r2"), (1, 6, "unknown instruction `lock frob`".into()));
        assert_eq!(fail("be17 %r1"), (1, 1, "unknown instruction `be17`".into()));
        assert_eq!(fail(", exit"), (1, 1, "expected an instruction, found `,`".into()));
    }

    #[test]
    fn odd_text_is_refused_not_a_panic() {
        for t in [
            "é",
            "mov é",
            "lddw %r1, 0xé",
            "ldxw %r1, [%r2é",
            "[",
            ":",
            "%r1",
            "lddw %r1, 99999999999999999999999999999999999999999999",
        ] {
            assert!(assemble(t).is_err(), "{t}");
        }
    }
}
