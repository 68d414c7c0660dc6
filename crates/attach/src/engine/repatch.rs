//! Making calls of functions go where their hooks need them.

use super::site::{Form, Site};
use super::state::State;
use crate::jump::PATCH;
use crate::patch;
use crate::patch::change::{Change, current, in_one_word};
use crate::patch_site::Shape;
use crate::skip::Skip;

/// Changes that are made one part after the other.
const AT_ONCE: usize = 2048;

/// Changes, and of what each is: a function's address, and the form that its bytes get.
#[derive(Default)]
pub(super) struct Work {
    changes: Vec<Change>,
    of: Vec<(u64, Option<Form>)>,
}

impl Work {
    fn with_capacity(changes: usize) -> Self {
        Self { changes: Vec::with_capacity(changes), of: Vec::with_capacity(changes) }
    }

    pub(super) fn push(&mut self, change: Change, addr: u64, form: Option<Form>) {
        self.changes.push(change);
        self.of.push((addr, form));
    }

    /// By the address of the change, as those of a module's functions usually are.
    fn sorted(self) -> Self {
        if self.changes.is_sorted_by_key(|change| change.at) {
            return self;
        }
        let mut all: Vec<_> = self.changes.into_iter().zip(self.of).collect();
        all.sort_by_cached_key(|(change, _)| change.at);
        let (changes, of) = all.into_iter().unzip();
        Self { changes, of }
    }
}

/// Where nobody is stopped, a part of the changes is made after the other: all of a million would take
/// memory that was never touched before, and what is known of a function is still near.
fn parts(addrs: &[u64], alone: bool) -> std::slice::Chunks<'_, u64> {
    addrs.chunks(if alone { AT_ONCE } else { addrs.len().max(1) })
}

impl FromIterator<(Change, u64)> for Work {
    /// Changes of what no function's form says.
    fn from_iter<T: IntoIterator<Item = (Change, u64)>>(changes: T) -> Self {
        let mut out = Self::default();
        changes.into_iter().for_each(|(change, addr)| out.push(change, addr, None));
        out
    }
}

impl State {
    /// Makes calls of functions go where their hooks need them: by changing the first bytes, or the
    /// island that they lead to. Returns those where that failed.
    pub(super) fn repatch(&mut self, addrs: &[u64]) -> Vec<(u64, Skip)> {
        let alone = patch::is_alone();
        parts(addrs, alone).flat_map(|part| self.repatch_part(part, alone)).collect()
    }

    /// Makes new hook lists for functions whose hooks changed, and has calls of them go where these need
    /// them. Returns those where that failed.
    pub(super) fn publish_and_repatch(&mut self, addrs: &[u64]) -> Vec<(u64, Skip)> {
        self.enter_table(addrs);
        let (mut failed, alone) = (Vec::new(), patch::is_alone());
        for part in parts(addrs, alone) {
            self.publish_lists(part);
            failed.extend(self.repatch_part(part, alone));
        }
        failed
    }

    /// `alone`: no other thread can run the code.
    fn repatch_part(&mut self, addrs: &[u64], alone: bool) -> Vec<(u64, Skip)> {
        let mut failed = Vec::new();
        let mut work = Work::with_capacity(addrs.len());
        for addr in addrs {
            let Some(site) = self.sites.get_mut(addr) else { continue };
            let to = site.wanted();
            if to == site.aim {
                continue;
            }
            let direct = alone || site.form == Form::Plain || in_one_word(site.patch_site.at);
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
            let island = island.map(|to| (site.redirect(to), None));
            let change = |to| if alone { site.change_alone(to) } else { site.change(to) };
            let bytes = bytes.map(|to| (change(to), Some(to)));
            for (change, form) in [island, bytes].into_iter().flatten() {
                match change {
                    Ok(change) => work.push(change, *addr, form),
                    Err(skip) => failed.push((*addr, skip)),
                }
            }
        }
        // SAFETY: changes of functions, which `forget` has found mapped, from one of the forms that
        // `Site` knows to another.
        for (result, (addr, form)) in unsafe { self.apply_if(work, alone) } {
            let Some(site) = self.sites.get_mut(&addr) else { continue };
            match (result, form) {
                (Ok(()), Some(form)) => {
                    let called = |f: Form| {
                        usize::from(site.patch_site.shape == Shape::Nop && f == Form::Entry)
                    };
                    self.called = self.called + called(form) - called(site.form);
                    (site.form, site.aim) = (form, form);
                }
                (Ok(()), None) => site.aim = site.wanted(),
                (Err(skip), _) => failed.push((addr, skip)),
            }
        }
        failed
    }

    /// Makes changes, each of the function at an address to a form.
    ///
    /// # Safety
    /// As for [`patch::apply`].
    pub(super) unsafe fn apply(
        &mut self,
        work: Work,
    ) -> impl Iterator<Item = (Result<(), Skip>, (u64, Option<Form>))> + use<> {
        // SAFETY: the caller's promise.
        unsafe { self.apply_if(work, patch::is_alone()) }
    }

    /// The same. `alone`: what [`patch::is_alone`] has said, since the lock was taken.
    ///
    /// # Safety
    /// As for [`patch::apply`].
    unsafe fn apply_if(
        &mut self,
        work: Work,
        alone: bool,
    ) -> impl Iterator<Item = (Result<(), Skip>, (u64, Option<Form>))> + use<> {
        let Work { changes, of } = work.sorted();
        // SAFETY: the caller's promise.
        let results = unsafe { patch::apply(&changes, alone, &mut self.limbo) };
        results.into_iter().zip(of)
    }

    /// The places where a jump stays that runs no hooks, as the bytes cannot be changed while threads
    /// run, or not from inside.
    pub(super) fn bypassed(&self) -> Vec<Bypassed> {
        let idle = self.sites.values().filter(|s| s.is_bypassed());
        idle.filter_map(|site| {
            let (now, _) = site.bytes(site.form).ok()?;
            Some(Bypassed { at: site.patch_site.at, now, original: site.patch_site.original() })
        })
        .collect()
    }

    /// Finds those of these places that somebody has given their bytes back who could stop all
    /// threads. Their islands are made ready for the next attachment: threads may still be in them.
    pub(super) fn notice_restored(&mut self) {
        let is_back = |s: &Site| {
            // SAFETY: code of a function that was found mapped when it was hooked.
            s.is_bypassed() && unsafe { current(s.patch_site.at) } == s.patch_site.original()
        };
        let back: Vec<u64> =
            self.sites.iter().filter(|(_, s)| is_back(s)).map(|(addr, _)| *addr).collect();
        let redirected = back.iter().filter_map(|addr| {
            let site = self.sites.get(addr).filter(|site| site.aim != site.form)?;
            Some((site.redirect(site.form).ok()?, *addr))
        });
        let work = redirected.collect();
        // SAFETY: heads of islands, which are one store each, and nobody's bytes lead to them.
        if unsafe { self.apply(work) }.any(|(result, _)| result.is_err()) {
            // Then the places stay as they were known; the next change finds that they are not.
            return;
        }
        for addr in back {
            if let Some(site) = self.sites.get_mut(&addr) {
                let called = site.patch_site.shape == Shape::Nop && site.form == Form::Entry;
                self.called -= usize::from(called);
                (site.form, site.aim) = (Form::Plain, Form::Plain);
            }
        }
    }
}

/// A place where a jump stays that leads to the function itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bypassed {
    /// Address of the jump.
    pub at: u64,
    /// Its bytes.
    pub now: [u8; PATCH],
    /// What was there before.
    pub original: [u8; PATCH],
}
