//! The system calls of interfaces as safe functions.
//!
//! Rules of this leaf: what the kernel reads or writes is borrowed for the call, with its length;
//! memory that is shared with the kernel is only read by volatile loads and copies inside its
//! bounds, and never behind a reference, but for atomics.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use crate::port::batch::MAX_FRAMES;

/// Types of which every pattern of bits is a value, without padding.
///
/// # Safety
/// That is so.
pub(super) unsafe trait Plain: Copy {}

// SAFETY: numbers.
unsafe impl Plain for i32 {}
// SAFETY: three numbers of 32 bits.
unsafe impl Plain for libc::tpacket_stats_v3 {}
// SAFETY: seven numbers of 32 bits.
unsafe impl Plain for libc::tpacket_req3 {}
// SAFETY: numbers of 32 and 16 bits and eight bytes, 16 bytes together.
unsafe impl Plain for libc::packet_mreq {}
// SAFETY: two numbers of 64 bits and four of 32.
unsafe impl Plain for libc::xdp_umem_reg {}
// SAFETY: sixteen numbers of 64 bits.
unsafe impl Plain for libc::xdp_mmap_offsets {}
// SAFETY: six numbers of 64 bits.
unsafe impl Plain for libc::xdp_statistics {}

fn check(done: i32) -> io::Result<i32> {
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(done) }
}

/// Opens a raw socket that never waits.
pub(super) fn socket(domain: i32, kind: i32, protocol: i32) -> io::Result<OwnedFd> {
    let kind = kind | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: numbers only; the descriptor that comes back is new and has no other owner.
    unsafe { check(libc::socket(domain, kind, protocol)).map(|fd| OwnedFd::from_raw_fd(fd)) }
}

/// Sets an option of a socket.
pub(super) fn set_option<T: Plain>(
    fd: BorrowedFd<'_>,
    level: i32,
    option: i32,
    value: &T,
) -> io::Result<()> {
    let value = std::ptr::from_ref(value).cast();
    let len = size_of::<T>() as u32;
    // SAFETY: `len` bytes lie at `value`, which is borrowed for the call.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, value, len) }).map(drop)
}

/// Reads an option of a socket into a value.
pub(super) fn option<T: Plain>(
    fd: BorrowedFd<'_>,
    level: i32,
    option: i32,
    value: &mut T,
) -> io::Result<()> {
    let mut len = size_of::<T>() as u32;
    let value = std::ptr::from_mut(value).cast();
    // SAFETY: the kernel writes at most `len` bytes to `value`, which is borrowed for the call and
    // may have any bits.
    check(unsafe { libc::getsockopt(fd.as_raw_fd(), level, option, value, &raw mut len) }).map(drop)
}

/// Binds a packet socket to an interface; protocol 0 receives nothing.
pub(super) fn bind(fd: BorrowedFd<'_>, index: u32, protocol: u16) -> io::Result<()> {
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: protocol.to_be(),
        sll_ifindex: index as i32,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    let len = size_of_val(&address) as u32;
    // SAFETY: the address is that of a packet socket, and lives during the call.
    check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len) }).map(drop)
}

/// Takes the error that a socket has, if any.
pub(super) fn take_error(fd: BorrowedFd<'_>) -> io::Result<()> {
    let mut errno = 0;
    option(fd, libc::SOL_SOCKET, libc::SO_ERROR, &mut errno)?;
    if errno == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(errno)) }
}

/// Makes memory that of a socket for `AF_XDP`, in chunks of these many bytes. The kernel keeps its
/// pages as long as the socket lives, also when the mapping goes before.
pub(super) fn register_umem(fd: BorrowedFd<'_>, memory: &Mapping, chunk: u32) -> io::Result<()> {
    let request = libc::xdp_umem_reg {
        addr: memory.at as u64,
        len: memory.len as u64,
        chunk_size: chunk,
        headroom: 0,
        flags: 0,
        tx_metadata_len: 0,
    };
    set_option(fd, libc::SOL_XDP, libc::XDP_UMEM_REG, &request)
}

/// Where the parts of a ring lie in its mapping.
#[derive(Clone, Copy, Debug)]
pub(super) struct RingOffsets {
    pub(super) producer: u64,
    pub(super) consumer: u64,
    pub(super) entries: u64,
    pub(super) flags: u64,
}

/// The rings of a socket for `AF_XDP`.
#[derive(Clone, Copy, Debug)]
pub(super) struct AllRings {
    pub(super) receive: RingOffsets,
    pub(super) send: RingOffsets,
    pub(super) fill: RingOffsets,
    pub(super) completion: RingOffsets,
}

/// Asks where the parts of the rings lie.
pub(super) fn ring_offsets(fd: BorrowedFd<'_>) -> io::Result<AllRings> {
    const NONE: libc::xdp_ring_offset =
        libc::xdp_ring_offset { producer: 0, consumer: 0, desc: 0, flags: 0 };
    let mut all = libc::xdp_mmap_offsets { rx: NONE, tx: NONE, fr: NONE, cr: NONE };
    option(fd, libc::SOL_XDP, libc::XDP_MMAP_OFFSETS, &mut all)?;
    let offsets = |of: libc::xdp_ring_offset| RingOffsets {
        producer: of.producer,
        consumer: of.consumer,
        entries: of.desc,
        flags: of.flags,
    };
    Ok(AllRings {
        receive: offsets(all.rx),
        send: offsets(all.tx),
        fill: offsets(all.fr),
        completion: offsets(all.cr),
    })
}

/// Asks what a socket for `AF_XDP` has counted.
pub(super) fn xdp_statistics(fd: BorrowedFd<'_>) -> io::Result<libc::xdp_statistics> {
    let mut stats = libc::xdp_statistics {
        rx_dropped: 0,
        rx_invalid_descs: 0,
        tx_invalid_descs: 0,
        rx_ring_full: 0,
        rx_fill_ring_empty_descs: 0,
        tx_ring_empty_descs: 0,
    };
    option(fd, libc::SOL_XDP, libc::XDP_STATISTICS, &mut stats)?;
    Ok(stats)
}

/// Binds a socket for `AF_XDP` to a queue of an interface.
pub(super) fn bind_xdp(fd: BorrowedFd<'_>, index: u32, queue: u32, flags: u16) -> io::Result<()> {
    let address = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: flags,
        sxdp_ifindex: index,
        sxdp_queue_id: queue,
        sxdp_shared_umem_fd: 0,
    };
    let len = size_of_val(&address) as u32;
    // SAFETY: the address is that of an XDP socket, and lives during the call.
    check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len) }).map(drop)
}

/// Tells a socket for `AF_XDP` that there are frames to send.
pub(super) fn kick(fd: BorrowedFd<'_>) -> io::Result<()> {
    let (fd, flags) = (fd.as_raw_fd(), libc::MSG_DONTWAIT);
    // SAFETY: no bytes and no address.
    let sent = unsafe { libc::sendto(fd, std::ptr::null(), 0, flags, std::ptr::null(), 0) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Asks a socket for `AF_XDP` to receive, which says nothing of frames: it fails when the interface is
/// down or gone.
pub(super) fn poke(fd: BorrowedFd<'_>) -> io::Result<()> {
    let (fd, flags, none) = (fd.as_raw_fd(), libc::MSG_DONTWAIT, std::ptr::null_mut());
    // SAFETY: no bytes and no address.
    let done = unsafe { libc::recvfrom(fd, none, 0, flags, none.cast(), none.cast()) };
    match check(i32::try_from(done).unwrap_or(0)) {
        Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY | libc::EINTR)) => {
            Ok(())
        }
        done => done.map(drop),
    }
}

/// Finds the number of an interface; `None` when there is none of that name.
#[must_use]
pub fn index_of(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    // SAFETY: the name ends with a zero.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => None,
        index => Some(index),
    }
}

/// Finds the name of an interface; `None` when there is none of that number.
#[must_use]
pub fn name_of(index: u32) -> Option<String> {
    let mut name = [0; libc::IF_NAMESIZE];
    // SAFETY: the name has the room that the call takes, and ends with a zero when it comes back.
    let found = unsafe { libc::if_indextoname(index, name.as_mut_ptr().cast()) };
    if found.is_null() {
        return None;
    }
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    Some(String::from_utf8_lossy(name).into_owned())
}

/// `struct ifreq`: a name, and what is asked or told.
#[repr(C)]
struct Request {
    name: [u8; 16],
    value: [u8; 24],
}

impl Request {
    fn new(name: &str) -> io::Result<Self> {
        let mut request = Self { name: [0; 16], value: [0; 24] };
        let fits = name.len() < request.name.len() && !name.is_empty();
        if !fits || name.contains(['\0', '/']) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        request.name.iter_mut().zip(name.bytes()).for_each(|(to, from)| *to = from);
        Ok(request)
    }

    fn value(&self) -> i32 {
        self.value.first_chunk().map_or(0, |bytes| i32::from_ne_bytes(*bytes))
    }

    fn with_flags(mut self, flags: i16) -> Self {
        let bytes = flags.to_ne_bytes();
        self.value.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
        self
    }

    fn call(&mut self, fd: BorrowedFd<'_>, request: libc::Ioctl) -> io::Result<()> {
        // SAFETY: all requests of this file take a `struct ifreq`, which has 40 bytes.
        check(unsafe { libc::ioctl(fd.as_raw_fd(), request, std::ptr::from_mut(self)) }).map(drop)
    }
}

/// Asks for the MTU of an interface.
pub(super) fn mtu(socket: BorrowedFd<'_>, name: &str) -> io::Result<u32> {
    let mut request = Request::new(name)?;
    request.call(socket, libc::SIOCGIFMTU)?;
    Ok(u32::try_from(request.value()).unwrap_or_default())
}

fn flags(socket: BorrowedFd<'_>, name: &str) -> io::Result<i16> {
    let mut request = Request::new(name)?;
    request.call(socket, libc::SIOCGIFFLAGS)?;
    Ok(request.value() as i16)
}

/// Tells whether an interface is connected to another one, or to a network.
pub(super) fn is_running(socket: BorrowedFd<'_>, name: &str) -> bool {
    flags(socket, name).is_ok_and(|flags| flags & libc::IFF_RUNNING as i16 != 0)
}

/// Lets an interface send and receive.
pub(super) fn set_up(socket: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    let flags = flags(socket, name)? | libc::IFF_UP as i16;
    Request::new(name)?.with_flags(flags).call(socket, libc::SIOCSIFFLAGS)
}

/// Makes an open `/dev/net/tun` the end of a TAP device.
pub(super) fn attach_tap(fd: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    let flags = libc::IFF_TAP as i16 | libc::IFF_NO_PI as i16;
    Request::new(name)?.with_flags(flags).call(fd, libc::TUNSETIFF)
}

/// Waits until a descriptor is ready, at most as long as given; returns what it is ready for.
pub(super) fn wait(fd: BorrowedFd<'_>, events: i16, wait: Duration) -> io::Result<i16> {
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 };
    let ms = i32::try_from(wait.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: one structure, which lives during the call.
    match check(unsafe { libc::poll(&raw mut poll, 1, ms) }) {
        Ok(_) => Ok(poll.revents),
        Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(0),
        Err(e) => Err(e),
    }
}

/// Memory that is shared with the kernel.
#[derive(Debug)]
pub(super) struct Mapping {
    at: *mut u8,
    len: usize,
}

// SAFETY: the mapping is this value's own, wherever that is; its memory is only accessed as the
// rules of this leaf say.
unsafe impl Send for Mapping {}
// SAFETY: as above. Two threads that copy to and from the same bytes may find a mixture, as they may
// with the kernel on the other side; nothing depends on it.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the memory of a socket.
    pub(super) fn new(fd: BorrowedFd<'_>, len: usize, offset: i64) -> io::Result<Self> {
        let (prot, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
        // SAFETY: a mapping at a place that the kernel chooses, which nothing has.
        let at =
            unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, fd.as_raw_fd(), offset) };
        if at == libc::MAP_FAILED {
            Err(io::Error::last_os_error())
        } else {
            Ok(Self { at: at.cast(), len })
        }
    }

    /// Maps empty pages.
    pub(super) fn anonymous(len: usize) -> io::Result<Self> {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
        // SAFETY: a mapping at a place that the kernel chooses, which nothing has.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            Err(io::Error::last_os_error())
        } else {
            Ok(Self { at: at.cast(), len })
        }
    }

    /// The address of `len` bytes at an offset; `None` when they are not all inside.
    #[inline]
    fn at(&self, offset: usize, len: usize) -> Option<*mut u8> {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        inside.then(|| self.at.wrapping_add(offset))
    }

    /// A word that both sides change.
    #[inline]
    pub(super) fn atomic(&self, offset: usize) -> Option<&AtomicU32> {
        let at = self.at(offset, 4).filter(|_| offset.is_multiple_of(4))?;
        // SAFETY: four bytes of the mapping, aligned, which lives as long as the borrow; both sides
        // use atomic operations.
        Some(unsafe { AtomicU32::from_ptr(at.cast()) })
    }

    /// Loads a number; 0 outside of the mapping.
    #[inline]
    pub(super) fn u32(&self, offset: usize) -> u32 {
        // SAFETY: inside the mapping.
        self.at(offset, 4).map_or(0, |at| unsafe { at.cast::<u32>().read_unaligned() })
    }

    /// Loads a number of two bytes; 0 outside of the mapping.
    #[inline]
    pub(super) fn u16(&self, offset: usize) -> u16 {
        // SAFETY: inside the mapping.
        self.at(offset, 2).map_or(0, |at| unsafe { at.cast::<u16>().read_unaligned() })
    }

    /// Loads a number of eight bytes; 0 outside of the mapping.
    #[inline]
    pub(super) fn u64(&self, offset: usize) -> u64 {
        // SAFETY: inside the mapping.
        self.at(offset, 8).map_or(0, |at| unsafe { at.cast::<u64>().read_unaligned() })
    }

    /// Stores a number of eight bytes; does nothing outside of the mapping.
    #[inline]
    pub(super) fn set_u64(&self, offset: usize, value: u64) {
        if let Some(at) = self.at(offset, 8) {
            // SAFETY: inside the mapping.
            unsafe { at.cast::<u64>().write_unaligned(value) }
        }
    }

    /// Copies bytes in; `false` when they would not all be inside.
    #[inline]
    pub(super) fn copy_in(&self, offset: usize, from: &[u8]) -> bool {
        let Some(at) = self.at(offset, from.len()) else { return false };
        // SAFETY: inside the mapping, which is no memory of Rust's.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), at, from.len()) };
        true
    }

    /// Copies bytes out; `false` when they are not all inside.
    #[inline]
    pub(super) fn copy_out(&self, offset: usize, to: &mut [u8]) -> bool {
        let Some(at) = self.at(offset, to.len()) else { return false };
        // SAFETY: inside the mapping, which is no memory of Rust's; `to` has as many bytes.
        unsafe { std::ptr::copy_nonoverlapping(at, to.as_mut_ptr(), to.len()) };
        true
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and no borrow of it is left.
        unsafe { libc::munmap(self.at.cast(), self.len) };
    }
}

/// Room for the structures of `sendmmsg(2)`.
pub(super) struct Messages {
    headers: Box<[libc::mmsghdr]>,
    vectors: Box<[libc::iovec]>,
}

// SAFETY: the addresses in it are only used during a call that sets them.
unsafe impl Send for Messages {}

impl Messages {
    pub(super) fn new() -> Self {
        let vector = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        // SAFETY: a structure of numbers and addresses, for which zero is nothing.
        let header: libc::mmsghdr = unsafe { std::mem::zeroed() };
        Self { headers: vec![header; MAX_FRAMES].into(), vectors: vec![vector; MAX_FRAMES].into() }
    }

    /// Sends frames, of which at most [`MAX_FRAMES`] are looked at; returns how many of the first
    /// ones were.
    pub(super) fn send(&mut self, fd: BorrowedFd<'_>, frames: &[&[u8]]) -> io::Result<usize> {
        let mut count = 0;
        let each = self.headers.iter_mut().zip(self.vectors.iter_mut()).zip(frames);
        for ((header, vector), frame) in each {
            vector.iov_base = frame.as_ptr().cast_mut().cast();
            vector.iov_len = frame.len();
            header.msg_hdr.msg_iov = vector;
            header.msg_hdr.msg_iovlen = 1;
            count += 1;
        }
        let headers = self.headers.as_mut_ptr();
        // SAFETY: `count` headers were set above, each to one vector of bytes that are borrowed; the
        // kernel only reads these.
        let sent = unsafe { libc::sendmmsg(fd.as_raw_fd(), headers, count, libc::MSG_DONTWAIT) };
        check(sent).map(|sent| sent as usize)
    }
}
