//! Instructions that are not well formed are refused, whatever the rest of the program: every
//! opcode with telling values in every field, judged by a second reading of the instruction set
//! (RFC 9669).

use skep_isa::{Insn, ProgramType, helper, op};
use skep_object::Linked;
use skep_verifier::{Options, verify};

/// Tells whether the fields of an instruction are what its opcode allows in a program without maps
/// and functions.
fn well_formed(i: Insn) -> bool {
    let (dst, src) = (i.dst(), i.src());
    let written = dst < 10;
    let (size, mode) = (i.code & 0x18, i.code & 0xe0);
    let by_reg = i.code & 0x08 != 0;
    match i.code & 7 {
        // Packets are only loaded from by programs that have one.
        op::LD => i.code == 0x18 && written && src == 0 && i.off == 0,
        op::LDX => {
            written
                && src <= 10
                && i.imm == 0
                && (mode == op::MEM || (mode == op::MEMSX && size != op::DW))
        }
        op::ST => dst <= 10 && src == 0 && mode == op::MEM,
        op::STX if mode == op::MEM => dst <= 10 && src <= 10 && i.imm == 0,
        op::STX if mode == op::ATOMIC => {
            let wide = size == op::W || size == op::DW;
            let fetched = src < 10;
            dst <= 10
                && src <= 10
                && match i.imm {
                    0x00 | 0x40 | 0x50 | 0xa0 | 0xf1 => wide,
                    0x01 | 0x41 | 0x51 | 0xa1 | 0xe1 => wide && fetched,
                    0x100 => written,
                    0x110 => true,
                    _ => false,
                }
        }
        op::STX => false,
        class @ (op::ALU | op::ALU64) => {
            let bits = if class == op::ALU64 { 64 } else { 32 };
            let operand = if by_reg { src <= 10 && i.imm == 0 } else { src == 0 };
            written
                && match i.code & 0xf0 {
                    0x00 | 0x10 | 0x20 | 0x40 | 0x50 | 0xa0 => operand && i.off == 0,
                    0x30 | 0x90 => operand && (i.off == 0 || i.off == 1) && (by_reg || i.imm != 0),
                    0x60 | 0x70 | 0xc0 => {
                        operand && i.off == 0 && (by_reg || (0..bits).contains(&i.imm))
                    }
                    0x80 => !by_reg && src == 0 && i.off == 0 && i.imm == 0,
                    0xb0 => {
                        let extends =
                            by_reg && (i.off == 8 || i.off == 16 || (i.off == 32 && bits == 64));
                        operand && (i.off == 0 || extends)
                    }
                    0xd0 => {
                        src == 0
                            && i.off == 0
                            && matches!(i.imm, 16 | 32 | 64)
                            && !(bits == 64 && by_reg)
                    }
                    _ => false,
                }
        }
        class => {
            let long = class == op::JMP32;
            let operand = if by_reg { src <= 10 && i.imm == 0 } else { src == 0 };
            match i.code & 0xf0 {
                0x00 => {
                    !by_reg && dst == 0 && src == 0 && if long { i.off == 0 } else { i.imm == 0 }
                }
                0x80 => {
                    let known = helper::by_id(i.imm as u32).is_some();
                    i.code == 0x85
                        && dst == 0
                        && i.off == 0
                        && (src == op::PSEUDO_CALL || (src == 0 && known))
                }
                0x90 => i.code == 0x95 && dst == 0 && src == 0 && i.off == 0 && i.imm == 0,
                0xe0 => i.code == 0xe5 && dst == 0 && src == 0 && i.imm == 0,
                0xf0 => false,
                _ => dst <= 10 && operand,
            }
        }
    }
}

/// A program with all registers and some stack written around the instruction.
fn around(i: Insn) -> Linked {
    let mut insns: Vec<Insn> = (0..10).map(|r| Insn::mov64_imm(r, 1)).collect();
    insns.extend((1..6).map(|w| Insn::new(op::ST | op::MEM | op::DW, 10, 0, -8 * w, 0)));
    insns.push(i);
    if i.code == op::LD_IMM64 {
        insns.push(Insn::default());
    }
    // Somewhere to land for jumps of any of the lengths below.
    insns.extend((0..34).map(|_| Insn::mov64_imm(0, 0)));
    insns.push(Insn::exit());
    Linked::from_insns("one", ProgramType::Kprobe, insns)
}

#[test]
fn what_is_not_well_formed_is_refused() {
    let mut options = Options::default();
    options.log_level = 0;
    let (mut good, mut bad) = (0, 0);
    for code in 0..=255u8 {
        for (dst, src) in
            [(0, 0), (1, 0), (0, 1), (1, 2), (10, 0), (1, 10), (10, 2), (11, 0), (0, 11), (15, 15)]
        {
            for off in [0i16, 1, 2, 8, 32, -8] {
                for imm in [0, 1, 2, 16, 31, 32, 63, 64, -1, 0x41, 0xe1, 0xf1, 0x100, 0x110] {
                    let i = Insn::new(code, dst, src, off, imm);
                    let accepted = verify(&around(i), &options).is_ok();
                    if well_formed(i) {
                        good += u32::from(accepted);
                    } else {
                        bad += 1;
                        assert!(!accepted, "{i:?} is accepted");
                    }
                }
            }
        }
    }
    // Or else the second reading refuses everything.
    assert!(good > 2_000 && bad > 100_000, "{good} accepted, {bad} not well formed");
}

#[test]
fn casts_between_address_spaces_are_refused_by_name() {
    let reason = |imm| {
        verify(&around(Insn::new(op::ALU64 | op::MOV | op::X, 1, 2, 1, imm)), &Options::default())
            .map_err(|e| e.reason.to_string())
    };
    for (imm, words) in [
        (1, "arena"),
        (1 << 16, "arena"),
        (0, "reserved"),
        (2, "reserved"),
        (1 << 16 | 1, "reserved"),
    ] {
        assert!(reason(imm).is_err_and(|e| e.contains(words)), "{imm}");
    }
}

#[test]
fn programs_have_a_beginning_and_an_end() {
    let refused = |insns: Vec<Insn>, words: &str| {
        let e = verify(&Linked::from_insns("p", ProgramType::Kprobe, insns), &Options::default())
            .expect_err(words);
        assert!(e.reason.to_string().contains(words), "{e}");
    };
    refused(Vec::new(), "no instructions");
    refused(vec![Insn::mov64_imm(0, 0)], "last insn");
    refused(vec![Insn::mov64_imm(0, 0); op::MAX_INSNS + 1], "more than");
    refused(vec![Insn::new(op::LD_IMM64, 0, 0, 0, 0)], "ld_imm64");
    refused(vec![Insn::new(op::LD_IMM64, 0, 0, 0, 0), Insn::exit(), Insn::exit()], "ld_imm64");
    let [low, high] = Insn::ld_imm64(0, 0, 7);
    for half in [Insn { code: 1, ..high }, Insn { regs: 1, ..high }, Insn { off: 1, ..high }] {
        refused(vec![low, half, Insn::exit()], "ld_imm64");
    }
    for pseudo in 1..16 {
        let [low, high] = Insn::ld_imm64(1, pseudo, 1 << 32);
        refused(vec![low, high, Insn::mov64_imm(0, 0), Insn::exit()], "");
    }
    // Into the middle of a wide instruction, out at both ends, into another function.
    let jump = |off| Insn::new(op::JMP | op::JA, 0, 0, off, 0);
    refused(vec![jump(1), low, high, Insn::exit()], "middle");
    refused(vec![jump(2), Insn::exit()], "out of range");
    refused(vec![jump(-2), Insn::exit()], "out of range");
    refused(vec![Insn::mov64_imm(0, 0), Insn::exit(), Insn::exit()], "unreachable");
    // Calls of helpers by another name.
    for src in 2..16 {
        refused(vec![Insn::new(op::CALL, 0, src, 0, 5), Insn::exit()], "");
    }
    let call = |imm| Insn::new(op::CALL, 0, op::PSEUDO_CALL, 0, imm);
    refused(vec![call(1), Insn::exit(), jump(-2), Insn::exit()], "out of range");
    refused(vec![call(7), Insn::exit()], "out of range");
    refused(vec![call(-2), Insn::exit()], "out of range");
    refused(vec![call(1), low, high, Insn::exit()], "middle");
    // Also when nobody says where the main program begins.
    let mut nameless = Linked::from_insns("p", ProgramType::Kprobe, vec![jump(2), Insn::exit()]);
    nameless.subprogs.clear();
    assert!(verify(&nameless, &Options::default()).is_err());
    // As many instructions as there may be.
    let mut most = vec![Insn::mov64_imm(0, 0); op::MAX_INSNS];
    most[op::MAX_INSNS - 1] = Insn::exit();
    assert!(
        skep_verifier::cfg::Cfg::new(&Linked::from_insns("p", ProgramType::Kprobe, most)).is_ok()
    );
}
