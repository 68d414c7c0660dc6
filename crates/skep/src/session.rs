//! Sessions: a skep directory, and loading objects into it.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use rustix::fs::OFlags;
use skep_maps::{Access, Map as RawMap, MapDef, SlotTable};
use skep_object::{CoreTarget, Object as ElfObject, RawProgram};
use skep_store::Dir;
use skep_store::dir::{Kind, Scratch};

use crate::error::{Error, Result};
use crate::functions::FunctionLink;
use crate::loaded::Object;
use crate::map::Map;
use crate::process::Attached;
use crate::prototypes::Catalog;

/// An open skep directory: where the maps, programs and links of this process, and of those it
/// shares them with, are files.
///
/// Dropping it closes nothing that an object, a map or a link still uses. Several sessions of one
/// directory, in one process or in many, see the same files. A forked child may use its parent's.
///
/// ```
/// # fn main() -> Result<(), skep::Error> {
/// let session = skep::Session::scratch()?;
/// # let object = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/library.bpf.o");
/// let object = session.load(object)?;
/// for program in object.programs() {
///     println!("{} ({})", program.name(), program.section());
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Session {
    place: Place,
}

/// A directory, and what keeps it if it is for this process alone.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub dir: Dir,
    pub scratch: Option<Arc<Scratch>>,
}

impl Session {
    /// Opens the directory that the environment asks for: `$SKEP_DIR`, else
    /// `$XDG_RUNTIME_DIR/skep`, else `/dev/shm/skep-UID`. It is created when it is not there.
    ///
    /// # Errors
    /// When it cannot be created, belongs to another user, or is open to others.
    pub fn open() -> Result<Self> {
        Self::open_in(Dir::default_path())
    }

    /// Opens a directory, or creates it.
    ///
    /// # Errors
    /// As for [`Session::open`].
    pub fn open_in(path: impl AsRef<Path>) -> Result<Self> {
        crate::note_clock();
        let dir = Dir::create(path.as_ref())?;
        // Removes what nobody uses any more. A failure does not matter here.
        drop(dir.collect());
        Ok(Self { place: Place { dir, scratch: None } })
    }

    /// Makes a directory for this process alone: for tests, and for whoever shares nothing. It is
    /// removed with the last of the session, its objects and its links, and not by a forked child.
    ///
    /// # Errors
    /// As for [`Session::open`].
    pub fn scratch() -> Result<Self> {
        let scratch = Scratch::create()?;
        let dir = scratch.dir().clone();
        Ok(Self { place: Place { dir, scratch: Some(Arc::new(scratch)) } })
    }

    /// Returns the directory.
    #[must_use]
    pub fn dir(&self) -> &Dir {
        &self.place.dir
    }

    /// Returns the directory, and what keeps it.
    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    /// Tells whether the directory is for this process alone.
    #[must_use]
    pub fn is_scratch(&self) -> bool {
        self.place.scratch.is_some()
    }

    /// Loads an object file: creates its maps, relocates and verifies its programs.
    ///
    /// # Errors
    /// When the file cannot be read or is no object, a map cannot be made, or a program is refused.
    /// Nothing is left behind then.
    pub fn load(&self, path: impl AsRef<Path>) -> Result<Object> {
        self.loader().load(path)
    }

    /// Loads an object with options.
    #[must_use]
    pub fn loader(&self) -> ObjectLoader<'_> {
        ObjectLoader::new(self)
    }

    /// Loads a program that comes as instructions, not out of an object file. The handle of a map in
    /// them (`BPF_PSEUDO_MAP_FD`) is its place in `maps`, which are of this session.
    ///
    /// ```
    /// use skep::isa::{Insn, MapType, ProgramType, op};
    /// use skep::maps::MapDef;
    /// use skep::object::RawProgram;
    /// use skep::test_run::Input;
    ///
    /// # fn main() -> Result<(), skep::Error> {
    /// let session = skep::Session::scratch()?;
    /// let map = session.create_map(&MapDef::new(MapType::Array, 4, 8, 1))?;
    /// let [low, high] = Insn::ld_imm64(1, op::PSEUDO_MAP_FD, 0);
    /// let insns = [low, high, Insn::mov64_imm(0, 2), Insn::exit()];
    /// let raw = RawProgram::new("pass", ProgramType::Xdp, &insns);
    /// let object = session.load_instructions(&raw, &[map])?;
    /// assert_eq!(object.program("pass")?.test_run(&Input::data(&[0; 64]))?.retval, 2);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When a map is of another directory, the program refers to what is not there, or is rejected.
    #[doc(alias = "BPF_PROG_LOAD")]
    pub fn load_instructions(&self, raw: &RawProgram<'_>, maps: &[Map]) -> Result<Object> {
        SlotTable::open_or_create(self.place.dir.path())
            .map_err(|source| Error::Map { map: "slots".to_owned(), source })?;
        let maps: Vec<_> = maps.iter().map(|m| (m.raw(), m.name().to_owned())).collect();
        let loaded = crate::load::instructions::load(&self.place.dir, raw, &maps)?;
        Ok(Object::new(self.place.clone(), loaded, raw.btf.clone()))
    }

    /// Makes a command that several links trace from its start: it, and what it executes, is hooked
    /// before `main`. On a function of several links, programs run in this order. Without a link,
    /// the command runs as it is.
    ///
    /// The links must live until the command has started, and their programs run for as long as
    /// they are not detached. The agent's library is the one that `SKEP_PRELOAD` names, else
    /// `libskep_preload.so` beside this program or in the directory above.
    ///
    /// ```no_run
    /// use skep::{Functions, Session};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let session = Session::open()?;
    /// let object = session.load("count.bpf.o")?;
    /// let calls = object.program("count")?.attach(Functions::of_commands("libc:malloc"))?;
    /// let pairs = object.attach(["enter", "leave"], Functions::of_commands("libc:free"))?;
    /// session.command("sort", [&calls, &pairs])?.arg("/etc/passwd").status()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When a link is of another directory, or the agent's library is not there.
    pub fn command<'l>(
        &self,
        program: impl AsRef<OsStr>,
        links: impl IntoIterator<Item = &'l FunctionLink>,
    ) -> Result<Command> {
        let links = links.into_iter().map(|link| (link.dir(), link.id()));
        crate::command::traced(&self.place.dir, program.as_ref(), links, None)
    }

    /// Makes a command as [`Session::command`] does, with the agent's library at this path.
    ///
    /// # Errors
    /// As for [`Session::command`].
    pub fn command_with<'l>(
        &self,
        program: impl AsRef<OsStr>,
        links: impl IntoIterator<Item = &'l FunctionLink>,
        agent: &Path,
    ) -> Result<Command> {
        let links = links.into_iter().map(|link| (link.dir(), link.id()));
        crate::command::traced(&self.place.dir, program.as_ref(), links, Some(agent))
    }

    /// Attaches links, made with [`Functions::of_commands`](crate::Functions::of_commands), in a process
    /// that runs already, which is stopped for some milliseconds. It need not know skep, may be static,
    /// and has one skep at a time. What it executes goes on without the programs; what it forks has
    /// them.
    ///
    /// The agent's library is that of [`Session::command`].
    ///
    /// ```no_run
    /// use skep::{Functions, Session};
    ///
    /// # fn main() -> Result<(), skep::Error> {
    /// let session = Session::open()?;
    /// let object = session.load("count.bpf.o")?;
    /// let link = object.program("count")?.attach(Functions::of_commands("libc:malloc"))?;
    /// let attached = session.enter(1234, [&link])?;
    /// std::thread::sleep(std::time::Duration::from_secs(10));
    /// attached.leave()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When a link is of another directory, the agent's library is not there, or the process is not, is
    /// another user's, or cannot be changed.
    pub fn enter<'l>(
        &self,
        pid: u32,
        links: impl IntoIterator<Item = &'l FunctionLink>,
    ) -> Result<Attached> {
        let links = links.into_iter().map(|link| (link.dir(), link.id()));
        crate::command::entered(&self.place.dir, pid, links, None)
    }

    /// Attaches links as [`Session::enter`] does, with the agent's library at this path.
    ///
    /// # Errors
    /// As for [`Session::enter`].
    pub fn enter_with<'l>(
        &self,
        pid: u32,
        links: impl IntoIterator<Item = &'l FunctionLink>,
        agent: &Path,
    ) -> Result<Attached> {
        let links = links.into_iter().map(|link| (link.dir(), link.id()));
        crate::command::entered(&self.place.dir, pid, links, Some(agent))
    }

    /// Creates a map that no object asks for.
    ///
    /// # Errors
    /// When its definition is not one of its type, or there is no room for it.
    pub fn create_map(&self, def: &MapDef) -> Result<Map> {
        let err = |source| Error::Map { map: def.name.clone(), source };
        SlotTable::open_or_create(self.place.dir.path()).map_err(err)?;
        skep_runtime::memory::guard();
        let id = self.place.dir.next_id(Kind::Map)?;
        let map = RawMap::create(&self.place.dir.kind(Kind::Map), id, def).map_err(err)?;
        Ok(Map::new(Arc::new(map), def.name.clone()))
    }

    /// Opens a map by its id, whoever made it.
    ///
    /// # Errors
    /// When there is none, or its file is damaged.
    pub fn open_map(&self, id: u32) -> Result<Map> {
        let err = |source| Error::Map { map: id.to_string(), source };
        skep_runtime::memory::guard();
        let path = self.place.dir.object(Kind::Map, id);
        let map = Arc::new(RawMap::open(&path, Access::ReadWrite).map_err(err)?);
        let name = map.def().name.clone();
        Ok(Map::new(map, name))
    }
}

/// Options for loading an object.
///
/// ```
/// # fn main() -> Result<(), skep::Error> {
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/library.bpf.o");
/// let session = skep::Session::scratch()?;
/// let object = session
///     .loader()
///     .global("limit", "100")
///     .max_entries("counts", 64)
///     .autoload("first_bytes", false)
///     .load(path)?;
/// assert!(object.program("first_bytes").is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct ObjectLoader<'s> {
    session: &'s Session,
    globals: Vec<(String, String)>,
    max_entries: Vec<(String, u32)>,
    autoload: Vec<(String, bool)>,
    sections: Vec<(String, String)>,
    core_target: Option<PathBuf>,
    prototypes: Option<PathBuf>,
}

impl<'s> ObjectLoader<'s> {
    fn new(session: &'s Session) -> Self {
        Self {
            session,
            globals: Vec::new(),
            max_entries: Vec::new(),
            autoload: Vec::new(),
            sections: Vec::new(),
            core_target: None,
            prototypes: None,
        }
    }

    /// Gives a global variable a value, written as in C: `7`, `{1, 2}`, `"text"`; `name.field[3]`
    /// names part of one.
    #[must_use]
    pub fn global(mut self, name: &str, value: impl ToString) -> Self {
        self.globals.push((name.to_owned(), value.to_string()));
        self
    }

    /// Gives a map another number of entries than its definition.
    #[must_use]
    #[doc(alias = "bpf_map__set_max_entries")]
    pub fn max_entries(mut self, map: &str, entries: u32) -> Self {
        self.max_entries.push((map.to_owned(), entries));
        self
    }

    /// Says whether a program is loaded. Without this, its section says so.
    #[must_use]
    #[doc(alias = "bpf_program__set_autoload")]
    pub fn autoload(mut self, program: &str, load: bool) -> Self {
        self.autoload.push((program.to_owned(), load));
        self
    }

    /// Takes a program for one of another section, such as `xdp` or `fentry/malloc`. That is also
    /// what [`Program::attach_by_section`](crate::Program::attach_by_section) goes by.
    #[must_use]
    #[doc(alias = "bpf_program__set_type")]
    pub fn program_type(mut self, program: &str, section: &str) -> Self {
        self.sections.push((program.to_owned(), section.to_owned()));
        self
    }

    /// Relocates programs (CO-RE) for the types in this file: BTF, or a program with debug
    /// information. Without this, for those of the running kernel.
    #[must_use]
    pub fn core_target(mut self, path: impl Into<PathBuf>) -> Self {
        self.core_target = Some(path.into());
        self
    }

    /// Looks up the types of the functions that programs are going to be attached to, in the debug
    /// information of this program or library and of the libraries it is linked with. A name without
    /// a slash is searched in `PATH`. Without this, programs that read arguments see the six words
    /// of registers.
    ///
    /// Loading fails with [`Error::Prototypes`] if the file is not there, cannot be read, or is no
    /// program, library or script. Functions that its debug information does not name are no error.
    #[must_use]
    pub fn prototypes(mut self, program: impl Into<PathBuf>) -> Self {
        self.prototypes = Some(program.into());
        self
    }

    /// Loads an object file.
    ///
    /// # Errors
    /// As for [`Session::load`]; also when an option names what is not in the object.
    pub fn load(self, path: impl AsRef<Path>) -> Result<Object> {
        let path = path.as_ref();
        let bytes = read(path)?;
        self.load_parsed(path, &bytes)
    }

    /// Loads an object that is in memory, as by `include_bytes!`.
    ///
    /// # Errors
    /// As for [`ObjectLoader::load`].
    pub fn load_bytes(self, bytes: &[u8]) -> Result<Object> {
        self.load_parsed(Path::new("object"), bytes)
    }

    fn load_parsed(self, path: &Path, bytes: &[u8]) -> Result<Object> {
        let wrong = |source| Error::Object { path: path.to_owned(), source };
        let mut object = ElfObject::parse(bytes).map_err(wrong)?;
        self.apply(&mut object)?;
        crate::kconfig::fill(&mut object).map_err(wrong)?;
        let target = self.read_core_target(&object)?;
        let catalog = self.prototypes.as_deref().map(catalog).transpose()?;
        let mut loader =
            crate::load::Loader::new(&self.session.place.dir).core_target(target.as_ref());
        if let Some(catalog) = &catalog {
            loader = loader.functions(catalog);
        }
        for (map, entries) in &self.max_entries {
            loader = loader.max_entries(map, *entries);
        }
        let loaded = loader.load(&object)?;
        Ok(Object::new(self.session.place.clone(), loaded, object.btf.clone()))
    }

    /// Changes the object as the options say.
    fn apply(&self, object: &mut ElfObject) -> Result<()> {
        for (name, value) in &self.globals {
            object.set_global(name, value)?;
        }
        for (map, _) in &self.max_entries {
            if !object.maps.iter().any(|m| m.name == *map) {
                let known = object.maps.iter().map(|m| m.name.clone()).collect();
                return Err(Error::NotThere { kind: "map", name: map.clone(), known });
            }
        }
        for (name, load) in &self.autoload {
            program(object, name)?.autoload = *load;
        }
        for (name, section) in &self.sections {
            program(object, name)?.take_as(section).map_err(|e| Error::ProgramType {
                program: name.clone(),
                section: section.clone(),
                why: e.to_string(),
            })?;
        }
        Ok(())
    }

    fn read_core_target(&self, object: &ElfObject) -> Result<Option<CoreTarget>> {
        const KERNEL: &str = "/sys/kernel/btf/vmlinux";
        let path = match &self.core_target {
            Some(path) => path.as_path(),
            None if object.needs_core_target() && Path::new(KERNEL).exists() => Path::new(KERNEL),
            None => return Ok(None),
        };
        let bytes = read(path)?;
        match types(&bytes) {
            Ok(target) => Ok(Some(target)),
            Err(source) => Err(Error::Types { path: path.to_owned(), source }),
        }
    }
}

/// Finds the program whose functions' types are looked up.
fn catalog(program: &Path) -> Result<Catalog> {
    Catalog::of_program(program.as_os_str())
        .map_err(|source| Error::Prototypes { path: program.to_owned(), source: Box::new(source) })
}

/// Finds the types in a file, BTF or debug information.
fn types(bytes: &[u8]) -> Result<CoreTarget, Box<dyn std::error::Error + Send + Sync>> {
    let parsed = CoreTarget::parse(bytes);
    #[cfg(feature = "dwarf")]
    if parsed.is_err() {
        return Ok(CoreTarget::from_dwarf(bytes)?);
    }
    Ok(parsed?)
}

/// Reads a regular file: of a pipe that nobody writes to, the caller would wait without an end.
fn read(path: &Path) -> Result<Vec<u8>> {
    let read = || {
        let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
        let mut file = OpenOptions::new().read(true).custom_flags(nonblocking).open(path)?;
        let kind = file.metadata()?.file_type();
        if !kind.is_file() && !kind.is_dir() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map(|_| bytes)
    };
    read().map_err(|source| Error::Read { path: path.to_owned(), source })
}

fn program<'o>(object: &'o mut ElfObject, name: &str) -> Result<&'o mut skep_object::Program> {
    let known = object.programs.iter().map(|p| p.name.clone()).collect();
    let missing = Error::NotThere { kind: "program", name: name.to_owned(), known };
    object.programs.iter_mut().find(|p| p.name == name).ok_or(missing)
}
