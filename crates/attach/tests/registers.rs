//! No register changes that a function or its caller could see: all general registers, the vector
//! registers with their upper halves, x87 and MXCSR, before the body and after it, whatever hooks
//! run.

#![allow(clippy::print_stdout, reason = "a skipped test says so")]

mod support;

use skep_attach::{Engine, Hook, Position};
use std::arch::global_asm;
use support::{Seen, own_function};

/// What is recorded at one point: 16 general registers, 16 vector registers of 32 bytes, the x87
/// and SSE state.
#[repr(C, align(64))]
#[derive(Clone, PartialEq)]
struct State {
    general: [u64; 16],
    vector: [[u64; 4]; 16],
    legacy: [u8; 512],
}

const ZERO: State = State { general: [0; 16], vector: [[0; 4]; 16], legacy: [0; 512] };

#[unsafe(no_mangle)]
static mut SKEP_TEST_STATES: [State; 3] = [ZERO; 3];

global_asm!(
    // Saves everything to the state at \\n without changing anything but flags.
    ".macro SKEP_TEST_SAVE n",
    "mov [rip + SKEP_TEST_STATES + 1152*\\n], rax",
    "mov [rip + SKEP_TEST_STATES + 1152*\\n + 8], rbx",
    "mov [rip + SKEP_TEST_STATES + 1152*\\n + 16], rcx",
    "mov [rip + SKEP_TEST_STATES + 1152*\\n + 24], rdx",
    "mov [rip + SKEP_TEST_STATES + 1152*\\n + 32], rsi",
    "mov [rip + SKEP_TEST_STATES + 1152*\\n + 40], rdi",
    "mov [rip + SKEP_TEST_STATES + 1152*\\n + 48], rbp",
    "mov [rip + SKEP_TEST_STATES + 1152*\\n + 64], r8",
    "mov [rip + SKEP_TEST_STATES + 1152*\\n + 72], r9",
    "mov [rip + SKEP_TEST_STATES + 1152*\\n + 80], r10",
    "mov [rip + SKEP_TEST_STATES + 1152*\\n + 88], r11",
    "mov [rip + SKEP_TEST_STATES + 1152*\\n + 96], r12",
    "mov [rip + SKEP_TEST_STATES + 1152*\\n + 104], r13",
    "mov [rip + SKEP_TEST_STATES + 1152*\\n + 112], r14",
    "mov [rip + SKEP_TEST_STATES + 1152*\\n + 120], r15",
    ".irp r,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
    "vmovups [rip + SKEP_TEST_STATES + 1152*\\n + 128 + 32*\\r], ymm\\r",
    ".endr",
    "fxsave64 [rip + SKEP_TEST_STATES + 1152*\\n + 640]",
    ".endm",
    ".macro SKEP_TEST_FILL seed",
    ".irp r,rbx,rcx,rdx,rsi,rdi,rbp,r8,r9,r10,r11,r12,r13,r14,r15,rax",
    "movabs \\r, 0x0123456789abcdef + \\seed * 0x1111111111",
    "add \\r, [rip + 9f]",
    "inc qword ptr [rip + 9f]",
    ".endr",
    ".irp r,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
    "vmovups ymm\\r, [rip + 8f + 8*\\r + \\seed]",
    ".endr",
    ".endm",
    ".text",
    ".globl skep_test_target",
    ".hidden skep_test_target",
    ".type skep_test_target,@function",
    "skep_test_target:",
    ".cfi_startproc",
    "SKEP_TEST_SAVE 1",
    "SKEP_TEST_FILL 3",
    "fld1",
    // The callee-saved ones back; rsp is as it was.
    "mov rbx, [rip + SKEP_TEST_STATES + 1152 + 8]",
    "mov rbp, [rip + SKEP_TEST_STATES + 1152 + 48]",
    "mov r12, [rip + SKEP_TEST_STATES + 1152 + 96]",
    "mov r13, [rip + SKEP_TEST_STATES + 1152 + 104]",
    "mov r14, [rip + SKEP_TEST_STATES + 1152 + 112]",
    "mov r15, [rip + SKEP_TEST_STATES + 1152 + 120]",
    "SKEP_TEST_SAVE 2",
    "ret",
    ".cfi_endproc",
    ".size skep_test_target, . - skep_test_target",
    ".globl skep_test_call",
    ".hidden skep_test_call",
    ".type skep_test_call,@function",
    "skep_test_call:",
    "push rbx",
    "push rbp",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "sub rsp, 8",
    "mov qword ptr [rip + 9f], 0",
    "finit",
    "fldpi",
    "fldl2e",
    "SKEP_TEST_FILL 1",
    "mov [rip + 7f], rsp",
    "call skep_test_target",
    "SKEP_TEST_SAVE 0",
    "sub rsp, [rip + 7f]",
    "mov [rip + SKEP_TEST_STATES + 56], rsp",
    "add rsp, [rip + 7f]",
    "finit",
    "vzeroupper",
    "add rsp, 8",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbp",
    "pop rbx",
    "ret",
    ".size skep_test_call, . - skep_test_call",
    ".data",
    ".p2align 6",
    "7: .quad 0",
    "9: .quad 0",
    "8:",
    ".set i, 1",
    ".rept 32",
    ".quad 0x9e3779b97f4a7c15 * i",
    ".set i, i + 1",
    ".endr",
    ".text",
);

unsafe extern "C" {
    fn skep_test_target();
    fn skep_test_call();
}

fn states() -> [State; 3] {
    // SAFETY: one test, one thread; the states are plain memory that the assembly fills.
    unsafe {
        skep_test_call();
        (&raw const SKEP_TEST_STATES).read()
    }
}

fn compare(hooked: &[State; 3], plain: &[State; 3], what: &str) {
    for (n, at) in ["after the call", "at entry", "at return"].iter().enumerate() {
        for r in 0..16 {
            assert_eq!(
                hooked[n].general[r], plain[n].general[r],
                "{what}: general register {r} {at}"
            );
            assert_eq!(hooked[n].vector[r], plain[n].vector[r], "{what}: vector register {r} {at}");
        }
        let different: Vec<_> =
            (0..512).filter(|i| hooked[n].legacy[*i] != plain[n].legacy[*i]).collect();
        assert!(different.is_empty(), "{what}: x87 or MXCSR {at}: bytes {different:?}");
    }
}

#[test]
fn every_register_survives_every_hook() {
    if !std::arch::is_x86_feature_detected!("avx") {
        return skep_testkit::skip("AVX");
    }
    let all = [Position::Entry, Position::Exit, Position::Session, Position::ModifyReturn];
    for positions in all.iter().map(std::slice::from_ref).chain([&all[..], &all[..3]]) {
        let hooks: Vec<Hook> = positions.iter().map(|p| Seen::leaked().hook(*p)).collect();
        check(&hooks, &format!("{positions:?}"));
    }
}

/// Compares the registers of a call with hooks to those of one without.
pub fn check(hooks: &[Hook], what: &str) {
    let engine = Engine::get().expect("engine");
    let f = own_function(skep_test_target as *const () as usize);
    // Twice: empty x87 registers keep what the last round left in them.
    states();
    let plain = states();
    assert_eq!(plain[0].general[..7], plain[2].general[..7]);
    let done = engine.attach(&[(&f, 1)], hooks);
    assert_eq!(done.results, [Ok(())]);
    compare(&states(), &plain, what);
    let _muted = skep_attach::mute();
    compare(&states(), &plain, &format!("{what}, muted"));
    drop(_muted);
    engine.detach(done.id).expect("attached");
    compare(&states(), &plain, &format!("{what}, detached"));
}
