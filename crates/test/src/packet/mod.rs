//! Packets, built layer by layer, with the lengths and checksums that belong to them.

mod address;
mod broken;
mod checksum;

use std::net::{IpAddr, SocketAddr};

pub use address::{Address, Host};
pub use broken::Damage;

use checksum::Sum;

/// What an IP packet carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Protocol {
    /// A TCP segment.
    Tcp,
    /// A UDP datagram.
    Udp,
    /// ICMP, or ICMPv6.
    Icmp,
    /// The payload follows the IP header.
    Other(u8),
}

/// A packet from its Ethernet header on. What is not said has a value that is right: lengths,
/// checksums, types; bytes are made by [`Packet::bytes`].
///
/// Addresses are written as texts, or are those of `std::net`. IPv6 needs no other name: it is what
/// the addresses are.
///
/// ```
/// use skep_test::Packet;
///
/// let packet = Packet::tcp("[2001:db8::1]:4000", "[2001:db8::2]:443")
///     .vlan(7)
///     .tcp_flags("SYN|ACK")
///     .payload(b"hello");
/// let bytes = packet.bytes();
/// assert_eq!(bytes.len(), 14 + 4 + 40 + 20 + 5);
/// assert_eq!(bytes[12..14], [0x81, 0x00]);
/// assert_eq!(&bytes[packet.payload_at()..], b"hello");
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use]
pub struct Packet {
    macs: [[u8; 6]; 2],
    vlans: Vec<u16>,
    /// None: an Ethernet type of one's own.
    addresses: Option<(IpAddr, IpAddr)>,
    ether_type: u16,
    protocol: Protocol,
    ports: (u16, u16),
    ttl: u8,
    tos: u8,
    id: u16,
    /// In units of 8 bytes, and whether more follow.
    fragment: (u16, bool),
    ip_options: Vec<u8>,
    /// IPv6 extension headers: number and contents.
    extensions: Vec<(u8, Vec<u8>)>,
    tcp: Tcp,
    icmp_type: u8,
    payload: Vec<u8>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Tcp {
    flags: u8,
    sequence: u32,
    acknowledged: u32,
    window: u16,
    options: Vec<u8>,
}

/// Names of TCP flags, from the lowest bit on.
const FLAGS: [&str; 8] = ["FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR"];

const ETHERNET: usize = 14;

impl Packet {
    fn new(addresses: Option<(IpAddr, IpAddr)>, protocol: Protocol) -> Self {
        let ether_type = match addresses {
            Some((IpAddr::V4(_), IpAddr::V4(_))) => 0x0800,
            Some((IpAddr::V6(_), IpAddr::V6(_))) => 0x86dd,
            Some(_) => panic!("a packet goes from IPv4 to IPv4, or from IPv6 to IPv6"),
            None => 0,
        };
        Self {
            macs: [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]],
            vlans: Vec::new(),
            addresses,
            ether_type,
            protocol,
            ports: (0, 0),
            ttl: 64,
            tos: 0,
            id: 0,
            fragment: (0, false),
            ip_options: Vec::new(),
            extensions: Vec::new(),
            tcp: Tcp { window: 0xffff, ..Tcp::default() },
            icmp_type: if ether_type == 0x86dd { 128 } else { 8 },
            payload: Vec::new(),
        }
    }

    fn between(from: SocketAddr, to: SocketAddr, protocol: Protocol) -> Self {
        let packet = Self::new(Some((from.ip(), to.ip())), protocol);
        Self { ports: (from.port(), to.port()), ..packet }
    }

    /// Makes a UDP datagram.
    ///
    /// # Panics
    /// When a text is no address with a port, or only one of the two is of IPv6.
    #[track_caller]
    pub fn udp(from: impl Address, to: impl Address) -> Self {
        Self::between(from.address(), to.address(), Protocol::Udp)
    }

    /// Makes a TCP segment with the flag ACK.
    ///
    /// # Panics
    /// As for [`Packet::udp`].
    #[track_caller]
    pub fn tcp(from: impl Address, to: impl Address) -> Self {
        let mut packet = Self::between(from.address(), to.address(), Protocol::Tcp);
        packet.tcp.flags = 0x10;
        packet
    }

    /// Makes an echo request of ICMP or ICMPv6.
    ///
    /// # Panics
    /// When a text is no address, or only one of the two is of IPv6.
    #[track_caller]
    pub fn icmp(from: impl Host, to: impl Host) -> Self {
        Self::new(Some((from.host(), to.host())), Protocol::Icmp)
    }

    /// Makes an IP packet of another protocol, or with a payload that brings its own header.
    ///
    /// # Panics
    /// As for [`Packet::icmp`].
    #[track_caller]
    pub fn ip(from: impl Host, to: impl Host, protocol: u8) -> Self {
        Self::new(Some((from.host(), to.host())), Protocol::Other(protocol))
    }

    /// Makes an Ethernet frame with a payload of another type, such as 0x0806 (ARP).
    pub fn ethernet(ether_type: u16) -> Self {
        Self { ether_type, ..Self::new(None, Protocol::Other(0)) }
    }

    /// Sets what follows all headers.
    pub fn payload(self, payload: impl Into<Vec<u8>>) -> Self {
        Self { payload: payload.into(), ..self }
    }

    /// Sets the Ethernet addresses.
    pub fn macs(self, from: [u8; 6], to: [u8; 6]) -> Self {
        Self { macs: [from, to], ..self }
    }

    /// Adds a VLAN tag; the first one is the outer.
    pub fn vlan(mut self, tag: u16) -> Self {
        self.vlans.push(tag);
        self
    }

    /// Sets the time to live, or the hop limit.
    pub fn ttl(self, ttl: u8) -> Self {
        Self { ttl, ..self }
    }

    /// Sets the type of service, or the traffic class.
    pub fn tos(self, tos: u8) -> Self {
        Self { tos, ..self }
    }

    /// Sets the identification of IPv4.
    pub fn id(self, id: u16) -> Self {
        Self { id, ..self }
    }

    /// Makes it a fragment of IPv4, which begins at so many times 8 bytes. One that does not begin
    /// at 0 has no TCP, UDP or ICMP header. The checksum of the first one is that of this part.
    pub fn fragment(self, offset: u16, more: bool) -> Self {
        Self { fragment: (offset & 0x1fff, more), ..self }
    }

    /// Sets options of IPv4, up to 40 bytes. They are filled up to a multiple of 4.
    ///
    /// # Panics
    /// When there are more.
    #[track_caller]
    pub fn ip_options(self, options: impl Into<Vec<u8>>) -> Self {
        Self { ip_options: padded(options.into()), ..self }
    }

    /// Adds an extension header of IPv6: its number, and what follows its length. It is filled up
    /// to a multiple of 8.
    pub fn extension(mut self, number: u8, contents: impl Into<Vec<u8>>) -> Self {
        let mut contents = contents.into();
        contents.resize((contents.len() + 2).next_multiple_of(8) - 2, 0);
        self.extensions.push((number, contents));
        self
    }

    /// Sets the flags of TCP, written `SYN|ACK`.
    ///
    /// # Panics
    /// When there is no such flag.
    #[track_caller]
    pub fn tcp_flags(mut self, flags: &str) -> Self {
        let bit = |name: &str| FLAGS.iter().position(|f| f.eq_ignore_ascii_case(name.trim()));
        self.tcp.flags = flags.split('|').filter(|f| !f.is_empty()).fold(0, |all, name| {
            all | 1 << bit(name).unwrap_or_else(|| panic!("`{name}` is no TCP flag"))
        });
        self
    }

    /// Sets the flags of TCP as a byte.
    pub fn tcp_flag_bits(mut self, flags: u8) -> Self {
        self.tcp.flags = flags;
        self
    }

    /// Sets the numbers of TCP: sequence, acknowledged.
    pub fn tcp_numbers(mut self, sequence: u32, acknowledged: u32) -> Self {
        (self.tcp.sequence, self.tcp.acknowledged) = (sequence, acknowledged);
        self
    }

    /// Sets options of TCP, up to 40 bytes. They are filled up to a multiple of 4.
    ///
    /// # Panics
    /// When there are more.
    #[track_caller]
    pub fn tcp_options(mut self, options: impl Into<Vec<u8>>) -> Self {
        self.tcp.options = padded(options.into());
        self
    }

    /// Sets the type of ICMP or ICMPv6.
    pub fn icmp_type(self, icmp_type: u8) -> Self {
        Self { icmp_type, ..self }
    }

    /// Returns the protocol.
    #[must_use]
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Tells whether it is of IPv4.
    #[must_use]
    pub fn is_ipv4(&self) -> bool {
        matches!(self.addresses, Some((IpAddr::V4(_), _)))
    }

    /// Tells whether it is of IPv6.
    #[must_use]
    pub fn is_ipv6(&self) -> bool {
        matches!(self.addresses, Some((IpAddr::V6(_), _)))
    }

    /// Returns the addresses and ports: from, to. Ports are 0 where there are none.
    #[must_use]
    pub fn addresses(&self) -> Option<(SocketAddr, SocketAddr)> {
        let (from, to) = self.addresses?;
        Some((SocketAddr::new(from, self.ports.0), SocketAddr::new(to, self.ports.1)))
    }

    /// Returns where the network header begins: behind Ethernet's and the VLAN tags.
    #[must_use]
    pub fn network_at(&self) -> usize {
        ETHERNET + 4 * self.vlans.len()
    }

    /// Returns where the header of TCP, UDP or ICMP begins, or the payload when there is none.
    #[must_use]
    pub fn transport_at(&self) -> usize {
        let network = match self.addresses {
            None => 0,
            Some((IpAddr::V4(_), _)) => 20 + self.ip_options.len(),
            Some((IpAddr::V6(_), _)) => {
                40 + self.extensions.iter().map(|(_, contents)| 2 + contents.len()).sum::<usize>()
            }
        };
        self.network_at() + network
    }

    /// Returns where the payload begins.
    #[must_use]
    pub fn payload_at(&self) -> usize {
        self.transport_at() + self.transport_header_length()
    }

    fn transport_header_length(&self) -> usize {
        match self.protocol {
            _ if self.is_later_fragment() || self.addresses.is_none() => 0,
            Protocol::Tcp => 20 + self.tcp.options.len(),
            Protocol::Udp | Protocol::Icmp => 8,
            Protocol::Other(_) => 0,
        }
    }

    fn is_later_fragment(&self) -> bool {
        self.is_ipv4() && self.fragment.0 > 0
    }

    fn protocol_number(&self) -> u8 {
        match self.protocol {
            Protocol::Tcp => 6,
            Protocol::Udp => 17,
            Protocol::Icmp if self.is_ipv6() => 58,
            Protocol::Icmp => 1,
            Protocol::Other(number) => number,
        }
    }

    /// Returns the bytes.
    ///
    /// # Panics
    /// When the payload is longer than IP can count.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let [from, to] = &self.macs;
        let mut out = [*to, *from].concat();
        for tag in &self.vlans {
            out.extend(0x8100_u16.to_be_bytes());
            out.extend(tag.to_be_bytes());
        }
        out.extend(self.ether_type.to_be_bytes());
        let transport = self.transport();
        match self.addresses {
            Some((IpAddr::V4(from), IpAddr::V4(to))) => {
                self.ipv4(&mut out, from.octets(), to.octets(), transport.len());
            }
            Some((IpAddr::V6(from), IpAddr::V6(to))) => {
                self.ipv6(&mut out, from.octets(), to.octets(), transport.len());
            }
            _ => {}
        }
        out.extend(transport);
        out
    }

    fn ipv4(&self, out: &mut Vec<u8>, from: [u8; 4], to: [u8; 4], carried: usize) {
        let at = out.len();
        let header = 20 + self.ip_options.len();
        let fragment = self.fragment.0 | if self.fragment.1 { 0x2000 } else { 0 };
        out.extend([0x40 | (header / 4) as u8, self.tos]);
        out.extend(length(header + carried).to_be_bytes());
        out.extend(self.id.to_be_bytes());
        out.extend(fragment.to_be_bytes());
        out.extend([self.ttl, self.protocol_number(), 0, 0]);
        out.extend(from);
        out.extend(to);
        out.extend(&self.ip_options);
        let sum = Sum::default().add(&out[at..]).finish();
        out[at + 10..at + 12].copy_from_slice(&sum.to_be_bytes());
    }

    fn ipv6(&self, out: &mut Vec<u8>, from: [u8; 16], to: [u8; 16], carried: usize) {
        let extensions = self.transport_at() - self.network_at() - 40;
        let numbers = self.extensions.iter().map(|(number, _)| *number);
        let mut next = numbers.chain([self.protocol_number()]);
        out.extend([0x60 | self.tos >> 4, self.tos << 4, 0, 0]);
        out.extend(length(extensions + carried).to_be_bytes());
        out.extend([next.next().unwrap_or_default(), self.ttl]);
        out.extend(from);
        out.extend(to);
        for ((_, contents), next) in self.extensions.iter().zip(next) {
            out.extend([next, (contents.len() / 8) as u8]);
            out.extend(contents);
        }
    }

    /// What IP carries, with its checksum.
    fn transport(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let checksum = match self.protocol {
            _ if self.transport_header_length() == 0 => None,
            Protocol::Tcp => {
                let tcp = &self.tcp;
                out.extend(self.ports.0.to_be_bytes());
                out.extend(self.ports.1.to_be_bytes());
                out.extend(tcp.sequence.to_be_bytes());
                out.extend(tcp.acknowledged.to_be_bytes());
                out.extend([(((20 + tcp.options.len()) / 4) << 4) as u8, tcp.flags]);
                out.extend(tcp.window.to_be_bytes());
                out.extend([0; 4]);
                out.extend(&tcp.options);
                Some(16)
            }
            Protocol::Udp => {
                out.extend(self.ports.0.to_be_bytes());
                out.extend(self.ports.1.to_be_bytes());
                out.extend(length(8 + self.payload.len()).to_be_bytes());
                out.extend([0; 2]);
                Some(6)
            }
            Protocol::Icmp => {
                out.extend([self.icmp_type, 0, 0, 0]);
                out.extend([0, 1, 0, 1]);
                Some(2)
            }
            Protocol::Other(_) => None,
        };
        out.extend(&self.payload);
        if let Some(at) = checksum {
            let sum = match self.pseudo_header(out.len()).add(&out).finish() {
                // A checksum that is 0 says that there is none.
                0 if self.protocol == Protocol::Udp => 0xffff,
                sum => sum,
            };
            out[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        }
        out
    }

    /// What the checksum counts besides the bytes: RFC 9293, 3.1; RFC 8200, 8.1.
    fn pseudo_header(&self, carried: usize) -> Sum {
        let number = u16::from(self.protocol_number()).to_be_bytes();
        match self.addresses {
            Some((IpAddr::V4(_), _)) if self.protocol == Protocol::Icmp => Sum::default(),
            Some((IpAddr::V4(from), IpAddr::V4(to))) => Sum::default()
                .add(&from.octets())
                .add(&to.octets())
                .add(&number)
                .add(&length(carried).to_be_bytes()),
            Some((IpAddr::V6(from), IpAddr::V6(to))) => Sum::default()
                .add(&from.octets())
                .add(&to.octets())
                .add(&number)
                .add(&(carried as u32).to_be_bytes()),
            _ => Sum::default(),
        }
    }
}

#[track_caller]
fn padded(mut options: Vec<u8>) -> Vec<u8> {
    assert!(options.len() <= 40, "{} bytes of options, at most 40 fit", options.len());
    options.resize(options.len().next_multiple_of(4), 0);
    options
}

fn length(bytes: usize) -> u16 {
    u16::try_from(bytes).unwrap_or_else(|_| panic!("{bytes} bytes are more than IP can count"))
}
