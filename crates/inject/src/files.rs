//! Open files for a stopped process: a descriptor goes through a socket pair that the process makes
//! for that, so no path has to lead to the file in its mount namespace.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use skep_proc::maps::Perms;

use crate::error::Error;
use crate::target::Target;

const PAGE: u64 = 4096;

/// Places in the page that the process gets for the arguments of its calls.
mod place {
    pub(super) const MESSAGE: u64 = 0;
    pub(super) const VECTOR: u64 = 64;
    pub(super) const DATA: u64 = 128;
    pub(super) const CONTROL: u64 = 256;
    pub(super) const PAIR: u64 = 512;
}

/// Size of a control message with one descriptor, and of the buffer for it.
const CONTROL_LEN: u64 = 20;
const CONTROL_SPACE: u64 = 24;

impl Target {
    /// Gives the process a descriptor of an open file of ours, closed on `exec`; returns its number
    /// there. Linux 5.6.
    ///
    /// # Errors
    /// When the process has no descriptor free, or no thread can make the calls. The process has no
    /// more descriptors than before then.
    pub fn give_file(&mut self, file: BorrowedFd<'_>) -> Result<u32, Error> {
        let page = self.map(None, PAGE, Perms::READ | Perms::WRITE)?;
        let given = self.give_through(page, file);
        let unmapped = self.unmap(page, PAGE);
        let number = given?;
        unmapped.map(|()| number)
    }

    /// Maps an open file of ours, from its start, shared. Near an address if one is given, as
    /// [`map`](Self::map) does. The process keeps no descriptor of it.
    ///
    /// # Errors
    /// As [`give_file`](Self::give_file) and [`map`](Self::map).
    pub fn map_file(
        &mut self,
        file: BorrowedFd<'_>,
        near: Option<u64>,
        len: u64,
        perms: Perms,
    ) -> Result<u64, Error> {
        const SHARED: u64 = 1;
        let number = self.give_file(file)?;
        let mapped = self.map_with(near, len, perms, SHARED, u64::from(number));
        let closed = self.close(number);
        let address = mapped?;
        closed.map(|()| address)
    }

    /// Closes a descriptor of the process.
    ///
    /// # Errors
    /// When it is not open, or no thread can make the call.
    pub fn close(&mut self, number: u32) -> Result<(), Error> {
        self.call("close", libc::SYS_close as u64, [u64::from(number), 0, 0, 0, 0, 0]).map(drop)
    }

    fn give_through(&mut self, page: u64, file: BorrowedFd<'_>) -> Result<u32, Error> {
        let kind = (libc::SOCK_STREAM | libc::SOCK_CLOEXEC) as u64;
        let family = libc::AF_UNIX as u64;
        let socketpair = libc::SYS_socketpair as u64;
        self.call("socketpair", socketpair, [family, kind, 0, page + place::PAIR, 0, 0])?;
        let pair = self.words32(page + place::PAIR, 2)?;
        let received = self.receive(page, pair[0], pair[1], file);
        let closed = [self.close(pair[0]), self.close(pair[1])];
        let number = received?;
        closed.into_iter().collect::<Result<(), _>>().map(|()| number)
    }

    fn receive(
        &mut self,
        page: u64,
        theirs: u32,
        ours: u32,
        file: BorrowedFd<'_>,
    ) -> Result<u32, Error> {
        let pid = self.pid;
        let os = |call| move |errno| Error::Os { pid, call, errno };
        let socket = fetch(pid, ours)?;
        let files = [file];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&files));
        sendmsg(
            socket.as_fd(),
            &[IoSlice::new(&[0])],
            &mut control,
            SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
        )
        .map_err(os("sendmsg"))?;

        // `struct iovec` and `struct msghdr`: name, its length, vectors, control, flags.
        self.write_words(page + place::VECTOR, &[page + place::DATA, 1])?;
        let message = [0, 0, page + place::VECTOR, 1, page + place::CONTROL, CONTROL_SPACE, 0];
        self.write_words(page + place::MESSAGE, &message)?;
        let flags = (libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT) as u64;
        let recvmsg = libc::SYS_recvmsg as u64;
        self.call("recvmsg", recvmsg, [u64::from(theirs), page + place::MESSAGE, flags, 0, 0, 0])?;
        // `struct cmsghdr`: length, level, type; then the descriptor. It is missing if the process
        // has no number free.
        let [len, _, level, kind, number] = self.words32(page + place::CONTROL, 5)?[..] else {
            unreachable!("it was asked for five words")
        };
        let whole = u64::from(len) == CONTROL_LEN
            && level == libc::SOL_SOCKET as u32
            && kind == libc::SCM_RIGHTS as u32;
        if whole {
            Ok(number)
        } else {
            Err(Error::Call { pid, call: "recvmsg", errno: Errno::MFILE })
        }
    }

    fn words32(&self, address: u64, count: usize) -> Result<Vec<u32>, Error> {
        let bytes = self.read(address, count * 4)?;
        Ok(bytes
            .chunks_exact(4)
            .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
            .collect())
    }

    fn write_words(&mut self, address: u64, words: &[u64]) -> Result<(), Error> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.write(address, &bytes)
    }
}

/// A descriptor of ours for an open file of a process.
fn fetch(pid: u32, number: u32) -> Result<OwnedFd, Error> {
    let os = |call| move |errno| Error::Os { pid, call, errno };
    let id = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Error::NoProcess { pid })?;
    let process = pidfd_open(id, PidfdFlags::empty()).map_err(os("pidfd_open"))?;
    pidfd_getfd(process, number as i32, PidfdGetfdFlags::empty()).map_err(os("pidfd_getfd"))
}
