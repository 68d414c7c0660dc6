//! Chains through the library: runs compared with one program after the other, changes while a chain
//! runs, what keeps its programs.

use std::num::NonZeroU64;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use skep::chain::{
    Bridge, Chain, ChainError, Count, Edge, Edit, EditError, Exhausted, Glimpse, NodeId, Place, To,
    Verdicts, Watch, priority, run_config,
};
use skep::isa::ProgramType;
use skep::object::{Btf, Object};
use skep::port::batch::Meta;
use skep::port::{
    self, Batch, Outputs, PortError, Received, Sent, Sink, Source, Target, Until, Verdict,
};
use skep::test_run::{Engine, Input, LiveFrames};
use skep::{Error, Session};
use skep_testkit::random::Random;

fn data() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/chain.bpf.o"))
}

const PROGRAMS: [&str; 5] = ["drop_short", "count", "mark", "push", "obey"];

fn packet(rng: &mut Random) -> Vec<u8> {
    let len = [14, 20, 59, 60, 64, 200][rng.below(6)];
    (0..len).map(|_| rng.next_u64() as u8).collect()
}

/// A chain of all programs of the object, in a random graph.
fn random_chain(session: &Session, rng: &mut Random, name: &str) -> Result<Chain, Error> {
    let object = session.load(data())?;
    let chain = Chain::create(session, name, ProgramType::Xdp)?;
    let nodes = 1 + rng.below(6);
    for n in 0..nodes {
        let program = object.program(PROGRAMS[rng.below(PROGRAMS.len())])?;
        let id = chain.add(program, Place::Loose)?;
        assert_eq!(id, NodeId(n as u32 + 1));
    }
    let mut edits = vec![Edit::Entry(Some(NodeId(1)))];
    for from in 1..=nodes as u32 {
        for _ in 0..rng.below(4) {
            let on = ["*", "pass", "drop", "tx", "0-3", "aborted,redirect"][rng.below(6)];
            let to = match rng.below(8) {
                0 => To::Keep,
                1 => To::End(rng.below(5) as u32),
                _ => To::Node(NodeId(1 + rng.below(nodes) as u32)),
            };
            let back = matches!(to, To::Node(to) if to.0 <= from);
            let edge = Edge { to, bound: back.then_some(2) };
            let on = on.parse().expect("verdicts");
            edits.push(Edit::Connect { from: NodeId(from), on, edge, expected: None });
        }
    }
    let exhausted = if rng.below(2) == 0 { Exhausted::Stop } else { Exhausted::Abort };
    edits.push(Edit::Budget { budget: 1 + rng.below(8) as u32, exhausted });
    chain.transaction(0, &edits)?;
    Ok(chain)
}

/// Sends on what it is shown: node, verdict, bytes.
struct Shown(Sender<(NodeId, Option<u32>, Vec<u8>)>);

impl Watch for Shown {
    fn look(&mut self, seen: &Glimpse<'_>) -> Result<(), PortError> {
        let _ = self.0.send((seen.node, seen.verdict, seen.frame.bytes.to_vec()));
        Ok(())
    }
}

/// Verdicts and packets are those of the programs run one after the other, on both engines, in
/// test runs and on frames.
#[test]
fn random_chains_do_what_their_programs_do_one_by_one() -> Result<(), Error> {
    for seed in 0..40 {
        let mut rng = Random::new(seed + 1);
        let session = Session::scratch()?;
        let chain = random_chain(&session, &mut rng, "random")?;
        let graph = chain.graph()?;
        let object = session.load(data())?;
        let mut runners = vec![
            chain.runner()?,
            chain.runner_with(Engine::Interp, Count::Runs)?,
            chain.runner()?,
            chain.runner_with(Engine::Interp, Count::Runs)?,
            chain.runner_with(Engine::Jit, Count::Timed)?,
        ];
        // Two whose packets are shown one program at a time, on frames.
        let (to, shown) = channel();
        for runner in &mut runners[2..4] {
            runner.watch(NonZeroU64::MIN, Shown(to.clone()))?;
        }
        for _ in 0..30 {
            let given = packet(&mut rng);
            let (mut bytes, mut at, mut ran) = (given.clone(), NodeId(1), Vec::new());
            let mut taken: Vec<(NodeId, Edge)> = Vec::new();
            let want = loop {
                let node = graph.node(at).expect("edges lead to nodes");
                let program = object.program(&node.program.name)?;
                let done = program.test_run(&Input::data(&bytes))?;
                bytes = done.data_out.unwrap_or_default();
                ran.push(at);
                let edge = node.follow(done.retval);
                let next = match edge.to {
                    To::Keep => break done.retval,
                    To::End(end) => break end,
                    To::Node(next) => next,
                };
                let times = taken.iter().filter(|t| **t == (at, edge)).count();
                if edge.bound.is_some_and(|bound| times >= bound as usize) {
                    break done.retval;
                }
                taken.push((at, edge));
                if ran.len() == graph.budget() as usize {
                    let aborts = graph.exhausted() == Exhausted::Abort;
                    break if aborts { 0 } else { done.retval };
                }
                at = next;
            };
            for (nth, runner) in runners.iter_mut().enumerate() {
                let before = runner.stats();
                let done = runner.test_run(&Input::data(&given))?;
                assert_eq!((done.retval, done.data_out.as_ref()), (want, Some(&bytes)), "{seed}");
                let after = runner.stats();
                for id in graph.reachable() {
                    let runs = |s: &skep::chain::Stats| s.nodes.get(&id).map_or(0, |n| n.runs());
                    let times = ran.iter().filter(|n| **n == id).count() as u64;
                    assert_eq!(runs(&after) - runs(&before), times, "seed {seed}: node {id}");
                }
                let (mut batch, mut verdicts) = (Batch::new(), port::Verdicts::default());
                assert!(batch.push(Meta::default(), &given));
                verdicts.reset(1);
                runner.run(&mut batch, &mut verdicts)?;
                let left = batch.frame(0).map(|f| f.bytes);
                let raw = Verdict::from_raw(want, Target::default()).name();
                assert_eq!((verdicts.all()[0].name(), left), (raw, Some(&bytes[..])), "{seed}");
                let ways: Vec<_> = shown.try_iter().collect();
                if matches!(nth, 2 | 3) {
                    let way: Vec<_> =
                        ways.iter().filter(|(_, verdict, _)| verdict.is_none()).collect();
                    assert_eq!(way.iter().map(|(node, ..)| *node).collect::<Vec<_>>(), ran);
                    assert_eq!(ways.first().map(|(.., bytes)| bytes), Some(&given));
                    assert_eq!(ways.last().map(|(.., bytes)| bytes), Some(&bytes));
                    assert_eq!(ways.len(), 2 * ran.len());
                } else {
                    assert_eq!(ways, []);
                }
                let told = runner.explain(&Input::data(&given))?;
                assert_eq!(told.visits.iter().map(|v| v.node).collect::<Vec<_>>(), ran);
                assert_eq!((told.outcome.retval, told.outcome.data_out), (want, done.data_out));
            }
        }
        let timed = runners.pop().expect("there are three").stats();
        assert!(timed.nodes.values().any(|n| n.ns > 0));
        for watched in &runners[1..] {
            assert_eq!(watched.stats(), runners[0].stats(), "seed {seed}");
        }
        let bytes: Vec<u64> = runners[0].stats().nodes.values().map(|n| n.bytes).collect();
        assert_eq!(bytes, timed.nodes.values().map(|n| n.bytes).collect::<Vec<_>>());
    }
    Ok(())
}

#[test]
fn explaining_shows_the_way_and_what_was_changed() -> Result<(), Error> {
    let session = Session::scratch()?;
    let object = session.load(data())?;
    let chain = Chain::create(&session, "way", ProgramType::Xdp)?;
    let on: Verdicts = "pass".parse().expect("a verdict");
    let first = chain.add(object.program("mark")?, Place::First { on })?;
    let second = chain.add(object.program("push")?, Place::After { node: first, on })?;
    let told = chain.runner()?.explain(&Input::data(&[7; 64]))?;
    let [mark, push] = &told.visits[..] else { panic!("{told:?}") };
    assert_eq!((mark.node, mark.verdict, mark.to), (first, 2, To::Node(second)));
    let [change] = &mark.changes[..] else { panic!("{mark:?}") };
    assert_eq!((change.offset, &change.before[..]), (12, &[7, 7][..]));
    assert_eq!(change.after, [0xbe, 0xe5]);
    assert_eq!((push.verdict, push.to, push.head, push.tail), (3, To::Keep, 4, 0));
    assert_eq!((told.outcome.retval, told.outcome.data_out.map(|d| d.len())), (3, Some(68)));
    Ok(())
}

/// What another one changes is seen between batches, and what was counted before stays.
#[test]
fn a_runner_notices_changes_of_others() -> Result<(), Error> {
    let session = Session::scratch()?;
    let object = session.load(data())?;
    let chain = Chain::create(&session, "fw", ProgramType::Xdp)?;
    let mut runner = chain.runner()?;
    let mut thread = runner.for_other_thread();
    let input = Input::data(&[0; 20]);
    assert_eq!(runner.test_run(&input)?.retval, 2, "a chain without programs passes");
    assert!(!runner.refresh()?);
    let other = Chain::open(&Session::open_in(session.dir().path())?, "fw")?;
    let on: Verdicts = "pass".parse().expect("a verdict");
    let node = other.add(object.program("drop_short")?, Place::First { on })?;
    assert_eq!(runner.test_run(&input)?.retval, 2, "not before it looks");
    assert!(runner.refresh()?);
    assert_eq!((runner.test_run(&input)?.retval, thread.test_run(&input)?.retval), (1, 1));
    assert!(!thread.refresh()?, "one thread looks for all");
    let count = other.add(object.program("count")?, Place::First { on })?;
    assert!(thread.refresh()?);
    assert_eq!(runner.test_run(&input)?.retval, 1);
    let stats = runner.stats();
    assert_eq!((stats.nodes[&node].runs(), stats.nodes[&count].runs()), (2, 1));
    assert_eq!(stats.nodes[&node].verdicts(), [("drop".to_owned(), 2)]);
    assert_eq!(runner.graph().revision(), 3);
    // Programs that are of no use to the chain leave it as it is.
    let mut merged = runner.stats();
    merged.merge(&thread.stats());
    assert_eq!(merged.nodes[&node].runs(), 3);
    Ok(())
}

#[test]
fn one_of_two_writers_is_told_that_the_other_was_faster() -> Result<(), Error> {
    let session = Session::scratch()?;
    let object = session.load(data())?;
    let chain = Chain::create(&session, "fw", ProgramType::Xdp)?;
    let on = Verdicts::ANY;
    let first = chain.add(object.program("mark")?, Place::First { on })?;
    let seen = chain.graph()?.revision();
    let remove = [Edit::Remove { node: first, bridge: Bridge::SameVerdict }];
    assert_eq!(chain.validate(seen, &remove)?.nodes().count(), 0);
    chain.add(object.program("count")?, Place::First { on })?;
    let stale = chain.transaction(seen, &remove);
    assert!(matches!(stale, Err(ChainError::Edit(EditError::Stale { expected: 2, is: 3 }))));
    // Many writers at once lose nothing.
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..20 {
                    let program = object.program("count").expect("it is there");
                    chain.add(program, Place::Loose).expect("it can be added");
                }
            });
        }
    });
    let graph = chain.graph()?;
    assert_eq!((graph.nodes().count(), graph.revision()), (42, 43));
    Ok(())
}

/// Programs and maps of a chain outlive who loaded them, and go with it.
#[test]
fn a_chain_keeps_its_programs_and_their_maps() -> Result<(), Error> {
    let session = Session::scratch()?;
    let dir = session.dir();
    let on = Verdicts::ANY;
    {
        let object = session.load(data())?;
        let chain = Chain::create(&session, "kept", ProgramType::Xdp)?;
        chain.add(object.program("count")?, Place::First { on })?;
        chain.pin()?;
        assert!(matches!(chain.pin(), Err(ChainError::Pinned { .. })));
    }
    let collect = || dir.collect().expect("the directory is there");
    collect();
    let programs = || dir.ids(skep::dir::Kind::Program).expect("it is there").len();
    assert_eq!((programs(), dir.ids(skep::dir::Kind::Map).expect("it is there").len()), (1, 1));
    let chain = Chain::open(&session, "kept")?;
    assert_eq!(Chain::open(&session, &chain.id().to_string())?.name(), "kept");
    let mut runner = chain.runner()?;
    assert_eq!(runner.test_run(&Input::data(&[0; 20]))?.retval, 2);
    chain.delete()?;
    // Who runs it goes on.
    collect();
    assert_eq!(runner.test_run(&Input::data(&[0; 20]))?.retval, 2);
    drop(runner);
    collect();
    assert_eq!((programs(), dir.ids(skep::dir::Kind::Map).expect("it is there").len()), (0, 0));
    let gone = Chain::open(&session, "kept").map(drop);
    assert!(matches!(gone, Err(ChainError::NotThere { .. })));
    Ok(())
}

/// What removes garbage while chains come and go takes nothing that they keep, and never waits for a
/// lock that it holds itself.
#[test]
fn garbage_is_removed_beside_chains_that_come_and_go() -> Result<(), Error> {
    const MAKERS: usize = 2;
    let session = Session::scratch()?;
    let dir = session.dir().clone();
    let (done, ended) = channel();
    for maker in 0..MAKERS {
        let (session, done) = (Session::open_in(dir.path())?, done.clone());
        std::thread::spawn(move || {
            for round in 0..150 {
                let name = format!("chain{maker}-{round}");
                let object = session.load(data()).expect("it loads");
                let chain =
                    Chain::create(&session, &name, ProgramType::Xdp).expect("the name is free");
                let program = object.program("count").expect("it is there");
                chain.add(program, Place::First { on: Verdicts::ANY }).expect("it can be added");
                chain.pin().expect("not pinned yet");
                drop((object, chain));
                let chain = Chain::open(&session, &name).expect("it is pinned");
                let mut runner = chain.runner().expect("its program is there");
                let run = runner.test_run(&Input::data(&[0; 20])).expect("it runs");
                assert_eq!(run.retval, 2);
                chain.delete().expect("it is there");
            }
            done.send(()).expect("somebody waits");
        });
    }
    drop(done);
    let stop = Arc::new(AtomicBool::new(false));
    let collecting = {
        let stop = Arc::clone(&stop);
        let dir = dir.clone();
        std::thread::spawn(move || {
            while !stop.load(Relaxed) {
                dir.collect().expect("the directory is there");
            }
        })
    };
    for _ in 0..MAKERS {
        ended.recv_timeout(Duration::from_secs(300)).expect("nobody waits for ever");
    }
    stop.store(true, Relaxed);
    assert!(collecting.join().is_ok());
    dir.collect()?;
    assert_eq!(dir.ids(skep::dir::Kind::Program)?, [0_u32; 0]);
    Ok(())
}

/// A process that is stopped while it looks whether somebody uses a program stops nobody else, and what
/// the program keeps stays.
#[test]
fn who_is_stopped_with_a_lock_holds_up_nobody() -> Result<(), Error> {
    let session = Session::scratch()?;
    let dir = session.dir();
    {
        let object = session.load(data())?;
        let chain = Chain::create(&session, "kept", ProgramType::Xdp)?;
        chain.add(object.program("count")?, Place::First { on: Verdicts::ANY })?;
        chain.pin()?;
    }
    let programs = || dir.ids(skep::dir::Kind::Program).expect("it is there");
    dir.collect()?;
    let [program] = *programs() else { panic!("{:?}", programs()) };
    let held = std::fs::File::open(dir.object(skep::dir::Kind::Program, program)).expect("there");
    held.try_lock().expect("nobody has it");
    let refused = Chain::open(&session, "kept")?.runner().map(drop).expect_err("it is locked");
    let (mut said, mut source) = (refused.to_string(), std::error::Error::source(&refused));
    while let Some(cause) = source {
        said += &cause.to_string();
        source = cause.source();
    }
    assert!(said.contains("is locked by a process that may be stopped"), "{said}");
    assert_eq!(dir.collect()?, 0);
    drop(held);
    let run = Chain::open(&session, "kept")?.runner()?.test_run(&Input::data(&[0; 20]))?;
    assert_eq!((run.retval, programs()), (2, vec![program]));
    Ok(())
}

/// Of two chains that are made at once with one name, one gets the pin, and the other goes with it not
/// touched.
#[test]
fn a_chain_that_is_deleted_leaves_the_pin_of_another() -> Result<(), Box<dyn std::error::Error>> {
    let session = Session::scratch()?;
    let first = Chain::create(&session, "first", ProgramType::Xdp)?;
    first.pin()?;
    let second = Chain::create(&session, "second", ProgramType::Xdp)?;
    assert!(matches!(second.unpin(), Err(ChainError::NotPinned { .. })));
    let pins = session.dir().path().join("pins/chains");
    std::fs::hard_link(pins.join("first"), pins.join("second"))?;
    assert!(matches!(second.unpin(), Err(ChainError::NotPinned { .. })));
    second.delete()?;
    assert!(pins.join("second").exists());
    first.unpin()?;
    assert!(!pins.join("first").exists());
    Ok(())
}

#[test]
fn what_cannot_be_is_refused_by_name() -> Result<(), Error> {
    let session = Session::scratch()?;
    let object = session.load(data())?;
    for name in ["", "1", "9lives", "a/b", "..", "a b", "ü"] {
        let made = Chain::create(&session, name, ProgramType::Xdp);
        assert!(matches!(made, Err(ChainError::Name { .. })), "{name}");
    }
    let chain = Chain::create(&session, "fw", ProgramType::Xdp)?;
    let again = Chain::create(&session, "fw", ProgramType::Xdp);
    assert!(matches!(again, Err(ChainError::Exists { .. })));
    let tc = Chain::create(&session, "tc", ProgramType::SchedCls)?;
    let other = tc.add(object.program("count")?, Place::Loose);
    assert!(matches!(other, Err(ChainError::Edit(EditError::Type { .. }))));
    let elsewhere = Session::scratch()?;
    let foreign = elsewhere.load(data())?;
    let other = chain.add(foreign.program("count")?, Place::Loose);
    assert!(matches!(other, Err(ChainError::OtherDirectory { .. })));
    Ok(())
}

/// The authors' wishes, as libxdp reads them.
#[test]
fn run_configs_are_read_from_the_types() -> Result<(), Box<dyn std::error::Error>> {
    let object = Object::parse(&std::fs::read(data())?)?;
    let btf = object.btf.as_deref().ok_or("it has types")?;
    let config = |priority, actions| priority::RunConfig { priority, actions };
    // XDP_DROP is added to XDP_PASS; XDP_TX takes the place of XDP_PASS.
    assert_eq!(run_config(btf, "drop_short")?, config(10, 1 << 2 | 1 << 1));
    assert_eq!(run_config(btf, "mark")?, config(60, 1 << 3));
    assert_eq!(run_config(btf, "count")?, config(50, 1 << 2));
    assert_eq!(run_config(btf, "drop")?, config(50, 1 << 2));
    Ok(())
}

/// What libxdp reads of the same object, and refuses (`data/libxdp/record.c`).
#[test]
fn run_configs_are_what_libxdp_reads() -> Result<(), Box<dyn std::error::Error>> {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/libxdp/");
    let object = Object::parse(&std::fs::read(format!("{dir}configs.bpf.o"))?)?;
    let btf = object.btf.as_deref().ok_or("it has types")?;
    let line = |program: &str| match run_config(btf, program) {
        Ok(config) => {
            let actions = (0..5).map(|bit| format!(" {}", config.actions >> bit & 1));
            format!("{program} {}{}\n", config.priority, actions.collect::<String>())
        }
        Err(_) => format!("{program} refused\n"),
    };
    let ours: String = object.programs.iter().map(|program| line(&program.name)).collect();
    assert_eq!(ours, std::fs::read_to_string(format!("{dir}configs.libxdp.txt"))?);
    let unknown = run_config(btf, "unknown_members").map_err(|e| e.to_string());
    assert_eq!(
        unknown.expect_err("libxdp refuses it too"),
        "`XDP_RUN_CONFIG(unknown_members)` has `priority_of_another`: it may have `priority`, and \
         verdicts such as `XDP_PASS`"
    );
    Ok(())
}

/// Types of somebody else's object, damaged in some places: a place in a chain, or an error of one
/// line; never a panic, and never without end.
#[test]
fn damaged_run_configs_are_places_or_errors() -> Result<(), Box<dyn std::error::Error>> {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/libxdp/");
    let object = Object::parse(&std::fs::read(format!("{dir}configs.bpf.o"))?)?;
    let bytes = object.btf.as_deref().ok_or("it has types")?.raw().to_vec();
    let mut rng = Random::new(7);
    let (mut places, mut errors, mut changed) = (0, 0, 0);
    let whole: Vec<_> = {
        let btf = Btf::parse(&bytes)?;
        object.programs.iter().map(|p| run_config(&btf, &p.name).ok()).collect()
    };
    for _ in 0..20_000 {
        let mut damaged = bytes.clone();
        for _ in 0..1 + rng.below(4) {
            let (at, by) = (rng.below(damaged.len()), [0, 1, 4, 0xff, rng.next_u64() as u8]);
            damaged[at] = by[rng.below(5)];
        }
        let Ok(btf) = Btf::parse(&damaged) else { continue };
        for (program, whole) in object.programs.iter().zip(&whole) {
            match run_config(&btf, &program.name) {
                Ok(config) => {
                    places += 1;
                    changed += u64::from(Some(config) != *whole);
                    assert!(config.actions < 1 << 5, "{config:?}");
                }
                Err(e) => {
                    errors += 1;
                    assert!(!e.to_string().contains(char::is_control), "{e:?}");
                }
            }
        }
    }
    assert!(places > 1000 && errors > 1000 && changed > 1000, "{places} {errors} {changed}");
    Ok(())
}

/// Frames without end, until the sink has one; after some of them, somebody changes the chain.
struct Frames<'a> {
    chain: &'a Chain,
    edit: Option<Edit>,
    received: u32,
    dropped: Arc<AtomicBool>,
}

impl Source for Frames<'_> {
    fn receive(&mut self, batch: &mut Batch, _: Duration) -> Result<Received, PortError> {
        self.received += 1;
        if self.dropped.load(Relaxed) {
            return Ok(Received::End);
        }
        if self.received == 3
            && let Some(edit) = self.edit.take()
        {
            self.chain.transaction(0, &[edit]).expect("it can be changed");
        }
        while batch.push(Meta::default(), &[0; 20]) {}
        Ok(Received::Frames)
    }
}

struct Dropped(Arc<AtomicBool>);

impl Sink for Dropped {
    fn send_counted(&mut self, _: &Batch, frames: &[u16], _: &mut Sent) -> Result<(), PortError> {
        self.0.store(!frames.is_empty(), Relaxed);
        Ok(())
    }
}

/// Packets that are pumped meet a change as soon as somebody made it.
#[test]
fn a_change_is_noticed_while_packets_are_pumped() -> Result<(), Error> {
    let session = Session::scratch()?;
    let object = session.load(data())?;
    let chain = Chain::create(&session, "fw", ProgramType::Xdp)?;
    let on: Verdicts = "pass".parse().expect("a verdict");
    chain.add(object.program("count")?, Place::First { on })?;
    let (_file, program) =
        skep::chain::stored_program(&session, object.program("drop_short")?.id())?;
    let edit = Some(Edit::Add { program, place: Place::First { on } });
    let dropped = Arc::new(AtomicBool::new(false));
    let mut source = Frames { chain: &chain, edit, received: 0, dropped: Arc::clone(&dropped) };
    let mut outputs = Outputs::new();
    let sink = outputs.add(Box::new(Dropped(dropped)));
    outputs.send_verdict(1, sink);
    let mut runner = chain.runner()?;
    let until = Until { packets: Some(2_000_000), ..Until::default() };
    let stats = runner.pump(&mut source, &mut outputs, &until)?;
    assert!(runner.take_stale().is_none());
    let [_, drop, pass, ..] = stats.verdicts;
    assert_eq!(drop + pass, stats.packets);
    assert!(pass >= 128 && drop >= 1, "{stats:?}");
    let nodes = runner.stats().nodes;
    let runs: Vec<u64> = nodes.values().map(|n| n.runs()).collect();
    assert_eq!(runs, [pass, drop], "what is dropped does not come to the old program");
    Ok(())
}

#[test]
fn a_watch_sees_the_programs_of_the_next_revision_and_ends_with_its_error() -> Result<(), Error> {
    struct Fails(usize);
    impl Watch for Fails {
        fn look(&mut self, _: &Glimpse<'_>) -> Result<(), PortError> {
            self.0 += 1;
            assert_eq!(self.0, 1, "nothing is shown after an error");
            let source = std::io::ErrorKind::StorageFull.into();
            Err(PortError::Open { name: "full".to_owned(), source })
        }
    }
    let session = Session::scratch()?;
    let object = session.load(data())?;
    let chain = Chain::create(&session, "fw", ProgramType::Xdp)?;
    let on = Verdicts::ANY;
    let first = chain.add(object.program("count")?, Place::First { on })?;
    let mut runner = chain.runner()?;
    let (to, shown) = channel();
    runner.watch(NonZeroU64::MIN, Shown(to))?;
    let (mut batch, mut verdicts) = (Batch::new(), port::Verdicts::default());
    assert!(batch.push(Meta::default(), &[1; 64]));
    verdicts.reset(1);
    let nodes = || shown.try_iter().filter(|s| s.1.is_none()).map(|s| s.0).collect::<Vec<_>>();
    runner.run(&mut batch, &mut verdicts)?;
    assert_eq!(nodes(), [first]);
    let second = chain.add(object.program("push")?, Place::After { node: first, on })?;
    assert!(runner.refresh()?);
    runner.run(&mut batch, &mut verdicts)?;
    assert_eq!(nodes(), [first, second]);

    runner.watch(NonZeroU64::MIN, Fails(0))?;
    let failed = runner.run(&mut batch, &mut verdicts).expect_err("the watch fails");
    assert!(matches!(failed, ChainError::Watch(_)), "{failed}");
    assert_eq!(verdicts.all()[0].name(), "tx", "the packet has its verdict all the same");
    runner.run(&mut batch, &mut verdicts)?;
    Ok(())
}

/// Frames without a byte and frames of 256 KiB go through a chain as any other: each has its verdict,
/// is counted with all its bytes, and comes out whole.
#[test]
fn frames_of_any_length_go_through_a_chain() -> Result<(), Error> {
    const LENGTHS: [usize; 9] = [0, 1, 13, 14, 59, 60, 65_535, 65_536, 262_144];
    let session = Session::scratch()?;
    let object = session.load(data())?;
    let chain = Chain::create(&session, "fw", ProgramType::Xdp)?;
    let first = chain.add(object.program("count")?, Place::First { on: Verdicts::ANY })?;
    let on: Verdicts = "pass".parse().expect("a verdict");
    let second = chain.add(object.program("drop_short")?, Place::After { node: first, on })?;
    for engine in [Engine::Jit, Engine::Interp] {
        let mut runner = chain.runner_with(engine, Count::Runs)?;
        let (mut batch, mut verdicts) = (Batch::new(), port::Verdicts::default());
        let mut came = Vec::new();
        for len in LENGTHS {
            let given: Vec<u8> = (0..len).map(|n| (n * 7) as u8).collect();
            batch.clear();
            assert!(batch.push(Meta::default(), &given));
            verdicts.reset(1);
            runner.run(&mut batch, &mut verdicts)?;
            assert_eq!(batch.frame(0).map(|f| f.bytes), Some(&given[..]), "{len}");
            came.push(verdicts.all()[0].name());
        }
        let want = LENGTHS.map(|len| if len < 60 { "drop" } else { "pass" });
        assert_eq!(came, want, "{engine:?}");
        let stats = runner.stats();
        let bytes: u64 = LENGTHS.iter().map(|len| *len as u64).sum();
        for node in [first, second] {
            assert_eq!((stats.nodes[&node].runs(), stats.nodes[&node].bytes), (9, bytes));
        }
    }
    Ok(())
}

/// A chain runs on live frames as a program does: what the last one left on a page is there, and its ends
/// are as they were.
#[test]
fn chains_run_on_live_frames() -> Result<(), Error> {
    let session = Session::scratch()?;
    let object =
        session.load(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/test_run/live.bpf.o"))?;
    let chain = Chain::create(&session, "live", ProgramType::Xdp)?;
    let on = "pass".parse().expect("a verdict");
    let first = chain.add(object.program("live_spread")?, Place::First { on })?;
    let then = chain.add(object.program("live_marks")?, Place::After { node: first, on })?;
    // Both programs count frames in one variable, and marks in one map.
    let (mut counter, mut marks) = (0, vec![0_u64; 256]);
    for engine in [Engine::Jit, Engine::Interp] {
        let (mut left, mut verdicts) = ([0; 64], [0; Verdict::KINDS]);
        for n in 0..1280 {
            // Pages go to and fro.
            let page = if n / 64 % 2 == 0 { n % 64 } else { 63 - n % 64 };
            let spread = counter % 5;
            marks[spread] += 1;
            // Drop, tx, two redirects, drop.
            verdicts[[1, 3, 4, 4, 1][spread]] += 1;
            counter += 1;
            if spread == 0 {
                marks[left[page]] += 1;
                left[page] += 1;
                counter += 1;
            }
        }
        let mut runner = chain.runner_with(engine, Count::Runs)?;
        let input = Input { repeat: 1280, ..Input::data(&[0; 60]) };
        let mut frames = LiveFrames::new(&input, 0).expect("it is a packet");
        let done = runner.pump(&mut frames, &mut Outputs::new(), &Until::default())?;
        assert_eq!((done.packets, done.verdicts), (1280, verdicts), "{engine:?}");
        let passed: usize = left.iter().sum();
        let runs = |node| runner.stats().nodes[&node].runs();
        assert_eq!((runs(first), runs(then)), (1280, passed as u64));
    }
    for (n, count) in (0_u32..).zip(marks) {
        let value = object.map("marks")?.lookup(&n.to_ne_bytes()).expect("it has 256 elements");
        assert_eq!(value, count.to_ne_bytes(), "mark {n}");
    }
    Ok(())
}
