//! A tracer that is killed at any of its steps leaves a process that goes on rightly.

mod support;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use skep_inject::{Error, Image, stop};
use skep_proc::maps::Perms;
use skep_testkit::TempDir;
use skep_testkit::cc::Cc;
use skep_testkit::run::run;
use skep_testkit::skip::has_command;

use support::{Program, build};

/// The tracer: stops the process that the environment names, maps memory and a file into it, takes
/// both out again, and lets it go.
#[test]
#[ignore = "run by the tests below"]
fn visits() {
    let variable = |name| std::env::var(name).expect("the tests below set it");
    let pid = variable("SKEP_TEST_PID").parse().expect("a number");
    let file = File::options().read(true).write(true).open(variable("SKEP_TEST_FILE"));
    let file = file.expect("there is a file");
    let visited = stop(pid, |target| -> Result<(), Error> {
        let here = target.registers(target.threads()[0])?.rip;
        let memory = target.map(Some(here), 4096, Perms::READ | Perms::EXEC)?;
        target.write(memory, b"text")?;
        let shared = target.map_file(file.as_fd(), None, 4096, Perms::READ | Perms::WRITE)?;
        target.unmap(shared, 4096)?;
        target.unmap(memory, 4096)
    });
    visited.expect("it stops").expect("it can be changed");
}

/// Kills the visiting tracer before its calls of one kind: the first, the second, and so on, until
/// it comes to its end. The process must answer after each, with the registers, calls and signal
/// masks that its threads check all the time.
fn killed_before_each(call: &str) {
    let dir = TempDir::new();
    let file = dir.join("file");
    std::fs::write(&file, [0; 4096]).expect("it is written");
    killed_in_each(call, "visits", &file);
}

fn killed_in_each(call: &str, tracer_test: &str, file: &Path) {
    if !has_command("strace") {
        return skep_testkit::skip("strace");
    }
    let dir = TempDir::new();
    let mut command = Command::new(build(&dir, "sleepers.c", Cc::c().arg("-O2")));
    let mut program = Program::run(dir, command.arg("few"));
    let pid = program.pid();
    let mut steps = 0;
    loop {
        let mut tracer = Command::new("strace");
        tracer.args(["-f", "-qq", "-o", "/dev/null", "-e"]).arg(format!("trace={call}"));
        tracer.arg("-e").arg(format!("inject={call}:signal=KILL:when={}", steps + 1));
        tracer.arg(std::env::current_exe().expect("the system knows our executable"));
        tracer.args(["--ignored", "--exact", tracer_test]);
        tracer.env("SKEP_TEST_PID", pid.to_string()).env("SKEP_TEST_FILE", file);
        let ended = run(&mut tracer, b"", Duration::from_secs(300));
        program.ask();
        if ended.status.success() {
            break;
        }
        assert_eq!(ended.shell_status(), 137, "step {steps}: {}", ended.transcript());
        steps += 1;
    }
    assert!(steps > 0, "the tracer makes no `{call}`");
    program.end();
}

/// The tracer: loads a library into the process that the environment names, and starts its thread.
#[test]
#[ignore = "run by the tests below"]
fn enters() {
    let variable = |name| std::env::var(name).expect("the tests below set it");
    let pid = variable("SKEP_TEST_PID").parse().expect("a number");
    let image = Image::parse(std::fs::read(variable("SKEP_TEST_FILE")).expect("there is a file"));
    let image = image.expect("a library");
    let (mut ours, theirs) = UnixStream::pair().expect("a pair");
    let entered = stop(pid, |target| -> Result<(), Error> {
        let loaded = target.load(&image, None, b"", |_| image.symbol("seven_times"))?;
        let number = target.give_file(theirs.as_fd())?;
        let entry = loaded.start + image.symbol("entry").expect("it is exported");
        target.start_thread(&loaded, entry, u64::from(number)).map(drop)
    });
    entered.expect("it stops").expect("it can be changed");
    ours.write_all(&[0; 8]).expect("the thread reads");
    ours.read_exact(&mut [0; 40]).expect("the thread answers");
}

#[test]
fn before_each_request() {
    killed_before_each("ptrace");
}

#[test]
fn before_each_write() {
    killed_before_each("pwrite64");
}

#[test]
fn before_each_look_at_a_thread() {
    killed_before_each("waitid");
}

#[test]
fn before_a_descriptor_is_handed_over() {
    killed_before_each("pidfd_getfd");
    killed_before_each("sendmsg");
}

/// What had been loaded stays. A thread that runs by then finds its socket closed (`load.rs`).
#[test]
fn while_a_thread_is_started() {
    let dir = TempDir::new();
    let cc = Cc::c().args(&["-O2", "-shared", "-fPIC", "-nostdlib", "-fno-stack-protector"]);
    let library = build(&dir, "guest.c", cc);
    for call in ["ptrace", "pwrite64", "waitid"] {
        killed_in_each(call, "enters", &library);
    }
}
