//! Restartable sequences: a thread that is preempted inside one goes on at the sequence's abort
//! handler, which the kernel arranges when the thread returns to the program. If it returned to
//! somewhere else first, the kernel would forget the sequence, and the thread would finish it as if
//! nobody had interrupted it. So a thread inside one keeps its place.

use std::ops::Range;

use crate::memory::Memory;
use crate::sys;

/// How often a thread may run a little to leave its sequence, which is a few instructions long.
pub(crate) const TRIES: u32 = 20;

/// The instructions of the sequence that a stopped thread is in.
pub(crate) fn sequence(memory: &Memory, tid: u32, rip: u64) -> Option<Range<u64>> {
    let word = |address: u64| {
        let bytes = memory.read(address, 8).ok()?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    };
    // A kernel before Linux 5.13 does not say: then the thread is taken to be in none.
    let area = sys::rseq(tid).ok().filter(|&area| area != 0)?;
    // `rseq_cs` of `struct rseq`; `start_ip` and `post_commit_offset` of `struct rseq_cs`.
    let descriptor = word(area + 8).filter(|&descriptor| descriptor != 0)?;
    let start = word(descriptor.checked_add(8)?)?;
    let sequence = start..start.checked_add(word(descriptor.checked_add(16)?)?)?;
    sequence.contains(&rip).then_some(sequence)
}
