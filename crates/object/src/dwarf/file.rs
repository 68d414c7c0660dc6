//! The parts of an ELF file that debug information is read from.

use super::{DwarfError, MAX_SECTION};
use object::{Object as _, ObjectSection as _, ReadRef};
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
    if file.section_by_name(".debug_info").is_none_or(|s| s.size() == 0) {
        return Err(stripped(file));
    }
    Ok(())
}

/// Reads a section and takes it out of its compressed form; empty when there is none.
pub(super) fn section<'d, R: ReadRef<'d>>(
    file: &object::File<'d, R>,
    name: &str,
) -> Result<Cow<'d, [u8]>, DwarfError> {
    let Some(section) = file.section_by_name(name) else {
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
    if data.format == object::CompressionFormat::Zstandard {
        let bytes = zstd(data.data, data.uncompressed_size);
        return bytes.map(Cow::Owned).ok_or_else(|| DwarfError::Elf {
            what: format!("section `{name}` is damaged, or not of the size that it claims"),
        });
    }
    data.decompress().map_err(damaged)
}

/// Unpacks frames that become `size` bytes. `object` would unpack all that there is before it looks at the
/// size, and a few bytes may become gigabytes.
fn zstd(mut packed: &[u8], size: u64) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    while !packed.is_empty() {
        let frame = ruzstd::decoding::StreamingDecoder::new(&mut packed).ok()?;
        // One byte more, to notice that there are more.
        frame.take(size + 1 - out.len() as u64).read_to_end(&mut out).ok()?;
        if out.len() as u64 > size {
            return None;
        }
    }
    (out.len() as u64 == size).then_some(out)
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
        let Some(found) = file.section_by_name(name) else { continue };
        let plain = found
            .compressed_file_range()
            .is_ok_and(|r| r.format == object::CompressionFormat::None);
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
