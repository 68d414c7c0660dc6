/* What functions are called with and return, as libbpf's macros read it: beside what proto.c says. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

extern _Bool bpf_session_is_return(void *ctx) __ksym __weak;

__s64 none_ret, two_a, two_b, two_ret, six_f, six_ret, nine_a, nine_g, nine_i, nine_ret;
__s64 narrow_a, narrow_b, narrow_c, narrow_d, narrow_ret, nothing_a, scale_n;
__s64 swap_a, swap_b, swap_k, swap_ret0, swap_ret1, mix_n, mix_k, mix_ret, make_a, make_c;
__s64 spill_pa, spill_pb, spill_g, spill_ret, take_a, take_b, take_k, take_ret, variadic_n, variadic_ret, decide_a;
__s64 pointers;
/* What the helpers say: how many words there are, the last, the result, and the error behind the last. */
__s64 count_two, count_nine, count_swap, count_scale, count_none, last_nine, last_swap, result_nine, result_swap, error_two;
/* Results that are not there yet. */
__s64 early = -1, early_decide = -1;

SEC("fexit/proto:none")
int BPF_PROG(on_none, int ret)
{
	none_ret = ret;
	count_none = bpf_get_func_arg_cnt(ctx);
	return 0;
}

SEC("fexit/proto:two")
int BPF_PROG(on_two, int a, long b, int ret)
{
	__u64 v = 0;

	two_a = a;
	two_b = b;
	two_ret = ret;
	count_two = bpf_get_func_arg_cnt(ctx);
	error_two = bpf_get_func_arg(ctx, 2, &v);
	return 0;
}

SEC("fexit/proto:six")
int BPF_PROG(on_six, long a, long b, long c, long d, long e, long f, long ret)
{
	six_f = f;
	six_ret = ret;
	return 0;
}

SEC("fexit/proto:nine")
int BPF_PROG(on_nine, long a, long b, long c, long d, long e, long f, long g, long h, long i, long ret)
{
	__u64 v = 0;

	nine_a = a;
	nine_g = g;
	nine_ret = ret;
	count_nine = bpf_get_func_arg_cnt(ctx);
	bpf_get_func_ret(ctx, &v);
	result_nine = v;
	return 0;
}

SEC("fentry/proto:nine")
int BPF_PROG(at_nine, long a, long b, long c, long d, long e, long f, long g, long h, long i)
{
	__u64 v = 0;

	nine_i = i;
	bpf_get_func_arg(ctx, 8, &v);
	last_nine = v;
	return 0;
}

SEC("fexit/proto:narrow")
int BPF_PROG(on_narrow, _Bool a, signed char b, short c, unsigned char d, signed char ret)
{
	narrow_a = a;
	narrow_b = b;
	narrow_c = c;
	narrow_d = d;
	narrow_ret = ret;
	return 0;
}

SEC("fexit/proto:nothing")
int BPF_PROG(on_nothing, int a)
{
	nothing_a = a;
	return 0;
}

SEC("fexit/proto:scale")
int BPF_PROG(on_scale, int n)
{
	scale_n = n;
	count_scale = bpf_get_func_arg_cnt(ctx);
	return 0;
}

SEC("fexit/proto:swap")
int BPF_PROG(on_swap, long a, long b, int k, long first, long second)
{
	__u64 v = 0;

	swap_a = a;
	swap_b = b;
	swap_k = k;
	swap_ret0 = first;
	swap_ret1 = second;
	count_swap = bpf_get_func_arg_cnt(ctx);
	bpf_get_func_arg(ctx, 2, &v);
	last_swap = (int)v;
	bpf_get_func_ret(ctx, &v);
	result_swap = v;
	return 0;
}

SEC("fexit/proto:mix")
int on_mix(__u64 *ctx)
{
	mix_n = ctx[1];
	mix_k = (int)ctx[2];
	mix_ret = ctx[4];
	return 0;
}

SEC("fexit/proto:make")
int BPF_PROG(on_make, int a, int c)
{
	make_a = a;
	make_c = c;
	return 0;
}

SEC("fexit/proto:spill")
int BPF_PROG(on_spill, long a, long b, long c, long d, long e, long pa, long pb, int g, int ret)
{
	spill_pa = pa;
	spill_pb = pb;
	spill_g = g;
	spill_ret = ret;
	return 0;
}

struct small {
	int a;
	short b;
};

SEC("fexit/proto:take")
int BPF_PROG2(on_take, struct small, s, int, k, int, ret)
{
	take_a = s.a;
	take_b = s.b;
	take_k = k;
	take_ret = ret;
	return 0;
}

SEC("fsession/proto:variadic")
int BPF_PROG(on_variadic, int n, int ret)
{
	if (!bpf_session_is_return(ctx)) {
		early = ret;
		return 0;
	}
	variadic_n = n;
	variadic_ret = ret;
	return 0;
}

SEC("fmod_ret/proto:decide")
int BPF_PROG(on_decide, int a, int b, int ret)
{
	decide_a = a;
	early_decide = ret;
	return 0;
}

/* Two functions that are alike in what is read, and others that are not. */
struct later {
	long n;
};

SEC("fexit.multi/proto:pointer,proto:other")
int BPF_PROG(on_pointers, struct later *p, int k, int ret)
{
	pointers += ret;
	return 0;
}

char _license[] SEC("license") = "GPL";
