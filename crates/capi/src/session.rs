//! Sessions.

use std::ffi::{c_char, c_int};

use skep::Session;

use crate::call::call;
use crate::handle::{self, Handle, Kind, Table};
use crate::memory;

static SESSIONS: Table<Session> = Table::new("session");

impl Kind for Session {
    fn table() -> &'static Table<Self> {
        &SESSIONS
    }
}

/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn skep_session_open(dir: *const c_char, out: *mut Handle) -> c_int {
    // SAFETY: `dir` is null or a text, `out` null or a place for a handle: the caller's promise.
    call(|| unsafe {
        let dir = memory::text_or_none(dir, "directory")?;
        handle::give(out, || Ok(dir.map_or_else(Session::open, Session::open_in)?))
    })
}

/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn skep_session_scratch(out: *mut Handle) -> c_int {
    // SAFETY: `out` is null or a place for a handle: the caller's promise.
    call(|| unsafe { handle::give(out, || Ok(Session::scratch()?)) })
}

/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn skep_session_dir(
    session: Handle,
    buffer: *mut c_char,
    size: usize,
) -> c_int {
    call(|| {
        let session = handle::get::<Session>(session)?;
        let path = session.dir().path().to_string_lossy();
        // SAFETY: the buffer has `size` bytes: the caller's promise.
        unsafe { memory::give_text(&path, buffer, size) }
    })
}

/// Frees a session.
#[unsafe(no_mangle)]
pub extern "C" fn skep_session_free(session: Handle) -> c_int {
    handle::free::<Session>(session)
}
