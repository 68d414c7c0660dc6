// Counts in an inner map that comes when the program is attached already.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct inner {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, int);
	__type(value, long);
	__uint(max_entries, 1);
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__type(key, int);
	__uint(max_entries, 1);
	__array(values, struct inner);
} outer SEC(".maps");

SEC("fentry")
int count(void *ctx)
{
	int first = 0;
	void *inner = bpf_map_lookup_elem(&outer, &first);
	long *value = inner ? bpf_map_lookup_elem(inner, &first) : 0;

	if (value)
		__sync_fetch_and_add(value, 1);
	return 0;
}

char _license[] SEC("license") = "GPL";
