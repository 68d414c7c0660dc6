//! What `skep trace` does where it cannot trace, and with statuses, pipes and many functions.

use std::process::Command;
use std::time::Duration;

use skep_testkit::cc::{Build, Cc};
use skep_testkit::report::Report;
use skep_testkit::trace::{self, skep_bin};
use skep_testkit::{TempDir, many, run, target};

const LIMIT: Duration = Duration::from_secs(300);

/// A static program has no loader to preload an agent: it is traced from before `main` all the same.
#[test]
fn static_program_is_traced() {
    let program = target::named("args").build(Build::Static);
    let dir = TempDir::in_memory();
    let out = dir.join("report.json");
    let mut command = Command::new(skep_bin());
    command
        .args(["trace", "args:*", "--json", "-o"])
        .arg(&out)
        .arg("--")
        .args(program.command_line())
        .env("SKEP_DIR", dir.join("skep"));
    let (ended, own) = program.run_counted(&mut command, LIMIT);
    let text = std::fs::read_to_string(&out)
        .unwrap_or_else(|e| panic!("no report: {e}: {}", ended.transcript()));
    let report = Report::parse(&text).unwrap();
    assert!(!own.is_empty(), "{}", ended.transcript());
    for (function, calls) in &own {
        assert_eq!(report.calls("args", function), Some(*calls), "{function}");
    }
}

/// The report carries the command's status: every value main can return, and deaths by signal.
#[test]
fn status_of_the_command_is_reported() {
    let program = target::named("status").build(Build::O2);
    for (argument, expected) in
        [("0", 0), ("1", 1), ("2", 2), ("255", 255), ("1009", 137), ("1015", 143), ("1006", 134)]
    {
        let dir = TempDir::in_memory();
        let out = dir.join("report.json");
        let mut command = Command::new(skep_bin());
        command
            .args(["trace", "status:step", "--json", "-o"])
            .arg(&out)
            .arg("--")
            .arg(&program.path)
            .arg(argument);
        let (ended, own) = program.run_counted(command.env("SKEP_DIR", dir.join("skep")), LIMIT);
        let text = std::fs::read_to_string(&out)
            .unwrap_or_else(|e| panic!("no report: {e}: {}", ended.transcript()));
        let report = Report::parse(&text).unwrap();
        let signal = if expected > 128 { 128 - expected } else { expected };
        assert!(
            report.status == expected || report.status == signal,
            "{argument}: {}",
            report.status
        );
        assert_eq!((own["step"], report.calls("status", "step")), (19, Some(19)), "{argument}");
    }
}

/// Without `-o`, a report is one JSON document after the command's own output.
#[test]
fn report_follows_the_output() {
    let program = target::named("echo").build(Build::O2);
    let dir = TempDir::in_memory();
    let mut command = Command::new(skep_bin());
    command
        .args(["trace", "echo:*", "--json", "--"])
        .arg(&program.path)
        .env("SKEP_DIR", dir.join("skep"));
    let ended = run::run(&mut command, b"some input\n", LIMIT);
    let stdout = String::from_utf8(ended.stdout.clone()).unwrap();
    let report =
        stdout.strip_prefix("some input\n").unwrap_or_else(|| panic!("{}", ended.transcript()));
    assert_eq!(Report::parse(report).unwrap().calls("echo", "put"), Some(1));
}

/// Ten thousand functions at once, each called once.
#[test]
fn ten_thousand_functions() {
    let script = r#""$1" trace 'many:many_*' --json -o "$2" -- "$3""#;
    let report = many::traced(10_000, Build::O2, script);
    assert_eq!(
        (report.matched, report.attached, report.missed),
        (10_000, 10_000, 0),
        "{:?}",
        report.skipped
    );
    assert_eq!(report.functions.len(), 10_000);
    assert!(report.functions.iter().all(|function| function.calls == 1));
}

/// A parent's time contains its children's, and self times add up to no more than the whole: of times
/// that were measured. An estimate may be larger, if the machine paused a call of the sample.
#[test]
fn times_nest() {
    let program = target::named("recursion").build(Build::O2);
    let traced = trace::run(&program, &["--exact".to_owned(), "recursion:*".to_owned()]);
    let row = |name: &str| traced.report.functions.iter().find(|row| row.name == name).unwrap();
    let main = row("main");
    let selves: u64 = traced
        .report
        .functions
        .iter()
        .filter(|row| row.module == main.module)
        .map(|row| row.self_ns)
        .sum();
    assert!(
        selves <= main.total_ns + main.total_ns / 10,
        "self times add up to {selves}, main took {}",
        main.total_ns
    );
    for name in ["down", "even", "odd", "ackermann"] {
        assert!(row(name).self_ns <= row(name).total_ns, "{name}");
    }
}

/// Threads whose stacks are as small as the C library lets them be open a library: what is done then took
/// more than there was.
#[test]
fn libraries_that_are_opened_on_small_stacks() {
    let dir = TempDir::in_memory();
    let source = dir.join("opens.c");
    std::fs::write(
        &source,
        r#"#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
static void *open_it(void *library) { return dlopen(library, RTLD_NOW); }
int main(int argc, char **argv) {
    pthread_attr_t attr;
    pthread_t thread;
    void *opened = 0;
    if (argc < 3)
        return 7;
    pthread_attr_init(&attr);
    if (pthread_attr_setstacksize(&attr, atoi(argv[1])) || pthread_create(&thread, &attr, open_it, argv[2]))
        return 9;
    pthread_join(thread, &opened);
    return opened ? puts("opened") == EOF : 8;
}
"#,
    )
    .expect("ours");
    let program = Cc::c()
        .args(&["-pthread", "-ldl"])
        .build(Build::O2)
        .compile(&[&source], &dir.join("opens"));
    let library = Cc::c()
        .args(&["-shared", "-fPIC"])
        .build(Build::O2)
        .compile(&[&target::sources().join("plugin.c")], &dir.join("plugin.so"));
    let mut opened = 0;
    for size in (16..=64).step_by(4).map(|kib| (kib << 10).to_string()) {
        let alone = run::run(Command::new(&program).arg(&size).arg(&library), b"", LIMIT);
        if alone.shell_status() != 0 {
            continue;
        }
        let mut command = Command::new(skep_bin());
        command.args(["trace", "*", "-o", "/dev/null", "--"]).arg(&program).arg(&size);
        let ended = run::run(command.arg(&library).env("SKEP_DIR", dir.join("skep")), b"", LIMIT);
        assert_eq!(ended.shell_status(), 0, "{size}: {}", ended.transcript());
        assert_eq!(ended.stdout, alone.stdout, "{size}: {}", ended.transcript());
        opened += 1;
    }
    assert_ne!(opened, 0, "64 KiB are enough to open a library");
}

/// A program whose first stack may not grow (`ulimit -s`), and that has a part of it full of variables: the
/// agent's start needs more than some have left.
#[test]
fn a_first_stack_that_is_small() {
    let dir = TempDir::in_memory();
    let mut ran = 0;
    for kib in (32..=144).step_by(16) {
        let script = format!("ulimit -s {kib}; exec /bin/echo hello");
        let variables = "x".repeat((kib - 26) << 10);
        let under_limit = |command: &mut Command| {
            command.args(["/bin/sh", "-c", &script]).env_clear().env("VARIABLES", &variables);
            run::run(command.env("SKEP_DIR", dir.join("skep")), b"", LIMIT)
        };
        let alone = under_limit(&mut Command::new("/usr/bin/env"));
        if alone.shell_status() != 0 {
            continue;
        }
        let mut skep = Command::new(skep_bin());
        let ended = under_limit(skep.args(["trace", "*", "-o", "/dev/null", "--"]));
        assert_eq!(ended.shell_status(), 0, "{kib}: {}", ended.transcript());
        assert_eq!(ended.stdout, alone.stdout, "{kib}: {}", ended.transcript());
        ran += 1;
    }
    assert_ne!(ran, 0, "a shell runs where its first stack has 144 KiB");
}
