//! Rings of this process by the addresses of their samples: a program submits an address and nothing
//! else.
//!
//! The list has no limit, and is read on the event path: entries are never freed, only used again.

use std::sync::Arc;
use std::sync::atomic::{
    AtomicPtr, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed,
    Ordering::Release, fence,
};

use super::RingMemory;

/// A ring and the addresses of its samples.
struct Known {
    /// Where samples begin; 0: the entry is free, 1: it is being filled.
    begin: AtomicU64,
    end: AtomicU64,
    ring: AtomicPtr<RingMemory>,
}

const RINGS: usize = 63;
const FREE: u64 = 0;
const BEGUN: u64 = 1;

struct Chunk {
    next: AtomicPtr<Chunk>,
    rings: [Known; RINGS],
}

impl Chunk {
    const fn new() -> Self {
        let rings = [const {
            Known {
                begin: AtomicU64::new(FREE),
                end: AtomicU64::new(0),
                ring: AtomicPtr::new(std::ptr::null_mut()),
            }
        }; RINGS];
        Self { next: AtomicPtr::new(std::ptr::null_mut()), rings }
    }
}

static FIRST: Chunk = Chunk::new();

/// The chunk behind another.
#[inline(always)]
fn behind(chunk: &Chunk) -> Option<&'static Chunk> {
    // SAFETY: null, or a chunk that is never freed.
    unsafe { chunk.next.load(Acquire).as_ref() }
}

/// Makes a ring's samples known to [`commit`].
pub(crate) fn register(ring: &Arc<RingMemory>) {
    let (begin, end) = ring.range();
    let mut chunk = &FIRST;
    loop {
        for known in &chunk.rings {
            // Pairs with the Release in `unregister`.
            if known.begin.compare_exchange(FREE, BEGUN, Acquire, Relaxed).is_ok() {
                // Whoever sees what follows sees that the entry is being filled; pairs with the
                // fence in `commit`.
                fence(Release);
                known.end.store(end, Relaxed);
                known.ring.store(Arc::as_ptr(ring).cast_mut(), Relaxed);
                // With it, the rest can be seen; pairs with the Acquire in `commit`.
                known.begin.store(begin, Release);
                return;
            }
        }
        chunk = behind(chunk).unwrap_or_else(|| {
            let new = Box::into_raw(Box::new(Chunk::new()));
            let now = match chunk.next.compare_exchange(std::ptr::null_mut(), new, AcqRel, Acquire)
            {
                Ok(_) => new,
                Err(now) => {
                    // Another thread has added one.
                    // SAFETY: made above, and nobody knows it.
                    drop(unsafe { Box::from_raw(new) });
                    now
                }
            };
            // SAFETY: a chunk in the list is never freed.
            unsafe { &*now }
        });
    }
}

/// Undoes [`register`]. The caller's programs have ended.
pub(crate) fn unregister(ring: &Arc<RingMemory>) {
    let (begin, _) = ring.range();
    let mut at = Some(&FIRST);
    while let Some(chunk) = at {
        // No other ring has samples at these addresses.
        if let Some(known) = chunk.rings.iter().find(|known| known.begin.load(Relaxed) == begin) {
            known.begin.store(FREE, Release);
            return;
        }
        at = behind(chunk);
    }
}

/// Gives a reserved sample of any ring over, or back; an address that is none does nothing.
///
/// # Safety
/// The sample was reserved in a ring that stays registered meanwhile, and not given over or back
/// since; or it is in no ring.
pub(crate) unsafe fn commit(sample: u64, flags: u64, discard: bool) {
    let mut at = Some(&FIRST);
    while let Some(chunk) = at {
        let mut n = 0usize;
        while let Some(known) = chunk.rings.get(n) {
            n = n.wrapping_add(1);
            let begin = known.begin.load(Acquire);
            if begin <= BEGUN || sample < begin || sample >= known.end.load(Relaxed) {
                continue;
            }
            let ring = known.ring.load(Relaxed);
            // Filled anew in between: then end and ring may be those of another ring, which the
            // sample is not in.
            fence(Acquire);
            if known.begin.load(Relaxed) == begin {
                // SAFETY: the ring that the sample is in, which lives by the caller's promise.
                unsafe { &*ring }.commit(sample, flags, discard);
                return;
            }
        }
        at = behind(chunk);
    }
}
