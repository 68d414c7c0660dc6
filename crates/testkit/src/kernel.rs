//! The running kernel as an oracle: loads programs and maps through bpf(2), runs programs by
//! `BPF_PROG_TEST_RUN`.
//!
//! Nobody can argue with it. It wants root, so a test asks [`may_load`] first and says
//! [`skip`](crate::skip()) otherwise. Instructions and keys are bytes here, as everything the
//! kernel reads.
//!
//! ```
//! use skep_testkit::kernel::{Load, Program, TestRun, may_load};
//!
//! // mov r0, 7; exit: a socket filter.
//! let insns = [[0xb7, 0, 0, 0, 7, 0, 0, 0], [0x95, 0, 0, 0, 0, 0, 0, 0]];
//! if may_load() {
//!     let program = Program::load(&Load::new(1, insns.as_flattened())).map_err(|e| e.to_string())?;
//!     let ran = program.test_run(&TestRun { data_in: &[0; 64], ..TestRun::default() }).map_err(|e| e.to_string())?;
//!     assert_eq!(ran.retval, 7);
//! }
//! # Ok::<(), String>(())
//! ```
//!
//! Rules of this leaf: an attribute is a C structure whose pointers lead to live memory of the
//! sizes beside them; what comes back is a new descriptor, or bytes in buffers of ours.

use std::collections::BTreeMap;
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

const SYS_BPF: i64 = 321;
/// `BPF_PSEUDO_MAP_FD`, `BPF_PSEUDO_MAP_VALUE`, `BPF_PSEUDO_MAP_IDX`, `BPF_PSEUDO_MAP_IDX_VALUE`.
const PSEUDO_FD: [u8; 2] = [1, 2];
const PSEUDO_IDX: [u8; 2] = [5, 6];
const LD_IMM64: u8 = 0x18;

unsafe extern "C" {
    fn syscall(number: i64, ...) -> i64;
    fn mmap(addr: *mut u8, len: usize, prot: i32, flags: i32, fd: i32, offset: i64) -> *mut u8;
    fn munmap(addr: *mut u8, len: usize) -> i32;
}

/// Calls bpf(2); the result is the kernel's, or its errno as an error.
///
/// # Safety
/// `attr` is what `command` takes: every pointer in it leads to live memory that the kernel may
/// read or write as it will.
pub unsafe fn bpf<T>(command: u32, attr: &mut T) -> Result<i64> {
    // SAFETY: the caller vouches for the attribute, and its size is its own.
    let r =
        unsafe { syscall(SYS_BPF, i64::from(command), std::ptr::from_mut(attr), size_of::<T>()) };
    if r < 0 { Err(Error::last_os_error()) } else { Ok(r) }
}

/// As [`bpf`], for commands that make a descriptor.
///
/// # Safety
/// As [`bpf`].
unsafe fn bpf_fd<T>(command: u32, attr: &mut T) -> Result<OwnedFd> {
    // SAFETY: the caller's duty; the descriptor is new and nobody else's.
    unsafe { bpf(command, attr).map(|fd| OwnedFd::from_raw_fd(fd as i32)) }
}

/// Tells whether this process may load programs.
#[must_use]
pub fn may_load() -> bool {
    const EXIT: [[u8; 8]; 2] = [[0xb7, 0, 0, 0, 0, 0, 0, 0], [0x95, 0, 0, 0, 0, 0, 0, 0]];
    Program::load(&Load::new(1, EXIT.as_flattened())).is_ok()
}

/// A program as it is given to the kernel.
#[derive(Clone, Debug)]
pub struct Load<'a> {
    /// `enum bpf_prog_type`.
    pub prog_type: u32,
    /// `enum bpf_attach_type`, or 0.
    pub attach_type: u32,
    /// The instructions, eight bytes each.
    pub insns: &'a [u8],
    /// The licence is GPL.
    pub gpl: bool,
    /// `BPF_F_SLEEPABLE` and its like.
    pub flags: u32,
    /// First slots of the program's functions. Needed for callbacks: the kernel wants to know that
    /// they are static.
    pub functions: &'a [u32],
    /// The program's types, and first slot and type of each of its functions; instead of
    /// `functions`.
    pub types: Option<(&'a Types, &'a [[u32; 2]])>,
    /// When the kernel refuses, it is asked once more for its whole log; else there is none.
    pub log: bool,
}

impl<'a> Load<'a> {
    /// Describes a GPL program of one function.
    #[must_use]
    pub fn new(prog_type: u32, insns: &'a [u8]) -> Self {
        Self {
            prog_type,
            attach_type: 0,
            insns,
            gpl: true,
            flags: 0,
            functions: &[],
            types: None,
            log: false,
        }
    }
}

/// Why the kernel did not take a program.
#[derive(Debug)]
pub struct Refused {
    /// The errno.
    pub error: Error,
    /// What the verifier wrote, when it was asked to.
    pub log: String,
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.error, self.log)
    }
}

impl std::error::Error for Refused {}

/// A program in the kernel; it goes when this is dropped.
#[derive(Debug)]
pub struct Program {
    fd: OwnedFd,
}

/// What the kernel wrote into a buffer of zeroes.
fn written(text: &[u8]) -> String {
    String::from_utf8_lossy(text.split(|b| *b == 0).next().unwrap_or_default()).into_owned()
}

#[repr(C, align(8))]
#[derive(Default)]
struct LoadAttr {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; 16],
    prog_ifindex: u32,
    expected_attach_type: u32,
    prog_btf_fd: u32,
    func_info_rec_size: u32,
    func_info: u64,
    func_info_cnt: u32,
    rest: [u32; 9],
}

#[repr(C, align(8))]
#[derive(Default)]
struct TestAttr {
    prog_fd: u32,
    retval: u32,
    data_size_in: u32,
    data_size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    ctx_size_in: u32,
    ctx_size_out: u32,
    ctx_in: u64,
    ctx_out: u64,
    flags: u32,
    cpu: u32,
    batch_size: u32,
    pad: u32,
}

/// What a test run gets.
#[derive(Clone, Copy, Debug, Default)]
pub struct TestRun<'a> {
    /// The packet.
    pub data_in: &'a [u8],
    /// Room for the packet after the run; 0: not wanted.
    pub data_out: usize,
    /// The context. Programs of type syscall change it in place: it comes back as `ctx_out`.
    pub ctx_in: &'a [u8],
    /// Room for the context after the run; 0: not wanted.
    pub ctx_out: usize,
    /// How often to run; 0 is once.
    pub repeat: u32,
    /// `BPF_F_TEST_RUN_*`.
    pub flags: u32,
}

/// What a test run gave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ran {
    /// r0, where the program type has a result.
    pub retval: u32,
    /// Nanoseconds a run, by the kernel's clock.
    pub duration: u32,
    /// The packet after.
    pub data_out: Vec<u8>,
    /// The context after.
    pub ctx_out: Vec<u8>,
}

impl Program {
    /// Loads a program. References to maps are descriptors already, see [`with_maps`].
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn load(load: &Load<'_>) -> std::result::Result<Self, Refused> {
        let refused = |(error, log)| Refused { error, log };
        match Self::load_logging(load, 0, &mut []) {
            Err(_) if load.log => {
                let mut text = vec![0; 1 << 20];
                Self::load_logging(load, 1, &mut text).map_err(|e| refused((e, written(&text))))
            }
            done => done.map_err(|e| refused((e, String::new()))),
        }
    }

    /// Returns every step of the kernel's verifier (log level 2), whatever its verdict, and whether
    /// the program was taken.
    ///
    /// # Errors
    /// The log did not fit in 4 MiB, or the program never got as far as the verifier.
    pub fn log_of(load: &Load<'_>) -> Result<(bool, String)> {
        let mut text = vec![0; 4 << 20];
        let done = Self::load_logging(load, 2, &mut text);
        match (done, written(&text)) {
            (Err(e), log) if log.is_empty() || e.raw_os_error() == Some(28) => Err(e),
            (done, log) => Ok((done.is_ok(), log)),
        }
    }

    fn load_logging(load: &Load<'_>, level: u32, text: &mut [u8]) -> Result<Self> {
        let license = if load.gpl { c"GPL" } else { c"Proprietary" };
        let made = if load.functions.is_empty() {
            None
        } else {
            Some(function_types(load.functions.len())?)
        };
        let info: Vec<[u32; 2]> = match load.types {
            Some((_, functions)) => functions.to_vec(),
            None => (0u32..).zip(load.functions).map(|(n, at)| [*at, 3 + n]).collect(),
        };
        let btf = load.types.map(|(types, _)| types).or(made.as_deref());
        let mut attr = LoadAttr {
            prog_type: load.prog_type,
            insn_cnt: (load.insns.len() / 8) as u32,
            insns: load.insns.as_ptr() as u64,
            license: license.as_ptr() as u64,
            log_level: level,
            log_size: text.len() as u32,
            log_buf: if text.is_empty() { 0 } else { text.as_mut_ptr() as u64 },
            prog_flags: load.flags,
            expected_attach_type: load.attach_type,
            ..LoadAttr::default()
        };
        if let Some(btf) = btf {
            attr.prog_btf_fd = btf.fd.as_raw_fd() as u32;
            attr.func_info_rec_size = 8;
            attr.func_info = info.as_ptr() as u64;
            attr.func_info_cnt = info.len() as u32;
        }
        // SAFETY: the instructions, licence, log and function records outlive the call.
        unsafe { bpf_fd(5, &mut attr) }.map(|fd| Self { fd })
    }

    /// Returns the descriptor's number: what goes into a program array.
    #[must_use]
    pub fn fd(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    /// Runs the program once, or as often as asked.
    ///
    /// # Errors
    /// The kernel's errno.
    pub fn test_run(&self, run: &TestRun<'_>) -> Result<Ran> {
        let mut ctx = run.ctx_in.to_vec();
        let (mut data_out, mut ctx_out) = (vec![0; run.data_out], vec![0; run.ctx_out]);
        let at = |bytes: &[u8]| if bytes.is_empty() { 0 } else { bytes.as_ptr() as u64 };
        let mut attr = TestAttr {
            prog_fd: self.fd.as_raw_fd() as u32,
            data_size_in: run.data_in.len() as u32,
            data_in: at(run.data_in),
            data_size_out: data_out.len() as u32,
            data_out: if data_out.is_empty() { 0 } else { data_out.as_mut_ptr() as u64 },
            ctx_size_in: ctx.len() as u32,
            ctx_in: if ctx.is_empty() { 0 } else { ctx.as_mut_ptr() as u64 },
            ctx_size_out: ctx_out.len() as u32,
            ctx_out: if ctx_out.is_empty() { 0 } else { ctx_out.as_mut_ptr() as u64 },
            repeat: run.repeat,
            flags: run.flags,
            ..TestAttr::default()
        };
        // SAFETY: all buffers outlive the call; the kernel writes only into those that are ours.
        unsafe { bpf(10, &mut attr) }?;
        data_out.truncate(attr.data_size_out as usize);
        ctx_out.truncate(attr.ctx_size_out as usize);
        let ctx_out = if run.ctx_out == 0 { ctx } else { ctx_out };
        Ok(Ran { retval: attr.retval, duration: attr.duration, data_out, ctx_out })
    }
}

/// What a map is made from.
#[derive(Clone, Copy, Debug, Default)]
pub struct MapSpec {
    /// `enum bpf_map_type`.
    pub map_type: u32,
    /// Bytes of a key.
    pub key_size: u32,
    /// Bytes of a value.
    pub value_size: u32,
    /// Most elements.
    pub max_entries: u32,
    /// `BPF_F_*`.
    pub flags: u32,
}

#[repr(C, align(8))]
#[derive(Default)]
struct MapAttr {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
    rest: [u32; 13],
}

#[repr(C, align(8))]
#[derive(Default)]
struct ElemAttr {
    map_fd: u32,
    pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C, align(8))]
struct BatchAttr {
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    count: u32,
    map_fd: u32,
    elem_flags: u64,
    flags: u64,
}

/// A map in the kernel; it goes when this and every program that uses it are dropped.
#[derive(Debug)]
pub struct Map {
    fd: OwnedFd,
    spec: MapSpec,
}

impl Map {
    /// Makes a map.
    ///
    /// # Errors
    /// The kernel's errno.
    pub fn create(spec: MapSpec) -> Result<Self> {
        let MapSpec { map_type, key_size, value_size, max_entries, flags } = spec;
        let mut attr = MapAttr {
            map_type,
            key_size,
            value_size,
            max_entries,
            map_flags: flags,
            rest: [0; 13],
        };
        // SAFETY: no pointers.
        unsafe { bpf_fd(0, &mut attr) }.map(|fd| Self { fd, spec })
    }

    /// Makes a map whose keys and values have types.
    ///
    /// # Errors
    /// The kernel's errno.
    pub fn create_typed(spec: MapSpec, types: &Types, key: u32, value: u32) -> Result<Self> {
        let MapSpec { map_type, key_size, value_size, max_entries, flags } = spec;
        let mut attr = MapAttr {
            map_type,
            key_size,
            value_size,
            max_entries,
            map_flags: flags,
            rest: [0; 13],
        };
        attr.rest[7..10].copy_from_slice(&[types.fd.as_raw_fd() as u32, key, value]);
        // SAFETY: no pointers.
        unsafe { bpf_fd(0, &mut attr) }.map(|fd| Self { fd, spec })
    }

    /// Makes a map of maps like `inner`.
    ///
    /// # Errors
    /// The kernel's errno.
    pub fn create_outer(spec: MapSpec, inner: &Self) -> Result<Self> {
        let MapSpec { map_type, key_size, value_size, max_entries, flags } = spec;
        let mut attr = MapAttr {
            map_type,
            key_size,
            value_size,
            max_entries,
            map_flags: flags,
            rest: [0; 13],
        };
        attr.rest[0] = inner.fd.as_raw_fd() as u32;
        // SAFETY: no pointers.
        unsafe { bpf_fd(0, &mut attr) }.map(|fd| Self { fd, spec })
    }

    /// Returns the descriptor's number.
    #[must_use]
    pub fn fd(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    fn elem(&self, key: &[u8], value: u64, flags: u64) -> ElemAttr {
        assert_eq!(key.len(), self.spec.key_size as usize, "the kernel reads a whole key");
        ElemAttr {
            map_fd: self.fd.as_raw_fd() as u32,
            pad: 0,
            key: if key.is_empty() { 0 } else { key.as_ptr() as u64 },
            value,
            flags,
        }
    }

    /// Returns the bytes that a value takes at this door: for per-CPU types, those of all possible
    /// CPUs.
    #[must_use]
    pub fn user_value_size(&self) -> usize {
        const PER_CPU: [u32; 4] = [5, 6, 10, 21];
        let size = self.spec.value_size as usize;
        if PER_CPU.contains(&self.spec.map_type) {
            size.next_multiple_of(8) * possible_cpus()
        } else {
            size
        }
    }

    /// Looks a value up.
    ///
    /// # Errors
    /// The kernel's errno.
    pub fn lookup(&self, key: &[u8]) -> Result<Vec<u8>> {
        let mut value = vec![0u8; self.user_value_size().max(8)];
        let mut attr = self.elem(key, value.as_mut_ptr() as u64, 0);
        // SAFETY: the key is whole, and the value has room for what the kernel writes.
        unsafe { bpf(1, &mut attr) }?;
        value.truncate(self.user_value_size());
        Ok(value)
    }

    /// Stores a value.
    ///
    /// # Errors
    /// The kernel's errno.
    pub fn update(&self, key: &[u8], value: &[u8], flags: u64) -> Result<()> {
        assert_eq!(value.len(), self.user_value_size(), "the kernel reads a whole value");
        let mut attr = self.elem(key, value.as_ptr() as u64, flags);
        // SAFETY: key and value are whole.
        unsafe { bpf(2, &mut attr) }.map(drop)
    }

    /// Removes an element.
    ///
    /// # Errors
    /// The kernel's errno.
    pub fn delete(&self, key: &[u8]) -> Result<()> {
        let mut attr = self.elem(key, 0, 0);
        // SAFETY: the key is whole.
        unsafe { bpf(3, &mut attr) }.map(drop)
    }

    /// Removes an element (of a queue or stack, the next one) and returns its value.
    ///
    /// # Errors
    /// The kernel's errno.
    pub fn lookup_and_delete(&self, key: &[u8]) -> Result<Vec<u8>> {
        let mut value = vec![0u8; self.user_value_size().max(8)];
        let mut attr = self.elem(key, value.as_mut_ptr() as u64, 0);
        if key.is_empty() {
            attr.key = 0;
        }
        // SAFETY: the key is whole, and the value has room for what the kernel writes.
        unsafe { bpf(21, &mut attr) }?;
        value.truncate(self.user_value_size());
        Ok(value)
    }

    /// Returns the key after `key`, or the first.
    ///
    /// # Errors
    /// `ENOENT` at the end.
    pub fn next_key(&self, key: Option<&[u8]>) -> Result<Vec<u8>> {
        let mut next = vec![0u8; self.spec.key_size as usize];
        let mut attr = self.elem(key.unwrap_or(&next), next.as_ptr() as u64, 0);
        if key.is_none() {
            attr.key = 0;
        }
        attr.value = next.as_mut_ptr() as u64;
        // SAFETY: both keys are whole.
        unsafe { bpf(4, &mut attr) }?;
        Ok(next)
    }

    /// Does one of the BATCH commands, 24 to 27; the errno, or 0, and the count that came back.
    pub fn batch(
        &self,
        command: u32,
        (in_batch, out_batch): (Option<&[u8]>, &mut [u8]),
        (keys, values): (&mut [u8], &mut [u8]),
        count: u32,
        elem_flags: u64,
    ) -> (i32, u32) {
        assert!((24..=27).contains(&command), "a BATCH command");
        let cursor = self.spec.key_size.max(4) as usize;
        assert!(
            out_batch.len() >= cursor && in_batch.is_none_or(|b| b.len() >= cursor),
            "the kernel reads and writes a cursor"
        );
        assert!(
            keys.len() >= count as usize * self.spec.key_size as usize,
            "the kernel uses whole keys"
        );
        assert!(
            command == 27 || values.len() >= count as usize * self.user_value_size(),
            "the kernel uses whole values"
        );
        let mut attr = BatchAttr {
            in_batch: in_batch.map_or(0, |b| b.as_ptr() as u64),
            out_batch: out_batch.as_mut_ptr() as u64,
            keys: keys.as_mut_ptr() as u64,
            values: values.as_mut_ptr() as u64,
            count,
            map_fd: self.fd.as_raw_fd() as u32,
            elem_flags,
            flags: 0,
        };
        // SAFETY: cursors, keys and values are as long as the kernel takes them, and what it writes
        // is ours.
        let done = unsafe { bpf(command, &mut attr) };
        (done.map_or_else(|e| e.raw_os_error().unwrap_or(-1), |_| 0), attr.count)
    }

    /// Forbids user space to write.
    ///
    /// # Errors
    /// The kernel's errno.
    pub fn freeze(&self) -> Result<()> {
        let mut attr = ElemAttr { map_fd: self.fd.as_raw_fd() as u32, ..ElemAttr::default() };
        // SAFETY: no pointers.
        unsafe { bpf(22, &mut attr) }.map(drop)
    }
}

/// The reading side of a kernel's ring buffer, mapped as libbpf does.
#[derive(Debug)]
pub struct RingReader {
    consumer: *mut u8,
    producer: *mut u8,
    size: usize,
}

const PAGE: usize = 4096;

impl RingReader {
    /// Maps a ring buffer of `size` bytes.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn new(map: &Map, size: u32) -> Result<Self> {
        let size = size as usize;
        let map_at = |len: usize, prot: i32, offset: usize| {
            // SAFETY: a new mapping, shared (1), wherever the kernel likes.
            let at = unsafe { mmap(std::ptr::null_mut(), len, prot, 1, map.fd(), offset as i64) };
            if at as isize == -1 { Err(Error::last_os_error()) } else { Ok(at) }
        };
        let consumer = map_at(PAGE, 3, 0)?;
        match map_at(PAGE + 2 * size, 1, PAGE) {
            Ok(producer) => Ok(Self { consumer, producer, size }),
            Err(e) => {
                // SAFETY: mapped above, and known to nobody.
                unsafe { munmap(consumer, PAGE) };
                Err(e)
            }
        }
    }

    /// Hands every record that is finished to `f`; their number.
    pub fn drain(&mut self, mut f: impl FnMut(&[u8])) -> u64 {
        let mut count = 0;
        // SAFETY: the words lie in the mapped pages; records lie whole behind the producer's page,
        // where the data is mapped twice, and stay until the consumer's position has passed
        // them. The kernel writes them with stores of whole words.
        unsafe {
            let (consumer, producer) = (
                AtomicU64::from_ptr(self.consumer.cast()),
                AtomicU64::from_ptr(self.producer.cast()),
            );
            let mut at = consumer.load(Ordering::Relaxed);
            while at < producer.load(Ordering::Acquire) {
                let record = self.producer.add(PAGE + (at as usize & (self.size - 1)));
                let head = AtomicU32::from_ptr(record.cast()).load(Ordering::Acquire);
                if head & 1 << 31 != 0 {
                    break;
                }
                let len = (head & !(3 << 30)) as usize;
                if head & 1 << 30 == 0 {
                    f(std::slice::from_raw_parts(record.add(8), len));
                    count += 1;
                }
                at += (len as u64 + 8).next_multiple_of(8);
                consumer.store(at, Ordering::Release);
            }
        }
        count
    }
}

// SAFETY: the mappings are this value's own, and reading takes it alone.
unsafe impl Send for RingReader {}

impl Drop for RingReader {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with these sizes.
        unsafe {
            munmap(self.consumer, PAGE);
            munmap(self.producer, PAGE + 2 * self.size);
        }
    }
}

/// Rings of one processor each, which programs write samples to through a perf event array; mapped
/// as libbpf does.
#[derive(Debug)]
pub struct PerfReader {
    rings: Vec<(OwnedFd, *mut u8)>,
    size: usize,
}

const PERF_EVENT_OPEN: i64 = 298;
/// `PERF_EVENT_IOC_ENABLE`.
const ENABLE: u64 = 0x2400;
/// `PERF_RECORD_SAMPLE`.
const SAMPLE: u32 = 9;
/// Where a ring's first page has the positions.
const DATA_HEAD: usize = 1024;
const DATA_TAIL: usize = 1032;

/// The first version of `struct perf_event_attr`.
#[repr(C)]
#[derive(Default)]
struct PerfAttr {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    bp_type: u32,
    config1: u64,
}

impl PerfReader {
    /// Opens a ring of `size` bytes, a power of two, for each row of a perf event array.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn new(map: &Map, size: usize) -> Result<Self> {
        unsafe extern "C" {
            fn ioctl(fd: i32, request: u64, ...) -> i32;
        }
        let mut reader = Self { rings: Vec::new(), size };
        for cpu in 0..map.spec.max_entries {
            // PERF_COUNT_SW_BPF_OUTPUT, PERF_SAMPLE_RAW; nobody is woken up.
            let attr = PerfAttr {
                kind: 1,
                size: size_of::<PerfAttr>() as u32,
                config: 10,
                sample_period: 1,
                sample_type: 1 << 10,
                // A signed number to the kernel.
                wakeup_events: i32::MAX as u32,
                ..PerfAttr::default()
            };
            // SAFETY: the attribute has the size it says; the rest are numbers.
            let fd = unsafe {
                syscall(
                    PERF_EVENT_OPEN,
                    std::ptr::from_ref(&attr),
                    -1i64,
                    i64::from(cpu),
                    -1i64,
                    8i64,
                )
            };
            if fd < 0 {
                return Err(Error::last_os_error());
            }
            // SAFETY: a new descriptor, and nobody else's.
            let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
            // SAFETY: a new mapping, shared (1), wherever the kernel likes.
            let at = unsafe { mmap(std::ptr::null_mut(), PAGE + size, 3, 1, fd.as_raw_fd(), 0) };
            // SAFETY: switches the event on.
            if at as isize == -1 || unsafe { ioctl(fd.as_raw_fd(), ENABLE, 0) } < 0 {
                return Err(Error::last_os_error());
            }
            map.update(&cpu.to_ne_bytes(), &fd.as_raw_fd().to_ne_bytes(), 0)?;
            reader.rings.push((fd, at));
        }
        Ok(reader)
    }

    /// Hands every sample to `f`, in as many pieces as it lies in (one, or two around the end of a
    /// ring); their number.
    pub fn drain(&mut self, mut f: impl FnMut(&[u8], &[u8])) -> u64 {
        let mut count = 0;
        for (_, ring) in &self.rings {
            // SAFETY: the positions lie in the ring's first page, records in the data behind it,
            // which the kernel leaves alone up to the head until the tail has passed
            // them.
            unsafe {
                let (head, tail) = (
                    AtomicU64::from_ptr(ring.add(DATA_HEAD).cast()),
                    AtomicU64::from_ptr(ring.add(DATA_TAIL).cast()),
                );
                let (end, mut at) = (head.load(Ordering::Acquire), tail.load(Ordering::Relaxed));
                while at < end {
                    let record = ring.add(PAGE + (at as usize & (self.size - 1)));
                    // Records begin at multiples of eight, so the header is whole.
                    let header = record.cast::<u64>().read();
                    let len = (header >> 48) as usize;
                    if header as u32 == SAMPLE {
                        let behind = (at as usize & (self.size - 1)) + 8;
                        let first = (len - 8).min(self.size - behind);
                        f(
                            std::slice::from_raw_parts(record.add(8), first),
                            std::slice::from_raw_parts(ring.add(PAGE), len - 8 - first),
                        );
                        count += 1;
                    }
                    at += len as u64;
                }
                tail.store(at, Ordering::Release);
            }
        }
        count
    }
}

// SAFETY: the mappings are this value's own, and reading takes it alone.
unsafe impl Send for PerfReader {}

impl Drop for PerfReader {
    fn drop(&mut self) {
        for (_, ring) in &self.rings {
            // SAFETY: mapped by `new` with this size.
            unsafe { munmap(*ring, PAGE + self.size) };
        }
    }
}

/// Returns the number of values that per-CPU maps have.
#[must_use]
pub fn possible_cpus() -> usize {
    if !std::path::Path::new("/sys/devices/system/cpu/possible").exists() {
        return std::thread::available_parallelism().map_or(1, usize::from);
    }
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
    text.trim().rsplit(['-', ',']).next().and_then(|n| n.parse::<usize>().ok()).map_or(1, |n| n + 1)
}

/// Returns instructions whose `BPF_PSEUDO_MAP_IDX` references are descriptors of these maps.
#[must_use]
pub fn with_maps(insns: &[u8], maps: &[&Map]) -> Vec<u8> {
    let mut out = insns.to_vec();
    let mut second = false;
    for slot in out.as_chunks_mut::<8>().0 {
        if std::mem::take(&mut second) || slot[0] != LD_IMM64 {
            continue;
        }
        second = true;
        let index = u32::from_le_bytes([slot[4], slot[5], slot[6], slot[7]]) as usize;
        if let (Some(kind), Some(map)) =
            (PSEUDO_IDX.iter().position(|p| *p == slot[1] >> 4), maps.get(index))
        {
            slot[1] = slot[1] & 0xf | PSEUDO_FD[kind] << 4;
            slot[4..].copy_from_slice(&map.fd().to_le_bytes());
        }
    }
    out
}

/// Returns types for `n` functions, as [`load_function_types`]; made once for each `n`, and kept.
fn function_types(n: usize) -> Result<Arc<Types>> {
    static KNOWN: Mutex<BTreeMap<usize, Arc<Types>>> = Mutex::new(BTreeMap::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(types) = known.get(&n) {
        return Ok(Arc::clone(types));
    }
    let types = Arc::new(load_function_types(n)?);
    known.insert(n, Arc::clone(&types));
    Ok(types)
}

/// Loads types for `n` functions, with ids from 3 on: the first global, the others static, none
/// with arguments.
fn load_function_types(n: usize) -> Result<Types> {
    const INT: u32 = 1 << 24;
    const FUNC_PROTO: u32 = 13 << 24;
    const FUNC: u32 = 12 << 24;
    let strings = b"\0int\0f\0";
    // int, signed, 32 bits; a function that returns it; the functions.
    let mut types = vec![1, INT, 4, 1 << 24 | 32, 0, FUNC_PROTO, 1];
    for f in 0..n {
        types.extend([5, FUNC | u32::from(f == 0), 2]);
    }
    let types: Vec<u8> = types.iter().flat_map(|w: &u32| w.to_le_bytes()).collect();
    let mut btf = vec![0x9f, 0xeb, 1, 0];
    for word in [24, 0, types.len() as u32, types.len() as u32, strings.len() as u32] {
        btf.extend(word.to_le_bytes());
    }
    btf.extend(&types);
    btf.extend(strings);

    Types::load(&btf)
}

/// Types in the kernel: BTF.
#[derive(Debug)]
pub struct Types {
    fd: OwnedFd,
}

#[repr(C, align(8))]
struct TypesAttr {
    btf: u64,
    log_buf: u64,
    size: u32,
    log_size: u32,
    log_level: u32,
    pad: u32,
}

impl Types {
    /// Loads the contents of a section `.BTF`.
    ///
    /// # Errors
    /// The kernel's errno.
    pub fn load(btf: &[u8]) -> Result<Self> {
        let mut attr = TypesAttr {
            btf: btf.as_ptr() as u64,
            log_buf: 0,
            size: btf.len() as u32,
            log_size: 0,
            log_level: 0,
            pad: 0,
        };
        // SAFETY: the types outlive the call.
        unsafe { bpf_fd(18, &mut attr) }.map(|fd| Self { fd })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARRAY: MapSpec =
        MapSpec { map_type: 2, key_size: 4, value_size: 8, max_entries: 3, flags: 0 };

    #[test]
    fn maps_of_the_kernel_can_be_used() {
        if !may_load() {
            return crate::skip("the right to use bpf(2)");
        }
        let map = Map::create(ARRAY).unwrap();
        map.update(&1u32.to_le_bytes(), &77u64.to_le_bytes(), 0).unwrap();
        assert_eq!(map.lookup(&1u32.to_le_bytes()).unwrap(), 77u64.to_le_bytes());
        assert_eq!(map.next_key(None).unwrap(), 0u32.to_le_bytes());
        assert_eq!(map.next_key(Some(&1u32.to_le_bytes())).unwrap(), 2u32.to_le_bytes());
        let end = map.next_key(Some(&2u32.to_le_bytes())).unwrap_err();
        assert_eq!(end.raw_os_error(), Some(2));
        assert_eq!(map.delete(&1u32.to_le_bytes()).unwrap_err().raw_os_error(), Some(22));
    }

    /// `bpf_loop` with a callback that adds to a word on the stack, and a word of a map as result.
    #[test]
    fn callbacks_and_map_values_get_through() {
        if !may_load() {
            return crate::skip("the right to use bpf(2)");
        }
        // Programs take addresses in arrays of one entry only.
        let map = Map::create(MapSpec { max_entries: 1, ..ARRAY }).unwrap();
        map.update(&0u32.to_le_bytes(), &30u64.to_le_bytes(), 0).unwrap();
        let program = [
            [0x7a, 0x0a, 0xf8, 0xff, 0, 0, 0, 0], // *(u64 *)(r10 - 8) = 0
            [0xb7, 1, 0, 0, 4, 0, 0, 0],          // r1 = 4
            [0x18, 0x42, 0, 0, 11, 0, 0, 0],      // r2 = the function at slot 14
            [0; 8],
            [0xbf, 0xa3, 0, 0, 0, 0, 0, 0],          // r3 = r10
            [0x07, 3, 0, 0, 0xf8, 0xff, 0xff, 0xff], // r3 += -8
            [0xb7, 4, 0, 0, 0, 0, 0, 0],             // r4 = 0
            [0x85, 0, 0, 0, 181, 0, 0, 0],           // call bpf_loop
            [0x18, 0x61, 0, 0, 0, 0, 0, 0],          // r1 = the value in map 0
            [0; 8],
            [0x79, 0x10, 0, 0, 0, 0, 0, 0],       // r0 = *(u64 *)r1
            [0x79, 0xa1, 0xf8, 0xff, 0, 0, 0, 0], // r1 = *(u64 *)(r10 - 8)
            [0x0f, 0x10, 0, 0, 0, 0, 0, 0],       // r0 += r1
            [0x95, 0, 0, 0, 0, 0, 0, 0],          // exit
            [0x79, 0x23, 0, 0, 0, 0, 0, 0],       // r3 = *(u64 *)r2
            [0x07, 3, 0, 0, 3, 0, 0, 0],          // r3 += 3
            [0x7b, 0x32, 0, 0, 0, 0, 0, 0],       // *(u64 *)r2 = r3
            [0xb7, 0, 0, 0, 0, 0, 0, 0],          // r0 = 0
            [0x95, 0, 0, 0, 0, 0, 0, 0],          // exit
        ];
        let bytes = with_maps(program.as_flattened(), &[&map]);
        let loaded =
            Program::load(&Load { functions: &[0, 14], log: true, ..Load::new(1, &bytes) })
                .unwrap_or_else(|e| panic!("{e}"));
        let ran = loaded.test_run(&TestRun { data_in: &[0; 64], ..TestRun::default() }).unwrap();
        assert_eq!(ran.retval, 42);
    }

    #[test]
    fn a_refused_program_comes_with_the_log() {
        if !may_load() {
            return crate::skip("the right to use bpf(2)");
        }
        let exit = [0x95, 0, 0, 0, 0, 0, 0, 0];
        let refused = Program::load(&Load { log: true, ..Load::new(1, &exit) }).unwrap_err();
        assert!(refused.log.contains("R0 !read_ok"), "{refused}");
    }
}
