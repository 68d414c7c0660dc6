//! The short log: the path to a fault with its states, laid out like the kernel's; the whole one is
//! in [`trace`](crate::trace).

use crate::Info;
use crate::check::{Route, Walk};
use crate::reg::Kind;
use crate::reject::{Reason, Step};
use crate::show::{Names, Shown};
use crate::state::State;
use skep_isa::{Insn, op};
use skep_object::Linked;
use std::fmt::Write as _;

/// Steps kept of a path: its end is what matters.
const KEPT: usize = 400;

/// Makes steps of the instructions of a path, oldest first.
pub(crate) fn steps(prog: &Linked, trail: &[u32]) -> Vec<Step> {
    let tail = &trail[trail.len().saturating_sub(KEPT)..];
    let mut last_line = None;
    let mut steps = Vec::with_capacity(tail.len());
    for &insn in tail {
        let insn = insn as usize;
        let Some(&code) = prog.insns.get(insn) else { continue };
        let line = prog.line(insn).filter(|l| last_line != Some((&l.file, l.line))).cloned();
        if let Some(l) = prog.line(insn) {
            last_line = Some((&l.file, l.line));
        }
        let next = prog.insns.get(insn + 1).copied();
        steps.push(Step { insn, code, next, line, regs: Vec::new(), depth: 0, matters: false });
    }
    steps
}

/// Adds to the steps what the registers they read held, by walking the path once more; the state
/// before the last of them.
pub(crate) fn add_registers(
    steps: &mut [Step],
    names: Names<'_>,
    route: &Route,
    reason: &Reason,
    mut again: Walk<'_>,
) -> Option<State> {
    let mut last = None;
    let skipped = route.trail.len().saturating_sub(steps.len());
    let mut n = 0;
    again.retrace(route, reason, &mut |insn, state| {
        if let Some(step) = n
            .max(skipped)
            .checked_sub(skipped)
            .filter(|_| n >= skipped)
            .and_then(|i| steps.get_mut(i))
            && step.insn == insn
        {
            let (read, _) = crate::cfg::uses(step.code);
            step.depth = state.depth();
            step.regs = state
                .top()
                .regs
                .iter()
                .zip(0u8..)
                .filter(|(v, r)| read & (1 << r) != 0 && *r != op::FP && v.kind != Kind::Uninit)
                .map(|(reg, r)| (r, Shown { reg, frame: state.depth(), names }.to_string()))
                .collect();
        }
        n += 1;
        if n == route.trail.len() {
            last = Some(state.clone());
        }
    });
    last
}

/// Writes the steps as the kernel's log does.
pub(crate) fn write_steps(out: &mut String, prog: &Linked, steps: &[Step]) {
    for s in steps {
        if let Some(l) = &s.line {
            let file = l.file.rsplit('/').next().unwrap_or_default();
            let _ = writeln!(out, "; {} @ {file}:{}", l.text.trim(), l.line);
        }
        let _ = write!(out, "{}: {}", s.insn, text(prog, s.insn, s.code));
        if !s.regs.is_empty() {
            let regs: Vec<String> = s.regs.iter().map(|(r, v)| format!("R{r}={v}")).collect();
            let _ = write!(out, "  ; {}", regs.join(" "));
        }
        out.push('\n');
    }
}

/// Writes why a program was refused, and the line that ends every log.
pub(crate) fn write_reason(
    out: &mut String,
    reason: &Reason,
    before: Option<&str>,
    info: &Info,
    limit: u32,
) {
    if let Some(before) = before {
        let _ = writeln!(out, "{before}");
    }
    let _ = writeln!(out, "{reason}");
    if matches!(reason, Reason::Unreleased { .. }) {
        out.push_str("BPF_EXIT instruction in main prog would lead to reference leak\n");
    }
    write_summary(out, info, limit);
}

/// Writes the line that ends every log.
pub(crate) fn write_summary(out: &mut String, info: &Info, limit: u32) {
    let _ = writeln!(
        out,
        "processed {} insns (limit {limit}) max_states_per_insn {} total_states {} peak_states {} mark_read {}",
        info.processed, info.max_states_per_insn, info.total_states, info.peak_states, 0
    );
}

fn text(prog: &Linked, at: usize, insn: Insn) -> impl std::fmt::Display {
    skep_isa::text::Line { insn, next: prog.insns.get(at + 1).copied() }
}
