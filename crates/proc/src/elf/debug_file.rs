//! Finding the separate file that holds a stripped file's symbols.
//!
//! Same order as gdb: by build id below `/usr/lib/debug/.build-id`, then by the name in
//! `.gnu_debuglink` next to the file, in `.debug/` there, and below `/usr/lib/debug`.
//! `.gnu_debugdata` (symbols compressed with LZMA inside the file itself, a Fedora habit) is read by
//! `crate::symbolize` only.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::{Elf, SHT_NOBITS, SHT_SYMTAB, Source, u32_at};

const DEBUG_DIR: &str = "/usr/lib/debug";

impl Elf {
    /// Finds the debug file of this file, which lies at `path`; looks for both below `root` (`/`
    /// usually).
    ///
    /// A file counts only if it has symbols and belongs to this one: equal build ids or, when one
    /// of the two has none, the checksum that `.gnu_debuglink` asks for.
    pub fn debug_file(&self, path: &Path, root: &Path) -> Option<(PathBuf, Self)> {
        let own_id = self.build_id();
        let below = |path: &Path| root.join(path.strip_prefix("/").unwrap_or(path));
        let has_symbols =
            |e: &Self| e.sections.iter().any(|s| s.kind == SHT_SYMTAB && s.size >= 24);
        if let Some(id) = own_id.as_ref().map(ToString::to_string)
            && let (Some(first), Some(rest)) = (id.get(..2), id.get(2..))
        {
            let path = below(Path::new(&format!("{DEBUG_DIR}/.build-id/{first}/{rest}.debug")));
            if let Ok(elf) = Self::open(&path)
                && elf.build_id() == own_id
                && has_symbols(&elf)
            {
                return Some((path, elf));
            }
        }
        let (name, crc) = self.debug_link()?;
        let name = Path::new(OsStr::from_bytes(&name));
        let dir = path.parent()?;
        let by_debug_dir = Path::new(DEBUG_DIR).join(dir.strip_prefix("/").unwrap_or(dir));
        for candidate in [dir.join(name), dir.join(".debug").join(name), by_debug_dir.join(name)] {
            let candidate = below(&candidate);
            let Ok(elf) = Self::open(&candidate) else { continue };
            if !has_symbols(&elf) {
                continue;
            }
            let belongs = match (&own_id, elf.build_id()) {
                (Some(own), Some(other)) => *own == other,
                _ => elf.crc32() == Some(crc),
            };
            if belongs {
                return Some((candidate, elf));
            }
        }
        None
    }

    /// Name and checksum in `.gnu_debuglink`.
    fn debug_link(&self) -> Option<(Vec<u8>, u32)> {
        let section =
            self.section(".gnu_debuglink").filter(|s| s.kind != SHT_NOBITS && s.size <= 4096)?;
        let data = self.section_data(section).ok()?;
        let len = data.iter().position(|&b| b == 0).filter(|&n| n > 0)?;
        let crc = (len + 1).next_multiple_of(4);
        data.get(crc..crc + 4)?;
        let name = data.get(..len)?;
        // A path in there would lead out of the directories that are searched.
        (!name.contains(&b'/')).then(|| (name.to_vec(), u32_at(&data, crc)))
    }

    /// CRC-32 (IEEE) of the whole file.
    fn crc32(&self) -> Option<u32> {
        let len = match &self.source {
            Source::File { len, .. } => *len,
            Source::Bytes(b) => b.len() as u64,
        };
        let mut crc = !0;
        let mut at = 0;
        while at < len {
            let step = (len - at).min(1 << 20);
            crc = crc32_update(crc, &self.read("file", at, step).ok()?);
            at += step;
        }
        Some(!crc)
    }
}

const CRC_TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut n = 0;
    while n < 256 {
        let mut c = n as u32;
        let mut bit = 0;
        while bit < 8 {
            c = if c & 1 == 1 { 0xedb8_8320 ^ c >> 1 } else { c >> 1 };
            bit += 1;
        }
        table[n] = c;
        n += 1;
    }
    table
};

fn crc32_update(crc: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(crc, |crc, &b| {
        let entry = CRC_TABLE.get(usize::from(crc.to_le_bytes()[0] ^ b));
        entry.copied().unwrap_or(0) ^ crc >> 8
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc_of_the_standard_check_string() {
        assert_eq!(!crc32_update(!0, b"123456789"), 0xcbf4_3926);
    }
}
