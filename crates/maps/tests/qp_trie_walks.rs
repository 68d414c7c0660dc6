//! Walks of programs whose callbacks change the trie: each element that stays is met once, and in
//! order, whatever becomes of the memory of those that were met.

mod support;

use std::collections::BTreeSet;

use skep_isa::KeyShape;
use skep_isa::map::update::ANY;
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
