//! Where a program continues behind an instruction, and whether it has to do with memory. iced's
//! `flow_control` and `op_count` answer from tables of all instructions, which would be 45 KB in every
//! traced program.

use iced_x86::{Instruction, Mnemonic, OpKind};

/// Where a program continues behind an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// At the next instruction.
    Next,
    /// At the target.
    UnconditionalBranch,
    /// Where a register or memory says.
    IndirectBranch,
    /// At the target or at the next instruction.
    ConditionalBranch,
    /// In the caller.
    Return,
    /// In another function or the kernel, and then at the next instruction.
    Call,
    /// The same, where a register or memory says.
    IndirectCall,
    /// In a handler of software interrupts.
    Interrupt,
    /// `xbegin`: at the next instruction, or at the target when the transaction fails.
    Transaction,
    /// In a handler of faults.
    Exception,
}

/// Tells where a program continues behind an instruction.
pub(crate) fn flow(i: &Instruction) -> Flow {
    use Mnemonic as M;
    let indirect = matches!(i.op0_kind(), OpKind::Register | OpKind::Memory);
    match i.mnemonic() {
        M::Jmp | M::Jmpe | M::Altinst if indirect => Flow::IndirectBranch,
        M::Altinst => Flow::IndirectBranch,
        M::Jmp | M::Jmpe => Flow::UnconditionalBranch,
        M::Call if indirect => Flow::IndirectCall,
        M::Call
        | M::Syscall
        | M::Sysenter
        | M::Vmcall
        | M::Vmlaunch
        | M::Vmresume
        | M::Vmrun
        | M::Vmmcall
        | M::Vmgexit
        | M::Tdcall
        | M::Seamret
        | M::Seamcall => Flow::Call,
        M::Jo
        | M::Jno
        | M::Jb
        | M::Jae
        | M::Je
        | M::Jne
        | M::Jbe
        | M::Ja
        | M::Js
        | M::Jns
        | M::Jp
        | M::Jnp
        | M::Jl
        | M::Jge
        | M::Jle
        | M::Jg
        | M::Loopne
        | M::Loope
        | M::Loop
        | M::Jcxz
        | M::Jecxz
        | M::Jrcxz
        | M::Jkzd
        | M::Jknzd => Flow::ConditionalBranch,
        M::Ret
        | M::Retf
        | M::Iret
        | M::Iretd
        | M::Iretq
        | M::Skinit
        | M::Sysret
        | M::Sysretq
        | M::Sysexit
        | M::Sysexitq
        | M::Rsm
        | M::Rdm
        | M::Uiret
        | M::Eretu
        | M::Erets => Flow::Return,
        M::Int | M::Int1 | M::Int3 | M::Into | M::Smint | M::Dmint => Flow::Interrupt,
        M::Xbegin => Flow::Transaction,
        M::INVALID | M::Ud0 | M::Ud1 | M::Ud2 | M::Db | M::Dw | M::Dd | M::Dq => Flow::Exception,
        _ => Flow::Next,
    }
}

/// Tells whether an operand is in memory. Operands that an instruction does not have are no memory.
pub(crate) fn has_memory(i: &Instruction) -> bool {
    [i.op0_kind(), i.op1_kind(), i.op2_kind(), i.op3_kind()].contains(&OpKind::Memory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Decoder, DecoderOptions, FlowControl};

    /// The same from iced's tables.
    fn reference(i: &Instruction) -> Flow {
        match i.flow_control() {
            FlowControl::Next => Flow::Next,
            FlowControl::UnconditionalBranch => Flow::UnconditionalBranch,
            FlowControl::IndirectBranch => Flow::IndirectBranch,
            FlowControl::ConditionalBranch => Flow::ConditionalBranch,
            FlowControl::Return => Flow::Return,
            FlowControl::Call => Flow::Call,
            FlowControl::IndirectCall => Flow::IndirectCall,
            FlowControl::Interrupt => Flow::Interrupt,
            FlowControl::XbeginXabortXend => Flow::Transaction,
            FlowControl::Exception => Flow::Exception,
        }
    }

    #[test]
    fn both_are_what_iced_says() {
        // All opcodes of one to three bytes, with prefixes and operands.
        let mut seen = std::collections::HashSet::new();
        let prefixes: [&[u8]; 7] =
            [&[], &[0x66], &[0xf2], &[0xf3], &[0x48], &[0x67], &[0x66, 0x48]];
        let escapes: [&[u8]; 4] = [&[], &[0x0f], &[0x0f, 0x38], &[0x0f, 0x3a]];
        for (prefix, escape) in prefixes.iter().flat_map(|p| escapes.map(|e| (p, e))) {
            for (opcode, operand) in (0..=255).flat_map(|o| (0..=255).map(move |m| (o, m))) {
                let mut bytes = [prefix, escape, &[opcode, operand]].concat();
                bytes.extend_from_slice(&[0x24, 0x11, 0, 0, 0, 0, 0, 0, 0, 0]);
                let i = Decoder::with_ip(64, &bytes, 0x1000, DecoderOptions::NONE).decode();
                assert_eq!(flow(&i), reference(&i), "{bytes:02x?}");
                let memory = i.op_kinds().any(|kind| kind == OpKind::Memory);
                assert_eq!(has_memory(&i), memory, "{bytes:02x?}");
                seen.insert(i.code());
            }
        }
        assert!(seen.len() > 1000, "{}", seen.len());
    }
}
