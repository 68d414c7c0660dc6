// Programs of chains: each does one thing to a packet, and says how it goes on.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

// As in libxdp's <xdp/xdp_helpers.h>.
#define XDP_RUN_CONFIG(f) _##f SEC(".xdp_run_config")

struct {
    __uint(priority, 10);
    __uint(XDP_PASS, 1);
    __uint(XDP_DROP, 1);
} XDP_RUN_CONFIG(drop_short);

struct {
    __uint(priority, 60);
    __uint(XDP_PASS, 0);
    __uint(XDP_TX, 1);
} XDP_RUN_CONFIG(mark);

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, __u64);
} packets SEC(".maps");

static __always_inline int at_least(struct xdp_md *ctx, __u32 bytes)
{
    return (void *)(long)ctx->data + bytes <= (void *)(long)ctx->data_end;
}

// Drops packets of less than 60 bytes.
SEC("xdp")
int drop_short(struct xdp_md *ctx)
{
    return at_least(ctx, 60) ? XDP_PASS : XDP_DROP;
}

// Counts in a map.
SEC("xdp")
int count(struct xdp_md *ctx)
{
    __u32 key = 0;
    __u64 *n = bpf_map_lookup_elem(&packets, &key);
    if (n)
        *n += 1;
    return XDP_PASS;
}

// Puts 0xbee5 over the packet's type.
SEC("xdp")
int mark(struct xdp_md *ctx)
{
    __u8 *data = (void *)(long)ctx->data;
    if (!at_least(ctx, 14))
        return XDP_ABORTED;
    data[12] = 0xbe;
    data[13] = 0xe5;
    return XDP_PASS;
}

// Makes room for four bytes in front, and fills it.
SEC("xdp")
int push(struct xdp_md *ctx)
{
    if (bpf_xdp_adjust_head(ctx, -4))
        return XDP_ABORTED;
    if (!at_least(ctx, 4))
        return XDP_ABORTED;
    *(__u32 *)(long)ctx->data = 0x11111111;
    return XDP_TX;
}

// Says what the packet's first byte says.
SEC("xdp")
int obey(struct xdp_md *ctx)
{
    __u8 *data = (void *)(long)ctx->data;
    if (!at_least(ctx, 1))
        return XDP_ABORTED;
    return data[0] & 7;
}

char _license[] SEC("license") = "GPL";
