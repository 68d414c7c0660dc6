//! Plain increments of per-CPU values are exact: with many threads, with more threads than slots,
//! across forks and deaths.
//!
//! One table is installed per process, so every test here runs in a process of its own (a forked
//! child).

mod support;

use std::sync::Arc;

use skep_isa::{MapType, ShapeKind};
use skep_maps::{Map, MapDef, SlotTable, slots};
use support::{Dir, forked, table, words};

/// Increments value 0 as compiled code does: load, add, store.
fn bump(map: &Map) {
    let entered = slots::enter();
    assert!(!entered.is_refused());
    // SAFETY: a four-byte key; the value is eight bytes that only this thread's slot has.
    unsafe {
        let p = map.prog_lookup(0u32.to_ne_bytes().as_ptr()).cast::<u64>();
        p.write_volatile(p.read_volatile() + 1);
    }
    slots::exit(entered);
}

fn counter(dir: &Dir) -> Map {
    dir.make(&MapDef::new(MapType::PercpuArray, 4, 8, 1).named("hits"))
}

fn values(map: &Map) -> Vec<u64> {
    words(&map.lookup(&0u32.to_ne_bytes()).expect("element 0"))
}

fn run_threads(map: &Arc<Map>, threads: u64, each: u64) {
    let all: Vec<_> = (0..threads)
        .map(|_| {
            let map = Arc::clone(map);
            std::thread::spawn(move || (0..each).for_each(|_| bump(&map)))
        })
        .collect();
    for t in all {
        t.join().expect("no panic");
    }
}

#[test]
fn a_thousand_threads_count_exactly() {
    let dir = Dir::new();
    let map = Arc::new(counter(&dir));
    let status = forked(|| {
        table(&dir, slots::MAX_SLOTS);
        run_threads(&map, 1000, 200);
        0
    });
    assert_eq!(status.join(), 0);
    assert_eq!(values(&map).iter().sum::<u64>(), 200_000);
}

#[test]
fn more_threads_than_slots_share_the_last_one_and_still_count_exactly() {
    let dir = Dir::new();
    let table = SlotTable::with_slots(dir.path(), 3).expect("a table");
    let map = Arc::new(counter(&dir));
    let status = forked(|| {
        table.install();
        run_threads(&map, 24, 2_000);
        0
    });
    assert_eq!(status.join(), 0);
    assert_eq!(values(&map).iter().sum::<u64>(), 48_000);
    assert!(table.highest() <= 3);
}

/// In this process something else lies where a slot's values of a large array would be mapped: the
/// thread has the next slot, and does not keep the first one from others.
#[test]
fn a_slot_that_cannot_be_mapped_is_left_to_others() {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
    const PAGE: usize = 4096;
    let dir = Dir::new();
    let slot_of_another_thread = |map: &Map| {
        std::thread::scope(|s| {
            let bump = || {
                bump(map);
                slots::current()
            };
            s.spawn(bump).join().expect("no panic")
        })
    };
    let status = forked(|| {
        let table = table(&dir, slots::MAX_SLOTS);
        let map = dir.make(&MapDef::new(MapType::PercpuArray, 4, 8, 20_000));
        bump(&map);
        assert_eq!(slots::current(), 0);
        let ShapeKind::PercpuArray { slot_stride, .. } = map.shape().kind else {
            panic!("a per-CPU array")
        };
        let second_page = (map.shape().base + slot_stride) as usize + PAGE;
        // SAFETY: replaces no mapping, and is not accessed.
        let alien = unsafe {
            mmap_anonymous(
                second_page as *mut _,
                PAGE,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE,
            )
        };
        assert_eq!(alien.expect("nothing lies there yet") as usize, second_page);
        assert_eq!((slot_of_another_thread(&map), table.owner(1)), (2, None));
        // SAFETY: mapped above.
        unsafe { munmap(second_page as *mut _, PAGE) }.expect("mapped");
        assert_eq!(slot_of_another_thread(&map), 1);
        assert_eq!(values(&map)[..3], [1, 1, 1]);
        0
    });
    assert_eq!(status.join(), 0);
}

#[test]
fn a_forked_child_takes_a_slot_of_its_own() {
    let dir = Dir::new();
    let map = counter(&dir);
    let status = forked(|| {
        table(&dir, slots::MAX_SLOTS);
        bump(&map);
        let mine = slots::current();
        let child = forked(|| {
            bump(&map);
            let grandchild = forked(|| {
                bump(&map);
                slots::current() as i32
            });
            grandchild.join() * 16 + slots::current() as i32
        });
        let seen = child.join();
        bump(&map);
        assert_eq!(mine, slots::current(), "slots are sticky");
        assert_eq!((mine, seen), (0, 2 * 16 + 1));
        0
    });
    assert_eq!(status.join(), 0);
    assert_eq!(values(&map), [2, 1, 1]);
}

#[test]
fn slots_of_dead_threads_are_used_again_before_the_table_grows() {
    let dir = Dir::new();
    let map = Arc::new(counter(&dir));
    let status = forked(|| {
        let table = table(&dir, slots::MAX_SLOTS);
        bump(&map);
        for _ in 0..200 {
            let map = Arc::clone(&map);
            let thread = std::thread::spawn(move || {
                bump(&map);
                std::fs::read_link("/proc/thread-self").expect("a thread")
            });
            let thread = std::path::Path::new("/proc").join(thread.join().expect("no panic"));
            // The kernel has it for some time after it was joined.
            while thread.exists() {
                std::thread::yield_now();
            }
        }
        table.highest() as i32
    });
    assert_eq!(status.join(), 2, "slots for two threads at a time");
    assert_eq!(values(&map).iter().sum::<u64>(), 201);
}

#[test]
fn a_holder_of_the_shared_slot_that_is_killed_is_replaced() {
    let dir = Dir::new();
    let table = SlotTable::with_slots(dir.path(), 1).expect("a table");
    let map = counter(&dir);
    let inside = dir.make(&MapDef::new(MapType::Array, 4, 8, 1));
    for round in 1..=u64::from(support::rounds(20, 1000)) {
        let victim = forked(|| {
            table.install();
            let _inside = slots::enter();
            inside.update(&[0; 4], &round.to_ne_bytes(), 0).expect("in range");
            loop {
                std::hint::spin_loop();
            }
        });
        while words(&inside.lookup(&[0; 4]).expect("in range")) != [round] {
            std::thread::yield_now();
        }
        victim.kill();
        // Still a zombie here: the lock must pass on all the same.
        let heir = forked(|| {
            table.install();
            bump(&map);
            0
        });
        assert_eq!(heir.join(), 0);
        assert_eq!(victim.join(), -9);
    }
    assert_eq!(values(&map)[0], u64::from(support::rounds(20, 1000)));
}

#[test]
fn without_a_table_no_program_may_run() {
    assert_eq!(forked(|| i32::from(slots::enter().is_refused())).join(), 1);
}

#[test]
fn compiled_code_finds_the_slot_number_in_its_thread() {
    let dir = Dir::new();
    let status = forked(|| {
        table(&dir, slots::MAX_SLOTS);
        let threads: Vec<_> = (0..5)
            .map(|_| {
                std::thread::spawn(|| {
                    let entered = slots::enter();
                    let seen: u64;
                    // SAFETY: reads the word that `tls_offset` names.
                    unsafe {
                        std::arch::asm!("mov {v}, qword ptr fs:[{o}]", v = out(reg) seen, o = in(reg) i64::from(slots::tls_offset()))
                    };
                    assert_eq!(seen, u64::from(slots::current()));
                    slots::exit(entered);
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().expect("no panic"));
        0
    });
    assert_eq!(status.join(), 0);
}
