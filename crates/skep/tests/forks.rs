//! A process that forks while another of its threads attaches: the child finds no lock that nobody
//! gives back, and attaches itself.

use std::process::Command;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use skep::isa::MapType;
use skep::maps::MapDef;
use skep::{Error, Functions, HashMap, Object, Session};

mod small_library;
use small_library::Small;

const OBJECT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/library.bpf.o");
/// Set in the processes that [`the_first_attach_may_be_interrupted_by_a_fork`] starts.
const FIRST: &str = "SKEP_TEST_FIRST_ATTACH";
/// How long a child may take before the kernel ends it.
const CHILD_SECONDS: u32 = 120;

unsafe extern "C" {
    fn fork() -> i32;
    fn alarm(seconds: u32) -> u32;
    fn _exit(status: i32) -> !;
    fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32;
}

/// Runs `f` in a forked child; returns the status that it was waited for with.
fn in_child(f: impl FnOnce() -> bool) -> i32 {
    let mut status = -1;
    // SAFETY: the child runs `f`, with the memory of a process whose other threads are gone, and
    // ends: that it can is what is tested.
    unsafe {
        let pid = fork();
        assert!(pid >= 0, "no fork: {}", std::io::Error::last_os_error());
        if pid == 0 {
            alarm(CHILD_SECONDS);
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
            _exit(if done.unwrap_or(false) { 0 } else { 3 });
        }
        assert_eq!(waitpid(pid, &raw mut status, 0), pid);
    }
    status
}

/// Creates a map and opens it again.
fn makes_a_map(session: &Session) -> Result<bool, Error> {
    let map = session.create_map(&MapDef::new(MapType::PercpuArray, 4, 8, 1))?;
    session.open_map(map.id())?;
    Ok(true)
}

/// Attaches, calls and detaches.
fn counts_its_calls(session: &Session, object: &Object, small: Small) -> Result<bool, Error> {
    let counts: HashMap<u64, u64> = object.map("counts")?.typed()?;
    let address = small as *const () as u64;
    counts.remove(&address)?;
    let link = object.program("count")?.attach(Functions::of_self("forks.so:small"))?;
    for n in 0..10 {
        std::hint::black_box(small(n));
    }
    let counted = counts.get(&address)? == Some(10);
    drop(link);
    Ok(counted && makes_a_map(session)?)
}

#[test]
fn a_child_attaches_whatever_other_threads_did_at_the_fork() -> Result<(), Error> {
    let forks = if std::env::var_os("SKEP_STRESS").is_some() { 5000 } else { 100 };
    let home = skep_testkit::TempDir::in_memory();
    let session = Session::open_in(home.join("skep"))?;
    let small = small_library::open(&small_library::build(home.join("forks.so")));
    let (theirs, ours) = (session.load(OBJECT)?, session.load(OBJECT)?);
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = skep_testkit::run::SetOnDrop(&end);
        scope.spawn(|| {
            while !end.load(Ordering::Relaxed) {
                let link = theirs
                    .attach(["enter", "leave"], Functions::of_self("forks.so:small"))
                    .expect("it is not disturbed");
                std::hint::black_box(small(1));
                drop(link);
            }
        });
        scope.spawn(|| {
            while !end.load(Ordering::Relaxed) {
                makes_a_map(&session).expect("it is not disturbed");
                // Removes it.
                Session::open_in(session.dir().path()).expect("it is not disturbed");
            }
        });
        for n in 0..forks {
            let status =
                in_child(|| counts_its_calls(&session, &ours, small).expect("it can attach"));
            assert_eq!(status, 0, "child {n} (14: it hung)");
        }
    });
    Ok(())
}

/// What is made with the first link (the engine, the lists of modules and their symbols) may be
/// half made at the fork.
#[test]
fn the_first_attach_may_be_interrupted_by_a_fork() -> Result<(), Box<dyn std::error::Error>> {
    const NAME: &str = "the_first_attach_may_be_interrupted_by_a_fork";
    if std::env::var_os(FIRST).is_some() {
        return Ok(fork_beside_first_attach()?);
    }
    let processes = if std::env::var_os("SKEP_STRESS").is_some() { 1000 } else { 8 };
    for _ in 0..processes {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--exact", NAME, "--nocapture"]).env(FIRST, "1");
        let ended = skep_testkit::run::run(&mut command, b"", Duration::from_secs(240));
        assert!(ended.status.success(), "{}", ended.transcript());
    }
    Ok(())
}

fn fork_beside_first_attach() -> Result<(), Error> {
    let home = skep_testkit::TempDir::in_memory();
    let session = Session::open_in(home.join("skep"))?;
    let small = small_library::open(&small_library::build(home.join("forks.so")));
    let (theirs, ours) = (session.load(OBJECT)?, session.load(OBJECT)?);
    let start = Barrier::new(2);
    std::thread::scope(|scope| -> Result<(), Error> {
        let first = scope.spawn(|| {
            start.wait();
            theirs.program("count")?.attach(Functions::of_self("forks.so:small"))
        });
        start.wait();
        for n in 0.. {
            let last = first.is_finished();
            let status =
                in_child(|| counts_its_calls(&session, &ours, small).expect("it can attach"));
            assert_eq!(status, 0, "child {n} (14: it hung)");
            if last {
                break;
            }
        }
        first.join().expect("no panic").map(drop)
    })
}
