//! Programs for chains, loaded into a session's directory.

use std::path::{Path, PathBuf};

use skep::chain::{LoadedFile, NamedMaps, ObjectHash};
use skep::load::{Loaded, Loader};
use skep::object::Object;
use skep::{Dir, chain};

use crate::args::ObjectArgs;
use crate::failure::{Failure, Result};
use crate::objects::Objects;
use crate::rejection;

/// An object with programs that are loaded, and stay as long as this value.
pub struct Loads {
    path: PathBuf,
    /// The object as it was read.
    pub object: Object,
    loaded: Loaded,
    hash: ObjectHash,
}

impl Loads {
    /// Loads programs of one object, which share its maps. `given` finds maps that are there already,
    /// to be used in place of the object's.
    pub fn new(
        dir: &Dir,
        path: &Path,
        programs: &[&str],
        given: impl FnOnce(&Object, ObjectHash) -> Result<NamedMaps>,
    ) -> Result<Self> {
        let bytes = std::fs::read(path).unwrap_or_default();
        let hash = ObjectHash::of(&bytes);
        let paths = [path.to_owned()];
        let objects = Objects::read(&paths, &ObjectArgs::default())?;
        let target = objects.target;
        let object = objects.all.into_iter().next();
        let object = object.ok_or_else(|| Failure::environment("no object"))?;
        let mut loader = Loader::new(dir).core_target(target.as_ref());
        for (name, map) in given(&object, hash)? {
            loader = loader.reuse_map(&name, map);
        }
        for program in programs {
            let index = crate::prog::find(&object, path, program)?;
            let name = object.programs.get(index).map(|p| p.name.clone()).unwrap_or_default();
            loader = loader.autoload_only(&name);
        }
        let file = path.display().to_string();
        let loaded = loader.load(&object).map_err(|e| rejection::load_failure(e, &file))?;
        Ok(Self { path: path.to_owned(), object, loaded, hash })
    }

    /// Returns what the chain notes of the object.
    pub fn noted(&self, shares_maps: bool) -> LoadedFile<'_> {
        let (file, hash, loaded) = (self.path.clone(), self.hash, &self.loaded);
        LoadedFile { file, hash, shares_maps, loaded }
    }

    /// Tells whether this is the object of a file.
    pub fn is_of(&self, path: &Path) -> bool {
        self.path == path
    }

    /// Counts the instructions of a program, by its name.
    pub fn size(&self, name: &str) -> u32 {
        self.loaded.program(name).map_or(0, |p| p.program().insns().len() as u32)
    }

    /// Returns what chains want to know of a program, by its name or section.
    pub fn program(&self, name: &str) -> Result<chain::ProgramRef> {
        let index = crate::prog::find(&self.object, &self.path, name)?;
        let found = self
            .object
            .programs
            .get(index)
            .and_then(|p| self.loaded.program(&p.name))
            .ok_or_else(|| Failure::failed(format!("program `{name}` was not loaded")))?;
        Ok(chain::program_ref(found.id(), found.program()))
    }
}

/// Takes `OBJECT:PROGRAM` apart.
pub fn split(text: &str) -> Result<(&Path, &str)> {
    let parts = text.rsplit_once(':').filter(|(o, p)| !o.is_empty() && !p.is_empty());
    parts.map(|(object, program)| (Path::new(object), program)).ok_or_else(|| {
        Failure::environment(format!("`{text}` names no program"))
            .hint("give the object file and the program, as `filter.bpf.o:drop_short`")
    })
}
