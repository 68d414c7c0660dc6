/* What the library's tests and examples load: programs on functions and on packets, with maps of every kind that has a type in the library. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

char _license[] SEC("license") = "GPL";

/* What a record of `events` is. */
struct event {
	__u32 pid;
	__u32 cookie;
	__u64 address;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, __u64);
	__type(value, __u64);
	__uint(max_entries, 1024);
} counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, 2);
} calls SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__type(key, __u64);
	__type(value, __u32);
	__uint(max_entries, 64);
} by_cookie SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 65536);
} events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, 8);
	__type(value, __u32);
} waiting SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_STACK);
	__uint(max_entries, 8);
	__type(value, __u32);
} done SEC(".maps");

const volatile __u64 limit = 1000000;
const struct event *unused __attribute__((unused));

static __always_inline void add(void *ctx)
{
	__u64 address = bpf_get_func_ip(ctx), one = 1;
	__u64 *n = bpf_map_lookup_elem(&counts, &address);

	if (!n)
		bpf_map_update_elem(&counts, &address, &one, BPF_NOEXIST);
	else if (*n < limit)
		__sync_fetch_and_add(n, 1);
}

/* Counts calls by the address of the function. */
SEC("fentry.multi/nothing")
int count(__u64 *ctx)
{
	add(ctx);
	return 0;
}

static __always_inline int note(__u32 index)
{
	__u64 *n = bpf_map_lookup_elem(&calls, &index);

	if (n)
		*n += 1;
	return 0;
}

SEC("fentry.multi/nothing")
int enter(__u64 *ctx)
{
	__u64 cookie = bpf_get_attach_cookie(ctx);
	__u32 one = 1, *n = bpf_map_lookup_elem(&by_cookie, &cookie);

	if (n)
		*n += 1;
	else
		bpf_map_update_elem(&by_cookie, &cookie, &one, BPF_ANY);
	return note(0);
}

SEC("fexit.multi/nothing")
int leave(__u64 *ctx)
{
	return note(1);
}

/* Counts calls of the functions that it names, by address. */
SEC("fentry.multi/libc:getppid,*:library_by_section")
int count_named(__u64 *ctx)
{
	add(ctx);
	return 0;
}

/* Sends a record for each call. */
SEC("fentry.multi/nothing")
int tell(__u64 *ctx)
{
	struct event *e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);

	if (!e)
		return 0;
	e->pid = bpf_get_current_pid_tgid() >> 32;
	e->cookie = bpf_get_attach_cookie(ctx);
	e->address = bpf_get_func_ip(ctx);
	bpf_ringbuf_submit(e, 0);
	return 0;
}

/* Passes packets that begin with a byte of the queue `waiting`, and puts the others' onto `done`. */
SEC("xdp")
int first_bytes(struct xdp_md *ctx)
{
	__u8 *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 byte, wanted;

	if (data + 1 > end)
		return XDP_ABORTED;
	byte = *data;
	if (!bpf_map_peek_elem(&waiting, &wanted) && wanted == byte)
		return bpf_map_pop_elem(&waiting, &wanted) ? XDP_ABORTED : XDP_PASS;
	bpf_map_push_elem(&done, &byte, 0);
	return XDP_DROP;
}
