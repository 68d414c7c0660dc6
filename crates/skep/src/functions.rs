//! Links to functions: which functions, of this process, of another one or of commands, and what came
//! of them.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use skep_proc::module::Role;
use skep_runtime::agent::{Agent, Detached as AgentDetached};
use skep_store::Dir;
use skep_store::dir::{Kind, Scratch};
use skep_store::link::{AgentRecord, LinkSpec, LinkTarget, Pattern, Untraced};

use crate::error::{Error, Result};
use crate::link::{Link, Missed, describe};
use crate::load::{Loaded, LoadedProgram};
use crate::process::Attached;
use crate::prototypes::Catalog;
use crate::session::Place;
use crate::usdt;

/// Which functions a program is attached to.
///
/// A pattern is `MODULE:FUNCTION`, both with `*`, `?` and `[a-z]`; `libc` means `libc.so.6`, and
/// without a module functions of all modules are meant. The name of a C++ or Rust function is the
/// demangled one. `FUNCTION+0x1c` is an instruction inside, for `uprobe` programs. For `usdt` programs a
/// pattern is `PATH:PROVIDER:NAME`; those of commands have to be paths. A pattern that cannot be read is an error of [`attach`](crate::Program::attach).
///
/// ```
/// use skep::Functions;
/// let functions = Functions::of_self("libc:malloc").cookie(1).and("libc:free").cookie(2);
/// let all_but_strings = Functions::of_commands("libc:*").exclude("str*");
/// let as_the_object_says = Functions::of_self_by_section().exclude("*:*_unlocked");
/// # let _ = (functions, all_but_strings, as_the_object_says);
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Functions {
    place: Processes,
    /// Where the agent's library is; `None`: it is looked for.
    agent: Option<PathBuf>,
    /// The cookie of the functions that the programs' sections name, which come first; `None`: the
    /// sections do not count.
    section: Option<u64>,
    targets: Vec<LinkTarget>,
    /// Where the targets of the last pattern begin.
    last: usize,
    exclude: Vec<String>,
}

/// Which processes' functions are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Processes {
    Own,
    /// That of this id, which runs already.
    Running(u32),
    /// Those that the link is given to.
    Others,
}

impl Functions {
    fn new(place: Processes, pattern: &str) -> Self {
        let targets = LinkTarget::all(Pattern::list(pattern));
        Self { place, agent: None, section: None, targets, last: 0, exclude: Vec::new() }
    }

    fn by_section(place: Processes) -> Self {
        Self { section: Some(0), ..Self::new(place, "") }
    }

    /// Means functions of this very process. They are hooked when [`attach`](crate::Program::attach)
    /// returns, for all threads; those of a library that is opened later, before its code runs.
    pub fn of_self(pattern: &str) -> Self {
        Self::new(Processes::Own, pattern)
    }

    /// Means the functions of this process that the program's section names:
    /// `SEC("fentry.multi/libc:malloc,libc:free")`. Programs of one link must name the same.
    #[doc(alias = "bpf_program__attach")]
    pub fn of_self_by_section() -> Self {
        Self::by_section(Processes::Own)
    }

    /// Means functions of commands that are going to be started by [`FunctionLink::command`] or
    /// [`Session::command`](crate::Session::command), and of processes that
    /// [`Session::enter`](crate::Session::enter) attaches to.
    pub fn of_commands(pattern: &str) -> Self {
        Self::new(Processes::Others, pattern)
    }

    /// Means the functions of commands and other processes that the program's section names. Programs
    /// of one link must name the same.
    pub fn of_commands_by_section() -> Self {
        Self::by_section(Processes::Others)
    }

    /// Means functions of a process that runs already. They are hooked when
    /// [`attach`](crate::Program::attach) returns, for all threads and children of `fork`; those of a
    /// library that is opened later, a moment after that. The process is left when the link is
    /// detached or dropped, and by itself if this one is killed.
    ///
    /// The agent's library is looked for as for [`Session::command`](crate::Session::command), unless
    /// [`Functions::agent`] says where it is.
    ///
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// use skep::{Functions, Session};
    ///
    /// # fn main() -> Result<(), skep::Error> {
    /// let session = Session::open()?;
    /// let object = session.load("count.bpf.o")?;
    /// let link = object.program("count")?.attach(Functions::of_pid(1234, "libc:malloc"))?;
    /// std::thread::sleep(Duration::from_secs(10));
    /// if !link.detach().wait(Duration::from_secs(1)) {
    ///     println!("something of it stays in the process");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn of_pid(pid: u32, pattern: &str) -> Self {
        Self::new(Processes::Running(pid), pattern)
    }

    /// Means the functions of a process that runs already that the program's section names. Programs
    /// of one link must name the same.
    pub fn of_pid_by_section(pid: u32) -> Self {
        Self::by_section(Processes::Running(pid))
    }

    /// Says where the agent's library is that is put into a process which runs already.
    pub fn agent(mut self, library: impl Into<PathBuf>) -> Self {
        self.agent = Some(library.into());
        self
    }

    /// Means those of another pattern too. A function is that of the first pattern it matches.
    pub fn and(mut self, pattern: &str) -> Self {
        self.last = self.targets.len();
        self.targets.extend(LinkTarget::all(Pattern::list(pattern)));
        self
    }

    /// Gives the functions of the last pattern, or of the section, a cookie: what
    /// `bpf_get_attach_cookie` returns in them. Without, it is 0.
    #[doc(alias = "bpf_get_attach_cookie")]
    pub fn cookie(mut self, cookie: u64) -> Self {
        if let Some(section) = self.section.as_mut().filter(|_| self.targets.is_empty()) {
            *section = cookie;
        }
        for target in self.targets.iter_mut().skip(self.last) {
            target.cookie = cookie;
        }
        self
    }

    /// Leaves functions out.
    pub fn exclude(mut self, pattern: &str) -> Self {
        self.exclude.extend(Pattern::list(pattern));
        self
    }
}

/// Programs on functions. They run until the link is detached or dropped.
///
/// Dropping it is [`FunctionLink::detach`] without the answer. Both also end the programs in commands
/// that were started with the link, and remove the link's files once no process uses them. In a
/// forked child they take out the child's hooks only, and the parent's link stays as it is. A process
/// that ran already ([`Functions::of_pid`]) is left as it was.
///
/// ```no_run
/// # fn count(session: &skep::Session) -> Result<(), skep::Error> {
/// use skep::Functions;
///
/// let object = session.load("count.bpf.o")?;
/// let link = object.program("count")?.attach(Functions::of_self("libc:malloc"))?;
/// for function in link.functions()? {
///     match function.skipped {
///         None => println!("{} is hooked", function.name),
///         Some(why) => println!("{} is not: {why}", function.name),
///     }
/// }
/// if !link.detach().wait(std::time::Duration::from_secs(1)) {
///     println!("a thread is still inside");
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct FunctionLink {
    dir: Dir,
    link: Link,
    own_process: bool,
    /// In a process that ran already.
    attached: Option<Attached>,
    /// The process that made it.
    process: u32,
    // Dropped after the link.
    _files: LinkFiles,
    /// Programs and maps stay for those who attach the link later.
    _loaded: Arc<Loaded>,
    _scratch: Option<Arc<Scratch>>,
}

/// The files of a link, which go with it if nobody else uses them.
#[derive(Debug)]
struct Files {
    dir: Dir,
    link: u32,
    control: u32,
    /// The process that made them: what a forked child drops stays for its parent.
    process: u32,
}

/// Files of links that were given up while threads of this process were inside their programs.
static LEFT: Mutex<Vec<Files>> = Mutex::new(Vec::new());

impl Files {
    fn are_used_here(&self) -> bool {
        Agent::of_process().uses(&self.dir, self.link)
    }

    /// What was left before. In a child of `fork` another thread of the parent may have it for ever:
    /// `None` then.
    fn left() -> Option<MutexGuard<'static, Vec<Self>>> {
        const TRIES: usize = 10_000;
        (0..TRIES).find_map(|_| match LEFT.try_lock() {
            Ok(left) => Some(left),
            Err(TryLockError::Poisoned(left)) => Some(left.into_inner()),
            Err(TryLockError::WouldBlock) => {
                std::thread::yield_now();
                None
            }
        })
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            self.dir.remove_unused(Kind::Link, self.link);
            self.dir.remove_unused(Kind::Map, self.control);
        }
    }
}

/// The files of a link that is in use, or was until now.
#[derive(Debug)]
struct LinkFiles(Option<Files>);

impl Drop for LinkFiles {
    fn drop(&mut self) {
        let process = std::process::id();
        let Some(mut left) = Files::left() else { return };
        left.retain(|files| files.process == process && files.are_used_here());
        left.extend(self.0.take().filter(Files::are_used_here));
    }
}

/// A function that a link met, in any process.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct LinkedFunction {
    /// The symbol, as it stands in the file.
    pub name: String,
    /// The path of its module.
    pub module: String,
    /// Its address in the module's file.
    pub vaddr: u64,
    /// Why it was not attached; `None`: it was.
    pub skipped: Option<String>,
}

impl FunctionLink {
    pub(crate) fn create(
        place: &Place,
        loaded: &Arc<Loaded>,
        programs: &[&LoadedProgram],
        functions: Functions,
    ) -> Result<Self> {
        let dir = &place.dir;
        let Functions { place: at, agent, section, mut targets, exclude, .. } = functions;
        let own_process = at == Processes::Own;
        let Some(first) = programs.first() else {
            let known = loaded.programs().iter().map(|p| p.program().name().to_owned()).collect();
            return Err(Error::NoProgram { known });
        };
        if let Some(cookie) = section {
            let named = section_targets(first, programs)?;
            let named = named.into_iter().map(|target| LinkTarget { cookie, ..target });
            targets.splice(..0, named);
        }
        for pattern in targets.iter().map(|t| &t.pattern).chain(&exclude) {
            pattern.parse::<Pattern>()?;
        }
        let patterns: Vec<String> = targets.iter().map(|t| t.pattern.clone()).collect();
        if patterns.is_empty() {
            return Err(Error::NothingAttached { patterns, reasons: Vec::new() });
        }
        let mut spec = describe(first, &patterns)?;
        for program in programs.iter().skip(1) {
            spec.programs.extend(describe(program, &patterns)?.programs);
        }
        let probes = if programs.iter().any(|p| usdt::is_usdt(p)) {
            let catalog = if own_process { own_catalog()? } else { Catalog::default() };
            usdt::Probes::new(loaded.maps(), &catalog).find(&targets)?
        } else {
            Vec::new()
        };
        let spec = LinkSpec { include: targets, exclude, ..spec };
        let link = Link::create_beside(dir, spec, None)?;
        link.add_probes(&probes)?;
        for (place, program) in programs.iter().enumerate() {
            link.tell(place, &program.functions().types)?;
        }
        let process = std::process::id();
        let files = Files { dir: dir.clone(), link: link.id(), control: link.control(), process };
        let mut link = Self {
            dir: dir.clone(),
            link,
            own_process,
            attached: None,
            process,
            _files: LinkFiles(Some(files)),
            _loaded: Arc::clone(loaded),
            _scratch: place.scratch.clone(),
        };
        let attached = match at {
            Processes::Others => return Ok(link),
            Processes::Own => {
                let attached = skep_runtime::start::attach_own(dir, link.id());
                attached.map_err(|e| Error::Process { why: e.to_string() })?
            }
            Processes::Running(pid) => {
                let id = std::iter::once((dir, link.id()));
                let attached = crate::command::entered(dir, pid, id, agent.as_deref())?;
                link.attached.insert(attached).functions()
            }
        };
        if attached > 0 {
            return Ok(link);
        }
        let reasons = link.functions()?.into_iter().filter_map(|f| f.skipped).collect();
        Err(Error::NothingAttached { patterns, reasons })
    }

    /// Returns what is attached in the process of [`Functions::of_pid`]; `None` for links of others.
    #[must_use]
    pub fn attached(&self) -> Option<&Attached> {
        self.attached.as_ref()
    }

    /// Returns the link's id in the skep directory.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.link.id()
    }

    /// Lists the processes that attached the link so far, and what went wrong there.
    ///
    /// # Errors
    /// When the link's file cannot be read.
    pub fn processes(&self) -> Result<Vec<AgentRecord>> {
        Ok(self.link.read()?.agents)
    }

    /// Lists the programs that were executed without the agent, and why.
    ///
    /// # Errors
    /// When the link's file cannot be read.
    pub fn untraced(&self) -> Result<Vec<Untraced>> {
        Ok(self.link.read()?.untraced)
    }

    /// Lists the functions that processes met so far, attached or not.
    ///
    /// # Errors
    /// When the link's file cannot be read.
    pub fn functions(&self) -> Result<Vec<LinkedFunction>> {
        let state = self.link.read()?;
        let module = |i: u32| state.modules.get(i as usize).cloned().unwrap_or_default();
        let all = state.functions.iter().map(|f| LinkedFunction {
            name: f.name.clone(),
            module: module(f.module),
            vaddr: f.vaddr,
            skipped: f.skipped.clone(),
        });
        Ok(all.collect())
    }

    /// Returns in how many calls no program ran, by reason.
    #[must_use]
    pub fn missed(&self) -> Missed {
        self.link.missed()
    }

    /// Makes a command that the link traces from its start: it, and what it executes, is hooked
    /// before `main`. [`Session::command`](crate::Session::command) is for several links, and says
    /// where the agent's library is looked for.
    ///
    /// # Errors
    /// When the agent's library is not there.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Result<Command> {
        let link = std::iter::once((&self.dir, self.id()));
        crate::command::traced(&self.dir, program.as_ref(), link, None)
    }

    /// Makes a command as [`FunctionLink::command`] does, with the agent's library at this path.
    ///
    /// # Errors
    /// When the library is not there.
    pub fn command_with(&self, program: impl AsRef<OsStr>, agent: &Path) -> Result<Command> {
        let link = std::iter::once((&self.dir, self.id()));
        crate::command::traced(&self.dir, program.as_ref(), link, Some(agent))
    }

    pub(crate) fn dir(&self) -> &Dir {
        &self.dir
    }

    /// Detaches the programs from all functions. When this returns, none of them begins to run any
    /// more, in any process. The answer tells whether threads of this process may still be inside a
    /// function that was hooked.
    #[must_use = "threads may still be inside a function that was hooked"]
    pub fn detach(mut self) -> Detached {
        self.detach_now()
    }

    /// Detaches the programs as [`FunctionLink::detach`] does, of a link that others use at the moment. A
    /// process of [`Functions::of_pid`] is left when the link is dropped.
    #[must_use = "threads may still be inside a function that was hooked"]
    pub fn turn_off(&self) -> Detached {
        let agent = self.own_process.then(|| Agent::of_process().detach(&self.dir, self.id()));
        // A forked child has the hooks as a copy of its own, and the link in common.
        if self.process == std::process::id() {
            self.link.detach();
        }
        Detached { agent, stays: self.attached.is_some() }
    }

    fn detach_now(&mut self) -> Detached {
        let off = self.turn_off();
        self.own_process = false;
        let stays = self.attached.take().is_some_and(|attached| attached.leave().is_err());
        Detached { stays, ..off }
    }
}

impl Drop for FunctionLink {
    fn drop(&mut self) {
        drop(self.detach_now());
    }
}

/// What became of a link that was detached. It may be dropped at any time: the link's memory is freed
/// without it.
#[derive(Debug)]
pub struct Detached {
    agent: Option<AgentDetached>,
    /// Something stays in a process that ran already.
    stays: bool,
}

impl Detached {
    /// Tells whether no thread of this process can be inside a program, or inside a function that
    /// will return through a hook. Once true, it stays true. For a link of [`Functions::of_pid`]:
    /// whether that process was left as it was.
    pub fn is_quiescent(&mut self) -> bool {
        !self.stays && self.agent.as_mut().is_none_or(AgentDetached::is_quiescent)
    }

    /// Waits until no thread can be inside any more, at most so long; tells whether it is so.
    pub fn wait(&mut self, timeout: Duration) -> bool {
        !self.stays && self.agent.as_mut().is_none_or(|agent| agent.wait(timeout))
    }
}

/// The files of this process, its program first.
fn own_catalog() -> Result<Catalog> {
    let modules = skep_proc::module::own().map_err(|e| Error::Process { why: e.to_string() })?;
    let (main, others): (Vec<_>, Vec<_>) = modules.into_iter().partition(|m| m.role == Role::Main);
    Ok(Catalog::of_files(main.into_iter().chain(others).map(|m| m.path), None))
}

/// Lists the functions that the sections of a link's programs name: the same ones.
fn section_targets(first: &LoadedProgram, all: &[&LoadedProgram]) -> Result<Vec<LinkTarget>> {
    let named = describe(first, &[])?.include;
    for other in all {
        if describe(other, &[])?.include != named {
            let name = |p: &LoadedProgram| p.program().name().to_owned();
            return Err(Error::Sections { first: name(first), other: name(other) });
        }
    }
    Ok(named)
}
