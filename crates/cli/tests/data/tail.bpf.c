/* A program that goes on as another one every other time. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char _license[] SEC("license") = "GPL";

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, 3);
} counts SEC(".maps");

static __u64 count(__u32 key)
{
	__u64 *n = bpf_map_lookup_elem(&counts, &key);

	return n ? ++*n : 0;
}

int second(void *ctx);

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 2);
	__uint(key_size, 4);
	__array(values, int(void *));
} jumps SEC(".maps") = {
	.values = { [1] = (void *)&second },
};

SEC("fentry/leaf")
int first(void *ctx)
{
	bpf_tail_call(ctx, &jumps, count(0) & 1);
	count(1);
	return 0;
}

SEC("fentry/twice")
int second(void *ctx)
{
	count(2);
	return 0;
}
