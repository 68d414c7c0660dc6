//! The loads that may fail, for x86-64.
//!
//! Between `skep_vm_fault_begin` and `skep_vm_fault_end` no instruction touches the stack, so
//! continuing at `skep_vm_fault_failed` is a return with -1 from whichever function faulted. That
//! label must stay outside the range's loads but may lie anywhere; the two functions must stay
//! inside it.

use std::arch::global_asm;

use skep_isa::op;

global_asm!(
    ".pushsection .text.skep_vm_fault,\"ax\",@progbits",
    ".p2align 4",
    ".hidden skep_vm_fault_begin",
    ".hidden skep_vm_fault_copy",
    ".hidden skep_vm_fault_str",
    ".hidden skep_vm_fault_end",
    ".hidden skep_vm_fault_failed",
    ".globl skep_vm_fault_begin, skep_vm_fault_copy, skep_vm_fault_str, skep_vm_fault_end, skep_vm_fault_failed",
    "skep_vm_fault_begin:",
    // rdi to, rsi from, rdx bytes. Starting a string move costs more than eight words.
    ".type skep_vm_fault_copy, @function",
    "skep_vm_fault_copy:",
    ".cfi_startproc",
    "mov rcx, rdx",
    "cmp rdx, 64",
    "ja 5f",
    "shr rcx, 3",
    "jz 3f",
    "2: mov rax, [rsi]",
    "mov [rdi], rax",
    "add rsi, 8",
    "add rdi, 8",
    "dec rcx",
    "jnz 2b",
    "3: and edx, 7",
    "jz 6f",
    "4: movzx eax, byte ptr [rsi]",
    "mov [rdi], al",
    "inc rsi",
    "inc rdi",
    "dec edx",
    "jnz 4b",
    "jmp 6f",
    "5: rep movsb",
    "6: xor eax, eax",
    "ret",
    ".cfi_endproc",
    ".size skep_vm_fault_copy, . - skep_vm_fault_copy",
    // rdi to, rsi from, rdx bytes at most; returns bytes with the NUL.
    ".p2align 4",
    ".type skep_vm_fault_str, @function",
    "skep_vm_fault_str:",
    ".cfi_startproc",
    "xor eax, eax",
    "test rdx, rdx",
    "jz 4f",
    "2: movzx ecx, byte ptr [rsi + rax]",
    "mov [rdi + rax], cl",
    "inc rax",
    "test cl, cl",
    "jz 4f",
    "cmp rax, rdx",
    "jb 2b",
    "mov byte ptr [rdi + rdx - 1], 0",
    "4: ret",
    ".cfi_endproc",
    ".size skep_vm_fault_str, . - skep_vm_fault_str",
    "skep_vm_fault_end:",
    ".type skep_vm_fault_failed, @function",
    "skep_vm_fault_failed:",
    ".cfi_startproc",
    "mov rax, -1",
    "ret",
    ".cfi_endproc",
    ".size skep_vm_fault_failed, . - skep_vm_fault_failed",
    // Loads of generated code: address and value in r10.
    ".p2align 4",
    ".hidden skep_vm_probe_b, skep_vm_probe_h, skep_vm_probe_w, skep_vm_probe_d, skep_vm_probe_failed",
    ".globl skep_vm_probe_b, skep_vm_probe_h, skep_vm_probe_w, skep_vm_probe_d, skep_vm_probe_failed",
    ".type skep_vm_probe_b, @function",
    "skep_vm_probe_b:",
    ".cfi_startproc",
    "movzx r10d, byte ptr [r10]",
    "ret",
    "skep_vm_probe_h: movzx r10d, word ptr [r10]",
    "ret",
    "skep_vm_probe_w: mov r10d, [r10]",
    "ret",
    "skep_vm_probe_d: mov r10, [r10]",
    "ret",
    "skep_vm_probe_failed: xor r10d, r10d",
    "ret",
    ".cfi_endproc",
    ".size skep_vm_probe_b, . - skep_vm_probe_b",
    ".popsection",
);

unsafe extern "C" {
    safe static skep_vm_fault_begin: u8;
    safe static skep_vm_fault_end: u8;
    safe static skep_vm_fault_failed: u8;
    safe static skep_vm_probe_b: u8;
    safe static skep_vm_probe_h: u8;
    safe static skep_vm_probe_w: u8;
    safe static skep_vm_probe_d: u8;
    safe static skep_vm_probe_failed: u8;
    fn skep_vm_fault_copy(dst: *mut u8, src: u64, len: usize) -> usize;
    fn skep_vm_fault_str(dst: *mut u8, src: u64, size: usize) -> isize;
}

/// Returns 0, or anything else on a fault.
pub(super) unsafe fn copy(dst: *mut u8, src: u64, len: usize) -> usize {
    // SAFETY: the assembly writes at most `len` bytes at `dst`, which the caller vouches for.
    unsafe { skep_vm_fault_copy(dst, src, len) }
}

/// Returns the bytes copied, or -1 on a fault.
pub(super) unsafe fn copy_str(dst: *mut u8, src: u64, size: usize) -> isize {
    // SAFETY: the assembly writes at most `size` bytes at `dst`, which the caller vouches for.
    unsafe { skep_vm_fault_str(dst, src, size) }
}

pub(super) fn probe(size: u8) -> u64 {
    let code: &'static u8 = match size {
        op::B => &skep_vm_probe_b,
        op::H => &skep_vm_probe_h,
        op::W => &skep_vm_probe_w,
        _ => &skep_vm_probe_d,
    };
    std::ptr::from_ref(code) as u64
}

pub(super) fn fixup(ip: u64) -> Option<u64> {
    let at = |s: &'static u8| std::ptr::from_ref(s) as u64;
    if ip >= at(&skep_vm_probe_b) && ip < at(&skep_vm_probe_failed) {
        return Some(at(&skep_vm_probe_failed));
    }
    let inside = ip >= at(&skep_vm_fault_begin) && ip < at(&skep_vm_fault_end);
    if inside { Some(at(&skep_vm_fault_failed)) } else { None }
}
