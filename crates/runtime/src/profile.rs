//! Compiled programs made known to profilers and debuggers, when the environment asks for it.
//!
//! `SKEP_PERF=map` writes `/tmp/perf-PID.map`, `SKEP_PERF=dump` writes `jit-PID.dump` into
//! `$JITDUMPDIR` or the working folder, and `SKEP_PERF=map,dump` both; see [`skep_vm::perf`] for
//! who reads them. `gdb` among the words keeps a list in memory that gdb reads ([`skep_vm::gdb`]).
//! Nothing is done by default, and what cannot be written is left out: a program runs all the same.

use std::ffi::OsStr;
use std::sync::{Mutex, TryLockError};

use skep_vm::Code;
use skep_vm::gdb;
use skep_vm::perf::{Dump, Function, Line, Listing, Map};

use skep_store::prog::Program;

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

/// Tells profilers and debuggers about a program that was just compiled.
pub(crate) fn announce(program: &Program, code: &mut Code) {
    let Some(wanted) = std::env::var_os(ENV_PERF).filter(|w| !w.is_empty()) else { return };
    let source = program.source();
    let functions: Vec<Function<'_>> =
        source.functions.iter().map(|(at, name)| Function { insn: *at as usize, name }).collect();
    let lines: Vec<Line<'_>> = source
        .lines
        .iter()
        .filter_map(|&(insn, file, line)| {
            // A line of a file that is not there is left out.
            Some(Line { insn: insn as usize, file: source.files.get(file as usize)?, line })
        })
        .collect();
    let listing = Listing { code, name: program.name(), functions: &functions, lines: &lines };
    write(&listing, &wanted);
    if wants(&wanted, "gdb")
        && let Some(registered) = gdb::register(&listing, program.insns())
    {
        code.keep(registered);
    }
}

/// Writes a program into the files.
fn write(listing: &Listing<'_>, wanted: &OsStr) {
    // A forked child may find the lock taken by a thread that it does not have; then its programs
    // have no names.
    let mut files = match FILES.try_lock() {
        Ok(files) => files,
        Err(TryLockError::Poisoned(files)) => files.into_inner(),
        Err(TryLockError::WouldBlock) => return,
    };
    let pid = std::process::id();
    if files.as_ref().is_none_or(|f| f.pid != pid) {
        *files = Some(Files::open(pid, wanted));
    }
    let Some(files) = files.as_mut() else { return };
    if files.map.as_ref().is_some_and(|map| map.add(listing).is_err()) {
        files.map = None;
    }
    if files.dump.as_mut().is_some_and(|dump| dump.add(listing).is_err()) {
        files.dump = None;
    }
}

/// Tells whether a word is among those wanted.
fn wants(wanted: &OsStr, what: &str) -> bool {
    wanted.to_string_lossy().split(',').any(|w| w.trim() == what)
}

impl Files {
    fn open(pid: u32, wanted: &OsStr) -> Self {
        let dir =
            std::env::var_os(ENV_DUMP_DIR).filter(|d| !d.is_empty()).unwrap_or_else(|| ".".into());
        Self {
            pid,
            map: if wants(wanted, "map") { Map::open().ok() } else { None },
            dump: if wants(wanted, "dump") {
                Dump::create(&dir.to_string_lossy()).ok()
            } else {
                None
            },
        }
    }
}
