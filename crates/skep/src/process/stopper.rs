//! Who stops a process: a tracer for a moment, or one that follows it.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use skep_inject::{Target, Tracer};

use super::{StopError, is_readable, is_stopped};

/// Stops processes, and waits for what happens in them.
pub(super) trait Stopper {
    /// Stops all threads of a process.
    fn stop<T: Send>(
        &mut self,
        pid: u32,
        f: impl FnOnce(&mut Target) -> T + Send,
    ) -> Result<T, StopError>;

    /// Stops all but one.
    fn stop_others<T: Send>(
        &mut self,
        pid: u32,
        except: u32,
        patience: Duration,
        f: impl FnOnce(&mut Target) -> T + Send,
    ) -> Result<T, StopError>;

    /// Waits until a descriptor can be read from, at most so long; tells whether it can.
    fn wait_for(&mut self, fd: &OwnedFd, time: Duration) -> Result<bool, String>;

    /// Waits for so long.
    fn pause(&mut self, time: Duration);

    /// Tells whether a process was stopped by a signal.
    fn is_stopped(&self, pid: u32) -> bool;
}

/// Traces a process while it stands, and no longer.
#[derive(Debug)]
pub(super) struct Once;

impl Stopper for Once {
    fn stop<T: Send>(
        &mut self,
        pid: u32,
        f: impl FnOnce(&mut Target) -> T + Send,
    ) -> Result<T, StopError> {
        skep_inject::stop(pid, f)
    }

    fn stop_others<T: Send>(
        &mut self,
        pid: u32,
        except: u32,
        patience: Duration,
        f: impl FnOnce(&mut Target) -> T + Send,
    ) -> Result<T, StopError> {
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
}

/// What is followed goes on while others are waited for.
impl Stopper for Tracer {
    fn stop<T: Send>(
        &mut self,
        pid: u32,
        f: impl FnOnce(&mut Target) -> T + Send,
    ) -> Result<T, StopError> {
        Self::stop(self, pid, f)
    }

    fn stop_others<T: Send>(
        &mut self,
        pid: u32,
        except: u32,
        patience: Duration,
        f: impl FnOnce(&mut Target) -> T + Send,
    ) -> Result<T, StopError> {
        Self::stop_others(self, pid, except, patience, f)
    }

    fn wait_for(&mut self, fd: &OwnedFd, time: Duration) -> Result<bool, String> {
        self.wait_for_others(&[fd.as_fd()], time).map_err(|e| e.to_string())?;
        is_readable(fd, Duration::ZERO)
    }

    fn pause(&mut self, time: Duration) {
        // Nothing is waited for that could fail.
        self.wait_for_others(&[], time).ok();
    }

    fn is_stopped(&self, pid: u32) -> bool {
        Self::is_stopped(self, pid)
    }
}
