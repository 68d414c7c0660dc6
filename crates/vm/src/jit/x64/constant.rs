//! Wide constants of loops in registers.
//!
//! clang writes the address of a global variable anew wherever it is used, as a constant of eight
//! bytes: ten bytes of code and an instruction before each access. The kernel's generator does the
//! same; a C compiler keeps it in a register.

use skep_isa::op;

use super::enc::reg;
use super::{Gen, machine};
use crate::check::Func;
use crate::env::HelperCall;

/// Most constants a function keeps.
const MOST: usize = 3;
/// Most constants a function may choose from.
const KINDS: usize = 16;

/// A value that a register holds everywhere in the function.
#[derive(Clone, Copy)]
pub(super) struct Constant {
    pub value: u64,
    /// The machine register.
    pub reg: u8,
}

impl Gen<'_> {
    /// Returns the machine register that holds a value.
    pub(super) fn constant(&self, value: u64) -> Option<u8> {
        self.constants.iter().find(|c| c.value == value).map(|c| c.reg)
    }

    /// Chooses the constants that are used most inside the loops of function number `n`, and
    /// registers for them.
    pub(super) fn choose_constants(&self, f: Func, n: usize) -> Vec<Constant> {
        let mut found: Vec<(u64, u32)> = Vec::new();
        let loops = self.loops(f);
        let (mut end, mut loops) = (f.start, loops.iter().peekable());
        if loops.peek().is_none() {
            return Vec::new();
        }
        for (at, i) in self.flow.looks(self.insns, f.start..f.end).filter(|(_, i)| i.is_ld_imm64())
        {
            while let Some((_, loop_end)) = loops.next_if(|(head, _)| *head <= at) {
                end = end.max(*loop_end);
            }
            if at >= end {
                continue;
            }
            if self.dead_after(at, i.dst()) {
                continue;
            }
            let is_wide = |v: &u64| u32::try_from(*v).is_err() && i32::try_from(*v as i64).is_err();
            let Some(value) = self.wide(at, i).filter(is_wide) else { continue };
            if let Some((_, n)) = found.iter_mut().find(|(v, _)| *v == value) {
                *n += 1;
            } else if found.len() < KINDS {
                found.push((value, 1));
            }
        }
        if found.is_empty() {
            return Vec::new();
        }
        found.sort_by_cached_key(|(_, n)| u64::MAX - *n as u64);
        let free = self.free_registers(f, n);
        found
            .iter()
            .zip(free)
            .take(MOST)
            .map(|((value, _), reg)| Constant { value: *value, reg })
            .collect()
    }

    /// Returns where jumps lead back to and the slots after them, in order.
    fn loops(&self, f: Func) -> &[(usize, usize)] {
        let first = |slot: usize| self.flow.backs.partition_point(|(head, _)| *head < slot);
        self.flow.backs.get(first(f.start)..first(f.end)).unwrap_or_default()
    }

    /// Returns the machine registers that a function has no use for: first those that need not be
    /// saved, when it calls nobody.
    fn free_registers(&self, f: Func, n: usize) -> Vec<u8> {
        let (mut used, mut calls) = (1 | self.facts.uses(n).named, false);
        for (at, i) in
            self.flow.looks(self.insns, f.start..f.end).filter(|(_, i)| i.code == op::CALL)
        {
            calls |= self.is_real_call(at, i);
            let ctx = self
                .flow
                .helper(i.imm as u32)
                .is_some_and(|h| matches!(h.how, HelperCall::LoadCtx(_)));
            used |= if ctx { 1 << 1 } else { 1 << 2 };
        }
        let unused = |r: &u8| used & 1 << r == 0;
        let mut free: Vec<u8> =
            if calls { Vec::new() } else { (1..=5).rev().filter(unused).map(machine).collect() };
        free.push(reg::R12);
        free.extend((6..=9).rev().filter(unused).map(machine));
        free
    }
}
