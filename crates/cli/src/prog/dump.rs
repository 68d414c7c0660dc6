//! `skep prog dump`: the instructions of a program, in the words of `bpftool prog dump xlated`, and
//! its machine code.

mod machine;

use std::io::{self, Write};
use std::path::Path;

use serde_json::{Value as Json, json};
use skep::dir::Scratch;
use skep::isa::{Insn, op, text};
use skep::load::Loader;
use skep::object::{Linked, Object};
use skep::prog::Source;
use skep::test_run::{Engine, Runner};
use skep_text::value::hex;

use super::loaded;
use crate::args::ProgDumpArgs;
use crate::directory;
use crate::failure::{FAILED, Failure, Result};
use crate::objects::{self, Objects};
use crate::printer::{Output, Printer};
use crate::rejection;

/// One program to print.
struct Dumped {
    name: String,
    insns: Vec<Insn>,
    /// With functions and source lines, when it comes from an object file.
    linked: Option<Linked>,
    /// Names of functions and numbers of lines, when it is loaded.
    source: Source,
    /// How references to maps are printed.
    maps: Vec<String>,
    runner: Option<Runner>,
}

/// Prints programs.
pub fn run(args: &ProgDumpArgs, printer: Printer) -> Result<u8> {
    let path = Path::new(&args.from);
    let from_file = args.program.is_some() || super::is_file(&args.from);
    // Keeps the maps of compiled programs until they are printed.
    let scratch = if args.jit && from_file { Some(directory::scratch()?) } else { None };
    let programs = if from_file {
        from_object(path, args, scratch.as_ref())?
    } else {
        vec![from_directory(args, printer)?]
    };
    if args.format.json {
        match &*programs {
            [one] if args.program.is_some() || !from_file => {
                printer.json(Output::Stdout, &one.json())?
            }
            all => printer.json(Output::Stdout, &all.iter().map(Dumped::json).collect::<Json>())?,
        }
        return Ok(0);
    }
    printer.data(Output::Stdout, |out| {
        for (n, program) in programs.iter().enumerate() {
            if args.hex {
                program
                    .insns
                    .iter()
                    .try_for_each(|insn| writeln!(out, "{}", hex(&insn.to_bytes())))?;
                continue;
            }
            if n > 0 {
                writeln!(out)?;
            }
            program.write(out, args.opcodes)?;
        }
        Ok(())
    })?;
    Ok(0)
}

/// A program that is loaded.
fn from_directory(args: &ProgDumpArgs, printer: Printer) -> Result<Dumped> {
    let mut found = loaded(Some(&args.from), printer)?;
    if found.len() > 1 {
        let ids: Vec<String> = found.iter().map(|f| f.id().to_string()).collect();
        return Err(Failure::failed(format!(
            "several programs are named `{}`: {}",
            args.from,
            ids.join(", ")
        ))
        .hint("use the id"));
    }
    let Some(file) = found.pop() else {
        return Err(Failure::failed(format!("there is no program `{}`", args.from)));
    };
    let program = file.program();
    let runner = if args.jit {
        let dir = directory::open()?;
        Some(
            Runner::open(&dir, program, Engine::Jit)
                .map_err(|e| Failure { status: FAILED, ..Failure::from(e) })?,
        )
    } else {
        None
    };
    let maps = program.maps().iter().map(|id| format!("id:{id}")).collect();
    Ok(Dumped {
        name: program.name().to_owned(),
        insns: program.insns().to_vec(),
        linked: None,
        source: program.source().clone(),
        maps,
        runner,
    })
}

/// Programs of an object file: the named one, or all.
fn from_object(path: &Path, args: &ProgDumpArgs, scratch: Option<&Scratch>) -> Result<Vec<Dumped>> {
    let objects = Objects::read(&[path.to_owned()], &args.reading)?;
    let Some(object) = objects.all.first() else { return Ok(Vec::new()) };
    let wanted: Vec<usize> = match &args.program {
        Some(name) => vec![super::find(object, path, name)?],
        None => (0..object.programs.len()).collect(),
    };
    if wanted.is_empty() {
        return Err(Failure::failed(format!("`{}` has no programs", path.display())));
    }
    wanted.into_iter().map(|index| one(object, path, index, &objects, scratch)).collect()
}

fn one(
    object: &Object,
    path: &Path,
    index: usize,
    objects: &Objects,
    scratch: Option<&Scratch>,
) -> Result<Dumped> {
    let linked = object.link_with(index, &objects.link_options()).map_err(|e| {
        let hint = objects::hint(&e);
        Failure { status: FAILED, hint, ..Failure::from(e) }
    })?;
    let runner = match scratch {
        Some(scratch) => {
            let loader = Loader::new(scratch.dir())
                .autoload_only(&linked.name)
                .core_target(objects.target.as_ref());
            let loaded = loader
                .load(object)
                .map_err(|e| rejection::load_failure(e, &path.display().to_string()))?;
            let runner = Runner::new(scratch.dir(), &loaded, &linked.name, Engine::Jit);
            Some(runner.map_err(|e| Failure { status: FAILED, ..Failure::from(e) })?)
        }
        None => None,
    };
    // What is compiled is what runs.
    let insns =
        runner.as_ref().map_or_else(|| linked.insns.clone(), |r| r.program().insns().to_vec());
    let maps = linked.maps.iter().map(|m| m.spec.name.clone()).collect();
    Ok(Dumped {
        name: linked.name.clone(),
        insns,
        linked: Some(linked),
        source: Source::default(),
        maps,
        runner,
    })
}

impl Dumped {
    /// An instruction as bpftool prints it: the opcode, then the kernel's words.
    fn disasm(&self, at: usize, line: text::Line) -> String {
        let insn = line.insn;
        let d = insn.dst();
        let map = || self.maps.get(insn.imm as u32 as usize).map_or("?", String::as_str);
        let function = |distance: i32| {
            let start = usize::try_from(at as i64 + 1 + i64::from(distance)).ok()?;
            match &self.linked {
                Some(linked) => Some(&*linked.subprog(start).filter(|s| s.start == start)?.name),
                None => self
                    .source
                    .functions
                    .iter()
                    .find(|(at, _)| *at as usize == start)
                    .map(|(_, name)| &**name),
            }
        };
        let text = match insn.src() {
            op::PSEUDO_MAP_IDX if insn.is_ld_imm64() => format!("r{d} = map[{}]", map()),
            op::PSEUDO_MAP_IDX_VALUE if insn.is_ld_imm64() => {
                format!("r{d} = map[{}][0]+{}", map(), line.next.map_or(0, |n| n.imm as u32))
            }
            op::PSEUDO_FUNC if insn.is_ld_imm64() => format!("r{d} = subprog[{:+}]", insn.imm),
            op::PSEUDO_CALL if insn.is_local_call() && function(insn.imm).is_some() => {
                format!("call pc{:+}#{}", insn.imm, function(insn.imm).unwrap_or_default())
            }
            _ => line.to_string(),
        };
        format!("({:02x}) {text}", insn.code)
    }

    /// The C declaration of the function that begins at an instruction.
    fn function(&self, at: usize) -> Option<String> {
        let Some(linked) = &self.linked else {
            return self
                .source
                .functions
                .iter()
                .find(|(start, _)| *start as usize == at)
                .map(|(_, name)| format!("{name}()"));
        };
        let function = linked.subprog(at).filter(|s| s.start == at)?;
        let declared = linked.btf.as_ref().and_then(|btf| declaration(btf, function.type_id));
        Some(declared.unwrap_or_else(|| format!("{}()", function.name)))
    }

    fn json(&self) -> Json {
        let offsets = self.runner.as_ref().and_then(Runner::machine_code).map(|c| c.offsets);
        let mut insns = Vec::new();
        for (at, line) in text::lines(&self.insns) {
            let mut one = json!({"insn": at, "text": line.to_string(), "disasm": self.disasm(at, line), "hex": slots(line)});
            if let Some(source) =
                self.linked.as_ref().and_then(|l| l.line(at)).filter(|l| l.insn == at)
            {
                one["src"] = json!(source.text.trim());
                one["file"] = json!(source.file);
                one["line"] = json!(source.line);
            }
            if let Some(offset) = offsets.and_then(|o| o.get(at)) {
                one["code_offset"] = json!(offset);
            }
            insns.push(one);
        }
        let mut out = json!({"program": self.name, "insns": insns});
        if let Some(code) = self.runner.as_ref().and_then(Runner::machine_code) {
            out["code"] = machine::lines(code)
                .map(|l| json!({"offset": l.offset, "hex": hex(l.bytes), "text": l.text}))
                .collect();
        }
        out
    }

    fn write(&self, out: &mut dyn Write, opcodes: bool) -> io::Result<()> {
        let mut machine = self
            .runner
            .as_ref()
            .and_then(Runner::machine_code)
            .map(|code| (code, machine::lines(code).peekable()));
        if let Some((code, _)) = &machine {
            writeln!(
                out,
                "; {}: {} bytes of machine code at {:#x}",
                self.name,
                code.bytes.len(),
                code.address
            )?;
        }
        for (at, line) in text::lines(&self.insns) {
            if let Some((code, lines)) = &mut machine {
                // What enters the program, and what belongs to the instructions before.
                let until = code.offsets.get(at).copied().unwrap_or(u32::MAX);
                while let Some(l) = lines.next_if(|l| l.offset < until) {
                    write_machine(out, &l, opcodes)?;
                }
            }
            if let Some(function) = self.function(at) {
                writeln!(out, "{function}:")?;
            }
            if let Some(source) = self
                .linked
                .as_ref()
                .and_then(|l| l.line(at))
                .filter(|l| l.insn == at && !l.text.trim().is_empty())
            {
                writeln!(out, "; {}", source.text.trim())?;
            }
            if let Some((_, file, line)) =
                self.source.lines.iter().find(|(start, ..)| *start as usize == at)
            {
                let file = self
                    .source
                    .files
                    .get(*file as usize)
                    .map_or("?", |f| crate::report::file_name(f));
                writeln!(out, "; {file}:{line}")?;
            }
            writeln!(out, "{at:>4}: {}", self.disasm(at, line))?;
            if opcodes {
                writeln!(out, "       {}", spaced(&slots(line)))?;
            }
        }
        if let Some((_, lines)) = &mut machine {
            lines.try_for_each(|l| write_machine(out, &l, opcodes))?;
        }
        Ok(())
    }
}

fn write_machine(out: &mut dyn Write, line: &machine::Line<'_>, opcodes: bool) -> io::Result<()> {
    writeln!(out, "    {:>8x}:  {}", line.offset, line.text)?;
    if opcodes {
        writeln!(out, "               {}", spaced(&hex(line.bytes)))?;
    }
    Ok(())
}

/// The bytes of an instruction, both slots of a wide one.
fn slots(line: text::Line) -> String {
    let second = line.next.filter(|_| line.insn.is_ld_imm64());
    hex(&line.insn.to_bytes()) + &second.map(|n| hex(&n.to_bytes())).unwrap_or_default()
}

/// Hexadecimal digits, two by two.
fn spaced(digits: &str) -> String {
    digits
        .as_bytes()
        .chunks(2)
        .map(|two| String::from_utf8_lossy(two).into_owned())
        .collect::<Vec<_>>()
        .join(" ")
}

/// A function as bpftool prints it: `int xdp_pass(struct xdp_md * ctx)`.
fn declaration(btf: &skep::object::Btf, function: u32) -> Option<String> {
    use skep::object::btf::Kind;
    let Kind::Func(f) = &btf.get(function).ok()?.kind else { return None };
    let Kind::FuncProto(proto) = &btf.get(f.proto).ok()?.kind else { return None };
    let joined = |type_id: u32, name: &str| {
        let of = btf.describe(type_id);
        if name.is_empty() { of } else { format!("{of} {name}") }
    };
    let params: Vec<String> = proto
        .params
        .iter()
        .map(|p| {
            if p.type_id == 0 {
                "...".to_owned()
            } else {
                joined(p.type_id, btf.string(p.name_off))
            }
        })
        .collect();
    let params = if params.is_empty() { "void".to_owned() } else { params.join(", ") };
    Some(format!("{}({params})", joined(proto.ret, btf.name(function))))
}
