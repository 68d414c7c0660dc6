/* Programs in arrays, maps in maps. */
#include "test_run.bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, 8);
} seen SEC(".maps");

static __always_inline void count(__u32 key)
{
	__u64 *n = bpf_map_lookup_elem(&seen, &key);

	if (n)
		++*n;
}

int pass(struct xdp_md *ctx);
int drop(struct xdp_md *ctx);
int further(struct xdp_md *ctx);

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 6);
	__uint(key_size, 4);
	__array(values, int(void *));
} jumps SEC(".maps") = {
	.values = {
		[0] = (void *)&pass,
		[1] = (void *)&drop,
		[3] = (void *)&further,
	},
};

int again(struct xdp_md *ctx);

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__uint(key_size, 4);
	__array(values, int(void *));
} loop SEC(".maps") = {
	.values = { [0] = (void *)&again },
};

SEC("xdp")
int pass(struct xdp_md *ctx)
{
	count(0);
	return XDP_PASS;
}

SEC("xdp")
int drop(struct xdp_md *ctx)
{
	count(1);
	return XDP_DROP;
}

/* Goes on by what it finds in the packet, after a local call. */
static __noinline __u32 second(struct xdp_md *ctx)
{
	__u8 *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;

	return data + 6 > end ? 9 : data[5] - 1;
}

SEC("xdp")
int further(struct xdp_md *ctx)
{
	count(2);
	bpf_tail_call(ctx, &jumps, second(ctx));
	count(3);
	return 77;
}

SEC("xdp")
int jump(struct xdp_md *ctx)
{
	__u8 *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;

	if (data + 1 > end)
		return XDP_ABORTED;
	bpf_tail_call(ctx, &jumps, data[0]);
	count(4);
	return 55;
}

/* Calls itself until it may not: one run and 33 more. */
SEC("xdp")
int again(struct xdp_md *ctx)
{
	count(5);
	bpf_tail_call(ctx, &loop, 0);
	count(6);
	return 5;
}

SEC("xdp")
int count_down(struct xdp_md *ctx)
{
	count(7);
	bpf_tail_call(ctx, &loop, 0);
	return 3;
}

int tc_last(struct __sk_buff *skb);

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 4);
	__uint(key_size, 4);
	__array(values, int(void *));
} tc_jumps SEC(".maps") = {
	.values = { [2] = (void *)&tc_last },
};

SEC("tc")
int tc_last(struct __sk_buff *skb)
{
	return skb->mark + skb->cb[1];
}

SEC("tc")
int tc_jump(struct __sk_buff *skb)
{
	__u8 *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;

	if (data + 1 > end)
		return -1;
	skb->mark = 40;
	skb->cb[1] = 2;
	bpf_tail_call(skb, &tc_jumps, data[0]);
	return TC_ACT_SHOT;
}

struct inner {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
} first_inner SEC(".maps"), second_inner SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 4);
	__type(key, __u32);
	__array(values, struct inner);
} outer SEC(".maps") = {
	.values = { &first_inner, 0, &second_inner },
};

struct inner_hash {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8);
	__type(key, __u32);
	__type(value, __u64);
} hash_inner SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH_OF_MAPS);
	__uint(max_entries, 4);
	__type(key, __u32);
	__array(values, struct inner_hash);
} outer_hash SEC(".maps") = {
	.values = { [1] = &hash_inner },
};

SEC("xdp")
int inner_maps(struct xdp_md *ctx)
{
	__u8 *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 key, one = 1;
	void *inner;
	__u64 *value;

	if (data + 1 > end)
		return -1;
	key = data[0];
	inner = bpf_map_lookup_elem(&outer, &key);
	if (!inner)
		return 100;
	value = bpf_map_lookup_elem(inner, &one);
	if (!value)
		return 101;
	*value += key + 1;
	return *value;
}

SEC("xdp")
int inner_hash(struct xdp_md *ctx)
{
	__u8 *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 key = 1, at;
	__u64 n = 5;
	void *inner;

	if (data + 1 > end)
		return -1;
	at = data[0];
	inner = bpf_map_lookup_elem(&outer_hash, &key);
	if (!inner)
		return 100;
	return bpf_map_update_elem(inner, &at, &n, BPF_NOEXIST);
}
