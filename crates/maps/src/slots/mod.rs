//! Per-CPU slots: the number under which a thread finds *its* value of a per-CPU map.
//!
//! In the kernel a program is not interrupted by another on its CPU, so a plain increment of a
//! per-CPU value is exact. User space has no such promise about CPUs. Here a *thread* owns a slot,
//! exclusively among all threads of all processes that share the directory, from its first program
//! run until it ends: increments stay exact with any number of threads and cost nothing atomic.
//!
//! * One table file a directory, [`MAX_SLOTS`] slots. A slot's word holds its owner's token
//!   (process and thread id).
//! * A thread takes the lowest free slot, so slots in use stay few: before the highest slot ever
//!   used would pass a power of two, and when all are taken, slots of dead threads are swept free.
//! * When more threads live than there are slots, the others share the last one, each taking a lock
//!   on it around every run. That is slow and still exact. The lock survives its holder's death. A
//!   run that cannot get it within about a second, because its holder is stopped, does not happen
//!   ([`Enter::is_refused`]).
//! * A reader of a per-CPU map sees [`SlotTable::shown`] values: as many as the kernel's possible
//!   CPUs, more if higher slots were ever used.
//! * A forked child owns nothing: a page that the kernel empties on fork tells (`shm/tls.rs`).
//!   Neither `fork` hooks nor thread destructors are needed.
//!
//! The slot number is a 64-bit word at `fs:[`[`tls_offset`]`]`, so that compiled programs read it
//! with one load.

use std::marker::PhantomData;
use std::path::Path;
use std::sync::atomic::{
    AtomicPtr, AtomicU32, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed,
    Ordering::SeqCst,
};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use crate::error::MapError;
use crate::percpu;
pub use crate::shm::MAX_SLOTS;
use crate::shm::columns::{self, Columns};
use crate::shm::lock::{self, NotHeld};
use crate::shm::sys;
use crate::shm::tls::{self, Word};
use crate::shm::{Access, NewObject, ObjectError, ObjectFile, ObjectKind, remove_if_unused};

/// Largest value of a slot (the kernel: `PCPU_MIN_UNIT_SIZE`).
pub(crate) const MAX_PERCPU_VALUE: u32 = 32 << 10;
/// Name of the table file in the skep directory.
pub const FILE_NAME: &str = "slots";

const HIGHEST: u64 = 0;
/// Processes that stay out.
const STRANGERS: u64 = 8;
const SHARED_LOCK: u64 = 64;
const OWNERS: u64 = 128;
/// One line a slot, so that owners do not get in each other's way: runs begun and not ended in the
/// low [`DEPTH`] bits, ended ones above.
const STATES: u64 = OWNERS + MAX_SLOTS as u64 * 8;
const STATE: u64 = 64;
const DEPTH: u32 = 8;
const DEPTH_MASK: u64 = (1 << DEPTH) - 1;
const BEGIN_RUN: u64 = 1;
/// One run less that is not ended, and one more that is.
const END_RUN: u64 = (1 << DEPTH) - 1;
/// Naps of a millisecond for a run that does not end: its thread is stopped.
const NAPS: u32 = 5_000;

/// Slots that a thread claims, one after the other, before it gives up to have one whose columns
/// can be mapped.
const CLAIMS: u32 = 4;

/// What a thread that wants a slot of its own gets.
enum Claim {
    Slot(u32),
    /// Other threads have all there are.
    AllTaken,
    /// There are some, but their columns cannot be mapped in this process.
    NotMapped,
}

/// The table of slots of one skep directory.
#[derive(Debug)]
pub struct SlotTable {
    file: ObjectFile,
    slots: u32,
    possible_cpus: u32,
}

impl SlotTable {
    /// Opens the table of a skep directory, or makes it.
    ///
    /// # Errors
    /// A directory that cannot be written, or a file under the table's name that is none.
    pub fn open_or_create(dir: &Path) -> Result<Arc<Self>, MapError> {
        Self::with_slots(dir, MAX_SLOTS)
    }

    /// As [`SlotTable::open_or_create`] with fewer slots (1 to [`MAX_SLOTS`]) if the table is made
    /// now.
    ///
    /// # Errors
    /// As there.
    pub fn with_slots(dir: &Path, slots: u32) -> Result<Arc<Self>, MapError> {
        let slots = slots.clamp(1, MAX_SLOTS);
        let path = dir.join(FILE_NAME);
        // A file can vanish between the two steps only if somebody removes an unused table; then
        // the next round makes it.
        for _ in 0..8 {
            match Self::open(&path, Access::ReadWrite) {
                Err(e) if e.errno() == crate::error::ENOENT => {}
                // Left by another pid namespace (a container that is gone): nobody's, unless
                // somebody still has it open.
                Err(e) if e.errno() == crate::error::EXDEV => {
                    if !remove_if_unused(&path)? {
                        return Err(e);
                    }
                }
                done => return done,
            }
            let payload_len = STATES + u64::from(MAX_SLOTS) * STATE;
            let new = NewObject {
                kind: ObjectKind::Slots,
                id: 0,
                payload_len,
                meta: &slots.to_le_bytes(),
            };
            match ObjectFile::create(dir, FILE_NAME, &new) {
                Ok(file) => {
                    return Ok(remember(Self { file, slots, possible_cpus: possible_cpus() }));
                }
                Err(e) if e.errno() == crate::error::EEXIST => {}
                Err(e) => return Err(e.into()),
            }
        }
        Err(MapError::Busy { what: "the slot table" })
    }

    fn open(path: &Path, access: Access) -> Result<Arc<Self>, MapError> {
        let file = ObjectFile::open(path, ObjectKind::Slots, access)?;
        let slots = file.meta().try_into().map(u32::from_le_bytes).unwrap_or(0);
        if slots == 0 || slots > MAX_SLOTS || file.payload_len() < OWNERS + u64::from(MAX_SLOTS) * 8
        {
            return Err(ObjectError::Damaged {
                path: path.to_owned(),
                what: "no such number of slots",
            }
            .into());
        }
        Ok(remember(Self { file, slots, possible_cpus: possible_cpus() }))
    }

    /// Finds the table that belongs to an object file: in the nearest directory above it that has
    /// one.
    pub(crate) fn of_object(file: &ObjectFile, access: Access) -> Result<Arc<Self>, MapError> {
        let missing = || ObjectError::Os {
            call: "open",
            path: file.path().with_file_name(FILE_NAME),
            errno: crate::error::ENOENT,
        };
        for dir in file.full_path().ancestors().skip(2).take(8) {
            match Self::open(&dir.join(FILE_NAME), access) {
                Err(e) if e.errno() == crate::error::ENOENT => {}
                done => return done,
            }
        }
        Err(missing().into())
    }

    /// Makes this the table in which this process's threads claim their slots.
    ///
    /// A process runs the programs of one directory. Installing another table makes every thread
    /// claim anew at its next run; no program may be running meanwhile. The table stays mapped
    /// for ever.
    pub fn install(self: &Arc<Self>) {
        let raw = Arc::into_raw(Arc::clone(self)).cast_mut();
        let before = INSTALLED.swap(raw, AcqRel);
        if !before.is_null() && before != raw {
            tls::advance();
        }
    }

    /// Returns the number of slots that were ever in use at once, counted from the lowest.
    #[must_use]
    pub fn highest(&self) -> u32 {
        let n = self.file.payload().word(HIGHEST).map_or(0, |w| w.load(Relaxed));
        n.min(u64::from(self.slots)) as u32
    }

    /// Returns how many processes of this directory would have run programs but [stay
    /// out](crate::stays_out), as they were forked into another pid namespace.
    #[must_use]
    pub fn strangers(&self) -> u64 {
        self.file.payload().word(STRANGERS).map_or(0, |w| w.load(Relaxed))
    }

    /// Returns how many values a reader of a per-CPU map sees: the possible CPUs, or more when
    /// higher slots were used.
    #[must_use]
    pub fn shown(&self) -> u32 {
        self.highest().max(self.possible_cpus)
    }

    /// Returns the number of slots, the shared last one included.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Returns process and thread id of a slot's owner, or `None` when nobody owns it.
    #[must_use]
    pub fn owner(&self, slot: u32) -> Option<(u32, u32)> {
        self.owner_word(slot).map(|w| w.load(Relaxed)).filter(|t| *t != 0).map(tls::token_parts)
    }

    /// Maps the columns of the slots that threads of this process have; those who claim later do it
    /// themselves, and so does every run in the shared slot.
    pub(crate) fn map_own(&self, columns: &Columns) -> Result<(), MapError> {
        // Pairs with the fence in `columns::ensure`: either the claim is seen here, or the columns
        // by who claims.
        std::sync::atomic::fence(SeqCst);
        let own = (0..self.highest()).filter(|slot| self.is_mine(*slot));
        for slot in own {
            if !columns.ensure(slot) {
                return Err(ObjectError::Map { call: "mremap", errno: crate::error::ENOMEM }.into());
            }
        }
        Ok(())
    }

    /// Returns a number that no other table has.
    pub(crate) fn generation(&self) -> u64 {
        self.file.generation()
    }

    /// Tells whether a thread of this process owns a slot.
    pub(crate) fn is_mine(&self, slot: u32) -> bool {
        self.owner(slot).is_some_and(|(pid, _)| pid == sys::getpid())
    }

    fn owner_word(&self, slot: u32) -> Option<&AtomicU64> {
        if slot >= self.slots {
            return None;
        }
        self.file.payload().word(OWNERS.wrapping_add(u64::from(slot).wrapping_mul(8)))
    }

    /// The word that tells of a slot's runs; none in tables that older versions made.
    fn state_word(&self, slot: u32) -> Option<&AtomicU64> {
        if slot >= self.slots {
            return None;
        }
        self.file.payload().word(STATES.wrapping_add(u64::from(slot).wrapping_mul(STATE)))
    }

    /// Waits until every program run that is going on now has ended, in all processes of this
    /// directory.
    ///
    /// What was taken out of a map before is then in no program's hands: a run that begins later
    /// does not find it. Runs of threads that die count as ended.
    ///
    /// # Errors
    /// `EBUSY` when a run does not end within some seconds, since its thread is stopped;
    /// `EOPNOTSUPP` where the kernel lacks `membarrier`, or the table was made by an older
    /// version.
    pub fn wait_for_runs(&self) -> Result<(), MapError> {
        self.wait_for_runs_while(&mut || ())
    }

    /// As [`SlotTable::wait_for_runs`], calling `meanwhile` about every millisecond.
    pub(crate) fn wait_for_runs_while(&self, meanwhile: &mut dyn FnMut()) -> Result<(), MapError> {
        let no = |why| MapError::Denied { why };
        if self.state_word(0).is_none() {
            return Err(no(
                "the slot table was made by an older version, which does not tell when programs have ended",
            ));
        }
        // A run marks itself and then looks into maps, without a fence between: this is the fence,
        // for all of them.
        if !sys::membarrier_global() {
            return Err(no(
                "the kernel offers no `membarrier`, without which the end of programs cannot be told",
            ));
        }
        for slot in 0..self.slots {
            if let (Some(state), Some(owner)) = (self.state_word(slot), self.owner_word(slot)) {
                let begun = state.load(Acquire);
                let depth = begun & DEPTH_MASK;
                let over = |now: u64| {
                    now & DEPTH_MASK == 0 || (now >> DEPTH).wrapping_sub(begun >> DEPTH) >= depth
                };
                wait_until(|| over(state.load(Acquire)), || owner.load(Relaxed), meanwhile)?;
            }
        }
        // Those without a slot of their own run one after the other, under the lock of the last
        // one.
        if let Some(word) = self.file.payload().word(SHARED_LOCK) {
            let held = word.load(Acquire);
            let owner = |word: u64| word & ((1 << tls::TOKEN_BITS) - 1);
            wait_until(
                || owner(held) == 0 || word.load(Acquire) != held,
                || owner(held),
                meanwhile,
            )?;
        }
        Ok(())
    }

    /// Claims a slot of its own, from `from` on, for the calling thread.
    fn claim(&self, token: u64, from: u32) -> Option<u32> {
        let own = self.slots.wrapping_sub(1);
        let mut swept = false;
        let mut attempts = 0u32;
        loop {
            let free = self.lowest_free(from, own, token);
            let highest = self.highest();
            let grows = match free {
                Some(slot) => slot >= highest && slot.is_power_of_two(),
                // A thread without a slot comes here at every run: not every time is worth asking
                // for all owners.
                None => OVERFLOWS.fetch_add(1, Relaxed).is_multiple_of(64),
            };
            if grows && !swept {
                self.sweep(own);
                swept = true;
                continue;
            }
            let slot = free?;
            let word = self.owner_word(slot)?;
            // The former owner's plain stores to its values come before whoever freed the slot saw
            // it dead.
            if word.load(Relaxed) == token
                || word.compare_exchange(0, token, AcqRel, Relaxed).is_ok()
            {
                if let Some(w) = self.file.payload().word(HIGHEST) {
                    w.fetch_max(u64::from(slot).wrapping_add(1), Relaxed);
                }
                if let Some(state) = self.state_word(slot) {
                    let left = state.load(Relaxed);
                    if left & DEPTH_MASK != 0 {
                        // The former owner died in a run.
                        state.store((left | DEPTH_MASK).wrapping_add(1), Relaxed);
                    }
                }
                return Some(slot);
            }
            attempts = attempts.wrapping_add(1);
            if attempts > MAX_SLOTS {
                return None;
            }
        }
    }

    /// Takes the shared last slot for one run.
    fn share(&self) -> Enter {
        let Some(word) = self.file.payload().word(SHARED_LOCK) else { return REFUSED };
        let slot = u64::from(self.slots.wrapping_sub(1));
        if !columns::ensure(slot as u32) {
            return REFUSED;
        }
        match lock::acquire(word) {
            Ok(held) => {
                if !percpu::ensure_all(self.generation(), slot as u32) {
                    lock::release(word, held);
                    return REFUSED;
                }
                // SAFETY: its columns are mapped and have memory. It is no generation's, so it
                // counts for this run only.
                unsafe { tls::set(Word::Slot, slot) };
                if let Some(w) = self.file.payload().word(HIGHEST) {
                    w.fetch_max(slot.wrapping_add(1), Relaxed);
                }
                Enter::new(held.word)
            }
            Err(NotHeld::Mine) => NESTED,
            Err(NotHeld::Stuck | NotHeld::Stranger) => REFUSED,
        }
    }

    fn give_back(&self, slot: u32, token: u64) {
        if let Some(word) = self.owner_word(slot) {
            let _ = word.compare_exchange(token, 0, AcqRel, Relaxed);
        }
    }

    /// As [`SlotTable::claim`], a slot whose columns are mapped. One whose columns cannot be is
    /// given back: what lies at their places in this process is nowhere else.
    fn claim_mapped(&self, token: u64) -> Claim {
        let (mut from, mut tries) = (0u32, 0u32);
        while tries < CLAIMS {
            match self.claim(token, from) {
                None => return Claim::AllTaken,
                Some(slot) if columns::ensure(slot) => return Claim::Slot(slot),
                Some(slot) => {
                    self.give_back(slot, token);
                    from = slot.wrapping_add(1);
                }
            }
            tries = tries.wrapping_add(1);
        }
        Claim::NotMapped
    }

    fn lowest_free(&self, from: u32, own: u32, token: u64) -> Option<u32> {
        let mut slot = from;
        while slot < own {
            // Our own token in a slot we do not hold is a former thread with our ids, so it is
            // dead.
            let owner = self.owner_word(slot)?.load(Relaxed);
            if owner == 0 || owner == token {
                return Some(slot);
            }
            slot = slot.wrapping_add(1);
        }
        None
    }

    fn sweep(&self, own: u32) {
        let mut slot = 0;
        while slot < own {
            if let Some(word) = self.owner_word(slot) {
                let owner = word.load(Relaxed);
                if owner != 0 && tls::dead(owner, false) {
                    let _ = word.compare_exchange(owner, 0, AcqRel, Relaxed);
                }
            }
            slot = slot.wrapping_add(1);
        }
    }
}

/// Waits until `over`, or the thread that `owner` names is gone.
fn wait_until(
    over: impl Fn() -> bool,
    owner: impl Fn() -> u64,
    meanwhile: &mut dyn FnMut(),
) -> Result<(), MapError> {
    let mut tries = 0;
    let mut patience = sys::Patience::default();
    while !over() {
        if tries % 16 == 15 {
            let owner = owner();
            if owner == 0 || tls::dead(owner, true) {
                return Ok(());
            }
        }
        match tries {
            0..64 => std::thread::yield_now(),
            _ if tries > 64 + NAPS => {
                if !patience.is_due(tls::token_parts(owner()).1) {
                    return Err(MapError::Busy { what: "a thread that runs a program" });
                }
                tries = 64;
            }
            _ => {
                std::thread::sleep(std::time::Duration::from_millis(1));
                meanwhile();
            }
        }
        tries += 1;
    }
    Ok(())
}

/// Tables this process has open, so that many maps of a directory share one mapping.
static OPEN: Mutex<Vec<Weak<SlotTable>>> = Mutex::new(Vec::new());

fn remember(table: SlotTable) -> Arc<SlotTable> {
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    open.retain(|w| w.strong_count() > 0);
    for known in open.iter().filter_map(Weak::upgrade) {
        if known.file.generation() == table.file.generation()
            && (known.file.writable() || !table.file.writable())
        {
            return known;
        }
    }
    let table = Arc::new(table);
    open.push(Arc::downgrade(&table));
    table
}

static OVERFLOWS: AtomicU32 = AtomicU32::new(0);

/// Ends the claiming of slots in this process and the children it forks: it takes system calls,
/// which a sandbox may punish. Threads that have a slot keep it; runs of others are refused. Maps
/// get memory by being touched from then on.
pub fn close() {
    sys::close();
}

/// The table that `enter` claims in; points into an `Arc` that is never given back.
static INSTALLED: AtomicPtr<SlotTable> = AtomicPtr::new(std::ptr::null_mut());

/// Counts the kernel's possible CPUs, as libbpf does.
#[must_use]
pub fn possible_cpus() -> u32 {
    static COUNT: OnceLock<u32> = OnceLock::new();
    *COUNT.get_or_init(|| {
        let text = std::fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
        count_cpus(&text)
            .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get() as u32))
            .clamp(1, MAX_SLOTS)
    })
}

fn count_cpus(list: &str) -> Option<u32> {
    let mut end = None;
    for range in list.trim().split(',') {
        let last: u32 = range.split('-').next_back()?.parse().ok()?;
        end = end.max(Some(last.checked_add(1)?));
    }
    end
}

/// Returns the offset of the 64-bit slot number from the thread pointer (`fs` on x86-64).
#[must_use]
pub fn tls_offset() -> i32 {
    // Initial-exec offsets lie within the static TLS block, far below 2 GiB.
    tls::offset(Word::Slot) as i32
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
    // SAFETY: came from `Arc::into_raw` in `install`, and that reference is never given back.
    let table = unsafe { &*table };
    let generation = tls::renew();
    if generation == 0 {
        return REFUSED;
    }
    if tls::is_stranger() {
        if tls::begin_to_stay_out()
            && let Some(count) = table.file.payload().word(STRANGERS)
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
            // SAFETY: the columns of the slot are mapped and have memory. An installed table is
            // never unmapped, and this thread's words live as long as it.
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
        if let Some(lock) = unsafe { &*table }.file.payload().word(SHARED_LOCK) {
            lock::release(lock, lock::Held { word, recovered: false });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_counted_to_their_end() {
        for (text, n) in [
            ("0-1\n", Some(2)),
            ("0\n", Some(1)),
            ("0-3,8-11\n", Some(12)),
            ("", None),
            ("x", None),
        ] {
            assert_eq!(count_cpus(text), n, "{text:?}");
        }
    }
}
