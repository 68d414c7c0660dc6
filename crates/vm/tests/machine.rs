//! The machine code itself: whole instructions, jumps onto instructions, no vector registers; and
//! no instruction stream that makes the compiler panic.
#![cfg(target_arch = "x86_64")]

#[path = "suite/random.rs"]
mod random;
mod suite;

use std::collections::HashSet;

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess,
    OpKind, Register,
};
use random::{Judge, MIX, REPEAT, Rng, SLOTS, TAIL_CALL, UPDATE, program};
use skep_isa::{Insn, MapShape, ShapeKind, op, text};
use skep_vm::{Code, Cpu, Env, HelperCall, HelperImpl, MapRef, interp};

unsafe extern "C" fn zero(_: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    0
}

fn helpers(id: u32) -> Option<HelperImpl> {
    match id {
        MIX | REPEAT | UPDATE | 7 => Some(HelperImpl::plain(zero)),
        TAIL_CALL => Some(HelperImpl { func: zero, how: HelperCall::TailCall }),
        1 => Some(HelperImpl { func: zero, how: HelperCall::MapLookup }),
        3 => Some(HelperImpl { func: zero, how: HelperCall::LoadCtx(-8) }),
        _ => None,
    }
}

const MAPS: [MapRef; 3] = [
    MapRef {
        handle: 1,
        value: 4096,
        shape: MapShape { base: 4096, stride: 24, entries: 10, kind: ShapeKind::Array },
    },
    MapRef {
        handle: 2,
        value: 8192,
        shape: MapShape {
            base: 8192,
            stride: 4,
            entries: SLOTS,
            kind: ShapeKind::ProgArray { targets: 4096 },
        },
    },
    MapRef {
        handle: 3,
        value: 12288,
        shape: MapShape { base: 12288, stride: 16, entries: 8, kind: ShapeKind::Array },
    },
];
const ENV: Env<'static> = Env { maps: &MAPS, helper: &helpers };

fn compile(insns: &[Insn], cpu: Cpu) -> Option<Code> {
    // SAFETY: nothing compiled here is run.
    unsafe { Code::compile_for(insns, &ENV, cpu) }.ok()
}

/// Decodes code and checks what the module's comment promises.
fn look_at(code: &Code) {
    let bytes = code.machine_code();
    let base = bytes.as_ptr() as u64;
    let listing: Vec<Instruction> =
        Decoder::with_ip(64, bytes, base, DecoderOptions::NONE).into_iter().collect();
    let starts: HashSet<u64> = listing.iter().map(Instruction::ip).collect();
    for i in &listing {
        assert!(!i.is_invalid(), "{:x}: no instruction", i.ip() - base);
        for n in 0..i.op_count() {
            let r =
                if i.op_kind(n) == OpKind::Register { i.op_register(n) } else { Register::None };
            // Whoever makes tail calls has the code that saves vector registers around the helper.
            let saved = i.mnemonic() == Mnemonic::Movups;
            assert!(r == Register::None || r.is_gpr() || saved, "{:x}: {r:?}", i.ip() - base);
        }
        let near = i.near_branch_target();
        let inside = (base..base + bytes.len() as u64).contains(&near);
        match i.flow_control() {
            FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch => {
                assert!(starts.contains(&near), "{i:?}")
            }
            FlowControl::Call if inside => assert!(starts.contains(&near), "{i:?}"),
            _ => {}
        }
    }
    for off in code.offsets() {
        assert!(
            starts.contains(&(base + u64::from(*off))) || *off as usize == bytes.len(),
            "{off:x} is inside an instruction"
        );
    }
    assert!(code.offsets().is_sorted());
    changes_what_it_says(code, &listing);
}

/// Decodes which registers code writes that calls do not keep.
fn changes_what_it_says(code: &Code, listing: &[Instruction]) {
    const CALLED: u16 = 0b1111_1100_0111;
    let range = code.machine_code().as_ptr_range();
    let mut info = InstructionInfoFactory::new();
    let mut written = 0;
    for i in listing {
        let near = i.near_branch_target() as *const u8;
        let leaves = match i.flow_control() {
            FlowControl::IndirectCall | FlowControl::IndirectBranch => true,
            FlowControl::Call => !range.contains(&near),
            _ => false,
        };
        written |= if leaves { CALLED } else { 0 };
        let used = info.info(i).used_registers().iter();
        let written_here =
            used.filter(|u| !matches!(u.access(), OpAccess::Read | OpAccess::CondRead));
        for register in written_here.map(|u| u.register().full_register()).filter(|r| r.is_gpr64())
        {
            written |= 1 << register.number();
        }
    }
    let unsaid = written & CALLED & !code.changes();
    assert_eq!(unsaid, 0, "{written:b} is changed, {:b} was said", code.changes());
    assert_eq!(code.changes() & !CALLED, 0);
}

/// A program that calls nothing leaves the registers alone that it does not name.
#[test]
fn registers_that_a_program_does_not_name_stay() {
    let insns = text::assemble("mov r0, 0\nldxdw r3, [r1+8]\nadd r0, r3\nexit").unwrap();
    let code = compile(&insns, Cpu::detect()).unwrap();
    // rax, rdx, and r9 to r11, which are scratch.
    assert_eq!(code.changes(), 0b1110_0000_0101);
    let insns = text::assemble("mov r0, 0\ncall 7\nexit").unwrap();
    assert_eq!(compile(&insns, Cpu::detect()).unwrap().changes(), 0b1111_1100_0111);
}

#[test]
fn code_is_whole_and_uses_general_registers_only() {
    for seed in 0..300 {
        let insns = program(seed, Judge::Engines);
        for cpu in [Cpu::detect(), Cpu::baseline()] {
            look_at(&compile(&insns, cpu).unwrap());
        }
    }
}

/// A jump is short when it can be and long when it must be, at every distance around the limit, in
/// both directions.
#[test]
fn jumps_reach_at_every_distance() {
    for n in 30..60 {
        let filler = "add r0, 1\n".repeat(n);
        let ahead = format!("mov r0, 0\njne r1, 0, +{n}\n{filler}exit");
        let back = format!("mov r0, 0\nl: {filler}sub r1, 1\njne r1, 0, l\nexit");
        let two =
            format!("mov r0, 0\nja b\na: jeq r1, 0, c\n{filler}ja c\nb: {filler}ja a\nc: exit");
        for (asm, r1, want) in
            [(&ahead, 1, 0), (&ahead, 0, n), (&back, 3, 3 * n), (&two, 0, n), (&two, 1, 2 * n)]
        {
            let insns = text::assemble(asm).unwrap();
            look_at(&compile(&insns, Cpu::detect()).unwrap());
            for engine in suite::ENGINES {
                assert_eq!(
                    suite::run_in(engine, &insns, &ENV, [r1, 0, 0, 0, 0]),
                    Ok(want as u64),
                    "{engine} {n}"
                );
            }
        }
    }
}

#[test]
fn the_largest_program_compiles() {
    let mut insns = vec![Insn::new(op::JMP32 | op::JA, 0, 0, 0, op::MAX_INSNS as i32 - 2)];
    insns.resize(
        op::MAX_INSNS - 1,
        Insn::new(op::STX | op::ATOMIC | op::DW, 10, 1, -8, op::ATOMIC_XOR | op::ATOMIC_FETCH),
    );
    insns.push(Insn::exit());
    let code = compile(&insns, Cpu::baseline()).unwrap();
    assert!(code.machine_code().len() > 16 << 20);
    // SAFETY: the program jumps over everything.
    unsafe { code.entry()(std::ptr::null_mut()) };
    insns.push(Insn::exit());
    assert!(compile(&insns, Cpu::baseline()).is_none());
}

/// Noise, and programs with a few fields changed: refused or compiled into whole code, but never a
/// panic.
#[test]
fn hostile_streams_are_refused_or_compiled() {
    let (mut compiled, mut refused) = (0, 0);
    for seed in 0..3000u64 {
        let mut rng = Rng(seed ^ 0xdead_beef);
        let mut insns = program(seed % 40, Judge::Engines);
        if seed % 3 == 0 {
            insns = (0..1 + rng.next() % 20)
                .map(|_| Insn::from_bytes(rng.next().to_le_bytes()))
                .collect();
            insns.push(Insn::exit());
        }
        for _ in 0..1 + rng.next() % 4 {
            let (at, bits) = ((rng.next() % insns.len() as u64) as usize, rng.next());
            let mut bytes = insns[at].to_bytes();
            match bits % 4 {
                0 => bytes[0] = (bits >> 8) as u8,
                1 => bytes[1] = (bits >> 8) as u8 & 0x77,
                2 => bytes[2..4].copy_from_slice(&((bits >> 8) as i16 % 32).to_le_bytes()),
                _ => bytes[4..8].copy_from_slice(&((bits >> 8) as i32 % 64).to_le_bytes()),
            }
            insns[at] = Insn::from_bytes(bytes);
        }
        let jit = compile(&insns, Cpu::detect());
        assert_eq!(
            jit.is_some(),
            interp::Program::new(&insns, &ENV).is_ok(),
            "seed {seed}: engines agree on what is a program"
        );
        match jit {
            Some(code) => {
                look_at(&code);
                compiled += 1;
            }
            None => refused += 1,
        }
    }
    assert!(compiled > 300 && refused > 300, "{compiled} {refused}");
}
