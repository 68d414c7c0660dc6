//! A dry run says what loading says: over every object that is committed here, program by program.

use std::path::{Path, PathBuf};

use skep::dir::Scratch;
use skep::load::Loader;
use skep::object::{CoreTarget, Object};
use skep::prove::DryRun;
use skep::test_run::{Engine, Runner};

/// Every object below `crates`.
fn objects() -> Vec<PathBuf> {
    fn walk(dir: &Path, out: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok) {
            let path = entry.path();
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => walk(&path, out),
                Ok(_) if path.to_str().is_some_and(|p| p.ends_with(".bpf.o")) => out.push(path),
                _ => {}
            }
        }
    }
    let mut out = Vec::new();
    walk(&Path::new(env!("CARGO_MANIFEST_DIR")).join(".."), &mut out);
    out.sort();
    assert!(out.len() > 50, "only {} objects were found", out.len());
    out
}

fn read(path: &Path) -> Option<Object> {
    Object::parse(&std::fs::read(path).expect("a file that was found")).ok()
}

/// Loads one program and makes it ready, as whoever runs it does; what went wrong in the loader's
/// words.
fn load(object: &Object, program: &str, target: Option<&CoreTarget>) -> Result<(), String> {
    let scratch = Scratch::create().expect("a directory");
    let loaded = Loader::new(scratch.dir())
        .autoload_only(program)
        .core_target(target)
        .load(object)
        .map_err(|e| e.to_string())?;
    for engine in [Engine::Jit, Engine::Interp] {
        Runner::new(scratch.dir(), &loaded, program, engine).map_err(|e| e.to_string())?;
    }
    Ok(())
}

fn agree(target: Option<&CoreTarget>) -> (usize, usize) {
    let (mut yes, mut no) = (0, 0);
    for (path, object) in objects().iter().filter_map(|path| Some((path, read(path)?))) {
        let answers = DryRun::new().core_target(target).each(&object);
        assert_eq!(answers.len(), object.programs.len());
        for (program, answer) in object.programs.iter().zip(answers) {
            let answer = answer.map_err(|e| e.to_string());
            assert_eq!(
                answer,
                load(&object, &program.name, target),
                "{}: {}",
                path.display(),
                program.name
            );
            *(if answer.is_ok() { &mut yes } else { &mut no }) += 1;
        }
    }
    (yes, no)
}

#[test]
fn the_answer_is_what_loading_says() {
    let (yes, no) = agree(None);
    assert!(
        yes > 150 && no > 30,
        "{yes} programs can run, {no} cannot: not both answers were asked for"
    );
}

#[test]
fn the_answer_is_what_loading_says_with_types_to_fit_to() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../verifier/tests/data/target.bpf.o");
    let target = CoreTarget::parse(&std::fs::read(path).expect("test data")).expect("types");
    agree(Some(&target));
}

/// What is accepted as Linux accepts it, and stays out for a reason that each has for itself.
#[test]
fn what_only_the_kernel_has_is_named() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/dry_run/kernel_only.bpf.o");
    let object = read(&path).expect("test data");
    // Program, and a part of the reason; nothing for those that run.
    let want = [
        (
            "wants_class",
            "bpf_get_cgroup_classid#17 cannot be called outside the kernel: it works on control groups",
        ),
        ("wants_timer", "bpf_timer_init#169 cannot be called outside the kernel"),
        (
            "wants_sockets",
            "bpf_sk_release#86 cannot be called outside the kernel: it works on sockets",
        ),
        ("wants_what_follows", "program `wants_class` was rejected"),
        ("runs_with_what_follows", ""),
        ("runs_alone", ""),
        ("wants_cpumask", "kernel function `bpf_cpumask_create` is not available"),
        ("wants_padding", "invalid read from stack R2 off -16+9 size 16"),
        ("wants_no_test", "R0 invalid mem access 'map_value_or_null'"),
        ("wants_a_type", "section `mystery/section` is of no known program type"),
        ("runs_on_given_registers", ""),
    ];
    let names: Vec<&str> = object.programs.iter().map(|p| p.name.as_str()).collect();
    assert_eq!(names, want.map(|(name, _)| name));
    for ((name, part), answer) in want.into_iter().zip(DryRun::new().each(&object)) {
        let said = answer.err().map(|e| e.to_string()).unwrap_or_default();
        assert!(said.contains(part) && said.is_empty() == part.is_empty(), "{name}: {said}");
    }
}
