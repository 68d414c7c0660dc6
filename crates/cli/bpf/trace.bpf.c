/* The program behind `skep trace`: calls, total and self time and a log2 histogram for every function, per thread.
 * All times are in units of the time-stamp counter.
 *
 * It is attached once to all functions as a session (run at entry and at return); the attach cookie is the function's
 * index in `stats`. A per-CPU value belongs to one thread while a program runs, and to the same thread from run to run
 * unless there are more threads than slots, so a thread's stack of calls can be kept in one.
 *
 * Self time without a shadow stack of children: `done` is the sum of the self times of all finished calls of the
 * thread. What it grew by between entry and return is what callees took. A frame that never returns (longjmp, an
 * exception, exit) adds nothing: its time stays with its caller.
 *
 * Every call is counted. Reading the time costs ten times what counting does, so of functions that are called often and
 * return soon only one call in `period` is timed, picked by a hash of the call's number; an untimed call adds to `done` what the
 * timed ones took on average, so that its caller's self time stays right. The reader scales up.
 */
#include "skep.bpf.h"

/* The stack pointer when the function was called: the same at entry and at return. Not a function of the kernel. */
extern __u64 skep_get_func_sp(void *ctx) __ksym __weak;

#define MAX_DEPTH 1023 /* with the head of `struct thread`, as large as a frame, a power of two: 32 KiB, a per-CPU value's limit */

/* Stacks of two threads are further apart, and frames of one are nearly always closer. */
#define STACK_GAP (256 << 10)

struct frame {
	__u64 start;
	__u64 done;
	__u64 sp; /* where the call's return address is: grows downwards with the call depth */
	__u32 function;
	__u32 pad;
};

/* A call is named by the offset of its frame in here; 0, where the head is, is no call. */
struct thread {
	__u64 tid;
	__u64 done;
	__u64 top; /* the innermost call */
	__u64 lost; /* returns whose entry was not recorded or no longer is */
	struct frame frames[MAX_DEPTH];
};

#define LAST (MAX_DEPTH * sizeof(struct frame))

struct stat {
	__u64 calls;
	__u64 outer; /* the outermost running timed call */
	__u64 untimed; /* outermost calls that were not timed */
	__u64 mean_self; /* of timed calls, as last worked out */
	__u32 mask; /* a call is timed when the hash of its number has none of these bits */
	__u32 recursive; /* seen to recurse: all calls are timed, or nobody could tell which is outermost */
	__u64 timed; /* calls timed */
	__u64 outermost; /* those of them that were outermost */
	__u64 total; /* time of outermost calls */
	__u64 self;
	__u32 hist[64]; /* calls that took [2^i, 2^(i+1)) */
} __attribute__((aligned(64))); /* what an untimed call touches lies in one line */

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct thread);
} threads SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1 << 18);
	__type(key, __u32);
	__type(value, struct stat);
} stats SEC(".maps");

/* Calls that go by before the next is timed, less one: 2^n - 1, at most 31. 0 times all. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} period SEC(".maps");

/* Every so many timed calls it is worked out whether to time them all. */
#define REVIEW 512
/* Calls that take less on average are short: a microsecond or so. */
#define SHORT 4096

/* The frame of a call. The mask keeps it inside whatever a map value says. */
static __always_inline struct frame *frame_of(struct thread *t, __u64 call)
{
	call &= LAST;
	asm volatile("" : "+r"(call)); /* clang must not move the mask behind the address */
	return (void *)t + call;
}

#define R2(n) n, n
#define R4(n) R2(n), R2(n)
#define R16(n) R4(n), R4(n), R4(n), R4(n)
#define R64(n) R16(n), R16(n), R16(n), R16(n)

static const __u8 log2_table[256] = {
	0, 0, R2(1), R4(2), R4(3), R4(3), R16(4), R16(5), R16(5), R64(6), R64(7), R64(7),
};

static __always_inline __u32 log2_of(__u64 v)
{
	__u32 base = 0;

	if (v > 0xffff) {
		for (int i = 0; i < 6 && v > 0xffff; i++) {
			v >>= 8;
			base += 8;
		}
	}
	if (v > 0xff) {
		v >>= 8;
		base += 8;
	}
	return base + log2_table[v & 0xff];
}

/* Drops frames that do not run any more: another thread's leftovers, and calls somebody jumped out of, at or below our own. What
 * is left of many is dropped by the calls that follow.
 */
static __attribute__((noinline)) __u64 settle(struct thread *t, __u64 sp)
{
	__u64 tid = bpf_get_current_pid_tgid(), call;

	if (!t)
		return 0;
	if (t->tid != tid) {
		t->tid = tid;
		return 0;
	}
	call = t->top;
	for (int i = 0; i < 32; i++) {
		if (call == 0 || frame_of(t, call)->sp > sp)
			break;
		call -= sizeof(struct frame);
	}
	return call;
}

static __attribute__((noinline)) int review(struct stat *s)
{
	__u32 zero = 0, *mask = bpf_map_lookup_elem(&period, &zero);

	if (!s || !mask || !s->timed)
		return 0;
	s->mean_self = s->self / s->timed;
	s->mask = !s->recursive && s->outermost && s->total / s->outermost < SHORT ? *mask & 31 : 0;
	return 0;
}

/* In the cookie of a function that has no run at its return: it is counted, and no frame waits for it (`ENTRY_ONLY`, link/file.rs). */
#define ENTRY_ONLY (1ull << 63)

/* A call that is timed. Not inlined, nor is `returned`: the usual call would save the registers they use. */
static __attribute__((noinline)) int timed(__u64 *ctx, struct thread *t, struct stat *s)
{
	__u64 cookie = bpf_get_attach_cookie(ctx);
	__u32 id = cookie;
	__u64 sp = skep_get_func_sp(ctx), above, call, outer;
	struct frame *f;

	if (!t || !s || cookie & ENTRY_ONLY)
		return 1;
	above = t->top;
	if (above) {
		f = frame_of(t, above);
		if (f->sp <= sp || f->sp > sp + STACK_GAP)
			above = settle(t, sp);
	} else {
		t->tid = bpf_get_current_pid_tgid();
	}
	if (above >= LAST) {
		t->lost++;
		return 1;
	}
	call = above + sizeof(struct frame);
	f = frame_of(t, call);
	f->function = id;
	f->sp = sp;
	f->done = t->done;
	outer = s->outer;
	if (!outer || outer >= call || frame_of(t, outer)->function != id) {
		s->outer = call;
	} else if (!s->recursive) {
		s->recursive = 1;
		s->mask = 0;
	}
	t->top = call;
	*bpf_session_cookie(ctx) = call;
	f->start = bpf_get_cpu_time_counter();
	return 0;
}

static __attribute__((noinline)) int returned(__u64 *ctx, struct thread *t)
{
	__u64 now = bpf_get_cpu_time_counter();
	__u64 call = *bpf_session_cookie(ctx), took, done;
	struct frame *f;
	struct stat *s;

	if (!t)
		return 0;
	f = frame_of(t, call);
	if (f->sp != skep_get_func_sp(ctx)) {
		t->lost++;
		return 0;
	}
	s = bpf_map_lookup_elem(&stats, &f->function);
	if (!s)
		return 0;
	took = now - f->start;
	done = f->done;
	s->self += took - (t->done - done);
	t->done = done + took;
	t->top = call - sizeof(struct frame);
	s->hist[log2_of(took) & 63]++;
	if (s->outer == call) {
		s->outer = 0;
		s->outermost++;
		s->total += took;
	}
	if (++s->timed % REVIEW == 0)
		review(s);
	return 0;
}

SEC("fsession.multi/*")
int trace(__u64 *ctx)
{
	__u32 zero = 0, id;
	struct thread *t = bpf_map_lookup_elem(&threads, &zero);
	struct stat *s;

	if (!t)
		return 1;
	if (bpf_session_is_return(ctx))
		return returned(ctx, t);
	id = bpf_get_attach_cookie(ctx);
	s = bpf_map_lookup_elem(&stats, &id);
	if (!s)
		return 1;
	s->calls++;
	if (s->mask && ((__u32)s->calls * 0x9E3779B1u >> 27) & s->mask) {
		s->untimed++;
		t->done += s->mean_self;
		return 1;
	}
	return timed(ctx, t, s);
}

char _license[] SEC("license") = "Dual MIT/GPL";
