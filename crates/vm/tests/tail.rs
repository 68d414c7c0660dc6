//! Tail calls, on every engine: how many, which slots, what survives, and what is asked of the
//! helper.
#![cfg(target_arch = "x86_64")]

mod suite;

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use skep_isa::helper::id;
use skep_isa::{MapShape, ShapeKind, text};
use skep_vm::{Code, Env, HelperCall, HelperImpl, Malformed, MapRef, interp, tail};

const TAIL_CALL: u32 = id::TAIL_CALL;
const SLOTS: u32 = 4;

/// A process with one program array: what a host of the engines has to do.
struct Host {
    slots: [AtomicU32; SLOTS as usize],
    table: tail::Table,
    targets: RefCell<Vec<Arc<tail::Target>>>,
    asked: Cell<u32>,
    /// Generated code knows the array; else every call asks.
    known: bool,
}

thread_local! {
    static HOST: Cell<*const Host> = const { Cell::new(std::ptr::null()) };
}

unsafe extern "C" fn tail_call(_ctx: u64, map: u64, index: u64, _: u64, _: u64) -> u64 {
    // SAFETY: each test keeps its host until the end.
    let host = unsafe { &*HOST.get() };
    assert_eq!(map, 0x1111);
    host.asked.set(host.asked.get() + 1);
    let Some(slot) = u32::try_from(index).ok().and_then(|n| host.slots.get(n as usize)) else {
        return 0;
    };
    let id = slot.load(Relaxed);
    let targets = host.targets.borrow();
    let Some(target) = targets.iter().find(|t| t.id() == id) else { return 0 };
    host.table.set(index as u32, target);
    target.address()
}

/// Calls `n` times back.
unsafe extern "C" fn repeat(n: u64, callback: u64, data: u64, _: u64, _: u64) -> u64 {
    // SAFETY: the program passes the address of one of its functions.
    let f: skep_vm::HelperFn = unsafe { std::mem::transmute(callback as *const ()) };
    for round in 0..n {
        // SAFETY: as above.
        unsafe { f(round, data, 0, 0, 0) };
    }
    n
}

fn helpers(id: u32) -> Option<HelperImpl> {
    match id {
        TAIL_CALL => Some(HelperImpl { func: tail_call, how: HelperCall::TailCall }),
        0x9000 => Some(HelperImpl::plain(repeat)),
        _ => None,
    }
}

impl Host {
    fn new(known: bool) -> Box<Self> {
        let host = Box::new(Self {
            slots: Default::default(),
            table: tail::Table::new(SLOTS),
            targets: RefCell::default(),
            asked: Cell::new(0),
            known,
        });
        HOST.set(&raw const *host);
        host
    }

    fn with_env<T>(&self, f: impl FnOnce(&Env<'_>) -> T) -> T {
        let targets = if self.known { self.table.address() } else { 0 };
        let base = self.slots.as_ptr() as u64;
        let shape =
            MapShape { base, stride: 4, entries: SLOTS, kind: ShapeKind::ProgArray { targets } };
        f(&Env { maps: &[MapRef { handle: 0x1111, value: base, shape }], helper: &helpers })
    }

    /// Makes program `id` known, and puts it into a slot.
    fn put(&self, slot: usize, id: u32, asm: &str) {
        let insns = text::assemble(asm).unwrap_or_else(|e| panic!("{asm}: {e}"));
        let target = self.with_env(|env| {
            // SAFETY: test programs stay inside the memory they are given.
            let code = unsafe { Code::compile(&insns, env) }.unwrap();
            tail::Target::new(id, Some(code), Some(interp::Program::new(&insns, env).unwrap()))
        });
        self.targets.borrow_mut().push(Arc::new(target));
        self.slots[slot].store(id, Relaxed);
    }

    fn run(&self, engine: &str, asm: &str, ctx: u64) -> u64 {
        let insns = text::assemble(asm).unwrap_or_else(|e| panic!("{asm}: {e}"));
        self.with_env(|env| suite::run_in(engine, &insns, env, [ctx, 0, 0, 0, 0]))
            .unwrap_or_else(|e| panic!("{engine}: {e}"))
    }
}

/// Every engine, with the array known to generated code and not.
fn everywhere(test: impl Fn(&str, &Host)) {
    for engine in suite::ENGINES {
        for known in [true, false] {
            test(engine, &Host::new(known));
        }
    }
}

/// Counts its runs in the context and calls slot 0.
const AGAIN: &str = "ldxdw r6, [r1]\nadd r6, 1\nstxdw [r1], r6\nlddw r2, map 0\nmov r3, 0\ncall 12\nmov r0, r6\nexit";

#[test]
fn a_program_that_calls_itself_runs_34_times_in_every_run() {
    everywhere(|engine, host| {
        host.put(0, 5, AGAIN);
        let mut runs = 0u64;
        for round in 1..4 {
            assert_eq!(host.run(engine, AGAIN, &raw mut runs as u64), 34 * round, "{engine}");
            assert_eq!(runs, 34 * round, "{engine}");
        }
    });
}

#[test]
fn the_same_code_may_be_run_again_and_counts_anew() {
    let host = Host::new(true);
    host.put(0, 5, AGAIN);
    let target = host.targets.borrow()[0].clone();
    let mut runs = 0u64;
    for round in 1..4 {
        // SAFETY: the program adds to its context.
        unsafe { target.code().unwrap().entry()((&raw mut runs).cast()) };
        assert_eq!(runs, 34 * round);
    }
}

#[test]
fn nothing_to_call_falls_through() {
    everywhere(|engine, host| {
        host.put(1, 5, "mov r0, 55\nexit");
        host.slots[2].store(99, Relaxed);
        let call = |index: &str| {
            let asm = format!(
                "mov r6, 1\nmov r7, 2\nmov r8, 3\nmov r9, 4\nlddw r2, map 0\nlddw r3, {index}\ncall 12\nmov r0, r6\nlsh r0, 8\nor r0, r7\nlsh r0, 8\nor r0, r8\nlsh r0, 8\nor r0, r9\nexit"
            );
            host.run(engine, &asm, 0)
        };
        for none in
            ["0", "2", "3", "4", "0x7fffffff", "0x80000000", "0xffffffff", "0xffffffff00000000"]
        {
            assert_eq!(call(none), 0x0102_0304, "{engine}: {none}");
        }
        assert_eq!(call("1"), 55, "{engine}");
        // The index is a u32.
        assert_eq!(call("0xdead00000001"), 55, "{engine}");
    });
}

#[test]
fn a_tail_call_from_a_function_returns_to_its_caller() {
    everywhere(|engine, host| {
        // Destroys what it may: its own r6 to r9 and its whole stack.
        host.put(
            1,
            5,
            "mov r6, -1\nmov r7, -1\nmov r8, -1\nmov r9, -1\nstdw [r10-512], -1\nmov r2, r10\nldxdw r0, [r1]\nadd r0, 100\nexit",
        );
        let asm = "mov r6, 6\nmov r9, 9\nstdw [r10-8], 77\nstdw [r10-256], 1000\ncall local f\nmul r0, r6\nmul r0, r9\nldxdw r1, [r10-8]\nadd r0, r1\n\
                   ldxdw r1, [r10-256]\nadd r0, r1\nexit\n\
                   f: mov r7, 7\nmov r8, 8\nstdw [r10-8], 1\nlddw r2, map 0\nmov r3, 1\ncall 12\nmov r0, 1\nexit";
        let mut word = 11u64;
        assert_eq!(host.run(engine, asm, &raw mut word as u64), 111 * 54 + 1077, "{engine}");
    });
}

#[test]
fn functions_share_the_count_of_their_program() {
    everywhere(|engine, host| {
        host.put(0, 5, AGAIN);
        // 20 tail calls in a function, each returning here at once; then a chain with what is left.
        host.put(1, 6, "ldxdw r2, [r1]\nadd r2, 1\nstxdw [r1], r2\nmov r0, 0\nexit");
        let asm = "mov r6, r1\nmov r7, 20\nl: mov r1, r6\ncall local g\nsub r7, 1\njne r7, 0, l\nmov r1, r6\ncall local f\nldxdw r0, [r6]\nexit\n\
                   f: lddw r2, map 0\nmov r3, 0\ncall 12\nmov r0, 0\nexit\n\
                   g: mov r8, 8\ncall local h\nexit\nh: lddw r2, map 0\nmov r3, 1\ncall 12\nmov r0, 0\nexit";
        let mut runs = 0u64;
        host.run(engine, asm, &raw mut runs as u64);
        assert_eq!(runs, 33, "{engine}");
    });
}

/// A function that makes a tail call leaves the frames of its callers on the stack.
#[test]
fn tail_calls_of_functions_leave_stack_for_what_comes() {
    let function = |n: usize, then: &str| {
        format!(
            "f{n}: ldxdw r2, [r1+8]\njlt r2, r10, l{n}\nmov r2, r10\nl{n}: stxdw [r1+8], r2\n{then}\nmov r0, 0\nexit\n"
        )
    };
    let chain = |depth: usize| {
        let mut asm = "ldxdw r2, [r1]\nadd r2, 1\nstxdw [r1], r2\ncall local f1\nmov r0, 0\nexit\n"
            .to_owned();
        for n in 1..depth {
            asm += &function(n, &format!("call local f{}", n + 1));
        }
        asm + &function(depth, "lddw r2, map 0\nmov r3, 0\ncall 12")
    };
    for known in [true, false] {
        let host = Host::new(known);
        for (depth, least) in [(1, 34), (7, 6)] {
            let asm = chain(depth);
            host.put(0, depth as u32, &asm);
            // Runs, and the lowest frame.
            let mut words = [0, u64::MAX];
            let here = (&raw mut words) as u64;
            host.run("jit", &asm, here);
            assert!(words[0] >= least, "{depth}: {} runs", words[0]);
            assert!(here - words[1] < 28 << 10, "{depth}: {} bytes", here - words[1]);
        }
    }
}

#[test]
fn which_array_it_is_need_not_be_known() {
    everywhere(|engine, host| {
        host.put(3, 5, "mov r0, 55\nexit");
        let asm = "mov r3, 3\njeq r1, 0, other\nlddw r2, map 0\nja call\nother: lddw r2, map 0\ncall: call 12\nmov r0, 1\nexit";
        assert_eq!(host.run(engine, asm, 0), 55, "{engine}");
        assert_eq!(host.run(engine, asm, 1), 55, "{engine}");
    });
}

#[test]
fn the_context_arrives_and_registers_of_the_caller_do_not_matter() {
    everywhere(|engine, host| {
        host.put(0, 5, "mov r0, r1\nexit");
        let asm = "mov r6, r1\nmov r1, 9\nmov r4, 4\nmov r5, 5\nmov r1, r6\nadd r1, 8\nmay_goto e\ne: lddw r2, map 0\nmov r3, 0\ncall 12\nmov r0, 1\nexit";
        assert_eq!(host.run(engine, asm, 1000), 1008, "{engine}");
    });
}

#[test]
fn slots_may_change_at_any_time_and_the_helper_is_asked_once() {
    let host = Host::new(true);
    host.put(0, 5, "mov r0, 5\nexit");
    let asm = "lddw r2, map 0\nmov r3, 0\ncall 12\nmov r0, 1\nexit";
    let insns = text::assemble(asm).unwrap();
    // SAFETY: the programs touch no memory.
    let code = host.with_env(|env| unsafe { Code::compile(&insns, env) }).unwrap();
    // SAFETY: as above.
    let run = || (0..3).map(|_| unsafe { code.entry()(std::ptr::null_mut()) }).collect::<Vec<_>>();
    assert_eq!((run(), host.asked.take()), (vec![5; 3], 1));
    host.put(0, 6, "mov r0, 6\nexit");
    assert_eq!((run(), host.asked.take()), (vec![6; 3], 1));
    host.slots[0].store(0, Relaxed);
    assert_eq!((run(), host.asked.take()), (vec![1; 3], 0));
    // Somebody else's program that cannot be had here: asked every time, and never taken for
    // another.
    host.slots[0].store(7, Relaxed);
    assert_eq!((run(), host.asked.take()), (vec![1; 3], 3));
    host.slots[0].store(6, Relaxed);
    assert_eq!((run(), host.asked.take()), (vec![6; 3], 0));
    assert_eq!(host.table.find(6).map(|t| t.id()), Some(6));
    assert!(host.table.find(9).is_none());
}

#[test]
fn a_program_may_call_back_and_leave_but_not_from_the_callback() {
    everywhere(|engine, host| {
        host.put(
            0,
            5,
            "mov r1, 3\nlddw r2, func cb\nstdw [r10-8], 0\nmov r3, r10\nadd r3, -8\ncall 0x9000\nldxdw r0, [r10-8]\nexit\n\
                        cb: ldxdw r3, [r2]\nadd r3, 7\nstxdw [r2], r3\nmov r0, 0\nexit",
        );
        assert_eq!(
            host.run(engine, "lddw r2, map 0\nmov r3, 0\ncall 12\nmov r0, 1\nexit", 0),
            21,
            "{engine}"
        );
    });
    let host = Host::new(true);
    let asm = "mov r1, 1\nlddw r2, func cb\nmov r3, 0\ncall 0x9000\nexit\ncb: call local f\nexit\nf: lddw r2, map 0\nmov r3, 0\ncall 12\nmov r0, 0\nexit";
    let insns = text::assemble(asm).unwrap();
    let refused = host.with_env(|env| interp::Program::new(&insns, env)).map(|_| ());
    assert_eq!(
        refused,
        Err(interp::RunError::Malformed(Malformed::TailCallInCallback { insn: 6 }))
    );
}

#[test]
fn an_engine_that_lacks_the_program_says_so_or_falls_through() {
    let host = Host::new(true);
    host.targets.borrow_mut().push(Arc::new(tail::Target::new(5, None, None)));
    host.slots[0].store(5, Relaxed);
    let asm = "lddw r2, map 0\nmov r3, 0\ncall 12\nmov r0, 1\nexit";
    for _ in 0..2 {
        assert_eq!(host.run("jit", asm, 0), 1);
    }
    let insns = text::assemble(asm).unwrap();
    let got = host.with_env(|env| suite::run_in("interp", &insns, env, [0; 5]));
    assert_eq!(
        got,
        Err("instruction `3`: program `5` is compiled and cannot be interpreted".to_owned())
    );
}

/// Calls a program with known values in the registers that it has to keep; tells whether they are
/// still there, and r0.
fn kept_by(entry: unsafe extern "C" fn(*mut u8) -> u64, ctx: u64) -> (bool, u64) {
    let (r0, wrong): (u64, u64);
    // SAFETY: the program is a C function, and what it may change is declared.
    unsafe {
        std::arch::asm!(
            "push rbx", "push rbp", "mov rbx, 11", "mov rbp, 22", "mov r12, 33", "mov r13, 44", "mov r14, 55", "mov r15, rsp",
            "sub rsp, 256", "and rsp, -16", "call rax", "sub rbx, 11", "sub rbp, 22", "sub r12, 33", "sub r13, 44", "sub r14, 55",
            "mov rsp, r15", "or rbx, rbp", "or rbx, r12", "or rbx, r13", "or rbx, r14", "mov rcx, rbx", "pop rbp", "pop rbx",
            inout("rax") entry as *const () => r0, in("rdi") ctx, lateout("rcx") wrong,
            out("r12") _, out("r13") _, out("r14") _, out("r15") _, clobber_abi("C"),
        );
    }
    (wrong == 0, r0)
}

/// A tail call may stay in its function's frame when the other program would make the same;
/// whichever way, everything is as it was afterwards, the stack is the other's own, and its loops
/// have all their rounds.
#[test]
fn programs_share_frames_of_one_kind_and_no_others() {
    let call = |slot: u32, number: bool| {
        let index = if number {
            format!("mov r3, {slot}")
        } else {
            format!("ldxdw r3, [r1+8]\nand r3, 0\nadd r3, {slot}")
        };
        format!("lddw r2, map 0\n{index}\ncall 12\nmov r0, 1\nexit")
    };
    let count = "ldxdw r6, [r1]\nadd r6, 1\nstxdw [r1], r6\n";
    // Uses as many registers as asked, all of the stack, a loop with a constant, and `may_goto`.
    let program = |registers: u32, next: u32, number: bool| {
        let used: String = (7..7 + registers).map(|r| format!("mov r{r}, {r}\n")).collect();
        let stack = "stdw [r10-512], 5\nstdw [r10-8], 6\n";
        let rounds = "mov r0, 3\nl: may_goto e\nlddw r4, 0x123456789abcdef0\nstxdw [r10-16], r4\nsub r0, 1\njne r0, 0, l\ne: ";
        format!("{count}{used}{stack}{rounds}{}", call(next, number))
    };
    for number in [true, false] {
        for (a, b, c) in [(0, 0, 0), (1, 1, 1), (3, 3, 3), (0, 1, 2), (3, 0, 3), (2, 2, 0)] {
            let host = Host::new(true);
            host.put(0, 5, &program(a, 1, number));
            host.put(1, 6, &program(b, 2, number));
            host.put(2, 7, &program(c, 0, number));
            let target = host.targets.borrow()[0].clone();
            for round in 1..4 {
                let mut words = [0u64; 2];
                let got = kept_by(target.code().unwrap().entry(), words.as_mut_ptr() as u64);
                assert_eq!((got, words[0]), ((true, 1), 34), "{a} {b} {c}, round {round}");
            }
            // The last one has another frame, or none.
            for last in ["mov r0, 77\nexit", "mov r6, 70\nmov r9, 7\nmov r0, r6\nadd r0, r9\nexit"]
            {
                host.put(2, 8, last);
                assert_eq!(
                    kept_by(target.code().unwrap().entry(), [0u64; 2].as_mut_ptr() as u64),
                    (true, 77),
                    "{a} {b}"
                );
            }
        }
    }
}
