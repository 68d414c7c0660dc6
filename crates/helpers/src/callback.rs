//! Helpers that call a function of the program again and again: `bpf_loop`,
//! `bpf_for_each_map_elem`, `bpf_user_ringbuf_drain`.

use std::mem::MaybeUninit;

use skep_isa::KeyShape;
use skep_isa::map::DynptrUser;
use skep_maps::ProgWalk;
use skep_vm::HelperFn;

use super::dynptr::Dynptr;
use super::map::map;
use super::{errno, fail};

/// Turns an argument back into the function.
///
/// # Safety
/// `callback` came from a `PSEUDO_FUNC` immediate of the running program.
#[inline(always)]
unsafe fn function(callback: u64) -> HelperFn {
    // SAFETY: the caller's promise: such an immediate is the address of a function of this type.
    unsafe { std::mem::transmute::<usize, HelperFn>(callback as usize) }
}

/// Calls `callback(round, data)` `rounds` times or until it answers 1; returns how often it was
/// called.
#[doc(alias = "bpf_loop")]
#[unsafe(link_section = ".text.skep_event")]
pub(super) unsafe extern "C" fn repeat(
    rounds: u64,
    callback: u64,
    data: u64,
    flags: u64,
    _: u64,
) -> u64 {
    const MOST: u64 = 8 << 20;
    let rounds = rounds & 0xffff_ffff;
    if flags != 0 {
        return fail(errno::EINVAL);
    }
    if rounds > MOST {
        return fail(errno::E2BIG);
    }
    // SAFETY: the verifier proved argument 2 a function of the program that takes these arguments.
    unsafe {
        let callback = function(callback);
        for i in 0..rounds {
            if callback(i, data, 0, 0, 0) != 0 {
                return i + 1;
            }
        }
    }
    rounds
}

/// Calls `callback(map, key, value, data)` for each element or until it answers 1; returns for how
/// many it was called. A key that is a byte string is shown as a dynptr that may only be read.
pub(super) unsafe extern "C" fn for_each_map_elem(
    handle: u64,
    callback: u64,
    data: u64,
    flags: u64,
    _: u64,
) -> u64 {
    if flags != 0 {
        return fail(errno::EINVAL);
    }
    let mut walk = MaybeUninit::uninit();
    let walk = ProgWalk::begin(&mut walk);
    let mut count = 0;
    // SAFETY: the verifier proved argument 1 a map and argument 2 a function of the program that
    // takes these arguments. Keys that are byte strings come as descriptions.
    unsafe {
        let (map, callback) = (map(handle), function(callback));
        let bytes = matches!(map.key_shape(), KeyShape::Bytes { .. });
        while let Some((key, value)) = map.prog_next(walk) {
            count += 1;
            let mut dynptr;
            let key = if bytes {
                let key = key.cast::<DynptrUser>().read();
                dynptr = Dynptr::read_only(key.data, key.size);
                (&raw mut dynptr) as u64
            } else {
                key as u64
            };
            if callback(handle, key, value as u64, data, 0) != 0 {
                break;
            }
        }
    }
    count
}

/// Calls `callback(sample, data)` for each sample that users have put into the ring, or until it
/// answers 1; returns for how many it was called.
pub(super) unsafe extern "C" fn user_ringbuf_drain(
    handle: u64,
    callback: u64,
    data: u64,
    flags: u64,
    _: u64,
) -> u64 {
    const WAKEUP: u64 = 3;
    const MOST: u64 = 128 << 10;
    const ENODATA: i64 = -(errno::ENODATA as i64);
    const EAGAIN: i64 = -(errno::EAGAIN as i64);
    if flags & !WAKEUP != 0 {
        return fail(errno::EINVAL);
    }
    // SAFETY: the verifier proved argument 1 a map and argument 2 a function of the program that
    // takes these arguments.
    unsafe {
        let callback = function(callback);
        let mut drain = match map(handle).user_ringbuf_drain() {
            Ok(drain) => drain,
            Err(e) => return e as u64,
        };
        let mut count = 0;
        while count < MOST {
            match drain.next_sample() {
                Ok((sample, len)) => {
                    let mut dynptr = Dynptr::local(sample as u64, len);
                    count += 1;
                    if callback((&raw mut dynptr) as u64, data, 0, 0, 0) != 0 {
                        break;
                    }
                }
                // Nothing more, or nothing more that is whole: the kernel would look at that one
                // again and again.
                Err(ENODATA | EAGAIN) => break,
                Err(e) => return e as u64,
            }
        }
        count
    }
}
