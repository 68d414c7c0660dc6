//! Making calls of functions go where their hooks need them.

use super::site::Form;
use super::state::State;
use crate::patch;
use crate::patch::change::{Change, in_one_word};
use crate::patch_site::Shape;
use crate::skip::Skip;

impl State {
    /// Makes calls of functions go where their hooks need them: by changing the first bytes, or the
    /// island that they lead to. Returns those where that failed.
    pub(super) fn repatch(&mut self, addrs: &[u64]) -> Vec<(u64, Skip)> {
        let mut failed = Vec::new();
        let mut work: Vec<(Change, u64, Option<Form>)> = Vec::with_capacity(addrs.len());
        let alone = patch::is_alone();
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
        let results = unsafe { patch::apply(&changes, &mut self.limbo) };
        for (result, (addr, form)) in results.into_iter().zip(rest) {
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
}
