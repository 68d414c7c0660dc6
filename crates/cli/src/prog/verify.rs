//! `skep prog verify`: whether the verifier accepts the programs of object files, and whether skep
//! can run them.
//!
//! These are two questions: a program may be as safe as Linux requires and still need what only the
//! kernel has. The first is answered with everything that the kernel knows; the second as loading
//! answers it ([`DryRun`]).

use std::collections::VecDeque;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde_json::{Value as Json, json};
use skep::load::LoadError;
use skep::object::{LinkError, LinkOptions, Object};
use skep::prototypes::Catalog;
use skep::prove::DryRun;
use skep::verifier::{Options, Rejection, verify, verify_logged};

use crate::args::ObjectArgs;
use crate::failure::{FAILED, Result};
use crate::objects::{self, Objects};
use crate::printer::{Output, Printer};

/// The answers for one program.
struct Verdict {
    object: String,
    program: String,
    section: String,
    kind: Option<&'static str>,
    insns: usize,
    /// Why the verifier refuses it.
    refused: Option<Refusal>,
    /// Why skep cannot run it.
    unsupported: Option<Refusal>,
}

/// Why the answer is no.
struct Refusal {
    error: String,
    hint: Option<String>,
    /// The shortest path to the error.
    path: Vec<String>,
}

impl Refusal {
    fn link(error: &LinkError) -> Self {
        Self { error: error.to_string(), hint: objects::hint(error), path: Vec::new() }
    }

    fn rejection(rejection: &Rejection) -> Self {
        Self {
            error: rejection.to_string(),
            hint: rejection.hint.clone(),
            path: rejection.shown_path(),
        }
    }

    fn load(error: &LoadError) -> Self {
        match error {
            LoadError::Link(e) => Self::link(e),
            LoadError::Rejected(r) => Self::rejection(r),
            LoadError::Misfit { why, .. } => Self {
                error: error.to_string(),
                hint: Some(why.hint().to_owned()),
                path: Vec::new(),
            },
            e => Self { error: e.to_string(), hint: None, path: Vec::new() },
        }
    }

    fn write(&self, out: &mut dyn Write, before: &str) -> io::Result<()> {
        writeln!(out, "        {before}{}", self.error)?;
        for step in &self.path {
            writeln!(out, "        {step}")?;
        }
        if let Some(hint) = &self.hint {
            writeln!(out, "        hint: {hint}")?;
        }
        Ok(())
    }
}

/// What the user asked for.
#[derive(Clone, Copy)]
pub struct Asked<'a> {
    /// Print every step of the verifier, as the kernel's log at level 2 does.
    pub log: bool,
    /// Reject what Linux rejects for unprivileged users.
    pub strict: bool,
    /// The exit status says whether skep can run the programs, not whether they are accepted.
    pub to_run: bool,
    /// The functions that programs are to be attached to.
    pub functions: Option<&'a Catalog>,
}

/// Most bytes of a log in a JSON document: its end, as the kernel keeps it when its buffer is too
/// small.
const LOG_KEPT: usize = 16 << 20;

/// Prints a verdict for each program.
pub fn run(
    paths: &[PathBuf],
    reading: &ObjectArgs,
    asked: Asked<'_>,
    as_json: bool,
    printer: Printer,
) -> Result<u8> {
    let objects = Objects::read(paths, reading)?;
    let catalog = reading.btf_from.as_deref().map(Catalog::of_file);
    let asked = Asked { functions: catalog.as_ref(), ..asked };
    let how = objects.link_options();
    let dry = DryRun::new().core_target(how.target).functions(asked.functions);
    let mut failed = false;
    let all = paths.iter().zip(&objects.all);
    for (path, _) in all.clone().filter(|(_, object)| object.programs.is_empty()) {
        let text = format!("`{}` has no programs", path.display());
        if asked.to_run {
            printer.warning(&text)
        } else {
            printer.note(&text)
        }
        failed |= asked.to_run;
    }
    let mut one = |path: &Path,
                   object: &Object,
                   index,
                   loads: Result<(), LoadError>,
                   log: Option<&mut dyn std::fmt::Write>| {
        let mut verdict = verdict(path, object, &how, index, asked, log);
        verdict.unsupported = loads.err().map(|e| Refusal::load(&e));
        failed |=
            if asked.to_run { verdict.unsupported.is_some() } else { verdict.refused.is_some() };
        verdict
    };
    if as_json {
        let mut verdicts = Vec::new();
        for (path, object) in all {
            for (index, loads) in dry.each(object).into_iter().enumerate() {
                let mut log = Tail::default();
                let verdict = one(path, object, index, loads, asked.log.then_some(&mut log));
                verdicts.push(verdict.json(asked.log.then_some(log)));
            }
        }
        printer.json(Output::Stdout, &verdicts)?;
    } else {
        printer.data(Output::Stdout, |out| {
            for (path, object) in all {
                for (index, loads) in dry.each(object).into_iter().enumerate() {
                    let mut log = Stream { out: &mut *out, failed: None };
                    let verdict = one(path, object, index, loads, asked.log.then_some(&mut log));
                    log.failed.map_or(Ok(()), Err)?;
                    verdict.write(out)?;
                }
            }
            Ok(())
        })?;
    }
    Ok(if failed { FAILED } else { 0 })
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
        refused: None,
        unsupported: None,
    };
    if let Some(p) = object.programs.get(index) {
        (verdict.program, verdict.section) = (p.name.clone(), p.section.clone());
        verdict.kind = p.def.map(|d| d.prog.name());
    }
    // The log belongs to the question that was asked.
    let (log, log_to_run) = if asked.to_run { (None, log) } else { (log, None) };
    if let Some(log) = log_to_run
        && let Ok(linked) = object.link_with(index, how)
    {
        // The answer is the loader's, which asks for more.
        drop(verify_logged(&linked, &skep::prove::options(), log));
    }
    // Verified, not run: kfuncs that only the kernel has count as known.
    let how = &LinkOptions { known_kfuncs: true, ..*how };
    match object.link_with(index, how) {
        Err(e) => verdict.refused = Some(Refusal::link(&e)),
        Ok(linked) => {
            verdict.insns = linked.insns.len();
            verdict.kind = Some(linked.prog_type.name());
            let mut options = Options::default();
            options.strict = asked.strict;
            options.allow_uninit_stack = !asked.strict;
            options.processors = skep_kernel::possible_cpus()
                .ok()
                .and_then(|n| u32::try_from(n).ok())
                .unwrap_or(options.processors);
            options.target = how.target.map(|t| t.btf().clone());
            let judged = match log {
                Some(log) => verify_logged(&linked, &options, log),
                None => verify(&linked, &options),
            };
            let rejection = match (judged, asked.functions) {
                (Ok(proof), Some(functions)) => functions.judge(&proof, &options).err(),
                (judged, _) => judged.err(),
            };
            verdict.refused = rejection.as_ref().map(Refusal::rejection);
        }
    }
    verdict
}

impl Verdict {
    fn word(&self) -> &'static str {
        if self.refused.is_some() { "reject" } else { "accept" }
    }

    fn json(&self, log: Option<Tail>) -> Json {
        let error = |refusal: &Option<Refusal>| refusal.as_ref().map(|r| r.error.clone());
        let mut out = json!({
            "object": self.object, "program": self.program, "section": self.section, "type": self.kind,
            "verdict": self.word(), "error": error(&self.refused), "insns": self.insns,
            "runs": self.unsupported.is_none(), "why": error(&self.unsupported),
        });
        if let Some(mut log) = log {
            out["log"] = json!(String::from_utf8_lossy(log.bytes.make_contiguous()));
            out["log_cut"] = json!(log.cut);
        }
        out
    }

    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(
            out,
            "{}  {}: {} ({}, {} insns)",
            self.word(),
            self.object,
            self.program,
            self.section,
            self.insns
        )?;
        if let Some(refused) = &self.refused {
            refused.write(out, "")?;
        }
        match (&self.refused, &self.unsupported) {
            (Some(_), None) => writeln!(out, "        skep can run it nevertheless"),
            // One reason for both answers, perhaps on two paths.
            (Some(refused), Some(unsupported)) if refused.error == unsupported.error => Ok(()),
            (_, Some(unsupported)) => unsupported.write(out, "cannot run in skep: "),
            (None, None) => Ok(()),
        }
    }
}
