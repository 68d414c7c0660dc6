//! Relocating the first instructions of a function: the same effect at another address.

use crate::jump::{PATCH, jump};
use crate::patch_site::PatchSite;
use crate::skip::Skip;
use iced_x86::{Code as Op, Encoder, FlowControl, Instruction};

/// The first instructions of a function, relocated.
#[derive(Debug)]
pub(crate) struct Relocated {
    pub(crate) code: Vec<u8>,
    /// For each of the five bytes: where in `code` the instruction beginning there is (the
    /// relocated-instruction map).
    pub(crate) map: [Option<u8>; PATCH],
}

impl PatchSite {
    /// Encodes the moved instructions to run at `to`, followed by a jump to the rest of the
    /// function when there is a rest.
    pub(crate) fn relocate(&self, function: u64, to: u64) -> Result<Relocated, Skip> {
        let mut out = Relocated { code: Vec::with_capacity(40), map: [None; PATCH] };
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
                if let Some(t) = out.map.get_mut(usize::from(offset)) {
                    *t = Some(offset);
                }
            }
        } else {
            // One by one, not with the block encoder: that takes an address inside the moved bytes
            // for the place the instruction is moved to. It is the function's own
            // address, taken, and must stay that.
            for i in plain {
                if let Some(t) = out.map.get_mut((i.ip() - self.at) as usize) {
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
            if let Some(t) = out.map.get_mut((last.ip() - self.at) as usize) {
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

fn is_branch(i: &Instruction) -> bool {
    !matches!(i.flow_control(), FlowControl::Next | FlowControl::Return)
}
