//! A process that attaches and detaches for as long as it runs does not grow. It is the only test of
//! its process, whose memory it measures.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use skep::{Error, Functions, HashMap, Session};

mod small_library;

const OBJECT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/library.bpf.o");

/// What grows.
#[derive(Debug)]
struct Usage {
    mappings: usize,
    resident_kb: u64,
    descriptors: usize,
    files: usize,
}

impl Usage {
    fn now(dir: &Path) -> Self {
        let read = |name: &str| fs::read_to_string(name).expect("there is a /proc");
        let status = read("/proc/self/status");
        let resident = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).expect("a line");
        let entries = |path: &Path| fs::read_dir(path).expect("it is there").count();
        Self {
            mappings: read("/proc/self/maps").lines().count(),
            resident_kb: resident.trim().trim_end_matches(" kB").parse().expect("a number"),
            descriptors: entries("/proc/self/fd".as_ref()),
            files: entries(&dir.join("links")) + entries(&dir.join("maps")),
        }
    }
}

#[test]
#[allow(clippy::print_stderr, reason = "what was measured is for who runs it alone")]
fn a_process_that_attaches_often_does_not_grow() -> Result<(), Error> {
    let rounds = if std::env::var_os("SKEP_STRESS").is_some() { 10_000 } else { 1_000 };
    let home = skep_testkit::TempDir::in_memory();
    let often_attached = small_library::open(&small_library::build(home.join("often.so")));
    let session = Session::open_in(home.join("skep"))?;
    let object = session.load(OBJECT)?;
    let attach =
        || object.attach(["count", "enter", "leave"], Functions::of_self("often.so:small"));
    // What the first of each kind takes stays.
    for _ in 0..200 {
        attach()?.detach().wait(Duration::from_secs(300));
    }
    let end = AtomicBool::new(false);
    let (before, after) = std::thread::scope(|scope| -> Result<_, Error> {
        let _stop = skep_testkit::run::SetOnDrop(&end);
        scope.spawn(|| {
            while !end.load(Ordering::Relaxed) {
                often_attached(1);
            }
        });
        let before = Usage::now(session.dir().path());
        for _ in 0..rounds {
            drop(attach()?);
        }
        // Links that were detached in the middle of an event wait for the next one. On a busy machine
        // that takes a while, in which more are detached; what leaks never goes.
        let mut after = Usage::now(session.dir().path());
        for _ in 0..1_000 {
            if after.files <= before.files && after.mappings <= before.mappings + 8 {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
            attach()?.detach().wait(Duration::from_secs(300));
            after = Usage::now(session.dir().path());
        }
        Ok((before, after))
    })?;
    eprintln!("{rounds} links: {before:?}, then {after:?}");
    assert!(after.mappings <= before.mappings + 8, "{before:?} {after:?}");
    assert!(after.files <= before.files + 4, "{before:?} {after:?}");
    assert!(after.descriptors <= before.descriptors, "{before:?} {after:?}");
    // Less than a tenth of a page for each.
    assert!(after.resident_kb < before.resident_kb + rounds * 4 / 10, "{before:?} {after:?}");

    // Many links of one program have its code and maps in common.
    let links = (0..100).map(|_| attach()).collect::<Result<Vec<_>, _>>()?;
    let many = Usage::now(session.dir().path());
    // Of a link's file there is one, of its control map two: for who made it, and for who runs it.
    assert!(many.mappings <= after.mappings + 6 * links.len() + 32, "{after:?} {many:?}");
    often_attached(1);
    drop(links);
    let counts: HashMap<u64, u64> = object.map("counts")?.typed()?;
    let calls = counts.get(&(often_attached as *const () as u64))?;
    assert!(calls.is_some_and(|calls| calls >= 100), "{calls:?}");
    Ok(())
}
