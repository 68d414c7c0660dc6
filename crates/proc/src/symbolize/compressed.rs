//! Sections and files that are compressed: zlib and zstd (`SHF_COMPRESSED`), xz
//! (`.gnu_debugdata`).

use std::io::{self, Read, Write};

use crate::elf::{u32_at, u64_at};

const ZLIB: u32 = 1;
const ZSTD: u32 = 2;
/// Deflate makes its input at most 1,032 times as large; a claim beyond that is a lie.
const RATIO: u64 = 1100;

/// Takes a section out of its compressed form; `None` if it is damaged, of an unknown kind, or
/// larger than `limit`.
pub(super) fn inflate(section: &[u8], limit: u64) -> Option<Vec<u8>> {
    let (kind, size) = (u32_at(section, 0), u64_at(section, 8));
    let data = section.get(24..)?;
    if size > limit || (kind == ZLIB && size / RATIO > data.len() as u64) {
        return None;
    }
    let size = usize::try_from(size).ok()?;
    let mut out = Vec::new();
    match kind {
        ZLIB => {
            out.try_reserve_exact(size).ok()?;
            let mut from = flate2::read::ZlibDecoder::new(data).take(size as u64);
            from.read_to_end(&mut out).ok()?;
        }
        ZSTD => {
            let mut from = ruzstd::decoding::StreamingDecoder::new(data).ok()?.take(size as u64);
            from.read_to_end(&mut out).ok()?;
        }
        _ => return None,
    }
    (out.len() == size).then_some(out)
}

/// Takes an xz stream out of its compressed form, up to `limit` bytes.
pub(super) fn unxz(data: &[u8], limit: usize) -> Option<Vec<u8>> {
    let mut out = Bounded { bytes: Vec::new(), limit };
    lzma_rs::xz_decompress(&mut &*data, &mut out).ok()?;
    Some(out.bytes)
}

struct Bounded {
    bytes: Vec<u8>,
    limit: usize,
}

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > self.limit {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
