// clang: -mcpu=v4
/* Programs whose context is a piece of memory. */
#include "test_run.bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(key_size, 8);
	__uint(value_size, 8);
	__uint(max_entries, 16);
} words SEC(".maps");

struct input {
	__u32 a, b;
	__u64 sum;
	__s64 quotient;
	char text[8];
};

/* Works in place. */
SEC("syscall")
int syscall_in_place(struct input *in)
{
	in->sum = (__u64)in->a + in->b;
	in->quotient = in->b ? (__s32)in->a / (__s32)in->b : -1;
	in->text[7] = 'x';
	return in->a ^ in->b;
}

/* Keeps what it is given. */
SEC("syscall")
int syscall_map(struct input *in)
{
	__u64 key = in->a, value = in->b;

	return bpf_map_update_elem(&words, &key, &value, BPF_NOEXIST);
}

SEC("raw_tp/whatever")
int raw_tp_words(struct bpf_raw_tracepoint_args *ctx)
{
	__u64 key = ctx->args[0], value = ctx->args[1];

	bpf_map_update_elem(&words, &key, &value, BPF_ANY);
	return ctx->args[0] + ctx->args[1];
}

static __noinline __u64 mix(__u64 x)
{
	x ^= x >> 33;
	x *= 0xff51afd7ed558ccdULL;
	return x ^ x >> 29;
}

SEC("raw_tp/whatever")
int raw_tp_mix(struct bpf_raw_tracepoint_args *ctx)
{
	__u64 x = ctx->args[2];
	int i;

	for (i = 0; i < 10; i++)
		x = mix(x + i);
	return x;
}

/* Says what it was given. */
SEC("raw_tp/whatever")
int raw_tp_print(struct bpf_raw_tracepoint_args *ctx)
{
	bpf_printk("%d and %llx", (int)ctx->args[0], ctx->args[1]);
	return 0;
}
