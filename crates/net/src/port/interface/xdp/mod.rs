//! `AF_XDP`: frames of one receive queue of an interface, in memory that is shared with the kernel.
//!
//! ```text
//! umem          chunk 0 │ chunk 1 │ …          4096 bytes each; one half is received into, the
//!                                              other half is sent from
//! fill ring     chunks that the kernel may receive into        ──►
//! receive ring  chunks with frames, and their lengths          ◄──
//! send ring     chunks with frames to send, and their lengths  ──►
//! completion    chunks that have been sent                     ◄──
//! ```
//!
//! A program in the kernel sends the frames of the queue to the socket by an XSK map; frames of
//! other queues go to the stack as before. It is attached by a link, so it goes with the socket,
//! however the process ends. Root, or `CAP_NET_RAW`, `CAP_NET_ADMIN` and `CAP_BPF`.
//!
//! Where the kernel does not map the device's memory (zero copy), it copies each frame once. Then
//! the ring of packet sockets ([`super::PacketSource`]) is as fast; measured on veth devices.

mod ring;
mod sink;
mod socket;
mod source;

pub use sink::XdpSink;
pub use socket::{Copying, XdpOptions, open, open_sink};
pub use source::XdpSource;
