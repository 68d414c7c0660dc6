//! Files with mappings, told apart by their first bytes.

use std::path::Path;

use super::MapsError;
use super::core::{is_core, open_core};
use super::input::Input;
use super::perf_data::{self, PerfData};
use super::snapshot::{self, Snapshot};

/// What a file has: the mappings of one process, or of all of a recording.
#[derive(Debug)]
#[non_exhaustive]
pub enum Saved {
    /// A snapshot or a core file.
    One(Snapshot),
    /// A `perf.data`.
    Recording(PerfData),
}

/// Opens a snapshot, a core file or a `perf.data`.
///
/// # Errors
/// Where the file cannot be read, is of another kind or is damaged.
pub fn open(path: impl AsRef<Path>) -> Result<Saved, MapsError> {
    let path = path.as_ref();
    let input = Input::open(path)?;
    let head = input.read("first bytes", 0, input.len().min(64))?;
    if head.starts_with(snapshot::MAGIC) {
        Snapshot::open(path).map(Saved::One)
    } else if head.starts_with(perf_data::MAGIC) || head.starts_with(b"2ELIFREP") {
        PerfData::open(path).map(Saved::Recording)
    } else if is_core(&head) {
        open_core(path).map(Saved::One)
    } else {
        Err(MapsError::Unsupported { what: "a file that is no snapshot, core file or perf.data" })
    }
}
