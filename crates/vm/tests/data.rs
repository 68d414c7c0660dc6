//! Programs with known results, on every engine: our own cases, and the public bpf_conformance data
//! when it is there.

#[path = "suite/case.rs"]
mod case;
mod suite;

use std::path::{Path, PathBuf};

/// Where a checkout of the public suite's `tests` folder may be named.
const PUBLIC: &str = "BPF_CONFORMANCE_DATA";

fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.path());
    let mut files: Vec<_> =
        entries.filter(|p| p.extension().is_some_and(|e| e == "data")).collect();
    files.sort();
    files
}

/// Runs all files of a folder on all engines; returns what went wrong and how many cases ran on
/// each engine.
fn run_all(dir: &Path, skip: &[&str]) -> (Vec<String>, usize) {
    let (mut wrong, mut ran) = (Vec::new(), 0);
    for file in files(dir) {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if skip.contains(&name.as_str()) {
            continue;
        }
        let case = match std::fs::read_to_string(&file)
            .map_err(|e| e.to_string())
            .and_then(|t| case::parse(&t))
        {
            Ok(case) => case,
            Err(e) => {
                wrong.push(format!("{name}: {e}"));
                continue;
            }
        };
        ran += 1;
        if let Some(raw) = &case.raw {
            let slots: Vec<u64> =
                case.insns.iter().map(|i| u64::from_le_bytes(i.to_bytes())).collect();
            if &slots != raw {
                wrong.push(format!("{name}: assembles to {slots:x?}, not {raw:x?}"));
            }
        }
        for engine in suite::ENGINES {
            let mut mem = case.mem.clone();
            match case::run(engine, &case.insns, &mut mem) {
                Ok(r0) if r0 == case.result => {}
                other => wrong
                    .push(format!("{name}: {engine}: {other:x?} instead of {:#x}", case.result)),
            }
            if case.after.as_ref().is_some_and(|after| *after != mem) {
                wrong.push(format!("{name}: {engine}: memory is {mem:02x?}"));
            }
        }
    }
    (wrong, ran)
}

#[test]
fn our_cases_give_their_results_on_every_engine() {
    let (wrong, ran) = run_all(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data"), &[]);
    assert_eq!(wrong, Vec::<String>::new());
    assert!(ran > 20, "only {ran} cases");
}

#[test]
fn the_public_suite_gives_its_results_on_every_engine() {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/conformance");
    let dir = std::env::var_os(PUBLIC).map_or(beside, PathBuf::from);
    if files(&dir).is_empty() {
        return skep_testkit::skip(&format!("the bpf_conformance data ({PUBLIC})"));
    }
    // Calls through a register are no part of the instruction set's standard groups.
    let (wrong, ran) = run_all(&dir, &["callx.data"]);
    assert_eq!(wrong, Vec::<String>::new());
    assert!(ran >= 300, "only {ran} cases");
}
