//! `skep prog show`: loaded programs as a list.

use serde_json::{Value as Json, json};
use skep::prog::ProgramFile;

use super::loaded;
use crate::failure::Result;
use crate::printer::{Output, Printer};

/// Prints them.
pub fn run(wanted: Option<&str>, as_json: bool, printer: Printer) -> Result<u8> {
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
