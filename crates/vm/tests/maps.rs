//! Lookups in maps of a known shape: the same values as by the call, and no call.
#![cfg(target_arch = "x86_64")]

mod suite;

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use skep_isa::{MapShape, ShapeKind, text};
use skep_vm::{Env, HelperCall, HelperImpl, MapRef};

/// Number of calls, and the map that [`lookup`] looks into.
static CALLS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static SLOT: Cell<u64> = const { Cell::new(0) };
    static SHAPE: Cell<Option<MapShape>> = const { Cell::new(None) };
}

/// The model: what a lookup gives, by the words of `MapShape`'s documentation.
unsafe extern "C" fn lookup(_: u64, key: u64, _: u64, _: u64, _: u64) -> u64 {
    CALLS.fetch_add(1, Relaxed);
    let Some(shape) = SHAPE.get() else { return 0 };
    // SAFETY: the test programs pass a pointer to their key.
    let key = unsafe { (key as *const u32).read_unaligned() };
    if key >= shape.entries {
        return 0;
    }
    let slot = match shape.kind {
        ShapeKind::PercpuArray { slot_stride, .. } => SLOT.get() * slot_stride,
        _ => 0,
    };
    shape.base + slot + u64::from(key) * shape.stride
}

thread_local! {
    static DIRECT: Cell<u32> = const { Cell::new(0) };
}

unsafe extern "C" fn direct(map: u64, key: u64) -> u64 {
    assert_eq!(map, 0x1234_5678_9abc);
    DIRECT.set(DIRECT.get() + 1);
    let calls = CALLS.load(Relaxed);
    // SAFETY: as the helper.
    let found = unsafe { lookup(0, key, 0, 0, 0) };
    CALLS.store(calls, Relaxed);
    found
}

fn slot_tls() -> i32 {
    let tp: u64;
    // SAFETY: reads the thread pointer, which the ABI keeps at fs:0.
    unsafe { std::arch::asm!("mov {}, fs:0", out(reg) tp, options(nostack, readonly)) };
    SLOT.with(|s| (std::ptr::from_ref(s) as i64 - tp as i64) as i32)
}

/// Runs `asm` on every engine; returns r0 (which must agree) and how many calls each engine made.
fn run(asm: &str, shape: MapShape, args: [u64; 5]) -> (u64, Vec<u64>) {
    let insns = text::assemble(asm).unwrap_or_else(|e| panic!("{asm}: {e}"));
    SHAPE.set(Some(shape));
    let maps = [MapRef { handle: 0x4d41_5000, value: shape.base, shape }];
    let env = Env {
        maps: &maps,
        helper: &|id| (id == 1).then_some(HelperImpl { func: lookup, how: HelperCall::MapLookup }),
    };
    let mut calls = Vec::new();
    let mut results = Vec::new();
    for engine in suite::ENGINES {
        let before = CALLS.load(Relaxed);
        results.push(
            suite::run_in(engine, &insns, &env, args).unwrap_or_else(|e| panic!("{engine}: {e}")),
        );
        calls.push(CALLS.load(Relaxed) - before);
    }
    assert!(results.iter().all(|r| *r == results[0]), "{results:x?}\n{asm}");
    (results[0], calls)
}

const FROM_STACK: &str = "stxw [r10-4], r1\nmov r2, r10\nadd r2, -4\nlddw r1, map 0\ncall 1\nexit";
const THROUGH_POINTER: &str =
    "mov r2, r3\nmov r6, r3\nlddw r7, map 0\nmov r1, r7\ncall 1\nxor r6, r6\nexit";
const AFTER_A_LABEL: &str =
    "stxw [r10-4], r1\nlddw r1, map 0\nmov r2, r10\nadd r2, -4\njeq r3, 0, l\nl: call 1\nexit";

/// Keys that are numbers in the program, and ones that only look so: another write comes between.
fn numbers(key: u32) -> [String; 7] {
    let (k, low) = (key as i32, key & 0xff);
    let lookup = "mov r2, r10\nadd r2, -4\nlddw r1, map 0\ncall 1\nexit";
    [
        format!("mov32 r2, {k}\nstxw [r10-4], r2\n{lookup}"),
        format!("stw [r10-4], {k}\n{lookup}"),
        format!("mov r4, r10\nadd r4, -8\nstw [r4+4], {k}\n{lookup}"),
        format!("stw [r10-4], {}\nstb [r10-4], {low}\n{lookup}", k & !0xff),
        format!("stw [r10-4], 1\nstxdw [r10-8], r2\nstxw [r10-4], r1\n{lookup}"),
        // Through a pointer of which nothing is known.
        format!("stw [r10-4], 1\nmov r4, r10\nadd r4, r2\nstxw [r4-4], r1\n{lookup}"),
        format!("stw [r10-4], 0\nmov r4, r10\nadd r4, -4\nlock add32 [r4], r1\n{lookup}"),
    ]
}

/// One test, since the calls are counted together.
#[test]
fn lookups_find_what_the_call_finds() {
    let mut slots = vec![0u64; 4096];
    let base = slots.as_mut_ptr() as u64;
    for stride in [1, 2, 4, 8, 12, 16, 24, 40, 256, 1 << 20] {
        for entries in [1, 2, 7, 1000, u32::MAX >> 1, u32::MAX] {
            let slot_stride = [stride * 16, 0x1_0000_0000][usize::from(entries == 7)];
            for kind in [
                ShapeKind::Array,
                ShapeKind::PercpuArray { slot_stride, slot_tls: slot_tls(), by_gs: false },
            ] {
                SLOT.set(3);
                let shape = MapShape { base, stride, entries, kind };
                let slot = if kind == ShapeKind::Array { 0 } else { 3 * slot_stride };
                for key in [0, 1, 6, 7, 999, 1000, 0x7fff_fffe, 0x7fff_ffff, 0x8000_0000, u32::MAX]
                {
                    let want =
                        if key < entries { base + slot + u64::from(key) * stride } else { 0 };
                    let cell = key;
                    let args = [u64::from(key), 0, &raw const cell as u64, 0, 0];
                    assert_eq!(
                        run(FROM_STACK, shape, args),
                        (want, vec![1, 0, 0]),
                        "{shape:?} {key}"
                    );
                    assert_eq!(
                        run(THROUGH_POINTER, shape, args),
                        (want, vec![1, 0, 0]),
                        "{shape:?} {key}"
                    );
                    for asm in numbers(key) {
                        assert_eq!(
                            run(&asm, shape, args),
                            (want, vec![1, 0, 0]),
                            "{shape:?} {key} {asm}"
                        );
                    }
                }
            }
        }
    }

    // Which map it is cannot be known where paths meet: then it is a call.
    let shape = MapShape { base, stride: 8, entries: 4, kind: ShapeKind::Array };
    assert_eq!(run(AFTER_A_LABEL, shape, [2, 0, 0, 0, 0]), (base + 16, vec![1, 1, 1]));
    // Nor inside a map that only its own code understands, or that has nothing in it.
    for shape in [MapShape { kind: ShapeKind::Opaque, ..shape }, MapShape { entries: 0, ..shape }] {
        let (_, calls) = run(FROM_STACK, shape, [2, 0, 0, 0, 0]);
        assert_eq!(calls, [1, 1, 1], "{shape:?}");
    }

    // A map's own function is called in place of the helper, with what it wants to be called with.
    DIRECT.set(0);
    let kind = ShapeKind::Direct { func: direct as *const () as u64, map: 0x1234_5678_9abc };
    let args = [2, 0, &raw const *Box::leak(Box::new(2_u32)) as u64, 0, 0];
    for asm in [FROM_STACK, THROUGH_POINTER] {
        assert_eq!(run(asm, MapShape { kind, ..shape }, args), (base + 16, vec![1, 0, 0]));
    }
    assert_eq!(DIRECT.get(), 4, "two programs, two engines that compile");
    assert_eq!(
        run(AFTER_A_LABEL, MapShape { kind, ..shape }, [2, 0, 0, 0, 0]),
        (base + 16, vec![1, 1, 1])
    );

    // The handle and addresses of values are plain constants.
    assert_eq!(run("lddw r0, map 0\nexit", shape, [0; 5]).0, 0x4d41_5000);
    assert_eq!(run("lddw r0, value 0+24\nexit", shape, [0; 5]).0, base + 24);

    // A program as clang writes it: counts by key in a loop, key and test of the result and all.
    let count = "mov r6, 0\nloop: mov r1, r6\nand r1, 7\nstxw [r10-4], r1\nmov r2, r10\nadd r2, -4\nlddw r1, map 0\ncall 1\n\
                 jeq r0, 0, skip\nldxdw r1, [r0]\nadd r1, r6\nstxdw [r0], r1\nskip: add r6, 1\njne r6, 100, loop\nmov r0, r6\nexit";
    assert_eq!(run(count, shape, [0; 5]), (100, vec![100, 0, 0]));
    let want: Vec<u64> = (0..4).map(|k| 3 * (0..100).filter(|n| n & 7 == k).sum::<u64>()).collect();
    assert_eq!(slots[..4], want);
}
