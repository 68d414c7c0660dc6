//! `skep trace --budget`: what is called all the time is let go, and what is not stays.

mod common;

use std::fs;

use common::{Skep, calls, fails, json, text};
use skep_testkit::TempDir;
use skep_testkit::cc::Cc;

/// Calls `hot` until it has its own bytes again, or four minutes are over; prints how often.
const PROGRAM: &str = r#"
#include <stdio.h>
#include <time.h>
#define N __attribute__((noinline, noclone, aligned(16)))
static volatile long sink;
N void hot(long n) { sink += n; asm(""); }
N void cold(void) { sink += 2; asm(""); }
N void after(void) { sink += 3; asm(""); }
int main(void) {
    const volatile unsigned char *code = (const unsigned char *)hot;
    unsigned char hooked = code[0];
    time_t end = time(0) + 240;
    long calls = 0;
    for (int i = 0; i < 7; i++) cold();
    for (; code[0] == hooked && time(0) < end; calls += 1000)
        for (int i = 0; i < 1000; i++) hot(i);
    for (int i = 0; i < 100; i++) { after(); hot(i); }
    printf("%ld\n", calls + 100);
    return code[0] == hooked;
}
"#;

#[test]
fn a_hot_function_is_let_go_and_the_others_stay() {
    let (dir, skep) = (TempDir::new(), Skep::new());
    let source = dir.path().join("spin.c");
    fs::write(&source, PROGRAM).expect("written");
    let program = Cc::c().args(&["-O1"]).compile(&[&source], &dir.path().join("spin"));
    let program = program.to_str().expect("text");
    let file = skep.path("spin.json");
    let file = file.to_str().expect("text");
    let args = ["trace", "spin:hot,cold,after", "--budget", "1%", "--json", "-o", file];
    let ended = skep.run(args.iter().copied().chain(["--", program]));
    assert_eq!(ended.shell_status(), 0, "it is not hooked any more: {}", ended.transcript());
    let made: u64 = text(&ended.stdout).trim().parse().expect("a number");
    let report = json(&fs::read(file).expect("written"));
    let let_go = report["let_go"].as_array().expect("a list");
    let [hot] = let_go.as_slice() else { panic!("{report}") };
    assert_eq!((&hot["name"], &hot["module"]), (&"hot".into(), &"spin".into()));
    // Calls were counted until then, and none after.
    let counted = calls(&report, "hot").expect("it was called");
    assert!(counted > 1000 && counted <= made - 100, "{counted} of {made}");
    assert!(hot["calls"].as_u64() <= Some(counted), "{report}");
    // An estimate, after as little as 50 ms of a busy machine.
    assert!(hot["share"].as_f64() >= Some(0.0), "{report}");
    assert_eq!((calls(&report, "cold"), calls(&report, "after")), (Some(7), Some(100)));

    for wrong in ["5", "x%", "101%"] {
        fails(&skep, &["trace", "x", "--budget", wrong, "--", "true"], 2, "invalid value");
    }
    let args = ["trace", "x", "--budget", "5%", "--tree", "--", "true"];
    fails(&skep, &args, 2, "cannot be used with");
}
