/* Mistakes people make. Each must be refused; tests/objects.rs says in what words. */
#include "fixture.bpf.h"

struct key { u64 ip; u8 kind; };
struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 16); __type(key, struct key); __type(value, u64[4]); } map SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_RINGBUF); __uint(max_entries, 4096); } events SEC(".maps");
struct node { struct node *next; u64 value; };
u32 table[16];

SEC("uprobe")
int forgets_null(struct pt_regs *ctx)
{
	struct key k = {};
	u64 *v = bpf_map_lookup_elem(&map, &k);

	*v += 1;
	return 0;
}

SEC("uprobe")
int forgets_padding(struct pt_regs *ctx)
{
	struct key k = { .ip = ctx->ip, .kind = 1 };

	bpf_map_delete_elem(&map, &k);
	return 0;
}

SEC("uprobe")
int forgets_record(struct pt_regs *ctx)
{
	u64 *e = bpf_ringbuf_reserve(&events, 8, 0);

	if (!e)
		return 0;
	if (ctx->di == 0)
		return 0;
	*e = 1;
	bpf_ringbuf_submit(e, 0);
	return 0;
}

SEC("uprobe")
int off_by_one(struct pt_regs *ctx)
{
	u32 i = ctx->di;

	if (i <= 16)
		table[i]++;
	return 0;
}

SEC("uprobe")
int follows_user_pointers(struct pt_regs *ctx)
{
	struct node *n = (void *)ctx->di;

	return n->next->value;
}

SEC("uprobe")
int loops_for_ever(struct pt_regs *ctx)
{
	u64 n = ctx->di;

	while (bpf_probe_read_user(&n, sizeof(n), (void *)n) == 0)
		n = n & 1 ? n * 3 + 1 : n >> 1;
	table[0] = n;
	return 0;
}

SEC("fentry.multi/f")
int returns_something(u64 *ctx)
{
	return ctx[0];
}

SEC("uprobe")
int big_stack(struct pt_regs *ctx)
{
	char buf[480];

	bpf_probe_read_user(buf, sizeof(buf), (void *)ctx->di);
	buf[ctx->si & 511] = 1;
	bpf_ringbuf_output(&events, buf, sizeof(buf), 0);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
