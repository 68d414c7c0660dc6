//! Pieces with numbers: constants, arithmetic, tests, and what cannot be known.

use super::maker::{Content, Maker};
use super::{VALUE, map};
use skep_isa::{Insn, ProgramType, op};

const ALU: [u8; 13] = [
    op::ADD,
    op::SUB,
    op::MUL,
    op::DIV,
    op::OR,
    op::AND,
    op::LSH,
    op::RSH,
    op::MOD,
    op::XOR,
    op::ARSH,
    op::MOV,
    op::NEG,
];
const CMP: [u8; 11] = [
    op::JEQ,
    op::JGT,
    op::JGE,
    op::JSET,
    op::JNE,
    op::JSGT,
    op::JSGE,
    op::JLT,
    op::JLE,
    op::JSLT,
    op::JSLE,
];
const K64: u8 = op::ALU64 | op::K;

impl Maker<'_> {
    pub fn constant(&mut self, r: u8) {
        let n = self.r.number();
        if self.r.chance(75) {
            self.emit(Insn::mov64_imm(r, n as i32));
        } else {
            self.out.extend(Insn::ld_imm64(r, 0, n));
        }
        self.set(r, Content::Number);
    }

    pub fn alu(&mut self) {
        let d = self.changeable();
        let code = self.r.pick(&ALU);
        let class = self.r.pick(&[op::ALU64, op::ALU64, op::ALU]);
        let signed = i16::from(matches!(code, op::DIV | op::MOD) && self.r.chance(30));
        if code == op::NEG {
            self.emit(Insn::new(class | op::NEG, d, 0, 0, 0));
        } else if code == op::MOV {
            let width = self.r.pick(if class == op::ALU64 {
                &[0, 8, 16, 32][..]
            } else {
                &[0, 0, 8, 16][..]
            });
            let s = self.number();
            self.emit(Insn::new(class | op::X | op::MOV, d, s, width, 0));
        } else if self.r.chance(50) {
            let s = self.number();
            self.emit(Insn::new(class | op::X | code, d, s, signed, 0));
        } else {
            let mut n = self.r.number() as i32;
            if matches!(code, op::LSH | op::RSH | op::ARSH) {
                n &= if class == op::ALU64 { 63 } else { 31 };
            } else if matches!(code, op::DIV | op::MOD) && n == 0 {
                n = 3;
            }
            self.emit(Insn::new(class | op::K | code, d, 0, signed, n));
        }
        self.set(d, Content::Number);
        if self.r.chance(8) {
            let width = self.r.pick(&[16, 32, 64]);
            let code = self.r.pick(&[
                op::ALU | op::K | op::END,
                op::ALU | op::X | op::END,
                op::ALU64 | op::END,
            ]);
            self.emit(Insn::new(code, d, 0, 0, width));
        }
    }

    /// Knowledge of single bits: masks, shifts and sums of them.
    pub fn bits(&mut self) {
        let d = self.changeable();
        let class = self.r.pick(&[op::ALU64, op::ALU64, op::ALU]);
        for _ in 0..self.r.below(3) + 1 {
            let mask = (self.r.next() & self.r.next() & 0xff) << self.r.pick(&[0, 0, 1, 4, 8, 24]);
            let shift = self.r.below(6) as i32;
            let i = match self.r.below(8) {
                0 | 1 => Insn::new(class | op::AND, d, 0, 0, mask as i32),
                2 => Insn::new(class | op::OR, d, 0, 0, mask as i32),
                3 => Insn::new(class | op::XOR, d, 0, 0, mask as i32),
                4 => Insn::new(class | op::LSH, d, 0, 0, shift),
                5 => Insn::new(class | self.r.pick(&[op::RSH, op::ARSH]), d, 0, 0, shift),
                6 => Insn::new(class | op::MUL, d, 0, 0, self.r.below(9) as i32),
                _ => Insn::new(class | self.r.pick(&[op::ADD, op::SUB]), d, 0, 0, mask as i32),
            };
            self.emit(i);
        }
        if self.r.chance(40) {
            let s = self.number();
            self.emit(Insn::new(
                class | op::X | self.r.pick(&[op::ADD, op::SUB, op::AND, op::OR, op::XOR, op::MUL]),
                d,
                s,
                0,
                0,
            ));
        }
        self.set(d, Content::Number);
    }

    pub fn branch(&mut self) {
        let class = self.r.pick(&[op::JMP, op::JMP, op::JMP32]);
        let code = self.r.pick(&CMP);
        let d = self.number();
        let insn = if self.r.chance(40) {
            let s = self.number();
            Insn::new(class | op::X | code, d, s, 0, 0)
        } else {
            let n =
                if self.r.chance(50) { self.r.below(80) as i32 } else { self.r.number() as i32 };
            Insn::new(class | op::K | code, d, 0, 0, n)
        };
        self.jump_out(insn);
    }

    /// Makes a register hold something the verifier cannot know.
    pub fn unknown(&mut self) {
        let d = self.free();
        if self.main && self.r.chance(60) {
            let (size, off) = match self.kind {
                ProgramType::Xdp => (op::W, self.r.pick(&[12, 16, 20])),
                ProgramType::SchedCls | ProgramType::SocketFilter if self.r.chance(20) => {
                    (op::B, 48 + self.r.below(20) as i16)
                }
                ProgramType::SchedCls | ProgramType::SocketFilter | ProgramType::CgroupSkb => {
                    (op::W, self.r.pick(&[0, 4, 8, 16, 40, 48, 52]))
                }
                ProgramType::Tracing => (op::DW, self.r.below(13) as i16 * 8),
                _ => (self.r.pick(&[op::B, op::H, op::W, op::DW]), self.r.below(20) as i16 * 8),
            };
            self.emit(Insn::new(op::LDX | op::MEM | size, d, 9, off, 0));
        } else if self.r.chance(50) {
            let at = self.r.below(u64::from(VALUE[map::DATA]) / 8) as u32 * 8;
            self.out.extend(Insn::ld_imm64(
                d,
                op::PSEUDO_MAP_IDX_VALUE,
                u64::from(at) << 32 | map::DATA as u64,
            ));
            self.load(d, d, 0);
        } else {
            self.emit(Insn::call(self.r.pick(&[5, 7, 8, 14])));
            self.clobber(Content::Number);
            return;
        }
        self.set(d, Content::Number);
    }

    /// A load of a random size and sign at most eight bytes wide.
    pub fn load(&mut self, d: u8, base: u8, off: i16) {
        let size = self.r.pick(&[op::B, op::H, op::W, op::DW]);
        let mode = if size != op::DW && self.r.chance(30) { op::MEMSX } else { op::MEM };
        self.emit(Insn::new(op::LDX | mode | size, d, base, off, 0));
    }

    /// A register whose number is below `room`, by one of the ways programs make sure.
    pub fn bounded(&mut self, room: u32) -> u8 {
        let room = if self.slips() { room + self.r.pick(&[1, 1, 2, 4, 64]) } else { room }.max(1);
        if let Some(r) = self.with(|g| matches!(g, Content::Below(n) if n <= room))
            && self.r.chance(40)
        {
            return r;
        }
        let n = self.changeable();
        let most = room as i32 - 1;
        let powers = 31 - room.leading_zeros();
        match self.r.below(11) {
            0 => self.emit(Insn::new(K64 | op::AND, n, 0, 0, (1 << powers) - 1)),
            1 => self.emit(Insn::new(K64 | op::RSH, n, 0, 0, 64 - powers as i32)),
            2 => self.emit(Insn::new(K64 | op::MOD, n, 0, 0, room as i32)),
            3 => {
                self.jump_out_with(Insn::new(op::JMP | op::JGT, n, 0, 0, most), n, Content::Number)
            }
            4 => {
                // Both ends, as signed numbers.
                let class = self.r.pick(&[op::JMP, op::JMP, op::JMP32]);
                if class == op::JMP32 {
                    self.emit(Insn::new(op::ALU | op::X | op::MOV, n, n, 0, 0));
                }
                self.jump_out_with(Insn::new(class | op::JSGT, n, 0, 0, most), n, Content::Number);
                self.jump_out_with(Insn::new(class | op::JSLT, n, 0, 0, 0), n, Content::Number);
            }
            5 => {
                // The low half, tested before or after the rest was cut off.
                let cut = Insn::new(op::ALU | op::X | op::MOV, n, n, 0, 0);
                let test = Insn::new(op::JMP32 | op::JGE, n, 0, 0, room as i32);
                if self.r.chance(50) {
                    self.emit(cut);
                    self.jump_out_with(test, n, Content::Number);
                } else {
                    self.jump_out_with(test, n, Content::Number);
                    self.emit(cut);
                }
            }
            6 | 7 => return self.by_copy(n, room),
            8 => {
                // The test of another register, with the same bound.
                let other = self.free();
                if other != n {
                    self.emit(Insn::mov64_imm(other, room as i32));
                    self.set(other, Content::Number);
                    self.jump_out_with(
                        Insn::new(op::JMP | op::X | op::JGE, n, other, 0, 0),
                        n,
                        Content::Number,
                    );
                }
            }
            9 => {
                // Sign extension as clang writes it.
                self.emit(Insn::new(K64 | op::LSH, n, 0, 0, 32));
                self.emit(Insn::new(K64 | self.r.pick(&[op::ARSH, op::RSH]), n, 0, 0, 32));
                self.jump_out_with(Insn::new(op::JMP | op::JGT, n, 0, 0, most), n, Content::Number);
            }
            _ => {
                self.emit(Insn::new(
                    op::ALU | op::DIV,
                    n,
                    0,
                    0,
                    (u32::MAX / room).saturating_add(1).min(1 << 30) as i32,
                ));
                self.emit(Insn::new(K64 | op::MOD, n, 0, 0, room as i32));
            }
        }
        self.set(n, Content::Below(room));
        n
    }

    /// A copy is tested, perhaps after a step: what is learnt goes for the original.
    fn by_copy(&mut self, n: u8, room: u32) -> u8 {
        let copy = self.free();
        if copy == n {
            self.emit(Insn::new(K64 | op::AND, n, 0, 0, 0));
            self.set(n, Content::Below(1));
            return n;
        }
        let half = self.r.chance(30);
        let class = if half { op::ALU } else { op::ALU64 };
        self.emit(Insn::new(class | op::X | op::MOV, copy, n, 0, 0));
        self.set(copy, Content::Number);
        let step = self.r.below(5) as i32 - 2;
        if self.r.chance(50) {
            self.emit(Insn::new(class | op::ADD, copy, 0, 0, step));
        } else if self.r.chance(30) {
            self.emit(Insn::new(class | op::ADD, n, 0, 0, step));
        }
        let jump = if half { op::JMP32 } else { op::JMP };
        let most = (room as i32 - 1 - step.abs() - i32::from(step != 0)).max(0);
        self.jump_out_with(Insn::new(jump | op::JGT, copy, 0, 0, most), n, Content::Number);
        if half {
            self.emit(Insn::new(op::ALU | op::X | op::MOV, n, n, 0, 0));
        }
        if step != 0 {
            // The step may have led below zero.
            self.jump_out_with(
                Insn::new(op::JMP | op::JGT, n, 0, 0, room as i32 - 1),
                n,
                Content::Number,
            );
        }
        self.set(n, Content::Below(room));
        n
    }
}
