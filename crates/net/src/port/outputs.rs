//! Which frames go to which sink.

use super::batch::{Batch, Frame};
use super::error::PortError;
use super::sink::{Sent, Sink};
use super::verdict::{Target, Verdict};

/// The verdicts on the frames of a batch.
#[derive(Debug, Default)]
pub struct Verdicts {
    each: Vec<Verdict>,
    copies: Vec<(u16, Target)>,
    /// In order.
    handed_over: Vec<u16>,
    /// Copies of their own, of which the first `own_used` are of this batch.
    own: Vec<(Batch, Verdicts)>,
    own_used: usize,
}

impl Verdicts {
    /// Forgets all, and makes every one of `frames` verdicts [`Verdict::Aborted`].
    pub fn reset(&mut self, frames: usize) {
        self.each.clear();
        self.each.resize(frames, Verdict::Aborted);
        self.copies.clear();
        self.handed_over.clear();
        self.own_used = 0;
    }

    /// Says what becomes of a frame.
    #[inline]
    pub fn set(&mut self, frame: usize, verdict: Verdict) {
        if let Some(of) = self.each.get_mut(frame) {
            *of = verdict;
        }
    }

    /// Sends a copy of a frame elsewhere as well, as a broadcast does.
    pub fn copy(&mut self, frame: usize, target: Target) {
        if let Ok(index) = u16::try_from(frame)
            && frame < self.each.len()
        {
            self.copies.push((index, target));
        }
    }

    /// Says that another thread has a frame now, and decides on it: this batch's is sent nowhere.
    pub fn hand_over(&mut self, frame: usize) {
        if let Ok(index) = u16::try_from(frame)
            && frame < self.each.len()
            && let Err(at) = self.handed_over.binary_search(&index)
        {
            self.handed_over.insert(at, index);
        }
    }

    /// Sends a copy of a frame elsewhere as well, which may be changed without the frame. Returns
    /// where it is: the number for [`Verdicts::own_copies`], and the frame in that batch.
    pub fn own_copy(&mut self, frame: Frame<'_>, target: Target) -> (usize, usize) {
        let fits = |(batch, _): &(Batch, Self)| batch.has_room(frame.bytes.len());
        if !self.own_used.checked_sub(1).and_then(|at| self.own.get(at)).is_some_and(fits) {
            if self.own.len() == self.own_used {
                self.own.push((Batch::new(), Self::default()));
            }
            self.own_used += 1;
            if let Some((batch, verdicts)) = self.own.get_mut(self.own_used - 1) {
                batch.clear();
                verdicts.reset(0);
            }
        }
        let at = self.own_used - 1;
        let Some((batch, verdicts)) = self.own.get_mut(at) else { return (at, 0) };
        // An empty batch has room for what another had.
        if batch.push(frame.meta, frame.bytes) {
            verdicts.each.push(Verdict::Redirect(target));
        }
        (at, batch.len().saturating_sub(1))
    }

    /// Returns copies that were made by [`Verdicts::own_copy`], with what becomes of them.
    pub fn own_copies(&mut self, number: usize) -> Option<(&mut Batch, &mut Self)> {
        let used = self.own.get_mut(..self.own_used)?;
        used.get_mut(number).map(|(batch, verdicts)| (batch, verdicts))
    }

    /// Counts the copies that were made by [`Verdicts::own_copy`] and are redirected no more.
    #[must_use]
    pub fn copies_dropped(&self) -> u64 {
        let all = self.own.iter().take(self.own_used).flat_map(|(_, verdicts)| &verdicts.each);
        all.filter(|verdict| !matches!(verdict, Verdict::Redirect(_))).count() as u64
    }

    /// Tells whether no frame of the batch is to be sent: other threads have them all.
    pub(super) fn is_all_handed_over(&self) -> bool {
        self.handed_over.len() == self.each.len() && self.copies.is_empty() && self.own_used == 0
    }

    /// Returns the frames that other threads have now, in order.
    #[must_use]
    pub fn handed_over(&self) -> &[u16] {
        &self.handed_over
    }

    fn is_handed_over(&self, frame: u16) -> bool {
        !self.handed_over.is_empty() && self.handed_over.binary_search(&frame).is_ok()
    }

    /// Counts the verdicts by [`Verdict::kind`].
    #[must_use]
    pub fn counts(&self) -> [u64; Verdict::KINDS] {
        let mut counts = [0; Verdict::KINDS];
        let mut all = self.each.iter().map(|verdict| verdict.kind());
        // Frames often have the verdict of the frame before: nothing waits for memory then.
        let Some(mut kind) = all.next() else { return counts };
        let mut same = 1;
        let mut add = |kind: usize, n: u64| {
            if let Some(count) = counts.get_mut(kind) {
                *count += n;
            }
        };
        for next in all {
            if next == kind {
                same += 1;
                continue;
            }
            add(kind, same);
            (kind, same) = (next, 1);
        }
        add(kind, same);
        counts
    }

    /// Returns the verdicts in order of the frames.
    #[must_use]
    pub fn all(&self) -> &[Verdict] {
        &self.each
    }

    /// Returns the copies: frame, and where it goes to.
    #[must_use]
    pub fn copies(&self) -> &[(u16, Target)] {
        &self.copies
    }
}

/// Names a sink of [`Outputs`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SinkId(usize);

/// What could not be sent anywhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Unsent {
    /// Frames that were redirected to a target that is none of the outputs.
    pub no_target: u64,
}

struct Output {
    sink: Box<dyn Sink>,
    sent: Sent,
    /// Frames of the batch at hand.
    frames: Vec<u16>,
    /// It has taken frames since it was flushed.
    dirty: bool,
}

/// Opens a sink for a target; `None` when there is none.
type Open = Box<dyn FnMut(Target) -> Option<Box<dyn Sink>> + Send>;

/// Sinks, and which frames each is given: by verdict, and redirected ones by target. Frames of
/// verdicts without a sink end, which is no loss; those that were redirected to an unknown target
/// are counted.
#[derive(Default)]
pub struct Outputs {
    sinks: Vec<Output>,
    by_verdict: [Option<usize>; Verdict::KINDS],
    /// In order of target.
    by_target: Vec<(Target, usize)>,
    open: Option<Open>,
    /// Targets without a sink, of the frames at hand: they may have one later.
    none: Vec<Target>,
    unsent: Unsent,
}

impl std::fmt::Debug for Outputs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outputs")
            .field("sinks", &self.sinks.len())
            .field("by_verdict", &self.by_verdict)
            .field("by_target", &self.by_target)
            .finish_non_exhaustive()
    }
}

impl Outputs {
    /// Begins without any: every frame ends with its verdict.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a sink, which gets nothing yet.
    pub fn add(&mut self, sink: Box<dyn Sink>) -> SinkId {
        let frames = Vec::with_capacity(super::batch::MAX_FRAMES);
        self.sinks.push(Output { sink, sent: Sent::default(), frames, dirty: false });
        SinkId(self.sinks.len() - 1)
    }

    /// Gives a sink the frames of a kind of verdict, of which [`Verdict::kind`] is the number.
    /// Redirected frames go there when their target has no sink of its own.
    pub fn send_verdict(&mut self, kind: usize, sink: SinkId) {
        if let Some(of) = self.by_verdict.get_mut(kind) {
            *of = Some(sink.0);
        }
    }

    /// Gives a sink the frames that are redirected to a target.
    pub fn send_target(&mut self, target: Target, sink: SinkId) {
        match self.by_target.binary_search_by_key(&target, |(target, _)| *target) {
            Ok(at) => self.by_target[at].1 = sink.0,
            Err(at) => self.by_target.insert(at, (target, sink.0)),
        }
    }

    /// Opens a sink for each target without one when the first frame is redirected there; where `open`
    /// finds none, frames go to the output of redirected ones, and it is asked again with the next batch.
    pub fn open_targets(
        &mut self,
        open: impl FnMut(Target) -> Option<Box<dyn Sink>> + Send + 'static,
    ) {
        self.open = Some(Box::new(open));
    }

    /// Returns what became of the frames of a sink.
    #[must_use]
    pub fn sent(&self, sink: SinkId) -> Sent {
        self.sinks.get(sink.0).map_or_else(Sent::default, |output| output.sent)
    }

    /// Returns what became of all frames that went to a sink.
    #[must_use]
    pub fn sent_by_all(&self) -> Sent {
        let mut all = Sent::default();
        self.sinks.iter().for_each(|output| all += output.sent);
        all
    }

    /// Returns what could not be sent anywhere.
    #[must_use]
    pub fn unsent(&self) -> Unsent {
        self.unsent
    }

    /// Finds the sink for frames that are redirected to a target.
    #[inline]
    fn redirected(&mut self, target: Target) -> Option<usize> {
        let found = self.by_target.binary_search_by_key(&target, |(target, _)| *target).ok();
        let mut sink = found.and_then(|at| self.by_target.get(at)).map(|(_, sink)| *sink);
        if sink.is_none() && self.open.is_some() {
            sink = self.open_target(target);
        }
        let others = || self.by_verdict.get(Verdict::Redirect(target).kind()).copied().flatten();
        sink.or_else(others)
    }

    #[cold]
    fn open_target(&mut self, target: Target) -> Option<usize> {
        if self.none.contains(&target) {
            return None;
        }
        let Some(sink) = self.open.as_mut()?(target) else {
            self.none.push(target);
            return None;
        };
        let sink = self.add(sink);
        self.send_target(target, sink);
        Some(sink.0)
    }

    /// Sends the frames of a batch by their verdicts.
    ///
    /// # Errors
    /// When a sink takes no more, the first of these errors; the others have got their frames, and what
    /// the failed one did not take is counted ([`Sent::unwritten`]).
    pub fn send(&mut self, batch: &Batch, verdicts: &Verdicts) -> Result<(), PortError> {
        self.sort_out(verdicts);
        let mut done = self.send_sorted(batch);
        for (batch, verdicts) in verdicts.own.iter().take(verdicts.own_used) {
            self.sort_out(verdicts);
            done = done.and(self.send_sorted(batch));
        }
        done
    }

    /// Sends no frame of a batch, because a sink failed before, and counts those that a sink would have
    /// got.
    pub fn give_up(&mut self, verdicts: &Verdicts) {
        let own = verdicts.own.iter().take(verdicts.own_used).map(|(_, verdicts)| verdicts);
        for verdicts in std::iter::once(verdicts).chain(own) {
            self.sort_out(verdicts);
            for output in &mut self.sinks {
                output.sent.unwritten += output.frames.len() as u64;
                output.frames.clear();
            }
        }
    }

    /// Says which frames each sink gets.
    fn sort_out(&mut self, verdicts: &Verdicts) {
        self.none.clear();
        if self.sinks.is_empty() && self.open.is_none() {
            let ends = |(index, verdict): &(usize, &Verdict)| {
                matches!(verdict, Verdict::Redirect(_)) && !verdicts.is_handed_over(*index as u16)
            };
            let frames = verdicts.all().iter().enumerate().filter(ends).count();
            self.unsent.no_target += (frames + verdicts.copies().len()) as u64;
            return;
        }
        for (index, verdict) in verdicts.all().iter().enumerate() {
            if verdicts.is_handed_over(index as u16) {
                continue;
            }
            let sink = match verdict {
                Verdict::Redirect(target) => self.redirected(*target),
                _ => self.by_verdict.get(verdict.kind()).copied().flatten(),
            };
            self.give(index as u16, sink, matches!(verdict, Verdict::Redirect(_)));
        }
        for (index, target) in verdicts.copies() {
            let sink = self.redirected(*target);
            self.give(*index, sink, true);
        }
    }

    fn send_sorted(&mut self, batch: &Batch) -> Result<(), PortError> {
        let mut done = Ok(());
        for output in self.sinks.iter_mut().filter(|output| !output.frames.is_empty()) {
            let before = output.sent.all();
            let mut sent = output.sink.send_counted(batch, &output.frames, &mut output.sent);
            let dropped = output.sink.dropped();
            output.sent.take_back(dropped);
            if sent.is_err() {
                let counted = output.sent.all() - before;
                output.sent.unwritten += (output.frames.len() as u64).saturating_sub(counted);
            } else if dropped.unwritten > 0 {
                // It failed, and says why.
                sent = output.sink.flush();
            }
            output.dirty = true;
            output.frames.clear();
            done = done.and(sent);
        }
        done
    }

    fn give(&mut self, frame: u16, sink: Option<usize>, redirected: bool) {
        match sink.and_then(|sink| self.sinks.get_mut(sink)) {
            Some(output) => output.frames.push(frame),
            None => self.unsent.no_target += u64::from(redirected),
        }
    }

    /// Flushes all sinks that were given frames since they were flushed last.
    ///
    /// # Errors
    /// With the error of the first that fails; the others are flushed all the same.
    pub fn flush(&mut self) -> Result<(), PortError> {
        let mut done = Ok(());
        for output in self.sinks.iter_mut().filter(|output| output.dirty) {
            output.dirty = false;
            let flushed = output.sink.flush();
            output.sent.take_back(output.sink.dropped());
            done = done.and(flushed);
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_are_counted_by_their_kinds() {
        let mut verdicts = Verdicts::default();
        verdicts.reset(0);
        assert_eq!(verdicts.counts(), [0; Verdict::KINDS]);
        // Runs of the same, and changes.
        let mut state = 1_u32;
        let raw: Vec<u32> = (0..1000)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                if state >> 28 > 12 { state >> 16 & 7 } else { 2 }
            })
            .collect();
        verdicts.reset(raw.len());
        let mut naive = [0; Verdict::KINDS];
        for (n, raw) in raw.iter().enumerate() {
            let verdict = Verdict::from_raw(*raw, Target::Port(*raw));
            verdicts.set(n, verdict);
            naive[verdict.kind()] += 1;
        }
        assert_eq!(verdicts.counts(), naive);
    }
}
