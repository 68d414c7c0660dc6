//! From what was proved to what runs: the step between the verifier and the engines.
//!
//! The verifier looks at programs as their authors wrote them, engines run what suits this process. Two things differ, and
//! each costs one instruction for one, so that jumps and source lines stay where they are:
//!
//! * Loads of packet addresses. `struct xdp_md` and `struct __sk_buff` have 32 bits for `data`, `data_end` and `data_meta`;
//!   the addresses stand in words below the context ([`ctx::packet`]), and the load becomes one of 64 bits there.
//! * Calls that were proved never to happen, to helpers that do not exist: what CO-RE and weak kernel functions leave behind
//!   where a field or a function is missing. Engines know no such helper; the call becomes `r0 = 0`. So do writes of the frame
//!   pointer, which the verifier lets stand only where nothing leads.

use skep_isa::{Insn, ctx, op};
use skep_verifier::Verified;

/// Returns the instructions that run.
pub(crate) fn convert(proof: &Verified) -> Vec<Insn> {
    let mut insns = proof.insns().to_vec();
    let info = proof.info();
    if let Some(layout) = ctx::layout(proof.prog_type(), proof.attach_type()) {
        for at in &info.packet_loads {
            let Some(insn) = insns.get_mut(*at) else { continue };
            let field = layout.fields.iter().find(|f| i32::try_from(f.off) == Ok(insn.off.into()));
            if let Some(word) = field.and_then(|f| ctx::packet::word(f.kind)) {
                *insn = Insn { code: op::LDX | op::MEM | op::DW, off: word as i16, ..*insn };
            }
        }
    }
    // What may not be there gives 0; where it is not known, the load would end the process.
    for at in &info.object_loads {
        let Some(insn) = insns.get_mut(*at).filter(|i| i.class() == op::LDX) else { continue };
        insn.code = match insn.code & 0xe0 {
            op::MEM => insn.code & !0xe0 | op::PROBE_MEM,
            op::MEMSX => insn.code & !0xe0 | op::PROBE_MEMSX,
            _ => insn.code,
        };
    }
    let mut second = false;
    for insn in &mut insns {
        if std::mem::take(&mut second) {
            continue;
        }
        second = insn.is_ld_imm64();
        let dead_call = insn.is_helper_call() && !info.helpers.contains(&(insn.imm as u32));
        let frame_write = insn.dst() == op::FP && matches!(insn.class(), op::ALU | op::ALU64 | op::LDX);
        if dead_call || frame_write {
            *insn = Insn::mov64_imm(0, 0);
        }
    }
    insns
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_isa::{AttachType, ProgramType, text};
    use skep_object::Linked;

    fn converted(prog_type: ProgramType, attach: Option<AttachType>, source: &str) -> Vec<String> {
        let insns = text::assemble(source).expect("the test's own text");
        let mut linked = Linked::from_insns("test", prog_type, insns);
        linked.attach_type = attach;
        let proof = skep_verifier::verify(&linked, &skep_verifier::Options::default()).expect("the test's program is safe");
        text::lines(&convert(&proof)).map(|(_, line)| line.to_string()).collect()
    }

    #[test]
    fn addresses_of_a_packet_are_loaded_from_below_the_context() {
        let lines = converted(
            ProgramType::Xdp,
            Some(AttachType::Xdp),
            "ldxw r2, [r1]\nldxw r3, [r1+4]\nldxw r4, [r1+8]\nldxw r5, [r1+12]\nmov r0, 2\nexit",
        );
        assert_eq!(lines[..4], ["r2 = *(u64 *)(r1 -8)", "r3 = *(u64 *)(r1 -16)", "r4 = *(u64 *)(r1 -24)", "r5 = *(u32 *)(r1 +12)"]);
        let lines = converted(ProgramType::SchedCls, None, "ldxw r2, [r1+76]\nldxw r3, [r1+80]\nldxw r4, [r1+140]\nmov r0, 0\nexit");
        assert_eq!(lines[..3], ["r2 = *(u64 *)(r1 -8)", "r3 = *(u64 *)(r1 -16)", "r4 = *(u64 *)(r1 -24)"]);
    }

    #[test]
    fn only_loads_through_the_context_change() {
        let lines =
            converted(ProgramType::Xdp, Some(AttachType::Xdp), "stdw [r10-8], 0\nldxw r2, [r10-8]\nldxw r3, [r10-4]\nmov r0, 2\nexit");
        assert_eq!(lines[1..3], ["r2 = *(u32 *)(r10 -8)", "r3 = *(u32 *)(r10 -4)"]);
    }

    #[test]
    fn the_frame_pointer_is_written_only_where_nothing_leads() {
        let lines = converted(ProgramType::Kprobe, None, "mov r1, 0\njeq r1, 0, out\nmov r10, 1\nout: mov r0, 0\nexit");
        assert_eq!(lines[2], "r0 = 0");
    }

    #[test]
    fn a_call_that_never_happens_needs_no_helper() {
        let lines = converted(ProgramType::Kprobe, None, "mov r1, 0\njeq r1, 0, out\ncall 195896080\nout: mov r0, 0\nexit");
        assert_eq!(lines[2], "r0 = 0");
    }
}
