//! What was split off a program's debug information (`-gsplit-dwarf`): files `.dwo`, one for each
//! unit, or a package of them beside the program, `PROGRAM.dwp`.
//!
//! The program keeps a skeleton of each unit, which says where its code is and which file has the rest.
//! Types that have units of their own (`-fdebug-types-section`) are in the same file `.dwo`. A package has
//! them apart, each with sections of its own.

use super::DwarfError;
use super::file::{PackageSections, Sections, Slice, Unit, package_places, split_places};
use gimli::UnitRef;
use object::Object as _;
use std::cell::OnceCell;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Where what was split off a program is looked for.
#[derive(Debug)]
pub(super) struct SplitFiles {
    program: PathBuf,
    package: OnceCell<Option<PackageSections>>,
}

/// What was split off a unit, or a unit of a type.
pub(super) struct SplitUnit<'b> {
    pub dwarf: gimli::Dwarf<Slice<'b>>,
    /// What places in it begin at.
    pub base: u64,
    /// Where it is from; `None`: from a file of its own.
    pub package: Option<Package<'b>>,
}

/// A package.
pub(super) struct Package<'b>(gimli::DwarfPackage<Slice<'b>>);

impl<'b> Package<'b> {
    /// Finds the unit of a type by its signature: a number that it has here.
    pub fn find(&self, signature: u64) -> Option<u32> {
        self.0.tu_index.find(signature)
    }

    /// Numbers of all units of types.
    pub fn types(&self) -> impl Iterator<Item = u32> {
        1..=self.0.tu_index.unit_count()
    }

    /// Reads the unit of a type. `parent` is one that was split off a unit.
    pub fn of_type(
        &self,
        number: u32,
        parent: &gimli::Dwarf<Slice<'b>>,
    ) -> Result<SplitUnit<'b>, DwarfError> {
        let dwarf = self.0.tu_sections(number, parent)?;
        Ok(SplitUnit { dwarf, base: base_of_type(number), package: None })
    }
}

/// As [`base`] of the unit of a type: units of programs have smaller offsets.
fn base_of_type(number: u32) -> u64 {
    (u64::from(number) << 32 | 1 << 62) & !(1 << 63)
}

/// Sections of what was split off a unit.
pub(super) enum Kept {
    InPackage,
    Own(Box<Sections>),
}

/// What is done with a unit.
pub(super) type Reader<'r> =
    dyn for<'b> FnMut(&SplitUnit<'b>, &Rc<Unit<'b>>) -> Result<(), DwarfError> + 'r;

/// Where places begin in what was split off a unit, in words of
/// [`Btf::described_at`](crate::Btf::described_at): behind those of the program, and each apart.
pub(super) fn base(skeleton: &Unit<'_>) -> u64 {
    ((skeleton.header.offset().0 as u64 + 1) << 32) & !(1 << 63)
}

impl SplitFiles {
    /// That of a program, or of its debug file, at a path.
    pub fn of(program: &Path) -> Self {
        Self { program: program.to_owned(), package: OnceCell::new() }
    }

    /// Calls `read` with the unit that was split off a skeleton; tells whether it is there.
    pub fn read(
        &self,
        own: &gimli::Dwarf<Slice<'_>>,
        skeleton: &Unit<'_>,
        read: &mut Reader<'_>,
    ) -> Result<bool, DwarfError> {
        let Some(kept) = self.find(own, skeleton) else { return Ok(false) };
        let Some(split) = self.unit(&kept, own, skeleton)? else { return Ok(false) };
        let Some(mut unit) = own_unit(&split.dwarf, skeleton)? else { return Ok(false) };
        unit.copy_relocated_attributes(skeleton);
        read(&split, &Rc::new(unit))?;
        Ok(true)
    }

    /// Finds what was split off a unit.
    pub fn find(&self, own: &gimli::Dwarf<Slice<'_>>, skeleton: &Unit<'_>) -> Option<Kept> {
        let is_it = |kept: &Kept| {
            let split = self.unit(kept, own, skeleton).ok().flatten();
            split.is_some_and(|split| own_unit(&split.dwarf, skeleton).is_ok_and(|u| u.is_some()))
        };
        let package = self.package().map(|_| Kept::InPackage);
        package.filter(is_it).or_else(|| {
            let files = self.paths(&skeleton.unit_ref(own)).into_iter();
            let mut kept = files.filter_map(|path| {
                let sections = open(&path, |elf, file, len| split_places(elf, len)?.read(file))?;
                Some(Kept::Own(Box::new(sections)))
            });
            kept.find(is_it)
        })
    }

    /// The debug information that was split off a unit.
    pub fn unit<'b>(
        &'b self,
        kept: &'b Kept,
        own: &gimli::Dwarf<Slice<'b>>,
        skeleton: &Unit<'b>,
    ) -> Result<Option<SplitUnit<'b>>, DwarfError> {
        let Some(id) = skeleton.dwo_id else { return Ok(None) };
        let (dwarf, package) = match (kept, self.package()) {
            (Kept::Own(sections), _) => (Some(sections.borrow(|s| slice(s))), None),
            (Kept::InPackage, Some(package)) => {
                let package = package.borrow(|s| slice(s), slice(&[]))?;
                (package.find_cu(id, own)?, Some(Package(package)))
            }
            (Kept::InPackage, None) => (None, None),
        };
        Ok(dwarf.map(|mut dwarf| {
            dwarf.make_dwo(own);
            SplitUnit { dwarf, base: base(skeleton), package }
        }))
    }

    fn paths(&self, skeleton: &UnitRef<'_, Slice<'_>>) -> Vec<PathBuf> {
        let name = skeleton.dwo_name().ok().flatten();
        let Some(name) = name.and_then(|name| skeleton.attr_string(name).ok()) else {
            return Vec::new();
        };
        let dir = skeleton.comp_dir.map_or(&[][..], |dir| dir.slice());
        let root = Path::new("/");
        skep_proc::elf::split_unit_files(&self.program, root, dir, name.slice()).to_vec()
    }

    fn package(&self) -> Option<&PackageSections> {
        let read = || {
            let mut path = self.program.as_os_str().to_owned();
            path.push(".dwp");
            open(Path::new(&path), |elf, file, _| package_places(elf)?.read_package(file))
        };
        self.package.get_or_init(read).as_ref()
    }
}

type Elf<'d> = object::File<'d, &'d object::ReadCache<File>>;

/// Reads a file; `None` when it is not there, or of no use.
fn open<T>(
    path: &Path,
    read: impl FnOnce(&Elf<'_>, File, u64) -> Result<T, DwarfError>,
) -> Option<T> {
    // A name that leads to a pipe must not stop anybody.
    let len = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file)?.len();
    let cache = object::ReadCache::new(File::open(path).ok()?);
    let elf = object::File::parse(&cache).ok()?;
    if !elf.is_64() || !elf.is_little_endian() {
        return None;
    }
    read(&elf, File::open(path).ok()?, len).ok()
}

/// The unit that belongs to a skeleton, among those that were split off.
fn own_unit<'b>(
    dwarf: &gimli::Dwarf<Slice<'b>>,
    skeleton: &Unit<'_>,
) -> Result<Option<Unit<'b>>, DwarfError> {
    let mut units = dwarf.units();
    while let Some(header) = units.next()? {
        let Ok(unit) = dwarf.unit(header) else { continue };
        if unit.dwo_id == skeleton.dwo_id {
            return Ok(Some(unit));
        }
    }
    Ok(None)
}

fn slice(bytes: &[u8]) -> Slice<'_> {
    gimli::EndianSlice::new(bytes, gimli::LittleEndian)
}
