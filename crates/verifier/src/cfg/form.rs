//! The form of each instruction by itself: fields that must be zero, numbers that exist.

use super::Fault;
use super::jump::is_may_goto;
use crate::reject::Reason;
use skep_isa::{Insn, op};
use skep_object::Linked;

/// Checks each instruction's own fields; tells which slots are the second half of a 64-bit load.
pub(super) fn check_forms(prog: &Linked) -> Result<Vec<bool>, Fault> {
    let insns = &prog.insns;
    let mut second = vec![false; insns.len()];
    let mut i = 0;
    while i < insns.len() {
        let insn = insns[i];
        check_form(insn).map_err(|r| (i, r))?;
        if insn.is_ld_imm64() {
            let Some(high) = insns.get(i + 1).filter(|h| h.code == 0 && h.regs == 0 && h.off == 0)
            else {
                return Err((i, Reason::BadLdImm64));
            };
            check_ld_imm64(prog, insn, *high).map_err(|r| (i, r))?;
            second[i + 1] = true;
            i += 1;
        }
        i += 1;
    }
    Ok(second)
}

fn check_ld_imm64(prog: &Linked, insn: Insn, high: Insn) -> Result<(), Reason> {
    let map = || {
        usize::try_from(insn.imm)
            .ok()
            .and_then(|n| prog.maps.get(n))
            .ok_or(Reason::NoSuchMap { index: insn.imm, maps: prog.maps.len() })
    };
    match insn.src() {
        0 => Ok(()),
        op::PSEUDO_FUNC if high.imm == 0 => Ok(()),
        op::PSEUDO_MAP_IDX if high.imm == 0 => map().map(|_| ()),
        op::PSEUDO_MAP_IDX_VALUE => {
            let spec = &map()?.spec;
            // Only arrays have a value whose address never changes (`map_direct_value_addr`).
            if spec.map_type != skep_isa::MapType::Array {
                return Err(Reason::NoDirectValue);
            }
            let off = high.imm as u32;
            if off >= spec.value_size.min(1 << 29) || spec.max_entries != 1 {
                return Err(Reason::BadDirectValue { off, size: spec.value_size });
            }
            Ok(())
        }
        op::PSEUDO_MAP_FD | op::PSEUDO_MAP_VALUE => {
            Err(Reason::Unsupported { what: "a map reference that is not linked" })
        }
        op::PSEUDO_BTF_ID => Err(Reason::Unsupported { what: "the address of a kernel variable" }),
        _ => Err(Reason::BadLdImm64),
    }
}

fn check_form(i: Insn) -> Result<(), Reason> {
    let unknown = Err(Reason::UnknownOpcode { code: i.code });
    let reserved =
        |bad: bool, what| if bad { Err(Reason::ReservedFields { what }) } else { Ok(()) };
    let register = |reg: u8| {
        if reg as usize >= op::REGS { Err(Reason::NoSuchRegister { reg }) } else { Ok(()) }
    };
    let (dst, src) = (i.dst(), i.src());
    match i.class() {
        op::LD => match i.code {
            op::LD_IMM64 => {
                register(dst)?;
                reserved(i.off != 0, "BPF_LD_IMM64")
            }
            _ if matches!(i.code & 0xe0, op::ABS | op::IND) => {
                register(src)?;
                let bad = i.off != 0
                    || dst != 0
                    || i.code & 0x18 == op::DW
                    || (i.code & 0xe0 == op::ABS && src != 0);
                reserved(bad, "BPF_LD_[ABS|IND]")
            }
            _ => unknown,
        },
        op::LDX => {
            register(dst)?;
            register(src)?;
            match i.code & 0xe0 {
                op::MEM => {}
                op::MEMSX if i.code & 0x18 != op::DW => {}
                _ => return unknown,
            }
            reserved(i.imm != 0, "BPF_LDX")
        }
        op::ST => {
            register(dst)?;
            if i.code & 0xe0 != op::MEM {
                return unknown;
            }
            reserved(src != 0, "BPF_ST")
        }
        op::STX => {
            register(dst)?;
            register(src)?;
            match i.code & 0xe0 {
                op::MEM => reserved(i.imm != 0, "BPF_STX"),
                op::ATOMIC => check_atomic(i),
                _ => unknown,
            }
        }
        op::ALU | op::ALU64 => {
            register(dst)?;
            check_alu(i)
        }
        _ => check_jump(i),
    }
}

fn check_atomic(i: Insn) -> Result<(), Reason> {
    let size = i.code & 0x18;
    let plain = matches!(
        i.imm & !op::ATOMIC_FETCH,
        op::ATOMIC_ADD | op::ATOMIC_AND | op::ATOMIC_OR | op::ATOMIC_XOR
    );
    match i.imm {
        op::ATOMIC_LOAD_ACQ | op::ATOMIC_STORE_REL => Ok(()),
        _ if !plain && !matches!(i.imm, op::ATOMIC_XCHG | op::ATOMIC_CMPXCHG) => {
            Err(Reason::UnknownOpcode { code: i.code })
        }
        _ if !matches!(size, op::W | op::DW) => Err(Reason::UnknownOpcode { code: i.code }),
        _ => Ok(()),
    }
}

fn check_alu(i: Insn) -> Result<(), Reason> {
    let is64 = i.class() == op::ALU64;
    let by_reg = i.code & op::X != 0;
    let reserved =
        |bad: bool, what| if bad { Err(Reason::ReservedFields { what }) } else { Ok(()) };
    let code = i.code & 0xf0;
    if code == op::END {
        let bad = i.src() != 0 || i.off != 0 || !matches!(i.imm, 16 | 32 | 64) || (is64 && by_reg);
        return reserved(bad, "BPF_END");
    }
    if code == op::NEG {
        return reserved(by_reg || i.src() != 0 || i.off != 0 || i.imm != 0, "BPF_NEG");
    }
    if by_reg {
        if i.src() as usize >= op::REGS {
            return Err(Reason::NoSuchRegister { reg: i.src() });
        }
    } else if i.src() != 0 {
        return Err(Reason::ReservedFields { what: "BPF_ALU" });
    }
    if code == op::MOV {
        if is64 && by_reg && i.off == op::ADDR_SPACE_CAST && matches!(i.imm, 1 | 0x1_0000) {
            return Err(Reason::Unsupported {
                what: "an arena (here a cast between address spaces)",
            });
        }
        let width_ok = match i.off {
            0 => true,
            8 | 16 => by_reg,
            32 => by_reg && is64,
            _ => false,
        };
        return reserved(!width_ok || (by_reg && i.imm != 0), "BPF_MOV");
    }
    if code > op::ARSH {
        return Err(Reason::UnknownOpcode { code: i.code });
    }
    let signed_form = matches!(code, op::DIV | op::MOD) && i.off == 1;
    reserved((by_reg && i.imm != 0) || (i.off != 0 && !signed_form), "BPF_ALU")
}

fn check_jump(i: Insn) -> Result<(), Reason> {
    let reserved =
        |bad: bool, what| if bad { Err(Reason::ReservedFields { what }) } else { Ok(()) };
    let (dst, src) = (i.dst(), i.src());
    let is32 = i.class() == op::JMP32;
    match i.code & 0xf0 {
        op::JA if is32 => reserved(i.code & op::X != 0 || i.regs != 0 || i.off != 0, "BPF_JA"),
        op::JA => reserved(i.code & op::X != 0 || i.regs != 0 || i.imm != 0, "BPF_JA"),
        op::JCOND if is_may_goto(i) => reserved(i.regs != 0 || i.imm != 0, "BPF_JCOND"),
        0x80 if i.code == op::CALL => match src {
            0 => reserved(dst != 0 || i.off != 0, "BPF_CALL"),
            op::PSEUDO_CALL => reserved(dst != 0 || i.off != 0, "BPF_CALL"),
            op::PSEUDO_KFUNC_CALL => {
                Err(Reason::Unsupported { what: "a kernel function that is not linked" })
            }
            _ => Err(Reason::ReservedFields { what: "BPF_CALL" }),
        },
        0x90 if i.code == op::EXIT => reserved(i.regs != 0 || i.off != 0 || i.imm != 0, "BPF_EXIT"),
        op::JEQ..=op::JSGE | op::JLT..=op::JSLE
            if i.code & 0xf0 != 0x80 && i.code & 0xf0 != 0x90 =>
        {
            if dst as usize >= op::REGS {
                return Err(Reason::NoSuchRegister { reg: dst });
            }
            if i.code & op::X != 0 {
                if src as usize >= op::REGS {
                    return Err(Reason::NoSuchRegister { reg: src });
                }
                reserved(i.imm != 0, "BPF_JMP")
            } else {
                reserved(src != 0, "BPF_JMP")
            }
        }
        _ => Err(Reason::UnknownOpcode { code: i.code }),
    }
}
