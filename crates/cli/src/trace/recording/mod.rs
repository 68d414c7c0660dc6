//! Traces as files: what `skep trace --record` writes and `skep report` reads, here or on another
//! machine.
//!
//! | bytes | what |
//! |---|---|
//! | 8 | `SKEPREC\n` |
//! | 8 | version, little-endian: 3 |
//! | … | items |
//! | 8 | how many bytes the items take |
//! | 8 | their checksum, FNV-1a |
//!
//! An item begins with its kind. There are calls ([`Event`], where each was recorded), names of
//! processes, and at the end what the trace was and, where calls were summed up, the call paths
//! ([`Summary`]). Numbers are varints as in protocol buffers. A text is the number of an earlier one,
//! or 0 and its length and bytes. One function describes each structure, for writing and for reading
//! (`parts`).
//!
//! A file may come from anywhere: numbers of things that are not there are refused, and what is read
//! takes no more memory than a multiple of the file.

mod parts;
mod read;
mod write;

use serde_json::Value as Json;
use skep::link::{Cookie, LinkSpec, LinkState, Missed};

pub use read::{Item, Reader};
pub use write::Writer;

use super::report::Ended;
use super::tree::{Node, Thread};
use crate::report::Wall;

const MAGIC: &[u8] = b"SKEPREC\n";
/// Of the files that are written and read.
pub const VERSION: u64 = 3;
/// Kinds of items.
const CALL: u64 = 1;
const PROCESS: u64 = 2;
const SUMMARY: u64 = 3;
/// Texts that get numbers; later ones are written out.
const NUMBERED: usize = 1 << 16;

/// Why a file cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unreadable {
    #[error("it is no recording of `skep trace --record`")]
    Foreign,
    #[error("it is of version {0}, and this version of skep reads {VERSION}")]
    Version(u64),
    #[error("it is cut off or damaged")]
    Damaged,
}

type Done<T = ()> = Result<T, Unreadable>;

/// What a trace was, and what it counted.
#[derive(Debug)]
pub struct Summary {
    pub command: Option<Vec<String>>,
    pub pids: Vec<u32>,
    pub status: Option<i32>,
    pub wall: Wall,
    pub missed: Missed,
    pub lost: u64,
    pub lost_pages: u64,
    /// Calls that were not recorded, as they came too fast.
    pub dropped: u64,
    pub overhead_ns: f64,
    pub caller_overhead_ns: Option<f64>,
    /// Functions, processes and patterns.
    pub state: LinkState,
    /// Call paths; `None`: calls were recorded one by one.
    pub paths: Option<(Vec<Node>, Vec<Thread>)>,
}

/// A call as it is shown.
#[derive(Clone, Debug, Default)]
pub struct Event {
    /// Its index in the link.
    pub function: u32,
    pub pid: u32,
    pub tid: u32,
    pub depth: u64,
    /// Since the trace began.
    pub start_ns: u64,
    /// `None`: nobody saw it return.
    pub took_ns: Option<u64>,
    /// It had not returned when the trace, or its thread, ended.
    pub running: bool,
    /// Something jumped out of it, before `took_ns` was over.
    pub left: bool,
    /// Arguments and result as in C, from the parenthesis on; empty if none were asked for.
    pub values: String,
    /// Its arguments by name; null if they are not known.
    pub args: Json,
    /// Its result, where one was asked for.
    pub ret: Option<Json>,
}

impl Summary {
    /// What is known of every trace.
    pub fn of(ended: &Ended<'_>, missed: Missed, state: &LinkState) -> Self {
        let command = ended.command.as_ref();
        Self {
            command: command.map(|words| words.iter().map(|w| w.clone().into_owned()).collect()),
            pids: ended.pids.clone(),
            status: ended.status,
            wall: ended.wall,
            missed,
            state: state.clone(),
            ..nothing()
        }
    }
}

/// A summary of nothing.
fn nothing() -> Summary {
    let spec = LinkSpec {
        programs: Vec::new(),
        control: 0,
        cookie: Cookie::Index,
        entry_only: true,
        max_functions: u32::MAX,
        by_function: Vec::new(),
        include: Vec::new(),
        exclude: Vec::new(),
    };
    let state = LinkState {
        spec,
        modules: Vec::new(),
        functions: Vec::new(),
        agents: Vec::new(),
        untraced: Vec::new(),
        probes: Vec::new(),
        wants_mapped: false,
        mapped: Vec::new(),
    };
    Summary {
        command: None,
        pids: Vec::new(),
        status: None,
        wall: Wall::default(),
        missed: Missed::default(),
        lost: 0,
        lost_pages: 0,
        dropped: 0,
        overhead_ns: 0.0,
        caller_overhead_ns: None,
        state,
        paths: None,
    }
}

/// FNV-1a.
struct Hash(u64);

impl Default for Hash {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Hash {
    fn add(&mut self, bytes: &[u8]) {
        self.0 = bytes
            .iter()
            .fold(self.0, |hash, b| (hash ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3));
    }
}

#[cfg(test)]
mod tests;
