//! Maps without keys and maps of samples: queues, stacks, bloom filters, call stacks, perf events,
//! user ring buffers.

mod support;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Duration;

use skep_isa::MapType;
use skep_isa::map::update::{ANY, EXIST, NOEXIST};
use skep_maps::{Access, Map, MapDef, MapError};
use support::{Dir, Random, forked, rounds, words};

fn errno<T>(r: &Result<T, MapError>) -> i32 {
    r.as_ref().map_or_else(MapError::errno, |_| 0)
}

const BOTH: [MapType; 2] = [MapType::Queue, MapType::Stack];

#[test]
fn queues_and_stacks_are_the_model() {
    let dir = Dir::new();
    for t in BOTH {
        for (size, max) in [(8u32, 1u32), (4, 7), (20, 5)] {
            let map = dir.make(&MapDef::new(t, 0, size, max));
            let reader = Map::open(map.file().path(), Access::ReadOnly).expect("opens");
            let mut model: VecDeque<Vec<u8>> = VecDeque::new();
            let mut random = Random(u64::from(size));
            for _ in 0..3000 {
                let value: Vec<u8> = (0..size).map(|_| random.next() as u8).collect();
                let next = if t == MapType::Queue { model.front() } else { model.back() }.cloned();
                match random.below(8) {
                    0..=2 => {
                        let flags = [ANY, EXIST, NOEXIST, 4][random.below(4) as usize];
                        let full = model.len() == max as usize;
                        let want = match flags {
                            NOEXIST | 4 => 22,
                            ANY if full => 7,
                            _ => 0,
                        };
                        // A program and a user do the same.
                        let got = if random.below(2) == 0 {
                            errno(&map.update(&[], &value, flags))
                        } else {
                            // SAFETY: the value is whole.
                            unsafe { -map.prog_push(value.as_ptr(), flags) as i32 }
                        };
                        assert_eq!(got, want);
                        if want == 0 {
                            if full {
                                model.pop_front();
                            }
                            model.push_back(value);
                        }
                    }
                    3 | 4 => {
                        let mut out = vec![9; size as usize];
                        // SAFETY: the value is whole.
                        let r = unsafe { map.prog_pop(out.as_mut_ptr()) };
                        assert_eq!(r == 0, next.is_some());
                        assert_eq!(out, next.unwrap_or_else(|| vec![0; size as usize]));
                        if t == MapType::Queue {
                            model.pop_front()
                        } else {
                            model.pop_back()
                        };
                    }
                    5 => {
                        let mut out = vec![0; size as usize];
                        assert_eq!(
                            errno(&map.lookup_and_delete(&[], &mut out, 0)),
                            if next.is_some() { 0 } else { 2 }
                        );
                        assert!(next.is_none_or(|n| n == out));
                        if t == MapType::Queue {
                            model.pop_front()
                        } else {
                            model.pop_back()
                        };
                    }
                    6 => {
                        for m in [&map, &reader] {
                            assert_eq!(m.lookup(&[]).ok(), next);
                        }
                        let mut out = vec![0; size as usize];
                        // SAFETY: the value is whole.
                        assert_eq!(unsafe { map.prog_peek(out.as_mut_ptr()) } == 0, next.is_some());
                    }
                    _ => {
                        let mut want: Vec<_> = model.iter().cloned().collect();
                        if t == MapType::Stack {
                            want.reverse();
                        }
                        for m in [&map, &reader] {
                            assert_eq!(
                                m.iter().map(|e| e.expect("walks").1).collect::<Vec<_>>(),
                                want
                            );
                        }
                    }
                }
            }
        }
    }
}

/// What is pushed by some is popped by others, once each and whole.
#[test]
fn nothing_is_lost_or_doubled_between_processes() {
    let dir = Dir::new();
    let each = u64::from(rounds(2_000, 500_000));
    for t in BOTH {
        let map = dir.make(&MapDef::new(t, 0, 24, 50));
        let sums = dir.make(&MapDef::new(MapType::Array, 4, 8, 4));
        let done = dir.make(&MapDef::new(MapType::Array, 4, 8, 1));
        let children: Vec<_> = (0..4u64)
            .map(|c| {
                forked(|| {
                    let mut sum = 0u64;
                    if c < 2 {
                        for i in 0..each {
                            let n = c << 32 | i;
                            let value: Vec<u8> =
                                [n; 3].iter().flat_map(|w| w.to_ne_bytes()).collect();
                            while map.update(&[], &value, ANY).is_err() {
                                std::thread::yield_now();
                            }
                            sum += n;
                        }
                    } else {
                        let mut out = [0; 24];
                        loop {
                            let over = done.lookup(&[0; 4]).expect("there") != [0; 8];
                            match map.lookup_and_delete(&[], &mut out, 0) {
                                Ok(()) => {
                                    let w = words(&out);
                                    assert!(w.iter().all(|x| *x == w[0]), "torn: {w:?}");
                                    sum += w[0];
                                }
                                Err(e) if e.errno() == 2 && over => break,
                                Err(e) => assert_eq!(e.errno(), 2),
                            }
                        }
                    }
                    i32::from(
                        sums.update(&(c as u32).to_ne_bytes(), &sum.to_ne_bytes(), ANY).is_err(),
                    )
                })
            })
            .collect();
        for (i, c) in children.into_iter().enumerate() {
            assert_eq!(c.join(), 0);
            if i == 1 {
                done.update(&[0; 4], &[1; 8], ANY).expect("there");
            }
        }
        let s: Vec<u64> =
            (0..4u32).map(|i| words(&sums.lookup(&i.to_ne_bytes()).expect("there"))[0]).collect();
        assert_eq!(s[0].wrapping_add(s[1]), s[2].wrapping_add(s[3]), "{t}");
    }
}

#[test]
fn a_user_killed_anywhere_leaves_a_whole_queue() {
    let dir = Dir::new();
    for t in BOTH {
        let map = dir.make(&MapDef::new(t, 0, 32, 20));
        let mut random = Random(t as u64);
        for _ in 0..rounds(40, 1000) {
            let victims = [1u64, 2].map(|seed| {
                forked(|| {
                    let mut random = Random(seed);
                    loop {
                        let n = random.next();
                        let value: Vec<u8> = [n; 4].iter().flat_map(|w| w.to_ne_bytes()).collect();
                        match random.below(3) {
                            0 => drop(map.update(&[], &value, EXIST)),
                            1 => drop(map.update(&[], &value, ANY)),
                            _ => drop(map.lookup_and_delete(&[], &mut [0; 32], 0)),
                        }
                    }
                })
            });
            for _ in 0..random.below(40) * random.below(1_000) {
                std::hint::spin_loop();
            }
            victims.iter().for_each(support::Child::kill);
            for v in victims {
                assert_eq!(v.join(), -9);
            }
            let shown = map.iter().map(|e| e.expect("walks").1).collect::<Vec<_>>();
            let mut out = [0; 32];
            for want in &shown {
                map.lookup_and_delete(&[], &mut out, 0).expect("as shown");
                assert_eq!(out[..], want[..]);
                assert!(words(&out).iter().all(|w| *w == words(&out)[0]), "torn");
            }
            assert_eq!(errno(&map.lookup(&[])), 2);
            for i in 0..20u64 {
                map.update(&[], &[i as u8; 32], ANY).expect("room for all");
            }
            assert_eq!(errno(&map.update(&[], &[0; 32], ANY)), 7);
            for _ in 0..10 {
                map.lookup_and_delete(&[], &mut out, 0).expect("full");
            }
        }
    }
}

/// A program looks at the next value without a lock, while another thread writes over all of them:
/// never half of each.
#[test]
fn a_program_peeks_at_whole_values() {
    let dir = Dir::new();
    for (t, size) in BOTH.into_iter().zip([32usize, 13]) {
        let map = Arc::new(dir.make(&MapDef::new(t, 0, size as u32, 2)));
        let mut out = vec![0xff; size];
        // SAFETY: values have that many bytes.
        assert_eq!((unsafe { map.prog_peek(out.as_mut_ptr()) }, &out), (-2, &vec![0; size]));
        let over = Arc::new(AtomicBool::new(false));
        let writer = {
            let (map, over) = (Arc::clone(&map), Arc::clone(&over));
            std::thread::spawn(move || {
                for n in (1..=255u8).cycle().take_while(|_| !over.load(Relaxed)) {
                    // SAFETY: as above.
                    unsafe {
                        assert_eq!(map.prog_push(vec![n; size].as_ptr(), EXIST), 0);
                        if n % 4 == 0 {
                            assert_eq!(map.prog_pop(vec![0; size].as_mut_ptr()), 0);
                        }
                    }
                }
            })
        };
        let (mut last, mut seen) = (0, 0);
        while seen < rounds(200, 100_000) {
            // SAFETY: as above.
            if unsafe { map.prog_peek(out.as_mut_ptr()) } == 0 {
                assert!(out[0] != 0 && out.iter().all(|b| *b == out[0]), "torn: {out:?}");
                seen += u32::from(out[0] != last);
                last = out[0];
            }
        }
        over.store(true, Relaxed);
        writer.join().expect("no panic");
    }
}

#[test]
fn a_bloom_filter_never_denies_what_was_pushed_and_seldom_claims_what_was_not() {
    let dir = Dir::new();
    for (size, n, functions) in [(4u32, 1000u32, 0u64), (8, 1000, 3), (13, 500, 15), (100, 64, 1)] {
        let map = dir.make(&MapDef::new(MapType::BloomFilter, 0, size, n).extra(functions));
        let value = |i: u32| -> Vec<u8> {
            i.to_ne_bytes().into_iter().cycle().take(size as usize).collect()
        };
        let other = Map::open(map.file().path(), Access::ReadOnly).expect("opens");
        for i in 0..n {
            // SAFETY: the value is whole.
            assert_eq!(unsafe { map.prog_push(value(i).as_ptr(), ANY) }, 0);
        }
        let may_hold = |i: u32| other.lookup_into(&[], &mut value(i), 0).is_ok();
        assert!((0..n).all(may_hold));
        let false_alarms = (n..n + 10_000).filter(|i| may_hold(*i)).count();
        assert!(
            false_alarms < if functions == 1 { 6000 } else { 1500 },
            "{false_alarms} of 10000, {functions} functions"
        );
        // SAFETY: the value is whole.
        assert_eq!(unsafe { map.prog_peek(value(0).as_mut_ptr()) }, 0);
        assert_eq!(errno(&map.delete(&[])), 95);
    }
}

#[test]
fn a_call_stack_has_one_number() {
    let dir = Dir::new();
    let map = dir.make(&MapDef::new(MapType::StackTrace, 4, 8 * 8, 1000));
    let stack =
        |n: u64| -> Vec<u64> { (0..1 + n % 8).map(|i| 0x7f00_0000_0000 + n * 64 + i).collect() };
    // SAFETY: the addresses are readable.
    let put = |s: &[u64], flags| unsafe { map.stack_id(s.as_ptr(), s.len() as u64, flags) };
    let mut seen = BTreeSet::new();
    let mut collisions = 0;
    for n in 0..300 {
        let id = put(&stack(n), 0);
        if id == -17 {
            collisions += 1;
            continue;
        }
        assert!((0..1024).contains(&id) && seen.insert(id), "{id}");
        assert_eq!((put(&stack(n), 0), put(&stack(n), 1 << 9)), (id, id));
        let mut want = stack(n);
        want.resize(8, 0);
        assert_eq!(words(&map.lookup(&(id as u32).to_ne_bytes()).expect("there")), want);
    }
    assert!(collisions < 80, "{collisions}");
    let walked: Vec<i64> = map
        .iter()
        .map(|e| i64::from(words(&[&e.expect("walks").0[..], &[0; 4]].concat())[0] as u32))
        .collect();
    assert_eq!(walked, seen.iter().copied().collect::<Vec<_>>());
    // Deeper than there is room for: the innermost count. Nothing: an error.
    let deep: Vec<u64> = (1..100).collect();
    assert_eq!(put(&deep, 1 << 10), put(&deep[..8], 1 << 10));
    assert_eq!(put(&[], 0), -14);
    // Replaced on demand.
    let small = dir.make(&MapDef::new(MapType::StackTrace, 4, 16, 1));
    // SAFETY: as above.
    let put = |s: &[u64], flags| unsafe { small.stack_id(s.as_ptr(), s.len() as u64, flags) };
    assert_eq!((put(&[1, 2], 0), put(&[3, 4], 0), put(&[3, 4], 1 << 10)), (0, -17, 0));
    assert_eq!(words(&small.lookup(&[0; 4]).expect("there")), [3, 4]);
    let mut last = [0; 16];
    small.lookup_and_delete(&[0; 4], &mut last, 0).expect("there");
    assert_eq!((words(&last), errno(&small.lookup(&[0; 4]))), (vec![3, 4], 2));
}

/// Stacks whose words are all the same, from several processes that are killed: readers see whole
/// ones.
#[test]
fn call_stacks_are_whole_whoever_dies() {
    let dir = Dir::new();
    let map = dir.make(&MapDef::new(MapType::StackTrace, 4, 8 * 6, 4));
    let mut random = Random(1);
    for _ in 0..rounds(30, 1000) {
        let victims = [1u64, 2].map(|seed| {
            forked(|| {
                let mut random = Random(seed);
                loop {
                    let (n, len) = (random.next() | 1, 1 + random.below(6));
                    // SAFETY: six words are readable.
                    let id = unsafe { map.stack_id([n; 6].as_ptr(), len, 1 << 10) };
                    assert!((0..4).contains(&id), "{id}");
                }
            })
        });
        for _ in 0..random.below(300) {
            for i in 0..4u32 {
                if let Ok(v) = map.lookup(&i.to_ne_bytes()) {
                    let w = words(&v);
                    assert!(w.iter().all(|x| *x == w[0] || *x == 0) && w[0] != 0, "torn: {w:x?}");
                }
            }
        }
        victims.iter().for_each(support::Child::kill);
        for v in victims {
            assert_eq!(v.join(), -9);
        }
        // SAFETY: one word is readable.
        let id = unsafe { map.stack_id([7u64].as_ptr(), 1, 1 << 10) };
        assert!((0..4).contains(&id), "locks pass on");
    }
}

#[test]
fn perf_samples_come_whole_by_processor_and_losses_are_counted() {
    let dir = Dir::new();
    let map = dir.make(&MapDef::new(MapType::PerfEventArray, 4, 4, 3));
    // SAFETY: both parts are readable.
    let put = |cpu, a: &[u8], b: &[u8]| unsafe {
        map.perf_output(cpu, [(a.as_ptr(), a.len() as u64), (b.as_ptr(), b.len() as u64)])
    };
    assert_eq!((put(0, b"x", b""), put(3, b"x", b"")), (-2, -7), "nobody reads; no such ring");
    let mut reader = map.perf_reader().expect("the first");
    assert_eq!(errno(&map.perf_reader().map(drop)), 16, "one reader at a time");
    assert!(!reader.wait(Duration::ZERO));
    // Many times around the ring, in two parts of any length.
    let mut random = Random(5);
    let mut want: Vec<VecDeque<Vec<u8>>> = vec![VecDeque::new(); 3];
    let mut lost = [0u64; 3];
    for step in 0..rounds(3000, 300_000) {
        let cpu = random.below(3) as u32;
        let sample: Vec<u8> =
            (0..1 + random.below(3000)).map(|i| (step as u8).wrapping_add(i as u8)).collect();
        let (a, b) = sample.split_at(random.below(sample.len() as u64 + 1) as usize);
        match put(cpu, a, b) {
            0 => want[cpu as usize].push_back(sample),
            r => {
                assert_eq!(r, -28);
                lost[cpu as usize] += 1;
            }
        }
        // The reader falls behind now and then.
        if step % 1200 > 900 {
            while let Some((cpu, got)) = reader.next_record().expect("not damaged") {
                assert_eq!(got, want[cpu as usize].pop_front().expect("was put in"));
            }
        }
    }
    assert!(lost.iter().any(|n| *n > 0), "{lost:?}");
    assert_eq!(reader.lost().collect::<Vec<_>>(), lost);
    drop(reader);
    // What is left waits for another process.
    let left: usize = want.iter().map(VecDeque::len).sum();
    let path = map.file().path().to_owned();
    let child = forked(|| {
        let map = Map::open(&path, Access::ReadWrite).expect("opens");
        let mut reader = map.perf_reader().expect("free");
        let mut n = 0;
        while reader.next_record().expect("not damaged").is_some() {
            n += 1;
        }
        i32::from(n != left)
    });
    assert_eq!(child.join(), 0);
}

#[test]
fn a_perf_reader_wakes_up_for_samples_of_any_ring_and_any_process() {
    let dir = Dir::new();
    let map = dir.make(&MapDef::new(MapType::PerfEventArray, 4, 4, 4));
    let mut reader = map.perf_reader().expect("the first");
    let total = u64::from(rounds(400, 100_000));
    let children: Vec<_> = (0..4u32)
        .map(|cpu| {
            forked(|| {
                for i in 0..total {
                    let sample = [u64::from(cpu), i];
                    // SAFETY: the sample is readable.
                    while unsafe {
                        map.perf_output(cpu, [(sample.as_ptr().cast(), 16), (std::ptr::null(), 0)])
                    } != 0
                    {
                        std::thread::yield_now();
                    }
                }
                0
            })
        })
        .collect();
    let mut next = [0u64; 4];
    while next.iter().sum::<u64>() < 4 * total {
        assert!(reader.wait(Duration::from_secs(300)), "{next:?}");
        while let Some((cpu, sample)) = reader.next_record().expect("not damaged") {
            assert_eq!(words(sample), [u64::from(cpu), next[cpu as usize]]);
            next[cpu as usize] += 1;
        }
    }
    for c in children {
        assert_eq!(c.join(), 0);
    }
}

#[test]
fn programs_drain_what_users_put_in() {
    let dir = Dir::new();
    let map = dir.make(&MapDef::new(MapType::UserRingbuf, 0, 0, 4096));
    assert_eq!(map.user_ringbuf_drain().map(|mut d| d.next_sample()), Ok(Err(-61)));
    let mut random = Random(3);
    let mut model: VecDeque<Vec<u8>> = VecDeque::new();
    for step in 0..5000u32 {
        let sample: Vec<u8> =
            (0..random.below(600)).map(|i| step.wrapping_add(i as u32) as u8).collect();
        match map.user_ringbuf_output(&sample) {
            Ok(()) => model.push_back(sample),
            Err(e) => assert_eq!(e.errno(), 7),
        }
        if random.below(8) == 0 {
            let mut drain = map.user_ringbuf_drain().expect("free");
            assert_eq!(map.user_ringbuf_drain().err(), Some(-16), "one at a time");
            for _ in 0..random.below(8) {
                match drain.next_sample() {
                    Ok((at, len)) => {
                        // SAFETY: the sample is in the ring until the next one is asked for.
                        let got = unsafe { std::slice::from_raw_parts(at, len as usize) };
                        assert_eq!(got, model.pop_front().expect("was put in"));
                    }
                    Err(e) => assert_eq!((e, model.len()), (-61, 0)),
                }
            }
        }
    }
    assert_eq!(errno(&map.user_ringbuf_output(&[0; 4096])), 7);
    // A program that died while draining does not keep others from it.
    let child = forked(|| {
        let drain = map.user_ringbuf_drain().expect("free");
        std::mem::forget(drain);
        0
    });
    assert_eq!(child.join(), 0);
    assert!(map.user_ringbuf_drain().is_ok());
}

/// Maps of samples, each with one ring in use.
const RINGS: [(MapType, u32, u32); 3] = [
    (MapType::Ringbuf, 0, 1 << 13),
    (MapType::UserRingbuf, 0, 1 << 13),
    (MapType::PerfEventArray, 4, 1),
];

/// Puts a number in; `false` when there is no room.
fn put(map: &Map, n: u64) -> bool {
    let sample = n.to_ne_bytes();
    match map.def().map_type {
        // SAFETY: eight bytes are readable.
        MapType::Ringbuf => unsafe { map.ringbuf_output(sample.as_ptr(), 8, 0) == 0 },
        // SAFETY: as above; an empty part is none.
        MapType::PerfEventArray => unsafe {
            map.perf_output(0, [(sample.as_ptr(), 8), (std::ptr::null(), 0)]) == 0
        },
        _ => map.user_ringbuf_output(&sample).is_ok(),
    }
}

/// Gives what is in the map to `each`, until there is nothing or it has had `most`.
fn get(map: &Map, most: u64, mut each: impl FnMut(u64)) {
    let one = |sample: &[u8]| words(sample)[0];
    match map.def().map_type {
        MapType::Ringbuf => {
            let mut consumer = map.consumer().expect("free");
            (0..most)
                .map_while(|_| consumer.next_record().expect("not damaged").map(one))
                .for_each(&mut each);
        }
        MapType::PerfEventArray => {
            let mut reader = map.perf_reader().expect("free");
            (0..most)
                .map_while(|_| {
                    reader.next_record().expect("not damaged").map(|(_, sample)| one(sample))
                })
                .for_each(&mut each);
        }
        _ => {
            let mut drain = map.user_ringbuf_drain().expect("free");
            for _ in 0..most {
                match drain.next_sample() {
                    Ok((p, len)) => {
                        // SAFETY: the sample lies there until the next call.
                        let sample = unsafe { std::slice::from_raw_parts(p, len as usize) };
                        each(one(sample))
                    }
                    // Nothing, or not finished.
                    Err(e) => return assert!([-61, -11].contains(&e), "{e}"),
                }
            }
        }
    }
}

/// A number that all processes see.
fn shared(map: &Map) -> &AtomicU64 {
    // SAFETY: value 0 of an array stays mapped as long as the map.
    unsafe { AtomicU64::from_ptr(map.prog_lookup([0u8; 4].as_ptr()).cast()) }
}

#[test]
fn what_a_killed_producer_had_put_in_comes_out() {
    let dir = Dir::new();
    let told = dir.make(&MapDef::new(MapType::Array, 4, 8, 1));
    let told = shared(&told);
    for (t, key, entries) in RINGS {
        let map = dir.make(&MapDef::new(t, key, key, entries));
        get(&map, 0, |_| {});
        told.store(0, SeqCst);
        let (mut next, mut random) = (0u64, Random(11));
        for round in 0..rounds(25, 1000) {
            let victim = forked(|| {
                for n in told.load(SeqCst).. {
                    while !put(&map, n) {
                        std::hint::spin_loop();
                    }
                    told.store(n + 1, SeqCst);
                }
                0
            });
            let take = |n: u64, next: &mut u64| {
                assert_eq!(n, *next, "{t}, round {round}");
                *next += 1;
            };
            while told.load(SeqCst) == next {
                std::thread::yield_now();
            }
            for _ in 0..random.below(30) {
                get(&map, random.below(3000), |n| take(n, &mut next));
            }
            victim.kill();
            assert_eq!(victim.join(), -9);
            get(&map, u64::MAX, |n| take(n, &mut next));
            // It may have died before it said so.
            let said = told.load(SeqCst);
            assert!(
                next == said || next == said + 1,
                "{t}, round {round}: {next} came, {said} were put in"
            );
            told.store(next, SeqCst);
        }
    }
}

#[test]
fn what_a_killed_consumer_left_comes_out() {
    let dir = Dir::new();
    let seen = dir.make(&MapDef::new(MapType::Array, 4, 8, 1));
    let seen = shared(&seen);
    for (t, key, entries) in RINGS {
        let map = dir.make(&MapDef::new(t, key, key, entries));
        get(&map, 0, |_| {});
        let (mut next, mut random) = (1u64, Random(12));
        for round in 0..rounds(25, 1000) {
            let first = next;
            seen.store(first - 1, SeqCst);
            let victim = forked(|| {
                loop {
                    get(&map, u64::MAX, |n| seen.store(n, SeqCst));
                }
            });
            // Until it was at work.
            let least = random.below(5000);
            while seen.load(SeqCst) < first + least {
                next += u64::from(put(&map, next));
            }
            victim.kill();
            assert_eq!(victim.join(), -9);
            let said = seen.load(SeqCst);
            let mut expected = None;
            get(&map, u64::MAX, |n| {
                // A drained sample is there until the next is asked for; a record is copied and
                // gone before it is seen.
                let begins = said..=said + 2;
                assert!(
                    expected.map_or(begins.contains(&n), |e| n == e),
                    "{t}, round {round}: {n} after {said}, {expected:?}"
                );
                expected = Some(n + 1);
            });
            // None is left when all but the one in hand were seen.
            assert!(
                expected.map_or(said + 2 >= next, |e| e == next),
                "{t}, round {round}: {expected:?}, {next} would be next"
            );
        }
    }
}
