//! The whole log reads as Linux 6.18 writes it: one grammar takes both, and on straight paths both
//! say the same of every register.
#![allow(clippy::print_stdout, reason = "how much was compared is worth seeing")]

mod case;
#[path = "log/grammar.rs"]
mod grammar;
mod kernel_bpf;

use grammar::Shape;
use skep_isa::{ProgramType, op};
use skep_object::{Linked, Object};
use skep_verifier::{Options, verify, verify_logged};
use std::collections::BTreeMap;

fn options() -> Options {
    let mut options = Options::default();
    options.log_level = 0;
    options.limit = 20_000;
    options
}

/// Our log, and whether the program is accepted.
fn ours(prog: &Linked) -> (bool, String) {
    let mut log = String::new();
    let accepted = verify_logged(prog, &options(), &mut log).is_ok();
    (accepted, log)
}

/// The programs of the committed objects that can be linked alone.
fn programs() -> Vec<Linked> {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut out = Vec::new();
    for file in [
        "../object/tests/data/several.bpf.o",
        "tests/data/tracers.bpf.o",
        "tests/data/refused.bpf.o",
        "../cli/bpf/args.bpf.o",
        "../cli/bpf/trace.bpf.o",
    ] {
        let object = Object::parse(&std::fs::read(dir.join(file)).expect("a committed object"))
            .expect("a readable object");
        out.extend((0..object.programs.len()).filter_map(|i| object.link(i).ok()));
    }
    assert!(out.len() > 25, "only {} programs", out.len());
    out
}

/// Takes a log apart; panics where it is not as the kernel's.
fn shapes(name: &str, accepted: bool, log: &str) -> BTreeMap<Shape, usize> {
    let mut seen = BTreeMap::new();
    let lines: Vec<&str> = log.lines().collect();
    // What is wrong is said in words, behind the last instruction.
    let is_insn = |line: &&str| matches!(grammar::shape(line), Ok(Shape::Insn | Shape::Changed));
    let words = if accepted {
        lines.len()
    } else {
        lines.iter().rposition(is_insn).map_or(0, |last| last + 1)
    };
    for (n, line) in lines.iter().enumerate() {
        let shape = match grammar::shape(line) {
            Ok(s) => s,
            Err(_) if n >= words => Shape::Reason,
            Err(at) => panic!("{name}, line {n}, at `{at}`: {line}\n{log}"),
        };
        *seen.entry(shape).or_default() += 1;
    }
    assert_eq!(lines.last().map(|l| grammar::shape(l)), Some(Ok(Shape::Summary)), "{name}: {log}");
    seen
}

#[test]
fn every_line_has_a_shape_that_the_kernels_log_has() {
    let mut seen: BTreeMap<Shape, usize> = BTreeMap::new();
    let cases = case::all().into_iter().map(|c| (c.name, c.prog));
    for (name, prog) in cases.chain(programs().into_iter().map(|p| (p.name.clone(), p))) {
        let (accepted, log) = ours(&prog);
        for (shape, n) in shapes(&name, accepted, &log) {
            *seen.entry(shape).or_default() += n;
        }
    }
    println!("{seen:?}");
    let wanted = [
        Shape::Function,
        Shape::Live,
        Shape::Source,
        Shape::Insn,
        Shape::Changed,
        Shape::State,
        Shape::From,
        Shape::FromSafe,
        Shape::Safe,
        Shape::Call,
        Shape::Return,
        Shape::Global,
        Shape::Reason,
        Shape::Summary,
    ];
    for shape in wanted {
        assert!(seen.contains_key(&shape), "no line of shape {shape:?}");
    }
}

/// What both say up to the first place where paths part: instructions, and registers that they
/// looked at or changed.
fn straight(log: &str) -> Vec<(String, BTreeMap<String, String>)> {
    let mut out: Vec<(String, BTreeMap<String, String>)> = Vec::new();
    for line in log.lines().filter(|l| !l.is_empty()) {
        match grammar::shape(line) {
            Ok(Shape::Insn | Shape::Changed) => {
                // The kernel's maps have addresses.
                let (insn, state) = line.split_once(';').map_or((line, ""), |(i, s)| (i, s));
                let insn =
                    insn.split(") r").next().filter(|_| insn.contains("(18)")).unwrap_or(insn);
                out.push((insn.trim_end().to_owned(), grammar::registers(state)));
            }
            // After a line of the kernel's own the state stands on a line by itself.
            Ok(Shape::State) => {
                if let (Some((_, regs)), Some((_, state))) = (out.last_mut(), line.split_once(':'))
                {
                    regs.extend(grammar::registers(state));
                }
            }
            Ok(
                Shape::From
                | Shape::FromSafe
                | Shape::Safe
                | Shape::Call
                | Shape::Return
                | Shape::Global
                | Shape::Summary,
            ) => break,
            _ => {}
        }
    }
    out
}

#[test]
fn linux_says_the_same_of_straight_paths() {
    let (mut asked, mut steps, mut same, mut other) = (0, 0, 0, BTreeMap::<String, u32>::new());
    // Types are words of their own there.
    let typed = |c: &case::Case| c.prog.btf.is_some() || c.target.is_some();
    let kfunc = |p: &Linked| p.insns.iter().any(|i| skep_verifier::cfg::is_kfunc(*i));
    for c in case::all()
        .into_iter()
        .filter(|c| c.prog.prog_type != ProgramType::Tracing && !kfunc(&c.prog) && !typed(c))
    {
        // Linux' log of a long walk is longer still.
        let loops = c
            .prog
            .insns
            .iter()
            .enumerate()
            .any(|(at, i)| matches!(i.class(), op::JMP | op::JMP32) && i.off < 0 && at > 0);
        if loops
            || verify(&c.prog, &options()).map_or_else(|r| r.processed(), |v| v.info().processed)
                > 1_000
        {
            continue;
        }
        let Some((taken, theirs)) =
            kernel_bpf::Prepared::new(&c.prog, None).ok().and_then(|p| p.log())
        else {
            continue;
        };
        asked += 1;
        shapes(&c.name, taken, &theirs);
        let (_, log) = ours(&c.prog);
        let (log, theirs) = (straight(&log), straight(&theirs));
        // Of a pointer that may be NULL the other path comes first here.
        let along = log.iter().zip(&theirs).take_while(|((ours, _), (theirs, _))| ours == theirs);
        for ((insn, regs), (_, their_regs)) in along {
            for (name, value) in regs {
                let Some(theirs) = their_regs.get(name) else { continue };
                steps += 1;
                if value == theirs {
                    same += 1;
                } else {
                    *other
                        .entry(format!("{}: {insn}: {name}={value}, Linux {theirs}", c.name))
                        .or_default() += 1;
                }
            }
        }
    }
    if asked == 0 {
        return skep_testkit::skip("the right to use bpf(2)");
    }
    for what in other.keys() {
        println!("{what}");
    }
    println!("{asked} programs, {steps} values, {same} alike");
    assert!(steps > 1_000 && same * 100 > steps * 97, "{same} of {steps} values are told alike");
}

#[test]
fn iterators_on_the_stack_have_their_names() {
    let asm = "mov %r1, %r10\nadd %r1, -8\nmov %r2, 0\nmov %r3, 3\ncall bpf_iter_num_new\n\
         l: mov %r1, %r10\nadd %r1, -8\ncall bpf_iter_num_next\njne %r0, 0, l\n\
         mov %r1, %r10\nadd %r1, -8\ncall bpf_iter_num_destroy\nmov %r0, 0\nexit";
    let insns = skep_isa::text::assemble(asm).expect("the test's own text");
    let (accepted, log) = ours(&Linked::from_insns("count", ProgramType::SchedCls, insns));
    assert!(accepted, "{log}");
    for wanted in ["fp-8=iter_num(ref_id=1,state=active", "fp-8=iter_num(ref_id=1,state=drained"] {
        assert!(log.contains(wanted), "{log}");
    }
}

/// Ways and functions in the order of the walk: what is put aside goes on where it was left.
#[test]
fn paths_and_functions_are_told() {
    let asm = "call get_prandom_u32\njeq %r0, 0, a\nmov %r0, 1\na: mov %r1, %r0\nmov %r2, 0\ncall local f\nmov %r0, 0\nexit\nf: mov %r0, %r1\nexit\n";
    let mut prog = Linked::from_insns(
        "p",
        ProgramType::SchedCls,
        skep_isa::text::assemble(asm).expect("the test's own text"),
    );
    let types = &case::types().btf;
    let type_id = types.find("g_number", |_| true).expect("a function");
    prog.subprogs.push(skep_object::Subprog {
        start: 8,
        name: "g_number".to_owned(),
        global: true,
        type_id,
    });
    prog.btf = Some(types.clone());
    let mut options = options();
    options.prune = skep_verifier::Prune::Always;
    let mut log = String::new();
    verify_logged(&prog, &options, &mut log).expect("accepted");
    let wanted = "\
5: (85) call pc+2
Func#1 ('g_number') is global and assumed valid.
6: R0=scalar()
6: (b7) r0 = 0                        ; R0=0
7: (95) exit

from 1 to 3: safe
Validating g_number() func#1...
8: R1=scalar() R2=scalar() R10=fp0
8: (bf) r0 = r1                       ; R0=scalar(id=1) R1=scalar(id=1)
9: (95) exit
Func#1 ('g_number') is safe for any args that match its prototype
processed 11 insns ";
    assert!(log.contains(wanted), "{log}");
}
