//! Whether a thread's seccomp filters let it make system calls that its program does not know of.
//!
//! Whoever has `CAP_SYS_ADMIN`, and is under no filter itself, may read them, where the kernel was built with
//! `CONFIG_CHECKPOINT_RESTORE`; who puts something into the process judges what it reads. All other threads
//! under seccomp are left alone.

use std::cell::RefCell;

use crate::error::Unfit;
use crate::sys;
use crate::task::Status;

/// Tells whether a filter, an array of `struct sock_filter`, does no harm.
pub type Judge = fn(&[[u8; 8]]) -> bool;

/// How filters are judged.
#[derive(Debug, Default)]
pub(crate) struct Filters {
    judge: Option<Judge>,
    /// Those that do no harm. The threads of a process have the same, most times.
    harmless: RefCell<Vec<Vec<[u8; 8]>>>,
}

impl Filters {
    /// From now on filters are read, and this says which are harmless.
    pub(crate) fn judge_by(&mut self, judge: Judge) {
        self.judge = Some(judge);
    }

    /// Tells why a thread may make no system calls but those that its program makes, if so.
    pub(crate) fn check(&self, tid: u32, status: &Status) -> Result<(), Unfit> {
        const FILTER: u32 = 2;
        match status.number("Seccomp") {
            None | Some(0) => Ok(()),
            Some(FILTER) => self.judge(tid),
            Some(_) => Err(Unfit::Seccomp),
        }
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
