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

mod claim;
mod cpus;
mod run;
mod state;
mod table;
mod wait;

pub use crate::shm::MAX_SLOTS;
pub use cpus::possible_cpus;
pub use run::{Enter, close, current, enter, exit, is_entered, owner_words, pid_tgid, tls_offset};
pub(crate) use table::MAX_PERCPU_VALUE;
pub use table::{FILE_NAME, HeldTables, SlotTable};
