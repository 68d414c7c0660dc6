/* The program behind `skep trace`: calls, total and self time and a log2 histogram for every function, per thread.
 *
 * It is attached once to all functions as a session (run at entry and at return); the attach cookie is the function's
 * index in `stats`. A per-CPU value belongs to one thread while a program runs, and to the same thread from run to run
 * unless there are more threads than slots, so a thread's stack of calls can be kept in one.
 *
 * Self time without a shadow stack of children: `done` is the sum of the self times of all finished calls of the
 * thread. What it grew by between entry and return is what callees took. A frame that never returns (longjmp, an
 * exception, exit) adds nothing: its time stays with its caller.
 */
#include "skep.bpf.h"

#define MAX_DEPTH 1023 /* with the head of `struct thread`, as large as a frame, a power of two: 32 KiB, a per-CPU value's limit */

/* Stacks of two threads are further apart, and frames of one are nearly always closer. */
#define STACK_GAP (256 << 10)

struct frame {
	__u64 start;
	__u64 done;
	__u64 sp; /* address of the context: grows downwards with the call depth */
	__u32 function;
	__u32 pad;
};

struct thread {
	__u64 tid;
	__u64 done;
	__u64 depth;
	__u64 lost; /* returns whose entry was not recorded or no longer is */
	struct frame frames[MAX_DEPTH];
};

struct stat {
	__u64 calls;
	__u64 total_ns; /* of the outermost call only, where a function recurses */
	__u64 self_ns;
	__u64 outer; /* 1 + depth of the outermost running call, or 0 */
	__u32 hist[64]; /* calls that took [2^i, 2^(i+1)) ns */
};

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

/* The frame at `depth`, which the mask keeps inside whatever a map value says. */
static __always_inline struct frame *frame_at(struct thread *t, __u64 depth)
{
	depth++;
	asm volatile("" : "+r"(depth)); /* clang must neither drop the mask, where it knows better than the verifier, */
	depth &= MAX_DEPTH;
	asm volatile("" : "+r"(depth)); /* nor move it behind the address */
	return (struct frame *)t + depth;
}

static __always_inline __u32 log2_of(__u64 v)
{
	__u32 r, s;

	r = (v > 0xffffffff) << 5;
	v >>= r;
	s = (v > 0xffff) << 4;
	v >>= s;
	r |= s;
	s = (v > 0xff) << 3;
	v >>= s;
	r |= s;
	s = (v > 0xf) << 2;
	v >>= s;
	r |= s;
	s = (v > 0x3) << 1;
	v >>= s;
	r |= s;
	return r | (v >> 1);
}

static __always_inline int entered(__u64 *ctx, struct thread *t)
{
	__u32 id = bpf_get_attach_cookie(ctx);
	struct stat *s = bpf_map_lookup_elem(&stats, &id);
	__u64 sp = (__u64)ctx, depth = t->depth, outer;
	struct frame *f;

	if (!s)
		return 1;
	s->calls++;
	/* Far from the last frame: another stack, perhaps another thread's leftovers. */
	if (frame_at(t, depth - 1)->sp > sp + STACK_GAP) {
		__u64 tid = bpf_get_current_pid_tgid();

		if (t->tid != tid) {
			t->tid = tid;
			depth = 0;
		}
	}
	/* Frames at or below our own are gone: somebody jumped over them. The next call drops what is left. */
	for (int i = 0; i < 32; i++) {
		if (depth == 0 || frame_at(t, depth - 1)->sp > sp)
			break;
		depth--;
	}
	if (depth >= MAX_DEPTH) {
		t->depth = depth;
		t->lost++;
		return 1;
	}
	f = frame_at(t, depth);
	f->function = id;
	f->sp = sp;
	f->done = t->done;
	outer = s->outer - 1;
	if (outer >= depth || frame_at(t, outer)->function != id)
		s->outer = depth + 1;
	depth++;
	t->depth = depth;
	*bpf_session_cookie(ctx) = depth;
	f->start = bpf_ktime_get_ns();
	return 0;
}

static __always_inline int returned(__u64 *ctx, struct thread *t)
{
	__u64 now = bpf_ktime_get_ns();
	__u64 depth = *bpf_session_cookie(ctx) - 1, took;
	struct frame *f;
	struct stat *s;
	__u32 id;

	if (depth >= MAX_DEPTH)
		return 0;
	f = frame_at(t, depth);
	if (f->sp != (__u64)ctx) {
		t->lost++;
		return 0;
	}
	f->sp = 0;
	took = now - f->start;
	id = f->function;
	s = bpf_map_lookup_elem(&stats, &id);
	if (!s)
		return 0;
	s->self_ns += took - (t->done - f->done);
	t->done = f->done + took;
	t->depth = depth;
	s->hist[log2_of(took) & 63]++;
	if (s->outer == depth + 1) {
		s->outer = 0;
		s->total_ns += took;
	}
	return 0;
}

SEC("fsession.multi/*")
int trace(__u64 *ctx)
{
	__u32 zero = 0;
	struct thread *t = bpf_map_lookup_elem(&threads, &zero);

	if (!t)
		return 1;
	return bpf_session_is_return(ctx) ? returned(ctx, t) : entered(ctx, t);
}

char _license[] SEC("license") = "Dual MIT/GPL";
