//! Calls, and what replaces them.

use skep_isa::{Insn, MapShape, ShapeKind, op};

use super::enc::{Enc, Mem, Size, cc, group, reg};
use super::layout::Label;
use super::{Gen, machine};
use crate::env::{HelperCall, MapRef};
use crate::jit::live::{Direct, Lookup, Tail};
use crate::tail::Target;

const VECTORS: u8 = 16;

/// Loads how far this thread's part of a per-CPU map is from the first one, and returns the
/// register; changes rax. `None`: the map has no parts.
fn load_part(e: &mut Enc, kind: ShapeKind) -> Option<u8> {
    let ShapeKind::PercpuArray { slot_stride, slot_tls, by_gs } = kind else { return None };
    e.load_tls(reg::R11, slot_tls, by_gs);
    match i32::try_from(slot_stride) {
        Ok(n) => e.imul_imm(true, reg::R11, reg::R11, n),
        Err(_) => {
            e.mov_imm(reg::RAX, slot_stride);
            e.imul(true, reg::R11, reg::RAX);
        }
    }
    Some(reg::R11)
}

/// Bytes of stack that the frames may have that tail calls of functions leave behind: events happen
/// where not much is left. Main functions have room for all tail calls of the functions that they call.
const LEFT_BY_TAIL_CALLS: i32 = 20 << 10;

impl Gen<'_> {
    pub(super) fn call(&mut self, at: usize, i: Insn) -> bool {
        self.known.zero_flag = None;
        if i.src() == op::PSEUDO_CALL {
            let Some(f) = self.flow.function_at((at as i64 + 1 + i64::from(i.imm)) as usize) else {
                return false;
            };
            if self.flow.may_tail_call(f) {
                self.out.enc.load(Size::D, reg::R10, Mem::at(reg::RBP, self.frame.tails));
            }
            self.out.call(Label::Func(f));
            return true;
        }
        if let Some(lookup) = self.facts.lookup(at).copied() {
            self.lookup(&lookup);
            return true;
        }
        if let Some(&Direct { func, map, .. }) = self.facts.direct(at) {
            self.out.enc.mov_imm(machine(1), map);
            self.out.call_helper(func);
            return true;
        }
        let Some(helper) = self.flow.helper(i.imm as u32) else { return false };
        let func = helper.func as usize as u64;
        match helper.how {
            HelperCall::Plain | HelperCall::MapLookup => self.out.call_helper(func),
            HelperCall::SaveVectors => {
                self.saves_vectors = true;
                self.out.enc.mov_imm(reg::R11, func);
                self.out.call(Label::SaveVectors);
            }
            HelperCall::TailCall => self.tail_call(at, func),
            HelperCall::LoadCtx(off) => {
                self.out.enc.load(Size::D, machine(0), Mem::at(machine(1), off))
            }
        }
        true
    }

    /// Finds a value in r0 without a call: `r0 = key < entries ? base + key * stride : 0`.
    fn lookup(&mut self, lookup: &Lookup) {
        let MapRef { shape, .. } = lookup.map;
        if let Some(number) = lookup.number {
            return self.lookup_of(number, shape);
        }
        let key = lookup.key.map_or(Mem::at(machine(2), 0), |off| Mem::at(reg::RBP, off));
        let e = &mut self.out.enc;
        e.load(Size::W, reg::R10, key);
        e.mov_imm(reg::RAX, 0);
        match i32::try_from(shape.entries) {
            Ok(n) => e.group_imm(false, group::CMP, reg::R10, n),
            Err(_) => {
                e.mov_imm(reg::R11, u64::from(shape.entries));
                e.group(false, group::CMP, reg::R10, reg::R11);
            }
        }
        let none = e.skip(Some(cc::AE));
        let part = load_part(e, shape.kind);
        let scale = match shape.stride {
            1 => 0,
            2 => 1,
            4 => 2,
            8 => 3,
            n => {
                // The stride fits: larger ones are left to the call.
                e.imul_imm(true, reg::R10, reg::R10, n as i32);
                0
            }
        };
        e.mov_imm(reg::RAX, shape.base);
        e.lea(true, reg::RAX, Mem { base: reg::RAX, index: Some((reg::R10, scale)), disp: 0 });
        if let Some(part) = part {
            e.group(true, group::ADD, reg::RAX, part);
        }
        e.land(none);
    }

    /// The same for a known key.
    fn lookup_of(&mut self, number: u32, shape: MapShape) {
        let e = &mut self.out.enc;
        if number >= shape.entries {
            return e.mov_imm(reg::RAX, 0);
        }
        let part = load_part(e, shape.kind);
        e.mov_imm(reg::RAX, shape.base.wrapping_add(u64::from(number).wrapping_mul(shape.stride)));
        if let Some(part) = part {
            e.group(true, group::ADD, reg::RAX, part);
        }
    }

    /// Continues with another program, or with the next instruction. The array's slot and table are
    /// read here when they are known; else, or when the slot names a program that the table does
    /// not have, the helper `func` is asked.
    fn tail_call(&mut self, at: usize, func: u64) {
        let none = Label::Insn(at + 1);
        let index = machine(3);
        let (count, target) = (reg::R10, reg::R9);
        if self.known.narrow & 1 << 3 == 0 {
            self.out.enc.mov(false, index, index);
        }
        self.out.enc.load(Size::D, count, Mem::at(reg::RBP, self.frame.tails));
        self.out.enc.group_store_imm(
            Size::W,
            group::CMP,
            Mem::at(count, 0),
            op::MAX_TAIL_CALLS as i32,
        );
        self.out.jump(Some(cc::AE), none);
        if !self.is_main {
            // The frames of those that called this function stay.
            let e = &mut self.out.enc;
            e.mov(true, reg::R11, count);
            e.group(true, group::SUB, reg::R11, reg::RSP);
            e.group_imm(true, group::CMP, reg::R11, LEFT_BY_TAIL_CALLS);
            self.out.jump(Some(cc::AE), none);
        }
        let Some(&Tail { shape, targets, number, .. }) = self.facts.tail(at) else {
            self.ask(func, none);
            return self.continue_with(target, none);
        };
        let scale = if shape.stride == 8 { 3 } else { 2 };
        if number.is_none() {
            match i32::try_from(shape.entries) {
                Ok(n) => self.out.enc.group_imm(false, group::CMP, index, n),
                Err(_) => {
                    self.out.enc.mov_imm(reg::R11, u64::from(shape.entries));
                    self.out.enc.group(false, group::CMP, index, reg::R11);
                }
            }
            self.out.jump(Some(cc::AE), none);
        } else if number.is_some_and(|n| n >= shape.entries) {
            return self.out.jump(None, none);
        }
        // A row of a known number is at a known address.
        let row = |base: u64, scale: u8| match number {
            Some(n) => (base.wrapping_add(u64::from(n) << scale), None),
            None => (base, Some((index, scale))),
        };
        let (slow, found) = (self.out.local(), self.out.local());
        let e = &mut self.out.enc;
        let (base, index) = row(shape.base, scale);
        e.mov_imm(target, base);
        e.load(Size::W, reg::RAX, Mem { base: target, index, disp: 0 });
        e.test(false, reg::RAX, reg::RAX);
        self.out.jump(Some(cc::E), none);
        let e = &mut self.out.enc;
        let (base, index) = row(targets, 3);
        e.mov_imm(target, base);
        e.load(Size::D, target, Mem { base: target, index, disp: 0 });
        e.group_load(false, group::CMP, reg::RAX, Mem::at(target, Target::ID));
        self.out.jump(Some(cc::NE), slow);
        self.out.bind(found);
        self.continue_with(target, none);
        self.out.bind(slow);
        self.ask(func, none);
        self.out.jump(None, found);
    }

    /// Asks the helper for the target, which is in r9 then, with the address of the count in r10.
    fn ask(&mut self, func: u64, none: Label) {
        let (ctx, kept) = (machine(1), Mem::at(reg::RBP, self.frame.ctx));
        self.saves_vectors = true;
        self.out.enc.store(Size::D, kept, ctx);
        self.out.enc.mov_imm(reg::R11, func);
        self.out.call(Label::SaveVectors);
        let e = &mut self.out.enc;
        e.load(Size::D, ctx, kept);
        e.load(Size::D, reg::R10, Mem::at(reg::RBP, self.frame.tails));
        e.mov(true, reg::R9, reg::RAX);
        e.test(true, reg::R9, reg::R9);
        self.out.jump(Some(cc::E), none);
    }

    /// Goes over to a target, in this function's frame or without it. The address of the count is
    /// in r10.
    fn continue_with(&mut self, target: u8, none: Label) {
        let count = Mem::at(reg::R10, 0);
        let other = self.out.local();
        self.out.enc.group_store_imm(
            Size::D,
            group::CMP,
            Mem::at(target, Target::FRAME),
            self.frame.kind(),
        );
        self.out.jump(Some(cc::NE), other);
        self.out.enc.group_store_imm(Size::W, group::ADD, count, 1);
        self.out.enc.jump_mem(Mem::at(target, Target::INNER));
        self.out.bind(other);
        self.out.enc.load(Size::D, reg::RAX, Mem::at(target, Target::ENTRY));
        self.out.enc.test(true, reg::RAX, reg::RAX);
        self.out.jump(Some(cc::E), none);
        self.out.enc.group_store_imm(Size::W, group::ADD, count, 1);
        self.take_down();
        self.out.enc.jump_reg(reg::RAX);
    }

    /// Generates what helpers that use vector registers are called through, the helper in r11:
    ///
    /// ```text
    ///   rbp + 8     return address
    ///   rbp         the caller's rbp
    ///   rsp         xmm0 … xmm15, aligned
    /// ```
    ///
    /// The stack is aligned here and nowhere else: a program may be entered with any alignment,
    /// since compilers call their own static functions with a stack that is not aligned when they
    /// see that the function does not mind (gcc's `-fipa-stack-alignment`), and a hook does not
    /// know it was such a function.
    pub(super) fn vector_saver(&mut self) {
        if !self.saves_vectors {
            return;
        }
        self.out.align(16);
        self.out.save_vectors();
        let e = &mut self.out.enc;
        let size = i32::from(VECTORS) * 16;
        let slot = |n: u8| Mem::at(reg::RSP, i32::from(n) * 16);
        e.push(reg::RBP);
        e.mov(true, reg::RBP, reg::RSP);
        e.group_imm(true, group::SUB, reg::RSP, size);
        e.group_imm(true, group::AND, reg::RSP, -16);
        for n in 0..VECTORS {
            e.save_vector(slot(n), n);
        }
        e.call_reg(reg::R11);
        for n in 0..VECTORS {
            e.restore_vector(slot(n), n);
        }
        e.leave();
        e.ret();
    }
}
