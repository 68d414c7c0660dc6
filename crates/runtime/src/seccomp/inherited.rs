//! Sandboxes that were there before the program was executed: what the agent does at its start must
//! not be this process's end.
//!
//! Nobody may read such a filter. So a child makes the calls, with arguments that do nothing: when
//! it lives, and no call has succeeded that cannot, so will we. Containers have filters that refuse and
//! do not punish, nearly always; there this costs one `fork` a program.

use std::arch::asm;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use skep_sys::of_proc;
use skep_sys::syscall::{CLOSE, OPENAT, READ, call4};
use skep_sys::thread_words;

use super::NO_COUNTER;
use super::calls::{
    ALONE_TRIED, Call, EVERY_EVENT, IDENTITY, NAMES, OTHERS, OWN_TABLE, START, SWEEP, TIME,
};

const UNDER_FILTER: &str = "runs under a seccomp filter that is against tracing";
/// What `wait4` says of a process that ended by itself, with the status 0.
const EXITED: i32 = 0;

/// Tells why the agent must stay out of this process, if so.
pub(crate) fn obstacle() -> Option<&'static str> {
    const PR_GET_TSC: u64 = 25;
    const PR_TSC_SIGSEGV: u32 = 2;
    let mut counter = 0_u32;
    // Whoever has put the agent into a process that runs has judged its filters.
    if is_filtered() && !thread_words::by_gs() && !lives(&|| are_made_or_refused(&ALL)) {
        // It can do without the first.
        if !lives(&|| are_made_or_refused(&ALL[1..])) {
            return Some(UNDER_FILTER);
        }
        super::forbid_sweeps();
    }
    // SAFETY: writes one word.
    unsafe { raw(157, [PR_GET_TSC, &raw mut counter as u64, 0, 0, 0, 0]) };
    (counter == PR_TSC_SIGSEGV).then_some(NO_COUNTER)
}

/// What is tried: first what the agent can do without, then all else.
const ALL: [&[Call]; 6] = [SWEEP, EVERY_EVENT, TIME, IDENTITY, OTHERS, START];

/// How many filters there were at the start.
static AT_START: AtomicU32 = AtomicU32::new(0);

fn is_filtered() -> bool {
    AT_START.store(filters(), Relaxed);
    AT_START.load(Relaxed) != 0
}

/// Tells whether the program has set a filter in a way that could not be seen. Opens a file: for
/// where the program is about to do the same. Allocates nothing.
pub(crate) fn has_unseen_filter() -> bool {
    filters() != AT_START.load(Relaxed)
}

/// Counts this thread's filters; 1 where the kernel only tells that there are some. Opens a file.
pub(crate) fn filters() -> u32 {
    const CLOEXEC: u64 = 0o2_000_000;
    let mut text = [0_u8; 2048];
    // SAFETY: reads a name, and writes into `text`; the descriptor is ours.
    let got = unsafe {
        let [dir, path] = of_proc::place(c"/proc/thread-self/status".as_ptr() as u64);
        let fd = call4(OPENAT, dir, path, CLOEXEC, 0);
        if fd > u64::MAX - 4096 {
            return 0;
        }
        let got = call4(READ, fd, text.as_mut_ptr() as u64, text.len() as u64, 0);
        call4(CLOSE, fd, 0, 0, 0);
        got
    };
    let text = text.get(..usize::try_from(got).unwrap_or(0)).unwrap_or_default();
    let number = |name: &[u8]| {
        let value = text.split(|b| *b == b'\n').find_map(|line| line.strip_prefix(name))?;
        let digits =
            value.iter().skip_while(|b| b.is_ascii_whitespace()).take_while(|b| b.is_ascii_digit());
        Some(digits.fold(0_u32, |n, b| n.wrapping_mul(10).wrapping_add(u32::from(b - b'0'))))
    };
    match (number(b"Seccomp:"), number(b"Seccomp_filters:")) {
        (Some(2), Some(count)) => count.max(1),
        (Some(2), None) => 1,
        _ => 0,
    }
}

/// Tells whether a child for which `what` holds ends by itself. Where there are other threads, `what` must
/// take no lock.
pub(crate) fn lives(what: &dyn Fn() -> bool) -> bool {
    // Its end sends no signal, and no `wait` of the program's can find it.
    const WALL: u64 = 0x4000_0000;
    const CLONE: u64 = 56;
    const WAIT4: u64 = 61;
    const EXIT_GROUP: u64 = 231;
    const EINTR: i64 = -4;
    const PRLIMIT64: u64 = 302;
    const RLIMIT_CPU: u64 = 0;
    const CHILD_SETTID: u64 = 0x0100_0000;
    let own = AtomicU32::new(0);
    // SAFETY: a copy of this process; it has no other threads, and takes no lock that they had, and ends
    // here. In the copy, the kernel writes its id.
    let child = unsafe { raw(CLONE, [CHILD_SETTID, 0, 0, own.as_ptr() as u64, 0, 0]) };
    if child == 0 {
        // A filter only says that there is a child, and that this is it.
        if own.load(Relaxed) == 0 {
            return false;
        }
        // SAFETY: the child may take a second of the processor, and not make a call that does nothing for ever.
        unsafe { raw(PRLIMIT64, [0, RLIMIT_CPU, [1_u64; 2].as_ptr() as u64, 0, 0, 0]) };
        let status = u64::from(!what());
        // SAFETY: ends the child; by a signal where a filter refuses its end.
        unsafe {
            raw(EXIT_GROUP, [status, 0, 0, 0, 0, 0]);
            asm!("ud2", options(noreturn));
        }
    }
    let mut status = 0_i32;
    // SAFETY: writes one word.
    let mut wait = || unsafe { raw(WAIT4, [child as u64, &raw mut status as u64, WALL, 0, 0, 0]) };
    while child > 0 && wait() == EINTR {}
    // Without a child, nothing is known.
    child < 0 || status == EXITED
}

/// Makes calls; tells whether none has succeeded that cannot: a filter may have said so in the kernel's
/// place (`SECCOMP_RET_ERRNO` with the number 0), and nobody lives on memory or a number that is not
/// there.
fn are_made_or_refused(tables: &[&[Call]]) -> bool {
    for calls in tables {
        for call in *calls {
            // SAFETY: bad descriptors and addresses: the calls fail, or change what is the child's own.
            if unsafe { raw(call.nr(), call.args()) == 0 } && !call.may_return_0() {
                return false;
            }
        }
    }
    true
}

/// Tells of this process's own filters, which all that it starts has, whether an agent with a thread of its own
/// can work under them, by trying.
#[must_use]
pub fn own_filters_let_agent_in() -> bool {
    lives(&|| {
        are_made_or_refused(&ALL[1..])
            && are_made_or_refused(&[NAMES])
            && [IDENTITY, ALONE_TRIED].iter().all(|calls| are_made(calls))
    })
}

/// As [`own_filters_let_agent_in`], of a descriptor table of that thread's own.
#[must_use]
pub fn own_filters_let_own_table() -> bool {
    lives(&|| are_made(OWN_TABLE))
}

/// Makes calls; tells whether the kernel has looked at each.
fn are_made(calls: &[Call]) -> bool {
    const EPERM: i64 = 1;
    const EACCES: i64 = 13;
    const ENOSYS: i64 = 38;
    calls.iter().all(|call| {
        // SAFETY: as in `are_made_or_refused`.
        let result = unsafe { raw(call.nr(), call.args()) };
        !matches!(-result, EPERM | EACCES | ENOSYS) && (result != 0 || call.may_return_0())
    })
}

/// # Safety
/// As the call asks for.
unsafe fn raw(nr: u64, a: [u64; 6]) -> i64 {
    let r: i64;
    // SAFETY: the kernel changes rax, rcx and r11, and what the caller answers for.
    unsafe {
        asm!("syscall", inlateout("rax") nr => r, in("rdi") a[0], in("rsi") a[1], in("rdx") a[2], in("r10") a[3], in("r8") a[4],
             in("r9") a[5], lateout("rcx") _, lateout("r11") _);
    }
    r
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_dies_is_told_from_one_that_lives() {
        assert!(lives(&|| true));
        assert!(!lives(&|| false));
        // SAFETY: SIGKILL to the child itself.
        assert!(!lives(&|| unsafe { raw(62, [raw(39, [0; 6]) as u64, 9, 0, 0, 0, 0]) == 1 }));
        assert!(lives(&|| are_made_or_refused(&ALL)));
        assert!(own_filters_let_agent_in());
        assert!(own_filters_let_own_table());
        assert_eq!(obstacle(), None);
    }
}
