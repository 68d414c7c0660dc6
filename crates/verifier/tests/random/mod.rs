//! Random programs that have a fair chance to be accepted: a guess of what each register holds
//! picks the next piece, and now and then the guess is ignored.
//!
//! [`program`] makes one; [`maker`] keeps the guesses, `numbers`, `memory`, `flow` and `objects`
//! have the pieces. Those of `paths` are about what was proved of one path and must not count for
//! another that it meets.

mod flow;
mod maker;
mod memory;
mod numbers;
mod objects;
mod paths;
#[allow(dead_code, reason = "used by one of the tests that share this file")]
pub mod turns;
pub mod types;

use maker::{Content, Maker};
use skep_isa::{AttachType, Insn, KeyShape, MapFlags, MapType, ProgramType};
use skep_object::{Linked, LinkedMap, MapSpec, Subprog};
use std::cell::Cell;

/// xorshift64*: the seed is all there is to it.
pub struct Random(Cell<u64>);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(Cell::new(seed))
    }

    pub fn next(&self) -> u64 {
        let mut n = self.0.get();
        n ^= n >> 12;
        n ^= n << 25;
        n ^= n >> 27;
        self.0.set(n);
        n.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&self, n: u64) -> u64 {
        (self.next() >> 33) % n.max(1)
    }

    pub fn pick<T: Copy>(&self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    pub fn chance(&self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// Numbers of all magnitudes, with a liking for small ones and edges.
    pub fn number(&self) -> u64 {
        let r = self.next();
        let edge = 1u64.wrapping_shl(r as u32 >> 26);
        match self.below(8) {
            0 | 1 => r & 0xf,
            2 => (r & 3).wrapping_sub(1),
            3 => edge.wrapping_add(r & 3).wrapping_sub(1),
            4 => edge.wrapping_neg().wrapping_sub(r & 1),
            5 => u64::from(r as u32),
            6 => r as i32 as i64 as u64,
            _ => r,
        }
    }
}

/// The maps of every program, by index.
pub mod map {
    /// An array with one value: global data.
    pub const DATA: usize = 0;
    /// A hash.
    pub const HASH: usize = 1;
    /// An array of eight values.
    pub const ARRAY: usize = 2;
    /// Constants.
    pub const CONST: usize = 3;
    /// A ring buffer.
    pub const RING: usize = 4;
    /// Programs.
    pub const PROGS: usize = 5;
    /// Arrays like [`ARRAY`] in an array.
    pub const OUTER: usize = 6;
    /// A per-CPU array.
    pub const PERCPU: usize = 7;
    /// First in, first out.
    pub const QUEUE: usize = 8;
    /// Last in, first out.
    pub const STACK: usize = 9;
    /// A bloom filter.
    pub const BLOOM: usize = 10;
    /// A hash whose values have a lock, for programs that may use one.
    pub const LOCKED: usize = 11;
    /// Memory of a control group: for programs that only the kernel runs.
    pub const STORAGE: usize = 12;
    /// The same of a task.
    pub const TASKS: usize = 13;
    /// A trie with keys of up to 24 bytes.
    pub const TRIE: usize = 14;
}

/// Bytes of a value, by map.
pub const VALUE: [u32; 15] = [64, 24, 48, 40, 0, 4, 4, 32, 16, 8, 8, 24, 32, 32, 24];
/// Entries, by map.
pub const ENTRIES: [u32; 15] = [1, 16, 8, 1, 4096, 8, 4, 2, 8, 8, 8, 8, 0, 0, 16];
/// Where the lock of a value of [`map::LOCKED`] lies; it takes four bytes.
pub const LOCK: u32 = 8;

fn maps(r: &Random, locks: bool) -> Vec<LinkedMap> {
    use MapType as T;
    let types = [
        T::Array,
        T::Hash,
        T::Array,
        T::Array,
        T::Ringbuf,
        T::ProgArray,
        T::ArrayOfMaps,
        T::PercpuArray,
        T::Queue,
        T::Stack,
        T::BloomFilter,
        T::Hash,
        T::CgroupStorage,
        T::TaskStorage,
        T::QpTrie,
    ];
    let mut maps = Vec::new();
    for (index, (kind, entries)) in types.into_iter().zip(ENTRIES).enumerate() {
        let key = match kind {
            T::Ringbuf | T::Queue | T::Stack | T::BloomFilter => 0,
            T::CgroupStorage => 8,
            _ => 4,
        };
        let mut spec = MapSpec::new("m", kind, key, VALUE[index], entries);
        if locks && index == map::LOCKED {
            spec.value_type_id = types::LOCKED;
        }
        if kind == T::QpTrie {
            (spec.keys, spec.map_extra) = (KeyShape::Bytes { max: 24 }, 24);
            spec.flags = MapFlags(MapFlags::NO_PREALLOC);
        }
        if kind == T::TaskStorage {
            spec.flags = MapFlags(MapFlags::NO_PREALLOC);
            spec.value_type_id = types::WORDS;
        }
        if index == map::CONST {
            // Small words first, then a string.
            let mut data: Vec<u8> =
                (0..3).flat_map(|_| (r.below(60) as u32).to_le_bytes()).collect();
            data.extend(r.number().to_le_bytes());
            data.extend(b"value %d of %s\0");
            spec.data = Some(data);
            spec.frozen = true;
            spec.flags = MapFlags(MapFlags::RDONLY_PROG);
        }
        if index == map::OUTER {
            let inner =
                MapSpec::new("inner", MapType::Array, 4, VALUE[map::ARRAY], ENTRIES[map::ARRAY]);
            spec.inner = Some(Box::new(inner));
        }
        maps.push(LinkedMap { index, spec });
    }
    maps
}

/// Tells whether programs of this type may have maps with locks (kernel/bpf/verifier.c
/// `check_map_prog_compatibility`).
pub fn may_lock(kind: ProgramType) -> bool {
    !matches!(kind, ProgramType::Kprobe | ProgramType::SocketFilter)
}

/// Makes a program.
pub fn program(r: &Random) -> Linked {
    let (kind, attach) = r.pick(&[
        (ProgramType::Kprobe, None),
        (ProgramType::Kprobe, None),
        (ProgramType::Xdp, Some(AttachType::Xdp)),
        (ProgramType::Xdp, Some(AttachType::Xdp)),
        (ProgramType::Tracing, Some(AttachType::TraceFexit)),
        (ProgramType::Tracing, Some(AttachType::TraceFsession)),
        (ProgramType::Syscall, None),
        (ProgramType::SchedCls, None),
        (ProgramType::SchedCls, None),
        (ProgramType::SocketFilter, None),
        (ProgramType::CgroupSkb, None),
    ]);
    let mut m = Maker::new(r, kind);
    m.emit(Insn::mov64_reg(9, 1));
    m.known.regs[9] = Content::Ctx;
    m.body(22);
    m.result(attach);
    m.emit(Insn::exit());
    m.functions();
    let (global, functions, kernel) = (m.global, std::mem::take(&mut m.starts), m.kernel);
    let mut prog = Linked::from_insns(if kernel { KERNEL } else { "random" }, kind, m.out);
    prog.btf = Some(types::btf());
    if global.is_some() {
        let function = |start: usize| {
            let global = global == Some(start);
            let (name, type_id) = match start {
                0 => ("main", types::MAIN),
                _ if global => ("global", types::GLOBAL),
                _ => ("part", types::STATIC),
            };
            Subprog { start, name: name.to_owned(), global, type_id }
        };
        prog.subprogs = [0].into_iter().chain(functions).map(function).collect();
    }
    prog.attach_type = attach;
    prog.sleepable = kind == ProgramType::Syscall;
    prog.maps = maps(r, may_lock(kind));
    prog
}

const KERNEL: &str = "kernel";

/// Tells whether a program calls what only the kernel has.
#[allow(dead_code, reason = "read by one of the tests that share this file")]
pub fn needs_kernel(prog: &Linked) -> bool {
    prog.name == KERNEL
}
