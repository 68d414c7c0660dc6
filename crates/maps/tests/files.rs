//! Object files: locks, names, and what happens to damaged ones.
//!
//! No test here forks: a child would keep its parent's locks.

mod support;

use skep_isa::MapType;
use skep_maps::{Access, Map, MapDef};
use support::Dir;

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

const TYPES: [MapType; 5] = [MapType::Array, MapType::PercpuArray, MapType::Hash, MapType::PercpuHash, MapType::Ringbuf];

/// A map of a type with something in it.
fn sample(dir: &Dir, t: MapType) -> Map {
    let def = match t {
        MapType::Ringbuf => MapDef::new(t, 0, 0, 4096),
        _ => MapDef::new(t, 4, 12, 20),
    };
    let map = dir.make(&def.named("sample"));
    if t == MapType::Ringbuf {
        for i in 0..9u8 {
            // SAFETY: 40 bytes are readable.
            assert_eq!(unsafe { map.ringbuf_output([i; 40].as_ptr(), 40, 0) }, 0);
        }
    } else {
        let value = vec![5; map.user_value_size()];
        for i in 0..15u32 {
            map.update(&i.to_ne_bytes(), &value, 0).expect("room");
        }
    }
    map
}

/// Does everything a user and a program can do, whatever the answers are; it must only come back.
fn exercise(map: &Map) {
    let Some(n) = Some(map.def().key_size as usize) else { return };
    let value = vec![1; map.user_value_size()];
    let mut elements = 0;
    for e in map.iter().take(1000) {
        elements += usize::from(e.is_ok());
    }
    assert!(elements <= 100, "no type makes more out of twenty");
    for i in 0..40u32 {
        let key = i.to_ne_bytes();
        let key = &key[..n];
        let _ = (map.lookup(key), map.update(key, &value, 0), map.next_key(Some(key)), map.delete(key), map.update(key, &value, 1));
        if n != 0 {
            let room = [0u8; 16];
            // SAFETY: key and value have the map's sizes.
            unsafe {
                let p = map.prog_lookup(key.as_ptr());
                if !p.is_null() {
                    p.write_volatile(3);
                }
                let _ = (map.prog_update(key.as_ptr(), room.as_ptr(), 0), map.prog_delete(key.as_ptr()));
            }
        }
    }
    let _ = (map.next_key(None), map.freeze());
    for size in [0u64, 8, 100, 2000, 5000] {
        let p = map.ringbuf_reserve(size, 0);
        if !p.is_null() {
            Map::ringbuf_submit(p, 0);
        }
    }
    if let Ok(mut consumer) = map.consumer() {
        for _ in 0..200 {
            let _ = consumer.next_record().map(|r| r.map(<[u8]>::len));
        }
    }
}

#[test]
fn every_changed_byte_of_a_header_is_noticed() {
    let dir = Dir::new();
    for t in TYPES {
        let path = { sample(&dir, t).file().path().to_owned() };
        let bytes = std::fs::read(&path).expect("readable");
        let head = bytes.len() - 4096;
        let bad = dir.maps().join("bad");
        let mut refused = 0;
        for at in (0..2048).step_by(if t == MapType::Array { 1 } else { 7 }) {
            for bit in [1, 0x80] {
                let file = std::fs::OpenOptions::new().create(true).truncate(false).write(true).open(&bad).expect("writable");
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
        assert!(refused > 500);
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
    assert_eq!(errno(Map::open(&dir.path().join("slots"), Access::ReadOnly)), 2, "not made for such maps");
    sample(&dir, MapType::PercpuHash);
    assert_eq!(errno(Map::open(&dir.path().join("slots"), Access::ReadOnly)), 22, "another kind");
    let link = dir.maps().join("link");
    std::os::unix::fs::symlink(&path, &link).expect("links");
    assert_eq!(errno(Map::open(&link, Access::ReadOnly)), 40, "a symbolic link");
    // A later version says so before its checksum, which may be another one.
    let mut later = bytes.clone();
    let head = later.len() - 4096;
    later[head + 8] = 2;
    std::fs::write(&bad, &later).expect("room");
    let e = Map::open(&bad, Access::ReadOnly).expect_err("a later version");
    assert!(e.to_string().ends_with("has format version 2, this skep reads 1"), "{e}");
}

#[test]
fn garbage_in_shared_memory_harms_nobody() {
    let dir = Dir::new();
    let mut random = support::Random(11);
    for t in TYPES {
        for round in 0..support::rounds(60, 2000) {
            let map = sample(&dir, t);
            // Write as a foreign process would, through the file.
            let file = std::fs::OpenOptions::new().write(true).open(map.file().path()).expect("writable");
            let payload = map.file().payload().len().min(1 << 16);
            let fill = |random: &mut support::Random| match round % 3 {
                0 => random.next(),
                1 => u64::MAX,
                _ => random.below(64),
            };
            for _ in 0..1 + random.below(200) {
                let at = random.below(payload / 8) * 8;
                let word = fill(&mut random);
                std::os::unix::fs::FileExt::write_all_at(&file, &word.to_ne_bytes(), at).expect("room");
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
    let e = Map::create(std::path::Path::new("/proc/self/fd"), 1, &MapDef::new(MapType::Array, 4, 4, 1)).expect_err("no files here");
    assert!(e.to_string().starts_with("`/proc/self/fd"), "{e}");
    let e = Map::create(std::path::Path::new("/nowhere/maps"), 1, &MapDef::new(MapType::Array, 4, 4, 1)).expect_err("no such place");
    assert_eq!((e.errno(), e.to_string()), (2, "`/nowhere/maps`: open failed: No such file or directory (os error 2)".into()));
}
