//! Words of a tracing program's context, beside what is known of the function that it is attached
//! to.

use skep_isa::{AttachType, ProgramType, text};
use skep_object::{Access, Linked, Object, Prototype};
use skep_verifier::{Attached, Options, verify};
use std::sync::Arc;

fn judge(attach: AttachType, asm: &str, attached: Attached) -> Result<Vec<Access>, String> {
    let mut prog =
        Linked::from_insns("p", ProgramType::Tracing, text::assemble(asm).expect("good text"));
    prog.attach_type = Some(attach);
    let mut options = Options::default();
    options.attached = attached;
    match verify(&prog, &options) {
        Ok(proof) => Ok(proof.info().ctx_reads.iter().copied().collect()),
        Err(r) => Err(format!("{} | {}", r.reason, r.hint.unwrap_or_default())),
    }
}

/// `int f(unsigned long long *ctx)`, out of an object's types.
fn prototype() -> Arc<Prototype> {
    let object = std::fs::read(format!("{}/tests/data/tracers.bpf.o", env!("CARGO_MANIFEST_DIR")))
        .expect("it is committed");
    let object = Object::parse(&object).expect("it is good");
    let btf = object.btf.as_deref().expect("it has types");
    let all = object.programs.iter().filter_map(|p| Prototype::from_btf(btf, &p.name));
    Arc::new(
        all.into_iter()
            .find(|p| p.words().len() == 1 && p.ret_words().len() == 1)
            .expect("programs are functions of one argument"),
    )
}

fn read(word: usize) -> String {
    format!("ldxdw %r0, [%r1+{}]\nmov %r0, 0\nexit\n", word * 8)
}

#[test]
fn without_types_there_are_six_words() {
    let untyped = || Attached::Untyped { function: "f".to_owned() };
    for attach in [
        AttachType::TraceFentry,
        AttachType::TraceFexitMulti,
        AttachType::TraceFsession,
        AttachType::ModifyReturn,
    ] {
        assert_eq!(judge(attach, &read(5), untyped()), Ok(vec![Access { off: 40, size: 8 }]));
        let e = judge(attach, &read(6), untyped()).expect_err("it is no argument and no result");
        assert!(e.starts_with("func 'f' is not known by its types") && e.contains("ctx[6]"), "{e}");
        assert!(["bpf_get_func_ret", "-g", "--btf-from"].iter().all(|w| e.contains(w)), "{e}");
        assert!(
            judge(attach, &read(6), Attached::Anything).is_ok(),
            "who does not attach it does not judge that"
        );
    }
}

#[test]
fn with_types_there_are_the_arguments_and_behind_them_the_result() {
    let typed = || Attached::Typed { prototype: prototype(), first: None };
    for attach in [AttachType::TraceFentry, AttachType::TraceFexit] {
        assert!(judge(attach, &read(0), typed()).is_ok());
    }
    assert!(judge(AttachType::TraceFexit, &read(1), typed()).is_ok());
    assert!(judge(AttachType::TraceFsessionMulti, &read(1), typed()).is_ok());
    let e = judge(AttachType::TraceFentry, &read(1), typed()).expect_err("there is no result yet");
    assert!(e.contains("has its result only when it has returned"), "{e}");
    for word in [2, 5, 6, 12] {
        let e =
            judge(AttachType::TraceFexit, &read(word), typed()).expect_err("there is no such word");
        assert!(e.contains(&format!("doesn't have {}-th argument", word + 1)), "{e}");
    }
}
