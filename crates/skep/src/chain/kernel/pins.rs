//! Files of the bpf file system: the links of chains, and the maps that users asked for by name.

use std::ffi::CString;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use skep_isa::{MapType, errno};
use skep_kernel::{Link, Map};
use skep_object::MapSpec;

use super::error::KernelChainError as Error;
use super::{KernelMap, Result, maps};
use crate::load::definition::short_name;

/// Where the bpf file system is, usually.
pub const BPF_FS: &str = "/sys/fs/bpf";

const BPF_FS_MAGIC: u64 = 0xcafe_4a11;

/// Links of chains lie in this directory of the bpf file system.
const LINKS: &str = "skep";

fn file_error(what: &str, path: &Path, why: &dyn std::fmt::Display) -> Error {
    Error::File { what: format!("cannot {what} `{}`: {why}", path.display()) }
}

fn c_path(path: &Path) -> Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|e| file_error("use", path, &e))
}

/// Checks that a path leads into a bpf file system, as far as it can be followed.
fn check_bpf_fs(path: &Path) -> Result<()> {
    let found = path.ancestors().find_map(|p| rustix::fs::statfs(p).ok());
    if found.is_some_and(|s| s.f_type as u64 == BPF_FS_MAGIC) {
        return Ok(());
    }
    let path = path.display();
    Err(Error::File {
        what: format!("`{path}` is not in a bpf file system (`mount -t bpf bpf {BPF_FS}`)"),
    })
}

/// The pin of an interface's link, under a lock that all of skep's attaching and detaching takes. It
/// falls with the process.
pub struct LinkPin {
    path: PathBuf,
    _lock: File,
}

impl LinkPin {
    /// Finds the place for an interface of the thread's network namespace, which is part of the
    /// name: numbers of interfaces are the same in others.
    pub fn lock(bpf_fs: &Path, ifindex: u32) -> Result<Self> {
        check_bpf_fs(bpf_fs)?;
        let dir = bpf_fs.join(LINKS);
        match std::fs::create_dir(&dir) {
            Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(file_error("make", &dir, &e));
            }
            _ => {}
        }
        let lock = File::open(&dir).map_err(|e| file_error("open", &dir, &e))?;
        rustix::fs::flock(&lock, FlockOperation::LockExclusive)
            .map_err(|e| file_error("lock", &dir, &e))?;
        Ok(Self { path: Self::path(bpf_fs, ifindex)?, _lock: lock })
    }

    /// Returns where the link of an interface is pinned.
    pub fn path(bpf_fs: &Path, ifindex: u32) -> Result<PathBuf> {
        let namespace = Path::new("/proc/thread-self/ns/net");
        let inode =
            std::fs::metadata(namespace).map_err(|e| file_error("look at", namespace, &e))?.ino();
        Ok(bpf_fs.join(LINKS).join(format!("xdp-{inode}-{ifindex}")))
    }

    /// Opens the link that is pinned there.
    pub fn open(path: &Path) -> Result<Option<Link>> {
        match Link::pinned(&c_path(path)?) {
            Ok(Some(link)) => Ok(Some(link)),
            Ok(None) => Err(file_error("use", path, &"it is not a link; remove it")),
            Err(e) if e.is_not_found() => Ok(None),
            Err(e) => Err(file_error("open", path, &e)),
        }
    }

    pub fn link(&self) -> Result<Option<Link>> {
        Self::open(&self.path)
    }

    pub fn pin(&self, link: &Link) -> Result<()> {
        link.pin(&c_path(&self.path)?).map_err(|e| file_error("pin the link at", &self.path, &e))
    }

    pub fn remove(&self) -> Result<()> {
        std::fs::remove_file(&self.path).map_err(|e| file_error("remove", &self.path, &e))
    }
}

/// A directory of a bpf file system in which maps of chains are pinned: `OBJECT/MAP`, with `_` for
/// characters that cannot be there. Maps that are there are used again, so that what they hold
/// outlives changes of the chain; global variables and arrays of programs begin anew.
#[derive(Clone, Debug)]
pub struct MapPins {
    dir: PathBuf,
    /// Names of the objects by number.
    objects: Vec<String>,
}

/// The kernel has no dots in names of pins.
fn pin_name(name: &str) -> String {
    let valid = |c: char| if c.is_ascii_alphanumeric() || "_-".contains(c) { c } else { '_' };
    name.chars().map(valid).collect()
}

/// A pin of this name takes the place of the one without when the chain is attached.
const NEW: &str = "new-";

impl MapPins {
    /// Makes the directories. Objects of the same name get numbers.
    ///
    /// # Errors
    /// When the directory is not in a bpf file system, or cannot be made.
    pub fn new(dir: &Path, objects: &[&str]) -> Result<Self> {
        check_bpf_fs(dir)?;
        let mut names: Vec<String> = Vec::new();
        for object in objects {
            let name = pin_name(object);
            let free = (1..).map(|n| if n == 1 { name.clone() } else { format!("{name}-{n}") });
            names.extend(free.into_iter().find(|n| !names.contains(n)));
        }
        for name in &names {
            let dir = dir.join(name);
            std::fs::create_dir_all(&dir).map_err(|e| file_error("make", &dir, &e))?;
        }
        Ok(Self { dir: dir.to_owned(), objects: names })
    }

    fn path(&self, object: usize, map: &str, prefix: &str) -> PathBuf {
        let object = self.objects.get(object).map_or("", String::as_str);
        self.dir.join(object).join(format!("{prefix}{}", pin_name(map)))
    }

    /// Opens the map that is pinned for a definition.
    ///
    /// # Errors
    /// When something else is pinned there, or a map of another kind.
    pub fn existing(&self, object: usize, spec: &MapSpec) -> Result<Option<Map>> {
        if spec.is_global_data() || spec.map_type == MapType::ProgArray {
            return Ok(None);
        }
        let path = self.path(object, &spec.name, "");
        let opened = match Map::pinned_for_writing(&c_path(&path)?) {
            Err(e) if e.errno() == errno::ENOENT => return Ok(None),
            opened => opened.map_err(|e| file_error("open", &path, &e))?,
        };
        let why = "it is not the map that the object defines; remove it, or use another directory";
        let map = opened.ok_or_else(|| file_error("use", &path, &why))?;
        let info = map.info().map_err(|e| file_error("open", &path, &e))?;
        let fits = maps::plain(spec, &short_name(&spec.name)).is_ok_and(|want| {
            let same = (info.type_number, info.key_size, info.value_size, info.max_entries)
                == (want.map_type as u32, want.key_size, want.value_size, want.max_entries);
            same && info.flags.0 == want.flags.0
        });
        if fits { Ok(Some(map)) } else { Err(file_error("use", &path, &why)) }
    }

    /// Pins new maps beside their places.
    pub(super) fn prepare(&self, maps: &[KernelMap]) -> Result<()> {
        for map in maps.iter().filter(|m| !m.existed) {
            let path = self.path(map.object, &map.name, NEW);
            // Of somebody who was killed between the two steps.
            drop(std::fs::remove_file(&path));
            map.map.pin(&c_path(&path)?).map_err(|e| file_error("pin a map at", &path, &e))?;
        }
        Ok(())
    }

    /// Puts the new pins into their places.
    pub(super) fn finish(&self, maps: &[KernelMap]) -> Result<()> {
        for map in maps.iter().filter(|m| !m.existed) {
            let [from, to] = [NEW, ""].map(|p| self.path(map.object, &map.name, p));
            std::fs::rename(&from, &to).map_err(|e| file_error("rename", &from, &e))?;
        }
        Ok(())
    }

    /// Takes pins back that were prepared for a chain that was not attached.
    pub(super) fn abandon(&self, maps: &[KernelMap]) {
        for map in maps.iter().filter(|m| !m.existed) {
            drop(std::fs::remove_file(self.path(map.object, &map.name, NEW)));
        }
    }
}
