//! What the keys of a map look like: a fixed number of bytes, or byte strings.
//!
//! A **key** is `&[u8]` of its own length, wherever one is given or returned alone. Where many keys
//! stand in one buffer, each has a **cell**, and all cells of a map have the same size:
//!
//! ```text
//! Fixed(n)         | key: n bytes |
//! Bytes { max }    | length: 4 bytes | key: max bytes, those behind its end zero | zeroes up to a multiple of 4 |
//! ```
//!
//! Programs pass the address of a fixed key, and of a byte string the address of a [`DynptrUser`].

/// How map definitions of a type describe their keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum KeyForm {
    /// `key_size` is the size of every key.
    Fixed,
    /// As the qp-trie series has it: with a `map_extra`, which is the length of the longest key, the
    /// `key_size` is [`DynptrUser::SIZE`] and keys are byte strings. Without one, keys are fixed.
    Dynptr,
}

impl KeyForm {
    /// Returns what the keys of a map with these sizes look like.
    #[must_use]
    pub const fn shape(self, key_size: u32, map_extra: u64) -> KeyShape {
        match self {
            Self::Dynptr if key_size == DynptrUser::SIZE && map_extra != 0 => {
                let max = if map_extra > KeyShape::LONGEST as u64 {
                    KeyShape::LONGEST
                } else {
                    map_extra as u32
                };
                KeyShape::Bytes { max }
            }
            Self::Fixed | Self::Dynptr => KeyShape::Fixed(key_size),
        }
    }
}

/// What the keys of a map look like.
///
/// ```
/// use skep_isa::KeyShape;
///
/// let shape = KeyShape::Bytes { max: 6 };
/// let mut cell = vec![0xee; shape.cell_size()];
/// assert!(shape.write_cell(&mut cell, b"abc"));
/// assert_eq!(cell, *b"\x03\0\0\0abc\0\0\0\0\0");
/// assert_eq!(shape.read_cell(&cell), Some(&b"abc"[..]));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum KeyShape {
    /// Every key has this many bytes; with 0 there are no keys.
    Fixed(u32),
    /// A key is a string of 1 to `max` bytes. A trailing zero byte counts.
    Bytes {
        /// Bytes of the longest key.
        max: u32,
    },
}

impl KeyShape {
    /// Most bytes of a byte string (`DYNPTR_MAX_SIZE`).
    pub const LONGEST: u32 = 0x00ff_ffff;
    /// Bytes of the length in a cell.
    const LENGTH: usize = 4;

    /// Tells whether a key may have this length.
    #[must_use]
    #[inline]
    pub const fn allows(self, len: usize) -> bool {
        match self {
            Self::Fixed(n) => len == n as usize,
            Self::Bytes { max } => len != 0 && len <= max as usize,
        }
    }

    /// Returns the length of the longest key.
    #[must_use]
    #[inline]
    pub const fn max_len(self) -> usize {
        match self {
            Self::Fixed(n) | Self::Bytes { max: n } => n as usize,
        }
    }

    /// Returns what a definition calls `key_size`: the bytes that a program's pointer leads to.
    #[must_use]
    #[inline]
    pub const fn key_size(self) -> u32 {
        match self {
            Self::Fixed(n) => n,
            Self::Bytes { .. } => DynptrUser::SIZE,
        }
    }

    /// Returns the bytes of a key's cell.
    #[must_use]
    #[inline]
    pub const fn cell_size(self) -> usize {
        match self {
            Self::Fixed(n) => n as usize,
            Self::Bytes { max } => (Self::LENGTH + max as usize).next_multiple_of(4),
        }
    }

    /// Returns the key in a cell; `None` for a cell of another size, or with a length that no key
    /// has.
    #[must_use]
    #[inline]
    pub fn read_cell(self, cell: &[u8]) -> Option<&[u8]> {
        if cell.len() != self.cell_size() {
            return None;
        }
        match self {
            Self::Fixed(_) => Some(cell),
            Self::Bytes { .. } => {
                let (len, rest) = cell.split_first_chunk::<{ Self::LENGTH }>()?;
                let len = u32::from_ne_bytes(*len) as usize;
                if self.allows(len) { rest.get(..len) } else { None }
            }
        }
    }

    /// Fills a cell with a key; `false`, and nothing written, when the cell or the key has a size
    /// that it cannot have.
    #[inline]
    pub fn write_cell(self, cell: &mut [u8], key: &[u8]) -> bool {
        if cell.len() != self.cell_size() || !self.allows(key.len()) {
            return false;
        }
        let rest = match self {
            Self::Fixed(_) => cell,
            Self::Bytes { .. } => {
                let (length, rest) = cell.split_at_mut(Self::LENGTH);
                length.copy_from_slice(&(key.len() as u32).to_ne_bytes());
                rest
            }
        };
        let (to, behind) = rest.split_at_mut(key.len());
        to.copy_from_slice(key);
        behind.fill(0);
        true
    }
}

/// Where a byte string lies, as programs and the bpf() door pass it (`struct bpf_dynptr_user`).
#[doc(alias = "bpf_dynptr_user")]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct DynptrUser {
    /// Its address.
    pub data: u64,
    /// Its length.
    pub size: u32,
    /// Zero.
    pub reserved: u32,
}

impl DynptrUser {
    /// Bytes of the structure: the `key_size` of a map of byte strings.
    pub const SIZE: u32 = size_of::<Self>() as u32;
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: KeyShape = KeyShape::Bytes { max: 5 };

    #[test]
    fn cells_have_one_size_and_keys_their_own() {
        assert_eq!((KeyShape::Fixed(7).cell_size(), BYTES.cell_size()), (7, 12));
        assert_eq!((KeyShape::Fixed(7).key_size(), BYTES.key_size()), (7, 16));
        let mut cell = [0xee; 12];
        for key in [&b"a"[..], b"abcde", b"ab\0", b"\0"] {
            assert!(BYTES.write_cell(&mut cell, key));
            assert_eq!(BYTES.read_cell(&cell), Some(key));
            assert!(cell[4 + key.len()..].iter().all(|b| *b == 0), "{key:?}");
        }
        let mut cell = [0; 3];
        assert!(KeyShape::Fixed(3).write_cell(&mut cell, b"xyz"));
        assert_eq!(KeyShape::Fixed(3).read_cell(&cell), Some(&b"xyz"[..]));
        assert_eq!(KeyShape::Fixed(0).read_cell(&[]), Some(&[][..]), "queues have no keys");
    }

    #[test]
    fn sizes_that_cannot_be_are_refused() {
        let mut cell = [0xee; 12];
        assert!(!BYTES.write_cell(&mut cell, b""));
        assert!(!BYTES.write_cell(&mut cell, b"abcdef"));
        assert!(!BYTES.write_cell(&mut cell[..11], b"abc"));
        assert_eq!(cell, [0xee; 12], "nothing is written");
        assert_eq!(BYTES.read_cell(&cell), None, "the length is garbage");
        assert_eq!(BYTES.read_cell(&[0; 12]), None, "no key is empty");
        assert_eq!(BYTES.read_cell(&[1; 11]), None);
        assert!(!KeyShape::Fixed(4).write_cell(&mut cell[..4], b"abc"));
    }

    #[test]
    fn definitions_tell_the_shape() {
        assert_eq!(KeyForm::Fixed.shape(16, 8), KeyShape::Fixed(16));
        assert_eq!(KeyForm::Dynptr.shape(16, 8), KeyShape::Bytes { max: 8 });
        assert_eq!(KeyForm::Dynptr.shape(8, 0), KeyShape::Fixed(8), "a trie of fixed keys");
        assert_eq!(KeyForm::Dynptr.shape(16, u64::MAX), KeyShape::Bytes { max: KeyShape::LONGEST });
        assert_eq!(KeyForm::Dynptr.shape(16, 0), KeyShape::Fixed(16));
    }
}
