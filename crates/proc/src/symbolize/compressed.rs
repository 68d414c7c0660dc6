//! Sections and files that are compressed: zlib and zstd (`SHF_COMPRESSED`), xz
//! (`.gnu_debugdata`).

use std::io::Read;

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
    // The decoder writes a block when it has all of it: it must not begin with one that is too large.
    let size = unpacked_size(data).filter(|size| *size <= limit)?;
    let mut out = Vec::new();
    out.try_reserve_exact(size).ok()?;
    lzma_rs::xz_decompress(&mut &*data, &mut out).ok()?;
    Some(out)
}

/// How large an xz stream becomes, from the headers of its parts: those of LZMA2 say it of each, and
/// are obeyed. `None` if they are damaged or data goes through more than LZMA2, where it could grow
/// several times. The format: <https://tukaani.org/xz/xz-file-format.txt>.
fn unpacked_size(data: &[u8]) -> Option<usize> {
    let check = match data.get(7)? & 15 {
        0 => 0,
        1 => 4,
        4 => 8,
        10 => 32,
        _ => return None,
    };
    let (mut at, mut size) = (12usize, 0usize);
    loop {
        let header = match usize::from(*data.get(at)?) {
            // The index, which is behind the last block.
            0 => return Some(size),
            words => (words + 1) * 4,
        };
        // The lowest bits are how many filters there are besides the first.
        if data.get(at + 1)? & 3 != 0 {
            return None;
        }
        at += header;
        loop {
            let [control, rest @ ..] = data.get(at..)? else { return None };
            let word = |at: usize| {
                Some(usize::from(u16::from_be_bytes([*rest.get(at)?, *rest.get(at + 1)?])))
            };
            let (unpacked, packed) = match *control {
                0 => break,
                1 | 2 => (word(0)? + 1, word(0)? + 4),
                0x80.. => {
                    let properties = usize::from(*control >= 0xc0);
                    let high = usize::from(control & 0x1f) << 16;
                    (high + word(0)? + 1, word(2)? + 1 + 5 + properties)
                }
                _ => return None,
            };
            (at, size) = (at + packed, size.checked_add(unpacked)?);
        }
        at = (at + 1).next_multiple_of(4) + check;
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use skep_testkit::memory::peak;

    use super::*;

    /// What `xz` makes of so many zeros; `None` where it is not installed.
    fn zeros(size: u64, options: &[&str]) -> Option<Vec<u8>> {
        let mut xz = Command::new("xz")
            .args(["-c", "-0"])
            .args(options)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .ok()?;
        let mut to = xz.stdin.take().expect("it is piped");
        let writer =
            std::thread::spawn(move || std::io::copy(&mut std::io::repeat(0).take(size), &mut to));
        let out = xz.wait_with_output().expect("it ends");
        writer.join().expect("no panic").expect("it reads all");
        out.status.success().then_some(out.stdout)
    }

    #[test]
    fn a_stream_is_as_large_as_its_headers_say() {
        let sizes = [0, 1, 70_000, (4 << 20) + 5];
        let options: [&[&str]; 5] =
            [&[], &["-C", "none"], &["-C", "crc32"], &["--block-size=100000"], &["-9e"]];
        for (size, options) in sizes.into_iter().flat_map(|s| options.map(|o| (s, o))) {
            let Some(packed) = zeros(size, options) else { return };
            assert_eq!(unpacked_size(&packed), Some(size as usize), "{size} {options:?}");
            let whole = unxz(&packed, size as usize).map(|bytes| bytes.len());
            assert_eq!(whole, Some(size as usize), "{size} {options:?}");
            assert_eq!(unxz(&packed, (size as usize).wrapping_sub(1)).is_none(), size > 0);
        }
    }

    /// The decoder keeps a whole block, and a short one becomes a large one.
    #[test]
    fn what_is_too_large_is_not_unpacked() {
        let Some(mut packed) = zeros(2 << 20, &["-C", "none"]) else { return };
        let first = 12 + (usize::from(packed[12]) + 1) * 4;
        let word = |at: usize| usize::from(u16::from_be_bytes([packed[at], packed[at + 1]]));
        // The first part needs nothing of those before: it may come often.
        assert!(packed[first] >= 0xe0);
        let unpacked = (usize::from(packed[first] & 0x1f) << 16) + word(first + 1) + 1;
        let parts = packed[first..first + 6 + word(first + 3) + 1].repeat(300);
        packed.splice(first..first, parts);
        let before = peak();
        assert_eq!(unpacked_size(&packed), Some((2 << 20) + 300 * unpacked));
        assert!(unxz(&packed, 4 << 20).is_none());
        assert!(peak() - before < 256 << 20);
    }
}
