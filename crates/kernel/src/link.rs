//! Programs attached by links: XDP programs to interfaces, others to instructions of processes.

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};

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
    /// In the device (`XDP_FLAGS_HW_MODE`).
    Offload,
}

/// `BPF_LINK_TYPE_XDP`.
const XDP: u32 = 6;
/// `BPF_F_REPLACE`, for updates of links.
const REPLACE: u32 = 1 << 2;

/// A program that is attached as long as this or a pin of it lives.
#[derive(Debug)]
pub struct Link {
    fd: OwnedFd,
}

/// What the kernel tells of a link of an XDP program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct LinkInfo {
    /// The link's id.
    pub id: u32,
    /// The program's id.
    pub program: u32,
    /// The interface; 0 when it is gone, or the link was detached.
    pub ifindex: u32,
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
            XdpMode::Offload => 1 << 3,
        };
        let attr = attr::LinkCreate {
            prog_fd: program.fd() as u32,
            target_ifindex: ifindex,
            attach_type: AttachType::Xdp as u32,
            flags,
        };
        sys::create_link(attr).map(|fd| Self { fd })
    }

    /// Attaches a program of type `kprobe`, loaded for [`AttachType::TraceUprobeMulti`], to
    /// instructions of a file, at these offsets in it, in all processes that execute them.
    ///
    /// # Errors
    /// The kernel refuses: `EINVAL` of kernels before 6.6, which cannot.
    pub fn uprobes(program: &Program, path: &CStr, offsets: &[u64]) -> Result<Self> {
        let attr = attr::LinkCreate {
            prog_fd: program.fd() as u32,
            attach_type: AttachType::TraceUprobeMulti as u32,
            ..Default::default()
        };
        sys::create_uprobe_link(attr, path, offsets).map(|fd| Self { fd })
    }

    /// Opens a link that is pinned under a path; `None` when something else is.
    ///
    /// # Errors
    /// `ENOENT` when there is nothing, else the kernel's errno.
    pub fn pinned(path: &CStr) -> Result<Option<Self>> {
        let fd = sys::open_pin(path, 0)?;
        Ok(sys::is_kind(fd.as_fd(), "bpf-link")?.then_some(Self { fd }))
    }

    /// Pins the link under a path in a bpf file system: the program stays attached without this
    /// process.
    ///
    /// # Errors
    /// `EEXIST` when there is something, else the kernel's errno.
    pub fn pin(&self, path: &CStr) -> Result {
        sys::pin(self.fd.as_fd(), path)
    }

    /// Puts another program in place of the one that is attached, if that is `old`. A packet sees
    /// one or the other.
    ///
    /// # Errors
    /// `EPERM` when another program than `old` is attached, `ENOLINK` when the link was detached or
    /// the interface is gone, else the kernel's errno.
    pub fn update(&self, program: &Program, old: Option<&Program>) -> Result {
        use std::os::fd::AsRawFd;
        sys::update_link(attr::LinkUpdate {
            link_fd: self.fd.as_raw_fd() as u32,
            new_prog_fd: program.fd() as u32,
            flags: if old.is_some() { REPLACE } else { 0 },
            old_prog_fd: old.map_or(0, |old| old.fd() as u32),
        })
    }

    /// Detaches the program, also while pins remain. A second time is no error.
    ///
    /// # Errors
    /// The kernel's errno.
    pub fn detach(&self) -> Result {
        sys::detach_link(self.fd.as_fd())
    }

    /// Asks what the kernel knows of the link; `None` when it is not of an XDP program.
    ///
    /// # Errors
    /// The kernel's errno.
    pub fn info(&self) -> Result<Option<LinkInfo>> {
        let info = sys::link_info(self.fd.as_fd())?;
        let told = LinkInfo { id: info.id, program: info.prog_id, ifindex: info.ifindex };
        Ok((info.link_type == XDP).then_some(told))
    }
}
