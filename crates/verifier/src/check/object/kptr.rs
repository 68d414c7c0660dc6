//! Kernel pointers in map values (`bpf_kptr_xchg`).

use crate::check::Walk;
use crate::reg::{Flags, Kind, Reg};
use crate::reject::Reason;
use skep_object::btf::Kind as Type;

impl Walk<'_> {
    /// `bpf_kptr_xchg`, the place: the kind of pointer it holds.
    pub(in crate::check) fn kptr_place(
        &self,
        reg: u8,
        r: &Reg,
    ) -> Result<crate::fields::Kptr, Reason> {
        let wrong = || Reason::WrongType { reg, found: r.type_name(), expected: "map_value, ptr_" };
        if r.nullable {
            return Err(wrong());
        }
        let fields = match r.kind {
            Kind::Value(map) => self.fields_of(map),
            Kind::Local(ty) if r.reference != 0 => self.object_fields(ty),
            _ => return Err(wrong()),
        };
        let Some(n) = r.val.as_const() else {
            return Err(Reason::VariableField { reg, field: "kptr" });
        };
        let off = i64::from(r.off).saturating_add(n as i64);
        if !fields.iter().any(|f| f.kind.name() == "kptr") {
            return Err(Reason::NoKptr { reg });
        }
        let field = fields.iter().find(|f| i64::from(f.off) == off);
        match field.map(|f| &f.kind) {
            Some(crate::fields::FieldKind::Kptr(k)) if !k.untrusted && !k.user => Ok(k.clone()),
            Some(crate::fields::FieldKind::Kptr(_)) => {
                Err(Reason::KptrAccess { what: "needs a referenced kptr" })
            }
            _ => Err(Reason::KptrAccess { what: "does not point to a kptr" }),
        }
    }

    /// `bpf_kptr_xchg`, the new pointer: the reference that is taken, if any.
    pub(in crate::check) fn kptr_value(
        &self,
        reg: u8,
        r: &Reg,
        k: &crate::fields::Kptr,
    ) -> Result<Option<crate::reg::Id>, Reason> {
        if r.is_zero() {
            return Ok(None);
        }
        let expected = Reason::WrongType { reg, found: r.type_name(), expected: "ptr_" };
        if r.nullable || self.kptr_type(k) != Some(r.kind) || r.flags.has(Flags::PERCPU) != k.percpu
        {
            return Err(expected);
        }
        if r.reference == 0 || !self.state.refs.iter().any(|held| held.id == r.reference) {
            return Err(Reason::NotReferenced { reg });
        }
        if r.off != 0 || r.val.as_const() != Some(0) {
            return Err(Reason::ReleaseOffset { reg });
        }
        Ok(Some(r.reference))
    }

    /// `bpf_kptr_xchg`, the result.
    pub(in crate::check) fn kptr_old(&mut self, k: &crate::fields::Kptr) -> Reg {
        let Some(kind) = self.kptr_type(k) else { return Reg::UNKNOWN };
        let mut r = self.acquired(kind);
        if k.percpu {
            r.flags = Flags::PERCPU;
        }
        r
    }

    /// The type behind a kernel pointer: the target's, or the program's own.
    pub(super) fn kptr_type(&self, k: &crate::fields::Kptr) -> Option<Kind> {
        let own = self.prog.btf.as_deref()?;
        let name = own.name(k.to);
        if let Some(id) = self.target_struct(name) {
            return Some(Kind::Btf(id));
        }
        matches!(own.get(k.to).map(|t| &t.kind), Ok(Type::Struct(_))).then_some(Kind::Local(k.to))
    }

    /// Loads from and stores to a kernel pointer in a map value; `None` when there is none at that
    /// place.
    pub(in crate::check) fn kptr_at(
        &self,
        r: &Reg,
        map: u32,
        off: i32,
    ) -> Option<crate::fields::Kptr> {
        let start = i64::from(r.off) + i64::from(off) + r.val.as_const()? as i64;
        self.fields_of(map).iter().find_map(|f| match &f.kind {
            crate::fields::FieldKind::Kptr(k) if i64::from(f.off) == start => Some(k.clone()),
            _ => None,
        })
    }

    /// A load of a kernel pointer.
    pub(in crate::check) fn load_kptr(
        &mut self,
        reg: u8,
        r: &Reg,
        k: &crate::fields::Kptr,
    ) -> Result<Reg, Reason> {
        let kind = self.kptr_type(k).ok_or(Reason::NotMemory { reg, kind: r.type_name() })?;
        let mut out = self.or_null(kind);
        let protected = match kind {
            Kind::Btf(id) => self.target().is_some_and(|b| {
                matches!(b.name(id), "cgroup" | "bpf_cpumask" | "task_struct" | "bpf_crypto_ctx")
            }),
            _ => true,
        };
        out.flags = if !k.untrusted && protected && self.in_rcu() {
            if k.percpu { Flags::RCU.with(Flags::PERCPU) } else { Flags::RCU }
        } else {
            Flags::UNTRUSTED
        };
        Ok(out)
    }

    /// A store to a kernel pointer.
    pub(in crate::check) fn store_kptr(
        &self,
        reg: u8,
        value: &Reg,
        k: &crate::fields::Kptr,
    ) -> Result<(), Reason> {
        if !k.untrusted {
            return Err(Reason::KptrAccess { what: "by a store to referenced kptr disallowed" });
        }
        if value.is_zero() {
            return Ok(());
        }
        let fits = self.kptr_type(k) == Some(value.kind)
            && value.off == 0
            && !value.flags.has(Flags::PERCPU);
        if fits {
            Ok(())
        } else {
            Err(Reason::WrongType { reg, found: value.type_name(), expected: "ptr_" })
        }
    }
}
