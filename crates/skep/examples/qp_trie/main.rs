//! One contestant of `cargo xtask bench qptrie`: a map of byte strings, and what its operations
//! take.
//!
//! ```text
//! qp_trie SIDE SET      a side of `SIDES`, a set of `sets::NAMES`
//! ```
//!
//! Output: a line `OPERATION NUMBER` each, nanoseconds of one key in the best of several passes over
//! all keys, or for `memory` bytes of one. Values have four bytes. Keys go in in one random order,
//! are looked up in another or in that of their file, and taken out in a third; a key that is missed
//! differs in one byte from one that is there. What is asked for lies one key behind another in the
//! order of asking, so it is in the cache as a program's own key is. Memory is that with all keys
//! in: of ours all that the file has, of the maps of Rust all heap blocks and their headers, of the
//! kernel's what it says (`memlock`) and all pages that it takes (`taken`).
//!
//! What begins with `program` is done by a BPF program (`benches/qptrie/bpf`), verified and compiled
//! by skep, or by the kernel and run by `BPF_PROG_TEST_RUN` (root): it goes through an array of keys
//! with `bpf_for_each_map_elem`, as the bench of Hou Tao's series did, and a run is timed from
//! outside. `padded` and `kernel` are hashes whose keys are as long as the longest, ours and the
//! kernel's; their programs come out of the same object.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "the result")]

mod kernel;
mod ours;
mod program;
mod rivals;
mod sets;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use sets::Keys;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// A map of one thread, or as used by one.
trait Table {
    fn insert(&mut self, key: &[u8], value: u32);
    fn get(&self, key: &[u8]) -> Option<u32>;
    /// Tells whether it was there.
    fn remove(&mut self, key: &[u8]) -> bool;
    /// Goes through all: how many, and a sum over their keys and values.
    fn walk(&self) -> (usize, u64);
}

/// A set of keys in all orders that are needed.
struct Orders {
    file: Keys,
    insert: Keys,
    lookup: Keys,
    miss: Keys,
    delete: Keys,
}

impl Orders {
    fn new(file: Keys) -> Self {
        Self {
            insert: file.shuffled(1),
            lookup: file.shuffled(2),
            miss: file.misses().shuffled(3),
            delete: file.shuffled(4),
            file,
        }
    }

    fn len(&self) -> usize {
        self.file.len()
    }

    /// Enough for the best to be one that nobody disturbed.
    fn passes(&self) -> usize {
        if self.len() > 500_000 { 3 } else { 7 }
    }
}

/// Prints a figure.
fn tell(operation: &str, total: Duration, keys: &Keys) {
    println!("{operation} {}", total.as_nanos() as f64 / keys.len() as f64);
}

fn timed(f: impl FnOnce()) -> Duration {
    let began = Instant::now();
    f();
    began.elapsed()
}

/// Times `f` over all keys as often as is enough; the shortest.
fn best(orders: &Orders, mut f: impl FnMut()) -> Duration {
    (0..orders.passes()).map(|_| timed(&mut f)).min().unwrap_or_default()
}

fn look_up(table: &impl Table, keys: &Keys, want: usize) {
    let mut found = 0;
    for key in keys.iter() {
        found += usize::from(std::hint::black_box(table.get(key)).is_some());
    }
    assert_eq!(found, want);
}

fn fill(table: &mut impl Table, keys: &Keys) {
    for (i, key) in (0..).zip(keys.iter()) {
        table.insert(key, i);
    }
}

/// All operations that every map has.
fn measure<T: Table>(table: &mut T, orders: &Orders) {
    let (mut insert, mut delete) = (Duration::MAX, Duration::MAX);
    for _ in 0..orders.passes() {
        insert = insert.min(timed(|| fill(table, &orders.insert)));
        delete = delete.min(timed(|| {
            for key in orders.delete.iter() {
                assert!(table.remove(key));
            }
        }));
    }
    tell("insert", insert, &orders.insert);
    tell("delete", delete, &orders.delete);
    fill(table, &orders.insert);
    let n = orders.len();
    tell("hit-random", best(orders, || look_up(table, &orders.lookup, n)), &orders.lookup);
    tell("hit-file", best(orders, || look_up(table, &orders.file, n)), &orders.file);
    tell("miss-random", best(orders, || look_up(table, &orders.miss, 0)), &orders.miss);
    let all = best(orders, || assert_eq!(std::hint::black_box(table.walk()).0, n));
    tell("walk", all, &orders.file);
}

const SIDES: [&str; 7] = ["skep", "uncached", "padded", "kernel", "hashbrown", "btreemap", "blart"];

fn run(side: &str, set: &str) -> Result<()> {
    let orders = Orders::new(sets::load(set)?);
    match side {
        "skep" => ours::run(&orders, true),
        "uncached" => ours::run(&orders, false),
        "padded" => program::run(&skep::Session::scratch()?, program::Maps::Padded, &orders),
        "kernel" => kernel::run(&orders),
        "hashbrown" => rivals::run::<rivals::Hashbrown>(&orders),
        "btreemap" => rivals::run::<rivals::BTree>(&orders),
        "blart" => rivals::run::<rivals::Blart>(&orders),
        _ => Err(format!("no side `{side}`; there are: {}", SIDES.join(" ")).into()),
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let done = match args.as_slice() {
        [side, set] => run(side, set),
        _ => Err("usage: qp_trie SIDE SET".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::from(2)
        }
    }
}
