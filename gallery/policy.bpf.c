/* Who may reach which port: allowed networks by longest prefix, everything else is dropped. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/tcp.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

char _license[] SEC("license") = "Dual MIT/GPL";

struct network {
	__u32 bits;
	__u8 address[4];
};

/* The highest port that a network may reach. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 1024);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct network);
	__type(value, __u16);
} allowed SEC(".maps");

__u64 refused;

SEC("xdp")
int policy(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;
	struct iphdr *ip = (void *)(eth + 1);
	struct network from = { 32 };
	struct tcphdr *tcp;
	__u16 *highest;

	if ((void *)(ip + 1) > end || eth->h_proto != bpf_htons(ETH_P_IP))
		return XDP_DROP;
	tcp = (void *)ip + ip->ihl * 4;
	if (ip->ihl < 5 || ip->protocol != IPPROTO_TCP || (void *)(tcp + 1) > end)
		return XDP_DROP;
	__builtin_memcpy(from.address, &ip->saddr, sizeof(from.address));
	highest = bpf_map_lookup_elem(&allowed, &from);
	if (highest && bpf_ntohs(tcp->dest) <= *highest)
		return XDP_PASS;
	__sync_fetch_and_add(&refused, 1);
	return XDP_DROP;
}
