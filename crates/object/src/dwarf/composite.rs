//! What structures and classes consist of, as far as it decides where they are passed.

use super::language::Language;
use super::read::{flag, length, member, number};
use super::special::Special;
use super::types::{MAX_DEPTH, Pos, Types, UnitEntry};
use crate::proto::{Class, Leaf};
use gimli::{AttributeValue as Value, constants as dw};

/// Most members of a structure and of what is in it that are looked at.
const MAX_PARTS: u32 = 1 << 14;
/// Most elements of an array that are looked at; 16 bytes have no more.
const MAX_ELEMENTS: u64 = 16;
/// Largest structure whose parts matter.
const MAX_IN_REGISTERS: u64 = 16;

/// What a structure consists of.
pub(super) struct Members {
    /// Bytes of the whole.
    whole: u64,
    pub leaves: Vec<Leaf>,
    /// Members that may still be looked at.
    left: u32,
}

/// What a part of a structure says of the whole.
pub(super) struct Part {
    pub align: u64,
    pub special: Special,
}

impl Members {
    /// Of a structure of this many bytes.
    pub fn new(whole: u64) -> Self {
        Self { whole, leaves: Vec::new(), left: MAX_PARTS }
    }
}

impl<'s, 'a> Types<'s, 'a> {
    /// Adds the parts of a structure that begins at a bit of the whole.
    pub(super) fn flatten(
        &mut self,
        e: &UnitEntry<'s, 'a>,
        at: u64,
        depth: u32,
        out: &mut Members,
    ) -> Option<Part> {
        if depth > MAX_DEPTH {
            return None;
        }
        let convention = e.entry.attr_value(dw::DW_AT_calling_convention);
        let said = match convention {
            Some(Value::CallingConvention(dw::DW_CC_pass_by_value)) => Some(Special::TRIVIAL),
            Some(Value::CallingConvention(dw::DW_CC_pass_by_reference)) => {
                Some(Special::BY_ADDRESS)
            }
            _ => None,
        };
        let mut special = Special::TRIVIAL;
        let known = self.methods.get(&e.pos()).copied();
        let look = known.is_none() && said.is_none() && self.language == Language::Cpp;
        let mut methods = known.unwrap_or_default();
        let mut align = number(&e.entry, dw::DW_AT_alignment).unwrap_or(1).clamp(1, 1 << 16);
        let mut members = Vec::new();
        {
            let unit = e.unit();
            let mut tree = unit.entries_tree(Some(e.entry.offset())).ok()?;
            let mut children = tree.root().ok()?.children();
            while let Some(child) = children.next().ok()? {
                match child.entry().tag() {
                    dw::DW_TAG_member | dw::DW_TAG_inheritance => {
                        members.push(e.beside(child.entry().clone()))
                    }
                    dw::DW_TAG_subprogram if look => {
                        self.method(&e.beside(child.entry().clone()), e, &mut methods);
                    }
                    _ => {}
                }
            }
        }
        if look {
            self.methods.insert(e.pos(), methods);
        }
        for m in members {
            let unit = m.unit();
            methods.polymorphic |=
                m.entry.tag() == dw::DW_TAG_inheritance && m.entry.has_attr(dw::DW_AT_virtuality);
            let Some(place) = member(&unit, &m.entry) else { continue };
            let bit = at.checked_add(place.bit_offset)?;
            methods.polymorphic |= place.name.starts_with("_vptr");
            if place.bits != 0 {
                if out.whole <= MAX_IN_REGISTERS {
                    out.leaves.push(Leaf {
                        bit_offset: bit,
                        bits: place.bits,
                        class: Class::Integer,
                        align: 1,
                    });
                }
                continue;
            }
            let pos = self.link(&m, dw::DW_AT_type)?;
            let part = match self.part(pos, bit, depth + 1, out) {
                // A nested class that is defined apart from its declaration. In memory, only the
                // alignment would matter.
                None if out.whole > MAX_IN_REGISTERS => {
                    Part { align: 8, special: Special::TRIVIAL }
                }
                part => part?,
            };
            align = part.align.max(align);
            special = special.and(part.special);
        }
        Some(Part { align, special: said.unwrap_or_else(|| methods.special(special)) })
    }

    /// Adds the parts of a member.
    fn part(&mut self, pos: Pos, at: u64, depth: u32, out: &mut Members) -> Option<Part> {
        out.left = out.left.checked_sub(1).filter(|_| depth <= MAX_DEPTH)?;
        let e = self.described(pos)?;
        match e.entry.tag() {
            dw::DW_TAG_array_type if !flag(&e.entry, dw::DW_AT_GNU_vector) => {
                let elem = self.link(&e, dw::DW_AT_type)?;
                let n = count(&e).unwrap_or(0);
                let size = self.size(elem, depth)?;
                // One says what all are like, where places do not matter.
                let shown = if out.whole > MAX_IN_REGISTERS { 1 } else { n.min(MAX_ELEMENTS) };
                let before = out.leaves.len();
                let mut part = Part { align: 1, special: Special::TRIVIAL };
                for i in 0..shown.max(1) {
                    part = self.part(
                        elem,
                        at.checked_add(i.checked_mul(size)?.checked_mul(8)?)?,
                        depth + 1,
                        out,
                    )?;
                }
                // An array without elements has an alignment and no members.
                if n == 0 {
                    out.leaves.truncate(before);
                }
                Some(part)
            }
            dw::DW_TAG_const_type
            | dw::DW_TAG_volatile_type
            | dw::DW_TAG_atomic_type
            | dw::DW_TAG_typedef
            | dw::DW_TAG_restrict_type => {
                let behind = self.link(&e, dw::DW_AT_type)?;
                self.part(behind, at, depth + 1, out)
            }
            dw::DW_TAG_structure_type | dw::DW_TAG_class_type | dw::DW_TAG_union_type => {
                if flag(&e.entry, dw::DW_AT_declaration) {
                    return None;
                }
                self.flatten(&e, at, depth, out)
            }
            _ => {
                let t = self.at(pos, depth)?;
                if out.whole <= MAX_IN_REGISTERS {
                    out.leaves.extend(
                        t.leaves
                            .iter()
                            .map(|l| Leaf { bit_offset: at.saturating_add(l.bit_offset), ..*l }),
                    );
                }
                let special = match e.entry.tag() {
                    dw::DW_TAG_rvalue_reference_type => Special::RVALUE_REFERENCE,
                    _ => Special::TRIVIAL,
                };
                Some(Part { align: t.align, special })
            }
        }
    }

    /// Bytes of an element.
    fn size(&mut self, pos: Pos, depth: u32) -> Option<u64> {
        let e = self.entry(pos)?;
        if depth > MAX_DEPTH {
            return None;
        }
        match e.entry.tag() {
            dw::DW_TAG_array_type => {
                let elem = self.link(&e, dw::DW_AT_type)?;
                self.size(elem, depth + 1)?.checked_mul(count(&e).unwrap_or(0))
            }
            _ => Some(self.at(pos, depth)?.size),
        }
    }
}

/// Number of elements of an array, all dimensions multiplied.
pub(super) fn count(e: &UnitEntry<'_, '_>) -> Option<u64> {
    let unit = e.unit();
    let mut tree = unit.entries_tree(Some(e.entry.offset())).ok()?;
    let mut children = tree.root().ok()?.children();
    let mut out: u64 = 1;
    while let Some(child) = children.next().ok()? {
        if child.entry().tag() == dw::DW_TAG_subrange_type {
            out = out.checked_mul(length(child.entry()).into())?;
        }
    }
    Some(out)
}
