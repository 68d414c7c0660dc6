/* What is allocated and not freed, by call stack: how the heap grew since the program began. */
// clang: -D__TARGET_ARCH_x86
#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

char _license[] SEC("license") = "Dual MIT/GPL";

extern _Bool bpf_session_is_return(void *ctx) __ksym __weak;

struct {
	__uint(type, BPF_MAP_TYPE_STACK_TRACE);
	__uint(max_entries, 16384);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, 32 * sizeof(__u64));
} stacks SEC(".maps");

struct key {
	__u32 stack;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, struct key);
	__type(value, __s64);
} growth SEC(".maps");

struct block {
	__u64 size;
	__u64 stack;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1 << 20);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, struct block);
} blocks SEC(".maps");

/* What a thread is asking for. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u64);
	__type(value, struct block);
} asking SEC(".maps");

static __always_inline void add(__u32 stack, __s64 bytes)
{
	struct key key = { stack };
	__s64 zero = 0, *all;

	bpf_map_update_elem(&growth, &key, &zero, BPF_NOEXIST);
	all = bpf_map_lookup_elem(&growth, &key);
	if (all)
		__sync_fetch_and_add(all, bytes);
}

SEC("uprobe.session/libc.so.6:malloc")
int BPF_KPROBE(on_malloc, __u64 size)
{
	__u64 thread = bpf_get_current_pid_tgid(), address = PT_REGS_RC(ctx);
	struct block block = { size }, *asked;

	if (!bpf_session_is_return(ctx)) {
		block.stack = bpf_get_stackid(ctx, &stacks, BPF_F_USER_STACK | 1);
		bpf_map_update_elem(&asking, &thread, &block, BPF_ANY);
		return 0;
	}
	asked = bpf_map_lookup_elem(&asking, &thread);
	if (asked && address && bpf_map_update_elem(&blocks, &address, asked, BPF_ANY) == 0)
		add(asked->stack, asked->size);
	return 0;
}

SEC("uprobe.multi/libc.so.6:free")
int BPF_KPROBE(on_free, __u64 address)
{
	struct block *block = bpf_map_lookup_elem(&blocks, &address);

	if (block) {
		add(block->stack, -(__s64)block->size);
		bpf_map_delete_elem(&blocks, &address);
	}
	return 0;
}
