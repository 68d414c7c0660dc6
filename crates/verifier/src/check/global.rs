//! Global functions: verified once each, by their prototype alone, so that a call need only fit the
//! prototype.
//!
//! A function is global when it is visible outside the object and its BTF says so (kernel/bpf/btf.c
//! `btf_prepare_func_args`, kernel/bpf/verifier.c `btf_check_subprog_call`).

use super::Walk;
use super::mem::{Access, pristine};
use crate::reg::{Flags, Kind, Reg};
use crate::reject::Reason;
use crate::scalar::Scalar;
use crate::state::State;
use skep_isa::ProgramType as P;
use skep_object::Btf;
use skep_object::btf::{Kind as Type, Linkage, TypeId};

/// What a global function is given in one register.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Param {
    /// A number.
    Number,
    /// The context.
    Ctx,
    /// Memory of so many bytes, possibly NULL.
    Mem { size: u32, nullable: bool },
    /// A dynptr.
    Dynptr,
    /// A kernel object of that type of the target's BTF.
    Object { type_id: TypeId, nullable: bool },
}

/// Most parameters in registers.
const MOST: usize = 5;

impl Walk<'_> {
    /// The prototype of function `func`, when it is global; an error when it is one that nobody
    /// could call.
    pub(super) fn prototype(&self, func: usize) -> Result<Option<Vec<Param>>, Reason> {
        let Some(start) = self.cfg.funcs.get(func) else { return Ok(None) };
        let Some(sub) =
            self.prog.subprogs.iter().find(|s| s.start == *start && s.global && s.type_id != 0)
        else {
            return Ok(None);
        };
        let Some(btf) = self.prog.btf.as_deref() else { return Ok(None) };
        let Ok(Type::Func(f)) = btf.get(sub.type_id).map(|t| &t.kind) else { return Ok(None) };
        if f.linkage != Linkage::Global {
            return Ok(None);
        }
        let Ok(Type::FuncProto(proto)) = btf.get(f.proto).map(|t| &t.kind) else { return Ok(None) };
        let name = || sub.name.clone();
        if !matches!(
            btf.resolve(proto.ret).map(|(_, t)| &t.kind),
            Ok(Type::Int(_) | Type::Enum(_) | Type::Enum64(_))
        ) {
            return Err(Reason::GlobalReturns { name: name() });
        }
        if proto.params.len() > MOST {
            return Err(Reason::GlobalParams { name: name(), count: proto.params.len() });
        }
        let mut out = Vec::new();
        for (arg, p) in (0u32..).zip(&proto.params) {
            let param = self.param(btf, sub.type_id, arg, p.type_id);
            out.push(param.ok_or_else(|| Reason::GlobalParam {
                name: name(),
                arg,
                what: btf.describe(p.type_id),
            })?);
        }
        Ok(Some(out))
    }

    /// Tells whether a function of the program returns a number; 0 is one without types.
    pub(super) fn returns_number(&self, func: TypeId) -> bool {
        let Some(btf) = self.prog.btf.as_deref().filter(|_| func != 0) else { return false };
        let Ok(Type::Func(f)) = btf.get(func).map(|t| &t.kind) else { return false };
        let Ok(Type::FuncProto(proto)) = btf.get(f.proto).map(|t| &t.kind) else { return false };
        matches!(
            btf.resolve(proto.ret).map(|(_, t)| &t.kind),
            Ok(Type::Int(_) | Type::Enum(_) | Type::Enum64(_))
        )
    }

    /// What a parameter is; `None` when it is nothing that can be checked.
    fn param(&self, btf: &Btf, func: TypeId, arg: u32, type_id: TypeId) -> Option<Param> {
        let tags: Vec<&str> = btf
            .types()
            .filter_map(|(_, t)| match &t.kind {
                Type::DeclTag(d) if d.type_id == func && d.component == Some(arg) => {
                    btf.string(t.name_off).strip_prefix("arg:")
                }
                _ => None,
            })
            .collect();
        let tag = |name: &str| tags.contains(&name);
        let (_, ty) = btf.resolve(type_id).ok()?;
        let to = match &ty.kind {
            Type::Int(_) | Type::Enum(_) | Type::Enum64(_) if tags.is_empty() => {
                return Some(Param::Number);
            }
            Type::Ptr(to) => *to,
            _ => return None,
        };
        if tag("arena") || tag("untrusted") {
            return None;
        }
        if tag("ctx") {
            return (tags.len() == 1 && self.may_be_ctx(btf, to)).then_some(Param::Ctx);
        }
        if self.is_ctx(btf, to) {
            return tags.is_empty().then_some(Param::Ctx);
        }
        let (id, target) = btf.resolve(to).ok()?;
        if matches!(target.kind, Type::Struct(_) | Type::Fwd { .. }) && btf.name(id) == "bpf_dynptr"
        {
            return tags.is_empty().then_some(Param::Dynptr);
        }
        if tag("trusted") {
            let nullable = tag("nullable");
            if tag("nonnull") {
                return None;
            }
            return Some(Param::Object {
                type_id: self
                    .target_struct(btf.name(id).split("___").next().unwrap_or_default())?,
                nullable,
            });
        }
        if tag("nullable") {
            // What is not trusted may be NULL anyway, and saying so is a mistake.
            return None;
        }
        let size = btf.size_of(to).ok().and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0)?;
        Some(Param::Mem { size, nullable: !tag("nonnull") })
    }

    /// Tells whether a pointer to this type is the context of this program.
    fn is_ctx(&self, btf: &Btf, to: TypeId) -> bool {
        if self.prog.prog_type == P::Kprobe
            && names(btf, to).any(|n| matches!(n, "bpf_user_pt_regs_t" | "pt_regs"))
        {
            return true;
        }
        let Ok((id, ty)) = btf.resolve(to) else { return false };
        if !matches!(ty.kind, Type::Struct(_) | Type::Fwd { .. }) {
            return false;
        }
        let name = btf.name(id);
        match self.prog.prog_type {
            P::Xdp => matches!(name, "xdp_md" | "xdp_buff"),
            P::SocketFilter
            | P::SchedCls
            | P::SchedAct
            | P::CgroupSkb
            | P::LwtIn
            | P::LwtOut
            | P::LwtXmit
            | P::LwtSeg6local
            | P::SkSkb
            | P::FlowDissector => matches!(name, "__sk_buff" | "sk_buff"),
            P::CgroupSock => name == "bpf_sock",
            P::CgroupSockAddr => name == "bpf_sock_addr",
            P::SockOps => name == "bpf_sock_ops",
            P::SkMsg => name == "sk_msg_md",
            P::PerfEvent => name == "bpf_perf_event_data",
            P::RawTracepoint | P::RawTracepointWritable => name == "bpf_raw_tracepoint_args",
            P::CgroupSockopt => name == "bpf_sockopt",
            P::CgroupSysctl => name == "bpf_sysctl",
            P::SkLookup => name == "bpf_sk_lookup",
            P::SkReuseport => name == "sk_reuseport_md",
            P::Netfilter => name == "bpf_nf_ctx",
            _ => false,
        }
    }

    /// Tells whether a pointer to this type may be tagged as the context
    /// (`btf_validate_prog_ctx_type`).
    fn may_be_ctx(&self, btf: &Btf, to: TypeId) -> bool {
        let Ok((id, ty)) = btf.resolve(to) else { return false };
        // libbpf gives `void *` the type that the kernel wants.
        if self.is_ctx(btf, to) || matches!(ty.kind, Type::Void) {
            return true;
        }
        let word = matches!(&ty.kind, Type::Int(i) if i.size == 8);
        let regs = btf.name(id) == "pt_regs";
        match self.prog.prog_type {
            P::Kprobe | P::PerfEvent => regs,
            P::Tracepoint => word || matches!(ty.kind, Type::Struct(_)),
            P::RawTracepoint | P::RawTracepointWritable => word,
            P::Tracing | P::Lsm | P::StructOps => word || matches!(ty.kind, Type::Struct(_)),
            P::Syscall => true,
            _ => false,
        }
    }

    /// The state at the beginning of a global function.
    pub(super) fn global_entry(&mut self, func: usize, params: &[Param]) -> State {
        let mut state = State::entry();
        let top = state.top_mut();
        top.func = func;
        top.regs[1] = Reg::UNINIT;
        for (n, p) in params.iter().enumerate() {
            let r = match p {
                Param::Number => Reg::UNKNOWN,
                Param::Ctx => Reg::of(Kind::Ctx),
                Param::Mem { size, nullable: false } => Reg::of(Kind::Mem(*size)),
                Param::Mem { size, nullable: true } => self.or_null(Kind::Mem(*size)),
                Param::Dynptr => Reg::of(Kind::Dynptr(crate::stack::DynptrKind::Any)),
                Param::Object { type_id, nullable } => {
                    let kind = Kind::Btf(*type_id);
                    let mut r = if *nullable { self.or_null(kind) } else { Reg::of(kind) };
                    r.flags = Flags::TRUSTED;
                    r
                }
            };
            if let Some(slot) = state.top_mut().regs.get_mut(n + 1) {
                *slot = r;
            }
        }
        self.enter(state)
    }

    /// A call of a global function: the arguments must fit its prototype.
    pub(super) fn call_global(&mut self, func: usize, params: &[Param]) -> Result<(), Reason> {
        let name = self
            .cfg
            .funcs
            .get(func)
            .and_then(|s| self.prog.subprog(*s))
            .map_or_else(String::new, |s| s.name.clone());
        if self.state.lock.is_some() {
            return Err(Reason::GlobalUnderLock);
        }
        if (self.state.rcu > 0 || self.state.preempt > 0)
            && self.cfg.sleeps.get(func) == Some(&true)
        {
            return Err(Reason::GlobalSleeps);
        }
        for (n, p) in params.iter().enumerate() {
            let reg = n as u8 + 1;
            let Ok(r) = self.read(reg) else { return Err(Reason::Unreadable { reg }) };
            if !self.is_like(reg, &r, p)? {
                return Err(Reason::GlobalArguments { func, name });
            }
        }
        if self.cfg.moves_packet.get(func) == Some(&true) {
            self.lose_packet();
        }
        for r in 0..=5 {
            self.state.set(r, Reg::UNINIT);
        }
        self.state.set(0, Reg::scalar(Scalar::UNKNOWN));
        if !self.globals.contains(&func) {
            self.globals.push(func);
        }
        Ok(())
    }

    fn is_like(&mut self, reg: u8, r: &Reg, p: &Param) -> Result<bool, Reason> {
        Ok(match p {
            Param::Number => r.is_scalar(),
            Param::Ctx => r.kind == Kind::Ctx && pristine(reg, r, "ctx").is_ok(),
            Param::Mem { nullable, size } => {
                if r.is_scalar() {
                    self.flow.mark(r.node);
                    return Ok(*nullable && r.is_zero());
                }
                if r.nullable && !*nullable {
                    return Ok(false);
                }
                let mut there = *r;
                there.nullable = false;
                self.plain_memory(reg, &there, *size, Access::Read).is_ok()
                    && self.plain_memory(reg, &there, *size, Access::Write).is_ok()
            }
            Param::Dynptr => self.dynptr_argument(reg, r).is_ok(),
            Param::Object { type_id, nullable } => {
                if r.is_zero() {
                    self.flow.mark(r.node);
                    return Ok(*nullable);
                }
                let Kind::Btf(id) = r.kind else { return Ok(false) };
                let trusted = self.is_trusted(r) && (!r.nullable || *nullable);
                let (off, _) = r.offsets();
                trusted
                    && self.target().is_some_and(|btf| {
                        super::object::same_object(btf, id, off, btf.name(*type_id))
                    })
            }
        })
    }
}

/// Names of a type as its modifiers and typedefs are taken off one by one.
fn names(btf: &Btf, mut id: TypeId) -> impl Iterator<Item = &str> {
    let mut steps = 0;
    std::iter::from_fn(move || {
        steps += 1;
        if steps > 32 || id == 0 {
            return None;
        }
        let name = btf.name(id);
        id = match &btf.get(id).ok()?.kind {
            Type::Typedef(t)
            | Type::Const(t)
            | Type::Volatile(t)
            | Type::Restrict(t)
            | Type::TypeTag(t) => *t,
            _ => 0,
        };
        Some(name)
    })
}
