//! The payload of a large per-CPU array, mapped one slot at a time.
//!
//! The file has room for every slot there is and is sparse, so it takes memory for what is used
//! only. Address space is another matter: `ulimit -v` counts what is mapped, used or not, and a
//! whole array of 256 slots is hundreds of times what a program with two threads needs. So a
//! *column*, the values of one slot, is mapped when a thread of this process claims the slot, or a
//! reader looks at it; and no more of it than the process will use.
//!
//! ```text
//! base                base + stride         base + 2 * stride
//! | slot 0 |          | slot 1 |            (slot 2: nothing mapped)
//!  <-used->
//! ```
//!
//! Generated code finds a value at `base + slot * stride + index * size`, so columns have fixed
//! places. They lie where nothing comes to lie that was not asked to: far below what the kernel
//! gives out from the top, far above heaps. What happens to lie there is not touched; such a slot
//! cannot be had, and its runs count as missed.
//!
//! A claim happens on the event path, where no descriptor is at hand, and the file's name may lead
//! nowhere any more (`chroot`, another user id). So the first columns begin with one page each,
//! which `mremap` makes longer; any other is made out of one that is mapped: with an old size of 0,
//! `mremap` maps the same file once more, and further than before.

use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed,
    Ordering::SeqCst,
};

use rustix::mm::{MapFlags, ProtFlags, mmap};

use super::{Access, PAGE, sys};

/// Payloads up to this are mapped whole.
const SMALL: u64 = 16 << 20;
/// Where columns lie: below position-independent programs (0x55…), above the shadow memory of
/// sanitizers.
const REGION: u64 = 0x4000_0000_0000;
/// From a random place in so much of it on.
const SPREAD: u64 = 1 << 42;
const REGION_END: u64 = 0x5000_0000_0000;
/// Between two maps.
const GAP: u64 = 1 << 20;
/// Columns that have their first page from the beginning.
const ANCHORED: u32 = 16;
/// Slots: four words of bits.
const SLOTS: u32 = super::MAX_SLOTS;

/// Every mapped payload of this process; nodes are never freed, so that claims may walk them.
static ALL: AtomicPtr<Node> = AtomicPtr::new(ptr::null_mut());
/// Where the next payload may lie; 0: not chosen yet.
static NEXT: AtomicU64 = AtomicU64::new(0);

#[derive(Debug)]
struct Node {
    next: AtomicPtr<Node>,
    live: AtomicBool,
    base: u64,
    stride: u64,
    used: u64,
    writable: bool,
    /// A bit a slot: its first page is mapped.
    anchored: AtomicU64,
    /// A bit a slot: mapped; and somebody is about to map it.
    mapped: [AtomicU64; 4],
    begun: [AtomicU64; 4],
}

/// A payload in columns; they are unmapped when it is dropped.
#[derive(Debug)]
pub(crate) struct Columns(&'static Node);

/// Tells whether a payload of so many bytes a slot is worth it.
pub(crate) const fn pays(stride: u64) -> bool {
    stride.saturating_mul(SLOTS as u64) > SMALL
}

impl Columns {
    /// Maps the column of slot 0, `used` bytes of `stride` (both whole pages). `None` when no place
    /// is found.
    pub(crate) fn map(fd: BorrowedFd<'_>, stride: u64, used: u64, access: Access) -> Option<Self> {
        let prot = match access {
            Access::ReadOnly => ProtFlags::READ,
            Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        };
        let flags = MapFlags::SHARED | MapFlags::FIXED_NOREPLACE;
        for _ in 0..8 {
            let base = place(stride.checked_mul(u64::from(SLOTS))?)?;
            // SAFETY: replaces no mapping; kernels before 4.17 take the address as a hint.
            let Ok(got) = (unsafe { mmap(base as *mut _, used as usize, prot, flags, fd, 0) })
            else {
                continue;
            };
            if got as u64 != base {
                // SAFETY: just mapped, and nobody knows it.
                unsafe { sys::unmap(got as u64, used) };
                return None;
            }
            let zero = || [const { AtomicU64::new(0) }; 4];
            let (next, live, anchored) =
                (AtomicPtr::default(), AtomicBool::new(true), AtomicU64::new(0));
            let writable = access == Access::ReadWrite;
            let node = Node {
                next,
                live,
                base,
                stride,
                used,
                writable,
                anchored,
                mapped: zero(),
                begun: zero(),
            };
            for slot in 1..ANCHORED {
                let (at, offset) = (node.at(slot), stride * u64::from(slot));
                // SAFETY: replaces no mapping; kernels before 4.17 take the address as a hint.
                match unsafe { mmap(at as *mut _, PAGE as usize, prot, flags, fd, offset) } {
                    Ok(got) if got as u64 == at => drop(node.anchored.fetch_or(1 << slot, Relaxed)),
                    // SAFETY: just mapped, and nobody knows it.
                    Ok(got) => unsafe { sys::unmap(got as u64, PAGE) },
                    Err(_) => {}
                }
            }
            node.mapped[0].store(1, Relaxed);
            node.begun[0].store(1, Relaxed);
            let node: &'static Node = Box::leak(Box::new(node));
            let mut head = ALL.load(Relaxed);
            loop {
                node.next.store(head, Relaxed);
                // Before `own_slots` looks who has claimed; pairs with the fence of a claim before
                // it walks the list.
                match ALL.compare_exchange_weak(
                    head,
                    ptr::from_ref(node).cast_mut(),
                    SeqCst,
                    Relaxed,
                ) {
                    Ok(_) => return Some(Self(node)),
                    Err(now) => head = now,
                }
            }
        }
        None
    }

    /// Returns the address of byte 0 of the payload.
    pub(crate) fn base(&self) -> u64 {
        self.0.base
    }

    /// Maps the column of a slot, if it is not; `false` when that is impossible.
    #[inline(always)]
    pub(crate) fn ensure(&self, slot: u32) -> bool {
        self.0.has(slot) || self.0.ensure(slot)
    }

    /// Maps the column of a slot and gives all of it memory, also where this process leaves
    /// elements out; `false` when that is impossible, or the payload is not mapped writable.
    /// Safe on the event path.
    pub(crate) fn acquire(&self, slot: u32) -> bool {
        let node = self.0;
        if !node.writable || !self.ensure(slot) {
            return false;
        }
        // SAFETY: the column is mapped, as `ensure` saw to, and writable, as the payload is; it
        // begins at a page.
        if !unsafe { sys::populate(node.at(slot) as *mut u8, node.used as usize) } {
            return false;
        }
        let rest = node.stride.saturating_sub(node.used);
        if rest == 0 {
            return true;
        }
        if sys::is_closed() {
            return false;
        }
        // What is not mapped here is, elsewhere and for a moment.
        let Some(whole) = sys::map_again(node.at(slot), node.stride) else { return false };
        // SAFETY: `whole` maps the slot's area, writable as the payload is, and begins at a page;
        // this second mapping is known here only.
        unsafe {
            let done = sys::populate(whole.wrapping_add(node.used) as *mut u8, rest as usize);
            sys::unmap(whole, node.stride);
            done
        }
    }
}

impl Drop for Columns {
    fn drop(&mut self) {
        self.0.live.store(false, SeqCst);
        for slot in (0..SLOTS).filter(|slot| self.0.has(*slot) || self.0.is_anchored(*slot)) {
            // SAFETY: mapped by this payload, of which there is no user any more.
            unsafe {
                sys::unmap(self.0.at(slot), if self.0.has(slot) { self.0.used } else { PAGE })
            };
        }
    }
}

/// Maps the column of a slot in all payloads; for a thread that has just claimed it. Safe on the
/// event path.
#[inline(never)]
pub(crate) fn ensure(slot: u32) -> bool {
    // After the claim, which `own_slots` looks for; pairs with the publication in `Columns::map`.
    std::sync::atomic::fence(SeqCst);
    let mut node = ALL.load(Acquire);
    let mut all = true;
    while !node.is_null() {
        // SAFETY: nodes are never freed.
        let this = unsafe { &*node };
        if this.live.load(Acquire) && !this.has(slot) {
            all &= this.ensure(slot);
        }
        node = this.next.load(Acquire);
    }
    all
}

/// Tells whether an address lies in a mapped column. May be called in a signal handler.
pub(super) fn is_mapped(addr: u64) -> bool {
    let mut node = ALL.load(Acquire);
    while !node.is_null() {
        // SAFETY: nodes are never freed.
        let this = unsafe { &*node };
        let offset = addr.wrapping_sub(this.base);
        let (slot, offset) = ((offset / this.stride) as u32, offset % this.stride);
        if addr >= this.base
            && this.live.load(Acquire)
            && (this.has(slot) && offset < this.used || this.is_anchored(slot) && offset < PAGE)
        {
            return true;
        }
        node = this.next.load(Acquire);
    }
    false
}

/// Calls `f` with the start and end of each mapped column. May be called in a signal handler.
pub(super) fn for_each(mut f: impl FnMut(u64, u64)) {
    let mut node = ALL.load(Acquire);
    while !node.is_null() {
        // SAFETY: nodes are never freed.
        let this = unsafe { &*node };
        for slot in (0..SLOTS).filter(|slot| this.live.load(Acquire) && this.has(*slot)) {
            let start = this.at(slot);
            f(start, start.wrapping_add(this.used));
        }
        node = this.next.load(Acquire);
    }
}

/// Chooses a place for `span` bytes of which it is not known what lies there.
fn place(span: u64) -> Option<u64> {
    if NEXT.load(Relaxed) == 0 {
        let mut random = [0; 8];
        // Without: the same place in every process.
        let _ = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::NONBLOCK);
        let start = REGION + (u64::from_le_bytes(random) & (SPREAD - 1) & !(GAP - 1));
        let _ = NEXT.compare_exchange(0, start, Relaxed, Relaxed);
    }
    let span = span.checked_add(GAP)?.checked_next_multiple_of(GAP)?;
    NEXT.fetch_update(Relaxed, Relaxed, |at| at.checked_add(span).filter(|end| *end < REGION_END))
        .ok()
}

const fn bit(slot: u32) -> (usize, u64) {
    ((slot >> 6) as usize & 3, 1 << (slot & 63))
}

impl Node {
    const fn at(&self, slot: u32) -> u64 {
        self.base.wrapping_add(self.stride.wrapping_mul(slot as u64))
    }

    #[inline(always)]
    fn has(&self, slot: u32) -> bool {
        let (word, bit) = bit(slot);
        slot < SLOTS && self.mapped.get(word).is_some_and(|w| w.load(Acquire) & bit != 0)
    }

    fn is_anchored(&self, slot: u32) -> bool {
        slot < ANCHORED && self.anchored.load(Relaxed) >> slot & 1 != 0
    }

    #[cold]
    #[inline(never)]
    fn ensure(&self, slot: u32) -> bool {
        let (index, bit) = bit(slot);
        let (Some(begun), Some(mapped)) = (self.begun.get(index), self.mapped.get(index)) else {
            return false;
        };
        if slot >= SLOTS || sys::is_closed() {
            return false;
        }
        if begun.fetch_or(bit, AcqRel) & bit != 0 {
            // Another thread is at it; or this one, and a signal came: then it is in vain.
            let mut patience = 0u32;
            while !self.has(slot) && patience < 1000 {
                sys::sched_yield();
                patience = patience.wrapping_add(1);
            }
            return self.has(slot);
        }
        if self.is_anchored(slot) {
            // SAFETY: the first page of this column, which nobody else lengthens: `begun` says that
            // it is us.
            if unsafe { sys::lengthen(self.at(slot), PAGE, self.used) } {
                mapped.fetch_or(bit, AcqRel);
                return true;
            }
            begun.fetch_and(!bit, AcqRel);
            return false;
        }
        // The nearest first: less address space for a moment.
        let mut from = slot;
        while from > 0 {
            from = from.wrapping_sub(1);
            if self.has(from) && self.copy(from, slot) {
                mapped.fetch_or(bit, AcqRel);
                return true;
            }
        }
        begun.fetch_and(!bit, AcqRel);
        false
    }

    /// Makes column `to` out of the lower column `from`.
    fn copy(&self, from: u32, to: u32) -> bool {
        let target = self.at(to);
        if !sys::reserve(target, self.used) {
            return false;
        }
        let (mut anchor, mut steps, own) = (self.at(from), to.wrapping_sub(from), self.at(from));
        // A page of each column in between, in passing: at once it would be far more address space.
        while steps > 0 {
            let wider = sys::map_again(anchor, self.stride.wrapping_add(PAGE));
            if anchor != own {
                // SAFETY: a page that was mapped in the last round.
                unsafe { sys::unmap(anchor, PAGE) };
            }
            let Some(wider) = wider else { break };
            // SAFETY: the beginning of what was just mapped.
            unsafe { sys::unmap(wider, self.stride) };
            anchor = wider.wrapping_add(self.stride);
            steps = steps.wrapping_sub(1);
        }
        // SAFETY: the page was mapped in the last round, and nobody knows it; the target is
        // reserved.
        if steps == 0 && unsafe { sys::move_mapping(anchor, PAGE, self.used, target) } {
            return true;
        }
        // SAFETY: both were mapped here, and nobody knows them.
        unsafe {
            if steps == 0 {
                sys::unmap(anchor, PAGE);
            }
            sys::unmap(target, self.used);
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    fn file(name: &str) -> File {
        let path = std::env::temp_dir().join(format!("skep-columns-{}-{name}", std::process::id()));
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)
            .expect("a file can be made");
        std::fs::remove_file(path).expect("it was made");
        file
    }

    fn word(at: u64) -> &'static AtomicU64 {
        // SAFETY: mapped by the test.
        unsafe { &*(at as *const AtomicU64) }
    }

    /// What is written to a column is in the file where the slot's values are, whichever columns
    /// were mapped before, and the file's name is not needed.
    #[test]
    fn every_column_shows_its_part_of_the_file() {
        let (stride, used) = (1 << 20, 3 * PAGE);
        let file = file("part");
        file.set_len(stride * u64::from(SLOTS)).expect("sparse");
        let columns =
            Columns::map(file.as_fd(), stride, used, Access::ReadWrite).expect("there is room");
        for slot in [0, 5, 3, 4, 255, 64, 63] {
            assert!(columns.ensure(slot), "{slot}");
            let at = columns.base() + u64::from(slot) * stride;
            word(at).store(1000 + u64::from(slot), Relaxed);
            word(at + used - 8).store(2000 + u64::from(slot), Relaxed);
        }
        for slot in [0_u32, 3, 4, 5, 63, 64, 255] {
            let read = |at| {
                let mut bytes = [0; 8];
                file.read_exact_at(&mut bytes, u64::from(slot) * stride + at).expect("inside");
                u64::from_le_bytes(bytes)
            };
            assert_eq!(
                (read(0), read(used - 8)),
                (1000 + u64::from(slot), 2000 + u64::from(slot)),
                "{slot}"
            );
        }
        assert!(!columns.ensure(SLOTS));
    }

    /// Only what is used takes address space, and it is given back.
    #[test]
    fn address_space_follows_the_columns() {
        let (stride, used) = (100 << 20, 2 * PAGE);
        let file = file("space");
        file.set_len(stride * u64::from(SLOTS)).expect("sparse");
        let columns =
            Columns::map(file.as_fd(), stride, used, Access::ReadWrite).expect("there is room");
        assert!(columns.ensure(1) && columns.ensure(7) && columns.ensure(70));
        let (first, last) = (columns.base(), columns.base() + stride * u64::from(SLOTS));
        let mapped = || -> u64 {
            let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
            let ranges = maps.lines().filter_map(|l| l.split(' ').next()?.split_once('-'));
            let hex = |s| u64::from_str_radix(s, 16).unwrap_or(0);
            ranges
                .map(|(a, b)| (hex(a), hex(b)))
                .filter(|(a, _)| (first..last).contains(a))
                .map(|(a, b)| b - a)
                .sum()
        };
        let at = |slot: u64| columns.base() + slot * stride;
        assert!(is_mapped(at(7) + used - 1) && is_mapped(at(70)) && is_mapped(at(2)));
        assert!(
            !is_mapped(at(7) + used)
                && !is_mapped(at(71))
                && !is_mapped(at(2) + PAGE)
                && !is_mapped(first - 1)
        );
        assert_eq!(mapped(), 4 * used + (u64::from(ANCHORED) - 3) * PAGE);
        let mut all = Vec::new();
        for_each(|start, end| all.extend((start >= first && start < last).then_some((start, end))));
        assert_eq!(all, [0, 1, 7, 70].map(|slot| (at(slot), at(slot) + used)));
        drop(columns);
        assert_eq!(mapped(), 0);
    }

    /// Something of the program's in a column's place stays, and the slot cannot be had.
    #[test]
    fn a_taken_place_is_left_alone() {
        let (stride, used) = (1 << 20, 2 * PAGE);
        let file = file("taken");
        file.set_len(stride * u64::from(SLOTS)).expect("sparse");
        let columns =
            Columns::map(file.as_fd(), stride, used, Access::ReadWrite).expect("there is room");
        for slot in [2, 40] {
            let other = columns.base() + u64::from(slot) * stride + PAGE;
            assert!(sys::reserve(other, PAGE));
            assert!(!columns.ensure(slot) && !columns.ensure(slot));
            assert!(columns.ensure(slot + 1));
            // SAFETY: reserved above.
            unsafe { sys::unmap(other, PAGE) };
            assert!(columns.ensure(slot));
        }
    }
}
