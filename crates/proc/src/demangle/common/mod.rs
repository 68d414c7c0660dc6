//! C++ names of the usual forms, at once: what is read is written, in one pass.
//!
//! The text of each component is a piece of the output, so a substitution copies bytes, and nothing
//! is allocated but the output and the list of pieces. Whatever is rare (expressions, `decltype`,
//! conversion operators that are templates) is left to `cpp_demangle`, which takes ten times as long.
//! What is answered here is byte for byte what `nm -C` and `addr2line -C` of binutils print.
//!
//! The names are those of the Itanium C++ ABI (`<nested-name>` and so on).

#[cfg(test)]
mod tests;
mod types;
mod words;

use words::OPERATORS;

/// Deeper ones are left to the other reader, which has limits of its own.
const MAX_DEPTH: u32 = 40;
const MAX_OUT: usize = 32 << 10;

/// Demangles what follows `_Z`; `None` if that has anything unusual.
pub(super) fn demangle(mangled: &str) -> Option<String> {
    let mut reader = Reader {
        rest: mangled.as_bytes(),
        out: Vec::with_capacity(4 * mangled.len()),
        pieces: Vec::with_capacity(32),
        arguments: Vec::new(),
        packs: Vec::new(),
        element: None,
        generic: false,
        depth: 0,
    };
    reader.encoding()?;
    while reader.peek() == b'.' {
        reader.clone_suffix()?;
    }
    if !reader.rest.is_empty() {
        return None;
    }
    String::from_utf8(reader.out).ok()
}

/// A component in the output.
#[derive(Clone, Copy, Debug)]
struct Piece {
    start: usize,
    /// Where a declarator would stand: `void (*` | `)(int)`. The end, usually.
    middle: usize,
    end: usize,
    /// The last name in it, which constructors have: without template arguments.
    name: (usize, usize),
    form: Form,
    /// It was read inside of a generic lambda's parameters.
    generic: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Form {
    Plain,
    /// A function's or an array's type: a pointer to it needs parentheses.
    Bare,
    /// With the parentheses.
    Wrapped,
    /// Several template arguments.
    Pack,
    /// Its text has become that of a pointer to it.
    Changed,
}

/// What a name was.
#[derive(Clone, Copy, Default)]
struct Named {
    /// It ends with template arguments: the encoding has a return type, unless it is of
    template: bool,
    /// a constructor or destructor.
    structor: bool,
    /// Behind the parameters.
    qualifiers: &'static str,
    reference: &'static str,
    last: (usize, usize),
}

struct Reader<'a> {
    rest: &'a [u8],
    out: Vec<u8>,
    /// What `S_` and its like stand for.
    pieces: Vec<Piece>,
    /// What `T_` and its like stand for.
    arguments: Vec<Piece>,
    /// The arguments of packs, which are ranges of this list: `start..middle` of the piece.
    packs: Vec<Piece>,
    /// Which argument of packs a pack expansion is at.
    element: Option<usize>,
    /// Template parameters are those of a generic lambda.
    generic: bool,
    depth: u32,
}

impl<'a> Reader<'a> {
    fn peek(&self) -> u8 {
        self.rest.first().copied().unwrap_or(0)
    }

    fn second(&self) -> u8 {
        self.rest.get(1).copied().unwrap_or(0)
    }

    fn skip(&mut self, count: usize) {
        self.rest = self.rest.get(count..).unwrap_or_default();
    }

    fn take(&mut self, byte: u8) -> bool {
        let is = self.peek() == byte;
        if is {
            self.skip(1);
        }
        is
    }

    fn write(&mut self, text: &str) {
        self.out.extend_from_slice(text.as_bytes());
    }

    fn before(&self, at: usize) -> u8 {
        at.checked_sub(1).and_then(|at| self.out.get(at)).copied().unwrap_or(0)
    }

    fn here(&self) -> usize {
        self.out.len()
    }

    fn deeper(&mut self) -> Option<()> {
        self.depth += 1;
        (self.depth < MAX_DEPTH && self.out.len() < MAX_OUT).then_some(())
    }

    fn copy(&mut self, from: usize, to: usize) -> Option<()> {
        if from > to || to > self.out.len() || self.out.len() > MAX_OUT {
            return None;
        }
        self.out.extend_from_within(from..to);
        Some(())
    }

    /// All places at or behind `at` move by `by`.
    fn each_place(&mut self, mut change: impl FnMut(&mut usize, bool)) {
        for piece in self.pieces.iter_mut().chain(&mut self.arguments).chain(&mut self.packs) {
            if piece.form == Form::Pack {
                continue;
            }
            change(&mut piece.start, true);
            change(&mut piece.middle, false);
            change(&mut piece.end, false);
            change(&mut piece.name.0, true);
            change(&mut piece.name.1, false);
        }
    }

    /// Inserts text into a piece that is at the end of the output.
    fn insert(&mut self, at: usize, text: &str) {
        let tail = self.out.split_off(at.min(self.out.len()));
        self.out.extend_from_slice(text.as_bytes());
        self.out.extend_from_slice(&tail);
        for piece in self.pieces.iter_mut().chain(&mut self.arguments).chain(&mut self.packs) {
            if piece.form != Form::Pack && piece.start < at && piece.middle == at && at < piece.end
            {
                piece.form = Form::Changed;
            }
        }
        // Ends at this very place stay, starts move.
        self.each_place(|place, start| {
            if *place > at || (start && *place == at) {
                *place += text.len();
            }
        });
    }

    /// Swaps `a..b` with `b..end of output`.
    fn rotate(&mut self, a: usize, b: usize) {
        let c = self.out.len();
        if let Some(part) = self.out.get_mut(a..c) {
            part.rotate_left(b - a);
        }
        self.each_place(|place, start| {
            let inside = |from, to| {
                if start { (from..to).contains(&*place) } else { *place > from && *place <= to }
            };
            if inside(a, b) {
                *place += c - b;
            } else if inside(b, c) {
                *place -= b - a;
            }
        });
    }

    fn encoding(&mut self) -> Option<()> {
        self.deeper()?;
        if matches!(self.peek(), b'T' | b'G') {
            return self.special();
        }
        let start = self.here();
        let named = self.name(true)?;
        let end = self.here();
        if matches!(self.peek(), 0 | b'E' | b'.') {
            self.depth -= 1;
            return named.qualifiers.is_empty().then_some(());
        }
        if named.template && !named.structor {
            let result = self.ty()?;
            if result.form != Form::Plain {
                return None;
            }
            self.write(" ");
            self.rotate(start, end);
        }
        self.parameters()?;
        self.write(named.qualifiers);
        self.write(named.reference);
        self.depth -= 1;
        Some(())
    }

    /// What compilers add to copies of a function: `.isra.0`.
    fn clone_suffix(&mut self) -> Option<()> {
        let after = self.rest.get(1..)?;
        let word = after.iter().take_while(|b| b.is_ascii_alphabetic() || **b == b'_').count();
        let mut len = 1 + word;
        while let Some([b'.', after @ ..]) = self.rest.get(len..) {
            let digits = after.iter().take_while(|b| b.is_ascii_digit()).count();
            if digits == 0 {
                break;
            }
            len += 1 + digits;
        }
        let (suffix, rest) = self.rest.split_at_checked(len).filter(|_| word > 0)?;
        self.rest = rest;
        self.write(" [clone ");
        self.out.extend_from_slice(suffix);
        self.write("]");
        Some(())
    }

    /// `<special-name>`: what compilers make beside functions, and thunks, which lead to functions.
    fn special(&mut self) -> Option<()> {
        let pair = (self.peek(), self.second());
        let text = match pair {
            (b'T', b'I') => "typeinfo for ",
            (b'T', b'S') => "typeinfo name for ",
            (b'T', b'V') => "vtable for ",
            (b'T', b'T') => "VTT for ",
            (b'T', b'H') => "TLS init function for ",
            (b'T', b'W') => "TLS wrapper function for ",
            (b'T', b'h') => "non-virtual thunk to ",
            (b'T', b'v') => "virtual thunk to ",
            (b'T', b'c') => "covariant return thunk to ",
            (b'G', b'V') => "guard variable for ",
            _ => return None,
        };
        self.write(text);
        match pair.1 {
            b'I' | b'S' | b'T' | b'V' if pair.0 == b'T' => {
                self.skip(2);
                self.ty()?;
            }
            b'h' | b'v' => {
                self.skip(1);
                self.call_offset()?;
                self.encoding()?;
            }
            b'c' => {
                self.skip(2);
                self.call_offset()?;
                self.call_offset()?;
                self.encoding()?;
            }
            _ => {
                self.skip(2);
                let named = self.name(false)?;
                return (named.qualifiers.is_empty() && named.reference.is_empty()).then_some(());
            }
        }
        Some(())
    }

    /// `<call-offset>`, which is not shown.
    fn call_offset(&mut self) -> Option<()> {
        let numbers = match self.peek() {
            b'h' => 1,
            b'v' => 2,
            _ => return None,
        };
        self.skip(1);
        for _ in 0..numbers {
            self.take(b'n');
            self.number()?;
            if !self.take(b'_') {
                return None;
            }
        }
        Some(())
    }

    /// Types up to `E` or the end, in parentheses.
    fn parameters(&mut self) -> Option<()> {
        self.write("(");
        if self.peek() == b'v' && matches!(self.second(), 0 | b'E' | b'.') {
            self.skip(1);
        } else {
            let mut first = true;
            while !matches!(self.peek(), 0 | b'E' | b'.') {
                self.separated(&mut first, Self::ty)?;
            }
        }
        self.write(")");
        Some(())
    }

    /// Reads something that may be nothing, with a comma before it.
    fn separated(
        &mut self,
        first: &mut bool,
        read: impl FnOnce(&mut Self) -> Option<Piece>,
    ) -> Option<Piece> {
        if !*first {
            self.write(", ");
        }
        let before = self.here();
        let piece = read(self)?;
        if self.here() == before {
            // An empty pack.
            return None;
        }
        *first = false;
        Some(piece)
    }

    /// `<name>`. With `outer` its template arguments are those of the encoding.
    fn name(&mut self, outer: bool) -> Option<Named> {
        match self.peek() {
            b'N' => self.nested(outer),
            b'Z' => self.local(outer),
            b'S' if self.second() != b't' => {
                let piece = self.substitution()?;
                if self.peek() != b'I' {
                    return None;
                }
                self.template_arguments(outer)?;
                Some(Named { template: true, last: piece.name, ..Named::default() })
            }
            _ => {
                let start = self.here();
                if self.peek() == b'S' {
                    self.skip(2);
                    self.write("std::");
                }
                let mut named = self.unqualified((0, 0))?;
                if self.peek() == b'I' {
                    self.push(start, named.last);
                    self.template_arguments(outer)?;
                    named.template = true;
                }
                Some(named)
            }
        }
    }

    /// Makes the output from `start` what a substitution may stand for.
    fn push(&mut self, start: usize, name: (usize, usize)) -> Piece {
        let end = self.here();
        let form = Form::Plain;
        let piece = Piece { start, middle: end, end, name, form, generic: self.generic };
        self.pieces.push(piece);
        piece
    }

    fn nested(&mut self, outer: bool) -> Option<Named> {
        self.skip(1);
        self.deeper()?;
        if matches!(self.peek(), b'r' | b'V') {
            return None;
        }
        let qualifiers = if self.take(b'K') { " const" } else { "" };
        let reference = match self.peek() {
            b'R' => " &",
            b'O' => " &&",
            _ => "",
        };
        if !reference.is_empty() {
            self.skip(1);
        }
        let start = self.here();
        let mut named = Named::default();
        let mut first = true;
        while !self.take(b'E') {
            let template = self.peek() == b'I';
            let mut known = false;
            match self.peek() {
                b'S' if first && self.second() == b't' => {
                    self.skip(2);
                    self.write("std");
                    known = true;
                }
                b'S' if first => {
                    named.last = self.substitution()?.name;
                    known = true;
                }
                b'T' if first => {
                    if self.parameter()?.form != Form::Plain {
                        return None;
                    }
                }
                b'I' if !first && !named.template => self.template_arguments(outer)?,
                b'I' | b'T' | b'S' | b'M' => return None,
                _ => {
                    if !first {
                        self.write("::");
                    }
                    named = self.unqualified(named.last)?;
                }
            }
            named.template = template;
            if !known && self.peek() != b'E' {
                self.push(start, named.last);
            }
            first = false;
        }
        self.depth -= 1;
        (!first).then_some(Named { qualifiers, reference, ..named })
    }

    fn local(&mut self, outer: bool) -> Option<Named> {
        self.skip(1);
        self.encoding()?;
        if !self.take(b'E') {
            return None;
        }
        // A string, a default argument, one of several of a name.
        if matches!(self.peek(), b's' | b'd' | b'_') {
            return None;
        }
        self.arguments.clear();
        self.write("::");
        let named = if self.peek() == b'N' { self.nested(outer)? } else { self.name(outer)? };
        (self.peek() != b'_').then_some(named)
    }

    /// `<unqualified-name>`; `class` is the name before it.
    fn unqualified(&mut self, class: (usize, usize)) -> Option<Named> {
        let start = self.here();
        let mut structor = false;
        // Of this file only.
        self.take(b'L');
        match self.peek() {
            b'1'..=b'9' => {
                let name = self.source_name()?;
                if name.starts_with(b"_GLOBAL__N") {
                    self.write("(anonymous namespace)");
                } else {
                    self.out.extend_from_slice(name);
                }
            }
            b'C' if matches!(self.second(), b'1'..=b'3') => {
                self.skip(2);
                structor = true;
                self.copy(class.0, class.1)?;
            }
            b'D' if matches!(self.second(), b'0'..=b'2') => {
                self.skip(2);
                structor = true;
                self.write("~");
                self.copy(class.0, class.1)?;
            }
            b'U' if self.second() == b'l' => {
                self.skip(2);
                self.write("{lambda");
                let outer = std::mem::replace(&mut self.generic, true);
                self.parameters()?;
                self.generic = outer;
                if !self.take(b'E') {
                    return None;
                }
                self.numbered()?;
            }
            b'U' if self.second() == b't' => {
                self.skip(2);
                self.write("{unnamed type");
                self.numbered()?;
            }
            b'l' if self.second() == b'i' => {
                self.skip(2);
                self.write("operator\"\" ");
                let name = self.source_name()?;
                self.out.extend_from_slice(name);
            }
            b'c' if self.second() == b'v' => {
                self.skip(2);
                self.write("operator ");
                // Its type may be a parameter of the template that follows.
                if self.ty()?.form != Form::Plain || self.peek() == b'I' {
                    return None;
                }
            }
            b'a'..=b'z' => {
                let pair = self.rest.first_chunk()?;
                let (_, text) = OPERATORS.iter().find(|(name, _)| *name == pair)?;
                self.skip(2);
                self.write("operator");
                self.write(text);
            }
            _ => return None,
        }
        if structor && class.0 == class.1 {
            return None;
        }
        let last = (start, self.here());
        if self.peek() == b'B' {
            if structor {
                return None;
            }
            self.skip(1);
            let tag = self.source_name()?;
            self.write("[abi:");
            self.out.extend_from_slice(tag);
            self.write("]");
            if self.peek() == b'B' {
                return None;
            }
        }
        Some(Named { structor, last, ..Named::default() })
    }

    /// The number of a type without a name, and `}`.
    fn numbered(&mut self) -> Option<()> {
        let number = if self.peek() == b'_' { 1 } else { self.number()?.checked_add(2)? };
        if !self.take(b'_') {
            return None;
        }
        self.write(&format!("#{number}}}"));
        Some(())
    }

    fn number(&mut self) -> Option<usize> {
        let digits = self.rest.iter().take_while(|b| b.is_ascii_digit()).count();
        let (digits, rest) = self.rest.split_at_checked(digits)?;
        if !(1..8).contains(&digits.len()) {
            return None;
        }
        self.rest = rest;
        Some(digits.iter().fold(0, |n, digit| n * 10 + usize::from(digit - b'0')))
    }

    fn source_name(&mut self) -> Option<&'a [u8]> {
        let length = self.number()?;
        let (name, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        (length > 0 && name.iter().all(u8::is_ascii)).then_some(name)
    }

    /// The number behind `S` or `T`: none is 0.
    fn index(&mut self, base: usize) -> Option<usize> {
        let (mut number, mut any) = (0, false);
        while !self.take(b'_') {
            let digit = char::from(self.peek());
            if digit.is_ascii_lowercase() {
                return None;
            }
            let digit = digit.to_digit(base as u32)? as usize;
            number = (number * base + digit).min(1 << 20);
            any = true;
            self.skip(1);
        }
        Some(if any { number + 1 } else { 0 })
    }

    /// `<substitution>`, but `St`.
    fn substitution(&mut self) -> Option<Piece> {
        self.skip(1);
        // Constructors have the class's own name, and not the one that the library gives it.
        let own = matches!(self.second(), b'C' | b'D');
        let (name, arguments) = match (self.peek(), own) {
            (b'a', _) => ("allocator", ""),
            (b'b', _) => ("basic_string", ""),
            (b's', false) => ("string", ""),
            (b's', true) => {
                ("basic_string", "<char, std::char_traits<char>, std::allocator<char> >")
            }
            (b'i', false) => ("istream", ""),
            (b'i', true) => ("basic_istream", "<char, std::char_traits<char> >"),
            (b'o', false) => ("ostream", ""),
            (b'o', true) => ("basic_ostream", "<char, std::char_traits<char> >"),
            (b'd', false) => ("iostream", ""),
            (b'd', true) => ("basic_iostream", "<char, std::char_traits<char> >"),
            _ => {
                let index = self.index(36)?;
                let piece = *self.pieces.get(index)?;
                // What was a parameter of a generic lambda there is something else here.
                let text = self.out.get(piece.start..piece.end)?;
                if !self.generic && piece.generic && text.windows(5).any(|w| w == b"auto:") {
                    return None;
                }
                return self.again(piece);
            }
        };
        self.skip(1);
        let start = self.here();
        self.write("std::");
        self.write(name);
        let name = (start + 5, self.here());
        self.write(arguments);
        Some(Piece { name, ..self.plain(start) })
    }

    /// Writes a piece once more.
    fn again(&mut self, piece: Piece) -> Option<Piece> {
        if piece.form == Form::Changed {
            return None;
        }
        let to = self.here();
        self.copy(piece.start, piece.end)?;
        let moved = |place: usize| (place + to).wrapping_sub(piece.start);
        // A constructor's name may be copied from where it was.
        let (middle, end) = (moved(piece.middle), moved(piece.end));
        Some(Piece { start: to, middle, end, ..piece })
    }
}
