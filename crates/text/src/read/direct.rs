//! JSON and fields straight to the bytes of a type, for files with millions of elements: what a type looks like
//! is found out once.
//!
//! Numbers, addresses, names of enumerations, texts and structures of them go this way. Anything
//! else, and whatever does not fit, goes by way of `Btf::encode`, which also says what is wrong.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use skep_object::Btf;
use skep_object::btf::{Kind, TypeId};

/// Structures inside structures that are looked into.
const DEEPEST: usize = 4;

/// A type whose bytes are made from JSON, or the fields of a line, directly.
#[derive(Clone, Debug)]
pub enum Direct {
    /// A number, so many bytes wide.
    Uint(usize),
    /// One with a sign.
    Int(usize),
    Pointer,
    /// Characters.
    Text(usize),
    /// Its size, and the numbers of names.
    Enum(usize, Vec<(String, u64)>),
    /// Name, offset and size, type.
    Members(Vec<(String, (usize, usize), Direct)>),
}

impl Direct {
    /// Looks at a type; with none, at a number.
    pub fn of(btf: Option<&Btf>, id: TypeId, size: usize) -> Option<Self> {
        match btf.filter(|_| id != 0) {
            Some(btf) => {
                of_type(btf, id, 0).filter(|(_, is)| *is == size).map(|(direct, _)| direct)
            }
            None => Some(Self::Uint(size)).filter(|_| matches!(size, 1 | 2 | 4 | 8)),
        }
    }

    /// Fills `out`, which is zero, with what JSON says; `false` when it does not fit.
    pub fn fill(&self, json: &str, out: &mut [u8]) -> bool {
        let mut reader = serde_json::Deserializer::from_str(json);
        Into { direct: self, out }.deserialize(&mut reader).is_ok()
    }

    /// Finds what members lead to: its offset and size, and its type.
    pub fn member(&self, path: &[String]) -> Option<((usize, usize), &Self)> {
        let Self::Members(members) = self else { return None };
        let (name, rest) = path.split_first()?;
        let (_, (at, size), direct) = members.iter().find(|(n, ..)| n == name)?;
        if rest.is_empty() {
            return Some(((*at, *size), direct));
        }
        let ((inner, size), direct) = direct.member(rest)?;
        Some(((at + inner, size), direct))
    }

    /// As [`Self::fill`], from a single field.
    pub fn fill_field(&self, field: &str, out: &mut [u8]) -> bool {
        let (size, word) = match self {
            Self::Uint(size) => (*size, field.parse().ok().filter(|n| fits(*n, *size))),
            Self::Int(size) => {
                (*size, field.parse().ok().filter(|n| fits_signed(*n, *size)).map(|n| n as u64))
            }
            Self::Pointer => {
                let digits = field.strip_prefix("0x");
                (8, digits.and_then(|digits| u64::from_str_radix(digits, 16).ok()))
            }
            Self::Enum(size, values) => {
                (*size, values.iter().find(|(name, _)| name == field).map(|(_, value)| *value))
            }
            Self::Text(size) => {
                let to = out.get_mut(..*size).and_then(|out| out.get_mut(..field.len()));
                return to.map(|to| to.copy_from_slice(field.as_bytes())).is_some();
            }
            Self::Members(_) => return false,
        };
        match (word, out.get_mut(..size)) {
            (Some(word), Some(to)) => {
                to.copy_from_slice(word.to_le_bytes().get(..size).unwrap_or_default());
                true
            }
            _ => false,
        }
    }
}

/// Tells whether a number needs no more than so many bytes.
fn fits(n: u64, size: usize) -> bool {
    let unused = 64 - 8 * size as u32;
    n << unused >> unused == n
}

fn fits_signed(n: i64, size: usize) -> bool {
    let unused = 64 - 8 * size as u32;
    n << unused >> unused == n
}

fn of_type(btf: &Btf, id: TypeId, depth: usize) -> Option<(Direct, usize)> {
    let (id, t) = btf.resolve(id).ok()?;
    let size = usize::try_from(btf.size_of(id).ok()?).ok()?;
    let direct = match &t.kind {
        Kind::Int(i)
            if matches!(size, 1 | 2 | 4 | 8)
                && i.offset == 0
                && usize::from(i.bits) == size * 8
                && !i.bool
                && !i.char =>
        {
            if i.signed {
                Direct::Int(size)
            } else {
                Direct::Uint(size)
            }
        }
        Kind::Ptr(_) if size == 8 => Direct::Pointer,
        Kind::Enum(e) | Kind::Enum64(e) if matches!(size, 4 | 8) => {
            // A second value of a name is not reached.
            let values =
                e.values.iter().map(|v| (btf.string(v.name_off).to_owned(), v.value as u64));
            Direct::Enum(size, values.collect())
        }
        Kind::Array(a) => {
            let (elem, t) = btf.resolve(a.elem).ok()?;
            let text = matches!(&t.kind, Kind::Int(i) if i.size == 1 && (i.char || btf.name(elem) == "char"));
            text.then_some(Direct::Text(size))?
        }
        Kind::Struct(c) if depth < DEEPEST && !c.members.is_empty() => {
            let member = |m: &skep_object::btf::Member| {
                let (name, at) = (btf.string(m.name_off), usize::try_from(m.bit_offset / 8).ok()?);
                if m.bitfield != 0 || !m.bit_offset.is_multiple_of(8) || name.is_empty() {
                    return None;
                }
                let (direct, size) = of_type(btf, m.type_id, depth + 1)?;
                Some((name.to_owned(), (at, size), direct))
            };
            Direct::Members(c.members.iter().map(member).collect::<Option<_>>()?)
        }
        _ => return None,
    };
    Some((direct, size))
}

/// Text, borrowed where it has no escapes.
#[derive(Deserialize)]
pub struct Text<'a>(#[serde(borrow)] pub Cow<'a, str>);

struct Into<'a> {
    direct: &'a Direct,
    out: &'a mut [u8],
}

impl Into<'_> {
    /// Stores a number in the first bytes.
    fn put<E: Error>(self, size: usize, word: u64) -> Result<(), E> {
        let to = self.out.get_mut(..size).ok_or_else(|| E::custom("too short"))?;
        to.copy_from_slice(word.to_le_bytes().get(..size).unwrap_or_default());
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Into<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        let no = || D::Error::custom("it does not fit");
        match self.direct {
            Direct::Uint(size) => {
                let (n, size) = (u64::deserialize(json)?, *size);
                if fits(n, size) { self.put(size, n) } else { Err(no()) }
            }
            Direct::Int(size) => {
                let (n, size) = (i64::deserialize(json)?, *size);
                if fits_signed(n, size) { self.put(size, n as u64) } else { Err(no()) }
            }
            Direct::Pointer => {
                let text = Text::deserialize(json)?.0;
                let digits = text.strip_prefix("0x").ok_or_else(no)?;
                self.put(8, u64::from_str_radix(digits, 16).map_err(|_| no())?)
            }
            Direct::Text(size) => {
                let text = Text::deserialize(json)?.0;
                let to = self.out.get_mut(..*size).and_then(|out| out.get_mut(..text.len()));
                to.ok_or_else(no)?.copy_from_slice(text.as_bytes());
                Ok(())
            }
            Direct::Enum(size, values) => {
                let text = Text::deserialize(json)?.0;
                let value = values.iter().find(|(name, _)| *name == text);
                self.put(*size, value.ok_or_else(no)?.1)
            }
            Direct::Members(members) => json.deserialize_map(Fields { members, out: self.out }),
        }
    }
}

struct Fields<'a> {
    members: &'a [(String, (usize, usize), Direct)],
    out: &'a mut [u8],
}

impl<'de> Visitor<'de> for Fields<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a structure")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let no = || A::Error::custom("there is no such member");
        let mut next = 0;
        while let Some(Text(name)) = map.next_key()? {
            // They come in the order of the type, if `dump` printed them.
            let here = self.members.get(next).filter(|(n, ..)| *n == name);
            let at = match here {
                Some(_) => next,
                None => self.members.iter().position(|(n, ..)| *n == name).ok_or_else(no)?,
            };
            let (_, (start, size), direct) = self.members.get(at).ok_or_else(no)?;
            let out = self.out.get_mut(*start..*start + *size).ok_or_else(no)?;
            map.next_value_seed(Into { direct, out })?;
            next = at + 1;
        }
        Ok(())
    }
}
