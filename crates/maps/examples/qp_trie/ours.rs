//! The trie.

use std::hint::black_box;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use skep_isa::map::DynptrUser;
use skep_isa::{MapFlags, MapType};
use skep_maps::dump::batch;
use skep_maps::{Map, MapDef, ProgWalk, SlotTable, slots};

use crate::rivals::sum;
use crate::sets::Keys;
use crate::{Orders, Result, Table, best, fill, measure, tell};

/// Keys looked up together.
const MANY: usize = 16;
/// Lookups in a run of a program, as in one of the kernel's.
const RUN: usize = 256;

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
    let dir = PathBuf::from(format!("/dev/shm/skep-qp-trie-{}", std::process::id()));
    std::fs::create_dir_all(dir.join("maps"))?;
    let done = in_dir(&dir, orders, cached);
    std::fs::remove_dir_all(&dir)?;
    done
}

fn in_dir(dir: &std::path::Path, orders: &Orders, cached: bool) -> Result<()> {
    SlotTable::open_or_create(dir)?.install();
    let flags = MapFlags::NO_PREALLOC | if cached { 0 } else { MapFlags::NO_LEAF_CACHE };
    let def = MapDef::new(MapType::QpTrie, DynptrUser::SIZE, 4, orders.len() as u32)
        .extra(orders.file.longest() as u64)
        .flags(flags);
    {
        let map = Map::create(&dir.join("maps"), 1, &def)?;
        fill(&mut Trie { map: &map, rows: vec![].into() }, &orders.insert);
        let bytes = std::fs::metadata(map.file().path())?.blocks() * 512;
        println!("memory {}", bytes as f64 / orders.len() as f64);
    }
    let map = Map::create(&dir.join("maps"), 2, &def)?;
    let rows = vec![0; (64 << 10).max(map.walk().element_size())];
    measure(&mut Trie { map: &map, rows: rows.into() }, orders);
    measure_many(&map, orders);
    measure_programs(&map, orders);
    measure_writers(&map, orders);
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

/// As a program: lookups, and a walk over all elements.
fn measure_programs(map: &Map, orders: &Orders) {
    let size = map.key_shape().cell_size();
    for (operation, keys) in
        [("program-hit-random", &orders.lookup), ("program-hit-file", &orders.file)]
    {
        let cells = cells(map, keys);
        let took = best(orders, || {
            let mut found = 0;
            for run in cells.chunks(RUN * size) {
                let entered = slots::enter();
                for cell in run.chunks_exact(size) {
                    let length = cell.first_chunk().map_or(0, |n| u32::from_ne_bytes(*n));
                    let key =
                        DynptrUser { data: cell.as_ptr() as u64 + 4, size: length, reserved: 0 };
                    // SAFETY: a description of readable bytes.
                    let value = unsafe { map.prog_lookup((&raw const key).cast()) };
                    found += usize::from(!black_box(value).is_null());
                }
                slots::exit(entered);
            }
            assert_eq!(found, orders.len());
        });
        tell(operation, took, keys);
    }
    let took = best(orders, || {
        let (mut walk, mut n, mut total) = (ProgWalk::default(), 0, 0u64);
        let entered = slots::enter();
        // SAFETY: in a run; what is found is a description of a key and a value of four bytes.
        while let Some((key, value)) = unsafe { map.prog_next(&mut walk) } {
            n += 1;
            // SAFETY: as above; nobody changes the map.
            total += unsafe {
                u64::from((*key.cast::<DynptrUser>()).size)
                    + u64::from(value.cast::<u32>().read_unaligned())
            };
        }
        slots::exit(entered);
        black_box(total);
        assert_eq!(n, orders.len());
    });
    tell("program-walk", took, &orders.file);
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
