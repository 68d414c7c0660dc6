//! TAP devices: the kernel's other side of an interface is a file.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::time::Duration;

use super::sys;
use super::{failed, now};
use crate::port::batch::{Batch, Meta};
use crate::port::error::PortError;
use crate::port::sink::{Sent, Sink};
use crate::port::source::{Received, Source};

/// Ethernet header with a VLAN tag.
const HEADER: usize = 18;
/// How long a full device may take until there is room again.
const WAIT: Duration = Duration::from_millis(100);

/// A TAP device, which is there as long as this or a clone of it. What the kernel sends on the
/// interface is received, what is sent the kernel receives.
#[derive(Clone, Debug)]
pub struct Tap {
    file: Arc<File>,
    name: Arc<str>,
    index: u32,
    most: usize,
}

impl Tap {
    /// Makes a device with this name in the thread's network namespace, or opens the one that is
    /// there and that nobody has open; sets it up.
    ///
    /// # Errors
    /// When that is not allowed, or the name is no name of an interface.
    pub fn open(name: &str) -> Result<Self, PortError> {
        // As the kernel has it (`dev_valid_name`).
        let possible = (1..libc::IFNAMSIZ).contains(&name.len())
            && !matches!(name, "." | "..")
            && !name.contains(|c: char| matches!(c, '/' | ':') || c.is_whitespace());
        if !possible {
            return Err(PortError::TapName { name: name.to_owned() });
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(libc::O_NONBLOCK);
        let file = options.open("/dev/net/tun").map_err(failed(name, "open"))?;
        sys::attach_tap(file.as_fd(), name).map_err(failed(name, "ioctl"))?;
        let socket =
            sys::socket(libc::AF_INET, libc::SOCK_DGRAM, 0).map_err(failed(name, "socket"))?;
        sys::set_up(socket.as_fd(), name).map_err(failed(name, "ioctl"))?;
        let mtu = sys::mtu(socket.as_fd(), name).map_err(failed(name, "ioctl"))?;
        let index =
            sys::index_of(name).ok_or_else(|| PortError::NoInterface { name: name.to_owned() })?;
        let most = mtu as usize + HEADER;
        Ok(Self { file: Arc::new(file), name: Arc::from(name), index, most })
    }

    /// Returns the number of the interface.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    fn failed(&self, call: &'static str, error: io::Error) -> PortError {
        // What reads and writes say when the interface is down or removed.
        match error.raw_os_error() {
            Some(libc::EIO | libc::EBADFD) => PortError::Down { name: self.name.to_string() },
            _ => failed(&self.name, call)(error),
        }
    }
}

impl Source for Tap {
    fn receive(&mut self, batch: &mut Batch, wait: Duration) -> Result<Received, PortError> {
        let before = batch.len();
        loop {
            let meta = Meta { ns: now(), wire_len: 0, port: self.index, queue: 0 };
            let Some(room) = batch.reserve(meta, self.most) else { return Ok(Received::Frames) };
            match (&*self.file).read(room) {
                Ok(n) => {
                    batch.shorten_last(n);
                    continue;
                }
                Err(e) => {
                    batch.pop();
                    match e.kind() {
                        ErrorKind::Interrupted => continue,
                        ErrorKind::WouldBlock => {}
                        _ => return Err(self.failed("read", e)),
                    }
                }
            }
            if batch.len() > before {
                return Ok(Received::Frames);
            }
            let ready = sys::wait(self.file.as_fd(), libc::POLLIN, wait);
            let ready = ready.map_err(failed(&self.name, "poll"))?;
            if ready & libc::POLLIN == 0 {
                if ready & (libc::POLLERR | libc::POLLHUP | libc::POLLNVAL) != 0 {
                    return Err(PortError::Down { name: self.name.to_string() });
                }
                return Ok(Received::Nothing);
            }
        }
    }
}

impl Sink for Tap {
    fn send_counted(
        &mut self,
        batch: &Batch,
        frames: &[u16],
        sent: &mut Sent,
    ) -> Result<(), PortError> {
        for frame in frames.iter().filter_map(|index| batch.frame(usize::from(*index))) {
            let mut waited = false;
            loop {
                match (&*self.file).write(frame.bytes) {
                    Ok(_) => sent.took(frame.bytes.len()),
                    Err(e) => match e.raw_os_error() {
                        Some(libc::EINTR) => continue,
                        Some(libc::EAGAIN) if !waited => {
                            waited = true;
                            sys::wait(self.file.as_fd(), libc::POLLOUT, WAIT)
                                .map_err(failed(&self.name, "poll"))?;
                            continue;
                        }
                        Some(libc::EAGAIN | libc::ENOBUFS) => sent.ring_full += 1,
                        Some(libc::EINVAL) if frame.bytes.len() < 14 => sent.too_short += 1,
                        Some(libc::EINVAL | libc::EMSGSIZE) => sent.too_large += 1,
                        _ => return Err(self.failed("write", e)),
                    },
                }
                break;
            }
        }
        Ok(())
    }
}
