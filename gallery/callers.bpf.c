/* Who calls malloc, and for how many bytes: calls and bytes by the function that asked. */
// clang: -D__TARGET_ARCH_x86
#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

char _license[] SEC("license") = "Dual MIT/GPL";

/* A stack of one frame: the caller. skep prints its name. */
struct {
	__uint(type, BPF_MAP_TYPE_STACK_TRACE);
	__uint(max_entries, 16384);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u64));
} callers SEC(".maps");

struct key {
	__u32 stack;
};

struct asked {
	__u64 calls;
	__u64 bytes;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, struct key);
	__type(value, struct asked);
} asked SEC(".maps");

SEC("uprobe.multi/libc.so.6:malloc")
int BPF_KPROBE(on_malloc, unsigned long size)
{
	/* 1: without malloc itself. */
	struct key key = { bpf_get_stackid(ctx, &callers, BPF_F_USER_STACK | 1) };
	struct asked none = {}, *all;

	bpf_map_update_elem(&asked, &key, &none, BPF_NOEXIST);
	all = bpf_map_lookup_elem(&asked, &key);
	if (all) {
		__sync_fetch_and_add(&all->calls, 1);
		__sync_fetch_and_add(&all->bytes, size);
	}
	return 0;
}
