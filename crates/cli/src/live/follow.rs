//! A visit that follows: what the processes make and execute is traced, too.

use std::os::fd::AsFd;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Instant;

use skep::process::{Followed, ProcessError};

use super::{Patience, Visit, Visited, failure, wait};
use crate::failure::{Context, Failure, Result};
use crate::flag::Flag;
use crate::printer::Printer;
use crate::signals::Signals;
use crate::watch::{LOOK, Watcher};

/// So many programs that went on untraced are told one by one.
const TOLD: usize = 10;

impl Visit<'_> {
    /// As [`Visit::make`].
    pub(super) fn follow(
        &self,
        links: &[u32],
        check: impl FnOnce() -> Result<Option<Failure>>,
        detach: impl FnOnce(),
        watcher: Watcher<'_>,
        printer: Printer,
    ) -> Result<Visited> {
        let mut signals = Signals::in_time()?;
        // A `skep` that is stopped would not let its processes go on.
        let _no_stops = skep::process::NoTerminalStops::new();
        let flag = || Flag::new().context("cannot follow processes");
        let [end, over] = [flag()?, flag()?];
        let began = Instant::now();
        let (ready, begun) = mpsc::channel();
        std::thread::scope(|scope| {
            let follower = std::thread::Builder::new().spawn_scoped(scope, || {
                let begin = || ready.send(()).unwrap_or_default();
                let (agent, until) = (self.agent, end.as_fd());
                let followed =
                    skep::process::follow(agent, self.dir, links, &self.pids, until, begin);
                drop(ready);
                over.raise();
                followed
            });
            let follower = follower.context("cannot follow processes")?;
            let patience = Patience::default();
            let begun = loop {
                match begun.recv_timeout(LOOK) {
                    Err(RecvTimeoutError::Timeout) if patience.is_over(signals.is_pending()) => {
                        end.raise();
                    }
                    Err(RecvTimeoutError::Timeout) => {}
                    begun => break begun,
                }
            };
            let ended = match begun {
                // Why is what the thread returns.
                Err(_) => Ok(None),
                Ok(()) => {
                    self.say_attached(printer);
                    let running = || if over.is_raised() { Vec::new() } else { vec![over.as_fd()] };
                    wait(running, &mut signals, self.time, watcher)
                }
            };
            let wall_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
            detach();
            end.raise();
            let followed = follower.join().unwrap_or_else(|p| std::panic::resume_unwind(p));
            let followed = followed.map_err(failure)?;
            let interrupted = ended?;
            tell(&followed, printer);
            // What has no such function may execute something that has.
            if let Some(failure) = check()? {
                return Err(failure);
            }
            let pids = self.pids.iter().chain(&followed.pids).copied();
            let pids = pids.collect::<std::collections::BTreeSet<u32>>().into_iter().collect();
            Ok(Visited { pids, interrupted, wall_ns })
        })
    }
}

/// Says what went on untraced, and what is not as it was.
pub fn tell(followed: &Followed, printer: Printer) {
    for (pid, program, error) in followed.untraced.iter().take(TOLD) {
        let why = match error {
            ProcessError::User { user, .. } => format!(
                "it is user {user}'s, who cannot use this skep directory; for its own trace: `skep trace … -p {pid}`"
            ),
            error => chain(error),
        };
        printer.warning(&format!("process {pid} executed `{program}` untraced: {why}"));
    }
    if let Some(more @ 1..) = followed.untraced.len().checked_sub(TOLD) {
        printer.warning(&format!("so did {more} more"));
    }
    for error in followed.left.iter().take(TOLD) {
        printer.warning(&chain(error));
    }
    if let Some(more @ 1..) = followed.left.len().checked_sub(TOLD) {
        printer.warning(&format!("nor were {more} more"));
    }
}

/// An error with its cause, in a line.
pub fn chain(error: &ProcessError) -> String {
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}"));
    format!("{error}{}", cause.unwrap_or_default())
}
