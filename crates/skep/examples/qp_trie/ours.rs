//! The trie.

use std::hint::black_box;
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use skep::isa::map::DynptrUser;
use skep::isa::{MapFlags, MapType};
use skep::maps::MapDef;
use skep::maps::dump::batch;
use skep::{Map, QpTrie, Session};

use crate::rivals::sum;
use crate::sets::Keys;
use crate::{Orders, Result, Table, best, fill, measure, program, tell};

/// Keys looked up together.
const MANY: usize = 16;

struct Trie<'m> {
    map: &'m Map,
    /// What walks fill: 64 KiB.
    rows: std::cell::RefCell<Vec<u8>>,
}

impl Table for Trie<'_> {
    fn insert(&mut self, key: &[u8], value: u32) {
        self.map.update(key, &value.to_ne_bytes(), 0).expect("room for all");
    }

    #[inline]
    fn get(&self, key: &[u8]) -> Option<u32> {
        let mut value = [0; 4];
        self.map.lookup_into(key, &mut value, 0).ok().map(|()| u32::from_ne_bytes(value))
    }

    fn remove(&mut self, key: &[u8]) -> bool {
        self.map.delete(key).is_ok()
    }

    fn walk(&self) -> (usize, u64) {
        let (mut walk, mut rows) = (self.map.walk(), self.rows.borrow_mut());
        let mut all = (0, 0);
        loop {
            let n = walk.rows(&mut rows).expect("whole");
            if n == 0 {
                return all;
            }
            let value = |v: &[u8]| v.try_into().map_or(0, u32::from_ne_bytes);
            let part = sum(walk.elements(&rows, n).map(|(k, v)| (k, value(v))));
            all = (all.0 + part.0, all.1 + part.1);
        }
    }
}

/// Measures the trie with or without its cache.
pub fn run(orders: &Orders, cached: bool) -> Result<()> {
    let session = Session::scratch()?;
    let flags = MapFlags::NO_PREALLOC | if cached { 0 } else { MapFlags::NO_LEAF_CACHE };
    let def = MapDef::new(MapType::QpTrie, DynptrUser::SIZE, 4, orders.len() as u32)
        .extra(orders.file.longest() as u64)
        .flags(flags)
        .named("keys");
    {
        let map = session.create_map(&def)?;
        fill(&mut Trie { map: &map, rows: vec![].into() }, &orders.insert);
        let bytes = std::fs::metadata(map.file().path())?.blocks() * 512;
        println!("memory {}", bytes as f64 / orders.len() as f64);
    }
    {
        let map = session.create_map(&def)?;
        let rows = vec![0; (64 << 10).max(map.walk().element_size())];
        measure(&mut Trie { map: &map, rows: rows.into() }, orders);
        measure_iterator(&map, orders)?;
        measure_many(&map, orders);
        measure_writers(&map, orders);
    }
    program::run(&session, program::Maps::Trie { cached }, orders)
}

/// The library's iterator, which gives a key and a value at a time, and its visits, which lend them.
fn measure_iterator(map: &Map, orders: &Orders) -> Result<()> {
    let trie: QpTrie<[u8], u32> = map.typed()?;
    let took = best(orders, || {
        let all = trie.iter().map(|entry| entry.expect("nobody changes it"));
        let (n, total) = all.fold((0, 0), |(n, total), (key, value)| {
            (n + 1, total + key.len() as u64 + u64::from(value))
        });
        black_box(total);
        assert_eq!(n, orders.len());
    });
    tell("iterate", took, &orders.file);
    let took = best(orders, || {
        let (mut n, mut total) = (0, 0);
        let done = trie.visit(.., |key, value| {
            n += 1;
            total += key.len() as u64 + u64::from(value);
            ControlFlow::Continue(())
        });
        done.expect("nobody changes it");
        black_box(total);
        assert_eq!(n, orders.len());
    });
    tell("visit", took, &orders.file);
    Ok(())
}

/// Keys in cells, one behind another.
fn cells(map: &Map, keys: &Keys) -> Vec<u8> {
    let shape = map.key_shape();
    let mut cells = vec![0; keys.len() * shape.cell_size()];
    for (cell, key) in cells.chunks_mut(shape.cell_size()).zip(keys.iter()) {
        assert!(shape.write_cell(cell, key));
    }
    cells
}

fn measure_many(map: &Map, orders: &Orders) {
    for (operation, keys) in [("many-hit-random", &orders.lookup), ("many-hit-file", &orders.file)]
    {
        let cells = cells(map, keys);
        let (mut values, mut found) = ([0; 4 * MANY], [false; MANY]);
        let took = best(orders, || {
            let mut there = 0;
            for cells in cells.chunks(MANY * map.key_shape().cell_size()) {
                let n = cells.len() / map.key_shape().cell_size();
                let done = batch::lookup_keys(map, cells, &mut values[..4 * n], &mut found[..n]);
                there += done.expect("good sizes");
                black_box(&values);
            }
            assert_eq!(there, orders.len());
        });
        tell(operation, took, keys);
    }
}

/// Two threads with half of the keys each.
fn measure_writers(map: &Map, orders: &Orders) {
    let (mut insert, mut delete) = (Duration::MAX, Duration::MAX);
    let delete_all = |keys: &Keys, i: usize| map.delete(keys.get(i)).expect("there");
    two(&orders.delete, delete_all);
    for _ in 0..orders.passes() {
        insert = insert.min(two(&orders.insert, |keys, i| {
            map.update(keys.get(i), &(i as u32).to_ne_bytes(), 0).expect("room for all");
        }));
        delete = delete.min(two(&orders.delete, delete_all));
    }
    tell("insert-two", insert, &orders.insert);
    tell("delete-two", delete, &orders.delete);
}

/// Has two threads, each on a processor of its own, do something with half of the keys; from the
/// first that began to the last that ended.
fn two(keys: &Keys, each: impl Fn(&Keys, usize) + Sync) -> Duration {
    let ready = AtomicU32::new(0);
    let times: Vec<(Instant, Instant)> = std::thread::scope(|s| {
        let threads: Vec<_> = (0..2)
            .map(|t| {
                let (ready, each) = (&ready, &each);
                s.spawn(move || {
                    stay_on(t);
                    ready.fetch_add(1, Relaxed);
                    while ready.load(Relaxed) < 2 {
                        std::thread::yield_now();
                    }
                    let began = Instant::now();
                    let half = keys.len() / 2;
                    let mine = if t == 0 { 0..half } else { half..keys.len() };
                    mine.for_each(|i| each(keys, i));
                    (began, Instant::now())
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().expect("no panic")).collect()
    });
    times[0].1.max(times[1].1) - times[0].0.min(times[1].0)
}

/// Keeps the calling thread on one of the processors that it may use.
fn stay_on(n: usize) {
    let Ok(may) = sched_getaffinity(None) else { return };
    let all: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| may.is_set(*cpu)).collect();
    let mut one = CpuSet::new();
    one.set(all[n % all.len()]);
    sched_setaffinity(None, &one).ok();
}
