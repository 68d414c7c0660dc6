//! Any bytes over the file of a map, as other processes of the same user write it: in the elements, or in the
//! header with a checksum that fits. Whatever is done then comes back, and reaches nothing outside.
#![no_main]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use skep_isa::{MapFlags, MapType};
use skep_maps::{Access, Map, MapDef, Take};

/// The header's page is the last of the file; its checksum is over the first bytes of it.
const PAGE: u64 = 4096;
const HEADER: usize = 2048;
const CHECKSUM: usize = 56;
const END: usize = CHECKSUM + 8;
const EBUSY: i32 = 16;
/// More elements than any map here has room for.
const ENDLESS: usize = 100_000;

static MAPS: LazyLock<PathBuf> = LazyLock::new(|| {
    let dir = PathBuf::from(format!("/dev/shm/skep-fuzz-{}/maps", std::process::id()));
    std::fs::create_dir_all(&dir).expect("memory for a directory");
    dir
});

/// A small map of each type that has elements of its own, or a ring.
fn definitions() -> [MapDef; 15] {
    use MapType as T;
    let new = |map_type, key, value| MapDef::new(map_type, key, value, 20);
    [
        new(T::Hash, 4, 12),
        new(T::Array, 4, 12),
        new(T::PercpuHash, 4, 8),
        new(T::PercpuArray, 4, 8),
        new(T::LruHash, 4, 12),
        new(T::LruPercpuHash, 4, 8),
        new(T::LpmTrie, 8, 12).flags(MapFlags::NO_PREALLOC),
        new(T::QpTrie, 4, 12).flags(MapFlags::NO_PREALLOC),
        new(T::QpTrie, 24, 8).flags(MapFlags::NO_PREALLOC),
        new(T::Queue, 0, 4),
        new(T::Stack, 0, 4),
        new(T::BloomFilter, 0, 4),
        new(T::StackTrace, 4, 24),
        MapDef::new(T::Ringbuf, 0, 0, 4096),
        MapDef::new(T::UserRingbuf, 0, 0, 4096),
    ]
}

fn key(map: &Map, n: u32) -> Vec<u8> {
    let mut key: Vec<u8> = match map.def().map_type {
        MapType::LpmTrie => {
            [32 - n % 3, (n * 7).to_be()].iter().flat_map(|w| w.to_ne_bytes()).collect()
        }
        _ => n.to_be_bytes().repeat(6),
    };
    key.truncate(map.def().key_size as usize);
    key
}

fn fill(map: &Map) {
    let value = vec![5; map.user_value_size()];
    for n in 0..12 {
        let _ = map.update(&key(map, n), &value, 0);
        let _ = map.user_ringbuf_output(&[7; 40]);
        // SAFETY: there are as many bytes, and as many words.
        unsafe {
            let _ = map.ringbuf_output([7; 40].as_ptr(), 40, 0);
            let _ = map.stack_id([u64::from(n) + 1, 7, 9].as_ptr(), 3, 1 << 10);
        }
    }
    for n in 0..4 {
        let _ = map.delete(&key(map, n));
    }
}

/// Writes over a map: two bytes say where, one how much, and the highest bit of the place that it is the header.
fn damage(file: &File, mut data: &[u8]) {
    let size = file.metadata().expect("it is open").len();
    let payload = size.saturating_sub(PAGE);
    let mut header = [0; HEADER];
    file.read_exact_at(&mut header, payload).expect("a map has a header");
    let before = header;
    while let Some(([low, high, len], rest)) = data.split_first_chunk() {
        let (bytes, rest) = rest.split_at(usize::from(*len % 32).min(rest.len()));
        let at = usize::from(u16::from_le_bytes([*low, *high]));
        if at & 0x8000 != 0 {
            let at = (at & 0x7fff) % HEADER;
            let end = (at + bytes.len()).min(HEADER);
            header[at..end].copy_from_slice(&bytes[..end - at]);
        } else {
            let at = (at as u64).min(payload.saturating_sub(bytes.len() as u64));
            file.write_all_at(bytes, at).expect("memory");
        }
        data = rest;
    }
    assert_eq!(checksum(&before).to_le_bytes(), before[CHECKSUM..][..8], "it is another one now");
    if header != before {
        let checksum = checksum(&header).to_le_bytes();
        header[CHECKSUM..][..8].copy_from_slice(&checksum);
        file.write_all_at(&header, payload).expect("memory");
    }
}

/// The checksum of a header, which counts as 0 in it.
fn checksum(header: &[u8; HEADER]) -> u64 {
    let bytes = header.iter().enumerate().map(|(at, byte)| match at {
        CHECKSUM..END => 0,
        _ => *byte,
    });
    bytes.fold(0xcbf2_9ce4_8422_2325, |sum, b| (sum ^ u64::from(b)).wrapping_mul(0x100_0000_01b3))
}

/// Reads and changes elements.
fn exercise(map: &Map) {
    if map.user_value_size() > 1 << 20 || map.def().key_size > 1 << 20 {
        return;
    }
    assert!(map.iter().take(ENDLESS).count() < ENDLESS);
    let value = vec![1; map.user_value_size()];
    let mut out = value.clone();
    for n in 0..16 {
        let key = key(map, n);
        let _ = (map.lookup(&key), map.next_key(Some(&key)));
        // A writer has tried 100,000 times, which is what damage looks like to it.
        if map.update(&key, &value, 0).is_err_and(|e| e.errno() == EBUSY) {
            break;
        }
        let _ = (map.delete(&key), map.update(&key, &value, 1), map.lookup_into(&key, &mut out, 0));
        if n % 3 == 0 {
            let _ = map.lookup_and_delete(&key, &mut out, 0);
        }
    }
    let _ = map.user_ringbuf_output(&[7; 100]);
    for size in [8, 100, 2000, 5000] {
        let record = map.ringbuf_reserve(size, 0);
        if !record.is_null() {
            // SAFETY: it was just reserved, and is not used after.
            unsafe { Map::ringbuf_submit(record, 0) };
        }
    }
    if let Ok(mut consumer) = map.consumer() {
        for _ in 0..200 {
            let _ = consumer.next_record().map(|r| r.map(<[u8]>::len));
        }
    }
    if let Ok(mut drain) = map.user_ringbuf_drain() {
        for _ in 0..200 {
            let _ = drain.next_sample();
        }
    }
    let mut walk = map.walk().taking(Take::Fast);
    let mut rows = vec![0; 7 * walk.element_size()];
    let mut seen = 0;
    while let Ok(n @ 1..) = walk.rows(&mut rows) {
        seen += n;
        assert!(seen < ENDLESS);
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((how, data)) = data.split_first() else { return };
    let all = definitions();
    let def = &all[usize::from(how & 0x7f) % all.len()];
    let path = MAPS.join("1");
    let _ = std::fs::remove_file(&path);
    let map = Map::create(&MAPS, 1, def).expect("a good definition");
    fill(&map);
    let file = File::options().read(true).write(true).open(&path).expect("it is ours");
    damage(&file, data);
    // Who has it open knows its shape from before.
    if how & 0x80 != 0 {
        exercise(&map);
    }
    if let Ok(map) = Map::open(&path, Access::ReadWrite) {
        exercise(&map);
    }
    if let Ok(map) = Map::open(&path, Access::ReadOnly) {
        assert!(map.iter().take(ENDLESS).count() < ENDLESS);
    }
});
