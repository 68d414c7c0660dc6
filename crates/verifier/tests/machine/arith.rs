//! What the instructions compute (RFC 9669), written without a look at the verifier's own idea of
//! it.

use skep_isa::{Insn, op};

/// `a op b` for every two-operand instruction but the moves.
pub fn binary(i: Insn, a: u64, b: u64) -> u64 {
    let wide = i.class() == op::ALU64;
    let (x, y) = (a as u32, b as u32);
    let signed = i.off == 1;
    if wide {
        match i.code & 0xf0 {
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
            op::LSH => a << (b & 63),
            op::RSH => a >> (b & 63),
            _ => ((a as i64) >> (b & 63)) as u64,
        }
    } else {
        let n = match i.code & 0xf0 {
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
            op::LSH => x << (y & 31),
            op::RSH => x >> (y & 31),
            _ => ((x as i32) >> (y & 31)) as u32,
        };
        u64::from(n)
    }
}

/// A move, also a sign-extending one.
pub fn moved(i: Insn, b: u64) -> u64 {
    let n = match i.off {
        8 => b as i8 as i64 as u64,
        16 => b as i16 as i64 as u64,
        32 => b as i32 as i64 as u64,
        _ => b,
    };
    if i.class() == op::ALU64 { n } else { u64::from(n as u32) }
}

/// Byte order instructions on a little-endian machine.
pub fn byte_order(i: Insn, a: u64) -> u64 {
    let keep = |n: u64| if i.imm == 64 { n } else { n & ((1 << i.imm) - 1) };
    if i.class() == op::ALU64 || i.code & op::X != 0 {
        match i.imm {
            16 => u64::from((a as u16).swap_bytes()),
            32 => u64::from((a as u32).swap_bytes()),
            _ => a.swap_bytes(),
        }
    } else {
        keep(a)
    }
}

/// Tells whether a conditional jump is taken.
pub fn taken(i: Insn, a: u64, b: u64) -> bool {
    let narrow = i.class() == op::JMP32;
    let (a, b) = if narrow { (u64::from(a as u32), u64::from(b as u32)) } else { (a, b) };
    let (sa, sb) =
        if narrow { (i64::from(a as i32), i64::from(b as i32)) } else { (a as i64, b as i64) };
    match i.code & 0xf0 {
        op::JEQ => a == b,
        op::JNE => a != b,
        op::JGT => a > b,
        op::JGE => a >= b,
        op::JLT => a < b,
        op::JLE => a <= b,
        op::JSGT => sa > sb,
        op::JSGE => sa >= sb,
        op::JSLT => sa < sb,
        op::JSLE => sa <= sb,
        _ => a & b != 0,
    }
}

/// What an atomic instruction leaves in memory.
pub fn atomic(imm: i32, old: u64, n: u64) -> u64 {
    match imm & !op::ATOMIC_FETCH {
        op::ATOMIC_ADD => old.wrapping_add(n),
        op::ATOMIC_OR => old | n,
        op::ATOMIC_AND => old & n,
        op::ATOMIC_XOR => old ^ n,
        _ => n,
    }
}
