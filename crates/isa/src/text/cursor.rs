//! Reading one line: blanks, words, registers, numbers, memory operands; and saying what is wrong
//! where.

use super::asm::{AsmError, AsmErrorKind};
use crate::op;

/// A source operand.
pub(super) enum Operand {
    Reg(u8),
    Imm(i32),
}

/// A place in one line.
pub(super) struct Cursor<'a> {
    pub text: &'a str,
    pub pos: usize,
    pub line: usize,
}

impl<'a> Cursor<'a> {
    fn rest(&self) -> &'a str {
        self.text.get(self.pos..).unwrap_or("")
    }

    pub fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    pub fn eat(&mut self, want: char) -> bool {
        let hit = self.peek() == Some(want);
        if hit {
            self.pos += want.len_utf8();
        }
        hit
    }

    pub fn blank(&mut self) {
        self.pos += self.rest().len() - self.rest().trim_start().len();
    }

    pub fn at_end(&self) -> bool {
        let r = self.rest();
        r.is_empty() || r.starts_with(['#', ';']) || r.starts_with("//")
    }

    /// Takes letters, digits, `_` and `.`; may be empty.
    pub fn word(&mut self) -> &'a str {
        self.blank();
        let r = self.rest();
        let len =
            r.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == '.')).unwrap_or(r.len());
        self.pos += len;
        r.get(..len).unwrap_or("")
    }

    pub fn label(&mut self) -> Result<String, AsmError> {
        self.blank();
        match self.word() {
            "" => Err(self.expected("a label or a signed distance")),
            w => Ok(w.to_owned()),
        }
    }

    pub fn comma(&mut self) -> Result<(), AsmError> {
        self.blank();
        if self.eat(',') { Ok(()) } else { Err(self.expected("`,`")) }
    }

    pub fn try_reg(&mut self) -> Result<Option<u8>, AsmError> {
        self.blank();
        let start = self.pos;
        let percent = self.eat('%');
        let word = self.word();
        let digits = word
            .strip_prefix('r')
            .filter(|d| !d.is_empty() && d.bytes().all(|b| b.is_ascii_digit()));
        match digits.map(|d| d.parse::<u8>().ok().filter(|n| usize::from(*n) < op::REGS)) {
            Some(Some(n)) => Ok(Some(n)),
            Some(None) => Err(self.error_at(
                start,
                AsmErrorKind::OutOfRange { what: "r0 to r10", value: word.to_owned() },
            )),
            None if percent => Err(self.error_at(
                start,
                AsmErrorKind::Expected { what: "a register", found: format!("%{word}") },
            )),
            None => {
                self.pos = start;
                Ok(None)
            }
        }
    }

    pub fn reg(&mut self) -> Result<u8, AsmError> {
        self.try_reg()?.ok_or_else(|| self.expected("a register"))
    }

    pub fn reg_or_imm(&mut self) -> Result<Operand, AsmError> {
        Ok(match self.try_reg()? {
            Some(r) => Operand::Reg(r),
            None => Operand::Imm(self.imm32()?),
        })
    }

    /// Reads a 32-bit immediate: signed, unsigned, or the 64-bit form of a sign-extended one.
    pub fn imm32(&mut self) -> Result<i32, AsmError> {
        self.blank();
        let start = self.pos;
        let n = self.number("a number")?;
        let small = (i128::from(i32::MIN)..=i128::from(u32::MAX)).contains(&n);
        let extended = (i128::from(i32::MIN as u64)..=i128::from(u64::MAX)).contains(&n);
        if small || extended {
            return Ok(n as i32);
        }
        Err(self.error_at(
            start,
            AsmErrorKind::OutOfRange { what: "a 32-bit immediate", value: n.to_string() },
        ))
    }

    pub fn number(&mut self, what: &'static str) -> Result<i128, AsmError> {
        self.blank();
        let start = self.pos;
        let negative = self.eat('-');
        if !negative {
            self.eat('+');
        }
        let word = self.word();
        let parsed = match word.strip_prefix("0x").or_else(|| word.strip_prefix("0X")) {
            Some(hex) => i128::from_str_radix(hex, 16),
            None => word.parse(),
        };
        match parsed {
            Ok(n) if !word.starts_with(['+', '-']) => Ok(if negative { -n } else { n }),
            _ => {
                self.pos = start;
                Err(self.expected(what))
            }
        }
    }

    pub fn in_range<T: TryFrom<i128>>(
        &self,
        n: i128,
        what: &'static str,
        at: usize,
    ) -> Result<T, AsmError> {
        T::try_from(n)
            .map_err(|_| self.error_at(at, AsmErrorKind::OutOfRange { what, value: n.to_string() }))
    }

    /// Reads `[%r1+8]`.
    pub fn mem(&mut self) -> Result<(u8, i16), AsmError> {
        self.blank();
        if !self.eat('[') {
            return Err(self.expected("`[`"));
        }
        let reg = self.reg()?;
        self.blank();
        let start = self.pos;
        let off = if matches!(self.peek(), Some('+' | '-')) {
            let n = self.number("an offset")?;
            self.in_range(n, "a 16-bit offset", start)?
        } else {
            0
        };
        self.blank();
        if self.eat(']') { Ok((reg, off)) } else { Err(self.expected("`]`")) }
    }

    pub fn expected(&self, what: &'static str) -> AsmError {
        let rest = self.rest().trim_start();
        let end = rest
            .find(|c: char| c.is_whitespace() || c == ',')
            .unwrap_or(rest.len())
            .max(usize::from(rest.starts_with(',')));
        let found = rest.get(..end).unwrap_or("").to_owned();
        self.error_at(
            self.pos + (self.rest().len() - rest.len()),
            AsmErrorKind::Expected { what, found },
        )
    }

    pub fn error_at(&self, pos: usize, kind: AsmErrorKind) -> AsmError {
        let column = self.text.get(..pos).map_or(pos, |s| s.chars().count()) + 1;
        AsmError { line: self.line, column, kind }
    }
}
