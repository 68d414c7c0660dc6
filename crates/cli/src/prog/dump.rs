//! `skep prog dump`: the instructions of a program.

use std::path::Path;

use serde_json::{Value as Json, json};
use skep::isa::{Insn, text};

use super::loaded;
use crate::entries::hex;
use crate::failure::{FAILED, Failure, Result};
use crate::printer::{Output, Printer};
use crate::session;

/// Prints them.
pub fn run(from: &str, program: Option<&str>, as_hex: bool, as_json: bool, printer: Printer) -> Result<u8> {
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
