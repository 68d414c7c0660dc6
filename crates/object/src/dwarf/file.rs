//! The parts of an ELF file that debug information is read from.

use super::{DwarfError, MAX_SECTION};
use gimli::SectionId as S;
use object::{CompressionFormat, Object as _, ObjectSection as _, ReadRef};
use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{Read, Seek, SeekFrom};

pub(super) type Slice<'a> = gimli::EndianSlice<'a, gimli::LittleEndian>;
pub(super) type Entry<'a> = gimli::DebuggingInformationEntry<Slice<'a>>;
pub(super) type Unit<'a> = gimli::Unit<Slice<'a>>;

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
    match find(file, name) {
        Some(section) => unpacked(&section, name),
        None => Ok(Cow::Borrowed(&[])),
    }
}

fn unpacked<'d, R: ReadRef<'d>>(
    section: &object::Section<'d, '_, R>,
    name: &str,
) -> Result<Cow<'d, [u8]>, DwarfError> {
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

/// Sections of a package of what was split off several units.
pub(super) type PackageSections = gimli::DwarfPackageSections<Vec<u8>>;

/// Where sections are that say what functions take: not those about variables and unwinding.
pub(super) struct Places(HashMap<S, Place>);

enum Place {
    /// As it is, at an offset of the file, so many bytes: big ones are read once and not kept
    /// twice.
    File(u64, u64),
    /// It was compressed.
    Bytes(Vec<u8>),
}

const IDS: [S; 10] = [
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
/// Those of a package besides; of some only the sizes matter, which are compared with what it says of
/// its units.
const OF_PACKAGES: [S; 6] = [
    S::DebugCuIndex,
    S::DebugTuIndex,
    S::DebugLoc,
    S::DebugLocLists,
    S::DebugMacinfo,
    S::DebugMacro,
];

/// Finds the sections.
pub(super) fn places<'d, R: ReadRef<'d>>(file: &object::File<'d, R>) -> Result<Places, DwarfError> {
    Places::find(file, IDS.into_iter().map(|id| (id, id.name())))
}

/// Finds the sections of a package of what was split off.
pub(super) fn package_places<'d, R: ReadRef<'d>>(
    file: &object::File<'d, R>,
) -> Result<Places, DwarfError> {
    let all = IDS.into_iter().chain(OF_PACKAGES);
    Places::find(file, all.filter_map(|id| Some((id, id.dwo_name()?))))
}

/// Finds the sections of what was split off one unit, in a file of so many bytes. No linker put those
/// of a name together: types that have units of their own are in one each.
pub(super) fn split_places<'d, R: ReadRef<'d>>(
    file: &object::File<'d, R>,
    len: u64,
) -> Result<Places, DwarfError> {
    let names: HashMap<&str, S> =
        IDS.into_iter().filter_map(|id| Some((id.dwo_name()?, id))).collect();
    let (mut out, mut room) = (HashMap::new(), len);
    for found in file.sections() {
        let name = found.name().unwrap_or_default();
        let plain = name.strip_prefix(".z").map(|rest| format!(".{rest}"));
        let Some(id) = names.get(plain.as_deref().unwrap_or(name)) else { continue };
        // Sections that lie in one another could become any size together.
        let stored = found.compressed_file_range().map_or(u64::MAX, |range| range.compressed_size);
        room = room.checked_sub(stored).ok_or_else(|| DwarfError::Elf {
            what: "its sections are larger than the file".to_owned(),
        })?;
        let place = out.entry(*id).or_insert_with(|| Place::Bytes(Vec::new()));
        if let Place::Bytes(bytes) = place {
            bytes.extend_from_slice(&unpacked(&found, name)?);
        }
    }
    Ok(Places(out))
}

impl Places {
    fn find<'d, R: ReadRef<'d>>(
        file: &object::File<'d, R>,
        names: impl Iterator<Item = (S, &'static str)>,
    ) -> Result<Self, DwarfError> {
        let mut out = HashMap::new();
        for (id, name) in names {
            let Some(found) = find(file, name) else { continue };
            let plain =
                found.compressed_file_range().is_ok_and(|r| r.format == CompressionFormat::None);
            let place = match found.file_range().filter(|_| plain) {
                Some((at, size)) => Place::File(at, size),
                None => Place::Bytes(section(file, name)?.into_owned()),
            };
            out.insert(id, place);
        }
        Ok(Self(out))
    }

    /// Reads the sections.
    pub fn read<R: Read + Seek>(mut self, mut file: R) -> Result<Sections, DwarfError> {
        Sections::load(|id| self.section(id, &mut file))
    }

    /// Reads the sections of a package.
    pub fn read_package<R: Read + Seek>(
        mut self,
        mut file: R,
    ) -> Result<PackageSections, DwarfError> {
        PackageSections::load(|id| self.section(id, &mut file))
    }

    fn section<R: Read + Seek>(&mut self, id: S, file: &mut R) -> Result<Vec<u8>, DwarfError> {
        let damaged = |what: std::io::Error| DwarfError::Elf { what: what.to_string() };
        match self.0.remove(&id) {
            None => Ok(Vec::new()),
            Some(Place::Bytes(bytes)) => Ok(bytes),
            Some(Place::File(at, size)) => {
                let len = file.seek(SeekFrom::End(0)).map_err(damaged)?;
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
        }
    }
}

fn stripped<'d, R: ReadRef<'d>>(file: &object::File<'d, R>) -> DwarfError {
    let link = file.gnu_debuglink().ok().flatten();
    DwarfError::Stripped {
        file: link.map(|(name, _)| String::from_utf8_lossy(name).into_owned()),
        build_id: file.build_id().ok().flatten().unwrap_or(&[]).to_vec(),
    }
}
