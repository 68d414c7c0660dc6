//! Call stacks of programs without frame pointers: while they run, as the unwinder of exceptions finds
//! them, and in core files, as gdb does.

mod common;

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use common::{Skep, data, fails, json, object, text};
use skep_testkit::TempDir;
use skep_testkit::cc::Cc;
use skep_testkit::run::run;
use skep_testkit::skip::{has_command, skip};

const LIMIT: Duration = Duration::from_secs(100);

/// A program whose functions use `rbp` as any other register.
fn program(dir: &TempDir, flags: &[&str]) -> PathBuf {
    let flags = [&["-O2", "-fomit-frame-pointer", "-pthread"], flags].concat();
    Cc::c().args(&flags).compile(&[data("unwound.c").as_ref()], &dir.join("unwound"))
}

/// How often each line was there.
fn counted<T: Ord>(lines: impl Iterator<Item = T>) -> BTreeMap<T, u64> {
    let mut counts = BTreeMap::new();
    lines.for_each(|line| *counts.entry(line).or_default() += 1);
    counts
}

/// The stacks that a program recorded, as return addresses.
fn recorded(report: &Path) -> BTreeMap<Vec<u64>, u64> {
    let report = json(&std::fs::read(report).expect("it was written"));
    let entries = |name: &str| {
        let maps = report["maps"].as_array().expect("an array");
        let map = maps.iter().find(|m| m["map"]["name"] == name).expect("the object has it");
        map["entries"].as_array().expect("an array").clone()
    };
    let mut stacks = BTreeMap::new();
    for entry in entries("stacks") {
        let hex = entry["value"].as_str().expect("bytes").trim_start_matches("0x");
        let words = hex
            .as_bytes()
            .chunks(16)
            .map(|word| u64::from_str_radix(&text(word), 16).expect("hex").swap_bytes());
        let number = entry["key"].as_u64().expect("a number");
        // Without the place in the function that was called.
        stacks.insert(number, words.take_while(|word| *word != 0).skip(1).collect());
    }
    let mut counts = BTreeMap::new();
    for entry in entries("calls") {
        let number = entry["key"]["stack"].as_u64().expect("a number");
        let stack: &Vec<u64> = &stacks[&number];
        counts.insert(stack.clone(), entry["value"].as_u64().expect("a number"));
    }
    counts
}

/// How many calls have no stack.
fn missed(report: &Path) -> u64 {
    let report = json(&std::fs::read(report).expect("it was written"));
    let maps = report["maps"].as_array().expect("an array").iter();
    let mut counts = maps.filter_map(|m| m["entries"][0]["value"]["not_counted"].as_u64());
    counts.next().expect("the program counts them")
}

#[test]
fn stacks_need_no_frame_pointers() {
    let (skep, dir) = (Skep::new(), TempDir::new());
    let stacks = object("stacks.bpf.o");
    for flags in [&[][..], &["-fno-pie", "-no-pie"], &["-fno-omit-frame-pointer"]] {
        program(&dir, flags);
        let once = |more: &[&str]| {
            let args = ["run", &stacks, "--attach", "by_stack=./unwound:leaf", "--json"];
            let args = args.iter().chain(more).chain(&["-o", "report", "--folded", "folded"]);
            let ended = run(
                skep.command(args.chain(&["--", "./unwound"])).current_dir(dir.path()),
                b"",
                LIMIT,
            );
            assert_eq!(ended.shell_status(), 0, "{flags:?}: {}", ended.transcript());
            let folded = std::fs::read_to_string(dir.join("folded")).expect("it was written");
            (ended, folded)
        };
        // Two stacks may have one number, by their addresses: then one of them is not counted.
        let run = |more: &[&str]| loop {
            let ended = once(more);
            if missed(&dir.join("report")) == 0 {
                break ended;
            }
        };
        let (ended, folded) = run(&[]);
        let told = text(&ended.stdout);
        let want = counted(told.lines().map(|line| {
            let words = line.split(';').skip(1).map(|word| u64::from_str_radix(word, 16));
            words.collect::<Result<Vec<_>, _>>().expect("the program prints addresses")
        }));
        assert!(want.len() > 10 && want.keys().any(|stack| stack.len() > 25), "{told}");
        assert_eq!(recorded(&dir.join("report")), want, "{flags:?}");

        // Functions that return into hooks are called by who called them.
        let (ended, hooked) = run(&[&data("returns.bpf.o")]);
        assert!(!ended.stdout.is_empty());
        assert_eq!(hooked, folded, "{flags:?}");
    }
}

/// What gdb says of all threads: their ids, and the addresses in their stacks, without frames that it
/// makes up of debug information.
const GDB: &str = "python
for t in gdb.selected_inferior().threads():
  t.switch()
  f = gdb.newest_frame()
  pcs = []
  while f is not None:
    if f.type() in (gdb.NORMAL_FRAME, gdb.SIGTRAMP_FRAME):
      pcs.append('%x' % f.pc())
    f = f.older()
  print('thread', t.ptid[1], ' '.join(pcs))
end
";

/// The stacks of a core file as gdb walks them, by thread.
fn by_gdb(dir: &TempDir, core: &Path) -> BTreeMap<u64, Vec<u64>> {
    std::fs::write(dir.join("script"), GDB).expect("a file of the test's own");
    let mut gdb = Command::new("gdb");
    gdb.args(["-batch", "-nx", "-ex", "set backtrace past-main on"]);
    gdb.args(["-ex", "set backtrace past-entry off", "-ex", "source script", "unwound"]);
    let ended = run(gdb.arg(core).current_dir(dir.path()), b"", LIMIT);
    let said = text(&ended.stdout);
    let threads = said.lines().filter_map(|line| line.strip_prefix("thread "));
    let thread = |line: &str| {
        let mut words = line.split(' ');
        let tid = words.next().and_then(|tid| tid.parse().ok()).expect("a number");
        (tid, words.map(|word| u64::from_str_radix(word, 16).expect("hex")).collect())
    };
    let all: BTreeMap<_, _> = threads.map(thread).collect();
    assert!(!all.is_empty(), "{}", ended.transcript());
    all
}

#[test]
fn stacks_in_core_files_are_those_of_gdb() {
    if !has_command("gdb") || !Path::new("/usr/bin/gcore").exists() {
        return skip("gdb and its gcore");
    }
    let (skep, dir) = (Skep::new(), TempDir::new());
    skep.run(["--version"]);
    program(&dir, &[]);
    // At once; below a function that aligns its stack; in a signal handler; beside a second thread.
    for (call, threads, named) in
        [("1", 1, "main"), ("3", 1, "aligned"), ("12", 1, "raise"), ("15", 2, "sized")]
    {
        let mut command = Command::new("./unwound");
        command.arg(call).current_dir(dir.path());
        let mut child = skep_testkit::run::start(&command, LIMIT);
        let mut told = [0; 64];
        let stdout = child.stdout.as_mut().expect("a pipe");
        assert!(stdout.read(&mut told).expect("it prints before it stops") > 0);
        let pid = child.id().to_string();
        // It stops soon after.
        let is_asleep = || {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.rsplit(')').next().is_some_and(|rest| rest.trim().starts_with('S'))
        };
        while !is_asleep() {
            std::thread::yield_now();
        }
        let written =
            run(Command::new("gcore").arg("-o").arg(dir.join("core")).arg(&pid), b"", LIMIT);
        assert!(written.status.success(), "{}", written.transcript());
        let core = dir.join(format!("core.{pid}"));
        let path = core.to_str().expect("UTF-8");
        let ended = skep.run(["symbolize", "--json", "--core", path, "--stacks"]);
        assert!(ended.shell_status() < 2, "{}", ended.transcript());
        let said = json(&ended.stdout);
        let mut found = BTreeMap::new();
        for thread in said.as_array().expect("an array") {
            let frames = thread["frames"].as_array().expect("an array").iter();
            let address = |frame: &serde_json::Value| {
                let digits = frame["address"].as_str().expect("text").trim_start_matches("0x");
                u64::from_str_radix(digits, 16).expect("hex")
            };
            found.insert(
                thread["thread"].as_u64().expect("a number"),
                frames.map(address).collect(),
            );
        }
        let want: BTreeMap<u64, Vec<u64>> = by_gdb(&dir, &core);
        assert_eq!(found, want, "{call}");
        assert_eq!(found.len(), threads, "{call}");

        let ended = skep.run(["symbolize", "--core", path, "--stacks"]);
        let said = text(&ended.stdout);
        assert!(said.starts_with("thread ") && said.contains(&format!(" {named}+0x")), "{said}");
        drop(child);
        if call == "1" {
            // Half of it: what is not there ends a stack, and no more.
            let whole = std::fs::read(&core).expect("a core file");
            for part in [8, 2] {
                std::fs::write(&core, &whole[..whole.len() / part]).expect("its own file");
                let ended = skep.run(["symbolize", "--core", path, "--stacks"]);
                assert!(ended.shell_status() <= 2, "{}", ended.transcript());
            }
        }
    }
    fails(&skep, &["symbolize", "-p", "1", "--stacks"], 2, "core file");
    fails(&skep, &["symbolize", "--stacks"], 2, "required");
    fails(&skep, &["symbolize", "--core", "x", "--stacks", "0x1"], 2, "--stacks");
}
