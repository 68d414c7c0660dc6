//! Call stacks with names, and the forms that they are written in.

pub mod flame;
pub mod folded;
pub mod pprof;

use std::borrow::Cow;
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use skep::link::MappedModule;
use skep_proc::demangle;
use skep_proc::symbolize::{AddressSpace, Place, Want};

use crate::failure::Result;
use crate::printer::{Output, Printer};

/// How stacks are written.
type Form = fn(&Frames, &mut dyn io::Write) -> io::Result<()>;

/// Files that stacks are written to, created before there are any.
pub struct Files(Vec<(Output, Form)>);

impl Files {
    /// Creates the files that were asked for.
    pub fn open(
        folded: Option<&PathBuf>,
        flame: Option<&PathBuf>,
        pprof: Option<&PathBuf>,
    ) -> Result<Self> {
        let asked: [(_, Form); 3] =
            [(folded, folded::write), (flame, flame::write), (pprof, pprof::write)];
        let mut files = Vec::new();
        for (path, form) in asked {
            if let Some(path) = path {
                files.push((Output::open(Some(path))?, form));
            }
        }
        Ok(Self(files))
    }

    /// Tells whether no file was asked for.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Writes all files.
    pub fn write(self, frames: &Frames, printer: Printer) -> Result {
        self.0
            .into_iter()
            .try_for_each(|(output, form)| printer.data(output, |out| form(frames, out)))
    }
}

/// What the weights of stacks are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Unit {
    #[default]
    Samples,
    Nanoseconds,
}

impl Unit {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Samples => "samples",
            Self::Nanoseconds => "ns",
        }
    }
}

/// A call stack as programs record it.
#[derive(Debug, PartialEq)]
pub struct Stack {
    /// The innermost first: where the program ran, then return addresses.
    pub addrs: Vec<u64>,
    /// What stands below all frames, such as the name of a thread.
    pub root: Option<String>,
    /// How often it was there, or what else was summed up.
    pub weight: u64,
}

/// A function that a frame stands for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Named {
    /// Its name, else the module and address, else the address.
    pub name: String,
    /// Source file; empty if it is not known.
    pub file: String,
    /// Line; 0 if it is not known.
    pub line: u32,
}

/// An address of stacks, with the functions that are inlined there.
#[derive(Debug)]
pub struct Location {
    pub addr: u64,
    /// Path of the module; empty if there is none.
    pub module: String,
    /// Numbers in [`Frames::functions`] with the line of each, the innermost first.
    pub functions: Vec<(usize, u32)>,
}

/// Stacks whose frames have names.
#[derive(Debug, Default)]
pub struct Frames {
    pub functions: Vec<Named>,
    pub locations: Vec<Location>,
    pub stacks: Vec<NamedStack>,
    pub unit: Unit,
}

/// A stack of locations, the innermost first.
#[derive(Debug)]
pub struct NamedStack {
    pub root: Option<String>,
    pub locations: Vec<usize>,
    pub weight: u64,
}

impl Frames {
    /// The names of a stack's functions, the outermost first.
    pub fn names<'f>(&'f self, stack: &'f NamedStack) -> impl Iterator<Item = &'f str> {
        let frames = stack.locations.iter().rev().filter_map(|l| self.locations.get(*l));
        let functions = frames.flat_map(|l| l.functions.iter().rev());
        let names = functions.filter_map(|(f, _)| self.functions.get(*f)).map(|f| f.name.as_str());
        stack.root.as_deref().into_iter().chain(names)
    }
}

/// Names the frames of stacks of processes whose modules lay as `mapped` says.
pub fn named(stacks: Vec<Stack>, mapped: &[MappedModule]) -> Frames {
    let mut space = AddressSpace::default();
    // A process that was forked has the modules of its parent.
    let mut known = std::collections::HashSet::new();
    for module in mapped {
        for (start, end) in &module.text {
            if known.insert((&module.path, *start)) {
                space.add(Path::new(&module.path), *start, *end, module.bias);
            }
        }
    }
    let mut addrs: Vec<u64> = stacks.iter().flat_map(Stack::calls).collect();
    addrs.sort_unstable();
    addrs.dedup();
    let answers = space.find(&addrs, Want { lines: true, inlined: true });
    let mut frames = Frames::default();
    let mut numbers = HashMap::new();
    for addr in &addrs {
        let place = answers.get(*addr);
        let functions = functions(&place, *addr)
            .into_iter()
            .map(|(named, line)| (number(&mut numbers, &mut frames.functions, named), line))
            .collect();
        let module = place.path.map_or(Cow::Borrowed(""), Path::to_string_lossy).into_owned();
        frames.locations.push(Location { addr: *addr, module, functions });
    }
    frames.stacks = stacks
        .into_iter()
        .map(|stack| NamedStack {
            locations: stack.calls().filter_map(|a| addrs.binary_search(&a).ok()).collect(),
            root: stack.root,
            weight: stack.weight,
        })
        .collect();
    frames
}

impl Stack {
    /// Addresses inside of the instructions that called: a return address may belong to the next
    /// function already.
    fn calls(&self) -> impl Iterator<Item = u64> {
        self.addrs.iter().enumerate().map(|(i, addr)| addr.saturating_sub(u64::from(i > 0)))
    }
}

fn number(numbers: &mut HashMap<Named, usize>, functions: &mut Vec<Named>, named: Named) -> usize {
    *numbers.entry(named).or_insert_with_key(|named| {
        functions.push(named.clone());
        functions.len() - 1
    })
}

/// The functions of an address, the innermost first, each with its line there.
fn functions(place: &Place<'_>, addr: u64) -> Vec<(Named, u32)> {
    let plain = |name: &[u8]| demangle::short(&String::from_utf8_lossy(name)).into_owned();
    let answer = place.answer.and_then(Result::ok);
    let symbol = answer.and_then(|a| a.symbol());
    let mut all: Vec<_> = answer
        .into_iter()
        .flat_map(|a| a.frames())
        .map(|f| {
            let file = String::from_utf8_lossy(f.file.unwrap_or_default()).into_owned();
            (Named { name: f.name.map_or_else(String::new, plain), file, line: 0 }, f.line)
        })
        .collect();
    match (all.last_mut(), symbol) {
        (Some((named, _)), Some(symbol)) => named.name = plain(symbol.name),
        (None, Some(symbol)) => {
            all.push((Named { name: plain(symbol.name), file: String::new(), line: 0 }, 0));
        }
        (None, None) => {
            let name = match (place.outside, place.path.and_then(Path::file_name)) {
                (Some(outside), _) => plain(outside.name),
                (None, Some(file)) => format!("{}+{:#x}", file.to_string_lossy(), place.vaddr),
                (None, None) => format!("{addr:#x}"),
            };
            all.push((Named { name, file: String::new(), line: 0 }, 0));
        }
        (Some(_), None) => {}
    }
    for (named, _) in all.iter_mut().filter(|(n, _)| n.name.is_empty()) {
        named.name = "??".to_owned();
    }
    all
}
