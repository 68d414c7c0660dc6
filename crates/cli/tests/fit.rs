//! `--btf-from`, `--btf` and `--set`: programs fitted to a build of the traced program, with
//! variables set.

mod common;

use common::{Skep, data, json, text};
use serde_json::{Value as Json, json};
use skep_testkit::TempDir;
use skep_testkit::cc::Cc;

fn build(dir: &TempDir, flags: &[&str]) -> String {
    let source = data("fields.c");
    Cc::c()
        .args(&["-O1", "-w"])
        .args(flags)
        .compile(&[source.as_ref()], &dir.join("fields"))
        .display()
        .to_string()
}

fn variables(report: &Json) -> Json {
    let maps = report["maps"].as_array().cloned().unwrap_or_default();
    let bss = maps.iter().find(|m| m["map"]["name"] == ".bss");
    bss.map(|m| m["entries"][0]["value"].clone()).unwrap_or_default()
}

#[test]
fn a_program_follows_the_structures_of_the_build_it_traces() {
    for flags in [&["-g"][..], &["-g", "-DWIDER"], &["-gdwarf-4", "-DWIDER", "-O2"]] {
        let (skep, dir) = (Skep::new(), TempDir::new());
        let program = build(&dir, flags);
        let ended = skep.run([
            "run",
            &data("fields.bpf.o"),
            "--btf-from",
            &program,
            "--json",
            "--",
            &program,
        ]);
        assert_eq!(ended.shell_status(), 0, "{flags:?} {}", ended.transcript());
        let want = json!({"calls": 10, "sum": 5 + 6 + 8 + 11 + 15 + 20 + 26 + 33 + 41 + 50, "age": 41, "level": 37, "has_money": 0});
        let found = variables(&json(&ended.stdout));
        assert_eq!(found, want, "{flags:?}");
    }
}

#[test]
fn variables_are_set_before_the_program_runs() {
    let (skep, dir) = (Skep::new(), TempDir::new());
    let program = build(&dir, &["-g", "-DWIDER"]);
    let run = |set: &[&str]| {
        let mut args = vec!["run", "--json", "--btf-from", &program];
        set.iter().for_each(|s| args.extend(["--set", s]));
        let object = data("fields.bpf.o");
        args.extend([object.as_str(), "--", &program]);
        let ended = skep.run(args);
        assert_eq!(ended.shell_status(), 0, "{}", ended.transcript());
        variables(&json(&ended.stdout))["calls"].clone()
    };
    assert_eq!(run(&["limit.min=20"]), 5);
    assert_eq!(run(&["limit.on=false"]), 0);
    assert_eq!(run(&["limit={ .min = 33, .on = true }", "calls=100"]), 103);
}

#[test]
fn what_cannot_be_fitted_or_set_is_said() {
    let (skep, dir) = (Skep::new(), TempDir::new());
    let program = build(&dir, &["-s"]);
    let refuse = |args: &[&str]| {
        let object = data("fields.bpf.o");
        let ended = skep.run(["prog", "verify", &object].iter().chain(args));
        assert_eq!(ended.shell_status(), 2, "{}", ended.transcript());
        text(&ended.stderr)
    };
    let e = refuse(&["--btf-from", &program]);
    assert!(
        e.contains("has no usable types: no debug information (DWARF)")
            && e.contains("hint: compile it with `-g`"),
        "{e}"
    );
    let e = refuse(&["--btf", &program]);
    assert!(e.contains("has no usable types: ELF file without type information"), "{e}");
    let e = refuse(&["--set", "limits=3"]);
    assert!(e.contains("--set: there is no global variable `limits`; there is `limit`, "), "{e}");
    let e = refuse(&["--set", "limit.min=5000000000"]);
    assert!(e.contains("--set: `limit.min`: 5000000000 does not fit `int`"), "{e}");
    let e = refuse(&["--set", "limit.min"]);
    assert!(e.contains("expected NAME=VALUE"), "{e}");
}
