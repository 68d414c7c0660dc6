//! Chains in the running kernel: the programs of a chain become one XDP program, which is attached
//! to an interface by a link.
//!
//! [`Sources`] has the objects, a [`Graph`] names their programs by [`Sources::program`], and
//! [`KernelChain::load`] makes program and maps of them. That is all that tests and benches need.
//! [`attach()`] puts it on an interface, where it stays when this process ends.
//!
//! ```no_run
//! use skep::chain::kernel::{KernelChain, Sources};
//! use skep::chain::{Count, Edit, Graph, Place};
//! use skep::isa::ProgramType;
//! use skep::object::Object;
//!
//! let mut sources = Sources::new(None);
//! let object = sources.add("fw", Object::parse(&std::fs::read("fw.bpf.o")?)?);
//! let filter = sources.program(object, "filter")?;
//! let on = "pass".parse().unwrap_or_default();
//! let edits = [Edit::Add { program: filter, place: Place::First { on } }];
//! let (graph, _) = Graph::new(ProgramType::Xdp).transaction(0, &edits)?;
//! let chain = KernelChain::load(&sources, &graph, Count::Runs, None)?;
//! println!("program {}", chain.program().id_and_maps()?.0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod assemble;
mod attach;
mod carried;
mod compose;
mod counters;
mod error;
mod holder;
mod maps;
mod origin;
mod pins;
mod stack;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::PathBuf;

use skep_isa::{AttachType, Insn, MapFlags, MapType, ProgramType, helper, kfunc, op};
use skep_kernel::{Btf as KernelBtf, Map, MapSpec, Program, ProgramSpec, with_maps};
use skep_net::chain::{Graph, ProgramRef, Stats};
use skep_object::btf::{FunctionTypes, Kind};
use skep_object::{Btf, CoreTarget, LinkOptions, Object};
use skep_store::chain::ChainSpec;
use skep_verifier::{Options, Verified};
use skep_vm::chain::Count;

use self::compose::{Composed, Part};
use self::counters::Pages;
use self::maps::Maps;
use super::{Assignments, ObjectHash, convert};
use crate::packets::is_of_entries;

pub use attach::{Attached, OnInterface, attach, change, detach, list, show};
pub use error::KernelChainError;
pub use maps::{Existing, KernelMap};
pub use origin::Current;
pub use pins::{BPF_FS, MapPins};
pub use skep_kernel::XdpMode;

type Result<T, E = KernelChainError> = std::result::Result<T, E>;
use KernelChainError as Error;

/// Names of the maps that a chain's program has for skep.
const COUNTS: &str = "skep_counts";
const DESCRIPTION: &str = "skep_chain";
const BEFORE: &str = "skep_before";
const ORIGIN: &str = "skep_origin";

/// The types of the running kernel.
const VMLINUX: &str = "/sys/kernel/btf/vmlinux";

/// The objects that a chain's programs come from.
pub struct Sources {
    target: Option<CoreTarget>,
    objects: Vec<(String, Object)>,
    /// The files of objects, as far as they were told.
    files: BTreeMap<usize, SourceFile>,
    /// Object and program behind each number that a graph has.
    programs: std::cell::RefCell<Vec<(usize, usize)>>,
}

impl Sources {
    /// Begins without objects; `target` has the types that programs are relocated against (CO-RE).
    #[must_use]
    pub fn new(target: Option<CoreTarget>) -> Self {
        let (objects, files) = (Vec::new(), BTreeMap::new());
        Self { target, objects, files, programs: Vec::new().into() }
    }

    /// Gives the types that programs are relocated against, if none were given yet.
    pub fn relocate_against(&mut self, target: Option<CoreTarget>) {
        self.target = self.target.take().or(target);
    }

    /// Adds an object under a name, and returns its number. Programs of one number share its maps.
    pub fn add(&mut self, name: &str, object: Object) -> usize {
        self.objects.push((name.to_owned(), object));
        self.objects.len() - 1
    }

    /// Tells which file an object is from, so that [`change`] can build on a chain that has programs
    /// of it.
    pub fn is_from(&mut self, object: usize, file: SourceFile) {
        let path = std::path::absolute(&file.path).unwrap_or_else(|_| file.path.clone());
        self.files.insert(object, SourceFile { path, ..file });
    }

    /// Finds the object of a file whose maps programs share that are added, and what its global
    /// variables were set to.
    #[must_use]
    pub fn shared(&self, hash: ObjectHash) -> Option<(usize, &Assignments)> {
        let mut all = self.files.iter();
        all.find_map(|(n, f)| (f.hash == hash && f.shares_maps).then_some((*n, &f.set)))
    }

    /// Returns an object and its name.
    #[must_use]
    pub fn object(&self, number: usize) -> Option<&(String, Object)> {
        self.objects.get(number)
    }

    /// Describes a program of an object for the edits of a graph.
    ///
    /// # Errors
    /// When the object has no such program, or its section's name is of no known type.
    pub fn program(&self, object: usize, name: &str) -> Result<ProgramRef> {
        let unknown = |why: &str| Error::Unsupported { node: name.to_owned(), why: why.to_owned() };
        let (_, of) = self.objects.get(object).ok_or(Error::Parts)?;
        let index = of.program(name).ok_or_else(|| unknown("is not in the object"))?;
        let program = of.programs.get(index).ok_or(Error::Parts)?;
        let def = program.def.ok_or_else(|| unknown("is in a section of no known type"))?;
        let mut known = self.programs.borrow_mut();
        let place = known.iter().position(|p| *p == (object, index)).unwrap_or_else(|| {
            known.push((object, index));
            known.len() - 1
        });
        Ok(ProgramRef {
            id: place as u32 + 1,
            name: program.name.clone(),
            prog_type: def.prog,
            attach_type: def.attach,
            frags: program.section_meant().starts_with("xdp.frags"),
            device: None,
        })
    }

    /// Links and proves a program.
    fn prove(&self, object: usize, program: usize) -> Result<Verified> {
        let (_, of) = self.objects.get(object).ok_or(Error::Parts)?;
        let how = LinkOptions {
            target: self.target.as_ref(),
            known_kfuncs: true,
            ..LinkOptions::default()
        };
        let linked = of.link_with(program, &how).map_err(|e| Error::Link(Box::new(e)))?;
        let mut options = Options::default();
        // What the kernel lets root do.
        options.allow_uninit_stack = true;
        options.target = self.target.as_ref().map(|t| t.btf().clone());
        let proof = skep_verifier::verify(&linked, &options);
        proof.map_err(|rejection| Error::Rejected(Box::new(rejection)))
    }
}

/// The file of an object.
#[derive(Clone, Debug)]
pub struct SourceFile {
    /// Where it is.
    pub path: PathBuf,
    /// Its bytes.
    pub hash: ObjectHash,
    /// Programs of the file that are added later get the same maps.
    pub shares_maps: bool,
    /// Which of its global variables were set.
    pub set: Assignments,
}

/// A chain's program in the kernel, with its maps. It goes when this is dropped, unless it is
/// attached.
#[derive(Debug)]
pub struct KernelChain {
    program: Program,
    /// Programs that tail calls lead to.
    others: Vec<Program>,
    maps: Vec<KernelMap>,
    counters: Option<Map>,
    graph: Graph,
}

impl KernelChain {
    /// Proves the programs of a graph, makes their maps in the kernel, and loads them as one
    /// program. `existing` finds maps that are to be used again.
    ///
    /// # Errors
    /// When a program is rejected, here or by the kernel, needs something that the kernel has not,
    /// or all of them more than one program may have.
    pub fn load(
        sources: &Sources,
        graph: &Graph,
        count: Count,
        existing: Option<&Existing<'_>>,
    ) -> Result<Self> {
        let (plan, order) = graph.plan().ok_or(Error::Empty)?;
        let frags = graph.takes_fragments();
        let known = sources.programs.borrow().clone();
        // Each program is proved once, wherever it stands.
        let mut proofs: BTreeMap<usize, Verified> = BTreeMap::new();
        let mut steps = Vec::new();
        for id in &order {
            let node = graph.node(*id).ok_or(Error::Parts)?;
            let label = format!("{} ({id})", node.program.name);
            if node.program.prog_type != ProgramType::Xdp {
                let kind = node.program.prog_type.name();
                return Err(Error::Type { node: label, kind });
            }
            if is_of_entries(node.program.attach_type) {
                return Err(Error::Entry { node: label });
            }
            let number = (node.program.id as usize).wrapping_sub(1);
            let (object, program) = known.get(number).copied().ok_or(Error::Parts)?;
            if let Entry::Vacant(place) = proofs.entry(number) {
                place.insert(sources.prove(object, program)?);
            }
            steps.push((label, number, object));
        }
        let objects = sources.objects.iter().map(|(_, o)| o).collect();
        let mut maps = Maps::new(objects, existing);
        let counts = count != Count::Off;
        let mut places: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (_, number, object) in &steps {
            let Some(proof) = proofs.get(number).filter(|_| !places.contains_key(number)) else {
                continue;
            };
            let its = proof.linked().maps.iter();
            let its = its.map(|m| Ok(maps.place(*object, m.index)? + usize::from(counts)));
            places.insert(*number, its.collect::<Result<_>>()?);
        }
        let mut parts = Vec::new();
        for (label, code, _) in &steps {
            let (Some(proof), Some(maps)) = (proofs.get(code), places.get(code)) else {
                return Err(Error::Parts);
            };
            let info = proof.info();
            let stack = (info.subprogs.first().map_or(0, |s| s.1), info.stack_depth);
            let linked = proof.linked();
            parts.push(Part { label, code: *code, linked, stack, maps });
        }
        let composed = compose::compose(&plan, &parts, count, frags)?;
        let gpl = parts.iter().all(|p| p.linked.gpl);
        let counters = match counts {
            true => {
                let pages = Pages::of(&plan);
                let size = pages.words as u32 * 8;
                let spec = MapSpec::new(MapType::PercpuArray, 4, size, pages.pages as u32);
                Some(own_map(&MapSpec { name: COUNTS, ..spec })?)
            }
            false => None,
        };
        let labels: Vec<&str> = steps.iter().map(|(label, ..)| label.as_str()).collect();
        let mut others = Vec::new();
        maps.initialize(|maps, object, name| {
            let program = tail_program(sources, maps, (object, name), frags)?;
            let fd = program.fd();
            others.push(program);
            Ok(fd)
        })?;
        let used: Vec<&Map> = counters.iter().chain(maps.all.iter().map(|m| &m.map)).collect();
        let program = load(&composed, &used, gpl, frags, &labels)?;
        let description = convert::to_spec(graph, ProgramType::Xdp).encode();
        let origin = origin::encode(sources, graph, &maps.all, count)?;
        for (name, bytes) in [(DESCRIPTION, description), (ORIGIN, origin)] {
            let bound = program.bind_map(&constant(name, &bytes)?);
            bound.map_err(|source| Error::Kernel { what: DESCRIBE.to_owned(), source })?;
        }
        Ok(Self { program, others, maps: maps.all, counters, graph: graph.clone() })
    }

    /// Returns the program.
    #[must_use]
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Returns the maps of the objects, in the order in which the programs refer to them.
    #[must_use]
    pub fn maps(&self) -> &[KernelMap] {
        &self.maps
    }

    /// Returns how many programs there are beside the chain's, for tail calls.
    #[must_use]
    pub fn tail_programs(&self) -> usize {
        self.others.len()
    }

    /// Returns the graph.
    #[must_use]
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Reads what was counted so far; nothing of a chain that does not count.
    ///
    /// # Errors
    /// When the kernel does not let the counters be read.
    pub fn stats(&self) -> Result<Stats> {
        self.counters.as_ref().map_or(Ok(Stats::default()), |map| stats(&self.graph, map))
    }
}

/// Makes a map of a chain itself.
fn own_map(spec: &MapSpec<'_>) -> Result<Map> {
    let why = |e: skep_kernel::Error| e.to_string();
    Map::create(spec).map_err(|e| Error::Map { map: spec.name.to_owned(), why: why(e) })
}

const DESCRIBE: &str = "describe the chain";

/// Makes a map of one value that nobody changes.
fn constant(name: &str, bytes: &[u8]) -> Result<Map> {
    let spec = MapSpec::new(MapType::Array, 4, bytes.len() as u32, 1);
    let map = own_map(&MapSpec { name, ..spec }.flags(MapFlags::RDONLY_PROG))?;
    let done = map.update(&[0; 4], bytes, 0).and_then(|()| map.freeze());
    done.map_err(|source| Error::Kernel { what: DESCRIBE.to_owned(), source })?;
    Ok(map)
}

/// Reads the graph that a map describes.
fn described(map: &Map) -> Option<Graph> {
    let bytes = map.lookup(&[0; 4]).ok()?;
    convert::to_graph(ChainSpec::decode(&bytes).ok()?).ok()
}

/// Adds the counters of all processors.
fn stats(graph: &Graph, map: &Map) -> Result<Stats> {
    let mut stats = Stats::default();
    let Some((plan, order)) = graph.plan() else { return Ok(stats) };
    let pages = Pages::of(&plan);
    let mut words = Vec::new();
    for page in 0..pages.pages as u32 {
        let value = map.lookup(&page.to_ne_bytes());
        let what = || "read the chain's counters".to_owned();
        let value = value.map_err(|source| Error::Kernel { what: what(), source })?;
        let mut sums = vec![0u64; pages.words];
        for cpu in value.chunks_exact(pages.words * 8) {
            let numbers = cpu.as_chunks().0.iter().map(|w| u64::from_ne_bytes(*w));
            sums.iter_mut().zip(numbers).for_each(|(sum, n)| *sum = sum.wrapping_add(n));
        }
        words.push(sums);
    }
    let words = pages.in_order(&plan, &words);
    stats.add(graph, &plan, &order, |n| words.get(n).copied().unwrap_or(0), |ns| ns);
    Ok(stats)
}

/// Loads a program that a tail call may lead to.
fn tail_program(
    sources: &Sources,
    maps: &mut Maps<'_>,
    (object, name): (usize, &str),
    frags: bool,
) -> Result<Program> {
    let (_, of) = sources.objects.get(object).ok_or(Error::Parts)?;
    let index = of.program(name).ok_or(Error::Parts)?;
    let proof = sources.prove(object, index)?;
    let linked = proof.linked();
    let places = linked.maps.iter().map(|m| maps.place(object, m.index));
    let places = places.collect::<Result<Vec<_>>>()?;
    let used: Vec<&Map> = places.iter().filter_map(|p| maps.get(*p)).collect();
    let functions = linked.subprogs.iter().map(|s| (s.start, s.name.clone())).collect();
    let composed = Composed {
        insns: linked.insns.clone(),
        functions,
        lines: Vec::new(),
        ranges: vec![(0, Some(0))],
    };
    load(&composed, &used, linked.gpl, frags, &[name])
}

/// Loads a program whose maps are indices, with types of its functions and source lines.
fn load(
    composed: &Composed,
    maps: &[&Map],
    gpl: bool,
    frags: bool,
    labels: &[&str],
) -> Result<Program> {
    let insns = kernel_functions(&composed.insns, labels.first().copied().unwrap_or_default())?;
    let bytes: Vec<u8> = insns.iter().flat_map(|i| i.to_bytes()).collect();
    let bytes = with_maps(&bytes, maps);
    let mut types = FunctionTypes::new();
    let functions: Vec<[u32; 2]> = composed
        .functions
        .iter()
        .map(|(start, name)| [*start as u32, types.add(name, *start == 0)])
        .collect();
    let mut lines = Vec::new();
    for line in &composed.lines {
        let [file, text] = [&line.file, &line.text].map(|s| types.string(s));
        lines.push([line.insn as u32, file, text, line.line << 10 | line.column.min(1023)]);
    }
    let what = || "load the types of the chain's functions".to_owned();
    let btf =
        types.finish().map_err(|e| Error::File { what: format!("cannot {}: {e}", what()) })?;
    let btf =
        KernelBtf::load(btf.raw()).map_err(|source| Error::Kernel { what: what(), source })?;
    let spec = ProgramSpec {
        attach_type: Some(AttachType::Xdp),
        gpl,
        flags: if frags { ProgramSpec::XDP_HAS_FRAGS } else { 0 },
        types: Some((&btf, &functions)),
        lines: &lines,
        name: "skep_chain",
        log: true,
        ..ProgramSpec::new(ProgramType::Xdp, &bytes)
    };
    Program::load(&spec).map_err(|refused| refusal(composed, &refused, labels))
}

/// Lines of the kernel's log that are shown.
const SHOWN: usize = 12;

/// Finds out which node the kernel's verifier did not like.
fn refusal(composed: &Composed, refused: &skep_kernel::LoadError, labels: &[&str]) -> Error {
    if refused.log.is_empty() {
        let (what, call) = ("load the chain".to_owned(), &refused.error);
        return match call.requirement() {
            Some(needs) => Error::File { what: format!("cannot {what}: {call}; it takes {needs}") },
            None => Error::File { what: format!("cannot {what}: {call}") },
        };
    }
    let lines: Vec<&str> = refused
        .log
        .lines()
        .filter(|l| {
            !l.is_empty() && !l.starts_with("processed ") && !l.starts_with("verification time")
        })
        .collect();
    let number = |l: &&str| l.split_once(": (")?.0.trim().parse::<usize>().ok();
    let step = lines.iter().rev().find_map(number).and_then(|insn| {
        let after = composed.ranges.partition_point(|(start, _)| *start <= insn);
        composed.ranges.get(after.checked_sub(1)?)?.1
    });
    let what = match step.and_then(|s| labels.get(s)) {
        Some(label) => format!("program `{label}`"),
        None => "the chain".to_owned(),
    };
    let last = lines.last().map_or_else(|| refused.error.to_string(), |l| (*l).to_owned());
    let from = lines.len().saturating_sub(SHOWN);
    let log = lines.iter().skip(from).map(|l| (*l).to_owned()).collect();
    Error::Refused { what, last, log }
}

/// Turns the numbers of kernel functions into those that the running kernel has for them.
fn kernel_functions(insns: &[Insn], node: &str) -> Result<Vec<Insn>> {
    let mut out = insns.to_vec();
    let mut types: Option<Btf> = None;
    for insn in out.iter_mut().filter(|i| i.is_helper_call()) {
        let id = insn.imm as u32;
        let name = kfunc::by_id(id)
            .map(|k| k.name)
            .or_else(|| helper::by_id(id).filter(|_| id >= helper::KFUNC_BASE).map(|h| h.name));
        let Some(name) = name else { continue };
        let missing = |why: String| Error::Unsupported { node: node.to_owned(), why };
        if types.is_none() {
            let bytes = std::fs::read(VMLINUX).ok();
            types = bytes.and_then(|b| Btf::parse(&b).ok());
        }
        let found = types.as_ref().and_then(|t| t.find(name, |k| matches!(k, Kind::Func(_))));
        let id =
            found.ok_or_else(|| missing(format!("calls `{name}`, which this kernel has not")))?;
        *insn = Insn { imm: id as i32, ..insn.with_src(op::PSEUDO_KFUNC_CALL) };
    }
    Ok(out)
}
