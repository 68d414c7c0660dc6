//! Why a chain cannot be had in the kernel.

use skep_object::LinkError;
use skep_verifier::Rejection;
use skep_vm::chain::plan::PlanError;

use crate::chain::EditError;

/// Says why a chain cannot run in the kernel.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KernelChainError {
    /// The plan cannot be followed.
    #[error(transparent)]
    Plan(PlanError),
    /// The chain has no program.
    #[error("the chain has no program, so there is nothing to attach")]
    Empty,
    /// A node's program is not among those that were given.
    #[error("a node of the chain has no program")]
    Parts,
    /// A program is of another type than the kernel's hook takes.
    #[error("program `{node}` is of type `{kind}`: chains in the kernel have XDP programs")]
    Type {
        /// The node.
        node: String,
        /// Its type.
        kind: &'static str,
    },
    /// A program runs behind a redirect only.
    #[error("program `{node}` is for the entries of a map, no interface takes it")]
    Entry {
        /// The node.
        node: String,
    },
    /// The programs need more stack than one program may have.
    #[error(
        "program `{node}` needs {needs} bytes of stack in the chain ({whole} by itself), and programs have 512"
    )]
    Stack {
        /// The node.
        node: String,
        /// Bytes by itself.
        whole: u32,
        /// Bytes with what the chain needs.
        needs: u32,
    },
    /// Too many functions.
    #[error("the chain's programs have {functions} functions, and the kernel takes {most}")]
    Functions {
        /// How many there are.
        functions: usize,
        /// How many there may be.
        most: usize,
    },
    /// Too many instructions.
    #[error("the chain has more instructions than the kernel takes (1,000,000)")]
    TooLong,
    /// A program's references cannot be resolved.
    #[error(transparent)]
    Link(Box<LinkError>),
    /// A program is not proved safe by skep's verifier.
    #[error(transparent)]
    Rejected(Box<Rejection>),
    /// A program needs something that the kernel has not.
    #[error("program `{node}` {why}")]
    Unsupported {
        /// The node.
        node: String,
        /// What it needs.
        why: String,
    },
    /// A map cannot be made.
    #[error("map `{map}` cannot be created in the kernel: {why}")]
    Map {
        /// The map.
        map: String,
        /// Why not.
        why: String,
    },
    /// The kernel refuses the program.
    #[error("the kernel refuses {what}: {last}")]
    Refused {
        /// The chain, or a node.
        what: String,
        /// The last words of its log, or the error number.
        last: String,
        /// The last lines of its log.
        log: Vec<String>,
    },
    /// Another system call failed.
    #[error("cannot {what}: {source}")]
    Kernel {
        /// What was tried.
        what: String,
        /// Why not.
        source: skep_kernel::Error,
    },
    /// A file of the bpf file system cannot be used.
    #[error("{what}")]
    File {
        /// What is wrong.
        what: String,
    },
    /// The chain has programs that make tail calls, and its maps are not pinned.
    #[error(
        "programs of the chain make tail calls, and the kernel empties arrays of programs that are not pinned"
    )]
    TailCalls,
    /// The interface has another program.
    #[error("interface `{interface}` is taken: {by}")]
    Busy {
        /// The interface.
        interface: String,
        /// By what.
        by: String,
    },
    /// There is no such interface.
    #[error("there is no interface `{interface}`")]
    NoInterface {
        /// The name.
        interface: String,
    },
    /// The interface has no chain of skep.
    #[error("interface `{interface}` has no chain in the kernel")]
    NotAttached {
        /// The name.
        interface: String,
    },
    /// Somebody else changed the chain at the same time, again and again.
    #[error("somebody else changes the chain of `{interface}` at the same time")]
    Race {
        /// The interface.
        interface: String,
    },
    /// What is attached says nothing of a chain.
    #[error("the chain of `{interface}` does not say what it is made of")]
    Description {
        /// The interface.
        interface: String,
    },
    /// The graph is none.
    #[error(transparent)]
    Graph(#[from] EditError),
}
