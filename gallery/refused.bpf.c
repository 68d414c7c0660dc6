/* Mistakes that the verifier refuses, one a program: docs/verifier-errors.md. */
// clang: -D__TARGET_ARCH_x86
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ptrace.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

struct key {
	__u64 address;
	__u8 kind;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, struct key);
	__type(value, __u64);
} calls SEC(".maps");

struct shared {
	struct bpf_spin_lock lock;
	__u64 value;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct shared);
} totals SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} events SEC(".maps");

__u64 table[16];

SEC("uprobe")
int no_null_test(struct pt_regs *ctx)
{
	struct key key = {};
	__u64 *calls_of = bpf_map_lookup_elem(&calls, &key);

	*calls_of += 1;
	return 0;
}

SEC("uprobe")
int off_by_one(struct pt_regs *ctx)
{
	__u64 i = PT_REGS_PARM1(ctx);

	if (i <= 16)
		table[i]++;
	return 0;
}

SEC("uprobe")
int signed_index(struct pt_regs *ctx)
{
	long i = PT_REGS_PARM1(ctx);

	if (i < 16)
		table[i]++;
	return 0;
}

SEC("uprobe")
int padding(struct pt_regs *ctx)
{
	struct key key = { .address = PT_REGS_IP(ctx), .kind = 1 };

	bpf_map_delete_elem(&calls, &key);
	return 0;
}

SEC("uprobe")
int lost_record(struct pt_regs *ctx)
{
	__u64 *event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);

	if (!event)
		return 0;
	if (!PT_REGS_PARM1(ctx))
		return 0;
	*event = PT_REGS_PARM1(ctx);
	bpf_ringbuf_submit(event, 0);
	return 0;
}

SEC("xdp")
int kept_lock(struct xdp_md *ctx)
{
	__u32 zero = 0;
	struct shared *shared = bpf_map_lookup_elem(&totals, &zero);

	if (!shared)
		return XDP_PASS;
	bpf_spin_lock(&shared->lock);
	if (shared->value > 1000)
		return XDP_DROP;
	shared->value++;
	bpf_spin_unlock(&shared->lock);
	return XDP_PASS;
}

SEC("uprobe")
int foreign_pointer(struct pt_regs *ctx)
{
	const char *name = (const char *)PT_REGS_PARM1(ctx);

	table[0] += name[0] == '/';
	return 0;
}

SEC("uprobe")
int no_end(struct pt_regs *ctx)
{
	__u64 node = PT_REGS_PARM1(ctx);

	while (!bpf_probe_read_user(&node, sizeof(node), (void *)node))
		table[0]++;
	return 0;
}

SEC("xdp")
int no_length(struct xdp_md *ctx)
{
	struct ethhdr *eth = (void *)(long)ctx->data;

	return eth->h_proto ? XDP_PASS : XDP_DROP;
}

SEC("xdp")
int old_packet(struct xdp_md *ctx)
{
	struct ethhdr *eth = (void *)(long)ctx->data;

	if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
		return XDP_DROP;
	if (bpf_xdp_adjust_head(ctx, -4))
		return XDP_DROP;
	eth->h_proto = 0;
	return XDP_PASS;
}

char _license[] SEC("license") = "GPL";
