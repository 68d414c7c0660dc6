/* What methods of methods.cc are called with and return. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

__s64 add_this, add_k, add_ret, twice_k, twice_ret, half_this, weigh_n, weigh_k, weigh_ret, label_k, label_m, lib_a, lib_ret;

SEC("fexit/methods:Counter::add")
int BPF_PROG(on_add, void *this, int k, long ret)
{
	add_this = (__s64)this;
	add_k = k;
	add_ret = ret;
	return 0;
}

SEC("fexit/methods:Counter::twice")
int BPF_PROG(on_twice, int k, long ret)
{
	twice_k = k;
	twice_ret = ret;
	return 0;
}

SEC("fexit/methods:Counter::half")
int BPF_PROG(on_half, void *this, int k)
{
	half_this = (__s64)this;
	return 0;
}

SEC("fexit/methods:weigh")
int BPF_PROG(on_weigh, long *h, int k, long ret)
{
	bpf_probe_read_user(&weigh_n, sizeof(weigh_n), h);
	weigh_k = k;
	weigh_ret = ret;
	return 0;
}

SEC("fexit/methods:label*")
int BPF_PROG(on_label, int k, long m)
{
	label_k = k;
	label_m = m;
	return 0;
}

SEC("fexit/libmethods:library_add")
int BPF_PROG(on_library, short a, const char *b, int ret)
{
	lib_a = a;
	lib_ret = ret;
	return 0;
}

char _license[] SEC("license") = "GPL";
