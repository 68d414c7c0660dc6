//! Mappings saved to a file, to name addresses after the process has gone.
//!
//! Little-endian. Numbers of the body are LEB128 (7 bits a byte, the lowest first, the highest bit
//! says that more follow), signed ones zigzag.
//!
//! ```text
//!  0  magic  "SKEPVMAS"
//!  8  u32    version, 2
//! 12  u32    pid
//! 16  u64    start time of the process, in ticks since boot
//! 24  16 B   boot id
//! 40  u8     what the source knew (Knows)      41  u8  page shift      42  6 B  0
//! 48  body:  strings  number, then of each: length, bytes
//!            origins  number, then of each: major, minor, inode, name, build id (each the number of
//!                     a string plus 1; 0: none), page size, flags (1 escaped, 2 of a file)
//!            mappings number, then of each: gap since the end of the one before, length (both in
//!                     pages), permissions, origin, and the offset minus the one that would continue
//!                     the mapping before (pages, signed)
//!  …  u64    FNV-1a of everything before
//! ```
//!
//! A mapping whose origin is that of the mapping before is expected to continue it, any other to
//! begin at offset 0. If an address or offset is no multiple of 4,096 the page shift is 0.

use std::collections::HashMap;
use std::path::Path;

use super::filter::{Filter, Knows, Want};
use super::identity::Identity;
use super::input::Input;
use super::mappings::Mappings;
use super::vma::{Dev, Perms, Vma};
use super::{MapSource, MapsError};
use crate::elf::{u32_at, u64_at};

/// The first bytes of a file with a snapshot.
pub(crate) const MAGIC: &[u8; 8] = b"SKEPVMAS";
const VERSION: u32 = 2;
const HEAD: usize = 48;
/// Names and build ids of all mappings together: a small file could name one long string for each
/// of many mappings.
const MAX_NAMES: usize = 256 << 20;

/// Mappings of one process at one time, and which process that is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    identity: Identity,
    mappings: Mappings,
}

/// What mappings have in common: most mappings of a file differ in nothing else.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Origin {
    dev: Dev,
    inode: u64,
    name: usize,
    build_id: usize,
    page_size: u64,
    flags: u64,
}

impl Snapshot {
    /// Takes mappings of which everything is known; sorts them by address. Overlapping or empty ones
    /// are an error.
    pub fn new(identity: Identity, vmas: Vec<Vma>) -> Result<Self, MapsError> {
        Ok(Self::of(identity, Mappings::new(vmas)?))
    }

    /// Says whose mappings these are.
    pub fn of(identity: Identity, mappings: Mappings) -> Self {
        Self { identity, mappings }
    }

    /// Copies all that a source knows.
    pub fn take(source: &dyn MapSource, identity: Identity, want: Want) -> Result<Self, MapsError> {
        let vmas = source.all(&Filter::default(), want)?;
        Ok(Self::of(identity, Mappings::knowing(vmas, source.knows())?))
    }

    /// The process that was saved.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// All mappings.
    pub fn vmas(&self) -> &[Vma] {
        self.mappings.vmas()
    }

    /// Writes the format described at the top of this module.
    pub fn to_bytes(&self) -> Vec<u8> {
        let vmas = self.vmas();
        let aligned = vmas.iter().all(|v| (v.start | v.end | v.offset) & 0xfff == 0);
        let shift = if aligned { 12 } else { 0 };
        let mut out = Vec::with_capacity(HEAD + vmas.len() * 10);
        out.extend(MAGIC);
        out.extend(VERSION.to_le_bytes());
        out.extend(self.identity.pid.to_le_bytes());
        out.extend(self.identity.start_time.to_le_bytes());
        out.extend(self.identity.boot_id);
        out.extend([self.knows().0, shift, 0, 0, 0, 0, 0, 0]);

        let (mut strings, mut origins) = (Numbers::default(), Numbers::default());
        let mut of_vmas = Vec::with_capacity(vmas.len());
        for v in vmas {
            let mut string = |s: &Option<Vec<u8>>| s.as_ref().map_or(0, |s| 1 + strings.of(s));
            let (name, build_id) = (string(&v.name), string(&v.build_id));
            let flags = u64::from(v.escaped) | u64::from(v.file) << 1;
            let (dev, inode, page_size) = (v.dev, v.inode, v.page_size);
            of_vmas.push(origins.of(&Origin { dev, inode, name, build_id, page_size, flags }));
        }
        put(&mut out, strings.list.len() as u64);
        for string in &strings.list {
            put(&mut out, string.len() as u64);
            out.extend(string);
        }
        put(&mut out, origins.list.len() as u64);
        for o in &origins.list {
            let (major, minor) = (o.dev.major.into(), o.dev.minor.into());
            let (name, build_id) = (o.name as u64, o.build_id as u64);
            for n in [major, minor, o.inode, name, build_id, o.page_size, o.flags] {
                put(&mut out, n);
            }
        }
        put(&mut out, vmas.len() as u64);
        let (mut end, mut continued) = (0, None);
        for (v, origin) in vmas.iter().zip(of_vmas) {
            let expected = expected(continued, origin);
            put(&mut out, (v.start - end) >> shift);
            put(&mut out, (v.end - v.start) >> shift);
            put(&mut out, v.perms.0.into());
            put(&mut out, origin as u64);
            let ahead = v.offset.wrapping_sub(expected) as i64 >> shift;
            put(&mut out, (ahead << 1 ^ ahead >> 63) as u64);
            (end, continued) = (v.end, continues(v, origin));
        }
        let sum = fnv(&out);
        out.extend(sum.to_le_bytes());
        out
    }

    /// Reads the format described at the top of this module.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, MapsError> {
        let bad = |what, offset: usize| MapsError::BadFile { what, offset: offset as u64 };
        let (head, _) = bytes
            .split_at_checked(HEAD)
            .filter(|(head, _)| head.starts_with(MAGIC))
            .ok_or(bad("head of a snapshot", 0))?;
        if u32_at(head, 8) != VERSION {
            return Err(MapsError::Unsupported { what: "another version of the snapshot format" });
        }
        let (body, sum) = bytes
            .split_last_chunk::<8>()
            .filter(|(body, _)| body.len() >= HEAD)
            .ok_or(bad("end of a snapshot", bytes.len()))?;
        if u64::from_le_bytes(*sum) != fnv(body) {
            return Err(bad("checksum (the file was cut or changed)", body.len()));
        }
        let mut boot_id = [0; 16];
        boot_id.iter_mut().zip(head.iter().skip(24)).for_each(|(to, from)| *to = *from);
        let identity = Identity { pid: u32_at(head, 12), start_time: u64_at(head, 16), boot_id };
        let knows = Knows(head.get(40).copied().unwrap_or(0)).and(Knows::ALL);
        let shift = head.get(41).copied().filter(|s| *s < 64).ok_or(bad("page shift", 41))?;
        let mut body = Body { bytes: body, at: HEAD };
        let vmas = body.vmas(shift.into()).ok_or(bad("body of a snapshot", body.at))?;
        Ok(Self::of(identity, Mappings::knowing(vmas, knows)?))
    }

    /// Reads a file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, MapsError> {
        let input = Input::open(path.as_ref())?;
        Self::from_bytes(&input.read("snapshot", 0, input.len())?)
    }
}

impl MapSource for Snapshot {
    fn query(&self, addr: u64, filter: &Filter, want: Want) -> Result<Option<Vma>, MapsError> {
        self.mappings.query(addr, filter, want)
    }

    fn all(&self, filter: &Filter, want: Want) -> Result<Vec<Vma>, MapsError> {
        self.mappings.all(filter, want)
    }

    fn knows(&self) -> Knows {
        self.mappings.knows()
    }
}

/// The offset that continues the mapping before, given with its origin and where its file ends.
fn expected(before: Option<(usize, u64)>, origin: usize) -> u64 {
    before.filter(|(same, _)| *same == origin).map_or(0, |(_, offset)| offset)
}

/// What [`expected`] takes; mappings without a file do not count bytes.
fn continues(vma: &Vma, origin: usize) -> Option<(usize, u64)> {
    vma.file_backed().then(|| (origin, vma.file_offset(vma.end)))
}

/// Distinct values, numbered in the order of their first use.
struct Numbers<T> {
    list: Vec<T>,
    numbers: HashMap<T, usize>,
}

impl<T> Default for Numbers<T> {
    fn default() -> Self {
        Self { list: Vec::new(), numbers: HashMap::new() }
    }
}

impl<T: Clone + Eq + std::hash::Hash> Numbers<T> {
    fn of(&mut self, value: &T) -> usize {
        if let Some(number) = self.numbers.get(value) {
            return *number;
        }
        let number = self.list.len();
        self.list.push(value.clone());
        self.numbers.insert(value.clone(), number);
        number
    }
}

/// The body of a file, and how far it was read. `None` is for what cannot be.
struct Body<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Body<'_> {
    fn number(&mut self) -> Option<u64> {
        let mut n = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = *self.bytes.get(self.at)?;
            self.at += 1;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                return None;
            }
            n |= bits << shift;
            if byte & 0x80 == 0 {
                return Some(n);
            }
        }
        None
    }

    /// A number of things of at least one byte each.
    fn count(&mut self) -> Option<usize> {
        let n = usize::try_from(self.number()?).ok()?;
        (n <= self.bytes.len() - self.at).then_some(n)
    }

    fn vmas(&mut self, shift: u32) -> Option<Vec<Vma>> {
        let mut strings: Vec<&[u8]> = Vec::new();
        for _ in 0..self.count()? {
            let len = self.count()?;
            strings.push(self.bytes.get(self.at..self.at + len)?);
            self.at += len;
        }
        let string = |number: u64| match usize::try_from(number).ok()?.checked_sub(1) {
            None => Some(None),
            Some(at) => Some(Some(strings.get(at)?.to_vec())),
        };
        let mut origins = Vec::new();
        for _ in 0..self.count()? {
            let dev = Dev {
                major: u32::try_from(self.number()?).ok()?,
                minor: u32::try_from(self.number()?).ok()?,
            };
            let inode = self.number()?;
            let (name, build_id) = (string(self.number()?)?, string(self.number()?)?);
            let (page_size, flags) = (self.number()?, self.number()?);
            let (escaped, file) = (flags & 1 != 0, flags & 2 != 0);
            let mut vma = Vma { dev, inode, page_size, escaped, file, ..Vma::default() };
            (vma.name, vma.build_id) = (name, build_id);
            origins.push(vma);
        }
        let pages = |n: u64| (n << shift >> shift == n).then_some(n << shift);
        let mut vmas = Vec::new();
        let (mut end, mut continued, mut names) = (0u64, None, 0usize);
        for _ in 0..self.count()? {
            let start = end.checked_add(pages(self.number()?)?)?;
            end = start.checked_add(pages(self.number()?)?)?;
            let perms = Perms(u8::try_from(self.number()?).ok()?);
            let origin = usize::try_from(self.number()?).ok()?;
            let ahead = self.number()?;
            let ahead = (ahead >> 1) as i64 ^ -((ahead & 1) as i64);
            let offset = expected(continued, origin).wrapping_add((ahead << shift) as u64);
            let from = origins.get(origin)?;
            names +=
                from.name.as_ref().map_or(0, Vec::len) + from.build_id.as_ref().map_or(0, Vec::len);
            if names > MAX_NAMES {
                return None;
            }
            let vma = Vma { start, end, perms, offset, ..from.clone() };
            continued = continues(&vma, origin);
            vmas.push(vma);
        }
        (self.at == self.bytes.len()).then_some(vmas)
    }
}

fn put(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

/// The hash of Fowler, Noll and Vo, 64 bits.
fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_mappings_come_back_and_ordinary_ones_take_few_bytes() {
        let vma = |start, end, offset| Vma { start, end, offset, ..Vma::default() };
        let file = Vma {
            dev: Dev { major: 8, minor: 1 },
            inode: u64::MAX,
            name: Some(b"/a\nb".to_vec()),
            build_id: Some(vec![7; 20]),
            page_size: 1 << 21,
            file: true,
            ..Vma::default()
        };
        let mut vmas = vec![
            vma(0, 1, u64::MAX),
            vma(1, 0x1000, 0),
            Vma { perms: Perms(0x3f), escaped: true, ..vma(u64::MAX - 1, u64::MAX, 5) },
        ];
        let knows = Knows::DEVICE;
        let round = |vmas: &[Vma]| {
            let mappings = Mappings::knowing(vmas.to_vec(), knows).unwrap();
            let saved = Snapshot::of(Identity::of(1), mappings);
            let bytes = saved.to_bytes();
            assert_eq!(Snapshot::from_bytes(&bytes).unwrap(), saved);
            bytes.len()
        };
        round(&[]);
        round(&vmas);
        vmas.clear();
        for n in 0..1000 {
            let start = 0x7f00_0000_0000 + n * 0x3000;
            vmas.push(Vma { start, end: start + 0x3000, offset: n * 0x3000, ..file.clone() });
        }
        assert!(round(&vmas) < 100 + 6 * 1000);
    }
}
