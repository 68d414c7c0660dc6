// SPDX-License-Identifier: MIT OR Apache-2.0
/* The least an entry program can do: count. For `cargo xtask bench trace`, where the function is `tiny` of `micro`. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} calls SEC(".maps");

SEC("fentry.multi/micro:tiny")
int count_entry(void *ctx)
{
	__u32 zero = 0;
	__u64 *value = bpf_map_lookup_elem(&calls, &zero);

	if (value)
		*value += 1;
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
