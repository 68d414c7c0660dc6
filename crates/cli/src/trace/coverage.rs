//! `skep trace --coverage`: which functions were called, each one's hook taken out by its first call.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value as Json;
use skep::Dir;
use skep::dir::Kind;
use skep::link::{Cookie, Link, LinkSpec, LinkState, describe};
use skep::load::Loader;
use skep::maps::Map;
use skep_proc::demangle::demangle;
use skep_proc::symbolize::{SymbolFile, Want};

use super::objects::{carried, own_failure};
use super::report::Ended;
use crate::args::TraceArgs;
use crate::failure::{Failure, Result};
use crate::printer::{Output, Printer, one_line};
use crate::report::{Wall, file_name};
use crate::sites::{Sites, module_path};
use crate::unit::junit::escaped;
use crate::{missed, rejection, units};

/// The compiled `bpf/coverage.bpf.c`, compressed by the build script.
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/coverage.bpf.z"));
const NAME: &str = "coverage.bpf.o";

/// Where results go.
pub struct Outputs {
    report: Output,
    file: Output,
    write: fn(&mut dyn Write, &Files<'_>) -> io::Result<()>,
}

impl Outputs {
    /// Creates the files that were asked for.
    pub fn open(args: &TraceArgs, path: &Path) -> Result<Self> {
        let is_xml = path.extension().is_some_and(|end| end.eq_ignore_ascii_case("xml"));
        Ok(Self {
            report: Output::open(args.shown.report.output.as_deref())?,
            file: Output::open(Some(path))?,
            write: if is_xml { cobertura } else { lcov },
        })
    }
}

/// A trace of first calls.
pub struct Coverage {
    pub link: Link,
    called: Arc<Map>,
    outputs: Outputs,
}

/// A function that was hooked.
#[derive(Serialize)]
struct Function<'a> {
    name: String,
    module: &'a str,
    called: bool,
    /// Where its source is, if debug information tells.
    file: Option<String>,
    line: Option<u32>,
    path: &'a str,
    #[serde(skip)]
    symbol: &'a str,
    #[serde(skip)]
    vaddr: u64,
}

/// Functions of a source file, by line and symbol: their names, and whether they were called.
type Functions<'a> = BTreeMap<(u32, &'a str), (&'a str, bool)>;

/// Functions by source file.
type Files<'a> = BTreeMap<&'a str, Functions<'a>>;

/// What `--json` prints.
#[derive(Serialize)]
struct Document<'a> {
    command: &'a Option<Vec<std::borrow::Cow<'a, str>>>,
    #[serde(skip_serializing_if = "<[u32]>::is_empty")]
    pids: &'a [u32],
    status: Option<i32>,
    #[serde(flatten)]
    wall: Wall,
    sites: Json,
    functions: &'a [Function<'a>],
    missed: u64,
    processes: Json,
    not_traced: Json,
}

impl Coverage {
    /// Loads the program and creates the link.
    pub fn load(
        dir: &Dir,
        args: &TraceArgs,
        patterns: &[String],
        exclude: Vec<String>,
        outputs: Outputs,
    ) -> Result<(Self, Vec<(Kind, u32)>)> {
        let loader = Loader::new(dir).max_entries("called", args.max_functions);
        let loaded = loader.load(&carried(OBJECT, NAME)?).map_err(own_failure)?;
        let damaged = || Failure::environment(format!("`{NAME}` is damaged"));
        let [program] = loaded.programs() else { return Err(damaged()) };
        let called = Arc::clone(loaded.map("called").ok_or_else(damaged)?);
        let spec = LinkSpec {
            cookie: Cookie::Index,
            max_functions: args.max_functions,
            exclude,
            ..describe(program, patterns).map_err(|e| rejection::attach_failure(e, NAME))?
        };
        let link = Link::create(dir, spec, None).map_err(own_failure)?;
        let control = link.read()?.spec.control;
        let objects =
            vec![(Kind::Map, called.id()), (Kind::Map, control), (Kind::Program, program.id())];
        Ok((Self { link, called, outputs }, objects))
    }

    /// Writes the file, and prints how many functions of which module were called.
    pub fn print(
        self,
        state: &LinkState,
        sites: &Sites,
        ended: &Ended<'_>,
        args: &TraceArgs,
        printer: Printer,
    ) -> Result {
        sites.note(printer, "", args.shown.report.verbose);
        let mut functions = self.functions(state);
        let no_lines = find_lines(&mut functions);
        let mut files = Files::new();
        for f in &functions {
            if let (Some(file), Some(line)) = (&f.file, f.line) {
                let of_file: &mut Functions<'_> = files.entry(file).or_default();
                of_file.entry((line, f.symbol)).or_insert((&f.name, false)).1 |= f.called;
            }
        }
        let Outputs { report, file, write } = self.outputs;
        printer.data(file, |out| write(out, &files))?;
        missed::note(printer, "", self.link.missed());
        if no_lines > 0 {
            printer.note(&format!("the source lines of {} are not known: they are not in the file (`cc -g` has them, and `--json` all functions)", units::count(no_lines as u64, "function")));
        }
        if args.shown.report.json {
            let document = Document {
                command: &ended.command,
                pids: &ended.pids,
                status: ended.status,
                wall: ended.wall,
                sites: sites.json(),
                functions: &functions,
                missed: self.link.missed().total(),
                processes: sites.processes_json(),
                not_traced: sites.not_traced_json(),
            };
            return printer.json(report, &document);
        }
        if functions.is_empty() {
            return Ok(());
        }
        let mut modules: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
        for f in &functions {
            let (all, called) = modules.entry(f.path).or_default();
            *all += 1;
            *called += usize::from(f.called);
        }
        printer.data(report, |out| {
            writeln!(out, "{:>10}{:>10}{:>8}  module", "functions", "called", "%")?;
            modules.iter().try_for_each(|(path, (all, called))| {
                let percent = 100.0 * *called as f64 / *all as f64;
                writeln!(out, "{all:>10}{called:>10}{percent:>8.1}  {}", one_line(file_name(path)))
            })
        })
    }

    /// The functions that were hooked.
    fn functions<'a>(&self, state: &'a LinkState) -> Vec<Function<'a>> {
        let hooked = state.functions.iter().enumerate().filter(|(_, f)| f.skipped.is_none());
        let function = |(index, f): (usize, &'a skep::link::FunctionRecord)| {
            let value = self.called.lookup(&(index as u32).to_le_bytes()).unwrap_or_default();
            let path = module_path(state, f.module);
            Function {
                name: demangle(&f.name).into_owned(),
                module: file_name(path),
                called: value.first().is_some_and(|b| *b != 0),
                file: None,
                line: None,
                path,
                symbol: &f.name,
                vaddr: f.vaddr,
            }
        };
        hooked.map(function).collect()
    }
}

/// Finds where the sources of functions are; returns how many are not known.
fn find_lines(functions: &mut [Function<'_>]) -> usize {
    let mut by_module: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for f in functions.iter() {
        by_module.entry(f.path).or_default().push(f.vaddr);
    }
    for (path, addrs) in by_module {
        let Ok(mut file) = SymbolFile::open(Path::new(path)) else { continue };
        let answers = file.find(&addrs, Want { lines: true, inlined: false });
        for f in functions.iter_mut().filter(|f| f.path == path) {
            let frame = answers.get(f.vaddr).and_then(|answer| answer.frames().next());
            if let Some(frame) = frame.filter(|frame| frame.line > 0) {
                let file = frame.file.map(|file| String::from_utf8_lossy(file).into_owned());
                (f.line, f.file) = (file.as_ref().map(|_| frame.line), file);
            }
        }
    }
    functions.iter().filter(|f| f.line.is_none()).count()
}

/// As `geninfo` of lcov writes it, with the names of the symbols: those that are made readable have
/// commas, at which readers end them. A function's first line stands for its lines.
fn lcov(out: &mut dyn Write, files: &Files<'_>) -> io::Result<()> {
    for (file, functions) in files {
        writeln!(out, "TN:\nSF:{}", one_line(file))?;
        // Go has commas in symbols, too.
        let name = |symbol| one_line(symbol).replace(',', ";");
        for (line, symbol) in functions.keys() {
            writeln!(out, "FN:{line},{}", name(symbol))?;
        }
        for ((_, symbol), (_, called)) in functions {
            writeln!(out, "FNDA:{},{}", u8::from(*called), name(symbol))?;
        }
        let called = count(functions.values().map(|(_, called)| called));
        writeln!(out, "FNF:{}\nFNH:{called}", functions.len())?;
        let lines = lines(functions);
        for (line, called) in &lines {
            writeln!(out, "DA:{line},{}", u8::from(*called))?;
        }
        writeln!(out, "LF:{}\nLH:{}\nend_of_record", lines.len(), count(lines.values()))?;
    }
    Ok(())
}

/// As `coverage.xml` of Cobertura, with a class for each file.
fn cobertura(out: &mut dyn Write, files: &Files<'_>) -> io::Result<()> {
    let rate = |all: usize, hit: usize| if all == 0 { 0.0 } else { hit as f64 / all as f64 };
    let all: Vec<BTreeMap<u32, bool>> = files.values().map(lines).collect();
    let valid: usize = all.iter().map(BTreeMap::len).sum();
    let covered: usize = all.iter().map(|lines| count(lines.values())).sum();
    let whole = rate(valid, covered);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let seconds = now.map_or(0, |now| now.as_secs());
    writeln!(
        out,
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE coverage SYSTEM \"http://cobertura.sourceforge.net/xml/coverage-04.dtd\">\n<coverage line-rate=\"{whole:.4}\" branch-rate=\"0\" lines-covered=\"{covered}\" lines-valid=\"{valid}\" branches-covered=\"0\" branches-valid=\"0\" complexity=\"0\" version=\"skep\" timestamp=\"{seconds}\">\n  <sources>\n    <source>/</source>\n  </sources>\n  <packages>\n    <package name=\"\" line-rate=\"{whole:.4}\" branch-rate=\"0\" complexity=\"0\">\n      <classes>"
    )?;
    for ((file, functions), lines) in files.iter().zip(&all) {
        let own = rate(lines.len(), count(lines.values()));
        let name = escaped(file_name(file));
        let file = escaped(file.strip_prefix('/').unwrap_or(file));
        writeln!(
            out,
            "        <class name=\"{name}\" filename=\"{file}\" line-rate=\"{own:.4}\" branch-rate=\"0\" complexity=\"0\">\n          <methods>"
        )?;
        for ((line, _), (name, called)) in functions {
            let (name, hits) = (escaped(name), u8::from(*called));
            writeln!(
                out,
                "            <method name=\"{name}\" signature=\"\" line-rate=\"{hits}\" branch-rate=\"0\" complexity=\"0\"><lines><line number=\"{line}\" hits=\"{hits}\"/></lines></method>"
            )?;
        }
        writeln!(out, "          </methods>\n          <lines>")?;
        for (line, called) in lines {
            let hits = u8::from(*called);
            writeln!(out, "            <line number=\"{line}\" hits=\"{hits}\"/>")?;
        }
        writeln!(out, "          </lines>\n        </class>")?;
    }
    writeln!(out, "      </classes>\n    </package>\n  </packages>\n</coverage>")
}

/// First lines of functions: whether one of them was called.
fn lines(functions: &Functions<'_>) -> BTreeMap<u32, bool> {
    let mut lines = BTreeMap::new();
    for ((line, _), (_, called)) in functions {
        *lines.entry(*line).or_default() |= *called;
    }
    lines
}

fn count<'a>(called: impl Iterator<Item = &'a bool>) -> usize {
    called.filter(|called| **called).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line end in a name made two records of one.
    #[test]
    fn records_of_lcov_end_where_they_end() -> io::Result<()> {
        let names = |symbol| ((7, symbol), ("int f<int, char>()", true));
        let functions = BTreeMap::from([names("nl\nend_of_record\x1b"), names("main.f[int,int]")]);
        let mut out = Vec::new();
        lcov(&mut out, &BTreeMap::from([("/a\nb.c", functions)]))?;
        let wanted = r"TN:
SF:/a\012b.c
FN:7,main.f[int;int]
FN:7,nl\012end_of_record\033
FNDA:1,main.f[int;int]
FNDA:1,nl\012end_of_record\033
FNF:2
FNH:2
DA:7,1
LF:1
LH:1
end_of_record
";
        assert_eq!(String::from_utf8_lossy(&out), wanted);
        Ok(())
    }
}
