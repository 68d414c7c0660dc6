//! Pieces with a path of their own: loops, functions, callbacks; and which piece comes next.

use super::maker::{CALLEES, Callee, Content, Known, Maker, WORDS};
use super::{VALUE, map};
use skep_isa::helper::id;
use skep_isa::{Insn, ProgramType, kfunc, op};
use std::ops::Range;

impl Maker<'_> {
    pub fn piece(&mut self) {
        match self.r.below(112) {
            100..=108 => self.joined(),
            109..=111 => self.object(),
            0..=6 => {
                let d = self.free();
                self.constant(d);
            }
            7..=19 => self.alu(),
            20..=26 => self.bits(),
            27..=38 => self.branch(),
            39..=45 => self.value(),
            46..=53 => self.stack(),
            54..=57 => self.stack_somewhere(),
            58..=70 => self.index(),
            71..=76 => self.unknown(),
            77 => self.update(),
            78 => match self.r.below(3) {
                0 => self.lookup_twice(),
                1 => self.format(),
                _ => self.update(),
            },
            79..=81 => self.sized(),
            82..=83 => self.record(),
            84 => self.counted(),
            85 => self.iterate(),
            86..=87 => self.may_goto(),
            88..=91 => self.call_function(),
            92..=93 => self.atomic(),
            94..=96 => self.packet(),
            97 => self.packet_bytes(),
            98 if self.r.chance(50) => self.change_packet(),
            98 if self.r.chance(50) => self.tail_call(),
            98 => self.absolute(),
            _ => self.words(),
        }
    }

    /// Meets what is known on another path that comes here.
    pub fn join(&mut self, other: &Known) {
        let at = self.out.len();
        // Through a jump of no effect, so that there is something to land on.
        let now = self.known;
        self.known = *other;
        self.jump_out(Insn::new(op::JMP | op::JA, 0, 0, 0, 0));
        self.out.truncate(at);
        self.known = now;
        self.meet_last();
    }

    /// A loop with a constant bound.
    fn counted(&mut self) {
        let n = self.free();
        let sum = self.changeable();
        if n == sum {
            return;
        }
        self.emit(Insn::mov64_imm(n, 0));
        self.set(n, Content::Below(16));
        let top = self.out.len();
        self.emit(Insn::new(
            op::ALU64 | op::X | self.r.pick(&[op::ADD, op::XOR, op::MUL]),
            sum,
            n,
            0,
            0,
        ));
        self.set(sum, Content::Number);
        if n >= 6 && self.r.chance(40) {
            // A call and a test inside.
            self.emit(Insn::call(id::GET_PRANDOM_U32));
            self.clobber(Content::Number);
            self.emit(Insn::new(op::JMP | op::JSET, 0, 0, 1, 1));
            self.emit(Insn::new(op::ALU64 | op::ADD, 0, 0, 0, 1));
            if sum < 6 {
                self.emit(Insn::mov64_imm(sum, 0));
                self.set(sum, Content::Number);
            }
        }
        self.emit(Insn::new(op::ALU64 | op::ADD, n, 0, 0, 1));
        let back = top as i64 - self.out.len() as i64 - 1;
        let laps = self.r.below(12) as i32 + 1;
        self.emit(Insn::new(
            op::JMP | self.r.pick(&[op::JLT, op::JNE, op::JSLT]),
            n,
            0,
            back as i16,
            laps,
        ));
        self.set(n, Content::Below(laps as u32 + 1));
    }

    /// A loop that `may_goto` ends.
    pub fn may_goto(&mut self) {
        let before = self.known;
        let top = self.out.len();
        self.emit(Insn::new(op::JMP | op::JCOND, 0, 0, 0, 0));
        if !self.turn(top, 0..9) {
            self.out.truncate(top);
            self.known = before;
            return;
        }
        self.out[top].off = (self.out.len() - top - 1) as i16;
        // Somewhere for the jump to land.
        self.emit(Insn::new(op::JMP | op::JA, 0, 0, 0, 0));
        self.join(&before);
    }

    /// The body of a loop from `top` on, and the path back; false when there is no register for it
    /// to use. Of `regs`, what stands there before must stand there again.
    fn turn(&mut self, top: usize, regs: Range<u8>) -> bool {
        // Guesses from before the loop need not hold in it: only what no piece inside changes is
        // safe. Numbers stay numbers.
        for g in &mut self.known.regs {
            if let Content::Below(_) = g {
                *g = Content::Number;
            }
        }
        // What is clobbered inside must be there again when it starts over.
        let keeps = self.kept;
        for r in regs.clone() {
            if !self.get(r).is_number() && self.get(r) != Content::Nothing {
                self.kept |= 1 << r;
            }
        }
        if self.kept & 0x1ff == 0x1ff || self.kept & 0x3f != 0 {
            self.kept = keeps;
            return false;
        }
        let numbers: Vec<u8> = regs.filter(|r| self.get(*r).is_number()).collect();
        self.nested(4);
        for r in numbers {
            if !self.get(r).is_number() {
                self.emit(Insn::mov64_imm(r, self.r.below(9) as i32));
                self.set(r, Content::Number);
            }
        }
        self.kept = keeps;
        let back = top as i64 - self.out.len() as i64 - 1;
        self.emit(Insn::new(op::JMP | op::JA, 0, 0, back as i16, 0));
        true
    }

    /// A loop over an iterator, which stands below the words of the stack that programs use.
    fn iterate(&mut self) {
        let Some((new, _)) = kfunc::by_name("bpf_iter_num_new") else { return };
        if self.kept & 0x3f != 0 {
            return;
        }
        let off = -8 * (WORDS as i32 + 1 + self.r.below(3) as i32);
        let at = |maker: &mut Self, function: u32| {
            maker.emit(Insn::mov64_reg(1, 10));
            maker.emit(Insn::new(op::ALU64 | op::ADD, 1, 0, 0, off));
            maker.emit(Insn::call(function));
        };
        let before = (self.known, self.out.len());
        self.emit(Insn::mov64_imm(2, self.r.below(4) as i32 - 1));
        self.emit(Insn::mov64_imm(3, self.r.below(9) as i32));
        at(self, new);
        self.clobber(Content::Nothing);
        let top = self.out.len();
        at(self, new + 1);
        let over = self.out.len();
        self.emit(Insn::new(op::JMP | op::JEQ, 0, 0, 0, 0));
        let element = self.r.below(6) as u8;
        self.emit(Insn::new(op::LDX | op::MEM | op::W, element, 0, 0, 0));
        self.set(element, Content::Number);
        if !self.turn(top, 6..9) {
            self.out.truncate(before.1);
            self.known = before.0;
            return;
        }
        self.out[over].off = (self.out.len() - over - 1) as i16;
        if !self.r.chance(self.sloppy / 4) {
            at(self, new + 2);
        }
        self.known = before.0;
        for g in &mut self.known.regs[6..9] {
            if let Content::Below(_) = g {
                *g = Content::Number;
            }
        }
        self.clobber(Content::Nothing);
    }

    /// Calls the function, or has a callback called; all get four words of stack.
    fn call_function(&mut self) {
        if !self.main || self.kept & 0x3f != 0 {
            return;
        }
        let arg = self.number();
        self.initialize(1..5);
        let each = Callee::Each(self.r.pick(&[map::HASH, map::ARRAY, map::TRIE]));
        let callee = self.r.pick(&[
            Callee::Function,
            Callee::Function,
            Callee::Global,
            Callee::Global,
            Callee::Lap,
            each,
        ]);
        let callback = !matches!(callee, Callee::Function | Callee::Global);
        let pointer = if callback { 3 } else { 2 };
        if arg != 1 {
            self.emit(Insn::mov64_reg(1, arg));
        }
        self.emit(Insn::mov64_reg(pointer, 10));
        self.emit(Insn::new(op::ALU64 | op::ADD, pointer, 0, 0, -40));
        if !callback {
            self.emit(Insn::mov64_reg(3, 9));
        }
        self.calls.push((self.out.len(), callee));
        if callback {
            self.out.extend(Insn::ld_imm64(2, op::PSEUDO_FUNC, 0));
            self.emit(Insn::mov64_imm(4, 0));
        }
        match callee {
            Callee::Function | Callee::Global => {
                self.emit(Insn::new(op::CALL, 0, op::PSEUDO_CALL, 0, 0));
                self.lose_packet();
            }
            Callee::Lap => self.emit(Insn::call(id::LOOP)),
            Callee::Each(m) => {
                self.out.extend(Insn::ld_imm64(1, op::PSEUDO_MAP_IDX, m as u64));
                self.emit(Insn::call(id::FOR_EACH_MAP_ELEM));
            }
            Callee::Same | Callee::Never | Callee::Answer => unreachable!("called by other pieces"),
        }
        self.clobber(Content::Number);
        for w in &mut self.known.stack[1..5] {
            w.holds = Content::Nothing;
        }
    }

    /// Another program, which may not be there.
    fn tail_call(&mut self) {
        if (self.kept & 0x1ff != 0 && !self.slips()) || !self.main || self.kept & 0x3f != 0 {
            return;
        }
        let n = self.number();
        self.emit(Insn::mov64_reg(3, n));
        self.emit(Insn::mov64_reg(1, 9));
        self.out.extend(Insn::ld_imm64(2, op::PSEUDO_MAP_IDX, map::PROGS as u64));
        self.emit(Insn::call(id::TAIL_CALL));
        self.clobber(Content::Nothing);
        self.lose_packet();
    }

    /// Makes the packet another one.
    fn change_packet(&mut self) {
        if self.kind != ProgramType::Xdp || self.kept & 0x3f != 0 {
            return;
        }
        let ctx = if self.main { 9 } else { 7 };
        if self.get(ctx) != Content::Ctx {
            return;
        }
        self.emit(Insn::mov64_reg(1, ctx));
        self.emit(Insn::mov64_imm(2, self.r.below(8) as i32 - 4));
        self.emit(Insn::call(self.r.pick(&[44, 54, 65])));
        self.clobber(Content::Number);
        self.lose_packet();
    }

    /// Pointers into the packet are void, unless somebody forgets.
    pub fn lose_packet(&mut self) {
        if self.slips() {
            return;
        }
        let void = |g: &mut Content| {
            if matches!(g, Content::Packet(_) | Content::Meta(_)) {
                *g = Content::Number;
            }
        };
        self.known.regs.iter_mut().for_each(void);
        self.known.stack.iter_mut().for_each(|w| void(&mut w.holds));
    }

    /// In a function: the caller's stack.
    fn words(&mut self) {
        let Some(p) = self.with(|g| g == Content::Words) else { return };
        let off = self.r.below(4) as i16 * 8;
        if self.r.chance(50) {
            let s = self.number();
            self.emit(Insn::new(op::STX | op::MEM | op::DW, p, s, off, 0));
        } else {
            let d = self.free();
            self.emit(Insn::new(op::LDX | op::MEM | op::DW, d, p, off, 0));
            self.set(d, Content::Number);
        }
    }

    /// The function and the callbacks, when they are called.
    pub fn functions(&mut self) {
        let calls = std::mem::take(&mut self.calls);
        for callee in CALLEES {
            if !calls.iter().any(|(_, c)| *c == callee) {
                continue;
            }
            let start = self.out.len();
            self.starts.push(start);
            self.known = Known::nothing();
            (self.main, self.kept) = (false, 1 << 9);
            if matches!(callee, Callee::Same | Callee::Never | Callee::Answer) {
                self.path_function(callee);
                self.emit(Insn::exit());
                self.aim_calls(&calls, callee, start);
                continue;
            }
            let regs = &mut self.known.regs;
            let words = match callee {
                Callee::Function => {
                    (regs[1], regs[2], regs[3]) = (Content::Number, Content::Words, Content::Ctx);
                    2
                }
                Callee::Global => {
                    self.global = Some(start);
                    regs[1] = Content::Number;
                    if !self.slips() {
                        self.jump_out(Insn::new(op::JMP | op::JEQ, 2, 0, 0, 0));
                    }
                    self.set(2, Content::Words);
                    2
                }
                Callee::Lap => {
                    (regs[1], regs[2]) = (Content::Number, Content::Words);
                    2
                }
                Callee::Each(m) => {
                    let key = if m == map::TRIE { Content::DynptrKey } else { Content::Key };
                    (regs[2], regs[3], regs[4]) =
                        (key, Content::Value(m, VALUE[m]), Content::Words);
                    4
                }
                Callee::Same | Callee::Never | Callee::Answer => unreachable!("made above"),
            };
            if self.r.chance(70) {
                self.emit(Insn::mov64_reg(8, words));
                self.set(8, Content::Words);
                self.kept |= 1 << 8;
            }
            if callee == Callee::Function && self.r.chance(50) {
                self.emit(Insn::mov64_reg(7, 3));
                self.set(7, Content::Ctx);
                self.kept |= 1 << 7;
            } else if callee == Callee::Each(map::TRIE) {
                self.shown_dynptr();
            } else if matches!(callee, Callee::Each(_)) {
                self.emit(Insn::new(op::LDX | op::MEM | op::W, 0, 2, 0, 0));
                self.set(0, Content::Number);
                if self.slips() {
                    self.emit(Insn::new(op::STX | op::MEM | op::W, 2, 0, 0, 0));
                }
            }
            for _ in 0..2 {
                self.words();
            }
            self.body(7);
            if !matches!(callee, Callee::Function | Callee::Global) {
                if self.r.chance(50) {
                    self.emit(Insn::mov64_imm(0, self.r.below(2) as i32));
                } else {
                    let n = self.bounded(2);
                    self.emit(Insn::mov64_reg(0, n));
                    self.land_all();
                    self.emit(Insn::new(op::ALU64 | op::AND, 0, 0, 0, 1));
                }
            } else {
                let n = self.number();
                self.emit(Insn::mov64_reg(0, n));
            }
            self.emit(Insn::exit());
            self.aim_calls(&calls, callee, start);
        }
    }

    fn aim_calls(&mut self, calls: &[(usize, Callee)], callee: Callee, start: usize) {
        for (at, _) in calls.iter().filter(|(_, c)| *c == callee) {
            self.out[*at].imm = (start - at - 1) as i32;
        }
    }
}
