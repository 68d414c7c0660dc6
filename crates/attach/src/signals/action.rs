//! The program's own actions for the signals that the engine has handlers on.

use crate::sys::KernelAction;
use crate::{process, sys};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};

pub(crate) const SIGTRAP: i32 = 5;
pub(crate) const SIGBUS: i32 = 7;
pub(crate) const SIGSEGV: i32 = 11;
pub(crate) const SA_SIGINFO: u64 = 4;
pub(crate) const SA_ONSTACK: u64 = 0x0800_0000;
pub(crate) const SA_RESTART: u64 = 0x1000_0000;
pub(crate) const SA_NODEFER: u64 = 0x4000_0000;
pub(crate) const SA_RESETHAND: u64 = 0x8000_0000;
pub(crate) const SA_RESTORER: u64 = 0x0400_0000;
pub(crate) const SIG_DFL: usize = 0;
pub(crate) const SIG_IGN: usize = 1;

std::arch::global_asm!(
    // Unwinders and debuggers know the end of a signal handler by these very bytes.
    ".p2align 4",
    "nop",
    ".globl skep_attach_restore",
    ".hidden skep_attach_restore",
    ".type skep_attach_restore,@function",
    "skep_attach_restore:",
    ".byte 0x48, 0xc7, 0xc0, 0x0f, 0x00, 0x00, 0x00",
    "syscall",
    ".size skep_attach_restore, . - skep_attach_restore",
);

unsafe extern "C" {
    fn skep_attach_restore();
}

/// A signal with a handler of the engine on it, and the program's action for it.
pub(crate) struct EngineSignal {
    pub(crate) signal: AtomicI32,
    pub(crate) installed: AtomicBool,
    /// The engine's own, and its flags.
    pub(crate) own: AtomicUsize,
    own_flags: AtomicU64,
    /// Odd while the action is being written.
    version: AtomicU64,
    handler: AtomicUsize,
    flags: AtomicU64,
    restorer: AtomicUsize,
    mask: AtomicU64,
}

pub(crate) static TRAP: EngineSignal = EngineSignal::new(SIGTRAP);
pub(crate) static STOP_WORLD: EngineSignal = EngineSignal::new(0);
pub(crate) static BUS: EngineSignal = EngineSignal::new(SIGBUS);
pub(crate) static SEGV: EngineSignal = EngineSignal::new(SIGSEGV);

impl EngineSignal {
    const fn new(signal: i32) -> Self {
        Self {
            signal: AtomicI32::new(signal),
            installed: AtomicBool::new(false),
            own: AtomicUsize::new(0),
            own_flags: AtomicU64::new(0),
            version: AtomicU64::new(0),
            handler: AtomicUsize::new(0),
            flags: AtomicU64::new(0),
            restorer: AtomicUsize::new(0),
            mask: AtomicU64::new(0),
        }
    }

    pub(crate) fn action(&self) -> KernelAction {
        loop {
            let before = self.version.load(Ordering::Acquire);
            let action = KernelAction {
                handler: self.handler.load(Ordering::Acquire),
                flags: self.flags.load(Ordering::Acquire),
                restorer: self.restorer.load(Ordering::Acquire),
                mask: self.mask.load(Ordering::Acquire),
            };
            if before.is_multiple_of(2) && self.version.load(Ordering::Acquire) == before {
                return action;
            }
            std::hint::spin_loop();
        }
    }

    /// Remembers the program's action. Signals are blocked, so that no handler waits for the thread
    /// it interrupted.
    ///
    /// # Safety
    /// The action's handler can handle the signal: it is called for what is not the engine's own.
    pub(crate) unsafe fn remember(&self, new: &KernelAction) {
        // SAFETY: the caller's promise.
        unsafe { self.remember_after(None, new) };
    }

    /// As [`EngineSignal::remember`], unless something newer than the version `seen` was.
    ///
    /// # Safety
    /// The action's handler can handle the signal: it is called for what is not the engine's own.
    unsafe fn remember_after(&self, seen: Option<u64>, new: &KernelAction) {
        let blocked = sys::block_signals();
        let mut version = self.version.load(Ordering::Relaxed);
        loop {
            if seen.is_some_and(|seen| seen != version) {
                sys::set_signal_mask(blocked);
                return;
            }
            if version.is_multiple_of(2) {
                match self.version.compare_exchange_weak(
                    version,
                    version + 1,
                    Ordering::Acquire,
                    Ordering::Relaxed,
                ) {
                    Ok(_) => break,
                    Err(now) => version = now,
                }
            } else {
                sys::yield_now();
                version = self.version.load(Ordering::Relaxed);
            }
        }
        self.handler.store(new.handler, Ordering::Release);
        self.flags.store(new.flags, Ordering::Release);
        self.restorer.store(new.restorer, Ordering::Release);
        self.mask.store(new.mask, Ordering::Release);
        self.version.store(version + 2, Ordering::Release);
        sys::set_signal_mask(blocked);
    }

    /// Puts the engine's handler on the signal, and remembers what it displaces. The handler runs
    /// with all signals blocked, as nothing else finds room on a small alternate stack; but for
    /// `SIGTRAP`, which would kill the process then.
    ///
    /// # Safety
    /// `handler` is the address of a function that handles the signal.
    pub(crate) unsafe fn install(
        &self,
        signal: i32,
        handler: usize,
        flags: u64,
    ) -> Result<(), i32> {
        self.own.store(handler, Ordering::Release);
        self.own_flags.store(flags, Ordering::Release);
        // The program's action is remembered before the handler is there, which may be called at
        // once, and before the program's own calls come here ([`keeps`]): another thread
        // may make one at any time.
        let version = self.version.load(Ordering::Acquire) & !1;
        // SAFETY: only asks.
        let before = unsafe { sys::sigaction(signal, None) }.map_err(|e| e as i32)?;
        if before.handler != handler {
            // SAFETY: until now the kernel called it.
            unsafe { self.remember_after(Some(version), &before) };
        }
        let version = self.version.load(Ordering::Acquire) & !1;
        self.signal.store(signal, Ordering::Release);
        let was = self.installed.swap(true, Ordering::AcqRel);
        // SAFETY: the caller's promise.
        let old = unsafe { sys::sigaction(signal, Some(&self.mine(signal))) }.map_err(|e| {
            self.installed.store(was, Ordering::Release);
            e as i32
        })?;
        if old.handler != handler && old != before {
            // Somebody was quicker, by a call that did not come here.
            // SAFETY: until now the kernel called it.
            unsafe { self.remember_after(Some(version), &old) };
        }
        Ok(())
    }
}

impl EngineSignal {
    /// Gives the program back its signal, unless it has another handler by now.
    pub(crate) fn give_back(&self) {
        let signal = self.signal.load(Ordering::Acquire);
        // SAFETY: only asks.
        let now = unsafe { sys::sigaction(signal, None) };
        if now.is_ok_and(|now| now.handler == self.own.load(Ordering::Acquire)) {
            self.installed.store(false, Ordering::Release);
            // SAFETY: what the program asked for.
            let _ = unsafe { sys::sigaction(signal, Some(&self.action())) };
        }
    }

    /// Signal, the engine's handler, and the program's action, where the engine has a handler on it.
    fn taken(&self) -> Option<[u64; ACTION]> {
        let KernelAction { handler, flags, restorer, mask } = self.action();
        let (signal, own) = (self.signal.load(Ordering::Acquire), self.own.load(Ordering::Acquire));
        let words = [signal as u64, own as u64, handler as u64, flags, restorer as u64, mask];
        self.installed.load(Ordering::Acquire).then_some(words)
    }

    /// The engine's action. Faults are handled on the stack on which the program wants to handle
    /// them, and a signal that is sent interrupts what it interrupts without us.
    fn mine(&self, signal: i32) -> KernelAction {
        let program = self.action();
        let alike = match program.handler {
            _ if !matches!(signal, SIGBUS | SIGSEGV) => SA_ONSTACK,
            SIG_DFL | SIG_IGN => SA_ONSTACK | SA_RESTART,
            _ => program.flags & (SA_ONSTACK | SA_RESTART),
        };
        KernelAction {
            handler: self.own.load(Ordering::Acquire),
            flags: self.own_flags.load(Ordering::Acquire) | alike | SA_SIGINFO | SA_RESTORER,
            restorer: skep_attach_restore as *const () as usize,
            mask: !(1 << (SIGTRAP - 1)),
        }
    }
}

/// Words of each of [`taken`].
pub const ACTION: usize = 6;

/// The signals that the engine has handlers on, for whoever stops the process and gives the program its
/// actions back: of each its number, the address of the engine's handler, and the program's action as
/// the kernel has it.
pub fn taken() -> impl Iterator<Item = [u64; ACTION]> {
    [&TRAP, &STOP_WORLD, &BUS, &SEGV].into_iter().filter_map(EngineSignal::taken)
}

fn owned(signal: i32) -> Option<&'static EngineSignal> {
    [&TRAP, &STOP_WORLD, &BUS, &SEGV]
        .into_iter()
        .find(|o| o.installed.load(Ordering::Acquire) && o.signal.load(Ordering::Acquire) == signal)
}

/// Tells whether the engine has a handler of its own on a signal, so that the program's action goes
/// through [`program_action`]. A child in its parent's memory has actions of its own, which are the
/// kernel's.
#[must_use]
pub fn keeps(signal: i32) -> bool {
    owned(signal).is_some() && process::is_own()
}

/// Reads, and with `new` changes, what the program wants to happen on a signal. Returns the action
/// it had before.
///
/// For signals that the engine keeps its own handler on, the program's action is only remembered,
/// and the engine's handler passes on what is not its own; for all others this is the plain system
/// call. A library that interposes `sigaction` and `signal` sends every call through here. The
/// error is an errno value.
///
/// # Safety
/// With `new`: its handler can handle the signal, as for `sigaction(2)`.
///
/// ```
/// # fn main() -> Result<(), i32> {
/// use skep_attach::signals::program_action;
/// const SIGUSR2: i32 = 12;
/// // SAFETY: only asks.
/// let action = unsafe { program_action(SIGUSR2, None) }?;
/// assert_eq!(action.handler, 0);
/// # Ok(())
/// # }
/// ```
///
/// ```compile_fail,E0133
/// use skep_attach::signals::{KernelAction, program_action};
/// let action = KernelAction { handler: 8, ..KernelAction::default() };
/// let _ = program_action(12, Some(&action));
/// ```
pub unsafe fn program_action(signal: i32, new: Option<&KernelAction>) -> Result<KernelAction, i32> {
    if let Some(owned) = owned(signal) {
        let old = owned.action();
        if let Some(new) = new {
            // SAFETY: the caller's promise.
            unsafe { owned.remember(new) };
            // SAFETY: the engine's handler, with the flags for the program's.
            unsafe { sys::sigaction(signal, Some(&owned.mine(signal))) }.map_err(|e| e as i32)?;
        }
        return Ok(old);
    }
    // SAFETY: the caller's promise.
    let old = unsafe { sys::sigaction(signal, new) }.map_err(|e| e as i32)?;
    Ok(overtaken(signal, old.handler).unwrap_or(old))
}

/// To be called after a call that changed or read a signal's action at the kernel, as [`keeps`] was
/// false: the engine's handler may have come since. Then it is there again, the action that stands
/// there is the program's, and if `old` is the engine's handler, the answer is the action that the
/// program had before.
#[must_use]
pub fn overtaken(signal: i32, old: usize) -> Option<KernelAction> {
    let owned = owned(signal).filter(|_| process::is_own())?;
    let own = owned.own.load(Ordering::Acquire);
    let before = owned.action();
    // SAFETY: only asks.
    let now = unsafe { sys::sigaction(signal, None) }.ok()?;
    if now.handler != own {
        // SAFETY: until now the kernel called it; and the engine's handler, with the flags for the
        // program's.
        unsafe {
            owned.remember(&now);
            let _ = sys::sigaction(signal, Some(&owned.mine(signal)));
        }
    }
    (old == own).then_some(before)
}
