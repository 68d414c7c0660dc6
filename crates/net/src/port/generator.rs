//! Frames made up: UDP over IPv4, of given sizes, each with its number in it.

use std::time::Duration;

use super::batch::{Batch, MAX_FRAME, Meta};
use super::error::PortError;
use super::source::{Received, Source};

/// Bytes before the payload: Ethernet, IPv4, UDP.
const HEADERS: usize = 14 + 20 + 8;
/// Least bytes of a frame, which has room for its number.
pub const MIN_FRAME: usize = HEADERS + 8;
const SOURCE_PORT: usize = 34;
/// First source port of the flows.
const FIRST_PORT: u16 = 1024;

/// Makes frames from 10.0.0.1 to 10.0.0.2, UDP port 9, as fast as they are taken.
///
/// The payload begins with the frame's number, from 0 on, as eight bytes with the highest first;
/// the rest is zero. The UDP checksum is left out, which IPv4 allows.
///
/// ```
/// use std::time::Duration;
/// use skep_net::port::{Batch, Source, generator::Generator};
///
/// let mut batch = Batch::new();
/// Generator::new(&[64, 1514]).packets(3).receive(&mut batch, Duration::ZERO)?;
/// let lengths: Vec<_> = batch.frames().map(|f| f.bytes.len()).collect();
/// assert_eq!(lengths, [64, 1514, 64]);
/// # Ok::<(), skep_net::port::PortError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Generator {
    /// A frame of each size.
    frames: Vec<Vec<u8>>,
    next: u64,
    end: u64,
    flows: u16,
    port: u32,
}

impl Generator {
    /// Makes frames of these sizes in turn; each is brought into the range from [`MIN_FRAME`] to
    /// [`MAX_FRAME`]. No sizes: 64 bytes.
    #[must_use]
    pub fn new(sizes: &[usize]) -> Self {
        let sizes = if sizes.is_empty() { &[64] } else { sizes };
        let frames = sizes.iter().map(|size| frame((*size).clamp(MIN_FRAME, MAX_FRAME))).collect();
        Self { frames, next: 0, end: u64::MAX, flows: 1, port: 1 }
    }

    /// Ends after so many frames.
    #[must_use]
    pub fn packets(self, packets: u64) -> Self {
        Self { end: packets, ..self }
    }

    /// Takes so many source ports in turn, from 1024 on.
    #[must_use]
    pub fn flows(self, flows: u16) -> Self {
        Self { flows: flows.clamp(1, u16::MAX - FIRST_PORT), ..self }
    }

    /// Gives frames this port number instead of 1.
    #[must_use]
    pub fn port(self, port: u32) -> Self {
        Self { port, ..self }
    }
}

impl Source for Generator {
    fn receive(&mut self, batch: &mut Batch, _: Duration) -> Result<Received, PortError> {
        let before = batch.len();
        let sizes = self.frames.len() as u64;
        let mut size = (self.next % sizes) as usize;
        while self.next < self.end {
            let Some(frame) = self.frames.get(size) else { break };
            let len = frame.len();
            let meta = Meta { ns: 0, wire_len: len as u32, port: self.port, queue: 0 };
            let Some(room) = batch.reserve(meta, len) else { break };
            room.copy_from_slice(frame);
            let port = FIRST_PORT + (self.next % u64::from(self.flows)) as u16;
            put(room, SOURCE_PORT, &port.to_be_bytes());
            put(room, HEADERS, &self.next.to_be_bytes());
            self.next += 1;
            size = if size + 1 == self.frames.len() { 0 } else { size + 1 };
        }
        Ok(match batch.len() > before {
            true => Received::Frames,
            false if self.next >= self.end => Received::End,
            false => Received::Nothing,
        })
    }
}

fn put(frame: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(room) = frame.get_mut(at..at + bytes.len()) {
        room.copy_from_slice(bytes);
    }
}

/// A frame of a size, but for its number.
fn frame(size: usize) -> Vec<u8> {
    let mut frame = vec![0; size];
    // What is larger than IPv4 allows says the largest length.
    let length = |from: usize| u16::try_from(size - from).unwrap_or(u16::MAX).to_be_bytes();
    put(&mut frame, 0, &[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]);
    put(&mut frame, 14, &[0x45, 0]);
    put(&mut frame, 16, &length(14));
    put(&mut frame, 22, &[64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    let sum: u32 = frame[14..34].chunks(2).map(|b| u32::from(b[0]) << 8 | u32::from(b[1])).sum();
    put(&mut frame, 24, &(!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes());
    put(&mut frame, 36, &9_u16.to_be_bytes());
    put(&mut frame, 38, &length(34));
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_numbered_and_their_headers_are_right() {
        let mut generator = Generator::new(&[64, 100, 1]).packets(150).flows(7).port(3);
        let (mut batch, mut n) = (Batch::new(), 0_u64);
        while generator.receive(&mut batch, Duration::ZERO).ok() == Some(Received::Frames) {
            for frame in batch.frames() {
                let bytes = frame.bytes;
                assert_eq!(bytes.len(), [64, 100, MIN_FRAME][n as usize % 3]);
                assert_eq!(bytes[42..50], n.to_be_bytes());
                assert_eq!(bytes[34..36], (1024 + n as u16 % 7).to_be_bytes());
                let word = |at: usize| u32::from(bytes[at]) << 8 | u32::from(bytes[at + 1]);
                let sum: u32 = (14..34).step_by(2).map(word).sum();
                assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
                let len = bytes.len() as u32;
                assert_eq!((word(16), word(38), frame.meta.port), (len - 14, len - 34, 3));
                n += 1;
            }
            batch.clear();
        }
        assert_eq!(n, 150);
    }
}
