//! XDP programs on packets of captures and memory ports: each packet is what `BPF_PROG_TEST_RUN`
//! makes of it, in the kernel where that may be asked, and goes where its program sent it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use skep::dir::Scratch;
use skep::load::Loader;
use skep::packets::{PacketRunner, PacketsError};
use skep::port::batch::Meta;
use skep::port::generator::Generator;
use skep::port::memory::MemorySource;
use skep::port::{
    Batch, Outputs, PortError, Received, Sent, Sink, Source, Target, Until, Verdict, Verdicts,
    memory,
};
use skep::test_run::{Engine, Input, Runner};
use skep::{Object, Session};
use skep_kernel::{Program, ProgramSpec, TestRun};
use skep_testkit::network::{self, command};
use skep_testkit::skip::without_bpf;

const OBJECT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/packets/packets.bpf.o");
const ENGINES: [Engine; 2] = [Engine::Jit, Engine::Interp];

/// Packets of every first byte behind the Ethernet header, and of many lengths.
fn packets() -> Vec<Vec<u8>> {
    let lengths = [15, 16, 33, 60, 64, 300, 1514, 3500, 3520, 3521, 4000, 9000];
    let mut state = 1_u32;
    let mut byte = move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    let packet = |n: usize| {
        let mut bytes: Vec<u8> = (0..lengths[n % lengths.len()]).map(|_| byte()).collect();
        bytes[14] = (n / 3) as u8;
        bytes
    };
    (0..768).map(packet).collect()
}

fn load(session: &Session) -> Object {
    session.load(OBJECT).unwrap_or_else(|e| panic!("{e}"))
}

/// What becomes of each packet in a batch run.
fn in_batches(program: &mut PacketRunner, packets: &[Vec<u8>]) -> Vec<(Verdict, Vec<u8>)> {
    let (mut batch, mut verdicts, mut out) = (Batch::new(), Verdicts::default(), Vec::new());
    let mut next = packets.iter().peekable();
    while next.peek().is_some() {
        batch.clear();
        while let Some(packet) = next.peek()
            && batch.push(Meta { port: 1, ..Meta::default() }, packet)
        {
            next.next();
        }
        verdicts.reset(batch.len());
        program.run(&mut batch, &mut verdicts).expect("nothing else runs");
        let ran = verdicts.all().iter().zip(batch.frames());
        out.extend(ran.map(|(verdict, frame)| (*verdict, frame.bytes.to_vec())));
    }
    out
}

#[test]
fn a_batch_of_packets_becomes_what_test_runs_make_of_each() {
    let packets = packets();
    for engine in ENGINES {
        for name in ["split", "swap", "resize"] {
            let session = Session::scratch().expect("there is room");
            let object = load(&session);
            let program = object.program(name).expect("the object has it");
            let mut runner = program.packets(engine).expect("it is an XDP program");
            let single = program.runner(engine).expect("it runs");
            let ran = in_batches(&mut runner, &packets);
            assert_eq!(ran.len(), packets.len());
            for (packet, (verdict, bytes)) in packets.iter().zip(&ran) {
                let done = single.test_run(&Input::data(packet)).expect("it is long enough");
                let expected = Verdict::from_raw(done.retval, Target::default());
                assert_eq!(*verdict, expected, "{name}: {:02x?}", &packet[..15]);
                assert!(done.data_out.as_ref() == Some(bytes), "{name}: {:02x?}", &packet[..15]);
            }
            let stats = runner.stats();
            assert_eq!(stats.runs, packets.len() as u64);
            assert_eq!(stats.verdicts.iter().sum::<u64>(), stats.runs);
        }
    }
}

#[test]
fn a_batch_of_packets_becomes_what_the_kernel_makes_of_each() {
    if without_bpf() {
        return;
    }
    let bytes = std::fs::read(OBJECT).expect("it is committed");
    let object = skep::object::Object::parse(&bytes).expect("it is good");
    let packets = packets();
    for name in ["swap", "resize"] {
        let linked = object.link(object.program(name).expect("it is there")).expect("it links");
        let insns: Vec<u8> = linked.insns.iter().flat_map(|i| i.to_bytes()).collect();
        let frags = linked.section.starts_with("xdp.frags");
        let flags = if frags { ProgramSpec::XDP_HAS_FRAGS } else { 0 };
        let spec = ProgramSpec { flags, log: true, ..ProgramSpec::new(linked.prog_type, &insns) };
        let kernel = Program::load(&spec).unwrap_or_else(|e| panic!("{name}: {e}"));
        let session = Session::scratch().expect("there is room");
        let object = load(&session);
        let mut runner =
            object.program(name).and_then(|p| p.packets(Engine::Jit)).expect("it runs");
        for (packet, (verdict, bytes)) in packets.iter().zip(in_batches(&mut runner, &packets)) {
            let run = TestRun { data_in: packet, data_out: 16_384, ..TestRun::default() };
            let done = kernel.test_run(&run).expect("it is long enough");
            let expected = Verdict::from_raw(done.retval, Target::default());
            assert_eq!(verdict, expected, "{name}: {:02x?}", &packet[..15]);
            assert!(done.data_out == bytes, "{name}: {:02x?}", &packet[..15]);
        }
    }
}

/// Where the packets with these bytes behind the Ethernet header are sent, from port `port` and its
/// queue 2; and the copies of the last one.
fn sent(mut runner: PacketRunner, port: u32, firsts: &[u8]) -> (Vec<Verdict>, Vec<Target>) {
    let (mut batch, mut verdicts) = (Batch::new(), Verdicts::default());
    for first in firsts {
        let meta = Meta { port, queue: 2, ..Meta::default() };
        assert!(batch.push(meta, &[*first; 60]));
    }
    verdicts.reset(batch.len());
    runner.run(&mut batch, &mut verdicts).expect("nothing else runs");
    let last = batch.len() as u16 - 1;
    let copies = verdicts.copies().iter().filter(|(frame, _)| *frame == last);
    (verdicts.all().to_vec(), copies.map(|(_, target)| *target).collect())
}

#[test]
fn a_redirect_leads_to_what_the_map_has_under_the_key() {
    use Target::{Cpu, Port, Socket};
    use Verdict::{Drop, Pass, Redirect, Tx};
    let object = std::fs::read(OBJECT).expect("it is committed");
    let object = skep::object::Object::parse(&object).expect("it is good");
    let scratch = Scratch::create().expect("there is room");
    let object = Loader::new(scratch.dir()).load(&object).unwrap_or_else(|e| panic!("{e}"));
    let runner = |name| {
        let runner = Runner::new(scratch.dir(), &object, name, Engine::Jit).expect("it runs");
        PacketRunner::new(runner).expect("it is an XDP program")
    };
    let put = |map: &str, key: u32, value: &[u32]| {
        let value: Vec<u8> = value.iter().flat_map(|n| n.to_ne_bytes()).collect();
        let map = object.map(map).expect("it is there");
        map.update(&key.to_ne_bytes(), &value, 0).unwrap_or_else(|e| panic!("{e}"));
    };
    let verdicts = |name, firsts: &[u8]| sent(runner(name), 7, firsts).0;

    let to = |targets: &[Target]| targets.iter().map(|t| Redirect(*t)).collect::<Vec<_>>();
    assert_eq!(verdicts("direct", &[3, 200]), to(&[Port(3), Port(200)]));
    assert_eq!(verdicts("twice", &[3]), to(&[Port(7)]));

    assert_eq!(verdicts("by_devmap", &[5, 99]), [Drop, Drop]);
    put("devices", 5, &[40]);
    assert_eq!(verdicts("by_devmap", &[5, 4, 99]), [Redirect(Port(40)), Drop, Drop]);
    put("devices_by_name", 5000, &[41, 0]);
    assert_eq!(verdicts("by_devmap_hash", &[5, 4]), [Redirect(Port(41)), Pass]);
    put("cpus", 0, &[192, 0]);
    assert_eq!(verdicts("by_cpumap", &[0, 3]), [Redirect(Cpu(0)), Tx]);
    assert_eq!(verdicts("by_xskmap", &[0]), [Pass]);
    put("sockets", 2, &[77]);
    assert_eq!(verdicts("by_xskmap", &[0]), to(&[Socket(77)]));

    put("devices", 1, &[7]);
    put("devices", 15, &[42]);
    let all = |first| {
        let (verdicts, mut targets) = sent(runner("broadcast"), 7, &[first, first]);
        let [_, Redirect(one)] = verdicts[..] else { panic!("{verdicts:?}") };
        targets.push(one);
        targets.sort_unstable();
        targets
    };
    assert_eq!(all(2), [Port(7), Port(40), Port(42)]);
    assert_eq!(all(1), [Port(40), Port(42)]);
}

#[test]
fn programs_of_entries_run_behind_a_redirect() {
    use Verdict::{Aborted, Drop, Redirect};
    let object = std::fs::read(OBJECT).expect("it is committed");
    let object = skep::object::Object::parse(&object).expect("it is good");
    for engine in ENGINES {
        let scratch = Scratch::create().expect("there is room");
        let object = Loader::new(scratch.dir()).load(&object).unwrap_or_else(|e| panic!("{e}"));
        let id = |name| object.program(name).expect("it is there").id();
        let put = |map: &str, key: u32, value: [u32; 2]| {
            let value: Vec<u8> = value.iter().flat_map(|n| n.to_ne_bytes()).collect();
            let map = object.map(map).expect("it is there");
            map.update(&key.to_ne_bytes(), &value, 0).unwrap_or_else(|e| panic!("{e}"));
        };
        put("devices_by_name", 1000, [41, id("egress")]);
        put("devices_by_name", 2000, [42, id("egress")]);
        put("devices_by_name", 3000, [43, 0]);
        put("devices_by_name", 4000, [44, 9999]);
        put("devices_by_name", 5000, [45, id("on_cpu")]);
        put("cpus", 0, [192, id("on_cpu")]);
        let run = |name, frames: &[(u32, &[u8; 60])]| {
            let runner = Runner::new(scratch.dir(), &object, name, engine).expect("it runs");
            let mut runner = PacketRunner::new(runner).expect("it is an XDP program");
            let (mut batch, mut verdicts) = (Batch::new(), Verdicts::default());
            for (port, frame) in frames {
                assert!(batch.push(Meta { port: *port, ..Meta::default() }, *frame));
            }
            verdicts.reset(batch.len());
            runner.run(&mut batch, &mut verdicts).expect("nothing else runs");
            assert_eq!(runner.stats().verdicts[4], frames.len() as u64);
            let firsts: Vec<u8> = batch.frames().map(|f| f.bytes[0]).collect();
            (verdicts.all().to_vec(), firsts)
        };
        let frames = [[1; 60], [2; 60], [3; 60], [4; 60], [5; 60], [1; 60]];
        let frames = frames.each_ref().map(|frame| (7, frame));
        let (verdicts, firsts) = run("by_devmap_hash", &frames);
        let to = |port| Redirect(Target::Port(port));
        assert_eq!(verdicts, [to(41), Drop, to(43), Aborted, Aborted, to(41)]);
        assert_eq!(firsts, [0xee, 0xee, 3, 4, 5, 0xee]);

        let mut second = [0; 60];
        second[1] = 9;
        let (verdicts, _) = run("by_cpumap", &[(7, &[0; 60]), (7, &second), (8, &[0; 60])]);
        assert_eq!(verdicts, [Redirect(Target::Cpu(0)), to(9), Aborted]);
    }
}

/// Keeps the bytes of frames.
#[derive(Clone, Default)]
struct Keep(Arc<Mutex<Vec<Vec<u8>>>>);

impl Sink for Keep {
    fn send_counted(
        &mut self,
        batch: &Batch,
        frames: &[u16],
        sent: &mut Sent,
    ) -> Result<(), PortError> {
        for frame in frames.iter().filter_map(|n| batch.frame(usize::from(*n))) {
            self.0.lock().expect("nobody panics").push(frame.bytes.to_vec());
            sent.took(frame.bytes.len());
        }
        Ok(())
    }
}

/// Programs of entries change what goes to their devices, and nothing that goes to others.
#[test]
fn programs_of_entries_get_a_copy_each_of_a_broadcast() {
    const FRAMES: u64 = 150;
    let object = std::fs::read(OBJECT).expect("it is committed");
    let object = skep::object::Object::parse(&object).expect("it is good");
    let programs = |ids: [Option<&str>; 5], engine| {
        let scratch = Scratch::create().expect("there is room");
        let object = Loader::new(scratch.dir()).load(&object).unwrap_or_else(|e| panic!("{e}"));
        let map = object.map("devices_by_name").expect("it is there");
        let mut outputs = Outputs::new();
        // Device 7 is where the frames come from; 51 gets nothing from a program.
        let kept = [7_u32, 40, 41, 42, 51].into_iter().zip(ids).map(|(device, name)| {
            let id = name.map_or(0, |name| object.program(name).expect("it is there").id());
            let value = [device.to_ne_bytes(), id.to_ne_bytes()].concat();
            map.update(&(device * 9).to_ne_bytes(), &value, 0).unwrap_or_else(|e| panic!("{e}"));
            let keep = Keep::default();
            let sink = outputs.add(Box::new(keep.clone()));
            outputs.send_target(Target::Port(device), sink);
            keep
        });
        let kept: Vec<Keep> = kept.collect();
        let [near, far] = memory::pair([1, 7], 1000);
        let (mut near, mut far) = (near.sink, far.source);
        let (mut batch, all) = (Batch::new(), [0]);
        for n in 0..FRAMES {
            batch.clear();
            let len = if n == 70 { 9000 } else { 60 };
            assert!(batch.push(Meta::default(), &vec![n as u8; len]));
            assert_eq!(near.send(&batch, &all).map(|s| s.packets).ok(), Some(1));
        }
        drop(near);
        let runner = Runner::new(scratch.dir(), &object, "broadcast_by_name", engine);
        let mut runner = PacketRunner::new(runner.expect("it runs")).expect("it is an XDP program");
        let stats = runner.pump(&mut far, &mut outputs, &Until::default()).expect("nothing fails");
        let kept: Vec<_> =
            kept.iter().map(|k| std::mem::take(&mut *k.0.lock().expect("nobody panics"))).collect();
        let all: u64 = kept.iter().map(|k| k.len() as u64).sum();
        assert_eq!((stats.packets, stats.sent.packets, stats.no_target), (FRAMES, all, 0));
        (stats, kept)
    };
    // What a device gets: all frames, with another first byte if its program writes one.
    let expected = |mark: Option<u8>| {
        let frame = |n: u64| {
            let mut frame = vec![n as u8; if n == 70 { 9000 } else { 60 }];
            frame[0] = mark.unwrap_or(frame[0]);
            frame
        };
        (0..FRAMES).map(frame).collect::<Vec<_>>()
    };
    let mark = Some("mark_egress");
    for engine in ENGINES {
        let (stats, kept) = programs([mark, None, mark, None, mark], engine);
        assert!(kept[0].is_empty() && kept[4].is_empty());
        assert!(kept[1] == expected(None) && kept[3] == expected(None));
        assert!(kept[2] == expected(Some(41)));
        assert_eq!((stats.verdicts[4], stats.copies_dropped), (FRAMES, FRAMES));

        let (stats, kept) = programs([mark; 5], engine);
        assert!(kept[0].is_empty() && kept[4].is_empty());
        for (at, device) in [(1, 40), (2, 41), (3, 42)] {
            assert!(kept[at] == expected(Some(device)), "{device}");
        }
        // One of them, whichever comes first in the map, has the frame itself.
        assert_eq!(stats.verdicts[1] + stats.copies_dropped, FRAMES);
    }
}

/// Counts the frames of a port, each with its number.
fn count(port: &mut MemorySource, mut expected: impl FnMut(u64)) -> u64 {
    let (mut batch, mut n) = (Batch::new(), 0);
    while port.receive(&mut batch, Duration::ZERO).ok() == Some(Received::Frames) {
        for frame in batch.frames() {
            let number = frame.bytes[42..].first_chunk().expect("it has a number");
            expected(u64::from_be_bytes(*number));
            n += 1;
        }
        batch.clear();
    }
    n
}

#[test]
fn packets_are_pumped_to_where_the_program_sends_them() {
    let session = Session::scratch().expect("there is room");
    let object = load(&session);
    let mut runner = object.program("swap").and_then(|p| p.packets(Engine::Jit)).expect("it runs");
    let [near, mut far] = memory::pair([1, 2], 1000);
    let mut outputs = Outputs::new();
    let back = outputs.add(Box::new(near.sink));
    outputs.send_verdict(Verdict::Tx.kind(), back);
    let mut source = Generator::new(&[64, 100]).packets(700);
    let stats = runner.pump(&mut source, &mut outputs, &Until::default()).expect("nothing fails");
    assert_eq!((stats.packets, stats.verdicts, stats.sent.packets), (700, [0, 0, 0, 700, 0], 700));
    let mut next = 0..;
    assert_eq!(count(&mut far.source, |number| assert_eq!(Some(number), next.next())), 700);
}

/// Takes nothing.
struct Broken;

impl Sink for Broken {
    fn send_counted(&mut self, _: &Batch, _: &[u16], _: &mut Sent) -> Result<(), PortError> {
        Err(PortError::Gone { name: "a test".to_owned() })
    }
}

#[test]
fn what_cannot_be_run_on_packets_is_said() {
    let session = Session::scratch().expect("there is room");
    let other = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/test_run/skb.bpf.o");
    let other = session.load(other).unwrap_or_else(|e| panic!("{e}"));
    let program = other.programs().next().expect("it has one");
    let error = program.packets(Engine::Jit).expect_err("it is for socket buffers").to_string();
    assert!(error.ends_with("packets of a source go to `xdp` programs"), "{error}");

    let object = load(&session);
    let mut runner = object.program("swap").and_then(|p| p.packets(Engine::Jit)).expect("it runs");
    let mut outputs = Outputs::new();
    let sink = outputs.add(Box::new(Broken));
    outputs.send_verdict(Verdict::Tx.kind(), sink);
    let failed = runner.pump(&mut Generator::new(&[64]), &mut outputs, &Until::default());
    let PacketsError::Port(error) = failed.expect_err("the sink fails") else {
        panic!("it is the port's error")
    };
    assert_eq!(
        (error.to_string().as_str(), error.stats.packets),
        ("the other end of `a test` is gone", 64)
    );
}

/// A network namespace with two interfaces that forward, and routes of all kinds; `false` when it
/// cannot be made.
fn with_routes() -> bool {
    if !network::enter(false) {
        return false;
    }
    for line in [
        "link add one type veth peer name two",
        "link set one address 02:00:00:00:00:01",
        "link set two address 02:00:00:00:00:02",
        "link set one mtu 2000",
        "link set one up",
        "link set two up",
        "addr add 10.1.0.1/24 dev one",
        "addr add 10.2.0.1/24 dev two",
        "route add 192.0.2.0/24 via 10.2.0.9 metric 77",
        "route add blackhole 198.51.100.0/24",
        "route add unreachable 198.51.101.0/24",
        "route add prohibit 198.51.102.0/24",
        "neigh add 10.2.0.9 lladdr 02:00:00:00:00:09 dev two nud permanent",
        "neigh add 10.1.0.7 lladdr 02:00:00:00:00:07 dev one nud permanent",
        "addr add fd00:1::1/64 dev one nodad",
        "addr add fd00:2::1/64 dev two nodad",
        "route add 203.0.113.0/24 via inet6 fd00:2::9 dev two",
        "-6 route add 2001:db8::/32 via fd00:2::9 metric 55",
        "-6 route add blackhole 2001:db8:1::/48",
        "-6 route add unreachable 2001:db8:2::/48",
        "-6 route add prohibit 2001:db8:3::/48",
        "neigh add fd00:2::9 lladdr 02:00:00:00:00:19 dev two nud permanent",
    ] {
        command(&format!("ip {line}"));
    }
    for file in ["ipv4/conf/one/forwarding", "ipv6/conf/one/forwarding"] {
        std::fs::write(format!("/proc/sys/net/{file}"), "1").expect("root may");
    }
    true
}

#[test]
fn routes_and_neighbors_are_those_of_the_kernel() {
    if without_bpf() || !with_routes() {
        return;
    }
    let bytes = std::fs::read(OBJECT).expect("it is committed");
    let object = skep::object::Object::parse(&bytes).expect("it is good");
    let linked = object.link(object.program("fib").expect("it is there")).expect("it links");
    let insns: Vec<u8> = linked.insns.iter().flat_map(|i| i.to_bytes()).collect();
    let spec = ProgramSpec { log: true, ..ProgramSpec::new(linked.prog_type, &insns) };
    let kernel = Program::load(&spec).unwrap_or_else(|e| panic!("{e}"));
    let session = Session::scratch().expect("there is room");
    let object = load(&session);
    let runner = object.program("fib").and_then(|p| p.runner(Engine::Jit)).expect("it runs");
    let number = |name: &str| {
        let text = std::fs::read_to_string("/proc/thread-self/net/igmp").unwrap_or_default();
        let line = text.lines().find(|l| l.split_whitespace().nth(1) == Some(name));
        line.and_then(|l| l.split_whitespace().next()?.parse::<u32>().ok())
    };
    let interfaces = [number("one"), number("two"), Some(99)].map(|n| n.expect("it is there"));
    let mut seen = std::collections::BTreeSet::new();
    let mut ask =
        |family: u8, interface: u32, source: &[u8], target: &[u8], total: u16, flags: u32| {
            let mut question = vec![0; 80];
            question[0] = family;
            question[6..8].copy_from_slice(&total.to_ne_bytes());
            question[8..12].copy_from_slice(&interface.to_ne_bytes());
            question[16..16 + source.len()].copy_from_slice(source);
            question[32..32 + target.len()].copy_from_slice(target);
            question[64..68].copy_from_slice(&flags.to_ne_bytes());
            let test = TestRun { data_in: &question, data_out: 80, ..TestRun::default() };
            let theirs = kernel.test_run(&test).expect("it is long enough");
            let ours = runner.test_run(&Input::data(&question)).expect("it is long enough");
            let what =
                format!("{source:?} to {target:?}, {total} bytes, by {interface}, flags {flags}");
            assert_eq!(ours.retval as i32, theirs.retval as i32, "{what}");
            assert_eq!(ours.data_out.expect("it is a packet"), theirs.data_out, "{what}");
            seen.insert(theirs.retval as i32);
        };
    for interface in interfaces {
        for total in [0, 100, 1800, 9000] {
            // Nothing, without neighbor, with the source address, by the main table, as if sent.
            const DIRECT: u32 = 1;
            const OUTPUT: u32 = 2;
            for flags in [0, 4, 16, 1, 2] {
                for target in [
                    [10, 2, 0, 9],
                    [10, 2, 0, 8],
                    [10, 1, 0, 7],
                    [10, 1, 0, 1],
                    [10, 1, 0, 255],
                    [192, 0, 2, 1],
                    [198, 51, 100, 1],
                    [198, 51, 101, 1],
                    [198, 51, 102, 1],
                    [203, 0, 113, 5],
                    [8, 8, 8, 8],
                    [127, 0, 0, 1],
                ] {
                    // In a table that is not asked then; told by no error then.
                    let is_local = matches!(target, [10, 1, 0, 1 | 255] | [127, ..]);
                    let is_skipped = match flags {
                        DIRECT => is_local,
                        OUTPUT => matches!(target, [198, 51, ..]),
                        _ => false,
                    };
                    if !is_skipped {
                        ask(2, interface, &[10, 1, 0, 7], &target, total, flags);
                    }
                }
                for target in [
                    "fd00:2::9",
                    "fd00:2::8",
                    "fd00:1::1",
                    "2001:db8::5",
                    "2001:db8:1::1",
                    "2001:db8:2::1",
                    "2001:db8:3::1",
                    "2002::1",
                ] {
                    let target: std::net::Ipv6Addr = target.parse().expect("it is an address");
                    let source: std::net::Ipv6Addr = "fd00:1::7".parse().expect("it is an address");
                    if flags != DIRECT || target.octets()[..4] != [0xfd, 0, 0, 1] {
                        ask(10, interface, &source.octets(), &target.octets(), total, flags);
                    }
                }
            }
        }
    }
    ask(3, interfaces[0], &[], &[], 0, 0);
    ask(2, interfaces[0], &[], &[10, 2, 0, 9], 0, 0x40);
    // Success, all refusals but the one for tunnels, and errors.
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), [-97, -22, -19, 0, 1, 2, 3, 4, 5, 7, 8]);
}
