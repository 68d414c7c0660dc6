//! The agent's heap, in memory from `mmap`: the program's may be locked by the very thread the
//! agent runs on, when a hooked function is part of it.
//!
//! A program with many functions makes the agent take tens of megabytes, and each fault on a page
//! of 4 KiB costs more than the agent's work on that page. So a heap that has grown takes huge pages,
//! where the kernel gives them (`/sys/kernel/mm/transparent_hugepage`: `always` or `madvise`). Not in a
//! program that runs already: whoever asks may have to wait until the kernel has made one.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::{Cell, UnsafeCell};
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use dlmalloc::{Allocator, Dlmalloc};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use skep_runtime::heap::HeapUser;
use skep_sys::thread_words;

const HUGE_PAGE: usize = 2 << 20;
/// A heap smaller than this has no huge pages, which could take more memory than it uses.
const SMALL: usize = HUGE_PAGE;

/// A heap whose users are counted.
pub(crate) struct Heap(Mutex<Dlmalloc<Pages>>);

impl Heap {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(Dlmalloc::new_with_allocator(Pages { taken: Cell::new(0) })))
    }

    fn lock(&self) -> MutexGuard<'_, Dlmalloc<Pages>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// SAFETY: the allocator's own promises, by one thread at a time; counting changes nothing of them.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _user = HeapUser::new();
        // SAFETY: the caller's promises.
        unsafe { self.lock().malloc(layout.size(), layout.align()) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        let _user = HeapUser::new();
        // SAFETY: as above.
        unsafe { self.lock().free(at, layout.size(), layout.align()) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let _user = HeapUser::new();
        // SAFETY: as above.
        unsafe { self.lock().realloc(at, layout.size(), layout.align(), size) }
    }
}

/// Where the heap has its memory from.
struct Pages {
    /// Bytes that it has.
    taken: Cell<usize>,
}

// SAFETY: mappings of their own, as they are asked for.
unsafe impl Allocator for Pages {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        let stays_small = self.taken.get() < SMALL || thread_words::by_gs();
        let got = if stays_small { None } else { map_huge(size) };
        let Some((at, size)) = got.or_else(|| Some((map(size)?, size))) else {
            return (ptr::null_mut(), 0, 0);
        };
        self.taken.set(self.taken.get() + size);
        (at, size, 0)
    }

    /// Only for chunks that are mappings of their own, which `dlmalloc` does not make.
    fn remap(&self, _: *mut u8, _: usize, _: usize, _: bool) -> *mut u8 {
        ptr::null_mut()
    }

    fn free_part(&self, at: *mut u8, old: usize, new: usize) -> bool {
        self.free(at.wrapping_add(new), old - new)
    }

    fn free(&self, at: *mut u8, size: usize) -> bool {
        // SAFETY: the heap's own mapping, in which nothing is used any more.
        let is_freed = unsafe { munmap(at.cast(), size) }.is_ok();
        if is_freed {
            self.taken.set(self.taken.get() - size);
        }
        is_freed
    }

    fn can_release_part(&self, _: u32) -> bool {
        true
    }

    fn allocates_zeros(&self) -> bool {
        true
    }

    fn page_size(&self) -> usize {
        4096
    }
}

/// Maps new pages.
fn map(size: usize) -> Option<*mut u8> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: where the kernel finds room.
    let at = unsafe { mmap_anonymous(ptr::null_mut(), size, protection, MapFlags::PRIVATE) };
    at.ok().map(<*mut _>::cast)
}

/// Maps at least so many bytes in huge pages; returns where, and how many.
fn map_huge(size: usize) -> Option<(*mut u8, usize)> {
    let size = size.checked_next_multiple_of(HUGE_PAGE)?;
    let mapped = map(size.checked_add(HUGE_PAGE)?)?;
    let before = mapped.align_offset(HUGE_PAGE);
    let at = mapped.wrapping_add(before);
    // SAFETY: parts of the new mapping, of which nothing is used yet. What cannot be given back stays
    // without ever being touched; without huge pages, ordinary ones do.
    unsafe {
        let (_, _) = (
            munmap(mapped.cast(), before),
            munmap(at.wrapping_add(size).cast(), HUGE_PAGE - before),
        );
        let _ = madvise(at.cast(), size, Advice::LinuxHugepage);
    }
    Some((at, size))
}

unsafe extern "C" {
    fn pthread_atfork(
        prepare: extern "C" fn(),
        parent: extern "C" fn(),
        child: extern "C" fn(),
    ) -> i32;
}

/// The heap's lock, held by a thread that forks.
struct ForkGuard(UnsafeCell<Option<MutexGuard<'static, Dlmalloc<Pages>>>>);

// SAFETY: only touched by the thread that holds the lock.
unsafe impl Sync for ForkGuard {}

static FORKING: ForkGuard = ForkGuard(UnsafeCell::new(None));

extern "C" fn before_fork() {
    let lock = crate::HEAP.lock();
    // SAFETY: this thread has the lock.
    unsafe { *FORKING.0.get() = Some(lock) };
}

extern "C" fn after_fork() {
    // SAFETY: this thread has the lock, also in the child, where it is the only one.
    drop(unsafe { (*FORKING.0.get()).take() });
}

/// Holds the heap's lock across each `fork`, so that a child's heap is in order. To be called once,
/// before whoever wants memory at a fork does the same.
pub(crate) fn hold_across_forks() {
    // SAFETY: the functions stay for as long as the process.
    unsafe { pthread_atfork(before_fork, after_fork, after_fork) };
}
