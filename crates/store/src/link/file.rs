//! Link files: what to attach where, and what came of it in every process that tried.
//!
//! The loader writes the [`LinkSpec`]; each target appends the functions it found. A function's
//! place in the file is its index, the same in all processes: a target that maps a module which
//! another target has registered uses the same indexes.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

use skep_sys::Unseeded;

use super::attach_type::FunctionAttachType;
use super::mapped::MappedModule;
use super::types::Types;
use crate::dir::{Dir, Kind};
use crate::record::{Batch, FileKind, HEAD_LEN, Record, RecordError, RecordFile, Records};
use crate::wire::{Reader, WireError, Writer};

const KIND: FileKind = FileKind { number: 3, name: "link", restarts: false };

const TAG_SPEC: u32 = 9;
const TAG_MODULE: u32 = 2;
const TAG_FUNCTION: u32 = 3;
const TAG_AGENT: u32 = 4;
const TAG_SKIPPED: u32 = 5;
const TAG_ENTRY_ONLY: u32 = 6;

/// Set in the attach cookie of a function whose session program runs at entry only
/// ([`LinkSpec::entry_only`]).
pub const ENTRY_ONLY: u64 = 1 << 63;
/// Appended by `skep_runtime` too, when a program is executed without the agent.
pub const TAG_UNTRACED: u32 = 7;
const TAG_TYPES: u32 = 10;
const TAG_WANTS_MAPPED: u32 = 11;
const TAG_MAPPED: u32 = 12;
const TAG_PROBES: u32 = 13;

/// Names what the program gets as its context.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Context {
    /// Argument words, as fentry and its like.
    Tracing = 1,
    /// `struct pt_regs`, as uprobe and its like.
    PtRegs = 2,
}

/// Names the value `bpf_get_attach_cookie` returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Cookie {
    /// That of the target that the function matches: [`LinkTarget::cookie`].
    Target = 0,
    /// The function's index in the link.
    Index = 1,
}

/// A program of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkProgram {
    /// Its id.
    pub id: u32,
    /// When it runs.
    pub attach_type: FunctionAttachType,
    /// What it gets.
    pub context: Context,
}

/// Functions that a link attaches to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkTarget {
    /// The pattern that they match.
    pub pattern: String,
    /// What `bpf_get_attach_cookie` returns for them, if the link's cookies are the targets'.
    pub cookie: u64,
}

impl LinkTarget {
    /// Makes targets without cookies.
    pub fn all<S: AsRef<str>>(patterns: impl IntoIterator<Item = S>) -> Vec<Self> {
        let target = |p: S| Self { pattern: p.as_ref().to_owned(), cookie: 0 };
        patterns.into_iter().map(target).collect()
    }
}

/// A probe that a file declares (USDT), found by the loader: a place in its code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkProbe {
    /// The path of the file.
    pub module: String,
    /// `provider:name`.
    pub name: String,
    /// The address of its instruction in the file.
    pub vaddr: u64,
    /// The address of the counter of those who listen; 0: it has none.
    pub semaphore: u64,
    /// What `bpf_get_attach_cookie` returns there.
    pub cookie: u64,
}

impl LinkProbe {
    fn encode<'w>(&self, w: &'w mut Writer) -> &'w mut Writer {
        w.str(&self.module).str(&self.name).u64(self.vaddr).u64(self.semaphore).u64(self.cookie)
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self {
            module: r.str("module of a probe")?.to_owned(),
            name: r.str("name of a probe")?.to_owned(),
            vaddr: r.u64("address of a probe")?,
            semaphore: r.u64("semaphore of a probe")?,
            cookie: r.u64("cookie of a probe")?,
        })
    }
}

/// Tells what a link attaches where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkSpec {
    /// The programs, in the order in which they run on a function.
    pub programs: Vec<LinkProgram>,
    /// Id of the link's control map: a u64 array, see [`control`](super::control).
    pub control: u32,
    /// Which cookie each function has.
    pub cookie: Cookie,
    /// For one session program: a function that cannot be hooked at its return is not skipped, the
    /// program runs at its entry alone. It must not count on a return there: it knows such a
    /// call by [`ENTRY_ONLY`] in the attach cookie.
    pub entry_only: bool,
    /// Functions beyond this many are skipped.
    pub max_functions: u32,
    /// Ids of the maps that have an element for each function, by its index: a process maps only those
    /// of its own functions.
    pub by_function: Vec<u32>,
    /// Patterns a function must match one of; the first that it matches is its target.
    pub include: Vec<LinkTarget>,
    /// Patterns it must match none of.
    pub exclude: Vec<String>,
}

/// What a target says of one function it matched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionRecord {
    /// Index into the modules.
    pub module: u32,
    /// The symbol, as it stands in the file.
    pub name: String,
    /// Virtual address in the module's file.
    pub vaddr: u64,
    /// Size in bytes.
    pub size: u64,
    /// `None`: attached. Otherwise the reason why not.
    pub skipped: Option<String>,
    /// The reason why the program runs at entry only, where it does ([`LinkSpec::entry_only`]).
    pub entry_only: Option<String>,
}

/// What a target says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentRecord {
    /// Its process id.
    pub pid: u32,
    /// Its executable.
    pub exe: String,
    /// Time to find, compile and patch, in nanoseconds.
    pub start_ns: u64,
    /// Time of attaching alone, in nanoseconds.
    pub attach_ns: u64,
    /// Functions attached in this process.
    pub attached: u32,
    /// What went wrong for the whole process.
    pub error: Option<String>,
}

/// A program in the tree of processes that runs without the agent.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Untraced {
    /// Its path, as it was executed.
    pub path: String,
    /// Why, as a predicate: "is statically linked".
    pub reason: String,
}

/// Everything in a link file.
#[derive(Clone, Debug)]
pub struct LinkState {
    /// What the loader asked for.
    pub spec: LinkSpec,
    /// Paths of modules.
    pub modules: Vec<String>,
    /// Functions; the position is the index.
    pub functions: Vec<FunctionRecord>,
    /// Processes that took part.
    pub agents: Vec<AgentRecord>,
    /// Programs that did not, each once.
    pub untraced: Vec<Untraced>,
    /// Probes of files that it attaches to as well.
    pub probes: Vec<LinkProbe>,
    /// Targets are to say where their modules lie.
    pub wants_mapped: bool,
    /// Where they lie.
    pub mapped: Vec<MappedModule>,
}

/// A link file held open.
#[derive(Debug)]
pub struct LinkFile {
    /// The object's id.
    pub id: u32,
    file: RecordFile,
}

fn strings(w: &mut Writer, list: &[String]) {
    w.u32(list.len() as u32);
    for s in list {
        w.str(s);
    }
}

fn read_strings(r: &mut Reader<'_>, what: &'static str) -> Result<Vec<String>, WireError> {
    (0..r.count(4, what)?).map(|_| r.str(what).map(str::to_owned)).collect()
}

fn optional<'w>(w: &'w mut Writer, s: Option<&str>) -> &'w mut Writer {
    w.u32(u32::from(s.is_some())).str(s.unwrap_or_default())
}

fn read_optional<'a>(r: &mut Reader<'a>, what: &'static str) -> Result<Option<&'a str>, WireError> {
    let there = r.u32(what)? != 0;
    let s = r.str(what)?;
    Ok(there.then_some(s))
}

impl LinkProgram {
    fn encode(self, w: &mut Writer) {
        w.u32(self.id).u32(self.attach_type as u32).u32(self.context as u32);
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let unknown = |what| WireError { at: 0, what };
        let id = r.u32("program id")?;
        let attach_type = FunctionAttachType::from_raw(r.u32("attach type")?)
            .ok_or(unknown("a known attach type"))?;
        let context = match r.u32("context")? {
            1 => Context::Tracing,
            2 => Context::PtRegs,
            _ => return Err(unknown("a known context")),
        };
        Ok(Self { id, attach_type, context })
    }
}

impl LinkSpec {
    fn encode(&self) -> Record {
        let mut w = Writer::default();
        w.u32(self.programs.len() as u32);
        self.programs.iter().for_each(|p| p.encode(&mut w));
        w.u32(self.control).u32(self.cookie as u32);
        w.u32(u32::from(self.entry_only)).u32(self.max_functions);
        w.u32(self.include.len() as u32);
        for target in &self.include {
            w.str(&target.pattern).u64(target.cookie);
        }
        strings(&mut w, &self.exclude);
        for id in &self.by_function {
            w.u32(*id);
        }
        (TAG_SPEC, w.finish())
    }

    fn decode(payload: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(payload);
        let programs = (0..r.count(12, "programs")?)
            .map(|_| LinkProgram::decode(&mut r))
            .collect::<Result<_, _>>()?;
        let control = r.u32("control map id")?;
        let cookie = match r.u32("cookie")? {
            0 => Cookie::Target,
            1 => Cookie::Index,
            _ => return Err(WireError { at: 0, what: "a known cookie" }),
        };
        let entry_only = r.u32("entry only")? != 0;
        let max_functions = r.u32("function limit")?;
        let include = (0..r.count(12, "targets")?)
            .map(|_| {
                Ok(LinkTarget { pattern: r.str("pattern")?.to_owned(), cookie: r.u64("cookie")? })
            })
            .collect::<Result<_, _>>()?;
        let exclude = read_strings(&mut r, "excluding patterns")?;
        // All that follows. Earlier versions wrote nothing, or 0.
        let by_function = std::iter::from_fn(|| r.u32("map by function").ok());
        let by_function = by_function.filter(|id| *id != 0).collect();
        Ok(Self {
            programs,
            control,
            cookie,
            entry_only,
            max_functions,
            by_function,
            include,
            exclude,
        })
    }
}

impl AgentRecord {
    fn encode<'w>(&self, w: &'w mut Writer) -> &'w mut Writer {
        w.u32(self.pid).str(&self.exe).u64(self.start_ns).u64(self.attach_ns).u32(self.attached);
        optional(w, self.error.as_deref())
    }

    fn decode(payload: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(payload);
        Ok(Self {
            pid: r.u32("pid")?,
            exe: r.str("executable")?.to_owned(),
            start_ns: r.u64("start time")?,
            attach_ns: r.u64("attach time")?,
            attached: r.u32("attached functions")?,
            error: read_optional(&mut r, "error")?.map(str::to_owned),
        })
    }
}

impl Untraced {
    fn encode<'w>(&self, w: &'w mut Writer) -> &'w mut Writer {
        w.str(&self.path).str(&self.reason)
    }

    fn decode(payload: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(payload);
        Ok(Self { path: r.str("path")?.to_owned(), reason: r.str("reason")?.to_owned() })
    }
}

/// What a function takes in the file, without its name and a reason.
const FUNCTION_SIZE: usize = HEAD_LEN + 4 + 4 + 8 + 8 + 4 + 4;
/// Room for the modules of functions, which are few.
const MODULES_SIZE: usize = 1 << 14;

/// A function as it stands in the file.
#[derive(Clone, Copy)]
struct RawFunction<'a> {
    module: u32,
    name: &'a str,
    vaddr: u64,
    size: u64,
    skipped: Option<&'a str>,
}

impl<'a> RawFunction<'a> {
    fn encode<'w>(&self, w: &'w mut Writer) -> &'w mut Writer {
        w.u32(self.module).str(self.name).u64(self.vaddr).u64(self.size);
        optional(w, self.skipped)
    }

    fn decode(payload: &'a [u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(payload);
        Ok(Self {
            module: r.u32("module")?,
            name: r.str("function name")?,
            vaddr: r.u64("address")?,
            size: r.u64("size")?,
            skipped: read_optional(&mut r, "reason")?,
        })
    }
}

fn decode_all(file: &RecordFile, records: &Records) -> Result<LinkState, RecordError> {
    let mut spec = None;
    let (mut modules, mut agents) = (Vec::new(), Vec::new());
    // Nearly all records are functions.
    let mut functions = skep_sys::vec_in_huge_pages(records.size() as usize / FUNCTION_SIZE);
    let (mut untraced, mut known) = (Vec::new(), HashSet::<_, Unseeded>::default());
    let (mut wants_mapped, mut mapped, mut probes) = (false, Vec::new(), Vec::new());
    for (tag, payload) in records.iter() {
        let done = match tag {
            TAG_SPEC => LinkSpec::decode(payload).map(|s| spec = Some(s)),
            TAG_MODULE => {
                Reader::new(payload).str("module path").map(|s| modules.push(s.to_owned()))
            }
            TAG_FUNCTION => {
                RawFunction::decode(payload).map(|f| functions.push(FunctionRecord::from(f)))
            }
            TAG_AGENT => AgentRecord::decode(payload).map(|a| agents.push(a)),
            TAG_SKIPPED | TAG_ENTRY_ONLY => decode_reason(payload).map(|(index, reason)| {
                if let Some(f) = functions.get_mut(index as usize) {
                    let field = if tag == TAG_SKIPPED { &mut f.skipped } else { &mut f.entry_only };
                    *field = Some(reason.to_owned());
                }
            }),
            TAG_UNTRACED => Untraced::decode(payload).map(|u| {
                if known.insert(u.clone()) {
                    untraced.push(u);
                }
            }),
            TAG_WANTS_MAPPED => {
                wants_mapped = true;
                Ok(())
            }
            TAG_MAPPED => MappedModule::decode(payload).map(|m| mapped.push(m)),
            TAG_PROBES => LinkProbe::decode(&mut Reader::new(payload)).map(|p| probes.push(p)),
            // For targets only; see `types`.
            TAG_TYPES => Ok(()),
            _ => Err(WireError { at: 0, what: "a known record" }),
        };
        done.map_err(|e| file.damaged(e))?;
    }
    let spec =
        spec.ok_or_else(|| file.damaged(WireError { at: 0, what: "what the link attaches" }))?;
    Ok(LinkState { spec, modules, functions, agents, untraced, probes, wants_mapped, mapped })
}

impl From<RawFunction<'_>> for FunctionRecord {
    fn from(f: RawFunction<'_>) -> Self {
        let skipped = f.skipped.map(str::to_owned);
        Self {
            module: f.module,
            name: f.name.to_owned(),
            vaddr: f.vaddr,
            size: f.size,
            skipped,
            entry_only: None,
        }
    }
}

fn decode_reason(payload: &[u8]) -> Result<(u32, &str), WireError> {
    let mut r = Reader::new(payload);
    Ok((r.u32("function index")?, r.str("reason")?))
}

/// The indexes that modules and functions of a link have.
#[derive(Default)]
struct Indexes {
    modules: HashMap<String, u32, Unseeded>,
    /// By module and address.
    functions: HashMap<(u32, u64), u32, BuildHasherDefault<Mixer>>,
    /// Numbers for the next ones.
    next_module: u32,
    next_function: u32,
}

impl Indexes {
    fn read(records: &Records) -> Result<Self, WireError> {
        let mut all = Self::default();
        for (tag, payload) in records.iter() {
            match tag {
                TAG_MODULE => {
                    all.modules
                        .entry(Reader::new(payload).str("module path")?.to_owned())
                        .or_insert(all.next_module);
                    all.next_module += 1;
                }
                TAG_FUNCTION => {
                    let mut r = Reader::new(payload);
                    let (module, _, vaddr) =
                        (r.u32("module")?, r.bytes("function name")?, r.u64("address")?);
                    all.functions.entry((module, vaddr)).or_insert(all.next_function);
                    all.next_function += 1;
                }
                _ => {}
            }
        }
        Ok(all)
    }

    /// The index of a module, which goes into `batch` if it is new.
    fn module(&mut self, path: &str, batch: &mut Batch) -> u32 {
        if let Some(index) = self.modules.get(path) {
            return *index;
        }
        batch.push(TAG_MODULE, |w| w.str(path));
        self.modules.insert(path.to_owned(), self.next_module);
        self.next_module += 1;
        self.next_module - 1
    }

    /// The same for a function.
    fn function(&mut self, f: &RawFunction<'_>, batch: &mut Batch) -> u32 {
        if let Some(index) = self.functions.get(&(f.module, f.vaddr)) {
            return *index;
        }
        let index = self.new_function(f, batch);
        self.functions.insert((f.module, f.vaddr), index);
        index
    }

    /// The same for one that has no index.
    fn new_function(&mut self, f: &RawFunction<'_>, batch: &mut Batch) -> u32 {
        batch.push(TAG_FUNCTION, |w| f.encode(w));
        self.next_function += 1;
        self.next_function - 1
    }
}

/// Tells whether no function is there twice, as far as that is seen at once: by their order.
fn are_distinct<'a>(mut found: impl Iterator<Item = FoundFunction<'a>>) -> bool {
    let (mut modules, mut last) = (Vec::new(), None);
    found.all(|f| {
        let is_behind = match last {
            Some((module, vaddr)) if std::ptr::eq(module, f.module) => vaddr < f.vaddr,
            _ if modules.contains(&f.module) => false,
            _ => {
                modules.push(f.module);
                true
            }
        };
        last = Some((f.module, f.vaddr));
        is_behind
    })
}

/// Mixes the numbers that functions go by. They come from the user's own files: whoever makes them
/// collide only slows their own traces down.
#[derive(Default)]
struct Mixer(u64);

impl Hasher for Mixer {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|b| self.write_u64(u64::from(*b)));
    }

    fn write_u32(&mut self, n: u32) {
        self.write_u64(u64::from(n));
    }

    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0.rotate_left(26) ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        // The product's low bits depend on low bits only.
        self.0 ^ (self.0 >> 32)
    }
}

/// A function a target found, before it has an index.
#[derive(Clone, Copy, Debug)]
pub struct FoundFunction<'a> {
    /// The module's path.
    pub module: &'a str,
    /// The symbol.
    pub name: &'a str,
    /// Virtual address in the module's file.
    pub vaddr: u64,
    /// Size in bytes.
    pub size: u64,
    /// Why it will not be attached, when that is already known.
    pub skipped: Option<&'a str>,
}

impl LinkFile {
    /// Writes a new link object.
    ///
    /// # Errors
    /// When no id can be taken or the file cannot be written.
    pub fn create(dir: &Dir, spec: &LinkSpec) -> Result<Self, crate::Error> {
        let id = dir.next_id(Kind::Link)?;
        let file = RecordFile::create(&dir.object(Kind::Link, id), KIND, &[spec.encode()])?;
        Ok(Self { id, file })
    }

    /// Opens the link with this id.
    ///
    /// # Errors
    /// When there is none, or its file is damaged or of another version.
    pub fn open(dir: &Dir, id: u32) -> Result<Self, RecordError> {
        Ok(Self { id, file: RecordFile::open(&dir.object(Kind::Link, id), KIND)? })
    }

    /// Reads everything in the file.
    ///
    /// # Errors
    /// When it cannot be read or decoded.
    pub fn read(&self) -> Result<LinkState, RecordError> {
        decode_all(&self.file, &self.file.read()?)
    }

    /// Gives every found function its index: the one it already has in the link, or the next free
    /// one.
    ///
    /// # Errors
    /// When the file cannot be locked, read or written.
    pub fn register<'a>(
        &self,
        found: impl ExactSizeIterator<Item = FoundFunction<'a>> + Clone,
    ) -> Result<Vec<u32>, RecordError> {
        self.file.append_with(|records, batch| {
            let mut known = Indexes::read(records).map_err(|e| self.file.damaged(e))?;
            let mut indexes = Vec::with_capacity(found.len());
            // As in the first process of a link: nobody needs to look for any.
            let are_new = known.functions.is_empty() && are_distinct(found.clone());
            known.functions.reserve(if are_new { 0 } else { found.len() });
            let names: usize = found.clone().map(|f| f.name.len() + FUNCTION_SIZE).sum();
            batch.reserve(names + MODULES_SIZE);
            let mut last: Option<(&str, u32)> = None;
            for f in found {
                // Functions of a module come together, and have the same text.
                let module = match last.filter(|(path, _)| std::ptr::eq(*path, f.module)) {
                    Some((_, module)) => module,
                    None => known.module(f.module, batch),
                };
                last = Some((f.module, module));
                let FoundFunction { name, vaddr, size, skipped, .. } = f;
                let function = RawFunction { module, name, vaddr, size, skipped };
                indexes.push(match are_new {
                    true => known.new_function(&function, batch),
                    false => known.function(&function, batch),
                });
            }
            Ok(indexes)
        })
    }

    /// Adds probes to attach to, before the first target looks.
    ///
    /// # Errors
    /// When the file cannot be locked or written.
    pub fn add_probes(&self, probes: &[LinkProbe]) -> Result<(), RecordError> {
        let mut batch = Batch::default();
        probes.iter().for_each(|p| batch.push(TAG_PROBES, |w| p.encode(w)));
        self.file.append(&batch)
    }

    /// Adds what the loader learned of functions, for the program with this place in the link,
    /// before the first target looks.
    ///
    /// # Errors
    /// When the file cannot be locked or written.
    pub fn tell(&self, program: usize, types: &Types) -> Result<(), RecordError> {
        let mut batch = Batch::default();
        batch.push(TAG_TYPES, |w| types.encode(w.u32(program as u32)));
        self.file.append(&batch)
    }

    /// Reads what the loader learned of functions for the program with this place in the link;
    /// nothing when it did not look.
    ///
    /// # Errors
    /// When the file cannot be read or decoded.
    pub fn types(&self, program: usize) -> Result<Types, RecordError> {
        let read = |payload| -> Result<Option<Types>, WireError> {
            let mut r = Reader::new(payload);
            if r.u32("place of a program")? as usize != program {
                return Ok(None);
            }
            Types::decode(&mut r).map(Some)
        };
        let records = self.file.read()?;
        for (_, payload) in records.iter().filter(|(tag, _)| *tag == TAG_TYPES) {
            if let Some(types) = read(payload).map_err(|e| self.file.damaged(e))? {
                return Ok(types);
            }
        }
        Ok(Types::default())
    }

    /// Adds the functions that could not be attached after all, by index.
    ///
    /// # Errors
    /// When the file cannot be locked or written.
    pub fn skip(&self, skipped: &[(u32, String)]) -> Result<(), RecordError> {
        self.reasons(TAG_SKIPPED, skipped)
    }

    /// Adds the functions that were attached at their entry only, by index, and why.
    ///
    /// # Errors
    /// When the file cannot be locked or written.
    pub fn entry_only(&self, functions: &[(u32, String)]) -> Result<(), RecordError> {
        self.reasons(TAG_ENTRY_ONLY, functions)
    }

    fn reasons(&self, tag: u32, functions: &[(u32, String)]) -> Result<(), RecordError> {
        if functions.is_empty() {
            return Ok(());
        }
        let mut batch = Batch::default();
        for (index, reason) in functions {
            batch.push(tag, |w| w.u32(*index).str(reason));
        }
        self.file.append(&batch)
    }

    /// Names a program that runs without the agent.
    ///
    /// # Errors
    /// When the file cannot be locked or written.
    pub fn not_traced(&self, program: &Untraced) -> Result<(), RecordError> {
        let mut batch = Batch::default();
        batch.push(TAG_UNTRACED, |w| program.encode(w));
        self.file.append(&batch)
    }

    /// Asks the targets to say where their modules lie, before the first of them looks.
    ///
    /// # Errors
    /// When the file cannot be locked or written.
    pub fn want_mapped(&self) -> Result<(), RecordError> {
        let mut batch = Batch::default();
        batch.push(TAG_WANTS_MAPPED, |w| w);
        self.file.append(&batch)
    }

    /// Adds where modules of a target lie.
    ///
    /// # Errors
    /// When the file cannot be locked or written.
    pub fn mapped(&self, modules: &[MappedModule]) -> Result<(), RecordError> {
        let mut batch = Batch::default();
        for module in modules {
            batch.push(TAG_MAPPED, |w| module.encode(w));
        }
        self.file.append(&batch)
    }

    /// Adds what a process says of itself.
    ///
    /// # Errors
    /// When the file cannot be locked or written.
    pub fn report(&self, agent: &AgentRecord) -> Result<(), RecordError> {
        let mut batch = Batch::default();
        batch.push(TAG_AGENT, |w| agent.encode(w));
        self.file.append(&batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> LinkSpec {
        LinkSpec {
            programs: vec![
                LinkProgram {
                    id: 4,
                    attach_type: FunctionAttachType::Session,
                    context: Context::Tracing,
                },
                LinkProgram {
                    id: 3,
                    attach_type: FunctionAttachType::Entry,
                    context: Context::PtRegs,
                },
            ],
            control: 5,
            cookie: Cookie::Index,
            entry_only: true,
            max_functions: 100,
            by_function: vec![6, 7],
            include: vec![LinkTarget { pattern: "libc.so.6:*".to_owned(), cookie: 1 << 40 }],
            exclude: vec!["mem*".to_owned()],
        }
    }

    fn found<'a>(module: &'a str, vaddr: u64, skipped: Option<&'a str>) -> FoundFunction<'a> {
        FoundFunction { module, name: "f", vaddr, size: 16, skipped }
    }

    #[test]
    fn a_function_has_one_index_in_all_processes() -> Result<(), Box<dyn std::error::Error>> {
        let path = std::env::temp_dir().join(format!("skep-link-{}", std::process::id()));
        drop(std::fs::remove_dir_all(&path));
        let dir = Dir::create(&path)?;
        let one = LinkFile::create(&dir, &spec())?;
        let two = LinkFile::open(&dir, one.id)?;
        assert_eq!(
            one.register([found("/a", 16, None), found("/b", 16, Some("too short"))].into_iter())?,
            [0, 1]
        );
        assert_eq!(
            two.register(
                [found("/c", 8, None), found("/b", 16, None), found("/a", 32, None)].into_iter()
            )?,
            [2, 1, 3]
        );
        let agent = AgentRecord {
            pid: 7,
            exe: "/a".to_owned(),
            start_ns: 1,
            attach_ns: 2,
            attached: 3,
            error: None,
        };
        two.report(&agent)?;
        let types = Types { unknown: Some("not known".to_owned()), ..Types::default() };
        one.tell(1, &types)?;
        assert_eq!((two.types(0)?, two.types(1)?), (Types::default(), types));
        two.skip(&[(2, "denied".to_owned()), (99, "no such function".to_owned())])?;
        two.entry_only(&[(3, "returns twice".to_owned())])?;
        let state = one.read()?;
        assert_eq!(state.spec, spec());
        assert_eq!(state.modules, ["/a", "/b", "/c"]);
        assert_eq!(
            state.functions.iter().map(|f| (f.module, f.vaddr)).collect::<Vec<_>>(),
            [(0, 16), (1, 16), (2, 8), (0, 32)]
        );
        assert_eq!(state.functions[1].skipped.as_deref(), Some("too short"));
        assert_eq!(state.functions[2].skipped.as_deref(), Some("denied"));
        let entry_only: Vec<_> = state.functions.iter().map(|f| f.entry_only.as_deref()).collect();
        assert_eq!(entry_only, [None, None, None, Some("returns twice")]);
        assert_eq!(state.agents, [agent]);
        std::fs::remove_dir_all(&path)?;
        Ok(())
    }

    fn dir(name: &str) -> Result<Dir, crate::dir::DirError> {
        let path = std::env::temp_dir().join(format!("skep-link-{}-{name}", std::process::id()));
        drop(std::fs::remove_dir_all(&path));
        Dir::create(&path)
    }

    #[test]
    fn a_module_that_comes_again_keeps_its_index() -> Result<(), Box<dyn std::error::Error>> {
        let dir = dir("again")?;
        let link = LinkFile::create(&dir, &spec())?;
        let both = [("/a", 16), ("/b", 16), ("/a", 32), ("/b", 16)];
        assert_eq!(
            link.register(both.map(|(m, vaddr)| found(m, vaddr, None)).into_iter())?,
            [0, 1, 2, 1]
        );
        let state = link.read()?;
        assert_eq!(state.modules, ["/a", "/b"]);
        assert_eq!(state.functions.iter().map(|f| f.module).collect::<Vec<_>>(), [0, 1, 0]);
        std::fs::remove_dir_all(dir.path())?;
        Ok(())
    }

    /// Functions of a first process are taken for different if their order says so, else looked for.
    #[test]
    fn functions_have_one_index_in_any_order() -> Result<(), Box<dyn std::error::Error>> {
        let dir = dir("order")?;
        let again = String::from("/a");
        for (list, expected) in [
            (&[("/a", 16), ("/a", 32), ("/b", 8), ("/b", 16)][..], &[0, 1, 2, 3][..]),
            (&[("/a", 16), ("/a", 16), ("/a", 32)], &[0, 0, 1]),
            (&[("/a", 32), ("/a", 16), ("/a", 32)], &[0, 1, 0]),
            (&[("/a", 16), ("/b", 16), (&again, 16), (&again, 32)], &[0, 1, 0, 2]),
            (&[("/a", 16), (&again, 16), (&again, 32)], &[0, 0, 1]),
        ] {
            let link = LinkFile::create(&dir, &spec())?;
            let found = list.iter().map(|(module, vaddr)| found(module, *vaddr, None));
            assert_eq!(link.register(found.clone())?, expected, "{list:?}");
            assert_eq!(link.register(found)?, expected, "once more: {list:?}");
            let count = expected.iter().max().map_or(0, |last| *last as usize + 1);
            assert_eq!(link.read()?.functions.len(), count);
        }
        std::fs::remove_dir_all(dir.path())?;
        Ok(())
    }

    #[test]
    fn a_program_without_the_agent_is_named_once() -> Result<(), Box<dyn std::error::Error>> {
        let dir = dir("untraced")?;
        let link = LinkFile::create(&dir, &spec())?;
        let untraced = |path: &str| Untraced { path: path.to_owned(), reason: "is static".into() };
        for path in ["/bin/busybox", "/bin/go", "/bin/busybox"] {
            link.not_traced(&untraced(path))?;
        }
        assert_eq!(link.read()?.untraced, ["/bin/busybox", "/bin/go"].map(untraced));
        std::fs::remove_dir_all(dir.path())?;
        Ok(())
    }

    /// Whole by its sum, but nothing that this version knows.
    #[test]
    fn an_unknown_record_is_damage() -> Result<(), Box<dyn std::error::Error>> {
        let dir = dir("unknown")?;
        let link = LinkFile::create(&dir, &spec())?;
        let mut batch = Batch::default();
        batch.push(0x7777, |w| w.raw(b"?"));
        link.file.append(&batch)?;
        let error = link.read().expect_err("it has an unknown record").to_string();
        assert!(error.ends_with("damaged at byte 0: a known record"), "{error}");
        std::fs::remove_dir_all(dir.path())?;
        Ok(())
    }
}
