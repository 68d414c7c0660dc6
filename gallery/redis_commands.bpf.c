/* What a Redis server is asked for: commands by name, read out of what arrives at its sockets. It needs no symbols of the server. */
// clang: -D__TARGET_ARCH_x86
#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

char _license[] SEC("license") = "Dual MIT/GPL";

extern _Bool bpf_session_is_return(void *ctx) __ksym __weak;

struct name {
	char name[16];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 512);
	__type(key, struct name);
	__type(value, __u64);
} commands SEC(".maps");

/* Where a thread reads to. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u64);
	__type(value, __u64);
} reading SEC(".maps");

/* `*2\r\n$3\r\nGET\r\n$1\r\na\r\n`: as many words as the first number says, each after its length. */
SEC("uprobe.session/libc.so.6:read")
int BPF_KPROBE(on_read, int file, __u64 to)
{
	__u64 thread = bpf_get_current_pid_tgid(), zero = 0, *count;
	struct name name = {};
	char text[40] = {};
	__u64 *from;
	int at = 0;

	if (!bpf_session_is_return(ctx)) {
		bpf_map_update_elem(&reading, &thread, &to, BPF_ANY);
		return 0;
	}
	from = bpf_map_lookup_elem(&reading, &thread);
	if (!from || (long)PT_REGS_RC(ctx) < 8)
		return 0;
	bpf_probe_read_user_str(text, sizeof(text), (void *)*from);
	if (text[0] != '*')
		return 0;
	/* To the line behind the second one. */
	for (int lines = 0; at < 16 && lines < 2; at++)
		lines += text[at] == '\n';
	for (int i = 0; i < 15; i++) {
		char c = text[(at + i) & 31];

		if (c < 'A' || c > 'z')
			break;
		name.name[i] = c & ~0x20;
	}
	bpf_map_update_elem(&commands, &name, &zero, BPF_NOEXIST);
	count = bpf_map_lookup_elem(&commands, &name);
	if (count)
		__sync_fetch_and_add(count, 1);
	return 0;
}
