//! Memory of known size: map values, memory lent by helpers, and the like.

use super::{Access, At, MAX_OFFSET};
use crate::check::Walk;
use crate::reg::{Flags, Kind, Reg};
use crate::reject::Reason;
use crate::scalar::Scalar;
use skep_isa::{MapFlags, ctx};

impl Walk<'_> {
    /// Checks a map value that a helper reads or writes.
    pub(in crate::check) fn check_helper_value(
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
    pub(in crate::check) fn check_value(
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
    pub(in crate::check) fn check_region(
        &self,
        reg: u8,
        r: &Reg,
        off: i32,
        size: u32,
    ) -> Result<(), Reason> {
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
    pub(super) fn frozen(&self, r: &Reg, map: u32, at: &At, signed: bool) -> Option<Scalar> {
        let bytes = self.constant_bytes(r, map, at.off)?.get(..at.size as usize)?;
        let n = bytes.iter().rev().fold(0u64, |n, b| (n << 8) | u64::from(*b));
        let s = Scalar::constant(n);
        Some(if signed { s.sign_extend(at.size * 8) } else { s })
    }

    /// The frozen contents from a constant address on.
    pub(in crate::check) fn constant_bytes(&self, r: &Reg, map: u32, off: i32) -> Option<&[u8]> {
        let spec = self.spec(map)?;
        let data = spec
            .data
            .as_deref()
            .filter(|_| spec.frozen && spec.flags.has(MapFlags::RDONLY_PROG))?;
        let start = (r.val.as_const()? as i64).checked_add(i64::from(r.off) + i64::from(off))?;
        data.get(usize::try_from(start).ok()?..)
    }
}

/// A pointer that must be as the program got it.
pub(in crate::check) fn pristine(reg: u8, r: &Reg, kind: &'static str) -> Result<(), Reason> {
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
pub(super) fn pristine_offset(reg: u8, r: &Reg, kind: &'static str) -> Result<(), Reason> {
    match r.val.as_const() {
        Some(0) => Ok(()),
        Some(n) => Err(Reason::ModifiedPointer { kind, reg, off: n as i64 }),
        None => Err(Reason::VariablePointer { kind, bits: r.val.bits.to_string() }),
    }
}

/// Checks a load from a socket.
pub(super) fn check_sock(
    reg: u8,
    r: &Reg,
    off: i32,
    size: u32,
    layout: &ctx::Layout,
) -> Result<(), Reason> {
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
        .any(|f| f.off <= start && end <= f.off + f.size && f.is_read(start, size));
    if fits && start.is_multiple_of(size) { Ok(()) } else { Err(bad()) }
}

/// Checks `size` bytes at `off` behind a pointer into `region` bytes.
pub(super) fn check_span(
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
