//! `AF_PACKET` as a sink: many frames by one `sendmmsg(2)`, from where they lie.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use super::failed;
use super::sys::{self, Messages};
use crate::port::batch::{Batch, MAX_FRAMES};
use crate::port::error::PortError;
use crate::port::sink::{Sent, Sink};

/// How long a full socket may take until there is room again.
const WAIT: Duration = Duration::from_millis(100);

/// Sends frames on an interface, past its queueing discipline.
pub struct PacketSink {
    fd: OwnedFd,
    messages: Messages,
    name: String,
    index: u32,
}

impl std::fmt::Debug for PacketSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PacketSink").field("name", &self.name).finish_non_exhaustive()
    }
}

impl PacketSink {
    /// Opens an interface of the thread's network namespace.
    ///
    /// # Errors
    /// When there is no such interface, or packet sockets are not allowed.
    pub fn open(name: &str) -> Result<Self, PortError> {
        let index =
            sys::index_of(name).ok_or_else(|| PortError::NoInterface { name: name.to_owned() })?;
        let fd = sys::socket(libc::AF_PACKET, libc::SOCK_RAW, 0).map_err(failed(name, "socket"))?;
        // Without, frames wait in the kernel's queue: slower, and as good.
        let _ = sys::set_option(fd.as_fd(), libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, &1);
        sys::bind(fd.as_fd(), index, 0).map_err(failed(name, "bind"))?;
        Ok(Self { fd, messages: Messages::new(), name: name.to_owned(), index })
    }

    /// Returns the number of the interface.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Tells whether something is at the other end.
    fn is_connected(&self) -> bool {
        sys::is_running(self.fd.as_fd(), &self.name)
    }
}

impl AsFd for PacketSink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Sink for PacketSink {
    /// Waits up to 100 ms while the interface is busy; frames are dropped then, and counted.
    fn send_counted(
        &mut self,
        batch: &Batch,
        frames: &[u16],
        sent: &mut Sent,
    ) -> Result<(), PortError> {
        let mut carrier = None;
        let mut slices: [&[u8]; MAX_FRAMES] = [&[]; MAX_FRAMES];
        for chunk in frames.chunks(MAX_FRAMES) {
            let bytes = chunk.iter().filter_map(|index| batch.frame(usize::from(*index)));
            let count = slices.iter_mut().zip(bytes).map(|(to, from)| *to = from.bytes).count();
            let mut left = slices.get(..count).unwrap_or_default();
            let mut waited = false;
            while let [first, rest @ ..] = left {
                match self.messages.send(self.fd.as_fd(), left) {
                    Ok(n) => {
                        let (done, rest) = left.split_at(n.min(left.len()));
                        done.iter().for_each(|frame| sent.took(frame.len()));
                        (left, waited) = (rest, false);
                        continue;
                    }
                    Err(e) => match e.raw_os_error() {
                        Some(libc::EINTR) => continue,
                        Some(libc::EAGAIN) if !waited => {
                            waited = true;
                            sys::wait(self.fd.as_fd(), libc::POLLOUT, WAIT)
                                .map_err(failed(&self.name, "poll"))?;
                            continue;
                        }
                        // What becomes of a frame that nobody is there to take at the other end.
                        Some(libc::ENOBUFS)
                            if !*carrier.get_or_insert_with(|| self.is_connected()) =>
                        {
                            sent.down += 1;
                        }
                        Some(libc::EAGAIN | libc::ENOBUFS) => sent.ring_full += 1,
                        Some(libc::EMSGSIZE) => sent.too_large += 1,
                        // Shorter than an Ethernet header.
                        Some(libc::EINVAL) if first.len() < 15 => sent.too_short += 1,
                        _ => return Err(failed(&self.name, "sendmmsg")(e)),
                    },
                }
                left = rest;
            }
        }
        Ok(())
    }
}
