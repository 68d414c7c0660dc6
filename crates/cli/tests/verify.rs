//! `skep prog verify`: both of its answers, as text, as JSON and as exit status, and what is said
//! about wrong input.

mod common;

use common::{LEAVES, Skep, data, json, target, text};
use serde_json::{Value as Json, json};

/// An object of another crate's tests.
fn beside(path: &str) -> String {
    format!("{}/../{path}", env!("CARGO_MANIFEST_DIR"))
}

fn kernel_only() -> String {
    beside("skep/tests/data/dry_run/kernel_only.bpf.o")
}

fn verdicts(skep: &Skep, args: &[&str]) -> (i32, Vec<Json>) {
    let ended = skep.run(["prog", "verify", "--json"].iter().chain(args));
    let Json::Array(verdicts) = json(&ended.stdout) else { panic!("{}", ended.transcript()) };
    (ended.shell_status(), verdicts)
}

#[test]
fn what_is_accepted_may_not_run_and_says_why() {
    let skep = Skep::new();
    let (status, verdicts) = verdicts(&skep, &[&kernel_only()]);
    let answers: Vec<_> = verdicts
        .iter()
        .map(|v| {
            (
                v["program"].as_str().unwrap(),
                v["verdict"].as_str().unwrap(),
                v["runs"].as_bool().unwrap(),
            )
        })
        .collect();
    let want = [
        ("wants_class", "accept", false),
        ("wants_timer", "accept", false),
        ("wants_sockets", "accept", false),
        ("wants_what_follows", "accept", false),
        ("runs_with_what_follows", "accept", true),
        ("runs_alone", "accept", true),
        ("wants_cpumask", "reject", false),
        ("wants_padding", "accept", false),
        ("wants_no_test", "accept", false),
        ("wants_a_type", "reject", false),
        ("runs_on_given_registers", "accept", true),
    ];
    assert_eq!(answers, want);
    assert_eq!(status, 1, "two are rejected");
    for v in &verdicts {
        assert_eq!(v["runs"].as_bool(), Some(v["why"].is_null()), "{v}");
        assert_eq!(v["verdict"] == json!("accept"), v["error"].is_null(), "{v}");
        let object = v.as_object().unwrap();
        let keys =
            ["object", "program", "section", "type", "verdict", "error", "insns", "runs", "why"];
        assert!(keys.iter().all(|k| object.contains_key(*k)) && object.len() == keys.len(), "{v}");
    }
    let why = |n: usize| verdicts[n]["why"].as_str().unwrap();
    assert!(
        why(1).contains("helper bpf_timer_init#169 cannot be called outside the kernel"),
        "{}",
        why(1)
    );
    assert!(
        why(7).contains(
            "invalid read from stack R2 off -16+9 size 16: bytes 9..16 of 16 were never written"
        ),
        "{}",
        why(7)
    );
}

/// What `prog run` does is what was said that it would do.
#[test]
fn the_answer_is_what_running_says() {
    let skep = Skep::new();
    for object in [
        kernel_only(),
        beside("skep/tests/data/dry_run/no_map.bpf.o"),
        beside("verifier/tests/data/refused.bpf.o"),
    ] {
        for v in verdicts(&skep, &[&object]).1 {
            let ended =
                skep.run(["prog", "run", &object, v["program"].as_str().unwrap(), "--json"]);
            let said = text(&ended.stderr);
            match v["why"].as_str() {
                Some(why) => assert!(
                    said.contains(why) && ended.shell_status() != 0,
                    "{v}\n{}",
                    ended.transcript()
                ),
                // The kernel has no test run for some types; that is said of a run, which there
                // was.
                None => assert!(
                    json(&ended.stdout)["runs"][0]["errno"].is_i64(),
                    "{v}\n{}",
                    ended.transcript()
                ),
            }
        }
    }
}

#[test]
fn people_read_the_reason_below_the_program() {
    let skep = Skep::new();
    let object = kernel_only();
    let ended = skep.run(["prog", "verify", &object]);
    let out = text(&ended.stdout).replace(&object, "OBJECT");
    let of = |name: &str| {
        let from = out
            .find(&format!("OBJECT: {name} "))
            .map(|at| out[..at].rfind('\n').map_or(0, |n| n + 1))
            .expect("a program");
        let end = out[from + 1..]
            .find("\naccept ")
            .into_iter()
            .chain(out[from + 1..].find("\nreject "))
            .min();
        out[from..].get(..end.map_or(out.len() - from, |e| e + 1)).unwrap().trim_end().to_owned()
    };
    assert_eq!(
        of("wants_class"),
        "accept  OBJECT: wants_class (tc, 2 insns)
        cannot run in skep: program `wants_class` was rejected: helper bpf_get_cgroup_classid#17 cannot be called outside the kernel: \
it works on control groups of the kernel at insn 0 (kernel_only.bpf.c:58)
        ; kernel_only.bpf.c:58: return bpf_get_cgroup_classid(skb);
           0: call bpf_get_cgroup_classid#17           R1=ctx()"
    );
    assert_eq!(of("runs_alone"), "accept  OBJECT: runs_alone (tc, 2 insns)");
    assert_eq!(
        of("wants_a_type"),
        "reject  OBJECT: wants_a_type (mystery/section, 0 insns)
        program `wants_a_type`: section `mystery/section` is of no known program type
        hint: set the type of such programs with `--type TYPE`, such as `xdp` or `kprobe`"
    );
}

#[test]
fn the_exit_status_answers_the_question_that_was_asked() {
    let skep = Skep::new();
    let (timers, fine) = (beside("skep/tests/data/dry_run/no_map.bpf.o"), data("filter.bpf.o"));
    for (args, status) in [
        (vec!["prog", "verify", &timers], 0),
        (vec!["prog", "verify", "--to-run", &timers], 1),
        (vec!["prog", "verify", "--to-run", "--json", &timers], 1),
        (vec!["prog", "verify", "--to-run", &fine], 0),
        (vec!["prog", "verify", "--to-run", &fine, &timers], 1),
    ] {
        let ended = skep.run(&args);
        assert_eq!(ended.shell_status(), status, "{}", ended.transcript());
    }
}

/// The log of a program that is refused here alone ends with the refusal.
#[test]
fn the_log_is_that_of_the_question_that_was_asked() {
    let skep = Skep::new();
    let object = beside("verifier/tests/data/refused.bpf.o");
    let log = |args: &[&str]| {
        let (_, verdicts) = verdicts(&skep, &[args, &["--log", &object]].concat());
        let of = verdicts.iter().find(|v| v["program"] == "forgets_padding").expect("a program");
        of["log"].as_str().unwrap().to_owned()
    };
    assert!(!log(&[]).contains("invalid read from stack"), "it is accepted");
    let log = log(&["--to-run"]);
    assert!(log.contains("invalid read from stack R2 off -16+9 size 16\nprocessed "), "{log}");
}

#[test]
fn a_type_stands_in_for_a_section_that_says_nothing() {
    let skep = Skep::new();
    let object = kernel_only();
    let before = verdicts(&skep, &[&object]).1;
    let (_, after) = verdicts(&skep, &["--type", "xdp", &object]);
    for (was, is) in before.iter().zip(&after) {
        if is["program"] == "wants_a_type" {
            let got = (&is["type"], &is["section"], &is["verdict"], &is["runs"], &is["insns"]);
            assert_eq!(
                got,
                (
                    &json!("xdp"),
                    &json!("mystery/section"),
                    &json!("accept"),
                    &json!(true),
                    &json!(2)
                )
            );
            assert_eq!((&was["type"], &was["verdict"]), (&json!(null), &json!("reject")), "{was}");
        } else {
            assert_eq!(was, is, "what has a type keeps it");
        }
    }
    let ended = skep.run(["prog", "run", "--type", "kprobe", &object, "wants_a_type", "--json"]);
    assert_eq!(
        (ended.shell_status(), &json(&ended.stdout)["runs"][0]["errno"]),
        (0, &json!(0)),
        "{}",
        ended.transcript()
    );
    // One program by its name, whatever its section; a program type instead of a section's name; a
    // target behind it.
    let kind = |of: &str, name: &str| {
        let (_, verdicts) = verdicts(&skep, &["--type", of, &object]);
        verdicts.iter().find(|v| v["program"] == name).expect("a program")["type"].clone()
    };
    assert_eq!(kind("runs_alone=xdp", "runs_alone"), "xdp");
    assert_eq!(kind("runs_alone=xdp", "runs_with_what_follows"), "sched_cls");
    assert_eq!(kind("sched_cls", "wants_a_type"), "sched_cls");
    assert_eq!(kind("fentry/vfs_read", "wants_a_type"), "tracing");
    // Where every section says something, all programs are meant.
    let (_, all) =
        verdicts(&skep, &["--type", "tc", &beside("skep/tests/data/dry_run/no_map.bpf.o")]);
    assert_eq!(all[0]["type"], "sched_cls");
}

/// A type says where the program attaches, too: what runs in the target goes by it, not by the
/// section.
#[test]
fn a_type_attaches_where_its_section_would() {
    let skep = Skep::new();
    let object = data("unnamed.bpf.o");
    let ended = skep.run(["run", &object, "--", target(), "3"]);
    assert_eq!(ended.shell_status(), 1, "{}", ended.transcript());
    assert!(
        text(&ended.stderr).contains("set the type of such programs with `--type TYPE`"),
        "{}",
        ended.transcript()
    );
    for kind in ["uprobe/target:leaf", "uretprobe/target:leaf", "fentry/target:leaf"] {
        let ended = skep.run(["run", "--type", kind, &object, "--json", "--", target(), "3"]);
        let report = json(&ended.stdout);
        assert_eq!(ended.shell_status(), 3, "{kind}: {}", ended.transcript());
        assert_eq!(
            report["maps"][0]["entries"],
            json!([{"key": 0, "value": {"calls": LEAVES}}]),
            "{kind}"
        );
    }
    // Without a place in the type, `--attach` says it.
    let ended = skep.run([
        "run",
        "--type",
        "uprobe",
        "--attach",
        "count=target:leaf",
        &object,
        "--json",
        "--",
        target(),
        "3",
    ]);
    assert_eq!(
        json(&ended.stdout)["maps"][0]["entries"],
        json!([{"key": 0, "value": {"calls": LEAVES}}]),
        "{}",
        ended.transcript()
    );
}

#[test]
fn wrong_types_are_answered() {
    let skep = Skep::new();
    for (given, said) in [
        ("nonsense", "`nonsense` is not a program type"),
        ("kprobes/vfs_read", "did you mean `kprobe`?"),
        ("tracing", "use one of `tp_btf`, `fentry`"),
        ("nobody=xdp", "there is no program `nobody`"),
        ("=xdp", "expected TYPE or PROGRAM=TYPE"),
        ("wants_a_type=", "expected TYPE or PROGRAM=TYPE"),
    ] {
        let ended = skep.run(["prog", "verify", "--type", given, &kernel_only()]);
        assert_eq!(
            (ended.shell_status(), text(&ended.stdout).as_str()),
            (2, ""),
            "{}",
            ended.transcript()
        );
        assert!(text(&ended.stderr).contains(said), "{}", ended.transcript());
    }
}

#[test]
fn what_is_no_object_and_what_holds_nothing_is_said() {
    let skep = Skep::new();
    let bitcode = skep.path("lto.bpf.o");
    std::fs::write(&bitcode, b"BC\xc0\xde5\x14\0\0").unwrap();
    let bitcode = bitcode.to_str().unwrap().to_owned();
    for (path, said) in [
        (skep.path("missing").to_str().unwrap().to_owned(), "No such file or directory"),
        (beside("cli/tests"), "Is a directory"),
        (beside("cli/Cargo.toml"), "not an ELF file"),
        (bitcode, "hint: it is LLVM bitcode: compile without `-flto`"),
        // Once read until there was no memory left.
        ("/dev/zero".to_owned(), "it is no regular file, and does not end within 64.0MiB"),
    ] {
        let ended = skep.run(["prog", "verify", &path]);
        assert_eq!(ended.shell_status(), 2, "{}", ended.transcript());
        assert!(text(&ended.stderr).contains(said), "{}", ended.transcript());
    }
    let empty = beside("verifier/tests/data/types.bpf.o");
    for (args, status) in [
        (vec!["prog", "verify", "--json", &empty], 0),
        (vec!["prog", "verify", "--json", "--to-run", &empty], 1),
    ] {
        let ended = skep.run(&args);
        assert_eq!(
            (ended.shell_status(), json(&ended.stdout)),
            (status, json!([])),
            "{}",
            ended.transcript()
        );
        assert!(
            text(&ended.stderr).contains("types.bpf.o` has no programs"),
            "{}",
            ended.transcript()
        );
    }
}
