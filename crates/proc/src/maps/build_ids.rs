//! Build ids of files, each read once.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::fs::FileType;

use super::NoBuildId;
use super::build_id_file::BuildIdFile;
use super::vma::Vma;

/// Build ids by file, to be shared among processes: what one has mapped, others have too.
///
/// A file is known by device, inode, time of the last change of the inode, and size: one that was
/// written or replaced since is read again. That a file has no build id is remembered too. Files
/// that cannot be found under their names (deleted, or of another mount namespace without the right
/// to use `map_files`) are read each time.
///
/// ```
/// use std::sync::Arc;
/// use skep_proc::maps::{BuildIds, Live};
/// let known = Arc::new(BuildIds::default().on_disk());
/// let maps = Live::own()?.with_build_ids(known);
/// # Ok::<(), skep_proc::maps::MapsError>(())
/// ```
#[derive(Debug, Default)]
pub struct BuildIds {
    known: Mutex<HashMap<Key, Result<Vec<u8>, NoBuildId>>>,
    disk: Option<BuildIdFile>,
}

/// What a file is known by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub dev: u64,
    pub inode: u64,
    pub changed: (i64, u64),
    pub size: i64,
}

impl BuildIds {
    /// Keeps build ids on disk too, in `skep/build-ids` below `$XDG_CACHE_HOME` or `~/.cache`: each
    /// file is then read once by all processes of the user. Where that place cannot be used, or is
    /// not this user's own, nothing is kept there.
    #[must_use]
    pub fn on_disk(self) -> Self {
        let var = |name| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
        let cache = var("XDG_CACHE_HOME").or_else(|| Some(var("HOME")?.join(".cache")));
        let file = cache.map(|cache| cache.join("skep/build-ids"));
        Self { disk: file.and_then(|path| BuildIdFile::open(&path)), ..self }
    }

    /// The same with a file of the caller's choice.
    #[must_use]
    pub fn in_file(self, path: &Path) -> Self {
        Self { disk: BuildIdFile::open(path), ..self }
    }

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
        read: impl FnOnce() -> Result<Vec<u8>, NoBuildId>,
    ) -> Result<Vec<u8>, NoBuildId> {
        // `map_files`, the first of the others, is for a few only; a name costs less.
        let key = path.and_then(|path| key(vma, &path));
        let key = key.or_else(|| others().iter().rev().find_map(|path| self::key(vma, path)));
        let Some(key) = key else { return read() };
        if let Some(known) = self.known.lock().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return known.clone();
        }
        let kept = self.disk.as_ref().and_then(|disk| disk.get(&key));
        let id = kept.unwrap_or_else(|| {
            let id = read();
            if let Some(disk) = &self.disk {
                disk.put(&key, &id);
            }
            id
        });
        // A process that went away, or that may not be looked at, says nothing of the file.
        if !matches!(id, Err(NoBuildId::Unreadable | NoBuildId::NotFound)) {
            self.known.lock().unwrap_or_else(PoisonError::into_inner).insert(key, id.clone());
        }
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::os::unix::fs::MetadataExt;

    use super::*;
    use crate::maps::Dev;

    #[test]
    fn a_file_is_read_once_by_all_who_share_a_file_of_build_ids() {
        let directory =
            std::env::temp_dir().join(format!("skep-shared-ids-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let file = directory.join("ids");
        let program = std::fs::canonicalize("/bin/sh").unwrap();
        let stat = std::fs::metadata(&program).unwrap();
        let dev =
            Dev { major: rustix::fs::major(stat.dev()), minor: rustix::fs::minor(stat.dev()) };
        let vma = Vma { dev, inode: stat.ino(), file: true, ..Vma::default() };
        let read = Cell::new(0);
        let ask = |known: &BuildIds, answer: Result<Vec<u8>, NoBuildId>| {
            known.get(&vma, Some(program.clone()), Vec::new, || {
                read.set(read.get() + 1);
                answer
            })
        };
        // What may be otherwise the next time is not kept.
        let unreadable = Err(NoBuildId::Unreadable);
        assert_eq!(ask(&BuildIds::default().in_file(&file), unreadable.clone()), unreadable);
        let first = BuildIds::default().in_file(&file);
        assert_eq!(ask(&first, unreadable.clone()), unreadable);
        assert_eq!(ask(&first, Ok(vec![7; 20])), Ok(vec![7; 20]));
        assert_eq!(ask(&first, Ok(vec![8; 20])), Ok(vec![7; 20]));
        let second = BuildIds::default().in_file(&file);
        assert_eq!(ask(&second, Ok(vec![9; 20])), Ok(vec![7; 20]));
        assert_eq!(read.get(), 3);
        std::fs::remove_dir_all(directory).unwrap();
    }
}
