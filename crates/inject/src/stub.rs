//! The instructions by which a thread makes a system call for the tracer, and which bring it back
//! where it was if the tracer dies.
//!
//! ```text
//! offset 0   syscall                      the tracer sets its registers, and stops the thread
//!        2   rt_sigprocmask(SIG_SETMASK, &mask, NULL, 8)      only without a tracer
//!            rcx, rdx, rsi, rdi, r8 … r11, rax = as the thread had them
//!            jmp [where it was]
//!            where it was, mask: 8 bytes each
//! ```
//!
//! A tracer that is killed leaves its threads with the registers that they have at that time. So a
//! thread whose registers are the tracer's is always one that goes on here, with nothing else
//! changed than what the last lines restore: a system call changes `rax`, `rcx` and `r11`, and its
//! arguments are in the others. Nothing here uses the stack, which may be full, or changes flags or
//! vector registers. Signals are blocked up to the second call, since a handler must not find the
//! tracer's mask; after it, a handler returns to these lines as to any others.

use crate::registers::Registers;

/// Length of the instructions.
pub(crate) const LEN: usize = 160;

/// `syscall`.
pub(crate) const SYSCALL: [u8; 2] = [0x0f, 0x05];

/// Makes the instructions for a thread that goes on with `back`, and blocks the signals of `mask`
/// then.
pub(crate) fn stub(back: &Registers, mask: u64) -> [u8; LEN] {
    let mut code = Vec::with_capacity(LEN);
    code.extend(SYSCALL);
    // mov eax, 14; mov edi, 2; mov edx, 0; mov r10d, 8
    code.extend([0xb8, 14, 0, 0, 0, 0xbf, 2, 0, 0, 0, 0xba, 0, 0, 0, 0]);
    code.extend([0x41, 0xba, 8, 0, 0, 0]);
    // lea rsi, [rip + mask]
    let after_lea = code.len() + 7;
    code.extend([0x48, 0x8d, 0x35]);
    code.extend((LEN as u32 - 8 - after_lea as u32).to_le_bytes());
    code.extend(SYSCALL);
    // movabs REGISTER, IMMEDIATE
    let moves = [
        ([0x48, 0xb9], back.rcx),
        ([0x48, 0xba], back.rdx),
        ([0x48, 0xbe], back.rsi),
        ([0x48, 0xbf], back.rdi),
        ([0x49, 0xb8], back.r8),
        ([0x49, 0xb9], back.r9),
        ([0x49, 0xba], back.r10),
        ([0x49, 0xbb], back.r11),
        ([0x48, 0xb8], back.rax),
    ];
    for (instruction, value) in moves {
        code.extend(instruction);
        code.extend(value.to_le_bytes());
    }
    // jmp [rip + back]
    let after_jump = code.len() + 6;
    code.extend([0xff, 0x25]);
    code.extend((LEN as u32 - 16 - after_jump as u32).to_le_bytes());
    code.resize(LEN - 16, 0xcc);
    code.extend(back.rip.to_le_bytes());
    code.extend(mask.to_le_bytes());
    code.try_into().expect("the instructions are as long as that")
}

/// Tells whether bytes are these instructions, for any thread: a tracer that was killed leaves them.
pub(crate) fn is_stub(bytes: &[u8]) -> bool {
    let all = u64::MAX;
    let one = stub(&Registers::default(), 0);
    let other = stub(
        &Registers {
            rax: all,
            rcx: all,
            rdx: all,
            rsi: all,
            rdi: all,
            r8: all,
            r9: all,
            r10: all,
            r11: all,
            rip: all,
            ..<_>::default()
        },
        all,
    );
    bytes.len() == LEN
        && bytes.iter().zip(one.iter().zip(&other)).all(|(byte, (a, b))| a != b || byte == a)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_register_that_a_call_takes_is_in_it_once() {
        let value = |n: u64| 0x1111_1111_1111_1111 * n;
        let back = Registers {
            rax: value(1),
            rcx: value(2),
            rdx: value(3),
            rsi: value(4),
            rdi: value(5),
            r8: value(6),
            r9: value(7),
            r10: value(8),
            r11: value(9),
            rip: value(10),
            ..<_>::default()
        };
        let code = stub(&back, value(11));
        for n in 1..=11 {
            let times = code.windows(8).filter(|bytes| *bytes == value(n).to_le_bytes()).count();
            assert_eq!(times, 1, "{n}");
        }
        assert_eq!(code[..2], SYSCALL);
        assert_eq!(code[LEN - 8..], value(11).to_le_bytes());
        assert!(is_stub(&code) && !is_stub(&code[1..]) && !is_stub(&[0; LEN]));
    }
}
