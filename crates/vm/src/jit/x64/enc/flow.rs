//! Instructions that go elsewhere, or that frames are made of; and places to be filled in later.

use super::bytes::{Bytes, Kind};
use super::{Enc, Mem, reg};

impl Enc {
    pub fn push(&mut self, r: u8) {
        self.put(Bytes::one(0x41).when(r >= 8).then(Bytes::one(0x50 | r & 7)));
    }

    pub fn pop(&mut self, r: u8) {
        self.put(Bytes::one(0x41).when(r >= 8).then(Bytes::one(0x58 | r & 7)));
    }

    pub fn leave(&mut self) {
        self.u8(0xc9);
    }

    pub fn ret(&mut self) {
        self.u8(0xc3);
    }

    /// `call r`.
    pub fn call_reg(&mut self, r: u8) {
        self.regs(false, 0xff, 2, r);
    }

    /// `jmp r`.
    pub fn jump_reg(&mut self, r: u8) {
        self.regs(false, 0xff, 4, r);
    }

    /// `jmp [mem]`.
    pub fn jump_mem(&mut self, mem: Mem) {
        self.mem(Kind::plain(false), 0xff, 4, mem, Bytes::NONE);
    }

    /// `jmp` or `jcc` over a distance of one byte.
    pub fn jump_short(&mut self, cc: Option<u8>, distance: i8) {
        self.put(Bytes::one(cc.map_or(0xeb, |c| 0x70 | c)).then(Bytes::one(distance as u8)));
    }

    /// `jmp` or `jcc` over any distance.
    pub fn jump_long(&mut self, cc: Option<u8>, distance: i32) {
        let opcode = cc.map_or(Bytes::one(0xe9), |c| Bytes::one(0x0f).then(Bytes::one(0x80 | c)));
        self.put(opcode.then(Bytes::imm32(distance)));
    }

    /// `call rel32`.
    pub fn call_near(&mut self, distance: i32) {
        self.put(Bytes::one(0xe8).then(Bytes::imm32(distance)));
    }

    /// `mov r11, target; call r11`.
    pub fn call_far(&mut self, target: u64) {
        self.put(Bytes::one(0x49).then(Bytes::one(0xbb)));
        self.put(Bytes { of: target, len: 8 });
        self.call_reg(reg::R11);
    }

    /// Pads with the processors' recommended long no-operations.
    pub fn pad(&mut self, to: usize) {
        // Of one to eight bytes, the first the lowest.
        const NOPS: [u64; 8] = [
            0x90,
            0x90_66,
            0x00_1f_0f,
            0x00_40_1f_0f,
            0x00_00_44_1f_0f,
            0x00_00_44_1f_0f_66,
            0x00_00_00_00_80_1f_0f,
            0x00_00_00_00_84_1f_0f,
        ];
        let mut left = self.len.wrapping_neg() & (to - 1);
        while left > 0 {
            if left > NOPS.len() {
                // The longest has one prefix more.
                self.u8(0x66);
                left -= 1;
            }
            let n = left.min(NOPS.len());
            self.put(Bytes { of: NOPS[n - 1], len: n as u32 });
            left -= n;
        }
    }

    /// Sets the four bytes at `at`.
    pub fn set(&mut self, at: usize, v: i32) {
        if let Some(bytes) = self.room.get_mut(at..at + 4) {
            bytes.copy_from_slice(&v.to_le_bytes());
        }
    }

    /// Writes `call rel32` and returns where its displacement is.
    pub fn call(&mut self) -> usize {
        self.u8(0xe8);
        self.u32(0);
        self.len() - 4
    }

    /// Writes a short forward jump over what follows until [`Enc::land`].
    pub fn skip(&mut self, cc: Option<u8>) -> Skip {
        self.u8(cc.map_or(0xeb, |c| 0x70 | c));
        self.u8(0);
        Skip(self.len())
    }

    /// Makes a short forward jump land here.
    pub fn land(&mut self, from: Skip) {
        let distance = self.len() - from.0;
        debug_assert!(distance < 128, "a skip bridges one instruction's code");
        if let Some(b) = self.room.get_mut(from.0 - 1) {
            *b = distance as u8;
        }
    }

    /// A short backward jump to `to`, a length seen before.
    pub fn back(&mut self, cc: u8, to: usize) {
        self.u8(0x70 | cc);
        let distance = self.len() + 1 - to;
        self.u8((distance as u8).wrapping_neg());
    }
}

/// A short jump that waits for its target.
#[must_use]
pub(in crate::jit::x64) struct Skip(usize);
