//! Files that were written stay readable: `tests/data/v1` holds one of each type by format version
//! 1, as lines of offset and bytes, `v2` and `v3` those of types that changed with these versions,
//! `v4` one of each again, since when most tell when elements were put in, `v5` what came then, and `v6`
//! and `v7` what changed after that.
//!
//! `SKEP_BLESS=1` writes those that are missing, for new types.

mod support;

use std::fmt::Write as _;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use skep_isa::{MapFlags, MapType};
use skep_maps::{Access, Map, MapDef, SlotTable, map_types};
use support::{Dir, fill, has_dump, small, small_key};

/// Types whose payload changed, and with which version.
const CHANGED: [(MapType, u32); 4] = [
    (MapType::LpmTrie, 2),
    (MapType::Ringbuf, 3),
    (MapType::UserRingbuf, 3),
    (MapType::PerfEventArray, 3),
];

/// Types that came later, and with which version they are what they are.
const NEW: [(MapType, u32); 1] = [(MapType::QpTrie, 7)];
/// Types that came later and changed, and versions in which they were something else.
const CHANGED_LATER: [(MapType, u32); 2] = [(MapType::QpTrie, 5), (MapType::QpTrie, 6)];

fn data(version: u32, name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(format!("v{version}")).join(name)
}

/// The files of a type that have what [`small`] makes, and are read today.
fn files(t: MapType) -> Vec<PathBuf> {
    if let Some((_, since)) = NEW.iter().find(|(new, _)| *new == t) {
        return vec![data(*since, t.name())];
    }
    let since = CHANGED.iter().find(|(changed, _)| *changed == t).map_or(1, |(_, since)| *since);
    let first = if FIRST.contains(&t) { None } else { Some(since) };
    first.into_iter().chain([4]).map(|version| data(version, t.name())).collect()
}

/// Turns a file into its length and its lines of 32 bytes that are not zero.
fn to_text(path: &Path) -> String {
    let bytes = std::fs::read(path).expect("readable");
    let mut out = format!("length {:#x}\n", bytes.len());
    for (i, line) in bytes.chunks(32).enumerate().filter(|(_, l)| l.iter().any(|b| *b != 0)) {
        let hex: String = line.iter().map(|b| format!("{b:02x}")).collect();
        writeln!(out, "{:#x} {hex}", i * 32).expect("a string");
    }
    out
}

fn from_text(text: &str, path: &Path) {
    let number = |t: &str| u64::from_str_radix(t.trim_start_matches("0x"), 16).expect("hex");
    let file = std::fs::File::create(path).expect("writable");
    for line in text.lines() {
        match line.split_once(' ').expect("two words") {
            ("length", len) => file.set_len(number(len)).expect("room"),
            (at, hex) => {
                let bytes: Vec<u8> =
                    (0..hex.len() / 2).map(|i| number(&hex[2 * i..2 * i + 2]) as u8).collect();
                file.write_all_at(&bytes, number(at)).expect("room");
            }
        }
    }
}

/// The first four types were written with numbers that are refused or different today.
const FIRST: [MapType; 4] =
    [MapType::Array, MapType::PercpuArray, MapType::Hash, MapType::PercpuHash];

fn def(t: MapType) -> MapDef {
    let mut def = small(t).named("v1.sample");
    (def.btf_id, def.key_type_id, def.value_type_id) = (9, 8, 7);
    def
}

fn first_def(t: MapType) -> MapDef {
    let (key, value, entries) = match t {
        MapType::Array | MapType::PercpuArray => (4, 12, 5),
        _ => (6, 12, 5),
    };
    let mut def = MapDef::new(t, key, value, entries).named("v1.sample");
    (def.btf_id, def.key_type_id, def.value_type_id, def.map_extra) = (9, 8, 7, 6);
    def
}

/// A map of a type with a known seed, so that it holds the same bytes wherever it is made.
fn make(dir: &Dir, t: MapType) -> Map {
    let mut def = def(t);
    def.flags.0 |= t.row().flags & MapFlags::ZERO_SEED;
    let map = dir.make(&def);
    fill(dir, &map, 3);
    map
}

/// Writes the files of types that have none yet.
fn bless() {
    for t in map_types() {
        let Some(last) = files(t).pop().filter(|last| !last.exists()) else { continue };
        let dir = Dir::new();
        let path = { make(&dir, t).file().path().to_owned() };
        std::fs::create_dir_all(last.parent().expect("a folder")).expect("writable");
        std::fs::write(last, to_text(&path)).expect("writable");
    }
}

fn key(t: MapType, i: u8) -> Vec<u8> {
    match t {
        MapType::Array | MapType::PercpuArray => u32::from(i).to_ne_bytes().to_vec(),
        _ => vec![i + 1; 6],
    }
}

fn value(map: &Map, i: u8) -> Vec<u8> {
    // Slot 0 only: the number of values shown differs between machines.
    let mut v = vec![0; map.user_value_size()];
    v[..12].copy_from_slice(&[0x10 + i; 12]);
    v
}

/// All elements, and what lookups of a few keys give.
type Shown = (Vec<(Vec<u8>, Vec<u8>)>, Vec<Option<Vec<u8>>>);

/// What a user can see of a map.
fn shown(map: &Map) -> Shown {
    let t = map.def().map_type;
    let elements =
        if has_dump(t) { map.iter().map(|e| e.expect("can be read")).collect() } else { vec![] };
    let mut elements: Vec<_> =
        elements.into_iter().map(|(k, v)| (k, v[..v.len().min(16)].to_vec())).collect();
    assert!(!has_dump(t) || !elements.is_empty(), "{t}");
    // The order in a hash is its seed's.
    elements.sort();
    let looked = (0..6).map(|i| {
        let mut out =
            vec![if t == MapType::BloomFilter { i as u8 } else { 0 }; map.user_value_size()];
        map.lookup_into(&small_key(t, i), &mut out, 0)
            .ok()
            .map(|()| out[..out.len().min(16)].to_vec())
    });
    (elements, looked.collect())
}

/// What was written then shows what is written now.
#[test]
fn files_of_every_type_show_what_they_showed() {
    if std::env::var_os("SKEP_BLESS").is_some() {
        bless();
    }
    for (t, file) in
        map_types().into_iter().flat_map(|t| files(t).into_iter().map(move |file| (t, file)))
    {
        let dir = Dir::new();
        let now = make(&dir, t);
        let path = dir.maps().join("77");
        from_text(&std::fs::read_to_string(&file).expect("committed"), &path);
        if t.row().per_cpu {
            std::fs::remove_file(dir.path().join("slots")).expect("made with the map");
            from_text(
                &std::fs::read_to_string(data(1, "slots")).expect("committed"),
                &dir.path().join("slots"),
            );
        }
        let map = Map::open(&path, Access::ReadOnly).expect("opens");
        let mut def = map.def().clone();
        // A qp-trie took this flag when its file was written; those files are read.
        def.flags.0 &= !MapFlags::ZERO_SEED | t.row().flags;
        assert_eq!(&def, now.def());
        assert_eq!(shown(&map), shown(&now), "{}", file.display());
    }
}

#[test]
fn files_of_version_1_are_read() {
    let dir = Dir::new();
    from_text(
        &std::fs::read_to_string(data(1, "slots")).expect("committed"),
        &dir.path().join("slots"),
    );
    for (id, t) in FIRST.into_iter().enumerate() {
        let path = dir.maps().join(t.name());
        from_text(&std::fs::read_to_string(data(1, t.name())).expect("committed"), &path);
        // Read-only: they were written in another pid namespace than the test may run in.
        let map = Map::open(&path, Access::ReadOnly).expect("opens");
        assert_eq!((map.def(), map.id() as usize), (&first_def(t), id + 1));
        for i in 0..3 {
            assert_eq!(map.lookup(&key(t, i)).expect("there"), value(&map, i), "{t} {i}");
        }
        let want = if matches!(t, MapType::Array | MapType::PercpuArray) { 5 } else { 3 };
        assert_eq!(map.iter().filter(Result::is_ok).count(), want);
        // Only what does not come and go can be walked strictly without being told when it came.
        let mut buf = vec![0; 8 * map.walk().element_size()];
        let strict =
            map.walk().strict().rows(&mut buf).map_err(|e| e.to_string().contains("older version"));
        assert_eq!(strict, if want == 5 { Ok(5) } else { Err(true) }, "{t}");
    }
    assert!(
        SlotTable::open_or_create(dir.path())
            .map_or_else(|e| e.errno() == 18, |t| t.slots() == 256)
    );
}

#[test]
fn payloads_of_an_older_version_are_refused() {
    let dir = Dir::new();
    let first = CHANGED.into_iter().map(|(t, _)| (t, 1));
    for (id, (t, version)) in first.chain(CHANGED_LATER).enumerate() {
        let path = dir.maps().join(id.to_string());
        let old = data(version, t.name());
        from_text(&std::fs::read_to_string(old).expect("committed"), &path);
        let error = Map::open(&path, Access::ReadOnly).expect_err("too old");
        assert_eq!(
            (error.errno(), error.to_string().contains(&format!("has format version {version}"))),
            (117, true),
            "{error}"
        );
    }
}
