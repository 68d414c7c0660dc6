//! From a source, through programs, to sinks.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::batch::{Batch, MAX_FRAMES};
use super::error::PortError;
use super::outputs::{Outputs, Verdicts};
use super::sink::Sent;
use super::source::{Lost, Received, Source};
use super::verdict::Verdict;

/// How long a source may wait before the flag is looked at.
const WAIT: Duration = Duration::from_millis(50);

/// When to end, besides the source's own end.
#[derive(Clone, Copy, Debug, Default)]
pub struct Until<'a> {
    /// After so many frames.
    pub packets: Option<u64>,
    /// After this time.
    pub time: Option<Duration>,
    /// When this becomes true: for Ctrl-C.
    pub stop: Option<&'a AtomicBool>,
}

/// What a pump did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Frames that were received.
    pub packets: u64,
    /// Bytes of these, as they came.
    pub bytes: u64,
    /// Frames of each verdict, by [`Verdict::kind`].
    pub verdicts: [u64; Verdict::KINDS],
    /// Frames that went to a sink. Copies count, so this may be more than came.
    pub sent: Sent,
    /// Frames that were redirected to a target that is none of the outputs.
    pub no_target: u64,
    /// Frames that were dropped because a processor that they were redirected to did not keep up.
    pub queue_full: u64,
    /// Copies of broadcast frames that programs of the entries dropped.
    pub copies_dropped: u64,
    /// What the source knows to be missing.
    pub lost: Lost,
}

/// What ended a pump too early, with what it had done by then.
#[derive(Debug, thiserror::Error)]
#[error("{source}")]
pub struct PumpError {
    /// What it did.
    pub stats: Box<Stats>,
    /// Which port failed, and why.
    pub source: PortError,
}

/// Moves frames from the source to the outputs in batches, until the source ends or `until` says
/// so. `run` gives each frame of a batch its verdict, and may change frames and their bounds; when
/// it breaks, the batch is the last one and is still sent. Every sink is flushed at the end, and
/// when no frame comes for a while.
///
/// ```
/// use std::ops::ControlFlow;
/// use skep_net::port::generator::Generator;
/// use skep_net::port::{Outputs, Until, Verdict, pump};
///
/// let mut source = Generator::new(&[64]).packets(100);
/// let stats = pump(&mut source, &mut Outputs::new(), &Until::default(), |batch, verdicts| {
///     (0..batch.len()).for_each(|n| verdicts.set(n, Verdict::Drop));
///     ControlFlow::Continue(())
/// })?;
/// assert_eq!((stats.packets, stats.bytes, stats.verdicts[1]), (100, 6400, 100));
/// # Ok::<(), skep_net::port::PumpError>(())
/// ```
///
/// # Errors
/// When a port fails, with what was done until then. Sinks are flushed also then.
pub fn pump(
    source: &mut dyn Source,
    outputs: &mut Outputs,
    until: &Until<'_>,
    mut run: impl FnMut(&mut Batch, &mut Verdicts) -> ControlFlow<()>,
) -> Result<Stats, PumpError> {
    pump_shared(source, &Mutex::new(outputs), until, &mut run)
}

/// Does what [`pump`] does, to outputs that other threads use too: each sends its batches as a whole.
/// Frames that `run` hands over ([`Verdicts::hand_over`]) are counted as received, and no further.
///
/// # Errors
/// As [`pump`].
pub fn pump_shared(
    source: &mut dyn Source,
    outputs: &Mutex<&mut Outputs>,
    until: &Until<'_>,
    run: &mut dyn FnMut(&mut Batch, &mut Verdicts) -> ControlFlow<()>,
) -> Result<Stats, PumpError> {
    let mut stats = Stats::default();
    let pumped = move_frames(source, outputs, until, &mut stats, run);
    let mut outputs = lock(outputs);
    let flushed = outputs.flush();
    let lost = source.lost().map(|lost| stats.lost = lost);
    stats.sent = outputs.sent_by_all();
    stats.no_target = outputs.unsent().no_target;
    match pumped.and(flushed).and(lost) {
        Ok(()) => Ok(stats),
        Err(source) => Err(PumpError { stats: Box::new(stats), source }),
    }
}

/// A thread that panicked left the counts of a batch out at worst.
fn lock<'a, 'o>(outputs: &'a Mutex<&'o mut Outputs>) -> MutexGuard<'a, &'o mut Outputs> {
    outputs.lock().unwrap_or_else(PoisonError::into_inner)
}

fn move_frames(
    source: &mut dyn Source,
    outputs: &Mutex<&mut Outputs>,
    until: &Until<'_>,
    stats: &mut Stats,
    run: &mut dyn FnMut(&mut Batch, &mut Verdicts) -> ControlFlow<()>,
) -> Result<(), PortError> {
    let (mut batch, mut verdicts) = (source.batch(), Verdicts::default());
    // A time beyond what the clock can tell is none.
    let deadline = until.time.and_then(|time| Instant::now().checked_add(time));
    loop {
        let left = until.packets.map_or(u64::MAX, |most| most.saturating_sub(stats.packets));
        let time = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        let stopped = until.stop.is_some_and(|flag| flag.load(Relaxed));
        if left == 0 || stopped || time.is_some_and(|time| time.is_zero()) {
            return Ok(());
        }
        batch.clear();
        batch.set_limit(usize::try_from(left).unwrap_or(MAX_FRAMES));
        let received = source.receive(&mut batch, time.map_or(WAIT, |time| time.min(WAIT)));
        let failed = match received {
            Ok(Received::Frames) => Ok(()),
            Ok(Received::Nothing) => {
                lock(outputs).flush()?;
                continue;
            }
            Ok(Received::End) => return Ok(()),
            Err(e) if batch.is_empty() => return Err(e),
            // After the frames that came before.
            Err(e) => Err(e),
        };
        stats.packets += batch.len() as u64;
        stats.bytes += batch.bytes();
        verdicts.reset(batch.len());
        let after = run(&mut batch, &mut verdicts);
        for (count, more) in stats.verdicts.iter_mut().zip(verdicts.counts()) {
            *count += more;
        }
        for handed_over in verdicts.handed_over() {
            let verdict = verdicts.all().get(usize::from(*handed_over));
            if let Some(count) = verdict.and_then(|v| stats.verdicts.get_mut(v.kind())) {
                *count -= 1;
            }
        }
        // Without a frame there is nothing to wait for, should another thread be sending.
        stats.copies_dropped += verdicts.copies_dropped();
        if !verdicts.is_all_handed_over() {
            lock(outputs).send(&batch, &verdicts)?;
        }
        if after.is_break() {
            return Ok(());
        }
        failed?;
    }
}
