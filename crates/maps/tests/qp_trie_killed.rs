//! Writers of a trie that are killed anywhere: a survivor finds every acknowledged change, of the
//! unacknowledged one all or nothing, and a whole trie with room for exactly the rest.
//!
//! `SKEP_STRESS=1` kills 1,000 times.

mod support;

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use skep_isa::map::update::{ANY, NOEXIST};
use skep_isa::{MapFlags, MapType};
use skep_maps::{Access, KeyRange, Map, MapDef, Take};
use support::qp_trie::{
    errno, fill_to_the_limit, fixed, hostile_keys, looked_through, prog_delete, prog_update,
    settle, stamp, stamped, strings, uncached,
};
use support::{Child, Dir, Random, forked, rounds, table};

const WRITERS: usize = 2;
const EACH: usize = 60;

/// What writers were about to do with each key, and what they were told is done: the number of a
/// stored value, 0 for a deletion.
struct Journal(Map);

impl Journal {
    fn new(dir: &Dir) -> Self {
        let def = MapDef::new(MapType::Array, 4, 8, (2 * WRITERS * EACH + WRITERS) as u32);
        Self(dir.make(&def.flags(MapFlags::MMAPABLE)))
    }

    fn word(&self, i: usize) -> &AtomicU64 {
        // SAFETY: an eight-byte value of the array, reached as an atomic by all.
        unsafe { AtomicU64::from_ptr((self.0.value_base() + 8 * i as u64) as *mut u64) }
    }

    fn begun(&self, key: usize) -> &AtomicU64 {
        self.word(2 * key)
    }

    fn done(&self, key: usize) -> &AtomicU64 {
        self.word(2 * key + 1)
    }

    /// Changes that a writer has begun.
    fn changes(&self, writer: usize) -> &AtomicU64 {
        self.word(2 * WRITERS * EACH + writer)
    }
}

/// The keys of a writer.
fn keys_of(writer: usize) -> Range<usize> {
    EACH * writer..EACH * (writer + 1)
}

/// A writer: only it changes its keys, of which it changes these.
fn write_for_ever(
    map: &Map,
    keys: &[Vec<u8>],
    journal: &Journal,
    (writer, some): (usize, Range<usize>),
    seed: u64,
) -> ! {
    let mut random = Random(seed);
    let mut value = vec![0; map.user_value_size()];
    loop {
        let i = some.start + random.below(some.len() as u64) as usize;
        let (key, was) = (&keys[i], journal.done(i).load(SeqCst));
        let n = if was != 0 && random.below(2) == 0 { 0 } else { 1 + (random.next() >> 1) };
        journal.begun(i).store(n, SeqCst);
        journal.changes(writer).fetch_add(1, SeqCst);
        let new = stamped(map, key, n);
        let done = match (n, random.below(3)) {
            (0, 0) => errno(map.delete(key)),
            (0, 1) => prog_delete(map, key),
            (0, _) => errno(map.lookup_and_delete(key, &mut value, 0)),
            (_, 0) => prog_update(map, key, &new, ANY),
            _ => errno(map.update(key, &new, if was == 0 { NOEXIST } else { ANY })),
        };
        assert_eq!(done, 0, "there is room, and nobody else has the key");
        journal.done(i).store(n, SeqCst);
    }
}

/// What a survivor must find. What the dead had begun is settled by what is there.
fn check(map: &Map, keys: &[Vec<u8>], journal: &Journal, says: &str) {
    settle(map);
    let walked = looked_through(map);
    for (i, key) in keys.iter().enumerate() {
        let found = walked.binary_search_by(|(k, _)| k.cmp(key)).ok().map(|at| &walked[at].1);
        let number = match found {
            Some(value) => {
                stamp(map, key, value).unwrap_or_else(|| panic!("{says}: {key:x?} torn"))
            }
            None => 0,
        };
        let (begun, done) = (journal.begun(i).load(SeqCst), journal.done(i).load(SeqCst));
        assert!(
            number == begun || number == done,
            "{says}: {i} {key:x?} is {number}, not {done}, nor {begun}"
        );
        journal.begun(i).store(number, SeqCst);
        journal.done(i).store(number, SeqCst);
    }
    let ours = journal_len(keys, journal);
    assert_eq!(walked.len(), ours, "{says}: others' keys");
    fill_to_the_limit(map, ours);
    assert_eq!(looked_through(map), walked, "{says}");
}

fn journal_len(keys: &[Vec<u8>], journal: &Journal) -> usize {
    (0..keys.len()).filter(|i| journal.done(*i).load(SeqCst) != 0).count()
}

/// Takes all keys out, by one of several ways, and nothing is left.
fn empty(map: &Map, keys: &[Vec<u8>], journal: &Journal, way: u64) {
    let there = journal_len(keys, journal) as u64;
    match way % 3 {
        0 => assert_eq!(map.delete_range(&KeyRange::ALL).expect("deletes"), there),
        1 => {
            for key in keys {
                map.delete(key).ok();
            }
        }
        _ => {
            let mut walk = map.walk().taking(Take::Fast);
            while walk.rows(&mut vec![0; 9 * walk.element_size()]).expect("takes") > 0 {}
        }
    }
    for i in 0..keys.len() {
        journal.begun(i).store(0, SeqCst);
        journal.done(i).store(0, SeqCst);
    }
    assert_eq!(looked_through(map), []);
    fill_to_the_limit(map, 0);
}

#[test]
fn killed_writers_lose_nothing_that_was_acknowledged() {
    let room = (WRITERS * EACH + 10) as u32;
    let kinds = [
        strings(30, 8, room),
        uncached(strings(30, 40, room)),
        strings(12, 16, room),
        uncached(strings(12, 8, room)),
        fixed(8, 8, room),
    ];
    for (seed, def) in (1..).zip(kinds) {
        let dir = Dir::new();
        table(&dir, 256);
        let (map, journal) = (dir.make(&def), Journal::new(&dir));
        let keys = hostile_keys(map.key_shape(), WRITERS * EACH, seed);
        let mut random = Random(seed);
        for round in 0..rounds(12, 200) {
            let before = [0, 1].map(|w| journal.changes(w).load(SeqCst));
            let victims: [Child; WRITERS] = [0, 1].map(|writer| {
                let seed = random.next();
                forked(|| {
                    let map = Map::open(map.file().path(), Access::ReadWrite).expect("opens");
                    write_for_ever(&map, &keys, &journal, (writer, keys_of(writer)), seed)
                })
            });
            for (writer, before) in before.into_iter().enumerate() {
                let enough = before + 1 + random.below(300);
                while journal.changes(writer).load(SeqCst) < enough {
                    assert!(!victims[writer].has_ended(), "a writer failed");
                    std::thread::yield_now();
                }
            }
            for _ in 0..random.below(3000) {
                std::hint::spin_loop();
            }
            victims.iter().for_each(Child::kill);
            for victim in victims {
                assert_eq!(victim.join(), -9);
            }
            check(&map, &keys, &journal, &format!("{def:?}, round {round}"));
            if round % 4 == 3 {
                empty(&map, &keys, &journal, round.into());
            }
        }
    }
}

/// Has what dead writers had written down done while others are at work: who brings what he removed
/// back into use takes the heaps of the dead over.
fn settle_beside(map: &Map, keys: &[Vec<u8>]) {
    let own = (0u8..).map(|i| vec![i, 0xfd]).find(|own| !keys.contains(own)).expect("one of 256");
    let value = vec![3; map.user_value_size()];
    // More than a heap keeps before it does that.
    for _ in 0..600 {
        map.update(&own, &value, ANY).expect("there is room");
        map.delete(&own).expect("just put in");
    }
}

/// One is killed while others, who have keys of their own, go on: none of them waits for ever or
/// fails, and of what it had begun all is there in the end or nothing.
#[test]
fn others_go_on_when_a_writer_is_killed() {
    /// Victims before what they left undone is settled. Until then it may be done at any time, so
    /// each has keys of its own.
    const VICTIMS: usize = 4;
    const SOME: usize = EACH / VICTIMS;
    let room = (WRITERS * EACH + 10) as u32;
    for (seed, def) in (1..).zip([strings(30, 8, room), uncached(strings(30, 40, room))]) {
        let dir = Dir::new();
        table(&dir, 256);
        let (map, journal) = (dir.make(&def), Journal::new(&dir));
        let keys = hostile_keys(map.key_shape(), WRITERS * EACH, seed);
        let survivor = forked(|| write_for_ever(&map, &keys, &journal, (0, keys_of(0)), 5));
        let mut random = Random(seed);
        for round in 0..rounds(20, 500) as usize {
            if round % VICTIMS == 0 {
                settle_beside(&map, &keys);
                let theirs = keys.iter().enumerate().skip(EACH);
                theirs.for_each(|(i, key)| agree(&map, i, key, &journal));
            }
            let first = keys_of(1).start + SOME * (round % VICTIMS);
            let before = journal.changes(1).load(SeqCst);
            let seed = random.next();
            let victim =
                forked(|| write_for_ever(&map, &keys, &journal, (1, first..first + SOME), seed));
            while journal.changes(1).load(SeqCst) < before + 1 + random.below(50) {
                assert!(!victim.has_ended(), "a writer failed");
                std::thread::yield_now();
            }
            victim.kill();
            assert_eq!(victim.join(), -9);
            // The other one goes on.
            let now = journal.changes(0).load(SeqCst);
            while journal.changes(0).load(SeqCst) < now + 20 {
                assert!(!survivor.has_ended(), "the other writer failed");
                std::thread::yield_now();
            }
        }
        survivor.kill();
        assert_eq!(survivor.join(), -9);
        check(&map, &keys, &journal, "in the end");
    }
}

/// A key of a dead writer is as he was told, or as he was about to make it; he knows which from now on.
fn agree(map: &Map, i: usize, key: &[u8], journal: &Journal) {
    let number = match map.lookup(key) {
        Ok(value) => stamp(map, key, &value).expect("whole"),
        Err(e) => {
            assert_eq!(e.errno(), 2);
            0
        }
    };
    let (begun, done) = (journal.begun(i).load(SeqCst), journal.done(i).load(SeqCst));
    assert!(number == begun || number == done, "{i} {key:x?} is {number}, not {done}, nor {begun}");
    journal.begun(i).store(number, SeqCst);
    journal.done(i).store(number, SeqCst);
}

/// A reader that is killed or stopped holds nobody up for ever: writers go on, or are told that
/// there is no memory.
#[test]
fn stopped_and_killed_readers_do_not_stop_writers() {
    let dir = Dir::new();
    table(&dir, 256);
    let map = dir.make(&strings(30, 40, 200));
    let keys = hostile_keys(map.key_shape(), 200, 3);
    for round in 0..rounds(10, 300) {
        for key in &keys {
            map.update(key, &stamped(&map, key, 1), ANY).expect("room");
        }
        let readers = [0, 1, 2].map(|way| {
            forked(|| {
                let map = Map::open(map.file().path(), Access::ReadWrite).expect("opens");
                loop {
                    match way {
                        0 => drop(map.iter().count()),
                        1 => keys.iter().for_each(|key| drop(map.lookup(key))),
                        _ => keys.iter().for_each(|key| {
                            let key = key.as_slice();
                            let description = skep_isa::map::DynptrUser {
                                data: key.as_ptr() as u64,
                                size: key.len() as u32,
                                reserved: 0,
                            };
                            support::qp_trie::as_program(|| {
                                // SAFETY: a description of readable bytes.
                                let _ = unsafe { map.prog_lookup((&raw const description).cast()) };
                            });
                        }),
                    }
                }
            })
        });
        readers.iter().for_each(|r| r.wait_until_running());
        for _ in 0..round * 997 % 5000 {
            std::hint::spin_loop();
        }
        readers.iter().for_each(|r| r.signal(19));
        let (mut done, mut told) = (0, 0);
        for n in 0..20 {
            for key in &keys {
                let result = match n % 2 {
                    0 => map.update(key, &stamped(&map, key, n), ANY),
                    _ => map.delete(key),
                };
                match errno(result) {
                    0 => done += 1,
                    12 | 16 => told += 1,
                    // What was not put in cannot be taken out, and what could not go is there.
                    2 if told > 0 => {}
                    e => panic!("round {round}: {e}"),
                }
            }
        }
        assert!(done >= 200, "{done} changes, {told} times no memory");
        readers.iter().for_each(Child::kill);
        readers.into_iter().for_each(|r| assert_eq!(r.join(), -9));
        map.delete_range(&KeyRange::ALL).expect("nobody is in the way");
        fill_to_the_limit(&map, 0);
    }
}
