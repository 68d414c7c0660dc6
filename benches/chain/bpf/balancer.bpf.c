// SPDX-License-Identifier: MIT OR Apache-2.0
/* A load balancer of the fourth layer, of the kind of Katran: same maps and same steps, written anew. A packet to a virtual address (VIP) is
 * sent to one of its servers ("reals"), the same for all packets of a connection: the one that a table of connections remembers, else the
 * one that a ring of consistent hashing has for it. It travels in another IP packet around it, which adjust_head makes room for.
 *
 *   packet -> headers -> VIP (hash) -> connection (LRU hash of this processor, in an array of maps) -> ring (array) -> real (array)
 *          -> statistics (per-CPU arrays) -> outer header -> XDP_TX
 *
 * `balance` is that program. `driven` feeds it from inside: each run takes the next packet of `mix`, so that a test run with `repeat` sees many
 * connections; `driver` does the same without balancing, and tells what feeding takes. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "mark.h"

char LICENSE[] SEC("license") = "GPL";

#define VIPS 8
#define REALS 256
#define RING 65537
#define CONNECTIONS 8192
#define PROCESSORS 64
/* Nanoseconds after which a flow of datagrams is another one. */
#define UDP_TIMEOUT 30000000000ull

#define SAME_REAL_FOR_ALL_PORTS 1

union address {
	__be32 v4;
	__be32 v6[4];
};

struct vip {
	union address address;
	__be16 port; /* 0: all */
	__u8 protocol;
	__u8 pad;
};

struct vip_info {
	__u32 flags;
	__u32 number;
};

struct flow {
	union address source, destination;
	__be16 ports[2];
	__u8 protocol;
	__u8 pad[3];
};

struct connection {
	__u32 real;
	__u32 pad;
	__u64 used;
};

struct real {
	union address address;
	__u8 is_v6;
	__u8 pad[3];
};

struct counts {
	__u64 packets, bytes;
};

struct route {
	__u8 gateway[6], own[6];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct route);
} control SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 512);
	__type(key, struct vip);
	__type(value, struct vip_info);
} vips SEC(".maps");

struct connections {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, CONNECTIONS);
	__type(key, struct flow);
	__type(value, struct connection);
} connections_0 SEC(".maps"), connections_1 SEC(".maps"), connections_2 SEC(".maps"), connections_3 SEC(".maps"),
	others_connections SEC(".maps");

/* Of each processor; those without one use `others_connections`. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, PROCESSORS);
	__type(key, __u32);
	__array(values, struct connections);
} connections SEC(".maps") = {
	.values = { &connections_0, &connections_1, &connections_2, &connections_3 },
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, VIPS * RING);
	__type(key, __u32);
	__type(value, __u32);
} rings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, REALS);
	__type(key, __u32);
	__type(value, struct real);
} reals SEC(".maps");

/* Of VIPs; behind these, connections that were not remembered. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, VIPS + 1);
	__type(key, __u32);
	__type(value, struct counts);
} vip_counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, REALS);
	__type(key, __u32);
	__type(value, struct counts);
} real_counts SEC(".maps");

static __always_inline __u32 rotate(__u32 word, int by)
{
	return word << by | word >> (32 - by);
}

/* Jenkins' lookup3, of whole words. */
#define MIX(a, b, c)                 \
	a -= c, a ^= rotate(c, 4), c += b;  \
	b -= a, b ^= rotate(a, 6), a += c;  \
	c -= b, c ^= rotate(b, 8), b += a;  \
	a -= c, a ^= rotate(c, 16), c += b; \
	b -= a, b ^= rotate(a, 19), a += c; \
	c -= b, c ^= rotate(b, 4), b += a;
#define FINAL(a, b, c)            \
	c ^= b, c -= rotate(b, 14); \
	a ^= c, a -= rotate(c, 11); \
	b ^= a, b -= rotate(a, 25); \
	c ^= b, c -= rotate(b, 16); \
	a ^= c, a -= rotate(c, 4);  \
	b ^= a, b -= rotate(a, 14); \
	c ^= b, c -= rotate(b, 24);

static __always_inline __u32 hash_2(__u32 first, __u32 second)
{
	__u32 a = 0xdeadbeef + 8 + first, b = 0xdeadbeef + 8 + second, c = 0xdeadbeef + 8;
	FINAL(a, b, c)
	return c;
}

static __always_inline __u32 hash_4(const __be32 *words)
{
	__u32 a = 0xdeadbeef + 16 + words[0], b = 0xdeadbeef + 16 + words[1], c = 0xdeadbeef + 16 + words[2];
	MIX(a, b, c)
	a += words[3];
	FINAL(a, b, c)
	return c;
}

static __always_inline __u32 place_of(const struct flow *flow, bool is_v6)
{
	__u32 ports = (__u32)flow->ports[0] << 16 | flow->ports[1];
	return hash_2(is_v6 ? hash_4(flow->source.v6) : flow->source.v4, ports) % RING;
}

static __always_inline void count(void *map, __u32 key, __u32 bytes)
{
	struct counts *counts = bpf_map_lookup_elem(map, &key);
	if (counts) {
		counts->packets += 1;
		counts->bytes += bytes;
	}
}

static __always_inline void put_v4_around(struct iphdr *outer, __be32 from, __be32 to, __u8 tos, __u16 inside)
{
	__u32 sum = 0;
	__u16 *words = (void *)outer;
	outer->version = 4;
	outer->ihl = 5;
	outer->tos = tos;
	outer->tot_len = bpf_htons(inside + sizeof(*outer));
	outer->id = 0;
	outer->frag_off = 0;
	outer->ttl = 64;
	outer->protocol = IPPROTO_IPIP;
	outer->check = 0;
	outer->saddr = from;
	outer->daddr = to;
#pragma unroll
	for (int i = 0; i < 10; i++)
		sum += words[i];
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	outer->check = ~sum;
}

static __always_inline void put_v6_around(struct ipv6hdr *outer, const struct flow *flow, const union address *to, __u16 inside)
{
	outer->version = 6;
	outer->priority = 0;
	outer->flow_lbl[0] = outer->flow_lbl[1] = outer->flow_lbl[2] = 0;
	outer->payload_len = bpf_htons(inside);
	outer->nexthdr = IPPROTO_IPV6;
	outer->hop_limit = 64;
	/* Out of 0100::/64, the rest by the flow, so that receivers spread it over their queues. */
	outer->saddr.in6_u.u6_addr32[0] = bpf_htonl(0x01000000);
	outer->saddr.in6_u.u6_addr32[1] = 0;
	outer->saddr.in6_u.u6_addr32[2] = 0;
	outer->saddr.in6_u.u6_addr32[3] = flow->source.v6[3] ^ flow->ports[0];
	__builtin_memcpy(&outer->daddr, to->v6, 16);
}

/* Adds the outer header, and the Ethernet header for the gateway before it. */
static __always_inline int send_to(struct xdp_md *ctx, const struct real *real, const struct flow *flow, bool is_v6, __u8 tos, __u16 inside)
{
	__u32 zero = 0;
	struct route *route = bpf_map_lookup_elem(&control, &zero);
	int more = is_v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);
	if (!route || bpf_xdp_adjust_head(ctx, -more))
		return XDP_DROP;
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;
	if (data + sizeof(*eth) + more > end)
		return XDP_DROP;
	__builtin_memcpy(eth->h_dest, route->gateway, 6);
	__builtin_memcpy(eth->h_source, route->own, 6);
	if (is_v6) {
		eth->h_proto = bpf_htons(ETH_P_IPV6);
		put_v6_around((void *)(eth + 1), flow, &real->address, inside);
	} else {
		/* 172.16.0.0/16, the rest by the flow. */
		__be32 from = bpf_htonl(0xac100000) | ((flow->source.v4 ^ flow->ports[0]) & bpf_htonl(0xffff));
		eth->h_proto = bpf_htons(ETH_P_IP);
		put_v4_around((void *)(eth + 1), from, real->address.v4, tos, inside);
	}
	return XDP_TX;
}

static __always_inline int balance_packet(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;
	struct flow flow = {};
	bool is_v6, is_syn = false;
	void *transport;
	__u16 inside;
	__u8 tos = 0;

	if ((void *)(eth + 1) > end)
		return XDP_DROP;
	if (eth->h_proto == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = (void *)(eth + 1);
		if ((void *)(ip + 1) > end || ip->ihl != 5)
			return XDP_DROP;
		/* Ports are in first fragments only. */
		if (ip->frag_off & bpf_htons(0x3fff))
			return XDP_DROP;
		is_v6 = false;
		flow.source.v4 = ip->saddr;
		flow.destination.v4 = ip->daddr;
		flow.protocol = ip->protocol;
		inside = bpf_ntohs(ip->tot_len);
		tos = ip->tos;
		transport = ip + 1;
	} else if (eth->h_proto == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip = (void *)(eth + 1);
		if ((void *)(ip + 1) > end)
			return XDP_DROP;
		is_v6 = true;
		__builtin_memcpy(flow.source.v6, &ip->saddr, 16);
		__builtin_memcpy(flow.destination.v6, &ip->daddr, 16);
		flow.protocol = ip->nexthdr;
		inside = bpf_ntohs(ip->payload_len) + sizeof(*ip);
		transport = ip + 1;
	} else {
		return XDP_PASS;
	}

	if (flow.protocol == IPPROTO_TCP) {
		struct tcphdr *tcp = transport;
		if ((void *)(tcp + 1) > end)
			return XDP_DROP;
		is_syn = tcp->syn;
		flow.ports[0] = tcp->source;
		flow.ports[1] = tcp->dest;
	} else if (flow.protocol == IPPROTO_UDP) {
		struct udphdr *udp = transport;
		if ((void *)(udp + 1) > end)
			return XDP_DROP;
		flow.ports[0] = udp->source;
		flow.ports[1] = udp->dest;
	} else {
		return XDP_PASS;
	}

	struct vip vip = { .address = flow.destination, .port = flow.ports[1], .protocol = flow.protocol };
	struct vip_info *info = bpf_map_lookup_elem(&vips, &vip);
	if (!info) {
		vip.port = 0;
		info = bpf_map_lookup_elem(&vips, &vip);
		if (!info)
			return XDP_PASS;
	}
	if (info->flags & SAME_REAL_FOR_ALL_PORTS)
		flow.ports[0] = 0;

	__u32 processor = bpf_get_smp_processor_id();
	void *known = bpf_map_lookup_elem(&connections, &processor);
	if (!known)
		known = &others_connections;
	__u32 number = 0;
	bool is_known = false;
	__u64 now = flow.protocol == IPPROTO_UDP ? bpf_ktime_get_ns() : 0;
	if (!is_syn) {
		struct connection *connection = bpf_map_lookup_elem(known, &flow);
		if (connection && (!now || now - connection->used < UDP_TIMEOUT)) {
			is_known = true;
			number = connection->real;
			if (now)
				connection->used = now;
		}
	}
	if (!is_known) {
		__u32 key = (info->number % VIPS) * RING + place_of(&flow, is_v6);
		__u32 *chosen = bpf_map_lookup_elem(&rings, &key);
		if (!chosen)
			return XDP_DROP;
		number = *chosen;
		struct connection connection = { .real = number, .used = now };
		bpf_map_update_elem(known, &flow, &connection, BPF_ANY);
		count(&vip_counts, VIPS, 1);
	}
	struct real *real = bpf_map_lookup_elem(&reals, &number);
	if (!real || real->is_v6 != is_v6)
		return XDP_DROP;
	count(&vip_counts, info->number, inside);
	count(&real_counts, number, inside);
	return send_to(ctx, real, &flow, is_v6, tos, inside);
}

SEC("xdp") int balance(struct xdp_md *ctx)
{
	return balance_packet(ctx);
}

#define PACKETS 16384
#define PACKET 96

struct packet {
	__u64 words[PACKET / 8];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PACKETS);
	__type(key, __u32);
	__type(value, struct packet);
} mix SEC(".maps");

/* Takes back what the last run has put around the packet, and puts the next one in its place. */
static __always_inline int feed(struct xdp_md *ctx)
{
	long more = (long)ctx->data_end - (long)ctx->data - PACKET;
	if (more && bpf_xdp_adjust_head(ctx, more))
		return -1;
	struct packet *to = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 next = mark.runs % PACKETS;
	struct packet *from = bpf_map_lookup_elem(&mix, &next);
	if (!from || to + 1 > end)
		return -1;
#pragma unroll
	for (int i = 0; i < PACKET / 8; i++)
		to->words[i] = from->words[i];
	count_run();
	return 0;
}

SEC("xdp") int driven(struct xdp_md *ctx)
{
	return feed(ctx) ? XDP_ABORTED : balance_packet(ctx);
}

SEC("xdp") int driver(struct xdp_md *ctx)
{
	return feed(ctx) ? XDP_ABORTED : XDP_TX;
}
