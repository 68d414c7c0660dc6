//! The mark of the agent's library in a process: where it is, which version, its thread, and who put
//! it there.
//!
//! It lies in the library's own memory and was written before anything else of it, so the next
//! `skep` finds what a killed one has left, also half of a library. What is below is the same in all
//! versions, as a `skep` reads the marks of others:
//!
//! ```text
//!   0  `SKEPLIVE`
//!   8  the library's hash
//!  16  whether it is whole
//!  20  its thread's id
//!  24  its name
//!  40  the number of this layout; 0 in libraries that say nothing of what follows
//!  44  the id of the `skep` whose thread that is
//!  48  bytes of the library; it begins so much, and two pages, before the mark
//!  56  bytes that are mapped, with the thread's stack
//!  64  from where it begins: the function `live::REST`, what that says (`live::RESTING`), `live::BUSY`
//!  88  not 0: another version has the process since, and has taken what this one had
//!  96  the version of `skep`, as text
//! ```

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use skep_inject::{Image, Loaded, Target};
use skep_proc::maps::{Filter, Live, MapSource, Perms, Vma, Want, entry_of};
use skep_store::live;

use super::Injected;

const MAGIC: [u8; 8] = *b"SKEPLIVE";
const WHOLE: u64 = 16;
const TID: u64 = 20;
const NAME: u64 = 24;
const LAYOUT: u64 = 40;
const BY: u64 = 44;
const RETIRED: u64 = 88;
const VERSION: usize = 96;
const LEN: usize = 128;

/// Memory behind the mark that nothing uses while the library has no thread.
const SCRATCH: u64 = 512;

/// The name that the memory gets in `/proc/PID/maps` (`[anon:skep-agent]`), where the kernel can do that.
const NAMED: &[u8] = b"skep-agent\0";

/// The number of the layout.
const THIS: u32 = 1;

/// A library that another `skep`, or this one, has put into the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) loaded: Loaded,
    pub(super) hash: u64,
    pub(super) is_whole: bool,
    /// Another version has the process since.
    pub(super) is_retired: bool,
    tid: u32,
    by: u32,
    /// What another version needs to know; none of a library that does not say it.
    pub(super) ends: Option<Ends>,
    /// Of the `skep` that has put it there.
    pub(super) version: String,
}

/// What of a library is used by another version: addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ends {
    pub(super) rest: u64,
    pub(super) resting: u64,
    pub(super) busy: u64,
}

impl Mark {
    /// The mark of a library that is being loaded.
    pub(super) fn bytes(image: &Image, hash: u64) -> Vec<u8> {
        let mut out = [&MAGIC, &hash.to_le_bytes()[..], &[0; 8], NAMED].concat();
        out.resize(LAYOUT as usize, 0);
        let loaded = Loaded::at(0, image);
        let symbol = |name| image.symbol(name);
        let ends = [live::REST, live::RESTING, live::BUSY].map(symbol);
        // A library without them is not for others.
        let layout = if ends.iter().all(Option::is_some) { THIS } else { 0 };
        out.extend(layout.to_le_bytes());
        out.extend([0; 4]);
        let words = [image.len(), loaded.len].into_iter().chain(ends.into_iter().flatten());
        out.extend(words.flat_map(u64::to_le_bytes));
        out.resize(VERSION, 0);
        out.extend(env!("CARGO_PKG_VERSION").bytes().take(LEN - VERSION - 1));
        out.resize(LEN, 0);
        out
    }

    /// Says that all of the library is there.
    pub(super) fn complete(target: &mut Target, loaded: &Loaded) -> Injected<()> {
        const PRCTL: u64 = 157;
        const SET_VMA: u64 = 0x5356_4d41;
        let mark = loaded.mark();
        // A kernel without such names refuses.
        let _ = target.call("prctl", PRCTL, [SET_VMA, 0, mark, 4096, mark + NAME, 0]);
        target.write(mark + WHOLE, &1_u32.to_le_bytes())
    }

    /// Notes the library's thread, and that it is this `skep`'s.
    pub(super) fn set_tid(target: &mut Target, loaded: &Loaded, tid: u32) -> Injected<()> {
        target.write(loaded.mark() + BY, &std::process::id().to_le_bytes())?;
        target.write(loaded.mark() + TID, &tid.to_le_bytes())
    }

    /// Notes whether another version has the process.
    pub(super) fn set_retired(target: &mut Target, loaded: &Loaded, retired: bool) -> Injected<()> {
        target.write(loaded.mark() + RETIRED, &u32::from(retired).to_le_bytes())
    }

    /// Memory that may be written to while the library has no thread.
    pub(super) fn scratch(&self) -> u64 {
        self.loaded.mark() + SCRATCH
    }

    /// The thread that was noted last.
    pub(super) fn tid(&self) -> Option<u32> {
        Some(self.tid).filter(|tid| *tid != 0)
    }

    /// Who is attached by it, in words that follow `another skep`.
    pub(super) fn named(&self) -> String {
        let program = std::fs::read_link(format!("/proc/{}/exe", self.by)).unwrap_or_default();
        let program = program.file_name().unwrap_or_default();
        // It may be in another PID namespace, and the id somebody else's here.
        let is_skep = program.as_encoded_bytes().starts_with(b"skep");
        match (is_skep, &*self.version) {
            (_, "") => String::new(),
            (true, version) => format!(" (process {}, version {version})", self.by),
            (false, version) => format!(" (version {version})"),
        }
    }

    /// Finds the libraries in a process that was attached to before, each version's once.
    pub(super) fn all(pid: u32, image: &Image) -> Vec<Self> {
        let all = Live::of(pid).and_then(|live| live.all(&Filter::default(), Want::NAME));
        // Where nobody may look, stopping the process says why.
        let (Ok(all), Ok(memory)) = (all, memory(pid)) else {
            return Vec::new();
        };
        let both = Perms::READ | Perms::WRITE;
        let may_have = |vma: &&Vma| {
            let access = both | Perms::EXEC | Perms::SHARED;
            vma.perms.0 & access.0 == both.0
                && vma.name.as_deref().is_none_or(|name| name.starts_with(b"[anon:"))
        };
        let places = all.iter().filter(may_have).flat_map(|vma| {
            let fit = |at: &u64| at + LEN as u64 <= vma.end;
            Loaded::places_of_mark(vma.start, image).into_iter().filter(fit)
        });
        let marks = places.filter_map(|at| Self::read(&memory, at, image));
        let mut found: Vec<Self> = Vec::new();
        for mark in marks {
            if found.iter().all(|other| other.loaded.mark() != mark.loaded.mark()) {
                found.push(mark);
            }
        }
        found
    }

    /// Reads it again, if it is still there.
    pub(super) fn again(&self, pid: u32, image: &Image) -> Option<Self> {
        Self::read(&memory(pid).ok()?, self.loaded.mark(), image)
    }

    fn read(memory: &File, at: u64, image: &Image) -> Option<Self> {
        let mut bytes = [0; LEN];
        memory.read_exact_at(&mut bytes, at).ok().filter(|()| bytes.starts_with(&MAGIC))?;
        let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|n| bytes[at + n]));
        let short = |at: u64| u32::from_le_bytes(std::array::from_fn(|n| bytes[at as usize + n]));
        let is_known = short(LAYOUT) == THIS;
        let (of_image, len) = (long(48), long(56));
        let loaded = match is_known {
            true => Loaded::of_other(at, of_image, len),
            false => Loaded::of_mark(at, image),
        }?;
        // What is not in the library is nothing to call.
        let place = |at: usize| Some(loaded.start + Some(long(at)).filter(|at| *at < of_image)?);
        let ends = || Some(Ends { rest: place(64)?, resting: place(72)?, busy: place(80)? });
        let version = bytes[VERSION..].split(|byte| *byte == 0).next().unwrap_or_default();
        Some(Self {
            loaded,
            hash: long(8),
            is_whole: short(WHOLE) != 0,
            is_retired: short(RETIRED) != 0,
            tid: short(TID),
            by: short(BY),
            ends: ends().filter(|_| is_known),
            version: String::from_utf8_lossy(version).into_owned(),
        })
    }

    /// Tells whether a library is not there any more: the process executes another program. One that
    /// ends has no memory at all, and its library is not gone.
    pub(super) fn is_gone(pid: u32, loaded: &Loaded) -> bool {
        let Ok(memory) = memory(pid) else { return false };
        let mut bytes = [0; MAGIC.len()];
        match memory.read_at(&mut bytes, loaded.mark()) {
            Ok(0) => false,
            Ok(_) => bytes != MAGIC,
            Err(_) => true,
        }
    }
}

/// Opens the memory of a process, whose main thread may have ended.
pub(super) fn memory(pid: u32) -> io::Result<File> {
    File::open(format!("/proc/{}/mem", entry_of(pid)))
}
