//! Tries whose memory somebody overwrote: operations fail or give wrong answers, and they come
//! back, and reach nothing outside. The header of the file is the affair of `files.rs`.
//!
//! Each damage is done to a new map in a child with an alarm, so that a crash or an endless loop
//! is told by what it was. `SKEP_STRESS=1` does it to every byte that is not zero.

mod support;

use std::fmt;
use std::fs::File;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use rustix::fs::SeekFrom;
use skep_isa::map::DynptrUser;
use skep_isa::{KeyShape, MapFlags, MapType};
use skep_maps::dump::batch;
use skep_maps::{Access, KeyRange, Map, MapDef, Nearest, ProgWalk, Take};
use support::qp_trie::{
    as_program, fixed, hostile_keys, looked_through, stamped, strings, uncached,
};
use support::{Dir, Random, forked, rounds, table};

unsafe extern "C" {
    fn alarm(seconds: u32) -> u32;
}

/// Longer than any of it takes, also where something waits until it may take over from the dead.
const ENDLESS: u32 = 60;
const KEYS: usize = 40;

/// Bytes that replace others at a place of a file.
#[derive(Clone)]
struct Damage {
    at: u64,
    bytes: Vec<u8>,
}

impl fmt::Debug for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let some = &self.bytes[..self.bytes.len().min(32)];
        write!(f, "{} bytes at {}: {some:02x?}", self.bytes.len(), self.at)
    }
}

/// Makes a map whose seed is zero, so that its memory is the same each time. There is no flag for that:
/// the seed in the header is changed, and the checksum with it, while nothing is in the map.
fn make_empty(dir: &Dir, def: &MapDef) -> Map {
    const SEED: usize = 64 + 40;
    const CHECKSUM: usize = 56;
    let path = dir.make(def).file().path().to_owned();
    let file = File::options().read(true).write(true).open(&path).expect("ours");
    let at = file.metadata().expect("open").len() - 4096;
    let mut header = [0; 2048];
    file.read_exact_at(&mut header, at).expect("there");
    header[SEED..][..8].fill(0);
    header[CHECKSUM..][..8].fill(0);
    let fnv = |h: u64, b: &u8| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3);
    let checksum = header.iter().fold(0xcbf2_9ce4_8422_2325, fnv);
    header[CHECKSUM..][..8].copy_from_slice(&checksum.to_le_bytes());
    file.write_all_at(&header, at).expect("there");
    Map::open(&path, Access::ReadWrite).expect("as it was made")
}

/// A map, half of it full, some of its memory used before.
fn make(dir: &Dir, def: &MapDef, keys: &[Vec<u8>]) -> Map {
    let map = make_empty(dir, def);
    for key in keys {
        map.update(key, &stamped(&map, key, 1), 0).expect("room");
    }
    for key in &keys[KEYS / 2..] {
        map.delete(key).expect("there");
    }
    map
}

/// Where a part of a file begins, and its bytes.
type Part = (u64, Vec<u8>);

/// The parts of a file that have memory, but for the page of the header at its end.
fn parts(file: &File) -> Vec<Part> {
    let end = file.metadata().expect("open").len() - 4096;
    let (mut at, mut all) = (0, vec![]);
    while let Ok(from) = rustix::fs::seek(file, SeekFrom::Data(at)) {
        at = rustix::fs::seek(file, SeekFrom::Hole(from)).expect("an end").min(end);
        if from >= end {
            break;
        }
        let mut bytes = vec![0; (at - from) as usize];
        file.read_exact_at(&mut bytes, from).expect("there");
        all.push((from, bytes));
    }
    all
}

/// Does everything that a user and a program can do, whatever the answers are.
fn exercise(map: &Map, keys: &[Vec<u8>]) {
    let size = map.user_value_size();
    let (value, mut out) = (vec![1; size], vec![0; size]);
    let begin = map.value_base();
    let inside = |at: *const u8, len: usize| {
        let at = at as u64;
        assert!(begin <= at && at + len as u64 <= begin + map.file().payload().len(), "outside");
    };
    let description =
        |key: &[u8]| DynptrUser { data: key.as_ptr() as u64, size: key.len() as u32, reserved: 0 };
    let is_fixed = matches!(map.key_shape(), KeyShape::Fixed(_));
    let walk_all = |backward: bool, range: KeyRange| {
        let walk = map.walk().range(range);
        let mut walk = if backward { walk.reversed() } else { walk };
        let mut rows = vec![0; 7 * walk.element_size()];
        let mut seen = 0;
        while let Ok(n) = walk.rows(&mut rows) {
            seen += n;
            assert!(seen < 10_000, "a walk that does not end");
            if n == 0 {
                break;
            }
        }
    };
    for backward in [false, true] {
        let mut seen = 0;
        let _ = map.visit(&KeyRange::ALL, backward, |key, value| {
            assert!(key.len() <= map.key_shape().max_len() && value.len() == size);
            seen += 1;
            assert!(seen < 10_000, "a visit that does not end");
            ControlFlow::Continue(())
        });
        walk_all(backward, KeyRange::ALL);
        walk_all(backward, KeyRange::prefix(&keys[3][..1]));
    }
    as_program(|| {
        let mut walk = ProgWalk::default();
        for _ in 0..1000 {
            // SAFETY: what is found is only looked at where it is inside the map.
            let next = unsafe { map.prog_next(&mut walk) };
            let Some((key, value)) = next else { break };
            inside(value, size);
            if !is_fixed {
                // SAFETY: the description lies in the walk.
                let key = unsafe { key.cast::<DynptrUser>().read_unaligned() };
                inside(key.data as *const u8, key.size as usize);
            }
        }
    });
    for (i, key) in keys.iter().enumerate() {
        let _ = map.lookup(key);
        let _ = map.next_key(Some(key));
        for which in [Nearest::Floor, Nearest::Ceiling, Nearest::LongestPrefix] {
            let _ = map.lookup_nearest(key, which);
        }
        as_program(|| {
            let bytes = description(key);
            let key = if is_fixed { key.as_ptr() } else { (&raw const bytes).cast() };
            // SAFETY: a key of the map, a value of its size; what is found is inside the map.
            unsafe {
                let found = map.prog_lookup(key);
                if !found.is_null() {
                    inside(found, size);
                }
                match i % 3 {
                    0 => drop(map.prog_update(key, value.as_ptr(), 0)),
                    1 => drop(map.prog_delete(key)),
                    _ => {}
                }
            }
        });
        match i % 4 {
            0 => drop(map.delete(key)),
            1 => drop(map.update(key, &value, 0)),
            2 => drop(map.lookup_and_delete(key, &mut out, 0)),
            _ => drop(map.update(key, &value, 1)),
        }
    }
    let cell = map.key_shape().cell_size();
    let mut cells = vec![0; keys.len() * cell];
    for (cell, key) in cells.chunks_mut(cell).zip(keys) {
        map.key_shape().write_cell(cell, key);
    }
    let (mut values, mut found) = (vec![0; keys.len() * size], vec![false; keys.len()]);
    let _ = batch::lookup_keys(map, &cells, &mut values, &mut found);
    let mut walk = map.walk().strict();
    let _ = walk.rows(&mut vec![0; 50 * walk.element_size()]);
    let mut walk = map.walk().taking(Take::Fast);
    let _ = walk.rows(&mut vec![0; 5 * walk.element_size()]);
    let _ = map.delete_range(&KeyRange::prefix(&keys[0][..1]));
    let _ = map.delete_range(&KeyRange::ALL);
    for key in keys {
        let _ = map.update(key, &value, 0);
    }
    walk_all(false, KeyRange::ALL);
}

/// Does damages to new maps in children; fails with those that a child did not survive.
fn survive(def: &MapDef, keys: &[Vec<u8>], damages: &[Vec<Damage>]) {
    /// As many tell enough.
    const MOST: usize = 8;
    let dir = Dir::new();
    let progress = dir.make(&MapDef::new(MapType::Array, 4, 8, 1).flags(MapFlags::MMAPABLE));
    // SAFETY: an eight-byte value of the array, reached as an atomic by all.
    let next = unsafe { AtomicU64::from_ptr(progress.value_base() as *mut u64) };
    let mut failed = vec![];
    while (next.load(SeqCst) as usize) < damages.len() && failed.len() < MOST {
        let dir = Dir::new();
        let child = forked(|| {
            let beside = make(&dir, def, keys);
            let before = looked_through(&beside);
            while let Some(all) = damages.get(next.fetch_add(1, SeqCst) as usize) {
                // SAFETY: concerns this process only.
                unsafe { alarm(ENDLESS) };
                try_one(&dir, def, keys, all);
            }
            assert_eq!(looked_through(&beside), before, "another map");
            0
        });
        match child.join() {
            0 => {}
            status => {
                let at = (next.load(SeqCst) as usize).checked_sub(1);
                failed.push((status, at.map(|at| &damages[at])));
            }
        }
    }
    assert!(failed.is_empty(), "{def:?}: signals (or 101) and what was done: {failed:x?}");
}

fn try_one(dir: &Dir, def: &MapDef, keys: &[Vec<u8>], all: &[Damage]) {
    let map = make(dir, def, keys);
    let path = map.file().path().to_owned();
    let file = File::options().write(true).open(&path).expect("ours");
    for damage in all {
        file.write_all_at(&damage.bytes, damage.at).expect("there");
    }
    // Who opens it now, and who had it open.
    if let Ok(reader) = Map::open(&path, Access::ReadOnly) {
        exercise(&reader, keys);
    }
    exercise(&map, keys);
    if let Ok(other) = Map::open(&path, Access::ReadWrite) {
        exercise(&other, keys);
    }
    drop(map);
    std::fs::remove_file(&path).expect("ours");
}

fn kinds() -> [MapDef; 4] {
    [
        strings(30, 8, KEYS as u32),
        uncached(strings(30, 40, KEYS as u32)),
        fixed(8, 8, KEYS as u32),
        strings(300, 12, KEYS as u32),
    ]
}

/// A map's keys, and its memory.
fn sample(dir: &Dir, def: &MapDef) -> (Vec<Vec<u8>>, Vec<Part>) {
    let keys = hostile_keys(def.key_shape(), KEYS, 6);
    let map = make(dir, def, &keys);
    let parts = parts(&File::open(map.file().path()).expect("ours"));
    assert!(!parts.is_empty(), "it has memory");
    (keys, parts)
}

/// Each byte that is not zero, and some that are.
#[test]
fn changed_bytes_harm_nobody() {
    for def in kinds() {
        let dir = Dir::new();
        table(&dir, 256);
        let (keys, parts) = sample(&dir, &def);
        let mut random = Random(def.value_size.into());
        let bytes = parts
            .iter()
            .flat_map(|(from, bytes)| (*from..).zip(bytes.iter().copied()))
            .filter(|(at, byte)| *byte != 0 || random.next().is_multiple_of(512) || *at < 512);
        let all: Vec<(u64, u8)> = bytes.collect();
        let step = if rounds(0, 1) == 1 { 1 } else { all.len().div_ceil(150) };
        let damages: Vec<_> = all
            .into_iter()
            .step_by(step)
            .enumerate()
            .map(|(i, (at, byte))| {
                let byte = [byte ^ 1, byte ^ 0x80, !byte, byte.wrapping_add(4)][i % 4];
                vec![Damage { at, bytes: vec![byte] }]
            })
            .collect();
        survive(&def, &keys, &damages);
    }
}

/// Words of all sizes, some at a time: numbers, addresses of elements that are another's, nonsense.
#[test]
fn changed_words_harm_nobody() {
    for def in kinds() {
        let dir = Dir::new();
        table(&dir, 256);
        let (keys, parts) = sample(&dir, &def);
        let mut random = Random(u64::from(def.value_size) + 1);
        let words: Vec<(u64, u32)> = parts
            .iter()
            .flat_map(|(from, bytes)| {
                (*from..)
                    .step_by(4)
                    .zip(bytes.as_chunks::<4>().0.iter().map(|w| u32::from_le_bytes(*w)))
            })
            .filter(|(_, word)| *word != 0)
            .collect();
        let damages: Vec<_> = (0..rounds(120, 20_000))
            .map(|_| {
                (0..1 + random.below(6))
                    .map(|_| {
                        let pick =
                            |random: &mut Random| words[random.below(words.len() as u64) as usize];
                        let (at, was) = pick(&mut random);
                        let word = match random.below(7) {
                            0 => u32::MAX,
                            1 => 0,
                            2 => random.below(300) as u32,
                            3 => was.wrapping_add(random.below(65) as u32 * 4).wrapping_sub(128),
                            4 => random.next() as u32,
                            // Perhaps a cycle.
                            _ => pick(&mut random).1,
                        };
                        Damage { at, bytes: word.to_le_bytes().to_vec() }
                    })
                    .collect()
            })
            .collect();
        survive(&def, &keys, &damages);
    }
}

/// Whole pages of another time, of zeros and of nonsense.
#[test]
fn changed_pages_harm_nobody() {
    for def in kinds() {
        let dir = Dir::new();
        table(&dir, 256);
        let (keys, parts) = sample(&dir, &def);
        let mut random = Random(u64::from(def.value_size) + 2);
        let pages: Vec<(u64, &[u8])> = parts
            .iter()
            .flat_map(|(from, bytes)| (*from..).step_by(4096).zip(bytes.chunks(4096)))
            .filter(|(_, page)| page.iter().any(|b| *b != 0))
            .collect();
        let damages: Vec<_> = (0..rounds(24, 3_000))
            .map(|i| {
                let (at, was) = pages[random.below(pages.len() as u64) as usize];
                let other = pages[random.below(pages.len() as u64) as usize].1;
                let bytes = match i % 4 {
                    0 => vec![0; was.len()],
                    1 => vec![0xff; was.len()],
                    2 => (0..was.len()).map(|_| random.next() as u8).collect(),
                    _ => other[..other.len().min(was.len())].to_vec(),
                };
                vec![Damage { at, bytes }]
            })
            .collect();
        survive(&def, &keys, &damages);
    }
}
