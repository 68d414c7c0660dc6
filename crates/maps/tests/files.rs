//! Object files: locks, names, and what happens to damaged ones.
//!
//! No test here forks: a child would keep its parent's locks.

mod support;

use skep_isa::MapType;
use skep_isa::map::Lookup;
use skep_maps::{Access, Map, MapDef, ProgWalk, VERSION, map_types};
use support::{Dir, fill, small, small_key};

fn errno<T: std::fmt::Debug>(r: Result<T, skep_maps::MapError>) -> i32 {
    r.expect_err("refused").errno()
}

#[test]
fn a_file_is_garbage_when_nobody_has_it_open() {
    let dir = Dir::new();
    let map = dir.make(&MapDef::new(MapType::Array, 4, 4, 2));
    let path = map.file().path().to_owned();
    assert!(!skep_maps::remove_if_unused(&path).expect("asks"), "in use");
    let pin = dir.path().join("pin");
    std::fs::hard_link(&path, &pin).expect("same file system");
    drop(map);
    assert!(!skep_maps::remove_if_unused(&path).expect("asks"), "pinned");
    std::fs::remove_file(&pin).expect("unpins");
    assert!(skep_maps::remove_if_unused(&path).expect("asks"));
    assert!(!path.exists());
    assert_eq!(errno(Map::open(&path, Access::ReadWrite)), 2);
}

/// A map of a type with something in it.
fn sample(dir: &Dir, t: MapType) -> Map {
    let map = dir.make(&small(t).named("sample"));
    fill(dir, &map, 15);
    map
}

/// Does everything a user and a program can do, whatever the answers are; it must only come back.
fn exercise(map: &Map) {
    let t = map.def().map_type;
    let value = vec![1; map.user_value_size()];
    let mut elements = 0;
    for e in map.iter().take(1000) {
        elements += usize::from(e.is_ok());
    }
    assert!(elements <= 100, "no type makes more out of twenty, {t}");
    for i in 0..40u32 {
        let key = small_key(t, i);
        let mut out = vec![2; map.user_value_size()];
        let _ = (
            map.lookup(&key),
            map.update(&key, &value, 0),
            map.next_key(Some(&key)),
            map.delete(&key),
            map.update(&key, &value, 1),
        );
        let _ = (
            map.lookup_and_delete(&key, &mut out, 0),
            map.update(&key, &value, 2),
            map.lookup_into(&key, &mut out, 0),
        );
        let mut room = [0u8; 32];
        // SAFETY: keys and values have at most 32 bytes; the values found are the map's, and inner
        // maps are not written to.
        unsafe {
            if !key.is_empty() {
                let p = map.prog_lookup(key.as_ptr());
                if !p.is_null() && t.row().lookup == Lookup::Value {
                    p.write_volatile(3);
                }
                let _ = (
                    map.prog_update(key.as_ptr(), room.as_ptr(), 0),
                    map.prog_delete(key.as_ptr()),
                );
                let _ = map.prog_lookup_cpu(key.as_ptr(), i);
            }
            let _ = (
                map.prog_push(room.as_ptr(), 0),
                map.prog_peek(room.as_mut_ptr()),
                map.prog_pop(room.as_mut_ptr()),
            );
            let _ = map.stack_id([u64::from(i); 3].as_ptr(), 3, u64::from(i & 2) << 9);
            let _ = map.perf_output(i, [(room.as_ptr(), 32), (room.as_ptr(), u64::from(i & 31))]);
        }
    }
    let mut walk = ProgWalk::default();
    // SAFETY: only counted.
    let _ = (0..1000).take_while(|_| unsafe { map.prog_next(&mut walk) }.is_some()).count();
    let _ = (map.next_key(None), map.freeze(), map.user_ringbuf_output(&[7; 100]));
    for size in [0u64, 8, 100, 2000, 5000] {
        let p = map.ringbuf_reserve(size, 0);
        if !p.is_null() {
            // SAFETY: reserved above, or in no ring.
            unsafe { Map::ringbuf_submit(p, 0) };
        }
    }
    if let Ok(mut consumer) = map.consumer() {
        for _ in 0..200 {
            let _ = consumer.next_record().map(|r| r.map(<[u8]>::len));
        }
    }
    if let Ok(mut reader) = map.perf_reader() {
        for _ in 0..200 {
            let _ = reader.next_record().map(|r| r.map(|(_, s)| s.len()));
        }
    }
    if let Ok(mut drain) = map.user_ringbuf_drain() {
        for _ in 0..200 {
            let _ = drain.next_sample();
        }
    }
}

#[test]
fn every_changed_byte_of_a_header_is_noticed() {
    let dir = Dir::new();
    for t in map_types() {
        let path = { sample(&dir, t).file().path().to_owned() };
        let bytes = std::fs::read(&path).expect("readable");
        let head = bytes.len() - 4096;
        let bad = dir.maps().join("bad");
        let mut refused = 0;
        for at in (0..2048).step_by(if t == MapType::Array { 3 } else { 61 }) {
            for bit in [1, 0x80] {
                let file = std::fs::OpenOptions::new()
                    .create(true)
                    .truncate(false)
                    .write(true)
                    .open(&bad)
                    .expect("writable");
                let mut page = bytes[head..].to_vec();
                page[at] ^= bit;
                file.set_len(bytes.len() as u64).expect("room");
                std::os::unix::fs::FileExt::write_all_at(&file, &page, head as u64).expect("room");
                drop(file);
                let e = Map::open(&bad, Access::ReadWrite).expect_err("a changed byte");
                assert!([117, 22].contains(&e.errno()), "{t} byte {at}: {e}");
                assert!(e.to_string().contains("bad"), "the message names the file: {e}");
                refused += 1;
            }
        }
        assert!(refused > 60);
        std::fs::remove_file(&bad).expect("there");
    }
}

#[test]
fn files_of_other_lengths_kinds_and_versions_are_refused() {
    let dir = Dir::new();
    let path = { sample(&dir, MapType::Hash).file().path().to_owned() };
    let bytes = std::fs::read(&path).expect("readable");
    let bad = dir.maps().join("bad");
    let try_bytes = |b: &[u8]| {
        std::fs::write(&bad, b).expect("room");
        errno(Map::open(&bad, Access::ReadWrite))
    };
    for len in [0, 1, 100, 4095, 4096, 8192, bytes.len() - 1, bytes.len() - 4096] {
        assert_eq!(try_bytes(&bytes[..len]), 117, "cut to {len}");
    }
    assert_eq!(try_bytes(&bytes[bytes.len() - 4096..]), 117, "only the header");
    assert_eq!(try_bytes(&[&[0; 4096], &bytes[..]].concat()), 117, "a page more in front");
    assert_eq!(try_bytes(&vec![0; 1 << 16]), 117, "nothing but a hole");
    assert_eq!(errno(Map::open(&dir.maps(), Access::ReadOnly)), 117, "a directory");
    assert_eq!(
        errno(Map::open(&dir.path().join("slots"), Access::ReadOnly)),
        2,
        "not made for such maps"
    );
    sample(&dir, MapType::PercpuHash);
    assert_eq!(errno(Map::open(&dir.path().join("slots"), Access::ReadOnly)), 22, "another kind");
    let link = dir.maps().join("link");
    std::os::unix::fs::symlink(&path, &link).expect("links");
    assert_eq!(errno(Map::open(&link, Access::ReadOnly)), 40, "a symbolic link");
    // A later version says so before its checksum, which may be another one.
    let mut later = bytes.clone();
    let head = later.len() - 4096;
    later[head + 8] = VERSION as u8 + 1;
    std::fs::write(&bad, &later).expect("room");
    let e = Map::open(&bad, Access::ReadOnly).expect_err("a later version");
    assert!(
        e.to_string()
            .ends_with(&format!("has format version {}, this skep reads {VERSION}", VERSION + 1)),
        "{e}"
    );
}

/// A file says in which pid namespace it was made, or that this could not be told: then it is for
/// reading only, and the message says so.
#[test]
fn a_file_of_another_or_of_no_known_namespace_is_for_reading_only() {
    let dir = Dir::new();
    let path = { sample(&dir, MapType::Hash).file().path().to_owned() };
    let mut bytes = std::fs::read(&path).expect("readable");
    let head = bytes.len() - 4096;
    let made_in = u64::from_le_bytes(bytes[head + 48..][..8].try_into().expect("eight"));
    if made_in == 0 {
        return skep_testkit::skip("/proc");
    }
    let texts = [
        (0, "by a process that could not tell its pid namespace"),
        (made_in + 1, "in another pid namespace"),
    ];
    for (namespace, text) in texts {
        bytes[head + 48..][..8].copy_from_slice(&u64::to_le_bytes(namespace));
        bytes[head + 56..][..8].fill(0);
        let fnv = |h: u64, b: &u8| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3);
        let checksum = bytes[head..][..2048].iter().fold(0xcbf2_9ce4_8422_2325, fnv);
        bytes[head + 56..][..8].copy_from_slice(&checksum.to_le_bytes());
        std::fs::write(&path, &bytes).expect("room");
        assert_eq!(Map::open(&path, Access::ReadOnly).expect("reads").iter().count(), 15);
        let e = Map::open(&path, Access::ReadWrite).expect_err("its threads cannot be told");
        assert!(e.errno() == 18 && e.to_string().ends_with(&format!("it was made {text}")), "{e}");
    }
}

#[test]
fn garbage_in_shared_memory_harms_nobody() {
    let dir = Dir::new();
    let mut random = support::Random(11);
    for t in map_types() {
        for round in 0..support::rounds(8, 2000) {
            let map = sample(&dir, t);
            // Write as a foreign process would, through the file.
            let file =
                std::fs::OpenOptions::new().write(true).open(map.file().path()).expect("writable");
            let payload = map.file().payload().len().min(1 << 16);
            let fill = |random: &mut support::Random| match round % 3 {
                0 => random.next(),
                1 => u64::MAX,
                _ => random.below(64),
            };
            for _ in 0..1 + random.below(200) {
                let at = random.below(payload / 8) * 8;
                let word = fill(&mut random);
                std::os::unix::fs::FileExt::write_all_at(&file, &word.to_ne_bytes(), at)
                    .expect("room");
            }
            exercise(&map);
            if let Ok(reader) = Map::open(map.file().path(), Access::ReadOnly) {
                reader.iter().take(1000).for_each(drop);
            }
            let path = map.file().path().to_owned();
            drop((map, file));
            std::fs::remove_file(path).expect("there");
        }
    }
}

#[test]
fn a_directory_that_cannot_be_written_gives_a_clear_error() {
    let e = Map::create(
        std::path::Path::new("/proc/self/fd"),
        1,
        &MapDef::new(MapType::Array, 4, 4, 1),
    )
    .expect_err("no files here");
    assert!(e.to_string().starts_with("`/proc/self/fd"), "{e}");
    let e = Map::create(
        std::path::Path::new("/nowhere/maps"),
        1,
        &MapDef::new(MapType::Array, 4, 4, 1),
    )
    .expect_err("no such place");
    assert_eq!(
        (e.errno(), e.to_string()),
        (2, "`/nowhere/maps`: open failed: No such file or directory (os error 2)".into())
    );
}
