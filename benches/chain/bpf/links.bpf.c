// SPDX-License-Identifier: MIT OR Apache-2.0
/* Programs in sequence. Each looks at a byte of the packet and passes it on, the last one drops it. `look` and `last` are the nodes of skep's
 * chains; the others are what the kernel has for the same: tail calls, a dispatcher like libxdp's, and one program made of all (as linking
 * does it), of functions or of straight code. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "mark.h"

char LICENSE[] SEC("license") = "GPL";

static __always_inline int look_at(struct xdp_md *ctx)
{
	unsigned char *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	if (data + 14 > end)
		return XDP_ABORTED;
	return data[12] == 0xfe ? XDP_ABORTED : XDP_PASS;
}

static __always_inline int finish(void)
{
	count_run();
	return XDP_DROP;
}

SEC("xdp") int look(struct xdp_md *ctx)
{
	return look_at(ctx);
}

SEC("xdp") int last(struct xdp_md *ctx)
{
	int verdict = look_at(ctx);
	return verdict == XDP_PASS ? XDP_DROP : verdict;
}

#define TO_8(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8)
#define TO_10(X) TO_8(X) X(9) X(10)
#define FROM_9(X) X(9) X(10) X(11) X(12) X(13) X(14) X(15) X(16)
#define FROM_17(X) X(17) X(18) X(19) X(20) X(21) X(22) X(23) X(24) X(25) X(26) X(27) X(28) X(29) X(30) X(31) X(32)
#define TO_32(X) TO_8(X) FROM_9(X) FROM_17(X)

/* Number N goes on to number N - 1; number 1 is the last one. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 33);
	__uint(key_size, 4);
	__uint(value_size, 4);
} constant_next SEC(".maps"), variable_next SEC(".maps");

#define TAIL(n)                                                                      \
	SEC("xdp") int constant_##n(struct xdp_md *ctx)                              \
	{                                                                            \
		int verdict = look_at(ctx);                                          \
		if (verdict != XDP_PASS)                                             \
			return verdict;                                              \
		if (n == 1)                                                          \
			return finish();                                             \
		bpf_tail_call_static(ctx, &constant_next, n - 1);                    \
		return XDP_ABORTED;                                                  \
	}                                                                            \
	SEC("xdp") int variable_##n(struct xdp_md *ctx)                              \
	{                                                                            \
		int verdict = look_at(ctx);                                          \
		if (verdict != XDP_PASS)                                             \
			return verdict;                                              \
		if (n == 1)                                                          \
			return finish();                                             \
		bpf_tail_call(ctx, &variable_next, n - 1 + (__u32)mark.zero);        \
		return XDP_ABORTED;                                                  \
	}
TO_32(TAIL)

/* A dispatcher: what a component answers is looked up in its bitmap, which lies in a frozen map. libxdp's components are loaded by themselves and
 * take the place of empty functions (freplace), which leaves a jump more than here. */
const volatile struct {
	__u32 count;
	__u32 go_on[10];
} dispatcher;

#define COMPONENT(n)                                                 \
	__attribute__((noinline)) int component_##n(struct xdp_md *ctx) \
	{                                                            \
		asm volatile("" ::"r"(n));                           \
		return look_at(ctx);                                 \
	}
TO_10(COMPONENT)

#define DISPATCH(n)                                                  \
	if (dispatcher.count < n)                                    \
		return finish();                                     \
	verdict = component_##n(ctx);                                \
	if (!(1u << (verdict & 31) & dispatcher.go_on[n - 1]))       \
		return verdict;
SEC("xdp") int dispatch(struct xdp_md *ctx)
{
	__u32 verdict;
	TO_10(DISPATCH)
	return finish();
}

/* All programs in one: functions, or straight code. */
#define NODE(n)                                                              \
	static __attribute__((noinline)) int node_##n(struct xdp_md *ctx)    \
	{                                                                    \
		asm volatile("" ::"r"(n));                                   \
		return look_at(ctx);                                         \
	}
TO_32(NODE)

#define CALL(n)                        \
	verdict = node_##n(ctx);       \
	if (verdict != XDP_PASS)       \
		return verdict;
#define STRAIGHT(n)                    \
	asm volatile("" ::: "memory"); \
	verdict = look_at(ctx);        \
	if (verdict != XDP_PASS)       \
		return verdict;
#define ALL_IN_ONE(n, which)                            \
	SEC("xdp") int calls_##n(struct xdp_md *ctx)    \
	{                                               \
		int verdict;                            \
		which(CALL) return finish();            \
	}                                               \
	SEC("xdp") int straight_##n(struct xdp_md *ctx) \
	{                                               \
		int verdict;                            \
		which(STRAIGHT) return finish();        \
	}
#define TO_1(X) X(1)
#define TO_2(X) X(1) X(2)
#define TO_4(X) TO_2(X) X(3) X(4)
#define TO_16(X) TO_8(X) FROM_9(X)
ALL_IN_ONE(1, TO_1)
ALL_IN_ONE(2, TO_2)
ALL_IN_ONE(4, TO_4)
ALL_IN_ONE(8, TO_8)
ALL_IN_ONE(16, TO_16)
ALL_IN_ONE(32, TO_32)
