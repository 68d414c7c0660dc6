//! Chains of files that describe them, and of directories of such files.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use skep::Session;
use skep::chain::kernel::{SourceFile, Sources};
use skep::chain::priority::{self, AtEnd, Entry, RunConfig};
use skep::chain::{
    Chain, Edge, Edit, Exhausted, Graph, NodeId, Place, ProgramRef, To, Verdicts, run_config,
    verdicts,
};
use skep::isa::ProgramType;
use skep::object::Object;

use super::change;
use super::described::{Described, End, Order, Program, Target, When};
use super::failed;
use super::load::Loads;
use super::sources;
use crate::args::SetArgs;
use crate::directory;
use crate::failure::{Failure, Result};
use crate::printer::Printer;

/// A chain that a file or a directory describes, before its programs are loaded.
pub struct Plan {
    described: Described,
    from: String,
    files: Vec<PathBuf>,
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
            // Not what editors and package managers keep there meanwhile.
            let is_hidden =
                |f: &Path| f.file_name().is_some_and(|n| n.as_bytes().starts_with(b"."));
            files.retain(|f| f.extension().is_some_and(|e| e == "toml"));
            files.retain(|f| !is_hidden(f) && !f.is_dir());
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
        Ok(Self { described: all, from, files })
    }

    /// Returns the files that were read.
    pub fn into_files(self) -> Vec<PathBuf> {
        self.files
    }

    /// Loads the programs into a session, and makes the chain of them.
    pub fn create(
        &self,
        session: &Session,
        name: &str,
        variables: &SetArgs,
    ) -> Result<(Chain, Vec<Loads>)> {
        let described = &self.described;
        let prog_type = self.prog_type()?;
        let (files, numbers) = sources::described(&described.programs)?;
        let (loads, programs) = self.load(session, &files, &numbers, variables)?;
        let about = numbers.iter().zip(&programs).map(|(number, program)| {
            let load = loads.get(*number);
            (load.map(|l| &l.object), load.map_or(0, |l| l.size(&program.name)))
        });
        let graph = self.graph(&programs, about.collect())?;
        let chain = Chain::create(session, name, prog_type).map_err(failed)?;
        let noted: Vec<_> = loads.iter().map(Loads::noted).collect();
        let done = chain.transaction_of(0, &edits(&graph), &noted).map_err(failed);
        if let Err(e) = done {
            drop(chain.delete());
            return Err(e);
        }
        Ok((chain, loads))
    }

    /// Reads the objects, and describes the chain of their programs for the kernel.
    pub fn for_kernel(&self, variables: &SetArgs) -> Result<(Sources, Graph)> {
        let prog_type = self.prog_type()?;
        let all = &self.described.programs;
        let (files, numbers) = sources::described(all)?;
        let sources = sources::of_files(&files, prog_type, variables)?;
        let mut programs = Vec::new();
        let mut about = Vec::new();
        for (program, number) in all.iter().zip(numbers) {
            let found = sources.object(number);
            let (_, object) = found.ok_or_else(|| self.wrong("a program without an object"))?;
            let index = crate::prog::find(object, &program.object, &program.program)?;
            let name = object.programs.get(index).map_or("", |p| p.name.as_str());
            programs.push(sources.program(number, name)?);
            about.push((Some(object), 0));
        }
        let graph = self.graph(&programs, about)?;
        Ok((sources, graph))
    }

    /// The type of the programs.
    fn prog_type(&self) -> Result<ProgramType> {
        let named = self.described.prog_type.as_deref();
        named.map_or(Ok(ProgramType::Xdp), |named| {
            change::program_type(named).map_err(|e| self.wrong(&e.message))
        })
    }

    /// Makes the graph; `about` has each program's object, and how many instructions it has.
    fn graph(&self, programs: &[ProgramRef], about: Vec<(Option<&Object>, u32)>) -> Result<Graph> {
        match self.described.order {
            Some(Order::Priority) => self.by_priority(&about, programs),
            _ => self.listed(programs),
        }
    }

    fn wrong(&self, what: &str) -> Failure {
        Failure::environment(format!("`{}`: {what}", self.from))
    }

    /// Loads the files, of which each program has the number of its own.
    fn load(
        &self,
        session: &Session,
        files: &[SourceFile],
        numbers: &[usize],
        variables: &SetArgs,
    ) -> Result<(Vec<Loads>, Vec<ProgramRef>)> {
        let all = &self.described.programs;
        let mut names: Vec<Vec<&str>> = vec![Vec::new(); files.len()];
        for (program, number) in all.iter().zip(numbers) {
            names.get_mut(*number).into_iter().for_each(|n| n.push(&program.program));
        }
        let with = (self.prog_type()?, variables);
        let loads = Loads::all(session.dir(), files, with, &names)?;
        let mut programs = Vec::new();
        for (program, number) in all.iter().zip(numbers) {
            let from = loads.get(*number);
            let from = from.ok_or_else(|| self.wrong("a program without an object"))?;
            programs.push(from.program(&program.program)?);
        }
        Ok((loads, programs))
    }

    /// Follows the `on` of each program.
    fn listed(&self, programs: &[ProgramRef]) -> Result<Graph> {
        let all = &self.described.programs;
        if self.described.at_end.is_some() {
            return Err(self.wrong("`at_end` needs `order = \"priority\"`"));
        }
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
            let default = || BTreeMap::from([("pass".to_owned(), Target::plain("next"))]);
            let given = program
                .on
                .clone()
                .unwrap_or_else(|| if is_last { BTreeMap::new() } else { default() });
            let mut before: Vec<(&String, Verdicts)> = Vec::new();
            for (text, to) in &given {
                let on: Verdicts = text.parse().map_err(|e| self.wrong(&format!("{e}")))?;
                if let Some((other, _)) = before.iter().find(|(_, other)| on.meets(*other)) {
                    let program = &program.program;
                    return Err(self.wrong(&format!(
                        "`{other}` and `{text}` of `{program}` have a verdict in common"
                    )));
                }
                before.push((text, on));
                let edge = Edge { to: self.target(&to.to, n, is_last)?, bound: to.times };
                edits.push(Edit::Connect { from: NodeId(n), on, edge, expected: None });
            }
        }
        edits.push(self.budget());
        let empty = Graph::new(self.prog_type()?);
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
        let labeled = |p: &Program| p.label() == text;
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
        if self.prog_type()? != ProgramType::Xdp {
            return Err(self.wrong("`order = \"priority\"` is for XDP programs"));
        }
        let mut entries = Vec::new();
        let described = self.described.programs.iter().zip(about);
        for (program, (described, (object, size))) in programs.iter().zip(described) {
            if described.on.is_some() {
                return Err(self.wrong("with `order = \"priority\"` there is `actions`, not `on`"));
            }
            let types = object.and_then(|o| o.btf.as_deref());
            let own = types.map_or(Ok(RunConfig::default()), |b| run_config(b, &program.name));
            let own = own.map_err(|e| self.wrong(&e.to_string()))?;
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
pub fn create(name: &str, path: &Path, variables: &SetArgs, printer: Printer) -> Result<u8> {
    let plan = Plan::read(path)?;
    let session = Session::open_in(directory::create()?.path())?;
    let (chain, _loads) = plan.create(&session, name, variables)?;
    change::pin_new(&session, chain, printer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_testkit::random::Random;

    /// Damaged files, made of those in the guide: an error of one line that names the file, or a chain;
    /// never a panic.
    #[test]
    fn damaged_files_are_errors_or_chains() {
        let guide = include_str!("../../../../docs/chains.md");
        let blocks: Vec<&str> =
            guide.split("```toml\n").skip(1).filter_map(|b| b.split("```").next()).collect();
        assert_eq!(blocks.len(), 2);
        let words = [
            "4294967296",
            "-1",
            "0",
            "\"\"",
            "\"*\"",
            "\"end:\"",
            "\"end:99\"",
            "\"0-99\"",
            "{}",
            "[]",
            "\"next\"",
            "[[program]]",
            "program",
            "on = {\"31,-1\" = \"next\"}",
            "actions = \"pass,tx\"",
            "budget = 1",
            "label = \"count\"",
            "order = \"priority\"",
            "\"counter\"",
            "=",
        ];
        let mut random = Random::new(0xc4a1);
        let mut made = [0; 2];
        for _ in 0..20_000 {
            let mut text = blocks[random.below(2)].to_owned();
            for _ in 0..=random.below(3) {
                let at = (random.below(text.len())..).find(|at| text.is_char_boundary(*at));
                let mut end = at.unwrap_or(0) + random.below(12);
                while !text.is_char_boundary(end.min(text.len())) {
                    end += 1;
                }
                let range = at.unwrap_or(0)..end.min(text.len());
                match random.below(3) {
                    0 => text.replace_range(range, ""),
                    1 => text.insert_str(range.start, words[random.below(words.len())]),
                    _ => text.replace_range(range, words[random.below(words.len())]),
                }
            }
            let chain = Described::parse(&text, Path::new("damaged.toml")).and_then(|described| {
                let plan = Plan { described, from: "damaged.toml".to_owned(), files: Vec::new() };
                let program = |(id, program): (u32, &Program)| ProgramRef {
                    id,
                    name: program.program.clone(),
                    prog_type: ProgramType::Xdp,
                    attach_type: None,
                    frags: false,
                    device: None,
                };
                let all = &plan.described.programs;
                let programs: Vec<ProgramRef> = (1..).zip(all).map(program).collect();
                plan.graph(&programs, programs.iter().map(|_| (None, 3)).collect())
            });
            made[usize::from(chain.is_ok())] += 1;
            match chain {
                Ok(graph) => assert_eq!(graph.plan().is_some(), graph.entry().is_some(), "{text}"),
                Err(failure) => {
                    let message = failure.message;
                    assert!(message.contains("`damaged.toml`"), "{message}\n{text}");
                    assert!(!message.contains('\n'), "{message}\n{text}");
                }
            }
        }
        assert!(made.iter().all(|n| *n > 500), "{made:?}");
    }
}
