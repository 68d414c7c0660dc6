//! `skep vma`: the guide's commands, files with mappings, addresses on stdin.

mod common;

use std::io::{BufRead, BufReader};
use std::process::Command;
use std::time::Duration;

use common::{Skep, json, text};
use serde_json::json;
use skep_testkit::TempDir;
use skep_testkit::cc::Cc;
use skep_testkit::run::run;

const GUIDE: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/vma.md"));
const LIMIT: Duration = Duration::from_secs(300);

/// Every command of the guide finds what it asks for, in this process.
#[test]
fn the_guide_is_true() {
    let skep = Skep::new();
    let here = the_guide_is_true as *const () as u64;
    let mut commands = 0;
    let lines = GUIDE.split("```sh\n").skip(1).filter_map(|block| block.split("```").next());
    for line in lines.flat_map(str::lines) {
        let line = line.replace("$PID", &std::process::id().to_string());
        let line = line.replace("$ADDRESS", &format!("{here:x}"));
        let mut command = skep.command(line.split(' ').skip(1));
        let ended = run(command.current_dir(skep.path(".")), b"", LIMIT);
        assert_eq!(ended.shell_status(), 0, "{line}: {}", ended.transcript());
        commands += 1;
    }
    assert_eq!(commands, 10);
}

/// A snapshot says the same of every address as the process that it was taken of.
#[test]
fn a_snapshot_answers_as_the_process_did() {
    let skep = Skep::new();
    let mut child = skep_testkit::run::start(Command::new("sleep").arg("60"), LIMIT);
    let pid = child.id().to_string();
    // It has started when it sleeps (`clock_nanosleep` or `nanosleep`).
    let asleep = |s: &str| s.starts_with("230 ") || s.starts_with("35 ");
    loop {
        match std::fs::read_to_string(format!("/proc/{pid}/syscall")) {
            Ok(call) if asleep(&call) => break,
            Ok(_) => std::thread::yield_now(),
            Err(_) => return skep_testkit::skip("/proc/PID/syscall, and the right to read it"),
        }
    }
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("it runs");
    let file = skep.path("saved").display().to_string();
    assert_eq!(skep.run(["vma", "snapshot", &pid, "-o", &file]).shell_status(), 0);
    let starts: Vec<&str> = maps.lines().filter_map(|l| l.split('-').next()).collect();
    let ask = |target: &str, words: &[&str]| {
        let mut args = vec!["vma", words[0], target, "--json"];
        args.extend(&words[1..]);
        json(&skep.run_with(args, starts.join("\n").as_bytes()).stdout)
    };
    let mut live =
        [ask(&pid, &["query"]), ask(&pid, &["normalize", "--data"]), ask(&pid, &["list"])];
    child.kill().expect("it is ours");
    child.wait().expect("it is ours");
    let saved =
        [ask(&file, &["query"]), ask(&file, &["normalize", "--data"]), ask(&file, &["list"])];
    // The names of functions in the vDSO end with the process: it has no file.
    let plain = |answers: &serde_json::Value| {
        let mut answers = answers.clone();
        for answer in answers.as_array_mut().expect("an array") {
            if answer["vma"]["name"] == "[vdso]" {
                answer["symbol"] = json!(null);
            }
        }
        answers
    };
    assert_eq!(plain(&live[0]), plain(&saved[0]));
    // A snapshot does not say why there is no build id.
    for place in live[1].as_array_mut().expect("an array") {
        let why = place["no_build_id"].take();
        assert_eq!(why.is_null(), place["file"].is_null() || !place["build_id"].is_null());
    }
    assert_eq!(live[1..], saved[1..]);
    // Beside the kernel's text.
    let list = live[2].as_array().expect("an array");
    let lines: Vec<&str> = maps.lines().filter(|l| !l.ends_with("[vsyscall]")).collect();
    assert_eq!(list.len(), lines.len());
    for (vma, line) in list.iter().zip(lines) {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (start, end) = fields[0].split_once('-').expect("a range");
        assert_eq!(vma["start"], format!("0x{}", start.trim_start_matches('0')));
        assert_eq!(vma["end"], format!("0x{}", end.trim_start_matches('0')));
        assert_eq!((&vma["perms"], &vma["dev"]), (&json!(fields[1]), &json!(fields[3])));
        assert_eq!(vma["name"], fields.get(5).map_or(json!(null), |name| json!(name)));
    }
    for (place, start) in live[1].as_array().expect("an array").iter().zip(&starts) {
        let line = maps.lines().find(|l| l.starts_with(start)).expect("it was asked for");
        let fields: Vec<&str> = line.split_whitespace().collect();
        let offset = u64::from_str_radix(fields[2], 16).expect("a number");
        match fields.get(5).filter(|name| name.starts_with('/')) {
            Some(name) => {
                assert_eq!((&place["file"], &place["offset"]), (&json!(name), &json!(offset)));
            }
            None => assert_eq!(place["reason"].is_null(), line.ends_with("[vdso]"), "{place}"),
        }
    }
}

/// A name of a mapped file may have lines of its own, and commands to a terminal. It has one line, as in the
/// kernel's text; JSON has it as it is.
#[test]
fn names_are_of_one_line_whatever_is_in_them() {
    let (skep, dir) = (Skep::new(), TempDir::new());
    let names = ["new\nline", "red \x1b[31m", "next \u{85} line", "blank at the end ", "tab\there"];
    for name in names {
        std::fs::write(dir.join(name), [0; 4096]).unwrap();
    }
    let source = "#include <fcntl.h>\n#include <stdio.h>\n#include <sys/mman.h>\n#include <unistd.h>\n\
         int main(int c, char **v) {\n\
         for (int i = 1; i < c; i++)\n\
         printf(\"%p\\n\", mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, open(v[i], O_RDONLY), 0));\n\
         puts(\"ready\"); fflush(stdout); sleep(100); return 0; }\n";
    std::fs::write(dir.join("a.c"), source).unwrap();
    let program = Cc::c().compile(&[&dir.join("a.c")], &dir.join("a"));
    let mut command = Command::new(program);
    let mut child = skep_testkit::run::start(command.args(names.map(|name| dir.join(name))), LIMIT);
    let pid = child.id().to_string();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(|line| line.unwrap());
    let addresses: Vec<String> = lines.take_while(|line| line != "ready").collect();
    let list = text(&skep.run(["vma", "list", &pid]).stdout).to_owned();
    let kernel = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let kernel = kernel.lines().filter(|line| !line.ends_with("[vsyscall]"));
    assert_eq!(list.lines().count(), kernel.clone().count());
    for (ours, kernel) in list.lines().zip(kernel) {
        let shown = kernel.replace('\x1b', r"\033").replace('\t', r"\011");
        let shown = shown.replace('\u{85}', r"\302\205");
        let name = shown.get(73..).unwrap_or_default();
        assert!(ours.ends_with(name) && ours.ends_with(' ') == name.ends_with(' '), "{ours:?}");
    }
    let parsed = json(&skep.run(["vma", "list", &pid, "--json"]).stdout);
    for (name, address) in names.iter().zip(&addresses) {
        let path = dir.join(name);
        let has = |v: &serde_json::Value| v["name"].as_str() == path.to_str();
        assert!(parsed.as_array().unwrap().iter().any(has), "{name:?}");
        for args in
            [&["vma", "query", &pid][..], &["vma", "normalize", &pid], &["symbolize", "-p", &pid]]
        {
            let ended = skep.run(args.iter().chain([&&**address]));
            let said = text(&ended.stdout);
            let lines = if args[1] == "query" { 2 } else { 1 };
            let bare = said.replace('\n', "");
            assert!(said.lines().count() == lines && !bare.contains(char::is_control), "{said:?}");
        }
    }
    // What is mapped there is a file of the process, and no other one.
    let ended = skep.run(["symbolize", "-p", &pid, &addresses[0]]);
    let said = text(&ended.stdout);
    assert!(said.contains("new\\012line` is not a program or library"), "{said}");
}

#[test]
fn what_cannot_be_asked_is_said() {
    let skep = Skep::new();
    let pid = std::process::id().to_string();
    let other = skep.path("other").display().to_string();
    std::fs::write(&other, "nothing of the kind").unwrap();
    let cases: [(&[&str], &[u8], i32, &str); 6] = [
        (&["vma", "list", "4194999"], b"", 1, "there is no process `4194999`"),
        (&["vma", "list", &other], b"", 2, "no snapshot, core file or perf.data"),
        (&["vma", "list", "./nosuch"], b"", 2, "cannot read `./nosuch`"),
        (&["vma", "normalize", &pid], b"1000\n2 xyz\n", 2, "line 2 of stdin: `xyz`"),
        (&["vma", "query", &pid], b" \n", 2, "none is on stdin"),
        (&["vma", "query", &pid, "0x0x1"], b"", 2, "hexadecimal address"),
    ];
    for (args, input, status, said) in cases {
        let ended = skep.run_with(args.iter().copied(), input);
        assert_eq!(ended.shell_status(), status, "{}", ended.transcript());
        assert!(text(&ended.stderr).contains(said), "{}", ended.transcript());
    }
    let ended = skep.run(["vma", "normalize", &pid, "10"]);
    let out = text(&ended.stdout);
    assert_eq!((ended.shell_status(), out.split_whitespace().last()), (1, Some("unmapped")));
}

#[test]
fn a_recording_of_several_processes_wants_one_chosen() {
    if !skep_testkit::skip::has_command("perf") {
        return skep_testkit::skip("perf");
    }
    let skep = Skep::new();
    let file = skep.path("perf.data").display().to_string();
    let mut record = Command::new("perf");
    record.args(["record", "-q", "-e", "cpu-clock", "-o", &file, "--"]);
    let ended = run(record.args(["sh", "-c", "ls /; ls /"]), b"", LIMIT);
    if !ended.status.success() {
        return skep_testkit::skip("the right to use perf_event_open");
    }
    let ended = skep.run(["vma", "list", &file]);
    let said = text(&ended.stderr);
    assert_eq!(ended.shell_status(), 2, "{}", ended.transcript());
    assert!(said.contains("choose one by `--pid`") && said.contains("(ls)"), "{said}");
    let pid = said.split(" (ls)").next().and_then(|s| s.rsplit(' ').next()).expect("a number");
    let list = text(&skep.run(["vma", "list", &file, "--pid", pid]).stdout);
    assert!(list.lines().any(|l| l.contains(" r-x") && l.ends_with("/ls")), "{list}");
    assert_eq!(skep.run(["vma", "list", &file, "--pid", "1"]).shell_status(), 1);
}
