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

    /// A pointer to a kernel object of that type; an unknown number when the target's types are not known.
    pub(super) fn kernel_pointer(&self, name: &str, flags: Flags) -> Reg {
        let Some(id) = self.target_struct(name) else { return Reg::UNKNOWN };
        let mut r = Reg::of(Kind::Btf(id));
        r.flags = flags;
        r
    }

    /// Tells whether this is a kernel object that is a socket.
    pub(super) fn is_trusted_sock(&self, r: &Reg) -> bool {
        let Kind::Btf(id) = r.kind else { return false };
        let Some(btf) = self.target() else { return false };
        let name = btf.name(id);
        let sock = matches!(
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
        );
        sock && self.is_trusted(r)
    }

    /// Tells whether the object is alive for certain.
    pub(super) fn is_trusted(&self, r: &Reg) -> bool {
        r.reference != 0 || (r.flags.has(Flags::TRUSTED) && !r.flags.has(Flags::UNTRUSTED))
    }

    /// Checks a kernel object that a helper works on.
    pub(super) fn kernel_object(&self, reg: u8, r: &Reg, name: &'static str) -> Result<(), Reason> {
        let wrong = || Reason::WrongType { reg, found: r.type_name(), expected: "ptr_, trusted_ptr_, rcu_ptr_" };
        let Kind::Btf(id) = r.kind else { return Err(wrong()) };
        if r.nullable || r.flags.has(Flags::UNTRUSTED) {
            return Err(wrong());
        }
        let (off, _) = r.offsets();
        let fits = self.target().is_some_and(|btf| same_object(btf, id, off, name));
        if fits { Ok(()) } else { Err(wrong()) }
    }
}

/// Tells whether an object of that type has an object called `name` at `off`: itself, or a first member at any depth.
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
                let size = btf.size_of(elem).ok().and_then(|n| u32::try_from(n).ok()).unwrap_or(1).max(1);
                off %= size;
                id = elem;
            }
            _ => return false,
        }
    }
    false
}
