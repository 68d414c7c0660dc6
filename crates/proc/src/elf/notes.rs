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

#[cfg(test)]
mod tests {
    use super::*;

    /// A note as assemblers write it.
    fn note(kind: u32, name: &[u8], desc: &[u8]) -> Vec<u8> {
        let mut out: Vec<u8> = [name.len() as u32, desc.len() as u32, kind]
            .iter()
            .flat_map(|w| w.to_le_bytes())
            .collect();
        for part in [name, desc] {
            out.extend_from_slice(part);
            out.resize(out.len().next_multiple_of(4), 0);
        }
        out
    }

    fn described(at: u64, base: u64, semaphore: u64, texts: &[u8]) -> Vec<u8> {
        let words = [at, base, semaphore].map(u64::to_le_bytes).concat();
        [&words, texts].concat()
    }

    #[test]
    fn probes_move_with_their_base() {
        let desc = described(0x1000, 0x2000, 0x3000, b"demo\0request\08@%rdi -4@$5\0");
        let want = |vaddr, semaphore| Probe {
            provider: "demo".to_owned(),
            name: "request".to_owned(),
            arguments: "8@%rdi -4@$5".to_owned(),
            vaddr,
            semaphore,
        };
        assert_eq!(probe(&desc, 0x2000), Some(want(0x1000, 0x3000)));
        assert_eq!(probe(&desc, 0x2100), Some(want(0x1100, 0x3100)), "prelinked");
        assert_eq!(probe(&desc, 0), Some(want(0x1000, 0x3000)), "without a base");
        let none = described(0x1000, 0x2000, 0, b"p\0n\0\0");
        assert!(probe(&none, 0x2100).is_some_and(|p| p.semaphore == 0 && p.arguments.is_empty()));
    }

    #[test]
    fn damaged_notes_end_where_they_are_damaged() {
        let desc = described(1, 2, 3, b"a\0b\0c\0");
        let two = [note(3, b"stapsdt\0", &desc), note(3, b"GNU\0", b"12345678")].concat();
        let count = |bytes: &[u8]| Notes { rest: bytes, step: 4 }.count();
        assert_eq!(count(&two), 2);
        assert_eq!(build_id_in_notes(&two, 4), Some(BuildId(b"12345678".to_vec())));
        for len in 0..two.len() {
            assert!(count(&two[..len]) < 2, "{len}");
            let _ = probe(&desc[..len.min(desc.len())], 7);
        }
        for at in 0..12 {
            let mut wrong = two.clone();
            wrong[at] = 0xff;
            assert!(count(&wrong) <= 2);
        }
    }
}
