//! Positions in a map, for types that can say where an element stands by two numbers.

use crate::error::MapError;

/// A place in the walk through a map. What the two numbers mean is the map type's affair; zeroes
/// are the beginning.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Position {
    pub(crate) major: u64,
    pub(crate) minor: u64,
    pub(crate) strict: Strict,
}

/// What a walk passes over because it is too new.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Strict {
    /// The number of a strict walk (see `shm::epochs`), 0 for a walk that returns all it meets.
    pub(crate) number: u32,
    /// Elements passed over.
    pub(crate) newer: u64,
}

impl Position {
    /// Goes to another place in the same walk.
    #[inline(always)]
    pub(crate) fn go(&mut self, major: u64, minor: u64) {
        (self.major, self.minor) = (major, minor);
    }

    /// Steps through an array: `major` is the next index.
    pub(crate) fn index(
        &mut self,
        entries: u32,
        key: &mut [u8],
        read: impl FnOnce(u32) -> Result<(), MapError>,
    ) -> Result<bool, MapError> {
        let Some(i) = u32::try_from(self.major).ok().filter(|i| *i < entries) else {
            return Ok(false);
        };
        read(i)?;
        key.copy_from_slice(&i.to_ne_bytes());
        self.major += 1;
        Ok(true)
    }
}
