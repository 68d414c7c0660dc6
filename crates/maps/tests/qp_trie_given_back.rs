//! Memory that a trie gives back while others look keys up: what stays is found, and of what goes
//! all or nothing.

mod support;

use std::cell::Cell;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use skep_isa::map::update::NOEXIST;
use skep_maps::{Access, KeyRange, Map, MapError};
use skep_testkit::run::SetOnDrop;
use skep_testkit::skip;
use support::qp_trie::{as_program, stamp, stamped, strings, uncached};
use support::{
    Dir, Random, fill_up, forked, on_small_tmpfs, rounds, stop, stop_to_be_traced, table,
};

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

/// What a process does that guards its maps against `SIGBUS`: it puts memory of its own where there is none.
fn guard() {
    #[repr(C)]
    struct Action {
        handler: extern "C" fn(i32, *const i64, *const u8),
        mask: [u64; 16],
        flags: i32,
        restorer: usize,
    }
    unsafe extern "C" {
        fn sigaction(signal: i32, action: *const Action, old: *mut Action) -> i32;
        fn mmap(at: u64, len: usize, rights: i32, flags: i32, fd: i32, offset: i64) -> u64;
    }
    extern "C" fn on_bus(_: i32, info: *const i64, _: *const u8) {
        // SAFETY: `si_addr` is the third word.
        let at = unsafe { info.add(2).read() } as u64 & !4095;
        assert!(skep_maps::is_mapped(at));
        // SAFETY: as `skep_runtime::memory` does.
        assert_eq!(unsafe { mmap(at, 4096, 3, 0x32, -1, 0) }, at);
        skep_maps::note_replaced();
        FAULTS.fetch_add(1, Relaxed);
    }
    const SIGINFO: i32 = 4;
    let action = Action { handler: on_bus, mask: [0; 16], flags: SIGINFO, restorer: 0 };
    // SAFETY: the handler only makes a system call, and the structure is that of x86-64.
    assert_eq!(unsafe { sigaction(SIGBUS, &raw const action, std::ptr::null_mut()) }, 0);
}

const SIGBUS: i32 = 7;
static FAULTS: AtomicU64 = AtomicU64::new(0);

/// A reader stands at any instruction of a lookup while all is deleted, memory is given back, and
/// others take what there is. It touches memory that is not there: then it reads again, and later it sees
/// what is put in there.
#[test]
fn a_reader_of_memory_that_was_given_back_sees_what_comes_later() {
    const KEYS: u64 = 250;
    const NO: i32 = 77;
    let mut may_trace = true;
    let ran = on_small_tmpfs("2m", |dir| {
        for def in [uncached(strings(40, 1000, 400)), strings(40, 1000, 400)] {
            let map = dir.make(&def);
            let fill = |map: &Map| {
                for key in (0..KEYS).map(goes) {
                    map.update(&key, &stamped(map, &key, 2), NOEXIST).expect("room");
                }
            };
            fill(&map);
            let mut faulted = 0;
            for steps in 0.. {
                let reader = forked(|| {
                    guard();
                    let key = goes(KEYS / 2);
                    let _ = map.lookup(&key);
                    if !stop_to_be_traced() {
                        return NO;
                    }
                    let found = map.lookup(&key);
                    stop();
                    let is_whole = |found: &[u8], key: &[u8]| stamp(&map, key, found) == Some(2);
                    let was_right = match &found {
                        Ok(found) => is_whole(found, &key),
                        Err(e) => matches!(e, MapError::NoElement),
                    };
                    stop();
                    let is_there =
                        |key: Vec<u8>| map.lookup(&key).is_ok_and(|v| is_whole(&v, &key));
                    match FAULTS.load(Relaxed) {
                        _ if !was_right => 3,
                        _ if !(0..KEYS).map(goes).all(is_there) => 2,
                        faults => i32::from(faults != 0),
                    }
                });
                if reader.wait_until_stopped() == Err(NO) {
                    std::mem::forget(reader);
                    may_trace = false;
                    return;
                }
                let is_over = (0..7 * steps).any(|_| reader.step() == Ok(19));
                assert_eq!(map.delete_range(&KeyRange::ALL).expect("deletes"), KEYS);
                let filler = fill_up(dir);
                let mut at = if is_over { Ok(19) } else { reader.resume() };
                while at == Ok(SIGBUS) {
                    at = reader.resume_with(SIGBUS as usize);
                }
                assert_eq!(at, Ok(19), "after {} instructions", 7 * steps);
                assert_eq!(reader.resume(), Ok(19), "after {} instructions", 7 * steps);
                std::fs::remove_file(filler).expect("ours");
                fill(&map);
                let status = reader.resume();
                std::mem::forget(reader);
                assert!(
                    matches!(status, Err(0 | 1)),
                    "{status:?} after {} instructions",
                    7 * steps
                );
                faulted += u32::from(status == Err(1));
                if is_over {
                    break;
                }
            }
            assert!(faulted > 0, "memory that is given back is missed by some");
        }
    });
    if !ran || !may_trace {
        skip("a tmpfs of its own, and ptrace(2)");
    }
}
