/* Which locks threads wait for, and where: how often a mutex was taken, how often that took longer than a microsecond, and for how long. */
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

/* A lock that is taken in several places has an entry for each. */
struct key {
	__u64 mutex; /* its address */
	__u64 stack; /* who takes it: a number in `stacks` */
};

struct waits {
	__u64 taken;
	__u64 waited;
	__u64 total_ns;
	__u64 longest_ns;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__type(key, struct key);
	__type(value, struct waits);
} locks SEC(".maps");

/* What a thread is in the middle of. A session runs at the entry and at the return of the same call. */
struct call {
	struct key key;
	__u64 began;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u64);
	__type(value, struct call);
} calls SEC(".maps");

SEC("uprobe.session/libc.so.6:pthread_mutex_lock")
int BPF_KPROBE(lock, __u64 mutex)
{
	__u64 thread = bpf_get_current_pid_tgid(), took;
	struct waits none = {}, *waits;
	struct call call = {}, *begun;

	if (!bpf_session_is_return(ctx)) {
		call.key.mutex = mutex;
		call.key.stack = bpf_get_stackid(ctx, &stacks, BPF_F_USER_STACK | 1);
		call.began = bpf_ktime_get_ns();
		bpf_map_update_elem(&calls, &thread, &call, BPF_ANY);
		return 0;
	}
	begun = bpf_map_lookup_elem(&calls, &thread);
	if (!begun)
		return 0;
	took = bpf_ktime_get_ns() - begun->began;
	struct key key = begun->key;
	bpf_map_update_elem(&locks, &key, &none, BPF_NOEXIST);
	waits = bpf_map_lookup_elem(&locks, &key);
	if (!waits)
		return 0;
	__sync_fetch_and_add(&waits->taken, 1);
	if (took < 1000)
		return 0;
	__sync_fetch_and_add(&waits->waited, 1);
	__sync_fetch_and_add(&waits->total_ns, took);
	if (took > waits->longest_ns)
		waits->longest_ns = took;
	return 0;
}
