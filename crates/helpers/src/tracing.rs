//! What a tracing program asks of its call: words of the frame around the context pointer.
//!
//! Most are inlined by the code generator; the functions here serve the interpreter and say the
//! same.

use skep_isa::ctx::{pt_regs, tracing as frame};

use super::{errno, fail};

/// Reads the frame word at `off` bytes from the context.
///
/// # Safety
/// `ctx` is the context a tracing or uprobe program was started with.
#[inline(always)]
unsafe fn word(ctx: u64, off: i32) -> u64 {
    // SAFETY: every such context has the hidden words below it.
    unsafe { (ctx as *const u64).byte_offset(off as isize).read_volatile() }
}

macro_rules! frame_words {
    ($($name:ident => $off:expr;)*) => {$(
        #[unsafe(link_section = ".text.skep_event")]
        pub(super) unsafe extern "C" fn $name(ctx: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
            // SAFETY: the verifier proved the argument to be the context.
            unsafe { word(ctx, $off) }
        }
    )*};
}

frame_words! {
    get_func_ip => frame::IP;
    get_attach_cookie => frame::COOKIE;
    get_func_arg_cnt => frame::NR_ARGS;
    session_is_return => frame::IS_RETURN;
    session_cookie => frame::SESSION;
    get_func_sp => frame::SP;
}

/// Stores argument `n`; `-EINVAL` when there are fewer.
#[unsafe(link_section = ".text.skep_event")]
pub(super) unsafe extern "C" fn get_func_arg(ctx: u64, n: u64, to: u64, _: u64, _: u64) -> u64 {
    let n = n & 0xffff_ffff;
    // SAFETY: the verifier proved `ctx` the context and `to` writable for eight bytes; n < nr_args
    // <= 12 words of the frame.
    unsafe {
        if n >= word(ctx, frame::NR_ARGS) {
            return fail(errno::EINVAL);
        }
        (to as *mut u64).write_volatile(word(ctx, (n * 8) as i32));
    }
    0
}

/// Stores the return value; `-EOPNOTSUPP` before the function has returned.
#[unsafe(link_section = ".text.skep_event")]
pub(super) unsafe extern "C" fn get_func_ret(ctx: u64, to: u64, _: u64, _: u64, _: u64) -> u64 {
    // SAFETY: as above; the return value stands behind the last argument.
    unsafe {
        if word(ctx, frame::IS_RETURN) == 0 {
            return fail(errno::EOPNOTSUPP);
        }
        let nr_args = word(ctx, frame::NR_ARGS);
        (to as *mut u64).write_volatile(word(ctx, (nr_args * 8) as i32));
    }
    0
}

/// Returns word `n` of the result, by the function's prototype; 0 before the function has returned.
#[unsafe(link_section = ".text.skep_event")]
pub(super) unsafe extern "C" fn get_func_ret_word(ctx: u64, n: u64, _: u64, _: u64, _: u64) -> u64 {
    // SAFETY: as above; there is one word more behind twelve arguments.
    unsafe {
        let at = word(ctx, frame::NR_ARGS).saturating_add(n);
        if word(ctx, frame::IS_RETURN) == 0 || at > frame::MAX_ARGS as u64 {
            return 0;
        }
        word(ctx, (at * 8) as i32)
    }
}

/// Returns the low half of vector register `n & 7`: at entry an argument that is a number with a
/// decimal point, at return such a result in register 0. Nothing on the way here has changed these
/// registers; where a program is interpreted, they are anybody's.
#[unsafe(link_section = ".text.skep_event")]
pub(super) unsafe extern "C" fn get_func_vector(_: u64, n: u64, _: u64, _: u64, _: u64) -> u64 {
    let value: u64;
    macro_rules! read {
        ($register:literal) => {
            // SAFETY: copies a register.
            unsafe {
                core::arch::asm!(concat!("movq {}, ", $register), out(reg) value,
                    options(nomem, nostack, preserves_flags))
            }
        };
    }
    match n & 7 {
        0 => read!("xmm0"),
        1 => read!("xmm1"),
        2 => read!("xmm2"),
        3 => read!("xmm3"),
        4 => read!("xmm4"),
        5 => read!("xmm5"),
        6 => read!("xmm6"),
        _ => read!("xmm7"),
    }
    value
}

/// Skips the function, which returns `rc` then; `-EOPNOTSUPP` at its return and in session programs.
/// Who started the program finds 1 in place of the session word, and the result in `ax`.
#[unsafe(link_section = ".text.skep_event")]
pub(super) unsafe extern "C" fn override_return(ctx: u64, rc: u64, _: u64, _: u64, _: u64) -> u64 {
    // SAFETY: the verifier proved `ctx` the context of a uprobe-style program: registers, with the
    // hidden words below, all of them a copy for this run.
    unsafe {
        if word(ctx, frame::IS_RETURN) != 0 || word(ctx, frame::SESSION) > 1 {
            return fail(errno::EOPNOTSUPP);
        }
        let ctx = ctx as *mut u64;
        ctx.byte_offset(frame::SESSION as isize).write_volatile(1);
        ctx.byte_add(pt_regs::AX as usize).write_volatile(rc);
    }
    0
}
