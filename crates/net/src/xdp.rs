//! Helpers of XDP programs: resizing the packet, reading and writing it beyond what pointers reach,
//! and redirecting it.

use skep_isa::MapType;
use skep_isa::ctx::packet as word;

use skep_helpers::map::map;
use skep_helpers::memory::{copy, shift, zero};
use skep_helpers::packet::View;
use skep_helpers::{errno, fail};

use crate::redirect::{self, BROADCAST, EXCLUDE_INGRESS};

/// Bytes of an Ethernet header; no packet is shorter.
const ETH_HLEN: i64 = 14;
/// What the kernel keeps at the start of the headroom (`sizeof(struct xdp_frame)`).
const FRAME: i64 = 40;
/// Most metadata.
const MAX_META: i64 = 255;
const PAGE: u64 = 4096;

/// Looks at the packet.
///
/// # Safety
/// `ctx` is the context of an XDP program.
#[inline(always)]
unsafe fn packet<'a>(ctx: u64) -> View<'a> {
    // SAFETY: the caller's promise.
    unsafe { View::of(ctx) }
}

fn lengths(p: View) -> (i64, i64, i64) {
    (p.data() as i64, p.data_end() as i64, p.data_meta() as i64)
}

/// Moves the start of the packet, and the metadata with it.
pub(super) unsafe extern "C" fn adjust_head(ctx: u64, offset: u64, _: u64, _: u64, _: u64) -> u64 {
    // SAFETY: the verifier proved the argument to be the context.
    let p = unsafe { packet(ctx) };
    let offset = i64::from(offset as i32);
    let (data, end, meta) = lengths(p);
    let to = data + offset;
    if to < p.get(word::HARD_START) as i64 + FRAME + (data - meta) || to > end - ETH_HLEN {
        return fail(errno::EINVAL);
    }
    // SAFETY: both ranges lie between the start of the buffer and the end of the packet.
    unsafe { shift((meta + offset) as u64, meta as u64, (data - meta) as u64) };
    p.set(word::DATA_META, (meta + offset) as u64);
    p.set(word::DATA, to as u64);
    0
}

/// Moves the start of the metadata.
pub(super) unsafe extern "C" fn adjust_meta(ctx: u64, offset: u64, _: u64, _: u64, _: u64) -> u64 {
    // SAFETY: as above.
    let p = unsafe { packet(ctx) };
    let (data, _, meta) = lengths(p);
    let to = meta + i64::from(offset as i32);
    if to < p.get(word::HARD_START) as i64 + FRAME || to > data {
        return fail(errno::EINVAL);
    }
    if (data - to) % 4 != 0 || data - to > MAX_META {
        return fail(errno::EACCES);
    }
    p.set(word::DATA_META, to as u64);
    0
}

/// Moves the end of the packet; what it grows by is zero.
pub(super) unsafe extern "C" fn adjust_tail(ctx: u64, offset: u64, _: u64, _: u64, _: u64) -> u64 {
    // SAFETY: as above.
    let p = unsafe { packet(ctx) };
    let offset = i64::from(offset as i32);
    let (data, end, _) = lengths(p);
    let fragments = p.get(word::FRAGMENTS);
    if fragments > 0 {
        // The kernel turns the sign of a 32-bit number, and this one stays negative: less than
        // nothing to take away.
        if offset == i64::from(i32::MIN) {
            return 0;
        }
        return if offset < 0 {
            shrink(p, offset.unsigned_abs(), fragments)
        } else {
            grow(p, offset as u64, fragments)
        };
    }
    let to = end + offset;
    if to > p.get(word::HARD_END) as i64 || to < data + ETH_HLEN {
        return fail(errno::EINVAL);
    }
    if offset > 0 {
        // SAFETY: up to the end of the room.
        unsafe { zero(end as u64, offset as u64) };
    }
    p.set(word::DATA_END, to as u64);
    0
}

/// Takes bytes from the end of a packet with fragments, and from its first part when these are
/// gone.
fn shrink(p: View, by: u64, fragments: u64) -> u64 {
    if by as i64 > p.len() as i64 - ETH_HLEN {
        return fail(errno::EINVAL);
    }
    let from_fragments = by.min(fragments);
    p.set(word::FRAGMENTS, fragments - from_fragments);
    p.set(word::DATA_END, p.data_end() - (by - from_fragments));
    0
}

/// Lets the last fragment grow, up to the end of its page.
fn grow(p: View, by: u64, fragments: u64) -> u64 {
    let last = (fragments - 1) % PAGE + 1;
    if by > PAGE - last || by > p.get(word::ROOM_END).saturating_sub(p.end()) {
        return fail(errno::EINVAL);
    }
    // SAFETY: up to the end of the room.
    unsafe { zero(p.end(), by) };
    p.set(word::FRAGMENTS, fragments + by);
    0
}

pub(super) unsafe extern "C" fn get_buff_len(ctx: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    // SAFETY: as above.
    unsafe { packet(ctx) }.len()
}

/// Finds bytes of the packet, fragments included.
fn bytes(p: View, offset: u64, len: u64) -> Result<u64, i32> {
    let (offset, len) = (offset & 0xffff_ffff, len & 0xffff_ffff);
    if offset > 0xffff || len > 0xffff {
        return Err(errno::EFAULT);
    }
    p.at(offset, len).map(|at| at as u64).ok_or(errno::EINVAL)
}

pub(super) unsafe extern "C" fn load_bytes(
    ctx: u64,
    offset: u64,
    to: u64,
    len: u64,
    _: u64,
) -> u64 {
    // SAFETY: as above; the verifier proved `to` writable for `len` bytes.
    unsafe {
        match bytes(packet(ctx), offset, len) {
            Ok(at) => copy(to, at, len & 0xffff_ffff),
            Err(e) => return fail(e),
        }
    }
    0
}

pub(super) unsafe extern "C" fn store_bytes(
    ctx: u64,
    offset: u64,
    from: u64,
    len: u64,
    _: u64,
) -> u64 {
    // SAFETY: as above; the verifier proved `from` readable for `len` bytes.
    unsafe {
        match bytes(packet(ctx), offset, len) {
            Ok(at) => copy(at, from, len & 0xffff_ffff),
            Err(e) => return fail(e),
        }
    }
    0
}

const XDP_ABORTED: u64 = 0;
const XDP_REDIRECT: u64 = 4;

/// Says that the packet goes to another interface. Whoever runs the program sends it there, if
/// anybody does; no packet leaves by itself.
pub(super) unsafe extern "C" fn redirect(ifindex: u64, flags: u64, _: u64, _: u64, _: u64) -> u64 {
    if flags != 0 {
        return XDP_ABORTED;
    }
    redirect::note(ifindex as u32);
    XDP_REDIRECT
}

/// Says that the packet goes where the map's row points; without such a row the answer is in the
/// low bits of `flags`.
pub(super) unsafe extern "C" fn redirect_map(
    handle: u64,
    key: u64,
    flags: u64,
    _: u64,
    _: u64,
) -> u64 {
    const FALLBACK: u64 = 3;
    // SAFETY: the verifier proved argument 1 a map of a type that takes this helper.
    let map = unsafe { map(handle) };
    let device = matches!(map.def().map_type, MapType::Devmap | MapType::DevmapHash);
    let allowed = FALLBACK | if device { BROADCAST | EXCLUDE_INGRESS } else { 0 };
    if flags & !allowed != 0 {
        return XDP_ABORTED;
    }
    let key = key as u32;
    // SAFETY: the keys of these types have four bytes.
    let found = unsafe { map.prog_lookup((&raw const key).cast()) };
    if found.is_null() && flags & BROADCAST == 0 {
        return flags & FALLBACK;
    }
    if found.is_null() {
        redirect::note_entry(0, (0, 0), flags, handle);
        return XDP_REDIRECT;
    }
    let map_type = map.def().map_type;
    // Rows of tables are words; values of the hash may be of four bytes.
    let has_program = map_type != MapType::DevmapHash || map.def().value_size >= 8;
    // SAFETY: entries of these types begin with the number of an interface or a socket, or the size
    // of a queue; a program's id is behind, if there is room.
    let (number, program) = unsafe {
        let entry = found.cast::<u32>();
        (entry.read_volatile(), if has_program { entry.add(1).read_volatile() } else { 0 })
    };
    let target = if map_type == MapType::Cpumap { key } else { number };
    redirect::note_entry(target, (number, program), flags, handle);
    XDP_REDIRECT
}
