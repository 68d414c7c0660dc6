//! The lengths of the simplest instructions, which are most of them: sooner told than what they do.

use super::{
    ARITHMETIC, CONSTANT, IMM, IMM8, MODRM, ONE_BYTE, OPERANDS, POP, PUSH, TWO_BYTES, UNUSUAL,
    WINDOW,
};

/// Which instructions somebody wants to pass over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pass {
    /// All that go on at the next one.
    Onward,
    /// Those of them that touch neither rsp nor rbp, nor memory through them: what
    /// [`Kind`](super::Kind) calls plain or relative.
    OffStack,
}

/// The length of the instruction at the start of `window`; 0: it is none of the simple ones, or not to
/// be passed over.
#[inline(always)]
pub(super) fn simple_length(window: &[u8; WINDOW], pass: Pass) -> usize {
    // What is looked at below lies in the first seven bytes.
    let byte = |n: usize| window[n & (WINDOW - 1)];
    let (mut at, mut opcode, mut wide) = (1, byte(0), false);
    if opcode & 0xf0 == 0x40 {
        wide = opcode & 8 != 0;
        (at, opcode) = (2, byte(1));
    }
    let mut form = ONE_BYTE[usize::from(opcode)];
    if opcode == 0x0f {
        form = TWO_BYTES[usize::from(byte(at))];
        at += 1;
        if form & UNUSUAL != 0 {
            return 0;
        }
    } else if form & UNUSUAL != 0 {
        match form {
            ARITHMETIC => form = if opcode == 0x81 { MODRM | IMM } else { MODRM | IMM8 },
            CONSTANT if !wide => return at + 4,
            CONSTANT if pass == Pass::Onward => return at + 8,
            PUSH | POP if pass == Pass::Onward => return at,
            _ => return 0,
        }
    }
    if form & MODRM != 0 {
        let modrm = byte(at);
        let (is_register, rm) = (modrm >= 0xc0, modrm & 7);
        // More than are, as bits of REX choose others.
        let may_be_stack = |number: u8| number & 6 == 4;
        let named = wide && (may_be_stack(modrm >> 3 & 7) || is_register && may_be_stack(rm));
        if pass == Pass::OffStack && named {
            return 0;
        }
        let mut size = usize::from(OPERANDS[usize::from(modrm)]);
        if !is_register && may_be_stack(rm) {
            let base = if rm == 4 { byte(at + 1) & 7 } else { rm };
            let without_base = modrm < 0x40 && base == 5;
            if without_base && rm == 4 {
                size += 4;
            }
            if pass == Pass::OffStack && may_be_stack(base) && !without_base {
                return 0;
            }
        }
        at += size;
    }
    at + usize::from(form & IMM8 != 0) + if form & IMM != 0 { 4 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::{Flow, flow};
    use crate::predecode::{Kind, predecode, tests::each_encoding};
    use iced_x86::{Decoder, DecoderOptions};

    /// What is passed over is as long as iced says, and does no more than was asked for.
    #[test]
    fn simple_instructions_are_those_of_a_full_look() {
        let mut passed = [0; 2];
        each_encoding(|bytes| {
            let i = Decoder::with_ip(64, bytes, 0x4000, DecoderOptions::NONE).decode();
            for (pass, passed) in [Pass::Onward, Pass::OffStack].into_iter().zip(&mut passed) {
                let len = simple_length(bytes, pass);
                if len == 0 {
                    continue;
                }
                let found = predecode(bytes);
                if pass == Pass::OffStack {
                    assert!(matches!(found.kind, Kind::Plain | Kind::Relative), "{bytes:02x?}");
                    assert_eq!(usize::from(found.len), len, "{bytes:02x?}");
                }
                if !i.is_invalid() {
                    assert_eq!((i.len(), flow(&i)), (len, Flow::Next), "{bytes:02x?}");
                    *passed += 1;
                }
            }
        });
        let [onward, off_stack] = passed;
        assert!(off_stack > 200_000 && onward > off_stack, "{passed:?}");
    }
}
