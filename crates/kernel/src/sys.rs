//! The commands of bpf(2) as safe functions.
//!
//! Rules of this leaf: every address in an attribute comes from a slice that is borrowed for the
//! call, and the size that the kernel uses there is at most the slice's. Where the kernel takes the
//! size from the map, the handle ([`RawMap`]) has what the kernel itself said or was told of it. A
//! descriptor that comes back is new and has no other owner.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use skep_isa::{MapType, errno};

use crate::attr::{self, Command};
use crate::cpu::{is_per_cpu, possible_cpus};
use crate::error::{Error, Result};

/// `BPF_F_RDONLY`, for descriptors.
pub(crate) const RDONLY: u32 = 1 << 3;

/// Moves the calling thread into a network namespace of its own, and with `mounts` into a mount
/// namespace, too; threads and processes that it makes from then on are in them.
///
/// # Errors
/// What unshare(2) says: the right to do so is root's.
pub fn enter_namespaces(mounts: bool) -> io::Result<()> {
    let kinds = libc::CLONE_NEWNET | if mounts { libc::CLONE_NEWNS } else { 0 };
    // SAFETY: a number only; no memory or descriptor is shared with fewer threads than before.
    match unsafe { libc::unshare(kinds) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Has something done when the process ends by itself: what is in a `static` is never dropped.
///
/// It is done in each process that ends so, also in one that was forked from this.
pub fn at_exit(f: extern "C" fn()) {
    // SAFETY: a function of this program, which is there as long as the process.
    unsafe { libc::atexit(f) };
}

/// Calls bpf(2) and returns the kernel's result.
///
/// # Safety
/// Every address in `attr` is null, or leads to as much memory as `command` reads there, and that
/// nobody else uses during the call where it writes there.
unsafe fn bpf<T>(command: Command, attr: &mut T) -> Result<i64> {
    // SAFETY:
    // * `attr` lives during the call and is as long as the size says.
    // * The caller answers for what its addresses lead to.
    let r = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command as libc::c_long,
            std::ptr::from_mut(attr),
            size_of::<T>(),
        )
    };
    if r < 0 { Err(Error::last(command.name())) } else { Ok(r) }
}

/// Calls bpf(2) with a command that returns a descriptor.
///
/// # Safety
/// The duties of [`bpf`], and `command` is one that returns a descriptor.
unsafe fn bpf_fd<T>(command: Command, attr: &mut T) -> Result<OwnedFd> {
    // SAFETY:
    // * The caller answers for the attribute.
    // * The kernel made the descriptor for this call, so nothing else owns it.
    unsafe { bpf(command, attr).map(|fd| OwnedFd::from_raw_fd(fd as i32)) }
}

fn number(fd: &impl AsRawFd) -> u32 {
    fd.as_raw_fd() as u32
}

/// The address of bytes that the kernel reads; null for none.
fn input(bytes: &[u8]) -> u64 {
    if bytes.is_empty() { 0 } else { bytes.as_ptr() as u64 }
}

/// The address of bytes that the kernel writes; null for none.
fn output(bytes: &mut [u8]) -> u64 {
    if bytes.is_empty() { 0 } else { bytes.as_mut_ptr() as u64 }
}

fn size(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX)
}

fn invalid(command: Command) -> Error {
    Error::new(command.name(), io::Error::from_raw_os_error(errno::EINVAL))
}

/// A map's descriptor, with the sizes of what goes in and out.
#[derive(Debug)]
pub(crate) struct RawMap {
    fd: OwnedFd,
    key_size: usize,
    value_size: usize,
}

/// Returns the bytes of a value as user space sees it: for per-CPU types, those of all CPUs. A type
/// that is not known may be one.
fn user_value_size(map_type: u32, value_size: u32) -> Result<usize> {
    let per_cpu = MapType::from_raw(map_type).is_none_or(is_per_cpu);
    let size = value_size as usize;
    Ok(if per_cpu { size.next_multiple_of(8) * possible_cpus()? } else { size })
}

impl RawMap {
    /// Creates a map.
    pub(crate) fn create(mut attr: attr::MapCreate) -> Result<Self> {
        let value_size = user_value_size(attr.map_type, attr.value_size)?;
        // SAFETY: the attribute has no addresses, and the command returns a descriptor.
        let fd = unsafe { bpf_fd(Command::MapCreate, &mut attr) }?;
        Ok(Self { fd, key_size: attr.key_size as usize, value_size })
    }

    /// Takes a descriptor and asks the kernel for the sizes.
    fn open(fd: OwnedFd) -> Result<Self> {
        let info = map_info(fd.as_fd())?;
        let value_size = user_value_size(info.map_type, info.value_size)?;
        Ok(Self { fd, key_size: info.key_size as usize, value_size })
    }

    /// Opens the map with an id, with flags for the descriptor.
    pub(crate) fn by_id(id: u32, open_flags: u32) -> Result<Self> {
        let mut attr = attr::Id { id, open_flags, ..Default::default() };
        // SAFETY: the attribute has no addresses, and the command returns a descriptor.
        unsafe { bpf_fd(Command::MapGetFdById, &mut attr) }.and_then(Self::open)
    }

    /// Opens what is pinned at `path` in a bpf file system, with flags for the descriptor; `None`
    /// when it is no map.
    pub(crate) fn pinned(path: &CStr, file_flags: u32) -> Result<Option<Self>> {
        let fd = open_pin(path, file_flags)?;
        // Programs and links are pinned as well.
        if !is_kind(fd.as_fd(), "bpf-map")? {
            return Ok(None);
        }
        Self::open(fd).map(Some)
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(crate) fn key_size(&self) -> usize {
        self.key_size
    }

    pub(crate) fn value_size(&self) -> usize {
        self.value_size
    }

    /// Does a command on one element. `value` is what the command writes: a value or the next key.
    /// Absent keys and empty values are null to the kernel.
    pub(crate) fn element(
        &self,
        command: Command,
        key: Option<&[u8]>,
        value: &mut [u8],
        flags: u64,
    ) -> Result {
        let written = match command {
            Command::MapGetNextKey => self.key_size,
            Command::MapLookupElem | Command::MapLookupAndDeleteElem => self.value_size,
            Command::MapDeleteElem | Command::MapFreeze => 0,
            _ => return Err(invalid(command)),
        };
        if key.is_some_and(|key| key.len() < self.key_size)
            || !value.is_empty() && value.len() < written
        {
            return Err(invalid(command));
        }
        let mut attr = attr::MapElem {
            map_fd: number(&self.fd),
            key: key.map_or(0, input),
            value: output(value),
            flags,
            ..Default::default()
        };
        // SAFETY: the key, where there is one, is at least as long as the map's; `value` is null or
        // at least as long as what the command writes.
        unsafe { bpf(command, &mut attr) }.map(drop)
    }

    /// Stores a value.
    pub(crate) fn update(&self, key: &[u8], value: &[u8], flags: u64) -> Result {
        let command = Command::MapUpdateElem;
        if key.len() < self.key_size || value.len() < self.value_size {
            return Err(invalid(command));
        }
        let mut attr = attr::MapElem {
            map_fd: number(&self.fd),
            key: input(key),
            value: input(value),
            flags,
            ..Default::default()
        };
        // SAFETY: the kernel reads a key and a value, and both slices are at least as long as the
        // map's.
        unsafe { bpf(command, &mut attr) }.map(drop)
    }

    /// Does a BATCH command with the first `count` of `keys` and `values`, and returns the count
    /// that the kernel left, also with an error. Cursors have [`RawMap::cursor_size`] bytes.
    pub(crate) fn batch(
        &self,
        command: Command,
        (from, to): (Option<&[u8]>, &mut [u8]),
        (keys, values): (&mut [u8], &mut [u8]),
        count: u32,
        flags: u64,
    ) -> (Result, u32) {
        let values_used = match command {
            Command::MapLookupBatch
            | Command::MapLookupAndDeleteBatch
            | Command::MapUpdateBatch => self.value_size,
            Command::MapDeleteBatch => 0,
            _ => return (Err(invalid(command)), count),
        };
        let elements = count as usize;
        if from.is_some_and(|cursor| cursor.len() < self.cursor_size())
            || to.len() < self.cursor_size()
            || keys.len() < elements.saturating_mul(self.key_size)
            || values.len() < elements.saturating_mul(values_used)
        {
            return (Err(invalid(command)), count);
        }
        let mut attr = attr::MapBatch {
            in_batch: from.map_or(0, input),
            out_batch: output(to),
            keys: output(keys),
            values: output(values),
            count,
            map_fd: number(&self.fd),
            elem_flags: flags,
            flags: 0,
        };
        // SAFETY: cursors, and keys and values for `count` elements, are as long as checked above;
        // `to`, `keys` and `values` are borrowed for writing.
        let done = unsafe { bpf(command, &mut attr) };
        (done.map(drop), attr.count)
    }

    /// A cursor is a bucket's number, or a key.
    pub(crate) fn cursor_size(&self) -> usize {
        self.key_size.max(4)
    }
}

/// Returns the id of the first map after `id`; `ENOENT` at the end.
pub(crate) fn next_map_id(id: u32) -> Result<u32> {
    let mut attr = attr::Id { id, ..Default::default() };
    // SAFETY: the attribute has no addresses.
    unsafe { bpf(Command::MapGetNextId, &mut attr) }?;
    Ok(attr.next_id)
}

/// Asks what the kernel knows of a map.
pub(crate) fn map_info(map: BorrowedFd<'_>) -> Result<attr::MapInfo> {
    let mut info = attr::MapInfo::default();
    // SAFETY: the structure has no addresses, whatever the descriptor is of: all of it is zero.
    unsafe { fill_info(map, &mut info) }?;
    Ok(info)
}

/// Fills the structure of information on an object.
///
/// # Safety
/// Each address in `info` is null, or leads to writable memory of the length that stands beside it
/// in the structure of the descriptor's kind of object.
unsafe fn fill_info<T>(fd: BorrowedFd<'_>, info: &mut T) -> Result {
    let mut attr = attr::Info {
        bpf_fd: number(&fd),
        info_len: size_of::<T>() as u32,
        info: std::ptr::from_mut(info) as u64,
    };
    // SAFETY: the kernel writes at most the length that is given, to a structure of integers that is
    // borrowed for writing; the caller answers for addresses in it.
    unsafe { bpf(Command::ObjGetInfoByFd, &mut attr) }.map(drop)
}

/// A descriptor of type information.
#[derive(Debug)]
pub(crate) struct RawBtf(OwnedFd);

impl RawBtf {
    /// Loads the contents of a section `.BTF`.
    pub(crate) fn load(btf: &[u8]) -> Result<Self> {
        let mut attr = attr::BtfLoad { btf: input(btf), btf_size: size(btf), ..Default::default() };
        // SAFETY:
        // * The kernel reads `btf_size` bytes, which is at most the slice's length; there is no log.
        // * The command returns a descriptor.
        unsafe { bpf_fd(Command::BtfLoad, &mut attr) }.map(Self)
    }

    /// Opens type information by its id.
    pub(crate) fn by_id(id: u32) -> Result<Self> {
        let mut attr = attr::Id { id, ..Default::default() };
        // SAFETY: the attribute has no addresses, and the command returns a descriptor.
        unsafe { bpf_fd(Command::BtfGetFdById, &mut attr) }.map(Self)
    }

    pub(crate) fn number(&self) -> u32 {
        number(&self.0)
    }

    /// Returns the contents of its section `.BTF`.
    pub(crate) fn bytes(&self) -> Result<Vec<u8>> {
        let mut info = attr::BtfInfo::default();
        // SAFETY: all addresses in the structure are null.
        unsafe { fill_info(self.0.as_fd(), &mut info) }?;
        let mut bytes = vec![0; info.btf_size as usize];
        info =
            attr::BtfInfo { btf: output(&mut bytes), btf_size: size(&bytes), ..Default::default() };
        // SAFETY: the descriptor is of type information, whose structure has one address that is not
        // null here; `btf_size` writable bytes lie there.
        unsafe { fill_info(self.0.as_fd(), &mut info) }?;
        bytes.truncate(info.btf_size as usize);
        Ok(bytes)
    }
}

/// Opens what is pinned at `path` in a bpf file system, whatever it is.
pub(crate) fn open_pin(path: &CStr, file_flags: u32) -> Result<OwnedFd> {
    let mut attr =
        attr::ObjGet { pathname: path.as_ptr() as u64, file_flags, ..Default::default() };
    // SAFETY:
    // * The path is borrowed for the call, and ends with the zero at which the kernel stops.
    // * The command returns a descriptor.
    unsafe { bpf_fd(Command::ObjGet, &mut attr) }
}

/// Pins an object at `path` in a bpf file system.
pub(crate) fn pin(object: BorrowedFd<'_>, path: &CStr) -> Result {
    let mut attr = attr::ObjGet {
        pathname: path.as_ptr() as u64,
        bpf_fd: number(&object),
        ..Default::default()
    };
    // SAFETY: the path is borrowed for the call, and ends with the zero at which the kernel stops.
    unsafe { bpf(Command::ObjPin, &mut attr) }.map(drop)
}

/// Tells whether a descriptor is of a kind of object: `bpf-map`, `bpf-prog`, `bpf-link`.
pub(crate) fn is_kind(fd: BorrowedFd<'_>, kind: &str) -> Result<bool> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let link = std::fs::read_link(path).map_err(|e| Error::new("readlink", e))?;
    // Links are `bpf_link` or `[bpf_link]`, by the kernel's version.
    let name = link.to_str().and_then(|l| l.strip_prefix("anon_inode:")).unwrap_or_default();
    Ok(name.trim_matches(['[', ']']).replace('_', "-") == kind)
}

/// Opens a program by its id.
pub(crate) fn program_by_id(id: u32) -> Result<OwnedFd> {
    let mut attr = attr::Id { id, ..Default::default() };
    // SAFETY: the attribute has no addresses, and the command returns a descriptor.
    unsafe { bpf_fd(Command::ProgGetFdById, &mut attr) }
}

/// Asks what the kernel knows of a program: its id, and the ids of its maps.
pub(crate) fn program_info(program: BorrowedFd<'_>) -> Result<(u32, Vec<u32>)> {
    let mut info = attr::ProgInfo::default();
    // SAFETY: all addresses in the structure are null.
    unsafe { fill_info(program, &mut info) }?;
    let mut ids = vec![0u32; info.nr_map_ids as usize];
    let count = info.nr_map_ids;
    info = attr::ProgInfo { nr_map_ids: count, ..Default::default() };
    info.map_ids = ids.as_mut_ptr() as u64;
    // SAFETY: the descriptor is of a program, whose structure has one address that is not null
    // here; `nr_map_ids` writable numbers lie there, and the kernel writes no more than that.
    unsafe { fill_info(program, &mut info) }?;
    ids.truncate(info.nr_map_ids as usize);
    Ok((info.id, ids))
}

/// Asks what the kernel calls a program.
pub(crate) fn program_name(program: BorrowedFd<'_>) -> Result<String> {
    let mut info = attr::ProgInfo::default();
    // SAFETY: all addresses in the structure are null.
    unsafe { fill_info(program, &mut info) }?;
    let name = info.name.split(|b| *b == 0).next().unwrap_or_default();
    Ok(String::from_utf8_lossy(name).into_owned())
}

/// Makes a map live as long as a program.
pub(crate) fn bind_map(program: BorrowedFd<'_>, map: BorrowedFd<'_>) -> Result {
    let mut attr = attr::ProgBindMap { prog_fd: number(&program), map_fd: number(&map), flags: 0 };
    // SAFETY: the attribute has no addresses.
    unsafe { bpf(Command::ProgBindMap, &mut attr) }.map(drop)
}

/// Asks what the kernel knows of a link: its type, program and interface.
pub(crate) fn link_info(link: BorrowedFd<'_>) -> Result<attr::LinkInfo> {
    let mut info = attr::LinkInfo::default();
    // SAFETY: the structure of a link that is given zeroes has no addresses.
    unsafe { fill_info(link, &mut info) }?;
    Ok(info)
}

/// Gives a link another program.
pub(crate) fn update_link(mut attr: attr::LinkUpdate) -> Result {
    // SAFETY: the attribute has no addresses.
    unsafe { bpf(Command::LinkUpdate, &mut attr) }.map(drop)
}

/// Detaches a link.
pub(crate) fn detach_link(link: BorrowedFd<'_>) -> Result {
    // The kernel wants what lies behind the field that it reads to be zero.
    let mut attr = attr::LinkUpdate { link_fd: number(&link), ..Default::default() };
    // SAFETY: the attribute has no addresses.
    unsafe { bpf(Command::LinkDetach, &mut attr) }.map(drop)
}

/// What goes with a program to the kernel.
pub(crate) struct ProgramBytes<'a> {
    pub insns: &'a [u8],
    pub license: &'a CStr,
    /// Type information, and first instruction and type of each function.
    pub functions: Option<(&'a RawBtf, &'a [[u32; 2]])>,
    /// Lines: instruction, file and text as offsets into the strings of the types, line and column.
    pub lines: &'a [[u32; 4]],
}

/// Loads a program. The log is written where `log` is not empty, as far as there is room.
pub(crate) fn load_program(
    mut attr: attr::ProgLoad,
    program: &ProgramBytes<'_>,
    log: &mut [u8],
) -> Result<OwnedFd> {
    let insns = program.insns;
    (attr.insn_cnt, attr.insns) = (size(insns) / 8, input(insns));
    attr.license = program.license.as_ptr() as u64;
    (attr.log_size, attr.log_buf) = (size(log), output(log));
    (attr.prog_btf_fd, attr.func_info, attr.func_info_cnt) = (0, 0, 0);
    if let Some((btf, functions)) = program.functions {
        attr.prog_btf_fd = btf.number();
        attr.func_info_rec_size = size_of::<[u32; 2]>() as u32;
        attr.func_info = input(bytes_of(functions));
        attr.func_info_cnt = functions.len() as u32;
        if !program.lines.is_empty() {
            attr.line_info_rec_size = size_of::<[u32; 4]>() as u32;
            attr.line_info = input(bytes_of(program.lines));
            attr.line_info_cnt = program.lines.len() as u32;
        }
    }
    // SAFETY:
    // * Instructions, records of functions and lines, and log are borrowed, and the counts beside them are those of
    //   the slices; the log is borrowed for writing.
    // * The license ends with a zero, at which the kernel stops reading.
    // * No other field of the structure is an address. The command returns a descriptor.
    unsafe { bpf_fd(Command::ProgLoad, &mut attr) }
}

/// Attaches a program; the link's descriptor comes back.
pub(crate) fn create_link(mut attr: attr::LinkCreate) -> Result<OwnedFd> {
    // SAFETY: the attribute has no addresses, and the command returns a descriptor.
    unsafe { bpf_fd(Command::LinkCreate, &mut attr) }
}

/// Attaches a program to instructions of a file, at these offsets in it, in all processes.
pub(crate) fn create_uprobe_link(
    link: attr::LinkCreate,
    path: &CStr,
    offsets: &[u64],
) -> Result<OwnedFd> {
    let mut attr = attr::UprobeMulti {
        link,
        path: path.as_ptr() as u64,
        offsets: offsets.as_ptr() as u64,
        count: offsets.len() as u32,
        ..Default::default()
    };
    // SAFETY: path and offsets live during the call, and as many offsets as it says; the command
    // returns a descriptor.
    unsafe { bpf_fd(Command::LinkCreate, &mut attr) }
}

/// The memory of records.
fn bytes_of<const N: usize>(records: &[[u32; N]]) -> &[u8] {
    // SAFETY: integers have no padding, and bytes any value; length and lifetime are the slice's.
    unsafe { std::slice::from_raw_parts(records.as_ptr().cast(), size_of_val(records)) }
}

/// The buffers of a test run; empty ones are null to the kernel. A program of type `syscall` changes
/// `ctx_in`.
pub(crate) struct RunBuffers<'a> {
    pub data_in: &'a [u8],
    pub data_out: &'a mut [u8],
    pub ctx_in: &'a mut [u8],
    pub ctx_out: &'a mut [u8],
}

/// Runs a program; `attr` comes back with results, and how many bytes of the buffers are used.
pub(crate) fn test_run(
    program: BorrowedFd<'_>,
    attr: &mut attr::ProgTestRun,
    buffers: RunBuffers<'_>,
) -> Result {
    attr.prog_fd = number(&program);
    (attr.data_size_in, attr.data_in) = (size(buffers.data_in), input(buffers.data_in));
    (attr.data_size_out, attr.data_out) = (size(buffers.data_out), output(buffers.data_out));
    (attr.ctx_size_in, attr.ctx_in) = (size(buffers.ctx_in), output(buffers.ctx_in));
    (attr.ctx_size_out, attr.ctx_out) = (size(buffers.ctx_out), output(buffers.ctx_out));
    // SAFETY: each address is that of a slice borrowed for the call, its length beside it; the
    // kernel writes to the three that are borrowed for writing.
    unsafe { bpf(Command::ProgTestRun, attr) }.map(drop)
}
