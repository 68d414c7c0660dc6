//! The path to a fault as lines for people.

use skep_isa::text;

use super::{Rejection, Step};

/// Most steps shown, the last ones.
const SHOWN: usize = 24;

impl Rejection {
    /// Renders the steps of [`path`](Self::path) that matter: source lines, instructions, the
    /// registers they touch, and where jumps went.
    #[must_use]
    pub fn shown_path(&self) -> Vec<String> {
        let steps = self.path();
        let kept: Vec<usize> = (0..steps.len()).filter(|n| steps[*n].matters).collect();
        let shown = &kept[kept.len().saturating_sub(SHOWN)..];
        let mut out = Vec::new();
        if shown.len() < kept.len() {
            out.push(format!("({} steps before)", kept.len() - shown.len()));
        }
        let mut told = None;
        for &n in shown {
            let step = &steps[n];
            // The line stands at the first step that has it.
            let line = (0..=n).rev().find(|m| steps[*m].line.is_some());
            if let Some(l) = line.filter(|_| line != told).and_then(|m| steps[m].line.as_ref()) {
                let file = l.file.rsplit('/').next().unwrap_or(&l.file);
                out.push(format!("; {file}:{}: {}", l.line, l.text.trim()));
            }
            told = line;
            out.push(shown_step(step, steps.get(n + 1)));
        }
        out
    }
}

fn shown_step(step: &Step, after: Option<&Step>) -> String {
    let regs: Vec<String> = step.regs.iter().map(|(n, what)| format!("R{n}={what}")).collect();
    let line = text::Line { insn: step.code, next: step.next }.to_string();
    let way = match after {
        Some(after) if line.starts_with("if ") => {
            if after.insn == step.insn + 1 {
                "  (not taken)"
            } else {
                "  (taken)"
            }
        }
        _ => "",
    };
    format!("{:>4}: {line:40} {}{way}", step.insn, regs.join(" ")).trim_end().to_owned()
}
