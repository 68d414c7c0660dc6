//! What packet programs ask about interfaces: `bpf_check_mtu`. Interfaces are those of the machine,
//! asked by system calls.

use std::mem::MaybeUninit;

use skep_isa::ctx::sk_buff as field;

use skep_helpers::packet::View;
use skep_helpers::{errno, fail};
use skep_sys::syscall::{CLOSE, IOCTL, OPENAT, READ, SOCKET, call4};

/// `struct ifreq`: a name, and what is asked.
#[repr(C, align(8))]
pub(crate) struct Request([MaybeUninit<u8>; 40]);

const NAME: usize = 16;

impl Request {
    fn at(&mut self) -> *mut u8 {
        self.0.as_mut_ptr().cast()
    }

    /// Asks for the name of an interface; `None` when there is no such interface.
    pub(crate) fn of(ifindex: u32, socket: u64) -> Option<Self> {
        const SIOCGIFNAME: u64 = 0x8910;
        let mut request = Self([const { MaybeUninit::uninit() }; 40]);
        // SAFETY: the structure is 40 bytes; the call writes the name.
        unsafe {
            request.at().add(NAME).cast::<u32>().write_volatile(ifindex);
            (call4(IOCTL, socket, SIOCGIFNAME, request.at() as u64, 0) == 0).then_some(request)
        }
    }

    pub(crate) fn mtu(&mut self, socket: u64) -> Option<u32> {
        const SIOCGIFMTU: u64 = 0x8921;
        // SAFETY: as above; the call writes a number behind the name.
        unsafe {
            let done = call4(IOCTL, socket, SIOCGIFMTU, self.at() as u64, 0) == 0;
            done.then(|| self.at().add(NAME).cast::<u32>().read_volatile())
        }
    }

    pub(crate) fn hardware_address(&mut self, socket: u64) -> Option<[u8; 6]> {
        const SIOCGIFHWADDR: u64 = 0x8927;
        /// A `struct sockaddr` begins with the family.
        const ADDRESS: usize = NAME + 2;
        // SAFETY: as above; the call writes an address of the interface behind the name.
        unsafe {
            let done = call4(IOCTL, socket, SIOCGIFHWADDR, self.at() as u64, 0) == 0;
            done.then(|| self.at().add(ADDRESS).cast::<[u8; 6]>().read_volatile())
        }
    }

    /// Tells whether packets of a family may pass from this interface to others.
    pub(crate) fn forwards(&mut self, family: &[u8; 4]) -> bool {
        const AT_FDCWD: u64 = -100_i64 as u64;
        let mut path = MaybeUninit::<[u8; 64]>::uninit();
        let path = path.as_mut_ptr().cast::<u8>();
        let mut len = 0;
        // SAFETY: 14 + 4 + 6 + at most 16 + 12 bytes fit; the name was written by the kernel.
        unsafe {
            let mut push = |text: &[u8]| {
                for b in text {
                    path.add(len).write_volatile(*b);
                    len += 1;
                }
            };
            push(b"/proc/sys/net/");
            push(family);
            push(b"/conf/");
            for i in 0..NAME {
                match self.at().add(i).read_volatile() {
                    0 => break,
                    b => push(&[b]),
                }
            }
            push(b"/forwarding\0");
            let fd = call4(OPENAT, AT_FDCWD, path as u64, 0x80000, 0);
            if (fd as i64) < 0 {
                return false;
            }
            let mut text = 0_u64;
            call4(READ, fd, (&raw mut text) as u64, 1, 0);
            call4(CLOSE, fd, 0, 0, 0);
            std::hint::black_box(text) as u8 == b'1'
        }
    }
}

/// Does something with a socket to ask through.
pub(crate) fn with_socket<T>(f: impl FnOnce(u64) -> T) -> Option<T> {
    const AF_INET: u64 = 2;
    const DGRAM_CLOEXEC: u64 = 2 | 0x80000;
    // SAFETY: numbers only.
    let socket = unsafe { call4(SOCKET, AF_INET, DGRAM_CLOEXEC, 0, 0) };
    if (socket as i64) < 0 {
        return None;
    }
    let done = f(socket);
    // SAFETY: ours.
    unsafe { call4(CLOSE, socket, 0, 0, 0) };
    Some(done)
}

/// The loopback interface, where packets of test runs come from.
const LOOPBACK: u32 = 1;

/// What `bpf_check_mtu` says of a length.
const SUCCESS: u64 = 0;
const FRAG_NEEDED: u64 = 1;

/// # Safety
/// `mtu` is readable and writable for four bytes.
unsafe fn check(len: u64, default: u32, ifindex: u64, mtu: u64, diff: u64) -> u64 {
    const ETH_HLEN: i64 = 14;
    let ifindex = if ifindex as u32 == 0 { default } else { ifindex as u32 };
    let Some(limit) = with_socket(|socket| Request::of(ifindex, socket)?.mtu(socket)).flatten()
    else {
        return fail(errno::ENODEV);
    };
    // SAFETY: the caller's promise.
    unsafe {
        let given = (mtu as *const u32).read_volatile();
        let len = if given == 0 { len as i64 } else { i64::from(given) + ETH_HLEN };
        (mtu as *mut u32).write_volatile(limit);
        if len + i64::from(diff as i32) > i64::from(limit) + ETH_HLEN {
            FRAG_NEEDED
        } else {
            SUCCESS
        }
    }
}

pub(super) unsafe extern "C" fn xdp_check_mtu(
    ctx: u64,
    ifindex: u64,
    mtu: u64,
    diff: u64,
    flags: u64,
) -> u64 {
    const INGRESS_IFINDEX: u32 = 12;
    if flags != 0 {
        return fail(errno::EINVAL);
    }
    // SAFETY: the verifier proved argument 1 the context of an XDP program, and argument 3 four
    // bytes to read and write.
    unsafe {
        let p = View::of(ctx);
        let len = p.data_end() - p.data();
        check(len, p.field(INGRESS_IFINDEX).max(LOOPBACK), ifindex, mtu, diff)
    }
}

pub(super) unsafe extern "C" fn skb_check_mtu(
    ctx: u64,
    ifindex: u64,
    mtu: u64,
    diff: u64,
    flags: u64,
) -> u64 {
    const SEGS: u64 = 1;
    // SAFETY: as above, of a program that sees a socket buffer.
    unsafe {
        if flags & !SEGS != 0
            || (flags & SEGS != 0 && (diff as u32 != 0 || (mtu as *const u32).read_volatile() != 0))
        {
            return fail(errno::EINVAL);
        }
        let p = View::of(ctx);
        check(p.len(), p.field(field::IFINDEX).max(LOOPBACK), ifindex, mtu, diff)
    }
}
