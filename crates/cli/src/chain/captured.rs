//! Packets of a port that are looked at one by one, or used again and again.

use std::time::Duration;

use skep::port::batch::Meta;
use skep::port::name::open_source;
use skep::port::{Batch, Received};

use crate::failure::{Failure, Result};
use crate::units;

/// How long a port may have nothing before the next look.
const WAIT: Duration = Duration::from_millis(50);

/// Goes through the packets of a port, counted from 1 on, until `each` has enough of them and
/// returns `false`. Returns how many there were.
fn read(port: &str, each: &mut dyn FnMut(u64, Meta, &[u8]) -> bool) -> Result<u64> {
    let mut source = open_source(port)?.source;
    let (mut batch, mut number) = (Batch::new(), 0);
    loop {
        batch.clear();
        // What was read before an error counts.
        let received = source.receive(&mut batch, WAIT);
        for (index, frame) in batch.frames().enumerate() {
            number += 1;
            if !each(number, batch.meta(index).unwrap_or_default(), frame.bytes) {
                return Ok(number);
            }
        }
        if received? == Received::End {
            return Ok(number);
        }
    }
}

/// A packet of a port.
pub struct Captured {
    /// Its number, counted from 1 on.
    pub number: u64,
    /// When and where it was received.
    pub meta: Meta,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// Returns some packets of a port by their numbers, in this order; the first one if none is named.
pub fn numbered(port: &str, numbers: &[u64]) -> Result<Vec<Captured>> {
    let wanted = if numbers.is_empty() { &[1] } else { numbers };
    if wanted.contains(&0) {
        return Err(Failure::environment("there is no packet 0: the first one is packet 1"));
    }
    let last = wanted.iter().copied().max().unwrap_or(1);
    let mut found: Vec<Option<(Meta, Vec<u8>)>> = vec![None; wanted.len()];
    let there = read(port, &mut |number, meta, bytes| {
        let these = wanted.iter().zip(&mut found).filter(|(n, _)| **n == number);
        these.for_each(|(_, place)| *place = Some((meta, bytes.to_vec())));
        number < last
    })?;
    let missing = |n: &u64| {
        Failure::failed(format!("`{port}` has no packet {n}")).hint(format!(
            "it has {}, the first of which is packet 1",
            units::count(there, "packet")
        ))
    };
    let all = wanted.iter().zip(found).map(|(n, packet)| {
        let (meta, bytes) = packet.ok_or_else(|| missing(n))?;
        Ok(Captured { number: *n, meta, bytes })
    });
    all.collect()
}

/// Packets that are used again and again.
pub struct Kept {
    bytes: Vec<u8>,
    /// Where each ends.
    packets: Vec<(Meta, usize)>,
}

impl Kept {
    /// Most packets, and most of their bytes.
    const PACKETS: usize = 65_536;
    const BYTES: usize = 64 << 20;

    /// Takes the first packets of a port.
    pub fn of(port: &str) -> Result<Self> {
        let mut kept = Self { bytes: Vec::new(), packets: Vec::new() };
        read(port, &mut |_, meta, bytes| {
            kept.bytes.extend_from_slice(bytes);
            kept.packets.push((meta, kept.bytes.len()));
            kept.packets.len() < Self::PACKETS && kept.bytes.len() < Self::BYTES
        })?;
        if kept.packets.is_empty() {
            return Err(Failure::failed(format!("`{port}` has no packets")));
        }
        Ok(kept)
    }

    /// Returns how many there are.
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Puts packets into a batch, from number `next` on, and begins again after the last one.
    pub fn fill(&self, batch: &mut Batch, next: &mut usize) {
        batch.clear();
        loop {
            let start = next.checked_sub(1).and_then(|n| self.packets.get(n)).map_or(0, |p| p.1);
            let Some((meta, end)) = self.packets.get(*next) else {
                *next = 0;
                continue;
            };
            let bytes = self.bytes.get(start..*end).unwrap_or_default();
            if !batch.push(*meta, bytes) {
                return;
            }
            *next += 1;
        }
    }
}
