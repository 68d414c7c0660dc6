//! What one operation on a map costs a program: `cargo run --release -p skep-maps --example speed`.
//!
//! Question: are lookups and updates as cheap as the kernel's (a few ns beside the cache misses)?
//! One thread, median of 15 rounds over keys in random order; figures include picking the key
//! (about 1 ns). `SKEP_SPEED_DIR` chooses the directory, /dev/shm by default.
#![allow(clippy::print_stdout, reason = "this is a program")]

use std::hint::black_box;
use std::path::PathBuf;
use std::time::Instant;

use skep_isa::MapType;
use skep_maps::{Map, MapDef, SlotTable, slots};

fn median(mut f: impl FnMut() -> u64) -> f64 {
    let mut all: Vec<f64> = (0..15)
        .map(|_| {
            let begin = Instant::now();
            let n = f();
            begin.elapsed().as_secs_f64() * 1e9 / n as f64
        })
        .collect();
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

fn row(what: &str, ns: f64) {
    println!("{what:<44} {ns:>8.1} ns");
}

fn keys(n: u64) -> Vec<u64> {
    let mut x = 88_172_645_463_325_252u64;
    let mut step = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x
    };
    let mut keys: Vec<u64> = (0..n).map(|i| i * 0x1_0001).collect();
    for i in (1..keys.len()).rev() {
        keys.swap(i, (step() % (i as u64 + 1)) as usize);
    }
    keys
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let base =
        std::env::var_os("SKEP_SPEED_DIR").map_or_else(|| PathBuf::from("/dev/shm"), PathBuf::from);
    let dir = base.join(format!("skep-speed-{}", std::process::id()));
    std::fs::create_dir_all(dir.join("maps"))?;
    let result = run(&dir);
    std::fs::remove_dir_all(&dir)?;
    result
}

fn run(dir: &std::path::Path) -> Result<(), Box<dyn std::error::Error>> {
    SlotTable::open_or_create(dir)?.install();
    let maps = dir.join("maps");
    let mut id = 0;
    let mut make = |def: &MapDef| {
        id += 1;
        Map::create(&maps, id, def)
    };
    row(
        "slots: enter and exit",
        median(|| {
            for _ in 0..1_000_000 {
                slots::exit(black_box(slots::enter()));
            }
            1_000_000
        }),
    );
    let entered = slots::enter();

    for map_type in [MapType::Array, MapType::PercpuArray] {
        let map = make(&MapDef::new(map_type, 4, 8, 1024))?;
        row(
            &format!("{map_type}: lookup"),
            median(|| {
                for i in 0..1_000_000u32 {
                    // SAFETY: a four-byte key.
                    black_box(unsafe {
                        map.prog_lookup((&raw const *black_box(&(i & 1023))).cast())
                    });
                }
                1_000_000
            }),
        );
    }
    for n in [1_000u64, 100_000, 1_000_000] {
        let map = make(&MapDef::new(MapType::Hash, 8, 8, n as u32))?;
        let keys = keys(n);
        let each = |f: &dyn Fn(*const u8)| {
            for k in &keys {
                f((&raw const *k).cast());
            }
            n
        };
        let zero = 0u64;
        let lookup = |k| {
            // SAFETY: keys and values have eight bytes.
            black_box(unsafe { map.prog_lookup(k) });
        };
        let update = |k| {
            // SAFETY: keys and values have eight bytes.
            black_box(unsafe { map.prog_update(k, (&raw const zero).cast(), 0) });
        };
        let delete = |k| {
            // SAFETY: keys and values have eight bytes.
            black_box(unsafe { map.prog_delete(k) });
        };
        row(&format!("hash {n}: lookup, empty map"), median(|| each(&lookup)));
        row(&format!("hash {n}: insert and delete"), median(|| each(&update) + each(&delete)));
        each(&update);
        row(&format!("hash {n}: lookup, hit"), median(|| each(&lookup)));
        row(&format!("hash {n}: overwrite"), median(|| each(&update)));
        let mut buf = vec![0; 16 * 5000];
        row(
            &format!("hash {n}: dump by 5000"),
            median(|| {
                let mut cursor = skep_maps::Cursor::default();
                while map.dump(&mut cursor, &mut buf).is_ok_and(|used| used > 0) {}
                n
            }),
        );
        let other = u64::MAX;
        row(
            &format!("hash {n}: insert into the full map"),
            median(|| {
                for _ in 0..100_000 {
                    // SAFETY: eight bytes each.
                    black_box(unsafe {
                        map.prog_update((&raw const other).cast(), (&raw const zero).cast(), 0)
                    });
                }
                100_000
            }),
        );
    }
    let map = make(&MapDef::new(MapType::Hash, 104, 8, 100_000))?;
    let long: Vec<[u8; 104]> = (0..100_000u32)
        .map(|i| {
            let mut k = [7; 104];
            k[..4].copy_from_slice(&i.to_ne_bytes());
            k
        })
        .collect();
    for k in &long {
        map.update(k, &[0; 8], 0)?;
    }
    row(
        "hash 100000, keys of 104 bytes: lookup, hit",
        median(|| {
            for k in &long {
                // SAFETY: 104 bytes.
                // SAFETY: keys and values have eight bytes.
                black_box(unsafe { map.prog_lookup(k.as_ptr()) });
            }
            100_000
        }),
    );
    let ring = make(&MapDef::new(MapType::Ringbuf, 0, 0, 1 << 20))?;
    let mut consumer = ring.consumer()?;
    for size in [16u64, 256] {
        let data = vec![1u8; size as usize];
        row(
            &format!("ringbuf: output {size} bytes"),
            median(|| {
                let n = 2_000;
                for _ in 0..n {
                    // SAFETY: `size` bytes.
                    black_box(unsafe { ring.ringbuf_output(data.as_ptr(), size, 0) });
                }
                consumer_skip(&mut consumer);
                n
            }),
        );
    }
    slots::exit(entered);
    Ok(())
}

/// Empties the ring; its cost is part of the row (a copy of each sample).
fn consumer_skip(consumer: &mut skep_maps::Consumer) {
    while consumer.next_record().is_ok_and(|r| r.is_some()) {}
}
