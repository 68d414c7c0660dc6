//! Programs for chains, loaded into a session's directory.

use std::path::{Path, PathBuf};

use skep::chain::{Assignments, InCommon, LoadedFile, NamedMaps, ObjectHash};
use skep::load::{Loaded, Loader};
use skep::object::{CoreTarget, Object};
use skep::{Dir, chain};

use crate::args::SetArgs;
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
    set: Assignments,
}

/// Refuses values for global variables that programs of the object have in the chain already.
pub fn check_variables(path: &Path, asked: &[(String, String)], there: &Assignments) -> Result<()> {
    if asked.is_empty() || asked == there {
        return Ok(());
    }
    let file = path.display();
    let what =
        format!("--set: the chain has programs of `{file}`, whose variables a new one shares");
    Err(Failure::failed(what).hint("`--own-maps` gives it variables and maps of its own"))
}

/// Refuses values for global variables of a chain that is there already.
pub fn check_named(chain: &str, variables: &SetArgs) -> Result<()> {
    if variables.set.is_empty() {
        return Ok(());
    }
    let what = format!("--set: the programs of chain `{chain}` are loaded already");
    Err(Failure::failed(what)
        .hint("give it to `skep chain create` or `skep chain add`, or run a file"))
}

impl Loads {
    /// Loads one program of an object, which has its maps and variables in common with those of the
    /// chain, as `in_common` finds them, and `given` finds maps that are to be used in place of the
    /// object's.
    pub fn one(
        dir: &Dir,
        path: &Path,
        (program, variables): (&str, &SetArgs),
        in_common: impl FnOnce(ObjectHash) -> Result<InCommon>,
        given: impl FnOnce(&Object) -> Result<NamedMaps>,
    ) -> Result<Self> {
        let hash = hash(path)?;
        let in_common = in_common(hash)?;
        let paths = [path.to_owned()];
        let objects = match in_common.set {
            Some(there) => {
                check_variables(path, &variables.set, &there)?;
                Objects::read_again(&paths, vec![there])?
            }
            None => Objects::read(&paths, &variables.reading())?,
        };
        let Objects { all, target, set } = objects;
        let pair = all.into_iter().zip(set).next();
        let (object, set) = pair.ok_or_else(|| Failure::environment("no object"))?;
        let mut maps = in_common.maps;
        for (name, map) in given(&object)? {
            maps.retain(|(known, _)| *known != name);
            maps.push((name, map));
        }
        Self::load(dir, (path, hash), (object, set, target.as_ref()), (&[program], maps))
    }

    /// Loads programs of objects, which are named for each file. Programs of one object share its maps.
    pub fn all(
        dir: &Dir,
        paths: &[PathBuf],
        variables: &SetArgs,
        programs: &[Vec<&str>],
    ) -> Result<Vec<Self>> {
        let Objects { all, target, set } = Objects::read(paths, &variables.reading())?;
        let read = paths.iter().zip(programs).zip(all.into_iter().zip(set));
        read.map(|((path, programs), (object, set))| {
            let its = (object, set, target.as_ref());
            Self::load(dir, (path, hash(path)?), its, (programs, Vec::new()))
        })
        .collect()
    }

    fn load(
        dir: &Dir,
        (path, hash): (&Path, ObjectHash),
        (object, set, target): (Object, Assignments, Option<&CoreTarget>),
        (programs, maps): (&[&str], NamedMaps),
    ) -> Result<Self> {
        let mut loader = Loader::new(dir).core_target(target);
        for (name, map) in maps {
            loader = loader.reuse_map(&name, map);
        }
        for program in programs {
            let index = crate::prog::find(&object, path, program)?;
            let name = object.programs.get(index).map(|p| p.name.clone()).unwrap_or_default();
            loader = loader.autoload_only(&name);
        }
        let file = path.display().to_string();
        let loaded = loader.load(&object).map_err(|e| rejection::load_failure(e, &file))?;
        Ok(Self { path: path.to_owned(), object, loaded, hash, set })
    }

    /// Returns what the chain notes of the object.
    pub fn noted(&self, shares_maps: bool) -> LoadedFile<'_> {
        let (file, hash, loaded) = (self.path.clone(), self.hash, &self.loaded);
        LoadedFile { file, hash, shares_maps, set: self.set.clone(), loaded }
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

/// Tells a file apart from others by its bytes.
pub fn hash(path: &Path) -> Result<ObjectHash> {
    let bytes = std::fs::read(path)
        .map_err(|e| Failure::environment(format!("cannot read `{}`: {e}", path.display())))?;
    Ok(ObjectHash::of(&bytes))
}

/// Takes `OBJECT:PROGRAM` apart.
pub fn split(text: &str) -> Result<(&Path, &str)> {
    let parts = text.rsplit_once(':').filter(|(o, p)| !o.is_empty() && !p.is_empty());
    parts.map(|(object, program)| (Path::new(object), program)).ok_or_else(|| {
        Failure::environment(format!("`{text}` names no program"))
            .hint("give the object file and the program, as `filter.bpf.o:drop_short`")
    })
}
