//! Programs for chains, loaded into a session's directory.

use std::path::{Path, PathBuf};

use skep::chain::kernel::SourceFile;
use skep::chain::{Assignments, InCommon, LoadedFile, NamedMaps, ObjectHash};
use skep::isa::ProgramType;
use skep::load::{Loaded, Loader};
use skep::object::{CoreTarget, Object};
use skep::{Dir, chain};

use crate::args::SetArgs;
use crate::failure::{Failure, Result};
use crate::files;
use crate::objects::Objects;
use crate::rejection;

/// An object with programs that are loaded, and stay as long as this value.
pub struct Loads {
    /// Where the object is, and what was set of its variables.
    file: SourceFile,
    /// The object as it was read.
    pub object: Object,
    loaded: Loaded,
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

/// One program of an object file.
pub struct One<'a> {
    /// The file.
    pub path: &'a Path,
    /// The program's name or section.
    pub program: &'a str,
    /// The type of the chain's programs.
    pub prog_type: ProgramType,
    /// Others of the file get its maps.
    pub shares_maps: bool,
}

impl Loads {
    /// Loads one program of an object, which has its maps and variables in common with those of the
    /// chain, as `in_common` finds them, and `given` finds maps that are to be used in place of the
    /// object's.
    pub fn one(
        dir: &Dir,
        wanted: &One<'_>,
        variables: &SetArgs,
        in_common: impl FnOnce(ObjectHash) -> Result<InCommon>,
        given: impl FnOnce(&Object) -> Result<NamedMaps>,
    ) -> Result<Self> {
        let One { path, program, prog_type, shares_maps } = *wanted;
        let hash = hash(path)?;
        let in_common = in_common(hash)?;
        let paths = [path.to_owned()];
        let objects = match in_common.set {
            Some(there) => {
                check_variables(path, &variables.set, &there)?;
                let reading = SetArgs::default().reading(prog_type);
                Objects::read_with(&paths, vec![there], &reading)?
            }
            None => Objects::read(&paths, &variables.reading(prog_type))?,
        };
        let Objects { all, target, set } = objects;
        let pair = all.into_iter().zip(set).next();
        let (object, set) = pair.ok_or_else(|| Failure::environment("no object"))?;
        let mut maps = in_common.maps;
        for (name, map) in given(&object)? {
            maps.retain(|(known, _)| *known != name);
            maps.push((name, map));
        }
        let file = SourceFile { path: path.to_owned(), hash, shares_maps, set };
        Self::load(dir, file, (object, target.as_ref()), (&[program], maps))
    }

    /// Loads programs of objects, which are named for each file. Programs of one file share its maps.
    pub fn all(
        dir: &Dir,
        files: &[SourceFile],
        (prog_type, variables): (ProgramType, &SetArgs),
        programs: &[Vec<&str>],
    ) -> Result<Vec<Self>> {
        let paths: Vec<PathBuf> = files.iter().map(|f| f.path.clone()).collect();
        let set = files.iter().map(|f| f.set.clone()).collect();
        let reading = variables.reading(prog_type);
        let Objects { all, target, set } = Objects::read_with(&paths, set, &reading)?;
        let read = files.iter().zip(programs).zip(all.into_iter().zip(set));
        read.map(|((file, programs), (object, set))| {
            let file = SourceFile { set, ..file.clone() };
            Self::load(dir, file, (object, target.as_ref()), (programs, Vec::new()))
        })
        .collect()
    }

    fn load(
        dir: &Dir,
        file: SourceFile,
        (object, target): (Object, Option<&CoreTarget>),
        (programs, maps): (&[&str], NamedMaps),
    ) -> Result<Self> {
        let mut loader = Loader::new(dir).core_target(target);
        for (name, map) in maps {
            loader = loader.reuse_map(&name, map);
        }
        for program in programs {
            let index = crate::prog::find(&object, &file.path, program)?;
            let name = object.programs.get(index).map(|p| p.name.clone()).unwrap_or_default();
            loader = loader.autoload_only(&name);
        }
        let path = file.path.display().to_string();
        let loaded = loader.load(&object).map_err(|e| rejection::load_failure(e, &path))?;
        Ok(Self { file, object, loaded })
    }

    /// Returns what the chain notes of the object.
    pub fn noted(&self) -> LoadedFile<'_> {
        let SourceFile { path: file, hash, shares_maps, set } = self.file.clone();
        LoadedFile { file, hash, shares_maps, set, loaded: &self.loaded }
    }

    /// Counts the instructions of a program, by its name.
    pub fn size(&self, name: &str) -> u32 {
        self.loaded.program(name).map_or(0, |p| p.program().insns().len() as u32)
    }

    /// Returns what chains want to know of a program, by its name or section.
    pub fn program(&self, name: &str) -> Result<chain::ProgramRef> {
        let index = crate::prog::find(&self.object, &self.file.path, name)?;
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
    let bytes = files::read(path)
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
