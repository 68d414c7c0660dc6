//! The shape of a program: what both engines may take for granted.
//!
//! After [`Flow::of`] every opcode is known, every register exists, r10 is never written, every
//! jump lands on the first slot of an instruction of the same function, and no function runs off
//! its end. Nothing here looks at values.

mod malformed;

pub use malformed::Malformed;

use std::ops::Range;

use skep_isa::{HelperId, Insn, op};

use malformed::known;

use crate::env::{Env, HelperCall, HelperImpl};
use crate::opcode::{Does, JUMPS, opcode};

/// A jump lands here.
pub(crate) const TARGET: u8 = 1;
/// A jump from here or below lands here.
pub(crate) const LOOP: u8 = 2;
/// The second slot of a 64-bit immediate.
pub(crate) const SECOND: u8 = 4;
/// A function starts here.
pub(crate) const FUNC: u8 = 8;
/// It jumps, or leaves the function.
pub(crate) const ENDS: u8 = 16;
/// More than one jump lands here.
pub(crate) const MEETS: u8 = 32;

/// A function of the program, in slots.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Func {
    pub start: usize,
    pub end: usize,
}

/// What a checked program looks like.
pub(crate) struct Flow {
    /// [`TARGET`], [`LOOP`], [`SECOND`], [`FUNC`], [`ENDS`] and [`MEETS`] of each slot.
    pub marks: Vec<u8>,
    /// What each slot does with registers; calls nothing, since that depends on what they call.
    pub does: Vec<Does>,
    /// The functions in order; the first is the main program.
    pub funcs: Vec<Func>,
    /// First slots of the functions whose address the program takes.
    pub callbacks: Vec<usize>,
    /// The functions, by number, that may leave the program by a tail call: they or one they call.
    /// Sorted.
    pub tail_callers: Vec<usize>,
    /// Where jumps lead back to, and the slots after them, in order.
    pub backs: Vec<(usize, usize)>,
    /// The helpers the program calls, in order of number.
    pub helpers: Vec<(HelperId, HelperImpl)>,
    /// The slots of all instructions that are not plain ones on registers below r10, in order:
    /// calls, atomics, 64-bit immediates, whatever names the frame pointer. Passes that look
    /// for such an instruction need not look at all.
    looks: Vec<u32>,
    /// A jump leads out of the program, or onto the second slot of a 64-bit immediate.
    stray: bool,
}

impl Flow {
    pub fn of(insns: &[Insn], env: &Env<'_>) -> Result<Self, Malformed> {
        if insns.is_empty() {
            return Err(Malformed::Empty);
        }
        if insns.len() > op::MAX_INSNS {
            return Err(Malformed::TooLong { count: insns.len() });
        }
        let mut flow = Self {
            marks: vec![0; insns.len()],
            does: vec![Does::default(); insns.len()],
            funcs: Vec::new(),
            callbacks: Vec::new(),
            tail_callers: Vec::new(),
            backs: Vec::new(),
            helpers: Vec::new(),
            looks: Vec::with_capacity(insns.len() / 4),
            stray: false,
        };
        let starts = flow.scan(insns, env)?;
        // By words of 64 bits, as all sorts of the agent: they share their code.
        flow.backs.sort_by_cached_key(|(to, end)| (*to as u64) << 32 | *end as u64);
        for (n, &start) in starts.iter().enumerate() {
            flow.funcs.push(Func { start, end: starts.get(n + 1).copied().unwrap_or(insns.len()) });
            flow.marks[start] |= FUNC;
        }
        for f in &flow.funcs {
            if flow.stray || flow.funcs.len() > 1 {
                flow.land(insns, *f)?;
            }
            flow.end(insns, *f)?;
        }
        flow.tail_callers = flow.find_tail_callers(insns);
        match flow
            .callbacks
            .iter()
            .find(|start| flow.function_at(**start).is_none_or(|f| flow.may_tail_call(f)))
        {
            Some(start) => Err(Malformed::TailCallInCallback { insn: *start }),
            None => Ok(flow),
        }
    }

    /// Finds the function that starts at a slot.
    pub fn function_at(&self, start: usize) -> Option<usize> {
        self.funcs.binary_search_by_key(&start, |f| f.start).ok()
    }

    /// Tells whether function number `f` may leave the program by a tail call.
    pub fn may_tail_call(&self, f: usize) -> bool {
        self.tail_callers.binary_search(&f).is_ok()
    }

    /// Returns the instructions of some slots that are not plain ones on registers below r10.
    pub fn looks<'a>(
        &'a self,
        insns: &'a [Insn],
        slots: Range<usize>,
    ) -> impl Iterator<Item = (usize, Insn)> {
        let from = self.looks.partition_point(|at| (*at as usize) < slots.start);
        let all = self.looks.get(from..).unwrap_or_default().iter().map(|at| *at as usize);
        all.take_while(move |at| *at < slots.end).filter_map(|at| Some((at, *insns.get(at)?)))
    }

    /// Returns the slot after the last jump back to a slot.
    pub fn loop_end(&self, head: usize) -> Option<usize> {
        let n = self.backs.partition_point(|(to, _)| *to <= head);
        self.backs.get(n.checked_sub(1)?).filter(|(to, _)| *to == head).map(|(_, end)| *end)
    }

    pub fn mark(&self, at: usize) -> u8 {
        self.marks.get(at).copied().unwrap_or(0)
    }

    pub fn helper(&self, id: HelperId) -> Option<HelperImpl> {
        let n = self.helpers.binary_search_by_key(&id, |(id, _)| *id).ok()?;
        self.helpers.get(n).map(|(_, h)| *h)
    }

    /// Follows calls backwards from the functions that have tail calls in them.
    fn find_tail_callers(&self, insns: &[Insn]) -> Vec<usize> {
        if !self.helpers.iter().any(|(_, h)| h.how == HelperCall::TailCall) {
            return Vec::new();
        }
        let mut callers = vec![Vec::new(); self.funcs.len()];
        let mut leaves = vec![false; self.funcs.len()];
        let mut todo = Vec::new();
        for (n, f) in self.funcs.iter().enumerate() {
            for (at, i) in self.looks(insns, f.start..f.end) {
                if i.is_local_call() {
                    let callee = self.function_at((at as i64 + 1 + i64::from(i.imm)) as usize);
                    if let Some(c) = callee.and_then(|c| callers.get_mut(c)) {
                        c.push(n);
                    }
                } else if i.code == op::CALL
                    && self.helper(i.imm as u32).is_some_and(|h| h.how == HelperCall::TailCall)
                {
                    todo.push(n);
                }
            }
        }
        while let Some(n) = todo.pop() {
            if let (Some(is), Some(c)) = (leaves.get_mut(n), callers.get_mut(n))
                && !std::mem::replace(is, true)
            {
                todo.append(c);
            }
        }
        (0..leaves.len()).filter(|n| leaves[*n]).collect()
    }

    /// Checks each instruction by itself and marks where jumps land; returns the first slots of
    /// functions.
    fn scan(&mut self, insns: &[Insn], env: &Env<'_>) -> Result<Vec<usize>, Malformed> {
        let mut starts = vec![0];
        let mut at = 0;
        loop {
            at = self.take_plain(insns, at);
            let Some(&i) = insns.get(at) else { break };
            known(at, i)?;
            self.looks.push(at as u32);
            self.does[at] = Does::of(i);
            let within = |target: i64| {
                let fits = usize::try_from(target).ok().filter(|t| *t < insns.len());
                fits.ok_or(Malformed::Target { insn: at, target })
            };
            if i.is_ld_imm64() {
                let next = insns
                    .get(at + 1)
                    .filter(|n| (n.code, n.regs, n.off) == (0, 0, 0))
                    .ok_or(Malformed::HalfImmediate { insn: at })?;
                match i.src() {
                    0 => {}
                    op::PSEUDO_FUNC => {
                        let start = within(at as i64 + 1 + i64::from(i.imm))?;
                        starts.push(start);
                        self.callbacks.push(start);
                    }
                    op::PSEUDO_MAP_IDX | op::PSEUDO_MAP_IDX_VALUE => {
                        let index = i.imm as u32;
                        let _: i32 = next.imm;
                        env.maps.get(index as usize).ok_or(Malformed::Map { insn: at, index })?;
                    }
                    src => return Err(Malformed::Pseudo { insn: at, src }),
                }
                self.stray |= self.marks[at + 1] & TARGET != 0;
                self.marks[at + 1] |= SECOND;
                at += 2;
                continue;
            }
            if i.is_local_call() {
                starts.push(within(at as i64 + 1 + i64::from(i.imm))?);
            } else if i.code == op::CALL {
                let id = i.imm as u32;
                if let Err(n) = self.helpers.binary_search_by_key(&id, |(id, _)| *id) {
                    let found = (env.helper)(id).ok_or(Malformed::Helper { insn: at, id })?;
                    self.helpers.insert(n, (id, found));
                }
            } else if let Some(distance) = jump(i) {
                self.jumps(at, distance);
            } else if i.code == op::EXIT {
                self.marks[at] |= ENDS;
            }
            at += 1;
        }
        starts.sort_by_cached_key(|start| *start as u64);
        starts.dedup();
        self.callbacks.sort_by_cached_key(|start| *start as u64);
        self.callbacks.dedup();
        match starts.iter().find(|s| self.mark(**s) & SECOND != 0) {
            Some(s) => Err(Malformed::Target { insn: s - 1, target: *s as i64 }),
            None => Ok(starts),
        }
    }

    /// Takes plain instructions from slot `at` on for good, and returns the slot of the first other
    /// one.
    fn take_plain(&mut self, insns: &[Insn], at: usize) -> usize {
        let mut n = at;
        while let (Some(i), Some(does)) = (insns.get(n), self.does.get_mut(n)) {
            let opcode = opcode(i);
            if !opcode.is_plain(i) {
                break;
            }
            *does = opcode.does(i);
            if opcode.bits & JUMPS != 0 {
                self.jumps(n, i64::from(i.off));
            }
            n += 1;
        }
        n
    }

    /// Marks where the jump in slot `at` lands.
    #[inline(never)]
    fn jumps(&mut self, at: usize, distance: i64) {
        let to = (at as i64 + 1 + distance) as usize;
        self.marks[at] |= ENDS;
        let Some(mark) = self.marks.get_mut(to) else {
            self.stray = true;
            return;
        };
        self.stray |= *mark & SECOND != 0;
        *mark |= if *mark & TARGET != 0 { MEETS } else { TARGET };
        if to <= at {
            *mark |= LOOP;
            self.backs.push((to, at + 1));
        }
    }

    /// Checks that the jumps of one function stay in it.
    fn land(&self, insns: &[Insn], f: Func) -> Result<(), Malformed> {
        for (at, i) in (f.start..).zip(insns.get(f.start..f.end).unwrap_or_default()) {
            let Some(distance) = jump(*i).filter(|_| self.mark(at) & SECOND == 0) else { continue };
            let target = at as i64 + 1 + distance;
            let fits = usize::try_from(target)
                .is_ok_and(|t| (f.start..f.end).contains(&t) && self.mark(t) & SECOND == 0);
            if !fits {
                return Err(Malformed::Target { insn: at, target });
            }
        }
        Ok(())
    }

    /// Checks that a function does not run past its last instruction.
    fn end(&self, insns: &[Insn], f: Func) -> Result<(), Malformed> {
        let last = f.end - if self.mark(f.end - 1) & SECOND != 0 { 2 } else { 1 };
        match insns.get(last) {
            Some(i) if i.code == op::EXIT || is_goto(*i) => Ok(()),
            _ => Err(Malformed::FallsOff { insn: last }),
        }
    }
}

/// Returns the distance of a jump.
pub(crate) fn jump(i: Insn) -> Option<i64> {
    match (i.class(), i.code & 0xf0) {
        (op::JMP, 0x80 | 0x90) => None,
        (op::JMP32, op::JA) => Some(i64::from(i.imm)),
        (op::JMP | op::JMP32, _) => Some(i64::from(i.off)),
        _ => None,
    }
}

/// Tells whether an instruction always jumps.
pub(crate) fn is_goto(i: Insn) -> bool {
    matches!(i.code, c if c == op::JMP | op::JA || c == op::JMP32 | op::JA)
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_isa::text::assemble;

    fn check(text: &str) -> Result<Flow, Malformed> {
        Flow::of(&assemble(text).unwrap(), &Env::empty())
    }

    fn refused(text: &str) -> Malformed {
        check(text).map(|_| ()).expect_err(text)
    }

    #[test]
    fn functions_targets_and_loops_are_found() {
        let f = check("mov r1, 3\nlddw r2, func g\nl: sub r1, 1\njne r1, 0, l\ncall local f\nexit\nf: exit\ng: exit").unwrap();
        assert_eq!(
            f.funcs.iter().map(|f| (f.start, f.end)).collect::<Vec<_>>(),
            [(0, 7), (7, 8), (8, 9)]
        );
        assert_eq!(f.callbacks, [8]);
        assert_eq!(f.backs, [(3, 5)]);
        assert_eq!(
            f.marks,
            [FUNC, 0, SECOND, TARGET | LOOP, ENDS, 0, ENDS, FUNC | ENDS, FUNC | ENDS]
        );
    }

    #[test]
    fn a_stream_that_is_no_program_is_refused_by_name() {
        assert_eq!(Flow::of(&[], &Env::empty()).map(|_| ()), Err(Malformed::Empty));
        assert_eq!(refused("mov r0, 0"), Malformed::FallsOff { insn: 0 });
        assert_eq!(refused("jeq r0, 0, -1"), Malformed::FallsOff { insn: 0 });
        assert_eq!(refused("ja +1\nexit"), Malformed::Target { insn: 0, target: 2 });
        assert_eq!(refused("ja32 -2\nexit"), Malformed::Target { insn: 0, target: -1 });
        assert_eq!(refused("ja +1\nlddw r0, 1\nexit"), Malformed::Target { insn: 0, target: 2 });
        assert_eq!(
            refused("call local f\nja f\nf: exit"),
            Malformed::Target { insn: 1, target: 2 }
        );
        assert_eq!(refused("mov r10, 1\nexit"), Malformed::FrameWrite { insn: 0 });
        assert_eq!(refused("lock fetch add [r1], r10\nexit"), Malformed::FrameWrite { insn: 0 });
        assert_eq!(refused("ldabsw 4\nexit"), Malformed::PacketLoad { insn: 0 });
        assert_eq!(refused("call r2\nexit"), Malformed::IndirectCall { insn: 0 });
        assert_eq!(refused("call 12\nexit"), Malformed::Helper { insn: 0, id: 12 });
        assert_eq!(refused("lddw r1, map 0\nexit"), Malformed::Map { insn: 0, index: 0 });
        let half = [Insn::ld_imm64(1, 0, 0)[0], Insn::exit()];
        assert_eq!(
            Flow::of(&half, &Env::empty()).map(|_| ()),
            Err(Malformed::HalfImmediate { insn: 0 })
        );
        let reg = [Insn::mov64_reg(1, 11), Insn::exit()];
        assert_eq!(
            Flow::of(&reg, &Env::empty()).map(|_| ()),
            Err(Malformed::Register { insn: 0, reg: 11 })
        );
    }
}
