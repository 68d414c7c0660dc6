//! Signals that the engine needs, and the program's own actions for them.
//!
//! Changing code under running threads takes two: `SIGTRAP`, which a thread gets that runs into a
//! place being changed, and one real-time signal that brings running threads to a halt for a
//! moment. `SIGBUS` comes for memory that a full file system cannot give, `SIGSEGV` for loads of
//! programs that find nothing. Handlers are installed when they are first needed, and stay. What is
//! not the engine's own goes on to the program's action, whichever came first; for that a preloaded
//! library sends the program's `sigaction` and `signal` through [`program_action`].

use crate::sys::FAULTS;
use crate::{guard, live, process, sys};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};

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

const SIGTRAP: i32 = 5;
const SIGBUS: i32 = 7;
const SIGSEGV: i32 = 11;
const SA_SIGINFO: u64 = 4;
const SA_ONSTACK: u64 = 0x0800_0000;
const SA_RESTART: u64 = 0x1000_0000;
const SA_NODEFER: u64 = 0x4000_0000;
const SA_RESETHAND: u64 = 0x8000_0000;
const SA_RESTORER: u64 = 0x0400_0000;
const SIG_BLOCK: i32 = 0;
const SIG_UNBLOCK: i32 = 1;
const SI_TKILL: i32 = -6;
const SIG_DFL: usize = 0;
const SIG_IGN: usize = 1;
const SI_KERNEL: i32 = 0x80;
const SI_QUEUE: i32 = -1;

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
struct Owned {
    signal: AtomicI32,
    installed: AtomicBool,
    /// The engine's own, and its flags.
    own: AtomicUsize,
    own_flags: AtomicU64,
    /// Odd while the action is being written.
    version: AtomicU64,
    handler: AtomicUsize,
    flags: AtomicU64,
    restorer: AtomicUsize,
    mask: AtomicU64,
}

static TRAP: Owned = Owned::new(SIGTRAP);
static NUDGE: Owned = Owned::new(0);
static BUS: Owned = Owned::new(SIGBUS);
static SEGV: Owned = Owned::new(SIGSEGV);
/// An `unsafe fn(u64) -> Option<u64>`, or 0.
static FIXUP: AtomicUsize = AtomicUsize::new(0);
/// An `unsafe fn(u64) -> bool`, or 0.
static REPAIR: AtomicUsize = AtomicUsize::new(0);

impl Owned {
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

    fn action(&self) -> KernelAction {
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
    unsafe fn remember(&self, new: &KernelAction) {
        // SAFETY: the caller's promise.
        unsafe { self.remember_after(None, new) };
    }

    /// As [`Owned::remember`], unless something newer than the version `seen` was.
    ///
    /// # Safety
    /// As there.
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
    unsafe fn install(&self, signal: i32, handler: usize, flags: u64) -> Result<(), i32> {
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

impl Owned {
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

/// Leaves signals that the program ignores ignored in a program that is about to be executed, where
/// a handler of ours would become the default, and those blocked that it blocks. `reset`: signals,
/// by bit, that a child of `posix_spawn` is to have the default of.
///
/// The handlers are gone then, should the program not be executed.
pub fn prepare_exec(reset: u64) {
    // The thread's mask goes on to the program.
    if let Some(Mask { held }) = Mask::of_thread().filter(|mask| mask.held != 0) {
        sys::block_signal_set(held);
    }
    for owned in [&TRAP, &NUDGE, &BUS, &SEGV] {
        let signal = owned.signal.load(Ordering::Acquire);
        if !owned.installed.load(Ordering::Acquire) || owned.action().handler != SIG_IGN {
            continue;
        }
        // SAFETY: only asks.
        let now = unsafe { sys::sigaction(signal, None) }.map_or(SIG_IGN, |a| a.handler);
        // A child of `posix_spawn` has put the default where it found a handler.
        let spawned = now == SIG_DFL && !process::is_own() && reset & (1 << (signal - 1)) == 0;
        if now == owned.own.load(Ordering::Acquire) || spawned {
            // SAFETY: what the program asked for.
            let _ = unsafe {
                sys::sigaction(
                    signal,
                    Some(&KernelAction { handler: SIG_IGN, ..KernelAction::default() }),
                )
            };
        }
    }
}

/// What a program wants blocked in place of what the kernel blocks: a fault in a hook ends the
/// process where `SIGBUS` or `SIGSEGV` is blocked, and programs block all signals while they handle
/// one, or start a child. A library that interposes `sigprocmask` asks for both masks here. That
/// the program holds such a signal back matters when somebody sends it: then it is really blocked,
/// and sent again.
#[derive(Clone, Copy, Debug)]
pub struct Mask {
    held: u64,
}

impl Mask {
    /// The calling thread's; `None` while the engine handles no faults or does not know the thread.
    #[must_use]
    pub fn of_thread() -> Option<Self> {
        let block = guard::own();
        if block.is_null() || !keeps(SIGBUS) {
            return None;
        }
        // SAFETY: blocks are never unmapped.
        Some(Self { held: u64::from(unsafe { (*block).held.load(Ordering::Relaxed) }) })
    }

    /// What of the signals `new` the kernel is told to block.
    #[must_use]
    pub fn kernels(new: u64) -> u64 {
        new & !FAULTS
    }

    /// What the program is told is blocked where the kernel says `old`.
    #[must_use]
    pub fn programs(self, old: u64) -> u64 {
        old | self.held
    }

    /// Notes what the thread has asked for: `how` as for `sigprocmask`.
    pub fn changed(self, how: i32, new: u64) {
        let held = match how {
            SIG_BLOCK => self.held | new & FAULTS,
            SIG_UNBLOCK => self.held & !new,
            _ => new & FAULTS,
        };
        set_held(held);
    }

    /// Takes that back.
    pub fn restore(self) {
        set_held(self.held);
    }
}

fn set_held(held: u64) {
    let block = guard::own();
    if !block.is_null() {
        // SAFETY: blocks are never unmapped.
        unsafe { (*block).held.store(held as u32, Ordering::Relaxed) };
    }
}

/// To be called in a hook at the entry of a function that blocks all signals by itself for a while,
/// as the C library does where threads and children are started: a fault in a hook would be the end
/// of the process then. Each of the thread's events until [`end_blocked`] lets signals of faults
/// through, by a system call, until they were found blocked: the function sets the thread's mask
/// when it is done.
#[inline(always)]
pub fn begin_blocked() {
    guard::set_blocked(true);
}

/// The thread leaves that function.
#[inline(always)]
pub fn end_blocked() {
    guard::set_blocked(false);
}

/// Keeps the thread's signals, but for those of faults, waiting until it is dropped.
#[derive(Debug)]
pub struct Blocked {
    before: u64,
}

impl Blocked {
    /// Blocks them.
    #[must_use]
    pub fn new() -> Self {
        Self { before: sys::block_signals() }
    }
}

impl Default for Blocked {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        sys::set_signal_mask(self.before);
    }
}

fn owned(signal: i32) -> Option<&'static Owned> {
    [&TRAP, &NUDGE, &BUS, &SEGV]
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

/// Puts a handler on `SIGBUS`, which a store to memory of a file system that is full raises.
/// `repair` is asked with the address whether it has put other memory there; if not, the signal is
/// the program's.
///
/// # Errors
/// An errno value, when the kernel refuses the handler.
///
/// # Safety
/// `repair` may run in a signal handler, which interrupts any code of the process, locks held, and
/// it says that there is memory now only where the store can be done again and nobody is deceived
/// by what is there.
///
/// ```compile_fail,E0133
/// let _ = skep_attach::signals::on_memory_full(|_| true);
/// ```
pub unsafe fn on_memory_full(repair: unsafe fn(u64) -> bool) -> Result<(), i32> {
    REPAIR.store(repair as usize, Ordering::Release);
    // SAFETY: made for it.
    unsafe { BUS.install(SIGBUS, on_bus as *const () as usize, 0) }
}

unsafe extern "C" fn on_bus(signal: i32, info: *const Info, context: *mut Context) {
    let repair = REPAIR.load(Ordering::Acquire);
    // SAFETY: the kernel hands valid pointers to a SA_SIGINFO handler; for faults the word behind
    // the code is the address.
    let (code, addr) =
        unsafe { ((*info).code, (&raw const (*info).pid).cast::<u64>().read_unaligned()) };
    if code > 0 && repair != 0 {
        // SAFETY: only `on_memory_full` stores there, and stores a function of this type.
        let repair: unsafe fn(u64) -> bool = unsafe { std::mem::transmute(repair) };
        // SAFETY: the kernel says that this is where there is no memory.
        if unsafe { repair(addr) } {
            return;
        }
    }
    // SAFETY: the kernel's own arguments, for the same signal.
    unsafe { pass_on(&BUS, signal, code, info, context) };
}

/// Puts a handler on `SIGSEGV`, for loads that may find no memory. `fixup` is asked with the
/// address of the instruction where to continue; if it does not know, the signal is the program's.
///
/// # Errors
/// An errno value, when the kernel refuses the handler.
///
/// # Safety
/// `fixup` may run in a signal handler, on the thread that faulted at the address it is given, and
/// where it says that the thread goes on, it can.
///
/// ```compile_fail,E0133
/// let _ = skep_attach::signals::on_bad_load(|_| Some(8));
/// ```
pub unsafe fn on_bad_load(fixup: unsafe fn(u64) -> Option<u64>) -> Result<(), i32> {
    FIXUP.store(fixup as usize, Ordering::Release);
    // SAFETY: made for it.
    unsafe { SEGV.install(SIGSEGV, on_segv as *const () as usize, 0) }
}

unsafe extern "C" fn on_segv(signal: i32, info: *const Info, context: *mut Context) {
    let fixup = FIXUP.load(Ordering::Acquire);
    // SAFETY: the kernel hands valid pointers to a SA_SIGINFO handler.
    let (code, registers) = unsafe { ((*info).code, &mut (*context).registers) };
    if code > 0 && fixup != 0 {
        // SAFETY: only `on_bad_load` stores there, and stores a function of this type.
        let fixup: unsafe fn(u64) -> Option<u64> = unsafe { std::mem::transmute(fixup) };
        // SAFETY: this is the thread that faulted there, in its signal handler.
        if let Some(to) = unsafe { fixup(registers[RIP]) } {
            return registers[RIP] = to;
        }
    }
    // SAFETY: the kernel's own arguments, for the same signal.
    unsafe { pass_on(&SEGV, signal, code, info, context) };
}

/// Installs the handlers, or puts them back where the program replaced them behind the engine's
/// back. Returns the number of the signal that halts threads.
pub(crate) fn install() -> Result<i32, i32> {
    // SAFETY: made for it.
    unsafe { TRAP.install(SIGTRAP, on_trap as *const () as usize, SA_NODEFER) }?;
    let mut signal = NUDGE.signal.load(Ordering::Acquire);
    if signal == 0 {
        // A real-time signal that nobody uses; the first few and 32, 33 are the C library's.
        let unused = |s: &i32| {
            // SAFETY: only asks.
            unsafe { sys::sigaction(*s, None) }.is_ok_and(|a| a.handler == SIG_DFL)
        };
        signal = (36..=62).rev().find(unused).ok_or(16)?;
    }
    // SAFETY: made for it.
    unsafe { NUDGE.install(signal, on_nudge as *const () as usize, SA_RESTART) }?;
    Ok(signal)
}

/// The beginning of `siginfo_t`.
#[repr(C)]
pub(crate) struct Info {
    signal: i32,
    errno: i32,
    code: i32,
    _pad: i32,
    pid: i32,
    uid: u32,
    value: u64,
}

impl Info {
    /// What [`live`] sends to a thread that it wants to halt.
    pub(crate) fn nudge(signal: i32, token: u64) -> [u64; 16] {
        let mut raw = [0; 16];
        raw[0] = signal as u32 as u64;
        raw[1] = SI_QUEUE as u32 as u64;
        raw[2] = u64::from(sys::getpid());
        raw[3] = token;
        raw
    }
}

/// The part of `ucontext_t` that handlers read and change.
#[repr(C)]
pub(crate) struct Context {
    flags: u64,
    link: u64,
    stack: [u64; 3],
    /// r8–r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp, rip, …
    registers: [u64; 32],
    /// The signals that were blocked when this one came.
    mask: u64,
}

const RSP: usize = 15;
const RIP: usize = 16;

unsafe extern "C" fn on_trap(signal: i32, info: *const Info, context: *mut Context) {
    // SAFETY: the kernel hands valid pointers to a SA_SIGINFO handler.
    let (code, registers) = unsafe { ((*info).code, &mut (*context).registers) };
    if code == SI_KERNEL || code > 0 {
        let at = registers[RIP].wrapping_sub(1);
        // SAFETY: this thread has just run the breakpoint at `at`.
        match unsafe { live::trapped(at) } {
            live::Trapped::Jump(to) => return registers[RIP] = to,
            live::Trapped::Call(to) => {
                registers[RSP] = registers[RSP].wrapping_sub(8);
                // SAFETY: the thread was about to make this very push.
                unsafe {
                    (registers[RSP] as *mut u64).write(at.wrapping_add(crate::spot::PATCH as u64))
                };
                return registers[RIP] = to;
            }
            live::Trapped::Gone => return registers[RIP] = at,
            live::Trapped::Foreign => {}
        }
    }
    // SAFETY: the kernel's own arguments, for the same signal.
    unsafe { pass_on(&TRAP, signal, code, info, context) };
}

unsafe extern "C" fn on_nudge(signal: i32, info: *const Info, context: *mut Context) {
    // SAFETY: the kernel hands valid pointers to a SA_SIGINFO handler.
    let (code, pid, value, registers) =
        unsafe { ((*info).code, (*info).pid, (*info).value, &mut (*context).registers) };
    if code == SI_QUEUE && pid as u32 == sys::getpid() && value == live::token() {
        live::halt(&mut registers[RIP], context as u64);
        return;
    }
    // SAFETY: the kernel's own arguments, for the same signal.
    unsafe { pass_on(&NUDGE, signal, code, info, context) };
}

/// Does what the program wants to happen.
///
/// # Safety
///
/// Called from a handler for `signal` with its arguments.
unsafe fn pass_on(owned: &Owned, signal: i32, code: i32, info: *const Info, context: *mut Context) {
    let action = owned.action();
    let sent = code <= 0;
    let bit = 1 << (signal - 1);
    if sent && Mask::of_thread().is_some_and(|mask| mask.held & bit != 0) {
        // SAFETY: the kernel's own arguments; the thread's mask is this one when the handler
        // returns.
        unsafe {
            (*context).mask |= bit;
            sys::send_again(signal, info as u64, code == SI_TKILL);
        }
        return;
    }
    match action.handler {
        SIG_IGN if sent => {}
        SIG_DFL | SIG_IGN => {
            // The default of all four ends the process, as it does when a fault is ignored. From
            // now on it is the kernel's.
            owned.installed.store(false, Ordering::Release);
            // SAFETY: what the program asked for.
            let _ = unsafe { sys::sigaction(signal, Some(&KernelAction::default())) };
            sys::tgkill(sys::gettid(), signal);
            sys::unblock_signal(signal);
        }
        handler => {
            if action.flags & SA_RESETHAND != 0 {
                // SAFETY: the default; the rest stays, as the kernel leaves it.
                unsafe { owned.remember(&KernelAction { handler: SIG_DFL, ..action }) };
            }
            let own = if action.flags & SA_NODEFER == 0 { bit } else { 0 };
            // SAFETY: the kernel's own argument.
            let before = unsafe { (*context).mask };
            // The kernel puts the old mask back when the handler returns.
            sys::set_signal_mask(before | Mask::kernels(action.mask) | own);
            // SAFETY: the program's handler, called as the kernel calls it; one without SA_SIGINFO
            // ignores the rest.
            unsafe {
                let handler: unsafe extern "C" fn(i32, *const Info, *mut Context) =
                    std::mem::transmute(handler);
                handler(signal, info, context);
            }
        }
    }
}
