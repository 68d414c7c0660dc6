//! Links that are detached while a thread is inside one of their programs: what they take goes when it is
//! not any more.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use skep::{Error, Functions, Session};

mod small_library;

const OBJECT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/slow.bpf.o");
const LIMIT: Duration = Duration::from_secs(300);

/// The files of links and maps.
fn files(dir: &Path) -> usize {
    let entries = |path: &Path| fs::read_dir(path).expect("it is there").count();
    entries(&dir.join("links")) + entries(&dir.join("maps"))
}

#[test]
fn files_of_links_that_were_in_use() -> Result<(), Error> {
    let home = skep_testkit::TempDir::in_memory();
    let small = small_library::open(&small_library::build(home.join("slow.so")));
    let session = Session::open_in(home.join("skep"))?;
    let object = session.load(OBJECT)?;
    let attach = || object.program("slow")?.attach(Functions::of_self("slow.so:small"));
    // What the first of each kind takes stays.
    drop(attach()?);
    let before = files(session.dir().path());
    let memory = object.map(".bss")?;
    // `begun` and `ended`.
    let words = || {
        let value = memory.lookup(&0_u32.to_ne_bytes()).expect("it is an array");
        [0, 8].map(|at| u64::from_ne_bytes(value[at..at + 8].try_into().expect("eight bytes")))
    };
    for round in 1..=3 {
        let link = attach()?;
        let worker = std::thread::spawn(move || small(1));
        let end = Instant::now() + LIMIT;
        while words()[0] < round {
            assert!(Instant::now() < end, "the program does not begin");
            std::thread::yield_now();
        }
        drop(link);
        assert!(files(session.dir().path()) > before);
        let value = [round, round].map(u64::to_ne_bytes).concat();
        memory.update(&0_u32.to_ne_bytes(), &value, 0).expect("it is an array");
        assert_eq!(worker.join().expect("it returns"), 4);
    }
    drop(attach()?);
    assert_eq!(files(session.dir().path()), before);
    Ok(())
}
