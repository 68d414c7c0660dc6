//! What a map type must be able to do, by who asks: users, walks and dumps, programs.
//!
//! Lengths of keys, values and buffers, and the right to write, are checked before a method is
//! called: by `map/` for one element, by `dump/` for many. A `key: &[u8]` has a length that the
//! map's [`KeyShape`](skep_isa::KeyShape) allows. Where a method writes a key, it fills a
//! [cell](skep_isa::KeyShape::write_cell), which for fixed keys is the key.

use std::mem::MaybeUninit;
use std::ops::Bound;

use skep_isa::{MapShape, ShapeKind};

use crate::dump::output::Output;
#[cfg(feature = "users")]
use crate::dump::packed::{ElementLayout, Packed};
use crate::dump::position::{Position, Strict};
use crate::error::{EINVAL, EOPNOTSUPP, MapError};
use crate::shm::copy;
use crate::shm::lock::Held;

/// Most keys that [`UserOps::prefetch`] is given at once: about as many cache lines as a processor
/// can wait for at the same time.
pub(crate) const PREFETCH_KEYS: usize = 32;

/// Elements that an ordered map reads at a time, between two looks at its version.
pub(crate) const READ_ELEMENTS: usize = 1024;

/// All that a map type does.
#[cfg(feature = "users")]
pub(crate) trait MapOps: WalkOps + ProgOps + Send + Sync {}

#[cfg(feature = "users")]
impl<T: WalkOps + ProgOps + Send + Sync> MapOps for T {}

/// All that a map type does where only programs use maps: what is in a table of methods is linked.
#[cfg(not(feature = "users"))]
pub(crate) trait MapOps: ProgOps + Send + Sync {}

#[cfg(not(feature = "users"))]
impl<T: ProgOps + Send + Sync> MapOps for T {}

/// What users do with single elements.
pub(crate) trait UserOps {
    /// Returns the bytes of a value as users see it now.
    fn user_value_size(&self) -> usize;

    /// Answers an operation that the type does not have. Types that leave out one of those below
    /// override this to say with which errno.
    fn refuse(&self, operation: &'static str) -> MapError {
        let _ = operation;
        MapError::Denied { why: "its type has no such operation" }
    }

    /// Copies a value out; `flags` is 0 or `BPF_F_LOCK`.
    fn lookup(&self, key: &[u8], out: &mut [u8], flags: u64) -> Result<(), MapError> {
        let _ = (key, out, flags);
        Err(self.refuse("lookup"))
    }

    /// Prefetches the memory that operations on at most [`PREFETCH_KEYS`] keys will touch. The keys
    /// have a fixed size and lie one behind another. This is a hint: doing nothing is fine.
    fn prefetch(&self, keys: &[u8]) {
        let _ = keys;
    }

    /// Looks several keys up at once, at most [`PREFETCH_KEYS`], while memory is waited for; for
    /// types that can. The cells of the keys hold keys that the map may have; `values` has room for
    /// as many values. `None`, and nothing is done, for other types.
    fn lookup_group(
        &self,
        cells: &[u8],
        values: &mut [u8],
        found: &mut [bool],
    ) -> Option<Result<(), MapError>> {
        let _ = (cells, values, found);
        None
    }

    /// Stores a value. `value` has the user's value size; for per-CPU types, any whole number of
    /// values.
    fn update(&self, key: &[u8], value: &[u8], flags: u64) -> Result<(), MapError> {
        let _ = (key, value, flags);
        Err(self.refuse("update"))
    }

    /// Removes an element.
    fn delete(&self, key: &[u8]) -> Result<(), MapError> {
        let _ = key;
        Err(self.refuse("delete"))
    }

    /// Removes an element and copies its last value out; `flags` as in `lookup`. `None` for a type
    /// that cannot.
    fn take(&self, key: &[u8], out: &mut [u8], flags: u64) -> Option<Result<(), MapError>> {
        let _ = (key, out, flags);
        None
    }

    /// Finds the key after `key`, or the first one when there is no such key, and fills its cell.
    fn next_key(&self, key: Option<&[u8]>, cell: &mut [u8]) -> Result<(), MapError> {
        let _ = (key, cell);
        Err(self.refuse("next key"))
    }
}

/// What walks and dumps need to read all elements.
pub(crate) trait WalkOps: UserOps {
    /// Copies the element at or after a position out and moves the position behind it; `false` at
    /// the end. Types that have [`WalkOps::by_key`] have no positions.
    fn step(&self, at: &mut Position, cell: &mut [u8], value: &mut [u8]) -> Result<bool, MapError> {
        let _ = (at, cell, value);
        Err(self.refuse("dump"))
    }

    /// Returns how to walk by keys, for types that walk so.
    fn by_key(&self) -> Option<&dyn KeyWalk> {
        None
    }

    /// Copies elements from a position on until `out` is full, and moves the position behind them;
    /// `false` at the end.
    fn fill(&self, at: &mut Position, out: &mut Output<'_>) -> Result<bool, MapError> {
        while let Some((cell, value)) = out.next() {
            if !self.step(at, cell, value)? {
                return Ok(false);
            }
            out.push();
        }
        Ok(true)
    }

    /// Finds the position behind a key; `None` when the key is not there and the type cannot tell
    /// where it would be. This default is for fixed keys.
    fn seek(&self, key: &[u8]) -> Result<Option<Position>, MapError> {
        let (mut at, mut seen, mut value) =
            (Position::default(), vec![0; key.len()], vec![0; self.user_value_size()]);
        while self.step(&mut at, &mut seen, &mut value)? {
            if seen == key {
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    /// Tells whether keys have an order, so that the place of a missing key is known: then batches
    /// go on from a key, as the kernel's do for arrays and tries.
    fn ordered(&self) -> bool {
        false
    }

    /// Gives the insertion epochs memory; `None` for types in which all of them are as easily had.
    fn keep_epochs(&self) -> Option<bool> {
        None
    }

    /// Returns how to take elements exactly, if the type can.
    fn exact_take(&self) -> Option<&dyn ExactTake> {
        None
    }
}

/// Walks by keys, for types whose keys have an order of their own: the place of a walk is the last
/// key, and the walk keeps it.
pub(crate) trait KeyWalk {
    /// Copies the first element behind the key `last` out, whether `last` is in the map or not; no
    /// bytes are before all keys. Passes over elements that are too new for `strict`. `false` at
    /// the end.
    fn step_behind(
        &self,
        last: &[u8],
        strict: &mut Strict,
        cell: &mut [u8],
        value: &mut [u8],
    ) -> Result<bool, MapError>;
    /// Removes an element and copies its last value out.
    fn take(&self, key: &[u8], value: &mut [u8]) -> Result<(), MapError>;
    /// Returns how to walk through a part of the keys, or backward, for types in the order of their
    /// bytes.
    fn ordered(&self) -> Option<&dyn OrderedWalk> {
        None
    }
}

/// What a walk by ordered keys goes through.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span<'a> {
    pub(crate) from: Bound<&'a [u8]>,
    pub(crate) to: Bound<&'a [u8]>,
    pub(crate) backward: bool,
}

/// Walks through parts of a map whose keys are in the order of their bytes.
pub(crate) trait OrderedWalk {
    /// Copies elements of a span in its direction until `out` is full, and passes over those that
    /// are too new for `strict`; `false` at the end.
    fn fill(
        &self,
        span: &Span<'_>,
        strict: &mut Strict,
        out: &mut Output<'_>,
    ) -> Result<bool, MapError>;
    /// Returns what elements look like where [`OrderedWalk::read`] puts them.
    #[cfg(feature = "users")]
    fn element_layout(&self) -> ElementLayout;
    /// Copies elements of a span in its direction, as many as there is room for; `false` at the end.
    #[cfg(feature = "users")]
    fn read(&self, span: &Span<'_>, out: &mut Packed) -> Result<bool, MapError>;
    /// Copies the element with the longest key that `key` begins with; `false` when there is none.
    fn longest_prefix(
        &self,
        key: &[u8],
        cell: &mut [u8],
        value: &mut [u8],
    ) -> Result<bool, MapError>;
}

/// Takes elements out of a map in two steps, as programs may still use an element after it was
/// removed: detach them, wait for running programs, copy the final values.
pub(crate) trait ExactTake {
    /// Begins to take elements; one taker at a time may.
    fn begin(&self) -> Result<Held, MapError>;
    /// Removes the element with a key, and keeps its memory from being reused; `None` when it is
    /// gone.
    fn detach(&self, key: &[u8]) -> Result<Option<u32>, MapError>;
    /// Tells those who wait to begin that the taker makes progress.
    fn heartbeat(&self, held: &mut Held);
    /// Copies the value of a detached element.
    fn load(&self, reference: u32, value: &mut [u8]);
    /// Gives the memory of all `count` detached elements back, and lets others take.
    fn end(&self, count: usize, held: Held);
}

/// The key that a program's walk met last. An element's place may be another's when the walk goes
/// on; its key is not.
#[derive(Debug)]
pub(crate) struct LastKey {
    /// Not filled with zeros for each walk.
    bytes: MaybeUninit<[u8; Self::MOST]>,
    /// Of the whole key; 0 for none.
    len: usize,
    /// The nodes on the way to it, and which child of each was taken: a word each.
    way: MaybeUninit<[u64; Self::DEEPEST]>,
    /// How many of those there are; 0 for a way that is not known.
    depth: usize,
}

impl LastKey {
    /// Bytes of it that are kept: more would be too many for a thread's stack.
    pub(crate) const MOST: usize = 256;
    /// Nodes of a way that is kept.
    const DEEPEST: usize = 16;

    /// Makes one that is none, where it is to stay.
    ///
    /// # Safety
    /// `place` is writable.
    #[inline(always)]
    pub(crate) unsafe fn begin(place: *mut Self) {
        // SAFETY: the caller's promise; the bytes and words may be anything.
        unsafe {
            (&raw mut (*place).len).write(0);
            (&raw mut (*place).depth).write(0);
        }
    }

    /// Returns the length of the whole key, 0 when there is none.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the first bytes: where they are and how many.
    #[inline(always)]
    pub(crate) fn kept(&self) -> (*const u8, usize) {
        (self.bytes.as_ptr().cast(), self.len.min(Self::MOST))
    }

    /// Keeps a key.
    ///
    /// # Safety
    /// `at..at+len` is readable.
    #[inline(always)]
    pub(crate) unsafe fn keep(&mut self, at: *const u8, len: usize) {
        self.len = len;
        // SAFETY: so many bytes are there on both sides.
        unsafe { copy::store_bytes(self.bytes.as_mut_ptr().cast(), at, len.min(Self::MOST)) };
    }

    /// Forgets the key.
    #[inline(always)]
    pub(crate) fn forget(&mut self) {
        self.len = 0;
        self.depth = 0;
    }

    /// Nodes of the way to the key, 0 when it is not known.
    #[inline(always)]
    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    /// Keeps the first nodes of the way only.
    #[inline(always)]
    pub(crate) fn cut(&mut self, depth: usize) {
        self.depth = self.depth.min(depth);
    }

    /// Returns a node of the way, and the number of the child that was taken.
    #[inline(always)]
    pub(crate) fn step(&self, i: usize) -> Option<(u32, u32)> {
        // SAFETY: a word that was written. Volatile, because for several words at once the compiler
        // would use vector registers, which programs in the middle of an event must keep.
        let word = (i < self.depth)
            .then(|| unsafe { self.way.as_ptr().cast::<u64>().add(i).read_volatile() })?;
        Some((word as u32, (word >> 32) as u32))
    }

    /// Adds a node to the way. `None` where there is no room, and the way is not known any more.
    #[inline(always)]
    pub(crate) fn push(&mut self, node: u32, child: u32) -> Option<()> {
        if self.depth >= Self::DEEPEST {
            self.depth = 0;
            return None;
        }
        let word = u64::from(node) | u64::from(child) << 32;
        // SAFETY: inside the array; see `step`.
        unsafe { self.way.as_mut_ptr().cast::<u64>().add(self.depth).write_volatile(word) };
        self.depth = self.depth.wrapping_add(1);
        Some(())
    }
}

/// An element as a program walks over it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Element {
    pub(crate) key: ElementKey,
    pub(crate) value: *mut u8,
}

/// Where the key of an element lies.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ElementKey {
    /// Nowhere: it is the index of an array.
    Index(u32),
    /// Here, with the size of the map's keys.
    Fixed(*const u8),
    /// Here, with a length of its own.
    Bytes(*const u8, u32),
}

/// What programs do.
///
/// The methods run on the event path; see [`crate::shm`] for what that forbids. Their results are
/// the kernel's: an address or null, and zero or a negative errno.
///
/// A `key: *const u8` points to as many readable bytes as the map's keys have. Where they have
/// different lengths it points to a [`DynptrUser`](skep_isa::map::DynptrUser), which describes
/// readable bytes, and any length may come: it is the type's duty to refuse what its keys cannot
/// have.
pub(crate) trait ProgOps {
    /// Tells whether somebody may wait for programs that have found an element: where there is
    /// [`WalkOps::exact_take`].
    fn is_waited_for(&self) -> bool {
        false
    }

    /// Tells the code generator where values lie.
    fn shape(&self) -> MapShape {
        MapShape { base: 0, stride: 0, entries: 0, kind: ShapeKind::Opaque }
    }

    /// Finds a value.
    ///
    /// # Safety
    /// `key` points to a key, as told above.
    unsafe fn prog_lookup(&self, key: *const u8) -> *mut u8 {
        let _ = key;
        std::ptr::null_mut()
    }

    /// Finds the value of a CPU.
    ///
    /// # Safety
    /// As [`ProgOps::prog_lookup`].
    unsafe fn prog_lookup_cpu(&self, key: *const u8, cpu: u32) -> *mut u8 {
        let _ = (key, cpu);
        std::ptr::null_mut()
    }

    /// Stores a value.
    ///
    /// # Safety
    /// `key` points to a key, as told above, and `value` to as many readable bytes as the map's
    /// values have.
    unsafe fn prog_update(&self, key: *const u8, value: *const u8, flags: u64) -> i64 {
        let _ = (key, value, flags);
        -i64::from(EINVAL)
    }

    /// Removes an element.
    ///
    /// # Safety
    /// As [`ProgOps::prog_lookup`].
    unsafe fn prog_delete(&self, key: *const u8) -> i64 {
        let _ = key;
        -i64::from(EINVAL)
    }

    /// Puts a value in.
    ///
    /// # Safety
    /// `value` points to as many readable bytes as the map's values have.
    unsafe fn prog_push(&self, value: *const u8, flags: u64) -> i64 {
        let _ = (value, flags);
        -i64::from(EOPNOTSUPP)
    }

    /// Takes a value out.
    ///
    /// # Safety
    /// `value` points to as many writable bytes as the map's values have.
    unsafe fn prog_pop(&self, value: *mut u8) -> i64 {
        let _ = value;
        -i64::from(EOPNOTSUPP)
    }

    /// Copies out what would be taken next; a bloom filter is asked for the value instead.
    ///
    /// # Safety
    /// `value` points to as many readable and writable bytes as the map's values have.
    unsafe fn prog_peek(&self, value: *mut u8) -> i64 {
        let _ = value;
        -i64::from(EOPNOTSUPP)
    }

    /// Finds the element at or after a position, and moves the position behind it. Types with an
    /// order of keys keep the element's key, and go on behind that.
    ///
    /// # Safety
    /// The thread has a slot, for per-CPU types.
    unsafe fn prog_next(&self, at: &mut Position, last: &mut LastKey) -> Option<Element> {
        let _ = (at, last);
        None
    }
}
