//! Machine code for x86-64.
//!
//! | BPF | r0 | r1 | r2 | r3 | r4 | r5 | r6 | r7 | r8 | r9 | r10 |
//! |---|---|---|---|---|---|---|---|---|---|---|---|
//! | machine | rax | rdi | rsi | rdx | rcx | r8 | rbx | r13 | r14 | r15 | rbp |
//!
//! as in the kernel (arch/x86/net/bpf_jit_comp.c), so calls find their arguments in place and r6 to
//! r9 are what the C convention preserves. r9, r10 and r11 are scratch within one instruction.
//! Every function of a program is a C function; a frame, where there is one, looks like this:
//!
//! ```text
//!   rbp + 8   return address
//!   rbp       caller's rbp             <- r10
//!   rbp - n   the program's stack, n of at most 512 bytes
//!             rounds left for may_goto, if the function has one
//!             address of the count of tail calls, if the function may make one
//!             r1 of a tail call, while the helper is asked
//!             saved rbx, r12, r13, r14, r15: those the function writes
//! ```
//!
//! A program that makes tail calls starts with a small C function that holds the count of tail
//! calls in its frame and calls the program proper with the count's address in machine register
//! r10, which functions that may make tail calls keep and pass on. A tail call takes its function's
//! frame down and jumps to the other program proper: the count outlives the frames. When the other
//! program would make a frame of the same kind, the frame stays, and the jump goes to where it is
//! made; so that there are few kinds, the main function of a program that makes tail calls has room
//! for all of a stack in its frame.
//!
//! A function with loops keeps wide constants of theirs, addresses of maps above all, in registers
//! that it has no other use for: r12, and those of BPF registers it never names ([`constant`]).
//!
//! The main functions of a chain's programs are one C function ([`chain`]).
//!
//! No instruction touches a vector register, except those that save and restore them around a
//! helper marked so.

mod alu;
mod call;
mod chain;
mod constant;
mod enc;
mod frame;
mod jump;
mod layout;
mod mem;
mod peep;
mod wide_load;

use skep_isa::{Insn, op};

use self::constant::Constant;
use self::enc::reg;
use self::frame::Frame;
use self::layout::{CodeWithGaps, Done, Label};
use self::mem::{Probe, is_probe};
use super::live::Facts;
use super::narrow;
use super::{CompileError, Generated};
use crate::check::{FUNC, Flow, LOOP, Malformed, SECOND, TARGET};
use crate::env::Env;
use crate::exec;
use crate::fault::Sites;
use crate::opcode::{LEADS, Regs, opcode};

/// The features of a machine that generated code may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Cpu {
    /// Shifts by any register, rotates into another register.
    pub bmi2: bool,
    /// Loads that swap bytes.
    pub movbe: bool,
}

impl Cpu {
    /// Detects the features of this machine.
    #[must_use]
    pub fn detect() -> Self {
        Self {
            bmi2: std::arch::is_x86_feature_detected!("bmi2"),
            movbe: std::arch::is_x86_feature_detected!("movbe"),
        }
    }

    /// Returns what every x86-64 has.
    #[must_use]
    pub fn baseline() -> Self {
        Self::default()
    }
}

/// Most bytes of machine code: far more than [`op::MAX_INSNS`] need, far less than a displacement
/// reaches.
const MOST: usize = 1 << 28;

pub(crate) use chain::compile as compile_chain;

pub(super) fn compile(
    insns: &[Insn],
    env: &Env<'_>,
    flow: &Flow,
    cpu: Cpu,
) -> Result<Generated, CompileError> {
    let facts = Facts::of(insns, env, flow);
    let sites = if has_probes(insns, flow) { Sites::reserve() } else { None };
    let mut g = Gen::new(insns, env, flow, &facts, cpu);
    g.out = CodeWithGaps::new(insns.len());
    g.watched = sites.is_some();
    g.program()?;
    g.vector_saver();
    let changes = g.changes();
    let Sealed { exec, done } = seal(g.out, sites)?;
    let functions = flow.funcs.iter().map(|f| f.start).zip(done.functions).collect();
    let inner = g.shared.zip(done.inner);
    Ok(Generated { exec, offsets: done.insns, functions, vector_saver: done.save_vectors, inner, changes })
}

/// Tells whether a program has loads that may find nothing.
fn has_probes(insns: &[Insn], flow: &Flow) -> bool {
    flow.looks(insns, 0..insns.len()).any(|(_, i)| is_probe(i))
}

/// Code in its memory, and where its parts are.
struct Sealed {
    exec: exec::Exec,
    done: Done,
}

/// Puts code together in executable memory.
fn seal(out: CodeWithGaps, sites: Option<Sites>) -> Result<Sealed, CompileError> {
    let (size, near) = out.bound();
    if size > MOST {
        return Err(CompileError::TooLarge { bytes: size });
    }
    let memory = |errno| CompileError::Memory { errno };
    let draft = exec::WritableCode::new(exec::WritableCode::size(size, out.faults()), near)
        .map_err(memory)?;
    let done = out.finish(draft.base(), |f| draft.reaches(f));
    let exec = draft.seal(&done.code, sites, &done.faults).map_err(memory)?;
    Ok(Sealed { exec, done })
}

#[cold]
fn unknown(at: usize, i: &Insn) -> CompileError {
    Malformed::Opcode { insn: at, code: i.code, off: i.off, imm: i.imm }.into()
}

/// Returns the machine register of a BPF register.
#[inline]
fn machine(r: u8) -> u8 {
    const NONE: u8 = reg::R11;
    static MAP: [u8; 16] = [
        reg::RAX,
        reg::RDI,
        reg::RSI,
        reg::RDX,
        reg::RCX,
        reg::R8,
        reg::RBX,
        reg::R13,
        reg::R14,
        reg::R15,
        reg::RBP,
        NONE,
        NONE,
        NONE,
        NONE,
        NONE,
    ];
    MAP[usize::from(r & 15)]
}

/// What is known of values at this point of a basic block.
#[derive(Clone, Copy, Default)]
struct Known {
    /// Registers whose upper half is zero.
    narrow: Regs,
    /// The flags tell whether this register (32 or 64 bits wide) is zero, at this length of code.
    zero_flag: Option<(u8, bool, usize)>,
}

/// The state of generating one program.
struct Gen<'a> {
    insns: &'a [Insn],
    env: &'a Env<'a>,
    flow: &'a Flow,
    facts: &'a Facts,
    /// Registers whose value is read after each slot.
    live: &'a [Regs],
    cpu: Cpu,
    out: CodeWithGaps,
    frame: Frame,
    /// Constants that the function keeps in registers.
    constants: Vec<Constant>,
    /// Registers whose upper half is zero all through the function.
    narrow: Regs,
    known: Known,
    /// A branch that is never come to without knowing that it does not jump.
    answered: Option<usize>,
    saves_vectors: bool,
    /// The kind of the main function's frame, when tail calls may find it made.
    shared: Option<u64>,
    /// Loads of this program that may fail will be found by the handler.
    watched: bool,
    probes: Vec<Probe>,
    /// The main function is a part of a chain's, and goes on here.
    exit: Option<Label>,
    /// The function being generated is the main one.
    is_main: bool,
}

impl<'a> Gen<'a> {
    /// Prepares a program, whose code goes to `out` once that is there.
    fn new(
        insns: &'a [Insn],
        env: &'a Env<'a>,
        flow: &'a Flow,
        facts: &'a Facts,
        cpu: Cpu,
    ) -> Self {
        Self {
            insns,
            env,
            flow,
            facts,
            live: facts.live(),
            cpu,
            out: CodeWithGaps::new(0),
            frame: Frame::default(),
            constants: Vec::new(),
            narrow: 0,
            known: Known::default(),
            answered: None,
            saves_vectors: false,
            shared: None,
            watched: false,
            probes: Vec::new(),
            exit: None,
            is_main: false,
        }
    }
}

impl Gen<'_> {
    fn program(&mut self) -> Result<(), CompileError> {
        let (insns, flow) = (self.insns, self.flow);
        let mut at = 0;
        while let (Some(i), Some(&mark)) = (insns.get(at), flow.marks.get(at)) {
            if mark & (FUNC | TARGET) != 0 {
                self.arrive(at, mark);
            }
            self.out.insn(at);
            let merged = if opcode(i).bits & LEADS != 0 { self.merged(at, i) } else { None };
            let took = match merged {
                Some(n) => n,
                None => self.one(at, i)?,
            };
            self.note(at, i);
            at += 1;
            if took > 1 {
                for i in insns.get(at..at + took - 1).unwrap_or_default() {
                    self.out.insn(at);
                    self.note(at, i);
                    at += 1;
                }
            }
        }
        self.zeros();
        Ok(())
    }

    /// Starts a function, or a block that is jumped to.
    fn arrive(&mut self, at: usize, mark: u8) {
        if mark & FUNC != 0 {
            self.zeros();
            self.enter(at);
        }
        self.known = Known { narrow: self.narrow, zero_flag: None };
        if mark & LOOP != 0 {
            self.out.align_loop(self.flow.loop_end(at).unwrap_or(at));
        }
    }

    /// Generates one instruction, and returns how many slots it takes.
    fn one(&mut self, at: usize, i: &Insn) -> Result<usize, CompileError> {
        let known = match i.class() {
            // What only makes a value that nobody reads is left out.
            op::ALU | op::ALU64 => self.dead_after(at, i.dst()) || self.alu(i),
            op::LD => {
                let known = self.dead_after(at, i.dst()) || self.immediate(at, i);
                return if known { Ok(2) } else { Err(unknown(at, i)) };
            }
            op::LDX => self.load(i),
            op::ST | op::STX => self.store(i),
            _ if i.code == op::EXIT => {
                match self.exit.filter(|_| self.is_main) {
                    Some(exit) => self.leave(at, exit),
                    None => self.epilogue(),
                }
                true
            }
            _ if i.code == op::CALL => self.call(at, *i),
            _ => self.jump(at, i),
        };
        if known { Ok(1) } else { Err(unknown(at, i)) }
    }

    /// Tells whether nothing reads `reg` after slot `at`.
    #[inline]
    fn dead_after(&self, at: usize, reg: u8) -> bool {
        self.live.get(at).is_some_and(|l| l & 1 << reg == 0)
    }

    fn insn(&self, at: usize) -> Insn {
        self.insns.get(at).copied().unwrap_or_default()
    }

    /// Returns the `N` instructions from `at` on when nothing jumps between them and none is half
    /// of another.
    fn run<const N: usize>(&self, at: usize) -> Option<[Insn; N]> {
        let marks = self.flow.marks.get(at..at + N)?;
        if marks.iter().skip(1).any(|m| m & (TARGET | FUNC | SECOND) != 0) {
            return None;
        }
        self.insns.get(at..at + N)?.try_into().ok()
    }

    fn immediate(&mut self, at: usize, i: &Insn) -> bool {
        let d = machine(i.dst());
        if i.src() == op::PSEUDO_FUNC {
            let Some(f) = self.flow.function_at((at as i64 + 1 + i64::from(i.imm)) as usize) else {
                return false;
            };
            self.out.address(d, Label::Func(f));
            return true;
        }
        let Some(value) = self.wide(at, *i) else { return false };
        match self.constant(value) {
            Some(c) => self.out.enc.mov(true, d, c),
            None => self.out.enc.mov_imm(d, value),
        }
        true
    }

    /// Returns the value of a 64-bit immediate that is no function.
    fn wide(&self, at: usize, i: Insn) -> Option<u64> {
        let upper = self.insn(at + 1).imm as u32;
        let map = self.env.maps.get(i.imm as u32 as usize);
        match i.src() {
            0 => Some(u64::from(i.imm as u32) | u64::from(upper) << 32),
            op::PSEUDO_MAP_IDX => map.map(|m| m.handle),
            op::PSEUDO_MAP_IDX_VALUE => map.map(|m| m.value.wrapping_add(u64::from(upper))),
            _ => None,
        }
    }

    /// Says that the flags now tell whether machine register `r` is zero.
    fn flags_of(&mut self, r: u8, w: bool) {
        self.known.zero_flag = Some((r, w, self.out.enc.len()));
    }

    /// Keeps track of which registers have a zero upper half.
    #[inline]
    fn note(&mut self, at: usize, i: &Insn) {
        self.known.narrow = narrow::after(self.insns, at, i, self.known.narrow);
    }
}
