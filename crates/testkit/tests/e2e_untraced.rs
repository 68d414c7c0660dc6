//! Programs in the tree of processes that cannot be traced: they run as without skep, and the
//! report names them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use skep_testkit::cc::{Build, Cc};
use skep_testkit::report::Report;
use skep_testkit::run::{self, Ended};
use skep_testkit::skip::has_command;
use skep_testkit::trace::skep_bin;
use skep_testkit::{TempDir, target};

const LIMIT: Duration = Duration::from_secs(300);

/// Says how it was started, and whether it sees anything of skep.
const HELLO: &str = r#"#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int main(void) {
    const char *preload = getenv("LD_PRELOAD");
    printf("hello %s %s %s\n", getenv("OWN") ? getenv("OWN") : "-", preload && strstr(preload, "skep") ? "agent" : "no agent",
           getenv("SKEP_LINKS") ? "links" : "no links");
    return 5;
}
"#;

struct Place {
    dir: TempDir,
    runs: PathBuf,
}

impl Place {
    fn new() -> Self {
        let dir = TempDir::in_memory();
        std::fs::write(dir.join("hello.c"), HELLO).expect("the folder is ours");
        let runs = Cc::c()
            .build(Build::O2)
            .arg("-w")
            .compile(&[&target::sources().join("runs.c")], &dir.join("runs"));
        Self { dir, runs }
    }

    /// Compiles the program that says hello by another compiler or with other flags; `None` where
    /// that is not installed.
    fn hello(&self, name: &str, compiler: &str, flags: &[&str]) -> Option<PathBuf> {
        let out = self.dir.join(name);
        let done = Command::new(compiler)
            .args(flags)
            .arg("-o")
            .arg(&out)
            .arg(self.dir.join("hello.c"))
            .output();
        let runs = done.is_ok_and(|d| d.status.success())
            && Command::new(&out).output().is_ok_and(|d| d.status.code() == Some(5));
        runs.then(|| out.canonicalize().expect("it is there"))
    }

    fn trace(&self, patterns: &[&str], command: &[&Path]) -> (Ended, Report) {
        let out = self.dir.join("report.json");
        let mut skep = Command::new(skep_bin());
        skep.arg("trace").args(patterns).args(["--json", "-o"]).arg(&out).arg("--").args(command);
        skep.env("SKEP_DIR", self.dir.join("skep")).env("OWN", "own").env_remove("LD_PRELOAD");
        let ended = run::run(&mut skep, b"", LIMIT);
        let text = std::fs::read_to_string(&out)
            .unwrap_or_else(|e| panic!("no report: {e}\n{}", ended.transcript()));
        (ended, Report::parse(&text).expect("a whole report"))
    }
}

fn not_traced(report: &Report) -> Vec<(String, String)> {
    let text = |v: &serde_json::Value| v.as_str().expect("a string").to_owned();
    report.json["not_traced"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|u| (text(&u["path"]), text(&u["reason"])))
        .collect()
}

/// Runs one that the agent cannot work in, in every way there is, and compares with a run without
/// skep.
fn is_left_alone(name: &str, compiler: &str, flags: &[&str], reason: &str) {
    let place = Place::new();
    let Some(program) = place.hello(name, compiler, flags) else {
        skep_testkit::skip(&format!("`{compiler} {}`", flags.join(" ")));
        return;
    };
    let mut alone = Command::new(&place.runs);
    let alone =
        run::run(alone.arg(&program).env("OWN", "own").env_remove("LD_PRELOAD"), b"", LIMIT);
    assert_eq!(alone.shell_status(), 0, "{}", alone.transcript());
    // Also where programs hang on the very functions.
    for patterns in [&["runs:*"][..], &["runs:*", "libc.so.6:*exec*"], &["*"]] {
        let (ended, report) = place.trace(patterns, &[&place.runs, &program]);
        assert_eq!(
            String::from_utf8_lossy(&ended.stdout),
            String::from_utf8_lossy(&alone.stdout),
            "{}",
            ended.transcript()
        );
        assert_eq!(report.calls("runs", "ended"), Some(16), "{}", ended.transcript());
        assert_eq!(not_traced(&report), [(program.display().to_string(), reason.to_owned())]);
        let told = String::from_utf8_lossy(&ended.stderr);
        assert!(told.contains(&format!("not traced: `{}` {reason}", program.display())), "{told}");
        assert!(!told.contains("ERROR: ld.so") && !told.contains("Error loading"), "{told}");
    }
}

#[test]
fn programs_of_another_c_library_run() {
    is_left_alone("musl", "musl-gcc", &[], "uses another C library");
}

#[test]
fn programs_with_an_address_sanitizer_run() {
    let reason = "has an address sanitizer, which must be loaded before all other libraries";
    is_left_alone("asan", "gcc", &["-fsanitize=address"], reason);
}

#[test]
fn programs_of_32_bits_run() {
    is_left_alone("bits32", "gcc", &["-m32"], "is a 32-bit x86 program");
}

/// A static program does not mind the agent: it keeps its environment, and what it runs in turn is
/// traced.
#[test]
fn static_programs_are_named_and_their_children_traced() {
    let place = Place::new();
    let source = place.dir.join("middle.c");
    std::fs::write(&source, "#include <unistd.h>\nint main(int c, char **v) { (void)c; execv(v[1], v + 1); return 90; }\n").expect("ours");
    let inner = target::named("args").build(Build::O2);
    for flags in [&["-static"][..], &["-static-pie"]] {
        let middle = Cc::c().args(flags).compile(&[&source], &place.dir.join("middle"));
        let script = place.dir.join("script");
        std::fs::write(
            &script,
            format!("#!/bin/sh\n\"{}\" \"{}\"; exit $?\n", middle.display(), inner.path.display()),
        )
        .expect("ours");
        let (ended, report) = place.trace(&["args:*"], &[Path::new("sh"), &script]);
        assert_eq!(ended.shell_status(), 0, "{}", ended.transcript());
        let middle = middle.canonicalize().expect("it is there").display().to_string();
        assert_eq!(not_traced(&report), [(middle, "is statically linked".to_owned())], "{flags:?}");
        assert!(report.calls("args", "main") == Some(1), "{}", ended.transcript());
    }
}

/// The command itself is treated as a child would be.
#[test]
fn a_command_that_cannot_be_traced_runs_too() {
    let place = Place::new();
    let reason = "is not run with the agent: its `libasan.so";
    let Some(program) = place.hello("asan", "gcc", &["-fsanitize=address"]) else {
        return skep_testkit::skip("gcc -fsanitize=address");
    };
    let (ended, report) = place.trace(&["*"], &[&program]);
    assert_eq!(
        String::from_utf8_lossy(&ended.stdout),
        "hello own no agent no links\n",
        "{}",
        ended.transcript()
    );
    assert_eq!(report.status, 5);
    assert!(
        not_traced(&report)
            .iter()
            .any(|(path, why)| *path == program.display().to_string() && why.starts_with(reason))
    );
}

/// Who empties the environment is not traced further, and named.
#[test]
fn a_child_without_the_agent_in_its_environment_is_named() {
    let place = Place::new();
    let program = place.hello("hello", "gcc", &[]).expect("the compiler of the tests");
    let script = format!("env -i {}; exit 0", program.display());
    let (ended, report) =
        place.trace(&["*"], &[Path::new("sh"), Path::new("-c"), Path::new(&script)]);
    assert_eq!(
        String::from_utf8_lossy(&ended.stdout),
        "hello - no agent no links\n",
        "{}",
        ended.transcript()
    );
    assert_eq!(
        not_traced(&report),
        [(
            program.display().to_string(),
            "was started without the agent in `LD_PRELOAD`".to_owned()
        )]
    );
}

/// Where no file may become longer, there is no record of such a child, and no `SIGXFSZ` either: that
/// ended the child before it began.
#[test]
fn a_child_that_cannot_be_named_runs() {
    let place = Place::new();
    let Some(program) = place.hello("hello", "gcc", &["-static"]) else {
        return skep_testkit::skip("static libraries of the C library");
    };
    let script = format!("ulimit -f 0; exec {}", program.display());
    let (ended, report) =
        place.trace(&["*"], &[Path::new("sh"), Path::new("-c"), Path::new(&script)]);
    assert_eq!(
        String::from_utf8_lossy(&ended.stdout),
        "hello own agent links\n",
        "{}",
        ended.transcript()
    );
    assert_eq!(report.status, 5, "{}", ended.transcript());
}

/// Under valgrind the agent stays out: valgrind finds nothing to say that it would not say without.
#[test]
fn valgrind_is_left_alone() {
    if !has_command("valgrind") {
        return skep_testkit::skip("valgrind");
    }
    let place = Place::new();
    let program = place.hello("hello", "gcc", &["-g"]).expect("the compiler of the tests");
    let script = format!("valgrind -q --error-exitcode=9 {}; exit $?", program.display());
    let (ended, report) =
        place.trace(&["*"], &[Path::new("sh"), Path::new("-c"), Path::new(&script)]);
    let told = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(report.status, 5, "{}", ended.transcript());
    assert!(!told.contains("==") && !told.contains("unknown"), "{told}");
    assert!(
        not_traced(&report).iter().any(|(_, why)| why == "runs under valgrind"),
        "{:?}",
        not_traced(&report)
    );
}

/// Where the agent's library is out of sight (another root), the dynamic linker would complain on
/// the child's stderr.
#[test]
fn a_child_that_cannot_see_the_library_is_left_alone() {
    if !skep_testkit::skip::is_root() {
        return skep_testkit::skip("root, for chroot");
    }
    let place = Place::new();
    let root = place.dir.join("root");
    let program = place.hello("hello", "gcc", &[]).expect("the compiler of the tests");
    for file in ["/lib64/ld-linux-x86-64.so.2", "/lib/x86_64-linux-gnu/libc.so.6"] {
        let to = root.join(&file[1..]);
        std::fs::create_dir_all(to.parent().expect("not the root")).expect("ours");
        if !Path::new(file).exists() {
            return skep_testkit::skip("a C library where Debian has it");
        }
        skep_testkit::program::copy(file.as_ref(), &to);
    }
    skep_testkit::program::copy(&program, &root.join("hello"));
    let (ended, _) = place.trace(&["*"], &[Path::new("chroot"), &root, Path::new("/hello")]);
    assert_eq!(
        String::from_utf8_lossy(&ended.stdout),
        "hello own no agent no links\n",
        "{}",
        ended.transcript()
    );
    assert!(!ended.transcript().contains("ERROR: ld.so"), "{}", ended.transcript());
}
