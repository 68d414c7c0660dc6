//! A value in shared memory: how it is copied in and out, with or without a spin lock inside.
//!
//! A `struct bpf_spin_lock` in a value belongs to programs: users read it as zero and do not
//! overwrite it (kernel: `copy_map_value`, `check_and_init_map_value`).

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::{copy, spin};

/// What a value is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Format {
    /// Bytes of a value.
    pub(crate) size: usize,
    /// Offset of the spin lock in it.
    lock: Option<u32>,
}

impl Format {
    /// Describes values of `size` bytes, of which a spin lock may begin at `lock`, inside of them.
    pub(crate) fn new(size: usize, lock: Option<u32>) -> Self {
        Self { size, lock }
    }

    /// As if there were no lock in it.
    #[inline(always)]
    pub(crate) fn without_lock(self) -> Self {
        Self { lock: None, ..self }
    }

    #[inline(always)]
    pub(crate) fn has_lock(&self) -> bool {
        self.lock.is_some()
    }

    /// Stores a value over another whose lock stays as it is.
    ///
    /// # Safety
    /// `from` is readable for the size of a value; `to` is eight-aligned and writable for that,
    /// rounded up to eight.
    #[inline(always)]
    pub(crate) unsafe fn store(&self, to: *mut u8, from: *const u8) {
        // SAFETY: the caller's duty; with a lock, see `store_around`.
        unsafe {
            match self.lock {
                None => copy::store(to, from, self.size),
                Some(at) => self.store_around(to, from, at as usize),
            }
        }
    }

    /// # Safety
    /// As [`Format::store`].
    #[inline(never)]
    unsafe fn store_around(&self, to: *mut u8, from: *const u8, at: usize) {
        let word = at & !7;
        let other = word.wrapping_add(4 - (at & 4));
        let behind = word.wrapping_add(8);
        // SAFETY: the definition says that the four bytes at `at` lie inside the value; the pieces
        // are parts of it.
        unsafe {
            copy::store(to, from, word);
            if other < self.size {
                let n = self.size.wrapping_sub(other).min(4);
                AtomicU32::from_ptr(to.add(other).cast())
                    .store(copy::load_tail(from.add(other), n & 7) as u32, Relaxed);
            }
            if behind < self.size {
                copy::store(to.add(behind), from.add(behind), self.size.wrapping_sub(behind));
            }
        }
    }

    /// Stores a value where none was: its lock is free.
    ///
    /// # Safety
    /// As [`Format::store`].
    #[inline(always)]
    pub(crate) unsafe fn store_new(&self, to: *mut u8, from: *const u8) {
        // SAFETY: the caller's duty; the lock lies inside the value.
        unsafe {
            copy::store(to, from, self.size);
            if let Some(at) = self.lock {
                AtomicU32::from_ptr(to.add(at as usize).cast()).store(0, Relaxed);
            }
        }
    }

    /// As [`Format::store`], holding the value's lock.
    ///
    /// # Safety
    /// As [`Format::store`].
    #[inline(never)]
    pub(crate) unsafe fn store_locked(&self, to: *mut u8, from: *const u8) {
        // SAFETY: the caller's duty.
        unsafe { self.locked(to, || self.store(to, from)) }
    }

    /// Copies a value out, its lock as zero.
    ///
    /// # Safety
    /// `from` is eight-aligned and readable for the size of a value, rounded up to eight.
    #[inline(always)]
    pub(crate) unsafe fn load(&self, out: &mut [u8], from: *const u8) {
        let n = out.len().min(self.size);
        // SAFETY: the caller's duty.
        unsafe { copy::load(&mut out[..n], from) };
        if let Some(lock) = self.lock.and_then(|at| out.get_mut(at as usize..at as usize + 4)) {
            lock.fill(0);
        }
    }

    /// As [`Format::load`], holding the value's lock.
    ///
    /// # Safety
    /// As [`Format::load`], and the memory is writable.
    pub(crate) unsafe fn load_locked(&self, out: &mut [u8], from: *mut u8) {
        // SAFETY: the caller's duty.
        unsafe { self.locked(from, || self.load(out, from)) }
    }

    /// Calls `f` while holding a value's lock.
    ///
    /// # Safety
    /// `value` points to a writable value.
    pub(crate) unsafe fn locked(&self, value: *mut u8, f: impl FnOnce()) {
        let Some(at) = self.lock else { return f() };
        // SAFETY: the lock lies inside the value, aligned to four.
        let word = unsafe { AtomicU32::from_ptr(value.add(at as usize).cast()) };
        spin::acquire(word);
        f();
        spin::release(word);
    }
}
