//! `skep map` on maps in the order of their keys: tries of byte strings.

mod common;

use common::{Skep, data, fails, json, out, text};
use serde_json::json;
use skep::isa::MapFlags;
use skep::maps::{Access, Map};

const KEYS: [&str; 9] = [
    "/",
    "/etc/",
    "/etc/hosts",
    "/etc/passwd",
    "/usr/bin/env",
    "/usr/lib",
    "abc",
    "hex 00ff",
    "höher",
];

/// A trie of paths: the value of each is the length of the key.
fn paths(skep: &Skep) {
    out(
        skep,
        &[
            "map",
            "create",
            "paths",
            "--type",
            "qp_trie",
            "--key-size",
            "40",
            "--value-size",
            "4",
            "--entries",
            "50",
        ],
    );
    for key in KEYS {
        out(skep, &["map", "update", "paths", key, &key.len().to_string()]);
    }
}

/// The keys of a dump, by way of its JSON.
fn keys(skep: &Skep, args: &[&str]) -> Vec<String> {
    let dump = out(skep, &[&["map", "dump", "paths", "--json"], args].concat());
    let key = |entry: &serde_json::Value| match &entry["key"] {
        serde_json::Value::String(key) => key.clone(),
        other => other["hex"].as_str().unwrap().to_owned(),
    };
    json(dump.as_bytes())["entries"].as_array().unwrap().iter().map(key).collect()
}

/// What the keys are in the order of their bytes, by the standard library.
fn want(keep: impl Fn(&[u8]) -> bool) -> Vec<String> {
    let mut all: Vec<(Vec<u8>, String)> = KEYS
        .iter()
        .map(|key| match key.strip_prefix("hex ") {
            Some(hex) => (vec![0, 0xff], hex.to_owned()),
            None => (key.as_bytes().to_vec(), (*key).to_owned()),
        })
        .filter(|(bytes, _)| keep(bytes))
        .collect();
    all.sort();
    all.into_iter().map(|(_, text)| text).collect()
}

#[test]
fn parts_of_a_trie_are_printed_in_both_directions() {
    let skep = Skep::new();
    paths(&skep);
    assert_eq!(keys(&skep, &[]), want(|_| true));
    let mut backward = want(|_| true);
    backward.reverse();
    assert_eq!(keys(&skep, &["--reverse"]), backward);
    assert_eq!(keys(&skep, &["--reverse", "--limit", "3"]), backward[..3]);
    assert_eq!(keys(&skep, &["--limit", "2"]), want(|_| true)[..2]);
    assert_eq!(keys(&skep, &["--prefix", "/etc/"]), want(|k| k.starts_with(b"/etc/")));
    assert_eq!(keys(&skep, &["--prefix", "hex 00"]), want(|k| k.starts_with(&[0])));
    assert_eq!(keys(&skep, &["--prefix", "/nowhere"]), want(|_| false));
    let between = |from: &'static str, to: &'static str| {
        want(move |k| k >= from.as_bytes() && k <= to.as_bytes())
    };
    assert_eq!(
        keys(&skep, &["--from", "/etc/hosts", "--to", "/usr/lib"]),
        between("/etc/hosts", "/usr/lib")
    );
    assert_eq!(keys(&skep, &["--from", "/etc/i", "--to", "/v"]), between("/etc/i", "/v"));
    assert_eq!(keys(&skep, &["--from", "abc"]), want(|k| k >= b"abc"));
    assert_eq!(keys(&skep, &["--to", "/etc/"]), want(|k| k <= b"/etc/"));
    assert_eq!(keys(&skep, &["--from", "/etc/", "--reverse", "--limit", "1"]), ["höher"]);
    assert_eq!(keys(&skep, &["--prefix", "/usr", "--strict"]), want(|k| k.starts_with(b"/usr")));
    assert_eq!(
        out(&skep, &["map", "dump", "paths", "--limit", "2"]),
        "hex 00ff: 8\n\"/\": 1\n",
        "for people"
    );
    assert_eq!(
        out(&skep, &["map", "dump", "paths", "--raw", "--from", "2f", "--to", "2f"]),
        "0x2f: 0x01000000\n"
    );
    assert_eq!(keys(&skep, &["--prefix", "/usr/", "--take"]), want(|k| k.starts_with(b"/usr/")));
    assert_eq!(keys(&skep, &[]), want(|k| !k.starts_with(b"/usr/")));
}

#[test]
fn neighbors_are_looked_up_and_parts_removed() {
    let skep = Skep::new();
    paths(&skep);
    for (option, key, line) in [
        ("--floor", "/etc/i", "\"/etc/hosts\": 10\n"),
        ("--floor", "/etc/hosts", "\"/etc/hosts\": 10\n"),
        ("--ceiling", "/etc/i", "\"/etc/passwd\": 11\n"),
        ("--ceiling", "hex 00", "hex 00ff: 8\n"),
        ("--longest", "/etc/shadow", "\"/etc/\": 5\n"),
        ("--longest", "/opt", "\"/\": 1\n"),
        ("--longest", "/etc/passwd/that/is/longer/than/any/key/may/be", "\"/etc/passwd\": 11\n"),
    ] {
        assert_eq!(out(&skep, &["map", "lookup", "paths", option, key]), line, "{option} {key}");
    }
    let found = out(&skep, &["map", "lookup", "paths", "--floor", "zz", "--json"]);
    assert_eq!(json(found.as_bytes())["entry"], json!({"key": "höher", "value": 6}));
    let found = out(&skep, &["map", "lookup", "paths", "hex 00ff", "--json"]);
    assert_eq!(json(found.as_bytes())["entry"], json!({"key": {"hex": "00ff"}, "value": 8}));
    fails(&skep, &["map", "lookup", "paths", "--longest", "zz"], 1, "has no key that begins `zz`");
    fails(&skep, &["map", "lookup", "paths", "--floor", "hex 00"], 1, "has no key at or before");
    fails(&skep, &["map", "lookup", "paths", "--ceiling", "zz"], 1, "has no key at or behind `zz`");
    // Next keys.
    assert_eq!(out(&skep, &["map", "getnext", "paths"]), "hex 00ff\n");
    assert_eq!(out(&skep, &["map", "getnext", "paths", "/"]), "\"/etc/\"\n");
    fails(&skep, &["map", "getnext", "paths", "höher"], 1, "has no key after `höher`");
    let ended = skep.run(["map", "delete", "paths", "--prefix", "/etc/"]);
    assert_eq!((ended.shell_status(), text(&ended.stderr)), (0, "removed 3 entries\n".to_owned()));
    assert_eq!(keys(&skep, &[]), want(|k| !k.starts_with(b"/etc/")));
    fails(
        &skep,
        &["map", "delete", "paths", "--prefix", "/etc/"],
        1,
        "map `paths` has no such keys",
    );
    out(&skep, &["map", "delete", "paths", "--from", "/usr/c", "--to", "abc"]);
    assert_eq!(keys(&skep, &[]), ["00ff", "/", "/usr/bin/env", "höher"]);
    out(&skep, &["map", "delete", "paths", "/"]);
    fails(&skep, &["map", "delete", "paths", "/"], 1, "map `paths` has no key `/`");
}

/// Each ends with one error that says what is wrong.
#[test]
fn wrong_uses_are_refused() {
    let skep = Skep::new();
    paths(&skep);
    out(
        &skep,
        &[
            "map",
            "create",
            "hash",
            "--type",
            "hash",
            "--key",
            "4",
            "--value",
            "4",
            "--entries",
            "5",
        ],
    );
    for args in [
        &["map", "dump", "hash", "--prefix", "00"][..],
        &["map", "dump", "hash", "--from", "1"],
        &["map", "dump", "hash", "--to", "1"],
        &["map", "dump", "hash", "--reverse"],
        &["map", "lookup", "hash", "--floor", "1"],
        &["map", "lookup", "hash", "--ceiling", "1"],
        &["map", "lookup", "hash", "--longest", "1"],
        &["map", "delete", "hash", "--prefix", "00"],
        &["map", "delete", "hash", "--from", "1", "--to", "2"],
    ] {
        fails(&skep, args, 2, "needs keys in an order, and map `hash` is a hash");
    }
    let long = "x".repeat(41);
    for (key, why) in [
        ("", "it is empty, but a key has 1 to 40 bytes"),
        (long.as_str(), "it has 41 bytes, but a key has at most 40"),
        ("hex 012", "it has 3 hexadecimal digits, but a byte takes two"),
        ("hex 0x", "it is empty"),
        ("hex zz", "`z` is not a hexadecimal digit"),
        ("\"open", "the quotes are not as in JSON"),
    ] {
        fails(&skep, &["map", "update", "paths", key, "1"], 2, why);
        fails(&skep, &["map", "lookup", "paths", key], 2, why);
        fails(&skep, &["map", "delete", "paths", key], 2, why);
    }
    fails(
        &skep,
        &["map", "update", "paths", "--raw", "012", "00000000"],
        2,
        "3 hexadecimal digits",
    );
    fails(&skep, &["map", "dump", "paths", "--prefix", ""], 2, "it is empty");
    fails(&skep, &["map", "dump", "paths", "--prefix", &long], 2, "a key has at most 40");
    fails(
        &skep,
        &["map", "dump", "paths", "--from", "b", "--to", "a"],
        2,
        "no key is between `b` and `a`",
    );
    fails(
        &skep,
        &["map", "dump", "paths", "--from", "b", "--prefix", "a"],
        2,
        "cannot be used with",
    );
    fails(
        &skep,
        &["map", "lookup", "paths", "a", "--floor", "--longest"],
        2,
        "cannot be used with",
    );
    fails(&skep, &["map", "delete", "paths"], 2, "required arguments were not provided");
    fails(&skep, &["map", "delete", "paths", "a", "--prefix", "a"], 2, "cannot be used with");
    fails(&skep, &["map", "update", "paths", "/", "1", "--noexist"], 1, "already has a key `/`");
    fails(&skep, &["map", "update", "paths", "x", "1", "--exist"], 1, "map `paths` has no key `x`");
    assert_eq!(keys(&skep, &[]), want(|_| true));
}

#[test]
fn tries_are_made_with_a_longest_key_or_keys_of_one_size() {
    let skep = Skep::new();
    paths(&skep);
    let shown = json(out(&skep, &["map", "show", "paths", "--json"]).as_bytes());
    assert_eq!(
        (&shown["type"], &shown["key_size"], &shown["map_extra"], &shown["flags"]),
        (&json!("qp_trie"), &json!(16), &json!(40), &json!(MapFlags::NO_PREALLOC))
    );
    assert!(out(&skep, &["map", "show", "paths"]).contains("\nmap_extra      40\n"));
    let create = |args: &[&str]| {
        out(
            &skep,
            &[&["map", "create"], args, &["--type", "qp_trie", "--value", "4", "--entries", "5"]]
                .concat(),
        )
    };
    create(&["fixed", "--key", "4", "--fixed-keys"]);
    for n in ["1", "256", "2"] {
        out(&skep, &["map", "update", "fixed", n, n]);
    }
    assert_eq!(out(&skep, &["map", "dump", "fixed"]), "256: 256\n1: 1\n2: 2\n", "by bytes");
    assert_eq!(out(&skep, &["map", "dump", "fixed", "--prefix", "02"]), "2: 2\n");
    assert_eq!(
        out(&skep, &["map", "dump", "fixed", "--from", "256", "--to", "1"]),
        "256: 256\n1: 1\n"
    );
    assert_eq!(out(&skep, &["map", "lookup", "fixed", "--floor", "3"]), "2: 2\n");
    fails(
        &skep,
        &["map", "dump", "fixed", "--prefix", "x"],
        2,
        "the first bytes of keys are given in hex",
    );
    create(&["lean", "--key", "9", "--flags", "no_leaf_cache"]);
    let lean = Map::open(&skep.path("skep/pins/lean"), Access::ReadOnly).unwrap();
    assert_eq!(lean.def().flags.0, MapFlags::NO_PREALLOC | MapFlags::NO_LEAF_CACHE);
    assert!(out(&skep, &["map", "show", "lean"]).contains("(no_prealloc, no_leaf_cache)"));
    // Values, or all of it, by types.
    let object = data("typed.bpf.o");
    create_typed(&skep, "typed", &object);
    out(&skep, &["map", "update", "typed", "some text", r#"{"calls": 3, "kind": "KIND_ODD"}"#]);
    assert_eq!(
        out(&skep, &["map", "dump", "typed"]),
        "\"some text\": { .calls = 3, .minus = 0, .kind = KIND_ODD }\n"
    );
    assert_eq!(
        out(&skep, &["map", "dump", "typed", "--csv"]),
        "key,value.calls,value.minus,value.kind\r\nsome text,3,0,KIND_ODD\r\n"
    );
    let refused = |args: &[&str], why: &str| {
        let all = [&["map", "create", "m"], args, &["--value", "4", "--entries", "5"]].concat();
        fails(&skep, &all, 2, why);
    };
    refused(&["--type", "qp_trie"], "a qp_trie needs `--key`");
    refused(&["--type", "qp_trie", "--key", "0"], "can have 1 to 16777215 bytes");
    refused(&["--type", "qp_trie", "--key", "16777216"], "can have 1 to 16777215 bytes");
    refused(&["--type", "hash", "--key", "4", "--fixed-keys"], "`--fixed-keys` is for a qp_trie");
}

/// An object says of its keys that they are a `struct bpf_dynptr`: they are byte strings, not that
/// structure.
#[test]
fn tries_of_objects_have_text_as_keys() {
    let skep = Skep::new();
    let from = format!("{}:policies", common::object("domains.bpf.o"));
    for name in ["policies", "other"] {
        out(&skep, &["map", "create", name, "--from", &from, "--entries", "100"]);
    }
    out(&skep, &["map", "update", "policies", "com.example", r#"{"action": 1, "queries": 7}"#]);
    out(&skep, &["map", "update", "policies", "hex 00ff", r#"{"queries": 8}"#]);
    let text =
        "hex 00ff: { .action = 0, .queries = 8 }\n\"com.example\": { .action = 1, .queries = 7 }\n";
    assert_eq!(out(&skep, &["map", "dump", "policies"]), text);
    let dump = out(&skep, &["map", "dump", "policies", "--json"]);
    assert_eq!(
        json(dump.as_bytes())["entries"],
        json!([
            {"key": {"hex": "00ff"}, "value": {"action": 0, "queries": 8}},
            {"key": "com.example", "value": {"action": 1, "queries": 7}}
        ])
    );
    for form in [&["--json"][..], &["--csv"], &[], &["--json", "--raw"]] {
        let dump = out(&skep, &[&["map", "dump", "policies"], form].concat());
        let ended = skep.run_with(["map", "load", "other", "-", "--noexist"], dump.as_bytes());
        assert_eq!(ended.shell_status(), 0, "{form:?}: {}", ended.transcript());
        assert_eq!(out(&skep, &["map", "dump", "other", "--take"]), text, "{form:?}");
    }
}

/// What the library and the kernel's patches refuse to load, no map is made of either.
#[test]
fn the_type_of_keys_must_fit() {
    let skep = Skep::new();
    let object = format!("{}/../skep/tests/data/qp_trie/keys.bpf.o", env!("CARGO_MANIFEST_DIR"));
    let not = "`map_extra` is the length of byte strings, whose type is `struct bpf_dynptr`";
    for (map, why) in [
        ("other_name", not),
        ("untyped", not),
        ("other_size", not),
        ("around", "`struct bpf_dynptr` must be the whole key, not a part of it"),
        ("no_length", "keys are byte strings, and `map_extra` must say how long they may be"),
    ] {
        let args = ["map", "create", "m", "--from", &format!("{object}:{map}")];
        fails(&skep, &args, 2, &format!("cannot create a map as `{map}` in `{object}`"));
        fails(&skep, &args, 2, why);
    }
    for map in ["paths", "named_otherwise", "numbers", "sixteen", "in_a_hash"] {
        out(&skep, &["map", "create", map, "--from", &format!("{object}:{map}")]);
    }
    let typed = ["--btf", &object, "--key-type", "struct bpf_dynptr", "--key", "9"];
    let new = ["map", "create", "m", "--type", "qp_trie", "--value", "4", "--entries", "5"];
    fails(&skep, &[&new[..], &typed].concat(), 2, "omit `--key-type`; `--key` is the size of");
}

/// `--type-of`: all that the other map was created with, and none of its elements.
#[test]
fn maps_are_created_like_others() {
    let skep = Skep::new();
    let from = format!("{}:policies", common::object("domains.bpf.o"));
    out(&skep, &["map", "create", "policies", "--from", &from, "--entries", "100"]);
    out(&skep, &["map", "update", "policies", "com.example", r#"{"action": 1, "queries": 7}"#]);
    out(&skep, &["map", "create", "same", "--type-of", "policies"]);
    out(&skep, &["map", "create", "larger", "--type-of", "policies", "--entries", "200"]);
    let shown = |map: &str| {
        let mut shown = json(out(&skep, &["map", "show", map, "--json"]).as_bytes());
        for own in ["id", "name", "path", "memory", "btf_id"] {
            shown.as_object_mut().expect("an object").remove(own);
        }
        shown
    };
    let mut want = shown("policies");
    assert_eq!(shown("same"), want);
    want["max_entries"] = json!(200);
    assert_eq!(shown("larger"), want);
    assert_eq!(out(&skep, &["map", "dump", "same"]), "");
    let dump = out(&skep, &["map", "dump", "policies"]);
    out(&skep, &["map", "copy", "policies", "same"]);
    assert_eq!(out(&skep, &["map", "dump", "same"]), dump);
    let new = |args: &[&'static str]| [&["map", "create", "m"], args].concat();
    fails(&skep, &new(&["--type-of", "nothing"]), 1, "nothing");
    fails(&skep, &new(&["--type-of", "same", "--key", "4"]), 2, "cannot be used with");
    fails(&skep, &new(&["--value", "4"]), 2, "--type");
}

fn create_typed(skep: &Skep, name: &str, object: &str) {
    let types = ["--btf", object, "--value-type", "struct value"];
    let trie = ["--type", "qp_trie", "--key", "30", "--entries", "5"];
    out(skep, &[&["map", "create", name], &trie[..], &types[..]].concat());
}

/// The last elements are printed first, of a map that is larger than what is read at once.
#[test]
fn large_tries_are_dumped_in_order() {
    let skep = Skep::new();
    out(
        &skep,
        &[
            "map",
            "create",
            "paths",
            "--type",
            "qp_trie",
            "--key",
            "40",
            "--value",
            "4",
            "--entries",
            "30000",
        ],
    );
    let map = Map::open(&skep.path("skep/pins/paths"), Access::ReadWrite).unwrap();
    let mut want: Vec<String> = (0..30_000).map(|n| format!("/{}/{}", n * 7919 % 101, n)).collect();
    for (n, key) in (0_u32..).zip(&want) {
        map.update(key.as_bytes(), &n.to_ne_bytes(), 0).unwrap();
    }
    want.sort();
    assert_eq!(keys(&skep, &[]), want);
    want.reverse();
    assert_eq!(keys(&skep, &["--reverse"]), want);
    let below: Vec<String> = want.iter().filter(|key| key.starts_with("/7/")).cloned().collect();
    assert_eq!(keys(&skep, &["--prefix", "/7/", "--reverse"]), below);
    let ended = skep.run(["map", "delete", "paths", "--from", "/2", "--to", "/5"]);
    want.retain(|key| !("/2".to_owned()..="/5".to_owned()).contains(key));
    assert_eq!(text(&ended.stderr), format!("removed {} entries\n", 30_000 - want.len()));
    assert_eq!(keys(&skep, &["--reverse"]), want);
}
