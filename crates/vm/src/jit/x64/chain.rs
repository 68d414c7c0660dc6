//! Chains: the main functions of several programs as one C function.
//!
//! The programs share one frame, made once:
//!
//! ```text
//!   rbp + 8     return address
//!   rbp         caller's rbp           <- r10 of each program in its turn
//!   rbp - 512   the program's stack
//!   rbp - 520   rounds left for may_goto
//!   rbp - 528   the context
//!   rbp - 536   the counters
//!   rbp - 544   programs left, where a run can come to its budget
//!   rbp - 552   the time when the program began, where time is taken
//!   rbp - 560…  times left, of each edge that has a bound
//!               saved rbx, r12, r13, r14, r15: those that one of the programs writes
//! ```
//!
//! What `exit` of a program becomes is a jump to the code behind it, or nothing where that comes
//! next: the verdict is counted, and the next program jumped to. Where one verdict leads on and all
//! others elsewhere, that is one comparison; many targets are a table of jumps by slot
//! ([`crate::chain::plan`]). The programs lie in the order of the plan, so that the most common way
//! through a chain has few jumps. What is seldom (an edge that is refused) lies behind all.
//!
//! A chain of one program that counts nothing is that program as it is alone.
//!
//! A program that makes tail calls leaves its frame and its code, so it stays a C function of its
//! own, which the chain calls. So does one that calls its own main function.

use skep_isa::op;

use super::enc::{Mem, Size, cc, group, reg, shift};
use super::frame::{PRESERVED, ROUNDS_IN_CHAIN};
use super::layout::{CodeWithGaps, Label};
use super::{Cpu, Gen, Sealed, has_probes, seal};
use crate::chain::counters::{BYTES, Layout, TICKS};
use crate::chain::plan::OTHER;
use crate::chain::{Count, PlanEdge, Exhausted, Options, Part, Plan, To};
use crate::check::Flow;
use crate::exec::Exec;
use crate::fault::Sites;
use crate::jit::CompileError;
use crate::jit::live::Facts;

/// Where the frame's words are.
const CTX: i32 = ROUNDS_IN_CHAIN - 8;
const COUNTERS: i32 = CTX - 8;
const BUDGET: i32 = COUNTERS - 8;
const TIME: i32 = BUDGET - 8;
const BOUNDS: i32 = TIME - 8;

/// Most targets that are found by comparing; a table of jumps finds more.
const COMPARED: usize = 3;
/// Bytes of a jump in a table, as a power of two.
const ROW: u8 = 3;

/// Generates a chain; the parts are the programs of the plan's steps.
pub(crate) fn compile(
    plan: &Plan,
    parts: &[Part<'_>],
    options: &Options,
    cpu: Cpu,
) -> Result<Exec, CompileError> {
    let flows = parts
        .iter()
        .map(|p| Flow::of(p.insns, p.env))
        .collect::<Result<Vec<_>, _>>()
        .map_err(CompileError::Malformed)?;
    if let ([step], [part], [flow]) = (&*plan.steps, parts, &*flows)
        && options.count == Count::Off
        && step.edges.iter().all(|edge| edge.to == To::Keep)
    {
        // Nothing is done besides: the program itself is the chain.
        return Ok(super::compile(part.insns, part.env, flow, cpu)?.exec);
    }
    let facts: Vec<Facts> =
        parts.iter().zip(&flows).map(|(p, flow)| Facts::of(p.insns, p.env, flow)).collect();
    let watched = parts.iter().zip(&flows).any(|(p, flow)| has_probes(p.insns, flow));
    let sites = if watched { Sites::reserve() } else { None };
    let mut unit = Unit {
        plan,
        options,
        layout: Layout::of(plan),
        is_counted: plan.is_counted(),
        out: CodeWithGaps::new(0),
        steps: Vec::new(),
        end: Label::Local(0),
        bounds: Vec::new(),
        aside: Vec::new(),
        seldom: Vec::new(),
    };
    let mut programs = Vec::new();
    for ((part, flow), facts) in parts.iter().zip(&flows).zip(&facts) {
        let mut g = Gen::new(part.insns, part.env, flow, facts, cpu);
        g.watched = sites.is_some();
        programs.push((g, stands_alone(part, flow)));
    }
    unit.all(&mut programs)?;
    let Sealed { exec, .. } = seal(unit.out, sites)?;
    Ok(exec)
}

/// Tells whether a program must be a C function of its own.
fn stands_alone(part: &Part<'_>, flow: &Flow) -> bool {
    let calls_main = |(at, i): (usize, skep_isa::Insn)| {
        (i.is_local_call() || i.is_ld_imm64() && i.src() == op::PSEUDO_FUNC)
            && at as i64 + 1 + i64::from(i.imm) == 0
    };
    flow.may_tail_call(0) || flow.looks(part.insns, 0..part.insns.len()).any(calls_main)
}

impl Gen<'_> {
    /// Generates `exit` of a main function that is a part of a chain's.
    pub(super) fn leave(&mut self, at: usize, exit: Label) {
        let comes_next = at + 1 == self.insns.len() && self.probes.is_empty();
        if !comes_next {
            self.out.jump(None, exit);
        }
    }
}

/// What lies behind all programs: an edge that was refused, by step and number.
struct Seldom {
    label: Label,
    step: usize,
    edge: usize,
    /// The run has come to its budget, not the edge to its bound.
    is_budget: bool,
}

/// The state of generating a chain.
struct Unit<'a> {
    plan: &'a Plan,
    options: &'a Options,
    layout: Layout,
    /// Runs can come to the budget.
    is_counted: bool,
    out: CodeWithGaps,
    /// Where each step begins.
    steps: Vec<Label>,
    end: Label,
    /// Step and edge of each bound, in the order of their words.
    bounds: Vec<(usize, usize, u32)>,
    /// Edges with something to do on them, whose code lies behind all programs.
    aside: Vec<(Label, usize, Option<usize>)>,
    seldom: Vec<Seldom>,
}

impl Unit<'_> {
    fn all(&mut self, programs: &mut [(Gen<'_>, bool)]) -> Result<(), CompileError> {
        self.steps = self.plan.steps.iter().map(|_| self.out.local()).collect();
        self.end = self.out.local();
        for (step, s) in self.plan.steps.iter().enumerate() {
            for (edge, e) in s.edges.iter().enumerate() {
                self.bounds.extend(e.bound.map(|bound| (step, edge, bound)));
            }
        }
        let mut saved = 0;
        for (g, _) in programs.iter_mut().filter(|(_, alone)| !alone) {
            saved |= g.saved_by_main();
        }
        let size = self.enter(saved);
        let mut alone = Vec::new();
        for (step, (g, is_alone)) in programs.iter_mut().enumerate() {
            self.begin(step);
            if *is_alone {
                let entry = self.out.local();
                self.out.call(entry);
                alone.push((step, entry));
            } else {
                let exit = self.out.local();
                g.exit = Some(exit);
                self.write(g)?;
                self.out.bind(exit);
            }
            self.go_on(step);
        }
        self.leave(saved, size);
        for (label, step, way) in std::mem::take(&mut self.aside) {
            self.out.bind(label);
            self.follow(step, way, false);
        }
        for seldom in std::mem::take(&mut self.seldom) {
            self.refused(&seldom);
        }
        for (step, entry) in alone {
            let Some((g, _)) = programs.get_mut(step) else { continue };
            self.out.align(16);
            self.out.bind(entry);
            self.write(g)?;
        }
        if let Some((g, _)) = programs.iter_mut().find(|(g, _)| g.saves_vectors) {
            std::mem::swap(&mut g.out, &mut self.out);
            g.vector_saver();
            std::mem::swap(&mut g.out, &mut self.out);
        }
        Ok(())
    }

    /// Writes a program.
    fn write(&mut self, g: &mut Gen<'_>) -> Result<(), CompileError> {
        self.out.begin(g.insns.len());
        std::mem::swap(&mut g.out, &mut self.out);
        let done = g.program();
        std::mem::swap(&mut g.out, &mut self.out);
        done
    }

    /// Generates the start of the chain, and returns the size of the frame.
    fn enter(&mut self, saved: u16) -> i32 {
        let mut size = -BOUNDS - 8 + 8 * self.bounds.len() as i32;
        // Two words are pushed before; calls want a multiple of sixteen.
        if (size + 8 * saved.count_ones() as i32) % 16 != 0 {
            size += 8;
        }
        let e = &mut self.out.enc;
        e.push(reg::RBP);
        e.mov(true, reg::RBP, reg::RSP);
        e.group_imm(true, group::SUB, reg::RSP, size);
        for r in PRESERVED {
            if saved & 1 << r != 0 {
                e.push(r);
            }
        }
        e.store(Size::D, Mem::at(reg::RBP, CTX), reg::RDI);
        if self.options.count != Count::Off {
            e.store(Size::D, Mem::at(reg::RBP, COUNTERS), reg::RSI);
        }
        if self.is_counted {
            let left = self.plan.budget - 1;
            e.store_imm(Size::W, Mem::at(reg::RBP, BUDGET), left as i32);
        }
        for (n, (_, _, bound)) in self.bounds.iter().enumerate() {
            e.store_imm(Size::W, Mem::at(reg::RBP, bound_at(n)), *bound as i32);
        }
        if self.options.count == Count::Timed {
            self.time(reg::RAX);
            self.out.enc.store(Size::D, Mem::at(reg::RBP, TIME), reg::RAX);
        }
        size
    }

    /// Generates the end of the chain.
    fn leave(&mut self, saved: u16, size: i32) {
        self.out.bind(self.end);
        let e = &mut self.out.enc;
        for r in PRESERVED.iter().rev() {
            if saved & 1 << r != 0 {
                e.pop(*r);
            }
        }
        debug_assert!(size > 0, "the frame has words");
        e.leave();
        e.ret();
    }

    /// Reads the time-stamp counter into a register; changes rax and rdx.
    fn time(&mut self, to: u8) {
        let e = &mut self.out.enc;
        e.rdtsc();
        e.shift_imm(true, shift::SHL, reg::RDX, 32);
        e.group(true, group::OR, reg::RAX, reg::RDX);
        if to != reg::RAX {
            e.mov(true, to, reg::RAX);
        }
    }

    /// Generates what comes before a program: its argument, and how large the packet is.
    fn begin(&mut self, step: usize) {
        if let Some(label) = self.steps.get(step) {
            self.out.bind(*label);
        }
        let e = &mut self.out.enc;
        e.load(Size::D, reg::RDI, Mem::at(reg::RBP, CTX));
        let (Some(bytes), true) = (self.options.bytes, self.options.count != Count::Off) else {
            return;
        };
        e.load(Size::D, reg::RAX, Mem::at(reg::RDI, bytes.end));
        e.group_load(true, group::SUB, reg::RAX, Mem::at(reg::RDI, bytes.start));
        e.group_load(true, group::ADD, reg::RAX, Mem::at(reg::RDI, bytes.more));
        e.load(Size::D, reg::R11, Mem::at(reg::RBP, COUNTERS));
        let word = word(self.layout.step(step) + BYTES);
        e.group_store(Size::D, group::ADD, Mem::at(reg::R11, word), reg::RAX);
    }

    /// Generates what comes behind a program, whose verdict is in eax.
    fn go_on(&mut self, step: usize) {
        let mut has_slot = false;
        if self.options.count != Count::Off {
            if self.options.count == Count::Timed {
                self.out.enc.mov(false, reg::R9, reg::RAX);
                self.time(reg::R10);
                let e = &mut self.out.enc;
                e.mov(true, reg::R8, reg::R10);
                e.group_load(true, group::SUB, reg::R10, Mem::at(reg::RBP, TIME));
                e.store(Size::D, Mem::at(reg::RBP, TIME), reg::R8);
                e.mov(false, reg::RAX, reg::R9);
            }
            self.slot();
            has_slot = true;
            let base = self.layout.step(step);
            let e = &mut self.out.enc;
            e.load(Size::D, reg::R11, Mem::at(reg::RBP, COUNTERS));
            let index = Some((reg::RCX, 3));
            let of_verdict = Mem { base: reg::R11, index, disp: word(base) };
            e.group_store_imm(Size::D, group::ADD, of_verdict, 1);
            if self.options.count == Count::Timed {
                let ticks = Mem::at(reg::R11, word(base + TICKS));
                e.group_store(Size::D, group::ADD, ticks, reg::R10);
            }
        }
        self.choose(step, has_slot);
    }

    /// Finds the slot of the verdict: ecx.
    fn slot(&mut self) {
        let e = &mut self.out.enc;
        e.lea(false, reg::RCX, Mem::at(reg::RAX, 1));
        e.mov_imm(reg::RDX, OTHER as u64);
        e.group(false, group::CMP, reg::RCX, reg::RDX);
        e.cmov(cc::A, false, reg::RCX, reg::RDX);
    }

    /// Goes where the verdict leads.
    fn choose(&mut self, step: usize, has_slot: bool) {
        // Verdicts by what they lead to; `None` is that they stand.
        let edges = self.plan.steps.get(step).map(|s| s.edges.as_slice()).unwrap_or_default();
        let mut ways: Vec<(Option<usize>, u64)> = edges
            .iter()
            .enumerate()
            .filter(|(_, e)| e.to != To::Keep)
            .map(|(n, e)| (Some(n), e.on))
            .collect();
        let rest = !ways.iter().fold(0, |all, (_, on)| all | on) & crate::chain::plan::ALL;
        if rest != 0 {
            ways.push((None, rest));
        }
        // What most slots lead to needs no question.
        let most = (0..ways.len()).max_by_key(|n| ways.get(*n).map(|(_, on)| on.count_ones()));
        let Some(most) = most else { return };
        let (straight, _) = ways.remove(most);
        if ways.is_empty() {
            return self.follow(step, straight, true);
        }
        let is_table = ways.len() > COMPARED;
        let wants_slot = is_table || ways.iter().any(|(_, on)| on.count_ones() > 1);
        if wants_slot && !has_slot {
            self.slot();
        }
        let has_slot = has_slot || wants_slot;
        if is_table {
            self.table(step, straight, &ways);
            return;
        }
        // One question, and the next program comes behind it: it asks for the others.
        let next = To::Node(step + 1);
        if let [(Some(way), on)] = ways.as_slice()
            && edges.get(*way).is_some_and(|e| e.to == next)
        {
            let other = self.place(step, straight);
            let cc = self.ask(*on, has_slot);
            self.out.jump(Some(cc ^ 1), other);
            return self.follow(step, Some(*way), true);
        }
        for (way, on) in ways {
            let to = self.place(step, way);
            let cc = self.ask(on, has_slot);
            self.out.jump(Some(cc), to);
        }
        self.follow(step, straight, true);
    }

    /// Sets the flags by whether the verdict is one of these, and returns the condition.
    fn ask(&mut self, on: u64, has_slot: bool) -> u8 {
        let e = &mut self.out.enc;
        if on.count_ones() > 1 {
            e.mov_imm(reg::RDX, on);
            e.bit_test(reg::RDX, reg::RCX);
            return cc::B;
        }
        let slot = on.trailing_zeros() as i32;
        if has_slot {
            e.group_imm(false, group::CMP, reg::RCX, slot);
        } else if slot as usize == OTHER {
            // Verdicts from 32 on, but -1: one more is beyond 32.
            e.lea(false, reg::RCX, Mem::at(reg::RAX, 1));
            e.group_imm(false, group::CMP, reg::RCX, slot);
            return cc::AE;
        } else {
            e.group_imm(false, group::CMP, reg::RAX, slot - 1);
        }
        cc::E
    }

    /// Jumps by the slot of the verdict.
    fn table(&mut self, step: usize, straight: Option<usize>, ways: &[(Option<usize>, u64)]) {
        let table = self.out.local();
        let places: Vec<(Label, u64)> =
            ways.iter().map(|(way, on)| (self.place(step, *way), *on)).collect();
        let other = self.place(step, straight);
        self.out.address(reg::R11, table);
        let e = &mut self.out.enc;
        e.lea(true, reg::R11, Mem { base: reg::R11, index: Some((reg::RCX, ROW)), disp: 0 });
        e.jump_reg(reg::R11);
        self.out.align(1 << ROW);
        self.out.bind(table);
        for slot in 0..=OTHER {
            let to = places.iter().find(|(_, on)| on >> slot & 1 != 0);
            self.out.jump(None, to.map_or(other, |(label, _)| *label));
            self.out.align(1 << ROW);
        }
    }

    /// Returns where code can jump to take an edge; if there is something to do on it, that goes
    /// behind all programs.
    fn place(&mut self, step: usize, way: Option<usize>) -> Label {
        let edges = self.plan.steps.get(step).map(|s| s.edges.as_slice()).unwrap_or_default();
        match way.and_then(|n| edges.get(n)) {
            None | Some(PlanEdge { to: To::Keep, .. }) => self.end,
            Some(PlanEdge { to: To::Node(to), bound: None, .. }) if !self.is_counted => {
                self.steps.get(*to).copied().unwrap_or(self.end)
            }
            Some(_) => {
                let label = self.out.local();
                self.aside.push((label, step, way));
                label
            }
        }
    }

    /// Takes an edge. `comes_next`: what follows in the code is the next step.
    fn follow(&mut self, step: usize, way: Option<usize>, comes_next: bool) {
        let edges = self.plan.steps.get(step).map(|s| s.edges.as_slice()).unwrap_or_default();
        let Some((edge, &PlanEdge { to, .. })) = way.and_then(|n| Some((n, edges.get(n)?))) else {
            return self.finish(step, comes_next);
        };
        match to {
            To::Keep => self.finish(step, comes_next),
            To::End(verdict) => {
                self.out.enc.mov_imm(reg::RAX, u64::from(verdict));
                self.finish(step, comes_next);
            }
            To::Node(next) => {
                let bound = self.bounds.iter().position(|(s, e, _)| (*s, *e) == (step, edge));
                if let Some(n) = bound {
                    self.take(bound_at(n), step, edge, false);
                }
                if self.is_counted {
                    self.take(BUDGET, step, edge, true);
                }
                if !(comes_next && next == step + 1)
                    && let Some(label) = self.steps.get(next)
                {
                    self.out.jump(None, *label);
                }
            }
        }
    }

    /// Goes to the end of the chain, which lies behind the last step.
    fn finish(&mut self, step: usize, comes_next: bool) {
        if !(comes_next && step + 1 == self.plan.steps.len()) {
            self.out.jump(None, self.end);
        }
    }

    /// Takes one from a word of the frame; the edge is refused when nothing is left.
    fn take(&mut self, at: i32, step: usize, edge: usize, is_budget: bool) {
        let label = self.out.local();
        self.out.enc.group_store_imm(Size::W, group::SUB, Mem::at(reg::RBP, at), 1);
        self.out.jump(Some(cc::B), label);
        self.seldom.push(Seldom { label, step, edge, is_budget });
    }

    /// Generates the end of a run whose edge was refused.
    fn refused(&mut self, seldom: &Seldom) {
        self.out.bind(seldom.label);
        let e = &mut self.out.enc;
        if self.options.count != Count::Off {
            e.load(Size::D, reg::R11, Mem::at(reg::RBP, COUNTERS));
            let word = word(self.layout.refused(seldom.step, seldom.edge));
            e.group_store_imm(Size::D, group::ADD, Mem::at(reg::R11, word), 1);
        }
        if seldom.is_budget && self.plan.exhausted == Exhausted::Abort {
            e.mov_imm(reg::RAX, 0);
        }
        self.out.jump(None, self.end);
    }
}

/// Where the word of bound number `n` is.
fn bound_at(n: usize) -> i32 {
    BOUNDS - 8 * n as i32
}

/// The offset of a counter.
fn word(n: usize) -> i32 {
    (n * 8) as i32
}
