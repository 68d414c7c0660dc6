//! `skep prog verify`: what the verifier says of the programs in object files.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde_json::{Value as Json, json};
use skep::object::{LinkOptions, Object};
use skep::prototypes::Catalog;
use skep::verifier::{Options, verify, verify_logged};

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
    /// The way to the fault, as far as it matters.
    path: Vec<String>,
}

/// What the user asked for.
#[derive(Clone, Copy)]
pub struct Asked<'a> {
    /// Print every step of the verifier, as the kernel's log at level 2 does.
    pub log: bool,
    /// Refuse what Linux refuses users without privileges.
    pub strict: bool,
    /// The functions that programs are to be attached to.
    pub functions: Option<&'a Catalog>,
}

/// Most bytes of a log in a JSON document: its end, as the kernel keeps it when its buffer is too small.
const LOG_KEPT: usize = 16 << 20;

/// Prints a verdict for each program.
pub fn run(paths: &[PathBuf], reading: &ObjectArgs, asked: Asked<'_>, as_json: bool, printer: Printer) -> Result<u8> {
    let objects = Objects::read(paths, reading)?;
    let catalog = reading.btf_from.as_deref().map(Catalog::of_file);
    let asked = Asked { functions: catalog.as_ref(), ..asked };
    let how = objects.link_options();
    let all =
        paths.iter().zip(&objects.all).flat_map(|(path, object)| (0..object.programs.len()).map(move |i| (path.as_path(), object, i)));
    let mut rejected = false;
    if as_json {
        let mut verdicts = Vec::new();
        for (path, object, index) in all {
            let mut log = Tail::default();
            let verdict = verdict(path, object, &how, index, asked, asked.log.then_some(&mut log));
            rejected |= verdict.error.is_some();
            verdicts.push(verdict.json(asked.log.then_some(log)));
        }
        printer.json(Output::Stdout, &verdicts)?;
    } else {
        printer.data(Output::Stdout, |out| {
            for (path, object, index) in all {
                let mut log = Stream { out: &mut *out, failed: None };
                let verdict = verdict(path, object, &how, index, asked, asked.log.then_some(&mut log));
                log.failed.map_or(Ok(()), Err)?;
                rejected |= verdict.error.is_some();
                verdict.write(out)?;
            }
            Ok(())
        })?;
    }
    Ok(if rejected { FAILED } else { 0 })
}

/// Lets a log go out as it is written: it may be longer than memory.
struct Stream<'a> {
    out: &'a mut dyn Write,
    failed: Option<io::Error>,
}

impl std::fmt::Write for Stream<'_> {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.out.write_all(text.as_bytes()).map_err(|e| {
            self.failed = Some(e);
            std::fmt::Error
        })
    }
}

/// Keeps the end of a log.
#[derive(Default)]
struct Tail {
    bytes: VecDeque<u8>,
    /// Bytes no longer kept.
    cut: u64,
}

impl std::fmt::Write for Tail {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.bytes.extend(text.as_bytes());
        let over = self.bytes.len().saturating_sub(LOG_KEPT);
        self.bytes.drain(..over);
        self.cut += over as u64;
        Ok(())
    }
}

fn verdict(
    path: &Path,
    object: &Object,
    how: &LinkOptions<'_>,
    index: usize,
    asked: Asked<'_>,
    log: Option<&mut dyn std::fmt::Write>,
) -> Verdict {
    let mut verdict = Verdict {
        object: path.display().to_string(),
        program: String::new(),
        section: String::new(),
        kind: None,
        insns: 0,
        error: None,
        hint: None,
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
            options.strict = asked.strict;
            options.allow_uninit_stack = !asked.strict;
            options.target = how.target.map(|t| t.btf().clone());
            let judged = match log {
                Some(log) => verify_logged(&linked, &options, log),
                None => verify(&linked, &options),
            };
            let rejection = match (judged, asked.functions) {
                (Ok(proof), Some(functions)) => functions.judge(&proof, &options).err(),
                (judged, _) => judged.err(),
            };
            if let Some(rejection) = rejection {
                verdict.error = Some(rejection.to_string());
                verdict.hint.clone_from(&rejection.hint);
                verdict.path = crate::rejection::path(&rejection);
            }
        }
    }
    verdict
}

impl Verdict {
    fn json(&self, log: Option<Tail>) -> Json {
        let mut out = json!({
            "object": self.object, "program": self.program, "section": self.section, "type": self.kind,
            "verdict": if self.error.is_some() { "reject" } else { "accept" }, "error": self.error, "insns": self.insns,
        });
        if let Some(mut log) = log {
            out["log"] = json!(String::from_utf8_lossy(log.bytes.make_contiguous()));
            out["log_cut"] = json!(log.cut);
        }
        out
    }

    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let word = if self.error.is_some() { "reject" } else { "accept" };
        writeln!(out, "{word}  {}: {} ({}, {} insns)", self.object, self.program, self.section, self.insns)?;
        if let Some(error) = &self.error {
            writeln!(out, "        {error}")?;
        }
        for step in &self.path {
            writeln!(out, "        {step}")?;
        }
        if let Some(hint) = &self.hint {
            writeln!(out, "        hint: {hint}")?;
        }
        Ok(())
    }
}
