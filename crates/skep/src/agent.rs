//! The target's side: finds its links in the environment, compiles their programs and hooks the
//! functions they match.
//!
//! Runs in the constructor of the preloaded library, before the program's own code, and again
//! whenever the dynamic loader has mapped another library. Whatever goes wrong is written into the
//! link file for the loader to tell; the program runs on.
//!
//! The agent makes no thread. When a link is turned off its program stops at once ([`Running`]);
//! the first event that notices takes the hooks out.

use std::cell::UnsafeCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Instant;

use skep_attach::sites::{self, Function, Module};
use skep_attach::{Engine, Hook, Position, RunFn, Skip, sandbox};
use skep_maps::{Access, Map, slots::SlotTable};

use skep_isa::ctx::tracing as isa;

use crate::blocked;
use crate::clock;
use crate::dir::{Dir, ENV_DIR, ENV_LINKS, Kind};
use crate::exec::{self, libc::Libc};
use crate::link::types::{Known, ModuleTypes};
use crate::link::{
    AgentRecord, Context, Cookie, ENTRY_ONLY, Found, LinkFile, LinkSpec, Selection, Types,
    Untraced, When, attach_point, control,
};
use crate::memory;
use crate::prog::ProgramFile;
use crate::run::{self, ReadyError, Running, Shown};
use crate::seccomp;

pub use skep_attach::signals;

type AgentError = Box<dyn std::error::Error>;

/// The links of this process. Never locked on the event path, except by the one event that ends a
/// link.
static LINKS: Mutex<Vec<Active>> = Mutex::new(Vec::new());

/// Hooks of our own that are taken out with the links'.
static OWN: Mutex<Vec<u64>> = Mutex::new(Vec::new());

/// Remembers a hook of our own.
pub(crate) fn own_attachment(id: u64) {
    OWN.lock().unwrap_or_else(PoisonError::into_inner).push(id);
}

/// The function the dynamic loader calls after every change to the list of libraries (glibc
/// elf/dl-debug.c).
const LOADER_EVENT: &str = "_dl_debug_state";

/// A link as this process holds it, for as long as it lives: the locks on its files stay.
struct Active {
    dir: Dir,
    file: LinkFile,
    spec: LinkSpec,
    selection: Selection,
    /// What the loader knows of functions.
    types: Types,
    /// By layout and the address of the program, what runs the program on functions whose context
    /// is made for them.
    shown: HashMap<(u32, usize), &'static Shown>,
    /// Its program, as often as it was loaded; the last one is for functions found from now on.
    running: Vec<&'static Running>,
    /// Functions of the link that the last one has room for: their number is what its maps take of
    /// the address space.
    room: u32,
    /// Ids the engine gave.
    attachments: Vec<u64>,
    /// Modules that were looked at.
    seen: HashSet<(PathBuf, u64)>,
    attached: u32,
    attach_ns: u64,
}

/// Functions that get the same hook.
#[derive(Default)]
struct Group<'f> {
    /// With their cookies.
    targets: Vec<(&'f Function, u64)>,
    /// Their indexes in the link.
    indexes: Vec<u32>,
}

/// Attaches every link the environment names. Does nothing when it names none.
///
/// # Safety
/// This code was compiled with optimization for the baseline of its machine: events happen between
/// any two instructions of the process, and what runs then, the section `.text.skep_event`, may use
/// no vector register (a test of the preloaded library looks). The process uses the C library that
/// this code is linked with, and this is called once.
///
/// ```compile_fail,E0133
/// skep::agent::start();
/// ```
pub unsafe fn start() {
    let Some(list) = std::env::var_os(ENV_LINKS) else { return };
    let ids: Vec<u32> =
        list.to_string_lossy().split(',').filter_map(|s| s.trim().parse().ok()).collect();
    if ids.is_empty() {
        return;
    }
    let dir =
        || Dir::open(&std::env::var_os(ENV_DIR).map_or_else(Dir::default_path, PathBuf::from));
    if let Some(reason) = seccomp::inherited::obstacle() {
        // What notes it may be punished as well.
        seccomp::inherited::lives(|| drop(dir().map(|dir| stay_out(&dir, &ids, reason))));
        return;
    }
    let _muted = skep_attach::mute();
    // A handler that another library has installed may fork, which takes the locks that are held
    // here.
    let _signals = signals::Blocked::new();
    let Ok(dir) = dir() else { return };
    if exec::is_under_valgrind() {
        return stay_out(&dir, &ids, exec::VALGRIND);
    }
    let modules = sites::scan();
    // Its handlers for fork come first, so that they run inside ours.
    if Engine::get().is_ok() {
        // SAFETY: the functions stay for as long as the process.
        unsafe { pthread_atfork(before_fork, after_fork, after_fork) };
    }
    let mut links = LINKS.lock().unwrap_or_else(PoisonError::into_inner);
    for id in ids {
        let Ok(file) = LinkFile::open(&dir, id) else { continue };
        let began = Instant::now();
        let mut agent = AgentRecord {
            pid: std::process::id(),
            exe: executable(),
            start_ns: 0,
            attach_ns: 0,
            attached: 0,
            error: None,
        };
        let done = Active::open(&dir, file).map(|mut link| {
            let error = match &modules {
                Ok(modules) => link.attach(modules).err().map(|e| e.to_string()),
                Err(e) => Some(e.to_string()),
            };
            (link, error)
        });
        let report = |file: &LinkFile, agent: &AgentRecord| drop(file.report(agent));
        match done {
            Ok((link, error)) => {
                (agent.attached, agent.attach_ns, agent.error) =
                    (link.attached, link.attach_ns, error);
                agent.start_ns = nanos(began);
                report(&link.file, &agent);
                links.push(link);
            }
            Err(e) => {
                agent.error = Some(e.to_string());
                if let Ok(file) = LinkFile::open(&dir, id) {
                    report(&file, &agent);
                }
            }
        }
    }
    let files: Vec<PathBuf> = links.iter().map(|l| dir.object(Kind::Link, l.file.id)).collect();
    drop(links);
    if let Ok(modules) = modules {
        watch_loader(&modules);
        if let Some(libc) = Libc::find(&modules) {
            exec::watch(&libc, files.iter().map(PathBuf::as_path));
            blocked::watch(&libc);
            seccomp::watch(&libc);
        }
    }
}

unsafe extern "C" {
    fn pthread_atfork(
        prepare: extern "C" fn(),
        parent: extern "C" fn(),
        child: extern "C" fn(),
    ) -> i32;
}

/// The links' lock, held by the thread that forks so that the child finds it free. Another thread's
/// hold would last for ever there.
///
/// Signals wait for as long: a handler that interrupted the thread here, and forked, would wait for
/// its own thread. The engine's lock is taken and released within.
struct Fork {
    // Released in this order.
    _links: MutexGuard<'static, Vec<Active>>,
    _signals: signals::Blocked,
}

static FORKING: ForkGuard = ForkGuard(UnsafeCell::new(None));

/// The thread that holds the links' lock to fork; 0 without.
static FORKER: AtomicU64 = AtomicU64::new(0);

struct ForkGuard(UnsafeCell<Option<Fork>>);

// SAFETY: only touched by the thread that holds the links' lock.
unsafe impl Sync for ForkGuard {}

extern "C" fn before_fork() {
    let _muted = skep_attach::mute();
    let signals = signals::Blocked::new();
    let links = LINKS.lock().unwrap_or_else(PoisonError::into_inner);
    FORKER.store(skep_attach::thread(), Relaxed);
    // SAFETY: this thread has the lock.
    unsafe { *FORKING.0.get() = Some(Fork { _links: links, _signals: signals }) };
}

extern "C" fn after_fork() {
    let _muted = skep_attach::mute();
    FORKER.store(0, Relaxed);
    // SAFETY: `before_fork` took the lock on this thread.
    drop(unsafe { (*FORKING.0.get()).take() });
}

/// Tells whether the calling thread is between `before_fork` and `after_fork`, in another library's
/// handler for fork: it holds the locks of the links, the engine and the heap, and would wait for
/// itself.
pub(crate) fn is_forking() -> bool {
    FORKER.load(Relaxed) == skep_attach::thread()
}

/// Leaves this process as it is, and says so in its links.
fn stay_out(dir: &Dir, ids: &[u32], reason: &str) {
    for id in ids {
        if let Ok(file) = LinkFile::open(dir, *id) {
            // Nobody can be told otherwise.
            drop(file.not_traced(&Untraced { path: executable(), reason: reason.to_owned() }));
        }
    }
}

fn executable() -> String {
    std::fs::read_link("/proc/self/exe")
        .map(|p| p.to_string_lossy().into_owned())
        .unwrap_or_default()
}

fn nanos(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Hooks the loader's own event, so that libraries opened later are looked at before their code
/// runs.
fn watch_loader(modules: &[Arc<Module>]) {
    let find = |m: &Arc<Module>| m.function_named(LOADER_EVENT).ok()?;
    let loader = modules
        .iter()
        .filter(|m| m.path().file_name().is_some_and(|n| n.as_encoded_bytes().starts_with(b"ld")));
    let Some(function) = loader.filter_map(find).next() else { return };
    // SAFETY: made for the loader's event, and takes no data; see there for the vector registers.
    let hook = unsafe { Hook::new(Position::Entry, on_loader_event, std::ptr::null()) };
    if let Ok(engine) = Engine::get() {
        own_attachment(engine.attach(&[(&function, 0)], &[hook]).id);
    }
}

/// Runs inside the dynamic loader, which holds its own lock: nothing here may open a library or
/// resolve a symbol lazily. Unlike other hooks this one may use vector registers: the loader calls
/// an empty C function here and keeps nothing in them.
unsafe extern "C" fn on_loader_event(_: *mut u64, _: *const ()) -> u64 {
    if !sandbox::may_call_system() {
        return 0;
    }
    let _muted = skep_attach::mute();
    drop(std::panic::catch_unwind(|| {
        let _signals = signals::Blocked::new();
        // Busy: another thread is at it, or the agent itself caused the event.
        let (Ok(mut links), Ok(modules)) = (LINKS.try_lock(), sites::scan()) else { return };
        if let Ok(engine) = Engine::get() {
            engine.forget(&modules);
        }
        for link in links.iter_mut().filter(|l| l.running.last().is_none_or(|r| r.is_on())) {
            // What goes wrong here leaves the library untraced; the functions that were skipped are
            // in the link file.
            drop(link.attach(&modules));
        }
    }));
    0
}

/// Names this process in its links, while it may still write to them. Not for a thread that forks
/// ([`is_forking`]).
pub(crate) fn name_this_process(reason: &str) {
    let _muted = skep_attach::mute();
    drop(std::panic::catch_unwind(|| {
        let _signals = signals::Blocked::new();
        for link in LINKS.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            // Nobody can be told otherwise.
            drop(link.file.not_traced(&Untraced { path: executable(), reason: reason.to_owned() }));
        }
    }));
}

/// Takes out all hooks of this process, and says why in its links. Not for a thread that forks
/// ([`is_forking`]), nor for a child in its parent's memory, where the engine takes nothing out.
pub(crate) fn take_out(reason: &str) {
    name_this_process(reason);
    let _muted = skep_attach::mute();
    drop(std::panic::catch_unwind(|| {
        let _signals = signals::Blocked::new();
        // Held by another thread that opens a library, turns a link off or forks: none of them
        // waits for this one.
        let mut links = LINKS.lock().unwrap_or_else(PoisonError::into_inner);
        let Ok(engine) = Engine::get() else { return };
        // What keeps the agent out of programs that are executed stays.
        let own = std::mem::take(&mut *OWN.lock().unwrap_or_else(PoisonError::into_inner));
        for id in links.iter_mut().flat_map(|l| l.attachments.drain(..)).chain(own) {
            drop(engine.detach(id));
        }
    }));
}

/// Takes out the hooks of a link that was turned off. Called by the first event that notices.
#[cold]
pub(crate) unsafe extern "C" fn leave(running: *const Running) {
    if !sandbox::may_call_system() {
        // They stay, and each finds its link turned off.
        return;
    }
    let _muted = skep_attach::mute();
    if !skep_attach::owns_memory() {
        // The engine takes nothing out for a child in its parent's memory: an event of the parent's
        // will. SAFETY: links are never freed.
        return unsafe { (*running).leave_later() };
    }
    drop(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _signals = signals::Blocked::new();
        let mut links = match LINKS.try_lock() {
            Ok(links) => links,
            Err(TryLockError::Poisoned(links)) => links.into_inner(),
            Err(TryLockError::WouldBlock) => {
                // SAFETY: links are never freed.
                unsafe { (*running).leave_later() };
                return;
            }
        };
        let Ok(engine) = Engine::get() else { return };
        for link in links.iter_mut().filter(|l| l.running.iter().any(|r| std::ptr::eq(*r, running)))
        {
            for id in link.attachments.drain(..) {
                drop(engine.detach(id));
            }
        }
    })));
}

impl Active {
    /// Reads what a link attaches.
    fn open(dir: &Dir, file: LinkFile) -> Result<Self, AgentError> {
        let (spec, dir) = (file.read()?.spec, dir.clone());
        let types = file.types()?;
        let selection = Selection::new(&spec)?;
        let (running, attachments, seen, shown) =
            (Vec::new(), Vec::new(), HashSet::new(), HashMap::new());
        Ok(Self {
            dir,
            file,
            spec,
            selection,
            types,
            shown,
            running,
            room: 0,
            attachments,
            seen,
            attached: 0,
            attach_ns: 0,
        })
    }

    /// Finds what is known of functions; those of a module come together.
    fn known(&self, functions: &[Function]) -> Vec<Option<Known>> {
        if self.types.is_empty() {
            return vec![None; functions.len()];
        }
        let mut last: Option<(&Arc<Module>, Option<&ModuleTypes>)> = None;
        let find = |f: &'_ Function| -> Option<&ModuleTypes> {
            let id = f.module().file().build_id.as_ref().map_or(&[][..], |id| &id.0);
            self.types.module(&f.module().path().to_string_lossy(), id)
        };
        let mut out = Vec::with_capacity(functions.len());
        for f in functions {
            let types = match last {
                Some((module, types)) if Arc::ptr_eq(module, f.module()) => types,
                _ => find(f),
            };
            last = Some((f.module(), types));
            out.push(types.and_then(|t| t.function(f.addr().wrapping_sub(f.module().bias()))));
        }
        out
    }

    /// How many argument words the trampoline shows: those of the prototype, or all where they are
    /// put in order afterwards.
    fn nr_args(&self, known: Known) -> Option<u8> {
        let Known::Layout(layout) = known else { return None };
        let words = &self.types.layouts.get(layout as usize)?.words;
        let plain = words.iter().zip(0..).all(|(w, at)| *w == at);
        Some(if plain { words.len().min(isa::MAX_ARGS) as u8 } else { isa::MAX_ARGS as u8 })
    }

    /// The hook for functions of a layout; without, for those whose types are not known.
    fn hook_for(&mut self, running: &'static Running, layout: Option<u32>) -> Hook {
        let known = layout.and_then(|i| Some((i, self.types.layouts.get(i as usize)?)));
        let wants = if known.is_some_and(|(_, k)| k.wants_stack()) {
            isa::MAX_ARGS as u8
        } else {
            running.wants_args()
        };
        let Some((index, known)) = known.filter(|(_, k)| !k.direct) else {
            return self.hook(running).wants_args(wants);
        };
        let shown: &'static Shown = self
            .shown
            .entry((index, std::ptr::from_ref(running).addr()))
            .or_insert_with(|| Box::leak(Box::new(Shown::new(running, known))));
        let run = if self.spec.when == When::ModifyReturn {
            run::shown_modify_return
        } else {
            run::shown as RunFn
        };
        // SAFETY: these take a `Shown`, which is never freed; its program was verified for this
        // context at this position (`load`).
        let hook = unsafe { Hook::new(self.position(), run, std::ptr::from_ref(shown).cast()) };
        self.counted(hook, running).wants_args(wants)
    }

    /// Gives the program for functions with indexes below `count`; opens and compiles what the link
    /// runs when it has no room for so many. Functions that are hooked already keep the one
    /// they have: the maps are the same.
    fn running(&mut self, count: u32) -> Result<&'static Running, AgentError> {
        match self.running.last() {
            Some(running) if count <= self.room => Ok(running),
            _ => {
                // More for libraries that are opened later; the second time, for a program that
                // opens many.
                let room = count
                    .saturating_add(count / 4)
                    .saturating_add(1024)
                    .max(self.room.saturating_mul(2))
                    .min(self.spec.max_functions);
                let running: &'static Running =
                    Box::leak(Box::new(load(&self.dir, &self.spec, room)?));
                self.running.push(running);
                self.room = room;
                Ok(running)
            }
        }
    }

    fn position(&self) -> Position {
        match self.spec.when {
            When::Entry => Position::Entry,
            When::Exit => Position::Exit,
            When::ModifyReturn => Position::ModifyReturn,
            When::Session => Position::Session,
        }
    }

    fn hook(&self, running: &'static Running) -> Hook {
        let run = match (self.spec.context, self.spec.when) {
            (Context::PtRegs, _) => run::registers as RunFn,
            (Context::Tracing, When::ModifyReturn) => run::modify_return,
            (Context::Tracing, _) => run::tracing,
        };
        // SAFETY: these take a `Running`, which is never freed; its program was verified for this
        // context at this position (`load`).
        let hook = unsafe { Hook::new(self.position(), run, std::ptr::from_ref(running).cast()) };
        self.counted(hook, running).wants_args(running.wants_args())
    }

    fn counted(&self, hook: Hook, running: &'static Running) -> Hook {
        // SAFETY: words of the control map, which has that many and lives as long as the program.
        let hook = unsafe { hook.counts_missed_at(running.missed()) };
        hook.without_return(if self.runs_at_entry_only() { ENTRY_ONLY } else { 0 })
    }

    /// Attaches the matching functions of the modules that were not there before.
    fn attach(&mut self, modules: &[Arc<Module>]) -> Result<(), AgentError> {
        // A library that was closed may come back.
        self.seen
            .retain(|(path, bias)| modules.iter().any(|m| m.path() == path && m.bias() == *bias));
        let new: Vec<&Arc<Module>> =
            modules.iter().filter(|m| self.seen.insert((m.path().to_owned(), m.bias()))).collect();
        let mut functions = select(&self.selection, &new);
        if functions.is_empty() {
            return Ok(());
        }
        let found: Vec<Found<'_>> = functions.iter().map(found).collect();
        let indexes = self.file.register(&found)?;
        let mut groups: BTreeMap<Option<u32>, Group<'_>> = BTreeMap::new();
        let mut skipped = Vec::new();
        let known = self.known(&functions);
        for (function, known) in functions.iter_mut().zip(&known) {
            function.set_nr_args(known.and_then(|k| self.nr_args(k)));
        }
        for ((function, &index), known) in functions.iter().zip(&indexes).zip(&known) {
            let layout = match (known, &self.types.unknown) {
                _ if index >= self.spec.max_functions => {
                    skipped.push((
                        index,
                        format!("more than {} functions in one link", self.spec.max_functions),
                    ));
                    continue;
                }
                (Some(Known::Misfit(why)), _) => {
                    skipped.push((
                        index,
                        self.types.reasons.get(*why as usize).cloned().unwrap_or_default(),
                    ));
                    continue;
                }
                (None, Some(why)) => {
                    skipped.push((index, why.clone()));
                    continue;
                }
                (Some(Known::Layout(layout)), _) => Some(*layout),
                (None, None) => None,
            };
            let cookie = if self.spec.cookie == Cookie::Index { u64::from(index) } else { 0 };
            let group = groups.entry(layout).or_default();
            group.targets.push((function, cookie));
            group.indexes.push(index);
        }
        let count = groups
            .values()
            .flat_map(|group| &group.indexes)
            .max()
            .map_or(0, |last| last.saturating_add(1));
        let running = self.running(count)?;
        let began = Instant::now();
        let engine = Engine::get()?;
        let mut entry_only = Vec::new();
        for (layout, group) in &groups {
            let attachment = engine.attach(&group.targets, &[self.hook_for(running, *layout)]);
            self.attachments.push(attachment.id);
            for ((index, target), result) in
                group.indexes.iter().zip(&group.targets).zip(attachment.results)
            {
                match result {
                    Ok(()) => self.attached += 1,
                    Err(Skip::NoExit { why }) if self.runs_at_entry_only() => {
                        entry_only.push((*index, *target, why))
                    }
                    Err(why) => skipped.push((*index, why.to_string())),
                }
            }
        }
        let reasons = self.attach_entries(running, &entry_only, &mut skipped)?;
        self.attach_ns += nanos(began);
        self.file.entry_only(&reasons)?;
        Ok(self.file.skip(&skipped)?)
    }

    /// Tells whether the link takes functions that cannot be hooked at their return.
    fn runs_at_entry_only(&self) -> bool {
        self.spec.entry_only
            && self.spec.when == When::Session
            && self.spec.context == Context::Tracing
    }

    /// Attaches a session program to the entry of functions that cannot be hooked at their return;
    /// returns those, and why it is so.
    fn attach_entries(
        &mut self,
        running: &'static Running,
        functions: &[(u32, (&Function, u64), &'static str)],
        skipped: &mut Vec<(u32, String)>,
    ) -> Result<Vec<(u32, String)>, AgentError> {
        if functions.is_empty() {
            return Ok(Vec::new());
        }
        // SAFETY: as in `hook`; the program is a session's, and it gets a session's word.
        let hook = unsafe {
            Hook::new(Position::Entry, run::session_at_entry, std::ptr::from_ref(running).cast())
        };
        let hook = self.counted(hook, running).wants_args(running.wants_args());
        let targets: Vec<_> = functions
            .iter()
            .map(|(_, (function, cookie), _)| (*function, cookie | ENTRY_ONLY))
            .collect();
        let attachment = Engine::get()?.attach(&targets, &[hook]);
        self.attachments.push(attachment.id);
        let mut reasons = Vec::with_capacity(functions.len());
        for ((index, _, why), result) in functions.iter().zip(attachment.results) {
            match result {
                Ok(()) => {
                    self.attached += 1;
                    reasons.push((*index, (*why).to_owned()));
                }
                Err(why) => skipped.push((*index, why.to_string())),
            }
        }
        Ok(reasons)
    }
}

/// Opens and compiles what a link runs, for functions with indexes below `room`.
fn load(dir: &Dir, spec: &LinkSpec, room: u32) -> Result<Running, AgentError> {
    memory::guard();
    SlotTable::open_or_create(dir.path())?.install();
    let open = |id: u32| -> Result<Arc<Map>, AgentError> {
        let path = dir.object(Kind::Map, id);
        let mut map = None;
        if spec.cookie == Cookie::Index {
            // Those with an element for each function of the link need no more elements than there
            // are functions.
            map = Some(Map::open_first(&path, Access::ReadWrite, room)?)
                .filter(|m| m.def().max_entries == spec.max_functions);
        }
        let map = Arc::new(map.map_or_else(|| Map::open(&path, Access::ReadWrite), Ok)?);
        Ok(map)
    };
    let control_map = open(spec.control)?;
    if !run::is_control_map(&control_map) {
        return Err(ReadyError::Control.into());
    }
    memory::count_in(Box::leak(Box::new(Arc::clone(&control_map))));
    let word = |i| run::control_word(&control_map, i).load(Relaxed);
    clock::start(word(control::RATE));
    if let Ok(id @ 1..) = u32::try_from(word(control::LOG)) {
        crate::helpers::set_log(Box::leak(Box::new(open(id)?)));
    }
    let program = ProgramFile::open(dir, spec.program)?;
    let maps = program.program().maps().iter().map(|id| open(*id)).collect::<Result<_, _>>()?;
    if attach_point::of(program.program()) != Some((spec.when, spec.context)) {
        return Err(format!(
            "the link does not run program `{}` as it was verified",
            program.program().name()
        )
        .into());
    }
    let running = Running::new(program.program(), maps, control_map)?;
    std::mem::forget(program);
    Ok(running)
}

fn found(function: &Function) -> Found<'_> {
    Found {
        module: function.module().path().to_string_lossy(),
        name: function.name(),
        vaddr: function.addr().wrapping_sub(function.module().bias()),
        size: function.size(),
        skipped: None,
    }
}

/// Lists the functions of modules that a link means; a module whose symbols cannot be read has
/// none.
fn select(selection: &Selection, modules: &[&Arc<Module>]) -> Vec<Function> {
    let mut all = Vec::new();
    for module in modules {
        let Some(patterns) =
            selection.module(&module.path().to_string_lossy(), module.is_main(), is_own(module))
        else {
            continue;
        };
        let Ok(functions) = module.functions() else { continue };
        all.extend(functions.into_iter().filter(|f| {
            patterns.function(f.name(), f.aliases().iter().map(String::as_str)).is_some()
        }));
    }
    all
}

/// Tells whether a module is the library this code is in: not worth a word, unless it is asked for
/// by name.
fn is_own(module: &Module) -> bool {
    let here = is_own as *const () as u64;
    module.text().iter().any(|t| t.contains(&here))
}

#[cfg(all(test, feature = "loader"))]
mod tests {
    use super::*;
    use crate::load::Loader;

    /// A link is a file, and a library user makes it: what it says of its program and its control
    /// map is not taken for granted.
    #[test]
    fn a_link_runs_its_program_as_it_was_verified_or_not_at_all()
    -> Result<(), Box<dyn std::error::Error>> {
        let temp = skep_testkit::TempDir::in_memory();
        let dir = Dir::create(&temp.join("skep"))?;
        let object = skep_object::Object::parse(include_bytes!("../tests/data/trust.bpf.o"))?;
        let loaded = Loader::new(&dir).load(&object)?;
        let session = loaded.program("session_target").ok_or("it is there")?;
        let spec = LinkSpec::of(session, &[])?;
        let link = crate::link::Link::create(&dir, spec, None)?;
        let spec = link.read()?.spec;
        load(&dir, &spec, 16)?;
        for (when, context) in [
            (When::Entry, Context::Tracing),
            (When::Session, Context::PtRegs),
            (When::ModifyReturn, Context::Tracing),
        ] {
            let other = LinkSpec { when, context, ..spec.clone() };
            let refused =
                load(&dir, &other, 16).expect_err("its context would have no session's word");
            assert!(refused.to_string().contains("as it was verified"), "{refused}");
        }
        for name in ["jumps", "numbers"] {
            let other =
                LinkSpec { control: loaded.map(name).ok_or("it is there")?.id(), ..spec.clone() };
            assert!(load(&dir, &other, 16).is_err(), "{name} is no control map");
        }
        Ok(())
    }
}
