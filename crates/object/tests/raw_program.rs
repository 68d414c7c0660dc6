//! Programs that come as instructions: what they refer to is found or named in an error.

use skep_isa::{Insn, MapType, ProgramType, op, text};
use skep_object::{Btf, Handles, Linked, LinkedMap, MapSpec, RawProgram, RawProgramError, Records};
use std::sync::Arc;

/// Maps 70 and 71, and one kernel function in a module.
struct World;

impl Handles for World {
    fn map(&self, handle: i32) -> Option<LinkedMap> {
        let name = format!("map{handle}");
        let spec = MapSpec::new(&name, MapType::Array, 4, 8, 1);
        (70..=71).contains(&handle).then_some(LinkedMap { index: handle as usize, spec })
    }

    fn kernel_function(&self, type_id: u32, module: Option<i32>) -> Option<u32> {
        (type_id == 5 && module == Some(9)).then_some(skep_isa::kfunc::id::BPF_RCU_READ_LOCK)
    }
}

fn asm(source: &str) -> Vec<Insn> {
    text::assemble(source).expect("assembly")
}

fn link(raw: &RawProgram<'_>) -> Result<Linked, RawProgramError> {
    Linked::from_instructions(raw, &World)
}

fn said(raw: &RawProgram<'_>) -> String {
    link(raw).expect_err("an error").to_string()
}

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

/// A global function `first` (type 3), a static one `second` (type 4), and where the strings
/// `file.c` and `int x;` stand.
fn types() -> (Arc<Btf>, u32, u32) {
    const STRINGS: &str = "\0int\0first\0second\0file.c\0  int x;\0";
    let [int, proto, func]: [u32; 3] = [1 << 24, 13 << 24, 12 << 24];
    let at = |text: &str| STRINGS.find(text).expect("a string") as u32;
    let types = [
        [at("int"), int, 4, 1 << 24 | 32].as_slice(),
        &[0, proto, 1],
        &[at("first"), func | 1, 2],
        &[at("second"), func, 2],
    ]
    .concat();
    let len = types.len() as u32 * 4;
    let mut raw = bytes(&[0x0001_eb9f, 24, 0, len, len, STRINGS.len() as u32]);
    raw.extend(bytes(&types));
    raw.extend(STRINGS.bytes());
    (Arc::new(Btf::parse(&raw).expect("good types")), at("file.c"), at("  int x;"))
}

const TWO_FUNCTIONS: &str = "call local second\nexit\nsecond: mov %r0, 0\nexit\n";

#[test]
fn handles_become_indices() {
    let mut insns = Vec::new();
    insns.extend(Insn::ld_imm64(1, op::PSEUDO_MAP_FD, 71));
    insns.extend(Insn::ld_imm64(2, op::PSEUDO_MAP_IDX_VALUE, 4 << 32 | 1));
    insns.extend(Insn::ld_imm64(3, op::PSEUDO_MAP_VALUE, 71));
    insns.push(Insn::exit());
    let mut raw = RawProgram::new("p", ProgramType::Kprobe, &insns);
    raw.handles = &[99, 70];
    let linked = link(&raw).expect("known handles");
    let maps: Vec<_> = linked.maps.iter().map(|m| (m.index, m.spec.name.as_str())).collect();
    assert_eq!(maps, [(71, "map71"), (70, "map70")]);
    let [a, b] = Insn::ld_imm64(1, op::PSEUDO_MAP_IDX, 0);
    let [c, d] = Insn::ld_imm64(2, op::PSEUDO_MAP_IDX_VALUE, 4 << 32 | 1);
    let [e, f] = Insn::ld_imm64(3, op::PSEUDO_MAP_IDX_VALUE, 0);
    assert_eq!(linked.insns, [a, b, c, d, e, f, Insn::exit()]);
    raw.handles = &[99];
    assert_eq!(said(&raw), "insn 2: index 1 into an array of 1 handles");
    raw.handles = &[0, 99];
    assert_eq!(said(&raw), "insn 2: handle 99 is no map");
}

#[test]
fn kernel_functions_become_helper_numbers() {
    let call = Insn::new(op::CALL, 0, op::PSEUDO_KFUNC_CALL, 1, 5);
    let insns = [call, Insn::mov64_imm(0, 0), Insn::exit()];
    let mut raw = RawProgram::new("p", ProgramType::Kprobe, &insns);
    assert_eq!(said(&raw), "insn 0: index 1 into an array of 0 handles");
    raw.handles = &[0, 9];
    let linked = link(&raw).expect("a known function");
    assert_eq!(linked.insns[0], Insn::call(skep_isa::kfunc::id::BPF_RCU_READ_LOCK));
    raw.handles = &[0, 8];
    assert_eq!(said(&raw), "insn 0: the kernel function of type 5 is not available");
}

#[test]
fn functions_and_lines_are_those_of_the_records() {
    let (btf, file, line) = types();
    let insns = asm(TWO_FUNCTIONS);
    let funcs = bytes(&[0, 3, 0, 2, 4, 0]);
    let lines = bytes(&[0, file, line, 7 << 10 | 3, 2, file, 0, 9 << 10]);
    let mut raw = RawProgram::new("p", ProgramType::Kprobe, &insns);
    raw.license = "MIT";
    raw.func_info = Records { bytes: &funcs, size: 12 };
    raw.line_info = Records { bytes: &lines, size: 16 };
    assert_eq!(said(&raw), "`func_info` without types");
    raw.btf = Some(btf);
    let linked = link(&raw).expect("good records");
    assert!(!linked.gpl);
    let functions: Vec<_> =
        linked.subprogs.iter().map(|s| (s.start, s.name.as_str(), s.global, s.type_id)).collect();
    assert_eq!(functions, [(0, "first", true, 3), (2, "second", false, 4)]);
    let lines: Vec<_> = (0..4)
        .filter_map(|i| linked.line(i))
        .map(|l| (l.line, l.column, l.text.as_str()))
        .collect();
    assert_eq!(lines, [(7, 3, "int x;"), (7, 3, "int x;"), (9, 0, ""), (9, 0, "")]);
    assert_eq!(linked.lines[0].file, "file.c");
}

#[test]
fn records_that_do_not_go_with_the_program_are_named() {
    let (btf, file, line) = types();
    let insns = asm(TWO_FUNCTIONS);
    let check = |array: &str, words: &[u32], size: u32| {
        let of = bytes(words);
        let mut raw = RawProgram::new("p", ProgramType::Kprobe, &insns);
        raw.btf = Some(btf.clone());
        let records = Records { bytes: &of, size };
        if array == "func_info" {
            raw.func_info = records
        } else {
            raw.line_info = records
        }
        said(&raw)
    };
    let funcs = |words: &[u32]| check("func_info", words, 8);
    assert_eq!(funcs(&[0, 3]), "`func_info` has 1 records for 2 functions");
    assert_eq!(
        funcs(&[0, 3, 1, 4]),
        "`func_info`, record 1: no function begins at its instruction"
    );
    assert_eq!(funcs(&[0, 1, 2, 4]), "`func_info`, record 0: its type is no function");
    assert_eq!(funcs(&[0, 3, 2, 99]), "`func_info`, record 1: its type is no function");
    assert_eq!(check("func_info", &[0, 3, 2], 8), "`func_info`: 12 bytes in records of 8");
    assert_eq!(check("func_info", &[0, 3, 2, 4], 4), "`func_info`: 16 bytes in records of 4");
    assert_eq!(
        check("func_info", &[0, 3, 1, 2, 4, 0], 12),
        "`func_info`, record 0: what follows the known fields is not zero"
    );
    let lines = |words: &[u32]| check("line_info", words, 16);
    assert_eq!(
        lines(&[2, file, line, 0, 2, file, line, 0]),
        "`line_info`, record 1: its instruction is not behind that of the record before it"
    );
    assert_eq!(
        lines(&[0, file, line, 0, 4, file, line, 0]),
        "`line_info`, record 1: its instruction lies outside the program"
    );
    assert_eq!(
        lines(&[0, file, 9999, 0]),
        "`line_info`, record 0: its strings lie outside those of the types"
    );
    assert_eq!(lines(&[0, file, line, 0]), "`line_info` has no record for the function at insn 2");
}

#[test]
fn a_line_does_not_begin_inside_an_instruction() {
    let (btf, file, line) = types();
    let insns = asm("lddw %r1, 5\nmov %r0, 0\nexit\n");
    let lines = bytes(&[0, file, line, 0, 1, file, line, 0]);
    let mut raw = RawProgram::new("p", ProgramType::Kprobe, &insns);
    raw.btf = Some(btf);
    raw.line_info = Records { bytes: &lines, size: 16 };
    assert_eq!(said(&raw), "`line_info`, record 1: its instruction is the second half of another");
}

#[test]
fn a_program_has_instructions() {
    let raw = RawProgram::new("p", ProgramType::Kprobe, &[]);
    assert_eq!(said(&raw), "a program of 0 instructions, not of 1 to 1000000");
}
