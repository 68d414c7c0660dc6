//! System calls that a stopped thread makes for the tracer.
//!
//! The thread needs no stack, no memory and no function of its program for that: its registers are
//! set to the instructions of [`stub`](crate::stub()), which lie in unused bytes at the end of the
//! vDSO's code while the process stands. Which thread does not matter to the program, but some are
//! better than others, and some must not be touched.
//!
//! | step | if the tracer dies here, the thread |
//! |---|---|
//! | write the instructions | goes on as it was; nothing jumps there |
//! | set the registers | makes the call, and returns by the instructions |
//! | block its signals | the same; they unblock them |
//! | run to the call's end | the same |
//! | run to `PTRACE_EVENT_STOP` | returns by the instructions |
//! | restore its signal mask | the same |
//! | restore the registers | goes on as it was |
//! | remove the instructions | goes on as it was |

use rustix::io::Errno;

use crate::error::{Error, Unfit};
use crate::registers::{NO_CALL, Registers, Restart};
use crate::rseq;
use crate::stop::go_on_to_a_stop;
use crate::stub::{LEN, SYSCALL, stub};
use crate::sys::{self, Happened};
use crate::target::Target;
use crate::task::Status;

/// Single-stepping, in `eflags`.
const TRAP_FLAG: u64 = 1 << 8;

/// Results of system calls above this are errors.
const MAX_ERRNO: u64 = 4095;

/// The thread that makes the calls, and what it has to get back.
#[derive(Debug)]
pub(crate) struct Caller {
    pub(crate) tid: u32,
    pub(crate) saved: Registers,
    mask: u64,
    /// Where the instructions are.
    place: u64,
}

/// What is added to the rank of a thread with harmless seccomp filters: a thread that it starts has them, too.
const FILTERED: u8 = 4;

/// So often a call is begun again that `SIGSTOP` has cut short.
const STOPS: u32 = 20;

impl Target {
    /// Has the process make a system call: the number, which is not checked, and six arguments. The
    /// call must be one that neither waits nor starts anything (as `fork` does).
    ///
    /// The `name` is for messages. The process must have been given what the arguments point to.
    ///
    /// # Errors
    /// When no thread is fit for it, the process ended, or the call failed: [`Error::Call`].
    pub fn call(
        &mut self,
        name: &'static str,
        number: u64,
        arguments: [u64; 6],
    ) -> Result<u64, Error> {
        self.call_at(None, name, number, arguments)
    }

    /// Chooses the thread that makes the next call, if there is none yet; returns where it would go
    /// on after the call without a tracer.
    pub(crate) fn ready_caller(&mut self) -> Result<u64, Error> {
        if self.caller.is_none() {
            self.caller = Some(self.prepare()?);
        }
        let Some(caller) = &self.caller else { unreachable!("it was set just before") };
        Ok(caller.place + SYSCALL.len() as u64)
    }

    /// Makes a call by another `syscall` instruction than that of the stub, with which a thread
    /// comes to the stub's second part.
    pub(crate) fn call_at(
        &mut self,
        code: Option<u64>,
        name: &'static str,
        number: u64,
        arguments: [u64; 6],
    ) -> Result<u64, Error> {
        let pid = self.pid;
        self.ready_caller()?;
        let Some(caller) = &self.caller else { unreachable!("it was set just before") };
        let tid = caller.tid;
        let [rdi, rsi, rdx, r10, r8, r9] = arguments;
        let rip = code.unwrap_or(caller.place);
        let registers = Registers {
            rax: number,
            rdi,
            rsi,
            rdx,
            r10,
            r8,
            r9,
            rip,
            orig_rax: NO_CALL,
            ..caller.saved
        };
        let mut tries = 0;
        let result = loop {
            let Some(result) = self.run_call(tid, &registers) else {
                // It was killed, or stays in the call. Then it returns by itself.
                self.caller = None;
                return Err(Error::NoCaller { pid, reason: Unfit::Ended });
            };
            // `SIGSTOP` may come at any time, and a call like `clone` does nothing then.
            tries += 1;
            let after = Registers { rax: result, orig_rax: number, ..registers };
            if after.restart() != Restart::Again || tries == STOPS {
                break result;
            }
        };
        if result > u64::MAX - MAX_ERRNO {
            let errno = Errno::from_raw_os_error(result.wrapping_neg() as i32);
            return Err(Error::Call { pid, call: name, errno });
        }
        Ok(result)
    }

    /// Runs a thread with these registers to the end of its system call, whose result it returns,
    /// and stops it there.
    fn run_call(&mut self, tid: u32, registers: &Registers) -> Option<u64> {
        sys::set_registers(tid, registers).ok()?;
        sys::set_signal_mask(tid, u64::MAX).ok()?;
        let (mut signal, mut is_inside) = (0, false);
        loop {
            sys::resume_to_call(tid, signal).ok()?;
            signal = 0;
            match self.threads.next(tid)? {
                Happened::Call if is_inside => break,
                Happened::Call => is_inside = true,
                // `SIGSTOP`, which cannot be blocked: it stops the process when it goes on.
                Happened::Signal(other) => signal = other,
                Happened::Event(sys::EVENT_CLONE) => self.threads.expect_new(tid),
                Happened::Event(_) => {}
                Happened::Gone => return None,
            }
        }
        let result = sys::registers(tid).ok()??.rax;
        signal = 0;
        loop {
            go_on_to_a_stop(tid, signal);
            match self.threads.next(tid)? {
                Happened::Event(sys::EVENT_STOP) => {
                    self.threads.settle_new().ok()?;
                    return Some(result);
                }
                Happened::Signal(other) => signal = other,
                Happened::Event(_) | Happened::Call => signal = 0,
                Happened::Gone => return None,
            }
        }
    }

    /// Chooses a thread, and writes its instructions.
    fn prepare(&mut self) -> Result<Caller, Error> {
        let pid = self.pid;
        let mut tries = 0;
        let tid = loop {
            let mut reason = Unfit::Ended;
            let mut busy = None;
            let mut best = None;
            for tid in self.threads() {
                match self.fitness(tid) {
                    // None is better, and looking at a thread takes time.
                    Ok(0) => {
                        best = Some((0, tid));
                        break;
                    }
                    Ok(rank) => best = best.min(Some((rank, tid))).or(Some((rank, tid))),
                    Err(Unfit::Sequence) => busy = Some(tid),
                    Err(unfit) => reason = unfit,
                }
            }
            if let Some((_, tid)) = best {
                break tid;
            }
            let Some(tid) = busy else { return Err(Error::NoCaller { pid, reason }) };
            if tries == rseq::TRIES {
                return Err(Error::NoCaller { pid, reason: Unfit::Sequence });
            }
            tries += 1;
            self.threads.run_a_little(tid)?;
        };
        let saved = self.registers(tid)?;
        let mask = sys::signal_mask(tid).map_err(|errno| Error::Os {
            pid,
            call: "PTRACE_GETSIGMASK",
            errno,
        })?;
        let place = self.place_of_stub()?;
        self.memory.write(tid, place, &stub(&saved.resumed(), mask))?;
        Ok(Caller { tid, saved, mask, place })
    }

    /// Tells how well a thread suits, 0 best, or why it must be left alone.
    fn fitness(&self, tid: u32) -> Result<u8, Unfit> {
        let registers = self.registers(tid).map_err(|_| Unfit::Ended)?;
        // Anywhere else the kernel would change the registers once more.
        if !sys::is_at_event_stop(tid) {
            return Err(Unfit::Ended);
        }
        if registers.eflags & TRAP_FLAG != 0 {
            return Err(Unfit::SingleStep);
        }
        let status = Status::of(self.pid, tid).ok_or(Unfit::Ended)?;
        self.filters.check(tid, &status)?;
        if sys::dispatches_calls(tid) {
            return Err(Unfit::Dispatch);
        }
        if rseq::sequence(&self.memory, tid, registers.rip).is_some() {
            return Err(Unfit::Sequence);
        }
        let rank = match registers.restart() {
            Restart::Again => 0,
            Restart::No => 1,
            Restart::Interrupted => 2,
            // If the tracer dies at a time when signals are delivered, this one's call ends early.
            Restart::Rest => 3,
        };
        let entered = self.memory.read(registers.rip.wrapping_sub(2), 2);
        let is_restarted = matches!(registers.restart(), Restart::Again | Restart::Rest);
        if is_restarted && entered.is_ok_and(|bytes| bytes != SYSCALL) {
            return Err(Unfit::Entry);
        }
        Ok(rank + if status.is_filtered() { FILTERED } else { 0 })
    }

    /// Gives the thread that made calls its own registers and signal mask back, and removes the
    /// instructions. Its calls may begin again, by another thread.
    pub(crate) fn end_calls(&mut self) {
        let Some(caller) = self.caller.take() else { return };
        let restored = sys::set_signal_mask(caller.tid, caller.mask)
            .and_then(|()| sys::set_registers(caller.tid, &caller.saved));
        // Where that fails, the thread was killed; else it needs the instructions.
        if restored.is_ok() || self.threads.ids().all(|tid| tid != caller.tid) {
            self.memory.write(caller.tid, caller.place, &[0; LEN]).ok();
        }
    }
}
