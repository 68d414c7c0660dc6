//! Putting the agent into a file that programs can load: once for each version, in a directory
//! that nobody else can write to.
//!
//! The file is `agents/HASH/libskep_preload.so` in the first of these places that will do: the skep
//! directory, the user's cache, `/tmp` and `/var/tmp`. Some will not: `/dev/shm` is mounted without
//! the right to execute in containers, and a skep directory may have room for little more than its
//! maps. Each directory on the way is this user's and closed to others, or the place is not used.
//! A file that is there is used when it is this user's alone and has the agent's hash, and is
//! replaced otherwise: by a new one that takes its name whole, so that nobody sees half a file, and
//! programs that have loaded the old one keep it.

use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{OFlags, StatVfsMountFlags};

use super::hash::Hash;
use super::{Carried, LIBRARY, calls, can_be_preloaded};
use crate::args::ENV_PRELOAD;
use crate::failure::{Failure, Result};

/// Agents of other versions go when nobody has started a command with them for so long.
const UNUSED: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// A use is noted again after so long; unfinished files of killed commands go as late.
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// The file system has to have room for the agent this many times, or what is left would be too
/// little for maps.
const ROOM: u64 = 4;
/// Bytes of a file that are read together.
const AT_ONCE: usize = 1 << 16;

/// Tells why a place is not used.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("{call}: {source}")]
    Os { call: &'static str, source: io::Error },
    #[error("`{path}` is no directory", path = .0.display())]
    NoDirectory(PathBuf),
    #[error("`{path}` belongs to user {owner}", path = path.display())]
    Owner { path: PathBuf, owner: u32 },
    #[error("`{path}` is open to others (mode {mode:04o}, needs 0700)", path = path.display())]
    Mode { path: PathBuf, mode: u32 },
    #[error("its file system is mounted `noexec`")]
    NoExec,
    #[error("its file system has {0} bytes left")]
    Room(u64),
    #[error("the dynamic linker splits paths at spaces and colons, and expands `$`")]
    Name,
}

fn decompress(mut compressed: &[u8]) -> io::Result<Vec<u8>> {
    let mut library = Vec::new();
    lzma_rs::lzma_decompress(&mut compressed, &mut library).map_err(io::Error::other)?;
    calls::to_distances(&mut library);
    Ok(library)
}

/// Gives the path of the agent in a file.
pub(super) fn unpack(agent: Carried<'_>, skep_dir: &Path) -> Result<PathBuf> {
    first_usable(agent, &places(skep_dir))
}

/// Where the agent may lie, best first.
fn places(skep_dir: &Path) -> Vec<PathBuf> {
    let var = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = var("XDG_CACHE_HOME").or_else(|| Some(var("HOME")?.join(".cache")));
    let own = format!("skep-{}", rustix::process::geteuid().as_raw());
    [Some(skep_dir.to_owned()), cache.map(|cache| cache.join("skep"))]
        .into_iter()
        .flatten()
        .chain(["/tmp", "/var/tmp"].map(|shared| Path::new(shared).join(&own)))
        .collect()
}

fn first_usable(agent: Carried<'_>, places: &[PathBuf]) -> Result<PathBuf> {
    let mut refused = Vec::new();
    for place in places {
        match provide(agent, place) {
            Ok(path) => return Ok(path),
            Err(why) => refused.push(format!("not in `{}`: {why}", place.display())),
        }
    }
    let mut failure = Failure::environment("there is no place for the agent's library")
        .hint(format!("{ENV_PRELOAD} names a copy of it"));
    failure.causes = refused;
    Err(failure)
}

/// Gives the path of the agent in a place, where it is put if need be.
fn provide(agent: Carried<'_>, place: &Path) -> Result<PathBuf, Refusal> {
    let all = place.join("agents");
    let own = all.join(agent.hash);
    let path = own.join(LIBRARY);
    if !can_be_preloaded(&path) {
        return Err(Refusal::Name);
    }
    if let Some(parent) = place.parent().filter(|parent| !parent.exists()) {
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700).create(parent).map_err(os("mkdir"))?;
    }
    for dir in [place, &all, &own] {
        own_directory(dir)?;
    }
    let system = rustix::fs::statvfs(&own).map_err(|e| os("statvfs")(e.into()))?;
    if system.f_flag.contains(StatVfsMountFlags::NOEXEC) {
        return Err(Refusal::NoExec);
    }
    if !is_usable(&path, agent.hash) {
        let library = decompress(agent.compressed).map_err(os("decompress"))?;
        let room = system.f_bavail.saturating_mul(system.f_frsize);
        // A file system without a limit says that it has no blocks at all.
        if system.f_blocks > 0 && room < ROOM * library.len() as u64 {
            return Err(Refusal::Room(room));
        }
        write(&library, &own)?;
        sweep(&all, agent.hash);
    }
    Ok(path)
}

fn os(call: &'static str) -> impl Fn(io::Error) -> Refusal {
    move |source| Refusal::Os { call, source }
}

/// Makes a directory, or checks that the one that is there is this user's alone.
fn own_directory(path: &Path) -> Result<(), Refusal> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(os("mkdir")(e)),
        _ => {}
    }
    // The skep directory itself may be a link to where it is.
    let meta = std::fs::metadata(path).map_err(os("stat"))?;
    let (path, owner, mode) = (path.to_owned(), meta.uid(), meta.mode() & 0o7777);
    if !meta.is_dir() {
        Err(Refusal::NoDirectory(path))
    } else if owner != me() {
        Err(Refusal::Owner { path, owner })
    } else if mode & 0o077 != 0 {
        Err(Refusal::Mode { path, mode })
    } else {
        Ok(())
    }
}

fn me() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Tells whether a file is this user's alone and has this hash. One that is used is young.
fn is_usable(path: &Path, wanted: &str) -> bool {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
    let Ok(mut file) = OpenOptions::new().read(true).custom_flags(flags as i32).open(path) else {
        return false;
    };
    let Ok(meta) = file.metadata() else { return false };
    let ours = meta.is_file() && meta.uid() == me() && meta.mode() & 0o022 == 0;
    if !ours || hash_of(&mut file).ok().as_deref() != Some(wanted) {
        return false;
    }
    if age(&meta) > DAY {
        // What cannot be noted makes it go earlier, and come again.
        drop(file.set_modified(SystemTime::now()));
    }
    true
}

/// The hash of what is in a file. A part of it after the other is read: memory for all would take longer
/// than that.
fn hash_of(file: &mut File) -> io::Result<String> {
    let mut buffer = vec![0; AT_ONCE];
    let (mut hash, mut filled) = (Hash::default(), 0);
    loop {
        let Some(room) = buffer.get_mut(filled..) else { return Err(ErrorKind::Other.into()) };
        match file.read(room) {
            Ok(0) => return Ok(hash.end(buffer.get(..filled).unwrap_or_default())),
            Ok(n) => filled += n,
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        }
        let (words, rest) = buffer.get(..filled).unwrap_or_default().as_chunks::<8>();
        hash.add(words);
        let (used, rest) = (filled - rest.len(), rest.len());
        buffer.copy_within(used..filled, 0);
        filled = rest;
    }
}

/// Puts the agent into a directory, whole from the first moment.
fn write(bytes: &[u8], dir: &Path) -> Result<(), Refusal> {
    let unique = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let new = dir.join(format!(".{}-{}", std::process::id(), unique.as_nanos()));
    let done = (|| {
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o500)
            .open(&new)
            .map_err(os("open"))?;
        file.write_all(bytes).map_err(os("write"))?;
        // A loader that opens a file for writing elsewhere would find it busy.
        drop::<File>(file);
        std::fs::rename(&new, dir.join(LIBRARY)).map_err(os("rename"))
    })();
    if done.is_err() {
        drop(std::fs::remove_file(&new));
    }
    done
}

fn age(meta: &Metadata) -> Duration {
    meta.modified().ok().and_then(|at| at.elapsed().ok()).unwrap_or_default()
}

/// Removes agents that were not used for long, and what killed commands did not finish.
fn sweep(all: &Path, own: &str) {
    let entries = |dir: &Path| std::fs::read_dir(dir).into_iter().flatten().flatten();
    for version in entries(all) {
        let path = version.path();
        let library = std::fs::symlink_metadata(path.join(LIBRARY));
        let last = library.or_else(|_| version.metadata());
        if version.file_name() == *own {
            for file in entries(&path) {
                let unfinished = file.file_name().as_encoded_bytes().starts_with(b".");
                if unfinished && file.metadata().is_ok_and(|meta| age(&meta) > DAY) {
                    drop(std::fs::remove_file(file.path()));
                }
            }
        } else if last.is_ok_and(|meta| age(&meta) > UNUSED) {
            drop(std::fs::remove_dir_all(&path));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use skep_testkit::TempDir;

    use super::*;

    const LIBRARY_BYTES: &[u8] = b"an agent";
    /// What `xz --format=lzma` makes of those bytes.
    const AGENT: Carried<'static> = Carried { compressed: b"]\x00\x00\x80\x00\xff\xff\xff\xff\xff\xff\xff\xff\x000\x9b\x80\x05\x11\xfch[\x12\x91O9\xff\xffRx\x00\x00", hash: "3006ea9b098f2204" };

    fn set_mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("it is ours");
    }

    fn inode(path: &Path) -> u64 {
        std::fs::metadata(path).expect("it is there").ino()
    }

    #[test]
    fn a_file_is_made_once_and_used_as_long_as_it_is_the_agent() -> Result<(), Refusal> {
        let dir = TempDir::new();
        let path = provide(AGENT, dir.path())?;
        assert_eq!(path, dir.join("agents/3006ea9b098f2204/libskep_preload.so"));
        let meta = std::fs::metadata(&path).expect("it is there");
        assert_eq!((meta.mode() & 0o7777, meta.len()), (0o500, 8));
        let first = inode(&path);
        provide(AGENT, dir.path())?;
        assert_eq!(inode(&path), first, "it is used again");

        let damage: [(&str, &dyn Fn()); 4] = [
            ("others may write", &|| set_mode(&path, 0o722)),
            ("cut off", &|| File::options().write(true).open(&path).unwrap().set_len(0).unwrap()),
            ("other bytes", &|| {
                set_mode(&path, 0o700);
                std::fs::write(&path, b"no agent").unwrap();
            }),
            ("a link", &|| {
                std::fs::rename(&path, dir.join("elsewhere")).unwrap();
                symlink(dir.join("elsewhere"), &path).unwrap();
            }),
        ];
        for (what, damage) in damage {
            set_mode(&path, 0o700);
            damage();
            provide(AGENT, dir.path())?;
            let meta = std::fs::symlink_metadata(&path).expect("it is there");
            assert_eq!((meta.is_file(), meta.mode() & 0o7777), (true, 0o500), "{what}");
            assert_eq!(std::fs::read(&path).unwrap(), LIBRARY_BYTES, "{what}");
        }
        Ok(())
    }

    #[test]
    fn a_place_that_others_can_enter_is_passed_over() -> Result<()> {
        let dir = TempDir::new();
        let (open, spaced, good) = (dir.join("open"), dir.join("a b"), dir.join("x/good"));
        std::fs::create_dir(&open).unwrap();
        set_mode(&open, 0o755);
        let found = first_usable(AGENT, &[open.clone(), spaced.clone(), good.clone()])?;
        assert_eq!(found, good.join("agents/3006ea9b098f2204/libskep_preload.so"));
        // A directory on the way that was opened later.
        set_mode(&good.join("agents"), 0o777);
        let failure = first_usable(AGENT, &[open, spaced, good]).expect_err("none is left");
        let causes = failure.causes.join("\n");
        assert!(causes.contains("is open to others (mode 0755, needs 0700)"), "{causes}");
        assert!(causes.contains("splits paths") && causes.contains("mode 0777"), "{causes}");
        assert_eq!((failure.causes.len(), failure.status), (3, 2));
        Ok(())
    }

    #[test]
    fn only_old_agents_are_swept() -> Result<(), Refusal> {
        let dir = TempDir::new();
        let other = Carried { hash: "0123456789abcdef", ..AGENT };
        let age = |path: &Path, by: Duration| {
            let file = File::open(path).expect("it is there");
            file.set_modified(SystemTime::now() - by).expect("it is ours");
        };
        let old = provide(other, dir.path())?;
        age(&old, UNUSED / 2);
        let new = provide(AGENT, dir.path())?;
        assert!(old.exists());
        age(&old, UNUSED * 2);
        let unfinished = new.with_file_name(".1-2");
        std::fs::write(&unfinished, "half").unwrap();
        age(&unfinished, DAY * 2);
        std::fs::remove_file(&new).unwrap();
        provide(AGENT, dir.path())?;
        assert!(!old.exists() && !unfinished.exists() && new.exists());
        // Using one keeps it.
        age(&new, UNUSED * 2);
        provide(AGENT, dir.path())?;
        std::fs::remove_dir_all(dir.join("agents").join(other.hash)).ok();
        provide(other, dir.path())?;
        assert!(new.exists());
        Ok(())
    }
}
