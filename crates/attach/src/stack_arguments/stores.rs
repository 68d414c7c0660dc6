//! Stores above the return address: arguments that a function changes, or a frame that it shares.

use super::track::At;
use crate::flow::has_memory;
use iced_x86::{Instruction, Mnemonic, OpKind, Register};

/// Stores above the return address to places that were not read before.
///
/// Compilers do not write to an argument that they have not looked at. Hand-written code does that:
/// parts of one large function call each other and keep their variables in a frame that they share.
#[derive(Default)]
pub(super) struct Stores {
    pub(super) read: Vec<i64>,
    /// From this word on it was looked at by index or through its address: a struct by value,
    /// which a function may change.
    pub(super) indexed: Option<i64>,
    pub(super) first: bool,
    /// The function ends in a jump to another one, for which compilers do store arguments.
    pub(super) tail: bool,
}

impl Stores {
    pub(super) fn look(&mut self, i: &Instruction, at: At) {
        let depth = match i.memory_base() {
            Register::RSP => at.rsp,
            Register::RBP => at.rbp,
            _ => return,
        };
        let Some(depth) = depth else { return };
        let offset = (i.memory_displacement64() as i64).wrapping_sub(depth);
        if offset < 8 || i.mnemonic() == Mnemonic::Nop {
            return;
        }
        let word = offset / 8;
        if i.mnemonic() == Mnemonic::Lea || i.memory_index() != Register::None {
            self.indexed = Some(self.indexed.map_or(word, |from| from.min(word)));
            return;
        }
        if i.op0_kind() == OpKind::Memory
            && i.memory_index() == Register::None
            && is_store(i.mnemonic())
        {
            self.first |= !self.read.contains(&word) && self.indexed.is_none_or(|from| word < from);
        } else if has_memory(i) {
            let words = (i.memory_size().size().max(1) as i64 + 7) / 8;
            self.read.extend(word..word + words);
        }
    }
}

/// Tells whether an instruction with memory as its first operand writes there without reading.
fn is_store(m: Mnemonic) -> bool {
    matches!(m, Mnemonic::Mov | Mnemonic::Movq | Mnemonic::Movd | Mnemonic::Movss | Mnemonic::Movsd)
        || matches!(
            m,
            Mnemonic::Movaps
                | Mnemonic::Movapd
                | Mnemonic::Movups
                | Mnemonic::Movupd
                | Mnemonic::Movdqa
                | Mnemonic::Movdqu
        )
        || matches!(
            m,
            Mnemonic::Vmovaps | Mnemonic::Vmovapd | Mnemonic::Vmovups | Mnemonic::Vmovupd
        )
        || matches!(
            m,
            Mnemonic::Vmovdqa | Mnemonic::Vmovdqu | Mnemonic::Vmovdqa64 | Mnemonic::Vmovdqu64
        )
        || matches!(
            m,
            Mnemonic::Vmovdqa32
                | Mnemonic::Vmovdqu32
                | Mnemonic::Vmovdqu8
                | Mnemonic::Vmovq
                | Mnemonic::Vmovd
        )
}
