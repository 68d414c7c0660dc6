//! Values to bytes.

use super::kind::{Array, Composite, Enum, Kind, TypeId};
use super::value::{Value, ValueError};
use super::{Btf, MAX_DEPTH};
use std::collections::HashSet;

/// Largest value that is made, as for one map value in the kernel (`KMALLOC_MAX_SIZE`, 4 MiB on
/// x86-64).
const MAX_BYTES: u64 = 4 << 20;

/// Says where a value lies among the bytes of another, in bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Bits {
    pub type_id: TypeId,
    pub offset: u32,
    /// Width of a bit field; 0 for what has bytes of its own.
    pub width: u32,
}

impl Btf {
    /// Overwrites a part of a value's bytes.
    pub(crate) fn encode_at(
        &self,
        place: &Bits,
        value: &Value,
        out: &mut [u8],
    ) -> Result<(), ValueError> {
        if place.width != 0 {
            return self.put_bitfield(place, value, out, "");
        }
        let bytes = self.encode(place.type_id, value)?;
        let have = out.len() as u64;
        let start = (place.offset / 8) as usize;
        let to = start.checked_add(bytes.len()).and_then(|end| out.get_mut(start..end));
        let to = to.ok_or_else(|| ValueError::Short {
            ty: self.describe(place.type_id),
            want: bytes.len() as u64,
            have,
        })?;
        to.copy_from_slice(&bytes);
        Ok(())
    }

    /// Makes the bytes of a type from a value; members that are left out are zero.
    ///
    /// Shapes are taken as people write them: a number serves for a character, a truth value, an
    /// enumeration or a pointer, text for a name of an enumeration, and shorter arrays and
    /// texts are filled up with zeros.
    ///
    /// # Errors
    /// When the shape differs, a number does not fit or a member is unknown, with the path to the
    /// place.
    pub fn encode(&self, type_id: TypeId, value: &Value) -> Result<Vec<u8>, ValueError> {
        let size = self.size_of(type_id)?;
        if size > MAX_BYTES {
            return Err(ValueError::TooLarge { ty: self.describe(type_id) });
        }
        let mut out = vec![0; size as usize];
        self.put(type_id, value, &mut out, &mut String::new(), 0)?;
        Ok(out)
    }

    fn put(
        &self,
        id: TypeId,
        value: &Value,
        out: &mut [u8],
        path: &mut String,
        depth: usize,
    ) -> Result<(), ValueError> {
        if depth >= MAX_DEPTH {
            return Err(ValueError::TooLarge { ty: self.describe(id) });
        }
        let size = self.size_of(id)?;
        let have = out.len() as u64;
        let Some(out) = usize::try_from(size).ok().and_then(|size| out.get_mut(..size)) else {
            return Err(ValueError::Short { ty: self.describe(id), want: size, have });
        };
        if let Value::Bytes(bytes) = value
            && bytes.len() == out.len()
        {
            out.copy_from_slice(bytes);
            return Ok(());
        }
        let (_, t) = self.resolve(id)?;
        match (&t.kind, value) {
            (Kind::Int(int), _) => {
                let n = match value {
                    // The same eight bits, whether characters have a sign or not.
                    Value::Char(c) if int.signed => i128::from(*c as i8),
                    _ => number(value).ok_or_else(|| self.mismatch(id, value, path))?,
                };
                let raw = self.in_range(id, n, u32::from(int.bits), int.signed, path)?;
                put_bits(out, u32::from(int.offset), u32::from(int.bits), raw);
            }
            (Kind::Ptr(_), _) => {
                let n = number(value).ok_or_else(|| self.mismatch(id, value, path))?;
                put_bits(out, 0, 64, self.in_range(id, n, 64, false, path)?);
            }
            (Kind::Enum(e) | Kind::Enum64(e), _) => {
                let n = self.enum_number(id, e, value, path)?;
                put_bits(out, 0, e.size * 8, self.in_range(id, n, e.size * 8, e.signed, path)?);
            }
            (Kind::Float(4 | 8), _) => {
                let x = match value {
                    Value::Float(x) => *x,
                    _ => number(value).ok_or_else(|| self.mismatch(id, value, path))? as f64,
                };
                if !put_float(x, out) {
                    return Err(self.mismatch(id, value, path));
                }
            }
            (Kind::Array(a), _) => self.put_array(id, a, value, out, path, depth)?,
            (Kind::Struct(c) | Kind::Union(c), _) => {
                self.put_members(id, c, value, out, path, depth)?
            }
            (Kind::Var(v), _) => self.put(v.type_id, value, out, path, depth + 1)?,
            (Kind::DataSec(d), Value::Struct(given)) => {
                for m in given {
                    let var = d.vars.iter().find(|v| self.name(v.type_id) == m.name);
                    let var = var.ok_or_else(|| self.no_member(id, &m.name, path))?;
                    let at = out.get_mut(var.offset as usize..).unwrap_or_default();
                    within(path, &format!(".{}", m.name), |path| {
                        self.put(var.type_id, &m.value, at, path, depth + 1)
                    })?;
                }
            }
            _ => return Err(self.mismatch(id, value, path)),
        }
        Ok(())
    }

    fn put_array(
        &self,
        id: TypeId,
        a: &Array,
        value: &Value,
        out: &mut [u8],
        path: &mut String,
        depth: usize,
    ) -> Result<(), ValueError> {
        let size = self.size_of(a.elem)? as usize;
        match value {
            Value::Text(s) if size == 1 && s.len() <= out.len() => {
                out.iter_mut().zip(s.bytes()).for_each(|(to, from)| *to = from);
                Ok(())
            }
            Value::Text(s) if size == 1 && self.is_text(a) => Err(ValueError::LongText {
                path: named(path),
                value: short(value),
                len: s.len(),
                ty: self.describe(id),
            }),
            Value::Array(elems) if elems.len() as u64 <= u64::from(a.len) => {
                for (i, e) in elems.iter().enumerate() {
                    let at = out.get_mut(i * size..).unwrap_or_default();
                    within(path, &format!("[{i}]"), |path| {
                        self.put(a.elem, e, at, path, depth + 1)
                    })?;
                }
                Ok(())
            }
            _ => Err(self.mismatch(id, value, path)),
        }
    }

    fn put_members(
        &self,
        id: TypeId,
        c: &Composite,
        value: &Value,
        out: &mut [u8],
        path: &mut String,
        depth: usize,
    ) -> Result<(), ValueError> {
        let Value::Struct(given) = value else { return Err(self.mismatch(id, value, path)) };
        let mut anonymous = c.members.iter().filter(|m| self.string(m.name_off).is_empty());
        for g in given {
            let found = if g.name.is_empty() {
                anonymous.next()
            } else {
                c.members.iter().find(|m| self.string(m.name_off) == g.name)
            };
            let Some(m) = found else {
                // A member of an anonymous structure inside may be given without its wrapper.
                let inner = c.members.iter().find(|m| {
                    self.string(m.name_off).is_empty() && self.has_member(m.type_id, &g.name)
                });
                let m = inner.ok_or_else(|| self.no_member(id, &g.name, path))?;
                let at = out.get_mut((m.bit_offset / 8) as usize..).unwrap_or_default();
                self.put(m.type_id, &Value::Struct(vec![g.clone()]), at, path, depth + 1)?;
                continue;
            };
            let step = if g.name.is_empty() { String::new() } else { format!(".{}", g.name) };
            within(path, &step, |path| {
                if m.bitfield == 0 {
                    let at = out.get_mut((m.bit_offset / 8) as usize..).unwrap_or_default();
                    return self.put(m.type_id, &g.value, at, path, depth + 1);
                }
                let place =
                    Bits { type_id: m.type_id, offset: m.bit_offset, width: u32::from(m.bitfield) };
                self.put_bitfield(&place, &g.value, out, path)
            })?;
        }
        Ok(())
    }

    fn put_bitfield(
        &self,
        place: &Bits,
        value: &Value,
        out: &mut [u8],
        path: &str,
    ) -> Result<(), ValueError> {
        let (_, t) = self.resolve(place.type_id)?;
        let (n, signed) = match &t.kind {
            Kind::Enum(e) | Kind::Enum64(e) => {
                (self.enum_number(place.type_id, e, value, path)?, e.signed)
            }
            Kind::Int(i) => {
                (number(value).ok_or_else(|| self.mismatch(place.type_id, value, path))?, i.signed)
            }
            _ => return Err(self.mismatch(place.type_id, value, path)),
        };
        put_bits(
            out,
            place.offset,
            place.width,
            self.in_range(place.type_id, n, place.width, signed, path)?,
        );
        Ok(())
    }

    /// Tells whether a structure has a member of this name, also inside anonymous members.
    fn has_member(&self, id: TypeId, name: &str) -> bool {
        let mut seen = HashSet::new();
        let mut open = vec![id];
        while let Some(id) = open.pop() {
            let Ok((id, t)) = self.resolve(id) else { continue };
            let (Kind::Struct(c) | Kind::Union(c)) = &t.kind else { continue };
            if !seen.insert(id) {
                continue;
            }
            for m in &c.members {
                match self.string(m.name_off) {
                    "" => open.push(m.type_id),
                    n if n == name => return true,
                    _ => {}
                }
            }
        }
        false
    }

    fn enum_number(
        &self,
        id: TypeId,
        e: &Enum,
        value: &Value,
        path: &str,
    ) -> Result<i128, ValueError> {
        if let Value::Text(name) = value {
            let v = e
                .values
                .iter()
                .find(|v| self.string(v.name_off) == name)
                .ok_or_else(|| self.mismatch(id, value, path))?;
            return Ok(if e.signed { i128::from(v.value) } else { i128::from(v.value as u64) });
        }
        number(value).ok_or_else(|| self.mismatch(id, value, path))
    }

    /// Checks a number against a width and returns its bits.
    fn in_range(
        &self,
        id: TypeId,
        n: i128,
        width: u32,
        signed: bool,
        path: &str,
    ) -> Result<u128, ValueError> {
        let fits = match width {
            0 => n == 0,
            128.. => true,
            w if signed => n >> (w - 1) == 0 || n >> (w - 1) == -1,
            w => n >> w == 0,
        };
        if fits {
            Ok(n as u128)
        } else {
            Err(ValueError::Range { path: named(path), value: n, ty: self.describe(id) })
        }
    }

    fn mismatch(&self, id: TypeId, value: &Value, path: &str) -> ValueError {
        ValueError::Mismatch { path: named(path), value: short(value), ty: self.describe(id) }
    }

    fn no_member(&self, id: TypeId, member: &str, path: &str) -> ValueError {
        ValueError::NoMember { path: named(path), ty: self.describe(id), member: member.to_owned() }
    }
}

/// A value as it is printed, or its beginning.
fn short(value: &Value) -> String {
    let mut short = value.to_string();
    if let Some((end, _)) = short.char_indices().nth(40) {
        short.truncate(end);
        short.push('…');
        if matches!(value, Value::Text(_)) {
            short.push('"');
        }
    }
    short
}

/// Makes a path printable: the outermost value has none.
fn named(path: &str) -> String {
    if path.is_empty() { "value".to_owned() } else { path.to_owned() }
}

fn number(value: &Value) -> Option<i128> {
    match value {
        // All 128 bits of an unsigned number are kept; `fit` looks at widths below that.
        Value::Uint(n) | Value::Uint128(n) => Some(*n as i128),
        v => v.as_i128(),
    }
}

fn within<T>(path: &mut String, step: &str, f: impl FnOnce(&mut String) -> T) -> T {
    let here = path.len();
    path.push_str(step);
    let out = f(path);
    path.truncate(here);
    out
}

/// Stores a number of four or eight bytes; `false` when it is too large for four. What is no number
/// says nothing of its bits: of a union another member may have, and those stay.
fn put_float(x: f64, out: &mut [u8]) -> bool {
    let narrow = x as f32;
    match out {
        [a, b, c, d] if x.is_nan() && f32::from_le_bytes([*a, *b, *c, *d]).is_nan() => {}
        [_, _, _, _] if x.is_finite() && narrow.is_infinite() => return false,
        [_, _, _, _] => out.copy_from_slice(&narrow.to_le_bytes()),
        _ => {
            let is_none = out.first_chunk().is_some_and(|b| f64::from_le_bytes(*b).is_nan());
            if !(x.is_nan() && is_none) {
                out.copy_from_slice(&x.to_le_bytes());
            }
        }
    }
    true
}

/// Writes `width` bits at bit `offset`, little-endian; what lies outside `out` is dropped.
fn put_bits(out: &mut [u8], offset: u32, width: u32, raw: u128) {
    for i in 0..width.min(128) {
        let bit = offset + i;
        if let Some(byte) = out.get_mut((bit / 8) as usize) {
            let mask = 1 << (bit % 8);
            if raw >> i & 1 == 0 { *byte &= !mask } else { *byte |= mask }
        }
    }
}
