/* A program as others write them: the padding of its key is never written, and neither is a buffer that
 * a kernel function may use. The kernel lets root do that since Linux 6.3. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

extern int bpf_dynptr_from_xdp(struct xdp_md *ctx, __u64 flags, struct bpf_dynptr *ptr) __ksym;
extern void *bpf_dynptr_slice(const struct bpf_dynptr *ptr, __u32 offset, void *buffer,
			      __u32 size) __ksym;

struct key {
	__u8 first;
	__u64 length;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, struct key);
	__type(value, __u64);
} seen SEC(".maps");

SEC("xdp")
int padded(struct xdp_md *ctx)
{
	struct bpf_dynptr packet;
	struct key key;
	__u64 one = 1;
	__u8 buffer[16], *start;

	if (bpf_dynptr_from_xdp(ctx, 0, &packet))
		return XDP_ABORTED;
	start = bpf_dynptr_slice(&packet, 0, buffer, sizeof(buffer));
	if (!start)
		return XDP_DROP;
	key.first = start[0];
	key.length = ctx->data_end - ctx->data;
	bpf_map_update_elem(&seen, &key, &one, BPF_ANY);
	return XDP_PASS;
}

char _license[] SEC("license") = "GPL";
