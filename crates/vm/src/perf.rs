//! Tells profilers where compiled programs are: perf's map file and its jitdump.
//!
//! Nothing is written unless a caller asks for it. [`Map`] appends a line a function to
//! `/tmp/perf-PID.map`, which `perf report` and others read for addresses that belong to no file.
//! [`Dump`] writes `jit-PID.dump` with the code itself and source lines; `perf record -k mono`,
//! then `perf inject --jit`, make ordinary object files of it, so that `perf annotate` works.
//!
//! The file formats are perf's (tools/perf/Documentation/jit-interface.txt and
//! jitdump-specification.txt). Files are written by system calls of our own: in a traced process
//! the C library's may be hooked. A forked child has its parent's code, but files are by process:
//! what was compiled before the fork is not in the child's.

use std::fmt::Write;

use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::bytes::{add, add_text};
use crate::exec::Marker;
use crate::jit::Code;

/// Where a function of a program starts, and what it is called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Function<'a> {
    /// Its first instruction slot.
    pub insn: usize,
    /// Its name.
    pub name: &'a str,
}

/// From which instruction slot on code comes from a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Line<'a> {
    /// The first slot.
    pub insn: usize,
    /// The source file.
    pub file: &'a str,
    /// The line, from 1.
    pub line: u32,
}

/// A compiled program as profilers shall know it.
#[derive(Clone, Copy, Debug)]
pub struct Listing<'a> {
    /// The machine code.
    pub code: &'a Code,
    /// The program's name.
    pub name: &'a str,
    /// Its functions in order of their slots; the main one, at 0, need not be there.
    pub functions: &'a [Function<'a>],
    /// Its lines in order of their slots.
    pub lines: &'a [Line<'a>],
}

/// One function's machine code.
struct Part<'a> {
    name: String,
    at: usize,
    bytes: &'a [u8],
}

impl<'a> Listing<'a> {
    /// Splits the code into functions: `bpf_prog_NAME`, and `bpf_prog_NAME.FUNCTION` for those the
    /// program calls.
    fn parts(&self) -> Vec<Part<'a>> {
        let code = self.code.machine_code();
        let mut starts = vec![(0, format!("bpf_prog_{}", self.name))];
        for f in self.functions.iter().filter(|f| f.insn != 0) {
            if let Some(at) = self.code.function_offset(f.insn) {
                starts.push((at, format!("bpf_prog_{}.{}", self.name, f.name)));
            }
        }
        starts.sort_by_cached_key(|(at, _)| *at as u64);
        starts.dedup_by_key(|(at, _)| *at);
        let ends: Vec<usize> =
            starts.iter().skip(1).map(|(at, _)| *at).chain([code.len()]).collect();
        let part = |((at, name), end): ((usize, String), usize)| Part {
            name,
            at,
            bytes: code.get(at..end).unwrap_or_default(),
        };
        starts.into_iter().zip(ends).map(part).collect()
    }
}

/// The text file with a line for each function: address, size and name.
#[derive(Debug)]
pub struct Map {
    file: OwnedFd,
}

impl Map {
    /// Opens `/tmp/perf-PID.map` of this process, behind what others may have written there.
    ///
    /// # Errors
    /// The system's; also when the file is a link, as `/tmp` is everybody's.
    pub fn open() -> Result<Self, Errno> {
        Self::open_at(&format!("/tmp/perf-{}.map", rustix::process::getpid().as_raw_nonzero()))
    }

    /// Opens another file.
    ///
    /// # Errors
    /// As [`Map::open`].
    pub fn open_at(path: &str) -> Result<Self, Errno> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        Ok(Self {
            file: rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::ROTH)?,
        })
    }

    /// Adds a program.
    ///
    /// # Errors
    /// The system's.
    pub fn add(&self, listing: &Listing<'_>) -> Result<(), Errno> {
        let base = listing.code.machine_code().as_ptr() as usize;
        let mut text = String::new();
        for part in listing.parts() {
            // Writing into a string cannot fail.
            let _ = writeln!(text, "{:x} {:x} {}", base + part.at, part.bytes.len(), part.name);
        }
        write_all(&self.file, text.as_bytes())
    }
}

const MAGIC: u32 = 0x4a69_5444;
const VERSION: u32 = 1;
const HEADER: u32 = 40;
const EM_X86_64: u32 = 62;
const CODE_LOAD: u32 = 0;
const DEBUG_INFO: u32 = 2;

/// The binary file with code and lines.
#[derive(Debug)]
pub struct Dump {
    file: OwnedFd,
    /// perf finds the file because it sees it mapped as code.
    _marker: Marker,
    next: u64,
}

impl Dump {
    /// Makes `jit-PID.dump` of this process in a folder.
    ///
    /// # Errors
    /// The system's.
    pub fn create(dir: &str) -> Result<Self, Errno> {
        let pid = rustix::process::getpid().as_raw_nonzero().get() as u32;
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file =
            rustix::fs::open(format!("{dir}/jit-{pid}.dump"), flags, Mode::RUSR | Mode::WUSR)?;
        let mut header = Vec::new();
        for word in [MAGIC, VERSION, HEADER, EM_X86_64, 0, pid] {
            add(&mut header, &word.to_le_bytes());
        }
        add(&mut header, &now().to_le_bytes());
        add(&mut header, &0u64.to_le_bytes());
        write_all(&file, &header)?;
        Ok(Self { _marker: Marker::new(&file)?, file, next: 0 })
    }

    /// Adds a program.
    ///
    /// # Errors
    /// The system's.
    pub fn add(&mut self, listing: &Listing<'_>) -> Result<(), Errno> {
        let base = listing.code.machine_code().as_ptr() as u64;
        let pid = rustix::process::getpid().as_raw_nonzero().get() as u32;
        let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        for part in listing.parts() {
            let at = base + part.at as u64;
            // Lines come before the code they are of.
            if let Some(info) = debug_info(listing, &part, at) {
                write_all(&self.file, &info)?;
            }
            let mut record = Vec::new();
            for word in [pid, tid] {
                add(&mut record, &word.to_le_bytes());
            }
            for word in [at, at, part.bytes.len() as u64, self.next] {
                add(&mut record, &word.to_le_bytes());
            }
            add_text(&mut record, &part.name);
            add(&mut record, part.bytes);
            write_all(&self.file, &with_prefix(CODE_LOAD, &record))?;
            self.next += 1;
        }
        Ok(())
    }
}

/// Makes the record with the lines of a function; `None` when there are none.
fn debug_info(listing: &Listing<'_>, part: &Part<'_>, at: u64) -> Option<Vec<u8>> {
    let offsets = listing.code.offsets();
    let (mut count, mut entries) = (0u64, Vec::new());
    for line in listing.lines {
        let Some(inside) = offsets.get(line.insn).and_then(|o| (*o as usize).checked_sub(part.at))
        else {
            continue;
        };
        if inside < part.bytes.len() {
            add(&mut entries, &(at + inside as u64).to_le_bytes());
            add(&mut entries, &line.line.to_le_bytes());
            add(&mut entries, &0u32.to_le_bytes());
            add_text(&mut entries, line.file);
            count += 1;
        }
    }
    let mut record = Vec::new();
    add(&mut record, &at.to_le_bytes());
    add(&mut record, &count.to_le_bytes());
    add(&mut record, &entries);
    (count != 0).then(|| with_prefix(DEBUG_INFO, &record))
}

fn with_prefix(kind: u32, body: &[u8]) -> Vec<u8> {
    let mut record = Vec::new();
    add(&mut record, &kind.to_le_bytes());
    add(&mut record, &(16 + body.len() as u32).to_le_bytes());
    add(&mut record, &now().to_le_bytes());
    add(&mut record, body);
    record
}

/// The clock that `perf record -k mono` stamps its samples with.
fn now() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    (t.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(t.tv_nsec as u64)
}

fn write_all(file: &OwnedFd, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        let n = rustix::io::retry_on_intr(|| rustix::io::write(file, bytes))?;
        if n == 0 {
            return Err(Errno::IO);
        }
        bytes = bytes.get(n..).unwrap_or_default();
    }
    Ok(())
}
