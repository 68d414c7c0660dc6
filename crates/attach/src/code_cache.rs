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
//! begin and how long they are, where its code lies, and how this crate looks at code. So another
//! version of a library has another file, and so has one whose code was changed after it was loaded.
//! `sum` is a hash of what follows the header: a file that is torn or damaged is none. Only files of
//! this user count that nobody else can write to.
//!
//! Where nothing can be kept, all is found out anew: nobody is told.

use crate::code::Code;
use crate::stack_arguments::Uses;
use rustix::fd::OwnedFd;
use skep_proc::own_file;
use std::ffi::CString;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use twox_hash::XxHash64;

const MAGIC: &[u8; 8] = b"skepcode";
const HEADER: usize = 48;

/// A hash of this crate's sources.
const ANALYSIS: &str = env!("SKEP_SOURCES");

/// Code that is smaller is sooner looked at than found.
const SMALLEST: u64 = 32 << 10;

/// Bytes that are hashed together: numbers of many functions take no memory.
const AT_ONCE: usize = 2048;

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
pub(crate) struct Key {
    text: u64,
    others: u64,
}

impl Key {
    /// `hash`: of all bytes of the ranges `text`. `starts`: where functions begin; `sizes`: how long they
    /// are, as far as known.
    #[inline(never)]
    pub(crate) fn new(
        hash: u64,
        text: &[Range<u64>],
        starts: &[u64],
        sizes: impl Iterator<Item = u64>,
    ) -> Self {
        let base = text.first().map_or(0, |range| range.start);
        let mut all = ANALYSIS.as_bytes().to_vec();
        let mut others = 0;
        let mut add = |number: u64| {
            all.extend_from_slice(&number.to_le_bytes());
            if all.len() >= AT_ONCE {
                // The next ones' hash begins with that of these.
                others = XxHash64::oneshot(others, &all);
                all.clear();
            }
        };
        for range in text {
            add(range.start.wrapping_sub(base));
            add(range.end.wrapping_sub(base));
        }
        starts.iter().for_each(|start| add(start.wrapping_sub(base)));
        sizes.for_each(add);
        Self { text: hash, others: XxHash64::oneshot(others, &all) }
    }

    /// The file's name.
    fn name(self) -> Option<CString> {
        CString::new(format!("{:016x}{:016x}", self.text, self.others)).ok()
    }
}

/// The file of a module.
#[derive(Debug)]
pub(crate) struct Kept {
    key: Key,
    /// Of how many functions it has what they use; as many as there cannot be: there is no file.
    known: AtomicUsize,
}

impl Kept {
    /// There is no such file.
    pub(crate) fn new(key: Key) -> Self {
        Self { key, known: AtomicUsize::new(usize::MAX) }
    }
}

/// The directory, if code of so many bytes is kept.
#[inline(never)]
pub(crate) fn directory_for(size: u64) -> Option<OwnedFd> {
    if size < SMALLEST { None } else { open_directory() }
}

/// What is kept of a module that has so many functions.
#[inline(never)]
pub(crate) fn find(directory: &OwnedFd, key: Key, functions: usize) -> Option<(Contents, Kept)> {
    let found = Contents::read(directory, key, functions)?;
    let known = AtomicUsize::new(found.uses.known());
    Some((found, Kept { key, known }))
}

/// A hash of bytes that follow others, whose hash is `before`.
pub(crate) fn hash(before: u64, bytes: &[u8]) -> u64 {
    XxHash64::oneshot(before, bytes)
}

/// Keeps what is known of a module's code by now, if that is more than its file has.
#[inline(never)]
pub(crate) fn keep(code: &Code) {
    let Some(kept) = code.kept.as_ref().filter(|_| !code.is_lost()) else { return };
    let (before, known) = (kept.known.load(Ordering::Relaxed), code.uses().known());
    if before != usize::MAX && known <= before + WORTH.max(before / 8) {
        return;
    }
    // What cannot be written is not tried again for as few.
    kept.known.store(known, Ordering::Relaxed);
    if let (Some(directory), Some(name)) = (open_directory(), kept.key.name()) {
        let _ = own_file::replace(&directory, &name, &Contents::bytes(code, kept.key));
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
        let (fd, stat) = own_file::open(directory, &key.name()?)?;
        let mut head = [0; HEADER];
        own_file::read_exact(&fd, &mut head)?;
        let word = |at: usize| Some(u64::from_le_bytes(*head.get(at..)?.first_chunk()?));
        let count = |at: usize| Some(u32::from_le_bytes(*head.get(at..)?.first_chunk()?) as usize);
        let (starts, branches, indirect) = (count(32)?, count(36)?, count(40)?);
        let is_it = head.starts_with(MAGIC) && (word(8)?, word(16)?) == (key.text, key.others);
        let size = 8 * branches + 4 * indirect + 2 * starts;
        if !is_it || starts != functions || stat.st_size != (HEADER + size) as i64 {
            return None;
        }
        let mut rest = vec![0; size];
        own_file::read_exact(&fd, &mut rest)?;
        if XxHash64::oneshot(0, &rest) != word(24)? {
            return None;
        }
        // The oldest ones go when there are too many.
        own_file::touch(&fd);
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

fn open_directory() -> Option<OwnedFd> {
    let path = DIRECTORY.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
    own_file::directory(&*path)
}
