//! The interpreter: one instruction after another, as plainly as possible.
//!
//! It is what the code generator is compared with, so it shares nothing with it but the shape
//! check.

mod alu;
mod mem;
mod thunk;

use std::cell::Cell;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use skep_isa::{HelperId, Insn, op};

use crate::MAY_GOTO_ROUNDS;
use crate::check::{Flow, Malformed, is_goto, jump};
use crate::env::{Env, HelperCall, MapRef};
use crate::tail::Target;

/// Says why a run stopped without a result.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The instructions are no program.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// Local calls nest deeper than [`op::MAX_CALL_FRAMES`].
    #[error("instruction `{insn}`: more than `{}` nested calls", op::MAX_CALL_FRAMES)]
    TooDeep {
        /// The call.
        insn: usize,
    },
    /// An atomic operation on an address that is no multiple of its size.
    #[error("instruction `{insn}`: atomic access to the odd address `{address:#x}`")]
    Misaligned {
        /// The instruction.
        insn: usize,
        /// The address.
        address: u64,
    },
    /// A tail call leads to a program that is there as machine code only.
    #[error("instruction `{insn}`: program `{id}` is compiled and cannot be interpreted")]
    Target {
        /// The call.
        insn: usize,
        /// The program's id.
        id: u32,
    },
    /// The program takes the address of more functions than the interpreter can hand out.
    #[error("the program has `{count}` callback functions, more than `{}`", thunk::SLOTS)]
    Callbacks {
        /// How many there are.
        count: usize,
    },
}

/// A program that was looked at once, to be run many times.
pub struct Program {
    insns: Box<[Insn]>,
    maps: Box<[MapRef]>,
    flow: Flow,
    /// How often each instruction ran, if that is wanted.
    hits: Option<Box<[AtomicU64]>>,
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Program")
            .field("insns", &self.insns.len())
            .field("maps", &self.maps.len())
            .finish_non_exhaustive()
    }
}

/// Where a run is: how deep in calls of this program, and how many tail calls brought it here.
#[derive(Clone, Copy)]
struct Run<'a> {
    depth: usize,
    tails: &'a Cell<u32>,
}

/// Runs a program once with `ctx` in r1.
///
/// # Errors
/// The instructions are no program, or see [`RunError`].
///
/// # Safety
/// As [`Program::run`].
pub unsafe fn run(insns: &[Insn], env: &Env<'_>, ctx: *mut u8) -> Result<u64, RunError> {
    let program = Program::new(insns, env)?;
    // SAFETY: the caller vouches for the program and its surroundings.
    unsafe { program.run([ctx as u64, 0, 0, 0, 0]) }
}

impl Program {
    /// Checks the shape of a program and keeps a copy of it.
    ///
    /// # Errors
    /// The instructions are no program.
    pub fn new(insns: &[Insn], env: &Env<'_>) -> Result<Self, RunError> {
        let flow = Flow::of(insns, env)?;
        if flow.callbacks.len() > thunk::SLOTS {
            return Err(RunError::Callbacks { count: flow.callbacks.len() });
        }
        Ok(Self { insns: insns.into(), maps: env.maps.into(), flow, hits: None })
    }

    /// From now on, counts how often each instruction runs.
    pub fn count_hits(&mut self) {
        self.hits = Some(self.insns.iter().map(|_| AtomicU64::new(0)).collect());
    }

    /// Returns how often each instruction has run; nothing unless [`Program::count_hits`] was called.
    /// The second half of an instruction of two stays 0.
    #[must_use]
    pub fn hits(&self) -> Vec<u64> {
        self.hits.iter().flatten().map(|n| n.load(Relaxed)).collect()
    }

    /// Runs the program with `args` in r1 to r5 and returns r0.
    ///
    /// # Errors
    /// Calls nest too deep, or an atomic access is misaligned.
    ///
    /// # Safety
    /// Every address the program loads from, stores to or passes to a helper must be good for that,
    /// the helpers' own rules must be kept, and the program must end: that is, the program was
    /// verified for these surroundings. Where it has `PROBE_MEM` loads, whose addresses may be
    /// any, a signal handler uses [`fixup`](crate::fault::fixup).
    pub unsafe fn run(&self, args: [u64; 5]) -> Result<u64, RunError> {
        // SAFETY: the caller vouches for every address the program uses.
        unsafe { self.call(0, args, Run { depth: 1, tails: &Cell::new(0) }) }
    }

    /// Runs one function.
    ///
    /// # Safety
    /// As [`Program::run`].
    unsafe fn call(&self, start: usize, args: [u64; 5], run: Run<'_>) -> Result<u64, RunError> {
        let mut stack = [0u64; op::STACK_SIZE as usize / 8];
        let mut r = [0u64; 16];
        r[1..6].copy_from_slice(&args);
        r[usize::from(op::FP)] = stack.as_mut_ptr() as u64 + op::STACK_SIZE as u64;
        let mut rounds = MAY_GOTO_ROUNDS;
        let mut pc = start;
        loop {
            // The shape check has shown that `pc` stays inside the program, and registers below 11.
            let Some(&i) = self.insns.get(pc) else {
                return Err(Malformed::FallsOff { insn: pc }.into());
            };
            if let Some(hits) = self.hits.as_ref().and_then(|hits| hits.get(pc)) {
                hits.fetch_add(1, Relaxed);
            }
            let (d, s) = (usize::from(i.dst()), usize::from(i.src()));
            let bad = Malformed::Opcode { insn: pc, code: i.code, off: i.off, imm: i.imm };
            let mut next = pc + 1;
            match i.class() {
                op::ALU | op::ALU64 => {
                    let operand = if i.code & op::X != 0 { r[s] } else { i64::from(i.imm) as u64 };
                    r[d] = alu::arith(i, r[d], operand).ok_or(bad)?;
                }
                op::LD => {
                    let upper = self.insns.get(pc + 1).map_or(0, |n| n.imm as u32);
                    r[d] = self.immediate(i, upper, pc).ok_or(bad)?;
                    next = pc + 2;
                }
                // SAFETY: the caller vouches for every address the program loads from.
                op::LDX => r[d] = unsafe { load(i, r[s]) },
                // SAFETY: the caller vouches for every address the program stores to.
                op::ST | op::STX => unsafe { self.store(i, pc, &mut r) }?,
                _ if i.code == op::EXIT => return Ok(r[0]),
                _ if i.code == op::CALL => {
                    // SAFETY: the caller vouches for the program, and so for its calls.
                    match unsafe { self.call_insn(i, pc, &r, run) }? {
                        ControlFlow::Continue(result) => r[0] = result,
                        ControlFlow::Break(result) => return Ok(result),
                    }
                }
                _ => {
                    let taken = if is_goto(i) {
                        true
                    } else if i.code & 0xf0 == op::JCOND {
                        let over = rounds == 0;
                        rounds = rounds.saturating_sub(1);
                        over
                    } else {
                        let operand =
                            if i.code & op::X != 0 { r[s] } else { i64::from(i.imm) as u64 };
                        alu::condition(i, r[d], operand).ok_or(bad.clone())?
                    };
                    if taken {
                        next = (pc as i64 + 1 + jump(i).ok_or(bad)?) as usize;
                    }
                }
            }
            pc = next;
        }
    }

    /// Stores, or does an atomic operation.
    ///
    /// # Safety
    /// The address must be good for the access, as for all that a verified program does.
    #[inline]
    unsafe fn store(&self, i: Insn, pc: usize, r: &mut [u64; 16]) -> Result<(), RunError> {
        let (d, s) = (usize::from(i.dst()), usize::from(i.src()));
        let at = r[d].wrapping_add_signed(i64::from(i.off));
        let value = match i.class() {
            op::ST => i64::from(i.imm) as u64,
            _ if i.code & 0xe0 == op::MEM => r[s],
            // SAFETY: the caller vouches for loads and stores at the address.
            _ => return unsafe { self.atomic(i, pc, r) },
        };
        // SAFETY: the caller vouches for stores to the address.
        unsafe { mem::store(at, i.code & op::DW, value) };
        Ok(())
    }

    /// Calls a function of the program or a helper, and continues with its result; or another
    /// program by a tail call, whose result is this program's (`Break`). A tail call that fails
    /// leaves r0 as it was.
    ///
    /// # Safety
    /// The arguments must be good for what is called, and what is called for this context: as in
    /// every call that a verified program makes.
    unsafe fn call_insn(
        &self,
        i: Insn,
        pc: usize,
        r: &[u64; 16],
        run: Run<'_>,
    ) -> Result<ControlFlow<u64, u64>, RunError> {
        let id = i.imm as u32;
        let args = [r[1], r[2], r[3], r[4], r[5]];
        if i.src() == op::PSEUDO_CALL {
            if run.depth >= op::MAX_CALL_FRAMES {
                return Err(RunError::TooDeep { insn: pc });
            }
            let deeper = Run { depth: run.depth + 1, ..run };
            let start = (pc as i64 + 1 + i64::from(i.imm)) as usize;
            // SAFETY: the caller vouches for the arguments.
            return unsafe { self.call(start, args, deeper) }.map(ControlFlow::Continue);
        }
        if self.flow.helper(id).is_some_and(|h| h.how == HelperCall::TailCall) {
            // SAFETY: the caller vouches for the arguments.
            let to = unsafe { self.tail_target(id, pc, args, run) }?;
            let Some(to) = to else {
                return Ok(ControlFlow::Continue(r[0]));
            };
            let first = [args[0], 0, 0, 0, 0];
            // SAFETY: the target is verified for the same context. Its calls are counted anew.
            return unsafe { to.call(0, first, Run { depth: 1, ..run }) }.map(ControlFlow::Break);
        }
        // SAFETY: the caller vouches for the arguments.
        unsafe { self.helper(id, pc, args, run) }.map(ControlFlow::Continue)
    }

    fn immediate(&self, i: Insn, upper: u32, pc: usize) -> Option<u64> {
        let map = || self.maps.get(i.imm as u32 as usize);
        match i.src() {
            0 => Some(u64::from(i.imm as u32) | u64::from(upper) << 32),
            op::PSEUDO_MAP_IDX => map().map(|m| m.handle),
            op::PSEUDO_MAP_IDX_VALUE => map().map(|m| m.value.wrapping_add(u64::from(upper))),
            op::PSEUDO_FUNC => {
                let start = (pc as i64 + 1 + i64::from(i.imm)) as usize;
                thunk::address(self.flow.callbacks.binary_search(&start).ok()?)
            }
            _ => None,
        }
    }

    /// # Safety
    /// As [`Program::run`].
    unsafe fn helper(
        &self,
        id: HelperId,
        pc: usize,
        args: [u64; 5],
        run: Run<'_>,
    ) -> Result<u64, RunError> {
        let helper = self.flow.helper(id).ok_or(Malformed::Helper { insn: pc, id })?;
        let [a, b, c, d, e] = args;
        if let HelperCall::LoadCtx(off) = helper.how {
            // SAFETY: the caller vouches for the context, and the helper's row for the offset.
            return Ok(unsafe { mem::load(a.wrapping_add_signed(i64::from(off)), op::DW, false) });
        }
        if self.flow.callbacks.is_empty() {
            // SAFETY: the caller vouches for the arguments that the program passes.
            return Ok(unsafe { (helper.func)(a, b, c, d, e) });
        }
        thunk::with(self, run, || {
            // SAFETY: the caller vouches for the arguments that the program passes.
            unsafe { (helper.func)(a, b, c, d, e) }
        })
    }

    /// Asks the helper which program a tail call continues with, every time: the machine code's
    /// table is none of ours.
    ///
    /// # Safety
    /// As [`Program::run`]; the helper's answer is a target with a program, which lives while this
    /// one runs.
    unsafe fn tail_target(
        &self,
        id: HelperId,
        pc: usize,
        args: [u64; 5],
        run: Run<'_>,
    ) -> Result<Option<&Program>, RunError> {
        if run.tails.get() >= op::MAX_TAIL_CALLS {
            return Ok(None);
        }
        let args = [args[0], args[1], u64::from(args[2] as u32), 0, 0];
        // SAFETY: the caller vouches for the arguments of the helper.
        let found = unsafe { self.helper(id, pc, args, run) }?;
        // SAFETY: the helper returns the address of a target that its host keeps, or 0.
        let Some(target) = (unsafe { (found as *const Target).as_ref() }) else { return Ok(None) };
        let to = target.program().ok_or(RunError::Target { insn: pc, id: target.id() })?;
        run.tails.set(run.tails.get() + 1);
        Ok(Some(to))
    }

    /// # Safety
    /// The address must be good for loads and stores of the access size.
    unsafe fn atomic(&self, i: Insn, pc: usize, r: &mut [u64; 16]) -> Result<(), RunError> {
        let (d, s) = (usize::from(i.dst()), usize::from(i.src()));
        let size = i.code & op::DW;
        let base = if i.imm == op::ATOMIC_LOAD_ACQ { r[s] } else { r[d] };
        let at = base.wrapping_add_signed(i64::from(i.off));
        if !at.is_multiple_of(mem::bytes(size)) {
            return Err(RunError::Misaligned { insn: pc, address: at });
        }
        match i.imm {
            // SAFETY: the caller vouches for the address, and it is aligned.
            op::ATOMIC_LOAD_ACQ => r[d] = unsafe { mem::load_acquire(at, size) },
            // SAFETY: the caller vouches for the address, and it is aligned.
            op::ATOMIC_STORE_REL => unsafe { mem::store_release(at, size, r[s]) },
            // SAFETY: the caller vouches for the address, and it is aligned.
            op::ATOMIC_CMPXCHG => r[0] = unsafe { mem::compare_exchange(at, size, r[0], r[s]) },
            n => {
                let bad = Malformed::Opcode { insn: pc, code: i.code, off: i.off, imm: i.imm };
                // SAFETY: the caller vouches for the address, and it is aligned.
                let old = unsafe { mem::fetch(at, size, n, r[s]) }.ok_or(bad)?;
                if n & op::ATOMIC_FETCH != 0 {
                    r[s] = old;
                }
            }
        }
        Ok(())
    }
}

/// Loads what an instruction loads, at an offset behind `base`.
///
/// # Safety
/// The address must be good for the load, unless the instruction is a `PROBE_MEM` load: then a
/// signal handler must use [`fixup`](crate::fault::fixup).
#[inline]
unsafe fn load(i: Insn, base: u64) -> u64 {
    let at = base.wrapping_add_signed(i64::from(i.off));
    match i.code & 0xe0 {
        // SAFETY: the caller vouches for the handler that makes any address good.
        mode @ (op::PROBE_MEM | op::PROBE_MEMSX) => unsafe {
            mem::probe(at, i.code & op::DW, mode == op::PROBE_MEMSX)
        },
        // SAFETY: the caller vouches for loads from the address.
        mode => unsafe { mem::load(at, i.code & op::DW, mode == op::MEMSX) },
    }
}
