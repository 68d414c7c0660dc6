//! Chains of every front end as the engines run them.

use skep_isa::{ProgramType, text};
use skep_net::chain::mprog::{How, List};
use skep_net::chain::priority::{self, AtEnd, Entry, RunConfig};
use skep_net::chain::seed::Command::Add;
use skep_net::chain::seed::{Handle, Programs, WILDCARD};
use skep_net::chain::{Edge, Edit, Exhausted, Graph, NodeId, Place, ProgramRef, Verdicts};
use skep_vm::chain::{Interpreted, Options, Part, Unit};
use skep_vm::{Env, interp};

use crate::model::{Ran, program};

/// Most programs of a run that is noted.
const ROOM: usize = 127;

/// Runs a chain that has programs, by machine code and by the interpreter, which must agree: the
/// programs that ran, in order, and the answer. `says` is each program's verdict, by its id.
pub fn engines(graph: &Graph, says: impl Fn(u32) -> u32) -> Ran {
    let (plan, order) = graph.plan().expect("it has programs");
    let programs: Vec<_> = order
        .iter()
        .map(|node| {
            let id = graph.node(*node).expect("edges lead to nodes").program.id;
            // The context is a list: how many ran, and which.
            let source = format!(
                "ldxdw r2, [r1+0]\nadd r2, 1\nstxdw [r1+0], r2\nlsh r2, 3\nadd r1, r2\n\
                 mov r2, {id}\nstxdw [r1+0], r2\nlddw r0, {}\nexit",
                says(id)
            );
            text::assemble(&source).expect("a program")
        })
        .collect();
    let env = Env::empty();
    let parts: Vec<Part<'_>> = programs.iter().map(|insns| Part { insns, env: &env }).collect();
    let prepared = programs.iter().map(|p| interp::Program::new(p, &env).expect("a program"));
    let interpreted = Interpreted::new(plan.clone(), prepared.collect(), Options::default());
    let interpreted = interpreted.expect("a plan");
    // SAFETY: the programs write into their list, which has room for all that run.
    let unit = unsafe { Unit::compile(&plan, &parts, &Options::default()) }.expect("a chain");
    let ran = |run: &dyn Fn(*mut u8) -> u32| {
        let mut list = [0u64; ROOM + 1];
        let verdict = run(list.as_mut_ptr().cast());
        let [count, ids @ ..] = &list;
        (ids[..*count as usize].iter().map(|id| *id as u32).collect(), verdict)
    };
    // SAFETY: as above.
    let compiled: Ran = ran(&|ctx| unsafe { unit.run(ctx, &[]) });
    // SAFETY: as above.
    let slow: Ran = ran(&|ctx| unsafe { interpreted.run(ctx, &[]) }.expect("it ends"));
    assert_eq!(compiled, slow, "{graph:?}");
    compiled
}

/// Which programs run of a line of so many, and which verdict it has: the series' and skep's own end at
/// 32, with the last verdict or none; lists of libxdp's and tcx's kind have an end of their own only.
#[test]
fn lines_of_31_32_and_33_programs_in_every_front_end() {
    let all = |n: u32| (1..=n).collect::<Vec<_>>();
    for length in [31, 32, 33] {
        let within = length.min(32);
        for exhausted in [Exhausted::Stop, Exhausted::Abort] {
            let mut graph = Graph::new(ProgramType::Xdp);
            for id in (1..=length).rev() {
                let place = Place::First { on: Verdicts::ANY };
                let edit = Edit::Add { program: program(id), place };
                graph = graph.transaction(0, &[edit]).expect("a line").0;
            }
            let edits = [Edit::Budget { budget: 32, exhausted }];
            let graph = graph.transaction(0, &edits).expect("a budget").0;
            let aborted = length == 33 && exhausted == Exhausted::Abort;
            let verdict = if aborted { 0 } else { within };
            assert_eq!(engines(&graph, |id| id), (all(within), verdict), "skep {length}");
        }

        let mut series = Programs::default();
        (1..=length).for_each(|id| series.load(program(id), true));
        for prev in 1..length {
            let words = [prev, prev + 1, WILDCARD, 0];
            let mut attr: Vec<u8> = words.into_iter().flat_map(u32::to_ne_bytes).collect();
            assert_eq!(series.call(Add, &mut attr, Handle::Program), Ok(()));
        }
        let graph = series.graph(1).expect("it is loaded");
        assert_eq!(engines(&graph, |id| id), (all(within), within), "series {length}");

        let config = |id: u32| RunConfig { priority: id, actions: 1 << 2 };
        let entry = |id| Entry {
            program: program(id),
            config: config(id),
            is_loaded: false,
            size: 8,
            tag: [0; 8],
            load_time: 0,
        };
        let entries: Vec<Entry> = (1..=length).map(entry).collect();
        for at_end in [AtEnd::Pass, AtEnd::Last] {
            let graph = priority::graph(&entries, at_end).expect("of one kind");
            assert_eq!(engines(&graph, |_| 2), (all(length), 2), "libxdp {length}");
            // The last one's verdict is none of its actions.
            let last = |id| if id == length { 1 } else { 2 };
            assert_eq!(engines(&graph, last), (all(length), 1), "libxdp {length}");
        }

        let mut list = List::new(ProgramType::SchedCls);
        for id in 1..=length {
            let tc = ProgramRef { prog_type: ProgramType::SchedCls, ..program(id) };
            assert_eq!(list.attach(tc, None, &How::default()), Ok(()));
        }
        let next = u32::MAX;
        assert_eq!(engines(&list.graph(), |_| next), (all(length), next), "tcx {length}");
        let last = |id| if id == length { 2 } else { next };
        assert_eq!(engines(&list.graph(), last), (all(length), 2), "tcx {length}");
    }
}

/// An edge with a bound is taken so often, in a cycle of one, two and three programs.
#[test]
fn bounded_cycles_go_round_as_often_as_they_say() {
    for nodes in 1..=3 {
        for bound in 1..5 {
            let mut edits: Vec<Edit> = (1..=nodes)
                .map(|id| Edit::Add { program: program(id), place: Place::Loose })
                .collect();
            edits.push(Edit::Entry(Some(NodeId(1))));
            for from in 1..=nodes {
                let to = NodeId(from % nodes + 1);
                let bound = (from == nodes).then_some(bound);
                let edge = Edge { bound, ..Edge::from(to) };
                let (from, on) = (NodeId(from), Verdicts::ANY);
                edits.push(Edit::Connect { from, on, edge, expected: None });
            }
            let (graph, _) =
                Graph::new(ProgramType::Xdp).transaction(0, &edits).expect("it is bounded");
            let rounds: Vec<u32> = (0..=bound).flat_map(|_| 1..=nodes).collect();
            assert_eq!(engines(&graph, |id| id), (rounds, nodes), "{nodes} {bound}");
        }
    }
}
