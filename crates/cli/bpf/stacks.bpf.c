/* How often functions are called, by call stack.
 *
 *     skep run stacks.bpf.o --attach 'by_stack=./program:*' --flame calls.svg -- ./program
 *
 * A stack lies once in `stacks`, under a number that follows from its addresses; `calls` counts by that number. Programs need no frame
 * pointers.
 */
#include "skep.bpf.h"
#include "skep_maps.bpf.h"

enum { BPF_F_USER_STACK = 1 << 8, BPF_MAP_TYPE_STACK_TRACE = 7 };

static long (*const bpf_get_stackid)(void *ctx, void *map, __u64 flags) = (void *)27;

#define DEEPEST 127

struct {
	__uint(type, BPF_MAP_TYPE_STACK_TRACE);
	__uint(max_entries, 16384);
	__uint(key_size, 4);
	__uint(value_size, DEEPEST * 8);
} stacks SEC(".maps");

struct where {
	__u32 stack;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, struct where);
	__type(value, __u64);
} calls SEC(".maps");

__u64 not_counted; /* without a stack, or for want of memory */

SEC("uprobe.multi/libc.so.6:malloc")
int by_stack(struct pt_regs *regs)
{
	long number = bpf_get_stackid(regs, &stacks, BPF_F_USER_STACK);
	struct where where = { .stack = number };
	__u64 one = 1, *count;

	if (number >= 0) {
		count = bpf_map_lookup_elem(&calls, &where);
		if (!count && bpf_map_update_elem(&calls, &where, &one, BPF_NOEXIST) == 0)
			return 0;
		count = bpf_map_lookup_elem(&calls, &where);
		if (count) {
			__sync_fetch_and_add(count, 1);
			return 0;
		}
	}
	__sync_fetch_and_add(&not_counted, 1);
	return 0;
}

char _license[] SEC("license") = "Dual MIT/GPL";
