/* Maps of kinds that have no elements to show, and of sizes that the loader has to choose. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char _license[] SEC("license") = "GPL";

struct {
	__uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
	__uint(key_size, 4);
	__uint(value_size, 4);
} samples SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1000);
} ring SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_BLOOM_FILTER);
	__uint(max_entries, 10);
	__type(value, __u32);
} filter SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 10);
	__type(key, __u32);
	__type(value, __u32);
} seen SEC(".maps");

SEC("xdp")
int kinds(struct xdp_md *ctx)
{
	__u32 length = ctx->data_end - ctx->data;

	bpf_map_push_elem(&filter, &length, 0);
	bpf_map_update_elem(&seen, &length, &length, 0);
	bpf_ringbuf_output(&ring, &length, sizeof(length), 0);
	if (bpf_map_peek_elem(&filter, &length))
		return XDP_DROP;
	return bpf_perf_event_output(ctx, &samples, BPF_F_CURRENT_CPU, &length, sizeof(length)) ? XDP_PASS : XDP_TX;
}
