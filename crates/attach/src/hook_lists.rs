//! The hook lists in use, and those that wait for their last readers. The engine's, under its lock.

use crate::hook::Position;
use crate::hook_list::{self, AttachedHook, COOKIES, Cookies, HookList, Meta};
use std::sync::atomic::Ordering;

/// Who has the words for cookies in a function's [`Meta`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CookieWords([CookieWord; COOKIES]);

/// Whose a word is, in four bytes: there may be a million functions.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct CookieWord(u32);

impl CookieWord {
    const FREE: Self = Self(0);

    /// That of an attachment that is gone, after more drains than can be counted: nobody's any more.
    const NEVER_FREE: Self = Self(u32::MAX - 1);

    /// An attachment's; `None`: it has a number that is too large for that.
    fn of(seq: u64) -> Option<Self> {
        let seq = u32::try_from(seq).ok().filter(|seq| *seq <= u32::MAX >> 1)?;
        Some(Self(seq << 1 | 1))
    }

    fn owner(self) -> Option<u64> {
        (self.0 & 1 != 0).then_some(u64::from(self.0 >> 1))
    }

    /// That of an attachment that is gone, until so many drains are done: at least one.
    fn until(drains: u64) -> Self {
        let drains = u32::try_from(drains).ok().filter(|drains| *drains < u32::MAX >> 1);
        drains.map_or(Self::NEVER_FREE, |drains| Self(drains << 1))
    }

    fn is_free(self, drains: u64) -> bool {
        let until = u64::from(self.0 >> 1);
        self.owner().is_none() && self != Self::NEVER_FREE && until <= drains
    }
}

impl CookieWords {
    /// Gives back the words of attachments that are gone.
    fn release_unused(&mut self, entries: &[AttachedHook], drains: u64) {
        for word in &mut self.0 {
            if word.is_free(drains) {
                *word = CookieWord::FREE;
            } else if word.owner().is_some_and(|seq| entries.iter().all(|e| e.seq != seq)) {
                *word = CookieWord::until(drains + 1);
            }
        }
    }

    /// Finds the word of an entry's attachment, or writes its cookie into a free one.
    fn place(&mut self, entry: &AttachedHook, meta: &Meta) -> Option<usize> {
        let word = CookieWord::of(entry.seq)?;
        let own = self.0.iter().position(|w| *w == word);
        let at = own.or_else(|| self.0.iter().position(|w| *w == CookieWord::FREE))?;
        if own.is_none() {
            *self.0.get_mut(at)? = word;
            meta.cookies.get(at)?.store(entry.cookie, Ordering::Relaxed);
        }
        Some(at)
    }
}

/// HookLists remembered for sharing. One attachment needs one or two; with more than these, some
/// are built twice.
const REMEMBERED: usize = 16;

/// All hook lists.
#[derive(Debug, Default)]
pub(crate) struct HookLists {
    /// The newest last.
    shared: Vec<Shared>,
    /// Taken out of use, perhaps still being read.
    old: Vec<*mut HookList>,
    /// Drains done so far.
    drains: u64,
    key: Vec<Key>,
}

// SAFETY: only the holder of the engine's lock uses the pointers.
unsafe impl Send for HookLists {}

#[derive(Debug)]
struct Shared {
    key: Vec<Key>,
    list: *mut HookList,
}

/// What makes two functions' hook lists the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Key {
    position: Position,
    run: usize,
    data: *const (),
    missed: *const std::sync::atomic::AtomicU64,
    seq: u64,
    word: usize,
}

impl HookLists {
    /// Makes a function run `entries` from now on. Pairs with the trampolines' loads of the hook
    /// list.
    pub(crate) fn publish(
        &mut self,
        meta: &'static Meta,
        entries: &[AttachedHook],
        cookies: &mut CookieWords,
    ) {
        cookies.release_unused(entries, self.drains);
        let list = if entries.is_empty() {
            hook_list::empty()
        } else {
            self.list_for(meta, entries, cookies)
        };
        if list != hook_list::empty() {
            // SAFETY: a hook list that is not free, and `users` is only touched here, under the
            // engine's lock.
            unsafe { (*list).users += 1 };
        }
        // SAFETY: a hook list of ours, which is freed when no function has it any more; what comes
        // back was published here.
        unsafe { self.release(meta.publish(list)) };
    }

    /// Makes a function run nothing.
    pub(crate) fn withdraw(&mut self, meta: &Meta) {
        // SAFETY: the empty hook list is never freed; what comes back was published here.
        unsafe { self.release(meta.publish(hook_list::empty())) };
    }

    /// Tells whether hook lists wait to be freed.
    pub(crate) fn has_retired(&self) -> bool {
        !self.old.is_empty()
    }

    /// Frees the old hook lists.
    ///
    /// # Safety
    ///
    /// A drain has succeeded since the last [`publish`](Self::publish) and
    /// [`withdraw`](Self::withdraw).
    pub(crate) unsafe fn drained(&mut self) {
        self.drains += 1;
        for list in self.old.drain(..) {
            // SAFETY: no `Meta` has it any more, and by the caller's promise no thread is walking
            // it.
            unsafe { HookList::free(list) };
        }
    }

    fn list_for(
        &mut self,
        meta: &'static Meta,
        entries: &[AttachedHook],
        cookies: &mut CookieWords,
    ) -> *mut HookList {
        self.key.clear();
        for entry in entries {
            let Some(word) = cookies.place(entry, meta) else {
                return HookList::build(entries, Cookies::Own(meta));
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
            return shared.list;
        }
        let words: Vec<usize> = self.key.iter().map(|k| k.word).collect();
        let list = HookList::build(entries, Cookies::Words(&words));
        if self.shared.len() == REMEMBERED {
            self.shared.remove(0);
        }
        self.shared.push(Shared { key: self.key.clone(), list });
        list
    }

    /// Counts one user less of a hook list.
    ///
    /// # Safety
    /// It was published here, for a function that does not have it any more.
    unsafe fn release(&mut self, list: *mut HookList) {
        if list == hook_list::empty() {
            return;
        }
        // SAFETY: it was in use until now, so it is not free; `users` as in `publish`.
        let users = unsafe {
            (*list).users -= 1;
            (*list).users
        };
        if users == 0 {
            self.shared.retain(|s| s.list != list);
            self.old.push(list);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hook::Hook;
    use std::ptr;
    use std::sync::Arc;

    extern "C" fn nothing(_: *mut u64, _: *const ()) -> u64 {
        0
    }

    fn entry(seq: u64, cookie: u64) -> AttachedHook {
        // SAFETY: the function does nothing.
        let hook = unsafe { Hook::new(Position::Entry, nothing, ptr::null()) };
        AttachedHook { hook: Arc::new(hook), cookie, seq }
    }

    fn list_of(meta: &Meta) -> *mut HookList {
        meta.list.load(Ordering::Relaxed)
    }

    #[test]
    fn functions_with_the_same_hooks_share_a_hook_list_and_keep_their_cookies() {
        let mut hook_lists = HookLists::default();
        let [a, b] = Meta::for_all([1, 2].into_iter(), 6) else { panic!("two") };
        let metas = [a, b];
        let mut words = [CookieWords::default(); 2];
        for (i, meta) in metas.into_iter().enumerate() {
            hook_lists.publish(meta, &[entry(7, 100 + i as u64)], &mut words[i]);
        }
        assert_eq!(list_of(metas[0]), list_of(metas[1]));
        assert_eq!(metas.map(|m| m.cookies[0].load(Ordering::Relaxed)), [100, 101]);
        hook_lists.publish(metas[0], &[entry(7, 100), entry(8, 5)], &mut words[0]);
        assert_ne!(list_of(metas[0]), list_of(metas[1]));
        assert_eq!(metas[0].cookies[1].load(Ordering::Relaxed), 5);
        assert!(!hook_lists.has_retired(), "the other function still has the list");
        hook_lists.withdraw(metas[1]);
        assert!(hook_lists.has_retired());
    }

    /// Four bytes count four thousand million attachments and drains.
    #[test]
    fn what_cannot_be_counted_has_a_hook_list_for_itself() {
        let last = u64::from(u32::MAX >> 1);
        assert_eq!(CookieWord::of(last).and_then(CookieWord::owner), Some(last));
        assert_eq!(CookieWord::of(last + 1), None);
        for drains in [last - 1, last, last + 1, u64::MAX] {
            let word = CookieWord::until(drains);
            assert_eq!(word.owner(), None);
            assert!(!word.is_free(drains - 1), "{drains}");
            assert_eq!(word.is_free(drains), drains < last, "{drains}");
        }
        let mut hook_lists = HookLists::default();
        let [meta] = Meta::for_all([1].into_iter(), 6) else { panic!("one") };
        let mut words = CookieWords::default();
        hook_lists.publish(meta, &[entry(last + 1, 10)], &mut words);
        assert!(hook_lists.shared.is_empty() && words.0 == [CookieWord::FREE; COOKIES]);
        hook_lists.publish(meta, &[entry(last, 20)], &mut words);
        assert_eq!(meta.cookies[0].load(Ordering::Relaxed), 20);
    }

    #[test]
    fn a_cookie_is_not_overwritten_before_a_drain() {
        let mut hook_lists = HookLists::default();
        let [meta] = Meta::for_all([1].into_iter(), 6) else { panic!("one") };
        let mut words = CookieWords::default();
        for seq in 1..=3 {
            hook_lists.publish(meta, &[entry(seq, seq * 10)], &mut words);
        }
        // Somebody may still walk the hook lists of attachments 1 and 2: the fourth gets a hook
        // list for itself.
        hook_lists.publish(meta, &[entry(4, 40)], &mut words);
        assert_eq!([0, 1, 2].map(|i| meta.cookies[i].load(Ordering::Relaxed)), [10, 20, 30]);
        assert!(hook_lists.shared.is_empty());
        // SAFETY: no thread walks anything here.
        unsafe { hook_lists.drained() };
        hook_lists.publish(meta, &[entry(5, 50)], &mut words);
        assert_eq!(meta.cookies[0].load(Ordering::Relaxed), 50);
        assert_eq!(hook_lists.shared.len(), 1);
    }
}
