//! The newer format: blocks, each with its type and length before it and its length again behind.
//!
//! ```text
//! block      type(4)  length(4)  body …  length(4)          padded to four bytes
//! section    byte order(4)  major(2)  minor(2)  length(8)  options …
//! interface  link type(2)  0(2)  snaplen(4)  options …
//! enhanced   interface(4)  time, upper(4)  lower(4)  captured(4)  on the wire(4)  bytes …  options …
//! simple     on the wire(4)  bytes …
//! packet     interface(2)  drops(2)  time, upper(4)  lower(4)  captured(4)  on the wire(4)  bytes …
//! option     code(2)  length(2)  bytes …                    padded to four bytes; code 0 ends
//!
//! verdict    which kind(1)  XDP_*(8)                        an option of enhanced packets
//! ```

use super::order::Order;

pub(super) const SECTION: u32 = 0x0a0d_0d0a;
pub(super) const INTERFACE: u32 = 1;
pub(super) const PACKET: u32 = 2;
pub(super) const SIMPLE: u32 = 3;
pub(super) const ENHANCED: u32 = 6;
pub(super) const BYTE_ORDER: u32 = 0x1a2b_3c4d;

/// Bytes around the body of a block.
pub(super) const AROUND: usize = 12;

pub(super) const OPT_END: u16 = 0;
pub(super) const IF_NAME: u16 = 2;
pub(super) const IF_TSRESOL: u16 = 9;
pub(super) const EPB_PACKETID: u16 = 5;
pub(super) const EPB_QUEUE: u16 = 6;
pub(super) const EPB_VERDICT: u16 = 7;
/// What a verdict is of: `XDP_*`, in eight bytes.
pub(super) const VERDICT_XDP: u8 = 2;
const IF_TSOFFSET: u16 = 14;

/// The unit of an interface's times.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Resolution {
    /// Tenths of tenths…: 6 is microseconds.
    Decimal(u8),
    /// Halves of halves….
    Binary(u8),
}

impl Resolution {
    /// Turns a time into nanoseconds. What does not fit in 64 bits is the largest that does.
    #[inline]
    pub(super) fn nanoseconds(self, time: u64) -> u64 {
        match self {
            Self::Decimal(6) => time.saturating_mul(1000),
            Self::Decimal(9) => time,
            Self::Decimal(n @ 0..=9) => {
                time.saturating_mul(10_u64.saturating_pow(u32::from(9 - n)))
            }
            Self::Decimal(n) => {
                10_u64.checked_pow(u32::from(n - 9)).map_or(0, |scale| time / scale)
            }
            Self::Binary(n) => {
                let ns = u128::from(time) * 1_000_000_000;
                u64::try_from(ns >> n.min(127)).unwrap_or(u64::MAX)
            }
        }
    }
}

/// An interface as its block describes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Interface {
    pub(super) link_type: u16,
    /// Most bytes that were captured of a packet; 0: all.
    pub(super) snaplen: u32,
    pub(super) resolution: Resolution,
    /// Nanoseconds to add to each time.
    pub(super) offset: i64,
    /// Its number in the whole file, from 1 on.
    pub(super) port: u32,
}

impl Interface {
    /// Reads the body of an interface's block.
    pub(super) fn parse(order: Order, body: &[u8], port: u32) -> Self {
        let mut interface = Self {
            link_type: order.u16(body, 0),
            snaplen: order.u32(body, 4),
            resolution: Resolution::Decimal(6),
            offset: 0,
            port,
        };
        let mut options = body.get(8..).unwrap_or_default();
        while options.len() >= 4 {
            let (code, len) = (order.u16(options, 0), usize::from(order.u16(options, 2)));
            let Some(value) = options.get(4..4 + len) else { break };
            match (code, value) {
                (OPT_END, _) => break,
                (IF_TSRESOL, [n]) if n & 0x80 == 0 => {
                    interface.resolution = Resolution::Decimal(*n);
                }
                (IF_TSRESOL, [n]) => interface.resolution = Resolution::Binary(n & 0x7f),
                (IF_TSOFFSET, seconds) if seconds.len() == 8 => {
                    let seconds = order.u64(seconds, 0) as i64;
                    interface.offset = seconds.saturating_mul(1_000_000_000);
                }
                _ => {}
            }
            options = options.get(4 + len.next_multiple_of(4)..).unwrap_or_default();
        }
        interface
    }

    /// Turns the two halves of a packet's time into nanoseconds since 1970.
    #[inline]
    pub(super) fn nanoseconds(&self, upper: u32, lower: u32) -> u64 {
        let time = u64::from(upper) << 32 | u64::from(lower);
        self.resolution.nanoseconds(time).saturating_add_signed(self.offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_all_resolutions_become_nanoseconds() {
        let ns = |r: Resolution, t| r.nanoseconds(t);
        assert_eq!(ns(Resolution::Decimal(0), 3), 3_000_000_000);
        assert_eq!(ns(Resolution::Decimal(3), 3), 3_000_000);
        assert_eq!(ns(Resolution::Decimal(6), 3), 3000);
        assert_eq!(ns(Resolution::Decimal(9), 3), 3);
        assert_eq!(ns(Resolution::Decimal(12), 3999), 3);
        assert_eq!(ns(Resolution::Decimal(127), u64::MAX), 0);
        assert_eq!(ns(Resolution::Binary(0), 3), 3_000_000_000);
        assert_eq!(ns(Resolution::Binary(10), 512), 500_000_000);
        assert_eq!(ns(Resolution::Binary(127), u64::MAX), 0);
        assert_eq!(ns(Resolution::Decimal(0), u64::MAX), u64::MAX);
        assert_eq!(ns(Resolution::Binary(0), u64::MAX), u64::MAX);
    }

    #[test]
    fn options_of_an_interface_may_be_cut_or_unknown() {
        let body = |options: &[u8]| {
            let mut body = vec![1, 0, 0, 0, 0xff, 0, 0, 0];
            body.extend_from_slice(options);
            Interface::parse(Order::Little, &body, 1)
        };
        assert_eq!(body(&[]).resolution, Resolution::Decimal(6));
        assert_eq!(body(&[9, 0, 1, 0, 9, 0, 0, 0]).resolution, Resolution::Decimal(9));
        assert_eq!(body(&[9, 0, 1, 0, 0x8a]).resolution, Resolution::Binary(10));
        assert_eq!(body(&[9, 0, 200, 0, 9]).resolution, Resolution::Decimal(6));
        assert_eq!(
            body(&[2, 0, 1, 0, 65, 0, 0, 0, 9, 0, 1, 0, 3]).resolution,
            Resolution::Decimal(3)
        );
        assert_eq!(body(&[0, 0, 0, 0, 9, 0, 1, 0, 3]).resolution, Resolution::Decimal(6));
        let later = body(&[14, 0, 8, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(later.nanoseconds(0, 5), 2_000_005_000);
        let before = body(&[14, 0, 8, 0, 255, 255, 255, 255, 255, 255, 255, 255]);
        assert_eq!(before.nanoseconds(0, 5), 0);
    }
}
