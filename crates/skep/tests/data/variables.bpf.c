// Programs of chains that are steered by global variables, and what they leave in maps.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

// Packets of fewer bytes are dropped.
const volatile __u32 least = 60;

// Changed by programs.
__u64 seen = 1000;
__u64 dropped;

struct {
    __uint(type, BPF_MAP_TYPE_RINGBUF);
    __uint(max_entries, 4096);
} lengths SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
    __uint(key_size, 4);
    __uint(value_size, 4);
} events SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 16);
    __type(key, __u32);
    __type(value, __u64);
} by_length SEC(".maps");

// Drops what is too short, and counts by length.
SEC("xdp")
int limit(struct xdp_md *ctx)
{
    __u32 length = ctx->data_end - ctx->data;
    __u64 one = 1;
    __u64 *n = bpf_map_lookup_elem(&by_length, &length);

    if (n)
        *n += 1;
    else
        bpf_map_update_elem(&by_length, &length, &one, BPF_ANY);
    seen += 1;
    if (length >= least)
        return XDP_PASS;
    dropped += 1;
    return XDP_DROP;
}

// Tells of each packet.
SEC("xdp")
int tell(struct xdp_md *ctx)
{
    __u32 length = ctx->data_end - ctx->data;

    bpf_ringbuf_output(&lengths, &length, sizeof(length), 0);
    bpf_perf_event_output(ctx, &events, BPF_F_CURRENT_CPU, &length, sizeof(length));
    bpf_printk("least %u, length %u", least, length);
    return XDP_PASS;
}

char _license[] SEC("license") = "GPL";
