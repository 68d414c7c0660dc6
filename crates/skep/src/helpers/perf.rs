//! `bpf_perf_event_output`: samples to the reader of a processor's ring.

use super::map::map;
use super::{errno, fail};
#[cfg(feature = "loader")]
use crate::packet::View;

const INDEX: u64 = 0xffff_ffff;
const CURRENT_CPU: u64 = INDEX;

/// Which ring is meant.
fn ring(flags: u64) -> u32 {
    match flags & INDEX {
        CURRENT_CPU => super::task::processor(),
        index => index as u32,
    }
}

#[unsafe(link_section = ".text.skep_event")]
pub(super) unsafe extern "C" fn output(
    _: u64,
    handle: u64,
    flags: u64,
    data: u64,
    size: u64,
) -> u64 {
    if flags & !INDEX != 0 {
        return fail(errno::EINVAL);
    }
    // An empty second part with an address: a null one would be made with a vector register, and
    // those belong to the target.
    let data = data as *const u8;
    // SAFETY: the verifier proved argument 2 a map and argument 4 readable for `size` bytes.
    unsafe { map(handle).perf_output(ring(flags), [(data, size), (data, 0)]) as u64 }
}

/// For packet programs: bits 32 to 51 of `flags` tell how much of the packet follows the data.
#[cfg(feature = "loader")]
pub(super) unsafe extern "C" fn output_packet(
    ctx: u64,
    handle: u64,
    flags: u64,
    data: u64,
    size: u64,
) -> u64 {
    const PACKET: u64 = 0xf_ffff << 32;
    if flags & !(INDEX | PACKET) != 0 {
        return fail(errno::EINVAL);
    }
    let len = (flags & PACKET) >> 32;
    // SAFETY: as above; argument 1 is the context of a packet program, and `len` bytes are in its
    // packet.
    unsafe {
        let Some(packet) = View::of(ctx).at(0, len) else { return fail(errno::EFAULT) };
        map(handle)
            .perf_output(ring(flags), [(data as *const u8, size), (packet.cast_const(), len)])
            as u64
    }
}
