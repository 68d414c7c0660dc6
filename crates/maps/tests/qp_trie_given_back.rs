//! Memory that a trie gives back while others look keys up: what stays is found, and of what goes
//! all or nothing.

mod support;

use std::cell::Cell;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use skep_isa::map::update::NOEXIST;
use skep_maps::{Access, KeyRange, Map, MapError};
use skep_testkit::run::SetOnDrop;
use support::qp_trie::{stamp, stamped, strings, uncached};
use support::{Dir, Random, forked, rounds, table};

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
