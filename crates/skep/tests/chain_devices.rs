//! Chains that send packets to several devices, in the kernel and by skep: the same frames come out of
//! the same cables.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use skep::Session;
use skep::chain::kernel::{self, KernelChain, Sources, XdpMode};
use skep::chain::{Chain, Count, Edit, Graph, Place, Verdicts};
use skep::isa::ProgramType;
use skep::object::Object;
use skep::port::batch::Meta;
use skep::port::interface::{PacketSink, PacketSource, index_of};
use skep::port::{Batch, Outputs, Received, Sink, Source, Target, Until};
use skep_kernel::{Link, Program, ProgramSpec};
use skep_testkit::network::{self, command};
use skep_testkit::run::SetOnDrop;
use skep_testkit::skip::without_bpf;

const OBJECT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/packets/packets.bpf.o");
/// Longer than anything here takes; nothing waits for it but what has failed.
const LONG: Duration = Duration::from_secs(300);
/// Cables: the test has one end of each, the chain the other.
const CABLES: [(&str, &str); 3] = [("in0", "in1"), ("a0", "a1"), ("b0", "b1")];
/// Frames that are sent.
const FRAMES: u8 = 40;
/// The type of the frames that count.
const TYPE: [u8; 2] = [0x88, 0xb5];

/// A network namespace with the cables, and a mount namespace with a bpf file system, for this thread
/// and those that it starts.
fn world() -> bool {
    if without_bpf() || !network::enter(true) {
        return false;
    }
    command("mount -t bpf bpf /sys/fs/bpf");
    CABLES.iter().for_each(|(ours, theirs)| network::veth(ours, theirs));
    true
}

/// Frames of the test.
fn frames() -> Vec<Vec<u8>> {
    (0..FRAMES).map(frame).collect()
}

/// A frame that is told by a number; the program sends those of an even one back too.
fn frame(number: u8) -> Vec<u8> {
    let mut frame = vec![0; 60];
    frame[14] = number;
    frame[12..14].copy_from_slice(&TYPE);
    frame[20] = number;
    frame
}

/// What came out of each cable: the numbers of frames, sorted.
type Came = BTreeMap<&'static str, Vec<u8>>;

/// Sends all frames in, and waits until so many have come out of each cable.
fn through(sources: &mut [(&'static str, PacketSource)], wanted: &BTreeMap<&str, usize>) -> Came {
    let mut sink = PacketSink::open("in0").expect("it is there");
    let mut batch = Batch::new();
    frames().iter().for_each(|f| assert!(batch.push(Meta::default(), f)));
    let all: Vec<u16> = (0..batch.len() as u16).collect();
    let sent = sink.send(&batch, &all).expect("it is up");
    assert_eq!(sent.packets as usize, batch.len());
    let mut came = Came::new();
    for (name, source) in sources {
        let of = came.entry(name).or_default();
        while of.len() < wanted[name] {
            batch.clear();
            let received = source.receive(&mut batch, LONG).expect("it is up");
            assert_ne!(received, Received::Nothing, "{} came to {name}", of.len());
            let ours = batch.frames().filter(|f| f.bytes[12..14] == TYPE);
            of.extend(ours.map(|f| {
                assert_eq!(*f.bytes, frame(f.bytes[20]), "a frame of {name}");
                f.bytes[20]
            }));
        }
        of.sort();
    }
    came
}

/// How many frames should come out of each cable: of `in0`, where they went in, the even ones.
fn wanted() -> BTreeMap<&'static str, usize> {
    let all = usize::from(FRAMES);
    BTreeMap::from([("in0", all / 2), ("a0", all), ("b0", all)])
}

/// A driver takes frames of XDP programs only if it has one itself: puts one on an interface that lets
/// all pass.
fn passing(interface: u32) -> (Link, Program) {
    let insns: [[u8; 8]; 2] = [[0xb7, 0, 0, 0, 2, 0, 0, 0], [0x95, 0, 0, 0, 0, 0, 0, 0]];
    let spec = ProgramSpec::new(ProgramType::Xdp, insns.as_flattened());
    let program = Program::load(&spec).unwrap_or_else(|e| panic!("{e:?}"));
    let link = Link::xdp(&program, interface, XdpMode::Native);
    (link.unwrap_or_else(|e| panic!("{e}")), program)
}

#[test]
fn broadcasts_come_out_of_the_same_cables_as_in_the_kernel() {
    if !world() {
        return;
    }
    let bytes = std::fs::read(OBJECT).expect("it is committed");
    let devices = [(1_u32, "in1"), (5, "a1"), (15, "b1")];
    let index = |name| index_of(name).expect("it was made");
    let open = |(name, _): (&'static str, &str)| {
        (name, PacketSource::open(name).unwrap_or_else(|e| panic!("{e}")))
    };

    // In the kernel, behind the drivers and in them.
    let mut sources = Sources::new(None);
    let object = sources.add("packets", Object::parse(&bytes).expect("it is good"));
    let program = sources.program(object, "broadcast").expect("it is there");
    let edits = [Edit::Add { program, place: Place::First { on: Verdicts::ANY } }];
    let (graph, _) = Graph::new(ProgramType::Xdp).transaction(0, &edits).expect("one program");
    let chain = KernelChain::load(&sources, &graph, Count::Runs, None).expect("it fits");
    let map = chain.maps().iter().find(|m| m.name == "devices").expect("it is used");
    for (key, device) in devices {
        let value = index(device).to_ne_bytes();
        map.map.update(&key.to_ne_bytes(), &value, 0).expect("there is room");
    }
    let bpf = "/sys/fs/bpf".as_ref();
    let in_the_kernel = |mode| {
        let mut ends = CABLES.map(open);
        kernel::attach(&chain, "in1", mode, bpf, None).expect("it is free");
        let came = through(&mut ends, &wanted());
        kernel::detach("in1", bpf).expect("it is attached");
        came
    };
    let generic = in_the_kernel(XdpMode::Generic);
    let native = {
        let _others = CABLES.map(|(ours, _)| passing(index(ours)));
        in_the_kernel(XdpMode::Native)
    };
    assert_eq!(native, generic);

    // And by skep, with the same devices.
    let session = Session::scratch().expect("a directory");
    let loader = session.loader();
    let loaded = loader.load_bytes(&bytes).expect("it is good");
    for (key, device) in devices {
        let map = loaded.map("devices").expect("it is used");
        map.update(&key.to_ne_bytes(), &index(device).to_ne_bytes(), 0).expect("there is room");
    }
    let chain = Chain::create(&session, "all", ProgramType::Xdp).expect("a chain");
    let program = loaded.program("broadcast").expect("it is there");
    chain.add(program, Place::First { on: Verdicts::ANY }).expect("it can be added");
    let mut source = PacketSource::open("in1").expect("it is there");
    let mut outputs = Outputs::new();
    for (_, device) in devices {
        let sink = outputs.add(Box::new(PacketSink::open(device).expect("it is there")));
        outputs.send_target(Target::Port(index(device)), sink);
    }
    let mut runner = chain.runner().expect("it runs");
    let stop = AtomicBool::new(false);
    let mut ends = CABLES.map(open);
    let by_skep = std::thread::scope(|scope| {
        let until = Until { stop: Some(&stop), ..Until::default() };
        let pump = scope.spawn(move || runner.pump(&mut source, &mut outputs, &until));
        let came = {
            let _stop = SetOnDrop(&stop);
            through(&mut ends, &wanted())
        };
        let stats = pump.join().expect("no panic").expect("no port fails");
        assert_eq!((stats.no_target, stats.sent.ring_full, stats.lost.ring_full), (0, 0, 0));
        came
    });
    assert_eq!(by_skep, native);
    let all: Vec<u8> = (0..FRAMES).collect();
    assert_eq!((&by_skep["a0"], &by_skep["b0"]), (&all, &all));
    assert_eq!(by_skep["in0"], (0..FRAMES).step_by(2).collect::<Vec<_>>());
}
