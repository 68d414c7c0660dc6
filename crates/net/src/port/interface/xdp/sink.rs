//! The sending end of an XDP socket.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::ring::Ring;
use super::socket::{CHUNK, CHUNKS, Socket};
use crate::port::batch::{Batch, ETH_HLEN};
use crate::port::error::PortError;
use crate::port::interface::{failed, sys};
use crate::port::sink::{Dropped, Sent, Sink};

/// How long a full ring may take until there is room again.
const WAIT: Duration = Duration::from_millis(100);
/// How long to wait before the kernel is asked again to send.
const PAUSE: Duration = Duration::from_millis(1);

/// Sends frames on one queue of an interface.
#[derive(Debug)]
pub struct XdpSink {
    socket: Arc<Socket>,
    completion: Ring,
    send: Ring,
    /// Chunks that hold no frame.
    free: Vec<u64>,
    /// Bytes of the frame in each chunk.
    lengths: Vec<u32>,
    /// Frames that were taken, and then dropped by the device, which nobody was told of yet.
    dropped: Dropped,
    /// Frames in the ring up to here were given up.
    given_up: u32,
}

impl XdpSink {
    pub(super) fn new(socket: Arc<Socket>, completion: Ring, send: Ring) -> Self {
        let free = (CHUNKS..2 * CHUNKS).map(|n| n * CHUNK).collect();
        let lengths = vec![0; CHUNKS as usize];
        let dropped = Dropped::default();
        Self { socket, completion, send, free, lengths, dropped, given_up: 0 }
    }

    /// Returns the number of the interface.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.socket.index
    }

    /// Takes back the chunks that have been sent.
    fn reclaim(&mut self) {
        let done = self.completion.available();
        // No more than there are can be free, so the vector does not grow.
        let room = CHUNKS as usize - self.free.len().min(CHUNKS as usize);
        let done = done.min(room as u32);
        (0..done).for_each(|n| self.free.push(self.completion.address(n)));
        if done > 0 {
            self.completion.take(done);
        }
    }

    /// Has the kernel send what is in the ring.
    fn kick(&mut self) -> Result<(), PortError> {
        // The kernel sends some frames a call.
        for _ in 0..CHUNKS {
            if self.send.pending() == 0 || !self.send.needs_wakeup() {
                break;
            }
            match sys::kick(self.socket.fd.as_fd()) {
                Ok(()) => {}
                Err(e) => match e.raw_os_error() {
                    Some(libc::EAGAIN | libc::EINTR) => {}
                    // The device had no room for one frame, which is done with (`NET_XMIT_DROP` in
                    // net/xdp/xsk.c).
                    Some(libc::EBUSY) => self.count_dropped(),
                    // It goes on by itself, or at the next call.
                    Some(libc::ENOBUFS) => break,
                    _ => return Err(failed(&self.socket.name, "sendto")(e)),
                },
            }
        }
        self.reclaim();
        Ok(())
    }

    /// Counts a frame that the device dropped just now: the chunk that came back last was its.
    fn count_dropped(&mut self) {
        let last = self.completion.available().checked_sub(1);
        let chunk = last.map(|n| (self.completion.address(n) / CHUNK).wrapping_sub(CHUNKS));
        let len = chunk.and_then(|chunk| self.lengths.get(usize::try_from(chunk).ok()?));
        self.dropped.ring_full += 1;
        self.dropped.bytes += u64::from(len.copied().unwrap_or_default());
    }

    /// Gives up the frames that the kernel has not taken; returns how many, each once.
    fn give_up(&mut self, pending: u32) -> u64 {
        let new = pending.min(self.send.since(self.given_up));
        let lengths = (1..=new).map(|back| u64::from(self.send.frame(back.wrapping_neg()).1));
        self.dropped.bytes += lengths.sum::<u64>();
        self.given_up = self.send.place();
        u64::from(new)
    }

    /// After an error the kernel takes no frame any more.
    fn give_up_on_error(&mut self, done: Result<(), PortError>) -> Result<(), PortError> {
        if done.is_err() {
            self.dropped.unwritten += self.give_up(self.send.pending());
        }
        done
    }

    /// Puts frames into the ring.
    fn put(&mut self, batch: &Batch, frames: &[u16], sent: &mut Sent) -> Result<(), PortError> {
        let mut pending = 0;
        for frame in frames.iter().filter_map(|index| batch.frame(usize::from(*index))) {
            let len = frame.bytes.len();
            if len as u64 > CHUNK {
                sent.too_large += 1;
            } else if len < ETH_HLEN {
                sent.too_short += 1;
            } else if let Some(chunk) = self.chunk(&mut pending)? {
                self.socket.memory.copy_in(chunk as usize, frame.bytes);
                self.send.put_frame(pending, chunk, len as u32);
                let number = (chunk / CHUNK).wrapping_sub(CHUNKS);
                if let Some(length) = self.lengths.get_mut(number as usize) {
                    *length = len as u32;
                }
                pending += 1;
                sent.took(len);
            } else {
                sent.ring_full += 1;
            }
        }
        self.send.add(pending);
        self.kick()
    }

    fn wait_for_all(&mut self) -> Result<(), PortError> {
        let (mut left, mut since) = (u32::MAX, Instant::now());
        loop {
            self.kick()?;
            let pending = self.send.pending();
            if pending == 0 {
                return Ok(());
            }
            sys::take_error(self.socket.fd.as_fd()).map_err(failed(&self.socket.name, "sendto"))?;
            if pending < left {
                (left, since) = (pending, Instant::now());
            } else if since.elapsed() > WAIT {
                self.dropped.ring_full += self.give_up(pending);
                return Ok(());
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Finds a chunk for a frame, and waits for one if there is none.
    fn chunk(&mut self, pending: &mut u32) -> Result<Option<u64>, PortError> {
        if self.free.is_empty() || self.send.room() <= *pending {
            self.send.add(std::mem::take(pending));
            self.kick()?;
            if self.free.is_empty() || self.send.room() == 0 {
                sys::wait(self.socket.fd.as_fd(), libc::POLLOUT, WAIT)
                    .map_err(failed(&self.socket.name, "poll"))?;
                self.kick()?;
            }
        }
        Ok(if self.send.room() > *pending { self.free.pop() } else { None })
    }
}

impl Sink for XdpSink {
    fn send_counted(
        &mut self,
        batch: &Batch,
        frames: &[u16],
        sent: &mut Sent,
    ) -> Result<(), PortError> {
        let done = self.put(batch, frames, sent);
        self.give_up_on_error(done)
    }

    fn dropped(&mut self) -> Dropped {
        std::mem::take(&mut self.dropped)
    }

    /// Waits until the kernel has taken all frames: it takes none while the socket's buffer is full of
    /// frames that the other side has not taken. When it goes on with none for 100 ms, the rest counts
    /// as dropped.
    fn flush(&mut self) -> Result<(), PortError> {
        let done = self.wait_for_all();
        self.give_up_on_error(done)
    }
}
