//! Ports in memory: what is sent into one comes out of the other side, perhaps in another thread.
//!
//! [`pair`] makes two ends, as a pair of veth devices has. Several pairs make a switch: a thread
//! pumps each inner end, and the outputs of all of them have the inner sinks of the others by their
//! port numbers. [`queue`] is one direction only, through which frames keep their ports.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::batch::{Batch, MAX_FRAME, Meta};
use super::error::PortError;
use super::sink::{Sent, Sink};
use super::source::{Received, Source};

/// Frames that wait in one direction.
#[derive(Debug, Default)]
struct Queue {
    frames: VecDeque<(Meta, u32)>,
    bytes: VecDeque<u8>,
    senders: usize,
    has_receiver: bool,
}

#[derive(Debug, Default)]
struct Ring {
    queue: Mutex<Queue>,
    /// Told when frames come, or the last sender goes.
    changed: Condvar,
    /// Most frames, and bytes of these.
    max_frames: usize,
    max_bytes: usize,
}

impl Ring {
    fn new(max_frames: usize) -> Arc<Self> {
        // Enough for frames of ordinary size; a ring of few frames still takes the largest.
        let max_bytes = (max_frames * 2048).max(MAX_FRAME);
        let queue = Queue {
            frames: VecDeque::with_capacity(max_frames),
            bytes: VecDeque::with_capacity(max_bytes),
            senders: 1,
            has_receiver: true,
        };
        Arc::new(Self { queue: Mutex::new(queue), changed: Condvar::new(), max_frames, max_bytes })
    }

    /// A thread that panicked left the queue as it was between two frames at worst; its frames are
    /// counted by who sent them.
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The end that frames come out of. Those of a pair have its number as their port.
#[derive(Debug)]
pub struct MemorySource {
    ring: Arc<Ring>,
    port: Option<u32>,
}

/// The end that frames go into. A clone goes into the same ring.
#[derive(Debug)]
pub struct MemorySink {
    ring: Arc<Ring>,
    name: String,
}

/// One end of a pair.
#[derive(Debug)]
pub struct MemoryPort {
    /// Gives what the other end was sent.
    pub source: MemorySource,
    /// Sends to the other end.
    pub sink: MemorySink,
}

/// Makes two ports, connected by a ring of `frames` frames in each direction. Frames that come out
/// of the first have its number as their port, those of the second the second's.
///
/// ```
/// use std::time::Duration;
/// use skep_net::port::batch::Meta;
/// use skep_net::port::{Batch, Received, Sink, Source, memory};
///
/// let [mut inside, mut outside] = memory::pair([1, 101], 256);
/// let mut batch = Batch::new();
/// assert!(batch.push(Meta::default(), b"a frame"));
/// outside.sink.send(&batch, &[0])?;
/// batch.clear();
/// assert_eq!(inside.source.receive(&mut batch, Duration::ZERO)?, Received::Frames);
/// assert_eq!(batch.frame(0).map(|f| (f.bytes, f.meta.port)), Some((&b"a frame"[..], 1)));
/// # Ok::<(), skep_net::port::PortError>(())
/// ```
#[must_use]
pub fn pair(ports: [u32; 2], frames: usize) -> [MemoryPort; 2] {
    let rings = [Ring::new(frames.max(1)), Ring::new(frames.max(1))];
    [0, 1].map(|end| MemoryPort {
        source: MemorySource { ring: Arc::clone(&rings[end]), port: Some(ports[end]) },
        sink: MemorySink {
            ring: Arc::clone(&rings[1 - end]),
            name: format!("memory port {}", ports[end]),
        },
    })
}

/// Makes a queue of `frames` frames from one thread to another, which keep what is known of them.
///
/// ```
/// use std::time::Duration;
/// use skep_net::port::batch::Meta;
/// use skep_net::port::{Batch, Received, Sink, Source, memory};
///
/// let (mut sink, mut source) = memory::queue("to the worker", 256);
/// let mut batch = Batch::new();
/// assert!(batch.push(Meta { port: 7, ..Meta::default() }, b"a frame"));
/// sink.send(&batch, &[0])?;
/// batch.clear();
/// assert_eq!(source.receive(&mut batch, Duration::ZERO)?, Received::Frames);
/// assert_eq!(batch.frame(0).map(|f| (f.bytes, f.meta.port)), Some((&b"a frame"[..], 7)));
/// # Ok::<(), skep_net::port::PortError>(())
/// ```
#[must_use]
pub fn queue(name: &str, frames: usize) -> (MemorySink, MemorySource) {
    let ring = Ring::new(frames.max(1));
    let sink = MemorySink { ring: Arc::clone(&ring), name: name.to_owned() };
    (sink, MemorySource { ring, port: None })
}

impl Source for MemorySource {
    /// Ends when all sinks are gone and their frames have come.
    fn receive(&mut self, batch: &mut Batch, wait: Duration) -> Result<Received, PortError> {
        let started = Instant::now();
        let mut queue = self.ring.lock();
        while queue.frames.is_empty() {
            if queue.senders == 0 {
                return Ok(Received::End);
            }
            let left = wait.saturating_sub(started.elapsed());
            if left.is_zero() {
                return Ok(Received::Nothing);
            }
            let waited = self.ring.changed.wait_timeout(queue, left);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let mut received = Received::Nothing;
        while let Some((meta, len)) = queue.frames.front().copied() {
            let len = len as usize;
            let meta = Meta { port: self.port.unwrap_or(meta.port), ..meta };
            let Some(room) = batch.reserve(meta, len) else { break };
            let (first, second) = queue.bytes.as_slices();
            let split = first.len().min(len);
            let (head, tail) = room.split_at_mut(split);
            head.copy_from_slice(first.get(..split).unwrap_or_default());
            tail.copy_from_slice(second.get(..len - split).unwrap_or_default());
            queue.bytes.drain(..len);
            queue.frames.pop_front();
            received = Received::Frames;
        }
        Ok(received)
    }
}

impl Drop for MemorySource {
    fn drop(&mut self) {
        self.ring.lock().has_receiver = false;
    }
}

impl Sink for MemorySink {
    /// Fails when the other end is gone.
    fn send_counted(
        &mut self,
        batch: &Batch,
        frames: &[u16],
        sent: &mut Sent,
    ) -> Result<(), PortError> {
        let mut queue = self.ring.lock();
        if !queue.has_receiver {
            return Err(PortError::Gone { name: self.name.clone() });
        }
        for frame in frames.iter().filter_map(|index| batch.frame(usize::from(*index))) {
            let len = frame.bytes.len();
            if len > MAX_FRAME {
                sent.too_large += 1;
            } else if queue.frames.len() >= self.ring.max_frames
                || queue.bytes.len() + len > self.ring.max_bytes
            {
                sent.ring_full += 1;
            } else {
                queue.bytes.extend(frame.bytes);
                queue.frames.push_back((frame.meta, len as u32));
                sent.took(len);
            }
        }
        drop(queue);
        self.ring.changed.notify_one();
        Ok(())
    }
}

impl Clone for MemorySink {
    fn clone(&self) -> Self {
        self.ring.lock().senders += 1;
        Self { ring: Arc::clone(&self.ring), name: self.name.clone() }
    }
}

impl Drop for MemorySink {
    fn drop(&mut self) {
        self.ring.lock().senders -= 1;
        self.ring.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(frames: &[&[u8]]) -> (Batch, Vec<u16>) {
        let mut batch = Batch::new();
        frames.iter().for_each(|f| assert!(batch.push(Meta::default(), f)));
        let all = (0..batch.len() as u16).collect();
        (batch, all)
    }

    #[test]
    fn a_full_ring_drops_and_counts() {
        let [mut a, mut b] = pair([1, 2], 3);
        let (frames, all) = batch(&[b"one", b"", b"three", b"four"]);
        let sent = a.sink.send(&frames, &all).expect("the other end is there");
        assert_eq!((sent.packets, sent.bytes, sent.ring_full), (3, 8, 1));
        let mut got = Batch::with_limit(2);
        assert_eq!(b.source.receive(&mut got, Duration::ZERO).ok(), Some(Received::Frames));
        assert_eq!(got.frames().map(|f| f.bytes).collect::<Vec<_>>(), [&b"one"[..], b""]);
        assert_eq!(a.sink.send(&frames, &[3]).map(|s| s.packets).ok(), Some(1));
        got.clear();
        assert_eq!(b.source.receive(&mut got, Duration::ZERO).ok(), Some(Received::Frames));
        assert_eq!(got.frames().map(|f| f.bytes).collect::<Vec<_>>(), [&b"three"[..], b"four"]);
        assert_eq!(b.source.receive(&mut got, Duration::ZERO).ok(), Some(Received::Nothing));
        let (large, all) = batch(&[&[7; MAX_FRAME]]);
        assert_eq!(a.sink.send(&large, &all).map(|s| s.packets).ok(), Some(1));
    }

    #[test]
    fn an_end_that_is_gone_is_noticed_by_the_other() {
        let [a, mut b] = pair([1, 2], 8);
        let (frames, all) = batch(&[b"last"]);
        let mut clone = a.sink.clone();
        drop(a.sink);
        assert_eq!(clone.send(&frames, &all).map(|s| s.packets).ok(), Some(1));
        drop(clone);
        let mut got = Batch::new();
        let ever = Duration::from_secs(1000);
        assert_eq!(b.source.receive(&mut got, ever).ok(), Some(Received::Frames));
        assert_eq!(b.source.receive(&mut got, ever).ok(), Some(Received::End));
        drop(a.source);
        let error = b.sink.send(&frames, &all).expect_err("nobody listens");
        assert_eq!(error.to_string(), "the other end of `memory port 2` is gone");
    }
}
