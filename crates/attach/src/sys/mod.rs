//! Raw system calls.
//!
//! libc's wrappers are functions of the traced program: they may be hooked, they set `errno`, and
//! some take locks. The engine and the event path come here instead. Every function returns the
//! kernel's word, negative for an error number.

mod call;
mod file;
mod memory;
mod signal;
mod task;

pub(crate) use call::{ARCH_PRCTL, EFAULT, ESRCH, SIGALTSTACK, call};
pub(crate) use file::{Fd, TaskFile, close, open_maps, open_of_task};
pub(crate) use memory::{
    PROT_EXEC, PROT_READ, PROT_WRITE, copy_in, copy_out, copy_words, map, map_wiped_on_fork,
    protect, unmap,
};
pub use signal::KernelAction;
pub(crate) use signal::{
    TOO_LARGE, block_signal_set, block_signals, let_through, queue, send_again, set_signal_mask,
    sigaction, signal_mask, take_waiting, unblock_signal,
};
pub(crate) use task::{
    Barrier, getpid, gettid, has_memory_alone, membarrier, tgkill, tkill, wait, wake, yield_now,
};
