//! The subcommands that only look: `prog`, `map`, `vma`, `doctor`.

mod common;

use common::{Skep, data, json, object, text};
use serde_json::json;
use skep_testkit::skip;
use skep_testkit::skip::has_command;

#[test]
fn verdicts_are_one_line_each_and_the_status_tells_of_rejections() {
    let skep = Skep::new();
    let (good, bad) = (object("count.bpf.o"), data("bad.bpf.o"));
    let ended = skep.run(["prog", "verify", &good]);
    assert_eq!(
        (ended.shell_status(), text(&ended.stdout)),
        (0, format!("accept  {good}: count (fentry.multi, 13 insns)\n"))
    );

    let ended = skep.run(["prog", "verify", "--json", &good, &bad]);
    assert_eq!(ended.shell_status(), 1);
    assert_eq!(
        json(&ended.stdout),
        json!([
            {"object": good, "program": "count", "section": "fentry.multi", "type": "tracing", "verdict": "accept", "error": null, "insns": 13,
             "runs": true, "why": null},
            {"object": bad, "program": "count_opens", "section": "fentry.multi/open", "type": "tracing", "verdict": "reject",
             "error": "program `count_opens` was rejected: R0 invalid mem access 'map_value_or_null' at insn 7 (bad.bpf.c:17)", "insns": 12,
             "runs": false,
             "why": "program `count_opens` was rejected: R0 invalid mem access 'map_value_or_null' at insn 7 (bad.bpf.c:17)"},
        ])
    );
    // The way to the fault: what made the value, and what was done to it, with source lines; then
    // what to do about it.
    let out = text(&skep.run(["prog", "verify", &bad]).stdout);
    let lines: Vec<&str> = out.lines().map(str::trim_start).collect();
    let starts = [
        "reject  ",
        "program `count_opens` was rejected: R0 invalid mem access 'map_value_or_null' at insn 7 (bad.bpf.c:17)",
        "; bad.bpf.c:15: __u64 *n = bpf_map_lookup_elem(&opens, &key);",
        "6: call bpf_map_lookup_elem#1 ",
        "; bad.bpf.c:17: ++*n;",
        "7: r1 = *(u64 *)(r0 +0) ",
        "hint: test the pointer against NULL",
    ];
    assert!(
        lines.len() == starts.len() && lines.iter().zip(starts).all(|(l, s)| l.starts_with(s)),
        "{out}"
    );
    let ended = skep.run(["prog", "verify", "--log", &bad]);
    let out = text(&ended.stdout);
    assert!(
        out.contains("; bad.bpf.c:17: ++*n;")
            && out.contains("R0=map_value_or_null")
            && out.contains("processed "),
        "{out}"
    );
    assert_eq!(skep.run(["prog", "verify", &data("target.c")]).shell_status(), 2);
}

#[test]
fn the_log_has_every_step_also_of_what_is_accepted() {
    let skep = Skep::new();
    let good = object("count.bpf.o");
    let ended = skep.run(["prog", "verify", "--log", &good]);
    let out = text(&ended.stdout);
    assert!(
        out.starts_with("func#0 @0\nLive regs before insn:\n      0: .......... (b4) w1 = 0\n"),
        "{out}"
    );
    assert!(
        out.contains("\n0: R1=ctx() R10=fp0\n; ")
            && out.contains("\n0: (b4) w1 = 0                        ; R1=0\n"),
        "{out}"
    );
    assert!(
        out.ends_with(&format!(" mark_read 0\naccept  {good}: count (fentry.multi, 13 insns)\n")),
        "{out}"
    );
    // As JSON it is the same text.
    let all = json(&skep.run(["prog", "verify", "--log", "--json", &good]).stdout);
    let log = all[0]["log"].as_str().expect("a log");
    assert_eq!(
        (format!("{log}accept  {good}: count (fentry.multi, 13 insns)\n"), &all[0]["log_cut"]),
        (out, &json!(0))
    );
}

#[test]
fn every_object_of_ours_is_accepted() {
    let skep = Skep::new();
    let ended = skep.run([
        "prog",
        "verify",
        &object("trace.bpf.o"),
        &object("count.bpf.o"),
        &object("args.bpf.o"),
        &data("typed.bpf.o"),
    ]);
    assert_eq!(ended.shell_status(), 0, "{}", ended.transcript());
}

#[test]
fn instructions_are_assembled_and_printed() {
    let skep = Skep::new();
    let ended = skep.run_with(["prog", "asm", "-"], b"mov %r0, 7 # seven\nexit\n");
    assert_eq!(
        (ended.shell_status(), text(&ended.stdout)),
        (0, "b700000007000000\n9500000000000000\n".to_owned())
    );
    let ended = skep.run_with(["prog", "asm", "-"], b"mov %r0, 7\nfly %r1\n");
    assert_eq!(ended.shell_status(), 1, "{}", ended.transcript());

    let ended = skep.run(["prog", "dump", &object("count.bpf.o")]);
    assert!(
        text(&ended.stdout).lines().any(|l| l == "   0: (b4) w1 = 0"),
        "{}",
        ended.transcript()
    );
    let ended = skep.run(["prog", "dump", "--hex", &object("count.bpf.o"), "count"]);
    let lines = text(&ended.stdout);
    assert_eq!((lines.lines().count(), lines.lines().last()), (13, Some("9500000000000000")));
    assert_eq!(skep.run(["prog", "dump", &object("count.bpf.o"), "other"]).shell_status(), 1);
    assert_eq!(skep.run(["prog", "show", "77"]).shell_status(), 2, "there is no directory yet");
}

fn make_map(skep: &Skep) {
    let sizes = ["--key-size", "4", "--value-size", "8", "--entries", "3"];
    let made = skep.run(["map", "create", "counts", "--type", "percpu_array"].iter().chain(&sizes));
    assert_eq!(made.shell_status(), 0, "{}", made.transcript());
}

#[test]
fn a_map_that_is_not_there_is_not_found() {
    let skep = Skep::new();
    assert_eq!(skep.run(["map", "list"]).shell_status(), 2, "there is no directory yet");
    make_map(&skep);
    for args in [["map", "dump", "nosuch"], ["map", "show", "4711"]] {
        let ended = skep.run(args);
        assert_eq!(ended.shell_status(), 1, "{}", ended.transcript());
        assert!(text(&ended.stderr).contains("there is no map"), "{}", ended.transcript());
    }
    let list = text(&skep.run(["map", "list"]).stdout);
    assert!(list.contains("  counts           percpu_array"), "{list}");
}

#[test]
fn a_damaged_map_is_told_of_and_the_others_are_listed() {
    let skep = Skep::new();
    make_map(&skep);
    std::fs::write(skep.path("skep/maps/99"), "rubbish").unwrap();
    let ended = skep.run(["map", "list"]);
    assert_eq!(ended.shell_status(), 0);
    assert!(
        text(&ended.stdout).contains("counts")
            && text(&ended.stderr).contains("warning: map 99 cannot be read"),
        "{}",
        ended.transcript()
    );
    assert_eq!(skep.run(["map", "dump", "99"]).shell_status(), 2);
}

#[test]
fn an_address_is_found_in_a_process() {
    let skep = Skep::new();
    let pid = std::process::id().to_string();
    let here = an_address_is_found_in_a_process as *const () as u64;
    let ended = skep.run(["vma", "query", &pid, &format!("{here:x}"), "--json"]);
    let found = json(&ended.stdout);
    let exe = std::env::current_exe().unwrap();
    assert_eq!((ended.shell_status(), found[0]["vma"]["name"].as_str()), (0, exe.to_str()));
    assert!(
        found[0]["symbol"]["name"].as_str().unwrap().contains("an_address_is_found_in_a_process"),
        "{found}"
    );
    assert_eq!(skep.run(["vma", "query", &pid, "0"]).shell_status(), 1);
    assert_eq!(skep.run(["vma", "query", &pid, "here"]).shell_status(), 2);
    let list = text(&skep.run(["vma", "list", &pid, "--text"]).stdout);
    assert!(
        list.lines().all(|l| l.contains(" r-x")) && list.contains(exe.to_str().unwrap()),
        "{list}"
    );
    assert_eq!(skep.run(["vma", "list", "4194999"]).shell_status(), 1);
}

#[test]
fn the_doctor_finds_that_tracing_works_here() {
    let skep = Skep::new();
    let ended = skep.run(["doctor", "--json"]);
    assert_eq!(ended.shell_status(), 0, "{}", ended.transcript());
    let findings = json(&ended.stdout);
    let of =
        |check: &str| findings.as_array().unwrap().iter().find(|f| f["check"] == check).unwrap();
    for check in ["trace", "attach"] {
        assert_eq!(of(check)["status"], "ok", "{}", of(check));
    }
    let compiler = of("compiler");
    assert!(
        match has_command("clang") {
            true => compiler["detail"] == "`clang` compiles for BPF",
            false => compiler["detail"].as_str().unwrap().contains("`apt install clang libbpf-dev"),
        },
        "{compiler}"
    );
    // With the library's symbols or without: it says which, and where they are or how to get them.
    let symbols = of("symbols");
    let said = symbols["detail"].as_str().unwrap();
    assert!(
        match symbols["status"].as_str() {
            Some("ok") => said.contains("C library"),
            _ => said.contains("`sub_`") && said.contains("`apt install libc6-dbg` (Debian)"),
        },
        "{symbols}"
    );
}

/// The dynamic linker only warns of a file that is no library; nothing was traced then, and all was well.
#[test]
fn the_doctor_tells_an_agent_from_another_file() {
    let skep = Skep::new();
    let mut command = skep.command(["doctor", "--json"]);
    let ended = command.env("SKEP_PRELOAD", "/etc/passwd").output().unwrap();
    let findings = json(&ended.stdout);
    let agent = findings.as_array().unwrap().iter().find(|f| f["check"] == "agent").unwrap();
    assert_eq!((ended.status.code(), &agent["status"]), (Some(1), &json!("fail")), "{agent}");
    let why = agent["detail"].as_str().unwrap();
    assert!(why.starts_with("`/etc/passwd` is not the agent's library; "), "{why}");
}

#[test]
fn help_names_no_command_that_does_nothing() {
    let skep = Skep::new();
    let help = text(&skep.run(["--help"]).stdout);
    let names =
        help.lines().skip_while(|l| *l != "Commands:").skip(1).take_while(|l| !l.is_empty());
    // What is told of a command may go on in a second line, which begins further to the right.
    let names = names.filter_map(|l| l.strip_prefix("  ")).filter(|l| !l.starts_with(' '));
    let names: Vec<&str> = names.filter_map(|l| l.split_whitespace().next()).collect();
    assert_eq!(
        names,
        [
            "trace",
            "report",
            "run",
            "prog",
            "map",
            "chain",
            "vma",
            "symbolize",
            "addr2line",
            "test",
            "export",
            "doctor",
            "completions",
            "help"
        ]
    );
    let help = |args: &[&str]| text(&skep.run(args).stdout);
    assert_eq!(help(&["help", "map", "dump"]), help(&["map", "dump", "--help"]));
}

#[test]
fn shells_complete_commands_and_options() {
    let skep = Skep::new();
    let script = |shell: &str| {
        let path = skep.path(&format!("completions.{shell}"));
        std::fs::write(&path, skep.run(["completions", shell]).stdout).unwrap();
        path
    };
    let bash = "source \"$1\"; complete -p skep > /dev/null || exit 1
        for words in 'ma' 'map du' 'trace --exa' 'chain attach --ker' 'completions fi'; do
            COMP_WORDS=(skep $words); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMPREPLY=()
            _skep skep \"${COMP_WORDS[$COMP_CWORD]}\" \"${COMP_WORDS[$COMP_CWORD - 1]}\"
            echo \"${COMPREPLY[@]}\"
        done";
    let run = |program: &str, args: &[&std::ffi::OsStr]| {
        std::process::Command::new(program).args(args).output().ok()
    };
    let path = script("bash");
    match run("bash", &["-c".as_ref(), bash.as_ref(), "bash".as_ref(), path.as_os_str()]) {
        Some(done) => assert_eq!(
            text(&done.stdout),
            "map\ndump\n--exact\n--kernel\nfish\n",
            "{}",
            text(&done.stderr)
        ),
        None => skip("bash"),
    }
    for shell in ["zsh", "fish"] {
        let path = script(shell);
        assert!(std::fs::read_to_string(&path).unwrap().contains("lookup"), "{shell}");
        match run(shell, &["-n".as_ref(), path.as_os_str()]) {
            Some(done) => assert!(done.status.success(), "{shell}: {}", text(&done.stderr)),
            None => skip(shell),
        }
    }
}
