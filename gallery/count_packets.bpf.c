/* Packets and bytes by protocol. Run on a capture file, on generated packets, or on an interface. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

char _license[] SEC("license") = "Dual MIT/GPL";

enum kind { TCP, UDP, ICMP, OTHER_IP, NOT_IP, KINDS };

struct count {
	__u64 packets;
	__u64 bytes;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, KINDS);
	__type(key, enum kind);
	__type(value, struct count);
} counts SEC(".maps");

static __always_inline enum kind of(__u8 protocol)
{
	switch (protocol) {
	case IPPROTO_TCP:
		return TCP;
	case IPPROTO_UDP:
		return UDP;
	case IPPROTO_ICMP:
	case IPPROTO_ICMPV6:
		return ICMP;
	}
	return OTHER_IP;
}

SEC("xdp")
int count(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;
	struct ipv6hdr *ip6 = (void *)(eth + 1);
	struct iphdr *ip = (void *)(eth + 1);
	enum kind kind = NOT_IP;
	struct count *all;

	if ((void *)(eth + 1) > end)
		return XDP_DROP;
	if (eth->h_proto == bpf_htons(ETH_P_IP) && (void *)(ip + 1) <= end)
		kind = of(ip->protocol);
	else if (eth->h_proto == bpf_htons(ETH_P_IPV6) && (void *)(ip6 + 1) <= end)
		kind = of(ip6->nexthdr);
	all = bpf_map_lookup_elem(&counts, &kind);
	if (all) {
		__sync_fetch_and_add(&all->packets, 1);
		__sync_fetch_and_add(&all->bytes, end - data);
	}
	return XDP_PASS;
}
