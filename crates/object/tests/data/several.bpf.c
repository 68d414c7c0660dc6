// also: clang-14 clang-16
/* Several programs in several sections, maps, global data of all sorts, functions shared between programs. */
#include "fixture.h"

struct event {
	__u64 when;
	__u32 pid;
	char comm[16];
};

struct {
	__uint(type, HASH);
	__uint(max_entries, 1024);
	__uint(map_flags, 1);
	__type(key, __u32);
	__type(value, struct event);
} seen SEC(".maps");

struct {
	__uint(type, PERCPU_ARRAY);
	__uint(key_size, 4);
	__uint(value_size, 8);
	__uint(max_entries, 8);
	__uint(pinning, 1);
} hits SEC(".maps");

struct {
	__uint(type, RINGBUF);
	__uint(max_entries, 1 << 16);
} events SEC(".maps");

struct {
	__uint(type, BLOOM_FILTER);
	__uint(max_entries, 100);
	__uint(map_extra, 3);
	__type(value, __u64);
} bloom SEC(".maps");

const volatile __u32 wanted_pid = 7;
const volatile char name[8] = "several";
__u64 total = 5;
__u64 counts[4];
static __u32 hidden_count;
__u32 custom SEC(".data.custom") = 0x01020304;

static __noinline __u64 scale(__u64 v, __u32 by)
{
	return v * by + counts[by & 3];
}

__noinline __u64 shared(__u64 v)
{
	hidden_count++;
	return scale(v, 3) + bpf_ktime_get_ns();
}

__hidden __noinline __u64 hidden(__u64 v)
{
	return v ^ custom;
}

SEC("uprobe/libc.so.6:malloc")
int on_malloc(void *ctx)
{
	__u32 zero = 0, pid = bpf_get_current_pid_tgid() >> 32;
	__u64 *n;

	if (wanted_pid && pid != wanted_pid)
		return 0;
	n = bpf_map_lookup_elem(&hits, &zero);
	if (n)
		*n += shared(pid);
	return 0;
}

SEC("uprobe/libc.so.6:malloc")
int on_malloc_too(void *ctx)
{
	total += scale(name[0], 2);
	return 0;
}

SEC("?uretprobe")
int on_return(void *ctx)
{
	struct event *e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);
	__u32 pid = 1;

	if (!e)
		return 0;
	e->when = shared(hidden(total));
	e->pid = pid;
	bpf_map_update_elem(&seen, &pid, e, 0);
	bpf_ringbuf_submit(e, 0);
	return 0;
}

static long each(__u32 i, void *ctx)
{
	counts[i & 3] += scale(i, 1);
	return 0;
}

SEC("raw_tp/sys_enter")
int with_callback(void *ctx)
{
	bpf_loop(4, each, 0, 0);
	return bpf_map_peek_elem(&bloom, &total) != 0;
}

char _license[] SEC("license") = "Dual MIT/GPL";
__u32 _version SEC("version") = 0x60c00;
