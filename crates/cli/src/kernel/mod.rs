//! Maps of the running kernel: read by batches where their type has them, else key by key.

mod sys;

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use skep::isa::{MapFlags, MapType};
use skep::object::Btf;

use crate::failure::{Failure, Result};
use sys::RawMap;

/// What the kernel tells of a map.
#[derive(Debug, Clone)]
pub struct Info {
    /// Its number.
    pub id: u32,
    /// Its name, up to 15 characters.
    pub name: String,
    /// The number of its type.
    pub type_number: u32,
    /// Bytes of a key.
    pub key_size: u32,
    /// Bytes of a value.
    pub value_size: u32,
    /// Most elements.
    pub max_entries: u32,
    /// Flags given at creation.
    pub flags: MapFlags,
    /// A number whose meaning depends on the type.
    pub map_extra: u64,
    /// The BTF object with its types, 0 none.
    pub btf_id: u32,
    /// The key's type there.
    pub key_type_id: u32,
    /// The value's type there.
    pub value_type_id: u32,
}

impl Info {
    fn parse(b: &[u8; 128]) -> Self {
        let u32_at = |at: usize| u32::from_ne_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
        let name = b[24..40].split(|b| *b == 0).next().unwrap_or_default();
        Self {
            type_number: u32_at(0),
            id: u32_at(4),
            key_size: u32_at(8),
            value_size: u32_at(12),
            max_entries: u32_at(16),
            flags: MapFlags(u32_at(20)),
            name: String::from_utf8_lossy(name).into_owned(),
            btf_id: u32_at(64),
            key_type_id: u32_at(68),
            value_type_id: u32_at(72),
            map_extra: u64::from(u32_at(80)) | u64::from(u32_at(84)) << 32,
        }
    }

    /// Its type, when this program knows it.
    pub fn map_type(&self) -> Option<MapType> {
        MapType::from_raw(self.type_number)
    }

    /// Tells whether there is a value for each CPU.
    pub fn is_per_cpu(&self) -> bool {
        use MapType as T;
        matches!(
            self.map_type(),
            Some(T::PercpuHash | T::PercpuArray | T::LruPercpuHash | T::PercpuCgroupStorage)
        )
    }

    /// Bytes that a lookup copies out; `None` when the number of CPUs is not known.
    fn user_value_size(&self) -> Option<usize> {
        let size = self.value_size as usize;
        if self.is_per_cpu() {
            Some(size.next_multiple_of(8) * possible_cpus()?)
        } else {
            Some(size)
        }
    }
}

/// Counts the CPUs the kernel keeps values for.
pub fn possible_cpus() -> Option<usize> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible").ok()?;
    let last = text.trim().rsplit([',', '-']).next()?;
    last.parse::<usize>().ok().map(|n| n + 1)
}

/// An open map of the kernel.
#[derive(Debug)]
pub struct KernelMap {
    raw: RawMap,
    /// What the kernel tells of it.
    pub info: Info,
}

/// Tells whether a path leads into a bpf file system, as far as it can be followed.
pub fn in_bpf_fs(path: &Path) -> bool {
    const BPF_FS_MAGIC: u32 = 0xcafe_4a11;
    path.ancestors()
        .find_map(|p| rustix::fs::statfs(p).ok())
        .is_some_and(|s| s.f_type as u32 == BPF_FS_MAGIC)
}

/// Says what a refusal of the kernel means.
fn refused(what: &str, error: &io::Error) -> Failure {
    let failure = Failure::environment(format!("cannot {what}: {error}"));
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => failure.hint(
            "the kernel's maps can be read by root, or with the capabilities `bpf` and `sys_admin`",
        ),
        Some(libc::ENOSYS) => failure.hint("this kernel was built without bpf()"),
        _ => failure,
    }
}

/// Lists the ids of all maps.
pub fn ids() -> Result<Vec<u32>> {
    let mut ids = Vec::new();
    loop {
        match sys::next_id(ids.last().copied().unwrap_or(0)) {
            Ok(id) => ids.push(id),
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return Ok(ids),
            Err(e) => return Err(refused("list the kernel's maps", &e)),
        }
    }
}

impl KernelMap {
    /// Opens a map by its id; `None` when there is none.
    pub fn open(id: u32) -> Result<Option<Self>> {
        let what = format!("open map {id} of the kernel");
        let fd = match sys::map_fd(id) {
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
            done => done.map_err(|e| refused(&what, &e))?,
        };
        Self::of(fd, &what).map(Some)
    }

    /// Opens what is pinned under a path in a bpf file system; `None` when there is nothing.
    pub fn pinned(path: &Path) -> Result<Option<Self>> {
        let what = format!("open the pin `{}`", path.display());
        let refused = |e: io::Error| refused(&what, &e);
        let fd = match sys::pinned(
            &CString::new(path.as_os_str().as_bytes()).map_err(|e| refused(e.into()))?,
        ) {
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
            // So says the kernel of any other file, too.
            Err(e)
                if e.raw_os_error() == Some(libc::EACCES)
                    && (path.is_dir() || !in_bpf_fs(path)) =>
            {
                return Err(Failure::failed(format!(
                    "`{}` is no pin: pins are files in a bpf file system",
                    path.display()
                ))
                .hint("most are below /sys/fs/bpf"));
            }
            done => done.map_err(refused)?,
        };
        // Programs and links are pinned as well.
        let kind =
            std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap_or_default();
        if kind != Path::new("anon_inode:bpf-map") {
            return Err(Failure::failed(format!("`{}` is no map", path.display())));
        }
        Self::of(fd, &what).map(Some)
    }

    fn of(fd: OwnedFd, what: &str) -> Result<Self> {
        let info = Info::parse(&sys::info(&fd).map_err(|e| refused(what, &e))?);
        let value_size = info.user_value_size();
        let value_size = value_size.ok_or_else(|| {
            Failure::environment("cannot tell how many CPUs there are: /sys is not readable")
        })?;
        Ok(Self { raw: RawMap::new(fd, info.key_size as usize, value_size), info })
    }

    /// Opens every map; those that vanish meanwhile are left out.
    pub fn all() -> Result<Vec<Self>> {
        ids()?.into_iter().filter_map(|id| Self::open(id).transpose()).collect()
    }

    /// Reads the map's types; without any, or without the right to see them, values are bytes.
    pub fn btf(&self) -> Option<Btf> {
        if self.info.btf_id == 0 {
            return None;
        }
        Btf::parse(&sys::btf(&sys::btf_fd(self.info.btf_id).ok()?).ok()?).ok()
    }

    /// Bytes of a value as it is read.
    pub fn value_size(&self) -> usize {
        self.raw.value_size()
    }

    /// Copies the value of a key out; `None` when there is no such key.
    pub fn lookup(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut value = vec![0; self.raw.value_size()];
        match self.raw.lookup(key, &mut value) {
            Ok(()) => Ok(Some(value)),
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(e) => Err(refused(&format!("look into map {} of the kernel", self.info.id), &e)),
        }
    }

    /// Finds the key after another one, the first one after none; `None` at the end.
    pub fn next_key(&self, key: Option<&[u8]>) -> Result<Option<Vec<u8>>> {
        let mut next = vec![0; self.raw.key_size()];
        match self.raw.next_key(key, &mut next) {
            Ok(()) => Ok(Some(next)),
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(e) => Err(refused(
                &format!("walk over the keys of map {} of the kernel", self.info.id),
                &e,
            )),
        }
    }

    /// Gives every element to `each`, many at a time: keys, values, how many. Stops when it says
    /// `false`.
    pub fn walk(&self, mut each: impl FnMut(&[u8], &[u8], usize) -> bool) -> Result {
        let (k, v) = (self.raw.key_size(), self.raw.value_size());
        let what = format!("dump map {} of the kernel", self.info.id);
        if k == 0 {
            let what = format!(
                "map {} of the kernel has no keys, and the kernel shows no more than its next value",
                self.info.id
            );
            return Err(Failure::failed(what).hint("`skep map peek --kernel` prints that"));
        }
        // Enough that the calls cost nothing; a bucket that does not fit makes it grow.
        let mut room = (1 << 18 >> (k + v).max(1).ilog2()).clamp(16, 1 << 14);
        let (mut keys, mut values) = (vec![0; room * k], vec![0; room * v]);
        let (mut begun, mut cursor) = (false, Vec::new());
        loop {
            // A batch that failed leaves its own idea of a cursor: go on from the one that was
            // good.
            let good = cursor.clone();
            let (done, n) = self.raw.lookup_batch(begun, &mut cursor, &mut keys, &mut values);
            match done.as_ref().map_err(io::Error::raw_os_error) {
                Ok(()) => begun = true,
                Err(Some(libc::ENOENT)) => {
                    if n > 0 {
                        each(&keys, &values, n);
                    }
                    return Ok(());
                }
                Err(Some(libc::ENOSPC)) if room <= self.info.max_entries as usize => {
                    room *= 2;
                    (keys, values) = (vec![0; room * k], vec![0; room * v]);
                    cursor = good;
                    continue;
                }
                // No batches for this type (524), or none at all (EINVAL): key by key.
                Err(Some(524 | libc::EINVAL)) if !begun => return self.walk_keys(&what, each),
                Err(_) => return Err(refused(&what, &done.expect_err("just seen"))),
            }
            if !each(&keys, &values, n) {
                return Ok(());
            }
        }
    }

    /// Key by key: when a key vanishes under it, the kernel begins again at the first one, so it
    /// ends after as many as fit.
    fn walk_keys(&self, what: &str, mut each: impl FnMut(&[u8], &[u8], usize) -> bool) -> Result {
        let mut next = vec![0; self.raw.key_size()];
        let (mut key, mut value) = (None::<Vec<u8>>, vec![0; self.raw.value_size()]);
        for _ in 0..=self.info.max_entries {
            match self.raw.next_key(key.as_deref(), &mut next) {
                Ok(()) => {}
                Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return Ok(()),
                Err(e) => return Err(refused(what, &e)),
            }
            match self.raw.lookup(&next, &mut value) {
                Ok(()) => {
                    if !each(&next, &value, 1) {
                        return Ok(());
                    }
                }
                // Gone since, or a place without anything in it.
                Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {}
                Err(e) => return Err(refused(what, &e)),
            }
            key = Some(next.clone());
        }
        Ok(())
    }
}
