//! Types out of the debug information of programs: what the traced program's own build says of its
//! structures.
//!
//! [`read`] takes the entries of `.debug_info` apart (DWARF 2 to 5, gcc, clang and rustc),
//! [`merge`] throws together what every compilation unit says again and makes [`Btf`] of it,
//! against which CO-RE relocations are resolved as against a kernel's. Layouts are what counts;
//! functions, variables and everything about code are left out.
//!
//! Functions are read apart from that, and only those that are asked for: [`DwarfFunctions`].
//!
//! * C++: classes and structures by their plain names, and by `space__name` where they are in a
//!   namespace or a class. A base class is a member without a name, so that its members are found,
//!   and a second time one with the class's name.
//! * Rust: an enumeration whose variants have fields is a structure with a member for each variant, and
//!   in front of them one that says which is there ([`DISCRIMINANT`](crate::btf::DISCRIMINANT)).

mod composite;
mod file;
mod functions;
mod language;
mod merge;
mod read;
mod rust;
mod special;
mod split;
mod types;

pub use functions::{DwarfFunctions, Shared};

use crate::btf::BtfError;
use crate::{Btf, CoreTarget};
use object::{Object as _, ObjectSection as _};
use split::SplitFiles;
use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

/// Largest section that is taken out of its compressed form.
const MAX_SECTION: u64 = 4 << 30;

/// Says why a program gives no types.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DwarfError {
    /// The file is no ELF file, or a damaged one.
    #[error("no usable ELF file: {what}")]
    Elf {
        /// What does not fit.
        what: String,
    },
    /// The file is for machines with other pointers.
    #[error("only little-endian 64-bit programs can be used, this one is {what}")]
    Machine {
        /// What it is instead.
        what: &'static str,
    },
    /// The file was stripped.
    #[error("no debug information (DWARF){}", elsewhere(file.as_deref()))]
    Stripped {
        /// The file that has it, as far as the program says.
        file: Option<String>,
        /// The build id, by which debug files are found.
        build_id: Vec<u8>,
    },
    /// The types are in other files.
    #[error("the types are not in the program but in {what}")]
    Split {
        /// Where they are.
        what: String,
    },
    /// The debug information says nothing about types.
    #[error(
        "debug information without types: it was compiled for line numbers only (`-g1`, `line-tables-only`)"
    )]
    LinesOnly,
    /// The debug information is damaged.
    #[error("damaged debug information: {what}")]
    Dwarf {
        /// What does not fit.
        what: String,
    },
    /// There are too many types.
    #[error("more than {limit} {what}")]
    TooMany {
        /// What there is too much of.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// The types cannot be made into BTF.
    #[error(transparent)]
    Btf(#[from] BtfError),
}

fn elsewhere(file: Option<&str>) -> String {
    file.map(|f| format!("; it is in `{f}`")).unwrap_or_default()
}

impl From<gimli::Error> for DwarfError {
    fn from(e: gimli::Error) -> Self {
        Self::Dwarf { what: e.to_string() }
    }
}

impl Btf {
    /// Makes type information out of a program's debug information.
    ///
    /// # Errors
    /// When the file has none, has it elsewhere, or it is damaged.
    pub fn from_dwarf(elf: &[u8]) -> Result<Self, DwarfError> {
        Self::from_dwarf_and(elf, None)
    }

    /// The same of the program at a path, with what was split off it (`-gsplit-dwarf`): its package
    /// `PATH.dwp`, or files `.dwo` where they were compiled or beside it.
    ///
    /// # Errors
    /// As [`from_dwarf`](Self::from_dwarf), and when the file cannot be read, or one that was split off
    /// is missing.
    pub fn from_dwarf_at(path: &Path) -> Result<Self, DwarfError> {
        let elf = std::fs::read(path).map_err(|e| DwarfError::Elf { what: e.to_string() })?;
        Self::from_dwarf_and(&elf, Some(&SplitFiles::of(path)))
    }

    fn from_dwarf_and(elf: &[u8], files: Option<&SplitFiles>) -> Result<Self, DwarfError> {
        let file = object::File::parse(elf).map_err(|e| DwarfError::Elf { what: e.to_string() })?;
        file::check(&file)?;
        if let Some(section) = file.section_by_name(".gnu_debugaltlink") {
            let name = section.data().unwrap_or(&[]).split(|b| *b == 0).next().unwrap_or(&[]);
            return Err(DwarfError::Split {
                what: format!("`{}`, shared with other programs (dwz)", name.escape_ascii()),
            });
        }
        let load = |id: gimli::SectionId| -> Result<Cow<'_, [u8]>, DwarfError> {
            file::section(&file, id.name())
        };
        let sections = gimli::DwarfSections::load(load)?;
        let dwarf = sections.borrow(|s| gimli::EndianSlice::new(s, gimli::LittleEndian));
        let mut kept = Vec::new();
        let mut units = dwarf.units();
        while let (Some(files), Some(header)) = (files, units.next()?) {
            let unit = dwarf.unit(header)?;
            if unit.dwo_id.is_some() {
                let Some(found) = files.find(&dwarf, &unit) else {
                    return Err(read::missing_split(&unit.unit_ref(&dwarf)));
                };
                kept.push((unit, found));
            }
        }
        let mut split = Vec::new();
        for (unit, found) in &kept {
            split.extend(files.map(|f| f.unit(found, &dwarf, unit)).transpose()?.flatten());
        }
        // All units have one package.
        if let Some((package, own)) =
            split.iter().find_map(|s| Some((s.package.as_ref()?, &s.dwarf)))
        {
            let types = package.types().map(|number| package.of_type(number, own));
            let types = types.collect::<Result<Vec<_>, _>>()?;
            split.extend(types);
        }
        let nodes = read::read(&dwarf, &split)?;
        if nodes.all.is_empty() {
            return Err(DwarfError::LinesOnly);
        }
        merge::merge(&nodes)
    }
}

impl CoreTarget {
    /// Takes the types out of a program's debug information, so that programs follow the structures
    /// of this very build.
    ///
    /// # Errors
    /// As [`Btf::from_dwarf`].
    pub fn from_dwarf(elf: &[u8]) -> Result<Self, DwarfError> {
        Ok(Self::new(Arc::new(Btf::from_dwarf(elf)?)))
    }

    /// The same of the program at a path, with what was split off it (`-gsplit-dwarf`).
    ///
    /// # Errors
    /// As [`Btf::from_dwarf_at`].
    pub fn from_dwarf_at(path: &Path) -> Result<Self, DwarfError> {
        Ok(Self::new(Arc::new(Btf::from_dwarf_at(path)?)))
    }
}
