//! The file format of programs and links: a line of self-checking records, appended and never changed.
//!
//! ```text
//! file    "SKEPREC1"  kind u32  version u32        16 bytes
//! record  length u32  check u32  tag u32  payload   length counts the payload only
//! ```
//!
//! A writer that dies in the middle leaves an incomplete last record: readers stop before it, the next writer cuts it
//! off. Writers hold an exclusive `flock` on the directory of the file, which falls with the process, so that the shared
//! lock on the file itself, which marks the object as used, is not disturbed.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

const MAGIC: &[u8; 8] = b"SKEPREC1";
/// Version of the payload encodings of this release.
pub const VERSION: u32 = 1;
const HEAD: usize = 16;
/// Largest file a reader takes: far above 262,144 functions with long names.
const MAX_FILE: u64 = 1 << 30;

/// Tells why a record file cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// A call failed.
    #[error("cannot {call} `{path}`: {source}", path = path.display())]
    Io {
        /// What failed.
        call: &'static str,
        /// On which file.
        path: PathBuf,
        /// With what.
        source: io::Error,
    },
    /// It is not such a file, or of another kind or version.
    #[error("`{path}` is not a skep {kind} file: {why}", path = path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// `program` or `link`.
        kind: &'static str,
        /// What is wrong.
        why: &'static str,
    },
    /// A record cannot be decoded.
    #[error("`{path}`: {source}", path = path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where and what.
        source: crate::wire::WireError,
    },
}

/// Names what a record file holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileKind {
    /// Number in the header.
    pub number: u32,
    /// Word for messages.
    pub name: &'static str,
}

/// A record: its tag and payload.
pub type Record = (u32, Vec<u8>);

/// Checks contents against damage (not against malice: the directory's permissions do that). FNV-1a over the bytes.
fn check(tag: u32, payload: &[u8]) -> u32 {
    let mut h = 0xcbf2_9ce4_8422_2325_u64;
    for b in tag.to_le_bytes().iter().chain(payload) {
        h = (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3);
    }
    (h ^ (h >> 32)) as u32
}

fn encode(out: &mut Vec<u8>, tag: u32, payload: &[u8]) {
    let len = u32::try_from(payload.len()).expect("records are far below 4 GiB");
    out.extend(len.to_le_bytes());
    out.extend(check(tag, payload).to_le_bytes());
    out.extend(tag.to_le_bytes());
    out.extend(payload);
}

/// An open record file. Holds the shared lock that marks the object as used.
#[derive(Debug)]
pub struct RecordFile {
    file: File,
    path: PathBuf,
}

impl RecordFile {
    /// Creates a file with its first records; it appears under `path` only when complete.
    ///
    /// # Errors
    /// When it cannot be written, or `path` exists.
    pub fn create(path: &Path, kind: FileKind, records: &[Record]) -> Result<Self, RecordError> {
        let err = |call| move |source| RecordError::Io { call, path: path.to_owned(), source };
        let mut bytes = Vec::new();
        bytes.extend(MAGIC);
        bytes.extend(kind.number.to_le_bytes());
        bytes.extend(VERSION.to_le_bytes());
        for (tag, payload) in records {
            encode(&mut bytes, *tag, payload);
        }
        let temp = path.with_extension(format!("new-{}", std::process::id()));
        let done = (|| {
            let mut file = File::options().read(true).append(true).create_new(true).mode(0o600).open(&temp).map_err(err("create"))?;
            file.write_all(&bytes).map_err(err("write"))?;
            flock(&file, FlockOperation::LockShared).map_err(|e| err("lock")(e.into()))?;
            std::fs::hard_link(&temp, path).map_err(err("create"))?;
            Ok(Self { file, path: path.to_owned() })
        })();
        drop(std::fs::remove_file(&temp));
        done
    }

    /// Opens a file for reading and appending.
    ///
    /// # Errors
    /// When it cannot be opened, or is no record file of this kind and version.
    pub fn open(path: &Path, kind: FileKind) -> Result<Self, RecordError> {
        let err = |call| move |source| RecordError::Io { call, path: path.to_owned(), source };
        let mut file = File::options().read(true).append(true).open(path).map_err(err("open"))?;
        flock(&file, FlockOperation::LockShared).map_err(|e| err("lock")(e.into()))?;
        let format = |why| RecordError::Format { path: path.to_owned(), kind: kind.name, why };
        let mut head = [0; HEAD];
        file.read_exact(&mut head).map_err(|_| format("it is too short"))?;
        if &head[..8] != MAGIC {
            return Err(format("the first bytes are not its mark"));
        }
        if head[8..12] != kind.number.to_le_bytes() {
            return Err(format("it holds another kind of object"));
        }
        if head[12..] != VERSION.to_le_bytes() {
            return Err(format("it was written by another version of skep"));
        }
        Ok(Self { file, path: path.to_owned() })
    }

    /// Returns the file's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn io(&self, call: &'static str) -> impl Fn(io::Error) -> RecordError + '_ {
        move |source| RecordError::Io { call, path: self.path.clone(), source }
    }

    /// Reads all complete records, and tells where they end.
    fn read_to(&self) -> Result<(Vec<Record>, u64), RecordError> {
        let mut bytes = Vec::new();
        (&self.file).seek(SeekFrom::Start(HEAD as u64)).map_err(self.io("read"))?;
        (&self.file).take(MAX_FILE).read_to_end(&mut bytes).map_err(self.io("read"))?;
        let mut records = Vec::new();
        let mut at = 0;
        while let Some(head) = bytes.get(at..at + 12) {
            let word = |i: usize| u32::from_le_bytes([head[i], head[i + 1], head[i + 2], head[i + 3]]);
            let Some(payload) = bytes.get(at + 12..).and_then(|rest| rest.get(..word(0) as usize)) else { break };
            if check(word(8), payload) != word(4) {
                break;
            }
            records.push((word(8), payload.to_vec()));
            at += 12 + payload.len();
        }
        Ok((records, (HEAD + at) as u64))
    }

    /// Reads all complete records.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn read(&self) -> Result<Vec<Record>, RecordError> {
        Ok(self.read_to()?.0)
    }

    /// Lets `make` see all records and appends what it returns, while no other writer can come between.
    ///
    /// # Errors
    /// When the file cannot be locked, read or written, or `make` fails.
    pub fn append_with<T>(&self, make: impl FnOnce(Vec<Record>) -> Result<(Vec<Record>, T), RecordError>) -> Result<T, RecordError> {
        let lock = File::open(self.path.parent().unwrap_or(Path::new("."))).map_err(self.io("open the directory of"))?;
        flock(&lock, FlockOperation::LockExclusive).map_err(|e| self.io("lock")(e.into()))?;
        let (records, end) = self.read_to()?;
        let (new, result) = make(records)?;
        let mut bytes = Vec::new();
        for (tag, payload) in &new {
            encode(&mut bytes, *tag, payload);
        }
        if !bytes.is_empty() {
            self.file.set_len(end).map_err(self.io("write"))?;
            (&self.file).write_all(&bytes).map_err(self.io("write"))?;
        }
        Ok(result)
    }

    /// Wraps a decoding error with the file's name.
    #[must_use]
    pub fn damaged(&self, source: crate::wire::WireError) -> RecordError {
        RecordError::Damaged { path: self.path.clone(), source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: FileKind = FileKind { number: 77, name: "test" };

    fn temp(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("skep-record-{}-{name}", std::process::id()));
        drop(std::fs::remove_file(&path));
        path
    }

    #[test]
    fn a_half_written_record_is_not_seen_and_the_next_writer_cuts_it_off() -> Result<(), Box<dyn std::error::Error>> {
        let path = temp("half");
        let file = RecordFile::create(&path, KIND, &[(1, b"first".to_vec())])?;
        let whole = std::fs::metadata(&path)?.len();
        file.append_with(|_| Ok((vec![(2, b"second".to_vec())], ())))?;
        let full = std::fs::metadata(&path)?.len();
        for len in whole..full {
            std::fs::OpenOptions::new().write(true).open(&path)?.set_len(len)?;
            assert_eq!(RecordFile::open(&path, KIND)?.read()?, [(1, b"first".to_vec())], "{len}");
        }
        file.append_with(|seen| {
            assert_eq!(seen.len(), 1);
            Ok((vec![(3, b"third".to_vec())], ()))
        })?;
        assert_eq!(file.read()?, [(1, b"first".to_vec()), (3, b"third".to_vec())]);
        std::fs::remove_file(&path)?;
        Ok(())
    }

    #[test]
    fn every_flipped_byte_is_noticed() -> Result<(), Box<dyn std::error::Error>> {
        let path = temp("flip");
        drop(RecordFile::create(&path, KIND, &[(1, b"payload".to_vec())])?);
        let good = std::fs::read(&path)?;
        for i in 0..good.len() {
            let mut bad = good.clone();
            bad[i] ^= 0x55;
            std::fs::write(&path, &bad)?;
            let seen = RecordFile::open(&path, KIND).and_then(|f| f.read());
            assert!(seen.map_or(true, |r| r.is_empty()), "byte {i}");
        }
        std::fs::remove_file(&path)?;
        Ok(())
    }

    #[test]
    fn writers_at_the_same_time_lose_nothing() -> Result<(), Box<dyn std::error::Error>> {
        let path = temp("many");
        drop(RecordFile::create(&path, KIND, &[])?);
        std::thread::scope(|s| {
            for t in 0..4_u32 {
                let path = &path;
                s.spawn(move || {
                    for i in 0..50_u32 {
                        let file = RecordFile::open(path, KIND).expect("the file is there");
                        file.append_with(|_| Ok((vec![(t, i.to_le_bytes().to_vec())], ()))).expect("the file can be written");
                    }
                });
            }
        });
        let mut all = RecordFile::open(&path, KIND)?.read()?;
        all.sort();
        let mut want: Vec<Record> = (0..4).flat_map(|t| (0..50_u32).map(move |i| (t, i.to_le_bytes().to_vec()))).collect();
        want.sort();
        assert_eq!(all, want);
        std::fs::remove_file(&path)?;
        Ok(())
    }
}
