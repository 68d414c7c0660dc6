/* Helpers of XDP programs. Their arguments are the first three words of the packet. */
#include "test_run.bpf.h"

#define AF_INET 2

struct args {
	__s32 a, b, c;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, 8);
} out SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__type(key, __u32);
	__type(value, __u32);
	__uint(max_entries, 4);
} devices SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_CPUMAP);
	__type(key, __u32);
	__type(value, __u32);
	__uint(max_entries, 4);
} cpus SEC(".maps");

static __always_inline int arguments(struct xdp_md *ctx, struct args *args)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;

	if (data + sizeof(*args) > end)
		return 0;
	__builtin_memcpy(args, data, sizeof(*args));
	return 1;
}

/* Adds to a word of the result. */
static __always_inline void note(__u32 word, __u64 value)
{
	__u64 *sum = bpf_map_lookup_elem(&out, &word);

	if (sum)
		*sum = *sum * 31 + value;
}

static __always_inline void note_shape(struct xdp_md *ctx)
{
	note(1, (long)ctx->data_end - (long)ctx->data);
	note(2, (long)ctx->data - (long)ctx->data_meta);
	note(3, bpf_xdp_get_buff_len(ctx));
}

#define PROGRAM(name, section) SEC(section) int name(struct xdp_md *ctx)

#define HEAD(name, section)                                                                                                      \
	PROGRAM(name, section)                                                                                                   \
	{                                                                                                                        \
		struct args args;                                                                                                \
		long r;                                                                                                          \
		if (!arguments(ctx, &args))                                                                                      \
			return XDP_DROP;                                                                                         \
		r = bpf_xdp_adjust_head(ctx, args.a);                                                                            \
		note(0, r);                                                                                                      \
		note_shape(ctx);                                                                                                 \
		return r;                                                                                                        \
	}
HEAD(xdp_head, "xdp")
HEAD(xdp_head_frags, "xdp.frags")

#define TAIL(name, section)                                                                                                      \
	PROGRAM(name, section)                                                                                                   \
	{                                                                                                                        \
		struct args args;                                                                                                \
		long r;                                                                                                          \
		if (!arguments(ctx, &args))                                                                                      \
			return XDP_DROP;                                                                                         \
		r = bpf_xdp_adjust_tail(ctx, args.a);                                                                            \
		note(0, r);                                                                                                      \
		note_shape(ctx);                                                                                                 \
		if (args.b)                                                                                                      \
			note(0, bpf_xdp_adjust_tail(ctx, args.b));                                                               \
		note_shape(ctx);                                                                                                 \
		return r;                                                                                                        \
	}
TAIL(xdp_tail, "xdp")
TAIL(xdp_tail_frags, "xdp.frags")

/* Metadata, written, and then moved with the packet. */
SEC("xdp")
int xdp_meta(struct xdp_md *ctx)
{
	struct args args;
	__u32 *meta;
	void *data;
	long r;

	if (!arguments(ctx, &args))
		return XDP_DROP;
	r = bpf_xdp_adjust_meta(ctx, args.a);
	note(0, r);
	note_shape(ctx);
	meta = (void *)(long)ctx->data_meta;
	data = (void *)(long)ctx->data;
	if ((void *)(meta + 1) <= data)
		*meta = 0xfeedbeef;
	if (args.b)
		note(0, bpf_xdp_adjust_head(ctx, args.b));
	if (args.c)
		note(0, bpf_xdp_adjust_meta(ctx, args.c));
	note_shape(ctx);
	return r;
}

#define LOAD(name, section)                                                                                                      \
	PROGRAM(name, section)                                                                                                   \
	{                                                                                                                        \
		__u32 buf[8] = { 1, 2, 3, 4, 5, 6, 7, 8 };                                                                       \
		struct args args;                                                                                                \
		long r;                                                                                                          \
		if (!arguments(ctx, &args))                                                                                      \
			return XDP_DROP;                                                                                         \
		r = bpf_xdp_load_bytes(ctx, args.a, buf, sizeof(buf));                                                           \
		note(0, r);                                                                                                      \
		for (int i = 0; i < 8; i++)                                                                                      \
			note(1, buf[i]);                                                                                         \
		note(0, bpf_xdp_store_bytes(ctx, args.b, buf, 7));                                                               \
		note_shape(ctx);                                                                                                 \
		return r;                                                                                                        \
	}
LOAD(xdp_load, "xdp")
LOAD(xdp_load_frags, "xdp.frags")

SEC("xdp")
int xdp_csum(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct args args;

	if (!arguments(ctx, &args) || data + 60 > end)
		return XDP_DROP;
	note(0, bpf_csum_diff(0, 0, data + 12, 48, args.a));
	note(1, bpf_csum_diff(data + 12, 48, 0, 0, args.a));
	note(2, bpf_csum_diff(data + 12, 20, data + 32, 28, args.a));
	note(3, bpf_csum_diff(data + 12, 4, data + 16, 4, 0));
	note(4, bpf_csum_diff(data + 12, 4, data + 12, 4, 0));
	note(5, bpf_csum_diff(data, 0, data, 0, args.a));
	note(6, bpf_csum_diff(data, 6, data, 8, args.a));
	note(7, bpf_csum_diff((void *)&args, 4, (void *)&args.b, 8, args.c));
	return XDP_PASS;
}

SEC("xdp")
int xdp_redirect(struct xdp_md *ctx)
{
	struct args args;

	if (!arguments(ctx, &args))
		return XDP_DROP;
	note(0, bpf_redirect(args.a, args.b));
	note(1, bpf_redirect_map(&devices, args.a, args.b));
	note(2, bpf_redirect_map(&cpus, args.a, args.b));
	return bpf_redirect_map(&devices, args.a, args.b);
}

SEC("xdp")
int xdp_fib(struct xdp_md *ctx)
{
	struct bpf_fib_lookup fib = {};
	struct args args;

	if (!arguments(ctx, &args))
		return XDP_DROP;
	fib.family = args.a;
	fib.ifindex = args.b;
	fib.tot_len = 100;
	fib.ipv4_src = 0x0100007f;
	fib.ipv4_dst = 0x0100007f;
	note(0, bpf_fib_lookup(ctx, &fib, sizeof(fib), args.c));
	return bpf_fib_lookup(ctx, &fib, sizeof(fib) - 1, 0);
}

SEC("xdp")
int xdp_mtu(struct xdp_md *ctx)
{
	struct args args;
	__u32 len;
	long r;

	if (!arguments(ctx, &args))
		return XDP_DROP;
	len = args.b;
	r = bpf_check_mtu(ctx, args.a, &len, args.c, 0);
	note(0, r);
	note(1, len);
	note(2, bpf_check_mtu(ctx, args.a, &len, 0, 1));
	return r;
}

