//! Instructions that are better done together: what BPF has no word for, and what x86 does in one
//! go.
//!
//! Each pattern looks at a run of instructions that nothing jumps into, writes the code for all of
//! them, and says how many slots that took. A register that a pattern no longer sets must be dead
//! after it.

use skep_isa::{Insn, op};

use super::alu::group_of;
use super::enc::{Mem, Size, group, shift};
use super::jump::condition;
use super::mem::size;
use super::{Gen, machine};
use crate::check::{FUNC, SECOND, TARGET, is_goto, jump};

const MOV64: u8 = op::ALU64 | op::X | op::MOV;
const ADD64: u8 = op::ALU64 | op::X | op::ADD;
const ADD64_IMM: u8 = op::ALU64 | op::K | op::ADD;
const ADD32_IMM: u8 = op::ALU | op::K | op::ADD;
const LSH64_IMM: u8 = op::ALU64 | op::K | op::LSH;
const RSH64_IMM: u8 = op::ALU64 | op::K | op::RSH;
const ARSH64_IMM: u8 = op::ALU64 | op::K | op::ARSH;

impl Gen<'_> {
    /// Generates the instructions from `at` on as one, and returns how many slots they take.
    pub(super) fn merged(&mut self, at: usize, first: &Insn) -> Option<usize> {
        let t = first.dst();
        match first.class() {
            op::LD => self.constant_operand(at).or_else(|| self.address(at)),
            op::JMP | op::JMP32 if self.answered != Some(at) => {
                let inverted = if first.off == 1 { self.inverted(at) } else { None };
                inverted.or_else(|| self.counted(at))
            }
            // What follows most instructions has nothing to do with what they made.
            op::ALU | op::ALU64 => {
                let copies = first.code & 0xf0 == op::MOV;
                if copies && first.off != 0 {
                    return None;
                }
                let next = self.next(at)?;
                if next.is_ld_imm64() && first.code == LSH64_IMM {
                    return self.scaled(at);
                }
                if next.dst() != t && !(next.src() == t && next.class() == op::LDX) {
                    return None;
                }
                let rotated = if copies { self.rotate(at) } else { None };
                let extended = rotated.or_else(|| {
                    if copies || first.code == LSH64_IMM { self.extend(at) } else { None }
                });
                extended.or_else(|| self.address(at))
            }
            op::LDX if first.code & 0xe0 == op::MEM => {
                let gathered = if matches!(first.code & op::DW, op::B | op::H) {
                    self.wide_load(at)
                } else {
                    None
                };
                if gathered.is_some() {
                    return gathered;
                }
                let next = self.next(at)?;
                if next.dst() != t && next.src() != t {
                    return None;
                }
                match next.class() {
                    op::JMP | op::JMP32 => self.load_compare(at),
                    op::ALU | op::ALU64 => self
                        .change_memory(at)
                        .or_else(|| self.load_operand(at))
                        .or_else(|| self.load_swapped(at)),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// Returns the instruction after slot `at`, when nothing jumps there.
    fn next(&self, at: usize) -> Option<Insn> {
        let mark = self.flow.marks.get(at + 1)?;
        if mark & (TARGET | FUNC | SECOND) != 0 { None } else { self.insns.get(at + 1).copied() }
    }

    /// `if a op b goto +1; goto far`: how clang writes most loops. It is one jump on the opposite
    /// condition.
    fn inverted(&mut self, at: usize) -> Option<usize> {
        let [branch, goto] = self.run::<2>(at)?;
        let c = condition(branch).filter(|_| branch.code != op::CALL && branch.code != op::EXIT)?;
        if !is_goto(goto) || jump(branch) != Some(1) {
            return None;
        }
        self.compare(&branch);
        Some(self.branch(at, branch, c))
    }

    /// `if a < b goto l; c += 1; l:`, also with a `goto l` after the addition: the carry of the
    /// comparison is what is added.
    fn counted(&mut self, at: usize) -> Option<usize> {
        let add = self
            .next(at)
            .filter(|add| matches!(add.code, ADD32_IMM | ADD64_IMM) && add.imm == 1)?;
        let branch = self.insn(at);
        let (wide, r) = (add.class() == op::ALU64, add.dst());
        let distance = jump(branch)?;
        let after = self.insn(at + 2);
        if distance != 1 && !(is_goto(after) && jump(after).is_some_and(|d| d + 2 == distance)) {
            return None;
        }
        // Where nothing is added, the upper half stays as well.
        if !wide && self.known.narrow & 1 << r == 0 {
            return None;
        }
        let w = branch.class() == op::JMP;
        let (a, b) = (machine(branch.dst()), machine(branch.src()));
        let above = branch.imm.checked_add(1).filter(|_| branch.imm != -1);
        let e = &mut self.out.enc;
        // The carry tells that the first is below the second; it says to add, or not to.
        let adds = match (branch.code & 0xf0, branch.code & op::X != 0) {
            (o @ (op::JGE | op::JLT), x) => {
                if x {
                    e.group(w, group::CMP, a, b)
                } else {
                    e.group_imm(w, group::CMP, a, branch.imm)
                }
                o == op::JGE
            }
            (o @ (op::JGT | op::JLE), true) => {
                e.group(w, group::CMP, b, a);
                o == op::JLE
            }
            (o @ (op::JGT | op::JLE), false) => {
                e.group_imm(w, group::CMP, a, above?);
                o == op::JGT
            }
            (o @ (op::JEQ | op::JNE), false) if branch.imm == 0 => {
                e.group_imm(w, group::CMP, a, 1);
                o == op::JNE
            }
            _ => return None,
        };
        let (g, imm) = if adds { (group::ADC, 0) } else { (group::SBB, -1) };
        e.group_imm(wide, g, machine(r), imm);
        Some(2)
    }

    /// An operand that the function keeps in a register: `t = value; d op= t` with `t` not needed
    /// after.
    fn constant_operand(&mut self, at: usize) -> Option<usize> {
        let (first, alu) = (self.insn(at), self.insn(at + 2));
        let (t, w) = (first.dst(), alu.class() == op::ALU64);
        let operates = matches!(alu.class(), op::ALU | op::ALU64)
            && alu.code & op::X != 0
            && alu.src() == t
            && alu.dst() != t;
        if !operates
            || self.flow.mark(at + 2) & (TARGET | FUNC | SECOND) != 0
            || !self.dead_after(at + 2, t)
        {
            return None;
        }
        let c = self.wide(at, first).and_then(|value| self.constant(value))?;
        let d = machine(alu.dst());
        self.out.enc.group(w, group_of(alu.code & 0xf0)?, d, c);
        self.flags_of(d, w);
        Some(3)
    }

    /// A rotate is two opposite shifts of copies of one value, joined:
    /// `u = a; u >>= n; a <<= bits - n; a |= u`, or both shifts on copies, in either order and
    /// direction.
    fn rotate(&mut self, at: usize) -> Option<usize> {
        let [copy, one] = self.run::<2>(at)?;
        if !is_copy(copy) || !is_shift(one, copy.dst(), copy.class()) || copy.dst() == copy.src() {
            return None;
        }
        let w = copy.class() == op::ALU64;
        let bits = if w { 64 } else { 32 };
        let (a, p) = (copy.src(), copy.dst());
        // The second copy, if there is one.
        let third = *self.run::<3>(at)?.last()?;
        let (q, len) = if is_copy(third)
            && third.class() == copy.class()
            && third.src() == a
            && third.dst() != p
        {
            (third.dst(), 5)
        } else {
            (a, 4)
        };
        let (two, join) = if len == 5 {
            let [.., two, join] = self.run::<5>(at)?;
            (two, join)
        } else {
            let [.., two, join] = self.run::<4>(at)?;
            (two, join)
        };
        let opposite = one.code & 0xf0 != two.code & 0xf0;
        let whole = one.imm > 0 && two.imm > 0 && one.imm.checked_add(two.imm) == Some(bits);
        if !is_shift(two, q, copy.class())
            || !opposite
            || !whole
            || join.code != copy.class() | op::X | op::OR
        {
            return None;
        }
        let other = match (join.dst(), join.src()) {
            (d, s) if d == p && s == q => q,
            (d, s) if d == q && s == p => p,
            _ => return None,
        };
        if !self.dead_after(at + len - 1, other) || a == op::FP {
            return None;
        }
        let left = if one.code & 0xf0 == op::LSH { one.imm } else { two.imm };
        let (d, s) = (machine(join.dst()), machine(a));
        if d == s {
            self.out.enc.shift_imm(w, shift::ROL, d, left as u8);
        } else if self.cpu.bmi2 {
            self.out.enc.rorx(w, d, s, (bits - left) as u8);
        } else {
            self.out.enc.mov(w, d, s);
            self.out.enc.shift_imm(w, shift::ROL, d, left as u8);
        }
        Some(len)
    }

    /// `d <<= 32; d >>= 32` clears an upper half, with an arithmetic shift it spreads the sign;
    /// often on a fresh copy.
    fn extend(&mut self, at: usize) -> Option<usize> {
        let pair = |a: Insn, b: Insn| {
            let right = matches!(b.code, RSH64_IMM | ARSH64_IMM);
            a.code == LSH64_IMM && right && a.imm == 32 && b.imm == 32 && a.dst() == b.dst()
        };
        let (d, s, last, len) = match self.run::<3>(at) {
            Some([copy, a, b])
                if copy.code == MOV64 && copy.off == 0 && copy.dst() == a.dst() && pair(a, b) =>
            {
                (a.dst(), copy.src(), b, 3)
            }
            _ => match self.run::<2>(at) {
                Some([a, b]) if pair(a, b) => (a.dst(), a.dst(), b, 2),
                _ => return None,
            },
        };
        let (d, narrow, s) = (machine(d), self.known.narrow & 1 << s != 0, machine(s));
        if last.code == ARSH64_IMM {
            self.out.enc.sign_extend(true, Size::W, d, s);
        } else if d != s || !narrow {
            self.out.enc.mov(false, d, s);
        }
        Some(len)
    }

    /// A sum of registers and constants, and the access through it when there is one:
    /// `t = a; t <<= 3; t += b; t += 8; d = *(t + 4)` is one load.
    fn address(&mut self, at: usize) -> Option<usize> {
        let first = self.insn(at);
        let t = first.dst();
        let (mut sum, mut len) = if first.is_ld_imm64() {
            (
                Sum {
                    base: Some(self.wide(at, first).and_then(|v| self.constant(v))?),
                    index: None,
                    disp: 0,
                },
                2,
            )
        } else {
            (Sum::start(first)?, 1)
        };
        let alone = len;
        while self.flow.marks.get(at + len).is_some_and(|m| m & (TARGET | FUNC | SECOND) == 0) {
            match sum.with(self.insn(at + len), t) {
                Some(more) => sum = more,
                None => {
                    if let Some(mem) = self.access(at + len, t, sum) {
                        self.through(self.insn(at + len), mem);
                        return Some(len + 1);
                    }
                    break;
                }
            }
            len += 1;
        }
        if len == alone {
            return None;
        }
        let mem = sum.mem(0)?;
        if !self.dead_after(at + len - 1, t) {
            self.out.enc.lea(true, machine(t), mem);
        }
        Some(len)
    }

    /// An index into a table whose address the function keeps: `d <<= 2; t = table; t += d`, and
    /// the access through `t` when there is one; `d` not needed after.
    fn scaled(&mut self, at: usize) -> Option<usize> {
        let (shift, table, add, then) =
            (self.insn(at), self.insn(at + 1), self.insn(at + 3), self.insn(at + 4));
        let (d, t) = (shift.dst(), table.dst());
        let plain = |at: usize| self.flow.mark(at) & (TARGET | FUNC | SECOND) == 0;
        if !matches!(shift.imm, 1..=3)
            || !plain(at + 3)
            || add.code != ADD64
            || (add.dst(), add.src()) != (t, d)
            || t == d
        {
            return None;
        }
        let base = self.wide(at + 1, table).and_then(|value| self.constant(value))?;
        let sum = Sum { base: Some(base), index: Some((machine(d), shift.imm as u8)), disp: 0 };
        let access = if plain(at + 4) { self.access(at + 4, t, sum) } else { None };
        let loads = then.class() == op::LDX;
        let last =
            self.dead_after(at + 4, d) && (loads || then.class() == op::ST || then.src() != d);
        if let Some(mem) = access.filter(|_| last || loads && then.dst() == d) {
            self.through(then, mem);
            return Some(5);
        }
        if !self.dead_after(at + 3, d) {
            return None;
        }
        self.out.enc.lea(true, machine(t), sum.mem(0)?);
        Some(4)
    }

    /// Returns the place that slot `at` reads or writes when it does so through `t` for the last
    /// time.
    fn access(&self, at: usize, t: u8, sum: Sum) -> Option<Mem> {
        let i = self.insn(at);
        let last = self.dead_after(at, t);
        let through = match (i.class(), i.code & 0xe0) {
            (op::LDX, op::MEM | op::MEMSX) => i.src() == t && (last || i.dst() == t),
            (op::STX, op::MEM) => i.dst() == t && i.src() != t && last,
            (op::ST, op::MEM) => i.dst() == t && last,
            _ => false,
        };
        if through { sum.mem(i32::from(i.off)) } else { None }
    }

    fn through(&mut self, i: Insn, mem: Mem) {
        let e = &mut self.out.enc;
        match (i.class(), i.code & 0xe0) {
            (op::LDX, op::MEMSX) => e.load_signed(size(&i), machine(i.dst()), mem),
            (op::LDX, _) => e.load(size(&i), machine(i.dst()), mem),
            (op::ST, _) => e.store_imm(size(&i), mem, i.imm),
            _ => e.store(size(&i), mem, machine(i.src())),
        }
    }

    /// Arithmetic in place: `t = [m]; t op= x; [m] = t` with `t` not needed after.
    fn change_memory(&mut self, at: usize) -> Option<usize> {
        let [load, change, store] = self.run::<3>(at)?;
        let t = load.dst();
        let place = (load.src(), load.off, load.code & op::DW);
        let same = store.class() == op::STX
            && store.code & 0xe0 == op::MEM
            && (store.dst(), store.off, store.code & op::DW) == place;
        if !same || store.src() != t || load.src() == t || !self.dead_after(at + 2, t) {
            return None;
        }
        let wide = change.class() == op::ALU64
            || (change.class() == op::ALU && load.code & op::DW != op::DW);
        if !wide || change.dst() != t || change.off != 0 {
            return None;
        }
        let g = group_of(change.code & 0xf0)?;
        let mem = Mem::at(machine(load.src()), i32::from(load.off));
        if change.code & op::X == 0 {
            self.out.enc.group_store_imm(size(&load), g, mem, change.imm);
        } else if change.src() == t {
            return None;
        } else {
            self.out.enc.group_store(size(&load), g, mem, machine(change.src()));
        }
        Some(3)
    }

    /// An operand from memory: `t = [m]; d op= t` with `t` not needed after.
    fn load_operand(&mut self, at: usize) -> Option<usize> {
        let [load, alu] = self.run::<2>(at)?;
        let t = load.dst();
        let w = match (load.code & op::DW, alu.class()) {
            (op::DW, op::ALU64) => true,
            (op::W | op::DW, op::ALU) => false,
            _ => return None,
        };
        if alu.code & op::X == 0 || alu.src() != t || alu.dst() == t || !self.dead_after(at + 1, t)
        {
            return None;
        }
        let g = group_of(alu.code & 0xf0)?;
        let d = machine(alu.dst());
        self.out.enc.group_load(w, g, d, Mem::at(machine(load.src()), i32::from(load.off)));
        self.flags_of(d, w);
        Some(2)
    }

    /// A comparison with memory: `t = [m]; if t op x goto` with `t` not needed after.
    fn load_compare(&mut self, at: usize) -> Option<usize> {
        let [load, branch] = self.run::<2>(at)?;
        let t = load.dst();
        let c = condition(branch)?;
        let x = branch.code & op::X != 0;
        let wide = match branch.class() {
            op::JMP => true,
            op::JMP32 => false,
            _ => return None,
        };
        if branch.dst() != t
            || (x && branch.src() == t)
            || jump(branch) == Some(0)
            || !self.dead_after(at + 1, t)
        {
            return None;
        }
        // What was loaded has zeros above, so a narrower comparison is the same only without sign.
        let unsigned = !matches!(branch.code & 0xf0, op::JSGT | op::JSGE | op::JSLT | op::JSLE);
        let size = match (load.code & op::DW, x) {
            (op::DW, _) if wide => Size::D,
            (op::DW, _) => Size::W,
            (op::W, _) if !wide => Size::W,
            (op::W, false) if unsigned && branch.imm >= 0 => Size::W,
            (op::H, false)
                if unsigned
                    && (0..=127).contains(&branch.imm)
                    && branch.code & 0xf0 != op::JSET =>
            {
                Size::H
            }
            (op::B, false) if unsigned && (0..=255).contains(&branch.imm) => Size::B,
            _ => return None,
        };
        let mem = Mem::at(machine(load.src()), i32::from(load.off));
        let s = machine(branch.src());
        let e = &mut self.out.enc;
        match (branch.code & 0xf0 == op::JSET, x) {
            (true, true) => e.test_store(size, mem, s),
            (true, false) => e.test_store_imm(size, mem, branch.imm),
            (false, true) => e.group_store(size, group::CMP, mem, s),
            (false, false) => e.group_store_imm(size, group::CMP, mem, branch.imm),
        }
        Some(1 + self.branch(at + 1, branch, c))
    }

    /// A load in the other byte order.
    fn load_swapped(&mut self, at: usize) -> Option<usize> {
        let [load, swap] = self.run::<2>(at)?;
        let swaps =
            swap.code == op::ALU | op::X | op::END || swap.code == op::ALU64 | op::K | op::END;
        if !self.cpu.movbe || !swaps || swap.dst() != load.dst() {
            return None;
        }
        let w = match (load.code & op::DW, swap.imm) {
            (op::W, 32) => false,
            (op::DW, 64) => true,
            _ => return None,
        };
        self.out.enc.load_swapped(
            w,
            machine(load.dst()),
            Mem::at(machine(load.src()), i32::from(load.off)),
        );
        Some(2)
    }
}

fn is_copy(i: Insn) -> bool {
    i.code & !0x07 == op::X | op::MOV && matches!(i.class(), op::ALU | op::ALU64) && i.off == 0
}

fn is_shift(i: Insn, d: u8, class: u8) -> bool {
    (i.code == class | op::LSH || i.code == class | op::RSH) && i.dst() == d
}

/// A sum that one memory operand can express: `base + (index << scale) + disp`, in machine
/// registers.
#[derive(Clone, Copy)]
struct Sum {
    base: Option<u8>,
    index: Option<(u8, u8)>,
    disp: i32,
}

impl Sum {
    /// Starts with the instruction that first sets or changes the register.
    fn start(i: Insn) -> Option<Self> {
        let t = i.dst();
        let none = Self { base: None, index: None, disp: 0 };
        match i.code {
            MOV64 if i.off == 0 && i.src() != t => {
                Some(Self { base: Some(machine(i.src())), ..none })
            }
            LSH64_IMM if matches!(i.imm, 1..=3) => {
                Some(Self { index: Some((machine(t), i.imm as u8)), ..none })
            }
            ADD64 if i.src() != t => {
                Some(Self { base: Some(machine(t)), index: Some((machine(i.src()), 0)), ..none })
            }
            ADD64_IMM => Some(Self { base: Some(machine(t)), disp: i.imm, ..none }),
            _ => None,
        }
    }

    /// Adds one more instruction on register `t`.
    fn with(self, i: Insn, t: u8) -> Option<Self> {
        if i.dst() != t {
            return None;
        }
        match (i.code, self) {
            (LSH64_IMM, Self { base: Some(b), index: None, disp: 0 }) if matches!(i.imm, 1..=3) => {
                Some(Self { base: None, index: Some((b, i.imm as u8)), disp: 0 })
            }
            (ADD64, Self { base: None, .. }) if i.src() != t => {
                Some(Self { base: Some(machine(i.src())), ..self })
            }
            (ADD64, Self { index: None, .. }) if i.src() != t => {
                Some(Self { index: Some((machine(i.src()), 0)), ..self })
            }
            (ADD64_IMM, _) => Some(Self { disp: self.disp.checked_add(i.imm)?, ..self }),
            _ => None,
        }
    }

    /// Returns the memory operand, `more` bytes further on.
    fn mem(self, more: i32) -> Option<Mem> {
        Some(Mem { base: self.base?, index: self.index, disp: self.disp.checked_add(more)? })
    }
}
