//! Memory that a trie gives back while others look keys up: what stays is found, and of what goes
//! all or nothing.

mod support;

use std::cell::Cell;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use skep_isa::map::update::NOEXIST;
use skep_maps::{Access, KeyRange, Map, MapError};
use skep_testkit::run::SetOnDrop;
use skep_testkit::skip;
use support::qp_trie::{as_program, stamp, stamped, strings, uncached};
use support::{Dir, Random, forked, on_small_tmpfs, rounds, stop, table};

const STAY: u64 = 300;
const GO: u64 = 6000;

fn stays(n: u64) -> Vec<u8> {
    format!("a/{}/stays", n * 7919 % 10_007).into_bytes()
}

fn goes(n: u64) -> Vec<u8> {
    format!("b/{}/goes", n * 104_729 % 1_299_709).into_bytes()
}

/// Bytes of memory that the file has.
fn memory(map: &Map) -> u64 {
    std::fs::metadata(map.file().path()).expect("it is there").blocks() * 512
}

/// Looks some keys up, until `over` says so, but once at least.
fn look(map: &Map, seed: u64, over: &dyn Fn() -> bool) {
    let mut random = Random(seed);
    loop {
        for _ in 0..100 {
            let key = stays(random.below(STAY));
            let found = map.lookup(&key).unwrap_or_else(|e| panic!("{key:?}: {e}"));
            assert_eq!(stamp(map, &key, &found), Some(1), "{key:?}");
            let key = goes(random.below(GO));
            match map.lookup(&key) {
                Ok(found) => assert_eq!(stamp(map, &key, &found), Some(2), "{key:?}"),
                Err(e) => assert!(matches!(e, MapError::NoElement), "{key:?}: {e}"),
            }
        }
        if over() {
            return;
        }
    }
}

#[test]
fn lookups_of_users_beside_memory_that_is_given_back() {
    let dir = Dir::new();
    let _table = table(&dir, 16);
    for def in [strings(40, 200, 10_000), uncached(strings(40, 200, 10_000))] {
        let map = dir.make(&def);
        for key in (0..STAY).map(stays) {
            map.update(&key, &stamped(&map, &key, 1), NOEXIST).expect("room");
        }
        let mut given_back = 0;
        let over = AtomicBool::new(false);
        let looks = rounds(300, 20_000);
        let other = forked(|| {
            let map = Map::open(map.file().path(), Access::ReadOnly).expect("opens");
            let left = Cell::new(looks);
            look(&map, 1, &|| {
                left.set(left.get() - 1);
                left.get() == 0
            });
            0
        });
        std::thread::scope(|s| {
            let reader = s.spawn(|| look(&map, 2, &|| over.load(Relaxed)));
            let _stop = SetOnDrop(&over);
            for _ in 0..rounds(8, 300) {
                for key in (0..GO).map(goes) {
                    map.update(&key, &stamped(&map, &key, 2), NOEXIST).expect("room");
                }
                let full = memory(&map);
                let removed = map.delete_range(&KeyRange::prefix(b"b/")).expect("deletes");
                assert_eq!(removed, GO);
                let left = memory(&map);
                // Some is kept for the next elements.
                given_back += u32::from(left < full);
            }
            over.store(true, Relaxed);
            reader.join().expect("it found what it should");
        });
        assert_eq!(other.join(), 0);
        assert!(given_back > 0, "no memory was given back: this tests nothing");
    }
}

/// A program that is stopped in a run may still store into values that were removed, so their memory is not
/// given back. Elements of the same sizes use it again, so that it costs no more; others are told that
/// there is no memory, at once. When the program has ended it is given back.
#[test]
fn a_stopped_program_costs_memory_up_to_a_limit() {
    const SHORT: u64 = 12_000;
    const LONG: u64 = 12_000;
    let ran = on_small_tmpfs("8m", |dir| {
        let _table = table(dir, 16);
        let map = dir.make(&strings(400, 200, 20_000));
        let short = |n: u64| format!("b/{n}").into_bytes();
        let long = |n: u64| format!("b/{n}/{}", "x".repeat(300)).into_bytes();
        let value = vec![7; 200];
        let stopped = forked(|| {
            as_program(stop);
            0
        });
        stopped.wait_until_standing();
        let mut most = 0;
        for round in 0..3 {
            for n in 0..SHORT {
                map.update(&short(n), &value, NOEXIST).expect("room");
            }
            let full = memory(&map);
            most = if round == 0 { full } else { most };
            assert!(full <= most + most / 20, "round {round}: {full}, and {most} before");
            assert_eq!(map.delete_range(&KeyRange::ALL).expect("deletes"), SHORT);
            assert_eq!(memory(&map), full, "somebody may still store there");
        }
        let put = |n: u64| map.update(&long(n), &value, NOEXIST).map_err(|e| e.errno());
        let there = (0..LONG).take_while(|n| put(*n) == Ok(())).count() as u64;
        assert!(there < LONG, "there is memory for as many, but it is not free");
        assert_eq!(put(there), Err(12));
        assert_eq!(map.iter().count() as u64, there);
        assert!((0..there).all(|n| map.lookup(&long(n)).is_ok_and(|found| found == value)));
        stopped.signal(18);
        assert_eq!(stopped.join(), 0);
        (there..LONG).for_each(|n| put(n).expect("now it is free"));
        assert_eq!(map.delete_range(&KeyRange::ALL).expect("deletes"), LONG);
        assert!(memory(&map) < most / 2, "{} of {most}", memory(&map));
    });
    if !ran {
        skip("a tmpfs of its own");
    }
}
