//! Maps of the kernel: created, or opened by id or pin; elements one by one, by batches, or all.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use skep_isa::{MapFlags, MapType, errno};

use crate::btf::Btf;
use crate::error::Result;
use crate::info::MapInfo;
use crate::sys::{self, RDONLY, RawMap};
use crate::{Command, attr};

/// Says what map to create.
#[derive(Clone, Copy, Debug)]
pub struct MapSpec<'a> {
    /// Its type.
    pub map_type: MapType,
    /// Bytes of a key.
    pub key_size: u32,
    /// Bytes of a value.
    pub value_size: u32,
    /// Most elements.
    pub max_entries: u32,
    /// `BPF_F_*`.
    pub flags: MapFlags,
    /// A number whose meaning depends on the type.
    pub map_extra: u64,
    /// Its name, of which the kernel keeps 15 bytes.
    pub name: &'a str,
    /// For maps of maps: a map like those that it will name.
    pub inner: Option<&'a Map>,
    /// Types of keys and values: ids in this type information.
    pub types: Option<(&'a Btf, [u32; 2])>,
}

impl<'a> MapSpec<'a> {
    /// Describes a map without flags, name and types.
    #[must_use]
    pub fn new(map_type: MapType, key_size: u32, value_size: u32, max_entries: u32) -> Self {
        Self {
            map_type,
            key_size,
            value_size,
            max_entries,
            flags: MapFlags::default(),
            map_extra: 0,
            name: "",
            inner: None,
            types: None,
        }
    }

    /// Sets the flags, from `BPF_F_*`.
    #[must_use]
    pub fn flags(self, flags: u32) -> Self {
        Self { flags: MapFlags(flags), ..self }
    }

    /// Makes it a map of maps like `inner`.
    #[must_use]
    pub fn inner(self, inner: &'a Map) -> Self {
        Self { inner: Some(inner), ..self }
    }

    fn attr(&self) -> attr::MapCreate {
        let mut attr = attr::MapCreate {
            map_type: self.map_type as u32,
            key_size: self.key_size,
            value_size: self.value_size,
            max_entries: self.max_entries,
            map_flags: self.flags.0,
            inner_map_fd: self.inner.map_or(0, |inner| inner.fd() as u32),
            map_extra: self.map_extra,
            ..Default::default()
        };
        let kept = attr.map_name.len() - 1;
        for (to, from) in attr.map_name[..kept].iter_mut().zip(self.name.bytes()) {
            *to = from;
        }
        if let Some((btf, [key, value])) = self.types {
            attr.btf_fd = btf.raw().number();
            (attr.btf_key_type_id, attr.btf_value_type_id) = (key, value);
        }
        attr
    }
}

/// What a BATCH command did.
#[derive(Debug)]
pub struct Batch {
    /// The kernel's answer.
    pub result: Result,
    /// The count that it left: elements that were done, also before an error. Where it refused the
    /// whole batch, the count that it was given.
    pub count: u32,
}

/// A map in the kernel. It lives as long as this, a program or a pin refers to it.
#[derive(Debug)]
pub struct Map {
    raw: RawMap,
}

impl Map {
    /// Creates a map.
    ///
    /// # Errors
    /// The kernel's errno.
    pub fn create(spec: &MapSpec<'_>) -> Result<Self> {
        RawMap::create(spec.attr()).map(|raw| Self { raw })
    }

    /// Opens a map by its id, for reading.
    ///
    /// # Errors
    /// `ENOENT` when there is none, else the kernel's errno.
    pub fn open(id: u32) -> Result<Self> {
        RawMap::by_id(id, RDONLY).map(|raw| Self { raw })
    }

    /// Opens a map by its id, for reading and writing.
    ///
    /// # Errors
    /// `ENOENT` when there is none, `EPERM` for one that users may not write, else the kernel's
    /// errno.
    pub fn open_for_writing(id: u32) -> Result<Self> {
        RawMap::by_id(id, 0).map(|raw| Self { raw })
    }

    /// Opens what is pinned under a path in a bpf file system, for reading; `None` when that is
    /// something else than a map.
    ///
    /// # Errors
    /// `ENOENT` when there is nothing, else the kernel's errno: `EACCES` in other file systems.
    pub fn pinned(path: &CStr) -> Result<Option<Self>> {
        Ok(RawMap::pinned(path, RDONLY)?.map(|raw| Self { raw }))
    }

    /// Opens what is pinned under a path, for reading and writing; `None` when that is something
    /// else than a map.
    ///
    /// # Errors
    /// As [`Map::pinned`].
    pub fn pinned_for_writing(path: &CStr) -> Result<Option<Self>> {
        Ok(RawMap::pinned(path, 0)?.map(|raw| Self { raw }))
    }

    /// Pins the map under a path in a bpf file system.
    ///
    /// # Errors
    /// `EEXIST` when there is something, else the kernel's errno.
    pub fn pin(&self, path: &CStr) -> Result {
        sys::pin(self.as_fd(), path)
    }

    /// Asks what the kernel knows of the map.
    ///
    /// # Errors
    /// The kernel's errno.
    pub fn info(&self) -> Result<MapInfo> {
        sys::map_info(self.raw.fd()).map(|info| MapInfo::new(&info))
    }

    /// Returns the descriptor's number: what goes into a map of maps.
    #[must_use]
    pub fn fd(&self) -> i32 {
        self.raw.fd().as_raw_fd()
    }

    /// Returns the bytes of a key.
    #[must_use]
    pub fn key_size(&self) -> usize {
        self.raw.key_size()
    }

    /// Returns the bytes of a value as user space sees it: for per-CPU types, those of all possible
    /// CPUs, each rounded up to 8.
    #[must_use]
    pub fn user_value_size(&self) -> usize {
        self.raw.value_size()
    }

    /// Copies the value of a key out.
    ///
    /// # Errors
    /// `ENOENT` when there is none, else the kernel's errno.
    pub fn lookup(&self, key: &[u8]) -> Result<Vec<u8>> {
        let mut value = vec![0; self.user_value_size()];
        self.lookup_into(key, &mut value)?;
        Ok(value)
    }

    /// Copies the value of a key to `value`.
    ///
    /// # Errors
    /// `ENOENT` when there is none, `EINVAL` when a slice is too short, else the kernel's errno.
    pub fn lookup_into(&self, key: &[u8], value: &mut [u8]) -> Result {
        self.raw.element(Command::MapLookupElem, Some(key), value, 0)
    }

    /// Stores a value.
    ///
    /// # Errors
    /// `EINVAL` when a slice is too short, else the kernel's errno.
    pub fn update(&self, key: &[u8], value: &[u8], flags: u64) -> Result {
        self.raw.update(key, value, flags)
    }

    /// Removes an element.
    ///
    /// # Errors
    /// `ENOENT` when there is none, else the kernel's errno.
    pub fn delete(&self, key: &[u8]) -> Result {
        self.raw.element(Command::MapDeleteElem, Some(key), &mut [], 0)
    }

    /// Removes an element (of a queue or stack, the next one) and returns its value.
    ///
    /// # Errors
    /// `ENOENT` when there is none, else the kernel's errno.
    pub fn lookup_and_delete(&self, key: &[u8]) -> Result<Vec<u8>> {
        let mut value = vec![0; self.user_value_size()];
        self.raw.element(Command::MapLookupAndDeleteElem, Some(key), &mut value, 0)?;
        Ok(value)
    }

    /// Returns the key after `key`, or the first.
    ///
    /// # Errors
    /// `ENOENT` at the end, else the kernel's errno.
    pub fn next_key(&self, key: Option<&[u8]>) -> Result<Vec<u8>> {
        let mut next = vec![0; self.key_size()];
        self.next_key_into(key, &mut next)?;
        Ok(next)
    }

    /// Copies the key after `key`, or the first, to `next`.
    ///
    /// # Errors
    /// `ENOENT` at the end, `EINVAL` when a slice is too short, else the kernel's errno.
    pub fn next_key_into(&self, key: Option<&[u8]>, next: &mut [u8]) -> Result {
        self.raw.element(Command::MapGetNextKey, key, next, 0)
    }

    /// Does a command that reads or removes one element, with whatever is given: an absent key and
    /// an empty value are null to the kernel.
    ///
    /// # Errors
    /// `EINVAL` for other commands or when a slice is too short, else the kernel's errno.
    pub fn element(
        &self,
        command: Command,
        key: Option<&[u8]>,
        value: &mut [u8],
        flags: u64,
    ) -> Result {
        self.raw.element(command, key, value, flags)
    }

    /// Does a BATCH command with the first `count` keys and values. The kernel reads a cursor, for
    /// commands that have one, and writes the next; of both it uses as many bytes as a key has, and
    /// four at least.
    ///
    /// The result is `EINVAL`, and nothing is done, when a slice is too short.
    pub fn batch(
        &self,
        command: Command,
        cursors: (Option<&[u8]>, &mut [u8]),
        elements: (&mut [u8], &mut [u8]),
        count: u32,
        flags: u64,
    ) -> Batch {
        let (result, count) = self.raw.batch(command, cursors, elements, count, flags);
        Batch { result, count }
    }

    /// Forbids user space to write.
    ///
    /// # Errors
    /// The kernel's errno.
    pub fn freeze(&self) -> Result {
        self.raw.element(Command::MapFreeze, None, &mut [], 0)
    }

    /// Gives every element to `each`, many at a time: keys, values, how many. Ends early when it
    /// returns `false`. Types without batches are read key by key.
    ///
    /// # Errors
    /// The kernel's errno.
    pub fn walk(&self, mut each: impl FnMut(&[u8], &[u8], usize) -> bool) -> Result {
        let (key_size, value_size) = (self.key_size(), self.user_value_size());
        let max_entries = self.info()?.max_entries;
        // Enough that the calls cost nothing; a bucket that does not fit makes it grow.
        let mut room = (1 << 18 >> (key_size + value_size).max(1).ilog2()).clamp(16, 1 << 14);
        let (mut keys, mut values) = (vec![0; room * key_size], vec![0; room * value_size]);
        let (mut cursor, mut next) = (None::<Vec<u8>>, vec![0; self.raw.cursor_size()]);
        loop {
            let Batch { result, count } = self.batch(
                Command::MapLookupBatch,
                (cursor.as_deref(), &mut next),
                (&mut keys, &mut values),
                u32::try_from(room).unwrap_or(u32::MAX),
                0,
            );
            let count = (count as usize).min(room);
            match result.as_ref().map_err(crate::Error::errno) {
                Ok(()) => {}
                Err(errno::ENOENT) => {
                    if count > 0 {
                        each(&keys, &values, count);
                    }
                    return Ok(());
                }
                // The cursor that a failed batch leaves is not good: the last good one stays.
                Err(errno::ENOSPC) if room <= max_entries as usize => {
                    room *= 2;
                    (keys, values) = (vec![0; room * key_size], vec![0; room * value_size]);
                    continue;
                }
                // No batches for this type, or none at all.
                Err(errno::ENOTSUPP | errno::EINVAL) if cursor.is_none() => {
                    return self.walk_keys(max_entries, each);
                }
                Err(_) => return result,
            }
            if !each(&keys, &values, count) {
                return Ok(());
            }
            next.clone_into(cursor.get_or_insert_default());
        }
    }

    /// Key by key. The kernel begins again at the first key after one that is gone, so this ends
    /// after as many keys as there may be.
    fn walk_keys(
        &self,
        max_entries: u32,
        mut each: impl FnMut(&[u8], &[u8], usize) -> bool,
    ) -> Result {
        let (mut key, mut next) = (None::<Vec<u8>>, vec![0; self.key_size()]);
        let mut value = vec![0; self.user_value_size()];
        for _ in 0..=max_entries {
            match self.next_key_into(key.as_deref(), &mut next) {
                Ok(()) => {}
                Err(e) if e.is_not_found() => return Ok(()),
                Err(e) => return Err(e),
            }
            match self.lookup_into(&next, &mut value) {
                Ok(()) if !each(&next, &value, 1) => return Ok(()),
                Ok(()) => {}
                // Removed since, or a place without anything in it.
                Err(e) if e.is_not_found() => {}
                Err(e) => return Err(e),
            }
            next.clone_into(key.get_or_insert_default());
        }
        Ok(())
    }
}

impl AsFd for Map {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.raw.fd()
    }
}
