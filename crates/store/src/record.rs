//! The file format of programs, links and chains: a line of self-checking records, appended and never
//! changed.
//!
//! ```text
//! file    "SKEPREC1"  kind u32  version u32        16 bytes
//! record  length u32  check u32  tag u32  payload   length counts the payload only
//! ```
//!
//! A writer that dies in the middle leaves an incomplete last record: readers stop before it, the
//! next writer cuts it off. Writers hold an exclusive `flock` on the directory of the file, not on
//! the file, whose shared lock marks the object as used. It ends with the process.
//!
//! A kind whose files are written again and again ([`FileKind::restarts`]) has two places behind the
//! header that say where the records begin (`restart`).

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rustix::fs::OFlags;
use rustix::io::Errno;
use skep_maps::{Lease, ObjectError};

use crate::dir::Locked;
use crate::restart::{self, Restarts};
use crate::wire::Writer;

const MAGIC: &[u8; 8] = b"SKEPREC1";
/// Version of the payload encodings of this release.
pub const VERSION: u32 = 2;
const HEAD: usize = 16;
/// Of records that say nothing.
const TAG_NOTHING: u32 = 0;
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
    /// It is locked, by a process that looks whether somebody uses it; that does not take long.
    #[error("`{path}` is locked by a process that may be stopped; let it go on, or end it", path = path.display())]
    Busy {
        /// The file.
        path: PathBuf,
    },
    /// Somebody else owns it.
    #[error("`{path}` belongs to user {owner}, not to user {me}", path = path.display())]
    Owner {
        /// The file.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// Who we are.
        me: u32,
    },
    /// Others may write it, or it is no plain file.
    #[error("`{path}` is no plain file that only its owner can write (mode {mode:06o})", path = path.display())]
    Mode {
        /// The file.
        path: PathBuf,
        /// Its type and permission bits.
        mode: u32,
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
    /// The records may begin anew further on ([`Batch::restart`]).
    pub restarts: bool,
}

impl FileKind {
    /// Returns where the first record is in a new file.
    fn first(self) -> u64 {
        (HEAD + if self.restarts { restart::SIZE } else { 0 }) as u64
    }
}

/// A record to be written: its tag and payload.
pub type Record = (u32, Vec<u8>);

/// Bytes before a record's payload.
const RECORD_HEAD: usize = HEAD_LEN;
/// The words before a record's payload, for code that writes one by itself: length, check, tag.
pub const HEAD_LEN: usize = 12;

/// Checks contents against damage (not against malice: the directory's permissions do that). It
/// takes eight bytes at a time, and each step is reversible, so a change within eight bytes always
/// changes the result.
pub fn check(tag: u32, payload: &[u8]) -> u32 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let step = |h: u64, word: u64| (h.rotate_left(23) ^ word).wrapping_mul(FACTOR);
    let (words, rest) = payload.as_chunks::<8>();
    let mut last = [0; 8];
    last.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
    // Not from 0: a file that was made longer has zeros in it, which are no records.
    let start = step(step(0xcbf2_9ce4_8422_2325, u64::from(tag)), payload.len() as u64);
    let h = words.iter().chain([&last]).fold(start, |h, word| step(h, u64::from_le_bytes(*word)));
    (h ^ (h >> 32)) as u32
}

/// Records to be appended, encoded one after the other.
#[derive(Debug, Default)]
pub struct Batch {
    bytes: Vec<u8>,
    restart: bool,
}

impl Batch {
    /// Says that the file begins with these records from now on: what was before them is not read
    /// any more, and its room is given back. The file's kind must be one that
    /// [restarts](FileKind::restarts).
    pub fn restart(&mut self) {
        self.restart = true;
    }

    /// Has room for so many bytes more of records, their heads counted.
    pub fn reserve(&mut self, bytes: usize) {
        self.bytes.reserve(bytes);
    }

    /// Adds a record whose payload `fill` writes.
    ///
    /// # Panics
    /// When the payload is 4 GiB or longer, which no caller's data can be.
    pub fn push(&mut self, tag: u32, fill: impl FnOnce(&mut Writer) -> &mut Writer) {
        let start = self.bytes.len();
        let mut w = Writer::after(std::mem::take(&mut self.bytes));
        w.u32(0).u32(0).u32(tag);
        fill(&mut w);
        self.bytes = w.finish();
        let (head, payload) = self.bytes.split_at_mut(start).1.split_at_mut(RECORD_HEAD);
        let len = u32::try_from(payload.len()).expect("records are far below 4 GiB");
        let (length, sum) = head.split_at_mut(4);
        length.copy_from_slice(&len.to_le_bytes());
        sum.split_at_mut(4).0.copy_from_slice(&check(tag, payload).to_le_bytes());
    }
}

/// The complete records of a file, or of the part of it that was asked for.
#[derive(Debug)]
pub struct Records {
    bytes: Vec<u8>,
}

impl Records {
    /// Keeps the complete records at the start of `bytes`.
    fn new(mut bytes: Vec<u8>) -> Self {
        let mut end = 0;
        while let Some((tag, sum, payload)) = record_at(&bytes, end)
            && check(tag, payload) == sum
        {
            end += RECORD_HEAD + payload.len();
        }
        bytes.truncate(end);
        Self { bytes }
    }

    /// Returns how many bytes they take.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Goes through them: tag and payload.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &[u8])> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let (tag, _, payload) = record_at(&self.bytes, at)?;
            at += RECORD_HEAD + payload.len();
            Some((tag, payload))
        })
    }
}

/// Tag, sum and payload of the record at `at`; `None` when the bytes end before it does.
fn record_at(bytes: &[u8], at: usize) -> Option<(u32, u32, &[u8])> {
    let rest = bytes.get(at..)?;
    let head = rest.first_chunk::<RECORD_HEAD>()?;
    let word = |i: usize| u32::from_le_bytes([head[i], head[i + 1], head[i + 2], head[i + 3]]);
    let payload = rest.get(RECORD_HEAD..)?.get(..word(0) as usize)?;
    Some((word(8), word(4), payload))
}

/// An open record file. Holds the shared lock that marks the object as used, and no descriptor.
#[derive(Debug)]
pub struct RecordFile {
    lease: Lease,
    kind: FileKind,
    /// Complete records reach at least this far. They stay: nobody cuts off more than an
    /// incomplete one.
    known: AtomicU64,
}

impl RecordFile {
    /// Creates a file with its first records; it appears under `path` only when complete.
    ///
    /// # Errors
    /// When it cannot be written, or `path` exists.
    pub fn create(path: &Path, kind: FileKind, records: &[Record]) -> Result<Self, RecordError> {
        let mut bytes = Vec::new();
        bytes.extend(MAGIC);
        bytes.extend(kind.number.to_le_bytes());
        bytes.extend(VERSION.to_le_bytes());
        bytes.resize(kind.first() as usize, 0);
        let mut batch = Batch { bytes, restart: false };
        for (tag, payload) in records {
            batch.push(*tag, |w| w.raw(payload));
        }
        let file = skep_maps::create_whole(path, &batch.bytes).map_err(|e| {
            let (call, source) = match e {
                ObjectError::Os { call, errno, .. } => (call, io::Error::from_raw_os_error(errno)),
                other => ("create", io::Error::other(other)),
            };
            RecordError::Io { call, path: path.to_owned(), source }
        })?;
        Self::new(&file.into(), path, kind)
    }

    /// Opens a file for reading and appending. The file must belong to this user and be writable
    /// for nobody else, as it says what programs do (`docs/trust.md`).
    ///
    /// # Errors
    /// When it cannot be opened, belongs to another user, can be written by others, or is no record
    /// file of this kind and version.
    pub fn open(path: &Path, kind: FileKind) -> Result<Self, RecordError> {
        let err = |call| move |source| RecordError::Io { call, path: path.to_owned(), source };
        // NONBLOCK: a fifo planted here must not hang us.
        let flags = OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::NONBLOCK;
        let mut file = File::options()
            .read(true)
            .append(true)
            .custom_flags(flags.bits() as i32)
            .open(path)
            .map_err(err("open"))?;
        let meta = file.metadata().map_err(err("stat"))?;
        let me = rustix::process::geteuid().as_raw();
        if meta.uid() != me {
            return Err(RecordError::Owner { path: path.to_owned(), owner: meta.uid(), me });
        }
        if !meta.is_file() || meta.mode() & 0o022 != 0 {
            return Err(RecordError::Mode { path: path.to_owned(), mode: meta.mode() });
        }
        skep_maps::mark_used(file.as_fd()).map_err(|e| match e {
            Errno::WOULDBLOCK => RecordError::Busy { path: path.to_owned() },
            e => err("lock")(e.into()),
        })?;
        // Removed, while we waited.
        if file.metadata().map_err(err("stat"))?.nlink() == 0 {
            return Err(err("open")(Errno::NOENT.into()));
        }
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
        Self::new(&file, path, kind)
    }

    fn new(file: &File, path: &Path, kind: FileKind) -> Result<Self, RecordError> {
        let lease = Lease::new(file, path).map_err(|e| RecordError::Io {
            call: "map",
            path: path.to_owned(),
            source: io::Error::other(e),
        })?;
        Ok(Self { lease, kind, known: AtomicU64::new(kind.first()) })
    }

    /// Opens the file for as long as something is done with it.
    fn file(&self) -> Result<File, RecordError> {
        let fd = self
            .lease
            .open(OFlags::RDWR | OFlags::APPEND)
            .map_err(|e| self.io("open")(e.into()))?;
        Ok(fd.into())
    }

    fn io(&self, call: &'static str) -> impl Fn(io::Error) -> RecordError + '_ {
        move |source| RecordError::Io { call, path: self.lease.path().to_owned(), source }
    }

    /// Reads the complete records from a place where one begins.
    fn read_from(&self, file: &File, start: u64) -> Result<Records, RecordError> {
        let len = file.metadata().map_err(self.io("read"))?.len();
        // Zeroed memory comes from the system as it is; only what is read is touched.
        let mut bytes = vec![0; len.saturating_sub(start).min(MAX_FILE) as usize];
        let mut done = 0;
        while let Some(rest) = bytes.get_mut(done..).filter(|rest| !rest.is_empty()) {
            // Not from the file's position, which a forked child shares.
            match file.read_at(rest, start + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(self.io("read")(e)),
            }
        }
        bytes.truncate(done);
        let records = Records::new(bytes);
        self.known.store(start + records.bytes.len() as u64, Relaxed);
        Ok(records)
    }

    /// Returns how many bytes the file has now.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn length(&self) -> Result<u64, RecordError> {
        Ok(self.file()?.metadata().map_err(self.io("read"))?.len())
    }

    /// Reads all complete records.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn read(&self) -> Result<Records, RecordError> {
        let file = self.file()?;
        if !self.kind.restarts {
            return self.read_from(&file, self.kind.first());
        }
        // Records are not read while they go: what was read counts if they were still there after.
        loop {
            let start = self.restarts(&file)?.newest().unwrap_or(self.kind.first());
            let records = self.read_from(&file, start)?;
            if self.restarts(&file)?.kept().unwrap_or(self.kind.first()) <= start {
                return Ok(records);
            }
        }
    }

    /// Reads where the records begin. Of other kinds nothing is said there.
    fn restarts(&self, file: &File) -> Result<Restarts, RecordError> {
        Restarts::read(file, HEAD as u64).map_err(self.io("read"))
    }

    /// Keeps other writers out, until the result is dropped.
    fn lock(&self) -> Result<Locked, RecordError> {
        let lock = File::open(self.lease.path().parent().unwrap_or(Path::new(".")))
            .map_err(self.io("open the directory of"))?;
        Locked::exclusively(lock).map_err(|e| self.io("lock")(e.into()))
    }

    /// Writes records after the last complete one, which ends at `end`. The caller holds the lock.
    fn write(&self, mut file: &File, end: u64, batch: &Batch) -> Result<(), RecordError> {
        if batch.bytes.is_empty() {
            return Ok(());
        }
        file.set_len(end).map_err(self.io("write"))?;
        file.write_all(&batch.bytes).map_err(self.io("write"))?;
        self.known.store(end + batch.bytes.len() as u64, Relaxed);
        Ok(())
    }

    /// Appends records, whatever is there already.
    ///
    /// # Errors
    /// When the file cannot be locked, read or written.
    pub fn append(&self, batch: &Batch) -> Result<(), RecordError> {
        let _lock = self.lock()?;
        let file = self.file()?;
        let len = file.metadata().map_err(self.io("read"))?.len();
        // A file that became shorter was not cut by a writer of ours: nothing is known of it.
        let start = Some(self.known.load(Relaxed)).filter(|known| *known <= len);
        let start = start.unwrap_or(self.kind.first());
        let end = start + self.read_from(&file, start)?.bytes.len() as u64;
        self.write(&file, end, batch)
    }

    /// Lets `make` see all records and appends what it adds; no other writer can write in between.
    ///
    /// # Errors
    /// When the file cannot be locked, read or written, or `make` fails.
    pub fn append_with<T>(
        &self,
        make: impl FnOnce(&Records, &mut Batch) -> Result<T, RecordError>,
    ) -> Result<T, RecordError> {
        let _lock = self.lock()?;
        let file = self.file()?;
        let restarts = match self.kind.restarts {
            true => self.restarts(&file)?,
            false => Restarts::default(),
        };
        let start = restarts.newest().unwrap_or(self.kind.first());
        let records = self.read_from(&file, start)?;
        let mut batch = Batch::default();
        let result = make(&records, &mut batch)?;
        let mut end = start + records.size();
        if self.kind.restarts && !batch.bytes.is_empty() {
            end = self.pad(&file, end)?;
        }
        self.write(&file, end, &batch)?;
        if self.kind.restarts && batch.restart && !batch.bytes.is_empty() {
            // All is written: without this the file is only longer, and the next one tries again.
            drop(self.begin_at(restarts, end));
        }
        Ok(result)
    }

    fn begin_at(&self, restarts: Restarts, offset: u64) -> io::Result<()> {
        let file: File = self.lease.open(OFlags::RDWR)?.into();
        restarts.begin_at(&file, HEAD as u64, offset)
    }

    /// Puts a record of nothing in the place of an incomplete one, which is longer than that: so the
    /// file never has a length that it had before, by which readers notice changes.
    fn pad(&self, mut file: &File, end: u64) -> Result<u64, RecordError> {
        let len = file.metadata().map_err(self.io("read"))?.len();
        let Some(left) = len.checked_sub(end).filter(|left| *left > 0) else { return Ok(end) };
        let mut pad = Batch::default();
        pad.push(TAG_NOTHING, |w| w.raw(&vec![0; left as usize]));
        file.set_len(end).and_then(|()| file.write_all(&pad.bytes)).map_err(self.io("write"))?;
        Ok(end + pad.bytes.len() as u64)
    }

    /// Wraps a decoding error with the file's name.
    #[must_use]
    pub fn damaged(&self, source: crate::wire::WireError) -> RecordError {
        RecordError::Damaged { path: self.lease.path().to_owned(), source }
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{FlockOperation, flock};

    use super::*;
    use skep_testkit::skip;
    use skep_testkit::skip::is_root;

    const KIND: FileKind = FileKind { number: 77, name: "test", restarts: false };

    fn temp(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("skep-record-{}-{name}", std::process::id()));
        drop(std::fs::remove_file(&path));
        path
    }

    fn all(file: &RecordFile) -> Result<Vec<Record>, RecordError> {
        Ok(file.read()?.iter().map(|(tag, payload)| (tag, payload.to_vec())).collect())
    }

    fn one(tag: u32, payload: &[u8]) -> Batch {
        let mut batch = Batch::default();
        batch.push(tag, |w| w.raw(payload));
        batch
    }

    #[test]
    fn a_half_written_record_is_not_seen_and_the_next_writer_cuts_it_off()
    -> Result<(), Box<dyn std::error::Error>> {
        let path = temp("half");
        let file = RecordFile::create(&path, KIND, &[(1, b"first".to_vec())])?;
        let whole = std::fs::metadata(&path)?.len();
        file.append(&one(2, b"second"))?;
        let full = std::fs::metadata(&path)?.len();
        for len in whole..full {
            std::fs::OpenOptions::new().write(true).open(&path)?.set_len(len)?;
            assert_eq!(all(&RecordFile::open(&path, KIND)?)?, [(1, b"first".to_vec())], "{len}");
        }
        file.append_with(|seen, batch| {
            assert_eq!(seen.iter().count(), 1);
            batch.push(3, |w| w.raw(b"third"));
            Ok(())
        })?;
        assert_eq!(all(&file)?, [(1, b"first".to_vec()), (3, b"third".to_vec())]);
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
            assert!(seen.map_or(true, |r| r.iter().next().is_none()), "byte {i}");
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
                        file.append(&one(t, &i.to_le_bytes())).expect("the file can be written");
                    }
                });
            }
        });
        let mut all = all(&RecordFile::open(&path, KIND)?)?;
        all.sort();
        let mut want: Vec<Record> =
            (0..4).flat_map(|t| (0..50_u32).map(move |i| (t, i.to_le_bytes().to_vec()))).collect();
        want.sort();
        assert_eq!(all, want);
        std::fs::remove_file(&path)?;
        Ok(())
    }

    /// Appending does not read again what was read before; what another writer added in between,
    /// and what it left half written, is looked at.
    #[test]
    fn appending_goes_on_where_others_stopped() -> Result<(), Box<dyn std::error::Error>> {
        let path = temp("append");
        let file = RecordFile::create(&path, KIND, &[(1, b"first".to_vec())])?;
        file.append(&one(2, b"second"))?;
        RecordFile::open(&path, KIND)?.append(&one(3, b"of another"))?;
        let len = std::fs::metadata(&path)?.len();
        RecordFile::open(&path, KIND)?.append(&one(4, b"half"))?;
        File::options().write(true).open(&path)?.set_len(len + 13)?;
        let long = std::fs::metadata(&path)?.len();
        file.append(&Batch::default())?;
        assert_eq!(std::fs::metadata(&path)?.len(), long, "who adds nothing writes nothing");
        file.append(&one(5, b""))?;
        assert_eq!(file.known.load(Relaxed), std::fs::metadata(&path)?.len());
        let reader = RecordFile::open(&path, KIND)?;
        reader.read()?;
        assert_eq!(reader.known.load(Relaxed), std::fs::metadata(&path)?.len());
        let want = [
            (1, b"first".to_vec()),
            (2, b"second".to_vec()),
            (3, b"of another".to_vec()),
            (5, Vec::new()),
        ];
        assert_eq!(all(&file)?, want);
        std::fs::remove_file(&path)?;
        Ok(())
    }

    #[test]
    fn who_has_it_open_holds_a_shared_lock() -> Result<(), Box<dyn std::error::Error>> {
        let path = temp("lock");
        let is_used = || {
            let file = File::open(&path)?;
            Ok::<_, io::Error>(flock(&file, FlockOperation::NonBlockingLockExclusive).is_err())
        };
        let made = RecordFile::create(&path, KIND, &[])?;
        assert!(is_used()?);
        let opened = RecordFile::open(&path, KIND)?;
        drop(made);
        assert!(is_used()?);
        drop(opened);
        assert!(!is_used()?);
        std::fs::remove_file(&path)?;
        Ok(())
    }

    #[test]
    fn what_others_may_write_is_refused() -> Result<(), Box<dyn std::error::Error>> {
        use std::os::unix::fs::{PermissionsExt, chown};
        let path = temp("others");
        drop(RecordFile::create(&path, KIND, &[])?);
        for (mode, good) in [(0o600, true), (0o644, true), (0o620, false), (0o602, false)] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode))?;
            match RecordFile::open(&path, KIND) {
                Err(RecordError::Mode { mode: is, .. }) => assert_eq!(is & 0o777, mode),
                other => assert!(good && other.is_ok(), "{mode:o}: {other:?}"),
            }
        }
        if is_root() {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
            chown(&path, Some(65_534), None)?;
            let opened = RecordFile::open(&path, KIND);
            assert!(matches!(opened, Err(RecordError::Owner { owner: 65_534, .. })), "{opened:?}");
        } else {
            skip("root, to give a file to another user");
        }
        std::fs::remove_file(&path)?;
        let directory = path.with_extension("directory");
        std::fs::create_dir(&directory)?;
        std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o700))?;
        assert!(RecordFile::open(&directory, KIND).is_err());
        std::fs::remove_dir(&directory)?;
        Ok(())
    }

    #[test]
    fn the_sum_covers_tag_length_and_every_bit() {
        let payload: Vec<u8> = (0..29).collect();
        let good = check(7, &payload);
        assert_ne!(check(8, &payload), good);
        assert_ne!(check(0, &[]), 0);
        for len in 0..payload.len() {
            assert_ne!(check(7, &payload[..len]), check(7, &payload[..len + 1]));
        }
        assert_ne!(check(7, &[0; 3]), check(7, &[0; 4]));
        for bit in 0..payload.len() * 8 {
            let mut bad = payload.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(check(7, &bad), good, "bit {bit}");
        }
    }
}
