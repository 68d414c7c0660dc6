/* How long a function takes, by caller: a histogram of powers of two for each. */
// clang: -D__TARGET_ARCH_x86
#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

char _license[] SEC("license") = "Dual MIT/GPL";

extern _Bool bpf_session_is_return(void *ctx) __ksym __weak;

struct {
	__uint(type, BPF_MAP_TYPE_STACK_TRACE);
	__uint(max_entries, 4096);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u64));
} callers SEC(".maps");

struct key {
	__u32 stack;
	char took[8]; /* text: it stands below the caller in what --folded writes */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__type(key, struct key);
	__type(value, __u64);
} latency SEC(".maps");

/* Powers of two. */
static const char steps[32][8] = {
	"<1ns", "<2ns", "<4ns", "<8ns", "<16ns", "<32ns", "<64ns", "<128ns",
	"<256ns", "<512ns", "<1.0us", "<2.0us", "<4.1us", "<8.2us", "<16us", "<33us",
	"<66us", "<131us", "<262us", "<524us", "<1.0ms", "<2.1ms", "<4.2ms", "<8.4ms",
	"<17ms", "<34ms", "<67ms", "<134ms", "<268ms", "<537ms", "<1.1s", "<2.1s",
};

/* When the calls of a thread began, the innermost last. */
struct open {
	__u32 depth;
	__u32 stack[64];
	__u64 began[64];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u64);
	__type(value, struct open);
} threads SEC(".maps");

static const struct open empty;

SEC("uprobe.session")
int timed(struct pt_regs *ctx)
{
	__u64 thread = bpf_get_current_pid_tgid(), zero = 0, took, *count;
	struct open *open = bpf_map_lookup_elem(&threads, &thread);
	struct key key = {};
	__u32 at, step = 0;

	if (!open) {
		bpf_map_update_elem(&threads, &thread, &empty, BPF_NOEXIST);
		open = bpf_map_lookup_elem(&threads, &thread);
		if (!open)
			return 0;
	}
	if (!bpf_session_is_return(ctx)) {
		at = open->depth++;
		if (at < 64) {
			open->stack[at] = bpf_get_stackid(ctx, &callers, BPF_F_USER_STACK | 1);
			open->began[at] = bpf_ktime_get_ns();
		}
		return 0;
	}
	at = --open->depth;
	if (at >= 64)
		return 0;
	took = bpf_ktime_get_ns() - open->began[at];
	key.stack = open->stack[at];
	while (step < 31 && took >> step)
		step++;
	__builtin_memcpy(key.took, steps[step], sizeof(key.took));
	bpf_map_update_elem(&latency, &key, &zero, BPF_NOEXIST);
	count = bpf_map_lookup_elem(&latency, &key);
	if (count)
		__sync_fetch_and_add(count, 1);
	return 0;
}
