//! A library and a thread of its own in a process that knows nothing of either.

mod support;

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use skep_inject::{Error, Image, ImageError, Loaded, Target, stop};
use skep_testkit::TempDir;
use skep_testkit::cc::Cc;
use skep_testkit::skip::has_command;

use support::{Program, build, descriptors, mappings};

/// Compiles the library that is loaded.
fn guest(flags: &[&str]) -> Vec<u8> {
    let dir = TempDir::new();
    let cc = Cc::c().args(&["-O2", "-shared", "-fPIC", "-nostdlib", "-fno-stack-protector"]);
    std::fs::read(build(&dir, "guest.c", cc.args(flags))).expect("it was compiled")
}

fn import(image: &Image, name: &str) -> Option<u64> {
    (name == "imported").then(|| image.symbol("seven_times"))?
}

/// Loads the library, and starts its thread with one end of a socket pair.
fn enter(target: &mut Target, image: &Image, socket: &UnixStream) -> Result<(Loaded, u32), Error> {
    let loaded = target.load(image, None, b"", |name| import(image, name))?;
    let number = target.give_file(socket.as_fd())?;
    let entry = loaded.start + image.symbol("entry").expect("it is exported");
    let tid = target.start_thread(&loaded, entry, u64::from(number))?;
    assert!(target.threads().contains(&tid));
    Ok((loaded, tid))
}

/// Has the thread calculate; returns what it says of itself.
fn ask(socket: &mut UnixStream, n: i64) -> [i64; 4] {
    socket.write_all(&n.to_le_bytes()).expect("the thread reads");
    let mut answer = [0; 40];
    socket.read_exact(&mut answer).expect("the thread answers");
    let word = |i: usize| i64::from_le_bytes(answer[i * 8..][..8].try_into().expect("8 bytes"));
    assert_eq!(word(0), (n * 2 + 3) * 7 + 1000);
    [word(1), word(2), word(3), word(4)]
}

fn wait_for_end(pid: u32, tid: u32) {
    let task = format!("/proc/{pid}/task/{tid}");
    let end = std::time::Instant::now() + Duration::from_secs(300);
    while Path::new(&task).exists() {
        assert!(std::time::Instant::now() < end, "thread {tid} does not end");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn a_thread_comes_and_goes(mut program: Program) {
    let pid = program.pid();
    let image = Image::parse(guest(&[])).expect("a library");
    program.ask();
    let before = sockets(pid);
    for _ in 0..3 {
        let (mut ours, theirs) = UnixStream::pair().expect("a pair");
        ours.set_read_timeout(Some(Duration::from_secs(300))).expect("a time");
        let entered = stop(pid, |target| enter(target, &image, &theirs)).expect("it stops");
        let (loaded, tid) = entered.expect("the library is loaded");
        drop(theirs);
        for (calls, n) in (1..).zip([5, -8, 1 << 40]) {
            // No constructor ran, the weak symbol is null, and it is the thread that was made.
            assert_eq!(ask(&mut ours, n), [calls, 0, 0, i64::from(tid)]);
            program.ask();
        }
        let status = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/status"));
        let status = status.expect("the thread is there");
        // All but `SIGKILL` and `SIGSTOP`.
        assert!(status.contains("SigBlk:\tfffffffffffbfeff\n"), "{status}");
        // It reads from the socket, with the instruction pointer in the library.
        let early = stop(pid, |target| {
            let second = target.start_thread(&loaded, loaded.start, 0).map(drop);
            [target.unload(&loaded), target.check_free(&loaded), second]
        });
        for done in early.expect("it stops") {
            assert!(matches!(done, Err(Error::InUse { tid: t, .. }) if t == tid), "{done:?}");
        }
        ask(&mut ours, 9);
        // As when the tracer is killed: the thread ends by itself.
        drop(ours);
        wait_for_end(pid, tid);
        let left = stop(pid, |target| {
            // Before the program maps anything there.
            target.unload(&loaded).map(|()| lines_within(pid, &loaded))
        });
        assert_eq!(left.expect("it stops").expect("nobody is in it"), Vec::<String>::new());
        program.ask();
    }
    assert_eq!(sockets(pid), before);
    program.end();
}

/// The sockets that a program has open; its pipes come and go.
fn sockets(pid: u32) -> Vec<PathBuf> {
    let is_socket = |path: &PathBuf| path.to_string_lossy().starts_with("socket:");
    descriptors(pid).into_values().filter(is_socket).collect()
}

/// Lines of the list of mappings that lie where a library is or was.
fn lines_within(pid: u32, loaded: &Loaded) -> Vec<String> {
    let is_within = |line: &String| {
        let start = line.split('-').next().and_then(|n| u64::from_str_radix(n, 16).ok());
        start.is_some_and(|n| (loaded.start..loaded.start + loaded.len).contains(&n))
    };
    mappings(pid).into_iter().filter(is_within).collect()
}

/// A program that maps nothing itself has the same memory and descriptors as before.
#[test]
fn it_leaves_nothing() {
    let program = Program::run_waiting();
    let pid = program.pid();
    let image = Image::parse(guest(&[])).expect("a library");
    let before = (descriptors(pid), mappings(pid));
    let (mut ours, theirs) = UnixStream::pair().expect("a pair");
    let entered = stop(pid, |target| enter(target, &image, &theirs)).expect("it stops");
    let (loaded, tid) = entered.expect("the library is loaded");
    drop(theirs);
    ask(&mut ours, 1);
    assert_ne!(mappings(pid), before.1);
    drop(ours);
    wait_for_end(pid, tid);
    stop(pid, |target| target.unload(&loaded)).expect("it stops").expect("nobody is in it");
    assert_eq!((descriptors(pid), mappings(pid)), before);
    program.end();
}

#[test]
fn in_a_dynamic_program() {
    a_thread_comes_and_goes(Program::start("sleepers.c", &[]));
}

#[test]
fn in_a_static_program() {
    a_thread_comes_and_goes(Program::start("sleepers.c", &["-static", "-no-pie"]));
}

#[test]
fn in_a_relocated_static_program() {
    a_thread_comes_and_goes(Program::start("sleepers.c", &["-static-pie"]));
}

#[test]
fn in_a_program_of_another_c_library() {
    if !has_command("musl-gcc") {
        return skep_testkit::skip("musl-gcc");
    }
    let cc = Cc::named("musl-gcc").args(&["-O2", "-idirafter", "/usr/include"]);
    let cc = cc.args(&["-idirafter", "/usr/include/x86_64-linux-gnu"]);
    a_thread_comes_and_goes(Program::start_by("sleepers.c", cc));
}

/// Segments have the protections of their headers, and what was relocated once is read-only.
#[test]
fn memory_is_protected_as_the_library_says() {
    let program = Program::start("sleepers.c", &[]);
    let pid = program.pid();
    let image = Image::parse(guest(&["-Wl,-z,relro"])).expect("a library");
    let load = |target: &mut Target| target.load(&image, None, b"", |name| import(&image, name));
    let loaded = stop(pid, load).expect("it stops").expect("the library is loaded");
    let protections: Vec<String> = lines_within(pid, &loaded)
        .iter()
        .filter_map(|line| line.split(' ').nth(1).map(str::to_owned))
        .collect();
    let protections = protections.join(" ");
    // Headers, text, constants, relocated constants, variables; instructions that make the thread,
    // the end of the stack, and the stack.
    assert_eq!(protections, "r--p r-xp r--p rw-p r-xp ---p rw-p");
    stop(pid, |target| target.unload(&loaded)).expect("it stops").expect("nobody is in it");
    program.end();
}

#[test]
fn what_cannot_be_resolved_is_named_and_leaves_nothing() {
    let program = Program::run_waiting();
    let pid = program.pid();
    let before = mappings(pid).len();
    let image = Image::parse(guest(&[])).expect("a library");
    assert_eq!(image.imports(), ["imported"]);
    let error = stop(pid, |target| target.load(&image, None, b"", |_| None)).expect("it stops");
    assert_eq!(
        error.expect_err("nobody defines it").to_string(),
        format!(
            "cannot load a library into process {pid}: symbol `imported` is imported, and nothing \
             defines it"
        )
    );
    assert_eq!(mappings(pid).len(), before);
    program.end();
}

#[test]
fn other_files_are_refused() {
    let refused = |file: Vec<u8>| Image::parse(file).expect_err("it is refused").to_string();
    assert!(!refused(Vec::new()).is_empty());
    let mut program = guest(&[]);
    program[16] = 2;
    assert_eq!(refused(program), "it is not a shared library for x86-64");
    let error = Image::parse(guest(&["-Wl,-z,pack-relative-relocs"]));
    assert!(matches!(error, Err(ImageError::Unsupported { .. })), "{error:?}");
}

/// However a library is damaged, it is loaded with other contents or refused.
#[test]
fn damaged_files_do_no_harm() {
    let program = Program::run_waiting();
    let file = guest(&[]);
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    let mut loaded = 0;
    stop(program.pid(), |target| {
        for _ in 0..300 {
            let mut file = file.clone();
            for _ in 0..4 {
                // Headers, and the tables of the first pages.
                let at = next() as usize % file.len().min(1 << 13);
                file[at] = next() as u8;
            }
            let Ok(image) = Image::parse(file) else { continue };
            if let Ok(there) = target.load(&image, None, b"", |name| import(&image, name)) {
                loaded += 1;
                target.unload(&there).expect("nobody is in it");
            }
        }
    })
    .expect("it stops");
    assert!(loaded > 0);
    program.end();
}

impl Program {
    fn run_waiting() -> Self {
        let dir = TempDir::new();
        let mut command = Command::new(build(&dir, "waits.c", Cc::c()));
        Self::run(dir, command.arg("2"))
    }
}

/// A program may write the mark of a library anywhere, also where none can begin.
#[test]
fn a_mark_is_no_library_where_none_can_be() {
    let image = Image::parse(guest(&[])).expect("a library");
    let offset = Loaded::at(0, &image).mark();
    let place = |mark: u64| Loaded::of_mark(mark, &image).map(|loaded| loaded.start);
    assert_eq!(place(offset + (1 << 40)), Some(1 << 40));
    for mark in [0, 4096, offset + 1, !4095] {
        assert_eq!(place(mark), None, "{mark:#x}");
    }
}
