/* A callback that gives each element that it is shown a new value, too large for one store, and has other keys come and go: what they leave is
 * used again at once. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "../../../../cli/bpf/skep_maps.bpf.h"

char _license[] SEC("license") = "GPL";

struct value {
	__u64 n;
	__u64 shown; /* so often */
	__u64 last;
};

struct {
	__uint(type, BPF_MAP_TYPE_QP_TRIE);
	__type(key, struct bpf_dynptr);
	__type(value, struct value);
	__uint(max_entries, 4096);
	__uint(map_extra, 64);
	__uint(map_flags, BPF_F_NO_PREALLOC);
} elements SEC(".maps");

/* Keys that are there only for a moment. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, char[64]);
	__uint(max_entries, 4);
} others SEC(".maps");

struct results {
	__u64 shown;
	__u64 refused; /* updates */
} results;

static void come_and_go(__u32 which)
{
	char *other = bpf_map_lookup_elem(&others, &which);
	struct value value = {};
	struct bpf_dynptr key;

	if (!other)
		return;
	bpf_dynptr_from_mem(other, 20, 0, &key);
	if (bpf_map_update_elem(&elements, &key, &value, BPF_NOEXIST) != 0)
		bpf_map_delete_elem(&elements, &key);
}

static long each(void *map, struct bpf_dynptr *key, struct value *value, void *ctx)
{
	struct value next = *value;

	results.shown++;
	next.shown++;
	if (bpf_map_update_elem(&elements, key, &next, BPF_EXIST) != 0)
		results.refused++;
	for (int i = 0; i < 64; i++)
		come_and_go(i % 4);
	return 0;
}

SEC("syscall") int replace_each(void *ctx)
{
	__builtin_memset(&results, 0, sizeof(results));
	bpf_for_each_map_elem(&elements, each, (void *)0, 0);
	return 0;
}
