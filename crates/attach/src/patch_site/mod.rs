//! Where a function is patched: which bytes, and whether they can be changed at all.

use crate::code::{Code, Originals, original_bytes};
use crate::flow::{Flow, flow};
use crate::jump::PATCH;
use crate::runtime::Convention;
use crate::sites::{Function, Kind};
use crate::skip::Skip;
use crate::stack_check::{behind_stack_check, calls_nothing};
use iced_x86::{Code as Op, Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};
use std::ops::Range;

mod inside;

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
    /// Instructions that begin among the five bytes.
    pub(crate) moved: Vec<Instruction>,
    /// Their bytes.
    pub(crate) bytes: Vec<u8>,
    /// Before which of them hooks run: the first one, but where a place inside a function leaves no
    /// other room. It may be the one behind the last.
    pub(crate) event: usize,
}

impl PatchSite {
    /// Finds the place in `function`, whose bytes the linker left as `originals` tells.
    pub(crate) fn find(function: &Function, originals: Originals<'_>) -> Result<Self, Skip> {
        if let Some(within) = &function.within {
            return inside::find(function, &within.range, originals);
        }
        match function.kind {
            Kind::Func => {}
            Kind::Resolver => return Err(Skip::Resolver),
            Kind::Cold => return Err(Skip::ColdPart),
            Kind::Stub => return Err(Skip::LinkageStub),
        }
        let code = function.module.code();
        let addr = function.addr;
        let text = code.text_of(addr).ok_or(Skip::NotCode { addr })?;
        let next = code.next_start(addr);
        // Instructions that begin before the next function may not be cut by its start, so decoding
        // may look a little further.
        let around = addr..(addr + 40).min(text.end);
        // SAFETY: within a mapped executable range.
        let bytes = unsafe { original_bytes(&around, originals) };
        let mut decoder = Decoder::with_ip(64, &bytes, addr, DecoderOptions::NONE);
        let (mut at, checked) = first_place(function, next)?;
        decoder.set_position((at - addr) as usize).map_err(|_| Skip::NotCode { addr })?;
        decoder.set_ip(at);
        let mut moved: Vec<Instruction> = Vec::with_capacity(5);
        let mut ended = false;
        let mut end = at;
        while end < at + PATCH as u64 && !ended {
            if !decoder.can_decode() || end >= next {
                return Err(Skip::TooShort { room: end.min(next) - at });
            }
            let i = decoder.decode();
            if i.is_invalid() {
                return Err(Skip::Undecodable { offset: i.ip() - addr });
            }
            end = i.next_ip();
            if i.ip() == addr && i.mnemonic() == Mnemonic::Endbr64 {
                at = end;
                continue;
            }
            ended =
                matches!(flow(&i), Flow::Return | Flow::UnconditionalBranch | Flow::IndirectBranch)
                    || i.mnemonic() == Mnemonic::Ud2;
            moved.push(i);
        }
        if end > next {
            return Err(Skip::TooShort { room: next - at });
        }
        let slice = |from: u64, to: u64| {
            bytes.get((from - addr) as usize..(to - addr) as usize).unwrap_or_default()
        };
        if end < at + PATCH as u64 {
            // The function ends here; what follows must be padding that nobody needs.
            let room = next.min(addr + function.size.max(end - addr));
            let need = (at + PATCH as u64 - end) as usize;
            if at + PATCH as u64 > next
                || room > end
                || !is_padding(slice(end, around.end.min(text.end)), need)
            {
                return Err(Skip::TooShort { room: end - at });
            }
        }
        let nop = !ended
            && moved.iter().all(|i| i.mnemonic() == Mnemonic::Nop)
            && end == at + PATCH as u64;
        let shape = if nop { Shape::Nop } else { Shape::Inline };
        let patch_site = Self {
            at,
            shape,
            moved,
            bytes: slice(at, end.max(at + PATCH as u64)).to_vec(),
            event: 0,
        };
        patch_site.check_branches(function, code, checked, originals)?;
        patch_site.check_moved(addr)?;
        Ok(patch_site)
    }

    /// Refuses when other code jumps among the bytes to change, or the function loops to its
    /// own start. `checked`: the place is behind a check of the stack, from whose failure the
    /// function begins again.
    fn check_branches(
        &self,
        function: &Function,
        code: &Code,
        checked: bool,
        originals: Originals<'_>,
    ) -> Result<(), Skip> {
        let addr = function.addr;
        let own = addr..(addr + function.size.max(1)).min(code.next_start(addr));
        let cut = self.at + 1..self.at + PATCH as u64;
        for &(target, from) in code.branches_into(addr..cut.end) {
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
        // SAFETY: within a mapped executable range of the module.
        let bytes = unsafe { original_bytes(&own, originals) };
        match code.table_into(&own, &bytes, &(if checked { self.at } else { addr }..cut.end)) {
            Some(from) => Err(Skip::JumpInto { from, offset: self.at - addr }),
            None => Ok(()),
        }
    }

    /// Refuses instructions that mean something else in another place.
    fn check_moved(&self, addr: u64) -> Result<(), Skip> {
        let last = self.moved.len().saturating_sub(1);
        for (n, i) in self.moved.iter().enumerate() {
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

    /// Where who ran the moved instructions goes on.
    pub(crate) fn end(&self) -> u64 {
        self.at + (self.bytes.len() as u64).max(PATCH as u64)
    }

    /// Some of the instructions, as a site of their own.
    pub(crate) fn part(&self, part: Range<usize>) -> Self {
        let moved = self.moved.get(part).unwrap_or_default().to_vec();
        let at = moved.first().map_or(self.at, Instruction::ip);
        let bytes = self.bytes.get((at - self.at) as usize..).unwrap_or_default().to_vec();
        Self { at, shape: self.shape, moved, bytes, event: 0 }
    }

    /// The five bytes before any change.
    pub(crate) fn original(&self) -> [u8; PATCH] {
        let mut out = [0x90; PATCH];
        for (o, b) in out.iter_mut().zip(&self.bytes) {
            *o = *b;
        }
        out
    }

    /// Which of the five bytes begin an instruction.
    pub(crate) fn boundaries(&self) -> [bool; PATCH] {
        let mut out = [false; PATCH];
        for i in &self.moved {
            if let Some(b) = out.get_mut((i.ip() - self.at) as usize) {
                *b = true;
            }
        }
        out
    }
}

/// Where the first instruction to look at is: the function's own first one, or the one behind the
/// check of the stack, which the second answer tells. `next`: where the next function begins.
fn first_place(function: &Function, next: u64) -> Result<(u64, bool), Skip> {
    let addr = function.addr;
    let Convention::BehindStackCheck { leaf_functions, .. } = function.convention else {
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
