//! Sections and files that are compressed: zlib and zstd (`SHF_COMPRESSED`, `.zdebug_…`), xz
//! (`.gnu_debugdata`).
//!
//! A few bytes may claim to become gigabytes, and become them. So what is taken out of a file has a
//! limit that grows with the file, and memory grows with what comes out, not with what is claimed.

use crate::elf::{ElfError, Section, u32_at, u64_at};
use crate::inflate::{zlib, zstd};

const ZLIB: u32 = 1;
const ZSTD: u32 = 2;
/// A file of any size may become so large,
const LEAST: u64 = 64 << 20;
/// and a large one so many times its size. Compilers' debug information becomes three to twenty times.
const RATIO: u64 = 64;

/// How much may be taken out of a file of that size.
pub(super) fn room(file: u64) -> u64 {
    file.saturating_mul(RATIO).max(LEAST)
}

/// Takes a section out of its compressed form, if that takes no more than `room`; takes that from `room`.
pub(super) fn inflate(
    name: &'static str,
    section: &Section,
    bytes: &[u8],
    room: &mut u64,
) -> Result<Vec<u8>, ElfError> {
    let unpack = match u32_at(bytes, 0) {
        ZLIB => zlib,
        ZSTD => zstd,
        _ => {
            return Err(ElfError::Unsupported {
                what: "compression that is neither zlib nor zstd",
            });
        }
    };
    inflate_by(unpack, name, section, bytes.get(24..).zip(Some(u64_at(bytes, 8))), room)
}

/// The same of a section `.zdebug_…`: `ZLIB`, the size with the highest byte first, and the data.
pub(super) fn inflate_zdebug(
    name: &'static str,
    section: &Section,
    bytes: &[u8],
    room: &mut u64,
) -> Result<Vec<u8>, ElfError> {
    let parts = bytes.strip_prefix(b"ZLIB").and_then(|rest| rest.split_first_chunk::<8>());
    let parts = parts.map(|(size, data)| (data, u64::from_be_bytes(*size)));
    inflate_by(zlib, name, section, parts, room)
}

/// The same of data that becomes so many bytes.
fn inflate_by(
    unpack: fn(&[u8], usize) -> Option<Vec<u8>>,
    name: &'static str,
    section: &Section,
    parts: Option<(&[u8], u64)>,
    room: &mut u64,
) -> Result<Vec<u8>, ElfError> {
    let damaged = ElfError::Malformed { what: "compressed section", offset: section.offset };
    let (data, size) = parts.ok_or(damaged.clone())?;
    let left = room.checked_sub(size);
    *room = left.ok_or(ElfError::Inflation { section: name, size, room: *room })?;
    let size = usize::try_from(size).map_err(|_| damaged.clone())?;
    unpack(data, size).filter(|out| out.len() == size).ok_or(damaged)
}

/// Takes an xz stream, which begins at `offset` of its file, out of its compressed form, if that takes no
/// more than `room`.
pub(super) fn unxz(data: &[u8], offset: u64, room: u64) -> Result<Vec<u8>, ElfError> {
    let damaged = ElfError::Malformed { what: "`.gnu_debugdata`", offset };
    // The decoder writes a block when it has all of it: it must not begin with one that is too large.
    let size = unpacked_size(data).ok_or(damaged.clone())?;
    if size as u64 > room {
        let section = ".gnu_debugdata";
        return Err(ElfError::Inflation { section, size: size as u64, room });
    }
    let mut out = Vec::new();
    lzma_rs::xz_decompress(&mut &*data, &mut out).map_err(|_| damaged)?;
    Ok(out)
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
    use std::io::Read;
    use std::process::{Command, Stdio};

    use skep_testkit::memory::peak;

    use super::*;
    use crate::zstd::MAX_BLOCK;

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
            let whole = unxz(&packed, 0, size).map(|bytes| bytes.len());
            assert_eq!(whole, Ok(size as usize), "{size} {options:?}");
            if let Some(room) = size.checked_sub(1) {
                let section = ".gnu_debugdata";
                assert_eq!(
                    unxz(&packed, 0, room),
                    Err(ElfError::Inflation { section, size, room })
                );
            }
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
        assert!(unxz(&packed, 0, 4 << 20).is_err());
        assert!(peak() - before < 256 << 20);
    }

    fn section(kind: u32, size: u64, data: &[u8]) -> Vec<u8> {
        [&kind.to_le_bytes()[..], &[0; 4], &size.to_le_bytes(), &[1, 0, 0, 0, 0, 0, 0, 0], data]
            .concat()
    }

    fn take(bytes: &[u8], room: &mut u64) -> Result<Vec<u8>, ElfError> {
        let section = Section {
            name: b".debug_info".to_vec(),
            kind: 1,
            flags: 0x800,
            vaddr: 0,
            offset: 77,
            size: bytes.len() as u64,
            link: 0,
        };
        inflate(".debug_info", &section, bytes, room)
    }

    fn zeros_by_zlib(size: u64) -> Vec<u8> {
        let mut to = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::best());
        std::io::copy(&mut std::io::repeat(0).take(size), &mut to).unwrap();
        to.finish().unwrap()
    }

    /// A frame of so many blocks of 128 KiB, each of which is four bytes.
    fn zeros_by_zstd(blocks: usize) -> Vec<u8> {
        let block = |last: u32| ((MAX_BLOCK as u32) << 3 | 1 << 1 | last).to_le_bytes();
        let (block, last) = (block(0), block(1));
        let head = [0x28, 0xb5, 0x2f, 0xfd, 0, 0x70];
        [&head[..], &block.repeat(blocks - 1), &last].concat()
    }

    /// Files of 64 KiB that became 2 GiB.
    #[test]
    fn short_sections_become_no_gigabytes() {
        let damaged = Err(ElfError::Malformed { what: "compressed section", offset: 77 });
        let before = peak();
        let bomb = zeros_by_zstd(16 << 10);
        assert!(bomb.len() < 65 << 10);
        let whole = room(bomb.len() as u64);
        assert_eq!(whole, LEAST);
        // As large as it is, as it may be, and larger than it says.
        let refused = ElfError::Inflation { section: ".debug_info", size: 2 << 30, room: LEAST };
        assert_eq!(take(&section(ZSTD, 2 << 30, &bomb), &mut { whole }), Err(refused));
        assert_eq!(take(&section(ZSTD, LEAST, &bomb), &mut { whole }), damaged);
        assert_eq!(take(&section(ZSTD, 1 << 20, &bomb), &mut { whole }), damaged);
        // What it says is not all there: no memory is taken for it.
        let before_lie = peak();
        assert_eq!(take(&section(ZSTD, LEAST, &zeros_by_zstd(8)), &mut { whole }), damaged);
        assert_eq!(take(&section(ZLIB, LEAST, &zeros_by_zlib(1 << 20)), &mut { whole }), damaged);
        assert_eq!(take(&section(ZLIB, 1 << 20, &zeros_by_zlib(4 << 20)), &mut { whole }), damaged);
        assert!(peak() - before_lie < 32 << 20, "{} MiB", (peak() - before_lie) >> 20);
        // All sections of a file have room together.
        let mut left = LEAST;
        let some = section(ZLIB, 3 << 20, &zeros_by_zlib(3 << 20));
        let taken = (0..).take_while(|_| take(&some, &mut left).is_ok()).count() as u64;
        assert_eq!((taken, left), (LEAST / (3 << 20), LEAST % (3 << 20)));
        assert!(peak() - before < 256 << 20, "{} MiB", (peak() - before) >> 20);
    }

    #[test]
    fn sections_are_as_they_were() {
        for (size, blocks) in [(MAX_BLOCK, 1), (40 * MAX_BLOCK, 40)] {
            let zeros = vec![0; size];
            let by_zlib = section(ZLIB, size as u64, &zeros_by_zlib(size as u64));
            assert_eq!(take(&by_zlib, &mut { LEAST }), Ok(zeros.clone()));
            let by_zstd = section(ZSTD, size as u64, &zeros_by_zstd(blocks));
            assert_eq!(take(&by_zstd, &mut { LEAST }), Ok(zeros.clone()));
            // As `mold` writes them.
            let frames = zeros_by_zstd(blocks).repeat(2);
            let by_two = section(ZSTD, 2 * size as u64, &frames);
            assert_eq!(take(&by_two, &mut { LEAST }), Ok(zeros.repeat(2)));
        }
        let what = "compression that is neither zlib nor zstd";
        assert_eq!(take(&section(3, 1, &[0]), &mut { LEAST }), Err(ElfError::Unsupported { what }));
    }
}
