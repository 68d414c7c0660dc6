//! What must be given back before a path ends or waits: references, spin locks, read-side sections,
//! preemption.

use super::Walk;
use crate::fields::{Field, FieldKind};
use crate::reg::{Flags, Kind, Reg};
use crate::reject::Reason;
use skep_isa::ProgramType as P;
use skep_object::MapSpec;
use skep_object::btf::Kind as Type;
use std::rc::Rc;

impl Walk<'_> {
    /// Checks that nothing is held that must be given back before `what`.
    pub(super) fn check_nothing_held(&self, what: &'static str) -> Result<(), Reason> {
        if let Some(r) = self.state.refs.first() {
            return Err(Reason::Unreleased { id: r.id, insn: r.insn });
        }
        if self.state.lock.is_some() {
            return Err(Reason::Inside { what, section: "bpf_spin_lock-ed" });
        }
        if self.state.rcu > 0 {
            return Err(Reason::Inside { what, section: "bpf_rcu_read_lock-ed" });
        }
        if self.state.preempt > 0 {
            return Err(Reason::Inside { what, section: "bpf_preempt_disable-ed" });
        }
        Ok(())
    }
}

impl Walk<'_> {
    /// The special fields of a map's values.
    pub(super) fn fields_of(&self, map: u32) -> Rc<[Field]> {
        if let Some(known) = self.fields.borrow().get(&map) {
            return known.clone();
        }
        // A map with a field that is not for maps of its type is made without types (libbpf
        // `bpf_object__create_map`).
        let found: Rc<[Field]> = self
            .spec(map)
            .map(|spec| (spec.map_type, self.declared_fields(spec)))
            .filter(|(map_type, fields)| fields.iter().all(|f| f.kind.may_be_in(*map_type)))
            .map_or_else(|| Rc::from([]), |(_, fields)| fields.into());
        self.fields.borrow_mut().insert(map, found.clone());
        found
    }

    /// The special fields that the types of a map's values have.
    fn declared_fields(&self, spec: &MapSpec) -> Vec<Field> {
        match &self.prog.btf {
            Some(btf) if spec.value_type_id != 0 => crate::fields::find(btf, spec.value_type_id),
            _ => Vec::new(),
        }
    }

    /// Checks that an access to a map value touches no special field.
    pub(super) fn check_fields(
        &self,
        r: &Reg,
        map: u32,
        off: i32,
        size: u32,
        by_helper: bool,
    ) -> Result<(), Reason> {
        check_field_access(&self.fields_of(map), r, off, size, by_helper)
    }

    /// Checks the pointer to a special field that a helper works on; the field's offset.
    pub(super) fn field_place(&self, reg: u8, r: &Reg, name: &'static str) -> Result<(), Reason> {
        let fields = match r.kind {
            Kind::Value(map) => {
                let spec = self.spec(map);
                let map_name = || spec.map_or_else(String::new, |m| m.name.clone());
                if r.val.as_const().is_none() {
                    return Err(Reason::VariableField { reg, field: name });
                }
                if spec.is_none_or(|m| m.value_type_id == 0) || self.prog.btf.is_none() {
                    return Err(Reason::NoFieldTypes { map: map_name(), field: name });
                }
                let fields = self.fields_of(map);
                if !fields.iter().any(|f| f.kind.name() == name) {
                    let map = map_name();
                    return Err(match spec.filter(|m| !self.declared_fields(m).is_empty()) {
                        Some(m) if fields.is_empty() => {
                            let kind = m.map_type.name();
                            Reason::FieldOfOtherMaps { map, field: name, kind }
                        }
                        _ => Reason::NoSuchField { map, field: name },
                    });
                }
                fields
            }
            Kind::Local(ty) => {
                if r.val.as_const().is_none() {
                    return Err(Reason::VariableField { reg, field: name });
                }
                self.object_fields(ty)
            }
            _ => {
                return Err(Reason::WrongType {
                    reg,
                    found: r.type_name(),
                    expected: "map_value, ptr_",
                });
            }
        };
        let (off, _) = r.offsets();
        if fields.iter().any(|f| f.kind.name() == name && i64::from(f.off) == off) {
            return Ok(());
        }
        let at = fields.iter().find(|f| f.kind.name() == name).map_or(0, |f| f.off);
        Err(Reason::NotAtField { field: name, off, at })
    }

    /// The special fields of an object the program allocates.
    pub(super) fn object_fields(&self, ty: u32) -> Rc<[Field]> {
        let key = ty | OBJECT;
        if let Some(known) = self.fields.borrow().get(&key) {
            return known.clone();
        }
        let found: Rc<[Field]> =
            self.prog.btf.as_ref().map_or(Rc::from([]), |btf| crate::fields::find(btf, ty).into());
        self.fields.borrow_mut().insert(key, found.clone());
        found
    }

    /// `bpf_spin_lock` and `bpf_spin_unlock`.
    pub(super) fn spin_lock(&mut self, reg: u8, r: &Reg, lock: bool) -> Result<(), Reason> {
        if r.nullable {
            return Err(Reason::WrongType {
                reg,
                found: r.type_name(),
                expected: "map_value, ptr_",
            });
        }
        self.field_place(reg, r, "bpf_spin_lock")?;
        if self.state.compares_nodes() {
            return Err(Reason::InComparison { what: "can't spin_{lock,unlock} in" });
        }
        let which = (r.kind, r.id);
        match (lock, self.state.lock) {
            (true, Some(_)) => Err(Reason::TwoLocks),
            (true, None) => {
                self.state.lock = Some(which);
                Ok(())
            }
            (false, None) => Err(Reason::NotLocked),
            (false, Some(held)) if held != which => Err(Reason::OtherLock),
            (false, Some(_)) => {
                self.state.lock = None;
                self.state.invalidate(self.opts.strict, |r| r.flags.has(Flags::NON_OWNING));
                Ok(())
            }
        }
    }

    /// Refuses maps whose values programs of this type must not have
    /// (`check_map_prog_compatibility`).
    pub(super) fn check_maps(&self) -> Result<(), Reason> {
        let tracing = matches!(
            self.prog.prog_type,
            P::Kprobe | P::Tracepoint | P::PerfEvent | P::RawTracepoint | P::RawTracepointWritable
        );
        for map in 0..self.prog.maps.len() as u32 {
            let fields = self.fields_of(map);
            let has =
                |names: &[&str]| fields.iter().map(|f| f.kind.name()).find(|n| names.contains(n));
            if let Some(field) = has(&["bpf_spin_lock"]) {
                if self.prog.prog_type == P::SocketFilter {
                    return Err(Reason::FieldInProgram { progs: "socket filter", field });
                }
                if tracing {
                    return Err(Reason::FieldInProgram { progs: "tracing", field });
                }
            }
            if let Some(field) = has(&["bpf_list_head", "bpf_rb_root", "bpf_timer", "bpf_wq"])
                && tracing
            {
                return Err(Reason::FieldInProgram { progs: "tracing", field });
            }
        }
        Ok(())
    }

    /// Refuses what declaration tags of the program's functions ask for and skep has not.
    pub(super) fn check_tags(&self) -> Result<(), Reason> {
        if matches!(self.prog.prog_type, P::StructOps | P::Lsm | P::Ext) {
            return Err(Reason::Unsupported { what: "this program type" });
        }
        let Some(btf) = self.prog.btf.as_deref() else { return Ok(()) };
        let main = self.prog.subprogs.first().map_or(0, |s| s.type_id);
        let asks = main != 0
            && btf.types().any(|(_, t)| match &t.kind {
                Type::DeclTag(d) => {
                    d.type_id == main && btf.string(t.name_off).starts_with("exception_callback:")
                }
                _ => false,
            });
        if asks { Err(Reason::ExceptionCallback) } else { Ok(()) }
    }

    /// Tells whether a pointer may lead to something with a spin lock: its id then names the lock.
    pub(super) fn may_hold_lock(&self, kind: Kind) -> bool {
        let fields = match kind {
            Kind::Value(map) => self.fields_of(map),
            Kind::Local(ty) => self.object_fields(ty),
            _ => return false,
        };
        fields.iter().any(|f| matches!(f.kind, FieldKind::SpinLock | FieldKind::ResSpinLock))
    }
}

/// Marks the key of an object's type among those of maps.
const OBJECT: u32 = 1 << 30;

/// Checks that an access touches no special field, or one kernel pointer whole.
pub(super) fn check_field_access(
    fields: &[Field],
    r: &Reg,
    off: i32,
    size: u32,
    by_helper: bool,
) -> Result<(), Reason> {
    let fixed = i64::from(r.off) + i64::from(off);
    let low = fixed.saturating_add(r.val.r64.smin);
    let high = fixed
        .saturating_add(i64::try_from(r.val.r64.umax).unwrap_or(i64::MAX))
        .saturating_add(i64::from(size));
    for f in fields {
        let (start, end) = (i64::from(f.off), i64::from(f.off) + i64::from(f.size));
        if low >= end || start >= high {
            continue;
        }
        let FieldKind::Kptr(k) = &f.kind else {
            return Err(Reason::FieldAccess {
                field: f.kind.name(),
                how: "directly by load/store",
            });
        };
        let what = if by_helper {
            "cannot be done indirectly by helper"
        } else if r.val.as_const().is_none() {
            "cannot have variable offset"
        } else if low != start {
            "misaligned"
        } else if size != 8 {
            "size must be BPF_DW"
        } else if k.user {
            "to memory of the user's is not supported by skep yet"
        } else {
            continue;
        };
        return Err(Reason::KptrAccess { what });
    }
    Ok(())
}
