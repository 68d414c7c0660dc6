//! Pieces about paths that meet: each puts something else into a register or on the stack, what they
//! brought is carried on in one of many forms, and then something depends on it. Mostly all paths
//! suit what follows; now and then one does not, and must not pass for another.

use super::maker::{Callee, Content, Maker, Word};
use super::{ENTRIES, VALUE, map};
use skep_isa::helper::id;
use skep_isa::{Insn, ProgramType, kfunc, op};

const K64: u8 = op::ALU64 | op::K;
const X64: u8 = op::ALU64 | op::X;
const LDX: u8 = op::LDX | op::MEM;
const STX: u8 = op::STX | op::MEM;
const ST: u8 = op::ST | op::MEM;

/// How often one of the paths does not suit, in percent.
const ODD: u64 = 35;

/// What the paths may bring.
#[derive(Clone, Copy)]
struct Numbers<'n> {
    good: &'n [i64],
    bad: &'n [i64],
    /// Also numbers of which only the bounds are known; the good ones begin with 0 then.
    ranges: bool,
}

impl Maker<'_> {
    /// Ways that meet, and what depends on what they brought.
    pub fn joined(&mut self) {
        let Some(p) = self.saved() else { return self.alu() };
        if self.kept & 0x3f != 0 || self.is_deep() {
            return self.alu();
        }
        self.kept |= 1 << p;
        self.apart(|m| m.need(p));
        self.kept &= !(1 << p);
        self.set(p, Content::Nothing);
    }

    fn need(&mut self, p: u8) {
        if self.kernel && self.r.chance(if self.kind == ProgramType::CgroupSkb { 50 } else { 25 }) {
            return self.joined_kernel(p);
        }
        match self.r.below(28) {
            26 | 27 => self.joined_identity(p),
            0..=2 => self.joined_size(p),
            3..=5 => self.joined_offset(p),
            6 => self.joined_stack_offset(p),
            7 => self.joined_null(p),
            8 | 9 => self.joined_branch(p),
            10 => self.joined_turns(p),
            11 => self.joined_answer(),
            12 => self.joined_record_size(p),
            13 => self.joined_pointer(p),
            14 => self.joined_global(p),
            15 => self.joined_words(p),
            16 | 17 => self.joined_zeroes(p),
            18 | 19 => self.joined_link(p),
            20 => self.joined_stack(p),
            21 => self.joined_spill(p),
            22 => self.joined_packet(p),
            23 => self.joined_section(p),
            24 => self.joined_map(p),
            _ => self.joined_slice(p),
        }
    }

    fn aim(&mut self, jump: usize) {
        self.out[jump].off = (self.out.len() - jump - 1) as i16;
    }

    /// A jump that nobody can foretell.
    fn coin(&mut self) -> usize {
        let d = if self.kept & 0x3f == 0 && self.r.chance(50) {
            self.emit(Insn::call(id::GET_PRANDOM_U32));
            self.clobber(Content::Number);
            0
        } else {
            let d = self.free();
            self.any(d);
            d
        };
        let class = self.r.pick(&[op::JMP, op::JMP32]);
        let (code, n) = self.r.pick(&[
            (op::JSET, 1),
            (op::JSET, 2),
            (op::JSET, 8),
            (op::JGT, 7),
            (op::JSGT, 3),
            (op::JLT, 5),
        ]);
        self.emit(Insn::new(class | code, d, 0, 0, n));
        self.out.len() - 1
    }

    /// A number that is not known, without a call.
    fn any(&mut self, d: u8) {
        let at = self.r.below(u64::from(VALUE[map::DATA]) / 8) << 35;
        self.out.extend(Insn::ld_imm64(d, op::PSEUDO_MAP_IDX_VALUE, at | map::DATA as u64));
        let size = self.r.pick(&[op::B, op::W, op::DW]);
        self.emit(Insn::new(LDX | size, d, d, 0, 0));
        self.set(d, Content::Number);
    }

    /// Ways that part here, and meet again.
    fn part(&mut self, paths: usize, each: &mut dyn FnMut(&mut Self, usize)) {
        let Some(others) = paths.checked_sub(1).filter(|n| *n > 0) else { return each(self, 0) };
        let fork = self.coin();
        let before = self.known;
        each(self, others);
        let over = self.out.len();
        self.emit(Insn::new(op::JMP | op::JA, 0, 0, 0, 0));
        self.aim(fork);
        let after = std::mem::replace(&mut self.known, before);
        self.part(others, each);
        self.aim(over);
        self.known.meet(&after);
    }

    /// As [`part`](Self::part) with two or three paths; `each` is told whether its path shall not
    /// suit what follows.
    pub fn odd(&mut self, mut each: impl FnMut(&mut Self, bool)) {
        let paths = 2 + self.r.below(2) as usize;
        let odd = if self.r.chance(ODD) { self.r.below(paths as u64) as usize } else { paths };
        self.part(paths, &mut |m, path| {
            if m.r.chance(20) {
                m.pad();
            }
            each(m, path == odd);
        });
    }

    /// Puts a number into `place` on each path, and carries it on.
    fn brought(&mut self, place: u8, n: Numbers<'_>) {
        self.odd(|m, odd| {
            m.bring(place, m.r.pick(if odd { n.bad } else { n.good }), n.ranges, odd)
        });
        let small = n.good.iter().chain(n.bad).all(|n| (0..128).contains(n));
        self.carry(place, small);
    }

    pub fn bring(&mut self, d: u8, n: i64, ranges: bool, odd: bool) {
        if ranges && (1..1 << 20).contains(&n) && self.r.chance(35) {
            // Some number up to there, or a little further.
            let over = (n as u64 + 1).next_power_of_two();
            let mask = if odd || over == n as u64 + 1 { over - 1 } else { over / 2 - 1 };
            self.any(d);
            self.emit(Insn::new(
                self.r.pick(&[op::ALU, op::ALU64]) | op::AND,
                d,
                0,
                0,
                mask as i32,
            ));
        } else if i64::from(n as i32) != n {
            self.out.extend(Insn::ld_imm64(d, 0, n as u64));
        } else if self.r.chance(25) {
            let step = self.r.below(9) as i32 - 4;
            self.emit(Insn::mov64_imm(d, (n as i32).wrapping_sub(step)));
            self.emit(Insn::new(K64 | op::ADD, d, 0, 0, step));
        } else if n >= 0 && self.r.chance(30) {
            self.emit(Insn::new(op::ALU | op::K | op::MOV, d, 0, 0, n as i32));
        } else {
            self.emit(Insn::mov64_imm(d, n as i32));
        }
        self.set(d, Content::Number);
    }

    /// Something that changes nothing of what is kept, with paths of its own: a place where states
    /// are compared.
    fn pad(&mut self) {
        match self.r.below(6) {
            0 => self.nested(2),
            1 => self.alu(),
            2 => self.may_goto(),
            _ => {
                let d = self.free();
                self.part(2, &mut |m, path| {
                    m.emit(Insn::mov64_imm(d, path as i32));
                    for _ in 0..m.r.below(4) {
                        m.emit(Insn::new(K64 | op::ADD, d, 0, 0, 1));
                    }
                });
                self.set(d, Content::Number);
            }
        }
    }

    /// A word of stack that no other piece uses.
    fn hidden(&self) -> i16 {
        -8 * (14 + self.r.below(3) as i16)
    }

    /// Carries what `p` has through instructions that leave it as it is. `small`: from 0 to 127.
    pub fn carry(&mut self, p: u8, small: bool) {
        for _ in 0..self.r.below(4) {
            self.carry_once(p, small);
        }
        if self.r.chance(40) {
            self.pad();
        }
    }

    fn carry_once(&mut self, p: u8, small: bool) {
        let (slot, n) = (self.hidden(), self.r.below(30) as i32 + 1);
        let alu = |code: u8, imm| Insn::new(K64 | code, p, 0, 0, imm);
        match self.r.below(18) {
            16 | 17 if small => {
                // With more in the upper half, which a narrow store leaves behind.
                let d = self.free();
                self.out.extend(Insn::ld_imm64(d, 0, 1 << (32 + self.r.below(20))));
                self.set(d, Content::Number);
                self.emit(Insn::new(X64 | op::OR, p, d, 0, 0));
                let size = self.r.pick(&[op::W, op::H, op::B]);
                self.emit(Insn::new(STX | size, 10, p, slot, 0));
                if self.r.chance(50) {
                    self.pad();
                }
                self.emit(Insn::new(LDX | size, p, 10, slot, 0));
            }
            0..=3 => {
                let sizes = if small { &[op::DW, op::W, op::H, op::B][..] } else { &[op::DW] };
                let size = self.r.pick(sizes);
                self.emit(Insn::new(STX | size, 10, p, slot, 0));
                if self.r.chance(50) {
                    self.pad();
                }
                let narrow = if self.r.chance(30) { self.r.pick(sizes) } else { size };
                // A narrower load finds all of a small number, a wider one bytes that were never
                // written.
                let size = if narrow.max(size) == op::DW || small && size != op::B {
                    size
                } else {
                    narrow
                };
                let mode = if size != op::DW && self.r.chance(30) { op::MEMSX } else { op::MEM };
                self.emit(Insn::new(op::LDX | mode | size, p, 10, slot, 0));
            }
            4 => [alu(op::ADD, n), alu(op::SUB, n)].into_iter().for_each(|i| self.emit(i)),
            5 => [alu(op::XOR, n), alu(op::XOR, n)].into_iter().for_each(|i| self.emit(i)),
            6 => [alu(op::NEG, 0), alu(op::NEG, 0)].into_iter().for_each(|i| self.emit(i)),
            7 if small => [alu(op::LSH, n), alu(op::RSH, n)].into_iter().for_each(|i| self.emit(i)),
            8 if small => self.emit(Insn::new(op::ALU | op::X | op::MOV, p, p, 0, 0)),
            9 => {
                let swap = Insn::new(op::ALU64 | op::END, p, 0, 0, 64);
                [swap, swap].into_iter().for_each(|i| self.emit(i));
            }
            10 if small => self.emit(Insn::new(
                self.r.pick(&[op::ALU64, op::ALU]) | op::X | op::MOV,
                p,
                p,
                8,
                0,
            )),
            11 | 12 if self.main && self.kept & 0x3f == 0 => {
                self.initialize_arguments(p);
                self.calls.push((self.out.len(), Callee::Same));
                self.emit(Insn::new(op::CALL, 0, op::PSEUDO_CALL, 0, 0));
                self.emit(Insn::mov64_reg(p, 0));
                self.clobber(Content::Number);
            }
            13 => {
                // Out of the stack by an atomic that leaves something else there.
                self.emit(Insn::new(STX | op::DW, 10, p, slot, 0));
                self.emit(Insn::mov64_imm(p, 0));
                let imm = self.r.pick(&[
                    op::ATOMIC_XCHG,
                    op::ATOMIC_ADD | op::ATOMIC_FETCH,
                    op::ATOMIC_OR | op::ATOMIC_FETCH,
                ]);
                self.emit(Insn::new(op::STX | op::ATOMIC | op::DW, 10, p, slot, imm));
            }
            14 => {
                let d = self.free();
                self.emit(Insn::mov64_reg(d, p));
                self.set(d, Content::Number);
                if self.r.chance(50) {
                    self.pad();
                }
            }
            _ => {
                // Once round, and a loop that leaves it alone.
                let n = self.free();
                self.emit(Insn::mov64_imm(n, 0));
                self.emit(Insn::new(K64 | op::ADD, n, 0, 0, 1));
                self.emit(Insn::new(X64 | op::ADD, p, n, 0, 0));
                self.emit(Insn::new(X64 | op::SUB, p, n, 0, 0));
                self.emit(Insn::new(op::JMP | op::JLT, n, 0, -4, self.r.below(4) as i32));
                self.set(n, Content::Number);
            }
        }
        self.set(p, Content::Number);
    }

    fn initialize_arguments(&mut self, p: u8) {
        self.emit(Insn::mov64_reg(1, p));
    }

    /// The address of words of stack.
    fn words_at(&mut self, d: u8, words: u32) {
        self.emit(Insn::mov64_reg(d, 10));
        self.emit(Insn::new(K64 | op::ADD, d, 0, 0, -8 * (words as i32 + 1)));
    }

    fn helper(&mut self, id: u32) {
        self.emit(Insn::call(id));
        self.clobber(Content::Number);
    }

    /// The size of memory given to a helper.
    fn joined_size(&mut self, p: u8) {
        let words = self.r.below(4) as u32 + 1;
        let room = i64::from(8 * words);
        self.initialize(1..1 + words as usize);
        let tracing = !matches!(
            self.kind,
            ProgramType::Xdp
                | ProgramType::SchedCls
                | ProgramType::SocketFilter
                | ProgramType::CgroupSkb
                | ProgramType::Tracing
        );
        let helper = self.r.pick(if tracing {
            &[16, 105, 130, 182, 45, 113][..]
        } else {
            &[16, 105, 130, 182]
        });
        let zero = matches!(helper, 130 | 45 | 113);
        let (few, many) =
            ([0, 1, room / 2, room], [room + 1, room + 9, -1, 1 << 29, 1 << 32 | room, 0]);
        let good = if zero { &few[..] } else { &few[1..] };
        let bad = if zero { &many[..5] } else { &many[..] };
        self.brought(p, Numbers { good, bad, ranges: zero });
        let mem = if helper == 130 { 2 } else { 1 };
        self.words_at(mem, words);
        self.emit(Insn::mov64_reg(mem + 1, p));
        match helper {
            130 => {
                self.out.extend(Insn::ld_imm64(1, op::PSEUDO_MAP_IDX, map::RING as u64));
                self.emit(Insn::mov64_imm(4, 0));
            }
            105 => {
                self.emit(Insn::mov64_imm(3, 10));
                self.words_at(4, 0);
                self.known.stack[0] = Word { written: 0xff, holds: Content::Nothing };
            }
            182 => self.out.extend(Insn::ld_imm64(
                3,
                op::PSEUDO_MAP_IDX_VALUE,
                20 << 32 | map::CONST as u64,
            )),
            16 => {}
            _ => self.emit(Insn::mov64_imm(3, 4096)),
        }
        self.helper(helper);
        for w in &mut self.known.stack[1..1 + words as usize] {
            w.holds = Content::Nothing;
        }
    }

    /// How far an access is from the start of a value.
    fn joined_offset(&mut self, p: u8) {
        let m = self.r.pick(&[map::DATA, map::DATA, map::CONST]);
        let (code, size) = self.r.pick(&[(op::DW, 8), (op::W, 4), (op::B, 1)]);
        let start = self.r.below(3) * 8;
        let last = i64::from(VALUE[m]) - start as i64 - size;
        let (good, bad) = (
            [0, 1, last / 2, last],
            [last + 1, last + 8, -1 - start as i64, 1 << 32, 1 << 31, 4096],
        );
        self.brought(p, Numbers { good: &good, bad: &bad, ranges: true });
        let d = self.free();
        self.out.extend(Insn::ld_imm64(d, op::PSEUDO_MAP_IDX_VALUE, start << 32 | m as u64));
        if self.r.chance(30) {
            // What is known may rest on a test.
            self.emit(Insn::new(op::JMP | op::JGT, p, 0, 2, last as i32));
        }
        self.emit(Insn::new(X64 | op::ADD, d, p, 0, 0));
        self.emit(Insn::new(LDX | code, d, d, 0, 0));
        self.emit(Insn::mov64_imm(d, 0));
        self.set(d, Content::Number);
    }

    /// Which word of the stack is read or written.
    fn joined_stack_offset(&mut self, p: u8) {
        self.initialize(1..5);
        self.brought(
            p,
            Numbers { good: &[-16, -24, -32, -40], bad: &[0, 8, -12, -504, -520], ranges: false },
        );
        let d = self.free();
        self.emit(Insn::mov64_reg(d, 10));
        self.emit(Insn::new(X64 | op::ADD, d, p, 0, 0));
        if self.r.chance(60) {
            self.emit(Insn::new(LDX | op::DW, d, d, 0, 0));
            self.set(d, Content::Number);
        } else {
            self.emit(Insn::new(ST | op::DW, d, 0, 0, 1));
            self.set(d, Content::Nothing);
            for w in &mut self.known.stack[1..5] {
                w.holds = Content::Nothing;
            }
        }
    }

    /// Memory that may be missing, with a size that says so.
    fn joined_null(&mut self, p: u8) {
        let Some(q) = self.saved() else { return };
        let helper = match self.kind {
            ProgramType::Xdp | ProgramType::SchedCls if self.r.chance(60) => 28,
            _ => 177,
        };
        self.kept |= 1 << q;
        self.initialize(1..5);
        self.odd(|m, odd| {
            let sizes =
                if m.r.chance(40) && !odd { (true, 8 * m.r.below(4) as i32) } else { (false, 0) };
            if sizes.0 {
                m.words_at(p, 4);
            } else {
                let n = if odd && m.r.chance(60) { m.r.pick(&[1, 8, -1, 4096]) } else { 0 };
                m.emit(Insn::mov64_imm(p, n));
            }
            let size = if odd && m.r.chance(60) { 8 } else { sizes.1 };
            m.emit(Insn::mov64_imm(q, size));
            m.set(p, Content::Nothing);
        });
        self.set(q, Content::Number);
        self.carry(q, true);
        if self.r.chance(50) {
            self.emit(Insn::new(STX | op::DW, 10, p, -8 * 17, 0));
            self.pad();
            self.emit(Insn::new(LDX | op::DW, p, 10, -8 * 17, 0));
        }
        if helper == 28 {
            let swap = self.r.chance(50);
            let [a, b] = if swap { [3, 1] } else { [1, 3] };
            self.emit(Insn::mov64_reg(a, p));
            self.emit(Insn::mov64_reg(a + 1, q));
            self.emit(Insn::mov64_imm(b, 0));
            self.emit(Insn::mov64_imm(b + 1, 0));
            self.emit(Insn::mov64_imm(5, 0));
        } else {
            self.out.extend(Insn::ld_imm64(
                1,
                op::PSEUDO_MAP_IDX_VALUE,
                20 << 32 | map::CONST as u64,
            ));
            self.emit(Insn::mov64_imm(2, 8));
            self.emit(Insn::mov64_reg(3, p));
            self.emit(Insn::mov64_reg(4, q));
        }
        self.helper(helper);
        self.kept &= !(1 << q);
    }

    /// A test that always goes one path, and what must not be done on the other.
    fn joined_branch(&mut self, p: u8) {
        let (code, than, good, bad): (_, _, &[i64], &[i64]) = self.r.pick(&[
            (op::JEQ, 5, &[5][..], &[4, 1 << 32 | 5, -5][..]),
            (op::JNE, 5, &[4, 6, 0], &[5]),
            (op::JGT, 9, &[10, 11, 100], &[9, 0]),
            (op::JLE, 9, &[0, 8, 9], &[10, -1]),
            (op::JLT, 9, &[0, 8], &[9, 100]),
            (op::JGE, 9, &[9, 100], &[8, 0]),
            (op::JSGT, -3, &[-2, 0, 7], &[-3, -100]),
            (op::JSLE, 9, &[9, -7, 0], &[10, 100]),
            (op::JSET, 6, &[2, 4, 7], &[1, 8, 0]),
        ]);
        self.brought(p, Numbers { good, bad, ranges: good.contains(&0) && code == op::JLE });
        let class = self.r.pick(&[op::JMP, op::JMP32]);
        let i = if self.r.chance(30) {
            let d = self.free();
            self.emit(Insn::mov64_imm(d, than));
            self.set(d, Content::Number);
            Insn::new(class | op::X | code, p, d, 1, 0)
        } else {
            Insn::new(class | code, p, 0, 1, than)
        };
        self.emit(i);
        let wrong = self.r.pick(&[
            Insn::new(LDX | op::B, p, p, 0, 0),
            Insn::new(LDX | op::DW, p, 10, 0, 0),
            Insn::new(STX | op::DW, p, p, 0, 0),
        ]);
        self.emit(wrong);
    }

    /// How often a callback is called that must never be, or what it is given.
    fn joined_turns(&mut self, p: u8) {
        if !self.main {
            return self.joined_branch(p);
        }
        let context = self.r.chance(40);
        if context {
            self.words_or_null(p, &[1, 8, -1]);
            self.emit(Insn::mov64_imm(1, self.r.below(3) as i32));
        } else {
            self.brought(p, Numbers { good: &[0], bad: &[1, 3], ranges: false });
            self.emit(Insn::mov64_reg(1, p));
        }
        self.calls.push((self.out.len(), if context { Callee::Answer } else { Callee::Never }));
        self.out.extend(Insn::ld_imm64(2, op::PSEUDO_FUNC, 0));
        self.emit(if context { Insn::mov64_reg(3, p) } else { Insn::mov64_imm(3, 0) });
        self.emit(Insn::mov64_imm(4, 0));
        self.helper(181);
    }

    /// A callback that gives different answers.
    fn joined_answer(&mut self) {
        if !self.main {
            return;
        }
        let n = self.number();
        self.emit(Insn::mov64_reg(1, n));
        self.calls.push((self.out.len(), Callee::Answer));
        self.out.extend(Insn::ld_imm64(2, op::PSEUDO_FUNC, 0));
        self.emit(Insn::mov64_imm(3, 0));
        self.emit(Insn::mov64_imm(4, 0));
        self.helper(181);
    }

    /// The functions of these pieces.
    pub fn path_function(&mut self, callee: Callee) {
        match callee {
            Callee::Never => self.emit(Insn::new(LDX | op::DW, 0, 1, 0, 0)),
            Callee::Same => {
                self.emit(Insn::mov64_reg(6, 1));
                self.kept |= 1 << 6;
                self.set(6, Content::Number);
                self.apart(|m| {
                    m.carry(6, false);
                    if m.r.chance(30) {
                        m.nested(2);
                    }
                });
                self.emit(Insn::mov64_reg(0, 6));
            }
            _ => {
                self.kept |= 1 << 6;
                self.apart(|m| {
                    m.brought(6, Numbers { good: &[0, 1], bad: &[2, -1, 1 << 32], ranges: true })
                });
                self.emit(Insn::mov64_reg(0, 6));
            }
        }
    }

    /// What the program returns.
    pub fn result(&mut self, attach: Option<skep_isa::AttachType>) {
        let most = match (self.kind, attach) {
            (ProgramType::Tracing, Some(skep_isa::AttachType::TraceFexit)) => 0,
            (ProgramType::Tracing | ProgramType::CgroupSkb, _) => 1,
            _ if self.r.chance(80) => return self.emit(Insn::mov64_imm(0, 0)),
            _ => {
                let n = self.number();
                return self.emit(Insn::mov64_reg(0, n));
            }
        };
        if self.r.chance(60) {
            return self.emit(Insn::mov64_imm(0, self.r.below(most + 1) as i32));
        }
        self.kept |= 1 << 6;
        self.apart(|m| {
            let good: &[i64] = if most == 0 { &[0] } else { &[0, 1] };
            m.brought(6, Numbers { good, bad: &[2, 7, -1, 1 << 31], ranges: most > 0 });
        });
        self.emit(Insn::mov64_reg(0, 6));
        self.set(0, Content::Number);
    }

    /// The size of a record, or of a slice of it.
    fn joined_record_size(&mut self, p: u8) {
        let need = self.r.pick(&[8, 16]);
        self.brought(p, Numbers { good: &[16, 24, 40], bad: &[8, 0, 4], ranges: false });
        self.out.extend(Insn::ld_imm64(1, op::PSEUDO_MAP_IDX, map::RING as u64));
        self.emit(Insn::mov64_reg(2, p));
        self.emit(Insn::mov64_imm(3, 0));
        self.helper(131);
        let fails = self.out.len();
        self.emit(Insn::new(op::JMP | op::JEQ, 0, 0, 0, 0));
        self.emit(Insn::mov64_reg(p, 0));
        self.set(p, Content::Nothing);
        if self.r.chance(40) {
            self.pad();
        }
        self.emit(Insn::new(ST | op::DW, p, 0, need - 8, 1));
        self.emit(Insn::mov64_reg(1, p));
        self.emit(Insn::mov64_imm(2, 0));
        self.helper(self.r.pick(&[132, 133]));
        self.clobber(Content::Nothing);
        self.aim(fails);
        self.emit(Insn::mov64_imm(p, 0));
    }

    /// A pointer on some paths, NULL on others; a number that is neither.
    fn joined_pointer(&mut self, p: u8) {
        let off = i64::from(VALUE[map::DATA]) - 8;
        self.initialize(1..2);
        self.odd(|m, odd| {
            match m.r.below(3) {
                _ if odd => m.emit(Insn::mov64_imm(p, m.r.pick(&[1, -1, 64]))),
                0 => m.emit(Insn::mov64_imm(p, 0)),
                1 => m.words_at(p, 1),
                _ => m.out.extend(Insn::ld_imm64(
                    p,
                    op::PSEUDO_MAP_IDX_VALUE,
                    m.r.below(off as u64 + 1) << 32 | map::DATA as u64,
                )),
            }
            m.set(p, Content::Nothing);
        });
        self.through_stack(p);
        let d = self.free();
        self.emit(Insn::new(op::JMP | op::JEQ, p, 0, 1, 0));
        self.emit(Insn::new(LDX | op::DW, d, p, 0, 0));
        self.emit(Insn::mov64_imm(d, 0));
        self.set(d, Content::Number);
    }

    /// Spills and fills whatever `p` has.
    pub fn through_stack(&mut self, p: u8) {
        let slot = self.hidden();
        if self.r.chance(50) {
            self.emit(Insn::new(STX | op::DW, 10, p, slot, 0));
            self.pad();
            self.emit(Insn::new(LDX | op::DW, p, 10, slot, 0));
        } else if self.r.chance(50) {
            self.pad();
        }
    }

    /// Puts words of the stack or NULL into `p`, on odd paths a number that is neither.
    fn words_or_null(&mut self, p: u8, neither: &[i32]) {
        self.odd(|m, odd| {
            if odd {
                m.emit(Insn::mov64_imm(p, m.r.pick(neither)));
            } else if m.r.chance(50) {
                m.emit(Insn::mov64_imm(p, 0));
            } else {
                m.words_at(p, 4);
            }
            m.set(p, Content::Nothing);
        });
        self.through_stack(p);
    }

    /// An argument that may be NULL.
    fn joined_global(&mut self, p: u8) {
        if !self.main {
            return self.joined_pointer(p);
        }
        self.initialize(1..5);
        self.words_or_null(p, &[1, -1, 4096]);
        self.emit(Insn::mov64_imm(1, 3));
        self.emit(Insn::mov64_reg(2, p));
        self.calls.push((self.out.len(), Callee::Global));
        self.emit(Insn::new(op::CALL, 0, op::PSEUDO_CALL, 0, 0));
        self.lose_packet();
        self.clobber(Content::Number);
        for w in &mut self.known.stack[1..5] {
            w.holds = Content::Nothing;
        }
    }

    /// How many words a format is given.
    fn joined_words(&mut self, p: u8) {
        self.initialize(1..5);
        self.brought(p, Numbers { good: &[16], bad: &[8, 0, 24, 15], ranges: false });
        self.words_at(1, 4);
        self.emit(Insn::mov64_imm(2, 16));
        self.out.extend(Insn::ld_imm64(3, op::PSEUDO_MAP_IDX_VALUE, 20 << 32 | map::CONST as u64));
        self.words_at(4, 2);
        self.emit(Insn::mov64_reg(5, p));
        if self.r.chance(20) {
            self.emit(Insn::mov64_imm(4, 0));
        }
        self.helper(165);
        for w in &mut self.known.stack[1..5] {
            w.holds = Content::Nothing;
        }
    }

    /// Bytes of the stack that are zero on all paths, however they were written.
    fn joined_zeroes(&mut self, p: u8) {
        let slot = self.hidden();
        self.odd(|m, odd| {
            let (code, size) = m.r.pick(&[(op::DW, 8), (op::W, 4), (op::H, 2), (op::B, 1)]);
            let wrong = if odd { m.r.below(8 / size as u64) as i16 } else { -1 };
            let by_reg = m.r.chance(50);
            for n in 0..8 / size {
                let imm = if n == wrong { m.r.pick(&[1, 8, 127]) } else { 0 };
                if by_reg {
                    m.emit(Insn::mov64_imm(p, imm));
                    m.emit(Insn::new(STX | code, 10, p, slot + n * size, 0));
                } else {
                    m.emit(Insn::new(ST | code, 10, 0, slot + n * size, imm));
                }
            }
        });
        if self.r.chance(40) {
            // One more, to a place that is not known.
            let d = self.free();
            self.emit(Insn::new(ST | op::DW, 10, 0, slot - 8, 0));
            self.odd(|m, odd| m.bring(p, if odd { 0x0808_0808_0808_0808 } else { 0 }, false, odd));
            self.any(d);
            self.emit(Insn::new(K64 | op::AND, d, 0, 0, 8));
            self.emit(Insn::new(X64 | op::ADD, d, 10, 0, 0));
            self.emit(Insn::new(K64 | op::ADD, d, 0, 0, i32::from(slot) - 8));
            self.emit(Insn::new(STX | op::DW, d, p, 0, 0));
            self.set(d, Content::Nothing);
        }
        if self.r.chance(60) {
            self.pad();
        }
        let (code, size) =
            self.r.pick(&[(op::DW, 8), (op::DW, 8), (op::W, 4), (op::H, 2), (op::B, 1)]);
        self.emit(Insn::new(
            LDX | code,
            p,
            10,
            slot + self.r.below(8 / size) as i16 * size as i16,
            0,
        ));
        self.set(p, Content::Number);
        self.carry(p, false);
        let d = self.free();
        self.out.extend(Insn::ld_imm64(
            d,
            op::PSEUDO_MAP_IDX_VALUE,
            u64::from(VALUE[map::DATA] - 8) << 32 | map::DATA as u64,
        ));
        self.emit(Insn::new(X64 | op::ADD, d, p, 0, 0));
        self.emit(Insn::new(LDX | op::DW, d, d, 0, 0));
        self.set(d, Content::Number);
    }

    /// A number that is the same as another, or so much more, on all paths: a test of one bounds the
    /// other.
    fn joined_link(&mut self, p: u8) {
        let Some(q) = self.saved() else { return };
        self.kept |= 1 << q;
        let room = 16;
        let (half, step) =
            (self.r.chance(40), if self.r.chance(50) { self.r.below(9) as i32 } else { 0 });
        let class = if half { op::ALU } else { op::ALU64 };
        let load = |m: &mut Self, d: u8, size: u8| {
            let at = m.r.below(8) << 35;
            m.out.extend(Insn::ld_imm64(d, op::PSEUDO_MAP_IDX_VALUE, at | map::DATA as u64));
            m.emit(Insn::new(LDX | size, d, d, 0, 0));
        };
        self.odd(|m, odd| {
            let how = m.r.below(4);
            load(m, p, if half && !(odd && how == 0) { op::W } else { op::DW });
            m.emit(Insn::new(class | op::X | op::MOV, q, p, 0, 0));
            let step = if odd && how == 1 { step + 9 } else { step };
            if step != 0 || m.r.chance(30) {
                m.emit(Insn::new(class | op::ADD, q, 0, 0, step));
            }
            if odd && how == 2 {
                load(m, q, op::DW);
            } else if odd && how == 3 {
                m.emit(Insn::new(K64 | op::RSH, q, 0, 0, 1));
            }
            m.set(p, Content::Number);
        });
        self.set(q, Content::Number);
        if self.r.chance(50) {
            let slot = self.hidden();
            let of = self.r.pick(&[p, q]);
            self.emit(Insn::new(STX | op::DW, 10, of, slot, 0));
            self.pad();
            self.emit(Insn::new(LDX | op::DW, of, 10, slot, 0));
        } else {
            self.pad();
        }
        // In [step, step + room) it is not below `p + step`, so `p` is in [0, room).
        let class = if half { op::JMP32 } else { op::JMP };
        self.jump_out(Insn::new(class | op::JLT, q, 0, 0, step));
        self.jump_out(Insn::new(class | op::JGE, q, 0, 0, step + room));
        let d = self.free();
        self.out.extend(Insn::ld_imm64(
            d,
            op::PSEUDO_MAP_IDX_VALUE,
            u64::from(VALUE[map::DATA] - room as u32) << 32 | map::DATA as u64,
        ));
        self.emit(Insn::new(X64 | op::ADD, d, p, 0, 0));
        self.emit(Insn::new(LDX | op::B, d, d, 0, 0));
        self.set(d, Content::Number);
        self.kept &= !(1 << q);
    }

    /// Bytes of the stack that not all paths write.
    fn joined_stack(&mut self, p: u8) {
        let slot = -8 * (17 + self.r.below(12) as i16);
        let need = self.r.pick(&[8, 4]);
        self.odd(|m, odd| {
            match m.r.below(4) {
                0 if odd => {
                    m.emit(Insn::new(ST | op::W, 10, 0, slot + if need == 4 { 4 } else { 0 }, 1))
                }
                1 if odd => m.emit(Insn::new(ST | op::H, 10, 0, slot, 1)),
                _ if odd => m.emit(Insn::mov64_imm(p, 0)),
                0 => {
                    m.emit(Insn::new(ST | op::W, 10, 0, slot, 1));
                    m.emit(Insn::new(ST | op::W, 10, 0, slot + 4, 0));
                }
                1 => m.emit(Insn::new(ST | op::DW, 10, 0, slot, 7)),
                2 => {
                    m.any(p);
                    m.emit(Insn::new(STX | op::DW, 10, p, slot, 0));
                }
                _ => {
                    // Most of it by a helper.
                    if m.kept & 0x3f != 0 {
                        return m.emit(Insn::new(ST | op::DW, 10, 0, slot, 0));
                    }
                    m.emit(Insn::mov64_reg(1, 10));
                    m.emit(Insn::new(K64 | op::ADD, 1, 0, 0, slot.into()));
                    m.emit(Insn::mov64_imm(2, 8));
                    m.helper(16);
                }
            }
        });
        if self.r.chance(60) {
            self.pad();
        }
        if self.r.chance(50) {
            self.emit(Insn::new(LDX | if need == 8 { op::DW } else { op::W }, p, 10, slot, 0));
            return;
        }
        self.out.extend(Insn::ld_imm64(1, op::PSEUDO_MAP_IDX, map::RING as u64));
        self.emit(Insn::mov64_reg(2, 10));
        self.emit(Insn::new(K64 | op::ADD, 2, 0, 0, slot.into()));
        self.emit(Insn::mov64_imm(3, need));
        self.emit(Insn::mov64_imm(4, 0));
        self.helper(130);
    }

    /// A spilled pointer to one thing or another.
    fn joined_spill(&mut self, p: u8) {
        let slot = self.hidden();
        self.initialize(1..5);
        self.odd(|m, odd| {
            match m.r.below(3) {
                0 if odd => m.emit(Insn::mov64_imm(p, m.r.pick(&[0, 1, 4096]))),
                1 if odd => m.words_at(p, 0),
                _ if odd => m.out.extend(Insn::ld_imm64(
                    p,
                    op::PSEUDO_MAP_IDX_VALUE,
                    60 << 32 | map::DATA as u64,
                )),
                0 => m.words_at(p, 3),
                _ => m.out.extend(Insn::ld_imm64(
                    p,
                    op::PSEUDO_MAP_IDX_VALUE,
                    m.r.below(7) << 35 | map::DATA as u64,
                )),
            }
            m.emit(Insn::new(STX | op::DW, 10, p, slot, 0));
            if odd && m.r.chance(20) {
                m.emit(Insn::new(ST | m.r.pick(&[op::B, op::W]), 10, 0, slot, 0));
            }
        });
        if self.r.chance(60) {
            self.pad();
        }
        self.emit(Insn::new(LDX | op::DW, p, 10, slot, 0));
        let d = self.free();
        self.emit(Insn::new(LDX | op::DW, d, p, 8, 0));
        self.set(d, Content::Number);
    }

    /// How much of the packet is known to be there.
    fn joined_packet(&mut self, p: u8) {
        let fields = match self.kind {
            ProgramType::Xdp => [0, 4],
            ProgramType::SchedCls => [76, 80],
            _ => return self.joined_link(p),
        };
        let Some(q) = self.saved().filter(|_| self.main) else { return };
        self.kept |= 1 << q;
        let load = |m: &mut Self| {
            m.emit(Insn::new(LDX | op::W, p, 9, fields[0], 0));
            m.emit(Insn::new(LDX | op::W, q, 9, fields[1], 0));
        };
        load(self);
        self.odd(|m, odd| {
            if odd && m.r.chance(20) {
                // Not tested.
                return m.emit(Insn::mov64_imm(m.free(), 0));
            }
            if m.r.chance(20) {
                load(m);
            }
            let size = if odd { m.r.below(8) as i32 } else { 8 + m.r.below(8) as i32 };
            let d = m.free();
            m.emit(Insn::mov64_reg(d, p));
            m.emit(Insn::new(K64 | op::ADD, d, 0, 0, size));
            m.set(d, Content::Nothing);
            m.jump_out(Insn::new(op::JMP | op::X | op::JGT, d, q, 0, 0));
            if odd && m.r.chance(30) && m.kind == ProgramType::Xdp {
                // Moved away.
                m.emit(Insn::mov64_reg(1, 9));
                m.emit(Insn::mov64_imm(2, 0));
                m.helper(65);
                m.lose_packet();
            }
        });
        self.set(p, Content::Nothing);
        self.set(q, Content::Nothing);
        self.through_stack(p);
        self.emit(Insn::new(LDX | op::DW, p, p, 0, 0));
        self.set(p, Content::Number);
        self.kept &= !(1 << q);
    }

    /// Something that is held on some paths only, and a number that says on which.
    fn joined_section(&mut self, p: u8) {
        let Some(q) = self.saved() else { return };
        self.kept |= 1 << q;
        let what = self.r.below(5);
        let section = self.r.pick(&["bpf_rcu_read_lock", "bpf_preempt_disable"]);
        let iter = -8 * 18;
        if what == 4 && !super::may_lock(self.kind) {
            self.kept &= !(1 << q);
            return self.joined_branch(p);
        }
        if what == 4 {
            self.locked_value(q);
        }
        self.odd(|m, odd| {
            let hold = m.r.chance(50);
            let says = i32::from(hold != odd);
            match (what, hold) {
                (_, false) => m.emit(Insn::mov64_imm(q, 0)),
                (0 | 1, true) => {
                    m.out.extend(Insn::ld_imm64(1, op::PSEUDO_MAP_IDX, map::RING as u64));
                    m.emit(Insn::mov64_imm(2, 16));
                    m.emit(Insn::mov64_imm(3, 0));
                    m.helper(131);
                    m.emit(Insn::mov64_reg(q, 0));
                    // What could not be had need not be given back.
                    m.emit(Insn::mov64_imm(p, 1 - says));
                    m.emit(Insn::new(op::JMP | op::JEQ, q, 0, 1, 0));
                }
                (2, true) => m.kernel_function(section),
                (3, true) => {
                    m.iter_at(iter);
                    m.emit(Insn::mov64_imm(2, 0));
                    m.emit(Insn::mov64_imm(3, 4));
                    m.kernel_function("bpf_iter_num_new");
                }
                (_, true) => {
                    m.emit(Insn::mov64_reg(1, q));
                    m.emit(Insn::new(K64 | op::ADD, 1, 0, 0, super::LOCK as i32));
                    m.helper(93);
                }
            }
            if what == 4 && !hold {
                // The value is still there.
                m.out.pop();
            }
            m.emit(Insn::mov64_imm(p, says));
            m.set(p, Content::Number);
        });
        // No calls while a lock is held.
        if what == 4 {
            self.emit(Insn::new(op::JMP | op::JA, 0, 0, 0, 0));
        } else {
            self.carry(p, true);
        }
        let (code, n) = self.r.pick(&[(op::JEQ, 0), (op::JNE, 1), (op::JLT, 1), (op::JSLE, 0)]);
        let over = self.out.len();
        self.emit(Insn::new(op::JMP | code, p, 0, 0, n));
        match what {
            0 | 1 => {
                self.emit(Insn::mov64_reg(1, q));
                self.emit(Insn::mov64_imm(2, 0));
                self.helper(self.r.pick(&[132, 133]));
            }
            2 => self.kernel_function(if section == "bpf_rcu_read_lock" {
                "bpf_rcu_read_unlock"
            } else {
                "bpf_preempt_enable"
            }),
            3 => {
                self.iter_at(iter);
                self.kernel_function("bpf_iter_num_destroy");
            }
            _ => {
                self.emit(Insn::mov64_reg(1, q));
                self.emit(Insn::new(K64 | op::ADD, 1, 0, 0, super::LOCK as i32));
                self.helper(94);
            }
        }
        self.clobber(Content::Nothing);
        self.aim(over);
        self.emit(Insn::mov64_imm(q, 0));
        self.set(q, Content::Number);
        self.kept &= !(1 << q);
    }

    /// Two registers with one thing, or with two of a kind: what is learnt of one, or done to it,
    /// does not go for the other.
    fn joined_identity(&mut self, p: u8) {
        let Some(q) = self.saved() else { return };
        self.kept |= 1 << q;
        match self.r.below(3) {
            0 => self.joined_test(p, q),
            1 if super::may_lock(self.kind) => self.joined_lock(p, q),
            _ => self.joined_packet_pointer(p, q),
        }
        self.kept &= !(1 << q);
        self.set(q, Content::Nothing);
    }

    fn found(&mut self, d: u8, m: usize) {
        self.emit(Insn::new(ST | op::W, 10, 0, -4, self.r.below(9) as i32));
        self.known.stack[0].written |= 0xf0;
        self.known.stack[0].holds = Content::Nothing;
        self.emit(Insn::mov64_reg(2, 10));
        self.emit(Insn::new(K64 | op::ADD, 2, 0, 0, -4));
        self.out.extend(Insn::ld_imm64(1, op::PSEUDO_MAP_IDX, m as u64));
        self.helper(1);
        self.clobber(Content::Nothing);
        self.emit(Insn::mov64_reg(d, 0));
        self.set(d, Content::Nothing);
    }

    /// A test for NULL, of the value itself or of a copy; on some paths of another, or of none.
    fn joined_test(&mut self, p: u8, q: u8) {
        self.found(p, map::HASH);
        let early = self.r.chance(40);
        self.odd(|m, odd| {
            if odd && (m.r.chance(50) || early) {
                if m.r.chance(50) {
                    m.found(q, map::HASH);
                } else {
                    m.emit(Insn::mov64_imm(q, 8));
                }
            } else {
                m.emit(Insn::mov64_reg(q, p));
                m.set(q, Content::Nothing);
                if early {
                    m.jump_out(Insn::new(op::JMP | op::JEQ, m.r.pick(&[p, q]), 0, 0, 0));
                } else if odd {
                    m.found(p, map::HASH);
                }
            }
        });
        self.through_stack(q);
        if !early {
            self.jump_out(Insn::new(op::JMP | op::JEQ, q, 0, 0, 0));
        }
        let d = self.free();
        self.emit(Insn::new(LDX | op::DW, d, p, 8, 0));
        self.set(d, Content::Number);
    }

    /// The lock of one value is taken, and that of the same given back, or of another.
    fn joined_lock(&mut self, p: u8, q: u8) {
        self.locked_value(p);
        self.odd(|m, odd| {
            if odd {
                m.locked_value(q);
            } else {
                m.emit(Insn::mov64_reg(q, p));
            }
            m.set(q, Content::Nothing);
        });
        self.through_stack(q);
        for (value, helper) in [(p, 93), (q, 94)] {
            self.emit(Insn::mov64_reg(1, value));
            self.emit(Insn::new(K64 | op::ADD, 1, 0, 0, super::LOCK as i32));
            self.helper(helper);
        }
    }

    /// Two pointers into the packet that are equally far from its start, and two that are not.
    fn joined_packet_pointer(&mut self, p: u8, q: u8) {
        let fields = match self.kind {
            ProgramType::Xdp if self.main => [0, 4],
            ProgramType::SchedCls if self.main => [76, 80],
            _ => return self.joined_test(p, q),
        };
        self.odd(|m, odd| {
            for to in [p, q] {
                m.emit(Insn::new(LDX | op::W, to, 9, fields[0], 0));
            }
            let d = m.free();
            m.any(d);
            m.emit(Insn::new(K64 | op::AND, d, 0, 0, 31));
            m.emit(Insn::new(X64 | op::ADD, p, d, 0, 0));
            if odd {
                m.emit(Insn::new(op::JMP | op::JA, 0, 0, 0, 0));
                m.any(d);
                m.emit(Insn::new(K64 | op::AND, d, 0, 0, 31));
                m.emit(Insn::new(X64 | op::ADD, q, d, 0, 0));
            } else {
                m.emit(Insn::mov64_reg(q, p));
            }
            m.set(p, Content::Nothing);
            m.set(q, Content::Nothing);
        });
        self.through_stack(q);
        let [a, b] = self.r.pick(&[[1, 2], [4, 0]]);
        self.emit(Insn::mov64_reg(a, p));
        self.emit(Insn::new(K64 | op::ADD, a, 0, 0, 8));
        self.emit(Insn::new(LDX | op::W, b, 9, fields[1], 0));
        self.set(a, Content::Nothing);
        self.set(b, Content::Nothing);
        self.jump_out(Insn::new(op::JMP | op::X | op::JGT, a, b, 0, 0));
        self.emit(Insn::new(LDX | op::DW, a, q, 0, 0));
        self.set(a, Content::Number);
    }

    fn iter_at(&mut self, off: i32) {
        self.emit(Insn::mov64_reg(1, 10));
        self.emit(Insn::new(K64 | op::ADD, 1, 0, 0, off));
    }

    pub fn kernel_function(&mut self, name: &'static str) {
        let (number, _) = kfunc::by_name(name).expect("a kernel function of that name");
        self.emit(Insn::call(number));
        self.clobber(Content::Nothing);
    }

    /// One map or another, whose values are not of one size.
    fn joined_map(&mut self, p: u8) {
        let maps = [map::HASH, map::ARRAY, map::DATA];
        let good = 16;
        self.odd(|m, odd| {
            let of = if odd { map::PERCPU } else { m.r.pick(&maps) };
            m.out.extend(Insn::ld_imm64(p, op::PSEUDO_MAP_IDX, of as u64));
            m.set(p, Content::Nothing);
        });
        let off = if self.r.chance(50) { good } else { 40 };
        self.through_stack(p);
        self.emit(Insn::new(ST | op::W, 10, 0, -4, 0));
        self.known.stack[0].written |= 0xf0;
        self.known.stack[0].holds = Content::Nothing;
        self.emit(Insn::mov64_reg(1, p));
        self.emit(Insn::mov64_reg(2, 10));
        self.emit(Insn::new(K64 | op::ADD, 2, 0, 0, -4));
        self.helper(1);
        self.clobber(Content::Nothing);
        self.emit(Insn::new(op::JMP | op::JEQ, 0, 0, 1, 0));
        self.emit(Insn::new(LDX | op::DW, 0, 0, off, 0));
        self.emit(Insn::mov64_imm(0, 0));
        self.set(0, Content::Number);
    }

    /// What only programs for the kernel call: flags that must be 0, objects that may be missing,
    /// keys that are known.
    fn joined_kernel(&mut self, p: u8) {
        let which =
            if self.kind == ProgramType::CgroupSkb { self.r.below(3) } else { self.r.below(2) };
        if which == 0 {
            let m = self.r.pick(&[map::ARRAY, map::PERCPU]);
            let last = i64::from(ENTRIES[m]) - 1;
            self.brought(
                p,
                Numbers {
                    good: &[0, last, last / 2],
                    bad: &[last + 1, -1, 1 << 20],
                    ranges: false,
                },
            );
            self.emit(Insn::new(STX | op::W, 10, p, -8, 0));
            (self.known.stack[0].written, self.known.stack[0].holds) =
                (self.known.stack[0].written | 0x0f, Content::Nothing);
            if self.r.chance(40) {
                self.pad();
                self.emit(Insn::new(STX | op::W, 10, p, -8, 0));
            }
            self.out.extend(Insn::ld_imm64(1, op::PSEUDO_MAP_IDX, m as u64));
            self.emit(Insn::mov64_reg(2, 10));
            self.emit(Insn::new(K64 | op::ADD, 2, 0, 0, -8));
            self.helper(1);
            self.emit(Insn::new(LDX | op::DW, 0, 0, 24, 0));
            return;
        }
        if which == 1 {
            // The task must be an object or missing, and so must the first contents.
            self.initialize(1..3);
            let task = self.r.chance(50);
            self.odd(|m, odd| {
                if !task && !odd && m.r.chance(50) {
                    m.words_at(p, 2);
                } else {
                    m.emit(Insn::mov64_imm(p, if odd { m.r.pick(&[1, 8, -1]) } else { 0 }));
                }
                m.set(p, Content::Nothing);
            });
            self.through_stack(p);
            self.out.extend(Insn::ld_imm64(1, op::PSEUDO_MAP_IDX, map::TASKS as u64));
            let (with, without) = if task { (2, 3) } else { (3, 2) };
            self.emit(Insn::mov64_reg(with, p));
            self.emit(Insn::mov64_imm(without, 0));
            self.emit(Insn::mov64_imm(4, 1));
            self.helper(156);
            self.clobber(Content::Nothing);
            return;
        }
        self.brought(p, Numbers { good: &[0], bad: &[1, 4, -1, 1 << 32], ranges: false });
        self.out.extend(Insn::ld_imm64(1, op::PSEUDO_MAP_IDX, map::STORAGE as u64));
        self.emit(Insn::mov64_reg(2, p));
        self.helper(81);
        self.emit(Insn::new(LDX | op::DW, 0, 0, 24, 0));
    }
}
