//! `skep map`: maps made, changed, dumped and pinned by the command, and the kernel's maps beside
//! bpftool.

mod common;

use std::io::{BufRead, BufReader, Read};
use std::process::Command;

use common::{Skep, data, fails, json, out, target};
use serde_json::{Value as Json, json};
use skep::isa::{MapFlags, MapType};
use skep::maps::MapDef;
use skep_kernel::{Map, MapSpec};
use skep_testkit::run::{Signal, signal};
use skep_testkit::skip;

#[test]
fn elements_come_and_go_by_hand() {
    let skep = Skep::new();
    assert_eq!(
        out(
            &skep,
            &[
                "map",
                "create",
                "seen",
                "--type",
                "hash",
                "--key",
                "4",
                "--value",
                "8",
                "--entries",
                "3"
            ]
        ),
        "1\n"
    );
    for (key, value) in [("1", "10"), ("2", "-1"), ("0x03", "0x1e")] {
        out(&skep, &["map", "update", "seen", key, value]);
    }
    assert_eq!(out(&skep, &["map", "lookup", "seen", "3"]), "3: 30\n");
    fails(&skep, &["map", "update", "seen", "4", "0"], 1, "the map is full (3 elements)");
    fails(
        &skep,
        &["map", "update", "seen", "1", "0", "--noexist"],
        1,
        "map `seen` already has a key `1`",
    );
    fails(&skep, &["map", "update", "seen", "9", "0", "--exist"], 1, "map `seen` has no key `9`");
    fails(
        &skep,
        &["map", "update", "seen", "1", "0", "--exist", "--noexist"],
        2,
        "cannot be used with",
    );
    fails(
        &skep,
        &["map", "update", "seen", "cat", "0"],
        2,
        "give a number, or its 4 bytes in hex with `--raw`",
    );
    out(&skep, &["map", "update", "1", "--raw", "02 00 00 00", "ffffffff00000000", "--exist"]);
    out(&skep, &["map", "delete", "seen", "1"]);
    fails(&skep, &["map", "delete", "seen", "1"], 1, "has no key `1`");
    fails(&skep, &["map", "lookup", "seen", "1"], 1, "has no key `1`");
    let mut lines: Vec<String> =
        out(&skep, &["map", "dump", "seen"]).lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["2: 4294967295", "3: 30"]);
    assert_eq!(out(&skep, &["map", "dump", "seen", "--limit", "1"]).lines().count(), 1);
    out(&skep, &["map", "freeze", "seen"]);
    fails(&skep, &["map", "update", "seen", "1", "0"], 1, "the map is frozen");
    fails(&skep, &["map", "dump", "seen", "--take"], 1, "the map is frozen");
    assert_eq!(out(&skep, &["map", "dump", "seen"]).lines().count(), 2);
}

#[test]
fn definitions_that_cannot_be_are_refused() {
    let skep = Skep::new();
    fn create<'a>(args: &[&'a str]) -> Vec<&'a str> {
        [&["map", "create", "m"], args].concat()
    }
    fails(&skep, &create(&["--type", "hush", "--entries", "1"]), 2, "there is no map type `hush`");
    fails(
        &skep,
        &create(&["--type", "hash", "--entries", "1", "--value", "8"]),
        2,
        "a map of type hash needs `--key`",
    );
    fails(
        &skep,
        &create(&["--type", "stack", "--entries", "1"]),
        2,
        "a map of type stack needs `--value`",
    );
    fails(
        &skep,
        &create(&["--type", "hash", "--entries", "1", "--key", "0", "--value", "8"]),
        1,
        "must not be zero",
    );
    let sizes = ["--key", "8", "--value", "4", "--entries", "1"];
    for (map_type, hint) in
        [("lpm_trie", "hint: add `--flags no_prealloc`"), ("array_of_maps", "`--from OBJECT:MAP`")]
    {
        fails(&skep, &create(&[&["--type", map_type], &sizes[..]].concat()), 1, hint);
    }
    fails(
        &skep,
        &create(&["--type", "hash", "--entries", "1", "--flags", "nosuch"]),
        2,
        "there is no flag `nosuch`",
    );
    fails(
        &skep,
        &create(&["--type", "array", "--key", "8", "--value", "8", "--entries", "1"]),
        1,
        "keys of an array have 4 bytes",
    );
    let made = json(
        out(
            &skep,
            &create(&[
                "--type",
                "hash",
                "--key",
                "4",
                "--value",
                "4",
                "--entries",
                "1",
                "--flags",
                "no_prealloc",
                "--json",
            ]),
        )
        .as_bytes(),
    );
    assert_eq!((&made["name"], made["id"].is_u64()), (&json!("m"), true));
    fails(
        &skep,
        &create(&["--type", "hash", "--key", "4", "--value", "4", "--entries", "1"]),
        1,
        "there already is a pin `m`",
    );
    let shown = json(out(&skep, &["map", "show", "m", "--json"]).as_bytes());
    assert_eq!(
        (&shown["type"], &shown["flags"], &shown["max_entries"]),
        (&json!("hash"), &json!(1), &json!(1))
    );
}

/// What an earlier command left stands in nobody's way, and is found while nothing else has its name.
#[test]
fn leftovers_count_only_where_nothing_else_has_their_name() -> Result<(), skep::Error> {
    let skep = Skep::new();
    let session = skep::Session::open_in(skep.path("skep"))?;
    let map = |name: &str, value: u8| -> Result<skep::Map, skep::Error> {
        let map = session.create_map(&MapDef::new(MapType::Array, 4, 4, 1).named(name))?;
        map.update(&[0; 4], &[value, 0, 0, 0], 0).expect("an array");
        Ok(map)
    };
    let (first, second) = (map("totals", 1)?, map("totals", 2)?);
    let several = "several maps are named `totals`: 1, 2";
    fails(&skep, &["map", "dump", "totals"], 1, several);
    drop(first);
    assert_eq!(out(&skep, &["map", "dump", "totals"]), "0: 2\n");
    drop(second);
    fails(&skep, &["map", "dump", "totals"], 1, several);
    assert_eq!(out(&skep, &["map", "dump", "1"]), "0: 1\n");
    // A pin of another map is what its name means; what has no other name is found by it.
    session.pin_map(&map("kept", 3)?, "totals")?;
    assert_eq!(out(&skep, &["map", "dump", "totals"]), "0: 3\n");
    drop(map("lonely", 4)?);
    assert_eq!(out(&skep, &["map", "dump", "lonely"]), "0: 4\n");
    Ok(())
}

#[test]
fn a_pin_keeps_a_map_and_is_a_name_for_it() {
    let skep = Skep::new();
    out(
        &skep,
        &[
            "map",
            "create",
            "kept",
            "--type",
            "array",
            "--key",
            "4",
            "--value",
            "8",
            "--entries",
            "2",
        ],
    );
    out(&skep, &["map", "update", "kept", "1", "77"]);
    out(&skep, &["map", "pin", "kept", "folder/other"]);
    out(&skep, &["map", "unpin", "kept"]);
    fails(&skep, &["map", "unpin", "kept"], 1, "there is no pin `kept`");
    fails(&skep, &["map", "pin", "kept", "../out"], 2, "cannot be the name of a pin");
    for (name, why) in [
        ("../out", "`../out` cannot be the name of a pin: none of its parts may be"),
        ("/out", "`/out` cannot be the name of a pin: it begins with `/`"),
        ("", "`` cannot be the name of a pin: none of its parts may be empty"),
        ("out/", "`out/` cannot be the name of a pin: none of its parts may be empty"),
        ("folder/other/x", "cannot create the pin `folder/other/x`: Not a directory"),
    ] {
        fails(&skep, &["map", "pin", "kept", name], 2, why);
    }
    fails(
        &skep,
        &["map", "pin", "kept", "folder"],
        1,
        "there already is a folder of pins `folder`",
    );
    let array = ["--type", "array", "--key", "4", "--value", "8", "--entries", "1"];
    let create = ["map", "create", "folder"].iter().chain(&array).copied();
    fails(&skep, &create.collect::<Vec<_>>(), 1, "there already is a folder of pins `folder`");
    fails(&skep, &["map", "unpin", "folder"], 2, "cannot remove the pin `folder`: Is a directory");
    fails(&skep, &["map", "unpin", "folder/other/x"], 1, "there is no pin `folder/other/x`");
    fails(&skep, &["map", "pin", "nosuch", "x"], 1, "there is no map `nosuch`");
    // Every loader collects what nobody uses; this one is pinned.
    out(
        &skep,
        &[
            "map",
            "create",
            "next",
            "--type",
            "array",
            "--key",
            "4",
            "--value",
            "8",
            "--entries",
            "2",
        ],
    );
    assert_eq!(out(&skep, &["map", "lookup", "folder/other", "1"]), "1: 77\n");
    out(&skep, &["map", "unpin", "folder/other"]);
    assert!(!skep.path("skep/pins/folder").exists());
    out(
        &skep,
        &[
            "map",
            "create",
            "last",
            "--type",
            "array",
            "--key",
            "4",
            "--value",
            "8",
            "--entries",
            "2",
        ],
    );
    fails(&skep, &["map", "lookup", "kept", "1"], 1, "there is no map `kept`");
}

#[test]
fn queues_and_stacks_are_pushed_and_popped() {
    let skep = Skep::new();
    for (t, want) in [("queue", ["1", "2"]), ("stack", ["3", "2"])] {
        out(&skep, &["map", "create", t, "--type", t, "--value", "4", "--entries", "3"]);
        for value in ["1", "2", "3"] {
            out(&skep, &["map", "push", t, value]);
        }
        fails(&skep, &["map", "push", t, "4"], 1, "full");
        assert_eq!(
            out(&skep, &["map", "dump", t, "--limit", "2"]).lines().collect::<Vec<_>>(),
            want,
            "in order of pops"
        );
        assert_eq!(out(&skep, &["map", "peek", t]).trim(), want[0]);
        assert_eq!(
            json(out(&skep, &["map", "peek", t, "--json"]).as_bytes())["value"].to_string(),
            want[0]
        );
        assert_eq!(out(&skep, &["map", "dequeue", t]).trim(), want[0], "as bpftool has it");
        assert_eq!(out(&skep, &["map", "dump", t, "--take"]).lines().next(), Some(want[1]));
        fails(&skep, &["map", "pop", t], 1, "is empty");
        fails(&skep, &["map", "peek", t], 1, "is empty");
        out(&skep, &["map", "enqueue", t, "7"]);
        assert_eq!(out(&skep, &["map", "pop", t, "--raw"]).trim(), "0x07000000");
    }
    out(
        &skep,
        &["map", "create", "h", "--type", "hash", "--key", "4", "--value", "4", "--entries", "3"],
    );
    fails(&skep, &["map", "pop", "h"], 1, "only queues and stacks have `pop`");
    fails(&skep, &["map", "peek", "h"], 1, "only queues and stacks have `peek`");
    fails(&skep, &["map", "getnext", "h"], 1, "map `h` is empty");
}

/// What a dump prints leads `lookup`, `getnext` and `delete` back to the key, whatever its size;
/// and so does a path in place of a name.
#[test]
fn what_is_printed_can_be_typed() {
    let skep = Skep::new();
    for (name, size, typed) in [
        ("m1", "1", "200"),
        ("m2", "2", "-2"),
        ("m4", "4", "42"),
        ("m8", "8", "0xffffffffffffffff"),
        ("m3", "3", "0a0b0c"),
    ] {
        out(
            &skep,
            &[
                "map",
                "create",
                name,
                "--type",
                "hash",
                "--key",
                size,
                "--value",
                size,
                "--entries",
                "3",
            ],
        );
        out(&skep, &["map", "update", name, typed, typed]);
        let line = out(&skep, &["map", "dump", name]);
        let (key, value) = line.trim().split_once(": ").unwrap();
        assert_eq!(key, value);
        assert_eq!(out(&skep, &["map", "lookup", name, key]), line);
        assert_eq!(out(&skep, &["map", "getnext", name]).trim(), key);
        fails(&skep, &["map", "getnext", name, key], 1, "has no key after");
        let raw = out(&skep, &["map", "dump", name, "--raw"]);
        assert_eq!(
            out(&skep, &["map", "lookup", name, "--raw", raw.split_once(": ").unwrap().0]),
            raw
        );
        let path = skep.path("skep/pins").join(name);
        assert_eq!(
            out(&skep, &["map", "lookup", path.to_str().unwrap(), key]),
            line,
            "a pin's path"
        );
        out(&skep, &["map", "delete", name, key]);
        assert_eq!(out(&skep, &["map", "dump", name]), "");
    }
    fails(&skep, &["map", "dump", "/nowhere/at/all"], 1, "there is no map `/nowhere/at/all`");
    out(&skep, &["map", "create", "b", "--type", "bloom_filter", "--value", "4", "--entries", "9"]);
    fails(
        &skep,
        &["map", "dump", "b", "--json"],
        1,
        "map `b` is a bloom filter: it does not keep its values",
    );
}

#[test]
fn per_cpu_values_are_typed_as_a_list_and_shown_with_their_sum() {
    let skep = Skep::new();
    out(
        &skep,
        &[
            "map",
            "create",
            "c",
            "--type",
            "percpu_array",
            "--key",
            "4",
            "--value",
            "8",
            "--entries",
            "2",
        ],
    );
    let cpus = skep_cpus();
    out(&skep, &["map", "update", "c", "0", "5"]);
    let dump = json(out(&skep, &["map", "dump", "c", "--json"]).as_bytes());
    let values: Vec<u64> = dump["entries"][0]["value"]
        .as_array()
        .unwrap()
        .iter()
        .map(|v| v.as_u64().unwrap())
        .collect();
    assert_eq!((values.len(), values[0], values.iter().skip(1).all(|v| *v == 0)), (cpus, 5, true));
    fails(
        &skep,
        &["map", "update", "c", "0", &format!("{:?}", vec![1; cpus + 1])],
        2,
        "there are values for",
    );
    let csv = out(&skep, &["map", "dump", "c", "--csv"]);
    assert_eq!((csv.lines().next(), csv.lines().count()), (Some("key,cpu,value"), 1 + 2 * cpus));
}

fn skep_cpus() -> usize {
    skep_kernel::possible_cpus()
        .unwrap_or_else(|_| std::thread::available_parallelism().map_or(1, usize::from))
}

#[test]
fn a_strict_dump_shows_what_there_is_and_takes_nothing() {
    let skep = Skep::new();
    for t in ["hash", "array", "stack"] {
        let key = if t == "stack" { "0" } else { "4" };
        out(
            &skep,
            &["map", "create", t, "--type", t, "--key", key, "--value", "8", "--entries", "3"],
        );
        for i in ["0", "1", "2"] {
            out(
                &skep,
                &if t == "stack" {
                    vec!["map", "push", t, i]
                } else {
                    vec!["map", "update", t, i, i]
                },
            );
        }
        assert_eq!(out(&skep, &["map", "dump", t, "--strict"]), out(&skep, &["map", "dump", t]));
    }
    fails(&skep, &["map", "dump", "hash", "--strict", "--take"], 2, "cannot be used with");
    fails(&skep, &["map", "dump", "hash", "--strict", "--kernel"], 2, "cannot be used with");
}

#[test]
fn maps_made_by_hand_have_types_from_a_file_or_all_from_an_object() {
    let skep = Skep::new();
    let object = data("typed.bpf.o");
    fn create<'a>(name: &'a str, args: &[&'a str]) -> Vec<&'a str> {
        [&["map", "create", name], args].concat()
    }
    let typed = [
        "--type",
        "hash",
        "--entries",
        "4",
        "--btf",
        &object,
        "--key-type",
        "struct key",
        "--value-type",
        "value",
    ];
    out(&skep, &create("typed", &typed));
    out(&skep, &create("whole", &["--from", &object]));
    out(&skep, &create("named", &["--from", &format!("{object}:shapes"), "--entries", "2"]));
    let (key, value) =
        (r#"{"n": 1, "word": "ab"}"#, r#"{"calls": 3, "minus": -4, "kind": "KIND_ODD"}"#);
    for (map, entries) in [("typed", 4), ("whole", 16), ("named", 2)] {
        out(&skep, &["map", "update", map, key, value]);
        let want = "{ .n = 1, .word = \"ab\" }: { .calls = 3, .minus = -4, .kind = KIND_ODD }\n";
        assert_eq!(
            (out(&skep, &["map", "dump", map]), out(&skep, &["map", "lookup", map, key])),
            (want.to_owned(), want.to_owned())
        );
        assert_eq!(
            out(&skep, &["map", "dump", map, "--csv"]).lines().next(),
            Some("key.n,key.word,value.calls,value.minus,value.kind")
        );
        let shown = json(out(&skep, &["map", "show", map, "--json"]).as_bytes());
        assert_eq!((&shown["type"], &shown["max_entries"]), (&json!("hash"), &json!(entries)));
        assert_eq!((&shown["key_size"], &shown["value_size"]), (&json!(8), &json!(24)));
        fails(
            &skep,
            &["map", "update", map, r#"{"m": 1}"#, value],
            2,
            "`struct key` has no member `m`",
        );
    }
    // One of the two, with the other's size by number.
    let half = [
        "--type",
        "array",
        "--key",
        "4",
        "--entries",
        "1",
        "--btf",
        &object,
        "--value-type",
        "__s64",
    ];
    out(&skep, &create("half", &half));
    out(&skep, &["map", "update", "half", "0", "-5"]);
    assert_eq!(out(&skep, &["map", "dump", "half"]), "0: -5\n");

    let by = |key: &'static str, value: &'static str| {
        ["--type", "hash", "--entries", "4", "--btf", "", "--key-type", key, "--value-type", value]
    };
    for (key, value, words) in [
        ("struct kex", "value", "did you mean `key`?"),
        ("enum key", "value", "there is no type `enum key` in"),
        ("key", "lek", "there is no type `lek` in"),
    ] {
        let mut args = by(key, value);
        args[5] = &object;
        fails(&skep, &create("bad", &args), 2, words);
    }
    fails(
        &skep,
        &create("bad", &[&typed[..], &["--key", "9"]].concat()),
        2,
        "`struct key` has 8 bytes, but `--key` says 9",
    );
    fails(
        &skep,
        &create("bad", &["--type", "hash", "--entries", "4", "--key-type", "key"]),
        2,
        "--btf <FILE>",
    );
    fails(
        &skep,
        &create("bad", &["--type", "hash", "--entries", "4", "--btf", &object]),
        2,
        "required arguments were not provided",
    );
    fails(
        &skep,
        &create("bad", &["--from", &format!("{object}:shape")]),
        2,
        "did you mean `shapes`?",
    );
    fails(&skep, &create("bad", &["--from", &object, "--type", "hash"]), 2, "cannot be used with");
    fails(&skep, &create("bad", &["--from", "/nowhere.bpf.o"]), 2, "cannot read `/nowhere.bpf.o`");
    fails(
        &skep,
        &create("bad", &[&typed[..5], &["/etc/hostname"], &typed[6..]].concat()),
        2,
        "has no usable types",
    );
    fails(&skep, &create("bad", &["--entries", "4"]), 2, "--type <TYPE>");
    let sized = ["--key", "4", "--value", "4", "--entries", "4"];
    fails(
        &skep,
        &create("bad", &[&["--type", "hsh"], &sized[..]].concat()),
        2,
        "there is no map type `hsh`\n\nhint: did you mean `hash`?",
    );
    fails(
        &skep,
        &create("bad", &[&["--type", "hash", "--flags", "17x"], &sized[..]].concat()),
        2,
        "hint: known are no_prealloc, ",
    );
    // What was refused left nothing behind.
    assert_eq!(out(&skep, &["map", "list"]).lines().count(), 1 + 4);
}

#[test]
fn typed_maps_are_dumped_looked_up_and_changed_by_their_types() {
    let skep = Skep::new();
    let ended = skep.run(["-q", "run", &data("typed.bpf.o"), "--", target()]);
    assert_eq!(ended.shell_status(), 0, "{}", ended.transcript());
    let key = r#"{"n": 1, "word": "ab"}"#;
    let one = out(&skep, &["map", "lookup", "shapes", key]);
    assert_eq!(
        one,
        "{ .n = 1, .word = \"ab\" }: { .calls = 1000, .minus = -1000, .kind = KIND_ODD }\n"
    );
    out(
        &skep,
        &["map", "update", "shapes", key, r#"{"calls": 3, "kind": "KIND_EVEN"}"#, "--exist"],
    );
    assert_eq!(
        json(out(&skep, &["map", "lookup", "shapes", key, "--json"]).as_bytes())["entry"],
        json!({"key": {"n": 1, "word": "ab"}, "value": {"calls": 3, "minus": 0, "kind": "KIND_EVEN"}})
    );
    fails(&skep, &["map", "update", "shapes", key, r#"{"colls": 3}"#], 2, "has no member `colls`");
    let csv = out(&skep, &["map", "dump", "shapes", "--csv"]);
    assert!(
        csv.starts_with("key.n,key.word,value.calls,value.minus,value.kind\r\n")
            && csv.contains("\r\n1,ab,3,0,KIND_EVEN\r\n"),
        "{csv}"
    );
    let raw = out(&skep, &["map", "dump", "shapes", "--raw"]);
    assert!(
        raw.contains("0x0100000061620000: 0x03000000000000000000000000000000010000000000000"),
        "{raw}"
    );
    // Taken: printed once, then gone.
    let taken = json(out(&skep, &["map", "dump", "shapes", "--json", "--take=exact"]).as_bytes());
    assert_eq!(taken["entries"].as_array().map(Vec::len), Some(2));
    assert_eq!(
        json(out(&skep, &["map", "dump", "shapes", "--json"]).as_bytes())["entries"],
        json!([])
    );
}

/// A map with `n` elements.
fn filled(skep: &Skep, n: u32) {
    use std::os::unix::fs::FileExt;
    out(
        skep,
        &[
            "map",
            "create",
            "big",
            "--type",
            "array",
            "--key",
            "4",
            "--value",
            "8",
            "--entries",
            &n.to_string(),
        ],
    );
    let file = std::fs::File::options().write(true).open(skep.path("skep/maps/1")).unwrap();
    file.write_all_at(&7_u64.to_ne_bytes(), 8 * u64::from(n - 1)).unwrap();
}

#[test]
fn a_reader_that_goes_away_is_no_error_and_ctrl_c_ends_the_document() {
    let skep = Skep::new();
    filled(&skep, 5_000_000);
    let mut child = skep.start(["map", "dump", "big"]);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "0: 0");
    drop(lines);
    assert_eq!(child.wait().unwrap().code(), Some(0));

    let mut child = skep.start(["map", "dump", "big", "--json"]);
    let mut stdout = child.stdout.take().unwrap();
    let mut all = vec![0; 100];
    stdout.read_exact(&mut all).unwrap();
    // It now waits for us to read on, or soon does.
    signal(child.id(), Signal::INT);
    stdout.read_to_end(&mut all).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let document = json(&all);
    assert_eq!(document["interrupted"], true);
    assert!(document["entries"].as_array().unwrap().len() < 5_000_000);
}

#[test]
fn a_dump_takes_little_memory() {
    let skep = Skep::new();
    let n = if std::env::var_os("SKEP_STRESS").is_some() { 10_000_000 } else { 300_000 };
    filled(&skep, n);
    let mut child = skep.start(["map", "dump", "big"]);
    let mut stdout = BufReader::with_capacity(1 << 20, child.stdout.take().unwrap());
    let (mut line, mut count, mut peak) = (String::new(), 0, 0);
    while stdout.read_line(&mut line).unwrap() > 0 {
        count += 1;
        if count % (n / 10) == 0 {
            let status =
                std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
            let own = status.lines().find_map(|l| {
                l.strip_prefix("RssAnon:")?.trim().trim_end_matches(" kB").parse::<u64>().ok()
            });
            peak = peak.max(own.unwrap_or(0));
        }
        if count < n {
            line.clear();
        }
    }
    assert_eq!((count, line.as_str()), (n, format!("{}: 7\n", n - 1).as_str()));
    assert!(peak < 16 << 10, "{peak} KiB of its own");
    assert!(child.wait().unwrap().success());
}

/// A map of the kernel with up to 500 elements; `None` where that is not allowed.
fn kernel_map(map_type: MapType, key: u32, value: u32, n: u32) -> Option<Map> {
    let flags = MapFlags(if map_type == MapType::LpmTrie { MapFlags::NO_PREALLOC } else { 0 });
    let spec = MapSpec { name: "sktm", flags, ..MapSpec::new(map_type, key, value, n) };
    let map = Map::create(&spec).ok()?;
    for i in 0..n.min(500) {
        let key: Vec<u8> = match map_type {
            MapType::LpmTrie => [24_u32.to_ne_bytes(), i.to_be_bytes()].concat(),
            _ => u64::from(i).to_ne_bytes()[..key as usize].to_vec(),
        };
        let value: Vec<u8> = (0..map.user_value_size()).map(|b| (b as u32 + i) as u8).collect();
        // A table of stack traces takes none.
        map.update(&key, &value, 0).ok();
    }
    Some(map)
}

#[test]
fn the_kernels_maps_are_what_bpftool_shows() {
    if !skip::is_root() || !skip::has_command("bpftool") {
        return skip("root and bpftool");
    }
    let skep = Skep::new();
    for (t, key, value, n) in [
        (MapType::Hash, 4, 12, 500),
        (MapType::Array, 4, 8, 100),
        (MapType::PercpuHash, 8, 12, 50),
        (MapType::LpmTrie, 8, 4, 100),
        (MapType::StackTrace, 4, 16, 8),
    ] {
        let Some(map) = kernel_map(t, key, value, n) else { return skip("BPF_MAP_CREATE") };
        let id = map.info().unwrap().id.to_string();
        let ours =
            json(out(&skep, &["map", "dump", "--kernel", &id, "--json", "--raw"]).as_bytes());
        let theirs =
            Command::new("bpftool").args(["-j", "map", "dump", "id", &id]).output().unwrap();
        let hex = |list: &Json| {
            list.as_array()
                .unwrap()
                .iter()
                .map(|b| b.as_str().unwrap().trim_start_matches("0x").to_owned())
                .collect::<String>()
        };
        let mut want: Vec<(String, Json)> = Vec::new();
        for e in json(&theirs.stdout).as_array().unwrap() {
            let value = match e.get("values") {
                Some(each) => {
                    each.as_array().unwrap().iter().map(|v| Json::from(hex(&v["value"]))).collect()
                }
                None if e["value"].is_array() => Json::from(hex(&e["value"])),
                None => continue,
            };
            want.push((hex(&e["key"]), value));
        }
        let mut got: Vec<(String, Json)> = ours["entries"]
            .as_array()
            .unwrap()
            .iter()
            .map(|e| (e["key"].as_str().unwrap().to_owned(), e["value"].clone()))
            .collect();
        want.sort_by(|a, b| a.0.cmp(&b.0));
        got.sort_by(|a, b| a.0.cmp(&b.0));
        assert_eq!(got, want, "{t}");
        if let Some((key, value)) = want.first() {
            let found = json(
                out(&skep, &["map", "lookup", "--kernel", &id, "--raw", key, "--json"]).as_bytes(),
            );
            assert_eq!(found["entry"]["value"], *value, "{t}");
        }
        let shown = json(out(&skep, &["map", "show", "--kernel", &id, "--json"]).as_bytes());
        assert_eq!(
            (&shown["type"], &shown["name"], &shown["max_entries"]),
            (&json!(t.name()), &json!("sktm"), &json!(n))
        );
        assert!(out(&skep, &["map", "list", "--kernel"]).contains("  sktm "));
        assert!(out(&skep, &["map", "--kernel", "list"]).contains("  sktm "));
        assert_eq!(
            out(&skep, &["map", "--kernel", "show", &id, "--json"]),
            out(&skep, &["map", "show", "--kernel", &id, "--json"])
        );
    }
    for path in ["/etc/passwd", "/"] {
        fails(
            &skep,
            &["map", "lookup", "--kernel", path, "1"],
            1,
            "is not a pin: pins are files in a bpf file system",
        );
    }
    fails(
        &skep,
        &["map", "dump", "--kernel", "4294967294"],
        1,
        "the kernel has no map `4294967294`",
    );
    fails(
        &skep,
        &["map", "--kernel", "update", "1", "2", "3"],
        2,
        "of the kernel's maps, `--kernel` can only list, show, dump, look up and copy",
    );
}

#[test]
fn the_kernels_maps_are_not_for_everybody() {
    if !skip::is_root() || !skip::has_command("setpriv") {
        return skip("root and setpriv");
    }
    let bin = skep_testkit::trace::skep_bin();
    // Where others may execute it.
    let dir = skep_testkit::TempDir::in_memory();
    skep_testkit::program::copy(bin, &dir.join("skep"));
    drop(Command::new("chmod").args(["-R", "a+rx"]).arg(dir.path()).status());
    let ended = Command::new("setpriv")
        .args(["--reuid=65534", "--clear-groups"])
        .arg(dir.join("skep"))
        .args(["map", "list", "--kernel"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(2), "{said}");
    assert!(
        said.contains("cannot list the kernel's maps") && said.contains("needs root"),
        "{said}"
    );
}

#[test]
fn a_filter_says_which_elements_are_printed_and_taken() {
    let skep = Skep::new();
    let ended = skep.run(["-q", "run", &data("typed.bpf.o"), "--", target()]);
    assert_eq!(ended.shell_status(), 0, "{}", ended.transcript());
    let filter = data("filter.bpf.o");
    let dump = |program: &str, more: &[&str]| {
        let object = format!("{filter}:{program}");
        json(
            out(
                &skep,
                &[&["map", "dump", "shapes", "--json", "--filter", object.as_str()], more].concat(),
            )
            .as_bytes(),
        )["entries"]
            .clone()
    };
    assert_eq!(
        (&dump("odd", &[])[0]["key"]["n"], dump("odd", &[]).as_array().map(Vec::len)),
        (&json!(1), Some(1))
    );
    assert_eq!(dump("none", &[]), json!([]));
    assert_eq!(dump("odd", &["--take"]).as_array().map(Vec::len), Some(1));
    assert_eq!(
        out(&skep, &["map", "dump", "shapes"]).lines().count(),
        1,
        "what was left out is left in"
    );
    fails(
        &skep,
        &["map", "dump", "shapes", "--filter", &filter],
        1,
        "several filters: odd, none, large",
    );
    fails(
        &skep,
        &["map", "dump", "shapes", "--filter", &format!("{filter}:large")],
        1,
        "reads 200 bytes, but an element of the map has 32",
    );
    fails(
        &skep,
        &["map", "dump", "shapes", "--filter", &format!("{filter}:nosuch")],
        1,
        "has no program `nosuch` of type syscall",
    );
    fails(
        &skep,
        &["map", "dump", "shapes", "--filter", &data("typed.bpf.o")],
        1,
        "has no program of type syscall",
    );
}
