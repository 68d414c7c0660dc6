//! Tries against a naive model, under writers in several processes, and after their deaths.

mod support;

use std::cmp::Ordering;
use std::collections::BTreeMap;

use skep_isa::map::update::{ANY, EXIST, NOEXIST};
use skep_isa::{MapFlags, MapType};
use skep_maps::{Access, Map, MapDef};
use support::{Dir, Random, forked, rounds};

type Prefix = (u32, Vec<u8>);

fn trie(dir: &Dir, bytes: u32, value: u32, entries: u32) -> Map {
    dir.make(&MapDef::new(MapType::LpmTrie, 4 + bytes, value, entries).flags(MapFlags::NO_PREALLOC))
}

fn key(p: &Prefix) -> Vec<u8> {
    [&p.0.to_ne_bytes()[..], &p.1].concat()
}

fn prefix(key: &[u8]) -> Prefix {
    (u32::from_ne_bytes(key[..4].try_into().expect("four bytes")), key[4..].to_vec())
}

fn bit(data: &[u8], i: u32) -> bool {
    data[i as usize / 8] >> (7 - i % 8) & 1 != 0
}

fn common(a: &Prefix, b: &Prefix) -> u32 {
    (0..a.0.min(b.0)).find(|i| bit(&a.1, *i) != bit(&b.1, *i)).unwrap_or(a.0.min(b.0))
}

/// Cuts the bits that do not count.
fn cut(p: &Prefix) -> Prefix {
    let data = p.1.iter().enumerate().map(|(i, b)| {
        let keep = p.0.saturating_sub(8 * i as u32).min(8);
        (u16::from(*b) & (0xff00 >> keep)) as u8
    });
    (p.0, data.collect())
}

/// The kernel's order: what is below comes first, 0 before 1.
fn order(a: &Prefix, b: &Prefix) -> Ordering {
    let n = common(a, b);
    match (n == a.0, n == b.0) {
        (true, true) => Ordering::Equal,
        (true, false) => Ordering::Greater,
        (false, true) => Ordering::Less,
        _ => bit(&a.1, n).cmp(&bit(&b.1, n)),
    }
}

/// Addresses that share beginnings: few values a byte, all lengths.
fn random_prefix(random: &mut Random, bytes: usize) -> Prefix {
    let data = (0..bytes).map(|_| [0, 0, 1, 0x80, 0xff][random.below(5) as usize]).collect();
    let bits = 8 * bytes as u64;
    let length = if random.below(4) == 0 {
        random.below(bits + 1)
    } else {
        bits - random.below(bits.min(12))
    };
    (length as u32, data)
}

fn value(map: &Map, n: u64) -> Vec<u8> {
    let size = map.def().value_size as usize;
    n.to_ne_bytes().into_iter().cycle().take(size).collect()
}

fn in_order(map: &Map) -> Vec<Prefix> {
    let mut keys = Vec::new();
    let mut at = map.next_key(None).ok();
    while let Some(k) = at {
        at = map.next_key(Some(&k)).ok();
        keys.push(cut(&prefix(&k)));
    }
    keys
}

#[test]
fn it_is_the_model() {
    let dir = Dir::new();
    // The last two have so many nodes that the lengths of long prefixes, or of all, find no room
    // beside the nodes' names.
    for (bytes, size, max) in [
        (1, 8, 40),
        (4, 4, 60),
        (4, 24, 60),
        (16, 8, 100),
        (9, 100, 30),
        (256, 16, 50),
        (16, 8, 1 << 24),
        (4, 8, 1 << 30),
    ] {
        let map = trie(&dir, bytes, size, max);
        let reader = Map::open(map.file().path(), Access::ReadOnly).expect("opens");
        let mut random = Random(u64::from(bytes * 1000 + size));
        let mut model: BTreeMap<Prefix, Vec<u8>> = BTreeMap::new();
        for step in 0..rounds(2000, 200_000) {
            let p = random_prefix(&mut random, bytes as usize);
            let c = cut(&p);
            match random.below(8) {
                0..=3 => {
                    let flags = [ANY, ANY, NOEXIST, EXIST][random.below(4) as usize];
                    let v = value(&map, random.next());
                    let there = model.contains_key(&c);
                    let want = match flags {
                        NOEXIST if there => 17,
                        EXIST if !there => 2,
                        _ if !there && model.len() == max as usize => 28,
                        _ => 0,
                    };
                    assert_eq!(
                        map.update(&key(&p), &v, flags).map_or_else(|e| e.errno(), |()| 0),
                        want,
                        "step {step}"
                    );
                    if want == 0 {
                        model.insert(c, v);
                    }
                }
                4 | 5 => assert_eq!(
                    map.delete(&key(&p)).is_ok(),
                    model.remove(&c).is_some(),
                    "step {step}"
                ),
                _ => {
                    let longest = model
                        .iter()
                        .filter(|(q, _)| q.0 <= p.0 && common(q, &p) == q.0)
                        .max_by_key(|(q, _)| q.0);
                    for map in [&map, &reader] {
                        assert_eq!(
                            map.lookup(&key(&p)).ok(),
                            longest.map(|(_, v)| v.clone()),
                            "step {step}: {p:?}"
                        );
                    }
                    // SAFETY: the key is whole.
                    let found = unsafe { map.prog_lookup(key(&p).as_ptr()) };
                    assert_eq!(found.is_null(), longest.is_none());
                }
            }
            if step % 64 == 0 {
                let mut want: Vec<_> = model.keys().cloned().collect();
                want.sort_by(order);
                assert_eq!(in_order(&map), want, "step {step}");
                let walked: Vec<_> = map.iter().map(|e| e.expect("walks")).collect();
                assert_eq!(
                    walked.iter().map(|(k, _)| cut(&prefix(k))).collect::<Vec<_>>(),
                    want,
                    "step {step}"
                );
                assert!(walked.iter().all(|(k, v)| model[&cut(&prefix(k))] == *v));
            }
        }
    }
}

/// A value every word of which is the key's.
fn stamped(p: &Prefix, size: usize) -> Vec<u8> {
    let c = cut(p);
    let n =
        c.1.iter().fold(u64::from(c.0) + 1, |n, b| n.wrapping_mul(0x100_0000_01b3) ^ u64::from(*b));
    n.to_ne_bytes().into_iter().cycle().take(size).collect()
}

fn storm(map: &Map, seed: u64, steps: u64) {
    let mut random = Random(seed);
    let size = map.def().value_size as usize;
    for _ in 0..steps {
        let p = random_prefix(&mut random, 4);
        match random.below(4) {
            0 | 1 => assert!([0, 28].contains(
                &map.update(&key(&p), &stamped(&p, size), ANY).map_or_else(|e| e.errno(), |()| 0)
            )),
            2 => drop(map.delete(&key(&p))),
            _ => {
                // The value of some prefix of the key, in one piece.
                if let Ok(v) = map.lookup(&key(&p)) {
                    assert!(
                        (0..=p.0).any(|n| stamped(&(n, p.1.clone()), size) == v),
                        "{p:?} has {v:?}"
                    );
                }
            }
        }
    }
}

/// What a survivor must find: a tree in order, with everybody's own values, and room for exactly
/// the rest.
fn check(map: &Map) {
    let size = map.def().value_size as usize;
    let max = map.def().max_entries as usize;
    let walked: Vec<_> = map.iter().map(|e| e.expect("walks")).collect();
    for pair in walked.windows(2) {
        assert_eq!(order(&prefix(&pair[0].0), &prefix(&pair[1].0)), Ordering::Less);
    }
    for (k, v) in &walked {
        assert_eq!(*v, stamped(&prefix(k), size));
        assert_eq!(map.lookup(k).as_ref().ok(), Some(v));
    }
    assert_eq!(in_order(map), walked.iter().map(|(k, _)| cut(&prefix(k))).collect::<Vec<_>>());
    let mut added = Vec::new();
    for i in 0..=max as u32 {
        let p = (32, (0x4000_0000 | i << 3).to_be_bytes().to_vec());
        match map.update(&key(&p), &stamped(&p, size), NOEXIST) {
            Ok(()) => added.push(p),
            Err(e) => assert_eq!((e.errno(), added.len() + walked.len()), (28, max)),
        }
    }
    assert_eq!(added.len() + walked.len(), max, "room for exactly the rest");
    for p in added {
        map.delete(&key(&p)).expect("just put in");
    }
}

#[test]
fn writers_in_many_processes_leave_a_whole_tree() {
    let dir = Dir::new();
    for size in [8, 40] {
        let map = trie(&dir, 4, size, 150);
        let children: Vec<_> = (0..3)
            .map(|c| {
                forked(|| {
                    storm(&map, c, u64::from(rounds(8_000, 2_000_000)));
                    0
                })
            })
            .collect();
        for _ in 0..50 {
            for e in &map {
                let (k, v) = e.expect("walks");
                assert_eq!(v, stamped(&prefix(&k), size as usize));
            }
        }
        for c in children {
            assert_eq!(c.join(), 0);
        }
        check(&map);
    }
}

#[test]
fn a_writer_killed_anywhere_leaves_a_whole_tree() {
    let dir = Dir::new();
    for size in [8, 40] {
        let map = trie(&dir, 4, size, 60);
        let mut random = Random(u64::from(size));
        for _ in 0..rounds(50, 1000) {
            let seed = random.next();
            let victims = [0, 1].map(|v| {
                forked(|| {
                    storm(&map, v + seed, u64::MAX);
                    0
                })
            });
            for _ in 0..random.below(40) * random.below(2_000) {
                std::hint::spin_loop();
            }
            victims.iter().for_each(support::Child::kill);
            for v in victims {
                assert_eq!(v.join(), -9);
            }
            check(&map);
        }
    }
}
