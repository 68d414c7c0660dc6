//! Signals that the engine needs, and the program's own actions for them.

/// `struct sigaction` as the kernel's `rt_sigaction` takes it on x86-64.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct KernelAction {
    /// `SIG_DFL` (0), `SIG_IGN` (1), or the handler's address.
    pub handler: usize,
    /// `SA_…` flags.
    pub flags: u64,
    /// Where the handler returns to (`SA_RESTORER`).
    pub restorer: usize,
    /// Signals blocked while it runs.
    pub mask: u64,
}

/// Reads, and with `new` changes, what the program wants to happen on a signal. Returns the action it had before.
///
/// For signals that the engine keeps its own handler on, the program's action is only remembered, and the engine's handler
/// passes on what is not its own; for all others this is the plain system call. A library that interposes `sigaction` and
/// `signal` sends every call through here. The error is an errno value.
pub fn program_action(signal: i32, new: Option<&KernelAction>) -> Result<KernelAction, i32> {
    let _ = (signal, new);
    Err(22)
}
