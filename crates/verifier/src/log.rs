//! The log: the walked path with its states, laid out like the kernel's.

use crate::Info;
use crate::reject::Step;
use skep_isa::{Insn, op};
use skep_object::Linked;
use std::fmt::Write as _;

/// Steps kept of a path: its end is what matters.
const KEPT: usize = 400;

/// Makes steps of the instructions of a path, oldest first; `regs` tells what is known of a register at the last one.
pub(crate) fn steps(prog: &Linked, trail: &[u32], regs: impl Fn(u8) -> Option<String>) -> Vec<Step> {
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
        steps.push(Step { insn, code, line, regs: Vec::new() });
    }
    if let Some(last) = steps.last_mut() {
        let (read, written) = crate::cfg::uses(last.code);
        let touched = if last.code.code == op::CALL { read } else { read | written };
        last.regs = (0..op::REGS as u8).filter(|r| touched & (1 << r) != 0).filter_map(|r| Some((r, regs(r)?))).collect();
    }
    steps
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
