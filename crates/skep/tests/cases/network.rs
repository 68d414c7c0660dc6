//! A capture of a small network: all layers, as they should be, cut off, and damaged.

use skep_testkit::random::Random;

use super::{Case, Programs, case, ethernet};

/// The sum over 16-bit words, as IP, TCP, UDP and ICMP have it.
fn sum(parts: &[&[u8]]) -> [u8; 2] {
    let mut sum = 0u32;
    for part in parts {
        for pair in part.chunks(2) {
            sum += u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
        }
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!sum as u16).to_be_bytes()
}

struct Ip {
    from: [u8; 4],
    to: [u8; 4],
    ttl: u8,
    options: usize,
    fragment: u16,
}

const IP: Ip = Ip { from: [10, 0, 0, 1], to: [10, 0, 7, 9], ttl: 64, options: 0, fragment: 0 };

fn ipv4(ip: &Ip, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let header = 20 + ip.options * 4;
    let mut out = vec![0x40 + header as u8 / 4, 0];
    out.extend(((header + payload.len()) as u16).to_be_bytes());
    out.extend([0x12, 0x34]);
    out.extend(ip.fragment.to_be_bytes());
    out.extend([ip.ttl, protocol, 0, 0]);
    out.extend(ip.from);
    out.extend(ip.to);
    out.resize(header, 1);
    let check = sum(&[&out]);
    out[10..12].copy_from_slice(&check);
    out.extend(payload);
    out
}

fn pseudo(ip: &Ip, protocol: u8, length: usize) -> Vec<u8> {
    let mut out = [ip.from, ip.to].concat();
    out.extend([0, protocol]);
    out.extend((length as u16).to_be_bytes());
    out
}

fn udp(ip: &Ip, ports: [u16; 2], payload: usize, checked: bool) -> Vec<u8> {
    let mut out: Vec<u8> = ports.iter().flat_map(|p| p.to_be_bytes()).collect();
    out.extend((8 + payload as u16).to_be_bytes());
    out.extend([0, 0]);
    out.extend((0..payload).map(|n| (n * 11) as u8));
    if checked {
        let check = sum(&[&pseudo(ip, 17, out.len()), &out]);
        out[6..8].copy_from_slice(&check);
    }
    ipv4(ip, 17, &out)
}

fn tcp(ip: &Ip, ports: [u16; 2], options: &[u8], payload: usize) -> Vec<u8> {
    let mut out: Vec<u8> = ports.iter().flat_map(|p| p.to_be_bytes()).collect();
    out.extend([0, 0, 1, 0, 0, 0, 2, 0]);
    out.extend([(5 + options.len() as u8 / 4) << 4, 0x12, 0x20, 0, 0, 0, 0, 0]);
    out.extend(options);
    out.extend((0..payload).map(|n| (n * 5) as u8));
    let check = sum(&[&pseudo(ip, 6, out.len()), &out]);
    out[16..18].copy_from_slice(&check);
    ipv4(ip, 6, &out)
}

fn echo(kind: u8, sequence: u16, payload: usize) -> Vec<u8> {
    let mut out = vec![kind, 0, 0, 0, 0x77, 0x01];
    out.extend(sequence.to_be_bytes());
    out.extend((0..payload).map(|n| n as u8));
    let check = sum(&[&out]);
    out[2..4].copy_from_slice(&check);
    out
}

/// IPv6 with extension headers of these types before the protocol.
fn ipv6(extensions: &[u8], protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut rest = Vec::new();
    for n in 0..extensions.len() {
        let next = extensions.get(n + 1).copied().unwrap_or(protocol);
        let length = if extensions[n] == 44 { 0 } else { n as u8 };
        rest.extend([next, length]);
        rest.extend(vec![0; 6 + usize::from(length) * 8]);
    }
    rest.extend(payload);
    let mut out = vec![0x60, 0, 0, 0];
    out.extend((rest.len() as u16).to_be_bytes());
    out.extend([extensions.first().copied().unwrap_or(protocol), 64]);
    out.extend((0..32).map(|n| n * 3));
    out.extend(rest);
    out
}

fn tagged(outer: u16, tags: &[u16], proto: u16, payload: &[u8]) -> Vec<u8> {
    let mut inner = Vec::new();
    for n in 0..tags.len() {
        inner.extend(tags[n].to_be_bytes());
        let next = if n + 1 == tags.len() { proto } else { 0x8100 };
        inner.extend(next.to_be_bytes());
    }
    inner.extend(payload);
    ethernet(outer, &inner)
}

/// The frames, each with a name.
fn frames() -> Vec<(String, Vec<u8>)> {
    let mut all: Vec<(String, Vec<u8>)> = Vec::new();
    let mut add = |name: String, frame: Vec<u8>| all.push((name, frame));
    let v4 = |payload: Vec<u8>| ethernet(0x0800, &payload);
    for sequence in [1, 2, 0xffff] {
        add(format!("echo {sequence}"), v4(ipv4(&IP, 1, &echo(8, sequence, 48))));
        let six = ipv6(&[], 58, &echo(128, sequence, 9));
        add(format!("echo of IPv6 {sequence}"), ethernet(0x86dd, &six));
    }
    add("reply".into(), v4(ipv4(&IP, 1, &echo(0, 3, 1))));
    for host in 1..=9u8 {
        let ip = Ip { from: [10, host % 4, 0, host], to: [10, host / 3, 1, 2], ..IP };
        for port in [53, 0, 0xffff] {
            let payload = usize::from(host) * 40;
            add(format!("udp {host} {port}"), v4(udp(&ip, [4000, port], payload, port != 0)));
        }
        let ports = [40_000 + u16::from(host), 443];
        add(format!("tcp {host}"), v4(tcp(&ip, ports, &[], 100 * usize::from(host))));
    }
    for (name, options) in [
        ("large segments", &[2, 4, 5, 0xb4][..]),
        ("behind others", &[1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2, 2, 4, 5, 0xb4]),
        ("small segments", &[2, 4, 2, 0]),
        ("none", &[1, 1, 1, 0]),
        ("of no length", &[3, 0, 1, 1]),
        ("too long", &[3, 60, 1, 1]),
    ] {
        add(format!("options: {name}"), v4(tcp(&IP, [5000, 80], options, 0)));
    }
    add("old".into(), v4(udp(&Ip { ttl: 1, ..IP }, [1, 2], 4, true)));
    add("with options".into(), v4(udp(&Ip { options: 6, ..IP }, [1, 2], 4, true)));
    for fragment in [0x2000, 0x2064, 0x4000] {
        let ip = Ip { fragment, ..IP };
        add(format!("fragment {fragment:#x}"), v4(udp(&ip, [7, 8], 64, true)));
    }
    let inner = udp(&IP, [1, 2], 30, true);
    add("in another".into(), v4(ipv4(&IP, 4, &inner)));
    add("in one with options".into(), v4(ipv4(&Ip { options: 3, ..IP }, 4, &inner)));
    for tags in [&[5][..], &[5, 6], &[5, 6, 7], &[5, 6, 7, 8]] {
        add(format!("tags {tags:?}"), tagged(0x8100, tags, 0x0800, &inner));
        let six = ipv6(&[0, 60], 17, &[1; 20]);
        add(format!("provider tags {tags:?}"), tagged(0x88a8, tags, 0x86dd, &six));
    }
    for extensions in [&[0][..], &[0, 43, 44], &[60, 60, 60, 60, 60, 60], &[0; 7], &[51]] {
        let six = ipv6(extensions, 58, &echo(128, 4, 8));
        add(format!("extensions {extensions:?}"), ethernet(0x86dd, &six));
    }
    let mut padded = v4(udp(&IP, [1, 2], 4, true));
    padded.extend([0; 20]);
    add("padded".into(), padded);
    add("arp".into(), ethernet(0x0806, &[1; 28]));
    for length in [60, 1458, 3400] {
        add(format!("long {length}"), v4(udp(&IP, [1, 2], length, true)));
    }
    // Cut off behind each byte of the headers.
    let whole = tagged(0x8100, &[9], 0x0800, &tcp(&IP, [5, 6], &[2, 4, 5, 0xb4], 4));
    for length in 14..whole.len() {
        add(format!("cut at {length}"), whole[..length].to_vec());
    }
    // Some bytes changed.
    let mut random = Random::new(0x6e65_7477);
    for n in 0..90 {
        let mut frame = all[random.below(all.len())].1.clone();
        for _ in 0..=random.below(3) {
            let at = 12 + random.below(frame.len().min(80) - 12);
            frame[at] = random.below(256) as u8;
        }
        all.push((format!("changed {n}"), frame));
    }
    all
}

/// Every program on the whole capture, in order, as what came before is in the maps.
pub fn xdp() -> Programs {
    let capture: Vec<Case> =
        frames().into_iter().map(|(name, frame)| case(name, Some(frame), None)).collect();
    let mut long = capture.clone();
    for length in [3520, 4000, 4999, 5001, 9000, 20_000, 65_535] {
        let frame = (0..length).map(|n| (n % 251) as u8).collect();
        long.push(case(format!("{length} bytes"), Some(frame), None));
    }
    let mut again = capture.clone();
    again.iter_mut().for_each(|case| case.repeat = 3);
    let mut programs: Programs = [
        "echo_filter",
        "protocols",
        "echo_reply",
        "port_rewrite",
        "translate",
        "unwrap",
        "too_big",
        "route",
        "flow_table",
        "clamp",
    ]
    .map(|name| (name, capture.clone()))
    .to_vec();
    // Changes add up when a run is repeated.
    programs.extend(["tag_swap", "wrap", "trim", "annotate"].map(|name| (name, again.clone())));
    programs.push(("whole", long));
    programs
}
