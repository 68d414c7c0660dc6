//! What can be hooked: the modules of the own process and their functions.

use crate::code::{self, Code};
use crate::code_cache;
use crate::cursor::Cursor;
use crate::goroutines::Goroutines;
pub use crate::runtime::Convention;
use crate::runtime::{Conventions, Evidence};
use crate::skip::AttachError;
use skep_proc::elf;
use skep_proc::module::{self, Role};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

mod conventions;
mod excerpt;
mod names;

use conventions::{ConventionNumber, ConventionTable};
use names::NameTable;
pub(crate) use names::Names;

/// One ELF file mapped into the process.
#[derive(Debug)]
pub struct Module {
    pub(crate) path: PathBuf,
    pub(crate) bias: u64,
    /// Executable ranges in memory.
    pub(crate) text: Vec<Range<u64>>,
    pub(crate) role: Role,
    file: module::Module,
    list: OnceLock<List>,
    code: OnceLock<Code>,
    goroutines: OnceLock<Option<&'static Goroutines>>,
}

/// One function in memory, as its module's file tells of it: where code is changed is not for a
/// caller to say.
///
/// ```
/// fn place(function: &skep_attach::sites::Function) -> (u64, u64) {
///     (function.addr(), function.size())
/// }
/// ```
///
/// ```compile_fail,E0616
/// fn somewhere_else(function: &mut skep_attach::sites::Function) {
///     function.addr += 1;
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Function {
    pub(crate) module: Arc<Module>,
    /// Of a place inside a function, the function's.
    names: Names,
    pub(crate) addr: u64,
    pub(crate) size: u64,
    pub(crate) kind: Kind,
    convention: ConventionNumber,
    pub(crate) nr_args: Option<u8>,
    /// The function that this place is inside of; `None`: it is a function's own start.
    pub(crate) within: Option<Arc<Enclosing>>,
}

/// The function that a place lies in.
#[derive(Debug)]
pub(crate) struct Enclosing {
    pub(crate) range: Range<u64>,
    /// What the place is called.
    name: String,
}

impl Function {
    /// Names the instruction at a distance from the function's start: hooks there run before each
    /// execution of it. Whether one begins there is found out by [`Engine::attach`](crate::Engine).
    #[must_use]
    pub fn at(&self, offset: u64) -> Self {
        if offset == 0 {
            return self.clone();
        }
        let name = format!("{}+{offset:#x}", self.name());
        self.place(self.addr.saturating_add(offset), name)
    }

    fn place(&self, addr: u64, name: String) -> Self {
        let range = self.addr..self.addr.saturating_add(self.size);
        let within = Some(Arc::new(Enclosing { range, name }));
        Self { addr, size: 0, nr_args: None, within, ..self.clone() }
    }

    /// Tells whether it is a place inside a function.
    #[must_use]
    pub fn is_inside(&self) -> bool {
        self.within.is_some()
    }

    /// Returns where it lives.
    #[must_use]
    pub fn module(&self) -> &Arc<Module> {
        &self.module
    }

    /// Returns its best name, as in the symbol table; `sub_` and the address in the file when it
    /// has none.
    #[must_use]
    pub fn name(&self) -> &str {
        self.within.as_ref().map_or_else(|| self.symbol(), |within| &within.name)
    }

    /// Lists its other names. A place inside a function has none.
    pub fn aliases(&self) -> impl Iterator<Item = &str> + Clone {
        names::aliases(if self.is_inside() { "" } else { self.others() })
    }

    /// The best name of the function, or of the one around the place.
    pub(crate) fn symbol(&self) -> &str {
        self.module.known_names().map_or("", |table| table.best(self.names))
    }

    /// Its other names.
    pub(crate) fn other_symbols(&self) -> impl Iterator<Item = &str> + Clone {
        names::aliases(self.others())
    }

    fn others(&self) -> &str {
        self.module.known_names().map_or("", |table| table.others(self.names))
    }

    /// Returns its address in memory.
    #[must_use]
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// Returns its size in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns what it is.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns how it is called.
    #[must_use]
    pub fn convention(&self) -> Convention {
        self.module.known_convention(self.convention)
    }

    /// Returns the number of argument words, when the attacher knows the prototype.
    #[must_use]
    pub fn nr_args(&self) -> Option<u8> {
        self.nr_args
    }

    /// Says how many argument words hooks shall see, by the function's prototype; else it is 6. The
    /// return value is stored behind them.
    pub fn set_nr_args(&mut self, words: Option<u8>) {
        self.nr_args = words;
    }
}

/// Sorts functions by what they are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Kind {
    /// An ordinary function.
    Func,
    /// The resolver of an indirect function.
    Resolver,
    /// A part of a function that the compiler moved away from it.
    Cold,
    /// Linkage stubs and start-up code.
    Stub,
}

/// What the file says, sorted by address in memory.
#[derive(Debug)]
pub(crate) struct List {
    entries: Vec<Entry>,
    names: NameTable,
    conventions: ConventionTable,
    /// Where else code begins or ends: sections, as `.fini` may follow a function without a gap,
    /// and parts of functions without a name.
    edges: Vec<u64>,
}

#[derive(Debug)]
struct Entry {
    addr: u64,
    size: u64,
    kind: Kind,
    convention: ConventionNumber,
    names: Names,
}

/// Modules that were listed before and are still there. What was learnt about their code was learnt
/// before it was changed.
static KNOWN: Mutex<Vec<Arc<Module>>> = Mutex::new(Vec::new());

/// Lists the modules of the own process. Symbols are read when [`Module::functions`] asks for them.
/// What was read is kept: as long as a module stays loaded, later calls give the same one. The
/// calling thread should be [muted](crate::mute()).
///
/// # Errors
///
/// [`AttachError::Modules`] when the mappings cannot be read.
pub fn scan() -> Result<Vec<Arc<Module>>, AttachError> {
    let modules = module::own().map_err(|e| AttachError::Modules { what: e.to_string() })?;
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let same = |m: &Module, f: &module::Module| {
        (m.bias, m.file.inode, m.file.dev) == (f.bias, f.inode, f.dev)
            && m.path == f.path
            && m.text == f.text
            && m.file.build_id == f.build_id
            && !m.code.get().is_some_and(Code::is_lost)
    };
    let module = |file: module::Module| {
        known
            .iter()
            .find(|m| same(m, &file))
            .map_or_else(|| Arc::new(Module::new(file)), Arc::clone)
    };
    let now: Vec<_> = modules.into_iter().map(module).collect();
    known.clone_from(&now);
    Ok(now)
}

impl Module {
    fn new(file: module::Module) -> Self {
        Self {
            path: file.path.clone(),
            bias: file.bias,
            text: file.text.clone(),
            role: file.role,
            file,
            list: OnceLock::new(),
            code: OnceLock::new(),
            goroutines: OnceLock::new(),
        }
    }

    /// Returns its path, as the kernel tells it.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns what is added to an address in the file to get the address in memory.
    #[must_use]
    pub fn bias(&self) -> u64 {
        self.bias
    }

    /// Returns its executable ranges in memory.
    #[must_use]
    pub fn text(&self) -> &[Range<u64>] {
        &self.text
    }

    /// Returns what it is to the process.
    #[must_use]
    pub fn role(&self) -> Role {
        self.role
    }

    /// Tells whether it is the program itself.
    #[must_use]
    pub fn is_main(&self) -> bool {
        self.role == Role::Main
    }

    /// Tells whether this code is part of it.
    pub(crate) fn is_own(&self) -> bool {
        let here = crate::tramp::entry_points::TRAMPOLINES[0] as usize as u64;
        self.text.iter().any(|r| r.contains(&here))
    }

    /// Tells whether its code is still there, in executable ranges that are sorted.
    pub(crate) fn is_within(&self, executable: &[Range<u64>]) -> bool {
        let around =
            |t: &Range<u64>| executable.get(executable.partition_point(|r| r.end <= t.start));
        self.text.iter().all(|t| around(t).is_some_and(|r| r.start <= t.start && t.end <= r.end))
    }

    /// What the file's mappings say.
    #[must_use]
    pub fn file(&self) -> &module::Module {
        &self.file
    }

    /// Lists the functions of the module, sorted by address. Functions without a symbol are found
    /// through the unwind tables.
    ///
    /// # Errors
    ///
    /// [`AttachError::Symbols`] when the file cannot be read.
    pub fn functions(self: &Arc<Self>) -> Result<Vec<Function>, AttachError> {
        let list = self.list()?;
        Ok(list.entries.iter().map(|e| self.function(e)).collect())
    }

    fn function(self: &Arc<Self>, e: &Entry) -> Function {
        Function {
            module: Arc::clone(self),
            names: e.names,
            addr: e.addr,
            size: e.size,
            kind: e.kind,
            convention: e.convention,
            nr_args: None,
            within: None,
        }
    }

    /// Names the instruction at an address in the file, as [`Function::at`] does.
    #[must_use]
    pub fn place(self: &Arc<Self>, vaddr: u64, name: &str) -> Function {
        let addr = self.file.addr(vaddr);
        let entries = self.list().map(|list| &*list.entries).unwrap_or_default();
        let before = entries.partition_point(|e| e.addr <= addr).checked_sub(1);
        // In no function that is known: nothing can be hooked there, which the engine says.
        let nowhere = Entry {
            addr,
            size: 0,
            kind: Kind::Func,
            convention: ConventionNumber::C,
            names: Names::default(),
        };
        let around = before.and_then(|i| entries.get(i)).filter(|e| addr - e.addr < e.size);
        let function = self.function(around.unwrap_or(&nowhere));
        if around.is_some_and(|e| e.addr == addr) {
            // Its very start.
            return function;
        }
        function.place(addr, name.to_owned())
    }

    /// Finds a function by any of its names.
    pub fn function_named(self: &Arc<Self>, name: &str) -> Result<Option<Function>, AttachError> {
        let List { entries, names, .. } = self.list()?;
        let is_it = |e: &&Entry| {
            names.best(e.names) == name || names.aliases(e.names).any(|alias| alias == name)
        };
        Ok(entries.iter().find(is_it).map(|e| self.function(e)))
    }

    /// The names of its functions, if they were listed.
    fn known_names(&self) -> Option<&NameTable> {
        self.list.get().map(|list| &list.names)
    }

    /// The convention with this number, if its functions were listed.
    fn known_convention(&self, number: ConventionNumber) -> Convention {
        self.list.get().map_or(ConventionTable::UNKNOWN, |list| list.conventions.get(number))
    }

    fn list(&self) -> Result<&List, AttachError> {
        if let Some(list) = self.list.get() {
            return Ok(list);
        }
        let list = List::read(&self.file)
            .map_err(|e| AttachError::Symbols { path: self.path.clone(), what: e.to_string() })?;
        Ok(self.list.get_or_init(|| list))
    }

    /// Where functions begin, as far as known, sorted.
    pub(crate) fn starts(&self) -> Vec<u64> {
        let Ok(list) = self.list() else { return Vec::new() };
        let mut out: Vec<u64> =
            list.entries.iter().map(|e| e.addr).chain(list.edges.iter().copied()).collect();
        out.sort_unstable();
        out.dedup();
        out
    }

    /// The goroutines that may be suspended in its functions. Found on the first call, which must come
    /// before anything in it is changed.
    pub(crate) fn goroutines(&self) -> Option<&'static Goroutines> {
        *self.goroutines.get_or_init(|| {
            let List { entries, names, conventions, .. } = self.list().ok()?;
            let is_of_go = |e: &Entry| {
                matches!(conventions.get(e.convention), Convention::BehindStackCheck { .. })
            };
            entries.iter().any(is_of_go).then_some(())?;
            let find = |name: &str| {
                let is_it = |e: &&Entry| {
                    let found = names.best(e.names);
                    found.strip_prefix(name).is_some_and(|rest| matches!(rest, "" | ".abi0"))
                };
                let e = entries.iter().find(is_it)?;
                self.text_of(e.addr, e.size)
            };
            let preempt = find("runtime.asyncPreempt")?;
            let add = find("runtime.allgadd");
            // SAFETY: code of the module, which was found mapped.
            let add = add.as_ref().map(|add| (unsafe { code::bytes(add) }, add.start));
            // There are as few as modules of Go.
            Some(Box::leak(Box::new(Goroutines::new(preempt, add))))
        })
    }

    /// So many bytes of its code, if they are.
    fn text_of(&self, addr: u64, size: u64) -> Option<Range<u64>> {
        let range = addr..addr.checked_add(size)?;
        let all = |t: &Range<u64>| t.start <= range.start && range.end <= t.end;
        self.text.iter().any(all).then_some(range)
    }

    /// Keeps what is known of the module's code for processes that come later.
    pub(crate) fn keep_code(&self) {
        self.code.get().map(code_cache::keep);
    }

    /// The branches of the module's code. Decoded on the first call, which must come before
    /// anything in it is changed.
    pub(crate) fn code(&self) -> &Code {
        self.code.get_or_init(|| {
            let entries = self.list().map(|list| &*list.entries).unwrap_or_default();
            let sizes = entries.iter().map(|e| e.size);
            // SAFETY: the module was found in the mappings.
            unsafe { Code::find_or_read(self.starts(), sizes, &self.text, &self.file.span) }
        })
    }
}

impl List {
    fn read(file: &module::Module) -> Result<Self, elf::ElfError> {
        let elf = file.elf()?;
        let symbols = elf.functions_at(&file.path, "/".as_ref())?;
        let fdes = elf.frames().unwrap_or_default();
        let stubs = elf.not_functions();
        let conventions = Conventions::of(&elf, &symbols);
        let cursor = Cursor::default();
        let around = |vaddr: u64| {
            let before = cursor
                .partition_point(fdes, |fde| fde.start <= vaddr)
                .checked_sub(1)
                .and_then(|i| fdes.get(i));
            before.filter(|fde| vaddr < fde.end)
        };
        let inside: Vec<u64> = symbols
            .iter()
            .map(|f| f.vaddr)
            .filter(|at| around(*at).is_some_and(|fde| fde.start != *at))
            .collect();
        let entered = elf.entered_at(&inside).unwrap_or_default();
        let mut entries: Vec<Entry> = Vec::with_capacity(symbols.len());
        let bytes = symbols.iter().flat_map(|f| f.symbols()).map(|s| s.name.len() + 1).sum();
        let mut table = NameTable::with_capacity(bytes);
        let mut known = ConventionTable::default();
        for f in symbols.iter() {
            let names = table.add(f.symbols().map(|symbol| symbol.name));
            let name = table.best(names);
            let fde = around(f.vaddr);
            let entered =
                || inside.binary_search(&f.vaddr).is_ok_and(|i| entered.get(i) == Some(&true));
            let evidence = evidence(&f, fde, entered);
            let kind = match f.kind {
                elf::Kind::Ifunc => Kind::Resolver,
                _ if stubs.iter().any(|r| r.contains(&f.vaddr)) => Kind::Stub,
                _ if is_cold(name) => Kind::Cold,
                _ => Kind::Func,
            };
            let size = match (fde, evidence) {
                (Some(fde), Evidence::Unwind | Evidence::OtherUnwind) if f.size_guessed => {
                    fde.end - f.vaddr
                }
                _ => f.size,
            };
            let convention = known.add(conventions.tell(f.vaddr, name, f.kind, evidence));
            entries.push(Entry { addr: file.addr(f.vaddr), size, kind, convention, names });
        }
        let named = entries.len();
        let label = known.add(Evidence::Label.convention());
        let cursor = Cursor::default();
        const SHF_EXECINSTR: u64 = 4;
        let code = elf.sections().iter().filter(|s| s.flags & SHF_EXECINSTR != 0);
        let mut edges: Vec<u64> = code
            .flat_map(|s| [s.vaddr, s.vaddr.wrapping_add(s.size)])
            .chain(conventions.edges())
            .map(|vaddr| file.addr(vaddr))
            .collect();
        for fde in fdes {
            let addr = file.addr(fde.start);
            let symbols = entries.get(..named).unwrap_or_default();
            let after = cursor.partition_point(symbols, |e| e.addr <= addr);
            // What follows a label without a size need not belong to it.
            let covers =
                |e: &Entry| e.addr == addr || (e.convention != label && addr - e.addr < e.size);
            let inside = after.checked_sub(1).and_then(|i| symbols.get(i)).is_some_and(covers);
            if !inside && !fde.function_entry {
                // A part of a function that has no name in a stripped file. What comes before it
                // ends here.
                edges.push(addr);
            } else if !inside && !stubs.iter().any(|r| r.contains(&fde.start)) {
                let names = table.add_formatted(format_args!("sub_{:x}", fde.start));
                let name = table.best(names);
                let evidence = Evidence::Unwind;
                let convention =
                    known.add(conventions.tell(fde.start, name, elf::Kind::Func, evidence));
                entries.push(Entry {
                    addr,
                    size: fde.end - fde.start,
                    kind: Kind::Func,
                    convention,
                    names,
                });
            }
        }
        // Those without a symbol came last.
        if !entries.is_sorted_by_key(|e| e.addr) {
            entries.sort_by_cached_key(|e| e.addr);
        }
        entries.dedup_by_key(|e| e.addr);
        if !file.is_whole() {
            entries.retain(|e| file.text_contains(e.addr));
        }
        Ok(Self { entries, names: table, conventions: known, edges })
    }
}

/// What the tables say of a function. `fde`: the unwind information around its start; `entered`:
/// whether that says, for a place in its middle, that the stack is as at a function's entry.
fn evidence(
    f: &elf::Function<'_>,
    fde: Option<&elf::Fde>,
    entered: impl FnOnce() -> bool,
) -> Evidence {
    match fde {
        Some(fde) if fde.start != f.vaddr => {
            if entered() && !f.size_guessed {
                Evidence::Unwind
            } else {
                Evidence::Inside
            }
        }
        Some(fde) if fde.function_entry => Evidence::Unwind,
        Some(_) => Evidence::OtherUnwind,
        None if f.size_guessed => Evidence::Label,
        None => Evidence::Sized,
    }
}

/// gcc's `f.cold`, `f.cold.12`, and clang's `f.cold.1`.
fn is_cold(name: &str) -> bool {
    // Most have no dot, which is sooner found out.
    name.contains('.')
        && name
            .split_once(".cold")
            .is_some_and(|(_, rest)| rest.is_empty() || rest.starts_with('.'))
}
