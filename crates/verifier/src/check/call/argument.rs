//! The arguments of a helper call, by families.

use super::memory::aligned;
use super::{Call, MAX_SIZE, MEMORY, wrong};
use crate::check::Walk;
use crate::check::mem::{Access, pristine};
use crate::reg::{Flags, Kind, Reg};
use crate::reject::Reason;
use crate::stack::DynptrKind;
use skep_isa::ProgramType as P;
use skep_isa::helper::{self, ArgType, Helper, LockRule};

impl Walk<'_> {
    /// Checks one argument, and notes what it teaches.
    pub(super) fn argument(
        &mut self,
        h: &Helper,
        reg: u8,
        arg: ArgType,
        call: &mut Call,
    ) -> Result<(), Reason> {
        use ArgType as T;
        let arg = arg.in_programs(self.prog.prog_type);
        if arg == T::None {
            return Ok(());
        }
        let r = self.read(reg)?;
        match arg {
            T::Anything if self.opts.strict && !r.is_scalar() => {
                Err(Reason::LeaksInto { what: "helper function".to_owned() })
            }
            T::Anything => Ok(()),
            T::Zero | T::Scalar | T::ConstAllocSize => self.number_argument(reg, &r, arg, call),
            T::Size | T::SizeOrZero => self.size(h, reg, &r, arg == T::SizeOrZero, call),
            T::ConstMapPtr | T::MapKey | T::MapValue | T::MapValueOrNull | T::UninitMapValue => {
                self.map_argument(h, reg, &r, arg, call)
            }
            T::Mem
            | T::MemWrite
            | T::UninitMem
            | T::MemOrNull
            | T::UninitMemOrNull
            | T::FixedMem(_)
            | T::FixedMemWrite(_)
            | T::UninitLong
            | T::StackOrNull => self.memory_argument(h, reg, &r, arg),
            T::ConstStr => self.string(h, reg, &r, call),
            T::AllocMemRelease => self.record_argument(reg, &r, call),
            T::UninitDynptr(_) | T::Dynptr | T::DynptrRelease => {
                self.dynptr_argument_of_helper(reg, &r, arg, call)
            }
            T::SpinLock => self.spin_lock(reg, &r, h.lock == LockRule::Acquires),
            T::Timer => self.field_place(reg, &r, "bpf_timer"),
            T::Kptr => {
                call.kptr = Some(self.kptr_place(reg, &r)?);
                Ok(())
            }
            T::KptrValue => {
                self.flow.mark(r.node);
                if let Some(k) = &call.kptr {
                    call.release = self.kptr_value(reg, &r, k)?;
                }
                Ok(())
            }
            T::Ctx | T::CtxOrNull => self.context_argument(reg, &r, arg),
            T::SockCommon
            | T::BtfIdSockCommon
            | T::SockCommonOrNull
            | T::SocketOrNull
            | T::SockStorageOwner
            | T::SockRelease
            | T::BtfId(_)
            | T::BtfIdOrNull(_) => self.object_argument(reg, &r, arg, call),
            T::Func if matches!(r.kind, Kind::Func(_)) => Ok(()),
            T::Func => Err(wrong(reg, &r, "func")),
            _ => Err(Reason::Unsupported { what: "this kind of helper argument" }),
        }
    }

    fn number_argument(
        &mut self,
        reg: u8,
        r: &Reg,
        arg: ArgType,
        call: &mut Call,
    ) -> Result<(), Reason> {
        if arg == ArgType::Zero {
            self.flow.mark(r.node);
            return if r.is_zero() { Ok(()) } else { Err(Reason::StorageFlags) };
        }
        if !r.is_scalar() {
            return Err(wrong(reg, r, "scalar"));
        }
        if arg == ArgType::ConstAllocSize {
            let n = r.as_const().ok_or(Reason::NotConstant { reg })?;
            self.flow.mark(r.node);
            call.alloc = u32::try_from(n)
                .ok()
                .filter(|n| u64::from(*n) < MAX_SIZE)
                .ok_or(Reason::UnboundedSize { reg })?;
        }
        Ok(())
    }

    fn memory_argument(
        &mut self,
        h: &Helper,
        reg: u8,
        r: &Reg,
        arg: ArgType,
    ) -> Result<(), Reason> {
        match arg {
            ArgType::FixedMem(size) => self.memory(h, reg, r, size, Access::Read),
            ArgType::FixedMemWrite(size) => {
                aligned(r, size)?;
                self.memory(h, reg, r, size, Access::Read)?;
                self.memory(h, reg, r, size, Access::Write)
            }
            ArgType::UninitLong => {
                aligned(r, 8)?;
                self.memory(h, reg, r, 8, Access::Write)
            }
            ArgType::StackOrNull => {
                self.flow.mark(r.node);
                if matches!(r.kind, Kind::Stack(_)) || r.is_zero() {
                    Ok(())
                } else {
                    Err(wrong(reg, r, "fp"))
                }
            }
            // The rest is checked with its size.
            ArgType::MemOrNull | ArgType::UninitMemOrNull => {
                if (r.is_scalar() && !r.is_zero()) || r.nullable {
                    return Err(wrong(reg, r, MEMORY));
                }
                self.flow.mark(r.node);
                Ok(())
            }
            _ => {
                if r.is_scalar() || r.nullable {
                    return Err(wrong(reg, r, MEMORY));
                }
                Ok(())
            }
        }
    }

    /// A ring buffer record that is given back.
    fn record_argument(&self, reg: u8, r: &Reg, call: &mut Call) -> Result<(), Reason> {
        if !matches!(r.kind, Kind::Record(_)) || r.nullable {
            return Err(wrong(reg, r, "ringbuf_mem"));
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

    fn dynptr_argument_of_helper(
        &mut self,
        reg: u8,
        r: &Reg,
        arg: ArgType,
        call: &mut Call,
    ) -> Result<(), Reason> {
        match arg {
            ArgType::UninitDynptr(helper::DynptrKind::Ringbuf) => {
                self.make_dynptr(reg, r, DynptrKind::Ringbuf, 0)
            }
            ArgType::UninitDynptr(_) => {
                // Of memory that stays: the first argument.
                if !matches!(self.state.reg(1).kind, Kind::Value(_)) {
                    let found = self.state.reg(1).type_name();
                    return Err(Reason::WrongType { reg: 1, found, expected: "map_value" });
                }
                self.make_dynptr(reg, r, DynptrKind::Local, 0)
            }
            ArgType::DynptrRelease => self.release_dynptr(reg, r),
            _ => {
                let d = self.dynptr_argument(reg, r)?;
                call.dynptr = Some(d);
                Ok(())
            }
        }
    }

    fn context_argument(&mut self, reg: u8, r: &Reg, arg: ArgType) -> Result<(), Reason> {
        if arg == ArgType::CtxOrNull && r.is_zero() {
            self.flow.mark(r.node);
            return Ok(());
        }
        if r.kind != Kind::Ctx {
            return Err(wrong(reg, r, "ctx"));
        }
        pristine(reg, r, "ctx")
    }

    /// A kernel object, or a socket.
    pub(super) fn object_argument(
        &mut self,
        reg: u8,
        r: &Reg,
        arg: ArgType,
        call: &mut Call,
    ) -> Result<(), Reason> {
        match arg {
            ArgType::BtfIdOrNull(_) if r.is_zero() => {
                self.flow.mark(r.node);
                Ok(())
            }
            ArgType::BtfId(name) | ArgType::BtfIdOrNull(name) => self.kernel_object(reg, r, name),
            ArgType::SockCommonOrNull | ArgType::SocketOrNull => self.socket_or_null(reg, r, arg),
            _ => self.socket_argument(reg, r, arg, call),
        }
    }

    fn socket_argument(
        &mut self,
        reg: u8,
        r: &Reg,
        arg: ArgType,
        call: &mut Call,
    ) -> Result<(), Reason> {
        let allowed = match r.kind {
            Kind::SockCommon | Kind::Socket | Kind::TcpSock => true,
            // `struct bpf_sock *` itself, not what the kernel knows to be one.
            Kind::XdpSock => arg == ArgType::SockCommon,
            _ => false,
        };
        let may_be_gone =
            arg == ArgType::SockStorageOwner && matches!(self.prog.prog_type, P::Tracing | P::Lsm);
        if may_be_gone && self.is_sock(r) && !r.flags.has(Flags::UNTRUSTED) {
            return Ok(());
        }
        if (!allowed && !self.is_trusted_sock(r)) || r.nullable {
            return Err(wrong(reg, r, "sock_common, sock, tcp_sock, xdp_sock, trusted_ptr_"));
        }
        pristine(reg, r, "sock")?;
        if arg == ArgType::SockRelease {
            if !self.state.refs.iter().any(|held| held.id == r.reference) {
                return Err(Reason::NotReferenced { reg });
            }
            call.release = Some(r.reference);
        }
        call.reference = r.reference;
        Ok(())
    }

    /// A socket that is alive, or none.
    fn socket_or_null(&mut self, reg: u8, r: &Reg, arg: ArgType) -> Result<(), Reason> {
        if r.is_zero() {
            self.flow.mark(r.node);
            return Ok(());
        }
        if arg == ArgType::SocketOrNull && r.kind != Kind::Socket {
            return Err(wrong(reg, r, "sock"));
        }
        let view =
            matches!(r.kind, Kind::SockCommon | Kind::Socket | Kind::TcpSock | Kind::XdpSock);
        let alive = self.is_sock(r) && !r.flags.has(Flags::UNTRUSTED) && !r.flags.has(Flags::RCU);
        if !view && !alive {
            return Err(wrong(reg, r, "sock_common, sock, tcp_sock, xdp_sock, ptr_, trusted_ptr_"));
        }
        pristine(reg, r, "sock")
    }
}
