//! Where frames come from.

use std::time::Duration;

use super::batch::Batch;
use super::error::PortError;

/// What a [`Source`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Received {
    /// The batch has at least one frame more.
    Frames,
    /// No frame came in the time given.
    Nothing,
    /// There are no more frames, and never will be.
    End,
}

/// What a source knows to be missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Lost {
    /// Frames that the kernel dropped because nobody took them in time.
    pub ring_full: u64,
    /// Frames that came with fewer bytes than they had on the wire.
    pub shortened: u64,
    /// Frames that were left out because they have more than [`super::batch::MAX_FRAME`] bytes.
    pub too_large: u64,
    /// Where in a file a packet begins that the file does not have all of.
    pub cut_at: Option<u64>,
}

/// A port that frames come from.
pub trait Source: Send {
    /// Adds frames to the batch until it is full or no more are there at once. Waits for the first
    /// one, at most as long as given; sources that never wait ignore that.
    ///
    /// # Errors
    /// When the port cannot be read any more. Frames that were added before stay in the batch.
    fn receive(&mut self, batch: &mut Batch, wait: Duration) -> Result<Received, PortError>;

    /// Makes an empty batch to receive into: the same one each time.
    fn batch(&self) -> Batch {
        Batch::new()
    }

    /// Counts what is missing, as of now.
    ///
    /// # Errors
    /// When the kernel does not tell.
    fn lost(&mut self) -> Result<Lost, PortError> {
        Ok(Lost::default())
    }
}
