//! Keys that are indices: four bytes in the machine's order.

use crate::error::MapError;

/// Reads an index out of a user's key.
pub(crate) fn index(key: &[u8]) -> u32 {
    key.try_into().map(u32::from_ne_bytes).unwrap_or(u32::MAX)
}

/// The key after `key` in an array.
pub(crate) fn next_index(key: Option<&[u8]>, entries: u32, out: &mut [u8]) -> Result<(), MapError> {
    let next = match key.map(index) {
        Some(i) if i < entries => i + 1,
        _ => 0,
    };
    if next >= entries {
        return Err(MapError::NoElement);
    }
    out.copy_from_slice(&next.to_ne_bytes());
    Ok(())
}
