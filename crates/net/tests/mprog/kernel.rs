//! The running kernel's list, on `lo` of an own network namespace.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use skep_isa::ProgramType;
use skep_net::chain::mprog::Flags;
use skep_testkit::skip;

use crate::{Change, How, Place, Program, Relative};

const PROG_LOAD: i64 = 5;
const PROG_ATTACH: i64 = 8;
const PROG_DETACH: i64 = 9;
const OBJ_GET_INFO_BY_FD: i64 = 15;
const PROG_QUERY: i64 = 16;
const LINK_CREATE: i64 = 28;
const LINK_UPDATE: i64 = 29;
const LINK_DETACH: i64 = 34;
const TCX_INGRESS: u32 = 46;
/// `lo`, in a network namespace without other interfaces.
const LOOPBACK: u32 = 1;

fn bpf(command: i64, attr: &mut [u64; 16]) -> Result<i32, i32> {
    let size = size_of_val(attr);
    // SAFETY: the kernel reads and writes the attribute, and what the addresses in it point to.
    let done = unsafe { libc::syscall(libc::SYS_bpf, command, attr.as_mut_ptr(), size) };
    i32::try_from(done)
        .ok()
        .filter(|n| *n >= 0)
        .ok_or_else(|| std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
}

fn two(low: u32, high: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

/// What the kernel has just made.
fn owned(fd: i32) -> OwnedFd {
    // SAFETY: the caller has it from the kernel and keeps no other.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// The id of a program or link.
fn id(fd: &OwnedFd) -> Result<u32, i32> {
    let (mut info, mut attr) = ([0_u64; 32], [0; 16]);
    attr[0] = two(number(fd), 256);
    attr[1] = info.as_mut_ptr().expose_provenance() as u64;
    bpf(OBJ_GET_INFO_BY_FD, &mut attr)?;
    Ok((info[0] >> 32) as u32)
}

fn number(fd: &OwnedFd) -> u32 {
    fd.as_raw_fd() as u32
}

impl Program {
    /// Loads one that says 0.
    pub(crate) fn load(prog_type: ProgramType) -> Result<Self, i32> {
        let (insns, license) = ([0xb7_u64, 0x95], c"GPL");
        let mut attr = [0; 16];
        attr[0] = two(prog_type as u32, 2);
        attr[1] = insns.as_ptr().expose_provenance() as u64;
        attr[2] = license.as_ptr().expose_provenance() as u64;
        let fd = owned(bpf(PROG_LOAD, &mut attr)?);
        Ok(Self { id: id(&fd)?, fd: Some(fd), prog_type })
    }

    fn number(&self) -> u32 {
        self.fd.as_ref().map_or(0, number)
    }
}

/// The kernel's list.
pub(crate) struct Kernel {
    links: BTreeMap<u32, (OwnedFd, u32)>,
}

impl Kernel {
    /// Moves this thread into a network namespace of its own; `None`, and says why, where that or tcx
    /// is not to be had. The list is empty.
    pub(crate) fn new() -> Option<Self> {
        if skep_kernel::enter_namespaces(false).is_err() {
            skip("root, for a network namespace");
            return None;
        }
        let Ok(program) = Program::load(ProgramType::SchedCls) else {
            skip("a kernel that loads BPF programs");
            return None;
        };
        let mut kernel = Self { links: BTreeMap::new() };
        let tried = kernel
            .change(&Change::Attach(&program, How::default()))
            .and_then(|()| kernel.change(&Change::Detach(Some(&program), How::default())));
        match tried {
            Ok(()) => Some(kernel),
            Err(errno) => {
                skip(&format!("a kernel with tcx (errno {errno})"));
                None
            }
        }
    }

    /// Closes a link's only descriptor.
    pub(crate) fn close(&mut self, link: u32) {
        self.links.remove(&link);
    }

    fn link(&self, number: u32) -> u32 {
        self.links.get(&number).map_or(0, |(fd, _)| self::number(fd))
    }

    fn relative(&self, how: &How<'_>) -> u32 {
        let by_id = how.flags.contains(Flags::ID);
        match how.relative {
            None => 0,
            Some(Relative::Program(program)) if by_id => program.id,
            Some(Relative::Program(program)) => program.number(),
            Some(Relative::Link(link)) if by_id => self.links.get(&link).map_or(0, |(_, id)| *id),
            Some(Relative::Link(link)) => self.link(link),
        }
    }

    fn of_program(&self, command: i64, program: u32, how: &How<'_>) -> Result<(), i32> {
        let mut attr = [0; 16];
        attr[0] = two(LOOPBACK, program);
        attr[1] = two(TCX_INGRESS, how.flags.bits());
        attr[2] = two(how.replace.map_or(0, Program::number), self.relative(how));
        attr[3] = how.revision;
        bpf(command, &mut attr).map(drop)
    }
}

impl Place for Kernel {
    fn change(&mut self, change: &Change<'_>) -> Result<(), i32> {
        let mut attr = [0; 16];
        match change {
            Change::Attach(program, how) => self.of_program(PROG_ATTACH, program.number(), how),
            Change::Detach(program, how) => {
                self.of_program(PROG_DETACH, program.map_or(0, Program::number), how)
            }
            Change::Link(link, program, how) => {
                attr[0] = two(program.number(), LOOPBACK);
                attr[1] = two(TCX_INGRESS, how.flags.bits());
                attr[2] = two(self.relative(how), 0);
                attr[3] = how.revision;
                let fd = owned(bpf(LINK_CREATE, &mut attr)?);
                let id = id(&fd)?;
                self.links.insert(*link, (fd, id));
                Ok(())
            }
            Change::Update(link, program, old) => {
                let replace = if old.is_some() { Flags::REPLACE } else { Flags::empty() };
                attr[0] = two(self.link(*link), program.number());
                attr[1] = two(replace.bits(), old.map_or(0, Program::number));
                bpf(LINK_UPDATE, &mut attr).map(drop)
            }
            Change::Unlink(link) => {
                attr[0] = two(self.link(*link), 0);
                bpf(LINK_DETACH, &mut attr).map(drop)
            }
        }
    }

    fn there(&self) -> (Vec<u32>, u64) {
        let (mut ids, mut attr) = ([0_u32; 64], [0; 16]);
        attr[0] = two(LOOPBACK, TCX_INGRESS);
        attr[2] = ids.as_mut_ptr().expose_provenance() as u64;
        attr[3] = 64;
        match bpf(PROG_QUERY, &mut attr) {
            Ok(_) => (ids[..attr[3] as u32 as usize].to_vec(), attr[7]),
            // There is no list.
            Err(libc::ENOENT) => (Vec::new(), 1),
            Err(errno) => panic!("query: errno {errno}"),
        }
    }
}
