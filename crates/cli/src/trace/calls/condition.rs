//! Conditions of `--if`, as in C: read, and compiled into the program.
//!
//! A condition's variables are numbered in the order in which they come; each function has a table
//! that says how the program finds them ([`Var`](super::plan::Var)). So one piece of code serves all
//! functions. It takes the place of `wanted` in `bpf/calls.bpf.c`.

use skep::isa::{Insn, op};

use super::plan::VARS;

/// Where a frame says what types its variables have ([`Rank`]), and where numbers and texts of variables
/// are: `conditional`, `vars` and `texts` of `struct frame`.
pub const CONDITIONAL: i16 = NUMBERS - 4;
pub const NUMBERS: i16 = 1200;
pub const TEXTS: i16 = NUMBERS + 8 * VARS as i16;
/// Bytes of a text: `TEXT`. Its number is how many of them count.
pub const TEXT: u8 = 64;
/// Words and signs of a condition.
const LONGEST: usize = 1000;
/// Deepest nesting; the code keeps a word of its stack for each.
const DEEPEST: usize = 32;

/// Types of numbers that matter in arithmetic, as C converts the operands of an operator: a number
/// that is none of these is an `int`, and one operand of a type gives it to an `int`, a `long` to an
/// `unsigned`, and an `unsigned long` to all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rank {
    Unsigned,
    Long,
    UnsignedLong,
}

/// Bits of a frame's `conditional`: always set, then one for each variable that is an unsigned long, one
/// for each that is a long or one of those, and one for each that is an unsigned.
const ALWAYS: u32 = 1;
const UNSIGNED_LONG: u32 = 1;
const LONG: u32 = UNSIGNED_LONG + VARS as u32;
const UNSIGNED: u32 = LONG + VARS as u32;

impl Rank {
    /// The bits that say that the variable of a number has this type.
    pub fn of(self, variable: usize) -> u32 {
        match self {
            Self::UnsignedLong => 1 << UNSIGNED_LONG << variable | 1 << LONG << variable,
            Self::Long => 1 << LONG << variable,
            Self::Unsigned => 1 << UNSIGNED << variable,
        }
    }
}

/// What a variable begins with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Start {
    /// The name of an argument, `arg0` and so on, `ret`, or a constant of an enumeration.
    Name(String),
    /// An earlier variable, which is a pointer.
    Variable(usize),
}

/// What a variable is of its start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Path {
    /// The argument, the result or the constant itself.
    Whole,
    /// What it points to.
    Behind,
    /// A member of the structure it points to, with the members that it is in: `at.x`.
    Member(String),
    /// A member of the structure that it is.
    Inside(String),
}

/// A number or a text that a condition looks at.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Variable {
    pub start: Start,
    pub path: Path,
    /// It is compared with a text.
    pub text: bool,
}

/// A condition.
#[derive(Debug)]
pub struct Condition {
    pub text: String,
    root: Expr,
    pub variables: Vec<Variable>,
}

#[derive(Debug)]
enum Expr {
    /// As written: it may be unsigned.
    Number(i128),
    /// In hex, too large for an `int`: an `unsigned`.
    Unsigned(u32),
    Variable(usize),
    Not(Box<Expr>),
    Minus(Box<Expr>),
    Two(&'static str, Box<Expr>, Box<Expr>),
    /// A text variable is this, or begins so; or is not.
    Text {
        variable: usize,
        text: Text,
        equal: bool,
    },
}

/// A text that others are compared with.
#[derive(Clone, PartialEq, Debug)]
struct Text {
    bytes: Vec<u8>,
    /// They end with it.
    whole: bool,
}

#[derive(Clone, PartialEq, Debug)]
enum Token {
    Number(i128),
    Unsigned(u32),
    Name(String),
    Text(Text),
    Sign(&'static str),
}

/// Longer ones first.
const SIGNS: [&str; 20] = [
    "->", "==", "!=", "<=", ">=", "&&", "||", "::", "<", ">", "!", "&", "|", "+", "-", "*", "(",
    ")", "^", ".",
];
/// Operators by how tightly they bind, loosest first, as in C.
const LEVELS: [&[&str]; 9] = [
    &["||"],
    &["&&"],
    &["|"],
    &["^"],
    &["&"],
    &["==", "!="],
    &["<", "<=", ">", ">="],
    &["+", "-"],
    &["*"],
];

fn tokens(text: &str) -> Result<Vec<Token>, String> {
    let mut out = Vec::new();
    let mut rest = text.trim_start();
    while let Some(c) = rest.chars().next() {
        let word = |accept: fn(char) -> bool| rest.find(|c| !accept(c)).unwrap_or(rest.len());
        let len = if c.is_ascii_digit() {
            let len = word(|c| c.is_ascii_alphanumeric());
            let digits = rest.get(..len).unwrap_or_default();
            let number = match digits.strip_prefix("0x") {
                Some(hex) => u64::from_str_radix(hex, 16).ok(),
                None => digits.parse().ok(),
            };
            let number = number.ok_or_else(|| format!("`{digits}` is no number"))?;
            out.push(match u32::try_from(number) {
                Ok(n) if digits.starts_with("0x") && n > i32::MAX as u32 => Token::Unsigned(n),
                _ => Token::Number(number.into()),
            });
            len
        } else if c.is_ascii_alphabetic() || c == '_' {
            let len = word(|c| c.is_ascii_alphanumeric() || c == '_');
            out.push(match rest.get(..len).unwrap_or_default() {
                "NULL" | "false" => Token::Number(0),
                "true" => Token::Number(1),
                name => Token::Name(name.to_owned()),
            });
            len
        } else if c == '"' || c == '\'' {
            let (inside, len) = quoted(rest)?;
            out.push(match (c, &*inside) {
                // As in C, it has a sign.
                ('\'', [(one, _)]) => Token::Number(one.cast_signed().into()),
                // One of Rust has a number beyond those of bytes.
                ('\'', more) if let Some(one) = character(more) => Token::Number(one.into()),
                ('\'', _) => {
                    let text = rest.get(..len).unwrap_or_default();
                    return Err(format!("`{text}` is not one character"));
                }
                _ => Token::Text(text_of(&inside)?),
            });
            len
        } else {
            let sign = SIGNS.into_iter().find(|s| rest.starts_with(s));
            let sign = sign.ok_or_else(|| format!("`{c}` is not known here"))?;
            out.push(Token::Sign(sign));
            sign.len()
        };
        rest = rest.get(len..).unwrap_or_default().trim_start();
    }
    Ok(out)
}

/// The number of the one character that bytes are in UTF-8.
fn character(inside: &[(u8, bool)]) -> Option<u32> {
    let bytes: Vec<u8> = inside.iter().map(|(byte, _)| *byte).collect();
    let mut all = str::from_utf8(&bytes).ok()?.chars();
    all.next().filter(|c| all.next().is_none() && !c.is_ascii()).map(u32::from)
}

/// Reads what stands between quotes: its bytes, each with whether it stands for itself whatever it is,
/// and the length with both quotes.
fn quoted(text: &str) -> Result<(Vec<(u8, bool)>, usize), String> {
    let no_end = || format!("`{text}` has no end");
    let mut out = Vec::new();
    let (quote, mut rest) = text.as_bytes().split_first().ok_or_else(no_end)?;
    loop {
        if let Some(after) = rest.strip_prefix(&[*quote]) {
            return Ok((out, text.len() - after.len()));
        }
        let (byte, len, is_escaped) = match *rest {
            [] => return Err(no_end()),
            [b'\\', b'n', ..] => (b'\n', 2, true),
            [b'\\', b't', ..] => (b'\t', 2, true),
            [b'\\', b'r', ..] => (b'\r', 2, true),
            [b'\\', b'0', ..] => (0, 2, true),
            [b'\\', sign @ (b'"' | b'\'' | b'\\' | b'*'), ..] => (sign, 2, true),
            [b'\\', b'x', high, low, ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                let digit = |c: u8| char::from(c).to_digit(16).unwrap_or_default() as u8;
                (digit(high) << 4 | digit(low), 4, true)
            }
            [b'\\', ..] => {
                return Err(format!(
                    "`{text}`: `\\` stands in front of `\"`, `'`, `\\`, `*`, `n`, `t`, `r`, `0` or `x` and two digits"
                ));
            }
            [byte, ..] => (byte, 1, false),
        };
        out.push((byte, is_escaped));
        rest = rest.get(len..).unwrap_or_default();
    }
}

/// The text that stands between quotes.
fn text_of(inside: &[(u8, bool)]) -> Result<Text, String> {
    let star = &(b'*', false);
    let (inside, whole) = match inside.split_last() {
        Some((last, before)) if last == star => (before, false),
        _ => (inside, true),
    };
    if inside.contains(star) {
        return Err("`*` is only the last of a text; `\\*` is a star".to_owned());
    }
    if inside.iter().any(|(byte, _)| *byte == 0) {
        return Err("a text has no zero byte".to_owned());
    }
    let bytes: Vec<u8> = inside.iter().map(|(byte, _)| *byte).collect();
    // Of a longer one only so many bytes are known.
    if bytes.len() + usize::from(whole) > TEXT.into() {
        return Err(format!("texts have up to {} bytes", TEXT - 1));
    }
    Ok(Text { bytes, whole })
}

struct Parser<'t> {
    rest: &'t [Token],
    variables: Vec<Variable>,
}

impl Parser<'_> {
    fn sign(&mut self, wanted: &[&'static str]) -> Option<&'static str> {
        let [Token::Sign(sign), rest @ ..] = self.rest else { return None };
        let found = wanted.iter().find(|w| *w == sign)?;
        self.rest = rest;
        Some(found)
    }

    fn level(&mut self, level: usize, depth: usize) -> Result<Expr, String> {
        let Some(signs) = LEVELS.get(level) else { return self.unary(depth) };
        if depth > DEEPEST {
            return Err("it is nested too deep".to_owned());
        }
        let mut left = self.level(level + 1, depth)?;
        while let Some(sign) = self.sign(signs) {
            if let ("==" | "!=", Expr::Variable(variable), [Token::Text(text), rest @ ..]) =
                (sign, &left, self.rest)
            {
                self.rest = rest;
                left = self.text(*variable, text.clone(), sign == "==")?;
                continue;
            }
            let right = self.level(level + 1, depth + 1)?;
            left = Expr::Two(sign, Box::new(left), Box::new(right));
        }
        Ok(left)
    }

    fn text(&mut self, variable: usize, text: Text, equal: bool) -> Result<Expr, String> {
        if !self.variables.get(variable).is_some_and(|v| v.text) {
            return Err("a text is compared with an argument, without parentheses".to_owned());
        }
        Ok(Expr::Text { variable, text, equal })
    }

    fn unary(&mut self, depth: usize) -> Result<Expr, String> {
        if depth > DEEPEST {
            return Err("it is nested too deep".to_owned());
        }
        match self.sign(&["!", "-", "*", "("]) {
            Some("!") => Ok(Expr::Not(Box::new(self.unary(depth + 1)?))),
            Some("-") => Ok(match self.unary(depth + 1)? {
                Expr::Number(n) => Expr::Number(-n),
                inner => Expr::Minus(Box::new(inner)),
            }),
            Some("*") => {
                let [Token::Name(name), rest @ ..] = self.rest else {
                    return Err("`*` stands in front of an argument".to_owned());
                };
                self.rest = rest;
                self.variable(Start::Name(name.clone()), Path::Behind)
            }
            Some(_) => {
                let inside = self.level(0, depth + 1)?;
                self.sign(&[")"]).ok_or("a `)` is missing")?;
                Ok(inside)
            }
            None => self.primary(),
        }
    }

    fn primary(&mut self) -> Result<Expr, String> {
        let (first, rest) = self.rest.split_first().ok_or("it ends too early")?;
        self.rest = rest;
        match first {
            Token::Number(n) => Ok(Expr::Number(*n)),
            Token::Unsigned(n) => Ok(Expr::Unsigned(*n)),
            Token::Name(name) => self.members(name.clone()),
            Token::Text(_) => Err("a text stands behind `==` or `!=`".to_owned()),
            Token::Sign(sign) => Err(format!("`{sign}` is not expected there")),
        }
    }

    /// Reads what follows a name: `.member`, `->member.inner->member`.
    fn members(&mut self, mut name: String) -> Result<Expr, String> {
        // Constants are named as in C, without what they are in.
        while let [Token::Sign("::"), Token::Name(inner), rest @ ..] = self.rest {
            self.rest = rest;
            name.clone_from(inner);
        }
        let mut start = Start::Name(name);
        let mut path = Path::Whole;
        while let Some(sign) = self.sign(&["->", "."]) {
            let mut member = self.member(sign)?;
            while let Some(sign) = self.sign(&["."]) {
                member += ".";
                member += &self.member(sign)?;
            }
            if path != Path::Whole {
                start = Start::Variable(self.number(Variable { start, path, text: false })?);
            }
            path = if sign == "." { Path::Inside(member) } else { Path::Member(member) };
        }
        self.variable(start, path)
    }

    /// Reads a member's name; those of Rust's tuples are numbers.
    fn member(&mut self, sign: &str) -> Result<String, String> {
        let (name, rest) = match self.rest {
            [Token::Name(name), rest @ ..] => (name.clone(), rest),
            [Token::Number(number), rest @ ..] if sign == "." => (format!("__{number}"), rest),
            _ => return Err(format!("a member's name stands behind `{sign}`")),
        };
        self.rest = rest;
        Ok(name)
    }

    fn variable(&mut self, start: Start, path: Path) -> Result<Expr, String> {
        let text = matches!(self.rest, [Token::Sign("==" | "!="), Token::Text(_), ..]);
        self.number(Variable { start, path, text }).map(Expr::Variable)
    }

    fn number(&mut self, new: Variable) -> Result<usize, String> {
        if let Some(at) = self.variables.iter().position(|v| *v == new) {
            return Ok(at);
        }
        if self.variables.len() == VARS {
            return Err(format!(
                "it has more than {VARS} variables, with the pointers that it follows"
            ));
        }
        self.variables.push(new);
        Ok(self.variables.len() - 1)
    }
}

impl Condition {
    /// Reads a condition. Fails with what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let all = tokens(text)?;
        if all.len() > LONGEST {
            return Err(format!("it has more than {LONGEST} words and signs"));
        }
        let mut parser = Parser { rest: &all, variables: Vec::new() };
        let root = parser.level(0, 0)?;
        match parser.rest.first() {
            None => {}
            Some(Token::Sign(sign)) => return Err(format!("`{sign}` is not expected there")),
            Some(_) => return Err("an operator is missing".to_owned()),
        }
        if parser.variables.is_empty() {
            return Err("it names no argument".to_owned());
        }
        Ok(Self { text: text.to_owned(), root, variables: parser.variables })
    }

    /// Tells whether it looks at results.
    pub fn wants_result(&self) -> bool {
        let result = Start::Name("ret".to_owned());
        self.variables.iter().any(|v| v.start == result)
    }

    /// A variable as it is written.
    pub fn name_of(&self, variable: &Variable) -> String {
        let start = match &variable.start {
            Start::Name(name) => name.clone(),
            Start::Variable(at) => {
                self.variables.get(*at).map(|before| self.name_of(before)).unwrap_or_default()
            }
        };
        match &variable.path {
            Path::Whole => start,
            Path::Behind => format!("*{start}"),
            Path::Member(member) => format!("{start}->{member}"),
            Path::Inside(member) => format!("{start}.{member}"),
        }
    }

    /// Compiles it.
    pub fn compile(&self) -> Vec<Insn> {
        let mut code = Code { insns: Vec::new() };
        code.insns.push(Insn::mov64_reg(6, 1));
        code.expr(&self.root, 0);
        code.truth();
        code.insns.push(Insn::exit());
        code.insns
    }
}

/// What gives an expression its type: bits of a frame's `conditional`, of which one that is set is enough.
#[derive(Clone, Copy, Default)]
struct Types {
    unsigned_long: u32,
    long: u32,
    unsigned: u32,
}

impl Types {
    fn of(e: &Expr) -> Self {
        let always = |is_it| if is_it { ALWAYS } else { 0 };
        match e {
            Expr::Number(n) => Self {
                unsigned_long: always(i64::try_from(*n).is_err()),
                long: always(i32::try_from(*n).is_err()),
                unsigned: 0,
            },
            Expr::Unsigned(_) => Self { unsigned: ALWAYS, ..Self::default() },
            Expr::Variable(at) => Self {
                unsigned_long: 1 << UNSIGNED_LONG << at,
                long: 1 << LONG << at,
                unsigned: 1 << UNSIGNED << at,
            },
            Expr::Two("+" | "-" | "*" | "&" | "|" | "^", a, b) => Self::of(a).and(Self::of(b)),
            Expr::Minus(a) => Self::of(a),
            // Truth is an `int`.
            _ => Self::default(),
        }
    }

    /// What both operands are converted to.
    fn and(self, other: Self) -> Self {
        Self {
            unsigned_long: self.unsigned_long | other.unsigned_long,
            long: self.long | other.long,
            unsigned: self.unsigned | other.unsigned,
        }
    }
}

struct Code {
    insns: Vec<Insn>,
}

impl Code {
    fn push(&mut self, code: u8, dst: u8, src: u8, off: i16, imm: i32) {
        self.insns.push(Insn::new(code, dst, src, off, imm));
    }

    /// Makes r0 0 or 1.
    fn truth(&mut self) {
        self.push(op::JMP | op::JEQ, 0, 0, 1, 0);
        self.insns.push(Insn::mov64_imm(0, 1));
    }

    /// Lets the jump at `from` lead to what comes next.
    fn land(&mut self, from: usize) {
        let off = (self.insns.len() - from - 1) as i16;
        if let Some(insn) = self.insns.get_mut(from) {
            insn.off = off;
        }
    }

    /// Makes registers 32 bits wide if that is what their type says.
    fn convert(&mut self, types: Types, registers: &[u8]) {
        if types.unsigned == 0 || types.long == ALWAYS {
            return;
        }
        let mut others = Vec::new();
        let mut skip = |code: &mut Self, bits: u32, jump: u8| {
            code.push(op::LDX | op::MEM | op::W, 2, 6, CONDITIONAL, 0);
            code.push(op::ALU64 | op::AND, 2, 0, 0, bits.cast_signed());
            others.push(code.insns.len());
            code.push(op::JMP | jump, 2, 0, 0, 0);
        };
        if types.unsigned & ALWAYS == 0 {
            skip(self, types.unsigned, op::JEQ);
        }
        if types.long != 0 {
            skip(self, types.long, op::JNE);
        }
        for r in registers {
            self.push(op::ALU | op::MOV | op::X, *r, *r, 0, 0);
        }
        for from in others {
            self.land(from);
        }
    }

    /// Leaves the value in r0.
    fn expr(&mut self, e: &Expr, depth: i16) {
        match e {
            Expr::Number(n) => match i32::try_from(*n) {
                Ok(n) => self.insns.push(Insn::mov64_imm(0, n)),
                Err(_) => self.insns.extend(Insn::ld_imm64(0, 0, *n as u64)),
            },
            Expr::Unsigned(n) => self.insns.extend(Insn::ld_imm64(0, 0, u64::from(*n))),
            Expr::Variable(at) => {
                self.push(op::LDX | op::MEM | op::DW, 0, 6, NUMBERS + 8 * *at as i16, 0)
            }
            Expr::Not(inner) => {
                self.expr(inner, depth);
                self.truth();
                self.push(op::ALU64 | op::XOR, 0, 0, 0, 1);
            }
            Expr::Minus(inner) => {
                self.expr(inner, depth);
                self.push(op::ALU64 | op::NEG, 0, 0, 0, 0);
                self.convert(Types::of(e), &[0]);
            }
            Expr::Two(sign @ ("&&" | "||"), a, b) => {
                self.expr(a, depth);
                let from = self.insns.len();
                let jump = if *sign == "&&" { op::JEQ } else { op::JNE };
                self.push(op::JMP | jump, 0, 0, 0, 0);
                self.expr(b, depth);
                self.land(from);
                self.truth();
            }
            Expr::Two(sign, a, b) => {
                self.expr(a, depth);
                let kept = -8 * (depth + 1);
                self.push(op::STX | op::MEM | op::DW, 10, 0, kept, 0);
                self.expr(b, depth + 1);
                self.insns.push(Insn::mov64_reg(1, 0));
                self.push(op::LDX | op::MEM | op::DW, 0, 10, kept, 0);
                let arithmetic = match *sign {
                    "+" => Some(op::ADD),
                    "-" => Some(op::SUB),
                    "*" => Some(op::MUL),
                    "&" => Some(op::AND),
                    "|" => Some(op::OR),
                    "^" => Some(op::XOR),
                    _ => None,
                };
                if let Some(code) = arithmetic {
                    self.push(op::ALU64 | code | op::X, 0, 1, 0, 0);
                    self.convert(Types::of(e), &[0]);
                    return;
                }
                let types = Types::of(a).and(Types::of(b));
                self.convert(types, &[0, 1]);
                let jump = match *sign {
                    "==" => op::JEQ,
                    "!=" => op::JNE,
                    "<" => op::JSLT,
                    "<=" => op::JSLE,
                    ">" => op::JSGT,
                    _ => op::JSGE,
                };
                let wide = types.unsigned_long;
                if wide != 0 && !matches!(jump, op::JEQ | op::JNE) {
                    // Unsigned ones are in the order of signed ones with the other top bit.
                    self.push(op::LDX | op::MEM | op::W, 2, 6, CONDITIONAL, 0);
                    self.push(op::ALU64 | op::AND, 2, 0, 0, wide.cast_signed());
                    self.push(op::JMP | op::JEQ, 2, 0, 2, 0);
                    self.insns.extend(Insn::ld_imm64(2, 0, 1 << 63));
                    self.push(op::ALU64 | op::XOR | op::X, 0, 2, 0, 0);
                    self.push(op::ALU64 | op::XOR | op::X, 1, 2, 0, 0);
                }
                self.insns.push(Insn::mov64_imm(2, 1));
                self.push(op::JMP | jump | op::X, 0, 1, 1, 0);
                self.insns.push(Insn::mov64_imm(2, 0));
                self.insns.push(Insn::mov64_reg(0, 2));
            }
            Expr::Text { variable, text, equal } => {
                let start = TEXTS + i16::from(TEXT) * *variable as i16;
                let mut different = Vec::new();
                if text.whole || !text.bytes.is_empty() {
                    let jump = if text.whole { op::JNE } else { op::JLT };
                    let number = NUMBERS + 8 * *variable as i16;
                    self.push(op::LDX | op::MEM | op::DW, 1, 6, number, 0);
                    different.push(self.insns.len());
                    self.push(op::JMP | jump, 1, 0, 0, text.bytes.len() as i32);
                }
                for (at, word) in text.bytes.chunks(8).enumerate() {
                    let mut bytes = [0; 8];
                    bytes.iter_mut().zip(word).for_each(|(to, from)| *to = *from);
                    self.push(op::LDX | op::MEM | op::DW, 1, 6, start + 8 * at as i16, 0);
                    if word.len() < 8 {
                        let mask = (1_u64 << (8 * word.len())) - 1;
                        self.insns.extend(Insn::ld_imm64(2, 0, mask));
                        self.push(op::ALU64 | op::AND | op::X, 1, 2, 0, 0);
                    }
                    self.insns.extend(Insn::ld_imm64(2, 0, u64::from_le_bytes(bytes)));
                    different.push(self.insns.len());
                    self.push(op::JMP | op::JNE | op::X, 1, 2, 0, 0);
                }
                self.insns.push(Insn::mov64_imm(0, i32::from(*equal)));
                // Every text begins with nothing: no jump would lead to what follows.
                if different.is_empty() {
                    return;
                }
                let end = self.insns.len();
                self.push(op::JMP | op::JA, 0, 0, 0, 0);
                for from in different {
                    self.land(from);
                }
                self.insns.push(Insn::mov64_imm(0, i32::from(!*equal)));
                self.land(end);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_condition_is_told_so() {
        for wrong in [
            "",
            "size >",
            "(size > 1",
            "size 1",
            "1 > 0",
            "size > 0x",
            "s == \"a",
            "\"a\" == s",
            "(s) == \"a\"",
            "s == \"a*b\"",
            "p->",
            "p. > 1",
            "p.->x > 1",
            "size = 1",
            "*1",
            "'ab' == c",
            "a ; b",
            "a && b && c && d && e && f && g && h && i",
            "a->b->c->d->e->f->g->h->i->j == 1",
            "a:: == 1",
            "::a == 1",
            "a == 0x10000000000000000",
            "a == 18446744073709551616",
            "s == \"a\\qb\"",
            "s == \"a\\x5\"",
            "s == \"a\\0b\"",
            "s == \"a\\\"",
            "c == '\\'",
            "c == ''",
            "c == '\\x41\\x42'",
        ] {
            assert!(Condition::parse(wrong).is_err(), "{wrong}");
        }
        let deep = format!("{}a{}", "(".repeat(200), ")".repeat(200));
        assert!(Condition::parse(&deep).is_err());
        let long = vec!["a"; 100_000].join("+");
        assert!(Condition::parse(&long).is_err());
    }

    #[test]
    fn variables_are_found_once() -> Result<(), String> {
        let c = Condition::parse("a > 1 && (a < 9 || ret == NULL) && f->at.x & 4 && s != \"x*\"")?;
        let names: Vec<_> = c.variables.iter().map(|v| (c.name_of(v), v.text)).collect();
        let wanted = [("a", false), ("ret", false), ("f->at.x", false), ("s", true)];
        assert_eq!(names, wanted.map(|(name, text)| (name.to_owned(), text)));
        assert_eq!(c.variables[2].path, Path::Member("at.x".to_owned()));
        assert!(c.wants_result());
        Ok(())
    }

    #[test]
    fn a_pointer_on_the_way_is_a_variable_too() -> Result<(), String> {
        let c = Condition::parse("n->next->at.x > 1 && n->next->name == \"a\" && c == E::RED")?;
        let names: Vec<_> = c.variables.iter().map(|v| c.name_of(v)).collect();
        assert_eq!(names, ["n->next", "n->next->at.x", "n->next->name", "c", "RED"]);
        assert_eq!(c.variables[2].start, Start::Variable(0));
        assert!(c.variables[2].text && !c.variables[0].text && !c.wants_result());
        assert!(Condition::parse("ret->next->id == 1")?.wants_result());
        Ok(())
    }

    #[test]
    fn members_are_of_what_is_there_or_of_what_is_pointed_to() -> Result<(), String> {
        let c = Condition::parse("p.at.x > 1 && p.next->at.x == p.0.1 && ret.name == \"a\"")?;
        let names: Vec<_> = c.variables.iter().map(|v| c.name_of(v)).collect();
        assert_eq!(names, ["p.at.x", "p.next", "p.next->at.x", "p.__0.__1", "ret.name"]);
        assert_eq!(c.variables[2].start, Start::Variable(1));
        assert!(c.variables[4].text && c.wants_result());
        Ok(())
    }

    /// What the code of a condition says of numbers, run by the interpreter, is what C says.
    #[test]
    fn code_means_what_c_means() -> Result<(), String> {
        let numbers = [-5_i64, 0, 1, 7, 4096, i64::MIN, i64::MAX];
        type Meant = fn(i64, i64) -> bool;
        let conditions: [(&str, Meant); 14] = [
            ("a > b", |a, b| a > b),
            ("a >= b && a != 7", |a, b| a >= b && a != 7),
            ("a < b || !b", |a, b| a < b || b == 0),
            ("a <= b", |a, b| a <= b),
            ("a + b * 2 == 15", |a, b| a.wrapping_add(b.wrapping_mul(2)) == 15),
            ("(a & 1) == (b & 1)", |a, b| a & 1 == b & 1),
            ("a - -b > 0", |a, b| a.wrapping_sub(b.wrapping_neg()) > 0),
            ("a ^ b", |a, b| a ^ b != 0),
            ("a | b", |a, b| a | b != 0),
            ("!(a == b)", |a, b| a != b),
            ("a == 0x1000 || b == 'a' - 90", |a, b| a == 4096 || b == 7),
            ("a && b && a > b", |a, b| a != 0 && b != 0 && a > b),
            ("a > 1 == b > 1", |a, b| (a > 1) == (b > 1)),
            ("a == 9223372036854775807 || b < -4", |a, b| a == i64::MAX || b < -4),
        ];
        for (text, meant) in conditions {
            let condition = Condition::parse(text)?;
            let names = condition.variables.iter().map(|v| condition.name_of(v));
            let order: Vec<String> = names.collect();
            let code = condition.compile();
            for a in numbers {
                for b in numbers {
                    let frame = |at: usize| if order[at] == "a" { a } else { b };
                    assert_eq!(
                        run(&code, 0, &frame, &[]),
                        u64::from(meant(a, b)),
                        "{text}: {a} {b}"
                    );
                }
            }
        }
        let unsigned: [(&str, Meant); 8] = [
            ("a < 0xffffffffffffffff", |a, _| a != -1),
            ("a < 18446744073709551615 && b < 2", |a, b| a != -1 && b < 2),
            ("0x8000000000000000 > a", |a, _| a >= 0),
            ("a >= 0x8000000000000000 || b > 0x7fffffffffffffff", |a, _| a < 0),
            ("a < b + 0xffffffffffffffff", |a, b| (a as u64) < (b as u64).wrapping_sub(1)),
            ("a == 0xfffffffffffffffb", |a, _| a == -5),
            ("a > -9223372036854775808", |a, _| a > i64::MIN),
            ("a < -1 || b == '\\0' + 7", |a, b| a < -1 || b == 7),
        ];
        for (text, meant) in unsigned {
            let condition = Condition::parse(text)?;
            let code = condition.compile();
            let first = condition.name_of(&condition.variables[0]);
            for a in numbers {
                for b in numbers {
                    let frame = |at: usize| if (at == 0) == (first == "a") { a } else { b };
                    assert_eq!(
                        run(&code, 0, &frame, &[]),
                        u64::from(meant(a, b)),
                        "{text}: {a} {b}"
                    );
                }
            }
        }
        // As in C, -1 is a large number where one of them is unsigned: the frame says which are.
        let code = Condition::parse("a + 1 > b + 1 && a < 0 == 0")?.compile();
        for (wide, meant) in [(0, 0), (1, 0), (0b10, 1), (0b100, 0), (0b110, 1)] {
            let ran = run(&code, wide, &|at| [-2, 5][at], &[]);
            assert_eq!(ran, meant, "{wide}");
        }
        Ok(())
    }

    #[test]
    fn texts_are_compared_whole_or_by_their_beginning() -> Result<(), String> {
        let frame = |text: &str| {
            // As the program reads it.
            let mut bytes = text.as_bytes().to_vec();
            bytes.push(0);
            bytes.resize(bytes.len().max(TEXT.into()), 0xee);
            bytes.truncate(TEXT.into());
            bytes
        };
        let long = |len| "q".repeat(len);
        let (whole, begins) = (format!("s == \"{}\"", long(63)), format!("s == \"{}*\"", long(63)));
        let other = whole.replace("==", "!=");
        assert!(Condition::parse(&whole.replace("qq\"", "qqq\"")).is_err());
        for (text, of, meant) in [
            ("s == \"/etc/passwd\"", "/etc/passwd", true),
            ("s == \"/etc/passwd\"", "/etc/passwds", false),
            ("s == \"/etc/passwd\"", "/etc/passw", false),
            ("s == \"/etc/*\"", "/etc/passwd", true),
            ("s == \"/etc/*\"", "/etc", false),
            ("s != \"/etc/*\"", "/usr", true),
            ("s == \"\"", "", true),
            ("s == \"\"", "a", false),
            ("s == \"*\"", "anything", true),
            ("s == \"a\" || s == \"12345678\"", "12345678", true),
            ("!(s == \"a\")", "b", true),
            ("s != \"*\"", "anything", false),
            ("s != \"*\" || s == \"a\" && a == 0", "a", true),
            ("s == \"*\" && a == 0", "", true),
            ("s == \"*\" && a == 1", "", false),
            (&whole, &long(63), true),
            (&whole, &long(62), false),
            (&whole, &long(64), false),
            (&whole, &long(199), false),
            (&other, &long(63), false),
            (&other, &long(64), true),
            (&begins, &long(62), false),
            (&begins, &long(63), true),
            (&begins, &long(199), true),
            ("s == \"quo\\\"te\"", "quo\"te", true),
            ("s == \"back\\\\slash\"", "back\\slash", true),
            ("s == \"\\t\\n\\r\\x1b\\'\"", "\t\n\r\x1b'", true),
            ("s == \"a\\*b\\x2a\"", "a*b*", true),
            ("s == \"a\\*\"", "ab", false),
            ("s == \"a\\**\"", "a*b", true),
            ("s == \"\\xc3\\xA9*\"", "été", true),
            ("s == \"été\"", "été", true),
        ] {
            let code = Condition::parse(text)?.compile();
            // The verifier takes none with instructions that no way leads to.
            let jumps_over = |pair: &[Insn]| pair[0].code == op::JMP | op::JA;
            let landings = |code: &[Insn]| {
                let to = |(at, i): (usize, &Insn)| {
                    (i.class() == op::JMP).then(|| at + 1 + i.off as usize)
                };
                code.iter().enumerate().filter_map(to).collect::<Vec<_>>()
            };
            let reached = landings(&code);
            for (at, pair) in code.windows(2).enumerate().filter(|(_, pair)| jumps_over(pair)) {
                assert!(reached.contains(&(at + 1)), "{text}: {pair:?}");
            }
            let number = |at| if at == 0 { of.len().min(TEXT.into()) as i64 } else { 0 };
            assert_eq!(run(&code, 0, &number, &frame(of)), u64::from(meant), "{text}: {of}");
        }
        for (text, c) in
            [("c == '\\n'", 10), ("c == '\\''", 39), ("c == '\\xff'", -1), ("c == '*'", 42)]
        {
            let code = Condition::parse(text)?.compile();
            assert_eq!(run(&code, 0, &|_| c, &[]), 1, "{text}");
        }
        Ok(())
    }

    /// A small machine for what conditions are compiled to.
    fn run(code: &[Insn], wide: u64, number: &dyn Fn(usize) -> i64, texts: &[u8]) -> u64 {
        let (mut r, mut stack, mut at) = ([0_u64; 11], [0_u64; 64], 0);
        loop {
            let i = code[at];
            let src =
                if i.code & op::X != 0 { r[i.src() as usize] } else { i64::from(i.imm) as u64 };
            let d = i.dst() as usize;
            at += 1;
            match (i.class(), i.code & 0xf0) {
                (op::JMP, op::JA) => at += i.off as usize,
                (op::JMP, 0x90) => return r[0],
                (op::JMP, test) => {
                    let (a, b) = (r[d], src);
                    let (x, y) = (a as i64, b as i64);
                    let jumps = match test {
                        op::JEQ => a == b,
                        op::JNE => a != b,
                        op::JGT => a > b,
                        op::JGE => a >= b,
                        op::JLT => a < b,
                        op::JLE => a <= b,
                        op::JSGT => x > y,
                        op::JSGE => x >= y,
                        op::JSLT => x < y,
                        op::JSLE => x <= y,
                        _ => panic!("{i:?}"),
                    };
                    at += if jumps { i.off as usize } else { 0 };
                }
                (op::ALU64, what) => {
                    r[d] = match what {
                        op::ADD => r[d].wrapping_add(src),
                        op::SUB => r[d].wrapping_sub(src),
                        op::MUL => r[d].wrapping_mul(src),
                        op::AND => r[d] & src,
                        op::OR => r[d] | src,
                        op::XOR => r[d] ^ src,
                        op::NEG => r[d].wrapping_neg(),
                        op::MOV => src,
                        _ => panic!("{i:?}"),
                    }
                }
                (op::ALU, op::MOV) => r[d] = src & u64::from(u32::MAX),
                (op::STX, _) => stack[(-i.off / 8) as usize] = r[i.src() as usize],
                (op::LDX, _) if i.src() == 10 => r[d] = stack[(-i.off / 8) as usize],
                (op::LDX, _) if i.off >= TEXTS => {
                    let from = (i.off - TEXTS) as usize % usize::from(TEXT);
                    r[d] = u64::from_le_bytes(texts[from..from + 8].try_into().unwrap());
                }
                (op::LDX, _) if i.off == CONDITIONAL => r[d] = wide | 1,
                (op::LDX, _) => r[d] = number((i.off - NUMBERS) as usize / 8) as u64,
                (op::LD, _) => {
                    r[d] = u64::from(i.imm as u32) | u64::from(code[at].imm as u32) << 32;
                    at += 1;
                }
                _ => panic!("{i:?}"),
            }
        }
    }
}
