//! `skep prog run`: a program of an object file, run on given packets and contexts.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use serde_json::{Map as Object, Value as Json, json};
use skep::load::{Loaded, LoadedMap, Loader};
use skep::maps::MapError;
use skep::test_run::{Engine, Errno, Input, Outcome, Printed, Runner};

use crate::args::{EngineName, ProgRunArgs};
use crate::entries::hex;
use crate::failure::{Context, FAILED, Failure, Result};
use crate::objects::Objects;
use crate::printer::{Output, Printer};
use crate::session;
use crate::units;

/// Largest input file: more than the kernel takes for any program type.
const MAX_INPUT: u64 = 1 << 20;

/// Runs the program on every input and prints what came of it.
pub fn run(args: &ProgRunArgs, printer: Printer) -> Result<u8> {
    let inputs = inputs(args)?;
    let objects = Objects::read(std::slice::from_ref(&args.object), &args.reading)?;
    let Some(object) = objects.all.first() else { return Err(Failure::environment("no object")) };
    let index = super::find(object, &args.object, &args.program)?;
    let name = object.programs.get(index).map(|p| p.name.clone()).unwrap_or_default();

    let scratch = session::scratch()?;
    let file = args.object.display().to_string();
    let loader = Loader::new(scratch.dir()).only(&name).fit(objects.target.as_ref());
    let loaded = loader.load(object).map_err(|e| session::load_failure(e, &file))?;
    let engine = match args.engine {
        EngineName::Jit => Engine::Jit,
        EngineName::Interp => Engine::Interp,
    };
    let runner = Runner::new(scratch.dir(), &loaded, &name, engine).map_err(|e| Failure { status: FAILED, ..Failure::from(e) })?;

    let printed = Printed::start(scratch.dir()).map_err(|e| session::load_failure(e, &file))?;
    // All files are open: whatever ends this process now leaves nothing behind.
    drop(scratch);

    let mut ended = Vec::new();
    let mut lines = Vec::new();
    for (data, ctx) in &inputs {
        ended.push(runner.test_run(&Input { data: data.as_deref(), ctx: ctx.as_deref(), repeat: args.repeat }));
        lines.extend(printed.take()?);
    }
    if args.format.json {
        let mut out = json!({"runs": ended.iter().map(run_json).collect::<Json>()});
        if !lines.is_empty() {
            out["printed"] = json!(lines);
        }
        if args.maps {
            out["maps"] = Json::Object(maps_json(&loaded)?);
        }
        printer.json(Output::Stdout, &out)?;
    } else {
        let maps = if args.maps { Some(contents(&loaded)?) } else { None };
        printer.data(Output::Stdout, |out| write(out, &ended, &lines, maps.as_deref()))?;
    }
    Ok(if ended.iter().all(Result::is_ok) { 0 } else { FAILED })
}

/// Packet and context of one run.
type Files = (Option<Vec<u8>>, Option<Vec<u8>>);

/// Reads the inputs: one run for each, packets and contexts side by side; a single one goes with all of the other kind.
fn inputs(args: &ProgRunArgs) -> Result<Vec<Files>> {
    let (packets, contexts) = (read_all(&args.data_in)?, read_all(&args.ctx_in)?);
    let runs = packets.len().max(contexts.len()).max(1);
    let pick = |files: &[Vec<u8>], run: usize| match files {
        [] => None,
        [one] => Some(one.clone()),
        many => many.get(run).cloned(),
    };
    if [packets.len(), contexts.len()].iter().any(|n| *n > 1 && *n != runs) {
        let message = format!("there are {} packets and {} contexts", packets.len(), contexts.len());
        return Err(Failure::environment(message).hint("give as many of one as of the other, or a single one for all"));
    }
    Ok((0..runs).map(|run| (pick(&packets, run), pick(&contexts, run))).collect())
}

fn read_all(paths: &[PathBuf]) -> Result<Vec<Vec<u8>>> {
    paths.iter().map(|path| read(path)).collect()
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let name = path.display();
    let mut bytes = Vec::new();
    let done = if path == Path::new("-") {
        io::stdin().lock().take(MAX_INPUT + 1).read_to_end(&mut bytes)
    } else {
        File::open(path).and_then(|f| f.take(MAX_INPUT + 1).read_to_end(&mut bytes))
    };
    done.context(format!("cannot read `{name}`"))?;
    if bytes.len() as u64 > MAX_INPUT {
        return Err(Failure::environment(format!("`{name}` is larger than {}, which no program takes", units::size(MAX_INPUT))));
    }
    Ok(bytes)
}

fn run_json(ended: &Result<Outcome, Errno>) -> Json {
    let bytes = |bytes: &Option<Vec<u8>>| bytes.as_ref().map(|b| hex(b));
    match ended {
        Ok(done) => json!({
            "retval": done.retval, "errno": 0, "duration_ns": done.duration_ns,
            "data_out": bytes(&done.data_out), "ctx_out": bytes(&done.ctx_out),
        }),
        Err(errno) => json!({"retval": 0, "errno": errno.0, "duration_ns": 0, "data_out": null, "ctx_out": null}),
    }
}

/// One map with its elements as bytes; per-CPU types have several values.
struct Contents<'a> {
    map: &'a LoadedMap,
    elements: Vec<(Vec<u8>, Vec<Vec<u8>>)>,
}

/// Reads all maps but those behind global variables.
fn contents(loaded: &Loaded) -> Result<Vec<Contents<'_>>> {
    let mut out = Vec::new();
    for map in loaded.maps.iter().filter(|m| !m.spec.is_global_data()) {
        let size = map.map.def().value_size as usize;
        let each = size.next_multiple_of(8).max(1);
        let mut elements = Vec::new();
        for element in map.map.iter() {
            let (key, value) = match element {
                // Streams, and types that only programs read.
                Err(MapError::Unsupported { .. }) => break,
                other => other.context(format!("map `{}` cannot be read", map.name))?,
            };
            let values = if map.map.is_per_cpu() {
                value.chunks(each).map(|one| one.get(..size).unwrap_or(one).to_vec()).collect()
            } else {
                vec![value]
            };
            elements.push((key, values));
        }
        out.push(Contents { map, elements });
    }
    Ok(out)
}

fn maps_json(loaded: &Loaded) -> Result<Object<String, Json>> {
    let one = |map: &LoadedMap, (key, values): &(Vec<u8>, Vec<Vec<u8>>)| {
        let value = match &**values {
            [value] if !map.map.is_per_cpu() => json!(hex(value)),
            many => many.iter().map(|v| hex(v)).collect::<Json>(),
        };
        json!({"key": hex(key), "value": value})
    };
    let maps = contents(loaded)?;
    Ok(maps.iter().map(|c| (c.map.name.clone(), c.elements.iter().map(|e| one(c.map, e)).collect::<Json>())).collect())
}

fn write(out: &mut dyn Write, ended: &[Result<Outcome, Errno>], lines: &[String], maps: Option<&[Contents<'_>]>) -> io::Result<()> {
    for (n, run) in ended.iter().enumerate() {
        match run {
            Ok(done) => {
                let (retval, time) = (done.retval, units::time(done.duration_ns));
                writeln!(out, "run {}  retval {retval} ({retval:#x})  {time}", n + 1)?;
                for (what, bytes) in [("data", &done.data_out), ("ctx", &done.ctx_out)] {
                    if let Some(bytes) = bytes {
                        writeln!(out, "  {what}, {} bytes", bytes.len())?;
                        write_bytes(out, bytes)?;
                    }
                }
            }
            Err(errno) => writeln!(out, "run {}  failed: {errno}", n + 1)?,
        }
    }
    lines.iter().try_for_each(|line| writeln!(out, "printed  {line}"))?;
    for c in maps.unwrap_or_default() {
        writeln!(out, "map {}  {}  {} elements", c.map.name, c.map.map.def().map_type, c.elements.len())?;
        for (key, values) in &c.elements {
            let values: Vec<String> = values.iter().map(|v| hex(v)).collect();
            writeln!(out, "    {}: {}", hex(key), values.join(" "))?;
        }
    }
    Ok(())
}

/// Sixteen bytes a line, with their offset.
fn write_bytes(out: &mut dyn Write, bytes: &[u8]) -> io::Result<()> {
    for (n, line) in bytes.chunks(16).enumerate() {
        let words: Vec<String> = line.chunks(2).map(hex).collect();
        writeln!(out, "    {:04x}  {}", n * 16, words.join(" "))?;
    }
    Ok(())
}
