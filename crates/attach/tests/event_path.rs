//! The code between a hooked function and its hooks keeps its rules: no vector, mask, x87 or MMX
//! register, and no call that leaves it, except to hooks and bodies. Only optimized builds keep the
//! rules by construction, so only they are looked at.
#![cfg(not(debug_assertions))]

mod support;

use iced_x86::{Decoder, DecoderOptions, FlowControl, InstructionInfoFactory, OpKind, Register};
use skep_attach::{Engine, Position, sites};
use std::collections::HashSet;

/// Functions written in assembly, whose indirect calls are the hooks and the bodies.
const ASSEMBLY: &[&str] = &[
    "skep_attach_copy",
    "skep_attach_switch",
    "skep_attach_entry_island",
    "skep_attach_entry_site",
    "skep_attach_exit_0",
    "skep_attach_exit_8",
    "skep_attach_exit_32",
    "skep_attach_exit_128",
    "skep_attach_exit_512",
    "skep_attach_inside",
];
/// Functions written in Rust, by a part of their mangled names.
const RUST: &[&str] = &[
    "8register8register",
    "10shared_tls6sharer",
    "5enter10slow_entry",
    "5enter9slow_exit",
    "5enter10new_thread",
    "5enter8too_deep",
    "5block10after_fork",
    "12stack_bounds6search",
    "10side_stack5entry",
    "10side_stack4call",
    "10side_stack8returned",
    "4pool6refill",
];
/// Those of them that run hooks, through pointers.
const WALKS: &[&str] = &[
    "4walk4walk",
    "4walk10walk_after",
    "10side_stack5entry",
    "10side_stack4call",
    "10side_stack8returned",
];

#[test]
fn no_vector_registers_and_no_way_out() {
    // Hooks something, which makes the linker keep the code in this program.
    let (hook, _) = support::counter(Position::Entry);
    let f = support::own_function(support::record as *const () as usize);
    let engine = Engine::get().expect("engine");
    let done = engine.attach(&[(&f, 0)], &[hook]);
    assert_eq!(done.results, [Ok(())]);
    engine.detach(done.id).expect("attached");
    let modules = sites::scan().expect("modules");
    let main = modules.iter().find(|m| m.is_main()).expect("main");
    let all = main.functions().expect("symbols");
    let rust = |name: &str| RUST.iter().chain(WALKS).any(|r| name.contains(r));
    let walks = |name: &str| WALKS.iter().any(|r| name.contains(r));
    let path: Vec<_> =
        all.iter().filter(|f| ASSEMBLY.contains(&f.name()) || rust(f.name())).collect();
    let names: HashSet<&str> = RUST.iter().chain(WALKS).copied().collect();
    assert_eq!(
        path.len(),
        ASSEMBLY.len() + names.len(),
        "{:?}",
        path.iter().map(|f| f.name()).collect::<Vec<_>>()
    );
    let mut info = InstructionInfoFactory::new();
    let mut looked = 0;
    for f in &path {
        // SAFETY: code of this program.
        let bytes = unsafe { std::slice::from_raw_parts(f.addr() as *const u8, f.size() as usize) };
        let mut decoder = Decoder::with_ip(64, bytes, f.addr(), DecoderOptions::NONE);
        while decoder.can_decode() {
            let i = decoder.decode();
            assert!(!i.is_invalid(), "{} at {:#x}", f.name(), i.ip());
            for used in info.info(&i).used_registers() {
                let r = used.register();
                assert!(
                    !r.is_vector_register() && !r.is_k() && !r.is_st() && !r.is_mm(),
                    "{} at {:#x}: {r:?}",
                    f.name(),
                    i.ip()
                );
            }
            let indirect =
                matches!(i.flow_control(), FlowControl::IndirectCall | FlowControl::IndirectBranch);
            if indirect && i.memory_base() == Register::RIP {
                // The linker's table of addresses.
                // SAFETY: a word of this program.
                let to = unsafe { (i.memory_displacement64() as *const u64).read_volatile() };
                let known = path.iter().any(|p| (p.addr()..p.addr() + p.size()).contains(&to));
                assert!(known, "{} at {:#x} goes to {to:#x}", f.name(), i.ip());
                continue;
            }
            assert!(
                !indirect || !rust(f.name()) || walks(f.name()),
                "{} calls through a pointer at {:#x}",
                f.name(),
                i.ip()
            );
            if i.op_count() > 0 && i.op0_kind() == OpKind::NearBranch64 {
                let to = i.near_branch_target();
                let known = path.iter().any(|p| (p.addr()..p.addr() + p.size()).contains(&to));
                assert!(known, "{} at {:#x} goes to {to:#x}", f.name(), i.ip());
            }
            looked += 1;
        }
    }
    assert!(looked > 1000);
}
