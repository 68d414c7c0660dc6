/* Programs of which only some are for functions of a process. */
#include "../../bpf/skep.bpf.h"

static long (*const bpf_tail_call)(void *ctx, void *map, __u32 index) = (void *)12;

__u64 entered, called, other;

int next(void *regs);

struct {
	__uint(type, 3); /* BPF_MAP_TYPE_PROG_ARRAY */
	__uint(max_entries, 1);
	__type(key, __u32);
	int (*values[])(void *);
} then SEC(".maps") = { .values = { (void *)&next } };

SEC("uprobe/target:leaf")
int first(struct pt_regs *regs)
{
	entered++;
	bpf_tail_call(regs, &then, 0);
	return 0;
}

/* Attached to nothing: it is only called. */
SEC("uprobe")
int next(void *regs)
{
	called++;
	return 0;
}

SEC("kprobe/do_unlinkat")
int in_kernel(void *ctx)
{
	other++;
	return 0;
}

SEC("lsm/file_open")
int decides(void *ctx)
{
	return 0;
}

SEC("?uprobe")
int optional(struct pt_regs *regs)
{
	other++;
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
