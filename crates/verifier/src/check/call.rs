//! Helper calls: every argument against the helper's row in [`skep_isa::helper`], then the result.

use super::Walk;
use super::mem::INNER;
use super::mem::{Access, pristine};
use crate::PROCESSORS;
use crate::reg::{Flags, Id, Kind, Reg};
use crate::reject::Reason;
use crate::scalar::Scalar;
use crate::stack::{Byte, DynptrKind};
use crate::state::Reference;
use skep_isa::ProgramType as P;
use skep_isa::map::Lookup;
use skep_isa::{
    ArgType, AttachType as A, Helper, HelperId, Insn, MapFlags, MapType, RetType, helper,
};

/// Sizes beyond this are refused (include/linux/bpf_verifier.h `BPF_MAX_VAR_SIZ`).
const MAX_SIZE: u64 = 1 << 29;

/// What the arguments of one call taught.
#[derive(Default)]
struct Call {
    map: Option<u32>,
    alloc: u32,
    /// The key, when it is a known number: then the element of an array is there.
    key: Option<u64>,
    kptr: Option<crate::fields::Kptr>,
    dynptr: Option<Reg>,
    /// Most bytes of the memory written.
    size: Option<u32>,
    release: Option<u32>,
    /// The reference that an argument rests on: results made from it rest on it too.
    reference: Id,
    /// A format: where it stands, and in which map.
    format: Option<(Reg, u32)>,
}

impl Walk<'_> {
    pub(super) fn call_helper(&mut self, i: Insn) -> Result<(), Reason> {
        let id = i.imm as u32;
        let h = helper::by_id(id).ok_or(Reason::NoSuchHelper { id })?;
        self.check_allowed(h)?;
        if let (true, Some(why)) = (self.opts.offered_only, h.refused) {
            return Err(Reason::NotOffered { name: full_name(h), id, why });
        }
        if self.state.lock.is_some() && id != SPIN_UNLOCK && id != SPIN_LOCK {
            return Err(Reason::CallUnderLock);
        }
        if id == TAIL_CALL {
            self.check_nothing_held("tail_call")?;
        }
        let mut call = Call::default();
        for (n, arg) in h.args.iter().enumerate() {
            self.argument(h, n as u8 + 1, *arg, &mut call)?;
        }
        if let Some(id) = call.release {
            self.release(id);
        }
        let packet_dynptr = call
            .dynptr
            .is_some_and(|d| matches!(d.kind, Kind::Dynptr(DynptrKind::Skb | DynptrKind::Any)));
        if h.moves_packet || (id == DYNPTR_WRITE && packet_dynptr) {
            self.lose_packet();
        }
        self.info.helpers.insert(id);
        for r in 0..=5 {
            self.state.set(r, Reg::UNINIT);
        }
        self.result(h, &call);
        if let (GET_STACK | GET_TASK_STACK | 45 | 114 | 115, Some(size)) = (id, call.size) {
            // Bytes written, or an error number.
            let r0 = Scalar::UNKNOWN
                .meet(Scalar::signed_between(-4095, i64::from(size)))
                .unwrap_or(Scalar::UNKNOWN);
            self.state.set(0, Reg::scalar(r0));
        }
        Ok(())
    }

    fn check_allowed(&self, h: &Helper) -> Result<(), Reason> {
        let refused = Reason::HelperNotAllowed { name: full_name(h), id: h.id };
        if !h.allows(self.prog.prog_type) {
            return Err(refused);
        }
        let attach = self.prog.attach_type;
        let session = matches!(
            attach,
            Some(
                A::TraceFsession
                    | A::TraceFsessionMulti
                    | A::TraceKprobeSession
                    | A::TraceUprobeSession
            )
        );
        let trampoline = matches!(
            attach,
            Some(
                A::TraceFentry
                    | A::TraceFexit
                    | A::ModifyReturn
                    | A::TraceFsession
                    | A::TraceFentryMulti
                    | A::TraceFexitMulti
                    | A::ModifyReturnMulti
                    | A::TraceFsessionMulti
            )
        );
        let entry_only = matches!(attach, Some(A::TraceFentry | A::TraceFentryMulti));
        let tracing = self.prog.prog_type == skep_isa::ProgramType::Tracing;
        let allowed = match h.name {
            // The words these read are only there in the right kind of trampoline.
            "bpf_session_is_return" | "bpf_session_cookie" => session,
            "get_func_arg" | "get_func_arg_cnt" | "skep_get_func_sp" => trampoline,
            "get_func_ret" => trampoline && !entry_only,
            "get_func_ip" | "get_attach_cookie" => !tracing || trampoline,
            // Only where no lock is held that it takes (kernel/trace/bpf_trace.c
            // `btf_allowlist_d_path`).
            "d_path" => self.prog.target.as_deref().is_some_and(|t| {
                t.starts_with("security_file_")
                    || matches!(
                        t,
                        "vfs_truncate"
                            | "vfs_fallocate"
                            | "dentry_open"
                            | "vfs_getattr"
                            | "filp_close"
                    )
            }),
            "get_retval" | "set_retval" => !attach.is_some_and(no_verdict),
            "seq_printf" | "seq_write" | "seq_printf_btf" => attach == Some(A::TraceIter),
            _ => true,
        };
        if !allowed {
            return Err(refused);
        }
        if h.gpl_only && !self.prog.gpl {
            return Err(Reason::NeedsGpl { name: full_name(h) });
        }
        if h.sleeps && !self.prog.sleepable {
            return Err(Reason::MightSleep);
        }
        if h.sleeps && (self.state.rcu > 0 || self.state.preempt > 0) {
            return Err(Reason::HelperSleepsInside { name: full_name(h), id: h.id });
        }
        Ok(())
    }

    fn argument(
        &mut self,
        h: &Helper,
        reg: u8,
        arg: ArgType,
        call: &mut Call,
    ) -> Result<(), Reason> {
        if arg == ArgType::None {
            return Ok(());
        }
        let r = self.read(reg)?;
        match arg {
            ArgType::Anything if h.id == GET_LOCAL_STORAGE => {
                self.flow.mark(r.node);
                if r.is_zero() { Ok(()) } else { Err(Reason::StorageFlags) }
            }
            ArgType::Anything if self.opts.strict && !r.is_scalar() => {
                Err(Reason::LeaksInto { what: "helper function".to_owned() })
            }
            ArgType::Anything => Ok(()),
            ArgType::ConstMapPtr => {
                let (Kind::Map(map), false) = (r.kind, r.nullable) else {
                    return Err(wrong(reg, &r, "map_ptr"));
                };
                self.check_map(h, map)?;
                call.map = Some(map);
                Ok(())
            }
            ArgType::MapKey => {
                let size = self.call_spec(call).map_or(0, |m| m.key_size);
                self.memory(h, reg, &r, size, Access::Read)?;
                if h.id == MAP_LOOKUP_ELEM
                    && self.call_spec(call).is_some_and(|m| {
                        matches!(m.map_type, MapType::Array | MapType::PercpuArray)
                    })
                {
                    call.key = self.constant_key(&r, size);
                }
                Ok(())
            }
            ArgType::MapValue
                if self.call_spec(call).is_some_and(|m| {
                    matches!(m.map_type, MapType::Sockmap | MapType::Sockhash)
                }) =>
            {
                self.argument(h, reg, ArgType::SockCommon, call)
            }
            ArgType::MapValue => {
                let size = self.call_spec(call).map_or(0, |m| m.value_size);
                self.memory(h, reg, &r, size, Access::Read)
            }
            ArgType::UninitMapValue => {
                let (size, kind) =
                    self.call_spec(call).map_or((0, None), |m| (m.value_size, Some(m.map_type)));
                // A filter is shown a value, and says whether it may have seen it.
                let access =
                    if kind == Some(MapType::BloomFilter) { Access::Read } else { Access::Write };
                self.memory(h, reg, &r, size, access)
            }
            ArgType::Scalar if r.is_scalar() => Ok(()),
            ArgType::Scalar => Err(wrong(reg, &r, "scalar")),
            ArgType::FixedMem(size) => self.memory(h, reg, &r, size, Access::Read),
            ArgType::FixedMemWrite(size) => {
                aligned(&r, size)?;
                self.memory(h, reg, &r, size, Access::Read)?;
                self.memory(h, reg, &r, size, Access::Write)
            }
            ArgType::MapValueOrNull | ArgType::CtxOrNull if r.is_zero() => {
                self.flow.mark(r.node);
                Ok(())
            }
            ArgType::MapValueOrNull => {
                let size = self.call_spec(call).map_or(0, |m| m.value_size);
                self.memory(h, reg, &r, size, Access::Read)
            }
            ArgType::SockCommon | ArgType::SockRelease => {
                let fits = match (h.id, r.kind) {
                    // `struct bpf_sock *` itself, not what the kernel knows to be one.
                    (FULLSOCK | TCP_SOCK | LISTENER, Kind::XdpSock) => true,
                    (_, k) => matches!(k, Kind::SockCommon | Kind::Socket | Kind::TcpSock),
                };
                // Storage of sockets is asked for by tracing programs too, which may not know
                // whether there is one.
                let storage =
                    matches!(h.id, 107 | 108) && matches!(self.prog.prog_type, P::Tracing | P::Lsm);
                if storage && self.is_sock(&r) && !r.flags.has(Flags::UNTRUSTED) {
                    return Ok(());
                }
                if (!fits && !self.is_trusted_sock(&r)) || r.nullable {
                    return Err(wrong(
                        reg,
                        &r,
                        "sock_common, sock, tcp_sock, xdp_sock, trusted_ptr_",
                    ));
                }
                pristine(reg, &r, "sock")?;
                if arg == ArgType::SockRelease {
                    if !self.state.refs.iter().any(|held| held.id == r.reference) {
                        return Err(Reason::NotReferenced { reg });
                    }
                    call.release = Some(r.reference);
                }
                call.reference = r.reference;
                Ok(())
            }
            ArgType::SpinLock => self.spin_lock(reg, &r, h.id == SPIN_LOCK),
            ArgType::Kptr => {
                call.kptr = Some(self.kptr_place(reg, &r)?);
                Ok(())
            }
            ArgType::BtfIdOrNull(_) if h.id == KPTR_XCHG => {
                self.flow.mark(r.node);
                if let Some(k) = &call.kptr {
                    call.release = self.kptr_value(reg, &r, k)?;
                }
                Ok(())
            }
            ArgType::UninitDynptr(kind) => {
                let kind = match kind {
                    helper::DynptrKind::Ringbuf => DynptrKind::Ringbuf,
                    _ => DynptrKind::Local,
                };
                if h.id == DYNPTR_FROM_MEM && !matches!(self.state.reg(1).kind, Kind::Value(_)) {
                    let found = self.state.reg(1).type_name();
                    return Err(Reason::WrongType { reg: 1, found, expected: "map_value" });
                }
                self.make_dynptr(reg, &r, kind, 0)
            }
            ArgType::Dynptr => {
                let d = self.dynptr_argument(reg, &r)?;
                call.dynptr = Some(d);
                Ok(())
            }
            ArgType::DynptrRelease => self.release_dynptr(reg, &r),
            ArgType::Timer => self.field_place(reg, &r, "bpf_timer"),
            ArgType::BtfIdOrNull(_) if r.is_zero() => {
                self.flow.mark(r.node);
                Ok(())
            }
            ArgType::BtfId(name) | ArgType::BtfIdOrNull(name) => self.kernel_object(reg, &r, name),
            // Checked with their sizes.
            ArgType::Mem | ArgType::MemWrite | ArgType::UninitMem => {
                if r.is_scalar() || r.nullable {
                    return Err(wrong(reg, &r, MEMORY));
                }
                Ok(())
            }
            ArgType::MemOrNull | ArgType::UninitMemOrNull => {
                if (r.is_scalar() && !r.is_zero()) || r.nullable {
                    return Err(wrong(reg, &r, MEMORY));
                }
                self.flow.mark(r.node);
                Ok(())
            }
            ArgType::Size | ArgType::SizeOrZero => {
                self.size(h, reg, &r, arg == ArgType::SizeOrZero, call)
            }
            ArgType::ConstAllocSize => {
                if !r.is_scalar() {
                    return Err(wrong(reg, &r, "scalar"));
                }
                let n = r.as_const().ok_or(Reason::NotConstant { reg })?;
                self.flow.mark(r.node);
                call.alloc = u32::try_from(n)
                    .ok()
                    .filter(|n| u64::from(*n) < MAX_SIZE)
                    .ok_or(Reason::UnboundedSize { reg })?;
                Ok(())
            }
            // Tracing programs have no socket for a context (`bpf_get_socket_ptr_cookie_proto`).
            ArgType::Ctx if h.id == GET_SOCKET_COOKIE && self.prog.prog_type == P::Tracing => {
                self.socket_or_null(reg, &r)
            }
            ArgType::Ctx | ArgType::CtxOrNull => {
                if r.kind != Kind::Ctx {
                    return Err(wrong(reg, &r, "ctx"));
                }
                pristine(reg, &r, "ctx")
            }
            ArgType::AllocMemRelease => {
                if !matches!(r.kind, Kind::Record(_)) || r.nullable {
                    return Err(wrong(reg, &r, "ringbuf_mem"));
                }
                if r.off != 0 || r.val.as_const() != Some(0) {
                    return Err(Reason::ReleaseOffset { reg });
                }
                if !self.state.refs.iter().any(|held| held.id == r.reference) {
                    return Err(Reason::NotReferenced { reg });
                }
                call.release = Some(r.reference);
                Ok(())
            }
            ArgType::UninitLong => {
                aligned(&r, 8)?;
                self.memory(h, reg, &r, 8, Access::Write)
            }
            ArgType::ConstStr => self.string(h, reg, &r, call),
            ArgType::Func if matches!(r.kind, Kind::Func(_)) => Ok(()),
            ArgType::Func => Err(wrong(reg, &r, "func")),
            ArgType::StackOrNull => {
                self.flow.mark(r.node);
                if matches!(r.kind, Kind::Stack(_)) || r.is_zero() {
                    Ok(())
                } else {
                    Err(wrong(reg, &r, "fp"))
                }
            }
            _ => Err(Reason::Unsupported { what: "this kind of helper argument" }),
        }
    }

    /// A socket that is alive, or none.
    fn socket_or_null(&mut self, reg: u8, r: &Reg) -> Result<(), Reason> {
        if r.is_zero() {
            self.flow.mark(r.node);
            return Ok(());
        }
        let view =
            matches!(r.kind, Kind::SockCommon | Kind::Socket | Kind::TcpSock | Kind::XdpSock);
        let alive = self.is_sock(r) && !r.flags.has(Flags::UNTRUSTED) && !r.flags.has(Flags::RCU);
        if !view && !alive {
            return Err(wrong(reg, r, "sock_common, sock, tcp_sock, xdp_sock, ptr_, trusted_ptr_"));
        }
        pristine(reg, r, "sock")
    }

    fn call_spec(&self, call: &Call) -> Option<&skep_object::MapSpec> {
        self.spec(call.map?)
    }

    /// Checks that the helper and the map go together (`check_map_func_compatibility`).
    fn check_map(&self, h: &Helper, map: u32) -> Result<(), Reason> {
        let Some(spec) = self.spec(map) else {
            return Err(Reason::NoSuchMap { index: map as i32, maps: self.prog.maps.len() });
        };
        let fits = spec.map_type.row().allows(h.id) || kernel_only(spec.map_type).contains(&h.id);
        if !fits {
            return Err(Reason::WrongMap {
                kind: spec.map_type.name(),
                name: full_name(h),
                id: h.id,
            });
        }
        let writes = matches!(h.id, 2 | 3 | 87 | 88);
        if writes && (spec.flags.has(MapFlags::RDONLY_PROG) || spec.frozen) {
            return Err(Reason::ReadOnlyMapUpdate);
        }
        let socks = matches!(spec.map_type, MapType::Sockmap | MapType::Sockhash);
        if socks && matches!(h.id, 2 | 3) && !self.may_update_sockmap(h.id == 3) {
            return Err(Reason::SockmapUpdate);
        }
        Ok(())
    }

    /// Checks the size in `reg` and the memory in the register before it.
    fn size(
        &mut self,
        h: &Helper,
        reg: u8,
        r: &Reg,
        zero_ok: bool,
        call: &mut Call,
    ) -> Result<(), Reason> {
        if !r.is_scalar() {
            return Err(wrong(reg, r, "scalar"));
        }
        let of = reg - 1;
        let mem = self.read(of)?;
        let range = &r.val.r64;
        self.flow.mark(r.node);
        if range.smin < 0 {
            return Err(Reason::NegativeSize { reg });
        }
        if range.umin == 0 && !zero_ok {
            return Err(Reason::ZeroSize { reg, min: range.umin, max: range.umax });
        }
        if range.umax >= MAX_SIZE {
            return Err(Reason::UnboundedSize { reg });
        }
        if let Some((text, data)) = call.format.take() {
            // snprintf: the format is known, so is the number of words it reads.
            let words = self.format_words(&text, data)?;
            if words.checked_mul(8).map(u64::from) != r.as_const() {
                return Err(Reason::BadFormat {
                    what: "the number of arguments differs from that of the conversions",
                });
            }
        }
        let arg = h.args.get(of as usize - 1).copied().unwrap_or(ArgType::None);
        if matches!(arg, ArgType::MemOrNull | ArgType::UninitMemOrNull) && mem.is_zero() {
            return if range.umax == 0 { Ok(()) } else { Err(wrong(of, &mem, MEMORY)) };
        }
        call.size = Some(range.umax as u32);
        let access = if matches!(arg, ArgType::UninitMem | ArgType::UninitMemOrNull) {
            Access::Write
        } else {
            Access::Read
        };
        self.memory(h, of, &mem, range.umax as u32, access)?;
        if arg == ArgType::MemWrite {
            self.memory(h, of, &mem, range.umax as u32, Access::Write)
        } else {
            Ok(())
        }
    }

    /// Checks `size` bytes of memory for a helper.
    fn memory(
        &mut self,
        h: &Helper,
        reg: u8,
        r: &Reg,
        size: u32,
        access: Access,
    ) -> Result<(), Reason> {
        if r.nullable {
            return Err(wrong(reg, r, MEMORY));
        }
        match r.kind {
            Kind::Stack(frame) => self.helper_stack(reg, r, frame, size, access),
            Kind::Value(map) => self.check_helper_value(reg, r, map, size, access),
            Kind::Packet | Kind::PacketMeta if !h.packet || !self.may_read_packet() => {
                Err(Reason::PacketToHelper)
            }
            Kind::Packet | Kind::PacketMeta if access.writes() && !self.may_write_packet() => {
                Err(Reason::PacketWrite)
            }
            Kind::Key(_) if access.writes() => {
                Err(Reason::ReadOnlyPointer { reg, kind: r.type_name() })
            }
            // Helpers do not expect that there is nothing.
            Kind::Mem(_) if r.flags.has(Flags::UNTRUSTED) => Err(wrong(reg, r, MEMORY)),
            Kind::Mem(_) | Kind::Record(_) if access.writes() && r.flags.has(Flags::RDONLY) => {
                Err(Reason::ReadOnlyPointer { reg, kind: r.type_name() })
            }
            Kind::Mem(_) | Kind::Record(_) | Kind::Key(_) | Kind::Packet | Kind::PacketMeta => {
                self.check_region(reg, r, 0, size)
            }
            // Only a context that nobody rewrites is memory.
            Kind::Ctx if self.layout.fields.is_empty() && size > 0 => {
                self.check_ctx_bytes(reg, r, size, access)
            }
            _ => Err(wrong(reg, r, MEMORY)),
        }
    }

    /// Checks `size` bytes of memory for a function of the program.
    pub(super) fn plain_memory(
        &mut self,
        reg: u8,
        r: &Reg,
        size: u32,
        access: Access,
    ) -> Result<(), Reason> {
        const LOOKUP: HelperId = 1;
        let h = helper::by_id(LOOKUP).ok_or(Reason::NoSuchHelper { id: LOOKUP })?;
        self.memory(h, reg, r, size, access)
    }

    fn string(&mut self, h: &Helper, reg: u8, r: &Reg, call: &mut Call) -> Result<(), Reason> {
        let Kind::Value(map) = r.kind else { return Err(wrong(reg, r, "map_value")) };
        let frozen = self
            .spec(map)
            .is_some_and(|m| m.frozen && m.flags.has(MapFlags::RDONLY_PROG) && m.data.is_some());
        if !frozen || r.nullable {
            return Err(Reason::NotReadOnlyMap { reg });
        }
        if r.val.as_const().is_none() {
            return Err(Reason::NotConstAddress { reg });
        }
        let text = self.constant_bytes(r, map, 0).ok_or(Reason::NotTerminated)?;
        if !text.contains(&0) {
            return Err(Reason::NotTerminated);
        }
        if h.name == "snprintf" {
            call.format = Some((*r, map));
        }
        Ok(())
    }

    /// Counts the argument words of a format, refusing what `bpf_bprintf_prepare` refuses.
    fn format_words(&self, r: &Reg, map: u32) -> Result<u32, Reason> {
        let text = self
            .constant_bytes(r, map, 0)
            .and_then(|t| t.split(|b| *b == 0).next())
            .unwrap_or_default();
        count_conversions(text)
    }

    fn result(&mut self, h: &Helper, call: &Call) {
        let r0 = match h.ret {
            RetType::Void => Reg::UNINIT,
            RetType::MapValueOrNull => {
                let mut r = self.looked_up(call.map.unwrap_or(u32::MAX));
                if let (Some(key), Some(spec)) = (call.key, self.call_spec(call))
                    && key < u64::from(spec.max_entries)
                {
                    r.nullable = false;
                    if !self.may_hold_lock(r.kind) {
                        r.id = 0;
                    }
                }
                r
            }
            RetType::MapValue => Reg::of(Kind::Value(call.map.unwrap_or(u32::MAX))),
            RetType::SocketOrNull => self.made_from(Kind::Socket, h.id, call.reference),
            RetType::SockCommonOrNull => self.made_from(Kind::SockCommon, h.id, call.reference),
            RetType::TcpSockOrNull => self.made_from(Kind::TcpSock, h.id, call.reference),
            RetType::BtfId(name) => self.kernel_pointer(name, Flags::TRUSTED),
            RetType::BtfIdOrNull(_) if h.id == KPTR_XCHG => match &call.kptr {
                Some(k) => self.kptr_old(k),
                None => Reg::UNKNOWN,
            },
            RetType::DynptrMemOrNull => {
                self.dynptr_slice(&call.dynptr.unwrap_or(Reg::UNKNOWN), call.alloc)
            }
            RetType::BtfIdOrNull(name) => {
                let mut r = self.kernel_pointer(name, Flags::TRUSTED);
                r.nullable = true;
                r.id = self.fresh_id();
                r.reference = call.reference;
                r
            }
            RetType::AllocMemOrNull => {
                let mut r = Reg::of(Kind::Record(call.alloc));
                r.nullable = true;
                r.id = self.fresh_id();
                r.reference = r.id;
                self.state.refs.push(Reference { id: r.id, insn: self.insn });
                r
            }
            RetType::Mem(n) => Reg::of(Kind::Mem(n)),
            _ if h.id == GET_SMP_PROCESSOR_ID => {
                Reg::scalar(Scalar::between(0, u64::from(self.processors().saturating_sub(1))))
            }
            RetType::PercpuVar | RetType::PercpuVarOrNull => Reg::UNINIT,
            // Also where C says u32 or bool: what a helper leaves in the upper half is its own
            // affair.
            _ => Reg::UNKNOWN,
        };
        self.state.set(0, r0);
    }
}

impl Walk<'_> {
    /// How many processors there may be. The number of those of this machine says nothing of the
    /// one where a program will run.
    fn processors(&self) -> u32 {
        if self.opts.offered_only {
            self.opts.processors.max(PROCESSORS)
        } else {
            self.opts.processors
        }
    }

    /// Tells whether programs of this type may change maps of sockets.
    fn may_update_sockmap(&self, delete: bool) -> bool {
        match self.prog.prog_type {
            P::SockOps => delete,
            P::Tracing => self.prog.attach_type == Some(A::TraceIter),
            P::SocketFilter
            | P::SchedCls
            | P::SchedAct
            | P::Xdp
            | P::SkReuseport
            | P::FlowDissector
            | P::SkLookup => true,
            _ => false,
        }
    }

    /// The number that stands on the stack as a key, as far as Linux looks for it
    /// (`get_constant_map_key`). A program that will run here asks a file that others may write
    /// how many elements there are: for it no element is there for certain.
    fn constant_key(&mut self, r: &Reg, size: u32) -> Option<u64> {
        let Kind::Stack(frame) = r.kind else { return None };
        if self.opts.strict || self.opts.offered_only || r.val.as_const().is_none() {
            return None;
        }
        let off = i32::try_from(r.offsets().0).ok()?;
        let slot = *self.state.slot(frame, off);
        let from = &slot.bytes[(off & 7) as usize..];
        let of = |kind| from.iter().take_while(|b| **b == kind).count() as u32;
        if of(Byte::Zero) >= size {
            return Some(0);
        }
        if of(Byte::Spill) != size {
            return None;
        }
        self.flow.mark(slot.reg.node);
        slot.reg.as_const()
    }

    /// What a lookup in a map gives.
    fn looked_up(&mut self, map: u32) -> Reg {
        let Some(spec) = self.spec(map) else { return Reg::UNKNOWN };
        match (spec.map_type, spec.map_type.row().lookup) {
            (MapType::Sockmap | MapType::Sockhash, _) => self.acquired(Kind::Socket),
            (MapType::Xskmap, _) => self.or_null(Kind::XdpSock),
            (_, Lookup::InnerMap) => self.or_null(Kind::Map(map | INNER)),
            (_, Lookup::ReadOnlyValue) => {
                let mut r = self.or_null(Kind::Value(map));
                r.flags = Flags::RDONLY;
                r
            }
            _ => self.or_null(Kind::Value(map)),
        }
    }

    /// A pointer that may be NULL, and must be given back when it is not.
    pub(super) fn acquired(&mut self, kind: Kind) -> Reg {
        let mut r = self.or_null(kind);
        r.reference = r.id;
        self.state.refs.push(Reference { id: r.id, insn: self.insn });
        r
    }

    /// A socket: looked up, or another view of the one in an argument.
    fn made_from(&mut self, kind: Kind, id: HelperId, reference: Id) -> Reg {
        if matches!(id, SK_LOOKUP_TCP | SK_LOOKUP_UDP | SKC_LOOKUP_TCP) {
            return self.acquired(kind);
        }
        let mut r = self.or_null(kind);
        if id != LISTENER {
            r.reference = reference;
        }
        r
    }
}

const MAP_LOOKUP_ELEM: HelperId = 1;
const GET_SMP_PROCESSOR_ID: HelperId = 8;
const TAIL_CALL: HelperId = 12;
const GET_SOCKET_COOKIE: HelperId = 46;
const SK_LOOKUP_TCP: HelperId = 84;
const SK_LOOKUP_UDP: HelperId = 85;
const SPIN_LOCK: HelperId = 93;
const SPIN_UNLOCK: HelperId = 94;
const FULLSOCK: HelperId = 95;
const TCP_SOCK: HelperId = 96;
const LISTENER: HelperId = 98;
const SKC_LOOKUP_TCP: HelperId = 99;
const GET_STACK: HelperId = 67;
const GET_TASK_STACK: HelperId = 141;
const GET_LOCAL_STORAGE: HelperId = 81;
const DYNPTR_FROM_MEM: HelperId = 197;
const DYNPTR_WRITE: HelperId = 202;
const KPTR_XCHG: HelperId = 194;

/// Helpers that take maps which exist in the kernel only, and those that skep's table leaves out
/// because they need it.
fn kernel_only(map: MapType) -> &'static [HelperId] {
    use MapType as T;
    match map {
        T::Sockmap => &[1, 2, 3, 52, 53, 60, 82, 124],
        T::Sockhash => &[1, 2, 3, 70, 71, 72, 82],
        T::CgroupStorage | T::PercpuCgroupStorage => &[81],
        T::ReuseportSockarray => &[82],
        T::SkStorage => &[107, 108],
        T::InodeStorage => &[145, 146],
        T::TaskStorage => &[156, 157],
        T::CgrpStorage => &[210, 211],
        // A timer or work queue names the map it lies in.
        T::Hash | T::Array | T::LruHash => &[169],
        _ => &[],
    }
}

fn aligned(r: &Reg, size: u32) -> Result<(), Reason> {
    let low = r.val.bits.add(crate::tnum::Tnum::constant(i64::from(r.off) as u64));
    let known = matches!(r.kind, Kind::Stack(_) | Kind::Value(_) | Kind::Mem(_) | Kind::Record(_));
    if known && (low.value | low.mask) & u64::from(size - 1) != 0 {
        return Err(Reason::Misaligned {
            what: "memory",
            off: format!("{}+{}", r.val.bits, r.off),
            size,
        });
    }
    Ok(())
}

const MEMORY: &str = "fp, pkt, pkt_meta, map_key, map_value, mem, ringbuf_mem, buf, trusted_ptr_";

fn wrong(reg: u8, r: &Reg, expected: &'static str) -> Reason {
    Reason::WrongType { reg, found: r.type_name(), expected }
}

/// Hooks whose programs' verdicts nobody asks for, or gives as something else: there is no value to
/// look at or set.
fn no_verdict(hook: A) -> bool {
    matches!(
        hook,
        A::CgroupInetIngress
            | A::CgroupInetEgress
            | A::CgroupSockOps
            | A::CgroupUdp4Recvmsg
            | A::CgroupUdp6Recvmsg
            | A::CgroupUnixRecvmsg
            | A::CgroupInet4Getpeername
            | A::CgroupInet6Getpeername
            | A::CgroupUnixGetpeername
            | A::CgroupInet4Getsockname
            | A::CgroupInet6Getsockname
            | A::CgroupUnixGetsockname
    )
}

fn full_name(h: &Helper) -> String {
    if h.id >= helper::KFUNC_BASE { h.name.to_owned() } else { format!("bpf_{}", h.name) }
}

/// Counts conversions of a kernel format string (kernel/bpf/helpers.c `bpf_bprintf_prepare`).
fn count_conversions(text: &[u8]) -> Result<u32, Reason> {
    let bad = |what| Err(Reason::BadFormat { what });
    let space = |c: u8| matches!(c, b' ' | 9..=13);
    let ends = |c: Option<&u8>| c.is_none_or(|c| space(*c) || c.is_ascii_punctuation());
    if !text.iter().all(|c| c.is_ascii_graphic() || space(*c)) {
        return bad("a character that cannot be printed");
    }
    let mut words = 0;
    let mut rest = text;
    while let Some(at) = rest.iter().position(|c| *c == b'%') {
        rest = &rest[at + 1..];
        if let [b'%', after @ ..] = rest {
            rest = after;
            continue;
        }
        rest = &rest[rest.iter().take_while(|c| matches!(c, b'0' | b'+' | b'-' | b' ')).count()..];
        rest = &rest[rest.iter().take_while(|c| c.is_ascii_digit()).count()..];
        rest = match rest {
            [b'p', after @ ..] if ends(after.first()) => after,
            [b'p', b'k' | b'u', b's', after @ ..] if ends(after.first()) => after,
            [b'p', b'K' | b'x' | b's' | b'S' | b'B', after @ ..] => after,
            [b'p', b'i' | b'I', b'4' | b'6', after @ ..] => after,
            [b's', after @ ..] if ends(after.first()) => after,
            [b'c', after @ ..] => after,
            [b'i' | b'd' | b'u' | b'x' | b'X', after @ ..]
            | [b'l', b'i' | b'd' | b'u' | b'x' | b'X', after @ ..]
            | [b'l', b'l', b'i' | b'd' | b'u' | b'x' | b'X', after @ ..] => after,
            _ => return bad("unknown conversion"),
        };
        words += 1;
        if words > 12 {
            return bad("more than 12 conversions");
        }
    }
    Ok(words)
}
