/* Probes of `probes.c`, seen through libbpf's usdt.bpf.h. */
// clang: -D__TARGET_ARCH_x86
#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/usdt.bpf.h>

struct seen {
	__u64 calls;
	long count, cookie;
	/* Sums. */
	long id, size, letter, constant;
	char path[16];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16);
	__type(key, int);
	__type(value, struct seen);
} probes SEC(".maps");

__u64 done, inside, carried;

SEC("usdt/probes:demo:request")
int BPF_USDT(request, int id, const char *path, long size, signed char letter, long constant)
{
	struct seen new = {}, *seen;
	int key = 1;

	bpf_map_update_elem(&probes, &key, &new, BPF_NOEXIST);
	seen = bpf_map_lookup_elem(&probes, &key);
	if (!seen)
		return 0;
	seen->calls++;
	seen->count = bpf_usdt_arg_cnt(ctx);
	seen->cookie = bpf_usdt_cookie(ctx);
	seen->id += id;
	seen->size += size;
	seen->letter += letter;
	seen->constant += constant;
	bpf_probe_read_user_str(seen->path, sizeof(seen->path), path);
	return 0;
}

SEC("usdt/probes:demo:done")
int finished(struct pt_regs *ctx)
{
	long value = 0;

	if (bpf_usdt_arg(ctx, 0, &value) == 0)
		done += value;
	if (bpf_usdt_arg(ctx, 1, &value) == 0)
		done += 1ULL << 60;
	return 0;
}

/* A place inside a function, which `--attach` says: carry is set by the instruction before it. */
SEC("uprobe")
int place(struct pt_regs *ctx)
{
	inside++;
	carried += ctx->eflags & 1;
	return 0;
}

char _license[] SEC("license") = "GPL";
