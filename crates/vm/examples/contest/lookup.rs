//! What one lookup, call or tail call takes, as part of a loop; the loop is the same on both sides.

use std::sync::Arc;

use skep_isa::{Insn, MapType, ProgramType, ShapeKind, text};
use skep_kernel as kernel;
use skep_maps::{Map, MapDef, SlotTable, slots};
use skep_testkit::TempDir;
use skep_vm::{Code, Env, HelperCall, HelperImpl, MapRef, tail};

use crate::Result;
use crate::clock::{best, best_of_repeats};

const ROUNDS: u32 = 64;

/// A map, the text of a program that uses it `ROUNDS` times, and how many elements the map gets.
struct Case {
    map_type: MapType,
    key_size: u32,
    entries: u32,
    filled: u32,
    asm: String,
}

/// Lookups in a hash with keys of this many bytes, 4 or a multiple of 8: a number, and zeros. Keys
/// are drawn from 0 to 9,999 by a multiplier, so that neither caches nor predictors know them.
fn hash(key_size: u32) -> String {
    let zeros: String = (1..key_size / 8).map(|n| format!("stdw [r10-{}], 0\n", n * 8)).collect();
    let store = if key_size == 4 { "stxw" } else { "stxdw" };
    format!(
        "{zeros}mov r6, 0\nlddw r7, 0x9e3779b97f4a7c15\nmov r8, 0\nl: lddw r1, 6364136223846793005\nmul r7, r1\nadd r7, 12345\n\
         mov r1, r7\nrsh r1, 32\nmul r1, 10000\nrsh r1, 32\n{store} [r10-{key_size}], r1\nmov r2, r10\nadd r2, -{key_size}\n\
         lddw r1, map 0\ncall 1\njeq r0, 0, n\nldxdw r1, [r0]\nadd r8, r1\nn: add r6, 1\njlt r6, 64, l\nmov r0, r8\nexit"
    )
}
const ARRAY: &str = "mov r6, 0\nmov r8, 0\nl: mov r1, r6\nand r1, 31\nstxw [r10-4], r1\nmov r2, r10\nadd r2, -4\nlddw r1, map 0\n\
    call 1\njeq r0, 0, n\nldxdw r1, [r0]\nadd r8, r1\nn: add r6, 1\njlt r6, 64, l\nmov r0, r8\nexit";
const CALL: &str = "mov r6, 0\nmov r8, 0\nl: mov r1, r6\ncall local f\nadd r8, r0\nadd r6, 1\njlt r6, 64, l\nmov r0, r8\nexit\n\
    f: mov r0, r1\nadd r0, 7\nexit";
/// Calls itself 33 times; the number of a run is below `ROUNDS`, but the time is divided all the
/// same.
const TAIL: &str = "lddw r2, map 0\nmov r3, 0\ncall 12\nmov r0, 0\nexit";

fn case(name: &str) -> Option<Case> {
    let map = |map_type, key_size, entries, filled, asm: &str| {
        Some(Case { map_type, key_size, entries, filled, asm: asm.to_owned() })
    };
    if let Some(key_size) = name.strip_prefix("hash").and_then(|size| size.parse().ok()) {
        return map(MapType::Hash, key_size, 10_000, 10_000, &hash(key_size));
    }
    match name {
        "array" => map(MapType::Array, 4, 32, 32, ARRAY),
        "percpu" => map(MapType::PercpuArray, 4, 32, 0, ARRAY),
        "call" => map(MapType::Array, 4, 32, 0, CALL),
        "tail" => map(MapType::ProgArray, 4, 1, 0, TAIL),
        _ => None,
    }
}

impl Case {
    fn key(&self, n: u32) -> Vec<u8> {
        let mut key = u64::from(n).to_le_bytes().to_vec();
        key.resize(self.key_size as usize, 0);
        key
    }

    fn value_size(&self) -> u32 {
        if self.map_type == MapType::ProgArray { 4 } else { 8 }
    }

    fn insns(&self) -> Result<Vec<Insn>> {
        text::assemble(&self.asm).map_err(|e| e.to_string().into())
    }
}

/// Runs and prints nanoseconds of one round.
pub fn run(engine: &str, name: &str) -> Result<()> {
    let case = case(name).ok_or_else(|| format!("no case `{name}`"))?;
    let (rounds, ns) = match (engine, name) {
        ("skep", "tail") => (33, tail_calls(&case)?),
        ("skep", _) => (ROUNDS, here(&case)?),
        ("kernel", "tail") => (33, in_kernel(&case)?),
        ("kernel", _) => (ROUNDS, in_kernel(&case)?),
        _ => return Err(format!("no engine `{engine}`").into()),
    };
    println!("measured {} ns", ns / f64::from(rounds));
    Ok(())
}

unsafe extern "C" fn lookup(map: u64, key: u64, _: u64, _: u64, _: u64) -> u64 {
    // SAFETY: the handle is a map that outlives the program, the key whole.
    unsafe { (*(map as *const Map)).prog_lookup(key as *const u8) as u64 }
}

fn here(case: &Case) -> Result<f64> {
    let dir = TempDir::in_memory();
    std::fs::create_dir(dir.join("maps"))?;
    let table = SlotTable::open_or_create(&dir.join(""))?;
    table.install();
    let def = MapDef::new(case.map_type, case.key_size, 8, case.entries);
    let map = Map::create(&dir.join("maps"), 1, &def)?;
    for n in 0..case.filled {
        map.update(&case.key(n), &u64::from(n).to_le_bytes(), 0)?;
    }
    let maps = [MapRef {
        handle: std::ptr::from_ref(&map) as u64,
        value: map.value_base(),
        shape: map.shape(),
    }];
    let env = Env {
        maps: &maps,
        helper: &|id| (id == 1).then_some(HelperImpl { func: lookup, how: HelperCall::MapLookup }),
    };
    // SAFETY: the kernel's verifier took the same program; the map outlives the code.
    let code = unsafe { Code::compile(&case.insns()?, &env) }?;
    let entry = code.entry();
    let entered = slots::enter();
    // SAFETY: as above.
    let ns = best(|| unsafe { entry(std::ptr::null_mut()) });
    slots::exit(entered);
    Ok(ns)
}

unsafe extern "C" fn no_target(_: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    0
}

fn tail_calls(case: &Case) -> Result<f64> {
    let table = tail::Table::new(1);
    let slots = [7u32];
    let kind = ShapeKind::ProgArray { targets: table.address() };
    let shape = skep_isa::MapShape { base: slots.as_ptr() as u64, stride: 4, entries: 1, kind };
    let maps = [MapRef { handle: 1, value: shape.base, shape }];
    let env = Env {
        maps: &maps,
        helper: &|id| {
            (id == 12).then_some(HelperImpl { func: no_target, how: HelperCall::TailCall })
        },
    };
    // SAFETY: the program touches no memory; slots and table outlive it.
    let code = unsafe { Code::compile(&case.insns()?, &env) }?;
    let target = Arc::new(tail::Target::new(7, Some(code), None));
    table.set(0, &target);
    let entry = target.code().ok_or("no code")?.entry();
    // SAFETY: as above.
    Ok(best(|| unsafe { entry(std::ptr::null_mut()) }))
}

fn in_kernel(case: &Case) -> Result<f64> {
    let map = kernel::Map::create(&kernel::MapSpec::new(
        case.map_type,
        case.key_size,
        case.value_size(),
        case.entries,
    ))?;
    for n in 0..case.filled {
        map.update(&case.key(n), &u64::from(n).to_le_bytes(), 0)?;
    }
    let bytes: Vec<u8> = case.insns()?.iter().flat_map(|i| i.to_bytes()).collect();
    let bytes = kernel::with_maps(&bytes, &[&map]);
    let program = kernel::Program::load(&kernel::ProgramSpec {
        log: true,
        ..kernel::ProgramSpec::new(ProgramType::SocketFilter, &bytes)
    })?;
    if case.map_type == MapType::ProgArray {
        map.update(&0u32.to_le_bytes(), &program.fd().to_le_bytes(), 0)?;
    }
    // Entering and leaving a test run is no part of the loop.
    let nothing: Vec<u8> =
        [Insn::mov64_imm(0, 0), Insn::exit()].iter().flat_map(|i| i.to_bytes()).collect();
    let nothing =
        kernel::Program::load(&kernel::ProgramSpec::new(ProgramType::SocketFilter, &nothing))?;
    Ok(time(&program)? - time(&nothing)?)
}

fn time(program: &kernel::Program) -> kernel::Result<f64> {
    let run = |repeat| {
        program.test_run(&kernel::TestRun {
            data_in: &[0; 64],
            repeat,
            ..kernel::TestRun::default()
        })
    };
    best_of_repeats(|repeat| run(repeat).map(drop))
}
