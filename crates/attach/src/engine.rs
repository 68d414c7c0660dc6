//! The engine: one for the process, owner of everything that is hooked.

use crate::frame::{MAX_SESSIONS, UNTYPED_ARGS};
use crate::guard;
use crate::hook::{Hook, Position};
use crate::island::{Builder, Chunk, Island};
use crate::patch::{self, Change, Detour};
use crate::sites::{Function, Module};
use crate::skip::{AttachError, Skip};
use crate::spot::{PATCH, Shape, Spot, jump};
use crate::table::{self, Table};
use crate::tramp::{self, Entry, Meta, Plan};
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
    /// Whether no thread can be inside a hook of the attachment any more. If not, what its [`Hook`]s point at must stay.
    pub drained: bool,
}

#[derive(Debug, Default)]
struct State {
    last: u64,
    /// Every function that was ever hooked, by address.
    sites: HashMap<u64, Site>,
    attachments: HashMap<u64, Vec<u64>>,
    chunks: Vec<Chunk>,
    table: table::Writer,
    /// Functions reached through the table.
    called: usize,
    /// Taken out of use, perhaps still being read.
    plans: Vec<Old<Plan>>,
    tables: Vec<Old<Table>>,
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
    function: u64,
    text: Range<u64>,
    spot: Spot,
    meta: &'static Meta,
    island: Option<Island>,
    /// What compiled-in sites call.
    veneer: u64,
    form: Form,
    entries: Vec<Entry>,
    twins: [u64; PATCH],
}

impl Site {
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
        let body = self.island.map_or(at + PATCH as u64, |i| i.body);
        let (opcode, to, detour) = match (form, self.island) {
            (Form::Plain, _) => return Ok((self.spot.original(), Detour::Jump(body))),
            (Form::Entry, _) if self.spot.shape == Shape::Nop => (0xe8, self.veneer, Detour::Call(self.veneer)),
            (Form::Entry, Some(i)) => (0xe9, i.entry, Detour::Jump(i.entry)),
            (Form::Exit, Some(i)) => (0xe9, i.exit, Detour::Jump(i.exit)),
            (_, None) => return Err(Skip::NoRoom),
        };
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
        Ok(ENGINE.get_or_init(|| Self { state: Mutex::default() }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Attaches all `hooks` to all `targets`, each a function and the cookie its hooks see.
    ///
    /// Functions that cannot be hooked are skipped and reported; the others are attached when this returns. Within a function,
    /// hooks of one kind run in the order of attaching.
    pub fn attach(&self, targets: &[(&Function, u64)], hooks: &[Hook]) -> Attachment {
        let _muted = guard::mute();
        let mut state = self.lock();
        state.last += 1;
        let id = state.last;
        let results = state.attach(id, targets, hooks);
        state.collect();
        Attachment { id, results }
    }

    /// Takes an attachment away: no new run of its hooks begins after this returns.
    ///
    /// Functions without any other attachment get their original bytes back. Calls that are in progress return as usual, without
    /// running its exit hooks.
    ///
    /// # Errors
    ///
    /// [`AttachError::NoAttachment`] when the id is not attached.
    pub fn detach(&self, id: u64) -> Result<Detached, AttachError> {
        let _muted = guard::mute();
        let mut state = self.lock();
        let restored = state.detach(id)?;
        Ok(Detached { restored, drained: state.collect() })
    }
}

impl State {
    fn attach(&mut self, id: u64, targets: &[(&Function, u64)], hooks: &[Hook]) -> Vec<Result<(), Skip>> {
        let exits = hooks.iter().any(|h| h.position.needs_exit());
        let mut results: Vec<Result<(), Skip>> = Vec::with_capacity(targets.len());
        let mut fresh: Vec<(usize, Spot)> = Vec::new();
        let mut seen = HashSet::with_capacity(targets.len());
        for (n, (f, _)) in targets.iter().enumerate() {
            results.push(self.admit(f, hooks, &mut seen).map(|spot| fresh.extend(spot.map(|s| (n, s)))));
        }
        self.place(targets, fresh, &mut results, exits);
        let mut chosen = Vec::with_capacity(targets.len());
        for ((f, cookie), result) in targets.iter().zip(&results) {
            if result.is_ok()
                && let Some(site) = self.sites.get_mut(&f.addr)
            {
                site.entries.extend(hooks.iter().map(|hook| Entry { hook: *hook, cookie: *cookie, seq: id }));
                chosen.push(f.addr);
            }
        }
        self.publish(&chosen);
        let failed = self.reform(&chosen);
        for (addr, skip) in &failed {
            if let Some(site) = self.sites.get_mut(addr) {
                site.entries.retain(|e| e.seq != id);
            }
            if let Some(n) = targets.iter().position(|(f, _)| f.addr == *addr)
                && let Some(r) = results.get_mut(n)
            {
                *r = Err(skip.clone());
            }
        }
        if !failed.is_empty() {
            let addrs: Vec<u64> = failed.iter().map(|f| f.0).collect();
            self.publish(&addrs);
            self.reform(&addrs);
            chosen.retain(|a| !addrs.contains(a));
        }
        self.attachments.insert(id, chosen);
        results
    }

    /// Decides whether a function can take the hooks; finds its spot when it is new.
    fn admit(&self, f: &Function, hooks: &[Hook], seen: &mut HashSet<u64>) -> Result<Option<Spot>, Skip> {
        if !seen.insert(f.addr) {
            return Err(Skip::Duplicate);
        }
        let site = self.sites.get(&f.addr);
        let sessions = |s: &Site| s.entries.iter().filter(|e| e.hook.position == Position::Session).count();
        let new = hooks.iter().filter(|h| h.position == Position::Session).count();
        if new > 0 && new + site.map_or(0, sessions) > MAX_SESSIONS {
            return Err(Skip::Sessions { max: MAX_SESSIONS });
        }
        if site.is_some() { Ok(None) } else { Spot::find(f).map(Some) }
    }

    /// Gives new functions their islands, module by module.
    fn place(&mut self, targets: &[(&Function, u64)], fresh: Vec<(usize, Spot)>, results: &mut [Result<(), Skip>], exits: bool) {
        let mut by_module: Vec<(Arc<Module>, Vec<(usize, Spot)>)> = Vec::new();
        for (n, spot) in fresh {
            let Some((f, _)) = targets.get(n) else { continue };
            match by_module.iter_mut().find(|(m, _)| Arc::ptr_eq(m, &f.module)) {
                Some((_, v)) => v.push((n, spot)),
                None => by_module.push((Arc::clone(&f.module), vec![(n, spot)])),
            }
        }
        // Sites that are known but have no island for exit hooks yet.
        if exits {
            for (n, (f, _)) in targets.iter().enumerate() {
                if results.get(n).is_some_and(Result::is_ok) && self.sites.get(&f.addr).is_some_and(|s| s.island.is_none()) {
                    if let Some(old) = self.sites.get(&f.addr) {
                        let spot = old.spot.clone();
                        match by_module.iter_mut().find(|(m, _)| Arc::ptr_eq(m, &f.module)) {
                            Some((_, v)) => v.push((n, spot)),
                            None => by_module.push((Arc::clone(&f.module), vec![(n, spot)])),
                        }
                    }
                }
            }
        }
        for (module, list) in by_module {
            let span = &module.file().span;
            let mut builder = match Builder::new(span, list.len()) {
                Ok(b) => b,
                Err(skip) => {
                    for (n, _) in list {
                        set(results, n, Err(skip.clone()));
                    }
                    continue;
                }
            };
            let mut made: Vec<(usize, u64)> = Vec::with_capacity(list.len());
            for (n, spot) in list {
                let Some((f, _)) = targets.get(n) else { continue };
                match self.add_site(&mut builder, f, spot, exits) {
                    Ok(()) => made.push((n, f.addr)),
                    Err(skip) => set(results, n, Err(skip)),
                }
            }
            match builder.finish() {
                Ok(chunk) => self.chunks.push(chunk),
                Err(skip) => {
                    for (n, addr) in made {
                        self.sites.remove(&addr);
                        set(results, n, Err(skip.clone()));
                    }
                }
            }
        }
    }

    fn add_site(&mut self, builder: &mut Builder, f: &Function, spot: Spot, exits: bool) -> Result<(), Skip> {
        let (_, exit) = tramp::EXITS[1];
        let veneer = builder.veneer();
        let at = spot.at;
        let known = self.sites.get(&f.addr);
        let meta = match known {
            Some(site) => site.meta,
            None => Meta::new(f.addr, u64::from(f.nr_args.map_or(UNTYPED_ARGS as u8, |n| n.min(12)))),
        };
        let mut twins = [0; PATCH];
        let island = match spot.shape {
            Shape::Nop => {
                for (t, b) in twins.iter_mut().zip(spot.boundaries()).skip(1) {
                    *t = if b { at + PATCH as u64 } else { 0 };
                }
                exits.then(|| builder.add(meta, None, at + PATCH as u64, exit))
            }
            Shape::Inline => {
                let body = builder.next_body();
                let moved = spot.relocate(f.addr, body)?;
                for (n, (t, b)) in twins.iter_mut().zip(spot.boundaries()).enumerate().skip(1) {
                    let twin = moved.twins.get(n).copied().flatten();
                    *t = match (b, twin) {
                        (false, _) => 0,
                        (true, Some(o)) => body + u64::from(o),
                        (true, None) => return Err(Skip::Unmovable { offset: at + n as u64 - f.addr, why: "it was rewritten" }),
                    };
                }
                Some(builder.add(meta, Some(&moved.code), body, exit))
            }
        };
        meta.body.store(island.map_or(at + PATCH as u64, |i| i.body), Ordering::Release);
        let text = f.module.code().text_of(f.addr).ok_or(Skip::NotCode { addr: f.addr })?;
        if let Some(site) = self.sites.get_mut(&f.addr) {
            site.island = island;
            return Ok(());
        }
        let site = Site { function: f.addr, text, spot, meta, island, veneer, form: Form::Plain, entries: Vec::new(), twins };
        self.sites.insert(f.addr, site);
        Ok(())
    }

    /// Makes new plans for functions whose hooks changed.
    fn publish(&mut self, addrs: &[u64]) {
        self.enter_table(addrs);
        for addr in addrs {
            let Some(site) = self.sites.get_mut(addr) else { continue };
            let wants = site.entries.iter().any(|e| usize::from(e.hook.wants_args) > UNTYPED_ARGS);
            site.meta.wants.store(u32::from(wants), Ordering::Relaxed);
            let plan = if site.entries.is_empty() { tramp::empty() } else { Plan::build(&site.entries) };
            let old = site.meta.publish(plan);
            if old != tramp::empty() {
                self.plans.push(Old(old));
            }
        }
    }

    /// Puts compiled-in sites that will be called into the table.
    fn enter_table(&mut self, addrs: &[u64]) {
        let new: Vec<(u64, &'static Meta)> = addrs
            .iter()
            .filter_map(|a| self.sites.get(a))
            .filter(|s| s.spot.shape == Shape::Nop && s.wanted() == Form::Entry && s.form != Form::Entry)
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

    /// Changes the first bytes of functions to what their hooks need. Returns those where that failed.
    fn reform(&mut self, addrs: &[u64]) -> Vec<(u64, Skip)> {
        let mut failed = Vec::new();
        let mut work: Vec<(Change, u64, Form)> = Vec::with_capacity(addrs.len());
        for addr in addrs {
            let Some(site) = self.sites.get(addr) else { continue };
            let form = site.wanted();
            if form == site.form {
                continue;
            }
            match site.change(form) {
                Ok(c) => work.push((c, *addr, form)),
                Err(skip) => failed.push((*addr, skip)),
            }
        }
        work.sort_by_key(|w| w.0.at);
        let (changes, rest): (Vec<Change>, Vec<(u64, Form)>) = work.into_iter().map(|(c, a, f)| (c, (a, f))).unzip();
        for (result, (addr, form)) in patch::apply(&changes).into_iter().zip(rest) {
            let Some(site) = self.sites.get_mut(&addr) else { continue };
            match result {
                Ok(()) => {
                    let called = |f: Form| usize::from(site.spot.shape == Shape::Nop && f == Form::Entry);
                    self.called = self.called + called(form) - called(site.form);
                    site.form = form;
                }
                Err(skip) => failed.push((addr, skip)),
            }
        }
        failed
    }

    fn detach(&mut self, id: u64) -> Result<usize, AttachError> {
        let addrs = self.attachments.remove(&id).ok_or(AttachError::NoAttachment { id })?;
        for addr in &addrs {
            if let Some(site) = self.sites.get_mut(addr) {
                site.entries.retain(|e| e.seq != id);
            }
        }
        self.publish(&addrs);
        self.reform(&addrs);
        let plain = |a: &&u64| self.sites.get(a).is_some_and(|s| s.form == Form::Plain);
        Ok(addrs.iter().filter(plain).count())
    }

    /// Frees what nobody can be reading any more. False when some thread did not leave its hook in time.
    fn collect(&mut self) -> bool {
        if !guard::drain(1 << 16) {
            return false;
        }
        for Old(plan) in self.plans.drain(..) {
            // SAFETY: taken from its Meta by `publish`, and no thread that found it is still inside.
            unsafe { Plan::free(plan) };
        }
        for Old(table) in self.tables.drain(..) {
            // SAFETY: taken out of use by `reserve`, and no thread that found it is still inside.
            unsafe { table::free(table) };
        }
        true
    }
}

fn set(results: &mut [Result<(), Skip>], n: usize, to: Result<(), Skip>) {
    if let Some(r) = results.get_mut(n) {
        *r = to;
    }
}
