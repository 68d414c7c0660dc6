//! Objects as the templates of aya and libbpf-bootstrap make them.

use skep_test::{Bpf, Given, Packet, json};

/// What rustc's BPF backend made of a program with aya's conventions: maps without types.
#[test]
fn an_object_of_rust_with_maps_as_aya_defines_them() -> skep_test::Result {
    let bpf = Bpf::load(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/aya_like.bpf.o"))?;
    let packet = Packet::udp("10.0.0.1:53", "10.0.0.2:4000").payload(b"hello");
    bpf.run("xdp_firewall", &packet)?.assert_verdict("pass").assert_packet_unchanged();

    // A key without a type is a number, as the program reads the address.
    let source = u32::from_ne_bytes([10, 0, 0, 1]);
    bpf.map("BLOCKLIST")?.put(source, 0)?;
    bpf.run("xdp_firewall", &packet)?.assert_verdict("drop");
    bpf.run("xdp_firewall", &packet)?.assert_verdict("drop");
    // Too short for an address, and another source.
    bpf.run("xdp_firewall", Given::packet([0; 33]))?.assert_verdict("pass");
    bpf.run("xdp_firewall", Packet::tcp("10.0.0.9:1", "10.0.0.1:2"))?.assert_verdict("pass");
    // By verdict: `XDP_DROP` and `XDP_PASS`.
    for (verdict, packets) in [(0, 0), (1, 2), (2, 3)] {
        assert_eq!(bpf.map("PACKETS")?.get(verdict)?, Some(json!(packets)), "{verdict}");
    }

    bpf.map("BLOCKLIST")?.remove(source)?;
    bpf.run("xdp_firewall", &packet)?.assert_verdict("pass");
    Ok(())
}

/// A tracepoint that prints, a uprobe and a uretprobe around one call, read-only data.
#[test]
fn an_object_with_probes_as_libbpf_bootstrap_has_them() -> skep_test::Result {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/bootstrap_like.bpf.o");
    let bpf = Bpf::options(path).global("min_sum", 10).load()?;
    let line = format!("BPF triggered from PID {}, not 0.", std::process::id());
    bpf.run("handle_tp", Given::context([0; 64]))?.assert_printed(&[&line]);

    for (a, b) in [(3, 4), (30, 12)] {
        bpf.run("uprobe_add", Given::call(&[a, b]))?.assert_retval(0);
        bpf.run("uretprobe_add", Given::call(&[a, b]).returned(a + b))?.assert_retval(0);
    }
    // 7 is less than 10. A record is bytes, as a ring of libbpf's has no type: 30, 12, 42.
    assert_eq!(bpf.map("rb")?.contents()?, json!([{"record": "1e0000000c0000002a000000"}]));

    let ours = Bpf::options(path).global("my_pid", std::process::id()).load()?;
    ours.run("handle_tp", Given::context([0; 64]))?.assert_printed(&[]);
    Ok(())
}
