//! Strategies of `proptest` for packets: whole ones with the lengths and checksums that belong to
//! them, and broken ones. With the feature `proptest`.
//!
//! ```
//! use proptest::prelude::*;
//! use skep_test::{Bpf, strategies};
//!
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/firewall.bpf.o");
//! let bpf = Bpf::load(path)?;
//! // What is broken is never passed on as it is, whatever is wrong with it.
//! proptest!(ProptestConfig::with_cases(64), |(broken in strategies::broken())| {
//!     let ran = bpf.run("firewall", broken.bytes.as_slice())?;
//!     prop_assert!([1, 2].contains(&ran.retval()), "{:?}", broken.damage);
//! });
//! # Ok::<(), skep_test::Error>(())
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select, subsequence};

use crate::packet::{Damage, Packet, Protocol};

/// A packet with something wrong in it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Broken {
    /// As it should be.
    pub packet: Packet,
    /// What is wrong.
    pub damage: Damage,
    /// As it came.
    pub bytes: Vec<u8>,
}

// Boxed: unboxed ones nest values so large that tests without optimization run out of stack.

/// IPv4 addresses, private ones more often.
pub fn ipv4() -> BoxedStrategy<IpAddr> {
    let host = |n: u32| IpAddr::from(Ipv4Addr::from(n));
    prop_oneof![
        3 => any::<u16>().prop_map(move |n| host(0x0a00_0000 | u32::from(n))),
        1 => any::<u32>().prop_map(host),
    ]
    .boxed()
}

/// IPv6 addresses, those of documentation more often.
pub fn ipv6() -> BoxedStrategy<IpAddr> {
    let host = |n: u128| IpAddr::from(Ipv6Addr::from(n));
    prop_oneof![
        3 => any::<u16>().prop_map(move |n| host(0x2001_0db8 << 96 | u128::from(n))),
        1 => any::<u128>().prop_map(host),
    ]
    .boxed()
}

fn hosts() -> BoxedStrategy<(IpAddr, IpAddr)> {
    prop_oneof![(ipv4(), ipv4()), (ipv6(), ipv6())].boxed()
}

fn payload() -> BoxedStrategy<Vec<u8>> {
    prop_oneof![4 => vec(any::<u8>(), 0..64), 1 => vec(any::<u8>(), 0..1400)].boxed()
}

/// Adds what any IP packet may have: tags, options, extension headers.
fn framed(packet: impl Strategy<Value = Packet> + 'static) -> BoxedStrategy<Packet> {
    let tags = prop_oneof![3 => Just(Vec::new()), 1 => vec(0_u16..4096, 1..3)];
    let options = prop_oneof![3 => Just(0_usize), 1 => 0..=10_usize];
    // Hop-by-hop, destination options, routing: in the order of RFC 8200, each once.
    let extensions = prop_oneof![
        3 => Just(Vec::new()),
        1 => (subsequence(vec![0_u8, 60, 43], 1..=3), 0..20_usize)
            .prop_map(|(numbers, length)| numbers.into_iter().map(|n| (n, length)).collect()),
    ];
    (packet, tags, options, extensions, any::<(u8, u8, u16)>())
        .prop_map(|(mut packet, tags, words, extensions, (ttl, tos, id))| {
            for tag in tags {
                packet = packet.vlan(tag);
            }
            packet = packet.ttl(ttl).tos(tos).id(id);
            if packet.is_ipv4() && words > 0 {
                // No-operation, as often as there is room.
                packet = packet.ip_options(vec![1; 4 * words]);
            }
            if packet.is_ipv6() {
                for (number, length) in extensions {
                    packet = packet.extension(number, vec![0; length]);
                }
            }
            packet
        })
        .boxed()
}

/// UDP over IPv4 and IPv6.
pub fn udp() -> BoxedStrategy<Packet> {
    framed((hosts(), any::<(u16, u16)>(), payload()).prop_map(|((from, to), ports, payload)| {
        Packet::udp((from, ports.0), (to, ports.1)).payload(payload)
    }))
    .boxed()
}

/// TCP over IPv4 and IPv6, with any flags.
pub fn tcp() -> BoxedStrategy<Packet> {
    let numbers = any::<(u16, u16, u32, u32, u8)>();
    let options = prop_oneof![1 => Just(0_usize), 1 => 0..=10_usize];
    framed((hosts(), numbers, options, payload()).prop_map(
        |((from, to), (a, b, sequence, acknowledged, flags), words, payload)| {
            Packet::tcp((from, a), (to, b))
                .tcp_numbers(sequence, acknowledged)
                .tcp_flag_bits(flags)
                .tcp_options(vec![1; 4 * words])
                .payload(payload)
        },
    ))
    .boxed()
}

/// Echo requests and answers, and messages of errors, of ICMP and ICMPv6.
pub fn icmp() -> BoxedStrategy<Packet> {
    framed((hosts(), 0..4_usize, payload()).prop_map(|((from, to), which, payload)| {
        let packet = Packet::icmp(from, to);
        let types = if packet.is_ipv6() { [128, 129, 1, 3] } else { [8, 0, 3, 11] };
        packet.icmp_type(types[which]).payload(payload)
    }))
    .boxed()
}

/// Requests and answers of ARP, for Ethernet and IPv4.
pub fn arp() -> BoxedStrategy<Packet> {
    (any::<[u8; 20]>(), 1..=2_u8)
        .prop_map(|(addresses, operation)| {
            let head = [0, 1, 8, 0, 6, 4, 0, operation];
            Packet::ethernet(0x0806).payload([&head[..], &addresses].concat())
        })
        .boxed()
}

/// Fragments of IPv4.
pub fn fragment() -> BoxedStrategy<Packet> {
    (prop_oneof![udp(), tcp()], 0..0x1fff_u16, any::<bool>())
        .prop_filter("of IPv4", |(packet, ..)| packet.is_ipv4())
        .prop_map(|(packet, offset, more)| packet.fragment(offset, more))
        .boxed()
}

/// Any whole packet: UDP, TCP, ICMP, other protocols, fragments, ARP, other types of Ethernet.
pub fn packet() -> BoxedStrategy<Packet> {
    let other = framed((hosts(), select(vec![47, 89, 132, 255]), payload()).prop_map(
        |((from, to), protocol, payload)| Packet::ip(from, to, protocol).payload(payload),
    ));
    let ethernet = (select(vec![0x88cc, 0x8847, 0x0842]), payload())
        .prop_map(|(ether_type, payload)| Packet::ethernet(ether_type).payload(payload));
    prop_oneof![6 => udp(), 6 => tcp(), 3 => icmp(), 2 => fragment(), 2 => other, 1 => arp(), 1 => ethernet].boxed()
}

/// A packet that is wrong in one place: cut, with lengths that lie, with a wrong checksum.
pub fn broken() -> BoxedStrategy<Broken> {
    let whole = prop_oneof![6 => udp(), 6 => tcp(), 2 => icmp()];
    (whole, 0..8_u8, any::<(u16, Index)>())
        .prop_filter_map("the packet has no such header", |(packet, which, (number, place))| {
            let damage = damage(&packet, which, number, place);
            let bytes = packet.broken(damage)?;
            Some(Broken { packet, damage, bytes })
        })
        .boxed()
}

fn damage(packet: &Packet, which: u8, number: u16, place: Index) -> Damage {
    let small = number as u8;
    // Too short for the header, or up to the largest number that fits.
    let words = |least: u8| if small < 128 { small % least } else { least + small % (16 - least) };
    match which {
        0 => Damage::Cut(*place.get(&packet.places_to_cut())),
        1 => Damage::Cut(14 + place.index(packet.bytes().len() - 14)),
        2 => Damage::Version(small % 16),
        3 => Damage::HeaderLength(words(5)),
        4 => Damage::TotalLength(number),
        5 => Damage::HeaderChecksum(number | 1),
        6 if packet.protocol() == Protocol::Tcp => Damage::TcpHeaderLength(words(5)),
        6 => Damage::UdpLength(number),
        _ => Damage::Checksum(number | 1),
    }
}
