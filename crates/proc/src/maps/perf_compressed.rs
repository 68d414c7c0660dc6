//! Records of `perf record -z`: one stream of zstd, cut into pieces that lie in records.
//!
//! perf never ends the stream. A piece ends where a block does, so an empty last block, put behind the
//! last piece, ends it.

use std::io::Read;

use crate::elf::u16_at;

/// A raw block of no bytes, the last one of its frame.
const LAST_BLOCK: [u8; 3] = [1, 0, 0];
/// How much is unpacked at once; no record is as large.
const CHUNK: usize = 1 << 20;

/// Calls `each` with every record in the pieces, which were put together. `None` if they are damaged,
/// or `each` said so.
pub(super) fn unpack(pieces: &[u8], mut each: impl FnMut(&[u8]) -> Option<()>) -> Option<()> {
    let mut stream = pieces.chain(&LAST_BLOCK[..]);
    let (mut bytes, mut end) = (vec![0; CHUNK], 0);
    // There may be several frames, and the last of them may have ended.
    while stream.get_ref().0.len() >= 4 {
        let mut frame = ruzstd::decoding::StreamingDecoder::new(&mut stream).ok()?;
        loop {
            let read = frame.read(bytes.get_mut(end..)?).ok()?;
            if read == 0 {
                break;
            }
            end += read;
            let mut rest = bytes.get(..end)?;
            while rest.len() >= 8 {
                let size = usize::from(u16_at(rest, 6));
                if size < 8 {
                    return None;
                }
                let Some((record, after)) = rest.split_at_checked(size) else { break };
                each(record)?;
                rest = after;
            }
            let left = rest.len();
            bytes.copy_within(end - left..end, 0);
            end = left;
        }
    }
    (end == 0).then_some(())
}
