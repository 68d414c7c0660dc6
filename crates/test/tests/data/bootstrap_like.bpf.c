/* Programs as libbpf-bootstrap's examples have them: a tracepoint that prints, a uprobe and a
 * uretprobe with arguments, read-only data that the loader sets, and a ring buffer. */
// clang: -D__TARGET_ARCH_x86
#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

const volatile int min_sum = 0;
int my_pid = 0;

struct event {
	int a, b, sum;
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 256 * 1024);
} rb SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, int);
	__type(value, struct event);
} calls SEC(".maps");

SEC("tp/syscalls/sys_enter_write")
int handle_tp(void *ctx)
{
	int pid = bpf_get_current_pid_tgid() >> 32;

	if (pid != my_pid)
		bpf_printk("BPF triggered from PID %d, not %d.", pid, my_pid);
	return 0;
}

SEC("uprobe")
int BPF_KPROBE(uprobe_add, int a, int b)
{
	int tid = bpf_get_current_pid_tgid();
	struct event event = { .a = a, .b = b };

	bpf_map_update_elem(&calls, &tid, &event, BPF_ANY);
	return 0;
}

SEC("uretprobe")
int BPF_KRETPROBE(uretprobe_add, int sum)
{
	int tid = bpf_get_current_pid_tgid();
	struct event *begun = bpf_map_lookup_elem(&calls, &tid), *event;

	if (!begun || sum < min_sum)
		return 0;
	event = bpf_ringbuf_reserve(&rb, sizeof(*event), 0);
	if (!event)
		return 0;
	*event = *begun;
	event->sum = sum;
	bpf_ringbuf_submit(event, 0);
	return 0;
}
