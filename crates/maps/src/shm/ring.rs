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
//! into neighbouring records, which share cache lines, at the same time: two of them are three
//! times as fast so (31 ns a record of 64 bytes instead of 87).

use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering::AcqRel, Ordering::Acquire,
    Ordering::Relaxed, Ordering::Release, Ordering::SeqCst, compiler_fence, fence,
};

use super::object::ObjectFile;
use super::view::MappedView;
use super::{PAGE, copy, lock, reserve, round8, sys, tls};

/// Where the data begins.
pub(crate) const DATA: u64 = 2 * PAGE;
const BUSY: u64 = 1 << 31;
const DISCARD: u64 = 1 << 30;
const LENGTH: u64 = DISCARD - 1;
const HEADER: u64 = 8;
/// Largest sample (kernel/bpf/ringbuf.c `RINGBUF_MAX_RECORD_SZ`).
const MAX_SAMPLE: u64 = (u32::MAX / 4) as u64;
/// Finished records that a producer passes over at a time, when half of the room or more may be
/// unfinished.
const PASSED: u32 = 64;
/// Looks at an unfinished record before the kernel is asked about who fills it.
const LOOKS: u32 = 4;
/// Pauses between two looks at what another processor is about to write: fewer would take its cache
/// line away too often.
const PAUSES: u32 = 12;
/// Longest sample, in bytes, that is copied in while the lock is held.
const SHORT: u64 = 256;
const NO_WAKEUP: u64 = 1;
const FORCE_WAKEUP: u64 = 2;

/// What the consumer finds at its position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Head {
    /// Nothing, or a record its producer still fills.
    Nothing,
    /// A sample: position behind the record, its length, and whether it counts.
    Record { next: u64, len: u64, kept: bool },
    /// Something no producer of ours leaves.
    Damaged,
}

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
// SAFETY: as above.
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

    fn memory(&self) -> &MappedView {
        self.file.payload()
    }

    /// A word of the two pages before the data.
    #[inline(always)]
    fn word<const AT: u64>(&self) -> &AtomicU64 {
        const { assert!(AT & 7 == 0 && AT < DATA) };
        // SAFETY: inside the two pages, which `over` checked, and aligned.
        unsafe { AtomicU64::from_ptr(self.base.add(AT as usize).cast()) }
    }

    #[inline(always)]
    fn consumer(&self) -> &AtomicU64 {
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
    fn sleeping(&self) -> &AtomicU32 {
        self.bell::<128>()
    }

    #[inline(always)]
    fn producer(&self) -> &AtomicU64 {
        self.word::<PAGE>()
    }

    #[inline(always)]
    fn pending(&self) -> &AtomicU64 {
        self.word::<{ PAGE + 16 }>()
    }

    #[inline(always)]
    fn producers(&self) -> &AtomicU64 {
        self.word::<{ PAGE + 8 }>()
    }

    fn wakeups(&self) -> &AtomicU32 {
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
    fn offset(&self, position: u64) -> u64 {
        self.at.wrapping_add(DATA).wrapping_add(position & self.size.wrapping_sub(1))
    }

    /// The first word of the record at a position.
    #[inline(always)]
    fn header(&self, position: u64) -> &AtomicU64 {
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
    fn behind(&self, position: u64, len: u64) -> Option<*mut u8> {
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

    /// Reserves room for a sample: its address, or null.
    #[inline]
    pub(crate) fn reserve(&self, size: u64, flags: u64) -> *mut u8 {
        let room = if flags == 0 { self.room_for(size) } else { None };
        room.map_or(std::ptr::null_mut(), |(_, sample)| sample)
    }

    /// Reserves room for a sample: the position of its record, and its address.
    #[inline(always)]
    fn room_for(&self, size: u64) -> Option<(u64, *mut u8)> {
        let len = round8(size.wrapping_add(HEADER));
        if size > MAX_SAMPLE || len > self.size || !self.writable {
            return None;
        }
        let position = self.place(size, len)?;
        Some((position, self.behind(position, len.wrapping_sub(HEADER))?))
    }

    /// Makes an unfinished record and returns its position.
    #[inline(always)]
    fn place(&self, size: u64, len: u64) -> Option<u64> {
        let held = lock::acquire(self.producers()).ok()?;
        let (_, tid) = tls::token_parts(lock::owner(held.word));
        let position = self.next(len);
        if let Some(begin) = position {
            self.header(begin).store(u64::from(tid) << 32 | BUSY | size, Relaxed);
            // Pairs with the Acquire in `head`: whoever sees the position sees the header.
            self.producer().store(begin.wrapping_add(len), Release);
        }
        lock::release(self.producers(), held);
        position
    }

    /// Makes a finished record, which `fill` fills while the lock is held: nobody ever sees it
    /// unfinished, and when its producer dies it was never there. Returns its position.
    #[inline(always)]
    fn make(&self, size: u64, len: u64, fill: impl FnOnce(u64)) -> Option<u64> {
        let held = lock::acquire(self.producers()).ok()?;
        let position = self.next(len);
        if let Some(begin) = position {
            let end = begin.wrapping_add(len);
            fill(begin);
            self.header(begin).store(size, Relaxed);
            // Pairs with the Acquire in `head`: whoever sees the position sees header and sample.
            self.producer().store(end, Release);
            if self.pending().load(Relaxed) == begin {
                self.pending().store(end, Relaxed);
            }
        }
        lock::release(self.producers(), held);
        position
    }

    /// Finds the position of the next record, if there is room for `len` bytes. The lock is held.
    #[inline(always)]
    fn next(&self, len: u64) -> Option<u64> {
        let begin = self.producer().load(Relaxed);
        let end = begin.wrapping_add(len);
        // As in the kernel: at most size - 1 bytes, so that full and empty differ, and never over
        // an unfinished record, whatever the consumer's page says.
        if end.wrapping_sub(self.consumed.load(Relaxed)) >= self.size {
            // Pairs with the Release in `consume`: its reads of a record end before we write over
            // it.
            let consumed = self.consumer().load(Acquire);
            self.consumed.store(consumed, Relaxed);
            if end.wrapping_sub(consumed) >= self.size {
                return None;
            }
        }
        let pending = self.pending().load(Relaxed);
        if end.wrapping_sub(pending) > self.size >> 1
            && end.wrapping_sub(self.pass(pending, begin, end)) >= self.size
        {
            return None;
        }
        Some(begin)
    }

    /// Passes over finished records from `pending` on, as many as is needed to have room up to
    /// `end`; returns the first that it left.
    #[cold]
    #[inline(never)]
    fn pass(&self, mut pending: u64, begin: u64, end: u64) -> u64 {
        let mut few = PASSED;
        let mut steps = self.size;
        while pending != begin && steps > 0 && (few > 0 || end.wrapping_sub(pending) >= self.size) {
            // Pairs with the Release in `finish`: its sample is complete before another record
            // begins there.
            let header = self.header(pending).load(Acquire);
            if header & BUSY != 0 {
                break;
            }
            let next = pending.wrapping_add(round8((header & LENGTH).wrapping_add(HEADER)));
            // Positions out of order are damage; the records in doubt were given over long ago.
            pending = if begin.wrapping_sub(next) > self.size { begin } else { next };
            steps = steps.wrapping_sub(8);
            few = few.saturating_sub(1);
        }
        self.pending().store(pending, Relaxed);
        pending
    }

    /// Gives a reserved sample over, or back.
    #[inline(always)]
    pub(crate) fn commit(&self, sample: u64, flags: u64, discard: bool) {
        let at = sample.wrapping_sub(self.base as u64).wrapping_sub(DATA).wrapping_sub(HEADER);
        if at < self.room && at & 7 == 0 {
            self.commit_at(at, flags, discard);
        }
    }

    #[inline(always)]
    fn commit_at(&self, position: u64, flags: u64, discard: bool) {
        self.finish(position, self.header(position).load(Relaxed) & LENGTH, flags, discard);
    }

    /// Gives the record at a position, of which the length is known, over or back.
    #[inline(always)]
    fn finish(&self, position: u64, length: u64, flags: u64, discard: bool) {
        let mark = if discard { DISCARD } else { 0 };
        // The sample is complete before its header says so (pairs with the Acquire in `head`).
        self.header(position).store(length | mark, Release);
        self.announce(position, flags);
    }

    /// Wakes the consumer, if it sleeps, for the record at a position, which is there now.
    #[inline(always)]
    fn announce(&self, position: u64, flags: u64) {
        // The record is there before we look whether the consumer sleeps (pairs with
        // `sleep_unless`).
        compiler_fence(SeqCst);
        if !SIGNED_UP.load(Relaxed) {
            fence(SeqCst);
        }
        if self.sleeping().load(Relaxed) != 0 {
            self.wake(position, flags);
        }
    }

    #[cold]
    #[inline(never)]
    fn wake(&self, position: u64, flags: u64) {
        let caught_up = (self.consumer().load(Acquire) ^ position) & self.mask == 0;
        if flags & FORCE_WAKEUP != 0 || (caught_up && flags & NO_WAKEUP == 0) {
            self.wakeups().fetch_add(1, SeqCst);
            sys::futex_wake(self.wakeups());
        }
    }

    /// Copies a sample in; `false` when there is no room.
    ///
    /// # Safety
    /// `data..data+size` is readable.
    #[inline]
    pub(crate) unsafe fn output(&self, data: *const u8, size: u64, flags: u64) -> bool {
        if size > SHORT || !self.writable {
            let Some((position, sample)) = self.room_for(size) else { return false };
            // SAFETY: the record has room for `size` rounded up; the source is the caller's duty.
            unsafe { copy::store(sample, data, size as usize) };
            self.finish(position, size, flags, false);
            return true;
        }
        let len = round8(size.wrapping_add(HEADER));
        let fill = |position| {
            if let Some(sample) = self.behind(position, len.wrapping_sub(HEADER)) {
                // SAFETY: as above.
                unsafe { copy::store(sample, data, size as usize) };
            }
        };
        let Some(position) = self.make(size, len, fill) else { return false };
        self.announce(position, flags);
        true
    }

    /// Copies a sample of two parts in, around the end of the data if need be; `false` when there
    /// is no room.
    ///
    /// # Safety
    /// Both parts are readable: address and size.
    pub(crate) unsafe fn output_parts(&self, parts: [(*const u8, u64); 2]) -> bool {
        let [(_, a), (_, b)] = parts;
        let size = a.wrapping_add(b);
        let len = round8(size.wrapping_add(HEADER));
        if a > MAX_SAMPLE
            || b > MAX_SAMPLE
            || size > MAX_SAMPLE
            || len >= self.size
            || !self.writable
        {
            return false;
        }
        if size > SHORT {
            let Some(position) = self.place(size, len) else { return false };
            // SAFETY: the caller's duty.
            unsafe { self.copy_parts(position, parts) };
            self.finish(position, size, 0, false);
            return true;
        }
        // SAFETY: the caller's duty.
        let Some(position) =
            self.make(size, len, |position| unsafe { self.copy_parts(position, parts) })
        else {
            return false;
        };
        self.announce(position, 0);
        true
    }

    /// Copies the two parts of a sample into the record at a position, which is ours and large
    /// enough.
    ///
    /// # Safety
    /// Both parts are readable: address and size.
    #[inline(always)]
    unsafe fn copy_parts(&self, position: u64, parts: [(*const u8, u64); 2]) {
        let mut at = position.wrapping_add(HEADER);
        for (mut from, mut left) in parts {
            while left > 0 {
                let offset = self.offset(at);
                let until_end =
                    self.at.wrapping_add(DATA).wrapping_add(self.size).wrapping_sub(offset);
                let n = left.min(until_end);
                let Some(to) = self.memory().at(offset, n) else { break };
                // SAFETY: the piece lies inside the data; the source is the caller's duty.
                unsafe {
                    copy::store_bytes(to, from, n as usize);
                    from = from.add(n as usize);
                }
                at = at.wrapping_add(n);
                left = left.wrapping_sub(n);
            }
        }
    }

    /// Answers `bpf_ringbuf_query`.
    pub(crate) fn query(&self, what: u64) -> u64 {
        let (consumed, produced) = (self.consumer().load(Acquire), self.producer().load(Acquire));
        match what {
            0 => produced.wrapping_sub(consumed),
            1 => self.size,
            2 => consumed,
            3 => produced,
            _ => 0,
        }
    }

    /// Looks at the consumer's position; `thorough` also finds records of zombies.
    pub(crate) fn head(&self, thorough: bool) -> Head {
        self.head_before(&mut self.consumer().load(Relaxed), thorough)
    }

    /// As [`RingMemory::head`], by who knows that there are records up to position `known`, and
    /// learns of more only when it is reached.
    #[inline(always)]
    pub(crate) fn head_before(&self, known: &mut u64, thorough: bool) -> Head {
        let position = self.consumer().load(Relaxed);
        let mut available = known.wrapping_sub(position);
        if available == 0 || available > self.size {
            *known = self.producer().load(Acquire);
            available = known.wrapping_sub(position);
            if available == 0 {
                return Head::Nothing;
            }
        }
        let mut word = self.header(position).load(Acquire);
        if available > self.size {
            return Head::Damaged;
        }
        if word & BUSY != 0 {
            word = self.finished(position, thorough);
            if word & BUSY != 0 {
                return Head::Nothing;
            }
        }
        let len = word & LENGTH;
        let whole = round8(len + HEADER);
        if whole > available {
            return Head::Damaged;
        }
        Head::Record { next: position.wrapping_add(whole), len, kept: word & DISCARD == 0 }
    }

    /// Waits a moment for a record to be finished, discards it when that will never be, and returns
    /// its first word.
    #[cold]
    #[inline(never)]
    fn finished(&self, position: u64, thorough: bool) -> u64 {
        let header = self.header(position);
        let mut word = header.load(Acquire);
        for _ in 0..LOOKS {
            if word & BUSY == 0 {
                break;
            }
            pause();
            word = header.load(Acquire);
        }
        if word & BUSY != 0 {
            let tid = (word >> 32) as u32;
            let unfinished_for_ever =
                tid == 0 || tid >> 22 != 0 || tls::thread_is_dead(tid, thorough);
            if unfinished_for_ever {
                // It may have finished just before its end.
                let skipped = (word & LENGTH) | DISCARD;
                return match header.compare_exchange(word, skipped, AcqRel, Acquire) {
                    Ok(_) => skipped,
                    Err(now) => now,
                };
            }
        }
        word
    }

    /// Copies the sample at the consumer's position out.
    #[inline(always)]
    pub(crate) fn read(&self, out: &mut [u8]) -> bool {
        let position = self.consumer().load(Relaxed);
        if let Some(from) = self.behind(position, round8(out.len() as u64)) {
            // SAFETY: `behind` checked the range up to whole words.
            unsafe { copy::load(out, from) };
            return true;
        }
        self.read_around(position, out)
    }

    #[cold]
    #[inline(never)]
    fn read_around(&self, position: u64, out: &mut [u8]) -> bool {
        let at = position.wrapping_add(HEADER);
        // In two pieces when it goes around the end; both begin at a multiple of eight.
        let until_end =
            self.at.wrapping_add(DATA).wrapping_add(self.size).wrapping_sub(self.offset(at));
        let (first, second) = out.split_at_mut(out.len().min(until_end as usize));
        let whole = self.memory().read(self.offset(at), first);
        whole
            && (second.is_empty()
                || self.memory().read(self.offset(at.wrapping_add(first.len() as u64)), second))
    }

    /// Returns the address of the sample at the consumer's position.
    pub(crate) fn sample(&self, len: u64) -> Option<*mut u8> {
        self.behind(self.consumer().load(Relaxed), len)
    }

    /// Moves the consumer's position.
    #[inline(always)]
    pub(crate) fn consume(&self, next: u64) {
        self.consumer().store(next, Release);
    }

    /// Moves the consumer's position behind everything.
    pub(crate) fn consume_all(&self) {
        self.consume(self.producer().load(Acquire));
    }

    /// Sleeps until a producer wakes us, at most `ns` nanoseconds; not at all when there is
    /// something.
    pub(crate) fn sleep(&self, ns: u64) {
        self.sleep_unless(ns, || self.head(true) != Head::Nothing);
    }

    /// Sleeps until a producer of any ring with the same wake-ups wakes us, but not when
    /// `something` is there.
    pub(crate) fn sleep_unless(&self, ns: u64, something: impl Fn() -> bool) {
        let seen = self.wakeups().load(SeqCst);
        // Pairs with `finish`: either it sees that we sleep, or we see its record. It has a barrier
        // of its own, or the kernel makes it pass one here; where the kernel would not, it
        // may be that nobody wakes us.
        self.sleeping().swap(1, SeqCst);
        let passed = sys::membarrier_expedited() || sys::membarrier_global();
        if !something() {
            sys::futex_wait(self.wakeups(), seen, if passed { ns } else { ns.min(NAP) });
        }
        self.sleeping().store(0, Relaxed);
    }
}

/// Lets a moment pass.
#[cold]
#[inline(never)]
pub(crate) fn pause() {
    for _ in 0..PAUSES {
        std::hint::spin_loop();
    }
}

/// Whether the kernel makes producers of this process pass a barrier when a consumer is about to
/// sleep.
static SIGNED_UP: AtomicBool = AtomicBool::new(false);

/// Longest sleep without that, in nanoseconds.
const NAP: u64 = 1_000_000;

/// Has the kernel do so. A forked child is signed up as its parent is.
fn sign_up() {
    if !SIGNED_UP.load(Relaxed) {
        SIGNED_UP.store(sys::membarrier_sign_up(), Relaxed);
    }
}

/// Rings of this process by the addresses of their samples: a program submits an address and
/// nothing else. The list has no limit, and is read on the event path: entries are never freed,
/// only used again.
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
