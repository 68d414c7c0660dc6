//! Programs that put themselves into a sandbox: nothing of ours may make a system call that ends
//! them, and the report says from where on they are not traced.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use skep_testkit::cc::Build;
use skep_testkit::report::Report;
use skep_testkit::run::{self, Ended};
use skep_testkit::trace::skep_bin;
use skep_testkit::{TempDir, cc, target};

const LIMIT: Duration = Duration::from_secs(300);

const STRICT: &str = "has entered seccomp's strict mode and is not traced from there";
const NO_COUNTER: &str =
    "has forbidden itself to read the time-stamp counter and is not traced from there";
const DISPATCH: &str = "handles its system calls itself and is not traced from there";
const NO_EVENTS: &str =
    "has set a seccomp filter that is against tracing and is not traced from there";
const NO_THREADS: &str =
    "has set a seccomp filter: threads and children that it starts from then on are not traced";

struct Sandbox {
    dir: TempDir,
    program: std::path::PathBuf,
}

impl Sandbox {
    fn new() -> Self {
        let dir = TempDir::in_memory();
        let program = cc::Cc::c()
            .build(Build::O2)
            .compile(&[&target::sources().join("sandbox.c")], &dir.join("sandbox"));
        Self { dir, program }
    }

    fn alone(&self, args: &[&str]) -> Ended {
        run::run(Command::new(&self.program).args(args), b"", LIMIT)
    }

    /// Runs `skep trace` with these options.
    fn skep(&self, options: &[&str], args: &[&str]) -> Ended {
        let mut skep = Command::new(skep_bin());
        skep.arg("trace").args(options).arg("--").arg(&self.program).args(args);
        run::run(skep.env("SKEP_DIR", self.dir.join("skep")), b"", LIMIT)
    }

    fn traced(&self, pattern: &str, args: &[&str]) -> (Ended, Report) {
        let out = self.dir.join("report.json");
        let path = out.to_str().expect("a name in UTF-8");
        let ended = self.skep(&[pattern, "--json", "-o", path], args);
        let text = std::fs::read_to_string(&out)
            .unwrap_or_else(|e| panic!("no report: {e}\n{}", ended.transcript()));
        (ended, Report::parse(&text).expect("a whole report"))
    }
}

/// A program to execute.
fn echo() -> &'static str {
    let places = ["/bin/echo", "/usr/bin/echo"];
    places.into_iter().find(|place| Path::new(place).exists()).unwrap_or(places[0])
}

fn calls(report: &Report, name: &str) -> u64 {
    report.calls("sandbox", name).unwrap_or(0)
}

/// Compares with a run without skep; returns what the report says of the program, and how often
/// `step` was called.
fn lives(args: &[&str], reason: Option<&str>, check: impl Fn(&Report, &str)) {
    lives_under(&["sandbox:*", "*"], args, reason, check);
}

fn lives_under(
    patterns: &[&str],
    args: &[&str],
    reason: Option<&str>,
    check: impl Fn(&Report, &str),
) {
    let sandbox = Sandbox::new();
    let alone = sandbox.alone(args);
    if alone.shell_status() != 0 {
        return skep_testkit::skip(
            "seccomp, and a C library with the system calls of glibc 2.31 to 2.41",
        );
    }
    for pattern in patterns {
        let (ended, report) = sandbox.traced(pattern, args);
        let what = format!("{args:?} {pattern}: {}", ended.transcript());
        assert_eq!(
            String::from_utf8_lossy(&ended.stdout),
            String::from_utf8_lossy(&alone.stdout),
            "{what}"
        );
        assert_eq!((ended.shell_status(), report.status), (0, 0), "{what}");
        let named: Vec<_> = report.json["not_traced"]
            .as_array()
            .expect("a list")
            .iter()
            .filter_map(|u| u["reason"].as_str())
            .collect();
        assert_eq!(named, reason.as_slice(), "{what}");
        check(&report, &what);
    }
}

/// System calls of the strict mode are four, and the processor's counter may not be read: hooks are
/// taken out before.
#[test]
fn strict_mode() {
    lives(&["strict"], Some(STRICT), |report, what| {
        assert_eq!((calls(report, "step"), calls(report, "fresh")), (101, 0), "{what}")
    });
}

/// Calls that were made when the hooks were out are not counted; that is not to say that there were
/// none.
#[test]
fn calls_in_the_sandbox_are_not_denied() {
    let sandbox = Sandbox::new();
    if sandbox.alone(&["strict"]).shell_status() != 0 {
        return skep_testkit::skip("seccomp");
    }
    let ended = sandbox.skep(&["sandbox:fresh"], &["strict"]);
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(
        said.contains("none of their calls was counted")
            && !said.contains("none of them was called"),
        "{}",
        ended.transcript()
    );
}

#[test]
fn without_the_time_stamp_counter() {
    lives(&["tsc"], Some(NO_COUNTER), |report, what| {
        assert_eq!((calls(report, "step"), calls(report, "fresh")), (101, 0), "{what}")
    });
}

/// System calls that come to a handler of the program's (Syscall User Dispatch): it would get ours.
#[test]
fn system_calls_that_the_program_handles() {
    lives(&["dispatch"], Some(DISPATCH), |report, what| {
        assert_eq!((calls(report, "step"), calls(report, "fresh")), (101, 0), "{what}")
    });
}

/// Filters that allow what the program needs and punish all else: who had an event before is traced
/// on, in all its calls.
#[test]
fn filters_that_kill() {
    // Else every event asks the kernel for the time, and the filter is against all of them.
    let clock =
        std::fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    if !clock.is_ok_and(|name| name.trim() == "tsc") {
        return skep_testkit::skip(
            "a kernel that uses the time-stamp counter, and /sys to tell so",
        );
    }
    // The early thread and the first: 101 before, 101 + 11 inside.
    let both = 2 * (101 + 101 + 11);
    for how in ["kill", "kill syscall", "trap", "trap syscall"] {
        lives(&[how], Some(NO_THREADS), |report, what| {
            assert_eq!((calls(report, "step"), calls(report, "fresh")), (both, 2), "{what}")
        });
    }
}

/// A filter that lets nothing but reading and writing through.
#[test]
fn filters_that_leave_nothing() {
    for how in ["tiny kill", "tiny trap"] {
        lives(&[how], Some(NO_EVENTS), |report, what| {
            assert_eq!(calls(report, "fresh"), 0, "{what}")
        });
    }
}

/// Where a call fails with an error number, nobody dies; but without ids no thread can be told from
/// another.
#[test]
fn filters_that_refuse() {
    lives(&["errno"], Some(NO_THREADS), |report, what| {
        assert_eq!(calls(report, "fresh"), 2, "{what}")
    });
    // All threads and children: with ids, what is refused is coped with.
    let all = 2 * (101 + 101 + 11) + 7 * (101 + 11);
    lives(&["errno long"], None, |report, what| {
        assert_eq!((calls(report, "step"), calls(report, "fresh")), (all, 9), "{what}")
    });
}

/// Finding out what the kernel can do is no sandbox.
#[test]
fn probes_change_nothing() {
    let all = 2 * (101 + 101 + 11) + 7 * (101 + 11);
    lives(&["probe"], None, |report, what| {
        assert_eq!((calls(report, "step"), calls(report, "fresh")), (all, 9), "{what}")
    });
}

/// What the kernel refuses is no sandbox: hooks that were taken out for it would miss all that
/// follows.
#[test]
fn refused_filters_change_nothing() {
    let all = 2 * (101 + 101 + 11) + 7 * (101 + 11);
    lives(&["refused"], None, |report, what| {
        assert_eq!((calls(report, "step"), calls(report, "fresh")), (all, 9), "{what}")
    });
}

/// A child of `vfork` goes into a sandbox alone, though it runs in the memory where its parent's
/// hooks are.
#[test]
fn a_childs_sandbox_is_not_its_parents() {
    let all = 2 * (101 + 101 + 11) + 7 * (101 + 11);
    let complete = |report: &Report, what: &str| {
        assert_eq!((calls(report, "step"), calls(report, "fresh")), (all, 9), "{what}")
    };
    lives(&["vfork"], None, complete);
    // Strict mode takes the time-stamp counter away: the end of `prctl` must not be traced.
    lives_under(&["sandbox:*"], &["vfork strict"], None, complete);
}

/// What is executed in the sandbox would begin with the agent's own system calls: it gets none.
#[test]
fn programs_that_are_executed_in_the_sandbox() {
    let echo = echo();
    lives(&["kill long", echo, "hello"], Some(NO_THREADS), |_, _| {});
}

/// A filter that the program found when it was executed: here by a system call that nobody could
/// see. Its own calls are allowed, the agent's are not.
#[test]
fn filters_that_were_there_before() {
    let echo = echo();
    for how in ["unseen kill long", "unseen trap long"] {
        let sandbox = Sandbox::new();
        let args = [how, echo, "hello"];
        let alone = sandbox.alone(&args);
        if alone.shell_status() != 0 {
            return skep_testkit::skip(
                "seccomp, and a C library with the system calls of glibc 2.31 to 2.41",
            );
        }
        let (ended, report) = sandbox.traced("echo:*", &args);
        assert_eq!(
            String::from_utf8_lossy(&ended.stdout),
            String::from_utf8_lossy(&alone.stdout),
            "{}",
            ended.transcript()
        );
        assert_eq!(report.status, 0, "{}", ended.transcript());
    }
}

/// Whoever may not read the time-stamp counter when it is executed.
#[test]
fn programs_that_are_executed_without_the_counter() {
    let echo = echo();
    lives(&["tsc", echo, "hello"], Some(NO_COUNTER), |_, _| {});
}

/// Filters that refuse a call, or say that it was made when it was not, were there before: the agent
/// makes calls that a shell can do without. A child that may not exit went on for ever; who believed a
/// filter took itself for that child, or lived on memory that was not made writable. Without random
/// numbers, refused in a way that the standard library panics at, the next fork waited for ever.
#[test]
fn filters_that_were_there_before_and_do_not_punish() {
    const MPROTECT: u32 = 10;
    const GETPID: u32 = 39;
    const CLONE: u32 = 56;
    const EXIT_GROUP: u32 = 231;
    const GETRANDOM: u32 = 318;
    let sandbox = Sandbox::new();
    let mut tried = 0;
    for nr in [MPROTECT, GETPID, CLONE, EXIT_GROUP, GETRANDOM] {
        for how in ["refuse", "fault", "pretend"].map(|what| format!("{what} only {nr} unseen")) {
            // A shell that forks.
            let args = [how.as_str(), "/bin/sh", "-c", "(:); echo hello"];
            let alone = sandbox.alone(&args);
            if alone.shell_status() != 0 {
                continue;
            }
            let ended = sandbox.skep(&["sandbox:*", "libc:*", "-o", "/dev/null"], &args);
            assert_eq!(ended.shell_status(), 0, "{how}: {}", ended.transcript());
            assert_eq!(ended.stdout, alone.stdout, "{how}: {}", ended.transcript());
            tried += 1;
        }
    }
    if tried == 0 {
        skep_testkit::skip("seccomp");
    }
}

/// Whichever single system call a filter punishes: events in the sandbox, a library, threads, children
/// and what is executed make none that the program itself does not.
#[test]
fn whatever_is_punished() {
    /// One more than the last that has the same number on all machines but x86-64, and the first and
    /// last of those that came later.
    const OLD: u32 = 335;
    const NEW: std::ops::Range<u32> = 424..470;
    let sandbox = Sandbox::new();
    let library = cc::Cc::c()
        .args(&["-shared", "-fPIC"])
        .build(Build::O2)
        .compile(&[&target::sources().join("plugin.c")], &sandbox.dir.join("plugin.so"));
    let echo = echo();
    let next = AtomicU32::new(0);
    let (lived, numbers) = (AtomicU32::new(0), (0..OLD).chain(NEW).collect::<Vec<_>>());
    let try_all = || {
        while let Some(nr) = numbers.get(next.fetch_add(1, Relaxed) as usize) {
            let how = format!("kill only {nr} {}", library.display());
            let args = [how.as_str(), echo, "hello"];
            let alone = sandbox.alone(&args);
            if alone.shell_status() != 0 {
                continue;
            }
            let ended =
                sandbox.skep(&["sandbox:*", "plugin.so:*", "echo:*", "-o", "/dev/null"], &args);
            assert_eq!(ended.shell_status(), 0, "system call {nr}: {}", ended.transcript());
            assert_eq!(ended.stdout, alone.stdout, "system call {nr}: {}", ended.transcript());
            lived.fetch_add(1, Relaxed);
        }
    };
    std::thread::scope(|scope| [(); 2].map(|()| scope.spawn(try_all)).map(|t| t.join().unwrap()));
    if lived.into_inner() == 0 {
        skep_testkit::skip("seccomp");
    }
}
