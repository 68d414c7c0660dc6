//! Programs of the entries of device and CPU maps, which run behind a redirect.

use skep_isa::{AttachType, ProgramType};
use skep_net::port::{Batch, Context, Redirect, Target, Verdict, Verdicts};

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

/// Programs of the entries of device and CPU maps.
#[derive(Debug, Default)]
pub(super) struct Entries {
    /// Those that were needed so far, by their ids. One that cannot be opened is kept as such.
    runners: Vec<(u32, Option<Runner>)>,
    /// Frames of the batch at hand, with the programs that they go through, and where to.
    pub pending: Vec<(usize, u32, Target)>,
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
        for (_, id, _) in &*pending {
            if !runners.iter().any(|(known, _)| known == id) {
                runners.push((*id, Runner::open_by_id(slots, *id, engine)));
            }
        }
        slots.enter(|on| {
            for (index, id, target) in pending.drain(..) {
                let found = runners.iter().find(|(known, _)| *known == id);
                let found = found.and_then(|(_, found)| found.as_ref());
                let ran = found
                    .and_then(|found| Some((found, found.entered(on)?)))
                    .and_then(|found| run_entry(found, context, (batch, index), target));
                verdicts.set(index, ran.unwrap_or(Verdict::Aborted));
            }
        })
    }
}

/// Runs the program of an entry on a frame; `None` when it is for entries of another kind. A frame
/// that passes goes to the target; from a CPU map it may be redirected again.
fn run_entry(
    (runner, program): (&Runner, Entered<'_>),
    context: &mut Context,
    (batch, index): (&mut Batch, usize),
    target: Target,
) -> Option<Verdict> {
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
        Verdict::Pass => Some(Verdict::Redirect(target)),
        Verdict::Drop => Some(Verdict::Drop),
        Verdict::Redirect(_) if wanted == AttachType::XdpCpumap => {
            // SAFETY: the program ran on this thread just now, and its runner has its maps.
            match unsafe { context.redirect() } {
                Some(Redirect::To(target)) => Some(Verdict::Redirect(target)),
                _ => None,
            }
        }
        _ => None,
    }
}
