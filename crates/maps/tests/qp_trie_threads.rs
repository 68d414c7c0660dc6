//! Tries that many threads and processes use at once: readers find all that stays, in order, whole
//! and once; counts are exact.

mod support;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Barrier};

use skep_isa::MapFlags;
use skep_isa::MapType;
use skep_isa::map::update::{ANY, EXIST, NOEXIST};
use skep_maps::{Access, KeyRange, Map, MapDef, Nearest, Take};
use support::qp_trie::{
    errno, fill_to_the_limit, fixed, hostile_keys, looked_through, prog_delete, prog_lookup,
    prog_update, stamp, stamped, strings, uncached,
};
use support::{Dir, Random, forked, rounds, table};

/// Words that threads and processes share.
struct Shared(Map);

impl Shared {
    fn new(dir: &Dir, words: u32) -> Self {
        Self(dir.make(&MapDef::new(MapType::Array, 4, 8, words).flags(MapFlags::MMAPABLE)))
    }

    fn word(&self, i: usize) -> &AtomicU64 {
        assert!(i < self.0.def().max_entries as usize);
        // SAFETY: an eight-byte value of the array, reached as an atomic by all.
        unsafe { AtomicU64::from_ptr((self.0.value_base() + 8 * i as u64) as *mut u64) }
    }
}

/// Byte strings and keys of one size, with and without the cache, of values that change in place
/// and of others.
fn kinds(entries: u32) -> [MapDef; 5] {
    [
        strings(24, 16, entries),
        uncached(strings(24, 8, entries)),
        strings(300, 72, entries),
        fixed(8, 8, entries),
        uncached(fixed(12, 40, entries)),
    ]
}

const STABLE: usize = 600;
const CHURN: usize = 600;
/// What stable elements are stamped with; others have greater numbers.
const NEVER_CHANGED: u64 = 7;

/// Puts keys in, changes them and takes them out, as a user and as a program; other writers have
/// other keys, so all answers are known.
fn churn(map: &Map, keys: &[Vec<u8>], seed: u64, over: &dyn Fn() -> bool) {
    let (mut random, mut n) = (Random(seed), seed << 40);
    let mut there = vec![false; keys.len()];
    while !over() {
        for _ in 0..64 {
            n += 1;
            let i = random.below(keys.len() as u64) as usize;
            let (key, by_user) = (&keys[i], random.below(2) == 0);
            let value = stamped(map, key, n);
            let put = |flags| match by_user {
                true => errno(map.update(key, &value, flags)),
                false => prog_update(map, key, &value, flags),
            };
            match (there[i], random.below(3)) {
                (false, _) => {
                    assert_eq!(put(NOEXIST), 0, "room for all");
                    there[i] = true;
                }
                (true, 0) => assert_eq!(put(EXIST), 0),
                (true, _) => {
                    let done = match by_user {
                        true => errno(map.delete(key)),
                        false => prog_delete(map, key),
                    };
                    assert_eq!(done, 0);
                    there[i] = false;
                }
            }
        }
    }
}

/// One look at everything by one of many ways; what stays must be there.
fn look(map: &Map, stable: &BTreeSet<Vec<u8>>, random: &mut Random) {
    let value = |key: &[u8]| stamped(map, key, NEVER_CHANGED);
    match random.below(5) {
        0 => {
            for key in stable {
                assert_eq!(map.lookup(key).expect("it stays"), value(key), "{key:x?}");
            }
        }
        1 => {
            for key in stable {
                assert_eq!(prog_lookup(map, key), Some(value(key)), "{key:x?}");
            }
        }
        2 => {
            for key in stable.iter().step_by(3) {
                for which in [Nearest::Floor, Nearest::Ceiling, Nearest::LongestPrefix] {
                    let (found, was) = map.lookup_nearest(key, which).expect("it stays");
                    assert_eq!((&found, was), (key, value(key)), "{which:?}");
                }
                let mut behind = key.clone();
                behind.push(0);
                let (floor, _) = map.lookup_nearest(&behind, Nearest::Floor).expect("some");
                assert!(*key <= floor && floor <= behind);
            }
        }
        way => {
            let backward = way == 3;
            let from = random.below(stable.len() as u64) as usize;
            let range = match random.below(3) {
                0 => KeyRange::prefix(&stable.iter().nth(from).expect("many")[..1]),
                _ => KeyRange::ALL,
            };
            let walk = map.walk().range(range.clone());
            let mut walk = if backward { walk.reversed() } else { walk };
            let room = [1, 2, 7, 100, 5000][random.below(5) as usize];
            let mut rows = vec![0; room * walk.element_size()];
            let mut seen: Vec<Vec<u8>> = vec![];
            loop {
                let n = walk.rows(&mut rows).expect("walks");
                if n == 0 {
                    break;
                }
                for (key, was) in walk.elements(&rows, n) {
                    let number = stamp(map, key, was);
                    assert!(number.is_some(), "{key:x?} has a torn or another's value");
                    assert!(!stable.contains(key) || number == Some(NEVER_CHANGED));
                    seen.push(key.to_vec());
                }
            }
            if backward {
                seen.reverse();
            }
            assert!(seen.windows(2).all(|pair| pair[0] < pair[1]), "in order, and once");
            let stayed = seen.iter().filter(|key| stable.contains(*key));
            assert!(stayed.eq(stable.iter().filter(|key| range.contains(key))), "all that stays");
        }
    }
}

/// Two threads and a process write, two threads and a process read.
#[test]
fn what_stays_is_found_beside_writers() {
    let dir = Dir::new();
    table(&dir, 256);
    for (seed, def) in (1..).zip(kinds((STABLE + CHURN) as u32)) {
        let map = Arc::new(dir.make(&def));
        let shared = Arc::new(Shared::new(&dir, 4));
        let mut keys = hostile_keys(map.key_shape(), STABLE + CHURN, seed);
        let churned = keys.split_off(STABLE);
        let stable: Arc<BTreeSet<_>> = Arc::new(keys.into_iter().collect());
        for key in stable.iter() {
            map.update(key, &stamped(&map, key, NEVER_CHANGED), NOEXIST).expect("room");
        }
        let looks = rounds(60, 20_000);
        // Each writer notes when it looks whether it may end. Readers begin when all writers have.
        let over = |writer: usize| {
            let shared = Arc::clone(&shared);
            move || {
                shared.word(1 + writer).fetch_add(1, Relaxed);
                shared.word(0).load(Relaxed) != 0
            }
        };
        let begun = {
            let shared = Arc::clone(&shared);
            move || (1..=3).all(|n| shared.word(n).load(Relaxed) > 1)
        };
        let parts: Vec<Vec<_>> = churned.chunks(CHURN / 3).map(<[_]>::to_vec).collect();
        let reader = forked(|| {
            let map = Map::open(map.file().path(), Access::ReadOnly).expect("opens");
            let mut random = Random(100 + seed);
            while !begun() {
                std::thread::yield_now();
            }
            (0..looks).for_each(|_| look(&map, &stable, &mut random));
            0
        });
        let writer = forked(|| {
            let map = Map::open(map.file().path(), Access::ReadWrite).expect("opens");
            churn(&map, &parts[2], 3, &over(2));
            0
        });
        let writers: Vec<_> = [0, 1]
            .map(|i| {
                let (map, over, part) = (Arc::clone(&map), over(i), parts[i].clone());
                std::thread::spawn(move || churn(&map, &part, i as u64 + 1, &over))
            })
            .into();
        while !begun() {
            let failed = writer.has_ended() || writers.iter().any(|w| w.is_finished());
            assert!(!failed, "a writer failed");
            std::thread::yield_now();
        }
        let readers: Vec<_> = [0, 1]
            .map(|i| {
                let (map, stable) = (Arc::clone(&map), Arc::clone(&stable));
                std::thread::spawn(move || {
                    let mut random = Random(200 + 10 * seed + i);
                    (0..looks).for_each(|_| look(&map, &stable, &mut random));
                })
            })
            .into();
        let read: Vec<_> = readers.into_iter().map(std::thread::JoinHandle::join).collect();
        let other = reader.join();
        shared.word(0).store(1, Relaxed);
        assert!(writers.into_iter().all(|w| w.join().is_ok()));
        assert_eq!((writer.join(), other), (0, 0));
        assert!(read.into_iter().all(|r| r.is_ok()));
        // Whatever of the others is there now belongs to one of them.
        let left = looked_through(&map);
        let all: BTreeSet<_> = churned.iter().chain(stable.iter()).collect();
        assert!(
            left.iter()
                .all(|(key, value)| { all.contains(key) && stamp(&map, key, value).is_some() })
        );
        assert_eq!(left.iter().filter(|(key, _)| stable.contains(key)).count(), STABLE);
        for key in &churned {
            map.delete(key).ok();
        }
        assert_eq!(looked_through(&map).len(), STABLE);
        map.delete_range(&KeyRange::prefix(&[0xfe])).expect("deletes");
        fill_to_the_limit(&map, map.iter().count());
    }
}

/// As many as there is room for, and never one more than that: nobody is told that the trie is
/// full, though some fail for other reasons meanwhile.
#[test]
fn there_is_room_for_all_that_there_is_room_for() {
    const EACH: usize = 12;
    let dir = Dir::new();
    table(&dir, 256);
    for (seed, def) in (1..).zip(kinds(4 * EACH as u32 + 1)) {
        let map = Arc::new(dir.make(&def));
        let keys = hostile_keys(map.key_shape(), 4 * EACH + 2, seed);
        let (stays, never) = (keys[4 * EACH].clone(), keys[4 * EACH + 1].clone());
        map.update(&stays, &stamped(&map, &stays, 0), NOEXIST).expect("room");
        let storm = {
            let (stays, never) = (stays.clone(), never.clone());
            move |map: &Map, mine: &[Vec<u8>], seed: u64| {
                let mut random = Random(seed);
                let mut there = [false; EACH];
                for n in 0..u64::from(rounds(6_000, 1_000_000)) {
                    let i = random.below(EACH as u64) as usize;
                    let key = &mine[i];
                    let value = stamped(map, key, n);
                    // Who fails takes no room from others.
                    let value_of_it = stamped(map, &stays, 0);
                    match random.below(4) {
                        0 => assert_eq!(errno(map.update(&stays, &value_of_it, NOEXIST)), 17),
                        1 => assert_eq!(prog_update(map, &never, &value, EXIST), 2),
                        _ if there[i] => {
                            assert_eq!(errno(map.delete(key)), 0);
                            there[i] = false;
                        }
                        _ => {
                            let done = match random.below(2) {
                                0 => errno(map.update(key, &value, ANY)),
                                _ => prog_update(map, key, &value, NOEXIST),
                            };
                            assert_eq!(done, 0, "a place is free");
                            there[i] = true;
                        }
                    }
                }
                // All at once in the end.
                for (key, _) in mine.iter().zip(there).filter(|(_, there)| !there) {
                    assert_eq!(errno(map.update(key, &stamped(map, key, 1), NOEXIST)), 0);
                }
            }
        };
        let parts: Vec<_> = keys[..4 * EACH].chunks(EACH).map(<[_]>::to_vec).collect();
        let children: Vec<_> = [0, 1]
            .map(|i| {
                forked(|| {
                    let map = Map::open(map.file().path(), Access::ReadWrite).expect("opens");
                    storm(&map, &parts[i], i as u64);
                    0
                })
            })
            .into();
        std::thread::scope(|s| {
            for (seed, part) in (2..).zip(&parts[2..]) {
                let (map, storm) = (&map, &storm);
                s.spawn(move || storm(map, part, seed));
            }
        });
        assert!(children.into_iter().all(|c| c.join() == 0));
        assert_eq!(looked_through(&map).len(), 4 * EACH + 1);
        assert_eq!(errno(map.update(&never, &stamped(&map, &never, 0), ANY)), 28, "full now");
    }
}

/// Writers with more keys than there is room for: what was acknowledged and not taken back is what
/// is there, and that is never more than the limit.
#[test]
fn a_trie_is_never_more_than_full() {
    const MAX: u32 = 40;
    let dir = Dir::new();
    table(&dir, 256);
    for (seed, def) in (1..).zip(kinds(MAX)) {
        let map = dir.make(&def);
        let keys = hostile_keys(map.key_shape(), 90, 20 + seed);
        let (barrier, count) = (Barrier::new(4), AtomicU64::new(0));
        let refused = AtomicU64::new(0);
        std::thread::scope(|s| {
            for (i, mine) in (0..).zip(keys.chunks(30)) {
                let (map, barrier, count, refused) = (&map, &barrier, &count, &refused);
                s.spawn(move || {
                    let mut random = Random(seed << 8 | i);
                    for _ in 0..rounds(20, 2000) {
                        for n in 0..200 {
                            let key = &mine[random.below(30) as usize];
                            if random.below(3) == 0 {
                                match errno(map.delete(key)) {
                                    0 => drop(count.fetch_sub(1, Relaxed)),
                                    e => assert_eq!(e, 2),
                                }
                                continue;
                            }
                            match errno(map.update(key, &stamped(map, key, n), NOEXIST)) {
                                0 => drop(count.fetch_add(1, Relaxed)),
                                28 => drop(refused.fetch_add(1, Relaxed)),
                                e => assert_eq!(e, 17),
                            }
                        }
                        barrier.wait();
                        barrier.wait();
                    }
                });
            }
            for _ in 0..rounds(20, 2000) {
                barrier.wait();
                let there = map.iter().count();
                assert_eq!(there as u64, count.load(Relaxed));
                assert!(there <= MAX as usize);
                barrier.wait();
            }
        });
        assert!(refused.load(Relaxed) > 0, "there was too little room");
        let mut there = looked_through(&map).len();
        assert_eq!(there as u64, count.load(Relaxed));
        // What the threads had reserved and did not use is room for others.
        for key in hostile_keys(map.key_shape(), 200, 60 + seed) {
            if map.lookup(&key).is_err() {
                let room = there < MAX as usize;
                let done = errno(map.update(&key, &stamped(&map, &key, 0), NOEXIST));
                assert_eq!(done, if room { 0 } else { 28 }, "{there} of {MAX}");
                there += usize::from(room);
            }
        }
        assert_eq!((there, map.iter().count()), (MAX as usize, MAX as usize));
    }
}

/// Each element is taken by one of those who try, with the last value that was stored.
#[test]
fn an_element_is_taken_once() {
    const KEYS: usize = 400;
    let dir = Dir::new();
    table(&dir, 256);
    for (seed, def) in (1..).zip(kinds(KEYS as u32)) {
        let map = dir.make(&def);
        let keys = hostile_keys(map.key_shape(), KEYS, 40 + seed);
        for round in 0..rounds(6, 500) {
            for key in &keys {
                map.update(key, &stamped(&map, key, round.into()), NOEXIST).expect("room");
            }
            let taken: Vec<AtomicU64> = keys.iter().map(|_| AtomicU64::new(0)).collect();
            let place = |key: &[u8]| keys.iter().position(|k| k == key).expect("one of them");
            let whole = |key: &[u8], value: &[u8]| {
                assert_eq!(stamp(&map, key, value), Some(round.into()));
            };
            std::thread::scope(|s| {
                for t in 0..2u64 {
                    let (map, keys, taken, whole) = (&map, &keys, &taken, &whole);
                    s.spawn(move || {
                        let mut random = Random(u64::from(round) << 8 | t);
                        let mut value = vec![0; map.user_value_size()];
                        for _ in 0..2 * KEYS {
                            let i = random.below(KEYS as u64) as usize;
                            match errno(map.lookup_and_delete(&keys[i], &mut value, 0)) {
                                0 => {
                                    whole(&keys[i], &value);
                                    taken[i].fetch_add(1, Relaxed);
                                }
                                e => assert_eq!(e, 2),
                            }
                        }
                    });
                }
                let mut walk = map.walk().taking(Take::Fast);
                let mut rows = vec![0; 16 * walk.element_size()];
                loop {
                    let n = walk.rows(&mut rows).expect("takes");
                    if n == 0 {
                        break;
                    }
                    for (key, value) in walk.elements(&rows, n) {
                        whole(key, value);
                        taken[place(key)].fetch_add(1, Relaxed);
                    }
                }
            });
            assert!(taken.iter().all(|t| t.load(Relaxed) == 1), "once");
            assert_eq!(map.iter().count(), 0);
        }
    }
}

/// The series' stress, over all keys: writers, readers and iterators, first without anybody who
/// deletes, then with; an iteration is in order where nothing is deleted.
#[test]
fn the_stress_of_the_series() {
    const KEYS: usize = 2048;
    let dir = Dir::new();
    table(&dir, 256);
    for def in [strings(256, 4, KEYS as u32), uncached(strings(256, 4, KEYS as u32))] {
        let map = dir.make(&def);
        let keys = hostile_keys(map.key_shape(), KEYS, 77);
        for deleters in [0, 2] {
            let over = AtomicBool::new(false);
            std::thread::scope(|s| {
                let (map, keys, over) = (&map, &keys, &over);
                let all = |f: fn(&Map, &[u8])| {
                    move || {
                        for _ in 0..rounds(3, 300) {
                            keys.iter().for_each(|key| f(map, key));
                        }
                    }
                };
                let working: Vec<_> = (0..2)
                    .map(|_| {
                        s.spawn(all(|map, key| {
                            map.update(key, &(key.len() as u32).to_ne_bytes(), ANY).expect("room")
                        }))
                    })
                    .chain((0..2).map(|_| {
                        s.spawn(all(|map, key| match map.lookup(key) {
                            Ok(value) => assert_eq!(value, (key.len() as u32).to_ne_bytes()),
                            Err(e) => assert_eq!(e.errno(), 2),
                        }))
                    }))
                    .chain((0..deleters).map(|_| {
                        s.spawn(all(|map, key| assert!([0, 2].contains(&errno(map.delete(key))))))
                    }))
                    .collect();
                for _ in 0..2 {
                    s.spawn(move || {
                        while !over.load(Relaxed) {
                            let mut at = None::<Vec<u8>>;
                            let mut steps = 0;
                            while let Ok(key) = map.next_key(at.as_deref()) {
                                let forward = at.is_none_or(|at| at < key);
                                assert!(forward || deleters > 0, "in order");
                                // With deleters it may begin again for ever.
                                steps += 1;
                                if steps > 3 * KEYS {
                                    break;
                                }
                                at = Some(key);
                            }
                        }
                    });
                }
                let ended: Vec<_> = working.into_iter().map(|w| w.join()).collect();
                over.store(true, Relaxed);
                assert!(ended.into_iter().all(|e| e.is_ok()));
            });
            if deleters == 0 {
                assert_eq!(looked_through(&map).len(), KEYS);
            }
        }
        for key in &keys {
            map.update(key, &(key.len() as u32).to_ne_bytes(), ANY).expect("room for all");
        }
        assert_eq!(looked_through(&map).len(), KEYS);
        assert_eq!(errno(map.update(&[0xfd; 200], &[0; 4], ANY)), 28);
    }
}

/// Writers replace children of one node all the time, which also grows and shrinks across the
/// size from which on its children have several locks.
#[test]
fn writers_of_one_large_node() {
    const WRITERS: usize = 4;
    let dir = Dir::new();
    table(&dir, 256);
    for def in [strings(8, 8, 520), uncached(strings(8, 40, 520))] {
        let map = dir.make(&def);
        // One or two keys below each byte: below some there is a node, too.
        let keys = |writer: usize| -> Vec<Vec<u8>> {
            let all = (0..=255u8).flat_map(|b| [vec![b], vec![b, b'x', b]]);
            all.enumerate().filter(|(i, _)| i * 7 / 3 % WRITERS == writer).map(|(_, k)| k).collect()
        };
        // All go on until each has done enough, so that they are at work at the same time.
        let enough = AtomicU64::new(0);
        std::thread::scope(|s| {
            for writer in 0..WRITERS {
                let (map, keys, enough) = (&map, keys(writer), &enough);
                let begun = AtomicU64::new(0);
                s.spawn(move || {
                    let rounds = u64::from(rounds(1_500, 20_000));
                    let over = || {
                        let n = begun.fetch_add(1, Relaxed);
                        enough.fetch_add(u64::from(n == rounds), Relaxed);
                        // Nobody waits for ever for one that failed.
                        enough.load(Relaxed) == WRITERS as u64 || n > 100 * rounds
                    };
                    churn(map, &keys, 1 + writer as u64, &over);
                    keys.iter().for_each(|key| {
                        let there = map.lookup(key).is_ok();
                        assert_eq!(errno(map.delete(key)), if there { 0 } else { 2 });
                    });
                });
            }
        });
        assert_eq!(looked_through(&map), []);
        fill_to_the_limit(&map, 0);
    }
}
