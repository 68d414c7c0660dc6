//! Relocating the first instructions of a function: the same effect at another address.
//!
//! Instructions keep their bytes but for distances, which are from the instruction's end. iced's
//! encoder is not used: it would be a tenth of the agent, to change four bytes.

use crate::flow::{Flow, flow};
use crate::jump::{PATCH, jump};
use crate::patch_site::PatchSite;
use crate::skip::Skip;
use iced_x86::{Decoder, DecoderOptions, Instruction, OpKind, Register};

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
    /// function when there is a rest. `buffer`: memory for them, whatever is in it.
    pub(crate) fn relocate(
        &self,
        function: u64,
        to: u64,
        buffer: Vec<u8>,
    ) -> Result<Relocated, Skip> {
        let mut out = Relocated { code: buffer, map: [None; PATCH] };
        out.code.clear();
        if let Some(code) = self.fixed() {
            out.code.extend_from_slice(code);
            for (n, (t, is_start)) in out.map.iter_mut().zip(self.boundaries()).enumerate() {
                *t = is_start.then_some(n as u8);
            }
            if !self.ends() {
                let (from, resume) = (to + code.len() as u64, self.at + code.len() as u64);
                out.code.extend_from_slice(&jump(0xe9, from, resume).ok_or(Skip::NoRoom)?);
            }
            return Ok(out);
        }
        let all = self.instructions();
        let Some(last) = all.last() else { return Ok(out) };
        let resume = last.next_ip();
        let call = matches!(flow(last), Flow::Call | Flow::IndirectCall);
        let plain = if call { all.get(..all.len() - 1).unwrap_or_default() } else { &all[..] };
        let fixed = |i: &Instruction| !i.is_ip_rel_memory_operand() && !is_branch(i);
        if plain.iter().all(fixed) {
            let len = plain.last().map_or(0, |i| i.next_ip() - self.at) as usize;
            out.code.extend_from_slice(self.bytes().get(..len).unwrap_or_default());
            for i in plain {
                let offset = (i.ip() - self.at) as u8;
                if let Some(t) = out.map.get_mut(usize::from(offset)) {
                    *t = Some(offset);
                }
            }
        } else {
            // An address inside the moved bytes is the function's own address, taken, and must stay
            // that.
            for i in plain {
                if let Some(t) = out.map.get_mut((i.ip() - self.at) as usize) {
                    *t = u8::try_from(out.code.len()).ok();
                }
                moved(i, self.bytes_of(i), to, &mut out.code).ok_or(Skip::Unmovable {
                    offset: i.ip() - function,
                    why: "its operand is out of reach",
                })?;
            }
        }
        if call {
            if let Some(t) = out.map.get_mut((last.ip() - self.at) as usize) {
                *t = u8::try_from(out.code.len()).ok();
            }
            moved_call(last, self.bytes_of(last), to, &mut out.code).ok_or(Skip::Unmovable {
                offset: last.ip() - function,
                why: "call out of reach",
            })?;
        } else if !matches!(
            flow(last),
            Flow::Return | Flow::UnconditionalBranch | Flow::IndirectBranch
        ) {
            let from = to + out.code.len() as u64;
            out.code.extend_from_slice(&jump(0xe9, from, resume).ok_or(Skip::NoRoom)?);
        }
        Ok(out)
    }

    /// The bytes of one of the moved instructions.
    fn bytes_of(&self, i: &Instruction) -> &[u8] {
        let start = i.ip().wrapping_sub(self.at) as usize;
        self.bytes().get(start..).and_then(|rest| rest.get(..i.len())).unwrap_or_default()
    }
}

/// Appends an instruction, whose bytes are given, with the effect that it has in its own place; the
/// first byte of `code` is at `to`. `None` when what it names is out of reach there.
fn moved(i: &Instruction, bytes: &[u8], to: u64, code: &mut Vec<u8>) -> Option<()> {
    let from = to + code.len() as u64;
    if i.is_ip_rel_memory_operand() {
        let start = code.len();
        code.extend_from_slice(bytes);
        let mut decoder = Decoder::with_ip(64, bytes, i.ip(), DecoderOptions::NONE);
        let again = decoder.decode();
        let at = start + decoder.get_constant_offsets(&again).displacement_offset();
        let field = code.get_mut(at..)?.first_chunk_mut::<4>()?;
        let back = i.ip().wrapping_sub(from) as i64;
        let distance = i64::from(i32::from_le_bytes(*field)).checked_add(back)?;
        // An address of 32 bits is one modulo 2^32.
        let reached = i.memory_base() == Register::EIP || i32::try_from(distance).is_ok();
        *field = reached.then_some(distance as i32)?.to_le_bytes();
        return Some(());
    }
    if !matches!(i.op0_kind(), OpKind::NearBranch64) {
        code.extend_from_slice(bytes);
        return Some(());
    }
    let prefixes = prefixes(bytes);
    let opcode = bytes.get(prefixes..)?;
    let (short, long) = match *opcode.first()? {
        // A condition and a distance of 8 bits.
        op @ 0x70..=0x7f => (false, &[0x0f, op + 0x10][..]),
        op @ 0x0f => (false, &[op, *opcode.get(1)?][..]),
        0xe9 | 0xeb => (false, &[0xe9][..]),
        // `loop` and `jrcxz` have no distance of 32 bits.
        op => (true, &[op][..]),
    };
    // REX and an operand size of 16 bits have no effect on branches, or another on each maker's
    // processors.
    code.extend(bytes[..prefixes].iter().filter(|b| !matches!(b, 0x66 | 0x40..=0x4f)));
    code.extend_from_slice(long);
    let width = if short { 1 } else { 4 };
    let end = to + (code.len() + width) as u64;
    let distance = i.near_branch_target().wrapping_sub(end) as i64;
    if short {
        code.push(i8::try_from(distance).ok()? as u8);
    } else {
        code.extend_from_slice(&i32::try_from(distance).ok()?.to_le_bytes());
    }
    Some(())
}

/// How many bytes stand before the opcode of an instruction without VEX, EVEX or XOP.
fn prefixes(bytes: &[u8]) -> usize {
    let is_prefix = |b: &u8| matches!(b, 0x26 | 0x2e | 0x36 | 0x3e | 0x40..=0x4f | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3);
    bytes.iter().take_while(|b| is_prefix(b)).count()
}

/// A call that pushes the return address it would have pushed in its old place: the callee returns
/// into the function itself, and unwinders find the function's own tables.
fn moved_call(call: &Instruction, bytes: &[u8], to: u64, code: &mut Vec<u8>) -> Option<()> {
    // push [rip+rest]; jmp target; rest: .quad return address
    let start = code.len();
    code.extend_from_slice(&[0xff, 0x35, 0, 0, 0, 0]);
    let at = to + code.len() as u64;
    if flow(call) == Flow::Call {
        code.extend_from_slice(&jump(0xe9, at, call.near_branch_target())?);
    } else {
        // `call` and `jmp` of 64 bits differ in three bits behind the opcode: /2 and /4.
        const CALL: u8 = 2 << 3;
        const JMP: u8 = 4 << 3;
        const OPERATION: u8 = 7 << 3;
        let opcode = prefixes(bytes);
        let mut jmp = bytes.to_vec();
        let operation = match jmp.get_mut(opcode..)? {
            [0xff, operation, ..] if *operation & OPERATION == CALL => operation,
            _ => return None,
        };
        *operation = *operation & !OPERATION | JMP;
        moved(call, &jmp, to, code)?;
    }
    let distance = (code.len() - start - 6) as u32;
    code.get_mut(start + 2..start + 6)?.copy_from_slice(&distance.to_le_bytes());
    code.extend_from_slice(&call.next_ip().to_le_bytes());
    Some(())
}

fn is_branch(i: &Instruction) -> bool {
    !matches!(flow(i), Flow::Next | Flow::Return)
}

#[cfg(test)]
mod tests {
    use iced_x86::{Code as Op, Encoder, FlowControl};
    use skep_proc::maps::{self, Perms};

    use super::*;

    /// Where instructions are moved from.
    const HERE: u64 = 0x7f00_1234_5678;

    /// What iced's encoder makes of an instruction at another address.
    fn reference(i: &Instruction, to: u64, encoder: &mut Encoder) -> Option<Vec<u8>> {
        let mut i = *i;
        i.as_near_branch();
        if i.code() == Op::Call_rm64 {
            i.set_code(Op::Jmp_rm64);
        }
        let done = encoder.encode(&i, to);
        // What it could not encode leaves bytes as well.
        let code = encoder.take_buffer();
        done.ok().map(|_| code)
    }

    /// What we make of it.
    fn ours(i: &Instruction, bytes: &[u8], to: u64) -> Option<Vec<u8>> {
        let mut code = Vec::new();
        if i.code() == Op::Call_rm64 {
            moved_call(i, bytes, to.wrapping_sub(6), &mut code)?;
            // Before it the return address is pushed, which is behind it.
            assert!(code.ends_with(&i.next_ip().to_le_bytes()));
            code.truncate(code.len() - 8);
            assert_eq!(code[..2], [0xff, 0x35]);
            assert_eq!(code[2..6], (code.len() as u32 - 6).to_le_bytes());
            return Some(code.split_off(6));
        }
        moved(i, bytes, to, &mut code)?;
        Some(code)
    }

    fn decode(bytes: &[u8], at: u64) -> Instruction {
        let i = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE).decode();
        assert_eq!(i.len(), bytes.len(), "{bytes:02x?} is more than one instruction");
        i
    }

    /// Compares where both move an instruction; returns whether it depends on its address.
    fn compare(i: &Instruction, bytes: &[u8], encoder: &mut Encoder) -> bool {
        let depends = i.is_ip_rel_memory_operand() || is_branch(i);
        let direct_call = i.flow_control() == FlowControl::Call;
        let far = matches!(i.op0_kind(), OpKind::FarBranch16 | OpKind::FarBranch32);
        if !depends || direct_call || far || i.flow_control() == FlowControl::XbeginXabortXend {
            return false;
        }
        let reach = 1_i64 << 31;
        for distance in
            [0, 0x1000, -0x1000, reach - 0x2000, 0x2000 - reach, 3 * reach, -3 * reach, 20, -20]
        {
            let to = i.ip().wrapping_add_signed(distance);
            let (ours, reference) = (ours(i, bytes, to), reference(i, to, encoder));
            let (Some(ours), Some(reference)) = (&ours, &reference) else {
                assert_eq!(ours, reference, "{bytes:02x?} moved by {distance:#x}");
                continue;
            };
            assert_eq!(
                decode(ours, to),
                decode(reference, to),
                "{bytes:02x?} moved by {distance:#x}: {ours:02x?}, {reference:02x?}"
            );
        }
        true
    }

    #[test]
    fn moved_instructions_are_those_that_an_encoder_makes() {
        let mut encoder = Encoder::new(64);
        let wanted = Perms::EXEC | Perms::READ;
        let code = maps::own().unwrap().into_iter().filter(|v| v.perms.contains(wanted));
        let mut compared = 0;
        for range in code.map(|v| v.range()) {
            // SAFETY: mapped code of this process, which stays: no library is unloaded here.
            let bytes = unsafe { crate::code::bytes(&range) };
            let mut decoder = Decoder::with_ip(64, bytes, HERE, DecoderOptions::NONE);
            let mut i = Instruction::default();
            while decoder.can_decode() {
                let start = decoder.position();
                decoder.decode_out(&mut i);
                if !i.is_invalid() {
                    let own = &bytes[start..decoder.position()];
                    compared += u32::from(compare(&i, own, &mut encoder));
                }
            }
        }
        assert!(compared > 50_000, "{compared}");
    }

    #[test]
    fn rare_encodings_move() {
        let mut encoder = Encoder::new(64);
        for bytes in [
            // je, jne with a hint; bnd jmp; jmp and jne of 8 bits
            &[0x74, 0x05][..],
            &[0x2e, 0x75, 0x80],
            &[0xf2, 0xe9, 1, 2, 3, 4],
            &[0xf2, 0xeb, 0x7f],
            &[0xeb, 0xfe],
            &[0x0f, 0x8f, 0xff, 0xff, 0xff, 0x7f],
            &[0x48, 0x0f, 0x84, 0, 0, 0, 0x80],
            // loop, loopne, jrcxz, jecxz
            &[0xe2, 0x10],
            &[0xe0, 0x80],
            &[0xe3, 0x7f],
            &[0x67, 0xe3, 0x00],
            // jmp and call [rip+x], notrack, with REX; jmp rax; call r11; call [r12+8]
            &[0xff, 0x25, 1, 2, 3, 4],
            &[0x3e, 0xff, 0x25, 1, 2, 3, 4],
            &[0xff, 0x15, 1, 2, 3, 0xff],
            &[0x3e, 0xff, 0x15, 1, 2, 3, 4],
            &[0x41, 0xff, 0xd3],
            &[0x3e, 0xff, 0xd0],
            &[0x41, 0xff, 0x54, 0x24, 0x08],
            // cmp byte [rip+x], 7; mov qword [rip+x], imm; imul eax, [rip+x], imm; test word
            &[0x80, 0x3d, 1, 2, 3, 4, 7],
            &[0x48, 0xc7, 0x05, 1, 2, 3, 4, 5, 6, 7, 8],
            &[0x69, 0x05, 1, 2, 3, 4, 5, 6, 7, 8],
            &[0x66, 0xf7, 0x05, 0, 0, 0, 0, 1, 2],
            // lea rax, [eip+x]; vmovaps ymm0, [rip+x]; vpternlogd zmm0, zmm1, [rip+x], 3
            &[0x67, 0x48, 0x8d, 0x05, 0x10, 0, 0, 0],
            &[0xc5, 0xfc, 0x28, 0x05, 1, 2, 3, 4],
            &[0x62, 0xf3, 0x75, 0x48, 0x25, 0x05, 0x10, 0, 0, 0, 0x03],
        ] {
            let i = Decoder::with_ip(64, bytes, HERE, DecoderOptions::NONE).decode();
            assert_eq!(i.len(), bytes.len(), "{bytes:02x?}");
            assert!(compare(&i, bytes, &mut encoder), "{bytes:02x?}");
        }
    }
}
