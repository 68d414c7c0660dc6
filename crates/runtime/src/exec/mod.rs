//! What the traced program executes: the agent is kept out of what it cannot work in.
//!
//! A child finds the agent in `LD_PRELOAD`. Some programs do not run with it at all: those of
//! another C library end with 127, those with an address sanitizer with 1, and where the library
//! cannot be opened the dynamic linker complains on the child's stderr. So the C library's
//! `execve`, `execveat` and `fexecve` are hooked, inside the library, where `system`, `popen` and
//! `posix_spawn` come through as well. The hook looks at the file ([`inspect`]); when the agent
//! cannot work in it, the program gets an environment without the agent, and the link files name it
//! with the reason. A program that merely never starts the agent (a static one) keeps its
//! environment: its own children may be traced.
//!
//! The hook may run in a child of `vfork`, in its parent's memory, or of `fork` in a program with
//! threads, whose locks nobody will release. So nothing here allocates or takes a lock of this
//! process, all system calls are raw, and the stack it needs is a few KiB. The copy of an
//! environment lies in memory that belongs to the thread: after `vfork` the parent waits, and its
//! next child uses it again.
//!
//! Not seen: programs that make the system call themselves.

mod environment;
mod inspect;
pub(crate) mod libc;
mod note;
mod readable;

use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::Acquire, Ordering::Release};

use skep_attach::{Position, RunFn, sandbox, signals};

use crate::own_hooks::{OwnHooks, hook};
use inspect::{Kind, Program};
use libc::Libc;
use skep_sys::syscall::{FACCESSAT, FSTATAT, call4};

/// Why a program is not traced, as a predicate: "`/bin/busybox` is statically linked".
const NO_AGENT: &str = "was started without the agent in `LD_PRELOAD`";
const NO_LIBRARY: &str =
    "cannot open the agent's library: it is another user's, or has another root directory";
const CUT_OFF: &str = "was executed when the agent's library had been cut off";
/// For a process that finds out by itself.
pub(crate) const VALGRIND: &str = "runs under valgrind";

/// What the hook needs, ready before it runs; never freed.
struct Watch {
    /// The agent's library as it stands in `LD_PRELOAD`.
    library: CString,
    /// Its size when this process began.
    size: u64,
    /// The link files of this process.
    links: Vec<note::Link>,
}

static WATCH: AtomicPtr<Watch> = AtomicPtr::new(std::ptr::null_mut());

const AT_FDCWD: i32 = -100;

/// What executes programs.
pub(crate) const FUNCTIONS: [&CStr; 5] =
    [c"execve", c"execveat", c"fexecve", c"posix_spawn", c"posix_spawnp"];
/// What is to run before each. The child of the last two executes in this process's memory, where no thread
/// can have its first event.
const HOOKS: [RunFn; 5] = [on_execve, on_execveat, on_fexecve, on_spawn, on_spawn];

/// Hooks what executes programs. `links`: the link files that name what is not traced.
pub(crate) fn watch<'a>(libc: &Libc, links: impl Iterator<Item = &'a Path>) {
    let Some(library) = std::env::var_os("LD_PRELOAD").and_then(|value| {
        let entry = environment::entries(value.as_bytes()).find(|e| environment::is_agent(e))?;
        CString::new(entry).ok()
    }) else {
        return;
    };
    let size = size_of_file(&library).unwrap_or(0);
    let links = links.filter_map(note::Link::new).collect();
    WATCH.store(Box::into_raw(Box::new(Watch { library, size, links })), Release);
    let mut own = OwnHooks::default();
    for (name, run) in FUNCTIONS.into_iter().zip(HOOKS) {
        // SAFETY: hooks for these very functions; they are called with the vector registers as the C
        // library's wrappers are, which keep nothing in them.
        let hook = unsafe { hook(Position::Entry, run) }.wants_args(4);
        // Refused: then children get the agent as it is.
        own.add(libc.function(name), &[hook]);
    }
    own.attach();
}

/// Gets ready for programs that are executed when system calls are over.
pub(crate) fn prepare_for_sandbox() {
    environment::reserve();
}

/// The last thread that called `posix_spawn`, and the signals that its child is to have the default
/// of.
static SPAWNER: AtomicU64 = AtomicU64::new(0);
static SPAWN_RESETS: AtomicU64 = AtomicU64::new(0);

/// `int posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *, const
/// posix_spawnattr_t *attr, …)`. The engine gets to know the thread.
unsafe extern "C" fn on_spawn(ctx: *mut u64, _: *const ()) -> u64 {
    const SETSIGDEF: u16 = 4;
    // SAFETY: the frame has twelve argument words; attributes are null, or those that the C library
    // is about to read (bits of `spawn.h`: flags, a process group, the set).
    let resets = unsafe {
        let attributes = *ctx.add(3) as *const u16;
        if attributes.is_null() || *attributes & SETSIGDEF == 0 {
            0
        } else {
            attributes.add(4).cast::<u64>().read()
        }
    };
    SPAWN_RESETS.store(resets, Release);
    SPAWNER.store(skep_attach::thread(), Release);
    0
}

/// `int execve(const char *path, char *const argv[], char *const envp[])`. What is stored in the
/// frame is what the function gets.
unsafe extern "C" fn on_execve(ctx: *mut u64, _: *const ()) -> u64 {
    // SAFETY: the frame has twelve argument words; the C library passes on what it was given.
    unsafe { *ctx.add(2) = consider(AT_FDCWD, *ctx, *ctx.add(2)) };
    0
}

/// `int execveat(int fd, const char *path, char *const argv[], char *const envp[], int flags)`
unsafe extern "C" fn on_execveat(ctx: *mut u64, _: *const ()) -> u64 {
    // SAFETY: as above.
    unsafe { *ctx.add(3) = consider(*ctx as i32, *ctx.add(1), *ctx.add(3)) };
    0
}

/// `int fexecve(int fd, char *const argv[], char *const envp[])`
unsafe extern "C" fn on_fexecve(ctx: *mut u64, _: *const ()) -> u64 {
    // SAFETY: as above.
    unsafe { *ctx.add(2) = consider(*ctx as i32, c"".as_ptr() as u64, *ctx.add(2)) };
    0
}

/// Says which environment a program is to get.
///
/// # Safety
/// `path` and `envp` are those of a call of `execve`: null, bad, or what that takes.
unsafe fn consider(fd: i32, path: u64, envp: u64) -> u64 {
    // SAFETY: null, or what `watch` stored, which is never freed.
    let Some(watch) = (unsafe { WATCH.load(Acquire).as_ref() }) else { return envp };
    if path == 0 || envp == 0 {
        return envp;
    }
    if !sandbox::may_call_system() {
        // The program will be in the sandbox that is against our system calls, and the agent begins
        // with many. SAFETY: the caller's promise.
        let new = unsafe { environment::without_agent(envp as *const *const u8) }
            .map_or(envp, |new| new as u64);
        // A child of `vfork` that fails to execute it has a moment left, to try another or to end.
        sandbox::open_for_parent();
        return new;
    }
    if crate::seccomp::inherited::has_unseen_filter() {
        // The agent that the program gets finds out by itself.
        return envp;
    }
    // If it is no string or no environment, the call itself fails with EFAULT.
    if !is_executable(fd, path) || !readable::is_environment(envp) {
        return envp;
    }
    signals::prepare_exec(if SPAWNER.load(Acquire) == skep_attach::thread() {
        SPAWN_RESETS.load(Acquire)
    } else {
        0
    });
    // SAFETY: an environment, as was just seen.
    let Some((value, named)) = (unsafe { environment::find(envp as *const *const u8) }) else {
        // SAFETY: as above.
        return unsafe { untraced(watch, fd, path, NO_AGENT, envp) };
    };
    if !named {
        // SAFETY: as above.
        return unsafe { untraced(watch, fd, path, NO_AGENT, envp) };
    }
    let mut program = Program::new();
    // SAFETY: `path` is a string.
    let kind = unsafe { program.inspect(fd, CStr::from_ptr(path as *const _)) };
    let reason = match kind {
        Kind::Missing => return envp,
        // It may be executed and not read, or it is a text that its caller gives to a shell.
        Kind::Unknown => None,
        Kind::Traceable if environment::has_sanitizer_first(value) => None,
        Kind::Traceable if !is_visible(&watch.library) => Some(NO_LIBRARY),
        // The dynamic linker would complain of it on the program's stderr.
        Kind::Traceable if size_of_file(&watch.library) != Some(watch.size) => Some(CUT_OFF),
        Kind::Traceable => None,
        Kind::AddressSanitizer if environment::has_sanitizer_first(value) => None,
        Kind::Static | Kind::Secure => {
            // The agent does no harm where nobody loads it.
            watch.note(program.path(), kind.reason());
            return envp;
        }
        kind => Some(kind.reason()),
    };
    let Some(reason) = reason else { return envp };
    watch.note(program.path(), reason);
    // SAFETY: `envp` is an environment.
    unsafe { environment::without_agent(envp as *const *const u8) }.map_or(envp, |new| new as u64)
}

/// Notes a program that cannot be traced for want of the agent in its environment.
unsafe fn untraced(watch: &Watch, fd: i32, path: u64, reason: &'static str, envp: u64) -> u64 {
    let mut program = Program::new();
    // SAFETY: the caller's string.
    if unsafe { program.inspect(fd, CStr::from_ptr(path as *const _)) } != Kind::Missing {
        watch.note(program.path(), reason);
    }
    envp
}

/// Tells whether there is a file that may be executed, as far as that can be told; the C library
/// tries names until one is. If so, `path` is a string, which the kernel has read.
fn is_executable(fd: i32, path: u64) -> bool {
    const X_OK: u64 = 1;
    const ENOENT: u64 = -2_i64 as u64;
    // SAFETY: the kernel checks the address.
    match unsafe { call4(FACCESSAT, fd as u64, path, X_OK, 0) } {
        0 => true,
        // SAFETY: it was not EFAULT: the kernel has read the string. An empty one is the descriptor
        // itself.
        ENOENT => unsafe { *(path as *const u8) == 0 },
        _ => false,
    }
}

/// Tells whether a file can be read from here.
fn is_visible(path: &CStr) -> bool {
    const R_OK: u64 = 4;
    // SAFETY: reads the string.
    unsafe { call4(FACCESSAT, AT_FDCWD as u64, path.as_ptr() as u64, R_OK, 0) == 0 }
}

/// The size of a file that can be found from here.
fn size_of_file(path: &CStr) -> Option<u64> {
    /// `st_size` among the words of `struct stat` (asm/stat.h).
    const SIZE: usize = 6;
    let mut stat = [0_u64; 18];
    let at = stat.as_mut_ptr() as u64;
    // SAFETY: reads the string, and writes a `struct stat`, which is 18 words long.
    let done = unsafe { call4(FSTATAT, AT_FDCWD as u64, path.as_ptr() as u64, at, 0) };
    (done == 0).then_some(stat[SIZE])
}

impl Watch {
    fn note(&self, path: &[u8], reason: &str) {
        // A file may have become longer than this process may write one.
        let _signals = signals::Blocked::new();
        for link in &self.links {
            link.note(path, reason);
        }
    }
}

/// Tells whether this process runs under Valgrind, which translates code and so does not see that
/// ours changes it.
pub(crate) fn is_under_valgrind() -> bool {
    std::env::var_os("LD_PRELOAD").is_some_and(|value| {
        environment::entries(value.as_bytes()).any(|e| contains(e, b"vgpreload"))
    })
}

fn contains(text: &[u8], what: &[u8]) -> bool {
    text.windows(what.len()).any(|w| w == what)
}
