//! Programs as clang makes them: typical tracers are accepted, typical mistakes refused in words
//! that help.

use skep_object::{Linked, Object};
use skep_verifier::{Options, verify};

fn programs(file: &str) -> Vec<Linked> {
    let path = format!("{}/tests/data/{file}", env!("CARGO_MANIFEST_DIR"));
    let object =
        Object::parse(&std::fs::read(path).expect("test data")).expect("a readable object");
    (0..object.programs.len()).map(|i| object.link(i).expect("a program that links")).collect()
}

#[test]
fn tracers_are_accepted() {
    let programs = programs("tracers.bpf.o");
    assert_eq!(programs.len(), 21);
    for p in programs {
        match verify(&p, &Options::default()) {
            // The longest is a loop of 5000 iterations.
            Ok(v) => assert!(v.info().processed < 60_000, "{}: {}", p.name, v.log()),
            Err(r) => panic!("{r}\n{}", r.log()),
        }
    }
}

#[test]
fn mistakes_are_refused_and_explained() {
    // Program, message, source text of the line, a word of the hint.
    let wanted = [
        ("forgets_null", "R0 invalid mem access 'map_value_or_null'", "*v += 1;", "NULL"),
        (
            "forgets_padding",
            "invalid read from stack R2 off -16+9 size 16",
            "bpf_map_delete_elem(&map, &k);",
            "padding",
        ),
        ("forgets_record", "Unreleased reference id=1 alloc_insn=5", "}", "submit"),
        (
            "off_by_one",
            "R2 max value is outside of the allowed memory range",
            "table[i]++;",
            "`< 16`",
        ),
        (
            "follows_user_pointers",
            "R1 invalid mem access 'scalar'",
            "return n->next->value;",
            "bpf_probe_read_user",
        ),
        ("loops_for_ever", "infinite loop detected at insn", "", "bound"),
        (
            "returns_something",
            "At program exit the register R0 has unknown scalar value should have been in [0, 0]",
            "return ctx[0];",
            "return",
        ),
        (
            "big_stack",
            "invalid variable-offset write to stack R2 var_off=(0x0; 0x1ff) off=-480 size=1",
            "buf[ctx->si & 511] = 1;",
            "",
        ),
    ];
    let programs = programs("refused.bpf.o");
    assert_eq!(programs.len(), wanted.len());
    for (name, message, line, hint) in wanted {
        let p = programs.iter().find(|p| p.name == name).expect("a program of that name");
        let Err(r) = verify(p, &Options::default()) else { panic!("{name} was accepted") };
        assert!(r.reason.to_string().starts_with(message), "{name}: {}", r.reason);
        assert!(r.line.as_ref().is_some_and(|l| l.text.contains(line)), "{name}: {:?}", r.line);
        assert!(
            hint.is_empty() || r.hint.as_deref().is_some_and(|h| h.contains(hint)),
            "{name}: {:?}",
            r.hint
        );
        assert!(
            !r.to_string().contains('\n')
                && r.to_string().starts_with(&format!("program `{name}` was rejected: ")),
            "{r}"
        );
        assert_eq!(r.path().last().map(|s| s.insn), Some(r.insn), "{name}");
        let last = r.log().lines().last().unwrap_or_default();
        assert!(
            last.starts_with("processed ")
                && last.contains(" insns (limit 1000000) max_states_per_insn "),
            "{name}: {last}"
        );
    }
}

#[test]
fn a_log_shows_path_registers_and_source() {
    let programs = programs("refused.bpf.o");
    let p = programs
        .iter()
        .find(|p| p.name == "follows_user_pointers")
        .expect("a program of that name");
    let Err(r) = verify(p, &Options::default()) else { panic!("accepted") };
    let want = "\
; struct node *n = (void *)ctx->di; @ refused.bpf.c:56
0: r1 = *(u64 *)(r1 +112)  ; R1=ctx()
; return n->next->value; @ refused.bpf.c:58
1: r1 = *(u64 *)(r1 +0)  ; R1=scalar()
R1 invalid mem access 'scalar'
processed 2 insns (limit 1000000) max_states_per_insn 0 total_states 0 peak_states 0 mark_read 0
";
    assert_eq!(r.log(), want);
    let mut quiet = Options::default();
    quiet.log_level = 0;
    let Err(r) = verify(p, &quiet) else { panic!("accepted") };
    assert_eq!(r.log(), "");
}

/// What skep cannot do is refused by its name, with the reason.
#[test]
fn what_is_not_supported_is_named_with_the_reason() {
    for (name, why) in [("bpf_throw", "unwind"), ("bpf_local_irq_save", "interrupts")] {
        let insns =
            skep_isa::text::assemble(&format!("mov %r1, 0\ncall {name}\nmov %r0, 0\nexit\n"))
                .expect("assembly");
        let prog = Linked::from_insns("case", skep_isa::ProgramType::SchedCls, insns);
        let e = verify(&prog, &Options::default()).expect_err("not supported");
        assert_eq!(e.reason.to_string(), format!("{name} is not supported by skep yet"));
        assert!(e.hint.as_deref().is_some_and(|h| h.contains(why)), "{:?}", e.hint);
    }
}
