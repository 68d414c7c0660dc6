//! `BPF_MAP_TYPE_HASH`, its per-CPU kind, and the LRU kinds of both.
//!
//! [`table`] is the structure all share: lock-free lookups, changes under striped locks, elements
//! that never move and are used again after a deletion, as in the kernel's preallocated hash.
//! [`plain`] keeps the value inside the element, [`percpu`] keeps one for each slot, and
//! [`in_place`] writes over one under its own lock. [`lru`] finds what to throw out when a map that
//! may do so is full. [`change`] has the table's changes, [`walk`] the reading of all of it.
//! [`ops`] makes maps of them.

mod change;
mod in_place;
mod layout;
mod limbo_list;
mod lru;
mod ops;
pub(crate) mod percpu;
pub(crate) mod plain;
mod pool;
mod table;
mod walk;

pub(crate) use ops::Hash;
