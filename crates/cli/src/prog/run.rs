//! `skep prog run`: a program of an object file, run on given packets and contexts.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use serde_json::{Map as Object, Value as Json, json};
use skep::load::Loader;
use skep::test_run::{
    Engine, Errno, Input, LiveFrames, MAX_BATCH, Outcome, Printed, Runner, SIZES,
};
use skep_test::contents::{Contents, Samples, contents, samples};
use skep_text::value::hex;

use crate::args::{EngineName, ProgRunArgs};
use crate::directory;
use crate::failure::{Context, FAILED, Failure, Result};
use crate::objects::Objects;
use crate::printer::{Output, Printer};
use crate::prog::packets::{self, Report};
use crate::rejection;
use crate::units;

/// Largest input file: more than the kernel takes for any program type.
const MAX_INPUT: u64 = 1 << 20;

/// Runs the program on every input and prints what came of it.
pub fn run(args: &ProgRunArgs, printer: Printer) -> Result<u8> {
    let inputs = inputs(args)?;
    let targets = packets::targets(&args.packets);
    packets::check_kept(targets.iter().map(PathBuf::as_path), std::slice::from_ref(&args.object))?;
    let objects = Objects::read(std::slice::from_ref(&args.object), &args.reading)?;
    let Some(object) = objects.all.first() else { return Err(Failure::environment("no object")) };
    let index = super::find(object, &args.object, &args.program)?;
    let name = object.programs.get(index).map(|p| p.name.clone()).unwrap_or_default();

    let scratch = directory::scratch()?;
    let file = args.object.display().to_string();
    let loader =
        Loader::new(scratch.dir()).autoload_only(&name).core_target(objects.target.as_ref());
    let loaded = loader.load(object).map_err(|e| rejection::load_failure(e, &file))?;
    let engine = match args.engine {
        EngineName::Jit => Engine::Jit,
        EngineName::Interp => Engine::Interp,
    };
    let runner = Runner::new(scratch.dir(), &loaded, &name, engine)
        .map_err(|e| Failure { status: FAILED, ..Failure::from(e) })?;

    let mut samples = if args.maps { samples(&loaded)? } else { Samples::new() };
    let printed = Printed::start(scratch.dir()).map_err(|e| rejection::load_failure(e, &file))?;
    // All files are open: whatever ends this process now leaves nothing behind.
    drop(scratch);

    let mut lines = Vec::new();
    let mut ran = match &args.packets.input {
        Some(input) => {
            let report = packets::run(&args.packets, input, runner)?;
            if let Some(warning) = report.warning(input) {
                printer.warning(&warning);
            }
            lines.extend(printed.take()?);
            Ran::Packets(Box::new(report))
        }
        None if args.live_frames => {
            let ran = run_live(args, &inputs, runner)?;
            lines.extend(printed.take()?);
            ran
        }
        None => {
            let mut ended = Vec::new();
            for (data, ctx) in &inputs {
                ended.push(runner.test_run(&Input {
                    data: data.as_deref(),
                    ctx: ctx.as_deref(),
                    repeat: args.repeat,
                }));
                lines.extend(printed.take()?);
            }
            Ran::Inputs(ended)
        }
    };
    let output = if packets::uses_stdout(&args.packets) {
        // Standard output has the packets.
        Output::Stderr
    } else {
        Output::Stdout
    };
    let btf = object.btf.as_deref();
    if args.format.json {
        let mut out = ran.json();
        if !lines.is_empty() {
            out["printed"] = json!(lines);
        }
        if args.maps {
            let maps = contents(&loaded, btf, args.raw, &mut samples)?;
            out["maps"] = Json::Object(
                maps.iter()
                    .map(|c| (c.entries.shape().name.clone(), c.json()))
                    .collect::<Object<_, _>>(),
            );
        }
        printer.json(output, &out)?;
    } else {
        let maps =
            if args.maps { Some(contents(&loaded, btf, args.raw, &mut samples)?) } else { None };
        printer.data(output, |out| write(out, &ran, &lines, maps.as_deref()))?;
    }
    match &mut ran {
        Ran::Inputs(ended) if ended.iter().all(Result::is_ok) => Ok(0),
        Ran::Inputs(_) => Ok(FAILED),
        Ran::Packets(report) => report.failure.take().map_or(Ok(0), Err),
    }
}

/// Runs the program on live frames.
fn run_live(args: &ProgRunArgs, inputs: &[Files], runner: Runner) -> Result<Ran> {
    let ([(data, ctx)], [file]) = (inputs, &*args.data_in) else {
        let message = "live frames are of one packet, with one context at most";
        return Err(Failure::environment(message).hint("give --data-in and --ctx-in once"));
    };
    if args.batch_size > MAX_BATCH {
        let message = format!("a batch has {MAX_BATCH} frames at most, not {}", args.batch_size);
        return Err(Failure::environment(message));
    }
    let len = data.as_ref().map_or(0, Vec::len);
    let input = Input { data: data.as_deref(), ctx: ctx.as_deref(), repeat: args.repeat };
    match LiveFrames::of(runner.program().attach_type(), &input, args.batch_size) {
        Ok(frames) => {
            let read: Vec<&Path> =
                args.data_in.iter().chain(&args.ctx_in).map(PathBuf::as_path).collect();
            let report = packets::run_live(&args.packets, &read, runner, frames)?;
            Ok(Ran::Packets(Box::new(report)))
        }
        // Without metadata nothing else can be wrong with a packet.
        Err(_) if ctx.is_none() && !SIZES.contains(&len) => {
            let (least, most) = SIZES.into_inner();
            Err(Failure::environment(format!(
                "`{}` has {len} bytes, and a live frame {least} to {most}",
                file.display()
            )))
        }
        Err(errno) => Ok(Ran::Inputs(vec![Err(errno)])),
    }
}

/// What the program ran on, with what came of it.
enum Ran {
    /// Inputs from files.
    Inputs(Vec<Result<Outcome, Errno>>),
    /// The packets of a port.
    Packets(Box<Report>),
}

impl Ran {
    fn json(&self) -> Json {
        match self {
            Self::Inputs(ended) => json!({"runs": ended.iter().map(run_json).collect::<Json>()}),
            Self::Packets(report) => report.json(),
        }
    }

    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let ended = match self {
            Self::Inputs(ended) => ended,
            Self::Packets(report) => return report.write(out),
        };
        for (n, run) in ended.iter().enumerate() {
            match run {
                Ok(done) => {
                    let (retval, time) = (done.retval, units::time(done.duration_ns));
                    writeln!(out, "run {}  retval {retval} ({retval:#x})  {time}", n + 1)?;
                    for (what, bytes) in [("data", &done.data_out), ("ctx", &done.ctx_out)] {
                        if let Some(bytes) = bytes {
                            writeln!(
                                out,
                                "  {what}, {}",
                                units::count(bytes.len() as u64, "byte")
                            )?;
                            write_bytes(out, bytes)?;
                        }
                    }
                }
                Err(errno) => writeln!(out, "run {}  failed: {errno}", n + 1)?,
            }
        }
        Ok(())
    }
}

/// Packet and context of one run.
type Files = (Option<Vec<u8>>, Option<Vec<u8>>);

/// Reads the inputs: one run for each, packets and contexts side by side; a single one goes with
/// all of the other kind.
fn inputs(args: &ProgRunArgs) -> Result<Vec<Files>> {
    let (packets, contexts) = (read_all(&args.data_in)?, read_all(&args.ctx_in)?);
    let runs = packets.len().max(contexts.len()).max(1);
    let pick = |files: &[Vec<u8>], run: usize| match files {
        [] => None,
        [one] => Some(one.clone()),
        many => many.get(run).cloned(),
    };
    if [packets.len(), contexts.len()].iter().any(|n| *n > 1 && *n != runs) {
        let message = format!(
            "there are {} and {}",
            units::count(packets.len() as u64, "packet"),
            units::count(contexts.len() as u64, "context")
        );
        return Err(
            Failure::environment(message).hint("give as many of each, or a single one for all")
        );
    }
    Ok((0..runs).map(|run| (pick(&packets, run), pick(&contexts, run))).collect())
}

/// Reads inputs; `-` is stdin.
pub fn read_all(paths: &[PathBuf]) -> Result<Vec<Vec<u8>>> {
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
        return Err(Failure::environment(format!(
            "`{name}` is larger than {}, the most that a program takes",
            units::size(MAX_INPUT)
        )));
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
        Err(errno) => {
            json!({"retval": 0, "errno": errno.0, "duration_ns": 0, "data_out": null, "ctx_out": null})
        }
    }
}

fn write(
    out: &mut dyn Write,
    ran: &Ran,
    lines: &[String],
    maps: Option<&[Contents<'_>]>,
) -> io::Result<()> {
    ran.write(out)?;
    lines.iter().try_for_each(|line| writeln!(out, "printed  {line}"))?;
    maps.unwrap_or_default().iter().try_for_each(|c| c.write(out))
}

/// Sixteen bytes a line, with their offset.
fn write_bytes(out: &mut dyn Write, bytes: &[u8]) -> io::Result<()> {
    for (n, line) in bytes.chunks(16).enumerate() {
        let words: Vec<String> = line.chunks(2).map(hex).collect();
        writeln!(out, "    {:04x}  {}", n * 16, words.join(" "))?;
    }
    Ok(())
}
