//! The BATCH commands beside the kernel's: the same sequence of calls gives the same errno, count,
//! cursor and bytes.
//!
//! What differs by intent is not asked: `ENOSPC` never comes, tries can be taken from, `NOEXIST`
//! and `EXIST` are understood.

mod support;

use std::collections::BTreeMap;

use skep_isa::errno::ENOSPC;
use skep_isa::{MapFlags, MapType};
use skep_kernel::{Command, Map as Theirs, MapSpec};
use skep_maps::dump::{Take, batch};
use skep_maps::{Map, MapDef};
use skep_testkit::skip::without_bpf;
use support::Dir;

const ENTRIES: u32 = 20;
const LOOKUP: Command = Command::MapLookupBatch;
const TAKE: Command = Command::MapLookupAndDeleteBatch;
const UPDATE: Command = Command::MapUpdateBatch;
const DELETE: Command = Command::MapDeleteBatch;

/// What one call came to: errno, count, where to go on, and the elements.
#[derive(Debug, PartialEq)]
struct Answer {
    errno: i32,
    count: usize,
    cursor: Vec<u8>,
    elements: Vec<(Vec<u8>, Vec<u8>)>,
}

struct Pair {
    ours: Map,
    theirs: Theirs,
    key_size: usize,
    value_size: usize,
}

impl Pair {
    fn new(dir: &Dir, t: MapType) -> Self {
        let (key_size, flags) = match t {
            MapType::LpmTrie => (8, MapFlags::NO_PREALLOC),
            MapType::Array | MapType::PercpuArray => (4, 0),
            _ => (8, 0),
        };
        let ours = dir.make(&MapDef::new(t, key_size, 8, ENTRIES).flags(flags));
        let spec = MapSpec::new(t, key_size, 8, ENTRIES).flags(flags);
        let theirs = Theirs::create(&spec).expect("a good definition");
        assert_eq!(ours.user_value_size(), theirs.user_value_size());
        Self { key_size: key_size as usize, value_size: ours.user_value_size(), ours, theirs }
    }

    fn key(&self, i: u32) -> Vec<u8> {
        match (self.ours.def().map_type, self.key_size) {
            (MapType::LpmTrie, _) => [(32 - i % 3).to_ne_bytes(), (i * 8).to_be_bytes()].concat(),
            (_, 4) => i.to_ne_bytes().to_vec(),
            _ => u64::from(i).to_ne_bytes().to_vec(),
        }
    }

    fn columns(&self, keys: &[u32], fill: u8) -> (Vec<u8>, Vec<u8>) {
        let values = keys.iter().flat_map(|i| vec![*i as u8 ^ fill; self.value_size]).collect();
        (keys.iter().flat_map(|i| self.key(*i)).collect(), values)
    }

    /// Both answers to a call that reads.
    fn read(&self, command: Command, from: Option<&[u8]>, count: usize, flags: u64) -> [Answer; 2] {
        let room = count.max(1);
        let new = || {
            (vec![0; self.key_size], vec![0; room * self.key_size], vec![0; room * self.value_size])
        };
        let answer = |errno, count: usize, cursor, keys: &[u8], values: &[u8]| {
            let elements =
                keys.chunks(self.key_size).zip(values.chunks(self.value_size)).take(count);
            Answer {
                errno,
                count,
                cursor,
                elements: elements.map(|(k, v)| (k.to_vec(), v.to_vec())).collect(),
            }
        };
        let (mut cursor, mut keys, mut values) = new();
        let take = (command == TAKE).then_some(Take::Fast);
        let done = batch::lookup_batch(
            &self.ours,
            from,
            &mut cursor,
            (&mut keys, &mut values),
            count,
            flags,
            take,
        );
        let (errno, n) = done.map_or_else(|e| (e.error.errno(), e.count), |n| (0, n));
        let ours = answer(errno, n, cursor, &keys, &values);
        let (mut cursor, mut keys, mut values) = new();
        let done = self.theirs.batch(
            command,
            (from, &mut cursor),
            (&mut keys, &mut values),
            count as u32,
            flags,
        );
        let (errno, n) = (done.result.map_or_else(|e| e.errno(), |()| 0), done.count);
        // Refused at once, the kernel leaves the count as it was.
        let n = if [1, 22, 524].contains(&errno) { 0 } else { n as usize };
        [ours, answer(errno, n, cursor, &keys, &values)]
    }

    /// Both errnos and counts of a call that writes.
    fn write(&self, command: Command, keys: &[u32], fill: u8, flags: u64) -> [(i32, usize); 2] {
        let (mut k, mut v) = self.columns(keys, fill);
        let done = match command {
            UPDATE => batch::update_batch(&self.ours, &k, &v, keys.len(), flags),
            _ => batch::delete_batch(&self.ours, &k, keys.len(), flags),
        };
        let ours = done.map_or_else(|e| (e.error.errno(), e.count), |n| (0, n));
        let done = self.theirs.batch(
            command,
            (None, &mut vec![0; self.key_size]),
            (&mut k, &mut v),
            keys.len() as u32,
            flags,
        );
        let (errno, n) = (done.result.map_or_else(|e| e.errno(), |()| 0), done.count);
        let n =
            if [1, 22, 524].contains(&errno) && n as usize == keys.len() { 0 } else { n as usize };
        [ours, (errno, n)]
    }

    fn same_write(&self, command: Command, keys: &[u32], fill: u8, flags: u64) -> (i32, usize) {
        let [ours, theirs] = self.write(command, keys, fill, flags);
        assert_eq!(
            ours,
            theirs,
            "{}: command {command}, keys {keys:?}, flags {flags:#x}",
            self.ours.def().map_type
        );
        ours
    }

    /// Whole walks in steps of `step`; a bucket that does not fit is asked for again by more, as
    /// libraries do.
    fn whole(&self, step: usize) -> [BTreeMap<Vec<u8>, Vec<u8>>; 2] {
        [0, 1].map(|side| {
            let (mut from, mut all, mut room) = (None::<Vec<u8>>, BTreeMap::new(), step);
            loop {
                let [ours, theirs] = self.read(LOOKUP, from.as_deref(), room, 0);
                let answer = if side == 0 { ours } else { theirs };
                if side == 1 && answer.errno == ENOSPC {
                    room *= 2;
                    continue;
                }
                assert!([0, 2].contains(&answer.errno), "{answer:?}");
                for (k, v) in answer.elements {
                    assert!(all.insert(k, v).is_none(), "twice");
                }
                if answer.errno == 2 {
                    return all;
                }
                from = Some(answer.cursor);
            }
        })
    }
}

fn hashed(t: MapType) -> bool {
    matches!(t, MapType::Hash | MapType::PercpuHash)
}

#[test]
fn batches_answer_as_the_kernels() {
    if without_bpf() {
        return;
    }
    let dir = Dir::new();
    let all: Vec<u32> = (0..ENTRIES).collect();
    for t in
        [MapType::Hash, MapType::PercpuHash, MapType::Array, MapType::PercpuArray, MapType::LpmTrie]
    {
        let p = Pair::new(&dir, t);
        let same = |command, from: Option<&[u8]>, count, flags| {
            let [mut ours, mut theirs] = p.read(command, from, count, flags);
            if hashed(t) {
                // Cursors and order are each side's own.
                ours.cursor.clear();
                theirs.cursor.clear();
                ours.elements.sort();
                theirs.elements.sort();
            }
            assert_eq!(
                ours, theirs,
                "{t}: command {command}, from {from:?}, count {count}, flags {flags:#x}"
            );
            (ours.errno, ours.count)
        };
        // Empty, or zeroes.
        same(LOOKUP, None, 50, 0);
        same(LOOKUP, None, 0, 0);
        // More than there is room for, and an update of all.
        let more: Vec<u32> = (0..ENTRIES + 9).collect();
        let (errno, done) = p.same_write(UPDATE, &more, 0, 0);
        assert!(errno != 0 && done == ENTRIES as usize, "{t}: errno {errno}, {done} done");
        assert_eq!(p.same_write(UPDATE, &all, 0x55, 0), (0, ENTRIES as usize));
        assert_eq!(p.same_write(UPDATE, &[], 0, 0), (0, 0));
        for flags in [4, 8, 1 << 40] {
            assert_eq!(p.same_write(UPDATE, &all, 9, flags).0, 22);
            assert_eq!(same(LOOKUP, None, 5, flags).0, 22);
            p.same_write(DELETE, &all, 0, flags);
        }
        // Steps of every size: ordered maps call by call, hashes as a whole.
        for step in 1..=ENTRIES as usize + 2 {
            let [ours, theirs] = p.whole(step);
            assert_eq!(ours, theirs, "{t}, step {step}");
            assert_eq!(ours.len(), ENTRIES as usize, "{t}, step {step}");
            if !hashed(t) {
                let mut from = None::<Vec<u8>>;
                while same(LOOKUP, from.as_deref(), step, 0).0 == 0 {
                    let [ours, _] = p.read(LOOKUP, from.as_deref(), step, 0);
                    from = Some(ours.cursor);
                }
            }
        }
        assert_eq!(same(LOOKUP, None, ENTRIES as usize, 0).1, ENTRIES as usize);
        assert_eq!(same(LOOKUP, None, 99, 0), (2, ENTRIES as usize));
        // Cursors that nobody gave out: behind the last bucket, the last index, the longest prefix.
        let far = if t == MapType::LpmTrie {
            [33u32.to_ne_bytes(), [0; 4]].concat()
        } else {
            vec![0, 0, 0x10, 0, 0, 0, 0, 0]
        };
        same(LOOKUP, Some(&far), 50, 0);
        // Removal, with a key in the middle that is not there.
        p.same_write(DELETE, &[], 0, 0);
        p.same_write(DELETE, &[3, 4], 0, 0);
        p.same_write(DELETE, &[5, 4, 6], 0, 0);
        same(LOOKUP, None, 99, 0);
        p.same_write(UPDATE, &[4, 5], 0x33, 0);
        same(LOOKUP, None, 99, 0);
        if t != MapType::LpmTrie {
            same(TAKE, None, 0, 0);
            same(TAKE, None, 5, 8);
            same(TAKE, None, 99, 0);
            same(LOOKUP, None, 99, 0);
            p.same_write(UPDATE, &all, 1, 0);
        }
        // Frozen: to be read only, whatever else is asked.
        assert_eq!((p.ours.freeze().is_ok(), p.theirs.freeze().is_ok()), (true, true));
        assert_eq!(p.same_write(UPDATE, &all, 7, 0).0, 1, "{t}");
        assert_eq!(p.same_write(UPDATE, &[], 7, 8).0, 1, "{t}");
        p.same_write(DELETE, &all, 7, 0);
        if t != MapType::LpmTrie {
            same(TAKE, None, 99, 0);
        }
        same(LOOKUP, None, 99, 0);
    }
}

/// Keys that are there and keys that are not, in every number around that of keys looked at
/// together, for every type with keys.
#[test]
fn many_keys_answer_as_one_after_another_does() {
    let dir = Dir::new();
    support::table(&dir, 4).install();
    let hashes = [MapType::Hash, MapType::LruHash, MapType::PercpuHash, MapType::LruPercpuHash];
    let others = [MapType::Array, MapType::PercpuArray, MapType::LpmTrie, MapType::QpTrie];
    for t in hashes.into_iter().chain(others) {
        let is_trie = matches!(t, MapType::LpmTrie | MapType::QpTrie);
        let flags = if is_trie { MapFlags::NO_PREALLOC } else { 0 };
        let key_size = if matches!(t, MapType::Array | MapType::PercpuArray) { 4 } else { 8 };
        let map = dir.make(&MapDef::new(t, key_size, 16, 64).flags(flags));
        let key = |i: u32| match t {
            MapType::LpmTrie => [32u32.to_ne_bytes(), i.to_be_bytes()].concat(),
            _ => [i.to_ne_bytes(), i.to_be_bytes()].concat()[..key_size as usize].to_vec(),
        };
        let size = map.user_value_size();
        let value = |i: u32| vec![i as u8 + 1; size];
        let (keys, values): (Vec<_>, Vec<_>) = (0..40).map(|i| (key(i), value(i))).unzip();
        assert_eq!(
            batch::update_batch(&map, &keys.concat(), &values.concat(), 40, 0).expect("room"),
            40
        );
        for n in [0, 1, 15, 16, 17, 31, 33, 64, 100] {
            // Every third is not there, some come twice.
            let asked: Vec<u32> =
                (0..n).map(|i| if i % 3 == 2 { 1000 + i } else { i * 7 % 40 }).collect();
            let bytes = asked.iter().flat_map(|i| key(*i)).collect::<Vec<_>>();
            let (mut out, mut found) = (vec![0xee; n as usize * size], vec![true; n as usize]);
            let there = batch::lookup_keys(&map, &bytes, &mut out, &mut found).expect("sizes fit");
            assert_eq!(there, found.iter().filter(|f| **f).count(), "{t}");
            for (i, (asked, got)) in asked.iter().zip(out.chunks(size)).enumerate() {
                assert_eq!(found[i], *asked < 1000, "{t}, {i} of {n}");
                assert!(!found[i] || got == value(*asked), "{t}, {i} of {n}");
            }
        }
        let mut found = [false; 2];
        for (keys, values) in
            [(1, 2 * size), (2 * key_size as usize, size + 1), (key_size as usize, size)]
        {
            let wrong = batch::lookup_keys(&map, &vec![0; keys], &mut vec![0; values], &mut found);
            assert_eq!(wrong.map_err(|e| (e.error.errno(), e.count)), Err((22, 0)), "{t}");
        }
    }
    let ring = dir.make(&MapDef::new(MapType::Ringbuf, 0, 0, 4096));
    assert!(batch::lookup_keys(&ring, &[], &mut [], &mut [false]).is_err(), "it has no keys");
}

/// While all that was asked for early comes, others take keys out and put them in again: each
/// answer is one that was true.
#[test]
fn many_keys_under_writers_have_values_of_their_own() {
    const KEYS: u64 = 512;
    for (t, flags) in [
        (MapType::Hash, 0),
        (MapType::QpTrie, MapFlags::NO_PREALLOC),
        (MapType::QpTrie, MapFlags::NO_PREALLOC | MapFlags::NO_LEAF_CACHE),
    ] {
        let dir = Dir::new();
        let map = dir.make(&MapDef::new(t, 8, 32, KEYS as u32).flags(flags));
        let value = |key: u64, n: u64| [key, n, key ^ n, n].map(u64::to_ne_bytes).concat();
        let bytes: Vec<u8> = (0..KEYS).flat_map(u64::to_ne_bytes).collect();
        // The first half stays.
        for key in 0..KEYS {
            map.update(&key.to_ne_bytes(), &value(key, 0), 0).expect("room");
        }
        std::thread::scope(|s| {
            let writer = s.spawn(|| {
                let mut random = support::Random(7);
                for n in 1..u64::from(support::rounds(100_000, 5_000_000)) {
                    let key = random.below(KEYS);
                    if key >= KEYS / 2 && n % 3 == 0 {
                        map.delete(&key.to_ne_bytes()).ok();
                    } else {
                        map.update(&key.to_ne_bytes(), &value(key, n), 0).expect("room");
                    }
                }
            });
            let (mut out, mut found) = (vec![0; KEYS as usize * 32], vec![false; KEYS as usize]);
            while !writer.is_finished() {
                batch::lookup_keys(&map, &bytes, &mut out, &mut found).expect("sizes fit");
                for (key, (found, got)) in (0..KEYS).zip(found.iter().zip(out.chunks(32))) {
                    let w = support::words(got);
                    assert!(*found || key >= KEYS / 2, "{key} was there all the time");
                    assert!(
                        !*found || (w[0] == key && w[2] == key ^ w[1] && w[3] == w[1]),
                        "{key}: {w:?}"
                    );
                }
            }
        });
    }
}
