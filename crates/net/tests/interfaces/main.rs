//! Packet sockets and TAP devices in network namespaces of the test's own: what one end sends, the
//! other receives, byte for byte, and what is missing is counted.

mod full;

use std::ops::ControlFlow;
use std::sync::mpsc::{TryRecvError, channel};
use std::time::{Duration, Instant};

use skep_net::port::batch::Meta;
use skep_net::port::generator::Generator;
use skep_net::port::interface::xdp::{self, Copying, XdpOptions, XdpSink, XdpSource};
use skep_net::port::interface::{PacketSink, PacketSource, Tap, index_of};
use skep_net::port::{
    Batch, Outputs, PortError, Received, Sink, Source, Target, Until, Verdict, memory, pump,
};
use skep_testkit::network::{self, command};
use skep_testkit::skip;
use skep_testkit::skip::without_bpf;

/// Longer than anything here takes; nothing waits for it but what has failed.
const LONG: Duration = Duration::from_secs(300);

/// A pair of veth devices, `one` and `two`.
fn veth(mtu: u32) {
    network::veth("one", "two");
    for device in ["one", "two"] {
        command(&format!("ip link set {device} mtu {mtu}"));
    }
}

/// Tells whether a frame is of the addresses that this test uses.
fn is_ours(frame: &[u8]) -> bool {
    frame.starts_with(&[2, 0, 0, 0, 0])
}

/// Receives until so many frames of ours have come; others are left out.
fn receive(source: &mut dyn Source, count: usize) -> Vec<(Meta, Vec<u8>)> {
    let (mut batch, mut all) = (Batch::new(), Vec::new());
    while all.len() < count {
        batch.clear();
        let received = source.receive(&mut batch, LONG).unwrap_or_else(|e| panic!("{e}"));
        assert_ne!(received, Received::Nothing, "{} of {count} came", all.len());
        let ours = batch.frames().filter(|f| is_ours(f.bytes));
        all.extend(ours.map(|f| (f.meta, f.bytes.to_vec())));
    }
    all
}

/// A batch of frames from ourselves: two addresses, a type, and so many bytes.
fn batch(lengths: &[usize]) -> (Batch, Vec<u16>) {
    let mut batch = Batch::new();
    for (n, len) in lengths.iter().enumerate() {
        let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5];
        frame.extend((14..*len).map(|i| (i * 7 + n) as u8));
        frame.truncate(*len);
        assert!(batch.push(Meta::default(), &frame));
    }
    let all = (0..batch.len() as u16).collect();
    (batch, all)
}

#[test]
fn what_one_end_of_a_veth_pair_sends_the_other_receives() {
    if !network::enter(false) {
        return;
    }
    veth(9000);
    let mut source = PacketSource::open("two").unwrap_or_else(|e| panic!("{e}"));
    let mut sink = PacketSink::open("one").unwrap_or_else(|e| panic!("{e}"));
    let (frames, all) = batch(&[60, 15, 64, 1514, 9014, 200]);
    let sent = sink.send(&frames, &all).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(
        (sent.packets, sent.bytes),
        (6, frames.frames().map(|f| f.bytes.len() as u64).sum())
    );
    let came = receive(&mut source, 6);
    for ((meta, bytes), frame) in came.iter().zip(frames.frames()) {
        assert_eq!(*bytes, frame.bytes);
        assert_eq!((meta.port, meta.wire_len as usize), (source.index(), bytes.len()));
        assert!(meta.ns > 1_600_000_000_000_000_000, "{} is a time", meta.ns);
    }
    assert_eq!(index_of("two"), Some(source.index()));

    // What does not fit is left out and counted, the rest is sent.
    let (frames, all) = batch(&[60, 9100, 61, 10, 62]);
    let sent = sink.send(&frames, &all).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!((sent.packets, sent.too_large, sent.too_short), (3, 1, 1));
    let lengths: Vec<_> = receive(&mut source, 3).iter().map(|(_, b)| b.len()).collect();
    assert_eq!(lengths, [60, 61, 62]);
    let lost = source.lost().unwrap_or_else(|e| panic!("{e}"));
    assert_eq!((lost.ring_full, lost.too_large, lost.shortened), (0, 0, 0));
}

#[test]
fn a_vlan_tag_is_where_it_was() {
    if !network::enter(false) {
        return;
    }
    veth(9000);
    let mut source = PacketSource::open("two").unwrap_or_else(|e| panic!("{e}"));
    let mut sink = PacketSink::open("one").unwrap_or_else(|e| panic!("{e}"));
    for tpid in [0x8100_u16, 0x88a8] {
        let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
        frame.extend(tpid.to_be_bytes());
        frame.extend([0x60, 0x2a, 0x88, 0xb5]);
        frame.extend(0..50);
        let mut batch = Batch::new();
        assert!(batch.push(Meta::default(), &frame));
        assert_eq!(sink.send(&batch, &[0]).map(|s| s.packets).ok(), Some(1));
        let came = receive(&mut source, 1);
        assert_eq!((&came[0].1, came[0].0.wire_len), (&frame, 68));
    }
}

#[test]
fn every_frame_is_received_or_counted_as_lost() {
    const FRAMES: u64 = 200_000;
    if !network::enter(false) {
        return;
    }
    veth(9000);
    let mut source = PacketSource::open("two").unwrap_or_else(|e| panic!("{e}"));
    let sink = PacketSink::open("one").unwrap_or_else(|e| panic!("{e}"));
    // Nobody receives meanwhile: the ring has room for less than half of these.
    let mut outputs = Outputs::new();
    let a = outputs.add(Box::new(sink));
    outputs.send_target(Target::Port(1), a);
    let mut frames = Generator::new(&[64, 1000]).packets(FRAMES);
    let stats = pump(&mut frames, &mut outputs, &Until::default(), |batch, verdicts| {
        (0..batch.len()).for_each(|n| verdicts.set(n, Verdict::Redirect(Target::Port(1))));
        ControlFlow::Continue(())
    })
    .unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(stats.sent.packets + stats.sent.ring_full, FRAMES);
    let (mut batch, mut came, mut last) = (Batch::new(), 0, None);
    let mut lost = source.lost().unwrap_or_else(|e| panic!("{e}")).ring_full;
    while came + lost < stats.sent.packets {
        batch.clear();
        let received = source.receive(&mut batch, LONG).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(received, Received::Frames, "{came} came, {lost} lost");
        for frame in batch.frames() {
            let number = frame.bytes[42..].first_chunk().map(|n| u64::from_be_bytes(*n));
            assert!(number > last, "{number:?} after {last:?}");
            assert_eq!(number.map(|n| [64, 1000][n as usize % 2]), Some(frame.bytes.len()));
            (last, came) = (number, came + 1);
        }
        lost = source.lost().unwrap_or_else(|e| panic!("{e}")).ring_full;
    }
    assert_eq!(came + lost, stats.sent.packets, "{came} came, {lost} lost");
    assert!(lost > 0, "the ring has room for all");
    assert_eq!(source.lost().map(|l| l.ring_full).ok(), Some(lost));
}

#[test]
fn an_interface_that_goes_away_is_an_error_that_names_it() {
    if !network::enter(false) {
        return;
    }
    veth(9000);
    let text = |e: PortError| e.to_string();
    let mut source = PacketSource::open("two").unwrap_or_else(|e| panic!("{e}"));
    let mut sink = PacketSink::open("one").unwrap_or_else(|e| panic!("{e}"));
    command("ip link del one");
    let (frames, all) = batch(&[60]);
    let mut got = Batch::new();
    let error = source.receive(&mut got, LONG).map_err(text);
    assert_eq!(error, Err("the interface `two` is down, or gone".to_owned()));
    let error = sink.send(&frames, &all).map(|s| s.packets).map_err(text);
    assert_eq!(error, Err("the interface `one` is down, or gone".to_owned()));
    let error = PacketSource::open("two").map(|_| ()).map_err(text);
    assert_eq!(error, Err("there is no interface `two`".to_owned()));
    let error = Tap::open("a/b").map(|_| ()).map_err(text);
    let name = "an interface's name has 1 to 15 bytes, and neither `/`, `:` nor spaces";
    assert_eq!(error, Err(format!("`tap:a/b`: {name}")));
}

/// Takes an interface down without another program, which takes longer than the kernel's timer.
fn take_down(name: &str) {
    // SAFETY: numbers only.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    // SAFETY: a structure of numbers, for which zero is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let bytes = name.bytes().map(|byte| byte as libc::c_char);
    request.ifr_name.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
    // SAFETY: the request is one of a name and flags, and lives during the call.
    let done = unsafe { libc::ioctl(fd, libc::SIOCSIFFLAGS, &raw const request) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: opened above.
    unsafe { libc::close(fd) };
}

/// Frames of a block that the kernel had not given out yet were lost, and not counted.
#[test]
fn what_came_before_an_interface_went_down_is_received() {
    if !network::enter(false) {
        return;
    }
    veth(1500);
    let mut sink = PacketSink::open("one").unwrap_or_else(|e| panic!("{e}"));
    let (frames, all) = batch(&[64; 40]);
    for round in 0..40 {
        command("ip link set two up");
        let mut source = PacketSource::open("two").unwrap_or_else(|e| panic!("{e}"));
        // It reads when the error comes, or before, or finds all of it later.
        let rounds = if round % 2 == 0 { 1 } else { 50 };
        let (came, error) = std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let (mut got, mut came) = (Batch::new(), 0);
                loop {
                    got.clear();
                    match source.receive(&mut got, LONG) {
                        Ok(_) => came += got.frames().filter(|f| is_ours(f.bytes)).count() as u64,
                        Err(e) => break (came, e.to_string()),
                    }
                }
            });
            for _ in 0..rounds {
                assert_eq!(sink.send(&frames, &all).map(|s| s.packets).ok(), Some(40));
            }
            take_down("two");
            reader.join().expect("it does not panic")
        });
        assert_eq!(error, "the interface `two` is down, or gone");
        let lost = source.lost().unwrap_or_else(|e| panic!("{e}"));
        assert_eq!((came, lost.ring_full), (rounds * 40, 0), "round {round}");
        let again = source.receive(&mut Batch::new(), LONG).map_err(|e| e.to_string());
        assert_eq!(again, Err(error));
    }
}

/// A device that nobody reads from takes as much as its queue has room for. What it does not take is
/// dropped and counted, the run goes on, and other outputs get all of theirs: by packet sockets and by
/// XDP sockets.
#[test]
fn a_full_target_of_redirects_drops_and_counts() {
    const FRAMES: u64 = 2000;
    if !network::enter(false) {
        return;
    }
    for name in ["tap8", "tap9"] {
        let mut tap = match Tap::open(name) {
            Ok(tap) => tap,
            Err(e) => return skip(&format!("/dev/net/tun ({e})")),
        };
        command(&format!("ip link set {name} addrgenmode none"));
        command(&format!("ip link set {name} txqueuelen 40"));
        let [near, mut far] = memory::pair([1, 1000], FRAMES as usize);
        let mut outputs = Outputs::new();
        let full: Box<dyn Sink> = if name == "tap8" {
            Box::new(PacketSink::open(name).unwrap_or_else(|e| panic!("{e}")))
        } else {
            if without_bpf() {
                return;
            }
            let copying = Copying::Always;
            let options = XdpOptions { copying, generic: true, ..XdpOptions::default() };
            match open_xdp(name, &options) {
                Some((_, sink)) => Box::new(sink),
                None => return,
            }
        };
        let full = outputs.add(full);
        let other = outputs.add(Box::new(near.sink));
        outputs.send_target(Target::Port(tap.index()), full);
        outputs.send_target(Target::Port(1000), other);
        let mut frames = Generator::new(&[64]).packets(FRAMES);
        let stats = pump(&mut frames, &mut outputs, &Until::default(), |batch, verdicts| {
            for n in 0..batch.len() {
                verdicts.set(n, Verdict::Redirect(Target::Port(tap.index())));
                verdicts.copy(n, Target::Port(1000));
            }
            ControlFlow::Continue(())
        })
        .unwrap_or_else(|e| panic!("{e}"));
        let [sent, copied] = [full, other].map(|sink| outputs.sent(sink));
        assert_eq!((copied.packets, copied.ring_full), (FRAMES, 0));
        assert_eq!(sent.packets + sent.ring_full, FRAMES, "{name}");
        assert!((1..=40).contains(&sent.packets), "{name}: {sent:?}");
        assert_eq!(sent.bytes, 64 * sent.packets, "{name}");
        assert_eq!((stats.packets, stats.sent.ring_full), (FRAMES, sent.ring_full));
        // As many came as it says that were sent, and they are the first ones.
        let numbers = |source: &mut dyn Source| {
            let (mut batch, mut all) = (Batch::new(), Vec::new());
            while source.receive(&mut batch, Duration::ZERO).ok() == Some(Received::Frames) {
                let number =
                    |bytes: &[u8]| bytes[42..].first_chunk().map(|n| u64::from_be_bytes(*n));
                all.extend(batch.frames().filter(|f| f.bytes.len() == 64).map(|f| number(f.bytes)));
                batch.clear();
            }
            all
        };
        assert_eq!(numbers(&mut tap), (0..sent.packets).map(Some).collect::<Vec<_>>(), "{name}");
        assert_eq!(numbers(&mut far.source), (0..FRAMES).map(Some).collect::<Vec<_>>());
    }
}

/// Opens both ends of a queue; says why it cannot.
fn open_xdp(name: &str, options: &XdpOptions) -> Option<(XdpSource, XdpSink)> {
    match xdp::open(name, options) {
        Ok(both) => Some(both),
        Err(PortError::Call { call: "socket", source, .. }) => {
            skip(&format!("AF_XDP ({source})"));
            None
        }
        Err(e) => panic!("{name}: {e}"),
    }
}

#[test]
fn xdp_sockets_send_and_receive_what_packet_sockets_do() {
    if !network::enter(false) || without_bpf() {
        return;
    }
    for generic in [false, true] {
        veth(1500);
        let options = XdpOptions { generic, ..XdpOptions::default() };
        let Some((mut source, mut sink)) = open_xdp("two", &options) else { return };
        let error = xdp::open("two", &options).map(|_| ()).expect_err("it has a socket");
        assert_eq!(
            error.to_string(),
            "`bind` on `two` failed: Device or resource busy (os error 16)"
        );
        let mut other_out = PacketSink::open("one").unwrap_or_else(|e| panic!("{e}"));
        let mut other_in = PacketSource::open("one").unwrap_or_else(|e| panic!("{e}"));

        let (frames, all) = batch(&[60, 61, 64, 1514, 200]);
        assert_eq!(other_out.send(&frames, &all).map(|s| s.packets).ok(), Some(5));
        let came = receive(&mut source, 5);
        for ((meta, bytes), frame) in came.iter().zip(frames.frames()) {
            assert_eq!(*bytes, frame.bytes);
            assert_eq!(
                (meta.port, meta.queue, meta.wire_len as usize),
                (source.index(), 0, bytes.len())
            );
        }

        // Many more than the rings have entries, the other way.
        let lengths: Vec<usize> = (0..64).map(|n| [60, 700, 1514, 15][n % 4]).collect();
        let (frames, all) = batch(&lengths);
        for _ in 0..70 {
            let sent = sink.send(&frames, &all).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!((sent.packets, sent.ring_full), (64, 0));
            sink.flush().unwrap_or_else(|e| panic!("{e}"));
            let came = receive(&mut other_in, 64).into_iter().map(|(_, bytes)| bytes);
            assert!(came.eq(frames.frames().map(|f| f.bytes.to_vec())));
        }
        let (frames, all) = batch(&[5000, 10, 60]);
        let sent = sink.send(&frames, &all).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!((sent.packets, sent.too_large, sent.too_short), (1, 1, 1));

        command("ip link del one");
        let mut got = Batch::new();
        let gone = (0..200).find_map(|_| source.receive(&mut got, LONG).err());
        assert_eq!(
            gone.map(|e| e.to_string()),
            Some("the interface `two` is down, or gone".into())
        );
        let gone = sink.send(&frames, &all).map(|s| s.packets).map_err(|e| e.to_string());
        assert_eq!(gone, Err("the interface `two` is down, or gone".into()));
    }
}

#[test]
fn every_frame_to_an_xdp_socket_is_received_or_counted_as_lost() {
    const FRAMES: u64 = 20_000;
    if !network::enter(false) || without_bpf() {
        return;
    }
    veth(1500);
    let options = XdpOptions { copying: Copying::Always, generic: true, ..XdpOptions::default() };
    let Some((mut source, _)) = open_xdp("two", &options) else { return };
    let mut sink = PacketSink::open("one").unwrap_or_else(|e| panic!("{e}"));
    let (mut frames, mut batch) = (Generator::new(&[64]).packets(FRAMES), Batch::new());
    let mut sent = 0;
    while frames.receive(&mut batch, LONG).ok() == Some(Received::Frames) {
        let all: Vec<u16> = (0..batch.len() as u16).collect();
        sent += sink.send(&batch, &all).unwrap_or_else(|e| panic!("{e}")).packets;
        batch.clear();
    }
    let mut came = 0;
    let mut counted = source.lost().unwrap_or_else(|e| panic!("{e}")).ring_full;
    while came + counted < sent {
        batch.clear();
        source.receive(&mut batch, LONG).unwrap_or_else(|e| panic!("{e}"));
        came += batch.len() as u64;
        counted = source.lost().unwrap_or_else(|e| panic!("{e}")).ring_full;
    }
    assert_eq!(came + counted, sent);
    assert!(counted > 0 && came > 1000, "{came} came, {counted} were lost");
}

/// Frames could be seen before the kernel had said that it took their chunks; then there was no room to
/// give these back, and nothing was said to have come.
#[test]
fn that_nothing_came_is_said_after_the_wait() {
    const WAIT: Duration = Duration::from_millis(50);
    if without_bpf() || !network::enter(false) {
        return;
    }
    veth(1500);
    for generic in [false, true] {
        let options = XdpOptions { copying: Copying::Always, generic, ..XdpOptions::default() };
        let Some((mut source, _)) = open_xdp("two", &options) else { return };
        let (ended, end) = channel::<()>();
        let sending = std::thread::spawn(move || {
            let mut sink = PacketSink::open("one").unwrap_or_else(|e| panic!("{e}"));
            let (batch, all) = batch(&[60; 64]);
            for _ in 0..4000 {
                sink.send(&batch, &all).unwrap_or_else(|e| panic!("{e}"));
            }
            drop(ended);
        });
        let mut batch = Batch::new();
        loop {
            batch.clear();
            let began = Instant::now();
            let received = source.receive(&mut batch, WAIT).unwrap_or_else(|e| panic!("{e}"));
            if received == Received::Nothing {
                assert!(began.elapsed() >= WAIT, "after {:?}", began.elapsed());
                if end.try_recv() == Err(TryRecvError::Disconnected) {
                    break;
                }
            }
        }
        assert!(sending.join().is_ok());
    }
}

#[test]
fn a_tap_device_is_the_other_end_of_an_interface() {
    if !network::enter(false) {
        return;
    }
    let mut tap = match Tap::open("tap9") {
        Ok(tap) => tap,
        Err(e) => return skip(&format!("/dev/net/tun ({e})")),
    };
    // What a packet socket sends on the device, its file receives, and the other way round.
    let mut host_in = PacketSource::open("tap9").unwrap_or_else(|e| panic!("{e}"));
    let mut host_out = PacketSink::open("tap9").unwrap_or_else(|e| panic!("{e}"));
    let (frames, all) = batch(&[60, 15, 1514, 999]);
    assert_eq!(host_out.send(&frames, &all).map(|s| s.packets).ok(), Some(4));
    let came = receive(&mut tap, 4);
    for ((meta, bytes), frame) in came.iter().zip(frames.frames()) {
        assert_eq!((&**bytes, meta.port), (frame.bytes, tap.index()));
        assert_eq!(meta.wire_len as usize, bytes.len());
    }
    let (frames, all) = batch(&[60, 10, 1514, 999]);
    let sent = tap.send(&frames, &all).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!((sent.packets, sent.too_short), (3, 1));
    let came: Vec<_> = receive(&mut host_in, 3).into_iter().map(|(_, bytes)| bytes).collect();
    let sent: Vec<_> = frames.frames().map(|f| f.bytes.to_vec()).filter(|f| f.len() > 10).collect();
    assert_eq!(came, sent);
    // A program that answers: every frame goes back.
    let (frames, all) = batch(&[100; 32]);
    assert_eq!(host_out.send(&frames, &all).map(|s| s.packets).ok(), Some(32));
    let mut outputs = Outputs::new();
    let back = outputs.add(Box::new(tap.clone()));
    outputs.send_verdict(Verdict::Tx.kind(), back);
    let until = Until { time: Some(LONG), ..Until::default() };
    let mut ours = 0;
    let stats = pump(&mut tap, &mut outputs, &until, |batch, verdicts| {
        for (n, frame) in batch.frames().enumerate() {
            // The kernel itself may send there too.
            let is_ours = is_ours(frame.bytes);
            verdicts.set(n, if is_ours { Verdict::Tx } else { Verdict::Drop });
            ours += usize::from(is_ours);
        }
        if ours < 32 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    assert_eq!(stats.map(|s| s.sent.packets).ok(), Some(32));
    assert_eq!(receive(&mut host_in, 32).len(), 32);
    command("ip link set tap9 down");
    let error = tap.send(&frames, &all).map(|s| s.packets).map_err(|e| e.to_string());
    assert_eq!(error, Err("the interface `tap9` is down, or gone".to_owned()));
}
