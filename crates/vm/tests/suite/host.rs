//! A process with a program array and two arrays: what a host of the engines has to do.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use skep_isa::{Insn, MapShape, ShapeKind};
use skep_vm::{Code, Cpu, Env, HelperCall, HelperFn, HelperImpl, MapRef, interp, tail};

use crate::fault;
use crate::random::{
    ENTRIES, ENTRY, LOOKUP, LOOP, MIX, REPEAT, SLOTS, TAIL_CALL, UPDATE, VALUE_SIZE,
};

/// The handles of the program array and of the array to look up in.
const PROGRAMS: u64 = 0x5107;
const TABLE: u64 = 0x7ab1;

/// Where the contents of maps are: [`VALUE_SIZE`] bytes, and [`ENTRIES`] times [`ENTRY`].
#[derive(Clone, Copy)]
pub struct Memory {
    pub value: u64,
    pub table: u64,
}

/// An engine and what it has compiled.
pub struct Host {
    engine: &'static str,
    memory: Memory,
    slots: [AtomicU32; SLOTS as usize],
    table: tail::Table,
    targets: Vec<Arc<tail::Target>>,
}

thread_local! {
    static HOST: Cell<*const Host> = const { Cell::new(std::ptr::null()) };
}

fn host() -> &'static Host {
    // SAFETY: only helpers ask, and `run` keeps its host until the run is over.
    unsafe { &*HOST.get() }
}

unsafe extern "C" fn tail_call(_ctx: u64, map: u64, index: u64, _: u64, _: u64) -> u64 {
    assert_eq!(map, PROGRAMS);
    let host = host();
    let Some(id) = host.slots.get(index as usize).map(|s| s.load(Relaxed)) else { return 0 };
    let Some(target) = host.targets.iter().find(|t| t.id() == id) else { return 0 };
    host.table.set(index as u32, target);
    target.address()
}

unsafe extern "C" fn mix(a: u64, b: u64, c: u64, d: u64, e: u64) -> u64 {
    [b, c, d, e].iter().fold(a, |h, v| (h ^ v).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(29))
}

unsafe extern "C" fn repeat(data: u64, callback: u64, n: u64, _: u64, _: u64) -> u64 {
    // SAFETY: the program passes the address of one of its functions.
    let f: HelperFn = unsafe { std::mem::transmute(callback as *const ()) };
    // SAFETY: as above, with the arguments such a callback takes.
    (0..n).fold(0, |sum, round| unsafe { f(data, round, 0, 0, 0) }.wrapping_add(sum))
}

/// `bpf_loop`: until the callback says 1.
unsafe extern "C" fn rounds(n: u64, callback: u64, data: u64, _: u64, _: u64) -> u64 {
    // SAFETY: the program passes the address of one of its functions.
    let f: HelperFn = unsafe { std::mem::transmute(callback as *const ()) };
    // SAFETY: as above, with the arguments such a callback takes.
    (0..n).find(|round| unsafe { f(*round, data, 0, 0, 0) } != 0).map_or(n, |last| last + 1)
}

unsafe extern "C" fn lookup(map: u64, key: u64, _: u64, _: u64, _: u64) -> u64 {
    assert_eq!(map, TABLE);
    // SAFETY: the program passes the address of a key.
    let key = unsafe { (key as *const u32).read_unaligned() };
    if key < ENTRIES { host().memory.table + u64::from(key) * ENTRY as u64 } else { 0 }
}

/// `bpf_map_update_elem` of an array (kernel/bpf/arraymap.c, `array_map_update_elem`).
unsafe extern "C" fn update(map: u64, key: u64, value: u64, flags: u64, _: u64) -> u64 {
    let [eexist, e2big, einval] = [17i64, 7, 22];
    // SAFETY: the program passes the address of a key.
    let to = unsafe { lookup(map, key, 0, 0, 0) };
    let error = match flags {
        3.. => einval,
        _ if to == 0 => e2big,
        1 => eexist,
        // SAFETY: the program passes the address of a value, and the map has room for one.
        _ => unsafe {
            std::ptr::copy(value as *const u8, to as *mut u8, ENTRY);
            0
        },
    };
    -error as u64
}

pub fn helpers(id: u32) -> Option<HelperImpl> {
    Some(match id {
        MIX => HelperImpl::plain(mix),
        REPEAT => HelperImpl::plain(repeat),
        LOOP => HelperImpl::plain(rounds),
        LOOKUP => HelperImpl { func: lookup, how: HelperCall::MapLookup },
        UPDATE => HelperImpl::plain(update),
        TAIL_CALL => HelperImpl { func: tail_call, how: HelperCall::TailCall },
        _ => return None,
    })
}

#[allow(dead_code, reason = "each test binary uses a part")]
impl Host {
    /// Makes a host without programs. It must stay where it is once it has some.
    pub fn new(engine: &'static str, memory: Memory) -> Box<Self> {
        fault::mend();
        Box::new(Self {
            engine,
            memory,
            slots: Default::default(),
            table: tail::Table::new(SLOTS),
            targets: Vec::new(),
        })
    }

    /// Returns the maps of programs.
    pub fn maps(&self) -> [MapRef; 3] {
        let Memory { value, table } = self.memory;
        let base = self.slots.as_ptr() as u64;
        let kind = ShapeKind::ProgArray { targets: self.table.address() };
        [
            MapRef {
                handle: 0,
                value,
                shape: MapShape {
                    base: value,
                    stride: VALUE_SIZE as u64,
                    entries: 1,
                    kind: ShapeKind::Opaque,
                },
            },
            MapRef {
                handle: PROGRAMS,
                value: base,
                shape: MapShape { base, stride: 4, entries: SLOTS, kind },
            },
            MapRef {
                handle: TABLE,
                value: table,
                shape: MapShape {
                    base: table,
                    stride: ENTRY as u64,
                    entries: ENTRIES,
                    kind: ShapeKind::Array,
                },
            },
        ]
    }

    /// Makes this the host that helpers of this thread ask.
    pub fn enter(&self) {
        HOST.set(self);
    }

    /// Compiles a program and puts it into a slot of the program array; a slot that there is not is
    /// none.
    pub fn put(&mut self, slot: u32, insns: &[Insn]) -> Result<Arc<tail::Target>, String> {
        let maps = self.maps();
        let env = Env { maps: &maps, helper: &helpers };
        let cpu = if self.engine == "jit" { Cpu::detect() } else { Cpu::baseline() };
        let (code, program) = if self.engine == "interp" {
            (None, Some(interp::Program::new(insns, &env).map_err(|e| e.to_string())?))
        } else {
            // SAFETY: test programs stay inside the memory they are given.
            (Some(unsafe { Code::compile_for(insns, &env, cpu) }.map_err(|e| e.to_string())?), None)
        };
        let id = 100 + self.targets.len() as u32;
        let target = Arc::new(tail::Target::new(id, code, program));
        self.targets.push(Arc::clone(&target));
        if let Some(slot) = self.slots.get(slot as usize) {
            slot.store(id, Relaxed);
        }
        Ok(target)
    }

    /// Runs a program of this host.
    pub fn run(&self, target: &tail::Target, r1: u64) -> Result<u64, String> {
        self.enter();
        match (target.code(), target.program()) {
            // SAFETY: test programs stay inside the memory they are given.
            (Some(code), _) => Ok(unsafe { code.entry()(r1 as *mut u8) }),
            (_, Some(program)) => {
                // SAFETY: test programs stay inside the memory they are given.
                unsafe { program.run([r1, 0, 0, 0, 0]) }.map_err(|e| e.to_string())
            }
            _ => Err("no engine".to_owned()),
        }
    }
}
