//! What the engine knows, and what attaching and detaching do to it.

use super::Group;
use super::site::{Form, Site};
use super::targets::{ModuleTargets, Taken, cut_by, cuts, near, set_result};
use crate::addresses::{AddressMap, AddressSet};
use crate::calls_in_progress;
use crate::deny;
use crate::frame::{MAX_ARGS, MAX_SESSIONS, UNTYPED_ARGS};
use crate::hook::{Hook, Position};
use crate::hook_list::{AttachedHook, Meta};
use crate::hook_lists::HookLists;
use crate::jump::PATCH;
use crate::live::{self, vacancy::is_vacant};
use crate::patch;
use crate::patch_site::{MOST_MOVED, PatchSite, Shape};
use crate::per_thread::quiescence;
use crate::sites::{Function, Module};
use crate::skip::{AttachError, Skip};
use crate::table::{self, Table};
use std::collections::BTreeMap;
use std::ops::{Range, RangeInclusive};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

#[derive(Debug)]
pub(super) struct State {
    last: u64,
    /// Every function that was ever hooked, by address.
    pub(super) sites: AddressMap<Box<Site>>,
    /// Those of them that are inside functions: the address of the bytes to change, and their own;
    /// sorted.
    pub(super) inside: Vec<(u64, u64)>,
    /// Sites that are known no more, of code that may still be there: the islands, by where the moved
    /// instructions ended.
    former: BTreeMap<u64, Vec<Range<u64>>>,
    attachments: AddressMap<Vec<u64>>,
    /// Those of them that send a function's calls elsewhere.
    pub(super) diversions: Vec<u64>,
    table: table::Writer,
    /// Functions reached through the table.
    pub(super) called: usize,
    /// There is, or was, a function that may be reached through it.
    pub(super) has_calls: bool,
    hook_lists: HookLists,
    /// Taken out of use, perhaps still being read.
    tables: Vec<Old<Table>>,
    pub(super) limbo: live::LimboLists,
    /// Memory for instructions that are being moved.
    pub(super) moved: Vec<u8>,
}

/// What [`State::detach`] did.
pub(super) struct Removed {
    /// Functions that are as they were.
    pub(super) restored: usize,
    /// Functions whose first bytes are not, but lead past the hooks.
    pub(super) bypassed: usize,
    /// Functions that had an exit hook of the attachment.
    pub(super) exits: Vec<(u64, &'static Meta)>,
}

/// In a limbo list: a pointer that waits until no thread reads through it.
#[derive(Debug)]
struct Old<T>(*mut T);

// SAFETY: only the holder of the engine's lock uses it.
unsafe impl<T> Send for Old<T> {}

impl State {
    pub(super) fn new(table: table::Writer) -> Self {
        Self {
            last: 0,
            sites: AddressMap::default(),
            inside: Vec::new(),
            former: BTreeMap::new(),
            attachments: AddressMap::default(),
            diversions: Vec::new(),
            table,
            called: 0,
            has_calls: false,
            hook_lists: HookLists::default(),
            tables: Vec::new(),
            limbo: live::LimboLists::default(),
            moved: Vec::new(),
        }
    }

    /// Attaches, and gives the attachment a number. `mapped`: what is mapped, if somebody has just looked.
    pub(super) fn attach(
        &mut self,
        groups: &[Group<'_>],
        mut mapped: patch::Looked,
    ) -> (u64, Vec<Result<(), Skip>>) {
        self.last += 1;
        let id = self.last;
        let count = groups.iter().map(|group| group.targets.len()).sum();
        for group in groups {
            for (f, _) in group.targets {
                self.forget(f.addr, Some(&f.module), &mut mapped);
            }
        }
        let mut results: Vec<Result<(), Skip>> = Vec::with_capacity(count);
        // As lists of functions usually are.
        let distinct = match groups {
            [only] => only.targets.is_sorted_by(|(a, _), (b, _)| a.addr < b.addr),
            _ => false,
        };
        let capacity = if distinct { 0 } else { count };
        let mut seen = AddressSet::with_capacity_and_hasher(capacity, Default::default());
        let any_inside = |group: &Group<'_>| group.targets.iter().any(|(f, _)| f.is_inside());
        let inside = !self.inside.is_empty() || groups.iter().any(any_inside);
        let mut taken = Taken::new(inside);
        let mut by_module: Vec<ModuleTargets<'_>> = Vec::new();
        for Group { targets, hooks } in groups {
            let exits = hooks.iter().any(|h| h.position.needs_exit());
            let first = results.len();
            for (f, _) in *targets {
                let n = results.len();
                let site = self.sites.get(&f.addr).map(Box::as_ref);
                results.push(if distinct || seen.insert(f.addr) {
                    self.admit(f, site, hooks, &mut taken)
                } else {
                    Err(Skip::Duplicate)
                });
                let known = site.is_some_and(|s| !exits || s.has_exit());
                if known || results.last().is_some_and(Result::is_err) {
                    continue;
                }
                let is_mapped = |mapped: &mut patch::Looked| {
                    let mapped = mapped.get_or_insert_with(patch::mapped);
                    mapped.as_ref().is_some_and(|mapped| f.module.is_within(&mapped.text))
                };
                let is_its = |t: &&mut ModuleTargets<'_>| {
                    Arc::ptr_eq(t.module, &f.module) && t.exits == exits
                };
                match by_module.iter_mut().find(is_its) {
                    Some(known) => known.items.push((n, f)),
                    // Its code is going to be read.
                    None if !is_mapped(&mut mapped) => {
                        set_result(&mut results, n, Err(Skip::NotCode { addr: f.addr }));
                    }
                    None => {
                        // Those of a module come together.
                        let rest = targets.get(n - first..).unwrap_or_default().iter();
                        let own = rest.take_while(|(g, _)| Arc::ptr_eq(&g.module, &f.module));
                        let mut items = Vec::with_capacity(own.count());
                        items.push((n, *f));
                        by_module.push(ModuleTargets { module: &f.module, exits, items });
                    }
                }
            }
        }
        self.sites.reserve(by_module.iter().map(|module| module.items.len()).sum());
        let mut used = mapped.flatten().map(|mapped| mapped.all).unwrap_or_default();
        for targets in &by_module {
            self.prepare(targets, &mut used, &mut results, &mut taken);
            targets.module.keep_code();
        }
        let mut chosen = Vec::with_capacity(count);
        let mut done = results.iter();
        for Group { targets, hooks } in groups {
            let hooks: Vec<Arc<Hook>> = hooks.iter().copied().map(Arc::new).collect();
            for ((f, cookie), result) in targets.iter().zip(&mut done) {
                if result.is_err() {
                    continue;
                }
                let Some(site) = self.sites.get_mut(&f.addr) else { continue };
                let known = f.nr_args.or(site.nr_args.filter(|_| !site.entries.is_empty()));
                if known != site.nr_args {
                    // Calls in progress keep the number that is in their frames.
                    site.nr_args = known;
                    let n = known.map_or(UNTYPED_ARGS, |n| usize::from(n).min(MAX_ARGS));
                    site.meta.nr_args.store(n as u64, Ordering::Relaxed);
                }
                for hook in &hooks {
                    let hook = Arc::clone(hook);
                    site.entries.push(AttachedHook { hook, cookie: *cookie, seq: id });
                }
                chosen.push(f.addr);
            }
        }
        let failed = self.publish_and_repatch(&chosen);
        if !failed.is_empty() {
            let addrs: Vec<u64> = failed.iter().map(|f| f.0).collect();
            let failed: AddressMap<Skip> = failed.into_iter().collect();
            let mut results = results.iter_mut();
            for group in groups {
                for ((f, _), result) in group.targets.iter().zip(&mut results) {
                    if let (Ok(()), Some(skip)) = (&result, failed.get(&f.addr)) {
                        *result = Err(skip.clone());
                    }
                }
            }
            for addr in &addrs {
                self.sites.get_mut(addr).map(|s| s.remove(id));
            }
            self.publish_and_repatch(&addrs);
            chosen.retain(|a| !failed.contains_key(a));
        }
        self.attachments.insert(id, chosen);
        let mut rest = results.iter_mut();
        for group in groups {
            for ((f, _), result) in group.targets.iter().zip(&mut rest) {
                if let Err(skip) = result {
                    skip.place_in_file(f.module.bias);
                }
            }
        }
        (id, results)
    }

    /// Drops what is known about a function that is gone, with the library it was in, or that is another
    /// now: of the module that is given, if one is. `mapped`: what is mapped, once somebody has looked;
    /// where nobody can, nothing is dropped.
    fn forget(&mut self, addr: u64, module: Option<&Arc<Module>>, mapped: &mut patch::Looked) {
        let Some(site) = self.sites.get(&addr) else { return };
        let Some(patch::Mapped { text, .. }) = mapped.get_or_insert_with(patch::mapped) else {
            return;
        };
        let at = site.extent();
        let mapped = text
            .get(text.partition_point(|r| r.end <= at.start))
            .is_some_and(|r| r.start <= at.start && at.end <= r.end);
        // What is around the bytes counts as well: a branch into them, for one.
        let is_other = site.form == Form::Plain && module.is_some_and(|m| !site.is_of(m));
        // SAFETY: all of them are mapped.
        let is_there = mapped && unsafe { site.is_there() };
        if is_there && !is_other {
            return;
        }
        if is_there {
            self.former.entry(at.end).or_default().push(site.own_island());
        }
        if let Some(gone) = self.sites.remove(&addr) {
            self.called -=
                usize::from(gone.patch_site.shape == Shape::Nop && gone.form == Form::Entry);
            self.hook_lists.withdraw(gone.meta);
            self.inside.retain(|(_, place)| *place != addr);
        }
    }

    /// Decides whether a function can take the hooks, as far as that can be told without looking at
    /// its code. `site`: what is known of it.
    fn admit(
        &self,
        f: &Function,
        site: Option<&Site>,
        hooks: &[Hook],
        taken: &mut Taken,
    ) -> Result<(), Skip> {
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
        let diverts = hooks.iter().any(Hook::is_of_diversion);
        let mut entries = site.iter().flat_map(|s| s.entries.iter());
        if entries.any(|e| diverts || e.hook.is_of_diversion()) {
            return Err(Skip::Denied { why: "unwinders find the tracer's own code by it" });
        }
        match site {
            None if diverts => {}
            None => deny::entry(f)?,
            Some(site) => {
                if site.form == Form::Plain {
                    self.check_overlap(f, &site.patch_site)?;
                }
                taken.take(&site.patch_site)?;
            }
        }
        if hooks.iter().any(|h| h.position.needs_exit()) { deny::exit(f) } else { Ok(()) }
    }

    /// Refuses a function or place whose five bytes overlap with others that are changed now, or
    /// have the end of instructions in their middle that were moved for others: a thread may sleep
    /// among those and go on where they end. So does its own end in the middle of others' bytes.
    pub(super) fn check_overlap(&self, f: &Function, new: &PatchSite) -> Result<(), Skip> {
        let (at, end) = (new.at, new.end());
        for island in self.former.range(cut_by(at)).flat_map(|(_, islands)| islands) {
            if !is_vacant(island) {
                return Err(Skip::Occupied { at: island.start });
            }
        }
        let near_by = self.inside_at(at.saturating_sub(MOST_MOVED)..=end);
        let start = f.within.as_ref().map(|within| within.range.start);
        let others = near_by.chain(start).filter(|addr| *addr != f.addr);
        for site in others.filter_map(|addr| self.sites.get(&addr)) {
            let other = &site.patch_site;
            let module = &f.module;
            let mapped = module.code().text_of(other.at).is_some_and(|r| other.end() <= r.end);
            // SAFETY: code of the target's module, which was found mapped.
            if !mapped || !(site.is_of(module) || unsafe { site.is_there() }) {
                // A closed library's.
                continue;
            }
            let ends_in_it = cuts(at, other.end());
            let touches = ends_in_it || near(at).contains(&other.at) || cuts(other.at, end);
            if touches && site.is_changed() {
                return Err(Skip::Overlap { at: other.at });
            }
            if ends_in_it && !is_vacant(&site.own_island()) {
                return Err(Skip::Occupied { at: other.at });
            }
        }
        Ok(())
    }

    /// The places inside functions whose bytes to change begin in a range.
    fn inside_at(&self, range: RangeInclusive<u64>) -> impl Iterator<Item = u64> {
        let first = self.inside.partition_point(|(at, _)| at < range.start());
        let all = self.inside.get(first..).unwrap_or_default().iter();
        all.take_while(move |(at, _)| at <= range.end()).map(|(_, addr)| *addr)
    }

    /// What the linker left where a function is changed now, at its start and inside.
    pub(super) fn originals(&self, range: &Range<u64>) -> Vec<(u64, [u8; PATCH])> {
        let before = PATCH as u64 - 1;
        let inside = self.inside_at(range.start.saturating_sub(before)..=range.end);
        let all = std::iter::once(range.start).chain(inside);
        all.filter_map(|addr| {
            let site = self.sites.get(&addr).filter(|s| s.is_changed())?;
            Some((site.patch_site.at, site.patch_site.original()))
        })
        .collect()
    }

    /// Makes new hook lists for functions whose hooks changed.
    pub(super) fn publish(&mut self, addrs: &[u64]) {
        self.enter_table(addrs);
        self.publish_lists(addrs);
    }

    /// The same for functions that are in the table, if they shall be.
    pub(super) fn publish_lists(&mut self, addrs: &[u64]) {
        for addr in addrs {
            let Some(site) = self.sites.get_mut(addr) else { continue };
            let wants = site.entries.iter().any(|e| usize::from(e.hook.wants_args) > UNTYPED_ARGS);
            site.meta.wants.store(u32::from(wants), Ordering::Relaxed);
            self.hook_lists.publish(site.meta, &site.entries, &mut site.cookies);
        }
    }

    /// Puts compiled-in sites that will be called into the table.
    pub(super) fn enter_table(&mut self, addrs: &[u64]) {
        if !self.has_calls {
            return;
        }
        let new: Vec<(u64, &'static Meta)> = addrs
            .iter()
            .filter_map(|a| self.sites.get(a))
            .filter(|s| {
                s.patch_site.shape == Shape::Nop
                    && s.wanted() == Form::Entry
                    && s.form != Form::Entry
            })
            .map(|s| (s.patch_site.at + PATCH as u64, s.meta))
            .collect();
        if new.is_empty() {
            return;
        }
        let live = |s: &&Site| s.patch_site.shape == Shape::Nop && s.form == Form::Entry;
        let mut keys = self
            .sites
            .values()
            .map(Box::as_ref)
            .filter(live)
            .map(|s| (s.patch_site.at + PATCH as u64, s.meta));
        let old = self.table.reserve(new.len(), &mut keys, self.called);
        self.tables.extend(old.map(Old));
        for (key, meta) in new {
            self.table.insert(key, meta);
        }
    }

    /// Takes an attachment away.
    pub(super) fn attachments(&self) -> Vec<u64> {
        self.attachments.keys().filter(|id| !self.diversions.contains(id)).copied().collect()
    }

    pub(super) fn detach(&mut self, id: u64) -> Result<Removed, AttachError> {
        let addrs = self.attachments.remove(&id).ok_or(AttachError::NoAttachment { id })?;
        self.lead_back(id, &addrs);
        let mut mapped = None;
        addrs.iter().for_each(|addr| self.forget(*addr, None, &mut mapped));
        let has_exit =
            |s: &&Site| s.entries.iter().any(|e| e.seq == id && e.hook.position.needs_exit());
        let sites = addrs.iter().filter_map(|addr| Some((*addr, self.sites.get(addr)?.as_ref())));
        let exits = sites.filter(|(_, s)| has_exit(s)).map(|(addr, s)| (addr, s.meta)).collect();
        // The address may be another function's by now, which never had these hooks.
        let addrs: Vec<u64> = addrs
            .into_iter()
            .filter(|addr| self.sites.get_mut(addr).is_some_and(|s| s.remove(id)))
            .collect();
        self.publish(&addrs);
        // Where nobody can look at what is mapped, the calls stay and find nothing to run.
        if !matches!(mapped, Some(None)) {
            self.repatch(&addrs);
        }
        let count = |f: fn(&Site) -> bool| {
            addrs.iter().filter(|a| self.sites.get(a).is_some_and(|s| f(s))).count()
        };
        Ok(Removed {
            restored: count(|s| s.form == Form::Plain),
            bypassed: count(Site::is_bypassed),
            exits,
        })
    }

    /// Takes hooks out of a function.
    pub(super) fn detach_func(&mut self, addr: u64, is_meant: &dyn Fn(*const ()) -> bool) -> bool {
        let Some(site) = self.sites.get_mut(&addr) else { return false };
        site.entries.retain(|e| !is_meant(e.hook.data));
        self.publish(&[addr]);
        self.repatch(&[addr]).is_empty()
    }

    /// Tells whether a call of any function is in progress that returns through a trampoline.
    pub(super) fn has_calls_in_progress(&mut self) -> bool {
        // Who is on the way into a trampoline has no frame yet.
        if !self.collect() {
            return true;
        }
        let exits = self.sites.values().filter(|site| site.has_exit());
        let mut metas: Vec<u64> = exits.map(|site| ptr::from_ref(site.meta) as u64).collect();
        metas.sort_unstable();
        calls_in_progress::any(&metas)
    }

    /// Tells whether nobody is in a hook that was taken away before, nor in a call of the functions
    /// that returns through a trampoline only because of that.
    pub(super) fn is_quiescent(&mut self, exits: &[(u64, &'static Meta)]) -> bool {
        if !self.collect() {
            return false;
        }
        let hooked = |addr: &u64| self.sites.get(addr).is_some_and(|s| s.wanted() == Form::Exit);
        let unhooked = exits.iter().filter(|(addr, _)| !hooked(addr));
        let mut metas: Vec<u64> = unhooked.map(|(_, meta)| ptr::from_ref(*meta) as u64).collect();
        metas.sort_unstable();
        !calls_in_progress::any(&metas)
    }

    /// Frees what nobody can be reading any more, if there is anything.
    pub(super) fn collect_limbo(&mut self) {
        if self.hook_lists.has_retired() || !self.tables.is_empty() {
            self.collect();
        }
    }

    /// Frees what nobody can be reading any more. False when some thread did not leave its hook in
    /// time.
    pub(super) fn collect(&mut self) -> bool {
        if !quiescence::drain(1 << 16) {
            return false;
        }
        // SAFETY: no thread is inside hooks that found an old hook list.
        unsafe { self.hook_lists.drained() };
        for Old(table) in self.tables.drain(..) {
            // SAFETY: taken out of use by `reserve`, and no thread that found it is still inside.
            unsafe { table::free(table) };
        }
        true
    }

    /// Drops functions that lie in none of `modules`: their library was closed.
    pub(super) fn forget_closed(&mut self, modules: &[Arc<Module>]) {
        let lives = |a: u64| modules.iter().any(|m| m.text.iter().any(|t| t.contains(&a)));
        let gone: Vec<u64> = self.sites.keys().copied().filter(|a| !lives(*a)).collect();
        for addr in &gone {
            if let Some(site) = self.sites.get_mut(addr) {
                site.entries.clear();
            }
        }
        self.publish(&gone);
        for addr in gone {
            self.inside.retain(|(_, place)| *place != addr);
            if let Some(site) = self.sites.remove(&addr)
                && site.patch_site.shape == Shape::Nop
                && site.form == Form::Entry
            {
                self.called -= 1;
            }
        }
    }
}
