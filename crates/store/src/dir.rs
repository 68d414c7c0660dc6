//! The skep directory: where objects live as files, who may touch it, and what is left over.
//!
//! `$SKEP_DIR`, else `$XDG_RUNTIME_DIR/skep`, else `/dev/shm/skep-UID`, mode 0700. An object is a
//! file `KIND/ID`; whoever uses it holds a shared lock on it, which ends with the process. A file
//! that nobody has locked and nobody pinned is garbage and is removed by the next loader.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// Names the directory in the environment, for loaders, targets and readers alike.
pub const ENV_DIR: &str = "SKEP_DIR";
/// Names the links a target attaches at start, by id, separated by commas; [`OWN_DIR`] may be among
/// them.
pub const ENV_LINKS: &str = "SKEP_LINKS";
/// Stands in [`ENV_LINKS`] where the user had set [`ENV_DIR`] before: a program that is executed
/// without the agent then keeps that variable.
pub const OWN_DIR: &str = "dir";

/// Tells why the skep directory cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DirError {
    /// It cannot be created, opened or written.
    #[error("cannot {call} `{path}`: {source}", path = path.display())]
    Io {
        /// What failed.
        call: &'static str,
        /// On which path.
        path: PathBuf,
        /// With what.
        source: io::Error,
    },
    /// Somebody else owns it.
    #[error("`{path}` belongs to user {owner}, not to user {me}", path = path.display())]
    Owner {
        /// The directory.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// Who we are.
        me: u32,
    },
    /// Others may enter it.
    #[error("`{path}` is open to others (mode {mode:04o}, needs 0700)", path = path.display())]
    Mode {
        /// The directory.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
}

/// Names a kind of object: a sub-directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// `maps/`
    Map,
    /// `progs/`
    Program,
    /// `links/`
    Link,
    /// `btf/`: type information that maps refer to.
    Btf,
    /// `chains/`
    Chain,
}

impl Kind {
    /// Every kind, those that refer to others first.
    pub const ALL: [Self; 5] = [Self::Chain, Self::Link, Self::Program, Self::Map, Self::Btf];

    /// Returns the sub-directory's name.
    #[must_use]
    pub fn dir(self) -> &'static str {
        match self {
            Self::Map => "maps",
            Self::Program => "progs",
            Self::Link => "links",
            Self::Btf => "btf",
            Self::Chain => "chains",
        }
    }
}

/// An opened and checked skep directory.
#[derive(Debug, Clone)]
pub struct Dir {
    path: PathBuf,
}

fn io_err(call: &'static str, path: &Path, source: io::Error) -> DirError {
    DirError::Io { call, path: path.to_owned(), source }
}

impl Dir {
    /// Tells which directory the environment asks for.
    #[must_use]
    pub fn default_path() -> PathBuf {
        let var = |name: &str| std::env::var_os(name).filter(|v: &OsString| !v.is_empty());
        if let Some(dir) = var(ENV_DIR) {
            return dir.into();
        }
        if let Some(run) = var("XDG_RUNTIME_DIR") {
            return PathBuf::from(run).join("skep");
        }
        PathBuf::from(format!("/dev/shm/skep-{}", rustix::process::getuid().as_raw()))
    }

    /// Opens the directory at `path`, creating it when it is missing.
    ///
    /// # Errors
    /// When it cannot be created, belongs to somebody else, or others may enter it.
    pub fn create(path: &Path) -> Result<Self, DirError> {
        let mut builder = std::fs::DirBuilder::new();
        builder.mode(0o700).recursive(true);
        if !path.exists() {
            builder.create(path).map_err(|e| io_err("create", path, e))?;
        }
        let dir = Self::open(path)?;
        for kind in Kind::ALL {
            let sub = dir.kind(kind);
            builder.create(&sub).map_err(|e| io_err("create", &sub, e))?;
        }
        let pins = dir.path.join("pins");
        builder.create(&pins).map_err(|e| io_err("create", &pins, e))?;
        Ok(dir)
    }

    /// Opens an existing directory.
    ///
    /// # Errors
    /// When there is none, it belongs to somebody else, or others may enter it.
    pub fn open(path: &Path) -> Result<Self, DirError> {
        let path = std::path::absolute(path).map_err(|e| io_err("resolve", path, e))?;
        let meta = std::fs::metadata(&path).map_err(|e| io_err("open", &path, e))?;
        if !meta.is_dir() {
            return Err(io_err("open", &path, Errno::NOTDIR.into()));
        }
        let me = rustix::process::geteuid().as_raw();
        if meta.uid() != me {
            return Err(DirError::Owner { path, owner: meta.uid(), me });
        }
        if meta.mode() & 0o077 != 0 {
            return Err(DirError::Mode { path, mode: meta.mode() & 0o7777 });
        }
        Ok(Self { path })
    }

    /// Returns the directory's absolute path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the sub-directory of a kind of object.
    #[must_use]
    pub fn kind(&self, kind: Kind) -> PathBuf {
        self.path.join(kind.dir())
    }

    /// Returns the path of one object.
    #[must_use]
    pub fn object(&self, kind: Kind, id: u32) -> PathBuf {
        self.kind(kind).join(id.to_string())
    }

    /// Takes the next id of a kind. Ids start at 1, grow, and are not reused.
    ///
    /// # Errors
    /// When the counter file cannot be locked or written.
    pub fn next_id(&self, kind: Kind) -> Result<u32, DirError> {
        let path = self.path.join(format!("{}.next", kind.dir()));
        let err = |call| {
            move |e: io::Error| io_err(call, &self.path.join(format!("{}.next", kind.dir())), e)
        };
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(err("open"))?;
        let file = Locked::exclusively(file).map_err(|e| err("lock")(e.into()))?;
        let file = &file.0;
        let mut text = String::new();
        io::Read::read_to_string(&mut &*file, &mut text).map_err(err("read"))?;
        // A lost or damaged counter must not hand out an id that is in use.
        let used = self.ids(kind)?.into_iter().max().unwrap_or(0);
        let id = text.trim().parse::<u32>().unwrap_or(0).max(used).wrapping_add(1).max(1);
        io::Seek::rewind(&mut &*file).map_err(err("write"))?;
        io::Write::write_all(&mut &*file, format!("{id:<10}\n").as_bytes())
            .map_err(err("write"))?;
        Ok(id)
    }

    /// Lists the ids of a kind in order.
    ///
    /// # Errors
    /// When the sub-directory cannot be read.
    pub fn ids(&self, kind: Kind) -> Result<Vec<u32>, DirError> {
        let path = self.kind(kind);
        let entries = match std::fs::read_dir(&path) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(io_err("list", &path, e)),
        };
        let mut ids: Vec<u32> =
            entries.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok()).collect();
        ids.sort_by_cached_key(|id| u64::from(*id));
        Ok(ids)
    }
}

/// A directory like the skep directory, for one process alone and gone with it: programs that are
/// run outside of any target have their maps there, so that nobody else's slots and ids get mixed
/// in.
///
/// It lies in `scratch/` of the skep directory and is removed on drop; the next one removes what
/// killed processes left.
#[derive(Debug)]
pub struct Scratch {
    dir: Dir,
    /// The process that made it: a forked child that drops its copy leaves the directory to its
    /// parent.
    process: u32,
    _lock: File,
}

impl Scratch {
    /// Makes one in the skep directory that the environment asks for.
    ///
    /// # Errors
    /// When one of the directories cannot be created or used.
    pub fn create() -> Result<Self, DirError> {
        Self::create_in(&Dir::create(&Dir::default_path())?)
    }

    /// Makes one in a skep directory.
    ///
    /// # Errors
    /// As [`Scratch::create`].
    pub fn create_in(parent: &Dir) -> Result<Self, DirError> {
        let all = parent.path.join("scratch");
        let builder = || {
            let mut builder = std::fs::DirBuilder::new();
            builder.mode(0o700).recursive(true);
            builder
        };
        builder().create(&all).map_err(|e| io_err("create", &all, e))?;
        // Held until the new directory has its own lock: nobody takes it for a left-over.
        let _guard = lock_all(&all)?;
        for entry in std::fs::read_dir(&all).map_err(|e| io_err("list", &all, e))?.flatten() {
            let path = entry.path();
            let left = path.is_dir()
                && lock_file(&path.join("lock"))
                    .is_ok_and(|f| flock(&f, FlockOperation::NonBlockingLockExclusive).is_ok());
            if left {
                drop(std::fs::remove_dir_all(&path));
            }
        }
        // A process uses a name only once, so whoever remembers the path of a removed directory
        // does not find another one there.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let process = std::process::id();
        let path = (0..u32::MAX)
            .map(|_| all.join(format!("{process}.{}", NEXT.fetch_add(1, Relaxed))))
            .find(|path| !path.exists())
            .unwrap_or_else(|| all.join("none"));
        let dir = Dir::create(&path)?;
        let lock = lock_file(&path.join("lock"))?;
        flock(&lock, FlockOperation::LockExclusive).map_err(|e| io_err("lock", &path, e.into()))?;
        Ok(Self { dir, process, _lock: lock })
    }

    /// Returns the directory.
    #[must_use]
    pub fn dir(&self) -> &Dir {
        &self.dir
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            return;
        }
        // Without this lock, somebody who makes another directory could open the lock file of this
        // one in the middle, and take it for a left-over.
        let _guard = self.dir.path.parent().map(lock_all);
        drop(std::fs::remove_dir_all(&self.dir.path));
    }
}

/// A file that is locked until this is dropped. Closing the file is not enough: a child that was
/// forked meanwhile has it open too, and would keep the lock.
#[derive(Debug)]
pub(crate) struct Locked(pub File);

impl Locked {
    /// Locks a file; waits for whoever has it locked.
    pub(crate) fn exclusively(file: File) -> Result<Self, Errno> {
        flock(&file, FlockOperation::LockExclusive)?;
        Ok(Self(file))
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // Closing it does the same where there is no such child.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

/// Keeps others from making or removing directories in `all`.
fn lock_all(all: &Path) -> Result<Locked, DirError> {
    let guard = lock_file(&all.join("lock"))?;
    Locked::exclusively(guard).map_err(|e| io_err("lock", all, e.into()))
}

fn lock_file(path: &Path) -> Result<File, DirError> {
    File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .map_err(|e| io_err("open", path, e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_isa::MapType;
    use skep_maps::{Map, MapDef};
    use std::os::unix::fs::PermissionsExt;

    fn temp(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("skep-dir-{}-{name}", std::process::id()));
        drop(std::fs::remove_dir_all(&path));
        path
    }

    #[test]
    fn ids_grow_and_are_not_reused_even_when_the_counter_is_lost()
    -> Result<(), Box<dyn std::error::Error>> {
        let path = temp("ids");
        let dir = Dir::create(&path)?;
        assert_eq!(
            (dir.next_id(Kind::Map)?, dir.next_id(Kind::Map)?, dir.next_id(Kind::Link)?),
            (1, 2, 1)
        );
        std::fs::write(dir.object(Kind::Map, 9), b"")?;
        std::fs::write(path.join("maps.next"), b"rubbish")?;
        assert_eq!(dir.next_id(Kind::Map)?, 10);
        std::fs::remove_dir_all(&path)?;
        Ok(())
    }

    /// What an earlier version made lacks a kind of objects that came later.
    #[test]
    fn a_kind_that_is_not_there_has_no_objects() -> Result<(), Box<dyn std::error::Error>> {
        let path = temp("kinds");
        let dir = Dir::create(&path)?;
        std::fs::remove_dir(dir.kind(Kind::Btf))?;
        assert!(dir.ids(Kind::Btf)?.is_empty());
        std::fs::write(dir.kind(Kind::Btf), b"")?;
        let error = dir.ids(Kind::Btf).map_err(|e| e.to_string());
        let what = format!("cannot list `{}`: ", dir.kind(Kind::Btf).display());
        assert!(error.as_ref().is_err_and(|e| e.starts_with(&what)), "{error:?}");
        std::fs::remove_dir_all(&path)?;
        Ok(())
    }

    #[test]
    fn scratch_directories_come_and_go_beside_each_other() -> Result<(), Box<dyn std::error::Error>>
    {
        let path = temp("scratches");
        let dir = Dir::create(&path)?;
        std::thread::scope(|scope| {
            let make = || (0..300).try_for_each(|_| Scratch::create_in(&dir).map(drop));
            let all = [(); 4].map(|()| scope.spawn(make));
            all.into_iter().try_for_each(|t| t.join().expect("no panic"))
        })?;
        std::fs::remove_dir_all(&path)?;
        Ok(())
    }

    #[test]
    fn a_directory_open_to_others_is_refused() -> Result<(), Box<dyn std::error::Error>> {
        let path = temp("mode");
        Dir::create(&path)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
        assert!(matches!(Dir::open(&path), Err(DirError::Mode { mode: 0o755, .. })));
        std::fs::remove_dir_all(&path)?;
        Ok(())
    }

    #[test]
    fn a_directory_of_another_user_is_refused() -> Result<(), Box<dyn std::error::Error>> {
        if !skep_testkit::skip::is_root() {
            skep_testkit::skip("root, to give a directory to another user");
            return Ok(());
        }
        let path = temp("owner");
        Dir::create(&path)?;
        std::os::unix::fs::chown(&path, Some(65_534), None)?;
        assert!(matches!(Dir::open(&path), Err(DirError::Owner { owner: 65_534, .. })));
        std::fs::remove_dir_all(&path)?;
        Ok(())
    }

    /// Each run left its own in memory, as long as there was any map.
    #[test]
    fn types_stay_as_long_as_a_map_refers_to_them() -> Result<(), Box<dyn std::error::Error>> {
        let path = temp("types");
        let dir = Dir::create(&path)?;
        let [first, other] = [(); 2].map(|()| crate::btf::store(&dir, b"types"));
        let (first, other) = (first?, other?);
        // Whoever stored them may be about to make a map.
        assert_eq!((dir.collect()?, dir.ids(Kind::Btf)?), (0, vec![1, 2]));
        let mut def = MapDef::new(MapType::Hash, 4, 4, 8);
        def.btf_id = first.id();
        let map = Map::create(&dir.kind(Kind::Map), dir.next_id(Kind::Map)?, &def)?;
        drop((first, other));
        assert_eq!((dir.collect()?, dir.ids(Kind::Btf)?), (1, vec![1]));
        // A map that nobody has open is read, too, as it is pinned.
        std::fs::hard_link(map.file().path(), path.join("pins/a"))?;
        drop(map);
        let third = crate::btf::store(&dir, b"types")?.id();
        assert_eq!((third, dir.collect()?, dir.ids(Kind::Btf)?), (3, 1, vec![1]));
        std::fs::remove_file(path.join("pins/a"))?;
        assert_eq!((dir.collect()?, dir.ids(Kind::Btf)?), (2, vec![]));
        std::fs::remove_dir_all(&path)?;
        Ok(())
    }

    #[test]
    fn what_nobody_uses_is_removed_and_what_is_locked_or_pinned_stays()
    -> Result<(), Box<dyn std::error::Error>> {
        let path = temp("collect");
        let dir = Dir::create(&path)?;
        for id in 1..=3 {
            std::fs::write(dir.object(Kind::Map, id), b"x")?;
        }
        let used = File::open(dir.object(Kind::Map, 1))?;
        flock(&used, FlockOperation::LockShared)?;
        std::fs::hard_link(dir.object(Kind::Map, 2), path.join("pins/kept"))?;
        assert_eq!(dir.collect()?, 1);
        assert_eq!(dir.ids(Kind::Map)?, [1, 2]);
        std::fs::remove_dir_all(&path)?;
        Ok(())
    }

    #[test]
    fn a_scratch_directory_goes_with_its_owner_or_by_the_next_one()
    -> Result<(), Box<dyn std::error::Error>> {
        let path = temp("scratch");
        let dir = Dir::create(&path)?;
        let (one, two) = (Scratch::create_in(&dir)?, Scratch::create_in(&dir)?);
        assert_ne!(one.dir().path(), two.dir().path());
        let (mine, other) = (one.dir().path().to_owned(), two.dir().path().to_owned());
        drop(two);
        assert!(mine.is_dir() && !other.exists());
        // What a killed process left: files, and a lock nobody holds.
        let left = path.join("scratch/999.0");
        std::fs::create_dir(&left)?;
        std::fs::write(left.join("lock"), b"")?;
        std::fs::write(left.join("rest"), b"x")?;
        let three = Scratch::create_in(&dir)?;
        assert!(!left.exists() && mine.is_dir() && three.dir().path().is_dir());
        std::fs::remove_dir_all(&path)?;
        Ok(())
    }
}
