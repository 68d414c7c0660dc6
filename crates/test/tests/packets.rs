//! The packets that this crate makes, as another library reads them, and a program's answers to them
//! beside a model in Rust.

use etherparse::checksum::Sum16BitWords;
use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use proptest::prelude::*;
use skep_test::strategies::{broken, packet};
use skep_test::{Bpf, Damage, Packet, Protocol, json};

const OBJECT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/firewall.bpf.o");

/// Reads a packet and returns what is wrong with it: lengths, checksums, versions.
fn fault(bytes: &[u8]) -> Option<String> {
    let sliced = match SlicedPacket::from_ethernet(bytes) {
        Ok(sliced) => sliced,
        Err(e) => return Some(e.to_string()),
    };
    let (addresses, is_fragment) = match &sliced.net {
        Some(NetSlice::Ipv4(ip)) => {
            let header = ip.header();
            if header.header_checksum() != header.to_header().calc_header_checksum() {
                return Some("header checksum".into());
            }
            (None, header.is_fragmenting_payload())
        }
        Some(NetSlice::Ipv6(ip)) => (Some(ip.header()), ip.is_payload_fragmented()),
        _ => return None,
    };
    let v4 = || match &sliced.net {
        Some(NetSlice::Ipv4(ip)) => (ip.header().source(), ip.header().destination()),
        _ => unreachable!("asked for IPv4 only"),
    };
    let right = match sliced.transport {
        _ if is_fragment => return None,
        Some(TransportSlice::Udp(udp)) => {
            let header = udp.to_header();
            let wanted = match addresses {
                None => header.calc_checksum_ipv4_raw(v4().0, v4().1, udp.payload()),
                Some(ip) => {
                    header.calc_checksum_ipv6_raw(ip.source(), ip.destination(), udp.payload())
                }
            };
            if usize::from(udp.length()) != 8 + udp.payload().len() {
                return Some("UDP length".into());
            }
            wanted.ok() == Some(udp.checksum())
        }
        Some(TransportSlice::Tcp(tcp)) => {
            let wanted = match addresses {
                None => tcp.calc_checksum_ipv4(v4().0, v4().1),
                Some(ip) => tcp.calc_checksum_ipv6(ip.source(), ip.destination()),
            };
            wanted.ok() == Some(tcp.checksum())
        }
        // Over a packet with its checksum, the sum is 0.
        Some(TransportSlice::Icmpv4(icmp)) => {
            Sum16BitWords::new().add_slice(icmp.slice()).ones_complement() == 0
        }
        Some(TransportSlice::Icmpv6(icmp)) => {
            let ip = addresses.expect("it is of IPv6");
            icmp.is_checksum_valid(ip.source(), ip.destination())
        }
        _ => true,
    };
    (!right).then(|| "checksum".into())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    #[test]
    fn whole_packets_are_right_for_another_reader(packet in packet()) {
        let bytes = packet.bytes();
        prop_assert_eq!(fault(&bytes), None, "{:02x?}", bytes);
        let sliced = SlicedPacket::from_ethernet(&bytes).expect("it was read before");
        match (&sliced.net, packet.addresses()) {
            (Some(NetSlice::Ipv4(ip)), Some((from, to))) => {
                prop_assert_eq!(std::net::IpAddr::from(ip.header().source()), from.ip());
                prop_assert_eq!(std::net::IpAddr::from(ip.header().destination()), to.ip());
            }
            (Some(NetSlice::Ipv6(ip)), Some((from, to))) => {
                prop_assert_eq!(std::net::IpAddr::from(ip.header().source()), from.ip());
                prop_assert_eq!(std::net::IpAddr::from(ip.header().destination()), to.ip());
            }
            (_, addresses) => prop_assert_eq!(addresses, None),
        }
        let payload = &bytes[packet.payload_at()..];
        match &sliced.transport {
            Some(TransportSlice::Udp(udp)) => prop_assert_eq!(udp.payload(), payload),
            Some(TransportSlice::Tcp(tcp)) => prop_assert_eq!(tcp.payload(), payload),
            _ => {}
        }
    }

    /// What a damage says is wrong is what another reader finds, or is less than it looks at.
    #[test]
    fn broken_packets_are_wrong_for_another_reader(broken in broken()) {
        let found = fault(&broken.bytes);
        let seen = match broken.damage {
            Damage::HeaderChecksum(_) => found.as_deref() == Some("header checksum"),
            Damage::Checksum(_) => found.as_deref() == Some("checksum"),
            // The reader takes the version to choose between IPv4 and IPv6 by Ethernet's type.
            Damage::Cut(_) | Damage::Version(_) | Damage::HeaderLength(_)
            | Damage::TcpHeaderLength(_) | Damage::UdpLength(_) | Damage::TotalLength(_) => found.is_some(),
            _ => true,
        };
        prop_assert!(seen, "{:?}: {:?}, {:02x?}", broken.damage, found, broken.bytes);
        prop_assert!(broken.packet.bytes() != broken.bytes);
    }
}

/// What the firewall should do with bytes, written anew.
fn model(bytes: &[u8]) -> &'static str {
    if bytes.len() > 1514 {
        return "drop";
    }
    if bytes[12..14] != [8, 0] {
        return "pass";
    }
    let ip = &bytes[14..];
    let whole = ip.len() >= 20 && ip[0] >> 4 == 4 && ip[0] & 0xf >= 5 && {
        let length = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
        length >= usize::from(ip[0] & 0xf) * 4 && length <= ip.len()
    };
    match whole {
        false => "drop",
        true if ip[12] == 10 && ip[13..15] == [0, 0] && ip[15] < 32 => "drop",
        true => "pass",
    }
}

#[test]
fn a_program_answers_packets_as_its_model_does() -> skep_test::Result {
    let bpf = Bpf::load(OBJECT)?;
    for host in 0..32 {
        bpf.map("blocked")?.put(json!([10, 0, 0, host]), 0)?;
    }
    let config =
        || ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1000) };
    proptest!(config(), |(packet in packet())| {
        bpf.run("firewall", &packet)?.assert_verdict(model(&packet.bytes())).assert_packet_unchanged();
    });
    proptest!(config(), |(broken in broken())| {
        bpf.run("firewall", broken.bytes.as_slice())?.assert_verdict(model(&broken.bytes));
    });
    // The model is one that can fail: both verdicts came, for whole packets too.
    let dropped = bpf.variable("malformed")?.as_u64().unwrap_or(0);
    let passed = bpf.map("protocols")?.get(17)?.and_then(|n| n.as_u64()).unwrap_or(0);
    assert!(dropped > 50 && passed > 50, "{dropped} malformed, {passed} of UDP passed");
    Ok(())
}

#[test]
fn every_damage_is_made_where_it_can_be() {
    let udp = Packet::udp("[2001:db8::1]:1", "[2001:db8::2]:2").payload([1; 9]);
    let tcp = Packet::tcp("10.0.0.1:1", "10.0.0.2:2");
    assert_eq!(udp.broken(Damage::HeaderLength(4)), None);
    assert_eq!(udp.broken(Damage::HeaderChecksum(1)), None);
    assert_eq!(udp.broken(Damage::TcpHeaderLength(4)), None);
    assert_eq!(tcp.broken(Damage::UdpLength(4)), None);
    assert_eq!(tcp.broken(Damage::HeaderLength(5)), None, "it is what it says already");
    assert_eq!(tcp.broken(Damage::Cut(20)).map(|b| b.len()), Some(20));
    assert_eq!(Packet::ethernet(0x0806).broken(Damage::Version(5)), None);
    assert_eq!(tcp.protocol(), Protocol::Tcp);
    let places = tcp.places_to_cut();
    assert!(places.contains(&14) && places.contains(&53) && !places.contains(&54), "{places:?}");
}
