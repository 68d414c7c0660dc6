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

const LIMIT: Duration = Duration::from_secs(300);

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
    // At once; below a function that aligns its stack; in a signal handler; beside a second thread. And
    // in a program whose tables nothing leads to.
    for (call, threads, named, flags) in [
        ("1", 1, "main", &[][..]),
        ("3", 1, "aligned", &[]),
        ("12", 1, "raise", &[]),
        ("15", 2, "sized", &[]),
        ("3", 1, "aligned", &["-static"]),
        ("12", 1, "gsignal", &["-static"]),
    ] {
        let program = program(&dir, flags);
        let elf = skep_proc::elf::Elf::open(&program).expect("the compiler made it");
        if !flags.is_empty() && elf.segments().iter().any(|s| s.kind == 0x6474_e550) {
            skip("a compiler whose static programs lack `.eh_frame_hdr`");
            continue;
        }
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
    fails(&skep, &["symbolize", "--stacks"], 2, "name it: `--core FILE`");
    fails(&skep, &["symbolize", "--core", "x", "--stacks", "0x1"], 2, "--stacks");
}

/// The kernel's code in a process is in no file.
#[test]
fn stacks_out_of_the_vdso_are_those_of_gdb() {
    if !has_command("gdb") || !Path::new("/usr/bin/gcore").exists() {
        return skip("gdb and its gcore");
    }
    let (skep, dir) = (Skep::new(), TempDir::new());
    let source = dir.join("clock.c");
    let text_of_it = "#include <time.h>\nint main(void) { struct timespec t; \
                      return clock_gettime(CLOCK_MONOTONIC, &t) + (int)t.tv_nsec; }\n";
    std::fs::write(&source, text_of_it).expect("a file of the test's own");
    Cc::c().args(&["-O2", "-fomit-frame-pointer"]).compile(&[&source], &dir.join("unwound"));
    let mut gdb = Command::new("gdb");
    gdb.args(["-batch", "-nx", "-ex", "break main", "-ex", "run"]);
    for command in
        ["break __vdso_clock_gettime", "continue", "stepi", "stepi", "gcore core", "kill"]
    {
        gdb.args(["-ex", command]);
    }
    let written = run(gdb.arg("./unwound").current_dir(dir.path()), b"", LIMIT);
    let core = dir.join("core");
    let stopped = text(&written.stdout);
    if !core.exists() || !stopped.contains("Breakpoint 2, ") {
        return skip("a gdb that stops in the vDSO");
    }
    let path = core.to_str().expect("UTF-8");
    let ended = skep.run(["symbolize", "--json", "--core", path, "--stacks"]);
    assert_eq!(ended.shell_status(), 0, "{}", ended.transcript());
    let said = json(&ended.stdout);
    let frames = said[0]["frames"].as_array().expect("an array");
    let address = |frame: &serde_json::Value| {
        let digits = frame["address"].as_str().expect("text").trim_start_matches("0x");
        u64::from_str_radix(digits, 16).expect("hex")
    };
    let found: Vec<u64> = frames.iter().map(address).collect();
    let want = by_gdb(&dir, &core);
    assert_eq!(want.values().collect::<Vec<_>>(), [&found], "{said}");
    assert!(found.len() > 2, "{said}");
    assert_eq!(frames[0]["module"], "[vdso]", "{said}");
    let name =
        frames[0]["symbol"]["name"].as_str().unwrap_or_default().trim_start_matches("__vdso_");
    assert_eq!(name, "clock_gettime", "{said}");
    assert!(frames.iter().any(|f| f["symbol"]["name"] == "main"), "{said}");
    // Also without stacks.
    let address = format!("{:#x}", found[0]);
    let ended = skep.run(["symbolize", "--core", path, &address]);
    assert!(text(&ended.stdout).contains("clock_gettime+0x"), "{}", ended.transcript());
}

/// Inside a function the return address is not on top of the stack.
#[test]
fn the_stack_of_a_place_inside_a_function() {
    if !has_command("objdump") {
        return skip("objdump");
    }
    let source = "#define N __attribute__((noinline, noclone, noipa))
        volatile long sink;
        N long inner(long n) { volatile long v[9]; for (long i = 0; i < 9; i++) v[i] = n * i; return v[n & 7] + sink; }
        N long middle(long n) { long m = inner(n + 1); sink += m; return m + 2; }
        N long outer(long n) { long m = middle(n * 2); sink += m; return m - 1; }
        int main(void) { return outer(3) == 77; }\n";
    let dir = TempDir::new();
    std::fs::write(dir.join("places.c"), source).expect("it is written");
    let flags = ["-O2", "-fomit-frame-pointer"];
    let program = Cc::c().args(&flags).compile(&[&dir.join("places.c")], &dir.join("places"));
    let listed =
        run(Command::new("objdump").args(["-d", "--disassemble=inner"]).arg(&program), b"", LIMIT);
    let listed = text(&listed.stdout);
    let addresses: Vec<u64> = listed
        .lines()
        .filter_map(|line| u64::from_str_radix(line.trim().split_once(':')?.0, 16).ok())
        .collect();
    let start = *addresses.first().expect("a function");
    let skep = Skep::new();
    let mut tried = 0;
    for offset in addresses.iter().map(|at| at - start) {
        let out = dir.join(format!("{offset}.folded"));
        let attach = format!("by_stack=places:inner+{offset:#x}");
        let mut command = skep.command([
            "run",
            "--quiet",
            &object("stacks.bpf.o"),
            "--attach",
            &attach,
            "--folded",
        ]);
        let ended = run(command.arg(&out).arg("--").arg(&program), b"", LIMIT);
        let Ok(stacks) = std::fs::read_to_string(&out) else {
            assert_ne!(ended.shell_status(), 0, "{attach}");
            continue;
        };
        if stacks.is_empty() {
            continue;
        }
        tried += 1;
        for line in stacks.lines() {
            let names = line.rsplit_once(' ').expect("a number").0;
            assert!(names.ends_with(";main;outer;middle;inner"), "{attach}: {line}\n{listed}");
        }
    }
    assert!(tried > 3, "{tried} of {}: {listed}", addresses.len());
}
