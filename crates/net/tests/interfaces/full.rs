//! Interfaces that do not take what is sent, and interfaces that go down, by `AF_XDP` beside packet
//! sockets.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use skep_isa::ProgramType;
use skep_kernel::{Link, Program, ProgramSpec, XdpMode};
use skep_net::port::capture::{Format, Writer};
use skep_net::port::generator::Generator;
use skep_net::port::interface::xdp::{self, XdpOptions};
use skep_net::port::interface::{PacketSink, PacketSource, Tap};
use skep_net::port::{Batch, Outputs, Sink, Source, Until, Verdict, pump};
use skep_testkit::network::{self, command};
use skep_testkit::skip;
use skep_testkit::skip::without_bpf;

use super::{LONG, batch, open_xdp, receive, veth};

/// A directory with the files of `/sys` for this thread's namespaces, which goes with this.
struct Sys(PathBuf);

impl Sys {
    fn new() -> Option<Self> {
        let path = std::env::temp_dir().join(format!("skep-sys-{}", std::process::id()));
        std::fs::create_dir_all(&path).ok()?;
        command(&format!("mount -t sysfs sysfs {}", path.display()));
        Some(Self(path))
    }

    fn file(&self, interface: &str, name: &str) -> PathBuf {
        self.0.join("class/net").join(interface).join(name)
    }

    fn number(&self, interface: &str, name: &str) -> u64 {
        let text = std::fs::read_to_string(self.file(interface, name)).unwrap_or_default();
        text.trim().parse().unwrap_or_else(|_| panic!("{name} of {interface}: `{text}`"))
    }
}

impl Drop for Sys {
    fn drop(&mut self) {
        Command::new("umount").arg(&self.0).status().ok();
        std::fs::remove_dir(&self.0).ok();
    }
}

/// Puts a program on an interface that takes long for each frame, and drops it.
fn slow_program(interface: &str) -> (Program, Link) {
    let insns: [[u8; 8]; 5] = [
        // r0 = 20,000
        [0xb7, 0, 0, 0, 0x20, 0x4e, 0, 0],
        // r0 -= 1, until it is 1: XDP_DROP
        [0x17, 0, 0, 0, 1, 0, 0, 0],
        [0x55, 0, 0xfe, 0xff, 1, 0, 0, 0],
        [0xbf, 0, 0, 0, 0, 0, 0, 0],
        [0x95, 0, 0, 0, 0, 0, 0, 0],
    ];
    let spec = ProgramSpec::new(ProgramType::Xdp, insns.as_flattened());
    let program = Program::load(&spec).unwrap_or_else(|e| panic!("{e:?}"));
    let index = skep_net::port::interface::index_of(interface).expect("it is there");
    let link = Link::xdp(&program, index, XdpMode::Native);
    (program, link.unwrap_or_else(|e| panic!("{e}")))
}

/// The other end of a cable has a ring of 256 frames, and a thread that empties it too slowly. Of what
/// was sent, each frame got in there, by the kernel's count too, or was dropped and is counted as that.
#[test]
fn what_a_slow_other_end_does_not_take_is_counted() {
    const FRAMES: u64 = 5000;
    if !network::enter(true) || without_bpf() {
        return;
    }
    let Some(sys) = Sys::new() else { return };
    for by_xdp in [false, true] {
        veth(1500);
        let _slow = slow_program("two");
        // Polled by a thread of its own, not by whoever sends.
        if let Err(e) = std::fs::write(sys.file("two", "threaded"), "1") {
            return skip(&format!("threads that poll interfaces ({e})"));
        }
        let full: Box<dyn Sink> = if by_xdp {
            let sink = xdp::open_sink("one", &XdpOptions::default());
            Box::new(sink.unwrap_or_else(|e| panic!("{e}")))
        } else {
            Box::new(PacketSink::open("one").unwrap_or_else(|e| panic!("{e}")))
        };
        let mut outputs = Outputs::new();
        let full = outputs.add(full);
        outputs.send_verdict(Verdict::Pass.kind(), full);
        let mut frames = Generator::new(&[64]).packets(FRAMES);
        let stats = pump(&mut frames, &mut outputs, &Until::default(), |batch, verdicts| {
            (0..batch.len()).for_each(|n| verdicts.set(n, Verdict::Pass));
            ControlFlow::Continue(())
        })
        .unwrap_or_else(|e| panic!("{e}"));
        let sent = stats.sent;
        assert_eq!(sent.packets + sent.ring_full, FRAMES, "{by_xdp}: {sent:?}");
        // Who sends waits while its buffer is full of frames that are in the ring, so there may be none.
        assert!(sent.packets >= 256, "{by_xdp}: {sent:?}");
        assert_eq!(sent.bytes, 64 * sent.packets);
        // The kernel counts what has left the ring.
        let began = Instant::now();
        while sys.number("one", "statistics/tx_packets") < sent.packets && began.elapsed() < LONG {
            std::thread::yield_now();
        }
        assert_eq!(sys.number("one", "statistics/tx_packets"), sent.packets, "{by_xdp}");
        command("ip link del one");
    }
}

/// A queue that is only sent from leaves what comes in to others.
#[test]
fn a_queue_for_sending_takes_nothing_that_comes_in() {
    if !network::enter(true) || without_bpf() {
        return;
    }
    veth(1500);
    let mut sink = match xdp::open_sink("two", &XdpOptions::default()) {
        Err(e) if e.to_string().contains("socket") => return skip(&format!("AF_XDP ({e})")),
        sink => sink.unwrap_or_else(|e| panic!("{e}")),
    };
    let [mut one, mut two] =
        ["one", "two"].map(|name| PacketSource::open(name).unwrap_or_else(|e| panic!("{e}")));
    let mut other = PacketSink::open("one").unwrap_or_else(|e| panic!("{e}"));
    let (frames, all) = batch(&[60, 1514, 300]);
    let bytes: Vec<_> = frames.frames().map(|f| f.bytes.to_vec()).collect();
    let got = |source: &mut PacketSource| -> Vec<_> {
        receive(source, 3).into_iter().map(|(_, bytes)| bytes).collect()
    };
    assert_eq!(other.send(&frames, &all).map(|s| s.packets).ok(), Some(3));
    assert_eq!(got(&mut two), bytes);
    assert_eq!(sink.send(&frames, &all).map(|s| s.packets).ok(), Some(3));
    assert_eq!(got(&mut one), bytes);
    command("ip link set two down");
    let gone = sink.send(&frames, &all).map(|s| s.packets).map_err(|e| e.to_string());
    assert_eq!(gone, Err("the interface `two` is down, or gone".into()));
}

/// Waiting on a queue of an interface ends when that goes down, as it does on a packet socket; frames
/// that came before are received.
#[test]
fn an_interface_that_goes_down_ends_waiting_on_its_queue() {
    if !network::enter(true) || without_bpf() {
        return;
    }
    for generic in [false, true] {
        veth(1500);
        let options = XdpOptions { generic, ..XdpOptions::default() };
        let Some((mut source, _)) = open_xdp("two", &options) else { return };
        let mut other = PacketSink::open("one").unwrap_or_else(|e| panic!("{e}"));
        let (frames, all) = batch(&[60, 61]);
        assert_eq!(other.send(&frames, &all).map(|s| s.packets).ok(), Some(2));
        assert_eq!(receive(&mut source, 2).len(), 2);
        command("ip link set two down");
        let mut got = Batch::new();
        let gone = (0..200).find_map(|_| source.receive(&mut got, LONG).err());
        let gone = gone.map(|e| e.to_string());
        assert_eq!(gone, Some("the interface `two` is down, or gone".into()));
        command("ip link del one");
    }
}

/// An output that goes away in mid-run: what it was given and did not take is counted, and another
/// output gets all of its frames. By packet sockets, XDP sockets and TAP devices.
#[test]
fn what_an_output_that_goes_away_did_not_take_is_counted() {
    if !network::enter(true) || without_bpf() {
        return;
    }
    for kind in ["packet", "xdp", "tap"] {
        let name = if kind == "tap" { "tap7" } else { "one" };
        if kind != "tap" {
            veth(1500);
        }
        let sink: Box<dyn Sink> = match kind {
            "packet" => Box::new(PacketSink::open(name).unwrap_or_else(|e| panic!("{e}"))),
            "xdp" => match xdp::open_sink(name, &XdpOptions::default()) {
                Ok(sink) => Box::new(sink),
                Err(e) => return skip(&format!("AF_XDP ({e})")),
            },
            _ => match Tap::open(name) {
                Ok(tap) => Box::new(tap),
                Err(e) => return skip(&format!("/dev/net/tun ({e})")),
            },
        };
        let mut outputs = Outputs::new();
        let goes = outputs.add(sink);
        let stays = Writer::new("nowhere", Box::new(std::io::sink()), Format::Pcapng);
        let stays = outputs.add(Box::new(stays));
        outputs.send_verdict(Verdict::Pass.kind(), goes);
        outputs.send_verdict(Verdict::Drop.kind(), stays);
        let mut batches = 0;
        let failed =
            pump(&mut Generator::new(&[64]), &mut outputs, &Until::default(), |batch, all| {
                let verdict = |n| if n % 2 == 0 { Verdict::Pass } else { Verdict::Drop };
                (0..batch.len()).for_each(|n| all.set(n, verdict(n)));
                batches += 1;
                if batches == 20 {
                    command(&format!("ip link del {name}"));
                }
                ControlFlow::Continue(())
            });
        let failed = failed.expect_err("the interface is gone");
        assert_eq!(failed.to_string(), format!("the interface `{name}` is down, or gone"));
        let (gone, stayed, stats) = (outputs.sent(goes), outputs.sent(stays), failed.stats);
        assert_eq!(stayed.packets, stats.verdicts[Verdict::Drop.kind()], "{kind}");
        assert!(gone.unwritten >= 32 && gone.packets > 0, "{kind}: {gone:?}");
        assert_eq!(gone.bytes, 64 * gone.packets, "{kind}");
        let counted = gone.packets + gone.ring_full + gone.unwritten;
        assert_eq!(counted, stats.verdicts[Verdict::Pass.kind()], "{kind}: {gone:?}");
    }
}
