//! Maps of the running kernel, as commands read them: what is missing or refused is said in words.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use skep::isa::errno;
use skep::object::Btf;
use skep_kernel::{Batch, Command, Map, MapInfo, Result as KernelResult, map_ids};

use crate::failure::{Failure, Result};

/// An open map of the kernel.
#[derive(Debug)]
pub struct KernelMap {
    map: Map,
    /// What the kernel tells of it.
    pub info: MapInfo,
}

/// Tells whether a path leads into a bpf file system, as far as it can be followed.
pub fn in_bpf_fs(path: &Path) -> bool {
    const BPF_FS_MAGIC: u32 = 0xcafe_4a11;
    path.ancestors()
        .find_map(|p| rustix::fs::statfs(p).ok())
        .is_some_and(|s| s.f_type as u32 == BPF_FS_MAGIC)
}

/// Says what a refusal of the kernel means.
fn refused(what: &str, error: &skep_kernel::Error) -> Failure {
    let failure = Failure::environment(format!("cannot {what}: {error}"));
    match error.requirement() {
        Some(requirement) => failure.hint(format!("reading the kernel's maps needs {requirement}")),
        None => failure,
    }
}

/// Makes an error about something that is not there `None`, and any other a failure.
fn found<T>(done: KernelResult<T>, what: &str) -> Result<Option<T>> {
    match done {
        Ok(found) => Ok(Some(found)),
        Err(e) if e.is_not_found() => Ok(None),
        Err(e) => Err(refused(what, &e)),
    }
}

impl KernelMap {
    /// Opens a map by its id; `None` when there is none.
    pub fn open(id: u32) -> Result<Option<Self>> {
        let what = format!("open map {id} of the kernel");
        found(Map::open(id), &what)?.map(|map| Self::new(map, &what)).transpose()
    }

    /// Opens what is pinned under a path in a bpf file system; `None` when there is nothing.
    pub fn pinned(path: &Path) -> Result<Option<Self>> {
        let what = format!("open the pin `{}`", path.display());
        let name = CString::new(path.as_os_str().as_bytes())
            .map_err(|e| Failure::failed(format!("cannot {what}")).because(&e))?;
        let opened = Map::pinned(&name);
        // The kernel answers the same for any other file.
        let is_refused = matches!(&opened, Err(e) if e.errno() == errno::EACCES);
        if is_refused && (path.is_dir() || !in_bpf_fs(path)) {
            return Err(Failure::failed(format!(
                "`{}` is not a pin: pins are files in a bpf file system",
                path.display()
            ))
            .hint("most are below /sys/fs/bpf"));
        }
        match found(opened, &what)? {
            None => Ok(None),
            Some(Some(map)) => Self::new(map, &what).map(Some),
            Some(None) => Err(Failure::failed(format!("`{}` is not a map", path.display()))),
        }
    }

    fn new(map: Map, what: &str) -> Result<Self> {
        let info = map.info().map_err(|e| refused(what, &e))?;
        Ok(Self { map, info })
    }

    /// Opens it once more, to change it.
    pub fn for_writing(self) -> Result<Self> {
        let what = format!("open map {} of the kernel for writing", self.info.id);
        let map = Map::open_for_writing(self.info.id).map_err(|e| refused(&what, &e))?;
        Ok(Self { map, ..self })
    }

    /// Opens every map; those that vanish meanwhile are left out.
    pub fn all() -> Result<Vec<Self>> {
        let ids = map_ids().map_err(|e| refused("list the kernel's maps", &e))?;
        ids.into_iter().filter_map(|id| Self::open(id).transpose()).collect()
    }

    /// Reads the map's types; without any, or without the right to see them, values are bytes.
    pub fn btf(&self) -> Option<Btf> {
        if self.info.btf_id == 0 {
            return None;
        }
        Btf::parse(&skep_kernel::Btf::open(self.info.btf_id).ok()?.bytes().ok()?).ok()
    }

    /// Bytes of a value as it is read.
    pub fn value_size(&self) -> usize {
        self.map.user_value_size()
    }

    /// Copies the value of a key out; `None` when there is no such key.
    pub fn lookup(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        found(self.map.lookup(key), &format!("look up a key in map {} of the kernel", self.info.id))
    }

    /// Returns the key after another one, the first one after none; `None` at the end.
    pub fn next_key(&self, key: Option<&[u8]>) -> Result<Option<Vec<u8>>> {
        let what = format!("list the keys of map {} of the kernel", self.info.id);
        found(self.map.next_key(key), &what)
    }

    /// Stores elements from columns in their order; tells how many before an error.
    pub fn store(
        &self,
        keys: &mut [u8],
        values: &mut [u8],
        count: usize,
        flags: u64,
    ) -> (usize, KernelResult) {
        let (key_size, value_size) = (self.map.key_size(), self.value_size());
        if key_size > 0 {
            let Batch { result, count: done } = self.map.batch(
                Command::MapUpdateBatch,
                (None, &mut vec![0; key_size.max(4)]),
                (keys, values),
                u32::try_from(count).unwrap_or(u32::MAX),
                flags,
            );
            match result.as_ref().map_err(skep_kernel::Error::errno) {
                // No batches for this type or these flags, or none at all. Where a whole batch is
                // refused, the count says nothing.
                Err(errno::ENOTSUPP | errno::EINVAL | errno::EPERM) => {}
                Ok(()) => return (count, result),
                Err(_) => return ((done as usize).min(count), result),
            }
        }
        for i in 0..count {
            let part = |column: &[u8], size: usize| -> Vec<u8> {
                column.get(i * size..(i + 1) * size).unwrap_or_default().to_vec()
            };
            let done = self.map.update(&part(keys, key_size), &part(values, value_size), flags);
            if done.is_err() {
                return (i, done);
            }
        }
        (count, Ok(()))
    }

    /// Gives every element to `each`, many at a time: keys, values, how many. Ends early when it
    /// returns `false`.
    pub fn walk(&self, each: impl FnMut(&[u8], &[u8], usize) -> bool) -> Result {
        if self.map.key_size() == 0 {
            let what = format!(
                "map {} of the kernel has no keys, and the kernel shows only its next value",
                self.info.id
            );
            return Err(Failure::failed(what).hint("`skep map peek --kernel` prints that"));
        }
        self.map
            .walk(each)
            .map_err(|e| refused(&format!("dump map {} of the kernel", self.info.id), &e))
    }
}
