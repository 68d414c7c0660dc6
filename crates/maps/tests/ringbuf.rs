//! The ring buffer: the kernel's rules for room, order over many producers, wake-ups, and producers
//! that die.

mod support;

use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use skep_isa::MapType;
use skep_maps::{Access, Consumer, Map, MapDef, MapError};
use support::{Dir, Random, forked, rounds, words};

const PATIENCE: Duration = Duration::from_secs(300);

fn ring(dir: &Dir, size: u32) -> Map {
    dir.make(&MapDef::new(MapType::Ringbuf, 0, 0, size).named("events"))
}

fn errno<T: std::fmt::Debug>(r: Result<T, MapError>) -> i32 {
    r.expect_err("refused").errno()
}

fn output(map: &Map, sample: &[u8]) -> i64 {
    // SAFETY: a slice is readable.
    unsafe { map.ringbuf_output(sample.as_ptr(), sample.len() as u64, 0) }
}

fn drain(consumer: &mut Consumer) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    while let Some(r) = consumer.next_record().expect("whole records") {
        all.push(r.to_vec());
    }
    all
}

#[test]
fn definitions_and_map_operations_are_refused_as_the_kernel_does() {
    let dir = Dir::new();
    for (k, v, n) in [(4, 0, 4096), (0, 4, 4096), (0, 0, 0), (0, 0, 2048), (0, 0, 12288)] {
        assert_eq!(errno(dir.create(&MapDef::new(MapType::Ringbuf, k, v, n))), 22, "{k} {v} {n}");
    }
    let map = ring(&dir, 4096);
    assert_eq!(errno(map.lookup(&[])), 524);
    assert_eq!(errno(map.update(&[], &[], 0)), 524);
    assert_eq!(errno(map.delete(&[])), 524);
    assert_eq!(errno(map.next_key(None)), 524);
    assert!(map.iter().next().is_some_and(|e| e.is_err()));
    let array = dir.make(&MapDef::new(MapType::Array, 4, 4, 1));
    assert_eq!(errno(array.consumer()), 22);
    assert!(array.ringbuf_reserve(8, 0).is_null());
}

/// A program submits an address and nothing else: it is found among any number of rings, also where
/// others come and go.
#[test]
fn any_number_of_rings_is_open_at_once() {
    const MANY: usize = 300;
    let dir = Dir::new();
    let rings: Vec<Map> = (0..MANY).map(|_| ring(&dir, 4096)).collect();
    let submit = |map: &Map, n: u64| {
        let p = map.ringbuf_reserve(8, 0);
        assert!(!p.is_null());
        // SAFETY: eight bytes were reserved, and are given over once.
        unsafe {
            p.cast::<u64>().write_volatile(n);
            Map::ringbuf_submit(p, 0);
        }
    };
    rings.iter().zip(0..).for_each(|(map, n)| submit(map, n));
    for (map, n) in rings.iter().zip(0u64..) {
        assert_eq!(drain(&mut map.consumer().expect("none yet")), [n.to_ne_bytes()]);
    }
    let last = rings.last().expect("many");
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        let _stop = skep_testkit::run::SetOnDrop(&stop);
        s.spawn(|| {
            while !stop.load(Relaxed) {
                let other = dir.make(&MapDef::new(MapType::Ringbuf, 0, 0, 4096));
                submit(&other, 1);
            }
        });
        let mut consumer = last.consumer().expect("none any more");
        for n in 0..rounds(2_000, 200_000) as u64 {
            submit(last, n);
            assert_eq!(drain(&mut consumer), [n.to_ne_bytes()]);
        }
    });
}

#[test]
fn room_is_what_the_kernel_gives() {
    let dir = Dir::new();
    let map = ring(&dir, 4096);
    // Four records of 1024 would fill the ring wholly, which looks like an empty one.
    for _ in 0..3 {
        assert_eq!(output(&map, &[1; 1016]), 0);
    }
    assert_eq!(output(&map, &[1; 1016]), -11);
    assert_eq!(output(&map, &[1; 1008]), 0);
    assert_eq!(output(&map, &[]), -11);
    assert_eq!([0, 1, 2, 3, 9].map(|q| map.ringbuf_query(q)), [4088, 4096, 0, 4088, 0]);
    let mut consumer = map.consumer().expect("none yet");
    assert_eq!(
        drain(&mut consumer).iter().map(Vec::len).collect::<Vec<_>>(),
        [1016, 1016, 1016, 1008]
    );
    assert_eq!([0, 2].map(|q| map.ringbuf_query(q)), [0, 4088]);
    assert!(map.ringbuf_reserve(4096, 0).is_null(), "larger than the ring");
    assert!(map.ringbuf_reserve(u64::MAX, 0).is_null());
    assert!(map.ringbuf_reserve(u64::MAX - 7, 0).is_null());
    assert!(map.ringbuf_reserve(8, 1).is_null(), "no flags are known");
    // SAFETY: a slice is readable.
    assert_eq!(unsafe { map.ringbuf_output([0].as_ptr(), 1, 4) }, -22);
}

#[test]
fn samples_come_whole_and_in_order_over_every_wrap() {
    let dir = Dir::new();
    let map = ring(&dir, 4096);
    let mut consumer = map.consumer().expect("none yet");
    let mut random = Random(1);
    let mut sent = std::collections::VecDeque::new();
    for _ in 0..20_000 {
        if random.below(3) < 2 {
            let sample: Vec<u8> = (0..random.below(600)).map(|_| random.next() as u8).collect();
            match random.below(4) {
                0 => {
                    let p = map.ringbuf_reserve(sample.len() as u64, 0);
                    if !p.is_null() {
                        // SAFETY: reserved above, or in no ring.
                        unsafe { Map::ringbuf_discard(p, 0) };
                    }
                }
                1 => {
                    let p = map.ringbuf_reserve(sample.len() as u64, 0);
                    if !p.is_null() {
                        assert_eq!(p as u64 % 8, 0);
                        // SAFETY: the record was reserved with this size; it is contiguous, also
                        // across the end.
                        unsafe { p.copy_from_nonoverlapping(sample.as_ptr(), sample.len()) };
                        // SAFETY: reserved above, or in no ring.
                        unsafe { Map::ringbuf_submit(p, 0) };
                        sent.push_back(sample);
                    }
                }
                _ => {
                    if output(&map, &sample) == 0 {
                        sent.push_back(sample);
                    }
                }
            }
        } else if let Some(got) = consumer.next_record().expect("whole") {
            assert_eq!(Some(got.to_vec()), sent.pop_front());
        }
    }
    assert_eq!(drain(&mut consumer), Vec::from(sent));
}

#[test]
fn a_sample_not_yet_submitted_holds_up_those_behind_it() {
    let dir = Dir::new();
    let map = ring(&dir, 4096);
    let mut consumer = map.consumer().expect("none yet");
    let first = map.ringbuf_reserve(8, 0);
    assert_eq!(output(&map, b"second"), 0);
    assert_eq!(consumer.next_record().expect("whole"), None);
    assert!(!consumer.wait(Duration::from_millis(1)));
    // SAFETY: eight bytes were reserved.
    unsafe { first.cast::<u64>().write_volatile(1) };
    // SAFETY: reserved above, or in no ring.
    unsafe { Map::ringbuf_submit(first, 0) };
    assert_eq!(drain(&mut consumer), [&1u64.to_ne_bytes()[..], b"second"]);
    // SAFETY: reserved above, or in no ring.
    unsafe { Map::ringbuf_submit(std::ptr::null_mut(), 0) };
    // SAFETY: reserved above, or in no ring.
    unsafe { Map::ringbuf_discard(8 as *mut u8, 0) };
}

#[test]
fn no_record_is_written_over_one_that_is_not_finished_whatever_the_consumer_says() {
    let dir = Dir::new();
    let map = ring(&dir, 4096);
    let file = std::fs::OpenOptions::new().write(true).open(map.file().path()).expect("writable");
    // The consumer's position is the first word of the file.
    let says = |position: u64| file.write_all_at(&position.to_ne_bytes(), 0).expect("there");
    let mut begin = 0;
    for round in 0..200u64 {
        // Some rounds begin behind records that were finished at once, some behind none.
        for _ in 0..round % 5 {
            assert_eq!(output(&map, &[1; 40]), 0);
            begin += 48;
        }
        says(begin);
        let unfinished = map.ringbuf_reserve(8, 0);
        assert!(!unfinished.is_null());
        let mut put = 0;
        while put < 100 && output(&map, &[2; 64]) == 0 {
            put += 1;
            says(map.ringbuf_query(3));
        }
        assert_eq!(put, (4095 - 16) / 72, "round {round}");
        // SAFETY: eight bytes were reserved.
        unsafe { unfinished.cast::<u64>().write_volatile(round) };
        // SAFETY: reserved above, or in no ring.
        unsafe { Map::ringbuf_submit(unfinished, 0) };
        says(begin);
        let all = drain(&mut map.consumer().expect("none"));
        assert_eq!((all[0].as_slice(), all.len()), (&round.to_ne_bytes()[..], 1 + put));
        assert!(all[1..].iter().all(|r| r == &[2; 64]));
        begin += 16 + 72 * put as u64;
    }
}

#[test]
fn many_producers_in_many_processes_lose_nothing_and_keep_their_order() {
    let dir = Dir::new();
    let map = Arc::new(ring(&dir, 1 << 16));
    let each = u64::from(rounds(20_000, 1_000_000));
    let children: Vec<_> = (0..3u64)
        .map(|c| {
            let map = Arc::clone(&map);
            forked(move || {
                let threads: Vec<_> = (0..2u64)
                    .map(|t| {
                        let map = Arc::clone(&map);
                        std::thread::spawn(move || {
                            let mut random = Random(c * 2 + t);
                            for i in 0..each {
                                let extra = random.below(5) as usize;
                                let sample: Vec<u8> = [c * 2 + t, i]
                                    .into_iter()
                                    .chain((0..extra as u64).map(|e| e ^ i))
                                    .flat_map(u64::to_ne_bytes)
                                    .collect();
                                while output(&map, &sample) != 0 {
                                    std::thread::yield_now();
                                }
                            }
                        })
                    })
                    .collect();
                i32::from(threads.into_iter().any(|t| t.join().is_err()))
            })
        })
        .collect();
    let mut consumer = map.consumer().expect("none yet");
    let mut next = [0; 6];
    while next.iter().sum::<u64>() < 6 * each {
        assert!(consumer.wait(PATIENCE), "all stand still at {next:?}");
        while let Some(r) = consumer.next_record().expect("whole") {
            let w = words(r);
            assert_eq!(w[1], next[w[0] as usize], "producer {}", w[0]);
            assert!(w[2..].iter().enumerate().all(|(e, v)| *v == e as u64 ^ w[1]));
            next[w[0] as usize] += 1;
        }
    }
    for c in children {
        assert_eq!(c.join(), 0);
    }
    assert_eq!(next, [each; 6]);
    assert_eq!(map.ringbuf_query(0), 0);
}

#[test]
fn a_short_sample_is_there_as_a_whole_or_not_at_all() {
    // Who copies a short sample in may die anywhere: what is left is whole records, and not one
    // that is to be skipped.
    let dir = Dir::new();
    let map = ring(&dir, 1 << 14);
    let mut consumer = map.consumer().expect("none yet");
    let mut random = Random(11);
    for round in 0..u64::from(rounds(200, 3000)) {
        let victim = forked(|| {
            loop {
                output(&map, &[7; 160]);
            }
        });
        for _ in 0..random.below(300) {
            while let Some(r) = consumer.next_record().expect("whole") {
                assert_eq!(r, [7; 160]);
            }
        }
        victim.kill();
        assert_eq!(victim.join(), -9);
        assert!(map.ringbuf_query(0).is_multiple_of(168));
        let left = map.ringbuf_query(0) / 168;
        assert_eq!(drain(&mut consumer), vec![vec![7; 160]; left as usize], "round {round}");
        // The lock that it may have held is free again.
        assert_eq!(output(&map, b"after"), 0);
        assert_eq!(drain(&mut consumer), [b"after"]);
    }
}

#[test]
fn a_producer_killed_anywhere_holds_nobody_up() {
    let dir = Dir::new();
    let map = ring(&dir, 1 << 14);
    let mut consumer = map.consumer().expect("none yet");
    let mut random = Random(9);
    for round in 0..u64::from(rounds(200, 3000)) {
        let victim = forked(|| {
            loop {
                let p = map.ringbuf_reserve(16, 0);
                if !p.is_null() {
                    // SAFETY: sixteen bytes were reserved.
                    unsafe { p.cast::<[u64; 2]>().write_volatile([7, 7]) };
                    // SAFETY: reserved above, or in no ring.
                    unsafe { Map::ringbuf_submit(p, 0) };
                }
            }
        });
        for _ in 0..random.below(300) {
            while let Some(r) = consumer.next_record().expect("whole") {
                assert_eq!(words(r), [7, 7]);
            }
        }
        victim.kill();
        if round % 2 == 0 {
            assert_eq!(victim.join(), -9);
            after_death(&map, &mut consumer, round);
        } else {
            after_death(&map, &mut consumer, round);
            assert_eq!(victim.join(), -9);
        }
    }
}

/// Another process can still get a record through, and everything before it is whole.
fn after_death(map: &Map, consumer: &mut Consumer, round: u64) {
    let mark = (1 << 32) + round;
    let sender = forked(|| {
        while output(map, &mark.to_ne_bytes()) != 0 {
            std::thread::yield_now();
        }
        0
    });
    loop {
        assert!(consumer.wait(PATIENCE), "held up for ever");
        match consumer.next_record().expect("whole").map(words) {
            Some(w) if w == [mark] => break,
            Some(w) => assert_eq!(w, [7, 7]),
            None => {}
        }
    }
    assert_eq!(sender.join(), 0);
}

#[test]
fn a_record_left_unfinished_by_a_dead_thread_is_skipped() {
    let dir = Dir::new();
    let map = ring(&dir, 4096);
    for bury_first in [true, false] {
        let victim = forked(|| {
            assert!(!map.ringbuf_reserve(2000, 0).is_null());
            0
        });
        let victim = if bury_first {
            assert_eq!(victim.join(), 0);
            None
        } else {
            Some(victim)
        };
        let mut consumer = map.consumer().expect("none now");
        while map.ringbuf_query(0) == 0 {
            std::thread::yield_now();
        }
        assert_eq!(output(&map, b"after"), 0);
        assert!(consumer.wait(PATIENCE));
        assert_eq!(drain(&mut consumer), [b"after"]);
        // Room is given back, too: the ring takes a record that needs nearly all of it.
        assert_eq!(output(&map, &[5; 4000]), 0);
        assert_eq!(drain(&mut consumer), [[5; 4000]]);
        if let Some(v) = victim {
            assert_eq!(v.join(), 0);
        }
    }
}

#[test]
fn there_is_one_consumer_and_its_death_makes_room_for_the_next() {
    let dir = Dir::new();
    let map = ring(&dir, 4096);
    assert_eq!(output(&map, b"kept"), 0);
    let first = map.consumer().expect("none yet");
    assert_eq!(errno(map.consumer()), 16);
    assert_eq!(forked(|| i32::from(map.consumer().is_err())).join(), 1, "nor in another process");
    drop(first);
    let child = forked(|| {
        std::mem::forget(map.consumer().expect("free again"));
        0
    });
    assert_eq!(child.join(), 0);
    let mut next = map.consumer().expect("the holder is dead");
    assert_eq!(drain(&mut next), [b"kept"]);
    let reader = Map::open(map.file().path(), Access::ReadOnly).expect("opens");
    assert_eq!(errno(reader.consumer()), 1);
    assert!(reader.ringbuf_reserve(8, 0).is_null());
}

#[test]
fn a_sleeping_consumer_is_woken() {
    let dir = Dir::new();
    let map = Arc::new(ring(&dir, 4096));
    let mut consumer = map.consumer().expect("none yet");
    for i in 0..u64::from(rounds(300, 10_000)) {
        let sender = {
            let map = Arc::clone(&map);
            std::thread::spawn(move || assert_eq!(output(&map, &i.to_ne_bytes()), 0))
        };
        assert!(consumer.wait(PATIENCE));
        assert_eq!(drain(&mut consumer), [i.to_ne_bytes()]);
        sender.join().expect("no panic");
    }
}
