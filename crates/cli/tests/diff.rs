//! `skep trace --diff`: two traces of a program that does more of one thing and less of another.

mod common;

use std::fs;

use common::{Skep, fails, json, out};
use skep_testkit::TempDir;
use skep_testkit::cc::Cc;

const PROGRAM: &str = r#"
#include <stdlib.h>
static volatile long sink;
#define N __attribute__((noinline, noclone))
N void slow(long n) { for (long i = 0; i < n; i++) sink += i; }
N void rare(void) { slow(10); sink++; }
N void same(void) { sink += 2; sink -= 1; }
int main(int argc, char **argv) {
    int n = atoi(argv[1]);
    for (int i = 0; i < n; i++) { slow(20000); same(); }
    for (int i = n; i < 30; i++) same();
    if (n > 10) rare();
    return 0;
}
"#;

#[test]
fn what_changed_is_shown() {
    let (dir, skep) = (TempDir::new(), Skep::new());
    let source = dir.path().join("work.c");
    fs::write(&source, PROGRAM).expect("written");
    let program = Cc::c().args(&["-O1"]).compile(&[&source], &dir.path().join("work"));
    let program = program.to_str().expect("text");
    let file = |name: &str| dir.path().join(name).to_str().expect("text").to_owned();
    let (before, after) = (file("before.json"), file("after.json"));
    for (name, n) in [(&before, "10"), (&after, "20")] {
        let pattern = "work:main,slow,rare,same";
        out(&skep, &["trace", pattern, "--exact", "--json", "-o", name, "--", program, n]);
    }
    let document = json(out(&skep, &["trace", "--diff", &before, &after, "--json"]).as_bytes());
    let functions = document["functions"].as_array().expect("functions");
    let of = |name: &str| functions.iter().find(|f| f["name"] == name).expect("it was called");
    assert_eq!(functions.len(), 4);
    let changes: Vec<u64> = functions
        .iter()
        .map(|f| f["self_diff_ns"].as_i64().expect("a number").unsigned_abs())
        .collect();
    assert!(changes.is_sorted_by(|a, b| a >= b), "{changes:?}");
    let of_slow = of("slow");
    assert_eq!((&of_slow["before"]["calls"], &of_slow["after"]["calls"]), (&10.into(), &21.into()));
    let nanos = |side: &str| of_slow[side]["self_ns"].as_i64().expect("it was timed");
    assert_eq!(of_slow["self_diff_ns"].as_i64(), Some(nanos("after") - nanos("before")));
    assert_eq!(
        (of("same")["calls_diff"].as_i64(), of("rare")["before"].is_null()),
        (Some(0), true)
    );
    let table =
        out(&skep, &["trace", "--diff", &before, &after, "--sort", "calls", "--limit", "2"]);
    let lines: Vec<Vec<&str>> =
        table.lines().map(|l| l.split_ascii_whitespace().collect()).collect();
    assert_eq!(lines.len(), 3);
    assert_eq!((lines[1][0], lines[1][1], lines[1][5]), ("10", "21", "slow"));
    // A report and itself.
    let table = out(&skep, &["trace", "--diff", &after, &after]);
    assert!(
        table.lines().skip(1).all(|l| l.split_ascii_whitespace().nth(4) == Some("=")),
        "{table}"
    );

    fails(&skep, &["trace", "--diff", &before, &file("none")], 2, "cannot read");
    fails(&skep, &["trace", "--diff", &before, program], 2, "not a report that can be compared");
    fails(&skep, &["trace", "--diff", &before], 2, "2 values required");
    fails(&skep, &["trace", "--diff", &before, &after, "--", "true"], 2, "cannot be used with");
}
