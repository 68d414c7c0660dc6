//! Which process it is: ids are used again, start times are not.

use crate::file;

/// Which process, of which boot, is meant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Process id.
    pub pid: u32,
    /// Start time in clock ticks since boot: tells processes apart that used the same id.
    pub start_time: u64,
    /// The kernel's boot id.
    pub boot_id: [u8; 16],
}

impl Identity {
    /// Reads the identity of a live process; what cannot be read stays 0.
    pub fn of(pid: u32) -> Self {
        let start_time = Stat::of(pid).map_or(0, |stat| stat.start_time);
        let mut boot_id = [0; 16];
        let text = file::read("/proc/sys/kernel/random/boot_id", 64).unwrap_or_default();
        let digits: Vec<u32> = text.iter().filter_map(|&b| char::from(b).to_digit(16)).collect();
        for (byte, pair) in boot_id.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = pair.iter().fold(0, |n, d| n << 4 | *d as u8);
        }
        Self { pid, start_time, boot_id }
    }
}

/// What `/proc/PID/stat` says of a process and of its address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    /// Field 22.
    pub(crate) start_time: u64,
    /// Ended, but not reaped by its parent; or about to end, with its address space given up.
    pub(crate) zombie: bool,
    /// It has no address space of its own.
    pub(crate) kernel_thread: bool,
    /// Where code, data and stack of the program begin (fields 26 to 28, 45 and 48): `exec` changes
    /// them. 0 to those who may not read the process's memory.
    pub(crate) layout: [u64; 5],
}

impl Stat {
    pub(crate) fn of(pid: u32) -> Option<Self> {
        Self::parse(&file::read(format!("/proc/{pid}/stat"), 1 << 16).ok()?)
    }

    fn parse(text: &[u8]) -> Option<Self> {
        // The command in parentheses, the second field, may contain anything.
        let after = text.iter().rposition(|&b| b == b')').and_then(|at| text.get(at + 2..))?;
        let fields: Vec<&str> = str::from_utf8(after).ok()?.split_ascii_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        let layout = [26, 27, 28, 45, 48].map(|number| field(number).unwrap_or(0));
        let flags = field(9)?;
        Some(Self {
            start_time: field(22)?,
            zombie: matches!(fields.first(), Some(&("Z" | "X" | "x"))) || flags & PF_EXITING != 0,
            kernel_thread: flags & PF_KTHREAD != 0,
            layout,
        })
    }
}

/// Finds the thread whose entry in `/proc` shows a process's address space, files and root: the main
/// thread, or another one if that has ended and others go on. `/proc` has an entry for each thread, though
/// it does not list them.
///
/// ```
/// let pid = std::process::id();
/// assert_eq!(skep_proc::maps::entry_of(pid), pid);
/// ```
#[must_use]
pub fn entry_of(pid: u32) -> u32 {
    let has_ended = |tid| Stat::of(tid).is_none_or(|stat| stat.zombie);
    if !has_ended(pid) {
        return pid;
    }
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut threads = threads.filter_map(|thread| thread.file_name().to_str()?.parse().ok());
    threads.find(|tid| *tid != pid && !has_ended(*tid)).unwrap_or(pid)
}

/// Flags of tasks (`include/linux/sched.h`).
const PF_EXITING: u64 = 0x4;
const PF_KTHREAD: u64 = 0x0020_0000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_with_parentheses_moves_no_field() {
        let numbers: Vec<String> = (4..=52).map(|n| n.to_string()).collect();
        let text = |state| format!("7 (a) R 1 (b)) {state} {}\n", numbers.join(" "));
        let stat = Stat::parse(text("Z").as_bytes()).expect("a line of the kernel's form");
        assert_eq!((stat.start_time, stat.zombie, stat.kernel_thread), (22, true, false));
        // Field 9 is 9, which has not the bit of those that exit.
        assert!(!Stat::parse(text("R").as_bytes()).expect("another").zombie);
        assert_eq!(stat.layout, [26, 27, 28, 45, 48]);
        assert_eq!(Stat::parse(b"7 (a"), None);
    }
}
