//! The file with the table of slots of a skep directory.
//!
//! ```text
//! payload   0 highest slot ever claimed + 1   8 processes that stay out   64 lock of the shared slot
//!         128 owner of each slot (a token, 0 free)   2176 state of each slot's runs, a line each
//! ```

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::cpus::possible_cpus;
use crate::error::MapError;
use crate::shm::columns::Columns;
use crate::shm::{
    Access, MAX_SLOTS, NewObject, ObjectError, ObjectFile, ObjectKind, remove_if_unused, sys, tls,
};

/// Largest value of a slot (the kernel: `PCPU_MIN_UNIT_SIZE`).
pub(crate) const MAX_PERCPU_VALUE: u32 = 32 << 10;
/// Name of the table file in the skep directory.
pub const FILE_NAME: &str = "slots";

const HIGHEST: u64 = 0;
/// Processes that stay out.
const STRANGERS: u64 = 8;
const SHARED_LOCK: u64 = 64;
const OWNERS: u64 = 128;
/// One line a slot, so that owners do not share a cache line: runs begun and not ended in the
/// low [`DEPTH`] bits, ended ones above.
const STATES: u64 = OWNERS + MAX_SLOTS as u64 * 8;
const STATE: u64 = 64;

/// The table of slots of one skep directory.
#[derive(Debug)]
pub struct SlotTable {
    file: ObjectFile,
    pub(super) slots: u32,
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

    /// Returns the number of slots that were ever in use at once, counted from the lowest.
    #[must_use]
    pub fn highest(&self) -> u32 {
        let n = self.highest_word().map_or(0, |w| w.load(Relaxed));
        n.min(u64::from(self.slots)) as u32
    }

    /// Returns how many processes of this directory would have run programs but [stay
    /// out](crate::stays_out), as they were forked into another pid namespace.
    #[must_use]
    pub fn strangers(&self) -> u64 {
        self.strangers_word().map_or(0, |w| w.load(Relaxed))
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
    fn is_mine(&self, slot: u32) -> bool {
        self.owner(slot).is_some_and(|(pid, _)| pid == sys::getpid())
    }

    /// Tells whether the values of a slot need memory in every map that this process opens: there
    /// is a processor for it, or a thread of this process owns it.
    pub(crate) fn needs_memory(&self, slot: u32) -> bool {
        slot < possible_cpus() || self.is_mine(slot)
    }

    /// The word with the highest slot that was ever claimed, plus one.
    pub(super) fn highest_word(&self) -> Option<&AtomicU64> {
        self.file.payload().word(HIGHEST)
    }

    /// The word that counts processes that stay out.
    pub(super) fn strangers_word(&self) -> Option<&AtomicU64> {
        self.file.payload().word(STRANGERS)
    }

    /// The lock of the shared last slot.
    pub(super) fn shared_lock(&self) -> Option<&AtomicU64> {
        self.file.payload().word(SHARED_LOCK)
    }

    pub(super) fn owner_word(&self, slot: u32) -> Option<&AtomicU64> {
        if slot >= self.slots {
            return None;
        }
        self.file.payload().word(OWNERS.wrapping_add(u64::from(slot).wrapping_mul(8)))
    }

    /// The word that tells of a slot's runs; none in tables that older versions made.
    pub(super) fn state_word(&self, slot: u32) -> Option<&AtomicU64> {
        if slot >= self.slots {
            return None;
        }
        self.file.payload().word(STATES.wrapping_add(u64::from(slot).wrapping_mul(STATE)))
    }
}

/// Tables this process has open, so that many maps of a directory share one mapping.
static OPEN: Mutex<Vec<Weak<SlotTable>>> = Mutex::new(Vec::new());

/// The list of open tables, held: a child that is forked meanwhile can open maps.
#[derive(Debug)]
pub struct HeldTables(
    #[allow(dead_code, reason = "it is held")] MutexGuard<'static, Vec<Weak<SlotTable>>>,
);

impl HeldTables {
    /// Takes the list, for the time of a `fork`; no map is opened meanwhile.
    #[must_use]
    pub fn take() -> Self {
        Self(OPEN.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

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
