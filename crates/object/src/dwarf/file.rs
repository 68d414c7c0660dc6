//! The parts of an ELF file that debug information is read from.

use super::{DwarfError, MAX_SECTION};
use object::{CompressionFormat, Object as _, ObjectSection as _, ReadRef};
use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{Read, Seek, SeekFrom};

/// Sections that were read.
pub(super) type Sections = gimli::DwarfSections<Vec<u8>>;

/// Checks that a file is a program or library of 64 bits, with debug information.
pub(super) fn check<'d, R: ReadRef<'d>>(file: &object::File<'d, R>) -> Result<(), DwarfError> {
    if !file.is_64() {
        return Err(DwarfError::Machine { what: "for 32 bits" });
    }
    if !file.is_little_endian() {
        return Err(DwarfError::Machine { what: "big-endian" });
    }
    if file.kind() == object::ObjectKind::Relocatable {
        return Err(DwarfError::Elf { what: "it is not linked yet".to_owned() });
    }
    if find(file, ".debug_info").is_none_or(|s| s.size() == 0) {
        return Err(stripped(file));
    }
    Ok(())
}

/// Finds a section; it has another name where it is compressed as binutils did it before ELF had a
/// flag for that (`.zdebug_info`).
fn find<'d, 'f, R: ReadRef<'d>>(
    file: &'f object::File<'d, R>,
    name: &str,
) -> Option<object::Section<'d, 'f, R>> {
    file.section_by_name(name).or_else(|| {
        let rest = name.strip_prefix('.')?;
        file.section_by_name(&format!(".z{rest}"))
    })
}

/// Reads a section and takes it out of its compressed form; empty when there is none.
pub(super) fn section<'d, R: ReadRef<'d>>(
    file: &object::File<'d, R>,
    name: &str,
) -> Result<Cow<'d, [u8]>, DwarfError> {
    let Some(section) = find(file, name) else {
        return Ok(Cow::Borrowed(&[]));
    };
    let damaged = |e: object::Error| DwarfError::Elf { what: format!("section `{name}`: {e}") };
    let data = section.compressed_data().map_err(damaged)?;
    // A short section may claim to be any size when it is taken out: deflate gives a thousandfold
    // at most.
    if data.uncompressed_size > MAX_SECTION
        || data.uncompressed_size / 1100 > data.data.len() as u64
    {
        return Err(DwarfError::Elf {
            what: format!("section `{name}` claims {} bytes", data.uncompressed_size),
        });
    }
    let size = usize::try_from(data.uncompressed_size).unwrap_or(usize::MAX);
    let bytes = match data.format {
        CompressionFormat::None => return Ok(Cow::Borrowed(data.data)),
        CompressionFormat::Zlib => skep_proc::inflate::zlib(data.data, size),
        CompressionFormat::Zstandard => skep_proc::inflate::zstd(data.data, size),
        _ => None,
    };
    bytes.map(Cow::Owned).ok_or_else(|| DwarfError::Elf {
        what: format!("section `{name}` is damaged, or not of the size that it claims"),
    })
}

/// Where sections are that say what functions take: not those about variables and unwinding.
pub(super) struct Places(HashMap<&'static str, Place>);

enum Place {
    /// As it is, at an offset of the file, so many bytes: big ones are read once and not kept
    /// twice.
    File(u64, u64),
    /// It was compressed.
    Bytes(Vec<u8>),
}

/// Finds the sections.
pub(super) fn places<'d, R: ReadRef<'d>>(file: &object::File<'d, R>) -> Result<Places, DwarfError> {
    use gimli::SectionId as S;
    let ids = [
        S::DebugInfo,
        S::DebugAbbrev,
        S::DebugStr,
        S::DebugLineStr,
        S::DebugStrOffsets,
        S::DebugAddr,
        S::DebugRanges,
        S::DebugRngLists,
        S::DebugTypes,
        S::DebugLine,
    ];
    let mut out = HashMap::new();
    for name in ids.map(|id| id.name()) {
        let Some(found) = find(file, name) else { continue };
        let plain =
            found.compressed_file_range().is_ok_and(|r| r.format == CompressionFormat::None);
        let place = match found.file_range().filter(|_| plain) {
            Some((at, size)) => Place::File(at, size),
            None => Place::Bytes(section(file, name)?.into_owned()),
        };
        out.insert(name, place);
    }
    Ok(Places(out))
}

impl Places {
    /// Reads the sections.
    pub fn read<R: Read + Seek>(mut self, mut file: R) -> Result<Sections, DwarfError> {
        let damaged = |what: std::io::Error| DwarfError::Elf { what: what.to_string() };
        let len = file.seek(SeekFrom::End(0)).map_err(damaged)?;
        Sections::load(|id| match self.0.remove(id.name()) {
            None => Ok(Vec::new()),
            Some(Place::Bytes(bytes)) => Ok(bytes),
            Some(Place::File(at, size)) => {
                if at.checked_add(size).is_none_or(|end| end > len) {
                    return Err(DwarfError::Elf {
                        what: format!("section `{}` lies outside of the file", id.name()),
                    });
                }
                let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or(0));
                file.seek(SeekFrom::Start(at)).map_err(damaged)?;
                file.by_ref().take(size).read_to_end(&mut bytes).map_err(damaged)?;
                Ok(bytes)
            }
        })
    }
}

fn stripped<'d, R: ReadRef<'d>>(file: &object::File<'d, R>) -> DwarfError {
    let link = file.gnu_debuglink().ok().flatten();
    DwarfError::Stripped {
        file: link.map(|(name, _)| String::from_utf8_lossy(name).into_owned()),
        build_id: file.build_id().ok().flatten().unwrap_or(&[]).to_vec(),
    }
}
