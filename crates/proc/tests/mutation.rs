//! Damaged ELF files give errors or odd answers, never a panic, an endless loop or an exhausted
//! memory.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use skep_proc::elf::Elf;
use skep_proc::maps::{self, Identity, Snapshot};

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n.max(1)
    }
}

fn rounds(n: usize) -> usize {
    if std::env::var_os("SKEP_STRESS").is_some() { n * 100 } else { n }
}

/// Asks everything there is to ask.
fn use_all(bytes: Vec<u8>) {
    let Ok(elf) = Elf::from_bytes(bytes) else { return };
    if let Ok(functions) = elf.functions() {
        let mut last = None;
        for f in functions.iter() {
            assert!(last < Some(f.vaddr), "sorted, one entry an address");
            last = Some(f.vaddr);
            assert!(f.symbols().all(|s| !s.name.is_empty()));
            assert_eq!(f.symbols().next().unwrap().name, f.name);
            assert!(functions.at(f.vaddr).is_some());
        }
        for at in [0, 1, 0x1000, u64::MAX] {
            let _ = functions.covering(at);
        }
    }
    for fde in elf.fdes().unwrap_or_default() {
        assert!(fde.start < fde.end);
    }
    let _ = (
        elf.patchable_entries(),
        elf.mcount_locations(),
        elf.xray_sleds(),
        elf.build_id(),
        elf.span(),
        elf.entry(),
    );
    let _ = elf.entered_at(&[0, 1, 0x1000, 0x1139, u64::MAX]);
    let _ = elf.read_vaddr(u64::MAX, 2);
    let _ = elf.debug_file("/no/such/dir/file".as_ref(), "/".as_ref());
    for s in elf.sections() {
        let _ = elf.section_data(s);
    }
}

fn samples() -> Vec<Vec<u8>> {
    let name = format!("skep-mutation-{}-{:?}", std::process::id(), std::thread::current().id());
    let dir = std::env::temp_dir().join(name.replace(['(', ')'], ""));
    fs::create_dir_all(&dir).unwrap();
    let source = dir.join("a.c");
    fs::write(
        &source,
        "#include <stdio.h>\nint f(int x) { return printf(\"%d\", x); }\nint main(int c, char **v) { (void)v; return f(c); }",
    )
    .unwrap();
    let mut out = Vec::new();
    for flags in [
        &["-O2", "-fpatchable-function-entry=5"][..],
        &["-O2", "-g", "-no-pie"],
        &["-O2", "-s"],
        &["-O2", "-shared", "-fPIC"],
        &["-c"],
    ] {
        let file = dir.join("a");
        assert!(
            Command::new("cc")
                .args(flags)
                .arg("-o")
                .arg(&file)
                .arg(&source)
                .status()
                .unwrap()
                .success()
        );
        out.push(fs::read(&file).unwrap());
    }
    let _ = fs::remove_dir_all(&dir);
    out
}

#[test]
fn damaged_headers_and_tables() {
    let samples = samples();
    for s in &samples {
        use_all(s.clone());
    }
    let mut random = Random(7);
    let odd = [
        0u64,
        1,
        7,
        0x7f,
        0xff,
        0xffff,
        0x7fff_ffff,
        0xffff_ffff,
        1 << 40,
        i64::MAX as u64,
        u64::MAX,
        u64::MAX - 7,
    ];
    for _ in 0..rounds(4000) {
        let mut bytes = samples[random.below(samples.len())].clone();
        let shoff = u64::from_le_bytes(bytes[40..48].try_into().unwrap()) as usize;
        for _ in 0..1 + random.below(4) {
            let len = bytes.len();
            // Headers matter most, then everything else.
            let at = match random.below(4) {
                0 => random.below(64),
                1 => 64 + random.below(56 * 12),
                2 => shoff + random.below(len.saturating_sub(shoff)),
                _ => random.below(len),
            };
            let width = [1, 2, 4, 8][random.below(4)];
            let value = if random.below(2) == 0 { odd[random.below(odd.len())] } else { random.0 };
            if let Some(to) = bytes.get_mut(at..at + width) {
                to.copy_from_slice(&value.to_le_bytes()[..width]);
            }
        }
        if random.below(8) == 0 {
            let keep = random.below(bytes.len());
            bytes.truncate(keep);
        }
        use_all(bytes);
    }
}

#[test]
fn damaged_unwind_tables() {
    let sample = &samples()[0];
    let elf = Elf::from_bytes(sample.clone()).unwrap();
    let section = elf.section(".eh_frame").unwrap();
    let range = section.offset as usize..(section.offset + section.size) as usize;
    let mut random = Random(11);
    for _ in 0..rounds(6000) {
        let mut bytes = sample.clone();
        for _ in 0..1 + random.below(3) {
            let at = range.start + random.below(range.len());
            bytes[at] = random.below(256) as u8;
        }
        let elf = Elf::from_bytes(bytes).unwrap();
        let _ = (elf.fdes(), elf.functions());
    }
}

#[test]
fn cut_files() {
    for s in samples() {
        for len in (0..s.len()).step_by(1 + s.len() / 400) {
            use_all(s[..len].to_vec());
        }
    }
}

#[test]
fn damaged_mappings() {
    let text = fs::read("/proc/self/maps").unwrap();
    let mut vmas = maps::parse(&text).unwrap();
    vmas[0].build_id = Some(vec![1, 2, 3]);
    let saved = Snapshot::new(Identity::of(std::process::id()), vmas).unwrap().to_bytes();
    let mut random = Random(13);
    for _ in 0..rounds(3000) {
        for (seed, parse) in [
            (&text, (|b| drop(maps::parse(b))) as fn(&[u8])),
            (&saved, |b| drop(Snapshot::from_bytes(b))),
        ] {
            let mut bytes = seed.clone();
            for _ in 0..1 + random.below(3) {
                let at = random.below(bytes.len());
                match random.below(3) {
                    0 => bytes[at] = random.below(256) as u8,
                    1 => drop(bytes.remove(at)),
                    _ => bytes.insert(at, b"0f- :\n"[random.below(6)]),
                }
            }
            parse(&bytes);
        }
    }
}

/// The system's own libraries, whole: nothing in them is odd enough to fail.
#[test]
fn system_libraries_read_well() {
    let mut read = 0;
    for dir in ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"] {
        let Ok(entries) = fs::read_dir(dir) else { continue };
        let mut files: Vec<PathBuf> = entries
            .flatten()
            .map(|e| e.path())
            .filter(|p| p.is_file() && p.to_string_lossy().contains(".so"))
            .collect();
        files.sort();
        for path in files.into_iter().take(40) {
            let Ok(elf) = Elf::open(&path) else { continue };
            elf.functions().unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            elf.fdes().unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            read += 1;
        }
    }
    assert!(read > 0);
}
