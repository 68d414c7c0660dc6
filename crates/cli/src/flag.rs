//! A flag that one thread raises and others wait for, with descriptors.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

/// Readable once it is raised.
#[derive(Debug)]
pub struct Flag(OwnedFd);

impl Flag {
    /// Makes one that is not raised.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Raises it, for good.
    pub fn raise(&self) {
        rustix::io::write(&self.0, &1_u64.to_ne_bytes()).ok();
    }

    /// Tells whether it was raised.
    pub fn is_raised(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&now)).is_ok_and(|count| count > 0)
    }
}

impl AsFd for Flag {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
