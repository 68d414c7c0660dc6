//! Loads, stores and atomics.

use skep_isa::{Insn, op};

use super::enc::{Mem, Size, cc, group, reg};
use super::layout::Label;
use super::{Gen, machine};

impl Gen<'_> {
    pub(super) fn load(&mut self, i: &Insn) -> bool {
        let (d, from) = (machine(i.dst()), Mem::at(machine(i.src()), i32::from(i.off)));
        match i.code & 0xe0 {
            op::MEM => self.out.enc.load(size(i), d, from),
            op::MEMSX => self.out.enc.load_signed(size(i), d, from),
            mode @ (op::PROBE_MEM | op::PROBE_MEMSX) if self.watched => {
                let (at, failed, after) = (self.out.local(), self.out.local(), self.out.local());
                self.out.fault(at, failed);
                self.out.bind(at);
                match mode {
                    op::PROBE_MEM => self.out.enc.load(size(i), d, from),
                    _ => self.out.enc.load_signed(size(i), d, from),
                }
                self.out.bind(after);
                self.probes.push(Probe { d, failed, after });
            }
            mode @ (op::PROBE_MEM | op::PROBE_MEMSX) => {
                // The load itself is in code whose faults are mended: address and value in r10,
                // nothing else changes.
                self.out.enc.lea(true, reg::R10, from);
                self.out.call_helper(crate::fault::probe(i.code & op::DW));
                match mode {
                    op::PROBE_MEM => self.out.enc.mov(true, d, reg::R10),
                    _ => self.out.enc.sign_extend(true, size(i), d, reg::R10),
                }
            }
            _ => return false,
        }
        true
    }

    /// Generates where loads of the function before that failed continue: with 0 as their value.
    pub(super) fn zeros(&mut self) {
        for Probe { d, failed, after } in std::mem::take(&mut self.probes) {
            self.out.bind(failed);
            self.out.enc.mov_imm(d, 0);
            self.out.jump(None, after);
        }
    }

    pub(super) fn store(&mut self, i: &Insn) -> bool {
        let to = Mem::at(machine(i.dst()), i32::from(i.off));
        match (i.class(), i.code & 0xe0) {
            (op::ST, op::MEM) => self.out.enc.store_imm(size(i), to, i.imm),
            (op::STX, op::MEM) => self.out.enc.store(size(i), to, machine(i.src())),
            (op::STX, op::ATOMIC) => return self.atomic(i),
            _ => return false,
        }
        true
    }

    /// Loads and stores of x86 are acquire and release as they are.
    fn atomic(&mut self, i: &Insn) -> bool {
        let (d, s) = (machine(i.dst()), machine(i.src()));
        let w = i.code & op::DW == op::DW;
        let to = Mem::at(d, i32::from(i.off));
        let e = &mut self.out.enc;
        match i.imm {
            op::ATOMIC_LOAD_ACQ => e.load(size(i), d, Mem::at(s, i32::from(i.off))),
            op::ATOMIC_STORE_REL => e.store(size(i), to, s),
            op::ATOMIC_XCHG => e.xchg(w, to, s),
            op::ATOMIC_CMPXCHG => {
                e.lock_cmpxchg(w, to, s);
                if !w {
                    // Success leaves all of rax as it was.
                    e.mov(false, reg::RAX, reg::RAX);
                }
            }
            n => {
                let fetch = n & op::ATOMIC_FETCH != 0;
                let g = match n & !op::ATOMIC_FETCH {
                    op::ATOMIC_ADD if fetch => {
                        e.lock_xadd(w, to, s);
                        return true;
                    }
                    op::ATOMIC_ADD => group::ADD,
                    op::ATOMIC_OR => group::OR,
                    op::ATOMIC_AND => group::AND,
                    op::ATOMIC_XOR => group::XOR,
                    _ => return false,
                };
                if fetch { self.fetch(w, g, to, s) } else { e.lock_group(w, g, to, s) }
            }
        }
        true
    }

    /// There is no instruction that gives the old value back: compare and exchange until nobody
    /// came between. rax is needed for the old value, so r10 keeps r0, also where r0 is the address
    /// or the operand.
    fn fetch(&mut self, w: bool, g: u8, to: Mem, s: u8) {
        let swapped = |r: u8| if r == reg::RAX { reg::R10 } else { r };
        let to = Mem { base: swapped(to.base), ..to };
        let e = &mut self.out.enc;
        e.mov(true, reg::R10, reg::RAX);
        e.load(if w { Size::D } else { Size::W }, reg::RAX, to);
        let again = e.len();
        e.mov(w, reg::R11, reg::RAX);
        e.group(w, g, reg::R11, swapped(s));
        e.lock_cmpxchg(w, to, reg::R11);
        e.back(cc::NE, again);
        if s != reg::RAX {
            e.mov(w, s, reg::RAX);
            e.mov(true, reg::RAX, reg::R10);
        }
    }
}

/// A load that may find nothing.
pub(super) struct Probe {
    /// The machine register it sets.
    d: u8,
    /// Where it continues when it failed, and what comes after it.
    failed: Label,
    after: Label,
}

/// Tells whether a load may find nothing.
pub(super) fn is_probe(i: Insn) -> bool {
    i.class() == op::LDX && matches!(i.code & 0xe0, op::PROBE_MEM | op::PROBE_MEMSX)
}

/// Returns the width of a memory access.
pub(super) fn size(i: &Insn) -> Size {
    match i.code & op::DW {
        op::B => Size::B,
        op::H => Size::H,
        op::W => Size::W,
        _ => Size::D,
    }
}
