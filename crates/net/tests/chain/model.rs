//! Runs of a graph, followed node by node.

use std::collections::HashMap;

use skep_isa::ProgramType;
use skep_net::chain::{Edge, Exhausted, Graph, NodeId, ProgramRef, To};

/// Verdicts that have slots of their own, and some that have none.
pub fn verdicts() -> impl Iterator<Item = u32> {
    (0..=40).chain([u32::MAX, u32::MAX - 1, 1 << 31])
}

/// An XDP program that is called by its id.
pub fn program(id: u32) -> ProgramRef {
    ProgramRef {
        id,
        name: format!("p{id}"),
        prog_type: ProgramType::Xdp,
        attach_type: None,
        frags: false,
        device: None,
    }
}

/// What a run did: the programs in order, and the answer.
pub type Ran = (Vec<u32>, u32);

/// Follows a run, in which `says` is each program's verdict, by id and number in the run.
pub fn run(graph: &Graph, says: impl Fn(u32, usize) -> u32) -> Ran {
    let mut ran = Vec::new();
    let mut taken: HashMap<(NodeId, Edge), u32> = HashMap::new();
    let Some(mut at) = graph.entry() else { return (ran, graph.empty_verdict()) };
    loop {
        let node = graph.node(at).expect("edges lead to nodes");
        let verdict = says(node.program.id, ran.len());
        ran.push(node.program.id);
        let edge = node.follow(verdict);
        let next = match edge.to {
            To::Keep => return (ran, verdict),
            To::End(end) => return (ran, end),
            To::Node(next) => next,
        };
        let times = taken.entry((at, edge)).or_default();
        if edge.bound.is_some_and(|bound| *times >= bound) {
            return (ran, verdict);
        }
        *times += 1;
        if ran.len() as u32 >= graph.budget() {
            let aborted = graph.exhausted() == Exhausted::Abort;
            return (ran, if aborted { 0 } else { verdict });
        }
        at = next;
    }
}
