//! ELF notes: the build id.

use std::fmt;

use super::u32_at;

/// The identity of a linked file, of any length the linker chose (20 bytes usually).
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BuildId(pub Vec<u8>);

impl fmt::Display for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl fmt::Debug for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BuildId({self})")
    }
}

/// Finds `NT_GNU_BUILD_ID` among notes, as a note segment holds them in the file or in memory.
///
/// `align` is the segment's; 8 is the only one that differs from the usual padding of 4.
pub fn build_id_in_notes(notes: &[u8], align: u64) -> Option<BuildId> {
    let step = if align == 8 { 8 } else { 4 };
    let mut rest = notes;
    while rest.len() >= 12 {
        let name_len = u32_at(rest, 0) as usize;
        let desc_len = u32_at(rest, 4) as usize;
        let kind = u32_at(rest, 8);
        let desc = 12usize.checked_add(name_len)?.checked_next_multiple_of(step)?;
        let end = desc.checked_add(desc_len)?;
        let name = rest.get(12..12 + name_len)?;
        let id = rest.get(desc..end)?;
        if kind == 3 && name == b"GNU\0" && !id.is_empty() {
            return Some(BuildId(id.to_vec()));
        }
        rest = rest.get(end.checked_next_multiple_of(step)?..)?;
    }
    None
}
