//! Chains that redirect: programs of map entries run behind them, and broadcasts go to all devices.

use skep::chain::{Chain, Edit, Place, Verdicts as On, program_ref};
use skep::isa::ProgramType;
use skep::load::{Loaded, Loader};
use skep::object::Object;
use skep::port::batch::Meta;
use skep::port::{Batch, Target, Verdict, Verdicts};
use skep::test_run::Engine;
use skep::{Error, Session};

const OBJECT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/packets/packets.bpf.o");
const FIRST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/chain.bpf.o");

/// Verdicts, copies, and the first byte of each frame.
type Ran = (Vec<Verdict>, Vec<(u16, Target)>, Vec<u8>);

/// What a chain of `count` and a program that redirects makes of frames: port and bytes of each.
fn run(
    session: &Session,
    object: &Loaded,
    (engine, name): (Engine, &str),
    frames: &[(u32, [u8; 60])],
) -> Result<Ran, Error> {
    let chain = Chain::create(session, &format!("{name}{engine:?}"), ProgramType::Xdp)?;
    let first = session.load(FIRST)?;
    let count = chain.add(first.program("count")?, Place::First { on: On::ANY })?;
    let program = object.program(name).expect("it is there");
    let program = program_ref(program.id(), program.program());
    let place = Place::After { node: count, on: "pass".parse().expect("a verdict") };
    chain.transaction(0, &[Edit::Add { program, place }])?;
    let mut runner = chain.runner_with(engine, skep::chain::Count::Runs)?;
    let (mut batch, mut verdicts) = (Batch::new(), Verdicts::default());
    for (port, frame) in frames {
        assert!(batch.push(Meta { port: *port, ..Meta::default() }, frame));
    }
    verdicts.reset(batch.len());
    runner.run(&mut batch, &mut verdicts)?;
    let stats = runner.stats();
    assert_eq!(stats.nodes[&count].runs(), frames.len() as u64);
    let firsts = batch.frames().map(|f| f.bytes[0]).collect();
    Ok((verdicts.all().to_vec(), verdicts.copies().to_vec(), firsts))
}

#[test]
fn programs_of_entries_run_behind_chains() -> Result<(), Error> {
    use Verdict::{Aborted, Drop, Redirect};
    let object =
        Object::parse(&std::fs::read(OBJECT).expect("it is committed")).expect("it is good");
    for engine in [Engine::Jit, Engine::Interp] {
        let session = Session::scratch()?;
        let object = Loader::new(session.dir()).load(&object).unwrap_or_else(|e| panic!("{e}"));
        let id = |name| object.program(name).expect("it is there").id();
        let put = |map: &str, key: u32, value: &[u32]| {
            let value: Vec<u8> = value.iter().flat_map(|n| n.to_ne_bytes()).collect();
            let map = object.map(map).expect("it is there");
            map.update(&key.to_ne_bytes(), &value, 0).unwrap_or_else(|e| panic!("{e}"));
        };
        put("devices_by_name", 1000, &[41, id("egress")]);
        put("devices_by_name", 2000, &[42, id("egress")]);
        put("devices_by_name", 3000, &[43, 0]);
        put("devices_by_name", 4000, &[44, 9999]);
        put("devices_by_name", 5000, &[45, id("on_cpu")]);
        put("cpus", 0, &[192, id("on_cpu")]);
        let frames = [1, 2, 3, 4, 5, 1].map(|byte| (7, [byte; 60]));
        let (verdicts, _, firsts) = run(&session, &object, (engine, "by_devmap_hash"), &frames)?;
        let to = |port| Redirect(Target::Port(port));
        assert_eq!(verdicts, [to(41), Drop, to(43), Aborted, Aborted, to(41)]);
        assert_eq!(firsts, [0xee, 0xee, 3, 4, 5, 0xee]);

        let mut second = [0; 60];
        second[1] = 9;
        let frames = [(7, [0; 60]), (7, second), (8, [0; 60])];
        let (verdicts, ..) = run(&session, &object, (engine, "by_cpumap"), &frames)?;
        assert_eq!(verdicts, [Redirect(Target::Cpu(0)), to(9), Aborted]);

        for (key, device) in [(1, 7), (5, 40), (15, 42)] {
            put("devices", key, &[device]);
        }
        let frames = [(7, [1; 60]), (7, [2; 60])];
        let (verdicts, copies, _) = run(&session, &object, (engine, "broadcast"), &frames)?;
        let all = |frame: u16| {
            let Redirect(one) = verdicts[usize::from(frame)] else { panic!("{verdicts:?}") };
            let copies = copies.iter().filter(|c| c.0 == frame).map(|c| c.1);
            let mut all: Vec<Target> = copies.chain([one]).collect();
            all.sort_unstable();
            all
        };
        assert_eq!(all(0), [40, 42].map(Target::Port), "not to where it came from");
        assert_eq!(all(1), [7, 40, 42].map(Target::Port));
    }
    Ok(())
}
