/* The program behind `skep trace --tree`, `--graph`, `--flame` and `--folded`: calls and times by call path, per thread, in units of the
 * time-stamp counter.
 *
 * A call path is a node: a function below the node of its caller, of all traced functions that run on the thread; node 0 stands below all.
 * `edges` names nodes, and gives two threads the same name for the same path; each thread counts in its own values of `stats`. A node
 * remembers four of those it called last, so that hardly a call looks into the hash.
 *
 * Self time as in trace.bpf.c: `done` is the sum of the self times of all finished calls of the thread.
 */
#include "skep.bpf.h"
#include "frames.bpf.h"

static long (*const bpf_get_current_comm)(void *to, __u32 size) = (void *)16;

/* Paths beyond that many are counted as lost. */
#define MAX_NODES (1 << 18)

#define KNOWN 4

struct stat {
	__u64 calls;
	__u64 returned;
	__u64 self; /* time of those that returned, without the calls from them */
	__u64 longest;
	/* Functions called from here, plus 1, and the nodes of those calls: */
	__u32 functions[KNOWN];
	__u32 nodes[KNOWN];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, MAX_NODES);
	__type(key, __u32);
	__type(value, struct stat);
} stats SEC(".maps");

struct edge {
	__u32 caller; /* a node */
	__u32 function;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_NODES);
	__uint(map_flags, 1); /* BPF_F_NO_PREALLOC */
	__type(key, struct edge);
	__type(value, __u32);
} edges SEC(".maps");

struct settings {
	__u32 depth; /* deeper calls are not looked at */
	__u32 overhead; /* what a call that does nothing takes; for the reader */
	__u32 last; /* the last node that has a number */
	__u32 outside; /* what a timed call adds to its caller; for the reader */
	__u32 threads; /* each thread has a tree of its own */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct settings);
} settings SEC(".maps");

/* Where threads are told apart, there are nodes below all for processes, and for threads below those; trees stand on the latter. Such
 * nodes have numbers of processes and threads for functions, with these bits.
 */
#define PROCESS (2U << 30)
#define THREAD (3U << 30)

/* The node of the thread that the slot was last used by. */
struct root {
	__u64 tid;
	__u64 node;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct root);
} roots SEC(".maps");

struct name {
	char comm[16];
};

/* Names of threads by node, as they were last known. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1 << 14);
	__uint(map_flags, 1); /* BPF_F_NO_PREALLOC */
	__type(key, __u32);
	__type(value, struct name);
} names SEC(".maps");

/* A thread gives itself a name soon after it began: a call that took so long may have been in between, and asking costs nothing beside it. */
#define RENAMED (1 << 20)

/* In the cookie of a function that has no run at its return (`ENTRY_ONLY`, link/file.rs). */
#define ENTRY_ONLY (1ull << 63)

/* The node of calls of a function from `caller`; 0 if there are too many. */
static __attribute__((noinline)) __u32 node_of(struct stat *from, __u32 caller, __u32 function)
{
	struct edge edge = { .caller = caller, .function = function };
	__u32 zero = 0, id, slot = function % KNOWN;
	struct settings *set;
	__u32 *known;

	if (!from)
		return 0;
	known = bpf_map_lookup_elem(&edges, &edge);
	if (!known) {
		set = bpf_map_lookup_elem(&settings, &zero);
		if (!set || set->last >= MAX_NODES - 1)
			return 0;
		id = __sync_fetch_and_add(&set->last, 1) + 1;
		if (id >= MAX_NODES)
			return 0;
		/* Another thread may have been first: then its number counts. */
		bpf_map_update_elem(&edges, &edge, &id, BPF_NOEXIST);
		known = bpf_map_lookup_elem(&edges, &edge);
		if (!known)
			return 0;
	}
	id = *known;
	from->functions[slot] = function + 1;
	from->nodes[slot] = id;
	return id;
}

/* Writes down what this thread is called. */
static __attribute__((noinline)) int name_thread(struct root *root)
{
	struct name name = {};
	__u32 node;

	if (!root || !root->node)
		return 0;
	node = root->node;
	if (!bpf_get_current_comm(&name, sizeof(name)))
		bpf_map_update_elem(&names, &node, &name, BPF_ANY);
	return 0;
}

/* The node of a thread; 0 if there are too many. */
static __attribute__((noinline)) __u32 root_of(__u64 tid)
{
	__u32 zero = 0, node = 0;
	struct root *root = bpf_map_lookup_elem(&roots, &zero);
	struct stat *from = bpf_map_lookup_elem(&stats, &zero);

	if (!root || !from)
		return 0;
	if (root->tid == tid && root->node)
		return root->node;
	node = node_of(from, 0, PROCESS | (__u32)(tid >> 32));
	from = bpf_map_lookup_elem(&stats, &node);
	if (!node || !from)
		return 0;
	node = node_of(from, node, THREAD | (__u32)tid);
	root->tid = tid;
	root->node = node;
	name_thread(root);
	return node;
}

static __attribute__((noinline)) int returned(__u64 *ctx, struct thread *t)
{
	__u64 now = bpf_get_cpu_time_counter();
	__u64 call = *bpf_session_cookie(ctx), took;
	__u32 zero = 0;
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
	s->self += took - (t->done - f->done);
	s->returned++;
	if (took > s->longest)
		s->longest = took;
	t->done = f->done + took;
	t->top = call - sizeof(struct frame);
	if (took > RENAMED && call == sizeof(struct frame)) {
		struct settings *set = bpf_map_lookup_elem(&settings, &zero);

		if (set && set->threads)
			name_thread(bpf_map_lookup_elem(&roots, &zero));
	}
	return 0;
}

SEC("fsession.multi/*")
int tree(__u64 *ctx)
{
	__u32 zero = 0, caller = 0, function, node;
	__u64 cookie, sp, above, call, began = 0;
	struct thread *t = bpf_map_lookup_elem(&threads, &zero);
	struct settings *set = bpf_map_lookup_elem(&settings, &zero);
	struct stat *from, *s;
	struct frame *f;

	if (!t || !set)
		return 1;
	if (bpf_session_is_return(ctx))
		return returned(ctx, t);
	cookie = bpf_get_attach_cookie(ctx);
	function = cookie;
	sp = skep_get_func_sp(ctx);
	above = caller_of(t, sp);
	if (above >= set->depth * sizeof(struct frame))
		return 1;
	if (above >= LAST && !(cookie & ENTRY_ONLY)) {
		t->lost++;
		return 1;
	}
	if (above) {
		caller = frame_of(t, above)->function;
	} else if (set->threads) {
		caller = root_of(t->tid);
		if (!caller) {
			t->lost++;
			return 1;
		}
	}
	from = bpf_map_lookup_elem(&stats, &caller);
	if (!from)
		return 1;
	node = from->nodes[function % KNOWN];
	if (from->functions[function % KNOWN] != function + 1) {
		began = bpf_get_cpu_time_counter();
		node = node_of(from, caller, function);
	}
	s = node ? bpf_map_lookup_elem(&stats, &node) : 0;
	if (!s) {
		t->lost++;
		return 1;
	}
	s->calls++;
	/* Memory for a new node takes longer than most functions do: that is nobody's time. */
	if (began)
		t->done += bpf_get_cpu_time_counter() - began;
	if (cookie & ENTRY_ONLY)
		return 1;
	call = above + sizeof(struct frame);
	f = frame_of(t, call);
	f->function = node;
	f->sp = sp;
	f->done = t->done;
	t->top = call;
	*bpf_session_cookie(ctx) = call;
	f->start = bpf_get_cpu_time_counter();
	return 0;
}

char _license[] SEC("license") = "Dual MIT/GPL";
