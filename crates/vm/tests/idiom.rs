//! Branches that generated code does without, and registers that are narrow all through a function:
//! the same results on every engine as by Rust's own arithmetic, at the edges of every condition,
//! and code without the branches.
#![cfg(target_arch = "x86_64")]

#[path = "suite/random.rs"]
#[allow(dead_code, reason = "only the generator of numbers is needed")]
mod random;
mod suite;

use iced_x86::{Decoder, DecoderOptions, FlowControl};
use random::Rng;
use skep_isa::{Insn, op, text};
use skep_vm::{Code, Cpu, Env, interp};

const EDGES: [u64; 12] = [
    0,
    1,
    2,
    5,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_fffe,
    0xffff_ffff,
    1 << 32,
    1 << 63,
    u64::MAX - 1,
    u64::MAX,
];
const NUMBERS: [i32; 8] = [0, 1, 5, i32::MAX, i32::MAX - 1, i32::MIN, -2, -1];
const CONDITIONS: [&str; 10] =
    ["jeq", "jne", "jgt", "jge", "jlt", "jle", "jsgt", "jsge", "jslt", "jsle"];

/// Tells what a condition says of two values, on 32 bits when its name ends in `32`.
fn holds(condition: &str, a: u64, b: u64) -> bool {
    let (name, a, b, sa, sb) = match condition.strip_suffix("32") {
        Some(name) => (
            name,
            u64::from(a as u32),
            u64::from(b as u32),
            i64::from(a as i32),
            i64::from(b as i32),
        ),
        None => (condition, a, b, a as i64, b as i64),
    };
    match name {
        "jeq" => a == b,
        "jne" => a != b,
        "jgt" => a > b,
        "jge" => a >= b,
        "jlt" => a < b,
        "jle" => a <= b,
        "jsgt" => sa > sb,
        "jsge" => sa >= sb,
        "jslt" => sa < sb,
        _ => sa <= sb,
    }
}

fn conditional_jumps(insns: &[Insn]) -> usize {
    // SAFETY: the code is not run.
    let code = unsafe { Code::compile(insns, &Env::empty()) }.unwrap();
    let decoder = Decoder::with_ip(64, code.machine_code(), 0, DecoderOptions::NONE);
    decoder.into_iter().filter(|i| i.flow_control() == FlowControl::ConditionalBranch).count()
}

/// Runs a program for all edges of r1, with each of the right sides in r2 or as an immediate, and
/// r3 a third value.
fn compare(
    program: impl Fn(&str) -> String,
    want: impl Fn(u64, u64, u64) -> u64,
    mut see: impl FnMut(Option<i32>, &[Insn]),
) {
    let rights = NUMBERS.iter().map(|n| Some(*n)).chain([None]);
    for right in rights {
        let asm = program(&right.map_or("r2".to_owned(), |n| n.to_string()));
        let insns = text::assemble(&asm).unwrap();
        see(right, &insns);
        // SAFETY: the programs touch no memory.
        let codes = [Cpu::detect(), Cpu::baseline()]
            .map(|cpu| unsafe { Code::compile_for(&insns, &Env::empty(), cpu) }.unwrap());
        let interp = interp::Program::new(&insns, &Env::empty()).unwrap();
        for a in EDGES {
            let values = right.map_or(EDGES.to_vec(), |n| vec![i64::from(n) as u64]);
            for (b, c) in values
                .into_iter()
                .flat_map(|b| [0, 7, 0xffff_ffff, 0x1234_ffff_ffff, u64::MAX].map(|c| (b, c)))
            {
                let want = want(a, b, c);
                // SAFETY: these programs touch no memory, and end.
                let got = unsafe { interp.run([a, b, c, 0, 0]) };
                assert_eq!(got, Ok(want), "interp: {a:#x} {b:#x} {c:#x}\n{asm}");
                for code in &codes {
                    // SAFETY: as above; further arguments of the C convention are the further
                    // registers of the program.
                    let entry: unsafe extern "C" fn(u64, u64, u64) -> u64 =
                        unsafe { std::mem::transmute(code.entry()) };
                    // SAFETY: as above.
                    assert_eq!(unsafe { entry(a, b, c) }, want, "{a:#x} {b:#x} {c:#x}\n{asm}");
                }
            }
        }
    }
}

#[test]
fn one_more_or_not_is_a_carry() {
    for condition in CONDITIONS.iter().flat_map(|c| [(*c).to_owned(), format!("{c}32")]) {
        for (add, goto) in [("add", ""), ("add32", ""), ("add", "ja l\n"), ("add32", "ja l\n")] {
            let copy = if add == "add" { "mov" } else { "mov32" };
            let carried = matches!(condition.trim_end_matches("32"), "jgt" | "jge" | "jlt" | "jle");
            compare(
                |b| format!("{copy} r0, r3\n{condition} r1, {b}, l\n{add} r0, 1\n{goto}l: exit"),
                |a, b, c| {
                    let c = if add == "add" { c } else { u64::from(c as u32) };
                    let more = if add == "add" {
                        c.wrapping_add(1)
                    } else {
                        u64::from((c as u32).wrapping_add(1))
                    };
                    if holds(&condition, a, b) { c } else { more }
                },
                |right, insns| {
                    let next = condition.starts_with("jgt") || condition.starts_with("jle");
                    let zero = right == Some(0)
                        && (condition.starts_with("jeq") || condition.starts_with("jne"));
                    let taken = zero || carried && !(next && matches!(right, Some(-1 | i32::MAX)));
                    assert_eq!(
                        conditional_jumps(insns),
                        usize::from(!taken),
                        "{condition} {right:?}"
                    );
                },
            );
        }
    }
}

/// A 32-bit addition clears the upper half, and no addition does not.
#[test]
fn a_wide_value_that_is_not_added_to_stays_wide() {
    for condition in ["jge", "jlt", "jgt32", "jle"] {
        compare(
            |b| format!("mov r0, r3\n{condition} r1, {b}, l\nadd32 r0, 1\nl: exit"),
            |a, b, c| {
                if holds(condition, a, b) { c } else { u64::from((c as u32).wrapping_add(1)) }
            },
            |_, insns| assert_eq!(conditional_jumps(insns), 1),
        );
    }
}

#[test]
fn a_question_is_asked_once() {
    for condition in CONDITIONS.iter().flat_map(|c| [(*c).to_owned(), format!("{c}32")]) {
        compare(
            |b| {
                format!(
                    "mov r0, 0\n{condition} r1, {b}, +1\nor r0, 1\n{condition} r1, {b}, +1\nor r0, 2\nadd r0, r3\nexit"
                )
            },
            |a, b, c| if holds(&condition, a, b) { c } else { c.wrapping_add(3) },
            |_, insns| assert_eq!(conditional_jumps(insns), 1),
        );
        // Its answer may be another one: the value has changed, or somebody else asks.
        compare(
            |b| {
                format!(
                    "mov r0, 0\n{condition} r1, {b}, +1\nadd r1, 3\n{condition} r1, {b}, +1\nor r0, 2\nadd r0, r3\nexit"
                )
            },
            |a, b, c| {
                let then = if holds(&condition, a, b) { a } else { a.wrapping_add(3) };
                if holds(&condition, then, b) { c } else { c.wrapping_add(2) }
            },
            |_, insns| assert_eq!(conditional_jumps(insns), 2),
        );
        compare(
            |b| {
                format!(
                    "mov r0, 0\njeq r3, 7, s\n{condition} r1, {b}, +1\nor r0, 1\ns: {condition} r1, {b}, +1\nor r0, 2\nexit"
                )
            },
            |a, b, c| if holds(&condition, a, b) { 0 } else { 2 | u64::from(c != 7) },
            |_, insns| assert_eq!(conditional_jumps(insns), 3),
        );
    }
}

#[test]
fn operands_are_taken_from_kept_constants() {
    const V: u64 = 0x0123_4567_89ab_cdef;
    let asm = "mov r0, r1\nmov r4, 3\nl: lddw r2, 0x123456789abcdef\nxor r0, r2\nlddw r2, 0x123456789abcdef\nsub r0, r2\n\
               lddw r5, 0x123456789abcdef\nmov r2, r0\nor32 r2, r5\nadd r0, r2\nlddw r2, 0x123456789abcdef\nand r0, r2\nadd r0, r2\n\
               sub r4, 1\njne r4, 0, l\nexit";
    let insns = text::assemble(asm).unwrap();
    for a in EDGES {
        let want = (0..3).fold(a, |x, _| {
            let x = (x ^ V).wrapping_sub(V);
            (x.wrapping_add(u64::from(x as u32 | V as u32)) & V).wrapping_add(V)
        });
        for engine in suite::ENGINES {
            assert_eq!(
                suite::run_in(engine, &insns, &Env::empty(), [a, 0, 0, 0, 0]),
                Ok(want),
                "{engine} {a:#x}"
            );
        }
    }
}

/// A table that a loop keeps the address of, by an index that is shifted first: read and written
/// through, or its address made, while the shifted index is not needed, is the value itself, or
/// goes on to be.
#[test]
fn tables_are_indexed_by_what_is_shifted() {
    let shapes = [
        "ldxSIZE r2, [r3+4]\nadd r0, r2",
        "ldxSIZE r5, [r3]\nadd r0, r5",
        "ldxSIZE r3, [r3]\nadd r0, r3",
        "ldxSIZE r5, [r3]\nadd r0, r5\nadd r0, r2",
        "stxSIZE [r3+8], r2\nldxdw r5, [r3+8]\nadd r0, r5",
        "stxSIZE [r3+8], r0\nadd r0, 3",
        "stxSIZE [r3+8], r0\nadd r0, r2",
        "stSIZE [r3], 77\nadd r0, 1",
        "mov r5, r2\nldxSIZE r2, [r3]\nadd r0, r2\nadd r0, r5",
        "rsh r0, 1\nldxSIZE r2, [r3]\nadd r0, r2",
        "mov r5, r3\nlddw r3, TABLE\nsub r5, r3\nadd r0, r5",
    ];
    let fresh: [u64; 16] =
        std::array::from_fn(|n| 0x0123_4567_89ab_cdef_u64.rotate_left(n as u32 * 5));
    let mut table = fresh;
    let address = format!("{:#x}", table.as_mut_ptr() as u64);
    for (shape, size) in shapes.iter().flat_map(|s| ["b", "h", "w", "dw"].map(|size| (*s, size))) {
        for shift in 0..5 {
            let asm = format!(
                "mov r0, r1\nmov r4, 8\nl: mov r2, r4\nand r2, 7\nlsh r2, {shift}\nlddw r3, TABLE\nadd r3, r2\n{shape}\nsub r4, 1\n\
                 jne r4, 0, l\nexit"
            );
            let insns =
                text::assemble(&asm.replace("SIZE", size).replace("TABLE", &address)).unwrap();
            let mut first = None;
            for engine in suite::ENGINES {
                table = fresh;
                let r0 = suite::run_in(engine, &insns, &Env::empty(), [0x1234_5678, 0, 0, 0, 0]);
                let got = (r0, std::hint::black_box(&table).to_vec());
                let want = first.get_or_insert_with(|| got.clone());
                assert!(got.0.is_ok() && got == *want, "{engine}: {got:x?} {want:x?}\n{asm}");
            }
        }
    }
}

/// Writes random programs in which some registers only ever get values without upper half, or
/// nearly: now and then one wide value.
struct Narrow {
    rng: Rng,
    narrow: u16,
    out: Vec<Insn>,
}

impl Narrow {
    fn below(&mut self, n: u64) -> u64 {
        self.rng.next() % n
    }

    fn push(&mut self, code: u8, dst: u8, src: u8, off: i16, imm: i32) {
        self.out.push(Insn::new(code, dst, src, off, imm));
    }

    fn step(&mut self) {
        let (d, s, imm) = (self.below(9) as u8, self.below(9) as u8, self.rng.next() as i32);
        let operations = [op::ADD, op::SUB, op::MUL, op::OR, op::AND, op::XOR, op::MOV];
        let o = operations[self.below(7) as usize];
        let both = self.narrow >> s & 1 != 0;
        if self.narrow >> d & 1 == 0 || self.below(60) == 0 {
            return match self.below(3) {
                0 => self.push(op::ALU64 | op::X | o, d, s, 0, 0),
                1 => self.push(op::ALU64 | o, d, 0, 0, imm),
                _ => {
                    let slot = 1 + self.below(9) as i16;
                    self.push(op::LDX | op::MEM | op::DW, d, 10, -8 * slot, 0);
                }
            };
        }
        match self.below(9) {
            0 => self.push(op::ALU | op::X | o, d, s, 0, 0),
            1 => self.push(op::ALU | o, d, 0, 0, imm),
            2 => self.push(op::LDX | op::MEM | op::W, d, 10, -8, 0),
            3 => self.push(op::LDX | op::MEM | op::B, d, 10, -16, 0),
            4 => self.push(op::ALU64 | op::MOV, d, 0, 0, imm & i32::MAX),
            5 if both => self.push(op::ALU64 | op::X | op::MOV, d, s, 0, 0),
            6 if both => self.push(op::ALU64 | op::X | op::XOR, d, s, 0, 0),
            5..=7 => self.push(op::ALU64 | op::X | op::AND, d, s, 0, 0),
            _ => self.push(op::ALU64 | op::RSH, d, 0, 0, imm & 63),
        }
    }

    fn program(mut self) -> Vec<Insn> {
        for r in 0..9 {
            let v = self.rng.next();
            if self.narrow >> r & 1 == 0 {
                self.out.extend(Insn::ld_imm64(r, 0, v))
            } else {
                self.push(op::ALU | op::MOV, r, 0, 0, v as i32)
            }
            self.push(op::STX | op::MEM | op::DW, 10, r, -8 * (i16::from(r) + 1), 0);
        }
        for _ in 0..12 {
            let (d, s, imm) = (self.below(9) as u8, self.below(9) as u8, self.rng.next() as i32);
            let o = [op::JEQ, op::JGT, op::JGE, op::JNE, op::JLT, op::JLE, op::JSGT, op::JSLT]
                [self.below(8) as usize];
            let (class, x) = (
                [op::JMP, op::JMP32][self.below(2) as usize],
                [op::K, op::X][self.below(2) as usize],
            );
            let at = self.out.len();
            self.push(
                class | x | o,
                d,
                if x == op::X { s } else { 0 },
                0,
                if x == op::X { 0 } else { imm >> (imm & 31) },
            );
            for _ in 0..1 + self.below(4) {
                self.step();
            }
            self.out[at].off = (self.out.len() - at - 1) as i16;
            // What clears an upper half, and is nothing when that is clear.
            self.push(op::ALU | op::X | op::MOV, d, d, 0, 0);
            let s = self.below(9) as u8;
            self.push(op::ALU64 | op::LSH, s, 0, 0, 32);
            self.push(op::ALU64 | op::RSH, s, 0, 0, 32);
        }
        for r in 1..9 {
            self.push(op::ALU64 | op::MUL, 0, 0, 0, 0x1003f);
            self.push(op::ALU64 | op::X | op::ADD, 0, r, 0, 0);
        }
        self.out.push(Insn::exit());
        self.out
    }
}

#[test]
fn narrow_registers_agree_on_every_engine() {
    let rounds = if std::env::var_os("SKEP_STRESS").is_some() { 1_000_000 } else { 3000 };
    for seed in 0..rounds {
        let mut rng = Rng(seed);
        let narrow = rng.next() as u16;
        let insns = Narrow { rng, narrow, out: Vec::new() }.program();
        let [want, jit, baseline] =
            suite::ENGINES.map(|engine| suite::run_in(engine, &insns, &Env::empty(), [0; 5]));
        assert!(
            want.is_ok() && want == jit && want == baseline,
            "seed {seed}: {want:x?} {jit:x?} {baseline:x?}\n{:?}",
            text::source(&insns)
        );
    }
}
