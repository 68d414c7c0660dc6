//! The threads of the process, seen through `/proc/self/task`, without allocating.

use crate::sys::Fd;

/// The list of threads.
#[derive(Debug)]
pub(crate) struct Tasks(Fd);

/// What a thread is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// It has ended.
    Gone,
    /// It runs, or may do so at any time.
    Running,
    /// It sleeps in a system call.
    Asleep {
        /// Its stack pointer.
        stack: u64,
        /// Where it goes on.
        rip: u64,
    },
}

impl Tasks {
    pub(crate) fn open() -> Result<Self, i64> {
        Fd::open(b"/proc/self/task\0").map(Self)
    }

    /// Calls `f` with each thread's id.
    pub(crate) fn each(&self, mut f: impl FnMut(u32)) {
        self.0.rewind();
        let mut buffer = [0u8; 2048];
        loop {
            let got = self.0.entries(&mut buffer);
            let Ok(got) = usize::try_from(got) else { return };
            if got == 0 {
                return;
            }
            let mut rest = buffer.get(..got).unwrap_or_default();
            // linux_dirent64: inode, offset (8 each), length (2), type (1), name.
            while let (Some(&low), Some(&high)) = (rest.get(16), rest.get(17)) {
                let len = usize::from(u16::from_le_bytes([low, high]));
                let name = rest.get(19..len).unwrap_or_default();
                if let Some(tid) = number(name, 10).filter(|t| *t != 0) {
                    f(tid as u32);
                }
                rest = rest.get(len.max(19)..).unwrap_or_default();
            }
        }
    }

    /// Counts the threads.
    pub(crate) fn count(&self) -> usize {
        let mut n = 0;
        self.each(|_| n += 1);
        n
    }

    /// Tells whether the process has one thread only.
    pub(crate) fn is_one(&self) -> bool {
        self.count() == 1
    }
}

/// Reads the digits at the start of `text`; `None` when there are none.
fn number(text: &[u8], base: u32) -> Option<u64> {
    let digits = text.iter().map_while(|b| char::from(*b).to_digit(base));
    let mut any = false;
    let value = digits.fold(0u64, |n, d| {
        any = true;
        n.wrapping_mul(u64::from(base)).wrapping_add(u64::from(d))
    });
    any.then_some(value)
}

/// Asks what a thread is doing.
pub(crate) fn state(tid: u32) -> State {
    let path = path(tid, b"/syscall");
    let mut text = [0u8; 256];
    let got = match Fd::open(&path) {
        Ok(fd) => fd.read(&mut text),
        Err(_) => {
            return if crate::sys::tgkill(tid, 0) == -crate::sys::ESRCH {
                State::Gone
            } else {
                State::Running
            };
        }
    };
    let Ok(got) = usize::try_from(got) else { return State::Gone };
    parse(text.get(..got).unwrap_or_default())
}

/// `/proc/self/task/TID` and what follows.
fn path(tid: u32, rest: &[u8]) -> [u8; 35] {
    let mut path = *b"/proc/self/task/\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
    let mut digits = [0u8; 10];
    let mut n = 0;
    let mut left = tid;
    while let Some(d) = digits.get_mut(n) {
        *d = b'0' + (left % 10) as u8;
        left /= 10;
        n += 1;
        if left == 0 {
            break;
        }
    }
    let number = digits.iter().take(n).rev();
    for (p, b) in path.iter_mut().skip(16).zip(number.chain(rest)) {
        *p = *b;
    }
    path
}

/// `running`, or `NR ARGS… SP PC`, or `-1 SP PC` when it was stopped outside of a system
/// call. Without any stack it is the main thread, which stays in the list when it has exited before others.
fn parse(text: &[u8]) -> State {
    if text == b"-1 0x0 0x0\n" {
        return State::Gone;
    }
    if text.first().is_none_or(|b| !b.is_ascii_digit()) {
        return State::Running;
    }
    let mut words = text.split(|b| *b == b' ' || *b == b'\n').filter(|w| !w.is_empty()).rev();
    let hex = |w: Option<&[u8]>| w.and_then(|w| number(w.strip_prefix(b"0x")?, 16));
    // Of these, the parent of a child that shares its memory waits for it in one: no list of
    // threads has the child.
    const MAKES_CHILDREN: [u64; 3] = [56, 58, 435];
    match (hex(words.next()), hex(words.next()), number(text, 10)) {
        (_, _, Some(call)) if MAKES_CHILDREN.contains(&call) => State::Running,
        (Some(rip), Some(stack), _) => State::Asleep { stack, rip },
        _ => State::Running,
    }
}

/// Tells whether a thread blocks `SIGTRAP`: a breakpoint would end the process.
pub(crate) fn blocks_traps(tid: u32) -> bool {
    // The line stands behind the names, ids and sizes of the process.
    let mut text = [0u8; 4096];
    let got = Fd::open(&path(tid, b"/status")).map_or(0, |fd| fd.read(&mut text));
    let text = text.get(..usize::try_from(got).unwrap_or(0)).unwrap_or_default();
    let line = text.split(|b| *b == b'\n').find_map(|l| l.strip_prefix(b"SigBlk:\t"));
    line.and_then(|l| number(l, 16)).is_some_and(|mask| mask & 1 << 4 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_as_the_kernel_writes_them() {
        assert_eq!(parse(b"running\n"), State::Running);
        assert_eq!(parse(b"-1 0x7ffd0 0x401000\n"), State::Running);
        assert_eq!(parse(b"-1 0x0 0x0\n"), State::Gone);
        let text = b"202 0x1 0x80 0x0 0x0 0x0 0x0 0x7f0012345678 0x7f0087654321\n";
        assert_eq!(parse(text), State::Asleep { stack: 0x7f00_1234_5678, rip: 0x7f00_8765_4321 });
        assert_eq!(
            parse(b"58 0x1 0x80 0x0 0x0 0x0 0x0 0x7f0012345678 0x7f0087654321\n"),
            State::Running
        );
        assert_eq!(parse(b""), State::Running);
        assert_eq!(parse(b"7\n"), State::Running);
    }

    #[test]
    fn a_sleeping_thread_is_asleep_and_this_one_runs() {
        let (tell, told) = std::sync::mpsc::channel();
        let (wake, woken) = std::sync::mpsc::channel::<()>();
        let sleeper = std::thread::spawn(move || {
            tell.send(crate::sys::gettid()).expect("receiver");
            let _ = woken.recv();
        });
        let tid = told.recv().expect("sender");
        while !matches!(state(tid), State::Asleep { .. }) {
            std::thread::yield_now();
        }
        let mut all = Vec::new();
        Tasks::open().expect("task list").each(|t| all.push(t));
        assert!(all.contains(&tid) && all.contains(&crate::sys::gettid()));
        assert!(!blocks_traps(tid));
        let me = crate::sys::gettid();
        let mask = crate::sys::block_signals();
        assert!(!blocks_traps(me), "signals of faults are not blocked");
        crate::sys::set_signal_mask(u64::MAX);
        assert!(blocks_traps(me));
        crate::sys::set_signal_mask(mask);
        drop(wake);
        sleeper.join().expect("sleeper");
    }
}
