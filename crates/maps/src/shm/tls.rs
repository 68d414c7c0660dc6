//! Per-thread words that survive no fork, and the token that names a thread across processes.
//!
//! The words live in initial-exec thread-local storage defined in assembly, so that reading one is a load from
//! `fs:[offset]` in compiled programs too, and so that no allocation or `__tls_get_addr` hides behind an access.
//!
//! A forked child inherits its parent's words but not its rights to them. Every word therefore counts only together with
//! the *generation* it was written under: a number in a page the kernel empties in the child (`MADV_WIPEONFORK`).

use std::arch::{asm, global_asm};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::Relaxed};

use super::{ObjectError, sys};

// Six words: slot, generation of the slot, token, generation of the token, address of the slot's state, and a state for
// when there is none.
global_asm!(
    ".pushsection .tbss.skep_slot,\"awT\",@nobits",
    ".balign 64",
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
        asm!("mov {v}, qword ptr [rip + skep_maps_tls@GOTTPOFF]", "mov {v}, qword ptr fs:[{v} + {w}]",
             v = out(reg) v, w = in(reg) word as u64, options(nostack, readonly, preserves_flags));
    }
    v
}

/// Writes one of this thread's words.
#[inline(always)]
pub(crate) fn set(word: Word, value: u64) {
    // SAFETY: as in `get`.
    unsafe {
        asm!("mov {t}, qword ptr [rip + skep_maps_tls@GOTTPOFF]", "mov qword ptr fs:[{t} + {w}], {v}",
             t = out(reg) _, v = in(reg) value, w = in(reg) word as u64, options(nostack, preserves_flags));
    }
}

/// Adds to the word whose address is in [`Word::State`]. Only this thread changes it; the compiler moves no access to memory
/// across this.
///
/// # Safety
/// The word holds the address of a word that stays mapped.
#[inline(always)]
pub(crate) unsafe fn add_to_state(n: u64) {
    // SAFETY: the caller's duty.
    unsafe {
        asm!("mov {t}, qword ptr [rip + skep_maps_tls@GOTTPOFF]", "mov {t}, qword ptr fs:[{t} + 32]", "add qword ptr [{t}], {n}",
             t = out(reg) _, n = in(reg) n, options(nostack));
    }
}

/// Returns the address of one of this thread's own words.
pub(crate) fn address(word: Word) -> u64 {
    let thread: u64;
    // SAFETY: the first word of a thread's block is its address (x86-64 psABI for thread-local storage).
    unsafe { asm!("mov {t}, qword ptr fs:[0]", t = lateout(reg) thread, options(nostack, readonly, preserves_flags)) };
    thread.wrapping_add_signed(offset(word))
}

static NO_GENERATION: AtomicU64 = AtomicU64::new(0);
static GENERATION: AtomicPtr<AtomicU64> = AtomicPtr::new((&raw const NO_GENERATION).cast_mut());
static LAST_GENERATION: AtomicU64 = AtomicU64::new(0);

/// Returns the generation this process runs under, zero right after a fork or before [`prepare`].
#[inline(always)]
pub(crate) fn generation() -> u64 {
    // SAFETY: points to the static above or to the page made once by `prepare`, which is never unmapped.
    unsafe { (*GENERATION.load(Relaxed)).load(Relaxed) }
}

/// Makes the page that a fork empties. Called whenever a map or slot table is mapped; later calls do nothing.
pub(crate) fn prepare() -> Result<(), ObjectError> {
    if GENERATION.load(Relaxed).cast_const() != &raw const NO_GENERATION {
        return Ok(());
    }
    let page = super::mapping::wiped_on_fork()?;
    // The page itself stays for ever; a thread that loses the race leaves its page unused.
    let _ = GENERATION.compare_exchange((&raw const NO_GENERATION).cast_mut(), page, Relaxed, Relaxed);
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
    // Above everything this thread was marked with: the only thread that a child inherits is the one that forked.
    let last = LAST_GENERATION.load(Relaxed).max(get(Word::SlotGeneration)).max(get(Word::TokenGeneration));
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

/// Returns this thread's token: never zero, unique among living threads of the pid namespace.
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
    let token = u64::from(sys::getpid()) << 22 | u64::from(sys::gettid());
    set(Word::Token, token);
    set(Word::TokenGeneration, generation);
    token
}

/// Returns the token of the process's first thread, which stands for the process.
pub(crate) fn process_token() -> u64 {
    let pid = u64::from(sys::getpid());
    pid << 22 | pid
}

/// Tells whether the thread of a token is gone. `thorough` also finds zombies, at the price of reading /proc.
pub(crate) fn dead(token: u64, thorough: bool) -> bool {
    let (pid, tid) = token_parts(token);
    pid == 0 || tid == 0 || sys::gone_from(pid, tid) || (thorough && sys::gone_or_zombie(tid))
}
