//! Which registers are still read.

use super::Cfg;
use super::jump::{is_conditional, is_kfunc, successors};
use skep_isa::{Insn, helper, kfunc, op};

/// A set of registers, one bit each.
pub type RegSet = u16;

const CALLER_SAVED: RegSet = 0x3f;

impl Cfg {
    /// Backwards data flow to a fixed point.
    pub(super) fn find_live(&mut self, insns: &[Insn]) {
        let mut before: Vec<Vec<u32>> = vec![Vec::new(); insns.len()];
        for i in 0..insns.len() {
            for s in successors(insns, i).into_iter().flatten() {
                before[s].push(i as u32);
            }
        }
        let mut queued = vec![true; insns.len()];
        let mut work: Vec<u32> = (0..insns.len() as u32).collect();
        while let Some(i) = work.pop() {
            let i = i as usize;
            queued[i] = false;
            let after =
                successors(insns, i).into_iter().flatten().fold(0, |set, s| set | self.live[s]);
            let (read, written) = uses(insns[i]);
            let live = (after & !written) | read;
            if live != self.live[i] {
                self.live[i] = live;
                for b in &before[i] {
                    if !std::mem::replace(&mut queued[*b as usize], true) {
                        work.push(*b);
                    }
                }
            }
        }
    }
}

/// Registers an instruction reads and writes.
#[must_use]
pub fn uses(i: Insn) -> (RegSet, RegSet) {
    let (d, s) = (1 << i.dst(), 1 << i.src());
    match i.class() {
        op::LD => match i.code & 0xe0 {
            op::ABS => (1 << 6, CALLER_SAVED),
            op::IND => ((1 << 6) | s, CALLER_SAVED),
            _ => (0, d),
        },
        op::LDX => (s, d),
        op::ST => (d, 0),
        op::STX if i.code & 0xe0 == op::ATOMIC => match i.imm {
            op::ATOMIC_LOAD_ACQ => (s, d),
            op::ATOMIC_CMPXCHG => (d | s | 1, 1),
            n if n & op::ATOMIC_FETCH != 0 => (d | s, s),
            _ => (d | s, 0),
        },
        op::STX => (d | s, 0),
        op::ALU | op::ALU64 => {
            let src = if i.code & op::X != 0 && i.code & 0xf0 != op::END { s } else { 0 };
            match i.code & 0xf0 {
                op::MOV => (src, d),
                _ => (src | d, d),
            }
        }
        _ => match i.code {
            op::EXIT => (1, 0),
            op::CALL if is_kfunc(i) => {
                let args = kfunc::by_id(i.imm as u32).map_or(5, |k| k.args.len());
                (((1 << args) - 1) << 1, CALLER_SAVED)
            }
            op::CALL if i.src() == 0 => {
                let args = helper::by_id(i.imm as u32).map_or(5, helper::Helper::registers);
                (((1 << args) - 1) << 1, CALLER_SAVED)
            }
            op::CALL => (CALLER_SAVED & !1, CALLER_SAVED),
            _ if is_conditional(i) && i.code & 0xf0 != op::JCOND => {
                (d | if i.code & op::X != 0 { s } else { 0 }, 0)
            }
            _ => (0, 0),
        },
    }
}
