//! What a chain counts: packets, bytes, verdicts and times, in pages of a map.

use skep_isa::helper::id as helper;
use skep_isa::{Insn, op};
use skep_vm::chain::counters::{BYTES, TICKS};
use skep_vm::chain::plan::OTHER;

use super::{COUNTERS, Composer, R};

impl Composer<'_> {
    /// Looks up a page of the counters and keeps its address. The key lies where the address will.
    pub(super) fn find_page(&mut self, page: usize) {
        self.store_imm(self.counters, page as u32);
        self.alu_reg(op::MOV, R[2], op::FP);
        self.alu(op::ADD, R[2], self.counters);
        self.asm.insns.extend(Insn::ld_imm64(R[1], op::PSEUDO_MAP_IDX, COUNTERS as u64));
        self.asm.insns.push(Insn::call(helper::MAP_LOOKUP_ELEM));
        // There always is one; 0 is `XDP_ABORTED`.
        self.asm.push(op::JMP | op::JNE | op::K, R[0], 0, 1, 0);
        self.exit();
        self.save(self.counters, R[0]);
    }

    /// `*(r1 + offset) += r2`, by way of r3.
    pub(super) fn add_to(&mut self, word: usize) {
        let off = word as i32 * 8;
        self.asm.push(op::LDX | op::MEM | op::DW, R[3], R[1], off, 0);
        self.alu_reg(op::ADD, R[3], R[2]);
        self.asm.push(op::STX | op::MEM | op::DW, R[1], R[3], off, 0);
    }

    /// Adds the time since r2 to a step's.
    pub(super) fn take_time(&mut self, first: usize) {
        // word -= begin; word += now
        let off = (first + TICKS) as i32 * 8;
        self.asm.push(op::LDX | op::MEM | op::DW, R[3], R[1], off, 0);
        self.alu_reg(op::SUB, R[3], R[2]);
        self.asm.push(op::STX | op::MEM | op::DW, R[1], R[3], off, 0);
        self.asm.insns.push(Insn::call(helper::KTIME_GET_NS));
        self.alu_reg(op::MOV, R[2], R[0]);
        self.load(R[1], self.counters);
        self.add_to(first + TICKS);
        self.load(R[0], self.clock);
    }

    /// Adds the packet's size to a step's bytes.
    pub(super) fn size(&mut self, first: usize) {
        self.load(R[1], self.ctx);
        if self.frags {
            self.asm.insns.push(Insn::call(helper::XDP_GET_BUFF_LEN));
            self.alu_reg(op::MOV, R[2], R[0]);
        } else {
            // `data_end` and `data` of `struct xdp_md`.
            self.asm.push(op::LDX | op::MEM | op::W, R[2], R[1], 4, 0);
            self.asm.push(op::LDX | op::MEM | op::W, R[3], R[1], 0, 0);
            self.alu_reg(op::SUB, R[2], R[3]);
        }
        self.load(R[1], self.counters);
        self.add_to(first + BYTES);
    }

    /// Counts the verdict, which is in r0.
    pub(super) fn verdict(&mut self, first: usize) {
        self.load(R[1], self.counters);
        self.asm.push(op::ALU | op::MOV | op::X, R[2], R[0], 0, 0);
        self.asm.push(op::ALU | op::ADD | op::K, R[2], 0, 0, 1);
        self.asm.push(op::JMP32 | op::JLE | op::K, R[2], 0, 1, OTHER as i32);
        self.asm.push(op::ALU | op::MOV | op::K, R[2], 0, 0, OTHER as i32);
        self.alu(op::LSH, R[2], 3);
        self.alu_reg(op::ADD, R[1], R[2]);
        self.alu(op::MOV, R[2], 1);
        self.add_to(first);
    }
}
