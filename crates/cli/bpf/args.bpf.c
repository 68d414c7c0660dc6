/* Who is asked for how much memory: counts malloc by size, and sends an event for every large request.
 *
 *     skep run args.bpf.o -- sort /etc/services
 */
#include "skep.bpf.h"

#define LARGE 4096

/* What a record of `large` is. */
struct request {
	__u64 time_ns;
	__u64 size;
	__u64 caller;
	__u32 pid;
	__u32 tid;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 10240);
	__type(key, __u64);
	__type(value, __u64);
} sizes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} large SEC(".maps");

__u64 bytes; /* asked for in all */
const struct request *unused __attribute__((unused)); /* keeps the type in the object, for whoever prints records */

SEC("uprobe.multi/libc.so.6:malloc")
int asked(struct pt_regs *regs)
{
	__u64 size = regs->di, one = 1;
	__u64 *n = bpf_map_lookup_elem(&sizes, &size);
	struct request *r;

	if (n)
		__sync_fetch_and_add(n, 1);
	else
		bpf_map_update_elem(&sizes, &size, &one, BPF_NOEXIST);
	__sync_fetch_and_add(&bytes, size);
	if (size < LARGE)
		return 0;
	r = bpf_ringbuf_reserve(&large, sizeof(*r), 0);
	if (!r)
		return 0;
	r->time_ns = bpf_ktime_get_ns();
	r->size = size;
	r->caller = 0;
	bpf_probe_read_user(&r->caller, sizeof(r->caller), (void *)regs->sp); /* the return address */
	r->pid = bpf_get_current_pid_tgid() >> 32;
	r->tid = bpf_get_current_pid_tgid();
	bpf_ringbuf_submit(r, 0);
	return 0;
}

char _license[] SEC("license") = "Dual MIT/GPL";
