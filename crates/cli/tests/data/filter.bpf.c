/* Filters for `skep map dump --filter`, over the map of typed.bpf.c. */
#include "../../bpf/skep.bpf.h"

struct element {
	__u32 n;
	char word[4];
	__u64 calls;
	__s64 minus;
	__u32 kind;
};

SEC("syscall")
int odd(struct element *e)
{
	return e->n & 1;
}

SEC("syscall")
int none(struct element *e)
{
	return e->calls > 1 ? 2 : 0;
}

struct large {
	char bytes[200];
};

SEC("syscall")
int large(struct large *l)
{
	return l->bytes[199];
}

char _license[] SEC("license") = "Dual MIT/GPL";
