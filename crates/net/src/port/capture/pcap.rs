//! The older format: a header of 24 bytes, then packets, each behind 16 bytes.
//!
//! ```text
//! file    magic  major.minor  zone(4)  sigfigs(4)  snaplen(4)  link type(2) and FCS bits(2)
//! packet  seconds(4)  fraction(4)  captured(4)  on the wire(4)  bytes …
//! ```

use super::error::CaptureError;
use super::order::Order;

pub(super) const HEADER: usize = 24;
pub(super) const RECORD: usize = 16;
pub(super) const MICROSECONDS: u32 = 0xa1b2_c3d4;
pub(super) const NANOSECONDS: u32 = 0xa1b2_3c4d;
/// With longer headers of packets, written by some Linux distributions around 2000.
const MODIFIED: u32 = 0xa1b2_cd34;

/// What the header of a file says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Header {
    pub(super) order: Order,
    /// Nanoseconds in one of the fraction's units.
    pub(super) unit: u32,
    pub(super) link_type: u16,
    /// Writers before version 2.3 had the two lengths of a packet the other way round, those of 2.3
    /// some.
    minor: u16,
}

impl Header {
    /// Reads the header of a file that begins with a magic number of this format.
    pub(super) fn parse(bytes: &[u8; HEADER]) -> Result<Self, CaptureError> {
        let order = if has_magic(bytes, Order::Big) { Order::Big } else { Order::Little };
        let unit = match order.u32(bytes, 0) {
            MODIFIED => return Err(CaptureError::Modified),
            NANOSECONDS => 1,
            _ => 1000,
        };
        let (major, minor) = (order.u16(bytes, 4), order.u16(bytes, 6));
        if major != 2 {
            return Err(CaptureError::Version { major, minor });
        }
        // The bits above say how many bytes of frame check sequence packets have.
        let link_type = order.u32(bytes, 20) as u16;
        Ok(Self { order, unit, link_type, minor })
    }

    /// Reads what stands before a packet: time, captured length, length on the wire.
    #[inline]
    pub(super) fn record(&self, bytes: &[u8; RECORD]) -> (u64, u32, u32) {
        let word = |at| self.order.u32(bytes, at);
        let ns = u64::from(word(0)) * 1_000_000_000 + u64::from(word(4)) * u64::from(self.unit);
        let (captured, wire) = (word(8), word(12));
        if self.minor < 3 || (self.minor == 3 && captured > wire) {
            (ns, wire, captured)
        } else {
            (ns, captured, wire)
        }
    }
}

/// Tells whether a file that begins like this is of this format.
pub(super) fn is_magic(bytes: &[u8; 4]) -> bool {
    has_magic(bytes, Order::Little) || has_magic(bytes, Order::Big)
}

fn has_magic(bytes: &[u8], order: Order) -> bool {
    [MICROSECONDS, NANOSECONDS, MODIFIED].contains(&order.u32(bytes, 0))
}
