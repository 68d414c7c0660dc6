//! Test runs of programs whose context is a piece of memory: arguments, registers, records.

use std::ops::RangeInclusive;

use skep_attach::frame::Frame;
use skep_isa::ctx::{self, tracing as frame};

use skep_net::test_run::{
    Cause, Errno, Input, Outcome, Program, context, field, is_zero, set_field,
};

use super::Runner;

/// Words below a tracing context (`isa::ctx::tracing`).
const HIDDEN: usize = frame::SESSION.unsigned_abs() as usize / 8;
/// Words of a whole frame from the context on: helpers look for registers behind the arguments.
const FRAME: usize = size_of::<Frame>() / 8 - HIDDEN;

/// Memory for a context, eight-byte aligned, with the words of a tracing frame below it and around
/// it.
struct Memory {
    words: Vec<u64>,
}

impl Memory {
    /// Makes a context of `size` bytes that begins with what is given.
    fn new(given: &[u8], size: usize) -> Self {
        let mut words = vec![0; HIDDEN + size.max(given.len()).div_ceil(8).max(FRAME)];
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
        let mut out: Vec<u8> =
            self.words.iter().skip(HIDDEN).flat_map(|w| w.to_ne_bytes()).collect();
        out.truncate(len);
        out
    }
}

/// Refuses a packet, repetition of what runs `once`, and a context of another size.
fn check(input: &Input<'_>, once: bool, sizes: RangeInclusive<usize>) -> Result<(), Errno> {
    let len = input.ctx.map_or(0, <[u8]>::len);
    let number = |size: usize| u32::try_from(size).unwrap_or(u32::MAX);
    let cause = if input.data.is_some() {
        Cause::Packet
    } else if once && input.repeat != 0 {
        Cause::Repeat
    } else if len < *sizes.start() {
        Cause::ShortContext { len: number(len), least: number(*sizes.start()) }
    } else if len > *sizes.end() {
        Cause::LongContext { len: number(len), most: number(*sizes.end()) }
    } else {
        return Ok(());
    };
    Err(Errno::EINVAL.because(cause))
}

/// Runs a raw tracepoint program: up to twelve argument words.
pub(super) fn raw_tracepoint(runner: &Runner, input: &Input<'_>) -> Result<Outcome, Errno> {
    let given = input.ctx.unwrap_or_default();
    let program = runner.program();
    let size = ctx::RAW_TRACEPOINT.size as usize;
    check(input, true, program.ctx_read() as usize..=size)?;
    let mut memory = Memory::new(given, size);
    // SAFETY: the whole context is there.
    let (retval, duration_ns) = unsafe { runner.run(memory.ctx(), 1) }?;
    Ok(Outcome { retval, duration_ns, ..Outcome::default() })
}

/// Runs a `syscall` program, which changes its context in place.
pub(super) fn syscall(runner: &Runner, input: &Input<'_>) -> Result<Outcome, Errno> {
    let given = input.ctx.unwrap_or_default();
    let read = runner.program().ctx_read() as usize;
    check(input, true, read..=usize::from(u16::MAX))?;
    let mut memory = Memory::new(given, runner.ctx_size);
    // SAFETY: programs touch no context byte beyond those they were seen to (`ctx_size`), which are
    // there.
    let (retval, duration_ns) = unsafe { runner.run(memory.ctx(), 1) }?;
    Ok(Outcome {
        retval,
        duration_ns,
        ctx_out: input.ctx.map(|given| memory.bytes(given.len())),
        ..Outcome::default()
    })
}

/// Runs a tracing program on arguments: words as the trampoline would show them, for programs at
/// return with the return value behind the last.
pub(super) fn tracing(runner: &Runner, input: &Input<'_>) -> Result<Outcome, Errno> {
    let program = runner.program();
    let at_return = program
        .attach_type()
        .is_some_and(|a| a.name().contains("fexit") || a.name().contains("modify_return"));
    let size = ctx::TRACING.size as usize;
    let given = input.ctx.unwrap_or_default();
    check(input, false, 0..=size)?;
    if !given.len().is_multiple_of(8) {
        return Err(Errno::EINVAL.because(Cause::Words { len: given.len() as u32 }));
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

/// Runs a socket lookup program on `struct bpf_sk_lookup`; there are no sockets, so none is ever
/// selected.
pub(super) fn sk_lookup(runner: &Runner, input: &Input<'_>) -> Result<Outcome, Errno> {
    const FAMILY: u32 = 8;
    const PROTOCOL: u32 = 12;
    const REMOTE_IP4: u32 = 16;
    const REMOTE_IP6: u32 = 20;
    const REMOTE_PORT: u32 = 36;
    const LOCAL_IP4: u32 = 40;
    const LOCAL_IP6: u32 = 44;
    const LOCAL_PORT: u32 = 60;
    const INGRESS_IFINDEX: u32 = 64;
    const AF_INET: u32 = 2;
    const AF_INET6: u32 = 10;
    let size = ctx::BPF_SK_LOOKUP.size;
    let given = input.ctx.ok_or(Errno::EINVAL.because(Cause::NoContext))?;
    let given = context(given, size as usize)?;
    check(input, false, 0..=usize::MAX)?;
    if !is_zero(&given, 0, FAMILY) || !is_zero(&given, INGRESS_IFINDEX, size) {
        return Err(Errno::EINVAL.because(Cause::Field));
    }
    if field(&given, LOCAL_PORT) > u32::from(u16::MAX) {
        return Err(Errno::ERANGE.because(Cause::Field));
    }
    let mut seen = vec![0; size as usize];
    let mut take = |off: u32, mask: u32| set_field(&mut seen, off, field(&given, off) & mask);
    for off in [FAMILY, PROTOCOL, REMOTE_PORT, LOCAL_PORT] {
        take(off, 0xffff);
    }
    match field(&given, FAMILY) & 0xffff {
        AF_INET => [REMOTE_IP4, LOCAL_IP4].into_iter().for_each(|off| take(off, u32::MAX)),
        AF_INET6 => (0..4)
            .flat_map(|n| [REMOTE_IP6 + 4 * n, LOCAL_IP6 + 4 * n])
            .for_each(|off| take(off, u32::MAX)),
        _ => return Err(Errno::EAFNOSUPPORT.because(Cause::Field)),
    }
    let mut memory = Memory::new(&seen, size as usize);
    // SAFETY: the whole context is there.
    let (retval, duration_ns) = unsafe { runner.run(memory.ctx(), input.repeat) }?;
    Ok(Outcome { retval, duration_ns, ctx_out: Some(given), ..Outcome::default() })
}

/// Runs a program on memory of up to `size` bytes; what is not given is zero.
fn memory_of(runner: &Runner, input: &Input<'_>, size: usize) -> Result<Outcome, Errno> {
    check(input, false, 0..=usize::MAX)?;
    let given = match input.ctx {
        Some(given) if given.len() <= size => given.to_vec(),
        Some(given) => context(given, size)?,
        None => Vec::new(),
    };
    let mut memory = Memory::new(&given, size);
    let mut session = 0u64;
    // Others have none, which `bpf_override_return` looks at.
    if runner.program().attach_type().is_some_and(|a| a.name().contains("session")) {
        memory.hide(frame::SESSION, std::ptr::from_mut(&mut session).expose_provenance() as u64);
    }
    // SAFETY: the whole context is there, with the words below it; the session cookie is alive.
    let (retval, duration_ns) = unsafe { runner.run(memory.ctx(), input.repeat) }?;
    Ok(Outcome { retval, duration_ns, ..Outcome::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `skep_get_func_sp` reads the frame behind the arguments, also where there is no function.
    #[test]
    fn a_context_lies_in_a_whole_frame() {
        for (given, size) in [(0, 0), (8, ctx::TRACING.size as usize), (0, 8192)] {
            let memory = Memory::new(&vec![0; given], size);
            assert!(
                memory.words.len() * 8 >= size_of::<Frame>()
                    && (memory.words.len() - HIDDEN) * 8 >= size,
                "{given} {size}"
            );
        }
        assert!((frame::SP as usize) < FRAME * 8);
    }
}
