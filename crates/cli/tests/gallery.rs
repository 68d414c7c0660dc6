//! The example programs in `bpf/` that are about one thing that a map is good for, as their first
//! comments say to run them.

mod common;

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

/// Keys and counts of a map, in their order. The map is read as its users see it, which is there
/// until the next command is loaded.
fn counts(skep: &Skep, report: &Json, name: &str) -> Vec<(Vec<u8>, u64)> {
    let id = map(report, name)["map"]["id"].as_u64().expect("a number");
    let path = skep.path("skep").join("maps").join(id.to_string());
    let map = Map::open(&path, Access::ReadOnly).expect("nobody removed it");
    map.iter()
        .map(|entry| {
            let (key, value) = entry.expect("nobody changes it");
            (key, u64::from_ne_bytes(value.try_into().expect("a count")))
        })
        .collect()
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
    let mut want = std::collections::BTreeMap::<String, u64>::new();
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
