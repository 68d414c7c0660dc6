//! Agents that other versions of `skep` have left in a process: they rest, and make room.
//!
//! An agent that has left keeps its library mapped, since a thread may return into it at any time later,
//! and a program may have kept the address of a handler of its. So another version is put beside it.
//! What there can be one of only goes from one to the other while all threads stand: handlers of
//! signals, of which each gets back what the program had; the GS base of each thread; and places where a
//! jump stayed. Before that the old agent looks, by code of its own, whether any call is still inside of
//! its hooks, which would find the wrong words by the GS base. What it is asked, and what it answers, is the
//! same in all versions ([`Mark`], [`live::REST`]).

use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use skep_inject::Target;
use skep_store::live::{self, Action, Resting, StillInside};

use super::mark::{self, Mark};
use super::{
    Entry, Injected, NOT_NOW, ProcessError, Result, StopError, Stopper, hold, is_agent, stopper,
};

/// So many other versions a process may have: each keeps about 4 MB.
pub(super) const MOST: usize = 8;

/// How long the old agent may take to look.
const PATIENCE: Duration = Duration::from_secs(10);

/// How often its thread is looked at.
const PAUSE: Duration = Duration::from_micros(200);

/// Has the agent of another version take out what it has hooked, and look who is inside.
pub(super) fn rest(by: &mut dyn Stopper, pid: u32, other: &Mark) -> Result<(), Entry> {
    let memory =
        mark::memory(pid).map_err(|source| ProcessError::Os { pid, call: "open", source })?;
    let mut busy = [0; 4];
    let Some(ends) = other.ends else {
        return Err(ProcessError::OtherVersion { pid }.into());
    };
    // A child of `fork` that was made while its parent's agent worked has that one's locks.
    if memory.read_exact_at(&mut busy, ends.busy).is_err() || busy != [0; 4] {
        return Err(ProcessError::OtherVersion { pid }.into());
    }
    let begun = stopper::stop(by, pid, |target| -> Result<u32, Entry> {
        target.check_free(&other.loaded)?;
        target.write(ends.resting, &[0; 8])?;
        let tid = target.start_thread(&other.loaded, ends.rest, 0)?;
        Mark::set_tid(target, &other.loaded, tid)?;
        Ok(tid)
    });
    let tid = begun.map_err(Entry::Failed)??;
    let end = Instant::now() + PATIENCE;
    let why = loop {
        let mut bytes = [0; Resting::WORDS * 8];
        if memory.read_exact_at(&mut bytes, ends.resting).is_err() {
            break "it has ended, or executes another program";
        }
        if let Some(resting) = from_bytes(&bytes)
            && !is_agent(pid, tid)
        {
            let version = other.version.clone();
            return match resting.inside {
                StillInside::Nobody => Ok(()),
                _ => Err(ProcessError::OtherInside { pid, version }.into()),
            };
        }
        if by.is_stopped(pid) {
            return Err(ProcessError::Stopped { pid }.into());
        } else if by.is_over() {
            break NOT_NOW;
        } else if Instant::now() > end {
            break "the agent of another version of skep does not answer";
        }
        by.pause(PAUSE);
    };
    Err(ProcessError::Begin { pid, why: why.to_owned() }.into())
}

fn from_bytes(bytes: &[u8]) -> Option<Resting> {
    let words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
    Resting::from_words(&words.collect::<Vec<u64>>().try_into().ok()?)
}

/// Gives the program back what another version has taken, which rests: places with a jump, and handlers.
/// Can be done again by whoever comes after a killed `skep`.
pub(super) fn take_over(target: &mut Target, other: &Mark) -> Result<(), Entry> {
    // It has nobody inside any more: one that has begun again meanwhile has changed its mark.
    target.check_free(&other.loaded)?;
    let Some(ends) = other.ends else { return Err(Entry::Changed) };
    let resting = from_bytes(&target.read(ends.resting, Resting::WORDS * 8)?);
    let Some(resting) = resting.filter(|resting| resting.inside == StillInside::Nobody) else {
        return Err(Entry::Changed);
    };
    hold::write(target, resting.left)?;
    for action in resting.actions {
        give_back(target, action, other.scratch())?;
    }
    Ok(())
}

/// Gives a signal's action back, unless the program has set another since.
fn give_back(target: &mut Target, action: Action, at: u64) -> Injected<()> {
    const RT_SIGACTION: u64 = 13;
    const LEN: usize = 32;
    target.call("rt_sigaction", RT_SIGACTION, [action.signal, 0, at, 8, 0, 0])?;
    if target.read(at, LEN)?.starts_with(&action.own.to_le_bytes()) {
        let program: Vec<u8> = action.program.iter().flat_map(|word| word.to_le_bytes()).collect();
        target.write(at, &program)?;
        target.call("rt_sigaction", RT_SIGACTION, [action.signal, at, 0, 8, 0, 0])?;
    }
    Ok(())
}

/// Tells whether a thread's GS base is that of an area of an agent's, of whatever version.
pub(super) fn is_area(target: &Target, base: u64) -> bool {
    let own = [base.to_le_bytes(), live::AREA_MARK.to_le_bytes()].concat();
    target.read(base, own.len()).is_ok_and(|bytes| bytes == own)
}

/// Tells whether another tracer is a `skep` that is about to let the process go.
pub(super) fn is_traced_by_another(error: &StopError) -> bool {
    use skep_inject::Refusal::Traced;
    matches!(error, StopError::Refused { reason: Traced { name, .. }, .. } if name.starts_with("skep"))
}
