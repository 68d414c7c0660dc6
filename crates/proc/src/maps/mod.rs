//! Mappings of a process: one question, several places to ask it.

use rustix::io::Errno;

#[cfg(feature = "users")]
mod build_id_file;
#[cfg(feature = "users")]
mod build_ids;
#[cfg(feature = "users")]
pub(crate) mod core;
mod filter;
mod identity;
#[cfg(feature = "users")]
pub(crate) mod input;
mod live;
mod mappings;
#[cfg(feature = "users")]
mod normalize;
#[cfg(all(feature = "users", feature = "symbolize"))]
mod perf_compressed;
#[cfg(feature = "users")]
mod perf_data;
#[cfg(feature = "users")]
mod process;
#[cfg(feature = "users")]
mod ranges;
pub mod raw;
#[cfg(feature = "users")]
mod saved;
#[cfg(feature = "users")]
mod snapshot;
mod text;
mod vma;

#[cfg(feature = "users")]
pub use build_ids::BuildIds;
#[cfg(feature = "users")]
pub use core::{core_from_bytes, core_missing, core_vdso, open_core};
pub use filter::{Filter, Knows, Want};
pub use identity::Identity;
pub use identity::entry_of;
pub use live::{Live, own};
pub use mappings::Mappings;
#[cfg(feature = "users")]
pub use normalize::{Freshness, MappedFile, Normalizer, Place, Reason, Strategy};
#[cfg(feature = "users")]
pub use perf_data::{PerfData, Recorded};
#[cfg(feature = "users")]
pub use process::Process;
#[cfg(feature = "users")]
pub use saved::{Saved, open};
#[cfg(feature = "users")]
pub use snapshot::Snapshot;
pub use text::parse;
pub use vma::{Dev, Perms, Vma};

/// A place to ask about mappings. All sources answer alike for the same state.
///
/// ```
/// use skep_proc::maps::{Filter, Live, MapSource, Want};
/// let here = &0u8 as *const u8 as u64;
/// let vma = Live::own()?.query(here, &Filter::default(), Want::NAME)?;
/// assert!(vma.is_some_and(|vma| vma.contains(here)));
/// # Ok::<(), skep_proc::maps::MapsError>(())
/// ```
pub trait MapSource {
    /// The mapping at `addr` that passes the filter, or with [`Filter::or_next`] the first one
    /// after it; `None` if there is none.
    fn query(&self, addr: u64, filter: &Filter, want: Want) -> Result<Option<Vma>, MapsError>;

    /// Walks over the mappings that pass, in order of address, one query each. Never goes
    /// backwards; a mapping that is split or merged meanwhile may be seen in part.
    fn walk(&self, filter: &Filter, want: Want) -> Walk<'_, Self>
    where
        Self: Sized,
    {
        Walk { source: self, filter: filter.or_next(), want, next: Some(0) }
    }

    /// All mappings that pass, by the cheapest method there is.
    fn all(&self, filter: &Filter, want: Want) -> Result<Vec<Vma>, MapsError> {
        let mut out: Vec<Vma> = Vec::new();
        let filter = filter.or_next();
        let mut at = 0;
        while let Some(vma) = self.query(at, &filter, want)? {
            let end = vma.end;
            out.push(vma);
            if end <= at {
                break;
            }
            at = end;
        }
        Ok(out)
    }

    /// What the source can know; answers are the same as those of others as far as both know.
    fn knows(&self) -> Knows {
        Knows::ALL
    }

    /// The build id of a mapping's file, if it can be known; `vma` is an answer of this source.
    fn build_id(&self, vma: &Vma) -> Result<Option<Vec<u8>>, MapsError> {
        let want = Want { build_id: true, ..Want::default() };
        let again = self.query(vma.start, &Filter::default(), want)?;
        Ok(again.filter(|again| again.range() == vma.range()).and_then(|again| again.build_id))
    }

    /// Why a mapping of this source has no build id; `None` if that is not known, or it has one. The
    /// name is part of the question.
    fn no_build_id(&self, vma: &Vma) -> Option<NoBuildId> {
        (vma.build_id.is_none() && !vma.file_backed()).then_some(NoBuildId::NoFile)
    }

    /// A number that changes when what was answered before may be wrong because the process loaded or
    /// unloaded something, as far as the source hears of that without asking.
    fn generation(&self) -> u64 {
        0
    }

    /// Tells whether a single question costs as much as reading everything. A source may learn that
    /// from the first question.
    fn reads_all(&self) -> bool {
        false
    }
}

/// Why there is no build id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NoBuildId {
    /// The mapping is of no file.
    NoFile,
    /// The file is not found under its name: it was deleted or replaced, or it is of another mount
    /// namespace; and `map_files` of the process may not be used.
    NotFound,
    /// The file may not be read.
    Unreadable,
    /// The file is not an ELF file of a kind that is read.
    NotElf,
    /// The file has no note with one.
    NoNote,
}

impl NoBuildId {
    /// Says it in a few words.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoFile => "no file",
            Self::NotFound => "file not found",
            Self::Unreadable => "file not readable",
            Self::NotElf => "no ELF file",
            Self::NoNote => "no build id in the file",
        }
    }
}

/// Iterator of [`MapSource::walk`]; ends after an error.
#[derive(Debug)]
pub struct Walk<'a, S> {
    source: &'a S,
    filter: Filter,
    want: Want,
    next: Option<u64>,
}

impl<S: MapSource> Iterator for Walk<'_, S> {
    type Item = Result<Vma, MapsError>;

    fn next(&mut self) -> Option<Self::Item> {
        let at = self.next.take()?;
        let found = self.source.query(at, &self.filter, self.want).transpose()?;
        if let Ok(vma) = &found {
            self.next = (vma.end > at).then_some(vma.end);
        }
        Some(found)
    }
}

/// Why mappings could not be asked for.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum MapsError {
    /// The process has gone, or this address space has (by `exec`).
    #[error("the process or its address space is gone")]
    Gone,
    /// The process has ended; its id may be another's by now.
    #[error("process `{pid}` has ended")]
    Ended {
        /// Its id.
        pid: u32,
    },
    /// The process has executed another program since it was opened.
    #[error("process `{pid}` has executed another program")]
    Execed {
        /// Its id.
        pid: u32,
    },
    /// It is a thread of the kernel, which has no mappings.
    #[error("process `{pid}` is a thread of the kernel, which has no mappings")]
    KernelThread {
        /// Its id.
        pid: u32,
    },
    /// The process may not be looked at.
    #[error("no permission to read the mappings of process `{pid}`")]
    NoPermission {
        /// Its id; 0 for the own process.
        pid: u32,
    },
    /// The name is longer than the kernel is willing to answer.
    #[error("the mapping's name does not fit into the answer")]
    NameTooLong,
    /// The source cannot answer such a question.
    #[error("not supported by this source: {what}")]
    Unsupported {
        /// What was asked.
        what: &'static str,
    },
    /// The data do not look as they should.
    #[error("line {line} of the mappings is malformed: {what}")]
    Malformed {
        /// Line or record number, from 1.
        line: usize,
        /// The field.
        what: &'static str,
    },
    /// A file with mappings does not look as it should.
    #[error("malformed {what} at byte {offset:#x} of the file")]
    BadFile {
        /// The part.
        what: &'static str,
        /// Where it is.
        offset: u64,
    },
    /// A system call failed.
    #[error("`{call}` failed: {errno}")]
    Os {
        /// Its name.
        call: &'static str,
        /// Its error.
        errno: Errno,
    },
}
