//! Walks of programs whose callbacks change the trie: each element that stays is met once, and in
//! order, whatever becomes of the memory of those that were met.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use skep_isa::KeyShape;
use skep_isa::map::update::ANY;
use skep_maps::KeyRange;
use support::qp_trie::{Callback, errno, fixed, hostile_keys, prog_for_each, strings, uncached};
use support::{Dir, Random, table};

/// Values that do not fit into one store: a new one makes a new leaf.
const LARGE: u32 = 24;
/// Bytes of a key that a walk keeps.
const KEPT: usize = 256;

/// Keys of a set, and others that come and go meanwhile: no key of the one is of the other.
fn two_sets(shape: KeyShape, seed: u64) -> (BTreeSet<Vec<u8>>, Vec<Vec<u8>>) {
    let mut keys = hostile_keys(shape, 800, seed);
    let others = keys.split_off(500);
    (keys.into_iter().collect(), others)
}

#[test]
fn a_callback_may_replace_values_and_meets_each_element_once() {
    let dir = Dir::new();
    let _table = table(&dir, 2);
    for (n, def) in [
        strings(40, LARGE, 2000),
        uncached(strings(40, LARGE, 2000)),
        strings(256, LARGE, 2000),
        // Longer than what a walk keeps of a key: all are met, some may be met again.
        strings(900, LARGE, 2000),
        fixed(16, LARGE, 2000),
        fixed(256, LARGE, 2000),
    ]
    .into_iter()
    .enumerate()
    {
        let map = dir.make(&def);
        let (keys, others) = two_sets(map.key_shape(), 7 + n as u64);
        let value = |n: u8| [n; LARGE as usize];
        for key in keys.iter().chain(&others) {
            assert_eq!(errno(map.update(key, &value(1), ANY)), 0);
        }
        let (callback, mut random) = (Callback(&map), Random(n as u64));
        let mut met: Vec<Vec<u8>> = vec![];
        prog_for_each(&map, |key, _| {
            met.push(key.to_vec());
            // The leaf goes; what comes now takes its place.
            if keys.contains(key) {
                assert_eq!(callback.update(key, &value(2), ANY), 0);
            }
            for _ in 0..4 {
                let other = &others[random.below(others.len() as u64) as usize];
                if random.below(2) == 0 {
                    callback.delete(other);
                } else {
                    assert_eq!(callback.update(other, &value(3), ANY), 0);
                }
            }
        });
        if map.key_shape().max_len() <= KEPT {
            assert!(
                met.is_sorted_by(|a, b| a < b),
                "{:?}: not in order, or twice",
                map.key_shape()
            );
        }
        let met: BTreeSet<_> = met.into_iter().filter(|key| keys.contains(key)).collect();
        assert_eq!(met, keys, "{:?}", map.key_shape());
        for key in &keys {
            assert_eq!(map.lookup(key).expect("it stayed"), value(2));
        }
    }
}

/// The element that the callback was called for goes, and its leaf is another key's at once.
#[test]
fn a_callback_may_delete_each_element() {
    let dir = Dir::new();
    let _table = table(&dir, 2);
    for (n, def) in [strings(40, LARGE, 2000), fixed(16, LARGE, 2000)].into_iter().enumerate() {
        let map = dir.make(&def);
        let (keys, others) = two_sets(map.key_shape(), 70 + n as u64);
        for key in &keys {
            assert_eq!(errno(map.update(key, &[1; LARGE as usize], ANY)), 0);
        }
        let (callback, mut met, mut n) = (Callback(&map), vec![], 0);
        prog_for_each(&map, |key, _| {
            if keys.contains(key) {
                met.push(key.to_vec());
            }
            assert_eq!(callback.delete(key), 0);
            n += 1;
            assert_eq!(callback.update(&others[n % others.len()], &[2; LARGE as usize], ANY), 0);
            callback.delete(&others[n % others.len()]);
        });
        assert_eq!(met, keys.into_iter().collect::<Vec<_>>());
    }
}

/// Changes are rare, so most steps go by the way that is remembered. What is changed before it is met
/// is met as it is then.
#[test]
fn a_walk_that_remembers_its_way_meets_what_is_there() {
    let dir = Dir::new();
    let _table = table(&dir, 2);
    for (n, size) in [(0, 4), (1, LARGE), (2, 4), (3, LARGE)] {
        let map = dir.make(&strings(60, size, 4000));
        let (mut keys, mut others) = two_sets(map.key_shape(), 700 + n);
        // Each of these is a node deeper than the one before: more than what is remembered.
        let deep = |first: u8| (1..50).map(move |len| vec![first; len]);
        keys.extend(deep(b'd'));
        others.extend(deep(b'e'));
        others.retain(|key| !keys.contains(key));
        for every in [1, 2, 3, 7, 40, 1 << 20] {
            let value = |n: u8| vec![n; size as usize];
            for key in keys.iter().chain(others.iter().take(others.len() / 2)) {
                assert_eq!(errno(map.update(key, &value(1), ANY)), 0);
            }
            let (callback, mut random) = (Callback(&map), Random(n ^ every));
            let order: Vec<_> = keys.iter().cloned().collect();
            let mut now: BTreeMap<_, _> = order.iter().map(|key| (key.clone(), 1)).collect();
            let (mut met, mut steps) = (vec![], 0);
            prog_for_each(&map, |key, found| {
                if let Some(want) = now.get(key) {
                    met.push(key.to_vec());
                    assert_eq!(found, value(*want), "{key:?}: not the value that it has");
                }
                steps += 1;
                if steps % every != 0 {
                    return;
                }
                let key = &order[random.below(order.len() as u64) as usize];
                assert_eq!(callback.update(key, &value(steps as u8), ANY), 0);
                now.insert(key.clone(), steps as u8);
                let other = &others[random.below(others.len() as u64) as usize];
                if random.below(2) == 0 {
                    callback.delete(other);
                } else {
                    assert_eq!(callback.update(other, &value(3), ANY), 0);
                }
            });
            assert_eq!(met, order, "changes after every {every} steps");
        }
    }
}

/// Who is shown elements may change the map: what stays is shown once, in either direction.
#[test]
fn a_visitor_may_change_what_it_visits() {
    let dir = Dir::new();
    for (n, def) in [
        strings(40, 8, 4000),
        strings(40, LARGE, 4000),
        strings(3000, 1, 4000),
        // One element at a time does not fit into what is read at once.
        strings(60_000, 4, 4000),
        fixed(7, 3, 4000),
    ]
    .into_iter()
    .enumerate()
    {
        let map = dir.make(&def);
        let mut keys = hostile_keys(map.key_shape(), 1500, 70 + n as u64);
        let others = keys.split_off(1000);
        let value = vec![5; map.user_value_size()];
        for key in keys.iter().chain(&others) {
            assert_eq!(errno(map.update(key, &value, ANY)), 0);
        }
        let stay: BTreeSet<_> = keys.into_iter().collect();
        for reversed in [false, true] {
            let (mut random, mut seen) = (Random(n as u64), vec![]);
            let visited = map.visit(&KeyRange::ALL, reversed, |key, found| {
                assert_eq!(found, value);
                seen.push(key.to_vec());
                let other = &others[random.below(others.len() as u64) as usize];
                if random.below(2) == 0 {
                    let _ = map.delete(other);
                } else {
                    assert_eq!(errno(map.update(other, &value, ANY)), 0);
                }
                ControlFlow::Continue(())
            });
            visited.expect("visits");
            assert!(seen.is_sorted_by(|a, b| if reversed { a > b } else { a < b }), "{n}");
            seen.retain(|key| stay.contains(key));
            let want: Vec<_> = match reversed {
                false => stay.iter().cloned().collect(),
                true => stay.iter().rev().cloned().collect(),
            };
            assert_eq!(seen, want, "{n}");
        }
    }
}
