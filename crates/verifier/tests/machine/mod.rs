//! An interpreter that traps what the verifier must have ruled out: accesses outside memory, registers and stack bytes
//! that were never written, programs that do not end.

use crate::random::{Random, VALUE};
use skep_isa::{Insn, op};
use skep_object::Linked;
use skep_verifier::scalar::{Cmp, Op, concrete32, concrete64};
use std::collections::HashMap;

pub const CTX: u64 = 0x1000_0000_0000;
pub const STACK: u64 = 0x2000_0000_0000;
const VALUES: u64 = 0x3000_0000_0000;

/// Looks at the registers before every instruction.
type Seen<'a> = dyn FnMut(usize, &[Option<u64>; 11]) -> Result<(), String> + 'a;

pub struct Machine<'a> {
    prog: &'a Linked,
    regs: [Option<u64>; 11],
    memory: HashMap<u64, Option<u8>>,
    r: &'a Random,
    fresh: u64,
    depth: u64,
    steps: u32,
    laps: u32,
}

impl<'a> Machine<'a> {
    pub fn new(prog: &'a Linked, r: &'a Random) -> Self {
        let mut regs = [None; 11];
        (regs[1], regs[10]) = (Some(CTX), Some(STACK));
        let mut m = Self { prog, regs, memory: HashMap::new(), r, fresh: VALUES, depth: 0, steps: 0, laps: 0 };
        for i in 0..168 / 8 {
            let word = m.r.number();
            for (k, b) in word.to_le_bytes().into_iter().enumerate() {
                m.memory.insert(CTX + i * 8 + k as u64, Some(b));
            }
        }
        for i in 1..=512 {
            m.memory.insert(STACK - i, None);
        }
        m
    }

    fn get(&self, r: u8) -> Result<u64, String> {
        self.regs[r as usize].ok_or_else(|| format!("r{r} was never written"))
    }

    fn load(&self, at: u64, size: u64) -> Result<u64, String> {
        let mut n = 0;
        for k in (0..size).rev() {
            match self.memory.get(&at.wrapping_add(k)) {
                Some(Some(b)) => n = n << 8 | u64::from(*b),
                Some(None) => return Err(format!("byte {:#x} was never written", at.wrapping_add(k))),
                None => return Err(format!("there is no memory at {:#x}", at.wrapping_add(k))),
            }
        }
        Ok(n)
    }

    fn store(&mut self, at: u64, size: u64, n: u64) -> Result<(), String> {
        for k in 0..size {
            match self.memory.get_mut(&at.wrapping_add(k)) {
                Some(b) => *b = Some((n >> (8 * k)) as u8),
                None => return Err(format!("there is no memory at {:#x}", at.wrapping_add(k))),
            }
        }
        Ok(())
    }

    fn call(&mut self, id: i32) -> Result<(), String> {
        let r0 = match id {
            1 => {
                self.load(self.get(2)?, 4)?;
                let map = self.get(1)?;
                if self.r.chance(20) {
                    0
                } else {
                    let at = self.fresh;
                    self.fresh += 0x1_0000;
                    for k in 0..u64::from(VALUE[map as usize]) {
                        let b = self.r.next() as u8;
                        self.memory.insert(at + k, Some(b));
                    }
                    at
                }
            }
            7 => u64::from(self.r.number() as u32),
            _ => self.r.number(),
        };
        self.regs[..6].fill(None);
        self.regs[0] = Some(r0);
        Ok(())
    }

    /// Runs the program; an error tells where and what it did that it must not.
    pub fn run(&mut self, mut seen: impl FnMut(usize, &[Option<u64>; 11]) -> Result<(), String>) -> Result<(), (usize, String)> {
        self.execute(0, &mut seen)
    }

    /// Runs from `pc` to the function's end.
    fn execute(&mut self, mut pc: usize, seen: &mut Seen<'_>) -> Result<(), (usize, String)> {
        loop {
            self.steps += 1;
            if self.steps > 200_000 {
                return Err((pc, "does not end".to_owned()));
            }
            let Some(i) = self.prog.insns.get(pc).copied() else { return Err((pc, "past the end".to_owned())) };
            seen(pc, &self.regs).map_err(|e| (pc, e))?;
            if i.is_local_call() {
                let to = (pc as i64 + 1 + i64::from(i.imm)) as usize;
                self.function(to, self.regs, seen)?;
                self.regs[1..6].fill(None);
                pc += 1;
            } else if i.is_helper_call() && i.imm == 181 {
                self.call_back(seen)?;
                pc += 1;
            } else {
                match self.step(pc, i).map_err(|e| (pc, e))? {
                    Some(next) => pc = next,
                    None => return Ok(()),
                }
            }
        }
    }

    /// Runs a function in a frame of its own; its result is in r0 afterwards.
    fn function(&mut self, at: usize, args: [Option<u64>; 11], seen: &mut Seen<'_>) -> Result<(), (usize, String)> {
        let saved = self.regs;
        self.depth += 1;
        let top = STACK + (self.depth << 32);
        self.regs = [None; 11];
        self.regs[1..6].copy_from_slice(&args[1..6]);
        self.regs[10] = Some(top);
        for i in 1..=512 {
            self.memory.insert(top - i, None);
        }
        self.execute(at, seen)?;
        for i in 1..=512 {
            self.memory.remove(&(top - i));
        }
        self.depth -= 1;
        let r0 = self.regs[0];
        self.regs = saved;
        self.regs[0] = r0;
        Ok(())
    }

    /// `bpf_loop`, with fewer iterations than asked for.
    fn call_back(&mut self, seen: &mut Seen<'_>) -> Result<(), (usize, String)> {
        let (Some(n), Some(func), ctx) = (self.regs[1], self.regs[2], self.regs[3]) else { return Err((0, "unset argument".to_owned())) };
        let (n, mut done) = (n.min(self.r.below(6)), 0);
        let caller = self.regs;
        while done < n {
            let mut args = [None; 11];
            (args[1], args[2]) = (Some(done), ctx);
            self.function(func as usize, args, seen)?;
            let stop = self.regs[0] != Some(0);
            self.regs = caller;
            done += 1;
            if stop {
                break;
            }
        }
        self.regs[1..6].fill(None);
        self.regs[0] = Some(done);
        Ok(())
    }

    fn step(&mut self, pc: usize, i: Insn) -> Result<Option<usize>, String> {
        let (d, s) = (i.dst(), i.src());
        let size = match i.code & 0x18 {
            op::B => 1,
            op::H => 2,
            op::W => 4,
            _ => 8,
        };
        let at = |base: u64| base.wrapping_add(i.off as i64 as u64);
        match i.class() {
            op::LD => {
                let high = self.prog.insns[pc + 1].imm as u32;
                if i.src() == op::PSEUDO_FUNC {
                    self.regs[d as usize] = Some((pc as i64 + 1 + i64::from(i.imm)) as u64);
                    return Ok(Some(pc + 2));
                }
                self.regs[d as usize] = Some(u64::from(i.imm as u32) | u64::from(high) << 32);
                return Ok(Some(pc + 2));
            }
            op::LDX => self.regs[d as usize] = Some(self.load(at(self.get(s)?), size)?),
            op::ST => self.store(at(self.get(d)?), size, i.imm as i64 as u64)?,
            op::STX if i.code & 0xe0 == op::ATOMIC => {
                let (to, n) = (at(self.get(d)?), self.get(s)?);
                if to % size != 0 {
                    return Err(format!("misaligned atomic at {to:#x}"));
                }
                let old = self.load(to, size)?;
                let new = match i.imm & !op::ATOMIC_FETCH {
                    op::ATOMIC_ADD => old.wrapping_add(n),
                    op::ATOMIC_OR => old | n,
                    _ => n,
                };
                self.store(to, size, new)?;
                if i.imm & op::ATOMIC_FETCH != 0 {
                    self.regs[s as usize] = Some(old);
                }
            }
            op::STX => self.store(at(self.get(d)?), size, self.get(s)?)?,
            op::ALU | op::ALU64 => self.alu(i)?,
            _ => match i.code {
                op::EXIT => return self.get(0).map(|_| None),
                op::CALL => self.call(i.imm)?,
                c if c == (op::JMP | op::JA) => return Ok(Some((pc as i64 + 1 + i64::from(i.off)) as usize)),
                c if c == (op::JMP | op::JCOND) => {
                    self.laps += 1;
                    let out = self.r.chance(15) || self.laps > 300;
                    return Ok(Some(if out { (pc as i64 + 1 + i64::from(i.off)) as usize } else { pc + 1 }));
                }
                _ => {
                    let b = if i.code & op::X != 0 { self.get(s)? } else { i.imm as i64 as u64 };
                    let taken = compare(i.code & 0xf0).holds(self.get(d)?, b, i.class() == op::JMP32);
                    return Ok(Some(if taken { (pc as i64 + 1 + i64::from(i.off)) as usize } else { pc + 1 }));
                }
            },
        }
        Ok(Some(pc + 1))
    }

    fn alu(&mut self, i: Insn) -> Result<(), String> {
        let is64 = i.class() == op::ALU64;
        let code = i.code & 0xf0;
        let result = if code == op::END {
            let a = self.get(i.dst())?;
            let bits = i.imm as u32;
            let swap = is64 || i.code & op::X != 0;
            if swap { a.swap_bytes() >> (64 - bits) } else { a << (64 - bits) >> (64 - bits) }
        } else {
            let b = if i.code & op::X != 0 { self.get(i.src())? } else { i.imm as i64 as u64 };
            if code == op::MOV {
                let n = match i.off {
                    8 => b as i8 as i64 as u64,
                    16 => b as i16 as i64 as u64,
                    32 => b as i32 as i64 as u64,
                    _ => b,
                };
                if is64 { n } else { u64::from(n as u32) }
            } else {
                let a = self.get(i.dst())?;
                let o = match (code, i.off) {
                    (op::ADD, _) => Op::Add,
                    (op::SUB, _) => Op::Sub,
                    (op::MUL, _) => Op::Mul,
                    (op::DIV, 0) => Op::Div,
                    (op::DIV, _) => Op::Sdiv,
                    (op::MOD, 0) => Op::Mod,
                    (op::MOD, _) => Op::Smod,
                    (op::OR, _) => Op::Or,
                    (op::AND, _) => Op::And,
                    (op::XOR, _) => Op::Xor,
                    (op::LSH, _) => Op::Lsh,
                    (op::RSH, _) => Op::Rsh,
                    _ => Op::Arsh,
                };
                if is64 { concrete64(o, a, b) } else { u64::from(concrete32(o, a as u32, b as u32)) }
            }
        };
        self.regs[i.dst() as usize] = Some(result);
        Ok(())
    }
}

fn compare(code: u8) -> Cmp {
    match code {
        op::JEQ => Cmp::Eq,
        op::JNE => Cmp::Ne,
        op::JGT => Cmp::Gt,
        op::JGE => Cmp::Ge,
        op::JLT => Cmp::Lt,
        op::JLE => Cmp::Le,
        op::JSGT => Cmp::Sgt,
        op::JSGE => Cmp::Sge,
        op::JSLT => Cmp::Slt,
        op::JSLE => Cmp::Sle,
        _ => Cmp::Set,
    }
}
