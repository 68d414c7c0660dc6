//! Who stops a process: a tracer for a moment, or one that follows it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use skep_inject::{Target, Tracer};

use super::{StopError, is_readable, is_stopped};

/// What is done once while threads stand.
pub(super) type While<'f> = &'f mut (dyn FnMut(&mut Target) + Send);

/// Calls a function while all threads of a process stand.
pub(super) fn stop<T: Send>(
    by: &mut dyn Stopper,
    pid: u32,
    f: impl FnOnce(&mut Target) -> T + Send,
) -> Result<T, StopError> {
    once(f, |f| by.stop(pid, f))
}

/// As [`stop`], but one thread runs on.
pub(super) fn stop_others<T: Send>(
    by: &mut dyn Stopper,
    pid: u32,
    except: u32,
    patience: Duration,
    f: impl FnOnce(&mut Target) -> T + Send,
) -> Result<T, StopError> {
    once(f, |f| by.stop_others(pid, except, patience, f))
}

fn once<T: Send>(
    f: impl FnOnce(&mut Target) -> T + Send,
    stop: impl FnOnce(While<'_>) -> Result<(), StopError>,
) -> Result<T, StopError> {
    let (mut f, mut done) = (Some(f), None);
    stop(&mut |target| {
        target.judge_filters(skep_runtime::lets_agent_in, skep_runtime::own_filters_let_agent_in);
        done = f.take().map(|f| f(target));
    })?;
    Ok(done.expect("who has stopped them has called it"))
}

/// Stops processes, and waits for what happens in them.
pub(super) trait Stopper {
    /// Stops all threads of a process, and calls the function: [`stop`].
    fn stop(&mut self, pid: u32, f: While<'_>) -> Result<(), StopError>;

    /// Stops all but one: [`stop_others`].
    fn stop_others(
        &mut self,
        pid: u32,
        except: u32,
        patience: Duration,
        f: While<'_>,
    ) -> Result<(), StopError>;

    /// Waits until a descriptor can be read from, at most so long; tells whether it can.
    fn wait_for(&mut self, fd: &OwnedFd, time: Duration) -> Result<bool, String>;

    /// Waits for so long.
    fn pause(&mut self, time: Duration);

    /// Tells whether a process was stopped by a signal.
    fn is_stopped(&self, pid: u32) -> bool;

    /// Tells whether nobody wants to wait for anything any longer.
    fn is_over(&self) -> bool;
}

/// Traces a process while it stands, and no longer. The function says when nobody wants to wait.
pub(super) struct Once<'a>(pub(super) &'a dyn Fn() -> bool);

impl Once<'static> {
    /// For whoever waits as long as it takes.
    pub(super) const fn patient() -> Self {
        Self(&|| false)
    }
}

impl Stopper for Once<'_> {
    fn stop(&mut self, pid: u32, f: While<'_>) -> Result<(), StopError> {
        skep_inject::stop(pid, f)
    }

    fn stop_others(
        &mut self,
        pid: u32,
        except: u32,
        patience: Duration,
        f: While<'_>,
    ) -> Result<(), StopError> {
        skep_inject::stop_others(pid, except, patience, f)
    }

    fn wait_for(&mut self, fd: &OwnedFd, time: Duration) -> Result<bool, String> {
        is_readable(fd, time)
    }

    fn pause(&mut self, time: Duration) {
        std::thread::sleep(time);
    }

    fn is_stopped(&self, pid: u32) -> bool {
        is_stopped(pid)
    }

    fn is_over(&self) -> bool {
        (self.0)()
    }
}

/// What follows processes, until it is told to end, and then for as long as leaving may take.
pub(super) struct Follower<'a> {
    pub(super) tracer: Tracer,
    pub(super) until: BorrowedFd<'a>,
    pub(super) end: Option<Instant>,
}

/// What is followed goes on while others are waited for.
impl Stopper for Follower<'_> {
    fn stop(&mut self, pid: u32, f: While<'_>) -> Result<(), StopError> {
        self.tracer.stop(pid, f)
    }

    fn stop_others(
        &mut self,
        pid: u32,
        except: u32,
        patience: Duration,
        f: While<'_>,
    ) -> Result<(), StopError> {
        self.tracer.stop_others(pid, except, patience, f)
    }

    fn wait_for(&mut self, fd: &OwnedFd, time: Duration) -> Result<bool, String> {
        self.tracer.wait_for_others(&[fd.as_fd()], time).map_err(|e| e.to_string())?;
        is_readable(fd, Duration::ZERO)
    }

    fn pause(&mut self, time: Duration) {
        // Nothing is waited for that could fail.
        self.tracer.wait_for_others(&[], time).ok();
    }

    fn is_stopped(&self, pid: u32) -> bool {
        self.tracer.is_stopped(pid)
    }
    fn is_over(&self) -> bool {
        match self.end {
            Some(end) => Instant::now() > end,
            None => is_readable(&self.until, Duration::ZERO).unwrap_or(true),
        }
    }
}
