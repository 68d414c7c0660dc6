//! Instructions that are better done together: what BPF has no word for, and what x86 does in one go.
//!
//! Each pattern looks at a run of instructions that nothing jumps into, writes the code for all of them, and says how
//! many slots that took. A register that a pattern no longer sets must be dead after it.

use skep_isa::{Insn, op};

use super::alu::group_of;
use super::enc::{Mem, shift};
use super::mem::size;
use super::{Gen, machine};

const MOV64: u8 = op::ALU64 | op::X | op::MOV;
const ADD64: u8 = op::ALU64 | op::X | op::ADD;
const ADD64_IMM: u8 = op::ALU64 | op::K | op::ADD;
const LSH64_IMM: u8 = op::ALU64 | op::K | op::LSH;
const RSH64_IMM: u8 = op::ALU64 | op::K | op::RSH;
const ARSH64_IMM: u8 = op::ALU64 | op::K | op::ARSH;

impl Gen<'_> {
    /// Generates the instructions from `at` on as one, and returns how many slots they take.
    pub(super) fn merged(&mut self, at: usize) -> Option<usize> {
        let first = self.insn(at);
        match first.class() {
            op::ALU | op::ALU64 => self.rotate(at).or_else(|| self.extend(at)).or_else(|| self.address(at)),
            op::LDX if first.code & 0xe0 == op::MEM => {
                self.change_memory(at).or_else(|| self.load_operand(at)).or_else(|| self.load_swapped(at))
            }
            _ => None,
        }
    }

    /// A rotate is two opposite shifts of copies of one value, joined:
    /// `u = a; u >>= n; a <<= bits - n; a |= u`, or both shifts on copies, in either order and direction.
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
        let (q, len) = if is_copy(third) && third.class() == copy.class() && third.src() == a && third.dst() != p {
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
        if !is_shift(two, q, copy.class()) || !opposite || !whole || join.code != copy.class() | op::X | op::OR {
            return None;
        }
        let other = match (join.dst(), join.src()) {
            (d, s) if d == p && s == q => q,
            (d, s) if d == q && s == p => p,
            _ => return None,
        };
        if !self.facts.dead_after(at + len - 1, other) || a == op::FP {
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

    /// `d <<= 32; d >>= 32` clears an upper half, with an arithmetic shift it spreads the sign; often on a fresh copy.
    fn extend(&mut self, at: usize) -> Option<usize> {
        let pair = |a: Insn, b: Insn| {
            let right = matches!(b.code, RSH64_IMM | ARSH64_IMM);
            a.code == LSH64_IMM && right && a.imm == 32 && b.imm == 32 && a.dst() == b.dst()
        };
        let (d, s, last, len) = match self.run::<3>(at) {
            Some([copy, a, b]) if copy.code == MOV64 && copy.off == 0 && copy.dst() == a.dst() && pair(a, b) => (a.dst(), copy.src(), b, 3),
            _ => match self.run::<2>(at) {
                Some([a, b]) if pair(a, b) => (a.dst(), a.dst(), b, 2),
                _ => return None,
            },
        };
        let (d, narrow, s) = (machine(d), self.known.narrow & 1 << s != 0, machine(s));
        if last.code == ARSH64_IMM {
            self.out.enc.sign_extend(true, super::enc::Size::W, d, s);
        } else if d != s || !narrow {
            self.out.enc.mov(false, d, s);
        }
        Some(len)
    }

    /// Sums into another register: `d = s; d += imm`, `d = s; d += t`, `d = s; d <<= 1, 2 or 3; d += t`.
    fn address(&mut self, at: usize) -> Option<usize> {
        if let Some([copy, scale, add]) = self.run::<3>(at)
            && copy.code == MOV64
            && copy.off == 0
            && copy.dst() != copy.src()
            && let Some(n) = scaled(scale, copy.dst())
            && add.code == ADD64
            && add.dst() == copy.dst()
            && add.src() != copy.dst()
        {
            let mem = Mem { base: machine(add.src()), index: Some((machine(copy.src()), n)), disp: 0 };
            self.out.enc.lea(true, machine(copy.dst()), mem);
            return Some(3);
        }
        let [first, add] = self.run::<2>(at)?;
        let d = first.dst();
        if add.dst() != d {
            return None;
        }
        let mem = if first.code == MOV64 && first.off == 0 && first.src() != d {
            let base = machine(first.src());
            match add.code {
                ADD64_IMM => Mem::at(base, add.imm),
                ADD64 if add.src() != d => Mem { base, index: Some((machine(add.src()), 0)), disp: 0 },
                _ => return None,
            }
        } else {
            let n = scaled(first, d)?;
            if add.code != ADD64 || add.src() == d {
                return None;
            }
            Mem { base: machine(add.src()), index: Some((machine(d), n)), disp: 0 }
        };
        if self.facts.dead_after(at + 1, d) {
            return Some(2);
        }
        self.out.enc.lea(true, machine(d), mem);
        Some(2)
    }

    /// Arithmetic in place: `t = [m]; t op= x; [m] = t` with `t` not needed after.
    fn change_memory(&mut self, at: usize) -> Option<usize> {
        let [load, change, store] = self.run::<3>(at)?;
        let t = load.dst();
        let place = (load.src(), load.off, load.code & op::DW);
        let same = store.class() == op::STX && store.code & 0xe0 == op::MEM && (store.dst(), store.off, store.code & op::DW) == place;
        if !same || store.src() != t || load.src() == t || !self.facts.dead_after(at + 2, t) {
            return None;
        }
        let wide = change.class() == op::ALU64 || (change.class() == op::ALU && load.code & op::DW != op::DW);
        if !wide || change.dst() != t || change.off != 0 {
            return None;
        }
        let g = group_of(change.code & 0xf0)?;
        let mem = Mem::at(machine(load.src()), i32::from(load.off));
        if change.code & op::X == 0 {
            self.out.enc.group_store_imm(size(load), g, mem, change.imm);
        } else if change.src() == t {
            return None;
        } else {
            self.out.enc.group_store(size(load), g, mem, machine(change.src()));
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
        if alu.code & op::X == 0 || alu.src() != t || alu.dst() == t || !self.facts.dead_after(at + 1, t) {
            return None;
        }
        let g = group_of(alu.code & 0xf0)?;
        let d = machine(alu.dst());
        self.out.enc.group_load(w, g, d, Mem::at(machine(load.src()), i32::from(load.off)));
        self.flags_of(d, w);
        Some(2)
    }

    /// A load in the other byte order.
    fn load_swapped(&mut self, at: usize) -> Option<usize> {
        let [load, swap] = self.run::<2>(at)?;
        let swaps = swap.code == op::ALU | op::X | op::END || swap.code == op::ALU64 | op::K | op::END;
        if !self.cpu.movbe || !swaps || swap.dst() != load.dst() {
            return None;
        }
        let w = match (load.code & op::DW, swap.imm) {
            (op::W, 32) => false,
            (op::DW, 64) => true,
            _ => return None,
        };
        self.out.enc.load_swapped(w, machine(load.dst()), Mem::at(machine(load.src()), i32::from(load.off)));
        Some(2)
    }
}

fn is_copy(i: Insn) -> bool {
    i.code & !0x07 == op::X | op::MOV && matches!(i.class(), op::ALU | op::ALU64) && i.off == 0
}

fn is_shift(i: Insn, d: u8, class: u8) -> bool {
    (i.code == class | op::LSH || i.code == class | op::RSH) && i.dst() == d
}

/// Returns the scale when an instruction multiplies `d` by two, four or eight.
fn scaled(i: Insn, d: u8) -> Option<u8> {
    (i.code == LSH64_IMM && i.dst() == d && matches!(i.imm, 1..=3)).then_some(i.imm as u8)
}
