//! Keeping the traced function's vector registers around code that may use them.

use std::arch::asm;

/// Calls `f` with all that XSAVE knows of the vector, mask and x87 state kept.
///
/// Saving, the call and restoring are one block of assembly: between several, the compiler could
/// put code that uses vector registers.
///
/// # Safety
/// `f` may be called with `arg` here.
pub(crate) unsafe fn keep_vectors<T>(f: unsafe extern "C" fn(*const T), arg: *const T) {
    // 4 KiB: more than any state component layout of today (AVX-512 ends at 2,696 bytes; AMX tiles
    // are not saved, no code here touches them).
    const MASK: u32 = 0xe7;
    #[repr(C, align(64))]
    struct Area([u64; 512]);
    let mut area = std::mem::MaybeUninit::<Area>::uninit();
    let at = area.as_mut_ptr().cast::<u64>();
    for i in 64..72 {
        // SAFETY: inside the area; the header must be zero before the first XSAVE.
        unsafe { at.add(i).write_volatile(0) };
    }
    // SAFETY: the area is large enough and aligned for the components asked for; the processor has
    // XSAVE wherever Linux offers AVX, and the mask is cut to what is enabled by the
    // instruction itself. The stack is aligned for a call, as the block may use it; the call keeps
    // r12, and all that it may change is named. `f` may be called with `arg`, by the caller's
    // promise.
    unsafe {
        asm!(
            "mov eax, {mask}",
            "xor edx, edx",
            "xsave64 [r12]",
            "call r13",
            "mov eax, {mask}",
            "xor edx, edx",
            "xrstor64 [r12]",
            mask = const MASK,
            in("r12") at,
            in("r13") f,
            in("rdi") arg,
            clobber_abi("C"),
        );
    }
}
