//! Byte orders.

/// The order of bytes in the numbers of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Order {
    Little,
    Big,
}

impl Order {
    /// Reads a number; 0 where the bytes end before.
    #[inline(always)]
    pub(super) fn u32(self, bytes: &[u8], at: usize) -> u32 {
        let four = bytes.get(at..).and_then(<[u8]>::first_chunk).copied().unwrap_or_default();
        match self {
            Self::Little => u32::from_le_bytes(four),
            Self::Big => u32::from_be_bytes(four),
        }
    }

    /// Reads a number of two bytes; 0 where the bytes end before.
    #[inline(always)]
    pub(super) fn u16(self, bytes: &[u8], at: usize) -> u16 {
        let two = bytes.get(at..).and_then(<[u8]>::first_chunk).copied().unwrap_or_default();
        match self {
            Self::Little => u16::from_le_bytes(two),
            Self::Big => u16::from_be_bytes(two),
        }
    }

    /// Reads a number of eight bytes; 0 where the bytes end before.
    pub(super) fn u64(self, bytes: &[u8], at: usize) -> u64 {
        let eight = bytes.get(at..).and_then(<[u8]>::first_chunk).copied().unwrap_or_default();
        match self {
            Self::Little => u64::from_le_bytes(eight),
            Self::Big => u64::from_be_bytes(eight),
        }
    }
}
