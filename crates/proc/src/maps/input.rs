//! A file that is read in parts, or bytes in memory.

use std::os::fd::OwnedFd;
use std::path::Path;

use super::MapsError;
use crate::file;

/// What a file format is read from.
#[derive(Debug)]
pub(crate) enum Input {
    Bytes(Vec<u8>),
    File(OwnedFd, u64),
}

/// No part that is read at once is larger.
const MAX_PART: u64 = 256 << 20;

impl Input {
    pub(crate) fn open(path: &Path) -> Result<Self, MapsError> {
        let fd = file::open(path).map_err(|errno| MapsError::Os { call: "open", errno })?;
        let stat = file::stat(&fd).map_err(|errno| MapsError::Os { call: "fstat", errno })?;
        if rustix::fs::FileType::from_raw_mode(stat.st_mode) != rustix::fs::FileType::RegularFile {
            return Err(MapsError::Unsupported { what: "anything but a regular file" });
        }
        Ok(Self::File(fd, stat.st_size as u64))
    }

    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::File(_, len) => *len,
        }
    }

    /// Reads a part; `what` names it in errors.
    pub(crate) fn read(
        &self,
        what: &'static str,
        offset: u64,
        size: u64,
    ) -> Result<Vec<u8>, MapsError> {
        let bad = MapsError::BadFile { what, offset };
        let fits = offset.checked_add(size).is_some_and(|end| end <= self.len());
        if !fits || size > MAX_PART {
            return Err(bad);
        }
        match self {
            Self::Bytes(bytes) => {
                let range = offset as usize..(offset + size) as usize;
                bytes.get(range).map(<[u8]>::to_vec).ok_or(bad)
            }
            Self::File(fd, _) => file::read_exact_at(fd, offset, size as usize)
                .map_err(|errno| MapsError::Os { call: "pread", errno })?
                .ok_or(bad),
        }
    }
}
