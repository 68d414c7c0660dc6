//! A map: [`open`] makes and opens it, users work with it through [`user`], programs through
//! [`prog`].

#[cfg(test)]
mod bytes_keys;
mod open;
#[cfg(feature = "users")]
mod ordered;
pub(crate) mod prog;
#[cfg(feature = "users")]
mod user;

use std::sync::Arc;

use skep_isa::{KeyShape, MapShape, MapType};

use crate::def::MapDef;
use crate::ops::MapOps;
use crate::perf_event_array::PerfEventArray;
use crate::shm::ObjectFile;
use crate::shm::epoch::InsertionEpochs;
use crate::shm::ring::RingMemory;
use crate::stack_trace::StackTrace;

/// What a map has besides elements.
#[derive(Debug)]
pub(crate) enum Special {
    None,
    Ringbuf(Arc<RingMemory>),
    UserRingbuf(Arc<RingMemory>),
    PerfEvents(Arc<PerfEventArray>),
    Stacks(Arc<StackTrace>),
}

/// An open map.
///
/// Any number of threads and processes may use a map at once. The file counts as used while the
/// value lives, in this process or in a child forked meanwhile.
pub struct Map {
    def: MapDef,
    file: Arc<ObjectFile>,
    ops: Box<dyn MapOps>,
    special: Special,
    keys: KeyShape,
    /// Lengths that keys may have.
    key_lengths: KeyLengths,
    per_cpu: bool,
    /// Bytes of a user's value, for types where they never change: all that are not per-CPU.
    #[cfg(feature = "users")]
    value_size: usize,
    /// The same where a lookup without flags is allowed and copies just these; else more than any
    /// buffer has.
    #[cfg(feature = "users")]
    plain_value: usize,
    epochs: InsertionEpochs,
    /// Elements of the type come and go, whether the file tells when or not.
    has_epochs: bool,
}

impl std::fmt::Debug for Map {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Map")
            .field("id", &self.id())
            .field("def", &self.def)
            .finish_non_exhaustive()
    }
}

impl Map {
    /// Returns the definition the map was made with.
    #[must_use]
    pub fn def(&self) -> &MapDef {
        &self.def
    }

    /// Returns the map's number.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.file.id()
    }

    /// Returns the file behind the map.
    #[must_use]
    pub fn file(&self) -> &ObjectFile {
        &self.file
    }

    /// Returns a number that no other map has.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.file.generation()
    }

    /// Returns what the map's keys look like, and how they stand in buffers.
    #[inline]
    #[must_use]
    pub fn key_shape(&self) -> KeyShape {
        self.keys
    }

    /// Returns what generated code may know of the map.
    #[must_use]
    pub fn shape(&self) -> MapShape {
        self.ops.shape()
    }

    /// Returns the address of byte 0 of the payload: for arrays, of value 0.
    #[must_use]
    pub fn value_base(&self) -> u64 {
        self.file.payload().base()
    }

    /// Returns the bytes of a value as [`Map::lookup`] gives it: for per-CPU types, all shown
    /// values.
    #[cfg(feature = "users")]
    #[must_use]
    #[inline]
    pub fn user_value_size(&self) -> usize {
        if self.per_cpu { self.ops.user_value_size() } else { self.value_size }
    }

    /// Tells whether somebody may wait for programs that have found something in the map, as
    /// [`Take::Exact`](crate::Take::Exact) does: then each of their runs begins with
    /// [`slots::enter`](crate::slots::enter). Maps that lead to such maps are among them.
    #[must_use]
    pub fn is_waited_for(&self) -> bool {
        self.ops.is_waited_for()
            || matches!(
                self.def.map_type,
                MapType::ArrayOfMaps | MapType::HashOfMaps | MapType::ProgArray
            )
    }

    /// Tells whether the map keeps a value for each slot.
    #[must_use]
    pub fn is_per_cpu(&self) -> bool {
        self.per_cpu
    }

    #[cfg(feature = "users")]
    pub(crate) fn ops(&self) -> &dyn MapOps {
        &*self.ops
    }

    /// Tells whether elements of the type come and go.
    pub(crate) fn has_epochs(&self) -> bool {
        self.has_epochs
    }
}

/// Lengths that keys may have: from the least on, so many more.
#[derive(Clone, Copy)]
struct KeyLengths {
    least: usize,
    more: usize,
}

impl KeyLengths {
    fn of(keys: KeyShape) -> Self {
        match keys {
            KeyShape::Fixed(n) => Self { least: n as usize, more: 0 },
            KeyShape::Bytes { max } => Self { least: 1, more: (max as usize).saturating_sub(1) },
        }
    }

    #[cfg(feature = "users")]
    #[inline(always)]
    fn allow(self, len: usize) -> bool {
        len.wrapping_sub(self.least) <= self.more
    }
}
