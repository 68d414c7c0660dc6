//! Packets of many connections to the balancer's virtual addresses. A few connections have most of
//! the packets (Zipf, exponent 1); nine of ten are IPv4, eight of ten TCP.

/// Packets of a mix, as many as the array in `balancer.bpf.c` has.
pub const PACKETS: usize = 16_384;
/// Bytes of each.
pub const PACKET: usize = 96;
/// Where the numbers of the mix begin.
pub const SEED: u64 = 0x5eed;
/// Connections that there are.
const CONNECTIONS: usize = 10_000;
/// Virtual addresses: the first six are IPv4, the others IPv6.
pub const VIPS: u8 = 8;
const VIPS_V4: u8 = 6;

const TCP: u8 = 6;
const UDP: u8 = 17;
const SYN: u8 = 2;
const ACK: u8 = 16;
/// Of packets that are looked up by their port, and of those of the address that takes all ports.
pub const PORT: u16 = 443;

/// A generator of numbers that are the same each time (xorshift64*).
pub struct Numbers(u64);

impl Numbers {
    /// Begins at a seed, which is not 0.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next one.
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// The next one below a limit.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() >> 33) as usize % limit
    }
}

/// The address of a virtual one as a key has it, and its protocol.
pub fn vip(number: u8) -> ([u8; 16], u8) {
    let mut address = [0; 16];
    if number < VIPS_V4 {
        address[..4].copy_from_slice(&[10, 200, 1, number]);
    } else {
        address[..4].copy_from_slice(&[0x20, 0x01, 0x0d, 0xb8]);
        address[15] = number;
    }
    (address, if number % 5 == 4 { UDP } else { TCP })
}

/// Tells whether a virtual address, or server, is IPv6.
pub fn is_v6(number: u8) -> bool {
    number >= VIPS_V4
}

/// Tells whether a virtual address takes all ports.
pub fn takes_all_ports(number: u8) -> bool {
    number == 1
}

struct Connection {
    vip: u8,
    source: [u8; 16],
    ports: [u16; 2],
}

/// The packets, one behind the other.
pub fn packets(seed: u64) -> Vec<[u8; PACKET]> {
    let mut numbers = Numbers::new(seed);
    let connections: Vec<_> = (0..CONNECTIONS).map(|_| connection(&mut numbers)).collect();
    // Sums of 1/n, of which a number picks the connection.
    let mut sum = 0.0;
    let sums: Vec<f64> = (1..=CONNECTIONS)
        .map(|n| {
            sum += 1.0 / n as f64;
            sum
        })
        .collect();
    (0..PACKETS)
        .map(|_| {
            let point = (numbers.next() >> 11) as f64 / (1_u64 << 53) as f64 * sum;
            let at = sums.partition_point(|s| *s < point).min(CONNECTIONS - 1);
            packet(&connections[at], numbers.below(50) == 0)
        })
        .collect()
}

fn connection(numbers: &mut Numbers) -> Connection {
    let vip = match numbers.below(10) {
        0 => VIPS_V4 + numbers.below(usize::from(VIPS - VIPS_V4)) as u8,
        _ => numbers.below(usize::from(VIPS_V4)) as u8,
    };
    let mut source = [0; 16];
    if is_v6(vip) {
        source[..2].copy_from_slice(&[0x20, 0x01]);
        source[8..].copy_from_slice(&numbers.next().to_be_bytes());
    } else {
        source[..4].copy_from_slice(&(numbers.next() as u32 | 1 << 31).to_be_bytes());
    }
    let port = if takes_all_ports(vip) { 1 + numbers.below(60_000) as u16 } else { PORT };
    Connection { vip, source, ports: [1024 + numbers.below(60_000) as u16, port] }
}

fn packet(of: &Connection, begins: bool) -> [u8; PACKET] {
    let mut bytes = [0; PACKET];
    let (address, protocol) = vip(of.vip);
    let mut put = |at: usize, part: &[u8]| bytes[at..at + part.len()].copy_from_slice(part);
    put(0, &[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
    let length = |from: usize| ((PACKET - from) as u16).to_be_bytes();
    let transport = if is_v6(of.vip) {
        put(12, &[0x86, 0xdd, 0x60, 0, 0, 0]);
        put(18, &length(54));
        put(20, &[protocol, 64]);
        put(22, &of.source);
        put(38, &address);
        54
    } else {
        put(12, &[8, 0, 0x45, 0]);
        put(16, &length(14));
        put(22, &[64, protocol]);
        put(26, &of.source[..4]);
        put(30, &address[..4]);
        34
    };
    put(transport, &of.ports[0].to_be_bytes());
    put(transport + 2, &of.ports[1].to_be_bytes());
    if protocol == TCP {
        put(transport + 12, &[0x50, if begins { SYN } else { ACK }]);
    } else {
        put(transport + 4, &length(transport));
    }
    bytes
}
