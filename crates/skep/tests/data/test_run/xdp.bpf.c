/* XDP programs on packets and contexts. */
#include "test_run.bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, 64);
} lengths SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, 4);
} verdicts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, 2);
} bytes SEC(".maps");

__u64 runs = 3;
const volatile __u32 limit = 100;

/* Nothing but its length. */
SEC("xdp")
int xdp_length(struct xdp_md *ctx)
{
	return (long)ctx->data_end - (long)ctx->data;
}

/* Every number in the context. */
SEC("xdp")
int xdp_numbers(struct xdp_md *ctx)
{
	return ctx->ingress_ifindex * 1000 + ctx->rx_queue_index * 10 + ((__u32)((long)ctx->data - (long)ctx->data_meta) >> 2);
}

/* Swaps the Ethernet addresses. */
SEC("xdp")
int xdp_swap(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;
	__u8 mac[6];

	if ((void *)(eth + 1) > end)
		return XDP_DROP;
	__builtin_memcpy(mac, eth->h_dest, 6);
	__builtin_memcpy(eth->h_dest, eth->h_source, 6);
	__builtin_memcpy(eth->h_source, mac, 6);
	return XDP_TX;
}

static __always_inline __u32 fold(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

/* Parses down to ports, decrements the TTL and mends the checksum. */
SEC("xdp")
int xdp_route(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;
	struct iphdr *ip = (void *)(eth + 1);
	__u32 key, size = end - data;
	__u64 one = 1, *seen;

	if ((void *)(eth + 1) > end)
		return XDP_ABORTED;
	if (eth->h_proto != bpf_htons(ETH_P_IP)) {
		key = 2;
		seen = bpf_map_lookup_elem(&verdicts, &key);
		if (seen)
			__sync_fetch_and_add(seen, 1);
		return XDP_PASS;
	}
	if ((void *)(ip + 1) > end || ip->ihl < 5)
		return XDP_DROP;
	seen = bpf_map_lookup_elem(&lengths, &size);
	if (seen)
		*seen += 1;
	else
		bpf_map_update_elem(&lengths, &size, &one, BPF_ANY);
	key = ip->protocol == IPPROTO_UDP;
	seen = bpf_map_lookup_elem(&bytes, &key);
	if (seen)
		*seen += size;
	key = 3;
	seen = bpf_map_lookup_elem(&verdicts, &key);
	if (seen)
		*seen = runs++;
	if (ip->ttl <= 1 || size > limit)
		return XDP_DROP;
	ip->check = fold((__u32)ip->check + bpf_htons(0x0100));
	ip->ttl--;
	return XDP_TX;
}

/* Reads and changes metadata that is there already. */
SEC("xdp")
int xdp_meta(struct xdp_md *ctx)
{
	void *meta = (void *)(long)ctx->data_meta, *data = (void *)(long)ctx->data;
	__u32 *word = meta, old;

	if ((void *)(word + 1) > data)
		return -1;
	old = *word;
	*word = old + 1;
	return old;
}

/* A loop over all bytes. */
SEC("xdp")
int xdp_sum(struct xdp_md *ctx)
{
	__u8 *at = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 sum = 0;
	int i;

	for (i = 0; i < 256; i++) {
		if (at + 1 > end)
			break;
		sum = sum * 31 + *at++;
	}
	return sum;
}

/* The last bytes, found from behind the length. */
SEC("xdp")
int xdp_tail_bytes(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 len = end - data;
	__u32 off;

	if (len < 18 || len > 1500)
		return 0;
	off = len - 4;
	asm volatile("" : "+r"(off));
	off &= 0x7ff;
	if (data + off + 4 > end)
		return 1;
	return *(__u32 *)(data + off);
}
