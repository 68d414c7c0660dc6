//! `skep trace --tid` and `--tgid`: rows are those of the threads and processes that a program says
//! it has, with the calls that it made in each.

mod common;

use std::collections::BTreeMap;

use common::{Skep, fails, json, text};
use serde_json::Value as Json;
use skep_testkit::TempDir;
use skep_testkit::cc::Cc;

/// Prints process, thread, name and calls of each thread; ends by a signal if it is told to.
const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#define N __attribute__((noinline, noclone))
static volatile long sink;
N void leaf(void) { sink++; }
N void calls(int n) { for (int i = 0; i < n; i++) leaf(); usleep(5000); }
static void team(const char *name, int n) {
    pthread_setname_np(pthread_self(), name);
    calls(n);
    printf("%d %ld %s %d\n", getpid(), syscall(SYS_gettid), name, n);
    fflush(stdout);
}
static void *work(void *p) {
    char name[16];
    snprintf(name, sizeof(name), "w,%ld", (long)p);
    team(name, 10 * (long)p);
    return 0;
}
int main(int argc, char **argv) {
    pthread_t t[6];
    for (long i = 0; i < 6; i++) pthread_create(t + i, 0, work, (void *)(i + 1));
    for (int i = 0; i < 6; i++) pthread_join(t[i], 0);
    team("first", 7);
    if (!fork()) { team("child", 5); fflush(stdout); _exit(0); }
    wait(0);
    if (argc > 1) abort();
}
"#;

fn program(dir: &TempDir) -> String {
    let source = dir.path().join("team.c");
    std::fs::write(&source, PROGRAM).expect("written");
    let path = Cc::c().args(&["-O1", "-pthread"]).compile(&[&source], &dir.path().join("team"));
    path.to_str().expect("text").to_owned()
}

/// Runs it; what it printed, as thread to process, name and calls, and the report.
fn traced(
    skep: &Skep,
    how: &[&str],
    command: &[&str],
) -> (BTreeMap<u64, (u64, String, u64)>, Json) {
    let report = skep.path("report");
    let file = report.to_str().expect("text");
    let ended = skep
        .run([&["trace", "team:leaf,calls", "--json", "-o", file], how, &["--"], command].concat());
    let mut said = BTreeMap::new();
    for line in text(&ended.stdout).lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [pid, tid, name, calls] = words[..] else { panic!("{}", ended.transcript()) };
        let number = |word: &str| word.parse().expect("a number");
        said.insert(number(tid), (number(pid), name.to_owned(), number(calls)));
    }
    assert_eq!(said.len(), 8, "{}", ended.transcript());
    (said, json(&std::fs::read(report).expect("a report")))
}

fn rows<'r>(report: &'r Json, function: &str) -> Vec<&'r Json> {
    let rows = report["functions"].as_array().expect("rows");
    rows.iter().filter(|r| r["name"] == function).collect()
}

#[test]
fn threads_have_the_calls_they_made() {
    let (dir, skep) = (TempDir::new(), Skep::new());
    let program = program(&dir);
    for command in [&[program.as_str()][..], &[&program, "abort"]] {
        let (said, report) = traced(&skep, &["--tid"], command);
        let got: BTreeMap<u64, (u64, String, u64)> = rows(&report, "leaf")
            .into_iter()
            .map(|r| {
                let number = |key: &str| r[key].as_u64().expect("a number");
                let name = r["comm"].as_str().expect("a name").to_owned();
                (number("tid"), (number("pid"), name, number("calls")))
            })
            .collect();
        assert_eq!(got, said, "{report}");
        let outer = rows(&report, "calls");
        assert_eq!(outer.len(), 8);
        for row in outer {
            assert_eq!(row["calls"], 1);
            assert!(row["total_ns"].as_u64() >= Some(5_000_000), "it sleeps 5 ms: {row}");
        }
    }
}

#[test]
fn processes_have_the_calls_of_their_threads() {
    let (dir, skep) = (TempDir::new(), Skep::new());
    let program = program(&dir);
    let (said, report) = traced(&skep, &["--tgid"], &[&program]);
    let mut want: BTreeMap<u64, u64> = BTreeMap::new();
    for (pid, _, calls) in said.values() {
        *want.entry(*pid).or_default() += calls;
    }
    let leaves = rows(&report, "leaf");
    let number = |r: &Json, key: &str| r[key].as_u64().expect("a number");
    let got: BTreeMap<u64, u64> =
        leaves.iter().map(|r| (number(r, "pid"), number(r, "calls"))).collect();
    assert_eq!((leaves.len(), &got), (2, &want), "{report}");
    assert!(leaves.iter().all(|r| r.get("tid").is_none()));
    let names: Vec<&str> = leaves.iter().filter_map(|r| r["comm"].as_str()).collect();
    assert!(names.contains(&"first") && names.contains(&"child"), "{names:?}");
}

/// A program chooses the names of its threads.
#[test]
fn names_do_not_steer_the_terminal() {
    let (dir, skep) = (TempDir::new(), Skep::new());
    let (source, binary) = (dir.path().join("odd.c"), dir.path().join("odd"));
    let text = PROGRAM.replace("w,%ld", "\\033[2J%ld");
    std::fs::write(&source, text).expect("written");
    let program = Cc::c().args(&["-O1", "-pthread"]).compile(&[&source], &binary);
    let program = program.to_str().expect("text");
    let ended = skep.run(["-q", "trace", "odd:leaf", "--tid", "-o", "/dev/stderr", "--", program]);
    let table = common::text(&ended.stderr);
    assert!(table.contains("?[2J6/") && !table.contains('\u{1b}'), "{table:?}");
}

#[test]
fn tables_and_stacks_name_the_thread() {
    let (dir, skep) = (TempDir::new(), Skep::new());
    let program = program(&dir);
    let folded = dir.path().join("folded");
    let file = folded.to_str().expect("text");
    let args =
        ["trace", "team:*", "--tid", "--limit", "0", "--folded", file, "--", program.as_str()];
    let ended = skep.run(args);
    let table = text(&ended.stdout);
    let head = table.lines().find(|l| l.contains("calls")).expect("a table");
    assert!(head.ends_with("module  thread"), "{table}");
    let row = table.lines().find(|l| l.contains("w,6/")).expect("the sixth");
    assert!(row.contains("team"), "{table}");
    let stacks = std::fs::read_to_string(folded).expect("stacks");
    assert!(stacks.lines().any(|l| l.starts_with("w,6;work;team;calls ")), "{stacks}");
    for other in ["--tree", "--caller", "--tgid", "--args"] {
        fails(&skep, &["trace", "x", "--tid", other, "--", "true"], 2, "cannot be used with");
    }
}
