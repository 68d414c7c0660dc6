//! Giving functions what they lack before they can be hooked: a patch site, islands, a path to an
//! exit trampoline.

use super::site::{Form, Site};
use super::state::State;
use super::targets::{ModuleTargets, Taken, set_result};
use crate::frame::UNTYPED_ARGS;
use crate::hook_list::Meta;
use crate::hook_lists::CookieWords;
use crate::island::{self, Builder, Part};
use crate::jump::{PATCH, jump};
use crate::patch_site::{PatchSite, Shape};
use crate::signals::gone::Looking;
use crate::sites::Function;
use crate::skip::Skip;
use crate::stack_arguments::Follower;
use crate::tramp::entry_points as tramp;
use std::ops::Range;
use std::slice::Iter;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What was found out about one of them.
struct Examined<'a> {
    /// Index among the targets.
    n: usize,
    f: &'a Function,
    /// Where to change it, if it was never hooked before.
    patch_site: Option<PatchSite>,
    /// The exit trampoline it needs.
    exit: Option<usize>,
}

impl State {
    /// Looks at the code of functions of one module and gives them what they lack: a patch site,
    /// islands, a path to an exit trampoline.
    pub(super) fn prepare(
        &mut self,
        targets: &ModuleTargets<'_>,
        results: &mut [Result<(), Skip>],
        exits: bool,
        taken: &mut Taken,
    ) {
        let looking = Looking::begin();
        let mut examined: Vec<Examined<'_>> = Vec::with_capacity(targets.items.len());
        {
            let originals = |range: &Range<u64>| self.originals(range);
            let mut follower = Follower::new(targets.module.code(), &originals);
            for &(n, f) in &targets.items {
                let patch_site = if self.sites.contains_key(&f.addr) {
                    Ok(None)
                } else {
                    PatchSite::find(f, &originals).and_then(|site| {
                        self.check_overlap(f, &site)?;
                        taken.take(&site)?;
                        Ok(Some(site))
                    })
                };
                let exit = if exits { returns(f, &mut follower).map(Some) } else { Ok(None) };
                match patch_site
                    .and_then(|patch_site| Ok(Examined { n, f, patch_site, exit: exit? }))
                {
                    Ok(item) => examined.push(item),
                    Err(skip) => set_result(results, n, Err(skip)),
                }
            }
        }
        if looking.is_lost() {
            for item in examined.drain(..) {
                set_result(results, item.n, Err(Skip::NotCode { addr: item.f.addr }));
            }
        }
        if examined.is_empty() {
            return;
        }
        let islands = |item: &Examined<'_>| if item.f.is_inside() { island::INSIDE } else { 1 };
        let count = examined.iter().map(islands).sum();
        let mut builder = match Builder::new(&targets.module.file().span, count) {
            Ok(b) => b,
            Err(skip) => {
                return examined.iter().for_each(|i| set_result(results, i.n, Err(skip.clone())));
            }
        };
        let new = examined.iter().filter(|item| item.patch_site.is_some());
        let mut metas = Meta::for_all(new.map(|item| item.f.addr), UNTYPED_ARGS as u64).iter();
        let mut added = Vec::with_capacity(examined.len());
        for item in examined {
            let (n, addr) = (item.n, item.f.addr);
            match self.add_site(&mut builder, &mut metas, item) {
                Ok(new) => added.push((n, addr, new)),
                Err(skip) => set_result(results, n, Err(skip)),
            }
        }
        match builder.finish() {
            Ok(()) => {}
            Err(skip) => {
                for (n, addr, new) in added {
                    if new {
                        self.sites.remove(&addr);
                    } else if let Some(site) = self.sites.get_mut(&addr) {
                        site.exit = 0;
                    }
                    set_result(results, n, Err(skip.clone()));
                }
            }
        }
    }

    /// Makes what a function lacks; a new one gets the next of the metas. True when the function is
    /// new.
    fn add_site(
        &mut self,
        builder: &mut Builder,
        metas: &mut Iter<'static, Meta>,
        item: Examined<'_>,
    ) -> Result<bool, Skip> {
        let f = item.f;
        let Some((mut patch_site, meta)) = item.patch_site.and_then(|p| Some((p, metas.next()?)))
        else {
            if let (Some(site), Some(exit)) = (self.sites.get_mut(&f.addr), item.exit) {
                site.exit = builder.exit(site.meta, exit);
                site.exit_islands = builder.range();
            }
            return Ok(false);
        };
        let at = patch_site.at;
        let text = f.module.code().text_of(f.addr).ok_or(Skip::NotCode { addr: f.addr })?;
        let mut relocation_map = [0; PATCH];
        let (entry, body);
        let mut head = None;
        match patch_site.shape {
            Shape::Nop => {
                for (t, b) in relocation_map.iter_mut().zip(patch_site.boundaries()).skip(1) {
                    *t = if b { at + PATCH as u64 } else { 0 };
                }
                (entry, body) = (builder.veneer(), at + PATCH as u64);
            }
            Shape::Inline => {
                let to = builder.next_body();
                // Which reasons count from.
                let start = f.within.as_ref().map_or(f.addr, |within| within.range.start);
                let moved = patch_site.relocate(start, to)?;
                for (n, (t, b)) in
                    relocation_map.iter_mut().zip(patch_site.boundaries()).enumerate().skip(1)
                {
                    let relocated = moved.map.get(n).copied().flatten();
                    *t = match (b, relocated) {
                        (false, _) => 0,
                        (true, Some(o)) => to + u64::from(o),
                        (true, None) => {
                            return Err(Skip::Unmovable {
                                offset: at + n as u64 - start,
                                why: "it was rewritten",
                            });
                        }
                    };
                }
                if f.is_inside() {
                    let island = add_inside(builder, meta, &patch_site, start, f.addr)?;
                    let by = island.body.wrapping_sub(to);
                    for address in relocation_map.iter_mut().filter(|address| **address != 0) {
                        *address = address.wrapping_add(by);
                    }
                    (entry, body, head) = (island.entry, island.body, Some(island.head));
                    let place = self.inside.partition_point(|known| *known < (at, f.addr));
                    self.inside.insert(place, (at, f.addr));
                } else {
                    (entry, body) = builder.entry(meta, &moved.code);
                }
            }
        }
        let exit = item.exit.map_or(0, |exit| builder.exit(meta, exit));
        meta.body.store(body, Ordering::Release);
        // They are in the island now; there may be a million functions.
        patch_site.moved = Vec::new();
        self.sites.insert(
            f.addr,
            Box::new(Site {
                module: Arc::downgrade(&f.module),
                text,
                patch_site,
                meta,
                nr_args: None,
                entry,
                exit,
                islands: builder.range(),
                head,
                exit_islands: builder.range(),
                form: Form::Plain,
                aim: Form::Plain,
                entries: Vec::new(),
                cookies: CookieWords::default(),
                relocation_map,
            }),
        );
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
    let (event, len) = (site.event, site.moved.len());
    builder.inside(meta, event > 0, |part, to| {
        let some = match part {
            Part::All => return Ok(site.relocate(start, to)?.code),
            Part::After if event == len => {
                return jump(0xe9, to, addr).map(Vec::from).ok_or(Skip::NoRoom);
            }
            Part::After => site.part(event..len),
            Part::Before => site.part(0..event),
        };
        let mut code = some.relocate(start, to)?.code;
        if part == Part::Before {
            // Nothing before the place leads away, so there is a jump at the end.
            code.truncate(code.len().saturating_sub(PATCH));
        }
        Ok(code)
    })
}

/// Finds the exit trampoline that copies what the function needs.
fn returns(f: &Function, follower: &mut Follower<'_>) -> Result<usize, Skip> {
    let end = f.module.code().next_start(f.addr);
    let used = follower.follow(&(f.addr..(f.addr + f.size.max(1)).min(end)));
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
