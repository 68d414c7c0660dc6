//! Writers of a trie that are killed or stopped at chosen instructions: in the middle of their stores,
//! at work with spans, anywhere. What a survivor then does is what the model says, every block is in
//! its place, and to clear up after the dead takes as long in a large trie as in a small one.
//!
//! `SKEP_STRESS=1` kills some thousands.

mod support;

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::SeqCst;

use skep_isa::map::update::{ANY, NOEXIST};
use skep_maps::{KeyRange, Map};
use skep_testkit::skip;
use support::qp_audit::{audit, heaps_at};
use support::qp_trie::{errno, fixed, hostile_keys, settle, stamped, strings, uncached};
use support::{Child, Dir, Random, forked, rounds, stop, stop_to_be_traced, table, word};

const NEEDS: &str = "ptrace(2), and watchpoints of the processor";
/// What a child that may not be traced ends with.
const NO: i32 = 77;
const SIGSTOP: i32 = 19;

/// A change of one key.
#[derive(Clone, Copy, Debug)]
enum Change {
    Update(usize, u64),
    Delete(usize),
}

impl Change {
    fn random(keys: usize, random: &mut Random) -> Self {
        let key = random.below(keys as u64) as usize;
        match random.below(5) {
            0 | 1 => Self::Delete(key),
            _ => Self::Update(key, random.next() >> 1),
        }
    }

    fn key(&self) -> usize {
        match self {
            Self::Update(key, _) | Self::Delete(key) => *key,
        }
    }

    /// Makes it; the number of the error, 0 for none.
    fn make(self, map: &Map, keys: &[Vec<u8>]) -> i32 {
        match self {
            Self::Update(i, n) => errno(map.update(&keys[i], &stamped(map, &keys[i], n), ANY)),
            Self::Delete(i) => errno(map.delete(&keys[i])),
        }
    }

    /// Makes it in a model with room for so many; the number of the error.
    fn model(self, model: &mut Model, most: usize) -> i32 {
        match self {
            Self::Update(i, n) if model.len() < most || model.contains_key(&i) => {
                model.insert(i, n);
                0
            }
            Self::Update(..) => 28,
            Self::Delete(i) if model.remove(&i).is_some() => 0,
            Self::Delete(_) => 2,
        }
    }
}

/// Numbers of keys, and what their values are stamped with.
type Model = BTreeMap<usize, u64>;

/// Keys and values of a model, in the order of the keys.
fn elements(map: &Map, keys: &[Vec<u8>], model: &Model) -> BTreeMap<Vec<u8>, Vec<u8>> {
    model.iter().map(|(i, n)| (keys[*i].clone(), stamped(map, &keys[*i], *n))).collect()
}

fn walked(map: &Map) -> BTreeMap<Vec<u8>, Vec<u8>> {
    map.iter().map(|e| e.expect("whole")).collect()
}

/// A child that is stopped before it does something with a map; `None` where nobody may trace. After
/// that it stops again, and its exit status is what `f` returned.
fn traced(map: &Map, f: impl FnOnce() -> i32) -> Option<Child> {
    let child = forked(|| {
        // What a thread does at its first use is not of the change.
        errno(map.delete(&vec![0xfd; map.key_shape().max_len()]));
        if !stop_to_be_traced() {
            return NO;
        }
        let status = f();
        stop();
        status
    });
    match child.wait_until_stopped() {
        Ok(_) => Some(child),
        Err(status) => {
            // It has been waited for.
            std::mem::forget(child);
            assert_eq!(status, NO, "in the child");
            None
        }
    }
}

/// Where in a change its writer is stopped: so many instructions after one of these.
#[derive(Clone, Copy, Debug)]
enum Behind {
    /// The beginning.
    Nothing,
    /// A heap's lock was taken.
    Heap,
    /// The stores of the change were written down.
    Log,
    /// Those of a change of spans were.
    SpanLog,
    /// The version changed, for blocks to be used again.
    Version,
}

/// So many instructions behind something.
type At = (Behind, u64);

/// Words of a trie, by which it is told how far a writer has come.
struct Words {
    base: u64,
    /// Locks of heaps that a process with one writer uses, and their logs.
    heaps: [u64; 2],
    logs: [u64; 2],
}

impl Words {
    fn of(map: &Map) -> Self {
        let first = heaps_at(map);
        let heaps = [0, 1].map(|heap| first + heap * 16_384);
        Self { base: map.file().payload().base(), heaps, logs: heaps.map(|at| at + 64) }
    }

    /// Has a child run there; `false` when it did all without getting there. `None` where there are no
    /// watchpoints.
    fn reach(&self, (behind, steps): At, child: &Child) -> Option<bool> {
        let words: &[u64] = match behind {
            Behind::Nothing => &[],
            Behind::Heap => &self.heaps,
            Behind::Log => &self.logs,
            Behind::SpanLog => &[192],
            Behind::Version => &[0],
        };
        if !words.is_empty() {
            let words: Vec<u64> = words.iter().map(|at| self.base + at).collect();
            if !child.watch(&words) {
                return None;
            }
            if child.resume().expect("the change does not fail") == SIGSTOP {
                return Some(false);
            }
            child.watch(&[]);
        }
        Some((0..steps).all(|_| child.step().expect("the change does not fail") != SIGSTOP))
    }
}

/// Most of them where something can go wrong.
fn somewhere(random: &mut Random) -> At {
    match random.below(8) {
        0 => (Behind::Nothing, random.below(1500)),
        1 => (Behind::Heap, random.below(800)),
        2..=4 => (Behind::Log, random.below(120)),
        5 | 6 => (Behind::SpanLog, random.below(150)),
        _ => (Behind::Version, random.below(600)),
    }
}

/// A writer is killed at chosen instructions. A survivor sees the change made or not made, finds room for
/// exactly the rest, and then no block is lost.
#[test]
fn a_writer_killed_at_a_chosen_step_leaves_all_or_nothing() {
    const ROOM: usize = 60;
    let room = ROOM as u32;
    let kinds = [
        strings(30, 8, room),
        strings(200, 1000, room),
        uncached(strings(200, 300, room)),
        fixed(8, 40, room),
        uncached(strings(12, 4, room)),
    ];
    let (mut killed, mut made) = (0, 0);
    for (seed, def) in (1..).zip(kinds) {
        let dir = Dir::new();
        table(&dir, 16);
        let map = dir.make(&def);
        // A few more than there is room for.
        let keys = hostile_keys(map.key_shape(), ROOM + 8, seed);
        let (mut random, mut model) = (Random(seed), Model::new());
        let words = Words::of(&map);
        for round in 0..rounds(60, 1000) {
            for _ in 0..random.below(40) {
                let change = Change::random(keys.len(), &mut random);
                assert_eq!(change.make(&map, &keys), change.model(&mut model, ROOM));
            }
            let change = Change::random(keys.len(), &mut random);
            let at = somewhere(&mut random);
            let says = format!("{def:?}, round {round}: {change:?}, {at:?}");
            let Some(victim) = traced(&map, || change.make(&map, &keys)) else {
                return skip(NEEDS);
            };
            let Some(got_there) = words.reach(at, &victim) else { return skip(NEEDS) };
            victim.kill();
            assert_eq!(victim.join(), -9);
            let mut after = model.clone();
            change.model(&mut after, ROOM);
            let [before, after] = [model.clone(), after].map(|m| (elements(&map, &keys, &m), m));
            let seen = walked(&map);
            assert!(seen == before.0 || seen == after.0, "{says}");
            let was_made = seen == after.0;
            settle(&map);
            let seen = walked(&map);
            assert!(
                seen == after.0 || !was_made && seen == before.0,
                "{says}: what was seen stays"
            );
            if got_there && before.0 != after.0 {
                killed += 1;
                made += u32::from(seen == after.0);
            }
            model = if seen == after.0 { after.1 } else { before.1 };
            assert_eq!(audit(&map).elements, model.len() as u64, "{says}");
            if round % 16 == 15 {
                model.clear();
                map.delete_range(&KeyRange::ALL).expect("nobody is in the way");
                let held = audit(&map);
                assert_eq!((held.elements, held.blocks), (0, 0), "{says}");
            }
        }
    }
    assert!(made > 20 && killed > made + 20, "{killed} killed, {made} of their changes made");
}

/// A writer is stopped at chosen instructions. Others change the trie, or are told at once that it
/// is busy; when he goes on, his change is made as if nobody had looked.
#[test]
fn others_go_on_beside_a_writer_that_stands_at_a_chosen_step() {
    const KEYS: usize = 60;
    let room = KEYS as u32 + 5;
    let kinds = [
        strings(30, 8, room),
        strings(200, 1000, room),
        uncached(strings(30, 40, room)),
        fixed(8, 8, room),
    ];
    for (seed, def) in (1..).zip(kinds) {
        let dir = Dir::new();
        table(&dir, 16);
        let map = dir.make(&def);
        let keys = hostile_keys(map.key_shape(), KEYS, seed);
        let (mut random, mut model) = (Random(seed), Model::new());
        let words = Words::of(&map);
        let (mut done, mut told) = (0, 0);
        for round in 0..rounds(30, 600) {
            let change = Change::random(KEYS, &mut random);
            let at = somewhere(&mut random);
            let says = format!("{def:?}, round {round}: {change:?}, {at:?}");
            let Some(writer) = traced(&map, || change.make(&map, &keys)) else {
                return skip(NEEDS);
            };
            let Some(stands) = words.reach(at, &writer) else { return skip(NEEDS) };
            for _ in 0..12 {
                let other = Change::random(KEYS, &mut random);
                if other.key() == change.key() {
                    continue;
                }
                let before = model.clone();
                let want = other.model(&mut model, room as usize);
                match other.make(&map, &keys) {
                    16 => {
                        assert!(stands, "{says}: {other:?}");
                        model = before;
                        told += 1;
                    }
                    found => {
                        assert_eq!(found, want, "{says}: {other:?}");
                        done += 1;
                    }
                }
            }
            let apart = |mut all: BTreeMap<Vec<u8>, Vec<u8>>| {
                all.remove(&keys[change.key()]);
                all
            };
            assert_eq!(apart(walked(&map)), apart(elements(&map, &keys, &model)), "{says}");
            let want = change.model(&mut model, room as usize);
            if stands {
                assert_eq!(writer.resume(), Ok(SIGSTOP), "{says}");
            }
            assert_eq!(writer.resume(), Err(want), "{says}");
            std::mem::forget(writer);
            assert_eq!(walked(&map), elements(&map, &keys, &model), "{says}");
            assert_eq!(audit(&map).elements, model.len() as u64, "{says}");
        }
        assert!(done > told, "{def:?}: {done} done, {told} refused");
    }
}

/// To finish what a dead writer had begun, or to find that there is nothing, takes a survivor as many
/// instructions in a trie of a million keys as in one of a thousand.
#[test]
fn to_recover_takes_as_long_in_a_large_trie_as_in_a_small_one() {
    // Some keys have a change move others aside, as chance will have it: the least of so many counts.
    const KEYS: u32 = 3;
    // Instructions of an undisturbed change, and the most of one that recovers.
    let cost_in = |n: u32| -> Option<(u64, u64)> {
        let dir = Dir::new();
        table(&dir, 16);
        let map = dir.make(&strings(16, 40, n + 1000));
        let key = |i: u32| format!("{:08x}", i.wrapping_mul(0x9e37_79b1)).into_bytes();
        for i in 0..n {
            map.update(&key(i), &[7; 40], NOEXIST).expect("room");
        }
        let insert = |new: &[u8]| errno(map.update(new, &[9; 40], ANY));
        let cost = |new: &[u8]| {
            let (child, mut steps) = (traced(&map, || insert(new))?, 0);
            while child.step().expect("it does not fail") != SIGSTOP {
                steps += 1;
            }
            assert_eq!(child.resume(), Err(0), "the change is made");
            std::mem::forget(child);
            Some(steps)
        };
        // So that what comes due does not come due in the middle.
        let version = word(&map, 0).load(SeqCst);
        while word(&map, 0).load(SeqCst) == version {
            map.update(&key(1), &[7; 40], ANY).expect("there");
        }
        let words = Words::of(&map);
        let (mut undisturbed, mut recovering) = (u64::MAX, 0);
        for new in (n..n + KEYS).map(key) {
            undisturbed = undisturbed.min(cost(&new)?);
        }
        for at in [(Behind::Heap, 0), (Behind::Log, 40)] {
            let mut least = u64::MAX;
            for new in (n..n + KEYS).map(key) {
                // Who meets the heap of a dead one for the first time takes another: how many there are
                // must not depend on the numbers of threads.
                settle(&map);
                map.delete(&new).expect("there");
                let victim = traced(&map, || insert(&new))?;
                assert!(words.reach(at, &victim)?, "it takes a heap, and writes");
                victim.kill();
                assert_eq!(victim.join(), -9);
                least = least.min(cost(&new)?);
                assert_eq!(map.lookup(&new).expect("there"), [9; 40]);
            }
            recovering = recovering.max(least);
        }
        if n < 10_000 {
            assert_eq!(audit(&map).elements, u64::from(n + KEYS));
        }
        Some((undisturbed, recovering))
    };
    let (Some(small), Some(large)) = (cost_in(1000), cost_in(1_000_000)) else {
        return skip(NEEDS);
    };
    let says =
        format!("undisturbed and recovering {small:?} at 1,000 keys, {large:?} at 1,000,000");
    let [small, large] = [small, large].map(|(undisturbed, recovering)| recovering - undisturbed);
    assert!(small > 100, "somebody had to take a lock over: {says}");
    assert!(large < 2 * small, "{says}");
}
