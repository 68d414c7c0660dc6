//! Where frames go to.

use super::batch::Batch;
use super::error::PortError;

/// What became of frames that a [`Sink`] was given.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Sent {
    /// Frames that it took.
    pub packets: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// Frames that were dropped because the other side did not keep up.
    pub ring_full: u64,
    /// Frames that were dropped because they are larger than the port takes.
    pub too_large: u64,
    /// Frames that were dropped because the port takes none so short.
    pub too_short: u64,
    /// Frames that were dropped because the interface is down, gone, or not connected.
    pub down: u64,
    /// Frames that were dropped because the port failed before it had written them.
    pub unwritten: u64,
}

impl Sent {
    /// Counts a frame that was taken.
    #[inline]
    pub fn took(&mut self, bytes: usize) {
        self.packets += 1;
        self.bytes += bytes as u64;
    }

    /// Says of frames that were taken that they were dropped then.
    pub(super) fn take_back(&mut self, dropped: Dropped) {
        let ring_full = dropped.ring_full.min(self.packets);
        let unwritten = dropped.unwritten.min(self.packets - ring_full);
        self.packets -= ring_full + unwritten;
        self.bytes = self.bytes.saturating_sub(dropped.bytes);
        self.ring_full += ring_full;
        self.unwritten += unwritten;
    }

    /// Counts all frames, whatever became of them.
    pub(super) fn all(&self) -> u64 {
        let Self { packets, bytes: _, ring_full, too_large, too_short, down, unwritten } = self;
        packets + ring_full + too_large + too_short + down + unwritten
    }
}

impl std::ops::AddAssign for Sent {
    fn add_assign(&mut self, other: Self) {
        self.packets += other.packets;
        self.bytes += other.bytes;
        self.ring_full += other.ring_full;
        self.too_large += other.too_large;
        self.too_short += other.too_short;
        self.down += other.down;
        self.unwritten += other.unwritten;
    }
}

/// Frames that a [`Sink`] has said it took, and that got lost on their way then.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Dropped {
    /// Frames that were dropped because the other side did not keep up.
    pub ring_full: u64,
    /// Frames that were dropped because the port failed.
    pub unwritten: u64,
    /// Bytes of all these.
    pub bytes: u64,
}

/// A port that frames go to.
pub trait Sink: Send {
    /// Takes frames of a batch, by their numbers and in this order, and counts in `sent` what became of
    /// each. The bytes are the sink's only during the call.
    ///
    /// # Errors
    /// When the port takes no more frames at all; a frame that it cannot take is counted instead.
    /// Frames that were not counted then have not been sent.
    fn send_counted(
        &mut self,
        batch: &Batch,
        frames: &[u16],
        sent: &mut Sent,
    ) -> Result<(), PortError>;

    /// Does the same, and returns what became of these frames.
    ///
    /// # Errors
    /// As [`Sink::send_counted`]. What was sent before is not told then.
    fn send(&mut self, batch: &Batch, frames: &[u16]) -> Result<Sent, PortError> {
        let mut sent = Sent::default();
        self.send_counted(batch, frames, &mut sent)?;
        Ok(sent)
    }

    /// Tells what was taken by [`Sink::send`] and dropped afterwards, since it was asked last.
    fn dropped(&mut self) -> Dropped {
        Dropped::default()
    }

    /// Sends on what the sink has kept so far. Who uses a sink calls this at the end, and learns
    /// whether all of it arrived.
    ///
    /// # Errors
    /// As for [`Sink::send`].
    fn flush(&mut self) -> Result<(), PortError> {
        Ok(())
    }
}
