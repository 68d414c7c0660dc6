//! Packets that are wrong in one place.

use super::{ETHERNET, Packet, Protocol, Sum};

/// What is wrong with a packet, and nothing else.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Damage {
    /// It ends after so many bytes.
    Cut(usize),
    /// The IP header has this version.
    Version(u8),
    /// The IPv4 header says it has so many 4-byte words.
    HeaderLength(u8),
    /// The IPv4 header says that the packet has so many bytes; the IPv6 header, that so many follow.
    TotalLength(u16),
    /// The checksum of the IPv4 header is another, by this difference.
    HeaderChecksum(u16),
    /// The checksum of TCP, UDP or ICMP is another, by this difference.
    Checksum(u16),
    /// The TCP header says it has so many 4-byte words.
    TcpHeaderLength(u8),
    /// The UDP header says that the datagram has so many bytes.
    UdpLength(u16),
}

impl Packet {
    /// Returns the bytes with something wrong in them, as if it had come so: the checksum of an IPv4
    /// header is right for the other values, unless it is what is wrong. `None`: the packet has no
    /// such header, or this is what it says already.
    ///
    /// ```
    /// use skep_test::{Damage, Packet};
    ///
    /// let packet = Packet::udp("10.0.0.1:53", "10.0.0.2:4000").payload(b"hello");
    /// let broken = packet.broken(Damage::UdpLength(2000)).expect("it is a UDP packet");
    /// assert_eq!(broken[14 + 20 + 4..14 + 20 + 6], 2000_u16.to_be_bytes());
    /// assert_eq!(packet.broken(Damage::TcpHeaderLength(0)), None);
    /// ```
    #[must_use]
    pub fn broken(&self, damage: Damage) -> Option<Vec<u8>> {
        let whole = self.bytes();
        let (network, transport) = (self.network_at(), self.transport_at());
        let mut bytes = whole.clone();
        let has = |protocol| self.protocol == protocol && self.transport_header_length() > 0;
        match damage {
            Damage::Cut(length) => bytes.truncate(length),
            Damage::Version(version) if self.addresses.is_some() => {
                bytes[network] = bytes[network] & 0xf | version << 4;
            }
            Damage::HeaderLength(words) if self.is_ipv4() => {
                bytes[network] = bytes[network] & 0xf0 | words & 0xf;
            }
            Damage::TotalLength(length) if self.is_ipv4() => set(&mut bytes, network + 2, length),
            Damage::TotalLength(length) if self.is_ipv6() => set(&mut bytes, network + 4, length),
            Damage::HeaderChecksum(other) if self.is_ipv4() => {
                change(&mut bytes, network + 10, other)?;
                return Some(bytes);
            }
            Damage::Checksum(other) => {
                let at = match self.protocol {
                    _ if self.transport_header_length() == 0 => return None,
                    Protocol::Tcp => 16,
                    Protocol::Udp => 6,
                    Protocol::Icmp => 2,
                    Protocol::Other(_) => return None,
                };
                change(&mut bytes, transport + at, other)?;
                if self.protocol == Protocol::Udp && word(&bytes, transport + at) == 0 {
                    // There is none then, which is right for IPv4.
                    return None;
                }
            }
            Damage::TcpHeaderLength(words) if has(Protocol::Tcp) => {
                bytes[transport + 12] = bytes[transport + 12] & 0xf | words << 4;
            }
            Damage::UdpLength(length) if has(Protocol::Udp) => {
                set(&mut bytes, transport + 4, length);
            }
            _ => return None,
        }
        if self.is_ipv4() && !matches!(damage, Damage::Cut(_)) {
            // As RFC 1624 changes it: by what the header's words changed.
            let header = network..network + 20;
            let before = Sum::default().add(&whole[header.clone()]);
            let after = Sum::default().add(&bytes[header]);
            let mut sum = u64::from(!word(&bytes, network + 10));
            sum += u64::from(!after.finish()) + u64::from(before.finish());
            while sum > 0xffff {
                sum = (sum & 0xffff) + (sum >> 16);
            }
            set(&mut bytes, network + 10, !(sum as u16));
        }
        (bytes != whole).then_some(bytes)
    }

    /// Lists places to cut that programs get wrong: in and behind each header.
    #[must_use]
    pub fn places_to_cut(&self) -> Vec<usize> {
        let (network, transport, payload) =
            (self.network_at(), self.transport_at(), self.payload_at());
        let end = self.bytes().len();
        let mut all = vec![ETHERNET, network, network + 1, network + 19, transport];
        all.extend([transport + 1, transport + 7, payload.saturating_sub(1), payload, end - 1]);
        all.retain(|at| (ETHERNET..end).contains(at));
        all.sort_unstable();
        all.dedup();
        all
    }
}

fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn set(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// Changes a checksum. `None`: the other one says the same, as 0 and 0xffff do.
fn change(bytes: &mut [u8], at: usize, other: u16) -> Option<()> {
    let before = word(bytes, at);
    set(bytes, at, before ^ other);
    (other != 0 && !(other == 0xffff && matches!(before, 0 | 0xffff))).then_some(())
}
