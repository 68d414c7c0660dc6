//! Chains: packet programs in sequence, the next one chosen by the verdict of the one before.
//!
//! A [`Chain`] is a named object of a session's directory. Its programs are there too, and stay as
//! long as it does. Any process may change it; who runs it ([`ChainRunner`]) notices between
//! batches, and a packet sees the chain before a change or after it.
//!
//! ```
//! use skep::chain::{Chain, Place};
//! use skep::isa::{Insn, ProgramType};
//! use skep::object::RawProgram;
//! use skep::test_run::Input;
//!
//! # fn main() -> Result<(), skep::Error> {
//! let session = skep::Session::scratch()?;
//! let answer = |name, verdict| {
//!     let insns = [Insn::mov64_imm(0, verdict), Insn::exit()];
//!     session.load_instructions(&RawProgram::new(name, ProgramType::Xdp, &insns), &[])
//! };
//! let (pass, drop) = (answer("pass", 2)?, answer("drop", 1)?);
//! let chain = Chain::create(&session, "fw", ProgramType::Xdp)?;
//! let on = "pass".parse().unwrap_or_default();
//! let first = chain.add(pass.program("pass")?, Place::First { on })?;
//! chain.add(drop.program("drop")?, Place::After { node: first, on })?;
//! let mut runner = chain.runner()?;
//! assert_eq!(runner.test_run(&Input::data(&[0; 64]))?.retval, 1);
//! assert_eq!(runner.stats().nodes[&first].runs(), 1);
//! # Ok(())
//! # }
//! ```

mod calls;
mod compiled;
mod convert;
mod counted;
pub(crate) mod error;
mod explain;
pub mod kernel;
mod once;
pub mod picture;
mod run_config;
mod runner;
mod shared;
mod step;
mod watch;

use std::sync::Arc;

use skep_isa::ProgramType;
use skep_store::chain::ChainFile;
use skep_store::dir::{Dir, Kind};
use skep_store::prog::{Program as StoredProgram, ProgramFile};

use crate::loaded::Program;
use crate::session::{Place as Directory, Session};

pub use calls::ChainCalls;
pub use counted::Running;
pub use error::ChainError;
pub use explain::{Change, Explained, Visit};
pub use run_config::{UnknownMember, run_config};
pub use runner::ChainRunner;
pub use shared::{Assignments, InCommon, LoadedFile, NamedMaps, ObjectFile, ObjectHash};
pub use skep_net::chain::{
    BUDGET, Bridge, Edge, EdgeKey, EdgeStats, Edit, EditError, Exhausted, Graph, Node, NodeId,
    NodeStats, Place, ProgramRef, Stats, To, UnknownVerdict, Verdicts, mprog, priority, seed,
    verdicts,
};
pub use skep_vm::chain::{ChainError as CompileError, Count};
pub use watch::{Glimpse, Watch};

type Result<T, E = ChainError> = std::result::Result<T, E>;

/// A chain of a directory. Dropping it leaves the chain to whoever else uses it; one without a pin
/// goes with the last user.
#[derive(Clone, Debug)]
pub struct Chain {
    place: Directory,
    file: Arc<ChainFile>,
}

impl Chain {
    /// Makes a chain without programs.
    ///
    /// # Errors
    /// When the name is taken, or cannot be a name, or the file cannot be written.
    pub fn create(session: &Session, name: &str, prog_type: ProgramType) -> Result<Self> {
        let first = |c: char| c.is_ascii_alphabetic() || c == '_';
        let rest = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if !name.starts_with(first) || !name.chars().all(rest) {
            return Err(ChainError::Name { name: name.to_owned() });
        }
        if find(session.dir(), name)?.is_some() {
            return Err(ChainError::Exists { name: name.to_owned() });
        }
        let spec = convert::to_spec(&Graph::new(prog_type), prog_type);
        let file = ChainFile::create(session.dir(), name, &spec).map_err(ChainError::Store)?;
        Ok(Self { place: session.place().clone(), file: Arc::new(file) })
    }

    /// Opens a chain by its name or id.
    ///
    /// # Errors
    /// When there is none, or its file cannot be read.
    pub fn open(session: &Session, name: &str) -> Result<Self> {
        let found = find(session.dir(), name)?;
        let file = found.ok_or_else(|| ChainError::NotThere { name: name.to_owned() })?;
        Ok(Self { place: session.place().clone(), file: Arc::new(file) })
    }

    /// Opens all chains of a session's directory, in order of their ids. Those that cannot be read
    /// are left out.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn all(session: &Session) -> Result<Vec<Self>> {
        let ids = session.dir().ids(Kind::Chain)?;
        let files = ids.iter().filter_map(|id| ChainFile::open(session.dir(), *id).ok());
        Ok(files
            .map(|file| Self { place: session.place().clone(), file: Arc::new(file) })
            .collect())
    }

    /// Returns the id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.file.id()
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.file.name()
    }

    /// Reads the graph as it is now.
    ///
    /// # Errors
    /// When the file cannot be read, or holds no graph.
    pub fn graph(&self) -> Result<Graph> {
        Ok(convert::to_graph(self.file.read()?)?)
    }

    /// Returns the type of the programs.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn prog_type(&self) -> Result<ProgramType> {
        Ok(self.file.read()?.prog_type)
    }

    /// Does all of these edits, or none, as [`Graph::transaction`].
    ///
    /// # Errors
    /// When an edit cannot be done, somebody else changed the chain, or the file cannot be written.
    pub fn transaction(&self, revision: u64, edits: &[Edit]) -> Result<(Graph, Vec<NodeId>)> {
        self.transaction_of(revision, edits, &[])
    }

    /// Does the same, and notes which objects the programs come from, so that programs that are
    /// added later can share their maps ([`Chain::in_common`]).
    ///
    /// # Errors
    /// As [`Chain::transaction`].
    pub fn transaction_of(
        &self,
        revision: u64,
        edits: &[Edit],
        loaded: &[LoadedFile<'_>],
    ) -> Result<(Graph, Vec<NodeId>)> {
        self.file.change(|mut spec| {
            let prog_type = spec.prog_type;
            let objects = std::mem::take(&mut spec.objects);
            let graph = convert::to_graph(spec)?;
            for edit in edits {
                let (Edit::Add { program, .. } | Edit::Replace { program, .. }) = edit else {
                    continue;
                };
                if program.prog_type != prog_type {
                    let (kind, wanted) = (program.prog_type.name(), prog_type.name());
                    let program = program.name.clone();
                    return Err(EditError::Type { program, kind, wanted }.into());
                }
            }
            let (graph, added) = graph.transaction(revision, edits)?;
            let mut spec = convert::to_spec(&graph, prog_type);
            spec.objects = shared::objects(objects, loaded, &graph);
            Ok((Some(spec), (graph, added)))
        })?
    }

    /// Tells what the edits would make, and changes nothing.
    ///
    /// # Errors
    /// As [`Chain::transaction`].
    pub fn validate(&self, revision: u64, edits: &[Edit]) -> Result<Graph> {
        Ok(self.graph()?.transaction(revision, edits)?.0)
    }

    /// Adds a program, which is of the chain's directory.
    ///
    /// # Errors
    /// As [`Chain::transaction`].
    pub fn add(&self, program: Program<'_>, place: Place) -> Result<NodeId> {
        if program.directory() != self.place.dir.path() {
            return Err(ChainError::OtherDirectory { program: program.name().to_owned() });
        }
        let program = program_ref(program.id(), program.stored());
        let (graph, added) = self.transaction(0, &[Edit::Add { program, place }])?;
        // A transaction that adds one node answers with one.
        Ok(added.first().copied().or(graph.entry()).unwrap_or(NodeId(0)))
    }

    /// Takes a node out; what led there leads where it led for the same verdict.
    ///
    /// # Errors
    /// As [`Chain::transaction`].
    pub fn remove(&self, node: NodeId) -> Result<Graph> {
        let bridge = Bridge::SameVerdict;
        Ok(self.transaction(0, &[Edit::Remove { node, bridge }])?.0)
    }

    /// Puts a node elsewhere.
    ///
    /// # Errors
    /// As [`Chain::transaction`].
    pub fn move_node(&self, node: NodeId, place: Place) -> Result<Graph> {
        let bridge = Bridge::SameVerdict;
        Ok(self.transaction(0, &[Edit::Move { node, place, bridge }])?.0)
    }

    /// Makes the chain ready to run on this thread, compiled, with counters but without times.
    ///
    /// # Errors
    /// When a program is gone, cannot be compiled, or the process has links of another directory.
    pub fn runner(&self) -> Result<ChainRunner> {
        self.runner_with(crate::test_run::Engine::Jit, Count::Runs)
    }

    /// Makes the chain ready to run on this thread.
    ///
    /// # Errors
    /// As [`Chain::runner`].
    pub fn runner_with(
        &self,
        engine: crate::test_run::Engine,
        count: Count,
    ) -> Result<ChainRunner> {
        let origin: Arc<ChainFile> = Arc::clone(&self.file);
        ChainRunner::open(&self.place.dir, origin, engine, count)
    }

    /// Gives the chain a pin of its name, so that it stays when nobody uses it; below `pins/chains`.
    ///
    /// # Errors
    /// When there already is one, or it cannot be made.
    pub fn pin(&self) -> Result<()> {
        let pin = pin_of(&self.place.dir, self.name());
        let file = self.place.dir.object(Kind::Chain, self.id());
        let made = pin.parent().map_or(Ok(()), std::fs::create_dir_all);
        made.and_then(|()| std::fs::hard_link(file, &pin)).map_err(|source| {
            let name = self.name().to_owned();
            match source.kind() {
                std::io::ErrorKind::AlreadyExists => ChainError::Pinned { name },
                _ => ChainError::Pin { what: "make", name, source },
            }
        })
    }

    /// Removes the pin. The chain goes when nobody uses it.
    ///
    /// # Errors
    /// When there is none, or it cannot be removed.
    pub fn unpin(&self) -> Result<()> {
        let pin = pin_of(&self.place.dir, self.name());
        if pin.exists() && !self.is_pin(&pin) {
            return Err(ChainError::NotPinned { name: self.name().to_owned() });
        }
        std::fs::remove_file(pin).map_err(|source| {
            let name = self.name().to_owned();
            match source.kind() {
                std::io::ErrorKind::NotFound => ChainError::NotPinned { name },
                _ => ChainError::Pin { what: "remove", name, source },
            }
        })
    }

    /// Removes the chain: its pin and its file. Who runs it goes on until the end.
    ///
    /// # Errors
    /// When the file cannot be removed.
    pub fn delete(self) -> Result<()> {
        let pin = pin_of(&self.place.dir, self.name());
        if self.is_pin(&pin) {
            drop(std::fs::remove_file(pin));
        }
        let file = self.place.dir.object(Kind::Chain, self.id());
        std::fs::remove_file(file).map_err(|source| ChainError::Pin {
            what: "remove",
            name: self.name().to_owned(),
            source,
        })
    }

    /// Tells whether a pin is this chain's: two that are made at once may have one name, until one of
    /// them is pinned.
    fn is_pin(&self, pin: &std::path::Path) -> bool {
        use std::os::unix::fs::MetadataExt as _;
        let inode = |path| std::fs::metadata(path).ok().map(|m| (m.dev(), m.ino()));
        let own = self.place.dir.object(Kind::Chain, self.id());
        inode(pin).is_some_and(|pin| inode(&own) == Some(pin))
    }
}

fn pin_of(dir: &Dir, name: &str) -> std::path::PathBuf {
    dir.path().join("pins").join("chains").join(name)
}

/// Finds a chain by its name or id.
fn find(dir: &Dir, name: &str) -> Result<Option<ChainFile>> {
    if let Ok(id) = name.parse() {
        return match dir.ids(Kind::Chain)?.contains(&id) {
            true => Ok(Some(ChainFile::open(dir, id)?)),
            false => Ok(None),
        };
    }
    let files = dir.ids(Kind::Chain)?;
    let mut files = files.iter().filter_map(|id| ChainFile::open(dir, *id).ok());
    Ok(files.find(|file| file.name() == name))
}

/// Says of a program what chains want to know.
#[must_use]
pub fn program_ref(id: u32, program: &StoredProgram) -> ProgramRef {
    ProgramRef {
        id,
        name: program.name().to_owned(),
        prog_type: program.prog_type(),
        attach_type: program.attach_type(),
        frags: program.section().starts_with("xdp.frags"),
        device: None,
    }
}

/// Opens a program by its id, for an edit.
///
/// # Errors
/// When it is not there.
pub fn stored_program(session: &Session, id: u32) -> Result<(ProgramFile, ProgramRef)> {
    let file = ProgramFile::open(session.dir(), id)?;
    let program = program_ref(id, file.program());
    Ok((file, program))
}
