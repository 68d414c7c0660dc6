/* The stack of calls that a program keeps for each thread; crates/cli/src/running.rs reads it. Include it behind skep.bpf.h. */
#pragma once

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

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct thread);
} threads SEC(".maps");

/* The frame of a call. The mask keeps it inside whatever a map value says. */
static __always_inline struct frame *frame_of(struct thread *t, __u64 call)
{
	call &= LAST;
	asm volatile("" : "+r"(call)); /* clang must not move the mask behind the address */
	return (void *)t + call;
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

/* The call that a function with this stack pointer was called in; 0: none that is known. */
static __always_inline __u64 caller_of(struct thread *t, __u64 sp)
{
	__u64 above = t->top;
	struct frame *f;

	if (above) {
		f = frame_of(t, above);
		if (f->sp <= sp || f->sp > sp + STACK_GAP)
			above = settle(t, sp);
	} else {
		/* Whoever reads the stack when all is over wants to know whose it was. */
		t->tid = bpf_get_current_pid_tgid();
	}
	return above;
}
