//! Signals that the engine needs, and the program's own actions for them.
//!
//! Changing code under running threads takes two: `SIGTRAP`, which a thread gets that runs into a
//! place being changed, and one real-time signal that stops running threads. `SIGBUS` comes for
//! memory that a full file system cannot give, `SIGSEGV` for loads of programs that find nothing, and
//! for code that goes while it is looked at. Handlers are installed when they are first needed, and
//! stay; but that of `SIGSEGV` is there only while code is looked at, unless programs need it. What
//! is not the engine's own goes on to the program's action, whichever came first; for that a
//! preloaded library sends the program's `sigaction` and `signal` through [`program_action`].

pub use crate::sys::KernelAction;
pub use action::{ACTION, keeps, overtaken, program_action, taken};
pub use fault::{on_bad_load, on_memory_full};
pub use mask::{Blocked, Mask, begin_blocked, end_blocked, let_faults_through};
pub use pass_on::prepare_exec;

pub(crate) mod action;
pub(crate) mod context;
mod fault;
pub(crate) mod gone;
pub(crate) mod handled;
mod mask;
pub(crate) mod pass_on;
