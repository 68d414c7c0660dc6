//! Loaded objects: their programs and maps by name.

use std::sync::Arc;

use skep_object::Btf;

use crate::error::{Error, Result};
use crate::functions::{FunctionLink, Functions};
use crate::load::{Loaded, LoadedProgram};
use crate::map::Map;
use crate::packets::PacketRunner;
use crate::ring::Ring;
use crate::session::Place;
use crate::test_run::{Engine, Input, Outcome, Runner};

/// A loaded object. Its files stay for as long as this value, a link or another process uses them;
/// then the next [`Session::open`](crate::Session::open) of the directory removes them.
#[derive(Debug)]
pub struct Object {
    place: Place,
    loaded: Arc<Loaded>,
    btf: Option<Arc<Btf>>,
}

impl Object {
    pub(crate) fn new(place: Place, loaded: Loaded, btf: Option<Arc<Btf>>) -> Self {
        Self { place, loaded: Arc::new(loaded), btf }
    }

    /// Lists the programs that were loaded, in order of the object.
    pub fn programs(&self) -> impl Iterator<Item = Program<'_>> {
        self.loaded.programs().iter().map(|loaded| Program { object: self, loaded })
    }

    /// Finds a program by the name of its C function.
    ///
    /// # Errors
    /// When it was not loaded.
    pub fn program(&self, name: &str) -> Result<Program<'_>> {
        let loaded = self.loaded.program(name).ok_or_else(|| Error::NotThere {
            kind: "program",
            name: name.to_owned(),
            known: self.programs().map(|p| p.name().to_owned()).collect(),
        })?;
        Ok(Program { object: self, loaded })
    }

    /// Lists the maps, those of global variables among them (`.bss`, `.data`, `.rodata`).
    pub fn maps(&self) -> impl Iterator<Item = Map> {
        self.loaded.maps().iter().map(|m| Map::new(Arc::clone(&m.map), m.name.clone()))
    }

    /// Finds a map by its whole name.
    ///
    /// # Errors
    /// When no program that was loaded uses one of this name.
    pub fn map(&self, name: &str) -> Result<Map> {
        self.maps().find(|m| m.name() == name).ok_or_else(|| Error::NotThere {
            kind: "map",
            name: name.to_owned(),
            known: self.maps().map(|m| m.name().to_owned()).collect(),
        })
    }

    /// Begins to read a ring buffer, or an array of perf events: as [`Map::ring`].
    ///
    /// # Errors
    /// When there is no such map, it is of another type, or somebody else reads it.
    pub fn ring(&self, name: &str) -> Result<Ring> {
        self.map(name)?.ring()
    }

    /// Attaches several programs by one link: all of them, or none. They run in this order.
    ///
    /// # Errors
    /// As for [`Program::attach`]; also when there is no program of a name, or none is named.
    pub fn attach<'n>(
        &self,
        programs: impl IntoIterator<Item = &'n str>,
        functions: Functions,
    ) -> Result<FunctionLink> {
        let programs: Vec<_> =
            programs.into_iter().map(|n| Ok(self.program(n)?.loaded)).collect::<Result<_>>()?;
        FunctionLink::create(&self.place, &self.loaded, &programs, functions)
    }

    /// Returns its programs and maps as loading made them: for what has no shorter way.
    #[must_use]
    pub fn loaded(&self) -> &Loaded {
        &self.loaded
    }

    /// Returns the types of the object.
    #[must_use]
    pub fn btf(&self) -> Option<&Arc<Btf>> {
        self.btf.as_ref()
    }
}

/// A program of a loaded object: verified, and not changed any more.
#[derive(Clone, Copy, Debug)]
pub struct Program<'o> {
    object: &'o Object,
    loaded: &'o LoadedProgram,
}

impl Program<'_> {
    /// Returns the C function's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.loaded.program().name()
    }

    /// Returns the section it came from.
    #[must_use]
    pub fn section(&self) -> &str {
        self.loaded.program().section()
    }

    /// Returns the directory of its object.
    pub(crate) fn directory(&self) -> &std::path::Path {
        self.object.place.dir.path()
    }

    /// Returns what was verified.
    pub(crate) fn stored(&self) -> &skep_store::prog::Program {
        self.loaded.program()
    }

    /// Returns its id in the skep directory.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.loaded.id()
    }

    /// Attaches the program to functions. Those of this process are hooked when this returns;
    /// functions that cannot be are left out, and [`FunctionLink::functions`] tells why.
    ///
    /// # Errors
    /// When its section is for something else or a pattern cannot be read. For this process also
    /// when nothing was attached ([`Error::NothingAttached`]), or nothing can be
    /// ([`Error::Process`]): the code of events is not optimized, the process is in a sandbox or
    /// under Valgrind, or it has links of another directory. Nothing is left attached then.
    pub fn attach(&self, functions: Functions) -> Result<FunctionLink> {
        let object = self.object;
        FunctionLink::create(&object.place, &object.loaded, &[self.loaded], functions)
    }

    /// Attaches the program to the functions of this process that its section names, as
    /// `SEC("fentry.multi/libc:malloc")` does; [`Functions::of_self_by_section`] has options.
    ///
    /// ```
    /// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/library.bpf.o");
    /// # fn attach(path: &str) -> Result<(), skep::Error> {
    /// let session = skep::Session::scratch()?;
    /// let object = session.load(path)?;
    /// let links: Vec<_> = object
    ///     .programs()
    ///     .filter(|program| program.section().starts_with("fentry.multi/libc:"))
    ///     .map(|program| program.attach_by_section())
    ///     .collect::<Result<_, _>>()?;
    /// # assert_eq!(links.len(), 1);
    /// # Ok(())
    /// # }
    /// # // A documentation test is compiled without optimization, which attaching is refused for.
    /// # let _ = attach(path);
    /// ```
    ///
    /// # Errors
    /// As for [`Program::attach`]; also when the section names no function.
    #[doc(alias = "bpf_program__attach")]
    pub fn attach_by_section(&self) -> Result<FunctionLink> {
        self.attach(Functions::of_self_by_section())
    }

    /// Makes the program ready to run by itself.
    ///
    /// # Errors
    /// When it cannot be compiled, or the process has links of another directory.
    pub fn runner(&self, engine: Engine) -> Result<Runner> {
        Ok(Runner::new(&self.object.place.dir, &self.object.loaded, self.name(), engine)?)
    }

    /// Makes an XDP program ready to run on real packets: of capture files, interfaces, memory.
    ///
    /// # Errors
    /// As for [`Program::runner`]; also when it is no XDP program, or one of a map's entries.
    pub fn packets(&self, engine: Engine) -> Result<PacketRunner> {
        Ok(PacketRunner::new(self.runner(engine)?)?)
    }

    /// Runs the program once, as the kernel's `BPF_PROG_TEST_RUN` does, on the calling thread. Many
    /// runs are faster with [`Program::runner`]. Waits for test runs of other directories.
    ///
    /// # Errors
    /// With the error number that the kernel's call fails with, or as for [`Program::runner`].
    #[doc(alias = "bpf_prog_test_run_opts")]
    pub fn test_run(&self, input: &Input<'_>) -> Result<Outcome> {
        let done = self.runner(Engine::Jit)?.test_run(input);
        done.map_err(|errno| Error::TestRun { program: self.name().to_owned(), errno })
    }
}
