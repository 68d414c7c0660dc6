//! Calls out of programs: arguments, preserved registers, alignment, vectors, callbacks, distance.
#![cfg(target_arch = "x86_64")]

mod suite;

use std::arch::asm;

use skep_isa::text;
use skep_vm::{Code, Env, HelperCall, HelperFn, HelperImpl};

const DIGITS: u32 = 0x9000;
const FAR: u32 = 0x9001;
const CLOBBER: u32 = 0x9002;
const REPEAT: u32 = 0x9003;
const CTX: u32 = 0x9004;
const TRASH: u32 = 0x9005;

/// Writes its arguments as decimal digits.
unsafe extern "C" fn digits(a: u64, b: u64, c: u64, d: u64, e: u64) -> u64 {
    a * 10000 + b * 1000 + c * 100 + d * 10 + e
}

unsafe extern "C" {
    /// A function of another module, far from this test's code.
    fn labs(v: i64) -> i64;
}

unsafe extern "C" fn clobber(a: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    // `movaps` through the stack pointer also faults when the stack is not aligned.
    // SAFETY: clears all vector registers, as a helper may, and stores below nothing that is in
    // use.
    unsafe {
        asm!(
            "sub rsp, 256", "movaps [rsp], xmm0", "add rsp, 256",
            "xorps xmm0, xmm0", "xorps xmm1, xmm1", "xorps xmm2, xmm2", "xorps xmm3, xmm3",
            "xorps xmm4, xmm4", "xorps xmm5, xmm5", "xorps xmm6, xmm6", "xorps xmm7, xmm7",
            "xorps xmm8, xmm8", "xorps xmm9, xmm9", "xorps xmm10, xmm10", "xorps xmm11, xmm11",
            "xorps xmm12, xmm12", "xorps xmm13, xmm13", "xorps xmm14, xmm14", "xorps xmm15, xmm15",
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
            out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _, out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
        );
    }
    a + 1
}

/// Calls back `n` times with the round and a pointer, until the callback returns 1.
unsafe extern "C" fn repeat(n: u64, callback: u64, data: u64, _: u64, _: u64) -> u64 {
    // SAFETY: the program passes the address of one of its functions.
    let f: HelperFn = unsafe { std::mem::transmute(callback as *const ()) };
    for round in 0..n {
        // SAFETY: as above, with the arguments such a callback takes.
        if unsafe { f(round, data, 0, 0, 0) } == 1 {
            return round + 1;
        }
    }
    n
}

/// Leaves garbage in every register that a callee may change.
unsafe extern "C" fn trash(_: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    // SAFETY: only caller-saved registers.
    unsafe {
        asm!("mov rdi, -1", "mov rsi, -1", "mov rdx, -1", "mov rcx, -1", "mov r8, -1", "mov r9, -1", "mov r10, -1", "mov r11, -1",
             out("rdi") _, out("rsi") _, out("rdx") _, out("rcx") _, out("r8") _, out("r9") _, out("r10") _, out("r11") _);
    }
    0
}

fn helpers(id: u32) -> Option<HelperImpl> {
    // SAFETY: one argument is read of the five, the result is in rax.
    let labs: HelperFn = unsafe { std::mem::transmute(labs as unsafe extern "C" fn(i64) -> i64) };
    Some(match id {
        DIGITS => HelperImpl::plain(digits),
        FAR => HelperImpl::plain(labs),
        CLOBBER => HelperImpl { func: clobber, how: HelperCall::SaveVectors },
        REPEAT => HelperImpl::plain(repeat),
        CTX => HelperImpl { func: trash, how: HelperCall::LoadCtx(-16) },
        TRASH => HelperImpl::plain(trash),
        _ => return None,
    })
}

const ENV: Env<'static> = Env { maps: &[], helper: &helpers };

fn run(asm: &str, args: [u64; 5]) -> Vec<u64> {
    let insns = text::assemble(asm).unwrap_or_else(|e| panic!("{asm}: {e}"));
    suite::ENGINES
        .iter()
        .map(|e| suite::run_in(e, &insns, &ENV, args).unwrap_or_else(|m| panic!("{e}: {m}")))
        .collect()
}

#[test]
fn arguments_arrive_in_order_and_r6_to_r9_stay() {
    let asm = "mov r6, 6\nmov r7, 7\nmov r8, 8\nmov r9, 9\nstdw [r10-8], 100000\ncall 0x9005\nmov r1, 1\nmov r2, 2\nmov r3, 3\nmov r4, 4\n\
               mov r5, 5\ncall 0x9000\nldxdw r1, [r10-8]\nadd r0, r1\nmul r6, r7\nmul r6, r8\nmul r6, r9\nadd r0, r6\nexit";
    assert_eq!(run(asm, [0; 5]), [12345 + 100_000 + 6 * 7 * 8 * 9; 3]);
}

#[test]
fn near_and_far_helpers_are_both_reached() {
    let asm = "mov r6, r1\nmov r1, 0\nmov r2, 0\nmov r3, 0\nmov r4, 4\nmov r5, 2\ncall 0x9000\nmov r7, r0\nmov r1, r6\ncall 0x9001\nadd r0, r7\nexit";
    assert_eq!(run(asm, [-1000i64 as u64, 0, 0, 0, 0]), [1042; 3]);
}

#[test]
fn a_call_between_arithmetic_and_its_test_loses_the_flags() {
    for helper in [FAR, TRASH, CLOBBER, CTX] {
        let asm = format!(
            "mov r7, r1\nmov r6, 1\nsub r6, 1\nmov r1, r7\ncall {helper}\njeq r6, 0, ok\nmov r0, 1\nexit\nok: mov r0, 2\nexit"
        );
        let words = [0u64; 4];
        assert_eq!(run(&asm, [words.as_ptr() as u64 + 16, 0, 0, 0, 0]), [2; 3]);
        let asm = format!(
            "mov r7, r1\nmov r1, r7\nmov r6, 1\nsub r6, 1\ncall {helper}\njne r6, 0, bad\nmov r0, 2\nexit\nbad: mov r0, 1\nexit"
        );
        assert_eq!(run(&asm, [words.as_ptr() as u64 + 16, 0, 0, 0, 0]), [2; 3]);
    }
}

#[test]
fn the_stack_is_aligned_whatever_the_frame_holds() {
    let mut saves = String::new();
    for n in 6..=9 {
        for stack in
            ["", "stdw [r10-8], 1\n", "stdw [r10-16], 1\n", "stw [r10-500], 1\nmov r2, r10\n"]
        {
            let asm = format!("{saves}{stack}mov r1, 41\ncall 0x9002\nexit");
            assert_eq!(run(&asm, [0; 5]), [42; 3], "{asm}");
            let nested = format!(
                "{saves}{stack}call local f\nexit\nf: {saves}mov r1, 41\ncall 0x9002\nexit"
            );
            assert_eq!(run(&nested, [0; 5]), [42; 3], "{nested}");
        }
        saves.push_str(&format!("mov r{n}, {n}\n"));
    }
}

#[test]
fn callbacks_run_as_functions_of_the_program() {
    let sum = "mov r1, 10\nlddw r2, func cb\nstdw [r10-8], 0\nmov r3, r10\nadd r3, -8\ncall 0x9003\nldxdw r1, [r10-8]\nmul r0, 1000\nadd r0, r1\nexit\n\
               cb: mov r6, r1\nldxdw r3, [r2]\nadd r3, r6\nstxdw [r2], r3\nmov r0, 0\njne r6, 6, exit\nmov r0, 1\nexit";
    assert_eq!(run(sum, [0; 5]), [7021; 3]);
    let two = "mov r1, 3\nlddw r2, func a\nmov r3, 0\ncall 0x9003\nmov r6, r0\nmov r1, 3\nlddw r2, func b\nmov r3, 0\ncall 0x9003\nlsh r0, 8\nor r0, r6\nexit\n\
               a: mov r0, 0\nexit\nb: mov r0, 1\nexit";
    assert_eq!(run(two, [0; 5]), [0x103; 3]);
}

#[test]
fn context_words_need_no_call() {
    let words = [11u64, 22, 33];
    let args = [words.as_ptr() as u64 + 16, 0, 0, 0, 0];
    assert_eq!(run("call 0x9004\nexit", args), [11; 3]);
    assert_eq!(run("mov r6, r1\nmov r1, 0\nadd r1, r6\ncall 0x9004\nexit", args), [11; 3]);
}

#[test]
fn may_goto_rounds_are_per_call() {
    let asm = "call local f\nmov r6, r0\ncall local f\nadd r0, r6\nexit\nf: mov r0, 0\nl: may_goto e\nadd r0, 1\nja l\ne: may_goto d\nadd r0, 1\nd: exit";
    assert_eq!(run(asm, [0; 5]), [2 * skep_vm::MAY_GOTO_ROUNDS; 3]);
}

/// Calls `entry` with all vector registers set and returns what they are after.
fn vectors_after(
    entry: unsafe extern "C" fn(*mut u8) -> u64,
    before: &[[u64; 2]; 16],
) -> ([[u64; 2]; 16], u64) {
    let mut after = [[0u64; 2]; 16];
    let r0: u64;
    // SAFETY: the program is a C function; everything it may change is declared.
    unsafe {
        asm!(
            "movups xmm0, [r12]", "movups xmm1, [r12+16]", "movups xmm2, [r12+32]", "movups xmm3, [r12+48]",
            "movups xmm4, [r12+64]", "movups xmm5, [r12+80]", "movups xmm6, [r12+96]", "movups xmm7, [r12+112]",
            "movups xmm8, [r12+128]", "movups xmm9, [r12+144]", "movups xmm10, [r12+160]", "movups xmm11, [r12+176]",
            "movups xmm12, [r12+192]", "movups xmm13, [r12+208]", "movups xmm14, [r12+224]", "movups xmm15, [r12+240]",
            "call rax",
            "movups [r13], xmm0", "movups [r13+16], xmm1", "movups [r13+32], xmm2", "movups [r13+48], xmm3",
            "movups [r13+64], xmm4", "movups [r13+80], xmm5", "movups [r13+96], xmm6", "movups [r13+112], xmm7",
            "movups [r13+128], xmm8", "movups [r13+144], xmm9", "movups [r13+160], xmm10", "movups [r13+176], xmm11",
            "movups [r13+192], xmm12", "movups [r13+208], xmm13", "movups [r13+224], xmm14", "movups [r13+240], xmm15",
            in("r12") before.as_ptr(), in("r13") after.as_mut_ptr(), inout("rax") entry as *const () => r0,
            clobber_abi("C"),
        );
    }
    (after, r0)
}

#[test]
fn vector_registers_survive_a_marked_helper() {
    let mut before = [[0u64; 2]; 16];
    for (n, v) in before.iter_mut().enumerate() {
        *v = [0x0101_0101_0101_0101 * (n as u64 + 1), !(n as u64)];
    }
    let insns = text::assemble("mov r1, 1\ncall 0x9002\nmov r1, r0\ncall 0x9002\nexit").unwrap();
    // SAFETY: the helper takes any number.
    let code = unsafe { Code::compile(&insns, &ENV) }.unwrap();
    assert_eq!(vectors_after(code.entry(), &before), (before, 3));
}
