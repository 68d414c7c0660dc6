//! Instructions with labels.

use skep_isa::{Insn, op};

/// A place that jumps lead to; it may come later.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Label(usize);

/// Jumps have 16 bits for their distance, one did not suffice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooFar;

/// Collects instructions. In its *long* form each jump has 32 bits for its distance (`gotol`, Linux
/// 6.6), and a branch is three instructions.
pub struct Assembler {
    pub insns: Vec<Insn>,
    labels: Vec<Option<usize>>,
    jumps: Vec<(usize, Label)>,
    long: bool,
}

const GOTOL: u8 = op::JMP32 | op::JA;

impl Assembler {
    pub fn new(long: bool) -> Self {
        Self { insns: Vec::new(), labels: Vec::new(), jumps: Vec::new(), long }
    }

    pub fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Puts a label behind the last instruction.
    pub fn place(&mut self, label: Label) {
        if let Some(place) = self.labels.get_mut(label.0) {
            *place = Some(self.insns.len());
        }
    }

    pub fn push(&mut self, code: u8, dst: u8, src: u8, off: i32, imm: i32) {
        // Offsets are those of stack and counters, which fit.
        self.insns.push(Insn::new(code, dst, src, off as i16, imm));
    }

    /// Jumps. Always one instruction.
    pub fn jump(&mut self, to: Label) {
        self.jumps.push((self.insns.len(), to));
        self.push(if self.long { GOTOL } else { op::JMP | op::JA }, 0, 0, 0, 0);
    }

    /// Jumps if `dst`, compared with `imm` by `code`, says so.
    pub fn branch(&mut self, code: u8, dst: u8, imm: i32, to: Label) {
        if self.long {
            self.push(code | op::K, dst, 0, 1, imm);
            self.push(op::JMP | op::JA, 0, 0, 1, 0);
            self.jump(to);
        } else {
            self.jumps.push((self.insns.len(), to));
            self.push(code | op::K, dst, 0, 0, imm);
        }
    }

    /// Takes a jump back that leads to the next instruction.
    pub fn drop_jump_to_next(&mut self, next: Label) {
        let is_last = self.jumps.last() == Some(&(self.insns.len().wrapping_sub(1), next));
        // In long form another jump may lead past it.
        if is_last && self.insns.last().is_some_and(|i| i.code == op::JMP | op::JA) {
            self.insns.pop();
            self.jumps.pop();
        }
    }

    /// Makes labels distances.
    pub fn finish(mut self) -> Result<Vec<Insn>, TooFar> {
        for (at, label) in &self.jumps {
            let to = self.labels.get(label.0).copied().flatten();
            let (Some(to), Some(insn)) = (to, self.insns.get_mut(*at)) else { return Err(TooFar) };
            let distance = to as i64 - *at as i64 - 1;
            if insn.code == GOTOL {
                insn.imm = i32::try_from(distance).map_err(|_| TooFar)?;
            } else {
                insn.off = i16::try_from(distance).map_err(|_| TooFar)?;
            }
        }
        Ok(self.insns)
    }
}
