//! How much of the address space tracing takes: `ulimit -v` counts what is mapped, used or not, and `ulimit -d` what may be written.

use std::process::Command;
use std::time::Duration;

use skep_testkit::cc::Build;
use skep_testkit::report::Report;
use skep_testkit::trace::skep_bin;
use skep_testkit::{TempDir, many, run};

const LIMIT: Duration = Duration::from_secs(300);

/// All of a program's 10,000 functions take less than 256 MiB of its address space; the shell that
/// starts it is traced too.
#[test]
fn ten_thousand_functions_fit_in_256_mib() {
    let report = many::traced(
        10_000,
        Build::O0,
        r#""$1" trace 'many:many_*' --json -o "$2" -- sh -c 'ulimit -v 262144; exec "$0"' "$3""#,
    );
    assert_eq!(
        (report.attached, report.missed, report.functions.len()),
        (10_000, 0, 10_000),
        "{:?}",
        report.skipped
    );
}

/// Under a limit that holds for skep as well.
#[test]
fn tracing_works_under_ulimit() {
    let report = many::traced(
        10_000,
        Build::O0,
        r#"ulimit -v 1000000; "$1" trace 'many:many_*' --json -o "$2" -- "$3""#,
    );
    assert_eq!(
        (report.attached, report.missed, report.functions.len()),
        (10_000, 0, 10_000),
        "{:?}",
        report.skipped
    );
}

/// A limit that is too low for skep is told before the command starts.
#[test]
fn too_low_a_limit_is_told_before_the_command_starts() {
    let dir = TempDir::new();
    let script = r#"ulimit -v 60000; exec "$1" trace '*' -- sh -c 'echo started'"#;
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh"]).arg(skep_bin()).env("SKEP_DIR", dir.join("skep"));
    let ended = run::run(&mut command, b"", LIMIT);
    assert_eq!(ended.shell_status(), 2, "{}", ended.transcript());
    assert!(ended.stdout.is_empty(), "{}", ended.transcript());
    assert!(ended.transcript().contains("memory"), "{}", ended.transcript());
}

/// Whatever data a program may have, and however short its functions are: it ends as it would alone.
#[test]
fn no_limit_of_data_ends_a_program() {
    let dir = TempDir::new();
    let program = many::build(10_000, Build::O2, dir.path());
    let expected = many::expected(10_000).to_string();
    for kib in (500..32_000).step_by(700) {
        let script =
            format!(r#""$0" -q trace '*' -o /dev/null -- sh -c 'ulimit -d {kib}; exec "$0"' "$1""#);
        let mut command = Command::new("sh");
        command.args(["-c", &script]).arg(skep_bin()).arg(&program);
        let ended = run::run(command.env("SKEP_DIR", dir.join("skep")), b"", LIMIT);
        let printed = String::from_utf8_lossy(&ended.stdout);
        assert_eq!(printed.trim(), expected, "{kib}: {}", ended.transcript());
    }
}

/// Ten times as many functions come with a library that is opened later: the maps grow with them,
/// and the program's own still count where they did.
#[test]
fn functions_of_a_library_opened_later_have_room() {
    let dir = TempDir::new();
    let source = dir.join("late.c");
    let mut text = String::new();
    for i in 0..5000 {
        text.push_str(&format!(
            "__attribute__((noinline)) long late_{i}(long x) {{ return x * {i} + 7; }}\n"
        ));
    }
    text.push_str("long late_all(long x) {\n");
    (0..5000).for_each(|i| text.push_str(&format!("x += late_{i}(x);\n")));
    text.push_str("return x; }\n");
    std::fs::write(&source, text).expect("the folder is ours");
    let library = skep_testkit::cc::Cc::c()
        .args(&["-O1", "-shared", "-fPIC"])
        .compile(&[&source], &dir.join("late.so"));
    let main = dir.join("main.c");
    let text = r#"#include <dlfcn.h>
        #include <stdio.h>
        __attribute__((noinline)) long own(long x) { __asm__ volatile(""); return x + 1; }
        int main(int argc, char **argv) {
            long x = argc;
            for (int i = 0; i < 100; i++) x = own(x);
            void *late = dlopen(argv[1], RTLD_NOW);
            long (*all)(long) = (long (*)(long))dlsym(late, "late_all");
            x = all(x);
            for (int i = 0; i < 100; i++) x = own(x);
            printf("%ld\n", x);
            return 0;
        }"#;
    std::fs::write(&main, text).expect("the folder is ours");
    let program =
        skep_testkit::cc::Cc::c().args(&["-O1", "-rdynamic"]).compile(&[&main], &dir.join("main"));
    let out = dir.join("report.json");
    let mut command = Command::new(skep_bin());
    command
        .args(["trace", "main:*", "late.so:late_*", "--json", "-o"])
        .arg(&out)
        .arg("--")
        .arg(&program)
        .arg(&library);
    let ended = run::run(command.env("SKEP_DIR", dir.join("skep")), b"", LIMIT);
    assert_eq!(ended.shell_status(), 0, "{}", ended.transcript());
    let report = Report::parse(&std::fs::read_to_string(&out).expect("there is a report"))
        .expect("it is whole");
    assert_eq!(
        (report.calls("main", "own"), report.calls("late.so", "late_all"), report.missed),
        (Some(200), Some(1), 0)
    );
    let late = report.functions.iter().filter(|f| f.module == "late.so").count();
    let skipped = report.skipped.iter().filter(|s| s.module == "late.so").count();
    assert_eq!(late + skipped, 5001, "{:?}", report.skipped);
    assert!(late > 4900, "{late}");
}
