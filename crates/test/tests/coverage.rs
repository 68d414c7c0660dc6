//! Which lines of programs a test ran, as lcov has them.

use std::fs;
use std::process::Command;

use skep_test::{Bpf, Packet};
use skep_testkit::TempDir;

const OBJECT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/firewall.bpf.o");

/// Runs alone, in a process of its own, with the variable set.
#[test]
#[ignore = "run by the test below"]
fn three_packets() -> skep_test::Result {
    for _ in 0..3 {
        let bpf = Bpf::load(OBJECT)?;
        bpf.run("firewall", Packet::ethernet(0x0806))?.assert_verdict("pass");
    }
    Ok(())
}

/// As README.md says, of this test alone.
#[test]
fn lines_are_counted_over_all_tests_of_a_process() {
    let dir = TempDir::new();
    let lcov = dir.join("lcov");
    let ran = Command::new(std::env::current_exe().expect("it runs"))
        .args(["--ignored", "--exact", "three_packets"])
        .env("SKEP_TEST_LCOV", &lcov)
        .output()
        .expect("it can be run");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let files: Vec<_> = fs::read_dir(&lcov).expect("it was made").flatten().collect();
    assert_eq!(files.len(), 1, "{files:?}");
    let text = fs::read_to_string(files[0].path()).expect("a text");

    let source = include_str!("data/firewall.bpf.c");
    let line = |what: &str| 1 + source.lines().position(|l| l.contains(what)).expect(what);
    let count = |n: usize| {
        text.lines().find_map(|l| l.strip_prefix(&format!("DA:{n},"))?.parse::<u64>().ok())
    };
    assert!(text.contains("SF:") && text.contains("firewall.bpf.c\n"), "{text}");
    assert_eq!(count(line("if (eth->h_proto != bpf_htons(ETH_P_IP))")), Some(3));
    // Those that no packet reached, and those of a program that did not run.
    assert_eq!(count(line("malformed++;")), Some(0));
    assert_eq!(count(line("ip->ttl--;")), Some(0));
    assert!(text.contains("FNDA:3,firewall\n") && text.contains("FNDA:0,hop\n"), "{text}");
}
