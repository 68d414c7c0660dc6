//! Bytes to values.

use super::kind::{Array, Composite, Enum, Int, Kind, Member as MemberType, TypeId};
use super::value::{Member, Value, ValueError};
use super::{Btf, DISCRIMINANT, LongDouble, MAX_DEPTH};

/// Most values one call makes. Unions inside unions can ask for any number of views of a few bytes.
const MAX_VALUES: usize = 1 << 20;

impl Btf {
    /// Takes bytes apart as a value of the type. More bytes than the type has are ignored (values
    /// in maps are padded).
    ///
    /// # Errors
    /// When the type has no size or is damaged, when there are too few bytes, or when it has more
    /// than a million parts.
    pub fn decode(&self, type_id: TypeId, bytes: &[u8]) -> Result<Value, ValueError> {
        Decoder { btf: self, left: MAX_VALUES }.any(type_id, bytes, 0)
    }

    /// Takes a bit field out of the bytes it lies in.
    pub(crate) fn decode_bitfield(
        &self,
        type_id: TypeId,
        offset: u32,
        width: u32,
        bytes: &[u8],
    ) -> Result<Value, ValueError> {
        let member = MemberType { name_off: 0, type_id, bit_offset: offset, bitfield: width as u8 };
        Decoder { btf: self, left: MAX_VALUES }.bitfield(&member, bytes)
    }
}

struct Decoder<'a> {
    btf: &'a Btf,
    /// Values that may still be made.
    left: usize,
}

impl Decoder<'_> {
    fn any(&mut self, id: TypeId, bytes: &[u8], depth: usize) -> Result<Value, ValueError> {
        let too_large = || ValueError::TooLarge { ty: self.btf.describe(id) };
        if depth >= MAX_DEPTH || self.left == 0 {
            return Err(too_large());
        }
        self.left -= 1;
        let (_, t) = self.btf.resolve(id)?;
        let size = self.btf.size_of(id)?;
        let have = bytes.len() as u64;
        let Some(bytes) = usize::try_from(size).ok().and_then(|size| bytes.get(..size)) else {
            return Err(ValueError::Short { ty: self.btf.describe(id), want: size, have });
        };
        Ok(match &t.kind {
            Kind::Int(int) => {
                decode_int(int, bits(bytes, u32::from(int.offset), u32::from(int.bits)))
            }
            Kind::Ptr(_) => Value::Pointer(bits(bytes, 0, 64) as u64),
            Kind::Enum(e) | Kind::Enum64(e) => {
                self.enumeration(e, bits(bytes, 0, e.size * 8), e.size * 8)
            }
            // Others of this size are no numbers of x87.
            Kind::Float(16) if !is_quad(self.btf.string(t.name_off)) => long_double(bytes),
            Kind::Float(_) => float(bytes),
            Kind::Array(a) => self.array(a, bytes, depth)?,
            Kind::Struct(c) | Kind::Union(c) => self.members(id, c, bytes, depth)?,
            Kind::Var(v) => self.any(v.type_id, bytes, depth + 1)?,
            Kind::DataSec(d) => {
                let mut members = Vec::new();
                for var in &d.vars {
                    let at = bytes.get(var.offset as usize..).unwrap_or(&[]);
                    let value = self.any(var.type_id, at, depth + 1)?;
                    members.push(Member { name: self.btf.name(var.type_id).to_owned(), value });
                }
                Value::Struct(members)
            }
            _ => Value::Bytes(bytes.to_vec()),
        })
    }

    fn array(&mut self, a: &Array, bytes: &[u8], depth: usize) -> Result<Value, ValueError> {
        let size = self.btf.size_of(a.elem)? as usize;
        if size == 0 || a.len == 0 {
            return Ok(Value::Array(Vec::new()));
        }
        if self.is_char(a.elem)?
            && let Some(text) = text(bytes)
        {
            return Ok(Value::Text(text));
        }
        if bytes.len() / size > self.left {
            return Err(ValueError::TooLarge { ty: self.btf.describe(a.elem) });
        }
        bytes
            .chunks_exact(size)
            .map(|e| self.any(a.elem, e, depth + 1))
            .collect::<Result<_, _>>()
            .map(Value::Array)
    }

    /// Tells whether a type is a character. Clang calls `char` a signed integer and leaves out the
    /// encoding.
    fn is_char(&self, id: TypeId) -> Result<bool, ValueError> {
        let (id, t) = self.btf.resolve(id)?;
        Ok(
            matches!(&t.kind, Kind::Int(i) if i.size == 1 && (i.char || self.btf.name(id) == "char")),
        )
    }

    fn members(
        &mut self,
        id: TypeId,
        c: &Composite,
        bytes: &[u8],
        depth: usize,
    ) -> Result<Value, ValueError> {
        let variant = self.variant(c, bytes)?;
        let members = variant.map_or(&*c.members, std::slice::from_ref);
        let mut out = Vec::with_capacity(members.len().min(self.left));
        for (at, m) in members.iter().enumerate() {
            // A base class is there twice (`dwarf::merge`): by its name it keeps its members apart from those
            // of others.
            let next = members.get(at + 1);
            let name = self.btf.string(m.name_off);
            if name.is_empty()
                && next.is_some_and(|n| {
                    (n.type_id, n.bit_offset) == (m.type_id, m.bit_offset)
                        && self.btf.string(n.name_off) == self.btf.name(m.type_id)
                })
            {
                continue;
            }
            let value = if m.bitfield != 0 {
                self.bitfield(m, bytes)?
            } else {
                let at = bytes.get((m.bit_offset / 8) as usize..);
                let at = at.ok_or_else(|| ValueError::TooLarge { ty: self.btf.describe(id) })?;
                self.any(m.type_id, at, depth + 1)?
            };
            out.push(Member { name: name.to_owned(), value });
        }
        Ok(Value::Struct(out))
    }

    /// Of the variants of an enumeration of Rust, finds the one that is there.
    fn variant<'c>(
        &mut self,
        c: &'c Composite,
        bytes: &[u8],
    ) -> Result<Option<&'c MemberType>, ValueError> {
        let Some((tag, variants)) = c.members.split_first() else { return Ok(None) };
        if self.btf.string(tag.name_off) != DISCRIMINANT {
            return Ok(None);
        }
        let (_, t) = self.btf.resolve(tag.type_id)?;
        let (Kind::Enum(e) | Kind::Enum64(e)) = &t.kind else { return Ok(None) };
        let width = e.size.saturating_mul(8);
        let value = self.enumeration(e, bits(bytes, tag.bit_offset, width), width);
        let Value::Enum { name, .. } = value else { return Ok(None) };
        let name_of = |m: &&MemberType| self.btf.string(m.name_off);
        let is_numbered =
            |m: &&MemberType| e.values.iter().any(|v| self.btf.string(v.name_off) == name_of(m));
        Ok(match name {
            Some(name) => variants.iter().find(|m| name_of(m) == name),
            None => variants.iter().find(|m| !is_numbered(m)),
        })
    }

    fn bitfield(&mut self, m: &MemberType, bytes: &[u8]) -> Result<Value, ValueError> {
        self.left = self.left.saturating_sub(1);
        let (_, t) = self.btf.resolve(m.type_id)?;
        let width = u32::from(m.bitfield);
        let raw = bits(bytes, m.bit_offset, width);
        Ok(match &t.kind {
            Kind::Enum(e) | Kind::Enum64(e) => self.enumeration(e, raw, width),
            Kind::Int(i) => decode_int(&Int { bits: m.bitfield, ..*i }, raw),
            _ => Value::Uint(raw),
        })
    }

    fn enumeration(&self, e: &Enum, raw: u128, width: u32) -> Value {
        let value = if e.signed { sign_extend(raw, width) } else { raw as i128 };
        let named = e.values.iter().find(|v| {
            if e.signed {
                i128::from(v.value) == value
            } else {
                i128::from(v.value as u64) == value
            }
        });
        Value::Enum { name: named.map(|v| self.btf.string(v.name_off).to_owned()), value }
    }
}

fn decode_int(int: &Int, raw: u128) -> Value {
    match raw {
        0 | 1 if int.bool => Value::Bool(raw == 1),
        _ if int.char && int.bits == 8 => Value::Char(raw as u8),
        _ if int.char && int.bits == 32 => match char::from_u32(raw as u32) {
            Some(c) => Value::Unicode(c),
            None => Value::Uint(raw),
        },
        _ if int.signed && int.size > 8 => Value::Int128(sign_extend(raw, u32::from(int.bits))),
        _ if int.signed => Value::Int(sign_extend(raw, u32::from(int.bits))),
        _ if int.size > 8 => Value::Uint128(raw),
        _ => Value::Uint(raw),
    }
}

/// Reads `width` bits from bit `offset` on, little-endian, at most 128; bits outside `bytes` are 0.
fn bits(bytes: &[u8], offset: u32, width: u32) -> u128 {
    let (skip, shift, width) = ((offset / 8) as usize, offset % 8, width.min(128));
    let mut out: u128 = 0;
    for (i, byte) in bytes.iter().skip(skip).take(17).enumerate() {
        let at = i as u32 * 8;
        let byte = u128::from(*byte);
        out |= if at >= shift { byte.checked_shl(at - shift).unwrap_or(0) } else { byte >> shift };
    }
    if width == 128 { out } else { out & ((1 << width) - 1) }
}

fn sign_extend(raw: u128, width: u32) -> i128 {
    match width {
        1..128 => (raw << (128 - width)) as i128 >> (128 - width),
        _ => raw as i128,
    }
}

/// Tells whether a number of 16 bytes has all of them, by its type's name in C or Fortran.
fn is_quad(name: &str) -> bool {
    name.contains("128") || name.contains("kind=16")
}

fn long_double(bytes: &[u8]) -> Value {
    match bytes.first_chunk() {
        Some(bytes) => Value::LongDouble(LongDouble(*bytes)),
        None => Value::Bytes(bytes.to_vec()),
    }
}

fn float(bytes: &[u8]) -> Value {
    if let Ok(b) = <[u8; 8]>::try_from(bytes) {
        Value::Float(f64::from_le_bytes(b))
    } else if let Ok(b) = <[u8; 4]>::try_from(bytes) {
        Value::of_f32(f32::from_le_bytes(b))
    } else {
        Value::Bytes(bytes.to_vec())
    }
}

/// Returns the text of a character array, when it is text; what stands behind the zero byte is left
/// over from before.
fn text(bytes: &[u8]) -> Option<String> {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    let s = str::from_utf8(bytes.get(..end)?).ok()?;
    let printable = |c: char| !c.is_control() || matches!(c, '\n' | '\t' | '\r');
    s.chars().all(printable).then(|| s.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_agree_with_counting_them_one_by_one() {
        let bytes: Vec<u8> = (0..24u8).map(|i| i.wrapping_mul(151).wrapping_add(77)).collect();
        for offset in 0..64 {
            for width in 1..=128u32 {
                let slow = (0..width).fold(0u128, |acc, i| {
                    let bit = offset + i;
                    acc | u128::from(bytes[bit as usize / 8] >> (bit % 8) & 1) << i
                });
                assert_eq!(bits(&bytes, offset, width), slow, "{offset} {width}");
            }
        }
    }
}
