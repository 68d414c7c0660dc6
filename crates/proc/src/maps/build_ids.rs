//! Build ids of files, each read once.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::fs::FileType;

use super::vma::Vma;

/// Build ids by file, to be shared among processes: what one has mapped, others have too.
///
/// A file is known by device, inode, time of the last change of the inode, and size: one that was
/// written or replaced since is read again. That a file has no build id is remembered too. Files
/// that cannot be found under their names (deleted, or of another mount namespace without the right
/// to use `map_files`) are read each time.
#[derive(Debug, Default)]
pub struct BuildIds {
    known: Mutex<HashMap<Key, Option<Vec<u8>>>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    dev: u64,
    inode: u64,
    changed: (i64, u64),
    size: i64,
}

impl BuildIds {
    /// How many files are known.
    pub fn len(&self) -> usize {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Tells whether no file is known.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The build id of a mapped file, by `read` if it is not known; `path`, or else one of
    /// the others, may lead to the file.
    pub(crate) fn get(
        &self,
        vma: &Vma,
        path: Option<PathBuf>,
        others: impl FnOnce() -> Vec<PathBuf>,
        read: impl FnOnce() -> Option<Vec<u8>>,
    ) -> Option<Vec<u8>> {
        // `map_files`, the first of the others, is for a few only; a name costs less.
        let key = path.and_then(|path| key(vma, &path));
        let key = key.or_else(|| others().iter().rev().find_map(|path| self::key(vma, path)));
        let Some(key) = key else { return read() };
        if let Some(known) = self.known.lock().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return known.clone();
        }
        let id = read();
        self.known.lock().unwrap_or_else(PoisonError::into_inner).insert(key, id.clone());
        id
    }
}

/// What a file is known by, if the path leads to the one that is mapped.
fn key(vma: &Vma, path: &Path) -> Option<Key> {
    let stat = rustix::fs::stat(path).ok()?;
    let same = stat.st_ino == vma.inode
        && (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev))
            == (vma.dev.major, vma.dev.minor);
    (same && FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile).then_some(Key {
        dev: stat.st_dev,
        inode: stat.st_ino,
        changed: (stat.st_ctime as i64, stat.st_ctime_nsec as u64),
        size: stat.st_size as i64,
    })
}
