//! Functions whose calls go elsewhere altogether.

use super::Group;
use super::state::State;
use crate::hook::Hook;
use crate::island;
use crate::jump::jump;
use crate::patch;
use crate::patch::change::{Change, Detour, Hooked, current};
use crate::sites::Function;
use crate::skip::Skip;
use std::sync::atomic::{AtomicUsize, Ordering};

impl State {
    /// Sends all calls of a function to code at `to`.
    ///
    /// The function is hooked like others, so that it can be changed while threads run, and be given
    /// back; then the head of its island leads there.
    ///
    /// # Safety
    /// As for [`Engine::divert`](crate::Engine::divert).
    pub(super) unsafe fn divert(
        &mut self,
        function: &Function,
        to: u64,
        itself: &AtomicUsize,
    ) -> Result<u64, Skip> {
        let mut mapped = patch::mapped().ok_or(Skip::NoRoom)?;
        let bridge = island::bridge(&function.module.file().span, to, &mut mapped.all)?;
        let (targets, hooks) = (&[(function, 0)], &[Hook::of_diversion()]);
        let (id, results) = self.attach(&[Group { targets, hooks }], Some(Some(mapped)));
        let done = match results.into_iter().next() {
            Some(Ok(())) => self.lead_to(function.addr, bridge, itself),
            Some(Err(skip)) => Err(skip),
            None => Err(Skip::NoRoom),
        };
        match done {
            Ok(()) => self.diversions.push(id),
            Err(_) => drop(self.detach(id)),
        }
        done.map(|()| id)
    }

    /// Has the functions run through their hooks again, as the next attachment expects, if it was a
    /// diversion.
    pub(super) fn lead_back(&mut self, id: u64, addrs: &[u64]) {
        let Some(n) = self.diversions.iter().position(|diversion| *diversion == id) else { return };
        self.diversions.swap_remove(n);
        let site = |addr| self.sites.get(addr).map(Box::as_ref);
        let heads = addrs.iter().filter_map(|addr| {
            let site = site(addr)?;
            Some((site.redirect(site.form).ok()?, *addr))
        });
        let work = heads.collect();
        // SAFETY: heads of islands, which are one store each.
        unsafe { self.apply(work) }.for_each(drop);
    }

    fn lead_to(&mut self, addr: u64, bridge: u64, itself: &AtomicUsize) -> Result<(), Skip> {
        let site = self.sites.get(&addr).ok_or(Skip::NotCode { addr })?;
        let at = site.island().ok_or(Skip::NoRoom)?;
        let new = jump(0xe9, at, bridge).ok_or(Skip::NoRoom)?;
        // SAFETY: islands are mapped for ever.
        let old = unsafe { current(at) };
        itself.store(site.meta.body.load(Ordering::Acquire) as usize, Ordering::Release);
        let change = Change {
            at,
            old,
            new,
            text: site.origin.islands.clone(),
            head: Detour::Jump(bridge),
            inner: [0; _],
            hooked: Hooked { entry: new, meta: std::ptr::from_ref(site.meta) as u64 },
            goroutines: None,
        };
        // SAFETY: the head of an island, which is one store; what is there now does what is
        // promised in its place.
        let done = unsafe { self.apply([(change, addr)].into_iter().collect()) }.next();
        done.map_or(Err(Skip::NoRoom), |(result, _)| result)
    }
}
