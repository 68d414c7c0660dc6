//! Reads `tests/data/*.cases`; the format is in `tests/data/README.md`.

use skep_isa::{AttachType, MapFlags, MapType, ProgramType, prog, text};
use skep_object::{Linked, LinkedMap, MapSpec};
use std::path::Path;

pub struct Case {
    pub name: String,
    pub prog: Linked,
    #[allow(dead_code, reason = "read by one of the tests that share this file")]
    /// `None`: accept. Else instruction and beginning of the message.
    pub refuse: Option<(Option<usize>, String)>,
    /// Judged with `Options::strict`.
    #[allow(dead_code, reason = "read by one of the tests that share this file")]
    pub strict: bool,
    /// What Linux says instead, and why.
    #[allow(dead_code, reason = "read by one of the tests that share this file")]
    pub kernel: Option<String>,
}

pub fn all() -> Vec<Case> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let mut files: Vec<_> = std::fs::read_dir(dir).expect("test data").filter_map(|e| Some(e.ok()?.path())).collect();
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
    let insns = text::assemble(asm).unwrap_or_else(|e| panic!("{name}: {e}"));
    let mut prog = Linked::from_insns("case", ProgramType::Kprobe, insns);
    let mut strict = false;
    for line in head.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["type", p, rest @ ..] => {
                let find = |w: &str| prog::PROGRAM_TYPES.iter().find(|(_, n)| *n == w).map(|(t, _)| *t);
                prog.prog_type = find(p).unwrap_or_else(|| panic!("{name}: {p}"));
                let attach = |w: &&str| prog::ATTACH_TYPES.iter().find(|(_, n)| n == w).map(|(t, _)| *t);
                prog.attach_type = rest.first().map(|w| -> AttachType { attach(w).unwrap_or_else(|| panic!("{name}: {w}")) });
            }
            ["map", kind, key, value, entries, rest @ ..] => {
                let kind = MapType::from_name(kind).unwrap_or_else(|| panic!("{name}: {kind}"));
                let n = |w: &str| w.parse::<u32>().unwrap_or_else(|_| panic!("{name}: {w}"));
                let mut spec = MapSpec::new("m", kind, n(key), n(value), n(entries));
                if let ["frozen", hex] = rest {
                    let byte = |i: usize| u8::from_str_radix(&hex[i..i + 2], 16).unwrap_or_else(|_| panic!("{name}: {hex}"));
                    spec.data = Some((0..hex.len()).step_by(2).map(byte).collect());
                    spec.frozen = true;
                    spec.flags = MapFlags(MapFlags::RDONLY_PROG);
                }
                match rest {
                    ["rdonly"] => spec.flags = MapFlags(MapFlags::RDONLY_PROG),
                    ["wronly"] => spec.flags = MapFlags(MapFlags::WRONLY_PROG),
                    _ => {}
                }
                let index = prog.maps.len();
                prog.maps.push(LinkedMap { index, spec });
            }
            ["strict"] => strict = true,
            ["nogpl"] => prog.gpl = false,
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
    Case { name: name.to_owned(), prog, refuse, strict, kernel }
}
