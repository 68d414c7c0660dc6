//! What a program finds behind r1: the context of each program type, as offsets, widths and rights.

mod kernel;

pub use kernel::kernel_layout;

use crate::prog::{AttachType, ProgramType};

/// One field of a context.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Field {
    /// The C name.
    pub name: &'static str,
    /// Offset in bytes from the context pointer.
    pub off: u32,
    /// Size in bytes.
    pub size: u32,
    /// The program may store to it, in its whole width.
    pub writable: bool,
    /// Narrower aligned loads are allowed.
    pub narrow: bool,
    /// What a load yields.
    pub kind: FieldKind,
}

impl Field {
    /// Tells whether a load of `size` bytes at `off`, which are among those of the field, is allowed.
    #[must_use]
    pub const fn is_read(&self, off: u32, size: u32) -> bool {
        match self.kind {
            FieldKind::Words => size == 4,
            FieldKind::Head => self.size == size || self.off == off,
            _ => self.size == size || self.narrow,
        }
    }
}

/// Tells what a load of a context field yields.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FieldKind {
    /// A number.
    Scalar,
    /// A number of which narrower loads begin where it begins.
    Head,
    /// Numbers of four bytes, each read as a whole.
    Words,
    /// Bytes: aligned loads, and stores when writable, of any width.
    Bytes,
    /// Start of the packet.
    Packet,
    /// End of the packet.
    PacketEnd,
    /// Start of the metadata before the packet.
    PacketMeta,
    /// A socket, or NULL; an eight-byte load.
    SockCommonOrNull,
    /// A full socket, or NULL; an eight-byte load.
    SocketOrNull,
    /// A full socket; an eight-byte load.
    Socket,
    /// What a flow dissector fills in; an eight-byte load.
    FlowKeys,
}

/// A context layout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// First byte a program may touch.
    pub first: u32,
    /// Size in bytes; no access may pass it.
    pub size: u32,
    /// The fields in order of offset, or empty when aligned loads of any width yield numbers.
    pub fields: &'static [Field],
    /// Without fields: the program may store to it.
    pub writable: bool,
}

/// The tracing frame (fentry, fexit, fmod_ret, fsession and their multi forms): eight-byte words
/// around the pointer that programs get in r1. Words below it are reached through helpers only.
pub mod tracing {
    /// Argument words in the frame; further arguments are not shown.
    pub const MAX_ARGS: usize = 12;
    /// Argument words shown when the function's prototype is not known: the integer registers.
    pub const UNTYPED_ARGS: usize = 6;
    /// Bytes of the frame a program may read: [`MAX_ARGS`] arguments and the return value behind
    /// the last of them.
    pub const SIZE: u32 = (MAX_ARGS as u32 + 1) * 8;
    /// Number of arguments shown, `bpf_get_func_arg_cnt` (the kernel's place, ctx\[-1\]).
    pub const NR_ARGS: i32 = -8;
    /// Address of the function, `bpf_get_func_ip` (the kernel's place, ctx\[-2\]).
    pub const IP: i32 = -16;
    /// Attach cookie of the running program, `bpf_get_attach_cookie`.
    pub const COOKIE: i32 = -24;
    /// 0 at entry, 1 at return, `bpf_session_is_return`.
    pub const IS_RETURN: i32 = -32;
    /// Address of the running program's session cookie, eight bytes kept from entry to return,
    /// `bpf_session_cookie`.
    pub const SESSION: i32 = -40;
    /// The frame pointer, `rbp`, when the function was called, and again at return.
    pub const BP: i32 = 136;
    /// The stack pointer when the function was called, `skep_get_func_sp`.
    pub const SP: i32 = 176;
}

/// `struct pt_regs` of x86-64 (arch/x86/include/asm/ptrace.h), the context of uprobe-style
/// programs.
pub mod pt_regs {
    #![allow(missing_docs, reason = "register names")]
    pub const R15: u32 = 0;
    pub const R14: u32 = 8;
    pub const R13: u32 = 16;
    pub const R12: u32 = 24;
    pub const BP: u32 = 32;
    pub const BX: u32 = 40;
    pub const R11: u32 = 48;
    pub const R10: u32 = 56;
    pub const R9: u32 = 64;
    pub const R8: u32 = 72;
    pub const AX: u32 = 80;
    pub const CX: u32 = 88;
    pub const DX: u32 = 96;
    pub const SI: u32 = 104;
    pub const DI: u32 = 112;
    pub const ORIG_AX: u32 = 120;
    pub const IP: u32 = 128;
    pub const CS: u32 = 136;
    pub const FLAGS: u32 = 144;
    pub const SP: u32 = 152;
    pub const SS: u32 = 160;
    pub const SIZE: u32 = 168;
}

/// What stands below the context of packet programs ([`XDP_MD`] and the `SK_BUFF_` ones):
/// eight-byte words at these offsets from the pointer in r1.
///
/// The context itself has the layout of the UAPI structure, so most loads and stores need no
/// change. Its 32-bit `data`, `data_end` and `data_meta` cannot hold addresses: loads of them
/// become 64-bit loads of the first three words here.
pub mod packet {
    /// Address of the first byte of the packet.
    pub const DATA: i32 = -8;
    /// Address behind the last byte that can be reached through pointers.
    pub const DATA_END: i32 = -16;
    /// Address of the metadata before the packet; [`DATA`] when there is none.
    pub const DATA_META: i32 = -24;
    /// Lowest address of the buffer.
    pub const HARD_START: i32 = -32;
    /// Address that [`DATA_END`] may be moved to at most.
    pub const HARD_END: i32 = -40;
    /// Bytes of the packet behind [`DATA_END`] (fragments): they lie there, but only helpers reach
    /// them.
    pub const FRAGMENTS: i32 = -48;
    /// Address of the link-layer header; 0 for `xdp_md`.
    pub const MAC_HEADER: i32 = -56;
    /// Address of the network header; 0 for `xdp_md`.
    pub const NETWORK_HEADER: i32 = -64;
    /// What `bpf_redirect` and its like asked for: 0 nothing, else one more than an interface index
    /// or a map's key.
    pub const REDIRECT: i32 = -72;
    /// The map of that key, as programs know it; 0 for an interface.
    pub const REDIRECT_MAP: i32 = -80;
    /// Which structure the context is: [`XDP`] or [`SKB`].
    pub const KIND: i32 = -88;
    /// Address behind the whole buffer: where fragments must end.
    pub const ROOM_END: i32 = -96;
    /// What is known of the packet's checksum: 0 nothing, else one more than the number of
    /// checksums known to be good.
    pub const CHECKSUM: i32 = -104;
    /// Not 0 when a helper has put another network header around the packet.
    pub const ENCAPSULATED: i32 = -112;
    /// [`KIND`] of an `xdp_md`.
    pub const XDP: u64 = 1;
    /// [`KIND`] of an `__sk_buff`.
    pub const SKB: u64 = 2;
    /// [`KIND`] has this bit when the packet may have fragments (`xdp.frags`).
    pub const MAY_FRAGMENT: u64 = 0x100;
    /// Bytes below the context.
    pub const BELOW: u32 = 128;

    /// Returns the word that holds what a context field of a pointer kind stands for.
    #[must_use]
    pub const fn word(kind: super::FieldKind) -> Option<i32> {
        match kind {
            super::FieldKind::Packet => Some(DATA),
            super::FieldKind::PacketEnd => Some(DATA_END),
            super::FieldKind::PacketMeta => Some(DATA_META),
            _ => None,
        }
    }
}

/// Offsets in `struct __sk_buff` (include/uapi/linux/bpf.h).
pub mod sk_buff {
    #![allow(missing_docs, reason = "the kernel's field names")]
    pub const LEN: u32 = 0;
    pub const PKT_TYPE: u32 = 4;
    pub const MARK: u32 = 8;
    pub const QUEUE_MAPPING: u32 = 12;
    pub const PROTOCOL: u32 = 16;
    pub const VLAN_PRESENT: u32 = 20;
    pub const VLAN_TCI: u32 = 24;
    pub const VLAN_PROTO: u32 = 28;
    pub const PRIORITY: u32 = 32;
    pub const INGRESS_IFINDEX: u32 = 36;
    pub const IFINDEX: u32 = 40;
    pub const TC_INDEX: u32 = 44;
    pub const CB: u32 = 48;
    pub const HASH: u32 = 68;
    pub const TC_CLASSID: u32 = 72;
    pub const DATA: u32 = 76;
    pub const DATA_END: u32 = 80;
    pub const NAPI_ID: u32 = 84;
    pub const FAMILY: u32 = 88;
    pub const REMOTE_IP4: u32 = 92;
    pub const LOCAL_IP4: u32 = 96;
    pub const REMOTE_IP6: u32 = 100;
    pub const LOCAL_IP6: u32 = 116;
    pub const REMOTE_PORT: u32 = 132;
    pub const LOCAL_PORT: u32 = 136;
    pub const DATA_META: u32 = 140;
    pub const FLOW_KEYS: u32 = 144;
    pub const TSTAMP: u32 = 152;
    pub const WIRE_LEN: u32 = 160;
    pub const GSO_SEGS: u32 = 164;
    pub const SK: u32 = 168;
    pub const GSO_SIZE: u32 = 176;
    pub const TSTAMP_TYPE: u32 = 180;
    pub const HWTSTAMP: u32 = 184;
    pub const SIZE: u32 = 192;
}

/// A field that is read in its whole width only.
const fn whole(name: &'static str, off: u32, size: u32, kind: FieldKind) -> Field {
    Field { name, off, size, writable: false, narrow: false, kind }
}

/// A number that may also be read in part.
const fn read(name: &'static str, off: u32, size: u32) -> Field {
    Field { name, off, size, writable: false, narrow: true, kind: Scalar }
}

/// A number of `struct bpf_sock` that may also be read in part, from its beginning.
const fn head(name: &'static str, off: u32) -> Field {
    Field { name, off, size: 4, writable: false, narrow: true, kind: FieldKind::Head }
}

/// A number that may be read, also in part, and written.
const fn write(name: &'static str, off: u32, size: u32) -> Field {
    Field { name, off, size, writable: true, narrow: true, kind: Scalar }
}

const fn fields(size: u32, fields: &'static [Field]) -> Layout {
    Layout { first: 0, size, fields, writable: false }
}

/// A number that is read and written as a whole.
const fn word_rw(name: &'static str, off: u32) -> Field {
    Field { writable: true, ..whole(name, off, 4, Scalar) }
}

const fn words(size: u32) -> Layout {
    fields(size, &[])
}

use FieldKind::{Bytes, FlowKeys, Packet, PacketEnd, PacketMeta, Scalar, SockCommonOrNull};

/// `struct xdp_md` (include/uapi/linux/bpf.h).
pub const XDP_MD: Layout = fields(
    24,
    &[
        whole("data", 0, 4, Packet),
        whole("data_end", 4, 4, PacketEnd),
        whole("data_meta", 8, 4, PacketMeta),
        whole("ingress_ifindex", 12, 4, Scalar),
        whole("rx_queue_index", 16, 4, Scalar),
        whole("egress_ifindex", 20, 4, Scalar),
    ],
);

/// Who looks at `struct __sk_buff`: each sees and writes other fields (net/core/filter.c
/// `*_is_valid_access`).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Skb {
    Socket,
    Tc,
    Cgroup,
    Lwt,
    SocketMap,
}

/// Number of fields of `struct __sk_buff`; a user may see fewer.
const SK_BUFF_FIELDS: usize = 36;

const fn sk_buff_fields(user: Skb) -> ([Field; SK_BUFF_FIELDS], usize) {
    let tc = matches!(user, Skb::Tc);
    let sock = matches!(user, Skb::Socket);
    let cgroup = matches!(user, Skb::Cgroup);
    let lwt = matches!(user, Skb::Lwt);
    let sk_skb = matches!(user, Skb::SocketMap);
    let local = cgroup || sk_skb;
    // Who sees a field, who writes it.
    let all: [(Field, bool, bool); SK_BUFF_FIELDS] = [
        (read("len", 0, 4), true, false),
        (read("pkt_type", 4, 4), true, false),
        (read("mark", 8, 4), !sk_skb, !sock),
        (read("queue_mapping", 12, 4), true, tc),
        (read("protocol", 16, 4), true, false),
        (read("vlan_present", 20, 4), true, false),
        (read("vlan_tci", 24, 4), true, false),
        (read("vlan_proto", 28, 4), true, false),
        (read("priority", 32, 4), true, !sock),
        (read("ingress_ifindex", 36, 4), true, false),
        (read("ifindex", 40, 4), true, false),
        (read("tc_index", 44, 4), true, tc || sk_skb),
        (whole("cb", 48, 20, Bytes), true, !sk_skb),
        (read("hash", 68, 4), true, false),
        (read("tc_classid", 72, 4), tc, tc),
        (whole("data", 76, 4, Packet), !sock, false),
        (whole("data_end", 80, 4, PacketEnd), !sock, false),
        (read("napi_id", 84, 4), true, false),
        (read("family", 88, 4), local, false),
        (whole("remote_ip4", 92, 4, Scalar), local, false),
        (whole("local_ip4", 96, 4, Scalar), local, false),
        (whole("remote_ip6[0]", 100, 4, Scalar), local, false),
        (whole("remote_ip6[1]", 104, 4, Scalar), local, false),
        (whole("remote_ip6[2]", 108, 4, Scalar), local, false),
        (whole("remote_ip6[3]", 112, 4, Scalar), local, false),
        (whole("local_ip6[0]", 116, 4, Scalar), local, false),
        (whole("local_ip6[1]", 120, 4, Scalar), local, false),
        (whole("local_ip6[2]", 124, 4, Scalar), local, false),
        (whole("local_ip6[3]", 128, 4, Scalar), local, false),
        (read("remote_port", 132, 4), local, false),
        (read("local_port", 136, 4), local, false),
        (whole("data_meta", 140, 4, PacketMeta), tc, false),
        (whole("tstamp", 152, 8, Scalar), tc || cgroup, tc || cgroup),
        (read("wire_len", 160, 4), tc, false),
        (read("gso_segs", 164, 4), true, false),
        (whole("sk", 168, 8, SockCommonOrNull), true, false),
    ];
    let mut out = [read("", 0, 0); SK_BUFF_FIELDS];
    let (mut i, mut n) = (0, 0);
    while i < all.len() {
        let (mut f, seen, written) = all[i];
        if seen {
            f.writable = written && !(lwt && f.off == 12);
            out[n] = f;
            n += 1;
        }
        i += 1;
    }
    (out, n)
}

/// The fields behind `sk`, which everybody or only some see.
const SK_BUFF_TAIL: [Field; 3] = [
    read("gso_size", 176, 4),
    whole("tstamp_type", 180, 1, Scalar),
    whole("hwtstamp", 184, 8, Scalar),
];

const fn with_tail(user: Skb) -> ([Field; SK_BUFF_FIELDS + 3], usize) {
    let (head, n) = sk_buff_fields(user);
    let mut out = [read("", 0, 0); SK_BUFF_FIELDS + 3];
    let (mut i, mut k) = (0, n);
    while i < n {
        out[i] = head[i];
        i += 1;
    }
    out[k] = SK_BUFF_TAIL[0];
    k += 1;
    if matches!(user, Skb::Tc) {
        out[k] = SK_BUFF_TAIL[1];
        k += 1;
    }
    if matches!(user, Skb::Tc | Skb::Cgroup) {
        out[k] = SK_BUFF_TAIL[2];
        k += 1;
    }
    (out, k)
}

macro_rules! skb_layout {
    ($(#[$doc:meta])* $name:ident, $user:expr) => {
        $(#[$doc])*
        pub const $name: Layout = {
            const FIELDS: ([Field; SK_BUFF_FIELDS + 3], usize) = with_tail($user);
            fields(sk_buff::SIZE, FIELDS.0.split_at(FIELDS.1).0)
        };
    };
}

skb_layout!(
    /// `struct __sk_buff` as socket filters see it.
    SK_BUFF_SOCKET,
    Skb::Socket
);
skb_layout!(
    /// `struct __sk_buff` as traffic control sees it.
    SK_BUFF_TC,
    Skb::Tc
);
skb_layout!(
    /// `struct __sk_buff` as programs of a control group see it.
    SK_BUFF_CGROUP,
    Skb::Cgroup
);
skb_layout!(
    /// `struct __sk_buff` as lightweight tunnels see it.
    SK_BUFF_LWT,
    Skb::Lwt
);

skb_layout!(
    /// `struct __sk_buff` as parsers and verdicts of socket maps see it.
    SK_BUFF_SK_SKB,
    Skb::SocketMap
);

/// `struct __sk_buff` as flow dissectors see it.
pub const SK_BUFF_FLOW: Layout = fields(
    sk_buff::SIZE,
    &[
        whole("data", 76, 4, Packet),
        whole("data_end", 80, 4, PacketEnd),
        whole("flow_keys", 144, 8, FlowKeys),
    ],
);

/// `struct bpf_sock` behind a pointer to a full socket.
pub const SOCK: Layout = fields(
    80,
    &[
        whole("bound_dev_if", 0, 4, Scalar),
        head("family", 4),
        head("type", 8),
        head("protocol", 12),
        whole("mark", 16, 4, Scalar),
        whole("priority", 20, 4, Scalar),
        read("src_ip4", 24, 4),
        read("src_ip6[0]", 28, 4),
        read("src_ip6[1]", 32, 4),
        read("src_ip6[2]", 36, 4),
        read("src_ip6[3]", 40, 4),
        head("src_port", 44),
        whole("dst_port", 48, 4, Scalar),
        read("dst_port", 48, 2),
        read("dst_ip4", 52, 4),
        read("dst_ip6[0]", 56, 4),
        read("dst_ip6[1]", 60, 4),
        read("dst_ip6[2]", 64, 4),
        read("dst_ip6[3]", 68, 4),
        head("state", 72),
        head("rx_queue_mapping", 76),
    ],
);

/// `struct bpf_sock` behind a pointer to a socket of any kind: what request and time-wait sockets
/// have too.
pub const SOCK_COMMON: Layout = fields(
    80,
    &[
        whole("bound_dev_if", 0, 4, Scalar),
        head("family", 4),
        read("src_ip4", 24, 4),
        read("src_ip6[0]", 28, 4),
        read("src_ip6[1]", 32, 4),
        read("src_ip6[2]", 36, 4),
        read("src_ip6[3]", 40, 4),
        head("src_port", 44),
        whole("dst_port", 48, 4, Scalar),
        read("dst_port", 48, 2),
        read("dst_ip4", 52, 4),
        read("dst_ip6[0]", 56, 4),
        read("dst_ip6[1]", 60, 4),
        read("dst_ip6[2]", 64, 4),
        read("dst_ip6[3]", 68, 4),
        head("state", 72),
        head("rx_queue_mapping", 76),
    ],
);

/// `struct bpf_tcp_sock`: twenty words, two of eight bytes, four words.
pub const TCP_SOCK: Layout = fields(
    112,
    &[
        whole("numbers", 0, 80, FieldKind::Words),
        whole("bytes_received", 80, 8, Scalar),
        whole("bytes_acked", 88, 8, Scalar),
        whole("numbers", 96, 16, FieldKind::Words),
    ],
);

/// `struct bpf_xdp_sock`.
pub const XDP_SOCK: Layout = fields(4, &[whole("queue_id", 0, 4, Scalar)]);

/// Bytes of `struct bpf_flow_keys`, all of which a flow dissector reads and writes.
pub const FLOW_KEYS_SIZE: u32 = 56;

/// `struct bpf_sock` as the context of programs that see a socket being made.
pub const BPF_SOCK: Layout = fields(
    80,
    &[
        word_rw("bound_dev_if", 0),
        head("family", 4),
        head("type", 8),
        head("protocol", 12),
        word_rw("mark", 16),
        word_rw("priority", 20),
        read("dst_port", 48, 2),
        whole("dst_port", 48, 4, Scalar),
        read("dst_ip4", 52, 4),
        read("dst_ip6[0]", 56, 4),
        read("dst_ip6[1]", 60, 4),
        read("dst_ip6[2]", 64, 4),
        read("dst_ip6[3]", 68, 4),
        head("state", 72),
        head("rx_queue_mapping", 76),
    ],
);

/// The context of uprobe-style programs: any aligned word of `struct pt_regs`.
pub const PT_REGS: Layout = words(pt_regs::SIZE);

/// The context of tracing programs.
pub const TRACING: Layout = words(tracing::SIZE);

/// The context of raw tracepoints: twelve arguments.
pub const RAW_TRACEPOINT: Layout = words(tracing::MAX_ARGS as u32 * 8);

/// The context of tracepoints: the record, without its first word (kernel/trace/bpf_trace.c
/// `tp_prog_is_valid_access`).
pub const TRACEPOINT: Layout = Layout { first: 8, size: 8192, fields: &[], writable: false };

/// `struct bpf_perf_event_data`: registers, and two numbers that may be read in part.
pub const PERF_EVENT: Layout = {
    const WORDS: usize = pt_regs::SIZE as usize / 8;
    const FIELDS: [Field; WORDS + 2] = {
        let mut out = [whole("regs", 0, 8, Scalar); WORDS + 2];
        let mut i = 0;
        while i < WORDS {
            out[i].off = i as u32 * 8;
            i += 1;
        }
        out[WORDS] = read("sample_period", pt_regs::SIZE, 8);
        out[WORDS + 1] = read("addr", pt_regs::SIZE + 8, 8);
        out
    };
    fields(pt_regs::SIZE + 16, &FIELDS)
};

/// `struct bpf_sk_lookup`.
pub const BPF_SK_LOOKUP: Layout = fields(
    72,
    &[
        whole("sk", 0, 8, FieldKind::SocketOrNull),
        read("family", 8, 4),
        read("protocol", 12, 4),
        read("remote_ip4", 16, 4),
        read("remote_ip6[0]", 20, 4),
        read("remote_ip6[1]", 24, 4),
        read("remote_ip6[2]", 28, 4),
        read("remote_ip6[3]", 32, 4),
        read("remote_port", 36, 4),
        read("local_ip4", 40, 4),
        read("local_ip6[0]", 44, 4),
        read("local_ip6[1]", 48, 4),
        read("local_ip6[2]", 52, 4),
        read("local_ip6[3]", 56, 4),
        read("local_port", 60, 4),
        read("ingress_ifindex", 64, 4),
    ],
);

/// The context of `syscall` programs: bytes of their caller's.
pub const SYSCALL: Layout = Layout { first: 0, size: u16::MAX as u32, fields: &[], writable: true };

/// Finds the context layout of a program type, when skep knows that type.
#[must_use]
pub fn layout(prog: ProgramType, attach: Option<AttachType>) -> Option<Layout> {
    match (prog, attach) {
        (ProgramType::Kprobe, _) => Some(PT_REGS),
        (ProgramType::Tracing, Some(AttachType::TraceIter)) => None,
        (ProgramType::Tracing, _) => Some(TRACING),
        (ProgramType::RawTracepoint | ProgramType::RawTracepointWritable, _) => {
            Some(RAW_TRACEPOINT)
        }
        (ProgramType::Tracepoint, _) => Some(TRACEPOINT),
        (ProgramType::PerfEvent, _) => Some(PERF_EVENT),
        (ProgramType::Xdp, _) => Some(XDP_MD),
        (ProgramType::SocketFilter, _) => Some(SK_BUFF_SOCKET),
        (ProgramType::SchedCls | ProgramType::SchedAct, _) => Some(SK_BUFF_TC),
        (ProgramType::CgroupSkb, _) => Some(SK_BUFF_CGROUP),
        (ProgramType::LwtIn | ProgramType::LwtOut | ProgramType::LwtXmit, _) => Some(SK_BUFF_LWT),
        (ProgramType::FlowDissector, _) => Some(SK_BUFF_FLOW),
        (ProgramType::CgroupSock, _) => Some(BPF_SOCK),
        (ProgramType::SkLookup, _) => Some(BPF_SK_LOOKUP),
        (ProgramType::Syscall, _) => Some(SYSCALL),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_in_order_and_inside_their_context() {
        for l in [
            XDP_MD,
            SK_BUFF_SOCKET,
            SK_BUFF_TC,
            SK_BUFF_CGROUP,
            SK_BUFF_LWT,
            SK_BUFF_FLOW,
            BPF_SK_LOOKUP,
            PERF_EVENT,
        ] {
            assert!(
                l.fields.windows(2).all(|w| w[0].off + w[0].size <= w[1].off),
                "{:?}",
                l.fields
            );
            assert!(l.fields.iter().all(|f| f.size > 0 && f.off + f.size <= l.size));
        }
    }

    #[test]
    fn the_kinds_of_sk_buff_show_what_the_kernel_shows() {
        let has =
            |l: Layout, name: &str| l.fields.iter().find(|f| f.name == name).map(|f| f.writable);
        assert_eq!(has(SK_BUFF_SOCKET, "data"), None);
        assert_eq!(has(SK_BUFF_SOCKET, "mark"), Some(false));
        assert_eq!(has(SK_BUFF_TC, "mark"), Some(true));
        assert_eq!(has(SK_BUFF_TC, "family"), None);
        assert_eq!(has(SK_BUFF_CGROUP, "data_meta"), None);
        assert_eq!(has(SK_BUFF_LWT, "queue_mapping"), Some(false));
    }
}
