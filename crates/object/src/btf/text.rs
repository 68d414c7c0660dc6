//! Text to values: what people type on a command line, in the manner of C initializers.
//!
//! The type says how text is read, so `7` is a number for an `int`, a text for `char[8]` and 7.0
//! for a `double`. What [`Value`]'s `Display` writes is read back as the same value.

use super::kind::{Array, Composite, Kind, TypeId};
use super::value::{Member, Value, ValueError};
use super::{Btf, MAX_DEPTH};

/// Longest text that is read.
const MAX_TEXT: usize = 1 << 20;

impl Btf {
    /// Reads text as a value of the type: `-5`, `0x1f`, `'c'`, `true`, `BLUE`, `hello` or `"hello"`
    /// for an array of characters, `{1, 2}` or `[1, 2]`, `{ .count = 3, .comm = "cat" }`, bytes
    /// as `0x01ff…` where nothing else fits.
    ///
    /// Whether numbers fit is for [`encode`](Self::encode) to say; a `bool` may be any byte, since that is
    /// what may be found in a map.
    ///
    /// # Errors
    /// When the text is no such value, or the type is damaged.
    pub fn read_text(&self, type_id: TypeId, text: &str) -> Result<Value, ValueError> {
        self.read(type_id, text, false)
    }

    /// Reads text as [`read_text`](Self::read_text) does, but a `bool` is `true`, `false`, 1 or 0, as the
    /// compiler takes for granted.
    ///
    /// # Errors
    /// As `read_text`, and for other numbers.
    pub(crate) fn read_initializer(
        &self,
        type_id: TypeId,
        text: &str,
    ) -> Result<Value, ValueError> {
        self.read(type_id, text, true)
    }

    fn read(&self, type_id: TypeId, text: &str, strict: bool) -> Result<Value, ValueError> {
        let (id, t) = self.resolve(type_id)?;
        if text.len() > MAX_TEXT {
            return Err(ValueError::TooLarge { ty: self.describe(id) });
        }
        // A text needs no quotes where it is all there is.
        if let Kind::Array(a) = &t.kind
            && self.is_text(a)
            && !text.trim_start().starts_with(['"', '{', '['])
        {
            return Ok(Value::Text(text.to_owned()));
        }
        let mut reader = Reader { btf: self, text, rest: text, strict };
        let value = reader.any(type_id, 0)?;
        reader.skip_space();
        if reader.rest.is_empty() { Ok(value) } else { Err(reader.error(type_id)) }
    }

    pub(super) fn is_text(&self, a: &Array) -> bool {
        matches!(self.resolve(a.elem), Ok((id, t)) if matches!(&t.kind, Kind::Int(i) if i.size == 1 && (i.char || self.name(id) == "char")))
    }
}

struct Reader<'a> {
    btf: &'a Btf,
    text: &'a str,
    rest: &'a str,
    /// Whether a `bool` must be 0 or 1.
    strict: bool,
}

impl<'a> Reader<'a> {
    fn error(&self, id: TypeId) -> ValueError {
        let mut text: String = self.text.chars().take(40).collect();
        if text.len() < self.text.len() {
            text.push('…');
        }
        ValueError::Text { at: self.text.len() - self.rest.len(), text, ty: self.btf.describe(id) }
    }

    fn skip_space(&mut self) {
        self.rest = self.rest.trim_start();
    }

    /// Takes a mark, if it comes next.
    fn take(&mut self, mark: char) -> bool {
        self.skip_space();
        let found = self.rest.strip_prefix(mark);
        self.rest = found.unwrap_or(self.rest);
        found.is_some()
    }

    fn any(&mut self, id: TypeId, depth: usize) -> Result<Value, ValueError> {
        if depth >= MAX_DEPTH {
            return Err(ValueError::TooLarge { ty: self.btf.describe(id) });
        }
        self.skip_space();
        let (at, t) = self.btf.resolve(id)?;
        match &t.kind {
            Kind::Array(_) if self.rest.starts_with('"') => self.quoted(id).map(Value::Text),
            Kind::Array(a) => self.array(id, a, depth),
            Kind::Struct(c) | Kind::Union(c) => self.members(id, c, depth),
            Kind::Var(v) => self.any(v.type_id, depth + 1),
            Kind::Int(_) | Kind::Ptr(_) | Kind::Enum(_) | Kind::Enum64(_) | Kind::Float(_) => {
                self.scalar(id, at, &t.kind)
            }
            _ => Err(self.error(id)),
        }
    }

    fn scalar(&mut self, id: TypeId, resolved: TypeId, kind: &Kind) -> Result<Value, ValueError> {
        if let Some(rest) = self.rest.strip_prefix('\'') {
            let (c, rest) = unescape(rest).ok_or_else(|| self.error(id))?;
            let rest = rest.strip_prefix('\'').ok_or_else(|| self.error(id))?;
            self.rest = rest;
            return u8::try_from(c).map(Value::Char).map_err(|_| self.error(id));
        }
        let end = self
            .rest
            .find(|c: char| matches!(c, ',' | '}' | ']' | ';') || c.is_whitespace())
            .unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at_checked(end).unwrap_or((self.rest, ""));
        let is_bool = matches!(kind, Kind::Int(i) if i.bool);
        let value = match kind {
            Kind::Float(_) => word.parse().ok().map(Value::Float),
            Kind::Enum(_) | Kind::Enum64(_) if is_name(word) => Some(Value::Text(word.to_owned())),
            _ if is_bool && matches!(word, "true" | "false") => Some(Value::Bool(word == "true")),
            Kind::Int(i)
                if i.size == 1
                    && !is_bool
                    && word.len() == 1
                    && !word.starts_with(|c: char| c.is_ascii_digit()) =>
            {
                (i.char || self.btf.name(resolved) == "char")
                    .then(|| word.bytes().next().map(Value::Char))
                    .flatten()
            }
            _ => number(word),
        };
        let value = value.ok_or_else(|| self.error(id))?;
        if self.strict && is_bool && value.as_i128().is_none_or(|n| !matches!(n, 0 | 1)) {
            return Err(ValueError::Range {
                path: "value".to_owned(),
                value: value.as_i128().unwrap_or(i128::MAX),
                ty: self.btf.describe(id),
            });
        }
        self.rest = rest;
        Ok(value)
    }

    /// Reads a text in quotes.
    fn quoted(&mut self, id: TypeId) -> Result<String, ValueError> {
        let mut out = String::new();
        let mut rest = self.rest.strip_prefix('"').ok_or_else(|| self.error(id))?;
        loop {
            if let Some(after) = rest.strip_prefix('"') {
                self.rest = after;
                return Ok(out);
            }
            let (c, after) = unescape(rest).ok_or_else(|| self.error(id))?;
            out.push(c);
            rest = after;
        }
    }

    /// Reads the opening mark of a list and returns the closing one.
    fn open(&mut self, id: TypeId) -> Result<char, ValueError> {
        match (self.take('{'), self.rest) {
            (true, _) => Ok('}'),
            (false, _) if self.take('[') => Ok(']'),
            _ => Err(self.error(id)),
        }
    }

    fn array(&mut self, id: TypeId, a: &Array, depth: usize) -> Result<Value, ValueError> {
        let close = self.open(id)?;
        let mut out = Vec::new();
        while !self.take(close) {
            out.push(self.any(a.elem, depth + 1)?);
            if out.len() > a.len as usize || !self.take(',') && !self.rest.starts_with(close) {
                return Err(self.error(id));
            }
        }
        Ok(Value::Array(out))
    }

    fn members(&mut self, id: TypeId, c: &'a Composite, depth: usize) -> Result<Value, ValueError> {
        if !self.take('{') {
            return Err(self.error(id));
        }
        let mut out: Vec<Member> = Vec::new();
        let mut next = 0;
        while !self.take('}') {
            let (name, type_id) = match self.member_name() {
                Some(name) => {
                    let missing = || ValueError::NoMember {
                        path: "value".to_owned(),
                        ty: self.btf.describe(id),
                        member: name.clone(),
                    };
                    let (at, type_id) = self.find(c, &name, depth)?.ok_or_else(missing)?;
                    next = at + 1;
                    (name, type_id)
                }
                None => {
                    let m = c.members.get(next).ok_or_else(|| self.error(id))?;
                    next += 1;
                    (self.btf.string(m.name_off).to_owned(), m.type_id)
                }
            };
            let value = self.any(type_id, depth + 1)?;
            out.push(Member { name, value });
            if !self.take(',') && !self.rest.starts_with('}') {
                return Err(self.error(id));
            }
        }
        Ok(Value::Struct(out))
    }

    /// Takes `.name =`, `name:` or `"name":`.
    fn member_name(&mut self) -> Option<String> {
        self.skip_space();
        let (rest, mark) = match self.rest.strip_prefix('.') {
            Some(rest) => (rest, '='),
            None => (self.rest.trim_start_matches('"'), ':'),
        };
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_')?;
        let (name, rest) = rest.split_at_checked(end)?;
        let rest = if mark == ':' { rest.strip_prefix('"').unwrap_or(rest) } else { rest };
        let rest = rest.trim_start().strip_prefix(mark)?;
        if name.is_empty() {
            return None;
        }
        self.rest = rest;
        Some(name.to_owned())
    }

    /// Finds a member, also inside anonymous members: its place among the outer members, and its
    /// type.
    fn find(
        &self,
        c: &Composite,
        name: &str,
        depth: usize,
    ) -> Result<Option<(usize, TypeId)>, ValueError> {
        if depth >= MAX_DEPTH {
            return Ok(None);
        }
        for (i, m) in c.members.iter().enumerate() {
            match self.btf.string(m.name_off) {
                n if n == name => return Ok(Some((i, m.type_id))),
                "" => {
                    if let Kind::Struct(inner) | Kind::Union(inner) =
                        &self.btf.resolve(m.type_id)?.1.kind
                        && let Some((_, type_id)) = self.find(inner, name, depth + 1)?
                    {
                        return Ok(Some((i, type_id)));
                    }
                }
                _ => {}
            }
        }
        Ok(None)
    }
}

fn is_name(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Reads a number as C writes it: decimal, `0x…`, `0…`, `0b…`.
fn number(word: &str) -> Option<Value> {
    let (negative, digits) = match word.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, word.strip_prefix('+').unwrap_or(word)),
    };
    let lower = digits.to_ascii_lowercase();
    let (digits, radix) = if let Some(hex) = lower.strip_prefix("0x") {
        (hex, 16)
    } else if let Some(binary) = lower.strip_prefix("0b") {
        (binary, 2)
    } else if lower.len() > 1 && lower.starts_with('0') {
        (&lower[1..], 8)
    } else {
        (lower.as_str(), 10)
    };
    if !digits.starts_with(|c: char| c.is_ascii_hexdigit()) {
        return None;
    }
    let n = u128::from_str_radix(digits, radix).ok()?;
    if negative { 0i128.checked_sub_unsigned(n).map(Value::Int) } else { Some(Value::Uint(n)) }
}

/// Takes one character of a quoted text apart from the rest.
fn unescape(text: &str) -> Option<(char, &str)> {
    let mut chars = text.chars();
    let first = chars.next()?;
    if first != '\\' {
        return Some((first, chars.as_str()));
    }
    let c = match chars.next()? {
        'n' => '\n',
        't' => '\t',
        'r' => '\r',
        '0' => '\0',
        'x' => {
            let (digits, rest) = chars.as_str().split_at_checked(2)?;
            return Some((char::from(u8::from_str_radix(digits, 16).ok()?), rest));
        }
        'u' => {
            let (digits, rest) = chars.as_str().strip_prefix('{')?.split_once('}')?;
            return Some((char::from_u32(u32::from_str_radix(digits, 16).ok()?)?, rest));
        }
        other @ ('\\' | '\'' | '"') => other,
        _ => return None,
    };
    Some((c, chars.as_str()))
}
