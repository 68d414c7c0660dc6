//! Programs that come as instructions get the verdicts of the same programs from objects.

use skep_isa::{Insn, MapType, ProgramType, op};
use skep_object::btf::{Kind, Linkage};
use skep_object::{Btf, Handles, Linked, LinkedMap, MapSpec, Object, RawProgram, Records, Subprog};
use skep_verifier::{Options, Rejection, Verified, verify};
use std::path::Path;
use std::sync::Arc;

/// The maps of a program, under handles from 100 on.
struct Maps(Vec<LinkedMap>);

const FIRST_HANDLE: i32 = 100;

impl Handles for Maps {
    fn map(&self, handle: i32) -> Option<LinkedMap> {
        self.0.get(usize::try_from(handle - FIRST_HANDLE).ok()?).cloned()
    }
}

/// Types with more strings: those of source lines.
struct Strings {
    raw: Vec<u8>,
    len: u32,
}

impl Strings {
    fn of(btf: &Btf) -> Self {
        let raw = btf.raw().to_vec();
        let word = |at: usize| raw[at..at + 4].iter().rev().fold(0, |n, b| n << 8 | u32::from(*b));
        let (header, offset, len) = (word(4), word(16), word(20));
        assert_eq!((header + offset + len) as usize, raw.len(), "strings come last");
        Self { raw, len }
    }

    fn add(&mut self, text: &str) -> u32 {
        let at = self.len;
        self.raw.extend(text.bytes().chain([0]));
        self.len += text.len() as u32 + 1;
        at
    }

    fn finish(mut self) -> Arc<Btf> {
        self.raw[20..24].copy_from_slice(&self.len.to_le_bytes());
        Arc::new(Btf::parse(&self.raw).expect("good types"))
    }
}

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

/// The same program, by way of what a loader gives the kernel.
fn again(linked: &Linked) -> Linked {
    let btf = linked.btf.as_deref().expect("an object with types");
    let mut insns = linked.insns.clone();
    for at in (0..insns.len()).filter(|at| linked.insns[*at].is_ld_imm64()) {
        let pseudo = match insns[at].src() {
            op::PSEUDO_MAP_IDX => op::PSEUDO_MAP_FD,
            op::PSEUDO_MAP_IDX_VALUE => op::PSEUDO_MAP_VALUE,
            _ => continue,
        };
        insns[at] = Insn { imm: insns[at].imm + FIRST_HANDLE, ..insns[at].with_src(pseudo) };
    }
    let mut strings = Strings::of(btf);
    let mut lines = Vec::new();
    for l in &linked.lines {
        let (file, text) = (strings.add(&l.file), strings.add(&l.text));
        lines.extend([l.insn as u32, file, text, l.line << 10 | l.column]);
    }
    let funcs: Vec<u32> =
        linked.subprogs.iter().flat_map(|s| [s.start as u32, s.type_id]).collect();
    let (funcs, lines) = (bytes(&funcs), bytes(&lines));
    let mut raw = RawProgram::new(&linked.name, linked.prog_type, &insns);
    raw.attach_type = linked.attach_type;
    raw.target = linked.target.as_deref();
    raw.sleepable = linked.sleepable;
    raw.license = if linked.gpl { "Dual MIT/GPL" } else { "MIT" };
    raw.btf = Some(strings.finish());
    raw.func_info = Records { bytes: &funcs, size: 8 };
    raw.line_info = Records { bytes: &lines, size: 16 };
    Linked::from_instructions(&raw, &Maps(linked.maps.clone())).expect("a program that links")
}

#[allow(clippy::result_large_err, reason = "as for `verify`")]
fn judged(prog: &Linked) -> Result<Verified, Rejection> {
    let mut options = Options::default();
    options.limit = 50_000;
    verify(prog, &options)
}

/// What is said of a program, in all its words.
fn words(verdict: &Result<Verified, Rejection>) -> (bool, String, String) {
    match verdict {
        Ok(v) => (true, format!("{:?}", v.info()), v.log().to_owned()),
        Err(r) => (false, format!("{r:#}\n{:?}", r.hint), r.log().to_owned()),
    }
}

/// Tells whether a function's type says who sees it. That of a hidden function does not: libbpf
/// changes it before it loads the types.
fn is_like_its_type(linked: &Linked, subprog: &Subprog) -> bool {
    let kind = linked.btf.as_ref().and_then(|b| b.get(subprog.type_id).ok()).map(|t| &t.kind);
    matches!(kind, Some(Kind::Func(f)) if subprog.global == (f.linkage == Linkage::Global))
}

#[test]
fn a_program_from_an_object_gets_the_same_verdict_as_instructions() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let files = ["verifier/tests/data", "object/tests/data"]
        .iter()
        .flat_map(|dir| std::fs::read_dir(crates.join(dir)).expect("test data"))
        .filter_map(|e| Some(e.ok()?.path()));
    let (mut accepted, mut refused) = (0, 0);
    for file in files {
        if file.extension().is_none_or(|e| e != "o") {
            continue;
        }
        let Ok(object) = Object::parse(&std::fs::read(&file).expect("test data")) else { continue };
        for index in 0..object.programs.len() {
            let Ok(linked) = object.link(index) else { continue };
            // What is missing is in no instruction.
            let is_missing = (0..linked.insns.len()).any(|at| linked.missing(at).is_some());
            if linked.subprogs.iter().any(|s| !is_like_its_type(&linked, s)) || is_missing {
                continue;
            }
            let again = again(&linked);
            assert_eq!(again.maps.len(), linked.maps.len(), "{}", linked.name);
            assert_eq!(again.subprogs, linked.subprogs, "{}", linked.name);
            assert_eq!(again.lines, linked.lines, "{}", linked.name);
            let verdict = judged(&linked);
            assert_eq!(words(&judged(&again)), words(&verdict), "{}", linked.name);
            *if verdict.is_ok() { &mut accepted } else { &mut refused } += 1;
        }
    }
    assert!(accepted > 50 && refused > 20, "{accepted} accepted, {refused} refused");
}

#[test]
fn instructions_alone_are_judged() {
    let mut insns = vec![Insn::new(op::ST | op::MEM | op::W, 10, 0, -4, 0)];
    insns.extend([Insn::mov64_reg(2, 10), Insn::new(op::ALU64 | op::ADD, 2, 0, 0, -4)]);
    insns.extend(Insn::ld_imm64(1, op::PSEUDO_MAP_FD, 100));
    insns.push(Insn::call(skep_isa::helper::id::MAP_LOOKUP_ELEM));
    let read = Insn::new(op::LDX | op::MEM | op::DW, 0, 0, 0, 0);
    insns.extend([Insn::new(op::JMP | op::JNE, 0, 0, 1, 0), Insn::exit(), read, Insn::exit()]);
    let spec = MapSpec::new("m", MapType::Hash, 4, 8, 16);
    let maps = Maps(vec![LinkedMap { index: 0, spec }]);
    let link = |insns: &[Insn]| {
        let raw = RawProgram::new("p", ProgramType::SocketFilter, insns);
        Linked::from_instructions(&raw, &maps).expect("a program that links")
    };
    judged(&link(&insns)).expect("accepted");
    insns.remove(6);
    let refused = judged(&link(&insns)).expect_err("refused");
    assert_eq!(refused.insn, 7);
}
