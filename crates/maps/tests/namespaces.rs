//! Children that are forked into another pid namespace, as browsers and sandboxes do: thread ids
//! mean other threads there, so they must not take part in locks.

mod support;

use std::collections::BTreeSet;
use std::sync::atomic::Ordering::SeqCst;

use skep_isa::map::DynptrUser;
use skep_isa::{KeyShape, MapFlags, MapType};
use skep_maps::{Access, KeyRange, Map, MapDef, SlotTable, slots, stays_out};
use skep_testkit::skip;
use support::qp_audit::{audit, heaps_at};
use support::qp_trie::{errno, fixed, strings, uncached};
use support::{Dir, Own, Random, apart, forked, rounds, table, word};

const NEEDS: &str = "user and pid namespaces of its own";

/// Maps whose changes take a lock, small, so that everybody meets everybody.
fn contested(dir: &Dir) -> Vec<Map> {
    vec![
        dir.make(&MapDef::new(MapType::Hash, 8, 64, 40)),
        dir.make(&MapDef::new(MapType::LruHash, 8, 8, 40)),
        dir.make(&MapDef::new(MapType::LpmTrie, 8, 8, 40).flags(MapFlags::NO_PREALLOC)),
        dir.make(&MapDef::new(MapType::Queue, 0, 64, 8)),
        dir.make(&fixed(8, 64, 40)),
        dir.make(&strings(20, 8, 40)),
    ]
}

fn key(map: &Map, i: u64) -> Vec<u8> {
    match map.def().map_type {
        MapType::Queue => vec![],
        MapType::LpmTrie => [32u32.to_ne_bytes(), (i as u32).to_be_bytes()].concat(),
        _ if matches!(map.key_shape(), KeyShape::Bytes { .. }) => vec![7; 1 + i as usize % 20],
        _ => i.to_ne_bytes().to_vec(),
    }
}

/// Changes maps as a program does; returns how many changes were made.
fn churn(maps: &[Map], seed: u64, n: u32) -> u32 {
    let mut random = Random(seed);
    let mut done = 0;
    for _ in 0..n {
        let x = random.next();
        for map in maps {
            let (key, value) = (key(map, x % 30), [x as u8; 64]);
            let description =
                DynptrUser { data: key.as_ptr() as u64, size: key.len() as u32, reserved: 0 };
            let key = match map.key_shape() {
                KeyShape::Bytes { .. } => (&raw const description).cast(),
                KeyShape::Fixed(_) => key.as_ptr(),
            };
            // SAFETY: a key and a value of the map.
            let result = unsafe {
                match map.def().map_type {
                    MapType::Queue => map.prog_push(value.as_ptr(), 2),
                    _ if x >> 40 & 3 == 0 => map.prog_delete(key),
                    _ => map.prog_update(key, value.as_ptr(), 0),
                }
            };
            done += u32::from(result == 0);
        }
    }
    done
}

fn check(maps: &[Map]) {
    for map in maps.iter().filter(|m| m.def().map_type != MapType::Queue) {
        let mut seen = BTreeSet::new();
        for e in map.iter() {
            let (key, value) = e.expect("whole");
            assert!(seen.insert(key), "a key is there once");
            assert!(value.iter().all(|b| *b == value[0]), "a value is whole");
        }
        assert!(seen.len() <= 30);
    }
}

/// A process has one slot table installed, and counts who stays out of it.
static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

/// Children in other namespaces change nothing while others do, and know why; all maps stay whole.
#[test]
fn a_child_in_another_pid_namespace_stays_out() {
    let _alone = ALONE.lock();
    let mut ran = true;
    for own in [Own::Pids, Own::PidsWithoutProc] {
        let dir = Dir::new();
        let table = table(&dir, 256);
        let maps = contested(&dir);
        let n = rounds(3_000, 300_000);
        let over = forked(|| i32::from(churn(&maps, 1, n) == 0));
        ran &= apart(own, || {
            // The first process of the namespace, and one that is forked before it has found out
            // where it is.
            let grandchild = forked(|| outside(&maps, &dir, 3));
            assert_eq!((outside(&maps, &dir, 2), grandchild.join()), (0, 0));
            assert_eq!(forked(|| outside(&maps, &dir, 4)).join(), 0);
        });
        assert!(!stays_out() && churn(&maps, 4, n) > 0, "the parent goes on");
        assert_eq!(over.join(), 0, "and so does a child beside it");
        check(&maps);
        assert!(!ran || table.strangers() == 3, "{}", table.strangers());
    }
    if !ran {
        skip(NEEDS);
    }
}

/// What works and what does not in another namespace.
fn outside(maps: &[Map], dir: &Dir, seed: u64) -> i32 {
    assert!(stays_out());
    assert_eq!(churn(maps, seed, 300), 0, "nothing is changed");
    for map in maps {
        let value = vec![7; map.user_value_size()];
        let error = map
            .update(&key(map, 1), &value, if map.def().map_type == MapType::Queue { 2 } else { 0 })
            .expect_err("refused");
        assert!(error.errno() == 1 && error.to_string().contains("pid namespace"), "{error}");
        assert!(map.iter().take(100).all(|e| e.is_ok()), "reading goes on");
        let error = Map::open(map.file().path(), Access::ReadWrite).expect_err("refused");
        assert!(error.errno() == 18 && error.to_string().contains("pid namespace"), "{error}");
        Map::open(map.file().path(), Access::ReadOnly).expect("reading is allowed");
    }
    let error = Map::create(&dir.maps(), 1_000, &MapDef::new(MapType::Array, 4, 4, 1))
        .expect_err("refused");
    assert_eq!(error.errno(), 18, "{error}");
    for _ in 0..3 {
        let entered = slots::enter();
        assert!(entered.is_refused(), "its slots would be taken for another thread's");
        slots::exit(entered);
    }
    0
}

/// A lock that a thread in the namespace of the map holds is not taken over from outside, though no
/// such thread is seen there.
#[test]
fn a_lock_is_not_taken_over_from_another_namespace() {
    let _alone = ALONE.lock();
    let dir = Dir::new();
    let map = dir.make(&MapDef::new(MapType::Hash, 8, 8, 1));
    map.update(&[1; 8], &[1; 8], 0).expect("room");
    // As if this thread, which lives, were in the middle of a change.
    let lock = word(&map, 128);
    let token = u64::from(std::process::id()) << 22
        | rustix::thread::gettid().as_raw_nonzero().get() as u64;
    let stripes: Vec<_> = (0..2).map(|s| word(&map, 128 + 64 * s)).collect();
    stripes.iter().for_each(|word| word.store(token, SeqCst));
    let done = apart(Own::Pids, || {
        // SAFETY: a key and a value of the map.
        assert!(unsafe { map.prog_update([1u8; 8].as_ptr(), [2u8; 8].as_ptr(), 0) } < 0);
        assert_eq!(map.lookup(&[1; 8]).expect("reads"), [1; 8]);
    });
    assert_eq!(lock.load(SeqCst), token);
    if !done {
        skip(NEEDS);
    }
}

/// The same of a trie: its heap, its spans and all its stripes are held, and it is read.
#[test]
fn locks_of_a_trie_are_not_taken_over_from_another_namespace() {
    let _alone = ALONE.lock();
    let dir = Dir::new();
    let mut ran = true;
    for def in [strings(20, 40, 8), uncached(strings(20, 40, 8))] {
        let map = dir.make(&def);
        map.update(b"key", &[1; 40], 0).expect("room");
        let token = u64::from(std::process::id()) << 22
            | rustix::thread::gettid().as_raw_nonzero().get() as u64;
        let stripes = (0..64).map(|i| 4096 + 64 * i);
        let locks: Vec<u64> = [128, heaps_at(&map)].into_iter().chain(stripes).collect();
        locks.iter().for_each(|at| word(&map, *at).store(token, SeqCst));
        ran &= apart(Own::Pids, || {
            for key in [&b"key"[..], b"new"] {
                let description = DynptrUser { data: key.as_ptr() as u64, size: 3, reserved: 0 };
                let at = (&raw const description).cast();
                // SAFETY: a key and a value of the map.
                assert!(unsafe { map.prog_update(at, [2; 40].as_ptr(), 0) } < 0);
                // SAFETY: as before.
                assert!(unsafe { map.prog_delete(at) } < 0);
                assert_eq!(errno(map.update(key, &[2; 40], 0)), 1);
                assert_eq!(errno(map.delete(key)), 1);
            }
            assert_eq!(map.delete_range(&KeyRange::ALL).map_err(|e| e.errno()), Err(1));
            assert_eq!(map.lookup(b"key").expect("reads"), [1; 40]);
            assert_eq!(map.iter().count(), 1);
        });
        assert!(locks.iter().all(|at| word(&map, *at).load(SeqCst) == token));
        locks.iter().for_each(|at| word(&map, *at).store(0, SeqCst));
        map.update(b"new", &[3; 40], 0).expect("they are free again");
        assert_eq!(audit(&map).elements, 2);
    }
    if !ran {
        skip(NEEDS);
    }
}

/// A child in the same namespace takes part, with /proc and without.
#[test]
fn a_child_in_the_same_namespace_takes_part() {
    let _alone = ALONE.lock();
    let dir = Dir::new();
    table(&dir, 256);
    let maps = contested(&dir);
    let count = dir.make(&MapDef::new(MapType::PercpuArray, 4, 8, 1));
    let child = || {
        assert!(!stays_out());
        assert!(churn(&maps, 9, 500) > 0);
        let entered = slots::enter();
        assert!(!entered.is_refused());
        // SAFETY: a key; this thread has a slot.
        assert!(!unsafe { count.prog_lookup([0u8; 4].as_ptr()) }.is_null());
        slots::exit(entered);
        0
    };
    assert_eq!(forked(child).join(), 0);
    // Linux 6.11 tells the namespace without /proc, and before that the parent's number does, of
    // the parent's own children.
    if !apart(Own::NoProc, || assert_eq!(forked(child).join(), 0)) {
        skip(NEEDS);
    }
    check(&maps);
    assert_eq!(SlotTable::open_or_create(dir.path()).expect("there").strangers(), 0);
}
