//! What can go wrong with a map, and the error number the kernel has for it.

use skep_isa::MapType;
pub use skep_isa::errno::ENOTSUPP;
pub(crate) use skep_isa::errno::{
    E2BIG, EACCES, EAGAIN, EBADF, EBUSY, EEXIST, EFAULT, EINVAL, ENODATA, ENODEV, ENOENT, ENOMEM,
    ENOSPC, EOPNOTSUPP, EOVERFLOW, EPERM, EXDEV,
};
use skep_isa::errno::{ESTALE, EUCLEAN};

use crate::shm::ObjectError;

/// Why a process that was forked into another pid namespace may not do what takes a lock.
pub(crate) const STRANGER: &str =
    "this process is in another pid namespace than those that use the map";

/// Says why an operation on a map failed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// The definition is not one this map type accepts.
    #[error("cannot make a map of type {map_type}: {what}")]
    Definition {
        /// The type asked for.
        map_type: MapType,
        /// What does not fit.
        what: &'static str,
        /// The kernel's error number for it.
        errno: i32,
    },
    /// No element has this key, or there is no next one.
    #[error("no such element")]
    NoElement,
    /// The element exists and `NOEXIST` was asked.
    #[error("the element exists already")]
    Exists,
    /// The map holds as many elements as it can.
    #[error("the map is full ({max_entries} elements)")]
    Full {
        /// The limit.
        max_entries: u32,
    },
    /// The trie holds as many elements as it can.
    #[error("the trie is full ({max_entries} elements)")]
    NoSpace {
        /// The limit.
        max_entries: u32,
    },
    /// An update names an index beyond the array.
    #[error("index {index} is beyond the array of {max_entries}")]
    Index {
        /// The index.
        index: u32,
        /// The number of elements.
        max_entries: u32,
    },
    /// Flags that this operation does not know.
    #[error("flags {flags:#x} are not known to this operation")]
    Flags {
        /// The flags.
        flags: u64,
    },
    /// A buffer has the wrong size.
    #[error("the {what} has {given} bytes, not {want}")]
    Length {
        /// Which buffer.
        what: &'static str,
        /// Its size.
        given: usize,
        /// The size it should have.
        want: usize,
    },
    /// A key of variable length is empty, or longer than the map's keys may be.
    #[error("a key of this map has 1 to {max} bytes, not {given}")]
    KeyLength {
        /// Its length.
        given: usize,
        /// The length of the longest key.
        max: usize,
    },
    /// The cell of a key in a buffer has another size than the map's cells, or says a length that no
    /// key has.
    #[error("the buffer holds a key with a length that no key of this map has")]
    KeyCell,
    /// The map may not be used this way.
    #[error("not permitted: {why}")]
    Denied {
        /// What stands against it.
        why: &'static str,
    },
    /// This map type has no such operation.
    #[error("a map of type {map_type} has no {operation}")]
    Unsupported {
        /// The type.
        map_type: MapType,
        /// The operation.
        operation: &'static str,
        /// The kernel's error number for it.
        errno: i32,
    },
    /// A value names something that this map cannot hold.
    #[error("the map cannot hold `{value}`: {why}")]
    Value {
        /// The value.
        value: u64,
        /// What does not fit.
        why: &'static str,
        /// The kernel's error number for it.
        errno: i32,
    },
    /// Someone else holds what the operation needs and did not let go in time.
    #[error("{what} is busy")]
    Busy {
        /// What is held.
        what: &'static str,
    },
    /// As [`MapError::Busy`], when it is known who holds it: a thread that is stopped, frozen or
    /// gets no processor.
    #[error("{what} is busy: thread {tid} of process {pid} holds it and does not get on")]
    Held {
        /// What is held.
        what: &'static str,
        /// The process.
        pid: u32,
        /// Its thread.
        tid: u32,
    },
    /// The key a walk should go on from is gone, and its type keeps no place for missing keys.
    #[error("the previous key is gone: begin again, or walk with a cursor")]
    KeyGone,
    /// The file system of the map has no memory left for what should be stored.
    #[error("no memory is left in the map's file system for {what}")]
    NoMemory {
        /// What needs it.
        what: &'static str,
    },
    /// There is too little memory to make the map.
    #[error("cannot make a map of type {map_type}: {source}{}", enough_for(*max_entries))]
    CreationMemory {
        /// The type asked for.
        map_type: MapType,
        /// What it needs and what there is.
        source: Box<ObjectError>,
        /// The largest `max_entries` for which there is memory, where fewer would do.
        max_entries: Option<u32>,
    },
    /// The cursor belongs to another map.
    #[error("the cursor belongs to another map")]
    StaleCursor,
    /// Shared memory holds something no writer of ours leaves there.
    #[error("the map's memory is damaged: {what}")]
    Damaged {
        /// What does not fit.
        what: &'static str,
    },
    /// The file could not be made, opened or mapped.
    #[error(transparent)]
    Object(#[from] ObjectError),
}

fn enough_for(max_entries: Option<u32>) -> String {
    max_entries.map_or(String::new(), |n| format!(", enough for {n} entries"))
}

impl MapError {
    /// Names who holds what is busy, if that was just found out.
    #[cold]
    pub(crate) fn with_holder(self) -> Self {
        match (self, crate::shm::lock::last_given_up()) {
            (Self::Busy { what }, Some((pid, tid))) => Self::Held { what, pid, tid },
            (e, _) => e,
        }
    }

    /// Returns the error number the kernel's bpf() gives in this case.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::Definition { errno, .. }
            | Self::Unsupported { errno, .. }
            | Self::Value { errno, .. } => *errno,
            Self::NoElement => ENOENT,
            Self::Exists => EEXIST,
            Self::Full { .. } | Self::Index { .. } => E2BIG,
            Self::NoSpace { .. } => ENOSPC,
            Self::Flags { .. } | Self::Length { .. } | Self::KeyLength { .. } | Self::KeyCell => {
                EINVAL
            }
            Self::Denied { .. } => EPERM,
            Self::Busy { .. } | Self::Held { .. } => EBUSY,
            Self::KeyGone => EAGAIN,
            Self::StaleCursor => ESTALE,
            Self::Damaged { .. } => EUCLEAN,
            Self::NoMemory { .. } => ENOMEM,
            Self::CreationMemory { source, .. } => source.errno(),
            Self::Object(e) => e.errno(),
        }
    }
}
