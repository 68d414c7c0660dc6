//! Holding the threads of a process while its agent changes their code.
//!
//! The agent could stop them by a signal, but not one that blocks all signals, as the C library does
//! while it makes a thread or a child: that one may wake up in the middle, and a breakpoint ends the
//! process then.

use std::time::{Duration, Instant};

use rustix::net::RecvFlags;
use skep_inject::Target;
use skep_store::live::{Edit, List, Request, Stopped};

use super::{Injected, LOOK, Live, SEND, StopError, Stopper, is_readable, stopper};

/// How long one thread may keep the others waiting that stand already.
const EACH: Duration = Duration::from_millis(50);

/// How long is tried again, with the threads running in between. A child of `vfork` shares the memory
/// until it executes a program.
const ALL: Duration = Duration::from_millis(500);

/// How long they stand for an agent that says nothing: it takes milliseconds, and has lost its socket then.
const LONGEST: Duration = Duration::from_secs(10);

const PAUSE: Duration = Duration::from_millis(1);

impl Live {
    /// Stops all threads but the agent's until it says that they may go on, and writes what it has to
    /// be written meanwhile. Where they cannot be stopped the agent is told, and does what it can by
    /// itself.
    pub(super) fn hold(&self, by: &mut dyn Stopper, moves: List, stacks: List) {
        let end = Instant::now() + ALL;
        loop {
            let mut told = false;
            let held = stopper::stop_others(by, self.pid, self.inside.tid, EACH, |target| {
                let count = move_away(target, moves, stacks)?;
                told = true;
                self.tell(Stopped { threads: Some(count), of: stacks.at });
                self.write_what_it_says(target, count);
                Injected::Ok(())
            });
            match held.and_then(|done| done) {
                _ if told => return,
                Err(error) if may_pass(&error) && Instant::now() < end => {
                    by.pause(PAUSE);
                }
                _ => return self.tell(Stopped { threads: None, of: stacks.at }),
            }
        }
    }

    /// Who does not listen any more has ended, which is seen next, or asks without end and does not read.
    pub(super) fn tell(&self, stopped: Stopped) {
        rustix::net::send(&self.socket, &stopped.to_bytes(), SEND).ok();
    }

    /// Until the agent has the threads go on, or is no more.
    fn write_what_it_says(&self, target: &mut Target, count: u32) {
        let mut bytes = [0; Request::LEN];
        let end = Instant::now() + LONGEST;
        while !self.has_ended() && Instant::now() < end {
            match is_readable(&self.socket, LOOK) {
                Ok(false) => continue,
                Ok(true) => {}
                Err(_) => return,
            }
            let got = rustix::net::recv(&self.socket, &mut bytes[..], RecvFlags::empty());
            let request = got.ok().and_then(|(len, _)| Request::from_bytes(bytes.get(..len)?));
            let Some(request) = request else { return };
            let of = request.place();
            match request {
                Request::Write(edits) => {
                    // The agent looks what is there then.
                    write(target, edits).ok();
                    self.tell(Stopped { threads: Some(count), of });
                }
                // Another thread has asked for them to be stopped: one of the two is told that they are not.
                Request::Stop { .. } => return self.tell(Stopped { threads: None, of }),
                Request::GoOn => return,
            }
        }
    }
}

/// Moves threads out of what is about to change, and says where their stacks are.
fn move_away(target: &mut Target, moves: List, stacks: List) -> Injected<u32> {
    let moves = target.read(moves.at, moves.count as usize * 16)?;
    let word = |bytes: &[u8]| u64::from_le_bytes(std::array::from_fn(|n| bytes[n]));
    // They stand and wait: no table is made of what is sorted.
    let moves = moves.as_chunks::<16>().0;
    target.move_threads(|rip| {
        let n = moves.binary_search_by_key(&rip, |pair| word(pair)).ok()?;
        Some(word(&moves[n][8..]))
    })?;
    let mut words = Vec::new();
    for tid in target.threads() {
        words.extend(target.registers(tid)?.rsp.to_le_bytes());
    }
    let count = (words.len() / 8) as u32;
    if count > stacks.count {
        return Err(StopError::Restless { pid: target.pid() });
    }
    target.write(stacks.at, &words)?;
    Ok(count)
}

/// Writes code of a process whose threads stand: five bytes each, where the old ones are found. Those of
/// a page are written by one call, which is not cut short if we are killed.
pub(super) fn write(target: &mut Target, edits: List) -> Injected<()> {
    const PAGE: u64 = 4096;
    let edits = target.read(edits.at, edits.count as usize * Edit::LEN)?;
    let mut edits: Vec<Edit> =
        edits.as_chunks::<{ Edit::LEN }>().0.iter().map(Edit::from_bytes).collect();
    edits.sort_by_cached_key(|edit| edit.at);
    for of_page in edits.chunk_by(|one, next| one.at / PAGE == next.at / PAGE) {
        let (Some(first), Some(last)) = (of_page.first(), of_page.last()) else { continue };
        let len = (last.at - first.at) as usize + last.new.len();
        // A library may be gone since, and something else in its place.
        let Ok(mut bytes) = target.read(first.at, len) else { continue };
        for edit in of_page {
            let from = (edit.at - first.at) as usize;
            if let Some(now) = bytes.get_mut(from..from + edit.new.len())
                && *now == edit.old
            {
                now.copy_from_slice(&edit.new);
            }
        }
        target.write(first.at, &bytes)?;
    }
    Ok(())
}

/// Tells whether it may be otherwise in a moment.
fn may_pass(error: &StopError) -> bool {
    use skep_inject::Refusal;
    match error {
        StopError::Unstoppable { .. } | StopError::NoCaller { .. } | StopError::Restless { .. } => {
            true
        }
        StopError::Refused { reason, .. } => matches!(reason, Refusal::SharedMemory { .. }),
        _ => false,
    }
}
