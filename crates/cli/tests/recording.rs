//! `skep trace --record` and `skep report`: what is shown later is what was shown then, and nothing
//! else is needed for it.

mod common;

use std::fs;

use common::{Skep, calls, fails, json, out, text};
use serde_json::Value as Json;
use skep_testkit::TempDir;
use skep_testkit::cc::Cc;

const PROGRAM: &str = r#"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#define N __attribute__((noinline, noclone))
static volatile long sink;
N long leaf(long n) { for (long i = 0; i < n; i++) sink += i; return sink + 1; }
N long left(long n) { return leaf(n) + leaf(n) + 1; }
N long right(long n) { return leaf(2 * n) + left(n) + 1; }
N long recurse(long n) { return n < 2 ? leaf(1) + 1 : n + recurse(n - 1); }
N int named(const char *name, int n) { sink += strlen(name) + n; return n - 1; }
N void *work(void *p) { for (int i = 0; i < 5; i++) right(100); return p; }
N void last(void) { leaf(3); exit(3); }
int main() {
    pthread_t t[3];
    for (int i = 0; i < 3; i++) pthread_create(t + i, 0, work, 0);
    for (int i = 0; i < 3; i++) pthread_join(t[i], 0);
    for (int i = 0; i < 7; i++) left(1000);
    recurse(5);
    named("a \"name\"", 7);
    last();
}
"#;

/// How often each function is called.
const CALLS: [(&str, u64); 8] = [
    ("leaf", 15 + 30 + 14 + 1 + 1),
    ("left", 15 + 7),
    ("right", 15),
    ("recurse", 5),
    ("named", 1),
    ("work", 3),
    ("last", 1),
    ("main", 1),
];

fn program(dir: &TempDir) -> String {
    let source = dir.path().join("parts.c");
    fs::write(&source, PROGRAM).expect("written");
    let flags = ["-g", "-O1", "-pthread", "-fno-optimize-sibling-calls"];
    let path = Cc::c().args(&flags).compile(&[&source], &dir.path().join("parts"));
    path.to_str().expect("text").to_owned()
}

/// Runs `skep` on the program, which ends with 3, and so does `skep trace`.
fn traced(skep: &Skep, args: &[&str]) -> String {
    let ended = skep.run(args);
    assert_eq!(ended.shell_status(), 3, "{args:?}: {}", ended.transcript());
    text(&ended.stdout)
}

#[test]
fn a_report_later_is_the_report_of_the_run() {
    let (dir, skep) = (TempDir::new(), Skep::new());
    let program = program(&dir);
    let file = |name: &str| dir.path().join(name).to_str().expect("text").to_owned();
    let (recording, names) = (file("run.skep"), ["a.svg", "a.folded", "a.pb"]);
    let forms = |at: &str| -> Vec<String> {
        let options = ["--flame", "--folded", "--pprof"].iter().zip(names);
        options.flat_map(|(o, name)| [(*o).to_owned(), file(&format!("{at}{name}"))]).collect()
    };
    let mut run: Vec<String> = ["trace", "parts:*", "--tree", "--record", &recording]
        .map(str::to_owned)
        .into_iter()
        .chain(forms("run-"))
        .collect();
    run.extend(["--".to_owned(), program.clone()]);
    let run: Vec<&str> = run.iter().map(String::as_str).collect();
    let tree = traced(&skep, &run);
    // Another machine: neither the program, nor its source, nor the skep directory is there.
    fs::remove_file(&program).expect("it was there");
    let elsewhere = Skep::new();
    let mut report: Vec<String> = ["report", &recording, "--tree"]
        .map(str::to_owned)
        .into_iter()
        .chain(forms("later-"))
        .collect();
    let options: Vec<&str> = report.iter().map(String::as_str).collect();
    assert_eq!(out(&elsewhere, &options), tree);
    for name in names {
        let read = |at: &str| fs::read(file(&format!("{at}{name}"))).expect("written");
        assert!(!read("run-").is_empty());
        assert_eq!(read("run-"), read("later-"), "{name}");
    }
    report.truncate(2);
    for form in ["--graph", "--caller", "--csv", "--sort=calls"] {
        let text = out(&elsewhere, &["report", &recording, form]);
        assert!(text.contains("recurse"), "{form}: {text}");
    }
    // Deeper calls are left out, and their time is their callers'.
    let all = json(out(&elsewhere, &["report", &recording, "--json"]).as_bytes());
    let flat = json(out(&elsewhere, &["report", &recording, "--json", "--depth", "1"]).as_bytes());
    let total = |report: &Json, name: &str| {
        let all = report["functions"].as_array().expect("functions");
        all.iter().find(|f| f["name"] == name).map(|f| f["total_ns"].as_u64().expect("a time"))
    };
    assert_eq!((total(&flat, "leaf"), total(&flat, "recurse")), (None, None));
    assert_eq!(total(&flat, "main"), total(&all, "main"));
    for (name, count) in CALLS {
        assert_eq!(calls(&all, name), Some(count), "{name}");
    }
    let shortest = out(&elsewhere, &["report", &recording, "--min", "10h"]);
    assert_eq!(shortest.lines().count(), 1, "{shortest}");
}

#[test]
fn json_of_the_run_is_that_of_the_recording() {
    let (dir, skep) = (TempDir::new(), Skep::new());
    let program = program(&dir);
    let recording = skep.path("run.skep");
    let recording = recording.to_str().expect("text");
    let pattern = "parts:*";
    let args = ["trace", pattern, "--tid", "--json", "--record", recording, "--", &program];
    let run = traced(&skep, &args);
    assert_eq!(out(&skep, &["report", recording, "--tid", "--json"]), run);
    // Threads are added up where they are not asked for, as if they had not been told apart.
    let plain = json(out(&skep, &["report", recording, "--json"]).as_bytes());
    for (name, count) in CALLS {
        assert_eq!(calls(&plain, name), Some(count), "{name}");
    }
    let nodes = plain["tree"].as_array().expect("a tree");
    let paths = |name: &str| nodes.iter().filter(|n| n["name"] == name).count();
    assert_eq!((paths("work"), paths("right"), paths("leaf")), (1, 1, 5), "{plain}");
}

#[test]
fn single_calls_are_recorded_with_their_values() {
    let (dir, skep) = (TempDir::new(), Skep::new());
    let program = program(&dir);
    let recording = skep.path("calls.skep");
    let recording = recording.to_str().expect("text");
    let lines = traced(
        &skep,
        &["trace", "parts:*", "--args", "--ret", "--record", recording, "--", &program],
    );
    assert!(lines.contains(r#"named(name="a \"name\"", n=7) = 6"#), "{lines}");
    assert_eq!(out(&skep, &["report", recording, "--calls"]), lines);
    // What the calls add up to, in each form.
    let report = json(out(&skep, &["report", recording, "--json", "--calls"]).as_bytes());
    let found =
        report["calls"].as_array().expect("calls").iter().find(|c| c["function"] == "named");
    let found = found.expect("it was called");
    assert_eq!(
        (&found["args"], &found["ret"]),
        (&serde_json::json!({"name": "a \"name\"", "n": 7}), &6.into())
    );
    let summed = json(out(&skep, &["report", recording, "--json"]).as_bytes());
    for (name, count) in CALLS {
        assert_eq!(calls(&summed, name), Some(count), "{name}");
    }
    let nodes = summed["tree"].as_array().expect("a tree");
    let paths = |name: &str| nodes.iter().filter(|n| n["name"] == name).count();
    assert_eq!((paths("recurse"), paths("leaf"), paths("left")), (5, 5, 2), "{summed}");
    let chrome = skep.path("calls.json");
    let chrome = chrome.to_str().expect("text");
    out(&skep, &["report", recording, "--chrome", chrome]);
    let events = json(&fs::read(chrome).expect("written"));
    let events = events["traceEvents"].as_array().expect("events");
    let count = |name: &str| events.iter().filter(|e| e["name"] == name).count() as u64;
    for (name, calls) in CALLS {
        assert_eq!(count(name), calls, "{name}");
    }
    assert_eq!(count("process_name"), 1);
    let perfetto = skep.path("calls.pftrace");
    out(&skep, &["report", recording, "--perfetto", perfetto.to_str().expect("text")]);
    assert!(fs::metadata(perfetto).expect("written").len() > 100);
    let threads = out(&skep, &["report", recording, "--tid", "--limit", "0"]);
    assert_eq!(threads.lines().filter(|l| l.contains("  work ")).count(), 3, "{threads}");
}

#[test]
fn what_cannot_be_read_or_written_is_said() {
    let (dir, skep) = (TempDir::new(), Skep::new());
    let program = program(&dir);
    let file = |name: &str| skep.path(name).to_str().expect("text").to_owned();
    let recording = file("run.skep");
    traced(&skep, &["trace", "parts:main,leaf", "--record", &recording, "--", &program]);
    let whole = fs::read(&recording).expect("written");
    let damaged = file("damaged.skep");
    for (bytes, why) in [
        (&whole[..whole.len() - 1], "cut off or damaged"),
        (&whole[..20], "cut off or damaged"),
        (&[][..], "is no recording"),
        (b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\0", "is no recording"),
        (b"SKEPREC\n\x07\0\0\0\0\0\0\0", "is of version 7"),
    ] {
        fs::write(&damaged, bytes).expect("written");
        fails(&skep, &["report", &damaged], 2, why);
    }
    let mut changed = whole.clone();
    changed[40] ^= 1;
    fs::write(&damaged, changed).expect("written");
    fails(&skep, &["report", &damaged], 2, "cut off or damaged");
    fails(&skep, &["report", &file("none")], 2, "cannot read");
    fails(&skep, &["report", &recording, "--calls"], 2, "not single calls");
    fails(&skep, &["report", &recording, "--chrome", &damaged], 2, "not single calls");
    fails(&skep, &["report", &recording, "--tid"], 2, "threads are not told apart");
    // The report is printed all the same, and what could not be written is told.
    let args = ["trace", "parts:main,leaf", "--record", "/dev/full", "--", "/bin/true"];
    let ended = skep.run(args.iter().take(4).copied().chain(["--", &program]));
    let said = text(&ended.stderr);
    assert!(said.contains("cannot write to `/dev/full`"), "{said}");
    assert!(text(&ended.stdout).contains("leaf"), "{}", ended.transcript());
    fails(
        &skep,
        &["trace", "x", "--record", "a", "--chrome", "b", "--", "true"],
        2,
        "cannot be used",
    );
    fails(&skep, &["trace", "x", "--calls", "--", "true"], 2, "--record");
}
