//! Walks keep their promises for every map type while other threads and processes change the map.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use skep_isa::map::update::{ANY, NOEXIST};
use skep_isa::{MapFlags, MapType};
use skep_maps::{Cursor, Map, MapDef, MapError, Take, Verdict, map_types};
use support::qp_trie::{fixed, strings, uncached};
use support::{Dir, Random, forked, rounds, table};

/// A map of a type with room for `entries`, in the first shape the type accepts; `None` for types
/// that need more than that.
fn map_of(dir: &Dir, t: MapType, entries: u32) -> Option<Map> {
    // Values of tables of ids, stacks and the like are not anything one likes; other tests have
    // them.
    if !t.row().value.allows(5) {
        return None;
    }
    let shapes = [(8, 8, 0), (4, 8, 0), (8, 8, MapFlags::NO_PREALLOC), (0, 8, 0), (4, 4, 0)];
    shapes
        .iter()
        .find_map(|(k, v, flags)| dir.create(&MapDef::new(t, *k, *v, entries).flags(*flags)).ok())
}

fn key(map: &Map, i: u32) -> Vec<u8> {
    match (map.def().map_type, map.def().key_size) {
        // The longest prefix; addresses differ at their ends, in network order.
        (MapType::LpmTrie, size) => {
            [&((size - 4) * 8).to_ne_bytes()[..], &vec![0xab; size as usize - 8], &i.to_be_bytes()]
                .concat()
        }
        (_, 4) => i.to_ne_bytes().to_vec(),
        _ => [i.to_ne_bytes(), [0xee; 4]].concat(),
    }
}

fn index(map: &Map, key: &[u8]) -> u32 {
    let word = |at: usize| key[at..at + 4].try_into().expect("four bytes");
    if map.def().map_type == MapType::LpmTrie {
        u32::from_be_bytes(word(key.len() - 4))
    } else {
        u32::from_ne_bytes(word(0))
    }
}

fn value(map: &Map, word: u64) -> Vec<u8> {
    let mut v = vec![0; map.user_value_size()];
    let n = v.len().min(8);
    v[..n].copy_from_slice(&word.to_ne_bytes()[..n]);
    v
}

fn word(value: &[u8]) -> u64 {
    value[..value.len().min(8)].iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))
}

/// A trie of addresses of so many bytes.
fn trie(dir: &Dir, bytes: u32, entries: u32) -> Map {
    dir.make(&MapDef::new(MapType::LpmTrie, 4 + bytes, 8, entries).flags(MapFlags::NO_PREALLOC))
}

/// Types whose elements come and go by key; tries of short, of usual and of the longest addresses.
fn keyed(dir: &Dir, entries: u32) -> Vec<Map> {
    let maps = map_types()
        .into_iter()
        .filter_map(|t| map_of(dir, t, entries))
        .chain([16, 17, 256].map(|n| trie(dir, n, entries)))
        .chain(
            [strings(40, 8, entries), uncached(strings(8, 8, entries))].map(|def| dir.make(&def)),
        );
    let works = |m: &Map| {
        m.def().key_size > 0
            && m.update(&key(m, 1), &value(m, 1), ANY).is_ok()
            && m.delete(&key(m, 1)).is_ok()
            && m.lookup(&key(m, 1)).is_err()
    };
    maps.filter(works).collect()
}

/// Such types that keep what was put in: an LRU map may drop it.
fn keeping(dir: &Dir, entries: u32) -> Vec<Map> {
    keyed(dir, entries)
        .into_iter()
        .filter(|m| !matches!(m.def().map_type, MapType::LruHash | MapType::LruPercpuHash))
        .collect()
}

/// Every element as index and word, with room for `room` elements a call.
fn walk(map: &Map, room: usize) -> Vec<(u32, u64)> {
    let mut walk = map.walk();
    let mut buf = vec![0; room * walk.element_size()];
    let mut all = Vec::new();
    loop {
        let n = walk.rows(&mut buf).expect("walks");
        if n == 0 {
            return all;
        }
        all.extend(walk.elements(&buf, n).map(|(k, v)| (index(map, k), word(v))));
        assert!(all.len() < 100_000, "a walk that does not end");
    }
}

const STABLE: u32 = 300;
const CHURN: u32 = 200;

/// Puts elements in and takes them out; each time with a number never used before.
fn churn(map: &Map, seed: u64, until: &dyn Fn() -> bool) {
    let (mut random, mut incarnation) = (Random(seed), seed << 32);
    while !until() {
        for _ in 0..64 {
            let key = key(map, STABLE + random.below(CHURN.into()) as u32);
            incarnation += 1;
            let done = if random.below(2) == 0 {
                map.delete(&key)
            } else {
                map.update(&key, &value(map, incarnation), NOEXIST)
            };
            assert!(
                done.as_ref().map_or_else(|e| [2, 17].contains(&e.errno()), |()| true),
                "{done:?}"
            );
        }
    }
}

#[test]
fn no_element_is_skipped_or_repeated_while_others_come_and_go() {
    let dir = Dir::new();
    let done = Arc::new(dir.make(&MapDef::new(MapType::Array, 4, 8, 1)));
    // An LRU map with room for all, and one that must drop some.
    let lru = [MapType::LruHash, MapType::LruPercpuHash]
        .into_iter()
        .flat_map(|t| [STABLE + CHURN, STABLE + CHURN / 4].map(|n| (t, n)));
    let lru: Vec<_> = lru.map(|(t, n)| dir.make(&MapDef::new(t, 8, 8, n))).collect();
    let types = keeping(&dir, STABLE + CHURN);
    assert!(types.len() >= 2);
    for map in types.into_iter().chain(lru) {
        let map = Arc::new(map);
        let t = map.def().map_type;
        let drops = matches!(t, MapType::LruHash | MapType::LruPercpuHash);
        for i in 0..STABLE {
            map.update(&key(&map, i), &value(&map, u64::from(i)), NOEXIST).expect("room");
        }
        done.update(&[0; 4], &[0; 8], ANY).expect("in range");
        let until = |done: &Map| done.lookup(&[0; 4]).expect("in range")[0] != 0;
        let child = forked(|| {
            churn(&map, 1, &|| until(&done));
            0
        });
        let threads: Vec<_> = [2, 3]
            .map(|seed| {
                let (map, done) = (Arc::clone(&map), Arc::clone(&done));
                std::thread::spawn(move || churn(&map, seed, &|| until(&done)))
            })
            .into();
        for round in 0..rounds(40, 4000) {
            let room = [1, 2, 3, 7, 64, 499, 10_000][round as usize % 7];
            let seen = walk(&map, room);
            let stable: BTreeMap<u32, usize> =
                seen.iter().filter(|(i, _)| *i < STABLE).fold(BTreeMap::new(), |mut n, (i, w)| {
                    assert_eq!(u64::from(*i), *w);
                    *n.entry(*i).or_default() += 1;
                    n
                });
            // Nobody puts these in again: which are there now, were there all the time.
            let stayed: Vec<u32> =
                (0..STABLE).filter(|i| !drops || map.lookup(&key(&map, *i)).is_ok()).collect();
            assert!(
                stayed.len() >= (map.def().max_entries - CHURN).min(STABLE) as usize / 2,
                "{t}: only {} stayed",
                stayed.len()
            );
            assert!(
                stayed.iter().all(|i| stable.contains_key(i)),
                "{t}: an element was skipped, room {room}"
            );
            assert!(stable.values().all(|n| *n == 1), "{t}: an element came twice, room {room}");
            let others: Vec<_> = seen.iter().filter(|(i, _)| *i >= STABLE).collect();
            assert_eq!(
                others.len(),
                others.iter().collect::<BTreeSet<_>>().len(),
                "{t}: an incarnation came twice, room {room}"
            );
        }
        done.update(&[0; 4], &[1; 8], ANY).expect("in range");
        threads.into_iter().for_each(|t| t.join().expect("no panic"));
        assert_eq!(child.join(), 0);
    }
}

/// Whatever becomes of the key that a walk stands on, and of the memory it had: the rest comes, in
/// order, once.
#[test]
fn a_trie_of_any_address_is_walked_on_from_a_prefix_that_is_gone() {
    let dir = Dir::new();
    let prefix = |bytes: u32, length: u32, byte: u8| {
        let mut address = vec![0xab; bytes as usize];
        address[bytes as usize - 1] = byte;
        [&length.to_ne_bytes()[..], &address].concat()
    };
    for bytes in [1, 4, 8, 9, 12, 16, 17, 64, 256] {
        for (door, room) in [(0, 1), (0, 3), (1, 1), (1, 3), (2, 1), (2, 3)] {
            let map = trie(&dir, bytes, 40);
            // Twelve addresses and, behind those below it, the prefix of each half.
            let all = |half: u8| {
                (0..6).map(move |i| prefix(bytes, bytes * 8, half | i << 2)).chain([prefix(
                    bytes,
                    bytes * 8 - 7,
                    half,
                )])
            };
            let want: Vec<Vec<u8>> = all(0).chain(all(0x80)).collect();
            want.iter().for_each(|k| map.update(k, &[1; 8], NOEXIST).expect("room"));
            let (mut kept, mut seen) = (Cursor::default(), Vec::new());
            let mut held = map.walk();
            let size = held.element_size();
            loop {
                let mut buf = vec![0; room * size];
                let n = match door {
                    // The walk itself, a cursor, and the bytes of one.
                    0 => held.rows(&mut buf).expect("walks"),
                    1 => map.dump(&mut kept, &mut buf).expect("walks") / size,
                    _ => {
                        let mut walk = map.walk().from_cursor(kept.clone());
                        let n = walk.rows(&mut buf).expect("walks");
                        kept = Cursor::from_bytes(&walk.cursor().to_bytes()).expect("a cursor");
                        n
                    }
                };
                if n == 0 {
                    break;
                }
                for element in buf.chunks(size).take(n) {
                    seen.push(element[..size - 8].to_vec());
                    map.delete(&element[..size - 8]).expect("there");
                    // Into the same memory: what was passed already, and never comes again.
                    map.update(&prefix(bytes, bytes * 8, 1), &[2; 8], ANY).expect("room");
                    map.delete(&prefix(bytes, bytes * 8, 1)).expect("there");
                    map.update(&prefix(bytes, bytes * 8, 2), &[2; 8], ANY).expect("room");
                }
            }
            // The one that was put in behind the first place of the walk, and ahead of it only at
            // first.
            seen.retain(|k| *k != prefix(bytes, bytes * 8, 2));
            assert_eq!(seen, want, "addresses of {bytes} bytes, door {door}, room {room}");
        }
    }
}

#[test]
fn an_element_that_stays_is_found_after_its_bucket_changed_four_billion_times() {
    use std::os::unix::fs::FileExt;
    let dir = Dir::new();
    let map = dir.make(&MapDef::new(MapType::Hash, 8, 8, 64));
    let put = |i: u32| map.update(&key(&map, i), &value(&map, i.into()), NOEXIST).expect("room");
    (0..32).for_each(put);
    // The versions of the 128 buckets behind 64 stripes, advanced as so many changes would.
    let file =
        std::fs::File::options().read(true).write(true).open(map.file().path()).expect("opens");
    for bucket in 0..128u64 {
        let (at, mut version) = (128 + 64 * 64 + bucket * 8 + 4, [0; 4]);
        file.read_exact_at(&mut version, at).expect("there");
        file.write_all_at(&u32::from_le_bytes(version).wrapping_add(0x8000_0000).to_le_bytes(), at)
            .expect("writable");
    }
    (32..64).for_each(put);
    for room in [1, 5, 100] {
        assert_eq!(walk(&map, room).into_iter().collect::<BTreeSet<_>>().len(), 64, "room {room}");
    }
}

#[test]
fn a_walk_of_each_type_shows_what_lookup_shows() {
    let dir = Dir::new();
    for t in map_types() {
        let Some(map) = map_of(&dir, t, 50) else { continue };
        if map.def().key_size == 0 {
            continue;
        }
        let put: Vec<u32> = (0..50)
            .filter(|i| map.update(&key(&map, *i), &value(&map, u64::from(*i) + 1), ANY).is_ok())
            .collect();
        let keys = std::iter::successors(map.next_key(None).ok(), |k| map.next_key(Some(k)).ok());
        let want: Vec<(u32, u64)> =
            keys.filter_map(|k| Some((index(&map, &k), word(&map.lookup(&k).ok()?)))).collect();
        assert!(want.len() >= put.len(), "{t}");
        for room in 1..60 {
            assert_eq!(walk(&map, room), want, "{t}, room {room}: in the order of next_key");
        }
    }
}

#[test]
fn a_cursor_survives_its_key_its_process_and_its_bytes_but_no_other_map() {
    let dir = Dir::new();
    for map in keyed(&dir, 100) {
        for i in 0..100 {
            map.update(&key(&map, i), &value(&map, i.into()), ANY).expect("room");
        }
        let present = walk(&map, 1000);
        let mut first = map.walk();
        let mut buf = vec![0; 40 * first.element_size()];
        assert_eq!(first.rows(&mut buf).expect("walks"), 40);
        let seen: BTreeSet<u32> = first.elements(&buf, 40).map(|(k, _)| index(&map, k)).collect();
        seen.iter().for_each(|i| map.delete(&key(&map, *i)).expect("there"));
        let bytes = first.cursor().to_bytes();
        let rest = present.len() - 40;
        let child = forked(|| {
            let map = Map::open(map.file().path(), skep_maps::Access::ReadOnly).expect("opens");
            let mut second = map.walk().from_cursor(Cursor::from_bytes(&bytes).expect("a cursor"));
            let mut buf = vec![0; 100 * second.element_size()];
            let n = second.rows(&mut buf).expect("goes on");
            i32::from(
                n != rest || second.elements(&buf, n).any(|(k, _)| seen.contains(&index(&map, k))),
            )
        });
        assert_eq!(child.join(), 0, "{}", map.def().map_type);
        let other = map_of(&dir, map.def().map_type, 100).expect("made before");
        let stale = other.walk().from_cursor(first.cursor()).rows(&mut buf).map_err(|e| e.errno());
        assert_eq!(stale, Err(116));
    }
    assert_eq!(Cursor::from_bytes(&[7; 32]), None);
    assert_eq!(Cursor::from_bytes(&[]), None);
}

#[test]
fn room_below_one_element_is_refused_and_a_filter_keeps_what_it_likes() {
    let dir = Dir::new();
    for map in keyed(&dir, 100) {
        let mut all = map.walk();
        let size = all.element_size();
        assert_eq!(all.rows(&mut vec![0; size - 1]).map_err(|e| e.errno()), Err(22));
        assert_eq!(all.rows(&mut vec![0; size]).map_err(|e| e.errno()), Ok(0), "empty");
        for i in 0..90 {
            map.update(&key(&map, i), &value(&map, i.into()), ANY).expect("room");
        }
        let (mut odd, mut buf, mut n) = (map.walk(), vec![0; 7 * size], 0);
        loop {
            let got =
                odd.rows_where(&mut buf, |_, v| {
                    if word(v) % 2 == 1 { Verdict::Keep } else { Verdict::Skip }
                })
                .expect("walks");
            assert!(odd.elements(&buf, got).all(|(_, v)| word(v) % 2 == 1));
            n += got;
            if got == 0 {
                break;
            }
        }
        assert_eq!((n, odd.visited()), (45, 90), "{}", map.def().map_type);
        let (mut stopped, mut looked) = (map.walk(), 0);
        let first = |_: &[u8], _: &[u8]| {
            looked += 1;
            if looked > 10 { Verdict::Stop } else { Verdict::Keep }
        };
        assert_eq!(stopped.rows_where(&mut vec![0; 50 * size], first).expect("walks"), 10);
        assert!(stopped.has_ended());
        // Taken through the same filter: only those go.
        let mut take = map.walk().taking(Take::Fast);
        let mut buf = vec![0; 100 * size];
        assert_eq!(
            take.rows_where(&mut buf, |_, v| if word(v) % 2 == 1 {
                Verdict::Keep
            } else {
                Verdict::Skip
            })
            .expect("takes"),
            45
        );
        assert!(walk(&map, 9).iter().all(|(_, v)| v % 2 == 0));
        assert_eq!(walk(&map, 9).len(), 45);
    }
}

#[test]
fn rows_are_packed_or_aligned_and_columns_apart() {
    let dir = Dir::new();
    let map = dir.make(&MapDef::new(MapType::Hash, 3, 5, 10));
    map.update(b"abc", b"12345", ANY).expect("room");
    let mut buf = [0xff; 64];
    assert_eq!(map.walk().rows(&mut buf).expect("walks"), 1);
    assert_eq!(&buf[..9], b"abc12345\xff");
    assert_eq!(map.walk().aligned().rows(&mut buf).expect("walks"), 1);
    assert_eq!((&buf[..3], &buf[8..13]), (&b"abc"[..], &b"12345"[..]));
    let (mut keys, mut values) = ([0; 6], [0; 10]);
    assert_eq!(map.walk().columns(&mut keys, &mut values).expect("walks"), 1);
    assert_eq!((&keys, &values), (b"abc\0\0\0", b"12345\0\0\0\0\0"));
}

#[test]
fn what_is_taken_is_taken_once_and_nothing_is_lost() {
    const EACH: u32 = 3000;
    let dir = Dir::new();
    // An LRU map that is never full throws nothing out.
    for map in keyed(&dir, 4 * EACH) {
        let map = Arc::new(map);
        let t = map.def().map_type;
        let seen = Arc::new(dir.make(&MapDef::new(MapType::Array, 4, 8, 4 * EACH)));
        let busy = Arc::new(AtomicBool::new(true));
        let fill = |map: &Map, part: u32| {
            (0..EACH).for_each(|i| {
                map.update(&key(map, part * EACH + i), &value(map, 7), NOEXIST).expect("room")
            });
        };
        let child = forked(|| {
            fill(&map, 0);
            0
        });
        let writers: Vec<_> = (1..4)
            .map(|part| {
                let map = Arc::clone(&map);
                std::thread::spawn(move || fill(&map, part))
            })
            .collect();
        let takers: Vec<_> = [1, 50, 1000]
            .map(|room| {
                let (map, seen, busy) = (Arc::clone(&map), Arc::clone(&seen), Arc::clone(&busy));
                std::thread::spawn(move || {
                    let mut taken = 0;
                    while busy.load(Relaxed) {
                        taken += take_all(&map, room, &seen);
                    }
                    taken
                })
            })
            .into();
        assert_eq!(child.join(), 0);
        writers.into_iter().for_each(|w| w.join().expect("no panic"));
        busy.store(false, Relaxed);
        let taken: usize = takers.into_iter().map(|t| t.join().expect("no panic")).sum();
        assert_eq!(taken + take_all(&map, 64, &seen), 4 * EACH as usize, "{t}");
        assert!(seen.iter().all(|e| word(&e.expect("walks").1) == 1), "{t}: each key once");
        assert_eq!(map.next_key(None).map_err(|e| e.errno()), Err(2), "{t}: nothing left");
    }
}

fn take_all(map: &Map, room: usize, seen: &Map) -> usize {
    let mut walk = map.walk().taking(Take::Fast);
    let (mut buf, mut taken) = (vec![0; room * walk.element_size()], 0);
    loop {
        let n = walk.rows(&mut buf).expect("takes");
        if n == 0 {
            return taken;
        }
        taken += n;
        for (k, v) in walk.elements(&buf, n) {
            assert_eq!(word(v), 7);
            let place = (seen.value_base() + 8 * u64::from(index(map, k)))
                as *const std::sync::atomic::AtomicU64;
            // SAFETY: an eight-byte value of the array, which outlives this use, used as an atomic
            // by all.
            unsafe { (*place).fetch_add(1, Relaxed) };
        }
    }
}

#[test]
fn walks_are_refused_where_the_map_may_not_be_read_or_written() {
    let dir = Dir::new();
    let map = dir.make(&MapDef::new(MapType::Hash, 8, 8, 4).flags(MapFlags::WRONLY));
    let errno = |r: Result<usize, MapError>| r.map_err(|e| e.errno());
    assert_eq!(errno(map.walk().rows(&mut [0; 64])), Err(1));
    let map = dir.make(&MapDef::new(MapType::Hash, 8, 8, 4));
    map.freeze().expect("once");
    assert_eq!(errno(map.walk().taking(Take::Fast).rows(&mut [0; 64])), Err(1));
    assert_eq!(errno(map.walk().rows(&mut [0; 64])), Ok(0));
    let map = dir.make(&MapDef::new(MapType::Array, 4, 8, 4));
    assert_eq!(
        errno(map.walk().taking(Take::Fast).rows(&mut [0; 64])),
        Err(22),
        "elements of an array stay"
    );
    let map = dir.make(&MapDef::new(MapType::Ringbuf, 0, 0, 4096));
    assert_eq!(errno(map.walk().rows(&mut [0; 64])), Err(524));
}

/// Adds one to the value of a key as a compiled program does: look up, else store; in place, with a
/// plain load and store in the slot's own value, atomically in a shared one.
fn bump(map: &Map, k: &[u8]) {
    use std::sync::atomic::AtomicU64;
    let entered = skep_maps::slots::enter();
    assert!(!entered.is_refused());
    // SAFETY: keys have eight bytes, values eight that are reached as an atomic or by this thread
    // alone, between enter and exit.
    unsafe {
        let mut p = map.prog_lookup(k.as_ptr());
        if p.is_null() {
            // Another thread may store first, or a walk take it again at once.
            map.prog_update(k.as_ptr(), 0u64.to_ne_bytes().as_ptr(), NOEXIST);
            p = map.prog_lookup(k.as_ptr());
        }
        if !p.is_null() {
            // The longer a program has it in hand, the more a walk that does not wait would lose.
            std::thread::yield_now();
            if map.is_per_cpu() {
                p.cast::<u64>().write_volatile(p.cast::<u64>().read_volatile() + 1);
            } else {
                AtomicU64::from_ptr(p.cast()).fetch_add(1, Relaxed);
            }
        } else {
            MISSED.fetch_add(1, Relaxed);
        }
    }
    skep_maps::slots::exit(entered);
}

static MISSED: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

/// Takes everything exactly; the sum of all values.
fn take_exactly(map: &Map, room: usize) -> u64 {
    let mut walk = map.walk().taking(Take::Exact);
    let (mut buf, mut sum) = (vec![0; room * walk.element_size()], 0);
    loop {
        let n = walk.rows(&mut buf).expect("takes");
        if n == 0 {
            return sum;
        }
        sum += walk.elements(&buf, n).flat_map(|(_, v)| support::words(v)).sum::<u64>();
    }
}

/// Programs count in place while two walks take the counters away: every count arrives.
#[test]
fn counters_taken_exactly_lose_no_increment() {
    let dir = Dir::new();
    let each = u64::from(rounds(3_000, 100_000));
    for t in [MapType::Hash, MapType::PercpuHash, MapType::LruHash, MapType::QpTrie] {
        let flags = if t == MapType::QpTrie { MapFlags::NO_PREALLOC } else { 0 };
        let map = Arc::new(dir.make(&MapDef::new(t, 8, 8, 64).flags(flags)));
        let missed = Arc::new(dir.make(&MapDef::new(MapType::Array, 4, 8, 2)));
        let storm = |map: &Arc<Map>, seed: u64| {
            let threads: Vec<_> = (0..2)
                .map(|i| {
                    let (map, mut random) = (Arc::clone(map), Random(seed + i));
                    std::thread::spawn(move || {
                        (0..each).for_each(|_| bump(&map, &random.below(20).to_ne_bytes()))
                    })
                })
                .collect();
            threads.into_iter().for_each(|t| t.join().expect("no panic"));
            MISSED.load(Relaxed)
        };
        let children: Vec<_> = (0..2u32)
            .map(|c| {
                forked(|| {
                    table(&dir, 256);
                    let gone = storm(&map, u64::from(c) * 100);
                    missed.update(&c.to_ne_bytes(), &gone.to_ne_bytes(), ANY).expect("in range");
                    0
                })
            })
            .collect();
        let busy = Arc::new(AtomicBool::new(true));
        let takers: Vec<_> = [3, 1000]
            .map(|room| {
                let (map, busy) = (Arc::clone(&map), Arc::clone(&busy));
                std::thread::spawn(move || {
                    let mut sum = 0;
                    while busy.load(Relaxed) {
                        sum += take_exactly(&map, room);
                    }
                    sum
                })
            })
            .into();
        children.into_iter().for_each(|c| assert_eq!(c.join(), 0));
        busy.store(false, Relaxed);
        let taken: u64 = takers.into_iter().map(|t| t.join().expect("no panic")).sum::<u64>()
            + take_exactly(&map, 5);
        let gone: u64 = missed.iter().map(|e| word(&e.expect("walks").1)).sum();
        assert_eq!(taken + gone, 4 * each, "{t}");
        // Nothing was lost of the memory either.
        if t != MapType::LruHash {
            (0..64).for_each(|i| {
                map.update(&key(&map, i), &value(&map, 1), NOEXIST).expect("room for all")
            });
        }
    }
}

/// One walk waits for a program, longer than a lock is waited for, and another for the walk: both
/// get what they came for.
#[test]
fn two_walks_outwait_a_program_that_takes_its_time() {
    let dir = Dir::new();
    for def in [MapDef::new(MapType::Hash, 8, 8, 8), fixed(8, 8, 8)] {
        let map = Arc::new(dir.make(&def));
        (0..2u64).for_each(|k| {
            map.update(&k.to_ne_bytes(), &1u64.to_ne_bytes(), NOEXIST).expect("room")
        });
        let child = forked(|| {
            table(&dir, 256);
            let entered = skep_maps::slots::enter();
            assert!(!entered.is_refused());
            // SAFETY: the key has eight bytes; the value is an atomic of all who know it.
            let counts = [0u64, 1].map(|k| unsafe {
                &*map.prog_lookup(k.to_ne_bytes().as_ptr()).cast::<std::sync::atomic::AtomicU64>()
            });
            let takers = [0, 1].map(|_| {
                let map = Arc::clone(&map);
                std::thread::spawn(move || {
                    let mut walk = map.walk().taking(Take::Exact);
                    let mut buf = vec![0; walk.element_size()];
                    let n = walk.rows(&mut buf).expect("waits");
                    walk.elements(&buf, n).map(|(_, v)| word(v)).sum::<u64>()
                })
            });
            // The first has taken one of the two out, and waits for this thread.
            while walk(&map, 8).len() != 1 {
                std::thread::yield_now();
            }
            // Longer than a waiter has patience without a sign of life.
            std::thread::sleep(std::time::Duration::from_secs(2));
            counts[0].fetch_add(10, Relaxed);
            counts[1].fetch_add(10, Relaxed);
            skep_maps::slots::exit(entered);
            assert_eq!(takers.map(|t| t.join().expect("no panic")), [11, 11]);
            0
        });
        assert_eq!(child.join(), 0);
    }
}

/// Whose elements can be taken exactly, and what leads to such maps: programs that use them say
/// when they run.
#[test]
fn maps_that_are_taken_from_exactly_are_those_that_programs_are_waited_for() {
    let dir = Dir::new();
    for t in map_types() {
        let map = dir.make(&support::small(t));
        let mut buf = vec![0; map.walk().element_size().max(1)];
        let exact = map.walk().taking(Take::Exact).rows(&mut buf).is_ok();
        let leads = matches!(t, MapType::ArrayOfMaps | MapType::HashOfMaps | MapType::ProgArray);
        assert_eq!(map.is_waited_for(), exact || leads, "{t}");
    }
}

/// A thread's later runs are waited for as its first one is.
#[test]
fn a_walk_waits_for_each_run_of_a_thread_not_only_its_first() {
    let dir = Dir::new();
    for def in [MapDef::new(MapType::Hash, 8, 8, 8), uncached(fixed(8, 8, 8))] {
        let map = Arc::new(dir.make(&def));
        let child = forked(|| {
            table(&dir, 256);
            for round in 0..40u64 {
                map.update(&round.to_ne_bytes(), &1u64.to_ne_bytes(), NOEXIST).expect("room");
                let entered = skep_maps::slots::enter();
                assert!(!entered.is_refused());
                // SAFETY: the key has eight bytes; the value is an atomic of all who know it.
                let count = unsafe {
                    &*map
                        .prog_lookup(round.to_ne_bytes().as_ptr())
                        .cast::<std::sync::atomic::AtomicU64>()
                };
                let taker = {
                    let map = Arc::clone(&map);
                    std::thread::spawn(move || take_exactly(&map, 1))
                };
                while map.lookup(&round.to_ne_bytes()).is_ok() {
                    std::thread::yield_now();
                }
                // Time enough for one that does not wait.
                (0..20).for_each(|_| std::thread::yield_now());
                count.fetch_add(10, Relaxed);
                skep_maps::slots::exit(entered);
                assert_eq!(taker.join().expect("no panic"), 11, "run {round}");
            }
            0
        });
        assert_eq!(child.join(), 0);
    }
}

/// A walk that is killed while it waits leaves elements in nobody's hands: the next one gives their
/// memory back.
#[test]
fn a_killed_taker_leaves_no_hole() {
    let dir = Dir::new();
    for def in [MapDef::new(MapType::Hash, 8, 8, 40), fixed(8, 8, 40)] {
        let map = dir.make(&def);
        for round in 0..rounds(15, 1000) {
            (0..40).for_each(|i| {
                map.update(&key(&map, i), &value(&map, 1), NOEXIST)
                    .unwrap_or_else(|e| panic!("round {round}, {i}: {e}"))
            });
            let victim = forked(|| {
                loop {
                    let mut walk = map.walk().taking(Take::Exact);
                    while walk.rows(&mut vec![0; 8 * walk.element_size()]).is_ok_and(|n| n > 0) {}
                }
            });
            while walk(&map, 100).len() == 40 {
                std::thread::yield_now();
            }
            victim.kill();
            assert_eq!(victim.join(), -9);
            take_exactly(&map, 7);
        }
        assert_eq!(map.next_key(None).map_err(|e| e.errno()), Err(2));
    }
}

#[test]
fn what_cannot_be_taken_exactly_is_refused() {
    let dir = Dir::new();
    let map = dir.make(&MapDef::new(MapType::Array, 4, 8, 4));
    assert_eq!(map.walk().taking(Take::Exact).rows(&mut [0; 64]).map_err(|e| e.errno()), Err(524));
}

/// A walk that stands inside a bucket remembers how new the element before it is: what is put into
/// the bucket later has to be newer, also when the newest elements, or all, are gone.
#[test]
fn what_was_put_in_again_behind_a_walk_does_not_come_twice() {
    let dir = Dir::new();
    let _table = table(&dir, 4);
    for t in [MapType::Hash, MapType::PercpuHash, MapType::LruHash, MapType::LruPercpuHash] {
        // Few buckets, so that of eight keys some share one.
        let map = dir.make(&MapDef::new(t, 4, 8, 3));
        let value = vec![1; map.user_value_size()];
        let put = |key: u32| map.update(&key.to_ne_bytes(), &value, 0).expect("room");
        let delete = |key: u32| map.delete(&key.to_ne_bytes()).expect("there");
        for n in 0..512u32 {
            let keys = [n & 7, n >> 3 & 7, n >> 6];
            if BTreeSet::from(keys).len() < 3 {
                continue;
            }
            for other in 0..2 {
                keys.iter().for_each(|key| put(*key));
                let mut walk = map.walk();
                let mut row = vec![0; walk.element_size()];
                let mut next =
                    || (walk.rows(&mut row).expect("walks") == 1).then(|| index(&map, &row[..4]));
                let first = next().expect("three are there");
                let others: Vec<u32> = keys.into_iter().filter(|key| *key != first).collect();
                let (gone, stays) = (others[other], others[1 - other]);
                delete(first);
                delete(gone);
                put(first);
                let rest: Vec<u32> = std::iter::from_fn(next).collect();
                assert_eq!(rest, [stays], "{t}: {first} came before, {gone} was deleted");
                delete(first);
                delete(stays);
            }
        }
    }
}
