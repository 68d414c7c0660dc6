//! Queries of names judged by the nearest domain that has a policy (`crates/cli/bpf/domains.bpf.c`),
//! as a test run of packets: what a list of policies says that is searched label by label.

use std::collections::BTreeMap;

use skep::test_run::{Engine, Input};
use skep::{Error, QpTrie, Session};
use skep_testkit::random::Random;

const DROP: u32 = 1;
const PASS: u32 = 2;

/// Action, and queries that it decided, as `struct policy` has them.
type Policy = [u64; 2];

/// Few labels, some of which begin with others.
const LABELS: [&str; 8] = ["a", "ab", "b", "com", "comm", "example", "x-1", "www"];

fn name(random: &mut Random, longest: usize) -> Vec<&'static str> {
    let labels = 1 + random.below(longest);
    (0..labels).map(|_| LABELS[random.below(LABELS.len())]).collect()
}

/// Labels from the last to the first, as keys have them.
fn reversed(name: &[&str]) -> String {
    let labels: Vec<&str> = name.iter().rev().copied().collect();
    labels.join(".")
}

/// A query of a name over UDP, some letters of it in upper case.
fn query(name: &[&str], random: &mut Random) -> Vec<u8> {
    let mut packet = vec![0; 14 + 20 + 8 + 12];
    (packet[12], packet[14], packet[23], packet[37]) = (8, 0x45, 17, 53);
    for label in name {
        packet.push(label.len() as u8);
        packet.extend(label.bytes().map(|byte| match random.below(3) {
            0 => byte.to_ascii_uppercase(),
            _ => byte,
        }));
    }
    packet.extend([0, 0, 1, 0, 1]);
    packet
}

#[test]
fn queries_are_judged_by_the_nearest_domain() -> Result<(), Error> {
    let object = concat!(env!("CARGO_MANIFEST_DIR"), "/../cli/bpf/domains.bpf.o");
    for (seed, engine) in [(1, Engine::Jit), (2, Engine::Interp)] {
        let mut random = Random::new(seed);
        let session = Session::scratch()?;
        let object = session.load(object)?;
        let map = object.map("policies")?;
        let policies: QpTrie<[u8], Policy> = map.typed()?;
        let mut model = BTreeMap::<String, Policy>::new();
        for _ in 0..60 {
            let (domain, action) = (name(&mut random, 3), [DROP, PASS][random.below(2)]);
            model.insert(reversed(&domain), [action.into(), 0]);
        }
        for (domain, policy) in &model {
            policies.insert(domain.as_bytes(), policy)?;
        }
        let runner = object.program("policy")?.runner(engine)?;
        let mut dropped = 0;
        for _ in 0..500 {
            let asked = name(&mut random, 6);
            // Of all names that end as this one does, the longest with a policy.
            let nearest = (0..asked.len()).map(|i| reversed(&asked[i..]));
            let nearest = nearest.into_iter().find(|domain| model.contains_key(domain));
            let want = match nearest.and_then(|domain| model.get_mut(&domain)) {
                Some([action, queries]) => {
                    *queries += 1;
                    *action as u32
                }
                None => PASS,
            };
            let packet = query(&asked, &mut random);
            let done = runner.test_run(&Input::data(&packet)).expect("the packet is a good one");
            assert_eq!(done.retval, want, "{asked:?}, {engine:?}");
            assert_eq!(done.data_out.as_deref(), Some(&packet[..]));
            dropped += u32::from(want == DROP);
        }
        assert!((50..450).contains(&dropped), "{dropped}");
        let found: Result<Vec<_>, Error> = policies.iter().collect();
        let want = model.into_iter().map(|(domain, policy)| (domain.into_bytes(), policy));
        assert_eq!(found?, want.collect::<Vec<_>>());
    }
    Ok(())
}
