//! A program that hooks every function of itself, its libraries and the library that does it. It is
//! the only test of its process: all others would be counted too.

use std::time::Duration;

use skep::{Functions, HashMap, PerCpuArray, Session};

const OBJECT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/library.bpf.o");

/// Work with allocation, sorting, formatting, threads and thread-local storage.
fn work() -> usize {
    let threads: Vec<_> = (0..4_u64)
        .map(|n| {
            std::thread::spawn(move || {
                let mut words: Vec<String> =
                    (0..2000).map(|i| (i * 7919 % 2003 + n).to_string()).collect();
                words.sort();
                words.dedup();
                words.len()
            })
        })
        .collect();
    threads.into_iter().map(|t| t.join().expect("no panic")).sum()
}

#[test]
fn a_program_survives_hooks_on_all_its_functions() -> Result<(), skep::Error> {
    let expected = work();
    let session = Session::scratch()?;
    let object = session.loader().max_entries("counts", 100_000).load(OBJECT)?;
    for _ in 0..3 {
        let link = object.attach(["count", "enter", "leave"], Functions::of_self("*"))?;
        assert_eq!(work(), expected);
        let attached = link.functions()?.iter().filter(|f| f.skipped.is_none()).count();
        assert!(attached > 1000, "{attached} functions");
        let mut detached = link.detach();
        assert_eq!(work(), expected);
        // Threads of the test harness wait in functions that were hooked.
        let _ = detached.wait(Duration::from_millis(100));
    }
    let counts: HashMap<u64, u64> = object.map("counts")?.typed()?;
    assert!(counts.iter().count() > 100);
    let calls: PerCpuArray<u64> = object.map("calls")?.typed()?;
    let sum = |index| Ok::<u64, skep::Error>(calls.get(index)?.iter().flatten().sum());
    assert!(sum(0)? > 10_000, "{} calls", sum(0)?);
    Ok(())
}
