//! `skep chain` on the packets of capture files: explained, measured.

mod common;

use common::{Skep, fails, json, out, text};
use serde_json::json;

/// A directory with a chain of two programs, and a capture of a long, a short and a long packet.
fn prepared() -> Skep {
    let skep = Skep::new();
    let object = concat!(env!("CARGO_MANIFEST_DIR"), "/../skep/tests/data/chain.bpf.o");
    out(&skep, &["chain", "create", "fw", "--quiet"]);
    for program in ["drop_short", "push"] {
        out(&skep, &["chain", "add", "fw", &format!("{object}:{program}"), "--quiet"]);
    }
    std::fs::write(skep.path("in.pcap"), pcap(&[&[1; 64], &[2; 20], &[3; 80]])).unwrap();
    skep
}

/// A pcap file of these packets.
fn pcap(packets: &[&[u8]]) -> Vec<u8> {
    let words = |words: &[u32]| words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<_>>();
    let mut file = words(&[0xa1b2_c3d4, 4 << 16 | 2, 0, 0, 262_144, 1]);
    for packet in packets {
        let len = packet.len() as u32;
        file.extend(words(&[1000, 0, len, len]));
        file.extend_from_slice(packet);
    }
    file
}

#[test]
fn packets_of_a_capture_are_explained_by_number() {
    let skep = prepared();
    let input = skep.path("in.pcap").display().to_string();
    let explain = |more: &[&str]| {
        let args = ["chain", "explain", "fw", "--in", &input, "--json"];
        json(out(&skep, &[&args[..], more].concat()).as_bytes())
    };
    let told = explain(&["--packet", "3", "--packet", "2"]);
    let what = |n: usize| (told[n]["packet"].clone(), told[n]["verdict"].clone());
    assert_eq!([what(0), what(1)], [(json!(3), json!("tx")), (json!(2), json!("drop"))]);
    // `push` puts four bytes before the packet.
    let data = told[0]["data_out"].as_str().unwrap();
    assert_eq!((data.len(), &data[8..]), (2 * 84, "03".repeat(80).as_str()));
    assert_eq!(explain(&[])[0]["packet"], json!(1));
    let args = ["chain", "explain", "fw", "--in", &input];
    fails(&skep, &[&args[..], &["--packet", "4"]].concat(), 1, "has no packet 4");
    fails(&skep, &[&args[..], &["--packet", "0"]].concat(), 1, "has no packet 0");
    std::fs::write(skep.path("in.pcap"), pcap(&[&[1; 13]])).unwrap();
    fails(&skep, &args, 1, "packet 1 has 13 bytes");
    fails(&skep, &["chain", "explain", "fw"], 2, "--data-in");
}

#[test]
fn packets_of_a_capture_go_through_in_turn_when_a_chain_is_measured() {
    let skep = prepared();
    let input = skep.path("in.pcap").display().to_string();
    for engine in ["jit", "interp"] {
        let args = ["chain", "bench", "fw", "--in", &input, "--repeat", "1000", "--json"];
        let told = json(out(&skep, &[&args[..], &["--engine", engine]].concat()).as_bytes());
        assert_eq!((&told["runs"], &told["packets"]), (&json!(1000), &json!(3)));
        // Each packet comes as it was captured: the long ones stay as long as they are.
        assert_eq!(
            told["verdicts"],
            json!({"aborted": 0, "drop": 333, "pass": 0, "tx": 667, "redirect": 0})
        );
        assert_eq!(told["nodes"][0]["bytes"], json!(334 * 64 + 333 * 20 + 333 * 80));
        assert_eq!(told["nodes"][1]["bytes"], json!(334 * 64 + 333 * 80));
        assert!(told["ns"].as_f64() > Some(0.0), "{told}");
    }
    let said = skep.run(["chain", "bench", "fw", "--in", &input, "--repeat", "6"]);
    let said = text(&said.stdout);
    assert!(said.starts_with("6 runs of 3 packets  drop 2  tx 4\n"), "{said}");
    std::fs::write(skep.path("in.pcap"), pcap(&[])).unwrap();
    fails(&skep, &["chain", "bench", "fw", "--in", &input], 1, "has no packets");
}
