//! The site table: from the return address that a compiled-in site's call leaves, to the function's
//! metadata.
//!
//! Open addressing, multiplicative hash, at most half full, key and pointer in one 16-byte bucket.
//! Readers take no lock: a bucket's pointer is written before its key, a key is never overwritten,
//! and a new table is published with one store. Removed keys stay until the next rebuild; metadata
//! lives for ever, so a late reader finds an empty hook list.

use crate::hook_list::Meta;
use std::mem::size_of;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
const LEAST_BITS: u32 = 4;

/// The head of a table; buckets follow. The layout is known to `tramp/x64.s`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Table {
    /// 64 minus the number of index bits.
    shift: u64,
    mask: u64,
    buckets: [Bucket; 0],
}

#[repr(C)]
#[derive(Debug)]
struct Bucket {
    key: AtomicU64,
    meta: AtomicPtr<Meta>,
}

unsafe extern "C" {
    static skep_attach_table: AtomicPtr<Table>;
}

/// The table that the site trampoline uses.
fn current() -> &'static AtomicPtr<Table> {
    // SAFETY: defined in x64.s, 8-aligned, in writable memory, and only accessed as an atomic word.
    unsafe { &skep_attach_table }
}

impl Table {
    fn new(bits: u32) -> *mut Self {
        let words = size_of::<Self>() / 8 + (2usize << bits);
        let memory = Box::into_raw(vec![0u64; words].into_boxed_slice()).cast::<u64>();
        // SAFETY: `memory` has room for the head, and zeros are empty buckets.
        unsafe {
            memory.write(u64::from(64 - bits));
            memory.add(1).write((1 << bits) - 1);
        }
        memory.cast()
    }

    /// Finds the bucket of `key`, or the empty one where the search for it ends.
    ///
    /// # Safety
    /// The table was made by [`Table::new`], or is the empty one in x64.s, at least one of its
    /// buckets is empty, and it is not freed meanwhile.
    #[inline(always)]
    unsafe fn bucket(table: *const Self, key: u64) -> *const Bucket {
        // SAFETY: the caller's promise; the index is masked, and the walk ends at the empty bucket.
        unsafe {
            let mut i =
                GOLDEN.wrapping_mul(key).wrapping_shr((*table).shift as u32) & (*table).mask;
            loop {
                let bucket =
                    (&raw const (*table).buckets).cast::<Bucket>().wrapping_add(i as usize);
                let k = (*bucket).key.load(Ordering::Acquire);
                if k == key || k == 0 {
                    return bucket;
                }
                i = i.wrapping_add(1) & (*table).mask;
            }
        }
    }

    /// Looks a key up in the live table; null when it is not there. For the event path.
    ///
    /// # Safety
    /// No table is freed meanwhile: the thread shows that it is in a trampoline
    /// ([`crate::per_thread::quiescence::drain`] waits for it).
    #[inline(always)]
    pub(crate) unsafe fn find(key: u64) -> *const Meta {
        // SAFETY: the writer publishes whole tables and leaves half of their buckets empty; the
        // rest is the caller's promise.
        let bucket = unsafe { Self::bucket(current().load(Ordering::Acquire), key) };
        // SAFETY: `bucket` points into that table.
        unsafe {
            if (*bucket).key.load(Ordering::Acquire) == key {
                (*bucket).meta.load(Ordering::Relaxed)
            } else {
                ptr::null()
            }
        }
    }
}

/// The writer's side of the table.
#[derive(Debug)]
pub(crate) struct Writer {
    /// Buckets taken in the live table, removed keys included; 0 capacity: the static empty table
    /// is live.
    taken: usize,
    bits: u32,
}

impl Writer {
    /// Makes the writer's side of the empty table.
    ///
    /// # Safety
    /// There is one writer in the process.
    pub(crate) const unsafe fn new() -> Self {
        Self { taken: 0, bits: 0 }
    }

    /// Makes room for `more` keys besides those of `live`, and drops removed ones when a table is
    /// rebuilt. Returns the old table, to be given to [`free`] once no thread can be reading
    /// it.
    pub(crate) fn reserve(
        &mut self,
        more: usize,
        live: &mut dyn Iterator<Item = (u64, &'static Meta)>,
        n: usize,
    ) -> Option<*mut Table> {
        let want = Self::bits_for(n + more);
        let roomy = self.bits > 0 && (self.taken + more) * 2 <= 1 << self.bits;
        // Shrinking waits until a quarter would do, so that a link that comes and goes does not
        // rebuild each time.
        if roomy && (want + 2 > self.bits || self.bits == LEAST_BITS) {
            return None;
        }
        let table = Table::new(want);
        let mut taken = 0;
        for (key, meta) in live.take(n) {
            // SAFETY: made above, for twice `n` keys at least; nobody else knows it yet.
            unsafe { Self::store(table, key, meta) };
            taken += 1;
        }
        let old = current().swap(table, Ordering::AcqRel);
        let was_static = self.bits == 0;
        (self.taken, self.bits) = (taken, want);
        (!was_static).then_some(old)
    }

    fn bits_for(n: usize) -> u32 {
        (n * 2).max(1).next_power_of_two().trailing_zeros().max(LEAST_BITS)
    }

    /// Adds a key, for which [`reserve`](Self::reserve) has made room.
    ///
    /// # Panics
    /// When it has not.
    pub(crate) fn insert(&mut self, key: u64, meta: &'static Meta) {
        assert!(self.bits > 0 && self.taken * 2 < 1 << self.bits, "`reserve` makes room before");
        // SAFETY: the live table, which only this writer replaces, and half of whose buckets are
        // empty.
        self.taken +=
            usize::from(unsafe { Self::store(current().load(Ordering::Relaxed), key, meta) });
    }

    /// # Safety
    /// As [`Table::bucket`], with two buckets empty, and only this writer changes the table.
    unsafe fn store(table: *mut Table, key: u64, meta: &'static Meta) -> bool {
        // SAFETY: the caller's promise.
        let bucket = unsafe { Table::bucket(table, key) };
        // SAFETY: `bucket` points into `table`, which only this writer changes.
        unsafe {
            let new = (*bucket).key.load(Ordering::Relaxed) == 0;
            (*bucket).meta.store(ptr::from_ref(meta).cast_mut(), Ordering::Relaxed);
            // Pairs with the readers' load of the key.
            (*bucket).key.store(key, Ordering::Release);
            new
        }
    }
}

/// Frees a table that is not live any more.
///
/// # Safety
///
/// `table` came from [`Writer::reserve`], once, and no thread is reading it.
pub(crate) unsafe fn free(table: *mut Table) {
    // SAFETY: the same pointer and length that `new` made the box of.
    unsafe {
        let words = size_of::<Table>() / 8 + 2 * ((*table).mask as usize + 1);
        drop(Box::from_raw(ptr::slice_from_raw_parts_mut(table.cast::<u64>(), words)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// The table grows to 100,000 keys and shrinks back to the smallest size, and always finds
    /// exactly what is in it.
    #[test]
    fn grows_and_shrinks() {
        let [meta] = Meta::for_all([0].into_iter(), 0) else { panic!("one") };
        // SAFETY: no engine is made in this test.
        let mut writer = unsafe { Writer::new() };
        let mut model: BTreeMap<u64, &'static Meta> = BTreeMap::new();
        let key = |n: u64| 0x40_0005 + 16 * n;
        let step = |writer: &mut Writer,
                    model: &mut BTreeMap<u64, &'static Meta>,
                    add: std::ops::Range<u64>,
                    keep: u64| {
            model.retain(|k, _| *k < key(keep));
            let n = model.len();
            let new = (add.end - add.start) as usize;
            let old = writer.reserve(new, &mut model.iter().map(|(k, m)| (*k, *m)), n);
            // SAFETY: no other thread uses the table in this test.
            old.into_iter().for_each(|t| unsafe { free(t) });
            for k in add.map(key) {
                writer.insert(k, meta);
                model.insert(k, meta);
            }
            // SAFETY: no other thread uses the table in this test.
            let find = |key| unsafe { Table::find(key) };
            assert!(model.keys().all(|k| ptr::eq(find(*k), meta)));
            assert!(find(key(200_000)).is_null());
            assert!(model.len() * 2 <= 1 << writer.bits);
        };
        step(&mut writer, &mut model, 0..10, 0);
        step(&mut writer, &mut model, 10..1000, 10);
        step(&mut writer, &mut model, 1000..100_000, 1000);
        assert_eq!(writer.bits, 18);
        step(&mut writer, &mut model, 5000..5001, 5000);
        assert_eq!(writer.bits, 14);
        step(&mut writer, &mut model, 0..1, 0);
        assert_eq!(writer.bits, LEAST_BITS);
        // SAFETY: no other thread uses the table in this test.
        assert!(unsafe { Table::find(key(7)) }.is_null());
    }
}
