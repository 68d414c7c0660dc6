//! The example programs in `bpf/` that are about one thing that a map is good for, as their first
//! comments say to run them.

mod common;

use std::collections::BTreeMap;

use common::{Skep, data, json, object};
use serde_json::Value as Json;
use skep::maps::{Access, Map};
use skep_testkit::TempDir;
use skep_testkit::cc::Cc;

/// What a report says of a map.
fn map<'r>(report: &'r Json, name: &str) -> &'r Json {
    let maps = report["maps"].as_array().expect("a list");
    maps.iter().find(|m| m["map"]["name"] == name).expect(name)
}

/// Keys and values of a map, in their order. The map is read as its users see it, which is there
/// until the next command is loaded.
fn entries(skep: &Skep, report: &Json, name: &str) -> Vec<(Vec<u8>, Vec<u8>)> {
    let id = map(report, name)["map"]["id"].as_u64().expect("a number");
    let path = skep.path("skep").join("maps").join(id.to_string());
    let map = Map::open(&path, Access::ReadOnly).expect("nobody removed it");
    map.iter().map(|entry| entry.expect("nobody changes it")).collect()
}

/// As [`entries`], of counts.
fn counts(skep: &Skep, report: &Json, name: &str) -> Vec<(Vec<u8>, u64)> {
    let count = |value: Vec<u8>| u64::from_ne_bytes(value.try_into().expect("a count"));
    entries(skep, report, name).into_iter().map(|(key, value)| (key, count(value))).collect()
}

/// Files are counted by path, also one that is not there, and are listed in the order of their
/// paths.
#[test]
fn opened_files_are_counted_by_path() {
    let (skep, dir) = (Skep::new(), TempDir::new());
    let source = data("opens.c");
    let target = Cc::c().args(&["-O1"]).compile(&[source.as_ref()], &dir.join("opens"));
    let long = format!("/no/{}", "x".repeat(251));
    let too_long = format!("{long}y");
    let paths = ["/etc/passwd", "/no/such/file", &long, &too_long, "/etc/group", "/etc/passwd"];
    let mut args = vec!["run".to_owned(), object("opened.bpf.o"), "--json".to_owned()];
    args.extend(["--".to_owned(), target.display().to_string()]);
    args.extend(paths.map(str::to_owned));
    let ended = skep.run(&args);
    assert_eq!(ended.shell_status(), 0, "{}", ended.transcript());

    let report = json(&ended.stdout);
    // The target opens its first argument once, the second twice, and so on. What is longer than a
    // key is cut, and so counts as the path that it begins with.
    let want =
        [("/etc/group", 5), ("/etc/passwd", 1 + 6), (long.as_str(), 3 + 4), ("/no/such/file", 2)];
    let mut want = want.map(|(path, n)| (path.as_bytes().to_vec(), n));
    want.sort();
    assert_eq!(counts(&skep, &report, "opened"), want);
    assert_eq!(map(&report, ".bss")["entries"][0]["value"]["not_counted"], 0);
}

/// A request counts for each directory that its path lies in, and for none that is in its query.
#[test]
fn requests_are_counted_by_the_parts_of_their_paths() {
    let (skep, dir) = (Skep::new(), TempDir::new());
    let source = data("requests.c");
    let target = Cc::c().args(&["-O1"]).compile(&[source.as_ref()], &dir.join("server"));
    let urls = [
        "/",
        "/api/v1/users?by=/name/",
        "/api/v1/",
        "/api/v2#/a/b/",
        "/apis/",
        "",
        "/1/2/3/4/5/6/7/8/9/",
    ];
    let mut args = vec!["run".to_owned(), object("urls.bpf.o"), "--json".to_owned()];
    args.extend(["--attach", "request=server:handle_request", "-o"].map(str::to_owned));
    args.extend([dir.join("report").display().to_string(), "--".to_owned()]);
    args.push(target.display().to_string());
    args.extend(urls.map(str::to_owned));
    let ended = skep.run(&args);
    assert_eq!(ended.shell_status(), 0, "{}", ended.transcript());

    let report = json(&std::fs::read(dir.join("report")).expect("the report"));
    let mut want = BTreeMap::<String, u64>::new();
    for url in urls {
        let path = url.split(['?', '#']).next().unwrap_or_default();
        for (at, _) in path.match_indices('/').take(8) {
            *want.entry(path[..=at].to_owned()).or_default() += 1;
        }
    }
    let want: Vec<(Vec<u8>, u64)> = want.into_iter().map(|(p, n)| (p.into_bytes(), n)).collect();
    assert_eq!(counts(&skep, &report, "requests"), want);
    assert_eq!(map(&report, ".bss")["entries"][0]["value"]["not_counted"], 0);
}

/// The target prints the two callers of each allocation, as the compiler has their return
/// addresses, and its size. They stand in the keys, in order, before the caller of `malloc`, and
/// bytes and calls add up; a stack of 43 callers has its innermost 24.
#[test]
fn allocations_are_added_up_by_call_stack() {
    let (skep, dir) = (Skep::new(), TempDir::new());
    let source = data("allocates.c");
    let flags = ["-O1", "-no-pie", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls"];
    let target = Cc::c().args(&flags).compile(&[source.as_ref()], &dir.join("allocates"));
    let report = dir.join("report").display().to_string();
    let target = target.display().to_string();
    let program = object("allocations.bpf.o");
    let ended = skep.run(["run", &program, "--json", "-o", &report, "--", &target]);
    assert_eq!(ended.shell_status(), 0, "{}", ended.transcript());

    let said = String::from_utf8_lossy(&ended.stdout);
    let mut want = BTreeMap::<String, [u64; 2]>::new();
    for line in said.lines() {
        let (callers, size) = line.split_once(' ').expect("callers and a size");
        let [calls, bytes] = want.entry(callers.to_owned()).or_default();
        (*calls, *bytes) = (*calls + 1, *bytes + size.parse::<u64>().expect("a number"));
    }
    assert_eq!(want.len(), 9, "{said}");
    let report = json(&std::fs::read(&report).expect("the report"));
    let (mut found, mut depths) = (BTreeMap::new(), BTreeMap::new());
    for (key, value) in entries(&skep, &report, "allocations") {
        let key = String::from_utf8(key).expect("digits");
        let parts: Vec<&str> = key.split(';').collect();
        assert!(parts.iter().all(|part| part.len() == 12), "{key}");
        // What the C library allocates for itself has no callers of the target's.
        let [.., outer, caller, _] = parts[..] else { continue };
        let callers = format!("{outer};{caller}");
        if want.contains_key(&callers) {
            let (words, _) = value.as_chunks::<8>();
            found.insert(callers, [words[0], words[1]].map(u64::from_ne_bytes));
            *depths.entry(parts.len()).or_insert(0) += 1;
        }
    }
    assert_eq!(found, want);
    assert_eq!(depths.last_key_value(), Some((&24, &1)), "{depths:?}");
    assert_eq!(map(&report, ".bss")["entries"][0]["value"]["not_counted"], 0);
}

/// Queries of names pass or not by the nearest domain that has a policy, as the file of tests beside
/// the program says.
#[test]
fn domains_are_judged_by_suffix() {
    let skep = Skep::new();
    let tests = object("domains.bpf.o").replace(".bpf.o", ".test.toml");
    for engine in ["jit", "interp"] {
        let ended = skep.run(["test", &tests, "--engine", engine]);
        assert_eq!(ended.shell_status(), 0, "{}", ended.transcript());
        let said = String::from_utf8_lossy(&ended.stdout);
        assert!(said.contains("2 tests passed, 0 failed"), "{}", ended.transcript());
    }
}
