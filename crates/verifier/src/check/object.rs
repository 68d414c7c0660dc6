//! Objects of the kernel: pointers to types of the target's BTF, trusted or not.

use super::Walk;
use crate::reg::{Flags, Kind, Reg};
use crate::reject::Reason;
use skep_object::Btf;
use skep_object::btf::{Kind as Type, TypeId};

impl Walk<'_> {
    /// The target's types.
    pub(super) fn target(&self) -> Option<&Btf> {
        self.opts.target.as_deref()
    }

    /// A structure of the target by name.
    pub(super) fn target_struct(&self, name: &str) -> Option<TypeId> {
        self.target()?.find(name, |k| matches!(k, Type::Struct(_)))
    }

    /// A pointer to a kernel object of that type; an unknown number when the target's types are not
    /// known.
    pub(super) fn kernel_pointer(&self, name: &str, flags: Flags) -> Reg {
        let Some(id) = self.target_struct(name) else { return Reg::UNKNOWN };
        let mut r = Reg::of(Kind::Btf(id));
        r.flags = flags;
        r
    }

    /// Tells whether this is a kernel object that is a socket, and alive for certain.
    pub(super) fn is_trusted_sock(&self, r: &Reg) -> bool {
        self.is_sock(r) && self.is_trusted(r)
    }

    /// Tells whether this is a kernel object that is a socket.
    pub(super) fn is_sock(&self, r: &Reg) -> bool {
        let Kind::Btf(id) = r.kind else { return false };
        let Some(btf) = self.target() else { return false };
        let name = btf.name(id);
        matches!(
            name,
            "sock_common"
                | "sock"
                | "inet_sock"
                | "inet_connection_sock"
                | "inet_request_sock"
                | "inet_timewait_sock"
                | "request_sock"
                | "tcp_sock"
                | "tcp_request_sock"
                | "tcp_timewait_sock"
                | "tcp6_sock"
                | "udp_sock"
                | "udp6_sock"
                | "unix_sock"
                | "mptcp_sock"
        )
    }

    /// Tells whether the object is alive for certain.
    pub(super) fn is_trusted(&self, r: &Reg) -> bool {
        r.reference != 0 || (r.flags.has(Flags::TRUSTED) && !r.flags.has(Flags::UNTRUSTED))
    }

    /// Checks a kernel object that a helper works on.
    pub(super) fn kernel_object(&self, reg: u8, r: &Reg, name: &'static str) -> Result<(), Reason> {
        let wrong = || Reason::WrongType {
            reg,
            found: r.type_name(),
            expected: "ptr_, trusted_ptr_, rcu_ptr_",
        };
        let Kind::Btf(id) = r.kind else { return Err(wrong()) };
        if r.nullable || r.flags.has(Flags::UNTRUSTED) {
            return Err(wrong());
        }
        let (off, _) = r.offsets();
        let fits = self.target().is_some_and(|btf| same_object(btf, id, off, name));
        if fits { Ok(()) } else { Err(wrong()) }
    }
}

/// Tells whether an object of that type has an object called `name` at `off`: itself, or a first
/// member at any depth.
pub(super) fn same_object(btf: &Btf, mut id: TypeId, off: i64, name: &str) -> bool {
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

/// What a load from a kernel object gives.
enum Found<'a> {
    Number,
    Pointer { to: TypeId, tag: &'a str, owner: &'a str, field: &'a str },
}

impl Walk<'_> {
    /// A load through a pointer to a kernel object.
    pub(super) fn load_object(
        &mut self,
        reg: u8,
        r: &Reg,
        id: TypeId,
        off: i32,
        size: u32,
        signed: bool,
    ) -> Result<Reg, Reason> {
        let opts = self.opts;
        let Some(btf) = opts.target.as_deref() else {
            return Err(Reason::NotMemory { reg, kind: r.type_name() });
        };
        let name = btf.name(id).to_owned();
        if opts.strict {
            return Err(Reason::ForRoot { name });
        }
        if !self.prog.gpl {
            return Err(Reason::NeedsGpl { name });
        }
        if r.flags.has(Flags::PERCPU) {
            return Err(Reason::NotMemory { reg, kind: r.type_name() });
        }
        let start = i64::from(r.off) + i64::from(off);
        if start < 0 {
            return Err(Reason::ObjectOffset {
                reg,
                name,
                what: "invalid negative access",
                off: start,
            });
        }
        if r.val.as_const() != Some(0) {
            return Err(Reason::ObjectOffset {
                reg,
                name,
                what: "invalid variable offset",
                off: start,
            });
        }
        let found = walk(btf, id, start as u32, size).map_err(|what| Reason::ObjectOffset {
            reg,
            name,
            what,
            off: start,
        })?;
        // Whatever it yields, there may be nothing to load from.
        self.info.object_loads.insert(self.insn);
        let Found::Pointer { to, tag, owner, field } = found else {
            return Ok(Reg::scalar(super::loaded(size, signed)));
        };
        let safe = |table: &[(&str, &str)]| table.contains(&(owner, field));
        let mut out = Reg::of(Kind::Btf(to));
        let mut nullable = false;
        if r.flags.has(Flags::UNTRUSTED) {
            out.flags = Flags::UNTRUSTED;
        } else if self.is_trusted(r) || r.flags.has(Flags::RCU) {
            if safe(SAFE_TRUSTED) {
                out.flags = Flags::TRUSTED;
            } else if safe(SAFE_TRUSTED_OR_NULL) {
                out.flags = Flags::TRUSTED;
                nullable = true;
            } else if self.in_rcu() {
                if safe(SAFE_RCU) {
                    out.flags = Flags::RCU;
                } else if tag == "rcu" || safe(SAFE_RCU_OR_NULL) {
                    out.flags = Flags::RCU;
                    nullable = true;
                }
                // Otherwise neither trusted nor marked: it may be looked at, but not handed on.
            } else {
                out.flags = Flags::UNTRUSTED;
            }
        }
        if tag == "percpu" {
            out.flags = out.flags.with(Flags::PERCPU);
        }
        if tag == "user" {
            return Ok(Reg::UNKNOWN);
        }
        if nullable {
            out.nullable = true;
            out.id = self.fresh_id();
        }
        Ok(out)
    }

    /// A load from a map itself: the kernel shows its own description of it.
    pub(super) fn load_map(
        &mut self,
        reg: u8,
        r: &Reg,
        off: i32,
        size: u32,
        signed: bool,
    ) -> Result<Reg, Reason> {
        let id = self.target_struct("bpf_map").filter(|_| !self.opts.offered_only && !r.nullable);
        let Some(id) = id else { return Err(Reason::NotMemory { reg, kind: r.type_name() }) };
        let mut out = self.load_object(reg, r, id, off, size, signed)?;
        if matches!(out.kind, Kind::Btf(_)) {
            out.flags = Flags::UNTRUSTED;
        }
        Ok(out)
    }

    /// What stands in the context of a tracing program at an offset, when the target's types tell.
    pub(super) fn typed_argument(&mut self, off: u32, size: u32) -> Option<Result<Reg, Reason>> {
        use skep_isa::{AttachType as A, ProgramType as P};
        if self.prog.prog_type != P::Tracing {
            return None;
        }
        let btf = self.opts.target.clone()?;
        let name = self.prog.target.clone()?;
        let attach = self.prog.attach_type?;
        let raw = attach == A::TraceRawTp;
        let proto = if raw {
            let id = btf.find(&format!("btf_trace_{name}"), |k| matches!(k, Type::Typedef(_)))?;
            let (_, ptr) = btf.resolve(id).ok()?;
            let Type::Ptr(to) = ptr.kind else { return None };
            btf.resolve(to).ok()?.1
        } else {
            let iter = if attach == A::TraceIter { format!("bpf_iter_{name}") } else { name };
            let id = btf.find(&iter, |k| matches!(k, Type::Func(_)))?;
            let Type::Func(f) = btf.get(id).ok()?.kind else { return None };
            btf.get(f.proto).ok()?
        };
        let Type::FuncProto(proto) = &proto.kind else { return None };
        let params = proto.params.get(usize::from(raw)..)?;
        let bad = Reason::BadContext { off: off.into(), size };
        if !off.is_multiple_of(8) {
            return Some(Err(bad));
        }
        let n = (off / 8) as usize;
        let ty = match params.get(n) {
            Some(p) => p.type_id,
            None if n == params.len()
                && matches!(attach, A::TraceFexit | A::ModifyReturn | A::TraceFsession) =>
            {
                proto.ret
            }
            None => return Some(Err(bad)),
        };
        let Ok((_, ty)) = btf.resolve(ty) else { return Some(Err(bad)) };
        let Type::Ptr(to) = ty.kind else { return None };
        let tag = tag_of(&btf, to);
        let (id, to) = btf.resolve(to).ok()?;
        if !matches!(to.kind, Type::Struct(_)) || tag == "user" {
            return None;
        }
        if size != 8 {
            return Some(Err(bad));
        }
        let mut r = Reg::of(Kind::Btf(id));
        if raw || attach == A::TraceIter {
            r.flags = Flags::TRUSTED;
        }
        let nullable = raw
            && NULLABLE_ARGUMENTS
                .iter()
                .any(|(t, i)| Some(*t) == self.prog.target.as_deref() && *i == n);
        // The objects of an iterator are missing in its last call.
        if nullable || (attach == A::TraceIter && n > 0) {
            r.nullable = true;
            r.id = self.fresh_id();
        }
        Some(Ok(r))
    }

    /// Loads from and stores to a kernel pointer in a map value; `None` when there is none at that
    /// place.
    pub(super) fn kptr_at(&self, r: &Reg, map: u32, off: i32) -> Option<crate::fields::Kptr> {
        let start = i64::from(r.off) + i64::from(off) + r.val.as_const()? as i64;
        self.fields_of(map).iter().find_map(|f| match &f.kind {
            crate::fields::FieldKind::Kptr(k) if i64::from(f.off) == start => Some(k.clone()),
            _ => None,
        })
    }

    /// The type behind a kernel pointer: the target's, or the program's own.
    fn kptr_type(&self, k: &crate::fields::Kptr) -> Option<Kind> {
        let own = self.prog.btf.as_deref()?;
        let name = own.name(k.to);
        if let Some(id) = self.target_struct(name) {
            return Some(Kind::Btf(id));
        }
        matches!(own.get(k.to).map(|t| &t.kind), Ok(Type::Struct(_))).then_some(Kind::Local(k.to))
    }

    /// A load of a kernel pointer.
    pub(super) fn load_kptr(
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
    pub(super) fn store_kptr(
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

    /// `bpf_kptr_xchg`, the place: the kind of pointer it holds.
    pub(super) fn kptr_place(&self, reg: u8, r: &Reg) -> Result<crate::fields::Kptr, Reason> {
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
    pub(super) fn kptr_value(
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
    pub(super) fn kptr_old(&mut self, k: &crate::fields::Kptr) -> Reg {
        let Some(kind) = self.kptr_type(k) else { return Reg::UNKNOWN };
        let mut r = self.acquired(kind);
        if k.percpu {
            r.flags = Flags::PERCPU;
        }
        r
    }
}

/// Fields whose objects live as long as the one they are in (kernel/bpf/verifier.c
/// `BTF_TYPE_SAFE_TRUSTED` and its kin).
const SAFE_TRUSTED: &[(&str, &str)] = &[
    ("bpf_iter_meta", "seq"),
    ("bpf_iter__task", "meta"),
    ("bpf_iter__task", "task"),
    ("linux_binprm", "file"),
    ("file", "f_inode"),
];
const SAFE_TRUSTED_OR_NULL: &[(&str, &str)] = &[
    ("socket", "sk"),
    ("dentry", "d_inode"),
    ("vm_area_struct", "vm_mm"),
    ("vm_area_struct", "vm_file"),
];
const SAFE_RCU: &[(&str, &str)] = &[
    ("task_struct", "cpus_ptr"),
    ("task_struct", "cgroups"),
    ("task_struct", "real_parent"),
    ("task_struct", "group_leader"),
    ("cgroup", "kn"),
    ("css_set", "dfl_cgrp"),
    ("cgroup_subsys_state", "cgroup"),
];
const SAFE_RCU_OR_NULL: &[(&str, &str)] =
    &[("mm_struct", "exe_file"), ("sk_buff", "sk"), ("request_sock", "sk")];

/// Arguments of raw tracepoints that may be NULL (kernel/bpf/btf.c `raw_tp_null_args`, those of
/// core tracepoints).
const NULLABLE_ARGUMENTS: &[(&str, usize)] = &[
    ("sched_pi_setprio", 1),
    ("sched_stick_numa", 2),
    ("sched_swap_numa", 2),
    ("kfree_skb", 2),
    ("netfs_failure", 1),
    ("mm_page_alloc", 0),
    ("mm_page_alloc_zone_locked", 0),
    ("tcp_send_reset", 0),
    ("tcp_send_reset", 1),
];

/// The type tag in front of what a pointer leads to.
fn tag_of(btf: &Btf, to: TypeId) -> &str {
    match btf.get(to) {
        Ok(t) if matches!(t.kind, Type::TypeTag(_)) => btf.string(t.name_off),
        _ => "",
    }
}

/// Finds what stands in a structure (`btf_struct_walk`).
fn walk(btf: &Btf, mut id: TypeId, mut off: u32, size: u32) -> Result<Found<'_>, &'static str> {
    const BEYOND: &str = "access beyond struct";
    for _ in 0..32 {
        let ty = btf.get(id).map_err(|_| "access to an unknown type")?;
        let (Type::Struct(s) | Type::Union(s)) = &ty.kind else {
            return Err("access to something that is no structure");
        };
        let end = off.checked_add(size).ok_or(BEYOND)?;
        let mut next = None;
        if end > s.size {
            // A last member without a size of its own goes on behind the structure.
            let last = s.members.last().ok_or(BEYOND)?;
            let Ok((_, t)) = btf.resolve(last.type_id) else { return Err(BEYOND) };
            let Type::Array(a) = &t.kind else { return Err(BEYOND) };
            let at = last.bit_offset / 8;
            if a.len > 1 || off < at {
                return Err(BEYOND);
            }
            let (elem, t) = btf.resolve(a.elem).map_err(|_| BEYOND)?;
            let each = btf
                .size_of(elem)
                .ok()
                .and_then(|n| u32::try_from(n).ok())
                .filter(|n| *n > 0)
                .ok_or(BEYOND)?;
            if !matches!(t.kind, Type::Struct(_)) {
                return Ok(Found::Number);
            }
            next = Some((elem, (off - at) % each));
        }
        for m in s.members.iter().filter(|_| next.is_none()) {
            let at = m.bit_offset / 8;
            if m.bitfield != 0 {
                // The whole field, or it is none.
                let until = (m.bit_offset + u32::from(m.bitfield)).div_ceil(8);
                if off <= at && until <= end {
                    return Ok(Found::Number);
                }
                continue;
            }
            let Ok((mid, mt)) = btf.resolve(m.type_id) else { continue };
            let msize = btf.size_of(mid).ok().and_then(|n| u32::try_from(n).ok()).unwrap_or(0);
            if off < at || off >= at.saturating_add(msize) {
                continue;
            }
            match &mt.kind {
                Type::Struct(_) | Type::Union(_) => {
                    next = Some((mid, off - at));
                    break;
                }
                Type::Array(a) => {
                    let (mut elem, mut et) = btf.resolve(a.elem).map_err(|_| BEYOND)?;
                    while let Type::Array(inner) = &et.kind {
                        (elem, et) = btf.resolve(inner.elem).map_err(|_| BEYOND)?;
                    }
                    let each = btf
                        .size_of(elem)
                        .ok()
                        .and_then(|n| u32::try_from(n).ok())
                        .filter(|n| *n > 0)
                        .ok_or(BEYOND)?;
                    let inside = (off - at) % each;
                    match &et.kind {
                        Type::Struct(_) | Type::Union(_) => {
                            next = Some((elem, inside));
                            break;
                        }
                        Type::Ptr(to) if inside == 0 && size == 8 => {
                            return Ok(pointer(btf, *to, ty.name_off, m.name_off));
                        }
                        Type::Ptr(_) => return Err("cannot access part of a pointer in an array"),
                        _ if inside + size > each && end > at + msize => {
                            return Err("access beyond the end of member");
                        }
                        _ => return Ok(Found::Number),
                    }
                }
                Type::Ptr(to) => {
                    return if off == at && size == 8 {
                        Ok(pointer(btf, *to, ty.name_off, m.name_off))
                    } else {
                        Err("cannot access part of a pointer")
                    };
                }
                _ if end > at + msize => return Err("access beyond the end of member"),
                _ => return Ok(Found::Number),
            }
        }
        let Some((to, rest)) = next else {
            return Err("access to a hole");
        };
        (id, off) = (to, rest);
    }
    Err("structures too deeply nested")
}

fn pointer<'a>(btf: &'a Btf, to: TypeId, owner: u32, field: u32) -> Found<'a> {
    let tag = tag_of(btf, to);
    match btf.resolve(to) {
        Ok((id, t)) if matches!(t.kind, Type::Struct(_)) => {
            Found::Pointer { to: id, tag, owner: btf.string(owner), field: btf.string(field) }
        }
        _ => Found::Number,
    }
}
