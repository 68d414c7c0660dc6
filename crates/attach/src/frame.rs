//! What a hook sees.
//!
//! The pointer that hooks get is `&frame.args[0]`; the words below it are the kernel's for
//! `ctx[-1]` and `ctx[-2]` and ours for the rest. The trampolines (`tramp/x64.s`) know these
//! offsets; a test compares them.
//!
//! ```text
//! ctx[-5]  address of the running hook's session word (0: not a session hook)
//! ctx[-4]  0 before the function, 1 after it
//! ctx[-3]  attach cookie of the running hook
//! ctx[-2]  address of the function
//! ctx[-1]  number of arguments n
//! ctx[0]   arguments: rdi rsi rdx rcx r8 r9, then words 7–12 from the stack if a hook of this function wants them
//! ctx[n]   after the function: its return value (rax)
//! ctx[13]  the other registers, see Frame
//! ```

/// Argument words in a frame.
pub const MAX_ARGS: usize = 12;
/// Arguments of a function whose prototype is not known.
pub const UNTYPED_ARGS: usize = 6;
/// Bytes from [`Frame::session`] to [`Frame::args`]: where `ctx` points inside a frame.
pub const CTX: usize = 40;
/// Offset from `ctx` of the number of arguments.
pub const NR_ARGS: i32 = -8;
/// Offset from `ctx` of the function's address.
pub const IP: i32 = -16;
/// Offset from `ctx` of the attach cookie.
pub const COOKIE: i32 = -24;
/// Offset from `ctx` of the word that is 1 after the function.
pub const IS_RETURN: i32 = -32;
/// Offset from `ctx` of the address of the session word.
pub const SESSION: i32 = -40;
/// Offset from `ctx` of the stack pointer when the function was called.
pub const SP: i32 = (std::mem::offset_of!(Frame, rsp) - CTX) as i32;
/// Offset from `ctx` of the frame pointer when the function was called.
pub const BP: i32 = (std::mem::offset_of!(Frame, rbp) - CTX) as i32;
/// Session hooks that fit on one function.
pub const MAX_SESSIONS: usize = 4;

/// One call of a hooked function, on the stack of the calling thread.
#[repr(C)]
#[derive(Debug)]
pub struct Frame {
    /// Address of the running hook's session word, or 0.
    pub session: u64,
    /// 0 before the function, 1 after it.
    pub is_return: u64,
    /// Attach cookie of the running hook.
    pub cookie: u64,
    /// Address of the function, `endbr64` included.
    pub ip: u64,
    /// Number of arguments shown; the return value stands behind the last one.
    pub nr_args: u64,
    /// Argument words, and room for the return value.
    pub args: [u64; MAX_ARGS + 1],
    /// rax at entry (variadic functions: the number of vector registers used); after the function:
    /// its return value.
    pub rax: u64,
    /// r10 at entry (the static chain); after the function: r10 then.
    pub r10: u64,
    /// r11 at entry; after the function: r11 then.
    pub r11: u64,
    /// rbx at entry, and again after the function.
    pub rbx: u64,
    /// rbp, likewise.
    pub rbp: u64,
    /// r12, likewise.
    pub r12: u64,
    /// r13, likewise.
    pub r13: u64,
    /// r14, likewise.
    pub r14: u64,
    /// r15, likewise.
    pub r15: u64,
    /// rsp at function entry: the address of the return address.
    pub rsp: u64,
    /// rdi rsi rdx rcx r8 r9 as the function left them. Only there when `is_return` is 1; inside a
    /// function the first word is the flags.
    at_return: [u64; 6],
}

impl Frame {
    /// Finds the frame around the pointer a hook was given.
    ///
    /// # Safety
    ///
    /// `ctx` is what the engine handed to a hook, and that hook has not returned.
    #[must_use]
    pub unsafe fn of<'a>(ctx: *const u64) -> &'a Self {
        // SAFETY: by the caller's promise `ctx` points CTX bytes into a live frame.
        unsafe { &*ctx.byte_sub(CTX).cast::<Self>() }
    }

    /// Reads the return address of the call.
    #[must_use]
    pub fn return_address(&self) -> u64 {
        // SAFETY: `rsp` is the stack pointer at function entry, which points at the return address
        // for as long as the call lasts, and the frame lives no longer than the call.
        unsafe { (self.rsp as *const u64).read_volatile() }
    }

    /// Gives the flags of a place inside a function ([`Function::at`](crate::sites::Function::at)), where
    /// `rsp` is the stack pointer and `ip` the address of the instruction.
    ///
    /// # Safety
    ///
    /// The frame is one of such a place.
    #[must_use]
    pub unsafe fn flags_inside(&self) -> u64 {
        self.at_return[0]
    }

    /// Gives rdi, rsi, rdx, rcx, r8 and r9 as the function left them; `None` before the function.
    #[must_use]
    pub fn at_return(&self) -> Option<&[u64; 6]> {
        (self.is_return != 0).then_some(&self.at_return)
    }
}
