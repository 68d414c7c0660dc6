/* A program that no verifier accepts: it forgets that a key may be missing. */
#include "../../bpf/skep.bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16);
	__type(key, __u32);
	__type(value, __u64);
} opens SEC(".maps");

SEC("fentry.multi/open")
int count_opens(__u64 *ctx)
{
	__u32 key = 1;
	__u64 *n = bpf_map_lookup_elem(&opens, &key);

	++*n;
	return 0;
}

char _license[] SEC("license") = "Dual MIT/GPL";
