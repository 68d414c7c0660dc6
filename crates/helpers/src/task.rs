//! Who runs: process, thread, user, processor.

use std::arch::x86_64::{__cpuid, __cpuid_count, __rdtscp};
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed};

use super::{errno, fail};

#[unsafe(link_section = ".text.skep_event")]
pub(super) unsafe extern "C" fn get_current_pid_tgid(
    _: u64,
    _: u64,
    _: u64,
    _: u64,
    _: u64,
) -> u64 {
    skep_maps::slots::pid_tgid()
}

#[unsafe(link_section = ".text.skep_event")]
pub(super) unsafe extern "C" fn get_current_uid_gid(_: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    u64::from(gid) << 32 | u64::from(uid)
}

/// Tells the processor: the kernel keeps `node << 12 | cpu` where `rdtscp` finds it
/// (arch/x86/include/asm/segment.h). The verifier counts on the number's being below
/// `skep_verifier::PROCESSORS`.
#[unsafe(link_section = ".text.skep_event")]
pub(super) unsafe extern "C" fn get_smp_processor_id(
    _: u64,
    _: u64,
    _: u64,
    _: u64,
    _: u64,
) -> u64 {
    processor().into()
}

/// Numbers that twelve bits can be: what the verifier counts on, at least.
pub const PROCESSORS: u32 = 1 << 12;

/// The processor this runs on.
#[inline(always)]
pub(crate) fn processor() -> u32 {
    place() & (PROCESSORS - 1)
}

#[inline(always)]
fn place() -> u32 {
    static HAS_RDPID: AtomicU8 = AtomicU8::new(UNKNOWN);
    let has = match HAS_RDPID.load(Relaxed) {
        UNKNOWN => {
            let has = has_rdpid();
            HAS_RDPID.store(has, Relaxed);
            has
        }
        known => known,
    };
    if has == YES {
        let place: u64;
        // SAFETY: the processor has the instruction, which changes nothing else. It reads the same
        // register as `rdtscp`, but does not wait for earlier instructions.
        unsafe {
            std::arch::asm!("rdpid {}", out(reg) place, options(nomem, nostack, preserves_flags));
        }
        return place as u32;
    }
    let mut aux = 0;
    // SAFETY: the instruction is there on every x86-64 processor of the last fifteen years, and
    // Linux needs no permission.
    unsafe { __rdtscp(&raw mut aux) };
    aux
}

const UNKNOWN: u8 = 0;
const YES: u8 = 1;
const NO: u8 = 2;

/// Asks the processor for `rdpid`, which takes a microsecond in a virtual machine.
#[cold]
#[inline(never)]
#[unsafe(link_section = ".text.skep_event")]
fn has_rdpid() -> u8 {
    const LEAF: u32 = 7;
    const BIT: u32 = 1 << 22;
    if __cpuid(0).eax >= LEAF && __cpuid_count(LEAF, 0).ecx & BIT != 0 { YES } else { NO }
}

/// Gives a number nobody should rely on to be unguessable, as the kernel's does not promise either:
/// splitmix64.
#[unsafe(link_section = ".text.skep_event")]
pub(super) unsafe extern "C" fn get_prandom_u32(_: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    static STATE: AtomicU64 = AtomicU64::new(0);
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    if STATE.load(Relaxed) == 0 {
        STATE.store(crate::clock::now() | 1, Relaxed);
    }
    let mut z = STATE.fetch_add(STEP, Relaxed).wrapping_add(STEP);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)) & 0xffff_ffff
}

/// Copies the thread's name: at most `size` bytes, always ended by a zero, the rest of the 16
/// zeroed.
#[unsafe(link_section = ".text.skep_event")]
pub(super) unsafe extern "C" fn get_current_comm(
    buf: u64,
    size: u64,
    _: u64,
    _: u64,
    _: u64,
) -> u64 {
    const PR_GET_NAME: u64 = 16;
    if size == 0 {
        return fail(errno::EINVAL);
    }
    let mut name = [0_u64; 2];
    // SAFETY: PR_GET_NAME writes 16 bytes to its second argument.
    let r = unsafe {
        skep_sys::syscall::call4(
            skep_sys::syscall::PRCTL,
            PR_GET_NAME,
            name.as_mut_ptr() as u64,
            0,
            0,
        )
    };
    if r != 0 {
        return r;
    }
    for i in 0..size {
        let word = if i < 8 { name[0] } else { name[1] };
        let byte = if i < 16 && i + 1 < size { (word >> ((i & 7) * 8)) as u8 } else { 0 };
        // SAFETY: the verifier proved `buf` writable for `size` bytes.
        unsafe { (buf as *mut u8).add(i as usize).write_volatile(byte) };
    }
    0
}

/// A number for the thread that is the address of nothing: reading there fails with `-EFAULT`.
#[unsafe(link_section = ".text.skep_event")]
pub(super) unsafe extern "C" fn get_current_task(_: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    const NOWHERE: u64 = 0xffff_9000_0000_0000;
    NOWHERE | (skep_maps::slots::pid_tgid() & 0xffff_ffff) << 12
}

/// The memory node of the processor; see [`get_smp_processor_id`].
#[unsafe(link_section = ".text.skep_event")]
pub(super) unsafe extern "C" fn get_numa_node_id(_: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    (place() >> 12).into()
}

/// Process and thread as their own PID namespace numbers them, when that is the one asked for.
pub(super) unsafe extern "C" fn get_ns_current_pid_tgid(
    dev: u64,
    ino: u64,
    to: u64,
    size: u64,
    _: u64,
) -> u64 {
    let size = size & 0xffff_ffff;
    let mut stat = [const { std::mem::MaybeUninit::<u64>::uninit() }; 18];
    // SAFETY: the call writes a `struct stat` of 144 bytes: device, inode, …; the verifier proved
    // `to` writable for `size` bytes.
    unsafe {
        let at = stat.as_mut_ptr().cast::<u64>();
        let [dir, path] = skep_sys::of_proc::place(c"/proc/thread-self/ns/pid".as_ptr() as u64);
        let same = size == 8
            && dev <= u64::from(u32::MAX)
            && skep_sys::syscall::call4(skep_sys::syscall::FSTATAT, dir, path, at as u64, 0) == 0
            && at.read_volatile() == dev
            && at.add(1).read_volatile() == ino;
        if !same {
            super::memory::zero(to, size);
            return fail(errno::EINVAL);
        }
        let ids = skep_maps::slots::pid_tgid();
        (to as *mut u32).write_unaligned(ids as u32);
        (to as *mut u32).add(1).write_unaligned((ids >> 32) as u32);
    }
    0
}

/// The C library's `__errno_location`; 0: nobody has found it.
static ERRNO_LOCATION: AtomicUsize = AtomicUsize::new(0);

/// Tells where the program's C library says where `errno` is.
///
/// # Safety
/// `location` is 0, or the address of a function like `int *__errno_location(void)`, which returns a
/// word of the calling thread.
pub unsafe fn set_errno_location(location: usize) {
    ERRNO_LOCATION.store(location, Relaxed);
}

/// Sets the thread's `errno`; `-ENOENT` where there is no C library that is known.
#[unsafe(link_section = ".text.skep_event")]
pub(super) unsafe extern "C" fn set_errno(value: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    let location = ERRNO_LOCATION.load(Relaxed);
    if location == 0 {
        return fail(errno::ENOENT);
    }
    // SAFETY: `set_errno_location` was promised such a function.
    unsafe {
        let location = std::mem::transmute::<usize, extern "C" fn() -> *mut i32>(location);
        location().write_volatile(value as i32);
    }
    0
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use crate::oracle::{Pair, call, words};

    #[test]
    fn who_runs_is_who_the_kernel_says() {
        for helper in [
            "get_current_pid_tgid",
            "get_current_uid_gid",
            "get_numa_node_id",
            "get_current_cgroup_id",
        ] {
            let Some(pair) = Pair::new(&call(helper, &[]), b"", 8) else { return };
            pair.same(&[0; 8], helper);
        }
        for name in ["x", "fifteen letters"] {
            std::thread::Builder::new()
                .name(name.to_owned())
                .spawn(|| {
                    let Some(pair) =
                        Pair::new(&call("get_current_comm", &["at 16", "some 8 31"]), b"", 64)
                    else {
                        return;
                    };
                    for size in [1, 2, 8, 9, 15, 16, 17, 31] {
                        let mut memory = words(&[0, size]);
                        memory.resize(64, 0x55);
                        pair.same(&memory, &format!("a name in {size} bytes"));
                    }
                })
                .expect("a thread")
                .join()
                .expect("it agrees");
        }
    }

    #[test]
    fn a_namespace_has_its_own_numbers() {
        let Ok(ns) = std::fs::metadata("/proc/self/ns/pid") else {
            return skep_testkit::skip("/proc");
        };
        for size in [8, 7, 16] {
            let asm =
                call("get_ns_current_pid_tgid", &["word 8", "word 16", "at 32", &size.to_string()]);
            let Some(pair) = Pair::new(&asm, b"", 64) else { return };
            for (dev, ino) in [
                (ns.dev(), ns.ino()),
                (ns.dev() + 1, ns.ino()),
                (ns.dev(), 1),
                (ns.dev() | 1 << 40, ns.ino()),
            ] {
                let mut memory = words(&[0, dev, ino]);
                memory.resize(64, 0x55);
                pair.same(&memory, &format!("{dev} {ino} {size}"));
            }
        }
    }

    #[test]
    fn a_task_is_a_number_of_its_own_and_no_address() {
        let here = || {
            // SAFETY: no arguments; reading there fails.
            unsafe {
                let task = super::get_current_task(0, 0, 0, 0, 0);
                let mut word = 1_u64;
                assert_eq!(
                    crate::probe::read_kernel((&raw mut word) as u64, 8, task, 0, 0) as i64,
                    -i64::from(super::errno::EFAULT)
                );
                task
            }
        };
        let other = std::thread::spawn(here).join().expect("no panic");
        assert_ne!(here(), other);
        assert_eq!(here(), here());
    }
}
