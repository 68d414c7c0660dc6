//! Chains in the running kernel beside the same chains here: verdicts, packets, maps and counters.

use std::path::PathBuf;

use skep::chain::kernel::{KernelChain, Sources};
use skep::chain::{Chain, Count, Edge, Edit, Exhausted, Graph, NodeId, Place, Stats, To, Verdicts};
use skep::isa::{MapType, ProgramType};
use skep::object::Object;
use skep::test_run::Input;
use skep::{Error, Session};
use skep_kernel::TestRun;

fn data(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

/// SplitMix64.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

fn packet(rng: &mut Rng) -> Vec<u8> {
    let len = [14, 20, 59, 60, 64, 200, 1500][rng.below(7)];
    (0..len).map(|_| rng.next() as u8).collect()
}

/// Says whether bpf(2) may be used; the reason why not is printed.
fn may() -> bool {
    let probe = skep_kernel::probe();
    if let Err(e) = &probe {
        skep_testkit::skip(&format!("{}", e.requirement().unwrap_or("bpf(2)")));
    }
    probe.is_ok()
}

/// Edits that make a random graph of so many programs.
fn random_edits(rng: &mut Rng, nodes: usize) -> Vec<Edit> {
    let mut edits = vec![Edit::Entry(Some(NodeId(1)))];
    for from in 1..=nodes as u32 {
        for _ in 0..rng.below(5) {
            let on = ["*", "pass", "drop", "tx", "0-3", "aborted,redirect", "5-31", "next,7,2"]
                [rng.below(8)];
            let to = match rng.below(8) {
                0 => To::Keep,
                1 => To::End([0, 1, 2, 3, 4, 77, u32::MAX][rng.below(7)]),
                _ => To::Node(NodeId(1 + rng.below(nodes) as u32)),
            };
            let back = matches!(to, To::Node(to) if to.0 <= from);
            let bound = (back || rng.below(6) == 0).then(|| 1 + rng.below(3) as u32);
            let on: Verdicts = on.parse().expect("verdicts");
            let edge = Edge { to, bound };
            edits.push(Edit::Connect { from: NodeId(from), on, edge, expected: None });
        }
    }
    let exhausted = if rng.below(2) == 0 { Exhausted::Stop } else { Exhausted::Abort };
    edits.push(Edit::Budget { budget: 1 + rng.below(10) as u32, exhausted });
    edits
}

fn sums(stats: &Stats) -> Vec<(u32, u64, u64, Vec<(String, u64)>)> {
    stats.nodes.iter().map(|(id, n)| (id.0, n.runs(), n.bytes, n.verdicts())).collect()
}

/// Elements of a map of the kernel, for comparison.
fn elements(map: &skep_kernel::Map) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut out = Vec::new();
    let mut key = map.next_key(None).ok();
    while let Some(k) = key {
        out.extend(map.lookup(&k).ok().map(|v| (k.clone(), v)));
        key = map.next_key(Some(&k)).ok();
    }
    out.sort();
    out
}

/// The same graph of the same programs on both engines, and what comes out.
#[test]
fn random_chains_do_the_same_in_the_kernel() -> Result<(), Error> {
    if !may() {
        return Ok(());
    }
    let rounds: u64 = if std::env::var_os("SKEP_STRESS").is_some() { 1500 } else { 40 };
    let files = ["chain.bpf.o", "corpus.bpf.o"];
    for seed in 0..rounds {
        let mut rng = Rng(seed);
        let session = Session::scratch()?;
        let mut sources = Sources::new(None);
        let mut programs: Vec<(usize, String)> = Vec::new();
        let mut loaded = Vec::new();
        for file in files {
            let bytes = std::fs::read(data(file)).expect("committed");
            let object = Object::parse(&bytes).expect("good");
            let names: Vec<String> = object.programs.iter().map(|p| p.name.clone()).collect();
            let number = sources.add(file, object);
            programs.extend(names.into_iter().map(|n| (number, n)));
            loaded.push(session.load(data(file))?);
        }
        let nodes = 1 + rng.below(7);
        let chain = Chain::create(&session, "random", ProgramType::Xdp)?;
        let mut adds = Vec::new();
        for _ in 0..nodes {
            let (object, name) = &programs[rng.below(programs.len())];
            chain.add(loaded[*object].program(name)?, Place::Loose)?;
            let program = sources.program(*object, name).expect("it is there");
            adds.push(Edit::Add { program, place: Place::Loose });
        }
        let edits = random_edits(&mut rng, nodes);
        let (here, _) = chain.transaction(0, &edits)?;
        adds.extend(edits);
        let (graph, _) = Graph::new(ProgramType::Xdp).transaction(0, &adds).expect("as here");
        assert_eq!(here.reachable(), graph.reachable());
        let count = if seed % 4 == 0 { Count::Timed } else { Count::Runs };
        let kernel = KernelChain::load(&sources, &graph, count, None)
            .unwrap_or_else(|e| panic!("seed {seed}: {e}\n{e:#?}"));
        let mut runner = chain.runner()?;
        for n in 0..30 {
            let given = packet(&mut rng);
            let want = runner.test_run(&Input::data(&given))?;
            let run = TestRun { data_in: &given, data_out: 4096, ..TestRun::default() };
            let got = kernel.program().test_run(&run).expect("it runs");
            let want = (want.retval, want.data_out.unwrap_or_default());
            assert_eq!((got.retval, got.data_out), want, "seed {seed}, packet {n}");
        }
        let (ours, theirs) = (runner.stats(), kernel.stats().expect("counters"));
        assert_eq!(sums(&theirs), sums(&ours), "seed {seed}");
        assert_eq!(theirs.edges, ours.edges, "seed {seed}");
        for map in kernel.maps() {
            let (_, object) = sources.object(map.object).expect("it was added");
            if matches!(object.maps[map.index].map_type, MapType::ProgArray | MapType::ArrayOfMaps)
            {
                continue;
            }
            let ours = loaded[map.object].map(&map.name)?;
            for (key, value) in elements(&map.map) {
                let here = ours.lookup(&key).ok();
                assert_eq!(here.as_deref(), Some(&value[..]), "seed {seed}: {}", map.name);
            }
        }
    }
    Ok(())
}
