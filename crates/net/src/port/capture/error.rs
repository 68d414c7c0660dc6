//! What is wrong in a capture file.

use std::io;

use crate::port::batch::MAX_FRAME;

/// Says what is wrong in a capture file, and where.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// There is not a byte in it.
    #[error("it is empty")]
    Empty,
    /// It ends before its header does.
    #[error("it ends inside its header")]
    Header,
    /// It is something else.
    #[error("it is neither pcap nor pcapng: it begins with {}", hex(*.0))]
    Magic([u8; 4]),
    /// It is of a kind that was never standard.
    #[error("it is a pcap file as modified by Kuznetzov, whose packets have other headers")]
    Modified,
    /// It is of a version that is not known.
    #[error("version {major}.{minor} of the format is not known")]
    Version {
        /// The version's first number.
        major: u16,
        /// Its second.
        minor: u16,
    },
    /// A packet is longer than any can be.
    #[error("the packet at byte {offset} has {len} bytes, no packet has more than {MAX_FRAME}")]
    Packet {
        /// Where it begins.
        offset: u64,
        /// The length that is given.
        len: u32,
    },
    /// A block of a pcapng file contradicts itself.
    #[error("the block at byte {offset}: {what}")]
    Block {
        /// Where it begins.
        offset: u64,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A packet is of an interface that was not described before.
    #[error("the packet at byte {offset} is of interface {interface}, of {known} in its section")]
    Interface {
        /// Where the packet begins.
        offset: u64,
        /// The number of the interface.
        interface: u32,
        /// How many there are.
        known: u32,
    },
    /// The packets are not of Ethernet.
    #[error("the packets are of link type {0}, packet programs take Ethernet (1)")]
    LinkType(u16),
    /// The system did not give what is there.
    #[error(transparent)]
    Read(#[from] io::Error),
}

fn hex(bytes: [u8; 4]) -> String {
    bytes.map(|b| format!("{b:02x}")).join(" ")
}
