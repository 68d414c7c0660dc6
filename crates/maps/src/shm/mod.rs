//! Shared memory: the only place of this crate that touches raw addresses.
//!
//! Rules:
//!
//! * Memory that another process can write is reached through atomics or through the copies in
//!   [`copy`], never through `&T` or `&mut T` of a plain type. Copy out, then check, then use.
//! * A position read from shared memory is an offset; [`MappedView`] checks it against the mapping
//!   before it becomes an address. What a `MappedView` hands out is always inside its mapping.
//! * Mappings are never shortened or moved while their object lives.
//! * Everything a program can reach while an event runs (`copy`, `lock`, `sys`, `tls`) makes no
//!   libc call, allocates nothing, cannot panic and uses no vector registers: loops are made of
//!   inline-assembly loads and atomic stores, which the compiler neither widens nor turns into
//!   `memcpy`.
//!
//! The file format is described byte by byte in `docs/shm-format.md`.

pub(crate) mod bits;
pub(crate) mod columns;
pub(crate) mod copy;
pub(crate) mod epoch;
mod error;
mod file;
pub(crate) mod hash;
mod header;
mod lease;
pub(crate) mod lock;
mod mapping;
mod object;
pub(crate) mod qp;
pub(crate) mod ranges;
pub(crate) mod reserve;
pub(crate) mod ring;
pub mod spin;
pub(crate) mod sys;
pub(crate) mod table;
pub(crate) mod tags;
pub(crate) mod tls;
pub(crate) mod trie;
pub(crate) mod value;
pub(crate) mod version;
mod view;

use std::fmt;

pub use error::{Limit, ObjectError};
pub use file::{create_whole, mark_used, remove_if_unused, remove_unless};
pub use header::{MAX_META, MAX_PAYLOAD};
pub use lease::Lease;
pub use object::{NewObject, ObjectFile};
pub(crate) use object::{PayloadMode, read_meta};
pub use view::MappedView;

/// The format version this crate writes. It reads older versions too, except for types whose
/// payload has changed since.
pub const VERSION: u32 = 7;

/// Tells what an object file holds. Numbers 2 to 4 are reserved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
#[non_exhaustive]
pub enum ObjectKind {
    /// A map.
    Map = 1,
    /// The table of per-CPU slots of a directory.
    Slots = 5,
}

impl ObjectKind {
    const ALL: [Self; 2] = [Self::Map, Self::Slots];

    fn from_raw(n: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|k| *k as u32 == n)
    }
}

impl fmt::Display for ObjectKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Map => "a map",
            Self::Slots => "a table of slots",
        })
    }
}

/// Slots of a per-CPU map: see [`crate::slots`].
pub const MAX_SLOTS: u32 = 256;

/// Tells what the user of an object may do with its memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Only read: the pages are mapped without write permission.
    ReadOnly,
    /// Read and write.
    ReadWrite,
}

/// The unit of file sizes and mappings.
pub const PAGE: u64 = 4096;

/// Rounds up to whole pages; `None` when that overflows.
#[must_use]
pub const fn page_up(n: u64) -> Option<u64> {
    match n.checked_add(PAGE - 1) {
        Some(n) => Some(n & !(PAGE - 1)),
        None => None,
    }
}

/// Rounds up to a multiple of eight, as map values are.
#[must_use]
pub const fn round8(n: u64) -> u64 {
    n.wrapping_add(7) & !7
}
