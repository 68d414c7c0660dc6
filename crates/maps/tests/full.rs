//! A full file system: what a map promised is there, and what there is no memory for is an error
//! and no loss.

mod support;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering::Relaxed;

use skep_isa::{MapFlags, MapType};
use skep_maps::{Access, KeyRange, Map, MapDef, MapError, SlotTable, map_types, slots};
use skep_testkit::skip;
use support::{
    Dir, Own, Random, contents, fill, fill_up, forked, has_dump, in_own, on_small_tmpfs, small,
    small_key, table, word,
};

const NEEDS: &str = "user and mount namespaces of its own";

fn blocks(dir: &Dir) -> u64 {
    let s = rustix::fs::statvfs(dir.path()).expect("told");
    s.f_blocks - s.f_bfree
}

/// A map that cannot be is refused with what it needs, what there is, and what would fit; nothing
/// is left of it, and what would fit does.
#[test]
fn a_map_that_does_not_fit_is_refused_and_what_fits_is_told() {
    let done = on_small_tmpfs("1m", |dir| {
        SlotTable::open_or_create(dir.path()).expect("room");
        let before = blocks(dir);
        let large = [
            MapDef::new(MapType::Hash, 8, 8, 100_000),
            MapDef::new(MapType::LruHash, 8, 100, 100_000),
            MapDef::new(MapType::PercpuHash, 8, 8, 50_000),
            MapDef::new(MapType::Array, 4, 16, 100_000),
            MapDef::new(MapType::PercpuArray, 4, 8, 100_000),
            MapDef::new(MapType::Queue, 0, 64, 100_000),
            MapDef::new(MapType::Stack, 0, 64, 100_000),
            MapDef::new(MapType::StackTrace, 4, 80, 100_000),
            MapDef::new(MapType::ProgArray, 4, 4, 500_000),
            MapDef::new(MapType::Ringbuf, 0, 0, 4 << 20),
            MapDef::new(MapType::UserRingbuf, 0, 0, 4 << 20),
            MapDef::new(MapType::BloomFilter, 0, 8, 10_000_000),
            // The buckets alone.
            MapDef::new(MapType::Hash, 8, 8, 1_000_000).flags(MapFlags::NO_PREALLOC),
        ];
        for def in large {
            let error = dir.create(&def).expect_err("far more than there is");
            let text = error.to_string();
            assert_eq!(error.errno(), 12, "{text}");
            assert!(text.contains("needs") && text.contains("left in its file system"), "{text}");
            assert_eq!(
                (blocks(dir), std::fs::read_dir(dir.maps()).expect("there").count()),
                (before, 0),
                "{text}"
            );
            let MapError::CreationMemory { max_entries: fits, .. } = error else {
                panic!("{text}")
            };
            let sized = !matches!(
                def.map_type,
                MapType::Ringbuf | MapType::UserRingbuf | MapType::BloomFilter
            );
            assert_eq!(fits.is_some(), sized, "{text}");
            if let Some(max_entries) = fits {
                let map = dir.make(&MapDef { max_entries, ..def.clone() });
                std::fs::remove_file(map.file().path()).expect("ours");
                let more = MapDef { max_entries: max_entries + max_entries / 2, ..def };
                assert_eq!(dir.create(&more).expect_err("too many").errno(), 12);
            }
        }
    });
    if !done {
        skip(NEEDS);
    }
}

/// Every type, with its file system full from the moment on at which it is made: all that it
/// promises goes in, and none of it is lost.
#[test]
fn what_was_promised_goes_into_a_full_file_system() {
    let mut done = true;
    for t in map_types() {
        done &= on_small_tmpfs("1500k", |dir| {
            SlotTable::open_or_create(dir.path()).expect("room");
            let inner = dir.make(&MapDef::new(MapType::Array, 4, 8, 2));
            let map = dir.make(&small(t));
            let other = dir.make(&small(t));
            match t {
                // Gets its memory when it is used.
                MapType::LpmTrie | MapType::QpTrie | MapType::PerfEventArray => {
                    fill_up(dir);
                    refuses(&map, t);
                }
                MapType::ArrayOfMaps | MapType::HashOfMaps => {
                    fill_up(dir);
                    // A link to the inner map takes a directory; without room for that, it is an
                    // error.
                    for i in 0..20 {
                        match map.update(&small_key(t, i), &inner.id().to_ne_bytes(), 0) {
                            Ok(()) => assert_eq!(
                                map.lookup(&small_key(t, i)).expect("stored"),
                                inner.id().to_ne_bytes()
                            ),
                            Err(e) => assert_eq!(
                                (e.errno(), map.lookup(&small_key(t, i)).is_err()),
                                (28, true),
                                "{e}"
                            ),
                        }
                    }
                }
                _ => {
                    fill(dir, &other, 15);
                    fill_up(dir);
                    fill(dir, &map, 15);
                    // As a reader that opens it now.
                    let reader = has_dump(t).then(|| {
                        contents(
                            &Map::open(other.file().path(), Access::ReadOnly)
                                .expect("no memory needed"),
                        )
                    });
                    let (inside, with_room) = (contents(&map), contents(&other));
                    assert!(reader.is_none_or(|reader| reader == with_room), "{t}");
                    match t {
                        // Two stacks may have one bucket, and which ones depends on the map.
                        MapType::StackTrace => assert!(
                            (5..=15).contains(&inside.len())
                                && inside.iter().all(|(_, v)| v[8] == 7)
                        ),
                        _ => assert_eq!(inside, with_room, "{t}"),
                    }
                    match t {
                        MapType::StackTrace => {}
                        MapType::Array | MapType::PercpuArray => {
                            assert_eq!(inside.iter().filter(|(_, v)| v[0] == 5).count(), 15, "{t}")
                        }
                        MapType::Cpumap | MapType::BloomFilter => {
                            assert_eq!(inside.len(), 1, "{t}")
                        }
                        _ => assert_eq!(inside.len(), 15, "{t}"),
                    }
                }
            }
        });
    }
    if !done {
        skip(NEEDS);
    }
}

fn refuses(map: &Map, t: MapType) {
    let key = small_key(t, 1);
    if t != MapType::PerfEventArray {
        assert_eq!(map.update(&key, &[1; 12], 0).expect_err("no memory").errno(), 12);
        // SAFETY: a key and a value.
        assert_eq!(unsafe { map.prog_update(key.as_ptr(), [1u8; 12].as_ptr(), 0) }, -12);
        assert_eq!((map.iter().count(), map.lookup(&key).is_err()), (0, true));
        return;
    }
    let reader = map.perf_reader().expect("alone");
    let parts = [([1u8; 40].as_ptr(), 40), (std::ptr::null(), 0)];
    // SAFETY: 40 bytes are readable.
    assert_eq!(unsafe { map.perf_output(1, parts) }, -28);
    assert_eq!(reader.lost().collect::<Vec<_>>()[..3], [0, 1, 0]);
}

/// A type whose elements get memory on demand, as many as there is memory for: those that were
/// acknowledged are there, in the end too.
#[test]
fn what_is_acknowledged_on_demand_is_there() {
    let shapes = [
        (MapType::Hash, 8, 64, "1m"),
        (MapType::Hash, 8, 8, "1m"),
        (MapType::Hash, 8, 9000, "1m"),
        (MapType::PercpuHash, 8, 64, "2m"),
        (MapType::LpmTrie, 8, 64, "1m"),
        (MapType::LpmTrie, 8, 5000, "1m"),
        (MapType::QpTrie, 8, 64, "1m"),
        (MapType::QpTrie, 8, 8, "1m"),
        (MapType::QpTrie, 8, 5000, "1m"),
    ];
    let mut done = true;
    for (t, key_size, value_size, size) in shapes {
        done &= on_small_tmpfs(size, |dir| {
            table(dir, 256);
            let map = dir
                .make(&MapDef::new(t, key_size, value_size, 30_000).flags(MapFlags::NO_PREALLOC));
            // Claims a slot: values are as many from now on.
            slots::exit(slots::enter());
            let mut there = BTreeMap::new();
            let mut random = Random(u64::from(value_size));
            let key = |i: u32| match t {
                MapType::LpmTrie => [32u32.to_ne_bytes(), i.to_be_bytes()].concat(),
                _ => u64::from(i).to_ne_bytes().to_vec(),
            };
            let n = map.user_value_size();
            let (mut refused, mut i) = (0, 0u32);
            while refused < 200 {
                i += 1;
                let value = vec![random.next() as u8 | 1; n];
                // From user space and from a program; a program has one slot.
                let result = if i % 2 == 0 || t == MapType::PercpuHash {
                    map.update(&key(i), &value, 0).map_or_else(|e| -i64::from(e.errno()), |()| 0)
                } else {
                    // A trie uses no memory again that a running program may know.
                    let entered = slots::enter();
                    // SAFETY: a key and a value; this thread has a slot.
                    let done = unsafe { map.prog_update(key(i).as_ptr(), value.as_ptr(), 0) };
                    slots::exit(entered);
                    done
                };
                match result {
                    0 => drop(there.insert(key(i), value)),
                    e => {
                        assert_eq!(e, -12, "{t}: no memory");
                        refused += 1;
                        assert!(map.lookup(&key(i)).is_err(), "{t}: refused");
                    }
                }
            }
            assert!(there.len() > 10, "{t}: {}", there.len());
            let check = |there: &BTreeMap<Vec<u8>, Vec<u8>>| {
                for (k, v) in there {
                    assert_eq!(map.lookup(k).as_ref().ok(), Some(v), "{t}: acknowledged");
                }
                let walked: BTreeMap<_, _> = map.iter().map(|e| e.expect("whole")).collect();
                assert_eq!(walked, *there, "{t}: what is shown is what was stored");
            };
            check(&there);
            // Values change in place of others, and what is removed makes room.
            let keys: Vec<_> = there.keys().cloned().collect();
            for k in &keys {
                let value = vec![random.next() as u8 | 1; n];
                if map.update(k, &value, 0).is_ok() {
                    there.insert(k.clone(), value);
                }
            }
            check(&there);
            for k in keys.iter().take(keys.len() / 2) {
                map.delete(k).expect("there");
                there.remove(k);
            }
            // Tries need forks besides, and those of a qp-trie pages for each of their sizes.
            let part = if t == MapType::QpTrie { 10 } else { 4 };
            for j in 0..keys.len() as u32 / part {
                let value = vec![3; n];
                let done = map.update(&key(1_000_000 + j), &value, 0);
                assert!(
                    done.is_ok(),
                    "{t}: {j} of {} after half of them went: {done:?}",
                    keys.len()
                );
                there.insert(key(1_000_000 + j), value);
            }
            check(&there);
            assert_eq!(
                map.walk().strict().rows(&mut [0; 1 << 16][..]).map_err(|e| e.errno()),
                Err(12),
                "{t}: epochs have no memory"
            );
        });
    }
    if !done {
        skip(NEEDS);
    }
}

/// Threads beyond the processors need memory for their values in every per-CPU map: without it
/// their programs do not run, and with it they count exactly.
#[test]
fn a_slot_without_memory_runs_no_program() {
    // Mapped whole, and one slot at a time.
    if !slots_get_memory(2000) || !slots_get_memory(20_000) {
        skip(NEEDS);
    }
}

fn slots_get_memory(entries: u32) -> bool {
    on_small_tmpfs("2m", |dir| {
        table(dir, 256);
        let last = entries - 1;
        let array = dir.make(&MapDef::new(MapType::PercpuArray, 4, 8, entries));
        let hash = dir.make(&MapDef::new(MapType::PercpuHash, 4, 8, 500));
        hash.update(&7u32.to_ne_bytes(), &vec![0; hash.user_value_size()], 0).expect("promised");
        let run = |array: &Map, hash: &Map| {
            let entered = slots::enter();
            let ran = !entered.is_refused();
            if ran {
                for (map, key) in [(array, last), (hash, 7)] {
                    // SAFETY: the key is four bytes; the value is this slot's.
                    unsafe {
                        let p = map.prog_lookup(key.to_ne_bytes().as_ptr()).cast::<u64>();
                        *p += 1;
                    }
                }
            }
            slots::exit(entered);
            ran
        };
        let cpus = slots::possible_cpus() as usize;
        let threads = |n: usize| {
            let barrier = std::sync::Barrier::new(n);
            std::thread::scope(|s| {
                let all: Vec<_> = (0..n)
                    .map(|_| {
                        s.spawn(|| {
                            let ran = run(&array, &hash);
                            barrier.wait();
                            ran
                        })
                    })
                    .collect();
                all.into_iter().map(|t| u64::from(t.join().expect("no panic"))).sum::<u64>()
            })
        };
        let sum = |map: &Map, key: u32| {
            map.lookup(&key.to_ne_bytes())
                .expect("there")
                .chunks(8)
                .map(|c| u64::from_ne_bytes(c.try_into().expect("8")))
                .sum::<u64>()
        };
        let filler = fill_up(dir);
        let ran = threads(cpus + 3);
        assert_eq!(
            (ran, sum(&array, last), sum(&hash, 7)),
            (cpus as u64, cpus as u64, cpus as u64),
            "no more than had memory"
        );
        std::fs::remove_file(filler).expect("ours");
        let more = threads(cpus + 3);
        assert_eq!(more, cpus as u64 + 3, "with memory all run");
        assert_eq!((sum(&array, last), sum(&hash, 7)), (ran + more, ran + more));
        // What users store for slots that never ran.
        fill_up(dir);
        let all = vec![1; 8 * 200];
        assert_eq!(array.update(&[0; 4], &all, 0).expect_err("no memory").errno(), 12);
        assert_eq!(hash.update(&[0; 4], &all, 0).expect_err("no memory").errno(), 12);
        assert_eq!(
            (sum(&array, 0), hash.lookup(&[0; 4]).is_err()),
            (0, true),
            "nothing of it is stored"
        );
    })
}

/// A process that uses the first elements only sees to memory for all: others count on it.
#[test]
fn a_slot_gets_memory_for_elements_that_its_process_leaves_out() {
    let done = on_small_tmpfs("2m", |dir| {
        table(dir, 256);
        let whole = dir.make(&MapDef::new(MapType::PercpuArray, 4, 8, 20_000));
        let path = whole.file().path().to_owned();
        drop(whole);
        let part = Map::open_first(&path, Access::ReadWrite, 10).expect("there");
        let cpus = slots::possible_cpus() as usize;
        let barrier = std::sync::Barrier::new(cpus + 2);
        std::thread::scope(|s| {
            for _ in 0..cpus + 2 {
                s.spawn(|| {
                    let entered = slots::enter();
                    assert!(!entered.is_refused());
                    // SAFETY: the keys are four bytes.
                    let [first, left_out] = [9u32, 10]
                        .map(|key| unsafe { part.prog_lookup(key.to_ne_bytes().as_ptr()) });
                    assert!(!first.is_null() && left_out.is_null());
                    slots::exit(entered);
                    barrier.wait();
                });
            }
        });
        fill_up(dir);
        let whole = Map::open(&path, Access::ReadWrite).expect("there");
        let mut values: Vec<u64> = (1..=cpus as u64 + 2).collect();
        values.resize(whole.user_value_size() / 8, 0);
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_ne_bytes()).collect();
        for key in [10u32, 10_000, 19_999] {
            whole.update(&key.to_ne_bytes(), &bytes, 0).expect("has memory");
            assert_eq!(whole.lookup(&key.to_ne_bytes()).expect("there"), bytes);
        }
    });
    if !done {
        skip(NEEDS);
    }
}

/// Somebody died when elements were said to have memory, before a slot's values of them had: nobody
/// stores there before they have.
#[test]
fn a_death_while_elements_get_memory_leaves_none_without() {
    const STRIPES: u64 = 64;
    let done = on_small_tmpfs("2m", |dir| {
        table(dir, 256);
        let map =
            dir.make(&MapDef::new(MapType::PercpuHash, 8, 4096, 100).flags(MapFlags::NO_PREALLOC));
        let dead = forked(|| 0);
        let pid = dead.pid() as u64;
        assert_eq!(dead.join(), 0);
        for stripe in (0..STRIPES).map(|s| 128 + s * 64) {
            word(&map, stripe + 40).store(1, Relaxed);
            word(&map, stripe).store(pid << 22 | pid, Relaxed);
        }
        let filler = fill_up(dir);
        let value = vec![1; 4096];
        let key = 7u64.to_ne_bytes();
        assert_eq!(map.update(&key, &value, 0).expect_err("no memory").errno(), 12);
        std::fs::remove_file(filler).expect("ours");
        map.update(&key, &value, 0).expect("memory");
        assert_eq!(map.lookup(&key).expect("there")[..4096], value);
    });
    if !done {
        skip(NEEDS);
    }
}

/// A file system without fallocate(2): memory is had by writing, and everything works.
#[test]
fn where_nothing_can_be_reserved_zeros_are_written() {
    let below = Dir::new();
    let done = in_own(&below, Own::Ramfs(below.path()), |dir| {
        table(dir, 256);
        for t in map_types() {
            let map = dir.make(&small(t));
            fill(dir, &map, 15);
            drop(Map::open(map.file().path(), Access::ReadWrite).expect("opens"));
        }
        let map = dir.make(&MapDef::new(MapType::Array, 4, 8, 30_000));
        let blocks = rustix::fs::stat(map.file().path()).expect("there").st_blocks;
        assert!(blocks * 512 >= 240_000, "{blocks}");
        assert!(map.iter().all(|e| e.is_ok_and(|(_, v)| v == [0; 8])));
    });
    if !done {
        skip(NEEDS);
    }
}

/// The limit for files would end the process by `SIGXFSZ`.
#[test]
fn a_limit_for_files_is_an_error() {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let dir = Dir::new();
    let child = forked(|| {
        setrlimit(Resource::Fsize, Rlimit { current: Some(100 << 10), maximum: None })
            .expect("less is allowed");
        let error = dir
            .create(&MapDef::new(MapType::Array, 4, 8, 100_000))
            .expect_err("longer than allowed");
        assert!(error.errno() == 12 && error.to_string().contains("ulimit -f"), "{error}");
        // On demand the file is as long.
        let error = dir
            .create(&MapDef::new(MapType::Hash, 4, 8, 100_000).flags(MapFlags::NO_PREALLOC))
            .expect_err("as well");
        assert!(error.to_string().contains("100.0 KiB"), "{error}");
        dir.make(&MapDef::new(MapType::Array, 4, 8, 100))
            .update(&[0; 4], &[1; 8], 0)
            .expect("short enough");
        0
    });
    assert_eq!(child.join(), 0);
}

/// Readers of a trie look at whole words and pieces, of which the last ones may lie behind the last
/// page that has memory. That must not ask a full file system for more.
#[test]
fn the_last_elements_of_a_full_file_system_are_read() {
    let mut done = true;
    for (cached, value_size, longest) in [(true, 4, 10), (false, 4, 10), (false, 8, 14)] {
        done &= on_small_tmpfs("1500k", |dir| {
            SlotTable::open_or_create(dir.path()).expect("room");
            let flags = MapFlags::NO_PREALLOC | if cached { 0 } else { MapFlags::NO_LEAF_CACHE };
            let def = MapDef::new(MapType::QpTrie, 16, value_size, 150_000).extra(longest);
            let map = dir.make(&def.flags(flags));
            let value = vec![7; value_size as usize];
            let mut want = BTreeMap::new();
            // Leaves of one class, whose blocks fill pages to their ends.
            for i in 0_u32.. {
                let key =
                    format!("{:0width$}", i.wrapping_mul(7919) % 150_000, width = longest as usize);
                match map.update(key.as_bytes(), &value, 0) {
                    Ok(()) => drop(want.insert(key.into_bytes(), value.clone())),
                    Err(e) => {
                        assert_eq!(e.errno(), 12, "{e}");
                        break;
                    }
                }
            }
            fill_up(dir);
            let before = blocks(dir);
            let mut seen = 0;
            map.visit(&KeyRange::ALL, false, |key, found| {
                assert_eq!(want.get(key).map(Vec::as_slice), Some(found));
                seen += 1;
                ControlFlow::Continue(())
            })
            .expect("whole");
            assert_eq!(seen, want.len());
            let all: Vec<_> = map.iter().map(|element| element.expect("whole")).collect();
            assert!(all.iter().map(|(k, v)| (k, v)).eq(&want));
            for (key, value) in &want {
                assert_eq!(&map.lookup(key).expect("there"), value);
                assert_eq!(map.lookup(&key[..key.len() - 1]).map_err(|e| e.errno()), Err(2));
            }
            assert_eq!(blocks(dir), before, "readers took memory");
            for key in want.keys() {
                map.delete(key).expect("there");
            }
        });
    }
    if !done {
        skip(NEEDS);
    }
}
