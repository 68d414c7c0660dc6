//! The loader's side: an object becomes maps, verified programs and links, each a file.

use std::collections::HashMap;
use std::sync::Arc;

use skep_isa::{MapFlags, MapType};
use skep_maps::slots::FILE_NAME as SLOTS;
use skep_maps::{Map, MapDef, MapError};
use skep_object::{Btf, CoreTarget, InnerValue, LinkError, MapSpec, Mismatch, Object};
use skep_verifier::Rejection;
use skep_verifier::fields::FieldKind;

use skep_store::Error;
use skep_store::dir::{Dir, Kind};
use skep_store::prog::{Program, ProgramFile};

use crate::convert;
use crate::prototypes::{Asked, Catalog, Resolved};
use crate::prove::{Proofs, check_maps, needed};

/// Tells why an object could not be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The directory or a file in it cannot be used.
    #[error(transparent)]
    Files(#[from] Error),
    /// A map cannot be made.
    #[error("map `{name}` cannot be created: {source}")]
    Map {
        /// The map.
        name: String,
        /// Why.
        source: MapError,
    },
    /// A program's references cannot be resolved.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// A program is not proved safe.
    #[error(transparent)]
    Rejected(Box<Rejection>),
    /// A helper cannot be called outside the kernel.
    #[error("program `{program}` calls helper {helper}, which cannot be called here")]
    Helper {
        /// The program.
        program: String,
        /// Number and name.
        helper: String,
    },
    /// A program does not fit the function that it is going to be attached to.
    #[error("program `{program}` does not fit `{function}`: func '{function}' {why}")]
    Misfit {
        /// The program.
        program: String,
        /// The function.
        function: String,
        /// Why.
        why: Box<Mismatch>,
    },
    /// The object holds nothing to load.
    #[error("the object has no programs")]
    NoPrograms,
    /// The object has no such program.
    #[error("the object has no program `{program}`")]
    NoProgram {
        /// What was asked for.
        program: String,
    },
}

impl From<skep_store::dir::DirError> for LoadError {
    fn from(e: skep_store::dir::DirError) -> Self {
        Self::Files(e.into())
    }
}

/// A loaded map.
#[derive(Debug, Clone)]
pub struct LoadedMap {
    /// The whole name, as in the source (the file keeps 15 characters).
    pub name: String,
    /// What the object says of it.
    pub spec: MapSpec,
    /// The map.
    pub map: Arc<Map>,
}

/// A loaded program.
#[derive(Debug)]
pub struct LoadedProgram {
    file: ProgramFile,
    target: Option<String>,
    functions: Resolved,
}

impl LoadedProgram {
    /// Returns its object's id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.file.id()
    }

    /// Returns what was verified.
    #[must_use]
    pub fn program(&self) -> &Program {
        self.file.program()
    }

    /// Returns what its section names after the slash.
    #[must_use]
    pub fn target(&self) -> Option<&str> {
        self.target.as_deref()
    }

    /// Returns what is known of the functions that it is going to be attached to.
    #[must_use]
    pub fn functions(&self) -> &Resolved {
        &self.functions
    }
}

/// Everything one object became. What was verified stays as it is:
///
/// ```
/// fn look(loaded: &skep::load::Loaded) -> usize {
///     loaded.programs().iter().map(|p| p.program().insns().len()).sum()
/// }
/// ```
///
/// ```compile_fail,E0594
/// fn change(loaded: &mut skep::load::Loaded) {
///     loaded.programs()[0].program().insns()[0] = skep::isa::Insn::exit();
/// }
/// ```
#[derive(Debug)]
pub struct Loaded {
    programs: Vec<LoadedProgram>,
    maps: Vec<LoadedMap>,
}

impl Loaded {
    /// Returns the programs, in order of the object.
    #[must_use]
    pub fn programs(&self) -> &[LoadedProgram] {
        &self.programs
    }

    /// Returns the maps, in order of the object.
    #[must_use]
    pub fn maps(&self) -> &[LoadedMap] {
        &self.maps
    }

    /// Takes programs and maps apart.
    #[must_use]
    pub fn into_parts(self) -> (Vec<LoadedProgram>, Vec<LoadedMap>) {
        (self.programs, self.maps)
    }

    /// Finds a program by name.
    #[must_use]
    pub fn program(&self, name: &str) -> Option<&LoadedProgram> {
        self.programs.iter().find(|p| p.program().name() == name)
    }

    /// Finds a map by its whole name.
    #[must_use]
    pub fn map(&self, name: &str) -> Option<&Arc<Map>> {
        self.maps.iter().find(|m| m.name == name).map(|m| &m.map)
    }

    /// Lists the maps that a program refers to, in the order of its list.
    #[must_use]
    pub fn maps_of(&self, program: &LoadedProgram) -> Vec<Arc<Map>> {
        let find =
            |id: &u32| self.maps.iter().find(|m| m.map.id() == *id).map(|m| Arc::clone(&m.map));
        program.program().maps().iter().filter_map(find).collect()
    }
}

/// Loads objects into a directory.
#[derive(Debug)]
pub struct Loader<'a> {
    dir: &'a Dir,
    entries: HashMap<String, u32>,
    /// Per-CPU arrays that get memory where something is stored.
    sparse: Vec<String>,
    autoload: Option<Vec<String>>,
    target: Option<&'a CoreTarget>,
    catalog: Option<&'a Catalog>,
    patterns: Vec<(String, String)>,
    exclude: Vec<String>,
}

impl<'a> Loader<'a> {
    /// Makes a loader for this directory.
    #[must_use]
    pub fn new(dir: &'a Dir) -> Self {
        Self {
            dir,
            entries: HashMap::new(),
            sparse: Vec::new(),
            autoload: None,
            target: None,
            catalog: None,
            patterns: Vec::new(),
            exclude: Vec::new(),
        }
    }

    /// Loads this program, whether the object asks for it or not, and no others but those given
    /// here too and those that tail calls may lead to from the beginning.
    #[must_use]
    pub fn autoload_only(mut self, program: &str) -> Self {
        self.autoload.get_or_insert_default().push(program.to_owned());
        self
    }

    /// Gives a map another number of entries than its definition (libbpf:
    /// `bpf_map__set_max_entries`).
    #[must_use]
    pub fn max_entries(mut self, map: &str, entries: u32) -> Self {
        self.entries.insert(map.to_owned(), entries);
        self
    }

    /// Makes a per-CPU array without memory, which it gets where something is stored first: for one
    /// that has a row for whatever there may be, of which most is never touched. A store for
    /// which there is none then is lost, and counted in the link.
    #[must_use]
    pub fn sparse(mut self, map: &str) -> Self {
        self.sparse.push(map.to_owned());
        self
    }

    /// Relocates programs for these types (CO-RE); without, programs that need it are refused.
    #[must_use]
    pub fn core_target(mut self, target: Option<&'a CoreTarget>) -> Self {
        self.target = target;
        self
    }

    /// Looks types up of the functions that programs are going to be attached to. Without, only the
    /// words of registers are there for programs that read arguments from their context.
    #[must_use]
    pub fn functions(mut self, catalog: &'a Catalog) -> Self {
        self.catalog = Some(catalog);
        self
    }

    /// Says where a program is going to be attached, if not where its section says.
    #[must_use]
    pub fn attach(mut self, program: &str, pattern: &str) -> Self {
        self.patterns.push((program.to_owned(), pattern.to_owned()));
        self
    }

    /// Says which functions are left out.
    #[must_use]
    pub fn exclude(mut self, patterns: &[String]) -> Self {
        self.exclude.extend_from_slice(patterns);
        self
    }

    /// Creates the object's maps, links and verifies its programs, and writes both as files.
    ///
    /// # Errors
    /// When a map cannot be made, a program cannot be linked or is not proved safe, or a file
    /// cannot be written. What was written before is garbage then, and the next
    /// [`Dir::collect`] removes it.
    pub fn load(&self, object: &Object) -> Result<Loaded, LoadError> {
        // A refused object leaves nothing behind.
        let proofs = Proofs::new(object, self.target);
        let verified = proofs.programs(self.wanted(object)?, self.autoload.is_some())?;
        let asked =
            Asked { catalog: self.catalog, patterns: &self.patterns, exclude: &self.exclude };
        let functions = proofs.functions(&asked, &verified)?;
        let needed = needed(object, &verified);
        check_maps(object, &needed, |spec| self.definition(spec, object.btf.as_deref(), 0))?;
        let btf_id = match &object.btf {
            Some(btf) => crate::btf::store(self.dir, btf)?,
            None => 0,
        };
        slot_table(self.dir)?;
        let mut maps = Vec::new();
        for (spec, needed) in object.maps.iter().zip(needed) {
            maps.push(if needed {
                Some(self.create(spec, object.btf.as_deref(), btf_id)?)
            } else {
                None
            });
        }
        let mut programs = Vec::new();
        for ((_, program, linked, proof), functions) in verified.into_iter().zip(functions) {
            let its: Vec<&Map> = linked
                .maps
                .iter()
                .filter_map(|m| maps.get(m.index)?.as_ref())
                .map(|m| &*m.map)
                .collect();
            let file = convert::program(&proof, &program.name, program.section_meant(), &its)
                .store(self.dir)?;
            programs.push(LoadedProgram { file, target: program.target.clone(), functions });
        }
        initialise(object, &maps, &programs)?;
        Ok(Loaded { programs, maps: maps.into_iter().flatten().collect() })
    }

    /// Numbers of the programs to begin with.
    fn wanted(&self, object: &Object) -> Result<Vec<usize>, LoadError> {
        let Some(autoload) = &self.autoload else {
            return Ok((0..object.programs.len())
                .filter(|i| object.programs.get(*i).is_some_and(|p| p.autoload))
                .collect());
        };
        let mut wanted: Vec<usize> = Vec::new();
        for name in autoload {
            wanted.push(
                object
                    .program(name)
                    .ok_or_else(|| LoadError::NoProgram { program: name.clone() })?,
            );
        }
        Ok(wanted)
    }

    fn definition(&self, spec: &MapSpec, btf: Option<&Btf>, btf_id: u32) -> MapDef {
        let mut def = definition(spec, btf, btf_id);
        if let Some(entries) = self.entries.get(&spec.name) {
            def.max_entries = self::entries(def.map_type, *entries);
        }
        def
    }

    fn create(
        &self,
        spec: &MapSpec,
        btf: Option<&Btf>,
        btf_id: u32,
    ) -> Result<LoadedMap, LoadError> {
        let err = |source| LoadError::Map { name: spec.name.clone(), source };
        let def = self.definition(spec, btf, btf_id);
        let id = self.dir.next_id(Kind::Map)?;
        let dir = self.dir.kind(Kind::Map);
        let sparse = self.sparse.contains(&spec.name);
        // Before the first touch of a page.
        skep_runtime::memory::guard();
        let map =
            if sparse { Map::create_sparse(&dir, id, &def) } else { Map::create(&dir, id, &def) }
                .map_err(err)?;
        if let Some(data) = &spec.data {
            let mut value = data.clone();
            value.resize(spec.value_size as usize, 0);
            map.update(&0_u32.to_le_bytes(), &value, 0).map_err(err)?;
        }
        if spec.frozen {
            map.freeze().map_err(err)?;
        }
        Ok(LoadedMap { name: spec.name.clone(), spec: spec.clone(), map: Arc::new(map) })
    }
}

/// Puts maps into maps of maps and programs into program arrays, as their definitions say. A
/// program that was not asked for leaves its slot empty.
fn initialise(
    object: &Object,
    maps: &[Option<LoadedMap>],
    programs: &[LoadedProgram],
) -> Result<(), LoadError> {
    for (spec, loaded) in object.maps.iter().zip(maps) {
        let Some(loaded) = loaded else { continue };
        for (slot, value) in &spec.values {
            let id = match value {
                InnerValue::Map(index) => {
                    maps.get(*index).and_then(Option::as_ref).map(|m| m.map.id())
                }
                InnerValue::Program(name) => {
                    programs.iter().find(|p| p.program().name() == *name).map(LoadedProgram::id)
                }
            };
            if let Some(id) = id {
                let done = loaded.map.update(&slot.to_ne_bytes(), &id.to_ne_bytes(), 0);
                done.map_err(|source| LoadError::Map { name: spec.name.clone(), source })?;
            }
        }
    }
    Ok(())
}

/// Shortens a name to what a map can be called: 15 characters of `[A-Za-z0-9_.]`.
fn short_name(name: &str) -> String {
    name.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.')).take(15).collect()
}

/// Says how many entries a map gets, as libbpf does: rings are whole pages and a power of two, an
/// array of perf events that names no size has one for each CPU.
fn entries(map_type: MapType, asked: u32) -> u32 {
    match map_type {
        MapType::Ringbuf | MapType::UserRingbuf if asked > 0 => {
            asked.max(4096).checked_next_power_of_two().unwrap_or(asked)
        }
        MapType::PerfEventArray if asked == 0 => skep_maps::slots::possible_cpus(),
        _ => asked,
    }
}

/// Says what kind of map an object wants; `btf` are the object's types, `btf_id` where they are
/// kept.
#[must_use]
pub fn definition(spec: &MapSpec, btf: Option<&Btf>, btf_id: u32) -> MapDef {
    let fields = btf
        .filter(|_| spec.value_type_id != 0)
        .map(|btf| skep_verifier::fields::find(btf, spec.value_type_id))
        .unwrap_or_default();
    MapDef {
        map_type: spec.map_type,
        key_size: spec.key_size(),
        // The type of a ring's records may stand where others have that of their values.
        value_size: if spec.map_type == MapType::Ringbuf && spec.value_type_id != 0 {
            0
        } else {
            spec.value_size
        },
        max_entries: entries(spec.map_type, spec.max_entries),
        flags: spec.flags,
        map_extra: spec.map_extra,
        name: short_name(&spec.name),
        btf_id,
        key_type_id: spec.key_type_id,
        value_type_id: spec.value_type_id,
        spin_lock: fields.iter().find(|f| f.kind == FieldKind::SpinLock).map(|f| f.off),
        inner: spec.inner.as_ref().map(|inner| Box::new(definition(inner, btf, 0))),
    }
}

/// Creates a map that no object asked for.
pub(crate) fn own_map(
    dir: &Dir,
    name: &str,
    map_type: MapType,
    entries: u32,
    value_size: u32,
) -> Result<Map, LoadError> {
    let def = MapDef {
        map_type,
        key_size: if map_type == MapType::Ringbuf { 0 } else { 4 },
        value_size,
        max_entries: entries,
        flags: MapFlags::default(),
        map_extra: 0,
        name: name.to_owned(),
        btf_id: 0,
        key_type_id: 0,
        value_type_id: 0,
        spin_lock: None,
        inner: None,
    };
    let id = dir.next_id(Kind::Map)?;
    let err = |source| LoadError::Map { name: name.to_owned(), source };
    skep_runtime::memory::guard();
    Map::create(&dir.kind(Kind::Map), id, &def).map_err(err)
}

/// Makes the slot table, with its memory.
fn slot_table(dir: &Dir) -> Result<(), LoadError> {
    let err = |source| LoadError::Map { name: SLOTS.to_owned(), source };
    skep_maps::SlotTable::open_or_create(dir.path()).map_err(err)?;
    let path = dir.path().join(SLOTS);
    let os =
        |call, errno| err(skep_maps::ObjectError::Os { call, path: path.clone(), errno }.into());
    let file = std::fs::File::options()
        .write(true)
        .open(&path)
        .map_err(|e| os("open", e.raw_os_error().unwrap_or(0)))?;
    let len = file.metadata().map_or(0, |m| m.len());
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, len)
        .map_err(|e| os("fallocate", e.raw_os_error()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_the_kernel_would_refuse_are_rounded_as_libbpf_does() {
        for (asked, got) in [
            (1, 4096),
            (4096, 4096),
            (4097, 8192),
            (100_000, 131_072),
            (0, 0),
            (u32::MAX, u32::MAX),
        ] {
            assert_eq!(entries(MapType::Ringbuf, asked), got, "{asked}");
        }
        assert_eq!(entries(MapType::PerfEventArray, 0), skep_maps::slots::possible_cpus());
        assert_eq!((entries(MapType::PerfEventArray, 1), entries(MapType::Hash, 0)), (1, 0));
    }
}
