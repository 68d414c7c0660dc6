//! Where the variables of a condition are in a function's calls.

use std::sync::Arc;

use skep::object::btf::{Kind, Member, TypeId};
use skep::object::{Btf, Composite, Part, Place, Prototype, Value, ValueKind};
use skep::prototypes::hidden_word;

use super::condition::{Path, Start, TEXT, Variable};
use super::plan::{
    Base, RESULT, RETURN_ADDRESS, Read, SECOND_RESULT, STACK, Var, find, integer_words, is_signed,
    is_text, result_words, words_of,
};

/// Registers of arguments.
const REGISTERS: u8 = 6;
/// Deepest nesting of members without names.
const MAX_DEPTH: u32 = 16;

/// How a variable of the condition is found.
#[derive(Clone, Copy)]
pub struct Found {
    pub var: Var,
    /// The structure that it points to.
    to: Option<TypeId>,
}

/// Finds the variables of a condition in a function; `None`: it does not have that one.
pub fn find_all(
    variables: &[Variable],
    p: Option<&Prototype>,
    types: &dyn Fn() -> Option<Arc<Btf>>,
) -> Vec<Option<Found>> {
    let mut out: Vec<Option<Found>> = Vec::with_capacity(variables.len());
    for v in variables {
        let found = match &v.start {
            Start::Name(name) => {
                named(v, name, p, types).or_else(|| constant(v, name, p?, &*types()?))
            }
            Start::Variable(at) => out.get(*at).copied().flatten().and_then(|before| {
                let base = Base::Variable(u8::try_from(*at).ok()?);
                let Path::Member(name) = &v.path else { return None };
                let of = Of { name, held: Held::Behind(base, 0), at_return: before.var.at_return };
                of.find(v.text, before.to?, &*types()?)
            }),
        };
        out.push(found);
    }
    out
}

/// Finds a variable that begins with the name of an argument or `ret`.
fn named(
    v: &Variable,
    name: &str,
    p: Option<&Prototype>,
    types: &dyn Fn() -> Option<Arc<Btf>>,
) -> Option<Found> {
    let number = name.strip_prefix("arg").and_then(|n| n.parse::<usize>().ok());
    let at_return = name == "ret";
    let position = |p: &Prototype| p.params.iter().position(|param| param.name == name).or(number);
    if let Path::Inside(member) = &v.path {
        let (p, btf) = (p?, types()?);
        let (held, param) = match at_return {
            true => (held_result(p), &p.ret),
            false => {
                let at = position(p)?;
                (held(p, at), p.params.get(at)?)
            }
        };
        let is_it = matches!(param.kind, ValueKind::Struct | ValueKind::Union);
        let (id, _) = find(&btf, param).filter(|_| is_it)?;
        return Of { name: member, held: held?, at_return }.find(v.text, id, &btf);
    }
    let (word, param) = match p {
        None if at_return => (RESULT, None),
        None => (u8::try_from(number?).ok().filter(|n| *n < REGISTERS)?, None),
        Some(p) if at_return => {
            let there = p.ret_words().first() == Some(&Place::Register(0))
                && (p.ret.size <= 8 || is_text(&p.ret));
            (RESULT, Some(Some(&p.ret).filter(|_| there)?))
        }
        Some(p) => {
            let at = position(p)?;
            let param = p.params.get(at)?;
            match *words_of(p, at) {
                [word] => (word, Some(param)),
                [word, _] if is_text(param) && p.composite(at).is_none() => (word, Some(param)),
                _ => return None,
            }
        }
    };
    let base = Base::Word(word);
    let pointer = param.is_none_or(|p| matches!(p.kind, ValueKind::Pointer(_)));
    let enumeration = |param: &Value| {
        let btf = types()?;
        let (id, size) = find(&btf, param)?;
        match &btf.resolve(id).ok()?.1.kind {
            Kind::Enum(e) | Kind::Enum64(e) => Some((size as u64 * 8, e.signed)),
            _ => None,
        }
    };
    let var = |read: Read, bits: u64, signed: bool| {
        let (first, bits) = (0, bits as u8);
        Some(Found { var: Var { read, base, first, bits, signed, at_return, offset: 0 }, to: None })
    };
    match (&v.path, param) {
        (Path::Whole, Some(param)) if v.text && is_text(param) => {
            var(Read::Counted, TEXT.into(), false)
        }
        (Path::Whole, _) if v.text => var(Read::Text, TEXT.into(), false).filter(|_| pointer),
        (Path::Whole, None) => var(Read::Word, 64, true),
        (Path::Whole, Some(param)) => match param.kind {
            ValueKind::Int => var(Read::Word, param.size.clamp(1, 8) * 8, is_signed(&param.text)),
            ValueKind::Enum => {
                let (bits, signed) =
                    enumeration(param).unwrap_or((param.size.clamp(1, 8) * 8, true));
                var(Read::Word, bits, signed)
            }
            ValueKind::Pointer(_) => var(Read::Word, 64, false),
            _ => None,
        },
        (Path::Behind, Some(param)) if pointer && !v.text => {
            let to = param.text.strip_suffix(['*', '&'])?.trim_end();
            if to.ends_with('*') {
                return var(Read::Bytes, 64, false);
            }
            if to.starts_with("enum ") {
                let (bits, signed) = enumeration(param)?;
                return var(Read::Bytes, bits, signed);
            }
            var(Read::Bytes, number_size(to)? * 8, is_signed(to))
        }
        (Path::Member(name), Some(param)) if pointer => {
            let btf = types()?;
            let (id, _) = find(&btf, param)?;
            Of { name, held: Held::Behind(base, 0), at_return }.find(v.text, id, &btf)
        }
        _ => None,
    }
}

/// Where a structure is.
enum Held {
    /// So many bytes behind where a pointer points.
    Behind(Base, u64),
    /// In words, each with the byte of the structure that it begins with. Others are nowhere.
    Words(Vec<(u64, u8)>),
}

/// Finds an argument that is a structure.
fn held(p: &Prototype, at: usize) -> Option<Held> {
    let words = words_of(p, at);
    Some(match p.composite(at) {
        None => Held::Words((0..).step_by(8).zip(words).collect()),
        Some(Composite::Behind) => Held::Behind(Base::Word(*words.first()?), 0),
        Some(Composite::Stack(from)) => Held::Behind(Base::Word(STACK), from + RETURN_ADDRESS),
        Some(Composite::Parts(parts)) => in_parts(parts, 8, integer_words(p, at)),
        Some(Composite::Pair { second, parts }) => in_parts(parts, *second, integer_words(p, at)),
        Some(_) => return None,
    })
}

/// Finds a result that is a structure.
fn held_result(p: &Prototype) -> Option<Held> {
    Some(match p.ret_composite() {
        None => {
            let words = [RESULT, SECOND_RESULT].into_iter().take(p.ret_words().len());
            Held::Words((0..).step_by(8).zip(words).collect())
        }
        Some(Composite::Behind) => Held::Behind(Base::Word(hidden_word(p)? as u8), 0),
        Some(Composite::Parts(parts)) => in_parts(parts, 8, result_words(parts)),
        Some(Composite::Pair { second, parts }) => in_parts(parts, *second, result_words(parts)),
        Some(_) => return None,
    })
}

/// `second`: the byte that the second part begins with.
fn in_parts(parts: &[Part], second: u64, mut words: impl Iterator<Item = u8>) -> Held {
    let begin = [0, second];
    let at = |(part, from): (&Part, u64)| match part {
        Part::Register => Some((from, words.next()?)),
        Part::Vector(_) => None,
    };
    Held::Words(parts.iter().zip(begin).filter_map(at).collect())
}

/// A member of a structure.
struct Of<'a> {
    name: &'a str,
    held: Held,
    at_return: bool,
}

impl Of<'_> {
    /// Finds it in the structure, as a text or a number.
    fn find(&self, text: bool, id: TypeId, btf: &Btf) -> Option<Found> {
        let (at, member) = member(btf, id, self.name, 0)?;
        let (_, t) = btf.resolve(member.type_id).ok()?;
        let size = btf.size_of(member.type_id).ok()?;
        let bits =
            if member.bitfield > 0 { u64::from(member.bitfield) } else { size.checked_mul(8)? };
        match &t.kind {
            // Those without a length end where their text ends.
            Kind::Array(array) if text => {
                let is_text = btf.size_of(array.elem) == Ok(1);
                self.text(at, false, if size == 0 { u64::MAX } else { size }).filter(|_| is_text)
            }
            Kind::Ptr(_) if text => self.text(at, true, u64::MAX),
            _ if text => None,
            Kind::Int(i) => self.number(at, bits, i.signed, None),
            Kind::Enum(e) | Kind::Enum64(e) => self.number(at, bits, e.signed, None),
            Kind::Ptr(to) => self.number(at, 64, false, Some(*to)),
            _ => None,
        }
    }

    /// A number of so many bits.
    fn number(&self, at: u64, bits: u64, signed: bool, to: Option<TypeId>) -> Option<Found> {
        let at_return = self.at_return;
        let (read, base, first, offset) = match &self.held {
            Held::Behind(base, from) => (Read::Bytes, *base, at % 8, from.checked_add(at / 8)?),
            Held::Words(words) => {
                let (word, bit) = in_word(words, at)?;
                (Read::Word, Base::Word(word), 0, bit)
            }
        };
        let there = if read == Read::Word { offset } else { first };
        let (offset, first) = (i64::try_from(offset).ok()?, first as u8);
        let bits = u8::try_from(bits).ok().filter(|bits| u64::from(*bits) + there <= 64)?;
        Some(Found { var: Var { read, base, first, bits, signed, at_return, offset }, to })
    }

    /// The text that begins there, or that a pointer there leads to, of so many bytes at most.
    fn text(&self, at: u64, is_pointer: bool, most: u64) -> Option<Found> {
        let (read, base, offset) = match &self.held {
            Held::Behind(base, from) => {
                let read = if is_pointer { Read::TextBehind } else { Read::Text };
                (read, *base, from.checked_add(at / 8)?)
            }
            Held::Words(words) => {
                let (word, _) = in_word(words, at).filter(|(_, bit)| is_pointer && *bit == 0)?;
                (Read::Text, Base::Word(word), 0)
            }
        };
        let (offset, at_return) = (i64::try_from(offset).ok()?, self.at_return);
        let bits = most.min(TEXT.into()) as u8;
        let var = Var { read, base, first: 0, bits, signed: false, at_return, offset };
        Some(Found { var, to: None })
    }
}

/// Finds the word that has a bit of a structure, and the bit's place in it.
fn in_word(words: &[(u64, u8)], at: u64) -> Option<(u8, u64)> {
    let (from, word) = words.iter().rev().find(|(from, _)| from * 8 <= at)?;
    Some((*word, at - from * 8)).filter(|(_, bit)| *bit < 64)
}

/// Finds a constant of an enumeration: of one that an argument has, else of any that all agree about.
fn constant(v: &Variable, name: &str, p: &Prototype, btf: &Btf) -> Option<Found> {
    if v.path != Path::Whole || v.text {
        return None;
    }
    let value_in = |id: TypeId| match &btf.resolve(id).ok()?.1.kind {
        Kind::Enum(e) | Kind::Enum64(e) => {
            let value = e.values.iter().find(|value| btf.string(value.name_off) == name)?.value;
            Some((value, e.signed || value >= 0))
        }
        _ => None,
    };
    let of_param = p.params.iter().chain([&p.ret]).find_map(|param| {
        let is_enum = param.kind == ValueKind::Enum;
        value_in(find(btf, param).filter(|_| is_enum)?.0)
    });
    let (offset, signed) = of_param.or_else(|| {
        let mut all = btf.types().filter_map(|(id, _)| value_in(id));
        let first = all.next()?;
        all.all(|other| other == first).then_some(first)
    })?;
    let (read, base, first, bits, at_return) = (Read::Constant, Base::Word(0), 0, 64, false);
    Some(Found { var: Var { read, base, first, bits, signed, at_return, offset }, to: None })
}

/// Finds a member, `a` or `a.b`, also in members without names: its offset in bits, and itself.
pub fn member<'b>(btf: &'b Btf, id: TypeId, name: &str, depth: u32) -> Option<(u64, &'b Member)> {
    let (_, t) = btf.resolve(id).ok()?;
    let (Kind::Struct(c) | Kind::Union(c)) = &t.kind else { return None };
    if depth > MAX_DEPTH {
        return None;
    }
    let (first, rest) = name.split_once('.').map_or((name, None), |(a, b)| (a, Some(b)));
    c.members.iter().find_map(|m| {
        let at = u64::from(m.bit_offset);
        let inside = |name| {
            let (inner, found) = member(btf, m.type_id, name, depth + 1)?;
            Some((at.checked_add(inner)?, found))
        };
        match (btf.string(m.name_off), rest) {
            (found, None) if found == first => Some((at, m)),
            (found, Some(rest)) if found == first => inside(rest),
            ("", _) => inside(name),
            _ => None,
        }
    })
}

/// Bytes of a number by its type's name.
fn number_size(text: &str) -> Option<u64> {
    Some(match text {
        "char" | "signed char" | "unsigned char" | "_Bool" | "bool" | "u8" | "i8" => 1,
        "short" | "short int" | "unsigned short" | "short unsigned int" | "u16" | "i16" => 2,
        "int" | "unsigned int" | "u32" | "i32" => 4,
        "long"
        | "long int"
        | "unsigned long"
        | "long unsigned int"
        | "long long int"
        | "long long"
        | "unsigned long long"
        | "long long unsigned int"
        | "u64"
        | "i64"
        | "usize"
        | "isize" => 8,
        _ => return None,
    })
}
