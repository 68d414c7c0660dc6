//! What ends a port.

use std::io;

use super::capture::CaptureError;

/// Says why a port cannot be used, or not any more.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PortError {
    /// A file cannot be opened or created.
    #[error("cannot open `{name}`: {source}")]
    Open {
        /// Which file.
        name: String,
        /// Why.
        source: io::Error,
    },
    /// What was read from a file is not what a capture file has there.
    #[error("`{name}`, after {packets} packets: {source}")]
    Capture {
        /// Which file.
        name: String,
        /// Packets read before.
        packets: u64,
        /// Why.
        source: CaptureError,
    },
    /// A file cannot be written any more.
    #[error(
        "cannot write `{name}` any further: {source}; {packets} packets are in it, {lost} are not"
    )]
    Write {
        /// Which file.
        name: String,
        /// Packets that are in the file, all of each.
        packets: u64,
        /// Packets that the sink had taken and are not.
        lost: u64,
        /// Why.
        source: io::Error,
    },
    /// Nobody takes what is sent any more.
    #[error("the other end of `{name}` is gone")]
    Gone {
        /// Which port.
        name: String,
    },
}
