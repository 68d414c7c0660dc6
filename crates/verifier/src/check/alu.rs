//! Arithmetic: on numbers, and the little that is allowed on pointers.

use super::Walk;
use crate::flow::Node;
use crate::reg::{Id, Kind, Reg};
use crate::reject::Reason;
use crate::scalar::{Op, Scalar};
use crate::tnum::Tnum;
use skep_isa::{Insn, op};

/// Offsets beyond this are not followed (include/linux/bpf_verifier.h `BPF_MAX_VAR_OFF`).
const MAX_OFFSET: i64 = 1 << 29;

impl Walk<'_> {
    pub(super) fn alu(&mut self, i: Insn) -> Result<(), Reason> {
        let is64 = i.class() == op::ALU64;
        check_operand(i, is64)?;
        match i.code & 0xf0 {
            op::MOV => self.mov(i, is64),
            op::END => {
                let r = self.read(i.dst())?;
                if !r.is_scalar() {
                    if self.opts.strict {
                        return Err(Reason::PartOfPointer { reg: i.dst() });
                    }
                    self.state.set(i.dst(), Reg::UNKNOWN);
                    return Ok(());
                }
                let val = byte_swap(r.val, i, is64);
                self.put(i.dst(), val, r.node, Node::NONE);
                Ok(())
            }
            op::NEG => {
                let r = self.read(i.dst())?;
                if !r.is_scalar() {
                    if self.opts.strict {
                        return Err(Reason::PartOfPointer { reg: i.dst() });
                    }
                    self.state.set(i.dst(), Reg::UNKNOWN);
                    return Ok(());
                }
                let zero = Scalar::constant(0);
                let val = if is64 { zero.op64(Op::Sub, r.val) } else { zero.op32(Op::Sub, r.val) };
                self.put(i.dst(), val, r.node, Node::NONE);
                Ok(())
            }
            _ => self.binary(i, is64),
        }
    }

    /// Writes a number computed from the values behind two nodes.
    fn put(&mut self, dst: u8, val: Scalar, a: Node, b: Node) {
        let mut r = Reg::scalar(val);
        r.node = self.flow.derive(a, b);
        self.state.set(dst, r);
    }

    fn mov(&mut self, i: Insn, is64: bool) -> Result<(), Reason> {
        let dst = i.dst();
        if i.code & op::X == 0 {
            let n = if is64 { i.imm as i64 as u64 } else { u64::from(i.imm as u32) };
            self.state.set(dst, Reg::constant(n));
            return Ok(());
        }
        let src = self.read(i.src())?;
        if is64 && i.off == 0 {
            let mut copy = src;
            if src.is_scalar() && src.val.as_const().is_none() {
                copy = self.linked(i.src());
            }
            self.state.set(dst, copy);
            return Ok(());
        }
        if !src.is_scalar() && self.opts.strict {
            return Err(Reason::PartOfPointer { reg: i.src() });
        }
        if !src.is_scalar() {
            // Half a pointer is just a number.
            let val = if i.off != 0 { Scalar::UNKNOWN } else { Scalar::of_size(4) };
            self.state.set(dst, Reg::scalar(val));
            return Ok(());
        }
        let val = match (is64, i.off) {
            (false, 0) => src.val.truncate(32),
            (false, bits) => src.val.sign_extend(bits.unsigned_abs().into()).truncate(32),
            (true, bits) => src.val.sign_extend(bits.unsigned_abs().into()),
        };
        if val == src.val && val.as_const().is_none() {
            // What comes out fits, so what goes in did: the move changes nothing, both registers
            // hold the same number.
            let copy = self.linked(i.src());
            self.state.set(dst, copy);
            return Ok(());
        }
        let half = !is64 && i.off == 0 && val.as_const().is_none();
        let copy = if half { self.linked(i.src()) } else { src };
        self.put(dst, val, src.node, Node::NONE);
        if half {
            // clang tests `w1 = w7` and goes on with r7. The other way, a test of w7 teaches
            // nothing about w1, as in the kernel.
            let mut r = *self.state.reg(dst);
            (r.id, r.delta, r.low) = (copy.id, copy.delta, true);
            self.state.set(dst, r);
        }
        Ok(())
    }

    /// A copy of a number that will be narrowed together with the original.
    fn linked(&mut self, src: u8) -> Reg {
        let mut r = *self.state.reg(src);
        if r.id == 0 {
            r.id = self.fresh_id();
            self.state.set(src, r);
        }
        r
    }

    fn binary(&mut self, i: Insn, is64: bool) -> Result<(), Reason> {
        let dst = i.dst();
        let a = self.read(dst)?;
        let by_reg = i.code & op::X != 0;
        let b = if by_reg { self.read(i.src())? } else { Reg::constant(i.imm as i64 as u64) };
        let op = operation(i);
        match (a.is_scalar(), b.is_scalar()) {
            (true, true) => {
                let val = if is64 { a.val.op64(op, b.val) } else { a.val.op32(op, b.val) };
                self.put(dst, val, a.node, b.node);
                self.keep_apart(dst, &a, &b, op, is64);
                Ok(())
            }
            (false, true) => self.pointer(dst, a, b, op, is64, false),
            (true, false) => self.pointer(dst, b, a, op, is64, true),
            (false, false) if op == Op::Sub && !self.opts.strict => {
                // A distance, or an address that leaks: the program's process is its own, so this
                // hides nothing.
                self.state
                    .set(dst, Reg::scalar(if is64 { Scalar::UNKNOWN } else { Scalar::of_size(4) }));
                Ok(())
            }
            (false, false) => Err(Reason::PointerAndPointer { reg: dst, op: symbol(op) }),
        }
    }

    /// A number that belongs to a set of equal ones still does after a constant step, so many
    /// apart.
    fn keep_apart(&mut self, dst: u8, was: &Reg, step: &Reg, op: Op, is64: bool) {
        let Some(n) = step.as_const().map(|n| n as i64).filter(|_| was.id != 0) else { return };
        let n = match op {
            Op::Add => n,
            Op::Sub => n.wrapping_neg(),
            _ => return,
        };
        let delta = match (is64, was.low) {
            (true, false) => {
                i64::from(was.delta).checked_add(n).and_then(|d| i32::try_from(d).ok())
            }
            (false, _) => Some(was.delta.wrapping_add(n as i32)),
            // More than half a word: a step away from the number that the halves are.
            (true, true) if was.delta == 0 && self.be_whole(was.id) => i32::try_from(n).ok(),
            (true, true) => None,
        };
        let Some(delta) = delta else { return };
        let mut r = *self.state.reg(dst);
        if r.val.as_const().is_none() {
            (r.id, r.delta, r.low) = (was.id, delta, !is64);
            self.state.set(dst, r);
        }
    }

    /// The low halves of a number that is nowhere any more are a number of their own. Tells whether it is
    /// nowhere.
    fn be_whole(&mut self, id: Id) -> bool {
        let mut is_there = false;
        self.state.each(|r| is_there |= r.is_scalar() && r.id == id && !r.low);
        if !is_there {
            self.state.each(|r| r.low &= !(r.is_scalar() && r.id == id && r.delta == 0));
        }
        !is_there
    }

    /// `dst = ptr op num`, or with `swapped` `dst = num op ptr`.
    fn pointer(
        &mut self,
        dst: u8,
        ptr: Reg,
        num: Reg,
        op: Op,
        is64: bool,
        swapped: bool,
    ) -> Result<(), Reason> {
        let kind = ptr.kind.name();
        if !is64 {
            if op == Op::Sub && !self.opts.strict {
                self.state.set(dst, Reg::scalar(Scalar::of_size(4)));
                return Ok(());
            }
            return Err(Reason::Alu32OnPointer { reg: dst });
        }
        match op {
            Op::Add | Op::Sub => {}
            Op::And | Op::Or | Op::Xor => {
                return Err(Reason::BitsOfPointer { reg: dst, op: symbol(op) });
            }
            _ => return Err(Reason::PointerOperator { reg: dst, op: symbol(op) }),
        }
        let settled = num.val.as_const();
        if ptr.nullable {
            return Err(Reason::NoArithmetic { reg: dst, kind: ptr.type_name(), nullable: true });
        }
        let fixed = match ptr.kind {
            Kind::Map(_) | Kind::Func(_) | Kind::PacketEnd => settled != Some(0),
            Kind::FlowKeys => settled.is_none(),
            Kind::SockCommon | Kind::Socket | Kind::TcpSock | Kind::XdpSock => true,
            _ => false,
        };
        if fixed {
            return Err(Reason::NoArithmetic { reg: dst, kind: ptr.type_name(), nullable: false });
        }
        if op == Op::Sub && swapped {
            return Err(Reason::ScalarMinusPointer { reg: dst });
        }
        if op == Op::Sub && matches!(ptr.kind, Kind::Stack(_)) {
            return Err(Reason::StackMinus { reg: dst });
        }
        check_step(&num.val, kind)?;
        self.flow.mark(num.node);
        let mut r = ptr;
        match settled.map(|n| n as i64).and_then(|n| {
            let n = if op == Op::Sub { n.checked_neg()? } else { n };
            i32::try_from(n.checked_add(i64::from(ptr.off))?).ok()
        }) {
            Some(off) => r.off = off,
            None => {
                r.val = ptr.val.op64(op, num.val);
                if r.kind.is_packet() {
                    // Another variable part: what is known to be inside the packet no longer
                    // applies.
                    r.id = self.fresh_id();
                    r.range = 0;
                }
            }
        }
        check_offset(&r, kind)?;
        self.state.set(dst, r);
        Ok(())
    }
}

/// A step must be bounded so that offsets cannot wrap round.
fn check_step(n: &Scalar, kind: &'static str) -> Result<(), Reason> {
    if let Some(c) = n.as_const() {
        let c = c as i64;
        if c <= -MAX_OFFSET || c >= MAX_OFFSET {
            return Err(Reason::HugeStep { kind, n: c });
        }
    } else if n.r64.smin == i64::MIN {
        return Err(Reason::UnboundedStep { kind });
    } else if n.r64.smin <= -MAX_OFFSET || n.r64.smin >= MAX_OFFSET {
        return Err(Reason::MakesOutOfBounds { kind, n: n.r64.smin });
    }
    Ok(())
}

fn check_offset(r: &Reg, kind: &'static str) -> Result<(), Reason> {
    let off = i64::from(r.off);
    if off <= -MAX_OFFSET || off >= MAX_OFFSET {
        return Err(Reason::HugeOffset { kind, off });
    }
    check_step(&r.val, kind)
}

fn byte_swap(v: Scalar, i: Insn, is64: bool) -> Scalar {
    // Class ALU with K is "to little endian": on this machine only a truncation.
    let swap = is64 || i.code & op::X != 0;
    let bits = i.imm.clamp(16, 64) as u32;
    if !swap {
        return v.truncate(bits);
    }
    // What is known of each bit goes where it goes.
    let of = |n: u64| n.swap_bytes() >> (64 - bits);
    let swapped = Tnum { value: of(v.bits.value), mask: of(v.bits.mask) };
    Scalar { bits: swapped, ..Scalar::UNKNOWN }.normalize().unwrap_or(Scalar::of_size(bits / 8))
}

fn operation(i: Insn) -> Op {
    match i.code & 0xf0 {
        op::ADD => Op::Add,
        op::SUB => Op::Sub,
        op::MUL => Op::Mul,
        op::DIV if i.off == 1 => Op::Sdiv,
        op::DIV => Op::Div,
        op::MOD if i.off == 1 => Op::Smod,
        op::MOD => Op::Mod,
        op::AND => Op::And,
        op::OR => Op::Or,
        op::XOR => Op::Xor,
        op::LSH => Op::Lsh,
        op::RSH => Op::Rsh,
        _ => Op::Arsh,
    }
}

fn symbol(op: Op) -> &'static str {
    match op {
        Op::Add => "+=",
        Op::Sub => "-=",
        Op::Mul => "*=",
        Op::Div => "/=",
        Op::Sdiv => "s/=",
        Op::Mod => "%=",
        Op::Smod => "s%=",
        Op::And => "&=",
        Op::Or => "|=",
        Op::Xor => "^=",
        Op::Lsh => "<<=",
        Op::Rsh => ">>=",
        Op::Arsh => "s>>=",
    }
}

/// Tells whether a constant operand is one: where no path leads, as in Linux, it need not be.
fn check_operand(i: Insn, is64: bool) -> Result<(), Reason> {
    if i.code & op::X != 0 {
        return Ok(());
    }
    let width = if is64 { 64 } else { 32 };
    match i.code & 0xf0 {
        op::DIV | op::MOD if i.imm == 0 => Err(Reason::DivByZero),
        op::LSH | op::RSH | op::ARSH if !(0..width).contains(&i.imm) => {
            Err(Reason::BadShift { amount: i.imm })
        }
        _ => Ok(()),
    }
}
