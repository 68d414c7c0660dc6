//! Hooking functions of the own process: thousands at once, cheaply, without the program noticing.
//!
//! This crate is internal to skep: users call `skep`. Its interface follows what that needs, and
//! changes without notice.
//!
//! This crate finds functions ([`sites`]), changes their first instructions so that calls pass
//! through one of a few static trampolines, and runs the hooks it was given ([`Hook`]) before a
//! function, instead of it, and after it. It knows nothing about programs or maps: a hook is a
//! function pointer with two words of data. It is not for other processes, nor for finding
//! functions by pattern; files, symbols and mappings are `skep-proc`'s.
//!
//! The types to know: [`Engine`] (one for the process; several attachments may share a function),
//! [`sites::Function`] (what can be hooked), [`Hook`] (what runs), [`frame::Frame`] (what a hook
//! sees) and [`Detached`] (when it is over). A function that cannot be hooked
//! safely is skipped with a reason, [`Skip`]; nothing here ends the process.
//!
//! # The rules of the event path
//!
//! Everything between a hooked function's first instruction and the hook is written in assembly
//! (`tramp/x64.s`), made for the hook list (`hook_code.rs`) or lies in the section
//! `.text.skep_event`: no allocation, no locks, no libc, no vector registers, `errno` untouched. Hooks promise the same: they preserve every register that
//! the x86-64 calling convention preserves **and** all vector, mask, x87 and MMX state.
//!
//! # What it does to the program
//!
//! Calls take longer, and a function with exit hooks takes 384 bytes more stack while it runs, on
//! the upper quarter of a thread's stack. In the second quarter, and on stacks that are not the
//! thread's own (coroutines, signal stacks), it takes 64 bytes. To both come 8 bytes for each word
//! of arguments that its caller has put on the stack, at most 512 words. In the lower half it takes
//! nothing, and its return is not seen. Hooks themselves run on a stack of the engine's there, with
//! signals blocked (see [`Missed`]). The first event of a thread makes a handful of system calls
//! (`gettid`, `open`, `ioctl`, `close`, sometimes `mmap` and `prlimit`), which a strict seccomp
//! filter may not like. Attaching while other threads run stops them with a real-time signal and
//! uses `SIGTRAP` ([`signals`]).
//!
//! # What it does not do
//!
//! Follow frame pointers through an exit trampoline: a walk along them leaves out one caller.
//! Unwind tables go through trampolines, but not through islands, the code of hook lists nor compiled
//! programs, which have none: a signal handler that interrupts one of these gets a backtrace that ends
//! there.
//!
//! Keep all descriptor numbers as they were: a new thread's first event opens a file and closes it
//! again, and a file that another thread opens meanwhile gets the next number.
//!
//! Hook the dynamic loader or the vDSO; move threads that block all signals and never sleep; notice
//! that a library is closed and another one with the same bytes mapped there between the last look
//! and the change of the code, which is microseconds.

pub use code_cache::keep_code_in;
pub use engine::{AroundForks, Attachment, Bypassed, Detached, Engine, Group};
pub use hook::{DirectCall, Hook, Missed, Position, RunFn};
pub use live::{Edit, Move, Tracer, Unstopped};
pub use per_thread::area::{Area, MARK as AREA_MARK, WORDS as AREA_WORDS};
pub use per_thread::by_gs::{reach_words_by_gs, register_thread};
pub use per_thread::mute::{Muted, mute};
pub use process::is_own as owns_memory;
pub use skep_sys::{sandbox, thread};
pub use skip::{AttachError, Skip};

mod addresses;
mod calls_in_progress;
mod code;
mod code_cache;
mod cursor;
mod deny;
mod engine;
mod flow;
mod fork_once;
pub mod frame;
mod goroutines;
mod hook;
mod hook_code;
mod hook_list;
mod hook_lists;
mod island;
mod jump;
mod live;
mod patch;
mod patch_site;
mod per_thread;
mod predecode;
mod process;
mod relocate;
mod runtime;
mod side_stack;
pub mod signals;
pub mod sites;
mod skip;
mod stack_arguments;
mod stack_bounds;
mod stack_check;
mod sys;
mod table;
mod thread_pointer;
mod threads;
mod tramp;

/// Whether this crate is compiled with so much optimization that its part of the event path uses no
/// vector registers.
pub const IS_OPTIMIZED: bool = matches!(env!("SKEP_OPT_LEVEL").as_bytes(), b"2" | b"3");
