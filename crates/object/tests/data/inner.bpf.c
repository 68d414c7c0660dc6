// also: clang-14 clang-16
/* Maps of maps and a program array, with first contents. */
#include "fixture.h"

struct inner {
	__uint(type, ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
};

struct inner first SEC(".maps"), second SEC(".maps");

struct {
	__uint(type, ARRAY_OF_MAPS);
	__uint(max_entries, 4);
	__type(key, __u32);
	__array(values, struct inner);
} outer SEC(".maps") = { .values = { [0] = &second, [3] = &first } };

struct {
	__uint(type, HASH_OF_MAPS);
	__uint(max_entries, 4);
	__uint(key_size, 8);
	__array(values, struct inner);
} unset SEC(".maps");

int leaf(void *ctx);

struct {
	__uint(type, PROG_ARRAY);
	__uint(max_entries, 3);
	__uint(key_size, 4);
	__array(values, int(void *));
} jumps SEC(".maps") = { .values = { [1] = (void *)&leaf } };

SEC("xdp")
int leaf(void *ctx)
{
	__u32 key = 3;
	void *in = bpf_map_lookup_elem(&outer, &key);
	__u64 *v = in ? bpf_map_lookup_elem(in, &key) : 0;

	return v ? *v : 2;
}

SEC("xdp")
int entry(void *ctx)
{
	bpf_tail_call(ctx, &jumps, 1);
	return 2;
}

char _license[] SEC("license") = "GPL";
