// Programs for random chains, here and in the kernel: loops, functions, callbacks, global variables,
// maps of several types, tail calls, and every way to change a packet.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 512);
    __type(key, __u32);
    __type(value, __u64);
} lengths SEC(".maps");

struct numbers {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 4);
    __type(key, __u32);
    __type(value, __u64);
} first SEC(".maps"), second SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
    __uint(max_entries, 2);
    __type(key, __u32);
    __array(values, struct numbers);
} both SEC(".maps") = { .values = { &first, &second } };

int end_one(struct xdp_md *ctx);
int end_two(struct xdp_md *ctx);

struct {
    __uint(type, BPF_MAP_TYPE_PROG_ARRAY);
    __uint(max_entries, 4);
    __type(key, __u32);
    __array(values, int(void *));
} ends SEC(".maps") = { .values = { [0] = (void *)&end_one, [1] = (void *)&end_two } };

__u64 seen;
__u32 last = 7;
const volatile __u32 limit = 40;

static __always_inline __u8 *bytes(struct xdp_md *ctx, __u32 n)
{
    __u8 *data = (void *)(long)ctx->data;
    return data + n <= (__u8 *)(long)ctx->data_end ? data : 0;
}

// The sum of the bytes, by a loop.
SEC("xdp")
int sum(struct xdp_md *ctx)
{
    __u8 *data = (void *)(long)ctx->data;
    __u8 *end = (void *)(long)ctx->data_end;
    __u32 all = 0;
    for (__u32 i = 0; i < 64; i++) {
        if (data + i + 1 > end)
            break;
        all += data[i];
    }
    return all & 7;
}

static __noinline __u32 twist(__u32 n, __u32 by)
{
    __u32 table[16];
    for (__u32 i = 0; i < 16; i++)
        table[i] = n * (i + 3) ^ by;
    n = 0;
    for (__u32 i = 0; i < 16; i++)
        n += table[(i * 7) & 15] >> (i & 7);
    return n;
}

__noinline int outer(__u32 n)
{
    return twist(n, 9) ^ twist(n + 1, 5);
}

// Functions in functions, one of them global.
SEC("xdp")
int calls(struct xdp_md *ctx)
{
    __u8 *data = bytes(ctx, 6);
    if (!data)
        return XDP_DROP;
    __u32 n = outer(data[5]);
    data[4] = n;
    return twist(n, data[0]) % 5;
}

struct walk {
    __u32 n;
    __u32 sum;
};

static long step(__u64 i, void *arg)
{
    struct walk *walk = arg;
    walk->sum = walk->sum * 31 + i;
    return i >= walk->n;
}

// A callback.
SEC("xdp")
int loops(struct xdp_md *ctx)
{
    __u8 *data = bytes(ctx, 2);
    if (!data)
        return XDP_ABORTED;
    struct walk walk = { data[1] & 15, data[0] };
    bpf_loop(20, step, &walk, 0);
    return walk.sum & 3;
}

// Global variables.
SEC("xdp")
int globals(struct xdp_md *ctx)
{
    __u32 len = ctx->data_end - ctx->data;
    seen += len;
    last = last * 3 + len;
    return len > limit ? (last & 1) + XDP_DROP : XDP_TX;
}

SEC("xdp")
int by_length(struct xdp_md *ctx)
{
    __u32 len = ctx->data_end - ctx->data;
    __u64 one = 1, *n = bpf_map_lookup_elem(&lengths, &len);
    if (n) {
        *n += 1;
        return *n & 3;
    }
    bpf_map_update_elem(&lengths, &len, &one, BPF_ANY);
    return XDP_PASS;
}

SEC("xdp")
int nested(struct xdp_md *ctx)
{
    __u8 *data = bytes(ctx, 4);
    if (!data)
        return XDP_PASS;
    __u32 which = data[0] & 1, at = data[1] & 3;
    void *inner = bpf_map_lookup_elem(&both, &which);
    if (!inner)
        return XDP_ABORTED;
    __u64 *n = bpf_map_lookup_elem(inner, &at);
    if (!n)
        return XDP_ABORTED;
    *n += data[3];
    return *n % 5;
}

// As much stack as a chain leaves to a program.
SEC("xdp")
int deep(struct xdp_md *ctx)
{
    volatile __u8 stack[440];
    __u8 *data = bytes(ctx, 14);
    if (!data)
        return XDP_DROP;
    for (__u32 i = 0; i < sizeof(stack); i++)
        stack[i] = i;
    stack[data[2]] = data[3];
    return (stack[data[4]] + stack[data[5]]) & 3;
}

SEC("xdp")
int shorten(struct xdp_md *ctx)
{
    if (bpf_xdp_adjust_tail(ctx, -7))
        return XDP_DROP;
    return XDP_PASS;
}

SEC("xdp")
int lengthen(struct xdp_md *ctx)
{
    return bpf_xdp_adjust_tail(ctx, 5) ? XDP_ABORTED : XDP_TX;
}

SEC("xdp")
int pull(struct xdp_md *ctx)
{
    return bpf_xdp_adjust_head(ctx, 3) ? XDP_DROP : XDP_PASS;
}

// Leaves a note for a later program in front of the packet, and reads what is there.
SEC("xdp")
int note(struct xdp_md *ctx)
{
    __u32 *meta = (void *)(long)ctx->data_meta;
    if ((void *)(meta + 1) <= (void *)(long)ctx->data) {
        *meta += 1;
        return *meta & 3;
    }
    if (bpf_xdp_adjust_meta(ctx, -4))
        return XDP_ABORTED;
    meta = (void *)(long)ctx->data_meta;
    if ((void *)(meta + 1) > (void *)(long)ctx->data)
        return XDP_ABORTED;
    *meta = 6;
    return XDP_TX;
}

SEC("xdp")
int any_verdict(struct xdp_md *ctx)
{
    __u8 *data = bytes(ctx, 3);
    if (!data)
        return -1;
    return data[2] > 200 ? -1 : data[2] > 100 ? data[2] & 63 : data[2] & 3;
}

SEC("xdp")
int end_one(struct xdp_md *ctx)
{
    __u8 *data = bytes(ctx, 2);
    if (data)
        data[1] ^= 0x55;
    return XDP_TX;
}

SEC("xdp")
int end_two(struct xdp_md *ctx)
{
    seen += 1000;
    return XDP_DROP;
}

// A tail call ends this program, not the chain.
SEC("xdp")
int tails(struct xdp_md *ctx)
{
    __u8 *data = bytes(ctx, 1);
    if (data)
        bpf_tail_call(ctx, &ends, data[0] & 3);
    return XDP_PASS;
}

// Two programs of one chain leave one number, those of the other another.
#define LEAVE(name, offset, number)                                                                \
    SEC("xdp") int name(struct xdp_md *ctx)                                                        \
    {                                                                                              \
        __u8 *data = bytes(ctx, 16);                                                               \
        if (data)                                                                                  \
            data[offset] = number;                                                                 \
        return XDP_PASS;                                                                           \
    }
LEAVE(one_first, 14, 1)
LEAVE(one_second, 15, 1)
LEAVE(two_first, 14, 2)
LEAVE(two_second, 15, 2)

char _license[] SEC("license") = "GPL";
