/* Floating-point numbers that share their bytes with others, and lists of structures. */
#include "../../bpf/skep.bpf.h"

union number {
	__u32 bits;
	float f;
};

struct reading {
	union {
		double d;
		__u64 word;
	};
	union number numbers[2];
	float far;
};

struct pair {
	short a, b;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16);
	__type(key, struct pair[2]);
	__type(value, struct reading);
} readings SEC(".maps");

char _license[] SEC("license") = "Dual MIT/GPL";
