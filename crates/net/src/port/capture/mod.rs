//! Capture files: pcap and pcapng, read and written.
//!
//! * [`Reader`] is a source of the frames of a file or of standard input. Which format it is, in
//!   which byte order, and the unit of the times is found from the first bytes.
//! * [`Writer`] is a sink that writes a file, or standard output.
//! * [`split::parse`] reads `pass=ok.pcapng,drop=bad.pcap`.
//!
//! What is read: pcap 2.x with microseconds or nanoseconds, in both byte orders. Of pcapng sections,
//! interfaces, enhanced, simple and (obsolete) packet blocks, with `if_tsresol` and `if_tsoffset`;
//! other blocks and options are skipped. A file that ends in the middle of a packet is read up to
//! there, and [`Lost::cut_at`](super::Lost::cut_at) says where.
//!
//! References: <https://www.ietf.org/archive/id/draft-ietf-opsawg-pcap-04.html>,
//! <https://www.ietf.org/archive/id/draft-ietf-opsawg-pcapng-02.html>.

mod error;
mod input;
mod order;
mod pcap;
mod pcapng;
mod reader;
pub mod split;
mod writer;

pub use error::CaptureError;
pub use reader::{Kind, Reader};
pub use writer::{Format, Note, Unit, Writer};

/// `LINKTYPE_ETHERNET`: what packet programs expect.
pub const ETHERNET: u16 = 1;
