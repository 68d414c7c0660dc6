//! Programs on frames where they lie, and where these are redirected to.

use skep_net::lookahead;
use skep_net::port::batch::Layout;
use skep_net::port::{Batch, Context, Entry, Redirect, Target, Verdict, Verdicts};

use super::broadcasts::Broadcasts;
use super::entries::{Entries, Pending};
use super::lookahead::Trial;
use super::workers::Workers;
use crate::test_run::{Engine, Errno, Slots};

/// `XDP_REDIRECT`.
const REDIRECT: u32 = 4;

/// Runs programs on frames of batches, and finds where these are redirected to.
#[derive(Debug, Default)]
pub(crate) struct OnFrames {
    context: Context,
    broadcasts: Broadcasts,
    entries: Entries,
    pub(crate) trial: Trial,
}

impl OnFrames {
    /// Begins with another batch.
    pub(crate) fn begin(&mut self, batch: &Batch) {
        self.context.set_layout(batch.layout());
        self.broadcasts.begin();
        self.entries.pending.clear();
    }

    /// Runs the programs of the entries that frames of the batch are redirected to, which are in
    /// the directory of the slots; those of CPU maps in their threads, if there are such.
    pub(crate) fn run_entries(
        &mut self,
        with: (&Slots, Engine),
        batch: &mut Batch,
        verdicts: &mut Verdicts,
        workers: Option<&mut Workers<'_, '_, '_>>,
    ) -> Result<(), Errno> {
        if let Some(workers) = workers {
            self.entries.pending.retain(|pending| match pending.target {
                Target::Cpu(cpu) => {
                    workers.give(pending.index as u16, pending.entry, cpu);
                    verdicts.hand_over(pending.index);
                    false
                }
                _ => true,
            });
        }
        if self.entries.pending.is_empty() {
            return Ok(());
        }
        self.context.set_layout(Layout { metadata: 0, ..batch.layout() });
        self.entries.run_pending(with, &mut self.context, batch, verdicts)
    }

    /// Fetches what programs will look up for the frames of the batch. `part` is the part of the first
    /// program that finds its lookups.
    ///
    /// # Safety
    /// The program is an XDP program, whose maps are still there, and the thread has its slot.
    #[inline(never)]
    pub(crate) unsafe fn look_ahead(
        &mut self,
        batch: &mut Batch,
        may_fragment: bool,
        part: unsafe extern "C" fn(*mut u8) -> u64,
    ) {
        for index in 0..batch.len() {
            // SAFETY: the caller's promise; the context is that of a frame.
            self.context.with(batch, index, may_fragment, |ctx| unsafe { part(ctx) });
        }
        // SAFETY: the caller's promise.
        unsafe { lookahead::fetch() };
    }

    /// Runs something on each frame from number `first` on, and notes their verdicts, while `goes_on`
    /// says so before each; returns the number of the next frame. `run` is as for [`OnFrames::one`].
    ///
    /// # Safety
    /// As [`OnFrames::one`].
    #[inline(always)]
    pub(crate) unsafe fn each(
        &mut self,
        batch: &mut Batch,
        verdicts: &mut Verdicts,
        (first, may_fragment): (usize, bool),
        mut run: impl FnMut(*mut u8) -> Option<u32>,
        mut goes_on: impl FnMut() -> bool,
    ) -> usize {
        for index in first..batch.len() {
            if !goes_on() {
                return index;
            }
            // SAFETY: the caller's promise.
            unsafe { self.one(batch, verdicts, index, may_fragment, &mut run) };
        }
        batch.len()
    }

    /// Runs something on one frame, and notes its verdict: what `run` returned, or `XDP_ABORTED`
    /// where that is nothing.
    ///
    /// # Safety
    /// `run` runs an XDP program with the context that it is given, on this thread, and the
    /// program's maps are still there when it returns.
    #[inline]
    pub(crate) unsafe fn one(
        &mut self,
        batch: &mut Batch,
        verdicts: &mut Verdicts,
        index: usize,
        may_fragment: bool,
        run: impl FnOnce(*mut u8) -> Option<u32>,
    ) -> Verdict {
        let done = self.context.with(batch, index, may_fragment, run);
        let raw = done.flatten().unwrap_or_default();
        let verdict = if raw == REDIRECT {
            // SAFETY: the caller's promise.
            Verdict::Redirect(unsafe { self.redirected(batch, verdicts, index) })
        } else {
            Verdict::from_raw(raw, Target::default())
        };
        verdicts.set(index, verdict);
        verdict
    }

    /// Finds where a frame is redirected to, by the program that ran last. What else is to be done
    /// for that is noted.
    ///
    /// # Safety
    /// As [`OnFrames::one`].
    #[inline(never)]
    unsafe fn redirected(
        &mut self,
        batch: &mut Batch,
        verdicts: &mut Verdicts,
        index: usize,
    ) -> Target {
        let Self { context, broadcasts, entries, .. } = self;
        let mut target = Target::default();
        // SAFETY: the caller's promise.
        match unsafe { context.redirect() } {
            Some(Redirect::To(to)) => {
                target = to;
                if let Some(entry) = context.entry()
                    && (entry.program != 0 || matches!(target, Target::Cpu(_)))
                {
                    entries.pending.push(Pending { copy: None, index, entry, target });
                }
            }
            Some(Redirect::Broadcast { map, exclude_ingress }) => {
                let port = batch.meta(index).map_or(0, |meta| meta.port);
                let without = exclude_ingress.then_some(port);
                let on = |to: &(u32, u32)| Some(to.0) != without;
                // Devices without programs share the frame as it is.
                let mut plain = broadcasts.of(map).filter(on).filter(|to| to.1 == 0);
                target = Target::Port(plain.next().unwrap_or_default().0);
                plain.for_each(|to| verdicts.copy(index, Target::Port(to.0)));
                let of = context.entry().map_or(0, |entry| entry.map);
                for (port, program) in broadcasts.of(map).filter(on).filter(|to| to.1 != 0) {
                    let to = Target::Port(port);
                    let (copy, index) = if target == Target::default() {
                        target = to;
                        (None, index)
                    } else {
                        let Some(frame) = batch.frame(index) else { continue };
                        let (copy, index) = verdicts.own_copy(frame, to);
                        (Some(copy), index)
                    };
                    let entry = Entry { map: of, program, queue: 0 };
                    entries.pending.push(Pending { copy, index, entry, target: to });
                }
            }
            None => {}
        }
        target
    }
}
