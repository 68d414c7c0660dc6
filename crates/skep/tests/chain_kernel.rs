//! Chains in the running kernel beside the same chains here: verdicts, packets, maps and counters.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use skep::chain::kernel::{self, KernelChain, KernelChainError, Sources, XdpMode};
use skep::chain::{Chain, Count, Edge, Edit, Exhausted, Graph, NodeId, Place, Stats, To, Verdicts};
use skep::isa::{Insn, MapType, ProgramType, errno};
use skep::object::Object;
use skep::test_run::Input;
use skep::{Error, Session};
use skep_kernel::{Link, Program, ProgramSpec, TestRun};
use skep_testkit::network;
use skep_testkit::run::SetOnDrop;

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
    !skep_testkit::skip::without_bpf()
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

/// Node, runs, bytes, verdicts.
type Counted = (u32, u64, u64, Vec<(String, u64)>);

fn sums(stats: &Stats) -> Vec<Counted> {
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
    let mut refused = 0;
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
        let kernel = match KernelChain::load(&sources, &graph, count, None) {
            Ok(kernel) => kernel,
            // `deep` leaves room for a few bounds only.
            Err(KernelChainError::Stack { .. }) => {
                refused += 1;
                continue;
            }
            // The loop of `deep` is walked once for each state of bounds and budget.
            Err(KernelChainError::Refused { last, .. }) if last.contains("Processed 1000001") => {
                refused += 1;
                continue;
            }
            Err(e) => panic!("seed {seed}: {e}\n{e:#?}"),
        };
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
    assert!(refused * 10 <= rounds, "{refused} of {rounds}");
    Ok(())
}

/// The graph of programs of the corpus, one after the other upon `pass`.
fn line(sources: &Sources, object: usize, names: &[&str], budget: u32) -> Graph {
    let mut edits = Vec::new();
    for name in names {
        let program = sources.program(object, name).expect("it is there");
        edits.push(Edit::Add { program, place: Place::Loose });
    }
    for n in 1..names.len() as u32 {
        let (on, edge) = ("pass".parse().expect("a verdict"), Edge::from(NodeId(n + 1)));
        edits.push(Edit::Connect { from: NodeId(n), on, edge, expected: None });
    }
    edits.push(Edit::Entry(Some(NodeId(1))));
    edits.push(Edit::Budget { budget, exhausted: Exhausted::Abort });
    Graph::new(ProgramType::Xdp).transaction(0, &edits).expect("a line").0
}

fn corpus() -> (Sources, usize) {
    let mut sources = Sources::new(None);
    let bytes = std::fs::read(data("corpus.bpf.o")).expect("committed");
    let object = sources.add("corpus", Object::parse(&bytes).expect("good"));
    (sources, object)
}

/// Budgets of 32 stop the 33rd program; more pages of counters than one, and distances beyond 16
/// bits, are no limit.
#[test]
fn long_chains_run_to_their_budget() {
    if !may() {
        return;
    }
    let (sources, object) = corpus();
    for (nodes, budget, want, ran) in [
        (31, 32, 2, 31),
        (32, 32, 2, 32),
        (33, 32, 0, 32),
        (33, 33, 2, 33),
        (64, 64, 2, 64),
        (250, 200, 0, 200),
    ] {
        let graph = line(&sources, object, &vec!["one_first"; nodes], budget);
        let chain = KernelChain::load(&sources, &graph, Count::Runs, None).expect("it fits");
        let run = TestRun { data_in: &[0; 64], data_out: 64, ..TestRun::default() };
        assert_eq!(chain.program().test_run(&run).expect("it runs").retval, want, "{nodes}");
        let stats = chain.stats().expect("counters");
        assert_eq!(stats.nodes.values().map(|n| n.runs()).sum::<u64>(), ran, "{nodes}");
    }
    // 400 times 107 instructions.
    let graph = line(&sources, object, &vec!["calls"; 400], 400);
    let chain = KernelChain::load(&sources, &graph, Count::Off, None).expect("it fits");
    let run = TestRun { data_in: &[0; 64], data_out: 64, ..TestRun::default() };
    chain.program().test_run(&run).expect("it runs");
}

/// What programs need beyond what one may have is told before the kernel is asked.
#[test]
fn a_program_that_leaves_no_stack_is_named() {
    if !may() {
        return;
    }
    let (sources, object) = corpus();
    let mut edits = Vec::new();
    let program = sources.program(object, "deep").expect("it is there");
    edits.push(Edit::Add { program, place: Place::Loose });
    edits.push(Edit::Entry(Some(NodeId(1))));
    for verdict in 0..9 {
        let on = Verdicts::one(verdict).expect("a verdict");
        let edge = Edge { to: To::Node(NodeId(1)), bound: Some(2 + verdict) };
        edits.push(Edit::Connect { from: NodeId(1), on, edge, expected: None });
    }
    let (graph, _) = Graph::new(ProgramType::Xdp).transaction(0, &edits).expect("bounded");
    let refused = KernelChain::load(&sources, &graph, Count::Runs, None).map(drop);
    let said = refused.expect_err("there is no room").to_string();
    assert!(said.starts_with("program `deep (1)` needs 5"), "{said}");
}

/// A network namespace with a cable from `one` to `two`, and a mount namespace with a bpf file
/// system, for this thread and those that it starts.
fn world() -> Option<PathBuf> {
    if !may() || !network::enter(true) {
        return None;
    }
    network::command("mount -t bpf bpf /sys/fs/bpf");
    network::veth("one", "two");
    Some("/sys/fs/bpf".into())
}

fn packet_socket(interface: &str, protocol: u16) -> i32 {
    let name = std::ffi::CString::new(interface).expect("a name");
    // SAFETY: a socket is made and bound; the address is initialized.
    unsafe {
        let fd = libc::socket(libc::AF_PACKET, libc::SOCK_RAW, i32::from(protocol.to_be()));
        let mut to: libc::sockaddr_ll = std::mem::zeroed();
        to.sll_family = libc::AF_PACKET as u16;
        to.sll_protocol = protocol.to_be();
        to.sll_ifindex = libc::if_nametoindex(name.as_ptr()) as i32;
        let done = libc::bind(fd, (&raw const to).cast(), size_of_val(&to) as u32);
        assert!(fd >= 0 && done == 0);
        let limit = libc::timeval { tv_sec: 0, tv_usec: 100_000 };
        let (level, size) = (libc::SOL_SOCKET, size_of_val(&limit) as u32);
        libc::setsockopt(fd, level, libc::SO_RCVTIMEO, (&raw const limit).cast(), size);
        fd
    }
}

/// While two writers put chains in each other's place under traffic, every packet has the marks of both
/// programs of one of them; and chains that are gone leave no program and no map.
#[test]
fn a_packet_sees_the_old_chain_or_the_new_one() {
    let Some(bpf) = world() else { return };
    let (sources, object) = corpus();
    let chains = [["one_first", "one_second"], ["two_first", "two_second"]].map(|names| {
        let graph = line(&sources, object, &names, 32);
        KernelChain::load(&sources, &graph, Count::Runs, None).expect("it fits")
    });
    let mode = XdpMode::Any;
    kernel::attach(&chains[0], "two", mode, &bpf, None).expect("the interface is free");
    let (from, to) = (packet_socket("one", 0), packet_socket("two", 0x88b5));
    let stop = AtomicBool::new(false);
    let mut seen = [0u64; 4];
    std::thread::scope(|scope| {
        let (stop, chains, bpf) = (&stop, &chains, &bpf);
        scope.spawn(move || {
            let mut frame = [0u8; 60];
            frame[..6].fill(0xff);
            frame[12..14].copy_from_slice(&[0x88, 0xb5]);
            while !stop.load(Relaxed) {
                // SAFETY: sends bytes that are borrowed; what is not sent is not seen.
                unsafe { libc::send(from, frame.as_ptr().cast(), frame.len(), 0) };
            }
        });
        for first in 0..2 {
            scope.spawn(move || {
                // Some hundred swaps, and until enough packets have come.
                for n in 0.. {
                    if n >= 150 && stop.load(Relaxed) {
                        return;
                    }
                    kernel::attach(&chains[(first + n) % 2], "two", mode, bpf, None)
                        .expect("a swap");
                }
            });
        }
        let _stop = SetOnDrop(stop);
        let until = Instant::now() + Duration::from_secs(300);
        while seen[1].min(seen[2]) < 1000 {
            assert!(Instant::now() < until, "{seen:?}");
            let mut frame = [0u8; 60];
            // SAFETY: receives into bytes that are borrowed for writing.
            let got = unsafe { libc::recv(to, frame.as_mut_ptr().cast(), frame.len(), 0) };
            if got >= 16 {
                let [a, b] = [frame[14], frame[15]];
                seen[if a == b { usize::from(a) } else { 3 }] += 1;
            }
        }
    });
    assert_eq!((seen[0], seen[3]), (0, 0), "{seen:?}");
    kernel::detach("two", &bpf).expect("it is attached");
    let of = |chain: &KernelChain| chain.program().id_and_maps().expect("it is loaded");
    let all = chains.each_ref().map(of);
    drop(chains);
    // The kernel waits for who may still be running it.
    let until = Instant::now() + Duration::from_secs(300);
    let is_there = |(program, maps): &(u32, Vec<u32>)| {
        Program::open(*program).is_ok() || maps.iter().any(|id| skep_kernel::Map::open(*id).is_ok())
    };
    while all.iter().any(is_there) {
        assert!(Instant::now() < until, "programs and maps go in the end: {all:?}");
        std::thread::yield_now();
    }
}

/// A verdict's own edge goes before the wildcard, for every verdict that can have one.
#[test]
fn a_specific_edge_goes_before_the_wildcard() {
    if !may() {
        return;
    }
    let (sources, object) = corpus();
    let wildcard = Edge::to(To::End(2000));
    // What `any_verdict` says of the third byte.
    let says = |byte: u8| match byte {
        201.. => u32::MAX,
        101.. => u32::from(byte & 63),
        _ => u32::from(byte & 3),
    };
    for own in (0..32).chain([u32::MAX]) {
        let program = sources.program(object, "any_verdict").expect("it is there");
        let on = Verdicts::one(own).expect("it has a slot");
        let connect = |on, edge| Edit::Connect { from: NodeId(1), on, edge, expected: None };
        let edits = [
            Edit::Add { program, place: Place::First { on: Verdicts::ANY } },
            connect(on, Edge::to(To::End(1000))),
            connect(Verdicts::ANY, wildcard),
        ];
        let (graph, _) = Graph::new(ProgramType::Xdp).transaction(0, &edits).expect("one node");
        let chain = KernelChain::load(&sources, &graph, Count::Off, None).expect("it fits");
        for byte in 0..=255 {
            let mut given = [0; 64];
            given[2] = byte;
            let run = TestRun { data_in: &given, data_out: 64, ..TestRun::default() };
            let got = chain.program().test_run(&run).expect("it runs").retval;
            assert_eq!(got, if says(byte) == own { 1000 } else { 2000 }, "{own} {byte}");
        }
    }
}

/// What the kernel answers to links of XDP programs, as this engine takes for granted.
#[test]
fn links_answer_as_measured() {
    let Some(_) = world() else { return };
    let program = |verdict: i32, kind: ProgramType| {
        let insns = [Insn::mov64_imm(0, verdict), Insn::exit()].map(|i| i.to_bytes());
        Program::load(&ProgramSpec::new(kind, insns.as_flattened())).expect("two instructions")
    };
    let [first, second] = [1, 2].map(|v| program(v, ProgramType::Xdp));
    let other = program(0, ProgramType::SocketFilter);
    // SAFETY: asks for a number by a name that ends with a zero.
    let two = unsafe { libc::if_nametoindex(c"two".as_ptr()) };
    let errno = |done: skep_kernel::Result| done.map_err(|e| e.errno());
    let link = Link::xdp(&first, two, XdpMode::Any).expect("the interface is free");
    let create = |ifindex| errno(Link::xdp(&second, ifindex, XdpMode::Any).map(drop));
    assert_eq!((create(two), create(9999)), (Err(errno::EBUSY), Err(errno::EINVAL)));
    assert_eq!(errno(link.update(&second, Some(&second))), Err(errno::EPERM));
    assert_eq!(errno(link.update(&second, Some(&first))), Ok(()));
    assert_eq!(errno(link.update(&first, None)), Ok(()));
    assert_eq!(errno(link.update(&other, None)), Err(errno::EINVAL));
    let info = || link.info().expect("it is a link").expect("of XDP");
    assert_eq!((info().ifindex, info().program), (two, first.id_and_maps().expect("loaded").0));
    assert_eq!((errno(link.detach()), errno(link.detach())), (Ok(()), Ok(())));
    assert_eq!((info().ifindex, errno(link.update(&second, None))), (0, Err(errno::ENOLINK)));
    // The last descriptor of a link that is not pinned.
    drop(Link::xdp(&first, two, XdpMode::Generic).expect("it is free again"));
    assert_eq!(create(two), Ok(()));
}
