/* Who allocates how much: calls of `malloc` and their bytes by call stack.
 *
 *     skep run allocations.bpf.o -- ./program
 *
 * A key is the stack as text, outermost caller first: `000000401196;000000401171;00000040114b`, a return address each. So what stands
 * together was called by the same functions, and `--prefix` sums up a caller. Programs need no frame pointers; of deeper stacks the
 * innermost callers are there. `skep run --folded FILE` and `--flame FILE` write the
 * names of the functions.
 */
#include "skep.bpf.h"
#include "skep_maps.bpf.h"

enum { BPF_F_USER_STACK = 1 << 8 };

static long (*const bpf_get_stack)(void *ctx, void *to, __u32 size, __u64 flags) = (void *)67;
static long (*const bpf_snprintf)(char *to, __u32 size, const char *format, __u64 *values, __u32 values_size) = (void *)165;

#define HALF 12 /* as many values as bpf_snprintf takes at once */
#define DEEPEST (2 * HALF)
#define DIGITS 12
#define PART (DIGITS + 1) /* with what stands between two */
#define LONGEST (DEEPEST * PART - 1)

struct allocations {
	__u64 calls;
	__u64 bytes;
};

struct {
	__uint(type, BPF_MAP_TYPE_QP_TRIE);
	__uint(max_entries, 100000);
	__uint(map_extra, LONGEST);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct bpf_dynptr);
	__type(value, struct allocations);
} allocations SEC(".maps");

struct stack {
	__u64 frames[DEEPEST + 1]; /* innermost first; that is `malloc` itself */
	__u64 callers[DEEPEST];    /* outermost first */
	char text[DEEPEST * PART + 1];
};

/* Where keys are written: dynptrs are of map memory. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct stack);
} buffers SEC(".maps");

__u64 not_counted; /* without a stack, or for want of memory */

#define FRAME "%012llx;"
static const char twelve[] = FRAME FRAME FRAME FRAME FRAME FRAME FRAME FRAME FRAME FRAME FRAME FRAME;

/* Writes the callers of the function that begins with these registers; tells how many bytes they take. */
static __always_inline long write_stack(struct stack *stack, struct pt_regs *regs)
{
	long n = bpf_get_stack(regs, stack->frames, sizeof(stack->frames), BPF_F_USER_STACK);

	if (n < 16)
		return 0;
	n = n / 8 - 1;
	for (int i = 0; i < DEEPEST; i++) {
		__u64 from = n - i;

		asm volatile("" : "+r"(from)); /* compared as it is used: the verifier asks for that */
		stack->callers[i] = from >= 1 && from <= DEEPEST ? stack->frames[from] : 0;
	}
	bpf_snprintf(stack->text, HALF * PART + 1, twelve, stack->callers, HALF * 8);
	bpf_snprintf(stack->text + HALF * PART, HALF * PART + 1, twelve, stack->callers + HALF, HALF * 8);
	return n * PART - 1;
}

SEC("uprobe.multi/libc.so.6:malloc")
int by_stack(struct pt_regs *regs)
{
	struct allocations first = { .calls = 1, .bytes = regs->di }, *all;
	struct stack *stack;
	struct bpf_dynptr key;
	__u32 zero = 0;
	long length;

	stack = bpf_map_lookup_elem(&buffers, &zero);
	if (!stack)
		return 0;
	length = write_stack(stack, regs);
	if (length > 0 && length <= LONGEST) {
		bpf_dynptr_from_mem(stack->text, length, 0, &key);
		all = bpf_map_lookup_elem(&allocations, &key);
		if (!all) {
			if (bpf_map_update_elem(&allocations, &key, &first, BPF_NOEXIST) == 0)
				return 0;
			all = bpf_map_lookup_elem(&allocations, &key); /* another thread was faster */
		}
		if (all) {
			__sync_fetch_and_add(&all->calls, 1);
			__sync_fetch_and_add(&all->bytes, first.bytes);
			return 0;
		}
	}
	__sync_fetch_and_add(&not_counted, 1);
	return 0;
}

char _license[] SEC("license") = "Dual MIT/GPL";
