/* The program behind `skep trace --args`, `--ret`, `--if` and `--chrome`: a record for each call that has ended, with what was read
 * of its arguments and its result, in a ring.
 *
 * What is read is in `plans`, by the function's number (crates/cli/src/trace/calls/plan.rs writes them): 0 reads nothing. A call's
 * record is put together in the thread's own `frames`, one for each nested call, and copied to the ring at return, so that the ring is
 * locked once for a call, and calls that are not wanted cost no more than their frame.
 *
 * A call that something jumped out of (longjmp, an exception) is noticed when the next one of its thread begins or returns. It may be
 * that the thread is only on another stack, so its record is sent no sooner than its frame is needed, or by the reader at the end.
 */
#include "skep.bpf.h"

static long (*const bpf_probe_read_user_str)(void *to, __u32 size, const void *from) = (void *)114;
static long (*const bpf_ringbuf_output)(void *ringbuf, void *data, __u64 size, __u64 flags) = (void *)130;
static long (*const bpf_get_func_arg)(void *ctx, __u32 n, __u64 *value) = (void *)183;
static long (*const bpf_get_func_ret)(void *ctx, __u64 *value) = (void *)184;

/* Not functions of the kernel. */
extern __u64 skep_get_func_sp(void *ctx) __ksym __weak;
extern __u64 skep_get_func_vector(void *ctx, __u32 n) __ksym __weak;
extern __u64 skep_get_func_ret_word(void *ctx, __u32 n) __ksym __weak;

#define MAX_DEPTH 1023
#define BPF_RB_NO_WAKEUP 1
#define MAX_PLANS (1 << 18)
#define OPS 24
/* A string or a piece of a structure, behind a word with its length or an error. */
#define PIECE 120
#define LAST_AT 1016
#define DATA (LAST_AT + 8 + PIECE)
#define VARS 8
#define TEXT 64

enum { WORD = 1, STRING = 2, BYTES = 3, VECTOR = 4, CONSTANT = 5, STRING_BEHIND = 6, COUNTED = 7 };
enum { RESULT = 0xff, STACK = 0xfe, RESULT2 = 0xfd };
enum { AT_ENTRY = 1, AT_RETURN = 2 };

struct op {
	__u8 kind;
	/* Of the arguments; RESULT: the result; RESULT2: its second word; STACK: where the return address is; of a VECTOR its register */
	__u8 word;
	__u16 at; /* in `data`: a multiple of 8 */
	__u32 size;
	__s64 offset; /* from where the word points */
};

/* The first bit of the number is in the upper half. */
enum { SIGNED = 1, OF_VARIABLE = 2, AT_END = 4 };

/* A variable of the condition. */
struct var {
	/* WORD: the word itself, from bit `offset` on; STRING, BYTES: what is at `offset` from where the word points; STRING_BEHIND: what
	 * the pointer there points to; COUNTED: as many bytes as the next word says; CONSTANT: `offset`
	 */
	__u8 kind;
	__u8 word; /* OF_VARIABLE: an earlier variable */
	__u8 bits; /* of the number; of a STRING and a STRING_BEHIND its most bytes, 1 to TEXT */
	__u8 flags; /* AT_END: it is read at return */
	__u32 unused;
	__s64 offset;
};

struct plan {
	__u8 entry; /* operations at entry; the others follow */
	__u8 ops; /* all of them */
	__u16 size; /* of `data` */
	__u32 conditional; /* 1: it has the variables of the condition; the bits above: what types these have (condition.rs) */
	struct var vars[VARS];
	struct op all[OPS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_PLANS);
	__type(key, __u32);
	__type(value, struct plan);
} plans SEC(".maps");

/* What is known of a call: it returned, or nobody will see that; it runs, or did when its thread ended; it was left before `took` was over. */
enum { OVER = 0, RUNS = 1, LEFT = 2 };

struct frame {
	/* What is copied to the ring: */
	__u64 start;
	__u64 took; /* -1: nobody sees it return */
	__u64 tid;
	__u32 function;
	__u32 number;
	__u32 depth; /* calls around it */
	__u32 state;
	__u8 data[DATA];
	/* What is not: */
	__u64 sp;
	__u32 unknown; /* a variable could not be read */
	__u32 conditional; /* as in the plan: the condition asks what types its variables have */
	__u64 vars[VARS];
	__u8 texts[VARS][TEXT]; /* how many of the bytes count is in `vars` */
};

#define HEAD __builtin_offsetof(struct frame, data)

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, MAX_DEPTH + 1);
	__type(key, __u32);
	__type(value, struct frame);
} frames SEC(".maps");

struct thread {
	__u64 tid;
	__u64 top; /* the innermost call, by its frame's number; 0: none */
	__u64 lost; /* calls nested too deep, and returns whose entry is not known */
	__u64 dropped; /* records for which the ring had no room */
	__u64 deepest; /* the last frame that was ever used */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct thread);
} threads SEC(".maps");

struct settings {
	__u64 min; /* shorter calls are left out */
	__u32 depth; /* deeper calls are not looked at */
	__u32 condition; /* when there is one: AT_ENTRY or AT_RETURN */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct settings);
} settings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 24);
} records SEC(".maps");

/* In the cookie of a function that has no run at its return (`ENTRY_ONLY`, link/file.rs). */
#define ENTRY_ONLY (1ull << 63)

/* The condition: other code takes the place of this (crates/cli/src/trace/calls/condition.rs). */
static __attribute__((noinline)) int wanted(struct frame *f)
{
	int yes = 1;

	asm volatile("" : "+r"(yes) : "r"(f));
	return yes;
}

static __always_inline __u64 word_of(__u64 *ctx, __u32 word)
{
	__u64 value = 0;

	if (word == STACK)
		value = skep_get_func_sp(ctx);
	else if (word == RESULT)
		bpf_get_func_ret(ctx, &value);
	else if (word == RESULT2)
		value = skep_get_func_ret_word(ctx, 1);
	else
		bpf_get_func_arg(ctx, word, &value);
	return value;
}

/* How long the text is that a word points to: as the next one says. */
static __always_inline __u64 length_of(__u64 *ctx, __u32 word)
{
	return word_of(ctx, word == RESULT ? RESULT2 : word + 1);
}

/* Reads the arguments, or the result. */
static __attribute__((noinline)) int capture(__u64 *ctx, struct frame *f, struct plan *p, __u32 first, __u32 end)
{
	if (!f || !p)
		return 0;
	for (__u32 i = 0; i < OPS; i++) {
		struct op *op = &p->all[i];
		__u64 at = op->at & LAST_AT, value;
		__u32 size = op->size;
		const void *from;
		void *to;

		if (i < first)
			continue;
		if (i >= end)
			break;
		asm volatile("" : "+r"(at));
		to = f->data + at;
		if (op->kind == VECTOR) {
			*(__u64 *)to = skep_get_func_vector(ctx, op->word);
			continue;
		}
		value = word_of(ctx, op->word);
		if (op->kind == WORD) {
			*(__u64 *)to = value;
			continue;
		}
		from = (const void *)value + op->offset;
		if (op->kind == COUNTED) {
			__u64 length = length_of(ctx, op->word);

			if (size > length)
				size = length;
		}
		if (size > PIECE)
			size = PIECE;
		if (op->kind == STRING)
			*(__s64 *)to = bpf_probe_read_user_str(to + 8, size, from);
		else
			*(__s64 *)to = bpf_probe_read_user(to + 8, size, from);
	}
	return 0;
}

/* Reads the variables of the condition: those that are known at entry, or those that are at return. */
static __attribute__((noinline)) int variables(__u64 *ctx, struct frame *f, struct plan *p, __u32 results)
{
	if (!f || !p)
		return 0;
	for (int i = 0; i < VARS; i++) {
		struct var *v = &p->vars[i];
		__u32 shift, first = v->flags >> 4 & 7;
		const void *from;
		__u64 value;

		if (!v->kind || !(v->flags & AT_END) == !!results)
			continue;
		if (v->kind == CONSTANT)
			value = v->offset;
		else if (v->flags & OF_VARIABLE)
			value = f->vars[v->word & (VARS - 1)];
		else
			value = word_of(ctx, v->word);
		from = (const void *)value + v->offset;
		if (v->kind == STRING_BEHIND && bpf_probe_read_user(&from, sizeof(from), from)) {
			f->unknown = 1;
			continue;
		}
		if (v->kind == COUNTED) {
			__u64 length = length_of(ctx, v->word);

			if (length > TEXT)
				length = TEXT;
			if (bpf_probe_read_user(f->texts[i], length, from))
				f->unknown = 1;
			f->vars[i] = length;
			continue;
		}
		if (v->kind == STRING || v->kind == STRING_BEHIND) {
			__u32 last = (v->bits - 1) & (TEXT - 1);
			long length = bpf_probe_read_user_str(f->texts[i], last + 1, from);

			f->vars[i] = length - 1;
			/* The last byte that the text can have is where the zero went. */
			if (length > last) {
				length = bpf_probe_read_user(&f->texts[i][last], 1, from + last);
				f->vars[i] = f->texts[i][last] ? last + 1 : last;
			}
			if (length < 0)
				f->unknown = 1;
			continue;
		}
		if (v->kind == BYTES) {
			__u32 size = (v->bits + first + 7) >> 3;

			value = 0;
			if (size > sizeof(value) || bpf_probe_read_user(&value, size, from)) {
				f->unknown = 1;
				continue;
			}
			value >>= first;
		}
		if (v->kind == WORD)
			value >>= v->offset & 63;
		shift = (64 - v->bits) & 63;
		value <<= shift;
		f->vars[i] = v->flags & SIGNED ? (__u64)((__s64)value >> shift) : value >> shift;
	}
	return 0;
}

static __always_inline void send(struct thread *t, struct frame *f, struct plan *p)
{
	__u64 size = p->size;

	if (size > DATA)
		size = DATA;
	/* Nobody is woken for each: the reader looks often enough. */
	if (bpf_ringbuf_output(&records, f, HEAD + size, BPF_RB_NO_WAKEUP))
		t->dropped++;
}

/* Somebody jumped out of the calls behind `call`, before now. */
static __attribute__((noinline)) int leave(struct thread *t, __u32 call, __u64 now)
{
	__u32 at;
	struct frame *f;

	if (!t)
		return 0;
	at = t->top;
	for (int i = 0; i < MAX_DEPTH && at > call; i++, at--) {
		f = bpf_map_lookup_elem(&frames, &at);
		if (!f)
			break;
		if (f->state == RUNS) {
			f->state = LEFT;
			f->took = now - f->start;
		}
	}
	return 0;
}

/* The innermost call that a function with this stack pointer can have been called in. */
static __attribute__((noinline)) __u32 settle(struct thread *t, __u64 sp)
{
	__u64 tid = bpf_get_current_pid_tgid();
	__u32 call;
	struct frame *f;

	if (!t)
		return 0;
	if (t->tid != tid) {
		t->tid = tid;
		t->top = 0;
		return 0;
	}
	call = t->top;
	for (int i = 0; i < MAX_DEPTH; i++) {
		f = bpf_map_lookup_elem(&frames, &call);
		if (!call || !f || f->sp > sp)
			break;
		call--;
	}
	if (call != t->top) {
		leave(t, call, bpf_get_cpu_time_counter());
		t->top = call;
	}
	return call;
}

/* Sends the record of a call that never returned, as its frame is needed. */
static __attribute__((noinline)) int give_up(struct thread *t, struct frame *f, struct settings *set)
{
	struct plan *p;
	__u32 number;

	if (!t || !f || !set)
		return 0;
	if (f->state == RUNS) {
		f->took = bpf_get_cpu_time_counter() - f->start;
		if (f->tid == t->tid)
			f->state = LEFT;
	}
	number = f->number;
	p = bpf_map_lookup_elem(&plans, &number);
	if (p && set->condition != AT_RETURN && f->took >= set->min)
		send(t, f, p);
	f->state = OVER;
	return 0;
}

static __always_inline int returned(__u64 *ctx, struct thread *t, struct settings *set)
{
	__u64 now = bpf_get_cpu_time_counter();
	__u32 call = *bpf_session_cookie(ctx);
	struct frame *f = bpf_map_lookup_elem(&frames, &call);
	struct plan *p;
	__u32 number;

	if (!f || !call || !f->state || f->sp != skep_get_func_sp(ctx) || f->tid != bpf_get_current_pid_tgid()) {
		t->lost++;
		return 0;
	}
	/* They end before their caller does. */
	if (t->top != call)
		leave(t, call, now);
	f->state = OVER;
	t->top = call - 1;
	f->took = now - f->start;
	if (f->took < set->min)
		return 0;
	number = f->number;
	p = bpf_map_lookup_elem(&plans, &number);
	if (!p)
		return 0;
	if (set->condition == AT_RETURN) {
		variables(ctx, f, p, 1);
		if (f->unknown || !wanted(f))
			return 0;
	}
	if (p->ops > p->entry)
		capture(ctx, f, p, p->entry, p->ops);
	send(t, f, p);
	return 0;
}

SEC("fsession.multi/*")
int calls(__u64 *ctx)
{
	__u32 zero = 0, call, number;
	struct thread *t = bpf_map_lookup_elem(&threads, &zero);
	struct settings *set = bpf_map_lookup_elem(&settings, &zero);
	struct frame *f;
	struct plan *p;
	__u64 cookie;

	if (!t || !set)
		return 1;
	if (bpf_session_is_return(ctx))
		return returned(ctx, t, set);
	cookie = bpf_get_attach_cookie(ctx);
	number = cookie >> 32 & 0x7fffffff;
	p = bpf_map_lookup_elem(&plans, &number);
	if (!p || (set->condition && !p->conditional))
		return 1;
	call = settle(t, skep_get_func_sp(ctx)) + 1;
	if (call > set->depth)
		return 1;
	f = bpf_map_lookup_elem(&frames, &call);
	if (!f) {
		t->lost++;
		return 1;
	}
	if (f->state)
		give_up(t, f, set);
	f->function = cookie;
	f->number = number;
	f->tid = t->tid;
	f->sp = skep_get_func_sp(ctx);
	f->depth = call - 1;
	f->took = -1;
	f->unknown = 0;
	f->conditional = p->conditional;
	if (set->condition) {
		variables(ctx, f, p, 0);
		/* What looks at the result is decided when there is one. */
		if (set->condition == AT_ENTRY && (f->unknown || !wanted(f)))
			return 1;
	}
	if (p->entry)
		capture(ctx, f, p, 0, p->entry);
	f->start = bpf_get_cpu_time_counter();
	if (cookie & ENTRY_ONLY) {
		if (set->condition != AT_RETURN)
			send(t, f, p);
		return 1;
	}
	f->state = RUNS;
	t->top = call;
	if (t->deepest < call)
		t->deepest = call;
	*bpf_session_cookie(ctx) = call;
	return 0;
}

char _license[] SEC("license") = "Dual MIT/GPL";
