//! Contexts of programs that only the kernel can run: they are judged, and never given anything here.
//!
//! The rules are those of net/core/filter.c and kernel/bpf/cgroup.c (`*_is_valid_access`). Where fields overlap, the narrowest comes first: an access is that of the first field
//! that it fits in.

use super::FieldKind::{Packet, PacketEnd, Scalar, SockCommonOrNull, Socket, SocketOrNull, Words};
use super::{
    Field, Layout, SK_BUFF_LWT, SK_BUFF_SK_SKB, fields, head, read, whole, word_rw, write,
};
use crate::prog::{AttachType as A, ProgramType as P};

/// Finds the context layout of a program type that has none outside the kernel.
#[must_use]
pub fn kernel_layout(prog: P, attach: Option<A>) -> Option<Layout> {
    Some(match (prog, attach) {
        (P::CgroupSock, Some(A::CgroupInet4PostBind)) => POST_BIND4,
        (P::CgroupSock, Some(A::CgroupInet6PostBind)) => POST_BIND6,
        (P::CgroupSockAddr, Some(attach)) => sock_addr(attach),
        (P::CgroupSockopt, Some(A::CgroupGetsockopt)) => GETSOCKOPT,
        (P::CgroupSockopt, Some(A::CgroupSetsockopt)) => SETSOCKOPT,
        (P::CgroupSysctl, _) => SYSCTL,
        (P::CgroupDevice, _) => CGROUP_DEVICE,
        (P::SkSkb, _) => SK_BUFF_SK_SKB,
        (P::SkMsg, _) => SK_MSG,
        (P::SkReuseport, _) => SK_REUSEPORT,
        (P::SockOps, _) => SOCK_OPS,
        (P::LwtSeg6local, _) => SK_BUFF_LWT,
        (P::Netfilter, _) => NETFILTER,
        _ => return None,
    })
}

const fn word(name: &'static str, off: u32) -> Field {
    whole(name, off, 4, Scalar)
}

/// Two words of an address at once.
const fn pair(name: &'static str, off: u32) -> Field {
    Field { writable: true, ..whole(name, off, 8, Scalar) }
}

/// `struct bpf_sock` after `bind`, when nothing can be changed: the address of IPv4, what both have, the address of IPv6.
const POST_BIND: &[Field; 18] = &[
    read("src_ip4", 24, 4),
    head("family", 4),
    head("type", 8),
    head("protocol", 12),
    head("src_port", 44),
    read("dst_port", 48, 2),
    word("dst_port", 48),
    read("dst_ip4", 52, 4),
    read("dst_ip6[0]", 56, 4),
    read("dst_ip6[1]", 60, 4),
    read("dst_ip6[2]", 64, 4),
    read("dst_ip6[3]", 68, 4),
    head("state", 72),
    head("rx_queue_mapping", 76),
    read("src_ip6[0]", 28, 4),
    read("src_ip6[1]", 32, 4),
    read("src_ip6[2]", 36, 4),
    read("src_ip6[3]", 40, 4),
];

const POST_BIND4: Layout = fields(80, POST_BIND.split_at(14).0);
const POST_BIND6: Layout = fields(80, POST_BIND.split_at(1).1);

/// `struct bpf_sock_addr`, so that what each hook has stands together: the addresses of IPv4, what all have, the
/// addresses of IPv6.
const SOCK_ADDR: &[Field; 19] = &[
    write("msg_src_ip4", 40, 4),
    write("user_ip4", 4, 4),
    word("user_family", 0),
    write("user_port", 24, 4),
    word("family", 28),
    word("type", 32),
    word("protocol", 36),
    whole("sk", 64, 8, Socket),
    write("user_ip6[0]", 8, 4),
    write("user_ip6[1]", 12, 4),
    write("user_ip6[2]", 16, 4),
    write("user_ip6[3]", 20, 4),
    pair("user_ip6[0]", 8),
    pair("user_ip6[2]", 16),
    write("msg_src_ip6[0]", 44, 4),
    write("msg_src_ip6[1]", 48, 4),
    write("msg_src_ip6[2]", 52, 4),
    write("msg_src_ip6[3]", 56, 4),
    pair("msg_src_ip6[1]", 48),
];

/// As much of it as the hook has.
fn sock_addr(attach: A) -> Layout {
    let of = match attach {
        A::CgroupUdp4Sendmsg => 0..8,
        A::CgroupUdp6Sendmsg => 2..19,
        A::CgroupInet4Bind
        | A::CgroupInet4Connect
        | A::CgroupInet4Getpeername
        | A::CgroupInet4Getsockname
        | A::CgroupUdp4Recvmsg => 1..8,
        A::CgroupInet6Bind
        | A::CgroupInet6Connect
        | A::CgroupInet6Getpeername
        | A::CgroupInet6Getsockname
        | A::CgroupUdp6Recvmsg => 2..14,
        _ => 2..8,
    };
    fields(72, SOCK_ADDR.get(of).unwrap_or_default())
}

/// `struct bpf_sockopt` of `getsockopt`.
const GETSOCKOPT: Layout = fields(
    40,
    &[
        whole("sk", 0, 8, Socket),
        whole("optval", 8, 8, Packet),
        whole("optval_end", 16, 8, PacketEnd),
        word("level", 24),
        word("optname", 28),
        word_rw("optlen", 32),
        word_rw("retval", 36),
    ],
);

/// `struct bpf_sockopt` of `setsockopt`.
const SETSOCKOPT: Layout = fields(
    40,
    &[
        whole("sk", 0, 8, Socket),
        whole("optval", 8, 8, Packet),
        whole("optval_end", 16, 8, PacketEnd),
        word_rw("level", 24),
        word_rw("optname", 28),
        word_rw("optlen", 32),
    ],
);

/// `struct bpf_sysctl`.
const SYSCTL: Layout = fields(8, &[read("write", 0, 4), write("file_pos", 4, 4)]);

/// `struct bpf_cgroup_dev_ctx`.
const CGROUP_DEVICE: Layout =
    fields(12, &[read("access_type", 0, 4), word("major", 4), word("minor", 8)]);

/// `struct sk_msg_md`.
const SK_MSG: Layout = fields(
    80,
    &[
        whole("data", 0, 8, Packet),
        whole("data_end", 8, 8, PacketEnd),
        whole("numbers", 16, 56, Words),
        whole("sk", 72, 8, Socket),
    ],
);

/// `struct sk_reuseport_md`.
const SK_REUSEPORT: Layout = fields(
    56,
    &[
        whole("data", 0, 8, Packet),
        whole("data_end", 8, 8, PacketEnd),
        read("len", 16, 4),
        whole("eth_protocol", 20, 2, Scalar),
        whole("eth_protocol", 22, 2, Scalar),
        word("eth_protocol", 20),
        read("ip_protocol", 24, 4),
        read("bind_inany", 28, 4),
        word("hash", 32),
        whole("sk", 40, 8, Socket),
        whole("migrating_sk", 48, 8, SockCommonOrNull),
    ],
);

/// `struct bpf_sock_ops`.
const SOCK_OPS: Layout = fields(
    224,
    &[
        word("op", 0),
        word_rw("reply", 4),
        whole("numbers", 8, 156, Words),
        word_rw("sk_txhash", 164),
        whole("bytes_received", 168, 8, Scalar),
        whole("bytes_acked", 176, 8, Scalar),
        whole("sk", 184, 8, SocketOrNull),
        whole("skb_data", 192, 8, Packet),
        whole("skb_data_end", 200, 8, PacketEnd),
        word("skb_len", 208),
        whole("skb_tcp_flags", 212, 1, Scalar),
        whole("skb_tcp_flags", 212, 2, Scalar),
        word("skb_tcp_flags", 212),
        whole("skb_hwtstamp", 216, 8, Scalar),
    ],
);

/// `struct bpf_nf_ctx`: two of the kernel's objects.
const NETFILTER: Layout = fields(16, &[whole("state", 0, 8, Scalar), whole("skb", 8, 8, Scalar)]);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ctx::BPF_SOCK;

    #[test]
    fn narrower_fields_come_first_and_all_are_inside_their_context() {
        for l in [
            BPF_SOCK,
            POST_BIND4,
            POST_BIND6,
            fields(72, SOCK_ADDR),
            GETSOCKOPT,
            SETSOCKOPT,
            SYSCTL,
            CGROUP_DEVICE,
            SK_BUFF_SK_SKB,
            SK_MSG,
            SK_REUSEPORT,
            SOCK_OPS,
            NETFILTER,
        ] {
            assert!(l.fields.iter().all(|f| f.size > 0 && f.off + f.size <= l.size), "{l:?}");
            for (i, f) in l.fields.iter().enumerate() {
                // What stands before a field and holds all of it would hide it.
                let hides = |g: &Field| g.off <= f.off && f.off + f.size <= g.off + g.size;
                assert!(!l.fields[..i].iter().any(hides), "{} of {l:?}", f.name);
            }
        }
    }
}
