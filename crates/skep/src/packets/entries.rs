//! Programs of the entries of device and CPU maps, which run behind a redirect.

use skep_isa::{AttachType, ProgramType};
use skep_net::port::{Batch, Context, Entry, Redirect, Target, Verdict, Verdicts};

use crate::test_run::{Engine, Entered, Errno, Runner, Slots};

/// Runs the program on one frame; what it returned, or 0 (`XDP_ABORTED`) when it failed.
#[inline]
fn run_one(
    program: Entered<'_>,
    context: &mut Context,
    batch: &mut Batch,
    index: usize,
    may_fragment: bool,
) -> u32 {
    // SAFETY: the program is an XDP program (checked in `run_entry`), and
    // this is the context of one, pointed at a frame.
    let run = |ctx| unsafe { program.run(ctx) };
    context.with(batch, index, may_fragment, run).flatten().unwrap_or_default()
}

/// Most entries that a frame goes through one after the other: from one of a CPU map to the next.
const MOST_ENTRIES: usize = 8;

/// A frame of the batch at hand that goes through an entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    /// Of which copies it is; `None`: a frame of the batch itself.
    pub copy: Option<usize>,
    /// Which frame.
    pub index: usize,
    /// What the entry has.
    pub entry: Entry,
    /// Where it leads.
    pub target: Target,
}

/// Programs of the entries of device and CPU maps.
#[derive(Debug, Default)]
pub(super) struct Entries {
    /// Those that were needed so far, by their ids. One that cannot be opened is kept as such.
    runners: Vec<(u32, Option<Runner>)>,
    /// Frames that go through entries, in order.
    pub pending: Vec<Pending>,
}

impl Entries {
    /// Runs the programs of the entries that frames are redirected to, after those that redirected
    /// them: a program is opened outside of all runs, which somebody with another directory may be
    /// waiting for.
    #[cold]
    pub fn run_pending(
        &mut self,
        (slots, engine): (&Slots, Engine),
        context: &mut Context,
        batch: &mut Batch,
        verdicts: &mut Verdicts,
    ) -> Result<(), Errno> {
        let Self { runners, pending } = self;
        for _ in 0..MOST_ENTRIES {
            pending.retain(|pending| pending.entry.program != 0);
            if pending.is_empty() {
                return Ok(());
            }
            for Pending { entry: Entry { program, .. }, .. } in &*pending {
                if !runners.iter().any(|(known, _)| known == program) {
                    runners.push((*program, Runner::open_by_id(slots, *program, engine)));
                }
            }
            slots.enter(|on| {
                pending.retain_mut(|pending| {
                    let Pending { copy, index, entry, target } = *pending;
                    let (batch, verdicts) = match copy {
                        None => (&mut *batch, &mut *verdicts),
                        Some(copy) => match verdicts.own_copies(copy) {
                            Some(own) => own,
                            None => return false,
                        },
                    };
                    let found = runners.iter().find(|(known, _)| *known == entry.program);
                    let found = found.and_then(|(_, found)| found.as_ref());
                    let ran = found
                        .and_then(|found| Some((found, found.entered(on)?)))
                        .and_then(|found| run_entry(found, context, (batch, index), target));
                    let (verdict, next) = ran.unwrap_or((Verdict::Aborted, None));
                    verdicts.set(index, verdict);
                    next.map(|(entry, target)| *pending = Pending { copy, index, entry, target })
                        .is_some()
                });
            })?;
        }
        // It would go round for ever.
        pending.drain(..).for_each(|pending| verdicts.set(pending.index, Verdict::Aborted));
        Ok(())
    }
}

/// Runs the program of an entry on a frame; `None` when it is for entries of another kind. A frame
/// that passes goes to the target; from a CPU map it may be redirected again, to another entry too.
fn run_entry(
    (runner, program): (&Runner, Entered<'_>),
    context: &mut Context,
    (batch, index): (&mut Batch, usize),
    target: Target,
) -> Option<(Verdict, Option<(Entry, Target)>)> {
    let (wanted, egress) = match target {
        Target::Port(port) => (AttachType::XdpDevmap, port),
        _ => (AttachType::XdpCpumap, 0),
    };
    let of = runner.program();
    if of.prog_type() != ProgramType::Xdp || of.attach_type() != Some(wanted) {
        return None;
    }
    context.set_egress(egress);
    let raw = run_one(program, context, batch, index, of.section().starts_with("xdp.frags"));
    context.set_egress(0);
    match Verdict::from_raw(raw, target) {
        Verdict::Pass => Some((Verdict::Redirect(target), None)),
        Verdict::Drop => Some((Verdict::Drop, None)),
        Verdict::Redirect(_) if wanted == AttachType::XdpCpumap => {
            // SAFETY: the program ran on this thread just now, and its runner has its maps.
            match unsafe { context.redirect() } {
                Some(Redirect::To(target)) => {
                    let next = context.entry().map(|entry| (entry, target));
                    Some((Verdict::Redirect(target), next))
                }
                _ => None,
            }
        }
        _ => None,
    }
}
