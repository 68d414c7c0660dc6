//! Programs on frames where they lie, and where these are redirected to.

use skep_net::port::{Batch, Context, Entry, Redirect, Target, Verdict, Verdicts};

use super::broadcasts::Broadcasts;
use super::entries::{Entries, Pending};
use super::workers::Workers;
use crate::test_run::{Engine, Errno, Slots};

/// Runs programs on frames of batches, and finds where these are redirected to.
#[derive(Debug, Default)]
pub(crate) struct OnFrames {
    context: Context,
    broadcasts: Broadcasts,
    entries: Entries,
}

impl OnFrames {
    /// Begins another batch.
    pub(crate) fn begin(&mut self) {
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
        match self.entries.pending.is_empty() {
            true => Ok(()),
            false => self.entries.run_pending(with, &mut self.context, batch, verdicts),
        }
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
        let Self { context, broadcasts, entries } = self;
        let raw = context.with(batch, index, may_fragment, run).flatten().unwrap_or_default();
        let mut target = Target::default();
        if raw == Verdict::Redirect(target).kind() as u32 {
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
        }
        let verdict = Verdict::from_raw(raw, target);
        verdicts.set(index, verdict);
        verdict
    }
}
