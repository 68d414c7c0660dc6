//! Following the stack pointer through instructions.

use crate::flow::has_memory;
use iced_x86::{Code as Op, Instruction, Mnemonic, OpKind, Register};

/// What a function does with the words from its return address upwards.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Use {
    /// Words of arguments on the stack that it may read or write.
    pub(crate) words: u32,
    /// It reads, writes or jumps through its return address otherwise than by returning.
    pub(crate) return_address: bool,
    /// It leaves something above its return address for its caller to find, which a copy would
    /// lose.
    pub(crate) writes_caller: bool,
}

/// Words copied when a variadic function takes the address of its arguments: a call with more is
/// one nobody has been seen to write.
pub(crate) const TAKEN: u32 = 128;

/// Words copied when another function does: a struct by value that is indexed or handed on, whose
/// size the code does not tell.
pub(crate) const LARGE: u32 = 512;

/// Words copied when the code cannot be followed, and for functions that end in a jump to code that
/// is not known.
pub(crate) const UNKNOWN: u32 = 8;

/// Where rsp and rbp point, in bytes below the address of the return address; `None`: not known.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct At {
    pub(super) rsp: Option<i64>,
    pub(super) rbp: Option<i64>,
}

impl At {
    /// What is known if it is one or the other.
    pub(super) fn or(self, other: Self) -> Self {
        let same = |a: Option<i64>, b| a.filter(|_| a == b);
        Self { rsp: same(self.rsp, other.rsp), rbp: same(self.rbp, other.rbp) }
    }

    /// Tells whether there is a frame as large as the largest one yet, or larger: in an epilogue it
    /// shrinks.
    #[inline]
    pub(super) fn is_within_frame(self, largest: Option<Self>) -> bool {
        self.rsp.is_some_and(|rsp| rsp > 0) && self.rsp >= largest.and_then(|at| at.rsp)
    }
}

/// Looks at the memory that an instruction touches.
pub(super) fn memory(i: &Instruction, at: At, out: &mut Use) {
    let base = i.memory_base();
    let depth = match base {
        Register::RSP => at.rsp,
        Register::RBP => at.rbp,
        _ => return,
    };
    if !has_memory(i) {
        return;
    }
    let Some(depth) = depth else {
        if base == Register::RSP {
            out.words = out.words.max(UNKNOWN);
        }
        return;
    };
    // Offset from the address of the return address.
    let offset = (i.memory_displacement64() as i64).wrapping_sub(depth);
    if i.mnemonic() == Mnemonic::Lea {
        // `lea` is also how stack pointers are moved; those go to rsp or rbp.
        let to_stack = matches!(i.op0_register(), Register::RSP | Register::RBP);
        if offset >= 8 && !to_stack {
            out.words = out.words.max(TAKEN);
        } else if offset >= 0 && !to_stack {
            out.return_address = true;
        }
        return;
    }
    if i.mnemonic() == Mnemonic::Nop {
        return;
    }
    let size = i.memory_size().size().max(1) as i64;
    if offset >= 8 {
        let words = (offset - 8 + size + 7) / 8;
        let words = u32::try_from(words).unwrap_or(TAKEN);
        // An index walks on from there.
        out.words = out.words.max(if i.memory_index() == Register::None {
            words
        } else {
            words.max(TAKEN)
        });
    } else if offset + size > 0 && i.memory_index() == Register::None {
        out.return_address = true;
        if offset + size > 8 {
            out.words = out.words.max(((offset + size - 8 + 7) / 8) as u32);
        }
    }
}

/// Moves the pointers as the instruction does.
pub(super) fn step(i: &Instruction, at: At, out: &mut Use) -> At {
    let mut next = at;
    let to_rsp = i.op0_kind() == OpKind::Register && i.op0_register() == Register::RSP;
    let to_rbp = i.op0_kind() == OpKind::Register && i.op0_register() == Register::RBP;
    match i.mnemonic() {
        Mnemonic::Push | Mnemonic::Pushfq => {
            next.rsp = at.rsp.map(|r| r - i64::from(i.stack_pointer_increment()))
        }
        Mnemonic::Pop | Mnemonic::Popfq => {
            if at.rsp == Some(0) {
                out.return_address = true;
            }
            next.rsp = at.rsp.map(|r| r - i64::from(i.stack_pointer_increment()));
            if to_rsp {
                next.rsp = None;
            }
            if to_rbp {
                next.rbp = None;
            }
        }
        Mnemonic::Leave => {
            next.rsp = at.rbp.map(|r| r - 8);
            next.rbp = None;
        }
        Mnemonic::Enter => next = At { rsp: None, rbp: None },
        Mnemonic::Sub | Mnemonic::Add if to_rsp || to_rbp => {
            let sign = if i.mnemonic() == Mnemonic::Sub { 1 } else { -1 };
            let by = matches!(i.op1_kind(), OpKind::Immediate8to64 | OpKind::Immediate32to64)
                .then(|| sign * (i.immediate(1) as i64));
            let pointer = if to_rsp { &mut next.rsp } else { &mut next.rbp };
            *pointer = pointer.zip(by).map(|(r, b)| r + b);
        }
        Mnemonic::Lea if to_rsp || to_rbp => {
            let from = match i.memory_base() {
                Register::RSP => at.rsp,
                Register::RBP => at.rbp,
                _ => None,
            };
            let plain = i.memory_index() == Register::None;
            let to = from.filter(|_| plain).map(|r| r - i.memory_displacement64() as i64);
            *(if to_rsp { &mut next.rsp } else { &mut next.rbp }) = to;
        }
        Mnemonic::Mov if i.code() == Op::Mov_r64_rm64 || i.code() == Op::Mov_rm64_r64 => {
            let from = match (i.op1_kind(), i.op1_register()) {
                (OpKind::Register, Register::RSP) => Some(at.rsp),
                (OpKind::Register, Register::RBP) => Some(at.rbp),
                _ => None,
            };
            if to_rsp {
                next.rsp = from.flatten();
            } else if to_rbp {
                next.rbp = from.flatten();
            } else if i.op0_kind() == OpKind::Register
                && i.op1_kind() == OpKind::Register
                && i.op1_register() == Register::RSP
                && at.rsp == Some(0)
            {
                // A copy of the stack pointer as it was at entry can reach everything above.
                out.words = out.words.max(TAKEN);
                out.return_address = true;
            }
        }
        _ if to_rsp => next.rsp = None,
        _ if to_rbp && !matches!(i.mnemonic(), Mnemonic::Cmp | Mnemonic::Test) => next.rbp = None,
        _ => {}
    }
    next
}
