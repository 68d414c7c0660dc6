//! What stands at an offset of a kernel structure.

use skep_object::Btf;
use skep_object::btf::{Composite, Kind as Type, Member, TypeId};

/// What a field of a kernel object holds.
pub(super) enum Field<'a> {
    Number,
    Pointer { to: TypeId, tag: &'a str, owner: &'a str, field: &'a str },
}

/// Where the search goes on, or what it finds.
enum Step<'a> {
    Into(TypeId, u32),
    Field(Field<'a>),
    /// Not in this member.
    Elsewhere,
}

const BEYOND: &str = "access beyond struct";

/// Finds what stands in a structure (`btf_struct_walk`).
pub(super) fn find(
    btf: &Btf,
    mut id: TypeId,
    mut off: u32,
    size: u32,
) -> Result<Field<'_>, &'static str> {
    for _ in 0..32 {
        let ty = btf.get(id).map_err(|_| "access to an unknown type")?;
        let (Type::Struct(s) | Type::Union(s)) = &ty.kind else {
            return Err("access to something that is no structure");
        };
        let end = off.checked_add(size).ok_or(BEYOND)?;
        let step = if end > s.size {
            behind_end(btf, s, off)?
        } else {
            in_members(btf, s, ty.name_off, off, size)?
        };
        (id, off) = match step {
            Step::Into(to, rest) => (to, rest),
            Step::Field(field) => return Ok(field),
            Step::Elsewhere => return Err("access to a hole"),
        };
    }
    Err("structures too deeply nested")
}

/// A last member without a size of its own goes on behind the structure.
fn behind_end<'a>(btf: &'a Btf, s: &Composite, off: u32) -> Result<Step<'a>, &'static str> {
    let last = s.members.last().ok_or(BEYOND)?;
    let Ok((_, t)) = btf.resolve(last.type_id) else { return Err(BEYOND) };
    let Type::Array(a) = &t.kind else { return Err(BEYOND) };
    let at = last.bit_offset / 8;
    if a.len > 1 || off < at {
        return Err(BEYOND);
    }
    let (elem, t) = btf.resolve(a.elem).map_err(|_| BEYOND)?;
    let each = size_of(btf, elem)?;
    if !matches!(t.kind, Type::Struct(_)) {
        return Ok(Step::Field(Field::Number));
    }
    Ok(Step::Into(elem, (off - at) % each))
}

fn in_members<'a>(
    btf: &'a Btf,
    s: &Composite,
    owner: u32,
    off: u32,
    size: u32,
) -> Result<Step<'a>, &'static str> {
    for m in &s.members {
        let at = m.bit_offset / 8;
        if m.bitfield != 0 {
            // The whole field, or it is none.
            let until = (m.bit_offset + u32::from(m.bitfield)).div_ceil(8);
            if off <= at && until <= off + size {
                return Ok(Step::Field(Field::Number));
            }
            continue;
        }
        match in_member(btf, m, owner, off, size)? {
            Step::Elsewhere => {}
            step => return Ok(step),
        }
    }
    Ok(Step::Elsewhere)
}

fn in_member<'a>(
    btf: &'a Btf,
    m: &Member,
    owner: u32,
    off: u32,
    size: u32,
) -> Result<Step<'a>, &'static str> {
    let (at, end) = (m.bit_offset / 8, off + size);
    let Ok((id, t)) = btf.resolve(m.type_id) else { return Ok(Step::Elsewhere) };
    let len = btf.size_of(id).ok().and_then(|n| u32::try_from(n).ok()).unwrap_or(0);
    if off < at || off >= at.saturating_add(len) {
        return Ok(Step::Elsewhere);
    }
    match &t.kind {
        Type::Struct(_) | Type::Union(_) => Ok(Step::Into(id, off - at)),
        Type::Array(a) => {
            let (mut elem, mut t) = btf.resolve(a.elem).map_err(|_| BEYOND)?;
            while let Type::Array(inner) = &t.kind {
                (elem, t) = btf.resolve(inner.elem).map_err(|_| BEYOND)?;
            }
            let each = size_of(btf, elem)?;
            let inside = (off - at) % each;
            match &t.kind {
                Type::Struct(_) | Type::Union(_) => Ok(Step::Into(elem, inside)),
                Type::Ptr(to) if inside == 0 && size == 8 => {
                    Ok(Step::Field(pointer(btf, *to, owner, m.name_off)))
                }
                Type::Ptr(_) => Err("cannot access part of a pointer in an array"),
                _ if inside + size > each && end > at + len => {
                    Err("access beyond the end of member")
                }
                _ => Ok(Step::Field(Field::Number)),
            }
        }
        Type::Ptr(to) if off == at && size == 8 => {
            Ok(Step::Field(pointer(btf, *to, owner, m.name_off)))
        }
        Type::Ptr(_) => Err("cannot access part of a pointer"),
        _ if end > at + len => Err("access beyond the end of member"),
        _ => Ok(Step::Field(Field::Number)),
    }
}

/// Bytes of an array's element, at least one.
fn size_of(btf: &Btf, id: TypeId) -> Result<u32, &'static str> {
    let size = btf.size_of(id).ok().and_then(|n| u32::try_from(n).ok());
    size.filter(|n| *n > 0).ok_or(BEYOND)
}

fn pointer<'a>(btf: &'a Btf, to: TypeId, owner: u32, field: u32) -> Field<'a> {
    let tag = tag_of(btf, to);
    match btf.resolve(to) {
        Ok((id, t)) if matches!(t.kind, Type::Struct(_)) => {
            Field::Pointer { to: id, tag, owner: btf.string(owner), field: btf.string(field) }
        }
        _ => Field::Number,
    }
}

/// The type tag in front of what a pointer leads to.
pub(super) fn tag_of(btf: &Btf, to: TypeId) -> &str {
    match btf.get(to) {
        Ok(t) if matches!(t.kind, Type::TypeTag(_)) => btf.string(t.name_off),
        _ => "",
    }
}

/// Tells whether an object of that type has an object called `name` at `off`: itself, or a first
/// member at any depth.
pub(in crate::check) fn same_object(btf: &Btf, mut id: TypeId, off: i64, name: &str) -> bool {
    let Ok(mut off) = u32::try_from(off) else { return false };
    for _ in 0..16 {
        if off == 0 && btf.name(id) == name {
            return true;
        }
        let Ok(Type::Struct(s)) = btf.get(id).map(|t| &t.kind) else { return false };
        let inside = s.members.iter().find(|m| {
            let at = m.bit_offset / 8;
            let size = btf.size_of(m.type_id).ok().and_then(|n| u32::try_from(n).ok()).unwrap_or(0);
            m.bitfield == 0 && at <= off && off < at.saturating_add(size)
        });
        let Some(m) = inside else { return false };
        let Ok((next, ty)) = btf.resolve(m.type_id) else { return false };
        off -= m.bit_offset / 8;
        match &ty.kind {
            Type::Struct(_) => id = next,
            Type::Array(a) => {
                let Ok((elem, _)) = btf.resolve(a.elem) else { return false };
                let size =
                    btf.size_of(elem).ok().and_then(|n| u32::try_from(n).ok()).unwrap_or(1).max(1);
                off %= size;
                id = elem;
            }
            _ => return false,
        }
    }
    false
}
