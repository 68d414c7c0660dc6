//! What keeps the objects that a map names from becoming garbage.
//!
//! A map of maps, or a program array, holds ids of other objects. Who puts one in makes a hard link
//! to that object's file: `refs/MAP/mID` or `refs/MAP/pID` in the skep directory, made before the
//! id is stored and removed after it is gone. Links make a file count as pinned. A death in between
//! leaves a link too many, until the same id is changed again or the map is collected, and its
//! folder with it.
//!
//! Changes of one map hold a lock on its folder, so that a link is not removed while another
//! process stores the same id.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{self, AtFlags, CWD, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::error::{EBADF, MapError};
use crate::shm::{ObjectError, ObjectFile};

/// Name of the folder in the skep directory.
const FOLDER: &str = "refs";

/// What kind of object a map names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Referent {
    Map,
    Program,
}

impl Referent {
    const fn folder(self) -> &'static str {
        match self {
            Self::Map => "maps",
            Self::Program => "progs",
        }
    }

    const fn letter(self) -> char {
        match self {
            Self::Map => 'm',
            Self::Program => 'p',
        }
    }
}

/// The references of one map.
#[derive(Debug)]
pub(crate) struct References {
    file: Arc<ObjectFile>,
    referent: Referent,
}

fn os(call: &'static str, path: &Path, e: Errno) -> MapError {
    ObjectError::Os { call, path: path.to_owned(), errno: e.raw_os_error() }.into()
}

/// Finds the skep directory of an object, also by a pin: the nearest directory above it that has
/// maps.
pub(crate) fn root(file: &ObjectFile) -> Option<PathBuf> {
    file.full_path()
        .ancestors()
        .skip(1)
        .take(8)
        .find(|d| d.join(Referent::Map.folder()).is_dir())
        .map(Path::to_owned)
}

fn make(path: &Path) -> Result<(), MapError> {
    match fs::mkdir(path, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(e) => Err(os("mkdir", path, e)),
    }
}

impl References {
    pub(crate) fn of(file: &Arc<ObjectFile>, referent: Referent) -> Self {
        Self { file: Arc::clone(file), referent }
    }

    /// Tells whether programs have their ids from the directory that the map lies in: one that has
    /// links, which are what runs them. In a directory of maps alone, a process numbers its own.
    pub(crate) fn are_numbered(&self) -> bool {
        root(&self.file).is_some_and(|root| root.join("links").is_dir())
    }

    /// Runs `store`, which puts an id (0: nothing) into the map and returns the one it replaced,
    /// with references kept in step. `strict` refuses ids without a file. `still` tells whether
    /// the map has an id.
    pub(crate) fn change(
        &self,
        id: u32,
        strict: bool,
        store: impl FnOnce() -> Result<u32, MapError>,
        still: impl Fn(u32) -> bool,
    ) -> Result<u32, MapError> {
        let Some(root) = root(&self.file) else {
            return if strict { Err(self.missing(id)) } else { store() };
        };
        let refs = root.join(FOLDER);
        make(&refs)?;
        let folder = refs.join(self.file.id().to_string());
        // Whoever collects garbage may remove the folder before we have it locked.
        let mut tries = 0;
        let _locked = loop {
            make(&folder)?;
            let fd = match fs::open(
                &folder,
                OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
                Mode::empty(),
            ) {
                Ok(fd) => fd,
                Err(Errno::NOENT) => continue,
                Err(e) => return Err(os("open", &folder, e)),
            };
            fs::flock(&fd, FlockOperation::LockExclusive).map_err(|e| os("flock", &folder, e))?;
            tries += 1;
            if tries > 100 || fs::fstat(&fd).is_ok_and(|s| s.st_nlink > 0) {
                break fd;
            }
        };
        let link = |id: u32| folder.join(format!("{}{id}", self.referent.letter()));
        if id != 0 {
            let object = root.join(self.referent.folder()).join(id.to_string());
            match fs::linkat(CWD, &object, CWD, link(id), AtFlags::empty()) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(Errno::NOENT) if strict => return Err(self.missing(id)),
                Err(Errno::NOENT) => {}
                Err(e) => return Err(os("link", &object, e)),
            }
        }
        let stored = store();
        // What went out, or did not get in.
        let idle = stored.as_ref().map_or(id, |old| *old);
        if idle != 0 && (stored.is_err() || idle != id) && !still(idle) {
            let _ = fs::unlink(link(idle));
        }
        stored
    }

    /// As the kernel answers to a number that is no descriptor.
    fn missing(&self, id: u32) -> MapError {
        let why = match self.referent {
            Referent::Map => "there is no such map",
            Referent::Program => "there is no such program",
        };
        MapError::Value { value: u64::from(id), why, errno: EBADF }
    }
}

/// Removes the references of maps of a skep directory that are gone. Objects they kept may be
/// garbage then: whoever collects garbage calls this after each round and goes on while it returns
/// more than 0.
///
/// # Errors
/// When the folder of references cannot be read.
pub fn drop_references(root: &Path) -> Result<usize, MapError> {
    let refs = root.join(FOLDER);
    let entries = match std::fs::read_dir(&refs) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(0),
        Err(e) => return Err(os("open", &refs, Errno::from_io_error(&e).unwrap_or(Errno::IO))),
    };
    let mut removed = 0;
    for entry in entries.flatten() {
        let name = entry.file_name();
        let gone = name.to_str().is_some_and(|n| n.parse::<u32>().is_ok())
            && !root.join("maps").join(&name).exists();
        if gone && std::fs::remove_dir_all(entry.path()).is_ok() {
            removed += 1;
        }
    }
    Ok(removed)
}
