//! The memory of a ring buffer, for many producers in many processes and one consumer.
//!
//! ```text
//! 0                    4096                  8192                  8192 + size
//! | consumer page      | producer page       | data                | data once more (second mapping of the same pages)
//!
//! consumer page   0 position   64 process that consumes   128 the consumer sleeps (32 bits)
//! producer page   0 position   8 lock   16 first record not yet given over   192 wake-ups (32 bits, futex)
//! record          0 length | BUSY | DISCARD (32 bits)   4 thread that reserved it (32 bits)   8 … sample, rounded up to 8
//! ```
//!
//! Positions only grow; a record lies at position modulo size and, thanks to the second mapping, in
//! one piece. A perf event array has many rings in one file, none of them mapped twice: their
//! records are copied in and out, around the end if need be, and all rings share the wake-ups of
//! the first. The first word of a record is the kernel's. The second is ours: the kernel keeps the
//! distance to its own pages there; we keep who filled the record, so that a consumer can skip what
//! a dead thread left unfinished.
//!
//! A producer pays for one locked instruction, to get the lock, and what it changes under the lock
//! lies in one cache line beside it. It keeps off the consumer's position while an older value of
//! it is good enough, and off that of the first unfinished record unless it knows it without a look
//! at the records. And it looks whether the consumer sleeps without a barrier between that and its
//! record: who is about to sleep makes all producers pass one (`membarrier(2)`), which their
//! processes have signed up for.
//!
//! A short sample that is there already is copied in under the lock, so that no two producers write
//! into neighboring records, which share cache lines, at the same time: two of them are three
//! times as fast so (31 ns a record of 64 bytes instead of 87).

mod consumer;
mod producer;
mod registry;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

pub(crate) use consumer::{Head, pause};
pub(crate) use registry::{commit, register, unregister};

use super::object::ObjectFile;
use super::view::MappedView;
use super::{PAGE, reserve, sys};

/// Where the data begins.
pub(crate) const DATA: u64 = 2 * PAGE;
const BUSY: u64 = 1 << 31;
const DISCARD: u64 = 1 << 30;
const LENGTH: u64 = DISCARD - 1;
const HEADER: u64 = 8;

/// A mapped ring buffer.
#[derive(Debug)]
pub(crate) struct RingMemory {
    file: Arc<ObjectFile>,
    /// Where its consumer page is, and the address of that.
    at: u64,
    base: *mut u8,
    /// The consumer page of the first ring.
    first: *mut u8,
    writable: bool,
    size: u64,
    /// Takes a position to the place in the data, a multiple of eight.
    mask: u64,
    /// Bytes of data that are mapped in a row.
    room: u64,
    /// A position that the consumer had; changed by who has the lock.
    consumed: AtomicU64,
}

// SAFETY: `base` and `first` are part of the payload of `file`, reached through atomics and
// word-wise copies only.
unsafe impl Send for RingMemory {}
// SAFETY: `base` and `first` are part of the payload of `file`, reached through atomics and
// word-wise copies only.
unsafe impl Sync for RingMemory {}

impl RingMemory {
    /// Takes a file mapped with its data twice; `size` is a power of two.
    pub(crate) fn new(file: Arc<ObjectFile>, size: u64) -> Option<Self> {
        if file.payload().len() == DATA + 2 * size {
            Self::over(&file, 0, size, 2 * size)
        } else {
            None
        }
    }

    /// Takes one of many rings of a file, `at` bytes behind its beginning.
    pub(crate) fn one_of(file: &Arc<ObjectFile>, at: u64, size: u64) -> Option<Self> {
        Self::over(file, at, size, size)
    }

    fn over(file: &Arc<ObjectFile>, at: u64, size: u64, room: u64) -> Option<Self> {
        let whole = size.is_power_of_two() && size >= PAGE && at.is_multiple_of(PAGE);
        let base = file.payload().at(at, DATA + room).filter(|_| whole)?;
        let first = file.payload().at(0, DATA)?;
        sign_up();
        let writable = file.payload().writable();
        Some(Self {
            file: Arc::clone(file),
            at,
            base,
            first,
            writable,
            size,
            mask: (size - 1) & !7,
            room,
            consumed: AtomicU64::new(0),
        })
    }

    pub(super) fn memory(&self) -> &MappedView {
        self.file.payload()
    }

    /// A word of the two pages before the data.
    #[inline(always)]
    pub(super) fn word<const AT: u64>(&self) -> &AtomicU64 {
        const { assert!(AT & 7 == 0 && AT < DATA) };
        // SAFETY: inside the two pages, which `over` checked, and aligned.
        unsafe { AtomicU64::from_ptr(self.base.add(AT as usize).cast()) }
    }

    #[inline(always)]
    pub(super) fn consumer(&self) -> &AtomicU64 {
        self.word::<0>()
    }

    /// The process that consumes.
    pub(crate) fn consuming(&self) -> &AtomicU64 {
        self.word::<64>()
    }

    /// A word of the first ring of the file, whose wake-ups are those of all.
    #[inline(always)]
    fn bell<const AT: u64>(&self) -> &AtomicU32 {
        const { assert!(AT & 3 == 0 && AT < DATA) };
        // SAFETY: inside the two pages, which `over` checked, and aligned.
        unsafe { AtomicU32::from_ptr(self.first.add(AT as usize).cast()) }
    }

    #[inline(always)]
    pub(super) fn sleeping(&self) -> &AtomicU32 {
        self.bell::<128>()
    }

    #[inline(always)]
    pub(super) fn producer(&self) -> &AtomicU64 {
        self.word::<PAGE>()
    }

    #[inline(always)]
    pub(super) fn pending(&self) -> &AtomicU64 {
        self.word::<{ PAGE + 16 }>()
    }

    #[inline(always)]
    pub(super) fn producers(&self) -> &AtomicU64 {
        self.word::<{ PAGE + 8 }>()
    }

    pub(super) fn wakeups(&self) -> &AtomicU32 {
        self.bell::<{ PAGE + 192 }>()
    }

    /// Not zero when samples are wanted; only rings of a perf event array ask.
    pub(crate) fn wanted(&self) -> &AtomicU64 {
        self.word::<192>()
    }

    /// Tells whether the data has memory, and gives it some if not: for rings of which many are in
    /// a file. Safe on the event path.
    #[inline(always)]
    pub(crate) fn has_memory(&self) -> bool {
        self.word::<200>().load(Relaxed) != 0 || self.get_memory()
    }

    #[cold]
    #[inline(never)]
    fn get_memory(&self) -> bool {
        // SAFETY: the data lies inside the payload, as `over` checked, which is mapped writable if
        // so said.
        let done = self.writable
            && unsafe { reserve::populate(self.base.wrapping_add(DATA as usize), self.size) };
        if done {
            self.word::<200>().store(1, Relaxed);
        }
        done
    }

    /// Counts samples for which there was no room.
    pub(crate) fn lost(&self) -> &AtomicU64 {
        self.word::<{ PAGE + 256 }>()
    }

    #[inline(always)]
    pub(super) fn offset(&self, position: u64) -> u64 {
        self.at.wrapping_add(DATA).wrapping_add(position & self.size.wrapping_sub(1))
    }

    /// The first word of the record at a position.
    #[inline(always)]
    pub(super) fn header(&self, position: u64) -> &AtomicU64 {
        // SAFETY: `mask` keeps it inside the data and aligned.
        unsafe {
            AtomicU64::from_ptr(
                self.base.add(DATA.wrapping_add(position & self.mask) as usize).cast(),
            )
        }
    }

    /// Returns the address of `len` bytes, at least one word, behind the first word of the record
    /// at a position, if they lie in a row.
    #[inline(always)]
    pub(super) fn behind(&self, position: u64, len: u64) -> Option<*mut u8> {
        let at = (position & self.mask).wrapping_add(HEADER);
        if len > self.size || at.wrapping_add(len) > self.room {
            return None;
        }
        // SAFETY: inside the data, as just checked.
        Some(unsafe { self.base.add(DATA.wrapping_add(at) as usize) })
    }

    /// Returns the addresses samples can have.
    pub(crate) fn range(&self) -> (u64, u64) {
        (
            self.memory().base().wrapping_add(DATA),
            self.memory().base().wrapping_add(self.memory().len()),
        )
    }
}

/// Whether the kernel makes producers of this process pass a barrier when a consumer is about to
/// sleep.
static SIGNED_UP: AtomicBool = AtomicBool::new(false);

/// Has the kernel do so. A forked child is signed up as its parent is.
fn sign_up() {
    if !SIGNED_UP.load(Relaxed) {
        SIGNED_UP.store(sys::membarrier_sign_up(), Relaxed);
    }
}

/// Tells whether the kernel does so.
#[inline(always)]
fn is_signed_up() -> bool {
    SIGNED_UP.load(Relaxed)
}
