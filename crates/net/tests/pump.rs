//! From source to sinks: every frame is where its verdict says, or counted as lost, and nothing is
//! allocated for one.

mod captures;

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use captures::{Capture, Packet, Random, read_all};
use skep_net::port::capture::{Format, Reader, Writer, split};
use skep_net::port::generator::Generator;
use skep_net::port::{
    Batch, Outputs, PortError, Received, Sent, Sink, Source, Target, Until, Verdict, Verdicts,
    memory, pump,
};
use skep_testkit::TempDir;

const EVER: Until<'_> = Until { packets: None, time: None, stop: None };

/// A verdict that depends on the bytes.
fn verdict(bytes: &[u8]) -> Verdict {
    let sum: u32 = bytes.iter().map(|b| u32::from(*b)).sum();
    Verdict::from_raw(sum % 5, Target::Port(sum % 3))
}

fn by_bytes(batch: &mut Batch, verdicts: &mut Verdicts) -> ControlFlow<()> {
    for (n, frame) in batch.frames().enumerate() {
        verdicts.set(n, verdict(frame.bytes));
    }
    ControlFlow::Continue(())
}

#[test]
fn a_capture_is_split_by_verdicts_and_nothing_is_missing() {
    let dir = TempDir::new();
    let capture = Capture::pcapng(&mut Random(11), 400);
    std::fs::write(dir.join("in"), &capture.file).expect("there is room");
    let mut source = Reader::open(&dir.join("in")).expect("it is a capture file");
    let list = format!(
        "pass={0}/pass.pcapng,drop+tx={0}/drop.pcapng,*={0}/rest.pcapng",
        dir.path().display()
    );
    let (mut outputs, parts) = (Outputs::new(), split::parse(&list).expect("it is right"));
    for part in &parts {
        let writer = Writer::create(&part.path, Format::of(&part.path)).expect("there is room");
        let sink = outputs.add(Box::new(writer));
        let kinds = (0..Verdict::KINDS).filter(|kind| part.verdicts[*kind]);
        kinds.for_each(|kind| outputs.send_verdict(kind, sink));
    }
    let stats = pump(&mut source, &mut outputs, &EVER, by_bytes).expect("nothing fails");
    assert_eq!(stats.packets, capture.packets.len() as u64);
    assert_eq!(stats.bytes, capture.packets.iter().map(|p| p.bytes.len() as u64).sum::<u64>());
    assert_eq!((stats.sent.packets, stats.sent.bytes), (stats.packets, stats.bytes));
    for part in &parts {
        let (found, _) = read_all(&mut Reader::open(&part.path).expect("it is a capture file"));
        let is_here = |p: &&Packet| part.verdicts[verdict(&p.bytes).kind()];
        let expected: Vec<&Packet> = capture.packets.iter().filter(is_here).collect();
        assert!(!expected.is_empty());
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            assert_eq!(found.bytes, expected.bytes);
            assert_eq!(found.meta.ns, expected.meta.ns);
            assert_eq!(found.meta.wire_len, expected.meta.wire_len);
        }
    }
    for kind in 0..Verdict::KINDS {
        let of = capture.packets.iter().filter(|p| verdict(&p.bytes).kind() == kind).count();
        assert_eq!(stats.verdicts[kind], of as u64);
    }
}

#[test]
fn memory_ports_form_a_switch() {
    const PORTS: u32 = 3;
    const FRAMES: u64 = 20_000;
    let (mut inside, mut outside) = (Vec::new(), Vec::new());
    for port in 1..=PORTS {
        let [a, b] = memory::pair([port, 100 + port], 64);
        inside.push(a);
        outside.push(b);
    }
    let sinks: Vec<_> = inside.iter().map(|port| port.sink.clone()).collect();
    let mut sources = Vec::new();
    for port in inside {
        sources.push(port.source);
    }
    std::thread::scope(|scope| {
        // The switch: a thread for each port; the frame's number says where it goes, and every
        // tenth goes to both other ports.
        let mut switches = Vec::new();
        for mut source in sources {
            let mut outputs = Outputs::new();
            for (port, sink) in (1..).zip(&sinks) {
                let id = outputs.add(Box::new(sink.clone()));
                outputs.send_target(Target::Port(port), id);
            }
            switches.push(scope.spawn(move || {
                let run = |batch: &mut Batch, verdicts: &mut Verdicts| {
                    for (n, frame) in batch.frames().enumerate() {
                        let [.., low] = frame.bytes[42..50] else { panic!("it is too short") };
                        let from = frame.meta.port;
                        let others = [from % PORTS + 1, (from + 1) % PORTS + 1].map(Target::Port);
                        verdicts.set(n, Verdict::Redirect(others[usize::from(low) % 2]));
                        if low % 10 == 0 {
                            verdicts.copy(n, others[1 - usize::from(low) % 2]);
                        }
                    }
                    ControlFlow::Continue(())
                };
                pump(&mut source, &mut outputs, &EVER, run).expect("nothing fails")
            }));
        }
        drop(sinks);
        // Outside: each port sends, and takes what comes until the switch is gone.
        let mut hosts = Vec::new();
        for (port, mut host) in (1_u32..).zip(outside) {
            let mut sender = host.sink;
            scope.spawn(move || {
                let mut frames = Generator::new(&[64, 200, 1514]).packets(FRAMES).port(port);
                let mut batch = Batch::with_limit(16);
                while frames.receive(&mut batch, Duration::ZERO).ok() == Some(Received::Frames) {
                    let mut left: Vec<u16> = (0..batch.len() as u16).collect();
                    // A full ring takes the first frames of those it is given.
                    while !left.is_empty() {
                        let sent = sender.send(&batch, &left).expect("the switch is there");
                        left.drain(..sent.packets as usize);
                        std::thread::yield_now();
                    }
                    batch.clear();
                }
            });
            hosts.push(scope.spawn(move || {
                let (mut batch, mut last, mut count) = (Batch::new(), None, 0_u64);
                loop {
                    match host.source.receive(&mut batch, Duration::from_secs(5)) {
                        Ok(Received::End) => return (port, count),
                        Ok(_) => {}
                        Err(e) => panic!("{e}"),
                    }
                    for frame in batch.frames() {
                        let number = *frame.bytes[42..].first_chunk().expect("it is long enough");
                        let number = u64::from_be_bytes(number);
                        assert_eq!(frame.bytes.len(), [64, 200, 1514][number as usize % 3]);
                        assert_eq!(frame.meta.port, 100 + port);
                        last = last.max(Some(number));
                        count += 1;
                    }
                    batch.clear();
                }
            }));
        }
        let (mut forwarded, mut lost, mut came) = (0, 0, 0);
        for switch in switches {
            let stats = switch.join().expect("it did not panic");
            assert_eq!((stats.packets, stats.verdicts[4]), (FRAMES, FRAMES));
            // Each frame once, and the copies.
            let copies = (0..FRAMES).filter(|n| (*n as u8).is_multiple_of(10)).count() as u64;
            assert_eq!(stats.sent.packets + stats.sent.ring_full, FRAMES + copies);
            assert_eq!((stats.no_target, stats.sent.too_large), (0, 0));
            forwarded += stats.sent.packets;
            lost += stats.sent.ring_full;
        }
        for host in hosts {
            came += host.join().expect("it did not panic").1;
        }
        assert_eq!(came, forwarded, "{lost} were counted as lost");
    });
}

#[test]
fn a_pump_ends_when_it_is_told() {
    let run = |until: &Until<'_>| {
        let mut source = Generator::new(&[64]);
        pump(&mut source, &mut Outputs::new(), until, by_bytes).expect("nothing fails").packets
    };
    assert_eq!(run(&Until { packets: Some(1000), ..EVER }), 1000);
    assert_eq!(run(&Until { packets: Some(0), ..EVER }), 0);
    assert_eq!(run(&Until { time: Some(Duration::ZERO), ..EVER }), 0);
    assert_eq!(run(&Until { stop: Some(&AtomicBool::new(true)), ..EVER }), 0);
    // A busy machine may let all of a short time pass before the first frame.
    let mut times = (0..16).map(|n| Duration::from_millis(1 << n));
    assert!(times.any(|time| run(&Until { time: Some(time), ..EVER }) > 0));
    assert_eq!(run(&Until { time: Some(Duration::MAX), packets: Some(7), ..EVER }), 7);

    // A flag that is set while no frame comes, and one that the programs set.
    let [mut quiet, _other] = memory::pair([1, 2], 4);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| stop.store(true, Relaxed));
        let until = Until { stop: Some(&stop), ..EVER };
        let stats = pump(&mut quiet.source, &mut Outputs::new(), &until, by_bytes);
        assert_eq!(stats.expect("nothing fails").packets, 0);
    });
    let once = |_: &mut Batch, _: &mut Verdicts| ControlFlow::Break(());
    let stats = pump(&mut Generator::new(&[64]), &mut Outputs::new(), &EVER, once);
    let stats = stats.expect("nothing fails");
    assert_eq!((stats.packets, stats.verdicts), (64, [64, 0, 0, 0, 0]));
}

/// Takes so many frames, then fails; notices when it is flushed.
struct Failing<'a> {
    left: u64,
    flushed: &'a AtomicBool,
}

impl Sink for Failing<'_> {
    fn send_counted(
        &mut self,
        _: &Batch,
        frames: &[u16],
        sent: &mut Sent,
    ) -> Result<(), PortError> {
        if self.left < frames.len() as u64 {
            return Err(PortError::Gone { name: "a test".to_owned() });
        }
        self.left -= frames.len() as u64;
        frames.iter().for_each(|_| sent.took(64));
        Ok(())
    }

    fn flush(&mut self) -> Result<(), PortError> {
        self.flushed.store(true, Relaxed);
        Ok(())
    }
}

#[test]
fn when_a_sink_fails_the_others_are_flushed_and_the_counts_are_kept() {
    static FLUSHED: [AtomicBool; 2] = [const { AtomicBool::new(false) }; 2];
    let mut outputs = Outputs::new();
    let good = outputs.add(Box::new(Failing { left: u64::MAX, flushed: &FLUSHED[0] }));
    let bad = outputs.add(Box::new(Failing { left: 100, flushed: &FLUSHED[1] }));
    outputs.send_verdict(2, good);
    outputs.send_target(Target::Cpu(7), bad);
    let mut n = 0;
    let run = |batch: &mut Batch, verdicts: &mut Verdicts| {
        for frame in 0..batch.len() {
            let all = [
                Verdict::Pass,
                Verdict::Redirect(Target::Cpu(7)),
                Verdict::Redirect(Target::Port(7)),
            ];
            verdicts.set(frame, all[n % 3]);
            n += 1;
        }
        ControlFlow::Continue(())
    };
    let error = pump(&mut Generator::new(&[64]), &mut outputs, &EVER, run).expect_err("it fails");
    assert_eq!(error.to_string(), "the other end of `a test` is gone");
    let stats = *error.stats;
    assert_eq!((stats.packets, outputs.sent(bad).packets), (5 * 64, 85));
    assert_eq!(stats.verdicts, [0, 0, 107, 0, 213]);
    assert_eq!((outputs.sent(good).packets, stats.no_target), (107, 106));
    assert!(FLUSHED.iter().all(|flushed| flushed.load(Relaxed)));
    // Every frame is somewhere.
    assert_eq!((stats.sent.packets, stats.sent.unwritten), (107 + 85, 22));
    assert_eq!(stats.packets, stats.sent.packets + stats.sent.unwritten + stats.no_target);
}

/// What comes before a sink that fails, and behind it, gets its frames all the same.
#[test]
fn sinks_beside_one_that_fails_get_their_frames_of_the_batch() {
    static FLUSHED: [AtomicBool; 3] = [const { AtomicBool::new(false) }; 3];
    let mut outputs = Outputs::new();
    let mut add = |n: usize, left| outputs.add(Box::new(Failing { left, flushed: &FLUSHED[n] }));
    let sinks = [add(0, u64::MAX), add(1, 0), add(2, u64::MAX)];
    (0..3).for_each(|n| outputs.send_verdict(n, sinks[n]));
    let run = |batch: &mut Batch, verdicts: &mut Verdicts| {
        let verdict = |n: usize| Verdict::from_raw(n as u32 % 3, Target::Port(0));
        (0..batch.len()).for_each(|n| verdicts.set(n, verdict(n)));
        ControlFlow::Continue(())
    };
    let error = pump(&mut Generator::new(&[64]), &mut outputs, &EVER, run).expect_err("it fails");
    assert_eq!(error.stats.packets, 64);
    let sent = sinks.map(|sink| (outputs.sent(sink).packets, outputs.sent(sink).unwritten));
    assert_eq!(sent, [(22, 0), (0, 21), (21, 0)]);
}

/// Gives ten frames, and with the last three an error.
struct Ends(u8);

impl Source for Ends {
    fn receive(&mut self, batch: &mut Batch, _: Duration) -> Result<Received, PortError> {
        let count = if self.0 == 0 { 7 } else { 3 };
        (0..count).for_each(|_| assert!(batch.push(Default::default(), &[self.0; 60])));
        self.0 += 1;
        match self.0 {
            1 => Ok(Received::Frames),
            2 => Err(PortError::Down { name: "a test".to_owned() }),
            _ => panic!("it has failed"),
        }
    }
}

#[test]
fn frames_that_came_with_an_error_are_run_and_sent() {
    let [near, _far] = memory::pair([1, 2], 100);
    let mut outputs = Outputs::new();
    let sink = outputs.add(Box::new(near.sink));
    outputs.send_verdict(0, sink);
    let run = |_: &mut Batch, _: &mut Verdicts| ControlFlow::Continue(());
    let error = pump(&mut Ends(0), &mut outputs, &EVER, run).expect_err("the source fails");
    assert_eq!(error.to_string(), "the interface `a test` is down, or gone");
    assert_eq!((error.stats.packets, error.stats.bytes, error.stats.sent.packets), (10, 600, 10));
}
