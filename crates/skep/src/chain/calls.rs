//! Chains as the proposed `PROG_CHAIN_ADD`, `PROG_CHAIN_DEL` and `PROG_CHAIN_GET` make them, with
//! programs of a session: [`seed`] has the rules.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use skep_isa::{ProgramType, errno};
use skep_net::chain::seed::{self, Command, Handle, Programs};
use skep_net::chain::{EditError, Graph, NodeId};
use skep_store::prog::ProgramFile;
use skep_vm::chain::Count;

use super::compiled::Origin;
use super::{ChainError, ChainRunner, Result, program_ref};
use crate::loaded::Program;
use crate::session::{Place, Session};
use crate::test_run::Engine;

/// Programs that follow each other by slots of their own, for this process alone. Every program is
/// the head of a chain; who runs one ([`ChainCalls::runner`]) notices changes as with other chains.
///
/// ```
/// use skep::chain::ChainCalls;
/// use skep::isa::{Insn, ProgramType};
/// use skep::object::RawProgram;
/// use skep::test_run::Input;
///
/// # fn main() -> Result<(), skep::Error> {
/// let session = skep::Session::scratch()?;
/// let answer = |name, verdict| {
///     let insns = [Insn::mov64_imm(0, verdict), Insn::exit()];
///     session.load_instructions(&RawProgram::new(name, ProgramType::Xdp, &insns), &[])
/// };
/// let (pass, drop) = (answer("pass", 2)?, answer("drop", 1)?);
/// let calls = ChainCalls::new(&session);
/// let head = calls.load(pass.program("pass")?, true)?;
/// let next = calls.load(drop.program("drop")?, false)?;
/// calls.add(head, None, next)?;
/// assert_eq!(calls.get(head, None)?, next);
/// assert_eq!(calls.runner(head)?.test_run(&Input::data(&[0; 64]))?.retval, 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ChainCalls {
    place: Place,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    programs: Mutex<Programs>,
    /// Programs that somebody has open, or that are in a slot.
    files: Mutex<Vec<ProgramFile>>,
    changes: AtomicU64,
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ChainCalls {
    /// Begins without programs.
    #[must_use]
    pub fn new(session: &Session) -> Self {
        Self { place: session.place().clone(), shared: Arc::default() }
    }

    /// Opens a program of the session's directory; returns its id, which calls name it by.
    /// `chained` says that it is loaded with `BPF_F_CHAIN_CALLS`.
    ///
    /// # Errors
    /// When the program is of another directory, or its file is gone.
    pub fn load(&self, program: Program<'_>, chained: bool) -> Result<u32> {
        if program.directory() != self.place.dir.path() {
            return Err(ChainError::OtherDirectory { program: program.name().to_owned() });
        }
        let file = ProgramFile::open(&self.place.dir, program.id())?;
        let info = program_ref(file.id(), file.program());
        locked(&self.shared.programs).load(info, chained);
        locked(&self.shared.files).push(file);
        Ok(program.id())
    }

    /// Closes a program: it stays while it is in a slot of one that stays.
    pub fn close(&self, program: u32) {
        let mut programs = locked(&self.shared.programs);
        programs.close(program);
        locked(&self.shared.files).retain(|file| programs.references(file.id()).is_some());
        self.shared.changes.fetch_add(1, Relaxed);
    }

    /// Returns how many slots and users keep a program; `None` when it is gone.
    #[must_use]
    pub fn references(&self, program: u32) -> Option<u32> {
        locked(&self.shared.programs).references(program)
    }

    /// Puts a program into a slot of another one: that of a return code from 0 to 6, or the wildcard
    /// (`None`). What was there is replaced.
    ///
    /// # Errors
    /// [`ChainError::Call`] with `E2BIG` for a larger code, `EBADF` for a program that is not open,
    /// `EOPNOTSUPP` when `prev` is not loaded for chains.
    #[doc(alias = "bpf_prog_chain_add")]
    pub fn add(&self, prev: u32, code: Option<u32>, next: u32) -> Result<()> {
        self.call(Command::Add, prev, code, next).map(drop)
    }

    /// Empties a slot.
    ///
    /// # Errors
    /// As [`ChainCalls::add`]; with `ENOENT` when it is empty already.
    #[doc(alias = "bpf_prog_chain_del")]
    pub fn del(&self, prev: u32, code: Option<u32>) -> Result<()> {
        self.call(Command::Del, prev, code, 0).map(drop)
    }

    /// Returns the program in a slot.
    ///
    /// # Errors
    /// As [`ChainCalls::del`].
    #[doc(alias = "bpf_prog_chain_get")]
    pub fn get(&self, prev: u32, code: Option<u32>) -> Result<u32> {
        self.call(Command::Get, prev, code, 0)
    }

    fn call(&self, command: Command, prev: u32, code: Option<u32>, next: u32) -> Result<u32> {
        let mut attr = [0; seed::ATTR_SIZE];
        let words = [prev, next, code.unwrap_or(seed::WILDCARD), 0];
        let bytes = words.into_iter().flat_map(u32::to_ne_bytes);
        attr.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
        // The code of the wildcard as a number is no code.
        if code == Some(seed::WILDCARD) {
            return Err(ChainError::Call { errno: errno::E2BIG });
        }
        let mut programs = locked(&self.shared.programs);
        let known = programs.clone();
        let handle = |id| if known.is_open(id) { Handle::Program(id) } else { Handle::Closed };
        let done = programs.call(command, &mut attr, handle);
        done.map_err(|errno| ChainError::Call { errno })?;
        locked(&self.shared.files).retain(|file| programs.references(file.id()).is_some());
        self.shared.changes.fetch_add(1, Relaxed);
        let [.., a, b, c, d] = attr;
        Ok(u32::from_ne_bytes([a, b, c, d]))
    }

    /// Makes the chain of a program ready to run on this thread.
    ///
    /// # Errors
    /// As [`Chain::runner`](super::Chain::runner), and when there is no such program.
    pub fn runner(&self, head: u32) -> Result<ChainRunner> {
        self.runner_with(head, Engine::Jit, Count::Runs)
    }

    /// Makes the chain of a program ready to run on this thread.
    ///
    /// # Errors
    /// As [`ChainCalls::runner`].
    pub fn runner_with(&self, head: u32, engine: Engine, count: Count) -> Result<ChainRunner> {
        let origin = Arc::new(Head { shared: Arc::clone(&self.shared), head });
        ChainRunner::open(&self.place.dir, origin, engine, count)
    }
}

/// The chain of one program.
struct Head {
    shared: Arc<Shared>,
    head: u32,
}

impl Origin for Head {
    fn version(&self) -> Result<u64> {
        Ok(self.shared.changes.load(Relaxed))
    }

    fn graph(&self) -> Result<(Graph, ProgramType)> {
        let graph = locked(&self.shared.programs).graph(self.head);
        let graph = graph.ok_or(EditError::NoNode { node: NodeId(1) })?;
        let first = graph.nodes().next().map(|(_, n)| n.program.prog_type);
        Ok((graph, first.unwrap_or(ProgramType::Xdp)))
    }

    fn id(&self) -> Option<u32> {
        None
    }
}
