//! `bpf_fib_lookup`: the kernel's routes and neighbors, asked for by netlink.
//!
//! Each lookup asks for the route of the packet as one that this machine sends, for its metric, and
//! for the neighbor that it goes to: three short messages, a few microseconds. What the kernel's
//! helper does differently: rules that look at the input interface count there, and with
//! `BPF_FIB_LOOKUP_DIRECT` only the main table, with `BPF_FIB_LOOKUP_TBID` another one; here a table
//! cannot be chosen, and that flag finds no route. With `BPF_FIB_LOOKUP_OUTPUT` routes that
//! refuse (blackhole, unreachable, prohibit) are as none.

use std::mem::MaybeUninit;

use skep_helpers::packet::View;
use skep_helpers::{errno, fail};
use skep_isa::ctx::sk_buff as field;
use skep_sys::syscall::{CLOSE, READ, SOCKET, WRITE, call4};

use crate::route::{Request, with_socket};

/// `BPF_FIB_LKUP_RET_*`.
mod ret {
    pub(super) const SUCCESS: u64 = 0;
    pub(super) const BLACKHOLE: u64 = 1;
    pub(super) const UNREACHABLE: u64 = 2;
    pub(super) const PROHIBIT: u64 = 3;
    pub(super) const NOT_FWDED: u64 = 4;
    pub(super) const FWD_DISABLED: u64 = 5;
    pub(super) const NO_NEIGH: u64 = 7;
    pub(super) const FRAG_NEEDED: u64 = 8;
}

/// `BPF_FIB_LOOKUP_*`.
mod flag {
    pub(super) const OUTPUT: u32 = 1 << 1;
    pub(super) const SKIP_NEIGH: u32 = 1 << 2;
    pub(super) const TBID: u32 = 1 << 3;
    pub(super) const SRC: u32 = 1 << 4;
    pub(super) const MARK: u32 = 1 << 5;
    pub(super) const ALL: u32 = 0x3f;
}

/// Offsets in `struct bpf_fib_lookup`.
mod param {
    pub(super) const FAMILY: usize = 0;
    pub(super) const TOT_LEN: usize = 6;
    pub(super) const IFINDEX: usize = 8;
    pub(super) const TOS: usize = 12;
    pub(super) const SRC: usize = 16;
    pub(super) const DST: usize = 32;
    pub(super) const VLAN: usize = 48;
    pub(super) const SMAC: usize = 52;
    pub(super) const DMAC: usize = 58;
    pub(super) const SIZE: usize = 64;
}

const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

/// Looks up where a packet goes; [`xdp`] and [`skb`] differ only in packets without a length.
///
/// # Safety
/// `params` is readable and writable for `len` bytes.
unsafe fn lookup(params: u64, len: u64, flags: u64) -> u64 {
    let flags = flags as u32;
    if (len as u32 as usize) < param::SIZE || flags & !flag::ALL != 0 {
        return fail(errno::EINVAL);
    }
    let params = params as *mut u8;
    let mut p = Params([0; param::SIZE]);
    for (i, byte) in p.0.iter_mut().enumerate() {
        // SAFETY: the caller's promise, for at least as many bytes.
        *byte = unsafe { params.add(i).read_volatile() };
    }
    let done = forward(&mut p, flags);
    for (i, byte) in p.0.iter().enumerate() {
        // SAFETY: as above.
        unsafe { params.add(i).write_volatile(*byte) };
    }
    done
}

/// A `struct bpf_fib_lookup`.
struct Params([u8; param::SIZE]);

impl Params {
    fn u16(&self, at: usize) -> u16 {
        self.0.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |b| u16::from_ne_bytes(*b))
    }

    fn u32(&self, at: usize) -> u32 {
        self.0.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |b| u32::from_ne_bytes(*b))
    }

    fn bytes(&self, at: usize, len: usize) -> &[u8] {
        self.0.get(at..at + len).unwrap_or_default()
    }

    fn set(&mut self, at: usize, bytes: &[u8]) {
        if let Some(room) = self.0.get_mut(at..at + bytes.len()) {
            room.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        }
    }

    /// Bytes of an address of the family.
    fn address_len(&self) -> usize {
        if self.0[param::FAMILY] == AF_INET { 4 } else { 16 }
    }
}

fn forward(p: &mut Params, flags: u32) -> u64 {
    let name = match p.0[param::FAMILY] {
        AF_INET => b"ipv4",
        AF_INET6 => b"ipv6",
        _ => return fail(errno::EAFNOSUPPORT),
    };
    let ifindex = p.u32(param::IFINDEX);
    let forwards = with_socket(|s| Request::of(ifindex, s).map(|mut r| r.forwards(name))).flatten();
    match forwards {
        None => return fail(errno::ENODEV),
        Some(false) => return ret::FWD_DISABLED,
        Some(true) if flags & flag::TBID != 0 => return ret::NOT_FWDED,
        Some(true) => {}
    }
    let Some(netlink) = Netlink::open() else { return ret::NOT_FWDED };
    let route = match netlink.route(p, flags, 0) {
        Ok(route) => route,
        Err(libc::EHOSTUNREACH) => return ret::UNREACHABLE,
        Err(errno) => return refusal(errno),
    };
    if route.kind != RTN_UNICAST || route.out == 0 {
        return ret::NOT_FWDED;
    }
    // The table's own entry: the first reply lacks its metric, and is made up where the output was
    // given and no entry leads there.
    let metric = match netlink.route(p, flags, RTM_F_FIB_MATCH) {
        Ok(entry) => entry.metric,
        Err(errno) => return refusal(errno),
    };
    let device = with_socket(|s| {
        let mtu = Request::of(route.out, s)?.mtu(s)?;
        Some((mtu, Request::of(route.out, s)?.hardware_address(s)?))
    });
    let Some((mtu, smac)) = device.flatten() else { return ret::NOT_FWDED };
    let total = u32::from(p.u16(param::TOT_LEN));
    if total > mtu {
        p.set(param::TOT_LEN, &(mtu as u16).to_ne_bytes());
        return ret::FRAG_NEEDED;
    }
    p.set(param::TOS, &metric.to_ne_bytes());
    p.set(param::IFINDEX, &route.out.to_ne_bytes());
    if flags & flag::SRC != 0 {
        p.set(param::SRC, route.source.bytes());
    }
    if route.gateway.len != 0 {
        let family = if route.gateway.len == 4 { AF_INET } else { AF_INET6 };
        p.set(param::FAMILY, &[family]);
        p.set(param::DST, route.gateway.bytes());
    }
    if flags & flag::SKIP_NEIGH == 0 {
        let Some(dmac) = netlink.neighbor(p, route.out) else { return ret::NO_NEIGH };
        p.set(param::DMAC, &dmac);
        p.set(param::SMAC, &smac);
    }
    p.set(param::VLAN, &[0; 4]);
    p.set(param::TOT_LEN, &(mtu as u16).to_ne_bytes());
    ret::SUCCESS
}

/// What the error that comes instead of a route means.
fn refusal(errno: i32) -> u64 {
    match errno {
        errno::EINVAL => ret::BLACKHOLE,
        errno::EACCES => ret::PROHIBIT,
        _ => ret::NOT_FWDED,
    }
}

const RTN_UNICAST: u8 = 1;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const RTM_NEWNEIGH: u16 = 28;
const RTM_GETNEIGH: u16 = 30;
/// The route as it is in the table, not as it is for one packet.
const RTM_F_FIB_MATCH: u32 = 0x2000;
/// States of a neighbor whose address is known (`NUD_VALID`).
const NUD_VALID: u16 = 0xde;
/// Bytes of `struct nlmsghdr`, and of `struct rtmsg` and `struct ndmsg`, which have as many.
const HEADER: usize = 16;
const BODY: usize = 12;
/// Attributes of routes and of neighbors.
mod attribute {
    pub(super) const RTA_DST: u16 = 1;
    pub(super) const RTA_SRC: u16 = 2;
    pub(super) const RTA_OIF: u16 = 4;
    pub(super) const RTA_GATEWAY: u16 = 5;
    pub(super) const RTA_PRIORITY: u16 = 6;
    pub(super) const RTA_PREFSRC: u16 = 7;
    pub(super) const RTA_MARK: u16 = 16;
    pub(super) const RTA_VIA: u16 = 18;
    pub(super) const NDA_DST: u16 = 1;
    pub(super) const NDA_LLADDR: u16 = 2;
}

/// An address, of 4 or 16 bytes; 0: none.
#[derive(Clone, Copy, Default)]
struct Address {
    bytes: [u8; 16],
    len: usize,
}

impl Address {
    fn of(from: &[u8]) -> Self {
        let mut address = Self::default();
        if matches!(from.len(), 4 | 16) {
            address.bytes.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
            address.len = from.len();
        }
        address
    }

    fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

/// What the kernel says of a route.
#[derive(Clone, Copy, Default)]
struct Route {
    kind: u8,
    out: u32,
    metric: u32,
    gateway: Address,
    source: Address,
}

/// A message to the kernel.
struct Message {
    bytes: [u8; 128],
    len: usize,
}

impl Message {
    fn new(kind: u16, flags: u16, body: &[u8; BODY]) -> Self {
        let mut message = Self { bytes: [0; 128], len: HEADER };
        message.put_at(4, &kind.to_ne_bytes());
        message.put_at(6, &flags.to_ne_bytes());
        message.put(body);
        message
    }

    fn put_at(&mut self, at: usize, bytes: &[u8]) {
        if let Some(room) = self.bytes.get_mut(at..at + bytes.len()) {
            room.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        }
    }

    fn put(&mut self, bytes: &[u8]) {
        self.put_at(self.len, bytes);
        self.len += bytes.len();
    }

    /// Adds an attribute, whose length is a multiple of four.
    fn attribute(&mut self, kind: u16, value: &[u8]) {
        self.put(&(4 + value.len() as u16).to_ne_bytes());
        self.put(&kind.to_ne_bytes());
        self.put(value);
    }
}

/// The kernel's answer.
struct Reply {
    bytes: [u8; 2048],
    len: usize,
}

impl Reply {
    fn u16(&self, at: usize) -> u16 {
        let bytes = self.bytes.get(..self.len).and_then(|all| all.get(at..));
        bytes.and_then(<[u8]>::first_chunk).map_or(0, |b| u16::from_ne_bytes(*b))
    }

    fn u32(&self, at: usize) -> u32 {
        let bytes = self.bytes.get(..self.len).and_then(|all| all.get(at..));
        bytes.and_then(<[u8]>::first_chunk).map_or(0, |b| u32::from_ne_bytes(*b))
    }

    /// The body of a message of this kind, or the error that came instead.
    fn expect(&self, kind: u16) -> Result<&[u8], i32> {
        const NLMSG_ERROR: u16 = 2;
        if self.u16(4) == NLMSG_ERROR {
            return Err((self.u32(HEADER) as i32).wrapping_neg());
        }
        let len = (self.u32(0) as usize).min(self.len);
        let body = self.bytes.get(HEADER..len).filter(|body| body.len() >= BODY);
        body.filter(|_| self.u16(4) == kind).ok_or(errno::EIO)
    }
}

/// Calls a function with each attribute: its kind and its value.
fn each_attribute(mut from: &[u8], mut f: impl FnMut(u16, &[u8])) {
    while let [a, b, c, d, ..] = *from {
        let len = usize::from(u16::from_ne_bytes([a, b]));
        let Some(value) = from.get(4..len) else { return };
        // The upper bits are flags.
        f(u16::from_ne_bytes([c, d]) & 0x3fff, value);
        from = from.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
}

fn number(value: &[u8]) -> u32 {
    value.first_chunk().map_or(0, |b| u32::from_ne_bytes(*b))
}

/// A socket to ask the kernel through.
struct Netlink(u64);

impl Netlink {
    fn open() -> Option<Self> {
        const AF_NETLINK: u64 = 16;
        const RAW_CLOEXEC: u64 = 3 | 0x80000;
        // SAFETY: numbers only.
        let socket = unsafe { call4(SOCKET, AF_NETLINK, RAW_CLOEXEC, 0, 0) };
        ((socket as i64) >= 0).then_some(Self(socket))
    }

    fn ask(&self, message: &mut Message) -> Option<Reply> {
        message.put_at(0, &(message.len as u32).to_ne_bytes());
        let mut bytes = MaybeUninit::<[u8; 2048]>::zeroed();
        // SAFETY: the message is as long as it says and at most as long as its buffer, since what
        // would not fit was not put in; the reply's buffer has as many bytes as are asked for.
        unsafe {
            let len = message.len.min(message.bytes.len());
            let sent = call4(WRITE, self.0, message.bytes.as_ptr() as u64, len as u64, 0);
            if sent as i64 != len as i64 {
                return None;
            }
            let got = call4(READ, self.0, bytes.as_mut_ptr() as u64, 2048, 0);
            let len = usize::try_from(got as i64).ok()?;
            Some(Reply { bytes: bytes.assume_init(), len })
        }
    }

    /// Asks for the route of a packet.
    fn route(&self, p: &Params, flags: u32, how: u32) -> Result<Route, i32> {
        const NLM_F_REQUEST: u16 = 1;
        let len = p.address_len();
        let tos = if len == 4 { p.0[param::TOS] } else { 0 };
        let mut body = [p.0[param::FAMILY], len as u8 * 8, 0, tos, 0, 0, 0, 0, 0, 0, 0, 0];
        body.iter_mut().skip(8).zip(how.to_ne_bytes()).for_each(|(to, from)| *to = from);
        let source = p.bytes(param::SRC, len);
        let has_source = source.iter().any(|b| *b != 0) && len == 16;
        body[2] = if has_source { len as u8 * 8 } else { 0 };
        let mut message = Message::new(RTM_GETROUTE, NLM_F_REQUEST, &body);
        message.attribute(attribute::RTA_DST, p.bytes(param::DST, len));
        if has_source {
            message.attribute(attribute::RTA_SRC, source);
        }
        if flags & flag::OUTPUT != 0 {
            message.attribute(attribute::RTA_OIF, p.bytes(param::IFINDEX, 4));
        }
        if flags & flag::MARK != 0 {
            message.attribute(attribute::RTA_MARK, p.bytes(param::SMAC, 4));
        }
        let reply = self.ask(&mut message).ok_or(errno::EIO)?;
        let body = reply.expect(RTM_NEWROUTE)?;
        let mut route =
            Route { kind: body.get(7).copied().unwrap_or_default(), ..Route::default() };
        each_attribute(body.get(BODY..).unwrap_or_default(), |kind, value| match kind {
            attribute::RTA_OIF => route.out = number(value),
            attribute::RTA_PRIORITY => route.metric = number(value),
            attribute::RTA_GATEWAY => route.gateway = Address::of(value),
            attribute::RTA_VIA => route.gateway = Address::of(value.get(2..).unwrap_or_default()),
            attribute::RTA_PREFSRC => route.source = Address::of(value),
            _ => {}
        });
        Ok(route)
    }

    /// Asks for the hardware address of a neighbor; `None` when it is not known.
    fn neighbor(&self, p: &Params, ifindex: u32) -> Option<[u8; 6]> {
        const NLM_F_REQUEST: u16 = 1;
        let mut body = [p.0[param::FAMILY], 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        body.iter_mut().skip(4).zip(ifindex.to_ne_bytes()).for_each(|(to, from)| *to = from);
        let mut message = Message::new(RTM_GETNEIGH, NLM_F_REQUEST, &body);
        message.attribute(attribute::NDA_DST, p.bytes(param::DST, p.address_len()));
        let reply = self.ask(&mut message)?;
        let body = reply.expect(RTM_NEWNEIGH).ok()?;
        let state = body.get(8..).and_then(<[u8]>::first_chunk).map(|b| u16::from_ne_bytes(*b))?;
        let mut address = None;
        each_attribute(body.get(BODY..).unwrap_or_default(), |kind, value| {
            if kind == attribute::NDA_LLADDR {
                address = value.first_chunk().copied();
            }
        });
        address.filter(|_| state & NUD_VALID != 0)
    }
}

impl Drop for Netlink {
    fn drop(&mut self) {
        // SAFETY: ours.
        unsafe { call4(CLOSE, self.0, 0, 0, 0) };
    }
}

pub(super) unsafe extern "C" fn xdp(_: u64, params: u64, len: u64, flags: u64, _: u64) -> u64 {
    // SAFETY: the verifier proved `params` readable and writable for `len` bytes.
    unsafe { lookup(params, len, flags) }
}

pub(super) unsafe extern "C" fn skb(ctx: u64, params: u64, len: u64, flags: u64, _: u64) -> u64 {
    // SAFETY: as above; argument 1 is the context of a program that sees a socket buffer.
    unsafe {
        let whole = len as u32 as usize >= param::SIZE;
        let has_total =
            whole && ((params + param::TOT_LEN as u64) as *const u16).read_unaligned() != 0;
        let done = lookup(params, len, flags);
        if done != ret::SUCCESS || has_total {
            return done;
        }
        // Without a length of the program's, the packet's own counts.
        let out = ((params + param::IFINDEX as u64) as *const u32).read_unaligned();
        let mtu = with_socket(|s| Request::of(out, s)?.mtu(s)).flatten().unwrap_or_default();
        const HEADERS: u64 = 18;
        let p = View::of(ctx);
        let len = p.len().max(u64::from(p.field(field::LEN)));
        if len > u64::from(mtu) + HEADERS { ret::FRAG_NEEDED } else { done }
    }
}
