/* Every operation on every map type that programs may call, as the packet says: four bytes each, operation, map, key, value. */
#include "test_run.bpf.h"

#define MAP(name, t, k, v, n, f)                                                \
	struct {                                                                \
		__uint(type, t);                                                \
		__uint(key_size, k);                                            \
		__uint(value_size, v);                                          \
		__uint(max_entries, n);                                         \
		__uint(map_flags, f);                                           \
	} name SEC(".maps")

MAP(hash, BPF_MAP_TYPE_HASH, 4, 8, 4, 0);
MAP(wide_hash, BPF_MAP_TYPE_HASH, 4, 24, 4, BPF_F_NO_PREALLOC);
MAP(array, BPF_MAP_TYPE_ARRAY, 4, 8, 4, 0);
MAP(percpu_hash, BPF_MAP_TYPE_PERCPU_HASH, 4, 8, 4, 0);
MAP(percpu_array, BPF_MAP_TYPE_PERCPU_ARRAY, 4, 8, 4, 0);
MAP(lru, BPF_MAP_TYPE_LRU_HASH, 4, 8, 4096, 0);
MAP(lru_percpu, BPF_MAP_TYPE_LRU_PERCPU_HASH, 4, 8, 4096, 0);
MAP(trie, BPF_MAP_TYPE_LPM_TRIE, 8, 8, 4, BPF_F_NO_PREALLOC);
MAP(wide_trie, BPF_MAP_TYPE_LPM_TRIE, 8, 24, 4, BPF_F_NO_PREALLOC);
MAP(queue, BPF_MAP_TYPE_QUEUE, 0, 8, 3, 0);
MAP(stack, BPF_MAP_TYPE_STACK, 0, 8, 3, 0);
MAP(bloom, BPF_MAP_TYPE_BLOOM_FILTER, 0, 8, 1000, 0);

struct run {
	__u64 sum;
	__u32 at;
	__u8 *data, *end;
};

struct prefix {
	__u32 length;
	__u8 data[4];
};

/* What came back, and where in the run. */
#define SAY(x) (r->sum = (r->sum ^ (__u64)(x)) * 0x100000001b3ULL)

/* How: 0 a word, 1 three words, 2 a word for each CPU, of which nobody knows on which it runs. */
#define BY_KEY(map, key, how)                                                  \
	do {                                                                    \
		__u64 v[3] = { value, value + 1, value + 2 };                   \
		__u64 *p;                                                       \
		switch (op & 7) {                                               \
		case 0: case 1: case 2:                                         \
			SAY(bpf_map_update_elem(&map, key, v, op >> 3));        \
			break;                                                  \
		case 3:                                                         \
			SAY(bpf_map_delete_elem(&map, key));                    \
			break;                                                  \
		case 4:                                                         \
			p = bpf_map_lookup_elem(&map, key);                     \
			if (p)                                                  \
				*p += value;                                    \
			SAY(p ? (how == 2 ? 1 : *p) : 7);                       \
			break;                                                  \
		default:                                                        \
			p = bpf_map_lookup_elem(&map, key);                     \
			SAY(p ? (how == 2 ? 1 : how == 1 ? p[2] ^ p[0] : *p) : 3); \
		}                                                               \
	} while (0)

static long one(__u32 i, struct run *r)
{
	__u8 *p = r->data + (i & 511) * 4;
	__u32 key, op, which;
	__u64 value;
	struct prefix pre = {};

	if (p + 4 > r->end)
		return 1;
	op = p[0];
	which = p[1] % 12;
	key = p[2] % 6;
	value = p[3];
	pre.length = p[2] % 34;
	pre.data[0] = 10;
	pre.data[1] = p[3] & 0x81;
	pre.data[2] = p[3] >> 2 & 0x81;
	switch (which) {
	case 0: BY_KEY(hash, &key, 0); break;
	case 1: BY_KEY(wide_hash, &key, 1); break;
	case 2: BY_KEY(array, &key, 0); break;
	case 3: BY_KEY(percpu_hash, &key, 2); break;
	case 4: BY_KEY(percpu_array, &key, 2); break;
	case 5: BY_KEY(lru, &key, 0); break;
	case 6: BY_KEY(lru_percpu, &key, 2); break;
	case 7: BY_KEY(trie, &pre, 0); break;
	case 8: BY_KEY(wide_trie, &pre, 1); break;
	case 9:
	case 10: {
		__u64 v = value;

		if (op & 1)
			SAY(which == 9 ? bpf_map_push_elem(&queue, &v, op >> 5) : bpf_map_push_elem(&stack, &v, op >> 5));
		else if (op & 2)
			SAY(which == 9 ? bpf_map_pop_elem(&queue, &v) : bpf_map_pop_elem(&stack, &v));
		else
			SAY(which == 9 ? bpf_map_peek_elem(&queue, &v) : bpf_map_peek_elem(&stack, &v));
		SAY(v);
		break;
	}
	default:
		if (op & 1)
			SAY(bpf_map_push_elem(&bloom, &value, op >> 6));
		else if (value % 2 == 0)
			/* Odd ones may be there by chance. */
			SAY(value < 128 ? 0 : bpf_map_peek_elem(&bloom, &value) & 0);
	}
	return 0;
}

SEC("xdp")
int map_storm(struct xdp_md *ctx)
{
	struct run run = {
		.sum = 0xcbf29ce484222325ULL,
		.data = (void *)(long)ctx->data,
		.end = (void *)(long)ctx->data_end,
	};

	bpf_loop(400, one, &run, 0);
	return run.sum ^ run.sum >> 32;
}

/* The walk's order is not the kernel's: a sum has none. */
struct walk {
	__u64 sum, elements;
};

static long add(void *map, __u32 *key, __u64 *value, struct walk *w)
{
	w->sum += (*key + 1) * *value;
	w->elements++;
	return 0;
}

SEC("xdp")
int map_walk(struct xdp_md *ctx)
{
	struct walk w = {};
	__u32 key;
	__u64 value;
	int i;

	for (i = 0; i < 4; i++) {
		key = i;
		value = i * 77 + 5;
		bpf_map_update_elem(&hash, &key, &value, BPF_ANY);
		bpf_map_update_elem(&array, &key, &value, BPF_ANY);
		bpf_map_update_elem(&percpu_array, &key, &value, BPF_ANY);
		bpf_map_update_elem(&lru, &key, &value, BPF_ANY);
	}
	bpf_for_each_map_elem(&hash, add, &w, 0);
	bpf_for_each_map_elem(&array, add, &w, 0);
	bpf_for_each_map_elem(&percpu_array, add, &w, 0);
	bpf_for_each_map_elem(&lru, add, &w, 0);
	return w.sum * 31 + w.elements;
}

SEC("xdp")
int map_of_cpu(struct xdp_md *ctx)
{
	__u32 key = 1;
	__u64 *own = bpf_map_lookup_elem(&percpu_array, &key), *there;
	__u32 found = 0;

	if (!own)
		return 1;
	*own += 5;
	/* Beyond all processors there is nothing. */
	there = bpf_map_lookup_percpu_elem(&percpu_array, &key, 100000);
	found += there ? 1 : 0;
	there = bpf_map_lookup_percpu_elem(&percpu_array, &key, 0);
	found += there ? 2 : 0;
	key = 77;
	there = bpf_map_lookup_percpu_elem(&percpu_array, &key, 0);
	found += there ? 4 : 0;
	return found;
}
