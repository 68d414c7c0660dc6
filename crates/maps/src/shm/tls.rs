//! Per-thread words that survive no fork, and the token that names a thread across processes.
//!
//! The words live in initial-exec thread-local storage defined in assembly, so that reading one is
//! a load from `fs:[offset]` in compiled programs too, and so that no allocation or
//! `__tls_get_addr` hides behind an access.
//!
//! A forked child inherits its parent's words but not its rights to them. Every word therefore
//! counts only together with the *generation* it was written under: a number in a page the kernel
//! empties in the child (`MADV_WIPEONFORK`).
//!
//! A token means something in one pid namespace only. A child that was forked into another one
//! (`unshare`, `clone`) would take all holders of locks for dead and be taken for dead, or for
//! another thread, itself. It has no token ([`is_stranger`]), gets no lock, and runs no program
//! that needs either. The word beside the generation tells, so every child looks for itself.

use std::arch::{asm, global_asm};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::Relaxed};

use skep_sys::listed_thread_word;

use super::error::ObjectError;
use super::sys;

// Six words: slot, generation of the slot, token, generation of the token, address of the slot's
// state, and a state for when there is none. Aligned by no more than a library's `.plt` is: lld leaves a page
// between the two otherwise.
global_asm!(
    ".pushsection .tbss.skep_slot,\"awT\",@nobits",
    ".balign 16",
    ".globl skep_maps_tls",
    ".hidden skep_maps_tls",
    ".type skep_maps_tls,@object",
    ".size skep_maps_tls,48",
    "skep_maps_tls:",
    ".zero 48",
    ".popsection",
);

/// Names one of this thread's words by its byte offset.
#[derive(Clone, Copy)]
pub(crate) enum Word {
    Slot = 0,
    SlotGeneration = 8,
    Token = 16,
    TokenGeneration = 24,
    State = 32,
    NoState = 40,
}

/// Returns the offset of a word from the thread pointer: the same in every thread of the process.
pub(crate) fn offset(word: Word) -> i64 {
    let off: i64;
    // SAFETY: loads the offset the dynamic linker wrote into the global offset table.
    unsafe {
        asm!("mov {off}, qword ptr [rip + skep_maps_tls@GOTTPOFF]", off = lateout(reg) off, options(nostack, readonly, preserves_flags));
    }
    off.wrapping_add(word as i64)
}

/// Reads one of this thread's words.
#[inline(always)]
pub(crate) fn get(word: Word) -> u64 {
    let v: u64;
    // SAFETY: `fs:[offset + word]` is inside the 48 bytes reserved above for this thread.
    unsafe {
        asm!("mov {v}, qword ptr [rip + skep_maps_tls@GOTTPOFF]", listed_thread_word!("mov {v}, qword ptr fs:[{v} + {w}]"),
             v = out(reg) v, w = in(reg) word as u64, options(nostack, readonly, preserves_flags));
    }
    v
}

/// Writes one of this thread's words.
///
/// # Safety
/// Compiled programs find their values by [`Word::Slot`]: one for which all maps have values here.
/// [`Word::State`] is the address of a word that stays mapped. A generation says that the words
/// beside it are so.
#[inline(always)]
pub(crate) unsafe fn set(word: Word, value: u64) {
    // SAFETY: inside the words, as in `get`; what they say is the caller's promise.
    unsafe {
        asm!("mov {t}, qword ptr [rip + skep_maps_tls@GOTTPOFF]", listed_thread_word!("mov qword ptr fs:[{t} + {w}], {v}"),
             t = out(reg) _, v = in(reg) value, w = in(reg) word as u64, options(nostack, preserves_flags));
    }
}

/// Adds to the word whose address is in [`Word::State`]. Only this thread changes it; the compiler
/// moves no access to memory across this.
///
/// # Safety
/// The word holds the address of a word that stays mapped.
#[inline(always)]
pub(crate) unsafe fn add_to_state(n: u64) {
    // SAFETY: the caller's duty.
    unsafe {
        asm!("mov {t}, qword ptr [rip + skep_maps_tls@GOTTPOFF]", listed_thread_word!("mov {t}, qword ptr fs:[{t} + 32]"), "add qword ptr [{t}], {n}",
             t = out(reg) _, n = in(reg) n, options(nostack));
    }
}

/// Returns the address of one of this thread's own words.
pub(crate) fn address(word: Word) -> u64 {
    let thread: u64;
    // SAFETY: the first word of a thread's block is its address (x86-64 psABI for thread-local
    // storage), and so is the word behind an area of thread words.
    unsafe {
        asm!(listed_thread_word!("mov {t}, qword ptr fs:[0]"), t = lateout(reg) thread, options(nostack, readonly, preserves_flags))
    };
    thread.wrapping_add_signed(offset(word))
}

static NO_GENERATION: AtomicU64 = AtomicU64::new(0);
static GENERATION: AtomicPtr<AtomicU64> = AtomicPtr::new((&raw const NO_GENERATION).cast_mut());
static LAST_GENERATION: AtomicU64 = AtomicU64::new(0);

/// Returns the generation this process runs under, zero right after a fork or before [`prepare`].
#[inline(always)]
pub(crate) fn generation() -> u64 {
    // SAFETY: points to the static above or to the page made once by `prepare`, which is never
    // unmapped.
    unsafe { (*GENERATION.load(Relaxed)).load(Relaxed) }
}

/// In the second word of the page that a fork empties, where zero is a process that has not looked
/// yet: it is in the pid namespace of the process that first mapped an object.
const HOME: u64 = 1;
/// In the same word: it is in another pid namespace, or cannot tell.
const STRANGER: u64 = 2;
/// In the third word: the process was counted as one that stays out.
const COUNTED: u64 = 1;

/// The pid namespace in which this process, or the one it was forked from, first mapped an object.
static NAMESPACE: AtomicU64 = AtomicU64::new(0);
/// The process that last knew that it is in there.
static LAST_HOME: AtomicU64 = AtomicU64::new(0);

/// Tells whether this process is in another pid namespace than the one whose threads its tokens
/// would name. Safe on the event path.
#[inline(always)]
pub(crate) fn is_stranger() -> bool {
    match page(1) {
        None => false,
        Some(word) => match word.load(Relaxed) {
            HOME => false,
            STRANGER => true,
            _ => look_around(),
        },
    }
}

/// Returns the word that [`generation`] reads; `None` before [`prepare`].
pub(crate) fn generation_word() -> Option<&'static AtomicU64> {
    page(0)
}

/// Returns a word of the page that a fork empties.
#[inline(always)]
fn page(word: usize) -> Option<&'static AtomicU64> {
    let page = GENERATION.load(Relaxed);
    // SAFETY: the page made by `prepare`, which is never unmapped.
    (page.cast_const() != &raw const NO_GENERATION).then(|| unsafe { &*page.add(word) })
}

#[cold]
#[inline(never)]
fn look_around() -> bool {
    if sys::is_closed() {
        // In a sandbox nobody can be asked; the child has no slot there either.
        return true;
    }
    let home = is_home(
        NAMESPACE.load(Relaxed),
        sys::pid_namespace(),
        LAST_HOME.load(Relaxed),
        sys::getppid().into(),
    );
    if home {
        LAST_HOME.store(sys::getpid().into(), Relaxed);
    }
    if let Some(word) = page(1) {
        word.store(if home { HOME } else { STRANGER }, Relaxed);
    }
    !home
}

/// Tells whether a forked process is in the namespace `namespace`, when it finds itself in `here`
/// (0: it cannot tell), was made by `parent` (0: somebody further out), and `last` was the nearest
/// of its forefathers that was known to be in there.
fn is_home(namespace: u64, here: u64, last: u64, parent: u64) -> bool {
    match here {
        // The first process of any namespace is number 1, so that number says nothing.
        0 => parent != 0 && parent == last && last != 1,
        here => here == namespace,
    }
}

/// Tells, once a process, that it is to be counted as one that stays out.
pub(crate) fn begin_to_stay_out() -> bool {
    page(2).is_some_and(|word| word.swap(COUNTED, Relaxed) != COUNTED)
}

/// Makes the page that a fork empties. Called whenever a map or slot table is mapped; later calls
/// do nothing.
pub(crate) fn prepare() -> Result<(), ObjectError> {
    if GENERATION.load(Relaxed).cast_const() != &raw const NO_GENERATION {
        return Ok(());
    }
    let page = super::mapping::wiped_on_fork()?;
    let namespace = sys::pid_namespace();
    // SAFETY: the second word of a page that nobody else knows of.
    unsafe { &*page.add(1) }.store(HOME, Relaxed);
    let _ = NAMESPACE.compare_exchange(0, namespace, Relaxed, Relaxed);
    LAST_HOME.store(sys::getpid().into(), Relaxed);
    // The page itself stays for ever; a thread that loses the race leaves its page unused.
    let _ =
        GENERATION.compare_exchange((&raw const NO_GENERATION).cast_mut(), page, Relaxed, Relaxed);
    renew();
    Ok(())
}

/// Begins a generation if none runs, and returns the one that runs.
#[cold]
pub(crate) fn renew() -> u64 {
    let page = GENERATION.load(Relaxed);
    if page.cast_const() == &raw const NO_GENERATION {
        return 0;
    }
    // SAFETY: see `generation`.
    let page = unsafe { &*page };
    // Above everything this thread was marked with: the only thread that a child inherits is the
    // one that forked.
    let last = LAST_GENERATION
        .load(Relaxed)
        .max(get(Word::SlotGeneration))
        .max(get(Word::TokenGeneration));
    let next = last.wrapping_add(1);
    match page.compare_exchange(0, next, Relaxed, Relaxed) {
        Ok(_) => {
            LAST_GENERATION.fetch_max(next, Relaxed);
            next
        }
        Err(running) => running,
    }
}

/// Makes every thread's slot invalid, so that each claims anew at its next run.
pub(crate) fn advance() {
    let page = GENERATION.load(Relaxed);
    if page.cast_const() != &raw const NO_GENERATION {
        let next = LAST_GENERATION.fetch_add(1, Relaxed).wrapping_add(1);
        // SAFETY: see `generation`.
        unsafe { (*page).store(next, Relaxed) };
    }
}

/// Bits of a token: process id above thread id, 22 each (the kernel's `PID_MAX_LIMIT` is 2^22).
pub(crate) const TOKEN_BITS: u32 = 44;

/// Returns the process and thread of a token.
pub(crate) const fn token_parts(token: u64) -> (u32, u32) {
    (((token >> 22) & 0x3f_ffff) as u32, (token & 0x3f_ffff) as u32)
}

/// Returns this thread's token: unique among living threads of the pid namespace; zero, and then it
/// can have no lock, if it [is in another one](is_stranger).
#[inline(always)]
pub(crate) fn token() -> u64 {
    let generation = generation();
    if generation != 0 && get(Word::TokenGeneration) == generation {
        return get(Word::Token);
    }
    token_anew()
}

#[cold]
#[inline(never)]
fn token_anew() -> u64 {
    let generation = renew();
    if is_stranger() {
        return 0;
    }
    let token = u64::from(sys::getpid()) << 22 | u64::from(sys::gettid());
    // SAFETY: the token names this thread, in this generation.
    unsafe {
        set(Word::Token, token);
        set(Word::TokenGeneration, generation);
    }
    token
}

/// Returns the token of the process's first thread, which stands for the process.
pub(crate) fn process_token() -> u64 {
    let pid = u64::from(sys::getpid());
    pid << 22 | pid
}

/// Tells whether the thread of a token is gone. `thorough` also finds zombies, at the price of
/// reading /proc. Who cannot tell says no.
pub(crate) fn dead(token: u64, thorough: bool) -> bool {
    let (pid, tid) = token_parts(token);
    !is_stranger()
        && (pid == 0
            || tid == 0
            || sys::gone_from(pid, tid)
            || (thorough && sys::gone_or_zombie(tid)))
}

/// As [`dead`], for a thread of which the process is not known.
pub(crate) fn thread_is_dead(tid: u32, thorough: bool) -> bool {
    !is_stranger() && (sys::gone(tid) || (thorough && sys::gone_or_zombie(tid)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_cannot_tell_where_he_is_stays_out() {
        let cases = [
            ("the inode says it", (70, 70, 5, 1), true),
            ("another one", (70, 71, 5, 5), false),
            ("no /proc, forked by one who was at home", (70, 0, 5, 5), true),
            ("no /proc, forked from outside", (70, 0, 5, 0), false),
            ("no /proc, forked by another one", (70, 0, 5, 6), false),
            ("no /proc, forked by the first of some namespace", (70, 0, 1, 1), false),
        ];
        for (name, (namespace, here, last, parent), home) in cases {
            assert_eq!(is_home(namespace, here, last, parent), home, "{name}");
        }
        assert!(!is_stranger());
        assert!(sys::pid_namespace() != 0, "/proc is mounted");
    }
}
