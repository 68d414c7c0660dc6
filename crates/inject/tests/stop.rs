//! Processes that are stopped, changed and let go are as they were.

mod support;

use std::cell::Cell;
use std::io::{Read, Seek, Write};
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use skep_inject::{Error, Refusal, Target, stop};
use skep_proc::maps::Perms;
use skep_testkit::TempDir;
use skep_testkit::cc::Cc;
use skep_testkit::run::{self, Signal};
use skep_testkit::skip::has_command;

use support::{Program, build, descriptors, mappings, states};

const READ_WRITE: Perms = Perms(3);
const GETPID: u64 = 39;

/// Stops a process, and does a bit of everything.
fn visit(pid: u32) {
    let done = stop(pid, |target| -> Result<(), Error> {
        assert!(states(pid).chars().all(|state| state == 't'), "{}", states(pid));
        let here = target.registers(target.threads()[0])?.rip;
        let near = target.map(Some(here), 8192, READ_WRITE)?;
        assert!(near.abs_diff(here) < 1 << 31);
        target.write(near + 4090, b"over two pages")?;
        assert_eq!(target.read(near + 4090, 14)?, b"over two pages");
        assert_eq!(target.call("getpid", GETPID, [0; 6])?, u64::from(pid));
        target.unmap(near, 8192)
    });
    done.expect("it stops").expect("it can be changed");
}

fn threads_go_on_as_they_were(mut program: Program) {
    stop_often(&mut program);
    program.end();
}

fn stop_often(program: &mut Program) {
    let pid = program.pid();
    let mut pause = 7_u64;
    let times = if std::env::var_os("SKEP_STRESS").is_some() { 2000 } else { 25 };
    for _ in 0..times {
        visit(pid);
        // Some stops are shorter after each other than the threads' calls, some longer.
        pause = (pause * 31 + 17) % 61;
        std::thread::sleep(Duration::from_millis(pause));
        program.ask();
    }
}

#[test]
fn threads_of_a_dynamic_program_go_on_as_they_were() {
    threads_go_on_as_they_were(Program::start("sleepers.c", &[]));
}

/// Ignored signals do not wake threads; sent to one that is traced, they do.
#[test]
fn ignored_signals_are_not_noticed() {
    let mut program = Program::start("sleepers.c", &[]);
    let (pid, over) = (program.pid(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let _over = run::SetOnDrop(&over);
        scope.spawn(|| {
            while !over.load(Ordering::Acquire) {
                run::signal(pid, Signal::WINCH);
            }
        });
        stop_often(&mut program);
    });
    program.end();
}

#[test]
fn threads_with_wide_registers_go_on_as_they_were() {
    if !std::is_x86_feature_detected!("avx") {
        return skep_testkit::skip("AVX");
    }
    threads_go_on_as_they_were(Program::start("sleepers.c", &["-mavx"]));
}

#[test]
fn threads_of_a_static_program_go_on_as_they_were() {
    threads_go_on_as_they_were(Program::start("sleepers.c", &["-static", "-no-pie"]));
}

#[test]
fn threads_of_a_relocated_static_program_go_on_as_they_were() {
    threads_go_on_as_they_were(Program::start("sleepers.c", &["-static-pie"]));
}

#[test]
fn threads_of_another_c_library_go_on_as_they_were() {
    if !has_command("musl-gcc") {
        return skep_testkit::skip("musl-gcc");
    }
    // Its headers lack those of the kernel; what the test needs of them is the same.
    let cc = Cc::named("musl-gcc").args(&["-O2", "-idirafter", "/usr/include"]);
    let cc = cc.args(&["-idirafter", "/usr/include/x86_64-linux-gnu"]);
    threads_go_on_as_they_were(Program::start_by("sleepers.c", cc));
}

#[test]
fn a_visit_leaves_nothing() {
    let mut program = waits_with_threads(64);
    let pid = program.pid();
    let before = (mappings(pid), descriptors(pid));
    for _ in 0..50 {
        visit(pid);
    }
    assert_eq!((mappings(pid), descriptors(pid)), before);
    assert_eq!(stop(pid, |target| target.threads().len()).expect("it stops"), 65);
    program.ask();
    program.end();
}

fn waits_with_threads(count: u32) -> Program {
    let dir = TempDir::new();
    let mut command = Command::new(build(&dir, "waits.c", Cc::c()));
    Program::run(dir, command.arg(count.to_string()))
}

/// What is at the end of the vDSO.
fn end_of_vdso(target: &Target) -> Vec<u8> {
    let text = mappings(target.pid());
    let line = text.iter().find(|line| line.ends_with("[vdso]")).expect("there is a vDSO");
    let end = line.split(['-', ' ']).nth(1).expect("a range");
    let end = u64::from_str_radix(end, 16).expect("an address");
    target.read(end - 4096, 4096).expect("it is mapped")
}

#[test]
fn the_instructions_of_calls_are_removed() {
    let program = Program::start("waits.c", &[]);
    let pid = program.pid();
    let before = stop(pid, |target| end_of_vdso(target)).expect("it stops");
    let inside = stop(pid, |target| {
        target.call("getpid", GETPID, [0; 6]).expect("it is called");
        end_of_vdso(target)
    });
    assert_ne!(inside.expect("it stops"), before);
    assert_eq!(stop(pid, |target| end_of_vdso(target)).expect("it stops"), before);
    program.end();
}

#[test]
fn a_failed_call_says_which_and_why() {
    let program = Program::start("waits.c", &[]);
    let pid = program.pid();
    let error = stop(pid, |target| target.close(1000)).expect("it stops").unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("process {pid} cannot make the call `close`: Bad file descriptor (os error 9)")
    );
    program.end();
}

#[test]
fn a_panic_lets_the_process_go() {
    let mut program = Program::start("waits.c", &[]);
    let pid = program.pid();
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let result = std::panic::catch_unwind(|| {
        stop(pid, |target| {
            target.call("getpid", GETPID, [0; 6]).expect("it is called");
            panic!("as a test");
        })
    });
    std::panic::set_hook(hook);
    assert!(result.is_err());
    program.ask();
    program.end();
}

#[test]
fn a_stopped_process_stays_stopped() {
    let mut program = waits_with_threads(8);
    let pid = program.pid();
    let becomes = |stopped: bool| {
        while !states(pid).chars().all(|state| (state == 'T') == stopped) {
            std::thread::yield_now();
        }
    };
    for _ in 0..5 {
        run::signal(pid, Signal::STOP);
        becomes(true);
        visit(pid);
        becomes(true);
        run::signal(pid, Signal::CONT);
        becomes(false);
        program.ask();
    }
    // A stop that comes while the process stands takes effect afterwards.
    stop(pid, |target| {
        run::signal(pid, Signal::STOP);
        target.call("getpid", GETPID, [0; 6]).expect("it is called");
    })
    .expect("it stops");
    becomes(true);
    run::signal(pid, Signal::CONT);
    program.ask();
    program.end();
}

#[test]
fn a_killed_process_is_an_error() {
    let program = Program::start("sleepers.c", &[]);
    let pid = program.pid();
    let result = stop(pid, |target| {
        target.call("getpid", GETPID, [0; 6]).expect("it is called");
        run::signal(pid, Signal::KILL);
        (0..1000).find_map(|_| target.call("getpid", GETPID, [0; 6]).err())
    });
    assert!(result.expect("it stops").is_some());
}

/// The threads of a process that executes a program end while they are being stopped, and the one
/// that executes it takes over the id of the first.
#[test]
fn a_process_may_execute_another_program_meanwhile() {
    // Who stops it may get no processor while a program executes all that it does.
    let mut stops = 0;
    while stops <= 10 {
        let dir = TempDir::new();
        let mut command = Command::new(build(&dir, "execs.c", Cc::c().arg("-O2")));
        let program = Program::run(dir, command.arg("200").env("READY", "1"));
        let pid = program.pid();
        loop {
            let answer = stop(pid, |target| target.call("getpid", GETPID, [0; 6]));
            match answer.and_then(|answer| answer) {
                Ok(answer) => assert_eq!(answer, u64::from(pid)),
                // Between two programs there are only threads that end.
                Err(Error::NoProcess { .. } | Error::NoCaller { .. }) => {}
                Err(Error::Refused { reason: Refusal::Zombie, .. }) => break,
                Err(error) => panic!("{error}"),
            }
            stops += 1;
        }
        program.end();
    }
}

#[test]
fn a_file_is_mapped_without_a_path() {
    let mut program = Program::start("waits.c", &["-static"]);
    let pid = program.pid();
    let before = (mappings(pid), descriptors(pid));
    let dir = TempDir::new();
    let path = dir.join("shared");
    let mut file = std::fs::File::create_new(&path).expect("a file");
    let mut file = {
        file.write_all(&[0; 8192]).expect("it is written");
        std::fs::File::options().read(true).write(true).open(&path).expect("it opens")
    };
    std::fs::remove_file(&path).expect("it is removed");
    let address = stop(pid, |target| -> Result<u64, Error> {
        let address = target.map_file(file.as_fd(), None, 8192, READ_WRITE)?;
        target.write(address + 4094, b"hello")?;
        Ok(address)
    });
    let address = address.expect("it stops").expect("it is mapped");
    let mut text = [0; 5];
    file.seek(std::io::SeekFrom::Start(4094)).expect("it seeks");
    file.read_exact(&mut text).expect("it is read");
    assert_eq!(&text, b"hello");
    // The descriptor is closed; one that is given stays until it is closed, or at `exec`.
    assert_eq!(descriptors(pid), before.1);
    let number = stop(pid, |target| target.give_file(file.as_fd())).expect("it stops");
    let number = number.expect("it is given");
    let flags =
        std::fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}")).expect("it is open");
    let flags = flags.lines().find_map(|line| line.strip_prefix("flags:")).expect("it has flags");
    let flags = u32::from_str_radix(flags.trim(), 8).expect("a number");
    assert_ne!(flags & 0o2_000_000, 0, "closed on `exec`");
    let left = stop(pid, |target| -> Result<(), Error> {
        target.close(number)?;
        target.unmap(address, 8192)
    });
    left.expect("it stops").expect("it can be undone");
    assert_eq!((mappings(pid), descriptors(pid)), before);
    program.ask();
    program.end();
}

#[test]
fn a_process_without_free_descriptors_gets_none() {
    let program = Program::start("waits.c", &[]);
    let pid = program.pid();
    let before = descriptors(pid);
    // Three are open: there is room for the pair of sockets, and not for the file.
    for limit in 3..=5 {
        let done = Command::new("prlimit")
            .args(["--pid", &pid.to_string()])
            .arg(format!("--nofile={limit}:"))
            .status();
        if !done.is_ok_and(|status| status.success()) {
            return skep_testkit::skip("prlimit");
        }
        let file = std::fs::File::open("/dev/null").expect("it opens");
        let error =
            stop(pid, |target| target.give_file(file.as_fd())).expect("it stops").unwrap_err();
        assert!(error.to_string().ends_with("Too many open files (os error 24)"), "{error}");
        assert_eq!(descriptors(pid), before);
    }
    program.end();
}

#[test]
fn threads_are_moved_out_of_code() {
    let mut program = Program::start("loops.c", &[]);
    let pid = program.pid();
    let line = program.line();
    let address = |n| {
        let word = line.split(' ').nth(n).expect("three words");
        u64::from_str_radix(word, 16).expect("an address")
    };
    let (start, end, new) = (address(0), address(1), address(2));
    // What the program printed says that the threads exist, not how far they are.
    let mut there = 0;
    while there < 2 {
        let seen = stop(pid, |target| {
            let there = Cell::new(0);
            target.move_threads(|ip| {
                there.set(there.get() + usize::from((start..end).contains(&ip)));
                None
            })?;
            Ok::<_, Error>(there.get())
        });
        there = seen.expect("it stops").expect("they are seen");
    }
    let moved = stop(pid, |target| {
        // Also the thread that has just made a call.
        target.call("getpid", GETPID, [0; 6])?;
        let to = |ip| (start..end).contains(&ip).then(|| ip - start + new);
        let moved = target.move_threads(to)?;
        target.call("getpid", GETPID, [0; 6])?;
        Ok::<_, Error>(moved)
    });
    assert_eq!(moved.expect("it stops").expect("they are moved"), 2);
    program.tell();
    assert_eq!(program.line(), "moved");
    program.end();
}

/// A program with its own root, mounts and process ids has neither our files nor our `/proc`.
#[test]
fn a_file_reaches_another_mount_namespace() {
    if !skep_testkit::skip::is_root() {
        return skep_testkit::skip("root");
    }
    let dir = TempDir::new();
    build(&dir, "waits.c", Cc::c().arg("-static"));
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--ipc", "--net", "--fork", "chroot"]).arg(dir.path());
    let mut program = Program::run(dir, command.arg("/program"));
    let [pid] = run::children(program.pid())[..] else { panic!("`unshare` has one child") };
    let shared = TempDir::new();
    std::fs::write(shared.join("file"), vec![7; 4096]).expect("it is written");
    let file = std::fs::File::open(shared.join("file")).expect("it opens");
    let before = (mappings(pid), descriptors(pid));
    let bytes = stop(pid, |target| {
        let address = target.map_file(file.as_fd(), None, 4096, Perms::READ)?;
        let bytes = target.read(address, 4096)?;
        target.unmap(address, 4096)?;
        Ok::<_, Error>(bytes)
    });
    assert_eq!(bytes.expect("it stops").expect("it is mapped"), vec![7; 4096]);
    assert_eq!((mappings(pid), descriptors(pid)), before);
    program.ask();
    program.end();
}
