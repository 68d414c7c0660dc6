//! What ends a port.

use std::io;

use super::batch::MAX_FRAME;
use super::capture::CaptureError;
use super::generator::MIN_FRAME;

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
    #[error("`{name}`, after {packets} packet{}: {source}", if *packets == 1 { "" } else { "s" })]
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
    /// A generator is told no sizes.
    #[error("`{name}` gives no sizes; write `gen:SIZE`, several with `+` between")]
    Sizes {
        /// What was written.
        name: String,
    },
    /// A generator is told a size that it cannot make.
    #[error("`{name}`: packets have {MIN_FRAME} to {MAX_FRAME} bytes, not {size}")]
    Size {
        /// What was written.
        name: String,
        /// The size.
        size: usize,
    },
    /// A generator is to take frames.
    #[error("`{name}` makes packets and takes none")]
    Generator {
        /// What was written.
        name: String,
    },
    /// The kernel's stack is to give frames.
    #[error("`{name}` takes packets and gives none; name the interface alone to receive on it")]
    Stack {
        /// What was written.
        name: String,
    },
    /// The queue of an interface is no number.
    #[error("`{name}` names no queue; write `xdp:NAME@QUEUE`, or `xdp:NAME` for queue 0")]
    Queue {
        /// What was written.
        name: String,
    },
    /// No interface can have this name.
    #[error("`tap:{name}`: an interface's name has 1 to 15 bytes, and neither `/`, `:` nor spaces")]
    TapName {
        /// Which name.
        name: String,
    },
    /// There is no interface of this name in the network namespace.
    #[error("there is no interface `{name}`")]
    NoInterface {
        /// Which name.
        name: String,
    },
    /// An interface cannot be used any more.
    #[error("the interface `{name}` is down, or gone")]
    Down {
        /// Which interface.
        name: String,
    },
    /// The kernel does not let this process use the port.
    #[error("`{name}` cannot be opened without root or {} (`{call}`)", capabilities(call))]
    NotAllowed {
        /// Which port.
        name: String,
        /// The system call that was refused.
        call: &'static str,
    },
    /// A system call failed.
    #[error("`{call}` on `{name}` failed: {source}")]
    Call {
        /// Which port.
        name: String,
        /// The system call.
        call: &'static str,
        /// Why.
        source: io::Error,
    },
}

/// Names what a process needs for a system call, besides being root.
fn capabilities(call: &str) -> &'static str {
    match call {
        "bpf" => "CAP_BPF and CAP_NET_ADMIN",
        _ => "CAP_NET_ADMIN and CAP_NET_RAW",
    }
}
