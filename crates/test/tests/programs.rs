//! Programs of an object on packets and calls: what comes of them, and what a failed assertion says.

use std::panic::{AssertUnwindSafe, catch_unwind};

use skep_test::{Bpf, Damage, Error, Given, Packet, json};

const OBJECT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/firewall.bpf.o");

/// What an assertion that fails says.
fn said(failing: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(failing)).expect_err("it should fail");
    panic.downcast_ref::<String>().expect("a text").clone()
}

#[test]
fn a_test_sees_verdicts_maps_rings_and_printed_lines() -> skep_test::Result {
    let bpf = Bpf::load(OBJECT)?;
    bpf.map("blocked")?.put(json!([10, 0, 0, 1]), 0)?;
    let packet = Packet::udp("10.0.0.1:53", "10.0.0.2:4000").payload(b"hello");
    for times in 1..3 {
        bpf.run("firewall", &packet)?.assert_verdict("drop").assert_printed(&["dropped 47 bytes"]);
        bpf.map("blocked")?.assert(json!([{"key": [10, 0, 0, 1], "value": times}]));
    }
    let record = json!({"record": "0a0000012f000000"});
    assert_eq!(bpf.map("events")?.contents()?, json!([record, record]));
    assert_eq!(bpf.map("events")?.contents()?, json!([]));

    let ran = bpf.run("firewall", Packet::tcp("10.0.0.9:1", "10.0.0.2:80"))?;
    ran.assert_verdict("XDP_PASS").assert_packet_unchanged().assert_printed(&[]);
    assert_eq!(bpf.map("protocols")?.get(6)?, Some(json!(1)));
    assert_eq!(bpf.map("protocols")?.get(17)?, Some(json!(0)));

    assert_eq!(bpf.variable("malformed")?, json!(0));
    let broken = packet.broken(Damage::HeaderLength(4)).expect("it is IPv4");
    bpf.run("firewall", broken)?.assert_verdict("drop");
    assert_eq!(bpf.variable("malformed")?, json!(1));

    assert!(bpf.map("blocked")?.remove(json!([10, 0, 0, 1]))?);
    assert!(!bpf.map("blocked")?.remove(json!([10, 0, 0, 1]))?);
    bpf.map("blocked")?.assert(json!([]));
    bpf.run("firewall", &packet)?.assert_verdict("pass");
    Ok(())
}

#[test]
fn values_of_per_cpu_maps_are_compared_on_any_number_of_cpus() -> skep_test::Result {
    let bpf = Bpf::load(concat!(env!("CARGO_MANIFEST_DIR"), "/../cli/bpf/count.bpf.o"))?;
    let calls = bpf.map("calls")?;
    calls.put(0, 5)?;
    bpf.run("count", Given::call(&[]))?.assert_retval(0);
    calls.assert(json!([{"key": 0, "value": 6}]));

    let all = calls.get(0)?.expect("elements of an array are there");
    calls.assert(json!([{"key": 0, "value": all}]));
    let wrong = said(|| _ = calls.assert(json!([{"key": 0, "value": 5}])));
    assert_eq!(wrong, format!("map `calls`, element 0: value is {all}, expected 5"));
    Ok(())
}

#[test]
fn two_objects_share_nothing_and_options_count_for_one() -> skep_test::Result {
    let (small, other) = (Bpf::options(OBJECT).global("max_size", 60).load()?, Bpf::load(OBJECT)?);
    let packet = Packet::tcp("10.0.0.1:1", "10.0.0.2:2").payload([0; 7]);
    small.run("firewall", &packet)?.assert_verdict("drop");
    other.run("firewall", &packet)?.assert_verdict("pass");
    assert_eq!(small.map("protocols")?.get(6)?, Some(json!(0)));
    assert_eq!(other.map("protocols")?.get(6)?, Some(json!(1)));

    let tight = Bpf::options(OBJECT).program("firewall").max_entries("blocked", 1).load()?;
    tight.map("blocked")?.put(json!([1, 2, 3, 4]), 0)?;
    let full = tight.map("blocked")?.put(json!([1, 2, 3, 5]), 0).expect_err("it is full");
    assert!(full.to_string().starts_with("cannot put [1,2,3,5] into map `blocked`: "), "{full}");
    assert!(tight.run("hop", &packet).is_err(), "it was not loaded");
    Ok(())
}

#[test]
fn a_packet_is_changed_as_it_should_be() -> skep_test::Result {
    let bpf = Bpf::load(OBJECT)?;
    let packet = |ttl| Packet::udp("10.1.2.3:1000", "10.0.0.2:53").id(0xfe00).ttl(ttl).payload("q");
    // The checksum of what comes out is the one that is right for it.
    for ttl in [2, 3, 64, 255] {
        bpf.run("hop", packet(ttl))?.assert_verdict("ok").assert_packet(packet(ttl - 1).bytes());
    }
    bpf.run("hop", packet(1))?.assert_verdict("TC_ACT_SHOT").assert_packet_unchanged();
    Ok(())
}

#[test]
fn calls_are_given_as_arguments_and_results() -> skep_test::Result {
    let bpf = Bpf::load(OBJECT)?;
    for (size, name) in [(40, c"abc"), (50, c"bcd"), (60, c"a")] {
        bpf.run("asked", Given::call(&[size, name.as_ptr() as u64]))?.assert_retval(0);
    }
    // A bad pointer is no crash.
    bpf.run("asked", Given::call(&[1, 8]))?.assert_retval(0);
    bpf.map("sizes")?.assert(json!([{"value": 40}, {"value": 60}]));
    bpf.run("answered", Given::call(&[]).returned(101))?.assert_retval(1);
    bpf.run("answered", Given::call(&[]).returned(100))?.assert_retval(0);
    Ok(())
}

#[test]
fn a_failed_assertion_says_what_differs() -> skep_test::Result {
    let bpf = Bpf::load(OBJECT)?;
    let packet = Packet::udp("10.0.0.1:53", "10.0.0.2:53");
    let ran = bpf.run("firewall", &packet)?;
    assert_eq!(
        said(|| _ = ran.assert_verdict("drop")),
        "`firewall` returned 2 (pass), expected 1 (drop)"
    );
    assert_eq!(said(|| _ = ran.assert_verdict("shot")), "`shot` is no verdict of `xdp` programs");
    assert_eq!(said(|| _ = ran.assert_printed(&["x"])), "`firewall` printed [], expected [\"x\"]");
    assert_eq!(
        said(|| _ = ran.assert_errno("EINVAL")),
        "`firewall` ran, expected to fail with EINVAL"
    );
    let hop = bpf.run("hop", &packet)?;
    let wrong = said(|| _ = hop.assert_packet_unchanged());
    assert!(wrong.starts_with("`hop`: the packet differs at byte 22; from byte 16:\n"), "{wrong}");
    assert!(include_str!("../README.md").contains(&wrong), "{wrong}");
    let map = bpf.map("protocols")?;
    let wrong = said(|| _ = map.assert(json!([{"key": 17, "value": 5}])));
    assert_eq!(wrong, "map `protocols`, element 17: value is 1, expected 5");

    let short = bpf.run("firewall", &[0; 13])?;
    short.assert_errno("EINVAL");
    assert!(said(|| _ = short.retval()).starts_with("`firewall` could not run: "));
    assert!(said(|| _ = short.assert_errno("EPERM")).ends_with("expected EPERM"));
    Ok(())
}

#[test]
fn what_is_not_there_is_an_error_that_names_what_is() -> skep_test::Result {
    let bpf = Bpf::load(OBJECT)?;
    let error = |e: Option<Error>| e.expect("an error").to_string();
    let text = error(bpf.map("bloked").err());
    assert!(text.contains("no map `bloked`") && text.contains("`blocked`"), "{text}");
    let text = error(bpf.run("firewal", &[0; 64]).err());
    assert!(text.contains("no program `firewal`") && text.contains("`firewall`"), "{text}");
    let text = error(bpf.variable("max").err());
    assert!(text.contains("no variable `max`") && text.contains("`malformed`"), "{text}");
    let text = Error::Variable { name: "x".to_owned(), known: Vec::new() }.to_string();
    assert_eq!(text, "the object has no variable `x`; it has none, or was compiled without `-g`");
    let text = error(bpf.map("blocked")?.put(json!({"a": 1}), 1).err());
    assert!(text.starts_with("{\"a\":1} is not a key of map `blocked`: "), "{text}");
    let text = error(Bpf::load("/no/such.bpf.o").err());
    assert!(text.starts_with("cannot read `/no/such.bpf.o`"), "{text}");
    let text = error(Bpf::load(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")).err());
    assert!(text.contains("/Cargo.toml`: "), "{text}");
    let text = error(Bpf::options(OBJECT).program("nothing").load().err());
    assert!(text.contains("no program `nothing`"), "{text}");
    Ok(())
}

/// A program that is refused says why, and how a run gets there.
#[test]
fn a_refused_program_shows_the_path_to_the_fault() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../cli/tests/data/bad.bpf.o");
    let refused = Bpf::load(path).expect_err("it has a fault").to_string();
    let lines: Vec<&str> = refused.lines().collect();
    assert!(lines[0].contains("was rejected"), "{refused}");
    assert!(lines.iter().any(|l| l.starts_with("  ; bad.bpf.c:")), "{refused}");
    assert!(lines.iter().any(|l| l.trim_start().starts_with(char::is_numeric)), "{refused}");
}

/// Tests of one binary run on several threads: each sees the lines of its own programs.
#[test]
fn threads_do_not_see_each_others_lines() {
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            scope.spawn(move || -> skep_test::Result {
                let bpf = Bpf::load(OBJECT)?;
                bpf.map("blocked")?.put(json!([10, 0, 0, thread]), 0)?;
                let packet =
                    Packet::udp((std::net::Ipv4Addr::new(10, 0, 0, thread), 1), "10.1.0.1:1");
                let packet = packet.payload(vec![0; usize::from(thread)]);
                let line = format!("dropped {} bytes", 42 + thread);
                for _ in 0..50 {
                    bpf.run("firewall", &packet)?.assert_printed(&[&line]);
                }
                bpf.map("blocked")?.assert(json!([{"key": [10, 0, 0, thread], "value": 50}]));
                Ok(())
            });
        }
    });
}
