//! Between the graph and its file.

use skep_isa::ProgramType;
use skep_net::chain::{
    Edge, EditError, Exhausted, Graph, NodeId, NodeParts, Parts, ProgramRef, To, Verdicts,
};
use skep_store::chain as stored;

/// What goes into the file.
pub fn to_spec(graph: &Graph, prog_type: ProgramType) -> stored::ChainSpec {
    let Parts { revision, next, entry, budget, exhausted, empty, nodes } = graph.parts();
    let edge = |(on, edge): (Verdicts, Edge)| stored::Edge {
        on: on.bits(),
        to: match edge.to {
            To::Node(id) => stored::To::Node(id.0),
            To::End(verdict) => stored::To::End(verdict),
            To::Keep => stored::To::Keep,
        },
        bound: edge.bound,
    };
    let node = |n: NodeParts| stored::Node {
        id: n.id.0,
        program: n.program.id,
        name: n.program.name,
        attach_type: n.program.attach_type,
        frags: n.program.frags,
        edges: n.edges.into_iter().map(edge).collect(),
    };
    stored::ChainSpec {
        prog_type,
        revision,
        next,
        entry: entry.map(|id| id.0),
        budget,
        aborts: exhausted == Exhausted::Abort,
        empty,
        nodes: nodes.into_iter().map(node).collect(),
        objects: Vec::new(),
    }
}

/// What a file holds, if that is a graph.
pub fn to_graph(spec: stored::ChainSpec) -> Result<Graph, EditError> {
    let prog_type = spec.prog_type;
    let edge = |e: stored::Edge| {
        let to = match e.to {
            stored::To::Node(id) => To::Node(NodeId(id)),
            stored::To::End(verdict) => To::End(verdict),
            stored::To::Keep => To::Keep,
        };
        let on = Verdicts::from_bits(e.on).filter(|on| *on != Verdicts::NONE);
        Ok((on.ok_or(EditError::NoVerdict)?, Edge { to, bound: e.bound }))
    };
    let node = |n: stored::Node| {
        Ok(NodeParts {
            id: NodeId(n.id),
            program: ProgramRef {
                id: n.program,
                name: n.name,
                prog_type,
                attach_type: n.attach_type,
                frags: n.frags,
                device: None,
            },
            edges: n.edges.into_iter().map(edge).collect::<Result<_, EditError>>()?,
        })
    };
    Graph::from_parts(Parts {
        revision: spec.revision,
        next: spec.next,
        entry: spec.entry.map(NodeId),
        budget: spec.budget,
        exhausted: if spec.aborts { Exhausted::Abort } else { Exhausted::Stop },
        empty: spec.empty,
        nodes: spec.nodes.into_iter().map(node).collect::<Result<_, EditError>>()?,
    })
}
