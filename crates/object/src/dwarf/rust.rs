//! Structures, unions and enumerations of Rust, as far as it decides how they are passed.

use super::language::Language;
use super::read::{member, number};
use super::types::{MAX_DEPTH, Types, UnitEntry};
use crate::proto::{
    Class, Field, Passed, Scalar, ScalarKind, Type, ValueKind, Variant, of_structure, of_union,
    of_variants,
};
use gimli::{AttributeValue as Value, constants as dw};

/// Most variants of an enumeration that are looked at.
const MAX_VARIANTS: usize = 1 << 12;

impl<'s, 'a> Types<'s, 'a> {
    /// A structure or enumeration with fields, or a union.
    pub(super) fn rust_composite(&mut self, e: &UnitEntry<'s, 'a>, depth: u32) -> Option<Type> {
        let size = number(&e.entry, dw::DW_AT_byte_size)?;
        let is_union = e.entry.tag() == dw::DW_TAG_union_type;
        let (kind, word) =
            if is_union { (ValueKind::Union, "union") } else { (ValueKind::Struct, "struct") };
        let name = e.text(dw::DW_AT_name).unwrap_or_default();
        let align = number(&e.entry, dw::DW_AT_alignment);
        // Vectors: they are passed in registers or behind pointers.
        let is_vector = ["__m128", "__m256", "__m512", "Simd<"].iter().any(|v| name.starts_with(v));
        let passed = align.filter(|_| !is_vector).and_then(|align| {
            let Language::Rust { minor } = self.language else { return None };
            let children = self.children(e)?;
            match children.iter().find(|c| c.entry.tag() == dw::DW_TAG_variant_part) {
                Some(part) => self.variants(part, size, align, minor, depth),
                None if is_union => of_union(size, align, &self.fields(&children, depth)?),
                None => of_structure(size, align, &self.fields(&children, depth)?),
            }
        });
        Some(Type {
            size,
            align: align.unwrap_or(1).clamp(1, 1 << 16),
            passed,
            described_at: e.place(),
            ..Type::scalar(&format!("{word} {name}"), kind, 0, Class::Integer)
        })
    }

    /// An array, which is passed as its bytes.
    pub(super) fn rust_array(&mut self, e: &UnitEntry<'s, 'a>, depth: u32) -> Option<Type> {
        let element = self.behind(e, depth)?;
        let count = super::composite::count(e)?;
        let size = element.size.checked_mul(count)?;
        Some(Type {
            size,
            align: element.align,
            passed: Some(if size == 0 { Passed::Nothing } else { Passed::Bytes }),
            ..Type::scalar(
                &format!("[{}; {count}]", element.text),
                ValueKind::Struct,
                0,
                Class::Integer,
            )
        })
    }

    fn children(&self, e: &UnitEntry<'s, 'a>) -> Option<Vec<UnitEntry<'s, 'a>>> {
        let unit = e.unit();
        let mut tree = unit.entries_tree(Some(e.entry.offset())).ok()?;
        let mut children = tree.root().ok()?.children();
        let mut out = Vec::new();
        while let Some(child) = children.next().ok()? {
            let wanted = matches!(
                child.entry().tag(),
                dw::DW_TAG_member | dw::DW_TAG_variant_part | dw::DW_TAG_variant
            );
            if wanted {
                out.push(e.beside(child.entry().clone()));
            }
        }
        Some(out)
    }

    /// The fields among the children of a structure.
    fn fields(&mut self, children: &[UnitEntry<'s, 'a>], depth: u32) -> Option<Vec<Field>> {
        let mut out = Vec::new();
        for c in children.iter().filter(|c| c.entry.tag() == dw::DW_TAG_member) {
            let Some(place) = member(&c.unit(), &c.entry) else { continue };
            let t = self.behind(c, depth)?;
            let at = place.bit_offset / 8;
            out.push(Field { at, size: t.size, align: t.align, passed: t.passed });
        }
        Some(out)
    }

    /// How an enumeration is passed.
    fn variants(
        &mut self,
        part: &UnitEntry<'s, 'a>,
        size: u64,
        align: u64,
        minor: u32,
        depth: u32,
    ) -> Option<Passed> {
        let children = self.children(part)?;
        let variants: Vec<_> =
            children.iter().filter(|c| c.entry.tag() == dw::DW_TAG_variant).collect();
        if depth > MAX_DEPTH || variants.len() > MAX_VARIANTS {
            return None;
        }
        let mut all = Vec::new();
        for v in &variants {
            // What is in a variant is a structure of its own.
            let inner = self.children(v)?;
            let one = inner.iter().find(|c| c.entry.tag() == dw::DW_TAG_member)?;
            let pos = self.link(one, dw::DW_AT_type)?;
            let of = self.entry(pos)?;
            let members = self.children(&of)?;
            let fields = self.fields(&members, depth + 1)?;
            all.push(Variant { rest: !v.entry.has_attr(dw::DW_AT_discr_value), fields });
        }
        let Some(Value::UnitRef(tag)) = part.entry.attr_value(dw::DW_AT_discr) else {
            // Nothing tells variants apart where there is but one.
            let [only] = all.as_slice() else { return None };
            return of_structure(size, align, &only.fields);
        };
        let tag = children.iter().find(|c| c.entry.offset() == tag)?;
        let at = member(&tag.unit(), &tag.entry)?.bit_offset / 8;
        let t = self.behind(tag, depth)?;
        let tag = Scalar { size: t.size, align: t.align, kind: ScalarKind::Integer };
        of_variants(size, align, (at, tag), &all, minor)
    }
}
