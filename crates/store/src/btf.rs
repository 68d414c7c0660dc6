//! Type information as an object: maps refer to it by id, so that a reader can print values long
//! after the loader is gone.

use std::collections::BTreeSet;

use skep_maps::{MapDef, ObjectError};

use crate::Error;
use crate::dir::{Dir, DirError, Kind};
use crate::record::{FileKind, RecordFile};

const KIND: FileKind = FileKind { number: 4, name: "BTF", restarts: false };
const TAG: u32 = 1;

/// Type information that was just stored. As long as this is there, it is not removed: whoever makes maps
/// that refer to it keeps this until they are there.
#[derive(Debug)]
pub struct Stored {
    id: u32,
    _file: RecordFile,
}

impl Stored {
    /// Returns its id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.id
    }
}

/// Writes type information, as it stands in `.BTF`, as a new object.
///
/// # Errors
/// When no id can be taken or the file cannot be written.
pub fn store(dir: &Dir, raw: &[u8]) -> Result<Stored, Error> {
    let id = dir.next_id(Kind::Btf)?;
    let file = RecordFile::create(&dir.object(Kind::Btf, id), KIND, &[(TAG, raw.to_vec())])?;
    Ok(Stored { id, _file: file })
}

/// Reads the type information with this id; `None` when there is none or its file is damaged.
#[must_use]
pub fn open(dir: &Dir, id: u32) -> Option<Vec<u8>> {
    let records = RecordFile::open(&dir.object(Kind::Btf, id), KIND).ok()?.read().ok()?;
    let (_, bytes) = records.iter().find(|(tag, _)| *tag == TAG)?;
    Some(bytes.to_vec())
}

/// What maps refer to.
#[derive(Debug, Default)]
pub(crate) struct Referred {
    types: BTreeSet<u32>,
    /// A map could not be read now, or is of a newer skep: it may refer to anything.
    unknown: bool,
    /// The maps that were looked at.
    maps: Vec<u32>,
}

impl Referred {
    /// Looks at the maps of a directory. What is no map refers to nothing.
    pub(crate) fn of(dir: &Dir) -> Result<Self, DirError> {
        let mut referred = Self { maps: dir.ids(Kind::Map)?, ..Self::default() };
        for id in &referred.maps {
            match MapDef::of_file(&dir.object(Kind::Map, *id)) {
                Ok(def) => _ = referred.types.insert(def.btf_id),
                Err(ObjectError::Os { errno, .. }) => referred.unknown |= !is_gone(errno),
                Err(ObjectError::Version { .. }) => referred.unknown = true,
                Err(_) => {}
            }
        }
        Ok(referred)
    }

    /// Tells whether a map may refer to this type information.
    pub(crate) fn has(&self, id: u32) -> bool {
        self.unknown || self.types.contains(&id)
    }

    /// Does the same, also for maps that have come since.
    pub(crate) fn has_now(&mut self, dir: &Dir, id: u32) -> Result<bool, DirError> {
        if dir.ids(Kind::Map)? != self.maps {
            *self = Self::of(dir)?;
        }
        Ok(self.has(id))
    }
}

/// Tells whether an error says that a file is not there any more.
fn is_gone(errno: i32) -> bool {
    errno == rustix::io::Errno::NOENT.raw_os_error()
}
