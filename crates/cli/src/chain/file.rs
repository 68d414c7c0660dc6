//! Files that describe chains (docs/chains.md), and directories of such files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use skep::Session;
use skep::chain::kernel::Sources;
use skep::chain::priority::{self, AtEnd, Entry, RunConfig};
use skep::chain::{
    Chain, Edge, Edit, Exhausted, Graph, NodeId, Place, ProgramRef, To, Verdicts, run_config,
    verdicts,
};
use skep::isa::ProgramType;
use skep::object::Object;

use super::failed;
use super::load::Loads;
use crate::args::ObjectArgs;
use crate::directory;
use crate::failure::{Failure, Result};
use crate::objects::Objects;
use crate::printer::Printer;

/// What a file says.
#[derive(Deserialize, Default, Debug)]
#[serde(deny_unknown_fields)]
struct Described {
    #[serde(rename = "type")]
    prog_type: Option<String>,
    budget: Option<u32>,
    exhausted: Option<When>,
    order: Option<Order>,
    at_end: Option<End>,
    #[serde(default, rename = "program")]
    programs: Vec<Program>,
}

/// What happens to a run that has used its budget up.
#[derive(Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
enum When {
    Stop,
    Abort,
}

/// How programs follow each other.
#[derive(Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
enum Order {
    /// As they stand there, by `on`.
    Listed,
    /// As libxdp sorts them.
    Priority,
}

/// What a chain by priority answers at its end.
#[derive(Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
enum End {
    Pass,
    Last,
}

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct Program {
    object: PathBuf,
    program: String,
    label: Option<String>,
    on: Option<BTreeMap<String, String>>,
    priority: Option<u32>,
    actions: Option<String>,
}

/// A chain that a file or a directory describes, before its programs are loaded.
pub struct Plan {
    described: Described,
    from: String,
}

impl Plan {
    /// Reads a file, or all `.toml` files of a directory in the order of their names.
    pub fn read(path: &Path) -> Result<Self> {
        let from = path.display().to_string();
        let unreadable =
            |e: std::io::Error| Failure::environment(format!("cannot read `{from}`: {e}"));
        let mut files = vec![path.to_owned()];
        if path.is_dir() {
            let entries = std::fs::read_dir(path).map_err(unreadable)?;
            files = entries.flatten().map(|e| e.path()).collect();
            files.retain(|f| f.extension().is_some_and(|e| e == "toml"));
            files.sort();
        }
        let mut all = Described::default();
        for file in &files {
            all.append(Described::read(file)?, file)?;
        }
        if all.programs.is_empty() {
            return Err(Failure::environment(format!("`{from}` describes no program"))
                .hint("docs/chains.md has examples"));
        }
        Ok(Self { described: all, from })
    }

    /// Loads the programs into a session, and makes the chain of them.
    pub fn create(&self, session: &Session, name: &str) -> Result<(Chain, Vec<Loads>)> {
        let described = &self.described;
        self.check_type()?;
        let (loads, programs) = self.load(session)?;
        let of = |p: &Program| loads.iter().find(|l| l.is_of(&p.object));
        let about = described.programs.iter().zip(&programs).map(|(described, program)| {
            let load = of(described);
            (load.map(|l| &l.object), load.map_or(0, |l| l.size(&program.name)))
        });
        let graph = self.graph(&programs, about.collect())?;
        let chain = Chain::create(session, name, ProgramType::Xdp).map_err(failed)?;
        let noted: Vec<_> = loads.iter().map(|l| l.noted(true)).collect();
        let done = chain.transaction_of(0, &edits(&graph), &noted).map_err(failed);
        if let Err(e) = done {
            drop(chain.delete());
            return Err(e);
        }
        Ok((chain, loads))
    }

    /// Reads the objects, and describes the chain of their programs for the kernel.
    pub fn for_kernel(&self) -> Result<(Sources, Graph)> {
        self.check_type()?;
        let all = &self.described.programs;
        let paths: Vec<PathBuf> = self.paths().into_iter().cloned().collect();
        let objects = Objects::read(&paths, &ObjectArgs::default())?;
        let sources = super::sources::of_files(&paths, objects);
        let mut programs = Vec::new();
        let mut about = Vec::new();
        for program in all {
            let place = paths.iter().position(|p| *p == program.object);
            let found = place.and_then(|n| Some((n, &sources.object(n)?.1)));
            let (number, object) =
                found.ok_or_else(|| self.wrong("a program without an object"))?;
            let index = crate::prog::find(object, &program.object, &program.program)?;
            let name = object.programs.get(index).map_or("", |p| p.name.as_str());
            programs.push(sources.program(number, name)?);
            about.push((Some(object), 0));
        }
        let graph = self.graph(&programs, about)?;
        Ok((sources, graph))
    }

    fn check_type(&self) -> Result {
        let named = self.described.prog_type.as_deref().unwrap_or("xdp");
        if named == ProgramType::Xdp.name() {
            return Ok(());
        }
        Err(self.wrong(&format!("chains of type `{named}` cannot be described")))
    }

    /// Makes the graph; `about` has each program's object, and how many instructions it has.
    fn graph(&self, programs: &[ProgramRef], about: Vec<(Option<&Object>, u32)>) -> Result<Graph> {
        match self.described.order {
            Some(Order::Priority) => self.by_priority(&about, programs),
            _ => self.listed(programs),
        }
    }

    /// The object files, each once.
    fn paths(&self) -> Vec<&PathBuf> {
        let mut paths: Vec<&PathBuf> = Vec::new();
        let all = self.described.programs.iter().map(|p| &p.object);
        for path in all.filter(|p| !p.as_os_str().is_empty()) {
            if !paths.contains(&path) {
                paths.push(path);
            }
        }
        paths
    }

    fn wrong(&self, what: &str) -> Failure {
        Failure::environment(format!("`{}`: {what}", self.from))
    }

    /// Loads each object once; its programs share its maps.
    fn load(&self, session: &Session) -> Result<(Vec<Loads>, Vec<ProgramRef>)> {
        let all = &self.described.programs;
        let paths = self.paths();
        let mut loads = Vec::new();
        for path in &paths {
            let names: Vec<&str> =
                all.iter().filter(|p| p.object == **path).map(|p| p.program.as_str()).collect();
            loads.push(Loads::new(session.dir(), path, &names, |_, _| Ok(Vec::new()))?);
        }
        let mut programs = Vec::new();
        for program in all {
            let place = paths.iter().position(|p| **p == program.object);
            let from = place.and_then(|n| loads.get(n));
            let from = from.ok_or_else(|| self.wrong("a program without an object"))?;
            programs.push(from.program(&program.program)?);
        }
        Ok((loads, programs))
    }

    /// Follows the `on` of each program.
    fn listed(&self, programs: &[ProgramRef]) -> Result<Graph> {
        let all = &self.described.programs;
        let mut edits: Vec<Edit> = programs
            .iter()
            .map(|p| Edit::Add { program: p.clone(), place: Place::Loose })
            .collect();
        edits.push(Edit::Entry(Some(NodeId(1))));
        for (n, program) in (1u32..).zip(all) {
            if program.priority.is_some() || program.actions.is_some() {
                return Err(self.wrong("`priority` and `actions` need `order = \"priority\"`"));
            }
            let is_last = n as usize == all.len();
            let default = || BTreeMap::from([("pass".to_owned(), "next".to_owned())]);
            let given = program
                .on
                .clone()
                .unwrap_or_else(|| if is_last { BTreeMap::new() } else { default() });
            for (on, to) in &given {
                let on: Verdicts = on.parse().map_err(|e| self.wrong(&format!("{e}")))?;
                let to = self.target(to, n, is_last)?;
                let edge = Edge::to(to);
                edits.push(Edit::Connect { from: NodeId(n), on, edge, expected: None });
            }
        }
        edits.push(self.budget());
        let empty = Graph::new(ProgramType::Xdp);
        Ok(empty.transaction(0, &edits).map_err(|e| self.wrong(&e.to_string()))?.0)
    }

    fn budget(&self) -> Edit {
        let exhausted = match self.described.exhausted {
            Some(When::Abort) => Exhausted::Abort,
            _ => Exhausted::Stop,
        };
        Edit::Budget { budget: self.described.budget.unwrap_or(skep::chain::BUDGET), exhausted }
    }

    /// Reads where an edge of program `n` leads.
    fn target(&self, text: &str, n: u32, is_last: bool) -> Result<To> {
        if let Some(verdict) = text.strip_prefix("end:") {
            let verdict = verdicts::parse(verdict).map_err(|e| self.wrong(&e.to_string()))?;
            return Ok(To::End(verdict));
        }
        let labeled = |p: &Program| p.label.as_deref().unwrap_or(&p.program) == text;
        match text {
            "end" => Ok(To::Keep),
            // Behind the last program is the end.
            "next" if is_last => Ok(To::Keep),
            "next" => Ok(To::Node(NodeId(n + 1))),
            _ => {
                let mut found = (1u32..).zip(&self.described.programs).filter(|(_, p)| labeled(p));
                match (found.next(), found.next()) {
                    (Some((n, _)), None) => Ok(To::Node(NodeId(n))),
                    (None, _) => Err(self
                        .wrong(&format!("there is no program `{text}`"))
                        .hint("a target is `next`, `end`, `end:VERDICT`, a label or a program")),
                    _ => Err(self
                        .wrong(&format!("several programs are called `{text}`"))
                        .hint("give each a `label`")),
                }
            }
        }
    }

    /// Sorts as libxdp does, by what files and objects say.
    fn by_priority(
        &self,
        about: &[(Option<&Object>, u32)],
        programs: &[ProgramRef],
    ) -> Result<Graph> {
        let mut entries = Vec::new();
        let described = self.described.programs.iter().zip(about);
        for (program, (described, (object, size))) in programs.iter().zip(described) {
            if described.on.is_some() {
                return Err(self.wrong("with `order = \"priority\"` there is `actions`, not `on`"));
            }
            let types = object.and_then(|o| o.btf.as_deref());
            let own = types.map_or_else(RunConfig::default, |b| run_config(b, &program.name));
            let actions = match &described.actions {
                Some(text) => {
                    let on: Verdicts = text.parse().map_err(|e| self.wrong(&format!("{e}")))?;
                    (0..32).filter(|v| on.contains(*v)).fold(0, |bits, v| bits | 1 << v)
                }
                None => own.actions,
            };
            entries.push(Entry {
                program: program.clone(),
                config: RunConfig { priority: described.priority.unwrap_or(own.priority), actions },
                is_loaded: false,
                size: *size,
                tag: [0; 8],
                load_time: entries.len() as u64,
            });
        }
        let at_end = match self.described.at_end {
            Some(End::Last) => AtEnd::Last,
            _ => AtEnd::Pass,
        };
        priority::graph(&entries, at_end).map_err(|e| self.wrong(&e.to_string()))
    }
}

impl Described {
    fn read(path: &Path) -> Result<Self> {
        let name = path.display();
        let text = std::fs::read_to_string(path)
            .map_err(|e| Failure::environment(format!("cannot read `{name}`: {e}")))?;
        let mut all: Self = toml::from_str(&text).map_err(|e| {
            let before = e.span().and_then(|s| text.get(..s.start)).unwrap_or_default();
            let line = before.matches('\n').count() + 1;
            Failure::environment(format!("`{name}`, line {line}: {}", e.message()))
                .hint("docs/chains.md describes these files")
        })?;
        let base = path.parent().unwrap_or(Path::new("."));
        for program in &mut all.programs {
            program.object = base.join(&program.object);
        }
        Ok(all)
    }

    /// Adds what another file says; settings of the whole chain must agree.
    fn append(&mut self, other: Self, path: &Path) -> Result {
        fn agree<T: PartialEq>(
            all: &mut Option<T>,
            new: Option<T>,
            what: &str,
            path: &Path,
        ) -> Result {
            match (&*all, new) {
                (Some(old), Some(new)) if *old != new => Err(Failure::environment(format!(
                    "`{}` has another `{what}` than the files before",
                    path.display()
                ))),
                (None, new) => {
                    *all = new;
                    Ok(())
                }
                _ => Ok(()),
            }
        }
        agree(&mut self.prog_type, other.prog_type, "type", path)?;
        agree(&mut self.budget, other.budget, "budget", path)?;
        agree(&mut self.exhausted, other.exhausted, "exhausted", path)?;
        agree(&mut self.order, other.order, "order", path)?;
        agree(&mut self.at_end, other.at_end, "at_end", path)?;
        self.programs.extend(other.programs);
        Ok(())
    }
}

/// What makes a graph of an empty one.
fn edits(graph: &Graph) -> Vec<Edit> {
    let add = |(_, n): (NodeId, &skep::chain::Node)| Edit::Add {
        program: n.program.clone(),
        place: Place::Loose,
    };
    let mut edits: Vec<Edit> = graph.nodes().map(add).collect();
    for (from, node) in graph.nodes() {
        for (on, edge) in node.edges() {
            edits.push(Edit::Connect { from, on, edge, expected: None });
        }
    }
    edits.push(Edit::Entry(graph.entry()));
    edits.push(Edit::Budget { budget: graph.budget(), exhausted: graph.exhausted() });
    edits
}

/// Makes a chain of the skep directory, and pins it.
pub fn create(name: &str, path: &Path, printer: Printer) -> Result<u8> {
    let plan = Plan::read(path)?;
    let session = Session::open_in(directory::create()?.path())?;
    let (chain, _loads) = plan.create(&session, name)?;
    chain.pin()?;
    printer.note(&format!("chain {} `{name}`", chain.id()));
    Ok(0)
}
