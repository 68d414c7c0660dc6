//! The example of README.md, which stands there as it does here.

use skep_test::{Bpf, Packet, json};

#[test]
fn a_blocked_source_is_dropped_and_counted() -> skep_test::Result {
    let bpf = Bpf::load("tests/data/firewall.bpf.o")?;
    bpf.map("blocked")?.put(json!([10, 0, 0, 1]), 0)?;

    let packet = Packet::udp("10.0.0.1:53", "10.0.0.2:4000").payload(b"hello");
    bpf.run("firewall", &packet)?.assert_verdict("drop").assert_printed(&["dropped 47 bytes"]);
    bpf.map("blocked")?.assert(json!([{ "key": [10, 0, 0, 1], "value": 1 }]));

    let other = Packet::tcp("10.0.0.9:4000", "10.0.0.2:80").tcp_flags("SYN");
    bpf.run("firewall", &other)?.assert_verdict("pass").assert_packet_unchanged();
    assert_eq!(bpf.map("protocols")?.get(6)?, Some(json!(1)));
    Ok(())
}

#[test]
fn the_readme_has_this_example() {
    let readme = include_str!("../README.md");
    let (_, example) = include_str!("readme.rs").split_once("\n\n").expect("a first line");
    let (example, _) = example.split_once("\n#[test]\nfn the_readme").expect("this function");
    assert!(readme.contains(&format!("```rust,ignore\n{example}```")), "{example}");
}
