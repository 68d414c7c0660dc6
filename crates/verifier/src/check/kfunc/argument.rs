//! The arguments of a call of a kernel function, by families.

use super::Seen;
use crate::check::Walk;
use crate::check::mem::{Access, pristine};
use crate::reg::{Flags, Kind, Reg};
use crate::reject::Reason;
use crate::stack::DynptrKind;
use skep_isa::helper;
use skep_isa::kfunc::{KArg, KFlags, Kfunc};

impl Walk<'_> {
    /// Checks one argument, and notes what it teaches.
    pub(super) fn kfunc_argument(
        &mut self,
        k: &Kfunc,
        reg: u8,
        arg: KArg,
        seen: &mut Seen,
    ) -> Result<(), Reason> {
        use KArg as T;
        if arg == T::Ignored {
            return Ok(());
        }
        let r = self.read(reg)?;
        match arg {
            T::Number if r.is_scalar() => Ok(()),
            T::Number => Err(Reason::NotScalar { reg }),
            T::Const => {
                if !r.is_scalar() {
                    return Err(Reason::NotScalar { reg });
                }
                self.flow.mark(r.node);
                seen.constant = r.as_const().ok_or(Reason::MustBeConstant { reg })?;
                Ok(())
            }
            T::Ctx if r.kind == Kind::Ctx => pristine(reg, &r, "ctx"),
            T::Ctx => Err(wrong(reg, &r, "ctx")),
            T::Iter { .. } => {
                let new = k.flags.has(KFlags::ITER_NEW);
                seen.iter = Some(self.iter_place(k, reg, &r, new)?);
                Ok(())
            }
            T::Dynptr | T::DynptrOrNull | T::UninitDynptr(_) => {
                self.kfunc_dynptr(reg, &r, arg, seen)
            }
            T::Mem | T::MemWrite | T::MemOrNull | T::Size | T::ConstSize | T::Fixed(_) => {
                self.kfunc_memory(k, reg, &r, arg, seen)
            }
            T::Object(_) | T::ObjectOrNull(_) | T::Trusted(_) | T::Release(_) => {
                self.kfunc_kernel_object(k, reg, &r, arg, seen)
            }
            T::LocalRelease => {
                self.local_release(k, reg, &r)?;
                seen.release = Some(r.reference);
                Ok(())
            }
            T::Refcounted => {
                self.refcounted(reg, &r)?;
                seen.object = Some(r);
                Ok(())
            }
            T::ListHead | T::RbRoot | T::RbRootRead | T::ListNode | T::RbNode | T::RbNodeInside => {
                self.kfunc_graph(reg, &r, arg, seen)
            }
            T::Less | T::Later => self.kfunc_callback(reg, &r, arg, seen),
            T::Map if matches!(r.kind, Kind::Map(_)) && !r.nullable => Ok(()),
            T::Map => Err(wrong(reg, &r, "map_ptr")),
            T::Wq => {
                seen.object = Some(r);
                self.field_place(reg, &r, "bpf_wq")
            }
            _ => Err(Reason::Unsupported { what: "this kind of kernel function argument" }),
        }
    }

    fn kfunc_dynptr(&mut self, reg: u8, r: &Reg, arg: KArg, seen: &mut Seen) -> Result<(), Reason> {
        match arg {
            KArg::DynptrOrNull if r.is_zero() => {
                self.flow.mark(r.node);
                Ok(())
            }
            KArg::UninitDynptr(kind) => {
                let (kind, parent) = match (kind, seen.dynptr) {
                    (Some(helper::DynptrKind::Skb), _) => (DynptrKind::Skb, None),
                    (Some(helper::DynptrKind::Xdp), _) => (DynptrKind::Xdp, None),
                    (_, Some(of)) => match of.kind {
                        Kind::Dynptr(kind) => (kind, Some(of)),
                        _ => (DynptrKind::Any, Some(of)),
                    },
                    _ => (DynptrKind::Any, None),
                };
                self.make_dynptr(reg, r, kind, parent.map_or(0, |p| p.reference))
            }
            _ => {
                let d = self.dynptr_argument(reg, r)?;
                seen.dynptr = Some(d);
                Ok(())
            }
        }
    }

    fn kfunc_memory(
        &mut self,
        k: &Kfunc,
        reg: u8,
        r: &Reg,
        arg: KArg,
        seen: &mut Seen,
    ) -> Result<(), Reason> {
        match arg {
            KArg::Size | KArg::ConstSize => self.kfunc_size(k, reg, r, arg, seen),
            KArg::Fixed(size) => {
                self.plain_memory(reg, r, size, Access::Read)?;
                self.plain_memory(reg, r, size, Access::Write)
            }
            // The rest is checked with its size.
            KArg::MemOrNull => {
                self.flow.mark(r.node);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn kfunc_kernel_object(
        &mut self,
        k: &Kfunc,
        reg: u8,
        r: &Reg,
        arg: KArg,
        seen: &mut Seen,
    ) -> Result<(), Reason> {
        match arg {
            KArg::ObjectOrNull(_) if r.is_zero() => {
                self.flow.mark(r.node);
                Ok(())
            }
            KArg::Object(name) | KArg::ObjectOrNull(name) => {
                self.kfunc_object(k, reg, r, name, false)
            }
            KArg::Trusted(name) => self.kfunc_object(k, reg, r, name, true),
            KArg::Release(name) => {
                if r.nullable || r.is_zero() {
                    return Err(Reason::NullToTrusted { arg: reg - 1 });
                }
                if !matches!(r.kind, Kind::Btf(_)) {
                    return Err(Reason::NotObject { name: k.name, arg: reg - 1 });
                }
                if r.reference == 0 || !self.state.refs.iter().any(|held| held.id == r.reference) {
                    return Err(Reason::NotRefcounted { name: k.name });
                }
                self.kfunc_object(k, reg, r, name, true)?;
                seen.release = Some(r.reference);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The lists and trees of a program, and the nodes in them.
    fn kfunc_graph(&mut self, reg: u8, r: &Reg, arg: KArg, seen: &mut Seen) -> Result<(), Reason> {
        match arg {
            KArg::ListHead => {
                seen.contains = Some(self.graph_root(reg, r, "bpf_list_head")?);
                Ok(())
            }
            KArg::RbRoot | KArg::RbRootRead => {
                if self.state.compares_nodes() && arg == KArg::RbRoot {
                    return Err(Reason::InComparison {
                        what: "rbtree_add and rbtree_remove not allowed in",
                    });
                }
                seen.contains = Some(self.graph_root(reg, r, "bpf_rb_root")?);
                Ok(())
            }
            KArg::ListNode | KArg::RbNode => {
                self.graph_node(reg, r, seen.contains, true)?;
                seen.object = Some(*r);
                Ok(())
            }
            _ => self.graph_node(reg, r, seen.contains, false),
        }
    }

    /// A function of the program, that is called now or later.
    fn kfunc_callback(
        &mut self,
        reg: u8,
        r: &Reg,
        arg: KArg,
        seen: &mut Seen,
    ) -> Result<(), Reason> {
        let Kind::Func(to) = r.kind else { return Err(wrong(reg, r, "func")) };
        if arg == KArg::Less {
            seen.callback = Some(to);
        } else if let Some(Kind::Value(map)) = seen.object.map(|o| o.kind) {
            self.call_later(to as usize, map);
        }
        Ok(())
    }

    fn kfunc_size(
        &mut self,
        k: &Kfunc,
        reg: u8,
        r: &Reg,
        arg: KArg,
        seen: &mut Seen,
    ) -> Result<(), Reason> {
        if !r.is_scalar() {
            return Err(Reason::NotScalar { reg });
        }
        self.flow.mark(r.node);
        let range = r.val.r64;
        if range.smin < 0 {
            return Err(Reason::NegativeSize { reg });
        }
        if range.umax >= 1 << 29 {
            return Err(Reason::UnboundedSize { reg });
        }
        seen.size = range.umax as u32;
        if arg == KArg::ConstSize {
            seen.size = r
                .as_const()
                .and_then(|n| u32::try_from(n).ok())
                .ok_or(Reason::MustBeConstant { reg })?;
        }
        let mem = self.read(reg - 1)?;
        let of = k.args.get(reg as usize - 2).copied();
        if of == Some(KArg::MemOrNull) && mem.is_zero() {
            return Ok(());
        }
        if mem.nullable || mem.is_scalar() {
            return Err(Reason::WrongType {
                reg: reg - 1,
                found: mem.type_name(),
                expected: "fp, pkt, map_value, mem",
            });
        }
        if of == Some(KArg::MemOrNull) && matches!(mem.kind, Kind::Stack(_)) {
            return self.plain_memory(reg - 1, &mem, seen.size, Access::Spare);
        }
        if of != Some(KArg::MemWrite) {
            self.plain_memory(reg - 1, &mem, seen.size, Access::Read)?;
        }
        if of != Some(KArg::Mem) {
            self.plain_memory(reg - 1, &mem, seen.size, Access::Write)?;
        }
        Ok(())
    }

    fn kfunc_object(
        &mut self,
        k: &Kfunc,
        reg: u8,
        r: &Reg,
        name: &'static str,
        trusted: bool,
    ) -> Result<(), Reason> {
        if r.nullable || r.is_zero() {
            return Err(Reason::NullToTrusted { arg: reg - 1 });
        }
        let sock = name == "sock_common"
            && matches!(r.kind, Kind::SockCommon | Kind::Socket | Kind::TcpSock);
        if sock {
            return Ok(());
        }
        let Kind::Btf(id) = r.kind else {
            return Err(Reason::NotObject { name: k.name, arg: reg - 1 });
        };
        if !self.is_trusted(r) {
            if trusted {
                return Err(Reason::NotTrusted { reg });
            }
            if !r.flags.has(Flags::RCU) || r.flags.has(Flags::UNTRUSTED) {
                return Err(Reason::NotRcu { reg });
            }
        }
        if r.val.as_const() != Some(0) {
            return Err(Reason::VariablePointer { kind: "ptr_", bits: r.val.bits.to_string() });
        }
        let strict = k.flags.has(KFlags::ACQUIRE) || r.reference != 0 && trusted;
        let fits = self.target().is_some_and(|btf| {
            if strict {
                r.off == 0 && btf.name(id) == name
            } else {
                crate::check::object::same_object(btf, id, r.off.into(), name)
            }
        });
        if fits {
            return Ok(());
        }
        let found = self.target().map_or_else(String::new, |btf| btf.name(id).to_owned());
        Err(Reason::OtherObject { name: k.name, arg: reg - 1, expected: name, reg, found })
    }
}

fn wrong(reg: u8, r: &Reg, expected: &'static str) -> Reason {
    Reason::WrongType { reg, found: r.type_name(), expected }
}
