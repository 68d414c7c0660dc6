//! Edits of a graph.

use std::collections::BTreeMap;

use skep_isa::{ProgramType, errno};
use skep_net::chain::{
    Bridge, Edge, Edit, EditError, Exhausted, Graph, NodeId, Place, ProgramRef, To, Verdicts,
};
use skep_testkit::random::Random;

use crate::engines::engines;
use crate::model::{program, run, verdicts};

fn add(id: u32, place: Place) -> Edit {
    Edit::Add { program: program(id), place }
}

fn connect(from: u32, on: &str, to: To) -> Edit {
    let on = on.parse().expect("verdicts");
    Edit::Connect { from: NodeId(from), on, edge: Edge::to(to), expected: None }
}

fn node(n: u32) -> To {
    To::Node(NodeId(n))
}

/// Nodes 1 to `n`, without edges; the first one is the entry.
fn loose(n: u32) -> Graph {
    let mut edits: Vec<Edit> = (1..=n).map(|id| add(id, Place::Loose)).collect();
    edits.push(Edit::Entry(Some(NodeId(1))));
    Graph::new(ProgramType::Xdp).transaction(1, &edits).expect("nodes alone are fine").0
}

#[test]
fn a_specific_edge_goes_before_the_wildcard_for_every_verdict() {
    for own in (0..32).chain([u32::MAX]) {
        let on = Verdicts::one(own).expect("it has a slot").to_string();
        let edits = [connect(1, &on, node(2)), connect(1, "*", node(3))];
        let graph = loose(3).transaction(0, &edits).expect("a tree").0;
        for verdict in verdicts() {
            let next = if verdict == own { 2 } else { 3 };
            assert_eq!(run(&graph, |_, _| verdict), (vec![1, next], verdict), "{own} {verdict}");
            assert_eq!(engines(&graph, |_| verdict), (vec![1, next], verdict), "{own} {verdict}");
        }
    }
}

#[test]
fn cycles_are_refused_with_their_path_unless_an_edge_is_bounded() {
    let line = [connect(1, "pass", node(2)), connect(2, "pass", node(3))];
    for (edits, path) in [
        (vec![connect(1, "drop", node(1))], Some("1 (p1) -> 1 (p1)")),
        (vec![connect(1, "*", node(1))], Some("1 (p1) -> 1 (p1)")),
        (
            vec![connect(1, "pass", node(2)), connect(2, "tx", node(1))],
            Some("1 (p1) -> 2 (p2) -> 1 (p1)"),
        ),
        (
            [&line[..], &[connect(3, "*", node(1))]].concat(),
            Some("1 (p1) -> 2 (p2) -> 3 (p3) -> 1 (p1)"),
        ),
        // A cycle that the entry does not lead to is one all the same.
        (
            vec![connect(2, "pass", node(3)), connect(3, "0-31", node(2))],
            Some("2 (p2) -> 3 (p3) -> 2 (p2)"),
        ),
        // Diamonds, and two edges to one node.
        (
            vec![
                connect(1, "pass", node(2)),
                connect(1, "drop", node(3)),
                connect(2, "*", node(4)),
                connect(3, "*", node(4)),
                connect(1, "*", node(4)),
            ],
            None,
        ),
    ] {
        let done = loose(4).transaction(0, &edits);
        match path {
            None => assert!(done.is_ok(), "{edits:?}"),
            Some(path) => {
                assert_eq!(done, Err(EditError::Cycle { path: path.to_owned() }));
                assert_eq!(done.map_err(|e| e.errno()), Err(errno::ELOOP));
            }
        }
    }
    let back = Edge { to: node(1), bound: Some(3) };
    let bounded = Edit::Connect { from: NodeId(2), on: Verdicts::ANY, edge: back, expected: None };
    let edits = [connect(1, "*", node(2)), bounded];
    let graph = loose(2).transaction(0, &edits).expect("a bounded cycle is fine").0;
    assert_eq!(run(&graph, |_, _| 2).0, [1, 2, 1, 2, 1, 2, 1, 2]);
}

#[test]
fn runs_end_at_the_budget() {
    for programs in [31, 32, 33] {
        for exhausted in [Exhausted::Stop, Exhausted::Abort] {
            let edits: Vec<Edit> = (1..programs)
                .map(|n| connect(n, "*", node(n + 1)))
                .chain([Edit::Budget { budget: 32, exhausted }])
                .collect();
            let graph = loose(programs).transaction(0, &edits).expect("a line").0;
            let (ran, verdict) = run(&graph, |_, n| n as u32 + 1);
            let aborted = programs == 33 && exhausted == Exhausted::Abort;
            assert_eq!(ran.len() as u32, programs.min(32));
            assert_eq!(verdict, if aborted { 0 } else { programs.min(32) });
            let plan = graph.plan().expect("it has programs").0;
            assert_eq!((plan.longest(), plan.is_counted()), (Some(programs), programs == 33));
        }
    }
}

#[test]
fn a_transaction_that_fails_changes_nothing() {
    let graph = loose(2);
    let before = graph.clone();
    let edits = [connect(1, "pass", node(2)), connect(2, "pass", node(9))];
    assert_eq!(graph.transaction(2, &edits), Err(EditError::NoNode { node: NodeId(9) }));
    assert_eq!(graph, before);
    let stale = graph.transaction(1, &edits[..1]);
    assert_eq!(stale, Err(EditError::Stale { expected: 1, is: 2 }));
    assert_eq!(stale.map_err(|e| e.errno()), Err(errno::ESTALE));
    let expects = |expected| Edit::Connect {
        from: NodeId(1),
        on: Verdicts::ANY,
        edge: Edge::to(To::Keep),
        expected: Some(expected),
    };
    assert!(graph.transaction(2, &[expects(None)]).is_ok());
    let wrong = graph.transaction(2, &[expects(Some(Edge::from(NodeId(2))))]);
    assert_eq!(wrong, Err(EditError::Unexpected { node: NodeId(1), what: "edge" }));
    let replace = |expected| Edit::Replace { node: NodeId(1), program: program(7), expected };
    assert!(graph.transaction(0, &[replace(Some(1))]).is_ok());
    let wrong = graph.transaction(0, &[replace(Some(2))]);
    assert_eq!(wrong, Err(EditError::Unexpected { node: NodeId(1), what: "program" }));
    let place = Place::After { node: NodeId(2), on: Verdicts::ANY };
    let behind_itself = Edit::Move { node: NodeId(2), place, bridge: Bridge::SameVerdict };
    let wrong = graph.transaction(0, &[behind_itself]);
    assert_eq!(wrong, Err(EditError::Itself { node: NodeId(2) }));
}

#[test]
fn programs_of_one_chain_are_of_one_kind() {
    let others = [
        (ProgramRef { prog_type: ProgramType::SchedCls, ..program(9) }, "type"),
        (
            ProgramRef { attach_type: Some(skep_isa::AttachType::XdpDevmap), ..program(9) },
            "attach type",
        ),
        (ProgramRef { device: Some(3), ..program(9) }, "interface"),
    ];
    for (program, what) in others {
        let done = loose(1).transaction(0, &[Edit::Add { program, place: Place::Loose }]);
        let (program, other) = ("p9".to_owned(), "p1".to_owned());
        assert_eq!(done, Err(EditError::Kind { program, other, what }));
        assert_eq!(done.map_err(|e| e.errno()), Err(errno::EINVAL));
    }
    let frags = ProgramRef { frags: true, ..program(9) };
    let both = loose(1)
        .transaction(0, &[Edit::Add { program: frags.clone(), place: Place::Loose }])
        .expect("the chain takes whole packets then")
        .0;
    assert!(!both.takes_fragments());
    let all = Graph::new(ProgramType::Xdp)
        .transaction(0, &[Edit::Add { program: frags, place: Place::Loose }])
        .expect("one program")
        .0;
    assert!(all.takes_fragments());
}

#[test]
fn a_new_program_comes_between_and_goes_without_a_trace() {
    let pass: Verdicts = "pass".parse().expect("a verdict");
    let graph = loose(2).transaction(0, &[connect(1, "pass", node(2))]).expect("a line").0;
    let place = Place::After { node: NodeId(1), on: pass };
    let (more, added) = graph.transaction(0, &[add(3, place)]).expect("a line");
    assert_eq!((run(&more, |_, _| 2), run(&more, |_, _| 1)), ((vec![1, 3, 2], 2), (vec![1], 1)));
    let first = Place::First { on: pass };
    let (first, _) = more.transaction(0, &[add(4, first)]).expect("a line");
    assert_eq!(run(&first, |_, _| 2).0, [4, 1, 3, 2]);
    let bridge = Bridge::SameVerdict;
    let (same, _) =
        more.transaction(0, &[Edit::Remove { node: added[0], bridge }]).expect("it is there");
    for verdict in verdicts() {
        assert_eq!(run(&same, |_, _| verdict), run(&graph, |_, _| verdict));
    }
    let place = Place::First { on: pass };
    let (moved, _) =
        more.transaction(0, &[Edit::Move { node: NodeId(2), place, bridge }]).expect("a line");
    assert_eq!(run(&moved, |_, _| 2).0, [2, 1, 3]);
}

/// A graph as a table: for each node where each verdict leads.
#[derive(Clone, Default)]
struct Model {
    own: BTreeMap<(u32, u32), To>,
    any: BTreeMap<u32, To>,
}

impl Model {
    fn follow(&self, from: u32, verdict: u32) -> To {
        let any = self.any.get(&from).copied().unwrap_or(To::Keep);
        self.own.get(&(from, verdict)).copied().unwrap_or(any)
    }
}

/// Random edges on a graph and on a table lead to the same nodes, and the plan does too.
#[test]
fn random_edges_lead_where_a_table_says() {
    for seed in 0..300 {
        let mut rng = Random::new(seed + 1);
        let nodes = 1 + rng.below(6) as u32;
        let (mut graph, mut model) = (loose(nodes), Model::default());
        for _ in 0..30 {
            let from = 1 + rng.below(nodes as usize) as u32;
            let to = match rng.below(4) {
                0 => To::Keep,
                1 => To::End(rng.below(9) as u32),
                _ => node(1 + rng.below(nodes as usize) as u32),
            };
            let low = rng.below(32) as u32;
            let high = low + rng.below(32 - low as usize) as u32;
            let any = rng.below(4) == 0;
            let on = if any { "*".to_owned() } else { format!("{low}-{high}") };
            let edit = if rng.below(5) == 0 {
                let on = on.parse().expect("verdicts");
                Edit::Disconnect { from: NodeId(from), on }
            } else {
                connect(from, &on, to)
            };
            let keys: Vec<(u32, u32)> = (low..=high).map(|v| (from, v)).collect();
            let mut next = model.clone();
            let possible = match &edit {
                Edit::Disconnect { .. } if any => next.any.remove(&from).is_some(),
                Edit::Disconnect { .. } => {
                    keys.iter().map(|k| next.own.remove(k)).all(|old| old.is_some())
                }
                _ if any => {
                    next.any.insert(from, to);
                    true
                }
                _ => {
                    next.own.extend(keys.iter().map(|k| (*k, to)));
                    true
                }
            };
            // A graph is without cycles when its nodes can be put in order.
            let mut left: Vec<u32> = (1..=nodes).collect();
            let edges: Vec<(u32, To)> = next
                .own
                .iter()
                .map(|((from, _), to)| (*from, *to))
                .chain(next.any.iter().map(|(from, to)| (*from, *to)))
                .collect();
            while let Some(n) = left.iter().position(|n| {
                !edges.iter().any(|(from, to)| left.contains(from) && *to == node(*n))
            }) {
                left.remove(n);
            }
            let done = graph.transaction(graph.revision(), &[edit]);
            assert_eq!(done.is_ok(), possible && left.is_empty(), "seed {seed}: {done:?}");
            if let Ok((new, _)) = done {
                assert_eq!(new.revision(), graph.revision() + 1);
                (graph, model) = (new, next);
            }
            let (plan, order) = graph.plan().expect("it has programs");
            assert_eq!(plan.check(), Ok(()));
            for from in 1..=nodes {
                for verdict in verdicts() {
                    let want = model.follow(from, verdict);
                    let is = graph.node(NodeId(from)).expect("a node").follow(verdict).to;
                    assert_eq!(is, want, "seed {seed}: {from} {verdict}");
                    let Some(step) = order.iter().position(|n| *n == NodeId(from)) else {
                        continue;
                    };
                    let step = &plan.steps[step];
                    let planned = step.edge(verdict).map(|n| step.edges[n].to);
                    use skep_vm::chain::To as Planned;
                    let planned = match planned {
                        Some(Planned::Node(n)) => To::Node(order[n]),
                        Some(Planned::End(v)) => To::End(v),
                        Some(Planned::Keep) | None => To::Keep,
                    };
                    assert_eq!(planned, want, "seed {seed}: {from} {verdict}");
                }
            }
        }
    }
}

/// A chain without a program runs as the old one in which that program says what the one before
/// it said.
#[test]
fn bridging_by_verdict_is_as_if_the_program_had_agreed() {
    for seed in 0..500 {
        let mut rng = Random::new(seed + 1);
        let nodes = 2 + rng.below(5) as u32;
        let mut graph = loose(nodes);
        for _ in 0..12 {
            let from = 1 + rng.below(nodes as usize) as u32;
            let to = match rng.below(5) {
                0 => To::Keep,
                1 => To::End(30),
                _ => node(1 + rng.below(nodes as usize) as u32),
            };
            let on = ["*", "pass", "drop,tx", "0-3", "5-31", "next"][rng.below(6)];
            if let Ok((next, _)) = graph.transaction(0, &[connect(from, on, to)]) {
                graph = next;
            }
        }
        let gone = 2 + rng.below(nodes as usize - 1) as u32;
        let edit = Edit::Remove { node: NodeId(gone), bridge: Bridge::SameVerdict };
        let (without, _) = graph.transaction(0, &[edit]).expect("bridging closes no cycle");
        for _ in 0..40 {
            // Verdicts by program, so that how many ran before does not matter.
            let say: Vec<u32> = (0..=nodes)
                .map(|_| if rng.below(4) == 0 { u32::MAX } else { rng.below(7) as u32 })
                .collect();
            let ran = |graph: &Graph, transparent: Option<u32>| {
                let mut path = Vec::new();
                let mut at = graph.entry().expect("the entry stays");
                let mut verdict = 0;
                loop {
                    let n = graph.node(at).expect("a node");
                    if transparent != Some(n.program.id) {
                        verdict = say[n.program.id as usize];
                        path.push(n.program.id);
                    }
                    match n.follow(verdict).to {
                        To::Node(next) => at = next,
                        To::End(end) => return (path, end),
                        To::Keep => return (path, verdict),
                    }
                }
            };
            assert_eq!(ran(&without, None), ran(&graph, Some(gone)), "seed {seed}");
        }
    }
}
