//! Values of several words while writers write, and die in the middle: a reader sees an old value
//! or a new one, never some words of each.

mod support;

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use skep_isa::map::update;
use skep_isa::{MapFlags, MapType};
use skep_maps::{Access, Map, MapDef};
use support::{Dir, Random, forked, rounds, table, word, words};

const KEYS: u64 = 16;

/// A kind of map, and how its values are read and written.
#[derive(Clone, Copy, Debug)]
struct Kind {
    t: MapType,
    flags: u32,
    value_size: u32,
    entries: u32,
    locked: bool,
    /// Keys are byte strings.
    strings: bool,
}

const fn kind(t: MapType, flags: u32, value_size: u32, entries: u32) -> Kind {
    Kind { t, flags, value_size, entries, locked: false, strings: false }
}

const KINDS: [Kind; 13] = [
    kind(MapType::Hash, 0, 64, 32),
    // Full: there is nothing but the spares.
    kind(MapType::Hash, 0, 64, 16),
    kind(MapType::Hash, MapFlags::NO_PREALLOC, 64, 32),
    Kind { locked: true, ..kind(MapType::Hash, 0, 2048, 32) },
    Kind { locked: true, ..kind(MapType::Hash, MapFlags::NO_PREALLOC, 2048, 16) },
    kind(MapType::LruHash, 0, 64, 40),
    kind(MapType::PercpuHash, 0, 32, 32),
    kind(MapType::LruPercpuHash, 0, 32, 40),
    kind(MapType::LpmTrie, MapFlags::NO_PREALLOC, 64, 32),
    kind(MapType::QpTrie, MapFlags::NO_PREALLOC, 64, 32),
    kind(MapType::QpTrie, MapFlags::NO_PREALLOC | MapFlags::NO_LEAF_CACHE, 16, 16),
    Kind { strings: true, ..kind(MapType::QpTrie, MapFlags::NO_PREALLOC, 2048, 16) },
    Kind {
        strings: true,
        ..kind(MapType::QpTrie, MapFlags::NO_PREALLOC | MapFlags::NO_LEAF_CACHE, 64, 32)
    },
];

impl Kind {
    fn make(&self, dir: &Dir) -> Map {
        let def = MapDef::new(self.t, 8, self.value_size, self.entries).flags(self.flags);
        let longest = MapDef { key_size: 16, map_extra: 20, ..def.clone() };
        dir.make(&match self {
            Self { locked: true, .. } => def.spin_lock(0),
            Self { strings: true, .. } => longest,
            _ => def,
        })
    }

    fn flags(&self) -> u64 {
        if self.locked { update::LOCK } else { 0 }
    }

    fn key(&self, i: u64) -> Vec<u8> {
        match self.t {
            MapType::LpmTrie => [32u32.to_ne_bytes(), (i as u32).to_be_bytes()].concat(),
            // Each begins as the one before.
            _ if self.strings => vec![b's'; 1 + i as usize],
            _ => i.to_ne_bytes().to_vec(),
        }
    }

    /// Words that follow from each other; the first has the lock.
    fn value(&self, map: &Map, x: u64) -> Vec<u8> {
        let n = map.user_value_size() / 8;
        (0..n as u64)
            .flat_map(|i| {
                (if self.locked && i == 0 { 0 } else { x ^ i.wrapping_mul(0x9e37_79b9) })
                    .to_ne_bytes()
            })
            .collect()
    }

    fn is_torn(&self, value: &[u8]) -> bool {
        let w = words(value);
        let x = w[1] ^ 0x9e37_79b9;
        (0..w.len() as u64).any(|i| {
            w[i as usize] != if self.locked && i == 0 { 0 } else { x ^ i.wrapping_mul(0x9e37_79b9) }
        })
    }

    fn write_for_ever(&self, map: &Map, seed: u64, over: &AtomicBool) {
        let mut random = Random(seed);
        while !over.load(Relaxed) {
            let x = random.next();
            let done = map.update(&self.key(x % KEYS), &self.value(map, x), self.flags());
            assert!(done.is_ok(), "{self:?}: {done:?}");
        }
    }

    /// Reads while one writer writes, and counts torn values.
    fn torn_reads(&self, map: &Map, reads: u32) -> u32 {
        let over = AtomicBool::new(false);
        let mut torn = 0;
        std::thread::scope(|s| {
            let writer = s.spawn(|| self.write_for_ever(map, 77, &over));
            let mut random = Random(5);
            let mut out = vec![0; map.user_value_size()];
            for i in 0..reads {
                // Who does not take a value's lock sees what users store as whole as who does.
                let flags = if i % 2 == 0 { self.flags() } else { 0 };
                map.lookup_into(&self.key(random.below(KEYS)), &mut out, flags).expect("there");
                torn += u32::from(self.is_torn(&out));
            }
            torn += (0..reads / 64)
                .flat_map(|_| map.iter())
                .filter(|e| self.is_torn(&e.as_ref().expect("read").1))
                .count() as u32;
            over.store(true, Relaxed);
            writer.join().expect("writes");
        });
        torn
    }
}

/// As if somebody had died with the spare of each stripe in hand: overwrites go on, and readers see
/// whole values.
#[test]
fn lost_spares_make_no_mixed_values() {
    const STRIPES: u64 = 128;
    // Tries have none.
    let hashes = KINDS.into_iter().filter(|k| !matches!(k.t, MapType::LpmTrie | MapType::QpTrie));
    for kind in hashes {
        let dir = Dir::new();
        table(&dir, 256);
        let map = kind.make(&dir);
        for i in 0..KEYS {
            map.update(&kind.key(i), &kind.value(&map, i), 0).expect("room");
        }
        let buckets = (u64::from(kind.entries) * 3 / 2).next_power_of_two();
        for s in 0..buckets.min(64) {
            word(&map, STRIPES + s * 64 + 16).store(0xffff_ffff, Relaxed);
        }
        assert_eq!(kind.torn_reads(&map, rounds(20_000, 2_000_000)), 0, "{kind:?}");
        // None of it is lost: as many elements go in as there is room for.
        if kind.t == MapType::Hash || kind.t == MapType::PercpuHash {
            for i in KEYS..u64::from(kind.entries) {
                map.update(&kind.key(i), &kind.value(&map, i), 0).expect("room");
            }
            for i in 0..u64::from(kind.entries) {
                map.update(&kind.key(i), &kind.value(&map, i), kind.flags())
                    .expect("over the old one, though the map is full");
            }
            assert_eq!(
                map.update(&kind.key(u64::MAX), &kind.value(&map, 0), 0).expect_err("full").errno(),
                7
            );
        }
    }
}

/// Writers are killed at any instruction; afterwards, and meanwhile, all values are whole.
#[test]
fn killed_writers_leave_whole_values() {
    for kind in KINDS {
        let dir = Dir::new();
        table(&dir, 256);
        let map = kind.make(&dir);
        for i in 0..KEYS {
            map.update(&kind.key(i), &kind.value(&map, i), 0).expect("room");
        }
        let mut random = Random(u64::from(kind.value_size) << 8 | kind.t as u64);
        let mut out = vec![0; map.user_value_size()];
        for round in 0..rounds(60, 3_000) {
            let before = map.lookup(&kind.key(0)).expect("there");
            let child = forked(|| {
                let map = Map::open(map.file().path(), Access::ReadWrite).expect("opens");
                kind.write_for_ever(&map, u64::from(round) << 32 | 9, &AtomicBool::new(false));
                0
            });
            while map.lookup(&kind.key(0)).expect("there") == before {
                assert!(!child.has_ended(), "the writer failed");
                std::thread::yield_now();
            }
            for _ in 0..random.below(3000) {
                std::hint::spin_loop();
            }
            child.kill();
            child.join();
            for i in 0..KEYS {
                map.lookup_into(&kind.key(i), &mut out, kind.flags()).expect("nobody removes");
                assert!(!kind.is_torn(&out), "{kind:?} round {round}");
            }
        }
        assert_eq!(kind.torn_reads(&map, rounds(5_000, 500_000)), 0, "{kind:?}");
    }
}
