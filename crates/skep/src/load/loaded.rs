//! What an object became: programs and maps, each a file.

use std::sync::Arc;

use skep_maps::Map;
use skep_object::MapSpec;
use skep_store::prog::{Program, ProgramFile};

use crate::prototypes::Resolved;

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

impl LoadedMap {
    pub(super) fn new(spec: &MapSpec, map: Arc<Map>) -> Self {
        Self { name: spec.name.clone(), spec: spec.clone(), map }
    }
}

/// A loaded program.
#[derive(Debug)]
pub struct LoadedProgram {
    pub(super) file: ProgramFile,
    pub(super) target: Option<String>,
    pub(super) functions: Resolved,
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
    pub(super) programs: Vec<LoadedProgram>,
    pub(super) maps: Vec<LoadedMap>,
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
