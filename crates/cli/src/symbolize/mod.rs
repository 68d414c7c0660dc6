//! `skep symbolize`: functions and source lines of addresses.

pub mod addr2line;
mod debuginfod;
mod input;
mod stacks;

use std::borrow::Cow;
use std::io::{self, Write};
use std::path::Path;

use serde_json::{Value as Json, json};
use skep_proc::demangle::demangle;
use skep_proc::elf::ET_REL;
use skep_proc::maps::{
    Filter, MapSource, MapsError, Perms, Process, Snapshot, Vma, Want as VmaWant, open_core,
};
use skep_proc::module;
use skep_proc::symbolize::{
    AddressSpace, Answer, Fetch, OutsideNames, Place, SourceFrame, SymbolFile, Want,
};

use crate::args::SymbolizeArgs;
use crate::failure::{Context, FAILED, Failure, Result};
use crate::printer::{Output, Printer, one_line};
use crate::vma::vma_json;
use crate::vma_target::failure;
use input::Addresses;

/// Addresses that are looked at together: the memory that answers take grows with them, and each batch
/// goes over the symbol table once,
const MOST_OF_NAMES: usize = 12 << 10;
/// or over the debug information, which takes a hundred times as long.
const MOST_OF_LINES: usize = 1 << 20;
/// Longest snapshot that is read.
const MAX_SNAPSHOT: usize = 1 << 30;

/// Whose addresses they are.
enum Source {
    File(Box<SymbolFile>),
    /// Also its mappings.
    Process(Box<AddressSpace>, Box<dyn MapSource>),
}

/// Takes an address, what is known of it, and its mapping.
type Put<'a> = dyn FnMut(u64, &Place<'_>, Option<Vma>) -> io::Result<()> + 'a;

/// Answers the question; the exit status is 1 if an address has no name.
pub fn run(args: &SymbolizeArgs, printer: Printer) -> Result<u8> {
    let fetch = args.debuginfod.then(|| debuginfod::fetch(printer)).transpose()?;
    if args.stacks {
        let Some(core) = &args.core else {
            return Err(Failure::environment("`--stacks` are those of a core file")
                .hint("name it: `--core FILE`"));
        };
        return stacks::print(core, args, fetch, printer);
    }
    let mut source = open(args, fetch, printer)?;
    let given = if args.addresses == ["-"] { &[] } else { &args.addresses[..] };
    let mut addresses = Addresses::new(given, input::address, input::LONGEST_LINE);
    let is_live = args.pid.is_some();
    let want = Want { lines: !args.names, inlined: args.inlines };
    let most = if want.lines { MOST_OF_LINES } else { MOST_OF_NAMES };
    let mut named = true;
    let mut before = "[";
    while let Some(addrs) = addresses.next_batch(most)? {
        let is_read = printer.part(Output::Stdout, |out| {
            source.each(&addrs, want, &mut |addr, place, vma| {
                let text = Text { mangled: args.mangled, place, addr, vma, is_live };
                named &= text.function().is_some();
                if args.format.json {
                    out.write_all(std::mem::replace(&mut before, ",").as_bytes())?;
                    return Ok(serde_json::to_writer(&mut *out, &text.json())?);
                }
                text.write(out)
            })
        })?;
        // What is left on standard input may have no end.
        if !is_read {
            break;
        }
    }
    if args.format.json {
        let end = if before == "[" { "[]\n" } else { "]\n" };
        printer.data(Output::Stdout, |out| out.write_all(end.as_bytes()))?;
    }
    Ok(if named { 0 } else { FAILED })
}

fn open(args: &SymbolizeArgs, fetch: Option<Fetch>, printer: Printer) -> Result<Source> {
    if let Some(path) = &args.file {
        return Ok(Source::File(Box::new(open_file(path, fetch, !args.names, printer)?)));
    }
    let with_fetch = |space| fetch.into_iter().fold(space, AddressSpace::with_fetch);
    let saved = match (&args.snapshot, &args.core) {
        (Some(path), _) => Some(
            skep_proc::file::read(path, MAX_SNAPSHOT)
                .context(cannot_read(path))
                .and_then(|bytes| Snapshot::from_bytes(&bytes).context(cannot_read(path)))?,
        ),
        (_, Some(path)) => Some(open_core(path).context(cannot_read(path))?),
        _ => None,
    };
    if let Some(saved) = saved {
        let mut space = AddressSpace::of_modules(module::saved(&saved));
        if let Some(core) = &args.core {
            stacks::add_vdso(&mut space, core, printer)?;
        }
        return Ok(Source::Process(Box::new(with_fetch(space)), Box::new(saved)));
    }
    let Some(pid) = args.pid else {
        return Err(Failure::environment("nothing says whose addresses they are")
            .hint("name it: `-p PID`, `--file BINARY`, `--core FILE` or `--snapshot FILE`"));
    };
    let gone = |error| match error {
        MapsError::Gone | MapsError::Ended { .. } => {
            Failure::failed(format!("there is no process `{pid}`"))
        }
        e => failure(e),
    };
    let process = Process::open(pid).map_err(gone)?;
    let space = AddressSpace::of_modules(module::of(pid).map_err(gone)?);
    let space = space.with_outside(OutsideNames::of_process(pid));
    // What was read since it was opened is of this process, and of this program of it.
    process.check().map_err(gone)?;
    Ok(Source::Process(Box::new(with_fetch(space)), Box::new(process)))
}

fn cannot_read(path: &Path) -> String {
    format!("cannot read `{}`", path.display())
}

/// Opens a file to find symbols in; says so if its debug information is damaged.
fn open_file(
    path: &Path,
    fetch: Option<Fetch>,
    lines: bool,
    printer: Printer,
) -> Result<SymbolFile> {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let file = SymbolFile::open(&absolute).context(cannot_read(path))?;
    let mut file = fetch.into_iter().fold(file, SymbolFile::with_fetch);
    if let Some(e) = file.names_error() {
        printer.warning(&format!("{}: only names of dynamic symbols: {e}", path.display()));
    }
    if let Some(e) = if lines { file.lines_error() } else { None } {
        printer.warning(&format!("{}: no lines: {e}", path.display()));
    }
    Ok(file)
}

impl Source {
    /// Calls `put` with each address, what is known of it, and its mapping.
    fn each(&mut self, addrs: &[u64], want: Want, put: &mut Put<'_>) -> io::Result<()> {
        let (space, maps) = match self {
            Self::File(file) => {
                // Nothing is loaded of a relocatable file: addresses are offsets in its code.
                let code = Some(file.elf()).filter(|elf| elf.kind() == ET_REL);
                let base = code.and_then(|elf| elf.first_code()).map_or(0, |s| s.vaddr);
                let placed: Vec<u64> = addrs.iter().map(|addr| base.wrapping_add(*addr)).collect();
                let answers = file.find(&placed, want);
                for (number, (addr, vaddr)) in addrs.iter().zip(placed).enumerate() {
                    let answer = answers.at(number).map(Ok);
                    let place = Place { path: None, vaddr, answer, outside: None };
                    put(*addr, &place, None)?;
                }
                return Ok(());
            }
            Self::Process(space, maps) => (space, maps),
        };
        let answers = space.find(addrs, want);
        for addr in addrs {
            let vma = maps.query(*addr, &Filter::default(), VmaWant::ALL).ok().flatten();
            put(*addr, &answers.get(*addr), vma)?;
        }
        Ok(())
    }
}

/// An address and what is said of it.
pub struct Text<'a> {
    /// Names are not demangled.
    pub mangled: bool,
    /// What was found.
    pub place: &'a Place<'a>,
    /// The address.
    pub addr: u64,
    /// Its mapping.
    pub vma: Option<Vma>,
    /// The mapping is that of a process, not one that was saved.
    pub is_live: bool,
}

impl<'a> Text<'a> {
    fn answer(&self) -> Option<Answer<'a>> {
        self.place.answer.and_then(std::result::Result::ok)
    }

    fn name(&self, name: &'a [u8]) -> Cow<'a, str> {
        // `from_utf8_lossy` looks at bytes one by one.
        match str::from_utf8(name) {
            Ok(name) if !self.mangled => demangle(name),
            Ok(name) => Cow::Borrowed(name),
            Err(_) => String::from_utf8_lossy(name),
        }
    }

    /// The function, and the distance from its start; without a symbol that is not known.
    pub fn function(&self) -> Option<(Cow<'a, str>, Option<u64>)> {
        if let Some(outside) = self.place.outside {
            return Some((self.name(outside.name), Some(self.addr - outside.start)));
        }
        let answer = self.answer()?;
        match answer.symbol() {
            Some(symbol) => Some((self.name(symbol.name), Some(self.place.vaddr - symbol.start))),
            None => answer.frames().last()?.name.map(|name| (self.name(name), None)),
        }
    }

    fn frames(&self) -> Vec<SourceFrame<'a>> {
        let frames = self.answer().map_or_else(Vec::new, |a| a.frames().collect());
        let outside = self.place.outside.and_then(|outside| SourceFrame::of_outside(&outside));
        outside.map_or(frames, |frame| vec![frame])
    }

    fn file(&self, frame: &SourceFrame<'a>) -> Option<Cow<'a, str>> {
        frame.file.map(String::from_utf8_lossy)
    }

    /// The function, its source line and what was inlined there; `null` if it has no name.
    pub fn symbol_json(&self) -> Json {
        let frames = self.frames();
        let (outer, inlined) = frames.split_last().map_or((None, &[][..]), |(o, i)| (Some(o), i));
        let line = |frame: &SourceFrame<'_>| Some(frame.line).filter(|line| *line > 0);
        let inlined: Json = inlined
            .iter()
            .map(|f| json!({"name": f.name.map(|n| self.name(n)), "file": self.file(f), "line": line(f), "column": f.column}))
            .collect();
        self.function().map_or(Json::Null, |(name, offset)| {
            json!({
                "name": name,
                "offset": offset,
                "file": outer.and_then(|f| self.file(f)),
                "line": outer.and_then(line),
                "column": outer.map(|f| f.column),
                "inlined": inlined,
            })
        })
    }

    fn json(&self) -> Json {
        // What is asked of a file is a link-time address already.
        let vaddr = if self.place.path.is_some() { self.place.vaddr } else { self.addr };
        json!({
            "address": format!("{:#x}", self.addr),
            "vma": self.vma.as_ref().map(vma_json),
            "module": self.place.path.map(|p| p.to_string_lossy()),
            "vaddr": format!("{vaddr:#x}"),
            "symbol": self.symbol_json(),
            "error": self.error(),
        })
    }

    fn error(&self) -> Option<String> {
        if let Some(Err(error)) = self.place.answer {
            return Some(error.to_string());
        }
        // Saved mappings have no headers to go by: without its file a module is not known at all. A process
        // has them in its memory, unless something else is mapped.
        let vma = self.vma.as_ref().filter(|v| v.perms.contains(Perms::EXEC))?;
        let name =
            vma.name.as_ref().filter(|n| n.starts_with(b"/") && self.place.path.is_none())?;
        let what = if self.is_live { "a program or library" } else { "the file that was mapped" };
        Some(format!("`{}` is not {what}", String::from_utf8_lossy(name)))
    }

    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        write!(out, "{:#x}:", self.addr)?;
        let frames = self.frames();
        let (outer, inlined) = frames.split_last().map_or((None, &[][..]), |(o, i)| (Some(o), i));
        let mut joint = "";
        for frame in inlined {
            let name = frame.name.map_or(Cow::Borrowed("??"), |n| self.name(n));
            write!(out, "{joint} {}", one_line(&name))?;
            self.line(frame, out)?;
            joint = "\n  inlined into";
        }
        match self.function() {
            Some((name, offset)) => {
                write!(out, "{joint} {}", one_line(&name))?;
                offset.map_or(Ok(()), |offset| write!(out, "+{offset:#x}"))?;
            }
            None => write!(out, "{joint} ??")?,
        }
        if let Some(frame) = outer {
            self.line(frame, out)?;
        }
        if let Some(path) = self.place.path {
            write!(out, " in {}+{:#x}", one_line(&path.to_string_lossy()), self.place.vaddr)?;
        }
        if let Some(error) = self.error() {
            write!(out, " ({})", one_line(&error))?;
        }
        writeln!(out)
    }

    fn line(&self, frame: &SourceFrame<'_>, out: &mut dyn Write) -> io::Result<()> {
        let Some(file) = self.file(frame) else { return Ok(()) };
        write!(out, " at {}:{}", one_line(&file), frame.line)?;
        if frame.column > 0 { write!(out, ":{}", frame.column) } else { Ok(()) }
    }
}
