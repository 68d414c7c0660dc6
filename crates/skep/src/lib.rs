//! skep: the eBPF subsystem outside the kernel, as a library.
//!
//! A [`Session`] is an open skep directory. It loads objects: maps are created, programs relocated,
//! verified and compiled; everything is a file that other processes can open. Programs are attached
//! to [`Functions`] of this process or of commands, run on packets ([`Program::test_run`]), and what
//! they counted is read from typed maps:
//!
//! ```no_run
//! use skep::{Functions, HashMap, Session};
//!
//! let session = Session::open()?;
//! let object = session.load("count.bpf.o")?;
//! let link = object.program("count")?.attach(Functions::of_self("libc:malloc"))?;
//! // ... the program's own work ...
//! let counts: HashMap<u64, u64> = object.map("counts")?.typed()?;
//! for entry in counts.iter() {
//!     let (address, n) = entry?;
//!     println!("{address:#x}: {n}");
//! }
//! link.detach().wait(std::time::Duration::from_secs(1));
//! # Ok::<(), skep::Error>(())
//! ```
//!
//! Each of these abilities has a program in `examples/`. An object is refused with the reason and
//! the shortest path to it ([`verifier::Rejection`]).
//!
//! # Attaching to the own process
//!
//! Hooks run between any two instructions, so the code behind them may use no vector register, which
//! compilers only promise with optimization. In a development profile, attaching is refused until
//! the profile says:
//!
//! ```toml
//! [profile.dev.package."*"]
//! opt-level = 2
//! ```
//!
//! Nor may the compiler use more than the baseline of x86-64 (`-C target-cpu`).
//!
//! * **Threads.** All functions may be called on any thread. Attaching hooks functions under running
//!   threads; a library that another thread opens meanwhile is hooked too.
//! * **Directories.** A process runs the programs of one directory at a time. While it has links of
//!   one, links and test runs of another fail. Test runs of two directories wait for each other.
//! * **Memory.** A link's compiled programs are freed when it is detached and no thread is inside
//!   them. Links of the same program share its code.
//! * **`fork`.** The child has a copy of the hooks, and its own calls count in the same maps. What it
//!   detaches or drops goes in the child alone. It may attach, also if another thread of the parent
//!   was attaching at the fork. `_Fork`, and `clone` without the C library, run no handlers for
//!   forks: such a child must not use the library before it executes a program.
//! * **`exec`.** What the process executes goes on without the links. For commands,
//!   [`Functions::of_commands`] makes links that follow `fork` and `exec`.
//!
//! # The other modules
//!
//! [`maps`], [`isa`], [`object`](mod@object) and [`verifier`] are the crates below, for what has no
//! shorter way; [`link`], [`load`] and their like are what the command `skep` is made of, and change
//! with it.

pub mod btf;
mod cgroup;
pub mod chain;
mod command;
mod convert;
mod error;
mod find;
mod functions;
pub mod kconfig;
pub mod link;
pub mod load;
mod loaded;
mod map;
pub mod packets;
pub mod process;
pub mod prototypes;
pub mod prove;
mod ring;
mod session;
mod targets;
pub mod test_run;
mod typed;
pub mod usdt;

pub use chain::{Chain, ChainError, ChainRunner};
pub use error::{Error, Result};
pub use functions::{Detached, FunctionLink, Functions, LinkedFunction};
pub use loaded::{Object, Program};
pub use map::Map;
pub use process::{Attached, ProcessError};
pub use ring::{Events, Ring};
pub use session::{ObjectLoader, Session};
pub use skep_helpers::clock::note as note_clock;
pub use skep_isa as isa;
pub use skep_maps as maps;
pub use skep_net::port;
pub use skep_object as object;
pub use skep_runtime::memory;
pub use skep_store::{
    Dir, DirError, Error as StoreError, RecordError, code_cache, dir, live, prog,
};
pub use skep_verifier as verifier;
pub use typed::{
    Array, Entries, Entry, HashMap, LpmTrie, OrderedEntries, PerCpuArray, PerCpuHashMap, Plain,
    QpTrie, Queue, Stack, TrieKey, Typed,
};
pub use zerocopy;

use std::time::Duration;

use skep_helpers::clock;
use skep_isa::helper::id;
use skep_isa::{HelperId, ProgramType};
use skep_vm::HelperImpl;

/// How long the rate of the time-stamp counter is measured, for a clock that is right within ten
/// parts in a million.
pub(crate) const CLOCK_SPAN: Duration = Duration::from_millis(4);

/// Finds what the code generator needs to call a helper from a program that runs in this process,
/// packet programs among them; `None` when it cannot be called here. The first program that asks for
/// the time starts the clock, without which that takes a system call.
#[must_use]
pub(crate) fn helper(prog: ProgramType, id: HelperId) -> Option<HelperImpl> {
    if [id::KTIME_GET_NS, id::BPF_GET_CPU_TIME_COUNTER, id::BPF_CPU_TIME_COUNTER_TO_NS]
        .contains(&id)
    {
        clock::start_once(CLOCK_SPAN);
    }
    skep_net::implementation(prog, id).or_else(|| skep_runtime::helpers::implementation(prog, id))
}

/// The code of README.md compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(test)]
mod tests {
    use skep_isa::helper::{HELPERS, KFUNCS};
    use skep_isa::kfunc;

    /// Verifier and engines go by two tables: what is offered to programs, and what is there.
    #[test]
    fn what_is_offered_is_there() {
        let here = |id| skep_net::has(id) || skep_runtime::helpers::has(id);
        for h in HELPERS.iter().chain(KFUNCS) {
            assert_eq!(here(h.id), h.refused.is_none(), "{} ({}): {:?}", h.name, h.id, h.refused);
        }
        for (id, k) in (kfunc::BASE..).zip(kfunc::KFUNCS) {
            assert_eq!(here(id), k.offered, "{}", k.name);
        }
    }
}
