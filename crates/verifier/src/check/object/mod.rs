//! Objects of the kernel: pointers to types of the target's BTF, trusted or not.

mod fields;
mod kptr;
mod load;

pub(super) use fields::same_object;

use super::Walk;
use crate::reg::{Flags, Kind, Reg};
use crate::reject::Reason;
use fields::tag_of;
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

impl Walk<'_> {
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
        if self.prog.prog_type == P::Netfilter {
            let name = if off == 0 { "nf_hook_state" } else { "sk_buff" };
            return Some(Ok(self.kernel_pointer(name, Flags::TRUSTED)));
        }
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
}

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
