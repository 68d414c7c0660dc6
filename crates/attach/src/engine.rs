//! The engine: one for the process, owner of everything that is hooked.

use crate::deny;
use crate::frame::{MAX_ARGS, MAX_SESSIONS, UNTYPED_ARGS};
use crate::guard;
use crate::hook::{Hook, Position};
use crate::island::{self, Builder};
use crate::live;
use crate::patch::{self, Change, Detour};
use crate::plans::{Plans, Words};
use crate::process;
use crate::signals;
use crate::sites::{Function, Module};
use crate::skip::{AttachError, Skip};
use crate::spot::{PATCH, Shape, Spot, jump};
use crate::stack::Follower;
use crate::table::{self, Table};
use crate::tramp::{self, Entry, Meta};
use std::cell::UnsafeCell;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Hooks functions of the own process.
#[derive(Debug)]
pub struct Engine {
    state: Mutex<State>,
}

/// What [`Engine::attach`] did.
#[derive(Debug)]
pub struct Attachment {
    /// Names the attachment; give it to [`Engine::detach`].
    pub id: u64,
    /// For each target, in the order given: attached, or why not.
    pub results: Vec<Result<(), Skip>>,
}

/// What [`Engine::detach`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Detached {
    /// Functions whose original first instructions are back in place.
    pub restored: usize,
    /// Functions that still begin with a jump, which now leads past the tracer: five bytes that do
    /// not lie in one aligned word cannot be changed safely while other threads run.
    pub bypassed: usize,
    /// Whether no thread can be inside a hook of the attachment any more. If not, what its
    /// [`Hook`]s point at must stay.
    pub drained: bool,
}

#[derive(Debug)]
struct State {
    last: u64,
    /// Every function that was ever hooked, by address.
    sites: HashMap<u64, Site>,
    attachments: HashMap<u64, Vec<u64>>,
    table: table::Writer,
    /// Functions reached through the table.
    called: usize,
    plans: Plans,
    /// Taken out of use, perhaps still being read.
    tables: Vec<Old<Table>>,
    left: live::Leftovers,
}

/// The engine's state, for as long as it is locked.
#[derive(Debug)]
struct Locked<'a> {
    state: MutexGuard<'a, State>,
    // Dropped last.
    _signals: signals::Blocked,
}

/// A pointer that waits for its readers to leave.
#[derive(Debug)]
struct Old<T>(*mut T);

// SAFETY: only the holder of the engine's lock uses it.
unsafe impl<T> Send for Old<T> {}

/// How a function's first bytes are now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Form {
    Plain,
    Entry,
    Exit,
}

#[derive(Debug)]
struct Site {
    text: Range<u64>,
    spot: Spot,
    meta: &'static Meta,
    /// Argument words, when one of the attachments knows them.
    nr_args: Option<u8>,
    /// Where the five bytes lead for entry hooks: called at compiled-in sites, else jumped to.
    entry: u64,
    /// Where they lead for exit hooks; 0: not made yet.
    exit: u64,
    /// The chunks that `entry` and `exit` are in.
    islands: Range<u64>,
    exit_islands: Range<u64>,
    form: Form,
    /// What calls get: another form than that of the bytes while the island they lead to is
    /// redirected.
    aim: Form,
    entries: Vec<Entry>,
    cookies: Words,
    twins: [u64; PATCH],
}

impl Site {
    /// Removes an attachment's hooks; false when it had none.
    fn remove(&mut self, id: u64) -> bool {
        let before = self.entries.len();
        self.entries.retain(|e| e.seq != id);
        self.entries.len() != before
    }

    fn wanted(&self) -> Form {
        match self.entries.iter().map(|e| e.hook.position.needs_exit()).max() {
            None => Form::Plain,
            Some(false) => Form::Entry,
            Some(true) => Form::Exit,
        }
    }

    /// The five bytes of a form, and what they do.
    fn bytes(&self, form: Form) -> Result<([u8; PATCH], Detour), Skip> {
        let at = self.spot.at;
        let (opcode, detour) = match form {
            Form::Plain => {
                return Ok((
                    self.spot.original(),
                    Detour::Jump(self.meta.body.load(Ordering::Relaxed)),
                ));
            }
            Form::Entry if self.spot.shape == Shape::Nop => (0xe8, Detour::Call(self.entry)),
            Form::Entry => (0xe9, Detour::Jump(self.entry)),
            Form::Exit => (0xe9, Detour::Jump(self.exit)),
        };
        let (Detour::Call(to) | Detour::Jump(to)) = detour;
        if to == 0 {
            return Err(Skip::NoRoom);
        }
        Ok((jump(opcode, at, to).ok_or(Skip::NoRoom)?, detour))
    }

    fn change(&self, to: Form) -> Result<Change, Skip> {
        let (old, before) = self.bytes(self.form)?;
        let (new, after) = self.bytes(to)?;
        // Whoever arrives in the middle of a change does what keeps the other attachments' events.
        let head = if to == Form::Plain { before } else { after };
        let inner = if self.form == Form::Plain { self.twins } else { [0; PATCH] };
        Ok(Change { at: self.spot.at, old, new, text: self.text.clone(), head, inner })
    }

    /// The island that the bytes lead to; `None` when they lead to none, or to one that is not the
    /// function's own.
    fn island(&self) -> Option<u64> {
        match self.form {
            Form::Plain => None,
            Form::Entry => (self.spot.shape == Shape::Inline).then_some(self.entry),
            Form::Exit => Some(self.exit),
        }
    }

    /// Leads the function's island elsewhere, for bytes that cannot be changed while threads run:
    /// an island lies in one word.
    fn redirect(&self, to: Form) -> Result<Change, Skip> {
        let at = self.island().ok_or(Skip::Busy { tid: 0 })?;
        let chunk = if self.form == Form::Exit { &self.exit_islands } else { &self.islands };
        let target = match to {
            Form::Plain => self.meta.body.load(Ordering::Relaxed),
            Form::Entry if self.spot.shape == Shape::Inline => self.entry,
            Form::Exit if self.exit != 0 => self.exit,
            _ => return Err(Skip::Busy { tid: 0 }),
        };
        let new = match to == self.form {
            true => island::head(self.form == Form::Exit, at, chunk),
            false => jump(0xe9, at, target).ok_or(Skip::NoRoom)?,
        };
        // SAFETY: islands are mapped for ever.
        let old = unsafe { patch::current(at) };
        Ok(Change {
            at,
            old,
            new,
            text: chunk.clone(),
            head: Detour::Jump(target),
            inner: [0; PATCH],
        })
    }
}

impl Engine {
    /// Gives the engine, and makes it on the first call.
    ///
    /// # Errors
    ///
    /// [`AttachError::System`] when the kernel lacks something that cannot be done without.
    pub fn get() -> Result<&'static Self, AttachError> {
        use std::sync::OnceLock;
        static ENGINE: OnceLock<Engine> = OnceLock::new();
        Ok(ENGINE.get_or_init(|| {
            // SAFETY: the functions stay for as long as the process, as everything here does.
            unsafe { pthread_atfork(before_fork, after_fork_parent, after_fork_child) };
            process::claim();
            guard::prepare();
            // SAFETY: there is one engine.
            Self { state: Mutex::new(State::new(unsafe { table::Writer::new() })) }
        }))
    }

    /// Signals wait meanwhile: their handlers may fork, and the lock is taken for that.
    fn lock(&self) -> Locked<'_> {
        let signals = signals::Blocked::new();
        Locked {
            state: self.state.lock().unwrap_or_else(PoisonError::into_inner),
            _signals: signals,
        }
    }

    /// Attaches all `hooks` to all `targets`, each a function and the cookie its hooks see.
    ///
    /// Nothing that a caller gives can lead it to change anything but the first instructions of
    /// functions, as their module's file tells of them: a [`Function`] comes from there, and
    /// what a [`Hook`] does, whoever made it with [`Hook::new`] answers for. A library that was
    /// closed before is skipped; one that another thread closes in this very moment is the limit.
    ///
    /// Functions that cannot be hooked are skipped and reported; the others are attached when this
    /// returns. Within a function, hooks of one kind run in the order of attaching.
    ///
    /// In a child that shares its parent's memory (`vfork`) nothing is attached.
    pub fn attach(&self, targets: &[(&Function, u64)], hooks: &[Hook]) -> Attachment {
        let _muted = guard::mute();
        if !process::is_own() {
            return Attachment { id: 0, results: vec![Err(Skip::SharedMemory); targets.len()] };
        }
        let mut locked = self.lock();
        let state = &mut *locked.state;
        state.last += 1;
        let id = state.last;
        let results = state.attach(id, targets, hooks);
        if state.plans.any_old() || !state.tables.is_empty() {
            state.collect();
        }
        Attachment { id, results }
    }

    /// Takes an attachment away: no new run of its hooks begins after this returns.
    ///
    /// Functions without any other attachment get their original bytes back. Calls that are in
    /// progress return as usual, without running its exit hooks. From inside a hook nothing is
    /// freed: the answer is that the attachment is not drained.
    ///
    /// # Errors
    ///
    /// [`AttachError::NoAttachment`] when the id is not attached; [`AttachError::SharedMemory`] in
    /// a child of `vfork`.
    pub fn detach(&self, id: u64) -> Result<Detached, AttachError> {
        let _muted = guard::mute();
        if !process::is_own() {
            return Err(AttachError::SharedMemory);
        }
        let mut locked = self.lock();
        let state = &mut *locked.state;
        let (restored, bypassed) = state.detach(id)?;
        Ok(Detached { restored, bypassed, drained: state.collect() })
    }
}

impl Engine {
    /// Forgets functions of libraries that were closed: their code is no module's any more, and
    /// other code may come to lie there.
    ///
    /// `modules` are those of now ([`crate::sites::scan`]). Nothing is written to the old places.
    pub fn forget(&self, modules: &[Arc<Module>]) {
        let _muted = guard::mute();
        if !process::is_own() {
            return;
        }
        let mut locked = self.lock();
        let state = &mut *locked.state;
        let lives = |a: u64| modules.iter().any(|m| m.text.iter().any(|t| t.contains(&a)));
        let gone: Vec<u64> = state.sites.keys().copied().filter(|a| !lives(*a)).collect();
        for addr in &gone {
            if let Some(site) = state.sites.get_mut(addr) {
                site.entries.clear();
            }
        }
        state.publish(&gone);
        for addr in gone {
            if let Some(site) = state.sites.remove(&addr)
                && site.spot.shape == Shape::Nop
                && site.form == Form::Entry
            {
                state.called -= 1;
            }
        }
    }
}

unsafe extern "C" {
    fn pthread_atfork(
        prepare: extern "C" fn(),
        parent: extern "C" fn(),
        child: unsafe extern "C" fn(),
    ) -> i32;
}

/// The engine's lock, held by the thread that forks so that the child finds everything in order.
static FORKING: ForkGuard = ForkGuard(UnsafeCell::new(None));

struct ForkGuard(UnsafeCell<Option<Locked<'static>>>);

// SAFETY: only touched by the thread that holds the engine's lock.
unsafe impl Sync for ForkGuard {}

extern "C" fn before_fork() {
    let _muted = guard::mute();
    if let Ok(engine) = Engine::get() {
        let lock = engine.lock();
        // SAFETY: this thread has the lock.
        unsafe { *FORKING.0.get() = Some(lock) };
    }
}

extern "C" fn after_fork_parent() {
    let _muted = guard::mute();
    // SAFETY: `before_fork` took the lock on this thread.
    drop(unsafe { (*FORKING.0.get()).take() });
}

/// # Safety
/// The process was just forked.
unsafe extern "C" fn after_fork_child() {
    // SAFETY: the caller's promise: no other thread is here.
    unsafe { guard::after_fork() };
    // The child takes possession of its copy.
    process::is_own();
    after_fork_parent();
}

impl State {
    fn new(table: table::Writer) -> Self {
        Self {
            last: 0,
            sites: HashMap::new(),
            attachments: HashMap::new(),
            table,
            called: 0,
            plans: Plans::default(),
            tables: Vec::new(),
            left: live::Leftovers::default(),
        }
    }

    fn attach(
        &mut self,
        id: u64,
        targets: &[(&Function, u64)],
        hooks: &[Hook],
    ) -> Vec<Result<(), Skip>> {
        self.forget(targets.iter().map(|(f, _)| f.addr));
        let exits = hooks.iter().any(|h| h.position.needs_exit());
        let mut results: Vec<Result<(), Skip>> = Vec::with_capacity(targets.len());
        let mut seen = HashSet::with_capacity(targets.len());
        let mut by_module: Vec<Work<'_>> = Vec::new();
        let mut text: Option<Vec<Range<u64>>> = None;
        for (n, (f, _)) in targets.iter().enumerate() {
            results.push(self.admit(f, hooks, &mut seen));
            let known = self.sites.get(&f.addr).is_some_and(|s| !exits || s.exit != 0);
            if known || results.last().is_some_and(Result::is_err) {
                continue;
            }
            match by_module.iter_mut().find(|w| Arc::ptr_eq(w.module, &f.module)) {
                Some(work) => work.items.push((n, f)),
                // Its code is going to be read.
                None if !f.module.is_within(text.get_or_insert_with(patch::executable)) => {
                    set(&mut results, n, Err(Skip::NotCode { addr: f.addr }));
                }
                None => by_module.push(Work { module: &f.module, items: vec![(n, f)] }),
            }
        }
        for work in by_module {
            self.place(&work, &mut results, exits);
        }
        let mut chosen = Vec::with_capacity(targets.len());
        for ((f, cookie), result) in targets.iter().zip(&results) {
            if result.is_ok()
                && let Some(site) = self.sites.get_mut(&f.addr)
            {
                let known = f.nr_args.or(site.nr_args.filter(|_| !site.entries.is_empty()));
                if known != site.nr_args {
                    // Calls on their way keep the number that is in their frames.
                    site.nr_args = known;
                    let n = known.map_or(UNTYPED_ARGS, |n| usize::from(n).min(MAX_ARGS));
                    site.meta.nr_args.store(n as u64, Ordering::Relaxed);
                }
                site.entries.extend(hooks.iter().map(|hook| Entry {
                    hook: *hook,
                    cookie: *cookie,
                    seq: id,
                }));
                chosen.push(f.addr);
            }
        }
        self.publish(&chosen);
        let failed = self.reform(&chosen);
        if !failed.is_empty() {
            let addrs: Vec<u64> = failed.iter().map(|f| f.0).collect();
            let failed: HashMap<u64, Skip> = failed.into_iter().collect();
            for ((f, _), r) in targets.iter().zip(&mut results).filter(|(_, r)| r.is_ok()) {
                if let Some(skip) = failed.get(&f.addr) {
                    *r = Err(skip.clone());
                }
            }
            for addr in &addrs {
                self.sites.get_mut(addr).map(|s| s.remove(id));
            }
            self.publish(&addrs);
            self.reform(&addrs);
            chosen.retain(|a| !failed.contains_key(a));
        }
        self.attachments.insert(id, chosen);
        results
    }

    /// Drops what is known about functions that are gone, with the library they were in, or that
    /// are others now.
    fn forget(&mut self, addrs: impl Iterator<Item = u64>) {
        let mut text: Option<Vec<Range<u64>>> = None;
        for addr in addrs {
            let Some(site) = self.sites.get(&addr) else { continue };
            let text = text.get_or_insert_with(patch::executable);
            let at = site.spot.at..site.spot.at + PATCH as u64;
            let mapped = text
                .get(text.partition_point(|r| r.end <= at.start))
                .is_some_and(|r| r.start <= at.start && at.end <= r.end);
            // SAFETY: all of them are mapped.
            let current = || unsafe { patch::current(at.start) };
            if mapped && site.bytes(site.form).is_ok_and(|(bytes, _)| current() == bytes) {
                continue;
            }
            if let Some(gone) = self.sites.remove(&addr) {
                self.called -=
                    usize::from(gone.spot.shape == Shape::Nop && gone.form == Form::Entry);
                self.plans.withdraw(gone.meta);
            }
        }
    }

    /// Decides whether a function can take the hooks, as far as that can be told without looking at
    /// its code.
    fn admit(&self, f: &Function, hooks: &[Hook], seen: &mut HashSet<u64>) -> Result<(), Skip> {
        if !seen.insert(f.addr) {
            return Err(Skip::Duplicate);
        }
        let site = self.sites.get(&f.addr);
        let sessions =
            |s: &Site| s.entries.iter().filter(|e| e.hook.position == Position::Session).count();
        let new = hooks.iter().filter(|h| h.position == Position::Session).count();
        let others = site.filter(|s| !s.entries.is_empty()).and_then(|s| s.nr_args);
        if f.nr_args.is_some_and(|n| others.is_some_and(|o| o != n)) {
            return Err(Skip::Arguments);
        }
        if new > 0 && new + site.map_or(0, sessions) > MAX_SESSIONS {
            return Err(Skip::Sessions { max: MAX_SESSIONS });
        }
        if site.is_none() {
            deny::entry(f)?;
        }
        if hooks.iter().any(|h| h.position.needs_exit()) { deny::exit(f) } else { Ok(()) }
    }

    /// Looks at the code of functions of one module and gives them what they lack: a spot, islands,
    /// a way to an exit trampoline.
    fn place(&mut self, work: &Work<'_>, results: &mut [Result<(), Skip>], exits: bool) {
        let mut found: Vec<Found<'_>> = Vec::with_capacity(work.items.len());
        {
            let original = |addr: u64| {
                let site = self.sites.get(&addr).filter(|s| s.form != Form::Plain)?;
                Some((site.spot.at, site.spot.original()))
            };
            let mut follower = Follower::new(work.module.code(), &original);
            for &(n, f) in &work.items {
                let spot = if self.sites.contains_key(&f.addr) {
                    Ok(None)
                } else {
                    Spot::find(f).map(Some)
                };
                let exit = if exits { returns(f, &mut follower).map(Some) } else { Ok(None) };
                match spot.and_then(|spot| Ok(Found { n, f, spot, exit: exit? })) {
                    Ok(item) => found.push(item),
                    Err(skip) => set(results, n, Err(skip)),
                }
            }
        }
        if found.is_empty() {
            return;
        }
        let mut builder = match Builder::new(&work.module.file().span, found.len()) {
            Ok(b) => b,
            Err(skip) => return found.iter().for_each(|i| set(results, i.n, Err(skip.clone()))),
        };
        let mut made = Vec::with_capacity(found.len());
        for item in found {
            let (n, addr) = (item.n, item.f.addr);
            match self.add_site(&mut builder, item) {
                Ok(undo) => made.push((n, addr, undo)),
                Err(skip) => set(results, n, Err(skip)),
            }
        }
        match builder.finish() {
            Ok(()) => {}
            Err(skip) => {
                for (n, addr, new) in made {
                    if new {
                        self.sites.remove(&addr);
                    } else if let Some(site) = self.sites.get_mut(&addr) {
                        site.exit = 0;
                    }
                    set(results, n, Err(skip.clone()));
                }
            }
        }
    }

    /// Makes what a function lacks. True when the function is new.
    fn add_site(&mut self, builder: &mut Builder, item: Found<'_>) -> Result<bool, Skip> {
        let f = item.f;
        let Some(spot) = item.spot else {
            if let (Some(site), Some(exit)) = (self.sites.get_mut(&f.addr), item.exit) {
                site.exit = builder.exit(site.meta, exit);
                site.exit_islands = builder.range();
            }
            return Ok(false);
        };
        let at = spot.at;
        let text = f.module.code().text_of(f.addr).ok_or(Skip::NotCode { addr: f.addr })?;
        let mut twins = [0; PATCH];
        let (entry, body, meta);
        let new_meta = || Meta::new(f.addr, UNTYPED_ARGS as u64);
        match spot.shape {
            Shape::Nop => {
                for (t, b) in twins.iter_mut().zip(spot.boundaries()).skip(1) {
                    *t = if b { at + PATCH as u64 } else { 0 };
                }
                (entry, body, meta) = (builder.veneer(), at + PATCH as u64, new_meta());
            }
            Shape::Inline => {
                let to = builder.next_body();
                let moved = spot.relocate(f.addr, to)?;
                for (n, (t, b)) in twins.iter_mut().zip(spot.boundaries()).enumerate().skip(1) {
                    let twin = moved.twins.get(n).copied().flatten();
                    *t = match (b, twin) {
                        (false, _) => 0,
                        (true, Some(o)) => to + u64::from(o),
                        (true, None) => {
                            return Err(Skip::Unmovable {
                                offset: at + n as u64 - f.addr,
                                why: "it was rewritten",
                            });
                        }
                    };
                }
                meta = new_meta();
                (entry, body) = builder.entry(meta, &moved.code);
            }
        }
        let exit = item.exit.map_or(0, |exit| builder.exit(meta, exit));
        meta.body.store(body, Ordering::Release);
        self.sites.insert(
            f.addr,
            Site {
                text,
                spot,
                meta,
                nr_args: None,
                entry,
                exit,
                islands: builder.range(),
                exit_islands: builder.range(),
                form: Form::Plain,
                aim: Form::Plain,
                entries: Vec::new(),
                cookies: Words::default(),
                twins,
            },
        );
        Ok(true)
    }

    /// Makes new plans for functions whose hooks changed.
    fn publish(&mut self, addrs: &[u64]) {
        self.enter_table(addrs);
        for addr in addrs {
            let Some(site) = self.sites.get_mut(addr) else { continue };
            let wants = site.entries.iter().any(|e| usize::from(e.hook.wants_args) > UNTYPED_ARGS);
            site.meta.wants.store(u32::from(wants), Ordering::Relaxed);
            self.plans.publish(site.meta, &site.entries, &mut site.cookies);
        }
    }

    /// Puts compiled-in sites that will be called into the table.
    fn enter_table(&mut self, addrs: &[u64]) {
        let new: Vec<(u64, &'static Meta)> = addrs
            .iter()
            .filter_map(|a| self.sites.get(a))
            .filter(|s| {
                s.spot.shape == Shape::Nop && s.wanted() == Form::Entry && s.form != Form::Entry
            })
            .map(|s| (s.spot.at + PATCH as u64, s.meta))
            .collect();
        if new.is_empty() {
            return;
        }
        let live = |s: &&Site| s.spot.shape == Shape::Nop && s.form == Form::Entry;
        let mut keys = self.sites.values().filter(live).map(|s| (s.spot.at + PATCH as u64, s.meta));
        let old = self.table.reserve(new.len(), &mut keys, self.called);
        self.tables.extend(old.map(Old));
        for (key, meta) in new {
            self.table.insert(key, meta);
        }
    }

    /// Makes calls of functions go where their hooks need them: by changing the first bytes, or the
    /// island that they lead to. Returns those where that failed.
    fn reform(&mut self, addrs: &[u64]) -> Vec<(u64, Skip)> {
        let mut failed = Vec::new();
        let mut work: Vec<(Change, u64, Option<Form>)> = Vec::with_capacity(addrs.len());
        let alone = patch::is_alone();
        for addr in addrs {
            let Some(site) = self.sites.get_mut(addr) else { continue };
            let to = site.wanted();
            if to == site.aim {
                continue;
            }
            let direct = alone || site.form == Form::Plain || patch::in_one_word(site.spot.at);
            let (island, bytes) = match site.island() {
                Some(_) if to == site.form => (Some(to), None),
                Some(_) if !direct => (Some(to), None),
                Some(_) if site.aim != site.form => (Some(site.form), Some(to)),
                None if !direct && to == Form::Plain => {
                    // The call stays and finds nothing to run.
                    site.aim = to;
                    continue;
                }
                None if to == site.form => {
                    site.aim = to;
                    continue;
                }
                _ => (None, Some(to)),
            };
            let island = island.map(|to| site.redirect(to).map(|c| (c, *addr, None)));
            let bytes = bytes.map(|to| site.change(to).map(|c| (c, *addr, Some(to))));
            for change in [island, bytes].into_iter().flatten() {
                match change {
                    Ok(change) => work.push(change),
                    Err(skip) => failed.push((*addr, skip)),
                }
            }
        }
        work.sort_by_key(|w| w.0.at);
        let (changes, rest): (Vec<Change>, Vec<(u64, Option<Form>)>) =
            work.into_iter().map(|(c, a, f)| (c, (a, f))).unzip();
        // SAFETY: changes of functions, which `forget` has found mapped, from one of the forms that
        // `Site` knows to another.
        let results = unsafe { patch::apply(&changes, &mut self.left) };
        for (result, (addr, form)) in results.into_iter().zip(rest) {
            let Some(site) = self.sites.get_mut(&addr) else { continue };
            match (result, form) {
                (Ok(()), Some(form)) => {
                    let called =
                        |f: Form| usize::from(site.spot.shape == Shape::Nop && f == Form::Entry);
                    self.called = self.called + called(form) - called(site.form);
                    (site.form, site.aim) = (form, form);
                }
                (Ok(()), None) => site.aim = site.wanted(),
                (Err(skip), _) => failed.push((addr, skip)),
            }
        }
        failed
    }

    /// Counts functions that are as they were, and those whose first bytes are not.
    fn detach(&mut self, id: u64) -> Result<(usize, usize), AttachError> {
        let addrs = self.attachments.remove(&id).ok_or(AttachError::NoAttachment { id })?;
        self.forget(addrs.iter().copied());
        // The address may be another function's by now, which never had these hooks.
        let addrs: Vec<u64> = addrs
            .into_iter()
            .filter(|addr| self.sites.get_mut(addr).is_some_and(|s| s.remove(id)))
            .collect();
        self.publish(&addrs);
        self.reform(&addrs);
        let count = |f: fn(&Site) -> bool| {
            addrs.iter().filter(|a| self.sites.get(a).is_some_and(f)).count()
        };
        Ok((
            count(|s| s.form == Form::Plain),
            count(|s| s.form != Form::Plain && s.aim == Form::Plain),
        ))
    }

    /// Frees what nobody can be reading any more. False when some thread did not leave its hook in
    /// time.
    fn collect(&mut self) -> bool {
        if !guard::drain(1 << 16) {
            return false;
        }
        // SAFETY: no thread is inside hooks that found an old plan.
        unsafe { self.plans.drained() };
        for Old(table) in self.tables.drain(..) {
            // SAFETY: taken out of use by `reserve`, and no thread that found it is still inside.
            unsafe { table::free(table) };
        }
        true
    }
}

/// Functions of one module that lack something.
struct Work<'a> {
    module: &'a Arc<Module>,
    items: Vec<(usize, &'a Function)>,
}

/// What was found out about one of them.
struct Found<'a> {
    /// Index among the targets.
    n: usize,
    f: &'a Function,
    /// Where to change it, if it was never hooked before.
    spot: Option<Spot>,
    /// The exit trampoline it needs.
    exit: Option<usize>,
}

/// Finds the exit trampoline that copies what the function needs.
fn returns(f: &Function, follower: &mut Follower<'_>) -> Result<usize, Skip> {
    let end = f.module.code().next_start(f.addr);
    let used = follower.follow(&(f.addr..(f.addr + f.size.max(1)).min(end)));
    if used.return_address {
        return Err(Skip::NoExit { why: "uses its own return address" });
    }
    if used.leaves {
        return Err(Skip::NoExit { why: "keeps data in its caller's frame" });
    }
    let fits = tramp::EXITS.iter().find(|(words, _)| *words >= used.words);
    fits.map(|(_, index)| *index)
        .ok_or(Skip::NoExit { why: "takes more than 4 KiB of arguments on the stack" })
}

fn set(results: &mut [Result<(), Skip>], n: usize, to: Result<(), Skip>) {
    if let Some(r) = results.get_mut(n) {
        *r = to;
    }
}
