//! Holding the threads of a process while its agent changes their code.
//!
//! The agent could stop them by a signal, but not one that blocks all signals, as the C library does
//! while it makes a thread or a child: that one may wake up in the middle, and a breakpoint ends the
//! process then.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rustix::net::{RecvFlags, SendFlags};
use skep_inject::Target;
use skep_store::live::{Places, Request, Stopped};

use super::{Injected, LOOK, Live, StopError, is_readable};

/// How long one thread may keep the others waiting that stand already.
const EACH: Duration = Duration::from_millis(50);

/// How long is tried again, with the threads running in between. A child of `vfork` shares the memory
/// until it executes a program.
const ALL: Duration = Duration::from_millis(500);

const PAUSE: Duration = Duration::from_millis(1);

impl Live {
    /// Stops all threads but the agent's until it says that they may go on. Where that is not
    /// possible the agent is told, and does what it can by itself.
    pub(super) fn hold(&self, places: Places) -> Result<(), String> {
        let end = Instant::now() + ALL;
        loop {
            let mut told = false;
            let held = skep_inject::stop_others(self.pid, self.inside.tid, EACH, |target| {
                let count = move_away(target, places)?;
                told = true;
                self.tell(Stopped(Some(count)));
                self.wait_for_change();
                Injected::Ok(())
            });
            match held.and_then(|done| done) {
                _ if told => return Ok(()),
                Err(error) if may_pass(&error) && Instant::now() < end => {
                    std::thread::sleep(PAUSE);
                }
                _ => {
                    self.tell(Stopped(None));
                    return Ok(());
                }
            }
        }
    }

    /// Who does not listen any more has ended, which is seen next.
    fn tell(&self, stopped: Stopped) {
        rustix::net::send(&self.socket, &stopped.to_bytes(), SendFlags::NOSIGNAL).ok();
    }

    /// Waits until the agent has made the change, or is no more.
    fn wait_for_change(&self) {
        let mut bytes = [0; Request::LEN];
        while !self.has_ended() {
            match is_readable(&self.socket, LOOK) {
                Ok(false) => {}
                Ok(true) => {
                    rustix::net::recv(&self.socket, &mut bytes[..], RecvFlags::empty()).ok();
                    return;
                }
                Err(_) => return,
            }
        }
    }
}

/// Moves threads out of what is about to change, and says where their stacks are.
fn move_away(target: &mut Target, places: Places) -> Injected<u32> {
    let moves = target.read(places.moves, places.move_count as usize * 16)?;
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap_or_default());
    let moves: HashMap<u64, u64> =
        moves.chunks_exact(16).map(|pair| (word(&pair[..8]), word(&pair[8..]))).collect();
    target.move_threads(|rip| moves.get(&rip).copied())?;
    let mut stacks = Vec::new();
    for tid in target.threads() {
        stacks.extend(target.registers(tid)?.rsp.to_le_bytes());
    }
    let count = (stacks.len() / 8) as u32;
    if count > places.stack_count {
        return Err(StopError::Restless { pid: target.pid() });
    }
    target.write(places.stacks, &stacks)?;
    Ok(count)
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
