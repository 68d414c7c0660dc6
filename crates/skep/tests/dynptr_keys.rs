//! Tries whose keys are byte strings, as programs use them: every program runs on both engines,
//! and what it was answered is compared with what the series says that brought such maps up.

use std::collections::BTreeMap;

use skep::isa::KeyShape;
use skep::isa::errno::{EEXIST, EINVAL, ENOENT};
use skep::object::Object as Parsed;
use skep::test_run::{Engine, Input};
use skep::{Map, Object, Session};

/// What programs leave in place of a value that they did not find.
const NOTHING: i64 = 0x6e6f_6e65;

fn data(name: &str) -> String {
    format!("{}/tests/data/qp_trie/{name}.bpf.o", env!("CARGO_MANIFEST_DIR"))
}

const fn failed(errno: i32) -> i64 {
    -(errno as i64)
}

/// The programs of `basic.bpf.c`, with maps of their own.
struct Loaded {
    object: Object,
    engine: Engine,
}

impl Loaded {
    /// Calls `test` for each engine.
    fn each(test: impl Fn(&Self)) {
        for engine in [Engine::Jit, Engine::Interp] {
            let session = session();
            let object = session.load(data("basic")).unwrap_or_else(|e| panic!("{e:#}"));
            test(&Self { object, engine });
        }
    }

    fn map(&self, name: &str) -> Map {
        self.object.map(name).expect(name)
    }

    /// Puts words into the map, each with a value.
    fn put(&self, words: &[(&[u8], u32)]) {
        let map = self.map("words");
        for (word, value) in words {
            map.update(word, &value.to_ne_bytes(), 0).expect("there is room");
        }
    }

    /// What is in the map of words, from outside.
    fn words(&self) -> BTreeMap<Vec<u8>, u32> {
        let map = self.map("words");
        let entries = map.iter().map(|entry| entry.expect("nobody changes it"));
        entries.map(|(k, v)| (k, u32::from_ne_bytes(v.try_into().expect("four bytes")))).collect()
    }

    /// Runs a program; its answers.
    fn run(&self, program: &str, ctx: &[u8]) -> Vec<i64> {
        let runner = self.object.program(program).expect(program).runner(self.engine);
        let ended = runner.expect(program).test_run(&Input::ctx(ctx)).expect(program);
        assert_eq!(ended.retval, 0, "{program}");
        let bss = self.map(".bss");
        let value = bss.lookup(&0_u32.to_ne_bytes()).expect("global data");
        let (words, _) = self.variable(&value, "results").as_chunks::<8>();
        words.iter().map(|w| i64::from_ne_bytes(*w)).collect()
    }

    /// The bytes of a global variable.
    fn variable<'v>(&self, value: &'v [u8], name: &str) -> &'v [u8] {
        use skep::object::btf::Kind;

        let btf = self.object.btf().expect("built with -g");
        let section = btf.find(".bss", |k| matches!(k, Kind::DataSec(_))).expect("a section");
        let Ok(Kind::DataSec(section)) = btf.get(section).map(|t| &t.kind) else { unreachable!() };
        let var = section.vars.iter().find(|v| btf.name(v.type_id) == name).expect(name);
        &value[var.offset as usize..][..var.size as usize]
    }

    fn shown(&self) -> Vec<u8> {
        let bss = self.map(".bss");
        let value = bss.lookup(&0_u32.to_ne_bytes()).expect("global data");
        self.variable(&value, "shown").to_vec()
    }
}

/// The tests share a directory, as a process runs the programs of one.
fn session() -> Session {
    Session::open_in(skep_testkit::TempDir::of_process().join("skep")).expect("a directory")
}

#[test]
fn lookup_update_and_delete() {
    Loaded::each(|l| {
        assert_eq!(l.map("words").def().key_shape(), KeyShape::Bytes { max: 32 });
        l.put(&[(b"test", 1), (b"tes", 8), (b"testing", 9)]);
        let results = l.run("basic_ops", &[]);
        let want = [
            NOTHING,
            1,
            failed(EEXIST),
            0,
            2,
            0,
            failed(ENOENT),
            failed(ENOENT),
            NOTHING,
            NOTHING,
            failed(EINVAL),
            failed(ENOENT),
        ];
        assert_eq!(results[..want.len()], want);
        assert_eq!(l.words(), BTreeMap::from([(b"tes".to_vec(), 8), (b"testing".to_vec(), 9)]));
    });
}

#[test]
fn dynptrs_without_bytes_are_no_keys() {
    Loaded::each(|l| {
        l.put(&[(b"\0", 1)]);
        let results = l.run("zero_size_dynptr", &[]);
        let invalid = failed(EINVAL);
        let want = [0, NOTHING, invalid, invalid, invalid, NOTHING, invalid, invalid];
        assert_eq!(results[..want.len()], want);
        assert_eq!(l.words(), BTreeMap::from([(b"\0".to_vec(), 1)]));
    });
}

/// The hash misses the same string, as its key has what stands behind it in the buffer.
#[test]
fn strings_of_the_process_are_keys_as_they_are() {
    Loaded::each(|l| {
        let path = c"/usr/lib/os-release";
        let mut key = path.to_bytes().to_vec();
        l.put(&[(&key, 4)]);
        key.resize(32, 0);
        l.map("padded").update(&key, &4_u32.to_ne_bytes(), 0).expect("there is room");
        let address = |path: &std::ffi::CStr| (path.as_ptr() as u64).to_ne_bytes();
        let results = l.run("user_string", &address(path));
        assert_eq!(results[..4], [path.count_bytes() as i64 + 1, NOTHING, 4, 0]);
        // What is longer than the buffer is cut, with its zero byte in the last place.
        let long = c"/a/path/of/more/than/thirty-one/bytes";
        let results = l.run("user_string", &address(long));
        assert_eq!(results[..4], [32, NOTHING, NOTHING, 0]);
        let cut = long.to_bytes()[..31].to_vec();
        assert_eq!(l.words(), BTreeMap::from([(path.to_bytes().to_vec(), 7), (cut, 7)]));
    });
}

#[test]
fn records_of_ring_buffers_are_keys() {
    Loaded::each(|l| {
        l.put(&[(b"record", 1)]);
        let results = l.run("record_as_key", &[]);
        let want = [0, 0, 1, 0, 3, 0, failed(EINVAL), NOTHING, failed(EINVAL)];
        assert_eq!(results[..want.len()], want);
        assert_eq!(l.words(), BTreeMap::new());
    });
}

#[test]
fn a_key_is_the_part_that_a_dynptr_was_cut_to() {
    Loaded::each(|l| {
        l.put(&[(b"art", 1), (b"departure", 2), (b"dep", 3)]);
        let results = l.run("part_of_a_dynptr", &[]);
        assert_eq!(results[..5], [1, NOTHING, 0, 5, NOTHING]);
        let mut want = BTreeMap::from([(b"art".to_vec(), 1), (b"departure".to_vec(), 2)]);
        want.extend([(b"dep".to_vec(), 3), (b"par".to_vec(), 5)]);
        assert_eq!(l.words(), want);
    });
}

#[test]
fn callbacks_see_each_key_and_change_none() {
    Loaded::each(|l| {
        let words: [(&[u8], u32); 5] =
            [(b"b", 1), (b"a", 2), (b"ab", 3), (b"abc", 4), (b"a\xff\0\x80", 5)];
        l.put(&words);
        let sorted: BTreeMap<&[u8], u32> = words.into_iter().collect();
        let results = l.run("for_each", &[]);
        let first = |k: &&[u8]| i64::from(k[0]);
        let want = [
            5,
            15,
            5 * failed(EINVAL),
            0,
            5,
            sorted.keys().map(first).sum(),
            5 * failed(EINVAL),
            15,
            1,
        ];
        assert_eq!(results[..want.len()], want);
        let mut keys: Vec<u8> = Vec::new();
        for key in sorted.keys() {
            keys.extend(*key);
            keys.push(0);
        }
        assert_eq!(l.shown()[..keys.len()], keys, "in the order of their bytes");
        let left = sorted.iter().filter(|(k, _)| k.len() != 2);
        let left: BTreeMap<Vec<u8>, u32> = left.map(|(k, v)| (k.to_vec(), v + 100)).collect();
        assert_eq!(l.words(), left);
    });
}

/// A new value takes a place of its own, and what becomes of the old one is another key's at once:
/// one that begins as the others do, and comes before them or behind.
#[test]
fn callbacks_that_replace_values_are_shown_each_element_once() {
    for engine in [Engine::Jit, Engine::Interp] {
        let session = session();
        let object = session.load(data("replace")).unwrap_or_else(|e| panic!("{e:#}"));
        let (elements, others) = (object.map("elements"), object.map("others"));
        let (elements, others) = (elements.expect("defined"), others.expect("defined"));
        let key = |n: u64| format!("beginning/of/all/{n:03}").into_bytes();
        let value = |n: u64, shown: u64| [n, shown, 0].map(u64::to_ne_bytes).concat();
        for n in 0..300 {
            elements.update(&key(n), &value(n, 0), 0).expect("there is room");
        }
        for (n, end) in [(0_u32, "!"), (1, "~"), (2, "--"), (3, "1~")] {
            // As long as the others, which takes as much memory.
            let other = format!("beginning/of/all/{end:-<47}").into_bytes();
            others.update(&n.to_ne_bytes(), &other, 0).expect("there is room");
        }
        let runner = object.program("replace_each").expect("defined").runner(engine);
        let ended = runner.expect("accepted").test_run(&Input::ctx(&[])).expect("it runs");
        assert_eq!(ended.retval, 0);
        for n in 0..300 {
            assert_eq!(elements.lookup(&key(n)).ok(), Some(value(n, 1)), "{n}");
        }
        let results = object.map(".bss").expect("defined").lookup(&[0; 4]).expect("one");
        assert_eq!(results[8..16], [0; 8], "an update was refused");
    }
}

#[test]
fn keys_of_one_size_are_passed_as_memory() {
    Loaded::each(|l| {
        let numbers = l.map("numbers");
        assert_eq!(numbers.def().key_shape(), KeyShape::Fixed(8));
        numbers.update(&5_u64.to_ne_bytes(), &1_u32.to_ne_bytes(), 0).expect("there is room");
        let results = l.run("fixed_keys", &[]);
        assert_eq!(results[..6], [1, failed(EEXIST), 0, 2, 0, failed(ENOENT)]);
        assert_eq!(numbers.iter().count(), 0);
    });
}

/// A program that was verified for an inner map of byte strings must not get one whose keys are
/// memory of the same size.
#[test]
fn inner_maps_have_keys_of_their_kind() {
    Loaded::each(|l| {
        l.put(&[(b"inner", 1)]);
        let tries = l.map("tries");
        let put = |name: &str| {
            let id = l.map(name).id().to_ne_bytes();
            tries.update(&1_u32.to_ne_bytes(), &id, 0).map_err(|e| e.errno())
        };
        assert_eq!(l.map("sixteen").def().key_size, l.map("words").def().key_size);
        assert_eq!(put("sixteen"), Err(EINVAL));
        assert_eq!(put("numbers"), Err(EINVAL));
        assert_eq!(l.run("inner", &[])[..6], [1, 0, 2, 0, failed(ENOENT), 0]);
        assert_eq!(put("words"), Ok(()));
        assert_eq!(l.run("inner", &[])[5], 1);
    });
}

#[test]
fn other_keys_are_refused() {
    let object = Parsed::parse(&std::fs::read(data("refused")).expect("the fixture is committed"))
        .expect("a good object");
    let said: Vec<(String, String)> = object
        .programs
        .iter()
        .map(|p| p.name.clone())
        .zip(skep::prove::DryRun::new().each(&object))
        .map(|(name, answer)| (name, answer.expect_err("it must not be loaded").to_string()))
        .collect();
    for (program, want) in [
        ("add_dynptr_to_key1", "invalid read from stack R2 off -16+0 size 16"),
        ("add_dynptr_to_key2", "invalid read from stack R2 off -24+8 size 24"),
        ("text_as_key", "Expected an initialized dynptr as R2"),
        ("packet_as_key", "Expected a dynptr of type local or ringbuf as R2"),
    ] {
        let (_, said) = said.iter().find(|(name, _)| name == program).expect(program);
        assert!(said.contains(want), "{program}: {said}");
    }
    assert_eq!(said.len(), 4);
}
