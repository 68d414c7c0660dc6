//! Files written by format version 1 stay readable: `tests/data/v1` holds one of each type, as lines of offset and bytes.
//!
//! `SKEP_BLESS=1` writes the files anew; do that only to add a type, never to make a changed format pass.

mod support;

use std::fmt::Write as _;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use skep_isa::MapType;
use skep_maps::{Access, Map, MapDef, SlotTable};
use support::Dir;

const TYPES: [MapType; 5] = [MapType::Array, MapType::PercpuArray, MapType::Hash, MapType::PercpuHash, MapType::Ringbuf];

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/v1").join(name)
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
                let bytes: Vec<u8> = (0..hex.len() / 2).map(|i| number(&hex[2 * i..2 * i + 2]) as u8).collect();
                file.write_all_at(&bytes, number(at)).expect("room");
            }
        }
    }
}

fn def(t: MapType) -> MapDef {
    let (key, value, entries) = match t {
        MapType::Ringbuf => (0, 0, 4096),
        MapType::Array | MapType::PercpuArray => (4, 12, 5),
        _ => (6, 12, 5),
    };
    let mut def = MapDef::new(t, key, value, entries).named("v1.sample");
    (def.btf_id, def.key_type_id, def.value_type_id, def.map_extra) = (9, 8, 7, 6);
    def
}

fn bless() {
    let dir = Dir::new();
    for t in TYPES {
        let map = dir.make(&def(t));
        for i in 0..3u8 {
            match t {
                MapType::Ringbuf => {
                    // SAFETY: 20 bytes are readable.
                    assert_eq!(unsafe { map.ringbuf_output([i; 20].as_ptr(), 20, 0) }, 0);
                }
                _ => map.update(&key(t, i), &value(&map, i), 0).expect("room"),
            }
        }
        let path = map.file().path().to_owned();
        drop(map);
        std::fs::write(data(t.name()), to_text(&path)).expect("writable");
    }
    std::fs::write(data("slots"), to_text(&dir.path().join("slots"))).expect("writable");
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

#[test]
fn files_of_version_1_are_read() {
    if std::env::var_os("SKEP_BLESS").is_some() {
        bless();
    }
    let dir = Dir::new();
    from_text(&std::fs::read_to_string(data("slots")).expect("committed"), &dir.path().join("slots"));
    for (id, t) in TYPES.into_iter().enumerate() {
        let path = dir.maps().join(t.name());
        from_text(&std::fs::read_to_string(data(t.name())).expect("committed"), &path);
        // Read-only: they were written in another pid namespace than the test may run in.
        let map = Map::open(&path, Access::ReadOnly).expect("opens");
        assert_eq!((map.def(), map.id() as usize), (&def(t), id + 1));
        if t == MapType::Ringbuf {
            assert_eq!([0, 1, 2, 3].map(|q| map.ringbuf_query(q)), [96, 4096, 0, 96]);
            continue;
        }
        for i in 0..3 {
            assert_eq!(map.lookup(&key(t, i)).expect("there"), value(&map, i), "{t} {i}");
        }
        let want = if matches!(t, MapType::Array | MapType::PercpuArray) { 5 } else { 3 };
        assert_eq!(map.iter().filter(Result::is_ok).count(), want);
    }
    assert!(SlotTable::open_or_create(dir.path()).map_or_else(|e| e.errno() == 18, |t| t.slots() == 256));
}
