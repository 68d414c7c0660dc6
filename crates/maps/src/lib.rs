//! Maps: files in shared memory that programs and users read and write at once.
//!
//! A [`Map`] is made with [`Map::create`] from a [`MapDef`] and opened by any other process with
//! [`Map::open`]. Users copy elements in and out; programs reach values in place through the
//! `prog_` methods, which keep to the rules of the event path (no allocation, no libc, no vector
//! registers). Per-CPU maps count on [`slots`].
//!
//! The format of the files ([`ObjectFile`]) is in `docs/shm-format.md`. This crate knows nothing of
//! programs, and does not decide where files lie, how ids are given out, or when files are removed.
//!
//! To read it, begin at the bottom: `shm/` is the memory and knows no maps, `ops` says what a map
//! type must do, each type is a file, `types` is the table of them, `map/` is what users and
//! programs call, and [`dump`] reads whole maps. A key is what [`skep_isa::KeyShape`] says.

#![cfg_attr(not(feature = "users"), allow(dead_code, reason = "what users do is not called then"))]

mod array;
mod bloom_filter;
mod cgroup_array;
mod cpumap;
mod def;
mod devmap;
pub mod dump;
mod error;
mod hash;
mod id_table;
mod index;
mod key_range;
mod layout;
mod lpm_trie;
mod map;
mod map_file;
mod map_in_map;
mod ops;
mod percpu;
mod perf_event_array;
mod prog_array;
mod qp_trie;
mod queue_stack;
mod references;
mod ringbuf;
mod shm;
pub mod slots;
mod stack_trace;
mod types;
mod user_ringbuf;
mod xskmap;

/// Tells whether this process is in another pid namespace than the one in which it, or a process it
/// was forked from, began to use maps; or in one that cannot be told. Then it has no token that
/// names its threads to others, so it takes no locks: users' changes are refused, programs that
/// need a slot do not run ([`slots::enter`]), others get a negative errno from changes. Reading
/// goes on.
///
/// Safe on the event path; a process looks once.
#[must_use]
pub fn stays_out() -> bool {
    shm::tls::is_stranger()
}

pub use def::MapDef;
#[cfg(feature = "users")]
pub use dump::{CURSOR_LEN, Cursor, Iter, Take, Verdict};
pub use error::{ENOTSUPP, MapError};
pub use key_range::{KeyRange, Nearest};
pub use map::Map;
pub use map::prog::ProgWalk;
pub use map_in_map::{InnerMaps, InnerOpener, set_inner_opener};
pub use perf_event_array::PerfReader;
pub use references::drop_references;
pub use ringbuf::Consumer;
pub use shm::ranges::{for_each_column, is_mapped, note_replaced};
pub use shm::spin;
pub use shm::{
    Access, Lease, Limit, MAX_META, MAX_PAYLOAD, MappedView, NewObject, ObjectError, ObjectFile,
    ObjectKind, VERSION, create_whole, mark_used, remove_if_unused, remove_unless,
};
pub use slots::SlotTable;
pub use types::map_types;
pub use user_ringbuf::Drain;

/// Whether this crate is compiled with so much optimization that its part of the event path uses no
/// vector registers.
pub const IS_OPTIMIZED: bool = matches!(env!("SKEP_OPT_LEVEL").as_bytes(), b"2" | b"3");
