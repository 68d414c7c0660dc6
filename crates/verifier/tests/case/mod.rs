//! Reads `tests/data/*.cases`; the format is in `tests/data/README.md`.

use skep_isa::{AttachType, Insn, KeyShape, MapFlags, MapType, ProgramType, op, prog, text};
use skep_object::btf::Kind;
use skep_object::{Btf, Linked, LinkedMap, MapSpec, Subprog};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

pub struct Case {
    pub name: String,
    pub prog: Linked,
    #[allow(dead_code, reason = "read by one of the tests that share this file")]
    /// `None`: accept. Else instruction and beginning of the message.
    pub refuse: Option<(Option<usize>, String)>,
    /// Judged with `Options::strict`.
    #[allow(dead_code, reason = "read by one of the tests that share this file")]
    pub strict: bool,
    /// Judged with `Options::offered_only`.
    #[allow(dead_code, reason = "read by one of the tests that share this file")]
    pub offered: bool,
    /// Judged with the types of `target.bpf.o` as those of the kernel.
    #[allow(dead_code, reason = "read by one of the tests that share this file")]
    pub target: Option<Arc<Btf>>,
    /// What Linux says instead, and why.
    #[allow(dead_code, reason = "read by one of the tests that share this file")]
    pub kernel: Option<String>,
}

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

/// Types of one of the objects here.
pub struct Types {
    pub btf: Arc<Btf>,
    /// The section as it is.
    #[allow(dead_code, reason = "read by one of the tests that share this file")]
    pub bytes: Vec<u8>,
}

fn read_types(file: &str) -> Types {
    let object = std::fs::read(data().join(file)).expect("test data");
    let bytes = section(&object, ".BTF").expect("an object with types").to_vec();
    Types { btf: Arc::new(Btf::parse(&bytes).expect("good types")), bytes }
}

/// The contents of a section of a 64-bit ELF file.
fn section<'a>(elf: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let number = |at: usize, size: usize| {
        elf.get(at..at + size).map(|b| b.iter().rev().fold(0, |n, b| n << 8 | usize::from(*b)))
    };
    let (table, each, names) = (number(0x28, 8)?, number(0x3a, 2)?, number(0x3e, 2)?);
    let names = number(table + names * each + 0x18, 8)?;
    (0..number(0x3c, 2)?).map(|n| table + n * each).find_map(|header| {
        let of = elf.get(names + number(header, 4)?..)?;
        let (start, size) = (number(header + 0x18, 8)?, number(header + 0x20, 8)?);
        if of.split(|b| *b == 0).next() == Some(name.as_bytes()) {
            elf.get(start..start + size)
        } else {
            None
        }
    })
}

/// The types that programs of cases have: `types.bpf.o`.
pub fn types() -> &'static Types {
    static TYPES: OnceLock<Types> = OnceLock::new();
    TYPES.get_or_init(|| read_types("types.bpf.o"))
}

/// The types that stand for the kernel's: `target.bpf.o`.
#[allow(dead_code, reason = "read by one of the tests that share this file")]
pub fn target_types() -> &'static Types {
    static TARGET: OnceLock<Types> = OnceLock::new();
    TARGET.get_or_init(|| read_types("target.bpf.o"))
}

pub fn all() -> Vec<Case> {
    let dir = data();
    let mut files: Vec<_> =
        std::fs::read_dir(dir).expect("test data").filter_map(|e| Some(e.ok()?.path())).collect();
    files.sort();
    let mut cases = Vec::new();
    for file in files.iter().filter(|f| f.extension().is_some_and(|e| e == "cases")) {
        let text = std::fs::read_to_string(file).expect("test data");
        let stem = file.file_stem().and_then(|s| s.to_str()).unwrap_or_default();
        for block in text.split("\n== ").skip(1) {
            let (name, rest) = block.split_once('\n').expect("a case has lines");
            cases.push(parse(&format!("{stem}: {name}"), rest));
        }
    }
    assert!(cases.len() > 100, "only {} cases were found", cases.len());
    cases
}

fn parse(name: &str, text: &str) -> Case {
    let (head, rest) = text.split_once("--\n").unwrap_or_else(|| panic!("{name}: no `--`"));
    let (asm, verdict) = rest.split_once("=> ").unwrap_or_else(|| panic!("{name}: no verdict"));
    let insns = text::assemble(&with_type_ids(name, &expand(asm)))
        .unwrap_or_else(|e| panic!("{name}: {e}"));
    let mut prog = Linked::from_insns("case", ProgramType::Kprobe, insns);
    let (mut strict, mut offered, mut kernel_types) = (false, false, None);
    for line in head.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["type", p, rest @ ..] => {
                let find =
                    |w: &str| prog::PROGRAM_TYPES.iter().find(|(_, n)| *n == w).map(|(t, _)| *t);
                prog.prog_type = find(p).unwrap_or_else(|| panic!("{name}: {p}"));
                let attach =
                    |w: &&str| prog::ATTACH_TYPES.iter().find(|(_, n)| n == w).map(|(t, _)| *t);
                prog.attach_type = rest
                    .first()
                    .map(|w| -> AttachType { attach(w).unwrap_or_else(|| panic!("{name}: {w}")) });
            }
            ["map", kind, key, value, entries, rest @ ..] => {
                let kind = MapType::from_name(kind).unwrap_or_else(|| panic!("{name}: {kind}"));
                let n = |w: &str| w.parse::<u32>().unwrap_or_else(|_| panic!("{name}: {w}"));
                let mut spec = MapSpec::new("m", kind, 0, n(value), n(entries));
                spec.keys = match key.strip_prefix("bytes:") {
                    Some(max) => KeyShape::Bytes { max: n(max) },
                    None => KeyShape::Fixed(n(key)),
                };
                if let ["frozen", hex] = rest {
                    let byte = |i: usize| {
                        u8::from_str_radix(&hex[i..i + 2], 16)
                            .unwrap_or_else(|_| panic!("{name}: {hex}"))
                    };
                    spec.data = Some((0..hex.len()).step_by(2).map(byte).collect());
                    spec.frozen = true;
                    spec.flags = MapFlags(MapFlags::RDONLY_PROG);
                }
                match rest {
                    ["rdonly"] => spec.flags = MapFlags(MapFlags::RDONLY_PROG),
                    ["wronly"] => spec.flags = MapFlags(MapFlags::WRONLY_PROG),
                    ["of", name] => spec.value_type_id = find_struct(name),
                    ["wronly", "of", name] => {
                        spec.flags = MapFlags(MapFlags::WRONLY_PROG);
                        spec.value_type_id = find_struct(name);
                    }
                    ["inner", kind, rest @ ..] => {
                        let kind =
                            MapType::from_name(kind).unwrap_or_else(|| panic!("{name}: {kind}"));
                        let [key, value, entries, of @ ..] = rest else { panic!("{name}: {line}") };
                        let mut inner = MapSpec::new("inner", kind, n(key), n(value), n(entries));
                        if let ["of", name] = of {
                            inner.value_type_id = find_struct(name);
                        }
                        spec.inner = Some(Box::new(inner));
                    }
                    _ => {}
                }
                let index = prog.maps.len();
                prog.maps.push(LinkedMap { index, spec });
            }
            ["strict"] => strict = true,
            ["nogpl"] => prog.gpl = false,
            ["offered"] => offered = true,
            ["sleepable"] => prog.sleepable = true,
            ["section", section] => prog.section = (*section).to_owned(),
            ["types"] => {
                prog.btf = Some(types().btf.clone());
                let name = |start| if start == 0 { "main_prog" } else { "s_number" };
                prog.subprogs = starts(&prog.insns)
                    .into_iter()
                    .map(|start| function(start, name(start)))
                    .collect();
            }
            ["target", rest @ ..] => {
                kernel_types = Some(target_types().btf.clone());
                prog.target = rest.first().map(|w| (*w).to_owned());
            }
            ["funcs", names @ ..] => {
                let starts = starts(&prog.insns);
                assert_eq!(starts.len(), names.len(), "{name}: functions");
                prog.btf = Some(types().btf.clone());
                prog.subprogs =
                    starts.iter().zip(names).map(|(start, name)| function(*start, name)).collect();
            }
            [] => {}
            _ => panic!("{name}: unknown line `{line}`"),
        }
    }
    let mut lines = verdict.lines();
    let first = lines.next().unwrap_or_default();
    let refuse = match first.split_once(' ') {
        None if first == "accept" => None,
        Some(("reject", rest)) => {
            let (at, message) = rest.split_once(' ').unwrap_or((rest, ""));
            let at = (at != "*").then(|| at.parse().unwrap_or_else(|_| panic!("{name}: {at}")));
            Some((at, message.to_owned()))
        }
        _ => panic!("{name}: verdict `{first}`"),
    };
    let kernel = lines.find_map(|l| l.strip_prefix("kernel: ")).map(str::to_owned);
    Case { name: name.to_owned(), prog, refuse, strict, offered, target: kernel_types, kernel }
}

/// Writes out the abbreviations of `README.md`.
fn expand(asm: &str) -> String {
    let line = |line: &str| match line.split_whitespace().collect::<Vec<_>>().as_slice() {
        ["lookup", map] => {
            format!(
                "stw [%r10-4], 0\nmov %r2, %r10\nadd %r2, -4\nlddw %r1, map {map}\ncall map_lookup_elem\njeq %r0, 0, out\n"
            )
        }
        ["new", name] => {
            format!("mov %r1, @{name}\nmov %r2, 0\ncall bpf_obj_new_impl\njeq %r0, 0, out\n")
        }
        ["drop", reg] => format!("mov %r1, {reg}\nmov %r2, 0\ncall bpf_obj_drop_impl\n"),
        ["with", reg, name] => format!("mov %r1, {reg}\ncall {name}\n"),
        _ => format!("{line}\n"),
    };
    let labeled = |text: &str| match text.split_once(": ") {
        Some((label, rest)) if label.chars().all(|c| c.is_ascii_alphanumeric()) => {
            format!("{label}: {}", line(rest))
        }
        _ => line(text),
    };
    asm.lines().map(labeled).collect()
}

/// Puts the id of type NAME in place of `@NAME`, and of the target's in place of `@@NAME`.
fn with_type_ids(name: &str, asm: &str) -> String {
    let mut out = String::new();
    let mut rest = asm;
    while let Some((before, of)) = rest.split_once('@') {
        let (btf, of) =
            of.strip_prefix('@').map_or((&types().btf, of), |of| (&target_types().btf, of));
        let end = of.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(of.len());
        let id = btf
            .find(&of[..end], |_| true)
            .unwrap_or_else(|| panic!("{name}: no type `{}`", &of[..end]));
        out += &format!("{before}{id}");
        rest = &of[end..];
    }
    out + rest
}

fn find_struct(name: &str) -> u32 {
    types()
        .btf
        .find(name, |k| matches!(k, Kind::Struct(_)))
        .unwrap_or_else(|| panic!("no type `{name}`"))
}

/// First instructions of the functions that are called, or whose address is taken.
pub fn starts(insns: &[Insn]) -> Vec<usize> {
    let names = |i: &Insn| i.is_local_call() || (i.is_ld_imm64() && i.src() == op::PSEUDO_FUNC);
    let to = |(at, i): (usize, &Insn)| (at as i64 + 1 + i64::from(i.imm)) as usize;
    let mut starts: Vec<usize> =
        insns.iter().enumerate().filter(|(_, i)| names(i)).map(to).chain([0]).collect();
    starts.sort_unstable();
    starts.dedup();
    starts
}

/// A function with the type of that name.
fn function(start: usize, name: &str) -> Subprog {
    let btf = &types().btf;
    let type_id = btf
        .find(name, |k| matches!(k, Kind::Func(_)))
        .unwrap_or_else(|| panic!("no function `{name}`"));
    Subprog { start, name: name.to_owned(), global: start > 0 && !name.starts_with("s_"), type_id }
}
