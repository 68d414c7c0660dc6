//! Programs attached by links: XDP programs to interfaces.

use std::os::fd::OwnedFd;

use skep_isa::AttachType;

use crate::attr;
use crate::error::Result;
use crate::prog::Program;
use crate::sys;

/// Where on the way of a packet an XDP program runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum XdpMode {
    /// In the driver if it can, else generic.
    #[default]
    Any,
    /// Behind the driver (`XDP_FLAGS_SKB_MODE`).
    Generic,
    /// In the driver (`XDP_FLAGS_DRV_MODE`).
    Native,
}

/// A program that is attached as long as this lives.
#[derive(Debug)]
pub struct Link {
    _fd: OwnedFd,
}

impl Link {
    /// Attaches an XDP program to an interface of the thread's network namespace.
    ///
    /// # Errors
    /// The kernel refuses: `EBUSY` when the interface has a program already.
    pub fn xdp(program: &Program, ifindex: u32, mode: XdpMode) -> Result<Self> {
        let flags = match mode {
            XdpMode::Any => 0,
            XdpMode::Generic => 1 << 1,
            XdpMode::Native => 1 << 2,
        };
        let attr = attr::LinkCreate {
            prog_fd: program.fd() as u32,
            target_ifindex: ifindex,
            attach_type: AttachType::Xdp as u32,
            flags,
        };
        sys::create_link(attr).map(|fd| Self { _fd: fd })
    }
}
