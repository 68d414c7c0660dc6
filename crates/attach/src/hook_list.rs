//! What runs on a function, in the form that the trampolines read: [`Meta`], [`HookList`] and
//! [`Item`].
//!
//! A hook list is immutable. Changing what runs on a function means storing another hook list's
//! address in the function's [`Meta`]; threads that are walking the old one finish it, so it is
//! freed only after [`crate::per_thread::quiescence::drain`]. `Meta`s stay for ever: one for each
//! function that was ever hooked.
//!
//! Functions with the same hooks share a hook list: ten thousand of them cost one, which stays in
//! the nearest cache. What differs is the attach cookie, so that stands in a word of the `Meta`,
//! and the item says in which.

use crate::frame::MAX_SESSIONS;
use crate::hook::{Hook, Position};
use crate::hook_code::HookCode;
use std::mem::{offset_of, size_of};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// What the trampolines know of a hooked function.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct Meta {
    /// What runs; never null.
    pub(crate) list: AtomicPtr<HookList>,
    /// Address of the function.
    pub(crate) ip: u64,
    /// Where exit trampolines call the function's body.
    pub(crate) body: AtomicU64,
    /// Number of arguments shown.
    pub(crate) nr_args: AtomicU64,
    /// 1 when a hook wants arguments from the stack.
    pub(crate) wants: AtomicU32,
    /// Attach cookies. A word belongs to one attachment, and to another only after a drain.
    pub(crate) cookies: [AtomicU64; COOKIES],
}

/// Attachments of a function whose cookies have room in its [`Meta`]; with more, the function has a
/// hook list for itself.
pub(crate) const COOKIES: usize = 3;

/// One run of a hook on one function.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) run: u64,
    pub(crate) data: u64,
    /// Where the attach cookie is, counted from the `Meta` (and around the end of the address
    /// space when it is `own_cookie`).
    pub(crate) cookie_at: u64,
    /// Index of the session word, or -1.
    pub(crate) session: i64,
    /// Number of the attachment.
    pub(crate) seq: u64,
    pub(crate) missed: u64,
    /// The cookie, in a hook list that belongs to one function.
    own_cookie: u64,
    /// [`Hook::without_return`].
    pub(crate) without_return: u64,
}

/// What runs on a function: entry items, modify-return items, exit items, right behind this head.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct HookList {
    pub(crate) entry_end: u64,
    pub(crate) mod_end: u64,
    pub(crate) exit_end: u64,
    /// Number of the newest attachment in it.
    pub(crate) seq: u64,
    /// How many exit hooks want to run whatever happened at entry: all but those of sessions.
    pub(crate) exits: u64,
    /// How many functions have it. Only the engine looks here, under its lock.
    pub(crate) users: u64,
    /// Where trampolines go on that have it.
    pub(crate) code: HookCode,
}

/// One hook on one function as the engine remembers it.
#[derive(Clone, Debug)]
pub(crate) struct AttachedHook {
    /// One for all functions of the attachment.
    pub(crate) hook: Arc<Hook>,
    pub(crate) cookie: u64,
    pub(crate) seq: u64,
}

/// Where the items of a hook list find their cookies.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cookies<'a> {
    /// In these words of any `Meta`, one for each entry: the hook list can be shared.
    Words(&'a [usize]),
    /// In the items: the hook list is for this function only.
    Own(&'static Meta),
}

impl HookList {
    /// Builds a hook list on the heap, without users. `entries` are in the order of attaching.
    ///
    /// # Panics
    /// With more than [`MAX_SESSIONS`] sessions, for which frames have no room; the engine refuses
    /// those.
    pub(crate) fn build(entries: &[AttachedHook], cookies: Cookies<'_>) -> *mut Self {
        let count = |f: fn(Position) -> bool| entries.iter().filter(|e| f(e.hook.position)).count();
        let entry = count(|p| matches!(p, Position::Entry | Position::Session));
        let modify = count(|p| p == Position::ModifyReturn);
        let exit = count(|p| matches!(p, Position::Exit | Position::Session));
        let total = entry + modify + exit;
        assert!(
            count(|p| p == Position::Session) <= MAX_SESSIONS,
            "frames have room for so many sessions"
        );
        let words = (size_of::<Self>() + total * size_of::<Item>()) / 8;
        let memory = Box::into_raw(vec![0u64; words].into_boxed_slice()).cast::<u64>();
        let first = memory as u64 + size_of::<Self>() as u64;
        let end = |n: usize| first + (n * size_of::<Item>()) as u64;
        let head = Self {
            entry_end: end(entry),
            mod_end: end(entry + modify),
            exit_end: end(total),
            seq: entries.iter().map(|e| e.seq).max().unwrap_or(0),
            exits: count(|p| p == Position::Exit) as u64,
            users: 0,
            code: match cookies {
                Cookies::Words(words) => HookCode::new(entries, words),
                Cookies::Own(_) => HookCode::walks(),
            },
        };
        // SAFETY: `memory` is 8-aligned and has room for the head and `total` items behind it, all
        // of plain words.
        unsafe {
            memory.cast::<Self>().write(head);
            let items = memory.byte_add(size_of::<Self>()).cast::<Item>();
            let (mut at_entry, mut at_mod, mut at_exit, mut session) =
                (0, entry, entry + modify, 0);
            for (n, e) in entries.iter().enumerate() {
                let add = |at: &mut usize, session: i64| {
                    let to = items.add(*at);
                    *at += 1;
                    let cookie_at = match cookies {
                        Cookies::Words(words) => {
                            offset_of!(Meta, cookies) as u64
                                + 8 * words.get(n).copied().filter(|w| *w < COOKIES).unwrap_or(0)
                                    as u64
                        }
                        Cookies::Own(meta) => (&raw const (*to).own_cookie as u64)
                            .wrapping_sub(std::ptr::from_ref(meta) as u64),
                    };
                    to.write(Item {
                        run: e.hook.run as usize as u64,
                        data: e.hook.data as u64,
                        cookie_at,
                        session,
                        seq: e.seq,
                        missed: e.hook.missed as u64,
                        own_cookie: e.cookie,
                        without_return: e.hook.without_return,
                    });
                };
                match e.hook.position {
                    Position::Entry => add(&mut at_entry, -1),
                    Position::ModifyReturn => add(&mut at_mod, -1),
                    Position::Exit => add(&mut at_exit, -1),
                    Position::Session => {
                        add(&mut at_entry, session);
                        add(&mut at_exit, session);
                        session += 1;
                    }
                }
            }
        }
        memory.cast()
    }

    /// Frees a hook list.
    ///
    /// # Safety
    ///
    /// `list` came from [`build`](Self::build), no `Meta` points at it, and no thread is walking
    /// it.
    pub(crate) unsafe fn free(list: *mut Self) {
        // SAFETY: the caller owns it.
        let end = unsafe {
            (*list).code.free();
            (*list).exit_end
        };
        let words = (end as usize - list as usize) / 8;
        if cfg!(debug_assertions) {
            // Whoever still walks it runs into an address that is none.
            // SAFETY: the caller owns it.
            unsafe { std::ptr::write_bytes(list.cast::<u8>(), 0xdb, words * 8) };
        }
        // SAFETY: the same pointer and length that `build` made the box of.
        drop(unsafe {
            Box::from_raw(std::ptr::slice_from_raw_parts_mut(list.cast::<u64>(), words))
        });
    }
}

impl Meta {
    /// Makes the metadata of functions. Never freed.
    pub(crate) fn for_all(ips: impl Iterator<Item = u64> + Clone, nr_args: u64) -> &'static [Self] {
        let new = |ip| Self {
            list: AtomicPtr::new(empty()),
            ip,
            body: AtomicU64::new(ip),
            nr_args: AtomicU64::new(nr_args),
            wants: AtomicU32::new(0),
            cookies: [const { AtomicU64::new(0) }; COOKIES],
        };
        // All that will be needed at once: how many they are the iterator need not know.
        let mut all = Vec::with_capacity(ips.clone().count());
        all.extend(ips.map(new));
        all.leak()
    }

    /// Publishes a hook list and returns the one before. Pairs with the trampolines' loads of the
    /// hook list.
    ///
    /// # Safety
    /// It is the empty hook list or came from [`HookList::build`], is for this function if its
    /// cookies are, and is not freed before it is replaced here and a drain has succeeded since.
    pub(crate) unsafe fn publish(&self, list: *mut HookList) -> *mut HookList {
        self.list.swap(list, Ordering::SeqCst)
    }
}

/// The shared hook list without items. Never freed.
pub(crate) fn empty() -> *mut HookList {
    use std::sync::OnceLock;
    static EMPTY: OnceLock<usize> = OnceLock::new();
    *EMPTY.get_or_init(|| HookList::build(&[], Cookies::Words(&[])) as usize) as *mut HookList
}
