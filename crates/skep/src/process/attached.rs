//! Links in a process that runs already, for users of the library.

use std::path::Path;

use skep_store::Dir;

use super::{Agent, Live, ProcessError};
use crate::error::{Error, Result};

/// Links that are attached in a process that runs already, until this is dropped or told to
/// [`leave`](Attached::leave); see [`Session::enter`](crate::Session::enter).
///
/// In a forked child dropping it does nothing. Who ends without either leaves it to the agent there,
/// which then takes all hooks out by itself.
#[derive(Debug)]
#[must_use = "dropping it takes the hooks out"]
pub struct Attached {
    inside: Option<(Live, Agent)>,
    pid: u32,
    functions: u32,
    /// The process that attached.
    by: u32,
}

impl Attached {
    /// Attaches links of a directory, which must be there until it returns.
    pub(crate) fn new(dir: &Dir, pid: u32, links: &[u32], library: &Path) -> Result<Self> {
        let agent = Agent::read(library)?;
        let live = agent.enter(pid, dir)?;
        let mut attached =
            Self { inside: Some((live, agent)), pid, functions: 0, by: std::process::id() };
        for link in links {
            let order = |(live, _): &(Live, Agent)| live.order(live.to_attach(*link));
            let done = attached.inside.as_ref().map_or(Ok(0), order);
            // Dropping it leaves the process.
            attached.functions += done.map_err(|why| ProcessError::Attach { pid, why })?;
        }
        Ok(attached)
    }

    /// The id of the process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// How many functions were attached in it, added up over the links.
    #[must_use]
    pub fn functions(&self) -> u32 {
        self.functions
    }

    /// Tells whether the programs still run there: the process has neither ended nor executed another
    /// program.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.inside.as_ref().is_some_and(|(live, _)| !live.has_gone())
    }

    /// Takes all hooks out, so that the process has the code that it had. One that has ended, or
    /// executes another program, is left already.
    ///
    /// # Errors
    /// When something of it stays, such as the frames of threads that are inside hooked functions.
    pub fn leave(mut self) -> Result<()> {
        let (pid, left) = (self.pid, self.leave_now());
        left.map_or(Ok(()), |why| Err(Error::from(ProcessError::Leave { pid, why })))
    }

    fn leave_now(&mut self) -> Option<String> {
        let (live, agent) = self.inside.take()?;
        // A forked child has copies of the descriptors only.
        if self.by == std::process::id() { live.leave(&agent) } else { None }
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        drop(self.leave_now());
    }
}
