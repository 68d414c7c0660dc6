//! Links in other processes: commands that are started with them, and processes that run already.

use std::ffi::{OsStr, c_char, c_int};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use skep::{Attached, FunctionLink, Session};
use skep_proc::launch::{LaunchError, find};

use crate::call::{Answer, Failure, call};
use crate::errno;
use crate::handle::{self, Handle, Kind, Table};
use crate::memory::{self, Plain};
use crate::session::OpenSession;

/// A process with links in it; none once it was left.
pub struct Process(Mutex<Option<Attached>>);

static PROCESSES: Table<Process> = Table::new("process");

impl Kind for Process {
    fn table() -> &'static Table<Self> {
        &PROCESSES
    }
}

/// `struct skep_command`.
#[repr(C)]
#[derive(Clone, Copy)]
#[expect(missing_docs, reason = "the header documents them")]
pub struct CommandLine {
    pub argv: *const *const c_char,
    pub agent: *const c_char,
    pub fds: [c_int; 3],
    pub reserved: u32,
}

// SAFETY: pointers, and words without a gap between them.
unsafe impl Plain for CommandLine {
    const LEAST: usize = 32;
    const NAME: &'static str = "struct skep_command";
}

/// More links or words are a wrong number, or a list without an end.
const MOST: usize = 1 << 16;

/// Finds links by their handles.
///
/// # Safety
/// There are `count` handles.
unsafe fn links(links: *const Handle, count: usize) -> Answer<Vec<Arc<FunctionLink>>> {
    if count == 0 {
        return Ok(Vec::new());
    }
    memory::check(links.cast(), align_of::<Handle>(), "list of links")?;
    if count > MOST {
        return Err(Failure::new(errno::E2BIG, "there are too many links"));
    }
    // SAFETY: there are as many: the caller's promise.
    (0..count).map(|n| handle::get::<FunctionLink>(unsafe { links.add(n).read() })).collect()
}

/// Where the agent's library is: where the caller says; else, unless the environment says it, where
/// it was installed together with this library.
fn agent(named: Option<&OsStr>) -> Option<PathBuf> {
    if let Some(named) = named {
        return Some(named.into());
    }
    if std::env::var_os("SKEP_PRELOAD").is_some_and(|path| !path.is_empty()) {
        return None;
    }
    let own = skep_process_leave as *const () as u64;
    let modules = skep_proc::module::own().ok()?;
    let library = modules.into_iter().find(|module| module.text_contains(own))?.path;
    let places = ["skep/libskep_preload.so", "libskep_preload.so"];
    places.iter().map(|place| library.with_file_name(place)).find(|path| path.is_file())
}

/// Takes a path, which need not be UTF-8, or none for null.
///
/// # Safety
/// It is null, or ends with NUL and does not change while the result is used.
unsafe fn path<'a>(text: *const c_char) -> Option<&'a OsStr> {
    // SAFETY: the caller's promise.
    let bytes = (!text.is_null()).then(|| unsafe { std::ffi::CStr::from_ptr(text) }.to_bytes())?;
    Some(OsStr::from_bytes(bytes))
}

/// Makes the command that a struct describes.
///
/// # Safety
/// What it refers to is there.
unsafe fn command(
    session: &Session,
    line: &CommandLine,
    links: &[Arc<FunctionLink>],
) -> Answer<Command> {
    memory::check_reserved(line.reserved)?;
    memory::check(line.argv.cast(), align_of::<*const c_char>(), "argv")?;
    let mut words = Vec::new();
    // SAFETY: the list ends with NULL, and all before it are texts: the caller's promise.
    while let Some(word) = unsafe { path(line.argv.add(words.len()).read()) } {
        if words.len() == MOST {
            return Err(Failure::new(errno::E2BIG, "argv does not end with NULL"));
        }
        words.push(word);
    }
    let Some((program, arguments)) = words.split_first() else {
        return Err(Failure::new(errno::EINVAL, "argv has no program"));
    };
    find(program, std::env::var_os("PATH").as_deref()).map_err(|e| {
        let missing = matches!(e, LaunchError::NotFound { .. });
        Failure::new(if missing { errno::ENOENT } else { errno::EACCES }, e.to_string())
    })?;
    // SAFETY: a text or null: the caller's promise.
    let agent = agent(unsafe { path(line.agent) });
    let links = links.iter().map(Arc::as_ref);
    let mut command = match &agent {
        Some(agent) => session.command_with(program, links, agent),
        None => session.command(program, links),
    }?;
    command.args(arguments);
    for (fd, set) in line.fds.into_iter().zip([Command::stdin, Command::stdout, Command::stderr]) {
        if fd != 0 {
            set(&mut command, Stdio::from(copy(fd)?));
        }
    }
    Ok(command)
}

/// Copies a descriptor of the caller's.
fn copy(fd: c_int) -> Answer<OwnedFd> {
    let bad = || Failure::new(errno::EBADF, format!("{fd} is no open descriptor"));
    if fd < 0 {
        return Err(bad());
    }
    // SAFETY: not -1. It is copied at once; one that is not open makes that fail.
    unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned().map_err(|_| bad())
}

/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn skep_command_start(
    session: Handle,
    line: *const CommandLine,
    size: usize,
    list: *const Handle,
    count: usize,
) -> c_int {
    // SAFETY: the struct and the links are as the caller promises.
    call(|| unsafe {
        let session = handle::get::<OpenSession>(session)?;
        let line = memory::read(line, size)?;
        let links = links(list, count)?;
        let mut command = command(&session, &line, &links)?;
        let program = command.get_program().to_string_lossy().into_owned();
        let started = command.spawn().map_err(|e| {
            let text = format!("cannot start `{program}`: {e}");
            Failure::new(e.raw_os_error().unwrap_or(errno::EIO), text)
        })?;
        // The caller waits for it.
        Ok(started.id().cast_signed())
    })
}

/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn skep_process_attach(
    session: Handle,
    pid: u32,
    list: *const Handle,
    count: usize,
    library: *const c_char,
    out: *mut Handle,
) -> c_int {
    // SAFETY: the links, the text and `out` are as the caller promises.
    call(|| unsafe {
        let session = handle::get::<OpenSession>(session)?;
        let links = links(list, count)?;
        let agent = agent(path(library));
        handle::give(out, || {
            let links = links.iter().map(Arc::as_ref);
            let attached = match &agent {
                Some(agent) => session.enter_with(pid, links, agent),
                None => session.enter(pid, links),
            }?;
            Ok(Process(Mutex::new(Some(attached))))
        })
    })
}

/// Tells how many functions the links have in a process.
#[unsafe(no_mangle)]
pub extern "C" fn skep_process_functions(process: Handle) -> c_int {
    call(|| {
        let process = handle::get::<Process>(process)?;
        let attached = process.0.lock().unwrap_or_else(PoisonError::into_inner);
        let functions = attached.as_ref().map_or(0, Attached::functions);
        Ok(c_int::try_from(functions).unwrap_or(c_int::MAX))
    })
}

/// Tells whether the programs still run in a process.
#[unsafe(no_mangle)]
pub extern "C" fn skep_process_is_running(process: Handle) -> c_int {
    call(|| {
        let process = handle::get::<Process>(process)?;
        let attached = process.0.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(attached.as_ref().is_some_and(Attached::is_running).into())
    })
}

/// Takes the links out of a process, and frees it.
#[unsafe(no_mangle)]
pub extern "C" fn skep_process_leave(process: Handle) -> c_int {
    call(|| {
        let Some(process) = handle::take::<Process>(process)? else { return Ok(0) };
        let attached = process.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        attached.map_or(Ok(()), Attached::leave)?;
        Ok(0)
    })
}
