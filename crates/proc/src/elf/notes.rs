//! ELF notes: the build id, and probes that a program declares (USDT).

use std::fmt;

use super::{Elf, ElfError, u32_at};

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
    let id = Notes { rest: notes, step: if align == 8 { 8 } else { 4 } }
        .find(|n| n.kind == 3 && n.name == b"GNU\0" && !n.desc.is_empty())?;
    Some(BuildId(id.desc.to_vec()))
}

/// One note.
struct Note<'n> {
    kind: u32,
    /// With the 0 at its end.
    name: &'n [u8],
    desc: &'n [u8],
}

/// Notes that stand behind each other, as far as they are whole.
struct Notes<'n> {
    rest: &'n [u8],
    step: usize,
}

impl<'n> Iterator for Notes<'n> {
    type Item = Note<'n>;

    fn next(&mut self) -> Option<Note<'n>> {
        let rest = self.rest;
        if rest.len() < 12 {
            return None;
        }
        let name_len = u32_at(rest, 0) as usize;
        let desc_len = u32_at(rest, 4) as usize;
        let kind = u32_at(rest, 8);
        let desc = 12usize.checked_add(name_len)?.checked_next_multiple_of(self.step)?;
        let end = desc.checked_add(desc_len)?;
        let note = Note { kind, name: rest.get(12..12 + name_len)?, desc: rest.get(desc..end)? };
        // The last one may lack its padding.
        let next = end.checked_next_multiple_of(self.step)?;
        self.rest = rest.get(next..).unwrap_or_default();
        Some(note)
    }
}

/// A probe that a program declares: the `DTRACE_PROBE` of `sys/sdt.h`.
#[doc(alias = "USDT")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Whose it is.
    pub provider: String,
    /// Its name.
    pub name: String,
    /// Where its arguments are, as assembly has them: `8@%rdi -4@$5 8@-8(%rbp)`.
    pub arguments: String,
    /// The link-time address of its instruction, a no-operation.
    pub vaddr: u64,
    /// The link-time address of 16 bits that count who listens; 0: there are none.
    pub semaphore: u64,
}

impl Elf {
    /// Lists the probes that the file declares, in the order of its notes. One at several places is
    /// listed for each.
    ///
    /// # Errors
    ///
    /// When the notes cannot be read.
    pub fn probes(&self) -> Result<Vec<Probe>, ElfError> {
        const SYSTEMTAP: &[u8] = b"stapsdt\0";
        let base = self.section(".stapsdt.base").map_or(0, |s| s.vaddr);
        let mut all = Vec::new();
        for section in self.sections().iter().filter(|s| s.name == b".note.stapsdt") {
            let notes = self.section_data(section)?;
            let notes = Notes { rest: &notes, step: 4 };
            let of_probes = notes.filter(|n| n.kind == 3 && n.name == SYSTEMTAP);
            all.extend(of_probes.filter_map(|n| probe(n.desc, base)));
        }
        Ok(all)
    }
}

/// Reads what describes a probe: three addresses, then three texts. The addresses move with `base`,
/// which the second one is as the linker knew it.
fn probe(desc: &[u8], base: u64) -> Option<Probe> {
    let (words, texts) = desc.split_at_checked(24)?;
    let [at, linked, semaphore] = [0, 8, 16]
        .map(|n| words.get(n..n + 8).and_then(|w| w.try_into().ok()).map(u64::from_le_bytes));
    let moved = if base == 0 { 0 } else { base.wrapping_sub(linked?) };
    let mut texts = texts.split(|b| *b == 0).map(|t| String::from_utf8_lossy(t).into_owned());
    Some(Probe {
        provider: texts.next()?,
        name: texts.next()?,
        arguments: texts.next()?,
        vaddr: at?.wrapping_add(moved),
        semaphore: match semaphore? {
            0 => 0,
            semaphore => semaphore.wrapping_add(moved),
        },
    })
}
