//! The mark of the agent's library in a process: where it is, which version, and its thread.
//!
//! It lies in the library's own memory and was written before anything else of it, so the next
//! `skep` finds what a killed one has left, also half of a library.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use skep_inject::{Image, Loaded, Target};
use skep_proc::maps::{Filter, Live, MapSource, Perms, Vma, Want, entry_of};

use super::{Injected, ProcessError, Result};

/// `SKEPLIVE`, the library's hash, whether it is whole, its thread's id, its name.
const MAGIC: [u8; 8] = *b"SKEPLIVE";
const WHOLE: u64 = 16;
const TID: u64 = 20;
const NAME: u64 = 24;
const LEN: usize = 24;

/// The name that the memory gets in `/proc/PID/maps` (`[anon:skep-agent]`), where the kernel can do that.
const NAMED: &[u8] = b"skep-agent\0";

/// A library that another `skep`, or this one, has put into the process.
pub(super) struct Mark {
    pub(super) loaded: Loaded,
    pub(super) is_whole: bool,
    tid: u32,
}

impl Mark {
    /// The mark of a library that is being loaded.
    pub(super) fn bytes(hash: u64) -> Vec<u8> {
        [&MAGIC, &hash.to_le_bytes()[..], &[0; 8], NAMED].concat()
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

    /// Notes the library's thread.
    pub(super) fn set_tid(target: &mut Target, loaded: &Loaded, tid: u32) -> Injected<()> {
        target.write(loaded.mark() + TID, &tid.to_le_bytes())
    }

    /// The thread that was noted last.
    pub(super) fn tid(&self) -> Option<u32> {
        Some(self.tid).filter(|tid| *tid != 0)
    }

    /// Finds the library in a process that was attached to before.
    pub(super) fn find(pid: u32, image: &Image, hash: u64) -> Result<Option<Self>> {
        let all = Live::of(pid).and_then(|live| live.all(&Filter::default(), Want::NAME));
        // Where nobody may look, stopping the process says why.
        let (Ok(all), Ok(memory)) = (all, memory(pid)) else {
            return Ok(None);
        };
        let both = Perms::READ | Perms::WRITE;
        let may_have = |vma: &&Vma| {
            let access = both | Perms::EXEC | Perms::SHARED;
            vma.perms.0 & access.0 == both.0
                && vma.name.as_deref().is_none_or(|name| name.starts_with(b"[anon:"))
        };
        for vma in all.iter().filter(may_have) {
            for at in Loaded::places_of_mark(vma.start, image) {
                let mut bytes = [0; LEN];
                if at + LEN as u64 > vma.end
                    || memory.read_exact_at(&mut bytes, at).is_err()
                    || !bytes.starts_with(&MAGIC)
                {
                    continue;
                }
                let [.., is_whole, tid] = *bytes.as_chunks::<4>().0 else { continue };
                if bytes[8..16] != hash.to_le_bytes() {
                    return Err(ProcessError::OtherVersion { pid });
                }
                let loaded = Loaded::of_mark(at, image);
                let is_whole = u32::from_le_bytes(is_whole) != 0;
                return Ok(Some(Self { loaded, is_whole, tid: u32::from_le_bytes(tid) }));
            }
        }
        Ok(None)
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
