//! `bpf()` commands that read the running kernel's maps. The only unsafe code of this folder.
//!
//! Buffers are slices whose lengths are checked against the sizes that the kernel itself told of
//! the map, so it writes nothing beyond them.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Commands (include/uapi/linux/bpf.h `enum bpf_cmd`).
#[derive(Clone, Copy)]
enum Command {
    MapLookup = 1,
    MapGetNextKey = 4,
    ObjGet = 7,
    MapGetNextId = 12,
    MapGetFdById = 14,
    ObjGetInfoByFd = 15,
    BtfGetFdById = 19,
    MapLookupBatch = 24,
}

/// `union bpf_attr`, as far as these commands look into it; what they do not use is zero.
#[repr(C, align(8))]
struct Attr([u8; 72]);

impl Attr {
    fn new() -> Self {
        Self([0; 72])
    }

    fn u32(mut self, at: usize, value: u32) -> Self {
        self.0[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        self
    }

    fn u64(mut self, at: usize, value: u64) -> Self {
        self.0[at..at + 8].copy_from_slice(&value.to_ne_bytes());
        self
    }

    fn get(&self, at: usize) -> u32 {
        u32::from_ne_bytes([self.0[at], self.0[at + 1], self.0[at + 2], self.0[at + 3]])
    }
}

/// # Safety
/// The addresses in `attr` are null or point to as much memory as the command reads and writes
/// there.
unsafe fn bpf(command: Command, attr: &mut Attr) -> io::Result<i32> {
    // SAFETY: the attributes live until the call returns and are as long as said; the rest is the
    // caller's duty.
    let r = unsafe {
        libc::syscall(libc::SYS_bpf, command as libc::c_long, attr.0.as_mut_ptr(), attr.0.len())
    };
    if r < 0 { Err(io::Error::last_os_error()) } else { Ok(r as i32) }
}

/// # Safety
/// As [`bpf`], and the command returns a descriptor.
unsafe fn bpf_fd(command: Command, attr: &mut Attr) -> io::Result<OwnedFd> {
    // SAFETY: the caller's duty; the descriptor is new and nobody else's.
    unsafe { bpf(command, attr).map(|fd| OwnedFd::from_raw_fd(fd)) }
}

/// Finds the first map with an id above `id`; `ENOENT` at the end.
pub(super) fn next_id(id: u32) -> io::Result<u32> {
    let mut attr = Attr::new().u32(0, id);
    // SAFETY: no addresses.
    unsafe { bpf(Command::MapGetNextId, &mut attr) }?;
    Ok(attr.get(4))
}

/// Opens a map for reading.
pub(super) fn map_fd(id: u32) -> io::Result<OwnedFd> {
    const RDONLY: u32 = 1 << 3;
    // SAFETY: no addresses.
    unsafe { bpf_fd(Command::MapGetFdById, &mut Attr::new().u32(0, id).u32(8, RDONLY)) }
}

/// Opens what is pinned in a bpf file system, for reading.
pub(super) fn pinned(path: &CStr) -> io::Result<OwnedFd> {
    const RDONLY: u32 = 1 << 3;
    // SAFETY: the path ends with a zero.
    unsafe {
        bpf_fd(Command::ObjGet, &mut Attr::new().u64(0, path.as_ptr() as u64).u32(12, RDONLY))
    }
}

/// Opens type information.
pub(super) fn btf_fd(id: u32) -> io::Result<OwnedFd> {
    // SAFETY: no addresses.
    unsafe { bpf_fd(Command::BtfGetFdById, &mut Attr::new().u32(0, id)) }
}

/// Asks what the kernel knows of an object.
pub(super) fn info(fd: &OwnedFd) -> io::Result<[u8; 128]> {
    let mut out = [0; 128];
    // SAFETY: no addresses in it.
    unsafe { fill_info(fd, &mut out) }?;
    Ok(out)
}

/// # Safety
/// Where the object's structure has an address with a length behind it, `out` has zeroes, or
/// writable memory of that length.
unsafe fn fill_info(fd: &OwnedFd, out: &mut [u8; 128]) -> io::Result<()> {
    let mut attr = Attr::new()
        .u32(0, fd.as_raw_fd() as u32)
        .u32(4, out.len() as u32)
        .u64(8, out.as_mut_ptr() as u64);
    // SAFETY: writes at most the length given; the rest is the caller's duty.
    unsafe { bpf(Command::ObjGetInfoByFd, &mut attr) }.map(drop)
}

/// Reads the bytes of type information.
pub(super) fn btf(fd: &OwnedFd) -> io::Result<Vec<u8>> {
    let mut out = info(fd)?;
    let size = u32::from_ne_bytes([out[8], out[9], out[10], out[11]]);
    let mut bytes = vec![0; size as usize];
    out = [0; 128];
    // struct bpf_btf_info: btf, btf_size.
    out[..8].copy_from_slice(&(bytes.as_mut_ptr() as u64).to_ne_bytes());
    out[8..12].copy_from_slice(&size.to_ne_bytes());
    // SAFETY: `size` bytes are writable there.
    unsafe { fill_info(fd, &mut out) }?;
    Ok(bytes)
}

/// An open map with the sizes of what goes in and out.
#[derive(Debug)]
pub(super) struct RawMap {
    fd: OwnedFd,
    key_size: usize,
    value_size: usize,
}

impl RawMap {
    /// `value_size` is what a lookup copies out, per-CPU values and all. It must be true: the
    /// kernel writes that much.
    pub(super) fn new(fd: OwnedFd, key_size: usize, value_size: usize) -> Self {
        Self { fd, key_size, value_size }
    }

    pub(super) fn key_size(&self) -> usize {
        self.key_size
    }

    pub(super) fn value_size(&self) -> usize {
        self.value_size
    }

    fn check(&self, key: usize, value: usize) -> io::Result<()> {
        if key >= self.key_size && value >= self.value_size {
            Ok(())
        } else {
            Err(io::ErrorKind::InvalidInput.into())
        }
    }

    /// Copies the value of a key out.
    pub(super) fn lookup(&self, key: &[u8], value: &mut [u8]) -> io::Result<()> {
        self.check(key.len(), value.len())?;
        // A queue has no keys, and wants no address of one.
        let from = if key.is_empty() { 0 } else { key.as_ptr() as u64 };
        let mut attr = Attr::new()
            .u32(0, self.fd.as_raw_fd() as u32)
            .u64(8, from)
            .u64(16, value.as_mut_ptr() as u64);
        // SAFETY: the key is as long as the map's, and the value at least.
        unsafe { bpf(Command::MapLookup, &mut attr) }.map(drop)
    }

    /// Finds the key after another one.
    pub(super) fn next_key(&self, key: Option<&[u8]>, next: &mut [u8]) -> io::Result<()> {
        self.check(key.map_or(self.key_size, <[u8]>::len).min(next.len()), self.value_size)?;
        let from = key.map_or(0, |k| k.as_ptr() as u64);
        let mut attr = Attr::new()
            .u32(0, self.fd.as_raw_fd() as u32)
            .u64(8, from)
            .u64(16, next.as_mut_ptr() as u64);
        // SAFETY: both keys are as long as the map's.
        unsafe { bpf(Command::MapGetNextKey, &mut attr) }.map(drop)
    }

    /// Copies up to as many elements as fit; `cursor` is where the last batch ended and is moved.
    /// With the error comes how many were copied all the same.
    pub(super) fn lookup_batch(
        &self,
        begun: bool,
        cursor: &mut Vec<u8>,
        keys: &mut [u8],
        values: &mut [u8],
    ) -> (io::Result<()>, usize) {
        let room = (keys.len() / self.key_size.max(1)).min(values.len() / self.value_size.max(1));
        // A bucket's number takes four bytes, a key as many as it has.
        cursor.resize(self.key_size.max(8), 0);
        let mut next = vec![0u8; cursor.len()];
        let mut attr = Attr::new()
            .u64(0, if begun { cursor.as_ptr() as u64 } else { 0 })
            .u64(8, next.as_mut_ptr() as u64)
            .u64(16, keys.as_mut_ptr() as u64)
            .u64(24, values.as_mut_ptr() as u64)
            .u32(32, u32::try_from(room).unwrap_or(u32::MAX))
            .u32(36, self.fd.as_raw_fd() as u32);
        // SAFETY: keys and values have room for `count` elements, both cursors for a key or a
        // bucket's number.
        let done = unsafe { bpf(Command::MapLookupBatch, &mut attr) }.map(drop);
        *cursor = next;
        // Where there are no batches the count is left as it was given.
        let copied = match done.as_ref().map_err(io::Error::raw_os_error) {
            Ok(()) | Err(Some(libc::ENOENT)) => (attr.get(32) as usize).min(room),
            Err(_) => 0,
        };
        (done, copied)
    }
}
