//! The DUMP command as its proposal tested it, and the BATCH commands as the kernel answers them.

mod support;

use std::collections::BTreeSet;

use skep_isa::map::update::{ANY, NOEXIST};
use skep_isa::{MapFlags, MapType};
use skep_maps::dump::batch::{self, BatchError};
use skep_maps::dump::{Take, command};
use skep_maps::{CURSOR_LEN, Cursor, Map, MapDef, MapError};
use support::{Dir, words};

fn filled(dir: &Dir, t: MapType, n: u32) -> Map {
    let key_size = if matches!(t, MapType::Array | MapType::PercpuArray) { 4 } else { 8 };
    let map = dir.make(&MapDef::new(t, key_size, 8, n.max(1)));
    for i in 0..n {
        map.update(&key(&map, i), &vec![i as u8; map.user_value_size()], ANY).expect("room");
    }
    map
}

fn key(map: &Map, i: u32) -> Vec<u8> {
    if map.def().key_size == 4 {
        i.to_ne_bytes().to_vec()
    } else {
        u64::from(i).to_ne_bytes().to_vec()
    }
}

fn errno<T>(done: Result<T, MapError>) -> i32 {
    done.map_or_else(|e| e.errno(), |_| 0)
}

/// The selftest of the proposal: five elements, read by two, then the rest, then nothing.
#[test]
fn five_elements_are_dumped_by_two() {
    let dir = Dir::new();
    let map = filled(&dir, MapType::Hash, 5);
    let order: Vec<u64> =
        std::iter::successors(map.next_key(None).ok(), |k| map.next_key(Some(k)).ok())
            .map(|k| words(&k)[0])
            .collect();
    let (mut buf, mut len) = ([0; 3 * 16], 15);
    assert_eq!(errno(command::dump(&map, None, &mut buf, &mut len, 0)), 22, "one byte too small");
    len = 47;
    assert_eq!(errno(command::dump(&map, None, &mut buf, &mut len, 0)), 0);
    assert_eq!((len, words(&buf)[0], words(&buf)[2]), (32, order[0], order[1]));
    let mut prev = order[1].to_ne_bytes();
    len = 32;
    assert_eq!(errno(command::dump(&map, Some(&mut prev), &mut buf, &mut len, 0)), 0);
    assert_eq!(
        (len, words(&buf)[0], words(&buf)[2], words(&prev)),
        (32, order[2], order[3], vec![order[3]])
    );
    assert_eq!(errno(command::dump(&map, Some(&mut prev), &mut buf, &mut len, 0)), 0);
    assert_eq!((len, words(&buf)[0], words(&prev)), (16, order[4], vec![order[4]]));
    len = 32;
    assert_eq!(
        errno(command::dump(&map, Some(&mut prev), &mut buf, &mut len, 0)),
        2,
        "nothing left"
    );
    assert_eq!(
        errno(command::dump(&filled(&dir, MapType::Hash, 0), None, &mut buf, &mut len, 0)),
        2,
        "an empty map"
    );
}

#[test]
fn a_previous_key_that_is_gone_neither_restarts_nor_loops() {
    let dir = Dir::new();
    let map = filled(&dir, MapType::Hash, 50);
    let (mut buf, mut len) = (vec![0; 160], 160);
    command::dump(&map, None, &mut buf, &mut len, 0).expect("ten");
    let mut prev = buf[144..152].to_vec();
    map.delete(&prev).expect("there");
    let gone = command::dump(&map, Some(&mut prev), &mut buf, &mut len, 0);
    assert!(matches!(gone, Err(MapError::KeyGone)) && errno(gone) == 11);
    command::dump(&map, Some(&mut prev), &mut buf, &mut len, command::F_RESTART)
        .expect("from the beginning");
    assert_eq!(buf[..8], map.next_key(None).expect("first"));
    // A cursor does not mind.
    let (mut cursor, mut seen) = ([0; CURSOR_LEN], 0);
    assert_eq!(Cursor::len_in(&map), CURSOR_LEN);
    while command::dump(&map, Some(&mut cursor), &mut buf, &mut len, command::F_CURSOR).is_ok() {
        buf[..len as usize].chunks(16).for_each(|e| map.delete(&e[..8]).expect("there"));
        seen += len / 16;
        len = 160;
    }
    assert_eq!(seen, 49);
    let other = filled(&dir, MapType::Hash, 1);
    assert_eq!(
        errno(command::dump(&other, Some(&mut cursor), &mut buf, &mut len, command::F_CURSOR)),
        116,
        "another map's cursor"
    );
    assert_eq!(
        errno(command::dump(&other, Some(&mut [9; 32]), &mut buf, &mut len, command::F_CURSOR)),
        116,
        "no cursor"
    );
    assert_eq!(
        errno(command::dump(&other, Some(&mut [0; 4]), &mut buf, &mut len, 0)),
        22,
        "no key"
    );
    for flags in [1, 2, 4, 8, command::F_EXACT, 1 << 63] {
        assert_eq!(errno(command::dump(&other, None, &mut buf, &mut len, flags)), 22, "{flags:#x}");
    }
}

#[test]
fn a_trie_is_dumped_from_a_key_and_from_a_cursor_that_are_gone() {
    let dir = Dir::new();
    for (bytes, len) in [(4, 32), (16, 32), (17, 33), (256, 272)] {
        for flags in [0, command::F_CURSOR] {
            let map = dir.make(
                &MapDef::new(MapType::LpmTrie, 4 + bytes, 8, 30).flags(MapFlags::NO_PREALLOC),
            );
            assert_eq!(Cursor::len_in(&map), len);
            for i in 0..30 {
                let key =
                    [&(bytes * 8).to_ne_bytes()[..], &vec![0; bytes as usize - 1], &[i]].concat();
                map.update(&key, &[i; 8], ANY).expect("room");
            }
            let size = 4 + bytes as usize + 8;
            let (mut buf, mut used, mut seen) = (vec![0; 4 * size], 4 * size as u32, Vec::new());
            let mut prev = (flags == command::F_CURSOR).then(|| vec![0; len]);
            while command::dump(&map, prev.as_deref_mut(), &mut buf, &mut used, flags).is_ok() {
                for e in buf[..used as usize].chunks(size) {
                    seen.push(e[size - 1]);
                    map.delete(&e[..size - 8]).expect("there");
                }
                // The memory of the last one is used anew.
                let first = [&0u32.to_ne_bytes()[..], &vec![0; bytes as usize]].concat();
                map.update(&first, &[99; 8], ANY).expect("room");
                prev.get_or_insert_with(|| buf[used as usize - size..used as usize - 8].to_vec());
                used = 4 * size as u32;
            }
            assert_eq!(
                seen,
                (0..30).chain([99]).collect::<Vec<u8>>(),
                "addresses of {bytes} bytes, flags {flags:#x}"
            );
        }
    }
}

#[test]
fn elements_are_dumped_and_deleted_or_aligned() {
    let dir = Dir::new();
    let map = filled(&dir, MapType::Hash, 20);
    let (mut buf, mut len, mut seen) = ([0; 7 * 16], 7 * 16, BTreeSet::new());
    while command::dump(&map, None, &mut buf, &mut len, command::F_DELETE).is_ok() {
        seen.extend(buf[..len as usize].chunks(16).map(|e| words(e)[0]));
        len = 7 * 16;
    }
    assert_eq!((seen.len(), errno(map.next_key(None))), (20, 2));
    let map = filled(&dir, MapType::Array, 3);
    len = 48;
    command::dump(&map, Some(&mut 0u32.to_ne_bytes()), &mut buf, &mut len, command::F_ALIGN)
        .expect("two are left");
    assert_eq!((len, buf[0], buf[8], buf[16], buf[24]), (32, 1, 1, 2, 2));
    assert_eq!(
        errno(command::dump(&map, None, &mut buf, &mut len, command::F_DELETE)),
        22,
        "elements of an array stay"
    );
}

/// One batch: errno, count, what was read.
fn batch(
    map: &Map,
    from: Option<&[u8]>,
    out: &mut [u8],
    count: usize,
    take: Option<Take>,
) -> (i32, usize, Vec<(u64, Vec<u8>)>) {
    let (k, v) = (map.def().key_size as usize, map.user_value_size());
    let (mut keys, mut values) = (vec![0; count * k], vec![0; count * v]);
    let (errno, n) =
        match batch::lookup_batch(map, from, out, (&mut keys, &mut values), count, 0, take) {
            Ok(n) => (0, n),
            Err(BatchError { count, error }) => (error.errno(), count),
        };
    let number = |k: &[u8]| k.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b));
    let read =
        keys.chunks(k).map(number).zip(values.chunks(v).map(<[u8]>::to_vec)).take(n).collect();
    (errno, n, read)
}

fn whole(map: &Map, step: usize, take: Option<Take>) -> Vec<(u64, Vec<u8>)> {
    let (mut cursor, mut from, mut all) = (vec![0; batch::cursor_len(map)], None, Vec::new());
    loop {
        let (errno, n, read) = batch(map, from.as_deref(), &mut cursor, step, take);
        assert!(
            [0, 2].contains(&errno) && (errno == 2 || n > 0),
            "errno {errno}, step {step}: there is no ENOSPC"
        );
        all.extend(read);
        if errno == 2 {
            return all;
        }
        from = Some(cursor.clone());
    }
}

/// The kernel's own map tests: every step size from one up, each key once, the right values, and
/// end with data.
#[test]
fn every_step_size_reads_every_element_once() {
    let dir = Dir::new();
    for t in [MapType::Hash, MapType::PercpuHash, MapType::Array, MapType::PercpuArray] {
        let map = filled(&dir, t, 60);
        for step in 1..70 {
            let all = whole(&map, step, None);
            assert_eq!(
                all.iter().map(|(k, _)| *k).collect::<BTreeSet<_>>(),
                (0..60).collect(),
                "{t}, {step}"
            );
            assert_eq!(all.len(), 60, "{t}, {step}");
            assert!(
                all.iter().all(|(k, v)| *v == vec![*k as u8; map.user_value_size()]),
                "{t}, {step}"
            );
        }
    }
    for t in [MapType::Hash, MapType::PercpuHash] {
        for step in [1, 7, 60] {
            let map = filled(&dir, t, 60);
            assert_eq!(whole(&map, step, Some(Take::Fast)).len(), 60);
            assert_eq!(errno(map.next_key(None)), 2, "{t}, {step}");
        }
    }
}

#[test]
fn batches_end_as_the_kernels_do() {
    let dir = Dir::new();
    let (mut out, array) = ([0; 4], filled(&dir, MapType::Array, 10));
    let mut at = |from: Option<[u8; 4]>, count| {
        let (errno, n, _) =
            batch(&array, from.as_ref().map(<[u8; 4]>::as_slice), &mut out, count, None);
        ((errno, n), out)
    };
    let (first, cursor) = at(None, 5);
    let (second, cursor2) = at(Some(cursor), 5);
    assert_eq!((first, cursor, second, cursor2), ((0, 5), [4, 0, 0, 0], (0, 5), [9, 0, 0, 0]));
    assert_eq!((at(Some(cursor2), 5).0, at(None, 20).0, at(None, 0).0), ((2, 0), (2, 10), (0, 0)));

    let hash = filled(&dir, MapType::Hash, 10);
    let answer = |map: &Map, count| {
        let (errno, n, _) = batch(map, None, &mut [0; 4], count, None);
        (errno, n)
    };
    assert_eq!(
        (answer(&hash, 10), answer(&hash, 100), answer(&hash, 0)),
        ((2, 10), (2, 10), (0, 0))
    );
    assert_eq!(answer(&filled(&dir, MapType::Hash, 0), 5), (2, 0));
    assert_eq!(
        batch(&hash, Some(&u32::MAX.to_ne_bytes()), &mut [0; 4], 5, None).0,
        116,
        "a place nobody named"
    );
    assert_eq!(
        batch(&hash, Some(&0x10_0000u32.to_ne_bytes()), &mut [0; 4], 5, None).0,
        2,
        "behind the last bucket"
    );
    assert_eq!(batch(&hash, None, &mut [0; 2], 5, None).0, 22, "no room for a cursor");
    assert_eq!(batch(&array, None, &mut [0; 4], 5, Some(Take::Fast)).0, 524);
    let flags =
        batch::lookup_batch(&hash, None, &mut [0; 4], (&mut [0; 8], &mut [0; 8]), 1, 4, None);
    assert_eq!(flags.map_err(|e| (e.error.errno(), e.count)), Err((22, 0)), "no value has a lock");
    let ring = dir.make(&MapDef::new(MapType::Ringbuf, 0, 0, 4096));
    assert!(
        batch::lookup_batch(&ring, None, &mut [0; 4], (&mut [0; 8], &mut [0; 8]), 1, 0, None)
            .is_err()
    );
}

#[test]
fn updates_and_deletions_stop_at_the_first_that_fails() {
    let dir = Dir::new();
    let map = dir.make(&MapDef::new(MapType::Hash, 8, 8, 5));
    let column = |n: u64| (0..n).flat_map(u64::to_ne_bytes).collect::<Vec<u8>>();
    let told = |r: Result<usize, BatchError>| r.map_err(|e| (e.error.errno(), e.count));
    assert_eq!(
        told(batch::update_batch(&map, &column(10), &column(10), 10, ANY)),
        Err((7, 5)),
        "no room for the sixth"
    );
    assert_eq!(told(batch::update_batch(&map, &column(5), &column(5), 5, ANY)), Ok(5));
    assert_eq!(told(batch::update_batch(&map, &column(5), &column(5), 5, NOEXIST)), Err((17, 0)));
    assert_eq!(
        told(batch::update_batch(&map, &column(5), &column(4), 5, ANY)),
        Err((22, 4)),
        "a short column"
    );
    let keys: Vec<u8> = [0u64, 77, 2].into_iter().flat_map(u64::to_ne_bytes).collect();
    assert_eq!(told(batch::delete_batch(&map, &keys, 3, 0)), Err((2, 1)));
    assert!(map.lookup(&2u64.to_ne_bytes()).is_ok());
    assert_eq!(told(batch::delete_batch(&map, &column(0), 0, 0)), Ok(0));
    assert_eq!(told(batch::delete_batch(&map, &keys, 1, 1)), Err((22, 0)));
    let percpu = filled(&dir, MapType::PercpuHash, 3);
    let values = vec![5; 3 * percpu.user_value_size()];
    assert_eq!(told(batch::update_batch(&percpu, &column(3), &values, 3, ANY)), Ok(3));
    assert!(whole(&percpu, 2, None).iter().all(|(_, v)| v.iter().all(|b| *b == 5)));
}

/// A batch smaller than a bucket is what the kernel answers `ENOSPC` to, and what libraries double
/// their buffers for.
#[test]
fn a_cursor_inside_a_bucket_outlives_the_deletion_of_what_it_stands_on() {
    let dir = Dir::new();
    let map = dir.make(&MapDef::new(MapType::Hash, 8, 8, 1000));
    for i in 0..1000u64 {
        map.update(&i.to_ne_bytes(), &i.to_ne_bytes(), ANY).expect("room");
    }
    let (mut cursor, mut from, mut seen) = ([0; 4], None, BTreeSet::new());
    loop {
        let (errno, _, read) =
            batch(&map, from.as_ref().map(<[u8; 4]>::as_slice), &mut cursor, 1, None);
        for (k, _) in read {
            assert!(seen.insert(k), "{k} came twice");
            map.delete(&k.to_ne_bytes()).expect("there");
        }
        if errno == 2 {
            break;
        }
        from = Some(cursor);
    }
    assert_eq!(seen.len(), 1000);
}

#[test]
fn values_with_a_lock_are_copied_under_it() {
    let dir = Dir::new();
    let map = dir.make(&MapDef::new(MapType::Hash, 8, 16, 10).spin_lock(0));
    let value = |n: u64| [0, n].map(u64::to_ne_bytes).concat();
    (0..10u64).for_each(|i| map.update(&i.to_ne_bytes(), &value(i + 7), ANY).expect("room"));
    let (mut buf, mut len) = ([0; 240], 240);
    command::dump(&map, None, &mut buf, &mut len, command::F_LOCK).expect("a lock");
    assert_eq!(len, 240);
    assert!(buf.chunks(24).all(|e| words(e)[1] == 0 && words(e)[2] == words(e)[0] + 7));
    let (mut keys, mut values) = ([0; 80], [0; 160]);
    let all = batch::lookup_batch(
        &map,
        None,
        &mut [0; 4],
        (&mut keys, &mut values),
        10,
        4,
        Some(Take::Fast),
    );
    assert_eq!(all.map_err(|e| (e.error.errno(), e.count)), Err((2, 10)));
    assert_eq!(errno(map.next_key(None)), 2);
    let plain = filled(&dir, MapType::Hash, 1);
    assert_eq!(
        errno(command::dump(&plain, None, &mut buf, &mut len, command::F_LOCK)),
        22,
        "no value has a lock"
    );
}
