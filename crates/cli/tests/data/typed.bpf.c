/* Maps of several shapes, to see how they are printed. */
#include "../../bpf/skep.bpf.h"

static long (*const bpf_trace_printk)(const char *fmt, __u32 size, ...) = (void *)6;

enum kind { KIND_NONE, KIND_EVEN, KIND_ODD };

struct key {
	__u32 n;
	char word[4];
};

struct value {
	__u64 calls;
	__s64 minus;
	enum kind kind;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16);
	__type(key, struct key);
	__type(value, struct value);
} shapes SEC(".maps");

__u64 total;
__u32 wanted = 7;

SEC("uprobe/target:leaf")
int leaf(struct pt_regs *regs)
{
	static const char fmt[] = "leaf %d\n";
	struct key key = { .n = regs->di & 1, .word = "ab" };
	struct value *v = bpf_map_lookup_elem(&shapes, &key), first = {};

	total++;
	if (v) {
		v->calls++;
		v->minus--;
		return 0;
	}
	first.calls = 1;
	first.minus = -1;
	first.kind = key.n ? KIND_ODD : KIND_EVEN;
	bpf_map_update_elem(&shapes, &key, &first, BPF_ANY);
	bpf_trace_printk(fmt, sizeof(fmt), (__u32)regs->di);
	return 0;
}

char _license[] SEC("license") = "Dual MIT/GPL";
