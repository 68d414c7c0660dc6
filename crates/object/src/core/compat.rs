//! When a target's type will do for a local one.

use super::spec::{composite, enumeration};
use super::{CoreError, Relocator, essential};
use crate::Btf;
use crate::btf::{Composite, Kind, MAX_DEPTH, TypeId};

/// Tells whether two kinds are the same, enumerations of all widths being one.
pub(super) fn kinds(local: &Kind, target: &Kind) -> bool {
    let both_enums = enumeration(local).is_some() && enumeration(target).is_some();
    both_enums || std::mem::discriminant(local) == std::mem::discriminant(target)
}

/// Tells whether a member's type fits (`bpf_core_fields_are_compat`): structures always do, since
/// what matters in them is found by name; numbers of any width do; named enumerations by name.
pub(super) fn fields(
    local: &Btf,
    mut local_id: TypeId,
    target: &Btf,
    mut target_id: TypeId,
) -> Result<bool, CoreError> {
    for _ in 0..MAX_DEPTH {
        let ((l_id, l), (t_id, t)) = (local.resolve(local_id)?, target.resolve(target_id)?);
        if composite(&l.kind).is_some() && composite(&t.kind).is_some() {
            return Ok(true);
        }
        if !kinds(&l.kind, &t.kind) {
            return Ok(false);
        }
        return Ok(match (&l.kind, &t.kind) {
            (Kind::Ptr(_), _) | (Kind::Float(_), _) => true,
            (Kind::Fwd { .. } | Kind::Enum(_) | Kind::Enum64(_), _) => {
                let (a, b) = (essential(local.name(l_id)), essential(target.name(t_id)));
                a.is_empty() || b.is_empty() || a == b
            }
            (Kind::Int(a), Kind::Int(b)) => a.offset == 0 && b.offset == 0,
            (Kind::Array(a), Kind::Array(b)) => {
                (local_id, target_id) = (a.elem, b.elem);
                continue;
            }
            _ => false,
        });
    }
    Err("types nest too deep".into())
}

impl Relocator<'_> {
    /// Tells whether a type exists in the target in the loose sense (`bpf_core_types_are_compat`);
    /// its name is equal already.
    pub(super) fn types_compatible(
        &self,
        mut local_id: TypeId,
        target: &Btf,
        mut target_id: TypeId,
        depth: usize,
    ) -> Result<bool, CoreError> {
        for _ in depth..MAX_DEPTH {
            self.step()?;
            let ((_, l), (_, t)) = (self.local.resolve(local_id)?, target.resolve(target_id)?);
            if !kinds(&l.kind, &t.kind) {
                return Ok(false);
            }
            (local_id, target_id) = match (&l.kind, &t.kind) {
                (
                    Kind::Void
                    | Kind::Struct(_)
                    | Kind::Union(_)
                    | Kind::Enum(_)
                    | Kind::Enum64(_)
                    | Kind::Fwd { .. },
                    _,
                ) => return Ok(true),
                (Kind::Int(a), Kind::Int(b)) => return Ok(a.offset == 0 && b.offset == 0),
                (Kind::Ptr(a), Kind::Ptr(b)) => (*a, *b),
                (Kind::Array(a), Kind::Array(b)) => (a.elem, b.elem),
                (Kind::FuncProto(a), Kind::FuncProto(b)) => {
                    if a.params.len() != b.params.len() {
                        return Ok(false);
                    }
                    for (a, b) in a.params.iter().zip(&b.params) {
                        if !self.types_compatible(a.type_id, target, b.type_id, depth + 1)? {
                            return Ok(false);
                        }
                    }
                    (a.ret, b.ret)
                }
                _ => return Ok(false),
            };
        }
        Err("types nest too deep".into())
    }

    /// Tells whether each member of a structure matches one of that name.
    fn members_match(
        &self,
        local: &Composite,
        target: &Btf,
        theirs: &Composite,
        depth: usize,
    ) -> Result<bool, CoreError> {
        for own in &local.members {
            let wanted = essential(self.local.string(own.name_off));
            let mut matches = false;
            for m in &theirs.members {
                if !matches && essential(target.string(m.name_off)) == wanted {
                    matches = self.types_match(own.type_id, target, m.type_id, false, depth + 1)?;
                }
            }
            if !matches {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Tells whether a type of the target has all that the local one has (`bpf_core_types_match`).
    pub(super) fn types_match(
        &self,
        mut local_id: TypeId,
        target: &Btf,
        mut target_id: TypeId,
        mut behind_pointer: bool,
        depth: usize,
    ) -> Result<bool, CoreError> {
        for _ in depth..MAX_DEPTH {
            self.step()?;
            let ((l_id, l), (t_id, t)) =
                (self.local.resolve(local_id)?, target.resolve(target_id)?);
            if essential(self.local.name(l_id)) != essential(target.name(t_id)) {
                return Ok(false);
            }
            (local_id, target_id) = match (&l.kind, &t.kind) {
                (Kind::Void, Kind::Void) => return Ok(true),
                (Kind::Fwd { union: a }, Kind::Fwd { union: b }) => return Ok(a == b),
                (Kind::Fwd { union }, Kind::Struct(_)) | (Kind::Struct(_), Kind::Fwd { union }) => {
                    return Ok(behind_pointer && !union);
                }
                (Kind::Fwd { union }, Kind::Union(_)) | (Kind::Union(_), Kind::Fwd { union }) => {
                    return Ok(behind_pointer && *union);
                }
                (Kind::Struct(a), Kind::Struct(b)) | (Kind::Union(a), Kind::Union(b)) => {
                    if behind_pointer {
                        return Ok(true);
                    }
                    return self.members_match(a, target, b, depth);
                }
                (Kind::Enum(a) | Kind::Enum64(a), Kind::Enum(b) | Kind::Enum64(b)) => {
                    let has = |name: &str| {
                        b.values.iter().any(|v| essential(target.string(v.name_off)) == name)
                    };
                    return Ok(a
                        .values
                        .iter()
                        .all(|v| has(essential(self.local.string(v.name_off)))));
                }
                (Kind::Int(a), Kind::Int(b)) => return Ok(a.size == b.size && a.signed == b.signed),
                (Kind::Ptr(a), Kind::Ptr(b)) => {
                    behind_pointer = true;
                    (*a, *b)
                }
                (Kind::Array(a), Kind::Array(b)) if a.len == b.len => (a.elem, b.elem),
                (Kind::FuncProto(a), Kind::FuncProto(b)) if a.params.len() == b.params.len() => {
                    for (a, b) in a.params.iter().zip(&b.params) {
                        if !self.types_match(
                            a.type_id,
                            target,
                            b.type_id,
                            behind_pointer,
                            depth + 1,
                        )? {
                            return Ok(false);
                        }
                    }
                    (a.ret, b.ret)
                }
                _ => return Ok(false),
            };
        }
        Err("types nest too deep".into())
    }
}
