//! The static trampolines and the memory they read: [`Meta`], [`Plan`], [`Slot`] and the site
//! table.
//!
//! A plan is immutable. Changing what runs on a function means storing another plan's address in
//! the function's [`Meta`]; threads that are walking the old one finish it, so it is freed only
//! after [`crate::guard::drain`]. `Meta`s stay for ever: one for each function that was ever
//! hooked.
//!
//! Functions with the same hooks share a plan: ten thousand of them cost one, which stays in the
//! nearest cache. What differs is the attach cookie, so that stands in a word of the `Meta`, and
//! the slot says in which.

use crate::elsewhere;
use crate::frame::{Frame, MAX_SESSIONS};
use crate::guard;
use crate::hook::{Hook, Position};
use crate::sandbox;
use crate::table::Table;
use std::mem::{offset_of, size_of};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// What the trampolines know of a hooked function.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct Meta {
    /// What runs; never null.
    pub(crate) plan: AtomicPtr<Plan>,
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
/// plan for itself.
pub(crate) const COOKIES: usize = 3;

/// One run of a hook on one function.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Slot {
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
    /// The cookie, in a plan that belongs to one function.
    own_cookie: u64,
    /// [`Hook::without_return`].
    pub(crate) without_return: u64,
}

/// What runs on a function: entry slots, modify-return slots, exit slots, right behind this head.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) entry_end: u64,
    pub(crate) mod_end: u64,
    pub(crate) exit_end: u64,
    /// Number of the newest attachment in it.
    pub(crate) seq: u64,
    /// How many exit hooks want to run whatever happened at entry: all but those of sessions.
    pub(crate) exits: u64,
    /// How many functions have it. Only the engine looks here, under its lock.
    pub(crate) users: u64,
}

/// One hook on one function as the engine remembers it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) hook: Hook,
    pub(crate) cookie: u64,
    pub(crate) seq: u64,
}

/// Where the slots of a plan find their cookies.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cookies<'a> {
    /// In these words of any `Meta`, one for each entry: the plan can be shared.
    Words(&'a [usize]),
    /// In the slots: the plan is for this function only.
    Own(&'static Meta),
}

impl Plan {
    /// Builds a plan on the heap, without users. `entries` are in the order of attaching.
    ///
    /// # Panics
    /// With more than [`MAX_SESSIONS`] sessions, for which frames have no room; the engine refuses
    /// those.
    pub(crate) fn build(entries: &[Entry], cookies: Cookies<'_>) -> *mut Self {
        let count = |f: fn(Position) -> bool| entries.iter().filter(|e| f(e.hook.position)).count();
        let entry = count(|p| matches!(p, Position::Entry | Position::Session));
        let modify = count(|p| p == Position::ModifyReturn);
        let exit = count(|p| matches!(p, Position::Exit | Position::Session));
        let total = entry + modify + exit;
        assert!(
            count(|p| p == Position::Session) <= MAX_SESSIONS,
            "frames have room for so many sessions"
        );
        let words = (size_of::<Self>() + total * size_of::<Slot>()) / 8;
        let memory = Box::into_raw(vec![0u64; words].into_boxed_slice()).cast::<u64>();
        let first = memory as u64 + size_of::<Self>() as u64;
        let end = |n: usize| first + (n * size_of::<Slot>()) as u64;
        let head = Self {
            entry_end: end(entry),
            mod_end: end(entry + modify),
            exit_end: end(total),
            seq: entries.iter().map(|e| e.seq).max().unwrap_or(0),
            exits: count(|p| p == Position::Exit) as u64,
            users: 0,
        };
        // SAFETY: `memory` is 8-aligned and has room for the head and `total` slots behind it, all
        // of plain words.
        unsafe {
            memory.cast::<Self>().write(head);
            let slots = memory.byte_add(size_of::<Self>()).cast::<Slot>();
            let (mut at_entry, mut at_mod, mut at_exit, mut session) =
                (0, entry, entry + modify, 0);
            for (n, e) in entries.iter().enumerate() {
                let add = |at: &mut usize, session: i64| {
                    let to = slots.add(*at);
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
                    to.write(Slot {
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

    /// Frees a plan.
    ///
    /// # Safety
    ///
    /// `plan` came from [`build`](Self::build), no `Meta` points at it, and no thread is walking
    /// it.
    pub(crate) unsafe fn free(plan: *mut Self) {
        // SAFETY: the caller owns it.
        let end = unsafe { (*plan).exit_end };
        let words = (end as usize - plan as usize) / 8;
        if cfg!(debug_assertions) {
            // Whoever still walks it runs into an address that is none.
            // SAFETY: the caller owns it.
            unsafe { std::ptr::write_bytes(plan.cast::<u8>(), 0xdb, words * 8) };
        }
        // SAFETY: the same pointer and length that `build` made the box of.
        drop(unsafe {
            Box::from_raw(std::ptr::slice_from_raw_parts_mut(plan.cast::<u64>(), words))
        });
    }
}

/// The most sessions a plan takes, re-exported next to what depends on it.
pub(crate) const SESSIONS: usize = MAX_SESSIONS;

const _: () = {
    assert!(size_of::<Plan>() == 48 && size_of::<Slot>() == 64 && size_of::<Meta>() == 64);
    assert!(
        offset_of!(Slot, run) == 0
            && offset_of!(Meta, plan) == 0
            && offset_of!(Plan, entry_end) == 0
    );
    assert!(
        offset_of!(Frame, args) == 40
            && offset_of!(Frame, rax) == 144
            && offset_of!(Frame, rsp) == 216
    );
    assert!(size_of::<Frame>() == 272);
    // A body finds its stack as far from a boundary of 64 bytes as its caller left it: metadata and
    // frame lie in between.
    assert!((XFRAME + 16).is_multiple_of(64));
};

/// Bytes of the frame an entry trampoline makes: up to and with `rsp`.
const FRAME: usize = offset_of!(Frame, rsp) + 8;
/// Bytes of the frame an exit trampoline makes.
const XFRAME: usize = X_SIZE + size_of::<Frame>();
/// Bytes of our own words in it.
const X_SIZE: usize = 32 + 16 * SESSIONS;
/// Frames that a chain of tail calls may leave on the stack; what comes after them runs without
/// hooks, and is counted.
pub(crate) const MAX_TAILS: usize = 32;

std::arch::global_asm!(
    include_str!("tramp/x64.s"),
    FRAME = const FRAME,
    XFRAME = const XFRAME,
    X_SIZE = const X_SIZE,
    X_SEQ = const 0,
    X_SESSIONS = const 8,
    X_IDS = const 16,
    X_WORDS = const 16 + 8 * SESSIONS,
    X_TAIL = const 16 + 16 * SESSIONS,
    X_TAILS = const 24 + 16 * SESSIONS,
    MAX_TAILS = const MAX_TAILS,
    MD_PLAN = const offset_of!(Meta, plan),
    MD_IP = const offset_of!(Meta, ip),
    MD_BODY = const offset_of!(Meta, body),
    MD_NR_ARGS = const offset_of!(Meta, nr_args),
    MD_WANTS = const offset_of!(Meta, wants),
    PLAN_ENTRY_END = const offset_of!(Plan, entry_end),
    PLAN_MOD_END = const offset_of!(Plan, mod_end),
    PLAN_EXIT_END = const offset_of!(Plan, exit_end),
    PLAN_SEQ = const offset_of!(Plan, seq),
    PLAN_EXITS = const offset_of!(Plan, exits),
    PLAN_SLOTS = const size_of::<Plan>(),
    SLOT_RUN = const offset_of!(Slot, run),
    SLOT_DATA = const offset_of!(Slot, data),
    SLOT_COOKIE_AT = const offset_of!(Slot, cookie_at),
    SLOT_SEQ = const offset_of!(Slot, seq),
    SLOT_SESSION = const offset_of!(Slot, session),
    SLOT_SIZE = const size_of::<Slot>(),
    BLOCK_TAIL = const offset_of!(guard::Block, tail),
    BLOCK_TAILS = const offset_of!(guard::Block, tails),
    BLOCK_ZONE = const offset_of!(guard::Block, zone),
    BLOCK_ZONE_LEN = const offset_of!(guard::Block, zone_len),
    BLOCK_LOW = const offset_of!(guard::Block, low),
    BLOCK_TOP = const offset_of!(guard::Block, top),
    too_deep = sym guard::too_deep,
    slow_entry = sym guard::slow_entry,
    slow_exit = sym guard::slow_exit,
    sandboxed = sym sandbox::CLOSED,
    new_thread = sym guard::new_thread,
    elsewhere_entry = sym elsewhere::entry,
    elsewhere_call = sym elsewhere::call,
    elsewhere_return = sym elsewhere::returned,
);

unsafe extern "C" {
    fn skep_attach_entry_island();
    fn skep_attach_entry_site();
    fn skep_attach_exit_0();
    fn skep_attach_exit_8();
    fn skep_attach_exit_32();
    fn skep_attach_exit_128();
    fn skep_attach_exit_512();
    fn skep_attach_event_end();
    fn skep_attach_switch(
        top: u64,
        f: unsafe extern "C" fn(u64, u64, u64) -> u64,
        a: u64,
        b: u64,
        c: u64,
    ) -> u64;
    static skep_attach_table: AtomicPtr<Table>;
}

/// Calls `f(a, b, c)` on the stack that ends at `top`.
///
/// # Safety
///
/// `top` is aligned to 16 bytes, nobody uses that stack, and it is large enough; `f` may be called
/// with these arguments.
#[inline(always)]
pub(crate) unsafe fn switch(
    top: u64,
    f: unsafe extern "C" fn(u64, u64, u64) -> u64,
    a: u64,
    b: u64,
    c: u64,
) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { skep_attach_switch(top, f, a, b, c) }
}

/// Tells whether an address is in an exit trampoline: whoever returns there was called by one.
#[inline(always)]
pub(crate) fn is_exit(address: u64) -> bool {
    address >= skep_attach_exit_0 as *const () as u64
        && address < skep_attach_event_end as *const () as u64
}

/// The table that the site trampoline uses.
pub(crate) fn table() -> &'static AtomicPtr<Table> {
    // SAFETY: defined in x64.s, 8-aligned, in writable memory, and only accessed as an atomic word.
    unsafe { &skep_attach_table }
}

/// The trampolines, in the order in which islands keep their addresses.
pub(crate) const TRAMPOLINES: [unsafe extern "C" fn(); 7] = [
    skep_attach_entry_island,
    skep_attach_entry_site,
    skep_attach_exit_0,
    skep_attach_exit_8,
    skep_attach_exit_32,
    skep_attach_exit_128,
    skep_attach_exit_512,
];

/// Index in [`TRAMPOLINES`] of the one that islands call for entry hooks.
pub(crate) const ENTRY_ISLAND: usize = 0;
/// Index of the one that compiled-in sites call for entry hooks.
pub(crate) const ENTRY_SITE: usize = 1;
/// Words of arguments on the stack that the exit trampolines copy, and their indices.
pub(crate) const EXITS: [(u32, usize); 5] = [(0, 2), (8, 3), (32, 4), (128, 5), (512, 6)];

impl Meta {
    /// Makes the metadata of a function. Never freed.
    pub(crate) fn new(ip: u64, nr_args: u64) -> &'static Self {
        Box::leak(Box::new(Self {
            plan: AtomicPtr::new(empty()),
            ip,
            body: AtomicU64::new(ip),
            nr_args: AtomicU64::new(nr_args),
            wants: AtomicU32::new(0),
            cookies: [const { AtomicU64::new(0) }; COOKIES],
        }))
    }

    /// Publishes a plan and returns the one before. Pairs with the trampolines' loads of the plan.
    ///
    /// # Safety
    /// It is the empty plan or came from [`Plan::build`], is for this function if its cookies are,
    /// and is not freed before it is replaced here and a drain has succeeded since.
    pub(crate) unsafe fn publish(&self, plan: *mut Plan) -> *mut Plan {
        self.plan.swap(plan, Ordering::SeqCst)
    }
}

/// The shared plan without slots. Never freed.
pub(crate) fn empty() -> *mut Plan {
    use std::sync::OnceLock;
    static PLAN: OnceLock<usize> = OnceLock::new();
    *PLAN.get_or_init(|| Plan::build(&[], Cookies::Words(&[])) as usize) as *mut Plan
}
