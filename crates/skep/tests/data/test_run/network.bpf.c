// Programs as XDP is used: they read headers layer by layer, rewrite and move them, keep checksums
// true, count flows, and send packets on.
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define ICMP_ECHOREPLY 0
#define ICMP_DEST_UNREACH 3
#define ICMP_FRAG_NEEDED 4
#define ICMP_ECHO 8

// linux/icmp.h wants the C library.
struct icmphdr {
    __u8 type, code;
    __sum16 checksum;
    union {
        struct {
            __be16 id, sequence;
        } echo;
        struct {
            __be16 unused, mtu;
        } frag;
    } un;
};

struct counted {
    __u64 packets;
    __u64 bytes;
};

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 260);
    __type(key, __u32);
    __type(value, struct counted);
} by_protocol SEC(".maps");

struct flow {
    __u32 from, to;
    __u16 source, dest;
    __u32 protocol;
};

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 24);
    __type(key, struct flow);
    __type(value, struct counted);
} flows SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 64);
    __type(key, __u32);
    __type(value, __u32);
} translated SEC(".maps");

struct prefix {
    __u32 length;
    __u8 address[4];
};

struct {
    __uint(type, BPF_MAP_TYPE_LPM_TRIE);
    __uint(max_entries, 64);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, struct prefix);
    __type(value, __u32);
} routes SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_DEVMAP);
    __uint(max_entries, 4);
    __type(key, __u32);
    __type(value, __u32);
} ports SEC(".maps");

struct vlan {
    __be16 tag;
    __be16 proto;
};

// Where the next header is.
struct cursor {
    void *at;
    void *end;
};

#define TAKE(cursor, type)                                                           \
    ({                                                                               \
        type *taken = (cursor)->at;                                                  \
        (void *)(taken + 1) > (cursor)->end ? 0 : ((cursor)->at = taken + 1, taken); \
    })

static __always_inline struct cursor start(struct xdp_md *ctx)
{
    return (struct cursor){ (void *)(long)ctx->data, (void *)(long)ctx->data_end };
}

// Reads the Ethernet header and up to three tags; returns the type of what follows, or -1.
static __always_inline int ethernet(struct cursor *c)
{
    struct ethhdr *eth = TAKE(c, struct ethhdr);
    if (!eth)
        return -1;
    __be16 proto = eth->h_proto;
    for (int i = 0; i < 3; i++) {
        if (proto != bpf_htons(ETH_P_8021Q) && proto != bpf_htons(ETH_P_8021AD))
            break;
        struct vlan *tag = TAKE(c, struct vlan);
        if (!tag)
            return -1;
        proto = tag->proto;
    }
    return bpf_ntohs(proto);
}

static __always_inline struct iphdr *ipv4(struct cursor *c)
{
    struct iphdr *ip = TAKE(c, struct iphdr);
    if (!ip || ip->ihl < 5 || ip->version != 4)
        return 0;
    void *next = (void *)ip + ip->ihl * 4;
    if (next > c->end)
        return 0;
    c->at = next;
    return ip;
}

// Reads an IPv6 header and what extends it; returns the protocol behind, or -1.
static __always_inline int ipv6(struct cursor *c)
{
    struct ipv6hdr *ip = TAKE(c, struct ipv6hdr);
    if (!ip || ip->version != 6)
        return -1;
    __u8 next = ip->nexthdr;
    for (int i = 0; i < 6; i++) {
        if (next != 0 && next != 43 && next != 44 && next != 60)
            return next;
        struct {
            __u8 next, length, rest[6];
        } *more = TAKE(c, typeof(*more));
        if (!more)
            return -1;
        int skip = next == 44 ? 0 : more->length * 8;
        if (c->at + skip > c->end)
            return -1;
        c->at += skip;
        next = more->next;
    }
    return -1;
}

static __always_inline __u16 fold(__u64 sum)
{
    for (int i = 0; i < 4; i++)
        sum = (sum & 0xffff) + (sum >> 16);
    return ~sum;
}

// A checksum after one word of what it covers changed.
static __always_inline void replace(__u16 *check, __be32 from, __be32 to)
{
    __s64 sum = bpf_csum_diff(&from, 4, &to, 4, (__u16)~*check);
    if (sum >= 0)
        *check = fold(sum);
}

static __always_inline void count(__u32 key, __u64 bytes)
{
    struct counted *at = bpf_map_lookup_elem(&by_protocol, &key);
    if (at) {
        at->packets++;
        at->bytes += bytes;
    }
}

// Drops every other echo request, of both versions, behind up to three tags.
SEC("xdp")
int echo_filter(struct xdp_md *ctx)
{
    struct cursor c = start(ctx);
    int protocol = -1, proto = ethernet(&c);
    if (proto == ETH_P_IP) {
        struct iphdr *ip = ipv4(&c);
        protocol = ip ? ip->protocol : -1;
    } else if (proto == ETH_P_IPV6) {
        protocol = ipv6(&c);
    }
    if (protocol != IPPROTO_ICMP && protocol != IPPROTO_ICMPV6)
        return protocol < 0 ? XDP_ABORTED : XDP_PASS;
    struct icmphdr *icmp = TAKE(&c, struct icmphdr);
    if (!icmp)
        return XDP_ABORTED;
    if (icmp->type != ICMP_ECHO && icmp->type != 128)
        return XDP_PASS;
    return bpf_ntohs(icmp->un.echo.sequence) & 1 ? XDP_PASS : XDP_DROP;
}

// Packets and bytes of each protocol; 256 and more: no IP, broken.
SEC("xdp")
int protocols(struct xdp_md *ctx)
{
    struct cursor c = start(ctx);
    int protocol = 257, proto = ethernet(&c);
    if (proto == ETH_P_IP) {
        struct iphdr *ip = ipv4(&c);
        protocol = ip ? ip->protocol : 258;
    } else if (proto == ETH_P_IPV6) {
        int found = ipv6(&c);
        protocol = found < 0 ? 258 : found;
    } else if (proto < 0) {
        protocol = 256;
    }
    count(protocol, ctx->data_end - ctx->data);
    return XDP_PASS;
}

// Takes the outer tag off, or puts one on.
SEC("xdp")
int tag_swap(struct xdp_md *ctx)
{
    struct cursor c = start(ctx);
    struct ethhdr *eth = TAKE(&c, struct ethhdr), copy;
    if (!eth)
        return XDP_ABORTED;
    copy = *eth;
    if (eth->h_proto == bpf_htons(ETH_P_8021Q)) {
        struct vlan *tag = TAKE(&c, struct vlan);
        if (!tag)
            return XDP_DROP;
        copy.h_proto = tag->proto;
        if (bpf_xdp_adjust_head(ctx, sizeof(*tag)))
            return XDP_ABORTED;
        c = start(ctx);
        eth = TAKE(&c, struct ethhdr);
        if (!eth)
            return XDP_ABORTED;
        *eth = copy;
        return XDP_PASS;
    }
    if (bpf_xdp_adjust_head(ctx, -(int)sizeof(struct vlan)))
        return XDP_ABORTED;
    c = start(ctx);
    eth = TAKE(&c, struct ethhdr);
    struct vlan *tag = eth ? TAKE(&c, struct vlan) : 0;
    if (!tag)
        return XDP_ABORTED;
    *eth = copy;
    tag->proto = copy.h_proto;
    tag->tag = bpf_htons(0x2123);
    eth->h_proto = bpf_htons(ETH_P_8021Q);
    return XDP_TX;
}

// Answers echo requests.
SEC("xdp")
int echo_reply(struct xdp_md *ctx)
{
    struct cursor c = start(ctx);
    struct ethhdr *eth = c.at;
    if (ethernet(&c) != ETH_P_IP)
        return XDP_PASS;
    struct iphdr *ip = ipv4(&c);
    if (!ip || ip->protocol != IPPROTO_ICMP)
        return XDP_PASS;
    struct icmphdr *icmp = TAKE(&c, struct icmphdr);
    if (!icmp || icmp->type != ICMP_ECHO)
        return XDP_PASS;
    __u8 mac[6];
    __builtin_memcpy(mac, eth->h_source, 6);
    __builtin_memcpy(eth->h_source, eth->h_dest, 6);
    __builtin_memcpy(eth->h_dest, mac, 6);
    __be32 from = ip->saddr;
    ip->saddr = ip->daddr;
    ip->daddr = from;
    struct icmphdr before = *icmp;
    icmp->type = ICMP_ECHOREPLY;
    icmp->checksum = 0;
    before.checksum = ~before.checksum;
    __u16 old = ~before.checksum;
    before.checksum = 0;
    icmp->checksum = fold(bpf_csum_diff((void *)&before, 8, (void *)icmp, 8, (__u16)~old));
    return XDP_TX;
}

// Takes one off the port that a packet goes to.
SEC("xdp")
int port_rewrite(struct xdp_md *ctx)
{
    struct cursor c = start(ctx);
    if (ethernet(&c) != ETH_P_IP)
        return XDP_PASS;
    struct iphdr *ip = ipv4(&c);
    if (!ip || ip->frag_off & bpf_htons(0x1fff))
        return XDP_DROP;
    if (ip->protocol == IPPROTO_UDP) {
        struct udphdr *udp = TAKE(&c, struct udphdr);
        if (!udp)
            return XDP_ABORTED;
        __be16 old = udp->dest;
        udp->dest = bpf_htons(bpf_ntohs(old) - 1);
        if (udp->check)
            replace(&udp->check, old, udp->dest);
    } else if (ip->protocol == IPPROTO_TCP) {
        struct tcphdr *tcp = TAKE(&c, struct tcphdr);
        if (!tcp)
            return XDP_ABORTED;
        __be16 old = tcp->dest;
        tcp->dest = bpf_htons(bpf_ntohs(old) - 1);
        replace(&tcp->check, old, tcp->dest);
    }
    return XDP_PASS;
}

// Gives each sender an address of its own, in the order in which they come.
SEC("xdp")
int translate(struct xdp_md *ctx)
{
    struct cursor c = start(ctx);
    if (ethernet(&c) != ETH_P_IP)
        return XDP_PASS;
    struct iphdr *ip = ipv4(&c);
    if (!ip)
        return XDP_ABORTED;
    __u32 old = ip->saddr, zero = 0, next = 1;
    __u32 *known = bpf_map_lookup_elem(&translated, &old);
    if (!known) {
        __u32 *last = bpf_map_lookup_elem(&translated, &zero);
        if (last)
            next = *last + 1;
        bpf_map_update_elem(&translated, &zero, &next, BPF_ANY);
        __u32 fresh = bpf_htonl(0x64400000 + next);
        if (bpf_map_update_elem(&translated, &old, &fresh, BPF_NOEXIST))
            return XDP_DROP;
        known = bpf_map_lookup_elem(&translated, &old);
        if (!known)
            return XDP_ABORTED;
    }
    ip->saddr = *known;
    replace(&ip->check, old, ip->saddr);
    if (ip->frag_off & bpf_htons(0x1fff))
        return XDP_PASS;
    if (ip->protocol == IPPROTO_UDP) {
        struct udphdr *udp = TAKE(&c, struct udphdr);
        if (udp && udp->check)
            replace(&udp->check, old, ip->saddr);
    } else if (ip->protocol == IPPROTO_TCP) {
        struct tcphdr *tcp = TAKE(&c, struct tcphdr);
        if (tcp)
            replace(&tcp->check, old, ip->saddr);
    }
    return XDP_TX;
}

// Puts IPv4 packets into others (IP in IP).
SEC("xdp")
int wrap(struct xdp_md *ctx)
{
    struct cursor c = start(ctx);
    struct ethhdr *eth = c.at, copy;
    if (ethernet(&c) != ETH_P_IP)
        return XDP_PASS;
    struct iphdr *inner = ipv4(&c);
    if (!inner || c.at > c.end || (void *)(eth + 1) != (void *)inner)
        return XDP_DROP;
    __u16 length = bpf_ntohs(inner->tot_len) + 20;
    __u8 tos = inner->tos;
    copy = *eth;
    if (bpf_xdp_adjust_head(ctx, -20))
        return XDP_ABORTED;
    c = start(ctx);
    eth = TAKE(&c, struct ethhdr);
    struct iphdr *outer = eth ? TAKE(&c, struct iphdr) : 0;
    if (!outer)
        return XDP_ABORTED;
    *eth = copy;
    __builtin_memset(outer, 0, sizeof(*outer));
    outer->version = 4;
    outer->ihl = 5;
    outer->tos = tos;
    outer->tot_len = bpf_htons(length);
    outer->ttl = 64;
    outer->protocol = IPPROTO_IPIP;
    outer->saddr = bpf_htonl(0xc6336401);
    outer->daddr = bpf_htonl(0xcb007107);
    outer->check = fold(bpf_csum_diff(0, 0, (void *)outer, 20, 0));
    return XDP_TX;
}

// Takes the outer one off again.
SEC("xdp")
int unwrap(struct xdp_md *ctx)
{
    struct cursor c = start(ctx);
    struct ethhdr *eth = TAKE(&c, struct ethhdr), copy;
    if (!eth || eth->h_proto != bpf_htons(ETH_P_IP))
        return XDP_PASS;
    copy = *eth;
    struct iphdr *ip = ipv4(&c);
    if (!ip || ip->protocol != IPPROTO_IPIP)
        return XDP_PASS;
    if (bpf_xdp_adjust_head(ctx, ip->ihl * 4))
        return XDP_ABORTED;
    c = start(ctx);
    eth = TAKE(&c, struct ethhdr);
    if (!eth)
        return XDP_ABORTED;
    *eth = copy;
    return XDP_PASS;
}

// Cuts what the sender's hardware put behind the packet, and fills small ones up to a frame.
SEC("xdp")
int trim(struct xdp_md *ctx)
{
    struct cursor c = start(ctx);
    void *first = c.at;
    if (ethernet(&c) != ETH_P_IP)
        return bpf_xdp_adjust_tail(ctx, 60 - (int)(c.end - first)) ? XDP_ABORTED : XDP_TX;
    struct iphdr *ip = TAKE(&c, struct iphdr);
    if (!ip)
        return XDP_DROP;
    int want = (void *)ip - first + bpf_ntohs(ip->tot_len);
    int have = c.end - first;
    if (want == have)
        return XDP_PASS;
    return bpf_xdp_adjust_tail(ctx, want - have) ? XDP_ABORTED : XDP_TX;
}

// Answers packets of more than 200 bytes that they are too big, with their beginning.
SEC("xdp")
int too_big(struct xdp_md *ctx)
{
    struct cursor c = start(ctx);
    struct ethhdr *eth = TAKE(&c, struct ethhdr), to;
    int length = c.end - (void *)(long)ctx->data;
    if (!eth || eth->h_proto != bpf_htons(ETH_P_IP) || length <= 200)
        return XDP_PASS;
    struct iphdr *ip = TAKE(&c, struct iphdr);
    if (!ip)
        return XDP_DROP;
    __be32 from = ip->saddr, answer_from = ip->daddr;
    __builtin_memcpy(to.h_dest, eth->h_source, 6);
    __builtin_memcpy(to.h_source, eth->h_dest, 6);
    to.h_proto = eth->h_proto;
    if (bpf_xdp_adjust_tail(ctx, 14 + 28 - length) || bpf_xdp_adjust_head(ctx, -28))
        return XDP_ABORTED;
    c = start(ctx);
    eth = TAKE(&c, struct ethhdr);
    ip = eth ? TAKE(&c, struct iphdr) : 0;
    struct icmphdr *icmp = ip ? TAKE(&c, struct icmphdr) : 0;
    if (!icmp || c.at + 28 > c.end)
        return XDP_ABORTED;
    *eth = to;
    __builtin_memset(ip, 0, 28);
    ip->version = 4;
    ip->ihl = 5;
    ip->tot_len = bpf_htons(56);
    ip->ttl = 64;
    ip->protocol = IPPROTO_ICMP;
    ip->saddr = answer_from;
    ip->daddr = from;
    ip->check = fold(bpf_csum_diff(0, 0, (void *)ip, 20, 0));
    icmp->type = ICMP_DEST_UNREACH;
    icmp->code = ICMP_FRAG_NEEDED;
    icmp->un.frag.mtu = bpf_htons(186);
    icmp->checksum = fold(bpf_csum_diff(0, 0, (void *)icmp, 36, 0));
    return XDP_TX;
}

// Goes to a port by the longest prefix, with a hop less. It learns prefixes from what comes in.
SEC("xdp")
int route(struct xdp_md *ctx)
{
    struct cursor c = start(ctx);
    if (ethernet(&c) != ETH_P_IP)
        return XDP_PASS;
    struct iphdr *ip = ipv4(&c);
    if (!ip || ip->ttl <= 1)
        return XDP_DROP;
    struct prefix learned = { 16 };
    __builtin_memcpy(learned.address, &ip->saddr, 4);
    __u32 port = ip->saddr >> 24 & 7;
    bpf_map_update_elem(&routes, &learned, &port, BPF_ANY);
    learned.length = 25;
    port = ~port & 3;
    bpf_map_update_elem(&routes, &learned, &port, BPF_NOEXIST);
    struct prefix wanted = { 32 };
    __builtin_memcpy(wanted.address, &ip->daddr, 4);
    __u32 *found = bpf_map_lookup_elem(&routes, &wanted);
    if (!found)
        return XDP_PASS;
    __u32 sum = ip->check + bpf_htons(0x100);
    ip->check = sum + (sum >= 0xffff);
    ip->ttl--;
    // Nothing is in the ports: the answer is in the flags.
    return bpf_redirect_map(&ports, *found, *found & 3);
}

// Counts flows, as many as there is room for.
SEC("xdp")
int flow_table(struct xdp_md *ctx)
{
    struct cursor c = start(ctx);
    if (ethernet(&c) != ETH_P_IP)
        return XDP_PASS;
    struct iphdr *ip = ipv4(&c);
    if (!ip)
        return XDP_ABORTED;
    struct flow key = { ip->saddr, ip->daddr, 0, 0, ip->protocol };
    if (ip->protocol == IPPROTO_UDP || ip->protocol == IPPROTO_TCP) {
        struct {
            __u16 source, dest;
        } *ends = TAKE(&c, typeof(*ends));
        if (!ends)
            return XDP_ABORTED;
        key.source = ends->source;
        key.dest = ends->dest;
    }
    __u64 bytes = ctx->data_end - ctx->data;
    struct counted one = { 1, bytes };
    struct counted *known = bpf_map_lookup_elem(&flows, &key);
    if (!known)
        return bpf_map_update_elem(&flows, &key, &one, BPF_NOEXIST) ? XDP_DROP : XDP_PASS;
    __sync_fetch_and_add(&known->packets, 1);
    __sync_fetch_and_add(&known->bytes, bytes);
    if (known->packets > 3) {
        bpf_map_delete_elem(&flows, &key);
        return XDP_TX;
    }
    return XDP_PASS;
}

// Reads the options of TCP; the largest segment becomes at most 1,000 bytes.
SEC("xdp")
int clamp(struct xdp_md *ctx)
{
    struct cursor c = start(ctx);
    if (ethernet(&c) != ETH_P_IP)
        return XDP_PASS;
    struct iphdr *ip = ipv4(&c);
    if (!ip || ip->protocol != IPPROTO_TCP)
        return XDP_PASS;
    struct tcphdr *tcp = TAKE(&c, struct tcphdr);
    if (!tcp)
        return XDP_ABORTED;
    int left = tcp->doff * 4 - 20;
    for (int i = 0; i < 7 && left > 0; i++) {
        __u8 *kind = TAKE(&c, __u8);
        if (!kind)
            return XDP_ABORTED;
        left--;
        if (*kind == 0)
            return XDP_PASS;
        if (*kind == 1)
            continue;
        __u8 *length = TAKE(&c, __u8);
        if (!length || *length < 2)
            return XDP_DROP;
        if (*kind == 2 && *length == 4) {
            __be16 *size = TAKE(&c, __be16);
            if (!size)
                return XDP_ABORTED;
            __be16 old = *size;
            if (bpf_ntohs(old) <= 1000)
                return XDP_PASS;
            *size = bpf_htons(1000);
            replace(&tcp->check, old, *size);
            return XDP_TX;
        }
        __u32 skip = (*length - 2) & 0x3f;
        if (c.at + skip > c.end)
            return XDP_ABORTED;
        c.at += skip;
        left -= skip + 1;
    }
    return XDP_PASS;
}

// Writes what it found before the packet, for who comes after.
SEC("xdp")
int annotate(struct xdp_md *ctx)
{
    if (bpf_xdp_adjust_meta(ctx, -8))
        return XDP_ABORTED;
    __u32 *meta = (void *)(long)ctx->data_meta;
    struct cursor c = start(ctx);
    void *data = c.at;
    if ((void *)(meta + 2) > data)
        return XDP_ABORTED;
    int proto = ethernet(&c);
    meta[0] = proto;
    meta[1] = proto < 0 ? 0 : c.at - data;
    return XDP_PASS;
}

// The sum of a packet of any length, in one buffer or several, and another beginning and end.
SEC("xdp.frags")
int whole(struct xdp_md *ctx)
{
    __u32 length = bpf_xdp_get_buff_len(ctx);
    __u8 block[64];
    __u64 sum = 0;
    for (__u32 at = 0, i = 0; i < 160 && at + sizeof(block) <= length; i++, at += sizeof(block)) {
        if (bpf_xdp_load_bytes(ctx, at, block, sizeof(block)))
            return XDP_ABORTED;
        sum += (__u16)~fold(bpf_csum_diff(0, 0, (void *)block, sizeof(block), 0));
    }
    __u32 words[2] = { (__u32)sum, length };
    if (length < 24 || bpf_xdp_store_bytes(ctx, length - 8, words, 8))
        return XDP_DROP;
    if (bpf_xdp_store_bytes(ctx, 14, words, 8))
        return XDP_ABORTED;
    int by = length > 5000 ? -(int)(length - 4500) : 0;
    return bpf_xdp_adjust_tail(ctx, by) ? XDP_TX : XDP_PASS;
}

char LICENSE[] SEC("license") = "GPL";
