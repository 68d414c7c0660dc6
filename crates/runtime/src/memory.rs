//! When the memory of a mapped file is gone: the traced program must not die of it.
//!
//! Maps are sparse files, so on a full file system the first touch of a page can fail; and a file
//! can be cut off while it is mapped. The kernel says so with `SIGBUS`. The handler puts ordinary
//! memory in place of the page, wherever it is in an object: among values, in a header, in the slot
//! table. What is counted there is lost to readers; that it happened is in the link's control map
//! ([`control::LOST_PAGES`]).
//!
//! A thread that blocks `SIGBUS` is killed by the kernel before any handler. So when a program
//! blocks it, only the engine takes note, and the kernel still delivers it (`signals::Mask`, in
//! `skep_attach`); the same holds for a new thread, which begins with all signals blocked. Where
//! the C library blocks it by itself, the first event lets it through (`blocked`). A thread that
//! blocks it in another way, by a system call of its own, and is the first to find that memory is
//! gone, dies. So the first page without memory stands for all values of per-CPU maps: what has
//! none there is replaced at once (`sweep`).

use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

use skep_maps::Map;

use crate::seccomp;
use skep_store::link::control;
use skep_sys::syscall::{GETTID, MINCORE, MMAP, PROCESS_VM_READV, call6};

const PAGE: u64 = 4096;

/// The word of the last link that pages are counted in; null: they are not counted.
static LOST: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());
/// Handlers that may be about to count.
static REPAIRS: AtomicU64 = AtomicU64::new(0);

/// Guards the memory of all objects that this process has open, or opens later: in a target, or in
/// a reader, which touches holes too.
pub fn guard() {
    // Refused: the missing page ends the program as it would without this.
    // SAFETY: `repair` makes system calls and reads lists that are never freed, as a signal handler
    // may; it says that there is memory only when it has put some there.
    let _ = unsafe { skep_attach::signals::on_memory_full(repair) };
}

/// Counts pages without memory in a link's control map, as long as this value lives and no newer one
/// does.
#[derive(Debug)]
pub(crate) struct Counting {
    control_map: Arc<Map>,
}

impl Counting {
    /// Begins to count there.
    pub(crate) fn new(control_map: Arc<Map>) -> Self {
        let this = Self { control_map };
        LOST.store(this.word(), SeqCst);
        this
    }

    /// Counts there if it is counted nowhere.
    pub(crate) fn resume(&self) {
        let _ = LOST.compare_exchange(std::ptr::null_mut(), self.word(), SeqCst, Relaxed);
    }

    fn word(&self) -> *mut AtomicU64 {
        std::ptr::from_ref(control::word(&self.control_map, control::LOST_PAGES)).cast_mut()
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        let _ = LOST.compare_exchange(self.word(), std::ptr::null_mut(), SeqCst, Relaxed);
        // A handler that runs now may have found the word; one that begins later does not.
        if REPAIRS.load(SeqCst) != 0 {
            std::mem::forget(Arc::clone(&self.control_map));
        }
    }
}

/// Puts memory where an object has none. Runs in a signal handler.
///
/// # Safety
/// The kernel has just said that there is none at `addr`: what is in its page is gone.
unsafe fn repair(addr: u64) -> bool {
    if !skep_maps::is_mapped(addr) {
        return false;
    }
    let page = addr & !(PAGE - 1);
    // SAFETY: what is in the page is gone.
    if !unsafe { replace(page, PAGE) } {
        return false;
    }
    skep_maps::note_replaced();
    let mut pages = 1;
    if seccomp::may_sweep() {
        // SAFETY: columns of ours.
        skep_maps::for_each_column(|start, end| pages += unsafe { sweep(start, end) });
    }
    REPAIRS.fetch_add(1, SeqCst);
    let lost = LOST.load(SeqCst);
    // Its page may be gone as well, and a fault in here would be the end.
    if is_readable(lost as u64) {
        // SAFETY: a word of a map that is not unmapped while `REPAIRS` counts this.
        unsafe { (*lost).fetch_add(pages, Relaxed) };
    }
    REPAIRS.fetch_sub(1, SeqCst);
    true
}

/// Puts empty memory of this process alone in the place of a part of an object.
///
/// # Safety
/// Nothing that is there is needed.
unsafe fn replace(start: u64, len: u64) -> bool {
    const READ_WRITE: u64 = 3;
    const PRIVATE_FIXED_ANONYMOUS: u64 = 0x2 | 0x10 | 0x20;
    // SAFETY: as the caller promises.
    unsafe { call6(MMAP, start, len, READ_WRITE, PRIVATE_FIXED_ANONYMOUS, u64::MAX, 0) == start }
}

/// Replaces all pages of a mapping that have no memory, once for each mapping; returns how many.
///
/// If a page gets memory from the file system after the kernel was asked about it, what is counted
/// there in between is lost.
///
/// # Safety
/// The mapping is a thread's part of a per-CPU map. (Other maps have pages that depend on each
/// other, and one that the kernel has swapped out looks like one without memory.)
unsafe fn sweep(start: u64, end: u64) -> u64 {
    /// Mappings that were swept. When there are more, some are swept again: that costs time.
    static SWEPT: [AtomicU64; 256] = [const { AtomicU64::new(0) }; 256];
    /// Pages that are asked about at once: handlers run on small stacks.
    const STEP: u64 = 256;
    /// Parts that are replaced, at most: each takes one of the process's mappings, of which there
    /// are 65,530.
    const PARTS: u32 = 4096;
    let place = &SWEPT[(start >> 12) as usize % SWEPT.len()];
    if place.swap(start, Relaxed) == start {
        return 0;
    }
    let (mut at, mut parts, mut pages) = (start, 0, 0);
    while at < end && parts < PARTS {
        let mut resident = MaybeUninit::<[u8; STEP as usize]>::uninit();
        let len = (end - at).min(STEP * PAGE);
        // SAFETY: the kernel writes a byte for each page, of which there are at most `STEP`.
        if unsafe { call6(MINCORE, at, len, resident.as_mut_ptr() as u64, 0, 0, 0) } != 0 {
            break;
        }
        let is_resident = |page: u64| {
            // SAFETY: one of those bytes.
            unsafe { resident.as_ptr().cast::<u8>().add(page as usize).read() & 1 != 0 }
        };
        let (mut page, count) = (0, len.div_ceil(PAGE));
        while page < count {
            let first = page;
            while page < count && !is_resident(page) {
                page += 1;
            }
            // SAFETY: there is no memory, and so nothing.
            if page > first && unsafe { replace(at + first * PAGE, (page - first) * PAGE) } {
                parts += 1;
                pages += page - first;
            }
            page += 1;
        }
        at += len;
    }
    pages
}

/// Tells whether there is a word at `addr`, as the kernel sees it.
fn is_readable(addr: u64) -> bool {
    let mut word = 0_u64;
    let (local, remote) = ([&raw mut word as u64, 8], [addr, 8]);
    // SAFETY: writes to `word` at most; the kernel checks `addr`.
    unsafe {
        call6(
            PROCESS_VM_READV,
            // The main thread may have exited, and has no memory then.
            call6(GETTID, 0, 0, 0, 0, 0, 0),
            local.as_ptr() as u64,
            1,
            remote.as_ptr() as u64,
            1,
            0,
        ) == 8
    }
}
