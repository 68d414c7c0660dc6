//! Network interfaces as ports: packet sockets, and TAP devices.
//!
//! * [`PacketSource`] receives all frames that come in on an interface, by a ring that is shared
//!   with the kernel (`TPACKET_V3`); [`PacketSink`] sends by `sendmmsg(2)`. They need root or
//!   `CAP_NET_RAW`.
//! * [`StackSink`] has the kernel receive frames on any interface, and [`machine`] does with frames what
//!   becomes of those that a driver receives.
//! * [`xdp`] receives and sends by `AF_XDP`, past the kernel's stack.
//! * [`Tap`] is a device of its own (`/dev/net/tun`): what the kernel sends there is received, what
//!   is sent the kernel receives.
//!
//! An interface that goes down or away is [`PortError::Down`].

mod machine;
mod packet_sink;
mod packet_source;
mod stack_sink;
mod sys;
mod tap;
pub mod xdp;

pub use machine::machine;
pub use packet_sink::PacketSink;
pub use packet_source::PacketSource;
pub use stack_sink::StackSink;
pub use sys::{index_of, name_of};
pub use tap::Tap;

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::error::PortError;

/// Waits until there is something to read, or the end of it, at most as long as given; tells whether
/// there is.
pub(super) fn is_readable(fd: BorrowedFd<'_>, wait: Duration) -> io::Result<bool> {
    Ok(sys::wait(fd, libc::POLLIN, wait)? != 0)
}

/// The time, for frames that come without one.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or_default()
}

/// Makes the error of a system call on an interface.
fn failed(name: &str, call: &'static str) -> impl Fn(io::Error) -> PortError {
    move |source| {
        let name = name.to_owned();
        match source.raw_os_error() {
            Some(libc::ENETDOWN | libc::ENODEV | libc::ENXIO) => PortError::Down { name },
            Some(libc::EPERM | libc::EACCES) => PortError::NotAllowed { name, call },
            _ => PortError::Call { name, call, source },
        }
    }
}
