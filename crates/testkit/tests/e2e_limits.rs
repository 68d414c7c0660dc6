//! What `skep trace` does where it cannot trace, and with statuses, pipes and many functions.

use std::process::Command;
use std::time::Duration;

use skep_testkit::cc::Build;
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
