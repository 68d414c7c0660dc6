//! `bpf_perf_event_output`: samples to the reader of a processor's ring.

use super::map::map;
use super::{errno, fail};

/// Bits of the flags that are the number of a ring.
pub const INDEX: u64 = 0xffff_ffff;
const CURRENT_CPU: u64 = INDEX;

/// Returns the number of the ring that flags mean.
#[inline(always)]
#[must_use]
pub fn ring(flags: u64) -> u32 {
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
