//! Where a function is changed, and its first instructions somewhere else.

use crate::code::{self, Code};
use crate::runtime::Convention;
use crate::sites::{Function, Kind};
use crate::skip::Skip;
use iced_x86::{
    Code as Op, Decoder, DecoderOptions, Encoder, FlowControl, Instruction, Mnemonic, OpKind,
    Register,
};
use std::ops::Range;

/// Bytes of a jump or call with a 32-bit distance.
pub(crate) const PATCH: usize = 5;

/// How the bytes to change look before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shape {
    /// Five bytes of no-operations: `-fpatchable-function-entry`, `-mnop-mcount`, or padding in
    /// hand-written code.
    Nop,
    /// Instructions that have to run elsewhere.
    Inline,
}

/// A place that can be changed.
#[derive(Clone, Debug)]
pub(crate) struct Spot {
    /// Address of the five bytes: the function's start, or behind its `endbr64`, or behind the
    /// check of the stack.
    pub(crate) at: u64,
    pub(crate) shape: Shape,
    /// Instructions that begin among the five bytes.
    moved: Vec<Instruction>,
    /// Their bytes.
    bytes: Vec<u8>,
}

/// The first instructions of a function as they run elsewhere.
#[derive(Debug)]
pub(crate) struct Relocated {
    pub(crate) code: Vec<u8>,
    /// For each of the five bytes: where in `code` the instruction beginning there went.
    pub(crate) twins: [Option<u8>; PATCH],
}

impl Spot {
    /// Finds the place in `function`, whose bytes are as the linker left them.
    pub(crate) fn find(function: &Function) -> Result<Self, Skip> {
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
        let window = addr..(addr + 40).min(text.end);
        // SAFETY: within a mapped executable range.
        let bytes = unsafe { code::bytes(&window) };
        let mut decoder = Decoder::with_ip(64, bytes, addr, DecoderOptions::NONE);
        let mut at = addr;
        let mut checked = false;
        if let Convention::BehindStackCheck { leaves, .. } = function.convention {
            let own = addr..(addr + function.size.max(1)).min(next);
            // SAFETY: within a mapped executable range of the module.
            let (behind, quiet) =
                unsafe { (behind_stack_check(&own), leaves && calls_nothing(&own)) };
            match behind {
                Some(behind) => (at, checked) = (behind, true),
                None if quiet => {}
                None => return Err(Skip::NoStackCheck),
            }
            decoder.set_position((at - addr) as usize).map_err(|_| Skip::NotCode { addr })?;
            decoder.set_ip(at);
        }
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
            ended = matches!(
                i.flow_control(),
                FlowControl::Return
                    | FlowControl::UnconditionalBranch
                    | FlowControl::IndirectBranch
            ) || i.mnemonic() == Mnemonic::Ud2;
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
                || !is_padding(slice(end, window.end.min(text.end)), need)
            {
                return Err(Skip::TooShort { room: end - at });
            }
        }
        let nop = !ended
            && moved.iter().all(|i| i.mnemonic() == Mnemonic::Nop)
            && end == at + PATCH as u64;
        let shape = if nop { Shape::Nop } else { Shape::Inline };
        let spot = Self { at, shape, moved, bytes: slice(at, end.max(at + PATCH as u64)).to_vec() };
        spot.check_branches(function, code, checked)?;
        spot.check_moved(addr)?;
        Ok(spot)
    }

    /// Refuses when code elsewhere jumps among the bytes to change, or the function loops to its
    /// own start. `checked`: the place is behind a check of the stack, from whose failure the
    /// function begins again.
    fn check_branches(&self, function: &Function, code: &Code, checked: bool) -> Result<(), Skip> {
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
        let bytes = unsafe { code::bytes(&own) };
        match code.table_into(&own, bytes, &(if checked { self.at } else { addr }..cut.end)) {
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
            match i.flow_control() {
                FlowControl::Call | FlowControl::IndirectCall
                    if n != last || i.next_ip() < self.at + PATCH as u64 =>
                {
                    return fail("a call would return among the changed bytes");
                }
                FlowControl::Call if !matches!(i.op0_kind(), OpKind::NearBranch64) => {
                    return fail("far call");
                }
                FlowControl::IndirectCall
                    if i.memory_base() == Register::RSP || i.op0_register() == Register::RSP =>
                {
                    return fail("call through the stack pointer");
                }
                FlowControl::Interrupt => return fail("breakpoint or software interrupt"),
                FlowControl::XbeginXabortXend => return fail("transaction"),
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

    /// Encodes the moved instructions to run at `to`, followed by a jump to the rest of the
    /// function when there is a rest.
    pub(crate) fn relocate(&self, function: u64, to: u64) -> Result<Relocated, Skip> {
        let mut out = Relocated { code: Vec::with_capacity(40), twins: [None; PATCH] };
        let Some(last) = self.moved.last() else { return Ok(out) };
        let resume = last.next_ip();
        let call = matches!(last.flow_control(), FlowControl::Call | FlowControl::IndirectCall);
        let plain = if call {
            self.moved.get(..self.moved.len() - 1).unwrap_or_default()
        } else {
            &self.moved[..]
        };
        let fixed = |i: &Instruction| !i.is_ip_rel_memory_operand() && !is_branch(i);
        if plain.iter().all(fixed) {
            let len = plain.last().map_or(0, |i| i.next_ip() - self.at) as usize;
            out.code.extend_from_slice(self.bytes.get(..len).unwrap_or_default());
            for i in plain {
                let offset = (i.ip() - self.at) as u8;
                if let Some(t) = out.twins.get_mut(usize::from(offset)) {
                    *t = Some(offset);
                }
            }
        } else {
            // One by one, not with the block encoder: that takes an address inside the moved bytes
            // for the place the instruction is moved to. It is the function's own
            // address, taken, and must stay that.
            for i in plain {
                if let Some(t) = out.twins.get_mut((i.ip() - self.at) as usize) {
                    *t = u8::try_from(out.code.len()).ok();
                }
                let mut moved = *i;
                moved.as_near_branch();
                let mut encoder = Encoder::new(64);
                encoder.encode(&moved, to + out.code.len() as u64).map_err(|_| {
                    Skip::Unmovable {
                        offset: i.ip() - function,
                        why: "its operand is out of reach",
                    }
                })?;
                out.code.extend_from_slice(&encoder.take_buffer());
            }
        }
        if call {
            if let Some(t) = out.twins.get_mut((last.ip() - self.at) as usize) {
                *t = u8::try_from(out.code.len()).ok();
            }
            moved_call(last, to, &mut out.code).ok_or(Skip::Unmovable {
                offset: last.ip() - function,
                why: "call out of reach",
            })?;
        } else if !matches!(
            last.flow_control(),
            FlowControl::Return | FlowControl::UnconditionalBranch | FlowControl::IndirectBranch
        ) {
            let from = to + out.code.len() as u64;
            out.code.extend_from_slice(&jump(0xe9, from, resume).ok_or(Skip::NoRoom)?);
        }
        Ok(out)
    }
}

/// Finds the end of the check of the stack that a function begins with: a comparison, and a branch
/// to a call that makes room and then begins the function again.
///
/// What comes before the branch must not touch the stack, and the way back must lead to the
/// function's first instruction.
///
/// # Safety
/// As [`code::bytes`].
unsafe fn behind_stack_check(own: &Range<u64>) -> Option<u64> {
    /// Instructions of the check, and of the way that makes room: it saves up to 24 registers, and
    /// loads them again.
    const CHECK: usize = 8;
    const WAY: usize = 64;
    // SAFETY: the caller's promise.
    let bytes = unsafe { code::bytes(own) };
    let mut compared = false;
    let mut makes_room = None;
    let mut behind = None;
    for i in Decoder::with_ip(64, bytes, own.start, DecoderOptions::NONE).into_iter().take(CHECK) {
        match i.flow_control() {
            FlowControl::ConditionalBranch => {
                // Of two branches, for the largest frames, both lead to the same place.
                let target = i.near_branch_target();
                if !own.contains(&target)
                    || target <= i.ip()
                    || makes_room.is_some_and(|other| other != target)
                {
                    return None;
                }
                makes_room = Some(target);
                if compared {
                    behind = Some(i.next_ip());
                    break;
                }
            }
            FlowControl::Next => {
                let pushes = i.stack_pointer_increment() != 0
                    || (i.op0_kind() == OpKind::Register && i.op0_register() == Register::RSP);
                let looks = matches!(i.mnemonic(), Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Nop);
                if !looks && (pushes || i.op0_kind() == OpKind::Memory) {
                    return None;
                }
                compared |= i.mnemonic() == Mnemonic::Cmp
                    && (0..i.op_count()).any(|n| i.op_kind(n) == OpKind::Memory);
            }
            _ => return None,
        }
    }
    let (behind, start) = (behind?, makes_room?);
    let way = bytes.get((start - own.start) as usize..)?;
    let mut called = false;
    for i in Decoder::with_ip(64, way, start, DecoderOptions::NONE).into_iter().take(WAY) {
        match i.flow_control() {
            FlowControl::Next => {}
            FlowControl::Call if !called => called = true,
            FlowControl::UnconditionalBranch => {
                return (called && i.near_branch_target() == own.start).then_some(behind);
            }
            _ => return None,
        }
    }
    None
}

/// Tells whether a function neither calls nor ends in another one, and uses hardly any stack.
///
/// # Safety
/// As [`code::bytes`].
unsafe fn calls_nothing(own: &Range<u64>) -> bool {
    /// A red zone's worth of pushes and locals.
    const FRAME: i64 = 128;
    // SAFETY: the caller's promise.
    let bytes = unsafe { code::bytes(own) };
    let mut used = 0;
    Decoder::with_ip(64, bytes, own.start, DecoderOptions::NONE).into_iter().all(|i| {
        let to_rsp = i.op0_kind() == OpKind::Register && i.op0_register() == Register::RSP;
        match i.flow_control() {
            FlowControl::Next if to_rsp && i.mnemonic() == Mnemonic::Sub => {
                used += i.immediate(1) as i64
            }
            FlowControl::Next if to_rsp && i.mnemonic() != Mnemonic::Cmp => {
                used += if i.mnemonic() == Mnemonic::Add { 0 } else { FRAME }
            }
            FlowControl::Next => used -= i64::from(i.stack_pointer_increment().min(0)),
            FlowControl::Return | FlowControl::Exception => {}
            FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch => {
                return own.contains(&i.near_branch_target());
            }
            _ => return false,
        }
        used <= FRAME
    })
}

/// A call that pushes the return address it would have pushed in its old place: the callee returns
/// into the function itself, and unwinders find the function's own tables.
fn moved_call(call: &Instruction, to: u64, code: &mut Vec<u8>) -> Option<()> {
    // push [rip+rest]; jmp target; rest: .quad return address
    let start = code.len();
    code.extend_from_slice(&[0xff, 0x35, 0, 0, 0, 0]);
    let at = to + code.len() as u64;
    if call.flow_control() == FlowControl::Call {
        code.extend_from_slice(&jump(0xe9, at, call.near_branch_target())?);
    } else {
        let mut jmp = *call;
        jmp.set_code(match call.code() {
            Op::Call_rm64 => Op::Jmp_rm64,
            _ => return None,
        });
        let mut encoder = Encoder::new(64);
        encoder.encode(&jmp, at).ok()?;
        code.extend_from_slice(&encoder.take_buffer());
    }
    let distance = (code.len() - start - 6) as u32;
    code.get_mut(start + 2..start + 6)?.copy_from_slice(&distance.to_le_bytes());
    code.extend_from_slice(&call.next_ip().to_le_bytes());
    Some(())
}

/// `opcode` (0xe8 call, 0xe9 jmp) at `from` to `to`; `None` when that is too far.
pub(crate) fn jump(opcode: u8, from: u64, to: u64) -> Option<[u8; PATCH]> {
    let distance = i32::try_from(to.wrapping_sub(from).wrapping_sub(PATCH as u64) as i64).ok()?;
    let [a, b, c, d] = distance.to_le_bytes();
    Some([opcode, a, b, c, d])
}

fn is_branch(i: &Instruction) -> bool {
    !matches!(i.flow_control(), FlowControl::Next | FlowControl::Return)
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
