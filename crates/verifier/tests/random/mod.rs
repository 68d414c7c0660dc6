//! Random programs that have a fair chance to be accepted: a guess of what each register holds picks the next piece, and
//! now and then the guess is ignored.
//!
//! [`program`] makes one; [`maker`] keeps the guesses, `numbers`, `memory` and `flow` have the pieces.

mod flow;
mod maker;
mod memory;
mod numbers;
mod types;

use maker::{Guess, Maker};
use skep_isa::{AttachType, Insn, MapFlags, MapType, ProgramType};
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
}

/// Bytes of a value, by map.
pub const VALUE: [u32; 8] = [64, 24, 48, 40, 0, 4, 4, 32];
/// Entries, by map.
pub const ENTRIES: [u32; 8] = [1, 16, 8, 1, 4096, 8, 4, 2];

fn maps(r: &Random) -> Vec<LinkedMap> {
    use MapType as T;
    let types = [T::Array, T::Hash, T::Array, T::Array, T::Ringbuf, T::ProgArray, T::ArrayOfMaps, T::PercpuArray];
    let mut maps = Vec::new();
    for (index, (kind, entries)) in types.into_iter().zip(ENTRIES).enumerate() {
        let (key, value) = if kind == MapType::Ringbuf { (0, 0) } else { (4, VALUE[index]) };
        let mut spec = MapSpec::new("m", kind, key, value, entries);
        if index == map::CONST {
            // Small words first, then a string.
            let mut data: Vec<u8> = (0..3).flat_map(|_| (r.below(60) as u32).to_le_bytes()).collect();
            data.extend(r.number().to_le_bytes());
            data.extend(b"value %d of %s\0");
            spec.data = Some(data);
            spec.frozen = true;
            spec.flags = MapFlags(MapFlags::RDONLY_PROG);
        }
        if index == map::OUTER {
            let inner = MapSpec::new("inner", MapType::Array, 4, VALUE[map::ARRAY], ENTRIES[map::ARRAY]);
            spec.inner = Some(Box::new(inner));
        }
        maps.push(LinkedMap { index, spec });
    }
    maps
}

/// Makes a program.
pub fn program(r: &Random) -> Linked {
    let (kind, attach) = r.pick(&[
        (ProgramType::Kprobe, None),
        (ProgramType::Kprobe, None),
        (ProgramType::Xdp, Some(AttachType::Xdp)),
        (ProgramType::Xdp, Some(AttachType::Xdp)),
        (ProgramType::Tracing, Some(AttachType::TraceFexit)),
        (ProgramType::Syscall, None),
        (ProgramType::SchedCls, None),
        (ProgramType::SocketFilter, None),
    ]);
    let mut m = Maker::new(r, kind);
    m.emit(Insn::mov64_reg(9, 1));
    m.known.regs[9] = Guess::Ctx;
    m.body(26);
    if kind == ProgramType::Tracing || r.chance(80) {
        m.emit(Insn::mov64_imm(0, 0));
    } else {
        let n = m.number();
        m.emit(Insn::mov64_reg(0, n));
    }
    m.emit(Insn::exit());
    m.functions();
    let global = m.global;
    let mut prog = Linked::from_insns("random", kind, m.out);
    if let Some(start) = global {
        let (name, type_id) = ("global".to_owned(), types::FUNCTION);
        prog.subprogs.push(Subprog { start, name, global: true, type_id });
        prog.btf = Some(types::btf());
    }
    prog.attach_type = attach;
    prog.sleepable = kind == ProgramType::Syscall;
    prog.maps = maps(r);
    prog
}
