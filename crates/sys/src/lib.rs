//! System calls of our own inside other people's processes, and whether one may still be made.
//!
//! Everything here is fit for the event path: no allocation, no `errno`, no vector registers, and
//! nothing of the C library's, whose functions may be hooked. It is not for loaders and readers,
//! which use `rustix`.
//!
//! * [`syscall`]: system calls by number;
//! * [`dl`]: what the dynamic linker finds, where there is one; not for events;
//! * [`of_proc`]: files of `/proc` where the process does not see it;
//! * [`old_glibc`]: functions that old versions of glibc lack;
//! * [`own_file`]: descriptors of ours, which the program may close or give to others;
//! * [`sandbox`]: the flag that ends them all, in a program that has entered a sandbox;
//! * [`thread_words`]: words for each thread in a process whose loader does not know us.
//!
//! Internal to skep.

pub mod dl;
pub mod of_proc;
pub mod old_glibc;
pub mod own_file;
pub mod sandbox;
pub mod syscall;
pub mod thread_words;

use std::arch::asm;

/// Whether this crate is compiled with so much optimization that its part of the event path uses
/// no vector registers.
pub const IS_OPTIMIZED: bool = matches!(env!("SKEP_OPT_LEVEL").as_bytes(), b"2" | b"3");

/// Returns the thread pointer: it tells threads of a process apart, but for a child of `vfork` or
/// `clone(CLONE_VM)`, which may have that of the thread that made it.
#[inline(always)]
#[must_use]
pub fn thread() -> u64 {
    let thread;
    // SAFETY: the first word of the thread control block is its own address.
    unsafe {
        asm!("mov {}, qword ptr fs:[0]", out(reg) thread, options(nostack, readonly, preserves_flags))
    };
    thread
}

/// Tells whether this process may have so many more bytes of memory of its own: who asks for memory in
/// vain cannot go on, and here that would be the end of the program. What stands in the way is
/// `RLIMIT_AS`, `RLIMIT_DATA`, `RLIMIT_MEMLOCK` or `vm.overcommit_memory`, most of which count what may be
/// written, used or not.
#[must_use]
pub fn has_address_space(bytes: u64) -> bool {
    const PRIVATE_ANONYMOUS: u64 = 0x22;
    const READ_WRITE: u64 = 3;
    // First without a right, and unlocked: where all memory of the process is to be locked (`mlockall`), what
    // may be written is filled at once.
    // SAFETY: new pages where the kernel finds room, which are given back at once.
    unsafe {
        let at = syscall::call6(syscall::MMAP, 0, bytes, 0, PRIVATE_ANONYMOUS, u64::MAX, 0);
        if at > i64::MAX as u64 {
            return false;
        }
        syscall::call4(syscall::MUNLOCK, at, bytes, 0, 0);
        let is_there = syscall::call4(syscall::MPROTECT, at, bytes, READ_WRITE, 0) == 0;
        syscall::call4(syscall::MUNMAP, at, bytes, 0, 0);
        is_there
    }
}

/// What the stack of a program's first thread must be allowed to grow to (`ulimit -s`) for the agent to
/// start in it, beside arguments and variables: those have 128 KiB, or a fourth of more
/// (`bprm_stack_limits` in fs/exec.c).
pub const LEAST_STACK: u64 = 160 << 10;

/// Hashes without random numbers: the standard library panics where a filter refuses them with an error
/// that it does not expect.
pub type Unseeded = std::hash::BuildHasherDefault<std::hash::DefaultHasher>;

/// Makes a vector with room for that many elements, an empty one where there is none. It lies in huge
/// pages as far as the kernel gives them (`madvise`): who fills it has a fault for each page, and those
/// of 4 KiB may cost more than what is done with them. Room that is not used takes no memory. Not for the
/// agent in a program that runs already, which would wait until the kernel has made a huge page.
#[must_use]
pub fn vec_in_huge_pages<T>(count: usize) -> Vec<T> {
    const PAGE: u64 = 4096;
    const HUGE_PAGE: u64 = 2 << 20;
    const MADV_HUGEPAGE: u64 = 14;
    let mut all = Vec::new();
    if all.try_reserve_exact(count).is_ok() {
        let room = all.spare_capacity_mut().as_ptr_range();
        let (start, end) =
            ((room.start as u64).next_multiple_of(PAGE), room.end as u64 / PAGE * PAGE);
        if end.saturating_sub(start) >= HUGE_PAGE && !thread_words::by_gs() {
            // SAFETY: the vector's own memory, of which nothing changes but how it is given.
            unsafe { syscall::call4(syscall::MADVISE, start, end - start, MADV_HUGEPAGE, 0) };
        }
    }
    all
}

#[cfg(test)]
mod tests {
    #[test]
    fn there_is_room_up_to_an_end() {
        assert!(super::has_address_space(1 << 30));
        assert!(!super::has_address_space(1 << 48));
    }
}
