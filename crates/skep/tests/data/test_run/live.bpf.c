/* XDP programs on live frames: what one frame leaves the next, and where they go. */
#include "test_run.bpf.h"

/* How often each mark was seen. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, 256);
} marks SEC(".maps");

/* Sums over all frames. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, 8);
} sums SEC(".maps");

__u32 frames = 0;

static __always_inline void add(void *map, __u32 key, __u64 n)
{
	__u64 *value = bpf_map_lookup_elem(map, &key);

	if (value)
		*value += n;
}

/* Changes the frame, and its ends: only these are as they were the next time. */
SEC("xdp")
int live_marks(struct xdp_md *ctx)
{
	__u8 *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u8 *meta = (void *)(long)ctx->data_meta;
	__u32 n = frames++;

	if (data + 14 > end)
		return XDP_ABORTED;
	/* Which frame lay here before. */
	add(&sums, 6, (__u64)data[6] * n);
	data[6] = n;
	add(&marks, data[5]++, 1);
	add(&sums, 0, end - data);
	add(&sums, 1, data - meta);
	if (meta + 4 <= data)
		add(&sums, 2, ++meta[3]);
	add(&sums, 3, ctx->ingress_ifindex * 1000 + ctx->rx_queue_index);
	if (data[5] % 3 == 0)
		return bpf_xdp_adjust_head(ctx, -20) ? XDP_ABORTED : XDP_DROP;
	if (data[5] % 3 == 1)
		return bpf_xdp_adjust_meta(ctx, -8) ? XDP_ABORTED : XDP_DROP;
	return bpf_xdp_adjust_tail(ctx, 100) ? XDP_ABORTED : XDP_DROP;
}

/* How much room there is on both sides. */
SEC("xdp")
int live_room(struct xdp_md *ctx)
{
	int n;

	for (n = 0; n < 4096 && !bpf_xdp_adjust_tail(ctx, 1); n++)
		;
	add(&sums, 4, n);
	for (n = 0; n < 512 && !bpf_xdp_adjust_head(ctx, -1); n++)
		;
	add(&sums, 5, n);
	return XDP_DROP;
}

/* For the entries of a map. */
SEC("xdp/devmap")
int live_entry(struct xdp_md *ctx)
{
	return XDP_DROP;
}

/* For packets that are no frames. */
SEC("tc")
int live_skb(struct __sk_buff *skb)
{
	return TC_ACT_OK;
}

/* To four places in turn; one is the interface that the packet says. */
SEC("xdp")
int live_spread(struct xdp_md *ctx)
{
	__u8 *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 n = frames++, other;

	if (data + 60 > end)
		return XDP_ABORTED;
	data[20] = n;
	__builtin_memcpy(&other, data + 24, 4);
	add(&marks, n % 5, 1);
	switch (n % 5) {
	case 0:
		return XDP_PASS;
	case 1:
		return XDP_TX;
	case 2:
		return bpf_redirect(other, 0);
	case 3:
		return bpf_redirect(0x7ffffff0, 0); /* nowhere */
	}
	return XDP_DROP;
}
