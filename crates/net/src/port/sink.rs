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
        let packets = dropped.packets.min(self.packets);
        self.packets -= packets;
        self.bytes = self.bytes.saturating_sub(dropped.bytes);
        match dropped.is_unwritten {
            true => self.unwritten += packets,
            false => self.ring_full += packets,
        }
    }
}

impl std::ops::AddAssign for Sent {
    fn add_assign(&mut self, other: Self) {
        self.packets += other.packets;
        self.bytes += other.bytes;
        self.ring_full += other.ring_full;
        self.too_large += other.too_large;
        self.too_short += other.too_short;
        self.unwritten += other.unwritten;
    }
}

/// Frames that a [`Sink`] has said it took, and that got lost on their way then.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Dropped {
    /// How many.
    pub packets: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// The port failed; else the other side did not keep up.
    pub is_unwritten: bool,
}

/// A port that frames go to.
pub trait Sink: Send {
    /// Takes frames of a batch, by their numbers and in this order. The bytes are the sink's only
    /// during the call.
    ///
    /// # Errors
    /// When the port takes no more frames at all; a frame that it cannot take is counted in the
    /// result instead.
    fn send(&mut self, batch: &Batch, frames: &[u16]) -> Result<Sent, PortError>;

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
