//! `skep prog`: programs verified, listed and printed.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use serde_json::{Value as Json, json};
use skep::dir::Kind;
use skep::isa::{Insn, text};
use skep::object::{LinkOptions, Object};
use skep::prog::ProgramFile;
use skep::verifier::{Options, Rejection, verify};

use crate::args::{ObjectArgs, ProgCommand};
use crate::entries::hex;
use crate::failure::{FAILED, Failure, Result};
use crate::objects::{self, Objects};
use crate::printer::{Output, Printer};
use crate::session;

/// Does what was asked for.
pub fn run(command: &ProgCommand, printer: Printer) -> Result<u8> {
    match command {
        ProgCommand::Verify { objects, log, reading, format } => verify_all(objects, reading, *log, format.json, printer),
        ProgCommand::Show { program, format } => show(program.as_deref(), format.json, printer),
        ProgCommand::Dump { from, program, hex, format } => dump(from, program.as_deref(), *hex, format.json, printer),
        ProgCommand::Asm { file } => assemble(file, printer),
    }
}

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

fn verify_all(paths: &[PathBuf], reading: &ObjectArgs, log: bool, as_json: bool, printer: Printer) -> Result<u8> {
    let mut verdicts = Vec::new();
    let objects = Objects::read(paths, reading)?;
    for (path, object) in paths.iter().zip(&objects.all) {
        for index in 0..object.programs.len() {
            verdicts.push(verdict(path, object, &objects.link_options(), index, log));
        }
    }
    if as_json {
        printer.json(Output::Stdout, &verdicts.iter().map(|v| v.json(log)).collect::<Json>())?;
    } else {
        printer.data(Output::Stdout, |out| verdicts.iter().try_for_each(|v| v.write(out, log)))?;
    }
    Ok(if verdicts.iter().any(|v| v.error.is_some()) { FAILED } else { 0 })
}

fn verdict(path: &Path, object: &Object, how: &LinkOptions<'_>, index: usize, log: bool) -> Verdict {
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
    match object.link_with(index, how) {
        Err(e) => (verdict.error, verdict.hint) = (Some(e.to_string()), objects::hint(&e)),
        Ok(linked) => {
            verdict.insns = linked.insns.len();
            verdict.kind = Some(linked.prog_type.name());
            let mut options = Options::default();
            options.log_level = u32::from(log);
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

/// Opens loaded programs: all, or the ones that an id or a name means.
fn loaded(wanted: Option<&str>, printer: Printer) -> Result<Vec<ProgramFile>> {
    let dir = session::existing_directory()?;
    let mut found = Vec::new();
    for id in dir.ids(Kind::Program)? {
        match ProgramFile::open(&dir, id) {
            Ok(file) => found.push(file),
            Err(_) if !dir.object(Kind::Program, id).exists() => {}
            Err(e) => printer.warning(&format!("program {id} cannot be read: {e}")),
        }
    }
    if let Some(wanted) = wanted {
        let id = wanted.parse::<u32>().ok();
        found.retain(|f| Some(f.id) == id || f.program.name == wanted);
        if found.is_empty() {
            return Err(Failure::failed(format!("there is no program `{wanted}`")).hint("`skep prog show` lists all that are loaded"));
        }
    }
    Ok(found)
}

fn show(wanted: Option<&str>, as_json: bool, printer: Printer) -> Result<u8> {
    let programs = loaded(wanted, printer)?;
    if as_json {
        let one = |f: &ProgramFile| {
            let p = &f.program;
            json!({
                "id": f.id, "name": p.name, "section": p.section, "type": p.prog_type.name(),
                "attach_type": p.attach_type.map(|a| a.name()), "insns": p.insns.len(), "map_ids": p.maps,
            })
        };
        printer.json(Output::Stdout, &programs.iter().map(one).collect::<Json>())?;
        return Ok(0);
    }
    printer.data(Output::Stdout, |out| {
        writeln!(out, "{:>6}  {:20}  {:14} {:>6}  {:12} section", "id", "name", "type", "insns", "maps")?;
        for f in &programs {
            let p = &f.program;
            let maps: Vec<String> = p.maps.iter().map(u32::to_string).collect();
            let maps = if maps.is_empty() { "-".to_owned() } else { maps.join(",") };
            writeln!(out, "{:>6}  {:20}  {:14} {:>6}  {maps:12} {}", f.id, p.name, p.prog_type, p.insns.len(), p.section)?;
        }
        Ok(())
    })?;
    Ok(0)
}

fn dump(from: &str, program: Option<&str>, as_hex: bool, as_json: bool, printer: Printer) -> Result<u8> {
    let (name, insns) = instructions(from, program, printer)?;
    let bytes = |insn: &Insn| hex(&insn.to_bytes());
    if as_json {
        let lines = text::lines(&insns).map(|(at, line)| json!({"insn": at, "text": line.to_string(), "hex": bytes(&line.insn)}));
        printer.json(Output::Stdout, &json!({"program": name, "insns": lines.collect::<Json>()}))?;
    } else if as_hex {
        printer.data(Output::Stdout, |out| insns.iter().try_for_each(|insn| writeln!(out, "{}", bytes(insn))))?;
    } else {
        printer.data(Output::Stdout, |out| text::lines(&insns).try_for_each(|(at, line)| writeln!(out, "{at:>4}: {line}")))?;
    }
    Ok(0)
}

fn instructions(from: &str, program: Option<&str>, printer: Printer) -> Result<(String, Vec<Insn>)> {
    let path = Path::new(from);
    if program.is_none() && !path.is_file() {
        let mut found = loaded(Some(from), printer)?;
        if found.len() > 1 {
            let ids: Vec<String> = found.iter().map(|f| f.id.to_string()).collect();
            return Err(Failure::failed(format!("several programs are called `{from}`: {}", ids.join(", "))).hint("use the id"));
        }
        if let Some(file) = found.pop() {
            return Ok((file.program.name.clone(), file.program.insns.clone()));
        }
    }
    let object = session::object(path)?;
    let names: Vec<String> = object.programs.iter().map(|p| format!("`{}`", p.name)).collect();
    let index = match program {
        Some(name) => object.program(name),
        None if names.len() == 1 => Some(0),
        None => return Err(Failure::environment(format!("`{from}` has {} programs: name one", names.len())).hint(names.join(", "))),
    };
    let Some(index) = index else {
        let name = program.unwrap_or_default();
        return Err(Failure::failed(format!("`{from}` has no program `{name}`")).hint(format!("it has {}", names.join(", "))));
    };
    let linked = object.link(index).map_err(|e| Failure { status: FAILED, ..Failure::from(e) })?;
    Ok((linked.name, linked.insns))
}

fn assemble(file: &Path, printer: Printer) -> Result<u8> {
    let mut source = String::new();
    let read = if file == Path::new("-") {
        std::io::stdin().read_to_string(&mut source).map(|_| ())
    } else {
        std::fs::read_to_string(file).map(|s| source = s)
    };
    read.map_err(|e| Failure::environment(format!("cannot read `{}`: {e}", file.display())))?;
    let insns = text::assemble(&source).map_err(|e| Failure::failed(format!("`{}`: {e}", file.display())))?;
    printer.data(Output::Stdout, |out| insns.iter().try_for_each(|insn| writeln!(out, "{}", hex(&insn.to_bytes()))))?;
    Ok(0)
}
