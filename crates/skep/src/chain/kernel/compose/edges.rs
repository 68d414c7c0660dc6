//! What is behind a program: its verdict is compared, and an edge taken.

use skep_isa::op;
use skep_vm::chain::counters::STEP;
use skep_vm::chain::plan::{ALL, OTHER};
use skep_vm::chain::{Exhausted, PlanEdge, To};

use super::super::assemble::Label;
use super::{Composer, R};

impl Composer<'_> {
    /// Compares the verdict in r0 and goes where it leads.
    pub(super) fn follow(&mut self, step: usize, first: usize) {
        let Some(edges) = self.plan.steps.get(step).map(|s| s.edges.as_slice()) else { return };
        let rest = edges.iter().position(|e| e.on >> OTHER & 1 != 0);
        let (keep, mut keeps) = (self.asm.label(), false);
        let mut later = Vec::new();
        for (n, edge) in edges.iter().enumerate().filter(|(n, _)| Some(*n) != rest) {
            let to = match (edge.to, self.checks(edge)) {
                (To::Node(to), false) => self.steps.get(to).copied(),
                (To::Keep, _) => None,
                _ => {
                    let label = self.asm.label();
                    later.push((n, label));
                    Some(label)
                }
            };
            keeps |= to.is_none();
            self.compare(edge.on, to.unwrap_or(keep));
        }
        match rest.and_then(|n| Some((n, edges.get(n)?))) {
            Some((n, edge)) => {
                // What is in no edge stands.
                let open = ALL & !edges.iter().fold(0, |all, e| all | e.on);
                keeps |= open != 0;
                self.compare(open, keep);
                self.take(step, n, edge, first);
            }
            None => {
                keeps = false;
                self.asm.place(keep);
                self.exit();
            }
        }
        for (n, label) in later {
            self.asm.place(label);
            if let Some(edge) = edges.get(n) {
                self.take(step, n, edge, first);
            }
        }
        if keeps {
            self.asm.place(keep);
            self.exit();
        }
    }

    /// Tells whether an edge must be checked when it is taken.
    fn checks(&self, edge: &PlanEdge) -> bool {
        matches!(edge.to, To::Node(_)) && (edge.bound.is_some() || self.plan.is_counted())
    }

    /// Jumps if the verdict is of a set.
    fn compare(&mut self, on: u64, to: Label) {
        const EQUAL: u8 = op::JMP32 | op::JEQ;
        if on & 1 != 0 {
            self.asm.branch(EQUAL, R[0], -1, to);
        }
        let mut verdict = 0;
        // Slot n + 1 is verdict n.
        while verdict < OTHER as i32 - 1 {
            let is_in = |v: i32| v < OTHER as i32 - 1 && on >> (v + 1) & 1 != 0;
            if !is_in(verdict) {
                verdict += 1;
                continue;
            }
            let last = (verdict..).take_while(|v| is_in(*v)).last().unwrap_or(verdict);
            if last == verdict {
                self.asm.branch(EQUAL, R[0], verdict, to);
            } else if verdict == 0 {
                self.asm.branch(op::JMP32 | op::JLE, R[0], last, to);
            } else {
                let past = self.asm.label();
                self.asm.branch(op::JMP32 | op::JLT, R[0], verdict, past);
                self.asm.branch(op::JMP32 | op::JLE, R[0], last, to);
                self.asm.place(past);
            }
            verdict = last + 1;
        }
    }

    /// Takes an edge, unless its bound or the budget is used up.
    fn take(&mut self, step: usize, n: usize, edge: &PlanEdge, first: usize) {
        let to = match edge.to {
            To::Keep => return self.exit(),
            To::End(verdict) => {
                self.asm.push(op::ALU | op::MOV | op::K, R[0], 0, 0, verdict as i32);
                return self.exit();
            }
            To::Node(to) => to,
        };
        let budget = self.plan.is_counted().then_some(self.left);
        let bound = self.bounds.get(&(step, n)).copied();
        let refused = self.asm.label();
        let exhausted = self.asm.label();
        for (off, out) in [(bound, refused), (budget, exhausted)] {
            let Some(off) = off else { continue };
            self.load(R[1], off);
            self.asm.branch(op::JMP | op::JEQ, R[1], 0, out);
            self.alu(op::ADD, R[1], -1);
            self.save(off, R[1]);
        }
        if let Some(label) = self.steps.get(to).copied() {
            self.asm.jump(label);
        }
        for (off, label, aborts) in
            [(bound, refused, false), (budget, exhausted, self.plan.exhausted == Exhausted::Abort)]
        {
            if off.is_none() {
                continue;
            }
            self.asm.place(label);
            if self.counts() {
                self.load(R[1], self.counters);
                self.alu(op::MOV, R[2], 1);
                self.add_to(first + STEP + n);
            }
            if aborts {
                self.asm.push(op::ALU | op::MOV | op::K, R[0], 0, 0, 0);
            }
            self.exit();
        }
    }
}
