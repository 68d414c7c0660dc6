//! `BPF_MAP_TYPE_STACK_TRACE`: call stacks, each under a number that follows from its contents.
//!
//! ```text
//! payload: | bucket 0 | bucket 1 | … |     max_entries rounded up to a power of two
//! bucket   0 lock   8 version (high half), number of addresses (low half), 0: empty   16 hash   24 … addresses
//! ```
//!
//! A stack has one place, the bucket of its hash. Who puts one in empties the bucket, fills it, and
//! gives it its length by one store. So readers see a whole stack or none, and a death leaves an
//! empty bucket, as if the stack that was to be replaced had been deleted.

use std::sync::Arc;
use std::sync::atomic::{
    AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, fence,
};

use skep_isa::{MapFlags, MapType};

use crate::def::MapDef;
use crate::dump::position::Position;
use crate::error::{E2BIG, EBUSY, EEXIST, EFAULT, EINVAL, ENOTSUPP, MapError};
use crate::index::index;
use crate::layout::Layout;
use crate::map_file::MapFile;
use crate::ops::{ProgOps, UserOps, WalkOps};
use crate::shm::epoch::InsertionEpochs;
use crate::shm::hash::hash;
use crate::shm::lock;
use crate::shm::{ObjectFile, copy};

/// Where the addresses begin.
const HEAD: u64 = 24;
/// Most bytes of all stacks.
const MAX_BYTES: u64 = 1 << 38;
/// `BPF_F_FAST_STACK_CMP`: the hash alone decides whether a stack is the same.
const FAST_COMPARE: u64 = 1 << 9;
/// `BPF_F_REUSE_STACKID`: another stack in the bucket goes.
const REUSE: u64 = 1 << 10;
/// The same stack has the same number in every map, as in the kernel's.
const SEED: u64 = 0;
/// Looks at a bucket that others keep changing.
const TRIES: u32 = 100;

fn buckets(def: &MapDef) -> u64 {
    u64::from(def.max_entries).next_power_of_two()
}

pub(crate) fn layout(def: &MapDef) -> Result<Layout, MapError> {
    let row = def.map_type.row();
    if !row.key.allows(def.key_size) || !row.value.allows(def.value_size) || def.max_entries == 0 {
        return Err(def.invalid("keys have 4 bytes, values 8 for each of 1 to 127 addresses, and there is at least one entry"));
    }
    if def.flags.has(MapFlags::STACK_BUILD_ID) {
        return Err(def.refused(
            "stacks by build id are not offered; take addresses and symbolize them",
            ENOTSUPP,
        ));
    }
    match buckets(def) * (HEAD + u64::from(def.value_size)) {
        payload_len if def.max_entries <= 1 << 31 && payload_len <= MAX_BYTES => {
            Ok(Layout::with_epochs(payload_len, buckets(def)))
        }
        _ => Err(def.refused("too large", E2BIG)),
    }
}

pub(crate) fn open(file: MapFile) -> Result<Arc<StackTrace>, MapError> {
    Ok(Arc::new(StackTrace {
        buckets: buckets(&file.def),
        depth: u64::from(file.def.value_size / 8),
        epochs: file.epochs,
        file: file.object,
    }))
}

/// An open map of stacks.
#[derive(Debug)]
pub(crate) struct StackTrace {
    file: Arc<ObjectFile>,
    buckets: u64,
    depth: u64,
    epochs: InsertionEpochs,
}

/// The parts of one bucket.
struct Bucket<'a> {
    lock: &'a AtomicU64,
    state: &'a AtomicU64,
    hash: &'a AtomicU64,
    addresses: *mut u8,
}

impl StackTrace {
    fn bucket(&self, i: u64) -> Option<Bucket<'_>> {
        if i >= self.buckets {
            return None;
        }
        let at = i.wrapping_mul(HEAD.wrapping_add(self.depth.wrapping_mul(8)));
        let word = |off: u64| self.file.payload().word(at.wrapping_add(off));
        let addresses =
            self.file.payload().at(at.wrapping_add(HEAD), self.depth.wrapping_mul(8))?;
        Some(Bucket { lock: word(0)?, state: word(8)?, hash: word(16)?, addresses })
    }

    /// The number of addresses in a state; garbage is cut.
    fn len(&self, state: u64) -> u64 {
        (state & 0xffff_ffff).min(self.depth)
    }

    /// Puts a stack in: its number, or a negative errno.
    ///
    /// # Safety
    /// `addresses` points to `n` readable words.
    pub(crate) unsafe fn insert(&self, addresses: *const u64, n: u64, flags: u64) -> i64 {
        let n = n.min(self.depth);
        if n == 0 {
            return -i64::from(EFAULT);
        }
        let bytes = n.wrapping_mul(8) as usize;
        // SAFETY: the caller's duty.
        let h = unsafe { hash(SEED, addresses.cast(), bytes) };
        let id = h & self.buckets.wrapping_sub(1);
        let Some(bucket) = self.bucket(id) else { return -i64::from(EINVAL) };
        let state = bucket.state.load(Acquire);
        if self.len(state) != 0 {
            let same_hash = bucket.hash.load(Relaxed) == h;
            let same = same_hash
                && (flags & FAST_COMPARE != 0
                    // SAFETY: `n` words lie in the bucket, which has room for as many as any stack; the source is the caller's duty.
                    || (self.len(state) == n && unsafe { copy::same(bucket.addresses, addresses.cast(), bytes) }));
            fence(Acquire);
            if same && bucket.state.load(Relaxed) == state {
                return id as i64;
            }
            if flags & REUSE == 0 {
                return -i64::from(EEXIST);
            }
        }
        if !self.file.writable() {
            return -i64::from(EINVAL);
        }
        let Ok(held) = lock::acquire(bucket.lock) else { return -i64::from(EBUSY) };
        let state = bucket.state.load(Relaxed);
        let version = state >> 32;
        // Somebody may have been quicker; what he put in may be replaced only when asked to.
        let result = if self.len(state) != 0 && flags & REUSE == 0 {
            let same = self.len(state) == n
                // SAFETY: `n` words lie in the bucket; the caller's addresses are as many.
                && unsafe { copy::same(bucket.addresses, addresses.cast(), bytes) };
            if same { id as i64 } else { -i64::from(EEXIST) }
        } else {
            bucket.state.store(version.wrapping_add(1) << 32, Relaxed);
            // Pairs with the fences of readers: who sees a new address sees the state change.
            fence(Release);
            bucket.hash.store(h, Relaxed);
            // SAFETY: the bucket has room for `depth` words, and `n` is at most that; the caller's
            // addresses are `n` words.
            unsafe { copy::store(bucket.addresses, addresses.cast(), bytes) };
            self.epochs.stamp(id);

            bucket.state.store(version.wrapping_add(2) << 32 | n, Release);
            id as i64
        };
        lock::release(bucket.lock, held);
        result
    }

    fn read(&self, i: u64, out: &mut [u8]) -> Result<(), MapError> {
        self.read_older(i, out, 0).map(drop)
    }

    /// Copies a stack out; `false` when it was put in after the strict walk with a number began.
    fn read_older(&self, i: u64, out: &mut [u8], walk: u32) -> Result<bool, MapError> {
        let bucket = self.bucket(i).ok_or(MapError::NoElement)?;
        for _ in 0..TRIES {
            let state = bucket.state.load(Acquire);
            let n = (self.len(state) * 8) as usize;
            if n == 0 {
                return Err(MapError::NoElement);
            }
            let (stack, rest) = out.split_at_mut(n.min(out.len()));
            // SAFETY: the bucket has room for `depth` words.
            unsafe { copy::load(stack, bucket.addresses) };
            rest.fill(0);
            let newer = self.epochs.is_newer(i, walk);
            fence(Acquire);
            if bucket.state.load(Relaxed) == state {
                return Ok(!newer);
            }
        }
        Err(MapError::Busy { what: "a stack of the map" })
    }

    /// Empties a bucket; `last` is shown its addresses before.
    fn clear(&self, i: u64, last: impl FnOnce(usize, *const u8)) -> Result<(), MapError> {
        let bucket = self
            .bucket(i)
            .ok_or(MapError::Index { index: i as u32, max_entries: self.buckets as u32 })?;
        let busy = MapError::Busy { what: "a stack of the map" };
        let held = lock::acquire(bucket.lock).map_err(|_| busy)?;
        let state = bucket.state.load(Relaxed);
        let n = self.len(state);
        if n > 0 {
            last((n * 8) as usize, bucket.addresses);
            bucket.state.store((state >> 32).wrapping_add(1) << 32, Release);
        }
        lock::release(bucket.lock, held);
        if n == 0 { Err(MapError::NoElement) } else { Ok(()) }
    }

    fn has(&self, i: u64) -> bool {
        self.bucket(i).is_some_and(|b| self.len(b.state.load(Acquire)) != 0)
    }
}

impl UserOps for Arc<StackTrace> {
    fn user_value_size(&self) -> usize {
        self.depth as usize * 8
    }

    fn refuse(&self, operation: &'static str) -> MapError {
        MapError::Unsupported { map_type: MapType::StackTrace, operation, errno: EINVAL }
    }

    fn lookup(&self, key: &[u8], out: &mut [u8], _flags: u64) -> Result<(), MapError> {
        self.read(u64::from(index(key)), out)
    }

    fn delete(&self, key: &[u8]) -> Result<(), MapError> {
        self.clear(u64::from(index(key)), |_, _| {})
    }

    fn take(&self, key: &[u8], out: &mut [u8], _flags: u64) -> Option<Result<(), MapError>> {
        let i = u64::from(index(key));
        if i >= self.buckets {
            return Some(Err(MapError::NoElement));
        }
        out.fill(0);
        Some(self.clear(i, |n, addresses| {
            let n = n.min(out.len());
            // SAFETY: the bucket has room for `depth` words.
            unsafe { copy::load(&mut out[..n], addresses) };
        }))
    }

    fn next_key(&self, key: Option<&[u8]>, out: &mut [u8]) -> Result<(), MapError> {
        // kernel/bpf/stackmap.c: a key that is not there begins anew.
        let first = match key.map(index) {
            Some(i) if self.has(u64::from(i)) => u64::from(i) + 1,
            _ => 0,
        };
        let next = (first..self.buckets).find(|i| self.has(*i)).ok_or(MapError::NoElement)?;
        out.copy_from_slice(&(next as u32).to_ne_bytes());
        Ok(())
    }
}

impl WalkOps for Arc<StackTrace> {
    fn step(&self, at: &mut Position, key: &mut [u8], value: &mut [u8]) -> Result<bool, MapError> {
        while at.major < self.buckets {
            let i = at.major;
            match self.read_older(i, value, at.strict.number) {
                Err(MapError::NoElement) => at.major += 1,
                Err(e) => return Err(e),
                Ok(false) => {
                    at.strict.newer += 1;
                    at.major += 1;
                }
                Ok(true) => {
                    key.copy_from_slice(&(i as u32).to_ne_bytes());
                    at.major += 1;
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}

impl ProgOps for Arc<StackTrace> {}
