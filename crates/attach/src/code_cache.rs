//! What was found out about the code of modules, kept in files for processes that come later.
//!
//! A module's file in the directory that [`keep_code_in`] names has what [`Code`] is made of:
//!
//! ```text
//! 0       8      16       24     32       36         40         44     48
//! | magic | text | others | sum  | starts | branches | indirect | zero | 8·branches | 4·indirect | 2·starts
//! ```
//!
//! `text` and `others` are the file's name as well, in hexadecimal: a hash of all bytes of the module's
//! code as they are in memory, and one of whatever else the answers depend on: where its functions
//! begin and how long they are, where its code lies, and how this crate looks at code. So another version of a library has
//! another file, and so has one whose code was changed after it was loaded. `sum` is a hash of what
//! follows the header: a file that is torn or damaged is none. Only files of this user count that
//! nobody else can write to.
//!
//! Where nothing can be kept, all is found out anew: nobody is told.

use crate::code::Code;
use crate::signals::gone::Looking;
use crate::stack_arguments::Uses;
use rustix::fd::OwnedFd;
use rustix::fs::{self, FileType, Mode, OFlags, Timespec, Timestamps, UTIME_NOW};
use rustix::io::Errno;
use std::ffi::CString;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use twox_hash::XxHash64;

const MAGIC: &[u8; 8] = b"skepcode";
const HEADER: usize = 48;

/// A hash of this crate's sources.
const ANALYSIS: &str = env!("SKEP_ATTACH_SOURCES");

/// Code that is smaller is sooner looked at than found.
const SMALLEST: u64 = 32 << 10;

/// A file is written anew when so many more functions are known, or an eighth.
const WORTH: usize = 64;

static DIRECTORY: Mutex<Option<CString>> = Mutex::new(None);

/// Has what is found out about code be kept in files in this directory, and be found there; `None`: it
/// is not kept. The directory need not be there: then nothing is kept either.
pub fn keep_code_in(directory: Option<&Path>) {
    let directory = directory.and_then(|path| CString::new(path.as_os_str().as_bytes()).ok());
    *DIRECTORY.lock().unwrap_or_else(PoisonError::into_inner) = directory;
}

/// Which file is a module's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Key {
    text: u64,
    others: u64,
}

impl Key {
    /// The file's name, behind something that makes it another one.
    fn name(self, before: &str) -> Option<CString> {
        CString::new(format!("{before}{:016x}{:016x}", self.text, self.others)).ok()
    }
}

/// The file of a module.
#[derive(Debug)]
pub(crate) struct Kept {
    key: Key,
    /// Of how many functions it has what they use; as many as there cannot be: there is no file.
    known: AtomicUsize,
}

/// Finds the code of a module in a file, or else reads it; see [`Code::read`]. `sizes`: how long its
/// functions are, as far as known.
///
/// # Safety
/// As for that.
pub(crate) unsafe fn find_or_read(
    starts: Vec<u64>,
    sizes: impl Iterator<Item = u64>,
    text: &[Range<u64>],
    span: &Range<u64>,
) -> Code {
    let size: u64 = text.iter().map(|range| range.end - range.start).sum();
    let directory = if size < SMALLEST { None } else { open_directory() };
    // SAFETY: the caller's promise.
    let key = directory.as_ref().and_then(|_| unsafe { key(&starts, sizes, text) });
    let (Some(directory), Some(key)) = (directory, key) else {
        // SAFETY: the caller's promise.
        return unsafe { Code::read(starts, text, span) };
    };
    if let Some(found) = Contents::read(&directory, key, starts.len()) {
        let known = AtomicUsize::new(found.uses.known());
        return Code::found(starts, text, span, found, Kept { key, known });
    }
    // SAFETY: the caller's promise.
    let mut code = unsafe { Code::read(starts, text, span) };
    code.kept = Some(Kept { key, known: AtomicUsize::new(usize::MAX) });
    code
}

/// Keeps what is known of a module's code by now, if that is more than its file has.
pub(crate) fn keep(code: &Code) {
    let Some(kept) = code.kept.as_ref().filter(|_| !code.is_lost()) else { return };
    let (before, known) = (kept.known.load(Ordering::Relaxed), code.uses().known());
    if before != usize::MAX && known <= before + WORTH.max(before / 8) {
        return;
    }
    // What cannot be written is not tried again for as few.
    kept.known.store(known, Ordering::Relaxed);
    if let Some(directory) = open_directory() {
        write(&directory, kept.key, &Contents::bytes(code, kept.key));
    }
}

/// Of a module's file.
#[derive(Debug)]
pub(crate) struct Contents {
    pub(crate) branches: Vec<u64>,
    /// From the first address of the text.
    pub(crate) indirect: Vec<u32>,
    pub(crate) uses: Uses,
}

impl Contents {
    /// `None`: there is no such file, or it is not sound. `functions`: how many there are.
    fn read(directory: &OwnedFd, key: Key, functions: usize) -> Option<Self> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let fd = fs::openat(directory, &*key.name("")?, flags, Mode::empty()).ok()?;
        let stat = fs::fstat(&fd).ok()?;
        let own = stat.st_uid == rustix::process::geteuid().as_raw() && stat.st_mode & 0o022 == 0;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || !own {
            return None;
        }
        let mut head = [0; HEADER];
        read_exact(&fd, &mut head)?;
        let word = |at: usize| Some(u64::from_le_bytes(*head.get(at..)?.first_chunk()?));
        let count = |at: usize| Some(u32::from_le_bytes(*head.get(at..)?.first_chunk()?) as usize);
        let (starts, branches, indirect) = (count(32)?, count(36)?, count(40)?);
        let is_it = head.starts_with(MAGIC) && (word(8)?, word(16)?) == (key.text, key.others);
        let size = 8 * branches + 4 * indirect + 2 * starts;
        if !is_it || starts != functions || stat.st_size != (HEADER + size) as i64 {
            return None;
        }
        let mut rest = vec![0; size];
        read_exact(&fd, &mut rest)?;
        if XxHash64::oneshot(0, &rest) != word(24)? {
            return None;
        }
        note_use(&fd);
        let (all, rest) = rest.split_at_checked(8 * branches)?;
        let branches = all.as_chunks().0.iter().map(|b| u64::from_le_bytes(*b)).collect();
        let (all, rest) = rest.split_at_checked(4 * indirect)?;
        let indirect = all.as_chunks().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
        let uses = rest.as_chunks().0.iter().map(|b| u16::from_le_bytes(*b)).collect();
        Some(Self { branches, indirect, uses: Uses::from_words(uses) })
    }

    /// A file of what is known.
    fn bytes(code: &Code, key: Key) -> Vec<u8> {
        let (branches, indirect) = code.parts();
        let uses = code.uses().words();
        let counts = [uses.len(), branches.len(), indirect.len(), 0];
        let size = 8 * branches.len() + 4 * indirect.len() + 2 * uses.len();
        let mut out = Vec::with_capacity(HEADER + size);
        out.extend_from_slice(MAGIC);
        for word in [key.text, key.others, 0] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        for count in counts {
            out.extend_from_slice(&(count as u32).to_le_bytes());
        }
        branches.iter().for_each(|branch| out.extend_from_slice(&branch.to_le_bytes()));
        indirect.for_each(|place| out.extend_from_slice(&place.to_le_bytes()));
        uses.for_each(|what| out.extend_from_slice(&what.to_le_bytes()));
        let sum = XxHash64::oneshot(0, out.get(HEADER..).unwrap_or_default());
        if let Some(place) = out.get_mut(24..32) {
            place.copy_from_slice(&sum.to_le_bytes());
        }
        out
    }
}

/// `None`: the module went meanwhile.
///
/// # Safety
/// The code was found mapped there. It may go meanwhile.
unsafe fn key(
    starts: &[u64],
    sizes: impl Iterator<Item = u64>,
    text: &[Range<u64>],
) -> Option<Key> {
    let looking = Looking::begin();
    let base = text.iter().map(|range| range.start).min()?;
    let mut all = ANALYSIS.as_bytes().to_vec();
    let places = text.iter().flat_map(|range| [range.start, range.end]);
    let addresses = places.chain(starts.iter().copied());
    for number in addresses.map(|address| address.wrapping_sub(base)).chain(sizes) {
        all.extend_from_slice(&number.to_le_bytes());
    }
    // SAFETY: the caller's promise; the thread looks.
    let hash = |hash, range| XxHash64::oneshot(hash, unsafe { crate::code::bytes(range) });
    let key = Key { text: text.iter().fold(0, hash), others: XxHash64::oneshot(0, &all) };
    (!looking.is_lost()).then_some(key)
}

fn open_directory() -> Option<OwnedFd> {
    let path = DIRECTORY.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    fs::open(&*path, flags, Mode::empty()).ok()
}

/// Writes a file beside its place, and moves it there as a whole.
fn write(directory: &OwnedFd, key: Key, bytes: &[u8]) -> Option<()> {
    // A file that becomes too large would end the process.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
    if limit.is_some_and(|limit| limit < bytes.len() as u64) {
        return None;
    }
    // Several threads of a process may be here.
    static LAST: AtomicU64 = AtomicU64::new(0);
    let number = LAST.fetch_add(1, Ordering::Relaxed);
    let process = rustix::process::getpid().as_raw_nonzero();
    let (new, name) = (key.name(&format!(".{process}.{number}."))?, key.name("")?);
    let remove = || fs::unlinkat(directory, &*new, fs::AtFlags::empty()).ok();
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    // One that a process of the same id left.
    remove();
    let fd = fs::openat(directory, &*new, flags, Mode::RUSR | Mode::WUSR).ok()?;
    let done =
        write_all(&fd, bytes).and_then(|()| fs::renameat(directory, &*new, directory, &*name).ok());
    if done.is_none() {
        remove();
    }
    done
}

fn write_all(fd: &OwnedFd, mut bytes: &[u8]) -> Option<()> {
    while !bytes.is_empty() {
        match rustix::io::write(fd, bytes) {
            Ok(0) => return None,
            Ok(n) => bytes = bytes.get(n..)?,
            Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
    Some(())
}

fn read_exact(fd: &OwnedFd, mut into: &mut [u8]) -> Option<()> {
    while !into.is_empty() {
        match rustix::io::read(fd, &mut *into) {
            Ok(0) => return None,
            Ok(n) => into = into.get_mut(n..)?,
            Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
    Some(())
}

/// Has a file look young: the oldest ones go when there are too many.
fn note_use(fd: &OwnedFd) {
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    // What cannot be noted goes earlier, and comes again.
    let _ = fs::futimens(fd, &Timestamps { last_access: now, last_modification: now });
}
