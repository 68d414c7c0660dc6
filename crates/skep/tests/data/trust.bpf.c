/* Programs of several kinds that share an array of programs, and such as count on more of their context than others of their type. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char _license[] SEC("license") = "GPL";

extern __u64 *bpf_session_cookie(void *ctx) __ksym;
extern void *bpf_rdonly_cast(const void *obj, __u32 type) __ksym;

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 2);
	__uint(key_size, 4);
	__uint(value_size, 4);
} jumps SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, 4);
} numbers SEC(".maps");

static __always_inline int note(__u64 which)
{
	__u32 key = 0;
	__u64 *n = bpf_map_lookup_elem(&numbers, &key);

	if (n)
		*n = which;
	return 0;
}

SEC("xdp")
int xdp_jump(struct xdp_md *ctx)
{
	bpf_tail_call(ctx, &jumps, 0);
	return 55;
}

SEC("xdp")
int xdp_target(struct xdp_md *ctx)
{
	return 3;
}

SEC("tc")
int tc_jump(struct __sk_buff *ctx)
{
	bpf_tail_call(ctx, &jumps, 0);
	return 56;
}

SEC("tc")
int tc_target(struct __sk_buff *ctx)
{
	return 7;
}

SEC("fentry/f")
int entry_jump(void *ctx)
{
	bpf_tail_call(ctx, &jumps, 1);
	return note(57);
}

SEC("fsession/f")
int session_jump(void *ctx)
{
	bpf_tail_call(ctx, &jumps, 1);
	return note(58);
}

SEC("fentry/f")
int entry_target(void *ctx)
{
	return note(8);
}

SEC("fsession/f")
int session_target(void *ctx)
{
	*bpf_session_cookie(ctx) = 1;
	return note(9);
}

SEC("uprobe.session/f")
int probe_session(void *ctx)
{
	*bpf_session_cookie(ctx) = 1;
	return note(10);
}

SEC("xdp")
int count(struct xdp_md *ctx)
{
	__u32 key = 3;
	__u64 *n = bpf_map_lookup_elem(&numbers, &key);

	return n ? ++*n : 0;
}

/* Looks where there is no memory. */
SEC("xdp")
int look(struct xdp_md *ctx)
{
	__u64 *p = bpf_rdonly_cast((void *)8, 0);

	return *p == 0 ? 4 : 5;
}
