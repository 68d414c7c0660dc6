//! What is found out about the code of modules is kept where the environment says, or not.

mod common;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use common::{json, target, text};
use serde_json::Value as Json;
use skep_testkit::TempDir;
use skep_testkit::run::run;
use skep_testkit::skip::{has_command, skip};
use skep_testkit::trace::skep_bin;

/// Traces all functions of the target; what the report says of them, but for times.
fn trace(environment: &[(&str, &Path)], unset: &[&str]) -> Json {
    let mut command = Command::new(skep_bin());
    command.args(["-q", "trace", "*", "--json", "-o", "/dev/stderr", "--", target(), "3"]);
    for name in unset {
        command.env_remove(name);
    }
    command.envs(environment.iter().copied());
    let ended = run(&mut command, b"", Duration::from_secs(300));
    // The target's own.
    assert_eq!(ended.shell_status(), 3, "{}", ended.transcript());
    json(&ended.stderr)["sites"].clone()
}

/// The kernel ends a process that writes more than it may, unless it expects that.
#[test]
fn a_process_that_may_write_no_large_files_lives() {
    if !has_command("prlimit") {
        return skip("prlimit");
    }
    let dir = TempDir::in_memory();
    let mut counts = Vec::new();
    for limit in ["--fsize=0", "--fsize=600", "--fsize=unlimited"] {
        let mut command = Command::new(skep_bin());
        // Only `sort` itself has the limit.
        command.args([
            "-q",
            "trace",
            "sort:*",
            "prlimit:*",
            "--allow-unmatched",
            "-o",
            "/dev/null",
        ]);
        command.args(["--", "prlimit", limit, "sort", "/etc/passwd"]);
        command.env("SKEP_DIR", dir.join("skep")).env_remove("SKEP_CODE_CACHE");
        let ended = run(&mut command, b"", Duration::from_secs(300));
        assert_eq!(ended.shell_status(), 0, "{}", ended.transcript());
        assert!(text(&ended.stdout).contains("root:"), "{}", ended.transcript());
        counts.push(files(&dir.join("skep/code")).len());
    }
    assert_eq!(counts, [counts[0], counts[0], counts[0] + 1]);
}

fn files(place: &Path) -> Vec<PathBuf> {
    let mut all: Vec<_> = fs::read_dir(place).unwrap().map(|e| e.unwrap().path()).collect();
    all.sort();
    all
}

#[test]
fn code_is_kept_where_the_environment_says() {
    let dir = TempDir::in_memory();
    let (skep, cache, named) = (dir.join("skep"), dir.join("cache"), dir.join("named"));
    let (off, full) = (Path::new("off"), Path::new("/dev/full"));
    let only_skep = [("SKEP_DIR", &*skep)];
    let unset = ["SKEP_DIR", "SKEP_CODE_CACHE", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR"];

    // Nowhere.
    let expected = trace(&[only_skep[0], ("SKEP_CODE_CACHE", off)], &unset);
    assert!(expected["attached"].as_u64().is_some_and(|n| n > 1000), "{}", expected["attached"]);
    assert!(!skep.join("code").exists());
    assert_eq!(trace(&[only_skep[0], ("SKEP_CODE_CACHE", full)], &unset), expected);
    assert!(!skep.join("code").exists());

    // In a directory that is named.
    for _ in 0..2 {
        assert_eq!(trace(&[only_skep[0], ("SKEP_CODE_CACHE", &named)], &unset), expected);
        assert_eq!(fs::read_link(skep.join("code")).unwrap(), named);
    }
    let kept = files(&named);
    assert!(!kept.is_empty());
    assert_eq!(fs::metadata(&named).unwrap().mode() & 0o777, 0o700);

    // In the skep directory.
    assert_eq!(trace(&[only_skep[0], ("SKEP_CODE_CACHE", off)], &unset), expected);
    assert!(!skep.join("code").is_symlink());
    assert_eq!(files(&named), kept);
    for _ in 0..2 {
        assert_eq!(trace(&only_skep, &unset), expected);
        assert_eq!(files(&skep.join("code.d")).len(), kept.len());
        assert_eq!(fs::read_link(skep.join("code")).unwrap(), skep.join("code.d"));
    }

    // In the cache, where the skep directory is the usual one.
    let run_dir = dir.join("run");
    fs::create_dir(&run_dir).unwrap();
    let usual = [("XDG_RUNTIME_DIR", &*run_dir), ("XDG_CACHE_HOME", &*cache)];
    for _ in 0..2 {
        assert_eq!(trace(&usual, &unset), expected);
        assert_eq!(files(&cache.join("skep/code")).len(), kept.len());
        assert_eq!(fs::read_link(run_dir.join("skep/code")).unwrap(), cache.join("skep/code"));
    }
}

/// The proofs in a skep directory's cache.
fn proofs(skep: &Path) -> Vec<PathBuf> {
    let is_proof = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"proof."))
    };
    files(&skep.join("code")).into_iter().filter(is_proof).collect()
}

/// The program of a trace is verified by the first; one that finds a damaged proof makes it anew.
#[test]
fn a_trace_finds_the_proof_of_the_one_before() {
    let dir = TempDir::in_memory();
    let skep = dir.join("skep");
    let trace = || trace(&[("SKEP_DIR", &skep)], &["SKEP_CODE_CACHE"]);
    let expected = trace();
    let made = proofs(&skep);
    let [proof] = &*made else { panic!("{made:?}") };
    let (bytes, inode) = (fs::read(proof).unwrap(), || fs::metadata(proof).unwrap().ino());
    let first = inode();
    assert_eq!((trace(), proofs(&skep), inode()), (expected.clone(), made.clone(), first));
    for damaged in [&bytes[..bytes.len() - 1], &[]] {
        fs::write(proof, damaged).unwrap();
        assert_eq!((trace(), proofs(&skep)), (expected.clone(), made.clone()));
        assert!(fs::read(proof).unwrap() == bytes);
    }
    assert_ne!(inode(), first);
}

/// Other commands keep proofs where one that traced has made a place for them, and the environment does
/// not want otherwise.
#[test]
fn every_command_that_loads_keeps_proofs_or_none() {
    let dir = TempDir::in_memory();
    let skep = dir.join("skep");
    trace(&[("SKEP_DIR", &skep)], &["SKEP_CODE_CACHE"]);
    let object = concat!(env!("CARGO_MANIFEST_DIR"), "/../../benches/chain/bpf/balancer.bpf.o");
    for (chain, cache, wanted) in [("one", "off", 0), ("two", "", 1)] {
        proofs(&skep).iter().for_each(|proof| fs::remove_file(proof).unwrap());
        for words in [&["create", chain][..], &["add", chain, &format!("{object}:balance")]] {
            let mut command = Command::new(skep_bin());
            command.args(["-q", "chain"]).args(words);
            command.env("SKEP_DIR", &skep).env("SKEP_CODE_CACHE", cache);
            let ended = run(&mut command, b"", Duration::from_secs(300));
            assert_eq!(ended.shell_status(), 0, "{}", ended.transcript());
        }
        assert_eq!(proofs(&skep).len(), wanted, "{chain}");
    }
}
