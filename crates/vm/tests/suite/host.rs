//! A process with one program array: what a host of the engines has to do.

use std::cell::Cell;
use std::sync::Arc;

use skep_isa::{Insn, MapShape, ShapeKind};
use skep_vm::{Code, Cpu, Env, HelperCall, HelperFn, HelperImpl, MapRef, interp, tail};

use crate::random::{FILLED, MIX, REPEAT, SLOTS, TAIL_CALL};

/// The handle of the array.
const ARRAY: u64 = 0x5107;

pub struct Host {
    slots: Vec<u32>,
    table: tail::Table,
    targets: Vec<Arc<tail::Target>>,
}

thread_local! {
    static HOST: Cell<*const Host> = const { Cell::new(std::ptr::null()) };
}

unsafe extern "C" fn tail_call(_ctx: u64, map: u64, index: u64, _: u64, _: u64) -> u64 {
    // SAFETY: `run` keeps its host until the run is over.
    let host = unsafe { &*HOST.get() };
    assert_eq!(map, ARRAY);
    let Some(id) = host.slots.get(index as usize) else { return 0 };
    let Some(target) = host.targets.iter().find(|t| t.id() == *id) else { return 0 };
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

fn helpers(id: u32) -> Option<HelperImpl> {
    Some(match id {
        MIX => HelperImpl::plain(mix),
        REPEAT => HelperImpl::plain(repeat),
        TAIL_CALL => HelperImpl { func: tail_call, how: HelperCall::TailCall },
        _ => return None,
    })
}

/// Runs the first program with `r1`; the array has all of them, `None` for those that it has not. `before` are the maps in front of the
/// array in the programs' list.
pub fn run(engine: &str, programs: &[Option<Vec<Insn>>], before: &[MapRef], r1: u64) -> Result<u64, String> {
    let slots: Vec<u32> = (0..SLOTS).map(|n| if n < FILLED { 100 + n } else { 0 }).collect();
    let mut host = Host { slots, table: tail::Table::new(SLOTS), targets: Vec::new() };
    let base = host.slots.as_ptr() as u64;
    let kind = ShapeKind::ProgArray { targets: host.table.address() };
    let mut maps = before.to_vec();
    maps.push(MapRef { handle: ARRAY, value: base, shape: MapShape { base, stride: 4, entries: SLOTS, kind } });
    let env = Env { maps: &maps, helper: &helpers };
    let cpu = if engine == "jit" { Cpu::detect() } else { Cpu::baseline() };
    for (id, insns) in (100..).zip(programs) {
        let Some(insns) = insns else { continue };
        let (code, program) = if engine == "interp" {
            (None, Some(interp::Program::new(insns, &env).map_err(|e| e.to_string())?))
        } else {
            // SAFETY: test programs stay inside the memory they are given.
            (Some(unsafe { Code::compile_for(insns, &env, cpu) }.map_err(|e| e.to_string())?), None)
        };
        host.targets.push(Arc::new(tail::Target::new(id, code, program)));
    }
    HOST.set(&raw const host);
    let first = Arc::clone(host.targets.first().ok_or("no program")?);
    match (first.code(), first.program()) {
        // SAFETY: as above.
        (Some(code), _) => Ok(unsafe { code.entry()(r1 as *mut u8) }),
        // SAFETY: as above.
        (_, Some(program)) => unsafe { program.run([r1, 0, 0, 0, 0]) }.map_err(|e| e.to_string()),
        _ => Err("no engine".to_owned()),
    }
}
