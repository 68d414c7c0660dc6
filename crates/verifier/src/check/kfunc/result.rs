//! What a kernel function leaves in r0.

use super::Seen;
use crate::check::Walk;
use crate::reg::{Flags, Kind, Reg};
use crate::reject::Reason;
use crate::stack::DynptrKind;
use skep_isa::ProgramType as P;
use skep_isa::kfunc::{KArg, KFlags, KRet, Kfunc};

impl Walk<'_> {
    pub(super) fn kfunc_result(&mut self, k: &Kfunc, seen: &Seen) -> Result<Reg, Reason> {
        let acquire = k.flags.has(KFlags::ACQUIRE);
        let percpu = if k.flags.has(KFlags::PERCPU) { Flags::PERCPU } else { Flags::NONE };
        Ok(match k.ret {
            KRet::Void => Reg::UNINIT,
            KRet::ObjectOrNull(name) => self.kernel_object_result(name, acquire)?,
            KRet::Object(name) => {
                let mut r = self.kernel_object_result(name, acquire)?;
                r.nullable = false;
                r
            }
            KRet::SliceOrNull(write) => self.slice_result(seen, write)?,
            KRet::NewOrNull => {
                let ty = self.new_type(seen.constant, k.flags.has(KFlags::PERCPU))?;
                let mut r = self.acquired(Kind::Local(ty));
                r.flags = percpu;
                r
            }
            KRet::SameOrNull => {
                let of = seen.object.unwrap_or(Reg::UNKNOWN);
                let mut r = self.acquired(of.kind);
                if of.reference != 0 {
                    // Held here, so it is there; the id still tells which one it is.
                    r.nullable = false;
                }
                r
            }
            KRet::ListNodeOrNull | KRet::RbNodeOrNull(_) => self.node_result(seen, acquire)?,
            KRet::KernelContext => {
                let name = match self.prog.prog_type {
                    P::Xdp => "xdp_buff",
                    P::Kprobe => "pt_regs",
                    P::PerfEvent => "bpf_perf_event_data_kern",
                    _ => "sk_buff",
                };
                self.kernel_pointer(name, Flags::TRUSTED)
            }
            KRet::Cast => self.cast_result(seen)?,
            _ => {
                if let Some(of) = seen
                    .object
                    .filter(|_| matches!(k.args.get(1), Some(KArg::ListNode | KArg::RbNode)))
                {
                    self.give_to_graph(of.reference);
                }
                Reg::UNKNOWN
            }
        })
    }

    fn kernel_object_result(&mut self, name: &str, acquire: bool) -> Result<Reg, Reason> {
        let kind = self
            .target_struct(name)
            .map(Kind::Btf)
            .ok_or(Reason::Unsupported { what: "an object of unknown type" })?;
        let mut r = if acquire { self.acquired(kind) } else { self.or_null(kind) };
        r.flags = Flags::TRUSTED;
        Ok(r)
    }

    fn slice_result(&mut self, seen: &Seen, write: bool) -> Result<Reg, Reason> {
        let d = seen.dynptr.unwrap_or(Reg::UNKNOWN);
        let packet = matches!(d.kind, Kind::Dynptr(DynptrKind::Skb | DynptrKind::Xdp));
        // Whatever the dynptr is of, as in the kernel.
        if write && !self.may_write_packet() {
            return Err(Reason::PacketSliceWrite);
        }
        let mut r = self.or_null(Kind::Mem(seen.size));
        r.flags = if write { Flags::NONE } else { Flags::RDONLY };
        if packet {
            r.flags = r.flags.with(Flags::PACKET);
        }
        r.parent = d.id;
        r.reference = d.reference;
        Ok(r)
    }

    /// A node of a list or a tree.
    fn node_result(&mut self, seen: &Seen, acquire: bool) -> Result<Reg, Reason> {
        let Some((ty, node)) = seen.contains else {
            return Err(Reason::Unsupported { what: "a list of unknown type" });
        };
        let mut r =
            if acquire { self.acquired(Kind::Local(ty)) } else { self.or_null(Kind::Local(ty)) };
        r.off = node as i32;
        if !acquire {
            r.flags = Flags::NON_OWNING;
        }
        Ok(r)
    }

    fn cast_result(&self, seen: &Seen) -> Result<Reg, Reason> {
        let ty = u32::try_from(seen.constant).unwrap_or(0);
        if ty == 0 {
            // Bytes anywhere.
            let mut r = Reg::of(Kind::Mem(i32::MAX as u32));
            r.flags = Flags::RDONLY.with(Flags::UNTRUSTED);
            return Ok(r);
        }
        let known = self.target().is_some_and(|b| {
            matches!(b.get(ty).map(|t| &t.kind), Ok(skep_object::btf::Kind::Struct(_)))
        });
        if !known {
            return Err(Reason::Unsupported { what: "a cast to something that is no structure" });
        }
        let mut r = Reg::of(Kind::Btf(ty));
        r.flags = Flags::UNTRUSTED;
        Ok(r)
    }
}
