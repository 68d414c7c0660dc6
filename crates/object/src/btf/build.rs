//! Types to bytes: BTF made from something else than a compiler's BTF.

use super::kind::{Composite, Enum, Kind, Linkage, Type, TypeId, number};
use super::{Btf, BtfError};
use std::collections::HashMap;

/// Most members, values or parameters one type can have: the format counts them in 16 bits.
pub(crate) const MAX_VLEN: usize = 0xffff;

/// Collects types. They may refer to types that come later.
#[derive(Default)]
pub(crate) struct Builder {
    strings: Vec<u8>,
    known: HashMap<String, u32>,
    types: Vec<Type>,
}

impl Builder {
    pub fn new() -> Self {
        Self { strings: vec![0], known: HashMap::new(), types: Vec::new() }
    }

    /// Stores a string, once.
    pub fn string(&mut self, text: &str) -> u32 {
        if text.is_empty() {
            return 0;
        }
        if let Some(at) = self.known.get(text) {
            return *at;
        }
        let at = u32::try_from(self.strings.len()).unwrap_or(0);
        self.strings.extend(text.bytes().map(|b| if b == 0 { b'?' } else { b }));
        self.strings.push(0);
        self.known.insert(text.to_owned(), at);
        at
    }

    /// Adds a type; the first has the id 1.
    pub fn add(&mut self, name_off: u32, kind: Kind) -> TypeId {
        self.types.push(Type { name_off, kind });
        self.types.len() as TypeId
    }

    /// Makes the types usable, checked as if they had been read from a file.
    pub fn finish(self) -> Result<Btf, BtfError> {
        let mut words: Vec<u32> = Vec::new();
        self.types.iter().for_each(|t| write(t, &mut words));
        let types = (words.len() * 4) as u32;
        let mut raw = vec![0x9f, 0xeb, 1, 0];
        for word in [24, 0, types, types, self.strings.len() as u32] {
            raw.extend(word.to_le_bytes());
        }
        words.iter().for_each(|w| raw.extend(w.to_le_bytes()));
        raw.extend(self.strings);
        Btf::parse(&raw)
    }
}

fn info(kind: u32, vlen: usize, flag: bool) -> u32 {
    kind << 24 | u32::from(flag) << 31 | vlen.min(MAX_VLEN) as u32
}

/// Writes one type.
fn write(t: &Type, out: &mut Vec<u32>) {
    let mut head = |kind: u32, vlen: usize, flag: bool, word: u32| {
        out.extend([t.name_off, info(kind, vlen, flag), word])
    };
    match &t.kind {
        Kind::Void => {}
        Kind::Int(i) => {
            head(number::INT, 0, false, i.size);
            let encoding = u32::from(i.signed) | u32::from(i.char) << 1 | u32::from(i.bool) << 2;
            out.push(encoding << 24 | u32::from(i.offset) << 16 | u32::from(i.bits));
        }
        Kind::Ptr(to) => head(number::PTR, 0, false, *to),
        Kind::Array(a) => {
            head(number::ARRAY, 0, false, 0);
            out.extend([a.elem, a.index, a.len]);
        }
        Kind::Struct(c) => members(t.name_off, number::STRUCT, c, out),
        Kind::Union(c) => members(t.name_off, number::UNION, c, out),
        Kind::Enum(e) => {
            head(number::ENUM, e.values.len(), e.signed, e.size);
            e.values.iter().take(MAX_VLEN).for_each(|v| out.extend([v.name_off, v.value as u32]));
        }
        Kind::Fwd { union } => head(number::FWD, 0, *union, 0),
        Kind::Typedef(to) => head(number::TYPEDEF, 0, false, *to),
        Kind::Volatile(to) => head(number::VOLATILE, 0, false, *to),
        Kind::Const(to) => head(number::CONST, 0, false, *to),
        Kind::Restrict(to) => head(number::RESTRICT, 0, false, *to),
        Kind::Func(f) => head(number::FUNC, linkage(f.linkage) as usize, false, f.proto),
        Kind::FuncProto(p) => {
            head(number::FUNC_PROTO, p.params.len(), false, p.ret);
            p.params.iter().take(MAX_VLEN).for_each(|p| out.extend([p.name_off, p.type_id]));
        }
        Kind::Var(v) => {
            head(number::VAR, 0, false, v.type_id);
            out.push(linkage(v.linkage));
        }
        Kind::DataSec(d) => {
            head(number::DATASEC, d.vars.len(), false, d.size);
            d.vars.iter().take(MAX_VLEN).for_each(|v| out.extend([v.type_id, v.offset, v.size]));
        }
        Kind::Float(size) => head(number::FLOAT, 0, false, *size),
        Kind::DeclTag(d) => {
            head(number::DECL_TAG, 0, false, d.type_id);
            out.push(d.component.unwrap_or(u32::MAX));
        }
        Kind::TypeTag(to) => head(number::TYPE_TAG, 0, false, *to),
        Kind::Enum64(e) => enum64(t.name_off, e, out),
    }
}

fn members(name_off: u32, kind: u32, c: &Composite, out: &mut Vec<u32>) {
    let flag = c.members.iter().any(|m| m.bitfield != 0);
    out.extend([name_off, info(kind, c.members.len(), flag), c.size]);
    for m in c.members.iter().take(MAX_VLEN) {
        let at = if flag {
            m.bit_offset & 0x00ff_ffff | u32::from(m.bitfield) << 24
        } else {
            m.bit_offset
        };
        out.extend([m.name_off, m.type_id, at]);
    }
}

fn enum64(name_off: u32, e: &Enum, out: &mut Vec<u32>) {
    out.extend([name_off, info(number::ENUM64, e.values.len(), e.signed), e.size]);
    e.values
        .iter()
        .take(MAX_VLEN)
        .for_each(|v| out.extend([v.name_off, v.value as u32, (v.value as u64 >> 32) as u32]));
}

fn linkage(l: Linkage) -> u32 {
    match l {
        Linkage::Static => 0,
        Linkage::Global => 1,
        Linkage::Extern => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_read_is_written_the_same() {
        for name in ["values", "externs", "several"] {
            let path = format!("{}/tests/data/{name}.bpf.o", env!("CARGO_MANIFEST_DIR"));
            let elf = std::fs::read(path).expect("the fixture is committed");
            let btf = Btf::parse(crate::elf::btf_section(&elf).expect("built with -g"))
                .expect("the compiler's types are good");
            let mut builder = Builder::new();
            for (_, t) in btf.types() {
                let name = builder.string(btf.string(t.name_off));
                builder.add(name, t.kind.clone());
            }
            // Names of members keep their places in the old strings: taken over whole, only types'
            // own names may be doubled.
            builder.strings = btf.strings.clone().into_bytes();
            builder
                .types
                .iter_mut()
                .zip(btf.types())
                .for_each(|(new, (_, old))| new.name_off = old.name_off);
            assert_eq!(builder.finish().expect("they were good before").types, btf.types, "{name}");
        }
    }
}
