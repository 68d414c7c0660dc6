//! What gdb sees of programs in a traced process (`SKEP_PERF=gdb`).
#![cfg(target_arch = "x86_64")]

mod common;

use std::process::Command;
use std::time::Duration;

use common::{Skep, data, target, text};
use skep_testkit::run::run;
use skep_testkit::skip::has_command;
use skep_testkit::trace::skep_bin;

/// Instructions to go through one at a time.
const STEPS: usize = 400;

/// Runs gdb with a script on a command with the programs of an object; `None` where gdb may not do
/// that.
fn gdb(skep: &Skep, object: &str, wanted: &str, script: &str) -> Option<String> {
    let file = skep.path("script.gdb");
    std::fs::write(&file, script).unwrap();
    let mut command = Command::new("gdb");
    command
        .args(["-nx", "-batch", "-iex", "set debuginfod enabled off", "-x"])
        .arg(&file)
        .arg("--args")
        .arg(skep_bin());
    command.args(["-q", "run", &data(object), "--", target(), "3"]);
    command
        .env("SKEP_DIR", skep.path("skep"))
        .env("SKEP_PERF", wanted)
        .env("LC_ALL", "C")
        .env_remove("LD_PRELOAD");
    let ended = run(&mut command, b"", Duration::from_secs(300));
    let out = format!("{}\n{}", text(&ended.stderr), text(&ended.stdout));
    let forbidden =
        ["ptrace: ", "Couldn't get CS register", "Cannot PTRACE", "Operation not permitted"];
    (!forbidden.iter().any(|f| out.contains(f))).then_some(out)
}

/// Stops at a function, prints where it is, and goes on by single instructions, each with the
/// outermost frame and the function.
fn steps(from: &str) -> String {
    format!(
        "set pagination off
set width 0
set follow-fork-mode child
set breakpoint pending on
break {from}
run
backtrace
info symbol $pc
info line *$pc
delete
set $i = 0
while $i < {STEPS}
  stepi
  backtrace -1
  info symbol $pc
  set $i = $i + 1
end
kill
"
    )
}

/// A frame of a backtrace. Where gdb finds no text for a line of source, it stands on the same line
/// as the address.
fn frame(line: &str) -> Option<&str> {
    let (before, _) = line.split_once('#')?;
    let alone = before.is_empty() || before.strip_prefix("0x").is_some_and(|a| a.ends_with('\t'));
    if alone { line.get(before.len()..) } else { None }
}

#[test]
fn breakpoints_and_backtraces_know_programs() {
    if !has_command("gdb") {
        return skep_testkit::skip("gdb");
    }
    let script = steps("bpf_prog_leaf");
    let Some(out) = gdb(&Skep::new(), "typed.bpf.o", "gdb", &script) else {
        return skep_testkit::skip("gdb that may trace");
    };
    let frames: Vec<&str> = out.lines().filter_map(frame).collect();
    let program =
        frames.first().unwrap_or_else(|| panic!("the breakpoint was not reached:\n{out}"));
    assert!(program.starts_with("#0  bpf_prog_leaf ") && program.contains("typed.bpf.c:"), "{out}");
    // The traced function and its caller are behind the program.
    let traced = frames
        .iter()
        .position(|f| f.contains(" main ("))
        .unwrap_or_else(|| panic!("no `main`:\n{out}"));
    assert!(frames[..traced].iter().any(|f| f.contains("skep_attach_entry_island")), "{out}");
    assert!(out.contains("bpf_prog_leaf + "), "{out}");
    assert!(
        out.lines().any(|l| l.starts_with("Line ")
            && l.contains("typed.bpf.c\"")
            && l.contains("<bpf_prog_leaf")),
        "{out}"
    );
    // Wherever it stands, in the program and in what it calls, there is a way back to the outermost
    // frame.
    let lost: Vec<&&str> = frames[traced + 1..].iter().filter(|f| !f.contains(" main (")).collect();
    assert!(lost.is_empty() && frames.len() == traced + 1 + STEPS, "{lost:?}\n{out}");
}

#[test]
fn tail_calls_do_not_lose_the_way_back() {
    if !has_command("gdb") {
        return skep_testkit::skip("gdb");
    }
    // `first` counts tail calls, calls a helper with vector registers saved, and goes on as
    // `second`.
    let Some(out) = gdb(&Skep::new(), "tail.bpf.o", "gdb", &steps("bpf_prog_first.entry")) else {
        return skep_testkit::skip("gdb that may trace");
    };
    let frames: Vec<&str> = out.lines().filter_map(frame).collect();
    let first = frames
        .iter()
        .position(|f| f.contains(" main ("))
        .unwrap_or_else(|| panic!("no `main`:\n{out}"));
    let lost: Vec<&&str> = frames[first + 1..].iter().filter(|f| !f.contains(" main (")).collect();
    assert!(lost.is_empty() && frames.len() == first + 1 + STEPS, "{lost:?}\n{out}");
    for name in ["bpf_prog_first + ", "bpf_prog_second + "] {
        assert!(out.lines().any(|l| l.starts_with(name)), "never in `{name}`:\n{out}");
    }
}

#[test]
fn nothing_is_told_without_being_asked() {
    if !has_command("gdb") {
        return skep_testkit::skip("gdb");
    }
    let script =
        "set follow-fork-mode child\nset breakpoint pending on\nbreak bpf_prog_leaf\nrun\n";
    let Some(out) = gdb(&Skep::new(), "typed.bpf.o", "", script) else {
        return skep_testkit::skip("gdb that may trace");
    };
    assert!(out.contains("exited with code 03") && !out.contains("hit Breakpoint"), "{out}");
}
