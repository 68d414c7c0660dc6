//! The last page of an object file: what the file is.
//!
//! ```text
//!    0  8  magic "skepobj\0"          32  4  id
//!    8  4  format version (6)         36  4  length of meta
//!   12  4  kind                       40  8  generation (random: two files never share it)
//!   16  8  payload_len                48  8  inode of the pid namespace tokens belong to, 0 unknown
//!   24  8  file length                56  8  checksum of bytes 0..2048, this field taken as zero
//!   64  …  meta: what the kind says of itself, immutable, up to 2048
//! 2048 2048 state: mutable words
//! ```
//!
//! Everything below 2048 never changes. It is copied out and checked when the file is opened.

use std::path::Path;

use super::error::ObjectError;
use super::{ObjectKind, PAGE, VERSION, page_up};

const MAGIC: [u8; 8] = *b"skepobj\0";
/// The oldest one it reads.
const OLDEST: u32 = 1;
const CHECKSUM: usize = 56;
const META: usize = 64;
/// Where the mutable words begin.
pub(super) const STATE: usize = 2048;
/// Most bytes of meta an object can have.
pub const MAX_META: usize = STATE - META;
/// Most bytes of payload: far below where address arithmetic could overflow.
pub const MAX_PAYLOAD: u64 = 1 << 46;

/// The immutable half of a header.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) version: u32,
    pub(super) kind: ObjectKind,
    pub(super) id: u32,
    pub(super) payload_len: u64,
    pub(super) generation: u64,
    pub(super) namespace: u64,
    pub(super) meta: Vec<u8>,
}

impl Header {
    /// Returns the header page of a file whose header begins at `at`; its mutable words are zero.
    pub(super) fn to_page(&self, at: u64) -> Vec<u8> {
        let mut page = vec![0u8; PAGE as usize];
        let mut put = |at: usize, bytes: &[u8]| page[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &MAGIC);
        put(8, &self.version.to_le_bytes());
        put(12, &(self.kind as u32).to_le_bytes());
        put(16, &self.payload_len.to_le_bytes());
        put(24, &(at + PAGE).to_le_bytes());
        put(32, &self.id.to_le_bytes());
        put(36, &(self.meta.len() as u32).to_le_bytes());
        put(40, &self.generation.to_le_bytes());
        put(48, &self.namespace.to_le_bytes());
        put(META, &self.meta);
        let sum = checksum(&page[..STATE]);
        page[CHECKSUM..META].copy_from_slice(&sum.to_le_bytes());
        page
    }

    /// Checks the last page of a file of `size` bytes that should hold an object of kind `want`.
    pub(super) fn from_page(
        page: &[u8],
        path: &Path,
        size: u64,
        want: ObjectKind,
    ) -> Result<Self, ObjectError> {
        let damaged = |what| ObjectError::Damaged { path: path.to_owned(), what };
        if field(page, 0) != MAGIC {
            return Err(damaged("no header in its last page"));
        }
        let version = u32::from_le_bytes(field(page, 8));
        if !(OLDEST..=VERSION).contains(&version) {
            return Err(ObjectError::Version { path: path.to_owned(), found: version });
        }
        if u64::from_le_bytes(field(page, CHECKSUM)) != checksum(page) {
            return Err(damaged("the header does not match its checksum"));
        }
        let kind = ObjectKind::from_raw(u32::from_le_bytes(field(page, 12)))
            .ok_or_else(|| damaged("unknown kind"))?;
        if kind != want {
            return Err(ObjectError::Kind { path: path.to_owned(), found: kind, want });
        }
        let payload_len = u64::from_le_bytes(field(page, 16));
        if payload_len > MAX_PAYLOAD
            || u64::from_le_bytes(field(page, 24)) != size
            || page_up(payload_len).and_then(|n| n.checked_add(PAGE)) != Some(size)
        {
            return Err(damaged("its length does not match its header"));
        }
        let meta_len = u32::from_le_bytes(field(page, 36)) as usize;
        let meta = page
            .get(META..STATE)
            .and_then(|meta| meta.get(..meta_len))
            .ok_or_else(|| damaged("its description is too long"))?;
        Ok(Self {
            version,
            kind,
            id: u32::from_le_bytes(field(page, 32)),
            payload_len,
            generation: u64::from_le_bytes(field(page, 40)),
            namespace: u64::from_le_bytes(field(page, 48)),
            meta: meta.to_vec(),
        })
    }
}

fn field<const N: usize>(page: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    if let Some(src) = page.get(at..at + N) {
        out.copy_from_slice(src);
    }
    out
}

/// FNV-1a with eight-byte output over the immutable half of a page: any single changed byte changes
/// it.
fn checksum(page: &[u8]) -> u64 {
    page.iter().take(STATE).enumerate().fold(0xcbf2_9ce4_8422_2325, |h, (i, b)| {
        let b = if (CHECKSUM..META).contains(&i) { 0 } else { *b };
        (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)
    })
}
