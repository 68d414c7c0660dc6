//! Values written over in place (`BPF_F_LOCK`) by a writer that stands, or died, at each of its
//! instructions.

mod support;

use std::sync::atomic::Ordering::Relaxed;

use skep_isa::MapType;
use skep_isa::map::update::{ANY, LOCK};
use skep_maps::{Map, MapDef, spin};
use skep_testkit::skip;
use support::{Child, Dir, memory, restore, word, words};

const NEEDS: &str = "ptrace(2)";
const KEY: [u8; 8] = 1u64.to_ne_bytes();
/// Words of a value; the lock is in the first one.
const WORDS: usize = 4;
const STRIPE: u64 = 64;
/// There are four, and as many buckets.
const STRIPES: u64 = 128;
const BUCKETS: u64 = STRIPES + 4 * STRIPE;

fn value(n: u64) -> Vec<u8> {
    (0..WORDS as u64).flat_map(|i| (if i == 0 { 0 } else { n * 10 + i }).to_ne_bytes()).collect()
}

fn make(dir: &Dir) -> Map {
    let map = dir.make(&MapDef::new(MapType::Hash, 8, WORDS as u32 * 8, 2).spin_lock(0));
    map.update(&KEY, &value(1), ANY).expect("room");
    map
}

/// The value as a program sees it: its lock as it is.
fn in_map(map: &Map) -> (&[std::sync::atomic::AtomicU64; WORDS], bool) {
    // SAFETY: the key is as long as the map's are, and values are aligned words that the map keeps.
    let value =
        unsafe { &*map.prog_lookup(KEY.as_ptr()).cast::<[std::sync::atomic::AtomicU64; WORDS]>() };
    let held = value[0].load(Relaxed) & ((1 << 22) - 1) != 0;
    (value, held)
}

fn seen(map: &Map) -> Vec<u8> {
    let (value, _) = in_map(map);
    value
        .iter()
        .enumerate()
        .flat_map(|(i, w)| (if i == 0 { 0 } else { w.load(Relaxed) }).to_ne_bytes())
        .collect()
}

/// Tells whether a stripe says that a value is to be finished.
fn is_unfinished(map: &Map) -> bool {
    (0..4).any(|s| word(map, STRIPES + s * STRIPE + 48).load(Relaxed) != 0)
}

/// Takes every stripe's lock, and so has done what a dead writer left.
fn take_all_locks(map: &Map) {
    for i in 100..164u64 {
        assert!(map.delete(&i.to_ne_bytes()).is_err(), "never there");
    }
}

/// Has a child write value 2 over value 1 ([`support::each_state`]).
fn each_state(map: &Map, standing: impl FnMut(&Child)) -> Option<Vec<support::Memory>> {
    let write = |n| move |map: &Map| map.update(&KEY, &value(n), LOCK).expect("there");
    let states = support::each_state(map, write(1), write(2), standing)?;
    assert_eq!((seen(map), is_unfinished(map)), (value(2), false));
    assert!(
        states.len() > 2 * WORDS + 3,
        "the spare, the value and both locks change: {}",
        states.len()
    );
    Some(states)
}

/// What a program changes under the value's lock stays, whatever the writer left to be done: only
/// who takes the lock over from the dead has the rest of the new value stored over it.
#[test]
fn a_writer_that_dies_takes_no_later_change_with_it() {
    let dir = Dir::new();
    let map = make(&dir);
    let Some(states) = each_state(&map, |_| {}) else { return skip(NEEDS) };
    for (i, state) in states.iter().enumerate() {
        restore(&map, state);
        let (words_of, held) = in_map(&map);
        let before = seen(&map);
        assert!(
            held || before == value(1) || before == value(2),
            "state {i}: half a value, and nobody has its lock"
        );
        let lock = words_of[0].as_ptr().cast();
        // SAFETY: the lock of a value, which the map keeps.
        unsafe { spin::lock(lock) };
        for (w, new) in words_of.iter().zip(words(&value(3))).skip(1) {
            w.store(new, Relaxed);
        }
        // SAFETY: taken above.
        unsafe { spin::unlock(lock) };
        take_all_locks(&map);
        let after = map.lookup(&KEY).expect("there");
        assert!(
            after == value(3) || held && after == value(2),
            "state {i}: {:?} after a change of {:?}",
            words(&after),
            words(&before)
        );
        assert!(!is_unfinished(&map), "state {i}");
        map.update(&KEY, &value(4), LOCK).expect("there");
        assert_eq!(seen(&map), value(4), "state {i}");
    }
}

/// All ways to read the value without its lock.
fn plainly(map: &Map) -> Vec<Vec<u8>> {
    let one_by_one = map.iter().map(|e| e.expect("reads").1);
    let mut rows = vec![0; 1 << 12];
    let len = map.walk().rows(&mut rows).expect("reads");
    assert_eq!(len, 1, "as many elements as there are");
    let together = rows[8..][..WORDS * 8].to_vec();
    one_by_one.chain([map.lookup(&KEY).expect("there"), together]).collect()
}

/// Readers that do not take the value's lock see the old value or the new one while the writer
/// stands and after it died, and who saw the new one sees it from then on.
#[test]
fn readers_without_the_lock_see_no_half_of_a_value() {
    let dir = Dir::new();
    let map = make(&dir);
    let mut last = value(1);
    let mut look = |at: &str| {
        let seen = plainly(&map);
        assert!(seen.iter().all(|v| *v == seen[0]), "{at}: {seen:?}");
        assert!(seen[0] == last || seen[0] == value(2), "{at}: {:?}", words(&seen[0]));
        last.clone_from(&seen[0]);
    };
    let Some(states) = each_state(&map, |_| look("standing")) else { return skip(NEEDS) };
    assert_eq!(last, value(2));
    for (i, state) in states.iter().enumerate() {
        restore(&map, state);
        let before = plainly(&map);
        assert!(
            before.iter().all(|v| *v == before[0] && (*v == value(1) || *v == value(2))),
            "state {i}: {before:?}"
        );
        take_all_locks(&map);
        assert_eq!(plainly(&map), before, "state {i}: what was seen stays");
    }
}

/// A reader with the lock that finds a writer at work whenever it looks has its value under the
/// stripe's lock, and is not told that it is busy: as if, after each look, another writer began.
#[test]
fn a_reader_among_busy_writers_has_its_value() {
    let dir = Dir::new();
    let map = make(&dir);
    let element = (0..4)
        .map(|b| word(&map, BUCKETS + b * 8).load(Relaxed) & 0xffff_ffff)
        .find(|r| *r != 0)
        .expect("its element");
    for s in 0..4 {
        word(&map, STRIPES + s * STRIPE + 48).store(element, Relaxed);
    }
    let mut out = value(0);
    map.lookup_into(&KEY, &mut out, LOCK).expect("nobody holds a lock");
    assert_eq!(out, value(1));
}

/// Whoever looks first, with the value's lock, finds all of a value.
#[test]
fn a_writer_that_dies_leaves_the_old_value_or_the_new_one() {
    let dir = Dir::new();
    let map = make(&dir);
    let Some(states) = each_state(&map, |_| {}) else { return skip(NEEDS) };
    let mut out = value(0);
    for (i, state) in states.iter().enumerate() {
        restore(&map, state);
        map.lookup_into(&KEY, &mut out, LOCK).expect("there");
        assert!(out == value(1) || out == value(2), "state {i}: {:?}", words(&out));
        take_all_locks(&map);
        assert!(out == value(1) || seen(&map) == value(2), "state {i}: what was seen stays");
    }
}

/// Whoever wants the value's lock is told at once, and does not take it from the writer after a
/// second.
#[test]
fn a_writer_that_stands_in_the_middle_is_not_robbed() {
    let dir = Dir::new();
    let map = make(&dir);
    let mut busy = 0;
    let states = each_state(&map, |child| {
        if is_unfinished(&map) {
            let before = memory(&map);
            let error = map
                .lookup_into(&KEY, &mut value(0), LOCK)
                .expect_err("the writer has not finished");
            assert_eq!(error.errno(), 16, "{error}");
            assert!(error.to_string().contains(&format!("process {}", child.pid())), "{error}");
            assert_eq!(memory(&map), before, "nobody took a lock");
            busy += 1;
        }
    });
    if states.is_none() {
        return skip(NEEDS);
    }
    assert!(busy >= WORDS - 1, "{busy}");
}
