//! Arguments for helpers: the edges, and some of everything between.

use super::{Case, Programs, case, counted, ethernet, ipv4, ipv6, md, sk_buff, udp};

/// Numbers, the same in every run unless `SKEP_SEED` says otherwise.
struct Numbers(u64);

impl Numbers {
    fn new(seed: u64) -> Self {
        Self(
            seed + std::env::var("SKEP_SEED").ok().and_then(|s| s.parse::<u64>().ok()).unwrap_or(0)
                * 1000,
        )
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[(self.next() % from.len() as u64) as usize]
    }

    /// A length somewhere about `around`, or far off.
    fn near(&mut self, around: i32) -> i32 {
        match self.next() % 8 {
            0 => self.next() as i32,
            1 => around,
            2 => -around,
            3 => 0,
            4 => (self.next() % 300) as i32 - 150,
            _ => around + (self.next() % 9) as i32 - 4,
        }
    }
}

/// A packet that begins with its program's arguments.
fn with(args: [i32; 3], len: usize) -> Vec<u8> {
    let mut packet: Vec<u8> = args.iter().flat_map(|a| a.to_ne_bytes()).collect();
    packet.extend(counted(len));
    packet.truncate(len.max(14));
    packet
}

fn xdp_cases(seed: u64, lens: &[usize], args: impl Fn(&mut Numbers, i32) -> [i32; 3]) -> Vec<Case> {
    let mut n = Numbers::new(seed);
    let mut out = Vec::new();
    for i in 0..40 {
        let len = n.pick(lens);
        let args = args(&mut n, len as i32);
        let meta = n.pick(&[0_u32, 0, 0, 4, 32, 64]);
        let ctx = (meta > 0 && len > 80).then(|| md([meta, len as u32, 0, 0, 0, 0]));
        // The metadata comes first in what is given.
        let mut data = with(args, len);
        if ctx.is_some() {
            data = [counted(meta as usize), with(args, len - meta as usize)].concat();
        }
        out.push(case(format!("{i}: {len} bytes, meta {meta}, {args:?}"), Some(data), ctx));
    }
    out
}

pub(super) fn xdp() -> Programs {
    let short = [14, 20, 60, 64, 101, 200, 1500];
    let long = [60, 3520, 3521, 4000, 7000, 7616, 7617, 9000, 20_000];
    let moves: &[i32] = &[0, 1, 14, 16, 46, 100, 216, 256];
    let head = |n: &mut Numbers, len: i32| {
        let by = n.pick(moves);
        [
            n.pick(&[
                n.0 as i32 % 400,
                by,
                -by,
                len - 14,
                len - 13,
                -216,
                -217,
                -212,
                -40,
                i32::MIN,
                i32::MAX,
            ]),
            0,
            0,
        ]
    };
    let tail = |n: &mut Numbers, len: i32| {
        let by = n.pick(moves);
        let far = n.pick(&[
            3520 - len,
            3521 - len,
            14 - len,
            13 - len,
            96,
            97,
            480,
            4000,
            -3500,
            -4096,
            i32::MIN,
            i32::MAX,
        ]);
        [n.pick(&[far, by, -by]), n.pick(&[0, far, by, -by, -1]), 0]
    };
    let meta = |n: &mut Numbers, _: i32| {
        let steps = [0, -4, -8, -32, -64, -212, -216, -220, 4, 8, -3, -252, -256, 1000, i32::MIN];
        [n.pick(&steps), n.pick(&[0, -4, 4, -16, 20, -100]), n.pick(&steps)]
    };
    let load = |n: &mut Numbers, len: i32| [n.near(len - 32), n.near(len - 7), 0];
    let numbers = |n: &mut Numbers, _: i32| [n.next() as i32, n.next() as i32, n.next() as i32];
    let redirect = |n: &mut Numbers, _: i32| {
        [n.pick(&[0, 1, 3, 4, -1]), n.pick(&[0, 1, 2, 3, 4, 8, 16, 24, 11, 64, -1]), 0]
    };
    // An interface that is there would answer by how the machine is set up.
    let fib = |n: &mut Numbers, _: i32| {
        [n.pick(&[2, 10, 0, 1, 7]), n.pick(&[0, 4711, -1]), n.pick(&[0, 1, 2, 63, 64, 128, -1])]
    };
    let mtu = |n: &mut Numbers, _: i32| {
        let lens = [0, 0, 1, 1500, 65_535, 65_536, 65_537, 70_000];
        [n.pick(&[0, 1, 1, 4711]), n.pick(&lens), n.pick(&[0, 0, 10, -10, 65_500, 65_536])]
    };
    vec![
        ("xdp_head", xdp_cases(1, &short, head)),
        ("xdp_head_frags", xdp_cases(2, &long, head)),
        ("xdp_tail", xdp_cases(3, &short, tail)),
        ("xdp_tail_frags", xdp_cases(4, &long, tail)),
        ("xdp_meta", xdp_cases(5, &short, meta)),
        ("xdp_load", xdp_cases(6, &short, load)),
        ("xdp_load_frags", xdp_cases(7, &long, load)),
        ("xdp_csum", xdp_cases(8, &[60, 64, 200], numbers)),
        ("xdp_redirect", xdp_cases(9, &[60], redirect)),
        ("xdp_fib", xdp_cases(10, &[60], fib)),
        ("xdp_mtu", xdp_cases(11, &short, mtu)),
    ]
}

fn skb_cases(seed: u64, args: impl Fn(&mut Numbers, i32) -> [i32; 5]) -> Vec<Case> {
    let mut n = Numbers::new(seed);
    let tagged = |tags: &[u16]| {
        let mut p = ethernet(0x8100, &[]);
        for tag in tags {
            p.extend([0x20, *tag as u8]);
            p.extend(if *tag == 3 { [0x08, 0x00] } else { [0x81, 0x00] });
        }
        p.extend(&ipv4(17, 64, &counted(30))[..]);
        p
    };
    let ecn = |tos: u8| {
        let mut p = udp(30);
        p[15] = tos;
        p
    };
    let mut out = Vec::new();
    for i in 0..48 {
        let data = match n.next() % 10 {
            0 => ethernet(0x0800, &ipv4(6, 9, &counted(40))),
            1 => ipv6(),
            2 => tagged(&[3]),
            3 => tagged(&[1, 3]),
            4 => ethernet(0x1234, &counted(60)),
            5 => ecn(n.next() as u8),
            6 => {
                let mut p = ipv6();
                p[15] = n.next() as u8;
                p
            }
            7 => udp(1400),
            _ => udp(60),
        };
        let args = args(&mut n, data.len() as i32);
        let cb: Vec<(usize, u32)> =
            args.iter().enumerate().map(|(i, a)| (48 + 4 * i, *a as u32)).collect();
        out.push(case(
            format!("{i}: {} bytes, {args:?}", data.len()),
            Some(data),
            Some(sk_buff(&cb)),
        ));
    }
    out
}

pub(super) fn skb() -> Programs {
    let load = |n: &mut Numbers, len: i32| {
        [n.near(len - 24), n.near(len - 23), n.pick(&[0, 1, 1, 2]), 0, 0]
    };
    let store =
        |n: &mut Numbers, len: i32| [n.near(len - 11), n.pick(&[0, 0, 1, 2, 3, 4]), 0, 0, 0];
    let csum = |n: &mut Numbers, len: i32| {
        let flags = n.pick(&[0, 2, 4, 4, 1, 8, 18, 20, 16, 34, 36, 52, 100, 98, 116, 0x84, 0x100]);
        let from = if n.next().is_multiple_of(3) { 0 } else { n.next() as i32 };
        [
            n.pick(&[24, 40, 24, 40, 25, n.0 as i32 & 0x7f, len - 2, len - 1, 0x10000]),
            from,
            n.next() as i32,
            flags,
            0,
        ]
    };
    let vlan = |n: &mut Numbers, _: i32| {
        [
            n.pick(&[0x0081, 0xa888, 0x0008, 0]),
            n.next() as i32 & 0xffff,
            n.pick(&[1, 2, 11, 12, 21, 22, 111, 122, 222, 2211, 1212]),
            0,
            0,
        ]
    };
    let tail = |n: &mut Numbers, len: i32| {
        [
            n.pick(&[0, 13, 14, 15, len, len + 1, len - 1, 4000, 16_064, 16_065, -1]),
            n.pick(&[0, 0, 0, 1]),
            0,
            0,
            0,
        ]
    };
    let head = |n: &mut Numbers, len: i32| {
        let by = n.pick(&[0, 1, 14, 4, 40, 900, 16_064 - len, 16_065 - len, 20_000, -1]);
        [by & 0x7fff_ffff, n.pick(&[0, 0, 0, 1]), 0, 0, 0]
    };
    let room = |n: &mut Numbers, len: i32| {
        let by = n.pick(&[
            0,
            1,
            4,
            8,
            14,
            20,
            40,
            54,
            -1,
            -4,
            -8,
            -20,
            -40,
            4095,
            4096,
            -4096,
            20 - len,
            40 - len,
        ]);
        let low = n.pick(&[
            0, 0, 1, 2, 4, 6, 10, 18, 26, 12, 20, 32, 66, 0x80, 0x100, 0x180, 0x200, 0x22, 0x4a,
        ]);
        [
            by,
            n.pick(&[0, 1, 0, 1, 2]),
            low,
            n.pick(&[0, 0, 0, 14 << 24, 13 << 24, 60 << 24, 1]),
            n.pick(&[0, 0, 8, -8]),
        ]
    };
    let pull =
        |n: &mut Numbers, len: i32| [n.pick(&[0, 1, len, len + 1, len - 1, 5000, -1]), 0, 0, 0, 0];
    let levels = |n: &mut Numbers, _: i32| {
        [n.next() as i32 & 0x7fff_ffff, n.next() as i32, 0, 0, 0].map(|v| v)
    };
    let fields = |n: &mut Numbers, _: i32| {
        [
            n.pick(&[0, 1, 2, 3, 4, 7, -1]),
            n.next() as i32 | 1,
            n.pick(&[0, 5, 1 << 30]),
            n.pick(&[0, 1, 2, 3, 7]),
            n.pick(&[0, 1, 2, 3, 1 << 16]),
        ]
    };
    let mtu = |n: &mut Numbers, _: i32| {
        let lens = [0, 0, 1, 1500, 65_535, 65_536, 65_537, 70_000];
        [
            n.pick(&[0, 1, 1, 4711]),
            n.pick(&lens),
            n.pick(&[0, 0, 10, -10, 65_500, 65_536]),
            n.pick(&[0, 0, 0, 1, 2]),
            0,
        ]
    };
    vec![
        ("tc_load", skb_cases(20, load)),
        ("socket_load", skb_cases(21, load)),
        ("cgroup_load", skb_cases(22, load)),
        ("tc_store", skb_cases(23, store)),
        ("tc_l3", skb_cases(24, csum)),
        ("tc_l4", skb_cases(25, csum)),
        ("tc_vlan", skb_cases(26, vlan)),
        ("tc_tail", skb_cases(27, tail)),
        ("tc_head", skb_cases(28, head)),
        ("tc_room", skb_cases(29, room)),
        ("tc_pull", skb_cases(30, pull)),
        ("tc_csum", skb_cases(31, levels)),
        ("tc_fields", skb_cases(32, fields)),
        ("tc_mtu", skb_cases(33, mtu)),
    ]
}

pub(super) fn plain() -> Programs {
    let words = |given: &[u64]| {
        let mut words = given.to_vec();
        words.resize(16, 0);
        Some(words.iter().flat_map(|w| w.to_ne_bytes()).collect::<Vec<u8>>())
    };
    let cases = |list: &[&[u64]]| {
        list.iter().map(|w| case(format!("{w:?}"), None, words(w))).collect::<Vec<_>>()
    };
    let short = |list: &[&[u64]]| {
        let whole = cases(list);
        whole
            .into_iter()
            .map(|c| Case { ctx: c.ctx.map(|ctx| ctx[..96].to_vec()), ..c })
            .collect::<Vec<_>>()
    };
    let none = u64::MAX;
    let loops = [
        &[0, 0, none][..],
        &[1, 0, none],
        &[10, 0, none],
        &[10, 0, 0],
        &[10, 0, 9],
        &[10, 1, none],
        &[1 << 23, 0, 5000],
        &[(1 << 23) + 1, 0, none],
        &[none, 0, none],
        &[1 << 32, 0, none],
        &[(1 << 32) + 3, 0, none],
        &[5, 1 << 32, none],
    ];
    let queues = [
        &[10, 0, 0, 0, 0, 0, 0, 4][..],
        &[20, 0, 0, 0, 0, 0, 0, 0],
        &[30, 0, 0, 0, 0, 0, 0, 1],
        &[40, 0, 0, 0, 2, 0, 0, 0],
        &[50, 0, 2, 0, 2, 0, 0, 4],
        &[60, 0, 1, 0, 3, 0, 0, 4],
        &[70, 0, 4, 0, none, 0, 0, 4],
    ];
    vec![
        ("sys_loop", cases(&loops)),
        (
            "sys_each",
            cases(&[&[0, 0, none], &[20, 0, none], &[5, 0, 3], &[7, 1, none], &[20, 0, 12]]),
        ),
        ("sys_queue", cases(&queues)),
        ("sys_stack", cases(&queues)),
        ("raw_bloom", short(&[&[5, 0, 0], &[5, 0, 1], &[6, 0, 2], &[7, 0, 0]])),
        ("sys_percpu", cases(&[&[0, 0], &[3, 0], &[4, 0], &[1 << 32, 0], &[1, none], &[1, 4096]])),
        (
            "sys_ring",
            cases(
                &[&[0, 0], &[8, 0], &[127, 1], &[127, 2], &[1, 3], &[1, 4], &[100, none], &[64, 0]]
                    .map(|w: &[u64; 2]| &w[..]),
            ),
        ),
        (
            "raw_errors",
            short(&[
                &[0, 0, 0],
                &[none, none, 8],
                &[1, 1, 8],
                &[2, 2, 8],
                &[3, 3, 8],
                &[0xffff_ffff, 1 << 32, 8],
            ]),
        ),
    ]
}
