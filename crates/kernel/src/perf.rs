//! Samples that programs write through a perf event array: one ring for each CPU, mapped as libbpf
//! does.

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::Ordering;

use crate::error::{Error, Result};
use crate::map::Map;
use crate::mapping::{Mapping, PAGE};

/// `PERF_TYPE_SOFTWARE`, `PERF_COUNT_SW_BPF_OUTPUT`, `PERF_SAMPLE_RAW`.
const SOFTWARE: u32 = 1;
const BPF_OUTPUT: u64 = 10;
const SAMPLE_RAW: u64 = 1 << 10;
/// `PERF_FLAG_FD_CLOEXEC`.
const CLOEXEC: libc::c_ulong = 8;
/// `PERF_EVENT_IOC_ENABLE`.
const ENABLE: libc::c_ulong = 0x2400;
/// `PERF_RECORD_SAMPLE`.
const SAMPLE: u32 = 9;
/// Where a ring's first page has the positions: `data_head` and `data_tail` of
/// `struct perf_event_mmap_page`.
const DATA_HEAD: usize = 1024;
const DATA_TAIL: usize = 1032;
/// `struct perf_event_header`.
const HEADER: usize = 8;

/// The first version of `struct perf_event_attr`.
#[repr(C)]
#[derive(Default)]
struct PerfEventAttr {
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

/// Opens a CPU's event that programs write to, and starts it.
fn open_output(cpu: u32) -> Result<OwnedFd> {
    let attr = PerfEventAttr {
        kind: SOFTWARE,
        size: size_of::<PerfEventAttr>() as u32,
        config: BPF_OUTPUT,
        sample_period: 1,
        sample_type: SAMPLE_RAW,
        // Nobody is woken up: a signed number to the kernel, as large as it can be.
        wakeup_events: i32::MAX as u32,
        ..Default::default()
    };
    let (any_process, no_group) = (-1, -1);
    // SAFETY: the attribute lives during the call and has the size it says; the rest are numbers.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            std::ptr::from_ref(&attr),
            any_process as libc::c_long,
            libc::c_long::from(cpu),
            no_group as libc::c_long,
            CLOEXEC,
        )
    };
    if fd < 0 {
        return Err(Error::last("perf_event_open"));
    }
    // SAFETY: the kernel made the descriptor for this call, so nothing else owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    // SAFETY: the request takes a number.
    if unsafe { libc::ioctl(fd.as_raw_fd(), ENABLE, 0) } < 0 {
        return Err(Error::last("PERF_EVENT_IOC_ENABLE"));
    }
    Ok(fd)
}

/// Reads the samples of a perf event array.
#[derive(Debug)]
pub struct PerfReader {
    rings: Vec<(OwnedFd, Mapping)>,
    size: usize,
}

impl PerfReader {
    /// Opens a ring of `size` bytes, a power of two, for each slot of a perf event array.
    ///
    /// # Errors
    /// The errno of what failed.
    pub fn new(map: &Map, size: usize) -> Result<Self> {
        let mut rings = Vec::new();
        for cpu in 0..map.info()?.max_entries {
            let fd = open_output(cpu)?;
            let ring = Mapping::new(fd.as_fd(), PAGE + size, 0, true)?;
            map.update(&cpu.to_ne_bytes(), &fd.as_raw_fd().to_ne_bytes(), 0)?;
            rings.push((fd, ring));
        }
        Ok(Self { rings, size })
    }

    /// Gives every sample to `f`, in as many pieces as it lies in (one, or two around the end of a
    /// ring), and returns their number.
    pub fn drain(&mut self, mut f: impl FnMut(&[u8], &[u8])) -> u64 {
        let mut count = 0;
        for (_, ring) in &self.rings {
            let (head, tail) = (ring.u64_at(DATA_HEAD), ring.u64_at(DATA_TAIL));
            // Acquire: pairs with the kernel's barrier before it moves the head.
            let (end, mut at) = (head.load(Ordering::Acquire), tail.load(Ordering::Relaxed));
            while at < end {
                let offset = at as usize & (self.size - 1);
                // Records begin at multiples of eight, so the header is whole.
                let header = ring.u64_at(PAGE + offset).load(Ordering::Relaxed);
                let (kind, len) = (header as u32, (header >> 48) as usize);
                if kind == SAMPLE {
                    let len = len.saturating_sub(HEADER);
                    let first = len.min(self.size - offset - HEADER);
                    // SAFETY: the kernel leaves records before the head alone until the tail, which
                    // only this reader moves, has passed them.
                    let pieces = unsafe {
                        (ring.bytes(PAGE + offset + HEADER, first), ring.bytes(PAGE, len - first))
                    };
                    f(pieces.0, pieces.1);
                    count += 1;
                }
                at += len as u64;
            }
            // Release: the kernel reuses the bytes after this.
            tail.store(at, Ordering::Release);
        }
        count
    }
}
