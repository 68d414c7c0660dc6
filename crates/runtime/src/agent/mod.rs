//! The links of a process: compiles their programs and hooks the functions they match.
//!
//! An [`Agent`] holds the links of the process it is in, and gets orders while the process runs:
//! attach this link ([`Agent::attach`]), detach it ([`Agent::detach`]), look at the libraries that
//! were loaded (`modules_changed`). What came of an order is its result, and stands in the
//! link's file for whoever gave it from outside. Whatever goes wrong, the program runs on.
//!
//! The agent makes no thread. When a link is detached its program stops at once ([`Running`]); the
//! first event that notices takes the hooks out.
//!
//! The links' lock is held across `fork` (`Agent::watch_forks`), and so is all that is only done
//! with it held: listing modules and reading their symbols, compiling, hooking. A library that is
//! opened meanwhile is looked at by whoever has the lock, before it gives it back.

mod fork;
mod link;
mod load;
mod probes;
mod program;
mod retired;
mod select;

use std::ops::{Deref, DerefMut};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use skep_attach::Engine;
use skep_attach::signals;
use skep_attach::sites::{self, Module};
use skep_store::Dir;
use skep_store::dir::Kind;
use skep_store::link::LinkFile;
use skep_sys::sandbox;

use crate::detach_func::DetachFunc;
use crate::directory::{self, LinkUse};
use crate::heap;
use crate::run::{DetachFn, Running};
use fork::ForkGuard;
use link::{ActiveLink, failed};
use load::Cache;
use retired::Retired;
use select::Need;
pub(crate) use select::{check_room, set_memory};

/// Why an agent could not do something.
pub type AgentError = Box<dyn std::error::Error>;

/// The links of a process. There is one: [`Agent::of_process`].
pub struct Agent {
    /// Never locked on the event path, except by the one event that ends a link.
    links: Mutex<Links>,
    /// Hooks of our own that are taken out with the links'. Locked while the links are, or before
    /// the process has threads.
    own: Mutex<Vec<u64>>,
    /// Libraries came or went, and nobody has looked at them.
    modules_changed: AtomicBool,
    /// The lock of the links while the process forks.
    forking: ForkGuard,
    /// The thread that holds that lock to fork; 0 without.
    forker: AtomicU64,
}

/// What the links' lock is for.
struct Links {
    active: Vec<ActiveLink>,
    retired: Retired,
    /// Made with the first link.
    cache: Option<Cache>,
    /// What a program needs that attaches to itself is hooked.
    watches: bool,
}

/// The links, for as long as they are locked. Whoever gives them back looks at the libraries that
/// came or went meanwhile.
struct LockedLinks<'a> {
    agent: &'a Agent,
    /// There until this is dropped.
    links: Option<MutexGuard<'a, Links>>,
}

static AGENT: Agent = Agent {
    links: Mutex::new(Links {
        active: Vec::new(),
        retired: Retired::new(),
        cache: None,
        watches: false,
    }),
    own: Mutex::new(Vec::new()),
    modules_changed: AtomicBool::new(false),
    forking: ForkGuard::new(),
    forker: AtomicU64::new(0),
};

/// Bytes of address space that it takes to read a link's file, which may have a million functions.
fn room_to_read(dir: &Dir, id: u32) -> u64 {
    let length = std::fs::metadata(dir.object(Kind::Link, id)).map_or(0, |file| file.len());
    (1 << 19) + length.saturating_mul(4)
}

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

    fn links(&self) -> LockedLinks<'_> {
        let links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        LockedLinks { agent: self, links: Some(links) }
    }

    /// As [`Agent::links`], but does not wait.
    fn try_links(&self) -> Option<LockedLinks<'_>> {
        let links = match self.links.try_lock() {
            Ok(links) => links,
            Err(TryLockError::Poisoned(links)) => links.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(LockedLinks { agent: self, links: Some(links) })
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
        // Waits for test runs: before the lock, which they do not know.
        let directory = directory::use_for_link(dir)?;
        self.links().attach(dir, id, directory, modules, detach)
    }

    /// Attaches a link to functions of this process, whose program asks for it; returns how many.
    /// Nobody but [`Agent::detach`] takes the hooks out.
    ///
    /// Libraries that other threads have opened when this returns were looked at. `watch` hooks
    /// what tells of those that come later; it is called once.
    ///
    /// # Errors
    /// As for [`Agent::attach`].
    ///
    /// # Safety
    /// As for [`start`](crate::start::start).
    pub(crate) unsafe fn attach_own(
        &self,
        dir: &Dir,
        id: u32,
        watch: fn(&[Arc<Module>]),
        detach: DetachFn,
    ) -> Result<u32, AgentError> {
        let _muted = skep_attach::mute();
        let _signals = signals::Blocked::new();
        let directory = directory::use_for_link(dir)?;
        let mut links = self.links();
        if !links.watches {
            watch(&sites::scan()?);
            links.watches = true;
        }
        let modules = sites::scan()?;
        let attached = links.attach(dir, id, directory, &modules, detach);
        if let Ok(engine) = Engine::get() {
            links.retired.free(engine);
        }
        drop(links);
        // Another thread may be looking at a library that was opened in the meantime.
        drop(self.links());
        attached
    }

    /// Refuses what a limit of the process for its address space would end, and the process with it.
    ///
    /// # Errors
    /// When there is no room for the least that attaching these links takes.
    pub(crate) fn check_room(dir: &Dir, ids: &[u32]) -> Result<(), AgentError> {
        check_room(ids.iter().map(|id| room_to_read(dir, *id)).sum())
    }

    /// Says in the file of each link that nothing can be attached, and why.
    pub(crate) fn report_failure(dir: &Dir, ids: &[u32], error: &str) {
        for id in ids {
            if skep_sys::has_address_space(room_to_read(dir, *id))
                && let Ok(file) = LinkFile::open(dir, *id)
            {
                drop(file.report(&failed(Some(error.to_owned()))));
            }
        }
    }

    /// Takes out the hooks of a link in this directory; its programs may still run on threads that
    /// are inside a hooked function, as the answer tells. Does nothing when this process does not
    /// have the link.
    pub fn detach(&self, dir: &Dir, id: u32) -> Detached {
        self.detach_those(|link| link.id() == id && link.directory() == dir.path())
    }

    /// Tells whether this process uses a link in this directory: it is attached, or was detached while
    /// threads were inside its programs. What nobody is inside of any more is freed first.
    #[must_use]
    pub fn uses(&self, dir: &Dir, id: u32) -> bool {
        let _muted = skep_attach::mute();
        let _signals = signals::Blocked::new();
        let mut links = self.links();
        if let Ok(engine) = Engine::get() {
            links.retired.free(engine);
        }
        let is_it = |link: &ActiveLink| link.id() == id && link.directory() == dir.path();
        links.active.iter().any(is_it) || links.retired.any(is_it)
    }

    fn detach_those(&self, is_it: impl Fn(&ActiveLink) -> bool) -> Detached {
        let _muted = skep_attach::mute();
        let _signals = signals::Blocked::new();
        let mut links = self.links();
        let mut detached = Detached { parts: Vec::new(), unknown: false };
        let Ok(engine) = Engine::get() else { return Detached { unknown: true, ..detached } };
        while let Some(at) = links.active.iter().position(&is_it) {
            let mut link = links.active.remove(at);
            link.take_out(engine);
            detached.parts.append(&mut link.detached);
            detached.unknown |= link.is_stuck();
            links.retired.push(link);
        }
        links.retired.free(engine);
        if let Some(last) = links.active.last() {
            last.count_lost_pages();
        }
        detached
    }

    /// Takes out all hooks of this process: of the links, and all others. It may begin anew.
    pub(crate) fn leave(&self) -> Detached {
        // In a child of `fork` the directory has another name than in its parent.
        let mut all = self.detach_those(|_| true);
        let _muted = skep_attach::mute();
        let mut links = self.links();
        self.own.lock().unwrap_or_else(PoisonError::into_inner).clear();
        if let Ok(engine) = Engine::get() {
            for id in engine.attachments() {
                match engine.detach(id) {
                    Ok(detached) => all.parts.push(detached),
                    Err(_) => all.unknown = true,
                }
            }
        }
        links.watches = false;
        all
    }

    /// Returns the paths of the links' files.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        self.links().active.iter().map(ActiveLink::path).collect()
    }

    /// Hooks the functions of libraries that came, forgets those that went. What goes wrong leaves a
    /// library untraced; the functions that were skipped are in the link file.
    ///
    /// If another thread has the links, or this very one, that looks at the libraries before it
    /// gives them back: the dynamic linker must not wait.
    pub(crate) fn modules_changed(&self) {
        // Either this is seen by whoever has the lock, or the lock is free below.
        self.modules_changed.store(true, SeqCst);
        self.look_at_changes();
    }

    /// Looks at libraries that came or went, unless somebody else is going to.
    fn look_at_changes(&self) {
        while self.modules_changed.load(SeqCst) && sandbox::may_call_system() {
            match self.try_links() {
                // It looks when it is given back.
                Some(links) => links.give_back(),
                None => return,
            }
        }
    }

    /// Names this process in its links, while it may still write to them. Not for a thread that
    /// forks ([`Agent::is_forking`]).
    pub(crate) fn name_this_process(&self, reason: &str) {
        let _muted = skep_attach::mute();
        drop(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _signals = signals::Blocked::new();
            self.links().active.iter().for_each(|link| link.not_traced(reason));
        })));
    }

    /// Takes out all hooks of this process. Not for a thread that forks
    /// ([`Agent::is_forking`]), nor for a child in its parent's memory, where the engine takes
    /// nothing out.
    pub(crate) fn take_out(&self) {
        let _muted = skep_attach::mute();
        drop(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _signals = signals::Blocked::new();
            // Held by another thread that opens a library, detaches a link or forks: none of them
            // waits for this one.
            let mut links = self.links();
            let Ok(engine) = Engine::get() else { return };
            // What keeps the agent out of programs that are executed stays.
            let own = std::mem::take(&mut *self.own.lock().unwrap_or_else(PoisonError::into_inner));
            links.active.iter_mut().for_each(|link| link.take_out(engine));
            for id in own {
                drop(engine.detach(id));
            }
        })));
    }
}

impl Links {
    /// Attaches a link to the functions of these modules that it means.
    fn attach(
        &mut self,
        dir: &Dir,
        id: u32,
        directory: LinkUse,
        modules: &[Arc<Module>],
        detach: DetachFn,
    ) -> Result<u32, AgentError> {
        know_unwind_tables(modules);
        skep_attach::keep_code_in(Some(&dir.code()));
        let began = Instant::now();
        let space = room_to_read(dir, id);
        let opened = select::check(Need { space, memory: space })
            .and_then(|()| Ok(LinkFile::open(dir, id)?))
            .and_then(|file| ActiveLink::open(dir, file, directory, detach));
        let mut link = match opened {
            Ok(link) => link,
            Err(e) => {
                Agent::report_failure(dir, &[id], &e.to_string());
                return Err(e);
            }
        };
        let done = link.attach(modules, self.cache.get_or_insert_default());
        link.report(began, done.as_ref().err().map(ToString::to_string));
        let attached = link.attached();
        self.active.push(link);
        done.map(|()| attached)
    }

    /// Hooks the functions of libraries that came, forgets those that went.
    fn look_at_modules(&mut self) {
        let Ok(modules) = sites::scan() else { return };
        know_unwind_tables(&modules);
        if let Ok(engine) = Engine::get() {
            engine.forget(&modules);
        }
        let cache = self.cache.get_or_insert_default();
        for link in self.active.iter_mut().filter(|l| l.is_on()) {
            if let Err(e) = link.attach(&modules, cache) {
                link.say_once(&e);
            }
        }
    }
}

impl LockedLinks<'_> {
    /// Gives the links back, and looks at the libraries that came or went meanwhile.
    fn give_back(mut self) {
        self.look();
        self.links = None;
    }

    /// Gives the links back without a look: where another thread's work must not be done.
    fn give_back_only(mut self) {
        self.links = None;
    }

    fn look(&mut self) {
        let Some(links) = &mut self.links else { return };
        while sandbox::may_call_system() && self.agent.modules_changed.swap(false, SeqCst) {
            links.look_at_modules();
        }
    }
}

impl Deref for LockedLinks<'_> {
    type Target = Links;

    fn deref(&self) -> &Links {
        self.links.as_deref().expect("there until the end")
    }
}

impl DerefMut for LockedLinks<'_> {
    fn deref_mut(&mut self) -> &mut Links {
        self.links.as_deref_mut().expect("there until the end")
    }
}

impl Drop for LockedLinks<'_> {
    fn drop(&mut self) {
        if self.links.is_some() && !std::thread::panicking() {
            self.look();
            self.links = None;
            self.agent.look_at_changes();
        }
    }
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

/// Tells the helpers how stacks are unwound. Called with the links' lock held.
fn know_unwind_tables(modules: &[Arc<Module>]) {
    skep_helpers::set_modules(modules.iter().flat_map(|module| {
        let table = module.file().unwind_table.as_ref().map(|table| table.start);
        module.text().iter().filter_map(move |text| Some((text.clone(), table?)))
    }));
}

/// Returns the path of this process's executable; empty when the kernel does not say.
pub(crate) fn executable() -> String {
    std::fs::read_link("/proc/thread-self/exe")
        .map(|p| p.to_string_lossy().into_owned())
        .unwrap_or_default()
}

/// Takes out the hooks of a link that was detached. Called by the first event that notices.
///
/// # Safety
/// `running` is a program of a link, which is not freed: nobody calls [`Agent::detach`]. The heap is
/// not the program's, which may be locked by this very thread.
#[cold]
pub(crate) unsafe extern "C" fn detach(running: *const Running) {
    if !sandbox::may_call_system() {
        // They stay, and each finds its link detached.
        return;
    }
    let _muted = skep_attach::mute();
    if !skep_attach::owns_memory() || heap::is_in_use() {
        // The engine takes nothing out for a child in its parent's memory: an event of the parent's
        // will. Nor may a call of the heap's own want memory.
        // SAFETY: the caller's promise.
        return unsafe { (*running).detach_later() };
    }
    drop(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _signals = signals::Blocked::new();
        let Some(mut links) = AGENT.try_links() else {
            // SAFETY: as above.
            unsafe { (*running).detach_later() };
            return;
        };
        if let Ok(engine) = Engine::get() {
            let of_program = links.active.iter_mut().filter(|l| l.runs(running));
            of_program.for_each(|link| link.take_out(engine));
        }
        // The stack of an event is too small for more.
        links.give_back_only();
    })));
}

/// Takes hooks of programs that call `skep_detach_func` out of a function.
///
/// # Safety
/// The structure is there. For the heap, as for [`detach`].
#[cold]
pub(crate) unsafe extern "C" fn detach_from(asked: *const DetachFunc) {
    // The heap calls the C library, too.
    if !sandbox::may_call_system() || heap::is_in_use() {
        return;
    }
    // SAFETY: the caller's promise.
    let asked = unsafe { &*asked };
    let _muted = skep_attach::mute();
    drop(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _signals = signals::Blocked::new();
        let Some(links) = AGENT.try_links() else { return };
        if let Ok(engine) = Engine::get() {
            let is_meant = |data| links.active.iter().any(|l| l.detaches_by_function(data));
            asked.done.set(engine.detach_func(asked.addr, &is_meant));
        }
        links.give_back_only();
    })));
}
