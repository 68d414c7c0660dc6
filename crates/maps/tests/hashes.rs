//! Hash maps against a model, under storms of writers in several processes, and after their deaths.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;
use skep_isa::map::update::{ANY, EXIST, NOEXIST};
use skep_isa::{MapFlags, MapType, ShapeKind};
use skep_maps::{Access, Cursor, Map, MapDef, MapError, SlotTable, slots};
use support::{Dir, Random, forked, rounds, table, words};

fn errno<T: std::fmt::Debug>(r: Result<T, MapError>) -> i32 {
    r.expect_err("refused").errno()
}

fn user_value(map: &Map, first: &[u8]) -> Vec<u8> {
    let mut v = vec![0; map.user_value_size()];
    v[..first.len()].copy_from_slice(first);
    v
}

fn all(map: &Map) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut seen = BTreeMap::new();
    for e in map {
        let (k, v) = e.expect("walks");
        assert!(seen.insert(k, v).is_none(), "an element came twice");
    }
    seen
}

#[test]
fn definitions_are_refused_as_the_kernel_does() {
    let dir = Dir::new();
    for t in [MapType::Hash, MapType::PercpuHash] {
        for (k, v, n, e) in
            [(0, 8, 1, 22), (4, 0, 1, 22), (4, 8, 0, 22), (4, 8, u32::MAX, 7), (4, 5 << 20, 1, 7)]
        {
            assert_eq!(errno(dir.create(&MapDef::new(t, k, v, n))), e, "{t} {k} {v} {n}");
        }
        dir.make(&MapDef::new(t, 513, 8, 1));
        dir.make(&MapDef::new(t, 4, 8, 1).flags(MapFlags::NO_PREALLOC | MapFlags::ZERO_SEED));
    }
}

#[test]
fn operations_answer_with_the_kernels_errno() {
    let dir = Dir::new();
    for t in [MapType::Hash, MapType::PercpuHash] {
        let map = dir.make(&MapDef::new(t, 3, 8, 2));
        let value = user_value(&map, &[7]);
        assert_eq!(errno(map.lookup(b"abc")), 2);
        assert_eq!(errno(map.delete(b"abc")), 2);
        assert_eq!(errno(map.next_key(None)), 2);
        assert_eq!(errno(map.update(b"abc", &value, EXIST)), 2);
        assert_eq!(errno(map.update(b"abc", &value, 4)), 22);
        assert_eq!(errno(map.update(b"ab", &value, ANY)), 22);
        map.update(b"abc", &value, NOEXIST).expect("new");
        assert_eq!(errno(map.update(b"abc", &value, NOEXIST)), 17);
        assert_eq!(map.lookup(b"abc").expect("there"), value);
        map.update(b"abd", &value, ANY).expect("new");
        assert_eq!(errno(map.update(b"abe", &value, ANY)), 7);
        map.update(b"abd", &value, ANY).expect("a full map still overwrites");
        let first = map.next_key(None).expect("first");
        let second = map.next_key(Some(&first)).expect("second");
        assert_eq!(errno(map.next_key(Some(&second))), 2);
        assert_eq!(map.next_key(Some(b"xyz")).expect("missing key"), first);
        map.delete(b"abc").expect("there");
        map.update(b"abe", &value, ANY).expect("room again");
        map.freeze().expect("once");
        assert_eq!(errno(map.delete(b"abe")), 1);
        // SAFETY: sizes as the map's.
        unsafe {
            assert_eq!(map.prog_delete(b"abe".as_ptr()), 0);
            assert_eq!(map.prog_delete(b"abe".as_ptr()), -2);
            assert_eq!(map.prog_update(b"abe".as_ptr(), value.as_ptr(), EXIST), -2);
            assert_eq!(map.prog_update(b"abd".as_ptr(), value.as_ptr(), NOEXIST), -17);
            assert_eq!(map.prog_update(b"abe".as_ptr(), value.as_ptr(), NOEXIST), 0);
            assert_eq!(map.prog_update(b"abf".as_ptr(), value.as_ptr(), ANY), -7);
            assert!(map.prog_lookup(b"abf".as_ptr()).is_null());
            assert_eq!(*map.prog_lookup(b"abe".as_ptr()), 7);
        }
    }
}

#[test]
fn a_value_of_eight_bytes_keeps_its_address_when_overwritten() {
    let dir = Dir::new();
    let map = dir.make(&MapDef::new(MapType::Hash, 8, 8, 10));
    let key = 5u64.to_ne_bytes();
    map.update(&key, &1u64.to_ne_bytes(), ANY).expect("new");
    // SAFETY: key and value have eight bytes.
    unsafe {
        let p = map.prog_lookup(key.as_ptr()).cast::<u64>();
        assert_eq!((p as u64 % 8, *p), (0, 1));
        map.update(&key, &2u64.to_ne_bytes(), ANY).expect("there");
        assert_eq!((map.prog_lookup(key.as_ptr()).cast(), p.read_volatile()), (p, 2));
    }
}

/// A program may have found the value before: what a user stores under its lock must not go into
/// another element.
#[test]
fn a_value_overwritten_under_its_lock_keeps_its_address() {
    let dir = Dir::new();
    let map = dir.make(&MapDef::new(MapType::Hash, 8, 24, 10).spin_lock(0));
    let key = 5u64.to_ne_bytes();
    let value = |n: u64| [0, n, n + 1].map(u64::to_ne_bytes).concat();
    map.update(&key, &value(1), ANY).expect("new");
    // SAFETY: key and value are as long as the map's.
    unsafe {
        let p = map.prog_lookup(key.as_ptr()).cast::<u64>();
        map.update(&key, &value(2), skep_isa::map::update::LOCK).expect("there");
        assert_eq!(
            (
                map.prog_lookup(key.as_ptr()).cast(),
                p.add(1).read_volatile(),
                p.add(2).read_volatile()
            ),
            (p, 2, 3)
        );
    }
    map.update(&key, &value(3), ANY).expect("there");
    assert_eq!(map.lookup(&key).expect("there"), value(3));
}

#[test]
fn every_size_up_to_the_limit_holds_exactly_that_many() {
    let dir = Dir::new();
    for (n, value_size) in
        (1..40).chain([100, 255, 256, 257, 1000, 5000]).zip([1u32, 8, 9, 40].into_iter().cycle())
    {
        let map = dir.make(&MapDef::new(MapType::Hash, 4, value_size, n));
        let value = vec![3; value_size as usize];
        for round in 0..3u32 {
            for i in 0..n {
                map.update(&(i + round * 100_000).to_ne_bytes(), &value, NOEXIST)
                    .unwrap_or_else(|e| panic!("{n}: {i}: {e}"));
            }
            assert_eq!(errno(map.update(&u32::MAX.to_ne_bytes(), &value, ANY)), 7, "{n}");
            for i in 0..n {
                // With the pools empty, replacing still works.
                map.update(&(i + round * 100_000).to_ne_bytes(), &value, EXIST).expect("there");
            }
            assert_eq!(all(&map).len(), n as usize);
            for i in 0..n {
                map.delete(&(i + round * 100_000).to_ne_bytes()).expect("there");
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Op {
    Update(u8, u8, u64),
    Delete(u8),
    Lookup(u8),
    Next(Option<u8>),
    Walk(usize),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0..24u8, any::<u8>(), 0..3u64).prop_map(|(k, v, f)| Op::Update(k, v, f)),
        3 => (0..24u8).prop_map(Op::Delete),
        2 => (0..24u8).prop_map(Op::Lookup),
        1 => proptest::option::of(0..24u8).prop_map(Op::Next),
        1 => (1..5usize).prop_map(Op::Walk),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: rounds(128, 4096), failure_persistence: None, ..ProptestConfig::default() })]

    /// The map does what a `BTreeMap` with a limit does, for every kind and several sizes of keys and values.
    #[test]
    fn it_behaves_as_a_bounded_map(
        per_cpu: bool, key_size in 1..20usize, value_size in 1..30usize, limit in 1..20u32, ops in prop::collection::vec(op(), 1..200)
    ) {
        let dir = Dir::new();
        let t = if per_cpu { MapType::PercpuHash } else { MapType::Hash };
        let map = dir.make(&MapDef::new(t, key_size as u32, value_size as u32, limit));
        let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        let key = |k: u8| { let mut b = vec![0xee; key_size]; b[key_size - 1] = k; b };
        for op in ops {
            match op {
                Op::Update(k, v, flags) => {
                    let (k, v) = (key(k), user_value(&map, &vec![v; value_size]));
                    let want = match (model.contains_key(&k), flags) {
                        (true, NOEXIST) => 17,
                        (false, EXIST) => 2,
                        (false, _) if model.len() == limit as usize => 7,
                        _ => 0,
                    };
                    prop_assert_eq!(map.update(&k, &v, flags).map_or_else(|e| e.errno(), |()| 0), want);
                    if want == 0 {
                        model.insert(k, v);
                    }
                }
                Op::Delete(k) => prop_assert_eq!(map.delete(&key(k)).is_ok(), model.remove(&key(k)).is_some()),
                Op::Lookup(k) => prop_assert_eq!(map.lookup(&key(k)).ok(), model.get(&key(k)).cloned()),
                Op::Next(k) => {
                    let next = map.next_key(k.map(key).as_deref()).ok();
                    if let Some(next) = next {
                        prop_assert!(model.contains_key(&next));
                    } else {
                        prop_assert!(model.is_empty() || k.is_some_and(|k| model.contains_key(&key(k))));
                    }
                }
                Op::Walk(room) => {
                    let size = key_size + map.user_value_size();
                    let (mut cursor, mut buf, mut seen) = (Cursor::default(), vec![0; size * room], BTreeMap::new());
                    loop {
                        let used = map.dump(&mut cursor, &mut buf).expect("walks");
                        if used == 0 { break; }
                        for e in buf[..used].chunks(size) {
                            prop_assert!(seen.insert(e[..key_size].to_vec(), e[key_size..].to_vec()).is_none());
                        }
                    }
                    prop_assert_eq!(&seen, &model);
                }
            }
        }
        let mut by_key = BTreeSet::new();
        let mut k = map.next_key(None).ok();
        while let Some(key) = k {
            k = map.next_key(Some(&key)).ok();
            prop_assert!(by_key.insert(key));
        }
        prop_assert_eq!(by_key, model.into_keys().collect::<BTreeSet<_>>());
    }
}

/// A value every word of which says which key it belongs to.
fn stamped(key: u64, words: usize, random: u64) -> Vec<u8> {
    (0..words).flat_map(|_| ((random << 16) | (key & 0xffff)).to_ne_bytes()).collect()
}

fn check_stamp(key: &[u8], value: &[u8]) {
    let key = words(key)[0];
    let value = words(value);
    assert!(
        value.iter().all(|w| *w == value[0] && w & 0xffff == key),
        "key {key:#x} with a value of others: {value:x?}"
    );
}

fn storm(map: &Map, seed: u64, keys: u64, steps: u64) {
    let mut random = Random(seed);
    let n = map.def().value_size as usize / 8;
    for _ in 0..steps {
        let key = random.below(keys);
        let k = key.to_ne_bytes();
        match random.below(4) {
            0 => drop(map.delete(&k)),
            1 => {
                if let Ok(v) = map.lookup(&k) {
                    check_stamp(&k, &v);
                }
            }
            _ => match map.update(&k, &stamped(key, n, random.next()), random.below(3)) {
                Ok(()) => {}
                Err(e) => assert!([2, 7, 17].contains(&e.errno()), "{e}"),
            },
        }
    }
}

#[test]
fn writers_in_many_threads_and_processes_leave_whole_elements() {
    let dir = Dir::new();
    for value_size in [8, 64] {
        let map = Arc::new(dir.make(&MapDef::new(MapType::Hash, 8, value_size, 100)));
        let children: Vec<_> = (0..3u64)
            .map(|c| {
                let map = Arc::clone(&map);
                forked(move || {
                    let threads: Vec<_> = (0..2u64)
                        .map(|t| {
                            let map = Arc::clone(&map);
                            std::thread::spawn(move || {
                                storm(&map, c * 10 + t, 150, u64::from(rounds(20_000, 1_000_000)))
                            })
                        })
                        .collect();
                    i32::from(threads.into_iter().any(|t| t.join().is_err()))
                })
            })
            .collect();
        // Meanwhile walks neither repeat nor tear.
        for _ in 0..50 {
            all(&map).iter().for_each(|(k, v)| check_stamp(k, v));
        }
        for c in children {
            assert_eq!(c.join(), 0);
        }
        check_whole(&map, 150);
    }
}

/// What a survivor must find: whole elements, no more than allowed, and room for exactly the rest.
fn check_whole(map: &Map, keys: u64) {
    let seen = all(map);
    let max = map.def().max_entries as usize;
    assert!(seen.len() <= max);
    for (k, v) in &seen {
        check_stamp(k, v);
        assert_eq!(&map.lookup(k).expect("what a walk shows is there"), v);
    }
    for key in 0..keys {
        assert_eq!(
            map.lookup(&key.to_ne_bytes()).is_ok(),
            seen.contains_key(key.to_ne_bytes().as_slice()),
            "key {key}"
        );
    }
    let n = map.def().value_size as usize / 8;
    for i in seen.len()..max {
        let key = 0x8000 + i as u64;
        map.update(&key.to_ne_bytes(), &stamped(key, n, 1), NOEXIST)
            .unwrap_or_else(|e| panic!("element {i} of {max}: {e}"));
    }
    assert_eq!(
        errno(map.update(&0xffffu64.to_ne_bytes(), &stamped(0xffff, n, 1), ANY)),
        7,
        "not one more"
    );
    assert_eq!(all(map).len(), max);
    for i in seen.len()..max {
        map.delete(&(0x8000 + i as u64).to_ne_bytes()).expect("just put in");
    }
}

#[test]
fn a_writer_killed_anywhere_leaves_a_whole_map() {
    let dir = Dir::new();
    for value_size in [8, 24] {
        let map = dir.make(&MapDef::new(MapType::Hash, 8, value_size, 40));
        let mut random = Random(0x5eed + u64::from(value_size));
        for round in 0..rounds(150, 3000) {
            let seed = random.next();
            let victims: Vec<_> = (0..2u64)
                .map(|v| {
                    forked(|| {
                        storm(&map, seed + v, 50, u64::MAX);
                        0
                    })
                })
                .collect();
            // Some at once, some in full run.
            for _ in 0..random.below(40) * random.below(2_000) {
                std::hint::spin_loop();
            }
            for v in &victims {
                v.kill();
            }
            // Not yet waited for: the victims are zombies whose locks must pass on all the same.
            if round % 2 == 0 {
                check_whole(&map, 50);
            }
            for v in victims {
                assert_eq!(v.join(), -9);
            }
            check_whole(&map, 50);
        }
    }
}

#[test]
fn programs_of_many_processes_count_exactly_by_key() {
    let dir = Dir::new();
    let per_cpu = Arc::new(dir.make(&MapDef::new(MapType::PercpuHash, 8, 8, 64)));
    let shared = Arc::new(dir.make(&MapDef::new(MapType::Hash, 8, 8, 64)));
    let each = u64::from(rounds(20_000, 500_000));
    let children: Vec<_> = (0..3u64)
        .map(|c| {
            let (per_cpu, shared) = (Arc::clone(&per_cpu), Arc::clone(&shared));
            let dir = dir.path().to_owned();
            forked(move || {
                SlotTable::open_or_create(&dir).expect("a table").install();
                let threads: Vec<_> = (0..3u64)
                    .map(|t| {
                        let (per_cpu, shared) = (Arc::clone(&per_cpu), Arc::clone(&shared));
                        std::thread::spawn(move || {
                            let mut random = Random(c * 100 + t);
                            for _ in 0..each {
                                let key = random.below(64).to_ne_bytes();
                                let entered = slots::enter();
                                // SAFETY: keys and values have eight bytes; a slot is held.
                                unsafe {
                                    count(&per_cpu, &key, |p| {
                                        p.write_volatile(p.read_volatile() + 1)
                                    });
                                    count(&shared, &key, |p| {
                                        std::sync::atomic::AtomicU64::from_ptr(p)
                                            .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                                    });
                                }
                                slots::exit(entered);
                            }
                        })
                    })
                    .collect();
                i32::from(threads.into_iter().any(|t| t.join().is_err()))
            })
        })
        .collect();
    for c in children {
        assert_eq!(c.join(), 0);
    }
    for map in [per_cpu, shared] {
        let sum: u64 = all(&map).values().flat_map(|v| words(v)).sum();
        assert_eq!(sum, each * 9, "{}", map.def().map_type);
    }
}

/// There is an element for each key, and all want the last ones at the same time: who comes late
/// finds the key there, not a full map.
#[test]
fn a_map_with_room_for_every_key_is_never_full() {
    const KEYS: u64 = 6;
    let dir = Dir::new();
    let _table = table(&dir, 64);
    for t in [MapType::Hash, MapType::PercpuHash] {
        let map = dir.make(&MapDef::new(t, 8, 8, KEYS as u32));
        let value = vec![0; map.user_value_size()];
        let (together, refused) = (std::sync::Barrier::new(3), std::sync::Mutex::new(Vec::new()));
        std::thread::scope(|s| {
            for thread in 0..3u64 {
                let (map, value, together, refused) = (&map, &value, &together, &refused);
                s.spawn(move || {
                    for n in 0..u64::from(rounds(5_000, 200_000)) {
                        // New keys each time, so that other stripes want the elements.
                        let key = |k: u64| (n << 8 | k).to_ne_bytes();
                        together.wait();
                        for k in 0..KEYS {
                            let r = map
                                .update(&key((k + thread) % KEYS), value, NOEXIST)
                                .map_err(|e| e.errno());
                            if !matches!(r, Ok(()) | Err(17)) {
                                refused.lock().unwrap().push((n, k, r));
                            }
                        }
                        together.wait();
                        (0..KEYS).filter(|k| k % 3 == thread).for_each(|k| _ = map.delete(&key(k)));
                    }
                });
            }
        });
        assert_eq!(refused.into_inner().unwrap(), [], "round, key, errno");
    }
}

/// The usual beginning of a counting program: look up, else put zero in and look up again.
unsafe fn count(map: &Map, key: &[u8; 8], add: impl FnOnce(*mut u64)) {
    // SAFETY: the caller's.
    unsafe {
        let mut p = map.prog_lookup(key.as_ptr());
        while p.is_null() {
            let r = map.prog_update(key.as_ptr(), 0u64.to_ne_bytes().as_ptr(), NOEXIST);
            assert!(r == 0 || r == -17, "{r}");
            p = map.prog_lookup(key.as_ptr());
        }
        add(p.cast());
    }
}

#[test]
fn walks_under_churn_skip_nothing_repeat_nothing_and_end() {
    let dir = Dir::new();
    let map = Arc::new(dir.make(&MapDef::new(MapType::Hash, 8, 8, 3000)));
    for key in 0..1000u64 {
        map.update(&key.to_ne_bytes(), &stamped(key, 1, 1), ANY).expect("room");
    }
    let done = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let churn = {
        let (map, done) = (Arc::clone(&map), Arc::clone(&done));
        std::thread::spawn(move || {
            let mut random = Random(3);
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                let key = 1000 + random.below(1500);
                let k = key.to_ne_bytes();
                if random.below(2) == 0 {
                    let _ = map.delete(&k);
                } else {
                    let _ = map.update(&k, &stamped(key, 1, 2), ANY);
                }
                // Replacing a stable element must not make a walk miss it.
                let key = random.below(1000);
                map.update(&key.to_ne_bytes(), &stamped(key, 1, random.next()), EXIST)
                    .expect("stable");
            }
        })
    };
    for round in 0..rounds(100, 3000) as usize {
        let mut cursor = Cursor::default();
        let mut buf = vec![0; 16 * (1 + round % 70)];
        let mut stable = BTreeSet::new();
        loop {
            let used = map.dump(&mut cursor, &mut buf).expect("walks");
            if used == 0 {
                break;
            }
            for e in buf[..used].chunks(16) {
                check_stamp(&e[..8], &e[8..]);
                let key = words(e)[0];
                assert!(key >= 1000 || stable.insert(key), "key {key} came twice");
            }
        }
        assert_eq!(stable.len(), 1000);
    }
    done.store(true, std::sync::atomic::Ordering::Relaxed);
    churn.join().expect("no panic");
}

#[test]
fn a_reader_of_read_only_memory_sees_the_same() {
    let dir = Dir::new();
    let map = dir.make(&MapDef::new(MapType::Hash, 8, 24, 100));
    for key in 0..80u64 {
        map.update(&key.to_ne_bytes(), &stamped(key, 3, 5), ANY).expect("room");
    }
    let reader = Map::open(map.file().path(), Access::ReadOnly).expect("opens");
    assert_eq!(all(&reader), all(&map));
    assert_eq!(errno(reader.delete(&0u64.to_ne_bytes())), 1);
    // SAFETY: sizes as the map's.
    unsafe { assert_eq!(reader.prog_delete(0u64.to_ne_bytes().as_ptr()), -1) };
}

/// Ten million elements with `SKEP_STRESS=1`: exactly so many, all found, all gone again.
#[test]
fn a_large_map_holds_exactly_what_it_promises() {
    let dir = Dir::new();
    let n = u64::from(rounds(50_000, 10_000_000));
    let map = dir.make(&MapDef::new(MapType::Hash, 8, 8, n as u32));
    let key = |i: u64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_ne_bytes();
    // SAFETY: keys and values have eight bytes.
    let put =
        |i: u64| unsafe { map.prog_update(key(i).as_ptr(), i.to_ne_bytes().as_ptr(), NOEXIST) };
    assert!((0..n).all(|i| put(i) == 0));
    assert_eq!(put(n), -7, "not one more");
    for i in 0..n {
        // SAFETY: as above; what is found is a value.
        unsafe {
            let p = map.prog_lookup(key(i).as_ptr());
            assert!(!p.is_null() && p.cast::<u64>().read() == i);
        }
    }
    assert_eq!(map.iter().filter(Result::is_ok).count() as u64, n);
    // SAFETY: as above.
    assert!((0..n).all(|i| unsafe { map.prog_delete(key(i).as_ptr()) } == 0));
    assert!(map.next_key(None).is_err());
}

/// Compiled programs call a function made for keys of a size: it and the general one find the same,
/// which is what was put in.
#[test]
fn the_lookup_made_for_a_key_size_finds_what_is_there() {
    const MADE: [u32; 8] = [4, 8, 12, 16, 20, 24, 32, 40];
    let dir = Dir::new();
    let _table = table(&dir, 4);
    for t in [MapType::Hash, MapType::PercpuHash, MapType::LruHash, MapType::LruPercpuHash] {
        for size in [1u32, 3, 4, 5, 8, 12, 16, 20, 24, 32, 40, 64] {
            let map = dir.make(&MapDef::new(t, size, 8, 512));
            // Keys that differ in any one byte, and in all.
            let key = |n: u32, byte: usize| {
                let mut key = vec![0xa5u8; size as usize];
                key[byte % size as usize] ^= n as u8;
                if byte >= size as usize {
                    key.iter_mut().for_each(|b| *b = b.wrapping_add(n as u8));
                }
                key
            };
            let (mut there, mut random) = (BTreeMap::new(), Random(u64::from(size)));
            let entered = slots::enter();
            for n in 1..=100u64 {
                let key = key(n as u32, random.below(2 * u64::from(size)) as usize);
                let value = n.to_ne_bytes();
                // SAFETY: key and value have the map's sizes; the thread has a slot.
                let done = unsafe { map.prog_update(key.as_ptr(), value.as_ptr(), 0) };
                assert_eq!(done, 0);
                there.insert(key, n);
            }
            let shape = map.shape();
            let ShapeKind::Direct { func, map: handle } = shape.kind else {
                assert!(!MADE.contains(&size), "{t}, {size}");
                slots::exit(entered);
                continue;
            };
            assert!(MADE.contains(&size), "{t}, {size}");
            // SAFETY: that is what such a shape holds.
            let made = unsafe {
                std::mem::transmute::<usize, unsafe extern "C" fn(u64, u64) -> u64>(func as usize)
            };
            let mut absent = 0;
            for n in 0..=255 {
                for byte in 0..2 * size as usize {
                    // At an odd address, as keys may be.
                    let key = [vec![0], key(n, byte)].concat();
                    // SAFETY: the key has the map's size, and the map lives.
                    let found = unsafe { made(handle, key[1..].as_ptr() as u64) } as *const u64;
                    // SAFETY: the key has the map's size.
                    let called = unsafe { map.prog_lookup(key[1..].as_ptr()) };
                    assert_eq!(found, called.cast_const().cast(), "{t}, {size}, {n}, {byte}");
                    // SAFETY: values have eight bytes.
                    let value = (!found.is_null()).then(|| unsafe { found.read() });
                    assert_eq!(value, there.get(&key[1..]).copied(), "{t}, {size}, {n}, {byte}");
                    absent += u32::from(value.is_none());
                }
            }
            assert!(absent > 0);
            slots::exit(entered);
        }
    }
}
