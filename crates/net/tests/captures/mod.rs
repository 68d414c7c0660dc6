//! Capture files made the naive way, with the packets that are in them.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::time::Duration;

use skep_net::port::batch::Meta;
use skep_net::port::capture::Reader;
use skep_net::port::{Batch, Lost, PortError, Received, Source};

/// A packet as it should be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Packet {
    pub meta: Meta,
    pub bytes: Vec<u8>,
}

/// Reproducible numbers (SplitMix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }

    /// Mostly small, sometimes none, sometimes large.
    pub fn packet(&mut self) -> Vec<u8> {
        let len = match self.below(20) {
            0 => 0,
            1 => 65_536,
            2 => 9000 + self.below(100) as usize,
            _ => self.below(200) as usize,
        };
        self.bytes(len)
    }
}

/// A file that grows, with the ends of its packets and blocks.
#[derive(Default)]
pub struct Capture {
    pub file: Vec<u8>,
    pub packets: Vec<Packet>,
    /// Where the file may end without cutting anything, and how many packets are before.
    pub ends: Vec<(usize, usize)>,
    pub big: bool,
}

impl Capture {
    pub fn u32(&mut self, n: u32) {
        let bytes = if self.big { n.to_be_bytes() } else { n.to_le_bytes() };
        self.file.extend_from_slice(&bytes);
    }

    pub fn words(&mut self, words: &[u32]) {
        words.iter().for_each(|n| self.u32(*n));
    }

    pub fn u16(&mut self, n: u16) {
        let bytes = if self.big { n.to_be_bytes() } else { n.to_le_bytes() };
        self.file.extend_from_slice(&bytes);
    }

    fn end(&mut self) {
        self.ends.push((self.file.len(), self.packets.len()));
    }

    /// A pcap file with so many packets.
    pub fn pcap(random: &mut Random, big: bool, nanoseconds: bool, packets: usize) -> Self {
        let mut c = Self { big, ..Self::default() };
        c.u32(if nanoseconds { 0xa1b2_3c4d } else { 0xa1b2_c3d4 });
        c.u16(2);
        c.u16(4);
        c.words(&[0, 0, 65_536, 1]);
        c.end();
        for _ in 0..packets {
            let (bytes, cut) = (random.packet(), random.below(2) as u32 * 7);
            let (seconds, unit) = (random.next() as u32, if nanoseconds { 1 } else { 1000 });
            let fraction = random.below(1_000_000_000 / unit) as u32;
            let wire_len = bytes.len() as u32 + cut;
            c.words(&[seconds, fraction, bytes.len() as u32, wire_len]);
            c.file.extend_from_slice(&bytes);
            let ns = u64::from(seconds) * 1_000_000_000 + u64::from(fraction) * unit;
            c.packets.push(Packet { meta: Meta { ns, wire_len, port: 1, queue: 0 }, bytes });
            c.end();
        }
        c
    }

    /// A block with a body that somebody writes.
    pub fn block(&mut self, kind: u32, body: impl FnOnce(&mut Self)) {
        let start = self.file.len();
        self.u32(kind);
        self.u32(0);
        body(self);
        while !self.file.len().is_multiple_of(4) {
            self.file.push(0);
        }
        let len = (self.file.len() + 4 - start) as u32;
        self.u32(len);
        let bytes = if self.big { len.to_be_bytes() } else { len.to_le_bytes() };
        self.file[start + 4..start + 8].copy_from_slice(&bytes);
        self.end();
    }

    pub fn option(&mut self, code: u16, value: &[u8]) {
        self.u16(code);
        self.u16(value.len() as u16);
        self.file.extend_from_slice(value);
        while !self.file.len().is_multiple_of(4) {
            self.file.push(0);
        }
    }

    pub fn section(&mut self) {
        self.block(0x0a0d_0d0a, |c| {
            c.u32(0x1a2b_3c4d);
            c.u16(1);
            c.u16(0);
            c.u32(u32::MAX);
            c.u32(u32::MAX);
            c.option(4, b"made by a test");
            c.option(0, b"");
        });
    }

    /// A pcapng file of several sections, each in a byte order of its own, with interfaces of
    /// several resolutions and blocks of all kinds.
    pub fn pcapng(random: &mut Random, blocks: usize) -> Self {
        let mut c = Self { big: random.below(2) == 0, ..Self::default() };
        // Resolution, offset in seconds and snaplen of the section's interfaces.
        let mut interfaces: Vec<(u8, u64, u32)> = Vec::new();
        let mut ports = 0;
        c.section();
        for _ in 0..blocks {
            match random.below(12) {
                0 => {
                    c.big = random.below(2) == 0;
                    c.section();
                    ports += interfaces.len() as u32;
                    interfaces.clear();
                }
                1 => {
                    let kind = [4, 5, 0xbad, 0x4000_0bad][random.below(4) as usize];
                    let body = random.packet();
                    c.block(kind, |c| c.file.extend_from_slice(&body));
                }
                n @ 2.. if n == 2 || interfaces.is_empty() => {
                    let resolution = [6, 9, 3, 0, 12, 0x8a, 0x94][random.below(7) as usize];
                    let offset = random.below(2) * 1000;
                    let snaplen = [0, 65_536, 96][random.below(3) as usize];
                    c.block(1, |c| {
                        c.u16(1);
                        c.u16(0);
                        c.u32(snaplen);
                        c.option(2, b"eth0");
                        if resolution != 6 || random.below(2) == 0 {
                            c.option(9, &[resolution]);
                        }
                        if offset != 0 {
                            let big = offset.to_be_bytes();
                            c.option(14, &if c.big { big } else { offset.to_le_bytes() });
                        }
                        c.option(0, b"");
                    });
                    interfaces.push((resolution, offset, snaplen));
                }
                3 => {
                    let mut bytes = random.packet();
                    let wire_len = bytes.len() as u32;
                    if interfaces[0].2 != 0 {
                        bytes.truncate(interfaces[0].2 as usize);
                    }
                    let meta = Meta { ns: 0, wire_len, port: ports + 1, queue: 0 };
                    c.packets.push(Packet { meta, bytes: bytes.clone() });
                    c.block(3, |c| {
                        c.u32(wire_len);
                        c.file.extend_from_slice(&bytes);
                    });
                }
                kind => {
                    let which = random.below(interfaces.len() as u64) as u32;
                    let (resolution, offset, _) = interfaces[which as usize];
                    let (bytes, cut) = (random.packet(), random.below(2) as u32 * 100);
                    let time = random.next() >> if resolution & 0x80 == 0 { 34 } else { 30 };
                    let scale = if resolution & 0x80 == 0 { 10_u128 } else { 2 }
                        .pow(u32::from(resolution & 0x7f));
                    let ns = u128::from(time) * 1_000_000_000 / scale;
                    let ns = ns as u64 + offset * 1_000_000_000;
                    let wire_len = bytes.len() as u32 + cut;
                    let port = ports + which + 1;
                    let meta = Meta { ns, wire_len, port, queue: 0 };
                    c.packets.push(Packet { meta, bytes: bytes.clone() });
                    c.block(if kind == 4 { 2 } else { 6 }, |c| {
                        if kind == 4 {
                            c.u16(which as u16);
                            c.u16(0xffff);
                        } else {
                            c.u32(which);
                        }
                        c.u32((time >> 32) as u32);
                        c.u32(time as u32);
                        c.u32(bytes.len() as u32);
                        c.u32(wire_len);
                        c.file.extend_from_slice(&bytes);
                        while !c.file.len().is_multiple_of(4) {
                            c.file.push(0);
                        }
                        if kind > 8 {
                            c.option(1, b"a comment");
                            c.option(0, b"");
                        }
                    });
                }
            }
        }
        c
    }
}

/// Reads everything that a source has.
pub fn read_all(source: &mut dyn Source) -> (Vec<Packet>, Result<Lost, PortError>) {
    let (mut all, mut batch) = (Vec::new(), Batch::new());
    loop {
        let received = source.receive(&mut batch, Duration::ZERO);
        all.extend(batch.frames().map(|f| Packet { meta: f.meta, bytes: f.bytes.to_vec() }));
        batch.clear();
        match received {
            Ok(Received::End) => return (all, source.lost()),
            Ok(_) => {}
            Err(e) => return (all, Err(e)),
        }
    }
}

/// Reads everything in the bytes of a file.
pub fn read(file: &[u8]) -> (Vec<Packet>, Result<Lost, PortError>) {
    match Reader::new("test", Box::new(std::io::Cursor::new(file.to_vec()))) {
        Ok(mut reader) => read_all(&mut reader),
        Err(e) => (Vec::new(), Err(e)),
    }
}
