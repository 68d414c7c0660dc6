//! Why an object cannot be loaded or attached, in words: for a rejected program, with the shortest
//! path to the error.

use skep::isa::text;
use skep::link::AttachError;
use skep::load::LoadError;
use skep::verifier::{Rejection, Step};

use crate::failure::{ENVIRONMENT, FAILED, Failure};
use crate::objects;

/// Most steps shown, the last ones.
const SHOWN: usize = 24;

/// Says why an object cannot be loaded; `object` is the file's name.
pub fn load_failure(error: LoadError, object: &str) -> Failure {
    match error {
        LoadError::Rejected(rejection) => {
            let mut failure = Failure::failed(rejection.to_string());
            failure.details = path(&rejection);
            let show = format!("`skep prog verify --to-run --log {object}` prints the whole log");
            match &rejection.hint {
                Some(hint) => failure.hint(format!("{hint}; {show}")),
                None => failure.hint(show),
            }
        }
        LoadError::Link(e) => {
            let hint = objects::hint(&e);
            let inner = Failure::from(e);
            Failure {
                message: format!("`{object}`: {}", inner.message),
                status: FAILED,
                hint,
                ..inner
            }
        }
        LoadError::Misfit { ref why, .. } => {
            let hint = why.hint();
            Failure { status: FAILED, ..Failure::from(error) }.hint(hint)
        }
        e @ (LoadError::Helper { .. } | LoadError::NoPrograms) => {
            let inner = Failure::from(e);
            Failure { message: format!("`{object}`: {}", inner.message), status: FAILED, ..inner }
        }
        e => Failure::from(e),
    }
}

/// Says why a program cannot be attached; `object` is the file's name.
pub fn attach_failure(error: AttachError, object: &str) -> Failure {
    match error {
        AttachError::Files(e) => load_failure(e, object),
        AttachError::NoTarget { .. } => {
            Failure { status: ENVIRONMENT, ..Failure::failed(format!("`{object}`: {error}")) }
                .hint("name the functions with `--attach PROGRAM=PATTERN`")
        }
        e => Failure { status: ENVIRONMENT, ..Failure::failed(format!("`{object}`: {e}")) },
    }
}

/// Renders the steps that matter, with source lines, the registers, and where jumps went.
pub fn path(rejection: &Rejection) -> Vec<String> {
    let steps = rejection.path();
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
            out.push(format!(
                "; {}:{}: {}",
                crate::report::file_name(&l.file),
                l.line,
                l.text.trim()
            ));
        }
        told = line;
        out.push(shown_step(step, steps.get(n + 1)));
    }
    out
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
