//! `bpf_perf_event_output` of packet programs.

use skep_helpers::map::map;
use skep_helpers::packet::View;
use skep_helpers::perf::{INDEX, ring};
use skep_helpers::{errno, fail};

/// Bits 32 to 51 of `flags` tell how much of the packet follows the data.
pub(super) unsafe extern "C" fn output(
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
    // SAFETY: the verifier proved argument 2 a map and argument 4 readable for `size` bytes;
    // argument 1 is the context of a packet program, and `len` bytes are in its
    // packet.
    unsafe {
        let Some(packet) = View::of(ctx).at(0, len) else { return fail(errno::EFAULT) };
        map(handle)
            .perf_output(ring(flags), [(data as *const u8, size), (packet.cast_const(), len)])
            as u64
    }
}
