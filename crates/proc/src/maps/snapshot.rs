//! Mappings saved to a file, to name addresses after the process has gone.
//!
//! Little-endian, no pointers:
//!
//! ```text
//!  0  magic  "SKEPVMAS"
//!  8  u32    version, 1            12  u32  number of records
//! 16  u32    pid                   20  u32  size of the blob
//! 24  u64    start time of the process, in ticks since boot
//! 32  16 B   boot id
//! 48  records of 64 bytes: u64 start, end, offset, inode; u32 major, minor, perms, page shift;
//!            u32 name offset, name length, build id offset, build id length  (offsets into the blob; length 0: none)
//!  …  blob: names and build ids, each distinct one once
//! ```

use std::collections::HashMap;

use super::{Dev, Filter, MapSource, MapsError, Perms, Vma, Want};
use crate::elf::{u32_at, u64_at};
use crate::file;

const MAGIC: &[u8; 8] = b"SKEPVMAS";
const HEAD: usize = 48;
const RECORD: usize = 64;

/// Which process, of which boot, a snapshot shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Process id.
    pub pid: u32,
    /// Start time in clock ticks since boot: tells processes apart that used the same id.
    pub start_time: u64,
    /// The kernel's boot id.
    pub boot_id: [u8; 16],
}

impl Identity {
    /// Reads the identity of a live process; what cannot be read stays 0.
    pub fn of(pid: u32) -> Self {
        let stat = file::read(format!("/proc/{pid}/stat"), 1 << 16).unwrap_or_default();
        // The command in parentheses may contain anything, so fields are counted from its end;
        // start time is the 22nd.
        let after = stat
            .iter()
            .rposition(|&b| b == b')')
            .and_then(|at| stat.get(at + 2..))
            .unwrap_or_default();
        let field = after.split(|&b| b == b' ').nth(19).and_then(|f| str::from_utf8(f).ok());
        let start_time = field.and_then(|f| f.parse().ok()).unwrap_or(0);
        let mut boot_id = [0; 16];
        let text = file::read("/proc/sys/kernel/random/boot_id", 64).unwrap_or_default();
        let digits: Vec<u32> = text.iter().filter_map(|&b| char::from(b).to_digit(16)).collect();
        for (byte, pair) in boot_id.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = pair.iter().fold(0, |n, d| n << 4 | *d as u8);
        }
        Self { pid, start_time, boot_id }
    }
}

/// Saved mappings, or made-up ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    identity: Identity,
    vmas: Vec<Vma>,
}

impl Snapshot {
    /// Takes mappings; sorts them by address. Overlapping or empty ones are an error.
    pub fn new(identity: Identity, mut vmas: Vec<Vma>) -> Result<Self, MapsError> {
        vmas.sort_by_key(|v| v.start);
        let mut end = 0;
        for (i, v) in vmas.iter().enumerate() {
            if v.start < end || v.end <= v.start {
                return Err(MapsError::Malformed { line: i + 1, what: "address range" });
            }
            end = v.end;
        }
        Ok(Self { identity, vmas })
    }

    /// Copies all that a source knows.
    pub fn take(
        source: &impl MapSource,
        identity: Identity,
        want: Want,
    ) -> Result<Self, MapsError> {
        Self::new(identity, source.all(&Filter::default(), want)?)
    }

    /// The process that was saved.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// All mappings.
    pub fn vmas(&self) -> &[Vma] {
        &self.vmas
    }

    /// Writes the format described at the top of this module.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut blob: Vec<u8> = Vec::new();
        let mut seen: HashMap<&[u8], u32> = HashMap::new();
        let mut records = Vec::with_capacity(self.vmas.len() * RECORD);
        for v in &self.vmas {
            for n in [v.start, v.end, v.offset, v.inode] {
                records.extend(n.to_le_bytes());
            }
            let shift = if v.page_size == 0 { 0 } else { v.page_size.trailing_zeros() };
            let perms = u32::from(v.perms.0) | u32::from(v.escaped) << 8;
            for n in [v.dev.major, v.dev.minor, perms, shift] {
                records.extend(n.to_le_bytes());
            }
            for bytes in [v.name.as_deref(), v.build_id.as_deref()] {
                let bytes = bytes.unwrap_or_default();
                let at = *seen.entry(bytes).or_insert_with(|| {
                    let at = blob.len() as u32;
                    blob.extend(bytes);
                    at
                });
                records.extend(at.to_le_bytes());
                records.extend((bytes.len() as u32).to_le_bytes());
            }
        }
        let mut out = Vec::with_capacity(HEAD + records.len() + blob.len());
        out.extend(MAGIC);
        for n in [1, self.vmas.len() as u32, self.identity.pid, blob.len() as u32] {
            out.extend(n.to_le_bytes());
        }
        out.extend(self.identity.start_time.to_le_bytes());
        out.extend(self.identity.boot_id);
        out.extend(records);
        out.extend(blob);
        out
    }

    /// Reads the format described at the top of this module.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, MapsError> {
        let malformed = |line, what| MapsError::Malformed { line, what };
        let head =
            bytes.get(..HEAD).filter(|h| h.starts_with(MAGIC)).ok_or(malformed(0, "magic"))?;
        if u32_at(head, 8) != 1 {
            return Err(MapsError::Unsupported { what: "another version of the snapshot format" });
        }
        let (count, blob_len) = (u32_at(head, 12) as usize, u32_at(head, 20) as usize);
        let size = count.checked_mul(RECORD).and_then(|n| n.checked_add(HEAD));
        let (records, blob) = size
            .and_then(|n| bytes.split_at_checked(n))
            .filter(|(_, blob)| blob.len() == blob_len)
            .ok_or(malformed(0, "size"))?;
        let mut boot_id = [0; 16];
        boot_id.iter_mut().zip(head.iter().skip(32)).for_each(|(to, from)| *to = *from);
        let identity = Identity { pid: u32_at(head, 16), start_time: u64_at(head, 24), boot_id };
        let mut vmas = Vec::with_capacity(count);
        for (i, r) in records.get(HEAD..).unwrap_or_default().chunks_exact(RECORD).enumerate() {
            let part = |at: usize| match u32_at(r, at + 4) as usize {
                0 => Ok(None),
                len => {
                    let from = u32_at(r, at) as usize;
                    let bytes = from.checked_add(len).and_then(|to| blob.get(from..to));
                    bytes.map(|b| Some(b.to_vec())).ok_or(malformed(i + 1, "name"))
                }
            };
            let shift = u32_at(r, 44);
            vmas.push(Vma {
                start: u64_at(r, 0),
                end: u64_at(r, 8),
                offset: u64_at(r, 16),
                inode: u64_at(r, 24),
                dev: Dev { major: u32_at(r, 32), minor: u32_at(r, 36) },
                perms: Perms(u32_at(r, 40) as u8 & 15),
                escaped: u32_at(r, 40) & 0x100 != 0,
                name: part(48)?,
                build_id: part(56)?,
                page_size: if shift == 0 {
                    0
                } else {
                    1u64.checked_shl(shift).ok_or(malformed(i + 1, "page size"))?
                },
            });
        }
        Self::new(identity, vmas)
    }
}

impl MapSource for Snapshot {
    fn query(&self, addr: u64, filter: &Filter, want: Want) -> Result<Option<Vma>, MapsError> {
        let found = filter.find(&self.vmas, addr).and_then(|at| self.vmas.get(at));
        Ok(found.map(|v| {
            let mut v = v.clone();
            v.name = v.name.filter(|_| want.name);
            v.escaped &= want.name;
            v.build_id = v.build_id.filter(|_| want.build_id);
            v
        }))
    }
}
