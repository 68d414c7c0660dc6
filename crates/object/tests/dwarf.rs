//! Types out of debug information: compared with what the program that has them says of its own
//! structures.
#![cfg(feature = "dwarf")]

use skep_object::btf::{Kind, TypeId};
use skep_object::{Btf, CoreTarget, DwarfError, DwarfFunctions};
use skep_testkit::{TempDir, memory::peak, skip, skip::has_command};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::Command;

fn source(name: &str) -> String {
    format!("{}/tests/data/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn build(dir: &TempDir, compiler: &str, flags: &[&str], name: &str) -> Option<PathBuf> {
    let out = dir.path().join("program");
    let built = Command::new(compiler)
        .args(flags)
        .arg("-w")
        .arg(source(name))
        .arg("-o")
        .arg(&out)
        .output()
        .expect("the compiler runs");
    // Not every build of a compiler knows every kind of compression.
    built.status.success().then_some(out)
}

/// Finds a member: its type, its first bit, its width when it is a bit field.
fn find(btf: &Btf, id: TypeId, name: &str) -> Option<(TypeId, u64, u8)> {
    let (Kind::Struct(c) | Kind::Union(c)) = &btf.resolve(id).ok()?.1.kind else { return None };
    c.members.iter().find_map(|m| match btf.string(m.name_off) {
        n if n == name => Some((m.type_id, u64::from(m.bit_offset), m.bitfield)),
        "" => find(btf, m.type_id, name)
            .map(|(id, at, bits)| (id, at + u64::from(m.bit_offset), bits)),
        _ => None,
    })
}

/// Follows `a.b[2]`.
fn walk(btf: &Btf, mut id: TypeId, path: &str) -> Option<(TypeId, u64, u8)> {
    let (mut at, mut bits) = (0, 0);
    for step in path.replace('[', ".[").split('.') {
        if let Some(index) = step.strip_prefix('[').and_then(|s| s.strip_suffix(']')) {
            let Kind::Array(a) = &btf.resolve(id).ok()?.1.kind else { return None };
            at += btf.size_of(a.elem).ok()? * 8 * index.parse::<u64>().ok()?;
            id = a.elem;
        } else {
            let (next, offset, width) = find(btf, id, step)?;
            (id, at, bits) = (next, at + offset, width);
        }
    }
    Some((id, at, bits))
}

/// Compares every line the program prints; returns how many there were.
fn compare(program: &Path, what: &str) -> usize {
    let btf = Btf::from_dwarf_at(program).unwrap_or_else(|e| panic!("{what}: {e}"));
    let said = Command::new(program).output().expect("it runs").stdout;
    let said = String::from_utf8(said).expect("text");
    for line in said.lines() {
        let line = line.trim_start_matches("struct ").trim_start_matches("union ");
        let words: Vec<&str> = line.split(' ').collect();
        let (ty, path, numbers) = (words[0], words[1], &words[2..]);
        let id = btf
            .find(ty, |k| matches!(k, Kind::Struct(_) | Kind::Union(_)))
            .unwrap_or_else(|| panic!("{what}: no `{ty}`"));
        let twin = btf
            .types()
            .filter(|(other, t)| {
                btf.name(*other) == ty && matches!(t.kind, Kind::Struct(_) | Kind::Union(_))
            })
            .count();
        assert_eq!(twin, 1, "{what}: `{ty}` is there more than once");
        let ours = match (path, numbers) {
            ("-", _) => format!("0 {}", btf.size_of(id).expect("it has a size")),
            (_, ["bit", ..]) => {
                let (_, at, bits) =
                    walk(&btf, id, path).unwrap_or_else(|| panic!("{what}: no `{ty}.{path}`"));
                // Where a field fills its type, compilers may leave the width out.
                format!("bit {at} {}", if bits == 0 { 32 } else { bits })
            }
            _ => {
                let (member, at, _) =
                    walk(&btf, id, path).unwrap_or_else(|| panic!("{what}: no `{ty}.{path}`"));
                format!(
                    "{} {}",
                    at / 8,
                    btf.size_of(member).unwrap_or_else(|e| panic!("{what}: {ty}.{path}: {e}"))
                )
            }
        };
        assert_eq!(ours, numbers.join(" "), "{what}: {ty} {path}");
    }
    for (name, want) in [
        ("RED", 0),
        ("GREEN", 5),
        ("BLUE", 0x7fff_ffff),
        ("COLD", -3),
        ("WARM", 3),
        ("SMALL", 1),
        ("LARGE", 0x1234_5678_9abc),
    ] {
        let found = btf.types().find_map(|(_, t)| match &t.kind {
            Kind::Enum(e) | Kind::Enum64(e) => {
                e.values.iter().find(|v| btf.string(v.name_off) == name)
            }
            _ => None,
        });
        assert_eq!(found.map(|v| v.value), Some(want), "{what}: {name}");
    }
    said.lines().count()
}

#[test]
fn layouts_are_what_the_program_itself_says() {
    let stress = std::env::var_os("SKEP_STRESS").is_some();
    let all: &[(&str, &[&[&str]], &str)] = &[
        (
            "gcc",
            &[
                &["-gdwarf-5"],
                &["-gdwarf-4", "-O2"],
                &["-gdwarf-2"],
                &["-g", "-fdebug-types-section"],
                &["-g", "-gz"],
            ],
            "layout.c",
        ),
        (
            "g++",
            &[&["-gdwarf-5", "-O2"], &["-gdwarf-4", "-fdebug-types-section"], &["-gdwarf-3"]],
            "layout.cc",
        ),
        ("clang-19", &[&["-gdwarf-5"], &["-gdwarf-4", "-O2"], &["-g", "-gz=zstd"]], "layout.c"),
        ("clang++-19", &[&["-gdwarf-5"], &["-gdwarf-4", "-O2"]], "layout.cc"),
    ];
    for (compiler, builds, file) in all {
        if !has_command(compiler) {
            skip(compiler);
            continue;
        }
        for flags in builds.iter().take(if stress { usize::MAX } else { 3 }) {
            let dir = TempDir::new();
            let Some(program) = build(&dir, compiler, flags, file) else { continue };
            let lines = compare(&program, &format!("{compiler} {flags:?}"));
            assert!(lines > 50, "{compiler} {flags:?}: {lines} lines");
        }
    }
}

#[test]
fn layouts_of_what_was_split_off_are_the_same() {
    for (compiler, file) in [("gcc", "layout.c"), ("g++", "layout.cc"), ("clang-19", "layout.c")] {
        if !has_command(compiler) {
            skip(compiler);
            continue;
        }
        for flags in [&["-gdwarf-5"][..], &["-gdwarf-4", "-O2", "-fdebug-types-section"]] {
            let dir = TempDir::new();
            let flags = [flags, &["-gsplit-dwarf"]].concat();
            let program = build(&dir, compiler, &flags, file).expect("it builds");
            let lines = compare(&program, &format!("{compiler} {flags:?}"));
            assert!(lines > 50, "{compiler} {flags:?}: {lines} lines");
            let missing = Btf::from_dwarf(&std::fs::read(&program).expect("it was just built"));
            let e = missing.expect_err("only the program was read").to_string();
            assert!(e.contains("split DWARF") && e.contains(".dwo"), "{e}");
        }
    }
}

#[test]
fn a_program_without_types_says_where_they_are() {
    if !has_command("gcc") {
        return skip("gcc");
    }
    let dir = TempDir::new();
    let error = |path: &Path| {
        Btf::from_dwarf(&std::fs::read(path).expect("it was just built")).map(|b| b.len())
    };
    let program = build(&dir, "gcc", &["-s"], "layout.c").expect("it builds");
    assert!(
        matches!(error(&program), Err(DwarfError::Stripped { file: None, .. })),
        "{:?}",
        error(&program)
    );
    let program = build(&dir, "gcc", &["-g", "-gsplit-dwarf"], "layout.c").expect("it builds");
    let e = error(&program).expect_err("the types are in another file").to_string();
    assert!(e.contains("split DWARF") && e.contains(".dwo"), "{e}");
    if has_command("objcopy") {
        let program = build(&dir, "gcc", &["-g", "-Wl,--build-id=0x0123456789"], "layout.c")
            .expect("it builds");
        let debug = dir.path().join("program.debug");
        let objcopy = |args: &[&str]| {
            assert!(
                Command::new("objcopy")
                    .args(args)
                    .arg(&program)
                    .status()
                    .is_ok_and(|s| s.success())
            )
        };
        std::fs::copy(&program, &debug).expect("there is room");
        objcopy(&["--strip-debug", &format!("--add-gnu-debuglink={}", debug.display())]);
        let want = DwarfError::Stripped {
            file: Some("program.debug".to_owned()),
            build_id: vec![1, 0x23, 0x45, 0x67, 0x89],
        };
        assert_eq!(error(&program), Err(want.clone()));
        assert_eq!(want.to_string(), "no debug information (DWARF); it is in `program.debug`");
    }
    assert!(matches!(Btf::from_dwarf(b"#!/bin/sh\n"), Err(DwarfError::Elf { .. })));
}

#[test]
fn a_rust_program_gives_types_too() {
    let own = std::fs::read(std::env::current_exe().expect("it runs")).expect("it is a file");
    match CoreTarget::from_dwarf(&own) {
        Ok(target) => assert!(target.btf().len() > 1),
        Err(DwarfError::Stripped { .. } | DwarfError::LinesOnly) => {}
        Err(e) => panic!("{e}"),
    }
}

/// A section says how large it becomes, and a few bytes of zstd may become any number.
#[test]
fn a_section_does_not_become_larger_than_it_claims() {
    if !has_command("gcc") {
        return skip("gcc");
    }
    use object::{Object as _, ObjectSection as _};
    let dir = TempDir::new();
    let program = build(&dir, "gcc", &["-g"], "layout.c").expect("it builds");
    let bytes = std::fs::read(program).expect("it was just built");
    let file = object::File::parse(&*bytes).expect("an ELF file");
    let section = file.section_by_name(".debug_info").expect("there is one");
    let (index, plain) = (section.index().0, section.data().expect("whole").to_vec());
    let headers = u64::from_le_bytes(bytes[40..48].try_into().expect("eight"));
    let with = |claimed: usize, packed: &[u8]| {
        let header = [2, claimed as u64, 1].map(u64::to_le_bytes).concat();
        let mut changed = bytes.clone();
        let words = [changed.len(), header.len() + packed.len()].map(|n| (n as u64).to_le_bytes());
        changed.extend([&header, packed].concat());
        let at = headers as usize + 64 * index;
        changed[at + 8..][..8].copy_from_slice(&0x800u64.to_le_bytes());
        changed[at + 24..][..16].copy_from_slice(&words.concat());
        changed
    };
    // A frame with a window of a megabyte, and blocks: whether it is the last one, its kind, its size.
    let block = |last: u32, kind: u32, size: usize| {
        (last | kind << 1 | (size as u32) << 3).to_le_bytes()[..3].to_vec()
    };
    let head = [0x28, 0xb5, 0x2f, 0xfd, 0, 0x50];
    let raw = [&head, &*block(1, 0, plain.len()), &plain].concat();
    let want = Btf::from_dwarf(&bytes).expect("debug information").len();
    let two = |at: usize| {
        let (first, second) = plain.split_at(at);
        let frame = |b: &[u8]| [&head, &*block(1, 0, b.len()), b].concat();
        [frame(first), frame(second)].concat()
    };
    for packed in [raw.clone(), two(10)] {
        let types = Btf::from_dwarf(&with(plain.len(), &packed));
        assert_eq!(types.map(|types| types.len()), Ok(want));
    }
    let same = [&*block(0, 1, 128 << 10), &[7]].concat().repeat(8000);
    let bomb = [&head, &*same, &block(1, 0, 0)].concat();
    // Repetitions that may reach back two gigabytes.
    let wide = [&[0x28, 0xb5, 0x2f, 0xfd, 0, 0xa8][..], &same, &block(1, 0, 0)].concat();
    // A block of 60,000 sequences, each of which repeats a byte 131,074 times: a block becomes 128 KiB.
    let count = 60_000_usize;
    let literals = [&((count as u32) << 4 | 13).to_le_bytes()[..3], &[7]].concat();
    let number = [&[255][..], &((count - 0x7f00) as u16).to_le_bytes()].concat();
    let sequences =
        [&*literals, &number, &[0x54, 1, 0, 52], &[255; 2].repeat(count), &[1]].concat();
    let long = [&head[..], &block(1, 2, sequences.len()), &sequences].concat();
    let before = peak();
    for (claimed, packed) in [
        (1 << 20, &bomb),
        (1 << 20, &wide),
        (1 << 20, &long),
        (plain.len() - 1, &raw),
        (plain.len() + 1, &raw),
    ] {
        let refused = Btf::from_dwarf(&with(claimed, packed)).expect_err("another size");
        let want = "section `.debug_info` is damaged, or not of the size that it claims";
        assert!(peak() - before < 512 << 20);
        assert!(refused.to_string().ends_with(want), "{refused}");
    }
}

#[test]
fn damaged_debug_information_gives_errors_not_panics() {
    if !has_command("gcc") {
        return skip("gcc");
    }
    let rounds = if std::env::var_os("SKEP_STRESS").is_some() { 20_000 } else { 150 };
    let dir = TempDir::new();
    let program = build(&dir, "gcc", &["-g"], "layout.c").expect("it builds");
    let bytes = std::fs::read(program).expect("it was just built");
    let hot: Vec<(u64, u64)> = {
        use object::{Object as _, ObjectSection as _};
        let file = object::File::parse(&*bytes).expect("an ELF file");
        file.sections()
            .filter(|s| s.name().is_ok_and(|n| n.starts_with(".debug_")))
            .filter_map(|s| s.file_range())
            .collect()
    };
    let addresses: Vec<u64> = {
        use object::{Object as _, ObjectSymbol as _};
        let file = object::File::parse(&*bytes).expect("an ELF file");
        let mut all: Vec<u64> = file
            .symbols()
            .filter(|s| s.kind() == object::SymbolKind::Text)
            .map(|s| s.address())
            .collect();
        all.sort_unstable();
        all
    };
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = |n: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % n.max(1)
    };
    for _ in 0..rounds {
        let mut mutant = bytes.clone();
        for _ in 0..1 + random(4) {
            let (at, len) = hot[random(hot.len() as u64) as usize];
            let at = (at + random(len)) as usize;
            mutant[at] =
                if random(2) == 0 { random(256) as u8 } else { mutant[at] ^ 1 << random(8) };
        }
        let _ = Btf::from_dwarf(&mutant);
        if let Ok(functions) = DwarfFunctions::read(std::io::Cursor::new(&mutant), |_| None) {
            let _ = functions.at(&addresses, |_, p| drop(p));
            let _ = functions.named(&HashSet::from(["main", "fill"]), |_, p| drop(p));
        }
    }
}
