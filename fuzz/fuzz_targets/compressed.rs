//! Any bytes as what is compressed in files: records of a `perf.data`, a section of debug information by
//! zlib or zstd, symbols by xz. The first byte says which. Run with `-malloc_limit_mb=256`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use skep_proc::elf::Elf;
use skep_proc::maps::PerfData;
use skep_proc::symbolize::{SymbolFile, Want};

fuzz_target!(|data: &[u8]| {
    let Some((kind, data)) = data.split_first() else { return };
    match kind % 4 {
        0 => {
            let mut file = [&b"PERFILE2"[..], &16_u64.to_le_bytes()].concat();
            for piece in data.chunks(60_000) {
                file.extend(81_u32.to_le_bytes());
                file.extend([0, 0]);
                file.extend((piece.len() as u16 + 8).to_le_bytes());
                file.extend(piece);
            }
            if let Ok(recording) = PerfData::from_bytes(file) {
                assert!(recording.processes().count() < 1 << 20);
            }
        }
        1 => find(elf(b".gnu_debugdata\0", 0, data)),
        kind => {
            let Some((size, data)) = data.split_first_chunk::<4>() else { return };
            let head = [u64::from(kind - 1), u64::from(u32::from_le_bytes(*size)), 1];
            let head: Vec<u8> = head.iter().flat_map(|word| word.to_le_bytes()).collect();
            find(elf(b".debug_info\0", 0x800, &[&head[..], data].concat()));
        }
    }
});

fn find(bytes: Vec<u8>) {
    let elf = Elf::from_bytes(bytes).expect("its headers are right");
    let nowhere = std::path::Path::new("/nonexistent");
    let mut file = SymbolFile::new(elf, nowhere, nowhere).expect("it is in memory");
    let answers = file.find(&[0, 0x1000], Want { lines: true, inlined: true });
    assert!(answers.get(0).is_some());
    let _ = (file.names_error(), file.lines_error());
}

/// A file with one section.
fn elf(name: &[u8], flags: u64, data: &[u8]) -> Vec<u8> {
    let names = 64 + data.len() as u64;
    let table = names + 1 + name.len() as u64;
    let mut out = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\x3e\0\x01\0\0\0".to_vec();
    for word in [0, 0, table] {
        out.extend(word.to_le_bytes());
    }
    for half in [0_u16, 0, 64, 56, 0, 64, 3, 2] {
        out.extend(half.to_le_bytes());
    }
    out.extend(data);
    out.push(0);
    out.extend(name);
    let strings = 1 + name.len() as u64;
    for [name, kind, flags, offset, size] in
        [[0; 5], [1, 1, flags, 64, data.len() as u64], [0, 3, 0, names, strings]]
    {
        for word in [name | kind << 32, flags, 0, offset, size, 0, 1, 0] {
            out.extend(word.to_le_bytes());
        }
    }
    out
}
