//! Changes of a chain: created, and programs added, moved, connected and taken out.

use std::sync::Arc;

use skep::chain::{
    Bridge, Chain, ChainError, Edge, Edit, EditError, Graph, InCommon, NodeId, Place, To, verdicts,
};
use skep::dir::Kind;
use skep::isa::{ProgramType, sec};
use skep::maps::{Access, Map};
use skep::object::Object;
use skep::{Dir, Session};

use super::load::{self, Loads, One};
use super::{failed, open, verdicts as parse_verdicts};
use crate::args::{PlaceArgs, ReuseArgs, SetArgs};
use crate::directory;
use crate::failure::{Failure, Result};
use crate::map::find;
use crate::printer::Printer;

/// Makes a chain without programs, and pins it.
pub fn create(name: &str, prog_type: &str, variables: &SetArgs, printer: Printer) -> Result<u8> {
    if !variables.set.is_empty() {
        return Err(Failure::environment("--set: a chain without programs has no variables")
            .hint("give it to `skep chain add`"));
    }
    let session = Session::open_in(directory::create()?.path())?;
    let chain = Chain::create(&session, name, program_type(prog_type)?).map_err(failed)?;
    pin_new(&session, chain, printer)
}

/// Finds a program type by its name.
pub fn program_type(named: &str) -> Result<ProgramType> {
    let mut all = sec::SECTIONS.iter().map(|s| s.prog);
    all.find(|p| p.name() == named)
        .ok_or_else(|| Failure::environment(format!("`{named}` is not a program type")))
}

/// Pins a chain that was made.
pub fn pin_new(session: &Session, chain: Chain, printer: Printer) -> Result<u8> {
    let (id, name) = (chain.id(), chain.name().to_owned());
    match chain.pin() {
        Ok(()) => {}
        // Somebody made one of this name at the same time.
        Err(ChainError::Pinned { name }) => {
            drop(chain);
            session.dir().remove_unused(Kind::Chain, id);
            return Err(failed(ChainError::Exists { name }));
        }
        Err(e) => return Err(failed(e)),
    }
    printer.note(&format!("chain {id} `{name}`"));
    Ok(0)
}

/// Removes the pin of a chain, and the chain if nobody uses it.
pub fn unpin(chain: &str, printer: Printer) -> Result<u8> {
    let (session, chain) = open(chain)?;
    chain.unpin().map_err(failed)?;
    let (id, name) = (chain.id(), chain.name().to_owned());
    drop(chain);
    printer.note(&match session.dir().remove_unused(Kind::Chain, id) {
        true => format!("nobody uses chain `{name}`: it is removed"),
        false => format!("chain `{name}` goes with its last user"),
    });
    Ok(0)
}

/// Removes a chain.
pub fn delete(chain: &str) -> Result<u8> {
    open(chain)?.1.delete()?;
    Ok(0)
}

/// Finds where the arguments mean: `moved` is a node that is there already.
pub fn place(graph: &Graph, args: &PlaceArgs, moved: Option<NodeId>) -> Result<Place> {
    let on = parse_verdicts(&args.on)?;
    if let Some(node) = args.after {
        return Ok(Place::After { node: NodeId(node), on });
    }
    if args.first || graph.entry().is_none() {
        return Ok(Place::First { on });
    }
    // The last one on the way of the first verdict.
    let verdict = (0..=31).chain([u32::MAX]).find(|v| on.contains(*v)).unwrap_or(0);
    let mut node = graph.entry().unwrap_or(NodeId(0));
    for _ in 0..graph.nodes().count() {
        match graph.node(node).map(|n| n.follow(verdict).to) {
            Some(To::Node(next)) if Some(next) != moved => node = next,
            _ => break,
        }
    }
    Ok(if Some(node) == moved { Place::First { on } } else { Place::After { node, on } })
}

/// Adds a program, which shares the maps of its object with those that are there, or has what
/// `maps` says.
pub fn add(
    chain: &str,
    program: &str,
    (place_args, maps, variables): (&PlaceArgs, &ReuseArgs, &SetArgs),
    printer: Printer,
) -> Result<u8> {
    let (session, chain) = open(chain)?;
    let (path, program) = load::split(program)?;
    let (prog_type, shares_maps) = (chain.prog_type().map_err(failed)?, !maps.own_maps);
    let wanted = One { path, program, prog_type, shares_maps };
    let added = again(|| {
        let mut revision = 0;
        let in_common = |hash| {
            let all = chain.in_common(hash)?;
            revision = all.revision;
            Ok(if maps.own_maps { InCommon::default() } else { all })
        };
        let given = |object: &Object| {
            let given = maps.map.iter();
            given.map(|text| given_map(session.dir(), object, text, printer)).collect()
        };
        let loads = Loads::one(session.dir(), &wanted, variables, in_common, given)?;
        let place = place(&chain.graph()?, place_args, None)?;
        let edit = Edit::Add { program: loads.program(program)?, place };
        let noted = [loads.noted()];
        Ok(chain.transaction_of(revision, &[edit], &noted).map(|(_, added)| added))
    })?;
    for node in added {
        printer.note(&format!("node {node}"));
    }
    Ok(0)
}

/// How often a change is tried when others change the chain too.
const TRIES: usize = 100;

/// Does a change that was made for one revision of the chain, and again for the next one when somebody
/// else changed the chain in between.
pub fn again<T>(mut change: impl FnMut() -> Result<Result<T, ChainError>>) -> Result<T> {
    for _ in 1..TRIES {
        match change()? {
            Err(ChainError::Edit(EditError::Stale { .. })) => {}
            done => return done.map_err(failed),
        }
    }
    change()?.map_err(failed)
}

/// Opens the map of `--map NAME=MAP`, which is one of the directory.
fn given_map(
    dir: &Dir,
    object: &Object,
    given: &str,
    printer: Printer,
) -> Result<(String, Arc<Map>)> {
    let (name, map) = given.split_once('=').ok_or_else(|| {
        Failure::environment(format!("--map: `{given}` is not `NAME=MAP`"))
            .hint("give the map's name in the object, and the id, name or pin of another one")
    })?;
    if !object.maps.iter().any(|m| m.name == name) {
        let names: Vec<String> = object.maps.iter().map(|m| format!("`{}`", m.name)).collect();
        return Err(Failure::failed(format!("--map: the object has no map `{name}`"))
            .hint(format!("it has {}", names.join(", "))));
    }
    let found = find::find(dir, map, Access::ReadWrite, printer)?;
    // By its id, as programs name it: a pin leads to the same file.
    let id = found.id();
    let path = dir.object(Kind::Map, id);
    match Map::open(&path, Access::ReadWrite) {
        Ok(own) if own.generation() == found.generation() => Ok((name.to_owned(), Arc::new(own))),
        _ => Err(Failure::failed(format!("--map: map {id} is not of this skep directory"))),
    }
}

/// Says that a program is taken out.
pub fn removal(node: u32, bridge: &str) -> Result<Edit> {
    let bridge = match bridge {
        "same" => Bridge::SameVerdict,
        "wildcard" => Bridge::Wildcard,
        verdict => Bridge::End(verdicts::parse(verdict).map_err(|_| {
            let text = format!("--bridge: `{verdict}` is no verdict, and not `same` or `wildcard`");
            Failure::environment(text)
        })?),
    };
    Ok(Edit::Remove { node: NodeId(node), bridge })
}

/// Says that a program is put elsewhere.
pub fn moved(graph: &Graph, node: u32, args: &PlaceArgs) -> Result<Edit> {
    let node = NodeId(node);
    let place = place(graph, args, Some(node))?;
    Ok(Edit::Move { node, place, bridge: Bridge::SameVerdict })
}

/// Says that verdicts of a node lead somewhere: which, where to, and how often.
pub fn connection(
    chain: &str,
    from: u32,
    (on, to, times): (Option<&str>, Option<&str>, Option<u32>),
) -> Result<Edit> {
    let missing = |option: &str, what: &str| {
        Failure::environment(format!("`{option}` is missing: {what}"))
            .hint(format!("as in `skep chain connect {chain} {from} --on drop --to end:pass`"))
    };
    let on = on.ok_or_else(|| missing("--on", "it names the verdicts"))?;
    let to = to.ok_or_else(|| missing("--to", "it says where they lead"))?;
    let (from, on) = (NodeId(from), parse_verdicts(on)?);
    Ok(match to {
        "none" => Edit::Disconnect { from, on },
        to => {
            let edge = Edge { to: target(to)?, bound: times };
            Edit::Connect { from, on, edge, expected: None }
        }
    })
}

fn target(text: &str) -> Result<To> {
    if text == "keep" {
        return Ok(To::Keep);
    }
    let end = text.strip_prefix("end:").map(verdicts::parse);
    if let Some(Ok(verdict)) = end {
        return Ok(To::End(verdict));
    }
    text.parse().map(|n| To::Node(NodeId(n))).map_err(|_| {
        Failure::environment(format!("--to: `{text}` is no target"))
            .hint("give a node's number, `end:VERDICT`, `keep` or `none`")
    })
}
