//! Type information as an object: maps refer to it by id, so that a reader can print values long
//! after the loader is gone.

use crate::Error;
use crate::dir::{Dir, Kind};
use crate::record::{FileKind, RecordFile};

const KIND: FileKind = FileKind { number: 4, name: "BTF", restarts: false };
const TAG: u32 = 1;

/// Writes type information, as it stands in `.BTF`, as a new object; returns its id.
///
/// # Errors
/// When no id can be taken or the file cannot be written.
pub fn store(dir: &Dir, raw: &[u8]) -> Result<u32, Error> {
    let id = dir.next_id(Kind::Btf)?;
    RecordFile::create(&dir.object(Kind::Btf, id), KIND, &[(TAG, raw.to_vec())])?;
    Ok(id)
}

/// Reads the type information with this id; `None` when there is none or its file is damaged.
#[must_use]
pub fn open(dir: &Dir, id: u32) -> Option<Vec<u8>> {
    let records = RecordFile::open(&dir.object(Kind::Btf, id), KIND).ok()?.read().ok()?;
    let (_, bytes) = records.iter().find(|(tag, _)| *tag == TAG)?;
    Some(bytes.to_vec())
}
