/* Definitions of tries whose keys have types of all kinds: which are refused stands in the test. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "../../../../cli/bpf/skep_maps.bpf.h"

typedef const struct bpf_dynptr text;

/* As large as a dynptr. */
struct two_words {
	__u64 words[2];
};

/* A dynptr, and no more. */
struct wrapped {
	struct bpf_dynptr text;
};

struct numbered {
	__u64 number;
	struct bpf_dynptr text[1];
};

#define MAP(name, kind, of, extra)                   \
	struct {                                     \
		__uint(type, kind);                  \
		__type(key, of);                     \
		__type(value, __u64);                \
		__uint(max_entries, 16);             \
		__uint(map_extra, extra);            \
		__uint(map_flags, BPF_F_NO_PREALLOC); \
	} name SEC(".maps")

MAP(paths, BPF_MAP_TYPE_QP_TRIE, struct bpf_dynptr, 255);
MAP(named_otherwise, BPF_MAP_TYPE_QP_TRIE, text, 255);
MAP(numbers, BPF_MAP_TYPE_QP_TRIE, __u64, 0);
MAP(sixteen, BPF_MAP_TYPE_QP_TRIE, struct two_words, 0);
MAP(in_a_hash, BPF_MAP_TYPE_HASH, struct bpf_dynptr, 0);
MAP(around_in_a_hash, BPF_MAP_TYPE_HASH, struct numbered, 0);
MAP(other_name, BPF_MAP_TYPE_QP_TRIE, struct two_words, 4);
MAP(other_size, BPF_MAP_TYPE_QP_TRIE, __u64, 4);
MAP(around, BPF_MAP_TYPE_QP_TRIE, struct wrapped, 4);
MAP(around_with_more, BPF_MAP_TYPE_QP_TRIE, struct numbered, 4);
MAP(no_length, BPF_MAP_TYPE_QP_TRIE, struct bpf_dynptr, 0);

struct {
	__uint(type, BPF_MAP_TYPE_QP_TRIE);
	__uint(key_size, 16);
	__uint(value_size, 8);
	__uint(max_entries, 16);
	__uint(map_extra, 4);
	__uint(map_flags, BPF_F_NO_PREALLOC);
} untyped SEC(".maps");
