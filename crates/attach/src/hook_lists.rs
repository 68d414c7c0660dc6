//! The plans in use, and those that wait for their last readers. The engine's, under its lock.

use crate::hook::Position;
use crate::hook_list::{self, COOKIES, Cookies, Entry, Meta, Plan};
use std::sync::atomic::Ordering;

/// Who has the words for cookies in a function's [`Meta`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Words([Word; COOKIES]);

#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
enum Word {
    #[default]
    Free,
    /// An attachment.
    Of(u64),
    /// An attachment that is gone, until so many drains are done.
    Until(u64),
}

impl Words {
    /// Gives back the words of attachments that are gone.
    fn leave(&mut self, entries: &[Entry], drains: u64) {
        for word in &mut self.0 {
            match *word {
                Word::Of(seq) if entries.iter().all(|e| e.seq != seq) => {
                    *word = Word::Until(drains + 1)
                }
                Word::Until(n) if n <= drains => *word = Word::Free,
                _ => {}
            }
        }
    }

    /// Finds the word of an entry's attachment, or writes its cookie into a free one.
    fn place(&mut self, entry: &Entry, meta: &Meta) -> Option<usize> {
        let own = self.0.iter().position(|w| *w == Word::Of(entry.seq));
        let at = own.or_else(|| self.0.iter().position(|w| *w == Word::Free))?;
        if own.is_none() {
            *self.0.get_mut(at)? = Word::Of(entry.seq);
            meta.cookies.get(at)?.store(entry.cookie, Ordering::Relaxed);
        }
        Some(at)
    }
}

/// Plans remembered for sharing. One attachment needs one or two; with more than these, some are
/// built twice.
const REMEMBERED: usize = 16;

/// All plans.
#[derive(Debug, Default)]
pub(crate) struct Plans {
    /// The newest last.
    shared: Vec<Shared>,
    /// Taken out of use, perhaps still being read.
    old: Vec<*mut Plan>,
    /// Drains done so far.
    drains: u64,
    key: Vec<Key>,
}

// SAFETY: only the holder of the engine's lock uses the pointers.
unsafe impl Send for Plans {}

#[derive(Debug)]
struct Shared {
    key: Vec<Key>,
    plan: *mut Plan,
}

/// What makes two functions' plans the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Key {
    position: Position,
    run: usize,
    data: *const (),
    missed: *const std::sync::atomic::AtomicU64,
    seq: u64,
    word: usize,
}

impl Plans {
    /// Makes a function run `entries` from now on. Pairs with the trampolines' loads of the plan.
    pub(crate) fn publish(&mut self, meta: &'static Meta, entries: &[Entry], cookies: &mut Words) {
        cookies.leave(entries, self.drains);
        let plan =
            if entries.is_empty() { hook_list::empty() } else { self.plan(meta, entries, cookies) };
        if plan != hook_list::empty() {
            // SAFETY: a plan that is not free, and `users` is only touched here, under the engine's
            // lock.
            unsafe { (*plan).users += 1 };
        }
        // SAFETY: a plan of ours, which is freed when no function has it any more; what comes back
        // was published here.
        unsafe { self.release(meta.publish(plan)) };
    }

    /// Makes a function run nothing.
    pub(crate) fn withdraw(&mut self, meta: &Meta) {
        // SAFETY: the empty plan is never freed; what comes back was published here.
        unsafe { self.release(meta.publish(hook_list::empty())) };
    }

    /// Tells whether plans wait to be freed.
    pub(crate) fn any_old(&self) -> bool {
        !self.old.is_empty()
    }

    /// Frees the old plans.
    ///
    /// # Safety
    ///
    /// A drain has succeeded since the last [`publish`](Self::publish) and
    /// [`withdraw`](Self::withdraw).
    pub(crate) unsafe fn drained(&mut self) {
        self.drains += 1;
        for plan in self.old.drain(..) {
            // SAFETY: no `Meta` has it any more, and by the caller's promise no thread is walking
            // it.
            unsafe { Plan::free(plan) };
        }
    }

    fn plan(&mut self, meta: &'static Meta, entries: &[Entry], cookies: &mut Words) -> *mut Plan {
        self.key.clear();
        for entry in entries {
            let Some(word) = cookies.place(entry, meta) else {
                return Plan::build(entries, Cookies::Own(meta));
            };
            let hook = &entry.hook;
            self.key.push(Key {
                position: hook.position,
                run: hook.run as usize,
                data: hook.data,
                missed: hook.missed,
                seq: entry.seq,
                word,
            });
        }
        if let Some(shared) = self.shared.iter().rev().find(|s| s.key == self.key) {
            return shared.plan;
        }
        let words: Vec<usize> = self.key.iter().map(|k| k.word).collect();
        let plan = Plan::build(entries, Cookies::Words(&words));
        if self.shared.len() == REMEMBERED {
            self.shared.remove(0);
        }
        self.shared.push(Shared { key: self.key.clone(), plan });
        plan
    }

    /// Counts one user less of a plan.
    ///
    /// # Safety
    /// It was published here, for a function that does not have it any more.
    unsafe fn release(&mut self, plan: *mut Plan) {
        if plan == hook_list::empty() {
            return;
        }
        // SAFETY: it was in use until now, so it is not free; `users` as in `publish`.
        let users = unsafe {
            (*plan).users -= 1;
            (*plan).users
        };
        if users == 0 {
            self.shared.retain(|s| s.plan != plan);
            self.old.push(plan);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hook::Hook;
    use std::ptr;

    extern "C" fn nothing(_: *mut u64, _: *const ()) -> u64 {
        0
    }

    fn entry(seq: u64, cookie: u64) -> Entry {
        // SAFETY: the function does nothing.
        let hook = unsafe { Hook::new(Position::Entry, nothing, ptr::null()) };
        Entry { hook, cookie, seq }
    }

    fn plan_of(meta: &Meta) -> *mut Plan {
        meta.plan.load(Ordering::Relaxed)
    }

    #[test]
    fn functions_with_the_same_hooks_share_a_plan_and_keep_their_cookies() {
        let mut plans = Plans::default();
        let metas = [Meta::new(1, 6), Meta::new(2, 6)];
        let mut words = [Words::default(); 2];
        for (i, meta) in metas.into_iter().enumerate() {
            plans.publish(meta, &[entry(7, 100 + i as u64)], &mut words[i]);
        }
        assert_eq!(plan_of(metas[0]), plan_of(metas[1]));
        assert_eq!(metas.map(|m| m.cookies[0].load(Ordering::Relaxed)), [100, 101]);
        plans.publish(metas[0], &[entry(7, 100), entry(8, 5)], &mut words[0]);
        assert_ne!(plan_of(metas[0]), plan_of(metas[1]));
        assert_eq!(metas[0].cookies[1].load(Ordering::Relaxed), 5);
        assert!(!plans.any_old(), "the other function still has the plan");
        plans.withdraw(metas[1]);
        assert!(plans.any_old());
    }

    #[test]
    fn a_cookie_is_not_overwritten_before_a_drain() {
        let mut plans = Plans::default();
        let meta = Meta::new(1, 6);
        let mut words = Words::default();
        for seq in 1..=3 {
            plans.publish(meta, &[entry(seq, seq * 10)], &mut words);
        }
        // Somebody may still walk the plans of attachments 1 and 2: the fourth gets a plan for
        // itself.
        plans.publish(meta, &[entry(4, 40)], &mut words);
        assert_eq!([0, 1, 2].map(|i| meta.cookies[i].load(Ordering::Relaxed)), [10, 20, 30]);
        assert!(plans.shared.is_empty());
        // SAFETY: no thread walks anything here.
        unsafe { plans.drained() };
        plans.publish(meta, &[entry(5, 50)], &mut words);
        assert_eq!(meta.cookies[0].load(Ordering::Relaxed), 50);
        assert_eq!(plans.shared.len(), 1);
    }
}
