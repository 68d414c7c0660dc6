//! Instructions with a place in memory.

use super::bytes::{Bytes, Kind};
use super::{Enc, Mem, Size};

impl Enc {
    /// Loads, zero-extended to 64 bits.
    pub fn load(&mut self, size: Size, dst: u8, mem: Mem) {
        let opcode = match size {
            Size::B => 0x0fb6,
            Size::H => 0x0fb7,
            _ => 0x8b,
        };
        self.mem(Kind::plain(size.is_wide()), opcode, dst, mem, Bytes::NONE);
    }

    /// Loads, sign-extended to 64 bits.
    pub fn load_signed(&mut self, size: Size, dst: u8, mem: Mem) {
        let opcode = match size {
            Size::B => 0x0fbe,
            Size::H => 0x0fbf,
            Size::W => 0x63,
            Size::D => 0x8b,
        };
        self.mem(Kind::plain(true), opcode, dst, mem, Bytes::NONE);
    }

    /// `movbe dst, [mem]`: loads four or eight bytes in the other order.
    pub fn load_swapped(&mut self, w: bool, dst: u8, mem: Mem) {
        self.mem(Kind::plain(w), 0x0f_38f0, dst, mem, Bytes::NONE);
    }

    /// `mov rax, fs:[disp]` or `mov rax, gs:[disp]`, into any register.
    pub fn load_tls(&mut self, dst: u8, disp: i32, by_gs: bool) {
        self.u8(if by_gs { 0x65 } else { 0x64 });
        self.u8(0x48 | (dst >> 3) << 2);
        self.u8(0x8b);
        self.u8((dst & 7) << 3 | 4);
        self.u8(0x25);
        self.u32(disp as u32);
    }

    /// Stores the low bits of a register.
    pub fn store(&mut self, size: Size, mem: Mem, src: u8) {
        let byte = size == Size::B;
        self.mem(Kind::of(size), if byte { 0x88 } else { 0x89 }, src, mem, Bytes::NONE);
    }

    /// Stores an immediate, sign-extended where the access is wider.
    pub fn store_imm(&mut self, size: Size, mem: Mem, imm: i32) {
        let opcode = if size == Size::B { 0xc6 } else { 0xc7 };
        self.mem(Kind::of_imm(size), opcode, 0, mem, Bytes::imm_of(size, imm));
    }

    /// `lock xadd [mem], r`.
    pub fn lock_xadd(&mut self, w: bool, mem: Mem, r: u8) {
        self.mem(Kind::locked(w), 0x0fc1, r, mem, Bytes::NONE);
    }

    /// `lock cmpxchg [mem], r`: compares with rax.
    pub fn lock_cmpxchg(&mut self, w: bool, mem: Mem, r: u8) {
        self.mem(Kind::locked(w), 0x0fb1, r, mem, Bytes::NONE);
    }

    /// `xchg [mem], r`: locks by itself.
    pub fn xchg(&mut self, w: bool, mem: Mem, r: u8) {
        self.mem(Kind::plain(w), 0x87, r, mem, Bytes::NONE);
    }

    /// `dec qword [mem]`.
    pub fn dec(&mut self, mem: Mem) {
        self.mem(Kind::plain(true), 0xff, 1, mem, Bytes::NONE);
    }

    /// `movups [mem], xmm`: only for the code that saves vector registers around a helper.
    pub fn save_vector(&mut self, mem: Mem, xmm: u8) {
        self.mem(Kind::plain(false), 0x0f11, xmm, mem, Bytes::NONE);
    }

    /// `movups xmm, [mem]`.
    pub fn restore_vector(&mut self, mem: Mem, xmm: u8) {
        self.mem(Kind::plain(false), 0x0f10, xmm, mem, Bytes::NONE);
    }

    /// `lock op [mem], src`.
    pub fn lock_group(&mut self, w: bool, op: u8, mem: Mem, src: u8) {
        self.mem(Kind::locked(w), u32::from(op << 3 | 1), src, mem, Bytes::NONE);
    }

    /// `op dst, [mem]`.
    pub fn group_load(&mut self, w: bool, op: u8, dst: u8, mem: Mem) {
        self.mem(Kind::plain(w), u32::from(op << 3 | 3), dst, mem, Bytes::NONE);
    }

    /// `op [mem], src`.
    pub fn group_store(&mut self, size: Size, op: u8, mem: Mem, src: u8) {
        let byte = size == Size::B;
        self.mem(Kind::of(size), u32::from(op << 3) | u32::from(!byte), src, mem, Bytes::NONE);
    }

    /// `op [mem], imm`; only the size's low bits of `imm` count.
    pub fn group_store_imm(&mut self, size: Size, op: u8, mem: Mem, imm: i32) {
        let imm = match size {
            Size::B => i32::from(imm as i8),
            Size::H => i32::from(imm as i16),
            _ => imm,
        };
        let short = i8::try_from(imm).is_ok();
        let opcode = match size {
            Size::B => 0x80,
            _ if short => 0x83,
            _ => 0x81,
        };
        let imm = if short { Bytes::imm8(imm) } else { Bytes::imm_of(size, imm) };
        self.mem(Kind::of_imm(size), opcode, op, mem, imm);
    }

    /// `test [mem], r`.
    pub fn test_store(&mut self, size: Size, mem: Mem, r: u8) {
        let byte = size == Size::B;
        self.mem(Kind::of(size), if byte { 0x84 } else { 0x85 }, r, mem, Bytes::NONE);
    }

    /// `test [mem], imm`; of byte, word or wide size.
    pub fn test_store_imm(&mut self, size: Size, mem: Mem, imm: i32) {
        let opcode = if size == Size::B { 0xf6 } else { 0xf7 };
        self.mem(Kind::of_imm(size), opcode, 0, mem, Bytes::imm_of(size, imm));
    }
}
