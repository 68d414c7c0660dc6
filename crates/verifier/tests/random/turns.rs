//! Loops of which one turn leaves what a later one uses: places where paths meet, jumped between at
//! random, heads of loops of every kind among them, and a few numbers that are carried round, in
//! registers and on the stack. Mostly all of them suit what follows.

use super::{Random, map, maps, types};
use skep_isa::helper::id;
use skep_isa::{Insn, ProgramType, kfunc, op};
use skep_object::Linked;

const K64: u8 = op::ALU64 | op::K;
const LDX: u8 = op::LDX | op::MEM;
const STX: u8 = op::STX | op::MEM;

/// Bytes of stack that are written at an offset that comes from a number; what is kept lies below.
const ROOM: i32 = 80;
/// Where numbers are kept on the stack; callbacks get a pointer to the lower one.
const KEPT: [i16; 2] = [-168, -176];
/// Where iterators are.
const ITERATORS: [i32; 2] = [-240, -256];

/// Where a number is.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    Reg(u8),
    /// On the stack: base register, offset.
    Word(u8, i16),
}

struct Turns<'r> {
    r: &'r Random,
    out: Vec<Insn>,
    /// Jumps to blocks by number, to be filled in; the last one is the end.
    jumps: Vec<(usize, usize)>,
    /// First instructions of blocks.
    starts: Vec<usize>,
    places: Vec<Place>,
    /// Addresses of the callback.
    calls: Vec<usize>,
    main: bool,
    /// How often a number does not suit, in percent.
    odd: u64,
}

impl Turns<'_> {
    fn emit(&mut self, i: Insn) {
        self.out.push(i);
    }

    fn jump(&mut self, i: Insn, block: usize) {
        self.jumps.push((self.out.len(), block));
        self.emit(i);
    }

    fn aim(&mut self, jump: usize) {
        if self.out.len() == jump + 1 {
            self.emit(Insn::new(op::JMP | op::JA, 0, 0, 0, 0));
        }
        self.out[jump].off = (self.out.len() - jump - 1) as i16;
    }

    /// What decides a jump that nobody can foretell: another one each time, or the same for ever.
    fn coin(&mut self) -> Insn {
        if self.r.chance(70) {
            self.emit(Insn::call(id::GET_PRANDOM_U32));
        } else {
            let at = self.r.below(8) << 35;
            self.out.extend(Insn::ld_imm64(1, op::PSEUDO_MAP_IDX_VALUE, at | map::DATA as u64));
            self.emit(Insn::new(LDX | op::DW, 0, 1, 0, 0));
        }
        Insn::new(op::JMP | op::JSET, 0, 0, 0, 1 << self.r.below(3))
    }

    fn place(&self) -> Place {
        self.r.pick(&self.places)
    }

    fn load(&mut self, to: u8, from: Place) {
        match from {
            Place::Reg(s) if self.r.chance(25) => {
                self.emit(Insn::new(op::ALU | op::X | op::MOV, to, s, 0, 0));
            }
            Place::Reg(s) => self.emit(Insn::mov64_reg(to, s)),
            Place::Word(base, off) => {
                let size = if self.r.chance(25) { op::W } else { op::DW };
                self.emit(Insn::new(LDX | size, to, base, off, 0));
            }
        }
    }

    fn store(&mut self, to: Place, from: u8) {
        match to {
            Place::Reg(d) => self.emit(Insn::mov64_reg(d, from)),
            Place::Word(base, off) => self.emit(Insn::new(STX | op::DW, base, from, off, 0)),
        }
    }

    fn number(&self) -> i32 {
        self.r.pick(if self.r.chance(self.odd) { &[80, 128, -8, 4096] } else { &[0, 8, 16, 24] })
    }

    fn one(&mut self, deep: bool) {
        let (a, b) = (self.place(), self.place());
        match self.r.below(if deep { 17 } else { 21 }) {
            0..=2 => {
                let n = self.number();
                match a {
                    Place::Reg(d) => self.emit(Insn::mov64_imm(d, n)),
                    Place::Word(base, off) => {
                        self.emit(Insn::new(op::ST | op::MEM | op::DW, base, 0, off, n));
                    }
                }
            }
            3..=5 => {
                self.load(1, a);
                self.store(b, 1);
            }
            6 => {
                self.load(1, a);
                let (class, n) =
                    (self.r.pick(&[op::ALU, op::ALU64]), self.r.pick(&[8, -8, 1, -1, 64]));
                self.emit(Insn::new(class | op::ADD, 1, 0, 0, n));
                self.store(b, 1);
            }
            7 => {
                self.load(1, a);
                self.emit(Insn::new(K64 | op::AND, 1, 0, 0, self.r.pick(&[0x38, 0x48, 0x78])));
                self.store(b, 1);
            }
            8 => {
                // Tells something of a number, and of those that are equal to it.
                self.load(1, a);
                self.store(b, 1);
                let class = self.r.pick(&[op::JMP, op::JMP32]);
                let (code, n) = self.r.pick(&[(op::JGT, 72), (op::JGT, 200), (op::JEQ, 128)]);
                let out = self.starts.len();
                if self.r.chance(30) {
                    self.emit(Insn::new(op::ALU | op::K | op::ADD, 1, 0, 0, 8));
                }
                self.jump(Insn::new(class | code, 1, 0, 0, n), out);
            }
            9 => {
                for n in 0..self.r.below(5) as i32 {
                    self.emit(Insn::mov64_imm(1, n));
                }
            }
            10..=12 => self.needed(a),
            13 => {
                // Nobody comes here with that number.
                self.load(1, a);
                let jump = self.out.len();
                let n = self.r.pick(&[80, 128, -8, 4096, 24]);
                self.emit(Insn::new(op::JMP | op::JNE, 1, 0, 0, n));
                self.emit(Insn::new(op::ST | op::MEM | op::DW, 10, 0, 8, 0));
                self.aim(jump);
            }
            14 => {
                let coin = self.coin();
                let jump = self.out.len();
                self.emit(coin);
                self.one(true);
                self.aim(jump);
            }
            15 | 16 => self.halves(),
            17 if self.main => self.call(),
            18 => self.again(),
            _ => self.inner(None),
        }
    }

    /// Copies and low halves of a number that is not known, steps apart; one is tested, one used.
    fn halves(&mut self) {
        let at = self.r.below(8) << 35;
        self.out.extend(Insn::ld_imm64(1, op::PSEUDO_MAP_IDX_VALUE, at | map::DATA as u64));
        self.emit(Insn::new(LDX | self.r.pick(&[op::B, op::W, op::DW]), 3, 1, 0, 0));
        let kept = self.place();
        let any = |m: &Self| m.r.pick(&[3, 4, 5]);
        for d in [4, 5] {
            let class = self.r.pick(&[op::ALU, op::ALU, op::ALU64]);
            let from = self.r.pick(&[3, d - 1]);
            self.emit(Insn::new(class | op::X | op::MOV, d, from, 0, 0));
        }
        for _ in 0..self.r.below(5) {
            let d = any(self);
            let class = self.r.pick(&[op::ALU, op::ALU64]);
            match self.r.below(6) {
                0 => self.emit(Insn::mov64_imm(d, 8)),
                1 => self.store(kept, d),
                2 => self.load(d, kept),
                _ => {
                    let n = self.r.pick(&[8, -8, 1, -1, 64, i32::MIN, i32::MAX]);
                    self.emit(Insn::new(class | op::ADD, d, 0, 0, n));
                }
            }
        }
        let class = self.r.pick(&[op::JMP, op::JMP32]);
        let code = self.r.pick(&[op::JGT, op::JGT, op::JSGT, op::JNE]);
        let jump = self.out.len();
        let d = any(self);
        self.emit(Insn::new(class | code, d, 0, 0, self.r.pick(&[8, 63, 64])));
        let used = any(self);
        if self.r.chance(50) {
            let jump = self.out.len();
            self.emit(Insn::new(op::JMP | op::JGT, used, 0, 0, 63));
            self.needed(Place::Reg(used));
            self.aim(jump);
        } else if self.r.chance(self.odd) {
            self.needed(Place::Reg(used));
        }
        self.aim(jump);
        self.emit(Insn::mov64_imm(1, 0));
    }

    /// Something that goes wrong with a number that does not suit.
    fn needed(&mut self, a: Place) {
        if self.r.chance(50) {
            self.load(1, a);
            self.emit(Insn::mov64_reg(2, 10));
            self.emit(Insn::new(K64 | op::ADD, 2, 0, 0, -ROOM));
        } else {
            self.load(1, a);
            self.out.extend(Insn::ld_imm64(2, op::PSEUDO_MAP_IDX_VALUE, map::DATA as u64));
        }
        self.emit(Insn::new(op::ALU64 | op::X | op::ADD, 2, 1, 0, 0));
        self.emit(Insn::new(STX | op::B, 2, 1, 0, 0));
    }

    /// A loop of its own; each turn changes that number.
    fn inner(&mut self, changes: Option<Place>) {
        let Some((new, _)) = kfunc::by_name("bpf_iter_num_new") else { return };
        let off = ITERATORS[usize::from(self.main)];
        let at = |m: &mut Self, function: u32| {
            m.emit(Insn::mov64_reg(1, 10));
            m.emit(Insn::new(K64 | op::ADD, 1, 0, 0, off));
            m.emit(Insn::call(function));
        };
        self.emit(Insn::mov64_imm(2, 0));
        self.emit(Insn::mov64_imm(3, self.r.below(7) as i32));
        at(self, new);
        let top = self.out.len();
        at(self, new + 1);
        let over = self.out.len();
        self.emit(Insn::new(op::JMP | op::JEQ, 0, 0, 0, 0));
        let jumps = self.jumps.len();
        if let Some(a) = changes {
            self.emit(Insn::mov64_imm(1, self.number()));
            self.store(a, 1);
        }
        for _ in 0..=self.r.below(3) {
            self.one(true);
        }
        // What leaves the block leads to the next turn.
        for (at, _) in self.jumps.split_off(jumps) {
            self.aim(at);
        }
        let back = top as i64 - self.out.len() as i64 - 1;
        self.emit(Insn::new(op::JMP | op::JA, 0, 0, back as i16, 0));
        self.aim(over);
        at(self, new + 2);
    }

    /// Round and round for as long as what lies between changes a number.
    fn again(&mut self) {
        let (a, top) = (self.place(), self.out.len());
        self.emit(Insn::mov64_imm(1, 8));
        self.store(a, 1);
        match self.r.below(3) {
            0 if self.main => {
                let shared = self.r.chance(70);
                self.call();
                if shared {
                    self.load(1, Place::Word(10, KEPT[1]));
                    self.store(a, 1);
                }
            }
            1 => {
                let out = self.out.len();
                self.emit(Insn::new(op::JMP | op::JCOND, 0, 0, 0, 0));
                self.emit(Insn::mov64_imm(1, self.number()));
                self.store(a, 1);
                self.aim(out);
            }
            _ => self.inner(Some(a)),
        }
        self.load(1, a);
        let back = top as i64 - self.out.len() as i64 - 1;
        self.emit(Insn::new(op::JMP | op::JNE, 1, 0, back as i16, 8));
    }

    fn call(&mut self) {
        self.emit(Insn::mov64_imm(1, self.r.pick(&[1, 2, 5, 100])));
        self.calls.push(self.out.len());
        self.out.extend(Insn::ld_imm64(2, op::PSEUDO_FUNC, 0));
        self.emit(Insn::mov64_reg(3, 10));
        self.emit(Insn::new(K64 | op::ADD, 3, 0, 0, KEPT[1].into()));
        self.emit(Insn::mov64_imm(4, 0));
        self.emit(Insn::call(id::LOOP));
    }

    /// Blocks, and jumps between them: back to heads of loops, and elsewhere for as long as a number is
    /// as it is.
    fn blocks(&mut self, count: usize) {
        self.starts.clear();
        let mut heads = Vec::new();
        for block in 0..count {
            self.starts.push(self.out.len());
            if self.r.chance(40) {
                heads.push(block);
                let to = if self.r.chance(70) { count } else { self.later(block, count) };
                self.jump(Insn::new(op::JMP | op::JCOND, 0, 0, 0, 0), to);
            }
            for _ in 0..self.r.below(4) {
                self.one(false);
            }
            match self.r.below(10) {
                0..=2 => {}
                3..=5 => {
                    let (coin, to) = (self.coin(), self.later(block, count));
                    self.jump(coin, to);
                }
                6 if block + 1 < count && !heads.is_empty() => {
                    let coin = self.coin();
                    let over = self.later(block, count);
                    self.jump(coin, over);
                    let to = self.r.pick(&heads);
                    self.jump(Insn::new(op::JMP | op::JA, 0, 0, 0, 0), to);
                }
                7 if self.r.chance(60) => {
                    // Again for as long as a number is what something on the way made of it.
                    let (a, to) = (self.place(), self.r.below(block as u64 + 1) as usize);
                    self.load(1, a);
                    let code = self.r.pick(&[op::JNE, op::JEQ]);
                    self.jump(Insn::new(op::JMP | code, 1, 0, 0, 8 * self.r.below(4) as i32), to);
                }
                _ if !heads.is_empty() => {
                    let (coin, to) = (self.coin(), self.r.pick(&heads));
                    self.jump(coin, to);
                }
                _ => {}
            }
        }
        self.emit(Insn::new(op::JMP | op::JA, 0, 0, 0, 0));
        self.starts.push(self.out.len());
        for (at, block) in std::mem::take(&mut self.jumps) {
            self.out[at].off = (self.starts[block] as i64 - at as i64 - 1) as i16;
        }
    }

    fn later(&self, block: usize, count: usize) -> usize {
        (block + 1 + self.r.below(4) as usize).min(count)
    }
}

/// Makes a program.
pub fn program(r: &Random) -> Linked {
    let mut t = Turns {
        r,
        out: Vec::new(),
        jumps: Vec::new(),
        starts: Vec::new(),
        places: [6, 7, 8].map(Place::Reg).into(),
        calls: Vec::new(),
        main: true,
        odd: r.pick(&[5, 15, 30]),
    };
    t.places.extend(KEPT.map(|off| Place::Word(10, off)));
    t.emit(Insn::mov64_imm(0, 0));
    for d in 6..9 {
        t.emit(Insn::mov64_imm(d, 8 * r.below(4) as i32));
    }
    for off in KEPT {
        t.emit(Insn::new(op::ST | op::MEM | op::DW, 10, 0, off, 8 * r.below(4) as i32));
    }
    let count = 3 + r.below(7) as usize;
    t.blocks(count);
    t.emit(Insn::mov64_imm(0, 0));
    t.emit(Insn::exit());
    if !t.calls.is_empty() {
        let start = t.out.len();
        t.main = false;
        t.places = vec![Place::Word(9, 0), Place::Word(9, 8), Place::Reg(6)];
        t.emit(Insn::mov64_reg(9, 2));
        t.emit(Insn::mov64_imm(6, 0));
        let count = 1 + r.below(3) as usize;
        t.blocks(count);
        t.emit(Insn::mov64_imm(0, 0));
        t.emit(Insn::exit());
        for at in t.calls {
            t.out[at].imm = (start - at - 1) as i32;
        }
    }
    let mut prog = Linked::from_insns("turns", ProgramType::Kprobe, t.out);
    prog.btf = Some(types::btf());
    prog.maps = maps(r, false);
    prog
}
