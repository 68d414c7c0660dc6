//! `skep map load` and `skep map copy`: what was dumped goes into another map, and is there as it
//! was.

mod common;

use std::path::Path;

use common::{Skep, data, fails_on, json, out, text};
use serde_json::json;
use skep::isa::{MapFlags, MapType};
use skep::maps::{Access, KeyRange, Map};
use skep_kernel::MapSpec;
use skep_testkit::skip;

fn create(skep: &Skep, name: &str, args: &str) {
    let args: Vec<&str> = args.split(' ').collect();
    out(skep, &[&["map", "create", name], &args[..]].concat());
}

/// Opens a map by its pin, as the library does: nothing of the command is between.
fn open(skep: &Skep, name: &str) -> Map {
    Map::open(&skep.path("skep/pins").join(name), Access::ReadWrite).unwrap()
}

/// All elements; without an order of their own, sorted.
fn elements(skep: &Skep, name: &str) -> Vec<(Vec<u8>, Vec<u8>)> {
    let map = open(skep, name);
    let mut all: Vec<_> = map.iter().collect::<Result<_, _>>().unwrap();
    if map.def().key_size != 0 && !map.is_ordered() {
        all.sort();
    }
    all
}

/// Bytes that look like nothing in particular, the same in every run.
fn bytes(seed: usize, len: usize) -> Vec<u8> {
    let mut n = seed as u64 ^ 0x9e37_79b9_7f4a_7c15;
    let mut byte = || {
        n = n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (n >> 56) as u8
    };
    (0..len).map(|_| byte()).collect()
}

/// Fills a map with `n` elements that its type takes.
fn fill(skep: &Skep, name: &str, n: usize) {
    let map = open(skep, name);
    let (def, value_size) = (map.def(), map.user_value_size());
    let longest = map.key_shape().max_len();
    for i in 0..n {
        let number = u32::try_from(i).unwrap().to_ne_bytes();
        let key = match def.map_type {
            MapType::Hash | MapType::LruHash | MapType::PercpuHash | MapType::LruPercpuHash => {
                bytes(i, longest)
            }
            MapType::LpmTrie => [&24_u32.to_ne_bytes(), &bytes(i, longest - 4)[..]].concat(),
            MapType::QpTrie if def.map_extra != 0 => match i % 3 {
                0 => format!("/usr/{i} \"ü\",").into_bytes(),
                1 => bytes(i, 1 + i % longest),
                _ => [b"hex 61 ".as_slice(), &number].concat(),
            },
            MapType::QpTrie => bytes(i, longest),
            MapType::Queue | MapType::Stack => Vec::new(),
            _ => number.to_vec(),
        };
        let value = match def.map_type {
            // Interfaces, processors, sockets and control groups have small numbers.
            MapType::Devmap
            | MapType::DevmapHash
            | MapType::Cpumap
            | MapType::Xskmap
            | MapType::CgroupArray => {
                let mut value = vec![0; value_size];
                value[0] = 1 + i as u8;
                value
            }
            _ => bytes(i + 1000, value_size),
        };
        map.update(&key, &value, 0).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}

/// The definitions of one map of each type whose elements a user can store, and how many are.
const TYPES: &[(&str, &str, usize)] = &[
    ("hash", "--type hash --key 8 --value 4 --entries 100", 60),
    ("hash_odd", "--type hash --key 11 --value 21 --entries 100", 60),
    ("array", "--type array --key 4 --value 8 --entries 50", 50),
    ("array_large", "--type array --key 4 --value 300 --entries 9", 9),
    ("percpu_hash", "--type percpu_hash --key 4 --value 8 --entries 50", 30),
    ("percpu_odd", "--type percpu_hash --key 3 --value 13 --entries 50", 30),
    ("percpu_array", "--type percpu_array --key 4 --value 4 --entries 20", 20),
    ("lru_hash", "--type lru_hash --key 4 --value 8 --entries 200", 40),
    ("lru_percpu_hash", "--type lru_percpu_hash --key 4 --value 8 --entries 200", 40),
    ("lpm_trie", "--type lpm_trie --key 8 --value 8 --entries 50 --flags no_prealloc", 40),
    ("queue", "--type queue --value 8 --entries 20", 15),
    ("stack", "--type stack --value 12 --entries 20", 15),
    ("devmap", "--type devmap --key 4 --value 8 --entries 10", 10),
    ("devmap_hash", "--type devmap_hash --key 4 --value 4 --entries 10", 8),
    ("cpumap", "--type cpumap --key 4 --value 4 --entries 2", 1),
    ("xskmap", "--type xskmap --key 4 --value 4 --entries 10", 10),
    ("cgroup_array", "--type cgroup_array --key 4 --value 4 --entries 10", 10),
    ("qp_trie", "--type qp_trie --key 30 --value 8 --entries 100", 90),
    ("qp_fixed", "--type qp_trie --key 9 --fixed-keys --value 5 --entries 100", 90),
];

const FORMS: &[&[&str]] =
    &[&["--json"], &["--csv"], &[], &["--raw"], &["--json", "--raw"], &["--csv", "--raw"]];

/// Elements of every type of map, in every form of a dump, and by `copy`.
#[test]
fn what_was_dumped_and_loaded_is_there_as_it_was() {
    round_trips(TYPES);
}

fn round_trips(types: &[(&str, &str, usize)]) {
    for (name, definition, n) in types {
        let skep = Skep::new();
        create(&skep, name, definition);
        fill(&skep, name, *n);
        let want = elements(&skep, name);
        assert!(want.len() >= *n * 9 / 10, "{name}: {}", want.len());
        for (i, form) in FORMS.iter().enumerate() {
            let other = format!("other{i}");
            create(&skep, &other, definition);
            let dump = out(&skep, &[&["map", "dump", name], *form].concat());
            let raw: &[&str] =
                if form.contains(&"--raw") && !form.contains(&"--json") { &["--raw"] } else { &[] };
            let load = [&["map", "load", &other, "-"], raw].concat();
            let ended = skep.run_with(&load, dump.as_bytes());
            assert_eq!(ended.shell_status(), 0, "{name} {form:?}: {}", ended.transcript());
            assert_eq!(
                text(&ended.stderr),
                format!(
                    "loaded {} {}\n",
                    want.len(),
                    if want.len() == 1 { "entry" } else { "entries" }
                ),
                "{name} {form:?}"
            );
            assert_eq!(elements(&skep, &other), want, "{name} {form:?}");
        }
        create(&skep, "copied", definition);
        out(&skep, &["map", "copy", name, "copied"]);
        assert_eq!(elements(&skep, "copied"), want, "{name}");
    }
}

/// Maps of maps hold ids of maps, which are there under the same ids.
#[test]
fn maps_of_maps_are_loaded_and_copied() {
    let skep = Skep::new();
    let object = data("../../../skep/tests/data/test_run/nested.bpf.o");
    for name in ["first_inner", "hash_inner", "outer", "outer_hash"] {
        create(&skep, name, &format!("--from {object}:{name}"));
    }
    for (outer, inner, keys) in
        [("outer", "first_inner", ["1", "3"]), ("outer_hash", "hash_inner", ["7", "9"])]
    {
        create(&skep, "other", &format!("--from {object}:{outer}"));
        create(&skep, "copied", &format!("--from {object}:{outer}"));
        let shown = json(out(&skep, &["map", "show", inner, "--json"]).as_bytes());
        let id = shown["id"].to_string();
        for key in keys {
            out(&skep, &["map", "update", outer, key, &id]);
        }
        let dump = out(&skep, &["map", "dump", outer, "--json"]);
        assert_eq!(json(dump.as_bytes())["entries"].as_array().unwrap().len(), 2);
        let ended = skep.run_with(["map", "load", "other", "-"], dump.as_bytes());
        assert_eq!(ended.shell_status(), 0, "{}", ended.transcript());
        out(&skep, &["map", "copy", outer, "copied"]);
        let lines = |name| {
            let dump = out(&skep, &["map", "dump", name]);
            let mut lines: Vec<String> = dump.lines().map(str::to_owned).collect();
            lines.sort();
            lines
        };
        let want: Vec<String> = keys.iter().map(|key| format!("{key}: {id}")).collect();
        assert_eq!((lines("other"), lines("copied")), (want.clone(), want), "{outer}");
        out(&skep, &["map", "unpin", "other"]);
        out(&skep, &["map", "unpin", "copied"]);
    }
    // Of a map that is not there, nothing can be held.
    fails_on(
        &skep,
        &["map", "load", "outer", "-"],
        br#"[{"key":0,"value":4000}]"#,
        1,
        &["cannot store `0` in map `outer`\n  loaded 0 of 1 entry"],
    );
}

/// Types whose elements no user stores, or that have none.
#[test]
fn maps_that_take_nothing_say_so() {
    let skep = Skep::new();
    create(&skep, "b", "--type bloom_filter --value 4 --entries 9");
    create(&skep, "r", "--type ringbuf --entries 4096");
    create(&skep, "s", "--type stack_trace --key 4 --value 16 --entries 4");
    let entries = br#"[{"key":1,"value":"00112233445566778899aabbccddeeff"}]"#;
    fails_on(&skep, &["map", "load", "b", "-"], entries, 1, &["map `b` is a bloom filter"]);
    fails_on(&skep, &["map", "load", "r", "-"], entries, 1, &["it has no keys"]);
    fails_on(
        &skep,
        &["map", "load", "s", "-"],
        entries,
        1,
        &["cannot store `1` in map `s`\n  loaded 0 of 1 entry\n", "stack_trace"],
    );
    out(&skep, &["map", "dump", "s", "--json"]);
    fails_on(&skep, &["map", "copy", "b", "s"], b"", 1, &["map `b` is a bloom filter"]);
    fails_on(&skep, &["map", "load", "nosuch", "-"], entries, 1, &["there is no map `nosuch`"]);
    create(&skep, "frozen", "--type hash --key 4 --value 4 --entries 9");
    out(&skep, &["map", "freeze", "frozen"]);
    fails_on(
        &skep,
        &["map", "load", "frozen", "-"],
        br#"[{"key":1,"value":2}]"#,
        1,
        &["loaded 0 of 1 entry", "the map is frozen"],
    );
}

#[test]
fn maps_with_types_are_loaded_by_them() {
    let skep = Skep::new();
    let object = data("typed.bpf.o");
    for name in ["from", "to", "copied"] {
        create(&skep, name, &format!("--from {object}:shapes"));
    }
    let (key, value) =
        (r#"{"n": 1, "word": "ab"}"#, r#"{"calls": 3, "minus": -4, "kind": "KIND_ODD"}"#);
    out(&skep, &["map", "update", "from", key, value]);
    out(&skep, &["map", "update", "from", r#"{"n": 2, "word": ",\""}"#, r#"{"kind": 77}"#]);
    let want = elements(&skep, "from");
    for form in FORMS {
        let dump = out(&skep, &[&["map", "dump", "from"], *form].concat());
        // Raw columns have other names than those of structures, so they need no `--raw`.
        let raw: &[&str] = if *form == ["--raw"] { &["--raw"] } else { &[] };
        let ended = skep.run_with([&["map", "load", "to", "-"], raw].concat(), dump.as_bytes());
        assert_eq!(ended.shell_status(), 0, "{form:?}: {}", ended.transcript());
        assert_eq!(elements(&skep, "to"), want, "{form:?}");
        for (key, _) in &want {
            open(&skep, "to").delete(key).unwrap();
        }
    }
    for (entry, why) in [
        (r#"{"key":{"n":1},"value":{"colls":3}}"#, "has no member `colls`"),
        (r#"{"key":{"n":4294967296},"value":{}}"#, "4294967296 does not fit"),
        (r#"{"key":{"n":1,"word":"abcde"},"value":{}}"#, "abcde"),
        (r#"{"key":{"n":1},"value":{"kind":"KIND_RED"}}"#, "KIND_RED"),
    ] {
        let document = format!(r#"{{"entries":[{{"key":{{"n":9}},"value":{{}}}},{entry}]}}"#);
        fails_on(
            &skep,
            &["map", "load", "to", "-"],
            document.as_bytes(),
            2,
            &["cannot load `stdin` into map `to`: entry 2: ", why, "nothing was loaded"],
        );
    }
    fails_on(
        &skep,
        &["map", "load", "to", "-"],
        b"key.n,key.word,value.calls,value.minus,value.kind\r\n1,ab,3,0,KIND_ODD\r\n1,ab,x,0,KIND_ODD\r\n",
        2,
        &["line 3: ", "nothing was loaded"],
    );
    assert_eq!(elements(&skep, "to"), [], "a file with a mistake changes nothing");
}

/// The lines of an empty map are none, so such a file was once refused as no dump.
#[test]
fn the_dump_of_an_empty_map_is_loaded() {
    let skep = Skep::new();
    for (name, definition, _) in TYPES.iter().filter(|(name, ..)| !name.contains("array")) {
        create(&skep, name, definition);
        for form in FORMS {
            let dump = out(&skep, &[&["map", "dump", name], *form].concat());
            let ended = skep.run_with(["map", "load", name, "-"], dump.as_bytes());
            assert_eq!(ended.shell_status(), 0, "{name} {form:?}: {}", ended.transcript());
            assert_eq!(text(&ended.stderr), "loaded 0 entries\n", "{name} {form:?}");
        }
    }
    let ended = skep.run_with(["map", "load", "hash", "-"], b" \n\n");
    assert_eq!(ended.shell_status(), 0, "{}", ended.transcript());
}

/// Each ends with one error that says which file, where in it, and what is wrong.
#[test]
fn files_that_are_no_dumps_are_refused() {
    let skep = Skep::new();
    create(&skep, "m", "--type hash --key 4 --value 8 --entries 3");
    let load = &["map", "load", "m", "-"][..];
    for (input, words) in [
        (&b"\xff\xfe\x00"[..], &["line 1: it is not text"][..]),
        (b"1: 2\n3: \xff\n", &["line 2: it is not text"]),
        (b"hello\n", &["line 1: it is no dump of such a map", "the columns key,value"]),
        (b"key,other\r\n1,2\r\n", &["line 1: it is no dump of such a map"]),
        (
            br#"{"entries":[{"key":1,"value":2}"#,
            &["line 1, column 31: the document ends too early"],
        ),
        (b"{\"entries\":[\n{\"key\":1,,}]}", &["line 2, column "]),
        (br#"{"entries":[{"key":1,"value":2}]} x"#, &["line 1, column 35: trailing characters"]),
        (b"{}", &["the document has no `entries`"]),
        (br#"{"entries":7}"#, &["line 1, column 12: invalid type"]),
        (br#"[{"key":1,"value":2},{"value":2}]"#, &["entry 2: it has no `key`"]),
        (br#"[{"key":1}]"#, &["entry 1: it has no `value`"]),
        (br#"[{"key":4294967296,"value":2}]"#, &["entry 1: 4294967296 is not a key", "4 bytes"]),
        (br#"[{"key":1.5,"value":2}]"#, &["entry 1: 1.5 is not a key", "not a whole number"]),
        (br#"[{"key":"01000000","value":2}]"#, &["numbers are wanted, or with `--raw`"]),
        (br#"{"raw":true,"entries":[{"key":"010000","value":"00"}]}"#, &["it has 3 bytes, not 4"]),
        (br#"{"raw":true,"entries":[{"key":"0100000","value":"00"}]}"#, &["7 hexadecimal digits"]),
        (b"key,value\r\n1,2\r\n1\r\n", &["line 3: it has 1 fields, but there are 2 columns"]),
        (b"key,value\r\n1,2\r\n1,\"x\r\n", &["line 3: a quote is not closed"]),
        (
            b"key,value\r\n1,2\r\n01000000,2\r\n",
            &["line 3: ", "looks like bytes in hex", "`--raw`"],
        ),
        (b"0x01000000: 0x0200000000000000\n", &["line 1: ", "looks like bytes in hex", "`--raw`"]),
        (b"1: 2\n\nx: 2\n", &["line 3: `x` is not a key of map `m`"]),
        (b"1: 2\n1 2\n", &["line 2: it is not a key, a colon and a value"]),
    ] {
        let all = [&["cannot load `stdin` into map `m`: ", "nothing was loaded"], words].concat();
        fails_on(&skep, load, input, 2, &all);
    }
    let dir = skep.path("");
    for (file, why) in [
        (dir.to_str().unwrap(), "Is a directory"),
        ("/nowhere/at/all", "No such file or directory"),
    ] {
        let words = format!("cannot read `{file}`: {why}");
        fails_on(&skep, &["map", "load", "m", file], b"", 2, &[&words]);
    }
    assert_eq!(elements(&skep, "m"), []);
    // An interrupted dump is loaded as far as it goes.
    let ended = skep.run_with(load, br#"{"entries":[{"key":1,"value":2}],"interrupted":true}"#);
    assert_eq!(ended.shell_status(), 0, "{}", ended.transcript());
    assert!(text(&ended.stderr).contains("a dump that was interrupted"), "{}", ended.transcript());
    assert_eq!(elements(&skep, "m").len(), 1);
}

#[test]
fn what_was_loaded_before_the_map_refused_is_told() {
    let skep = Skep::new();
    create(&skep, "m", "--type hash --key 4 --value 8 --entries 3");
    let four: String = (1..=4).map(|n| format!("{n}: {n}\n")).collect();
    let load = ["map", "load", "m", "-"];
    fails_on(
        &skep,
        &load,
        four.as_bytes(),
        1,
        &["cannot store `4` in map `m`\n  loaded 3 of 4 entries\n", "the map is full (3 elements)"],
    );
    let got: Vec<_> = elements(&skep, "m").into_iter().map(|(key, _)| key[0]).collect();
    assert_eq!(got, [1, 2, 3]);
    fails_on(
        &skep,
        &[&load[..], &["--noexist"]].concat(),
        b"2: 9\n",
        1,
        &["map `m` already has a key `2`\n  loaded 0 of 1 entry"],
    );
    fails_on(
        &skep,
        &[&load[..], &["--exist"]].concat(),
        b"2: 9\n9: 9\n",
        1,
        &["map `m` has no key `9`\n  loaded 1 of 2 entries"],
    );
    assert_eq!(open(&skep, "m").lookup(&2_u32.to_ne_bytes()).unwrap(), 9_u64.to_ne_bytes());
    fails_on(
        &skep,
        &[&load[..], &["--exist", "--noexist"]].concat(),
        b"",
        2,
        &["cannot be used with"],
    );
}

#[test]
fn per_cpu_values_come_from_each_form() {
    let skep = Skep::new();
    create(&skep, "m", "--type percpu_hash --key 4 --value 8 --entries 3");
    let cpus = open(&skep, "m").user_value_size() / 8;
    let value = |skep: &Skep| -> Vec<u64> {
        let value = open(skep, "m").lookup(&1_u32.to_ne_bytes()).unwrap();
        value.chunks(8).map(|one| u64::from_ne_bytes(one.try_into().unwrap())).collect()
    };
    let mut want = vec![0; cpus];
    for (input, first) in [
        ("1: 5\n", 5),
        ("1: 6 (cpu 0)\n", 6),
        (r#"[{"key":1,"value":[7]}]"#, 7),
        (r#"[{"key":1,"value":8}]"#, 8),
        ("key,cpu,value\r\n1,0,9\r\n", 9),
    ] {
        let ended = skep.run_with(["map", "load", "m", "-"], input.as_bytes());
        assert_eq!(ended.shell_status(), 0, "{input}: {}", ended.transcript());
        want[0] = first;
        assert_eq!(value(&skep), want, "{input}");
    }
    for (input, why) in [
        (format!("[{{\"key\":1,\"value\":{:?}}}]", vec![1; cpus + 1]), "there are values for"),
        (format!("1: 5 (cpu {cpus})\n"), "there are values for"),
        ("1: 5 (cpu 99999999999)\n".to_owned(), "there is no CPU"),
        ("key,cpu,value\r\n1,1,9\r\n".to_owned(), "CPU 1 does not follow"),
        ("key,cpu,value\r\n1,x,9\r\n".to_owned(), "`x` is not the number of a CPU"),
    ] {
        fails_on(&skep, &["map", "load", "m", "-"], input.as_bytes(), 2, &[why]);
    }
    assert_eq!(value(&skep), want);
}

#[test]
fn maps_that_are_not_alike_are_not_copied() {
    let skep = Skep::new();
    create(&skep, "hash", "--type hash --key 4 --value 8 --entries 9");
    create(&skep, "array", "--type array --key 4 --value 8 --entries 4");
    create(&skep, "wide", "--type hash --key 8 --value 8 --entries 9");
    create(&skep, "fat", "--type hash --key 4 --value 16 --entries 9");
    create(&skep, "percpu", "--type percpu_hash --key 4 --value 8 --entries 9");
    create(&skep, "queue", "--type queue --value 8 --entries 9");
    for (to, why) in [
        ("wide", "its keys have 4 bytes, and there 8 bytes"),
        ("fat", "its values have 8 bytes, and there 16 bytes"),
        ("percpu", "a key has one value, and there one value for each CPU"),
        ("queue", "cannot be copied to map `queue`: `queue` has no keys"),
        ("hash", "`hash` and `hash` are the same map"),
        ("nosuch", "there is no map `nosuch`"),
    ] {
        fails_on(&skep, &["map", "copy", "hash", to], b"", 1, &[why]);
    }
    // Ids count in each skep directory anew.
    let other = Skep::new();
    create(&other, "hash", "--type hash --key 4 --value 8 --entries 9");
    let path = |skep: &Skep| {
        let map = open(skep, "hash");
        map.file().path().to_str().expect("text").to_owned()
    };
    assert_eq!(open(&skep, "hash").id(), open(&other, "hash").id());
    out(&skep, &["map", "update", "hash", "8", "1"]);
    out(&skep, &["map", "copy", &path(&skep), &path(&other)]);
    assert_eq!(elements(&other, "hash"), elements(&skep, "hash"));
    fails_on(&skep, &["map", "copy", &path(&skep), "hash"], b"", 1, &["are the same map"]);
    out(&skep, &["map", "delete", "hash", "8"]);
    for i in 0..6_u32 {
        open(&skep, "hash").update(&i.to_ne_bytes(), &[i as u8; 8], 0).unwrap();
    }
    // Types may differ; what does not fit is refused.
    out(&skep, &["map", "delete", "hash", "4"]);
    out(&skep, &["map", "delete", "hash", "5"]);
    out(&skep, &["map", "copy", "hash", "array"]);
    assert_eq!(elements(&skep, "array"), elements(&skep, "hash"));
    out(&skep, &["map", "update", "hash", "7", "1"]);
    fails_on(
        &skep,
        &["map", "copy", "hash", "array"],
        b"",
        1,
        &["cannot store `7` in map `array`\n  copied ", "index 7 is beyond the array of 4"],
    );
    fails_on(
        &skep,
        &["map", "copy", "array", "hash", "--noexist"],
        b"",
        1,
        &["map `hash` already has a key `0`\n  copied 0 entries"],
    );
    // Byte strings go where they are not too long.
    create(&skep, "long", "--type qp_trie --key 30 --value 8 --entries 9");
    create(&skep, "short", "--type qp_trie --key 3 --value 8 --entries 9");
    fails_on(
        &skep,
        &["map", "copy", "long", "hash"],
        b"",
        1,
        &["its keys have 1 to 30 bytes, and there 4 bytes"],
    );
    for key in ["abc", "b"] {
        out(&skep, &["map", "update", "long", key, "1"]);
    }
    out(&skep, &["map", "copy", "long", "short"]);
    assert_eq!(elements(&skep, "short"), elements(&skep, "long"));
    out(&skep, &["map", "update", "long", "bcde", "1"]);
    fails_on(
        &skep,
        &["map", "copy", "long", "short"],
        b"",
        1,
        &[
            "cannot store `\"bcde\"` in map `short`: it has 4 bytes, but a key has at most 3\n",
            "  copied 2 entries",
        ],
    );
}

/// Keys that are byte strings, as `dump` prints them, as they are written by hand, and as bpftool
/// prints them.
#[test]
fn keys_that_are_text_come_from_each_form() {
    let skep = Skep::new();
    create(&skep, "m", "--type qp_trie --key 8 --value 4 --entries 9");
    let load = ["map", "load", "m", "-"];
    for input in [
        r#"[{"key":"/etc","value":1},{"key":{"hex":"00ff"},"value":2}]"#,
        r#"[{"key":{"size":4,"data":["0x2f","0x65","0x74","0x63"]},"value":1},{"key":[0,255],"value":2}]"#,
        r#"{"raw":true,"entries":[{"key":"2f657463","value":"01000000"},{"key":"00ff","value":"02000000"}]}"#,
        "\"/etc\": 1\nhex 00ff: 2\n",
        "key,value\r\n/etc,1\r\nhex 00ff,2\r\n",
    ] {
        let ended = skep.run_with(load, input.as_bytes());
        assert_eq!(ended.shell_status(), 0, "{input}: {}", ended.transcript());
        let want = [(vec![0, 255], vec![2, 0, 0, 0]), (b"/etc".to_vec(), vec![1, 0, 0, 0])];
        assert_eq!(elements(&skep, "m"), want, "{input}");
        open(&skep, "m").delete_range(&KeyRange::ALL).unwrap();
    }
    for (input, why) in [
        (r#"[{"key":"","value":1}]"#, "entry 1: \"\" is not a key of map `m`: it is empty"),
        (r#"[{"key":"123456789","value":1}]"#, "it has 9 bytes, but a key has at most 8"),
        (r#"[{"key":{"hex":"0"},"value":1}]"#, "1 hexadecimal digits, but a byte takes two"),
        (r#"[{"key":7,"value":1}]"#, "text is wanted, or `{\"hex\":…}`"),
        ("key,value\r\na,1\r\nhex 0,1\r\n", "line 3: `hex 0` is not a key of map `m`"),
    ] {
        fails_on(&skep, &load, input.as_bytes(), 2, &[why, "nothing was loaded"]);
    }
}

/// Short keys take little, however long the longest may be: 5,000 times three million bytes are more
/// than the machine has.
#[test]
fn elements_of_a_trie_with_very_long_keys_are_loaded() {
    let skep = Skep::new();
    create(&skep, "m", "--type qp_trie --key 3000000 --value 4 --entries 5000");
    let lines: String = (0..5000).map(|n| format!("\"key {n}\": {n}\n")).collect();
    let ended = skep.run_with(["map", "load", "m", "-"], lines.as_bytes());
    assert_eq!(ended.shell_status(), 0, "{}", ended.transcript());
    let map = open(&skep, "m");
    for n in 0..5000_u32 {
        assert_eq!(map.lookup(format!("key {n}").as_bytes()).unwrap(), n.to_ne_bytes());
    }
    fails_on(
        &skep,
        &["map", "load", "m", "-", "--noexist"],
        b"\"new\": 1\n\"key 7\": 1\n",
        1,
        &["cannot store `\"new\"` in map `m`\n  loaded 0 of 2 entries\n", "the trie is full"],
    );
}

/// Maps of the kernel are read and filled, by batches and one by one.
#[test]
fn maps_are_copied_from_and_to_the_kernel() {
    if !skip::is_root() {
        return skip("root");
    }
    for (map_type, definition) in [
        (MapType::Hash, "--type hash --key 4 --value 8 --entries 5000"),
        (MapType::PercpuHash, "--type percpu_hash --key 4 --value 8 --entries 5000"),
        (MapType::LpmTrie, "--type lpm_trie --key 8 --value 8 --entries 5000 --flags no_prealloc"),
        (MapType::Array, "--type array --key 4 --value 8 --entries 5000"),
    ] {
        let skep = Skep::new();
        create(&skep, "ours", definition);
        create(&skep, "back", definition);
        fill(&skep, "ours", 5000);
        let key = if map_type == MapType::LpmTrie { 8 } else { 4 };
        let flags = MapFlags(if key == 8 { MapFlags::NO_PREALLOC } else { 0 });
        let spec = MapSpec { flags, name: "skcopy", ..MapSpec::new(map_type, key, 8, 5000) };
        let Ok(kernel) = skep_kernel::Map::create(&spec) else { return skip("BPF_MAP_CREATE") };
        let id = kernel.info().unwrap().id.to_string();
        out(&skep, &["map", "copy", "--kernel=to", "ours", &id]);
        let mut there = Vec::new();
        let values = kernel.user_value_size();
        kernel
            .walk(|keys, all, n| {
                let each = keys.chunks(key as usize).zip(all.chunks(values)).take(n);
                there.extend(each.map(|(key, value)| (key.to_vec(), value.to_vec())));
                true
            })
            .unwrap();
        there.sort();
        assert_eq!(there, elements(&skep, "ours"), "{map_type}");
        out(&skep, &["map", "copy", "--kernel", &id, "back"]);
        assert_eq!(elements(&skep, "back"), elements(&skep, "ours"), "{map_type}");
        fails_on(
            &skep,
            &["map", "copy", "--kernel=to", "ours", &id, "--noexist"],
            b"",
            1,
            &[&format!("map `{id}` already has a key"), "copied 0 entries"],
        );
        fails_on(&skep, &["map", "copy", "--kernel=both", &id, &id], b"", 1, &["are the same map"]);
        fails_on(
            &skep,
            &["map", "copy", "--kernel", "4294967294", "back"],
            b"",
            1,
            &["the kernel has no map `4294967294`"],
        );
        create(&skep, "wide", "--type hash --key 16 --value 8 --entries 9");
        fails_on(&skep, &["map", "--kernel", "copy", &id, "wide"], b"", 1, &["its keys have"]);
    }
}

/// Ctrl-C and `head` are for dumps; a load reads all of its input before it begins, also from a
/// command.
#[test]
fn a_dump_goes_through_a_pipe() {
    let skep = Skep::new();
    for name in ["a", "b"] {
        create(&skep, name, "--type hash --key 4 --value 8 --entries 20000");
    }
    let map = open(&skep, "a");
    for i in 0..20_000_u32 {
        map.update(&i.to_ne_bytes(), &u64::from(i * i % 977).to_ne_bytes(), 0).unwrap();
    }
    let file = skep.path("dump.json");
    std::fs::write(&file, out(&skep, &["map", "dump", "a", "--json"])).unwrap();
    let document = json(&std::fs::read(&file).unwrap());
    assert_eq!(document["entries"].as_array().unwrap().len(), 20_000);
    assert_eq!((&document["map"]["name"], &document["raw"]), (&json!("a"), &json!(null)));
    out(&skep, &["map", "load", "b", file.to_str().unwrap()]);
    assert_eq!(elements(&skep, "a"), elements(&skep, "b"));
    assert!(Path::new(&file).exists(), "the file stays");
}

/// Maps of every type that holds so many, and how one of a million elements is made. A hash that throws
/// elements out has room for twice as many, so that it throws none out.
const LARGE: &[(&str, &str)] = &[
    ("hash", "--type hash --key 8 --value 8 --entries N"),
    ("lru_hash", "--type lru_hash --key 8 --value 8 --entries 2N"),
    ("percpu_hash", "--type percpu_hash --key 8 --value 8 --entries N"),
    ("lru_percpu_hash", "--type lru_percpu_hash --key 8 --value 8 --entries 2N"),
    ("lpm_trie", "--type lpm_trie --key 8 --value 8 --entries N --flags no_prealloc"),
    ("qp_trie", "--type qp_trie --key 30 --value 8 --entries N"),
    ("qp_fixed", "--type qp_trie --key 8 --fixed-keys --value 8 --entries N"),
    ("array", "--type array --key 4 --value 8 --entries N"),
    ("percpu_array", "--type percpu_array --key 4 --value 8 --entries N"),
    ("devmap_hash", "--type devmap_hash --key 4 --value 4 --entries N"),
    ("queue", "--type queue --value 8 --entries N"),
    ("stack", "--type stack --value 8 --entries N"),
];

/// Ten thousand elements of each, with `SKEP_STRESS` a million: all are there, and a dump of them is
/// what was loaded.
#[test]
fn a_million_elements_are_loaded() {
    let n: u32 = if std::env::var_os("SKEP_STRESS").is_some() { 1_000_000 } else { 10_000 };
    for (name, definition) in LARGE {
        let definition =
            definition.replace("2N", &(2 * n).to_string()).replace('N', &n.to_string());
        let skep = Skep::new();
        create(&skep, name, &definition);
        create(&skep, "other", &definition);
        let map = open(&skep, name);
        let (map_type, size) = (map.def().map_type, map.user_value_size());
        for i in 0..n {
            // In no order.
            let number = i.wrapping_mul(0x9e37_79b1);
            let key = match map_type {
                MapType::LpmTrie => [32_u32.to_ne_bytes(), number.to_be_bytes()].concat(),
                MapType::QpTrie if map.def().map_extra != 0 => {
                    format!("/srv/{}/{number:x}", number % 97).into_bytes()
                }
                MapType::Queue | MapType::Stack => Vec::new(),
                MapType::Array | MapType::PercpuArray => i.to_ne_bytes().to_vec(),
                MapType::DevmapHash => number.to_ne_bytes().to_vec(),
                _ => (u64::from(number) << 17).to_ne_bytes().to_vec(),
            };
            let value = match map_type {
                MapType::DevmapHash => (1 + i % 200).to_ne_bytes().to_vec(),
                _ => bytes(i as usize, size),
            };
            map.update(&key, &value, 0).unwrap_or_else(|e| panic!("{name}: {e}"));
        }
        let want = elements(&skep, name);
        assert_eq!(want.len(), n as usize, "{name}");
        // Elements without keys would be added to those of another form.
        let forms: &[&str] =
            if map.def().key_size == 0 { &["--json"] } else { &["--json", "--csv"] };
        for form in forms {
            let file = skep.path("dump");
            std::fs::write(&file, out(&skep, &["map", "dump", name, form])).unwrap();
            let ended = skep.run(["map", "load", "other", file.to_str().unwrap()]);
            assert_eq!(ended.shell_status(), 0, "{name} {form}: {}", ended.transcript());
            assert_eq!(text(&ended.stderr), format!("loaded {n} entries\n"), "{name} {form}");
            assert!(elements(&skep, "other") == want, "{name} {form}: other elements");
        }
    }
}
