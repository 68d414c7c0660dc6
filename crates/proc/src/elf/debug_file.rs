//! Finding the separate file that holds a stripped file's symbols.
//!
//! Same order as gdb: by build id below `/usr/lib/debug/.build-id`, then by the name in
//! `.gnu_debuglink` next to the file, in `.debug/` there, and below `/usr/lib/debug`.
//! `.gnu_debugdata` (symbols compressed with LZMA inside the file itself, a Fedora habit) is read by
//! `crate::symbolize` only.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::{Elf, SHT_NOBITS, SHT_SYMTAB, Section, Source, u32_at};

const DEBUG_DIR: &str = "/usr/lib/debug";

/// Lists where the file of a unit may be that was split off the debug information of `file`
/// (`-gsplit-dwarf`): under its `name`, as seen from the directory `dir` that it was compiled in, below
/// `root` (`/` usually), or where that is not there any more, from the directory of `file`; or beside
/// `file`. The two are as `DW_AT_dwo_name` and `DW_AT_comp_dir` say it.
///
/// ```
/// # use std::path::Path;
/// use skep_proc::elf::split_unit_files;
///
/// let paths = split_unit_files(Path::new("/opt/app"), Path::new("/"), b"/build", b"out/a.dwo");
/// assert_eq!(paths.map(|p| p.display().to_string()), ["/build/out/a.dwo", "/opt/out/a.dwo", "/opt/a.dwo"]);
/// ```
#[must_use]
pub fn split_unit_files(file: &Path, root: &Path, dir: &[u8], name: &[u8]) -> [PathBuf; 3] {
    let (dir, name) = (Path::new(OsStr::from_bytes(dir)), Path::new(OsStr::from_bytes(name)));
    let here = file.parent().unwrap_or(root);
    let compiled = dir.join(name);
    let compiled = match compiled.strip_prefix("/") {
        Ok(below) => root.join(below),
        Err(_) => here.join(&compiled),
    };
    // A name that is absolute stays so.
    let relative = name.strip_prefix("/").unwrap_or(name);
    [compiled, here.join(relative), here.join(name.file_name().unwrap_or_default())]
}

impl Elf {
    /// Finds the debug file of this file, which lies at `path`; looks for both below `root` (`/`
    /// usually).
    ///
    /// A file counts only if it has symbols or lines and belongs to this one: equal build ids or, when one
    /// of the two has none, the checksum that `.gnu_debuglink` asks for.
    pub fn debug_file(&self, path: &Path, root: &Path) -> Option<(PathBuf, Self)> {
        let own_id = self.build_id();
        let below = |path: &Path| root.join(path.strip_prefix("/").unwrap_or(path));
        let has_symbols = |e: &Self| {
            // What `eu-strip -g` splits off has lines only: the table of symbols stays.
            e.debug_info().is_some()
                || e.sections.iter().any(|s| s.kind == SHT_SYMTAB && s.size >= 24)
        };
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

    /// The section of debug information that lines are found by, if there is anything in it; it has another
    /// name where it is compressed as binutils did it before ELF had a flag for that.
    pub(crate) fn debug_info(&self) -> Option<&Section> {
        let there = |s: &&Section| s.size > 0 && s.kind != SHT_NOBITS;
        let named = |name| self.section(name).filter(there);
        named(".debug_info").or_else(|| named(".zdebug_info"))
    }

    /// Finds the file that `dwz` moved debug information to which several files have in common, by the
    /// name that this file has for it: relative to this file, which lies at `path`, or to `root`; else by
    /// the build id that is asked for.
    #[cfg(feature = "symbolize")]
    pub(crate) fn alternate_file(&self, path: &Path, root: &Path) -> Option<Self> {
        let (name, id) = self.alternate_link()?;
        let name = Path::new(OsStr::from_bytes(&name));
        let named = match name.strip_prefix("/") {
            Ok(below) => Some(root.join(below)),
            // Links lead to where the file was put, such as from `.build-id`.
            Err(_) => std::fs::canonicalize(path).ok().and_then(|at| Some(at.parent()?.join(name))),
        };
        let hex: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
        let by_id = hex.split_at_checked(2).map(|(first, rest)| {
            let path = format!("{DEBUG_DIR}/.build-id/{first}/{rest}.debug");
            root.join(path.trim_start_matches('/'))
        });
        let mut files = [named, by_id].into_iter().flatten();
        files.find_map(|file| Self::open(&file).ok().filter(|elf| elf.is_alternate(&id)))
    }

    /// Name and build id in `.gnu_debugaltlink`, or name and checksum in `.debug_sup` (DWARF 5).
    #[cfg(feature = "symbolize")]
    fn alternate_link(&self) -> Option<(Vec<u8>, Vec<u8>)> {
        if let Some(data) = self.small_section(".gnu_debugaltlink") {
            let (name, id) = data.split_at_checked(data.iter().position(|&b| b == 0)?)?;
            return Some((name.to_vec(), id.get(1..)?.to_vec()));
        }
        let (false, name, checksum) = supplement(&self.small_section(".debug_sup")?)? else {
            return None;
        };
        Some((name, checksum))
    }

    #[cfg(feature = "symbolize")]
    fn is_alternate(&self, id: &[u8]) -> bool {
        self.build_id().is_some_and(|own| own.0 == id)
            || self
                .small_section(".debug_sup")
                .and_then(|data| supplement(&data))
                .is_some_and(|(is_supplement, _, checksum)| is_supplement && checksum == id)
    }

    #[cfg(feature = "symbolize")]
    fn small_section(&self, name: &str) -> Option<Vec<u8>> {
        let section = self.section(name).filter(|s| s.kind != SHT_NOBITS && s.size <= 1 << 16)?;
        self.section_data(section).ok()
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

/// What `.debug_sup` says (DWARF 5, section 7.3.6): whether the file is the one with what others have in
/// common, else the name of that; and the checksum that both have.
#[cfg(feature = "symbolize")]
fn supplement(data: &[u8]) -> Option<(bool, Vec<u8>, Vec<u8>)> {
    let (5, [is_supplement, rest @ ..]) = (super::u16_at(data, 0), data.get(2..)?) else {
        return None;
    };
    let (name, rest) = rest.split_at_checked(rest.iter().position(|&b| b == 0)?)?;
    // The length is a LEB128 number; checksums are short.
    let [0, len @ 1..0x80, checksum @ ..] = rest else { return None };
    Some((*is_supplement != 0, name.to_vec(), checksum.get(..usize::from(*len))?.to_vec()))
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
