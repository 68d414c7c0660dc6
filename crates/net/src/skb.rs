//! Helpers of programs that see a socket buffer: reading, writing and resizing the packet, VLAN
//! tags, and its hash.

use skep_isa::ctx::{packet as word, sk_buff as field};

use skep_helpers::memory::{copy, shift, zero};
use skep_helpers::packet::View;
use skep_helpers::{errno, fail};

/// Longest packet that helpers make (`BPF_SKB_MAX_LEN`: four pages without what the kernel keeps
/// behind the bytes).
const MAX_LEN: u64 = (4 << 12) - 320;
const ETH_HLEN: u64 = 14;
const VLAN_HLEN: u64 = 4;
/// Destination and source address.
const ADDRESSES: u64 = 12;

/// Looks at the packet.
///
/// # Safety
/// `ctx` is the context of a program that sees a socket buffer.
#[inline(always)]
unsafe fn packet<'a>(ctx: u64) -> View<'a> {
    // SAFETY: the caller's promise.
    unsafe { View::of(ctx) }
}

/// Tells the context how long the packet is now.
fn note_len(p: View) {
    p.set_field(field::LEN, p.len() as u32);
}

/// Moves the start of the packet by as many bytes; negative: to the front. There must be room.
fn move_start(p: View, by: i64) {
    p.set(word::DATA, p.data().wrapping_add_signed(by));
    p.set(word::DATA_META, p.data());
    note_len(p);
}

fn headroom(p: View) -> u64 {
    p.data().saturating_sub(p.get(word::HARD_START))
}

pub(super) unsafe extern "C" fn store_bytes(
    ctx: u64,
    offset: u64,
    from: u64,
    len: u64,
    flags: u64,
) -> u64 {
    const RECOMPUTE_CSUM: u64 = 1;
    const INVALIDATE_HASH: u64 = 2;
    let (offset, len) = (offset & 0xffff_ffff, len & 0xffff_ffff);
    if flags & !(RECOMPUTE_CSUM | INVALIDATE_HASH) != 0 {
        return fail(errno::EINVAL);
    }
    // SAFETY: the verifier proved argument 1 the context and `from` readable for `len` bytes.
    unsafe {
        let p = packet(ctx);
        match p.at(offset, len).filter(|_| offset <= i32::MAX as u64) {
            Some(at) => copy(at as u64, from, len),
            None => return fail(errno::EFAULT),
        }
        if flags & INVALIDATE_HASH != 0 {
            p.set_field(field::HASH, 0);
        }
    }
    0
}

pub(super) unsafe extern "C" fn load_bytes(
    ctx: u64,
    offset: u64,
    to: u64,
    len: u64,
    _: u64,
) -> u64 {
    let (offset, len) = (offset & 0xffff_ffff, len & 0xffff_ffff);
    // SAFETY: as above; the verifier proved `to` writable for `len` bytes.
    unsafe {
        match packet(ctx).at(offset, len).filter(|_| offset <= i32::MAX as u64) {
            Some(at) => copy(to, at as u64, len),
            None => {
                zero(to, len);
                return fail(errno::EFAULT);
            }
        }
    }
    0
}

pub(super) unsafe extern "C" fn load_bytes_relative(
    ctx: u64,
    offset: u64,
    to: u64,
    len: u64,
    start: u64,
) -> u64 {
    const MAC: u64 = 0;
    const NET: u64 = 1;
    let (offset, len) = (offset & 0xffff_ffff, len & 0xffff_ffff);
    // SAFETY: as above.
    unsafe {
        let p = packet(ctx);
        let header = match start & 0xffff_ffff {
            MAC => p.get(word::MAC_HEADER),
            NET => p.get(word::NETWORK_HEADER),
            _ => 0,
        };
        let at = header + offset;
        if header == 0 || offset > 0xffff || at + len > p.data_end() {
            zero(to, len);
            return fail(errno::EFAULT);
        }
        copy(to, at, len);
    }
    0
}

/// `ld_abs` and `ld_ind` (net/core/filter.c `bpf_skb_load_helper_32`): a number in the packet's
/// order of bytes, from its data on or from one of its headers; or -1.
pub(super) unsafe extern "C" fn load_packet(
    ctx: u64,
    offset: u64,
    size: u64,
    _: u64,
    _: u64,
) -> u64 {
    const SKF_NET_OFF: i64 = -0x10_0000;
    const SKF_LL_OFF: i64 = -0x20_0000;
    // SAFETY: argument 1 is the context of a packet program: the verifier lets no other have such
    // loads.
    let p = unsafe { packet(ctx) };
    let offset = i64::from(offset as i32);
    let (base, low, end, offset) = match offset {
        0.. => (p.data(), p.data(), p.end(), offset),
        SKF_NET_OFF.. => (
            p.get(word::NETWORK_HEADER),
            p.get(word::HARD_START),
            p.data_end(),
            offset - SKF_NET_OFF,
        ),
        SKF_LL_OFF.. => {
            (p.get(word::MAC_HEADER), p.get(word::HARD_START), p.data_end(), offset - SKF_LL_OFF)
        }
        _ => return u64::MAX,
    };
    let at = base.wrapping_add_signed(offset);
    if base == 0 || at < low || at.saturating_add(size) > end {
        return u64::MAX;
    }
    // SAFETY: between the first byte of the room and the last of the packet.
    (0..size).fold(0, |n, k| n << 8 | u64::from(unsafe { ((at + k) as *const u8).read_volatile() }))
}

/// Makes sure that bytes can be reached through pointers: all that there are can.
pub(super) unsafe extern "C" fn pull_data(ctx: u64, len: u64, _: u64, _: u64, _: u64) -> u64 {
    // SAFETY: as above.
    if len & 0xffff_ffff > unsafe { packet(ctx) }.len() { fail(errno::ENOMEM) } else { 0 }
}

/// Cuts the packet or lets it grow by zeros.
pub(super) unsafe extern "C" fn change_tail(ctx: u64, len: u64, flags: u64, _: u64, _: u64) -> u64 {
    // SAFETY: as above.
    let p = unsafe { packet(ctx) };
    let len = len & 0xffff_ffff;
    let least = p.get(word::NETWORK_HEADER).saturating_sub(p.data());
    if flags != 0 || len > MAX_LEN || len < least {
        return fail(errno::EINVAL);
    }
    let end = p.data() + len;
    if end > p.get(word::HARD_END) {
        return fail(errno::ENOMEM);
    }
    if end > p.data_end() {
        // SAFETY: up to the end of the room.
        unsafe { zero(p.data_end(), end - p.data_end()) };
    }
    p.set(word::DATA_END, end);
    note_len(p);
    0
}

/// Makes room for a link-layer header, all zero.
pub(super) unsafe extern "C" fn change_head(ctx: u64, len: u64, flags: u64, _: u64, _: u64) -> u64 {
    // SAFETY: as above.
    let p = unsafe { packet(ctx) };
    let len = len & 0xffff_ffff;
    if flags != 0 || p.len() + len > MAX_LEN {
        return fail(errno::EINVAL);
    }
    if len > headroom(p) {
        return fail(errno::ENOMEM);
    }
    move_start(p, -(len as i64));
    // SAFETY: the room was checked.
    unsafe { zero(p.data(), len) };
    p.set(word::MAC_HEADER, p.data());
    0
}

/// Reads a number of the packet in network order.
///
/// # Safety
/// The two bytes at `at` are in the packet.
unsafe fn be16(at: u64) -> u16 {
    // SAFETY: the caller's promise.
    u16::from_be(unsafe { (at as *const u16).read_unaligned() })
}

const ETH_P_8021Q: u16 = 0x8100;
const ETH_P_8021AD: u16 = 0x88a8;

fn is_vlan(protocol: u32) -> bool {
    matches!((protocol as u16).swap_bytes(), ETH_P_8021Q | ETH_P_8021AD)
}

/// Gives the packet a VLAN tag beside its bytes; a tag that is there already goes into the bytes.
pub(super) unsafe extern "C" fn vlan_push(
    ctx: u64,
    protocol: u64,
    tci: u64,
    _: u64,
    _: u64,
) -> u64 {
    // SAFETY: as above.
    let p = unsafe { packet(ctx) };
    let mut protocol = protocol & 0xffff;
    if !is_vlan(protocol as u32) {
        protocol = u64::from(ETH_P_8021Q.to_be());
    }
    if p.field(field::VLAN_PRESENT) != 0 {
        if headroom(p) < VLAN_HLEN || p.len() < ADDRESSES {
            return fail(errno::ENOMEM);
        }
        let (old_protocol, old_tci) =
            (p.field(field::VLAN_PROTO) as u16, p.field(field::VLAN_TCI) as u16);
        move_start(p, -(VLAN_HLEN as i64));
        // SAFETY: the room was checked, and the addresses are in the packet.
        unsafe {
            shift(p.data(), p.data() + VLAN_HLEN, ADDRESSES);
            ((p.data() + ADDRESSES) as *mut u16).write_unaligned(old_protocol);
            ((p.data() + ADDRESSES + 2) as *mut u16).write_unaligned(old_tci.to_be());
        }
        p.set(word::MAC_HEADER, p.data());
        p.set_field(field::PROTOCOL, u32::from(old_protocol));
    }
    p.set_field(field::VLAN_PRESENT, 1);
    p.set_field(field::VLAN_PROTO, protocol as u32);
    p.set_field(field::VLAN_TCI, tci as u32 & 0xffff);
    0
}

/// Takes the outermost tag out of the bytes.
fn pull_tag(p: View) -> Result<u16, i32> {
    if p.len() < ETH_HLEN + VLAN_HLEN {
        return Err(errno::ENOMEM);
    }
    // SAFETY: 18 bytes are there.
    let (tci, inner) = unsafe {
        let read = (be16(p.data() + ETH_HLEN), be16(p.data() + ETH_HLEN + 2));
        shift(p.data() + VLAN_HLEN, p.data(), ADDRESSES);
        read
    };
    move_start(p, VLAN_HLEN as i64);
    p.set(word::MAC_HEADER, p.data());
    let next = p.data() + ETH_HLEN;
    // SAFETY: two bytes more, when they are there.
    let novell = p.len() >= ETH_HLEN + 2 && unsafe { be16(next) } == 0xffff;
    let protocol = match inner {
        n if n >= 0x600 => n,
        _ if novell => 1,
        _ => 4,
    };
    p.set_field(field::PROTOCOL, u32::from(protocol.to_be()));
    p.set(word::NETWORK_HEADER, p.get(word::NETWORK_HEADER).max(next));
    Ok(tci)
}

/// Takes the VLAN tag away; the next one comes out of the bytes.
pub(super) unsafe extern "C" fn vlan_pop(ctx: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    // SAFETY: as above.
    let p = unsafe { packet(ctx) };
    if p.field(field::VLAN_PRESENT) != 0 {
        p.set_field(field::VLAN_PRESENT, 0);
        p.set_field(field::VLAN_TCI, 0);
    } else if !is_vlan(p.field(field::PROTOCOL)) {
        return 0;
    } else if let Err(e) = pull_tag(p) {
        return fail(e);
    }
    let protocol = p.field(field::PROTOCOL);
    if is_vlan(protocol) {
        match pull_tag(p) {
            Ok(tci) => {
                p.set_field(field::VLAN_PRESENT, 1);
                p.set_field(field::VLAN_PROTO, protocol);
                p.set_field(field::VLAN_TCI, tci.into());
            }
            Err(e) => return fail(e),
        }
    }
    0
}

const ETH_P_IP: u16 = 0x0800;
const ETH_P_IPV6: u16 = 0x86dd;

/// Bytes of a network header without options.
fn network_len(p: View) -> Option<u64> {
    header_len((p.field(field::PROTOCOL) as u16).swap_bytes())
}

fn header_len(protocol: u16) -> Option<u64> {
    match protocol {
        ETH_P_IP => Some(20),
        ETH_P_IPV6 => Some(40),
        _ => None,
    }
}

/// The protocol behind the VLAN tags in the packet.
fn inner_protocol(p: View) -> u16 {
    let mut protocol = (p.field(field::PROTOCOL) as u16).swap_bytes();
    let mut at = p.get(word::MAC_HEADER) + ETH_HLEN;
    while matches!(protocol, ETH_P_8021Q | ETH_P_8021AD)
        && at >= p.data()
        && at + VLAN_HLEN <= p.data_end()
    {
        // SAFETY: the tag is in the packet.
        protocol = unsafe { be16(at + 2) };
        at += VLAN_HLEN;
    }
    protocol
}

/// Flags of `bpf_skb_adjust_room`.
mod room {
    pub(super) const ENCAP_L3_IPV4: u64 = 1 << 1;
    pub(super) const ENCAP_L3_IPV6: u64 = 1 << 2;
    pub(super) const ENCAP_L4_GRE: u64 = 1 << 3;
    pub(super) const ENCAP_L4_UDP: u64 = 1 << 4;
    pub(super) const NO_CSUM_RESET: u64 = 1 << 5;
    pub(super) const ENCAP_L2_ETH: u64 = 1 << 6;
    pub(super) const DECAP_L3_IPV4: u64 = 1 << 7;
    pub(super) const DECAP_L3_IPV6: u64 = 1 << 8;
    pub(super) const FIXED_GSO: u64 = 1;
    pub(super) const L2_SHIFT: u32 = 56;
    pub(super) const ENCAP_L3: u64 = ENCAP_L3_IPV4 | ENCAP_L3_IPV6;
    pub(super) const DECAP_L3: u64 = DECAP_L3_IPV4 | DECAP_L3_IPV6;
    pub(super) const SHRINK: u64 = FIXED_GSO | DECAP_L3 | NO_CSUM_RESET;
    pub(super) const ALL: u64 = FIXED_GSO
        | ENCAP_L3
        | ENCAP_L4_GRE
        | ENCAP_L4_UDP
        | ENCAP_L2_ETH
        | 0xff << L2_SHIFT
        | DECAP_L3
        | NO_CSUM_RESET;
}

/// Makes or takes room between the link-layer header, or the network header, and what follows.
pub(super) unsafe extern "C" fn adjust_room(
    ctx: u64,
    by: u64,
    mode: u64,
    flags: u64,
    _: u64,
) -> u64 {
    // SAFETY: as above.
    let p = unsafe { packet(ctx) };
    match resize(p, i64::from(by as i32), mode as u32, flags) {
        Ok(()) => {
            if flags & room::NO_CSUM_RESET == 0 {
                p.set(word::CHECKSUM, 0);
            }
            0
        }
        Err(e) => fail(e),
    }
}

fn resize(p: View, by: i64, mode: u32, flags: u64) -> Result<(), i32> {
    const NET: u32 = 0;
    const MAC: u32 = 1;
    if flags & !room::ALL != 0 {
        return Err(errno::EINVAL);
    }
    let len = by.unsigned_abs();
    if len > 0xfff {
        return Err(errno::EFAULT);
    }
    let base = network_len(p).ok_or(errno::ENOTSUPP)?;
    let link_len = p.get(word::NETWORK_HEADER).saturating_sub(p.get(word::MAC_HEADER));
    let off = match mode {
        NET => link_len + base,
        MAC => link_len,
        _ => return Err(errno::ENOTSUPP),
    };
    let shrink = by < 0;
    let least = match flags & room::DECAP_L3 {
        0 => base,
        _ if !shrink => return Err(errno::EINVAL),
        room::DECAP_L3_IPV4 => 20,
        room::DECAP_L3_IPV6 => 40,
        _ => return Err(errno::EINVAL),
    };
    let now = p.len().saturating_sub(p.get(word::NETWORK_HEADER).saturating_sub(p.data()));
    if (shrink && (len >= now || now - len < least)) || (!shrink && p.len() + len > MAX_LEN) {
        return Err(errno::ENOTSUPP);
    }
    if shrink { take_room(p, off, len, flags) } else { make_room(p, off, len, flags) }
}

fn take_room(p: View, off: u64, len: u64, flags: u64) -> Result<(), i32> {
    if flags & !room::SHRINK != 0 {
        return Err(errno::EINVAL);
    }
    if off + len > p.len() {
        return Err(errno::ENOMEM);
    }
    // SAFETY: both ranges lie in the packet.
    unsafe { shift(p.data() + len, p.data(), off) };
    move_start(p, len as i64);
    p.set(word::MAC_HEADER, p.get(word::MAC_HEADER) + len);
    p.set(word::NETWORK_HEADER, p.get(word::NETWORK_HEADER) + len);
    change_protocol(p, flags & room::DECAP_L3_IPV4 != 0, flags & room::DECAP_L3_IPV6 != 0);
    Ok(())
}

fn make_room(p: View, off: u64, len: u64, flags: u64) -> Result<(), i32> {
    let all = |bits: u64| flags & bits == bits;
    let encap = flags & room::ENCAP_L3 != 0;
    let inner_link = flags >> room::L2_SHIFT;
    let link_len = p.get(word::NETWORK_HEADER).saturating_sub(p.get(word::MAC_HEADER));
    if encap {
        let both = all(room::ENCAP_L3) || all(room::ENCAP_L4_GRE | room::ENCAP_L4_UDP);
        if both || (all(room::ENCAP_L2_ETH) && inner_link < ETH_HLEN) {
            return Err(errno::EINVAL);
        }
        if p.get(word::ENCAPSULATED) != 0 {
            return Err(errno::EALREADY);
        }
        if inner_link > len {
            return Err(errno::EINVAL);
        }
    }
    if len > headroom(p) || off > p.len() {
        return Err(errno::ENOMEM);
    }
    move_start(p, -(len as i64));
    // SAFETY: the room was checked; the bytes moved lie in the packet.
    unsafe {
        shift(p.data(), p.data() + len, off);
        zero(p.data() + off, len);
    }
    p.set(word::MAC_HEADER, p.get(word::MAC_HEADER) - len);
    p.set(word::NETWORK_HEADER, p.get(word::NETWORK_HEADER) - len);
    if encap {
        p.set(word::ENCAPSULATED, 1);
        p.set(word::NETWORK_HEADER, p.data() + link_len);
        change_protocol(p, all(room::ENCAP_L3_IPV4), all(room::ENCAP_L3_IPV6));
    }
    Ok(())
}

fn change_protocol(p: View, to_ipv4: bool, to_ipv6: bool) {
    let new = match (p.field(field::PROTOCOL) as u16).swap_bytes() {
        ETH_P_IP if to_ipv6 => ETH_P_IPV6,
        ETH_P_IPV6 if to_ipv4 => ETH_P_IP,
        _ => return,
    };
    p.set_field(field::PROTOCOL, u32::from(new.to_be()));
}

pub(super) unsafe extern "C" fn change_type(ctx: u64, to: u64, _: u64, _: u64, _: u64) -> u64 {
    const PACKET_OTHERHOST: u32 = 3;
    // SAFETY: as above.
    let p = unsafe { packet(ctx) };
    if p.field(field::PKT_TYPE) > PACKET_OTHERHOST || to as u32 > PACKET_OTHERHOST {
        return fail(errno::EINVAL);
    }
    p.set_field(field::PKT_TYPE, to as u32);
    0
}

/// The hash that was set, else one of addresses, protocol and ports: not the kernel's, whose seed
/// is secret.
pub(super) unsafe extern "C" fn get_hash_recalc(ctx: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    // SAFETY: as above.
    let p = unsafe { packet(ctx) };
    let known = p.field(field::HASH);
    if known != 0 {
        return known.into();
    }
    let network = p.get(word::NETWORK_HEADER);
    let (from, to, options) = match network_len(p) {
        Some(20) => (9, 24, 12),
        Some(_) => (6, 44, 8),
        None => (0, 0, 0),
    };
    let mut hash = 0x811c_9dc5_u32;
    // Leaves out what differs between the packets of a flow: lifetime and checksum.
    for at in (from..from + u64::from(to > 0)).chain(options..to) {
        if network + at >= p.data_end() {
            break;
        }
        // SAFETY: in the packet.
        let byte = unsafe { ((network + at) as *const u8).read_volatile() };
        hash = (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    }
    hash = hash.max(1);
    p.set_field(field::HASH, hash);
    hash.into()
}

pub(super) unsafe extern "C" fn set_hash(ctx: u64, hash: u64, _: u64, _: u64, _: u64) -> u64 {
    // SAFETY: as above.
    unsafe { packet(ctx) }.set_field(field::HASH, hash as u32);
    0
}

pub(super) unsafe extern "C" fn set_hash_invalid(ctx: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    // SAFETY: as above.
    unsafe { packet(ctx) }.set_field(field::HASH, 0);
    0
}

/// Adds to the checksum that the device made of the whole packet; there is no device.
pub(super) unsafe extern "C" fn csum_update(_: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    fail(errno::ENOTSUPP)
}

/// Counts checksums known to be good.
pub(super) unsafe extern "C" fn csum_level(ctx: u64, level: u64, _: u64, _: u64, _: u64) -> u64 {
    const QUERY: u64 = 0;
    const INC: u64 = 1;
    const DEC: u64 = 2;
    const RESET: u64 = 3;
    const MOST: u64 = 4;
    // SAFETY: as above.
    let p = unsafe { packet(ctx) };
    let known = p.get(word::CHECKSUM);
    match level {
        INC => p.set(word::CHECKSUM, (known + 1).min(MOST)),
        DEC => p.set(word::CHECKSUM, known.saturating_sub(1)),
        RESET => p.set(word::CHECKSUM, 0),
        QUERY if known > 0 => return known - 1,
        QUERY => return fail(errno::EACCES),
        _ => return fail(errno::EINVAL),
    }
    0
}

/// Marks the packet as having met congestion, when its ends can take that; tells whether they can.
pub(super) unsafe extern "C" fn ecn_set_ce(ctx: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    const NOT_ECT: u8 = 0;
    const CE: u8 = 3;
    // SAFETY: as above.
    let p = unsafe { packet(ctx) };
    let network = p.get(word::NETWORK_HEADER);
    let Some(len) = header_len(inner_protocol(p)) else { return 0 };
    // The kernel looks at what stands behind the Ethernet header, tags or not.
    if p.len() < len || network + len > p.data_end() {
        return 0;
    }
    // SAFETY: the header is in the packet.
    unsafe {
        if len == 20 {
            let tos = (network + 1) as *mut u8;
            match tos.read_volatile() & CE {
                NOT_ECT => return 0,
                CE => return 1,
                _ => {}
            }
            let sum = (network + 10) as *mut u16;
            let old =
                u16::from_be_bytes([((network) as *const u8).read_volatile(), tos.read_volatile()]);
            tos.write_volatile(tos.read_volatile() | CE);
            let new =
                u16::from_be_bytes([((network) as *const u8).read_volatile(), tos.read_volatile()]);
            let mut csum =
                u32::from(!sum.read_unaligned().swap_bytes()) + u32::from(!old) + u32::from(new);
            csum = (csum & 0xffff) + (csum >> 16);
            csum = (csum & 0xffff) + (csum >> 16);
            sum.write_unaligned((!(csum as u16)).swap_bytes());
        } else {
            // The class lies across the first two bytes.
            let at = (network + 1) as *mut u8;
            match at.read_volatile() >> 4 & CE {
                NOT_ECT => return 0,
                CE => return 1,
                _ => at.write_volatile(at.read_volatile() | CE << 4),
            }
        }
    }
    1
}

/// Says when the packet is to leave, and by which clock.
pub(super) unsafe extern "C" fn set_tstamp(ctx: u64, time: u64, clock: u64, _: u64, _: u64) -> u64 {
    const REALTIME: u32 = 0;
    const TAI: u32 = 2;
    // SAFETY: as above.
    let p = unsafe { packet(ctx) };
    if network_len(p).is_none() {
        return fail(errno::EOPNOTSUPP);
    }
    let clock = clock as u32;
    if clock > TAI || (clock != REALTIME && time == 0) {
        return fail(errno::EINVAL);
    }
    p.set_field(field::TSTAMP, time as u32);
    p.set_field(field::TSTAMP + 4, (time >> 32) as u32);
    p.set_field(field::TSTAMP_TYPE, clock);
    0
}

/// Says that the packet goes to another interface.
pub(super) unsafe extern "C" fn redirect(_: u64, flags: u64, _: u64, _: u64, _: u64) -> u64 {
    const INGRESS: u64 = 1;
    const TC_ACT_SHOT: u64 = 2;
    const TC_ACT_REDIRECT: u64 = 7;
    if flags & !INGRESS == 0 { TC_ACT_REDIRECT } else { TC_ACT_SHOT }
}
