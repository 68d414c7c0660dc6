//! Loads and stores: which memory a pointer may reach, and what a load yields.

use super::{Walk, loaded};
use crate::flow::Node;
use crate::reg::{Flags, Kind, Reg};
use crate::reject::Reason;
use crate::scalar::Scalar;
use crate::stack::Byte;
use skep_isa::{AttachType as A, Insn, MapFlags, ProgramType as P, ctx, ctx::FieldKind, op};
use skep_object::Access as Words;
use skep_object::{Linked, MapSpec};

/// Offsets beyond this are never inside anything (include/linux/bpf_verifier.h `BPF_MAX_VAR_OFF`).
const MAX_OFFSET: i64 = 1 << 29;

/// Marks the number of a map of maps: its inner maps are meant.
pub(super) const INNER: u32 = 1 << 31;

/// The map that a number means, or the inner one of a map of maps.
pub(crate) fn spec(prog: &Linked, map: u32) -> Option<&MapSpec> {
    let outer = prog.maps.get((map & !INNER) as usize).map(|m| &m.spec)?;
    if map & INNER == 0 { Some(outer) } else { outer.inner.as_deref() }
}

/// What is done to memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Access {
    /// Read.
    Read,
    /// Written.
    Write,
}

impl Access {
    pub(super) fn reads(self) -> bool {
        self == Self::Read
    }

    pub(super) fn writes(self) -> bool {
        self == Self::Write
    }

    fn word(self) -> &'static str {
        if self == Self::Read { "read from" } else { "write to" }
    }
}

/// One access by an instruction.
struct At {
    reg: u8,
    off: i32,
    size: u32,
    /// Must be aligned whatever the memory (atomics).
    aligned: bool,
}

fn size_of(i: Insn) -> u32 {
    match i.code & 0x18 {
        op::B => 1,
        op::H => 2,
        op::W => 4,
        _ => 8,
    }
}

impl Walk<'_> {
    pub(super) fn load(&mut self, i: Insn) -> Result<(), Reason> {
        let at = At { reg: i.src(), off: i.off.into(), size: size_of(i), aligned: false };
        let value = self.load_from(&at, i.code & 0xe0 == op::MEMSX)?;
        self.state.set(i.dst(), value);
        Ok(())
    }

    pub(super) fn store(&mut self, i: Insn) -> Result<(), Reason> {
        let value = if i.class() == op::ST {
            Reg::constant(i.imm as i64 as u64)
        } else {
            self.read(i.src())?
        };
        let at = At { reg: i.dst(), off: i.off.into(), size: size_of(i), aligned: false };
        self.store_to(&at, &value)
    }

    /// `LD_ABS` and `LD_IND`: a number of the packet, in host order; a load outside ends the
    /// program.
    ///
    /// Outside of a function of the program, that is: there, it returns 0 from it.
    pub(super) fn load_packet(&mut self, i: Insn) -> Result<(), Reason> {
        if !matches!(self.prog.prog_type, P::SocketFilter | P::SchedCls | P::SchedAct) {
            return Err(Reason::NoPacketLoads);
        }
        let r6 = self.read(6)?;
        self.check_nothing_held("BPF_LD_[ABS|IND]")?;
        if r6.kind != Kind::Ctx {
            return Err(Reason::NoSkb);
        }
        pristine(6, &r6, "ctx")?;
        if i.code & 0xe0 == op::IND {
            self.read(i.src())?;
        }
        for r in 1..=5 {
            self.state.set(r, Reg::UNINIT);
        }
        if self.state.depth() > 0 {
            let func = self.cfg.funcs.get(self.state.top().func).copied();
            if !func
                .and_then(|f| self.prog.subprog(f))
                .is_none_or(|s| self.returns_number(s.type_id))
            {
                return Err(Reason::PacketLoadInVoid);
            }
            let whole = self.state.clone();
            self.state.set(0, Reg::constant(0));
            let back = self.exit()?;
            let left = std::mem::replace(&mut self.state, whole);
            if let Some(to) = back {
                self.fork(left, to);
            }
        }
        self.state.set(0, Reg::UNKNOWN);
        Ok(())
    }

    /// Loads and stores through the context and the like are compiled for what they lead to: it
    /// must be one thing.
    fn check_same_kind(&mut self, r: &Reg) -> Result<(), Reason> {
        let special = |k: Kind| {
            matches!(
                k,
                Kind::Ctx
                    | Kind::SockCommon
                    | Kind::Socket
                    | Kind::TcpSock
                    | Kind::XdpSock
                    | Kind::Btf(_)
            )
        };
        match self.touched.insert(self.insn, r.kind) {
            Some(before)
                if (special(before) || special(r.kind))
                    && std::mem::discriminant(&before) != std::mem::discriminant(&r.kind) =>
            {
                Err(Reason::DifferentPointers)
            }
            _ => Ok(()),
        }
    }

    pub(super) fn atomic(&mut self, i: Insn) -> Result<(), Reason> {
        let size = size_of(i);
        let off = i.off.into();
        if i.imm == op::ATOMIC_LOAD_ACQ {
            let at = At { reg: i.src(), off, size, aligned: true };
            self.atomic_target(i.src(), "loads from")?;
            let value = self.load_from(&at, false)?;
            self.state.set(i.dst(), value);
            return Ok(());
        }
        let at = At { reg: i.dst(), off, size, aligned: true };
        let value = self.read(i.src())?;
        if self.opts.strict && !value.is_scalar() {
            return Err(Reason::LeaksInto { what: "mem".to_owned() });
        }
        if i.imm == op::ATOMIC_CMPXCHG && !self.read(0)?.is_scalar() && self.opts.strict {
            return Err(Reason::LeaksInto { what: "mem".to_owned() });
        }
        self.atomic_target(i.dst(), "stores into")?;
        if i.imm == op::ATOMIC_STORE_REL {
            return self.store_to(&at, &value);
        }
        let on_stack = matches!(self.read(i.dst())?.kind, Kind::Stack(_));
        let before = self.load_from(&at, false)?;
        if self.opts.strict && !before.is_scalar() {
            // What comes of it is not followed, and would tell the address.
            return Err(Reason::CorruptsPointer);
        }
        self.store_to(&at, &Reg::scalar(Scalar::UNKNOWN))?;
        // Nobody else writes to the stack.
        let old = if on_stack { before } else { Reg::scalar(Scalar::of_size(size)) };
        if i.imm == op::ATOMIC_CMPXCHG {
            self.state.set(0, old);
        } else if i.imm & op::ATOMIC_FETCH != 0 {
            self.state.set(i.src(), old);
        }
        Ok(())
    }

    fn atomic_target(&self, reg: u8, what: &'static str) -> Result<(), Reason> {
        let r = self.read(reg)?;
        // Not what is compiled for the field that is meant.
        let fields = matches!(
            r.kind,
            Kind::Ctx
                | Kind::SockCommon
                | Kind::Socket
                | Kind::TcpSock
                | Kind::XdpSock
                | Kind::FlowKeys
        );
        if fields || r.kind.is_packet() {
            return Err(Reason::AtomicOn { reg, what, kind: r.type_name() });
        }
        Ok(())
    }

    fn load_from(&mut self, at: &At, signed: bool) -> Result<Reg, Reason> {
        let r = self.read(at.reg)?;
        self.check_memory(at, &r)?;
        self.check_same_kind(&r)?;
        match r.kind {
            Kind::Stack(frame) => self.load_stack(at, &r, frame, signed),
            Kind::Ctx => {
                let kind = self.check_ctx(at, &r, Access::Read)?;
                self.read_words(at.off as u32, at.size)?;
                if let Some(typed) =
                    u32::try_from(at.off).ok().and_then(|off| self.typed_argument(off, at.size))
                {
                    return typed.and_then(|r| {
                        if signed {
                            Err(Reason::BadContext { off: at.off.into(), size: at.size })
                        } else {
                            Ok(r)
                        }
                    });
                }
                Ok(match kind {
                    FieldKind::Packet if !signed => Reg::of(Kind::Packet),
                    FieldKind::PacketEnd if !signed => Reg::of(Kind::PacketEnd),
                    FieldKind::PacketMeta if !signed => Reg::of(Kind::PacketMeta),
                    FieldKind::Scalar | FieldKind::Bytes => Reg::scalar(loaded(at.size, signed)),
                    // Outside the kernel there is nothing behind it: a number that can be tested
                    // and no more. The others are given by whoever runs such
                    // programs.
                    FieldKind::Socket if self.opts.offered_only => Reg::UNKNOWN,
                    FieldKind::SockCommonOrNull if !signed => self.or_null(Kind::SockCommon),
                    FieldKind::SocketOrNull if !signed => self.or_null(Kind::Socket),
                    FieldKind::Socket if !signed => Reg::of(Kind::Socket),
                    FieldKind::FlowKeys if !signed => Reg::of(Kind::FlowKeys),
                    _ => return Err(Reason::BadContext { off: at.off.into(), size: at.size }),
                })
            }
            Kind::Btf(id) => self.load_object(at.reg, &r, id, at.off, at.size, signed),
            Kind::Map(_) => self.load_map(at.reg, &r, at.off, at.size, signed),
            Kind::Local(ty) => {
                self.check_local(at.reg, &r, ty, at.off, at.size)?;
                Ok(Reg::scalar(loaded(at.size, signed)))
            }
            Kind::Value(map)
                if at.size == 8 && !signed && self.kptr_at(&r, map, at.off).is_some() =>
            {
                self.check_value(at.reg, &r, map, at.off, at.size, Access::Read)?;
                match self.kptr_at(&r, map, at.off) {
                    Some(k) if !at.aligned => self.load_kptr(at.reg, &r, &k),
                    _ => Err(Reason::KptrAccess { what: "cannot be done by an atomic" }),
                }
            }
            Kind::Value(map) => {
                self.check_value(at.reg, &r, map, at.off, at.size, Access::Read)?;
                self.check_fields(&r, map, at.off, at.size, false)?;
                Ok(Reg::scalar(self.frozen(&r, map, at, signed).unwrap_or(loaded(at.size, signed))))
            }
            _ => {
                self.check_region(at.reg, &r, at.off, at.size)?;
                if r.flags.has(Flags::UNTRUSTED) {
                    // A number that the program calls an address: there may be nothing.
                    self.info.object_loads.insert(self.insn);
                }
                Ok(Reg::scalar(loaded(at.size, signed)))
            }
        }
    }

    fn store_to(&mut self, at: &At, value: &Reg) -> Result<(), Reason> {
        let r = self.read(at.reg)?;
        self.check_memory(at, &r)?;
        self.check_same_kind(&r)?;
        if self.opts.strict && !value.is_scalar() && !matches!(r.kind, Kind::Stack(_)) {
            return Err(Reason::LeaksInto { what: r.type_name() });
        }
        match r.kind {
            Kind::Stack(frame) => self.store_stack(at, &r, frame, value),
            Kind::Ctx => {
                self.check_ctx(at, &r, Access::Write)?;
                self.info.ctx_write = true;
                Ok(())
            }
            Kind::Value(_) if r.flags.has(Flags::RDONLY) => {
                Err(Reason::ReadOnlyPointer { reg: at.reg, kind: r.type_name() })
            }
            Kind::Value(map) => {
                self.check_value(at.reg, &r, map, at.off, at.size, Access::Write)?;
                self.check_fields(&r, map, at.off, at.size, false)?;
                match self.kptr_at(&r, map, at.off) {
                    Some(k) => {
                        self.flow.mark(value.node);
                        self.store_kptr(at.reg, value, &k)
                    }
                    None => Ok(()),
                }
            }
            Kind::Btf(_) | Kind::Map(_) => Err(Reason::OnlyRead),
            Kind::Local(_) if r.flags.has(Flags::UNTRUSTED) => Err(Reason::OnlyRead),
            Kind::Local(ty) => self.check_local(at.reg, &r, ty, at.off, at.size),
            Kind::Packet | Kind::PacketMeta if !self.may_write_packet() => Err(Reason::PacketWrite),
            Kind::SockCommon | Kind::Socket | Kind::TcpSock | Kind::XdpSock => {
                Err(Reason::ReadOnlyPointer { reg: at.reg, kind: r.type_name() })
            }
            Kind::Key(_) => Err(Reason::ReadOnlyPointer { reg: at.reg, kind: r.type_name() }),
            _ if r.flags.has(Flags::RDONLY) => {
                Err(Reason::ReadOnlyPointer { reg: at.reg, kind: r.type_name() })
            }
            _ => self.check_region(at.reg, &r, at.off, at.size),
        }
    }

    /// Checks that there is memory behind a register, and the alignment.
    fn check_memory(&self, at: &At, r: &Reg) -> Result<(), Reason> {
        let memory = matches!(
            r.kind,
            Kind::Stack(_)
                | Kind::Ctx
                | Kind::Value(_)
                | Kind::Key(_)
                | Kind::Mem(_)
                | Kind::Record(_)
                | Kind::Packet
                | Kind::PacketMeta
                | Kind::SockCommon
                | Kind::Socket
                | Kind::TcpSock
                | Kind::XdpSock
                | Kind::FlowKeys
                | Kind::Btf(_)
                | Kind::Local(_)
                | Kind::Map(_)
        );
        if !memory || r.nullable {
            return Err(Reason::NotMemory { reg: at.reg, kind: r.type_name() });
        }
        let stack = matches!(r.kind, Kind::Stack(_));
        if at.aligned || stack || self.opts.strict_alignment {
            let low = r.val.bits.add(crate::tnum::Tnum::constant(i64::from(r.off + at.off) as u64));
            if (low.value | low.mask) & u64::from(at.size - 1) != 0 {
                let what = match r.kind {
                    Kind::Stack(_) => "stack",
                    Kind::Value(_) => "value",
                    Kind::Packet | Kind::PacketMeta => "packet",
                    Kind::Ctx => "context",
                    _ => "memory",
                };
                return Err(Reason::Misaligned {
                    what,
                    off: format!("{}+{}+{}", r.val.bits, r.off, at.off),
                    size: at.size,
                });
            }
        }
        Ok(())
    }

    /// Checks a context access; also for pointers a helper will read through.
    fn check_ctx(&mut self, at: &At, r: &Reg, access: Access) -> Result<FieldKind, Reason> {
        pristine(at.reg, r, "ctx")?;
        let bad = Reason::BadContext { off: at.off.into(), size: at.size };
        let Ok(off) = u32::try_from(at.off) else { return Err(bad) };
        let end = off + at.size;
        if off < self.layout.first || end > self.layout.size || !off.is_multiple_of(at.size) {
            return Err(bad);
        }
        let kind = if self.layout.fields.is_empty() {
            if access.writes() && !self.layout.writable {
                return Err(bad);
            }
            FieldKind::Scalar
        } else {
            let field = self
                .layout
                .fields
                .iter()
                .find(|f| f.off <= off && end <= f.off + f.size)
                .ok_or(bad.clone())?;
            let whole = field.size == at.size;
            let allowed = match access {
                _ if field.kind == FieldKind::Bytes => access.reads() || field.writable,
                Access::Write => field.writable && whole,
                Access::Read => field.narrow || whole,
            };
            // Only programs of device maps know where the packet goes.
            let devmap = field.name == "egress_ifindex"
                && self.prog.prog_type == P::Xdp
                && self.prog.attach_type != Some(A::XdpDevmap);
            if !allowed || devmap {
                return Err(bad);
            }
            if matches!(
                field.kind,
                FieldKind::Packet | FieldKind::PacketEnd | FieldKind::PacketMeta
            ) {
                self.info.packet_loads.insert(self.insn);
            }
            field.kind
        };
        self.info.max_ctx_read = self.info.max_ctx_read.max(end);
        Ok(kind)
    }

    /// Checks words of a tracing program's context against the function, as far as that is known.
    fn read_words(&mut self, off: u32, size: u32) -> Result<(), Reason> {
        if self.prog.prog_type == P::Tracing {
            let access = Words { off, size };
            let entry_only =
                matches!(self.prog.attach_type, Some(A::TraceFentry | A::TraceFentryMulti));
            self.opts.attached.check(access, !entry_only)?;
            self.info.ctx_reads.insert(access);
        }
        Ok(())
    }

    /// Tells whether programs of this type may write to packets (kernel/bpf/verifier.c
    /// `may_access_direct_pkt_data`).
    pub(super) fn may_write_packet(&self) -> bool {
        matches!(
            self.prog.prog_type,
            P::Xdp | P::SchedCls | P::SchedAct | P::LwtXmit | P::SkSkb | P::SkMsg
        )
    }

    /// A pointer that may be NULL.
    pub(super) fn or_null(&mut self, kind: Kind) -> Reg {
        let mut r = Reg::of(kind);
        r.nullable = true;
        r.id = self.fresh_id();
        r
    }

    /// Tells whether programs of this type may look into packets and hand them to helpers.
    pub(super) fn may_read_packet(&self) -> bool {
        self.may_write_packet()
            || matches!(
                self.prog.prog_type,
                P::LwtIn
                    | P::LwtOut
                    | P::LwtSeg6local
                    | P::SkReuseport
                    | P::FlowDissector
                    | P::CgroupSkb
            )
    }

    pub(super) fn spec(&self, map: u32) -> Option<&MapSpec> {
        spec(self.prog, map)
    }

    /// Checks `size` bytes of a context that is plain memory, for a helper.
    pub(super) fn check_ctx_bytes(
        &mut self,
        reg: u8,
        r: &Reg,
        size: u32,
        access: Access,
    ) -> Result<(), Reason> {
        let last = i32::try_from(size - 1).map_err(|_| Reason::UnboundedSize { reg })?;
        let at = At { reg, off: last, size: 1, aligned: false };
        self.check_ctx(&at, r, access)?;
        self.read_words(0, size)?;
        self.info.ctx_write |= access.writes();
        Ok(())
    }

    /// Checks a map value that a helper reads or writes.
    pub(super) fn check_helper_value(
        &mut self,
        reg: u8,
        r: &Reg,
        map: u32,
        size: u32,
        access: Access,
    ) -> Result<(), Reason> {
        if access.writes() && r.flags.has(Flags::RDONLY) {
            return Err(Reason::ReadOnlyPointer { reg, kind: r.type_name() });
        }
        self.check_value(reg, r, map, 0, size, access)?;
        self.check_fields(r, map, 0, size, true)
    }

    /// Checks an access to a map value at `off` behind the pointer.
    pub(super) fn check_value(
        &self,
        reg: u8,
        r: &Reg,
        map: u32,
        off: i32,
        size: u32,
        access: Access,
    ) -> Result<(), Reason> {
        let Some(spec) = self.spec(map) else {
            return Err(Reason::NotMemory { reg, kind: r.type_name() });
        };
        let shown = i64::from(r.off) + i64::from(off);
        if access.writes() && (spec.flags.has(MapFlags::RDONLY_PROG) || spec.frozen) {
            return Err(Reason::ReadOnlyMap { size: spec.value_size, off: shown, access: size });
        }
        if access.reads() && spec.flags.has(MapFlags::WRONLY_PROG) {
            return Err(Reason::WriteOnlyMap { size: spec.value_size, off: shown, access: size });
        }
        check_span(reg, r, off, size, spec.value_size, "map value", "value_size")
    }

    /// Checks an access to memory of known size, or to the packet.
    pub(super) fn check_region(&self, reg: u8, r: &Reg, off: i32, size: u32) -> Result<(), Reason> {
        match r.kind {
            Kind::Mem(n) | Kind::Record(n) => {
                check_span(reg, r, off, size, n, "memory", "mem_size")
            }
            Kind::Key(map) => {
                let key_size = self.spec(map).map_or(0, |m| m.key_size());
                check_span(reg, r, off, size, key_size, "map key", "key_size")
            }
            Kind::FlowKeys => {
                pristine_offset(reg, r, "flow_keys")?;
                check_span(reg, r, off, size, ctx::FLOW_KEYS_SIZE, "flow keys", "size")
            }
            Kind::SockCommon => check_sock(reg, r, off, size, &ctx::SOCK_COMMON),
            Kind::Socket => check_sock(reg, r, off, size, &ctx::SOCK),
            Kind::TcpSock => check_sock(reg, r, off, size, &ctx::TCP_SOCK),
            Kind::XdpSock => check_sock(reg, r, off, size, &ctx::XDP_SOCK),
            Kind::Packet | Kind::PacketMeta => {
                if r.val.r64.smin < 0 {
                    return Err(Reason::NegativeIndex { reg });
                }
                let start = i64::from(r.off) + i64::from(off);
                if start < 0 || start + i64::from(size) > i64::from(r.range) {
                    return Err(Reason::OutsidePacket { reg });
                }
                Ok(())
            }
            _ => Err(Reason::NotMemory { reg, kind: r.type_name() }),
        }
    }

    /// What a load from a frozen map yields, when the address is known.
    fn frozen(&self, r: &Reg, map: u32, at: &At, signed: bool) -> Option<Scalar> {
        let bytes = self.constant_bytes(r, map, at.off)?.get(..at.size as usize)?;
        let n = bytes.iter().rev().fold(0u64, |n, b| (n << 8) | u64::from(*b));
        let s = Scalar::constant(n);
        Some(if signed { s.sign_extend(at.size * 8) } else { s })
    }

    /// The frozen contents from a constant address on.
    pub(super) fn constant_bytes(&self, r: &Reg, map: u32, off: i32) -> Option<&[u8]> {
        let spec = self.spec(map)?;
        let data = spec
            .data
            .as_deref()
            .filter(|_| spec.frozen && spec.flags.has(MapFlags::RDONLY_PROG))?;
        let start = (r.val.as_const()? as i64).checked_add(i64::from(r.off) + i64::from(off))?;
        data.get(usize::try_from(start).ok()?..)
    }

    /// Checks that an access lies on the stack; the lowest and highest first byte.
    fn stack_span(
        &mut self,
        reg: u8,
        r: &Reg,
        frame: u8,
        off: i32,
        size: u32,
        access: Access,
    ) -> Result<(i32, i32), Reason> {
        let (min, max) = r.offsets();
        let (min, max) = (min.saturating_add(off.into()), max.saturating_add(off.into()));
        let what = access.word();
        if r.val.as_const().is_none()
            && (r.val.r64.smin <= -MAX_OFFSET || r.val.r64.smax >= MAX_OFFSET)
        {
            return Err(Reason::UnboundedStack { what, reg });
        }
        if self.opts.strict && r.val.as_const().is_none() {
            return Err(Reason::VariableStack {
                reg,
                bits: r.val.bits.to_string(),
                off: i64::from(r.off) + i64::from(off),
            });
        }
        let room = -i64::from(op::STACK_SIZE)..=-i64::from(size);
        if !room.contains(&min) || !room.contains(&max) {
            return Err(if r.val.as_const().is_some() {
                Reason::BadStackAccess { what, reg, off: min, size }
            } else {
                let off = i64::from(r.off) + i64::from(off);
                Reason::BadVariableStackAccess {
                    what,
                    reg,
                    bits: r.val.bits.to_string(),
                    off,
                    size,
                }
            });
        }
        let Some(func) = self.state.frames.get(frame as usize).map(|f| f.func) else {
            return Err(Reason::BadStackAccess { what, reg, off: min, size });
        };
        if let Some(d) = self.depths.get_mut(func) {
            *d = (*d).max((-min) as u32);
        }
        Ok((min as i32, max as i32))
    }

    fn load_stack(&mut self, at: &At, r: &Reg, frame: u8, signed: bool) -> Result<Reg, Reason> {
        let (min, max) = self.stack_span(at.reg, r, frame, at.off, at.size, Access::Read)?;
        let stack = &self.state.frames[frame as usize].stack;
        if min == max {
            let slot = *stack.slot(min);
            if min & 7 == 0 && slot.bytes[0] == Byte::Spill {
                let spilled = slot.bytes.iter().filter(|b| **b == Byte::Spill).count() as u32;
                if slot.is_pointer() {
                    return if at.size == 8 {
                        Ok(slot.reg)
                    } else {
                        Err(Reason::SpillSize { what: "fill" })
                    };
                }
                if at.size <= spilled {
                    return Ok(self.fill(&slot.reg, frame, min, at.size, signed));
                }
            }
        }
        let allow = self.opts.allow_uninit_stack && !self.opts.strict;
        // The number as far as every byte is known, and what it was made of.
        let (mut known, mut node) = (Some(0u64), Node::NONE);
        for o in min..max + at.size as i32 {
            let byte = match stack.byte(o) {
                Byte::Special => {
                    return Err(Reason::UninitStackRead {
                        off: min.into(),
                        at: (o - min) as u32,
                        size: at.size,
                    });
                }
                Byte::Uninit if allow => None,
                Byte::Uninit => {
                    return Err(Reason::UninitStackRead {
                        off: min.into(),
                        at: (o - min) as u32,
                        size: at.size,
                    });
                }
                Byte::Zero => Some(0),
                Byte::Misc => None,
                Byte::Spill => {
                    let slot = stack.slot(o);
                    if slot.is_pointer() && min == max {
                        return Err(Reason::SpillSize { what: "fill" });
                    }
                    node = self.flow.derive(node, slot.reg.node);
                    slot.reg.as_const().map(|n| (n >> ((o & 7) * 8)) & 0xff)
                }
            };
            known = known
                .zip(byte)
                .map(|(n, b)| n | b.wrapping_shl(((o - min) as u32).wrapping_mul(8)));
        }
        // Only zeroes are put together from several stores, as in the kernel.
        let mut r = match known.filter(|n| min == max && *n == 0) {
            Some(n) => Reg::constant(n),
            None => Reg::scalar(loaded(at.size, signed)),
        };
        r.node = node;
        Ok(r)
    }

    /// A number read back from the slot it was spilled to.
    fn fill(&mut self, spilled: &Reg, frame: u8, off: i32, size: u32, signed: bool) -> Reg {
        let val =
            if signed { spilled.val.sign_extend(size * 8) } else { spilled.val.truncate(size * 8) };
        if val != spilled.val || val.as_const().is_some() {
            let mut r = Reg::scalar(val);
            r.node = self.flow.derive(spilled.node, Node::NONE);
            return r;
        }
        // Unchanged: the register and the slot stay equal.
        let mut r = *spilled;
        if r.id == 0 {
            r.id = self.fresh_id();
            self.state.frames[frame as usize].stack.slot_mut(off).reg.id = r.id;
        }
        r
    }

    fn store_stack(&mut self, at: &At, r: &Reg, frame: u8, value: &Reg) -> Result<(), Reason> {
        let (min, max) = self.stack_span(at.reg, r, frame, at.off, at.size, Access::Write)?;
        if matches!(value.kind, Kind::Stack(_)) && usize::from(frame) != self.state.depth() {
            return Err(Reason::SpillToCaller);
        }
        self.overwrite_objects(frame, min, max + at.size as i32, false)?;
        let size = at.size as i32;
        if self.opts.strict
            && size != 8
            && self.state.frames[frame as usize].stack.has_pointer(min, max + size)
        {
            return Err(Reason::CorruptsPointer);
        }
        let zero = value.is_scalar() && value.val.truncate(at.size * 8).as_const() == Some(0);
        if min != max {
            if zero {
                self.flow.mark(value.node);
            }
            self.state.frames[frame as usize].stack.smear(min, max - min + size, zero);
            return Ok(());
        }
        if value.kind.is_pointer() {
            if at.size != 8 {
                return Err(Reason::SpillSize { what: "spill" });
            }
            self.state.frames[frame as usize].stack.spill(min, 8, *value);
            return Ok(());
        }
        let narrowed = value.val.truncate(at.size * 8);
        if min & 7 == 0 {
            let mut v = *value;
            if narrowed != value.val {
                v = Reg::scalar(narrowed);
                v.node = self.flow.derive(value.node, Node::NONE);
            } else if v.val.as_const().is_none() && v.id == 0 {
                // Give slot and register one id, so that a later test of one narrows both.
                v.id = self.fresh_id();
                let src = self
                    .prog
                    .insns
                    .get(self.insn)
                    .filter(|i| i.code & 0xe7 == (op::STX | op::MEM))
                    .map(|i| i.src());
                if let Some(src) = src {
                    self.state.set(src, v);
                }
            }
            self.state.frames[frame as usize].stack.spill(min, size, v);
            return Ok(());
        }
        if zero {
            self.flow.mark(value.node);
        }
        self.state.frames[frame as usize].stack.fill(
            min,
            size,
            if zero { Byte::Zero } else { Byte::Misc },
        );
        Ok(())
    }

    /// Checks `size` bytes of stack that a helper reads or writes.
    pub(super) fn helper_stack(
        &mut self,
        reg: u8,
        r: &Reg,
        frame: u8,
        size: u32,
        access: Access,
    ) -> Result<(), Reason> {
        let (min, max) = self.stack_span(reg, r, frame, 0, size, access)?;
        let allow = self.opts.allow_uninit_stack && !self.opts.strict;
        let end = max + size as i32;
        if self.opts.strict && self.state.frames[frame as usize].stack.has_pointer(min, end) {
            return Err(if access.writes() {
                Reason::CorruptsPointer
            } else {
                Reason::LeaksInto { what: "helper function".to_owned() }
            });
        }
        if access.writes() {
            self.overwrite_objects(frame, min, end, true)?;
        }
        let stack = &mut self.state.frames[frame as usize].stack;
        if access.reads() {
            for o in min..end {
                let byte = stack.byte(o);
                if byte == Byte::Special || (byte == Byte::Uninit && !allow) {
                    return Err(Reason::UninitIndirect {
                        what: "read from",
                        reg,
                        off: min.into(),
                        at: (o - min) as u32,
                        size,
                    });
                }
            }
        }
        if access.writes() {
            stack.smear(min, end - min, false);
            // Whichever the place, these are written; all that the helper has room for counts, as
            // it does for Linux.
            if max < min.saturating_add(size as i32) {
                stack.fill(max, min + size as i32 - max, Byte::Misc);
            }
        }
        Ok(())
    }
}

/// A pointer that must be as the program got it.
pub(super) fn pristine(reg: u8, r: &Reg, kind: &'static str) -> Result<(), Reason> {
    if r.val.as_const().is_none() {
        return Err(Reason::VariablePointer { kind, bits: r.val.bits.to_string() });
    }
    let (off, _) = r.offsets();
    if off < 0 {
        return Err(Reason::NegativePointer { kind, reg, off });
    }
    if off != 0 {
        return Err(Reason::ModifiedPointer { kind, reg, off });
    }
    Ok(())
}

/// A pointer that has no variable offset.
fn pristine_offset(reg: u8, r: &Reg, kind: &'static str) -> Result<(), Reason> {
    match r.val.as_const() {
        Some(0) => Ok(()),
        Some(n) => Err(Reason::ModifiedPointer { kind, reg, off: n as i64 }),
        None => Err(Reason::VariablePointer { kind, bits: r.val.bits.to_string() }),
    }
}

/// Checks a load from a socket.
fn check_sock(reg: u8, r: &Reg, off: i32, size: u32, layout: &ctx::Layout) -> Result<(), Reason> {
    let shown = i64::from(r.off) + i64::from(off);
    let bad = || Reason::BadSockAccess { reg, kind: r.type_name(), off: shown, size };
    if r.val.as_const() != Some(0) {
        return Err(if r.val.r64.smin < 0 { Reason::NegativeIndex { reg } } else { bad() });
    }
    let start = u32::try_from(shown).map_err(|_| bad())?;
    let end = start.checked_add(size).ok_or_else(bad)?;
    let fits = layout
        .fields
        .iter()
        .any(|f| f.off <= start && end <= f.off + f.size && (f.size == size || f.narrow));
    if fits && start.is_multiple_of(size) { Ok(()) } else { Err(bad()) }
}

/// Checks `size` bytes at `off` behind a pointer into `region` bytes.
fn check_span(
    reg: u8,
    r: &Reg,
    off: i32,
    size: u32,
    region: u32,
    what: &'static str,
    size_name: &'static str,
) -> Result<(), Reason> {
    let fixed = i64::from(r.off) + i64::from(off);
    let (smin, umax) = (r.val.r64.smin, r.val.r64.umax);
    let fits =
        |start: i64| start >= 0 && start.saturating_add(i64::from(size)) <= i64::from(region);
    if smin < 0
        && (smin == i64::MIN
            || fixed.saturating_add(smin) < 0
            || fixed + smin != i64::from((fixed + smin) as i32))
    {
        return Err(Reason::NegativeIndex { reg });
    }
    if r.val.as_const().is_some() {
        let start = fixed.saturating_add(smin);
        return if fits(start) {
            Ok(())
        } else {
            Err(Reason::OutOfBounds { what, size_name, region, off: start, size })
        };
    }
    if !fits(fixed.saturating_add(smin)) {
        return Err(Reason::OutsideRange { reg, side: "min" });
    }
    // A range that spans the sign is bounded by its signed end.
    let max = if smin < 0 { r.val.r64.smax } else { i64::try_from(umax).unwrap_or(i64::MAX) };
    if max >= MAX_OFFSET {
        return Err(Reason::Unbounded { reg });
    }
    if !fits(fixed.saturating_add(max)) {
        return Err(Reason::OutsideRange { reg, side: "max" });
    }
    Ok(())
}
