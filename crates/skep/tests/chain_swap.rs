//! A chain that two writers change while packets run through it, and what is left of old chains.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Barrier, Mutex};

use skep::chain::{
    Chain, ChainError, Count, Edit, EditError, NodeId, Place, ProgramRef, Verdicts, stored_program,
};
use skep::isa::{ProgramType, text};
use skep::object::RawProgram;
use skep::port::batch::Meta;
use skep::port::{self, Batch};
use skep::test_run::Engine;
use skep::{Error, Object, Session};
use skep_testkit::run::SetOnDrop;

/// Programs of a chain, each of which marks packets at a place of its own.
const LENGTH: usize = 4;
/// Chains that take each other's place, by the mark.
const MARKS: usize = 6;

/// Both tests look at things that the whole process has.
static ALONE: Mutex<()> = Mutex::new(());

/// Programs that write a number into a byte of the packet.
fn marking(session: &Session) -> Result<(Vec<Object>, Vec<Vec<ProgramRef>>), Error> {
    let (mut objects, mut all) = (Vec::new(), Vec::new());
    for mark in 1..=MARKS {
        let mut chain = Vec::new();
        for place in 0..LENGTH {
            let source = format!(
                "ldxw r2, [r1+0]\nldxw r3, [r1+4]\nmov r4, r2\nadd r4, 60\nmov r0, 2\n\
                 jgt r4, r3, end\nmov r5, {mark}\nstxb [r2+{}], r5\nend: exit",
                20 + place
            );
            let insns = text::assemble(&source).expect("a program");
            let raw = RawProgram::new("mark", ProgramType::Xdp, &insns);
            let object = session.load_instructions(&raw, &[])?;
            let program = object.program("mark")?;
            chain.push(stored_program(session, program.id())?.1);
            objects.push(object);
        }
        all.push(chain);
    }
    Ok((objects, all))
}

/// Edits that put other programs in place of those of all nodes.
fn replace(programs: &[ProgramRef]) -> Vec<Edit> {
    let nodes = (1..).map(NodeId);
    let edit = |(program, node): (&ProgramRef, NodeId)| Edit::Replace {
        node,
        program: program.clone(),
        expected: None,
    };
    programs.iter().zip(nodes).map(edit).collect()
}

fn first(session: &Session, programs: &[ProgramRef]) -> Result<Chain, Error> {
    let chain = Chain::create(session, "swapped", ProgramType::Xdp)?;
    let place = |n: u32| match n {
        0 => Place::First { on: Verdicts::ANY },
        n => Place::After { node: NodeId(n), on: Verdicts::ANY },
    };
    for (program, n) in programs.iter().zip(0..) {
        chain.transaction(0, &[Edit::Add { program: program.clone(), place: place(n) }])?;
    }
    Ok(chain)
}

/// Of two writers that build on the same revision one is told so, each time; and every packet has the
/// marks of all programs of one chain.
#[test]
fn two_writers_and_no_packet_meets_parts_of_two_chains() -> Result<(), Error> {
    let _alone = ALONE.lock();
    let session = Session::scratch()?;
    let (_objects, all) = marking(&session)?;
    let chain = first(&session, &all[0])?;
    let began = chain.graph()?.revision();
    let rounds: u64 = if std::env::var_os("SKEP_STRESS").is_some() { 3000 } else { 60 };
    let (stop, both) = (AtomicBool::new(false), Barrier::new(2));
    let (conflicts, ended) = (AtomicU64::new(0), AtomicBool::new(false));
    // Who wins is the machine's affair: one writer may win each time.
    let won = [const { AtomicU64::new(0) }; MARKS];
    // Batches of each reader so far.
    let batches = [const { AtomicU64::new(0) }; 2];
    let runners = [chain.runner()?, chain.runner_with(Engine::Interp, Count::Runs)?];
    std::thread::scope(|scope| {
        let (chain, all, stop, both) = (&chain, &all, &stop, &both);
        let (conflicts, ended, batches, won) = (&conflicts, &ended, &batches, &won);
        let mut of = batches.iter();
        let readers = runners.map(|mut runner| {
            let batches = of.next().expect("there are two");
            scope.spawn(move || {
                let _ended = SetOnDrop(ended);
                let (mut batch, mut verdicts) = (Batch::new(), port::Verdicts::default());
                let (mut seen, mut packets) = ([0u64; MARKS + 1], 0u64);
                let mut ends = false;
                while !ends {
                    // The last chain is run too.
                    ends = stop.load(Relaxed);
                    runner.refresh().expect("it can be read");
                    batch.clear();
                    while batch.push(Meta::default(), &[0; 60]) {}
                    verdicts.reset(batch.len());
                    runner.run(&mut batch, &mut verdicts).expect("it runs");
                    for frame in batch.frames() {
                        let marks = &frame.bytes[20..20 + LENGTH];
                        assert!(marks.iter().all(|m| *m == marks[0]), "{marks:?}");
                        seen[usize::from(marks[0])] += 1;
                        packets += 1;
                    }
                    batches.fetch_add(1, Relaxed);
                }
                let counted: u64 = runner.stats().nodes.values().map(|n| n.runs()).sum();
                assert_eq!(counted, packets * LENGTH as u64, "every run is counted once");
                seen
            })
        });
        let _stop = SetOnDrop(stop);
        let writers = [0, 1].map(|writer| {
            scope.spawn(move || {
                for round in 0..rounds as usize {
                    let revision = chain.graph().expect("it is there").revision();
                    both.wait();
                    let mark = (2 * round + writer) % MARKS;
                    match chain.transaction(revision, &replace(&all[mark])) {
                        Ok(_) => {
                            won[mark].fetch_add(1, Relaxed);
                        }
                        Err(ChainError::Edit(EditError::Stale { expected, is })) => {
                            assert_eq!((expected, is), (revision, revision + 1));
                            conflicts.fetch_add(1, Relaxed);
                        }
                        Err(e) => panic!("{e}"),
                    }
                    // Both readers have a batch that began behind this change.
                    let now = || batches.each_ref().map(|n| n.load(Relaxed));
                    let then = now();
                    while !ended.load(Relaxed) && now().iter().zip(then).any(|(n, t)| *n < t + 2) {
                        std::thread::yield_now();
                    }
                    both.wait();
                }
            })
        });
        writers.into_iter().for_each(|w| w.join().expect("no panic"));
        stop.store(true, Relaxed);
        for reader in readers {
            let seen = reader.join().expect("no panic");
            assert_eq!(seen[0], 0, "a packet without marks");
            let won = won.each_ref().map(|n| n.load(Relaxed));
            for (mark, (seen, won)) in seen[1..].iter().zip(won).enumerate() {
                // Packets ran through the first chain before a writer came, or did not.
                let first = mark == 0 && won == 0;
                assert!(
                    first || (*seen > 0) == (won > 0),
                    "chain {mark}: {seen} packets, put in {won} times"
                );
            }
        }
    });
    assert_eq!(conflicts.into_inner(), rounds);
    assert_eq!(won.map(AtomicU64::into_inner).iter().sum::<u64>(), rounds);
    assert_eq!(chain.graph()?.revision(), began + rounds);
    Ok(())
}

/// Descriptors, and mappings.
fn held() -> (usize, usize) {
    let descriptors = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    let mappings = std::fs::read_to_string("/proc/self/maps").map_or(0, |all| all.lines().count());
    (descriptors, mappings)
}

/// Chains that nobody runs any more give back their code, programs, maps and descriptors.
#[test]
fn old_chains_leave_nothing_behind() -> Result<(), Error> {
    let _alone = ALONE.lock();
    let session = Session::scratch()?;
    let (objects, all) = marking(&session)?;
    let chain = first(&session, &all[0])?;
    let mut runner = chain.runner()?;
    let mut thread = runner.for_other_thread();
    let mut swap = |n: usize| -> Result<(), Error> {
        chain.transaction(0, &replace(&all[n % MARKS]))?;
        assert!(runner.refresh()?);
        for runner in [&mut runner, &mut thread] {
            let input = skep::test_run::Input::data(&[0; 60]);
            let out = runner.test_run(&input)?.data_out.unwrap_or_default();
            assert_eq!(out[20..20 + LENGTH], [(n % MARKS + 1) as u8; LENGTH]);
        }
        Ok(())
    };
    (0..20).try_for_each(&mut swap)?;
    let before = held();
    (20..140).try_for_each(&mut swap)?;
    assert_eq!(held(), before, "descriptors and mappings after 120 more chains");
    // Programs that are in no chain any more go with who loaded them.
    drop((objects, runner, thread));
    let programs = || session.dir().ids(skep::dir::Kind::Program).map(|ids| ids.len());
    session.dir().collect()?;
    assert_eq!(programs()?, LENGTH, "those of the chain stay");
    chain.delete()?;
    session.dir().collect()?;
    assert_eq!(programs()?, 0);
    Ok(())
}
