//! How to unwind through a program: `.debug_frame`, read off the machine code.
//!
//! Every function starts with the same few instructions (`jit::x64::frame`): `push rbp; mov rbp,
//! rsp` where it makes a frame, `sub rsp, n`, and one `push` for each register that it keeps for
//! its caller. Bodies push nothing.

use super::dwarf::{uleb, with_length};
use super::unit::Unit;
use crate::bytes::add;

const RBP: u8 = 6;
const RSP: u8 = 7;
const RETURN_ADDRESS: u8 = 16;

const ADVANCE4: u8 = 0x04;
const REMEMBER: u8 = 0x0a;
const RESTORE: u8 = 0x0b;
const DEF_CFA: u8 = 0x0c;
const DEF_CFA_REGISTER: u8 = 0x0d;
const DEF_CFA_OFFSET: u8 = 0x0e;
const OFFSET: u8 = 0x80;

const PUSH_RBP: &[u8] = &[0x55];
const MOV_RBP_RSP: &[u8] = &[0x48, 0x89, 0xe5];
const SUB_RSP_BYTE: &[u8] = &[0x48, 0x83, 0xec];
const SUB_RSP: &[u8] = &[0x48, 0x81, 0xec];
const LEAVE: u8 = 0xc9;
const POP_RBP: u8 = 0x5d;
const RET: u8 = 0xc3;

/// Makes `.debug_frame` for the code at `base`.
pub(super) fn table(base: u64, code: &[u8], units: &[Unit]) -> Vec<u8> {
    // Version, no augmentation, code counted in bytes, data downwards in words; on entry the return
    // address is all there is.
    let mut common = u32::MAX.to_le_bytes().to_vec();
    add(&mut common, &[1, 0, 1, 0x78, RETURN_ADDRESS, DEF_CFA, RSP, 8, OFFSET | RETURN_ADDRESS, 1]);
    let mut out = padded(common);
    for unit in units {
        let mut entry = 0u32.to_le_bytes().to_vec();
        add(&mut entry, &(base + unit.start as u64).to_le_bytes());
        add(&mut entry, &((unit.end - unit.start) as u64).to_le_bytes());
        let mut rules = Rules {
            code,
            out: entry,
            noted: unit.start,
            at: unit.start,
            end: unit.end,
            depth: 8,
            framed: false,
        };
        rules.prologue();
        for exit in &unit.exits {
            rules.exit(*exit);
        }
        add(&mut out, &padded(rules.out));
    }
    out
}

/// The rules of one function while they are written.
struct Rules<'a> {
    code: &'a [u8],
    out: Vec<u8>,
    /// Up to where rules were written.
    noted: usize,
    at: usize,
    end: usize,
    /// Bytes between the stack pointer and the frame's upper end.
    depth: u64,
    framed: bool,
}

impl Rules<'_> {
    fn rest(&self) -> &[u8] {
        self.code.get(self.at..self.end).unwrap_or_default()
    }

    fn take(&mut self, bytes: &[u8]) -> bool {
        let found = self.rest().starts_with(bytes);
        self.at += if found { bytes.len() } else { 0 };
        found
    }

    /// Says that what follows holds from here on.
    fn here(&mut self) {
        if self.at != self.noted {
            self.out.push(ADVANCE4);
            add(&mut self.out, &((self.at - self.noted) as u32).to_le_bytes());
            self.noted = self.at;
        }
    }

    fn depth(&mut self) {
        self.out.push(DEF_CFA_OFFSET);
        uleb(&mut self.out, self.depth);
    }

    fn saved(&mut self, register: u8) {
        self.here();
        if !self.framed {
            self.depth();
        }
        self.out.push(OFFSET | register);
        uleb(&mut self.out, self.depth / 8);
    }

    fn prologue(&mut self) {
        if self.take(PUSH_RBP) {
            self.depth += 8;
            self.saved(RBP);
            if self.take(MOV_RBP_RSP) {
                self.framed = true;
                self.here();
                add(&mut self.out, &[DEF_CFA_REGISTER, RBP]);
            }
        }
        let size = if self.take(SUB_RSP_BYTE) {
            self.rest().first().map(|n| (u64::from(*n), 1))
        } else if self.take(SUB_RSP) {
            self.rest().first_chunk().map(|n| (u64::from(u32::from_le_bytes(*n)), 4))
        } else {
            None
        };
        if let Some((size, bytes)) = size {
            self.at += bytes;
            self.depth += size;
        }
        while let Some((register, bytes)) = stack_operation(self.rest(), 0x50) {
            self.at += bytes;
            self.depth += 8;
            self.saved(register);
        }
    }

    /// Writes the rules for a return whose first instruction is at `at`: they change, and are those
    /// of the body again after it.
    fn exit(&mut self, at: usize) {
        if at < self.at {
            return;
        }
        self.at = at;
        let depth = self.depth;
        let mut remembered = false;
        loop {
            match self.rest() {
                [LEAVE, RET, ..] | [POP_RBP, RET, ..] if self.framed => {
                    self.at += 1;
                    self.remember(&mut remembered);
                    add(&mut self.out, &[DEF_CFA, RSP, 8]);
                    self.at += 1;
                    break;
                }
                [RET, ..] => {
                    self.at += 1;
                    break;
                }
                rest => {
                    let Some((_, bytes)) = stack_operation(rest, 0x58) else { break };
                    self.at += bytes;
                    self.depth = self.depth.saturating_sub(8);
                    if !self.framed {
                        self.remember(&mut remembered);
                        self.depth();
                    }
                }
            }
        }
        self.depth = depth;
        if remembered {
            self.here();
            self.out.push(RESTORE);
        }
    }

    fn remember(&mut self, done: &mut bool) {
        self.here();
        if !*done {
            self.out.push(REMEMBER);
        }
        *done = true;
    }
}

/// Reads a `push` (`0x50`) or `pop` (`0x58`) of a register that functions keep: which, in DWARF's
/// numbers, and its length.
fn stack_operation(code: &[u8], opcode: u8) -> Option<(u8, usize)> {
    match *code {
        // rbx is 3 both in the machine's numbers and in DWARF's.
        [op, ..] if op == opcode | 3 => Some((3, 1)),
        [0x41, op, ..] if (opcode | 4..=opcode | 7).contains(&op) => Some((8 | op & 7, 2)),
        _ => None,
    }
}

/// Fills an entry up with no-operations and puts its length before it.
fn padded(mut entry: Vec<u8>) -> Vec<u8> {
    entry.resize((entry.len() + 4).next_multiple_of(8) - 4, 0);
    with_length(&entry)
}
