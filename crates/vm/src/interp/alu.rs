//! Arithmetic and conditions on values.

use skep_isa::{Insn, op};

/// Computes an arithmetic instruction; `b` is the source register or the sign-extended immediate.
pub(super) fn arith(i: Insn, a: u64, b: u64) -> Option<u64> {
    if i.class() == op::ALU64 { wide(i, a, b) } else { narrow(i, a, b) }
}

fn wide(i: Insn, a: u64, b: u64) -> Option<u64> {
    let signed = i.off == 1;
    Some(match i.code & 0xf0 {
        op::ADD => a.wrapping_add(b),
        op::SUB => a.wrapping_sub(b),
        op::MUL => a.wrapping_mul(b),
        op::DIV if b == 0 => 0,
        op::DIV if signed => (a as i64).wrapping_div(b as i64) as u64,
        op::DIV => a / b,
        op::MOD if b == 0 => a,
        op::MOD if signed => (a as i64).wrapping_rem(b as i64) as u64,
        op::MOD => a % b,
        op::OR => a | b,
        op::AND => a & b,
        op::XOR => a ^ b,
        op::LSH => a.wrapping_shl(b as u32),
        op::RSH => a.wrapping_shr(b as u32),
        op::ARSH => (a as i64).wrapping_shr(b as u32) as u64,
        op::NEG => a.wrapping_neg(),
        op::MOV => extend(i.off, b)?,
        op::END => swap(i.imm, a)?,
        _ => return None,
    })
}

fn narrow(i: Insn, a: u64, b: u64) -> Option<u64> {
    if i.code & 0xf0 == op::END {
        return if i.code & op::X != 0 { swap(i.imm, a) } else { truncate(i.imm, a) };
    }
    let signed = i.off == 1;
    let (x, y) = (a as u32, b as u32);
    Some(u64::from(match i.code & 0xf0 {
        op::ADD => x.wrapping_add(y),
        op::SUB => x.wrapping_sub(y),
        op::MUL => x.wrapping_mul(y),
        op::DIV if y == 0 => 0,
        op::DIV if signed => (x as i32).wrapping_div(y as i32) as u32,
        op::DIV => x / y,
        op::MOD if y == 0 => x,
        op::MOD if signed => (x as i32).wrapping_rem(y as i32) as u32,
        op::MOD => x % y,
        op::OR => x | y,
        op::AND => x & y,
        op::XOR => x ^ y,
        op::LSH => x.wrapping_shl(y),
        op::RSH => x.wrapping_shr(y),
        op::ARSH => (x as i32).wrapping_shr(y) as u32,
        op::NEG => x.wrapping_neg(),
        op::MOV => extend(i.off, b)? as u32,
        _ => return None,
    }))
}

fn extend(bits: i16, v: u64) -> Option<u64> {
    Some(match bits {
        0 => v,
        8 => i64::from(v as i8) as u64,
        16 => i64::from(v as i16) as u64,
        32 => i64::from(v as i32) as u64,
        _ => return None,
    })
}

fn swap(bits: i32, v: u64) -> Option<u64> {
    Some(match bits {
        16 => u64::from((v as u16).swap_bytes()),
        32 => u64::from((v as u32).swap_bytes()),
        64 => v.swap_bytes(),
        _ => return None,
    })
}

fn truncate(bits: i32, v: u64) -> Option<u64> {
    Some(match bits {
        16 => u64::from(v as u16),
        32 => u64::from(v as u32),
        64 => v,
        _ => return None,
    })
}

/// Decides a conditional jump.
pub(super) fn condition(i: Insn, a: u64, b: u64) -> Option<bool> {
    let (a, b, x, y) = if i.class() == op::JMP {
        (a, b, a as i64, b as i64)
    } else {
        (u64::from(a as u32), u64::from(b as u32), i64::from(a as i32), i64::from(b as i32))
    };
    Some(match i.code & 0xf0 {
        op::JEQ => a == b,
        op::JNE => a != b,
        op::JGT => a > b,
        op::JGE => a >= b,
        op::JLT => a < b,
        op::JLE => a <= b,
        op::JSET => a & b != 0,
        op::JSGT => x > y,
        op::JSGE => x >= y,
        op::JSLT => x < y,
        op::JSLE => x <= y,
        _ => return None,
    })
}
