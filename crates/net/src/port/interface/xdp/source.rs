//! The receiving end of an XDP socket.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::ring::Ring;
use super::socket::{CHUNK, Socket};
use crate::port::batch::{Batch, Meta};
use crate::port::error::PortError;
use crate::port::interface::{failed, now, sys};
use crate::port::source::{Lost, Received, Source};

/// How long to wait before the socket is asked whether its interface is still there, and up: waiting
/// does not end when it goes.
const WAIT: Duration = Duration::from_millis(100);

/// How long more frames are looked for before a wait begins, while they come: to wake who waits costs the
/// sender more than that.
const LOOK: Duration = Duration::from_micros(20);

/// Receives the frames of one queue of an interface.
#[derive(Debug)]
pub struct XdpSource {
    socket: Arc<Socket>,
    fill: Ring,
    receive: Ring,
    /// The rest of a frame that is longer than a chunk is still to come, and left out.
    in_rest: bool,
    /// The last time there were frames.
    flows: bool,
    lost: Lost,
}

impl XdpSource {
    pub(super) fn new(socket: Arc<Socket>, fill: Ring, receive: Ring) -> Self {
        Self { socket, fill, receive, in_rest: false, flows: false, lost: Lost::default() }
    }

    /// Returns the number of the interface.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.socket.index
    }

    /// Looks for frames for a moment; tells whether some came.
    fn look(&mut self, wait: Duration) -> bool {
        let until = Instant::now() + wait.min(LOOK);
        loop {
            for _ in 0..8 {
                if self.receive.available() > 0 {
                    return true;
                }
                std::hint::spin_loop();
            }
            if Instant::now() >= until {
                return false;
            }
        }
    }

    /// Copies what came into the batch, and gives the chunks back; returns how many there were.
    fn take(&mut self, batch: &mut Batch) -> u32 {
        let available = self.receive.available().min(self.fill.room());
        let ns = if available > 0 { now() } else { 0 };
        let mut taken = 0;
        while taken < available {
            let (address, len, goes_on) = self.receive.frame(taken);
            if goes_on || self.in_rest {
                self.lost.too_large += u64::from(!self.in_rest);
                self.in_rest = goes_on;
            } else {
                let meta =
                    Meta { ns, wire_len: len, port: self.socket.index, queue: self.socket.queue };
                let Some(room) = batch.reserve(meta, len as usize) else { break };
                if !self.socket.memory.copy_out(address as usize, room) {
                    batch.pop();
                    self.lost.too_large += 1;
                }
            }
            self.fill.put_address(taken, address - address % CHUNK);
            taken += 1;
        }
        if taken > 0 {
            // The frames have been copied out.
            self.receive.take(taken);
            self.fill.add(taken);
        }
        taken
    }
}

impl Source for XdpSource {
    fn receive(&mut self, batch: &mut Batch, wait: Duration) -> Result<Received, PortError> {
        let before = batch.len();
        if self.take(batch) == 0 && !batch.is_empty() {
            return Ok(Received::Nothing);
        }
        if batch.len() == before && !(self.flows && self.look(wait) && self.take(batch) > 0) {
            sys::wait(self.socket.fd.as_fd(), libc::POLLIN, wait.min(WAIT))
                .map_err(failed(&self.socket.name, "poll"))?;
            if self.take(batch) == 0 {
                let state = sys::take_error(self.socket.fd.as_fd());
                state.map_err(failed(&self.socket.name, "poll"))?;
                let state = sys::poke(self.socket.fd.as_fd());
                state.map_err(failed(&self.socket.name, "recvfrom"))?;
            }
        } else if self.fill.needs_wakeup() {
            let woken = sys::wait(self.socket.fd.as_fd(), libc::POLLIN, Duration::ZERO);
            woken.map_err(failed(&self.socket.name, "poll"))?;
        }
        self.flows = batch.len() > before;
        Ok(if self.flows { Received::Frames } else { Received::Nothing })
    }

    fn lost(&mut self) -> Result<Lost, PortError> {
        let stats = sys::xdp_statistics(self.socket.fd.as_fd());
        let stats = stats.map_err(failed(&self.socket.name, "getsockopt"))?;
        Ok(Lost { ring_full: stats.rx_dropped + stats.rx_ring_full, ..self.lost })
    }
}
