//! Whether a thread's seccomp filters let it make system calls that its program does not know of.
//!
//! Whoever has `CAP_SYS_ADMIN`, and is under no filter itself, may read them, where the kernel was built with
//! `CONFIG_CHECKPOINT_RESTORE`; who puts something into the process judges what it reads. What this process
//! has started, and has set no filter itself, has those of this process, which can be tried. All other
//! threads under seccomp are left alone.

use std::cell::{OnceCell, RefCell};

use crate::error::Unfit;
use crate::sys;
use crate::task::Status;

/// Tells whether a filter, an array of `struct sock_filter`, does no harm.
pub type Judge = fn(&[[u8; 8]]) -> bool;

/// How filters are judged.
#[derive(Debug, Default)]
pub(crate) struct Filters {
    judge: Option<Judge>,
    try_own: Option<fn() -> bool>,
    /// Whether those of this process do no harm.
    own: OnceCell<bool>,
    /// Those that do no harm. The threads of a process have the same, most times.
    harmless: RefCell<Vec<Vec<[u8; 8]>>>,
}

impl Filters {
    /// From now on filters are read, and this says which are harmless, and whether those of this process
    /// are.
    pub(crate) fn judge_by(&mut self, judge: Judge, own: fn() -> bool) {
        (self.judge, self.try_own) = (Some(judge), Some(own));
    }

    /// Tells why a thread may make no system calls but those that its program makes, if so.
    pub(crate) fn check(&self, tid: u32, status: &Status) -> Result<(), Unfit> {
        const FILTER: u32 = 2;
        match status.number("Seccomp") {
            None | Some(0) => Ok(()),
            Some(FILTER) => match self.judge(tid) {
                Err(Unfit::UnknownFilter) if is_inherited(status) => self.try_own(),
                judged => judged,
            },
            Some(_) => Err(Unfit::Seccomp),
        }
    }

    /// Tells whether all that were [found](Self::check) harmless pass another judgement, too.
    pub(crate) fn pass(&self, judge: Judge, own: fn() -> bool) -> bool {
        self.harmless.borrow().iter().all(|filter| judge(filter))
            && (self.own.get().is_none() || own())
    }

    fn try_own(&self) -> Result<(), Unfit> {
        let try_own = self.try_own.ok_or(Unfit::UnknownFilter)?;
        if *self.own.get_or_init(try_own) { Ok(()) } else { Err(Unfit::Seccomp) }
    }

    fn judge(&self, tid: u32) -> Result<(), Unfit> {
        let judge = self.judge.ok_or(Unfit::Seccomp)?;
        let mut number = 0;
        while let Some(filter) =
            sys::seccomp_filter(tid, number).map_err(|_| Unfit::UnknownFilter)?
        {
            let mut harmless = self.harmless.borrow_mut();
            if !harmless.contains(&filter) {
                if !judge(&filter) {
                    return Err(Unfit::Seccomp);
                }
                harmless.push(filter);
            }
            number += 1;
        }
        Ok(())
    }
}

/// Tells whether a thread's filters are those of this process: one of its ancestors is this process, and it
/// has no more. Filters are inherited, and never go. Linux 5.9.
fn is_inherited(status: &Status) -> bool {
    const FAR: usize = 1000;
    let own = std::process::id();
    let count = |status: &Status| status.number("Seccomp_filters");
    let parent = |pid: &u32| Status::of(*pid, *pid)?.number("PPid").filter(|pid| *pid != 0);
    count(status).is_some()
        && Status::of(own, own).and_then(|own| count(&own)) == count(status)
        && std::iter::successors(status.number("PPid"), parent).take(FAR).any(|pid| pid == own)
}
