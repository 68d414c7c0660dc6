//! `skep chain run --dump`: packets written to files before and after programs.

use std::path::{Path, PathBuf};

use skep::chain::{ChainRunner, Glimpse, Graph, Node, NodeId, Watch};
use skep::port::PortError;
use skep::port::capture::{Format, Note, Writer};

use super::failed;
use crate::args::ChainRunArgs;
use crate::failure::{Failure, Result};
use crate::prog::packets;

/// What `--dump` asks for.
struct Wanted<'a> {
    node: &'a str,
    before: bool,
    after: bool,
    path: &'a Path,
}

/// Reads `NODE[:before|:after]=FILE`.
fn wanted(text: &str) -> Result<Wanted<'_>> {
    let wrong = |why: &str| {
        Failure::environment(format!("`--dump {text}`: {why}"))
            .hint("like `--dump 2=file.pcapng`, or `--dump filter:after=file.pcapng`")
    };
    let (what, path) = text.split_once('=').ok_or_else(|| wrong("no `=FILE`"))?;
    let (node, before, after) = match what.rsplit_once(':') {
        None => (what, true, true),
        Some((node, "before")) => (node, true, false),
        Some((node, "after")) => (node, false, true),
        Some((_, when)) => return Err(wrong(&format!("`{when}` is not `before` or `after`"))),
    };
    match (node, path) {
        ("", _) => Err(wrong("no node")),
        (_, "") => Err(wrong("no file")),
        _ => Ok(Wanted { node, before, after, path: Path::new(path) }),
    }
}

/// Packets of some nodes, and the file they go to.
struct Place {
    nodes: Vec<NodeId>,
    before: bool,
    after: bool,
    file: usize,
}

/// The files that packets are written to.
struct Dumps {
    places: Vec<Place>,
    files: Vec<Writer>,
    /// Kept for its memory: the name of a place.
    name: String,
}

/// Finds the nodes of a number, or of a program's name.
fn nodes(graph: &Graph, text: &str) -> Result<Vec<NodeId>> {
    let number = text.parse().ok().map(NodeId);
    let is = |(id, node): &(NodeId, &Node)| {
        number.map_or(node.program.name == text, |number| *id == number)
    };
    let found: Vec<_> = graph.nodes().filter(is).map(|(id, _)| id).collect();
    if found.is_empty() {
        let all = graph.nodes().map(|(id, node)| format!("{} ({id})", node.program.name));
        let all = all.collect::<Vec<_>>().join(", ");
        return Err(Failure::environment(format!("the chain has no node `{text}`"))
            .hint(format!("it has {}", if all.is_empty() { "none" } else { &all })));
    }
    Ok(found)
}

/// Lists the files that packets are written to.
pub fn targets(wants: &[String]) -> impl Iterator<Item = &Path> {
    wants.iter().filter_map(|text| wanted(text).ok()).map(|wanted| wanted.path)
}

/// Makes a runner write packets to the files.
pub fn dump(runner: &mut ChainRunner, args: &ChainRunArgs, input: &str) -> Result<()> {
    if args.dump.is_empty() {
        return Ok(());
    }
    let outputs = packets::targets(&args.packets);
    let outputs: Vec<_> = outputs.iter().map(PathBuf::as_path).collect();
    let wants = args.dump.iter().map(|text| wanted(text)).collect::<Result<Vec<_>>>()?;
    let mut paths: Vec<PathBuf> = Vec::new();
    let mut places = Vec::new();
    for want in &wants {
        let nodes = nodes(runner.graph(), want.node)?;
        packets::check_target(want.path, input, &outputs)?;
        let known = paths.iter().position(|path| path == want.path);
        let file = known.unwrap_or_else(|| {
            paths.push(want.path.to_owned());
            paths.len() - 1
        });
        places.push(Place { nodes, before: want.before, after: want.after, file });
    }
    let create = |path: &PathBuf| Writer::create(path, Format::of(path));
    let files = paths.iter().map(create).collect::<std::result::Result<_, _>>()?;
    runner.watch(args.every, Dumps { places, files, name: String::new() }).map_err(failed)
}

/// Tells whether packets are written to standard output.
pub fn uses_stdout(wants: &[String]) -> bool {
    wants.iter().any(|text| text.ends_with("=-"))
}

impl Watch for Dumps {
    fn look(&mut self, seen: &Glimpse<'_>) -> std::result::Result<(), PortError> {
        use std::fmt::Write as _;
        let Self { places, files, name } = self;
        let after = seen.verdict.is_some();
        let here = |place: &&Place| {
            (if after { place.after } else { place.before }) && place.nodes.contains(&seen.node)
        };
        for place in places.iter().filter(here) {
            let Some(file) = files.get_mut(place.file) else { continue };
            name.clear();
            let when = if after { "after" } else { "before" };
            let _ = write!(name, "{} ({})@{when}", seen.program, seen.node);
            let note = Note { place: name, number: seen.number, verdict: seen.verdict };
            file.note(seen.frame, &note)?;
        }
        Ok(())
    }

    fn flush(&mut self) -> std::result::Result<(), PortError> {
        use skep::port::Sink as _;
        self.files.iter_mut().map(Writer::flush).fold(Ok(()), std::result::Result::and)
    }
}
