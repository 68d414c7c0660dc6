//! From what was proved to what runs: the step between the verifier and the engines.
//!
//! The verifier looks at programs as their authors wrote them, engines run what suits this process.
//! Two things differ, and each costs one instruction for one, so that jumps and source lines stay
//! where they are:
//!
//! * Loads of packet addresses. `struct xdp_md` and `struct __sk_buff` have 32 bits for `data`,
//!   `data_end` and `data_meta`; the addresses stand in words below the context ([`ctx::packet`]),
//!   and the load becomes one of 64 bits there.
//! * Calls that were proved never to happen, to helpers that do not exist: what CO-RE and weak
//!   kernel functions leave behind where a field or a function is missing. Engines know no such
//!   helper; the call becomes `r0 = 0`. So do writes of the frame pointer, which the verifier lets
//!   stand only where nothing leads.
//!
//! A third one takes more room: `ld_abs` and `ld_ind`, which end the function with 0 where the
//! packet is too short. They become a call and a test ([`expand`]), and what is behind moves.

use skep_isa::{Insn, ctx, helper, op};
use skep_verifier::Verified;

use skep_maps::Map;
use skep_store::prog::{Program, ProgramParts, Source};

/// Takes what the verifier accepted, to run with these maps: those of its list that could be made,
/// in order.
pub(crate) fn program(proof: &Verified, name: &str, section: &str, maps: &[&Map]) -> Program {
    let (insns, source) = expand(convert(proof), source(proof.linked()));
    let parts = ProgramParts {
        name: name.to_owned(),
        section: section.to_owned(),
        prog_type: proof.prog_type(),
        attach_type: proof.attach_type(),
        ctx_read: proof.info().max_ctx_read,
        insns,
        source,
    };
    // SAFETY: the proof says it of what `convert` changed in ways that keep what it says: see above.
    // `maps` are made as the object describes them.
    unsafe { Program::new(parts, maps) }
}

/// Takes what an object says of the lines of a program.
pub(crate) fn source(linked: &skep_object::Linked) -> Source {
    let mut source = Source::default();
    source.functions.extend(linked.subprogs.iter().map(|f| (f.start as u32, f.name.clone())));
    for line in &linked.lines {
        let file = source.files.iter().position(|f| *f == line.file).unwrap_or_else(|| {
            source.files.push(line.file.clone());
            source.files.len() - 1
        });
        source.lines.push((line.insn as u32, file as u32, line.line));
    }
    source
}

/// Returns the instructions that run.
fn convert(proof: &Verified) -> Vec<Insn> {
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
        let Some(insn) = insns.get_mut(*at) else { continue };
        if insn.class() == op::STX
            && insn.code & 0xe0 == op::ATOMIC
            && insn.imm == op::ATOMIC_LOAD_ACQ
        {
            // What is not there orders nothing, and on this processor every load acquires.
            *insn = Insn { code: op::LDX | op::PROBE_MEM | insn.code & op::DW, imm: 0, ..*insn };
            continue;
        }
        if insn.class() != op::LDX {
            continue;
        }
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
        let frame_write =
            insn.dst() == op::FP && matches!(insn.class(), op::ALU | op::ALU64 | op::LDX);
        if dead_call || frame_write {
            *insn = Insn::mov64_imm(0, 0);
        }
    }
    insns
}

const fn is_packet_load(i: Insn) -> bool {
    i.code & 7 == op::LD && matches!(i.code & 0xe0, op::ABS | op::IND)
}

/// What a packet load becomes.
fn packet_load(i: Insn) -> [Insn; 8] {
    let size = match i.code & op::DW {
        op::B => 1,
        op::H => 2,
        _ => 4,
    };
    let register = i.code & 0xe0 == op::IND;
    [
        // The register of `ld_ind` may be any of those that are lost in the call.
        if register {
            Insn::new(op::ALU | op::X | op::MOV, 2, i.src(), 0, 0)
        } else {
            Insn::new(op::ALU | op::MOV, 2, 0, 0, 0)
        },
        Insn::new(op::ALU | op::ADD, 2, 0, 0, i.imm),
        Insn::mov64_reg(1, 6),
        Insn::mov64_imm(3, size),
        Insn::call(helper::LOAD_PACKET),
        Insn::new(op::JMP | op::JSGE, 0, 0, 2, 0),
        Insn::mov64_imm(0, 0),
        Insn::new(op::JMP | op::EXIT, 0, 0, 0, 0),
    ]
}

/// Replaces loads from packets (kernel/bpf/verifier.c does the same, with `gen_ld_abs`), and moves
/// jumps, functions and source lines. Programs without such loads stay as they are, and so do those
/// in which a jump would become too long.
fn expand(insns: Vec<Insn>, source: Source) -> (Vec<Insn>, Source) {
    let mut at = 0_u32;
    let mut second = false;
    // Where each instruction goes.
    let mut places: Vec<u32> = Vec::with_capacity(insns.len() + 1);
    for i in &insns {
        places.push(at);
        let wide = !std::mem::take(&mut second) && is_packet_load(*i);
        second = !wide && i.is_ld_imm64();
        at += if wide { 8 } else { 1 };
    }
    places.push(at);
    if at as usize == insns.len() {
        return (insns, source);
    }
    let mut out = Vec::with_capacity(at as usize);
    second = false;
    for (from, i) in insns.iter().enumerate() {
        if std::mem::take(&mut second) {
            out.push(*i);
            continue;
        }
        second = i.is_ld_imm64();
        if is_packet_load(*i) {
            out.extend(packet_load(*i));
            continue;
        }
        let distance = |old: i64| -> Option<i64> {
            let to = places.get(usize::try_from(from as i64 + 1 + old).ok()?)?;
            Some(i64::from(*to) - i64::from(*places.get(from)?) - 1)
        };
        let local = i.is_local_call()
            || i.is_ld_imm64() && i.src() == op::PSEUDO_FUNC
            || i.code == op::JMP32 | op::JA;
        let moved = if local {
            distance(i.imm.into()).and_then(|d| i32::try_from(d).ok()).map(|imm| Insn { imm, ..*i })
        } else if matches!(i.class(), op::JMP | op::JMP32) && !matches!(i.code & 0xf0, 0x80 | 0x90)
        {
            distance(i.off.into()).and_then(|d| i16::try_from(d).ok()).map(|off| Insn { off, ..*i })
        } else {
            Some(*i)
        };
        match moved {
            Some(i) => out.push(i),
            None => return (insns, source),
        }
    }
    let place = |old: u32| places.get(old as usize).copied().unwrap_or(at);
    let functions = source.functions.into_iter().map(|(f, name)| (place(f), name)).collect();
    let lines = source.lines.into_iter().map(|(i, file, line)| (place(i), file, line)).collect();
    (out, Source { functions, lines, ..Source { files: source.files, ..Source::default() } })
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
        let proof = skep_verifier::verify(&linked, &skep_verifier::Options::default())
            .expect("the test's program is safe");
        text::lines(&convert(&proof)).map(|(_, line)| line.to_string()).collect()
    }

    #[test]
    fn addresses_of_a_packet_are_loaded_from_below_the_context() {
        let lines = converted(
            ProgramType::Xdp,
            Some(AttachType::Xdp),
            "ldxw r2, [r1]\nldxw r3, [r1+4]\nldxw r4, [r1+8]\nldxw r5, [r1+12]\nmov r0, 2\nexit",
        );
        assert_eq!(
            lines[..4],
            [
                "r2 = *(u64 *)(r1 -8)",
                "r3 = *(u64 *)(r1 -16)",
                "r4 = *(u64 *)(r1 -24)",
                "r5 = *(u32 *)(r1 +12)"
            ]
        );
        let lines = converted(
            ProgramType::SchedCls,
            None,
            "ldxw r2, [r1+76]\nldxw r3, [r1+80]\nldxw r4, [r1+140]\nmov r0, 0\nexit",
        );
        assert_eq!(
            lines[..3],
            ["r2 = *(u64 *)(r1 -8)", "r3 = *(u64 *)(r1 -16)", "r4 = *(u64 *)(r1 -24)"]
        );
    }

    /// A number that a program calls an address leads nowhere, or somewhere.
    #[test]
    fn loads_from_anywhere_may_find_nothing() {
        let source = "stdw [r10-8], 0\nmov r1, 8\nmov r2, 0\ncall bpf_rdonly_cast\nldxdw r1, [r0+8]\nldxsb r1, [r0]\nldacqw r1, [r0+4]\nldxdw r2, [r10-8]\nmov r0, 0\nexit";
        let linked = Linked::from_insns(
            "test",
            ProgramType::SchedCls,
            text::assemble(source).expect("the test's own text"),
        );
        let proof = skep_verifier::verify(&linked, &skep_verifier::Options::default())
            .expect("the test's program is safe");
        let loads = [
            (op::PROBE_MEM | op::DW, 8),
            (op::PROBE_MEMSX | op::B, 0),
            (op::PROBE_MEM | op::W, 4),
            (op::MEM | op::DW, -8),
        ];
        let of = |i: &Insn| (i.code & !7, i.off, i.class(), i.imm);
        assert_eq!(
            convert(&proof)[4..8].iter().map(of).collect::<Vec<_>>(),
            loads.map(|(code, off)| (code, off, op::LDX, 0))
        );
    }

    #[test]
    fn only_loads_through_the_context_change() {
        let lines = converted(
            ProgramType::Xdp,
            Some(AttachType::Xdp),
            "stdw [r10-8], 0\nldxw r2, [r10-8]\nldxw r3, [r10-4]\nmov r0, 2\nexit",
        );
        assert_eq!(lines[1..3], ["r2 = *(u32 *)(r10 -8)", "r3 = *(u32 *)(r10 -4)"]);
    }

    #[test]
    fn the_frame_pointer_is_written_only_where_nothing_leads() {
        let lines = converted(
            ProgramType::Kprobe,
            None,
            "mov r1, 0\njeq r1, 0, out\nmov r10, 1\nout: mov r0, 0\nexit",
        );
        assert_eq!(lines[2], "r0 = 0");
    }

    #[test]
    fn a_call_that_never_happens_needs_no_helper() {
        let lines = converted(
            ProgramType::Kprobe,
            None,
            "mov r1, 0\njeq r1, 0, out\ncall 195896080\nout: mov r0, 0\nexit",
        );
        assert_eq!(lines[2], "r0 = 0");
    }

    #[test]
    fn what_is_behind_a_packet_load_moves_with_all_that_leads_there() {
        let insns =
            text::assemble("jeq %r1, 0, l\nldabsb 3\nl: ldindw %r1, 7\njne %r0, 0, l\ncall local f\nexit\nf: ldabsh 1\nexit").unwrap();
        let source = Source {
            functions: vec![(0, "a".into()), (6, "f".into())],
            lines: vec![(3, 0, 9)],
            ..Source::default()
        };
        let (out, source) = expand(insns.clone(), source);
        assert_eq!(out.len(), insns.len() + 3 * 7);
        let lines: Vec<String> = text::lines(&out).map(|(_, line)| line.to_string()).collect();
        assert_eq!(lines[0], "if r1 == 0x0 goto pc+8");
        assert_eq!(lines[1..4], ["w2 = 0", "w2 += 3", "r1 = r6"]);
        assert_eq!(lines[9..11], ["w2 = w1", "w2 += 7"]);
        assert_eq!(lines[17..20], ["if r0 != 0x0 goto pc-9", "call pc+1", "exit"]);
        assert_eq!((source.functions[1].0, source.lines[0].0), (20, 17));
        assert_eq!(expand(insns[5..6].to_vec(), Source::default()).0, insns[5..6]);
    }
}
