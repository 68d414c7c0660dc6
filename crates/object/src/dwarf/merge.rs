//! Nodes to BTF: what several compilation units say alike becomes one type.
//!
//! Two entries are the same type when their layouts are: names, sizes, members and everything that
//! lies in them by value. What is only pointed to counts by its name, so structures that refer to
//! each other in circles need no special care, and two structures of one name with different
//! members stay two.

use super::DwarfError;
use super::read::{Composite, Link, Node, Nodes, Number, Shape};
use crate::Btf;
use crate::btf::{
    Array, Builder, Composite as BtfComposite, Enum, EnumValue, FuncProto, Int, Kind, MAX_VLEN,
    Member, Param, TypeId,
};
use gimli::constants as dw;
use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

/// Deepest nesting that is compared; what is deeper counts as different.
const MAX_DEPTH: usize = 200;
/// Most types BTF can hold (include/uapi/linux/btf.h `BTF_MAX_TYPE`), with room for those made
/// here.
const MAX_TYPES: usize = 0x000f_fff0;

/// Makes type information of all nodes.
pub(super) fn merge(nodes: &Nodes<'_>) -> Result<Btf, DwarfError> {
    let mut keys = Keys {
        nodes,
        full: vec![Key::Unknown; nodes.all.len()],
        shallow: vec![Key::Unknown; nodes.all.len()],
    };
    let mut merged = Merged { nodes, id_of: vec![0; nodes.all.len()], extra: 0, order: Vec::new() };
    let mut first: HashMap<u128, TypeId> = HashMap::new();
    let mut defined: HashMap<(u8, &str), TypeId> = HashMap::new();
    let mut ambiguous: HashSet<(u8, &str)> = HashSet::new();
    let mut declared = Vec::new();
    for (i, node) in (0..).zip(&nodes.all) {
        match &node.shape {
            Shape::Same(_) => continue,
            s if s.is_declaration() => {
                declared.push(i);
                continue;
            }
            _ => {}
        }
        let key = keys.full(i, 0);
        let id = *first.entry(key).or_insert_with(|| {
            merged.order.push(i);
            merged.order.len() as TypeId
        });
        merged.set(i, id);
        if !node.name.is_empty() {
            let name = (node.shape.family(), node.name);
            if *defined.entry(name).or_insert(id) != id {
                ambiguous.insert(name);
            }
        }
        merged.check()?;
    }
    // A declaration stands for the definition, where the program has one.
    for &i in &declared {
        let Some(node) = nodes.all.get(i as usize) else { continue };
        let id = *defined.entry((node.shape.family(), node.name)).or_insert_with(|| {
            merged.order.push(i);
            merged.order.len() as TypeId
        });
        merged.set(i, id);
        merged.check()?;
    }
    // Of several definitions nobody says which one is declared.
    let unclear: HashSet<u32> = declared
        .into_iter()
        .filter(|i| {
            let node = nodes.all.get(*i as usize);
            node.is_none_or(|n| ambiguous.contains(&(n.shape.family(), n.name)))
        })
        .collect();
    let clear = nodes.described().filter(|(_, i)| !unclear.contains(i));
    let places = clear.map(|(place, _)| (place, merged.id(Link::At(place)))).collect();
    Ok(merged.write()?.with_places(places))
}

impl Shape<'_> {
    fn is_declaration(&self) -> bool {
        matches!(self, Self::Composite(c) if c.declared)
            || matches!(self, Self::Enum { declared: true, values, .. } if values.is_empty())
    }

    /// Which names can mean each other.
    fn family(&self) -> u8 {
        match self {
            Self::Composite(c) => u8::from(c.union),
            Self::Enum { .. } => 2,
            Self::Typedef(_) => 3,
            _ => 4,
        }
    }
}

#[derive(Clone, Copy)]
enum Key {
    Unknown,
    /// Being made: the type contains itself by way of types without names.
    Open,
    Known(u128),
}

/// What makes two nodes the same type.
struct Keys<'a> {
    nodes: &'a Nodes<'a>,
    full: Vec<Key>,
    shallow: Vec<Key>,
}

/// Hashes into 128 bits, so that no two types of a program meet by chance.
struct Wide(DefaultHasher, DefaultHasher);

impl Wide {
    fn new(what: &str) -> Self {
        let mut new = Self(DefaultHasher::new(), DefaultHasher::new());
        0x5eed_u64.hash(&mut new.1);
        new.put(what);
        new
    }

    fn put(&mut self, value: impl Hash) {
        value.hash(&mut self.0);
        value.hash(&mut self.1);
    }

    fn finish(&self) -> u128 {
        u128::from(self.0.finish()) << 64 | u128::from(self.1.finish())
    }
}

impl Keys<'_> {
    /// Describes a type with all that lies in it.
    fn full(&mut self, i: u32, depth: usize) -> u128 {
        self.key(i, depth, true)
    }

    fn key(&mut self, i: u32, depth: usize, full: bool) -> u128 {
        let table = if full { &mut self.full } else { &mut self.shallow };
        match table.get_mut(i as usize) {
            Some(Key::Known(key)) => return *key,
            Some(slot @ Key::Unknown) if depth < MAX_DEPTH => *slot = Key::Open,
            _ => return u128::from(i) << 8 | 1,
        }
        let key = self.make(i, depth + 1, full);
        let table = if full { &mut self.full } else { &mut self.shallow };
        if let Some(slot) = table.get_mut(i as usize) {
            *slot = Key::Known(key);
        }
        key
    }

    fn link(&mut self, link: Link, depth: usize, full: bool) -> u128 {
        self.nodes.get(link).map_or(0, |i| self.key(i, depth, full))
    }

    fn make(&mut self, i: u32, depth: usize, full: bool) -> u128 {
        let nodes = self.nodes;
        let Some(node) = nodes.all.get(i as usize) else { return 0 };
        // By its name alone.
        let named = |what: &str| {
            let mut h = Wide::new(what);
            h.put(node.name);
            h.put(&node.scope);
            h
        };
        let mut h = match &node.shape {
            Shape::Same(to) => return self.link(*to, depth, full),
            Shape::Pointer(to) => {
                let to = self.link(*to, depth, false);
                let mut h = Wide::new("pointer");
                h.put(to);
                return h.finish();
            }
            Shape::MemberPointer(_) => Wide::new("member pointer"),
            Shape::Const(_) => Wide::new("const"),
            Shape::Volatile(_) => Wide::new("volatile"),
            Shape::Restrict(_) => Wide::new("restrict"),
            Shape::Array { .. } => Wide::new("array"),
            Shape::Function { .. } => Wide::new("function"),
            Shape::Base { .. } => named("base"),
            Shape::Typedef(_) => named("typedef"),
            Shape::Composite(_) => named("composite"),
            Shape::Enum { .. } => named("enum"),
            Shape::Opaque(_) => named("opaque"),
        };
        h.put(node.shape.family());
        if !full && !node.name.is_empty() {
            return h.finish();
        }
        match &node.shape {
            Shape::Same(_) | Shape::Pointer(_) => {}
            Shape::Const(to)
            | Shape::Volatile(to)
            | Shape::Restrict(to)
            | Shape::Typedef(to)
            | Shape::MemberPointer(to) => {
                h.put(self.link(*to, depth, full));
            }
            Shape::Array { elem, lens } => {
                h.put(lens);
                h.put(self.link(*elem, depth, full));
            }
            Shape::Base { size, encoding } => h.put((size, encoding)),
            Shape::Opaque(size) => h.put(size),
            Shape::Composite(c) => {
                h.put((c.union, c.size, c.declared, c.members.len()));
                for m in &c.members {
                    h.put((m.name, m.bit_offset, m.bits, m.base_class));
                    h.put(self.link(m.link, depth, true));
                }
            }
            Shape::Enum { size, of, values, .. } => {
                h.put((size, values));
                h.put(self.link(*of, depth, full));
            }
            Shape::Function { ret, params } => {
                h.put(self.link(*ret, depth, false));
                h.put(params.len());
                for p in params {
                    h.put(self.link(*p, depth, false));
                }
            }
        }
        h.finish()
    }
}

/// The types that are left, in order.
struct Merged<'a> {
    nodes: &'a Nodes<'a>,
    /// The id of each node's type; 0 for `void`.
    id_of: Vec<TypeId>,
    /// Types that have no node of their own.
    extra: usize,
    order: Vec<u32>,
}

impl<'a> Merged<'a> {
    fn set(&mut self, node: u32, id: TypeId) {
        if let Some(slot) = self.id_of.get_mut(node as usize) {
            *slot = id;
        }
    }

    fn check(&mut self) -> Result<(), DwarfError> {
        if self.order.len() + self.extra > MAX_TYPES {
            return Err(DwarfError::TooMany { what: "different types", limit: MAX_TYPES });
        }
        Ok(())
    }

    fn id(&self, mut link: Link) -> TypeId {
        for _ in 0..MAX_DEPTH {
            let Some(i) = self.nodes.get(link) else { return 0 };
            match self.nodes.all.get(i as usize).map(|n| &n.shape) {
                Some(Shape::Same(to)) => link = *to,
                _ => return self.id_of.get(i as usize).copied().unwrap_or(0),
            }
        }
        0
    }

    /// Writes one type for each node that is left, and behind them what one type for each is not
    /// enough for.
    fn write(&self) -> Result<Btf, DwarfError> {
        let mut builder = Builder::new();
        let mut extra =
            Extra { next: self.order.len() as TypeId + 1, kinds: Vec::new(), index: None };
        for node in self.order.iter().filter_map(|i| self.nodes.all.get(*i as usize)) {
            let kind = self.kind(node, &mut builder, &mut extra);
            let name = match &kind {
                Kind::Array(_)
                | Kind::Ptr(_)
                | Kind::Const(_)
                | Kind::Volatile(_)
                | Kind::Restrict(_)
                | Kind::FuncProto(_) => 0,
                Kind::Int(_) if matches!(node.shape, Shape::MemberPointer(_)) => {
                    builder.string("ptrdiff_t")
                }
                _ => builder.string(node.name),
            };
            if !node.scope.is_empty()
                && !node.name.is_empty()
                && matches!(
                    kind,
                    Kind::Struct(_) | Kind::Union(_) | Kind::Enum(_) | Kind::Enum64(_)
                )
            {
                let long = builder.string(&format!("{}__{}", node.scope, node.name));
                extra.add(long, kind.clone());
            }
            builder.add(name, kind);
        }
        if self.order.len() + extra.kinds.len() > MAX_TYPES {
            return Err(DwarfError::TooMany { what: "different types", limit: MAX_TYPES });
        }
        for (name, kind) in extra.kinds {
            builder.add(name, kind);
        }
        Ok(builder.finish()?)
    }

    fn is_function(&self, mut link: Link) -> bool {
        for _ in 0..MAX_DEPTH {
            match self
                .nodes
                .get(link)
                .and_then(|i| self.nodes.all.get(i as usize))
                .map(|n| &n.shape)
            {
                Some(Shape::Function { .. }) => return true,
                Some(Shape::Same(to) | Shape::Typedef(to) | Shape::Const(to)) => link = *to,
                _ => return false,
            }
        }
        false
    }

    fn kind(&self, node: &Node<'a>, builder: &mut Builder, extra: &mut Extra) -> Kind {
        match &node.shape {
            Shape::Pointer(to) => Kind::Ptr(self.id(*to)),
            // An offset; of a function its address, or place in a table, and the offset of its object.
            Shape::MemberPointer(to) if self.is_function(*to) => {
                let long = builder.string("ptrdiff_t");
                let members =
                    [("ptr", extra.add(0, Kind::Ptr(0))), ("adj", extra.add(long, signed(8)))];
                let mut member = |(name, type_id), at: u32| Member {
                    name_off: builder.string(name),
                    type_id,
                    bit_offset: at * 64,
                    bitfield: 0,
                };
                let members = members.into_iter().zip(0..).map(|(m, at)| member(m, at)).collect();
                Kind::Struct(BtfComposite { size: 16, members })
            }
            Shape::MemberPointer(_) => signed(8),
            Shape::Base { size, encoding }
                if gimli::DwAte(*encoding) == dw::DW_ATE_complex_float
                    && matches!(size, 8 | 16) =>
            {
                let name = builder.string(if *size == 8 { "float" } else { "double" });
                let elem = extra.add(name, Kind::Float(*size as u32 / 2));
                Kind::Array(Array { elem, index: extra.index(builder), len: 2 })
            }
            Shape::Base { size, encoding } => match base(*size, *encoding) {
                // Of C, and of Rust.
                Kind::Int(int) if node.name == "char" && matches!(size, 1 | 4) => {
                    Kind::Int(Int { char: true, ..int })
                }
                kind => kind,
            },
            Shape::Const(to) => Kind::Const(self.id(*to)),
            Shape::Volatile(to) => Kind::Volatile(self.id(*to)),
            Shape::Restrict(to) => Kind::Restrict(self.id(*to)),
            Shape::Typedef(to) | Shape::Same(to) => Kind::Typedef(self.id(*to)),
            Shape::Array { elem, lens } => {
                let index = extra.index(builder);
                // Only the innermost dimension holds the elements themselves.
                let mut elem = self.id(*elem);
                let (first, rest) = lens.split_first().unwrap_or((&0, &[]));
                for len in rest.iter().rev() {
                    elem = extra.add(0, Kind::Array(Array { elem, index, len: *len }));
                }
                Kind::Array(Array { elem, index, len: *first })
            }
            Shape::Composite(c) if c.declared => Kind::Fwd { union: c.union },
            Shape::Composite(c) => self.composite(c, builder),
            Shape::Enum { size, of, values, .. } => self.enumeration(*size, *of, values, builder),
            Shape::Function { ret, params } => {
                let params = params
                    .iter()
                    .take(MAX_VLEN)
                    .map(|p| Param { name_off: 0, type_id: self.id(*p) });
                Kind::FuncProto(FuncProto { ret: self.id(*ret), params: params.collect() })
            }
            Shape::Opaque(size) => opaque(*size),
        }
    }

    fn composite(&self, c: &Composite<'a>, builder: &mut Builder) -> Kind {
        let has_bits = c.members.iter().any(|m| m.bits != 0);
        // Where there are bit fields, an offset has 24 bits.
        let limit = if has_bits { 1 << 24 } else { 1 << 32 };
        let mut members = Vec::with_capacity(c.members.len());
        for m in c.members.iter().filter(|m| m.bit_offset < limit) {
            let type_id = self.id(m.link);
            let Ok(bitfield) = u8::try_from(m.bits) else { continue };
            let one = Member {
                name_off: builder.string(m.name),
                type_id,
                bit_offset: m.bit_offset as u32,
                bitfield,
            };
            members.push(one);
            if m.base_class {
                members.push(Member { name_off: builder.string(self.base_name(m.link)), ..one });
            }
        }
        members.truncate(MAX_VLEN);
        let all = BtfComposite {
            size: u32::try_from(c.size).unwrap_or(u32::MAX),
            members: members.into(),
        };
        if c.union { Kind::Union(all) } else { Kind::Struct(all) }
    }

    fn base_name(&self, mut link: Link) -> &'a str {
        for _ in 0..MAX_DEPTH {
            match self.nodes.get(link).and_then(|i| self.nodes.all.get(i as usize)) {
                Some(Node { shape: Shape::Same(to), .. }) => link = *to,
                found => return found.map_or("", |n| n.name),
            }
        }
        ""
    }

    fn enumeration(
        &self,
        size: u64,
        of: Link,
        values: &[(&str, Number)],
        builder: &mut Builder,
    ) -> Kind {
        let signed_base = |link: Link| {
            let node = self.nodes.all.get(self.nodes.get(link)? as usize)?;
            let Shape::Base { encoding, .. } = node.shape else { return None };
            Some(matches!(gimli::DwAte(encoding), dw::DW_ATE_signed | dw::DW_ATE_signed_char))
        };
        let negative = values.iter().any(|(_, v)| matches!(v, Number::Signed(n) if *n < 0));
        let signed = negative
            || signed_base(of).unwrap_or(false)
                && values.iter().all(|(_, v)| matches!(v, Number::Signed(_)));
        let base_size = || match self.nodes.all.get(self.nodes.get(of)? as usize)?.shape {
            Shape::Base { size, .. } => Some(size),
            _ => None,
        };
        let size = if size == 0 { base_size().unwrap_or(0) } else { size };
        let size = if matches!(size, 1 | 2 | 4 | 8) { size as u32 } else { 4 };
        let bits = |v: Number| match v {
            Number::Signed(n) => n,
            Number::Unsigned(n) => n as i64,
        };
        let values: Box<[EnumValue]> = values
            .iter()
            .take(MAX_VLEN)
            .map(|(name, v)| EnumValue { name_off: builder.string(name), value: bits(*v) })
            .collect();
        let all = Enum { size, signed, values };
        if size == 8 { Kind::Enum64(all) } else { Kind::Enum(all) }
    }
}

/// Types without a node: inner dimensions of arrays, long names, the type of indices.
struct Extra {
    next: TypeId,
    kinds: Vec<(u32, Kind)>,
    index: Option<TypeId>,
}

impl Extra {
    fn add(&mut self, name: u32, kind: Kind) -> TypeId {
        self.kinds.push((name, kind));
        self.next += 1;
        self.next - 1
    }

    fn index(&mut self, builder: &mut Builder) -> TypeId {
        if let Some(id) = self.index {
            return id;
        }
        let name = builder.string("__ARRAY_SIZE_TYPE__");
        let id = self.add(
            name,
            Kind::Int(Int {
                size: 4,
                bits: 32,
                offset: 0,
                signed: false,
                char: false,
                bool: false,
            }),
        );
        self.index = Some(id);
        id
    }
}

fn int(size: u8, signed: bool, bool: bool) -> Kind {
    Kind::Int(Int { size: size.into(), bits: size * 8, offset: 0, signed, char: false, bool })
}

fn signed(size: u8) -> Kind {
    int(size, true, false)
}

fn base(size: u64, encoding: u8) -> Kind {
    let int = |signed: bool, bool: bool| match u8::try_from(size) {
        Ok(size @ 1..=16) => int(size, signed, bool),
        _ => opaque(size),
    };
    match gimli::DwAte(encoding) {
        dw::DW_ATE_boolean => int(false, true),
        dw::DW_ATE_signed | dw::DW_ATE_signed_char | dw::DW_ATE_signed_fixed => int(true, false),
        dw::DW_ATE_unsigned
        | dw::DW_ATE_unsigned_char
        | dw::DW_ATE_unsigned_fixed
        | dw::DW_ATE_UTF
        | dw::DW_ATE_address
        | dw::DW_ATE_ASCII
        | dw::DW_ATE_UCS => int(false, false),
        dw::DW_ATE_float if matches!(size, 2 | 4 | 8 | 12 | 16) => Kind::Float(size as u32),
        _ => opaque(size),
    }
}

/// Bytes that mean nothing.
fn opaque(size: u64) -> Kind {
    Kind::Struct(BtfComposite {
        size: u32::try_from(size).unwrap_or(u32::MAX),
        members: Box::new([]),
    })
}
