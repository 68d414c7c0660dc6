//! `skep chain` on the packets of capture files: explained, measured.

mod common;

use std::time::Duration;

use common::{Skep, fails, json, out, text};
use serde_json::json;
use skep_testkit::run::run;
use skep_testkit::trace::skep_bin;

/// A directory with a chain of two programs, and a capture of a long, a short and a long packet.
fn prepared() -> Skep {
    let skep = Skep::new();
    let object = concat!(env!("CARGO_MANIFEST_DIR"), "/../skep/tests/data/chain.bpf.o");
    out(&skep, &["chain", "create", "fw", "--quiet"]);
    for program in ["drop_short", "push"] {
        out(&skep, &["chain", "add", "fw", &format!("{object}:{program}"), "--quiet"]);
    }
    std::fs::write(skep.path("in.pcap"), pcap(&[&[1; 64], &[2; 20], &[3; 80]])).unwrap();
    skep
}

/// `explain` gave every packet the loopback interface, as a test run does, so that a program could say
/// something else than in `run`, and showed metadata as bytes before the packet.
#[test]
fn what_is_explained_is_what_runs() {
    let skep = Skep::new();
    let (capture, file) = (skep.path("in.pcapng"), skep.path("fw.toml").display().to_string());
    let words = |words: &[u32]| words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<_>>();
    let block = |kind: u32, body: &[u8]| {
        let len = 12 + body.len() as u32;
        [&words(&[kind, len])[..], body, &words(&[len])].concat()
    };
    let packet = |interface: u32, bytes: &[u8]| {
        let len = bytes.len() as u32;
        block(6, &[&words(&[interface, 0, 1, len, len])[..], bytes].concat())
    };
    let all = [
        block(0x0a0d_0d0a, &words(&[0x1a2b_3c4d, 1, !0, !0])),
        block(1, &words(&[1, 0])),
        block(1, &words(&[1, 0])),
        packet(0, &[1; 64]),
        packet(1, &[2; 12]),
    ];
    std::fs::write(&capture, all.concat()).unwrap();
    let capture = capture.display().to_string();
    let program = |object: &str, name: &str, more: &str| {
        let object = format!("{}/../skep/tests/data/{object}", env!("CARGO_MANIFEST_DIR"));
        format!("[[program]]\nobject = '{object}'\nprogram = '{name}'\n{more}\n")
    };
    let explain = ["chain", "explain", &file, "--in", &capture, "--json", "--packet"];
    let explain = |n: &str| json(out(&skep, &[&explain[..], &[n]].concat()).as_bytes());
    std::fs::write(&file, program("test_run/xdp.bpf.o", "xdp_numbers", "")).unwrap();
    assert_eq!(explain("1")[0]["verdict"], json!("1000"));
    assert_eq!(explain("2")[0]["verdict"], json!("2000"));
    let meta = |more: &str| program("corpus.bpf.o", "note", more);
    std::fs::write(&file, meta("on = { tx = 'next' }") + &meta("")).unwrap();
    let told = explain("1");
    let step = |n: usize| {
        let step = &told[0]["path"][n];
        (step["metadata"].clone(), step["head"].clone(), step["changes"].clone())
    };
    assert_eq!(step(0), (json!("06000000"), json!(0), json!([])));
    assert_eq!(step(1), (json!("07000000"), json!(0), json!([])));
    assert_eq!(told[0]["data_out"], json!("01".repeat(64)));
    let run = ["chain", "run", &file, "--in", &capture, "--json"];
    assert_eq!(json(out(&skep, &run).as_bytes())["verdicts"]["tx"], json!(2));
}

/// Chains of such programs ran on packets of ports, or counted them without having run.
#[test]
fn packets_of_ports_go_to_programs_that_take_them() {
    let skep = Skep::new();
    let object = |path: &str| format!("{}/../{path}", env!("CARGO_MANIFEST_DIR"));
    let tc = object("skep/tests/data/test_run/skb.bpf.o");
    let devmap = object("skep/tests/data/packets/packets.bpf.o");
    for (name, kind, program, words) in [
        ("tc", "sched_cls", format!("{tc}:tc_narrow"), "packets of a source go to `xdp` programs"),
        ("entry", "xdp", format!("{devmap}:egress"), "it gets no packets of a source"),
    ] {
        out(&skep, &["chain", "create", name, "--type", kind, "--quiet"]);
        if kind == "sched_cls" {
            let said = "program `egress` is of type `xdp`, and the chain of type `sched_cls`";
            fails(&skep, &["chain", "add", name, &format!("{devmap}:egress")], 1, said);
        }
        out(&skep, &["chain", "add", name, &program, "--quiet"]);
        let commands = ["run", "bench", "explain"];
        for command in commands.into_iter().filter(|c| kind == "xdp" || *c != "explain") {
            let line = ["chain", command, name, "--in", "gen:64"];
            let ended = skep.run(line);
            assert_eq!(
                (ended.shell_status(), text(&ended.stdout)),
                (1, String::new()),
                "{command}"
            );
            assert!(text(&ended.stderr).contains(words), "{}", ended.transcript());
        }
    }
}

/// A pcap file of these packets.
fn pcap(packets: &[&[u8]]) -> Vec<u8> {
    let words = |words: &[u32]| words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<_>>();
    let mut file = words(&[0xa1b2_c3d4, 4 << 16 | 2, 0, 0, 262_144, 1]);
    for packet in packets {
        let len = packet.len() as u32;
        file.extend(words(&[1000, 0, len, len]));
        file.extend_from_slice(packet);
    }
    file
}

#[test]
fn packets_of_a_capture_are_explained_by_number() {
    let skep = prepared();
    let input = skep.path("in.pcap").display().to_string();
    let explain = |more: &[&str]| {
        let args = ["chain", "explain", "fw", "--in", &input, "--json"];
        json(out(&skep, &[&args[..], more].concat()).as_bytes())
    };
    let told = explain(&["--packet", "3", "--packet", "2"]);
    let what = |n: usize| (told[n]["packet"].clone(), told[n]["verdict"].clone());
    assert_eq!([what(0), what(1)], [(json!(3), json!("tx")), (json!(2), json!("drop"))]);
    // `push` puts four bytes before the packet.
    let data = told[0]["data_out"].as_str().unwrap();
    assert_eq!((data.len(), &data[8..]), (2 * 84, "03".repeat(80).as_str()));
    assert_eq!(explain(&[])[0]["packet"], json!(1));
    let args = ["chain", "explain", "fw", "--in", &input];
    fails(&skep, &[&args[..], &["--packet", "4"]].concat(), 1, "has no packet 4");
    fails(&skep, &[&args[..], &["--packet", "0"]].concat(), 2, "there is no packet 0");
    std::fs::write(skep.path("in.pcap"), pcap(&[&[1; 13]])).unwrap();
    assert_eq!(explain(&[])[0]["verdict"], json!("drop"));
    let short = skep.path("short");
    std::fs::write(&short, [1; 13]).unwrap();
    let short = short.display().to_string();
    for command in ["explain", "bench"] {
        let args = ["chain", command, "fw", "--data-in", &short];
        fails(&skep, &args, 1, "packet 1 has 13 bytes, and an Ethernet header alone 14");
        fails(&skep, &["chain", command, "fw"], 2, "<--data-in <FILE>|--in <PORT>>");
    }
    fails(&skep, &["chain", "pin", "fw"], 1, "chain `fw` is pinned already");
}

#[test]
fn packets_of_a_capture_go_through_in_turn_when_a_chain_is_measured() {
    let skep = prepared();
    let input = skep.path("in.pcap").display().to_string();
    for engine in ["jit", "interp"] {
        let args = ["chain", "bench", "fw", "--in", &input, "--repeat", "1000", "--json"];
        let told = json(out(&skep, &[&args[..], &["--engine", engine]].concat()).as_bytes());
        assert_eq!((&told["runs"], &told["packets"]), (&json!(1000), &json!(3)));
        // Each packet comes as it was captured: the long ones stay as long as they are.
        assert_eq!(
            told["verdicts"],
            json!({"aborted": 0, "drop": 333, "pass": 0, "tx": 667, "redirect": 0})
        );
        assert_eq!(told["nodes"][0]["bytes"], json!(334 * 64 + 333 * 20 + 333 * 80));
        assert_eq!(told["nodes"][1]["bytes"], json!(334 * 64 + 333 * 80));
        assert!(told["ns"].as_f64() > Some(0.0), "{told}");
    }
    let said = skep.run(["chain", "bench", "fw", "--in", &input, "--repeat", "6"]);
    let said = text(&said.stdout);
    assert!(said.starts_with("6 runs of 3 packets  drop 2  tx 4\n"), "{said}");
    std::fs::write(skep.path("in.pcap"), pcap(&[])).unwrap();
    fails(&skep, &["chain", "bench", "fw", "--in", &input], 1, "has no packets");
}

/// The packets of a pcapng file: name of the interface, bytes, number and verdict.
fn noted(file: &[u8]) -> Vec<(String, Vec<u8>, u64, Option<u64>)> {
    let u16_at = |at: usize| u16::from_le_bytes(file[at..at + 2].try_into().unwrap());
    let u32_at = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
    let u64_at = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().unwrap());
    let (mut names, mut packets, mut at) = (Vec::new(), Vec::new(), 0);
    while at < file.len() {
        let (kind, length) = (u32_at(at), u32_at(at + 4) as usize);
        let end = at + length - 4;
        assert_eq!(u32_at(end) as usize, length, "both lengths of the block at {at}");
        let options = |mut at: usize| {
            let mut all = Vec::new();
            while u16_at(at) != 0 {
                let length = usize::from(u16_at(at + 2));
                all.push((u16_at(at), at + 4, length));
                at += 4 + length.next_multiple_of(4);
            }
            assert_eq!(at + 4, end, "options end the block");
            move |code: u16| all.iter().find(|o| o.0 == code).map(|o| (o.1, o.2))
        };
        match kind {
            1 => {
                let (name, length) = options(at + 16)(2).unwrap();
                names.push(String::from_utf8(file[name..name + length].to_vec()).unwrap());
            }
            6 => {
                let (captured, wire) = (u32_at(at + 20) as usize, u32_at(at + 24) as usize);
                assert_eq!(captured, wire, "no packet of these was cut");
                let option = options(at + 28 + captured.next_multiple_of(4));
                let verdict = option(7).map(|(at, length)| {
                    assert_eq!((file[at], length), (2, 9), "a verdict of XDP");
                    u64_at(at + 1)
                });
                let name = names[u32_at(at + 8) as usize].clone();
                let bytes = file[at + 28..at + 28 + captured].to_vec();
                packets.push((name, bytes, u64_at(option(5).unwrap().0), verdict));
            }
            _ => assert_eq!(kind, 0x0a0d_0d0a),
        }
        at += length;
    }
    packets
}

#[test]
fn packets_are_written_before_and_after_programs() {
    let skep = prepared();
    let at = |name: &str| skep.path(name).display().to_string();
    let (all, input) = (at("all.pcapng"), at("in.pcap"));
    let (first, second) = (format!("1:after={all}"), format!("push={all}"));
    let dumps = ["--dump", &first, "--dump", &second];
    let run = ["chain", "run", "fw", "--in", &input, "--json"];
    let plain = json(out(&skep, &run).as_bytes());
    let report = json(out(&skep, &[&run[..], &dumps].concat()).as_bytes());
    assert_eq!((&report["verdicts"], &report["nodes"]), (&plain["verdicts"], &plain["nodes"]));
    let seen = noted(&std::fs::read(skep.path("all.pcapng")).unwrap());
    let places: Vec<_> =
        seen.iter().map(|(at, bytes, n, verdict)| (&**at, bytes.len(), *n, *verdict)).collect();
    let (first, before, after) = ("drop_short (1)@after", "push (2)@before", "push (2)@after");
    let want = [
        (first, 64, 1, Some(2)),
        (before, 64, 1, None),
        (after, 68, 1, Some(3)),
        (first, 20, 2, Some(1)),
        (first, 80, 3, Some(2)),
        (before, 80, 3, None),
        (after, 84, 3, Some(3)),
    ];
    assert_eq!(places, want);
    assert_eq!((&seen[0].1, &seen[1].1), (&vec![1; 64], &vec![1; 64]));
    assert_eq!(seen[6].1[4..], [3; 80]);

    out(&skep, &[&run[..], &dumps, &["--every", "2"]].concat());
    let seen = noted(&std::fs::read(skep.path("all.pcapng")).unwrap());
    assert_eq!(seen.iter().map(|s| s.2).collect::<Vec<_>>(), [1, 1, 1, 3, 3, 3]);
    // Other formats have the bytes alone.
    out(&skep, &[&run[..], &["--dump", &format!("push:before={}", at("before.pcap"))]].concat());
    let file = std::fs::read(skep.path("before.pcap")).unwrap();
    assert_eq!(file.len(), 24 + 16 + 64 + 16 + 80);
    // A packet that a program made longer or shorter does not look cut.
    out(&skep, &[&run[..], &["--out", &format!("tx={}", at("tx.pcap"))]].concat());
    let file = std::fs::read(skep.path("tx.pcap")).unwrap();
    assert_eq!(
        (file[32..36].to_vec(), file[36..40].to_vec()),
        (vec![68, 0, 0, 0], vec![68, 0, 0, 0])
    );
}

#[test]
fn dumps_that_cannot_be_are_refused_and_destroy_nothing() {
    let skep = prepared();
    let packets = std::fs::read(skep.path("in.pcap")).unwrap();
    let link = skep.path("link.pcap");
    std::os::unix::fs::symlink(skep.path("in.pcap"), link).unwrap();
    let dir = skep.path("").display().to_string();
    // `@` is the directory.
    let refused = |more: &[&str], says: &str| {
        let more: Vec<_> = more.iter().map(|word| word.replace('@', &dir)).collect();
        let input = format!("{dir}in.pcap");
        let args = ["chain", "run", "fw", "--in", &input];
        let args = [&args[..], &more.iter().map(String::as_str).collect::<Vec<_>>()].concat();
        fails(&skep, &args, 2, &says.replace('@', &dir));
        assert_eq!(std::fs::read(skep.path("in.pcap")).unwrap(), packets, "{more:?}");
    };
    for (dump, says) in [
        ("push", "no `=FILE`"),
        ("push=", "no file"),
        ("=x", "no node"),
        ("push:middle=x", "`middle` is not `before` or `after`"),
        ("9=x", "the chain has no node `9`"),
        ("pushed=x", "it has drop_short (1), push (2)"),
        ("push=@nowhere/x", "cannot open `@nowhere/x`"),
        ("push=@in.pcap", "`@in.pcap` is the input"),
        ("push=@link.pcap", "`@link.pcap` is the input"),
    ] {
        refused(&["--dump", dump], says);
    }
    refused(&["--out", "pass=@x", "--dump", "push=@x"], "`@x` is an output already");
    refused(&["--out", "pass=@in.pcap"], "is the input, and would be emptied");
    refused(&["--out", "pass=@a,drop=@link.pcap"], "is the input, and would be emptied");
    refused(&["--out", "pass=@a,drop=@a"], "`@a` is an output already");
}

/// What the shell opens is a file too: packets of the input were lost, or the output was read again.
#[test]
fn an_input_is_not_written_through_the_shell_either() {
    let skep = prepared();
    let packets = std::fs::read(skep.path("in.pcap")).unwrap();
    for line in [
        "$0 chain run fw --in - --out '*=in.pcap' < in.pcap",
        "$0 chain run fw --in - --dump push=in.pcap < in.pcap",
        "$0 chain run fw --in in.pcap --out '*=-' >> in.pcap",
        "$0 chain run fw --in - --out '*=-' < in.pcap >> in.pcap",
        "$0 chain run fw --in gen:64 --packets 1 --out 'pass=-,drop=in.pcap' >> in.pcap",
    ] {
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", line]).arg(skep_bin()).current_dir(skep.path("."));
        shell.env("SKEP_DIR", skep.path("skep"));
        let ended = run(&mut shell, b"", Duration::from_secs(300));
        assert_eq!(ended.shell_status(), 2, "{line}: {}", ended.transcript());
        assert_eq!(std::fs::read(skep.path("in.pcap")).unwrap(), packets, "{line}");
    }
}

#[test]
fn a_full_disk_ends_a_dump_with_an_error_and_what_was_done_is_told() {
    let skep = prepared();
    let input = skep.path("in.pcap").display().to_string();
    let output = format!("tx={}", skep.path("tx.pcap").display());
    let run = ["chain", "run", "fw", "--in", &input, "--json", "--out", &output];
    let ran = skep.run([&run[..], &["--dump", "push=/dev/full"]].concat());
    let error = text(&ran.stderr);
    assert!(error.contains("/dev/full") && error.contains("No space left"), "{error}");
    assert_eq!(ran.shell_status(), 1);
    assert_eq!(json(&ran.stdout)["packets"], 3);
    // The output has all packets.
    assert_eq!(std::fs::read(skep.path("tx.pcap")).unwrap().len(), 24 + 16 + 68 + 16 + 84);
}
