//! Any bytes as instructions, and any text as their source: what is written is read as the same, and the
//! verifier gives a verdict.
#![no_main]

use libfuzzer_sys::fuzz_target;
use skep_isa::{Insn, ProgramType, text};
use skep_object::Linked;
use skep_verifier::{Options, verify};

fuzz_target!(|data: &[u8]| {
    let Some((how, data)) = data.split_first() else { return };
    let insns = if how & 1 == 0 {
        let Ok(source) = std::str::from_utf8(data) else { return };
        let Ok(insns) = text::assemble(source) else { return };
        insns
    } else {
        let Some(insns) = Insn::decode(&data[..data.len() / 8 * 8]) else { return };
        insns
    };
    for (n, line) in text::lines(&insns) {
        assert!(n < insns.len() && !line.to_string().is_empty());
    }
    if let Some(source) = text::source(&insns) {
        let again = text::assemble(&source).expect("what was written is read");
        assert_eq!(text::source(&again).as_deref(), Some(&*source));
    }
    if insns.is_empty() {
        return;
    }
    let types = [
        ProgramType::Kprobe,
        ProgramType::Xdp,
        ProgramType::Tracing,
        ProgramType::SocketFilter,
        ProgramType::Syscall,
    ];
    let program = Linked::from_insns("fuzz", types[usize::from(how >> 1) % types.len()], insns);
    let mut options = Options::default();
    options.limit = 5_000;
    match verify(&program, &options) {
        Ok(proof) => assert!(proof.info().processed <= options.limit),
        Err(refused) => assert!(!refused.to_string().is_empty()),
    }
});
