//! What a proof tells about its program: whoever compiles and shows it relies on that.

#[allow(dead_code, reason = "cases are another test's")]
mod case;

use skep_isa::{AttachType, MapType, ProgramType, helper, kfunc, text};
use skep_object::{Btf, Linked, LinkedMap, MapSpec, Subprog};
use skep_verifier::{Info, Options, verify};
use std::sync::Arc;

fn prog(prog_type: ProgramType, asm: &str) -> Linked {
    Linked::from_insns("p", prog_type, text::assemble(asm).unwrap_or_else(|e| panic!("{e}\n{asm}")))
}

fn info(prog: &Linked, options: &Options) -> Info {
    verify(prog, options)
        .unwrap_or_else(|r| panic!("{}: {}\n{}", r.insn, r.reason, r.log()))
        .info()
        .clone()
}

const CALLS: &str = "\
stdw [%r10-8], 0
ldxw %r6, [%r1+16]
call get_prandom_u32
mov %r1, 0
call local f
mov %r1, 9
lddw %r2, func g
mov %r3, 0
mov %r4, 0
call loop
mov %r0, 0
exit
f: stdw [%r10-40], 0
mov %r0, 0
exit
g: stw [%r10-100], 0
mov %r0, 0
exit
";

#[test]
fn stack_calls_and_helpers_are_told() {
    for named in [true, false] {
        let mut prog = prog(ProgramType::Kprobe, CALLS);
        if !named {
            // Nobody need name the functions.
            prog.subprogs.clear();
        }
        let told = info(&prog, &Options::default());
        assert_eq!(told.subprogs, [(0, 8), (13, 40), (16, 100)]);
        assert_eq!(told.calls.iter().copied().collect::<Vec<_>>(), [(0, 1), (0, 2)]);
        assert_eq!(told.stack_depth, 16 + 112);
        assert_eq!(told.helpers.iter().copied().collect::<Vec<_>>(), [7, 181]);
        assert_eq!((told.max_ctx_read, told.ctx_write), (20, false));
    }
}

#[test]
fn states_are_counted() {
    let mut options = Options::default();
    options.prune = skep_verifier::Prune::Always;
    let asm = "call get_prandom_u32\njeq %r0, 0, a\na: jeq %r0, 1, b\nb: mov %r0, 0\nexit\n";
    let told = info(&prog(ProgramType::Kprobe, asm), &options);
    // Stored at the jumps and at their targets: once each, and twice where two states arrive.
    assert!(
        told.total_states >= 4 && told.peak_states >= 3 && told.peak_states <= told.total_states,
        "{told:?}"
    );
    assert!((1..=told.total_states).contains(&told.max_states_per_insn), "{told:?}");
    assert_eq!(told.subprogs, [(0, 0)]);
}

#[test]
fn objects_on_the_stack_need_stack() {
    let asm = "\
mov %r1, %r10
add %r1, -24
mov %r2, 0
mov %r3, 4
call bpf_iter_num_new
mov %r1, %r10
add %r1, -24
call bpf_iter_num_destroy
mov %r0, 0
exit
";
    let told = info(&prog(ProgramType::Kprobe, asm), &Options::default());
    assert_eq!(told.subprogs, [(0, 24)]);
    let ids = ["bpf_iter_num_new", "bpf_iter_num_destroy"]
        .map(|n| kfunc::by_name(n).map_or_else(|| helper::kfunc(n).map_or(0, |h| h.id), |k| k.0));
    assert_eq!(told.helpers.iter().copied().collect::<Vec<_>>(), ids);
    let asm = "\
lddw %r1, value 0
mov %r2, 8
mov %r3, 0
mov %r4, %r10
add %r4, -48
call dynptr_from_mem
mov %r0, 0
exit
";
    let mut prog = prog(ProgramType::Kprobe, asm);
    prog.maps.push(LinkedMap { index: 0, spec: MapSpec::new("m", MapType::Array, 4, 8, 1) });
    assert_eq!(info(&prog, &Options::default()).subprogs, [(0, 48)]);
}

#[test]
fn a_timers_function_has_its_own_stack() {
    let asm = "\
lddw %r1, value 0
add %r1, 8
lddw %r2, func f
call timer_set_callback
mov %r0, 0
exit
f: stdw [%r10-64], 0
mov %r0, 0
exit
";
    let mut prog = prog(ProgramType::SchedCls, asm);
    let mut spec = MapSpec::new("m", MapType::Array, 4, 24, 1);
    spec.value_type_id = case::types().btf.find("timed", |_| true).expect("a type");
    prog.maps.push(LinkedMap { index: 0, spec });
    prog.btf = Some(case::types().btf.clone());
    assert_eq!(info(&prog, &Options::default()).subprogs, [(0, 0), (8, 64)]);
}

#[test]
fn accesses_of_the_context_are_told() {
    let asm = "ldxw %r2, [%r1]\nldxw %r3, [%r1+4]\nldxw %r4, [%r1+8]\nldxw %r5, [%r1+12]\nmov %r0, 0\nexit\n";
    let told = info(&prog(ProgramType::Xdp, asm), &Options::default());
    assert_eq!(told.packet_loads.iter().copied().collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!((told.max_ctx_read, told.ctx_write), (16, false));
    let stores = info(
        &prog(ProgramType::SchedCls, "stw [%r1+8], 0\nmov %r0, 0\nexit\n"),
        &Options::default(),
    );
    assert_eq!((stores.max_ctx_read, stores.ctx_write), (12, true));
    // Also by a helper, where it is memory.
    for (call, writes) in [
        ("mov %r2, 16\ncall get_current_comm", true),
        ("mov %r2, 16\nmov %r3, 0\ncall trace_printk", false),
    ] {
        let told = info(
            &prog(ProgramType::Syscall, &format!("{call}\nmov %r0, 0\nexit\n")),
            &Options::default(),
        );
        assert_eq!((told.max_ctx_read, told.ctx_write), (16, writes), "{call}");
    }
}

#[test]
fn loads_from_objects_are_told() {
    let asm = "ldxdw %r6, [%r1]\nldxw %r0, [%r6]\nldxdw %r7, [%r6+24]\nldxdw %r0, [%r6+48]\nmov %r0, 0\nexit\n";
    let mut prog = prog(ProgramType::Tracing, asm);
    prog.attach_type = Some(AttachType::TraceRawTp);
    prog.target = Some("waking".to_owned());
    let mut options = Options::default();
    options.target = Some(case::target_types().btf.clone());
    // The context has pointers that are there; a number, a pointer, a pointer of the user's.
    assert_eq!(info(&prog, &options).object_loads.iter().copied().collect::<Vec<_>>(), [1, 2, 3]);
}

/// Compilers do not make such a function; types of a file can say anything.
#[test]
fn a_global_function_has_at_most_five_arguments() {
    for count in [5u32, 6] {
        let (int, proto, func) =
            ([1, 1 << 24, 4, 32], [0, 13 << 24 | count, 1], [5, 12 << 24 | 1, 2]);
        let params = (0..count).flat_map(|_| [1, 1]);
        let words: Vec<u32> = int.into_iter().chain(proto).chain(params).chain(func).collect();
        let (size, strings) = (words.len() as u32 * 4, b"\0u32\0f\0");
        let head = [0x0001_eb9f, 24, 0, size, size, strings.len() as u32];
        let bytes: Vec<u8> =
            head.into_iter().chain(words).flat_map(u32::to_le_bytes).chain(*strings).collect();
        let mut p = prog(
            ProgramType::Kprobe,
            "mov %r1, 0\nmov %r2, 0\nmov %r3, 0\nmov %r4, 0\nmov %r5, 0\ncall local f\nexit\nf: mov %r0, 0\nexit\n",
        );
        p.btf = Some(Arc::new(Btf::parse(&bytes).expect("types")));
        p.subprogs.push(Subprog { start: 7, name: "f".to_owned(), global: true, type_id: 3 });
        if count == 5 {
            let told = info(&p, &Options::default());
            assert_eq!(
                (told.calls.into_iter().collect::<Vec<_>>(), told.subprogs),
                (vec![(0, 1)], vec![(0, 0), (7, 0)])
            );
        }
        let got = verify(&p, &Options::default()).map(|_| ()).map_err(|r| r.reason.to_string());
        let want = if count == 5 {
            Ok(())
        } else {
            Err("Global function f() with 6 > 5 args. Buggy compiler.".to_owned())
        };
        assert_eq!(got, want);
    }
}

/// Linux puts aside as many.
#[test]
fn so_many_paths_may_be_open() {
    for (paths, ok) in [(8192, true), (8193, false)] {
        let jumps: String = (0..paths).map(|n| format!("jeq %r0, {}, out\n", n + 5)).collect();
        let p = prog(
            ProgramType::Kprobe,
            &format!("call get_prandom_u32\n{jumps}out: mov %r0, 0\nexit\n"),
        );
        let mut options = Options::default();
        options.log_level = 0;
        let got = verify(&p, &options).map(|_| ()).map_err(|r| r.reason.to_string());
        assert_eq!(got.is_ok(), ok, "{got:?}");
        assert!(
            got.err()
                .is_none_or(|why| why.starts_with("The sequence of 8193 jumps is too complex"))
        );
    }
}

/// The steps of a rejection are those of the path that was wrong, and no others; each with the
/// registers it touches as they were.
#[test]
fn the_steps_of_a_rejection_are_its_path() {
    let steps = |p: &Linked| {
        let r = verify(p, &Options::default()).expect_err("refused");
        (r.path().iter().map(|s| s.insn).collect::<Vec<_>>(), r.insn, r.reason.to_string())
    };
    // The path that falls through is walked first, and is right.
    let p = prog(
        ProgramType::Kprobe,
        "call get_prandom_u32\njne %r0, 0, bad\nmov %r0, 0\nexit\nbad: mov %r0, %r5\nexit\n",
    );
    assert_eq!(steps(&p), (vec![0, 1, 4], 4, "R5 !read_ok".to_owned()));
    // In a loop that forgets what its turns counted.
    let asm = "mov %r6, 0\nnext: may_goto out\nadd %r6, 1\nja next\nout: jgt %r6, 200, bad\nmov %r0, 0\nexit\n\
        bad: mov %r1, %r10\nadd %r1, %r6\nldxdw %r0, [%r1]\nexit\n";
    let p = prog(ProgramType::Kprobe, asm);
    let r = verify(&p, &Options::default()).expect_err("refused");
    let touched = |r: &skep_verifier::Rejection| {
        r.path().iter().map(|s| (s.insn, s.regs.clone())).collect::<Vec<_>>()
    };
    let seen = touched(&r);
    assert_eq!(
        seen.iter().filter(|(insn, _)| *insn == 2).count(),
        4,
        "turns on the path: {seen:?}"
    );
    let (first, last) = (&seen[..3], &seen[seen.len() - 4..]);
    assert_eq!(first, [(0, vec![]), (1, vec![]), (2, vec![(6, "0".to_owned())])]);
    let (forgotten, above) =
        ("scalar(smin=0,smax=umax=0xffffffff", "scalar(smin=umin=umin32=201,smax=umax=0xffffffff");
    let wanted = [
        (4, vec![(6, forgotten)]),
        (7, vec![]),
        (8, vec![(1, "fp0"), (6, above)]),
        (9, vec![(1, "fp(smin=umin=umin32=201")]),
    ];
    for ((insn, regs), (at, want)) in last.iter().zip(&wanted) {
        let same = regs.len() == want.len()
            && regs.iter().zip(want).all(|(r, w)| r.0 == w.0 && r.1.starts_with(w.1));
        assert!(insn == at && same, "{insn}: {regs:?}, wanted {at}: {want:?}");
    }
    // Behind a path with such a loop: nothing of it.
    let asm = "call get_prandom_u32\njne %r0, 0, bad\nmov %r6, 0\nnext: may_goto out\nadd %r6, 1\nja next\nout: mov %r0, 0\nexit\n\
        bad: mov %r7, 8\nmov %r8, 9\nadd %r7, %r8\nadd %r8, %r7\nadd %r8, %r7\nadd %r8, %r7\nldxdw %r0, [%r8]\nexit\n";
    let r = verify(&prog(ProgramType::Kprobe, asm), &Options::default()).expect_err("refused");
    let numbers: Vec<_> = r
        .path()
        .iter()
        .flat_map(|s| s.regs.iter().map(move |(_, text)| (s.insn, text.as_str())))
        .collect();
    let wanted = [
        (10, "8"),
        (10, "9"),
        (11, "17"),
        (11, "9"),
        (12, "17"),
        (12, "26"),
        (13, "17"),
        (13, "43"),
        (14, "60"),
    ];
    assert_eq!(numbers[numbers.len() - wanted.len()..], wanted);
    // In a function that is proved alone: nothing of the program before it.
    let asm = "mov %r6, 0\nnext: may_goto out\nadd %r6, 1\nja next\nout: mov %r1, 1\nmov %r2, 2\ncall local f\nmov %r0, 0\nexit\n\
        f: mov %r6, %r1\nmov %r7, 8\nmov %r8, 9\nadd %r7, %r8\nadd %r8, %r7\nadd %r8, %r7\nldxdw %r0, [%r8]\nexit\n";
    let mut p = prog(ProgramType::SchedCls, asm);
    let types = &case::types().btf;
    let type_id = types.find("g_number", |_| true).expect("a function");
    p.subprogs.push(Subprog { start: 9, name: "g_number".to_owned(), global: true, type_id });
    p.btf = Some(types.clone());
    let r = verify(&p, &Options::default()).expect_err("refused");
    let regs =
        |of: &[(u8, &str)]| of.iter().map(|(r, t)| (*r, (*t).to_owned())).collect::<Vec<_>>();
    let wanted = [
        (9, regs(&[(1, "scalar()")])),
        (10, vec![]),
        (11, vec![]),
        (12, regs(&[(7, "8"), (8, "9")])),
        (13, regs(&[(7, "17"), (8, "9")])),
        (14, regs(&[(7, "17"), (8, "26")])),
        (15, regs(&[(8, "43")])),
    ];
    assert_eq!(touched(&r), wanted);
}

/// The walk goes deep first and finds this fault behind three tests and a loop; the path that a
/// person is shown is the shortest there is.
#[test]
fn the_path_shown_is_the_shortest() {
    let asm = "call get_prandom_u32\nmov %r6, 0\njeq %r0, 1, bad\nmov %r7, 7\njeq %r0, 2, bad\nloop: add %r6, 1\njlt %r6, 9, loop\n\
        mov %r8, 8\nbad: ldxdw %r0, [%r6]\nexit\n";
    let p = prog(ProgramType::Kprobe, asm);
    let r = verify(&p, &Options::default()).expect_err("refused");
    assert_eq!((r.insn, r.reason.to_string()), (8, "R6 invalid mem access 'scalar'".to_owned()));
    assert_eq!(r.path().iter().map(|s| s.insn).collect::<Vec<_>>(), [0, 1, 2, 8]);
    assert_eq!(r.path().iter().filter(|s| s.matters).map(|s| s.insn).collect::<Vec<_>>(), [1, 8]);
    // Who wants the reason alone does not wait for it.
    let mut options = Options::default();
    options.log_level = 0;
    let r = verify(&p, &options).expect_err("refused");
    assert!(
        r.path().len() > 20 && r.path().iter().all(|s| s.regs.is_empty() && !s.matters),
        "{:?}",
        r.path()
    );
    // Nor is another fault, which is nearer, shown for it: the walk came by this one first.
    let asm = "call get_prandom_u32\njeq %r0, 1, other\nmov %r6, 0\nldxdw %r0, [%r6]\nother: ldxdw %r0, [%r5]\nexit\n";
    let r = verify(&prog(ProgramType::Kprobe, asm), &Options::default()).expect_err("refused");
    assert_eq!(
        (r.insn, r.path().iter().map(|s| s.insn).collect::<Vec<_>>()),
        (3, vec![0, 1, 2, 3])
    );
}

/// Where stack may be read that was never written, it matters no more than stack that holds
/// something unknown: one path stands for both.
#[test]
fn unwritten_stack_need_not_be_told_from_unknown_stack() {
    let asm = "call get_prandom_u32\nmov %r6, %r0\njeq %r6, 0, on\nstxdw [%r10-8], %r6\non: mov %r0, 0\nmov %r6, 0\nmov %r7, 0\nexit\n";
    let mut options = Options::default();
    options.prune = skep_verifier::Prune::Always;
    let mut walked = |allow, strict| {
        (options.allow_uninit_stack, options.strict) = (allow, strict);
        info(&prog(ProgramType::Kprobe, asm), &options).processed
    };
    // The second path ends at the instruction where they meet, or is walked to its end.
    assert_eq!([walked(true, false), walked(false, false), walked(true, true)], [9, 12, 12]);
}

/// How many processors there are says nothing of where a program will run.
#[test]
fn the_number_of_processors_counts_for_programs_that_are_judged_only() {
    let asm = "call get_smp_processor_id\nlddw %r1, value 0\nadd %r1, %r0\nldxb %r0, [%r1]\nmov %r0, 0\nexit\n";
    let mut prog =
        Linked::from_insns("p", ProgramType::Kprobe, text::assemble(asm).expect("assembly"));
    prog.maps.push(LinkedMap { index: 0, spec: MapSpec::new("m", MapType::Array, 4, 8, 1) });
    let judge = |processors, offered_only| {
        let mut options = Options::default();
        (options.processors, options.offered_only) = (processors, offered_only);
        verify(&prog, &options).map(drop).map_err(|r| r.to_string())
    };
    assert_eq!(judge(8, false), Ok(()));
    let said = judge(9, false).expect_err("nine processors, eight bytes");
    assert!(said.contains("bytes 8..9 of a value of 8: the index may be 8"), "{said}");
    let said = judge(8, true).expect_err("it may run elsewhere");
    assert!(said.contains("the index may be 4095"), "{said}");
}

/// Each level of nested loops adds to what is walked, and does not multiply it; whether they take few
/// turns or many, and whether what they add up decides something. Linux 6.18 walks 90 instructions for
/// each level of the first kind, and 468 of the second kind at three levels.
#[test]
fn nested_loops_are_walked_once_a_level() {
    let call = |turns: u32, what: &str, to: usize| {
        format!("mov %r1, {turns}\nlddw %r2, func f{to}\n{what}\nmov %r4, 0\ncall loop\n")
    };
    let nested = |levels: usize, turns: u32, decides: bool| {
        let first = call(turns, "mov %r3, %r10\nadd %r3, -8", levels - 1);
        let mut asm = format!("stdw [%r10-8], 0\n{first}ldxdw %r0, [%r10-8]\nand %r0, 3\nexit\n");
        for level in (0..levels).rev() {
            asm += &format!("f{level}: mov %r6, %r2\nldxdw %r3, [%r6+0]\n");
            asm += "add %r3, %r1\nstxdw [%r6+0], %r3\n";
            if let Some(inner) = level.checked_sub(1) {
                asm += &call(turns, "mov %r3, %r6", inner);
                if decides {
                    asm += &format!("ldxdw %r1, [%r6+0]\njgt %r1, 1000, out{level}\n");
                    asm += &call(turns, "mov %r3, %r6", inner);
                    asm += &format!("mov %r0, 0\nexit\nout{level}: ");
                }
            }
            asm += "mov %r0, 0\nexit\n";
        }
        info(&prog(ProgramType::Kprobe, &asm), &Options::default()).processed
    };
    let walked: Vec<u32> = (3..8).map(|levels| nested(levels, 4, false)).collect();
    for two in walked.windows(2) {
        assert!(two[1] < two[0] * 2, "{walked:?}");
    }
    let walked: Vec<u32> = (2..5).map(|levels| nested(levels, 100, true)).collect();
    for two in walked.windows(2) {
        // Each calls two.
        assert!(two[1] < two[0] * 5, "{walked:?}");
    }
}
