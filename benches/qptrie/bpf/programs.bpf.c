// SPDX-License-Identifier: MIT OR Apache-2.0
/* What a program does with a set of keys, each of them once: with a trie of byte strings, and with a hash whose keys are all as long as the
 * longest, filled up with zeros, which the kernel has too. As in the bench of Hou Tao's series (2022), the keys lie in an array, and the
 * program goes through it. The bench gives the maps the sizes of the set: a cell then ends behind the longest key. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "../../../crates/cli/bpf/skep_maps.bpf.h"

#define LONGEST 255

char LICENSE[] SEC("license") = "GPL";

const volatile __u32 longest = LONGEST;

struct cell {
	__u32 length;
	char key[LONGEST];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct cell);
} keys SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_QP_TRIE);
	__uint(max_entries, 1);
	__uint(map_extra, LONGEST);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct bpf_dynptr);
	__type(value, __u32);
} trie SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(key_size, LONGEST);
	__uint(value_size, 4);
} padded SEC(".maps");

struct counts {
	__u64 done; /* elements found, stored or deleted */
	__u64 sum;  /* of their values */
};

struct counts result;

static long look_up_in_trie(void *map, __u32 *index, struct cell *cell, struct counts *counts)
{
	__u32 length = cell->length, *value;
	struct bpf_dynptr key;

	if (length > longest)
		return 1;
	bpf_dynptr_from_mem(cell->key, length, 0, &key);
	value = bpf_map_lookup_elem(&trie, &key);
	if (value) {
		counts->done++;
		counts->sum += *value;
	}
	return 0;
}

static long look_up_in_padded(void *map, __u32 *index, struct cell *cell, struct counts *counts)
{
	__u32 *value = bpf_map_lookup_elem(&padded, cell->key);

	if (value) {
		counts->done++;
		counts->sum += *value;
	}
	return 0;
}

static long insert_in_trie(void *map, __u32 *index, struct cell *cell, struct counts *counts)
{
	__u32 length = cell->length, value = *index;
	struct bpf_dynptr key;

	if (length > longest)
		return 1;
	bpf_dynptr_from_mem(cell->key, length, 0, &key);
	counts->done += bpf_map_update_elem(&trie, &key, &value, BPF_NOEXIST) == 0;
	return 0;
}

static long insert_in_padded(void *map, __u32 *index, struct cell *cell, struct counts *counts)
{
	__u32 value = *index;

	counts->done += bpf_map_update_elem(&padded, cell->key, &value, BPF_NOEXIST) == 0;
	return 0;
}

static long delete_in_trie(void *map, __u32 *index, struct cell *cell, struct counts *counts)
{
	__u32 length = cell->length;
	struct bpf_dynptr key;

	if (length > longest)
		return 1;
	bpf_dynptr_from_mem(cell->key, length, 0, &key);
	counts->done += bpf_map_delete_elem(&trie, &key) == 0;
	return 0;
}

static long delete_in_padded(void *map, __u32 *index, struct cell *cell, struct counts *counts)
{
	counts->done += bpf_map_delete_elem(&padded, cell->key) == 0;
	return 0;
}

/* In the order of the keys, which the callback gets as a dynptr. */
static long add_of_trie(void *map, struct bpf_dynptr *key, __u32 *value, struct counts *counts)
{
	counts->done++;
	counts->sum += *value;
	return 0;
}

static long add_of_padded(void *map, void *key, __u32 *value, struct counts *counts)
{
	counts->done++;
	counts->sum += *value;
	return 0;
}

#define PROGRAM(name, map, callback)                               \
	SEC("syscall") int name(void *ctx)                         \
	{                                                          \
		struct counts counts = {};                         \
		bpf_for_each_map_elem(&map, callback, &counts, 0); \
		result = counts;                                   \
		return 0;                                          \
	}

PROGRAM(trie_look_up, keys, look_up_in_trie)
PROGRAM(trie_insert, keys, insert_in_trie)
PROGRAM(trie_delete, keys, delete_in_trie)
PROGRAM(trie_walk, trie, add_of_trie)
PROGRAM(padded_look_up, keys, look_up_in_padded)
PROGRAM(padded_insert, keys, insert_in_padded)
PROGRAM(padded_delete, keys, delete_in_padded)
PROGRAM(padded_walk, padded, add_of_padded)
