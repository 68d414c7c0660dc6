//! LRU hashes: a full map makes room by throwing out what was not used for longest, whoever writes
//! and whoever dies.

mod support;

use std::collections::{BTreeMap, VecDeque};

use skep_isa::MapType;
use skep_isa::map::update::{ANY, EXIST, NOEXIST};
use skep_maps::{Map, MapDef, slots};
use support::{Dir, Random, forked, rounds, table, words};

fn put(map: &Map, key: u64, flags: u64) -> i32 {
    let mut value = vec![0; map.user_value_size()];
    value[..8].copy_from_slice(&key.to_ne_bytes());
    map.update(&key.to_ne_bytes(), &value, flags).map_or_else(|e| e.errno(), |()| 0)
}

fn use_it(map: &Map, key: u64) -> bool {
    // SAFETY: keys have eight bytes; the thread has a slot.
    !unsafe { map.prog_lookup(key.to_ne_bytes().as_ptr()) }.is_null()
}

fn keys(map: &Map) -> Vec<u64> {
    let mut keys: Vec<u64> = map.iter().map(|e| words(&e.expect("walks").0)[0]).collect();
    keys.sort_unstable();
    keys
}

/// A small map throws out exactly the least recently used element: a queue is the model.
#[test]
fn a_small_map_throws_out_the_least_recently_used() {
    let dir = Dir::new();
    table(&dir, 4);
    for t in [MapType::LruHash, MapType::LruPercpuHash] {
        for (n, value) in [(1u32, 8), (7, 8), (40, 24)] {
            let map = dir.make(&MapDef::new(t, 8, value, n));
            let mut model: VecDeque<u64> = VecDeque::new();
            let mut random = Random(u64::from(n));
            let entered = slots::enter();
            for step in 0..4000 {
                let key = random.below(u64::from(n) * 2);
                let at = model.iter().position(|k| *k == key);
                match random.below(8) {
                    0 => {
                        assert_eq!(map.delete(&key.to_ne_bytes()).is_ok(), at.is_some());
                        at.map(|i| model.remove(i));
                    }
                    1 | 2 => {
                        assert_eq!(
                            use_it(&map, key),
                            at.is_some(),
                            "{t} {n} step {step}: key {key}, model {model:?}"
                        );
                        // Uses between two insertions count as one moment; one key at a time keeps
                        // the model simple.
                        if let Some(i) = at {
                            model.remove(i);
                            model.push_back(key);
                            assert_eq!(
                                map.delete(&key.to_ne_bytes()).map_err(|e| e.errno()),
                                Ok(())
                            );
                            assert_eq!(put(&map, key, NOEXIST), 0);
                        }
                    }
                    3 => {
                        // A look by a user is no use.
                        assert_eq!(map.lookup(&key.to_ne_bytes()).is_ok(), at.is_some());
                    }
                    4 => assert_eq!(put(&map, key, EXIST) == 2, at.is_none()),
                    _ => {
                        assert_eq!(put(&map, key, NOEXIST), if at.is_some() { 17 } else { 0 });
                        if at.is_none() {
                            if model.len() == n as usize {
                                let oldest = model.front().copied();
                                let gone: Vec<u64> = model
                                    .iter()
                                    .copied()
                                    .filter(|k| map.lookup(&k.to_ne_bytes()).is_err())
                                    .collect();
                                assert_eq!(gone.len(), 1, "one went");
                                // Stores with EXIST above refresh too; so the model learns who
                                // went, and checks only its age.
                                let age =
                                    model.iter().position(|k| *k == gone[0]).expect("in the model");
                                assert!(oldest.is_some() && age < n as usize);
                                model.remove(age);
                            }
                            model.push_back(key);
                        }
                    }
                }
                let mut sorted: Vec<u64> = model.iter().copied().collect();
                sorted.sort_unstable();
                assert_eq!(keys(&map), sorted, "{t} {n} step {step}");
            }
            slots::exit(entered);
        }
    }
}

#[test]
fn the_order_of_uses_decides() {
    let dir = Dir::new();
    table(&dir, 4);
    let map = dir.make(&MapDef::new(MapType::LruHash, 8, 8, 4));
    let entered = slots::enter();
    for key in 0..4 {
        assert_eq!(put(&map, key, NOEXIST), 0);
    }
    // 0 and 2 are used: 1, then 3 go; then 0 and 2 in the order of their uses, which came before 4
    // and 5.
    assert!(use_it(&map, 0));
    assert_eq!(put(&map, 4, ANY), 0);
    assert_eq!(keys(&map), [0, 2, 3, 4]);
    assert!(use_it(&map, 2));
    assert_eq!(put(&map, 5, ANY), 0);
    assert_eq!(keys(&map), [0, 2, 4, 5]);
    assert_eq!(put(&map, 6, ANY), 0);
    assert_eq!(keys(&map), [2, 4, 5, 6]);
    slots::exit(entered);
}

/// The working set of a cache stays although ten times as much passes through.
#[test]
fn what_is_used_stays_in_a_large_map() {
    let dir = Dir::new();
    table(&dir, 4);
    let map = dir.make(&MapDef::new(MapType::LruHash, 8, 8, 10_000));
    let entered = slots::enter();
    for key in 0..1000 {
        assert_eq!(put(&map, key, NOEXIST), 0);
    }
    for passing in 0..100_000u64 {
        assert_eq!(put(&map, 1_000_000 + passing, ANY), 0);
        assert!(
            use_it(&map, passing % 1000) || passing < 1000,
            "key {} was in use",
            passing % 1000
        );
    }
    slots::exit(entered);
    assert_eq!((0..1000u64).filter(|k| map.lookup(&k.to_ne_bytes()).is_err()).count(), 0);
    assert_eq!(keys(&map).len(), 10_000);
}

fn storm(map: &Map, seed: u64, steps: u64) {
    let mut random = Random(seed);
    for _ in 0..steps {
        let key = random.below(500);
        let r = match random.below(4) {
            0 => map.delete(&key.to_ne_bytes()).map_or_else(|e| e.errno(), |()| 0),
            1 => map
                .lookup(&key.to_ne_bytes())
                .map_or_else(|e| e.errno(), |v| i32::from(words(&v)[0] != key) * 1000),
            _ => put(map, key, ANY),
        };
        assert!([0, 2].contains(&r), "{r}");
    }
}

/// Whole elements with their own values, never more than allowed, and every insertion succeeds.
fn check(map: &Map) {
    let mut seen = BTreeMap::new();
    for e in map {
        let (k, v) = e.expect("walks");
        assert_eq!(k, v[..8]);
        assert!(seen.insert(k, v).is_none(), "twice");
    }
    let max = map.def().max_entries as usize;
    assert!(seen.len() <= max);
    for key in 1_000..1_000 + max as u64 {
        assert_eq!(put(map, key, NOEXIST), 0);
    }
    assert_eq!(keys(map).len(), max, "and nothing is lost");
    for key in keys(map).into_iter().filter(|k| *k >= 1000) {
        map.delete(&key.to_ne_bytes()).expect("shown by the walk");
    }
}

#[test]
fn writers_in_many_processes_never_find_it_full() {
    let dir = Dir::new();
    for (value, n) in [(8, 100), (32, 1), (24, 333)] {
        let map = dir.make(&MapDef::new(MapType::LruHash, 8, value, n));
        let children: Vec<_> = (0..4)
            .map(|c| {
                forked(|| {
                    storm(&map, c, u64::from(rounds(20_000, 1_000_000)));
                    0
                })
            })
            .collect();
        for c in children {
            assert_eq!(c.join(), 0);
        }
        check(&map);
    }
}

#[test]
fn a_writer_killed_anywhere_leaves_a_whole_map() {
    let dir = Dir::new();
    for value in [8, 24] {
        let map = dir.make(&MapDef::new(MapType::LruHash, 8, value, 50));
        let mut random = Random(u64::from(value));
        for _ in 0..rounds(60, 1000) {
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
            for v in &victims {
                v.kill();
            }
            for v in victims {
                assert_eq!(v.join(), -9);
            }
            check(&map);
        }
    }
}
