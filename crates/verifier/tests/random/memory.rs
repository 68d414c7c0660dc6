//! Pieces with memory: stack, map values, packets, records, atomics, and helpers that are given
//! some.

use super::maker::{Content, Maker, WORDS};
use super::{ENTRIES, VALUE, map};
use skep_isa::helper::id;
use skep_isa::{Insn, ProgramType, op};

const SIZES: [(u8, u32); 5] = [(op::DW, 8), (op::DW, 8), (op::W, 4), (op::H, 2), (op::B, 1)];

impl Maker<'_> {
    /// A store to or a load from fixed places of the stack, spills and fills of any size among
    /// them.
    pub fn stack(&mut self) {
        let (code, size) = self.r.pick(&SIZES);
        let word = self.r.below(WORDS as u64) as usize;
        let byte = self.r.below(u64::from(8 / size)) as u32 * size;
        let off = -8 * (word as i16 + 1) + byte as i16;
        let bytes = (((1u32 << size) - 1) << byte) as u8;
        let here = self.known.stack[word];
        let readable = here.written & bytes == bytes
            && (here.holds.is_number() || here.holds == Content::Nothing || size == 8);
        if (readable || self.slips()) && self.r.chance(60) {
            let d = self.free();
            if size == 8 && here.holds != Content::Nothing {
                self.emit(Insn::new(op::LDX | op::MEM | code, d, 10, off, 0));
                self.set(d, here.holds);
            } else {
                let mode = if size < 8 && self.r.chance(25) { op::MEMSX } else { op::MEM };
                self.emit(Insn::new(op::LDX | mode | code, d, 10, off, 0));
                self.set(d, Content::Number);
            }
            return;
        }
        let w = &mut self.known.stack[word];
        w.written |= bytes;
        w.holds = if size == 8 { Content::Number } else { Content::Nothing };
        if self.r.chance(25) {
            self.emit(Insn::new(op::ST | op::MEM | code, 10, 0, off, self.r.number() as i32));
            return;
        }
        let s = if size == 8 && self.r.chance(40) {
            self.with(|g| g != Content::Nothing && g != Content::Ctx)
        } else {
            None
        };
        let s = s.unwrap_or_else(|| self.number());
        let holds = self.get(s);
        if size == 8 {
            // A record's copy would outlive it.
            self.known.stack[word].holds =
                if matches!(holds, Content::Record(_)) { Content::Nothing } else { holds };
        }
        self.emit(Insn::new(op::STX | op::MEM | code, 10, s, off, 0));
    }

    /// Makes words of the stack readable numbers.
    pub fn initialize(&mut self, words: std::ops::Range<usize>) {
        for word in words {
            if self.slips() {
                continue;
            }
            let w = &mut self.known.stack[word];
            let pointer = !(w.holds.is_number() || w.holds == Content::Nothing);
            if w.written != 0xff || pointer {
                *w = super::maker::Word { written: 0xff, holds: Content::Number };
                let off = -8 * (word as i16 + 1);
                if self.r.chance(40) {
                    let s = self.number();
                    self.emit(Insn::new(op::STX | op::MEM | op::DW, 10, s, off, 0));
                } else {
                    self.emit(Insn::new(
                        op::ST | op::MEM | op::DW,
                        10,
                        0,
                        off,
                        self.r.pick(&[0, 0, 1, -1]),
                    ));
                }
            }
        }
    }

    /// An access to the stack at an offset that is not known.
    pub fn stack_somewhere(&mut self) {
        let words = self.r.below(3) as usize + 2;
        self.initialize(1..1 + words);
        let (code, size) = self.r.pick(&SIZES);
        let n = self.bounded(8 * words as u32 / size);
        let p = self.free();
        if p == n {
            return;
        }
        let scaled = self.free();
        if scaled == p {
            return;
        }
        // Scale a copy, so that the access is aligned.
        self.emit(Insn::mov64_reg(scaled, n));
        self.emit(Insn::new(op::ALU64 | op::LSH, scaled, 0, 0, size.trailing_zeros() as i32));
        self.set(scaled, Content::Number);
        self.emit(Insn::mov64_reg(p, 10));
        self.emit(Insn::new(op::ALU64 | op::ADD, p, 0, 0, -8 * (words as i32 + 1)));
        self.emit(Insn::new(op::ALU64 | op::X | op::ADD, p, scaled, 0, 0));
        self.set(p, Content::Nothing);
        if self.r.chance(50) {
            let d = self.free();
            self.emit(Insn::new(op::LDX | op::MEM | code, d, p, 0, 0));
            self.set(d, Content::Number);
        } else if self.r.chance(50) {
            let s = self.number();
            self.emit(Insn::new(op::STX | op::MEM | code, p, s, 0, 0));
        } else {
            self.emit(Insn::new(op::ST | op::MEM | code, p, 0, 0, self.r.pick(&[0, 7])));
        }
        for w in &mut self.known.stack[1..1 + words] {
            w.holds = Content::Nothing;
        }
    }

    /// A map value, by lookup or by its address.
    pub fn value(&mut self) {
        let Some(keep) = self.saved() else { return };
        if self.r.chance(30) {
            let m = self.r.pick(&[map::DATA, map::CONST]);
            let at = self.r.below(u64::from(VALUE[m])) as u32;
            self.out.extend(Insn::ld_imm64(
                keep,
                op::PSEUDO_MAP_IDX_VALUE,
                u64::from(at) << 32 | m as u64,
            ));
            self.set(keep, Content::Value(m, VALUE[m] - at));
            return;
        }
        let m = self.r.pick(&[map::DATA, map::HASH, map::ARRAY, map::PERCPU]);
        let m = if self.r.chance(3) { map::OUTER } else { m };
        self.key(m);
        self.emit(Insn::call(id::MAP_LOOKUP_ELEM));
        self.clobber(Content::Nothing);
        if m == map::OUTER {
            return self.inner(keep);
        }
        self.null_check(keep, Content::Value(m, VALUE[m]));
    }

    /// A lookup in the map that was found.
    fn inner(&mut self, keep: u8) {
        if !self.slips() {
            self.jump_out(Insn::new(op::JMP | op::JEQ, 0, 0, 0, 0));
        }
        self.emit(Insn::mov64_reg(1, 0));
        self.emit(Insn::new(op::ST | op::MEM | op::W, 10, 0, -4, self.r.below(10) as i32));
        self.emit(Insn::mov64_reg(2, 10));
        self.emit(Insn::new(op::ALU64 | op::ADD, 2, 0, 0, -4));
        self.emit(Insn::call(id::MAP_LOOKUP_ELEM));
        self.clobber(Content::Nothing);
        self.null_check(keep, Content::Value(map::ARRAY, VALUE[map::ARRAY]));
    }

    /// The key on the stack, its address and the map as arguments.
    fn key(&mut self, m: usize) {
        if self.r.chance(30) {
            let n = self.bounded(ENTRIES[m] + 2);
            self.emit(Insn::new(op::STX | op::MEM | op::W, 10, n, -4, 0));
        } else {
            self.emit(Insn::new(
                op::ST | op::MEM | op::W,
                10,
                0,
                -4,
                self.r.below(u64::from(ENTRIES[m])) as i32,
            ));
        }
        let w = &mut self.known.stack[0];
        (w.written, w.holds) = (w.written | 0xf0, Content::Nothing);
        self.emit(Insn::mov64_reg(2, 10));
        self.emit(Insn::new(op::ALU64 | op::ADD, 2, 0, 0, -4));
        self.out.extend(Insn::ld_imm64(1, op::PSEUDO_MAP_IDX, m as u64));
    }

    /// Tests r0, or a copy of it, and keeps what is there if it is no NULL.
    fn null_check(&mut self, keep: u8, guess: Content) {
        let early = self.r.chance(50);
        if early {
            self.emit(Insn::mov64_reg(keep, 0));
            self.set(keep, Content::Nothing);
        }
        let tested = if early && self.r.chance(50) { keep } else { 0 };
        if self.slips() {
            // Not tested at all.
        } else if self.r.chance(70) {
            self.jump_out(Insn::new(op::JMP | op::JEQ, tested, 0, 0, 0));
        } else {
            self.emit(Insn::new(op::JMP | op::JNE, tested, 0, 1, 0));
            self.jump_out(Insn::new(op::JMP | op::JA, 0, 0, 0, 0));
        }
        if !early {
            self.emit(Insn::mov64_reg(keep, 0));
        }
        self.set(keep, guess);
        self.set(0, guess);
    }

    /// Updates and deletes.
    pub fn update(&mut self) {
        let m = if self.slips() { map::CONST } else { map::HASH };
        if self.r.chance(60) {
            self.initialize(2..5);
            self.key(m);
            self.emit(Insn::mov64_reg(3, 10));
            self.emit(Insn::new(op::ALU64 | op::ADD, 3, 0, 0, -40));
            self.emit(Insn::mov64_imm(4, 0));
            self.emit(Insn::call(id::MAP_UPDATE_ELEM));
        } else {
            self.key(m);
            self.emit(Insn::call(id::MAP_DELETE_ELEM));
        }
        self.clobber(Content::Number);
    }

    /// Two lookups whose results are compared with each other.
    pub fn lookup_twice(&mut self) {
        let Some(keep) = self.saved() else { return };
        if self.kept & 0x3f != 0 {
            return;
        }
        for first in [true, false] {
            self.key(map::HASH);
            self.emit(Insn::call(id::MAP_LOOKUP_ELEM));
            self.clobber(Content::Nothing);
            if first {
                self.emit(Insn::mov64_reg(keep, 0));
                self.set(keep, Content::Nothing);
                if !self.slips() {
                    self.jump_out(Insn::new(op::JMP | op::JEQ, keep, 0, 0, 0));
                }
            }
        }
        self.jump_out(Insn::new(op::JMP | op::X | op::JNE, 0, keep, 0, 0));
        let d = self.free();
        self.emit(Insn::new(op::LDX | op::MEM | op::DW, d, 0, 8, 0));
        self.set(d, Content::Number);
    }

    /// A string made from a format and words.
    pub fn format(&mut self) {
        if self.kept & 0x3f != 0 {
            return;
        }
        self.initialize(1..5);
        self.emit(Insn::mov64_reg(1, 10));
        self.emit(Insn::new(op::ALU64 | op::ADD, 1, 0, 0, -40));
        self.emit(Insn::mov64_imm(2, 16));
        let text = if self.slips() { self.r.below(40) } else { 20 };
        let from = if self.slips() { map::DATA } else { map::CONST };
        self.out.extend(Insn::ld_imm64(3, op::PSEUDO_MAP_IDX_VALUE, text << 32 | from as u64));
        self.emit(Insn::mov64_reg(4, 10));
        self.emit(Insn::new(op::ALU64 | op::ADD, 4, 0, 0, -24));
        let words = if self.slips() { self.r.below(4) as i32 * 8 } else { 16 };
        if self.slips() {
            self.emit(Insn::mov64_imm(4, 0));
        }
        self.emit(Insn::mov64_imm(5, words));
        self.emit(Insn::call(id::SNPRINTF));
        self.clobber(Content::Number);
        for w in &mut self.known.stack[1..5] {
            w.holds = Content::Nothing;
        }
    }

    /// An access to a value, a record or the packet, at a fixed offset or at one that was bounded.
    pub fn index(&mut self) {
        let Some(base) = self.with(|g| matches!(g, Content::Value(..) | Content::Record(_))) else {
            return self.value();
        };
        let (room, constant) = match self.get(base) {
            Content::Value(m, room) => (room, m == map::CONST),
            Content::Record(n) => (n, false),
            _ => return,
        };
        let (code, size) = self.r.pick(&SIZES);
        if size > room {
            return;
        }
        if self.r.chance(25) {
            let mut off = self.r.below(u64::from(room - size) + 1) as i16;
            if self.slips() {
                off = off.wrapping_add(self.r.pick(&[-70, 40, 1, -1]));
            }
            self.access(base, off, code, constant);
            return;
        }
        let n = self.bounded(room - size + 1);
        let p = if self.r.chance(50) { self.free() } else { self.saved().unwrap_or(0) };
        if p == n || p == base || self.kept & (1 << p) != 0 {
            return;
        }
        let (a, b) = if self.r.chance(80) { (base, n) } else { (n, base) };
        self.emit(Insn::mov64_reg(p, a));
        if self.r.chance(20) {
            // There and back again.
            let step = self.r.below(60) as i32;
            if p != b && a == base {
                self.emit(Insn::new(op::ALU64 | op::ADD, p, 0, 0, step));
                self.emit(Insn::new(op::ALU64 | op::X | op::ADD, p, b, 0, 0));
                self.emit(Insn::new(op::ALU64 | self.r.pick(&[op::SUB, op::SUB]), p, 0, 0, step));
            } else {
                self.emit(Insn::new(op::ALU64 | op::X | op::ADD, p, b, 0, 0));
            }
        } else {
            self.emit(Insn::new(op::ALU64 | op::X | op::ADD, p, b, 0, 0));
        }
        self.set(p, Content::Nothing);
        let off = if self.slips() { self.r.pick(&[-1, 1, -2, 4, 60]) } else { 0 };
        self.access(p, off, code, constant);
    }

    fn access(&mut self, p: u8, off: i16, size: u8, constant: bool) {
        if self.r.chance(50) || (constant && !self.slips()) {
            let d = self.free();
            let mode = if size != op::DW && self.r.chance(25) { op::MEMSX } else { op::MEM };
            self.emit(Insn::new(op::LDX | mode | size, d, p, off, 0));
            self.set(d, Content::Number);
        } else if self.r.chance(70) {
            let s = self.number();
            self.emit(Insn::new(op::STX | op::MEM | size, p, s, off, 0));
        } else {
            self.emit(Insn::new(op::ST | op::MEM | size, p, 0, off, self.r.number() as i32));
        }
    }

    pub fn atomic(&mut self) {
        let s = self.changeable();
        let fetch = self.r.pick(&[0, op::ATOMIC_FETCH]);
        let plain =
            self.r.pick(&[op::ATOMIC_ADD, op::ATOMIC_AND, op::ATOMIC_OR, op::ATOMIC_XOR]) | fetch;
        let imm = self.r.pick(&[plain, plain, op::ATOMIC_XCHG, op::ATOMIC_CMPXCHG]);
        let size = self.r.pick(&[op::W, op::DW]);
        let (base, off) = if self.r.chance(40) {
            self.initialize(3..4);
            (10, -32)
        } else {
            match self.with(|g| matches!(g, Content::Value(m, 64) if m == map::DATA)) {
                Some(base) => (base, self.r.below(8) as i16 * 8),
                None => return,
            }
        };
        if self.r.chance(20) {
            // Load-acquire and store-release, of any size.
            let size = self.r.pick(&[op::B, op::H, op::W, op::DW]);
            let (base, off) = if self.slips() { (9, 0) } else { (base, off) };
            if self.r.chance(50) {
                let d = self.free();
                self.emit(Insn::new(
                    op::STX | op::ATOMIC | size,
                    d,
                    base,
                    off,
                    op::ATOMIC_LOAD_ACQ,
                ));
                self.set(d, Content::Number);
            } else {
                self.emit(Insn::new(
                    op::STX | op::ATOMIC | size,
                    base,
                    s,
                    off,
                    op::ATOMIC_STORE_REL,
                ));
                if base == 10 {
                    self.known.stack[3].holds = Content::Nothing;
                }
            }
            return;
        }
        if imm == op::ATOMIC_CMPXCHG {
            if base == 0 || self.kept & 1 != 0 {
                return;
            }
            if !self.get(0).is_number() {
                self.emit(Insn::mov64_imm(0, 1));
            }
            self.set(0, Content::Number);
        }
        if s == base {
            return;
        }
        self.emit(Insn::new(op::STX | op::ATOMIC | size, base, s, off, imm));
        if base == 10 {
            self.known.stack[3].holds = Content::Nothing;
        }
        if imm & op::ATOMIC_FETCH != 0 && imm != op::ATOMIC_CMPXCHG {
            self.set(s, Content::Number);
        }
    }

    /// Helpers with memory and its size.
    pub fn sized(&mut self) {
        let words = self.r.below(4) as u32 + 1;
        let on_stack = self.r.chance(60);
        let room = 8 * words;
        let value = self.with(|g| {
            matches!(g, Content::Value(m, n) if m != map::CONST && n >= 8)
                || matches!(g, Content::Record(n) if n >= 8)
        });
        let tracing = !matches!(
            self.kind,
            ProgramType::Xdp | ProgramType::SchedCls | ProgramType::SocketFilter
        );
        let helper =
            self.r.pick(if tracing { &[16, 113, 112, 130, 45, 130][..] } else { &[16, 130][..] });
        let reads = helper == 130;
        if reads && on_stack {
            self.initialize(1..1 + words as usize);
        }
        let size_reg = if reads { 3 } else { 2 };
        let mem = size_reg - 1;
        let room = match value {
            Some(v) if !on_stack => match self.get(v) {
                Content::Value(_, n) | Content::Record(n) => n,
                _ => room,
            },
            _ => room,
        };
        if self.kept & 0x3f != 0 {
            return;
        }
        if self.r.chance(50) {
            self.emit(Insn::mov64_imm(size_reg, room as i32 - self.r.below(3) as i32));
        } else {
            let n = self.bounded(room);
            if n != size_reg {
                self.emit(Insn::mov64_reg(size_reg, n));
            }
            if self.r.chance(70) {
                self.emit(Insn::new(op::ALU64 | op::ADD, size_reg, 0, 0, 1));
            }
        }
        match value {
            Some(v) if !on_stack && v != size_reg => self.emit(Insn::mov64_reg(mem, v)),
            _ if on_stack => {
                self.emit(Insn::mov64_reg(mem, 10));
                self.emit(Insn::new(op::ALU64 | op::ADD, mem, 0, 0, -8 * (words as i32 + 1)));
            }
            _ => {
                self.clobber_sized(size_reg);
                return;
            }
        }
        if self.slips() {
            let any = self.r.below(10) as u8;
            self.emit(Insn::mov64_reg(mem, any));
        }
        if reads {
            self.out.extend(Insn::ld_imm64(1, op::PSEUDO_MAP_IDX, map::RING as u64));
            self.emit(Insn::mov64_imm(4, 0));
        } else if helper != 16 {
            self.emit(Insn::mov64_imm(3, self.r.below(4096) as i32));
        }
        self.emit(Insn::call(helper));
        self.clobber(Content::Number);
        if on_stack && !reads {
            for w in &mut self.known.stack[1..1 + words as usize] {
                // How much of it was written is not known.
                (w.written, w.holds) = (w.written, Content::Nothing);
            }
        }
    }

    fn clobber_sized(&mut self, r: u8) {
        self.set(r, Content::Number);
    }

    /// A ring buffer record: reserved, used, given back.
    pub fn record(&mut self) {
        let Some(keep) = self.saved() else { return };
        let size = self.r.pick(&[8, 16, 40]);
        self.out.extend(Insn::ld_imm64(1, op::PSEUDO_MAP_IDX, map::RING as u64));
        self.emit(Insn::mov64_imm(2, size));
        self.emit(Insn::mov64_imm(3, 0));
        self.emit(Insn::call(id::RINGBUF_RESERVE));
        self.clobber(Content::Nothing);
        // Behind the failure nothing may be given back, so no other jump leaves.
        let at = self.out.len();
        let before = self.known;
        self.emit(Insn::new(op::JMP | op::JEQ, 0, 0, 0, 0));
        self.emit(Insn::mov64_reg(keep, 0));
        self.set(keep, Content::Record(size as u32));
        self.set(0, Content::Nothing);
        self.kept |= 1 << keep;
        self.nested(5);
        self.kept &= !(1 << keep);
        if !self.slips() {
            self.emit(Insn::mov64_reg(1, keep));
            if self.slips() {
                self.emit(Insn::new(op::ALU64 | op::ADD, 1, 0, 0, self.r.pick(&[8, -8, 1])));
            }
            self.emit(Insn::mov64_imm(2, 0));
            self.emit(Insn::call(self.r.pick(&[132, 133])));
        }
        self.clobber(Content::Nothing);
        self.forget_record(keep);
        self.out[at].off = (self.out.len() - at - 1) as i16;
        let mut after = before;
        after.regs[keep as usize] = Content::Nothing;
        self.join(&after);
    }

    fn forget_record(&mut self, keep: u8) {
        self.set(keep, Content::Nothing);
        for g in &mut self.known.regs {
            if matches!(g, Content::Record(_)) {
                *g = Content::Nothing;
            }
        }
    }

    /// Packet bytes behind a test, which is written in one of its many ways.
    pub fn packet(&mut self) {
        let fields = match self.kind {
            ProgramType::Xdp => [0, 4, 8],
            ProgramType::SchedCls => [76, 80, 140],
            _ => return self.unknown(),
        };
        if !self.main || self.kept & 0x3f != 0 {
            return self.unknown();
        }
        let Some(data) = self.saved() else { return };
        let meta = self.r.chance(20);
        let (first, last) = if meta { (fields[2], fields[0]) } else { (fields[0], fields[1]) };
        let end = self.r.pick(&[2, 3, 4]);
        self.emit(Insn::new(op::LDX | op::MEM | op::W, data, 9, first, 0));
        self.emit(Insn::new(op::LDX | op::MEM | op::W, end, 9, last, 0));
        self.set(data, Content::Nothing);
        self.set(end, Content::Nothing);
        if self.r.chance(40) {
            // A header of unknown length first.
            let n = self.bounded(64);
            if n == end || n == data {
                return;
            }
            self.emit(Insn::new(op::ALU64 | op::X | op::ADD, data, n, 0, 0));
        }
        // Another pointer, which the test says nothing of.
        let other = if self.r.chance(10) { self.saved().filter(|o| *o != data) } else { None };
        if let Some(other) = other {
            if self.r.chance(50) {
                self.emit(Insn::new(
                    op::LDX | op::MEM | op::W,
                    other,
                    9,
                    fields[self.r.below(2) as usize * 2],
                    0,
                ));
            } else {
                self.emit(Insn::mov64_reg(other, data));
            }
            self.set(other, Content::Nothing);
            if self.r.chance(60) {
                let n = self.bounded(32);
                if [end, data, other].contains(&n) {
                    return;
                }
                self.emit(Insn::new(op::ALU64 | op::X | op::ADD, other, n, 0, 0));
            }
        }
        let p = self.r.pick(&[0, 1, 5]);
        let size = self.r.below(20) as u32 + 1;
        self.emit(Insn::mov64_reg(p, data));
        self.emit(Insn::new(op::ALU64 | op::ADD, p, 0, 0, size as i32));
        self.set(p, Content::Nothing);
        let (code, a, b, inside_jumps, exact) = self.r.pick(&[
            (op::JGT, p, end, false, true),
            (op::JGE, p, end, false, false),
            (op::JLE, p, end, true, true),
            (op::JLT, p, end, true, false),
            (op::JLT, end, p, false, true),
            (op::JLE, end, p, false, false),
            (op::JGE, end, p, true, true),
            (op::JGT, end, p, true, false),
        ]);
        let test = Insn::new(op::JMP | op::X | code, a, b, 0, 0);
        if inside_jumps {
            self.emit(Insn { off: 1, ..test });
            self.jump_out(Insn::new(op::JMP | op::JA, 0, 0, 0, 0));
        } else {
            self.jump_out(test);
        }
        let room = size + u32::from(!exact) + u32::from(self.slips());
        self.set(data, if meta { Content::Meta(room) } else { Content::Packet(room) });
        if let Some(other) = other {
            self.access(other, self.r.below(u64::from(size)) as i16, op::B, false);
        }
        if self.r.chance(20) {
            let step = self.r.below(u64::from(size)) as i32;
            let code = if self.slips() { op::SUB } else { op::ADD };
            self.emit(Insn::new(op::ALU64 | code, data, 0, 0, step));
            let room = room - step as u32;
            self.set(data, if meta { Content::Meta(room) } else { Content::Packet(room) });
        }
        self.packet_bytes();
    }

    /// Loads from the packet that end the program when there is too little of it.
    pub fn absolute(&mut self) {
        let packets = matches!(self.kind, ProgramType::SocketFilter | ProgramType::SchedCls);
        if !(packets || self.slips())
            || self.kept & 0x7f != 0
            || (self.kept & 0x1ff != 0 && !self.slips())
        {
            return;
        }
        let Some(ctx) = self.with(|g| g == Content::Ctx) else { return };
        let n = self.number();
        let indirect = self.r.chance(30) && n != 6;
        self.emit(Insn::mov64_reg(6, if self.slips() { 10 } else { ctx }));
        self.set(6, Content::Ctx);
        let (size, off) = (self.r.pick(&[op::B, op::H, op::W]), self.r.below(40) as i32);
        if indirect {
            self.emit(Insn::new(op::LD | op::IND | size, 0, n, 0, off));
        } else {
            self.emit(Insn::new(op::LD | op::ABS | size, 0, 0, 0, off));
        }
        self.clobber(Content::Number);
    }

    /// Reads and writes bytes that were tested.
    pub fn packet_bytes(&mut self) {
        let Some(base) = self.with(|g| matches!(g, Content::Packet(_) | Content::Meta(_))) else {
            return;
        };
        let (Content::Packet(room) | Content::Meta(room)) = self.get(base) else { return };
        for _ in 0..self.r.below(3) + 1 {
            let (code, size) = self.r.pick(&SIZES);
            if size > room {
                continue;
            }
            let off = self.r.below(u64::from(room - size) + 1) as i16;
            self.access(base, off, code, false);
            if self.get(base) != Content::Packet(room) {
                return;
            }
        }
    }
}
