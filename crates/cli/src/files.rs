//! Reading whole files that somebody names.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Most bytes that are taken from a device or a pipe, which may have no end (`/dev/zero`).
const MOST: u64 = 64 << 20;

/// Reads a file as a whole: a regular one of any size, anything else up to [`MOST`].
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let mut bytes = Vec::new();
    if file.metadata()?.is_file() {
        file.read_to_end(&mut bytes)?;
        return Ok(bytes);
    }
    file.take(MOST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MOST {
        return Err(io::Error::other("it is no regular file, and does not end within 64.0MiB"));
    }
    Ok(bytes)
}
