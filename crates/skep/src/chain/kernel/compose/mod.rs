//! Programs of a chain become one program: pure code, which asks no kernel.
//!
//! ```text
//! main:     save the context; find the counters; set budget and bounds
//! node 1:   r1 = context; count bytes
//!           the instructions of the program's main function; `exit` is a jump to:
//! behind 1: count the verdict; compare it; jump to node 2, 3 … or exit
//! node 2:   …
//! f, g, …   the other functions of the programs, once for each program
//! ```
//!
//! So a chain is one frame, and going from program to program takes a jump instead of a call and a
//! return, which are dear where the kernel defends against speculation. What all programs need is
//! on the stack, below the deepest frame of them. A program that makes tail calls is a function
//! that main calls, because a tail call ends the function that makes it; so is one whose stack would
//! leave too little to the others ([`super::stack`]).

mod counting;
mod edges;

use std::collections::BTreeMap;

use skep_isa::helper::id as helper;
use skep_isa::{Insn, op};
use skep_object::{Line, Linked};
use skep_vm::chain::{Count, Plan, To};

use super::assemble::{Assembler, Label, TooFar};
use super::counters::Pages;
use super::error::KernelChainError as Error;
use super::stack::called;

/// A program of a chain.
#[derive(Clone, Copy)]
pub struct Part<'a> {
    /// What it is called in messages.
    pub label: &'a str,
    /// Steps with the same number have the same instructions and maps.
    pub code: usize,
    pub linked: &'a Linked,
    /// Stack bytes of its main function, and of its longest chain of calls.
    pub stack: (u32, u32),
    /// Which map of the whole each of its maps is.
    pub maps: &'a [usize],
}

/// One program, whose references to maps are indices.
pub struct Composed {
    pub insns: Vec<Insn>,
    /// First instruction and name of each function, main first.
    pub functions: Vec<(usize, String)>,
    pub lines: Vec<Line>,
    /// First instruction of each range, and the step that it belongs to; `None` is nobody's.
    pub ranges: Vec<(usize, Option<usize>)>,
}

/// Index of the counters among the maps of a chain that counts.
pub const COUNTERS: usize = 0;

/// Most functions of a program, `BPF_MAX_SUBPROGS`.
const MOST_FUNCTIONS: usize = 256;

/// Puts the programs of a plan together; `parts` are those of the steps. `frags`: packets may have
/// several buffers.
pub fn compose(
    plan: &Plan,
    parts: &[Part<'_>],
    count: Count,
    frags: bool,
) -> Result<Composed, Error> {
    plan.check().map_err(Error::Plan)?;
    let built = Composer::new(plan, parts, count, frags, false)?.run()?;
    match built {
        Ok(composed) => Ok(composed),
        Err(TooFar) => {
            let long = Composer::new(plan, parts, count, frags, true)?.run()?;
            long.map_err(|TooFar| Error::TooLong)
        }
    }
}

/// A part's main function is the first one.
fn main_len(linked: &Linked) -> usize {
    linked.subprogs.get(1).map_or(linked.insns.len(), |s| s.start)
}

/// A call whose function has no place yet: where, the block, the instruction in its program.
struct Call {
    at: usize,
    block: (usize, bool),
    target: usize,
}

struct Composer<'a> {
    plan: &'a Plan,
    parts: &'a [Part<'a>],
    count: Count,
    frags: bool,
    asm: Assembler,
    pages: Pages,
    /// Steps whose programs are functions that main calls.
    called: Vec<bool>,
    /// Offsets from the frame pointer.
    ctx: i32,
    counters: i32,
    left: i32,
    clock: i32,
    bounds: BTreeMap<(usize, usize), i32>,
    steps: Vec<Label>,
    calls: Vec<Call>,
    lines: BTreeMap<usize, Line>,
    ranges: Vec<(usize, Option<usize>)>,
}

/// Registers, as everybody numbers them.
const R: [u8; 4] = [0, 1, 2, 3];

impl<'a> Composer<'a> {
    fn new(
        plan: &'a Plan,
        parts: &'a [Part<'a>],
        count: Count,
        frags: bool,
        long: bool,
    ) -> Result<Self, Error> {
        if parts.len() != plan.steps.len() {
            return Err(Error::Parts);
        }
        let called = called(plan, parts, count)?;
        let inline = parts.iter().zip(&called).filter(|(_, called)| !**called);
        let deepest = inline.map(|(p, _)| p.stack.0).max().unwrap_or(0);
        let mut bottom = -(deepest.next_multiple_of(8) as i32);
        let mut slot = |wanted: bool| {
            bottom -= if wanted { 8 } else { 0 };
            bottom
        };
        let counts = count != Count::Off;
        let ctx = slot(true);
        let counters = slot(counts);
        let clock = slot(count == Count::Timed);
        let left = slot(plan.is_counted());
        let mut bounds = BTreeMap::new();
        for (step, s) in plan.steps.iter().enumerate() {
            for (n, edge) in s.edges.iter().enumerate() {
                if edge.bound.is_some() && matches!(edge.to, To::Node(_)) {
                    bounds.insert((step, n), slot(true));
                }
            }
        }
        let mut asm = Assembler::new(long);
        let steps = plan.steps.iter().map(|_| asm.label()).collect();
        let (lines, ranges) = (BTreeMap::new(), Vec::new());
        let (pages, calls) = (Pages::of(plan), Vec::new());
        Ok(Self {
            plan,
            parts,
            count,
            frags,
            asm,
            pages,
            called,
            ctx,
            counters,
            left,
            clock,
            bounds,
            steps,
            calls,
            lines,
            ranges,
        })
    }

    fn counts(&self) -> bool {
        self.count != Count::Off
    }

    fn run(mut self) -> Result<Result<Composed, TooFar>, Error> {
        self.begin();
        for (step, part) in self.parts.iter().enumerate() {
            let label = self.steps.get(step).copied();
            if let Some(label) = label {
                self.asm.drop_jump_to_next(label);
                self.asm.place(label);
            }
            self.ranges.push((self.asm.insns.len(), Some(step)));
            self.step(step, part);
        }
        let mut functions = vec![(0, "chain".to_owned())];
        let calls = std::mem::take(&mut self.calls);
        let blocks = self.blocks(&calls, &mut functions)?;
        let mut insns = match self.asm.finish() {
            Ok(insns) => insns,
            Err(e) => return Ok(Err(e)),
        };
        for call in calls {
            let start = blocks.get(&call.block).copied().unwrap_or(0);
            if let Some(insn) = insns.get_mut(call.at) {
                insn.imm = (start + call.target) as i32 - call.at as i32 - 1;
            }
        }
        if insns.len() > op::MAX_INSNS {
            return Err(Error::TooLong);
        }
        Ok(Ok(Composed {
            insns,
            functions,
            lines: self.lines.into_values().collect(),
            ranges: self.ranges,
        }))
    }

    fn line(&mut self, file: &str, text: String) {
        let insn = self.asm.insns.len();
        let line = Line { insn, file: file.to_owned(), line: 1, column: 0, text };
        self.lines.entry(insn).or_insert(line);
    }

    /// `*(fp + off) = reg`, or back.
    fn save(&mut self, off: i32, reg: u8) {
        self.asm.push(op::STX | op::MEM | op::DW, op::FP, reg, off, 0);
    }

    fn load(&mut self, reg: u8, off: i32) {
        self.asm.push(op::LDX | op::MEM | op::DW, reg, op::FP, off, 0);
    }

    fn store_imm(&mut self, off: i32, imm: u32) {
        self.asm.push(op::ST | op::MEM | op::DW, op::FP, 0, off, imm as i32);
    }

    fn alu(&mut self, operation: u8, dst: u8, imm: i32) {
        self.asm.push(op::ALU64 | operation | op::K, dst, 0, 0, imm);
    }

    fn alu_reg(&mut self, operation: u8, dst: u8, src: u8) {
        self.asm.push(op::ALU64 | operation | op::X, dst, src, 0, 0);
    }

    fn exit(&mut self) {
        self.asm.insns.push(Insn::exit());
    }

    fn begin(&mut self) {
        self.line("chain", "the chain begins".to_owned());
        self.ranges.push((0, None));
        self.save(self.ctx, R[1]);
        if self.plan.is_counted() {
            self.store_imm(self.left, (self.plan.budget - 1).min(i32::MAX as u32));
        }
        let edges = |(step, n): &(usize, usize)| self.plan.steps.get(*step)?.edges.get(*n)?.bound;
        let bounds: Vec<_> =
            self.bounds.iter().filter_map(|(at, off)| Some((*off, edges(at)?))).collect();
        for (off, bound) in bounds {
            self.store_imm(off, bound.min(i32::MAX as u32));
        }
        if self.counts() && self.pages.pages == 1 {
            self.find_page(0);
        }
    }

    fn step(&mut self, step: usize, part: &Part<'_>) {
        let behind = self.asm.label();
        self.line(part.label, format!("node {} begins", part.label));
        let (page, first) = self.pages.step(step);
        if self.counts() {
            if self.pages.pages > 1 {
                self.find_page(page);
            }
            self.size(first);
            if self.count == Count::Timed {
                self.asm.insns.push(Insn::call(helper::KTIME_GET_NS));
                self.save(self.clock, R[0]);
            }
        }
        self.load(R[1], self.ctx);
        if self.called.get(step) == Some(&true) {
            let (at, block) = (self.asm.insns.len(), (part.code, true));
            self.calls.push(Call { at, block, target: 0 });
            self.asm.push(op::CALL, 0, op::PSEUDO_CALL, 0, 0);
        } else {
            self.body(part, behind);
        }
        self.line(part.label, format!("node {} ends", part.label));
        self.asm.place(behind);
        if self.count == Count::Timed {
            // The verdict waits where the time was.
            self.load(R[2], self.clock);
            self.save(self.clock, R[0]);
            self.load(R[1], self.counters);
            self.take_time(first);
        }
        if self.counts() {
            self.verdict(first);
        }
        self.follow(step, first);
    }

    /// Copies the main function of a program.
    fn body(&mut self, part: &Part<'_>, behind: Label) {
        let linked = part.linked;
        let (base, len) = (self.asm.insns.len(), main_len(linked));
        self.copy_lines(linked, 0..len, base);
        let mut second = false;
        for (n, insn) in linked.insns.iter().enumerate().take(len) {
            let is_second = second;
            second = !second && insn.is_ld_imm64();
            if is_second {
                self.asm.insns.push(*insn);
            } else if insn.code == op::EXIT {
                self.asm.jump(behind);
            } else {
                let refers = insn.is_ld_imm64() && insn.src() == op::PSEUDO_FUNC;
                if refers || insn.is_local_call() {
                    let target = (n as i64 + 1 + i64::from(insn.imm) - len as i64) as usize;
                    let (at, block) = (self.asm.insns.len(), (part.code, false));
                    self.calls.push(Call { at, block, target });
                }
                self.copy(insn, part);
            }
        }
    }

    /// Copies an instruction, with the maps of the whole.
    fn copy(&mut self, insn: &Insn, part: &Part<'_>) {
        let mut new = *insn;
        if insn.is_ld_imm64() && matches!(insn.src(), op::PSEUDO_MAP_IDX | op::PSEUDO_MAP_IDX_VALUE)
        {
            let index = part.maps.get(insn.imm as usize).copied().unwrap_or(usize::MAX);
            new.imm = i32::try_from(index).unwrap_or(-1);
        }
        self.asm.insns.push(new);
    }

    fn copy_lines(&mut self, linked: &Linked, range: std::ops::Range<usize>, to: usize) {
        for line in linked.lines.iter().filter(|l| range.contains(&l.insn)) {
            let insn = to + (line.insn - range.start);
            self.lines.insert(insn, Line { insn, ..line.clone() });
        }
    }

    /// Places the functions that are called behind main, once for each program.
    fn blocks(
        &mut self,
        calls: &[Call],
        functions: &mut Vec<(usize, String)>,
    ) -> Result<BTreeMap<(usize, bool), usize>, Error> {
        let mut placed = BTreeMap::new();
        for key in calls.iter().map(|c| c.block) {
            let (code, whole) = key;
            let part = self.parts.iter().enumerate().find(|(_, p)| p.code == code);
            let Some((step, part)) = part.filter(|_| !placed.contains_key(&key)) else { continue };
            let from = if whole { 0 } else { main_len(part.linked) };
            let start = self.asm.insns.len();
            placed.insert(key, start);
            self.ranges.push((start, Some(step)));
            for f in part.linked.subprogs.iter().filter(|f| f.start >= from) {
                let at = start + f.start - from;
                functions.push((at, f.name.clone()));
                let (file, text) = (part.label.to_owned(), format!("{} begins", f.name));
                self.lines.insert(at, Line { insn: at, file, line: 1, column: 0, text });
            }
            self.copy_lines(part.linked, from..part.linked.insns.len(), start);
            let mut second = false;
            for insn in part.linked.insns.iter().skip(from) {
                let is_second = second;
                second = !second && insn.is_ld_imm64();
                if is_second {
                    self.asm.insns.push(*insn);
                } else {
                    // Distances inside a block stay as they are.
                    self.copy(insn, part);
                }
            }
        }
        if functions.len() > MOST_FUNCTIONS {
            return Err(Error::Functions { functions: functions.len(), most: MOST_FUNCTIONS });
        }
        Ok(placed)
    }
}
