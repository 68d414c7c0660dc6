//! What is compressed in foreign files, taken out of its compressed form. Memory grows with what comes out,
//! not with what is claimed.

use std::io::Read;

use crate::zstd::{Frames, MAX_BLOCK};

/// Memory for at most so many bytes is taken before there is something to put into it.
const STEP: usize = 1 << 20;

/// Decompresses zlib's format into `size` bytes; `None` if it is damaged or they are not as many.
pub fn zlib(data: &[u8], size: usize) -> Option<Vec<u8>> {
    let (mut out, mut piece) = (Vec::new(), vec![0; MAX_BLOCK]);
    let mut from = flate2::read::ZlibDecoder::new(data);
    loop {
        let read = from.read(&mut piece).ok()?;
        let piece = piece.get(..read).filter(|piece| piece.len() <= size - out.len())?;
        if piece.is_empty() {
            return (out.len() == size).then_some(out);
        }
        grow(&mut out, size)?;
        out.extend_from_slice(piece);
    }
}

/// The same of Zstandard, of frames that follow one another: some linkers make one of each megabyte.
pub fn zstd(data: &[u8], size: usize) -> Option<Vec<u8>> {
    let mut frames = Frames::new(data);
    loop {
        grow(frames.out(), size + MAX_BLOCK)?;
        if !frames.block()? {
            return Some(frames.into_out()).filter(|out| out.len() == size);
        }
        if frames.out().len() > size {
            return None;
        }
    }
}

/// Makes room for more, if there is little: up to `most` in all, twice as much as there is.
fn grow(out: &mut Vec<u8>, most: usize) -> Option<()> {
    if out.capacity() - out.len() < MAX_BLOCK {
        let more = out.len().max(STEP).min(most.saturating_sub(out.len()));
        out.try_reserve_exact(more).ok()?;
    }
    Some(())
}
