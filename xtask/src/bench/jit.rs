//! What compiled programs take: twelve programs on every engine, lookups and calls, and compiling
//! itself.
//!
//! Each number is a process of its own (`crates/vm/examples/contest`), the best of its batches; a
//! row has the median of all processes, contestants taking turns. Some processes run at half the
//! speed of others from their first to their last instruction, whatever the engine, so there must
//! be many. Rivals: the same C by `gcc -O2`; the kernel's own JIT through `BPF_PROG_TEST_RUN`
//! (root), less what an empty program takes there; rbpf's JIT.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};
use skep_testkit::TempDir;
use skep_testkit::skip::has_command;

use super::row::Row;
use super::sample::{Contestant, Sample, measured, take_turns};
use crate::{cargo, check, files_below, output, root};

const TURNS: usize = 21;
const EMPTY: &str = "empty";
/// One map, one program: what is measured is a round of its loop.
const LOOKUPS: [(&str, &str); 9] = [
    ("array", "array lookup, 8-byte values"),
    ("percpu", "per-CPU array lookup, 8-byte values"),
    ("hash4", "hash lookup, 4-byte keys, 10,000 entries"),
    ("hash8", "hash lookup, 8-byte keys, 10,000 entries"),
    ("hash16", "hash lookup, 16-byte keys, 10,000 entries"),
    ("hash32", "hash lookup, 32-byte keys, 10,000 entries"),
    ("hash64", "hash lookup, 64-byte keys as of strings, 10,000 entries"),
    ("call", "call of a local function"),
    ("tail", "tail call"),
];

/// A program and where its two forms are.
struct Program {
    name: String,
    object: PathBuf,
    native: Option<PathBuf>,
}

/// The rows of all parts.
pub fn run() -> Result<Vec<Row>> {
    check(cargo().args([
        "build",
        "--quiet",
        "--release",
        "-p",
        "skep-vm",
        "--example",
        "contest",
    ]))?;
    let contest = target().join("release/examples/contest");
    let dir = TempDir::new();
    let programs = programs(dir.path())?;
    let in_kernel = skep_kernel::probe().is_ok();
    agree(&contest, &programs, in_kernel)?;
    let mut rows = run_programs(&contest, &programs, in_kernel)?;
    rows.extend(run_lookups(&contest, in_kernel)?);
    let objects = programs.iter().filter(|p| p.name != EMPTY).map(|p| p.object.as_path());
    let compile =
        || measured(Command::new(&contest).args(["compile", "skep"]).args(objects.clone()));
    let values = take_turns(TURNS, &[Contestant::new("compile", compile)])?;
    rows.push(Row {
        case: "compile 4,000 instructions".into(),
        ours: Sample::of(values[0].clone()),
        rival: None,
    });
    Ok(rows)
}

fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// Finds the objects, and builds the native forms when there is a gcc.
fn programs(dir: &Path) -> Result<Vec<Program>> {
    let source = root().join("benches/jit/bpf");
    let mut objects = files_below(&source, &|path| path.to_string_lossy().ends_with(".bpf.o"))?;
    objects.sort();
    let gcc = has_command("gcc");
    let mut programs = Vec::new();
    for object in objects {
        let name = object
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .trim_end_matches(".bpf.o")
            .to_owned();
        let native = gcc.then(|| dir.join(format!("{name}.so")));
        if let Some(native) = &native {
            let mut build = Command::new("gcc");
            build.args(["-O2", "-shared", "-fPIC", "-o"]).arg(native);
            check(build.arg(object.with_extension("c")).arg(source.join("native.c")))?;
        }
        programs.push(Program { name, object, native });
    }
    Ok(programs)
}

impl Program {
    fn command(&self, contest: &Path, engine: &str) -> Command {
        let mut command = Command::new(contest);
        command.args(["program", engine]).arg(&self.object).args(&self.native);
        command
    }
}

/// Every engine must find the same.
fn agree(contest: &Path, programs: &[Program], in_kernel: bool) -> Result<()> {
    for program in programs {
        let result = |engine: &str| {
            let text = output(&mut program.command(contest, engine))?;
            anyhow::Ok(
                text.lines().find(|l| l.starts_with("result ")).unwrap_or_default().to_owned(),
            )
        };
        let ours = result("skep")?;
        let mut others = vec!["interp", "rbpf"];
        others.extend(program.native.is_some().then_some("native"));
        others.extend(in_kernel.then_some("kernel"));
        for engine in others {
            let theirs = result(engine)?;
            ensure!(
                ours == theirs,
                "`{}`: skep says `{ours}`, {engine} says `{theirs}`",
                program.name
            );
        }
    }
    Ok(())
}

fn run_programs(contest: &Path, programs: &[Program], in_kernel: bool) -> Result<Vec<Row>> {
    let mut engines = vec![("skep", "skep")];
    if programs.iter().all(|p| p.native.is_some()) {
        engines.push(("native", "gcc -O2"));
    }
    if in_kernel {
        engines.push(("kernel", "kernel JIT, test run"));
    }
    engines.push(("rbpf", "rbpf JIT"));
    let contestants: Vec<Contestant<'_>> = programs
        .iter()
        .flat_map(|p| {
            engines.iter().map(move |(engine, _)| {
                Contestant::new(&p.name, || measured(&mut p.command(contest, engine)))
            })
        })
        .collect();
    let values = take_turns(TURNS, &contestants)?;
    let of = |program: usize, engine: usize| &values[program * engines.len() + engine];
    let empty = programs.iter().position(|p| p.name == EMPTY);
    let mut rows = Vec::new();
    let mut means = vec![(0.0, 0.0); engines.len()];
    for (n, program) in programs.iter().enumerate() {
        for (e, (engine, name)) in engines.iter().enumerate().skip(1) {
            let theirs = match empty.filter(|_| *engine == "kernel") {
                // Entering and leaving a test run is no part of the program.
                Some(empty) if program.name != EMPTY => Sample::added(of(n, e), of(empty, e)),
                _ => Sample::of(of(n, e).clone()),
            };
            let ours = Sample::of(of(n, 0).clone());
            if program.name != EMPTY {
                means[e] = (means[e].0 + ours.median.ln(), means[e].1 + theirs.median.ln());
            }
            rows.push(Row {
                case: program.name.clone(),
                ours,
                rival: Some(((*name).to_owned(), theirs)),
            });
        }
    }
    let count = programs.iter().filter(|p| p.name != EMPTY).count() as f64;
    for (e, (_, name)) in engines.iter().enumerate().skip(1) {
        let mean = |sum: f64| Sample::of(vec![(sum / count).exp()]);
        let rival = Some(((*name).to_owned(), mean(means[e].1)));
        rows.push(Row {
            case: format!("geometric mean of {count} programs"),
            ours: mean(means[e].0),
            rival,
        });
    }
    Ok(rows)
}

fn run_lookups(contest: &Path, in_kernel: bool) -> Result<Vec<Row>> {
    let one = |engine: &'static str, case: &'static str| {
        Contestant::new(case, move || {
            measured(Command::new(contest).args(["lookup", engine, case]))
        })
    };
    let ours: Vec<_> = LOOKUPS.iter().map(|(case, _)| one("skep", case)).collect();
    let theirs = LOOKUPS.iter().filter(|_| in_kernel).map(|(case, _)| one("kernel", case));
    let values = take_turns(TURNS, &ours.into_iter().chain(theirs).collect::<Vec<_>>())?;
    let row = |(n, (_, what)): (usize, &(&str, &str))| Row {
        case: format!("one of a loop: {what}"),
        ours: Sample::of(values[n].clone()),
        rival: values
            .get(LOOKUPS.len() + n)
            .map(|v| ("kernel JIT, test run".to_owned(), Sample::of(v.clone()))),
    };
    Ok(LOOKUPS.iter().enumerate().map(row).collect())
}
