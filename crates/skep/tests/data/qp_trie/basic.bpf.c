/* What programs do with tries: the programs of Hou Tao's series ("bpf: Add support for qp-trie with dynptr key", 2022), in our own words, and
 * others. Each leaves what it was answered in `results`. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "../../../../cli/bpf/skep_maps.bpf.h"

#define EINVAL 22
#define NOTHING 0x6e6f6e65 /* in place of a value that was not found */

char _license[] SEC("license") = "GPL";

extern int bpf_dynptr_adjust(const struct bpf_dynptr *p, __u32 start, __u32 end) __ksym;
extern int bpf_dynptr_clone(const struct bpf_dynptr *p, struct bpf_dynptr *to) __ksym;
extern __u32 bpf_dynptr_size(const struct bpf_dynptr *p) __ksym;
extern _Bool bpf_dynptr_is_rdonly(const struct bpf_dynptr *p) __ksym;
extern void *bpf_dynptr_slice(const struct bpf_dynptr *p, __u32 offset, void *buffer, __u32 size) __ksym;

struct words {
	__uint(type, BPF_MAP_TYPE_QP_TRIE);
	__type(key, struct bpf_dynptr);
	__type(value, __u32);
	__uint(max_entries, 64);
	__uint(map_extra, 32);
	__uint(map_flags, BPF_F_NO_PREALLOC);
} words SEC(".maps");

/* As many bytes in a key as in a dynptr, but no dynptr. */
struct {
	__uint(type, BPF_MAP_TYPE_QP_TRIE);
	__type(key, char[16]);
	__type(value, __u32);
	__uint(max_entries, 64);
	__uint(map_flags, BPF_F_NO_PREALLOC);
} sixteen SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__type(key, __u32);
	__uint(max_entries, 2);
	__array(values, struct words);
} tries SEC(".maps") = {
	.values = { &words },
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, char[32]);
	__type(value, __u32);
	__uint(max_entries, 64);
} padded SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_QP_TRIE);
	__type(key, __u64);
	__type(value, __u32);
	__uint(max_entries, 64);
	__uint(map_flags, BPF_F_NO_PREALLOC);
} numbers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, char[64]);
	__uint(max_entries, 1);
} buffers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} records SEC(".maps");

__s64 results[16];
char text[64];
/* What `each` was shown: keys, each with a zero byte behind it. */
char shown[256];

static __always_inline __s64 value_of(struct bpf_dynptr *key)
{
	__u32 *value = bpf_map_lookup_elem(&words, key);

	return value ? *value : NOTHING;
}

/* "test" is there, with 1. */
SEC("syscall")
int basic_ops(void *ctx)
{
	__u32 zero = 0, value;
	char *buffer = bpf_map_lookup_elem(&buffers, &zero);
	struct bpf_dynptr key;

	if (!buffer)
		return 1;
	__builtin_memcpy(buffer, "test", 5);
	bpf_dynptr_from_mem(buffer, 5, 0, &key);
	results[0] = value_of(&key); /* with its zero byte it is another */
	bpf_dynptr_from_mem(buffer, 4, 0, &key);
	results[1] = value_of(&key);
	value = 2;
	results[2] = bpf_map_update_elem(&words, &key, &value, BPF_NOEXIST);
	results[3] = bpf_map_update_elem(&words, &key, &value, BPF_EXIST);
	results[4] = value_of(&key);
	results[5] = bpf_map_delete_elem(&words, &key);
	results[6] = bpf_map_delete_elem(&words, &key);
	results[7] = bpf_map_update_elem(&words, &key, &value, BPF_EXIST);
	results[8] = value_of(&key);
	bpf_dynptr_from_mem(buffer, 33, 0, &key); /* longer than any key */
	results[9] = value_of(&key);
	results[10] = bpf_map_update_elem(&words, &key, &value, BPF_ANY);
	results[11] = bpf_map_delete_elem(&words, &key);
	return 0;
}

SEC("syscall")
int zero_size_dynptr(void *ctx)
{
	struct bpf_dynptr key;
	__u32 value = 1;

	results[0] = bpf_dynptr_from_mem(text, 0, 0, &key);
	results[1] = value_of(&key);
	results[2] = bpf_map_update_elem(&words, &key, &value, BPF_ANY);
	results[3] = bpf_map_delete_elem(&words, &key);
	results[4] = bpf_dynptr_from_mem(text, 4, 1U << 31, &key); /* a bad one */
	results[5] = value_of(&key);
	results[6] = bpf_map_update_elem(&words, &key, &value, BPF_ANY);
	results[7] = bpf_map_delete_elem(&words, &key);
	return 0;
}

struct user_text {
	const char *at;
};

/* A string of the process as key, behind which the buffer still has what was there before: the hash does not find it. */
SEC("syscall")
int user_string(struct user_text *ctx)
{
	__u32 zero = 0, value = 7, *found;
	char *buffer = bpf_map_lookup_elem(&buffers, &zero);
	struct bpf_dynptr key;
	long len;

	if (!buffer)
		return 1;
	__builtin_memset(buffer, 'x', 64);
	len = bpf_probe_read_user_str(buffer, 32, ctx->at);
	results[0] = len;
	if (len <= 1 || len > 32)
		return 0;
	found = bpf_map_lookup_elem(&padded, buffer);
	results[1] = found ? *found : NOTHING;
	bpf_dynptr_from_mem(buffer, len - 1, 0, &key);
	results[2] = value_of(&key);
	results[3] = bpf_map_update_elem(&words, &key, &value, BPF_ANY);
	return 0;
}

/* "record" is there, with 1. */
SEC("syscall")
int record_as_key(void *ctx)
{
	struct bpf_dynptr key;
	__u32 value = 3;

	results[0] = bpf_ringbuf_reserve_dynptr(&records, 6, 0, &key);
	results[1] = bpf_dynptr_write(&key, 0, "record", 6, 0);
	results[2] = value_of(&key);
	results[3] = bpf_map_update_elem(&words, &key, &value, BPF_EXIST);
	results[4] = value_of(&key);
	results[5] = bpf_map_delete_elem(&words, &key);
	bpf_ringbuf_discard_dynptr(&key, 0);
	results[6] = bpf_ringbuf_reserve_dynptr(&records, 1 << 20, 0, &key); /* more than there is */
	results[7] = value_of(&key);
	results[8] = bpf_map_update_elem(&words, &key, &value, BPF_ANY);
	bpf_ringbuf_discard_dynptr(&key, 0);
	return 0;
}

/* "art" is there, with 1, and "par" is not. */
SEC("syscall")
int part_of_a_dynptr(void *ctx)
{
	struct bpf_dynptr key, part;
	__u32 value = 5;

	__builtin_memcpy(text, "departure", 9);
	bpf_dynptr_from_mem(text, 9, 0, &key);
	bpf_dynptr_clone(&key, &part);
	bpf_dynptr_adjust(&part, 3, 6);
	results[0] = value_of(&part); /* "art" */
	bpf_dynptr_adjust(&key, 1, 9);
	bpf_dynptr_adjust(&key, 1, 4);
	results[1] = value_of(&key); /* "par" */
	results[2] = bpf_map_update_elem(&words, &key, &value, BPF_NOEXIST);
	results[3] = value_of(&key);
	bpf_dynptr_adjust(&key, 3, 3);
	results[4] = value_of(&key); /* nothing */
	return 0;
}

struct walk {
	__u32 filled;
};

static long each(void *map, const struct bpf_dynptr *key, __u32 *value, struct walk *walk)
{
	__u32 size = bpf_dynptr_size(key);
	struct bpf_dynptr copy;
	char byte = '!';
	char *first;

	if (size > 32 || walk->filled > sizeof(shown) - 64)
		return 1;
	bpf_dynptr_read(shown + walk->filled, size, (void *)key, 0, 0);
	walk->filled += size + 1;
	results[1] += *value;
	/* Nobody changes a key in its place. */
	results[2] += bpf_dynptr_write((void *)key, 0, &byte, 1, 0);
	results[3] += bpf_dynptr_data((void *)key, 0, 1) != NULL;
	results[4] += bpf_dynptr_is_rdonly(key);
	first = bpf_dynptr_slice(key, 0, NULL, 1);
	if (first)
		results[5] += *first;
	bpf_dynptr_clone(key, &copy);
	results[6] += bpf_dynptr_write(&copy, 0, &byte, 1, 0);
	results[7] += value_of(&copy);
	*value += 100;
	if (size == 2)
		results[8] += bpf_map_delete_elem(map, key) == 0;
	return 0;
}

SEC("syscall")
int for_each(void *ctx)
{
	struct walk walk = {};

	results[0] = bpf_for_each_map_elem(&words, each, &walk, 0);
	return 0;
}

/* Keys of one size are passed as those of a hash. 5 is there, with 1. */
SEC("syscall")
int fixed_keys(void *ctx)
{
	__u64 key = 5;
	__u32 *found = bpf_map_lookup_elem(&numbers, &key), value = 2;

	results[0] = found ? *found : NOTHING;
	results[1] = bpf_map_update_elem(&numbers, &key, &value, BPF_NOEXIST);
	results[2] = bpf_map_update_elem(&numbers, &key, &value, BPF_EXIST);
	found = bpf_map_lookup_elem(&numbers, &key);
	results[3] = found ? *found : NOTHING;
	results[4] = bpf_map_delete_elem(&numbers, &key);
	results[5] = bpf_map_delete_elem(&numbers, &key);
	return 0;
}

/* "inner" is there, with 1, in the first of `tries`. */
SEC("syscall")
int inner(void *ctx)
{
	__u32 index = 0, value = 2, *found;
	struct bpf_dynptr key;
	void *map = bpf_map_lookup_elem(&tries, &index);

	__builtin_memcpy(text, "inner", 5);
	bpf_dynptr_from_mem(text, 5, 0, &key);
	if (map) {
		found = bpf_map_lookup_elem(map, &key);
		results[0] = found ? *found : NOTHING;
		results[1] = bpf_map_update_elem(map, &key, &value, BPF_EXIST);
		found = bpf_map_lookup_elem(map, &key);
		results[2] = found ? *found : NOTHING;
		results[3] = bpf_map_delete_elem(map, &key);
		results[4] = bpf_map_delete_elem(map, &key);
	}
	index = 1;
	results[5] = bpf_map_lookup_elem(&tries, &index) ? 1 : 0;
	return 0;
}
