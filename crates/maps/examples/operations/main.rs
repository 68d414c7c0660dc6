//! One contestant of `cargo xtask bench maps`: one operation on one map type, by us or by the
//! kernel, and what it takes.
//!
//! ```text
//! operations SIDE CASE THREADS      skep, kernel, dashmap or hashbrown; the cases are those of `CASES`
//! operations memory SIDE CASE       bytes for each entry of a full map of the case; `taken` is what the kernel really takes
//! operations list [kernel|memory|rust]   the cases, those that the kernel can do here, with a figure for memory, with maps of Rust
//! ```
//!
//! Output: `measured NANOSECONDS` an operation, of the fastest of several passes over all keys,
//! with two threads of the third fastest. The kernel runs a BPF program that loops over the keys,
//! by `BPF_PROG_TEST_RUN`; we run the same loop compiled by rustc, with the function that the
//! helper calls. Both read keys from an array, in the same random order, so the figures have
//! picking the key in them (about a nanosecond). With two threads, each has half of the keys and a
//! processor of its own (left alone, the kernel often starts both on one, where they do not
//! meet), and both begin when both are there. Rings are emptied between the passes, but for the
//! case with a consumer at work: there the figure is the time from the first record's beginning
//! until the last one was read. A user's operations are the library's functions beside the kernel's
//! system calls.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "the result")]

mod kernel;
mod ours;
mod rivals;

use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use skep_isa::MapType;
use skep_isa::map::MapFlags;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// What is done with each key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Op {
    /// Looks keys up that are there, or, with `false`, are not.
    Lookup(bool),
    /// Stores values under keys that are there.
    Overwrite,
    /// Puts new keys in.
    Insert,
    /// Takes keys out.
    Delete,
    Push,
    Pop,
    Peek,
    /// Reserves records, fills and submits them.
    Reserve,
    /// Copies records in.
    Output,
    /// Reads records that are there.
    Consume,
    /// Copies records in while another thread reads them.
    Through,
    /// Finds the number of a call stack of eight addresses that is there.
    StackId,
    /// As a user: reads values, stores them, takes keys out.
    Read,
    Store,
    Remove,
    /// As a user: many keys a call.
    ReadMany,
    StoreMany,
    /// As a user: puts values into a queue or stack, takes them out.
    Append,
    Take,
}

/// One case.
struct Case {
    name: &'static str,
    map_type: MapType,
    key: u32,
    value: u32,
    /// Keys, a power of two.
    keys: u32,
    op: Op,
}

const fn case(
    name: &'static str,
    map_type: MapType,
    key: u32,
    value: u32,
    keys: u32,
    op: Op,
) -> Case {
    Case { name, map_type, key, value, keys, op }
}

/// The kernel waits for all programs, milliseconds, whenever a map of maps changes.
const FEW: u32 = 1 << 8;
const S: u32 = 1 << 10;
const K: u32 = 1 << 14;
const M: u32 = 1 << 18;
/// A million keys at random, beside maps of Rust.
const R: u32 = 1 << 20;
use MapType as T;
use Op::{
    Append, Consume, Delete, Insert, Lookup, Output, Overwrite, Peek, Pop, Push, Read, ReadMany,
    Remove, Reserve, StackId, Store, StoreMany, Take, Through,
};

#[rustfmt::skip]
const CASES: &[Case] = &[
    case("array lookup", T::Array, 4, 8, K, Lookup(true)),
    case("percpu_array lookup", T::PercpuArray, 4, 8, K, Lookup(true)),
    case("array update", T::Array, 4, 8, K, Overwrite),
    case("percpu_array update", T::PercpuArray, 4, 8, K, Overwrite),
    case("hash lookup hit, 8-byte keys, 16K", T::Hash, 8, 8, K, Lookup(true)),
    case("hash lookup miss, 8-byte keys, 16K", T::Hash, 8, 8, K, Lookup(false)),
    case("hash overwrite, 8-byte keys, 16K", T::Hash, 8, 8, K, Overwrite),
    case("hash insert, 8-byte keys, 16K", T::Hash, 8, 8, K, Insert),
    case("hash delete, 8-byte keys, 16K", T::Hash, 8, 8, K, Delete),
    case("hash lookup hit, 8-byte keys, 256K", T::Hash, 8, 8, M, Lookup(true)),
    case("hash lookup miss, 8-byte keys, 256K", T::Hash, 8, 8, M, Lookup(false)),
    case("hash overwrite, 8-byte keys, 256K", T::Hash, 8, 8, M, Overwrite),
    case("hash insert, 8-byte keys, 256K", T::Hash, 8, 8, M, Insert),
    case("hash delete, 8-byte keys, 256K", T::Hash, 8, 8, M, Delete),
    case("hash lookup hit, 64-byte names, 16K", T::Hash, 64, 8, K, Lookup(true)),
    case("hash lookup miss, 64-byte names, 16K", T::Hash, 64, 8, K, Lookup(false)),
    case("hash overwrite, 64-byte names, 16K", T::Hash, 64, 8, K, Overwrite),
    case("hash insert, 64-byte names, 16K", T::Hash, 64, 8, K, Insert),
    case("hash delete, 64-byte names, 16K", T::Hash, 64, 8, K, Delete),
    case("hash overwrite, 64-byte values, 16K", T::Hash, 8, 64, K, Overwrite),
    case("percpu_hash lookup hit, 16K", T::PercpuHash, 8, 8, K, Lookup(true)),
    case("percpu_hash lookup miss, 16K", T::PercpuHash, 8, 8, K, Lookup(false)),
    case("percpu_hash overwrite, 16K", T::PercpuHash, 8, 8, K, Overwrite),
    case("percpu_hash insert, 16K", T::PercpuHash, 8, 8, K, Insert),
    case("percpu_hash delete, 16K", T::PercpuHash, 8, 8, K, Delete),
    case("lru_hash lookup hit, 16K", T::LruHash, 8, 8, K, Lookup(true)),
    case("lru_hash overwrite, 16K", T::LruHash, 8, 8, K, Overwrite),
    case("lru_hash insert into the full map, 16K", T::LruHash, 8, 8, K, Insert),
    case("lru_hash lookup miss, 16K", T::LruHash, 8, 8, K, Lookup(false)),
    case("lru_hash delete, 16K", T::LruHash, 8, 8, K, Delete),
    case("lru_percpu_hash lookup hit, 16K", T::LruPercpuHash, 8, 8, K, Lookup(true)),
    case("lru_percpu_hash lookup miss, 16K", T::LruPercpuHash, 8, 8, K, Lookup(false)),
    case("lru_percpu_hash overwrite, 16K", T::LruPercpuHash, 8, 8, K, Overwrite),
    case("lru_percpu_hash insert into the full map, 16K", T::LruPercpuHash, 8, 8, K, Insert),
    case("lru_percpu_hash delete, 16K", T::LruPercpuHash, 8, 8, K, Delete),
    case("lpm_trie lookup, 16K IPv4 prefixes", T::LpmTrie, 8, 8, K, Lookup(true)),
    case("lpm_trie lookup miss, 16K IPv4 prefixes", T::LpmTrie, 8, 8, K, Lookup(false)),
    case("lpm_trie lookup, 16K IPv6 prefixes", T::LpmTrie, 20, 8, K, Lookup(true)),
    case("lpm_trie overwrite, 16K IPv4 prefixes", T::LpmTrie, 8, 8, K, Overwrite),
    case("lpm_trie insert, 16K IPv4 prefixes", T::LpmTrie, 8, 8, K, Insert),
    case("lpm_trie delete, 16K IPv4 prefixes", T::LpmTrie, 8, 8, K, Delete),
    case("queue push", T::Queue, 0, 8, K, Push),
    case("queue pop", T::Queue, 0, 8, K, Pop),
    case("queue peek", T::Queue, 0, 8, K, Peek),
    case("stack push", T::Stack, 0, 8, K, Push),
    case("stack pop", T::Stack, 0, 8, K, Pop),
    case("stack peek", T::Stack, 0, 8, K, Peek),
    case("bloom_filter push", T::BloomFilter, 0, 8, K, Push),
    case("bloom_filter peek", T::BloomFilter, 0, 8, K, Peek),
    case("ringbuf reserve and submit, 8 bytes", T::Ringbuf, 0, 8, K, Reserve),
    case("ringbuf output, 8 bytes", T::Ringbuf, 0, 8, K, Output),
    case("ringbuf output, 64 bytes", T::Ringbuf, 0, 64, K, Output),
    case("ringbuf consume, 8 bytes", T::Ringbuf, 0, 8, K, Consume),
    case("ringbuf output to a consumer at work, 8 bytes", T::Ringbuf, 0, 8, K, Through),
    case("array_of_maps lookup, 256", T::ArrayOfMaps, 4, 4, FEW, Lookup(true)),
    case("hash_of_maps lookup hit, 256", T::HashOfMaps, 8, 4, FEW, Lookup(true)),
    case("hash_of_maps lookup miss, 256", T::HashOfMaps, 8, 4, FEW, Lookup(false)),
    case("devmap lookup, 1K", T::Devmap, 4, 4, S, Lookup(true)),
    case("devmap_hash lookup, 1K", T::DevmapHash, 4, 4, S, Lookup(true)),
    case("xskmap lookup of empty rows, 1K", T::Xskmap, 4, 4, S, Lookup(false)),
    case("stack_trace, the number of a stack of 8 that is there, 1K", T::StackTrace, 4, 64, S, StackId),
    case("perf_event_array output, 8 bytes", T::PerfEventArray, 4, 8, S, Output),
    case("perf_event_array consume, 8 bytes", T::PerfEventArray, 4, 8, S, Consume),
    case("user_ringbuf output, 8 bytes", T::UserRingbuf, 0, 8, K, Output),
    case("user_ringbuf drain, 8 bytes", T::UserRingbuf, 0, 8, K, Consume),
    case("array, a user's lookup", T::Array, 4, 8, K, Read),
    case("array, a user's update", T::Array, 4, 8, K, Store),
    case("hash, a user's lookup, 8-byte keys, 16K", T::Hash, 8, 8, K, Read),
    case("hash, a user's update, 8-byte keys, 16K", T::Hash, 8, 8, K, Store),
    case("hash, a user's delete, 8-byte keys, 16K", T::Hash, 8, 8, K, Remove),
    case("hash, a user's lookup, 1M random u64", T::Hash, 8, 8, R, Read),
    case("hash, a user's lookup of many keys at once, 1M random u64", T::Hash, 8, 8, R, ReadMany),
    case("hash, a user's update, 1M random u64", T::Hash, 8, 8, R, Store),
    case("hash, a user's update of many keys at once, 1M random u64", T::Hash, 8, 8, R, StoreMany),
    case("percpu_hash, a user's lookup, 16K", T::PercpuHash, 8, 8, K, Read),
    case("lru_hash, a user's update, 16K", T::LruHash, 8, 8, K, Store),
    case("lpm_trie, a user's lookup, 16K IPv4 prefixes", T::LpmTrie, 8, 8, K, Read),
    case("array_of_maps, a user's update", T::ArrayOfMaps, 4, 4, 16, Store),
    case("hash_of_maps, a user's update", T::HashOfMaps, 8, 4, 16, Store),
    case("percpu_array, a user's lookup", T::PercpuArray, 4, 8, K, Read),
    case("percpu_array, a user's update", T::PercpuArray, 4, 8, K, Store),
    case("percpu_hash, a user's update, 16K", T::PercpuHash, 8, 8, K, Store),
    case("percpu_hash, a user's delete, 16K", T::PercpuHash, 8, 8, K, Remove),
    case("lru_hash, a user's lookup, 16K", T::LruHash, 8, 8, K, Read),
    case("lru_hash, a user's delete, 16K", T::LruHash, 8, 8, K, Remove),
    case("lru_percpu_hash, a user's lookup, 16K", T::LruPercpuHash, 8, 8, K, Read),
    case("lru_percpu_hash, a user's update, 16K", T::LruPercpuHash, 8, 8, K, Store),
    case("lru_percpu_hash, a user's delete, 16K", T::LruPercpuHash, 8, 8, K, Remove),
    case("lpm_trie, a user's update, 16K IPv4 prefixes", T::LpmTrie, 8, 8, K, Store),
    case("lpm_trie, a user's delete, 16K IPv4 prefixes", T::LpmTrie, 8, 8, K, Remove),
    case("queue, a user's push", T::Queue, 0, 8, K, Append),
    case("queue, a user's pop", T::Queue, 0, 8, K, Take),
    case("stack, a user's push", T::Stack, 0, 8, K, Append),
    case("stack, a user's pop", T::Stack, 0, 8, K, Take),
    case("array_of_maps, a user's lookup", T::ArrayOfMaps, 4, 4, 16, Read),
    case("array_of_maps, a user's delete", T::ArrayOfMaps, 4, 4, 16, Remove),
    case("hash_of_maps, a user's lookup", T::HashOfMaps, 8, 4, 16, Read),
    case("hash_of_maps, a user's delete", T::HashOfMaps, 8, 4, 16, Remove),
    case("devmap, a user's update, 1K", T::Devmap, 4, 4, S, Store),
    case("devmap, a user's lookup, 1K", T::Devmap, 4, 4, S, Read),
    case("devmap, a user's delete, 1K", T::Devmap, 4, 4, S, Remove),
    case("devmap_hash, a user's update, 1K", T::DevmapHash, 4, 4, S, Store),
    case("devmap_hash, a user's lookup, 1K", T::DevmapHash, 4, 4, S, Read),
    case("devmap_hash, a user's delete, 1K", T::DevmapHash, 4, 4, S, Remove),
    case("prog_array, a user's update, 256", T::ProgArray, 4, 4, FEW, Store),
    case("prog_array, a user's lookup, 256", T::ProgArray, 4, 4, FEW, Read),
    case("prog_array, a user's delete, 256", T::ProgArray, 4, 4, FEW, Remove),
    case("cpumap, a user's update of one row", T::Cpumap, 4, 4, 16, Store),
    case("cpumap, a user's lookup of one row", T::Cpumap, 4, 4, S, Read),
    case("cgroup_array, a user's update, 256", T::CgroupArray, 4, 4, FEW, Store),
    case("cgroup_array, a user's delete, 256", T::CgroupArray, 4, 4, FEW, Remove),
];

impl Case {
    /// Bytes from one key to the next.
    fn stride(&self) -> usize {
        (if self.key == 0 { self.value } else { self.key } as usize).next_power_of_two().max(8)
    }

    fn lru(&self) -> bool {
        matches!(self.map_type, T::LruHash | T::LruPercpuHash)
    }

    /// Room in the map: an LRU map is full from the beginning, a ring takes all records of a pass.
    fn entries(&self) -> u32 {
        match self.op {
            _ if matches!(self.map_type, T::PerfEventArray | T::Cpumap) => 1,
            _ if matches!(self.map_type, T::Ringbuf | T::UserRingbuf) => {
                (2 * self.keys * (8 + self.value)).next_power_of_two()
            }
            Insert if self.lru() => self.keys / 2,
            // The kernel's throws elements out long before it is full.
            _ if self.lru() => self.keys * 2,
            _ => self.keys,
        }
    }

    /// Whether values are maps.
    fn outer(&self) -> bool {
        matches!(self.map_type, T::ArrayOfMaps | T::HashOfMaps)
    }

    /// What a user stores under each key: a number, or for a table of devices the first one.
    fn value(&self) -> Vec<u8> {
        match self.map_type {
            T::Devmap | T::DevmapHash | T::ProgArray | T::CgroupArray | T::Cpumap => {
                1u32.to_ne_bytes().to_vec()
            }
            _ => vec![1; self.value as usize],
        }
    }

    /// Whether only a user can fill the map.
    fn by_user(&self) -> bool {
        matches!(
            self.map_type,
            T::Devmap | T::DevmapHash | T::ProgArray | T::CgroupArray | T::Cpumap
        ) || self.outer()
    }

    /// Whether the kernel does the same, here: it takes control groups of version 2 only; it walks
    /// the stack itself whose number a program asks for, where ours is given one; and what
    /// drains a ring of users is a callback, which the programs here have none of.
    fn in_kernel(&self) -> bool {
        match self.map_type {
            T::StackTrace | T::UserRingbuf => false,
            _ if self.keys == R => false,
            T::CgroupArray => kernel::control_group().is_some(),
            _ => true,
        }
    }

    /// What fills the map; `None` for cases that would tell nothing new about memory.
    fn filling(&self) -> Option<Op> {
        match self.op {
            Insert | Push if self.keys == K => Some(self.op),
            Overwrite if matches!(self.map_type, T::Array | T::PercpuArray) => Some(Overwrite),
            _ => None,
        }
    }

    fn flags(&self) -> u32 {
        if self.map_type == T::LpmTrie { MapFlags::NO_PREALLOC } else { 0 }
    }

    /// All keys (for maps without keys: values), one after another in random order; `other` gives
    /// keys that share none with those.
    fn all_keys(&self, other: bool) -> Vec<u8> {
        let mut order: Vec<u32> = (0..self.keys).collect();
        let mut x = 88_172_645_463_325_252u64;
        for i in (1..order.len()).rev() {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            order.swap(i, (x % (i as u64 + 1)) as usize);
        }
        let mut out = vec![0; self.stride() * order.len()];
        for (n, to) in order.into_iter().zip(out.chunks_exact_mut(self.stride())) {
            let n = u64::from(n) | u64::from(other) << 32;
            match (self.map_type, self.key) {
                // There may be but one processor.
                (T::Cpumap, _) => {}
                (_, 4) => to[..4].copy_from_slice(&(n as u32).to_ne_bytes()),
                (T::LpmTrie, _) => {
                    // Half whole addresses, half networks above them.
                    let (length, address) =
                        if n & 1 == 0 { (32u32, n as u32) } else { (24, (n as u32) << 8) };
                    let address = address | u32::from(other) << 22;
                    // Longer addresses end in these.
                    let end = self.key as usize;
                    to[..4].copy_from_slice(&(length + 8 * (self.key - 8)).to_ne_bytes());
                    to[end - 4..end].copy_from_slice(&address.to_be_bytes());
                }
                (_, 64) => {
                    let name =
                        format!("/usr/lib/x86_64-linux-gnu/perl5/5.36/auto/function_{n:012}");
                    to[..name.len().min(64)]
                        .copy_from_slice(&name.as_bytes()[..name.len().min(64)]);
                }
                _ if self.keys == R => to[..8].copy_from_slice(&scattered(n).to_ne_bytes()),
                _ => to[..8].copy_from_slice(&n.wrapping_mul(0x1_0001).to_ne_bytes()),
            }
        }
        out
    }
}

/// A number that looks like a random one, another for each `n` (the finalizer of splitmix64).
fn scattered(n: u64) -> u64 {
    let n = (n ^ n >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ n >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ n >> 31
}

/// What a thread does, when all are ready; what it took, if it knows better than who waits for it.
type Part<'a> = Box<dyn FnOnce() -> std::result::Result<Option<Duration>, String> + Send + 'a>;

/// A map that can be filled, emptied and measured.
trait Side {
    /// Prepares `op` with the keys of one of `threads` parts.
    fn part(&self, op: Op, part: u32, threads: u32) -> Result<Part<'_>>;
    /// Prepares a thread that reads so many records of a ring.
    fn consumer(&self, records: u32) -> Result<Part<'_>>;
}

/// One pass over all keys by so many threads: nanoseconds an operation.
fn pass(side: &dyn Side, case: &Case, op: Op, threads: u32) -> Result<f64> {
    let parts = match op {
        Consume => vec![side.consumer(case.keys)?],
        Through => vec![side.part(Output, 0, 1)?, side.consumer(case.keys)?],
        _ => (0..threads).map(|t| side.part(op, t, threads)).collect::<Result<Vec<_>>>()?,
    };
    let (count, ready) = (parts.len() as u32, AtomicU32::new(0));
    // From the first that began to the last that ended.
    let times = std::thread::scope(|s| {
        let ready = &ready;
        let timed = |n: usize, part: Part<'_>| {
            if count > 1 {
                stay_on(n);
            }
            ready.fetch_add(1, Relaxed);
            while ready.load(Relaxed) < count {
                std::thread::yield_now();
            }
            let began = Instant::now();
            part().map(|took| (began, took.map_or_else(Instant::now, |took| began + took)))
        };
        let running: Vec<_> = parts
            .into_iter()
            .enumerate()
            .map(|(n, part)| s.spawn(move || timed(n, part)))
            .collect();
        running
            .into_iter()
            .map(|t| t.join().unwrap_or_else(|_| Err("a panic".into())))
            .collect::<std::result::Result<Vec<_>, _>>()
    })?;
    let ends = times.iter().map(|t| t.0).min().zip(times.iter().map(|t| t.1).max());
    let elapsed = ends.map_or(Duration::ZERO, |(began, ended)| ended - began);
    Ok(elapsed.as_nanos() as f64 / f64::from(case.keys))
}

/// Keeps the calling thread on one of the processors that it may use; where it cannot be told, all
/// stays as it is.
fn stay_on(n: usize) {
    let Ok(may) = sched_getaffinity(None) else { return };
    let all: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| may.is_set(*cpu)).collect();
    let mut one = CpuSet::new();
    one.set(all[n % all.len()]);
    sched_setaffinity(None, &one).ok();
}

fn measure(side: &dyn Side, case: &Case, threads: u32) -> Result<f64> {
    let mut times = Vec::new();
    let passes = match case.keys {
        M => 3,
        R => 5,
        _ => 10,
    };
    match case.op {
        Push | Insert | Reserve | Output | Through => {}
        Consume => drop(pass(side, case, Output, 1)?),
        Pop | Peek => drop(pass(side, case, Push, 1)?),
        Overwrite if matches!(case.map_type, T::Array | T::PercpuArray) => {}
        Lookup(_) | Read | Store
            if matches!(case.map_type, T::Array | T::PercpuArray | T::Xskmap) => {}
        Lookup(_) | Read | Store | Remove if case.by_user() => drop(pass(side, case, Store, 1)?),
        Append => {}
        Take => drop(pass(side, case, Append, 1)?),
        StackId => drop(pass(side, case, StackId, 1)?),
        _ => drop(pass(side, case, Insert, 1)?),
    }
    for _ in 0..passes {
        times.push(pass(side, case, case.op, threads)?);
        match case.op {
            Insert if !case.lru() => drop(pass(side, case, Delete, 1)?),
            Remove if case.by_user() => drop(pass(side, case, Store, 1)?),
            Delete | Remove => drop(pass(side, case, Insert, 1)?),
            Append => drop(pass(side, case, Take, 1)?),
            Take => drop(pass(side, case, Append, 1)?),
            Push if case.map_type != T::BloomFilter => drop(pass(side, case, Pop, 1)?),
            Pop => drop(pass(side, case, Push, 1)?),
            Reserve | Output => drop(pass(side, case, Consume, 1)?),
            Consume => drop(pass(side, case, Output, 1)?),
            _ => {}
        }
    }
    times.sort_by(f64::total_cmp);
    // What one thread takes more than at best is somebody else's doing; how two get on with each
    // other differs by nature.
    Ok(times[if threads > 1 || case.op == Through { times.len() / 4 } else { 0 }])
}

fn find(name: &str) -> Result<&'static Case> {
    CASES.iter().find(|c| c.name == name).ok_or_else(|| format!("no case `{name}`").into())
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done: Result<()> = (|| {
        match args.as_slice() {
        ["list", of @ ..] => {
            let listed = |c: &&Case| match of {
                ["kernel"] => c.in_kernel(),
                ["memory"] => c.filling().is_some(),
                ["rust"] => c.keys == R,
                _ => true,
            };
            CASES.iter().filter(listed).for_each(|c| println!("{}", c.name));
            Ok(())
        }
        ["memory", side, name] => {
            let case = find(name)?;
            let bytes = match *side {
                "kernel" => kernel::memory(case)?,
                "taken" => kernel::taken(case)?,
                _ => ours::memory(case)?,
            };
            println!("measured {}", bytes as f64 / f64::from(case.entries()));
            Ok(())
        }
        [side, name, threads] => {
            let case = find(name)?;
            let threads = threads.parse()?;
            let ns = match *side {
                "kernel" => measure(&kernel::Kernel::new(case)?, case, threads)?,
                "dashmap" => measure(&rivals::dashmap(case), case, threads)?,
                "hashbrown" => measure(&rivals::sharded(case), case, threads)?,
                _ => ours::with(case, |side| measure(side, case, threads))?,
            };
            println!("measured {ns}");
            Ok(())
        }
        _ => {
            Err("usage: operations skep|kernel|dashmap|hashbrown CASE THREADS | memory skep|kernel|taken CASE | list [kernel|memory|rust]"
                .into())
        }
    }
    })();
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::from(2)
        }
    }
}
