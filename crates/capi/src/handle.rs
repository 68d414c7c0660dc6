//! Handles: numbers that look like pointers and are looked up.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::call::{Answer, Failure, call};
use crate::errno;
use crate::memory;

/// A handle as C sees it.
pub type Handle = *mut c_void;

/// Handles are multiples of this, so that none is a small number that somebody took for one.
const STEP: usize = 1 << 12;

/// The last handle of all kinds. No number is used twice: 2⁵² of them last longer than any process.
static LAST: AtomicUsize = AtomicUsize::new(0);

/// The open handles of one kind.
pub struct Table<T> {
    kind: &'static str,
    open: RwLock<Option<HashMap<usize, Arc<T>>>>,
}

/// A kind of things that have handles.
pub trait Kind: Sized + Send + Sync + 'static {
    /// Returns the open ones.
    fn table() -> &'static Table<Self>;
}

impl<T> Table<T> {
    /// Makes an empty table; `kind` is for messages.
    pub const fn new(kind: &'static str) -> Self {
        Self { kind, open: RwLock::new(None) }
    }

    fn unknown(&self, handle: Handle) -> Failure {
        let kind = self.kind;
        if handle.is_null() {
            return Failure::new(errno::EFAULT, format!("the {kind} is NULL"));
        }
        Failure::new(
            errno::EBADF,
            format!("{handle:p} is no open {kind}: it was freed, or is something else"),
        )
    }
}

/// Finds what a handle means. It stays while the call uses it, also if it is freed meanwhile.
pub fn get<T: Kind>(handle: Handle) -> Answer<Arc<T>> {
    let table = T::table();
    let open = table.open.read().unwrap_or_else(PoisonError::into_inner);
    let found = open.as_ref().and_then(|open| open.get(&(handle as usize)));
    found.cloned().ok_or_else(|| table.unknown(handle))
}

/// Gives something a handle, and writes it to `out`. Nothing stays open if that cannot be.
///
/// # Safety
/// `out` is null, or the address of a pointer of the caller's.
pub unsafe fn give<T: Kind>(out: *mut Handle, make: impl FnOnce() -> Answer<T>) -> Answer {
    memory::check(out.cast(), align_of::<Handle>(), "address for the handle")?;
    // SAFETY: not null and aligned; the rest is the caller's promise.
    unsafe { out.write(std::ptr::null_mut()) };
    let value = Arc::new(make()?);
    let number = STEP.wrapping_mul(LAST.fetch_add(1, Ordering::Relaxed).wrapping_add(1));
    let mut open = T::table().open.write().unwrap_or_else(PoisonError::into_inner);
    open.get_or_insert_default().insert(number, value);
    // SAFETY: as above.
    unsafe { out.write(std::ptr::without_provenance_mut(number)) };
    Ok(0)
}

/// Takes a handle out of its table; null is none, and no error.
pub fn take<T: Kind>(handle: Handle) -> Answer<Option<Arc<T>>> {
    if handle.is_null() {
        return Ok(None);
    }
    let table = T::table();
    let mut open = table.open.write().unwrap_or_else(PoisonError::into_inner);
    let taken = open.as_mut().and_then(|open| open.remove(&(handle as usize)));
    // Dropped by the caller, without the lock.
    taken.map(Some).ok_or_else(|| table.unknown(handle))
}

/// The body of the functions that free a handle.
pub fn free<T: Kind>(handle: Handle) -> c_int {
    call(|| take::<T>(handle).map(drop).map(|()| 0))
}
