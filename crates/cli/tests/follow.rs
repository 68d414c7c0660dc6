//! `skep trace -p --follow`: what processes make and execute is traced from its first function on, with
//! exact counts, and goes on rightly whatever happens to the tracer.

mod common;

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use common::live::{LIMIT, Target, Tracer, code, has_agent};
use common::{Skep, data};
use rustix::process::Signal;
use serde_json::Value as Json;
use skep_testkit::TempDir;
use skep_testkit::cc::Cc;
use skep_testkit::program;
use skep_testkit::run::{signal, start};
use skep_testkit::skip::{has_command, is_root};

/// Compiles a file of `data`.
fn build(dir: &TempDir, file: &str, name: &str, cc: Cc, flags: &[&str]) -> PathBuf {
    let cc = cc.args(&["-O1", "-g", "-pthread"]).args(flags);
    cc.compile(&[data(file).as_ref()], &dir.join(name))
}

fn leaf(dir: &TempDir) -> PathBuf {
    build(dir, "leaf.c", "leaf", Cc::c(), &[])
}

/// A shell that does what it is told.
fn shell() -> Target {
    let script = "echo ready; while read -r line; do eval \"$line\"; echo done; done; exit 7";
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    Target::start(TempDir::new(), PathBuf::from("sh"), &command)
}

/// A program that makes processes as it is told, which execute another one.
fn spawner(dir: &TempDir) -> Target {
    let program = build(dir, "spawns.c", "spawns", Cc::c(), &[]);
    let mut command = Command::new(&program);
    command.arg(leaf(dir));
    Target::start(TempDir::new(), program, &command)
}

fn calls(report: &Json, module: &str) -> u64 {
    let rows = report["functions"].as_array().expect("a list");
    let rows = rows.iter().filter(|row| row["name"] == "work");
    let rows = rows
        .filter(|row| row["module"].as_str().is_some_and(|m| m.rsplit('/').next() == Some(module)));
    rows.map(|row| row["calls"].as_u64().expect("a number")).sum()
}

/// Whether this user may trace what is not a child of `skep`.
fn may_trace() -> bool {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    is_root() || matches!(scope.trim(), "" | "0")
}

/// Has a shell execute something that prints a number.
fn tell(target: &mut Target, order: &str, number: &str) {
    use std::io::Write;
    let input = target.running.stdin.as_mut().expect("a pipe");
    writeln!(input, "{order}").expect("it reads");
    assert_eq!(target.line(), number, "{order}");
    assert_eq!(target.line(), "done", "{order}");
}

#[test]
fn programs_that_a_shell_executes() {
    if !may_trace() {
        return skep_testkit::skip("ptrace_scope 0");
    }
    let (skep, dir) = (Skep::new(), TempDir::new());
    let mut kinds = vec![
        build(&dir, "leaf.c", "dynamic", Cc::c(), &[]),
        build(&dir, "leaf.c", "fixed", Cc::c(), &["-no-pie"]),
        build(&dir, "leaf.c", "static", Cc::c(), &["-static"]),
        build(&dir, "leaf.c", "static-pie", Cc::c(), &["-static-pie"]),
    ];
    if has_command("musl-gcc") {
        kinds.push(build(&dir, "leaf.c", "musl", Cc::named("musl-gcc"), &[]));
        kinds.push(build(&dir, "leaf.c", "musl-static", Cc::named("musl-gcc"), &["-static"]));
    }
    let mut target = shell();
    let before = target.state();
    let tracer = Tracer::attach(&skep, &target, &["work", "--follow"]);
    for (n, program) in kinds.iter().enumerate() {
        let n = n + 1;
        let program = program.display();
        for times in [n, 100 * n] {
            tell(&mut target, &format!("{program} {times}"), &times.to_string());
        }
        tell(&mut target, &format!("( ( {program} 1000 ); true )"), "1000");
    }
    // A program that nobody but its own name finds, by an interpreter, and one after the other.
    let script = dir.join("script");
    fs::write(&script, format!("#!/bin/sh\nexec {} 7\n", kinds[0].display()))
        .expect("it is written");
    tell(&mut target, &format!("sh {}", script.display()), "7");
    let report = tracer.end();
    for (n, program) in kinds.iter().enumerate() {
        let name = program.file_name().expect("a name").to_str().expect("text");
        let n = n as u64 + 1;
        let more = if n == 1 { 7 } else { 0 };
        assert_eq!(calls(&report, name), 101 * n + 1000 + more, "{name}: {report}");
    }
    assert_eq!(report["missed"], 0);
    // The first one, each of the others, and subshells.
    let pids = report["pids"].as_array().expect("a list").len();
    assert!(pids > 3 * kinds.len(), "{pids}");
    let after = target.state();
    assert!(after.code == before.code);
    assert_eq!(after.rest(), before.rest());
    target.end();
}

/// `posix_spawn`, `vfork` of a child that takes its time, `exec` by another thread than the first,
/// `fork` without `exec`, and a daemon that is nobody's child.
#[test]
fn processes_that_are_made_in_unusual_ways() {
    let (skep, dir) = (Skep::new(), TempDir::new());
    let mut target = spawner(&dir);
    let before = target.state();
    let tracer = Tracer::attach(&skep, &target, &["work", "--follow"]);
    for _ in 0..5 {
        tell(&mut target, "spawn 20", "20");
    }
    tell(&mut target, "slow 3", "3");
    for _ in 0..5 {
        tell(&mut target, "thread 40", "40");
    }
    for _ in 0..5 {
        tell(&mut target, "daemon 50", "50");
    }
    target.tell("forks 300");
    // Without a tracer nothing wakes it up.
    target.tell("wait 400");
    let report = tracer.end();
    assert_eq!(calls(&report, "leaf"), 5 * (20 + 40 + 50) + 3, "{report}");
    assert_eq!(calls(&report, "spawns"), 900, "{report}");
    assert_eq!(report["missed"], 0);
    let after = target.state();
    assert!(after.code == before.code);
    assert_eq!(after.rest(), before.rest());
    target.end();
}

/// A child that was forked with hooks and lives on has none in the end, nor a thread of ours.
#[test]
fn a_forked_child_is_left_too() {
    let (skep, dir) = (Skep::new(), TempDir::new());
    let mut target = spawner(&dir);
    let before = code(target.pid());
    let tracer = Tracer::attach(&skep, &target, &["spawns:work", "libc:str*", "--follow"]);
    use std::io::Write;
    writeln!(target.running.stdin.as_mut().expect("a pipe"), "lives 0").expect("it reads");
    let child: u32 = target.line().parse().expect("a number");
    assert_eq!(target.line(), "done");
    assert_ne!(code(child), before, "it has hooks");
    let report = tracer.end();
    let pids = report["pids"].as_array().expect("a list");
    assert!(pids.contains(&child.into()), "{report}");
    let now = code(child);
    for (place, bytes) in &before {
        assert!(now.get(place) == Some(bytes), "{place}");
    }
    let threads = fs::read_dir(format!("/proc/{child}/task")).expect("it runs").count();
    assert_eq!(threads, 1);
    let status = fs::read_to_string(format!("/proc/{child}/status")).expect("it runs");
    assert!(status.contains("TracerPid:\t0\n"), "{status}");
    signal(child, Signal::KILL);
    target.end();
}

/// Processes of Python, by `subprocess` and by `multiprocessing`.
#[test]
fn workers_of_python() {
    if !has_command("python3") {
        return skep_testkit::skip("python3");
    }
    if !may_trace() {
        return skep_testkit::skip("ptrace_scope 0");
    }
    let (skep, dir) = (Skep::new(), TempDir::new());
    let program = dir.join("workers.py");
    let source = "
import multiprocessing, subprocess, sys
def work(n): return int(subprocess.run([sys.argv[1], str(n)], stdout=subprocess.PIPE).stdout)
if __name__ == '__main__':
    print('ready', flush=True)
    sys.stdin.readline()
    with multiprocessing.get_context('fork').Pool(3) as pool:
        print(sum(pool.map(work, range(1, 21))), flush=True)
";
    fs::write(&program, source).expect("it is written");
    let mut command = Command::new("python3");
    command.arg(&program).arg(leaf(&dir));
    let mut target = Target::start(TempDir::new(), program, &command);
    let tracer = Tracer::attach(&skep, &target, &["leaf:work", "--follow"]);
    drop(target.running.stdin.take());
    assert_eq!(target.line(), "210");
    assert_eq!(target.running.wait().expect("it ends").code(), Some(0));
    // All have ended, and so has the trace.
    let report = tracer.wait();
    assert_eq!(calls(&report, "leaf"), 210, "{report}");
}

/// What cannot be traced goes on, and is told.
#[test]
fn programs_that_are_not_traced() {
    if !may_trace() {
        return skep_testkit::skip("ptrace_scope 0");
    }
    if !has_command("as") {
        return skep_testkit::skip("binutils");
    }
    let (skep, dir) = (Skep::new(), TempDir::new());
    let source = dir.join("old.s");
    let text = ".globl _start\n_start: mov $1, %eax\n mov $5, %ebx\n int $0x80\n";
    fs::write(&source, text).expect("it is written");
    let (object, old) = (dir.join("old.o"), dir.join("old"));
    let made = |command: &mut Command| assert!(command.status().expect("it runs").success());
    made(Command::new("as").arg("--32").arg(&source).arg("-o").arg(&object));
    made(Command::new("ld").args(["-m", "elf_i386"]).arg(&object).arg("-o").arg(&old));
    let mut target = shell();
    let pid = target.pid().to_string();
    let args = ["trace", "leaf:work", "-p", &pid, "--follow", "--json"];
    let mut running = start(&skep.command(args), LIMIT);
    wait_until_traced(target.pid());
    tell(&mut target, &format!("{}; echo $?", old.display()), "5");
    if is_root() {
        let own = dir.join("own");
        program::copy(&leaf(&dir), &own);
        std::os::unix::fs::chown(&own, Some(65534), None).expect("root may");
        let mode = <fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o4755);
        fs::set_permissions(&own, mode).expect("it is ours");
        let open = <fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o755);
        fs::set_permissions(dir.path(), open).expect("it is ours");
        tell(&mut target, &format!("{} 8", own.display()), "8");
    }
    tell(&mut target, &format!("{} 9", leaf(&dir).display()), "9");
    signal(running.id(), Signal::INT);
    let (mut out, mut errors) = (String::new(), String::new());
    running.stdout.take().expect("a pipe").read_to_string(&mut out).expect("text");
    running.stderr.take().expect("a pipe").read_to_string(&mut errors).expect("text");
    assert_eq!(running.wait().expect("it ends").code(), Some(0), "{errors}");
    let report: Json = serde_json::from_str(&out).expect("JSON");
    assert_eq!(calls(&report, "leaf"), 9, "{report}");
    assert!(errors.contains("old` untraced") && errors.contains("32-bit"), "{errors}");
    if is_root() {
        assert!(errors.contains("own` untraced") && errors.contains("user 65534"), "{errors}");
        assert!(errors.contains("who cannot use this skep directory"), "{errors}");
    }
    target.end();
}

fn wait_until_traced(pid: u32) {
    let end = Instant::now() + LIMIT;
    while !has_agent(pid) {
        assert!(Instant::now() < end, "nobody traces it");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// `SIGSTOP` stops what is followed, and `SIGCONT` has it go on, as without a tracer.
#[test]
fn a_stopped_process_stays_stopped() {
    let (skep, dir) = (Skep::new(), TempDir::new());
    let mut target = spawner(&dir);
    let tracer = Tracer::attach(&skep, &target, &["work", "--follow"]);
    for _ in 0..3 {
        target.stop();
        target.order("forks 10");
        assert!(target.is_silent_for(Duration::from_millis(50)), "it goes on");
        signal(target.pid(), Signal::CONT);
        assert_eq!(target.line(), "done");
    }
    target.tell("forks 10");
    assert_eq!(calls(&tracer.end(), "spawns"), 4 * 30);
    target.end();
}

/// Killed at any time, `skep` leaves a tree of processes that does its work: none is lost, hangs or
/// answers wrongly.
#[test]
fn a_killed_skep_leaves_all_that_it_followed() {
    if !may_trace() {
        return skep_testkit::skip("ptrace_scope 0");
    }
    let (skep, dir) = (Skep::new(), TempDir::new());
    let (dynamic, fixed) = (leaf(&dir), build(&dir, "leaf.c", "static", Cc::c(), &["-static"]));
    let tree = format!(
        "for i in 1 2 3 4 5 6; do ( {} $i; {} $i ) & done | sort -n | tr '\\n' ' '; wait; echo",
        dynamic.display(),
        fixed.display()
    );
    let tree = format!("( {tree} )");
    let wanted = "1 1 2 2 3 3 4 4 5 5 6 6";
    let mut target = shell();
    let pid = target.pid().to_string();
    let rounds = if std::env::var_os("SKEP_STRESS").is_some() { 400 } else { 20 };
    for n in 0..rounds {
        let args = ["trace", "work", "libc:*", "-p", &pid, "--follow"];
        let mut running = start(&skep.command(args), LIMIT);
        std::thread::sleep(Duration::from_millis(n * 7 % 50));
        let killer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(n * 13 % 170));
            running.kill().expect("it is ours");
            running.wait().expect("it ends");
        });
        tell(&mut target, &tree, wanted);
        killer.join().expect("it is killed");
    }
    // And now one that ends by itself.
    let tracer = Tracer::attach(&skep, &target, &["work", "--follow"]);
    tell(&mut target, &tree, wanted);
    let report = tracer.end();
    assert_eq!(calls(&report, "leaf"), 21, "{report}");
    assert_eq!(calls(&report, "static"), 21, "{report}");
    target.end();
}

/// Without the option nothing but the process itself is traced, and with it a process is needed.
#[test]
fn the_option() {
    let skep = Skep::new();
    let ended = skep.run(["trace", "work", "--follow", "--", "true"]);
    assert_eq!(ended.status.code(), Some(2), "{}", ended.transcript());
    let ended = skep.run(["run", "--help"]);
    assert!(String::from_utf8_lossy(&ended.stdout).contains("--follow"), "{}", ended.transcript());
    assert!(!Path::new("/proc/0").exists());
}

/// Processes that make processes all the time, faster than they can be followed, do not keep `skep` from
/// its end: that which is asked for by a signal, or that of the time.
#[test]
fn a_tree_that_grows_all_the_time_is_left() {
    const SOON: Duration = Duration::from_secs(40);
    let dir = TempDir::new();
    let leaf = leaf(&dir);
    let goes_on = dir.join("goes-on");
    for time in [None, Some("2s")] {
        fs::write(&goes_on, "").expect("it is written");
        let (skep, mut target) = (Skep::new(), shell());
        let patterns = ["leaf:work", "libc*:*read*", "--follow"];
        let time = time.map(|time| ["--for", time]);
        let args: Vec<&str> = patterns.into_iter().chain(time.into_iter().flatten()).collect();
        let mut tracer = Tracer::attach(&skep, &target, &args);
        let (leaf, goes_on) = (leaf.display(), goes_on.display());
        target.tell(&format!(
            "for n in 1 2 3 4; do (while [ -e {goes_on} ]; do {leaf} 1; done) > /dev/null & done"
        ));
        if time.is_none() {
            std::thread::sleep(Duration::from_secs(2));
            signal(tracer.running.id(), Signal::INT);
        }
        let end = Instant::now() + SOON;
        let mut is_late = false;
        while tracer.running.try_wait().expect("it is ours").is_none() {
            if Instant::now() > end {
                is_late = true;
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        fs::remove_file(goes_on.to_string()).expect("it is there");
        let (_, said) = tracer.report_with_warnings();
        assert!(!is_late, "skep does not end: {time:?}\n{said}");
        target.tell("wait");
        target.end();
    }
}
