//! Records that programs send.

use std::ffi::{c_int, c_void};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use skep::{Map, Ring};

use crate::call::{Answer, Failure, call};
use crate::errno;
use crate::handle::{self, Handle, Kind, Table};
use crate::memory;

/// A reader of a ring, and the record that found no room in the caller's buffer.
pub struct Reader(Mutex<(Ring, Option<Vec<u8>>)>);

static RINGS: Table<Reader> = Table::new("ring");

impl Kind for Reader {
    fn table() -> &'static Table<Self> {
        &RINGS
    }
}

/// How long one wait is when there is no end to it.
const LONG: Duration = Duration::from_secs(3600);

impl Reader {
    /// One call at a time reads; others are told so rather than kept waiting.
    fn lock(&self) -> Answer<MutexGuard<'_, (Ring, Option<Vec<u8>>)>> {
        match self.0.try_lock() {
            Ok(lock) => Ok(lock),
            Err(TryLockError::Poisoned(e)) => Ok(e.into_inner()),
            Err(TryLockError::WouldBlock) => {
                Err(Failure::new(errno::EBUSY, "another call reads this ring, or one below this"))
            }
        }
    }
}

/// When a wait of so many milliseconds ends; a negative number is never.
fn end(timeout_ms: c_int) -> Option<Instant> {
    u64::try_from(timeout_ms).ok().map(|ms| Instant::now() + Duration::from_millis(ms))
}

/// Waits until there may be a record; `false` at the end of the time.
fn wait(ring: &Ring, end: Option<Instant>) -> bool {
    let left = end.map_or(LONG, |end| end.saturating_duration_since(Instant::now()));
    if left.is_zero() {
        return false;
    }
    ring.wait(left);
    true
}

/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn skep_ring_open(map: Handle, out: *mut Handle) -> c_int {
    // SAFETY: `out` is a place for a handle: the caller's promise.
    call(|| unsafe {
        let map = handle::get::<Map>(map)?;
        handle::give(out, || Ok(Reader(Mutex::new((map.ring()?, None)))))
    })
}

/// What is called for each record.
pub type Record = unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> c_int;

/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn skep_ring_poll(
    ring: Handle,
    timeout_ms: c_int,
    record: Option<Record>,
    context: *mut c_void,
) -> c_int {
    call(|| {
        let reader = handle::get::<Reader>(ring)?;
        let none = || Failure::new(errno::EFAULT, "the function to call is NULL");
        let record = record.ok_or_else(none)?;
        let mut lock = reader.lock()?;
        let (ring, kept) = &mut *lock;
        let (end, mut n) = (end(timeout_ms), 0);
        loop {
            let kept = kept.take();
            let next = match &kept {
                Some(bytes) => Some(bytes.as_slice()),
                None => ring.try_next()?,
            };
            let Some(bytes) = next else {
                if n > 0 || !wait(ring, end) {
                    return Ok(n);
                }
                continue;
            };
            n += 1;
            // SAFETY: the caller's function, with what the header says.
            let answer = unsafe { record(context, bytes.as_ptr().cast(), bytes.len()) };
            if answer < 0 {
                return Err(Failure::new(answer.saturating_neg(), "the callback ended the poll"));
            }
            if answer > 0 || n == c_int::MAX {
                return Ok(n);
            }
        }
    })
}

/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn skep_ring_next(
    ring: Handle,
    timeout_ms: c_int,
    buffer: *mut c_void,
    size: *mut usize,
) -> c_int {
    call(|| {
        let reader = handle::get::<Reader>(ring)?;
        // SAFETY: `size` is null or the caller's number, which says how large the buffer is.
        let out = unsafe {
            let room = memory::number(size, "size")?;
            memory::check_beside(size, (buffer, room))?;
            memory::output(buffer, room, "buffer")?
        };
        let mut lock = reader.lock()?;
        let (ring, kept) = &mut *lock;
        let end = end(timeout_ms);
        let bytes = loop {
            if let Some(bytes) = kept.take() {
                break bytes;
            }
            *kept = ring.try_next()?.map(<[u8]>::to_vec);
            if kept.is_none() && !wait(ring, end) {
                return Ok(0);
            }
        };
        let room = out.len();
        // SAFETY: as above.
        unsafe { memory::set(size, bytes.len(), "size") }?;
        let Some(out) = out.get_mut(..bytes.len()) else {
            let text = format!("the record has size {}, the buffer {room}", bytes.len());
            *kept = Some(bytes);
            return Err(Failure::new(errno::EMSGSIZE, text));
        };
        out.copy_from_slice(&bytes);
        Ok(1)
    })
}

/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn skep_ring_lost(ring: Handle, lost: *mut u64) -> c_int {
    call(|| {
        let n = handle::get::<Reader>(ring)?.lock()?.0.lost();
        // SAFETY: null or the caller's number.
        unsafe { memory::set(lost, n, "number") }.map(|()| 0)
    })
}

/// Frees a ring's reader.
#[unsafe(no_mangle)]
pub extern "C" fn skep_ring_free(ring: Handle) -> c_int {
    handle::free::<Reader>(ring)
}
