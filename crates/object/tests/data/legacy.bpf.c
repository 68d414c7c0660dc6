// also: clang-14 clang-16
/* Maps as before BTF, with an author's own fields behind the known ones; beside them a static map, which libbpf refuses. */
#include "fixture.h"

struct bpf_map_def {
	__u32 type, key_size, value_size, max_entries, map_flags, inner, numa;
};

struct pair {
	__u32 a, b;
};

struct bpf_map_def SEC("maps") pairs = { .type = HASH, .key_size = 4, .value_size = sizeof(struct pair), .max_entries = 10, .map_flags = 1 };
struct bpf_map_def SEC("maps") slots = { .type = ARRAY, .key_size = 4, .value_size = 8, .max_entries = 20 };

struct ____btf_map_pairs {
	__u32 key;
	struct pair value;
};
struct ____btf_map_pairs __attribute__((section(".maps.pairs"), used)) ____btf_map_pairs = {};

static struct {
	__uint(type, BLOOM_FILTER);
	__uint(max_entries, 100);
	__uint(value_size, 8);
	__ulong(map_extra, 0x100000003);
} wide SEC(".maps");

SEC("socket")
int count(void *ctx)
{
	__u32 key = 1;
	__u64 *n = bpf_map_lookup_elem(&slots, &key);
	struct pair *p = bpf_map_lookup_elem(&pairs, &key);

	bpf_map_lookup_elem(&wide, 0);
	if (n && p)
		*n += p->b;
	return 0;
}

char _license[] SEC("license") = "MIT";
