//! When the traced program puts itself into a sandbox: it must not die of a system call that it
//! never made.
//!
//! The C library's `prctl` and `syscall` are hooked inside it. Before strict mode or a filter takes
//! effect, this is what happens:
//!
//! | the program is about to | then |
//! |---|---|
//! | enter strict mode, or forbid itself the time-stamp counter | all hooks are taken out: programs read the counter |
//! | have its system calls come to a handler of its own (Syscall User Dispatch), as Wine does | the same: ours would, too |
//! | set a filter that punishes what events of known threads do | the same |
//! | set a filter that punishes what a thread's first event does, or our other work | the thread gets all it will need, then system calls are over ([`sandbox::close`]): new threads and children run without hooks |
//! | set another filter | nothing: what fails with an error number is coped with |
//!
//! In all but the last case the links name the process, with the reason. What a filter would do is
//! found out with [`filter::run`].
//!
//! What the kernel refuses changes nothing. It is asked before, with the program's own arguments
//! and a filter at an address where there is none: it looks at rights and flags first. What is a
//! filter at all is decided here, as in the kernel ([`filter::is_valid`]).
//!
//! A child that shares its parent's memory (`vfork`) goes into its sandbox alone: the hooks stay,
//! nothing of ours makes a system call on its thread until it executes a program or ends, and that
//! program gets no agent. In strict mode, where the counter cannot be read, it may call nothing
//! that is traced.
//!
//! Where the agent has a thread of its own (it was put into a process that runs), a filter is for that
//! thread only if it is set for all (`SECCOMP_FILTER_FLAG_TSYNC`). Before such a filter all hooks are
//! taken out, and the thread ends: it would have to make system calls for its end, too. Under another
//! thread's filter it goes on, and can take out the hooks later ([`sandbox::exempt`]).
//!
//! Filters that were there before the program was executed are tried out at the agent's start
//! ([`inherited`]). Those that a process has into which the agent is put are read from outside
//! ([`lets_agent_in`]), or tried by who has the same ([`own_filters_let_agent_in`]). Not seen:
//! programs that make the system call themselves, and refusals that depend on other threads
//! (`SECCOMP_FILTER_FLAG_TSYNC`).

mod calls;
mod filter;
pub(crate) mod inherited;

use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use skep_attach::{Position, RunFn};
use skep_maps::slots;
use skep_sys::{sandbox, thread_words};

use skep_attach::signals;

use crate::agent::Agent;
use crate::exec::{self, libc::Libc};
use crate::own_hooks::{OwnHooks, hook};
use crate::own_thread;
use calls::{
    ALONE, Call, EVERY_EVENT, IDENTITY, NAMES, OTHERS, OWN_TABLE, START, SWEEP, TIME, TRYING,
};
use filter::{Action, Insn};
pub use inherited::{own_filters_let_agent_in, own_filters_let_own_table};
use skep_helpers::clock;
use skep_sys::syscall::{self, PROCESS_VM_READV, call6};

const STRICT: &str = "has entered seccomp's strict mode and is not traced from there";
const NO_COUNTER: &str =
    "has forbidden itself to read the time-stamp counter and is not traced from there";
const DISPATCH: &str = "handles its system calls itself and is not traced from there";
const NO_EVENTS: &str =
    "has set a seccomp filter that is against tracing and is not traced from there";
const NO_THREADS: &str =
    "has set a seccomp filter: threads and children that it starts from then on are not traced";

const FOR_ALL: &str = "has set a seccomp filter for all its threads and is not traced from there";

const PR_SET_SECCOMP: u32 = 22;
const PR_SET_TSC: u32 = 26;
const PR_TSC_SIGSEGV: u64 = 2;
const PR_SET_SYSCALL_USER_DISPATCH: u32 = 59;
const DISPATCH_OFF: u64 = 0;
const MODE_STRICT: u64 = 1;
const MODE_FILTER: u64 = 2;
const SYS_PRCTL: u64 = 157;
const SYS_SECCOMP: u64 = 317;
const SET_MODE_STRICT: u64 = 0;
const SET_MODE_FILTER: u64 = 1;
const TSYNC: u64 = 1;

/// What puts a process into a sandbox, and what ends a child in its parent's memory.
pub(crate) const FUNCTIONS: [&CStr; 3] = [c"prctl", c"syscall", c"_exit"];
/// What is to run before each.
const HOOKS: [RunFn; 3] = [on_prctl, on_syscall, on_exit];

/// Hooks what puts a process into a sandbox.
pub(crate) fn watch(libc: &Libc, own: &mut OwnHooks) {
    for (name, run) in FUNCTIONS.into_iter().zip(HOOKS) {
        // SAFETY: hooks for these very functions; the C library's wrappers keep nothing in vector
        // registers.
        let hook = unsafe { hook(Position::Entry, run) }.wants_args(4);
        own.add(libc.function(name), &[hook]);
    }
}

/// `int prctl(int option, …)`
unsafe extern "C" fn on_prctl(ctx: *mut u64, _: *const ()) -> u64 {
    // SAFETY: the frame has twelve argument words.
    let (option, args) = unsafe { (*ctx as u32, [*ctx.add(1), *ctx.add(2)]) };
    prctl(option, args);
    0
}

/// `long syscall(long number, …)`
unsafe extern "C" fn on_syscall(ctx: *mut u64, _: *const ()) -> u64 {
    // SAFETY: as above.
    let (number, args) = unsafe { (*ctx, [*ctx.add(1), *ctx.add(2), *ctx.add(3)]) };
    if number == SYS_SECCOMP {
        seccomp(args);
    } else if number == SYS_PRCTL {
        prctl(args[0] as u32, [args[1], args[2]]);
    }
    0
}

/// `void _exit(int status)`: a child in its parent's memory gives the thread back.
unsafe extern "C" fn on_exit(_: *mut u64, _: *const ()) -> u64 {
    sandbox::open_for_parent();
    0
}

#[cold]
#[inline(never)]
fn prctl(option: u32, args: [u64; 2]) {
    if !sandbox::may_call_system() {
        return;
    }
    match (option, args[0]) {
        (PR_SET_TSC, PR_TSC_SIGSEGV) => take_out(NO_COUNTER),
        (PR_SET_SYSCALL_USER_DISPATCH, to) if to != DISPATCH_OFF => take_out(DISPATCH),
        (PR_SET_SECCOMP, MODE_STRICT) => enter_strict_mode(),
        (PR_SET_SECCOMP, MODE_FILTER) => {
            // SAFETY: as the program is about to, but for the address, which the kernel checks.
            consider(args[1], |probe| unsafe {
                call6(SYS_PRCTL, u64::from(PR_SET_SECCOMP), MODE_FILTER, probe, 0, 0, 0)
            });
        }
        _ => {}
    }
}

#[cold]
#[inline(never)]
fn seccomp([operation, flags, filter]: [u64; 3]) {
    if !sandbox::may_call_system() {
        return;
    }
    match operation {
        // Others are for finding out what the kernel can do: it refuses them.
        SET_MODE_STRICT if flags == 0 && filter == 0 => enter_strict_mode(),
        SET_MODE_FILTER => {
            // SAFETY: as the program is about to, but for the address, which the kernel checks.
            let ask = |probe| unsafe { call6(SYS_SECCOMP, SET_MODE_FILTER, flags, probe, 0, 0, 0) };
            if flags & TSYNC != 0 && own_thread::is_there() && !Agent::of_process().is_forking() {
                leave_before(filter, ask);
            } else {
                consider(filter, ask);
            }
        }
        _ => {}
    }
}

/// The kernel refuses it to whoever has a filter.
fn enter_strict_mode() {
    if inherited::filters() == 0 {
        take_out(STRICT);
    }
}

/// Takes all hooks out, while that is possible.
fn take_out(reason: &str) {
    if !skep_attach::owns_memory() {
        return close_for_child();
    }
    if !Agent::of_process().is_forking() {
        Agent::of_process().name_this_process(reason);
        Agent::of_process().take_out();
    }
    close();
}

/// Ends system calls of ours on the thread that a child of `vfork` has from its parent.
fn close_for_child() {
    exec::prepare_for_sandbox();
    sandbox::close_for_child();
}

/// Ends all system calls of ours.
fn close() {
    exec::prepare_for_sandbox();
    sandbox::close();
    slots::close();
}

/// Leaves the process before it sets a filter for all its threads, also the agent's.
fn leave_before(filter: u64, ask: impl Fn(u64) -> u64) {
    let takes = {
        let _muted = skep_attach::mute();
        let _signals = signals::Blocked::new();
        let judged = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            read(filter).is_some_and(|all| filter::is_valid(&all) && is_permitted(all.len(), ask))
        }));
        judged.unwrap_or(true)
    };
    if takes {
        let agent = Agent::of_process();
        // `skep` reads that when the thread is gone, which has to be before hooks are taken out: it would
        // hook functions behind our back.
        agent.name_this_process(FOR_ALL);
        own_thread::end();
        agent.take_out();
        close();
    }
}

/// Looks at a filter, `struct sock_fprog`, that the program is about to set; `ask` says what the
/// kernel does with another one.
fn consider(at: u64, ask: impl Fn(u64) -> u64) {
    if Agent::of_process().is_forking() {
        // No memory to judge it in.
        return close();
    }
    let _muted = skep_attach::mute();
    // A handler that interrupts this may fork, which takes the heap's lock.
    let signals = signals::Blocked::new();
    let judged = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let Some(filter) =
            read(at).filter(|filter| filter::is_valid(filter) && is_permitted(filter.len(), ask))
        else {
            return Effect::None;
        };
        let punished = |calls: &[Call], worst| punishes(&filter, calls, worst);
        if punished(SWEEP, Action::Punished) {
            forbid_sweeps();
        }
        if punished(EVERY_EVENT, Action::Punished)
            || (clock::is_a_system_call() && punished(TIME, Action::Punished))
        {
            Effect::NoEvents
        } else if punished(IDENTITY, Action::Refused)
            || [OTHERS, TRYING].iter().any(|calls| punished(calls, Action::Punished))
        {
            Effect::NoThreads
        } else {
            Effect::None
        }
    }));
    drop(signals);
    match judged.unwrap_or(Effect::NoEvents) {
        Effect::None => {}
        Effect::NoEvents => take_out(NO_EVENTS),
        Effect::NoThreads if !skep_attach::owns_memory() => close_for_child(),
        Effect::NoThreads => {
            // What this thread's next event would do for the first time.
            slots::exit(slots::enter());
            Agent::of_process().name_this_process(NO_THREADS);
            close();
        }
    }
}

/// Tells whether a filter punishes one of the calls, or, if that is the `worst` that may happen, refuses it.
fn punishes(filter: &[Insn], calls: &[Call], worst: Action) -> bool {
    calls.iter().any(|call| match filter::run(filter, call.nr() as u32, call.args()) {
        Action::Made => false,
        Action::Refused => worst == Action::Refused,
        Action::Punished => true,
    })
}

/// Whether a filter punishes what [`SWEEP`] has.
static SWEEPS_FORBIDDEN: AtomicBool = AtomicBool::new(false);

fn forbid_sweeps() {
    SWEEPS_FORBIDDEN.store(true, Relaxed);
}

/// Tells whether the thread may ask which pages are there. Nobody has tried that for an agent that was put into a
/// process. Allocates nothing.
pub(crate) fn may_sweep() -> bool {
    !SWEEPS_FORBIDDEN.load(Relaxed) && (!thread_words::by_gs() || inherited::filters() == 0)
}

/// Tells whether an agent with a thread of its own can work under a filter, `struct sock_filter`s: none of
/// what it does, on that thread and the program's, is punished, and what it cannot do without is made.
#[must_use]
pub fn lets_agent_in(filter: &[[u8; 8]]) -> bool {
    let filter = filter.iter().map(|bytes| Insn::new(*bytes)).collect::<Vec<_>>();
    let may_fail = [EVERY_EVENT, TIME, OTHERS, START, NAMES];
    !may_fail.iter().any(|calls| punishes(&filter, calls, Action::Punished))
        && ![IDENTITY].iter().chain(&ALONE).any(|calls| punishes(&filter, calls, Action::Refused))
}

/// Tells whether that thread may have a descriptor table of its own under a filter.
#[must_use]
pub fn lets_own_table(filter: &[[u8; 8]]) -> bool {
    let filter = filter.iter().map(|bytes| Insn::new(*bytes)).collect::<Vec<_>>();
    !punishes(&filter, OWN_TABLE, Action::Refused)
}

/// Asks the kernel whether it takes filters of `len` instructions from this thread. A bad address
/// is what it finds last.
fn is_permitted(len: usize, ask: impl Fn(u64) -> u64) -> bool {
    const EFAULT: u64 = -14_i64 as u64;
    const NOWHERE: u64 = u64::MAX << 12;
    ask([len as u64, NOWHERE].as_ptr() as u64) == EFAULT
}

enum Effect {
    None,
    NoThreads,
    NoEvents,
}

/// Reads a filter; `None` for one that the kernel will not take.
fn read(at: u64) -> Option<Vec<Insn>> {
    let mut program = [0_u8; 16];
    copy(at, &mut program)?;
    let (len, list) =
        (u16::from_le_bytes([program[0], program[1]]), u64::from_le_bytes(*program.last_chunk()?));
    let count = Some(usize::from(len)).filter(|n| (1..=filter::MAX_INSNS).contains(n))?;
    let mut bytes = vec![0; count * 8];
    copy(list, &mut bytes)?;
    Some(bytes.as_chunks().0.iter().map(|b| Insn::new(*b)).collect())
}

/// Copies from an address that may be bad.
fn copy(from: u64, to: &mut [u8]) -> Option<()> {
    let (local, remote) = ([to.as_mut_ptr() as u64, to.len() as u64], [from, to.len() as u64]);
    // SAFETY: writes to `to` only; the kernel checks the address.
    let got = unsafe {
        let me = call6(syscall::GETTID, 0, 0, 0, 0, 0, 0);
        call6(PROCESS_VM_READV, me, local.as_ptr() as u64, 1, remote.as_ptr() as u64, 1, 0)
    };
    (got == to.len() as u64).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOAD: u8 = 0x20;
    const EQUAL: u8 = 0x15;
    const RETURN: u8 = 0x06;
    const KILL: u32 = 0x8000_0000;
    const ALLOW: u32 = 0x7fff_0000;

    fn insn(code: u8, jf: u8, k: u32) -> [u8; 8] {
        let [a, b, c, d] = k.to_le_bytes();
        [code, 0, 0, jf, a, b, c, d]
    }

    /// Ends the process at a system call with this first argument.
    fn kills(number: u32, first: u32) -> [[u8; 8]; 6] {
        [
            insn(LOAD, 0, 0),
            insn(EQUAL, 3, number),
            insn(LOAD, 0, 16),
            insn(EQUAL, 1, first),
            insn(RETURN, 0, KILL),
            insn(RETURN, 0, ALLOW),
        ]
    }

    /// The thread gets a name, as does the memory; nothing asks for `PR_SET_DUMPABLE`.
    #[test]
    fn arguments_are_looked_at() {
        assert!(!lets_agent_in(&kills(157, 15)));
        assert!(!lets_agent_in(&kills(157, 0x5356_4d41)));
        assert!(lets_agent_in(&kills(157, 4)));
    }
}
