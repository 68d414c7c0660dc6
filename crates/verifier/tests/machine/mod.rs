//! An interpreter that traps what the verifier must have ruled out: accesses outside an object,
//! through something that is no pointer, to what was released or may not be written; registers and
//! stack bytes that were never written; stacks that are too deep; references that are kept; results
//! that are not allowed; programs that do not end.
//!
//! [`Machine::run`] does it; [`memory`] has the objects, [`helpers`] and [`kfuncs`] the calls,
//! [`arith`] the numbers.

pub mod arith;
mod dynptrs;
mod helpers;
mod kfuncs;
pub mod memory;

use crate::random::Random;
use memory::{Kind, Memory, Tag, Value};
use skep_isa::{AttachType as A, Insn, ProgramType as P, ctx, kfunc, op};
use skep_object::Linked;
use std::collections::{BTreeSet, HashMap};

/// Why a run ended before its time.
#[derive(Debug)]
pub enum Stop {
    /// The program did something it must not.
    Trap(String),
    /// The program called another one, or ended by a load.
    TailCall,
    /// The machine does not know how to go on; nothing is wrong.
    Unmodeled(&'static str),
}

impl Stop {
    fn trap(what: impl Into<String>) -> Self {
        Self::Trap(what.into())
    }
}

impl From<String> for Stop {
    fn from(s: String) -> Self {
        Self::Trap(s)
    }
}

/// How a run without a trap ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    Exit,
    Unmodeled(&'static str),
}

/// What happens when a function ends.
#[derive(Clone, Copy, Debug)]
pub enum Return {
    Program,
    /// Goes on there.
    Call(usize),
    /// A helper may call it again.
    Lap {
        call: usize,
        id: u32,
        func: usize,
        ctx: Value,
        map: Option<Tag>,
        done: u64,
        n: u64,
    },
}

pub struct Frame {
    pub regs: [Option<Value>; 11],
    /// The object its stack is.
    pub stack: usize,
    pub ret: Return,
}

pub struct Machine<'a> {
    prog: &'a Linked,
    r: &'a Random,
    pub memory: Memory,
    pub frames: Vec<Frame>,
    elements: HashMap<(Tag, Vec<u8>), usize>,
    pub ctx: usize,
    layout: ctx::Layout,
    pub packet: usize,
    pub meta: usize,
    /// The socket of a packet, if it has one, and what a flow dissector fills in.
    sock: Option<usize>,
    flow_keys: usize,
    /// By call: how many bytes a helper may at most be asked to fill there. All of them count as
    /// written afterwards, as Linux has it: programs let helpers fill as much of a buffer as
    /// there is, and then use as much of it.
    pub reach: Reach,
    laps: u32,
    /// In this run loops of helpers and iterators all take so many turns: what goes on for as long as
    /// they take any does not end by chance.
    steady: Option<u64>,
    /// The iterators, by object and offset.
    iters: HashMap<(usize, u64), kfuncs::Iter>,
    /// Sections that were begun.
    sections: u32,
    /// The dynptrs, by object and offset.
    dynptrs: HashMap<(usize, u64), dynptrs::Dynptr>,
    /// Memory of dynptrs that was given out: where it begins, and how much.
    pub slices: Vec<(u64, u64)>,
    /// The value whose lock is held.
    lock: Option<usize>,
    /// Loads that are known to find nothing at times.
    pub probes: BTreeSet<usize>,
    /// Bytes of words that the format read last asks for.
    format_words: u64,
}

/// Bytes by instruction.
pub type Reach = HashMap<usize, u64>;

/// Steps after which a program counts as endless; the verifier looks at fewer.
const STEPS: u32 = 400_000;

impl<'a> Machine<'a> {
    pub fn new(prog: &'a Linked, r: &'a Random) -> Self {
        let mut memory = Memory::default();
        let layout = ctx::layout(prog.prog_type, prog.attach_type).unwrap_or(ctx::PT_REGS);
        let ctx = memory.make_random(Kind::Ctx, layout.size.into(), r);
        let (elements, reach) = (HashMap::new(), Reach::new());
        let sock = memory.make_random(Kind::Lent, ctx::SOCK.size.into(), r);
        memory.objects[sock].writable = false;
        let sock = r.chance(50).then_some(sock);
        let flow_keys = memory.make_random(Kind::Lent, ctx::FLOW_KEYS_SIZE.into(), r);
        let mut m = Self {
            prog,
            r,
            memory,
            frames: Vec::new(),
            elements,
            ctx,
            layout,
            packet: 0,
            meta: 0,
            sock,
            flow_keys,
            reach,
            laps: 0,
            steady: r.chance(25).then(|| 1 + r.below(3)),
            iters: HashMap::new(),
            sections: 0,
            dynptrs: HashMap::new(),
            slices: Vec::new(),
            lock: None,
            probes: BTreeSet::new(),
            format_words: 0,
        };
        m.move_packet();
        let mut regs = [None; 11];
        regs[1] = Some(m.memory.pointer(ctx, 0));
        m.push(regs, Return::Program);
        m
    }

    fn push(&mut self, mut regs: [Option<Value>; 11], ret: Return) {
        let stack = self.memory.make(Kind::Stack, op::STACK_SIZE as u64, None);
        regs[10] = Some(self.memory.pointer(stack, op::STACK_SIZE as u64));
        self.frames.push(Frame { regs, stack, ret });
    }

    /// Another packet, and what was is gone.
    pub fn move_packet(&mut self) {
        for old in [self.packet, self.meta] {
            if old != self.ctx {
                self.memory.objects[old].alive = false;
            }
        }
        let length = if self.r.chance(10) { self.r.below(2000) } else { self.r.below(100) };
        let front = self.r.below(3) * 8 + self.r.below(2) * 4;
        self.packet = self.memory.make_random(Kind::Packet, length, self.r);
        self.meta = self.memory.make_random(Kind::Meta, front, self.r);
        // Packets begin anywhere, and metadata ends there.
        self.memory.objects[self.packet].base += 256 + self.r.below(8);
        self.memory.objects[self.meta].base = self.memory.objects[self.packet].base - front;
    }

    /// Starts a function; its first instruction.
    fn enter(&mut self, at: usize, args: [Option<Value>; 11], ret: Return) -> Result<usize, Stop> {
        if self.frames.len() >= op::MAX_CALL_FRAMES {
            return Err(Stop::trap("too many calls in one another"));
        }
        let mut regs = [None; 11];
        regs[1..6].copy_from_slice(&args[1..6]);
        self.push(regs, ret);
        Ok(at)
    }

    pub fn top(&mut self) -> &mut Frame {
        self.frames.last_mut().expect("the program's own frame is there until the end")
    }

    fn get(&mut self, r: u8) -> Result<Value, Stop> {
        let v = self.top().regs[r as usize]
            .ok_or_else(|| Stop::trap(format!("r{r} was never written")))?;
        // What pointed to something that is gone is just a number.
        let gone = matches!(v.tag, Tag::Memory(o) if !self.memory.objects[o].alive);
        Ok(if gone { Value::number(v.bits) } else { v })
    }

    fn set(&mut self, r: u8, v: Value) {
        self.top().regs[r as usize] = Some(v);
    }

    /// Ring buffer records not given back yet.
    pub fn records(&self) -> usize {
        self.memory.objects.iter().filter(|o| o.kind == Kind::Record && o.alive).count()
    }

    /// Runs the program; an error tells where and what it did that it must not. `seen` looks at the
    /// machine before every instruction.
    pub fn run(
        &mut self,
        mut seen: impl FnMut(usize, &Self) -> Result<(), String>,
    ) -> Result<End, (usize, String)> {
        let mut pc = 0;
        for _ in 0..STEPS {
            let Some(i) = self.prog.insns.get(pc).copied() else {
                return Err((pc, "past the end".to_owned()));
            };
            seen(pc, self).map_err(|e| (pc, e))?;
            match self.step(pc, i) {
                Ok(Some(next)) => pc = next,
                Ok(None) => return Ok(End::Exit),
                Err(Stop::Unmodeled(what)) => return Ok(End::Unmodeled(what)),
                Err(Stop::TailCall) => {
                    return self
                        .check_released()
                        .map(|()| End::Exit)
                        .map_err(|e| (pc, format!("tail call: {e:?}")));
                }
                Err(Stop::Trap(what)) => return Err((pc, what)),
            }
            self.check_depth().map_err(|e| (pc, e))?;
        }
        Err((pc, "does not end".to_owned()))
    }

    /// All frames together may use as much stack as one.
    fn check_depth(&self) -> Result<(), String> {
        let used = |f: &Frame| {
            (op::STACK_SIZE as u64 - self.memory.objects[f.stack].lowest).next_multiple_of(16)
        };
        let sum: u64 = self.frames.iter().map(used).sum();
        if self.frames.len() > 1 && sum > op::STACK_SIZE as u64 {
            Err(format!("{sum} bytes of stack in use"))
        } else {
            Ok(())
        }
    }

    fn check_released(&self) -> Result<(), Stop> {
        if self.lock.is_some() {
            return Err(Stop::trap("a lock is held at the end"));
        }
        match (self.records(), self.iters.len(), self.sections) {
            (0, 0, 0) => Ok(()),
            (0, 0, _) => Err(Stop::trap("a section never ends")),
            (0, ..) => Err(Stop::trap("an iterator is never destroyed")),
            _ => Err(Stop::trap("a record is never given back")),
        }
    }

    fn step(&mut self, pc: usize, i: Insn) -> Result<Option<usize>, Stop> {
        let (d, s) = (i.dst(), i.src());
        let size = [4, 2, 1, 8][usize::from(i.code >> 3 & 3)];
        let off = i64::from(i.off);
        match i.class() {
            op::LD if i.code & 0xe0 != op::IMM => return self.load_packet(pc, i, size),
            op::LD => {
                let Some(high) = self.prog.insns.get(pc + 1).map(|h| h.imm as u32) else {
                    return Err(Stop::trap("half a load"));
                };
                let v = match s {
                    0 => Value::number(u64::from(i.imm as u32) | u64::from(high) << 32),
                    op::PSEUDO_MAP_IDX => {
                        Value { bits: 0x6000_0000_0000, tag: Tag::Map(i.imm as u32) }
                    }
                    op::PSEUDO_MAP_IDX_VALUE => {
                        let o = self.element(Tag::Map(i.imm as u32), vec![0; 4])?;
                        self.memory.pointer(o, high.into())
                    }
                    op::PSEUDO_FUNC => {
                        let at = (pc as i64 + 1 + i64::from(i.imm)) as usize;
                        Value { bits: 0x5000_0000_0000 + at as u64, tag: Tag::Func(at) }
                    }
                    _ => return Err(Stop::Unmodeled("a load of that kind")),
                };
                self.set(d, v);
                return Ok(Some(pc + 2));
            }
            op::LDX => {
                let p = self.get(s)?;
                let v = if p.tag == Tag::Wild {
                    self.probe(pc, size)?
                } else {
                    self.load(p, off, size, i.code & 0xe0 == op::MEMSX)?
                };
                self.set(d, v);
            }
            op::ST => self.store(i, Value::number(i.imm as i64 as u64), size)?,
            op::STX if i.code & 0xe0 == op::ATOMIC => self.atomic(pc, i, size)?,
            op::STX => {
                let v = self.get(s)?;
                self.store(i, v, size)?;
            }
            op::ALU | op::ALU64 => self.alu(i)?,
            _ => return self.jump(pc, i),
        }
        Ok(Some(pc + 1))
    }

    fn load(&mut self, p: Value, off: i64, size: u64, signed: bool) -> Result<Value, Stop> {
        if p.tag == Tag::Memory(self.ctx)
            && let Some(v) = self.load_ctx(p, off, size)
        {
            return Ok(v);
        }
        let v = self.memory.load(p, off, size, self.r)?;
        let sh = 64 - 8 * size as u32;
        Ok(if signed { Value::number((((v.bits << sh) as i64) >> sh) as u64) } else { v })
    }

    /// A load from where there may be nothing.
    fn probe(&self, pc: usize, size: u64) -> Result<Value, Stop> {
        if !self.probes.contains(&pc) {
            return Err(Stop::trap("a load that may find nothing, and is not known to"));
        }
        let signed = self.prog.insns[pc].code & 0xe0 == op::MEMSX;
        let n = self.r.number() << (64 - 8 * size);
        Ok(Value::number(if signed {
            (n as i64 >> (64 - 8 * size)) as u64
        } else {
            n >> (64 - 8 * size)
        }))
    }

    /// `LD_ABS` and `LD_IND`: bytes of the packet, or the end.
    fn load_packet(&mut self, pc: usize, i: Insn, size: u64) -> Result<Option<usize>, Stop> {
        if self.get(6)? != self.memory.pointer(self.ctx, 0) {
            return Err(Stop::trap("a load from the packet wants the context in r6"));
        }
        let index = if i.code & 0xe0 == op::IND { self.get(i.src())?.bits } else { 0 };
        let at = u64::from((index as u32).wrapping_add(i.imm as u32));
        if at + size > self.memory.objects[self.packet].size() {
            return Err(Stop::TailCall);
        }
        let v = self.memory.load(self.memory.pointer(self.packet, at), 0, size, self.r)?;
        self.clobber(Some(Value::number(v.bits.swap_bytes() >> (64 - 8 * size))));
        Ok(Some(pc + 1))
    }

    /// Pointers that the context has for the program.
    fn load_ctx(&mut self, p: Value, off: i64, size: u64) -> Option<Value> {
        let at = p.bits.wrapping_sub(self.memory.objects[self.ctx].base).wrapping_add(off as u64);
        let field = self
            .layout
            .fields
            .iter()
            .find(|f| u64::from(f.off) == at && u64::from(f.size) == size)?;
        let packet = &self.memory.objects[self.packet];
        match field.kind {
            ctx::FieldKind::Packet => Some(self.memory.pointer(self.packet, 0)),
            ctx::FieldKind::PacketEnd => {
                Some(Value { bits: packet.base + packet.size(), tag: Tag::End(self.packet) })
            }
            ctx::FieldKind::PacketMeta => Some(self.memory.pointer(self.meta, 0)),
            ctx::FieldKind::SockCommonOrNull => {
                Some(self.sock.map_or(Value::number(0), |sock| self.memory.pointer(sock, 0)))
            }
            ctx::FieldKind::SocketOrNull => Some(Value::number(0)),
            ctx::FieldKind::FlowKeys => Some(self.memory.pointer(self.flow_keys, 0)),
            _ => None,
        }
    }

    fn store(&mut self, i: Insn, v: Value, size: u64) -> Result<(), Stop> {
        let p = self.get(i.dst())?;
        if p.tag == Tag::Memory(self.ctx) {
            let at = p
                .bits
                .wrapping_sub(self.memory.objects[self.ctx].base)
                .wrapping_add(i.off as i64 as u64);
            let field = self
                .layout
                .fields
                .iter()
                .find(|f| u64::from(f.off) <= at && at < u64::from(f.off + f.size));
            let allowed = field.map_or(self.layout.writable, |f| f.writable);
            if !allowed {
                return Err(Stop::trap("a store to the context"));
            }
        }
        Ok(self.memory.store(p, i.off.into(), size, v)?)
    }

    fn atomic(&mut self, pc: usize, i: Insn, size: u64) -> Result<(), Stop> {
        let off = i64::from(i.off);
        let to = if i.imm == op::ATOMIC_LOAD_ACQ { self.get(i.src())? } else { self.get(i.dst())? };
        if to.tag == Tag::Wild && i.imm == op::ATOMIC_LOAD_ACQ {
            let v = self.probe(pc, size)?;
            self.set(i.dst(), v);
            return Ok(());
        }
        if to.bits.wrapping_add(off as u64) % size != 0 {
            return Err(Stop::trap("a misaligned atomic"));
        }
        if to.tag == Tag::Memory(self.ctx) {
            return Err(Stop::trap("an atomic on the context"));
        }
        if i.imm == op::ATOMIC_LOAD_ACQ {
            let v = self.load(to, off, size, false)?;
            self.set(i.dst(), v);
            return Ok(());
        }
        let n = self.get(i.src())?;
        if i.imm == op::ATOMIC_STORE_REL {
            return Ok(self.memory.store(to, off, size, n)?);
        }
        // The stack gives back pointers too.
        let found = self.memory.load(to, off, size, self.r)?;
        let old = found.bits;
        let mask = if size == 8 { u64::MAX } else { u64::from(u32::MAX) };
        let new = if i.imm == op::ATOMIC_CMPXCHG {
            let expected = self.get(0)?.bits & mask;
            if old == expected { n.bits } else { old }
        } else {
            arith::atomic(i.imm, old, n.bits)
        };
        self.memory.store(to, off, size, Value::number(new))?;
        if i.imm == op::ATOMIC_CMPXCHG {
            self.set(0, found);
        } else if i.imm & op::ATOMIC_FETCH != 0 {
            self.set(i.src(), found);
        }
        Ok(())
    }

    fn alu(&mut self, i: Insn) -> Result<(), Stop> {
        let (d, wide) = (i.dst(), i.class() == op::ALU64);
        let code = i.code & 0xf0;
        if code == op::END || code == op::NEG {
            let a = self.get(d)?.bits;
            let n = match (code, wide) {
                (op::END, _) => arith::byte_order(i, a),
                (_, true) => a.wrapping_neg(),
                (_, false) => u64::from((a as u32).wrapping_neg()),
            };
            self.set(d, Value::number(n));
            return Ok(());
        }
        let b = if i.code & op::X != 0 {
            self.get(i.src())?
        } else {
            Value::number(i.imm as i64 as u64)
        };
        if code == op::MOV {
            let v = if wide && i.off == 0 { b } else { Value::number(arith::moved(i, b.bits)) };
            self.set(d, v);
            return Ok(());
        }
        let a = self.get(d)?;
        let bits = arith::binary(i, a.bits, b.bits);
        // Steps lead from a pointer to another place of the same object; all else makes a number of
        // it.
        let tag = match (code, a.tag, b.tag) {
            (op::ADD | op::SUB, t, Tag::Number) if wide => t,
            (op::ADD, Tag::Number, t) if wide => t,
            _ => Tag::Number,
        };
        self.set(d, Value { bits, tag });
        Ok(())
    }

    fn jump(&mut self, pc: usize, i: Insn) -> Result<Option<usize>, Stop> {
        let by = |n: i64| Some((pc as i64 + 1 + n) as usize);
        match i.code {
            op::EXIT => return self.exit(),
            op::CALL if i.src() == op::PSEUDO_CALL => {
                let (args, to) = (self.top().regs, (pc as i64 + 1 + i64::from(i.imm)) as usize);
                if self.lock.is_some() && self.prog.subprog(to).is_some_and(|s| s.global) {
                    return Err(Stop::trap("a global function is called under a lock"));
                }
                self.clobber(None);
                return self.enter(to, args, Return::Call(pc + 1)).map(Some);
            }
            op::CALL if i.imm as u32 >= kfunc::BASE => {
                return self.call_kernel(pc, i.imm as u32).map(Some);
            }
            op::CALL => return self.call(pc, i.imm as u32).map(Some),
            c if c == (op::JMP | op::JA) => return Ok(by(i.off.into())),
            c if c == (op::JMP32 | op::JA) => return Ok(by(i.imm.into())),
            c if c == (op::JMP | op::JCOND) => {
                self.laps += 1;
                let out = self.r.chance(15) || self.laps > 300;
                return Ok(by(if out { i.off.into() } else { 0 }));
            }
            _ => {}
        }
        let a = self.get(i.dst())?.bits;
        let b = if i.code & op::X != 0 { self.get(i.src())?.bits } else { i.imm as i64 as u64 };
        Ok(by(if arith::taken(i, a, b) { i.off.into() } else { 0 }))
    }

    fn exit(&mut self) -> Result<Option<usize>, Stop> {
        let Some(frame) = self.frames.last() else { return Err(Stop::trap("no frame")) };
        let (ret, stack, r0) = (frame.ret, frame.stack, frame.regs[0]);
        if let Return::Program = ret {
            let r0 = self.get(0)?;
            self.check_released()?;
            return match allowed(self.prog.prog_type, self.prog.attach_type) {
                Some(max) if r0.tag != Tag::Number || !(0..=max).contains(&(r0.bits as i32)) => {
                    Err(Stop::trap(format!("the program returns {r0:x?}")))
                }
                _ => Ok(None),
            };
        }
        self.memory.objects[stack].alive = false;
        self.frames.pop();
        match ret {
            Return::Call(to) => {
                self.clobber(r0);
                Ok(Some(to))
            }
            Return::Lap { call, id, func, ctx, map, done, n } => match r0 {
                Some(Value { bits: 0, tag: Tag::Number }) => {
                    self.next_lap(call, id, func, ctx, map, done, n).map(Some)
                }
                Some(Value { bits: 1, tag: Tag::Number }) => {
                    self.next_lap(call, id, func, ctx, map, done, done).map(Some)
                }
                _ => Err(Stop::trap(format!("the callback returns {r0:x?}"))),
            },
            Return::Program => unreachable!("handled above"),
        }
    }
}

/// What a program may return at most.
fn allowed(prog: P, attach: Option<A>) -> Option<i32> {
    if prog == P::CgroupSkb && attach.is_none() {
        return Some(1);
    }
    match (prog, attach?) {
        (
            P::Tracing,
            A::TraceFentry
            | A::TraceFexit
            | A::TraceFentryMulti
            | A::TraceFexitMulti
            | A::TraceRawTp,
        ) => Some(0),
        (P::Tracing, A::TraceFsession | A::TraceFsessionMulti) => Some(1),
        (P::Kprobe, A::TraceKprobeSession | A::TraceUprobeSession) => Some(1),
        _ => None,
    }
}
