//! Where a function is patched: which bytes, and whether they can be changed at all.

use crate::code::{Code, Originals, original_bytes};
use crate::flow::{Flow, flow};
use crate::jump::PATCH;
use crate::predecode::{Instructions, Kind as Predecoded};
use crate::runtime::Convention;
use crate::sites::{Function, Kind};
use crate::skip::Skip;
use crate::stack_check::{behind_stack_check, calls_nothing};
use iced_x86::{Code as Op, Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};
use std::ops::Range;

mod inside;

pub(crate) use inside::Places;

/// How the bytes to change look before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shape {
    /// Five bytes of no-operations: `-fpatchable-function-entry`, `-mnop-mcount`, or padding in
    /// hand-written code.
    Nop,
    /// Instructions that have to be relocated.
    Inline,
}

/// More bytes than are moved from any place: the five, or those before a place inside a function, and an
/// instruction that begins among them.
pub(crate) const MOST_MOVED: u64 = 32;

/// A place that can be changed.
#[derive(Clone, Debug)]
pub(crate) struct PatchSite {
    /// Address of the five bytes: the function's start, or behind its `endbr64`, or behind the
    /// check of the stack.
    pub(crate) at: u64,
    pub(crate) shape: Shape,
    /// The instructions that begin among the five bytes.
    moved: Moved,
    /// Before which of them hooks run: the first one, but where a place inside a function leaves no
    /// other room. It may be the one behind the last.
    pub(crate) event: u8,
}

/// Instructions that are moved, and the padding behind them that is changed, too.
#[derive(Clone, Copy, Debug, Default)]
struct Moved {
    bytes: [u8; MOST_MOVED as usize],
    /// How many bytes there are.
    len: u8,
    /// How many of them are instructions.
    code: u8,
    /// A bit for each byte that an instruction begins at.
    starts: u32,
    /// They do the same in any place, and nothing but the end of the last one leads away from them.
    is_fixed: bool,
    /// The code does not go on behind them.
    ends: bool,
}

impl Moved {
    /// Takes an instruction of `size` bytes, which is behind those before; `is_fixed`: it does the same
    /// in any place.
    fn push(&mut self, size: usize, is_fixed: bool) {
        let first = self.code == 0;
        self.starts |= 1u32.checked_shl(self.code.into()).unwrap_or(0);
        self.code = self.code.saturating_add(size as u8);
        self.is_fixed = is_fixed && (first || self.is_fixed);
    }

    /// Copies the bytes, to the end of what is changed at least.
    fn fill(&mut self, bytes: &[u8]) {
        let len = usize::from(self.code).max(PATCH).min(bytes.len()).min(self.bytes.len());
        if let (Some(to), Some(from)) = (self.bytes.get_mut(..len), bytes.get(..len)) {
            to.copy_from_slice(from);
        }
        self.len = len as u8;
    }

    fn all(&self) -> &[u8] {
        self.bytes.get(..self.len.into()).unwrap_or_default()
    }
}

impl PatchSite {
    /// Finds the place in `function`, whose bytes the linker left as `originals` tells, in the
    /// executable range `text`; the next function begins at `next`. `places`: what is
    /// known of targets inside functions of its module, this one among them, if it is one.
    pub(crate) fn find(
        function: &Function,
        text: &Range<u64>,
        next: u64,
        originals: Originals<'_>,
        places: &mut Places<'_>,
    ) -> Result<Self, Skip> {
        if let Some(within) = &function.within {
            return inside::find(function, &within.range, originals, places);
        }
        match function.kind {
            Kind::Func => {}
            Kind::Resolver => return Err(Skip::Resolver),
            Kind::Cold => return Err(Skip::ColdPart),
            Kind::Stub => return Err(Skip::LinkageStub),
        }
        let code = function.module.code();
        let addr = function.addr;
        // Instructions that begin before the next function may not be cut by its start, so decoding
        // may look a little further.
        let around = addr..(addr + 40).min(text.end);
        // SAFETY: within a mapped executable range.
        let bytes = unsafe { original_bytes(&around, originals) };
        let (mut at, checked) = first_place(function, next)?;
        if bytes.starts_with(&ENDBR64) && at == addr {
            at += ENDBR64.len() as u64;
        }
        let rest = bytes.get((at - addr) as usize..).ok_or(Skip::NotCode { addr })?;
        let mut moved = Moved::default();
        let mut is_nop = true;
        let mut all = Instructions::new(rest, at, DecoderOptions::NONE);
        let mut end = at;
        while end < at + PATCH as u64 && !moved.ends {
            let Some(found) = all.next().filter(|_| end < next) else {
                return Err(Skip::TooShort { room: end.min(next) - at });
            };
            if found.kind == Predecoded::Unknown && all.full().is_invalid() {
                return Err(Skip::Undecodable { offset: all.ip() - addr });
            }
            end = all.next_ip();
            is_nop =
                is_nop && may_be_nop(rest, all.ip() - at) && all.full().mnemonic() == Mnemonic::Nop;
            moved.ends = match found.kind {
                Predecoded::Return
                | Predecoded::Jump
                | Predecoded::IndirectJump
                | Predecoded::LinkageJump => true,
                Predecoded::Unknown => {
                    let i = all.full();
                    i.mnemonic() == Mnemonic::Ud2 || ends(flow(i))
                }
                _ => false,
            };
            moved.push((end - all.ip()) as usize, is_fixed(found.kind));
        }
        if end > next {
            return Err(Skip::TooShort { room: next - at });
        }
        if end < at + PATCH as u64 {
            // The function ends here; what follows must be padding that nobody needs.
            let room = next.min(addr + function.size.max(end - addr));
            let need = (at + PATCH as u64 - end) as usize;
            let behind = rest.get((end - at) as usize..).unwrap_or_default();
            // A size may reach to the next function.
            let more = behind.get(..room.saturating_sub(end) as usize).unwrap_or(rest);
            let goes_on = more.iter().any(|byte| *byte != 0xcc);
            if at + PATCH as u64 > next || goes_on || !is_padding(behind, need) {
                return Err(Skip::TooShort { room: end - at });
            }
        }
        let nop = !moved.ends && is_nop && end == at + PATCH as u64;
        let shape = if nop { Shape::Nop } else { Shape::Inline };
        moved.fill(rest);
        let patch_site = Self { at, shape, moved, event: 0 };
        patch_site.check_branches(function, code, next, checked, originals)?;
        if !moved.is_fixed {
            patch_site.check_moved(addr)?;
        }
        Ok(patch_site)
    }

    /// A place whose first bytes are these, of which `moved` are instructions that are moved. `event`:
    /// before which of them hooks run.
    fn of(bytes: &[u8], moved: &[Instruction], event: usize) -> Self {
        let mut out = Moved::default();
        for i in moved {
            out.push(i.len(), false);
        }
        out.fill(bytes);
        out.ends = moved.last().is_some_and(|i| ends(flow(i)));
        let at = moved.first().map_or(0, Instruction::ip);
        Self { at, shape: Shape::Inline, moved: out, event: event as u8 }
    }

    /// Refuses when other code jumps among the bytes to change, or the function loops to its
    /// own start. `checked`: the place is behind a check of the stack, from whose failure the
    /// function begins again.
    fn check_branches(
        &self,
        function: &Function,
        code: &Code,
        next: u64,
        checked: bool,
        originals: Originals<'_>,
    ) -> Result<(), Skip> {
        let addr = function.addr;
        let own = addr..(addr + function.size.max(1)).min(next);
        let cut = self.at + 1..self.at + PATCH as u64;
        for (target, from) in code.branches_into(addr..cut.end) {
            if cut.contains(&target) {
                return Err(Skip::JumpInto { from, offset: target - addr });
            }
            if checked && target < self.at {
                continue;
            }
            // SAFETY: a branch that was decoded from mapped code of the module.
            let call = unsafe { function_call(from) };
            if own.contains(&from) && !call && self.shape == Shape::Inline {
                return Err(Skip::LoopAtEntry { from });
            }
        }
        if !code.has_indirect_jump(&own) {
            return Ok(());
        }
        // SAFETY: within a mapped executable range of the module.
        let bytes = unsafe { original_bytes(&own, originals) };
        match code.table_into(&own, &bytes, &(if checked { self.at } else { addr }..cut.end)) {
            Some(from) => Err(Skip::JumpInto { from, offset: self.at - addr }),
            None => Ok(()),
        }
    }

    /// Refuses instructions that mean something else in another place.
    fn check_moved(&self, addr: u64) -> Result<(), Skip> {
        let moved = self.instructions();
        let last = moved.len().saturating_sub(1);
        for (n, i) in moved.iter().enumerate() {
            let offset = i.ip() - addr;
            let fail = |why| Err(Skip::Unmovable { offset, why });
            match flow(i) {
                Flow::Call | Flow::IndirectCall
                    if n != last || i.next_ip() < self.at + PATCH as u64 =>
                {
                    return fail("a call would return among the changed bytes");
                }
                Flow::Call if !matches!(i.op0_kind(), OpKind::NearBranch64) => {
                    return fail("far call");
                }
                Flow::IndirectCall
                    if i.memory_base() == Register::RSP || i.op0_register() == Register::RSP =>
                {
                    return fail("call through the stack pointer");
                }
                Flow::Interrupt => return fail("breakpoint or software interrupt"),
                Flow::Transaction => return fail("transaction"),
                _ => {}
            }
            if matches!(
                i.code(),
                Op::Call_m1616
                    | Op::Call_m1632
                    | Op::Call_m1664
                    | Op::Jmp_m1616
                    | Op::Jmp_m1632
                    | Op::Jmp_m1664
            ) {
                return fail("far branch");
            }
        }
        Ok(())
    }

    /// The instructions that begin among the five bytes.
    pub(crate) fn instructions(&self) -> Vec<Instruction> {
        let code = self.bytes().get(..self.moved.code.into()).unwrap_or_default();
        Decoder::with_ip(64, code, self.at, DecoderOptions::NONE).into_iter().collect()
    }

    /// How many of them there are.
    pub(crate) fn count(&self) -> usize {
        self.moved.starts.count_ones() as usize
    }

    /// What is moved or changed.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.moved.all()
    }

    /// The instructions' bytes, if they do the same in any place.
    pub(crate) fn fixed(&self) -> Option<&[u8]> {
        let code = self.bytes().get(..self.moved.code.into());
        code.filter(|_| self.moved.is_fixed)
    }

    /// Tells whether the code does not go on behind the instructions.
    pub(crate) fn ends(&self) -> bool {
        self.moved.ends
    }

    /// Where who ran the moved instructions goes on.
    pub(crate) fn end(&self) -> u64 {
        self.at + u64::from(self.moved.len).max(PATCH as u64)
    }

    /// Some of the instructions, as a site of their own.
    pub(crate) fn part(&self, part: Range<usize>) -> Self {
        let all = self.instructions();
        let moved = all.get(part).unwrap_or_default();
        let before = moved.first().map_or(0, |i| i.ip() - self.at) as usize;
        Self::of(self.bytes().get(before..).unwrap_or_default(), moved, 0)
    }

    /// The five bytes before any change.
    pub(crate) fn original(&self) -> [u8; PATCH] {
        let mut out = [0x90; PATCH];
        for (o, b) in out.iter_mut().zip(self.bytes()) {
            *o = *b;
        }
        out
    }

    /// Which of the five bytes begin an instruction.
    pub(crate) fn boundaries(&self) -> [bool; PATCH] {
        let mut out = [false; PATCH];
        for (n, is_start) in out.iter_mut().enumerate() {
            *is_start = self.moved.starts >> n & 1 != 0;
        }
        out
    }
}

const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

/// Tells whether an instruction does the same in any place, and goes on at the next one or returns.
fn is_fixed(kind: Predecoded) -> bool {
    use Predecoded as K;
    matches!(kind, K::Plain | K::Rsp | K::Rbp | K::Push | K::Pop | K::Adjust | K::Return)
}

/// Tells whether code does not go on at the next instruction.
fn ends(flow: Flow) -> bool {
    matches!(flow, Flow::Return | Flow::UnconditionalBranch | Flow::IndirectBranch)
}

/// Tells whether an instruction begins as those do that do nothing.
fn may_be_nop(bytes: &[u8], at: u64) -> bool {
    matches!(bytes.get(at as usize), Some(0x90 | 0x0f | 0x2e | 0x66))
}

/// Where the first instruction to look at is: the function's own first one, or the one behind the
/// check of the stack, which the second answer tells. `next`: where the next function begins.
fn first_place(function: &Function, next: u64) -> Result<(u64, bool), Skip> {
    let addr = function.addr;
    let Convention::BehindStackCheck { leaf_functions, .. } = function.convention() else {
        return Ok((addr, false));
    };
    let own = addr..(addr + function.size.max(1)).min(next);
    // SAFETY: within a mapped executable range of the module.
    let (behind, calls_nothing) =
        unsafe { (behind_stack_check(&own), leaf_functions && calls_nothing(&own)) };
    match behind {
        Some(behind) => Ok((behind, true)),
        None if calls_nothing => Ok((addr, false)),
        None => Err(Skip::NoStackCheck),
    }
}

/// Tells whether a branch is a call: those with a 32-bit distance have one opcode, 0xe8, and may
/// carry prefixes, which no compiler emits on them.
///
/// # Safety
/// `from` is the address of an instruction in mapped code.
unsafe fn function_call(from: u64) -> bool {
    // SAFETY: the caller's promise.
    unsafe { (from as *const u8).read_volatile() == 0xe8 }
}

/// Tells whether the first `need` bytes are what linkers and assemblers put between functions.
fn is_padding(bytes: &[u8], need: usize) -> bool {
    let Some(first) = bytes.get(..need) else { return false };
    if first.iter().all(|b| *b == 0xcc) || first.iter().all(|b| *b == 0) {
        return true;
    }
    let mut decoder = Decoder::new(64, bytes, DecoderOptions::NONE);
    while decoder.position() < need {
        if decoder.decode().mnemonic() != Mnemonic::Nop {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests;
