//! Which programs run on what.

mod helpers;
mod network;

/// One run.
#[derive(Clone, Debug)]
pub struct Case {
    pub name: String,
    pub data: Option<Vec<u8>>,
    pub ctx: Option<Vec<u8>>,
    pub repeat: u32,
    /// As live frames, so many in a batch.
    pub live: Option<u32>,
}

fn case(name: impl Into<String>, data: Option<Vec<u8>>, ctx: Option<Vec<u8>>) -> Case {
    Case { name: name.into(), data, ctx, repeat: 0, live: None }
}

/// The cases of an object file, by program.
type Programs = Vec<(&'static str, Vec<Case>)>;

/// Every object with its programs and their cases.
pub fn all() -> Vec<(&'static str, Programs)> {
    vec![
        ("xdp.bpf.o", xdp()),
        ("network.bpf.o", network::xdp()),
        ("skb.bpf.o", skb()),
        ("plain.bpf.o", plain()),
        ("nested.bpf.o", nested()),
        ("beside.bpf.o", beside()),
        ("maps.bpf.o", maps()),
        ("xdp_helpers.bpf.o", helpers::xdp()),
        ("skb_helpers.bpf.o", helpers::skb()),
        ("helpers.bpf.o", helpers::plain()),
        ("kfuncs.bpf.o", kfuncs()),
        ("loads.bpf.o", loads()),
        ("nested.bpf.o", nested()),
        ("live.bpf.o", live()),
    ]
}

/// Live frames that go nowhere.
fn live() -> Programs {
    let live = |of: Case, repeat, batch| Case { repeat, live: Some(batch), ..of };
    let packet = |len| case(format!("{len} bytes"), Some(counted(len)), None);
    let md = |data: u32, end: u32, port: u32| {
        let words = [data, end, 0, port, 0, 0];
        Some(words.iter().flat_map(|w| w.to_ne_bytes()).collect::<Vec<u8>>())
    };
    let mut marks: Vec<Case> = [(1, 0), (20, 1), (40, 4), (300, 0), (300, 64), (777, 40)]
        .map(|(repeat, batch)| live(packet(64), repeat, batch))
        .into();
    marks.extend(
        [(1000, 100), (1000, 256), (1, 257), (5, 128)].map(|(n, b)| live(packet(80), n, b)),
    );
    marks.extend([13, 14, 33, 34, 3408, 3409, 5000].map(|len| live(packet(len), 3, 0)));
    let with = |name: &str, len, ctx| live(case(name, Some(counted(len)), ctx), 200, 0);
    marks.extend([
        with("metadata", 100, md(8, 100, 0)),
        with("most metadata", 300, md(216, 300, 0)),
        with("too much metadata", 300, md(220, 300, 0)),
        with("odd metadata", 300, md(6, 300, 0)),
        with("from loopback", 64, md(0, 64, 1)),
        with("from nowhere", 64, md(0, 64, 0x7fff_fff0)),
        with("only a part", 64, md(0, 63, 0)),
        with("more than there is", 64, md(0, 65, 0)),
        with("no frame", 20, md(8, 20, 0)),
        with("as large as can be", 3416, md(8, 3416, 0)),
        with("larger", 3417, md(8, 3417, 0)),
    ]);
    let room =
        vec![live(packet(64), 3, 1), with("metadata", 64, md(8, 64, 0)), live(packet(3408), 1, 0)];
    let one = || vec![live(packet(64), 1, 0)];
    vec![("live_marks", marks), ("live_room", room), ("live_entry", one()), ("live_skb", one())]
}

/// Random operations, the same for everybody; and what needs none.
fn maps() -> Programs {
    let seed = std::env::var("SKEP_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(0u64);
    let storm = (0..24u64).map(|n| {
        let mut x = (n + seed * 1000 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let bytes = (0..1600).map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            (x >> 24) as u8
        });
        // First each map by itself.
        let bytes = bytes.enumerate().map(|(i, b)| if n < 12 && i % 4 == 1 { n as u8 } else { b });
        case(format!("storm {n}"), Some(bytes.collect()), None)
    });
    let once = || vec![case("a packet", Some(counted(64)), None)];
    vec![("map_storm", storm.collect()), ("map_walk", once()), ("map_of_cpu", once())]
}

fn ethernet(proto: u16, payload: &[u8]) -> Vec<u8> {
    let mut p = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    p.extend(proto.to_be_bytes());
    p.extend(payload);
    p
}

fn ipv4(protocol: u8, ttl: u8, payload: &[u8]) -> Vec<u8> {
    let len = (20 + payload.len()) as u16;
    let mut ip = vec![0x45, 0];
    ip.extend(len.to_be_bytes());
    ip.extend([0x12, 0x34, 0x40, 0, ttl, protocol, 0xab, 0xcd, 10, 0, 0, 1, 192, 168, 7, 9]);
    ip.extend(payload);
    ip
}

fn udp(len: usize) -> Vec<u8> {
    let mut out = vec![0x30, 0x39, 0, 53, 0, 0, 0, 0];
    out.extend((0..len).map(|n| n as u8));
    ethernet(0x0800, &ipv4(17, 64, &out))
}

fn ipv6() -> Vec<u8> {
    let mut ip = vec![0x60, 0, 0, 0, 0, 4, 17, 64];
    ip.extend((0..32).map(|n| n * 3));
    ip.extend([1, 2, 3, 4]);
    ethernet(0x86dd, &ip)
}

fn counted(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 7) as u8).collect()
}

/// Packets of all sorts and lengths.
fn packets() -> Vec<Case> {
    let mut out = Vec::new();
    for len in [0, 1, 13, 14, 15, 33, 34, 60, 64, 101, 1514, 3000] {
        out.push(case(format!("{len} bytes"), Some(counted(len)), None));
    }
    for len in [0, 10, 60, 200] {
        out.push(case(format!("udp {len}"), Some(udp(len)), None));
    }
    out.push(case("dying", Some(ethernet(0x0800, &ipv4(6, 1, &[0; 20]))), None));
    out.push(case("ipv6", Some(ipv6()), None));
    out.push(case("short ipv4", Some(ethernet(0x0800, &[0x45; 19])), None));
    out.push(case("short ipv6", Some(ethernet(0x86dd, &[0x60; 39])), None));
    out.push(case("vlan", Some(ethernet(0x8100, &counted(50))), None));
    out.push(case("llc", Some(ethernet(100, &counted(50))), None));
    out.push(case("novell", Some(ethernet(60, &[0xff; 50])), None));
    let to = |first: u8, all: u8| {
        let mut p = udp(20);
        p[..6].fill(all);
        p[0] = first;
        p
    };
    out.push(case("to loopback", Some(to(0, 0)), None));
    out.push(case("broadcast", Some(to(0xff, 0xff)), None));
    out.push(case("multicast", Some(to(0x01, 0x5e)), None));
    out.push(case("no packet", None, None));
    out
}

fn md(words: [u32; 6]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_ne_bytes()).collect()
}

fn xdp_contexts() -> Vec<Case> {
    let data = || Some(udp(60));
    let len = 102;
    let mut out = Vec::new();
    for words in [
        [0, len, 0, 0, 0, 0],
        [4, len, 0, 0, 0, 0],
        [32, len, 0, 0, 0, 0],
        [64, len, 0, 0, 0, 0],
        [88, len, 0, 0, 0, 0],
        [92, len, 0, 0, 0, 0],
        [3, len, 0, 0, 0, 0],
        [0, len - 1, 0, 0, 0, 0],
        [0, len + 1, 0, 0, 0, 0],
        [8, 20, 0, 0, 0, 0],
        [8, 10, 0, 0, 0, 0],
        [8, 8, 0, 0, 0, 0],
        [20, 8, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0],
        [0, len, 4, 0, 0, 0],
        [0, len, 0, 1, 0, 0],
        [0, len, 0, 1, 1, 0],
        [0, len, 0, 0, 1, 0],
        [0, len, 0, 4711, 0, 0],
        [0, len, 0, 0, 0, 1],
    ] {
        out.push(case(format!("{words:?}"), data(), Some(md(words))));
    }
    for meta in [212, 216, 220, 224, 228, 252, 256] {
        out.push(case(
            format!("meta {meta}"),
            Some(counted(400)),
            Some(md([meta, 400, 0, 0, 0, 0])),
        ));
    }
    out.push(case("short context", data(), Some(md([4, len, 0, 0, 0, 0])[..8].to_vec())));
    let mut long = md([4, len, 0, 0, 0, 0]);
    long.extend([0; 40]);
    out.push(case("long context", data(), Some(long.clone())));
    long[30] = 1;
    out.push(case("too long context", data(), Some(long)));
    out
}

fn xdp() -> Programs {
    let mut big = packets();
    for len in [3500, 3519, 3520, 3521, 4000, 4096, 9000, 73_000, 74_000] {
        big.push(case(format!("{len} bytes"), Some(counted(len)), None));
    }
    let both = || [packets(), xdp_contexts()].concat();
    let mut again = both();
    again.iter_mut().for_each(|c| c.repeat = 5);
    vec![
        ("xdp_length", [big, xdp_contexts()].concat()),
        ("xdp_numbers", both()),
        ("xdp_swap", again.clone()),
        ("xdp_route", again),
        ("xdp_meta", both()),
        ("xdp_sum", both()),
        ("xdp_tail_bytes", both()),
    ]
}

/// A context with some fields set.
fn sk_buff(fields: &[(usize, u32)]) -> Vec<u8> {
    let mut out = vec![0; 192];
    for (off, value) in fields {
        out[*off..*off + 4].copy_from_slice(&value.to_ne_bytes());
    }
    out
}

fn skb_contexts() -> Vec<Case> {
    let mut out = Vec::new();
    // Every word by itself: allowed or not.
    for off in (0..192).step_by(4) {
        out.push(case(format!("word at {off}"), Some(udp(60)), Some(sk_buff(&[(off, 0x1234)]))));
        out.push(case(format!("one at {off}"), Some(udp(60)), Some(sk_buff(&[(off, 1)]))));
    }
    for (name, fields) in [
        (
            "all that may be",
            &[
                (8, 5),
                (32, 6),
                (36, 1),
                (40, 1),
                (48, 7),
                (52, 8),
                (56, 9),
                (60, 10),
                (64, 11),
                (152, 12),
                (160, 500),
                (164, 3),
                (176, 1400),
            ][..],
        ),
        ("wire_len too small", &[(160, 20)]),
        ("wire_len too large", &[(160, 65_537)]),
        ("wire_len largest", &[(160, 65_536)]),
        ("too many segments", &[(164, 65_536)]),
        ("most segments", &[(164, 65_535)]),
        ("gso_size of 17 bits", &[(176, 0x1_0003)]),
        ("no such interface", &[(40, 4711)]),
        ("from no such interface", &[(36, 4711)]),
    ] {
        out.push(case(name, Some(udp(60)), Some(sk_buff(fields))));
    }
    out.push(case("short context", Some(udp(60)), Some(sk_buff(&[(8, 5)])[..12].to_vec())));
    let mut long = sk_buff(&[(8, 5)]);
    long.extend([0; 10]);
    out.push(case("long context", Some(udp(60)), Some(long.clone())));
    long[200] = 1;
    out.push(case("too long context", Some(udp(60)), Some(long)));
    out
}

fn skb() -> Programs {
    let both = || [packets(), skb_contexts()].concat();
    let mut big = both();
    for len in [3700, 3711, 3712, 3713, 3775, 3776, 4096, 5000] {
        big.push(case(format!("{len} bytes"), Some(counted(len)), None));
    }
    let mut again = both();
    again.iter_mut().for_each(|c| c.repeat = 3);
    vec![
        ("tc_fields", big),
        ("socket_fields", both()),
        ("cgroup_fields", both()),
        ("action_fields", both()),
        ("tc_narrow", both()),
        ("tc_write", again.clone()),
        ("socket_write", both()),
        ("tc_numbers", both()),
        ("tc_packet", again),
        ("cgroup_packet", both()),
        ("cgroup_addresses", both()),
        ("lwt_fields", both()),
    ]
}

fn kfuncs() -> Programs {
    let of_each = |name| {
        let mut cases = packets();
        for first in 0..40u8 {
            let mut p = counted(64 + usize::from(first));
            p[..3].copy_from_slice(&[first.wrapping_mul(13), first, first / 3]);
            cases.push(case(format!("first {first}"), Some(p), None));
        }
        for text in [
            &b"strings of text"[..],
            b"str\0ngs",
            b"gs strings\0",
            b"aaaaaaaaaab",
            b"abcdefab\0xxab",
        ] {
            let mut p = counted(80);
            p[..32].fill(0);
            p[..text.len()].copy_from_slice(text);
            cases.push(case(format!("text {}", text.escape_ascii()), Some(p), None));
        }
        (name, cases)
    };
    ["tc_loops", "tc_bits", "tc_dynptr", "xdp_dynptr", "cgroup_dynptr", "tc_sections"]
        .map(of_each)
        .to_vec()
}

fn loads() -> Programs {
    ["tc_old", "socket_old", "socket_headers", "tc_headers", "tc_inner"]
        .map(|name| (name, packets()))
        .to_vec()
}

fn plain() -> Programs {
    let words = |w: &[u64]| w.iter().flat_map(|w| w.to_ne_bytes()).collect::<Vec<u8>>();
    let mut cases = Vec::new();
    for len in
        [0, 1, 4, 8, 15, 16, 23, 24, 31, 32, 33, 40, 95, 96, 97, 104, 4096, 5000, 65_535, 65_536]
    {
        cases.push(case(format!("{len} bytes"), None, Some(counted(len))));
    }
    cases.push(case("nothing", None, None));
    cases.push(case("words", None, Some(words(&[0x5_0000_0007, 0xffff_fff0, u64::MAX, 4]))));
    cases.push(case("a packet", Some(udp(0)), Some(words(&[1, 2, 3, 4]))));
    let mut again = case("repeated", None, Some(words(&[5, 6, 7, 8])));
    again.repeat = 1;
    cases.push(again);
    vec![
        ("syscall_in_place", cases.clone()),
        ("syscall_map", cases.clone()),
        ("raw_tp_words", cases.clone()),
        ("raw_tp_mix", cases),
    ]
}

fn nested() -> Programs {
    let mut cases = Vec::new();
    for first in [0u8, 1, 2, 3, 4, 5, 6, 7, 8, 255] {
        let mut packet = udp(20);
        packet[0] = first;
        cases.push(case(format!("first byte {first}"), Some(packet), None));
    }
    let mut again = cases.clone();
    again.iter_mut().for_each(|c| c.repeat = 4);
    vec![
        ("jump", again),
        ("count_down", cases.clone()),
        ("tc_jump", cases.clone()),
        ("inner_maps", cases.clone()),
        ("inner_hash", cases),
    ]
}

fn beside() -> Programs {
    let mut flows = packets();
    for flags in [0u32, 1, 2, 7] {
        let mut keys = vec![0; 56];
        keys[48..52].copy_from_slice(&flags.to_ne_bytes());
        flows.push(case(format!("flags {flags}"), Some(udp(30)), Some(keys.clone())));
        keys[4] = 1;
        flows.push(case(format!("flags {flags} and more"), Some(udp(30)), Some(keys)));
    }
    flows.push(case("4096 bytes", Some(counted(4096)), None));
    flows.push(case("4097 bytes", Some(counted(4097)), None));
    let mut again = case("repeated", Some(udp(30)), None);
    again.repeat = 3;
    flows.push(again);
    let lookup = |fields: &[(usize, u32)]| {
        let mut ctx = vec![0; 72];
        for (off, value) in fields {
            ctx[*off..*off + 4].copy_from_slice(&value.to_ne_bytes());
        }
        Some(ctx)
    };
    let mut lookups = vec![case("nothing", None, None)];
    for family in [0u32, 2, 10, 0x1_0002] {
        for off in (0..72).step_by(4).filter(|off| *off != 8) {
            for value in [7u32, 0x1234_5678] {
                lookups.push(case(
                    format!("{family}, {value:#x} at {off}"),
                    None,
                    lookup(&[(8, family), (off, value)]),
                ));
            }
        }
    }
    lookups.push(case("a packet", Some(udp(0)), lookup(&[(8, 2)])));
    let sockets = packets();
    vec![
        ("socket_socket", sockets.clone()),
        ("tc_socket", sockets.clone()),
        ("cgroup_socket", sockets),
        ("dissect", flows),
        ("look_up", lookups),
        ("behind_devmap", packets()),
    ]
}
