//! Elements straight to text, for maps with millions of them: what a type looks like is found out
//! once, not for each value.
//!
//! Numbers, pointers and structures of them, and numbers without a type, are written from their
//! bytes. Anything else goes the way of [`Entries::entry`], and both ways print the same.

use std::io::Write;

use skep_isa::KeyShape;
use skep_object::Btf;
use skep_object::btf::{Kind, TypeId};

use crate::entries::Entries;
use crate::value::to_json;

/// How an element is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Style {
    /// `key: value`, a line each.
    Text,
    /// `{"key":…,"value":…}`, with commas between.
    Json,
}

/// A type whose values are written from their bytes.
#[derive(Debug)]
enum Node {
    Uint(usize),
    Int(usize),
    Pointer,
    /// Name, offset, type.
    Members(Vec<(String, usize, Node)>),
}

/// Writes the elements of one map.
#[derive(Debug)]
pub struct Layout<'a> {
    entries: &'a Entries<'a>,
    style: Style,
    /// There are no types.
    plain: bool,
    key: Option<Node>,
    value: Option<Node>,
}

/// Structures inside structures that are looked into.
const DEEPEST: usize = 4;

impl<'a> Layout<'a> {
    /// Looks at the types of a map.
    pub fn new(entries: &'a Entries<'a>, style: Style) -> Self {
        let shape = entries.shape();
        let node = |id, size| match entries.btf().filter(|_| id != 0) {
            Some(btf) => node(btf, id, size, 0),
            None => Some(Node::Uint(size)).filter(|_| entries.is_number(size)),
        };
        let key = match shape.keys {
            KeyShape::Fixed(size) => node(shape.key_type_id, size as usize),
            KeyShape::Bytes { .. } => None,
        };
        let value = node(shape.value_type_id, shape.value_size)
            .filter(|_| style == Style::Json || !shape.per_cpu);
        Self { entries, style, plain: entries.btf().is_none(), key, value }
    }

    /// Appends an element.
    pub fn write(&self, out: &mut Vec<u8>, key: &[u8], value: &[u8]) {
        match self.style {
            Style::Text => self.text(out, key, value),
            Style::Json => self.json(out, key, value),
        }
    }

    fn text(&self, out: &mut Vec<u8>, key: &[u8], value: &[u8]) {
        if key.is_empty() {
            // A queue has values only.
            drop(writeln!(out, "{}", self.entries.value(value)));
            return;
        }
        let (Some(k), Some(v)) = (&self.key, &self.value) else {
            if self.plain && !self.entries.shape().per_cpu && !self.entries.has_text_keys() {
                let part = |out: &mut Vec<u8>, node: &Option<Node>, bytes: &[u8]| match node {
                    Some(node) => node.text(out, bytes),
                    None => {
                        out.extend_from_slice(b"0x");
                        hex(out, bytes);
                    }
                };
                part(out, &self.key, key);
                out.extend_from_slice(b": ");
                part(out, &self.value, value);
                out.push(b'\n');
            } else {
                out.extend_from_slice(self.entries.entry(key, value).text().as_bytes());
                out.push(b'\n');
            }
            return;
        };
        k.text(out, key);
        out.extend_from_slice(b": ");
        v.text(out, value);
        out.push(b'\n');
    }

    fn json(&self, out: &mut Vec<u8>, key: &[u8], value: &[u8]) {
        out.extend_from_slice(b"{\"key\":");
        match &self.key {
            None if key.is_empty() => out.extend_from_slice(b"null"),
            Some(k) => k.json(out, key),
            None if self.plain && !self.entries.has_text_keys() => quoted(out, key),
            None => any(out, &self.entries.key(key).json()),
        }
        out.extend_from_slice(b",\"value\":");
        let one = |out: &mut Vec<u8>, value: &[u8]| match &self.value {
            Some(v) => v.json(out, value),
            None if self.plain => quoted(out, value),
            None => any(out, &to_json(&self.entries.value(value))),
        };
        let shape = self.entries.shape();
        if shape.per_cpu {
            out.push(b'[');
            for (i, part) in value.chunks(shape.value_size.next_multiple_of(8).max(1)).enumerate() {
                if i > 0 {
                    out.push(b',');
                }
                one(out, part.get(..shape.value_size).unwrap_or(part));
            }
            out.push(b']');
        } else {
            one(out, value);
        }
        out.push(b'}');
    }
}

/// Finds out whether a type can be written from `have` bytes.
fn node(btf: &Btf, id: TypeId, have: usize, depth: usize) -> Option<Node> {
    let (_, t) = btf.resolve(id).ok()?;
    let size = usize::try_from(btf.size_of(id).ok()?).ok()?;
    if size > have || depth > DEEPEST {
        return None;
    }
    match &t.kind {
        Kind::Int(i)
            if matches!(size, 1 | 2 | 4 | 8)
                && i.offset == 0
                && usize::from(i.bits) == size * 8
                && !i.bool
                && !i.char =>
        {
            Some(if i.signed { Node::Int(size) } else { Node::Uint(size) })
        }
        Kind::Ptr(_) => Some(Node::Pointer).filter(|_| size == 8),
        Kind::Struct(c) => {
            let members = c.members.iter().map(|m| {
                let (name, at) = (btf.string(m.name_off), usize::try_from(m.bit_offset / 8).ok()?);
                // A name that JSON would write otherwise does not occur in C.
                let plain = !name.is_empty()
                    && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
                if m.bitfield != 0 || m.bit_offset % 8 != 0 || !plain {
                    return None;
                }
                Some((name.to_owned(), at, node(btf, m.type_id, have.checked_sub(at)?, depth + 1)?))
            });
            let members: Vec<_> = members.collect::<Option<_>>()?;
            Some(Node::Members(members)).filter(|_| !c.members.is_empty())
        }
        _ => None,
    }
}

fn word(bytes: &[u8], size: usize) -> u64 {
    bytes.iter().take(size).rev().fold(0, |n, b| n << 8 | u64::from(*b))
}

impl Node {
    fn number(&self, out: &mut Vec<u8>, bytes: &[u8]) {
        match self {
            Self::Uint(size) => decimal(out, word(bytes, *size)),
            Self::Int(size) => {
                let shift = 64 - 8 * *size as u32;
                let n = (word(bytes, *size) << shift) as i64 >> shift;
                if n < 0 {
                    out.push(b'-');
                }
                decimal(out, n.unsigned_abs());
            }
            Self::Pointer | Self::Members(_) => drop(write!(out, "{:#x}", word(bytes, 8))),
        }
    }

    fn text(&self, out: &mut Vec<u8>, bytes: &[u8]) {
        let Self::Members(members) = self else { return self.number(out, bytes) };
        for (i, (name, at, node)) in members.iter().enumerate() {
            out.extend_from_slice(if i == 0 { b"{ ." } else { b", ." });
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(b" = ");
            node.text(out, bytes.get(*at..).unwrap_or_default());
        }
        out.extend_from_slice(b" }");
    }

    fn json(&self, out: &mut Vec<u8>, bytes: &[u8]) {
        match self {
            Self::Members(members) => {
                for (i, (name, at, node)) in members.iter().enumerate() {
                    out.extend_from_slice(if i == 0 { b"{\"" } else { b",\"" });
                    out.extend_from_slice(name.as_bytes());
                    out.extend_from_slice(b"\":");
                    node.json(out, bytes.get(*at..).unwrap_or_default());
                }
                out.push(b'}');
            }
            Self::Pointer => {
                out.push(b'"');
                self.number(out, bytes);
                out.push(b'"');
            }
            _ => self.number(out, bytes),
        }
    }
}

fn any(out: &mut Vec<u8>, json: &serde_json::Value) {
    serde_json::to_writer(out, json).expect("writing to memory does not fail");
}

fn quoted(out: &mut Vec<u8>, bytes: &[u8]) {
    out.push(b'"');
    hex(out, bytes);
    out.push(b'"');
}

pub(crate) fn decimal(out: &mut Vec<u8>, n: u64) {
    digits(n, |digits| out.extend_from_slice(digits));
}

/// Gives `take` the decimal digits of a number.
pub(crate) fn digits(mut n: u64, take: impl FnOnce(&[u8])) {
    let (mut digits, mut at) = ([0; 20], 20);
    loop {
        at -= 1;
        digits[at] = b'0' + (n % 10) as u8;
        n /= 10;
        if n == 0 {
            break;
        }
    }
    take(&digits[at..]);
}

pub(crate) fn hex(out: &mut Vec<u8>, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    out.extend(
        bytes.iter().flat_map(|b| [DIGITS[usize::from(b >> 4)], DIGITS[usize::from(b & 15)]]),
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entries::Shape;
    use skep_isa::MapType;
    use skep_object::Object;

    /// Every type of an object as key and as value, from random bytes: the short way prints what
    /// the long way does.
    #[test]
    fn both_ways_print_the_same() {
        let mut seed = 7_u64;
        let mut byte = move || {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            // Small numbers and ends of ranges are as likely as others.
            match seed >> 61 {
                0..3 => 0,
                3 => 0xff,
                _ => (seed >> 40) as u8,
            }
        };
        let mut short = 0;
        for object in ["bpf/trace.bpf.o", "bpf/args.bpf.o", "tests/data/typed.bpf.o"] {
            let bytes = std::fs::read(format!("{}/../cli/{object}", env!("CARGO_MANIFEST_DIR")))
                .expect("committed");
            let btf = Object::parse(&bytes).expect("ours").btf.expect("made with -g");
            for id in 0..btf.len() as u32 {
                let Some(size) = btf
                    .size_of(id)
                    .ok()
                    .and_then(|n| usize::try_from(n).ok())
                    .filter(|n| (1..4096).contains(n))
                else {
                    continue;
                };
                for per_cpu in [false, true] {
                    let types = Some(&*btf).filter(|_| id % 5 != 0);
                    let (name, map_type) =
                        ("m".to_owned(), if id % 7 == 0 { MapType::Array } else { MapType::Hash });
                    let shape = Shape {
                        id: 1,
                        name,
                        map_type,
                        keys: KeyShape::Fixed(size as u32),
                        value_size: size,
                        per_cpu,
                        key_type_id: id,
                        value_type_id: id,
                    };
                    let entries = Entries::of(shape, types, false);
                    let cpus = if per_cpu { 2 } else { 1 };
                    let stride = if per_cpu { size.next_multiple_of(8) } else { size };
                    for _ in 0..8 {
                        let (key, value): (Vec<u8>, Vec<u8>) = (
                            (0..size).map(|_| byte()).collect(),
                            (0..stride * cpus).map(|_| byte()).collect(),
                        );
                        let entry = entries.entry(&key, &value);
                        for (style, want) in [
                            (Style::Text, entry.text() + "\n"),
                            (Style::Json, entry.json_of(&entries).to_string()),
                        ] {
                            let (layout, mut out) = (Layout::new(&entries, style), Vec::new());
                            layout.write(&mut out, &key, &value);
                            assert_eq!(
                                String::from_utf8_lossy(&out),
                                want,
                                "{object}: type {id}, {}",
                                btf.describe(id)
                            );
                            short += u32::from(layout.value.is_some());
                        }
                    }
                }
            }
        }
        assert!(short > 100, "the short way is taken");
    }
}
