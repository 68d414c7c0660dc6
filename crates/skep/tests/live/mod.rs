//! Live frames: they end where the kernel's do.

use std::collections::BTreeMap;
use std::time::Duration;

use skep::dir::{Dir, Scratch};
use skep::load::Loader;
use skep::packets::PacketRunner;
use skep::port::interface::{PacketSink, PacketSource, index_of, machine};
use skep::port::{Batch, Outputs, Received, Sink, Source, Stats, Until};
use skep::test_run::{Engine, Errno, Input, LiveFrames, Outcome, Runner};
use skep_kernel::{Link, Program, ProgramSpec, TestRun, XdpMode};
use skep_testkit::TempDir;
use skep_testkit::network;
use skep_testkit::skip::without_bpf;

use super::{kernel_side, object};

/// Longer than anything here takes; nothing waits for it but what has failed.
const LONG: Duration = Duration::from_secs(300);
/// The type of the frames that count.
const TYPE: [u8; 2] = [0x88, 0xb5];
/// Frames of a run.
const FRAMES: u32 = 250;
/// Words of `struct xdp_md`.
const INGRESS: usize = 3;

/// Runs a program on live frames.
pub fn run(
    runner: Runner,
    input: &Input<'_>,
    batch_size: u32,
    outputs: &mut Outputs,
) -> Result<Outcome, Errno> {
    stats(runner, input, batch_size, outputs).map(|_| Outcome::default())
}

fn stats(
    runner: Runner,
    input: &Input<'_>,
    batch_size: u32,
    outputs: &mut Outputs,
) -> Result<Stats, Errno> {
    let mut packets = PacketRunner::new(runner).map_err(|_| Errno::EINVAL)?;
    let mut frames = LiveFrames::new(input, batch_size)?;
    Ok(packets.pump(&mut frames, outputs, &Until::default()).unwrap_or_else(|e| panic!("{e}")))
}

/// A packet that goes to an interface when the program redirects it, and a context that says where
/// it comes from.
fn packet() -> (Vec<u8>, Vec<u8>) {
    let number = |name| index_of(name).expect("it was made");
    let mut packet = vec![0xff; 60];
    packet[12..14].copy_from_slice(&TYPE);
    packet[24..28].copy_from_slice(&number("b0").to_ne_bytes());
    let mut words = [0_u32; 6];
    (words[1], words[INGRESS]) = (packet.len() as u32, number("a0"));
    (packet, words.iter().flat_map(|word| word.to_ne_bytes()).collect())
}

/// The numbers of the frames that come in on an interface, until that of another type, which is sent
/// there after them.
fn came(source: &mut PacketSource, over: &str) -> BTreeMap<u8, u32> {
    let mut sink = PacketSink::open(over).expect("it is up");
    let (mut batch, mut end) = (Batch::new(), vec![0xff; 60]);
    end[12..14].copy_from_slice(&[0x88, 0xb6]);
    assert!(batch.push(Default::default(), &end));
    sink.send(&batch, &[0]).expect("it is up");
    let mut numbers = BTreeMap::new();
    loop {
        batch.clear();
        let received = source.receive(&mut batch, LONG).expect("it is up");
        assert_ne!(received, Received::Nothing, "the last frame on {over}");
        for frame in batch.frames() {
            match &frame.bytes[12..14] {
                kind if *kind == TYPE => *numbers.entry(frame.bytes[20]).or_default() += 1,
                [0x88, 0xb6] => return numbers,
                _ => {}
            }
        }
    }
}

/// Runs something, and returns the frames that passed, were sent back, and went on.
fn ends(run: impl FnOnce()) -> [BTreeMap<u8, u32>; 3] {
    let open = |name| PacketSource::open(name).unwrap_or_else(|e| panic!("{e}"));
    let [mut passed, mut back, mut on] = ["a0", "a1", "b1"].map(open);
    run();
    [came(&mut passed, "a1"), came(&mut back, "a0"), came(&mut on, "b0")]
}

#[test]
fn live_frames_end_where_the_kernels_do() {
    if without_bpf() || !network::enter(false) {
        return;
    }
    network::veth("a0", "a1");
    network::veth("b0", "b1");
    let (packet, ctx) = packet();
    let object = object("live.bpf.o");

    // A veth device takes what a driver redirects only if a program waits at the other end.
    let pass = [[0xb7, 0, 0, 0, 2, 0, 0, 0], [0x95, 0, 0, 0, 0, 0, 0, 0]];
    let pass = ProgramSpec::new(skep::isa::ProgramType::Xdp, pass.as_flattened());
    let pass = Program::load(&pass).unwrap_or_else(|e| panic!("{e}"));
    let wait = |name| {
        let ifindex = index_of(name).expect("it was made");
        Link::xdp(&pass, ifindex, XdpMode::Native).unwrap_or_else(|e| panic!("{name}: {e}"))
    };
    let links = ["a1", "b1"].map(wait);
    let theirs = ends(|| {
        let linked = object.link(object.program("live_spread").unwrap()).unwrap();
        let maps = kernel_side::maps(&object);
        let run = TestRun {
            data_in: &packet,
            ctx_in: &ctx,
            repeat: FRAMES,
            flags: TestRun::LIVE_FRAMES,
            ..TestRun::default()
        };
        kernel_side::load(&linked, &maps).test_run(&run).unwrap_or_else(|e| panic!("{e}"));
    });
    drop(links);

    let temp = TempDir::in_memory();
    let dir = Dir::create(&temp.join("skep")).unwrap();
    for engine in [Engine::Jit, Engine::Interp] {
        let scratch = Scratch::create_in(&dir).unwrap();
        let loaded = Loader::new(scratch.dir()).autoload_only("live_spread").load(&object).unwrap();
        let runner = Runner::new(scratch.dir(), &loaded, "live_spread", engine).unwrap();
        let input = Input { data: Some(&packet), ctx: Some(&ctx), repeat: FRAMES };
        let mut outputs = machine(index_of("a0").unwrap()).unwrap_or_else(|e| panic!("{e}"));
        let mut done = None;
        let ours = ends(|| done = stats(runner, &input, 0, &mut outputs).ok());
        assert_eq!(ours, theirs, "{engine:?}");
        let done = done.expect("it ran");
        let each = u64::from(FRAMES) / 5;
        assert_eq!((done.packets, done.no_target), (u64::from(FRAMES), each));
        assert_eq!((done.sent.packets, done.sent.bytes), (3 * each, 3 * each * 60));
    }
    // As many as there should be: a fifth each.
    let counts = theirs.map(|numbers| numbers.values().sum::<u32>());
    assert_eq!(counts, [FRAMES / 5; 3]);
}
