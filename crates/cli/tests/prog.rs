//! `skep prog run`, `show` and `dump`: what they print, and what is said about wrong input.

mod common;

use common::{Skep, data, json, object, text};
use serde_json::json;

/// An object of the library's test runs.
fn runs(name: &str) -> String {
    format!("{}/../skep/tests/data/test_run/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// A packet to loopback: Ethernet, IPv4, UDP, `n` bytes.
fn packet(n: u8) -> Vec<u8> {
    let mut p = vec![0; 12];
    p.extend([
        8,
        0,
        0x45,
        0,
        0,
        28 + n,
        0,
        0,
        0,
        0,
        9,
        17,
        0xff,
        0xfe,
        10,
        0,
        0,
        1,
        10,
        0,
        0,
        2,
        0,
        1,
        0,
        2,
        0,
        0,
        0,
        0,
    ]);
    p.extend(0..n);
    p
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn file(skep: &Skep, name: &str, bytes: &[u8]) -> String {
    let path = skep.path(name);
    std::fs::write(&path, bytes).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn runs_are_one_for_each_input_on_the_same_maps() {
    let skep = Skep::new();
    let (a, b) = (file(&skep, "a", &packet(4)), file(&skep, "b", &packet(60)));
    for engine in ["jit", "interp"] {
        let args = [
            "prog",
            "run",
            &runs("xdp.bpf.o"),
            "xdp_route",
            "--data-in",
            &a,
            "--data-in",
            &b,
            "--data-in",
            &a,
        ];
        let ended = skep.run(args.iter().chain(&["--maps", "--json", "--engine", engine]));
        let mut out = json(&ended.stdout);
        assert_eq!(ended.shell_status(), 0, "{}", ended.transcript());
        for run in out["runs"].as_array_mut().unwrap() {
            assert!(run["duration_ns"].take().is_u64());
        }
        let routed = |n| {
            let mut p = packet(n);
            // One hop less, and the checksum that goes with it.
            (p[22], p[24], p[25]) = (8, 0, 0xff);
            hex(&p)
        };
        let run = |n| json!({"retval": 3, "errno": 0, "duration_ns": null, "data_out": routed(n), "ctx_out": null});
        let dropped = json!({"retval": 1, "errno": 0, "duration_ns": null, "data_out": hex(&packet(60)), "ctx_out": null});
        assert_eq!(out["runs"], json!([run(4), dropped, run(4)]));
        let maps = out["maps"].as_object().unwrap();
        assert_eq!(maps.keys().collect::<Vec<_>>(), ["verdicts", "lengths", "bytes", ".data"]);
        assert_eq!(
            (&maps["verdicts"][3], &maps[".data"]),
            (&json!({"key": 3, "value": 5}), &json!({"runs": 6}))
        );
        let mut lengths: Vec<String> = maps["lengths"]
            .as_array()
            .unwrap()
            .iter()
            .map(|e| format!("{}={}", e["key"], e["value"]))
            .collect();
        lengths.sort();
        assert_eq!(lengths, ["102=1", "46=2"]);
        let sums = maps["bytes"][1]["value"].as_array().unwrap();
        // Without /sys, as in a clean room, those that are there count.
        let cpus = skep_kernel::possible_cpus().unwrap_or_else(|_| {
            std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
        });
        assert_eq!((sums.len(), &sums[0]), (cpus, &json!(194)));
        let ended = skep.run(args.iter().chain(&["--maps", "--raw", "--json", "--engine", engine]));
        let maps = &json(&ended.stdout)["maps"];
        assert_eq!(maps["verdicts"][3], json!({"key": "03000000", "value": "0500000000000000"}));
        assert_eq!(maps["bytes"][1]["value"][0], json!("c200000000000000"));
    }
    assert!(
        std::fs::read_dir(skep.path("skep/scratch"))
            .unwrap()
            .all(|e| e.unwrap().file_name() == "lock"),
        "nothing is left behind"
    );
}

#[test]
fn people_see_packets_in_lines_and_maps_by_name() {
    let skep = Skep::new();
    let a = file(&skep, "a", &packet(4));
    let ended =
        skep.run(["prog", "run", &runs("xdp.bpf.o"), "xdp_route", "--data-in", &a, "--maps"]);
    let out = text(&ended.stdout);
    let time = out.lines().next().and_then(|l| l.rsplit("  ").next()).unwrap().to_owned();
    let want = "run 1  retval 3 (0x3)  TIME
  data, 46 bytes
    0000  0000 0000 0000 0000 0000 0000 0800 4500
    0010  0020 0000 0000 0811 00ff 0a00 0001 0a00
    0020  0002 0001 0002 0000 0000 0001 0203
map verdicts  array  4 elements
    0: 0
    1: 0
    2: 0
    3: 3
map lengths  hash  1 element
    46: 1
map bytes  percpu_array  2 elements
    0: 0
    1: 46 (cpu 0)
map .data  variables
    runs = 4
";
    assert_eq!(out.replacen(&time, "TIME", 1), want);
}

#[test]
fn a_run_that_the_kernel_would_refuse_has_its_errno() {
    let skep = Skep::new();
    let (good, short) = (file(&skep, "good", &packet(4)), file(&skep, "short", &[0; 13]));
    let ended = skep.run([
        "prog",
        "run",
        &runs("xdp.bpf.o"),
        "xdp_length",
        "--data-in",
        &short,
        "--data-in",
        &good,
        "--json",
    ]);
    let out = json(&ended.stdout);
    assert_eq!(
        (ended.shell_status(), &out["runs"][0]["errno"], &out["runs"][1]["retval"]),
        (1, &json!(22), &json!(46))
    );
    let ended = skep.run(["prog", "run", &runs("xdp.bpf.o"), "xdp_length", "--data-in", &short]);
    assert_eq!(
        (ended.shell_status(), text(&ended.stdout)),
        (1, "run 1  failed: the packet has 13 bytes, at least 14 are needed (EINVAL)\n".to_owned())
    );
}

#[test]
fn contexts_go_in_and_come_back() {
    let skep = Skep::new();
    let input = |a: u32, b: u32| {
        let mut ctx = [a.to_ne_bytes(), b.to_ne_bytes()].concat();
        ctx.resize(32, 0);
        ctx
    };
    let (a, b) = (file(&skep, "a", &input(40, 4)), file(&skep, "b", &input(1, 0)));
    let ended = skep.run([
        "prog",
        "run",
        &runs("plain.bpf.o"),
        "syscall_in_place",
        "--ctx-in",
        &a,
        "--ctx-in",
        &b,
        "--json",
    ]);
    let out = json(&ended.stdout);
    let left = |ctx: Vec<u8>, sum: u64, quotient: i64| {
        let tail = [&sum.to_ne_bytes()[..], &quotient.to_ne_bytes(), b"\0\0\0\0\0\0\0x"].concat();
        hex(&[&ctx[..8], &tail].concat())
    };
    assert_eq!(
        out["runs"][0]["ctx_out"],
        json!(left(input(40, 4), 44, 10)),
        "{}",
        ended.transcript()
    );
    assert_eq!(out["runs"][1]["ctx_out"], json!(left(input(1, 0), 1, -1)));
    assert_eq!(
        (&out["runs"][0]["data_out"], &out["runs"][0]["retval"]),
        (&json!(null), &json!(44))
    );
    // One context goes with all packets.
    let (p, md) = (
        file(&skep, "p", &packet(4)),
        file(&skep, "md", &[&[0; 4][..], &46u32.to_ne_bytes()].concat()),
    );
    let ended = skep.run([
        "prog",
        "run",
        &runs("xdp.bpf.o"),
        "xdp_length",
        "--data-in",
        &p,
        "--data-in",
        &p,
        "--ctx-in",
        &md,
        "--json",
    ]);
    let out = json(&ended.stdout);
    assert_eq!(
        (ended.shell_status(), out["runs"].as_array().unwrap().len()),
        (0, 2),
        "{}",
        ended.transcript()
    );
    assert_eq!(out["runs"][1]["ctx_out"].as_str().map(str::len), Some(48));
}

#[test]
fn wrong_input_is_one_error_with_its_status() {
    let skep = Skep::new();
    let (p, large) = (file(&skep, "p", &packet(4)), file(&skep, "large", &vec![0; (1 << 20) + 1]));
    let empty = file(&skep, "empty", b"");
    let folder = skep.path("folder");
    std::fs::create_dir(&folder).unwrap();
    let folder = folder.to_str().unwrap();
    let xdp = runs("xdp.bpf.o");
    for (args, status, words) in [
        (&[&xdp, "nosuch"][..], 1, "has no program `nosuch`"),
        (&[&xdp, "xdp"], 1, "choose one of `xdp_length`"),
        (&["/nosuch.o", "p"], 2, "cannot read `/nosuch.o`"),
        (&[folder, "p"], 2, "cannot read"),
        (&[&empty, "p"], 2, "cannot be used"),
        (&[&p, "p"], 2, "cannot be used"),
        (&[&xdp, "xdp_length", "--data-in", "/nosuch"], 2, "cannot read `/nosuch`"),
        (&[&xdp, "xdp_length", "--data-in", folder], 2, "cannot read"),
        (&[&xdp, "xdp_length", "--data-in", &large], 2, "is larger than 1.00MiB"),
        (
            &[
                &xdp,
                "xdp_length",
                "--data-in",
                &p,
                "--data-in",
                &p,
                "--ctx-in",
                &p,
                "--ctx-in",
                &p,
                "--ctx-in",
                &p,
            ],
            2,
            "2 packets and 3 contexts",
        ),
        (&[&xdp, "xdp_length", "--repeat", "often"], 2, "--repeat"),
        (&[&xdp, "xdp_length", "--engine", "llvm"], 2, "llvm"),
        (&[&xdp, "xdp_length", "--btf", &p], 2, "has no usable types"),
        (&[&data("bad.bpf.o"), "count_opens"], 1, "was rejected"),
        (&[&xdp, "xdp_length", "--set", "nosuch=1"], 2, "nosuch"),
    ] {
        let ended = skep.run(["prog", "run"].iter().chain(args));
        assert_eq!(ended.shell_status(), status, "{args:?}: {}", ended.transcript());
        let said = text(&ended.stderr);
        assert!(
            said.contains(words) && said.matches("error: ").count() == 1 && ended.stdout.is_empty(),
            "{args:?}: {}",
            ended.transcript()
        );
    }
}

#[test]
fn a_directory_that_cannot_be_used_is_named() {
    let skep = Skep::new();
    let ended = skep
        .command(["prog", "run", &runs("xdp.bpf.o"), "xdp_length"])
        .env("SKEP_DIR", "/proc/nosuch")
        .output()
        .unwrap();
    let said = text(&ended.stderr);
    assert_eq!(ended.status.code(), Some(2));
    assert!(
        said.starts_with("error: cannot create `/proc/nosuch`")
            && said.contains("hint: set SKEP_DIR to another directory"),
        "{said}"
    );
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let skep = Skep::new();
    let p = file(&skep, "p", &packet(200));
    let xdp = runs("xdp.bpf.o");
    let mut command = skep.command(["prog", "run", &xdp, "xdp_length", "--data-in", &p, "--json"]);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let ended = command.stdout(writer).stderr(std::process::Stdio::piped()).output().unwrap();
    assert_eq!((ended.status.code(), text(&ended.stderr)), (Some(0), String::new()));
}

#[test]
fn programs_are_printed_as_the_kernel_prints_them() {
    let skep = Skep::new();
    let ended = skep.run(["prog", "dump", &runs("plain.bpf.o"), "syscall_map"]);
    let want = "\
int syscall_map(struct input * in):
; __u64 key = in->a, value = in->b;
   0: (61) r2 = *(u32 *)(r1 +0)
; __u64 key = in->a, value = in->b;
   1: (7b) *(u64 *)(r10 -8) = r2
; __u64 key = in->a, value = in->b;
   2: (61) r1 = *(u32 *)(r1 +4)
; __u64 key = in->a, value = in->b;
   3: (7b) *(u64 *)(r10 -16) = r1
   4: (bf) r2 = r10
   5: (07) r2 += -8
   6: (bf) r3 = r10
   7: (07) r3 += -16
; return bpf_map_update_elem(&words, &key, &value, BPF_NOEXIST);
   8: (18) r1 = map[words]
  10: (b7) r4 = 1
  11: (85) call bpf_map_update_elem#2
; return bpf_map_update_elem(&words, &key, &value, BPF_NOEXIST);
  12: (95) exit
";
    assert_eq!(text(&ended.stdout), want, "{}", ended.transcript());
    let ended = skep.run(["prog", "dump", &runs("plain.bpf.o"), "raw_tp_mix", "--opcodes"]);
    let out = text(&ended.stdout);
    assert!(out.contains("\n   1: (85) call pc+28#mix\n       85 10 00 00 1c 00 00 00\n"), "{out}");
    assert!(
        out.contains("\n__u64 mix(__u64 x):\n")
            && out.contains("\n  33: (18) r1 = 0xff51afd7ed558ccd\n       18 01 00 00 cd 8c 55 ed 00 00 00 00 d7 af 51 ff\n")
    );
    let ended = skep.run(["prog", "dump", &object("count.bpf.o"), "--json"]);
    let all = json(&ended.stdout);
    assert_eq!(
        (&all[0]["program"], &all[0]["insns"][0]["disasm"]),
        (&json!("count"), &json!("(b4) w1 = 0"))
    );
}

#[test]
fn machine_code_stands_below_its_instruction() {
    let skep = Skep::new();
    let ended = skep.run(["prog", "dump", &runs("xdp.bpf.o"), "xdp_length", "--jit"]);
    let out = text(&ended.stdout);
    assert_eq!(ended.shell_status(), 0, "{}", ended.transcript());
    let at = |words: &str| out.find(words).unwrap_or_else(|| panic!("no `{words}` in {out}"));
    // The packet's addresses are loaded from below the context.
    assert!(
        at("0: (79) r2 = *(u64 *)(r1 -8)") < at("mov -8(%rdi),%rsi")
            && at("mov -8(%rdi),%rsi") < at("1: (79)"),
        "{out}"
    );
    assert!(out.trim_end().ends_with("ret"), "{out}");
    let ended = skep.run(["prog", "dump", &runs("xdp.bpf.o"), "xdp_length", "--jit", "--json"]);
    let code = json(&ended.stdout)["code"].clone();
    assert_eq!(
        code.as_array().unwrap().last().unwrap()["hex"],
        json!("c3"),
        "{}",
        ended.transcript()
    );
    let ended = skep.run(["prog", "dump", &data("bad.bpf.o"), "--jit"]);
    assert_eq!(ended.shell_status(), 1, "what is not safe is not compiled: {}", ended.transcript());
}

#[test]
fn an_object_is_shown_with_all_that_is_in_it() {
    let skep = Skep::new();
    let ended = skep.run(["prog", "show", &runs("xdp.bpf.o"), "--json"]);
    let out = json(&ended.stdout);
    assert_eq!(
        (ended.shell_status(), &out["license"], &out["gpl"]),
        (0, &json!("GPL"), &json!(true))
    );
    let route =
        out["programs"].as_array().unwrap().iter().find(|p| p["name"] == "xdp_route").unwrap();
    assert_eq!(
        (&route["type"], &route["attach_type"], &route["autoload"]),
        (&json!("xdp"), &json!("xdp"), &json!(true))
    );
    assert_eq!(route["relocations"][0], json!({"insn": 20, "kind": "map", "what": "verdicts"}));
    let names: Vec<&str> =
        out["maps"].as_array().unwrap().iter().filter_map(|m| m["name"].as_str()).collect();
    assert_eq!(names, ["verdicts", "lengths", "bytes", ".data", ".rodata"]);
    let ended = skep.run(["prog", "show", &runs("plain.bpf.o")]);
    let out = text(&ended.stdout);
    assert!(
        out.contains("program raw_tp_mix  raw_tp/whatever  raw_tracepoint  40 insns\n    functions    mix\n       1: call    mix\n"),
        "{out}"
    );
    assert_eq!(skep.run(["prog", "show", "/nosuch.o"]).shell_status(), 2);
}

#[test]
fn what_a_program_prints_is_shown() {
    let skep = Skep::new();
    let words = file(&skep, "words", &[5u64.to_ne_bytes(), 0xabcdu64.to_ne_bytes()].concat());
    let args = [
        "prog",
        "run",
        &runs("plain.bpf.o"),
        "raw_tp_print",
        "--ctx-in",
        &words,
        "--ctx-in",
        &words,
    ];
    let out = json(&skep.run(args.iter().chain(&["--json"])).stdout);
    assert_eq!(out["printed"], json!(["5 and abcd", "5 and abcd"]));
    assert!(text(&skep.run(args).stdout).ends_with("\nprinted  5 and abcd\nprinted  5 and abcd\n"));
}

#[test]
fn a_run_that_is_ended_leaves_nothing_behind() {
    let skep = Skep::new();
    let p = file(&skep, "p", &packet(200));
    // Runs for minutes once it runs; what it does then needs no file.
    let args =
        ["prog", "run", &runs("xdp.bpf.o"), "xdp_route", "--data-in", &p, "--repeat", "4000000000"];
    let child = skep.start(args);
    let scratch = skep.path("skep/scratch");
    let pid = child.id();
    // The maps are in use and their files gone when the run begins.
    let begun = || {
        std::fs::read_to_string(format!("/proc/{pid}/maps"))
            .is_ok_and(|m| m.contains("/maps/") && m.contains("(deleted)"))
    };
    while !begun() || std::fs::read_dir(&scratch).unwrap().count() > 1 {
        std::thread::yield_now();
    }
    drop(child);
    assert!(std::fs::read_dir(&scratch).unwrap().all(|e| e.unwrap().file_name() == "lock"));
}

#[test]
fn tail_calls_lead_on_in_a_traced_process() {
    let skep = Skep::new();
    let ended = skep.run(["run", "--json", &data("tail.bpf.o"), "--", common::target()]);
    let report = ended
        .stdout
        .split(|b| *b == b'\n')
        .filter_map(|l| serde_json::from_slice::<serde_json::Value>(l).ok())
        .next_back();
    let report = report.unwrap_or_else(|| panic!("{}", ended.transcript()));
    let maps = report["maps"].as_array().unwrap_or_else(|| panic!("{report}"));
    let counts =
        maps.iter().find(|m| m["map"]["name"] == "counts").unwrap_or_else(|| panic!("{report}"));
    let values: Vec<u64> =
        counts["entries"].as_array().unwrap().iter().filter_map(|e| e["value"].as_u64()).collect();
    // Half of the calls of `leaf` go on, the others count; calls of `twice` are hooked as well.
    let leaves = common::LEAVES;
    assert_eq!(values, [leaves, leaves / 2, leaves / 2 + 1000], "{report}");
}

#[test]
fn records_are_shown_and_a_filter_has_no_contents() {
    let skep = Skep::new();
    let input = skep.path("packet");
    std::fs::write(&input, [0; 64]).unwrap();
    let ended = skep.run([
        "prog",
        "run",
        &data("kinds.bpf.o"),
        "kinds",
        "--maps",
        "--json",
        "--data-in",
        input.to_str().unwrap(),
    ]);
    let report: serde_json::Value =
        serde_json::from_slice(&ended.stdout).unwrap_or_else(|_| panic!("{}", ended.transcript()));
    assert_eq!(report["runs"][0]["retval"], 3, "{report}");
    assert_eq!(report["maps"]["samples"][0]["record"], "40000000", "{report}");
    assert_eq!(
        (&report["maps"]["ring"], &report["maps"]["filter"]),
        (&serde_json::json!([{"record": "40000000"}]), &serde_json::Value::Null)
    );
    assert_eq!(report["maps"]["seen"], serde_json::json!([{"key": 64, "value": 64}]));
    // Without `--maps` nobody reads the samples: as in the kernel, there is no event to write to.
    let ended = skep.run([
        "prog",
        "run",
        &data("kinds.bpf.o"),
        "kinds",
        "--json",
        "--data-in",
        input.to_str().unwrap(),
    ]);
    let report: serde_json::Value =
        serde_json::from_slice(&ended.stdout).unwrap_or_else(|_| panic!("{}", ended.transcript()));
    assert_eq!(report["runs"][0]["retval"], 2, "{report}");
}
