//! Commands that nothing can be preloaded into (static ones, those of another C library): they are
//! followed from their first instruction on, and traced with what they make and execute.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use common::live::{LIMIT, state_of};
use common::{LEAVES, Skep, calls, data, fails, json, object, static_target, text};
use rustix::process::Signal;
use serde_json::Value as Json;
use skep_testkit::TempDir;
use skep_testkit::cc::Cc;
use skep_testkit::program;
use skep_testkit::run::{children, run, signal, signal_group};
use skep_testkit::skip::{has_command, is_root};

fn build(dir: &TempDir, file: &str, name: &str, cc: Cc, flags: &[&str]) -> PathBuf {
    let cc = cc.args(&["-O1", "-g", "-pthread"]).args(flags);
    cc.compile(&[data(file).as_ref()], &dir.join(name))
}

/// A command's report; it must end with 0 and print `output`.
fn trace(skep: &Skep, pattern: &str, command: &[&str], output: &str) -> Json {
    let report = skep.path("report.json");
    let to = report.to_str().expect("text");
    let ended = skep.run([&["trace", pattern, "--json", "-o", to, "--"], command].concat());
    assert_eq!(
        (ended.shell_status(), &*text(&ended.stdout)),
        (0, output),
        "{command:?}: {}",
        ended.transcript()
    );
    json(&fs::read(report).expect("it was written"))
}

#[test]
fn static_programs_and_those_of_another_c_library() {
    let (skep, dir) = (Skep::new(), TempDir::new());
    let mut kinds = vec![
        build(&dir, "leaf.c", "static", Cc::c(), &["-static"]),
        build(&dir, "leaf.c", "static-pie", Cc::c(), &["-static-pie"]),
    ];
    if has_command("musl-gcc") {
        kinds.push(build(&dir, "leaf.c", "musl", Cc::named("musl-gcc"), &[]));
        kinds.push(build(&dir, "leaf.c", "musl-static", Cc::named("musl-gcc"), &["-static"]));
    }
    for (n, program) in kinds.iter().enumerate() {
        let times = 1000 * (n as u64 + 1);
        let text = times.to_string();
        let command = [program.to_str().expect("text"), &text];
        let report = trace(&skep, "work", &command, &format!("{text}\n"));
        assert_eq!(calls(&report, "work"), Some(times), "{report}");
        assert_eq!(
            (&report["missed"], &report["status"], report["not_traced"].as_array().map(Vec::len)),
            (&0.into(), &0.into(), Some(0)),
            "{report}"
        );
        // The same by a script.
        let script = dir.join("script");
        program::script(&script, &format!("#!{}\n", program.display()));
        // The program takes its own name for the number.
        let report = trace(&skep, "work", &[script.to_str().expect("text")], "0\n");
        assert_eq!(calls(&report, "work"), None, "{report}");
        assert_eq!(report["sites"]["attached"], 1, "{report}");
    }
}

/// As for programs with libraries: nothing has run when a name is wrong.
#[test]
fn a_typo_is_answered_before_a_static_program_starts() {
    let skep = Skep::new();
    for (pattern, want) in [
        ("leef", "hint: similar names are `leaf`"),
        ("libc.so.6:malloc", "is not linked with `libc.so.6`"),
    ] {
        let ended = skep.run(["trace", pattern, "--", static_target()]);
        let err = text(&ended.stderr);
        assert!(ended.shell_status() == 2 && ended.stdout.is_empty(), "{}", ended.transcript());
        assert!(err.contains(want) && err.contains("use `--allow-unmatched` if"), "{err}");
    }
}

/// Calls by all processes are in the report, and the exit status is the command's.
#[test]
fn the_status_is_the_commands() {
    let skep = Skep::new();
    let target = static_target();
    for (arguments, status) in [(vec![], 0), (vec!["9"], 9), (vec!["crash"], 139)] {
        let report = skep.path("report.json");
        let to = report.to_str().expect("text");
        let command = ["trace", "leaf", "twice", "--json", "-o", to, "--", target];
        let ended = skep.run([&command[..], &arguments].concat());
        assert_eq!(ended.shell_status(), status, "{arguments:?}: {}", ended.transcript());
        let report = json(&fs::read(report).expect("it was written"));
        assert_eq!(
            (calls(&report, "leaf"), calls(&report, "twice"), &report["status"]),
            (Some(2000), Some(1000), &status.into()),
            "{arguments:?}: {report}"
        );
    }
}

#[test]
fn what_a_static_program_makes_and_executes() {
    let (skep, dir) = (Skep::new(), TempDir::new());
    let spawner = build(&dir, "spawns.c", "spawns", Cc::c(), &["-static"]);
    let dynamic = build(&dir, "leaf.c", "dynamic", Cc::c(), &[]);
    let fixed = build(&dir, "leaf.c", "fixed", Cc::c(), &["-static"]);
    for program in [dynamic, fixed] {
        let report = skep.path("report.json");
        let to = report.to_str().expect("text");
        let [spawner, leaf] = [&spawner, &program].map(|p| p.to_str().expect("text"));
        let command = ["trace", "work", "--json", "-o", to, "--", spawner, leaf];
        let ended = skep.run_with(command, b"spawn 20\nthread 40\ndaemon 50\nforks 30\n");
        // The spawner ends with 7.
        let said = "ready\n20\ndone\n40\ndone\n50\ndone\ndone\n";
        assert_eq!(
            (ended.shell_status(), &*text(&ended.stdout)),
            (7, said),
            "{}",
            ended.transcript()
        );
        let report = json(&fs::read(report).expect("it was written"));
        let of = |module: &str| -> u64 {
            let rows = report["functions"].as_array().expect("a list").iter();
            let rows = rows.filter(|row| row["name"] == "work" && row["module"] == module);
            rows.map(|row| row["calls"].as_u64().expect("a number")).sum()
        };
        let name = program.file_name().expect("a name").to_str().expect("text");
        assert_eq!((of("spawns"), of(name)), (90, 110), "{report}");
    }
}

#[test]
fn programs_of_go() {
    if !has_command("go") {
        return skep_testkit::skip("go");
    }
    let (skep, dir) = (Skep::new(), TempDir::new());
    let source = dir.join("main.go");
    let text = r#"package main
import ("fmt"; "sync")
//go:noinline
func work(n int) int { return n*3 + 1 }
func main() {
    var all sync.WaitGroup
    for g := 0; g < 8; g++ {
        all.Add(1)
        go func() { defer all.Done(); for i := 0; i < 5000; i++ { if work(i) != i*3+1 { panic(i) } } }()
    }
    all.Wait()
    fmt.Println("all")
}
"#;
    fs::write(&source, text).expect("it is written");
    let program = dir.join("program");
    let mut go = Command::new("go");
    go.args(["build", "-o"]).arg(&program).arg(&source).env("CGO_ENABLED", "0");
    go.env("GO111MODULE", "off");
    let built = run(&mut go, b"", LIMIT);
    assert_eq!(built.shell_status(), 0, "{}", built.transcript());
    let report = trace(&skep, "main.work", &[program.to_str().expect("text")], "all\n");
    assert_eq!(calls(&report, "main.work"), Some(40_000), "{report}");
}

#[test]
fn programs_of_objects_run_in_static_commands() {
    let skep = Skep::new();
    let command =
        ["run", &object("count.bpf.o"), "--json", "--attach", "count=leaf", "--", static_target()];
    let ended = skep.run(command);
    assert_eq!(ended.shell_status(), 0, "{}", ended.transcript());
    let report = json(&ended.stdout);
    let values = report["maps"][0]["entries"][0]["value"].as_array().expect("one of each CPU");
    assert_eq!(values.iter().filter_map(Json::as_u64).sum::<u64>(), LEAVES, "{report}");
}

/// What cannot be executed is said, although its name was found.
#[test]
fn commands_that_cannot_be_executed() {
    let (skep, dir) = (Skep::new(), TempDir::new());
    let busy = dir.join("busy");
    fs::copy(static_target(), &busy).expect("it is copied");
    let _open = fs::File::options().append(true).open(&busy).expect("it is ours");
    let path = busy.to_str().expect("text");
    for _ in 0..10 {
        fails(&skep, &["trace", "leaf", "--", path], 2, "cannot start");
    }
}

/// In a container no more threads may be allowed than there are.
#[test]
fn a_user_without_threads_left() {
    // Nobody else's, nor another run's of this test: all processes of a user count.
    let user = 100_000 + std::process::id();
    if !is_root() || !has_command("setpriv") || !has_command("prlimit") {
        return skep_testkit::skip("root, setpriv and prlimit");
    }
    let (skep, dir) = (Skep::new(), TempDir::in_memory());
    let program = dir.join("program");
    program::copy(static_target().as_ref(), &program);
    let own = dir.join("skep");
    std::os::unix::fs::chown(dir.join("."), Some(user), Some(user)).expect("root may");
    let (as_user, as_group) = (format!("--reuid={user}"), format!("--regid={user}"));
    let args = ["trace", "leaf", "--", program.to_str().expect("text"), "9"];
    let (mut refused, mut last) = (0, String::new());
    for limit in 1..10 {
        let limit = format!("--nproc={limit}");
        let others = ["setpriv", &as_user, &as_group, "--clear-groups", "prlimit", &limit];
        let mut command = under(&others, &skep, &args);
        let ended = run(command.env("SKEP_DIR", &own), b"", LIMIT);
        let said = text(&ended.stderr);
        if said.contains("Permission denied") {
            return skep_testkit::skip("a command that every user may execute");
        }
        // It runs, traced or not, or is not started.
        assert!(matches!(ended.shell_status(), 9 | 2), "{limit}: {}", ended.transcript());
        assert!(!said.contains("panicked"), "{limit}: {}", ended.transcript());
        refused += usize::from(said.contains("error: "));
        last = ended.transcript();
    }
    assert!((1..9).contains(&refused), "{refused}: {last}");
}

#[test]
fn where_no_more_files_may_be_open() {
    if !has_command("prlimit") {
        return skep_testkit::skip("prlimit");
    }
    let skep = Skep::new();
    let args = ["trace", "leaf", "--", static_target(), "9"];
    for limit in 4..40 {
        let limit = format!("--nofile={limit}");
        let ended = run(&mut under(&["prlimit", &limit], &skep, &args), b"", LIMIT);
        let said = text(&ended.stderr);
        let runs = matches!(ended.shell_status(), 9 | 2);
        assert!(runs && !said.contains("panicked"), "{limit}: {}", ended.transcript());
        // It is there.
        assert!(!said.contains("no such process"), "{limit}: {}", ended.transcript());
    }
}

/// Where a limit leaves little address space, or little of it for data, the agent stays out, and ends
/// nothing: the heap has no other way to say that there is no memory.
#[test]
fn where_there_is_little_address_space() {
    let skep = Skep::new();
    let report = skep.path("report").display().to_string();
    for (limit, first, step) in [("-v", 6500, 331), ("-d", 500, 331)] {
        let list = |kib: u32| format!("ulimit {limit} {kib}; exec ls /");
        let plain = |kib: u32| Command::new("sh").args(["-c", &list(kib)]).output().unwrap();
        let whole = plain(1 << 20).stdout;
        let mut reasons = 0;
        for pattern in ["libc.so.6:mem*", "*"] {
            // With less than the first of these the agent's library itself leaves no room for others.
            let all = (0..60).map(|n| first + step * n);
            for kib in all.filter(|kib| plain(*kib).stdout == whole) {
                let rest = ["-o", &report, "--", "sh", "-c", &list(kib)];
                let ended = skep.command(["trace", pattern]).args(rest).output().unwrap();
                let err = text(&ended.stderr);
                assert_eq!(text(&ended.stdout), text(&whole), "{limit} {kib}: {err}");
                assert!(!err.contains("memory allocation"), "{limit} {kib}: {err}");
                reasons += usize::from(err.contains("its address space has no room"));
            }
        }
        assert!(reasons > 0, "{limit}");
    }
}

/// `skep` as the command of others.
fn under(others: &[&str], skep: &Skep, args: &[&str]) -> Command {
    let own = skep.command(args);
    let mut command = Command::new(others[0]);
    command.args(&others[1..]).arg(own.get_program()).args(own.get_args());
    for (name, value) in own.get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    command
}

/// Where `/proc` tells of other processes than those of its ids here, no process is touched.
#[test]
fn the_proc_of_another_pid_namespace() {
    if !is_root() {
        return skep_testkit::skip("root, for a PID namespace");
    }
    let skep = Skep::new();
    let unshare = ["unshare", "--pid", "--fork"];
    let of_another = "`/proc` is that of another PID namespace";
    for (args, status) in [
        (&["trace", "leaf", "--", static_target(), "9"][..], 9),
        (&["trace", "leaf", "-p", "2", "--for", "1s"], 2),
    ] {
        let ended = run(&mut under(&unshare, &skep, args), b"", LIMIT);
        if text(&ended.stderr).contains("unshare failed") {
            return skep_testkit::skip("a PID namespace");
        }
        assert_eq!(ended.shell_status(), status, "{}", ended.transcript());
        assert!(text(&ended.stderr).contains(of_another), "{}", ended.transcript());
    }
}

/// Where another tracer is, the command runs untraced.
#[test]
fn commands_that_are_traced_already() {
    if !has_command("strace") {
        return skep_testkit::skip("strace");
    }
    let skep = Skep::new();
    let args = ["trace", "leaf", "--", static_target(), "9"];
    let mut command = under(&["strace", "-f", "-o", "/dev/null"], &skep, &args);
    let ended = run(&mut command, b"", LIMIT);
    assert_eq!(ended.shell_status(), 9, "{}", ended.transcript());
    let said = text(&ended.stderr);
    assert!(
        said.contains("the agent did not start in")
            && said.contains("could not be entered")
            && said.contains("traces it"),
        "{}",
        ended.transcript()
    );
}

fn waiting(skep: &Skep, report: &Path) -> (skep_testkit::run::Running, u32) {
    let to = report.to_str().expect("text");
    let mut running =
        skep.start(["trace", "leaf", "--json", "-o", to, "--", static_target(), "wait", "7"]);
    let mut line = [0; 6];
    let output = running.stdout.as_mut().expect("a pipe");
    std::io::Read::read_exact(output, &mut line).expect("it is ready");
    assert_eq!(&line, b"ready\n");
    let command = children(running.id());
    assert_eq!(command.len(), 1, "{command:?}");
    (running, command[0])
}

#[test]
fn an_interrupted_command_has_its_report() {
    let skep = Skep::new();
    let report = skep.path("report.json");
    // As a terminal does it: skep and the command hear of it.
    let (mut running, _) = waiting(&skep, &report);
    signal_group(&running, Signal::INT);
    let status = running.wait().expect("it ends");
    assert_eq!(status.code(), Some(130), "{status}");
    let json_of = |report: &Path| json(&fs::read(report).expect("it was written"));
    let first = json_of(&report);
    assert_eq!((calls(&first, "leaf"), &first["status"]), (Some(2000), &130.into()), "{first}");
    // The command is killed.
    let (mut running, command) = waiting(&skep, &report);
    signal(command, Signal::KILL);
    let status = running.wait().expect("it ends");
    assert_eq!(status.code(), Some(137), "{status}");
    assert_eq!(calls(&json_of(&report), "leaf"), Some(2000));
}

/// A command outlives a `skep` that is killed.
#[test]
fn skep_is_killed() {
    let skep = Skep::new();
    let report = skep.path("report.json");
    let (mut running, command) = waiting(&skep, &report);
    let mut input = running.stdin.take().expect("a pipe");
    signal(running.id(), Signal::KILL);
    running.wait().expect("it ends");
    assert!(matches!(state_of(command), 'S' | 'R'));
    std::io::Write::write_all(&mut input, b"go on\n").expect("it reads");
    let ended = || !Path::new(&format!("/proc/{command}")).exists() || state_of(command) == 'Z';
    let limit = std::time::Instant::now() + LIMIT;
    while !ended() {
        assert!(std::time::Instant::now() < limit, "it does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
    // At any moment: nothing that was started stays where it waits.
    for n in 0..40 {
        let mut running = skep.start(["trace", "leaf", "--", static_target(), "0"]);
        std::thread::sleep(Duration::from_millis(n * 3 % 100));
        let begun = children(running.id());
        signal(running.id(), Signal::KILL);
        running.wait().expect("it ends");
        let limit = std::time::Instant::now() + LIMIT;
        for pid in begun {
            while Path::new(&format!("/proc/{pid}")).exists() && state_of(pid) != 'Z' {
                assert!(std::time::Instant::now() < limit, "{n}: {pid}: {}", state_of(pid));
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}
