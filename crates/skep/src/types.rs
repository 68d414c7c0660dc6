//! Type information as an object: maps refer to it by id, so that a reader can print values long
//! after the loader is gone.

use skep_object::Btf;

use crate::Error;
use crate::dir::{Dir, Kind};
use crate::record::{FileKind, RecordFile};

const KIND: FileKind = FileKind { number: 4, name: "BTF" };
const TAG: u32 = 1;

/// Writes type information as a new object; returns its id.
///
/// # Errors
/// When no id can be taken or the file cannot be written.
pub fn store(dir: &Dir, btf: &Btf) -> Result<u32, Error> {
    let id = dir.next_id(Kind::Btf)?;
    RecordFile::create(&dir.object(Kind::Btf, id), KIND, &[(TAG, btf.raw().to_vec())])?;
    Ok(id)
}

/// Reads the type information with this id; `None` when there is none or it is damaged: values
/// print as bytes then.
#[must_use]
pub fn open(dir: &Dir, id: u32) -> Option<Btf> {
    let records = RecordFile::open(&dir.object(Kind::Btf, id), KIND).ok()?.read().ok()?;
    let (_, bytes) = records.iter().find(|(tag, _)| *tag == TAG)?;
    Btf::parse(bytes).ok()
}
