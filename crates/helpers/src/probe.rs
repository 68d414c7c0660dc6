//! Reading the traced program's memory, where an address may be bad.
//!
//! The copy is a system call on ourselves (`process_vm_readv`): it cannot fault, whatever signal
//! handlers the program has.

use super::{errno, fail, int};
use skep_sys::syscall::{PROCESS_VM_READV, PROCESS_VM_WRITEV, call6};

/// Copies up to `len` bytes from `from`; returns how many could be read.
///
/// # Safety
/// `to` is writable for `len` bytes.
#[inline(always)]
pub(super) unsafe fn copy(to: u64, from: u64, len: u64) -> u64 {
    let (local, remote) = ([to, len], [from, len]);
    let me = this_thread();
    // SAFETY: both vectors describe one range each; the local one is writable by the caller's
    // promise, the kernel checks the other.
    let r = unsafe {
        call6(PROCESS_VM_READV, me, local.as_ptr() as u64, 1, remote.as_ptr() as u64, 1, 0)
    };
    if r > len { 0 } else { r }
}

/// Whose memory it is. The main thread may have exited, and its id, the process's, leads nowhere then.
#[inline(always)]
fn this_thread() -> u64 {
    skep_maps::slots::pid_tgid() & 0xffff_ffff
}

/// Reads a word of eight bytes; `None` when it is not all there.
#[inline(always)]
pub(super) fn word(from: u64) -> Option<u64> {
    let mut word = std::mem::MaybeUninit::<u64>::uninit();
    // SAFETY: eight bytes to write to; initialized when eight were written.
    unsafe { (copy(word.as_mut_ptr() as u64, from, 8) == 8).then(|| word.assume_init()) }
}

/// Tells whether all bytes can be read.
#[inline(always)]
pub(super) fn is_readable(from: u64, len: u64) -> bool {
    const PIECE: u64 = 512;
    let mut piece = std::mem::MaybeUninit::<[u8; PIECE as usize]>::uninit();
    let mut done = 0;
    while done < len {
        let chunk = (len - done).min(PIECE);
        // SAFETY: `piece` is writable for `chunk` bytes.
        if unsafe { copy(piece.as_mut_ptr() as u64, from.wrapping_add(done), chunk) } != chunk {
            return false;
        }
        done += chunk;
    }
    true
}

/// Zeroes what could not be read, as the kernel does.
///
/// # Safety
/// `to` is writable for `len` bytes.
#[inline(always)]
unsafe fn zero(to: u64, len: u64) {
    for i in 0..len {
        // SAFETY: the caller's promise.
        unsafe { (to as *mut u8).add(i as usize).write_volatile(0) };
    }
}

/// `bpf_probe_read` and its user and kernel forms: 0, or `-EFAULT` with the buffer zeroed.
#[unsafe(link_section = ".text.skep_event")]
pub(super) unsafe extern "C" fn read(to: u64, size: u64, from: u64, _: u64, _: u64) -> u64 {
    let size = size & 0xffff_ffff;
    if size == 0 {
        return 0;
    }
    // SAFETY: the verifier proved `to` writable for `size` bytes.
    unsafe {
        if copy(to, from, size) == size {
            return 0;
        }
        zero(to, size);
    }
    fail(errno::EFAULT)
}

/// Zeroes what the kernel zeroes behind a string's end: it reads user memory in words of eight
/// bytes, and writes whole ones as long as there is room, so that strings in keys of maps end
/// alike.
///
/// # Safety
/// `to` is writable for `size` bytes, and `end` is below.
#[inline(always)]
unsafe fn finish_word(to: u64, size: u64, from: u64, end: u64) {
    const PAGE: u64 = 4096;
    let begin = end & !7;
    if begin + 8 > size {
        return;
    }
    // A word that goes beyond what can be read is read in bytes.
    let at = from.wrapping_add(begin);
    if at % PAGE > PAGE - 8 {
        let mut byte = 0_u8;
        // SAFETY: one byte.
        if unsafe { copy((&raw mut byte) as u64, (at | (PAGE - 1)).wrapping_add(1), 1) } != 1 {
            return;
        }
    }
    for i in end + 1..begin + 8 {
        // SAFETY: below `size`.
        unsafe { (to as *mut u8).add(i as usize).write_volatile(0) };
    }
}

/// `bpf_probe_read_str` and `bpf_probe_read_user_str`: the length with the zero, at most `size`; or
/// `-EFAULT` with the buffer zeroed.
#[unsafe(link_section = ".text.skep_event")]
pub(super) unsafe extern "C" fn read_str(to: u64, size: u64, from: u64, _: u64, _: u64) -> u64 {
    let size = size & 0xffff_ffff;
    // SAFETY: the verifier proved `to` writable for `size` bytes.
    unsafe {
        let r = string(to, size, from);
        if r <= size && r > 0 && ((to + r - 1) as *const u8).read_volatile() == 0 {
            finish_word(to, size, from, r - 1);
        }
        r
    }
}

/// Copies a string up to its end.
///
/// Reads up to the end of a page at a time: a string may end just before unmapped memory.
///
/// # Safety
/// `to` is writable for `size` bytes.
#[inline(always)]
unsafe fn string(to: u64, size: u64, from: u64) -> u64 {
    const PAGE: u64 = 4096;
    const PIECE: u64 = 512;
    if size == 0 {
        return 0;
    }
    // By way of a buffer: what is behind the string's end stays as it was.
    let mut piece = std::mem::MaybeUninit::<[u8; PIECE as usize]>::uninit();
    let piece = piece.as_mut_ptr().cast::<u8>();
    let mut done = 0;
    while done < size {
        let at = from.wrapping_add(done);
        let chunk = (PAGE - at % PAGE).min(size - done).min(PIECE);
        // SAFETY: `piece` is writable for `chunk` bytes.
        let got = unsafe { copy(piece as u64, at, chunk) };
        for i in 0..got {
            // SAFETY: the verifier proved `to` writable for `size` bytes, and done + got <= size;
            // `got` bytes of `piece` were read.
            unsafe {
                let byte = piece.add(i as usize).read_volatile();
                (to as *mut u8).add((done + i) as usize).write_volatile(byte);
                if byte == 0 {
                    return done + i + 1;
                }
            }
        }
        if got != chunk {
            // SAFETY: as above.
            unsafe { zero(to, size) };
            return fail(errno::EFAULT);
        }
        done += chunk;
    }
    // SAFETY: size > 0, as above.
    unsafe { (to as *mut u8).add(size as usize - 1).write_volatile(0) };
    size
}

/// Ends of what a process may have: from here on addresses are the kernel's (x86-64 with four
/// levels of page tables).
pub(super) const TASK_SIZE: u64 = 0x7fff_ffff_f000;

/// What the kernel answers when it is asked to read "kernel" memory below its own: it is out of
/// range.
#[inline(always)]
fn kernel_error(from: u64, r: u64) -> u64 {
    if r == fail(errno::EFAULT) && from < TASK_SIZE { fail(errno::ERANGE) } else { r }
}

/// `bpf_probe_read_user`: an address of the kernel is bad even for nothing.
#[unsafe(link_section = ".text.skep_event")]
pub(super) unsafe extern "C" fn read_user(to: u64, size: u64, from: u64, _: u64, _: u64) -> u64 {
    if from > TASK_SIZE && size & 0xffff_ffff == 0 {
        return fail(errno::EFAULT);
    }
    // SAFETY: passed on.
    unsafe { read(to, size, from, 0, 0) }
}

/// `bpf_probe_read_kernel`: reads the traced program as all others, since that is what a "kernel"
/// program traces here.
#[unsafe(link_section = ".text.skep_event")]
pub(super) unsafe extern "C" fn read_kernel(to: u64, size: u64, from: u64, _: u64, _: u64) -> u64 {
    // SAFETY: passed on.
    kernel_error(from, unsafe { read(to, size, from, 0, 0) })
}

/// `bpf_probe_read_kernel_str`.
#[unsafe(link_section = ".text.skep_event")]
pub(super) unsafe extern "C" fn read_kernel_str(
    to: u64,
    size: u64,
    from: u64,
    _: u64,
    _: u64,
) -> u64 {
    // SAFETY: passed on.
    kernel_error(from, unsafe { string(to, size & 0xffff_ffff, from) })
}

/// Writes the traced program's memory: 0, or `-EFAULT` when not all of it could be written.
#[unsafe(link_section = ".text.skep_event")]
pub(super) unsafe extern "C" fn write_user(to: u64, from: u64, size: u64, _: u64, _: u64) -> u64 {
    let size = size & 0xffff_ffff;
    let (local, remote) = ([from, size], [to, size]);
    let me = this_thread();
    // SAFETY: the verifier proved `from` readable for `size` bytes; the kernel checks the other.
    let r = unsafe {
        call6(PROCESS_VM_WRITEV, me, local.as_ptr() as u64, 1, remote.as_ptr() as u64, 1, 0)
    };
    if r == size { 0 } else { fail(errno::EFAULT) }
}

/// Pads with zeroes behind the end.
const PAD_ZEROS: u64 = 1;

/// `bpf_copy_from_user_str`: the length with the zero, at most `size`; or `-EFAULT`.
pub(super) unsafe extern "C" fn copy_from_user_str(
    to: u64,
    size: u64,
    from: u64,
    flags: u64,
    _: u64,
) -> u64 {
    let size = size & 0xffff_ffff;
    if flags & !PAD_ZEROS != 0 {
        return int(fail(errno::EINVAL));
    }
    if size == 0 {
        return 0;
    }
    // SAFETY: the verifier proved `to` writable for `size` bytes.
    unsafe {
        let r = string(to, size, from);
        if flags == PAD_ZEROS && r <= size {
            zero(to + r, size - r);
        }
        int(r)
    }
}

#[cfg(test)]
mod tests {
    use crate::oracle::{Pair, call, words};

    /// A page with text at its end, and nothing readable behind it.
    fn edge() -> u64 {
        use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};
        // SAFETY: fresh memory, never given back; the second page is made unreadable.
        unsafe {
            let p = mmap_anonymous(
                std::ptr::null_mut(),
                8192,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
            .expect("two pages");
            mprotect(p.byte_add(4096), 4096, MprotectFlags::empty()).expect("ours");
            let text = p.byte_add(4096 - 16).cast::<u8>();
            std::ptr::copy_nonoverlapping(b"end of a page\0xy".as_ptr(), text, 16);
            text as u64
        }
    }

    #[test]
    fn memory_is_read_as_the_kernel_reads_it() {
        let edge = edge();
        let text = c"a string of the process";
        // Kernel memory is left out: there the kernel reads what we cannot.
        let addresses = [
            text.as_ptr() as u64,
            edge,
            edge + 14,
            edge + 16,
            edge - 8,
            0,
            8,
            4095,
            0x7fff_ffff_f000 - 8,
            1 << 63,
            u64::MAX,
            0x1234 << 48,
        ];
        for helper in ["probe_read_user", "probe_read_user_str", "copy_from_user"] {
            let Some(pair) = Pair::new(&call(helper, &["at 64", "size 8 63", "word 16"]), b"", 128)
            else {
                return;
            };
            for from in addresses {
                for size in [0, 1, 2, 5, 14, 15, 16, 17, 24, 63] {
                    let mut memory = words(&[0, size, from]);
                    memory.resize(128, 0x55);
                    pair.same(&memory, &format!("{helper} {from:#x} {size}"));
                }
            }
        }
        for helper in ["probe_read_kernel", "probe_read_kernel_str"] {
            let Some(pair) = Pair::new(&call(helper, &["at 64", "size 8 63", "word 16"]), b"", 128)
            else {
                return;
            };
            for from in [0, 8, 4095, 0x1000] {
                for size in [1, 2, 63] {
                    let mut memory = words(&[0, size, from]);
                    memory.resize(128, 0x55);
                    pair.same(&memory, &format!("{helper} {from:#x} {size}"));
                }
            }
        }
    }

    #[test]
    fn memory_is_written_where_it_may_be() {
        let target = [0_u64; 2];
        let from = *b"written";
        // SAFETY: both are there; the second address is nobody's.
        unsafe {
            assert_eq!(super::write_user(target.as_ptr() as u64, from.as_ptr() as u64, 7, 0, 0), 0);
            assert_eq!(
                super::write_user(8, from.as_ptr() as u64, 7, 0, 0) as i64,
                -i64::from(super::errno::EFAULT)
            );
        }
        assert_eq!(std::hint::black_box(target)[0].to_le_bytes(), *b"written\0");
    }
}
