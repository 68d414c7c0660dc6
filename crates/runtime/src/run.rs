//! A compiled program as a hook: what stands between the trampoline and the program.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use skep_attach::DirectCall;
use skep_attach::frame::{CTX, Frame};
use skep_isa::ctx::{pt_regs, tracing as frame};
use skep_isa::helper::arguments;
use skep_isa::{HelperId, op};
use skep_maps::{Map, slots};
use skep_vm::{Code, CompileError, HelperCall};

use skep_store::link::{control, types::Layout};
use skep_store::prog::{OtherMap, Program, ProgramFile};

use crate::compile::compile;
use crate::helpers;
use crate::prepare::{NoHandler, expect_bad_loads};
use crate::tail::{Form, TailCalls};
use crate::vectors::keep_vectors;

/// A program compiled for this process, with all it needs to live. Links share it.
#[derive(Debug)]
pub(crate) struct Compiled {
    code: Code,
    wants_args: u8,
    /// Words of the frame that it reads, as bits, where that is known.
    reads: Option<u64>,
    /// Whoever takes elements out of its maps waits for its runs.
    waited_for: bool,
    /// The code has the addresses of these in it.
    _calls: Option<Box<TailCalls>>,
    _maps: Vec<Arc<Map>>,
    file: ProgramFile,
}

impl Compiled {
    /// Compiles a program for these maps.
    ///
    /// # Errors
    /// As `compile`, and when one of the maps is not what it should be.
    pub(crate) fn new(file: ProgramFile, maps: Vec<Arc<Map>>) -> Result<Self, ReadyError> {
        let program = file.program();
        let verified = program.with_maps(&maps)?;
        expect_bad_loads(program)?;
        let calls = TailCalls::of(verified, Form::Code, helpers::implementation);
        let code = compile(verified, calls.as_deref(), helpers::implementation)?;
        // The programs that tail calls lead to may read more.
        let read = if calls.is_some() { u32::MAX } else { program.ctx_read() };
        let wants_args =
            u8::try_from(read.div_ceil(8)).unwrap_or(u8::MAX).min(frame::MAX_ARGS as u8);
        Ok(Self {
            code,
            wants_args,
            reads: reads(program),
            waited_for: maps.iter().any(|map| map.is_waited_for()),
            _calls: calls,
            _maps: maps,
            file,
        })
    }

    /// Returns the program.
    pub(crate) fn program(&self) -> &Program {
        self.file.program()
    }
}

/// Finds the words of the frame that a tracing program reads, as bits; `None`: any.
fn reads(program: &Program) -> Option<u64> {
    let word = |offset: i32| offset.wrapping_add(CTX as i32).cast_unsigned() / 8;
    let args = program.ctx_read().div_ceil(8).min(frame::MAX_ARGS as u32 + 1);
    let mut out = ((1 << args) - 1) << word(0);
    for call in program.insns().iter().filter(|i| i.code == op::CALL && i.src() != op::PSEUDO_CALL)
    {
        let id = call.imm as HelperId;
        match helpers::implementation(program.prog_type(), id)?.how {
            HelperCall::LoadCtx(offset) => out |= 1_u64.checked_shl(word(offset))?,
            HelperCall::TailCall => return None,
            _ if arguments(id)?.take_context() => return None,
            _ => {}
        }
    }
    Some(out)
}

/// A program of a link, ready to run in this process.
#[derive(Debug)]
pub struct Running {
    entry: unsafe extern "C" fn(*mut u8) -> u64,
    /// The link's [`control::STATE`] word.
    state: *const AtomicU64,
    missed: *const AtomicU64,
    waited_for: bool,
    detached: AtomicBool,
    detach: DetachFn,
    compiled: Arc<Compiled>,
    _control: Arc<Map>,
}

/// Takes out the hooks of the link that a program belongs to. It may use vector registers.
pub type DetachFn = unsafe extern "C" fn(*const Running);

// SAFETY: the code is immutable, and the state word is an atomic in a mapping that `_control`
// keeps.
unsafe impl Send for Running {}
// SAFETY: as above.
unsafe impl Sync for Running {}

/// Tells why a program cannot be made ready.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadyError {
    /// It is given other maps than those it was verified with.
    #[error(transparent)]
    Maps(#[from] OtherMap),
    /// Its loads cannot be watched.
    #[error(transparent)]
    Loads(#[from] NoHandler),
    /// It uses an instruction or helper that this process cannot provide.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// Its link's control map is not one.
    #[error("the link's control map is no array of {} words that can be written", control::WORDS)]
    Control,
}

impl Running {
    /// Returns the program.
    pub(crate) fn program(&self) -> &Program {
        self.compiled.program()
    }

    /// Makes a program of a link ready. `detach` takes the link's hooks out once the control map
    /// says that it is off.
    ///
    /// # Errors
    /// When the map is no control map.
    pub(crate) fn new(
        compiled: Arc<Compiled>,
        control_map: Arc<Map>,
        detach: DetachFn,
    ) -> Result<Self, ReadyError> {
        if !control::is_control_map(&control_map) {
            return Err(ReadyError::Control);
        }
        let state = std::ptr::from_ref(control::word(&control_map, control::STATE));
        let missed = std::ptr::from_ref(control::word(&control_map, control::MISSED));
        Ok(Self {
            entry: compiled.code.entry(),
            state,
            missed,
            waited_for: compiled.waited_for,
            detached: AtomicBool::new(false),
            detach,
            compiled,
            _control: control_map,
        })
    }

    /// Returns the link's [`control::MISSED`] words.
    pub(crate) fn missed(&self) -> *const AtomicU64 {
        self.missed
    }

    /// Returns how many argument words the program reads at most.
    pub(crate) fn wants_args(&self) -> u8 {
        self.compiled.wants_args
    }

    /// Describes what code may call instead of [`tracing`] or [`modify_return`].
    pub(crate) fn direct(&self) -> Option<DirectCall> {
        if self.waited_for {
            return None;
        }
        let (word, offset) = slots::owner_words()?;
        Some(DirectCall {
            run: self.entry,
            changes: self.compiled.code.changes(),
            reads: self.compiled.reads?,
            word: (self.state, control::ON as u8),
            thread_word: Some((word, offset)),
        })
    }

    /// Lets another event try what [`detach`](Self::detach) could not do now.
    pub(crate) fn detach_later(&self) {
        self.detached.store(false, Relaxed);
    }

    /// Tells whether the link is on.
    pub(crate) fn is_on(&self) -> bool {
        // SAFETY: the word lives as long as `_control`.
        unsafe { (*self.state).load(Relaxed) == control::ON }
    }

    /// Takes the link's hooks out, once, and returns `otherwise`.
    #[cold]
    #[inline(never)]
    extern "C" fn detach(&self, otherwise: u64) -> u64 {
        // A child of `vfork` runs in its parent's memory: the parent's own threads take the hooks
        // out.
        if skep_attach::owns_memory() && !self.detached.swap(true, Relaxed) {
            // SAFETY: saves what the traced function has in its vector registers around code that
            // may use them.
            unsafe { keep_vectors(self.detach, std::ptr::from_ref(self)) };
        }
        otherwise
    }

    /// Runs the program on a context, or returns `otherwise` when its link is off or the thread
    /// cannot have a slot.
    ///
    /// All calls are tail calls, so that the usual path needs no frame and saves no register.
    ///
    /// # Safety
    /// `ctx` is the kind of context the program was verified for.
    #[inline(always)]
    unsafe fn run(&self, ctx: *mut u8, otherwise: u64) -> u64 {
        // SAFETY: the word lives as long as `_control`.
        if unsafe { (*self.state).load(Relaxed) } != control::ON {
            return self.detach(otherwise);
        }
        if self.waited_for {
            // SAFETY: the caller's promise.
            return unsafe { self.run_waited_for(ctx, otherwise) };
        }
        if !slots::is_entered() {
            // SAFETY: the caller's promise.
            return unsafe { self.run_with_slot(ctx, otherwise) };
        }
        // SAFETY: the caller's promise.
        unsafe { (self.entry)(ctx) }
    }

    /// Counts a call without a run; `why` is the number of the counter.
    #[inline(always)]
    fn miss(&self, why: usize) {
        // SAFETY: the words live as long as `_control`, which has `control::REASONS` of them.
        unsafe { (*self.missed.wrapping_add(why)).fetch_add(1, Relaxed) };
    }

    /// Runs the program on a thread that has no slot of its own.
    #[cold]
    #[inline(never)]
    unsafe extern "C" fn run_with_slot(&self, ctx: *mut u8, otherwise: u64) -> u64 {
        // SAFETY: the caller's promise.
        unsafe { self.run_waited_for(ctx, otherwise) }
    }

    /// Runs the program and tells its beginning and end to whoever waits for them.
    #[inline(never)]
    unsafe extern "C" fn run_waited_for(&self, ctx: *mut u8, otherwise: u64) -> u64 {
        // A child of `vfork` shares the thread-local word that keeps the slot: one taken in its
        // name would look like a dead thread's when it is gone, while its parent runs on
        // it.
        if !slots::is_entered() && !skep_attach::owns_memory() {
            self.miss(skep_attach::Missed::Thread as usize);
            return otherwise;
        }
        let entered = slots::enter();
        if entered.is_refused() {
            // Finding out where we are takes system calls.
            let outside = skep_sys::sandbox::may_call_system() && skep_maps::stays_out();
            self.miss(if outside { control::OTHER_NAMESPACE } else { control::NO_SLOT });
            slots::exit(entered);
            return otherwise;
        }
        // SAFETY: the caller's promise.
        let r = unsafe { (self.entry)(ctx) };
        slots::exit(entered);
        r
    }
}

/// A session's answer for "do not run me at return"; others do not mind.
const NO_RETURN: u64 = 1;
/// A `fmod_ret` program's answer for "nothing to change".
const RUN_THE_FUNCTION: u64 = 0;

/// Runs a tracing program (fentry and its like): the frame is its context.
#[unsafe(link_section = ".text.skep_event")]
pub(crate) unsafe extern "C" fn tracing(ctx: *mut u64, data: *const ()) -> u64 {
    // SAFETY: `data` is the `Running` that the hook was attached with, and `ctx` the frame of the
    // call.
    unsafe { (*data.cast::<Running>()).run(ctx.cast(), NO_RETURN) }
}

/// Runs a session program at the entry of a function that has no run at its return. The frame of an
/// entry hook has no session word; the program gets one that lasts as long as this run.
#[unsafe(link_section = ".text.skep_event")]
pub(crate) unsafe extern "C" fn session_at_entry(ctx: *mut u64, data: *const ()) -> u64 {
    let mut word = 0_u64;
    // SAFETY: the word with the session word's address lies in the frame that `ctx` points into,
    // and nobody else uses it while a hook runs; the next hook of the frame finds 0 there
    // again. `data` as in `tracing`.
    unsafe {
        let session = ctx.byte_offset(frame::SESSION as isize);
        session.write(&raw mut word as u64);
        let r = (*data.cast::<Running>()).run(ctx.cast(), NO_RETURN);
        session.write(0);
        r
    }
}

/// Runs a `fmod_ret` program.
#[unsafe(link_section = ".text.skep_event")]
pub(crate) unsafe extern "C" fn modify_return(ctx: *mut u64, data: *const ()) -> u64 {
    // SAFETY: as above.
    unsafe { (*data.cast::<Running>()).run(ctx.cast(), RUN_THE_FUNCTION) }
}

/// A program on functions whose context is made for them: their words are not where the frame has
/// them, or the program reads a result before there is one.
#[derive(Debug)]
pub(crate) struct Shown {
    running: Arc<Running>,
    /// How many of `words` are arguments.
    nr_args: u64,
    /// Which word of the frame each word is; the words of the result follow those of the
    /// arguments.
    words: [u8; frame::MAX_ARGS + 1],
    len: usize,
}

/// In [`Shown::words`]: a word of no general register.
const NOTHING: u8 = 0xff;
/// In [`Shown::words`]: rax at return, and 0 before.
const RAX: u8 = 0xf0;
/// In [`Shown::words`]: rdx at return, and 0 before.
const RDX: u8 = 0xf1;

impl Shown {
    /// Prepares what a layout says.
    pub(crate) fn new(running: Arc<Running>, layout: &Layout) -> Self {
        let ret = layout.ret.iter().map(|w| match w {
            0 => RAX,
            1 => RDX,
            _ => NOTHING,
        });
        let mut words = [NOTHING; frame::MAX_ARGS + 1];
        let args = layout
            .words
            .iter()
            .map(|w| if usize::from(*w) < frame::MAX_ARGS { *w } else { NOTHING });
        let given: Vec<u8> = args.chain(ret).take(words.len()).collect();
        words.iter_mut().zip(&given).for_each(|(to, from)| *to = *from);
        Self {
            running,
            nr_args: layout.words.len().min(frame::MAX_ARGS) as u64,
            words,
            len: given.len(),
        }
    }
}

/// Runs a tracing program on a copy of the frame in which the words stand as the function's
/// prototype has them.
#[unsafe(link_section = ".text.skep_event")]
pub(crate) unsafe extern "C" fn shown(ctx: *mut u64, data: *const ()) -> u64 {
    // SAFETY: `data` is the `Shown` that the hook was attached with, and `ctx` the frame of the
    // call.
    unsafe { show(ctx, data, NO_RETURN) }
}

/// As [`shown`], for a `fmod_ret` program.
#[unsafe(link_section = ".text.skep_event")]
pub(crate) unsafe extern "C" fn shown_modify_return(ctx: *mut u64, data: *const ()) -> u64 {
    // SAFETY: as above.
    unsafe { show(ctx, data, RUN_THE_FUNCTION) }
}

/// # Safety
/// As of a hook's code.
#[inline(always)]
unsafe fn show(ctx: *mut u64, data: *const (), otherwise: u64) -> u64 {
    const FRAME: usize = size_of::<Frame>() / 8;
    let mut copy = [const { std::mem::MaybeUninit::<u64>::uninit() }; FRAME];
    let base = copy.as_mut_ptr().cast::<u64>();
    // SAFETY: the frame is alive for this call, up to `at_return` at entry and with it at return,
    // and `copy` has room for all of it. Indexes of arguments are below MAX_ARGS + 1, those of
    // frame words below MAX_ARGS (`new`). Volatile, so that no call to memcpy comes of it.
    // `data` is the hook's `Shown`.
    unsafe {
        let this = &*data.cast::<Shown>();
        let f = Frame::of(ctx);
        let from = std::ptr::from_ref(f).cast::<u64>();
        let regs = f.at_return();
        let there = if regs.is_some() { FRAME } else { FRAME - AT_RETURN };
        let mut i = 0;
        while i < there {
            base.add(i).write_volatile(from.add(i).read_volatile());
            i += 1;
        }
        let args = base.byte_add(CTX);
        // What `bpf_get_func_ret` reads, also of functions that are said to return nothing.
        args.add(this.nr_args as usize).write_volatile(if regs.is_some() { f.rax } else { 0 });
        let mut i = 0;
        while i < this.len {
            let word = match (*this.words.as_ptr().add(i), regs) {
                (NOTHING, _) | (RAX | RDX, None) => 0,
                (RAX, Some(_)) => f.rax,
                (RDX, Some(regs)) => regs[2],
                (n, _) => *f.args.as_ptr().add(n as usize),
            };
            args.add(i).write_volatile(word);
            i += 1;
        }
        args.byte_offset(frame::NR_ARGS as isize).write_volatile(this.nr_args);
        this.running.run(args.cast(), otherwise)
    }
}

/// The flags of a call, whose status bits mean nothing.
const FLAGS: u64 = 0x202;
const HIDDEN: usize = 5;
/// Words of registers at the end of a frame that are only there at return.
const AT_RETURN: usize = 6;
const WORDS: usize = HIDDEN + pt_regs::SIZE as usize / 8;

/// Runs a uprobe-style program: builds `struct pt_regs` from the frame, with the same hidden words
/// below it.
#[unsafe(link_section = ".text.skep_event")]
pub(crate) unsafe extern "C" fn registers(ctx: *mut u64, data: *const ()) -> u64 {
    // SAFETY: as below.
    unsafe { with_registers(ctx, data, FLAGS).0 }
}

/// Runs a uprobe-style program at a place inside a function: its registers are those that the
/// instruction finds, the flags too.
#[unsafe(link_section = ".text.skep_event")]
pub(crate) unsafe extern "C" fn registers_inside(ctx: *mut u64, data: *const ()) -> u64 {
    // SAFETY: as below, and the frame is one of such a place.
    unsafe { with_registers(ctx, data, Frame::of(ctx).flags_inside()).0 }
}

/// Runs a uprobe-style program that may skip the function (`bpf_override_return`), as a `fmod_ret`
/// program does.
#[unsafe(link_section = ".text.skep_event")]
pub(crate) unsafe extern "C" fn registers_override(ctx: *mut u64, data: *const ()) -> u64 {
    // SAFETY: as below; nobody else uses the frame's session word while a hook that may replace the
    // function runs.
    unsafe {
        let (_, result) = with_registers(ctx, data, FLAGS);
        let Some(result) = result else { return RUN_THE_FUNCTION };
        ctx.byte_offset(frame::SESSION as isize).write_volatile(1);
        result
    }
}

/// Runs a program; returns its result, and what the function is to return instead of running.
///
/// # Safety
/// As of a hook's code; `data` is a `Running`.
#[inline(always)]
unsafe fn with_registers(ctx: *mut u64, data: *const (), flags: u64) -> (u64, Option<u64>) {
    const USER_CS: u64 = 0x33;
    const USER_SS: u64 = 0x2b;
    let mut words = [const { std::mem::MaybeUninit::<u64>::uninit() }; WORDS];
    let base = words.as_mut_ptr().cast::<u64>();
    // SAFETY: all indexes below are smaller than WORDS; volatile stores, so that no call to memset
    // comes of it. The frame is alive for this call, and `data` is the hook's `Running`.
    unsafe {
        let f = Frame::of(ctx);
        let regs = base.add(HIDDEN);
        let put = |off: u32, v: u64| regs.byte_add(off as usize).write_volatile(v);
        let hide = |off: i32, v: u64| regs.byte_offset(off as isize).write_volatile(v);
        hide(frame::NR_ARGS, f.nr_args);
        hide(frame::IP, f.ip);
        hide(frame::COOKIE, f.cookie);
        hide(frame::IS_RETURN, f.is_return);
        hide(frame::SESSION, f.session);
        put(pt_regs::R15, f.r15);
        put(pt_regs::R14, f.r14);
        put(pt_regs::R13, f.r13);
        put(pt_regs::R12, f.r12);
        put(pt_regs::BP, f.rbp);
        put(pt_regs::BX, f.rbx);
        put(pt_regs::R11, f.r11);
        put(pt_regs::R10, f.r10);
        let [di, si, dx, cx, r8, r9, ..] = match f.at_return() {
            Some(&[a, b, c, d, e, g]) => [a, b, c, d, e, g],
            None => [f.args[0], f.args[1], f.args[2], f.args[3], f.args[4], f.args[5]],
        };
        put(pt_regs::R9, r9);
        put(pt_regs::R8, r8);
        put(pt_regs::AX, f.rax);
        put(pt_regs::CX, cx);
        put(pt_regs::DX, dx);
        put(pt_regs::SI, si);
        put(pt_regs::DI, di);
        put(pt_regs::ORIG_AX, u64::MAX);
        put(pt_regs::CS, USER_CS);
        put(pt_regs::SS, USER_SS);
        put(pt_regs::FLAGS, flags);
        if f.is_return == 0 {
            put(pt_regs::IP, f.ip);
            put(pt_regs::SP, f.rsp);
        } else {
            put(pt_regs::IP, f.return_address());
            put(pt_regs::SP, f.rsp.wrapping_add(8));
        }
        let r = (*data.cast::<Running>()).run(regs.cast(), NO_RETURN);
        let skips = regs.byte_offset(frame::SESSION as isize).read_volatile() == 1;
        (r, skips.then(|| regs.byte_add(pt_regs::AX as usize).read_volatile()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_attach::frame as theirs;

    #[test]
    fn the_frame_is_laid_out_as_programs_are_told() {
        assert_eq!(theirs::NR_ARGS, frame::NR_ARGS);
        assert_eq!(theirs::IP, frame::IP);
        assert_eq!(theirs::COOKIE, frame::COOKIE);
        assert_eq!(theirs::IS_RETURN, frame::IS_RETURN);
        assert_eq!(theirs::SESSION, frame::SESSION);
        assert_eq!(theirs::SP, frame::SP);
        assert_eq!(theirs::BP, frame::BP);
        assert_eq!(theirs::MAX_ARGS, frame::MAX_ARGS);
        assert_eq!(theirs::UNTYPED_ARGS, frame::UNTYPED_ARGS);
    }
}
