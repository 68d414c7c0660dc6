//! `skep prog verify`: what the verifier says of the programs in object files.

use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::{Value as Json, json};
use skep::isa::{Insn, text};
use skep::object::{LinkOptions, Object};
use skep::verifier::{Options, Rejection, verify};

use crate::args::ObjectArgs;
use crate::failure::{FAILED, Result};
use crate::objects::{self, Objects};
use crate::printer::{Output, Printer};

/// What became of one program.
struct Verdict {
    object: String,
    program: String,
    section: String,
    kind: Option<&'static str>,
    insns: usize,
    /// Why it was refused.
    error: Option<String>,
    hint: Option<String>,
    log: String,
    /// The way to the fault.
    path: Vec<String>,
}

/// What the user asked for.
#[derive(Clone, Copy)]
pub struct Asked {
    /// Print the log.
    pub log: bool,
    /// Refuse what Linux refuses users without privileges.
    pub strict: bool,
}

/// Prints a verdict for each program.
pub fn run(paths: &[PathBuf], reading: &ObjectArgs, asked: Asked, as_json: bool, printer: Printer) -> Result<u8> {
    let mut verdicts = Vec::new();
    let objects = Objects::read(paths, reading)?;
    for (path, object) in paths.iter().zip(&objects.all) {
        for index in 0..object.programs.len() {
            verdicts.push(verdict(path, object, &objects.link_options(), index, asked));
        }
    }
    if as_json {
        printer.json(Output::Stdout, &verdicts.iter().map(|v| v.json(asked.log)).collect::<Json>())?;
    } else {
        printer.data(Output::Stdout, |out| verdicts.iter().try_for_each(|v| v.write(out, asked.log)))?;
    }
    Ok(if verdicts.iter().any(|v| v.error.is_some()) { FAILED } else { 0 })
}

fn verdict(path: &Path, object: &Object, how: &LinkOptions<'_>, index: usize, asked: Asked) -> Verdict {
    let mut verdict = Verdict {
        object: path.display().to_string(),
        program: String::new(),
        section: String::new(),
        kind: None,
        insns: 0,
        error: None,
        hint: None,
        log: String::new(),
        path: Vec::new(),
    };
    if let Some(p) = object.programs.get(index) {
        (verdict.program, verdict.section) = (p.name.clone(), p.section.clone());
        verdict.kind = p.def.map(|d| d.prog.name());
    }
    // Judged, not run: what only the kernel has counts as known.
    let how = &LinkOptions { known_kfuncs: true, ..*how };
    match object.link_with(index, how) {
        Err(e) => (verdict.error, verdict.hint) = (Some(e.to_string()), objects::hint(&e)),
        Ok(linked) => {
            verdict.insns = linked.insns.len();
            verdict.kind = Some(linked.prog_type.name());
            let mut options = Options::default();
            options.log_level = u32::from(asked.log);
            options.strict = asked.strict;
            options.allow_uninit_stack = !asked.strict;
            options.target = how.target.map(|t| t.btf().clone());
            match verify(&linked, &options) {
                Ok(proof) => verdict.log = proof.log().to_owned(),
                Err(rejection) => {
                    verdict.error = Some(rejection.to_string());
                    verdict.hint.clone_from(&rejection.hint);
                    verdict.log = rejection.log().to_owned();
                    verdict.path = steps(&rejection, &linked.insns);
                }
            }
        }
    }
    verdict
}

/// The last instructions before the fault, with source lines and registers.
fn steps(rejection: &Rejection, insns: &[Insn]) -> Vec<String> {
    let mut out = Vec::new();
    for step in rejection.path() {
        if let Some(line) = &step.line {
            let file = crate::report::file_name(&line.file);
            out.push(format!("; {file}:{}: {}", line.line, line.text.trim()));
        }
        let regs: Vec<String> = step.regs.iter().map(|(n, what)| format!("R{n}={what}")).collect();
        let line = text::Line { insn: step.code, next: insns.get(step.insn + 1).copied() };
        out.push(format!("{:>4}: {:40} {}", step.insn, line.to_string(), regs.join(" ")).trim_end().to_owned());
    }
    out
}

impl Verdict {
    fn json(&self, log: bool) -> Json {
        let mut out = json!({
            "object": self.object, "program": self.program, "section": self.section, "type": self.kind,
            "verdict": if self.error.is_some() { "reject" } else { "accept" }, "error": self.error, "insns": self.insns,
        });
        if log {
            out["log"] = json!(self.log);
        }
        out
    }

    fn write(&self, out: &mut dyn Write, log: bool) -> std::io::Result<()> {
        let word = if self.error.is_some() { "reject" } else { "accept" };
        writeln!(out, "{word}  {}: {} ({}, {} insns)", self.object, self.program, self.section, self.insns)?;
        if let Some(error) = &self.error {
            writeln!(out, "        {error}")?;
        }
        if let Some(hint) = &self.hint {
            writeln!(out, "        hint: {hint}")?;
        }
        if log {
            for step in &self.path {
                writeln!(out, "    {step}")?;
            }
            if !self.log.is_empty() {
                writeln!(out, "{}", self.log.trim_end())?;
            }
        }
        Ok(())
    }
}
