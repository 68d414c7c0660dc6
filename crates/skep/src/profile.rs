//! Compiled programs made known to profilers, when the environment asks for it.
//!
//! `SKEP_PERF=map` writes `/tmp/perf-PID.map`, `SKEP_PERF=dump` writes `jit-PID.dump` into `$JITDUMPDIR` or the working folder, and
//! `SKEP_PERF=map,dump` both; see [`skep_vm::perf`] for who reads them. Nothing is written by default, and what cannot be written
//! is left out: a program runs all the same.

use std::ffi::OsStr;
use std::sync::{Mutex, TryLockError};

use skep_vm::Code;
use skep_vm::perf::{Dump, Function, Line, Listing, Map};

use crate::prog::Program;

/// The variable that asks.
pub const ENV_PERF: &str = "SKEP_PERF";
const ENV_DUMP_DIR: &str = "JITDUMPDIR";

/// The files of one process.
struct Files {
    pid: u32,
    map: Option<Map>,
    dump: Option<Dump>,
}

static FILES: Mutex<Option<Files>> = Mutex::new(None);

/// Tells profilers about a program that was just compiled.
pub(crate) fn announce(program: &Program, code: &Code) {
    let Some(wanted) = std::env::var_os(ENV_PERF).filter(|w| !w.is_empty()) else { return };
    // A forked child may find the lock taken by a thread that it does not have; then its programs have no names.
    let mut files = match FILES.try_lock() {
        Ok(files) => files,
        Err(TryLockError::Poisoned(files)) => files.into_inner(),
        Err(TryLockError::WouldBlock) => return,
    };
    let pid = std::process::id();
    if files.as_ref().is_none_or(|f| f.pid != pid) {
        *files = Some(Files::open(pid, &wanted));
    }
    let Some(files) = files.as_mut() else { return };
    let source = &program.source;
    let functions: Vec<Function<'_>> = source.functions.iter().map(|(at, name)| Function { insn: *at as usize, name }).collect();
    let lines: Vec<Line<'_>> = source.lines.iter().filter_map(|l| source.line(l)).collect();
    let listing = Listing { code, name: &program.name, functions: &functions, lines: &lines };
    if files.map.as_ref().is_some_and(|map| map.add(&listing).is_err()) {
        files.map = None;
    }
    if files.dump.as_mut().is_some_and(|dump| dump.add(&listing).is_err()) {
        files.dump = None;
    }
}

impl Files {
    fn open(pid: u32, wanted: &OsStr) -> Self {
        let wants = |what: &str| wanted.to_string_lossy().split(',').any(|w| w.trim() == what);
        let dir = std::env::var_os(ENV_DUMP_DIR).filter(|d| !d.is_empty()).unwrap_or_else(|| ".".into());
        Self {
            pid,
            map: if wants("map") { Map::open().ok() } else { None },
            dump: if wants("dump") { Dump::create(&dir.to_string_lossy()).ok() } else { None },
        }
    }
}
