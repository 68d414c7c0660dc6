/* Accesses that are out of bounds, each for another reason; `bounds.txt` has what is said of them. Those called `fine_…` are accepted. */
#include "fixture.bpf.h"

struct element { u64 a; u32 b; u32 c; u64 d; };
struct xdp_md { u32 data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex; };

struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 4); __type(key, u32); __type(value, u64[16]); } table SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 4); __type(key, u32); __type(value, struct element[10]); } elements SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 4); __type(key, u64); __type(value, char[16]); } names SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_RINGBUF); __uint(max_entries, 4096); } events SEC(".maps");
u32 shared;
u64 counts[8];
u64 sums[4];

static long (*const bpf_xdp_adjust_head)(void *xdp, int delta) = (void *)44;

/* As compilers see a size that they need not cut to 32 bits. */
static long (*const wide_probe_read)(void *dst, u64 size, const void *src) = (void *)112;

static __always_inline u64 *row(void)
{
	u32 k = 0;

	return bpf_map_lookup_elem(&table, &k);
}

static __always_inline char *name(void)
{
	u64 k = 0;

	return bpf_map_lookup_elem(&names, &k);
}

SEC("uprobe")
int one_too_many(struct pt_regs *ctx)
{
	u64 i = ctx->di, *t = row();

	if (!t)
		return 0;
	if (i > 16)
		return 0;
	t[i]++;
	return 0;
}

SEC("uprobe")
int fine_below(struct pt_regs *ctx)
{
	u64 i = ctx->di, *t = row();

	if (t && i < 16)
		t[i]++;
	return 0;
}

SEC("uprobe")
int offset_tested(struct pt_regs *ctx)
{
	u64 off = ctx->di * 8;
	char *t = (char *)row();

	asm volatile("" : "+r"(off));
	if (t && off <= 128)
		(*(u64 *)(t + off))++;
	return 0;
}

static __noinline int add_to(u64 *t, u64 i)
{
	asm volatile("" : "+r"(i));
	t[i]++;
	return 0;
}

SEC("uprobe")
int tested_by_the_caller(struct pt_regs *ctx)
{
	u64 i = ctx->di, *t = row();

	if (t && i <= 16)
		add_to(t, i);
	return 0;
}

SEC("uprobe")
int sum_of_two(struct pt_regs *ctx)
{
	u64 i = ctx->di, j = ctx->si, *t = row();

	if (t && i < 16 && j < 16)
		t[i + j]++;
	return 0;
}

SEC("uprobe")
int wrong_side(struct pt_regs *ctx)
{
	u64 i = ctx->di, *t = row();

	if (t && i >= 16)
		t[i & 31]++;
	return 0;
}

SEC("uprobe")
int no_test(struct pt_regs *ctx)
{
	u32 i = ctx->di;
	u64 *t = row();

	if (t)
		t[i]++;
	return 0;
}

SEC("uprobe")
int signed_test(struct pt_regs *ctx)
{
	int i = ctx->di;
	u64 *t = row();

	if (t && i < 16)
		t[i]++;
	return 0;
}

SEC("uprobe")
int wide_mask(struct pt_regs *ctx)
{
	u64 i = ctx->di & 31, *t = row();

	if (t)
		t[i]++;
	return 0;
}

SEC("uprobe")
int read_twice(struct pt_regs *ctx)
{
	volatile u32 *i = &shared;
	u64 *t = row();

	if (t && *i < 16)
		t[*i]++;
	return 0;
}

SEC("uprobe")
int next_one(struct pt_regs *ctx)
{
	u64 i = ctx->di, *t = row();

	if (t && i < 16)
		t[i + 1]++;
	return 0;
}

SEC("uprobe")
int four_before(struct pt_regs *ctx)
{
	u64 i = ctx->di, *t = row();

	if (t && i < 16)
		t[i - 4]++;
	return 0;
}

SEC("uprobe")
int unknown_limit(struct pt_regs *ctx)
{
	u64 i = ctx->di, n = ctx->si, *t = row();

	if (t && i < n)
		t[i]++;
	return 0;
}

SEC("uprobe")
int odd_elements(struct pt_regs *ctx)
{
	u64 i = ctx->di;
	u32 k = 0;
	struct element *e = bpf_map_lookup_elem(&elements, &k);

	if (e && i <= 10)
		e[i].d = 1;
	return 0;
}

SEC("uprobe")
int one_turn_too_many(struct pt_regs *ctx)
{
	u64 *t = row();

	if (!t)
		return 0;
#pragma clang loop unroll(disable)
	for (u64 i = 0; i <= 16; i++) {
		asm volatile("" : "+r"(i));
		t[i]++;
	}
	return 0;
}

SEC("uprobe")
int beyond_a_variable(struct pt_regs *ctx)
{
	u64 i = ctx->di;

	if (i < 40)
		counts[i]++;
	sums[0] = 1;
	return 0;
}

SEC("uprobe")
int large_constant(struct pt_regs *ctx)
{
	char *n = name();

	if (n)
		bpf_get_current_comm(n, 32);
	return 0;
}

SEC("uprobe")
int size_without_test(struct pt_regs *ctx)
{
	char *n = name();

	if (n)
		bpf_probe_read_user(n, ctx->si, (void *)ctx->di);
	return 0;
}

SEC("uprobe")
int size_too_large(struct pt_regs *ctx)
{
	u64 size = ctx->si;
	char *n = name();

	if (n && size <= 32)
		bpf_probe_read_user(n, size, (void *)ctx->di);
	return 0;
}

SEC("uprobe")
int half_a_size(struct pt_regs *ctx)
{
	u64 size = ctx->si;
	char *n = name();

	asm volatile("" : "+r"(size));
	if (n && (u32)size <= 16)
		wide_probe_read(n, size, (void *)ctx->di);
	return 0;
}

SEC("uprobe")
int fine_size(struct pt_regs *ctx)
{
	u32 size = ctx->si;
	char *n = name();

	if (n && size <= 16)
		bpf_probe_read_user(n, size, (void *)ctx->di);
	return 0;
}

SEC("uprobe")
int signed_size(struct pt_regs *ctx)
{
	s64 size = ctx->si;
	char *n = name();

	if (n && size <= 16)
		bpf_probe_read_user(n, size, (void *)ctx->di);
	return 0;
}

SEC("uprobe")
int short_key(struct pt_regs *ctx)
{
	u32 k = 0;

	return bpf_map_delete_elem(&names, &k) & 0;
}

SEC("uprobe")
int short_buffer(struct pt_regs *ctx)
{
	u64 v = 1;

	bpf_ringbuf_output(&events, &v, 16, 0);
	return 0;
}

SEC("uprobe")
int short_record(struct pt_regs *ctx)
{
	u64 *r = bpf_ringbuf_reserve(&events, 8, 0);

	if (!r)
		return 0;
	r[1] = 2;
	bpf_ringbuf_submit(r, 0);
	return 0;
}

SEC("uprobe")
int index_into_record(struct pt_regs *ctx)
{
	u64 i = ctx->di;
	char *r = bpf_ringbuf_reserve(&events, 16, 0);

	if (!r)
		return 0;
	if (i <= 16)
		r[i] = 1;
	bpf_ringbuf_submit(r, 0);
	return 0;
}

SEC("uprobe")
int index_into_stack(struct pt_regs *ctx)
{
	char buf[64] = {};
	u64 i = ctx->di;

	if (i < 600)
		buf[i] = 1;
	bpf_trace_printk(buf, sizeof(buf));
	return 0;
}

SEC("uprobe")
int write_to_registers(struct pt_regs *ctx)
{
	ctx->ax = 1;
	return 0;
}

SEC("xdp")
int packet_not_compared(struct xdp_md *xdp)
{
	u8 *data = (void *)(long)xdp->data;

	return data[14] ? 1 : 2;
}

SEC("xdp")
int packet_too_short(struct xdp_md *xdp)
{
	u8 *data = (void *)(long)xdp->data, *end = (void *)(long)xdp->data_end;

	if (data + 14 > end)
		return 2;
	return *(u32 *)(data + 26) ? 1 : 2;
}

SEC("xdp")
int packet_compared_upside_down(struct xdp_md *xdp)
{
	u8 *data = (void *)(long)xdp->data, *end = (void *)(long)xdp->data_end;

	if (data + 14 < end)
		return 2;
	return data[3] ? 1 : 2;
}

SEC("xdp")
int packet_behind_options(struct xdp_md *xdp)
{
	u8 *data = (void *)(long)xdp->data, *end = (void *)(long)xdp->data_end;

	if (data + 14 > end)
		return 2;
	data += (data[0] & 15) * 4;
	return data[0] ? 1 : 2;
}

SEC("xdp")
int packet_far_away(struct xdp_md *xdp)
{
	u8 *data = (void *)(long)xdp->data, *end = (void *)(long)xdp->data_end;

	if (data + 14 > end)
		return 2;
	data += *(u32 *)data;
	if (data + 4 > end)
		return 2;
	return data[0] ? 1 : 2;
}

SEC("xdp")
int packet_moved(struct xdp_md *xdp)
{
	u8 *data = (void *)(long)xdp->data, *end = (void *)(long)xdp->data_end;

	if (data + 14 > end || bpf_xdp_adjust_head(xdp, 4))
		return 2;
	return data[1] ? 1 : 2;
}

SEC("xdp")
int packet_as_key(struct xdp_md *xdp)
{
	u8 *data = (void *)(long)xdp->data, *end = (void *)(long)xdp->data_end;

	if (data + 4 > end)
		return 2;
	bpf_map_delete_elem(&names, data);
	return 2;
}

SEC("xdp")
int part_of_a_field(struct xdp_md *xdp)
{
	return ((volatile u8 *)xdp)[1] ? 1 : 2;
}

SEC("xdp")
int behind_the_context(struct xdp_md *xdp)
{
	return ((volatile u32 *)xdp)[6] ? 1 : 2;
}

SEC("xdp")
int field_to_be_read(struct xdp_md *xdp)
{
	xdp->ingress_ifindex = 1;
	return 2;
}

SEC("uprobe")
int loop_to_the_size(struct pt_regs *ctx)
{
	u64 *t = row();
	u32 i;

	if (!t)
		return 0;
#pragma clang loop unroll(disable)
	for (i = 0; i <= 16; i++)
		((volatile u64 *)t)[i] = i;
	return 0;
}

SEC("uprobe")
int only_a_least_size(struct pt_regs *ctx)
{
	u64 *t = row(), size = ctx->di;

	if (!t || size < 10)
		return 0;
	wide_probe_read(t, size, (void *)ctx->si);
	return 0;
}

SEC("uprobe")
int only_a_least_index(struct pt_regs *ctx)
{
	u64 *t = row(), i = ctx->di;

	if (!t || i < 10)
		return 0;
	asm volatile("" : "+r"(i));
	t[i]++;
	return 0;
}

SEC("uprobe")
int beyond_what_was_tested(struct pt_regs *ctx)
{
	u64 *t = row(), i = ctx->di;

	if (!t || i <= 20)
		return 0;
	asm volatile("" : "+r"(i));
	t[i]++;
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
