//! The parts of an ELF file that debug information is read from.

use super::{DwarfError, MAX_SECTION};
use object::{Object as _, ObjectSection as _, ReadRef};

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
pub(super) fn section<'d, R: ReadRef<'d>>(file: &object::File<'d, R>, name: &str) -> Result<std::borrow::Cow<'d, [u8]>, DwarfError> {
    let Some(section) = file.section_by_name(name) else { return Ok(std::borrow::Cow::Borrowed(&[])) };
    let damaged = |e: object::Error| DwarfError::Elf { what: format!("section `{name}`: {e}") };
    let data = section.compressed_data().map_err(damaged)?;
    // A short section may claim to be any size when it is taken out: deflate gives a thousandfold at most.
    if data.uncompressed_size > MAX_SECTION || data.uncompressed_size / 1100 > data.data.len() as u64 {
        return Err(DwarfError::Elf { what: format!("section `{name}` claims {} bytes", data.uncompressed_size) });
    }
    data.decompress().map_err(damaged)
}

/// Reads the sections that say what functions take: not those about variables and unwinding.
pub(super) fn sections<'d, R: ReadRef<'d>>(file: &object::File<'d, R>) -> Result<Sections, DwarfError> {
    use gimli::SectionId as S;
    let load = |id: S| match id {
        S::DebugLoc | S::DebugLocLists | S::DebugFrame | S::EhFrame | S::EhFrameHdr | S::DebugMacro | S::DebugMacinfo => Ok(Vec::new()),
        S::DebugNames | S::DebugPubNames | S::DebugPubTypes | S::DebugGnuPubNames | S::DebugGnuPubTypes => Ok(Vec::new()),
        id => section(file, id.name()).map(std::borrow::Cow::into_owned),
    };
    Sections::load(load)
}

fn stripped<'d, R: ReadRef<'d>>(file: &object::File<'d, R>) -> DwarfError {
    let link = file.gnu_debuglink().ok().flatten();
    DwarfError::Stripped {
        file: link.map(|(name, _)| String::from_utf8_lossy(name).into_owned()),
        build_id: file.build_id().ok().flatten().unwrap_or(&[]).to_vec(),
    }
}
