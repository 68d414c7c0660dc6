//! `skep prog show`: what is in an object file, or which programs are loaded.

use std::io::{self, Write};
use std::path::Path;

use serde_json::{Value as Json, json};
use skep::object::{LinkOptions, MapSpec, Object, Program};
use skep::prog::ProgramFile;

use super::loaded;
use crate::args::ObjectArgs;
use crate::failure::Result;
use crate::objects::Objects;
use crate::printer::{Output, Printer};
use crate::units;

/// Prints an object file's contents, or loaded programs.
pub fn run(
    wanted: Option<&str>,
    reading: &ObjectArgs,
    as_json: bool,
    printer: Printer,
) -> Result<u8> {
    if let Some(path) = wanted.filter(|w| super::is_file(w)) {
        return object(Path::new(path), reading, as_json, printer);
    }
    let programs = loaded(wanted, printer)?;
    if as_json {
        let one = |f: &ProgramFile| {
            let p = f.program();
            json!({
                "id": f.id(), "name": p.name(), "section": p.section(), "type": p.prog_type().name(),
                "attach_type": p.attach_type().map(|a| a.name()), "insns": p.insns().len(), "map_ids": p.maps(),
            })
        };
        printer.json(Output::Stdout, &programs.iter().map(one).collect::<Json>())?;
        return Ok(0);
    }
    printer.data(Output::Stdout, |out| {
        writeln!(
            out,
            "{:>6}  {:20}  {:14} {:>6}  {:12} section",
            "id", "name", "type", "insns", "maps"
        )?;
        for f in &programs {
            let p = f.program();
            let maps: Vec<String> = p.maps().iter().map(u32::to_string).collect();
            let maps = if maps.is_empty() { "-".to_owned() } else { maps.join(",") };
            writeln!(
                out,
                "{:>6}  {:20}  {:14} {:>6}  {maps:12} {}",
                f.id(),
                p.name(),
                p.prog_type(),
                p.insns().len(),
                p.section()
            )?;
        }
        Ok(())
    })?;
    Ok(0)
}

/// One program of an object file, and what linking it tells.
struct Shown<'a> {
    program: &'a Program,
    insns: usize,
    functions: Vec<String>,
    maps: Vec<String>,
    /// Why it cannot be linked.
    error: Option<String>,
}

impl<'a> Shown<'a> {
    fn new(object: &Object, index: usize, program: &'a Program, how: &LinkOptions<'_>) -> Self {
        match object.link_with(index, how) {
            Ok(linked) => Self {
                program,
                insns: linked.insns.len(),
                functions: linked.subprogs.iter().skip(1).map(|f| f.name.clone()).collect(),
                maps: linked.maps.iter().map(|m| m.spec.name.clone()).collect(),
                error: None,
            },
            Err(e) => Self {
                program,
                insns: object.own_insns(program),
                functions: Vec::new(),
                maps: Vec::new(),
                error: Some(e.to_string()),
            },
        }
    }

    fn json(&self, object: &Object) -> Json {
        let p = self.program;
        let relocation =
            |r: &skep::object::Relocation| json!({"insn": r.insn, "kind": r.kind, "what": r.what});
        json!({
            "name": p.name, "section": p.section,
            "type": p.def.map(|d| d.prog.name()), "attach_type": p.def.and_then(|d| d.attach).map(|a| a.name()),
            "target": p.target, "autoload": p.autoload, "sleepable": p.def.is_some_and(|d| d.sleepable),
            "insns": self.insns, "functions": self.functions, "maps": self.maps,
            "relocations": object.relocations(p).iter().map(relocation).collect::<Json>(), "error": self.error,
        })
    }

    fn write(&self, out: &mut dyn Write, object: &Object) -> io::Result<()> {
        let p = self.program;
        let kind = p.def.map_or("unknown type", |d| d.prog.name());
        let attach =
            p.def.and_then(|d| d.attach).map(|a| format!(", {}", a.name())).unwrap_or_default();
        let load = if p.autoload { "" } else { ", not loaded by itself" };
        writeln!(
            out,
            "program {}  {}  {kind}{attach}  {} insns{load}",
            p.name, p.section, self.insns
        )?;
        for (what, names) in [("functions", &self.functions), ("maps", &self.maps)] {
            if !names.is_empty() {
                writeln!(out, "    {what:12} {}", names.join(" "))?;
            }
        }
        for r in object.relocations(p) {
            writeln!(out, "    {:>4}: {:7} {}", r.insn, r.kind, r.what)?;
        }
        if let Some(error) = &self.error {
            writeln!(out, "    cannot be linked: {error}")?;
        }
        Ok(())
    }
}

fn object(path: &Path, reading: &ObjectArgs, as_json: bool, printer: Printer) -> Result<u8> {
    let objects = Objects::read(&[path.to_owned()], reading)?;
    let Some(object) = objects.all.first() else { return Ok(0) };
    let shown: Vec<Shown<'_>> = object
        .programs
        .iter()
        .enumerate()
        .map(|(i, p)| Shown::new(object, i, p, &objects.link_options()))
        .collect();
    let btf = object.btf.as_deref().map(|btf| (btf.len(), btf.raw().len()));
    if as_json {
        let out = json!({
            "object": path.display().to_string(), "license": object.license, "gpl": object.is_gpl(),
            "btf": btf.map(|(types, bytes)| json!({"types": types, "bytes": bytes})),
            "programs": shown.iter().map(|s| s.json(object)).collect::<Json>(),
            "maps": object.maps.iter().map(map_json).collect::<Json>(),
            "kconfig": object.kconfig.iter().map(|k| json!(k.name)).collect::<Json>(),
            "ignored_sections": object.ignored,
        });
        printer.json(Output::Stdout, &out)?;
        return Ok(0);
    }
    printer.data(Output::Stdout, |out| {
        let license = if object.license.is_empty() { "none" } else { &object.license };
        let types = btf.map_or("no BTF".to_owned(), |(types, bytes)| {
            format!("BTF {types} types, {}", units::size(bytes as u64))
        });
        writeln!(out, "object {}  license {license}  {types}", path.display())?;
        shown.iter().try_for_each(|s| s.write(out, object))?;
        for m in &object.maps {
            let data = m.data.as_ref().map_or(String::new(), |_| format!("  from {}", m.section));
            let sizes = format!(
                "key {}  value {}  {}",
                units::size(m.key_size().into()),
                units::size(m.value_size.into()),
                units::entries(m.max_entries.into())
            );
            writeln!(out, "map {}  {}  {sizes}  flags {:#x}{data}", m.name, m.map_type, m.flags.0)?;
        }
        for section in &object.ignored {
            writeln!(out, "section {section}  not used")?;
        }
        Ok(())
    })?;
    Ok(0)
}

fn map_json(m: &MapSpec) -> Json {
    json!({
        "name": m.name, "type": m.map_type.name(), "key_size": m.key_size(), "value_size": m.value_size, "max_entries": m.max_entries,
        "flags": m.flags.0, "section": m.section, "global_data": m.is_global_data(), "inner": m.inner.as_deref().map(map_json),
    })
}
