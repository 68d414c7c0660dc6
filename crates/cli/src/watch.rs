//! Somebody who looks at a trace while it runs.

use std::os::fd::BorrowedFd;
use std::time::Duration;

/// How often is looked where nothing happens.
pub const LOOK: Duration = Duration::from_secs(1);

/// Looks at what was counted; asked each second, and when its descriptor is readable.
pub trait Watch {
    /// Readable when there is something to be done.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Looks; true ends the trace.
    fn look(&mut self) -> bool;
}

/// The one who looks, if there is one.
pub type Watcher<'w> = Option<&'w mut dyn Watch>;
