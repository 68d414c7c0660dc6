//! Objects under test.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use serde_json::Value as Json;
use skep::Session;
use skep::object::Btf;
use skep::test_run::{Engine, Printed};

use crate::contents::{self, Samples};
use crate::elements::ElementError;
use crate::given::Given;
use crate::map::MapUnderTest;
use crate::ran::Ran;
use crate::{Error, Result, lcov};

/// A loaded object whose programs a test runs. Its maps are its own: two tests share nothing. It
/// leaves no file behind.
///
/// Tests may run in parallel; the runs of programs themselves take turns.
///
/// ```
/// use skep_test::{Bpf, Packet, json};
///
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/firewall.bpf.o");
/// let bpf = Bpf::load(path)?;
/// bpf.map("blocked")?.put(json!([10, 0, 0, 1]), 1)?;
/// let packet = Packet::udp("10.0.0.1:53", "10.0.0.2:4000").payload(b"hello");
/// bpf.run("firewall", &packet)?.assert_verdict("drop");
/// # Ok::<(), skep_test::Error>(())
/// ```
#[derive(Debug)]
pub struct Bpf {
    object: skep::Object,
    samples: Mutex<Samples>,
}

/// Options for loading an object: see [`Bpf::options`].
#[derive(Clone, Debug, Default)]
pub struct Options {
    path: PathBuf,
    globals: Vec<(String, String)>,
    max_entries: Vec<(String, u32)>,
    only: Vec<String>,
    types: Vec<(String, String)>,
    core_target: Option<PathBuf>,
}

impl Options {
    /// Gives a global variable a value, written as in C: `7`, `{1, 2}`, `"text"`.
    #[must_use]
    pub fn global(mut self, name: &str, value: impl ToString) -> Self {
        self.globals.push((name.to_owned(), value.to_string()));
        self
    }

    /// Gives a map another number of entries than its definition.
    #[must_use]
    pub fn max_entries(mut self, map: &str, entries: u32) -> Self {
        self.max_entries.push((map.to_owned(), entries));
        self
    }

    /// Loads only this program, and others that are named so: for objects with programs that only a
    /// kernel can run.
    #[must_use]
    pub fn program(mut self, name: &str) -> Self {
        self.only.push(name.to_owned());
        self
    }

    /// Takes a program for one of another section, such as `xdp` or `kprobe`.
    #[must_use]
    pub fn program_type(mut self, program: &str, section: &str) -> Self {
        self.types.push((program.to_owned(), section.to_owned()));
        self
    }

    /// Relocates programs (CO-RE) for the types in this file: BTF, or a program with debug
    /// information. Without this, for those of the running kernel.
    #[must_use]
    pub fn core_target(mut self, path: impl Into<PathBuf>) -> Self {
        self.core_target = Some(path.into());
        self
    }

    /// Loads the object.
    ///
    /// # Errors
    /// As for [`Bpf::load`]; also when what an option names is not there.
    pub fn load(&self) -> Result<Bpf> {
        let session = Session::scratch()?;
        let mut loader = session.loader();
        for (name, value) in &self.globals {
            loader = loader.global(name, value);
        }
        for (map, entries) in &self.max_entries {
            loader = loader.max_entries(map, *entries);
        }
        for (program, section) in &self.types {
            loader = loader.program_type(program, section);
        }
        if let Some(path) = &self.core_target {
            loader = loader.core_target(path);
        }
        if !self.only.is_empty() {
            let bytes = std::fs::read(&self.path)
                .map_err(|source| skep::Error::Read { path: self.path.clone(), source })?;
            let wrong = |source| skep::Error::Object { path: self.path.clone(), source };
            for program in skep::object::Object::parse(&bytes).map_err(wrong)?.programs {
                loader = loader.autoload(&program.name, self.only.contains(&program.name));
            }
            for name in &self.only {
                loader = loader.autoload(name, true);
            }
        }
        let object = loader.load(&self.path)?;
        lcov::expect(object.loaded());
        let samples = Mutex::new(contents::samples(object.loaded())?);
        Ok(Bpf { object, samples })
    }
}

impl Bpf {
    /// Loads an object file: its maps are made, its programs verified.
    ///
    /// # Errors
    /// When the file cannot be read or is no object, or a program is refused; then with the shortest
    /// path to what is wrong.
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        Self::options(path).load()
    }

    /// Begins loading an object with options.
    ///
    /// ```
    /// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/firewall.bpf.o");
    /// let bpf = skep_test::Bpf::options(path).global("max_size", 100).load()?;
    /// # Ok::<(), skep_test::Error>(())
    /// ```
    #[must_use]
    pub fn options(path: impl AsRef<Path>) -> Options {
        Options { path: path.as_ref().to_owned(), ..Options::default() }
    }

    /// Runs a program once on what it is given: a [`Packet`](crate::Packet), bytes, or what
    /// [`Given`] has. The result tells what came of it and can be asserted on.
    ///
    /// # Errors
    /// When there is no such program, or no way to run it here. That the kernel would refuse the
    /// input is no error: [`Ran::assert_errno`].
    pub fn run(&self, program: &str, given: impl Into<Given>) -> Result<Ran> {
        let (given, counting) = (given.into(), lcov::is_wanted());
        let engine = if counting { Engine::Interp } else { Engine::Jit };
        let mut runner = self.object.program(program)?.runner(engine)?;
        if counting {
            runner.count_hits();
        }
        let kind = runner.program().prog_type();
        let context = given.context_of(kind);
        // One run at a time, so that what is printed is known to be of this one.
        let printed = printed()?;
        let lines = |printed: &Printed| {
            printed.take().map_err(|source| ElementError::Map { map: "printed".into(), source })
        };
        lines(&printed)?;
        let done = runner.test_run(&given.input(context.as_deref()));
        let lines = lines(&printed)?;
        drop(printed);
        if counting {
            lcov::add(&runner);
        }
        Ok(Ran::new(program, kind, given.into_packet(), done, lines))
    }

    /// Finds a map, to put elements into it and to look at what programs left there.
    ///
    /// # Errors
    /// When no program that was loaded uses one of this name.
    pub fn map(&self, name: &str) -> Result<MapUnderTest<'_>> {
        let maps = self.object.loaded().maps();
        let known = || maps.iter().map(|m| m.name.clone()).collect();
        let missing =
            || skep::Error::NotThere { kind: "map", name: name.to_owned(), known: known() };
        let map = maps.iter().find(|m| m.name == name).ok_or_else(missing)?;
        Ok(MapUnderTest::new(self, map))
    }

    /// Reads a global variable.
    ///
    /// # Errors
    /// When no program that was loaded has one of this name, or the object has no types (`-g`).
    pub fn variable(&self, name: &str) -> Result<Json> {
        let mut known = Vec::new();
        for map in self.object.loaded().maps().iter().filter(|m| m.spec.is_global_data()) {
            let read = contents::read(map, self.btf(), false, &mut Samples::new())?;
            if let Json::Object(mut variables) = read.json() {
                if let Some(value) = variables.remove(name) {
                    return Ok(value);
                }
                known.extend(variables.into_iter().map(|(name, _)| format!("`{name}`")));
            }
        }
        Err(Error::Variable { name: name.to_owned(), known })
    }

    /// Returns the object, for what has no shorter way here: typed maps, rings.
    #[must_use]
    pub fn object(&self) -> &skep::Object {
        &self.object
    }

    pub(crate) fn btf(&self) -> Option<&Btf> {
        self.object.btf().map(|btf| &**btf)
    }

    pub(crate) fn samples(&self) -> MutexGuard<'_, Samples> {
        self.samples.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Bpf {
    fn drop(&mut self) {
        lcov::write();
    }
}

/// The lines that programs of this process print. Whoever holds it runs alone.
fn printed() -> Result<MutexGuard<'static, Printed>> {
    static PRINTED: OnceLock<Mutex<Printed>> = OnceLock::new();
    static MAKING: Mutex<()> = Mutex::new(());
    let making = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    if PRINTED.get().is_none() {
        let scratch = skep::dir::Scratch::create().map_err(skep::Error::from)?;
        let made = Printed::start(scratch.dir()).map_err(skep::Error::from)?;
        let _ = PRINTED.set(Mutex::new(made));
    }
    drop(making);
    let printed = PRINTED.get().expect("it was made above");
    // A test that fails panics; what it leaves here is taken out before the next run.
    Ok(printed.lock().unwrap_or_else(PoisonError::into_inner))
}
