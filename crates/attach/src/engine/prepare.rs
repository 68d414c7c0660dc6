//! Giving functions what they lack before they can be hooked: a patch site, islands, a path to an
//! exit trampoline.

use super::site::{NewSite, Origin, Site};
use super::state::State;
use super::targets::{ModuleTargets, Taken, set_result};
use crate::frame::UNTYPED_ARGS;
use crate::hook_list::Meta;
use crate::island::{self, Builder, Part};
use crate::jump::{PATCH, jump};
use crate::patch_site::{PatchSite, Places, Shape};
use crate::signals::gone::Looking;
use crate::sites::Function;
use crate::skip::Skip;
use crate::stack_arguments::{Followed, Follower};
use crate::tramp::entry_points as tramp;
use std::ops::Range;
use std::slice::Iter;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Functions that are looked at before they are given what they lack.
const AT_ONCE: usize = 512;

/// What was found out about one of them.
struct Examined<'a> {
    /// Index among the targets.
    n: usize,
    f: &'a Function,
    /// The executable range that it is in.
    text: Range<u64>,
    /// Where to change it, if it was never hooked before.
    patch_site: Option<PatchSite>,
    /// The exit trampoline it needs.
    exit: Option<usize>,
}

impl State {
    /// Looks at the code of functions of one module and gives them what they lack: a patch site,
    /// islands, a path to an exit trampoline. `used`: what is mapped, as far as known, sorted.
    pub(super) fn prepare(
        &mut self,
        targets: &ModuleTargets<'_>,
        used: &mut Vec<Range<u64>>,
        results: &mut [Result<(), Skip>],
        taken: &mut Taken,
    ) {
        let looking = Looking::begin();
        let islands = |f: &Function| if f.is_inside() { island::INSIDE } else { 1 };
        let count = targets.items.iter().map(|(_, f)| islands(f)).sum();
        let mut builder = match Builder::new(&targets.module.file().span, count, used) {
            Ok(b) => b,
            Err(skip) => {
                return targets
                    .items
                    .iter()
                    .for_each(|(n, _)| set_result(results, *n, Err(skip.clone())));
            }
        };
        let mut origins: Vec<Arc<Origin>> = Vec::new();
        // What functions had in common that were hooked before, and what they have now.
        let mut joined = None;
        let mut followed = Followed::default();
        let mut places = Places::of(targets.items.iter().map(|(_, f)| *f));
        // For each of them that was given what it lacks, in order: whether it is new.
        let mut added: Vec<bool> = Vec::with_capacity(targets.items.len());
        for some in targets.items.chunks(AT_ONCE) {
            let module = targets.module;
            let examined = self.examine(targets, some, results, &mut places, &mut followed, taken);
            let new = examined.iter().filter(|item| item.patch_site.is_some());
            let mut metas = Meta::for_all(new.map(|item| item.f.addr), UNTYPED_ARGS as u64).iter();
            for item in examined {
                let n = item.n;
                let begins = |origin: &Arc<Origin>| origin.begins_at(item.text.start);
                if !origins.last().is_some_and(begins) {
                    // The one of now is the last.
                    match origins.iter().position(begins) {
                        Some(at) => {
                            let origin = origins.remove(at);
                            origins.push(origin);
                        }
                        None => {
                            let (text, islands) = (item.text.clone(), builder.range());
                            origins.push(Arc::new(Origin::new(module, text, islands)));
                        }
                    }
                }
                let Some(origin) = origins.last() else { continue };
                match self.add_site(&mut builder, origin, &mut joined, &mut metas, item) {
                    Ok(new) => added.push(new),
                    Err(skip) => set_result(results, n, Err(skip)),
                }
            }
        }
        if added.is_empty() {
            return builder.abandon();
        }
        let finished = builder.finish();
        if finished.is_err() || looking.is_lost() {
            let is_added = |n: usize| results.get(n).is_some_and(Result::is_ok);
            let given: Vec<_> = targets.items.iter().filter(|(n, _)| is_added(*n)).collect();
            for ((n, f), new) in given.into_iter().zip(added) {
                let addr = f.addr;
                if new {
                    self.sites.remove(&addr);
                } else if let Some(site) = self.sites.get_mut(&addr) {
                    site.forget_exit();
                }
                let why = finished.clone().err().unwrap_or(Skip::NotCode { addr });
                set_result(results, *n, Err(why));
            }
        }
    }

    /// Looks at the code of some of the targets in a module.
    fn examine<'t>(
        &self,
        all: &ModuleTargets<'t>,
        targets: &[(usize, &'t Function)],
        results: &mut [Result<(), Skip>],
        places: &mut Places<'_>,
        followed: &mut Followed,
        taken: &mut Taken,
    ) -> Vec<Examined<'t>> {
        let originals = |range: &Range<u64>| self.originals(range);
        let code = all.module.code();
        let mut follower = Follower::new(code, &originals, followed);
        let mut examined = Vec::with_capacity(targets.len());
        for &(n, f) in targets {
            let around = code.around(f.addr).ok_or(Skip::NotCode { addr: f.addr });
            let item = around.and_then(|(text, next)| {
                let patch_site = if self.sites.contains_key(&f.addr) {
                    None
                } else {
                    let site = PatchSite::find(f, &text, next, &originals, places)?;
                    self.check_overlap(f, &site)?;
                    taken.take(&site)?;
                    Some(site)
                };
                let exit = if all.exits { Some(returns(f, next, &mut follower)?) } else { None };
                Ok(Examined { n, f, text, patch_site, exit })
            });
            match item {
                Ok(item) => examined.push(item),
                Err(skip) => set_result(results, n, Err(skip)),
            }
        }
        examined
    }

    /// Makes what a function lacks; a new one gets the next of the metas. True when the function is
    /// new.
    fn add_site(
        &mut self,
        builder: &mut Builder,
        origin: &Arc<Origin>,
        joined: &mut Option<(Arc<Origin>, Arc<Origin>)>,
        metas: &mut Iter<'static, Meta>,
        item: Examined<'_>,
    ) -> Result<bool, Skip> {
        let f = item.f;
        let Some((patch_site, meta)) = item.patch_site.and_then(|p| Some((p, metas.next()?)))
        else {
            if let (Some(site), Some(exit)) = (self.sites.get_mut(&f.addr), item.exit) {
                let at = builder.exit(site.meta, exit);
                // Those that were prepared together before share what they have in common again.
                let known = joined.as_ref().filter(|(before, _)| Arc::ptr_eq(before, &site.origin));
                let joint = known.map_or_else(
                    || Arc::new(site.origin.with_exits(origin.exits.clone())),
                    |(_, joint)| Arc::clone(joint),
                );
                *joined = Some((Arc::clone(&site.origin), Arc::clone(&joint)));
                if !site.set_exit(at, joint) {
                    return Err(Skip::NoRoom);
                }
            }
            return Ok(false);
        };
        let at = patch_site.at;
        let mut relocation_map = [None; PATCH];
        let (entry, body);
        let mut head = None;
        match patch_site.shape {
            Shape::Nop => {
                for (t, b) in relocation_map.iter_mut().zip(patch_site.boundaries()).skip(1) {
                    *t = b.then_some(0);
                }
                (entry, body) = (builder.veneer(), at + PATCH as u64);
            }
            Shape::Inline => {
                let to = builder.next_body();
                // Which reasons count from.
                let start = f.within.as_ref().map_or(f.addr, |within| within.range.start);
                let moved = patch_site.relocate(start, to, std::mem::take(&mut self.moved))?;
                for (n, (t, b)) in
                    relocation_map.iter_mut().zip(patch_site.boundaries()).enumerate().skip(1)
                {
                    *t = moved.map.get(n).copied().flatten().filter(|_| b);
                    if b && t.is_none() {
                        return Err(Skip::Unmovable {
                            offset: at + n as u64 - start,
                            why: "it was rewritten",
                        });
                    }
                }
                if f.is_inside() {
                    let island = add_inside(builder, meta, &patch_site, start, f.addr)?;
                    (entry, body, head) = (island.entry, island.body, Some(island.head));
                    let place = self.inside.partition_point(|known| *known < (at, f.addr));
                    self.inside.insert(place, (at, f.addr));
                } else {
                    (entry, body) = builder.entry(meta, &moved.code);
                }
                self.moved = moved.code;
            }
        }
        self.has_calls |= patch_site.shape == Shape::Nop;
        let exit = item.exit.map_or(0, |exit| builder.exit(meta, exit));
        meta.body.store(body, Ordering::Release);
        let origin = Arc::clone(origin);
        let new = NewSite { origin, patch_site, meta, entry, exit, head, relocation_map };
        self.sites.insert(f.addr, Box::new(Site::new(new).ok_or(Skip::NoRoom)?));
        Ok(true)
    }
}

/// Makes the island of the place at `addr` inside a function.
fn add_inside(
    builder: &mut Builder,
    meta: &'static Meta,
    site: &PatchSite,
    start: u64,
    addr: u64,
) -> Result<island::Inside, Skip> {
    let (event, len) = (usize::from(site.event), site.count());
    builder.inside(meta, event > 0, |part, to| {
        let some = match part {
            Part::All => return Ok(site.relocate(start, to, Vec::new())?.code),
            Part::After if event == len => {
                return jump(0xe9, to, addr).map(Vec::from).ok_or(Skip::NoRoom);
            }
            Part::After => site.part(event..len),
            Part::Before => site.part(0..event),
        };
        let mut code = some.relocate(start, to, Vec::new())?.code;
        if part == Part::Before {
            // Nothing before the place leads away, so there is a jump at the end.
            code.truncate(code.len().saturating_sub(PATCH));
        }
        Ok(code)
    })
}

/// Finds the exit trampoline that copies what the function needs. `next`: where the next one begins.
fn returns(f: &Function, next: u64, follower: &mut Follower<'_, '_>) -> Result<usize, Skip> {
    let used = follower.follow(&(f.addr..(f.addr + f.size.max(1)).min(next)));
    if used.return_address {
        return Err(Skip::NoExit { why: "uses its own return address" });
    }
    if used.writes_caller {
        return Err(Skip::NoExit { why: "keeps data in its caller's frame" });
    }
    let fits = tramp::EXITS.iter().find(|(words, _)| *words >= used.words);
    fits.map(|(_, index)| *index)
        .ok_or(Skip::NoExit { why: "takes more than 4 KiB of arguments on the stack" })
}
