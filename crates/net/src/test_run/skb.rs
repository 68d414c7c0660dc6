//! Test runs of programs that see a socket buffer: `struct __sk_buff` in and out, and the packet.

use crate::port::batch::ETH_HLEN;
use skep_isa::ProgramType as P;
use skep_isa::ctx::{SOCK, packet as word, sk_buff as o};

use super::interface::{self, LOOPBACK};
use super::{
    Cause, Errno, Input, Outcome, Program, check_packet, context, field, is_zero, set_field,
};
use crate::packet::{Packet, Shape, View};

/// Bytes before the packet: helpers may put as much in front. The kernel has 64 and makes more when
/// it must.
const HEADROOM: usize = 16 << 10;
/// Bytes behind it, for helpers as well.
const GROWTH: usize = 128 << 10;
/// Bytes before and behind the packet in the kernel's one page.
const OVERHEAD: usize = 64 + 320;
const PAGE: usize = 4096;
const AF_INET: u32 = 2;
const AF_INET6: u32 = 10;
const GSO_MAX_SEGS: u32 = 65_535;
/// Largest `wire_len` (`GSO_LEGACY_MAX_SIZE`).
const GSO_LEGACY_MAX_SIZE: u32 = 65_536;

/// Runs a program on a socket buffer.
pub(super) fn test_run(program: &dyn Program, input: &Input<'_>) -> Result<Outcome, Errno> {
    let data = input.data.unwrap_or_default();
    let prog = program.prog_type();
    check_packet(data.len(), ETH_HLEN..=PAGE - OVERHEAD)?;
    let mut ctx = input.ctx.map(|ctx| context(ctx, o::SIZE as usize)).transpose()?;
    let link_layer = matches!(prog, P::SchedCls | P::SchedAct);
    let ifindex =
        ctx.as_ref().map(|c| field(c, o::IFINDEX)).filter(|i| *i > LOOPBACK).unwrap_or(LOOPBACK);
    if ifindex != LOOPBACK && interface::find(ifindex).is_none() {
        return Err(Errno::ENODEV.because(Cause::Interface(ifindex)));
    }
    let protocol = Ethernet::of(data);
    protocol.check(data)?;
    let begin = if link_layer { 0 } else { ETH_HLEN };
    let shape = Shape {
        kind: word::SKB,
        meta: HEADROOM,
        data: HEADROOM,
        linear: data.len(),
        hard_end: HEADROOM + data.len() + GROWTH,
        size: HEADROOM + data.len() + GROWTH,
    };
    let packet = Packet::new(&shape, data).ok_or(Errno::EINVAL)?;
    let view = packet.view();
    let frame = view.data();
    view.set(word::MAC_HEADER, frame);
    view.set(word::NETWORK_HEADER, frame + ETH_HLEN as u64);
    view.set(word::DATA, frame + begin as u64);
    view.set(word::DATA_META, frame + begin as u64);
    let len = (data.len() - begin) as u32;
    view.set_field(o::LEN, len);
    view.set_field(o::PKT_TYPE, protocol.packet_type);
    view.set_field(o::PROTOCOL, u32::from(protocol.number.to_be()));
    view.set_field(o::IFINDEX, ifindex);
    packet.point(o::SK, &socket(&protocol, data));
    if prog == P::CgroupSkb {
        set_addresses(view, &protocol, data);
    }
    if let Some(ctx) = &ctx {
        take(view, ctx, len)?;
    }
    // SAFETY: the packet's context is what these types are verified for.
    let (retval, duration_ns) = unsafe { program.run(packet.ctx(), input.repeat) }?;
    let mut out = packet.payload();
    if !link_layer {
        out.splice(..0, [0; ETH_HLEN]);
    }
    if let Some(ctx) = &mut ctx {
        give(view, ctx);
    }
    Ok(Outcome { retval, duration_ns, data_out: Some(out), ctx_out: ctx })
}

/// What the Ethernet header says.
struct Ethernet {
    /// The protocol, in the machine's order.
    number: u16,
    packet_type: u32,
}

impl Ethernet {
    const IPV4: u16 = 0x0800;
    const IPV6: u16 = 0x86dd;

    /// Reads the header as `eth_type_trans` does for a packet that came in through the loopback
    /// interface, whose address is zero.
    fn of(frame: &[u8]) -> Self {
        const BROADCAST: u32 = 1;
        const MULTICAST: u32 = 2;
        const OTHERHOST: u32 = 3;
        const NOVELL: u16 = 0x0001;
        const LLC: u16 = 0x0004;
        let to = frame.get(..6).unwrap_or_default();
        let packet_type = match to {
            [0, 0, 0, 0, 0, 0] => 0,
            [0xff, 0xff, 0xff, 0xff, 0xff, 0xff] => BROADCAST,
            [first, ..] if first & 1 != 0 => MULTICAST,
            _ => OTHERHOST,
        };
        let pair = |at: usize| {
            frame.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |b| u16::from_be_bytes(*b))
        };
        let number = match pair(12) {
            n if n >= 0x600 => n,
            _ if frame.len() >= ETH_HLEN + 2 && pair(ETH_HLEN) == 0xffff => NOVELL,
            _ => LLC,
        };
        Self { number, packet_type }
    }

    /// Refuses a packet that is too short for its own network header.
    fn check(&self, frame: &[u8]) -> Result<(), Errno> {
        let least = match self.number {
            Self::IPV4 => 20,
            Self::IPV6 => 40,
            _ => 0,
        };
        check_packet(frame.len(), ETH_HLEN + least..=frame.len().max(ETH_HLEN + least))
    }
}

/// The addresses of the socket, which test runs take from the packet: it is both ends of it.
fn set_addresses(view: View, protocol: &Ethernet, frame: &[u8]) {
    let word = |at: usize| field(frame, (ETH_HLEN + at) as u32);
    match protocol.number {
        Ethernet::IPV4 => {
            view.set_field(o::FAMILY, AF_INET);
            view.set_field(o::LOCAL_IP4, word(12));
            view.set_field(o::REMOTE_IP4, word(16));
        }
        Ethernet::IPV6 => {
            view.set_field(o::FAMILY, AF_INET6);
            for n in 0..4 {
                view.set_field(o::LOCAL_IP6 + 4 * n, word(8 + 4 * n as usize));
                view.set_field(o::REMOTE_IP6 + 4 * n, word(24 + 4 * n as usize));
            }
        }
        _ => {}
    }
}

/// The socket of a test run as `struct bpf_sock`: closed, no ports, the packet's addresses.
fn socket(protocol: &Ethernet, frame: &[u8]) -> Vec<u8> {
    const FAMILY: u32 = 4;
    const SRC_IP4: u32 = 24;
    const SRC_IP6: u32 = 28;
    const DST_IP4: u32 = 52;
    const DST_IP6: u32 = 56;
    const STATE: u32 = 72;
    const RX_QUEUE_MAPPING: u32 = 76;
    const TCP_CLOSE: u32 = 7;
    let mut sock = vec![0; SOCK.size as usize];
    let word = |at: u32| field(frame, ETH_HLEN as u32 + at);
    match protocol.number {
        Ethernet::IPV4 => {
            set_field(&mut sock, FAMILY, AF_INET);
            set_field(&mut sock, SRC_IP4, word(12));
            set_field(&mut sock, DST_IP4, word(16));
        }
        Ethernet::IPV6 => {
            set_field(&mut sock, FAMILY, AF_INET6);
            for n in 0..4 {
                set_field(&mut sock, SRC_IP6 + 4 * n, word(8 + 4 * n));
                set_field(&mut sock, DST_IP6 + 4 * n, word(24 + 4 * n));
            }
        }
        _ => {}
    }
    set_field(&mut sock, STATE, TCP_CLOSE);
    set_field(&mut sock, RX_QUEUE_MAPPING, u32::MAX);
    sock
}

/// Fields that are copied both ways.
const BOTH: &[u32] = &[
    o::MARK,
    o::PRIORITY,
    o::INGRESS_IFINDEX,
    o::TSTAMP,
    o::TSTAMP + 4,
    o::GSO_SEGS,
    o::HWTSTAMP,
    o::HWTSTAMP + 4,
];

/// Takes over what the given context may say, and refuses what it may not (`convert___skb_to_skb`).
fn take(view: View, ctx: &[u8], len: u32) -> Result<(), Errno> {
    let unused = [
        (0, o::MARK),
        (o::MARK + 4, o::PRIORITY),
        (o::IFINDEX + 4, o::CB),
        (o::HASH, o::TSTAMP),
        (o::SK, o::GSO_SIZE),
        (o::TSTAMP_TYPE, o::HWTSTAMP),
    ];
    let refused = Errno::EINVAL.because(Cause::Field);
    if unused.iter().any(|(from, to)| !is_zero(ctx, *from, *to)) {
        return Err(refused);
    }
    match field(ctx, o::WIRE_LEN) {
        // Without a context it stays zero.
        0 => view.set_field(o::WIRE_LEN, len),
        n if n < len || n > GSO_LEGACY_MAX_SIZE => return Err(refused),
        n => view.set_field(o::WIRE_LEN, n),
    }
    if field(ctx, o::GSO_SEGS) > GSO_MAX_SEGS {
        return Err(refused);
    }
    for off in BOTH.iter().copied().chain((0..5).map(|n| o::CB + 4 * n)) {
        view.set_field(off, field(ctx, off));
    }
    // Sixteen bits in the kernel's structure.
    view.set_field(o::GSO_SIZE, field(ctx, o::GSO_SIZE) & 0xffff);
    Ok(())
}

/// Puts what the program left into the context (`convert_skb_to___skb`).
fn give(view: View, ctx: &mut [u8]) {
    for off in
        BOTH.iter().copied().chain((0..5).map(|n| o::CB + 4 * n)).chain([o::IFINDEX, o::WIRE_LEN])
    {
        set_field(ctx, off, view.field(off));
    }
}
