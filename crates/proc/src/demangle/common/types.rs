//! Types and template arguments.

use super::words::builtin;
use super::{Form, Piece, Reader};

impl Reader<'_> {
    /// `<template-param>`.
    pub(super) fn parameter(&mut self) -> Option<Piece> {
        self.skip(1);
        let index = self.index(10)?;
        if self.generic {
            let start = self.here();
            self.write(&format!("auto:{}", index + 1));
            return Some(self.plain(start));
        }
        let argument = *self.arguments.get(index)?;
        if argument.form != Form::Pack {
            return self.again(argument);
        }
        let at = self.element?;
        let element = self.packs.get(argument.start..argument.middle)?.get(at)?;
        self.again(*element)
    }

    pub(super) fn template_arguments(&mut self, outer: bool) -> Option<()> {
        self.skip(1);
        self.deeper()?;
        self.write(if self.out.last() == Some(&b'<') { " <" } else { "<" });
        if outer {
            self.arguments.clear();
        }
        let (mut first, mut ends_with_nothing) = (true, false);
        while !self.take(b'E') {
            let before = self.here();
            let argument = if self.peek() == b'J' {
                self.skip(1);
                let mut elements = Vec::new();
                while !self.take(b'E') {
                    elements.push(self.separated(&mut first, Self::argument)?);
                }
                // Those of packs inside have been added by now.
                let from = self.packs.len();
                self.packs.extend(elements);
                let middle = self.packs.len();
                Piece { start: from, middle, form: Form::Pack, ..self.plain(from) }
            } else {
                self.separated(&mut first, Self::argument)?
            };
            if outer {
                self.arguments.push(argument);
            }
            ends_with_nothing = self.here() == before;
        }
        // binutils takes the comma before an empty pack back, and forgets what stood before that.
        if self.out.last() == Some(&b'>') && !ends_with_nothing {
            self.write(" ");
        }
        self.write(">");
        self.depth -= 1;
        Some(())
    }

    /// `<template-arg>`, but packs.
    fn argument(&mut self) -> Option<Piece> {
        match self.peek() {
            b'L' => self.literal(),
            b'X' if self.second() == b'T' => {
                self.skip(1);
                let piece = self.parameter()?;
                self.take(b'E').then_some(piece)
            }
            b'X' | b'J' => None,
            _ => self.ty(),
        }
    }

    /// `<expr-primary>` of integers.
    fn literal(&mut self) -> Option<Piece> {
        self.skip(1);
        let start = self.here();
        let kind = self.peek();
        let suffix = match kind {
            b'j' => "u",
            b'l' => "l",
            b'm' => "ul",
            b'x' => "ll",
            b'y' => "ull",
            _ => "",
        };
        match kind {
            b'b' | b'i' | b'j' | b'l' | b'm' | b'x' | b'y' => self.skip(1),
            b'_' | b'D' | b'f' | b'd' | b'e' | b'g' | b'A' | b'P' | b'R' => return None,
            _ => {
                self.write("(");
                self.ty()?;
                self.write(")");
            }
        }
        let negative = self.take(b'n');
        let digits = self.rest.iter().take_while(|b| b.is_ascii_digit()).count();
        let (digits, rest) = self.rest.split_at_checked(digits)?;
        self.rest = rest;
        if digits.is_empty() || !self.take(b'E') {
            return None;
        }
        match (kind, digits, negative) {
            (b'b', b"0", false) => self.write("false"),
            (b'b', b"1", false) => self.write("true"),
            (b'b', ..) => return None,
            _ => {
                if negative {
                    self.write("-");
                }
                self.out.extend_from_slice(digits);
                self.write(suffix);
            }
        }
        Some(self.plain(start))
    }

    pub(super) fn ty(&mut self) -> Option<Piece> {
        self.deeper()?;
        let piece = self.any_type();
        self.depth -= 1;
        piece
    }

    fn any_type(&mut self) -> Option<Piece> {
        let start = self.here();
        let first = self.peek();
        if let Some(text) = builtin(first) {
            self.skip(1);
            self.write(text);
            return Some(self.plain(start));
        }
        let piece = match first {
            b'P' => self.pointer("*")?,
            b'R' => self.pointer("&")?,
            b'O' => self.pointer("&&")?,
            b'K' => {
                self.skip(1);
                let inner = self.ty()?;
                match inner.form {
                    Form::Plain => {
                        self.write(" const");
                        Piece { name: inner.name, ..self.plain(start) }
                    }
                    // Of an array the elements are constant.
                    Form::Bare if self.out.get(inner.middle) == Some(&b' ') => {
                        self.insert(inner.middle, " const");
                        let middle = inner.middle + " const".len();
                        Piece { middle, form: Form::Bare, ..self.plain(start) }
                    }
                    _ => return None,
                }
            }
            b'F' => self.function()?,
            b'A' => self.array()?,
            b'D' => return self.with_d(),
            b'T' => {
                if !(self.second() == b'_' || self.second().is_ascii_digit()) {
                    return None;
                }
                let piece = self.parameter()?;
                if self.peek() == b'I' {
                    return None;
                }
                piece
            }
            b'S' if self.second() != b't' => {
                let piece = self.substitution()?;
                if self.peek() != b'I' {
                    return Some(piece);
                }
                if piece.form != Form::Plain {
                    return None;
                }
                self.template_arguments(false)?;
                Piece { name: piece.name, ..self.plain(start) }
            }
            b'N' | b'Z' | b'S' | b'1'..=b'9' => {
                let named = self.name(false)?;
                if named.structor || !(named.qualifiers.is_empty() && named.reference.is_empty()) {
                    return None;
                }
                Piece { name: named.last, ..self.plain(start) }
            }
            _ => return None,
        };
        self.pieces.push(Piece { generic: self.generic, ..piece });
        Some(piece)
    }

    pub(super) fn plain(&self, start: usize) -> Piece {
        let end = self.here();
        Piece { start, middle: end, end, name: (end, end), form: Form::Plain, generic: false }
    }

    fn pointer(&mut self, mark: &str) -> Option<Piece> {
        self.skip(1);
        let inner = self.ty()?;
        let text = match inner.form {
            Form::Plain => {
                // References to references become one.
                let same = self.out.iter().rev().take_while(|b| **b == b'&').count();
                match (mark, same) {
                    ("*", 1..) => return None,
                    ("&", 2) => self.out.truncate(self.here() - 1),
                    ("*", _) | (_, 0) => self.write(mark),
                    _ => {}
                }
                return Some(Piece { name: inner.name, ..self.plain(inner.start) });
            }
            // An array's brackets begin with a space.
            Form::Bare if self.out.get(inner.middle) == Some(&b' ') => format!(" ({mark})"),
            Form::Bare => format!("({mark})"),
            Form::Wrapped if mark != "*" && self.before(inner.middle) == b'&' => {
                // A reference to a reference of the first kind is one of that kind.
                let is_first_kind = self.before(inner.middle - 1) != b'&';
                return is_first_kind.then_some(inner);
            }
            Form::Wrapped => mark.to_owned(),
            Form::Pack | Form::Changed => return None,
        };
        self.insert(inner.middle, &text);
        let middle = inner.middle + text.len() - usize::from(inner.form == Form::Bare);
        let end = self.here();
        Some(Piece { middle, end, form: Form::Wrapped, ..inner })
    }

    fn function(&mut self) -> Option<Piece> {
        self.skip(1);
        let start = self.here();
        if self.ty()?.form != Form::Plain {
            return None;
        }
        self.write(" ");
        let middle = self.here();
        self.parameters()?;
        if !self.take(b'E') {
            return None;
        }
        Some(Piece { middle, form: Form::Bare, ..self.plain(start) })
    }

    fn array(&mut self) -> Option<Piece> {
        self.skip(1);
        let start = self.here();
        // Without a number its length is not known.
        let is_known = self.peek() != b'_';
        let count = if is_known { self.number()?.to_string() } else { String::new() };
        if !self.take(b'_') || self.ty()?.form != Form::Plain {
            return None;
        }
        let middle = self.here();
        self.write(&format!(" [{count}]"));
        Some(Piece { middle, form: Form::Bare, ..self.plain(start) })
    }

    /// Types that begin with `D`.
    fn with_d(&mut self) -> Option<Piece> {
        let start = self.here();
        let text = match self.second() {
            b'n' => "decltype(nullptr)",
            b'i' => "char32_t",
            b's' => "char16_t",
            b'a' => "auto",
            b'p' => return self.expansion(),
            _ => return None,
        };
        self.skip(2);
        self.write(text);
        Some(self.plain(start))
    }

    /// `Dp`: a type for each argument of a pack.
    fn expansion(&mut self) -> Option<Piece> {
        self.skip(2);
        if self.element.is_some() {
            return None;
        }
        // The pack is the first that the pattern names.
        let at = self
            .rest
            .windows(2)
            .position(|w| w[0] == b'T' && (w[1] == b'_' || w[1].is_ascii_digit()))?;
        let after = self.rest.get(at + 1..)?;
        let digits = after.iter().take_while(|b| b.is_ascii_digit()).count();
        let number = str::from_utf8(after.get(..digits)?).ok()?;
        let index = if digits == 0 { 0 } else { number.parse::<usize>().ok()?.checked_add(1)? };
        let pack = *self.arguments.get(index).filter(|argument| argument.form == Form::Pack)?;
        let start = self.here();
        let (pattern, known) = (self.rest, self.pieces.len());
        let count = pack.middle - pack.start;
        for element in 0..count {
            self.rest = pattern;
            self.pieces.truncate(known);
            self.element = Some(element);
            if element > 0 {
                self.write(", ");
            }
            self.ty()?;
        }
        self.element = None;
        if count == 0 {
            return None;
        }
        let piece = self.plain(start);
        Some(piece)
    }
}
