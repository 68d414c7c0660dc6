//! What detaching did, and whether anything of the attachment is still in use.

use super::lock::lock;
use super::state::Removed;
use crate::hook_list::Meta;
use crate::per_thread::mute::mute;
use crate::process;
use std::time::{Duration, Instant};

/// What [`Engine::detach`](crate::Engine::detach) did, and a handle to ask whether a thread can
/// still be inside.
///
/// Two things end at different times. What the hooks point at may be freed as soon as no thread
/// runs a hook ([`drained`](Self::drained), usually at once). The tracer's code may be taken away,
/// or given up, only when in addition no call waits for its return through a trampoline: a thread
/// may sleep for hours in a function with an exit hook
/// ([`is_quiescent`](Self::is_quiescent), [`wait`](Self::wait)).
///
/// Dropping it takes nothing back and waits for nothing.
///
/// ```
/// use skep_attach::{AttachError, Engine};
/// use std::time::Duration;
///
/// /// Tells whether the hooks' library may be closed.
/// fn detach(engine: &Engine, id: u64) -> Result<bool, AttachError> {
///     let mut detached = engine.detach(id)?;
///     Ok(detached.wait(Duration::from_secs(1)))
/// }
/// # let _ = detach;
/// ```
#[derive(Debug)]
pub struct Detached {
    /// Functions whose original first instructions are back in place.
    pub restored: usize,
    /// Functions that still begin with a jump, which now leads past the tracer: five bytes that do
    /// not lie in one aligned word cannot be changed safely while other threads run.
    pub bypassed: usize,
    /// Whether, when `detach` returned, no thread could be inside a hook of the attachment any
    /// more. If not, what its [`Hook`](crate::Hook)s point at must stay until it is quiescent.
    pub drained: bool,
    /// Functions that had exit hooks of the attachment.
    exits: Vec<(u64, &'static Meta)>,
    quiescent: bool,
}

impl Detached {
    pub(super) fn new(removed: Removed, drained: bool) -> Self {
        let Removed { restored, bypassed, exits } = removed;
        Self { restored, bypassed, drained, quiescent: drained && exits.is_empty(), exits }
    }

    /// Tells whether no thread can be inside any more: none runs a hook of the attachment, and no
    /// call that began while it was attached has yet to return through a trampoline because of it.
    /// Once true, it stays true.
    ///
    /// A function that another attachment hooks at its exit, when this is asked, does not count:
    /// its calls go on to return through the trampoline for that one. A call that was ended by
    /// `longjmp`, an exception or the end of its thread may count until its stack is used
    /// otherwise. Where nobody can look, in a seccomp sandbox, the answer is false, and so it is
    /// inside of a hook, and in a child that shares its parent's memory. In a child of `fork` it is
    /// about the child's one thread.
    ///
    /// The stacks of all threads are searched, which takes some microseconds each. No thread is
    /// stopped.
    pub fn is_quiescent(&mut self) -> bool {
        if !self.quiescent {
            let _muted = mute();
            self.quiescent = process::is_own() && lock().state.is_quiescent(&self.exits);
        }
        self.quiescent
    }

    /// Waits until no thread can be inside any more ([`is_quiescent`](Self::is_quiescent)), at most
    /// so long. Tells whether it is so.
    pub fn wait(&mut self, timeout: Duration) -> bool {
        const FIRST: Duration = Duration::from_micros(100);
        const LONGEST: Duration = Duration::from_millis(20);
        let _muted = mute();
        let begin = Instant::now();
        let mut pause = FIRST;
        loop {
            if self.is_quiescent() {
                return true;
            }
            let Some(left) = timeout.checked_sub(begin.elapsed()).filter(|left| !left.is_zero())
            else {
                return false;
            };
            std::thread::sleep(pause.min(left));
            pause = (2 * pause).min(LONGEST);
        }
    }
}
