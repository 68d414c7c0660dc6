//! When the file system under a map is full: the traced program must not die of it.
//!
//! Maps are sparse files, so the first touch of a page can fail, and the kernel says so with `SIGBUS`. The handler puts
//! ordinary memory in place of the page. What is counted there is lost to readers; that it happened is in the link's control
//! map ([`control::LOST_PAGES`]).

use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use skep_maps::Map;

use crate::link::control;
use crate::run::control_word;
use crate::syscall::{MMAP, call6};

const PAGE: u64 = 4096;
const MAX_MAPS: usize = 256;

struct Range {
    start: AtomicU64,
    end: AtomicU64,
}

static RANGES: [Range; MAX_MAPS] = [const { Range { start: AtomicU64::new(0), end: AtomicU64::new(0) } }; MAX_MAPS];
static USED: AtomicUsize = AtomicUsize::new(0);
/// Where to count; of the last link.
static LOST: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());

/// Guards a map's memory from now on, in a target or a reader (who touches holes too). More than 256 maps in one process: the rest
/// are not guarded. The map may be closed: what comes to lie there later is guarded with it.
pub fn guard(map: &Map) {
    // Refused: a full file system ends the program as it would without this.
    let _ = skep_attach::signals::on_memory_full(repair);
    let window = map.file().payload();
    if let Some(range) = RANGES.get(USED.load(Relaxed)) {
        range.start.store(window.base(), Relaxed);
        range.end.store(window.base() + window.len(), Relaxed);
        USED.fetch_add(1, Release);
    }
}

/// Counts pages without memory in a link's control map, which lives as long as the process.
pub(crate) fn count_in(control_map: &'static Map) {
    LOST.store(std::ptr::from_ref(control_word(control_map, control::LOST_PAGES)).cast_mut(), Release);
}

/// Puts memory where a map has none. Runs in a signal handler.
fn repair(addr: u64) -> bool {
    const READ_WRITE: u64 = 3;
    const PRIVATE_FIXED_ANONYMOUS: u64 = 0x2 | 0x10 | 0x20;
    let known = RANGES.iter().take(USED.load(Acquire)).any(|r| (r.start.load(Relaxed)..r.end.load(Relaxed)).contains(&addr));
    if !known {
        return false;
    }
    let page = addr & !(PAGE - 1);
    // SAFETY: replaces one page of a map's mapping, which cannot be touched otherwise, by an empty one.
    let got = unsafe { call6(MMAP, page, PAGE, READ_WRITE, PRIVATE_FIXED_ANONYMOUS, u64::MAX, 0) };
    if got != page {
        return false;
    }
    // SAFETY: null, or a word of a map that lives as long as the process.
    if let Some(lost) = unsafe { LOST.load(Acquire).as_ref() } {
        lost.fetch_add(1, Relaxed);
    }
    true
}
