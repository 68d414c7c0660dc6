//! Pieces with locks, dynptrs, and maps without keys.

use super::maker::{Content, Maker};
use super::{LOCK, VALUE, map};
use skep_isa::helper::id;
use skep_isa::{Insn, ProgramType, op};

const K64: u8 = op::ALU64 | op::K;

/// Where dynptrs lie; each takes two words.
const DYNPTRS: [i32; 2] = [-8 * 32, -8 * 34];

impl Maker<'_> {
    pub fn object(&mut self) {
        if self.kept & 0x3f != 0 || self.is_deep() {
            return self.alu();
        }
        match self.r.below(10) {
            9 => self.apart(Self::dynptr_key),
            8 => self.cast(),
            0 | 1 => self.keyless(),
            2 | 3 => self.apart(Self::locked),
            4 | 5 => self.apart(|m| m.dynptr(false)),
            6 => self.apart(|m| m.dynptr(true)),
            _ => self.apart(Self::packet_dynptr),
        }
    }

    /// Queues, stacks and bloom filters.
    fn keyless(&mut self) {
        let m = self.r.pick(&[map::QUEUE, map::STACK, map::BLOOM]);
        let words = VALUE[m] as usize / 8;
        let helper = self.r.pick(&[87, 88, 89]);
        let helper = if m == map::BLOOM && helper == 88 && !self.slips() { 89 } else { helper };
        if helper == 87 || m == map::BLOOM {
            self.initialize(1..1 + words);
        }
        self.stack_address(2, -8 * (words as i32 + 1));
        self.out.extend(Insn::ld_imm64(1, op::PSEUDO_MAP_IDX, m as u64));
        if helper == 87 {
            self.emit(Insn::mov64_imm(3, 0));
        }
        self.emit(Insn::call(helper));
        self.clobber(Content::Number);
        if helper != 87 && m != map::BLOOM {
            for w in &mut self.known.stack[1..1 + words] {
                (w.written, w.holds) = (0xff, Content::Nothing);
            }
        }
    }

    /// A number that is called an address.
    fn cast(&mut self) {
        let n = self.number();
        self.emit(Insn::mov64_reg(1, n));
        self.emit(Insn::mov64_imm(2, 0));
        self.kernel_function("bpf_rdonly_cast");
        if self.slips() {
            self.emit(Insn::mov64_imm(2, 8));
            self.emit(Insn::mov64_reg(1, 0));
            self.emit(Insn::mov64_imm(3, 10));
            self.stack_address(4, -8);
            self.emit(Insn::call(id::STRTOL));
        } else {
            let d = self.free();
            let off = self.r.below(64) as i16;
            if self.r.chance(20) {
                self.emit(Insn::new(
                    op::STX | op::ATOMIC | op::W,
                    d,
                    0,
                    off & !3,
                    op::ATOMIC_LOAD_ACQ,
                ));
            } else {
                self.load(d, 0, off);
            }
            self.set(d, Content::Number);
            if d == 0 {
                return;
            }
        }
        self.clobber(Content::Nothing);
    }

    fn stack_address(&mut self, d: u8, off: i32) {
        self.emit(Insn::mov64_reg(d, 10));
        self.emit(Insn::new(K64 | op::ADD, d, 0, 0, off));
    }

    /// A value with a lock, or the end of the piece.
    pub fn locked_value(&mut self, keep: u8) {
        self.emit(Insn::new(op::ST | op::MEM | op::W, 10, 0, -4, self.r.below(9) as i32));
        let w = &mut self.known.stack[0];
        (w.written, w.holds) = (w.written | 0xf0, Content::Nothing);
        self.stack_address(2, -4);
        self.out.extend(Insn::ld_imm64(1, op::PSEUDO_MAP_IDX, map::LOCKED as u64));
        self.emit(Insn::call(id::MAP_LOOKUP_ELEM));
        self.clobber(Content::Nothing);
        self.set(keep, Content::Nothing);
        self.jump_out(Insn::new(op::JMP | op::JEQ, 0, 0, 0, 0));
        self.emit(Insn::mov64_reg(keep, 0));
    }

    /// A change of a value under its lock.
    fn locked(&mut self) {
        let Some(keep) = self.saved().filter(|_| super::may_lock(self.kind)) else { return };
        self.locked_value(keep);
        self.kept |= 1 << keep;
        let other = self.saved().filter(|_| self.r.chance(20));
        if let Some(other) = other {
            self.locked_value(other);
        }
        self.at_lock(keep, 93);
        for _ in 0..self.r.below(4) {
            let s = self.r.below(6) as u8;
            let (code, off) = if self.r.chance(50) { (op::STX, 0) } else { (op::LDX, 16) };
            self.emit(Insn::mov64_imm(s, 1));
            self.set(s, Content::Number);
            let [d, s] = if code == op::STX { [keep, s] } else { [s, keep] };
            let off = if self.slips() { LOCK as i16 - 4 } else { off };
            self.emit(Insn::new(code | op::MEM | op::DW, d, s, off, 0));
        }
        if self.slips() {
            self.emit(Insn::call(self.r.pick(&[5, 7])));
            self.clobber(Content::Number);
        }
        if !self.slips() {
            self.at_lock(if self.r.chance(50) { other.unwrap_or(keep) } else { keep }, 94);
        }
        self.kept &= !(1 << keep);
        self.set(keep, Content::Nothing);
    }

    fn at_lock(&mut self, value: u8, helper: u32) {
        self.emit(Insn::mov64_reg(1, value));
        let off = LOCK as i32 + if self.slips() { 4 } else { 0 };
        self.emit(Insn::new(K64 | op::ADD, 1, 0, 0, off));
        self.emit(Insn::call(helper));
        self.clobber(Content::Nothing);
    }

    /// Makes a dynptr of global data, or of a record.
    pub fn new_dynptr(&mut self, ring: bool) -> i32 {
        let off = self.r.pick(&DYNPTRS);
        if ring {
            self.out.extend(Insn::ld_imm64(1, op::PSEUDO_MAP_IDX, map::RING as u64));
            self.emit(Insn::mov64_imm(2, self.r.pick(&[8, 16, 40])));
            self.emit(Insn::mov64_imm(3, 0));
            self.stack_address(4, off);
            self.emit(Insn::call(id::RINGBUF_RESERVE_DYNPTR));
        } else {
            let at = self.r.below(5) * 8;
            self.out.extend(Insn::ld_imm64(
                1,
                op::PSEUDO_MAP_IDX_VALUE,
                at << 32 | map::DATA as u64,
            ));
            self.emit(Insn::mov64_imm(2, self.r.pick(&[8, 16, 24])));
            self.emit(Insn::mov64_imm(3, 0));
            self.stack_address(4, off);
            self.emit(Insn::call(id::DYNPTR_FROM_MEM));
        }
        self.clobber(Content::Nothing);
        off
    }

    pub fn give_dynptr(&mut self, off: i32) {
        self.stack_address(1, off);
        self.emit(Insn::mov64_imm(2, 0));
        self.emit(Insn::call(self.r.pick(&[199, 200])));
        self.clobber(Content::Nothing);
    }

    fn dynptr(&mut self, ring: bool) {
        let off = self.new_dynptr(ring);
        for _ in 0..self.r.below(3) + 1 {
            self.use_dynptr(off, 7);
        }
        if ring && !self.slips() {
            self.give_dynptr(off);
        }
    }

    /// A key of any length, and what is done with it.
    fn dynptr_key(&mut self) {
        let ring = self.r.chance(30);
        let off = self.new_dynptr(ring);
        if self.r.chance(30) {
            self.use_dynptr(off, 7);
        }
        let trie = if self.slips() { map::HASH } else { map::TRIE };
        self.initialize(1..5);
        let off = if self.slips() { self.r.pick(&[off + 8, -40]) } else { off };
        self.stack_address(2, off);
        self.out.extend(Insn::ld_imm64(1, op::PSEUDO_MAP_IDX, trie as u64));
        let helper = self.r.pick(&[id::MAP_LOOKUP_ELEM, id::MAP_UPDATE_ELEM, id::MAP_DELETE_ELEM]);
        if helper == id::MAP_UPDATE_ELEM {
            self.stack_address(3, -40);
            self.emit(Insn::mov64_imm(4, 0));
        }
        self.emit(Insn::call(helper));
        self.clobber(Content::Number);
        if ring && !self.slips() {
            // Before any path leaves.
            let keep = self.saved().filter(|_| helper == id::MAP_LOOKUP_ELEM);
            if let Some(keep) = keep {
                self.emit(Insn::mov64_reg(keep, 0));
                self.set(keep, Content::Nothing);
            }
            self.give_dynptr(off);
            if let Some(keep) = keep {
                self.found_in_trie(keep);
            }
        } else if helper == id::MAP_LOOKUP_ELEM {
            self.found_in_trie(0);
        }
    }

    /// A value that was looked up in the trie, or nothing.
    fn found_in_trie(&mut self, value: u8) {
        self.set(value, Content::Nothing);
        if !self.slips() {
            self.jump_out(Insn::new(op::JMP | op::JEQ, value, 0, 0, 0));
        }
        self.set(value, Content::Value(map::TRIE, VALUE[map::TRIE]));
        let d = self.free();
        self.load(d, value, self.r.pick(&[0, 8, 16]));
        self.set(d, Content::Number);
    }

    /// In a callback: the key in r2 is used as what it is, or taken for something else. The map is
    /// in r1.
    pub fn shown_dynptr(&mut self) {
        let ends = |m: &mut Self| {
            m.clobber(Content::Nothing);
            m.set(0, Content::Number);
        };
        match self.r.below(6) {
            0 => {
                self.emit(Insn::call(id::MAP_DELETE_ELEM));
                ends(self);
            }
            1 => {
                self.emit(Insn::mov64_reg(1, 2));
                self.emit(Insn::mov64_imm(2, 0));
                self.emit(Insn::mov64_imm(3, 8));
                let write = self.r.chance(40);
                if write {
                    self.emit(Insn::call(id::DYNPTR_DATA));
                } else {
                    self.emit(Insn::mov64_imm(4, 8));
                    self.emit(Insn::mov64_imm(3, 0));
                    self.kernel_function("bpf_dynptr_slice");
                }
                self.clobber(Content::Nothing);
                if !self.slips() {
                    self.jump_out(Insn::new(op::JMP | op::JEQ, 0, 0, 0, 0));
                }
                if write || self.slips() {
                    self.emit(Insn::new(op::ST | op::MEM | op::DW, 0, 0, 0, 1));
                } else {
                    self.load(1, 0, 0);
                    self.set(1, Content::Number);
                }
                self.emit(Insn::mov64_imm(0, 0));
                self.set(0, Content::Number);
            }
            2 => {
                self.emit(Insn::mov64_reg(1, 2));
                self.emit(Insn::mov64_imm(2, self.r.below(4) as i32));
                self.emit(Insn::mov64_imm(3, 4 + self.r.below(8) as i32));
                self.kernel_function("bpf_dynptr_adjust");
                ends(self);
            }
            3 => {
                let off = self.r.pick(&DYNPTRS);
                self.emit(Insn::mov64_reg(1, 2));
                self.stack_address(2, off);
                self.kernel_function("bpf_dynptr_clone");
                ends(self);
                self.use_dynptr(off, 6);
            }
            _ if self.slips() => {
                let code = self.r.pick(&[op::LDX, op::STX]);
                self.emit(Insn::new(code | op::MEM | op::DW, 2, 2, 0, 0));
                ends(self);
            }
            _ => ends(self),
        }
    }

    /// A dynptr of the packet.
    fn packet_dynptr(&mut self) {
        let name = match self.kind {
            ProgramType::Xdp => "bpf_dynptr_from_xdp",
            ProgramType::SchedCls | ProgramType::SocketFilter | ProgramType::CgroupSkb => {
                "bpf_dynptr_from_skb"
            }
            _ => return self.dynptr(false),
        };
        if !self.main {
            return;
        }
        let off = self.r.pick(&DYNPTRS);
        self.emit(Insn::mov64_reg(1, 9));
        self.emit(Insn::mov64_imm(2, 0));
        self.stack_address(3, off);
        self.kernel_function(name);
        for _ in 0..self.r.below(3) + 1 {
            self.use_dynptr(off, 7);
        }
    }

    fn use_dynptr(&mut self, off: i32, kinds: u64) {
        let at = self.r.below(20) as i32;
        match self.r.below(kinds) {
            0 => {
                self.stack_address(1, -40);
                self.emit(Insn::mov64_imm(2, 8 * (self.r.below(4) as i32 + 1)));
                self.stack_address(3, off);
                self.emit(Insn::mov64_imm(4, at));
                self.emit(Insn::mov64_imm(5, 0));
                self.emit(Insn::call(id::DYNPTR_READ));
                for w in &mut self.known.stack[1..5] {
                    w.holds = Content::Nothing;
                }
                self.clobber(Content::Number);
            }
            1 => {
                self.initialize(1..5);
                self.stack_address(1, off);
                self.emit(Insn::mov64_imm(2, at));
                self.stack_address(3, -40);
                self.emit(Insn::mov64_imm(4, self.r.below(33) as i32));
                self.emit(Insn::mov64_imm(5, 0));
                self.emit(Insn::call(id::DYNPTR_WRITE));
                self.lose_packet();
                self.clobber(Content::Number);
            }
            2 | 3 => {
                let Some(keep) = self.saved() else { return };
                let size = self.slice(off, keep, at);
                self.kept |= 1 << keep;
                if self.r.chance(40) {
                    self.nested(2);
                }
                self.kept &= !(1 << keep);
                let d = self.free();
                let reach = if self.slips() { 8 } else { 0 };
                let write = self.slips();
                let (code, a, b) = if write { (op::STX, keep, d) } else { (op::LDX, d, keep) };
                if write {
                    self.emit(Insn::mov64_imm(d, 1));
                }
                self.emit(Insn::new(code | op::MEM | op::DW, a, b, size as i16 - 8 + reach, 0));
                self.set(d, if d == keep { Content::Nothing } else { Content::Number });
                self.set(keep, Content::Nothing);
            }
            4 => {
                self.stack_address(1, off);
                self.kernel_function(self.r.pick(&[
                    "bpf_dynptr_size",
                    "bpf_dynptr_is_null",
                    "bpf_dynptr_is_rdonly",
                ]));
                self.set(0, Content::Number);
            }
            5 => {
                self.stack_address(1, off);
                self.emit(Insn::mov64_imm(2, self.r.below(9) as i32));
                self.emit(Insn::mov64_imm(3, 8 + self.r.below(17) as i32));
                self.kernel_function("bpf_dynptr_adjust");
                self.set(0, Content::Number);
            }
            _ if self.slips() => self.emit(Insn::new(
                op::ST | op::MEM | op::DW,
                10,
                0,
                (off + 8 * self.r.below(2) as i32) as i16,
                0,
            )),
            _ => {
                let other = if off == DYNPTRS[0] { DYNPTRS[1] } else { DYNPTRS[0] };
                self.stack_address(1, off);
                self.stack_address(2, other);
                self.kernel_function("bpf_dynptr_clone");
                self.use_dynptr(other, 6);
            }
        }
    }

    /// Memory of a dynptr in `keep`, or the end of the piece; how much.
    fn slice(&mut self, off: i32, keep: u8, at: i32) -> i32 {
        let size = self.r.pick(&[8, 8, 16]);
        self.stack_address(1, off);
        self.emit(Insn::mov64_imm(2, at));
        match self.r.below(4) {
            0 | 1 => {
                self.emit(Insn::mov64_imm(3, size));
                self.emit(Insn::call(id::DYNPTR_DATA));
                self.clobber(Content::Nothing);
            }
            n => {
                if self.r.chance(50) {
                    self.initialize(1..5);
                    self.stack_address(1, off);
                    self.stack_address(3, -40);
                    for w in &mut self.known.stack[1..5] {
                        w.holds = Content::Nothing;
                    }
                } else {
                    self.emit(Insn::mov64_imm(3, 0));
                }
                self.emit(Insn::mov64_imm(2, at));
                self.emit(Insn::mov64_imm(4, size));
                self.kernel_function(if n == 2 {
                    "bpf_dynptr_slice"
                } else {
                    "bpf_dynptr_slice_rdwr"
                });
            }
        }
        self.set(keep, Content::Nothing);
        self.emit(Insn::mov64_reg(keep, 0));
        let null = Insn::new(op::JMP | op::JEQ, keep, 0, 0, 0);
        if !self.slips() {
            self.jump_out(null);
        }
        size
    }

    /// Memory of a dynptr, and paths that end what it rests on.
    pub fn joined_slice(&mut self, p: u8) {
        if self.r.chance(40) {
            return self.joined_slice_size(p);
        }
        let Some(q) = self.saved() else { return };
        self.kept |= 1 << q;
        // With a record nothing may leave before it is given back.
        let off = self.new_dynptr(true);
        self.stack_address(1, off);
        self.emit(Insn::mov64_imm(2, 0));
        self.emit(Insn::mov64_imm(3, 8));
        self.emit(Insn::call(id::DYNPTR_DATA));
        self.clobber(Content::Nothing);
        self.emit(Insn::mov64_reg(q, 0));
        self.odd(|m, odd| {
            let gives = m.r.chance(50);
            if gives {
                m.give_dynptr(off);
                m.emit(Insn::mov64_imm(q, 0));
                if odd {
                    m.out.pop();
                }
            }
            let says = i32::from(gives != (odd && m.r.chance(50)));
            m.emit(Insn::mov64_imm(p, says));
            m.set(p, Content::Number);
        });
        self.carry(p, true);
        self.emit(Insn::new(op::JMP | op::JEQ, q, 0, 1, 0));
        self.emit(Insn::new(op::ST | op::MEM | op::DW, q, 0, 0, 1));
        let over = self.out.len();
        self.emit(Insn::new(op::JMP | op::JNE, p, 0, 0, 0));
        self.give_dynptr(off);
        self.clobber(Content::Nothing);
        self.out[over].off = (self.out.len() - over - 1) as i16;
        self.emit(Insn::mov64_imm(q, 0));
        self.set(q, Content::Number);
        self.kept &= !(1 << q);
    }

    /// How much of a dynptr's memory is asked for.
    fn joined_slice_size(&mut self, p: u8) {
        let off = self.new_dynptr(false);
        if self.r.chance(30) {
            return self.joined_buffer(p, off);
        }
        let good = [16, 24];
        self.odd(|m, odd| {
            let n = if odd { m.r.pick(&[8, 4, 1]) } else { m.r.pick(&good) };
            m.emit(Insn::mov64_imm(p, n));
            m.set(p, Content::Number);
        });
        self.carry(p, true);
        self.stack_address(1, off);
        self.emit(Insn::mov64_imm(2, 0));
        if self.r.chance(40) {
            self.emit(Insn::mov64_reg(3, p));
            self.emit(Insn::call(id::DYNPTR_DATA));
            self.clobber(Content::Nothing);
        } else {
            self.emit(Insn::mov64_imm(3, 0));
            self.emit(Insn::mov64_reg(4, p));
            self.kernel_function("bpf_dynptr_slice");
        }
        self.emit(Insn::new(op::JMP | op::JEQ, 0, 0, 1, 0));
        self.emit(Insn::new(op::LDX | op::MEM | op::DW, 0, 0, 8, 0));
        self.emit(Insn::mov64_imm(0, 0));
        self.set(0, Content::Number);
    }

    /// A buffer that may be missing.
    fn joined_buffer(&mut self, p: u8, off: i32) {
        self.initialize(1..5);
        self.odd(|m, odd| {
            match m.r.below(2) {
                _ if odd => m.emit(Insn::mov64_imm(p, m.r.pick(&[1, 8, -1]))),
                0 => m.emit(Insn::mov64_imm(p, 0)),
                _ => m.stack_address(p, -40),
            }
            m.set(p, Content::Nothing);
        });
        self.through_stack(p);
        self.stack_address(1, off);
        self.emit(Insn::mov64_imm(2, 0));
        self.emit(Insn::mov64_reg(3, p));
        self.emit(Insn::mov64_imm(4, 16));
        self.kernel_function("bpf_dynptr_slice");
        for w in &mut self.known.stack[1..5] {
            w.holds = Content::Nothing;
        }
        self.emit(Insn::mov64_imm(0, 0));
        self.set(0, Content::Number);
    }
}
