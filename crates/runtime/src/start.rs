//! How the agent of a process begins: in the constructor of the preloaded library, before the
//! program's own code, or when a program attaches to itself.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use skep_attach::signals;
use skep_attach::sites::{self, Module};
use skep_attach::{Bypassed, Engine, Position};
use skep_store::Dir;
use skep_store::dir::{ENV_DIR, ENV_LINKS};
use skep_store::link::{LinkFile, Untraced};
use skep_sys::own_file::OwnFile;
use skep_sys::syscall::call4;
use skep_sys::{LEAST_STACK, sandbox, thread_words};

use crate::agent::{self, Agent, AgentError, executable};
use crate::exec::{self, libc::Libc};
use crate::own_hooks::{OwnHooks, hook};
use crate::run::Running;
pub use crate::unwinders::OwnImage;
use crate::{blocked, own_thread, seccomp, unwinders};

/// The function the dynamic loader calls after every change to the list of libraries (glibc
/// elf/dl-debug.c).
const LOADER_EVENT: &str = "_dl_debug_state";
/// Bytes of address space that it takes to say why nothing is attached.
const ROOM_TO_SAY: u64 = 512 << 10;

/// Attaches every link the environment names. Does nothing when it names none. `prepare` runs before
/// anything is hooked, with signals held back, unless a sandbox keeps the agent out.
///
/// # Safety
/// This code was compiled with optimization for the baseline of its machine: events happen between
/// any two instructions of the process, and what runs then, the section `.text.skep_event`, may use
/// no vector register (a test of the preloaded library looks). The process uses the C library that
/// this code is linked with, and this is called once.
///
/// ```compile_fail,E0133
/// skep_runtime::start::start(|| ());
/// ```
pub unsafe fn start(prepare: impl FnOnce()) {
    let dir =
        || Dir::open(&std::env::var_os(ENV_DIR).map_or_else(Dir::default_path, PathBuf::from));
    // Before any other system call, which a filter may punish.
    if let Some(reason) = seccomp::inherited::obstacle() {
        // Those that note it, too, and there may be no memory for it.
        seccomp::inherited::lives(&|| dir().map(|dir| stay_out(&dir, &links(), reason)).is_ok());
        return;
    }
    // The heap makes the same system calls next, and has no way out.
    if !skep_sys::has_address_space(ROOM_TO_SAY) || !has_stack() {
        return;
    }
    let ids = links();
    if ids.is_empty() {
        return;
    }
    let _muted = skep_attach::mute();
    // A handler that another library has installed may fork, which takes the locks that are held
    // here.
    let _signals = signals::Blocked::new();
    let Ok(dir) = dir() else { return };
    if let Err(e) = Agent::check_room(&dir, &ids) {
        return Agent::report_failure(&dir, &ids, &e.to_string());
    }
    prepare();
    if exec::is_under_valgrind() {
        return stay_out(&dir, &ids, exec::VALGRIND);
    }
    let modules = sites::scan();
    watch_forks();
    let modules = match modules {
        Ok(modules) => modules,
        Err(e) => return Agent::report_failure(&dir, &ids, &e.to_string()),
    };
    let agent = Agent::of_process();
    for id in ids {
        // SAFETY: the caller's promise.
        drop(unsafe { agent.attach(&dir, id, &modules, agent::detach) });
    }
    let mut passing = OwnHooks::default();
    watch_loader(&modules, &mut passing);
    let wanted = [&exec::FUNCTIONS[..], &blocked::FUNCTIONS, &seccomp::FUNCTIONS];
    let libc = Libc::find(&modules, &wanted);
    if let Some(libc) = &libc {
        exec::watch(libc, agent.files().iter().map(PathBuf::as_path));
    }
    watch_libc(libc.as_ref(), passing);
}

/// Tells whether the first thread's stack may grow to what this takes.
fn has_stack() -> bool {
    const PRLIMIT64: u64 = 302;
    const RLIMIT_STACK: u64 = 3;
    let limits = [u64::MAX; 2].map(AtomicU64::new);
    // SAFETY: writes two words.
    unsafe { call4(PRLIMIT64, 0, RLIMIT_STACK, 0, limits.as_ptr() as u64) };
    limits[0].load(Relaxed) >= LEAST_STACK
}

/// The links that the environment names.
#[inline(never)]
fn links() -> Vec<u32> {
    let list = std::env::var_os(ENV_LINKS).unwrap_or_default();
    list.to_string_lossy().split(',').filter_map(|s| s.trim().parse().ok()).collect()
}

/// Attaches the other hooks in the C library, with those that are taken out with the links'.
fn watch_libc(libc: Option<&Libc>, mut passing: OwnHooks) {
    if let Some(libc) = libc {
        blocked::watch(libc);
        seccomp::watch(libc, &mut passing);
    }
    if let Some(id) = passing.attach() {
        Agent::of_process().own_attachment(id);
    }
}

/// Has files of `/proc`, which the process does not see itself, looked for by a descriptor from now on;
/// `None`: it does.
pub fn see_proc_by(fd: Option<i32>) {
    skep_sys::of_proc::see_by(fd);
    skep_proc::own_proc::see_by(fd);
}

/// Says where the agent's own library lies: the kernel does not tell that. Stack traces go through it,
/// and show none of it.
pub fn own_image(own: &OwnImage) {
    skep_helpers::set_own_code(own.code.clone(), own.table);
    unwinders::know(own);
}

/// Attaches a link to this process, whose program asks for it; returns how many functions were
/// attached.
///
/// What the process executes goes on without it.
///
/// # Errors
/// When the event path was compiled without optimization, the process is in a sandbox, the link
/// cannot be read, or nothing can be attached at all.
pub fn attach_own(dir: &Dir, id: u32) -> Result<u32, AgentError> {
    if !IS_OPTIMIZED {
        return Err("skep was compiled without optimization, or for more than the baseline of x86-64, and hooks would destroy vector \
            registers; add `[profile.dev.package.\"*\"]` with `opt-level = 2` to `Cargo.toml`"
            .into());
    }
    if let Some(reason) = seccomp::inherited::obstacle() {
        return Err(format!("this process {reason}").into());
    }
    if exec::is_under_valgrind() {
        return Err(format!("this process {}", exec::VALGRIND).into());
    }
    let _muted = skep_attach::mute();
    // Before any lock is taken that a child of `fork` will want.
    watch_forks();
    // SAFETY: the event path is optimized (checked above), and this process uses the C library that
    // it is linked with.
    unsafe { Agent::of_process().attach_own(dir, id, watch_own, leave_hooks) }
}

/// The agent in a process that it was put into while it ran. Its thread is the only one that does
/// more than what events do.
#[derive(Debug)]
pub struct Live {
    dir: Dir,
    /// What [`unhook`](Self::unhook) took out.
    unhooked: Option<agent::Detached>,
}

pub use skep_store::live::StillInside;

const _: () = assert!(skep_store::live::AREA_END == skep_attach::AREA_WORDS);
const _: () = assert!(skep_store::live::AREA_MARK == skep_attach::AREA_MARK);
const _: () = assert!(signals::ACTION == 6);

/// Takes out all hooks that there still are, and tells whether calls are still inside of any, after a
/// moment; with the places where a jump stays. For a `skep` whose own agent is to have the process.
#[must_use]
pub fn rest() -> (StillInside, Vec<Bypassed>) {
    let Ok(engine) = Engine::get() else { return (StillInside::Unknown, Vec::new()) };
    engine.notice_restored();
    drop(Agent::of_process().leave());
    let begin = Instant::now();
    let inside = loop {
        match engine.has_calls_in_progress() {
            false => break StillInside::Nobody,
            true if begin.elapsed() < REST_PATIENCE => std::thread::sleep(SHORT_PATIENCE),
            true if engine.sees_threads() => break StillInside::Threads,
            true => break StillInside::Unknown,
        }
    };
    unwinders::give_back(Duration::ZERO);
    (inside, engine.bypassed())
}

impl Live {
    /// Opens the skep directory. `own_table`: the calling thread shares its descriptors with no other.
    ///
    /// # Errors
    /// When it is not there, or the process belongs to another user; in a sandbox, or without memory.
    pub fn begin(directory: &Path, own_table: bool) -> Result<Self, String> {
        agent::check_room(0).map_err(|e| e.to_string())?;
        if let Some(reason) = seccomp::inherited::obstacle() {
            return Err(format!("this process {reason}"));
        }
        let dir = Dir::open(directory).map_err(|e| e.to_string())?;
        if !own_thread::begin(own_table) {
            return Err("it can open no more files".into());
        }
        if let Ok(engine) = Engine::get() {
            // Of one before, whose `skep` was killed.
            engine.notice_restored();
        }
        Ok(Self { dir, unhooked: None })
    }

    /// The file that can be read from when there is something to [look at](Self::look).
    #[must_use]
    pub fn news(&self) -> &'static OwnFile {
        own_thread::news()
    }

    /// Tells whether there is.
    #[must_use]
    pub fn has_news(&self) -> bool {
        own_thread::has_news()
    }

    /// Tells whether the process is about to forbid this thread whatever it likes: it closes what it has
    /// open ([`end`](Self::end)), and ends.
    #[must_use]
    pub fn ends(&self) -> bool {
        own_thread::ends()
    }

    /// Closes what is open. Hooks stay for who wanted this.
    pub fn end(self) {
        own_thread::close();
    }

    /// Attaches a link, and takes no more than that many bytes of memory for it; returns how many
    /// functions it has.
    ///
    /// # Errors
    /// As for [`Agent::attach`].
    pub fn attach(&mut self, id: u32, memory: u64) -> Result<u32, AgentError> {
        agent::set_memory(memory);
        watch_forks();
        // SAFETY: the event path is optimized (the agent's library is), and calls of libraries go to
        // what the agent has for itself.
        unsafe { Agent::of_process().attach_own(&self.dir, id, watch_own, leave_hooks) }
    }

    /// Detaches a link; tells whether threads are still inside its hooks, after a while.
    pub fn detach(&mut self, id: u32) -> bool {
        !Agent::of_process().detach(&self.dir, id).wait(PATIENCE)
    }

    /// Looks at libraries that came or went.
    pub fn look(&self) {
        Agent::of_process().modules_changed();
    }

    /// Takes all hooks out; returns the places where a jump stays until somebody stops all threads
    /// and writes the bytes that were there.
    #[must_use]
    pub fn unhook(&mut self) -> Vec<Bypassed> {
        self.unhooked = Some(Agent::of_process().leave());
        unwinders::give_back(SHORT_PATIENCE);
        Engine::get().map_or_else(|_| Vec::new(), Engine::bypassed)
    }

    /// Takes all hooks out that there still are; tells whether threads are still inside some, after
    /// a while.
    pub fn leave(mut self) -> StillInside {
        if let Ok(engine) = Engine::get() {
            engine.notice_restored();
        }
        let rest = !Agent::of_process().leave().wait(PATIENCE);
        let stuck =
            rest || self.unhooked.take().is_some_and(|mut unhooked| !unhooked.wait(PATIENCE));
        unwinders::give_back(Duration::ZERO);
        let inside = match (stuck, Engine::get()) {
            (false, _) => StillInside::Nobody,
            (true, Ok(engine)) if !engine.sees_threads() => StillInside::Unknown,
            (true, _) => StillInside::Threads,
        };
        // No hook of ours is left that writes to them.
        own_thread::close();
        inside
    }
}

/// How long threads may take to leave hooks.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long they may take when another version is to have the process.
const REST_PATIENCE: Duration = Duration::from_millis(500);
/// How long they may take before places are looked for that jumps stay in.
const SHORT_PATIENCE: Duration = Duration::from_millis(20);

/// Hooks what a program needs that attaches to itself. The dynamic linker is asked nothing: another
/// thread may have its lock, and want the links.
fn watch_own(modules: &[Arc<Module>]) {
    if thread_words::by_gs() {
        unwinders::divert(modules);
    }
    let mut passing = OwnHooks::default();
    watch_loader(modules, &mut passing);
    watch_libc(Libc::in_file(modules).as_ref(), passing);
}

/// What the first event that finds a link off does in a program that attached to itself: nothing.
/// Its heap is the program's, which this very thread may have locked; whoever turned the link off
/// takes the hooks out ([`Agent::detach`]).
unsafe extern "C" fn leave_hooks(_: *const Running) {}

/// Whether all that runs inside events is optimized, and for the baseline of x86-64: a compiler that
/// may use more registers than that uses them where nobody looked.
const IS_OPTIMIZED: bool = skep_attach::IS_OPTIMIZED
    && skep_helpers::IS_OPTIMIZED
    && skep_maps::IS_OPTIMIZED
    && skep_sys::IS_OPTIMIZED
    && skep_vm::IS_OPTIMIZED
    && crate::IS_OPTIMIZED
    && !cfg!(any(target_feature = "sse3", target_feature = "avx"));

/// Makes the engine, whose handlers for fork hold the agent's lock too.
fn watch_forks() {
    Agent::watch_forks();
    // Refused: then nothing is hooked either.
    drop(Engine::get());
}

/// Leaves this process as it is, and says so in its links.
fn stay_out(dir: &Dir, ids: &[u32], reason: &str) {
    for id in ids {
        if let Ok(file) = LinkFile::open(dir, *id) {
            // There is no other way to tell anybody.
            drop(file.not_traced(&Untraced { path: executable(), reason: reason.to_owned() }));
        }
    }
}

/// Hooks the loader's own event, so that libraries opened later are looked at before their code
/// runs.
fn watch_loader(modules: &[Arc<Module>], own: &mut OwnHooks) {
    let find = |m: &Arc<Module>| m.function_named(LOADER_EVENT).ok()?;
    let loader = modules
        .iter()
        .filter(|m| m.path().file_name().is_some_and(|n| n.as_encoded_bytes().starts_with(b"ld")));
    // SAFETY: made for the loader's event; see there for the vector registers.
    let hook = unsafe { hook(Position::Entry, on_loader_event) };
    own.add(loader.filter_map(find).next(), &[hook]);
}

/// Runs inside the dynamic loader, which holds its own lock: nothing here may open a library or
/// resolve a symbol lazily. Unlike other hooks this one may use vector registers: the loader calls
/// an empty C function here and keeps nothing in them.
unsafe extern "C" fn on_loader_event(_: *mut u64, _: *const ()) -> u64 {
    if !sandbox::may_call_system() {
        return 0;
    }
    if thread_words::by_gs() {
        // The agent's own thread looks; a child has none.
        if skep_attach::owns_memory() {
            own_thread::wake();
        }
        return 0;
    }
    let _muted = skep_attach::mute();
    drop(std::panic::catch_unwind(|| {
        let _signals = signals::Blocked::new();
        Agent::of_process().modules_changed();
    }));
    0
}
