//! Calls of kernel functions: every argument against the row in [`skep_isa::kfunc`], then the
//! result.

use super::Walk;
use super::mem::{Access, pristine};
use crate::reg::{Flags, Id, Kind, Reg};
use crate::reject::Reason;
use crate::stack::{Byte, DynptrKind};
use skep_isa::kfunc::{self, KArg, KFlags, KRet, Kfunc, Section};
use skep_isa::{Insn, ProgramType as P, helper};
use skep_object::btf::TypeId;

/// What the arguments of one call taught.
#[derive(Default)]
pub(super) struct Seen {
    /// The constant argument.
    pub constant: u64,
    /// Most bytes of the memory.
    pub size: u32,
    /// The reference that is given back.
    pub release: Option<Id>,
    /// The dynptr that was handed in.
    pub dynptr: Option<Reg>,
    /// Where the iterator stands: frame and offset.
    pub iter: Option<(u8, i32)>,
    /// The object that was handed in.
    pub object: Option<Reg>,
    /// What the list or tree holds: type and offset of the node.
    pub contains: Option<(TypeId, u32)>,
    /// The function of the program that was handed in.
    pub callback: Option<u32>,
}

impl Walk<'_> {
    pub(super) fn call_kfunc(&mut self, i: Insn, at: usize) -> Result<Option<usize>, Reason> {
        let id = i.imm as u32;
        let k = kfunc::by_id(id).ok_or(Reason::NoSuchHelper { id })?;
        let p = self.prog;
        if !k.allows_attached(p.prog_type, p.attach_type, p.target.as_deref()) {
            return Err(Reason::KfuncNotAllowed { name: k.name });
        }
        if self.opts.offered_only && !k.offered {
            return Err(Reason::NotOffered {
                name: k.name.to_owned(),
                id,
                why: "it is a function of the kernel",
            });
        }
        if !self.prog.gpl {
            return Err(Reason::NeedsGpl { name: k.name.to_owned() });
        }
        if self.state.lock.is_some() && !k.flags.has(KFlags::UNDER_LOCK) {
            return Err(Reason::CallUnderLock);
        }
        if k.flags.has(KFlags::SLEEPABLE) {
            if !self.prog.sleepable {
                return Err(Reason::KfuncSleeps { name: k.name });
            }
            if self.state.rcu > 0 || self.state.preempt > 0 {
                return Err(Reason::SleepsInside { name: k.name });
            }
        }
        if k.flags.has(KFlags::RCU_PROTECTED) && !self.in_rcu() {
            return Err(Reason::NeedsRcu { name: k.name });
        }
        if k.unsupported.is_some() {
            return Err(Reason::Unsupported { what: k.name });
        }
        self.change_section(k)?;
        self.info.helpers.insert(id);
        let mut seen = Seen::default();
        for (n, arg) in k.args.iter().enumerate() {
            self.kfunc_argument(k, n as u8 + 1, *arg, &mut seen)?;
        }
        if let Some(id) = seen.release {
            self.release(id);
        }
        if k.flags.has(KFlags::ITER_NEXT) {
            return self.iter_next(k, &seen, at);
        }
        if k.flags.has(KFlags::ITER_NEW) {
            self.iter_new(k, id, &seen)?;
        }
        if k.flags.has(KFlags::ITER_DESTROY) {
            self.iter_destroy(&seen);
        }
        let r0 = self.kfunc_result(k, &seen)?;
        for r in 0..=5 {
            self.state.set(r, Reg::UNINIT);
        }
        self.state.set(0, r0);
        if let (Some(to), Some((ty, node))) = (seen.callback, seen.contains) {
            return self.call_less(to as usize, ty, node, at);
        }
        Ok(Some(at + 1))
    }

    /// Begins or ends the section that a function does.
    fn change_section(&mut self, k: &Kfunc) -> Result<(), Reason> {
        match k.begins {
            Some(Section::Rcu) if self.state.rcu > 0 => return Err(Reason::NestedRcu),
            Some(Section::Rcu) => self.state.rcu = 1,
            Some(Section::Preemption) => self.state.preempt += 1,
            None => {}
        }
        match k.ends {
            Some(Section::Rcu) => self.rcu_unlock()?,
            Some(Section::Preemption) => {
                self.state.preempt =
                    self.state.preempt.checked_sub(1).ok_or(Reason::NotDisabled)?;
            }
            None => {}
        }
        Ok(())
    }

    /// Tells whether objects protected by read-side sections are alive here.
    pub(super) fn in_rcu(&self) -> bool {
        self.state.rcu > 0 || self.state.lock.is_some() || !self.prog.sleepable
    }

    fn rcu_unlock(&mut self) -> Result<(), Reason> {
        if self.state.rcu == 0 {
            return Err(Reason::NotInRcu);
        }
        self.state.rcu = 0;
        let end = |r: &mut Reg| {
            if r.flags.has(Flags::RCU) {
                r.flags = r.flags.without(Flags::RCU).with(Flags::UNTRUSTED);
                r.nullable = false;
            }
        };
        self.state.each(end);
        // Walks end with it, too.
        let slots = self.state.frames.iter_mut().flat_map(|f| f.stack.slots_mut());
        slots.filter(|s| s.bytes[0] == Byte::Special).for_each(|s| end(&mut s.reg));
        Ok(())
    }

    /// Gives a reference back: what rests on it is gone.
    pub(super) fn release(&mut self, id: Id) {
        self.state.refs.retain(|r| r.id != id);
        self.state.invalidate(self.opts.strict, |r| r.reference == id);
    }

    fn kfunc_argument(
        &mut self,
        k: &Kfunc,
        reg: u8,
        arg: KArg,
        seen: &mut Seen,
    ) -> Result<(), Reason> {
        if arg == KArg::Ignored {
            return Ok(());
        }
        let r = self.read(reg)?;
        let wrong = |expected| Reason::WrongType { reg, found: r.type_name(), expected };
        match arg {
            KArg::Number if r.is_scalar() => Ok(()),
            KArg::Number => Err(Reason::NotScalar { reg }),
            KArg::Const => {
                if !r.is_scalar() {
                    return Err(Reason::NotScalar { reg });
                }
                self.flow.mark(r.node);
                seen.constant = r.as_const().ok_or(Reason::MustBeConstant { reg })?;
                Ok(())
            }
            KArg::Ctx => {
                if r.kind != Kind::Ctx {
                    return Err(wrong("ctx"));
                }
                pristine(reg, &r, "ctx")
            }
            KArg::Iter { .. } => {
                let new = k.flags.has(KFlags::ITER_NEW);
                seen.iter = Some(self.iter_place(k, reg, &r, new)?);
                Ok(())
            }
            KArg::DynptrOrNull if r.is_zero() => {
                self.flow.mark(r.node);
                Ok(())
            }
            KArg::Dynptr | KArg::DynptrOrNull => {
                let d = self.dynptr_argument(reg, &r)?;
                seen.dynptr = Some(d);
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
                self.make_dynptr(reg, &r, kind, parent.map_or(0, |p| p.reference))
            }
            // Checked with their sizes.
            KArg::Mem | KArg::MemWrite => Ok(()),
            KArg::MemOrNull => {
                self.flow.mark(r.node);
                Ok(())
            }
            KArg::Size | KArg::ConstSize => self.kfunc_size(k, reg, &r, arg, seen),
            KArg::Fixed(size) => {
                self.plain_memory(reg, &r, size, Access::Read)?;
                self.plain_memory(reg, &r, size, Access::Write)
            }
            KArg::ObjectOrNull(_) if r.is_zero() => {
                self.flow.mark(r.node);
                Ok(())
            }
            KArg::Object(name) | KArg::ObjectOrNull(name) => {
                self.kfunc_object(k, reg, &r, name, false)
            }
            KArg::Trusted(name) => self.kfunc_object(k, reg, &r, name, true),
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
                self.kfunc_object(k, reg, &r, name, true)?;
                seen.release = Some(r.reference);
                Ok(())
            }
            KArg::LocalRelease => {
                self.local_release(k, reg, &r)?;
                seen.release = Some(r.reference);
                Ok(())
            }
            KArg::Refcounted => {
                self.refcounted(reg, &r)?;
                seen.object = Some(r);
                Ok(())
            }
            KArg::ListHead => {
                seen.contains = Some(self.graph_root(reg, &r, "bpf_list_head")?);
                Ok(())
            }
            KArg::RbRoot | KArg::RbRootRead => {
                if self.state.compares_nodes() && arg == KArg::RbRoot {
                    return Err(Reason::InComparison {
                        what: "rbtree_add and rbtree_remove not allowed in",
                    });
                }
                seen.contains = Some(self.graph_root(reg, &r, "bpf_rb_root")?);
                Ok(())
            }
            KArg::ListNode | KArg::RbNode => {
                self.graph_node(reg, &r, seen.contains, true)?;
                seen.object = Some(r);
                Ok(())
            }
            KArg::RbNodeInside => self.graph_node(reg, &r, seen.contains, false),
            KArg::Less => {
                let Kind::Func(to) = r.kind else { return Err(wrong("func")) };
                seen.callback = Some(to);
                Ok(())
            }
            KArg::Map => {
                if !matches!(r.kind, Kind::Map(_)) || r.nullable {
                    return Err(wrong("map_ptr"));
                }
                Ok(())
            }
            KArg::Wq => {
                seen.object = Some(r);
                self.field_place(reg, &r, "bpf_wq")
            }
            KArg::Later => {
                let Kind::Func(to) = r.kind else { return Err(wrong("func")) };
                if let Some(Kind::Value(map)) = seen.object.map(|o| o.kind) {
                    self.call_later(to as usize, map);
                }
                Ok(())
            }
            _ => Err(Reason::Unsupported { what: "this kind of kernel function argument" }),
        }
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
                super::object::same_object(btf, id, r.off.into(), name)
            }
        });
        if fits {
            return Ok(());
        }
        let found = self.target().map_or_else(String::new, |btf| btf.name(id).to_owned());
        Err(Reason::OtherObject { name: k.name, arg: reg - 1, expected: name, reg, found })
    }

    fn kfunc_result(&mut self, k: &Kfunc, seen: &Seen) -> Result<Reg, Reason> {
        let acquire = k.flags.has(KFlags::ACQUIRE);
        let percpu = if k.flags.has(KFlags::PERCPU) { Flags::PERCPU } else { Flags::NONE };
        Ok(match k.ret {
            KRet::Void => Reg::UNINIT,
            KRet::ObjectOrNull(name) | KRet::Object(name) => {
                let kind = self
                    .target_struct(name)
                    .map(Kind::Btf)
                    .ok_or(Reason::Unsupported { what: "an object of unknown type" })?;
                let mut r = if acquire { self.acquired(kind) } else { self.or_null(kind) };
                r.flags = Flags::TRUSTED;
                if matches!(k.ret, KRet::Object(_)) {
                    r.nullable = false;
                }
                r
            }
            KRet::SliceOrNull(write) => {
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
                r
            }
            KRet::NewOrNull => {
                let ty = self.new_type(seen.constant, k.flags.has(KFlags::PERCPU))?;
                let mut r = self.acquired(Kind::Local(ty));
                r.flags = percpu;
                r
            }
            KRet::SameOrNull => {
                let of = seen.object.unwrap_or(Reg::UNKNOWN);
                let mut r = self.acquired(of.kind);
                if !of.flags.has(Flags::NON_OWNING) {
                    // Held by somebody, so it is there; the id still tells which one it is.
                    r.nullable = false;
                }
                r
            }
            KRet::ListNodeOrNull | KRet::RbNodeOrNull(_) => {
                let Some((ty, node)) = seen.contains else {
                    return Err(Reason::Unsupported { what: "a list of unknown type" });
                };
                let mut r = if acquire {
                    self.acquired(Kind::Local(ty))
                } else {
                    self.or_null(Kind::Local(ty))
                };
                r.off = node as i32;
                if !acquire {
                    r.flags = Flags::NON_OWNING;
                }
                r
            }
            KRet::KernelContext => {
                let name = match self.prog.prog_type {
                    P::Xdp => "xdp_buff",
                    P::Kprobe => "pt_regs",
                    P::PerfEvent => "bpf_perf_event_data_kern",
                    _ => "sk_buff",
                };
                self.kernel_pointer(name, Flags::TRUSTED)
            }
            KRet::Cast => {
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
                    return Err(Reason::Unsupported {
                        what: "a cast to something that is no structure",
                    });
                }
                let mut r = Reg::of(Kind::Btf(ty));
                r.flags = Flags::UNTRUSTED;
                r
            }
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
}
