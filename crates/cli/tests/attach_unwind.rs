//! `skep trace -p` of programs that unwind their stacks: exceptions, threads that end in the middle of
//! calls, backtraces. The unwinder is the program's own, and knows nothing of a library that its
//! dynamic linker has not loaded.

mod common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Command;

use common::Skep;
use common::live::LIMIT;
use serde_json::Value as Json;
use skep_testkit::TempDir;
use skep_testkit::cc::Cc;
use skep_testkit::run::start;

/// Unwinds through `outer`, `middle` and `inner` until its input ends; then tells what went wrong.
const PROGRAM: &str = r#"
#include <atomic>
#include <cstdio>
#include <cstring>
#include <execinfo.h>
#include <pthread.h>
#include <sched.h>
#include <stdexcept>
#include <sys/prctl.h>
#include <unistd.h>
#define N __attribute__((noinline, noclone, used))
static std::atomic<long> wrong[5], rounds;
static std::atomic<bool> over;
enum How { CATCH, EXIT, CANCEL, LOOK };
struct Counted { int &n; Counted(int &n) : n(n) { n++; } ~Counted() { n--; } };
static void look() {
#ifndef STATIC
    void *at[64];
    int n = backtrace(at, 64);
    // This, inner, middle, outer, body or main, and at least one of the C library's.
    if (n < 6) wrong[LOOK]++;
#endif
}
N long inner(int how, long n, int &alive) {
    Counted c(alive);
    if (how == CATCH && n % 2) throw std::runtime_error("inner");
    if (how == EXIT) pthread_exit((void *)n);
    if (how == CANCEL) for (;;) { pthread_testcancel(); sched_yield(); }
    if (how == LOOK) look();
    return n;
}
N long middle(int how, long n, int &alive) { Counted c(alive); return inner(how, n, alive) + 1; }
N long outer(int how, long n, int &alive) { Counted c(alive); return middle(how, n, alive) + 1; }
N long guarded(long n) {
    int alive = 0;
    long sum = 0;
    try { sum = outer(CATCH, n, alive); }
    catch (std::exception &e) { sum = strcmp(e.what(), "inner") ? -2 : -1; }
    if (alive || sum != (n % 2 ? -1 : n + 2)) wrong[CATCH]++;
    return sum;
}
struct Work { int how; int alive; };
N void *body(void *p) {
    Work *work = (Work *)p;
    outer(work->how, 7, work->alive);
    return nullptr;
}
static void *thread(void *) {
    while (!over) {
        for (long n = 0; n < 20; n++) guarded(n);
#ifndef NO_THREADS
        for (int how : {EXIT, CANCEL, LOOK}) {
            Work work = {how, 0};
            pthread_t t;
            if (pthread_create(&t, nullptr, body, &work)) { wrong[4]++; continue; }
            if (how == CANCEL) pthread_cancel(t);
            pthread_join(t, nullptr);
            // Destructors ran.
            if (work.alive) wrong[how]++;
        }
#endif
        rounds++;
    }
    return nullptr;
}
int main() {
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0); // Where Yama wants it.
    void *warm[4];
    backtrace(warm, 4);
    pthread_t all[3];
    for (auto &t : all) pthread_create(&t, nullptr, thread, nullptr);
    puts("ready");
    fflush(stdout);
    while (getchar() != EOF) {}
    over = true;
    for (auto &t : all) pthread_join(t, nullptr);
    for (auto &n : wrong) printf("%ld ", n.load());
    printf("wrong, %s\n", rounds > 0 ? "some rounds" : "none");
    return 7;
}
"#;

/// Its own functions; of those of the C library some run with all signals blocked.
const OWN: [&str; 5] = ["inner*", "middle*", "outer*", "guarded*", "body*"];

/// Visits a program again and again, in the end for longer if the last report does not show yet what it
/// has to; that report.
fn visited(flags: &[&str], patterns: &[&str], shows: impl Fn(&Json) -> bool) -> Json {
    let (dir, skep) = (TempDir::new(), Skep::new());
    let source = dir.join("unwinds.cc");
    fs::write(&source, PROGRAM).expect("it is written");
    let flags = [&["-O1", "-pthread"], flags].concat();
    let path = Cc::cxx().args(&flags).compile(&[&source], &dir.join("unwinds"));
    let mut running = start(&Command::new(path), LIMIT);
    let mut out = BufReader::new(running.stdout.take().expect("a pipe"));
    let mut line = String::new();
    out.read_line(&mut line).expect("a pipe");
    assert_eq!(line, "ready\n");
    let pid = running.id().to_string();
    let mut report = Json::Null;
    for (round, time) in ["100ms", "100ms", "100ms", "100ms", "3s", "30s"].iter().enumerate() {
        let args = ["trace", "-p", &pid, "--json", "--for", time];
        let done = skep.run(args.iter().chain(patterns));
        assert_eq!(done.shell_status(), 0, "round {round}: {}", done.transcript());
        report = common::json(&done.stdout);
        if round > 2 && shows(&report) {
            break;
        }
    }
    assert!(shows(&report), "{report}");
    drop(running.stdin.take());
    line.clear();
    out.read_line(&mut line).expect("a pipe");
    assert_eq!(running.wait().expect("it ends").code(), Some(7), "{line}");
    assert_eq!(line, "0 0 0 0 0 wrong, some rounds\n");
    report
}

/// Tells whether calls of a function had times, which are taken at its return.
fn is_timed(report: &Json, name: &str) -> bool {
    let functions = report["functions"].as_array().expect("a list");
    let row = functions
        .iter()
        .find(|row| row["name"].as_str().is_some_and(|n| n.split('(').next() == Some(name)));
    row.is_some_and(|row| row["total_ns"].as_u64().is_some_and(|ns| ns > 0))
}

#[test]
fn exceptions_find_their_way() {
    visited(&[], &OWN, |report| is_timed(report, "outer"));
}

#[test]
fn and_in_a_program_that_has_its_unwinder_in_it() {
    visited(&["-static-libgcc", "-static-libstdc++"], &OWN, |_| true);
}

#[test]
fn and_in_a_static_program() {
    visited(&["-static", "-DSTATIC"], &OWN, |report| is_timed(report, "outer"));
}

/// Nobody can tell where its unwinder asks for tables: calls are counted, returns are left alone.
#[test]
fn returns_are_left_alone_where_that_cannot_be() {
    let is_called = |row: &Json| row["calls"].as_u64().is_some_and(|calls| calls > 0);
    let flags = ["-static", "-DSTATIC", "-DNO_THREADS", "-s"];
    let report = visited(&flags, &["*"], |report| {
        report["functions"].as_array().expect("a list").iter().any(is_called)
    });
    let functions = report["functions"].as_array().expect("a list");
    assert!(functions.iter().all(|row| row["total_ns"].as_u64().is_none_or(|ns| ns == 0)));
}
