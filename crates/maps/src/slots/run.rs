//! A thread's slot while it runs programs.

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicPtr, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::SeqCst,
    fence,
};

use super::claim::Claim;
use super::state::{BEGIN_RUN, END_RUN};
use super::table::SlotTable;
use crate::percpu;
use crate::shm::lock::{self, NotHeld};
use crate::shm::tls::{self, Word};
use crate::shm::{columns, sys};

/// The table that `enter` claims in; points into an `Arc` that only [`SlotTable::replace`] gives back.
static INSTALLED: AtomicPtr<SlotTable> = AtomicPtr::new(std::ptr::null_mut());

/// Ends the claiming of slots in this process and the children it forks: it takes system calls,
/// which a sandbox may punish. Threads that have a slot keep it; runs of others are refused. Maps
/// get memory by being touched from then on.
pub fn close() {
    sys::close();
}

impl SlotTable {
    /// Makes this the table in which this process's threads claim their slots.
    ///
    /// A process runs the programs of one directory. Installing another table makes every thread
    /// claim anew at its next run; no program may be running meanwhile. The table that was
    /// installed before stays mapped ([`SlotTable::replace`] gives it back). Where this one is
    /// installed already, opened by somebody else, nothing changes.
    pub fn install(self: &Arc<Self>) {
        std::mem::forget(self.swap());
    }

    /// As [`SlotTable::install`], but the table that was installed before is given back: unless somebody
    /// else has it open, its mappings go.
    ///
    /// # Safety
    /// No thread of this process is between [`enter`] and [`exit`], or in one of them, and none comes
    /// there before this returns.
    pub unsafe fn replace(self: &Arc<Self>) {
        drop(self.swap());
    }

    /// Makes this the installed table, and returns the one before.
    fn swap(self: &Arc<Self>) -> Option<Arc<Self>> {
        // SAFETY: null, or a table that stays at least until another one is installed.
        let installed = unsafe { INSTALLED.load(Acquire).as_ref() };
        if installed.is_some_and(|table| table.generation() == self.generation()) {
            return None;
        }
        let raw = Arc::into_raw(Arc::clone(self)).cast_mut();
        let before = INSTALLED.swap(raw, AcqRel);
        if before.is_null() {
            return None;
        }
        if before != raw {
            tls::advance();
        }
        // SAFETY: came from `Arc::into_raw` here, and is in nobody else's hands any more.
        Some(unsafe { Arc::from_raw(before) })
    }

    /// Takes the shared last slot for one run.
    fn share(&self) -> Enter {
        let Some(word) = self.shared_lock() else { return REFUSED };
        let slot = u64::from(self.slots.wrapping_sub(1));
        if !columns::ensure(slot as u32) {
            return REFUSED;
        }
        match lock::acquire(word) {
            Ok(held) => {
                // Pairs with that in `fence_runs`.
                fence(SeqCst);
                if !percpu::ensure_all(self.generation(), slot as u32) {
                    lock::release(word, held);
                    return REFUSED;
                }
                // SAFETY: its columns are mapped and have memory. It is no generation's, so it
                // counts for this run only.
                unsafe { tls::set(Word::Slot, slot) };
                if let Some(w) = self.highest_word() {
                    w.fetch_max(slot.wrapping_add(1), Relaxed);
                }
                Enter::new(held.word)
            }
            Err(NotHeld::Mine) => NESTED,
            Err(NotHeld::Stuck | NotHeld::Stranger) => REFUSED,
        }
    }
}

/// Returns the offset of the 64-bit slot number from the thread pointer (`fs` on x86-64).
#[must_use]
pub fn tls_offset() -> i32 {
    // Initial-exec offsets lie within the static TLS block, far below 2 GiB.
    tls::offset(Word::Slot) as i32
}

/// Returns what [`is_entered`] compares: a word that is not 0, and the offset of the thread's word, which
/// has the same value where the thread owns a slot. The word lives for ever. `None`: nobody owns any.
#[must_use]
pub fn owner_words() -> Option<(&'static AtomicU64, i32)> {
    Some((tls::generation_word()?, tls::offset(Word::SlotGeneration) as i32))
}

/// Returns the running thread's slot number. It means something only between [`enter`] and
/// [`exit`].
#[inline(always)]
#[must_use]
pub fn current() -> u32 {
    tls::get(Word::Slot) as u32
}

/// Returns the calling thread as `bpf_get_current_pid_tgid` does: the process id in the upper half,
/// the thread id in the lower.
///
/// Safe on the event path; a system call only at a thread's first use and after a fork.
#[inline(always)]
#[must_use]
pub fn pid_tgid() -> u64 {
    let (pid, tid) = tls::token_parts(tls::token());
    u64::from(pid) << 32 | u64::from(tid)
}

/// What [`enter`] got, to be given to [`exit`] once, by the same thread: one of the constants, or
/// the lock word of the shared slot.
///
/// ```compile_fail,E0277
/// let entered = skep_maps::slots::enter();
/// std::thread::spawn(move || skep_maps::slots::exit(entered));
/// ```
///
/// ```compile_fail,E0382
/// let entered = skep_maps::slots::enter();
/// skep_maps::slots::exit(entered);
/// skep_maps::slots::exit(entered);
/// ```
///
/// ```
/// let entered = skep_maps::slots::enter();
/// skep_maps::slots::exit(entered);
/// ```
#[derive(PartialEq, Eq, Debug)]
#[must_use]
pub struct Enter(u64, PhantomData<*const ()>);

impl Enter {
    const fn new(word: u64) -> Self {
        Self(word, PhantomData)
    }
}

/// The thread has a slot of its own.
const OWNED: Enter = Enter::new(0);
const REFUSED: Enter = Enter::new(1);
/// This run interrupts one of the same thread in the shared slot.
const NESTED: Enter = Enter::new(2);

impl Enter {
    /// Tells whether there is no slot for this run; the program must not run and the event counts
    /// as missed.
    #[inline(always)]
    #[must_use]
    pub fn is_refused(&self) -> bool {
        self.0 == REFUSED.0
    }
}

/// Tells whether the calling thread owns a slot already: three loads. A program that runs without
/// [`enter`] then has its slot, but [`SlotTable::wait_for_runs`] does not wait for it: see
/// [`Map::is_waited_for`](crate::Map::is_waited_for).
#[inline(always)]
#[must_use]
pub fn is_entered() -> bool {
    let generation = tls::generation();
    generation != 0 && tls::get(Word::SlotGeneration) == generation
}

/// Makes sure that the calling thread owns a slot while a program runs.
///
/// Safe on the event path. Every call is followed by [`exit`] with what it returned, also when
/// refused.
#[inline(always)]
pub fn enter() -> Enter {
    if !is_entered() {
        return enter_anew();
    }
    // SAFETY: `enter_anew` set the address when the thread got its slot.
    unsafe { tls::add_to_state(BEGIN_RUN) };
    OWNED
}

#[cold]
#[inline(never)]
fn enter_anew() -> Enter {
    let table = INSTALLED.load(Acquire);
    if table.is_null() || sys::is_closed() {
        return REFUSED;
    }
    // SAFETY: came from `Arc::into_raw` in `swap`, and that reference is not given back while a thread
    // is here (`SlotTable::replace`).
    let table = unsafe { &*table };
    let generation = tls::renew();
    if generation == 0 {
        return REFUSED;
    }
    if tls::is_stranger() {
        if tls::begin_to_stay_out()
            && let Some(count) = table.strangers_word()
        {
            count.fetch_add(1, Relaxed);
        }
        return REFUSED;
    }
    match table.claim_mapped(tls::token()) {
        Claim::NotMapped => REFUSED,
        // Without memory for its values in some map, the thread's programs must not run.
        Claim::Slot(slot) if !percpu::ensure_all(table.generation(), slot) => {
            table.give_back(slot, tls::token());
            REFUSED
        }
        Claim::Slot(slot) => {
            // Without a word in the table, one that nobody looks at.
            let state = table
                .state_word(slot)
                .map_or_else(|| tls::address(Word::NoState), |w| w.as_ptr() as u64);
            // SAFETY: the columns of the slot are mapped and have memory. The table stays mapped as long
            // as a thread uses this address, which it does only while its generation is the installed
            // one (`SlotTable::replace`), and this thread's words live as long as it.
            unsafe {
                tls::set(Word::Slot, u64::from(slot));
                tls::set(Word::State, state);
                tls::set(Word::SlotGeneration, generation);
                tls::add_to_state(BEGIN_RUN);
            }
            OWNED
        }
        Claim::AllTaken => table.share(),
    }
}

/// Ends what [`enter`] began: gives the shared slot back, and does nothing for a slot of one's own.
#[inline(always)]
pub fn exit(entered: Enter) {
    if entered.0 == OWNED.0 {
        // SAFETY: `enter` did the same, on this thread: the address was set then at the latest.
        unsafe { tls::add_to_state(END_RUN) };
    } else if entered.0 > NESTED.0 {
        unshare(entered.0);
    }
}

#[cold]
#[inline(never)]
fn unshare(word: u64) {
    let table = INSTALLED.load(Acquire);
    if !table.is_null() {
        // SAFETY: as in `enter_anew`.
        if let Some(lock) = unsafe { &*table }.shared_lock() {
            lock::release(lock, lock::Held { word, recovered: false });
        }
    }
}
