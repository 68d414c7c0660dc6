//! Changing code that may be running.
//!
//! Five bytes that lie in one aligned word and hold one instruction are changed by one store:
//! whoever fetches them finds the old instruction or the new one, and nobody is in their middle. No
//! thread is halted and no breakpoint is set for that. It is how hooks are taken out while threads
//! run; a breakpoint would end a child of `vfork` that has no handler for it, or a thread that
//! blocks `SIGTRAP` for the moment, as the C library does around `posix_spawn`. AMD promises this
//! for aligned words (Architecture Programmer's Manual, volume 2, 7.6.1); on Intel's processors
//! just-in-time compilers have relied on it for decades.

use crate::skip::Skip;
use crate::spot::PATCH;
use crate::sys::{self, Fd};
use crate::{live, threads};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// One place to change.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    /// Address of the five bytes.
    pub(crate) at: u64,
    /// What must be there.
    pub(crate) old: [u8; PATCH],
    /// What shall be there.
    pub(crate) new: [u8; PATCH],
    /// Executable range around it.
    pub(crate) text: Range<u64>,
    /// What a thread does that reaches the place while it is being changed.
    pub(crate) head: Detour,
    /// For instructions of the old bytes after the first: where a thread goes on that is about to
    /// run it. 0: none begins there.
    pub(crate) inner: [u64; PATCH],
}

/// Where a thread is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Detour {
    /// It goes on there.
    Jump(u64),
    /// It goes on there as if called from the five bytes.
    Call(u64),
}

impl Change {
    /// Tells whether one store makes the change under running threads.
    pub(crate) fn is_one_store(&self) -> bool {
        in_one_word(self.at) && self.inner.iter().all(|to| *to == 0)
    }
}

/// Tells whether the five bytes at an address lie in one aligned word.
pub(crate) fn in_one_word(at: u64) -> bool {
    at % 8 + PATCH as u64 <= 8
}

/// Tells whether no other thread can run the code that is changed. A child of `clone(CLONE_VM)` is
/// in no list of threads.
pub(crate) fn is_alone() -> bool {
    threads::Tasks::open().is_ok_and(|t| t.is_one()) && sys::has_memory_alone()
}

/// Places closer than this share one window of writable memory.
const GAP: u64 = 1 << 18;
const PAGE: u64 = 4096;

/// Writable access to code, held while it is changed.
///
/// Usually a window: the pages stay executable, as other threads and this very code may need them,
/// and become writable for a moment. Where the kernel refuses that (SELinux,
/// `MemoryDenyWriteExecute`), every byte goes through `/proc/self/mem`.
#[derive(Debug)]
pub(crate) struct Window {
    opened: Vec<Range<u64>>,
    memory: Option<Fd>,
}

impl Window {
    /// Opens the pages around all changes, which are sorted by address.
    ///
    /// # Safety
    /// They lie in mapped code, which is readable and executable, and not writable.
    pub(crate) unsafe fn open(changes: &[Change]) -> Result<Self, Skip> {
        let mut out = Self { opened: Vec::new(), memory: None };
        let mut ranges: Vec<(Range<u64>, Range<u64>)> = Vec::new();
        for c in changes {
            let pages = c.at & !(PAGE - 1)..(c.at + PATCH as u64).next_multiple_of(PAGE);
            match ranges.last_mut() {
                Some((r, text)) if *text == c.text && pages.start <= r.end + GAP => {
                    r.end = r.end.max(pages.end)
                }
                _ => ranges.push((pages, c.text.clone())),
            }
        }
        for (r, _) in ranges {
            // SAFETY: the pages gain a right and lose none.
            match unsafe {
                sys::protect(
                    r.start,
                    r.end - r.start,
                    sys::PROT_READ | sys::PROT_WRITE | sys::PROT_EXEC,
                )
            } {
                Ok(()) => out.opened.push(r),
                Err(errno) => {
                    let file = Fd::open_rw(b"/proc/self/mem\0");
                    out.memory = Some(file.map_err(|_| Skip::Protected { errno: errno as i32 })?);
                    break;
                }
            }
        }
        Ok(out)
    }

    /// Writes bytes of code. Single bytes are written with one store.
    ///
    /// # Safety
    /// They lie in one of the changes that the window was opened for, and whoever runs into them
    /// can run them.
    pub(crate) unsafe fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Skip> {
        if let Some(memory) = &self.memory {
            let got = memory.write_at(bytes, at);
            return if got == bytes.len() as i64 {
                Ok(())
            } else {
                Err(Skip::Protected { errno: (-got).max(0) as i32 })
            };
        }
        for (i, b) in bytes.iter().enumerate() {
            // SAFETY: inside an opened window of mapped code, by the caller's promise.
            unsafe { ((at as usize + i) as *mut u8).write_volatile(*b) };
        }
        Ok(())
    }
}

impl Window {
    /// Makes a change that lies in one aligned word, for threads that run.
    ///
    /// # Safety
    /// As [`Window::write`].
    unsafe fn store(&self, change: &Change) -> Result<(), Skip> {
        if self.memory.is_some() {
            // The kernel does not say how it copies.
            return Err(Skip::Protected { errno: 0 });
        }
        let shift = 8 * (change.at % 8);
        let five = |bytes: [u8; PATCH]| {
            bytes.iter().rev().fold(0u64, |word, b| word << 8 | u64::from(*b)) << shift
        };
        let mask = ((1u64 << (8 * PATCH)) - 1) << shift;
        // SAFETY: an aligned word inside an opened window of mapped code. Readers are the
        // processors' instruction fetches.
        let word = unsafe { &*((change.at & !7) as *const AtomicU64) };
        let done = word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |now| {
            (now & mask == five(change.old)).then_some(now & !mask | five(change.new))
        });
        done.map(|_| ()).map_err(|_| Skip::Foreign)
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        for r in &self.opened {
            // SAFETY: gives the pages the protection that code has.
            let _ =
                unsafe { sys::protect(r.start, r.end - r.start, sys::PROT_READ | sys::PROT_EXEC) };
        }
    }
}

/// The bytes that are there now.
///
/// # Safety
/// `at` is the address of that many bytes of mapped code.
pub(crate) unsafe fn current(at: u64) -> [u8; PATCH] {
    let mut out = [0; PATCH];
    for (i, o) in out.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        *o = unsafe { ((at as usize + i) as *const u8).read_volatile() };
    }
    out
}

/// The executable mappings of the process, sorted, merged where they touch.
pub(crate) fn executable() -> Vec<Range<u64>> {
    let maps = std::fs::read_to_string("/proc/thread-self/maps").unwrap_or_default();
    let mut out: Vec<Range<u64>> = Vec::new();
    for line in maps.lines() {
        let Some((range, rest)) = line.split_once(' ') else { continue };
        let Some((start, end)) = range.split_once('-') else { continue };
        let (Ok(start), Ok(end)) = (u64::from_str_radix(start, 16), u64::from_str_radix(end, 16))
        else {
            continue;
        };
        if rest.get(2..3) != Some("x") || start >= 1 << 63 {
            continue;
        }
        match out.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => out.push(start..end),
        }
    }
    out
}

/// Makes all changes, and tells for each whether it was made. `changes` are sorted by address.
///
/// # Safety
/// Each lies in mapped code; what shall be there is code that does what was there before, wherever
/// it is entered, and the places where a thread goes on that is in the middle of it are those of
/// the instructions it was about to run. The caller has the engine's lock.
pub(crate) unsafe fn apply(
    changes: &[Change],
    left: &mut live::Leftovers,
) -> Vec<Result<(), Skip>> {
    if changes.is_empty() {
        return Vec::new();
    }
    // SAFETY: the caller's promise.
    let window = match unsafe { Window::open(changes) } {
        Ok(w) => w,
        Err(skip) => return vec![Err(skip); changes.len()],
    };
    let one = threads::Tasks::open().is_ok_and(|t| t.is_one());
    if one && sys::has_memory_alone() {
        // SAFETY: the caller's promise.
        return unsafe { quiet(&window, changes) };
    }
    // SAFETY: the caller's promise.
    let store = |c: &Change| if c.is_one_store() { unsafe { window.store(c) } } else { Ok(()) };
    let mut results: Vec<Result<(), Skip>> = changes.iter().map(store).collect();
    let _ = sys::membarrier(sys::Barrier::SyncCore);
    let rest: Vec<Change> = changes.iter().filter(|c| !c.is_one_store()).cloned().collect();
    if one {
        // Nobody can halt a child that runs in this memory.
        let of_rest = results.iter_mut().zip(changes).filter(|(_, c)| !c.is_one_store());
        of_rest.for_each(|(result, _)| *result = Err(Skip::Busy { tid: 0 }));
    } else if !rest.is_empty() {
        let of_rest = results.iter_mut().zip(changes).filter(|(_, c)| !c.is_one_store());
        // SAFETY: the caller's promise.
        let done = unsafe { live::apply(&window, &rest, left) };
        for ((result, _), done) in of_rest.zip(done) {
            *result = done;
        }
    }
    results
}

/// The way of a process with one thread: nobody but its signal handlers can be running the bytes.
///
/// # Safety
/// As [`apply`], and the window is open for these changes.
unsafe fn quiet(window: &Window, changes: &[Change]) -> Vec<Result<(), Skip>> {
    let mask = sys::block_signals();
    // SAFETY: the caller's promise.
    let one = |c: &Change| unsafe {
        if current(c.at) == c.old { window.write(c.at, &c.new) } else { Err(Skip::Foreign) }
    };
    let results = changes.iter().map(one).collect();
    sys::set_signal_mask(mask);
    results
}
