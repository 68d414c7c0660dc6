//! The loader's side: an object becomes maps, verified programs and links, each a file.

pub mod definition;
pub mod error;
pub(crate) mod instructions;
mod loaded;
mod pinned;
mod reuse;

use std::collections::HashMap;
use std::sync::Arc;

use skep_maps::{Map, MapDef};
use skep_object::{Btf, CoreTarget, InnerValue, MapSpec, Object};
use skep_store::dir::{Dir, Kind};

use crate::btf::Stored;
use crate::convert;
use crate::prototypes::{Asked, Catalog};
use crate::prove::{Proofs, check_maps, needed};
use definition::{entries, slot_table};

pub use definition::{check_key_type, definition};
pub use error::LoadError;
pub use loaded::{Loaded, LoadedMap, LoadedProgram};

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
    reused: HashMap<String, Arc<Map>>,
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
            reused: HashMap::new(),
        }
    }

    /// Takes a map that is there already, of this directory, in place of one of the object (libbpf:
    /// `bpf_map__reuse_fd`). It must be as the object defines it; its contents stay. Names that the
    /// object does not have are ignored.
    #[must_use]
    pub fn reuse_map(mut self, name: &str, map: Arc<Map>) -> Self {
        self.reused.insert(name.to_owned(), map);
        self
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

    /// Makes a per-CPU array sparse: a page of it gets memory when something is first stored there.
    /// This is for arrays with a row for everything that may come, of which most stays untouched.
    /// If there is no memory then, the store is lost, and counted in the link.
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

    /// Looks up the types of the functions that programs are going to be attached to. Without them,
    /// programs that read arguments from their context see only the words of registers.
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
        let proofs = Proofs::new(object, self.target, Some(self.dir));
        let verified = proofs.programs(self.wanted(object)?, self.autoload.is_some())?;
        let asked =
            Asked { catalog: self.catalog, patterns: &self.patterns, exclude: &self.exclude };
        let functions = proofs.functions(&asked, &verified)?;
        let needed = needed(object, &verified);
        let types = object.btf.as_deref();
        check_maps(object, &needed, |spec| self.definition(spec, types, 0))?;
        // Maps that are there already.
        let mut known = self.reused.clone();
        for (spec, _) in object.maps.iter().zip(&needed).filter(|(_, needed)| **needed) {
            let want = self.definition(spec, types, 0);
            if let Some(map) = known.get(&spec.name) {
                reuse::check(spec, types, &want, map)?;
            } else if spec.pinning
                && let Some(map) = pinned::find(self.dir, spec, types, &want)?
            {
                known.insert(spec.name.clone(), map);
            }
        }
        let stored = object.btf.as_ref().map(|btf| crate::btf::store(self.dir, btf)).transpose()?;
        let btf_id = stored.as_ref().map_or(0, Stored::id);
        slot_table(self.dir)?;
        let mut pins = pinned::NewPins::default();
        let mut maps = Vec::new();
        for (spec, needed) in object.maps.iter().zip(needed) {
            maps.push(if needed {
                let map = match known.get(&spec.name) {
                    Some(map) => Arc::clone(map),
                    None => {
                        let (map, is_new) = self.create_or_find(spec, types, btf_id, &mut pins)?;
                        if !is_new {
                            known.insert(spec.name.clone(), Arc::clone(&map));
                        }
                        map
                    }
                };
                Some(LoadedMap::new(spec, map))
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
        let is_new = |name: &str| !known.contains_key(name);
        initialize(object, &maps, &programs, is_new)?;
        pins.keep();
        drop(stored);
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

    /// Creates a map, and pins it if the object wants that. Another loader may have pinned one meanwhile:
    /// then that is the map, and not new.
    fn create_or_find(
        &self,
        spec: &MapSpec,
        btf: Option<&Btf>,
        btf_id: u32,
        pins: &mut pinned::NewPins,
    ) -> Result<(Arc<Map>, bool), LoadError> {
        let map = self.create(spec, btf, btf_id)?;
        if !spec.pinning || pins.add(self.dir, spec, &map)? {
            return Ok((map, true));
        }
        let id = map.id();
        drop(map);
        self.dir.remove_unused(Kind::Map, id);
        match pinned::find(self.dir, spec, btf, &self.definition(spec, btf, 0))? {
            Some(map) => Ok((map, false)),
            // Whoever pinned it has removed the pin.
            None => Ok((self.create(spec, btf, btf_id)?, true)),
        }
    }

    fn create(
        &self,
        spec: &MapSpec,
        btf: Option<&Btf>,
        btf_id: u32,
    ) -> Result<Arc<Map>, LoadError> {
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
        Ok(Arc::new(map))
    }
}

/// Puts maps into new maps of maps and programs into new program arrays, as their definitions say. A
/// program that was not asked for leaves its slot empty.
fn initialize(
    object: &Object,
    maps: &[Option<LoadedMap>],
    programs: &[LoadedProgram],
    is_new: impl Fn(&str) -> bool,
) -> Result<(), LoadError> {
    for (spec, loaded) in object.maps.iter().zip(maps) {
        let Some(loaded) = loaded.as_ref().filter(|_| is_new(&spec.name)) else { continue };
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
