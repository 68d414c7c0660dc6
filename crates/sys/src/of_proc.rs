//! Files of `/proc` in a process that does not see it, as after `chroot`: through a descriptor of a
//! `/proc` that sees the process, which somebody has handed over.
//!
//! The program may close the number, and open another file with it: what is looked for is not there
//! then, as it is not without.

use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

/// The descriptor, or -1.
static PROC: AtomicI32 = AtomicI32::new(-1);

/// Where every path of these begins.
const START: [u8; 6] = *b"/proc/";

/// Takes a descriptor of a `/proc` for what is opened from now on; `None`: the process's own is there.
pub fn see_by(fd: Option<i32>) {
    PROC.store(fd.unwrap_or(-1), Relaxed);
}

/// Where the kernel looks a path up: the arguments of `openat` and its like, a directory and the address of
/// the path. Fit for the event path.
///
/// # Safety
/// `path` is the address of a text that ends with a nul byte.
#[inline(always)]
#[must_use]
pub unsafe fn place(path: u64) -> [u64; 2] {
    const AT_FDCWD: u64 = -100_i64 as u64;
    let fd = PROC.load(Relaxed);
    if fd < 0 {
        return [AT_FDCWD, path];
    }
    let mut at = 0;
    while at < START.len() {
        // SAFETY: the bytes before were no nul byte, so this one is the text's, too.
        let byte = unsafe { (path.wrapping_add(at as u64) as *const u8).read_volatile() };
        if byte != START[at] {
            return [AT_FDCWD, path];
        }
        at += 1;
    }
    [fd as u64, path.wrapping_add(START.len() as u64)]
}

/// Tells whether a path leads through a descriptor of a thread: a directory that somebody has handed over,
/// whose own path may lead elsewhere in this process's mount namespace.
#[must_use]
pub fn is_handed_over(path: &[u8]) -> bool {
    let number = |part: Option<&[u8]>| part.is_some_and(|n| n.iter().all(u8::is_ascii_digit));
    let Some(path) = path.strip_prefix(&START) else { return false };
    let mut parts = path.split(|byte| *byte == b'/');
    match parts.next() {
        Some(b"thread-self") => {}
        pid => {
            if !number(pid) || parts.next() != Some(b"task") || !number(parts.next()) {
                return false;
            }
        }
    }
    parts.next() == Some(b"fd") && parts.next().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_through_descriptors_of_threads_are_known() {
        for path in ["thread-self/fd/4", "12/task/345/fd/6", "12/task/12/fd/900/maps/1"] {
            assert!(is_handed_over(format!("/proc/{path}").as_bytes()), "{path}");
        }
        for path in
            ["self/fd/4", "12/fd/4", "12/task/3/root/fd/1", "12/task/x/fd/1", "thread-self/fd"]
        {
            assert!(!is_handed_over(format!("/proc/{path}").as_bytes()), "{path}");
        }
        assert!(!is_handed_over(b"/run/skep/proc/thread-self/fd/4"));
    }

    #[test]
    fn only_what_lies_in_proc_is_looked_for_there() {
        let place = |path: &std::ffi::CStr| {
            // SAFETY: it ends with a nul byte.
            let [dir, at] = unsafe { place(path.as_ptr() as u64) };
            (dir as i32, at - path.as_ptr() as u64)
        };
        assert_eq!(place(c"/proc/self/maps"), (-100, 0));
        see_by(Some(7));
        assert_eq!(place(c"/proc/self/maps"), (7, 6));
        for other in [c"/proc", c"/process/self", c"proc/self", c"", c"/"] {
            assert_eq!(place(other), (-100, 0), "{other:?}");
        }
        see_by(None);
        assert_eq!(place(c"/proc/self/maps"), (-100, 0));
    }
}
