//! What the agent gets once its thread runs: its end of a socket, the skep directory, and `/proc`.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recv, sendmsg};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use skep_store::live;

use super::{LOOK, Live, NOT_NOW, PATIENCE, Stopper, error, mark};

/// How often the agent's thread is looked at, which takes microseconds to begin.
const PAUSE: Duration = Duration::from_micros(50);

/// `PIDFD_THREAD` (Linux 6.9): any thread, not only the main one.
const THREAD: PidfdFlags = PidfdFlags::from_bits_retain(OFlags::EXCL.bits());

/// Tells whether files of a thread can be fetched that has a descriptor table of its own.
pub(super) fn sees_tables_of_threads() -> bool {
    pidfd_open(rustix::thread::gettid(), THREAD).is_ok()
}

impl Live {
    /// Sends files through the socket that the agent's thread makes, whose number it writes to a word
    /// of its library (`pair`).
    pub(super) fn hand_over(
        &self,
        by: &mut dyn Stopper,
        pair: u64,
        files: [OwnedFd; 3],
    ) -> Result<(), String> {
        let socket = self.fetch(by, self.inside.loaded.start + pair)?;
        let all = [files[0].as_fd(), files[1].as_fd(), files[2].as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&all));
        sendmsg(&socket, &[IoSlice::new(&[0])], &mut control, SendFlags::NOSIGNAL)
            .map_err(|_| self.gone())?;
        drop(files);
        // It ends when the agent has them, or says why it cannot.
        let end = Instant::now() + PATIENCE;
        while !by.wait_for(&socket, LOOK)? {
            self.check_running(by, end)?;
        }
        let mut bytes = [0; live::ANSWER];
        match recv(&socket, &mut bytes[..], RecvFlags::empty()) {
            Ok((len @ 1.., _)) => live::answer_from_bytes(&bytes[..len])
                .unwrap_or_else(|| Err("its agent says what nobody understands".into()))
                .map_err(|why| error::named(&why))
                .map(drop),
            _ => Ok(()),
        }
    }

    /// Fetches the socket from the process.
    fn fetch(&self, by: &mut dyn Stopper, word: u64) -> Result<OwnedFd, String> {
        let memory = mark::memory(self.pid).map_err(|e| e.to_string())?;
        let read = || {
            let mut bytes = [0; 4];
            memory.read_exact_at(&mut bytes, word).map_err(|_| self.gone())?;
            Ok::<_, String>(i32::from_le_bytes(bytes))
        };
        let end = Instant::now() + PATIENCE;
        let number = loop {
            match read()? {
                0 => self.check_running(by, end)?,
                number @ 1.. => break number,
                error => return Err(std::io::Error::from_raw_os_error(-error).to_string()),
            }
            by.pause(PAUSE);
        };
        let socket =
            self.open_file(number - 1).map_err(|e| format!("its socket cannot be fetched: {e}"))?;
        // If the thread did not wait so long, the number may have been another file's.
        if read()? == number { Ok(socket) } else { Err(self.gone()) }
    }

    /// Fetches an open file of the agent's thread. The main thread may have exited, and has none then.
    fn open_file(&self, number: i32) -> rustix::io::Result<OwnedFd> {
        let thread = i32::try_from(self.inside.tid).ok().and_then(Pid::from_raw);
        let thread = thread.and_then(|tid| pidfd_open(tid, THREAD).ok());
        pidfd_getfd(thread.as_ref().unwrap_or(&self.process), number, PidfdGetfdFlags::empty())
    }

    /// Fails when nothing is to be expected of the agent's thread.
    pub(super) fn check_running(&self, by: &dyn Stopper, end: Instant) -> Result<(), String> {
        if by.is_stopped(self.pid) {
            return Err(format!("it is stopped; `kill -CONT {}` lets it go on", self.pid));
        }
        if self.has_ended() {
            return Err(self.gone());
        }
        self.check_patience(by, end)
    }

    /// Fails when nobody wants to wait any longer.
    pub(super) fn check_patience(&self, by: &dyn Stopper, end: Instant) -> Result<(), String> {
        if by.is_over() {
            return Err(NOT_NOW.into());
        }
        if Instant::now() > end {
            return Err("its agent does not answer".into());
        }
        Ok(())
    }
}
