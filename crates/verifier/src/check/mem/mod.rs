//! Loads and stores: which memory a pointer may reach, and what a load yields.

mod atomic;
mod context;
mod packet;
mod region;
mod stack;

pub(super) use region::pristine;

use super::{Walk, loaded};
use crate::reg::{Flags, Kind, Reg};
use crate::reject::Reason;
use skep_isa::{Insn, ctx::FieldKind, op};
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
    /// Stack that may be written, and is not read.
    Spare,
}

impl Access {
    pub(super) fn reads(self) -> bool {
        self == Self::Read
    }

    pub(super) fn writes(self) -> bool {
        self != Self::Read
    }

    fn word(self) -> &'static str {
        if self == Self::Write { "write to" } else { "read from" }
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
                    FieldKind::Scalar | FieldKind::Head | FieldKind::Words | FieldKind::Bytes => {
                        Reg::scalar(loaded(at.size, signed))
                    }
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
                    // Outside the kernel nobody keeps other numbers away from there.
                    Some(_) if self.opts.offered_only && !at.aligned => Ok(Reg::UNKNOWN),
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

    /// A pointer that may be NULL.
    pub(super) fn or_null(&mut self, kind: Kind) -> Reg {
        let mut r = Reg::of(kind);
        r.nullable = true;
        r.id = self.fresh_id();
        r
    }

    pub(super) fn spec(&self, map: u32) -> Option<&MapSpec> {
        spec(self.prog, map)
    }
}
