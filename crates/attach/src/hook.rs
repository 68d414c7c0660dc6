//! What runs when a hooked function is called.

use std::ptr;
use std::sync::atomic::AtomicU64;

use crate::frame::MAX_ARGS;

/// A hook's code. `ctx` points at the first argument word of a [`Frame`](crate::frame::Frame);
/// `data` is what [`Hook::new`] was given.
///
/// The code preserves all vector, mask, x87 and MMX registers besides the registers that the
/// calling convention preserves, does not unwind, and leaves the direction flag clear. It may read
/// the whole frame and must not write to it, except to the session word, and in an entry hook to
/// the first six argument words, which the function then finds in its registers.
pub type RunFn = unsafe extern "C" fn(ctx: *mut u64, data: *const ()) -> u64;

/// Says when a hook runs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[doc(alias = "BPF_TRACE_FENTRY")]
#[doc(alias = "BPF_MODIFY_RETURN")]
#[doc(alias = "BPF_TRACE_FEXIT")]
#[doc(alias = "BPF_TRACE_FSESSION")]
pub enum Position {
    /// Before the function. The hook's result is ignored.
    Entry,
    /// After the entry hooks, before the function. The first hook that returns something else than
    /// 0 skips the function, and what it returned becomes the function's return value; exit
    /// hooks still run. One that stores something in the frame's session word skips it with 0, too.
    ModifyReturn,
    /// After the function. The hook's result is ignored.
    Exit,
    /// Before and after the function, with eight bytes kept between the two runs. If the run before
    /// the function returns 1, there is no run after it.
    Session,
}

impl Position {
    /// Tells whether the hook needs the function to return through the trampoline.
    #[must_use]
    pub const fn needs_exit(self) -> bool {
        !matches!(self, Self::Entry)
    }
}

/// Why a hook did not run in a call. The number is the index of its counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Missed {
    /// The thread was inside a hook: a signal handler that interrupted it made the call, or the
    /// hook itself.
    Inside = 0,
    /// There was no room on the stack for the frame that waits for the return, or too many calls in
    /// a row ended in calls.
    Stack = 1,
    /// The thread could not be registered: no memory, or a child of `vfork` whose parent was never
    /// traced.
    Thread = 2,
}

impl Missed {
    /// How many reasons there are.
    pub const REASONS: usize = 3;
}

/// Whose address is the data of diversions alone.
static DIVERSION: u8 = 0;

unsafe extern "C" fn nothing(_: *mut u64, _: *const ()) -> u64 {
    0
}

/// What code that is made for a hook list calls in the place of a hook's code, when two conditions hold.
#[derive(Clone, Copy, Debug)]
pub struct DirectCall {
    /// What is called, with what [`RunFn`] gets as its first argument.
    pub run: unsafe extern "C" fn(ctx: *mut u8) -> u64,
    /// Registers that it may change, as bits: the processor's numbers of rcx, rdx, rsi, rdi and r8 to
    /// r11. Always rax, and never those that calls keep.
    pub changes: u16,
    /// Words of the [`Frame`](crate::frame::Frame) that it reads, as bits.
    pub reads: u64,
    /// This word has this value, at most 127,
    pub word: (*const AtomicU64, u8),
    /// and this one is not 0, and the same as the thread's word at this offset.
    pub thread_word: Option<(*const AtomicU64, i32)>,
}

/// One hook: when it runs, what runs, and where it counts.
///
/// Making one is a promise about code and pointers, and none of them can be changed afterwards:
///
/// ```
/// use skep_attach::{Hook, Position};
///
/// unsafe extern "C" fn count(_: *mut u64, _: *const ()) -> u64 {
///     0
/// }
/// // SAFETY: the function does nothing, whatever it is given.
/// let hook = unsafe { Hook::new(Position::Entry, count, std::ptr::null()) }.wants_args(2);
/// # let _ = hook;
/// ```
///
/// ```compile_fail,E0133
/// use skep_attach::{Hook, Position};
///
/// extern "C" fn count(_: *mut u64, _: *const ()) -> u64 {
///     0
/// }
/// let hook = Hook::new(Position::Entry, count, 8 as *const ());
/// ```
///
/// ```compile_fail,E0616
/// fn count_at(hook: &mut skep_attach::Hook) {
///     hook.missed = 8 as *const _;
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Hook {
    pub(crate) position: Position,
    pub(crate) run: RunFn,
    /// Handed to the code as its second argument.
    pub(crate) data: *const (),
    /// Counts the calls without a run of the hook, by [`Missed`]: an array of [`Missed::REASONS`]
    /// words; null: nobody counts.
    pub(crate) missed: *const AtomicU64,
    pub(crate) without_return: u64,
    /// At most [`MAX_ARGS`].
    pub(crate) wants_args: u8,
    pub(crate) direct: Option<DirectCall>,
}

impl Hook {
    /// Makes a hook that runs `run`, which gets `data` as its second argument.
    ///
    /// # Safety
    /// Wherever it is attached, and until [`Engine::detach`](crate::Engine::detach) said that the
    /// attachment is drained, or [`Detached`](crate::Detached) that it is quiescent, or for ever
    /// when neither did:
    ///
    /// * `run` may be called with the frame of a call and with `data`, at any time, on every thread
    ///   of the process, before or after the function as `position` says, and keeps to what
    ///   [`RunFn`] asks for.
    /// * What it answers may be done: with [`Position::ModifyReturn`], a result other than 0 is
    ///   returned in the function's place.
    #[must_use]
    pub const unsafe fn new(position: Position, run: RunFn, data: *const ()) -> Self {
        Self {
            position,
            run,
            data,
            missed: ptr::null(),
            without_return: 0,
            wants_args: 0,
            direct: None,
        }
    }

    /// The hook of a function whose calls are sent elsewhere, until they are.
    pub(crate) const fn of_diversion() -> Self {
        // SAFETY: it does nothing, and looks at nothing.
        unsafe { Self::new(Position::Entry, nothing, (&raw const DIVERSION).cast()) }
    }

    /// Tells whether it is that.
    pub(crate) fn is_of_diversion(&self) -> bool {
        ptr::eq(self.data, (&raw const DIVERSION).cast())
    }

    /// Counts the calls without a run, by [`Missed`].
    #[must_use]
    pub const fn counts_missed(self, words: &'static [AtomicU64; Missed::REASONS]) -> Self {
        Self { missed: words.as_ptr(), ..self }
    }

    /// As [`Hook::counts_missed`], for words that do not live as long as the process; null: nobody
    /// counts.
    ///
    /// # Safety
    /// `words` is null, or points to [`Missed::REASONS`] words that live and are only used as
    /// atomics as long as [`Hook::new`] says.
    #[must_use]
    pub const unsafe fn counts_missed_at(self, words: *const AtomicU64) -> Self {
        Self { missed: words, ..self }
    }

    /// Lets a session hook run before the function alone in calls whose return it will not see,
    /// because the stack has no room for a frame: its cookie is or-ed with `bits` then. 0: it
    /// is not run in such calls, and counts them as missed.
    #[must_use]
    pub const fn without_return(self, bits: u64) -> Self {
        Self { without_return: bits, ..self }
    }

    /// Lets hook lists with code of their own call something in the place of the hook's code.
    ///
    /// # Safety
    /// It does what the hook's code does when the conditions hold, and keeps to what [`RunFn`] asks for,
    /// but that it never writes to the frame. It reads and changes no more than it says. The words of the
    /// conditions live as long as [`Hook::new`] says, and each thread has a word at that offset.
    #[must_use]
    pub const unsafe fn calls_directly(self, call: DirectCall) -> Self {
        Self { direct: Some(call), ..self }
    }

    /// Says how many argument words the hook reads; there are twelve at most. More than 6 makes the
    /// trampoline copy words from the caller's stack.
    #[must_use]
    pub const fn wants_args(self, words: u8) -> Self {
        let words = if words as usize > MAX_ARGS { MAX_ARGS as u8 } else { words };
        Self { wants_args: words, ..self }
    }
}

// SAFETY: who made the hook with `Hook::new` promised that its code may run with its data, and its
// words be added to, on every thread.
unsafe impl Send for Hook {}
// SAFETY: as for `Send`; a shared `Hook` offers nothing more than copies of its words.
unsafe impl Sync for Hook {}
