//! A link as this process holds it: which functions it has hooked, and the hooking of more.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use skep_attach::sites::{Function, Module};
use skep_attach::{Engine, Hook, Skip};
use skep_store::dir::Dir;
use skep_store::link::{
    AgentRecord, Context, Cookie, ENTRY_ONLY, FoundFunction, FunctionAttachType, LinkFile,
    LinkProbe, LinkSpec, MappedModule, Selection, Untraced,
};
use skep_sys::Unseeded;

use super::load::{Cache, load};
use super::probes::{self, Semaphores};
use super::program::{ActiveProgram, find_errno};
use super::select::{
    check, check_room, give_back, know_memory, room_to_hook, room_to_list, select, take,
};
use super::{AgentError, detach_from, executable};
use crate::detach_func::set_detach_from;
use crate::directory::LinkUse;
use crate::memory::Counting;
use crate::run::{DetachFn, Running};

/// A link as this process holds it: the locks on its files stay for as long. Threads may be inside
/// its programs, so these are freed with it only if [`ActiveLink::set_drained`] was called.
pub(super) struct ActiveLink {
    dir: Dir,
    file: LinkFile,
    spec: LinkSpec,
    selection: Selection,
    programs: Vec<ActiveProgram>,
    /// What takes the hooks out once the link is off.
    detach: DetachFn,
    /// Functions of the link that the programs have room for: their number is what their maps take
    /// of the address space.
    room: u32,
    /// Ids the engine gave.
    attachments: Vec<u64>,
    /// What was taken out, until somebody asks.
    pub detached: Vec<skep_attach::Detached>,
    /// Hooks could not be taken out.
    stuck: bool,
    /// Modules that were looked at.
    seen: Vec<Seen>,
    /// A library that was opened later found no room, which was said.
    has_said: bool,
    /// The loader wants to know where modules lie.
    wants_mapped: bool,
    attached: u32,
    attach_ns: u64,
    /// Probes of files, which are attached to by address.
    probes: Vec<LinkProbe>,
    semaphores: Semaphores,
    /// Where pages without memory are counted.
    counting: Vec<Counting>,
    /// No thread is inside a hook of the link.
    drained: bool,
    directory: Option<LinkUse>,
}

/// A module that was looked at.
struct Seen {
    path: PathBuf,
    bias: u64,
    /// Bytes of memory that its hooks take.
    taken: u64,
}

impl Seen {
    fn is(&self, module: &Module) -> bool {
        self.bias == module.bias() && self.path.as_os_str() == module.path().as_os_str()
    }
}

/// Functions that get the same hooks.
struct Group<'f> {
    /// With their cookies.
    targets: Vec<(&'f Function, u64)>,
    /// Their indexes in the link.
    indexes: Vec<u32>,
}

impl Group<'_> {
    /// For so many.
    fn with_capacity(functions: usize) -> Self {
        let (targets, indexes) = (Vec::with_capacity(functions), Vec::with_capacity(functions));
        Self { targets, indexes }
    }
}

/// For each program of a link, the layout that it sees a function by.
type Layouts = Box<[Option<u32>]>;

/// A function that cannot be hooked at its return: its index, itself with its cookie, and why.
type EntryOnly<'f> = (u32, (&'f Function, u64), &'static str);

impl ActiveLink {
    /// Reads what a link attaches.
    pub(super) fn open(
        dir: &Dir,
        file: LinkFile,
        directory: LinkUse,
        detach: DetachFn,
    ) -> Result<Self, AgentError> {
        let state = file.read()?;
        let (spec, wants_mapped) = (state.spec, state.wants_mapped);
        let selection = Selection::new(&spec)?;
        let mut programs = Vec::with_capacity(spec.programs.len());
        for (place, program) in spec.programs.iter().enumerate() {
            programs.push(ActiveProgram::new(*program, file.types(place)?));
        }
        Ok(Self {
            dir: dir.clone(),
            file,
            spec,
            selection,
            programs,
            detach,
            room: 0,
            attachments: Vec::new(),
            detached: Vec::new(),
            stuck: false,
            seen: Vec::new(),
            has_said: false,
            wants_mapped,
            attached: 0,
            attach_ns: 0,
            probes: state.probes,
            semaphores: Semaphores::default(),
            counting: Vec::new(),
            drained: false,
            directory: Some(directory),
        })
    }

    /// Returns the link's id.
    pub(super) fn id(&self) -> u32 {
        self.file.id
    }

    /// Returns the directory the link is in.
    pub(super) fn directory(&self) -> &Path {
        self.dir.path()
    }

    /// Returns the path of the link's file.
    pub(super) fn path(&self) -> PathBuf {
        self.dir.object(skep_store::dir::Kind::Link, self.file.id)
    }

    /// Tells whether the link is on, as far as its programs know.
    pub(super) fn is_on(&self) -> bool {
        let mut last = self.programs.iter().filter_map(|p| p.running.last());
        last.all(|running| running.is_on())
    }

    /// Tells whether the link runs a program.
    pub(super) fn runs(&self, running: *const Running) -> bool {
        let mut all = self.programs.iter().flat_map(|p| &p.running);
        all.any(|r| std::ptr::eq(Arc::as_ptr(r), running))
    }

    /// Tells whether a hook with these data runs a program of the link that takes itself out of
    /// functions.
    pub(super) fn detaches_by_function(&self, data: *const ()) -> bool {
        let own = self.programs.iter().filter(|p| p.detaches_by_function);
        own.flat_map(|p| &p.running).any(|r| std::ptr::eq(Arc::as_ptr(r).cast(), data))
    }

    /// Says that no thread is inside a hook of the link, nor will be: all its attachments were
    /// taken out, and a drain has succeeded since.
    pub(super) fn set_drained(&mut self) {
        self.drained = true;
    }

    /// Counts pages without memory in this link if no other one does.
    pub(super) fn count_lost_pages(&self) {
        if let Some(last) = self.counting.last() {
            last.resume();
        }
    }

    /// Takes the hooks out. What came of it is in `detached`.
    pub(super) fn take_out(&mut self, engine: &Engine) {
        self.semaphores.lower();
        for attachment in self.attachments.drain(..) {
            match engine.detach(attachment) {
                Ok(part) => self.detached.push(part),
                Err(_) => self.stuck = true,
            }
        }
    }

    /// Tells whether hooks could not be taken out.
    pub(super) fn is_stuck(&self) -> bool {
        self.stuck
    }

    /// Returns how many functions are attached.
    pub(super) fn attached(&self) -> u32 {
        self.attached
    }

    /// Writes into the link's file what became of it in this process; `began` is when it began to.
    pub(super) fn report(&self, began: Instant, error: Option<String>) {
        // Nobody can be told otherwise.
        drop(self.file.report(&AgentRecord {
            start_ns: nanos(began),
            attach_ns: self.attach_ns,
            attached: self.attached,
            ..failed(error)
        }));
    }

    /// Says in the link's file that this process goes on without it.
    pub(super) fn not_traced(&self, reason: &str) {
        let program = Untraced { path: executable(), reason: reason.to_owned() };
        // Nobody can be told otherwise.
        drop(self.file.not_traced(&program));
    }

    /// Says in the link's file that functions of a library that was opened later are not hooked, if nobody
    /// has said so of another: there may be many.
    pub(super) fn say_once(&mut self, why: &AgentError) {
        if !std::mem::replace(&mut self.has_said, true) {
            self.not_traced(&format!("opened a library whose functions are not hooked: {why}"));
        }
    }

    /// Makes sure that the programs have room for functions with indexes below `count`: opens and
    /// compiles them when there is none. Functions that are hooked already keep those they have:
    /// the maps are the same.
    fn make_room(&mut self, count: u32, cache: &mut Cache) -> Result<(), AgentError> {
        if count <= self.room && self.programs.iter().all(|p| !p.running.is_empty()) {
            return Ok(());
        }
        // More for libraries that are opened later; the second time, for a program that opens many.
        let room = count
            .saturating_add(count / 4)
            .saturating_add(1024)
            .max(self.room.saturating_mul(2))
            .min(self.spec.max_functions);
        let loaded = load(&self.dir, &self.spec, room, self.detach, cache)?;
        for (program, running) in self.programs.iter_mut().zip(loaded.programs) {
            program.take(running);
        }
        self.counting.push(Counting::new(loaded.control_map));
        self.room = room;
        Ok(())
    }

    /// Attaches the matching functions of the modules that were not there before.
    pub(super) fn attach(
        &mut self,
        modules: &[Arc<Module>],
        cache: &mut Cache,
    ) -> Result<(), AgentError> {
        // A library that was closed may come back.
        self.seen.retain(|seen| {
            let stays = modules.iter().any(|m| seen.is(m));
            if !stays {
                give_back(seen.taken);
            }
            stays
        });
        // One without code is being mapped by another thread.
        let whole = modules.iter().filter(|m| !m.text().is_empty());
        let new: Vec<&Arc<Module>> =
            whole.filter(|m| !self.seen.iter().any(|seen| seen.is(m))).collect();
        let first = self.seen.len();
        self.seen.extend(new.iter().map(|m| Seen {
            path: m.path().to_owned(),
            bias: m.bias(),
            taken: 0,
        }));
        if self.wants_mapped && !new.is_empty() {
            self.file.mapped(&new.iter().map(|m| mapped(m)).collect::<Vec<_>>())?;
        }
        know_memory(&self.dir, &self.spec);
        check(room_to_list(&self.selection, &new))?;
        let (mut functions, mut cookies) = select(&self.selection, &self.spec, &new);
        for module in &new {
            let semaphores = &mut self.semaphores;
            probes::select(&self.probes, module, &mut functions, &mut cookies, semaphores);
        }
        if functions.is_empty() {
            return Ok(());
        }
        let need = room_to_hook(functions.len());
        check(need)?;
        take(need.memory);
        for of_one in functions.chunk_by(|a, b| Arc::ptr_eq(a.module(), b.module())) {
            let is_it = |seen: &&mut Seen| of_one.first().is_some_and(|f| seen.is(f.module()));
            if let Some(seen) = self.seen.iter_mut().skip(first).find(is_it) {
                seen.taken += room_to_hook(of_one.len()).memory;
            }
        }
        let paths: Vec<_> = new.iter().map(|m| (*m, m.path().to_string_lossy())).collect();
        let found = functions.iter().map(|function| {
            let own = paths.iter().find(|(module, _)| Arc::ptr_eq(module, function.module()));
            found(function, own.map_or("", |(_, path)| path))
        });
        let indexes = self.file.register(found)?;
        let mut skipped = Vec::new();
        let groups = self.group(&mut functions, &cookies, &indexes, &mut skipped);
        let last = groups.values().flat_map(|group| &group.indexes).max();
        self.make_room(last.map_or(0, |last| last.saturating_add(1)), cache)?;
        // The maps have taken what they need.
        check_room(need.space)?;
        if self.programs.iter().any(|p| p.sets_errno) {
            find_errno(modules);
        }
        if self.programs.iter().any(|p| p.detaches_by_function) {
            set_detach_from(detach_from);
        }
        let began = Instant::now();
        let engine = Engine::get()?;
        let mut entry_only = Vec::new();
        // A file that is there twice has one record of a function: hooked, if one of them is.
        let twice = (1..new.len()).any(|i| new[..i].iter().any(|m| m.path() == new[i].path()));
        let mut hooked = HashSet::<_, Unseeded>::default();
        for ((inside, layouts), group) in &groups {
            let hooks = match inside {
                false => self.hooks(layouts),
                true => match self.hooks_inside() {
                    Ok(hooks) => hooks,
                    Err(why) => {
                        skipped.extend(group.indexes.iter().map(|i| (*i, why.to_owned())));
                        continue;
                    }
                },
            };
            let attachment = engine.attach(&group.targets, &hooks);
            self.attachments.push(attachment.id);
            for ((index, target), result) in
                group.indexes.iter().zip(&group.targets).zip(attachment.results)
            {
                match result {
                    Ok(()) => {
                        self.attached += 1;
                        self.semaphores.raise(target.0.addr());
                        if twice {
                            hooked.insert(*index);
                        }
                    }
                    Err(Skip::NoExit { why }) if self.runs_at_entry_only() => {
                        entry_only.push((*index, *target, why))
                    }
                    Err(why) => skipped.push((*index, why.to_string())),
                }
            }
        }
        let reasons = self.attach_entries(&entry_only, &mut skipped)?;
        skipped.retain(|(index, _)| !hooked.contains(index));
        self.attach_ns += nanos(began);
        self.file.entry_only(&reasons)?;
        Ok(self.file.skip(&skipped)?)
    }

    /// Puts functions that get the same hooks together, apart from places inside functions, which the
    /// key says; the others into `skipped`, by index.
    fn group<'f>(
        &self,
        functions: &'f mut [Function],
        cookies: &[u64],
        indexes: &[u32],
        skipped: &mut Vec<(u32, String)>,
    ) -> BTreeMap<(bool, Layouts), Group<'f>> {
        let known: Vec<_> = self.programs.iter().map(|p| (p, p.known(functions))).collect();
        for (at, function) in functions.iter_mut().enumerate() {
            let of = known.iter().filter_map(|(p, known)| p.nr_args((*known.get(at)?)?));
            function.set_nr_args(of.max());
        }
        let mut groups: BTreeMap<(bool, Layouts), Group<'_>> = BTreeMap::new();
        let count = functions.len();
        let mut layouts: Vec<Option<u32>> = Vec::with_capacity(known.len());
        let mut last: Option<(bool, Layouts)> = None;
        for (at, ((function, &index), &cookie)) in
            functions.iter().zip(indexes).zip(cookies).enumerate()
        {
            if index >= self.spec.max_functions {
                let max = self.spec.max_functions;
                skipped.push((index, format!("more than {max} functions in one link")));
                continue;
            }
            layouts.clear();
            let mut own = known.iter().map(|(p, known)| p.layout(known.get(at).copied().flatten()));
            let found = own.try_for_each(|layout| layout.map(|layout| layouts.push(layout)));
            match found {
                Ok(()) => {
                    // Nearly all are like the one before.
                    let is_same = |last: &(bool, Layouts)| {
                        last.0 == function.is_inside() && *last.1 == *layouts
                    };
                    if !last.as_ref().is_some_and(is_same) {
                        let key = (function.is_inside(), Layouts::from(&*layouts));
                        // Usually there is one.
                        let room = if groups.is_empty() { count } else { 0 };
                        let new = || Group::with_capacity(room);
                        groups.entry(key.clone()).or_insert_with(new);
                        last = Some(key);
                    }
                    let Some(group) = last.as_ref().and_then(|key| groups.get_mut(key)) else {
                        continue;
                    };
                    let cookie = match self.spec.cookie {
                        Cookie::Target => cookie,
                        Cookie::Index => {
                            let mut numbers =
                                known.iter().filter_map(|(_, k)| (*k.get(at)?).map(|f| f.number));
                            u64::from(index) | u64::from(numbers.next().unwrap_or(0)) << 32
                        }
                    };
                    group.targets.push((function, cookie));
                    group.indexes.push(index);
                }
                Err(why) => skipped.push((index, why)),
            }
        }
        groups
    }

    /// Makes the hooks of functions that the programs see by these layouts.
    fn hooks(&mut self, layouts: &Layouts) -> Vec<Hook> {
        let entry_only = self.runs_at_entry_only();
        let make = |(program, layout): (&mut ActiveProgram, &Option<u32>)| {
            let running = Arc::clone(program.running.last()?);
            Some(program.hook(&running, *layout, entry_only))
        };
        self.programs.iter_mut().zip(layouts).filter_map(make).collect()
    }

    /// Makes the hooks of places inside functions.
    fn hooks_inside(&self) -> Result<Vec<Hook>, &'static str> {
        let ready = self.programs.iter().filter_map(|p| Some((p, p.running.last()?)));
        ready.map(|(program, running)| program.hook_inside(running)).collect()
    }

    /// Tells whether the link takes functions that cannot be hooked at their return.
    fn runs_at_entry_only(&self) -> bool {
        let [program] = &*self.spec.programs else { return false };
        self.spec.entry_only
            && program.attach_type == FunctionAttachType::Session
            && program.context == Context::Tracing
    }

    /// Attaches a session program to the entry of functions that cannot be hooked at their return;
    /// returns those, and why it is so.
    fn attach_entries(
        &mut self,
        functions: &[EntryOnly<'_>],
        skipped: &mut Vec<(u32, String)>,
    ) -> Result<Vec<(u32, String)>, AgentError> {
        let Some(program) = self.programs.first().filter(|_| !functions.is_empty()) else {
            return Ok(Vec::new());
        };
        let Some(running) = program.running.last() else { return Ok(Vec::new()) };
        let hook = program.entry_hook(running);
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

impl Drop for ActiveLink {
    fn drop(&mut self) {
        if !self.drained {
            // Threads may be inside.
            std::mem::forget((std::mem::take(&mut self.programs), self.directory.take()));
        }
    }
}

/// What a process says of a link that it has attached nothing of.
pub(super) fn failed(error: Option<String>) -> AgentRecord {
    let pid = std::process::id();
    AgentRecord { pid, exe: executable(), start_ns: 0, attach_ns: 0, attached: 0, error }
}

fn nanos(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

fn mapped(module: &Module) -> MappedModule {
    MappedModule {
        pid: std::process::id(),
        path: module.path().to_string_lossy().into_owned(),
        bias: module.bias(),
        text: module.text().iter().map(|r| (r.start, r.end)).collect(),
    }
}

/// `module`: the path of its module.
fn found<'f>(function: &'f Function, module: &'f str) -> FoundFunction<'f> {
    FoundFunction {
        module,
        name: function.name(),
        vaddr: function.addr().wrapping_sub(function.module().bias()),
        size: function.size(),
        skipped: None,
    }
}
