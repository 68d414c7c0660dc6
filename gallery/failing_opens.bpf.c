/* Files that a program asks for and does not get: how often each path failed to open. */
// clang: -D__TARGET_ARCH_x86
#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

char _license[] SEC("license") = "Dual MIT/GPL";

extern _Bool bpf_session_is_return(void *ctx) __ksym __weak;

struct path {
	char path[128];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 10240);
	__type(key, struct path);
	__type(value, __u64);
} failed SEC(".maps");

/* What a thread is opening: the path is the caller's, who may have changed it by the return. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u64);
	__type(value, struct path);
} opening SEC(".maps");

static __always_inline int opens(struct pt_regs *ctx, const char *name)
{
	__u64 thread = bpf_get_current_pid_tgid(), zero = 0, *count;
	struct path path = {}, *asked;

	if (!bpf_session_is_return(ctx)) {
		if (bpf_probe_read_user_str(path.path, sizeof(path.path), name) > 0)
			bpf_map_update_elem(&opening, &thread, &path, BPF_ANY);
		return 0;
	}
	asked = bpf_map_lookup_elem(&opening, &thread);
	if (!asked || (int)PT_REGS_RC(ctx) >= 0)
		return 0;
	bpf_map_update_elem(&failed, asked, &zero, BPF_NOEXIST);
	count = bpf_map_lookup_elem(&failed, asked);
	if (count)
		__sync_fetch_and_add(count, 1);
	return 0;
}

SEC("uprobe.session/libc.so.6:open,open64")
int BPF_KPROBE(on_open, const char *path)
{
	return opens(ctx, path);
}

SEC("uprobe.session/libc.so.6:openat,openat64")
int BPF_KPROBE(on_openat, int dir, const char *path)
{
	return opens(ctx, path);
}
