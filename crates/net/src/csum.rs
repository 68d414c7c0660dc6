//! Internet checksums: `bpf_csum_diff`, and replacing them in a packet (RFC 1624; kernel:
//! include/net/checksum.h).
//!
//! A sum of ones' complement has two zeros. Sums here are made as the kernel makes them, so that
//! they come out as the same one.

use skep_helpers::packet::View;
use skep_helpers::{errno, fail};

/// Adds with the carry going round.
const fn add(a: u32, b: u32) -> u32 {
    let (sum, carry) = a.overflowing_add(b);
    sum + carry as u32
}

const fn sub(a: u32, b: u32) -> u32 {
    add(a, !b)
}

/// Folds into sixteen bits.
const fn from32to16(sum: u32) -> u16 {
    (sum.wrapping_add(sum.rotate_left(16)) >> 16) as u16
}

/// What is stored in a packet for a sum.
const fn fold(sum: u32) -> u16 {
    !from32to16(sum)
}

/// Sums words up, beginning with `seed`; a last one that is not whole is filled with zeros.
///
/// # Safety
/// `from` is readable for `len` bytes.
unsafe fn partial(from: u64, len: u64, seed: u32) -> u32 {
    let mut sum = u64::from(seed);
    let whole = len & !3;
    for i in (0..whole).step_by(4) {
        // SAFETY: the caller's promise.
        sum += u64::from(unsafe { ((from + i) as *const u32).read_unaligned() });
    }
    for i in whole..len {
        // SAFETY: the caller's promise.
        sum += u64::from(unsafe { ((from + i) as *const u8).read_volatile() }) << ((i - whole) * 8);
    }
    add(sum as u32, (sum >> 32) as u32)
}

/// The difference that replacing `from` by `to` makes to a checksum, as Linux 6.13 and later return
/// it: folded.
pub(super) unsafe extern "C" fn diff(
    from: u64,
    from_size: u64,
    to: u64,
    to_size: u64,
    seed: u64,
) -> u64 {
    let (from_size, to_size, seed) = (from_size & 0xffff_ffff, to_size & 0xffff_ffff, seed as u32);
    // SAFETY: the verifier proved both ranges readable for their sizes.
    let sum = unsafe {
        match (from_size > 0, to_size > 0) {
            (true, true) => sub(partial(to, to_size, seed), partial(from, from_size, 0)),
            (false, true) => partial(to, to_size, seed),
            (true, false) => !partial(from, from_size, !seed),
            (false, false) => seed,
        }
    };
    u64::from(from32to16(sum))
}

const FIELD: u64 = 0xf;

/// The checksum in the packet, and what it becomes.
fn replaced(old: u16, from: u64, to: u64, width: u64) -> Result<u16, i32> {
    let known = !u32::from(old);
    match width {
        0 if from != 0 => Err(errno::EINVAL),
        0 => Ok(fold(add(to as u32, known))),
        4 => Ok(fold(add(sub(known, from as u32), to as u32))),
        _ => Err(errno::EINVAL),
    }
}

/// Finds the checksum at an offset.
///
/// # Safety
/// `ctx` is the context of a packet program.
unsafe fn field(ctx: u64, offset: u64) -> Result<*mut u16, i32> {
    let offset = offset & 0xffff_ffff;
    if offset > 0xffff || offset & 1 != 0 {
        return Err(errno::EFAULT);
    }
    // SAFETY: the caller's promise.
    unsafe { View::of(ctx) }.at(offset, 2).map(<*mut u8>::cast).ok_or(errno::EFAULT)
}

/// `bpf_l3_csum_replace`: for a checksum over what changed.
pub(super) unsafe extern "C" fn l3_replace(
    ctx: u64,
    offset: u64,
    from: u64,
    to: u64,
    flags: u64,
) -> u64 {
    if flags & !FIELD != 0 {
        return fail(errno::EINVAL);
    }
    // SAFETY: the verifier proved argument 1 the context; the field lies in the packet.
    unsafe {
        let at = match field(ctx, offset) {
            Ok(at) => at,
            Err(e) => return fail(e),
        };
        let old = at.read_unaligned();
        let new = if flags == 2 {
            let add = |a: u16, b: u16| {
                let (sum, carry) = a.overflowing_add(b);
                sum + u16::from(carry)
            };
            Ok(!add(add(!old, !(from as u16)), to as u16))
        } else {
            replaced(old, from, to, flags)
        };
        match new {
            Ok(new) => at.write_unaligned(new),
            Err(e) => return fail(e),
        }
    }
    0
}

/// `bpf_l4_csum_replace`: as [`l3_replace`], with the ways of UDP, where a checksum of zero means
/// that there is none.
pub(super) unsafe extern "C" fn l4_replace(
    ctx: u64,
    offset: u64,
    from: u64,
    to: u64,
    flags: u64,
) -> u64 {
    const PSEUDO_HDR: u64 = 1 << 4;
    const MARK_MANGLED_0: u64 = 1 << 5;
    const MARK_ENFORCE: u64 = 1 << 6;
    const IPV6: u64 = 1 << 7;
    if flags & !(FIELD | PSEUDO_HDR | MARK_MANGLED_0 | MARK_ENFORCE | IPV6) != 0 {
        return fail(errno::EINVAL);
    }
    // SAFETY: as above.
    unsafe {
        let at = match field(ctx, offset) {
            Ok(at) => at,
            Err(e) => return fail(e),
        };
        let old = at.read_unaligned();
        if flags & MARK_MANGLED_0 != 0 && flags & MARK_ENFORCE == 0 && old == 0 {
            return 0;
        }
        let new = match flags & FIELD {
            2 => replaced(old, from & 0xffff, to & 0xffff, 4),
            width => replaced(old, from, to, width),
        };
        match new {
            Ok(0) if flags & MARK_MANGLED_0 != 0 => at.write_unaligned(0xffff),
            Ok(new) => at.write_unaligned(new),
            Err(e) => return fail(e),
        }
    }
    0
}
