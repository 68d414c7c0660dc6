//! Why a chain cannot be used.

use skep_net::chain::EditError;
use skep_net::port::{PortError, PumpError, Stats};
use skep_store::{DirError, RecordError};
use skep_vm::chain::ChainError as CompileError;

use crate::packets::PacketsError;

/// Says why a chain cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChainError {
    /// There is none of this name or id.
    #[error("there is no chain `{name}`")]
    NotThere {
        /// What was asked for.
        name: String,
    },
    /// There already is one of this name.
    #[error("there already is a chain `{name}`")]
    Exists {
        /// The name.
        name: String,
    },
    /// A name that cannot be told from an id, or cannot be a file's.
    #[error(
        "`{name}` cannot be the name of a chain: use letters, digits, `-`, `_` and `.`, and no digit first"
    )]
    Name {
        /// The name.
        name: String,
    },
    /// A program is of another directory than the chain.
    #[error("program `{program}` is not in the directory of the chain")]
    OtherDirectory {
        /// The program.
        program: String,
    },
    /// A call of [`ChainCalls`](super::ChainCalls) was refused.
    #[error("the chain call failed with errno {errno}")]
    Call {
        /// The error number of the proposed calls.
        errno: i32,
    },
    /// The chain cannot be changed so.
    #[error(transparent)]
    Edit(#[from] EditError),
    /// Its file cannot be used.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The directory cannot be used.
    #[error(transparent)]
    Dir(#[from] DirError),
    /// Another file of the directory cannot be used.
    #[error(transparent)]
    Store(skep_store::Error),
    /// There is a pin of this name already.
    #[error("chain `{name}` is pinned already")]
    Pinned {
        /// The chain.
        name: String,
    },
    /// There is no pin to remove.
    #[error("chain `{name}` is not pinned")]
    NotPinned {
        /// The chain.
        name: String,
    },
    /// A pin cannot be made or removed.
    #[error("cannot {what} the pin of chain `{name}`: {source}")]
    Pin {
        /// `make` or `remove`.
        what: &'static str,
        /// The chain.
        name: String,
        /// Why.
        source: std::io::Error,
    },
    /// It cannot be compiled.
    #[error("the chain cannot be compiled: {0}")]
    Compile(#[from] CompileError),
    /// A program of it cannot be made ready.
    #[error(transparent)]
    Runner(#[from] crate::test_run::RunnerError),
    /// A run failed as the kernel's would.
    #[error("test run of the chain: {0}")]
    TestRun(crate::test_run::Errno),
    /// Its programs take no packets of ports.
    #[error(transparent)]
    Packets(PacketsError),
    /// A port failed while packets were moved.
    #[error(transparent)]
    Port(#[from] PumpError),
    /// Packets could not be shown to who watches the chain.
    #[error(transparent)]
    Watch(PortError),
    /// The chain could not run any more while packets were moved.
    #[error("{source}")]
    Stopped {
        /// Why.
        source: Box<Self>,
        /// What was done before.
        stats: Box<Stats>,
    },
}
