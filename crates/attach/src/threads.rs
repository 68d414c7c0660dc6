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

    /// Tells whether the process has one thread only.
    pub(crate) fn is_one(&self) -> bool {
        let mut n = 0;
        self.each(|_| n += 1);
        n == 1
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

/// `running`, or `NR ARGS… SP PC`, or `-1 SP PC` when it was stopped elsewhere than in a system
/// call.
fn parse(text: &[u8]) -> State {
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

/// How far up a stack saved contexts are looked for, in pages.
const PAGES: usize = 64;
/// How many stacks are looked at for one thread: its own, that of signals, those of coroutines.
const STACKS: usize = 8;
const PAGE: u64 = 4096;

/// Room for a part of a stack.
#[derive(Debug)]
pub(crate) struct Copy {
    words: Vec<u64>,
    remote: Vec<[u64; 2]>,
}

impl Copy {
    pub(crate) fn new() -> Self {
        Self { words: vec![0; PAGES * PAGE as usize / 8], remote: vec![[0; 2]; PAGES] }
    }

    /// Changes saved contexts on a stack, from `stack` upwards: a thread that is in a signal
    /// handler goes back to where `twin` says. A context is known by its instruction pointer
    /// being one that `twin` knows, with the code segment two words above it.
    ///
    /// A handler may run on a stack of its own, above all our own one: contexts say which stack
    /// they interrupted, so that one is looked at next.
    ///
    /// Memory is read by the kernel, as nothing is known about how far the stack goes, or whether
    /// it still is there. `put` writes a word to an address of the stack.
    pub(crate) fn redirect(
        &mut self,
        stack: u64,
        twin: impl Fn(u64) -> Option<u64>,
        put: impl Fn(u64, u64),
    ) {
        let mut seen = [(0, 0); STACKS];
        let mut next = [stack; STACKS];
        let mut found = 1;
        let mut done = 0;
        while let (Some(&stack), Some(range)) =
            (next.get(done).filter(|_| done < found), seen.get_mut(done))
        {
            *range = self.redirect_on(stack, &twin, &put, &mut |other| {
                if let Some(place) = next.get_mut(found) {
                    *place = other;
                    found += 1;
                }
            });
            done += 1;
            // What lies on a stack that was looked at needs no second look.
            while next
                .get(done)
                .filter(|_| done < found)
                .is_some_and(|n| seen.iter().any(|(from, to)| from <= n && n < to))
            {
                next.copy_within(done + 1.., done);
                found -= 1;
            }
        }
    }

    /// The same for one stack. Tells where it began and ended, and calls `other` with the stacks
    /// that contexts on it belong to.
    fn redirect_on(
        &mut self,
        stack: u64,
        twin: &impl Fn(u64) -> Option<u64>,
        put: &impl Fn(u64, u64),
        other: &mut impl FnMut(u64),
    ) -> (u64, u64) {
        const CODE_SEGMENT: u64 = 0x33;
        // Bits of the flags register: one is always set, and there are none so high.
        const FLAGS_SET: u64 = 2;
        const FLAGS_END: u64 = 1 << 22;
        let start = stack & !7;
        let mut at = start;
        for r in &mut self.remote {
            // A page each: what is copied ends where a page is missing.
            let end = (at & !(PAGE - 1)).wrapping_add(PAGE);
            *r = [at, end.wrapping_sub(at)];
            at = end;
        }
        let got = crate::sys::copy_in(&mut self.words, &self.remote);
        let words = self.words.get(..usize::try_from(got).unwrap_or(0) / 8).unwrap_or_default();
        let end = start.wrapping_add(8 * words.len() as u64);
        for (i, context) in words.windows(3).enumerate() {
            let [rip, flags, cs] = *context else { continue };
            if cs & 0xffff != CODE_SEGMENT {
                continue;
            }
            if let Some(to) = twin(rip) {
                put(start + 8 * i as u64, to);
            }
            let rsp = i.checked_sub(1).and_then(|i| words.get(i)).copied().unwrap_or(start);
            if flags & FLAGS_SET != 0 && flags < FLAGS_END && !(start..end).contains(&rsp) {
                other(rsp);
            }
        }
        (start, end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_as_the_kernel_writes_them() {
        assert_eq!(parse(b"running\n"), State::Running);
        assert_eq!(parse(b"-1 0x7ffd0 0x401000\n"), State::Running);
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

    /// Writes into the vectors that the tests take for stacks.
    fn write(at: u64, word: u64) {
        // SAFETY: the tests have words there that nobody else uses.
        unsafe { crate::sys::copy_out(at, &word) };
    }

    #[test]
    fn saved_contexts_are_redirected() {
        let mut stack = vec![0u64; 20_000];
        for (n, cs) in [(10, 0x33), (600, 0x002b_0000_0000_0033), (700, 0), (19_990, 0x33)] {
            stack[n] = 0x1234_5678;
            stack[n + 2] = cs;
        }
        let twin = |at: u64| (at == 0x1234_5678).then_some(77);
        Copy::new().redirect(stack.as_ptr() as u64 + 8, twin, write);
        assert_eq!((stack[10], stack[600], stack[700], stack[19_990]), (77, 77, 0x1234_5678, 77));
        // Not mapped: nothing happens.
        Copy::new().redirect(4096, twin, write);
    }

    /// Our own handler runs on the alternate stack if there is one, and interrupts handlers that do
    /// not.
    #[test]
    fn contexts_on_the_stack_that_was_interrupted_are_redirected_too() {
        let mut own = vec![0u64; 2000];
        let mut alternate = vec![0u64; 2000];
        let mut third = vec![0u64; 2000];
        let put = |stack: &mut [u64], n: usize, rsp: u64, rip: u64| {
            stack[n..n + 4].copy_from_slice(&[rsp, rip, 0x202, 0x33])
        };
        let (own_at, alternate_at, third_at) =
            (own.as_ptr() as u64, alternate.as_ptr() as u64, third.as_ptr() as u64);
        put(&mut alternate, 50, own_at + 800, 1);
        // Back and forth must come to an end.
        put(&mut own, 200, alternate_at + 8, 0x1234_5678);
        put(&mut own, 300, third_at, 1);
        put(&mut third, 20, own_at, 0x1234_5678);
        Copy::new().redirect(alternate_at + 16, |at| (at == 0x1234_5678).then_some(77), write);
        assert_eq!((alternate[51], own[201], own[301], third[21]), (1, 77, 1, 77));
    }
}
