//! `skep prog`: programs verified, run, listed and printed.

mod dump;
pub mod packets;
mod run;
mod show;
mod verify;

use std::io::Read;
use std::path::Path;

use skep::dir::Kind;
use skep::isa::text;
use skep::object::Object;
use skep::prog::ProgramFile;
use skep_text::value::hex;

use crate::args::ProgCommand;
use crate::directory;
use crate::failure::{Failure, Result};
use crate::printer::{Output, Printer};

pub use run::read_all;

/// Does what was asked for.
pub fn run(command: &ProgCommand, printer: Printer) -> Result<u8> {
    match command {
        ProgCommand::Verify { objects, log, strict, to_run, reading, format } => {
            let asked =
                verify::Asked { log: *log, strict: *strict, to_run: *to_run, functions: None };
            verify::run(objects, reading, asked, format.json, printer)
        }
        ProgCommand::Run(args) => run::run(args, printer),
        ProgCommand::Show { program, reading, format } => {
            show::run(program.as_deref(), reading, format.json, printer)
        }
        ProgCommand::Dump(args) => dump::run(args, printer),
        ProgCommand::Asm { file } => assemble(file, printer),
    }
}

/// Tells whether an argument that may be an id, a name or a file means a file.
fn is_file(text: &str) -> bool {
    text.contains('/') || Path::new(text).is_file()
}

/// Finds a program of an object by its function's name, or by its section's when that has no other.
pub fn find(object: &Object, path: &Path, wanted: &str) -> Result<usize> {
    let list = |which: &mut dyn Iterator<Item = usize>| {
        let names: Vec<String> = which
            .filter_map(|i| object.programs.get(i))
            .map(|p| format!("`{}` ({})", p.name, p.section))
            .collect();
        names.join(", ")
    };
    if let Some(index) = object.program(wanted) {
        return Ok(index);
    }
    let in_section: Vec<usize> = (0..object.programs.len())
        .filter(|i| object.programs.get(*i).is_some_and(|p| p.section == wanted))
        .collect();
    let name = path.display();
    match *in_section {
        [index] => Ok(index),
        [] if object.programs.is_empty() => {
            Err(Failure::failed(format!("`{name}` has no programs")))
        }
        [] => Err(Failure::failed(format!("`{name}` has no program `{wanted}`"))
            .hint(format!("its programs are {}", list(&mut (0..object.programs.len()))))),
        _ => Err(Failure::failed(format!(
            "section `{wanted}` of `{name}` has {} programs",
            in_section.len()
        ))
        .hint(format!("choose one of {}", list(&mut in_section.iter().copied())))),
    }
}

/// Opens loaded programs: all, or the ones that an id or a name means.
fn loaded(wanted: Option<&str>, printer: Printer) -> Result<Vec<ProgramFile>> {
    let dir = directory::open()?;
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
        found.retain(|f| Some(f.id()) == id || f.program().name() == wanted);
        if found.is_empty() {
            return Err(Failure::failed(format!("there is no program `{wanted}`"))
                .hint("`skep prog show` lists all that are loaded"));
        }
    }
    Ok(found)
}

fn assemble(file: &Path, printer: Printer) -> Result<u8> {
    let mut source = String::new();
    let read = if file == Path::new("-") {
        std::io::stdin().read_to_string(&mut source).map(|_| ())
    } else {
        std::fs::read_to_string(file).map(|s| source = s)
    };
    read.map_err(|e| Failure::environment(format!("cannot read `{}`: {e}", file.display())))?;
    let insns = text::assemble(&source)
        .map_err(|e| Failure::failed(format!("`{}`: {e}", file.display())))?;
    printer.data(Output::Stdout, |out| {
        insns.iter().try_for_each(|insn| writeln!(out, "{}", hex(&insn.to_bytes())))
    })?;
    Ok(0)
}
