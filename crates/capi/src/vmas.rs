//! `PROCMAP_QUERY` without the kernel's.

use std::ffi::{c_char, c_int, c_void};

use skep_proc::maps::{self, Live, MapSource, MapsError, Saved};
use skep_proc::procmap_query::procmap_query;

use crate::call::{Failure, call};
use crate::errno;
use crate::handle::{self, Handle, Kind, Table};
use crate::memory;

/// Where mappings come from.
pub struct Source(Box<dyn MapSource + Send + Sync>);

static SOURCES: Table<Source> = Table::new("source of mappings");

impl Kind for Source {
    fn table() -> &'static Table<Self> {
        &SOURCES
    }
}

fn number(e: &MapsError) -> i32 {
    match e {
        MapsError::Gone
        | MapsError::Ended { .. }
        | MapsError::Execed { .. }
        | MapsError::KernelThread { .. } => errno::ESRCH,
        MapsError::NoPermission { .. } => errno::EPERM,
        MapsError::Unsupported { .. } => errno::EINVAL,
        MapsError::Os { errno, .. } => errno.raw_os_error(),
        _ => errno::EIO,
    }
}

/// What an error number of a query means.
fn why(errno: i32) -> &'static str {
    match errno {
        errno::E2BIG => {
            "`size` is more than a page, or fields are set that this version does not know"
        }
        errno::EINVAL => {
            "`size` is below 24, a flag is unknown, or a buffer has a size without an address or the reverse"
        }
        errno::ENOENT => "no mapping is there that the flags want",
        errno::ENAMETOOLONG => "the buffer for the name or the build id is too small",
        errno::EFAULT => "the struct, or a buffer that it names, cannot be accessed",
        errno::ESRCH => "the process has ended, or has executed another program",
        errno::EPERM => "the mappings of the process may not be read",
        errno::EOPNOTSUPP => "the file does not say what the flags ask for",
        _ => "the mappings cannot be read",
    }
}

fn failed(e: &MapsError) -> Failure {
    Failure::new(number(e), e.to_string())
}

/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn skep_vmas_open_pid(pid: u32, out: *mut Handle) -> c_int {
    // SAFETY: `out` is a place for a handle: the caller's promise.
    call(|| unsafe {
        handle::give(out, || {
            let live = if pid == 0 { Live::own() } else { Live::of(pid) };
            Ok(Source(Box::new(live.map_err(|e| failed(&e))?)))
        })
    })
}

/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn skep_vmas_open_file(path: *const c_char, out: *mut Handle) -> c_int {
    // SAFETY: `path` is a text, `out` a place for a handle: the caller's promise.
    call(|| unsafe {
        let path = memory::text(path, "path")?;
        let of_file = |e| Failure::new(number(&e), format!("cannot read `{path}`: {e}"));
        handle::give(out, || match maps::open(path).map_err(of_file)? {
            Saved::One(snapshot) => Ok(Source(Box::new(snapshot))),
            _ => Err(Failure::new(errno::EINVAL, format!("`{path}` is of many processes"))),
        })
    })
}

/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn skep_vmas_query(source: Handle, query: *mut c_void) -> c_int {
    call(|| {
        let source = handle::get::<Source>(source)?;
        memory::check(query, 1, "struct procmap_query")?;
        // SAFETY: the struct has the size it says, and its buffers those in it: the caller's promise.
        match unsafe { procmap_query(&*source.0, query) } {
            0 => Ok(0),
            e => Err(Failure::new(-e, format!("PROCMAP_QUERY: {}", why(-e)))),
        }
    })
}

/// Frees a source of mappings.
#[unsafe(no_mangle)]
pub extern "C" fn skep_vmas_free(source: Handle) -> c_int {
    handle::free::<Source>(source)
}
