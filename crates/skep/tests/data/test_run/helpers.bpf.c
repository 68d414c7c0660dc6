/* Helpers that need no packet: maps, callbacks, rings. Arguments and results are words of the context. */
#include "test_run.bpf.h"

struct words {
	__u64 w[16];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, 64);
} hash SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, 10);
} array SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, 4);
} percpu SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, 4);
} percpu_hash SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__type(value, __u64);
	__uint(max_entries, 3);
} queue SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_STACK);
	__type(value, __u64);
	__uint(max_entries, 3);
} stack SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_BLOOM_FILTER);
	__type(value, __u64);
	__uint(max_entries, 16);
} bloom SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} ring SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_USER_RINGBUF);
	__uint(max_entries, 4096);
} user_ring SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
	__uint(key_size, 4);
	__uint(value_size, 4);
	__uint(max_entries, 2);
} events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_CGROUP_ARRAY);
	__uint(key_size, 4);
	__uint(value_size, 4);
	__uint(max_entries, 2);
} groups SEC(".maps");

/* Not on the stack: the kernel's verifier would follow every value of the count. */
struct sum {
	__u64 sum, count, stop;
} s;

static long add_round(__u32 i, void *data)
{
	s.sum = s.sum * 3 + i;
	s.count++;
	return i == s.stop;
}

/* Rounds, flags, where to stop. */
SEC("syscall")
int sys_loop(struct words *ctx)
{
	s = (struct sum){ .stop = ctx->w[2] };
	ctx->w[3] = bpf_loop(ctx->w[0], add_round, 0, ctx->w[1]);
	ctx->w[4] = s.sum;
	ctx->w[5] = s.count;
	return ctx->w[3];
}

static long add_element(void *map, __u32 *key, __u64 *value, void *data)
{
	s.sum += (__u64)*key * 1000 + *value;
	s.count++;
	*value += 1;
	return s.count == s.stop;
}

static long delete_element(void *map, __u32 *key, __u64 *value, void *data)
{
	s.sum += *key;
	s.count += bpf_map_delete_elem(&hash, key) == 0;
	return 0;
}

/* Elements, flags, where to stop. */
SEC("syscall")
int sys_each(struct words *ctx)
{
	s = (struct sum){ .stop = ctx->w[2] };

	for (int n = 0; n < 20; n++) {
		__u32 i = n;
		__u64 value = n * n;

		if (n < ctx->w[0])
			bpf_map_update_elem(&hash, &i, &value, BPF_ANY);
		if (n < 10)
			bpf_map_update_elem(&array, &i, &value, BPF_ANY);
		if (n < 4) {
			bpf_map_update_elem(&percpu, &i, &value, BPF_ANY);
			bpf_map_update_elem(&percpu_hash, &i, &value, BPF_ANY);
		}
	}
	ctx->w[3] = bpf_for_each_map_elem(&array, add_element, 0, ctx->w[1]);
	ctx->w[4] = s.sum;
	ctx->w[5] = bpf_for_each_map_elem(&percpu, add_element, 0, ctx->w[1]);
	ctx->w[6] = s.sum;
	ctx->w[7] = bpf_for_each_map_elem(&percpu_hash, add_element, 0, 0);
	ctx->w[8] = s.count;
	/* The order of a hash is nobody's: all or nothing. */
	s = (struct sum){};
	ctx->w[9] = bpf_for_each_map_elem(&hash, add_element, 0, ctx->w[1]);
	ctx->w[10] = s.sum;
	s = (struct sum){};
	ctx->w[11] = bpf_for_each_map_elem(&hash, delete_element, 0, 0);
	ctx->w[12] = s.count;
	ctx->w[13] = bpf_for_each_map_elem(&hash, delete_element, 0, 0);
	return s.sum;
}

#define QUEUES(name, map)                                                                                                        \
	SEC("syscall")                                                                                                           \
	int name(struct words *ctx)                                                                                              \
	{                                                                                                                        \
		__u64 v = ctx->w[0], got = 77;                                                                                   \
		ctx->w[1] = bpf_map_push_elem(&map, &v, ctx->w[2]);                                                              \
		v++;                                                                                                             \
		ctx->w[3] = bpf_map_push_elem(&map, &v, ctx->w[4]);                                                              \
		ctx->w[5] = bpf_map_peek_elem(&map, &got);                                                                       \
		ctx->w[6] = got;                                                                                                 \
		for (int i = 0; i < 4 && i < ctx->w[7]; i++) {                                                                   \
			got = 78;                                                                                                \
			ctx->w[8 + i] = bpf_map_pop_elem(&map, &got);                                                            \
			ctx->w[12 + i] = got;                                                                                    \
		}                                                                                                                \
		return 0;                                                                                                        \
	}
QUEUES(sys_queue, queue)
QUEUES(sys_stack, stack)

/* Key, CPU. */
SEC("syscall")
int sys_percpu(struct words *ctx)
{
	__u32 key = ctx->w[0], cpu = ctx->w[1];
	__u64 one = 1, *v;

	bpf_map_update_elem(&percpu_hash, &key, &one, BPF_NOEXIST);
	v = bpf_map_lookup_percpu_elem(&percpu, &key, cpu);
	ctx->w[2] = !!v;
	if (v)
		*v += 5;
	v = bpf_map_lookup_percpu_elem(&percpu_hash, &key, cpu);
	ctx->w[3] = !!v;
	if (v)
		*v += 5;
	return 0;
}

/* Size, flags. */
SEC("syscall")
int sys_ring(struct words *ctx)
{
	__u64 size = ctx->w[0] & 127, data[16] = {};

	ctx->w[2] = bpf_ringbuf_output(&ring, data, size, ctx->w[1]);
	ctx->w[3] = bpf_ringbuf_query(&ring, 0);
	ctx->w[4] = bpf_ringbuf_query(&ring, 1);
	ctx->w[5] = bpf_ringbuf_query(&ring, 2);
	ctx->w[6] = bpf_ringbuf_query(&ring, 3);
	ctx->w[7] = bpf_ringbuf_query(&ring, ctx->w[1]);
	return 0;
}

static long drained(struct bpf_dynptr *sample, void *data)
{
	return 0;
}

static __always_inline void result(__u32 i, __u64 value)
{
	bpf_map_update_elem(&array, &i, &value, BPF_ANY);
}

/* Value, flags. */
SEC("raw_tp")
int raw_bloom(struct bpf_raw_tracepoint_args *ctx)
{
	__u64 v = ctx->args[0];

	result(0, bpf_map_push_elem(&bloom, &v, ctx->args[1]));
	result(1, bpf_map_peek_elem(&bloom, &v));
	return 0;
}

/* Flags, index, size. */
SEC("raw_tp")
int raw_errors(struct bpf_raw_tracepoint_args *ctx)
{
	__u64 size = ctx->args[2] & 63, data[8] = {};

	result(3, bpf_user_ringbuf_drain(&user_ring, drained, 0, ctx->args[0]));
	result(4, bpf_perf_event_output(ctx, &events, ctx->args[0], data, size));
	result(5, bpf_current_task_under_cgroup(&groups, ctx->args[1]));
	result(6, bpf_get_current_ancestor_cgroup_id(1000));
	result(7, bpf_get_current_ancestor_cgroup_id(-1));
	return 0;
}
