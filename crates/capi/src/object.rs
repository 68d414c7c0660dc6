//! Objects: options, loading, programs and maps by name.

use std::ffi::{c_char, c_int, c_void};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use skep::{Map, Object, ObjectLoader, Program};

use crate::call::{Answer, Failure, call};
use crate::errno;
use crate::handle::{self, Handle, Kind, Table};
use crate::memory::{self, Plain};
use crate::session::OpenSession;

/// What a loader was told, in order.
enum Choice {
    Global(String, String),
    MaxEntries(String, u32),
    Autoload(String, bool),
    ProgramType(String, String),
    CoreTarget(PathBuf),
    Prototypes(PathBuf),
}

/// Options for loading.
pub struct Loader {
    session: Arc<OpenSession>,
    choices: Mutex<Vec<Choice>>,
}

/// A program of an object, which it keeps.
pub struct OwnedProgram {
    object: Arc<Object>,
    name: String,
}

impl OwnedProgram {
    /// Finds the program in its object.
    pub fn program(&self) -> Answer<Program<'_>> {
        Ok(self.object.program(&self.name)?)
    }
}

static LOADERS: Table<Loader> = Table::new("loader");
static OBJECTS: Table<Arc<Object>> = Table::new("object");
static PROGRAMS: Table<OwnedProgram> = Table::new("program");

impl Kind for Loader {
    fn table() -> &'static Table<Self> {
        &LOADERS
    }
}

impl Kind for Arc<Object> {
    fn table() -> &'static Table<Self> {
        &OBJECTS
    }
}

impl Kind for OwnedProgram {
    fn table() -> &'static Table<Self> {
        &PROGRAMS
    }
}

/// `struct skep_program_info`.
#[repr(C)]
#[derive(Clone, Copy)]
#[expect(missing_docs, reason = "the header documents them")]
pub struct ProgramInfo {
    pub id: u32,
    pub reserved: u32,
    pub name: [u8; 128],
    pub section: [u8; 256],
}

// SAFETY: two words, and bytes up to a multiple of four.
unsafe impl Plain for ProgramInfo {
    const LEAST: usize = 392;
    const NAME: &'static str = "struct skep_program_info";
}

impl Loader {
    fn choose(handle: Handle, choice: impl FnOnce() -> Answer<Choice>) -> c_int {
        call(|| {
            let loader = handle::get::<Self>(handle)?;
            let choice = choice()?;
            loader.choices.lock().unwrap_or_else(PoisonError::into_inner).push(choice);
            Ok(0)
        })
    }

    /// Makes ready to load.
    fn prepared(&self) -> ObjectLoader<'_> {
        self.session.makes_one();
        let choices = self.choices.lock().unwrap_or_else(PoisonError::into_inner);
        choices.iter().fold(self.session.loader(), |loader, choice| match choice {
            Choice::Global(name, value) => loader.global(name, value),
            Choice::MaxEntries(map, n) => loader.max_entries(map, *n),
            Choice::Autoload(program, load) => loader.autoload(program, *load),
            Choice::ProgramType(program, section) => loader.program_type(program, section),
            Choice::CoreTarget(path) => loader.core_target(path),
            Choice::Prototypes(path) => loader.prototypes(path),
        })
    }
}

/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn skep_loader_new(session: Handle, out: *mut Handle) -> c_int {
    // SAFETY: `out` is a place for a handle: the caller's promise.
    call(|| unsafe {
        let session = handle::get::<OpenSession>(session)?;
        handle::give(out, || Ok(Loader { session, choices: Mutex::default() }))
    })
}

/// Makes the functions that note two texts.
macro_rules! two_texts {
    ($($name:ident($first:literal, $second:literal) => $choice:ident;)*) => {$(
        /// # Safety
        /// As the header says.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            loader: Handle,
            first: *const c_char,
            second: *const c_char,
        ) -> c_int {
            // SAFETY: both are texts: the caller's promise.
            Loader::choose(loader, || unsafe {
                let first = memory::text(first, $first)?.to_owned();
                Ok(Choice::$choice(first, memory::text(second, $second)?.to_owned()))
            })
        }
    )*};
}

two_texts! {
    skep_loader_global("name of the variable", "value") => Global;
    skep_loader_program_type("name of the program", "section") => ProgramType;
}

/// Makes the functions that note a path.
macro_rules! path {
    ($($name:ident => $choice:ident;)*) => {$(
        /// # Safety
        /// As the header says.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(loader: Handle, path: *const c_char) -> c_int {
            // SAFETY: the path is a text: the caller's promise.
            Loader::choose(loader, || unsafe {
                Ok(Choice::$choice(memory::text(path, "path")?.into()))
            })
        }
    )*};
}

path! {
    skep_loader_core_target => CoreTarget;
    skep_loader_prototypes => Prototypes;
}

/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn skep_loader_max_entries(
    loader: Handle,
    map: *const c_char,
    entries: u32,
) -> c_int {
    // SAFETY: the name is a text: the caller's promise.
    let name = || unsafe { memory::text(map, "name of the map") }.map(str::to_owned);
    Loader::choose(loader, || Ok(Choice::MaxEntries(name()?, entries)))
}

/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn skep_loader_autoload(
    loader: Handle,
    program: *const c_char,
    load: c_int,
) -> c_int {
    // SAFETY: the name is a text: the caller's promise.
    let name = || unsafe { memory::text(program, "name of the program") }.map(str::to_owned);
    Loader::choose(loader, || Ok(Choice::Autoload(name()?, load != 0)))
}

/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn skep_loader_load_file(
    loader: Handle,
    path: *const c_char,
    out: *mut Handle,
) -> c_int {
    // SAFETY: `path` is a text, `out` a place for a handle: the caller's promise.
    call(|| unsafe {
        let loader = handle::get::<Loader>(loader)?;
        let path = memory::text(path, "path")?;
        handle::give(out, || Ok(Arc::new(loader.prepared().load(path)?)))
    })
}

/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn skep_loader_load_memory(
    loader: Handle,
    bytes: *const c_void,
    size: usize,
    out: *mut Handle,
) -> c_int {
    // SAFETY: there are `size` bytes, `out` is a place for a handle: the caller's promise.
    call(|| unsafe {
        let loader = handle::get::<Loader>(loader)?;
        let bytes = memory::input(bytes, size, "object")?;
        handle::give(out, || Ok(Arc::new(loader.prepared().load_bytes(bytes)?)))
    })
}

/// Frees a loader.
#[unsafe(no_mangle)]
pub extern "C" fn skep_loader_free(loader: Handle) -> c_int {
    handle::free::<Loader>(loader)
}

/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn skep_object_open(
    session: Handle,
    path: *const c_char,
    out: *mut Handle,
) -> c_int {
    // SAFETY: `path` is a text, `out` a place for a handle: the caller's promise.
    call(|| unsafe {
        let session = handle::get::<OpenSession>(session)?;
        let path = memory::text(path, "path")?;
        session.makes_one();
        handle::give(out, || Ok(Arc::new(session.load(path)?)))
    })
}

/// Finds an object.
pub fn object(handle: Handle) -> Answer<Arc<Object>> {
    handle::get::<Arc<Object>>(handle).map(|object| Arc::clone(&*object))
}

fn beyond(what: &str, index: u32) -> Failure {
    Failure::new(errno::ENOENT, format!("the object has no {what} {index}"))
}

/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn skep_object_program(
    from: Handle,
    name: *const c_char,
    out: *mut Handle,
) -> c_int {
    // SAFETY: `name` is a text, `out` a place for a handle: the caller's promise.
    call(|| unsafe {
        let object = object(from)?;
        let name = memory::text(name, "name of the program")?.to_owned();
        object.program(&name)?;
        handle::give(out, || Ok(OwnedProgram { object, name }))
    })
}

/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn skep_object_program_at(
    from: Handle,
    index: u32,
    out: *mut Handle,
) -> c_int {
    // SAFETY: `out` is a place for a handle: the caller's promise.
    call(|| unsafe {
        let object = object(from)?;
        let name = object.programs().nth(index as usize).map(|p| p.name().to_owned());
        let name = name.ok_or_else(|| beyond("program", index))?;
        handle::give(out, || Ok(OwnedProgram { object, name }))
    })
}

/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn skep_object_map(
    from: Handle,
    name: *const c_char,
    out: *mut Handle,
) -> c_int {
    // SAFETY: `name` is a text, `out` a place for a handle: the caller's promise.
    call(|| unsafe {
        let object = object(from)?;
        let name = memory::text(name, "name of the map")?;
        handle::give(out, || Ok(object.map(name)?))
    })
}

/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn skep_object_map_at(from: Handle, index: u32, out: *mut Handle) -> c_int {
    // SAFETY: `out` is a place for a handle: the caller's promise.
    call(|| unsafe {
        let found: Option<Map> = object(from)?.maps().nth(index as usize);
        let found = found.ok_or_else(|| beyond("map", index))?;
        handle::give(out, || Ok(found))
    })
}

/// Frees an object's handle.
#[unsafe(no_mangle)]
pub extern "C" fn skep_object_free(object: Handle) -> c_int {
    handle::free::<Arc<Object>>(object)
}

fn fill(out: &mut [u8], text: &str) {
    let room = out.len().saturating_sub(1);
    for (to, from) in out.iter_mut().take(room).zip(text.bytes()) {
        *to = from;
    }
}

/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn skep_program_info(
    program: Handle,
    info: *mut ProgramInfo,
    size: usize,
) -> c_int {
    call(|| {
        let owned = handle::get::<OwnedProgram>(program)?;
        let program = owned.program()?;
        let mut all =
            ProgramInfo { id: program.id(), reserved: 0, name: [0; 128], section: [0; 256] };
        fill(&mut all.name, program.name());
        fill(&mut all.section, program.section());
        // SAFETY: `info` has `size` bytes: the caller's promise.
        unsafe { memory::write(info, size, &all) }.map(|()| 0)
    })
}

/// Frees a program's handle.
#[unsafe(no_mangle)]
pub extern "C" fn skep_program_free(program: Handle) -> c_int {
    handle::free::<OwnedProgram>(program)
}
