//! Bytes to types. Header, then types one behind the other, then strings.

use super::kind::{
    Array, Composite, DataSec, DeclTag, Enum, EnumValue, Func, FuncProto, Int, Kind, Linkage,
    Member, Param, SecVar, Type, TypeId, Var, number,
};
use super::{Btf, BtfError};

const MAGIC: u16 = 0xeb9f;
const HEADER: usize = 24;
/// Most types an object may have (include/uapi/linux/btf.h `BTF_MAX_TYPE`).
const MAX_TYPES: usize = 0x000f_ffff;

/// A cursor over little-endian words that knows where it is.
pub(super) struct Words<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Offset of `bytes` in the whole, for messages.
    base: usize,
}

impl<'a> Words<'a> {
    pub(super) fn new(bytes: &'a [u8], base: usize) -> Self {
        Self { bytes, at: 0, base }
    }

    pub(super) fn offset(&self) -> usize {
        self.base + self.at
    }

    pub(super) fn done(&self) -> bool {
        self.at >= self.bytes.len()
    }

    pub(super) fn take(&mut self, n: usize) -> Result<&'a [u8], BtfError> {
        let end = self.at.checked_add(n).ok_or(BtfError::Truncated { offset: self.offset() })?;
        let out = self
            .bytes
            .get(self.at..end)
            .ok_or(BtfError::Truncated { offset: self.base + self.bytes.len() })?;
        self.at = end;
        Ok(out)
    }

    pub(super) fn u32(&mut self) -> Result<u32, BtfError> {
        Ok(word(self.take(4)?))
    }

    /// Reads `n` records of `K` words each; the bounds are checked before memory is asked for.
    fn records<const K: usize, T>(
        &mut self,
        n: usize,
        mut each: impl FnMut([u32; K]) -> T,
    ) -> Result<Box<[T]>, BtfError> {
        let bytes =
            self.take(n.checked_mul(K * 4).ok_or(BtfError::Truncated { offset: self.offset() })?)?;
        let (words, _) = bytes.as_chunks::<4>();
        Ok(words
            .as_chunks::<K>()
            .0
            .iter()
            .map(|record| each(record.map(u32::from_le_bytes)))
            .collect())
    }
}

fn word(bytes: &[u8]) -> u32 {
    bytes.first_chunk::<4>().map_or(0, |b| u32::from_le_bytes(*b))
}

impl Btf {
    /// Reads type information as it stands in a `.BTF` section.
    ///
    /// # Errors
    /// When the data is damaged or refers to types that do not exist. Big-endian data is refused.
    pub fn parse(bytes: &[u8]) -> Result<Self, BtfError> {
        let head =
            bytes.first_chunk::<HEADER>().ok_or(BtfError::Truncated { offset: bytes.len() })?;
        match u16::from_le_bytes([head[0], head[1]]) {
            MAGIC => {}
            m if m == MAGIC.swap_bytes() => {
                return Err(BtfError::Header { what: "big-endian data" });
            }
            _ => return Err(BtfError::Header { what: "wrong magic number" }),
        }
        if head[2] != 1 {
            return Err(BtfError::Header { what: "unknown version" });
        }
        let field = |at: usize| head.get(at..).map_or(0, word) as usize;
        let head_len = field(4);
        if head_len < HEADER {
            return Err(BtfError::Header { what: "length below 24" });
        }
        let part = |off: usize, len: usize| {
            let start = head_len.checked_add(off)?;
            Some((start, bytes.get(start..start.checked_add(len)?)?))
        };
        let (types_at, types) = part(field(8), field(12))
            .ok_or(BtfError::Header { what: "types lie outside the data" })?;
        let (strings_at, strings) = part(field(16), field(20))
            .ok_or(BtfError::Header { what: "strings lie outside the data" })?;
        // As libbpf has it (`btf_parse_hdr`). What is written to types must not change names.
        if types_at + types.len() > strings_at {
            return Err(BtfError::Header { what: "strings begin before the types end" });
        }
        if strings.first().is_some_and(|b| *b != 0) && strings.last() == Some(&0) {
            return Err(BtfError::Header {
                what: "types that are split from a base (those of a kernel module) are not supported",
            });
        }
        if strings.first().is_some_and(|b| *b != 0) || strings.last().is_some_and(|b| *b != 0) {
            return Err(BtfError::Header { what: "strings do not begin and end with a zero byte" });
        }
        let strings = lossy(strings);
        let types = parse_types(types, types_at, &strings)?;
        Ok(Self { raw: bytes.to_vec(), strings, types, places: Vec::new() })
    }

    /// Fills in what the compiler leaves to the linker: the size of a section and where its
    /// variables start.
    pub(crate) fn place_section(
        &mut self,
        id: TypeId,
        size: u32,
        offset_of: impl Fn(TypeId) -> Option<u32>,
    ) {
        let Some(mut at) = self.position(id) else { return };
        let Some(Type { kind: Kind::DataSec(sec), .. }) = self.types.get_mut(id as usize) else {
            return;
        };
        sec.size = size;
        for var in &mut sec.vars {
            if let Some(offset) = offset_of(var.type_id) {
                var.offset = offset;
            }
        }
        sec.vars.sort_by_cached_key(|v| u64::from(v.offset));
        let mut put = |at: usize, value: u32| {
            if let Some(bytes) = self.raw.get_mut(at..).and_then(|r| r.first_chunk_mut::<4>()) {
                *bytes = value.to_le_bytes();
            }
        };
        put(at + 8, size);
        at += 12;
        for var in &sec.vars {
            put(at, var.type_id);
            put(at + 4, var.offset);
            put(at + 8, var.size);
            at += 12;
        }
    }

    /// Finds where a type stands in the raw bytes.
    fn position(&self, id: TypeId) -> Option<usize> {
        let mut at = word(self.raw.get(4..)?) as usize + word(self.raw.get(8..)?) as usize;
        for t in self.types.get(1..id as usize)? {
            at += 12 + tail_len(&t.kind);
        }
        Some(at)
    }
}

/// Bytes behind the twelve that every type has.
fn tail_len(kind: &Kind) -> usize {
    match kind {
        Kind::Int(_) | Kind::Var(_) | Kind::DeclTag(_) => 4,
        Kind::Array(_) => 12,
        Kind::Struct(c) | Kind::Union(c) => c.members.len() * 12,
        Kind::Enum(e) => e.values.len() * 8,
        Kind::Enum64(e) => e.values.len() * 12,
        Kind::FuncProto(p) => p.params.len() * 8,
        Kind::DataSec(d) => d.vars.len() * 12,
        _ => 0,
    }
}

/// Copies text byte for byte; what is not UTF-8 becomes `?`, so that offsets stay what they were.
fn lossy(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        out.push_str(chunk.valid());
        out.extend(chunk.invalid().iter().map(|_| '?'));
    }
    out
}

fn parse_types(bytes: &[u8], base: usize, strings: &str) -> Result<Vec<Type>, BtfError> {
    let mut w = Words::new(bytes, base);
    // The smallest type takes 12 bytes, so this cannot ask for more memory than a small multiple of
    // the input.
    let mut types = Vec::with_capacity(bytes.len() / 16 + 1);
    types.push(Type { name_off: 0, kind: Kind::Void });
    while !w.done() {
        let id = types.len() as TypeId;
        if types.len() > MAX_TYPES {
            return Err(BtfError::Type { id, what: "too many types" });
        }
        let (name_off, info, word) = (w.u32()?, w.u32()?, w.u32()?);
        if name_off as usize >= strings.len().max(1) {
            return Err(BtfError::Type { id, what: "the name lies outside the strings" });
        }
        types.push(Type { name_off, kind: parse_kind(&mut w, id, info, word)? });
    }
    let known = types.len() as u32;
    for (id, t) in (0..).zip(&types) {
        let mut missing = false;
        t.kind.each_reference(|to| missing |= to >= known);
        if missing {
            return Err(BtfError::Type { id, what: "it refers to a type that does not exist" });
        }
    }
    Ok(types)
}

fn parse_kind(w: &mut Words<'_>, id: TypeId, info: u32, word: u32) -> Result<Kind, BtfError> {
    let bad = |what| BtfError::Type { id, what };
    let vlen = (info & 0xffff) as usize;
    let flag = info >> 31 != 0;
    let linkage = |n: u32| match n {
        0 => Ok(Linkage::Static),
        1 => Ok(Linkage::Global),
        2 => Ok(Linkage::Extern),
        _ => Err(bad("unknown linkage")),
    };
    Ok(match (info >> 24) & 0x1f {
        number::INT => int(word, w.u32()?).ok_or(bad("an integer of impossible size"))?,
        number::PTR => Kind::Ptr(word),
        number::ARRAY => Kind::Array(Array { elem: w.u32()?, index: w.u32()?, len: w.u32()? }),
        kind @ (number::STRUCT | number::UNION) => {
            let members = w.records(vlen, |[name_off, type_id, offset]| {
                let (bit_offset, bitfield) =
                    if flag { (offset & 0x00ff_ffff, (offset >> 24) as u8) } else { (offset, 0) };
                Member { name_off, type_id, bit_offset, bitfield }
            })?;
            let composite = Composite { size: word, members };
            if kind == number::STRUCT { Kind::Struct(composite) } else { Kind::Union(composite) }
        }
        number::ENUM => {
            // One that is only declared has neither size nor values.
            if !matches!((word, vlen), (1 | 2 | 4 | 8, _) | (0, 0)) {
                return Err(bad("an enumeration of impossible size"));
            }
            let extend = |v: u32| if flag { i64::from(v as i32) } else { i64::from(v) };
            let values =
                w.records(vlen, |[name_off, value]| EnumValue { name_off, value: extend(value) })?;
            Kind::Enum(Enum { size: word, signed: flag, values })
        }
        number::FWD => Kind::Fwd { union: flag },
        number::TYPEDEF => Kind::Typedef(word),
        number::VOLATILE => Kind::Volatile(word),
        number::CONST => Kind::Const(word),
        number::RESTRICT => Kind::Restrict(word),
        number::FUNC => Kind::Func(Func { linkage: linkage(vlen as u32)?, proto: word }),
        number::FUNC_PROTO => Kind::FuncProto(FuncProto {
            ret: word,
            params: w.records(vlen, |[name_off, type_id]| Param { name_off, type_id })?,
        }),
        number::VAR => Kind::Var(Var { linkage: linkage(w.u32()?)?, type_id: word }),
        number::DATASEC => {
            let vars =
                w.records(vlen, |[type_id, offset, size]| SecVar { type_id, offset, size })?;
            Kind::DataSec(DataSec { size: word, vars })
        }
        number::FLOAT => {
            if !matches!(word, 2 | 4 | 8 | 12 | 16) {
                return Err(bad("a floating-point number of impossible size"));
            }
            Kind::Float(word)
        }
        number::DECL_TAG => {
            let component = w.u32()?;
            Kind::DeclTag(DeclTag {
                type_id: word,
                component: (component != u32::MAX).then_some(component),
            })
        }
        number::TYPE_TAG => Kind::TypeTag(word),
        number::ENUM64 => {
            if !matches!(word, 1 | 2 | 4 | 8) {
                return Err(bad("an enumeration of impossible size"));
            }
            let values = w.records(vlen, |[name_off, low, high]| EnumValue {
                name_off,
                value: (u64::from(low) | u64::from(high) << 32) as i64,
            })?;
            Kind::Enum64(Enum { size: word, signed: flag, values })
        }
        _ => return Err(bad("unknown kind")),
    })
}

/// The two words of an integer.
fn int(size: u32, data: u32) -> Option<Kind> {
    let (encoding, offset, bits) = ((data >> 24) & 0xf, (data >> 16) as u8, data as u8);
    let is_possible = (1..=16).contains(&size) && u32::from(offset) + u32::from(bits) <= size * 8;
    is_possible.then_some(Kind::Int(Int {
        size,
        bits,
        offset,
        signed: encoding & 1 != 0,
        char: encoding & 2 != 0,
        bool: encoding & 4 != 0,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Puts a header around types and strings.
    pub(crate) fn whole(types: &[u32], strings: &[u8]) -> Vec<u8> {
        let len = (types.len() * 4) as u32;
        let mut out = vec![0x9f, 0xeb, 1, 0];
        for word in [24, 0, len, len, strings.len() as u32] {
            out.extend(u32::to_le_bytes(word));
        }
        types.iter().for_each(|w| out.extend(w.to_le_bytes()));
        out.extend(strings);
        out
    }

    #[test]
    fn a_circle_of_typedefs_is_an_error_not_a_hang() {
        let btf = Btf::parse(&whole(&[1, 8 << 24, 2, 1, 8 << 24, 1], b"\0t\0"))
            .expect("both types exist");
        assert_eq!(btf.resolve(1), Err(BtfError::Depth { id: 1 }));
        assert_eq!(btf.size_of(2), Err(BtfError::Depth { id: 2 }));
        assert_eq!(btf.describe(1), "t");
    }

    #[test]
    fn a_reference_to_nowhere_is_refused() {
        let e = Btf::parse(&whole(&[0, 2 << 24, 7], b"\0"));
        assert_eq!(
            e,
            Err(BtfError::Type { id: 1, what: "it refers to a type that does not exist" })
        );
    }

    #[test]
    fn strings_keep_their_offsets_when_they_are_not_utf8() {
        let btf = Btf::parse(&whole(
            &[3, 7 << 24, 0],
            b"\0\xffa\0".as_slice().iter().chain(b"bc\0").copied().collect::<Vec<_>>().as_slice(),
        ));
        let btf = btf.expect("bytes that are no text are no damage");
        assert_eq!(
            (btf.string(1), btf.string(4), btf.string(2), btf.string(99)),
            ("?a", "bc", "a", "")
        );
    }

    /// A name inside the types would not be that of these bytes any more when the loader has filled in
    /// where variables are.
    #[test]
    fn names_do_not_lie_in_types() {
        let mut b = whole(&[0, 1 << 24, 4, 32], b"\0int\0");
        assert!(Btf::parse(&b).is_ok());
        let strings_at = 16;
        assert_eq!(b[strings_at..strings_at + 4], 16_u32.to_le_bytes());
        for at in [15_u32, 12, 8, 0] {
            b[strings_at..strings_at + 4].copy_from_slice(&at.to_le_bytes());
            let what = "strings begin before the types end";
            assert_eq!(Btf::parse(&b), Err(BtfError::Header { what }), "{at}");
        }
    }

    #[test]
    fn both_byte_orders_are_told_apart() {
        let mut b = whole(&[], b"\0");
        b.swap(0, 1);
        assert_eq!(Btf::parse(&b), Err(BtfError::Header { what: "big-endian data" }));
    }
}
