//! Libraries that another thread opens while this one attaches.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Barrier;
use std::time::Duration;

use skep::{Error, Functions, HashMap, Session};

mod small_library;

const OBJECT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/library.bpf.o");
/// Set in the processes that are started to attach for the first time.
const FIRST: &str = "SKEP_TEST_FIRST_ATTACH";

/// Opens a copy of the library beside each of many links.
fn attach_and_open(library: &Path, dir: &Path, rounds: usize) -> Result<(), Error> {
    let session = Session::open_in(dir.join("skep"))?;
    let object = session.load(OBJECT)?;
    let program = object.program("count")?;
    let counts: HashMap<u64, u64> = object.map("counts")?.typed()?;
    let copies: Vec<PathBuf> = (0..rounds)
        .map(|n| {
            let copy = dir.join(format!("late-{}-{n}.so", std::process::id()));
            std::fs::copy(library, &copy).expect("there is room");
            copy
        })
        .collect();
    small_library::open(library);
    let start = Barrier::new(2);
    for (n, copy) in copies.iter().enumerate() {
        let (link, function) = std::thread::scope(|scope| {
            let opens = scope.spawn(|| {
                start.wait();
                // At another time of the other thread's work in each round.
                for _ in 0..n * 400 {
                    std::hint::spin_loop();
                }
                small_library::open(copy)
            });
            start.wait();
            let functions = Functions::of_self("late*.so:small");
            let link = program.attach(functions);
            (link, opens.join().expect("it can be opened"))
        });
        let link = link?;
        assert_eq!(function(5), 16);
        let counted = counts.get(&(function as *const () as u64))?;
        assert_eq!(counted, Some(1), "round {n}: {:?}", link.functions()?);
    }
    Ok(())
}

#[test]
fn a_library_that_is_opened_during_an_attach_is_hooked() -> Result<(), Box<dyn std::error::Error>> {
    const NAME: &str = "a_library_that_is_opened_during_an_attach_is_hooked";
    if let Some(dir) = std::env::var_os(FIRST) {
        let dir = PathBuf::from(dir);
        return Ok(attach_and_open(&dir.join("late.so"), &dir, 1)?);
    }
    let dir = skep_testkit::TempDir::in_memory();
    let library = small_library::build(dir.join("late.so"));
    attach_and_open(&library, dir.path(), 100)?;
    // The dynamic linker's event is hooked with the first link.
    for _ in 0..5 {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--exact", NAME]).env(FIRST, dir.path());
        let ended = skep_testkit::run::run(&mut command, b"", Duration::from_secs(300));
        assert!(ended.status.success(), "{}", ended.transcript());
    }
    Ok(())
}
