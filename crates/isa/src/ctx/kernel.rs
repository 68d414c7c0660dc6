//! Contexts of programs that only the kernel can run: they are judged, and never given anything here.
//!
//! The rules are those of net/core/filter.c and kernel/bpf/cgroup.c (`*_is_valid_access`). Where fields overlap, the narrowest comes first: an access is that of the first field
//! that it fits in.

use super::FieldKind::{Packet, PacketEnd, Scalar, SockCommonOrNull, Socket, SocketOrNull};
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

/// `struct bpf_sock` after `bind`: the address is known, and nothing can be changed.
const POST_BIND4: Layout = fields(
    80,
    &[
        head("family", 4),
        head("type", 8),
        head("protocol", 12),
        read("src_ip4", 24, 4),
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
    ],
);

/// The same for IPv6.
const POST_BIND6: Layout = fields(
    80,
    &[
        head("family", 4),
        head("type", 8),
        head("protocol", 12),
        read("src_ip6[0]", 28, 4),
        read("src_ip6[1]", 32, 4),
        read("src_ip6[2]", 36, 4),
        read("src_ip6[3]", 40, 4),
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
    ],
);

macro_rules! sock_addr {
    ($name:ident: $($field:expr),* $(,)?) => {
        const $name: Layout = fields(
            72,
            &[
                word("user_family", 0),
                $($field,)*
                write("user_port", 24, 4),
                word("family", 28),
                word("type", 32),
                word("protocol", 36),
                whole("sk", 64, 8, Socket),
            ],
        );
    };
}

sock_addr!(SOCK_ADDR_UNIX:);
sock_addr!(SOCK_ADDR4: write("user_ip4", 4, 4));
sock_addr!(SENDMSG4: write("user_ip4", 4, 4), write("msg_src_ip4", 40, 4));
sock_addr!(SOCK_ADDR6:
    write("user_ip6[0]", 8, 4),
    write("user_ip6[1]", 12, 4),
    write("user_ip6[2]", 16, 4),
    write("user_ip6[3]", 20, 4),
    pair("user_ip6[0]", 8),
    pair("user_ip6[2]", 16),
);
sock_addr!(SENDMSG6:
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
);

/// `struct bpf_sock_addr`, as much of it as the hook has.
fn sock_addr(attach: A) -> Layout {
    match attach {
        A::CgroupUdp4Sendmsg => SENDMSG4,
        A::CgroupUdp6Sendmsg => SENDMSG6,
        A::CgroupInet4Bind
        | A::CgroupInet4Connect
        | A::CgroupInet4Getpeername
        | A::CgroupInet4Getsockname
        | A::CgroupUdp4Recvmsg => SOCK_ADDR4,
        A::CgroupInet6Bind
        | A::CgroupInet6Connect
        | A::CgroupInet6Getpeername
        | A::CgroupInet6Getsockname
        | A::CgroupUdp6Recvmsg => SOCK_ADDR6,
        _ => SOCK_ADDR_UNIX,
    }
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
        word("family", 16),
        word("remote_ip4", 20),
        word("local_ip4", 24),
        word("remote_ip6[0]", 28),
        word("remote_ip6[1]", 32),
        word("remote_ip6[2]", 36),
        word("remote_ip6[3]", 40),
        word("local_ip6[0]", 44),
        word("local_ip6[1]", 48),
        word("local_ip6[2]", 52),
        word("local_ip6[3]", 56),
        word("remote_port", 60),
        word("local_port", 64),
        word("size", 68),
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

/// `struct bpf_sock_ops`: numbers of four bytes but for the counts of bytes and what is said of the packet.
const SOCK_OPS: Layout = {
    const WORDS: usize = 42;
    const FIELDS: [Field; WORDS + 10] = {
        let mut out = [word("a number", 0); WORDS + 10];
        let mut i = 0;
        while i < WORDS {
            out[i].off = i as u32 * 4;
            // `reply` and `sk_txhash`.
            out[i].writable = matches!(i, 1 | 41);
            i += 1;
        }
        out[0].name = "op";
        out[1].name = "reply";
        out[41].name = "sk_txhash";
        out[WORDS] = whole("bytes_received", 168, 8, Scalar);
        out[WORDS + 1] = whole("bytes_acked", 176, 8, Scalar);
        out[WORDS + 2] = whole("sk", 184, 8, SocketOrNull);
        out[WORDS + 3] = whole("skb_data", 192, 8, Packet);
        out[WORDS + 4] = whole("skb_data_end", 200, 8, PacketEnd);
        out[WORDS + 5] = word("skb_len", 208);
        out[WORDS + 6] = whole("skb_tcp_flags", 212, 1, Scalar);
        out[WORDS + 7] = whole("skb_tcp_flags", 212, 2, Scalar);
        out[WORDS + 8] = word("skb_tcp_flags", 212);
        out[WORDS + 9] = whole("skb_hwtstamp", 216, 8, Scalar);
        out
    };
    fields(224, &FIELDS)
};

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
            SOCK_ADDR_UNIX,
            SOCK_ADDR4,
            SENDMSG4,
            SOCK_ADDR6,
            SENDMSG6,
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
