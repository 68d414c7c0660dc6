//! Links to functions: which functions, of this process or of commands, and what came of them.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use skep_runtime::agent::{Agent, Detached as AgentDetached};
use skep_store::Dir;
use skep_store::dir::{ENV_DIR, ENV_LINKS, Scratch};
use skep_store::link::{AgentRecord, LinkSpec, LinkTarget, Pattern, Untraced};

use crate::error::{Error, Result};
use crate::link::{Link, Missed, describe};
use crate::load::{Loaded, LoadedProgram};
use crate::session::Place;

/// Names the agent's library, which commands are started with.
const ENV_PRELOAD: &str = "SKEP_PRELOAD";

/// Which functions a program is attached to.
///
/// A pattern is `MODULE:FUNCTION`, both with `*`, `?` and `[a-z]`; `libc` means `libc.so.6`, and
/// without a module functions of all modules are meant. The name of a C++ or Rust function is the
/// demangled one.
///
/// ```
/// use skep::Functions;
/// let functions = Functions::of_self("libc:malloc").cookie(1).and("libc:free").cookie(2);
/// let all_but_strings = Functions::of_commands("libc:*").exclude("str*");
/// # let _ = (functions, all_but_strings);
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Functions {
    own_process: bool,
    targets: Vec<LinkTarget>,
    /// Where the targets of the last pattern begin.
    last: usize,
    exclude: Vec<String>,
}

impl Functions {
    fn new(own_process: bool, pattern: &str) -> Self {
        let targets = LinkTarget::all(Pattern::list(pattern));
        Self { own_process, targets, last: 0, exclude: Vec::new() }
    }

    /// Means functions of this very process. They are hooked when [`attach`](crate::Program::attach)
    /// returns, for all threads.
    pub fn of_self(pattern: &str) -> Self {
        Self::new(true, pattern)
    }

    /// Means functions of commands that are going to be started by [`FunctionLink::command`].
    pub fn of_commands(pattern: &str) -> Self {
        Self::new(false, pattern)
    }

    /// Means those of another pattern too. A function is that of the first pattern it matches.
    pub fn and(mut self, pattern: &str) -> Self {
        self.last = self.targets.len();
        self.targets.extend(LinkTarget::all(Pattern::list(pattern)));
        self
    }

    /// Gives the functions of the last pattern a cookie: what `bpf_get_attach_cookie` returns in
    /// them.
    #[doc(alias = "bpf_get_attach_cookie")]
    pub fn cookie(mut self, cookie: u64) -> Self {
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
#[derive(Debug)]
pub struct FunctionLink {
    dir: Dir,
    link: Link,
    own_process: bool,
    /// The process that made it.
    process: u32,
    /// Programs and maps stay for those who attach the link later.
    _loaded: Arc<Loaded>,
    _scratch: Option<Arc<Scratch>>,
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
        let Functions { own_process, targets, exclude, .. } = functions;
        for pattern in targets.iter().map(|t| &t.pattern).chain(&exclude) {
            pattern.parse::<Pattern>()?;
        }
        let patterns: Vec<String> = targets.iter().map(|t| t.pattern.clone()).collect();
        if patterns.is_empty() {
            return Err(Error::NothingAttached { patterns, reasons: Vec::new() });
        }
        let mut spec: Option<LinkSpec> = None;
        for program in programs {
            let described = describe(program, &patterns)?;
            spec.get_or_insert(LinkSpec { programs: Vec::new(), ..described.clone() })
                .programs
                .extend(described.programs);
        }
        let Some(spec) = spec else {
            return Err(Error::Process { why: "there is no program to attach".to_owned() });
        };
        let link = Link::create(dir, LinkSpec { include: targets, exclude, ..spec }, None)?;
        for (place, program) in programs.iter().enumerate() {
            link.tell(place, &program.functions().types)?;
        }
        let link = Self {
            dir: dir.clone(),
            link,
            own_process,
            process: std::process::id(),
            _loaded: Arc::clone(loaded),
            _scratch: place.scratch.clone(),
        };
        if own_process {
            link.attach_own(&patterns)?;
        }
        Ok(link)
    }

    fn attach_own(&self, patterns: &[String]) -> Result<()> {
        let process = |why: String| Error::Process { why };
        let attached = skep_runtime::start::attach_own(&self.dir, self.id());
        if attached.map_err(|e| process(e.to_string()))? > 0 {
            return Ok(());
        }
        let reasons = self.functions()?.into_iter().filter_map(|f| f.skipped).collect();
        Err(Error::NothingAttached { patterns: patterns.to_vec(), reasons })
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

    /// Makes a command that is traced from its start: it, and what it executes, is hooked before
    /// `main`.
    ///
    /// The agent's library is the one that `SKEP_PRELOAD` names, else `libskep_preload.so` beside
    /// this program.
    ///
    /// # Errors
    /// When the agent's library is not there.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Result<Command> {
        self.command_with(program, &agent()?)
    }

    /// Makes a command as [`FunctionLink::command`] does, with the agent's library at this path.
    ///
    /// # Errors
    /// When the library is not there.
    pub fn command_with(&self, program: impl AsRef<OsStr>, agent: &Path) -> Result<Command> {
        // The command may have another working folder, and the dynamic linker parts paths.
        let agent = agent.canonicalize().map_err(|_| Error::NoAgent)?;
        if agent.as_os_str().as_encoded_bytes().iter().any(|b| matches!(b, b' ' | b':' | b'$')) {
            return Err(Error::AgentPath { path: agent });
        }
        let mut preload = std::env::var_os("LD_PRELOAD").unwrap_or_default();
        if !preload.is_empty() {
            preload.push(":");
        }
        preload.push(agent);
        let mut command = Command::new(program);
        command
            .env("LD_PRELOAD", preload)
            .env(ENV_DIR, self.dir.path())
            .env(ENV_LINKS, self.id().to_string());
        Ok(command)
    }

    /// Detaches the programs from all functions. None of them begins to run any more, in any
    /// process, when this returns; the answer tells whether threads of this one may still be inside
    /// a function that was hooked.
    #[must_use = "threads may still be inside a function that was hooked"]
    pub fn detach(mut self) -> Detached {
        self.detach_now()
    }

    fn detach_now(&mut self) -> Detached {
        let own = std::mem::take(&mut self.own_process);
        let agent = own.then(|| Agent::of_process().detach(&self.dir, self.id()));
        // A forked child has the hooks as a copy of its own, and the link in common.
        if self.process == std::process::id() {
            self.link.detach();
        }
        Detached { agent }
    }
}

impl Drop for FunctionLink {
    fn drop(&mut self) {
        drop(self.detach_now());
    }
}

/// What became of a link that was detached.
#[derive(Debug)]
pub struct Detached {
    agent: Option<AgentDetached>,
}

impl Detached {
    /// Tells whether no thread of this process can be inside a program, or inside a function that
    /// will return through a hook. Once true, it stays true.
    pub fn is_quiescent(&mut self) -> bool {
        self.agent.as_mut().is_none_or(AgentDetached::is_quiescent)
    }

    /// Waits until no thread can be inside any more, at most so long; tells whether it is so.
    pub fn wait(&mut self, timeout: Duration) -> bool {
        self.agent.as_mut().is_none_or(|agent| agent.wait(timeout))
    }
}

/// Finds the agent's library.
fn agent() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(ENV_PRELOAD).filter(|p| !p.is_empty()) {
        return Ok(path.into());
    }
    let own = std::env::current_exe()
        .map_err(|source| Error::Command { command: "the agent".to_owned(), source })?;
    let beside = own.ancestors().skip(1).take(2).map(|dir| dir.join("libskep_preload.so"));
    beside.into_iter().find(|path| path.is_file()).ok_or(Error::NoAgent)
}
