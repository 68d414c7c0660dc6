/* Typical tracing programs, as people write them. All must be accepted. */
#include "fixture.bpf.h"

struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 10240); __type(key, u32); __type(value, u64); } counts SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY); __uint(max_entries, 64); __type(key, u32); __type(value, u64); } hist SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 10240); __type(key, u64); __type(value, u64); } starts SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_RINGBUF); __uint(max_entries, 1 << 16); } events SEC(".maps");

struct key { u64 ip; u32 tid; u8 kind; };
struct slots { u64 count; u64 sum; u32 slots[27]; };
struct { __uint(type, BPF_MAP_TYPE_LRU_HASH); __uint(max_entries, 1024); __type(key, struct key); __type(value, struct slots); } lat SEC(".maps");

struct event { u64 time; u64 ip; u32 tid; u32 len; char comm[16]; char text[128]; };

const volatile u32 only_tid = 0;
const volatile u32 depth_limit = 16;
u64 total;
u64 missed;
u32 table[256];
static u32 hidden[8];

SEC("uprobe")
int count(struct pt_regs *ctx)
{
	u32 tid = bpf_get_current_pid_tgid();
	u64 one = 1, *n;

	if (only_tid && tid != only_tid)
		return 0;
	n = bpf_map_lookup_elem(&counts, &tid);
	if (n)
		__sync_fetch_and_add(n, 1);
	else
		bpf_map_update_elem(&counts, &tid, &one, 1);
	total++;
	return 0;
}

SEC("uprobe")
int global_index(struct pt_regs *ctx)
{
	u8 c = ctx->di;
	u32 i = ctx->si;

	table[c]++;
	if (i < 8)
		hidden[i] += table[i * 3];
	hidden[(ctx->dx >> 3) & 7] ^= 1;
	return hidden[0];
}

static __noinline u32 log2_u32(u32 v)
{
	u32 r, shift;

	r = (v > 0xffff) << 4;
	v >>= r;
	shift = (v > 0xff) << 3;
	v >>= shift;
	r |= shift;
	shift = (v > 0xf) << 2;
	v >>= shift;
	r |= shift;
	shift = (v > 0x3) << 1;
	v >>= shift;
	r |= shift;
	r |= (v >> 1);
	return r;
}

static __noinline u32 log2_u64(u64 v)
{
	u32 hi = v >> 32;

	return hi ? log2_u32(hi) + 32 : log2_u32(v);
}

SEC("fentry.multi/f*")
int hist_enter(u64 *ctx)
{
	u64 id = bpf_get_current_pid_tgid(), now = bpf_ktime_get_ns();

	bpf_map_update_elem(&starts, &id, &now, 0);
	return 0;
}

SEC("fexit.multi/f*")
int hist_exit(u64 *ctx)
{
	u64 id = bpf_get_current_pid_tgid();
	u64 *start = bpf_map_lookup_elem(&starts, &id), *slot;
	u32 i;

	if (!start)
		return 0;
	i = log2_u64(bpf_ktime_get_ns() - *start);
	slot = bpf_map_lookup_elem(&hist, &i);
	if (slot)
		*slot += 1;
	bpf_map_delete_elem(&starts, &id);
	return 0;
}

SEC("fexit.multi/f*")
int hist_loop(u64 *ctx)
{
	struct key key = {};
	struct slots *s, zero = {};
	u64 v = ctx[0];
	u32 i;

	key.ip = bpf_get_func_ip(ctx);
	key.tid = bpf_get_current_pid_tgid();
	key.kind = 1;
	s = bpf_map_lookup_elem(&lat, &key);
	if (!s) {
		bpf_map_update_elem(&lat, &key, &zero, 1);
		s = bpf_map_lookup_elem(&lat, &key);
		if (!s)
			return 0;
	}
	for (i = 0; i < 26; i++) {
		if (v <= (1ull << i))
			break;
	}
	s->slots[i]++;
	s->count++;
	s->sum += v;
	return 0;
}

SEC("uprobe")
int ring_event(struct pt_regs *ctx)
{
	struct event *e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);
	long n;

	if (!e) {
		missed++;
		return 0;
	}
	e->time = bpf_ktime_get_ns();
	e->ip = ctx->ip;
	e->tid = bpf_get_current_pid_tgid();
	bpf_get_current_comm(e->comm, sizeof(e->comm));
	n = bpf_probe_read_user_str(e->text, sizeof(e->text), (void *)ctx->di);
	if (n < 0) {
		bpf_ringbuf_discard(e, 0);
		return 0;
	}
	e->len = n;
	bpf_ringbuf_submit(e, 0);
	return 0;
}

SEC("uprobe")
int string_on_stack(struct pt_regs *ctx)
{
	char buf[64] = {};
	u32 sum = 0;
	long n = bpf_probe_read_user_str(buf, sizeof(buf), (void *)ctx->di);

	if (n <= 0 || n > sizeof(buf))
		return 0;
	for (int i = 0; i < sizeof(buf); i++) {
		if (i >= n)
			break;
		sum = sum * 31 + buf[i];
	}
	bpf_ringbuf_output(&events, buf, n & 63, 0);
	table[sum & 255]++;
	return 0;
}

SEC("uprobe")
int read_sized(struct pt_regs *ctx)
{
	u8 buf[256];
	u64 len = ctx->dx;

	if (len > sizeof(buf))
		len = sizeof(buf);
	if (bpf_probe_read_user(buf, len, (void *)ctx->si))
		return 0;
	bpf_ringbuf_output(&events, buf, len, 0);
	return 0;
}

#define DEPTH 1024
struct frame { u64 start; u64 ip; };
struct stack { u64 depth; struct frame frames[DEPTH]; };
struct { __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY); __uint(max_entries, 1); __type(key, u32); __type(value, struct stack); } stacks SEC(".maps");

SEC("fentry.multi/*")
int push(u64 *ctx)
{
	u32 zero = 0;
	struct stack *s = bpf_map_lookup_elem(&stacks, &zero);
	u64 d;

	if (!s)
		return 0;
	d = s->depth;
	if (d < DEPTH) {
		s->frames[d].ip = bpf_get_func_ip(ctx);
		s->frames[d].start = bpf_ktime_get_ns();
	}
	s->depth = d + 1;
	return 0;
}

SEC("fexit.multi/*")
int pop(u64 *ctx)
{
	u32 zero = 0;
	struct stack *s = bpf_map_lookup_elem(&stacks, &zero);
	u64 d;

	if (!s || s->depth == 0)
		return 0;
	d = --s->depth;
	if (d < DEPTH && s->frames[d].ip == bpf_get_func_ip(ctx)) {
		u64 *c, id = s->frames[d].ip;

		c = bpf_map_lookup_elem(&starts, &id);
		if (c)
			*c += bpf_ktime_get_ns() - s->frames[d].start;
	}
	return 0;
}

/* Walks user memory: frame pointers. */
SEC("uprobe")
int backtrace(struct pt_regs *ctx)
{
	u64 stack[32] = {}, fp = ctx->bp, frame[2];
	int n = 0;

	for (int i = 0; i < 32; i++) {
		if (i >= depth_limit || bpf_probe_read_user(frame, sizeof(frame), (void *)fp))
			break;
		stack[n++ & 31] = frame[1];
		if (frame[0] <= fp)
			break;
		fp = frame[0];
	}
	bpf_ringbuf_output(&events, stack, sizeof(stack), 0);
	return n;
}

SEC("fsession.multi/*")
int session(u64 *ctx)
{
	u64 *mine = bpf_session_cookie(ctx);

	if (!bpf_session_is_return(ctx)) {
		*mine = bpf_ktime_get_ns();
		return ctx[0] == 7;
	}
	total += bpf_ktime_get_ns() - *mine;
	return 0;
}

SEC("fmod_ret.multi/f*")
int change(u64 *ctx)
{
	u64 arg = 0, ret = 0;

	if (bpf_get_func_arg_cnt(ctx) < 2)
		return 0;
	bpf_get_func_arg(ctx, 1, &arg);
	bpf_get_func_ret(ctx, &ret);
	return (int)arg < 0 ? -22 : ret != 0;
}

SEC("uprobe")
int text(struct pt_regs *ctx)
{
	char out[64], name[16];
	u64 args[3] = { ctx->di, ctx->si, ctx->dx };

	bpf_get_current_comm(name, sizeof(name));
	if (bpf_strncmp(name, sizeof(name), "bash") == 0)
		return 0;
	bpf_snprintf(out, sizeof(out), "%d %lx %llu", args, sizeof(args));
	bpf_trace_printk(out, sizeof(out), ctx->di);
	return 0;
}

struct acc { u64 sum; u32 n; u32 max; };

static __noinline int add(struct acc *a, u32 v)
{
	a->sum += v;
	a->n++;
	if (v > a->max)
		a->max = v;
	return a->n;
}

SEC("uprobe")
int subprograms(struct pt_regs *ctx)
{
	struct acc a = {};

	for (int i = 0; i < 100; i++) {
		u32 r = bpf_get_prandom_u32();

		if (add(&a, r & 0xffff) > 50 && (r >> 31))
			break;
	}
	table[a.max >> 8 & 255] = a.n;
	return a.sum;
}

/* A small hash computed in nested loops with data-dependent branches. */
SEC("uprobe")
int nested(struct pt_regs *ctx)
{
	u64 h = ctx->di;

	for (int i = 0; i < 30; i++) {
		for (int j = 0; j < 8; j++) {
			if (h & 1)
				h = (h >> 1) ^ 0x82f63b78;
			else
				h >>= 1;
		}
		h ^= table[i];
	}
	return h;
}

/* Bubble sort of values on the stack, by variable index. */
SEC("uprobe")
int sort(struct pt_regs *ctx)
{
	u32 v[16];

	for (int i = 0; i < 16; i++)
		v[i] = bpf_get_prandom_u32();
#pragma clang loop unroll(disable)
	for (int i = 0; i < 15; i++)
#pragma clang loop unroll(disable)
		for (int j = 0; j < 15; j++)
			if (v[j] > v[j + 1]) {
				u32 t = v[j];

				v[j] = v[j + 1];
				v[j + 1] = t;
			}
	return v[0];
}

SEC("uprobe")
int long_loop(struct pt_regs *ctx)
{
	u64 sum = 0;

#pragma clang loop unroll(disable)
	for (u32 i = 0; i < 5000; i++) {
		sum += table[i & 255] ^ i;
		asm volatile("" : "+r"(sum));
	}
	return sum;
}

/* A switch, its cases touching different parts of one value. */
SEC("uprobe")
int jump_table(struct pt_regs *ctx)
{
	struct slots *s;
	struct key k = {};
	u32 n = ctx->di;

	k.ip = ctx->ip;
	s = bpf_map_lookup_elem(&lat, &k);
	if (!s)
		return 1;
	switch (n) {
	case 0: s->count++; break;
	case 1: s->sum += ctx->si; break;
	case 2: case 3: case 4: case 5: s->slots[n]++; break;
	case 100 ... 120: s->slots[n - 100]++; break;
	default: s->slots[n % 27] = 0;
	}
	return 0;
}

struct search { u64 want; u32 found; };

static long look(u32 i, struct search *s)
{
	if (i < 256 && table[i] == s->want) {
		s->found = i;
		return 1;
	}
	return 0;
}

SEC("uprobe")
int called_back(struct pt_regs *ctx)
{
	struct search s = { .want = ctx->di };

	bpf_loop(100000, look, &s, 0);
	return s.found < 256 ? table[s.found] : 0;
}

#define can_loop ({ __label__ l_break, l_continue; _Bool ret = 1; \
	asm volatile goto("may_goto %l[l_break]" :::: l_break); goto l_continue; \
	l_break: ret = 0; l_continue:; ret; })

/* A list in user memory, followed to its end. */
SEC("uprobe")
int follow(struct pt_regs *ctx)
{
	u64 node[2] = { ctx->di, 0 }, sum = 0;

	while (node[0] && can_loop) {
		if (bpf_probe_read_user(node, sizeof(node), (void *)node[0]))
			break;
		sum += node[1];
	}
	return sum;
}

char LICENSE[] SEC("license") = "GPL";
