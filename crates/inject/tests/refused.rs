//! Processes that cannot be stopped or changed run on, and the reason is said.

mod support;

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use skep_inject::{Error, Refusal, Unfit, stop};
use skep_testkit::TempDir;
use skep_testkit::cc::Cc;
use skep_testkit::run;

use support::{Program, build, states};

const GETPID: u64 = 39;

fn refusal(pid: u32) -> String {
    stop(pid, |target| target.pid()).expect_err("it is refused").to_string()
}

fn waits(arguments: &[&str]) -> Program {
    let dir = TempDir::new();
    let mut command = Command::new(build(&dir, "waits.c", Cc::c()));
    Program::run(dir, command.args(arguments))
}

#[test]
fn who_is_not_there() {
    let program = waits(&["1"]);
    let pid = program.pid();
    let ids = stop(pid, |target| target.threads()).expect("it stops");
    let thread = ids[1];
    assert_eq!(
        refusal(thread),
        format!("cannot stop process {thread}: it is a thread of process {pid}; use that id")
    );
    program.end();
    assert_eq!(refusal(pid), format!("cannot stop process {pid}: there is no such process"));
    assert_eq!(refusal(0), "cannot stop process 0: there is no such process");
    assert_eq!(refusal(u32::MAX), "cannot stop process 4294967295: there is no such process");
}

#[test]
fn the_tracer_itself() {
    let own = std::process::id();
    assert_eq!(refusal(own), format!("cannot stop process {own}: it is the tracer itself"));
}

#[test]
fn a_zombie() {
    let mut child = Command::new("true").spawn().expect("it starts");
    let pid = child.id();
    while states(pid) != "Z" {
        std::thread::yield_now();
    }
    assert_eq!(
        refusal(pid),
        format!(
            "cannot stop process {pid}: it has ended, and only its parent has not asked for its \
             status yet"
        )
    );
    child.wait().expect("it has ended");
}

#[test]
fn a_thread_of_the_kernel() {
    if std::fs::read_to_string("/proc/2/comm").ok().as_deref() != Some("kthreadd\n") {
        return skep_testkit::skip("the kernel's threads in `/proc`");
    }
    assert_eq!(refusal(2), "cannot stop process 2: it is a thread of the kernel");
}

#[test]
fn one_that_is_traced() {
    let mut program = waits(&["2"]);
    let pid = program.pid();
    let (tracer, error) = stop(pid, |_| {
        let tracer = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
        let tracer = tracer.lines().find_map(|line| line.strip_prefix("TracerPid:"));
        (tracer.expect("it has a tracer").trim().to_owned(), stop(pid, |_| ()))
    })
    .expect("it stops");
    let error = error.expect_err("there is one tracer").to_string();
    assert!(
        error.starts_with(&format!("cannot stop process {pid}: `"))
            && error.ends_with(&format!(
                "` ({tracer}) traces it, and a process has one tracer only; end that first"
            )),
        "{error}"
    );
    program.ask();
    program.end();
}

#[test]
#[ignore = "run by the test below"]
fn refused_to_nobody() {
    let pid = std::env::var("SKEP_TEST_PID").expect("the test below sets it");
    let said = refusal(pid.parse().expect("a number"));
    writeln!(std::io::stdout(), "{said}").expect("it is written");
}

#[test]
fn one_of_another_user() {
    if !skep_testkit::skip::is_root() {
        return skep_testkit::skip("root");
    }
    let mut program = waits(&[]);
    let pid = program.pid();
    let dir = TempDir::new();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).expect("it is ours");
    let test = dir.join("test");
    skep_testkit::program::copy(&std::env::current_exe().expect("there is one"), &test);
    let mut tracer = Command::new(test);
    tracer.args(["--ignored", "--exact", "--nocapture", "refused_to_nobody"]);
    tracer.env("SKEP_TEST_PID", pid.to_string()).current_dir("/").uid(65534).gid(65534);
    let ended = run::run(&mut tracer, b"", Duration::from_secs(300));
    let said = format!(
        "cannot stop process {pid}: it belongs to user 0: run skep as that user, or as root\n"
    );
    assert!(String::from_utf8_lossy(&ended.stdout).contains(&said), "{}", ended.transcript());
    program.ask();
    program.end();
}

#[test]
fn one_of_32_bits() {
    const PROGRAM: &str = "
        .globl _start
        _start: mov $4, %eax; mov $1, %ebx; mov $text, %ecx; mov $6, %edx; int $0x80
        1: mov $3, %eax; mov $0, %ebx; mov $place, %ecx; mov $1, %edx; int $0x80
        cmp $1, %eax; je 1b
        mov $4, %eax; mov $1, %ebx; mov $fine, %ecx; mov $5, %edx; int $0x80
        mov $1, %eax; mov $0, %ebx; int $0x80
        text: .ascii \"ready\\n\"
        fine: .ascii \"fine\\n\"
        .bss
        place: .byte 0
    ";
    let dir = TempDir::new();
    let (source, program) = (dir.join("program.S"), dir.join("program"));
    std::fs::write(&source, PROGRAM).expect("it is written");
    let mut cc = Command::new("gcc");
    cc.args(["-m32", "-nostdlib", "-static", "-o"]).arg(&program).arg(&source);
    let made = cc.output().is_ok_and(|output| output.status.success());
    if !made || Command::new(&program).output().is_err() {
        return skep_testkit::skip("programs of 32 bits");
    }
    let program = Program::run(dir, &Command::new(program));
    let pid = program.pid();
    assert_eq!(refusal(pid), format!("cannot stop process {pid}: it executes 32-bit code"));
    program.end();
}

#[test]
fn one_in_a_sandbox_makes_no_calls() {
    let mut program = waits(&["3", "all"]);
    let pid = program.pid();
    // The filter is there when it answers.
    program.ask();
    let error = stop(pid, |target| target.call("getpid", GETPID, [0; 6])).expect("it stops");
    let error = error.expect_err("it is refused");
    assert!(matches!(error, Error::NoCaller { reason: Unfit::Seccomp, .. }), "{error}");
    program.ask();
    program.end();
}

#[test]
fn a_thread_outside_of_the_sandbox_makes_the_calls() {
    let mut program = waits(&["1", "main"]);
    let pid = program.pid();
    program.ask();
    for _ in 0..20 {
        let answer = stop(pid, |target| target.call("getpid", GETPID, [0; 6])).expect("it stops");
        assert_eq!(answer.expect("it is called"), u64::from(pid));
    }
    program.ask();
    program.end();
}

/// A thread that was put elsewhere for a moment would finish its restartable sequence as if it had
/// not been interrupted.
#[test]
fn a_thread_in_a_restartable_sequence_keeps_its_place() {
    let dir = TempDir::new();
    let file = build(&dir, "sequence.c", Cc::c().args(&["-O2", "-Wno-unused-result"]));
    let probe = run::run(&mut Command::new(&file), b"", Duration::from_secs(300));
    if probe.stdout == b"none\n" {
        return skep_testkit::skip("rseq");
    }
    let mut program = Program::run(dir, &Command::new(file));
    let pid = program.pid();
    let is_sequence =
        |error: &Error| matches!(error, Error::NoCaller { reason: Unfit::Sequence, .. });
    // How often others have taken its processor.
    let disturbed = || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/status"));
        let status = status.expect("it runs");
        let line = status.lines().find_map(|l| l.strip_prefix("nonvoluntary_ctxt_switches:"));
        line.expect("a number").trim().parse::<u64>().expect("a number")
    };
    let (mut refused, mut undisturbed) = (0, 0);
    for _ in 0..20 {
        let before = disturbed();
        let answer = stop(pid, |target| target.call("getpid", GETPID, [0; 6])).expect("it stops");
        assert!(matches!(answer, Ok(_) | Err(Error::NoCaller { .. })), "{answer:?}");
        undisturbed += u32::from(disturbed() == before);
        refused += u32::from(answer.as_ref().is_err_and(is_sequence));
        // It is in its sequence still, and the kernel knows.
        program.ask();
    }
    // Where it is about to begin anew it is in none: as always when others want its processor, and
    // hardly ever when not.
    assert!(refused > 0 || undisturbed < 10, "{refused} refused, {undisturbed} undisturbed");
    program.end();
}

#[test]
fn messages_name_the_remedy() {
    let scope = |scope| Refusal::Scope { scope }.to_string();
    assert!(scope(1).contains("prctl(PR_SET_PTRACER)"));
    assert!(scope(3).contains("until the next boot"));
    assert!(Refusal::Other.to_string().contains("container"));
}
