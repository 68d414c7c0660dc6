//! Records of `perf record -z`: one stream of zstd, cut into pieces that lie in records. perf never ends
//! the stream.

use super::MapsError;
use crate::elf::u16_at;
use crate::zstd::Frames;

/// Repetitions reach no further back; with `perf record -z22` they do not either.
const MAX_WINDOW: u64 = 128 << 20;
/// What was read is forgotten in pieces of this size.
const CHUNK: usize = 4 << 20;
/// Any recording may become so large,
const LEAST: u64 = 256 << 20;
/// and a large one so many times its size.
const RATIO: u64 = 256;

/// Calls `each` with every record in the pieces, which were put together; the first lies at `start`.
///
/// # Errors
/// Where they are damaged, or become more than records do, or `each` says so.
pub(super) fn unpack(
    pieces: &[u8],
    start: u64,
    mut each: impl FnMut(&[u8]) -> Result<(), MapsError>,
) -> Result<(), MapsError> {
    let damaged = || MapsError::BadFile { what: "compressed records", offset: start };
    let too_large = |what| MapsError::Unsupported { what };
    let mut room = (pieces.len() as u64).saturating_mul(RATIO).max(LEAST);
    let mut frames = Frames::new(pieces);
    // Where in what was decoded the next record begins.
    let mut at = 0;
    loop {
        let before = frames.out().len();
        let more = frames.block().ok_or_else(damaged)?;
        let out = frames.out();
        let left = room.checked_sub((out.len() - before) as u64);
        room = left.ok_or(too_large("compressed records of hundreds of times their size"))?;
        while let Some(rest) = out.get(at..).filter(|rest| rest.len() >= 8) {
            let size = usize::from(u16_at(rest, 6));
            if size < 8 {
                return Err(damaged());
            }
            let Some(record) = rest.get(..size) else { break };
            each(record)?;
            at += size;
        }
        if !more {
            return if at == frames.out().len() { Ok(()) } else { Err(damaged()) };
        }
        if frames.window() > MAX_WINDOW {
            return Err(too_large("a compression window of more than 128 MiB"));
        }
        if at >= CHUNK.max(frames.window() as usize) {
            at -= frames.forget(at);
        }
    }
}
