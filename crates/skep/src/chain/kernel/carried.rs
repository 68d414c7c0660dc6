//! Counters over a swap: a chain that takes the place of another one goes on counting where that was.
//!
//! A program in the kernel holds, beside its own counters and description, those of the program
//! whose place it took, and a map of words: the ids of these two, and what chains before that had
//! counted, which nobody changes any more. All is there before the swap, so a process that is killed
//! loses no count, and packets that are still in the old program are counted too.
//!
//! A node goes on with the counts of the node of the same program: that of the same number if there is
//! one, which it has where a chain was changed by one program; else of two nodes of one program, the
//! first with those of the first. An edge does when both of its nodes do. The others' counts end.

use std::collections::BTreeMap;

use skep_isa::{MapFlags, MapType};
use skep_kernel::{Map, MapSpec, Program};
use skep_net::chain::{Graph, NodeId, Stats, To};

use super::error::KernelChainError as Error;
use super::{BEFORE, COUNTS, Current, DESCRIPTION, ORIGIN, Result, described, own_map, stats};

/// What a chain's program says of itself.
pub struct Told {
    /// Its graph.
    pub graph: Graph,
    /// What chains counted whose place it took, by its nodes.
    older: Stats,
    counters: Option<(u32, Map)>,
    description: (u32, Map),
    /// What it is made of ([`super::origin`]).
    origin: Vec<u8>,
}

/// Ids in front of the words of [`BEFORE`].
const IDS: usize = 2;

fn call<T>(done: Result<T, skep_kernel::Error>) -> Result<T> {
    done.map_err(|source| Error::Kernel { what: "look at the chain's program".to_owned(), source })
}

impl Told {
    /// Reads what a program says; `None` when it is not a chain's.
    pub fn by(program: &Program) -> Result<Option<Self>> {
        let (mut counters, mut descriptions) = (Vec::new(), Vec::new());
        let (mut words, mut origin) = (Vec::new(), Vec::new());
        for id in call(program.id_and_maps())?.1 {
            let Ok(map) = Map::open(id) else { continue };
            match map.info().map(|i| i.name).as_deref() {
                Ok(DESCRIPTION) => descriptions.push((id, map)),
                Ok(COUNTS) => counters.push((id, map)),
                // Only the newest counts: one that could not be attached has others before it.
                Ok(BEFORE) => words = call(map.lookup(&[0; 4]))?,
                Ok(ORIGIN) => origin = call(map.lookup(&[0; 4]))?,
                _ => {}
            }
        }
        let words: Vec<u64> = words.as_chunks().0.iter().map(|w| u64::from_ne_bytes(*w)).collect();
        let (ids, before) = words.split_at_checked(IDS).unwrap_or_default();
        // Its own come first: what it took over was bound later.
        let of = |maps: Vec<(u32, Map)>| {
            let is_older = |id: u32| ids.contains(&u64::from(id));
            let (older, own): (Vec<_>, Vec<_>) = maps.into_iter().partition(|m| is_older(m.0));
            [own, older].map(|maps| maps.into_iter().next())
        };
        let ([counters, old_counters], [description, old]) = (of(counters), of(descriptions));
        let Some(description) = description else { return Ok(None) };
        let Some(graph) = described(&description.1) else { return Ok(None) };
        let mut older = Stats::from_words(before).unwrap_or_default();
        if let (Some((_, counters)), Some((_, old))) = (old_counters, old)
            && let Some(old) = described(&old)
        {
            older.merge(&carried(&stats(&old, &counters)?, &old, &graph));
        }
        Ok(Some(Self { graph, older, counters, description, origin }))
    }

    /// Says what a chain that takes its place can be built on.
    pub fn current(&self) -> Option<Current> {
        Current::new(self.graph.clone(), &self.origin)
    }

    /// Adds up what it and those before it counted.
    pub fn stats(&self) -> Result<Stats> {
        let own = self.counters.as_ref().map(|(_, map)| stats(&self.graph, map));
        let mut sum = own.transpose()?.unwrap_or_default();
        sum.merge(&self.older);
        Ok(sum)
    }

    /// Has a program go on with what this one counts, whose place it is going to take.
    pub fn carry_to(&self, program: &Program, graph: &Graph) -> Result<()> {
        let mut words = vec![self.counters.as_ref().map_or(0, |(id, _)| u64::from(*id))];
        words.push(self.description.0.into());
        words.extend(carried(&self.older, &self.graph, graph).to_words());
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_ne_bytes()).collect();
        let spec = MapSpec::new(MapType::Array, 4, bytes.len() as u32, 1);
        let before = own_map(&MapSpec { name: BEFORE, ..spec }.flags(MapFlags::RDONLY_PROG))?;
        call(before.update(&[0; 4], &bytes, 0))?;
        let counters = self.counters.iter().map(|(_, map)| map);
        for map in counters.chain([&self.description.1, &before]) {
            call(program.bind_map(map))?;
        }
        Ok(())
    }
}

/// Says which node of a graph each node of an older one became.
fn successors(old: &Graph, new: &Graph) -> BTreeMap<NodeId, NodeId> {
    let mut free: Vec<(NodeId, &str)> =
        new.nodes().map(|(id, node)| (id, node.program.name.as_str())).collect();
    let is_same =
        |(id, name): &(NodeId, &str)| old.node(*id).is_some_and(|node| node.program.name == *name);
    let same = free.extract_if(.., |new| is_same(new)).map(|(id, _)| (id, id));
    let mut found: BTreeMap<NodeId, NodeId> = same.collect();
    for (id, node) in old.nodes() {
        if found.contains_key(&id) {
            continue;
        }
        if let Some(at) = free.iter().position(|(_, name)| *name == node.program.name) {
            found.insert(id, free.remove(at).0);
        }
    }
    found
}

/// Takes counts over to the nodes of another graph.
fn carried(stats: &Stats, old: &Graph, new: &Graph) -> Stats {
    let successors = successors(old, new);
    let to = |id: &NodeId| successors.get(id).copied();
    let nodes = stats.nodes.iter().filter_map(|(id, node)| Some((to(id)?, node.clone())));
    let edges = stats.edges.iter().filter_map(|((from, on, target), edge)| {
        let target = match target {
            To::Node(id) => To::Node(to(id)?),
            end => *end,
        };
        let from = to(from)?;
        // An edge that is not there any more has nothing to be shown at.
        let mut edges = new.node(from)?.edges().into_iter();
        let is_there = edges.any(|(verdicts, edge)| verdicts == *on && edge.to == target);
        is_there.then_some(((from, *on, target), *edge))
    });
    Stats { nodes: nodes.collect(), edges: edges.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_isa::ProgramType;
    use skep_net::chain::{Edit, NodeStats, Place, ProgramRef};

    fn graph(names: &[&str]) -> Result<Graph, Box<dyn std::error::Error>> {
        let mut graph = Graph::new(ProgramType::Xdp);
        let mut before = None;
        for (id, name) in (1..).zip(names) {
            let program = ProgramRef {
                id,
                name: (*name).to_owned(),
                prog_type: ProgramType::Xdp,
                attach_type: None,
                frags: false,
                device: None,
            };
            let on = "pass".parse()?;
            let place = match before {
                None => Place::First { on },
                Some(node) => Place::After { node, on },
            };
            let (next, added) = graph.transaction(0, &[Edit::Add { program, place }])?;
            (graph, before) = (next, added.first().copied());
        }
        Ok(graph)
    }

    /// A chain that lost one of two nodes of one program: the other one has its number still.
    #[test]
    fn a_node_goes_on_with_its_own_counts_when_another_of_its_program_is_taken_out()
    -> Result<(), Box<dyn std::error::Error>> {
        let old = graph(&["a", "a", "b"])?;
        let bridge = skep_net::chain::Bridge::SameVerdict;
        let (new, _) = old.transaction(0, &[Edit::Remove { node: NodeId(1), bridge }])?;
        let same = [2, 3].map(NodeId);
        assert_eq!(successors(&old, &new), same.into_iter().map(|id| (id, id)).collect());
        Ok(())
    }

    #[test]
    fn nodes_go_on_with_the_counts_of_their_program_and_edges_between_them()
    -> Result<(), Box<dyn std::error::Error>> {
        let old = graph(&["a", "b", "a", "c"])?;
        let new = graph(&["x", "a", "c", "b", "a", "a"])?;
        let mut stats = Stats::default();
        for (id, node) in old.nodes() {
            let mut counted = NodeStats::default();
            counted.bytes = u64::from(id.0) * 100;
            stats.nodes.insert(id, counted);
            for (on, edge) in node.edges() {
                stats.edges.push(((id, on, edge.to), Default::default()));
            }
        }
        let carried = carried(&stats, &old, &new);
        let bytes: Vec<_> = carried.nodes.iter().map(|(id, n)| (id.0, n.bytes)).collect();
        assert_eq!(bytes, [(2, 100), (3, 400), (4, 200), (5, 300)]);
        // Only b → a is an edge of both.
        let edges: Vec<_> = carried.edges.iter().map(|((from, ..), _)| from.0).collect();
        assert_eq!(edges, [4]);
        Ok(())
    }
}
