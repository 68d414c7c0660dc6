//! The links of a process: compiles their programs and hooks the functions they match.
//!
//! An [`Agent`] holds the links of the process it is in, and gets orders while the process runs:
//! attach this link ([`Agent::attach`]), detach it ([`Agent::detach`]), look at the libraries that
//! were loaded (`modules_changed`). What came of an order is its result, and stands in the
//! link's file for whoever gave it from outside. Whatever goes wrong, the program runs on.
//!
//! The agent makes no thread. When a link is detached its program stops at once ([`Running`]); the
//! first event that notices takes the hooks out.

mod fork;
mod link;
mod load;
mod program;

use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use skep_attach::Engine;
use skep_attach::signals;
use skep_attach::sites::Module;
use skep_store::Dir;
use skep_store::link::LinkFile;
use skep_sys::sandbox;

use crate::run::{DetachFn, Running};
use fork::ForkGuard;
use link::{ActiveLink, failed};

/// Why an agent could not do something.
pub type AgentError = Box<dyn std::error::Error>;

/// The links of a process. There is one: [`Agent::of_process`].
pub struct Agent {
    /// Never locked on the event path, except by the one event that ends a link.
    links: Mutex<Vec<ActiveLink>>,
    /// Hooks of our own that are taken out with the links'.
    own: Mutex<Vec<u64>>,
    /// The lock of the links while the process forks.
    forking: ForkGuard,
    /// The thread that holds that lock to fork; 0 without.
    forker: AtomicU64,
}

static AGENT: Agent = Agent {
    links: Mutex::new(Vec::new()),
    own: Mutex::new(Vec::new()),
    forking: ForkGuard::new(),
    forker: AtomicU64::new(0),
};

impl std::fmt::Debug for Agent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Agent").finish_non_exhaustive()
    }
}

impl Agent {
    /// Returns the agent of this process.
    #[must_use]
    pub fn of_process() -> &'static Self {
        &AGENT
    }

    fn links(&self) -> MutexGuard<'_, Vec<ActiveLink>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers a hook of our own, which is taken out when all are.
    pub(crate) fn own_attachment(&self, id: u64) {
        self.own.lock().unwrap_or_else(PoisonError::into_inner).push(id);
    }

    /// Attaches a link to the functions of these modules that it means; returns how many were
    /// attached. The others are in the link's file with the reason. The first event that finds the
    /// link off calls `detach`.
    ///
    /// # Errors
    /// When the link cannot be read, or nothing can be attached at all. It is in the link's file
    /// too.
    ///
    /// # Safety
    /// As for [`start`](crate::start::start).
    pub unsafe fn attach(
        &self,
        dir: &Dir,
        id: u32,
        modules: &[Arc<Module>],
        detach: DetachFn,
    ) -> Result<u32, AgentError> {
        let _muted = skep_attach::mute();
        // A handler that another library has installed may fork, which takes the locks that are
        // held here.
        let _signals = signals::Blocked::new();
        let file = LinkFile::open(dir, id)?;
        let began = Instant::now();
        let mut links = self.links();
        one_directory(&links, dir)?;
        let mut link = match ActiveLink::open(dir, file, detach) {
            Ok(link) => link,
            Err(e) => {
                if let Ok(file) = LinkFile::open(dir, id) {
                    drop(file.report(&failed(Some(e.to_string()))));
                }
                return Err(e);
            }
        };
        let done = link.attach(modules);
        link.report(began, done.as_ref().err().map(ToString::to_string));
        let attached = link.attached();
        links.push(link);
        done.map(|()| attached)
    }

    /// Makes sure that programs of a directory can run in this process.
    ///
    /// # Errors
    /// When the process has links of another directory: threads claim their slots in one.
    pub fn may_run(&self, dir: &Dir) -> Result<(), OtherDirectory> {
        one_directory(&self.links(), dir)
    }

    /// Says in the file of each link that nothing can be attached, and why.
    pub(crate) fn report_failure(dir: &Dir, ids: &[u32], error: &str) {
        for id in ids {
            if let Ok(file) = LinkFile::open(dir, *id) {
                drop(file.report(&failed(Some(error.to_owned()))));
            }
        }
    }

    /// Takes out the hooks of a link in this directory; its programs may still run on threads that
    /// are inside a hooked function, as the answer tells. Does nothing when this process does not
    /// have the link.
    pub fn detach(&self, dir: &Dir, id: u32) -> Detached {
        let _muted = skep_attach::mute();
        let _signals = signals::Blocked::new();
        let mut links = self.links();
        let is_it = |link: &ActiveLink| link.id() == id && link.directory() == dir.path();
        let mut detached = Detached { parts: Vec::new(), unknown: false };
        for link in links.iter_mut().filter(|link| is_it(link)) {
            detached.parts.append(&mut link.detached);
            for attachment in link.take_attachments() {
                match Engine::get().and_then(|engine| engine.detach(attachment)) {
                    Ok(part) => detached.parts.push(part),
                    Err(_) => detached.unknown = true,
                }
            }
        }
        // What is compiled stays: threads may be in it.
        links.retain(|link| !is_it(link));
        detached
    }

    /// Returns the paths of the links' files.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        self.links().iter().map(ActiveLink::path).collect()
    }

    /// Hooks the functions of libraries that came, forgets those that went. What goes wrong leaves a
    /// library untraced; the functions that were skipped are in the link file.
    pub(crate) fn modules_changed(&self, modules: &dyn Fn() -> Option<Vec<Arc<Module>>>) {
        let mut links = match self.links.try_lock() {
            Ok(links) => links,
            Err(TryLockError::Poisoned(links)) => links.into_inner(),
            // Another thread is at it, or the agent itself caused the event.
            Err(TryLockError::WouldBlock) => return,
        };
        let Some(modules) = modules() else { return };
        if let Ok(engine) = Engine::get() {
            engine.forget(&modules);
        }
        for link in links.iter_mut().filter(|l| l.is_on()) {
            drop(link.attach(&modules));
        }
    }

    /// Names this process in its links, while it may still write to them. Not for a thread that
    /// forks ([`Agent::is_forking`]).
    pub(crate) fn name_this_process(&self, reason: &str) {
        let _muted = skep_attach::mute();
        drop(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _signals = signals::Blocked::new();
            self.links().iter().for_each(|link| link.not_traced(reason));
        })));
    }

    /// Takes out all hooks of this process, and says why in its links. Not for a thread that forks
    /// ([`Agent::is_forking`]), nor for a child in its parent's memory, where the engine takes
    /// nothing out.
    pub(crate) fn take_out(&self, reason: &str) {
        self.name_this_process(reason);
        let _muted = skep_attach::mute();
        drop(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _signals = signals::Blocked::new();
            // Held by another thread that opens a library, detaches a link or forks: none of them
            // waits for this one.
            let mut links = self.links();
            let Ok(engine) = Engine::get() else { return };
            // What keeps the agent out of programs that are executed stays.
            let own = std::mem::take(&mut *self.own.lock().unwrap_or_else(PoisonError::into_inner));
            let all = links.iter_mut().flat_map(ActiveLink::take_attachments);
            for id in all.chain(own) {
                drop(engine.detach(id));
            }
        })));
    }
}

/// Says that a process runs the programs of another directory.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "this process runs programs of links in `{}`, and can run none of another directory meanwhile",
    self.path.display()
)]
pub struct OtherDirectory {
    /// That directory.
    pub path: PathBuf,
}

fn one_directory(links: &[ActiveLink], dir: &Dir) -> Result<(), OtherDirectory> {
    let other = links.iter().find(|l| l.directory() != dir.path());
    other.map_or(Ok(()), |l| Err(OtherDirectory { path: l.directory().to_owned() }))
}

/// What became of a link whose hooks were taken out.
#[derive(Debug)]
pub struct Detached {
    parts: Vec<skep_attach::Detached>,
    /// Hooks could not be taken out: nothing is known of threads in them.
    unknown: bool,
}

impl Detached {
    /// Tells whether no thread can be inside a program of the link any more, nor return through one
    /// of its hooks. Once true, it stays true.
    pub fn is_quiescent(&mut self) -> bool {
        !self.unknown && self.parts.iter_mut().all(skep_attach::Detached::is_quiescent)
    }

    /// Waits until no thread can be inside any more, at most so long; tells whether it is so.
    pub fn wait(&mut self, timeout: Duration) -> bool {
        let begin = Instant::now();
        !self.unknown
            && self.parts.iter_mut().all(|part| part.wait(timeout.saturating_sub(begin.elapsed())))
    }
}

/// Returns the path of this process's executable; empty when the kernel does not say.
pub(crate) fn executable() -> String {
    std::fs::read_link("/proc/self/exe")
        .map(|p| p.to_string_lossy().into_owned())
        .unwrap_or_default()
}

/// Takes out the hooks of a link that was detached. Called by the first event that notices.
///
/// # Safety
/// `running` is a program of a link, none of which is ever freed; and the heap is not the program's,
/// which may be locked by this very thread.
#[cold]
pub(crate) unsafe extern "C" fn detach(running: *const Running) {
    if !sandbox::may_call_system() {
        // They stay, and each finds its link detached.
        return;
    }
    let _muted = skep_attach::mute();
    if !skep_attach::owns_memory() {
        // The engine takes nothing out for a child in its parent's memory: an event of the parent's
        // will.
        // SAFETY: links are never freed.
        return unsafe { (*running).detach_later() };
    }
    drop(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _signals = signals::Blocked::new();
        let mut links = match AGENT.links.try_lock() {
            Ok(links) => links,
            Err(TryLockError::Poisoned(links)) => links.into_inner(),
            Err(TryLockError::WouldBlock) => {
                // SAFETY: links are never freed.
                unsafe { (*running).detach_later() };
                return;
            }
        };
        let Ok(engine) = Engine::get() else { return };
        for link in links.iter_mut().filter(|l| l.runs(running)) {
            for id in link.take_attachments() {
                // Whoever detaches the link asks them about threads.
                link.detached.extend(engine.detach(id).ok());
            }
        }
    })));
}
