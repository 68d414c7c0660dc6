//! `skep prog run --in` and `--live-frames`: packets of capture files and of a generator, one packet again and
//! again, and where they go.

mod common;

use std::io::{Read, Write};
use std::time::Duration;

use common::{Skep, json, text};

use serde_json::json;
use skep_testkit::network;
use skep_testkit::run::{Running, Signal, signal};
use skep_testkit::skip::without_bpf;

/// The object of the library's tests.
fn object() -> String {
    format!("{}/../skep/tests/data/packets/packets.bpf.o", env!("CARGO_MANIFEST_DIR"))
}

/// A pcap file with a packet of 60 bytes for each of these bytes behind the Ethernet header.
fn pcap(firsts: &[u8]) -> Vec<u8> {
    let mut file = Vec::new();
    let mut put = |words: &[u32]| file.extend(words.iter().flat_map(|w| w.to_le_bytes()));
    put(&[0xa1b2_c3d4, 4 << 16 | 2, 0, 0, 65_536, 1]);
    for (n, first) in (0..).zip(firsts) {
        put(&[1000 + n, 0, 60, 60]);
        put(&[0x0002_0002; 3]);
        put(&[0xb588 | u32::from(*first) << 16]);
        put(&[0; 11]);
    }
    file
}

/// The bytes behind the Ethernet header of the packets in a pcap file of this test's kind.
fn firsts(file: &[u8]) -> Vec<u8> {
    file[24..].chunks(76).map(|packet| packet[16 + 14]).collect()
}

#[test]
fn packets_of_a_file_are_split_by_verdict() {
    let skep = Skep::new();
    let (input, ok, rest) = (skep.path("in.pcap"), skep.path("ok.pcap"), skep.path("rest.pcap"));
    // The program returns the lower three bits, and passes what would be redirected.
    let all = [2, 1, 0, 2, 3, 4, 1, 10, 5];
    std::fs::write(&input, pcap(&all)).expect("there is room");
    let out = format!("pass={},*={}", ok.display(), rest.display());
    let input = input.display().to_string();
    let args = ["prog", "run", &object(), "split", "--in", &input, "--out", &out];
    let ended = skep.run(args.into_iter().chain(["--json", "--maps"]));
    assert_eq!(ended.shell_status(), 0, "{}", ended.transcript());
    let report = json(&ended.stdout);
    let verdicts = json!({"aborted": 2, "drop": 2, "pass": 4, "tx": 1, "redirect": 0});
    assert_eq!((&report["packets"], &report["bytes"]), (&json!(9), &json!(540)));
    assert_eq!(report["verdicts"], verdicts);
    assert_eq!(report["nodes"][0]["program"], "split");
    assert_eq!(
        (&report["nodes"][0]["runs"], &report["nodes"][0]["verdicts"]),
        (&json!(9), &verdicts)
    );
    assert_eq!((&report["sent"]["packets"], &report["cut_at"]), (&json!(9), &json!(null)));
    assert_eq!(report["maps"]["counts"][2]["value"], 3);
    assert_eq!(firsts(&std::fs::read(ok).expect("it was written")), [2, 2, 4, 10]);
    assert_eq!(firsts(&std::fs::read(rest).expect("it was written")), [1, 0, 3, 1, 5]);

    let ended = skep.run(args);
    let shown = text(&ended.stdout);
    assert!(shown.starts_with("9 packets  540B  "), "{shown}");
    assert!(
        shown.contains("\n  pass      4\n") && shown.contains("program split  9 runs"),
        "{shown}"
    );
}

#[test]
fn packets_go_through_pipes_and_the_report_past_them() {
    let skep = Skep::new();
    let args = ["prog", "run", &object(), "split", "--in", "-", "--out", "pass=-"];
    let ended = skep.run_with(args, &pcap(&[1, 2, 2, 1]));
    assert_eq!(ended.shell_status(), 0, "{}", ended.transcript());
    assert_eq!(firsts(&ended.stdout), [2, 2]);
    assert!(text(&ended.stderr).starts_with("4 packets  240B"), "{}", ended.transcript());
}

#[test]
fn what_is_wrong_with_an_input_is_said_and_what_came_before_is_used() {
    let skep = Skep::new();
    let input = skep.path("in.pcap").display().to_string();
    let run = |args: &[&str]| {
        let object = object();
        let all = ["prog", "run", &object, "split", "--in", &input];
        let ended = skep.run(all.iter().chain(args));
        (ended.shell_status(), text(&ended.stdout), text(&ended.stderr))
    };
    let (status, _, error) = run(&[]);
    assert_eq!(status, 2);
    assert!(error.contains("cannot open `") && error.contains("No such file"), "{error}");

    let mut file = pcap(&[2, 2, 2]);
    std::fs::write(&input, &file[..24 + 76 + 30]).expect("there is room");
    let (status, out, error) = run(&[]);
    assert_eq!((status, out.starts_with("1 packet ")), (0, true));
    assert!(error.contains("ends inside the packet at byte 100;"), "{error}");

    file[24 + 76 + 11] = 0x7f;
    std::fs::write(&input, &file).expect("there is room");
    let (status, out, error) = run(&["--json"]);
    assert_eq!((status, json(out.as_bytes())["packets"].clone()), (1, json!(1)));
    assert!(error.contains("after 1 packet: the packet at byte 100 has "), "{error}");

    std::fs::write(&input, pcap(&[2; 9])).expect("there is room");
    let (status, _, error) = run(&["--out", "accept=x.pcap"]);
    assert_eq!(status, 2);
    assert!(error.contains("there is no verdict `accept`"), "{error}");
    let (status, out, error) = run(&["--out", "pass=/dev/full"]);
    assert_eq!((status, out.starts_with("9 packets")), (1, true), "{error}");
    assert!(error.contains("cannot write `/dev/full` any further: No space left"), "{error}");
    assert!(error.contains("0 packets are in it, 9 are not"), "{error}");
    assert!(out.contains("\nsent  0 packets  0B\n"), "{out}");
    assert!(out.contains("\ndropped  9 packets  not written, their output failed\n"), "{out}");
    let (status, out, _) = run(&["--packets", "4"]);
    assert_eq!((status, out.starts_with("4 packets")), (0, true));
    let (status, _, error) = run(&["--data-in", "x"]);
    assert_eq!((status, error.contains("cannot be used with")), (2, true), "{error}");
}

#[test]
fn a_generator_runs_until_it_is_told_to_stop() {
    let skep = Skep::new();
    let args = ["prog", "run", &object(), "swap", "--in", "gen:64+1514", "--json"];
    let ended = skep.run(args.iter().copied().chain(["--packets", "1000"]));
    let report = json(&ended.stdout);
    assert_eq!((&report["bytes"], &report["verdicts"]["tx"]), (&json!(789_000), &json!(1000)));
    // A busy machine may let all of a short time pass before the first packet.
    let mut times = (0..16).map(|n| format!("{}ms", 1 << n));
    assert!(times.any(|time| {
        let ended = skep.run(args.iter().copied().chain(["--for", &time]));
        json(&ended.stdout)["packets"].as_u64() > Some(0)
    }));
}

/// Starts a run without end that writes packets to its standard output, and waits for the first.
fn endless(skep: &Skep) -> Running {
    let args = ["prog", "run", &object(), "swap", "--in", "gen:64", "--out", "tx=-"];
    let mut running = skep.start(args);
    let out = running.stdout.as_mut().expect("it is a pipe");
    out.read_exact(&mut [0; 104]).expect("it writes a header and a packet");
    running
}

/// Waits for its end; returns the status and what it wrote.
fn ended(mut running: Running) -> (Option<i32>, usize, String) {
    let (mut out, mut error) = (Vec::new(), String::new());
    if let Some(mut pipe) = running.stdout.take() {
        pipe.read_to_end(&mut out).expect("it is a pipe");
    }
    let pipe = running.stderr.as_mut().expect("it is a pipe");
    pipe.read_to_string(&mut error).expect("it writes text");
    (running.wait().expect("it is our child").code(), out.len() + 104, error)
}

#[test]
fn ctrl_c_ends_a_run_with_its_report() {
    let skep = Skep::new();
    let running = endless(&skep);
    signal(running.id(), Signal::INT);
    let (status, written, error) = ended(running);
    assert_eq!((status, (written - 24) % 80), (Some(0), 0), "{error}");
    let packets = (written - 24) / 80;
    assert!(error.starts_with(&format!("{packets} packets  ")), "{packets}: {error}");
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let skep = Skep::new();
    let mut running = endless(&skep);
    drop(running.stdout.take());
    let (status, _, error) = ended(running);
    assert_eq!((status, error.contains("error")), (Some(0), false), "{error}");
}

/// A pipe that has nothing does not keep anybody: what it gave before was used.
#[test]
fn a_run_ends_though_its_pipe_has_nothing() {
    let skep = Skep::new();
    let ended_by = |more: &[&str], given: &[u8], stop: bool| {
        let file = skep.path("out.pcap").display().to_string();
        let out = format!("pass={file}");
        let args = ["prog", "run", &object(), "split", "--in", "-", "--out", &out];
        let mut running = skep.start(args.iter().copied().chain(more.iter().copied()));
        let pipe = running.stdin.as_mut().expect("it is a pipe");
        pipe.write_all(given).expect("there is room");
        // The packets before are in the file when nothing more comes: it waits then.
        let len = || std::fs::metadata(&file).map_or(0, |file| file.len());
        while stop && len() < 24 + 76 {
            std::thread::sleep(Duration::from_millis(1));
        }
        if stop {
            signal(running.id(), Signal::INT);
        }
        let (mut report, mut error) = (String::new(), String::new());
        let out = running.stdout.as_mut().expect("it is a pipe");
        out.read_to_string(&mut report).expect("it writes text");
        let errors = running.stderr.as_mut().expect("it is a pipe");
        errors.read_to_string(&mut error).expect("it writes text");
        // Only now: the pipe was open all the time.
        drop(running.stdin.take());
        let status = running.wait().expect("it is our child").code();
        assert_eq!(status, Some(0), "{error}");
        (report, firsts(&std::fs::read(&file).expect("it was written")))
    };
    let capture = pcap(&[2, 1, 2]);
    // Two packets and a half.
    let (report, passed) = ended_by(&[], &capture[..24 + 76 + 76 + 30], true);
    assert!(report.starts_with("2 packets"), "{report}");
    assert_eq!(passed, [2]);
    let (report, _) = ended_by(&["--for", "20ms"], &capture[..24], false);
    assert!(report.starts_with("0 packets"), "{report}");
}

/// A packet for `live_spread`, which redirects a fifth of its frames to the loopback interface.
fn packet() -> Vec<u8> {
    let mut packet = vec![0; 60];
    packet[24..28].copy_from_slice(&1_u32.to_ne_bytes());
    packet
}

fn spread() -> String {
    format!("{}/../skep/tests/data/test_run/live.bpf.o", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn live_frames_go_to_outputs_by_verdict() {
    let skep = Skep::new();
    let paths = ["in.bin", "pass.pcap", "tx.pcap", "rest.pcap"].map(|name| skep.path(name));
    let [input, pass, tx, rest] = paths;
    std::fs::write(&input, packet()).expect("there is room");
    let out = format!("pass={},tx={},*={}", pass.display(), tx.display(), rest.display());
    let (input, object) = (input.display().to_string(), spread());
    let live = ["prog", "run", &object, "live_spread", "--data-in", &input, "--live-frames"];
    let with = |more: &[&str]| skep.run(live.iter().chain(more));
    let ended = with(&["--repeat", "10", "--out", &out, "--json"]);
    assert_eq!(ended.shell_status(), 0, "{}", ended.transcript());
    let report = json(&ended.stdout);
    let verdicts = json!({"aborted": 0, "drop": 2, "pass": 2, "tx": 2, "redirect": 4});
    assert_eq!((&report["packets"], &report["verdicts"]), (&json!(10), &verdicts));
    let numbers = |path| -> Vec<u8> {
        let file = std::fs::read(path).expect("it was written");
        file[24..].chunks(76).map(|packet| packet[16 + 20]).collect()
    };
    assert_eq!((numbers(&pass), numbers(&tx)), (vec![0, 5], vec![1, 6]));
    assert_eq!(numbers(&rest), [2, 3, 4, 7, 8, 9]);

    let ctx = skep.path("ctx.bin").display().to_string();
    let words = [0_u32, packet().len() as u32, 0, 1, 0, 0].map(u32::to_ne_bytes);
    std::fs::write(&ctx, words.as_flattened()).expect("there is room");
    for (more, status, message) in [
        (["--out", &out, "--batch-size", "257"], 2, "a batch has 256 frames at most, not 257"),
        (
            ["--out", &format!("pass={ctx}"), "--ctx-in", &ctx],
            2,
            "is the input, and would be emptied",
        ),
        (["--out", &out, "--data-in", &input], 2, "live frames are of one packet"),
        (["--out", "pass=stack:nowhere0", "--repeat", "1"], 2, "no interface `nowhere0`"),
        (["--out", "tx=in", "--repeat", "1"], 2, "`in` needs an interface as input"),
    ] {
        let ended = with(&more);
        assert_eq!(ended.shell_status(), status, "{}", ended.transcript());
        let said = text(&ended.stdout) + &text(&ended.stderr);
        assert!(said.contains(message), "{}", ended.transcript());
    }
}

#[test]
fn a_packet_that_fits_no_page_is_no_live_frame() {
    let skep = Skep::new();
    let input = skep.path("in.bin").display().to_string();
    for len in [0, 13, 3409] {
        std::fs::write(&input, vec![0; len]).expect("there is room");
        let live = ["prog", "run", &spread(), "live_spread", "--data-in", &input, "--live-frames"];
        let ended = skep.run(live);
        let said = format!("`{input}` has {len} bytes, and a live frame 14 to 3408");
        assert_eq!(ended.shell_status(), 2, "{}", ended.transcript());
        assert!(text(&ended.stderr).contains(&said), "{}", ended.transcript());
    }
}

#[test]
fn live_frames_go_to_the_interfaces_of_the_machine() {
    if without_bpf() || !network::enter(false) {
        return;
    }
    network::command("ip link set lo up");
    let skep = Skep::new();
    let input = skep.path("in.bin");
    std::fs::write(&input, packet()).expect("there is room");
    let (input, object) = (input.display().to_string(), spread());
    let live = ["prog", "run", &object, "live_spread", "--data-in", &input, "--live-frames"];
    let ended = skep.run(live.into_iter().chain(["--repeat", "500", "--json"]));
    assert_eq!(ended.shell_status(), 0, "{}", ended.transcript());
    let report = json(&ended.stdout);
    // What passed, what was sent back and what was redirected.
    assert_eq!((&report["packets"], &report["sent"]["packets"]), (&json!(500), &json!(300)));
    assert_eq!(report["dropped"]["no_target"], 100);

    // What is sent to an interface that is down is counted, and the others go on.
    network::command("ip link set lo down");
    let ended = skep.run(live.into_iter().chain(["--repeat", "500", "--json"]));
    assert_eq!(ended.shell_status(), 0, "{}", ended.transcript());
    let report = json(&ended.stdout);
    assert_eq!((&report["packets"], &report["dropped"]["down"]), (&json!(500), &json!(200)));
}
