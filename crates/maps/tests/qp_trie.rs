//! The qp-trie as the series that proposed it for the kernel tests it: the same definitions, keys,
//! orders and error numbers. Where we decided otherwise, a test says so: maps are made without type
//! information too, keys may have one size, and what the series left out (batches, lookup and
//! delete, walks by programs) is there.
//!
//! Not here: what the series tests of descriptions that cannot be read, which is the affair of who
//! reads them.

mod support;

use std::collections::BTreeSet;

use skep_isa::map::update::{ANY, EXIST, NOEXIST};
use skep_isa::{KeyShape, MapFlags, MapType};
use skep_maps::dump::batch;
use skep_maps::{Access, Map, MapDef};
use support::qp_trie::{
    by_next_key, errno, fixed, looked_through, prog_delete, prog_lookup, prog_update, prog_walk,
    strings, uncached,
};
use support::{Dir, Random, rounds, table};

const ENOENT: i32 = 2;
const E2BIG: i32 = 7;
const EEXIST: i32 = 17;
const EINVAL: i32 = 22;
const ENOSPC: i32 = 28;

/// A trie with and without its cache.
fn both(dir: &Dir, def: &MapDef) -> [Map; 2] {
    [dir.make(def), dir.make(&uncached(def.clone()))]
}

fn value(n: u32) -> [u8; 4] {
    n.to_ne_bytes()
}

/// `create`: which definitions are maps.
#[test]
fn definitions_are_accepted_and_refused_as_by_the_series() {
    let dir = Dir::new();
    let good = strings(4, 4, 1);
    let cases = [
        ("tiny", good.clone(), 0),
        ("empty", MapDef { max_entries: 0, ..good.clone() }, EINVAL),
        ("preallocated", good.clone().flags(0), EINVAL),
        ("mmapable", good.clone().flags(MapFlags::NO_PREALLOC | MapFlags::MMAPABLE), EINVAL),
        ("no seed", good.clone().flags(MapFlags::NO_PREALLOC | MapFlags::ZERO_SEED), EINVAL),
        ("no value", MapDef { value_size: 0, ..good.clone() }, EINVAL),
        ("large value", MapDef { value_size: 1 << 30, ..good.clone() }, E2BIG),
        ("value of 4 MiB", MapDef { value_size: 4 << 20, ..good.clone() }, E2BIG),
        ("longest key above a dynptr's: sizes come first", good.clone().extra(0x0100_0000), E2BIG),
        ("high bits of the longest key: likewise", good.clone().extra(1 << 32 | 4), E2BIG),
        ("key and value of 4 MiB", strings(2 << 20, 2 << 20, 1), E2BIG),
        (
            "read-only and write-only",
            { good.clone().flags(MapFlags::NO_PREALLOC | MapFlags::RDONLY | MapFlags::WRONLY) },
            EINVAL,
        ),
        ("on a node", good.clone().flags(MapFlags::NO_PREALLOC | MapFlags::NUMA_NODE), 0),
        ("without its cache", uncached(good.clone()), 0),
        // Ours: keys of one size, and those of a description's size are such without `map_extra`.
        ("key of 1 byte", fixed(1, 4, 1), 0),
        ("key of 16 bytes", fixed(16, 4, 1), 0),
        ("key of 256 bytes", fixed(256, 4, 1), 0),
        ("no key", fixed(0, 4, 1), EINVAL),
        ("key of 257 bytes", fixed(257, 4, 1), EINVAL),
        ("key of 8 bytes with a longest one", fixed(8, 4, 1).extra(4), EINVAL),
        ("preallocated keys of one size", fixed(8, 4, 1).flags(0), EINVAL),
    ];
    for (what, def, want) in cases {
        assert_eq!(errno(dir.create(&def)), want, "{what}");
    }
    assert_eq!(dir.make(&fixed(16, 4, 1)).key_shape(), KeyShape::Fixed(16));
    assert_eq!(dir.make(&good).key_shape(), KeyShape::Bytes { max: 4 });
}

/// A definition survives its file, and so do elements.
#[test]
fn another_opener_sees_the_same_map() {
    let dir = Dir::new();
    table(&dir, 64);
    for def in [strings(40, 12, 100), uncached(strings(40, 12, 100)), fixed(7, 12, 100)] {
        let map = dir.make(&def.named("trie"));
        for key in support::qp_trie::hostile_keys(map.key_shape(), 100, 4) {
            map.update(&key, &support::qp_trie::stamped(&map, &key, 5), NOEXIST).expect("room");
        }
        let want = looked_through(&map);
        let other = Map::open(map.file().path(), Access::ReadOnly).expect("opens");
        assert_eq!((other.def(), want.len()), (map.def(), 100));
        assert_eq!(looked_through(&other), want);
        assert_eq!(errno(other.delete(&want[0].0)), 1);
        assert_eq!(prog_delete(&other, &want[0].0), 1);
    }
}

/// `bad_update`.
#[test]
fn bad_updates_are_refused() {
    let dir = Dir::new();
    table(&dir, 64);
    for map in both(&dir, &strings(4, 4, 1)) {
        for flags in [NOEXIST | EXIST, 4, 8, 1 << 40] {
            assert_eq!(errno(map.update(b"ab", &value(0), flags)), EINVAL, "{flags:#x}");
            assert_eq!(prog_update(&map, b"ab", &value(0), flags), EINVAL, "{flags:#x}");
        }
        assert_eq!(errno(map.update(&[0; 8], &value(0), ANY)), EINVAL, "too long");
        assert_eq!(prog_update(&map, &[0; 8], &value(0), ANY), EINVAL, "too long");
        assert_eq!(errno(map.update(&[], &value(0), ANY)), EINVAL, "empty");
        assert_eq!(errno(map.next_key(None)), ENOENT, "an empty trie");
        assert_eq!(errno(map.next_key(Some(b"ab"))), ENOENT, "an empty trie");
        assert_eq!(errno(map.update(b"ab", &value(0), EXIST)), ENOENT);
        assert_eq!(prog_update(&map, b"ab", &value(0), EXIST), ENOENT);
        for wrong in [0, 3, 5] {
            assert_eq!(errno(map.update(b"ab", &vec![0; wrong], ANY)), EINVAL);
        }
        assert_eq!(looked_through(&map), []);
    }
}

/// `bad_lookup_delete`: keys that begin as others do, or go on behind them, are not there.
#[test]
fn absent_keys_are_not_found() {
    let dir = Dir::new();
    table(&dir, 64);
    for map in both(&dir, &strings(4, 4, 2)) {
        let absent = |map: &Map, key: &[u8]| {
            assert_eq!(errno(map.lookup(key)), ENOENT, "{key:?}");
            assert_eq!(errno(map.lookup_and_delete(key, &mut [0; 4], 0)), ENOENT, "{key:?}");
            assert_eq!(errno(map.delete(key)), ENOENT, "{key:?}");
            assert_eq!((prog_lookup(map, key), prog_delete(map, key)), (None, ENOENT), "{key:?}");
        };
        absent(&map, &[0]);
        map.update(&[0; 2], &value(2), NOEXIST).expect("room");
        absent(&map, &[0]);
        map.update(&[0; 4], &value(4), NOEXIST).expect("room");
        absent(&map, &[0]);
        absent(&map, &[0; 3]);
        absent(&map, &[0; 5]);
        assert_eq!(
            looked_through(&map),
            [(vec![0; 2], value(2).to_vec()), (vec![0; 4], value(4).to_vec())]
        );
    }
}

/// `one_subtree_update`: five keys with one beginning, through every flag.
#[test]
fn keys_with_one_beginning_come_change_and_go() {
    let dir = Dir::new();
    table(&dir, 64);
    const KEYS: [&[u8]; 5] = [b"ab", b"abc", b"abo", b"abS", b"abcd"];
    for map in both(&dir, &strings(4, 4, 5)) {
        for (i, key) in (0..).zip(KEYS) {
            let stored = |want| assert_eq!(map.lookup(key).expect("there"), value(want));
            assert_eq!(errno(map.update(key, &value(i), EXIST)), ENOENT);
            map.update(key, &value(i), NOEXIST).expect("room");
            assert_eq!(errno(map.update(key, &value(9), NOEXIST)), EEXIST);
            stored(i);
            map.update(key, &value(i + 10), ANY).expect("replaces");
            stored(i + 10);
            map.update(key, &value(i + 20), EXIST).expect("replaces");
            stored(i + 20);
        }
        for (i, key) in (0..).zip(KEYS) {
            assert_eq!(errno(map.update(key, &value(0), NOEXIST)), EEXIST);
            assert_eq!(prog_update(&map, key, &value(0), NOEXIST), EEXIST);
            map.update(key, &value(i), EXIST).expect("a full trie replaces");
        }
        assert_eq!(errno(map.update(b"abd", &value(0), ANY)), ENOSPC);
        assert_eq!(errno(map.update(b"b", &value(0), NOEXIST)), ENOSPC);
        assert_eq!(prog_update(&map, b"ac", &value(0), ANY), ENOSPC);
        assert_eq!(errno(map.update(b"abd", &value(0), EXIST)), ENOENT);
        let mut want = KEYS;
        want.sort_unstable();
        assert_eq!(by_next_key(&map), want);
        for (gone, first) in KEYS.iter().enumerate() {
            map.delete(first).expect("there");
            for (i, key) in KEYS.iter().enumerate() {
                let want = (i > gone).then(|| value(i as u32).to_vec());
                assert_eq!(map.lookup(key).ok(), want);
                assert_eq!(prog_lookup(&map, key), want);
            }
            assert_eq!(errno(map.delete(first)), ENOENT);
        }
        assert_eq!(looked_through(&map), []);
    }
}

/// `all_subtree_update`: every first byte, full to the limit, and away again from the end.
#[test]
fn keys_with_every_first_byte_come_and_go() {
    let dir = Dir::new();
    table(&dir, 64);
    const N: u32 = 4096;
    for def in [strings(4, 4, N), uncached(strings(4, 4, N)), fixed(4, 4, N)] {
        let map = dir.make(&def);
        for i in 0..N {
            map.update(&i.to_le_bytes(), &value(i), NOEXIST).expect("room");
        }
        assert_eq!(errno(map.update(&N.to_le_bytes(), &value(0), ANY)), ENOSPC);
        let want: BTreeSet<Vec<u8>> = (0..N).map(|i| i.to_le_bytes().to_vec()).collect();
        assert!(by_next_key(&map).iter().eq(want.iter()));
        assert_eq!(looked_through(&map).len(), N as usize);
        for i in (0..N).rev() {
            map.delete(&i.to_le_bytes()).expect("there");
            assert_eq!(errno(map.lookup(&i.to_le_bytes())), ENOENT);
        }
        assert_eq!(errno(map.next_key(None)), ENOENT);
        // And again: the memory is there.
        for i in 0..N {
            map.update(&i.to_be_bytes(), &value(i), NOEXIST).expect("room");
        }
        assert_eq!(looked_through(&map).len(), N as usize);
    }
}

/// Random keys, and all of them.
fn random(map: &Map, n: u32, seed: u64) -> BTreeSet<Vec<u8>> {
    let mut random = Random(seed);
    let mut all = BTreeSet::new();
    while (all.len() as u32) < n {
        let key = (random.next() as u32).to_ne_bytes();
        if all.insert(key.to_vec()) {
            map.update(&key, &value(all.len() as u32), NOEXIST).expect("room");
        }
    }
    all
}

/// `rdonly_iterate`: in order to the end; a key that is not there is followed by the first one.
#[test]
fn the_next_key_of_an_absent_one_is_the_first() {
    let dir = Dir::new();
    table(&dir, 64);
    for map in both(&dir, &strings(9, 4, 4096)) {
        let all = random(&map, 4096, 1);
        assert!(by_next_key(&map).iter().eq(all.iter()));
        let (first, last) = (all.first().expect("many"), all.last().expect("many"));
        assert_eq!(errno(map.next_key(Some(last))), ENOENT);
        for absent in [&b"a"[..], &[0], &[255; 9], &[7; 10], &[7; 300]] {
            assert_eq!(map.next_key(Some(absent)).expect("begins anew"), *first, "{absent:?}");
        }
        for key in all.iter().step_by(100) {
            map.delete(key).expect("there");
            assert!(map.next_key(Some(key)).expect("others") <= first.clone().max(vec![255; 4]));
            assert_eq!(map.next_key(Some(key)).ok(), map.next_key(None).ok(), "gone, so absent");
        }
        assert_eq!(errno(map.next_key(Some(&[]))), EINVAL, "no key is empty");
    }
}

/// `iterate_then_delete`: who deletes each first key still meets all of them in order.
#[test]
fn deleting_the_first_key_again_and_again_goes_in_order() {
    let dir = Dir::new();
    table(&dir, 64);
    for map in both(&dir, &strings(4, 4, 4096)) {
        let all = random(&map, 4096, 2);
        let (mut seen, mut at) = (vec![], map.next_key(None).ok());
        while let Some(key) = at {
            map.delete(&key).expect("there");
            at = map.next_key(Some(&key)).ok();
            seen.push(key);
        }
        assert!(seen.iter().eq(all.iter()));
    }
}

/// `iterate_then_batch_delete`: parts before and behind the place of an iteration vanish.
#[test]
fn ranges_vanish_around_an_iteration() {
    let dir = Dir::new();
    table(&dir, 64);
    for map in both(&dir, &strings(4, 4, 8192)) {
        let all: Vec<_> = random(&map, 8192, 3).into_iter().collect();
        let mut alive: BTreeSet<&Vec<u8>> = all.iter().collect();
        let (mut numbers, mut at) = (Random(4), map.next_key(None).ok());
        while let Some(key) = at {
            let place = all.binary_search(&key).expect("one of them");
            let many = numbers.below(64) as usize;
            let gone = match numbers.below(2) {
                0 => place.saturating_sub(many)..place,
                _ => place + 1..(place + 1 + many).min(all.len()),
            };
            for key in all[gone].iter().filter(|key| alive.remove(key)) {
                map.delete(key).expect("there");
            }
            at = map.next_key(Some(&key)).ok();
            let want = alive.range::<Vec<u8>, _>(&all[place]..).nth(1).map(|key| (*key).clone());
            assert_eq!(at, want, "the next one that is left");
        }
        assert!(by_next_key(&map).iter().eq(alive));
    }
}

/// `iterate_then_add`: keys that are put in just before they are due are met.
#[test]
fn keys_put_in_ahead_of_an_iteration_are_met() {
    let dir = Dir::new();
    table(&dir, 64);
    for map in both(&dir, &strings(4, 4, 4096)) {
        for i in (0..4096u32).step_by(2) {
            map.update(&i.to_be_bytes(), &value(i), NOEXIST).expect("room");
        }
        let mut at = map.next_key(None).ok();
        for i in 0..4096u32 {
            let key = at.expect("all are met");
            assert_eq!(key, i.to_be_bytes());
            if i % 2 == 0 {
                map.update(&(i + 1).to_be_bytes(), &value(i), NOEXIST).expect("room");
            }
            at = map.next_key(Some(&key)).ok();
        }
        assert_eq!(at, None);
    }
}

/// `basic_ops` of a program: a trailing zero counts.
#[test]
fn a_program_finds_changes_and_deletes() {
    let dir = Dir::new();
    table(&dir, 64);
    for map in both(&dir, &strings(64, 4, 8)) {
        map.update(b"hello world", &value(1), NOEXIST).expect("room");
        assert_eq!(prog_lookup(&map, b"hello world\0"), None);
        assert_eq!(prog_lookup(&map, b"hello world"), Some(value(1).to_vec()));
        assert_eq!(prog_update(&map, b"hello world", &value(2), EXIST), 0);
        assert_eq!(map.lookup(b"hello world").expect("there"), value(2));
        assert_eq!(prog_delete(&map, b"hello world"), 0);
        assert_eq!(prog_delete(&map, b"hello world"), ENOENT);
        assert_eq!(prog_update(&map, b"hello world", &value(2), EXIST), ENOENT);
        assert_eq!(prog_update(&map, b"hello world\0", &value(3), NOEXIST), 0);
        assert_eq!(prog_walk(&map), [(b"hello world\0".to_vec(), value(3).to_vec())]);
    }
}

/// `zero_size_dynptr`: so is one that could not be made.
#[test]
fn an_empty_key_of_a_program_is_none() {
    let dir = Dir::new();
    table(&dir, 64);
    for map in both(&dir, &strings(64, 4, 8)) {
        map.update(b"\0", &value(1), NOEXIST).expect("room");
        assert_eq!(prog_lookup(&map, b""), None);
        assert_eq!(prog_update(&map, b"", &value(1), ANY), EINVAL);
        assert_eq!(prog_delete(&map, b""), EINVAL);
        assert_eq!(errno(map.lookup(b"")), EINVAL);
        assert_eq!(errno(map.delete(b"")), EINVAL);
        assert_eq!(looked_through(&map).len(), 1);
    }
}

/// `d_path_key`: what stands behind the end of a key in the program's buffer is none of it.
#[test]
fn garbage_behind_a_key_does_not_matter() {
    let dir = Dir::new();
    table(&dir, 64);
    for map in both(&dir, &strings(64, 4, 8)) {
        map.update(b"/usr/bin/true", &value(7), NOEXIST).expect("room");
        for garbage in [0, b'e', 0xff] {
            let mut buffer = [garbage; 64];
            buffer[..13].copy_from_slice(b"/usr/bin/true");
            assert_eq!(prog_lookup(&map, &buffer[..13]), Some(value(7).to_vec()));
        }
    }
}

/// A program's pointer is into the map: what it writes is there.
#[test]
fn programs_write_values_in_place() {
    let dir = Dir::new();
    table(&dir, 64);
    for size in [4, 8, 12, 64, 300] {
        for map in both(&dir, &strings(5, size, 3)) {
            for (key, n) in [(&b"a"[..], 1), (b"ab", 2), (b"abcde", 3)] {
                map.update(key, &vec![n; size as usize], ANY).expect("room");
            }
            support::qp_trie::as_program(|| {
                for key in [&b"a"[..], b"ab", b"abcde"] {
                    let key = skep_isa::map::DynptrUser {
                        data: key.as_ptr() as u64,
                        size: key.len() as u32,
                        reserved: 0,
                    };
                    // SAFETY: a description of readable bytes; the value is one of the map's, used
                    // by this thread alone.
                    unsafe {
                        let value = map.prog_lookup((&raw const key).cast());
                        let align = if size % 8 == 0 { 8 } else { 4 };
                        assert_eq!(value as usize % align, 0, "atomic instructions need that");
                        *value.add(size as usize - 1) += 10;
                    }
                }
            });
            for (key, n) in [(&b"a"[..], 1), (b"ab", 2), (b"abcde", 3)] {
                let mut want = vec![n; size as usize];
                want[size as usize - 1] += 10;
                assert_eq!(map.lookup(key).expect("there"), want);
            }
        }
    }
}

/// What a program holds stays the element's when others come, go and are replaced around it.
#[test]
fn an_address_stays_the_elements_while_it_is_there() {
    let dir = Dir::new();
    table(&dir, 64);
    for map in both(&dir, &strings(20, 8, 1000)) {
        let keys = support::qp_trie::hostile_keys(map.key_shape(), 1000, 5);
        let address = |key: &[u8]| {
            let key = skep_isa::map::DynptrUser {
                data: key.as_ptr() as u64,
                size: key.len() as u32,
                reserved: 0,
            };
            // SAFETY: a description of readable bytes.
            unsafe { map.prog_lookup((&raw const key).cast()) as usize }
        };
        let mut held = Vec::new();
        for key in &keys {
            map.update(key, &[1; 8], NOEXIST).expect("room");
            held.push(address(key));
        }
        for (i, key) in keys.iter().enumerate().filter(|(i, _)| i % 3 == 0) {
            map.delete(key).expect("there");
            held[i] = 0;
        }
        for (key, was) in keys.iter().zip(&held) {
            assert_eq!(address(key), *was, "{key:x?}");
        }
    }
}

/// The series refuses these with 524; we have them.
#[test]
fn what_the_series_left_out_is_there() {
    let dir = Dir::new();
    table(&dir, 64);
    for map in both(&dir, &strings(5, 4, 4)) {
        let shape = map.key_shape();
        let cells: Vec<u8> = [&b"b"[..], b"ab", b"a\0c"]
            .iter()
            .flat_map(|key| {
                let mut cell = vec![0; shape.cell_size()];
                assert!(shape.write_cell(&mut cell, key));
                cell
            })
            .collect();
        let values: Vec<u8> = [1, 2, 3].into_iter().flat_map(value).collect();
        assert_eq!(batch::update_batch(&map, &cells, &values, 3, NOEXIST).expect("room"), 3);
        let (mut next, mut keys, mut out) = ([0; 12], [0; 36], [0; 12]);
        let done = batch::lookup_batch(
            &map,
            None,
            &mut next,
            (&mut keys, &mut out),
            3,
            0,
            Some(skep_maps::Take::Fast),
        );
        assert_eq!(done.expect("three"), 3);
        assert_eq!(out[..], [3, 2, 1].into_iter().flat_map(value).collect::<Vec<_>>());
        assert_eq!(shape.read_cell(&keys[..12]), Some(&b"a\0c"[..]));
        assert_eq!(errno(map.next_key(None)), ENOENT, "they were taken");
        map.update(b"ab", &value(5), ANY).expect("room");
        let mut out = [0; 4];
        map.lookup_and_delete(b"ab", &mut out, 0).expect("there");
        assert_eq!((out, errno(map.lookup(b"ab"))), (value(5), ENOENT));
        assert_eq!(batch::delete_batch(&map, &cells, 3, 0).map_err(|e| e.error.errno()), Err(2));
    }
}

/// Keys of one byte, and of as many as fit.
#[test]
fn the_shortest_and_the_longest_keys() {
    let dir = Dir::new();
    table(&dir, 64);
    for map in both(&dir, &strings(1, 4, 256)) {
        for i in (0..=255u8).rev() {
            map.update(&[i], &value(i.into()), NOEXIST).expect("room");
        }
        let want: Vec<_> = (0..=255u8).map(|i| (vec![i], value(i.into()).to_vec())).collect();
        assert_eq!(looked_through(&map), want);
    }
    const LONG: usize = 1 << 20;
    for map in both(&dir, &strings(LONG as u32, 8, 40)) {
        // They part at the end, at the beginning, or are the beginning of others.
        let mut keys = BTreeSet::new();
        for i in 0..10 {
            for (at, len) in [(LONG - 1, LONG), (0, LONG), (LONG / 2, LONG), (3, 5 + 4000 * i)] {
                let mut key = vec![0xab; len];
                key[at] = i as u8;
                keys.insert(key);
            }
        }
        for key in &keys {
            map.update(key, &(key.len() as u64).to_ne_bytes(), NOEXIST).expect("room");
        }
        assert!(looked_through(&map).iter().map(|(key, _)| key).eq(&keys));
        assert_eq!(errno(map.lookup(&vec![0xab; LONG])), ENOENT);
        for key in &keys {
            map.delete(key).expect("there");
        }
        assert_eq!(looked_through(&map), []);
    }
}

/// A trie of many levels: each key is the beginning of the next.
#[test]
fn keys_that_begin_with_each_other_thousands_deep() {
    let dir = Dir::new();
    table(&dir, 64);
    const N: usize = 3000;
    for byte in [0, b'a', 0xff] {
        for map in both(&dir, &strings(N as u32, 4, N as u32)) {
            let all = vec![byte; N];
            let mut lengths: Vec<usize> = (1..=N).collect();
            let mut random = Random(u64::from(byte));
            for i in (1..N).rev() {
                lengths.swap(i, random.below(i as u64 + 1) as usize);
            }
            for len in &lengths {
                map.update(&all[..*len], &value(*len as u32), NOEXIST).expect("room");
            }
            let want: Vec<_> =
                (1..=N).map(|n| (all[..n].to_vec(), value(n as u32).to_vec())).collect();
            assert_eq!(map.iter().map(|e| e.expect("whole")).collect::<Vec<_>>(), want);
            for len in lengths.iter().step_by(if rounds(0, 1) == 1 { 1 } else { 7 }) {
                assert_eq!(map.lookup(&all[..*len]).expect("there"), value(*len as u32));
                assert_eq!(prog_lookup(&map, &all[..*len]), Some(value(*len as u32).to_vec()));
            }
            for len in &lengths {
                map.delete(&all[..*len]).expect("there");
            }
            assert_eq!(map.iter().count(), 0);
        }
    }
}

/// Keys that part high above the end of a path that is longer than what a writer remembers of it:
/// where the second one's byte is missing, the path goes on through all levels of the first.
#[test]
fn keys_that_part_far_above_the_end_of_a_path() {
    let dir = Dir::new();
    table(&dir, 64);
    const N: usize = 200;
    for map in both(&dir, &strings(N as u32 + 1, 4, 4 * N as u32)) {
        let key = |n: usize, last: u8| {
            let mut key = vec![b'm'; n];
            key.push(last);
            key
        };
        let mut model = std::collections::BTreeMap::new();
        let mut random = Random(3);
        for last in [b'z', b'a', 0, 0xff] {
            let mut lengths: Vec<usize> = (0..N).collect();
            for i in (1..N).rev() {
                lengths.swap(i, random.below(i as u64 + 1) as usize);
            }
            for n in lengths {
                map.update(&key(n, last), &value(n as u32), NOEXIST).expect("room");
                model.insert(key(n, last), value(n as u32).to_vec());
            }
            let there: Vec<_> = map.iter().map(|e| e.expect("whole")).collect();
            assert_eq!(there, model.clone().into_iter().collect::<Vec<_>>());
        }
        for (key, value) in &model {
            assert_eq!(map.lookup(key).expect("there"), *value);
        }
    }
}

/// Users may be kept from reading or writing; programs are not.
#[test]
fn users_keep_to_the_flags_of_access() {
    let dir = Dir::new();
    table(&dir, 64);
    let with = |flag| {
        let mut def = strings(5, 4, 4);
        def.flags.0 |= flag;
        dir.make(&def)
    };
    let map = with(MapFlags::RDONLY);
    assert_eq!(errno(map.update(b"a", &value(1), ANY)), 1);
    assert_eq!(prog_update(&map, b"a", &value(1), ANY), 0);
    assert_eq!(map.lookup(b"a").expect("there"), value(1));
    assert_eq!(errno(map.lookup_and_delete(b"a", &mut [0; 4], 0)), 1);
    let map = with(MapFlags::WRONLY);
    map.update(b"a", &value(1), ANY).expect("room");
    assert_eq!(errno(map.lookup(b"a")), 1);
    assert_eq!(errno(map.next_key(None)), 1);
    assert_eq!(errno(map.lookup_nearest(b"a", skep_maps::Nearest::Floor)), 1);
    assert_eq!(prog_lookup(&map, b"a"), Some(value(1).to_vec()));
    let map = with(0);
    map.update(b"a", &value(1), ANY).expect("room");
    map.freeze().expect("once");
    assert_eq!(errno(map.delete(b"a")), 1);
    assert_eq!(errno(map.delete_range(&skep_maps::KeyRange::ALL)), 1);
    assert_eq!(prog_delete(&map, b"a"), 0);
    assert_eq!(map.def().map_type, MapType::QpTrie);
}
