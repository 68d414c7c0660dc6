//! Loads through pointers to kernel objects.

use super::fields::{self, Field};
use crate::check::Walk;
use crate::reg::{Flags, Kind, Reg};
use crate::reject::Reason;
use skep_object::Btf;
use skep_object::btf::TypeId;

impl Walk<'_> {
    /// A load through a pointer to a kernel object.
    pub(in crate::check) fn load_object(
        &mut self,
        reg: u8,
        r: &Reg,
        id: TypeId,
        off: i32,
        size: u32,
        signed: bool,
    ) -> Result<Reg, Reason> {
        let opts = self.opts;
        let found = self.object_field(opts.target.as_deref(), reg, r, id, off, size)?;
        // Whatever it yields, there may be nothing to load from.
        self.info.object_loads.insert(self.insn);
        let Field::Pointer { to, tag, owner, field } = found else {
            return Ok(Reg::scalar(crate::check::loaded(size, signed)));
        };
        let (flags, nullable) = self.trust_of(r, (owner, field), tag);
        if tag == "user" {
            return Ok(Reg::UNKNOWN);
        }
        let mut out = Reg::of(Kind::Btf(to));
        out.flags = if tag == "percpu" { flags.with(Flags::PERCPU) } else { flags };
        if nullable {
            out.nullable = true;
            out.id = self.fresh_id();
        }
        Ok(out)
    }

    /// Memory of a kernel object that is alive for certain, which a helper reads (`check_ptr_to_btf_access`).
    /// Programs that run outside the kernel have none.
    pub(in crate::check) fn object_memory(
        &self,
        reg: u8,
        r: &Reg,
        size: u32,
    ) -> Option<Result<(), Reason>> {
        let Kind::Btf(id) = r.kind else { return None };
        if r.nullable || !self.is_trusted(r) || self.opts.offered_only {
            return None;
        }
        let target = self.opts.target.as_deref();
        Some(self.object_field(target, reg, r, id, 0, size).map(drop))
    }

    /// Finds what stands in a kernel object, where the program may look at it.
    fn object_field<'a>(
        &self,
        target: Option<&'a Btf>,
        reg: u8,
        r: &Reg,
        id: TypeId,
        off: i32,
        size: u32,
    ) -> Result<Field<'a>, Reason> {
        let Some(btf) = target else {
            return Err(Reason::NotMemory { reg, kind: r.type_name() });
        };
        let name = btf.name(id).to_owned();
        if self.opts.strict {
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
        fields::find(btf, id, start as u32, size).map_err(|what| Reason::ObjectOffset {
            reg,
            name,
            what,
            off: start,
        })
    }

    /// How far a pointer can be trusted that was loaded from a field of the object behind `r`, and
    /// whether it may be NULL.
    fn trust_of(&self, r: &Reg, field: (&str, &str), tag: &str) -> (Flags, bool) {
        let safe = |table: &[(&str, &str)]| table.contains(&field);
        if r.flags.has(Flags::UNTRUSTED) {
            (Flags::UNTRUSTED, false)
        } else if !self.is_trusted(r) && !r.flags.has(Flags::RCU) {
            (Flags::NONE, false)
        } else if safe(SAFE_TRUSTED) {
            (Flags::TRUSTED, false)
        } else if safe(SAFE_TRUSTED_OR_NULL) {
            (Flags::TRUSTED, true)
        } else if !self.in_rcu() {
            (Flags::UNTRUSTED, false)
        } else if safe(SAFE_RCU) {
            (Flags::RCU, false)
        } else if tag == "rcu" || safe(SAFE_RCU_OR_NULL) {
            (Flags::RCU, true)
        } else {
            // Neither trusted nor marked: it may be looked at, but not handed on.
            (Flags::NONE, false)
        }
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
