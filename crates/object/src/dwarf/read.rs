//! Entries of `.debug_info` to [`Node`]s: one a type, with places where entries refer to each
//! other.

use super::DwarfError;
use super::file::{Entry, Slice};
use super::split::SplitUnit;
use crate::btf::DISCRIMINANT;
use gimli::{AttributeValue as Value, UnitRef, UnitType, constants as dw};
use std::collections::HashMap;

/// Most entries that are looked at as types: some 3 GiB of them in memory.
const MAX_NODES: usize = 16 << 20;

/// One type.
#[derive(Debug)]
pub(super) struct Node<'a> {
    pub name: &'a str,
    /// The namespaces and classes around it, joined with `__`; empty outside.
    pub scope: String,
    pub shape: Shape<'a>,
}

#[derive(Debug)]
pub(super) enum Shape<'a> {
    Base {
        size: u64,
        encoding: u8,
    },
    /// Pointers and references.
    Pointer(Link),
    /// The place of a member of some class.
    MemberPointer(Link),
    Const(Link),
    Volatile(Link),
    Restrict(Link),
    Typedef(Link),
    /// What is only another entry for the same type.
    Same(Link),
    Array {
        elem: Link,
        lens: Vec<u32>,
    },
    Composite(Composite<'a>),
    Enum {
        size: u64,
        of: Link,
        values: Vec<(&'a str, Number)>,
        declared: bool,
    },
    Function {
        ret: Link,
        params: Vec<Link>,
    },
    /// Something of which only the size is known.
    Opaque(u64),
}

#[derive(Debug)]
pub(super) struct Composite<'a> {
    pub union: bool,
    pub size: u64,
    pub members: Vec<Member<'a>>,
    pub declared: bool,
}

#[derive(Debug)]
pub(super) struct Member<'a> {
    pub name: &'a str,
    pub link: Link,
    /// From the start of the structure.
    pub bit_offset: u64,
    /// Width of a bit field, 0 for others.
    pub bits: u64,
    pub base_class: bool,
}

/// A constant as it stands in the file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Number {
    Signed(i64),
    Unsigned(u64),
}

/// Refers to another entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Link {
    Void,
    /// Its offset; those of `.debug_types` have the highest bit set.
    At(u64),
    /// The signature of a type in a unit of its own.
    Signature(u64),
}

/// All types of a program.
#[derive(Default)]
pub(super) struct Nodes<'a> {
    pub all: Vec<Node<'a>>,
    at: HashMap<u64, u32>,
    signatures: HashMap<u64, u64>,
    /// Definitions whose names and scopes are those of their declarations.
    elsewhere: Vec<(u32, Link)>,
}

/// The variants of an enumeration of Rust, which are members of a structure in one place. What tells
/// them apart is another member, [`DISCRIMINANT`], whose type has their names.
#[derive(Clone, Copy)]
struct Variants {
    /// The structure.
    of: u32,
    /// The type of the member that tells variants apart, and where its entry and that member's are.
    names: u32,
    place: u64,
    tag: Option<u64>,
    /// Inside of one: its number; the one that has none is meant by all other numbers.
    one: Option<Option<Number>>,
}

impl<'a> Nodes<'a> {
    /// Begins with the variants of a structure.
    fn variants(
        &mut self,
        unit: &UnitRef<'_, Slice<'a>>,
        entry: &Entry<'a>,
        of: u32,
    ) -> Result<Variants, DwarfError> {
        let place = place(&unit.header, entry.offset().0);
        let tag = match link(unit, entry, dw::DW_AT_discr) {
            Link::At(tag) => Some(tag),
            _ => None,
        };
        let shape = Shape::Enum { size: 0, of: Link::Void, values: Vec::new(), declared: false };
        let names = self.add(place, Node { name: "", scope: String::new(), shape })?;
        Ok(Variants { of, names, place, tag, one: None })
    }

    /// Adds a member of a variant, which is all of it, or the member that tells variants apart.
    fn variant_member(&mut self, unit: &UnitRef<'_, Slice<'a>>, entry: &Entry<'a>, v: Variants) {
        let Some(mut member) = member(unit, entry) else { return };
        let names = self.all.get_mut(v.names as usize).map(|n| &mut n.shape);
        match (v.one, names) {
            (Some(Some(number)), Some(Shape::Enum { values, .. })) => {
                values.push((member.name, number));
            }
            (Some(_), _) => {}
            (None, Some(Shape::Enum { of, .. }))
                if v.tag == Some(place(&unit.header, entry.offset().0)) =>
            {
                *of = member.link;
                member = Member { name: DISCRIMINANT, link: Link::At(v.place), ..member };
            }
            _ => return,
        }
        if let Some(Shape::Composite(c)) = self.all.get_mut(v.of as usize).map(|n| &mut n.shape) {
            c.members.push(member);
        }
    }

    fn add(&mut self, place: u64, node: Node<'a>) -> Result<u32, DwarfError> {
        if self.all.len() >= MAX_NODES {
            return Err(DwarfError::TooMany { what: "types in all units", limit: MAX_NODES });
        }
        let index = self.all.len() as u32;
        self.at.insert(place, index);
        self.all.push(node);
        Ok(index)
    }
}

impl<'a> Nodes<'a> {
    /// Adds the types of another file, whose places are counted from `base`.
    fn append(&mut self, part: Self, base: u64) -> Result<(), DwarfError> {
        let first = self.all.len();
        if first.saturating_add(part.all.len()) > MAX_NODES {
            return Err(DwarfError::TooMany { what: "types in all units", limit: MAX_NODES });
        }
        let first = first as u32;
        self.at.extend(part.at.into_iter().map(|(place, i)| (place | base, first + i)));
        self.signatures.extend(part.signatures.into_iter().map(|(s, place)| (s, place | base)));
        let elsewhere = part.elsewhere.into_iter();
        self.elsewhere.extend(elsewhere.map(|(i, link)| (first + i, link.counted_from(base))));
        self.all.extend(part.all.into_iter().map(|mut node| {
            node.shape.links(&mut |link| *link = link.counted_from(base));
            node
        }));
        Ok(())
    }
}

impl Link {
    fn counted_from(self, base: u64) -> Self {
        match self {
            Self::At(place) => Self::At(place | base),
            other => other,
        }
    }
}

impl Shape<'_> {
    /// Calls `each` with all links.
    fn links(&mut self, each: &mut dyn FnMut(&mut Link)) {
        match self {
            Self::Pointer(to)
            | Self::MemberPointer(to)
            | Self::Const(to)
            | Self::Volatile(to)
            | Self::Restrict(to)
            | Self::Typedef(to)
            | Self::Same(to)
            | Self::Array { elem: to, .. }
            | Self::Enum { of: to, .. } => each(to),
            Self::Composite(c) => c.members.iter_mut().for_each(|m| each(&mut m.link)),
            Self::Function { ret, params } => {
                each(ret);
                params.iter_mut().for_each(each);
            }
            Self::Base { .. } | Self::Opaque(_) => {}
        }
    }
}

impl Nodes<'_> {
    /// The structures, unions and enumerations, with where they are.
    pub fn described(&self) -> impl Iterator<Item = (u64, u32)> {
        let is_one = |i: u32| {
            let node = self.all.get(i as usize);
            node.is_some_and(|n| matches!(n.shape, Shape::Composite(_) | Shape::Enum { .. }))
        };
        self.at.iter().map(|(place, i)| (*place, *i)).filter(move |(_, i)| is_one(*i))
    }

    /// Finds what a link refers to; `None` for `void`, and for what is not there.
    pub fn get(&self, link: Link) -> Option<u32> {
        match link {
            Link::Void => None,
            Link::At(place) => self.at.get(&place).copied(),
            Link::Signature(signature) => self.at.get(self.signatures.get(&signature)?).copied(),
        }
    }
}

/// Reads all types; `split` has those of the units that were split off.
pub(super) fn read<'a>(
    dwarf: &gimli::Dwarf<Slice<'a>>,
    split: &[SplitUnit<'a>],
) -> Result<Nodes<'a>, DwarfError> {
    let mut nodes = read_units(dwarf, split.is_empty())?;
    for part in split {
        nodes.append(read_units(&part.dwarf, true)?, part.base)?;
    }
    for (index, declaration) in std::mem::take(&mut nodes.elsewhere) {
        let named = nodes
            .get(declaration)
            .and_then(|i| nodes.all.get(i as usize))
            .map(|n| (n.name, n.scope.clone()));
        if let (Some((name, scope)), Some(node)) = (named, nodes.all.get_mut(index as usize)) {
            node.scope = scope;
            if node.name.is_empty() {
                node.name = name;
            }
        }
    }
    Ok(nodes)
}

/// Reads the units of one file; `whole` refuses those whose types are in other files.
fn read_units<'a>(dwarf: &gimli::Dwarf<Slice<'a>>, whole: bool) -> Result<Nodes<'a>, DwarfError> {
    let mut nodes = Nodes::default();
    let mut units = dwarf.units();
    while let Some(header) = units.next()? {
        let unit = dwarf.unit(header)?;
        // What a skeleton says of functions that others were inlined into has no types.
        if whole || unit.dwo_id.is_none() {
            read_unit(&unit.unit_ref(dwarf), &mut nodes)?;
        }
    }
    let mut units = dwarf.type_units();
    while let Some(header) = units.next()? {
        let unit = dwarf.unit(header)?;
        read_unit(&unit.unit_ref(dwarf), &mut nodes)?;
    }
    Ok(nodes)
}

fn read_unit<'a>(unit: &UnitRef<'_, Slice<'a>>, nodes: &mut Nodes<'a>) -> Result<(), DwarfError> {
    if let UnitType::Type { type_signature, type_offset }
    | UnitType::SplitType { type_signature, type_offset } = unit.header.type_()
    {
        nodes.signatures.insert(type_signature.0, place(&unit.header, type_offset.0));
    }
    /// An open entry.
    struct Open {
        depth: isize,
        node: Option<u32>,
        /// It has variants, or is one.
        variants: Option<Variants>,
        /// Length of the scope's text without it.
        scope: usize,
    }
    let mut open: Vec<Open> = Vec::new();
    let mut scope = String::new();
    let mut cursor = unit.entries();
    while let Some(entry) = cursor.next_dfs()? {
        while open.last().is_some_and(|o| o.depth >= entry.depth()) {
            if let Some(o) = open.pop() {
                scope.truncate(o.scope);
            }
        }
        if entry.depth() == 0 {
            check_split(unit, entry)?;
        }
        let parent = open.last().and_then(|o| o.node);
        let variants = open.last().and_then(|o| o.variants);
        let variants = match (entry.tag(), variants, parent) {
            (dw::DW_TAG_variant_part, _, Some(of)) => Some(nodes.variants(unit, entry, of)?),
            (dw::DW_TAG_variant, Some(all), _) => {
                Some(Variants { one: Some(constant(entry, dw::DW_AT_discr_value)), ..all })
            }
            (dw::DW_TAG_member, Some(all), _) => {
                nodes.variant_member(unit, entry, all);
                None
            }
            _ => None,
        };
        if let Some(parent) = parent
            && let Some(node) = nodes.all.get_mut(parent as usize)
        {
            child(unit, entry, node)?;
        }
        let name = name(unit, entry);
        let node = match shape(unit, entry) {
            Some(shape) => {
                let at = place(&unit.header, entry.offset().0);
                let index = nodes.add(at, Node { name, scope: scope.clone(), shape })?;
                if entry.has_attr(dw::DW_AT_specification) {
                    nodes.elsewhere.push((index, link(unit, entry, dw::DW_AT_specification)));
                }
                Some(index)
            }
            None => None,
        };
        if entry.has_children() {
            let before = scope.len();
            let opens_scope = matches!(
                entry.tag(),
                dw::DW_TAG_namespace
                    | dw::DW_TAG_class_type
                    | dw::DW_TAG_structure_type
                    | dw::DW_TAG_union_type
            );
            if opens_scope && !name.is_empty() && scope.len() < 1024 {
                if !scope.is_empty() {
                    scope.push_str("__");
                }
                scope.push_str(name);
            }
            open.push(Open { depth: entry.depth(), node, variants, scope: before });
        }
    }
    Ok(())
}

/// Refuses units whose types are in other files.
fn check_split<'a>(unit: &UnitRef<'_, Slice<'a>>, entry: &Entry<'a>) -> Result<(), DwarfError> {
    let is_split = entry.has_attr(dw::DW_AT_dwo_name) || entry.has_attr(dw::DW_AT_GNU_dwo_name);
    if is_split && !entry.has_children() { Err(missing_split(unit)) } else { Ok(()) }
}

/// Says which file has the types of a unit that they were split off.
pub(super) fn missing_split(unit: &UnitRef<'_, Slice<'_>>) -> DwarfError {
    let name = unit.dwo_name().ok().flatten().and_then(|name| unit.attr_string(name).ok());
    let file = name.map(|name| String::from_utf8_lossy(name.slice()).into_owned());
    DwarfError::Split { what: format!("`{}` (split DWARF)", file.unwrap_or_default()) }
}

/// Where an entry is in `.debug_info`; in `.debug_types` with the highest bit set.
pub(super) fn place(header: &gimli::UnitHeader<Slice<'_>>, offset: usize) -> u64 {
    let types = if header.section() == gimli::SectionId::DebugTypes { 1 << 63 } else { 0 };
    types | (header.offset().0 as u64).wrapping_add(offset as u64) & !(1 << 63)
}

fn name<'a>(unit: &UnitRef<'_, Slice<'a>>, entry: &Entry<'a>) -> &'a str {
    let value = entry.attr_value(dw::DW_AT_name);
    let text = value.and_then(|v| unit.attr_string(v).ok());
    text.and_then(|s| str::from_utf8(s.slice()).ok()).unwrap_or("")
}

fn link<'a>(unit: &UnitRef<'_, Slice<'a>>, entry: &Entry<'a>, attr: gimli::DwAt) -> Link {
    match entry.attr_value(attr) {
        Some(Value::UnitRef(offset)) => Link::At(place(&unit.header, offset.0)),
        Some(Value::DebugInfoRef(offset)) => Link::At(offset.0 as u64),
        Some(Value::DebugTypesRef(signature)) => Link::Signature(signature.0),
        _ => Link::Void,
    }
}

pub(super) fn number(entry: &Entry<'_>, attr: gimli::DwAt) -> Option<u64> {
    entry.attr_value(attr).and_then(|v| v.udata_value())
}

pub(super) fn flag(entry: &Entry<'_>, attr: gimli::DwAt) -> bool {
    matches!(entry.attr_value(attr), Some(Value::Flag(true)))
}

/// Says what kind of type an entry is, without its children; `None` for everything else.
fn shape<'a>(unit: &UnitRef<'_, Slice<'a>>, entry: &Entry<'a>) -> Option<Shape<'a>> {
    let of = || link(unit, entry, dw::DW_AT_type);
    let size = || number(entry, dw::DW_AT_byte_size).unwrap_or(0);
    let declared = || flag(entry, dw::DW_AT_declaration);
    // Here only its name; the type has a unit of its own.
    if let Some(Value::DebugTypesRef(signature)) = entry.attr_value(dw::DW_AT_signature) {
        return Some(Shape::Same(Link::Signature(signature.0)));
    }
    Some(match entry.tag() {
        dw::DW_TAG_base_type => {
            let encoding = match entry.attr_value(dw::DW_AT_encoding) {
                Some(Value::Encoding(e)) => e.0,
                _ => 0,
            };
            Shape::Base { size: size(), encoding }
        }
        dw::DW_TAG_pointer_type | dw::DW_TAG_reference_type | dw::DW_TAG_rvalue_reference_type => {
            Shape::Pointer(of())
        }
        dw::DW_TAG_const_type => Shape::Const(of()),
        dw::DW_TAG_volatile_type => Shape::Volatile(of()),
        dw::DW_TAG_restrict_type => Shape::Restrict(of()),
        dw::DW_TAG_typedef | dw::DW_TAG_template_alias => Shape::Typedef(of()),
        dw::DW_TAG_atomic_type
        | dw::DW_TAG_packed_type
        | dw::DW_TAG_shared_type
        | dw::DW_TAG_immutable_type => Shape::Same(of()),
        dw::DW_TAG_array_type => Shape::Array { elem: of(), lens: Vec::new() },
        dw::DW_TAG_structure_type
        | dw::DW_TAG_class_type
        | dw::DW_TAG_union_type
        | dw::DW_TAG_interface_type => Shape::Composite(Composite {
            union: entry.tag() == dw::DW_TAG_union_type,
            size: size(),
            members: Vec::new(),
            declared: declared(),
        }),
        dw::DW_TAG_enumeration_type => {
            Shape::Enum { size: size(), of: of(), values: Vec::new(), declared: declared() }
        }
        dw::DW_TAG_subroutine_type => Shape::Function { ret: of(), params: Vec::new() },
        dw::DW_TAG_ptr_to_member_type => Shape::MemberPointer(of()),
        dw::DW_TAG_unspecified_type => Shape::Opaque(size()),
        _ => return None,
    })
}

/// Adds what a child says to its parent.
fn child<'a>(
    unit: &UnitRef<'_, Slice<'a>>,
    entry: &Entry<'a>,
    parent: &mut Node<'a>,
) -> Result<(), DwarfError> {
    match (entry.tag(), &mut parent.shape) {
        (dw::DW_TAG_member | dw::DW_TAG_inheritance, Shape::Composite(c)) => {
            c.members.extend(member(unit, entry))
        }
        (dw::DW_TAG_enumerator, Shape::Enum { values, .. }) => {
            if let Some(value) = constant(entry, dw::DW_AT_const_value) {
                values.push((name(unit, entry), value));
            }
        }
        (dw::DW_TAG_subrange_type, Shape::Array { lens, .. }) => lens.push(length(entry)),
        (dw::DW_TAG_formal_parameter, Shape::Function { params, .. }) => {
            params.push(link(unit, entry, dw::DW_AT_type))
        }
        _ => {}
    }
    Ok(())
}

fn constant(entry: &Entry<'_>, attr: gimli::DwAt) -> Option<Number> {
    Some(match entry.attr_value_raw(attr)? {
        Value::Sdata(n) => Number::Signed(n),
        Value::Udata(n) | Value::Data8(n) => Number::Unsigned(n),
        Value::Data1(n) => Number::Unsigned(n.into()),
        Value::Data2(n) => Number::Unsigned(n.into()),
        Value::Data4(n) => Number::Unsigned(n.into()),
        _ => return None,
    })
}

/// Reads the number of elements; 0 when it is open or known only at run time.
pub(super) fn length(entry: &Entry<'_>) -> u32 {
    if let Some(n) = number(entry, dw::DW_AT_count) {
        return u32::try_from(n).unwrap_or(0);
    }
    let last = entry.attr_value(dw::DW_AT_upper_bound);
    let Some(last) =
        last.and_then(|v| v.udata_value().or_else(|| v.sdata_value().map(|n| n as u64)))
    else {
        return 0;
    };
    let first = number(entry, dw::DW_AT_lower_bound).unwrap_or(0);
    // The bound of an array without elements is -1: its length is 0, or more than can be counted.
    u32::try_from(last.wrapping_sub(first).wrapping_add(1)).unwrap_or(0)
}

/// Reads a member or a base class; `None` for static members and virtual bases, which have no fixed
/// place.
pub(super) fn member<'a>(unit: &UnitRef<'_, Slice<'a>>, entry: &Entry<'a>) -> Option<Member<'a>> {
    if flag(entry, dw::DW_AT_external)
        || flag(entry, dw::DW_AT_declaration)
        || entry.has_attr(dw::DW_AT_const_value)
    {
        return None;
    }
    let base_class = entry.tag() == dw::DW_TAG_inheritance;
    if base_class
        && entry.has_attr(dw::DW_AT_virtuality)
        && !matches!(
            entry.attr_value(dw::DW_AT_virtuality),
            Some(Value::Virtuality(dw::DW_VIRTUALITY_none))
        )
    {
        return None;
    }
    let start = match entry.attr_value(dw::DW_AT_data_member_location) {
        None => 0,
        Some(Value::Exprloc(e)) => plus_constant(e.0.slice())?,
        Some(Value::Block(b)) => plus_constant(b.slice())?,
        Some(v) => v.udata_value()?,
    };
    let bits = number(entry, dw::DW_AT_bit_size).unwrap_or(0);
    let start = start.checked_mul(8)?;
    let bit_offset = if let Some(at) = number(entry, dw::DW_AT_data_bit_offset) {
        start.checked_add(at)?
    } else if let Some(from_top) = number(entry, dw::DW_AT_bit_offset).filter(|_| bits != 0) {
        // Before DWARF 4, bits are counted from the most significant one of a storage unit.
        let unit_bits = number(entry, dw::DW_AT_byte_size).unwrap_or(4).checked_mul(8)?;
        // A field may begin in front of its unit: the count from the top is negative then.
        start
            .checked_add(unit_bits)?
            .checked_sub(from_top.wrapping_add(bits) & u64::from(u32::MAX))?
    } else {
        start
    };
    Some(Member {
        name: name(unit, entry),
        link: link(unit, entry, dw::DW_AT_type),
        bit_offset,
        bits,
        base_class,
    })
}

/// Reads the one expression old compilers place members with: `DW_OP_plus_uconst n`.
fn plus_constant(bytes: &[u8]) -> Option<u64> {
    let (op, rest) = bytes.split_first()?;
    if *op != dw::DW_OP_plus_uconst.0 || rest.len() > 9 {
        return None;
    }
    let mut out = 0u64;
    for (i, b) in rest.iter().enumerate() {
        out |= u64::from(b & 0x7f).checked_shl(i as u32 * 7)?;
    }
    Some(out)
}
