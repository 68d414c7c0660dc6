//! `skep run -p`: programs of objects on the functions of a process that runs already.

mod common;

use std::collections::BTreeMap;

use common::live::{Target, Tracer, changed};
use common::{Skep, data, fails, object, text};
use serde_json::{Value as Json, json};

/// What per-CPU counters of one element add up to.
fn total(report: &Json, map: &str) -> u64 {
    let maps = report["maps"].as_array().expect("a list");
    let found = maps.iter().find(|m| m["map"]["name"] == map).expect("the map");
    let values = found["entries"][0]["value"].as_array().expect("one for each processor");
    values.iter().map(|n| n.as_u64().expect("a number")).sum()
}

/// Counts are exact on old and new threads and in children, round after round; the document says
/// where the programs were, and afterwards the process is as before.
#[test]
fn programs_count_while_they_are_attached_and_no_longer() {
    let (skep, mut target) = (Skep::new(), Target::dynamic());
    target.tell("threads 10");
    let before = target.state();
    for round in 0..3 {
        let args = [&object("count.bpf.o"), "--attach", "count=target:work"];
        let tracer = Tracer::start(&skep, &target, "run", &args);
        target.tell("threads 100");
        target.tell("nest 5");
        target.tell("fork 30");
        let report = tracer.end();
        assert_eq!(total(&report, "calls"), 800 + 12 + 30, "round {round}: {report}");
        let where_it_was = json!([target.pid()]);
        assert_eq!((&report["pids"], &report["command"]), (&where_it_was, &Json::Null));
        assert_eq!(report["status"], Json::Null);
        assert_eq!(report["programs"][0]["sites"]["attached"], 1);
        let after = target.state();
        assert!(after.code == before.code, "{}", changed(&before, &after));
        assert_eq!(after.rest(), before.rest());
    }
    target.end();
}

/// A thread of the program opens the inner map, in the middle of an event: by a directory that only the agent's
/// thread has open.
#[test]
fn an_inner_map_that_comes_later() {
    let (skep, mut target) = (Skep::new(), Target::dynamic());
    let args = [&data("inner.bpf.o"), "--attach", "count=target:work"];
    let tracer = Tracer::start(&skep, &target, "run", &args);
    target.tell("main 10");
    let said = |args: &[&str]| {
        let ended = skep.run(args);
        assert_eq!(ended.shell_status(), 0, "{}", ended.transcript());
        text(&ended.stdout).trim().to_owned()
    };
    let sizes = ["--key-size", "4", "--value-size", "8", "--entries", "1"];
    let create = ["map", "create", "later", "--type", "array"];
    let id = said(&[&create[..], &sizes].concat());
    said(&["map", "update", "outer", "0", &id]);
    target.tell("main 7");
    target.tell("threads 3");
    // Eight threads.
    assert_eq!(said(&["map", "lookup", "later", "0"]), format!("0: {}", 7 + 24));
    tracer.end();
    target.end();
}

/// A section's own target, `bpf_trace_printk`, typed maps: what `skep run -- COMMAND` prints.
#[test]
fn two_objects_and_several_processes() {
    let skep = Skep::new();
    let (mut one, mut two) = (Target::dynamic(), Target::dynamic());
    let second = two.pid().to_string();
    let (count, sizes) = (object("count.bpf.o"), object("args.bpf.o"));
    let args = [&*count, &sizes, "--attach", "count=target:work", "-p", &second];
    let tracer = Tracer::start(&skep, &one, "run", &args);
    one.tell("main 7");
    two.tell("main 5");
    let report = tracer.end();
    assert_eq!(total(&report, "calls"), 12, "{report}");
    let names: BTreeMap<&str, u64> = report["programs"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|p| {
            let processes = p["processes"].as_array().map_or(0, Vec::len);
            (p["name"].as_str().expect("a name"), processes as u64)
        })
        .collect();
    assert!(names.values().all(|processes| *processes == 2), "{names:?}");
    one.end();
    two.end();
}

/// The end: by time, with the process, by an error; each in one sentence.
#[test]
fn how_it_ends_and_what_is_refused() {
    let (skep, mut target) = (Skep::new(), Target::dynamic());
    let (pid, count) = (target.pid().to_string(), object("count.bpf.o"));
    let timed =
        skep.run(["run", &count, "--attach", "count=target:idle", "-p", &pid, "--for", "200ms"]);
    assert_eq!(timed.status.code(), Some(0), "{}", timed.transcript());
    let text = String::from_utf8_lossy(&timed.stdout);
    assert!(text.contains("calls (percpu_array"), "{}", timed.transcript());
    let before = target.state();
    fails(
        &skep,
        &["run", &count, "--attach", "count=nosuch", "-p", &pid],
        1,
        "no function matches",
    );
    fails(&skep, &["run", &count, "-p", &pid], 2, "names no function");
    fails(&skep, &["run", &count, "-p", "4194399", "--attach", "count=x"], 2, "4194399");
    let both = skep.run(["run", &count, "-p", &pid, "--", "true"]);
    assert_eq!(both.status.code(), Some(2), "{}", both.transcript());
    assert!(target.state() == before);
    let args = [&*count, "--attach", "count=target:work"];
    let tracer = Tracer::start(&skep, &target, "run", &args);
    target.tell("main 3");
    target.end();
    assert_eq!(total(&tracer.wait(), "calls"), 3);
}
