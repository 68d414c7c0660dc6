//! Sessions.

use std::ffi::{c_char, c_int};
use std::ops::Deref;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Mutex, PoisonError};

use skep::Session;
use skep::dir::Kind as Files;

use crate::call::call;
use crate::handle::{self, Handle, Kind, Table};
use crate::memory;

/// A session, and what was made in it.
pub struct OpenSession {
    session: Session,
    made: Mutex<Made>,
}

/// How many maps and objects were made since the last look for files that nobody uses any more, and
/// how many make the next one due.
#[derive(Debug, PartialEq, Eq)]
struct Made {
    since: usize,
    due: usize,
}

impl Made {
    /// Before that, a look is not worth it.
    const LEAST: usize = 64;

    /// Counts one; looks when that is due. `look` tells how many files are left: with many, it takes
    /// long, and the next is due later.
    fn one_more(&mut self, look: impl FnOnce() -> usize) {
        self.since += 1;
        if self.since >= self.due {
            *self = Self { since: 0, due: look().max(Self::LEAST) };
        }
    }
}

impl OpenSession {
    fn new(session: Session) -> Self {
        Self { session, made: Mutex::new(Made { since: 0, due: Made::LEAST }) }
    }

    /// To be called before a map or an object is made. Files of freed ones stay until somebody opens
    /// the directory anew, which a process that makes and frees for years in one session does not; so
    /// they are removed now and then.
    pub fn makes_one(&self) {
        let dir = self.session.dir();
        let look = || {
            // What cannot be removed or counted is left for the next look.
            dir.collect().ok();
            let count = |kind| dir.ids(kind).map_or(0, |ids| ids.len());
            count(Files::Map) + count(Files::Program)
        };
        self.made.lock().unwrap_or_else(PoisonError::into_inner).one_more(look);
    }
}

impl Deref for OpenSession {
    type Target = Session;

    fn deref(&self) -> &Session {
        &self.session
    }
}

static SESSIONS: Table<OpenSession> = Table::new("session");

impl Kind for OpenSession {
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
        let open = || dir.map_or_else(Session::open, Session::open_in);
        handle::give(out, || Ok(OpenSession::new(open()?)))
    })
}

/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn skep_session_scratch(out: *mut Handle) -> c_int {
    // SAFETY: `out` is null or a place for a handle: the caller's promise.
    call(|| unsafe { handle::give(out, || Ok(OpenSession::new(Session::scratch()?))) })
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
        let session = handle::get::<OpenSession>(session)?;
        let path = session.dir().path().as_os_str().as_bytes();
        // SAFETY: the buffer has `size` bytes: the caller's promise.
        unsafe { memory::give_text(path, buffer, size) }
    })
}

/// Frees a session.
#[unsafe(no_mangle)]
pub extern "C" fn skep_session_free(session: Handle) -> c_int {
    handle::free::<OpenSession>(session)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_are_rare_where_many_files_are_left() {
        let mut made = Made { since: 0, due: Made::LEAST };
        let mut looks = Vec::new();
        for n in 1..=1000 {
            made.one_more(|| {
                looks.push(n);
                4 * n
            });
        }
        assert_eq!(looks, [64, 64 + 256]);
        assert_eq!(made, Made { since: 680, due: 4 * 320 });
    }
}
