//! The error codes of the type that was proposed for Linux, row by row: what each call answers in each
//! condition, to users and to programs, and that a call which fails changes nothing.
//!
//! Not here: addresses that cannot be read (`EFAULT`), as no call takes any; and what the type refuses to do
//! (524), which ours does.

mod support;

use skep_isa::map::update::{ANY, EXIST, LOCK, NOEXIST};
use skep_isa::{MapFlags, MapType};
use skep_maps::{Map, MapDef};
use skep_testkit::skip;
use support::qp_trie::{
    by_next_key, errno, prog_delete, prog_lookup, prog_update, strings, uncached,
};
use support::{Dir, fill_up, on_small_tmpfs, table};

const ENOENT: i32 = 2;
const E2BIG: i32 = 7;
const ENOMEM: i32 = 12;
const EEXIST: i32 = 17;
const EINVAL: i32 = 22;
const ENOSPC: i32 = 28;

/// The longest key, `map_extra`.
const LONGEST: usize = 4;
/// No dynptr is as long.
const TOO_LONG: usize = 0x0100_0000;

type Elements = Vec<(Vec<u8>, Vec<u8>)>;

fn all(map: &Map) -> Elements {
    map.iter().map(|e| e.expect("whole")).collect()
}

/// What users' calls answer that take a key.
fn lookup(map: &Map, key: &[u8]) -> i32 {
    errno(map.lookup(key))
}
fn delete(map: &Map, key: &[u8]) -> i32 {
    errno(map.delete(key))
}
fn take(map: &Map, key: &[u8]) -> i32 {
    errno(map.lookup_and_delete(key, &mut [0; 4], 0))
}
fn next(map: &Map, key: &[u8]) -> i32 {
    errno(map.next_key(Some(key)))
}
fn update(map: &Map, key: &[u8], flags: u64) -> i32 {
    errno(map.update(key, &[9; 4], flags))
}

/// What programs are answered.
fn prog_find(map: &Map, key: &[u8]) -> i32 {
    if prog_lookup(map, key).is_some() { 0 } else { ENOENT }
}
fn prog_put(map: &Map, key: &[u8], flags: u64) -> i32 {
    prog_update(map, key, &[9; 4], flags)
}

/// One row: the condition, the answer, and who gets it.
struct Row {
    says: &'static str,
    want: i32,
    answers: Vec<i32>,
}

fn check(map: &Map, rows: impl FnOnce(&Map) -> Vec<Row>) {
    let before = all(map);
    for Row { says, want, answers } in rows(map) {
        for (i, answer) in answers.iter().enumerate() {
            assert_eq!(*answer, want, "{says}: answer {i}");
        }
    }
    assert_eq!(all(map), before, "what fails changes nothing");
}

/// Rows of any map: `there` is in it, unless it is empty.
fn rows_of_all(map: &Map, there: &[u8]) -> Vec<Row> {
    let too_long = vec![b'a'; TOO_LONG];
    let longer = vec![b'a'; LONGEST + 1];
    let row = |says, want, answers| Row { says, want, answers };
    let users =
        |key: &[u8]| vec![lookup(map, key), delete(map, key), take(map, key), next(map, key)];
    vec![
        row("any call of a user: no key", EINVAL, users(&[])),
        row("any call of a user: longer than any dynptr", EINVAL, users(&too_long)),
        row(
            "update: no key",
            EINVAL,
            vec![update(map, &[], ANY), prog_put(map, &[], ANY), prog_put(map, &[], EXIST)],
        ),
        row(
            "update: longer than `map_extra`",
            EINVAL,
            [&longer, &too_long]
                .into_iter()
                .flat_map(|key| [NOEXIST, EXIST].map(|flags| (key, flags)))
                .flat_map(|(key, flags)| [update(map, key, flags), prog_put(map, key, flags)])
                .collect(),
        ),
        row(
            "update: unknown flags",
            EINVAL,
            [NOEXIST | EXIST, LOCK, LOCK | EXIST, 8, 1 << 32, u64::MAX]
                .into_iter()
                .flat_map(|flags| [update(map, there, flags), prog_put(map, there, flags)])
                .collect(),
        ),
        row("a program's delete: no key", EINVAL, vec![prog_delete(map, &[])]),
        row(
            "a program's lookup: no key, or one that is too long",
            ENOENT,
            vec![prog_find(map, &[]), prog_find(map, &longer), prog_find(map, &too_long)],
        ),
        row(
            "lookup, delete: longer than `map_extra`",
            ENOENT,
            vec![
                lookup(map, &longer),
                delete(map, &longer),
                take(map, &longer),
                prog_delete(map, &longer),
            ],
        ),
    ]
}

fn absent(map: &Map, says: &'static str, keys: &[&[u8]]) -> Row {
    let each = |key: &&[u8]| {
        [
            lookup(map, key),
            delete(map, key),
            take(map, key),
            prog_find(map, key),
            prog_delete(map, key),
            update(map, key, EXIST),
            prog_put(map, key, EXIST),
        ]
    };
    Row { says, want: ENOENT, answers: keys.iter().flat_map(each).collect() }
}

#[test]
fn calls_fail_as_the_table_says() {
    let dir = Dir::new();
    table(&dir, 16);
    for def in [strings(LONGEST as u32, 4, 3), uncached(strings(LONGEST as u32, 4, 3))] {
        let map = dir.make(&def);
        check(&map, |map| {
            let mut rows = rows_of_all(map, b"abc");
            rows.push(absent(map, "an empty trie", &[b"a", b"abc", &[0], &[0xff; LONGEST]]));
            let answers = vec![errno(map.next_key(None)), next(map, b"abc"), next(map, &[0])];
            rows.push(Row { says: "next key: an empty trie", want: ENOENT, answers });
            rows
        });
        for key in [&b"ab"[..], b"abc"] {
            assert_eq!(update(&map, key, NOEXIST), 0);
        }
        let is_there = |map: &Map| Row {
            says: "update with `BPF_NOEXIST`: it is there",
            want: EEXIST,
            answers: vec![update(map, b"ab", NOEXIST), prog_put(map, b"abc", NOEXIST)],
        };
        check(&map, |map| {
            let mut rows = rows_of_all(map, b"abc");
            rows.push(is_there(map));
            rows.push(absent(map, "begins as others do", &[b"a"]));
            rows.push(absent(map, "goes on behind another", &[b"abd", b"abcd", b"ab\0", b"abc\0"]));
            rows.push(absent(map, "before and behind all", &[&[0], &[0xff], b"aa", b"b"]));
            let answers = vec![next(map, b"abc")];
            rows.push(Row { says: "next key: the last one", want: ENOENT, answers });
            rows
        });
        // Who is not there is followed by the first one.
        for key in [&b"zz"[..], b"aba", &[0], b"abcd", b"abcde"] {
            assert_eq!(map.next_key(Some(key)).ok().as_deref(), Some(&b"ab"[..]), "{key:?}");
        }
        assert_eq!(update(&map, b"b", ANY), 0);
        check(&map, |map| {
            let mut rows = rows_of_all(map, b"abc");
            let answers = [ANY, NOEXIST]
                .into_iter()
                .flat_map(|flags| [update(map, b"new", flags), prog_put(map, b"new", flags)]);
            rows.push(Row {
                says: "update: one too many",
                want: ENOSPC,
                answers: answers.collect(),
            });
            // What is wrong with the key comes before what is wrong with the room.
            rows.push(is_there(map));
            rows.push(absent(map, "a full trie", &[b"new", b"a", b"abcd"]));
            rows
        });
        for flags in [ANY, EXIST] {
            assert_eq!(errno(map.update(b"ab", &[1; 4], flags)), 0, "full, and replaced");
            assert_eq!(prog_update(&map, b"b", &[2; 4], flags), 0, "full, and replaced");
        }
        assert_eq!(by_next_key(&map), [&b"ab"[..], b"abc", b"b"]);
    }
}

/// Rows of `create`, in their order: flags, sizes and entries before what is too big, that before what
/// the longest key may be.
#[test]
fn definitions_fail_as_the_table_says() {
    let dir = Dir::new();
    let def = |value, entries, extra, flags| {
        MapDef::new(MapType::QpTrie, 16, value, entries).extra(extra).flags(flags)
    };
    let no_prealloc = MapFlags::NO_PREALLOC;
    let cases = [
        ("preallocated", def(4, 1, 4, 0), EINVAL),
        ("mmapable", def(4, 1, 4, no_prealloc | MapFlags::MMAPABLE), EINVAL),
        (
            "both read-only and write-only",
            def(4, 1, 4, no_prealloc | MapFlags::RDONLY | MapFlags::WRONLY),
            EINVAL,
        ),
        ("no values", def(0, 1, 4, no_prealloc), EINVAL),
        ("no entries", def(4, 0, 4, no_prealloc), EINVAL),
        ("no entries, and too big", def(1 << 30, 0, 4, no_prealloc), EINVAL),
        ("a value that is too big", def(1 << 30, 1, 4, no_prealloc), E2BIG),
        ("key and value that are too big", def(4 << 20, 1, 1, no_prealloc), E2BIG),
        ("any high bit", def(4, 1, 1 << 32, no_prealloc), E2BIG),
        ("too big, with any high bit", def(1 << 30, 1, 1 << 32, no_prealloc), E2BIG),
        ("largest element", def(4, 1, (4 << 20) - 8, no_prealloc), E2BIG),
    ];
    for (says, def, want) in cases {
        assert_eq!(errno(dir.create(&def)), want, "{says}");
    }
    for (says, def) in [
        ("tiny", def(4, 1, 4, no_prealloc)),
        ("largest element", def(4, 1, (4 << 20) - 10, no_prealloc)),
        ("of a node", def(4, 1, 4, no_prealloc | MapFlags::NUMA_NODE)),
        ("read-only", def(4, 1, 4, no_prealloc | MapFlags::RDONLY_PROG)),
    ] {
        assert_eq!(errno(dir.create(&def)), 0, "{says}");
    }
}

/// Without memory an update fails and changes nothing; what needs none goes on: values are replaced, keys
/// deleted.
#[test]
fn without_memory_an_update_changes_nothing() {
    let ran = on_small_tmpfs("900k", |dir| {
        table(dir, 16);
        for def in [strings(40, 4, 500), uncached(strings(40, 4, 500))] {
            let map = dir.make(&def);
            let key = |i: u32| format!("{:03}", i).into_bytes();
            let filler = fill_up(dir);
            let mut there = 0;
            let told = loop {
                match errno(map.update(&key(there), &[1; 4], NOEXIST)) {
                    0 => there += 1,
                    told => break told,
                }
            };
            assert!(told == ENOMEM && there < 500, "{told} after {there}");
            let before = all(&map);
            assert_eq!(before.len(), there as usize);
            let long = vec![b'x'; 40];
            for flags in [ANY, NOEXIST] {
                assert_eq!(update(&map, &long, flags), ENOMEM);
                assert_eq!(prog_put(&map, &long, flags), ENOMEM);
            }
            assert_eq!(update(&map, &long, EXIST), ENOMEM, "its leaf is made first");
            assert_eq!(all(&map), before);
            if there > 0 {
                assert_eq!(update(&map, &key(0), ANY), 0, "replaced in place");
                assert_eq!(delete(&map, &key(there - 1)), 0);
                assert_eq!(update(&map, &key(there - 1), NOEXIST), 0, "what it had is free");
            }
            for i in 0..there {
                assert_eq!(delete(&map, &key(i)), 0, "{i} of {there}");
            }
            assert_eq!(all(&map), []);
            std::fs::remove_file(filler).expect("ours");
        }
    });
    if !ran {
        skip("a tmpfs of its own");
    }
}
