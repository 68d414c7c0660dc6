//! Test runs of programs whose context is a piece of memory: arguments, registers, records.

use skep_isa::ctx::{self, tracing as frame};

use super::{Errno, Input, Outcome, Runner, context};

/// Words below a tracing context (`isa::ctx::tracing`).
const HIDDEN: usize = 5;

/// Memory for a context, eight-byte aligned, with the words of a tracing frame below it.
struct Memory {
    words: Vec<u64>,
}

impl Memory {
    /// Makes a context of `size` bytes that begins with what is given.
    fn new(given: &[u8], size: usize) -> Self {
        let mut words = vec![0; HIDDEN + size.max(given.len()).div_ceil(8)];
        for (word, bytes) in words.iter_mut().skip(HIDDEN).zip(given.chunks(8)) {
            let mut whole = [0; 8];
            whole.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
            *word = u64::from_ne_bytes(whole);
        }
        Self { words }
    }

    /// Sets a word below the context.
    fn hide(&mut self, off: i32, value: u64) {
        let index = usize::try_from(off / 8 + HIDDEN as i32).ok();
        if let Some(word) = index.and_then(|i| self.words.get_mut(i)) {
            *word = value;
        }
    }

    /// Address of the context.
    fn ctx(&mut self) -> *mut u8 {
        self.words.as_mut_ptr().wrapping_add(HIDDEN).cast()
    }

    /// Copies the first bytes of the context out.
    fn bytes(&self, len: usize) -> Vec<u8> {
        let mut out: Vec<u8> = self.words.iter().skip(HIDDEN).flat_map(|w| w.to_ne_bytes()).collect();
        out.truncate(len);
        out
    }
}

/// Runs a raw tracepoint program: up to twelve argument words.
pub(super) fn raw_tracepoint(runner: &Runner, input: &Input<'_>) -> Result<Outcome, Errno> {
    let given = input.ctx.unwrap_or_default();
    let program = runner.program();
    let size = ctx::RAW_TRACEPOINT.size as usize;
    if input.data.is_some() || input.repeat != 0 || given.len() < program.ctx_read as usize || given.len() > size {
        return Err(Errno::EINVAL);
    }
    let mut memory = Memory::new(given, size);
    // SAFETY: the whole context is there.
    let (retval, duration_ns) = unsafe { runner.run(memory.ctx(), 1) }?;
    Ok(Outcome { retval, duration_ns, ..Outcome::default() })
}

/// Runs a `syscall` program, which changes its context in place.
pub(super) fn syscall(runner: &Runner, input: &Input<'_>) -> Result<Outcome, Errno> {
    let given = input.ctx.unwrap_or_default();
    let read = runner.program().ctx_read as usize;
    if input.data.is_some() || input.repeat != 0 || given.len() < read || given.len() > usize::from(u16::MAX) {
        return Err(Errno::EINVAL);
    }
    let mut memory = Memory::new(given, runner.ctx_size);
    // SAFETY: programs touch no context byte beyond those they were seen to (`ctx_size`), which are there.
    let (retval, duration_ns) = unsafe { runner.run(memory.ctx(), 1) }?;
    Ok(Outcome { retval, duration_ns, ctx_out: input.ctx.map(|given| memory.bytes(given.len())), ..Outcome::default() })
}

/// Runs a tracing program on arguments: words as the trampoline would show them, for programs at return with the return
/// value behind the last.
pub(super) fn tracing(runner: &Runner, input: &Input<'_>) -> Result<Outcome, Errno> {
    let program = runner.program();
    let at_return = program.attach_type.is_some_and(|a| a.name().contains("fexit") || a.name().contains("modify_return"));
    let size = ctx::TRACING.size as usize;
    let given = input.ctx.unwrap_or_default();
    if input.data.is_some() || given.len() > size || !given.len().is_multiple_of(8) {
        return Err(Errno::EINVAL);
    }
    let mut memory = Memory::new(given, size);
    let mut session = 0u64;
    let words = (given.len() / 8).saturating_sub(usize::from(at_return)).min(frame::MAX_ARGS);
    memory.hide(frame::NR_ARGS, words as u64);
    memory.hide(frame::IS_RETURN, u64::from(at_return));
    memory.hide(frame::SESSION, std::ptr::from_mut(&mut session).expose_provenance() as u64);
    // SAFETY: the whole frame is there, with the words below it; the session cookie is alive.
    let (retval, duration_ns) = unsafe { runner.run(memory.ctx(), input.repeat) }?;
    Ok(Outcome { retval, duration_ns, ..Outcome::default() })
}

/// Runs a probe on registers: `struct pt_regs`.
pub(super) fn kprobe(runner: &Runner, input: &Input<'_>) -> Result<Outcome, Errno> {
    memory_of(runner, input, ctx::PT_REGS.size as usize)
}

/// Runs a perf event program on `struct bpf_perf_event_data`.
pub(super) fn perf_event(runner: &Runner, input: &Input<'_>) -> Result<Outcome, Errno> {
    memory_of(runner, input, ctx::PERF_EVENT.size as usize)
}

/// Runs a tracepoint program on a record.
pub(super) fn record(runner: &Runner, input: &Input<'_>) -> Result<Outcome, Errno> {
    memory_of(runner, input, ctx::TRACEPOINT.size as usize)
}

/// Runs a program on memory of up to `size` bytes; what is not given is zero.
fn memory_of(runner: &Runner, input: &Input<'_>, size: usize) -> Result<Outcome, Errno> {
    if input.data.is_some() {
        return Err(Errno::EINVAL);
    }
    let given = match input.ctx {
        Some(given) if given.len() <= size => given.to_vec(),
        Some(given) => context(given, size)?,
        None => Vec::new(),
    };
    let mut memory = Memory::new(&given, size);
    // SAFETY: the whole context is there.
    let (retval, duration_ns) = unsafe { runner.run(memory.ctx(), input.repeat) }?;
    Ok(Outcome { retval, duration_ns, ..Outcome::default() })
}
