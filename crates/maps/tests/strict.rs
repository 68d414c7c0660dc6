//! A strict walk returns what was there when it began: what comes later is not seen and makes no
//! walk longer, in any map type.

mod support;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use skep_isa::map::update::ANY;
use skep_isa::{MapFlags, MapType};
use skep_maps::dump::command;
use skep_maps::{Access, Cursor, Map, MapDef, MapError, Take, map_types};
use support::qp_trie::{hostile_keys, strings, uncached};
use support::{Dir, Random, forked, rounds, small};

/// A map into which elements are put by number. What names an element in a walk: its key, or its
/// value where there are no keys.
struct Subject {
    map: Map,
    inner: Vec<Map>,
}

/// A key by number; in a trie those of a whole tree, so that where two part there is a third.
fn key(t: MapType, i: u32) -> Vec<u8> {
    let depth = (i + 1).ilog2();
    match t {
        MapType::LpmTrie => {
            [depth.to_ne_bytes(), ((i + 1) << (31 - depth) << 1).to_be_bytes()].concat()
        }
        _ => support::small_key(t, i),
    }
}

impl Subject {
    fn new(dir: &Dir, t: MapType) -> Self {
        let map = dir.make(&small(t));
        let inner = map.def().inner.iter().flat_map(|def| [dir.make(def), dir.make(def)]).collect();
        Self { map, inner }
    }

    fn t(&self) -> MapType {
        self.map.def().map_type
    }

    /// Elements by number below this differ.
    fn numbers(&self) -> u32 {
        match self.t() {
            MapType::Cpumap => skep_maps::slots::possible_cpus(),
            _ => 18,
        }
    }

    /// A value that begins with a number above zero.
    fn value(&self, word: u32) -> Vec<u8> {
        let mut value = vec![0; self.map.user_value_size()];
        let word = if self.inner.is_empty() { word } else { self.inner[word as usize % 2].id() };
        value[..4].copy_from_slice(&word.to_ne_bytes());
        value
    }

    /// Stores an element; its name, if it went in.
    fn put(&self, i: u32, word: u32) -> Option<Vec<u8>> {
        let name = key(self.t(), i);
        match self.t() {
            MapType::StackTrace => {
                // SAFETY: two words are readable.
                let id = unsafe {
                    self.map.stack_id([u64::from(word), u64::from(i) + 1].as_ptr(), 2, 0)
                };
                u32::try_from(id).ok().map(|id| id.to_ne_bytes().to_vec())
            }
            MapType::Queue | MapType::Stack => {
                self.map.update(&[], &self.value(word), ANY).ok().map(|()| self.value(word))
            }
            _ => self.map.update(&name, &self.value(word), ANY).ok().map(|()| name),
        }
    }

    /// Removes an element; its name.
    fn remove(&self, name: &[u8]) -> Option<Vec<u8>> {
        match self.t() {
            MapType::Queue | MapType::Stack => {
                let mut value = self.value(0);
                self.map.lookup_and_delete(&[], &mut value, 0).ok().map(|()| value)
            }
            _ => self.map.delete(name).ok().map(|()| name.to_vec()),
        }
    }

    /// Names and first words of elements.
    fn names(&self, rows: &[u8], size: usize) -> Vec<(Vec<u8>, u32)> {
        let key = self.map.def().key_size as usize;
        let word = |value: &[u8]| u32::from_ne_bytes(value[..4].try_into().expect("four bytes"));
        rows.chunks(size)
            .map(|row| {
                (if key == 0 { row.to_vec() } else { row[..key].to_vec() }, word(&row[key..]))
            })
            .collect()
    }
}

fn walked_types() -> impl Iterator<Item = MapType> {
    let none =
        [MapType::Ringbuf, MapType::UserRingbuf, MapType::PerfEventArray, MapType::BloomFilter];
    map_types().into_iter().filter(move |t| !none.contains(t))
}

/// Elements of these are there from the beginning.
fn is_fixed(t: MapType) -> bool {
    matches!(t, MapType::Array | MapType::PercpuArray)
}

/// The ways to go on: the walk itself, the bytes of its cursor, the DUMP command.
struct Walker<'m> {
    door: usize,
    held: Option<skep_maps::dump::Walk<'m>>,
    bytes: Vec<u8>,
    newer: u64,
}

impl<'m> Walker<'m> {
    fn new(map: &'m Map, door: usize) -> Self {
        let bytes = vec![0; if door == 2 { Cursor::strict_len_in(map) } else { 0 }];
        Self { door, held: Some(map.walk().strict()), bytes, newer: 0 }
    }

    fn next(&mut self, map: &'m Map, buf: &mut [u8]) -> usize {
        let size = map.walk().element_size();
        if self.door == 2 {
            let mut len = buf.len() as u32;
            return match command::dump(
                map,
                Some(&mut self.bytes),
                buf,
                &mut len,
                command::F_CURSOR | command::F_STRICT,
            ) {
                Ok(()) => len as usize / size,
                Err(MapError::NoElement) => 0,
                Err(e) => panic!("{e}"),
            };
        }
        let mut walk = self.held.take().expect("put back");
        let n = walk.rows(buf).expect("walks");
        if self.door == 1 {
            self.bytes = walk.cursor().to_bytes();
            // A walk from a strict cursor is strict without being told.
            let cursor = Cursor::from_bytes(&self.bytes).expect("a cursor");
            assert_eq!(cursor.to_bytes(), self.bytes);
            walk = map.walk().from_cursor(cursor);
        } else {
            self.newer = walk.skipped_new();
        }
        self.held = Some(walk);
        n
    }
}

/// Elements come, go, come back and are overwritten between any two calls: what stays is returned
/// once, and nothing else is but what was there at the beginning and had not gone when the walk
/// came by.
#[test]
fn a_walk_returns_what_was_there_when_it_began_and_nothing_that_came_later() {
    let dir = Dir::new();
    for t in walked_types() {
        let mut newer = 0;
        for round in 0..rounds(120, 5000) {
            let mut random = Random(u64::from(round) << 8 | t as u64);
            let subject = Subject::new(&dir, t);
            let mut word = 1;
            let mut alive: BTreeSet<Vec<u8>> = BTreeSet::new();
            if is_fixed(t) {
                alive = (0..20u32).map(|i| i.to_ne_bytes().to_vec()).collect();
            } else {
                for _ in 0..random.below(u64::from(subject.numbers()) + 1) {
                    word += 1;
                    alive.extend(subject.put(random.below(subject.numbers().into()) as u32, word));
                }
            }
            // Without a strict walk before, nothing is stamped; with one, all is.
            if random.below(2) == 0 {
                let (mut early, mut buf) =
                    (subject.map.walk().strict(), vec![0; 32 * subject.map.walk().element_size()]);
                early.rows(&mut buf).expect("walks");
            }
            let size = subject.map.walk().element_size();
            let room = [1, 1, 2, 3, 20][random.below(5) as usize];
            let mut walker = Walker::new(&subject.map, random.below(3) as usize);
            let mut stays = alive.clone();
            let mut seen = BTreeSet::new();
            let (mut calls, removed) = (0, 1 + random.below(3));
            loop {
                let mut buf = vec![0; room * size];
                let n = walker.next(&subject.map, &mut buf);
                if n == 0 {
                    break;
                }
                for (name, _) in subject.names(&buf[..n * size], size) {
                    assert!(stays.contains(&name), "{t}, round {round}: {name:?} came later");
                    assert!(seen.insert(name.clone()), "{t}, round {round}: {name:?} came twice");
                }
                calls += 1;
                assert!(calls <= 20, "{t}, round {round}: the walk does not end");
                for _ in 0..if is_fixed(t) { 0 } else { random.below(7) } {
                    word += 1;
                    match random.below(4) < removed {
                        true => {
                            let names: Vec<_> = alive.iter().cloned().collect();
                            let Some(name) =
                                names.get(random.below(names.len().max(1) as u64) as usize)
                            else {
                                continue;
                            };
                            if let Some(name) = subject.remove(name) {
                                alive.remove(&name);
                                stays.remove(&name);
                            }
                        }
                        // Also onto one that is there.
                        false => alive.extend(
                            subject.put(random.below(subject.numbers().into()) as u32, word),
                        ),
                    }
                }
            }
            assert!(
                stays.is_subset(&seen),
                "{t}, round {round}: skipped {:?}",
                stays.difference(&seen).collect::<Vec<_>>()
            );
            newer += walker.newer;
        }
        // Positions of a queue tell what is new, and it is not looked at. A machine may have but
        // one processor.
        if t != MapType::Cpumap {
            assert_eq!(newer == 0, is_fixed(t) || t == MapType::Queue, "{t}: {newer} passed over");
        }
    }
}

/// Byte strings before, behind and between others come and go, in both directions.
#[test]
fn a_strict_walk_of_byte_strings_returns_what_was_there() {
    let dir = Dir::new();
    let _table = support::table(&dir, 64);
    for round in 0..rounds(200, 20_000) {
        let mut random = Random(round.into());
        let def = strings(12, [4, 8, 40][round as usize % 3], 80);
        let map = dir.make(&if round % 2 == 0 { def } else { uncached(def) });
        let keys = hostile_keys(map.key_shape(), 80, u64::from(round) + 1);
        let value = vec![1; map.user_value_size()];
        let put = |i: usize| map.update(&keys[i], &value, ANY).expect("room");
        let mut stays = BTreeSet::new();
        for (i, key) in keys.iter().enumerate().take(40) {
            put(i);
            stays.insert(key);
        }
        let backward = random.below(2) == 0;
        let begin = || if backward { map.walk().reversed() } else { map.walk() };
        let mut walk = begin().strict();
        let mut rows = vec![0; (1 + random.below(9)) as usize * walk.element_size()];
        let (mut seen, mut first) = (Vec::<Vec<u8>>::new(), true);
        loop {
            let n = walk.rows(&mut rows).expect("walks");
            if n == 0 {
                break;
            }
            seen.extend(walk.elements(&rows, n).map(|(key, _)| key.to_vec()));
            for _ in 0..random.below(12) {
                let i = random.below(80) as usize;
                if random.below(2) == 0 {
                    map.delete(&keys[i]).ok();
                    stays.remove(&keys[i]);
                } else {
                    put(i);
                }
            }
            if first && random.below(2) == 0 {
                let cursor = Cursor::from_bytes(&walk.cursor().to_bytes()).expect("a cursor");
                walk = begin().from_cursor(cursor);
            }
            first = false;
        }
        if backward {
            seen.reverse();
        }
        assert!(seen.windows(2).all(|pair| pair[0] < pair[1]), "round {round}: in order, once");
        assert!(seen.iter().all(|key| keys[..40].contains(key)), "round {round}: a later one");
        assert!(stays.iter().all(|key| seen.contains(key)), "round {round}: one is missing");
    }
}

/// Each call finds one more element ahead: a loose walk of a trie goes on as long as that does.
#[test]
fn what_is_put_in_ahead_makes_no_walk_longer() {
    let dir = Dir::new();
    for strict in [false, true] {
        let map = dir.make(&MapDef::new(MapType::LpmTrie, 8, 4, 20).flags(MapFlags::NO_PREALLOC));
        let key = |i: u32| [32u32.to_ne_bytes(), i.to_be_bytes()].concat();
        (0..5).for_each(|i| map.update(&key(i), &[1; 4], ANY).expect("room"));
        let mut walk = if strict { map.walk().strict() } else { map.walk() };
        let mut buf = vec![0; walk.element_size()];
        let mut calls = 0;
        while calls < 1000 && walk.rows(&mut buf).expect("walks") == 1 {
            map.update(&key(10 + calls), &[1; 4], ANY).expect("room");
            if calls > 3 {
                map.delete(&key(6 + calls)).expect("there");
            }
            calls += 1;
        }
        assert_eq!((calls, walk.skipped_new() > 0), if strict { (5, true) } else { (1000, false) });
    }
}

/// Threads and another process put in what says when they began to; a walk whose first call had
/// ended then returns none of it.
#[test]
fn what_others_begin_to_put_in_after_the_first_call_is_not_returned() {
    let dir = Dir::new();
    // Word 0: walks begun; word 1: stop.
    let clock = Arc::new(dir.make(&MapDef::new(MapType::Array, 4, 8, 2).flags(MapFlags::MMAPABLE)));
    let word = |clock: &Map, i: u64| {
        // SAFETY: an eight-byte value of the array, which outlives this use, used as an atomic by
        // all.
        unsafe { &*((clock.value_base() + 8 * i) as *const std::sync::atomic::AtomicU64) }.as_ptr()
            as u64
    };
    // SAFETY: as above.
    let atomic =
        |address: u64| unsafe { std::sync::atomic::AtomicU64::from_ptr(address as *mut u64) };
    for t in walked_types().filter(|t| !is_fixed(*t)) {
        let subject = Arc::new(Subject::new(&dir, t));
        if !subject.inner.is_empty() || t == MapType::Cpumap {
            // Their values cannot say it, or not for long; the rows are those of other types.
            continue;
        }
        let (now, stop) = (word(&clock, 0), word(&clock, 1));
        atomic(now).store(1, Relaxed);
        atomic(stop).store(0, Relaxed);
        let churn = move |subject: &Subject, seed: u64| {
            let mut random = Random(seed);
            let mut there = std::collections::HashSet::new();
            while atomic(stop).load(Relaxed) == 0 {
                let i = random.below(subject.numbers().into()) as u32;
                let began = atomic(now).load(std::sync::atomic::Ordering::SeqCst) as u32;
                // An element that is there keeps its place, so its value would say nothing: only
                // into empty places. Not every type lets its users look.
                let name = if t == MapType::StackTrace {
                    random.below(32).to_ne_bytes()[..4].to_vec()
                } else {
                    key(t, i)
                };
                match random.below(2) {
                    0 => {
                        let _ = subject.remove(&name);
                        there.remove(&name);
                    }
                    _ if matches!(t, MapType::Queue | MapType::Stack) => {
                        drop(subject.put(i, began))
                    }
                    _ if there.insert(name.clone()) => drop(subject.put(i, began)),
                    _ => {}
                }
            }
        };
        // One writer only, who looks before he puts in; readers are many.
        let child = forked(|| {
            churn(&subject, 7);
            0
        });
        let walkers: Vec<_> = [1, 2, 50]
            .map(|room| {
                let subject = Arc::clone(&subject);
                std::thread::spawn(move || {
                    let size = subject.map.walk().element_size();
                    let (mut returned, mut round) = (0u64, 0);
                    // Until the other process has begun, too.
                    while round < rounds(300, 20_000) || (returned == 0 && round < 1 << 20) {
                        round += 1;
                        let mut walk = subject.map.walk().strict();
                        let mut buf = vec![0; room * size];
                        let mut n = walk.rows(&mut vec![0; size]).expect("walks");
                        // Whoever sees this began after the first call.
                        let later =
                            atomic(now).fetch_add(1, std::sync::atomic::Ordering::SeqCst) + 1;
                        while n > 0 {
                            n = walk.rows(&mut buf).expect("walks");
                            for (name, began) in subject.names(&buf[..n * size], size) {
                                assert!(
                                    u64::from(began) < later,
                                    "{t}: {name:?} was put in by {began}, the walk is of {later}"
                                );
                                returned += 1;
                            }
                        }
                    }
                    returned
                })
            })
            .into();
        // Whatever was found, the other process ends first.
        let ended: Vec<_> = walkers.into_iter().map(std::thread::JoinHandle::join).collect();
        atomic(stop).store(1, Relaxed);
        assert_eq!(child.join(), 0);
        let done: Vec<u64> = ended.into_iter().map(|e| e.expect("no panic")).collect();
        assert!(done.iter().all(|returned| *returned > 0), "{t}: {done:?}");
    }
}

#[test]
fn a_strict_walk_needs_a_map_that_it_may_write_and_takes_nothing() {
    let dir = Dir::new();
    let errno = |r: Result<usize, MapError>| r.map_err(|e| e.errno());
    for t in walked_types() {
        let map = dir.make(&small(t));
        let reader = Map::open(map.file().path(), Access::ReadOnly).expect("opens");
        let mut buf = vec![0; 32 * map.walk().element_size()];
        let fixed = is_fixed(t) || t == MapType::Queue;
        let want = if fixed { Ok(if t == MapType::Queue { 0 } else { 20 }) } else { Err(1) };
        assert_eq!(errno(reader.walk().strict().rows(&mut buf)), want, "{t}");
        assert_eq!(errno(map.walk().strict().taking(Take::Fast).rows(&mut buf)), Err(524), "{t}");
        // Who goes on from the cursor of one is in it, and needs to write nothing.
        let mut strict = map.walk().strict();
        strict.rows(&mut buf).expect("walks");
        assert_eq!(errno(reader.walk().from_cursor(strict.cursor()).rows(&mut buf)), Ok(0), "{t}");
        // A frozen map is one that users may not change; that it was walked is no change of it.
        map.freeze().expect("once");
        assert!(map.walk().strict().rows(&mut buf).is_ok());
    }
    let map = dir.make(&small(MapType::Hash));
    let (mut buf, mut len) = ([0; 64], 64);
    for (prev, flags) in
        [(None, command::F_STRICT), (Some(&mut [0; 32][..]), command::F_STRICT | command::F_CURSOR)]
    {
        assert_eq!(
            command::dump(&map, prev, &mut buf, &mut len, flags).map_err(|e| e.errno()),
            Err(22)
        );
    }
    let cut = &map.walk().strict().cursor().to_bytes()[..31];
    assert_eq!(Cursor::from_bytes(cut), None);
}

/// Who fills a row of a table dies before the row has its word, with the lock in hand: the next one
/// goes on.
#[test]
fn a_killed_writer_of_a_table_hinders_nobody() {
    let dir = Dir::new();
    let map = dir.make(&small(MapType::Devmap));
    let mut buf = vec![0; 32 * map.walk().element_size()];
    map.walk().strict().rows(&mut buf).expect("walks");
    let go = AtomicBool::new(true);
    for round in 0..rounds(100, 3000) {
        let victim = forked(|| {
            let mut i = 0u32;
            while go.load(Relaxed) {
                i += 1;
                let key = (i % 20).to_ne_bytes();
                drop(if i.is_multiple_of(3) {
                    map.delete(&key)
                } else {
                    map.update(&key, &i.to_ne_bytes(), ANY)
                });
            }
            0
        });
        for i in 0..round % 50 {
            map.update(&(i % 20).to_ne_bytes(), &7u32.to_ne_bytes(), ANY)
                .expect("the lock is free soon");
        }
        victim.kill();
        assert_eq!(victim.join(), -9);
        map.update(&0u32.to_ne_bytes(), &9u32.to_ne_bytes(), ANY).expect("the dead hold no lock");
        map.delete(&0u32.to_ne_bytes()).expect("likewise");
        let mut walk = map.walk().strict();
        walk.rows(&mut vec![0; walk.element_size()]).expect("walks");
        map.update(&0u32.to_ne_bytes(), &9u32.to_ne_bytes(), ANY).expect("free");
    }
}

/// Pops below where the walk stands, then pushes there again.
#[test]
fn what_is_pushed_where_a_walk_of_a_stack_has_yet_to_come_is_passed_over() {
    let dir = Dir::new();
    for strict in [false, true] {
        let map = dir.make(&MapDef::new(MapType::Stack, 0, 4, 8));
        (0..5u32).for_each(|i| map.update(&[], &i.to_ne_bytes(), ANY).expect("room"));
        let mut walk = if strict { map.walk().strict() } else { map.walk() };
        let mut row = [0; 4];
        assert_eq!((walk.rows(&mut row).expect("walks"), row[0]), (1, 4));
        (0..3).for_each(|_| map.lookup_and_delete(&[], &mut [0; 4], 0).expect("there"));
        map.update(&[], &9u32.to_ne_bytes(), ANY).expect("room");
        map.update(&[], &8u32.to_ne_bytes(), ANY).expect("room");
        let rest: Vec<u8> =
            std::iter::from_fn(|| (walk.rows(&mut row).expect("walks") == 1).then_some(row[0]))
                .collect();
        assert_eq!(
            (&rest[..], walk.skipped_new()),
            if strict { (&[1, 0][..], 2) } else { (&[8, 9, 1, 0][..], 0) }
        );
    }
}
