/* XDP programs on real packets. What each does to a packet follows from its bytes. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_helpers.h>

char _license[] SEC("license") = "GPL";

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, 8);
} counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__type(key, __u32);
	__type(value, __u32);
	__uint(max_entries, 16);
} devices SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP_HASH);
	__type(key, __u32);
	__type(value, struct bpf_devmap_val);
	__uint(max_entries, 16);
} devices_by_name SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_CPUMAP);
	__type(key, __u32);
	__type(value, struct bpf_cpumap_val);
	__uint(max_entries, 4);
} cpus SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__type(key, __u32);
	__type(value, __u32);
	__uint(max_entries, 4);
} sockets SEC(".maps");

/* The byte behind the Ethernet header, or -1. */
static __always_inline int first(struct xdp_md *ctx)
{
	unsigned char *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;

	return data + ETH_HLEN + 1 > end ? -1 : data[ETH_HLEN];
}

/* A verdict of each kind, and numbers that are none; counts the packets. */
SEC("xdp")
int split(struct xdp_md *ctx)
{
	__u32 key = first(ctx) & 7;
	__u64 *count = bpf_map_lookup_elem(&counts, &key);

	if (count)
		*count += 1;
	return key == XDP_REDIRECT ? XDP_PASS : key;
}

/* Back to the sender. */
SEC("xdp")
int swap(struct xdp_md *ctx)
{
	struct ethhdr *eth = (void *)(long)ctx->data;
	unsigned char mac[ETH_ALEN];

	if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
		return XDP_ABORTED;
	__builtin_memcpy(mac, eth->h_dest, ETH_ALEN);
	__builtin_memcpy(eth->h_dest, eth->h_source, ETH_ALEN);
	__builtin_memcpy(eth->h_source, mac, ETH_ALEN);
	return XDP_TX;
}

/* Moves both ends of the packet, by amounts that it says itself. */
SEC("xdp.frags")
int resize(struct xdp_md *ctx)
{
	int by = first(ctx);
	int head = bpf_xdp_adjust_head(ctx, (by & 31) - 16);
	int tail = bpf_xdp_adjust_tail(ctx, (by >> 3) - 16);
	unsigned char *data = (void *)(long)ctx->data, two[2] = {by, by};

	if (data + ETH_HLEN > (unsigned char *)(long)ctx->data_end)
		return XDP_DROP;
	/* What the head grew by is not zero in a driver's page. */
	__builtin_memset(data, by, ETH_HLEN);
	if (!head && (by & 31) < 2)
		bpf_xdp_store_bytes(ctx, ETH_HLEN, two, sizeof(two));
	return tail ? XDP_DROP : XDP_PASS;
}

SEC("xdp")
int direct(struct xdp_md *ctx)
{
	return bpf_redirect(first(ctx), 0);
}

SEC("xdp")
int by_devmap(struct xdp_md *ctx)
{
	return bpf_redirect_map(&devices, first(ctx), XDP_DROP);
}

SEC("xdp")
int by_devmap_hash(struct xdp_md *ctx)
{
	return bpf_redirect_map(&devices_by_name, first(ctx) * 1000, XDP_PASS);
}

SEC("xdp")
int by_cpumap(struct xdp_md *ctx)
{
	return bpf_redirect_map(&cpus, first(ctx), XDP_TX);
}

SEC("xdp")
int by_xskmap(struct xdp_md *ctx)
{
	return bpf_redirect_map(&sockets, ctx->rx_queue_index, XDP_PASS);
}

/* To all devices, and with an odd byte not to where it came from. */
SEC("xdp")
int broadcast(struct xdp_md *ctx)
{
	return bpf_redirect_map(&devices, 0, BPF_F_BROADCAST | (first(ctx) & 1 ? BPF_F_EXCLUDE_INGRESS : 0));
}

SEC("xdp")
int broadcast_by_name(struct xdp_md *ctx)
{
	return bpf_redirect_map(&devices_by_name, 0, BPF_F_BROADCAST | BPF_F_EXCLUDE_INGRESS);
}

/* The last call counts. */
SEC("xdp")
int twice(struct xdp_md *ctx)
{
	bpf_redirect_map(&cpus, 0, XDP_DROP);
	return bpf_redirect(ctx->ingress_ifindex, 0);
}

/* Of an entry: the first byte of what goes to device 41 is changed, other devices get nothing. */
SEC("xdp/devmap")
int egress(struct xdp_md *ctx)
{
	unsigned char *data = (void *)(long)ctx->data;

	if (data + 1 > (unsigned char *)(long)ctx->data_end)
		return XDP_ABORTED;
	data[0] = 0xee;
	return ctx->egress_ifindex == 41 ? XDP_PASS : XDP_DROP;
}

/* Of an entry: the first byte becomes the device; those above 50 get nothing. */
SEC("xdp/devmap")
int mark_egress(struct xdp_md *ctx)
{
	unsigned char *data = (void *)(long)ctx->data;

	if (data + 1 > (unsigned char *)(long)ctx->data_end)
		return XDP_ABORTED;
	data[0] = ctx->egress_ifindex;
	return ctx->egress_ifindex > 50 ? XDP_DROP : XDP_PASS;
}

/* Of an entry: what came from port 7 goes on, by its second byte to another device. */
SEC("xdp/cpumap")
int on_cpu(struct xdp_md *ctx)
{
	unsigned char *data = (void *)(long)ctx->data;

	if (data + 2 > (unsigned char *)(long)ctx->data_end || ctx->ingress_ifindex != 7)
		return XDP_TX;
	return data[1] ? bpf_redirect(data[1], 0) : XDP_PASS;
}

struct question {
	struct bpf_fib_lookup params;
	__u32 flags;
};

/* The packet is a question on routes, and becomes the answer. */
SEC("xdp")
int fib(struct xdp_md *ctx)
{
	struct question *question = (void *)(long)ctx->data;
	struct bpf_fib_lookup params;
	int answer;

	if ((void *)(question + 1) > (void *)(long)ctx->data_end)
		return -1;
	__builtin_memcpy(&params, &question->params, sizeof(params));
	answer = bpf_fib_lookup(ctx, &params, sizeof(params), question->flags);
	__builtin_memcpy(&question->params, &params, sizeof(params));
	return answer;
}
