//! Type information as an object: maps refer to it by id, so that a reader can print values long
//! after the loader is gone.

use skep_object::Btf;
use skep_store::{Dir, Error, btf};

pub use skep_store::btf::Stored;

/// Writes type information as a new object.
///
/// # Errors
/// When no id can be taken or the file cannot be written.
pub fn store(dir: &Dir, btf: &Btf) -> Result<Stored, Error> {
    btf::store(dir, btf.raw())
}

/// Reads the type information with this id; `None` when there is none or it is damaged: values
/// print as bytes then.
#[must_use]
pub fn open(dir: &Dir, id: u32) -> Option<Btf> {
    Btf::parse(&btf::open(dir, id)?).ok()
}
