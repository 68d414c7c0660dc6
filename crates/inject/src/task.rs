//! What `/proc` says of a process and its threads.

use std::time::{Duration, Instant};

use skep_proc::file;

/// Longer than any of these files.
const LIMIT: usize = 1 << 16;

/// `PF_IO_WORKER` and `PF_USER_WORKER`: threads that the kernel made for itself inside the process.
const WORKER: u64 = 0x10 | 0x4000;
/// `PF_KTHREAD`.
const KERNEL: u64 = 0x0020_0000;

/// A thread, as `/proc/PID/task/TID/stat` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    /// `R`, `S`, `D`, `t`, `Z`…
    pub(crate) state: char,
    flags: u64,
}

impl Stat {
    /// Tells whether the thread never executes code of the program (again).
    pub(crate) fn is_not_of_program(&self) -> bool {
        self.is_dead() || self.flags & WORKER != 0
    }

    pub(crate) fn is_dead(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x')
    }

    pub(crate) fn is_kernel_thread(&self) -> bool {
        self.flags & KERNEL != 0
    }
}

fn text(path: String) -> Option<String> {
    Some(String::from_utf8_lossy(&file::read(path, LIMIT).ok()?).into_owned())
}

/// A thread's state, if it is there.
pub(crate) fn stat(pid: u32, tid: u32) -> Option<Stat> {
    parse_stat(&text(format!("/proc/{pid}/task/{tid}/stat"))?)
}

fn parse_stat(text: &str) -> Option<Stat> {
    // The name, in parentheses, may hold anything.
    let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    // ppid, pgrp, session, tty, tpgid, then the flags.
    let flags = fields.nth(5)?.parse().ok()?;
    Some(Stat { state, flags })
}

/// The text of `/proc/PID/task/TID/status`.
#[derive(Debug)]
pub(crate) struct Status(String);

impl Status {
    pub(crate) fn of(pid: u32, tid: u32) -> Option<Self> {
        text(format!("/proc/{pid}/task/{tid}/status")).map(Self)
    }

    fn field(&self, name: &str) -> Option<&str> {
        self.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    }

    pub(crate) fn number(&self, name: &str) -> Option<u32> {
        self.field(name)?.split_ascii_whitespace().next()?.parse().ok()
    }

    /// The last of several numbers: of ids, that in the innermost namespace.
    pub(crate) fn last_number(&self, name: &str) -> Option<u32> {
        self.field(name)?.split_ascii_whitespace().last()?.parse().ok()
    }

    fn set(&self, name: &str) -> Option<u64> {
        u64::from_str_radix(self.field(name)?, 16).ok()
    }

    /// Tells whether the thread is under seccomp.
    pub(crate) fn is_filtered(&self) -> bool {
        self.number("Seccomp").is_some_and(|mode| mode != 0)
    }

    /// Tells whether a signal does nothing to the process, which ignores it or has no handler.
    pub(crate) fn does_nothing(&self, signal: u8) -> bool {
        let ignored = || {
            let by_default = NOTHING_BY_DEFAULT & !self.set("SigCgt")?;
            Some((self.set("SigIgn")? | by_default) & bit(signal.into()) != 0)
        };
        signal != 0 && ignored().unwrap_or(false)
    }

    /// Tells whether a signal waits that has an effect when the thread goes on: it is not blocked,
    /// not ignored, and not one that does nothing unless it has a handler.
    pub(crate) fn has_pending_signal(&self) -> bool {
        let set = |name| self.set(name);
        let effective = || {
            let waits = (set("SigPnd")? | set("ShdPnd")?) & !set("SigBlk")? & !set("SigIgn")?;
            Some(waits & (!NOTHING_BY_DEFAULT | set("SigCgt")?))
        };
        effective() != Some(0)
    }
}

/// Signals that do nothing without a handler, when they are delivered.
const NOTHING_BY_DEFAULT: u64 =
    bit(libc::SIGCHLD) | bit(libc::SIGURG) | bit(libc::SIGWINCH) | bit(libc::SIGCONT);

const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// The name that a process gave itself.
pub(crate) fn name(pid: u32) -> String {
    text(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned()
}

/// The ids of all threads, in order; `None` if the process is gone. The list may lack threads when
/// others end while it is read.
pub(crate) fn threads(pid: u32) -> Option<Vec<u32>> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let mut ids: Vec<u32> =
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    ids.sort_unstable();
    Some(ids)
}

/// Waits until a thread of this process that ends is gone.
pub(crate) fn wait_for_end(tid: u32) {
    /// It takes microseconds. By then another thread might have its id.
    const LONGEST: Duration = Duration::from_secs(1);
    let end = Instant::now() + LONGEST;
    let own = std::process::id();
    while Instant::now() < end && stat(own, tid).is_some() {
        std::thread::yield_now();
    }
}

/// The children of a thread, where the kernel lists them.
pub(crate) fn children(pid: u32, tid: u32) -> Vec<u32> {
    let list = text(format!("/proc/{pid}/task/{tid}/children")).unwrap_or_default();
    list.split_ascii_whitespace().filter_map(|id| id.parse().ok()).collect()
}

/// `/proc/sys/kernel/yama/ptrace_scope`, where there is Yama.
pub(crate) fn ptrace_scope() -> Option<u32> {
    text("/proc/sys/kernel/yama/ptrace_scope".to_owned())?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_look_like_fields() {
        let stat = parse_stat("7 (a) R (b)) Z 1 7 7 0 -1 4194560 1 2 3").unwrap();
        assert!(stat.is_dead() && !stat.is_kernel_thread());
        let worker = parse_stat("8 (iou-wrk-7) S 1 7 7 0 -1 4194624 0 0").unwrap();
        assert!(!worker.is_not_of_program());
        let worker = parse_stat("8 (iou-wrk-7) S 1 7 7 0 -1 16400 0 0").unwrap();
        assert!(worker.is_not_of_program());
        assert_eq!(parse_stat("8 (x"), None);
        assert_eq!(parse_stat(""), None);
    }

    #[test]
    fn only_signals_with_an_effect_count() {
        let waits = |own, shared, blocked, ignored, caught| {
            let names = ["SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt"];
            let sets: [u64; 5] = [own, shared, blocked, ignored, caught];
            let lines = names.iter().zip(sets).map(|(name, set)| format!("{name}:\t{set:016x}\n"));
            Status(lines.collect()).has_pending_signal()
        };
        assert!(!waits(0, 0, 0, 0, 0));
        assert!(!waits(4, 8, 12, 0, 0));
        assert!(waits(4, 8, 4, 0, 0));
        assert!(!waits(4, 8, 4, 8, 0));
        // `SIGCHLD`.
        assert!(!waits(0, 1 << 16, 0, 0, 0));
        assert!(waits(0, 1 << 16, 0, 0, 1 << 16));
        assert!(Status(String::new()).has_pending_signal());
    }
}
