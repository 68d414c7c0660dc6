//! Which maps the programs of a chain have, when they are added one by one.

mod common;

use common::{Skep, fails, json, out};
use serde_json::Value as Json;

const OBJECT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../skep/tests/data/chain.bpf.o");

/// The maps `packets` of the directory: id, and what is in it.
fn counts(skep: &Skep) -> Vec<(u64, u64)> {
    let maps = json(out(skep, &["map", "list", "--json"]).as_bytes());
    let ids = maps.as_array().unwrap().iter().filter(|m| m["name"] == "packets");
    ids.map(|m| {
        let id = m["id"].as_u64().unwrap();
        let dump = json(out(skep, &["map", "dump", &id.to_string(), "--json"]).as_bytes());
        let count = |value: &Json| value.as_u64().unwrap();
        (id, count(&dump["entries"][0]["value"]))
    })
    .collect()
}

fn add(skep: &Skep, object: &str, more: &[&str]) {
    let program = format!("{object}:count");
    out(skep, &[&["chain", "add", "fw", &program, "--quiet"][..], more].concat());
}

fn run(skep: &Skep) {
    out(skep, &["chain", "run", "fw", "--in", "gen:64", "--packets", "10"]);
}

/// Whoever collected garbage had read the chains before, and took the programs of one that was made
/// meanwhile for garbage.
#[test]
fn chains_that_are_made_at_once_keep_their_programs() {
    let skep = Skep::new();
    let file = skep.path("fw.toml").display().to_string();
    std::fs::write(&file, format!("[[program]]\nobject = '{OBJECT}'\nprogram = 'count'\n"))
        .unwrap();
    for round in 0..10 {
        let names = [0, 1, 2].map(|n| format!("fw{round}-{n}"));
        std::thread::scope(|scope| {
            for name in &names {
                scope.spawn(|| out(&skep, &["chain", "create", name, &file, "--quiet"]));
            }
        });
        for name in &names {
            out(&skep, &["chain", "run", name, "--in", "gen:64", "--packets", "1"]);
        }
    }
}

/// One object under two names in a file had two sets of maps, and the second was never shown.
#[test]
fn files_know_an_object_by_its_bytes() {
    let skep = Skep::new();
    let copy = skep.path("copy.bpf.o");
    std::fs::copy(OBJECT, &copy).unwrap();
    let file = skep.path("fw.toml").display().to_string();
    let program = |object: &str, more: &str| {
        format!("[[program]]\nobject = '{object}'\nprogram = 'count'\n{more}\n")
    };
    let link = skep.path("link.bpf.o");
    std::os::unix::fs::symlink(&copy, &link).unwrap();
    let all = [
        program(OBJECT, ""),
        program("copy.bpf.o", ""),
        program("link.bpf.o", ""),
        program("copy.bpf.o", "own_maps = true"),
        program(OBJECT, "own_maps = true"),
    ];
    std::fs::write(&file, all.concat()).unwrap();
    out(&skep, &["chain", "create", "fw", &file, "--quiet"]);
    run(&skep);
    assert_eq!(counts(&skep).iter().map(|(_, n)| *n).collect::<Vec<_>>(), [30, 10, 10]);
    add(&skep, OBJECT, &[]);
    run(&skep);
    assert_eq!(counts(&skep).iter().map(|(_, n)| *n).collect::<Vec<_>>(), [70, 20, 20]);
    let run = ["chain", "run", "fw", "--in", "gen:64", "--packets", "1", "--maps", "--json"];
    let report = json(out(&skep, &run).as_bytes());
    let shown = report["maps"].as_array().unwrap().iter();
    let shown: Vec<_> = shown.map(|of| &of["maps"]["packets"][0]["value"]).collect();
    assert_eq!(shown, [74, 21, 21]);
}

#[test]
fn programs_of_one_object_file_share_its_maps_unless_told_otherwise() {
    let skep = Skep::new();
    out(&skep, &["chain", "create", "fw", "--quiet"]);
    add(&skep, OBJECT, &[]);
    add(&skep, OBJECT, &[]);
    run(&skep);
    let first = counts(&skep);
    assert_eq!(first.iter().map(|(_, n)| *n).collect::<Vec<_>>(), [20]);
    // The same bytes under another name are the same object.
    let copy = skep.path("copy.bpf.o");
    std::fs::copy(OBJECT, &copy).unwrap();
    add(&skep, &copy.display().to_string(), &[]);
    run(&skep);
    assert_eq!(counts(&skep), [(first[0].0, 50)]);
    // One of its own does not become the one that others share.
    add(&skep, OBJECT, &["--own-maps"]);
    add(&skep, OBJECT, &[]);
    run(&skep);
    assert_eq!(counts(&skep).iter().map(|(_, n)| *n).collect::<Vec<_>>(), [90, 10]);
    // An object is forgotten with its last program.
    for node in ["1", "2", "3", "5"] {
        out(&skep, &["chain", "del", "fw", node, "--quiet"]);
    }
    add(&skep, OBJECT, &[]);
    run(&skep);
    assert_eq!(counts(&skep).iter().map(|(_, n)| *n).collect::<Vec<_>>(), [20, 10]);
}

#[test]
fn a_chain_from_a_file_shares_its_maps_with_what_is_added() {
    let skep = Skep::new();
    let file = skep.path("fw.toml");
    std::fs::write(&file, format!("[[program]]\nobject = '{OBJECT}'\nprogram = 'count'\n"))
        .unwrap();
    out(&skep, &["chain", "create", "fw", &file.display().to_string(), "--quiet"]);
    add(&skep, OBJECT, &[]);
    run(&skep);
    assert_eq!(counts(&skep).iter().map(|(_, n)| *n).collect::<Vec<_>>(), [20]);
}

#[test]
fn a_map_that_is_there_takes_the_place_of_the_objects() {
    let skep = Skep::new();
    let create = |name: &str, value: &str| {
        let sizes = ["--type", "array", "--key-size", "4", "--value-size", value, "--entries", "1"];
        out(&skep, &[&["map", "create", name, "--quiet"][..], &sizes].concat());
    };
    create("mine", "8");
    create("narrow", "4");
    out(&skep, &["chain", "create", "fw", "--quiet"]);
    add(&skep, OBJECT, &["--map", "packets=mine"]);
    add(&skep, OBJECT, &[]);
    run(&skep);
    assert_eq!(counts(&skep), []);
    let dump = out(&skep, &["map", "dump", "mine", "--json", "--raw"]);
    assert_eq!(json(dump.as_bytes())["entries"][0]["value"], "1400000000000000");
    let program = format!("{OBJECT}:count");
    for (map, status, words) in [
        ("packets=narrow", 2, "its keys, values or number of entries are of another size"),
        ("packets=nobody", 1, "there is no map `nobody`"),
        ("nothing=mine", 1, "the object has no map `nothing`"),
        ("mine", 2, "`mine` is not `NAME=MAP`"),
    ] {
        fails(&skep, &["chain", "add", "fw", &program, "--map", map], status, words);
    }
}
