//! What can be told of another thread: whether it is there, and whether it gets on.

use std::mem::MaybeUninit;

use super::{is_closed, syscall};
use skep_sys::of_proc;

const ESRCH: i64 = -(skep_isa::errno::ESRCH as i64);

/// Tells whether no thread `tid` exists any more. A zombie still counts as existing; see
/// [`gone_or_zombie`].
pub(crate) fn gone(tid: u32) -> bool {
    // SAFETY: signal 0 only checks.
    tid != 0 && unsafe { syscall(200, [u64::from(tid), 0, 0, 0, 0, 0]) } == ESRCH
}

/// Tells whether thread `tid` of process `pid` is not there any more. A zombie still counts as
/// existing.
pub(crate) fn gone_from(pid: u32, tid: u32) -> bool {
    // SAFETY: signal 0 only checks.
    unsafe { syscall(234, [u64::from(pid), u64::from(tid), 0, 0, 0, 0]) == ESRCH }
}

/// Tells whether thread `tid` has ended, also when its parent has not yet taken note (state `Z` or
/// `X` in its stat file).
pub(crate) fn gone_or_zombie(tid: u32) -> bool {
    gone(tid) || zombie(tid)
}

/// Bytes on the stack that are not cleared first: the compiler would do that with vector registers.
struct Text<const N: usize> {
    bytes: [MaybeUninit<u8>; N],
    len: usize,
}

impl<const N: usize> Text<N> {
    fn new() -> Self {
        Self { bytes: [MaybeUninit::uninit(); N], len: 0 }
    }

    fn push(&mut self, b: u8) {
        if let Some(byte) = self.bytes.get_mut(self.len) {
            byte.write(b);
            self.len = self.len.wrapping_add(1);
        }
    }

    fn push_number(&mut self, v: u32) {
        let mut scale = 1_000_000_000u32;
        let mut begun = false;
        while scale > 0 {
            let digit = (v / scale) % 10;
            begun |= digit != 0 || scale == 1;
            if begun {
                self.push(b'0'.wrapping_add(digit as u8));
            }
            scale /= 10;
        }
    }

    fn get(&self, i: usize) -> u8 {
        // SAFETY: bytes below `len` were written, by `push` or by the kernel.
        if i < self.len { self.bytes.get(i).map_or(0, |b| unsafe { b.assume_init() }) } else { 0 }
    }
}

/// Reads the beginning of a file in `/proc/TID`, nothing when it cannot be read; `false` when the
/// thread is gone.
fn proc(tid: u32, file: &[u8], text: &mut Text<96>) -> bool {
    if is_closed() {
        return true;
    }
    let mut path = Text::<32>::new();
    b"/proc/".iter().for_each(|b| path.push(*b));
    path.push_number(tid);
    file.iter().for_each(|b| path.push(*b));
    path.push(0);
    // SAFETY: openat reads the terminated path; read writes at most 96 bytes of `text`; the
    // descriptor is ours.
    let got = unsafe {
        let [dir, path] = of_proc::place(path.bytes.as_ptr() as u64);
        let fd = syscall(257, [dir, path, 0o2_000_000, 0, 0, 0]);
        if fd < 0 {
            return !(fd == -2 && gone(tid));
        }
        let got = syscall(0, [fd as u64, text.bytes.as_mut_ptr() as u64, 96, 0, 0, 0]);
        syscall(3, [fd as u64, 0, 0, 0, 0, 0]);
        got
    };
    text.len = if got > 0 { got as usize } else { 0 };
    true
}

/// Finds the letter for a thread's state, 0 where it cannot be read.
fn state(tid: u32) -> u8 {
    let mut text = Text::new();
    if !proc(tid, b"/stat", &mut text) {
        return b'X';
    }
    // "TID (comm) S …": comm may hold anything, the last closing parenthesis ends it.
    let mut state = 0u8;
    let mut i = 0usize;
    while i < text.len {
        if text.get(i) == b')' {
            state = text.get(i.wrapping_add(2));
        }
        i = i.wrapping_add(1);
    }
    state
}

/// An unreadable file is no proof of death.
fn zombie(tid: u32) -> bool {
    matches!(state(tid), b'Z' | b'X')
}

/// Finds how many nanoseconds a thread had a processor.
fn ran(tid: u32) -> Option<u64> {
    let mut text = Text::new();
    if !proc(tid, b"/schedstat", &mut text) {
        return None;
    }
    let mut ran = 0u64;
    let mut i = 0usize;
    while text.get(i).is_ascii_digit() {
        ran = ran.wrapping_mul(10).wrapping_add(u64::from(text.get(i).wrapping_sub(b'0')));
        i = i.wrapping_add(1);
    }
    if i > 0 { Some(ran) } else { None }
}

/// Whether a thread that others wait for gets on.
#[derive(Default)]
pub(crate) struct Patience {
    /// How long the thread had run when it was first looked at.
    began: Option<u64>,
    /// How long it had run at the last look, and looks since at which that was so and it slept.
    last: u64,
    still: u32,
}

impl Patience {
    /// What a thread may run while others wait: far longer than anybody holds a lock.
    const RUN_NS: u64 = 1_000_000_000;
    /// Looks, a tenth of a millisecond or more apart, at a thread that sleeps all the time: who
    /// waits for another lock wakes once in a millisecond, who is frozen never does.
    const STILL: u32 = 64;
    /// As [`Patience::STILL`], when it may wait for a page.
    const STILL_FOR_PAGE: u32 = 1_000;

    /// Tells whether a thread is ready to run, or in a page fault, and has run too little to say
    /// that it does not get on.
    pub(crate) fn is_due(&mut self, tid: u32) -> bool {
        if !matches!(state(tid), b'R' | b'D') {
            return false;
        }
        let Some(ran) = ran(tid) else { return false };
        let began = *self.began.get_or_insert(ran);
        ran.wrapping_sub(began) < Self::RUN_NS
    }

    /// Tells, of a thread looked at again and again, whether it stands: stopped, traced or frozen.
    pub(crate) fn stands(&mut self, tid: u32) -> bool {
        let limit = match state(tid) {
            b'T' | b't' => return true,
            b'S' => Self::STILL,
            b'D' => Self::STILL_FOR_PAGE,
            _ => u32::MAX,
        };
        match ran(tid) {
            Some(ran) if ran == self.last && limit < u32::MAX => {
                self.still = self.still.wrapping_add(1)
            }
            ran => (self.last, self.still) = (ran.unwrap_or(u64::MAX), 0),
        }
        self.still >= limit
    }
}

/// Tells whether a thread is about to get on: it has a processor, or waits for one.
pub(crate) fn is_ready(tid: u32) -> bool {
    state(tid) == b'R'
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::{getpid, gettid};
    use super::*;

    /// Waits until a process is in a state.
    pub(in crate::shm) fn wait_for_state(pid: u32, letter: u8) {
        while state(pid) != letter {
            std::thread::yield_now();
        }
    }

    #[test]
    fn the_living_the_dead_and_the_unburied_are_told_apart() {
        assert!(!gone_or_zombie(gettid()));
        assert!(!gone_from(getpid(), gettid()));
        assert!(gone_from(1, gettid()), "thread of another process");
        let mut child = std::process::Command::new("true").spawn().expect("spawns");
        while !gone_or_zombie(child.id()) {
            std::thread::yield_now();
        }
        assert!(!gone(child.id()), "not yet waited for");
        child.wait().expect("waits");
        assert!(gone(child.id()));
    }

    #[test]
    fn who_is_ready_to_run_is_waited_for_until_it_has_run_long() {
        use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
        let (tid, over) = (AtomicU32::new(0), AtomicBool::new(false));
        std::thread::scope(|s| {
            let _over = skep_testkit::run::SetOnDrop(&over);
            s.spawn(|| {
                tid.store(gettid(), Relaxed);
                while !over.load(Relaxed) {
                    std::hint::spin_loop();
                }
            });
            while tid.load(Relaxed) == 0 {
                std::thread::yield_now();
            }
            let (mut patience, tid) = (Patience::default(), tid.load(Relaxed));
            let began = ran(tid).expect("readable");
            assert!(patience.is_due(tid));
            while patience.is_due(tid) {
                std::thread::yield_now();
            }
            assert!(ran(tid).expect("readable") - began >= Patience::RUN_NS);
        });
        let mut sleeper = std::process::Command::new("sleep").arg("100").spawn().expect("spawns");
        while state(sleeper.id()) != b'S' {
            std::thread::yield_now();
        }
        assert!(!Patience::default().is_due(sleeper.id()));
        sleeper.kill().expect("ours");
        sleeper.wait().expect("waits");
        assert!(!Patience::default().is_due(sleeper.id()));
    }
}
