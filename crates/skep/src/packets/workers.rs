//! The threads behind the entries of CPU maps.
//!
//! ```text
//! thread that pumps   packets' programs ─┬─ outputs
//!                                        ├─ queue of an entry ── thread: the entry's program ── outputs
//!                                        └─ queue of another …
//! ```
//!
//! Each entry of a CPU map that a frame was redirected to has a queue as long as the entry says, and
//! a thread that takes frames out of it in order. A full queue drops, and counts. An entry that was
//! changed is another one: its predecessor's thread ends with its last frame. All threads share the
//! outputs, and end with their queues, which the thread that pumps closes when it ends.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, Scope};
use std::time::Duration;

use skep_isa::{AttachType, ProgramType};
use skep_net::port::memory::{self, MemorySink, MemorySource};
use skep_net::port::{
    Batch, Entry, Outputs, PortError, PumpError, Received, Sink, Source, Stats, Target, Until,
    Verdict, Verdicts, pump_shared,
};

use super::frames::OnFrames;
use crate::test_run::{Engine, Runner, Slots};

/// How long a thread waits for frames before it looks again; it is told when some come.
const WAIT: Duration = Duration::from_secs(1);

/// What the threads did.
#[derive(Default)]
struct Done {
    verdicts: [u64; Verdict::KINDS],
    copies_dropped: u64,
    error: Option<PortError>,
}

/// What the threads share.
struct Shared<'a> {
    outputs: Mutex<&'a mut Outputs>,
    with: (&'a Slots, Engine),
    done: Mutex<Done>,
    /// There is an error.
    failed: AtomicBool,
}

/// The counters are right between any two statements.
fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared<'_> {
    fn fail(&self, error: PortError) {
        self.failed.store(true, Relaxed);
        lock(&self.done).error.get_or_insert(error);
    }
}

/// Starts threads, and gives them frames.
pub(crate) struct Workers<'scope, 'env, 'a> {
    scope: &'scope Scope<'scope, 'env>,
    shared: &'env Shared<'a>,
    queues: Vec<Queue>,
    /// Queues of entries that were changed while a batch was run.
    changed: Vec<Queue>,
    full: u64,
}

struct Queue {
    of: (Entry, u32),
    sink: MemorySink,
    /// Frames of the batch at hand.
    frames: Vec<u16>,
}

impl Workers<'_, '_, '_> {
    /// Gives a frame to the thread of an entry, when the batch is done.
    pub fn give(&mut self, index: u16, entry: Entry, cpu: u32) {
        let same = |q: &Queue| q.of.1 == cpu && q.of.0.map == entry.map;
        let at = self.queues.iter().position(same);
        if let Some(queue) = at.and_then(|at| self.queues.get_mut(at))
            && queue.of.0 == entry
        {
            return queue.frames.push(index);
        }
        let (sink, source) = memory::queue("a processor's queue", entry.queue as usize);
        let shared = self.shared;
        let name = thread::Builder::new().name(format!("skep-cpu-{cpu}"));
        let started =
            name.spawn_scoped(self.scope, move || work(shared, source, entry.program, cpu));
        if let Err(source) = started {
            // The queue has no other end now, which drops the frame when it is sent there.
            let name = format!("processor {cpu}");
            shared.fail(PortError::Call { name, call: "clone", source });
        }
        let queue = Queue { of: (entry, cpu), sink, frames: vec![index] };
        match at.and_then(|at| self.queues.get_mut(at)) {
            // What the old one was given of this batch goes there still, when the batch is sent.
            Some(changed) => {
                let before = std::mem::replace(changed, queue);
                self.changed.push(before);
            }
            None => self.queues.push(queue),
        }
    }

    /// Puts the frames of a batch into their queues.
    pub fn send(&mut self, batch: &Batch) {
        for Queue { sink, frames, .. } in self.changed.iter_mut().chain(&mut self.queues) {
            if !frames.is_empty() {
                // The other end goes only with its thread, which could not start then.
                let sent = sink.send(batch, frames).unwrap_or_default();
                self.full += frames.len() as u64 - sent.packets;
                frames.clear();
            }
        }
        self.changed.clear();
    }
}

/// The thread of an entry.
fn work(shared: &Shared<'_>, mut queue: MemorySource, program: u32, cpu: u32) {
    let (slots, engine) = shared.with;
    let runner = (program != 0).then(|| Runner::open_by_id(slots, program, engine));
    let mut frames = OnFrames::default();
    let (mut batch, mut verdicts) = (Batch::new(), Verdicts::default());
    loop {
        batch.clear();
        match queue.receive(&mut batch, WAIT) {
            Ok(Received::Frames) => {}
            Ok(Received::Nothing) => continue,
            Ok(Received::End) | Err(_) => return,
        }
        verdicts.reset(batch.len());
        match &runner {
            None => {
                let on = Verdict::Redirect(Target::Cpu(cpu));
                (0..batch.len()).for_each(|index| verdicts.set(index, on));
            }
            Some(Some(runner)) => run(runner, &mut frames, cpu, &mut batch, &mut verdicts),
            // It is not there; the frames are aborted.
            Some(None) => {}
        }
        let mut done = lock(&shared.done);
        done.copies_dropped += verdicts.copies_dropped();
        for verdict in verdicts.all() {
            if let Some(count) = done.verdicts.get_mut(verdict.kind()) {
                *count += 1;
            }
        }
        drop(done);
        let mut outputs = lock(&shared.outputs);
        let sent = if shared.failed.load(Relaxed) {
            outputs.give_up(&verdicts);
            Ok(())
        } else {
            outputs.send(&batch, &verdicts)
        };
        drop(outputs);
        if let Err(e) = sent {
            shared.fail(e);
        }
    }
}

/// Runs an entry's program on the frames of a batch. Frames stay aborted when it cannot run.
fn run(
    runner: &Runner,
    frames: &mut OnFrames,
    cpu: u32,
    batch: &mut Batch,
    verdicts: &mut Verdicts,
) {
    let of = runner.program();
    if of.prog_type() != ProgramType::Xdp || of.attach_type() != Some(AttachType::XdpCpumap) {
        return;
    }
    let may_fragment = of.section().starts_with("xdp.frags");
    frames.begin(batch);
    let entered = runner.enter(|program| {
        for index in 0..batch.len() {
            // SAFETY: the program is an XDP program, and this is the context of one, pointed at a
            // frame.
            let run = |ctx| unsafe { program.run(ctx) };
            // SAFETY: that runs on this thread, and the runner has the program's maps.
            let verdict = unsafe { frames.one(batch, verdicts, index, may_fragment, run) };
            match verdict {
                Verdict::Pass => verdicts.set(index, Verdict::Redirect(Target::Cpu(cpu))),
                Verdict::Tx => verdicts.set(index, Verdict::Aborted),
                _ => {}
            }
        }
    });
    if entered.and_then(|()| frames.run_entries(runner.with(), batch, verdicts, None)).is_err() {
        verdicts.reset(batch.len());
    }
}

/// Moves frames through `run`, as [`pump`], and ends when that fails; returns what was done, and
/// why it failed. Frames that are redirected to processors go through threads of theirs, which `run`
/// is given, and which run programs of the directory of the slots.
///
/// [`pump`]: skep_net::port::pump
pub(crate) fn pump_until_failure<E>(
    source: &mut dyn Source,
    outputs: &mut Outputs,
    until: &Until<'_>,
    with: (&Slots, Engine),
    mut run: impl FnMut(&mut Batch, &mut Verdicts, &mut Workers<'_, '_, '_>) -> Result<(), E>,
) -> Result<(Stats, Option<E>), PumpError> {
    let mut failed = None;
    // One pump for all that runs: it is asked once for each batch.
    let pumped =
        pump_with_workers(source, outputs, until, with, &mut |batch, verdicts, workers| {
            failed = run(batch, verdicts, workers).err();
            if failed.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
    Ok((pumped?, failed))
}

type Run<'a> =
    &'a mut dyn FnMut(&mut Batch, &mut Verdicts, &mut Workers<'_, '_, '_>) -> ControlFlow<()>;

fn pump_with_workers(
    source: &mut dyn Source,
    outputs: &mut Outputs,
    until: &Until<'_>,
    with: (&Slots, Engine),
    run: Run<'_>,
) -> Result<Stats, PumpError> {
    let shared = Shared {
        outputs: Mutex::new(outputs),
        with,
        done: Mutex::default(),
        failed: AtomicBool::new(false),
    };
    let (pumped, full) = thread::scope(|scope| {
        let mut workers =
            Workers { scope, shared: &shared, queues: Vec::new(), changed: Vec::new(), full: 0 };
        let pumped = pump_shared(source, &shared.outputs, until, &mut |batch, verdicts| {
            let after = run(batch, verdicts, &mut workers);
            workers.send(batch);
            if shared.failed.load(Relaxed) { ControlFlow::Break(()) } else { after }
        });
        // Its queues end here, and the threads when they are empty.
        (pumped, workers.full)
    });
    let Shared { outputs, done, .. } = shared;
    let outputs = outputs.into_inner().unwrap_or_else(PoisonError::into_inner);
    let done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    let (mut stats, error) = match pumped {
        Ok(stats) => (Box::new(stats), None),
        Err(PumpError { stats, source }) => (stats, Some(source)),
    };
    let flushed = outputs.flush().err();
    stats.sent = outputs.sent_by_all();
    stats.no_target = outputs.unsent().no_target;
    stats.queue_full = full;
    stats.copies_dropped += done.copies_dropped;
    stats.verdicts.iter_mut().zip(done.verdicts).for_each(|(all, more)| *all += more);
    // Of what had no room, only that it was redirected is known.
    if let Some(redirected) = stats.verdicts.get_mut(4) {
        *redirected += full;
    }
    match error.or(done.error).or(flushed) {
        None => Ok(*stats),
        Some(source) => Err(PumpError { stats, source }),
    }
}
