//! Which names may be asked for: policies for domains in a trie, and the packets of queries that
//! they decide. The program is `crates/cli/bpf/domains.bpf.c`.

use skep::test_run::Input;
use skep::{Map, Session};

const OBJECT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../cli/bpf/domains.bpf.o");
const DROP: u32 = 1;
const PASS: u32 = 2;

/// Turns a name around: `www.example.com` is `com.example.www`, and what is below `example.com`
/// begins with `com.example`.
fn reversed(name: &str) -> String {
    name.split('.').rev().collect::<Vec<_>>().join(".")
}

/// Sets the policy for a domain and all below it.
fn decide(policies: &Map, domain: &str, action: u32) -> Result<(), skep::maps::MapError> {
    let mut value = [0; 16];
    value[..4].copy_from_slice(&action.to_ne_bytes());
    policies.update(reversed(domain).as_bytes(), &value, 0)
}

/// Makes the packet of a query: Ethernet, IPv4, UDP to port 53, DNS.
fn query(name: &str) -> Vec<u8> {
    let mut packet = vec![0; 54];
    packet[12] = 8;
    packet[14] = 0x45;
    packet[23] = 17;
    packet[37] = 53;
    for label in name.split('.') {
        packet.push(label.len() as u8);
        packet.extend(label.as_bytes());
    }
    packet.extend([0, 0, 1, 0, 1]);
    packet
}

#[allow(clippy::print_stdout, reason = "it is a report")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let session = Session::scratch()?;
    let object = session.load(OBJECT)?;
    let policies = object.map("policies")?;
    decide(&policies, "example.com", DROP)?;
    decide(&policies, "docs.example.com", PASS)?;
    decide(&policies, "org", DROP)?;

    let program = object.program("policy")?;
    for (name, action) in [
        ("example.com", DROP),
        ("WWW.Example.com", DROP),
        ("a.b.c.d.e.example.com", DROP),
        ("docs.example.com", PASS),
        ("v2.docs.example.com", PASS),
        ("olddocs.example.com", DROP),
        ("counterexample.com", PASS),
        ("com", PASS),
        ("kernel.org", DROP),
    ] {
        let got = program.test_run(&Input::data(&query(name)))?.retval;
        assert_eq!(got, action, "{name}");
    }
    for entry in &*policies {
        let (domain, value) = entry?;
        let queries = u64::from_ne_bytes(value[8..16].try_into()?);
        println!("{}: {queries} queries", reversed(&String::from_utf8(domain)?));
    }
    Ok(())
}
