//! Maps with types: keys and values are Rust types without padding or pointers, checked against the
//! sizes in the map when it is taken for a typed one.
//!
//! All operations are the kernel's on such maps, and safe beside programs and other processes.
//! Values that a program changes in place while they are copied may be half old and half new, as
//! with the kernel's maps; those of up to eight bytes never are.

mod array;
mod entries;
mod hash;
mod percpu;
mod qp_trie;
mod queue;

use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::error::Result;
use crate::map::Map;

pub use array::Array;
pub use entries::Entries;
pub use hash::{HashMap, LpmTrie};
pub use percpu::{PerCpuArray, PerCpuHashMap};
pub use qp_trie::{Entry, OrderedEntries, QpTrie, TrieKey};
pub use queue::{Queue, Stack};

/// What can be a key, a value or a record: any bytes are one, and it is nothing but its bytes. All
/// integers and arrays of them are; a structure gets it by deriving `zerocopy`'s traits.
///
/// ```
/// use skep::zerocopy::{FromBytes, Immutable, IntoBytes};
///
/// #[derive(FromBytes, IntoBytes, Immutable, Clone, Copy)]
/// #[repr(C)]
/// struct Event {
///     pid: u32,
///     size: u32,
/// }
///
/// fn is_plain<T: skep::Plain>() {}
/// is_plain::<Event>();
/// ```
pub trait Plain: FromBytes + IntoBytes + Immutable + Copy {}

impl<T: FromBytes + IntoBytes + Immutable + Copy> Plain for T {}

/// A map that keys and values have types in.
pub trait Typed: Sized {
    /// Takes a map for one of this type.
    ///
    /// # Errors
    /// When it is of another type, or its keys or values have another size.
    fn of(map: Map) -> Result<Self>;
}

/// Reads a value from bytes that have its size: what `Typed::of` has made sure of.
fn value<T: Plain>(map: &Map, bytes: &[u8]) -> Result<T> {
    T::read_from_bytes(bytes).map_err(|_| crate::Error::Size {
        map: map.name().to_owned(),
        what: "value",
        rust: std::any::type_name::<T>(),
        wanted: size_of::<T>(),
        is: bytes.len(),
    })
}
